/* move.c: where the elements of a view or a move come from. move_value() of a
 * node is its operand's value at another index: sizes, strides and starts turn
 * one into the other, and what may fall outside the operand (pad, concat, a
 * gather's -1, pairs without a row) becomes a guard of all that is read behind
 * it. */
#include "loop.h"

/* ---- indices ------------------------------------------------------------- */

static const SizeProduct *extent(void *ctx, int var)
{
    LoopKernel *c = ctx;

    return var < MAXLOOP ? c->loop[var].extent : NULL;
}

/* (x / div) % mod, by an explicit division when it has to be. */
static const AffineExpr *digit(LoopKernel *c, const AffineExpr *x,
                               const SizeProduct *div, const SizeProduct *mod)
{
    const AffineExpr *l = lin_digit(c->pool, x, div, mod, extent, c);

    if (l)
        return l;
    Expr *q = ex_lin(c, Di64, x);
    if (div->n)
        q = ex_op(c, Di64, "a / b", q, ex_int(c, aff(div->v)), NULL);
    if (mod)
        q = ex_op(c, Di64, "a % b", q, ex_int(c, aff(mod->v)), NULL);
    return ex_index(c, q);
}

/* The index of operand a under the result's index, axes matched by name. */
Index by_axis(LoopKernel *c, const Node *a, const Node *n, const Index *ix)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        if (k < 0)
            continue;
        if (local_n(c->graph, a, d) != local_n(c->graph, n, k))
            die("%s: axis %s has %lld here and %lld in the operand",
                optab[n->op].name, a->dim[d].a->name,
                (long long)local_n(c->graph, n, k),
                (long long)local_n(c->graph, a, d));
        jx.at[d] = ix->at[k];
    }
    return jx;
}

/* The same, but axis x may differ in size: its index is given. */
static Index but_axis(const Node *a, const Node *n, const Index *ix,
                      const Axis *x, const AffineExpr *at)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        jx.at[d] = a->dim[d].a == x ? at : k >= 0 ? ix->at[k] : NULL;
    }
    return jx;
}

/* ---- views --------------------------------------------------------------- */

static Expr *rename_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *a = n->in[0];
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        const Axis *to = a->dim[d].a;
        int i = axes_at(&n->at.rename.from, a->dim[d].a);
        if (i >= 0)
            to = n->at.rename.to.v[i];
        int k = dim_of(n, to);
        /* Loops exist over the result's axis: the operand's size is its. */
        mono_same(c->pool, a->dim[d].a, local_n(c->graph, a, d),
                  kern_size(c, n, k));
        jx.at[d] = ix->at[k];
    }
    return kern_value(c, a, &jx, guard);
}

/* Of the sizes of those axes of n from the from-th on. */
static const SizeProduct *product(LoopKernel *c, const Node *n, const Axes *x,
                                  int from)
{
    const SizeProduct *m = mono_one(c->pool);

    for (int i = from; i < x->n; i++)
        m = mono_mul(c->pool, m, kern_size(c, n, dim_of(n, x->v[i])));
    return m;
}

static Expr *split_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *a = n->in[0];
    const Axis *x = n->at.split.axis;
    const Axes *into = &n->at.split.into;
    const AffineExpr *at = lin_make(c->pool, aff(0), 0, NULL, 0);

    for (int i = 0; i < into->n; i++)
        at = lin_add(c->pool, at,
                     lin_mul(c->pool, ix->at[dim_of(n, into->v[i])],
                             product(c, n, into, i + 1)));
    mono_same(c->pool, x, local_n(c->graph, a, dim_of(a, x)),
              product(c, n, into, 0));
    Index jx = but_axis(a, n, ix, x, at);
    return kern_value(c, a, &jx, guard);
}

static Expr *merge_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *a = n->in[0];
    const Axes *x = &n->at.merge.axes;
    int at = dim_of(n, n->at.merge.new);
    Index jx = but_axis(a, n, ix, NULL, NULL);

    mono_same(c->pool, n->at.merge.new, local_n(c->graph, n, at),
              product(c, a, x, 0));
    for (int i = 0; i < x->n; i++) {
        int d = dim_of(a, x->v[i]);
        jx.at[d] = digit(c, ix->at[at], product(c, a, x, i + 1),
                         i ? kern_size(c, a, d) : NULL);
    }
    return kern_value(c, a, &jx, guard);
}

/* ---- moves --------------------------------------------------------------- */

static RankAffine minus(int64_t x)
{
    return aff(-x);
}

static const AffineExpr *offset(LoopKernel *c, const AffineExpr *l,
                                RankAffine x)
{
    return lin_add(c->pool, l, lin_const(c->pool, x));
}

static Expr *zero(LoopKernel *c, const Node *n)
{
    return ex_num(c, compute_type(n->dt), 0);
}

/* a at index `at` of axis x, where that is inside a; 0 elsewhere. */
static Expr *inside(LoopKernel *c, Node *n, Node *a, const Index *ix,
                    const AffineExpr *at, Expr *guard)
{
    const Axis *x = n_axis(n);
    Expr *in = ex_within(c, at, aff(local_n(c->graph, a, dim_of(a, x))));
    Index jx = but_axis(a, n, ix, x, at);

    Expr *v = kern_value(c, a, &jx, ex_both(c, guard, in));

    return ex_select(c, in, v, zero(c, n));
}

static Expr *slice_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.slice.axis)];
    Index jx = but_axis(n->in[0], n, ix, n->at.slice.axis,
                        offset(c, at, aff(n->at.slice.start)));

    return kern_value(c, n->in[0], &jx, guard);
}

static Expr *pad_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.pad.axis)];

    return inside(c, n, n->in[0], ix, offset(c, at, minus(n->at.pad.start)),
                  guard);
}

static Expr *concat_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    const AffineExpr *at = ix->at[dim_of(n, n->at.concat.axis)];
    int64_t start = 0;
    Expr *sum = NULL;

    for (int i = 0; i < n->nin; i++) {
        Node *a = n->in[i];
        int64_t len = local_n(c->graph, a, dim_of(a, n->at.concat.axis));
        const AffineExpr *here = offset(c, at, minus(start));
        Expr *in = ex_within(c, here, aff(len));
        Index jx = but_axis(a, n, ix, n->at.concat.axis, here);
        Expr *v = kern_value(c, a, &jx, ex_both(c, guard, in));
        sum = ex_select(c, in, v, sum ? sum : zero(c, n));
        start += len;
    }
    return sum;
}

/* Is x in memory with its axes in this order? */
static int lies_so(LoopKernel *c, Node *x, Axis *const *order)
{
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != order[d])
            return 0;
    return table_get(c->member, KEYP(storage(x))) && x->dt == storage(x)->dt;
}

/* Element `at` of x, row-major by the axes in order. */
static Expr *element_of(LoopKernel *c, Node *x, Axis *const *order,
                        const AffineExpr *at, Expr *guard)
{
    const SizeProduct *stride = mono_one(c->pool);
    Index jx = { { 0 } };

    if (lies_so(c, x, order))
        return ex_load(c, storage(x), x->dt, at, guard);
    for (int i = x->nd - 1; i >= 0; i--) {
        int d = dim_of(x, order[i]);
        jx.at[d] = digit(c, at, stride, i ? kern_size(c, x, d) : NULL);
        stride = mono_mul(c->pool, stride, kern_size(c, x, d));
    }
    return kern_value(c, x, &jx, guard);
}

static Expr *pack_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    const AffineExpr *at = ix->at[n->nd - 1];
    Axis *const *order = n->at.pack.order.v;
    Expr *sum = zero(c, n);

    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        const AffineExpr *here = offset(c, at, minus(bucket_at(n, k)));
        Expr *in = ex_within(c, here, aff(local_elems(c->graph, x)));
        Expr *v = element_of(c, x, order, here, ex_both(c, guard, in));
        sum = ex_select(c, in, v, sum);
        order += x->nd;
    }
    return sum;
}

static Expr *unpack_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *a = n->in[0];
    const AffineExpr *at = lin_const(c->pool, aff(n->at.unpack.at));
    const SizeProduct *stride = mono_one(c->pool);
    Index jx = { { 0 } };

    for (int i = n->at.unpack.order.n - 1; i >= 0; i--) {
        int d = dim_of(n, n->at.unpack.order.v[i]);
        at = lin_add(c->pool, at, lin_mul(c->pool, ix->at[d], stride));
        stride = mono_mul(c->pool, stride, kern_size(c, n, d));
    }
    jx.at[0] = lin_const(c->pool, aff(0));
    jx.at[a->nd - 1] = at;
    return kern_value(c, a, &jx, guard);
}

static Expr *shift_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    int d = dim_of(n, n->at.shift.axis);
    const AffineExpr *at = offset(c, ix->at[d], minus(n->at.shift.by));

    if (!n->at.shift.wrap)
        return inside(c, n, n->in[0], ix, at, guard);
    int64_t size = local_n(c->graph, n, d);
    Expr *to = ex_op(c, Di64, "(a % b + b) % b", ex_lin(c, Di64, at),
                     ex_int(c, aff(size)), NULL);
    Index jx = but_axis(n->in[0], n, ix, n->at.shift.axis, ex_index(c, to));
    return kern_value(c, n->in[0], &jx, guard);
}

/* ---- places -------------------------------------------------------------- */

/* The local index l of a dim, moved by one number, or by another one from
 * `half` on. */
static const AffineExpr *moved(LoopKernel *c, const AffineExpr *l, int64_t half,
                               RankAffine first, RankAffine second)
{
    Expr *arg[4] = { ex_lin(c, Di64, l), ex_int(c, aff(half)), ex_int(c, first),
                     ex_int(c, second) };

    return lin_add(c->pool, l,
                   ex_index(c, ex_expr(c, Di64, "a < b ? c : d", 4, arg)));
}

/* The global index at the local index l along dim d of n. */
const AffineExpr *global_at(LoopKernel *c, const Node *n, int d,
                            const AffineExpr *l)
{
    Piece p[MAXPIECE];

    if (pieces(c->graph, n, d, p) == 1)
        return aff_zero(&p[0].start) ? l : offset(c, l, p[0].start);
    return moved(c, l, p[0].len, p[0].start,
                 aff_add(p[1].start, minus(p[0].len)));
}

/* The local index of a global one; below 0 where it is not on this rank, or
 * beyond what the rank has. */
static const AffineExpr *local_at(LoopKernel *c, const Node *n, int d,
                                  Expr *global)
{
    Piece p[MAXPIECE];

    if (pieces(c->graph, n, d, p) == 1) {
        const AffineExpr *at = ex_index(c, global);
        return aff_zero(&p[0].start) ? at
                                     : offset(c, at, aff_scale(p[0].start, -1));
    }
    Expr *arg[4] = { global, ex_int(c, p[0].start), ex_int(c, p[1].start),
                     ex_int(c, aff(p[0].len)) };
    return ex_index(c, ex_expr(c, Di64,
                               "a >= b && a < b + d ? a - b : a >= c && a < c "
                               "+ d ? a - c + d : -1",
                               4, arg));
}

static Expr *gather_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *a = n->in[0], *e = n->in[1];
    Index ex = by_axis(c, e, n, ix);
    int d = dim_of(a, n->at.gather.axis);
    Expr *to = ex_as(c, Di64, kern_value(c, e, &ex, guard));

    return inside(c, n, a, ix, local_at(c, a, d, to), guard);
}

/* What n keeps of its operand: each piece lies in the operand's piece of the
 * same number, or in the only one. */
static Expr *shard_slice_value(LoopKernel *c, Node *n, const Index *ix,
                               Expr *guard)
{
    Node *a = n->in[0];
    int d = dim_of(n, n->at.shard_slice.axis),
        k = dim_of(a, n->at.shard_slice.axis);
    Piece p[MAXPIECE], q[MAXPIECE];
    int two = pieces(c->graph, n, d, p) == 2,
        from = pieces(c->graph, a, k, q) - 1;
    RankAffine start = aff_add(p[0].start, aff_scale(q[0].start, -1));
    const AffineExpr *at = offset(c, ix->at[d], start);

    if (two)
        at = moved(c, ix->at[d], p[0].len, start,
                   aff_add(aff_add(p[1].start, aff_scale(q[from].start, -1)),
                           aff(from * q[0].len - p[0].len)));
    Index jx = but_axis(a, n, ix, n->at.shard_slice.axis, at);
    return kern_value(c, a, &jx, guard);
}

/* ---- rows ---------------------------------------------------------------- */

static int is_slot(const Node *route, const Dim *d)
{
    return d->a == route_slot(route);
}

/* Factor of dim d of a route's index in a pair's number token * top + slot. */
static const SizeProduct *pair_factor(LoopKernel *c, const Node *route, int d)
{
    const Node *e = route->in[0];
    const SizeProduct *m = mono_one(c->pool);

    if (is_slot(route, &e->dim[d]))
        return m;
    for (int i = 0; i < e->nd; i++)
        if (i > d || is_slot(route, &e->dim[i]))
            m = mono_mul(c->pool, m, kern_size(c, e, i));
    return m;
}

/* Sizes of the index tensor as it lies on this rank: those of the route
 * node. */
static const SizeProduct *pair_mod(LoopKernel *c, const Node *route, int d)
{
    const Node *e = route->in[0];

    for (int i = 0; i < d; i++)
        if (!is_slot(route, &e->dim[i]))
            return kern_size(c, e, d);
    return is_slot(route, &e->dim[d]) ? kern_size(c, e, d) : NULL;
}

static Expr *map_entry(LoopKernel *c, Node *map, int64_t start,
                       const AffineExpr *at, Expr *guard)
{
    return ex_load(c, storage(map), Di32, offset(c, at, aff(start)), guard);
}

/* Does the axis number rows of this rank? Of rows in blocks only the last one:
 * a rank is its own only source. */
static int is_row(const Node *map, const Axis *a)
{
    const Axes *blocks = &map->at.route.blocks;

    return blocks->n ? a == blocks->v[blocks->n - 1] : g_isrow(a);
}

static Expr *dispatch_value(LoopKernel *c, Node *n, const Index *ix,
                            Expr *guard)
{
    Node *x = n->in[0], *map = n->in[1], *e = map->in[0];
    int row = 0;
    Index jx = { { 0 } };

    while (!is_row(map, n->dim[row].a))
        row++;
    Expr *at =
        map_entry(c, map, map_layout(c->graph, map).pair, ix->at[row], guard);
    int padded = map->at.route.padded;
    Expr *have = padded ? ex_op(c, Di32, "a >= 0", at, NULL, NULL) : NULL;
    const AffineExpr *pair = ex_index(c, at);
    for (int d = 0; d < x->nd; d++) {
        int k = dim_of(e, x->dim[d].a);
        jx.at[d] =
            k < 0 ? ix->at[dim_of(n, x->dim[d].a)]
                  : digit(c, pair, pair_factor(c, map, k), pair_mod(c, map, k));
    }
    if (!have)
        return kern_value(c, x, &jx, guard);
    return ex_select(c, have, kern_value(c, x, &jx, ex_both(c, guard, have)),
                     zero(c, n));
}

static Expr *combine_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Node *r = n->in[0], *map = n->in[1], *e = map->in[0];
    const AffineExpr *none = lin_make(c->pool, aff(0), 0, NULL, 0),
                     *pair = none;

    for (int d = 0; d < e->nd; d++)
        pair = lin_add(c->pool, pair,
                       lin_mul(c->pool, ix->at[dim_of(n, e->dim[d].a)],
                               pair_factor(c, map, d)));
    Expr *at = map_entry(c, map, map_layout(c->graph, map).row, pair, guard);
    Expr *have = ex_op(c, Di32, "a >= 0", at, NULL, NULL);
    Index jx = { { 0 } };
    for (int d = 0; d < r->nd; d++)
        jx.at[d] = is_row(map, r->dim[d].a)    ? ex_index(c, at)
                   : is_rows(map, r->dim[d].a) ? none
                                               : ix->at[dim_of(n, r->dim[d].a)];
    Expr *v = kern_value(c, r, &jx, ex_both(c, guard, have));
    return ex_select(c, have, v, zero(c, n));
}

static Expr *overflow_value(LoopKernel *c, Node *n, Expr *guard)
{
    MapLayout l = map_layout(c->graph, n->in[0]);
    const AffineExpr *at = lin_make(c->pool, aff(0), 0, NULL, 0);

    return ex_op(c, Di32, "a > b", map_entry(c, n->in[0], l.total, at, guard),
                 ex_int(c, aff(l.cap)), NULL);
}

/* ---- entry --------------------------------------------------------------- */

Expr *move_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard)
{
    Index jx;

    switch (n->op) {
    case Orename: return rename_value(c, n, ix, guard);
    case Osplit: return split_value(c, n, ix, guard);
    case Omerge: return merge_value(c, n, ix, guard);
    case Opermute:
    case Ostop_gradient:
        jx = by_axis(c, n->in[0], n, ix);
        return kern_value(c, n->in[0], &jx, guard);
    case Oslice: return slice_value(c, n, ix, guard);
    case Opad: return pad_value(c, n, ix, guard);
    case Oconcat: return concat_value(c, n, ix, guard);
    case Opack: return pack_value(c, n, ix, guard);
    case Ounpack: return unpack_value(c, n, ix, guard);
    case Oshift: return shift_value(c, n, ix, guard);
    case Ogather: return gather_value(c, n, ix, guard);
    case Oshard_slice: return shard_slice_value(c, n, ix, guard);
    case Odispatch: return dispatch_value(c, n, ix, guard);
    case Ocombine: return combine_value(c, n, ix, guard);
    case Ooverflow: return overflow_value(c, n, guard);
    default: return NULL;
    }
}
