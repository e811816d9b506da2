/* quantize.c: amax, hadamard, quantize and dequantize as what loop kernels are
 * made of. An axis cut into blocks becomes two, those that count blocks and
 * elements; scales meet values by the first.
 *
 *     x [t hidden=512]  --split-->  [t hb=4 hidden'by128=128]
 *     amax              max of magnitude over hidden'by128         [t hb]
 *     quantize          x * s, rounded to the dtype --merge-->     [t hidden]
 *     hadamard          sum over hidden'by128 of x times signs / 4 (1x16)
 *
 * An axis whose last block is not whole is padded with zeros first; two numbers
 * of an element are put together, as bits, by arithmetic in fp32. */
#include "quant.h"

static Axis *made_axis(Graph *g, const Axis *a, const char *what, int64_t n)
{
    return g_axis(g, strf(g->arena, "%s'%s%lld", a->name, what, (long long)n));
}

/* ---- blocks as an axis --------------------------------------------------- */

/* Dim d of x, of a * b elements, as two. */
static Node *split(Graph *g, Node *x, Axis *axis, Axis *slow, Axis *fast,
                   int64_t run)
{
    Node *s = g_node(g, Osplit, x->loc, 1, &x);

    s->at.split.axis = axis;
    s->at.split.into = g_axes(g, (Axis *[]){ slow, fast }, 2);
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a == axis) {
            s->dim[s->nd++] = (Dim){ slow, x->dim[d].n / run };
            s->dim[s->nd++] = (Dim){ fast, run };
        } else {
            s->dim[s->nd++] = x->dim[d];
        }
    return infer(g, s);
}

/* The inverse: the two axes are `axis` again. By way of another one, which the
 * merge makes an axis of factors. */
static Node *merged(Graph *g, Node *x, Axis *slow, Axis *fast, Axis *axis)
{
    int64_t n = x->dim[dim_of(x, slow)].n * x->dim[dim_of(x, fast)].n;
    Axis *both = made_axis(g, slow, fast->name, n);
    Node *m = g_node(g, Omerge, x->loc, 1, &x), *r;

    m->at.merge.axes = g_axes(g, (Axis *[]){ slow, fast }, 2);
    m->at.merge.new = both;
    infer(g, m);
    r = g_node(g, Orename, x->loc, 1, &m);
    r->at.rename.from = g_axes(g, &both, 1);
    r->at.rename.to = g_axes(g, &axis, 1);
    return infer(g, r);
}

static Node *resized(Graph *g, Node *x, Op op, Axis *axis, int64_t len)
{
    Node *r = g_node(g, op, x->loc, 1, &x);

    if (op == Opad)
        r->at.pad = (struct pad_attrs){ axis, 0, len };
    else
        r->at.slice = (struct slice_attrs){ axis, 0, len };
    return infer(g, r);
}

static Axis *inner_axis(Graph *g, const Node *n, int i)
{
    return made_axis(g, n->at.amax.axes.v[i], "by", block_size(n, i));
}

/* In which n computes: fp32, fp64 if an operand is. */
static Dtype computes_in(const Node *n)
{
    return n->in[0]->dt == Df64 || n->in[n->nin - 1]->dt == Df64 ? Df64 : Df32;
}

/* x with the axes of n's blocks, as it is computed with. */
static Node *in_blocks(Graph *g, const Node *n, Node *x)
{
    const struct amax_attrs *t = &n->at.amax;

    x = g_cast(g, x, computes_in(n));
    for (int i = 0; i < t->blocks.n; i++) {
        int64_t size = block_size(n, i);
        int64_t len = x->dim[dim_of(x, t->axes.v[i])].n;
        if (len % size)
            x = resized(g, x, Opad, t->axes.v[i],
                        (len + size - 1) / size * size);
        x = split(g, x, t->axes.v[i], t->blocks.v[i], inner_axis(g, n, i),
                  size);
    }
    return x;
}

/* The values in blocks x as `like` has them. */
static Node *out_of_blocks(Graph *g, const Node *n, Node *x, const Node *like)
{
    const struct amax_attrs *t = &n->at.amax;

    for (int i = 0; i < t->blocks.n; i++) {
        Axis *a = t->axes.v[i];
        int64_t len = like->dim[dim_of(like, a)].n;
        x = merged(g, x, t->blocks.v[i], inner_axis(g, n, i), a);
        if (x->dim[dim_of(x, a)].n != len)
            x = resized(g, x, Oslice, a, len);
    }
    return x;
}

/* ---- two in an element --------------------------------------------------- */

static Node *position(Graph *g, const Node *n, Axis *a, int64_t count, Dtype dt)
{
    Node *i = g_node(g, Oiota, n->loc, 0, NULL);

    i->at.iota.axis = a;
    i->dim[i->nd++] = (Dim){ a, count };
    return g_cast(g, infer(g, i), dt);
}

static Axis *last_axis(const Node *n)
{
    return n->at.amax.axes.v[n->at.amax.axes.n - 1];
}

/* x as codes of e2m1: the nearest, or with a key either neighbour, in a step by
 * its number and the micro-batch's too. */
static Node *codes(Graph *g, const Node *n, Node *x)
{
    if (!n->at.quantize.key)
        return g_ew(g, Oe2m1_code, n->loc, x, NULL, NULL);
    int trains = program_trains(g->prog);
    Node *in[3] = { x, trains ? g_step_value(g, n->loc, STEPstep) : NULL,
                    trains ? g_step_value(g, n->loc, STEPmicro) : NULL };
    Node *u = g_node(g, Odither, n->loc, trains ? 3 : 1, in);
    u->at.dither.key = n->at.quantize.key;
    memcpy(u->dim, x->dim, sizeof u->dim);
    u->nd = x->nd;
    return g_ew(g, Ostochastic_e2m1, n->loc, x, infer(g, u), NULL);
}

/* x of even elements, as codes of e2m1, the first in the low bits. */
static Node *packed(Graph *g, const Node *n, Node *x)
{
    Axis *two = made_axis(g, last_axis(n), "by", 2);
    Node *sixteen = g_const(g, n->loc, x->dt, 15);
    Node *one = g_const(g, n->loc, x->dt, 1);

    x = codes(g, n, x);
    x = split(g, x, last_axis(n), n_pairs(n), two, 2);
    Node *w = position(g, n, two, 2, x->dt);
    w = g_ew(g, Oadd, n->loc, g_ew(g, Omul, n->loc, w, sixteen, NULL), one,
             NULL);
    x = g_ew(g, Omul, n->loc, x, w, NULL);
    return g_cast(g, g_red(g, Osum, x, &two, 1), De2m1x2);
}

static Node *unpacked(Graph *g, const Node *n, Node *x)
{
    Axis *two = made_axis(g, last_axis(n), "by", 2);
    Node *in[2] = { g_cast(g, x, n->dt), position(g, n, two, 2, n->dt) };
    Node *v = g_node(g, Oe2m1_value, n->loc, 2, in);

    for (int d = 0; d < x->nd; d++) { /* beside each other, for the merge */
        v->dim[v->nd++] = x->dim[d];
        if (x->dim[d].a == n_pairs(n))
            v->dim[v->nd++] = (Dim){ two, 2 };
    }
    return merged(g, infer(g, v), n_pairs(n), two, last_axis(n));
}

/* ---- the Hadamard transform ---------------------------------------------- */

/* x times the signs of its blocks' matrix, `to` beside the axis `in` of a
 * block's elements, which it is then summed over. */
static Node *signed_copies(Graph *g, const Node *n, Node *x, Axis *in, Axis *to)
{
    int64_t size = x->dim[dim_of(x, in)].n;
    Node *m = g_const(g, n->loc, x->dt, (double)n->at.hadamard.signs);
    Node *sign =
        g_ew(g, Ohadamard_sign, n->loc, position(g, n, to, size, x->dt),
             position(g, n, in, size, x->dt), m);
    Node *y = g_node(g, Omul, n->loc, 2, (Node *[]){ x, sign });

    for (int d = 0; d < x->nd; d++) {
        y->dim[y->nd++] = x->dim[d];
        if (x->dim[d].a == in)
            y->dim[y->nd++] = (Dim){ to, size };
    }
    return infer(g, y);
}

/* Only the sum is rounded by more than each addition: 1 / 4 is a power of two,
 * and the matrix so divided is orthogonal. */
static Node *transformed(Graph *g, const Node *n)
{
    Node *x = in_blocks(g, n, n->in[0]);
    Axis *in = inner_axis(g, n, 0), *to = made_axis(g, in, "to", 16);
    Node *y = g_red(g, Osum, signed_copies(g, n, x, in, to), &in, 1);

    y = g_ew(g, Omul, n->loc, y, g_const(g, n->loc, y->dt, 0.25), NULL);
    Node *r = g_node(g, Orename, n->loc, 1, &y);
    r->at.rename.from = g_axes(g, &to, 1);
    r->at.rename.to = g_axes(g, &in, 1);
    return out_of_blocks(g, n, infer(g, r), n->in[0]);
}

/* ---- the four ops -------------------------------------------------------- */

static Node *largest(Graph *g, const Node *n)
{
    const struct amax_attrs *t = &n->at.amax;
    Node *x = in_blocks(g, n, n->in[0]);
    Axis *gone[MAXD];

    for (int i = 0; i < t->axes.n; i++)
        gone[i] = t->blocks.n ? inner_axis(g, n, i) : t->axes.v[i];
    x = g_ew(g, Omagnitude, n->loc, x, NULL, NULL);
    return g_red(g, Omax, x, gone, t->axes.n);
}

static Node *scaled(Graph *g, const Node *n, Node *x)
{
    Node *s = g_cast(g, n->in[1], computes_in(n));

    return g_ew(g, Omul, n->loc, in_blocks(g, n, x), s, NULL);
}

static Node *quantized(Graph *g, const Node *n)
{
    Node *x = scaled(g, n, n->in[0]);

    if (n->dt != De2m1x2)
        return out_of_blocks(g, n, g_cast(g, x, n->dt), n->in[0]);
    return packed(g, n, out_of_blocks(g, n, x, n->in[0]));
}

static Node *dequantized(Graph *g, const Node *n)
{
    Node *x = n_pairs(n) ? unpacked(g, n, n->in[0]) : n->in[0];

    return out_of_blocks(g, n, scaled(g, n, x), n);
}

/* The type over each atom that its operands' types make; of the magnitudes that
 * an amax is of it has the largest of each rank, and so have all on the way. */
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
    Node *r = n->op == Oamax       ? largest(g, n)
              : n->op == Ohadamard ? transformed(g, n)
              : n->op == Oquantize ? quantized(g, n)
                                   : dequantized(g, n);

    for (size_t i = first; i < vec_len(g->node); i++) {
        g->node[i]->again = n->again;
        g_placed(g->node[i], n);
        give_types(g, g->node[i], n);
    }
    return r;
}
