/* legalize.c: the last rewriting before nodes become kernels. Everything stays
 * as it was in meaning; what changes is
 *
 *   products    an operand whose layout no matrix product can read is permuted
 *               into one first; a result takes an order that can be written;
 *               operands of two dtypes get one
 *   reductions  of much into little, over the slowest axes, are made in two
 *               stages so that there is something to share between threads
 *   scatters    of few into each place become masks, which fuse, unless an
 *               index names much, and most of the result is named by none:
 *               scatter_add v e = sum over top of where(e == iota, v, 0)
 *               rows to their experts, as of a bias's gradient, are sums of
 *               each expert's rows: a grouped product with ones
 *               scatter_add (combine r m) e = gmm_wgrad 1 r m; m = route e
 *   scales      are operands of products that apply them (scaled_products.c)
 *   blocks      amax, quantize, dequantize become loops (quantize.c)
 *   routes      numbers of experts become places, which padding has too */
#include "kernels.h"

enum {
    MUCH = 1 << 16, /* elements worth two stages */
    RUN = 64,       /* elements of the first stage's sums */
    FEW = 16        /* summed places of a mask */
};

/* A new node takes its place and its shards from `by`: per atom, what by (or
 * else the first of its operands) has along an axis that the node has. */
static Node *like(Node *n, const Node *by)
{
    n->again = by->again;
    return g_placed(n, by);
}

/* Are numbers of a weight or scales x that a step's bodies read in another
 * layout to be made once, for all micro-batches: is that worth its bytes
 * (Graph.price)? */
static int once_a_step(Graph *g, const Node *x, const Node *by)
{
    Param *p = x->op == Oparam ? g_param(g, x->at.param.path) : NULL;

    if (!p || by->reg != REGbody || !program_trains(g->prog) ||
        (p->kind != TKnumbers && p->kind != TKscales))
        return 0;
    double bytes = (double)local_bytes(g, x), turns = (double)micro_turns(g);
    double more = 2 * bytes * (1 - 1 / turns) / machine_of(g)->memory;

    return more > 0 && more * bytes_a_second(g, by->scope->unit) >= bytes;
}

/* What `by` reads in place of x stands where x does, or with `by` if x stands
 * ready for all calls and regions. */
static Node *in_place_of(Graph *g, Node *n, const Node *x, const Node *by)
{
    const Node *at = any_region(x) ? by : x;
    int once = once_a_step(g, x, by);

    like(n, x);
    n->reg = once ? REGpre : at->reg;
    n->call = once ? 0 : at->call;
    return n;
}

static void give_shards(Graph *g, Node *n, const Node *by)
{
    Shard sh[MAXATOM] = { 0 };

    for (int i = 0; i < MAXATOM; i++) {
        if (by->sh[i].k == S && dim_of(n, by->sh[i].a) >= 0)
            sh[i] = by->sh[i];
        for (int k = 0; k < n->nin && sh[i].k != S; k++) {
            const Shard *s = &n->in[k]->sh[i];
            if (s->k == S && dim_of(n, s->a) >= 0)
                sh[i] = *s;
            else if (s->k == P || (s->k == S && by->sh[i].k == P))
                sh[i] = s->k == P ? *s : by->sh[i];
        }
    }
    n->sh = g_type(g, sh);
}

/* ---- orders of axes ------------------------------------------------------ */

typedef struct DimOrder {
    int n;
    Dim d[2 * MAXD];
} DimOrder;

static void add_dims(DimOrder *order, const Node *from, const Node *has,
                     const Node *lacks)
{
    for (int i = 0; i < from->nd; i++) {
        Dim d = from->dim[i];
        if ((!has || dim_of(has, d.a) >= 0) &&
            (!lacks || dim_of(lacks, d.a) < 0))
            order->d[order->n++] = d;
    }
}

static int has_order(const Node *n, const DimOrder *order)
{
    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a != order->d[i].a)
            return 0;
    return n->nd == order->n;
}

static Node *permuted(Graph *g, Node *x, const DimOrder *order, const Node *by)
{
    if (has_order(x, order))
        return x;
    Node *p = in_place_of(g, g_node(g, Opermute, x->loc, 1, &x), x, by);
    p->nd = order->n;
    memcpy(p->dim, order->d, (size_t)order->n * sizeof *order->d);
    p->dt = x->dt;
    p->sh = x->sh;
    return infer(g, p);
}

static void take_order(Node *n, const DimOrder *order)
{
    memcpy(n->dim, order->d, (size_t)order->n * sizeof *order->d);
}

static Node *cast_to(Graph *g, Node *x, Dtype t, const Node *by)
{
    Node *c = g_cast(g, x, t);

    if (c == x)
        return x;
    c->sh = x->sh;
    return in_place_of(g, c, x, by);
}

/* ---- dots ---------------------------------------------------------------- */

/* [batch M K], [batch K N] and [batch M N], in the order of the result. */
static void plain_orders(const Node *n, DimOrder *a, DimOrder *b, DimOrder *c)
{
    const Node *x = n->in[0], *y = n->in[1];

    *a = *b = *c = (DimOrder){ 0 };
    for (int i = 0; i < n->nd; i++) {
        Dim d = n->dim[i];
        if (dim_of(x, d.a) >= 0 && dim_of(y, d.a) >= 0)
            a->d[a->n++] = b->d[b->n++] = c->d[c->n++] = d;
    }
    for (int i = 0; i < n->nd; i++)
        if (dim_of(y, n->dim[i].a) < 0)
            a->d[a->n++] = c->d[c->n++] = n->dim[i];
    add_dims(a, x, NULL, n);
    add_dims(b, x, y, n);
    for (int i = 0; i < n->nd; i++)
        if (dim_of(x, n->dim[i].a) < 0)
            b->d[b->n++] = c->d[c->n++] = n->dim[i];
}

static int fits(const Graph *g, const Node *n, const DimOrder *a,
                const DimOrder *b, const DimOrder *c)
{
    Node x = *n->in[0], y = *n->in[1], z = *n;
    Matrix m;

    if (a)
        take_order(&x, a);
    if (b)
        take_order(&y, b);
    if (c)
        take_order(&z, c);
    return as_matrix(g, &x, &y, &z, &m);
}

/* An operand's numbers and its scales, whose dims lie as those do. */
typedef struct ScaledOrder {
    DimOrder numbers, scales;
} ScaledOrder;

/* Adds the dims of numbers x, of scales s, that `like` has, in its order; with
 * `but` those that it lacks. One that is cut into blocks comes last. */
static void add_scaled(ScaledOrder *order, const Node *x, const Node *s,
                       const Node *like, const Node *but)
{
    DimOrder *a = &order->numbers, *b = &order->scales;

    for (int cut = 0; cut < 2; cut++)
        for (int k = 0; k < like->nd; k++) {
            int i = dim_of(x, like->dim[k].a);
            if (i < 0 || (but && dim_of(but, like->dim[k].a) >= 0) ||
                (s->dim[i].a != x->dim[i].a) != cut)
                continue;
            a->d[a->n++] = x->dim[i];
            b->d[b->n++] = s->dim[i];
        }
}

/* rows [M K] with scales [M kb], weight [N K] with scales [nb kb], result
 * [M N]. */
static void lay_out_scaled_dot(Graph *g, Node *n)
{
    ScaledOrder order[2] = { 0 };
    const Node *rows = n->in[0];
    DimOrder out = { 0 };

    for (int k = 0; k < 2; k++) {
        add_scaled(&order[k], n->in[k], n->in[2 + k], n, NULL);
        for (int i = 0; i < order[k].numbers.n; i++)
            out.d[out.n++] = order[k].numbers.d[i];
        add_scaled(&order[k], n->in[k], n->in[2 + k], rows, n);
    }
    for (int k = 0; k < 2; k++) {
        Node *x = n->in[k], *s = n->in[2 + k];
        n->in[k] = permuted(g, x, &order[k].numbers, n);
        n->in[2 + k] = permuted(g, s, &order[k].scales, n);
    }
    take_order(n, &out);
}

/* The fewest changes of layout that make a matrix product of it. */
static void lay_out_dot(Graph *g, Node *n)
{
    DimOrder a, b, c;

    if (is_scaled_product(n)) {
        lay_out_scaled_dot(g, n);
        return;
    }
    plain_orders(n, &a, &b, &c);
    for (int how = 0; how < 8; how++) {
        int pa = how & 1, pb = how >> 1 & 1, pc = how >> 2;
        if (!fits(g, n, pa ? &a : NULL, pb ? &b : NULL, pc ? &c : NULL))
            continue;
        if (pa)
            n->in[0] = permuted(g, n->in[0], &a, n);
        if (pb)
            n->in[1] = permuted(g, n->in[1], &b, n);
        if (pc)
            take_order(n, &c);
        if (pa || pb)
            why(g, n, "an operand is copied into a layout a product can read");
        return;
    }
    die("dot: more than three axes outside a matrix product");
}

static Dtype wider(Dtype a, Dtype b)
{
    return a == b ? a : a == Df64 || b == Df64 ? Df64 : Df32;
}

static void one_dtype(Graph *g, Node *n)
{
    Dtype t = wider(n->in[0]->dt, n->in[1]->dt);

    for (int k = 0; k < 2; k++)
        n->in[k] = cast_to(g, n->in[k], t, n);
}

/* ---- grouped products ---------------------------------------------------- */

static void add_rows(DimOrder *order, const Node *x)
{
    for (int i = 0; i < x->nd; i++)
        if (g_isrow(x->dim[i].a))
            order->d[order->n++] = x->dim[i];
}

/* Scales of rows [row kb], w [expert N K], its scales [expert nb kb]. */
static void lay_out_scaled(Graph *g, Node *n, const DimOrder *nk)
{
    Node *w = n->in[1], *t = n->in[4];
    DimOrder rows = { 0 }, blocks = { 0 };

    add_rows(&rows, n->in[3]);
    for (int i = 0; i < n->in[3]->nd; i++)
        if (!g_isrow(n->in[3]->dim[i].a))
            rows.d[rows.n++] = n->in[3]->dim[i];
    n->in[3] = permuted(g, n->in[3], &rows, n);
    n->in[1] = permuted(g, w, nk, n);
    for (int i = 0; i < nk->n; i++)
        blocks.d[blocks.n++] = t->dim[dim_of(w, nk->d[i].a)];
    n->in[4] = permuted(g, t, &blocks, n);
}

/* rows [row K], w [expert K N] or [expert N K], result [row N]. */
static void lay_out_gmm(Graph *g, Node *n)
{
    Node *rows = n->in[0], *w = n->in[1];
    Axis *expert = n->in[2]->at.route.axis;
    DimOrder r = { 0 }, kn = { 0 }, nk = { 0 }, out = { 0 };

    kn.d[kn.n++] = nk.d[nk.n++] = w->dim[dim_of(w, expert)];
    add_rows(&r, rows);
    add_rows(&out, rows);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < w->nd; i++) {
            Dim d = w->dim[i];
            int inner = axes_at(&n->at.gmm.axes, d.a) >= 0;
            if (d.a == expert)
                continue;
            if (inner == (pass == 0))
                kn.d[kn.n++] = d;
            else
                nk.d[nk.n++] = d;
        }
    for (int i = 0; i < w->nd; i++) {
        Dim d = w->dim[i];
        if (d.a == expert)
            continue;
        DimOrder *to = axes_at(&n->at.gmm.axes, d.a) >= 0 ? &r : &out;
        to->d[to->n++] = d;
    }
    n->in[0] = permuted(g, rows, &r, n);
    if (is_scaled_product(n))
        lay_out_scaled(g, n, &nk);
    else if (!has_order(w, &nk))
        n->in[1] = permuted(g, w, &kn, n);
    take_order(n, &out);
}

/* a [block K row], b [block N row], result [expert K N] or [expert N K], of
 * their one column each. */
static void lay_out_scaled_wgrad(Node *n)
{
    Axis *expert = n->in[2]->at.route.axis;
    int at = dim_of(n, expert);
    Dim first = n->dim[at];

    memmove(n->dim + 1, n->dim, (size_t)at * sizeof *n->dim);
    n->dim[0] = first;
}

static void lay_out_gmm_wgrad(Graph *g, Node *n)
{
    Node *a = n->in[0], *b = n->in[1];
    DimOrder ra = { 0 }, rb = { 0 }, kn = { 0 }, nk = { 0 };
    Axis *expert = n->in[2]->at.route.axis;

    if (is_scaled_product(n)) {
        lay_out_scaled_wgrad(n);
        return;
    }
    add_rows(&ra, a);
    add_rows(&rb, b);
    add_dims(&ra, n, a, NULL);
    add_dims(&rb, n, b, NULL);
    kn.d[kn.n++] = nk.d[nk.n++] = n->dim[dim_of(n, expert)];
    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a != expert && dim_of(a, n->dim[i].a) >= 0)
            kn.d[kn.n++] = n->dim[i];
    add_dims(&kn, n, b, a);
    add_dims(&nk, n, b, a);
    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a != expert && dim_of(a, n->dim[i].a) >= 0)
            nk.d[nk.n++] = n->dim[i];
    n->in[0] = permuted(g, a, &ra, n);
    n->in[1] = permuted(g, b, &rb, n);
    if (!has_order(n, &nk))
        take_order(n, &kn);
}

/* ---- reductions ---------------------------------------------------------- */

/* Are these results enough work for the target, each summed by one item? */
static int enough(const Graph *g, int64_t results)
{
    return results >= pass_target(g)->items * 128;
}

/* Reduced axes to keep for the second stage: all but the fastest, as long as
 * the first stage sums RUN elements at least. Short runs also keep sums exact:
 * a lane adds few numbers to each other. */
static int kept_axes(const Graph *g, const Node *n, Axis **keep)
{
    const Node *a = n->in[0];
    int64_t items = 1, run = 1;
    int k = 0;

    if (local_elems(g, a) < MUCH || enough(g, local_elems(g, n)) || a->map)
        return 0;
    for (int i = 0; i < n_axes(n)->n; i++)
        run *= local_n(g, a, dim_of(a, n_axes(n)->v[i]));
    for (int d = 0; d < a->nd; d++) {
        int64_t size = local_n(g, a, d);
        if (axes_at(n_axes(n), a->dim[d].a) < 0 || size == 1)
            continue;
        if (run / size < RUN)
            break;
        run /= size;
        items *= size;
        keep[k++] = a->dim[d].a;
    }
    return items > 1 ? k : 0;
}

/* Does the reduction leave the slowest axes alone, and are they rows enough to
 * be items? */
static int by_rows(const Graph *g, const Node *n)
{
    const Node *a = n->in[0];
    int64_t rows = 1;

    for (int d = 0; d < a->nd && axes_at(n_axes(n), a->dim[d].a) < 0; d++)
        rows *= local_n(g, a, d);
    return rows >= pass_target(g)->items;
}

/* What `by` reduces with axis a as two, the fast one of `run` elements. */
static Node *cut_axis(Graph *g, const Node *by, Axis *a, int64_t run)
{
    Node *x = by->in[0];
    Node *s = in_place_of(g, g_node(g, Osplit, x->loc, 1, &x), x, by);

    Axis *into[] = {
        g_axis(g, strf(g->arena, "%s'of%lld", a->name, (long long)run)),
        g_axis(g, strf(g->arena, "%s'by%lld", a->name, (long long)run)),
    };

    s->at.split.axis = a;
    s->at.split.into = g_axes(g, into, 2);
    s->dt = x->dt;
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a == a) {
            s->dim[s->nd++] = (Dim){ into[0], x->dim[d].n / run };
            s->dim[s->nd++] = (Dim){ into[1], run };
        } else {
            s->dim[s->nd++] = x->dim[d];
        }
    s->sh = g_type_along(g, x->sh, a, into[0]);
    return infer(g, s);
}

/* Blocks that make so many sums: groups of threads for 256 columns. */
static int64_t blocks_of(int64_t out)
{
    return (out + 255) / 256;
}

/* Elements of a part of a long axis: parts that fill the chip twice. */
static int64_t run_length(const Graph *g, int64_t size, int64_t out)
{
    int64_t parts = 2 * pass_target(g)->items / blocks_of(out);
    int64_t run = size / (parts ? parts : 1);

    return run < RUN / 8 ? RUN / 8 : run;
}

/* One long axis, summed as a whole: its slow half is kept for the second
 * stage. Null: none is long enough, or few items are well. */
static Node *cut_for_two(Graph *g, const Node *n, Axis **kept)
{
    Node *a = n->in[0];
    int64_t out = local_elems(g, n);

    if (local_elems(g, a) < MUCH || enough(g, out) || a->map || a->nd == MAXD)
        return NULL;
    for (int d = 0; d < a->nd; d++) {
        int64_t size = local_n(g, a, d), run = run_length(g, size, out);
        if (axes_at(n_axes(n), a->dim[d].a) < 0 || size < 4 * RUN)
            continue;
        while (run < size && size % run)
            run++;
        if (run * 2 > size || a->dim[d].n % run)
            continue;
        Node *s = cut_axis(g, n, a->dim[d].a, run);
        *kept = s->at.split.into.v[0];
        return s;
    }
    return NULL;
}

/* n's reduction of x, x being its operand with axis `from` cut in two. */
static Node *of_cut(Graph *g, const Node *n, Node *x)
{
    const struct split_attrs *t = &x->at.split;
    Node *r = g_copyof(g, n, &x);
    Axis *ax[MAXD + 1];
    int k = 0;

    for (; k < n_axes(n)->n; k++)
        ax[k] = n_axes(n)->v[k] == t->axis ? t->into.v[1] : n_axes(n)->v[k];
    ax[k++] = t->into.v[0];
    *n_axes(r) = g_axes(g, ax, k);
    return r;
}

/* Would the axes kept make fewer blocks than keep the chip busy? */
static int few_parts(const Graph *g, const Node *n, Axis *const *keep, int nk)
{
    int64_t blocks = blocks_of(local_elems(g, n));

    for (int i = 0; i < nk; i++)
        blocks *= local_n(g, n->in[0], dim_of(n->in[0], keep[i]));
    return blocks < pass_target(g)->items / 2;
}

/* On a grid: would one kernel do both stages, its blocks each by themselves?
 * It then is better off with one (fusible.c, too_few). */
static int too_small(const Graph *g, const Node *n, Axis *const *keep, int nk)
{
    int64_t parts = 1;

    for (int i = 0; i < nk; i++)
        parts *= local_n(g, n->in[0], dim_of(n->in[0], keep[i]));
    return parts < 16 || local_elems(g, n->in[0]) < 4 * MUCH;
}

/* The reduction in two stages, of which the second is over the axes kept. */
static Node *staged(Graph *g, Node *n, Axis **keep, int nk)
{
    Axis *first[MAXD + 1];
    int nf = 0;

    for (int i = 0; i < n_axes(n)->n; i++)
        if (axis_at(keep, nk, n_axes(n)->v[i]) < 0)
            first[nf++] = n_axes(n)->v[i];
    Node *s = like(g_red(g, n->op, n->in[0], first, nf), n);
    give_shards(g, s, n);
    Node *r = g_copyof(g, n, &s);
    *n_axes(r) = g_axes(g, keep, nk);
    return infer(g, r);
}

/* Of blocks of columns first, by the kernel that rounds such. */
static Node *of_blocks(Graph *g, Node *n)
{
    Node *x = cut_axis(g, n, n_axes(n)->v[0], SCALEBLOCK);

    return staged(g, of_cut(g, n, x), &x->at.split.into.v[0], 1);
}

static Node *two_stages(Graph *g, Node *n)
{
    Axis *keep[MAXD];
    int nk = by_rows(g, n) ? 0 : kept_axes(g, n, keep);

    if (n->dt == Dbf16) /* a stage would be rounded */
        return n;
    if (pass_target(g)->grid && !by_rows(g, n) &&
        (!nk || few_parts(g, n, keep, nk))) {
        Node *x = cut_for_two(g, n, keep);
        if (x) {
            n = of_cut(g, n, x);
            nk = 1;
        }
    }
    if (!nk || (pass_target(g)->grid && too_small(g, n, keep, nk)))
        return n;
    Node *r = staged(g, n, keep, nk);
    return pass_target(g)->grid ? two_stages(g, r) : r;
}

/* ---- scatters ------------------------------------------------------------ */

static Node *ew(Graph *g, Op op, const Node *by, Node *a, Node *b, Node *c)
{
    Node *n = like(g_ew(g, op, by->loc, a, b, c), by);

    give_shards(g, n, by);
    return n;
}

static Node *position(Graph *g, const Node *n)
{
    Node *io = like(g_node(g, Oiota, n->loc, 0, NULL), n);

    io->at.iota.axis = n->at.scatter_add.axis;
    io->nd = 1;
    io->dim[0] = n->dim[dim_of(n, n->at.scatter_add.axis)];
    infer(g, io);
    give_shards(g, io, n);
    return io;
}

/* Of large rows that each index names, are most without any? A mask would read
 * and write them all; small rows fuse as masks. */
static int touches_little(const Graph *g, const Node *n)
{
    int64_t added = local_elems(g, n->in[0]);

    return added >= MUCH * local_elems(g, n->in[1]) &&
           2 * added <= local_elems(g, n);
}

static Node *as_mask(Graph *g, Node *n)
{
    Node *v = n->in[0], *e = n->in[1];
    int64_t summed = 1;

    for (int k = 0; k < 2; k++)
        for (int d = 0; d < n->in[k]->nd; d++)
            if (dim_of(n, n->in[k]->dim[d].a) < 0 &&
                (k == 0 || dim_of(v, e->dim[d].a) < 0))
                summed *= local_n(g, n->in[k], d);
    if (summed > FEW || n->map || v->map || touches_little(g, n))
        return n;
    Node *hit = ew(g, Oeq, n, e, position(g, n), NULL);
    v = cast_to(g, v, n->dt, n); /* sums of bf16 may be wider */
    Node *zero = like(g_const(g, n->loc, v->dt, 0), n);
    Node *x = ew(g, Owhere, n, hit, v, zero);
    Axis *gone[MAXD];
    int k = axes_lacking(n, x, gone);
    Node *r = k ? like(g_red(g, Osum, x, gone, k), n) : x;
    r->sh = n->sh;
    DimOrder o = { 0 };
    add_dims(&o, n, r, NULL);
    if (o.n != n->nd) /* an axis that only n has */
        return n;
    return permuted(g, r, &o, n);
}

/* ---- routes -------------------------------------------------------------- */

/* Choices by their places, where ranks hold unequal numbers of experts. */
static Node *to_places(Graph *g, Node *n)
{
    size_t first = vec_len(g->node);
    Node *e = n->in[0];

    n->in[0] = g_to_padded(g, n->at.route.axis, e);
    for (size_t i = first; i < vec_len(g->node); i++)
        give_shards(g, like(g->node[i], n), e);
    return n;
}

/* The combine of rows of which n sums all that an expert has, by what their map
 * routes by; null: it adds others. */
static Node *rows_summed(const Node *n)
{
    Node *v = n->in[0], *e = n->in[1];

    while (v->op == Ocast)
        v = v->in[0];
    const Node *map = v->op == Ocombine ? v->in[1] : NULL;
    if (!map || map->op != Oroute || map->in[0] != e ||
        map->at.route.axis != n->at.scatter_add.axis)
        return NULL;
    for (int d = 0; d < e->nd; d++)
        if (dim_of(n, e->dim[d].a) >= 0)
            return NULL;
    return v;
}

/* One in each row that has a token. */
static Node *ones(Graph *g, const Node *by, const Node *rows)
{
    Node *map = rows->in[1], *e = map->in[0];
    Node *zero = like(g_const(g, by->loc, e->dt, 0), by);
    Node *one = cast_to(g, ew(g, Oge, by, e, zero, NULL), rows->in[0]->dt, by);
    Node *in[2] = { one, map };
    Node *n = infer(g, like(g_node(g, Odispatch, by->loc, 2, in), by));

    Shard sh[MAXATOM] = { 0 };
    for (int t = 0; t < MAXATOM; t++) { /* not cut as a row is */
        Shard s = rows->in[0]->sh[t];
        if (s.k == S && dim_of(rows->in[0], s.a) < 0)
            sh[t] = s;
    }
    n->sh = g_type(g, sh);
    return n;
}

/* Sums of a rank's own experts as those of all, n's: 0 for others. */
static Node *among_all(Graph *g, Node *n, Node *sums)
{
    Axis *all = n->at.scatter_add.axis, *own = g_instance(g, all);
    Node *mine = like(g_node(g, Orename, n->loc, 1, &sums), n);
    Node *number = like(g_node(g, Oiota, n->loc, 0, NULL), n);

    mine->at.rename.from = g_axes(g, &all, 1);
    mine->at.rename.to = g_axes(g, &own, 1);
    infer(g, mine);
    mine->sh = g_type_along(g, sums->sh, all, own);
    number->at.iota.axis = own;
    number->nd = 1;
    number->dim[0] = mine->dim[dim_of(mine, own)];
    infer(g, number);
    give_shards(g, number, mine);
    Node *in[2] = { mine, number };
    return as_mask(g, like(g_copyof(g, n, in), n));
}

static Node *sum_of_rows(Graph *g, Node *n, const Node *rows)
{
    Node *map = rows->in[1], *in[3] = { ones(g, n, rows), rows->in[0], map };
    Node *r = like(g_node(g, Ogmm_wgrad, n->loc, 3, in), n);
    int expert = dim_of(n, n->at.scatter_add.axis);
    DimOrder was = { 0 };

    r->at.gmm_wgrad.experts = n->dim[expert].n;
    r->dt = n->dt;
    infer(g, r);
    Shard sh[MAXATOM];
    for (int t = 0; t < MAXATOM; t++) {
        int cut = map->sh[t].k == S && map->sh[t].a == map->at.route.axis;
        sh[t] = cut ? map->sh[t] : n->sh[t];
    }
    r->sh = g_type(g, sh);
    lay_out_gmm_wgrad(g, r);
    if (local_n(g, n, expert) != map_layout(g, map).experts)
        return among_all(g, n, r);
    add_dims(&was, n, NULL, NULL);
    return permuted(g, r, &was, n);
}

static Node *scattered(Graph *g, Node *n)
{
    const Node *rows = rows_summed(n);

    return rows ? sum_of_rows(g, n, rows) : as_mask(g, n);
}

/* ---- dropout ------------------------------------------------------------- */

static Node *seeded(const Graph *g, Node *dropout)
{
    int64_t *key = &dropout->at.dropout.key;

    if (g->opts)
        *key =
            (int64_t)mix64((uint64_t)*key, (uint64_t)opts_int(g->opts, "seed"));
    return dropout;
}

/* In training the mask depends on the step and the micro-batch, and on the
 * seed; elsewhere there is none. */
static Node *dropped(Graph *g, Node *n)
{
    DimOrder o = { 0 };

    add_dims(&o, n, NULL, NULL);
    if (!program_trains(g->prog))
        return n->at.dropout.drawn ? seeded(g, n)
                                   : permuted(g, n->in[0], &o, n);
    Node *in[3] = { n->in[0], like(g_step_value(g, n->loc, STEPstep), n),
                    like(g_step_value(g, n->loc, STEPmicro), n) };
    Node *r = g_node(g, Odropout, n->loc, 3, in);
    Node **own = r->in;
    int id = r->id;
    *r = *n;
    r->in = own;
    r->nin = 3;
    r->id = id;
    return seeded(g, r);
}

/* ---- what is sent -------------------------------------------------------- */

/* By id: is it read by a collective or sent as it lies in memory? */
static char *sent_values(Graph *g)
{
    char *sent = alloc(g->arena, vec_len(g->node) + 1);

    g_renumber(g);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (optab[n->op].cls == COMM || n->op == Osend)
            for (int k = 0; k < n->nin; k++)
                sent[n->in[k]->id] = 1;
    }
    return sent;
}

/* A product whose result takes another order; who sends it sends `was`. */
static Node *product(Graph *g, Node *n, const char *sent,
                     void (*lay_out)(Graph *g, Node *n))
{
    DimOrder was = { .n = n->nd };

    memcpy(was.d, n->dim, (size_t)n->nd * sizeof *n->dim);
    one_dtype(g, n);
    lay_out(g, n);
    if (!sent[n->id] || has_order(n, &was))
        return n;
    vec_push(g->arena, g->node, n);
    return permuted(g, n, &was, n);
}

/* ---- states of the host's memory ----------------------------------------- */

/* A state that moves to the host is written by a copy, which keeps the order of
 * axes; a kernel of the device writes elements to their places. */
static Node *written(Graph *g, Node *n)
{
    DimOrder order = { 0 };

    if (g->opts && goes_to_host(g, n->in[0])) {
        add_dims(&order, n->in[0], NULL, NULL);
        n->in[1] = permuted(g, n->in[1], &order, n);
    }
    return n;
}

/* ---- entry --------------------------------------------------------------- */

/* By id: is it sent (sent_values); a sum of what is rounded (rounded_sums)? */
typedef struct Legal {
    const char *sent, *beside;
    int count;
} Legal;

static Node *legal(Graph *g, Node *n, void *ctx)
{
    const Legal *of = ctx;

    if (n->id < of->count && of->beside[n->id])
        return of_blocks(g, n);
    switch (n->op) {
    case Odot: return product(g, n, of->sent, lay_out_dot);
    case Ogmm: return product(g, n, of->sent, lay_out_gmm);
    case Ogmm_wgrad: return product(g, n, of->sent, lay_out_gmm_wgrad);
    case Oscatter_add: return scattered(g, n);
    case Oroute: return to_places(g, n);
    case Odropout: return dropped(g, n);
    case Owrite: return written(g, n);
    case Oamax:
    case Ohadamard:
    case Oquantize:
    case Odequantize: n = open_blocks(g, n); break;
    default: break;
    }
    return optab[n->op].cls == RED ? two_stages(g, n) : n;
}

void pass_legalize(Graph *g)
{
    Legal of = { 0 };

    scaled_products(g);
    of.sent = sent_values(g);
    of.beside = rounded_sums(g);
    of.count = (int)vec_len(g->node);
    rewrite(g, legal, &of);
}
