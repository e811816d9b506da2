/* move.c: views and moves. move_value() of a node is the value of its operand
 * at another index, computed from sizes, strides and starts. Where the index
 * may be outside of the operand (pad, concat, index -1 of a gather, pairs
 * without a row), a guard protects all loads behind it. */
#include "loop.h"

/* ---- indices ------------------------------------------------------------- */

static const SizeProduct *loop_extent(void *ctx, int var)
{
    LoopKernel *kernel = ctx;

    return var < MAXLOOP ? kernel->loop[var].extent : NULL;
}

/* (affine / div) % mod, by an explicit division if it is not affine. */
static const AffineExpr *quotient(LoopKernel *kernel, const AffineExpr *affine,
                                  const SizeProduct *div,
                                  const SizeProduct *mod)
{
    const AffineExpr *l =
        affine_digit(kernel->pool, affine, div, mod, loop_extent, kernel);

    if (l)
        return l;
    Expr *q = ex_aff(kernel, Di64, affine);
    if (div->n)
        q = ex_op(kernel, Di64, "a / b", q, ex_int(kernel, aff(div->v)), NULL);
    if (mod)
        q = ex_op(kernel, Di64, "a % b", q, ex_int(kernel, aff(mod->v)), NULL);
    return ex_index(kernel, q);
}

/* The index of operand a at index ix of n; axes are matched by name. */
Index by_axis(LoopKernel *kernel, const Node *a, const Node *n, const Index *ix)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        if (k < 0)
            continue;
        if (local_n(kernel->graph, a, d) != local_n(kernel->graph, n, k))
            die("%s: axis %s has %ld here and %ld in the operand",
                optab[n->op].name, a->dim[d].a->name,
                local_n(kernel->graph, n, k), local_n(kernel->graph, a, d));
        jx.at[d] = ix->at[k];
    }
    return jx;
}

/* The same, except that `axis`, whose size may differ, has index `at`. */
static Index by_axis_except(const Node *a, const Node *n, const Index *ix,
                            const Axis *axis, const AffineExpr *at)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        jx.at[d] = a->dim[d].a == axis ? at : k >= 0 ? ix->at[k] : NULL;
    }
    return jx;
}

/* ---- views --------------------------------------------------------------- */

static Expr *rename_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    Node *a = n->in[0];
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        const Axis *to = a->dim[d].a;
        int i = axes_at(&n->at.rename.from, a->dim[d].a);
        if (i >= 0)
            to = n->at.rename.to.v[i];
        int k = dim_of(n, to);
        /* Loops run over the result's axis; the operand's size is equal to
         * it. */
        size_define(kernel->pool, a->dim[d].a, local_n(kernel->graph, a, d),
                    dim_size(kernel, n, k));
        jx.at[d] = ix->at[k];
    }
    return kernel_value(kernel, a, &jx, guard);
}

/* Product of the sizes of `axes` of n, starting with the from-th. */
static const SizeProduct *size_product(LoopKernel *kernel, const Node *n,
                                       const Axes *axes, int from)
{
    const SizeProduct *m = size_one(kernel->pool);

    for (int i = from; i < axes->n; i++)
        m = size_mul(kernel->pool, m,
                     dim_size(kernel, n, dim_of(n, axes->v[i])));
    return m;
}

static Expr *split_value(LoopKernel *kernel, Node *n, const Index *ix,
                         Expr *guard)
{
    Node *a = n->in[0];
    const Axis *x = n->at.split.axis;
    const Axes *into = &n->at.split.into;
    const AffineExpr *at = affine_make(kernel->pool, aff(0), 0, NULL, 0);

    for (int i = 0; i < into->n; i++)
        at = affine_add(kernel->pool, at,
                        affine_mul(kernel->pool, ix->at[dim_of(n, into->v[i])],
                                   size_product(kernel, n, into, i + 1)));
    size_define(kernel->pool, x, local_n(kernel->graph, a, dim_of(a, x)),
                size_product(kernel, n, into, 0));
    Index jx = by_axis_except(a, n, ix, x, at);
    return kernel_value(kernel, a, &jx, guard);
}

static Expr *merge_value(LoopKernel *kernel, Node *n, const Index *ix,
                         Expr *guard)
{
    Node *a = n->in[0];
    const Axes *x = &n->at.merge.axes;
    int at = dim_of(n, n->at.merge.new);
    Index jx = by_axis_except(a, n, ix, NULL, NULL);

    size_define(kernel->pool, n->at.merge.new, local_n(kernel->graph, n, at),
                size_product(kernel, a, x, 0));
    for (int i = 0; i < x->n; i++) {
        int d = dim_of(a, x->v[i]);
        jx.at[d] =
            quotient(kernel, ix->at[at], size_product(kernel, a, x, i + 1),
                     i ? dim_size(kernel, a, d) : NULL);
    }
    return kernel_value(kernel, a, &jx, guard);
}

/* ---- moves --------------------------------------------------------------- */

static RankAffine minus(int64_t x)
{
    return aff(-x);
}

static const AffineExpr *offset(LoopKernel *kernel, const AffineExpr *affine,
                                RankAffine x)
{
    return affine_add(kernel->pool, affine, affine_const(kernel->pool, x));
}

static Expr *zero_of(LoopKernel *kernel, const Node *n)
{
    return ex_num(kernel, compute_type(n->dt), 0);
}

/* a at index `at` of the moved axis if that is in range, else 0. */
static Expr *value_in_range(LoopKernel *kernel, Node *n, Node *a,
                            const Index *ix, const AffineExpr *at, Expr *guard)
{
    const Axis *x = n_axis(n);
    Expr *in =
        ex_within(kernel, at, aff(local_n(kernel->graph, a, dim_of(a, x))));
    Index jx = by_axis_except(a, n, ix, x, at);

    Expr *v = kernel_value(kernel, a, &jx, ex_both(kernel, guard, in));

    return ex_select(kernel, in, v, zero_of(kernel, n));
}

static Expr *slice_value(LoopKernel *kernel, Node *n, const Index *ix,
                         Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.slice.axis)];
    Index jx = by_axis_except(n->in[0], n, ix, n->at.slice.axis,
                              offset(kernel, at, aff(n->at.slice.start)));

    return kernel_value(kernel, n->in[0], &jx, guard);
}

static Expr *pad_value(LoopKernel *kernel, Node *n, const Index *ix,
                       Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.pad.axis)];

    return value_in_range(kernel, n, n->in[0], ix,
                          offset(kernel, at, minus(n->at.pad.start)), guard);
}

static Expr *concat_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.concat.axis)];
    int64_t start = 0;
    Expr *sum = NULL;

    for (int i = 0; i < n->nin; i++) {
        Node *a = n->in[i];
        int64_t len = local_n(kernel->graph, a, dim_of(a, n->at.concat.axis));
        const AffineExpr *here = offset(kernel, at, minus(start));
        Expr *in = ex_within(kernel, here, aff(len));
        Index jx = by_axis_except(a, n, ix, n->at.concat.axis, here);
        Expr *v = kernel_value(kernel, a, &jx, ex_both(kernel, guard, in));
        sum = ex_select(kernel, in, v, sum ? sum : zero_of(kernel, n));
        start += len;
    }
    return sum;
}

/* Is x in memory with its axes in this order? */
static int is_stored_in_order(LoopKernel *kernel, Node *x, Axis *const *order)
{
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != order[d])
            return 0;
    return table_get(kernel->member, KEYP(storage(x))) &&
           x->dt == storage(x)->dt;
}

/* Element `at` of x in row-major order of the axes `order`. */
static Expr *element_at(LoopKernel *kernel, Node *x, Axis *const *order,
                        const AffineExpr *at, Expr *guard)
{
    const SizeProduct *stride = size_one(kernel->pool);
    Index jx = { { 0 } };

    if (is_stored_in_order(kernel, x, order))
        return ex_load(kernel, storage(x), x->dt, at, guard);
    for (int i = x->nd - 1; i >= 0; i--) {
        int d = dim_of(x, order[i]);
        jx.at[d] =
            quotient(kernel, at, stride, i ? dim_size(kernel, x, d) : NULL);
        stride = size_mul(kernel->pool, stride, dim_size(kernel, x, d));
    }
    return kernel_value(kernel, x, &jx, guard);
}

static Expr *pack_value(LoopKernel *kernel, Node *n, const Index *ix,
                        Expr *guard)
{
    const AffineExpr *at = ix->at[n->nd - 1];
    Axis *const *order = n->at.pack.order.v;
    Expr *sum = zero_of(kernel, n);

    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        const AffineExpr *here = offset(kernel, at, minus(bucket_at(n, k)));
        Expr *in = ex_within(kernel, here, aff(local_elems(kernel->graph, x)));
        Expr *v =
            element_at(kernel, x, order, here, ex_both(kernel, guard, in));
        sum = ex_select(kernel, in, v, sum);
        order += x->nd;
    }
    return sum;
}

/* Element jx of the bucket that n unpacks if this rank has it, else 0. */
static Expr *unpacked_local(LoopKernel *kernel, const Node *n, Index *jx,
                            Expr *guard)
{
    Node *a = n->in[0];
    int d = a->nd - 1;
    RankAffine start = aff_scale(local_start(kernel->graph, a, d), -1);
    int64_t run = local_n(kernel->graph, a, d);

    jx->at[d] = offset(kernel, jx->at[d], start);
    Expr *in = ex_within(kernel, jx->at[d], aff(run));
    Expr *v = kernel_value(kernel, a, jx, ex_both(kernel, guard, in));

    return ex_select(kernel, in, v, zero_of(kernel, n));
}

static Expr *unpack_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    Node *a = n->in[0];
    const AffineExpr *at = affine_const(kernel->pool, aff(n->at.unpack.at));
    const SizeProduct *stride = size_one(kernel->pool);
    Index jx = { { 0 } };

    for (int i = n->at.unpack.order.n - 1; i >= 0; i--) {
        int d = dim_of(n, n->at.unpack.order.v[i]);
        at = affine_add(kernel->pool, at,
                        affine_mul(kernel->pool, ix->at[d], stride));
        stride = size_mul(kernel->pool, stride, dim_size(kernel, n, d));
    }
    jx.at[0] = affine_const(kernel->pool, aff(0));
    jx.at[a->nd - 1] = at;
    return n->at.unpack.largest ? unpacked_local(kernel, n, &jx, guard)
                                : kernel_value(kernel, a, &jx, guard);
}

/* Number of the quantization block of local index `at` along the i-th axis;
 * ranks have whole blocks. */
static const AffineExpr *scale_block_at(LoopKernel *kernel, const Node *n,
                                        int i, const AffineExpr *at)
{
    Expr *size = ex_int(kernel, aff(block_size(n, i)));

    return ex_index(kernel, ex_op(kernel, Di64, "a / b",
                                  ex_aff(kernel, Di64, at), size, NULL));
}

static Expr *spread_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    const struct spread_attrs *t = &n->at.spread;
    Node *s = n->in[0];
    Index jx = { { 0 } };

    for (int d = 0; d < s->nd; d++) {
        int i = axes_at(&t->blocks, s->dim[d].a);
        const Axis *a = i < 0 ? s->dim[d].a : t->axes.v[i];
        const AffineExpr *at = ix->at[dim_of(n, a)];
        jx.at[d] = i < 0 ? at : scale_block_at(kernel, n, i, at);
    }
    return kernel_value(kernel, s, &jx, guard);
}

static Expr *shift_value(LoopKernel *kernel, Node *n, const Index *ix,
                         Expr *guard)
{
    int d = dim_of(n, n->at.shift.axis);
    const AffineExpr *at = offset(kernel, ix->at[d], minus(n->at.shift.by));

    if (!n->at.shift.wrap)
        return value_in_range(kernel, n, n->in[0], ix, at, guard);
    int64_t size = local_n(kernel->graph, n, d);
    Expr *to = ex_op(kernel, Di64, "(a % b + b) % b", ex_aff(kernel, Di64, at),
                     ex_int(kernel, aff(size)), NULL);
    Index jx =
        by_axis_except(n->in[0], n, ix, n->at.shift.axis, ex_index(kernel, to));
    return kernel_value(kernel, n->in[0], &jx, guard);
}

/* ---- local and global indices -------------------------------------------- */

/* affine plus `first` below index `half`, plus `second` from there on. */
static const AffineExpr *add_by_half(LoopKernel *kernel,
                                     const AffineExpr *affine, int64_t half,
                                     RankAffine first, RankAffine second)
{
    Expr *arg[4] = { ex_aff(kernel, Di64, affine), ex_int(kernel, aff(half)),
                     ex_int(kernel, first), ex_int(kernel, second) };

    return affine_add(
        kernel->pool, affine,
        ex_index(kernel, ex_expr(kernel, Di64, "a < b ? c : d", 4, arg)));
}

/* Global index of local index `affine` along dim d of n. */
const AffineExpr *global_at(LoopKernel *kernel, const Node *n, int d,
                            const AffineExpr *affine)
{
    Piece p[MAXPIECE];

    if (pieces(kernel->graph, n, d, p) == 1)
        return aff_zero(&p[0].start) ? affine
                                     : offset(kernel, affine, p[0].start);
    return add_by_half(kernel, affine, p[0].len, p[0].start,
                       aff_add(p[1].start, minus(p[0].len)));
}

/* Local index of a global one; minus or beyond the local size if another
 * rank has it. */
static const AffineExpr *local_at(LoopKernel *kernel, const Node *n, int d,
                                  Expr *global)
{
    Piece p[MAXPIECE];

    if (pieces(kernel->graph, n, d, p) == 1) {
        const AffineExpr *at = ex_index(kernel, global);
        return aff_zero(&p[0].start)
                   ? at
                   : offset(kernel, at, aff_scale(p[0].start, -1));
    }
    Expr *arg[4] = { global, ex_int(kernel, p[0].start),
                     ex_int(kernel, p[1].start),
                     ex_int(kernel, aff(p[0].len)) };
    return ex_index(kernel,
                    ex_expr(kernel, Di64,
                            "a >= b && a < b + d ? a - b : a >= c && a < c "
                            "+ d ? a - c + d : -1",
                            4, arg));
}

static Expr *gather_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    Node *a = n->in[0], *e = n->in[1];
    Index ex = by_axis(kernel, e, n, ix);
    int d = dim_of(a, n->at.gather.axis);
    Expr *to = ex_as(kernel, Di64, kernel_value(kernel, e, &ex, guard));

    return value_in_range(kernel, n, a, ix, local_at(kernel, a, d, to), guard);
}

/* shard_slice: each piece of n lies in the operand's piece of the same number,
 * or in its only piece. */
static Expr *shard_slice_value(LoopKernel *kernel, Node *n, const Index *ix,
                               Expr *guard)
{
    Node *a = n->in[0];
    int d = dim_of(n, n->at.shard_slice.axis),
        k = dim_of(a, n->at.shard_slice.axis);
    Piece p[MAXPIECE], q[MAXPIECE];
    int two = pieces(kernel->graph, n, d, p) == 2,
        from = pieces(kernel->graph, a, k, q) - 1;
    RankAffine start = aff_add(p[0].start, aff_scale(q[0].start, -1));
    const AffineExpr *at = offset(kernel, ix->at[d], start);

    if (two)
        at = add_by_half(
            kernel, ix->at[d], p[0].len, start,
            aff_add(aff_add(p[1].start, aff_scale(q[from].start, -1)),
                    aff(from * q[0].len - p[0].len)));
    Index jx = by_axis_except(a, n, ix, n->at.shard_slice.axis, at);
    return kernel_value(kernel, a, &jx, guard);
}

/* ---- expert rows --------------------------------------------------------- */

static int is_top_slot(const Node *route, const Dim *d)
{
    return d->a == route_slot(route);
}

/* Stride of dim d of a route's index tensor in the pair number token * top +
 * slot. */
static const SizeProduct *pair_factor(LoopKernel *kernel, const Node *route,
                                      int d)
{
    const Node *e = route->in[0];
    const SizeProduct *m = size_one(kernel->pool);

    if (is_top_slot(route, &e->dim[d]))
        return m;
    for (int i = 0; i < e->nd; i++)
        if (i > d || is_top_slot(route, &e->dim[i]))
            m = size_mul(kernel->pool, m, dim_size(kernel, e, i));
    return m;
}

/* Size of dim d in the pair number, null for the outermost; local sizes are
 * those of the route node. */
static const SizeProduct *pair_mod(LoopKernel *kernel, const Node *route, int d)
{
    const Node *e = route->in[0];

    for (int i = 0; i < d; i++)
        if (!is_top_slot(route, &e->dim[i]))
            return dim_size(kernel, e, d);
    return is_top_slot(route, &e->dim[d]) ? dim_size(kernel, e, d) : NULL;
}

static Expr *map_entry(LoopKernel *kernel, Node *map, int64_t start,
                       const AffineExpr *at, Expr *guard)
{
    return ex_load(kernel, storage(map), Di32, offset(kernel, at, aff(start)),
                   guard);
}

/* Does the axis number this rank's rows? If rows are in blocks by source rank
 * only the last axis does: a rank is its own only source. */
static int is_row(const Node *map, const Axis *a)
{
    const Axes *blocks = &map->at.route.blocks;

    return blocks->n ? a == blocks->v[blocks->n - 1] : g_isrow(a);
}

static Expr *dispatch_value(LoopKernel *kernel, Node *n, const Index *ix,
                            Expr *guard)
{
    Node *x = n->in[0], *map = n->in[1], *e = map->in[0];
    int row = 0;
    Index jx = { { 0 } };

    while (!is_row(map, n->dim[row].a))
        row++;
    Expr *at = map_entry(kernel, map, map_layout(kernel->graph, map).pair,
                         ix->at[row], guard);
    int padded = map->at.route.padded;
    Expr *have = padded ? ex_op(kernel, Di32, "a >= 0", at, NULL, NULL) : NULL;
    const AffineExpr *pair = ex_index(kernel, at);
    for (int d = 0; d < x->nd; d++) {
        int k = dim_of(e, x->dim[d].a);
        jx.at[d] = k < 0 ? ix->at[dim_of(n, x->dim[d].a)]
                         : quotient(kernel, pair, pair_factor(kernel, map, k),
                                    pair_mod(kernel, map, k));
    }
    if (!have)
        return kernel_value(kernel, x, &jx, guard);
    return ex_select(kernel, have,
                     kernel_value(kernel, x, &jx, ex_both(kernel, guard, have)),
                     zero_of(kernel, n));
}

static Expr *combine_value(LoopKernel *kernel, Node *n, const Index *ix,
                           Expr *guard)
{
    Node *r = n->in[0], *map = n->in[1], *e = map->in[0];
    const AffineExpr *none = affine_make(kernel->pool, aff(0), 0, NULL, 0),
                     *pair = none;

    for (int d = 0; d < e->nd; d++)
        pair =
            affine_add(kernel->pool, pair,
                       affine_mul(kernel->pool, ix->at[dim_of(n, e->dim[d].a)],
                                  pair_factor(kernel, map, d)));
    Expr *at =
        map_entry(kernel, map, map_layout(kernel->graph, map).row, pair, guard);
    Expr *have = ex_op(kernel, Di32, "a >= 0", at, NULL, NULL);
    Index jx = { { 0 } };
    for (int d = 0; d < r->nd; d++)
        jx.at[d] = is_row(map, r->dim[d].a)    ? ex_index(kernel, at)
                   : is_rows(map, r->dim[d].a) ? none
                                               : ix->at[dim_of(n, r->dim[d].a)];
    Expr *v = kernel_value(kernel, r, &jx, ex_both(kernel, guard, have));
    return ex_select(kernel, have, v, zero_of(kernel, n));
}

static Expr *overflow_value(LoopKernel *kernel, Node *n, Expr *guard)
{
    MapLayout l = map_layout(kernel->graph, n->in[0]);
    const AffineExpr *at = affine_make(kernel->pool, aff(0), 0, NULL, 0);

    return ex_op(kernel, Di32, "a > b",
                 map_entry(kernel, n->in[0], l.total, at, guard),
                 ex_int(kernel, aff(l.cap)), NULL);
}

/* ---- entry --------------------------------------------------------------- */

Expr *move_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard)
{
    Index jx;

    switch (n->op) {
    case Orename: return rename_value(kernel, n, ix, guard);
    case Osplit: return split_value(kernel, n, ix, guard);
    case Omerge: return merge_value(kernel, n, ix, guard);
    case Opermute:
    case Ostop_gradient:
        jx = by_axis(kernel, n->in[0], n, ix);
        return kernel_value(kernel, n->in[0], &jx, guard);
    case Oslice: return slice_value(kernel, n, ix, guard);
    case Opad: return pad_value(kernel, n, ix, guard);
    case Oconcat: return concat_value(kernel, n, ix, guard);
    case Opack: return pack_value(kernel, n, ix, guard);
    case Ounpack: return unpack_value(kernel, n, ix, guard);
    case Ospread: return spread_value(kernel, n, ix, guard);
    case Oshift: return shift_value(kernel, n, ix, guard);
    case Ogather: return gather_value(kernel, n, ix, guard);
    case Oshard_slice: return shard_slice_value(kernel, n, ix, guard);
    case Odispatch: return dispatch_value(kernel, n, ix, guard);
    case Ocombine: return combine_value(kernel, n, ix, guard);
    case Ooverflow: return overflow_value(kernel, n, guard);
    default: return NULL;
    }
}
