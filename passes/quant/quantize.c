/* quantize.c: lowers amax, hadamard, quantize and dequantize to operations of
 * loop kernels. A blocked axis becomes two axes, of blocks and of elements in a
 * block; scales have the first.
 *
 *     x [t hidden=512]  --split-->  [t hb=4 hidden'by128=128]
 *     amax              max of magnitude over hidden'by128         [t hb]
 *     quantize          x * s, rounded to the dtype --merge-->     [t hidden]
 *     hadamard          sum over hidden'by128 of x times signs / 4 (1x16)
 *
 * An axis with a partial last block is padded with zeros. Two 4-bit numbers are
 * packed into a byte by fp32 arithmetic. */
#include "quant.h"

static Axis *made_axis(Graph *g, const Axis *a, const char *what, int64_t n)
{
    return g_axis(g, strf(g->arena, "%s'%s%lld", a->name, what, (long long)n));
}

/* ---- blocks as an axis --------------------------------------------------- */

/* Dim d of x, of a * b elements, as two. */
static Node *split(Cursor b, Node *x, Axis *axis, Axis *slow, Axis *fast,
                   int64_t run)
{
    Node *s = b_here(b, g_node(b.g, Osplit, x->loc, 1, &x));

    s->at.split.axis = axis;
    s->at.split.into = g_axes(b.g, (Axis *[]){ slow, fast }, 2);
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a == axis) {
            s->dim[s->nd++] = (Dim){ slow, x->dim[d].n / run };
            s->dim[s->nd++] = (Dim){ fast, run };
        } else {
            s->dim[s->nd++] = x->dim[d];
        }
    return infer(b.g, s);
}

/* The inverse: the two axes are `axis` again. By way of another one, which the
 * merge makes an axis of factors. */
static Node *merged(Cursor b, Node *x, Axis *slow, Axis *fast, Axis *axis)
{
    int64_t n = x->dim[dim_of(x, slow)].n * x->dim[dim_of(x, fast)].n;
    Axis *both = made_axis(b.g, slow, fast->name, n);
    Node *m = b_here(b, g_node(b.g, Omerge, x->loc, 1, &x));

    m->at.merge.axes = g_axes(b.g, (Axis *[]){ slow, fast }, 2);
    m->at.merge.new = both;
    return b_rename(b, infer(b.g, m), both, axis);
}

static Node *resized(Cursor b, Node *x, Op op, Axis *axis, int64_t len)
{
    Node *r = b_here(b, g_node(b.g, op, x->loc, 1, &x));

    if (op == Opad)
        r->at.pad = (struct pad_attrs){ axis, 0, len };
    else
        r->at.slice = (struct slice_attrs){ axis, 0, len };
    return infer(b.g, r);
}

static Axis *inner_axis(Cursor b, int i)
{
    return made_axis(b.g, b.at->at.amax.axes.v[i], "by", block_size(b.at, i));
}

/* The dtype of n's arithmetic: fp32, or fp64 if an operand is. */
static Dtype computes_in(const Node *n)
{
    return n->in[0]->dt == Df64 || n->in[n->nin - 1]->dt == Df64 ? Df64 : Df32;
}

/* x with the axes of n's blocks, as it is computed with. */
static Node *in_blocks(Cursor b, Node *x)
{
    const Node *n = b.at;
    const struct amax_attrs *t = &n->at.amax;

    x = b_cast(b, x, computes_in(n));
    for (int i = 0; i < t->blocks.n; i++) {
        int64_t size = block_size(n, i);
        int64_t len = x->dim[dim_of(x, t->axes.v[i])].n;
        if (len % size)
            x = resized(b, x, Opad, t->axes.v[i],
                        (len + size - 1) / size * size);
        x = split(b, x, t->axes.v[i], t->blocks.v[i], inner_axis(b, i), size);
    }
    return x;
}

/* The values in blocks x as `like` has them. */
static Node *out_of_blocks(Cursor b, Node *x, const Node *like)
{
    const struct amax_attrs *t = &b.at->at.amax;

    for (int i = 0; i < t->blocks.n; i++) {
        Axis *a = t->axes.v[i];
        int64_t len = like->dim[dim_of(like, a)].n;
        x = merged(b, x, t->blocks.v[i], inner_axis(b, i), a);
        if (x->dim[dim_of(x, a)].n != len)
            x = resized(b, x, Oslice, a, len);
    }
    return x;
}

/* ---- packed e2m1 --------------------------------------------------------- */

static Node *position(Cursor b, Axis *a, int64_t count, Dtype dt)
{
    Node *i = b_node(b, Oiota, 0, NULL);

    i->at.iota.axis = a;
    i->dim[i->nd++] = (Dim){ a, count };
    return b_cast(b, infer(b.g, i), dt);
}

static Axis *last_axis(const Node *n)
{
    return n->at.amax.axes.v[n->at.amax.axes.n - 1];
}

/* x as codes of e2m1: the nearest, or with a key either neighbour, in a step by
 * its number and the micro-batch's too. */
static Node *codes(Cursor b, Node *x)
{
    Graph *g = b.g;
    const Node *n = b.at;

    if (!n->at.quantize.key)
        return b_op1(b, Oe2m1_code, x);
    int trains = program_trains(g->prog);
    Node *step = trains ? b_here(b, g_step_value(g, n->loc, STEPstep)) : NULL;
    Node *micro = trains ? b_here(b, g_step_value(g, n->loc, STEPmicro)) : NULL;
    Node *u = b_node(b, Odither, trains ? 3 : 1, (Node *[]){ x, step, micro });
    u->at.dither.key = n->at.quantize.key;
    memcpy(u->dim, x->dim, sizeof u->dim);
    u->nd = x->nd;
    return b_op2(b, Ostochastic_e2m1, x, infer(g, u));
}

/* x of even elements, as codes of e2m1, the first in the low bits. */
static Node *packed(Cursor b, Node *x)
{
    Axis *last = last_axis(b.at), *two = made_axis(b.g, last, "by", 2);
    Node *sixteen = b_const(b, x->dt, 15), *one = b_const(b, x->dt, 1);

    x = split(b, codes(b, x), last, n_pairs(b.at), two, 2);
    Node *w = position(b, two, 2, x->dt);
    w = b_op2(b, Oadd, b_op2(b, Omul, w, sixteen), one);
    x = b_op2(b, Omul, x, w);
    return b_cast(b, b_red(b, Osum, x, &two, 1), De2m1x2);
}

static Node *unpacked(Cursor b, Node *x)
{
    const Node *n = b.at;
    Axis *two = made_axis(b.g, last_axis(n), "by", 2);
    Node *in[2] = { b_cast(b, x, n->dt), position(b, two, 2, n->dt) };
    Node *v = b_node(b, Oe2m1_value, 2, in);

    for (int d = 0; d < x->nd; d++) { /* make them adjacent for the merge */
        v->dim[v->nd++] = x->dim[d];
        if (x->dim[d].a == n_pairs(n))
            v->dim[v->nd++] = (Dim){ two, 2 };
    }
    return merged(b, infer(b.g, v), n_pairs(n), two, last_axis(n));
}

/* ---- the Hadamard transform ---------------------------------------------- */

/* x times the signs of its blocks' matrix, `to` beside the axis `in` of a
 * block's elements, which it is then summed over. */
static Node *signed_copies(Cursor b, Node *x, Axis *in, Axis *to)
{
    int64_t size = x->dim[dim_of(x, in)].n;
    Node *m = b_const(b, x->dt, (double)b.at->at.hadamard.signs);
    Node *column = position(b, in, size, x->dt);
    Node *row = position(b, to, size, x->dt);
    Node *sign = b_op3(b, Ohadamard_sign, row, column, m);
    Node *y = b_node(b, Omul, 2, (Node *[]){ x, sign });

    for (int d = 0; d < x->nd; d++) {
        y->dim[y->nd++] = x->dim[d];
        if (x->dim[d].a == in)
            y->dim[y->nd++] = (Dim){ to, size };
    }
    return infer(b.g, y);
}

/* Only the sum is rounded by more than each addition: 1 / 4 is a power of two,
 * and the matrix so divided is orthogonal. */
static Node *transformed(Cursor b)
{
    Node *x = in_blocks(b, b.at->in[0]);
    Axis *in = inner_axis(b, 0), *to = made_axis(b.g, in, "to", 16);
    Node *y = b_red(b, Osum, signed_copies(b, x, in, to), &in, 1);

    y = b_op2(b, Omul, y, b_const(b, y->dt, 0.25));
    return out_of_blocks(b, b_rename(b, y, to, in), b.at->in[0]);
}

/* ---- the four ops -------------------------------------------------------- */

static Node *largest(Cursor b)
{
    const struct amax_attrs *t = &b.at->at.amax;
    Node *x = in_blocks(b, b.at->in[0]);
    Axis *gone[MAXD];

    for (int i = 0; i < t->axes.n; i++)
        gone[i] = t->blocks.n ? inner_axis(b, i) : t->axes.v[i];
    return b_red(b, Omax, b_op1(b, Omagnitude, x), gone, t->axes.n);
}

static Node *scaled(Cursor b, Node *x)
{
    Node *s = b_cast(b, b.at->in[1], computes_in(b.at));

    return b_op2(b, Omul, in_blocks(b, x), s);
}

static Node *quantized(Cursor b)
{
    Node *of = b.at->in[0], *x = scaled(b, of);

    if (b.at->dt != De2m1x2)
        return out_of_blocks(b, b_cast(b, x, b.at->dt), of);
    return packed(b, out_of_blocks(b, x, of));
}

static Node *dequantized(Cursor b)
{
    Node *of = b.at->in[0], *x = n_pairs(b.at) ? unpacked(b, of) : of;

    return out_of_blocks(b, scaled(b, x), b.at);
}

/* Sets the layout types from the operands'; the intermediate values of an amax
 * have its type (the maximum of each rank). */
static void give_types(Graph *g, Node *n, const Node *of)
{
    ShardStrategy w[MAXWAY];
    Shard sh[MAXATOM];

    memcpy(sh, n->sh, sizeof sh);
    for (int t = 0; g->mesh && t < g->mesh->natom; t++) {
        if (of->op == Oamax && of->in[0]->sh[t].k == P)
            sh[t] = of->sh[t];
        for (int i = ways(g, n, t, w); i-- > 0;) {
            int same = 1;
            for (int k = 0; k < n->nin; k++)
                same &= same_shard(&w[i].in[k], &n->in[k]->sh[t]);
            if (same)
                sh[t] = w[i].out;
        }
    }
    n->sh = g_type(g, sh);
}

Node *open_blocks(Graph *g, Node *n)
{
    size_t first = vec_len(g->node);
    Cursor b = { g, n, n->reg, n->again };
    Node *r = n->op == Oamax       ? largest(b)
              : n->op == Ohadamard ? transformed(b)
              : n->op == Oquantize ? quantized(b)
                                   : dequantized(b);

    for (size_t i = first; i < vec_len(g->node); i++)
        give_types(g, g->node[i], n);
    return r;
}
