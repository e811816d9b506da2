/* loop.c: the values a loop kernel stores, as expressions over its loops.
 *
 * value(n, index) is what node n holds at an index: an index is one linear
 * expression for each dim. Views and moves only change the index on its way to
 * the operand, so any chain of them costs nothing but address arithmetic; what
 * may fall outside (pad, concat, a gather's -1) becomes a guard that all loads
 * behind it carry. Nodes in k->in are loads, everything else is rebuilt where
 * it is used. Equal expressions are one object, so nothing is computed twice in
 * one place.                                                                 */
#include "codegen.h"

#include <math.h>
#include <string.h>

typedef struct Index { const Lin *at[MAXD]; } Index;

typedef struct Memo { Node *n; Index ix; Ex *guard, *ex; } Memo;

static Ex *value(Kern *c, Node *n, const Index *ix, Ex *guard);

/* ---- loops and sizes ----------------------------------------------------- */

static const Mono *size_of(Kern *c, const Node *n, int d)
{
    return mono_size(c->pool, n->dim[d].a, local_n(c->g, n, d));
}

static int loop_for(Kern *c, const Axis *a, const Mono *n, const Node *map,
                    int copy)
{
    for (int i = 0; i < c->nloop; i++) {
        const Loop *l = &c->loop[i];
        if (l->a == a && l->n == n && l->map == map && l->copy == copy)
            return i;
    }
    if (c->nloop == MAXLOOP)
        die("a kernel of more than %d loops", MAXLOOP);
    c->loop[c->nloop] = (Loop){ .a = a, .n = n, .map = map, .copy = copy };
    return c->nloop++;
}

static int loop_of(Kern *c, const Node *n, int d, int copy)
{
    const Node *map = g_isrow(n->dim[d].a) ? n->map : NULL;

    return loop_for(c, n->dim[d].a, size_of(c, n, d), map, copy);
}

static const Mono *extent(void *ctx, int var)
{
    Kern *c = ctx;

    return var < MAXLOOP ? c->loop[var].n : NULL;
}

static const Lin *stride_sum(Kern *c, const Node *n, const Index *ix)
{
    const Mono *stride = mono_one(c->pool);
    const Lin *at = lin_make(c->pool, aff(0), 0, NULL, 0);

    for (int d = n->nd - 1; d >= 0; d--) {
        at = lin_add(c->pool, at, lin_mul(c->pool, ix->at[d], stride));
        stride = mono_mul(c->pool, stride, size_of(c, n, d));
    }
    return at;
}

static Ex *load(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    return ex_load(c, storage(n), n->dt, stride_sum(c, n, ix), guard);
}

/* (x / div) % mod, by an explicit division when it has to be.                */
static const Lin *digit(Kern *c, const Lin *x, const Mono *div, const Mono *mod)
{
    const Lin *l = lin_digit(c->pool, x, div, mod, extent, c);

    if (l)
        return l;
    Ex *q = ex_lin(c, Di64, x);
    if (div->n)
        q = ex_op(c, Di64, "a / b", q, ex_int(c, aff(div->v)), NULL);
    if (mod)
        q = ex_op(c, Di64, "a % b", q, ex_int(c, aff(mod->v)), NULL);
    return ex_index(c, q);
}

/* The index of operand a under the result's index, axes matched by name.     */
static Index by_axis(Kern *c, const Node *a, const Node *n, const Index *ix)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        if (k < 0)
            continue;
        if (local_n(c->g, a, d) != local_n(c->g, n, k))
            die("%s: axis %s has %lld here and %lld in the operand",
                optab[n->op].name, a->dim[d].a->name,
                (long long)local_n(c->g, n, k), (long long)local_n(c->g, a, d));
        jx.at[d] = ix->at[k];
    }
    return jx;
}

/* The same, but axis x may differ in size: its index is given.               */
static Index but_axis(const Node *a, const Node *n, const Index *ix,
                      const Axis *x, const Lin *at)
{
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a);
        jx.at[d] = a->dim[d].a == x ? at : k >= 0 ? ix->at[k] : NULL;
    }
    return jx;
}

/* ---- views --------------------------------------------------------------- */

static Ex *rename_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    Index jx = { { 0 } };

    for (int d = 0; d < a->nd; d++) {
        const Axis *to = a->dim[d].a;
        for (int i = 0; i < n->nA; i++)
            if (n->A[i] == a->dim[d].a)
                to = n->B[i];
        int k = dim_of(n, to);
        /* Loops exist over the result's axis: the operand's size is its.     */
        mono_same(c->pool, a->dim[d].a, local_n(c->g, a, d), size_of(c, n, k));
        jx.at[d] = ix->at[k];
    }
    return value(c, a, &jx, guard);
}

static const Mono *product(Kern *c, const Node *n, Axis *const *v, int from,
                           int to)
{
    const Mono *m = mono_one(c->pool);

    for (int i = from; i < to; i++)
        m = mono_mul(c->pool, m, size_of(c, n, dim_of(n, v[i])));
    return m;
}

static Ex *split_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    const Lin *at = lin_make(c->pool, aff(0), 0, NULL, 0);

    for (int i = 0; i < n->nB; i++)
        at = lin_add(c->pool, at,
                     lin_mul(c->pool, ix->at[dim_of(n, n->B[i])],
                             product(c, n, n->B, i + 1, n->nB)));
    mono_same(c->pool, n->A[0], local_n(c->g, a, dim_of(a, n->A[0])),
              product(c, n, n->B, 0, n->nB));
    Index jx = but_axis(a, n, ix, n->A[0], at);
    return value(c, a, &jx, guard);
}

static Ex *merge_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    int at = dim_of(n, n->B[0]);
    Index jx = but_axis(a, n, ix, NULL, NULL);

    mono_same(c->pool, n->B[0], local_n(c->g, n, at),
              product(c, a, n->A, 0, n->nA));
    for (int i = 0; i < n->nA; i++) {
        int d = dim_of(a, n->A[i]);
        jx.at[d] = digit(c, ix->at[at], product(c, a, n->A, i + 1, n->nA),
                         i ? size_of(c, a, d) : NULL);
    }
    return value(c, a, &jx, guard);
}

/* ---- moves --------------------------------------------------------------- */

static Aff minus(int64_t x)
{
    return aff(-x);
}

static const Lin *offset(Kern *c, const Lin *l, Aff x)
{
    return lin_add(c->pool, l, lin_const(c->pool, x));
}

static Ex *zero(Kern *c, const Node *n)
{
    return ex_num(c, compute_type(n->dt), 0);
}

/* a at index `at` of axis x, where that is inside a; 0 elsewhere.            */
static Ex *inside(Kern *c, Node *n, Node *a, const Index *ix, const Lin *at,
                  Ex *guard)
{
    const Axis *x = n->A[0];
    Ex *in = ex_within(c, at, aff(local_n(c->g, a, dim_of(a, x))));
    Index jx = but_axis(a, n, ix, x, at);

    Ex *v = value(c, a, &jx, ex_both(c, guard, in));

    return ex_select(c, in, v, zero(c, n));
}

static Ex *slice_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    const Lin *at = ix->at[dim_of(n, n->A[0])];
    Index jx = but_axis(n->in[0], n, ix, n->A[0], offset(c, at, aff(n->i)));

    return value(c, n->in[0], &jx, guard);
}

static Ex *pad_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    const Lin *at = ix->at[dim_of(n, n->A[0])];

    return inside(c, n, n->in[0], ix, offset(c, at, minus(n->i)), guard);
}

static Ex *concat_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    const Lin *at = ix->at[dim_of(n, n->A[0])];
    int64_t start = 0;
    Ex *sum = NULL;

    for (int i = 0; i < n->nin; i++) {
        Node *a = n->in[i];
        int64_t len = local_n(c->g, a, dim_of(a, n->A[0]));
        const Lin *here = offset(c, at, minus(start));
        Ex *in = ex_within(c, here, aff(len));
        Index jx = but_axis(a, n, ix, n->A[0], here);
        Ex *v = value(c, a, &jx, ex_both(c, guard, in));
        sum = ex_select(c, in, v, sum ? sum : zero(c, n));
        start += len;
    }
    return sum;
}

/* Is x in memory with its axes in this order?                                */
static int lies_so(Kern *c, Node *x, Axis *const *order)
{
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != order[d])
            return 0;
    return table_get(c->member, KEYP(storage(x))) && x->dt == storage(x)->dt;
}

/* Element `at` of x, row-major by the axes in order.                         */
static Ex *element_of(Kern *c, Node *x, Axis *const *order, const Lin *at,
                      Ex *guard)
{
    const Mono *stride = mono_one(c->pool);
    Index jx = { { 0 } };

    if (lies_so(c, x, order))
        return ex_load(c, storage(x), x->dt, at, guard);
    for (int i = x->nd - 1; i >= 0; i--) {
        int d = dim_of(x, order[i]);
        jx.at[d] = digit(c, at, stride, i ? size_of(c, x, d) : NULL);
        stride = mono_mul(c->pool, stride, size_of(c, x, d));
    }
    return value(c, x, &jx, guard);
}

static Ex *pack_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    const Lin *at = ix->at[n->nd - 1];
    Axis *const *order = n->A;
    Ex *sum = zero(c, n);

    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        const Lin *here = offset(c, at, minus(bucket_at(n, k)));
        Ex *in = ex_within(c, here, aff(local_elems(c->g, x)));
        Ex *v = element_of(c, x, order, here, ex_both(c, guard, in));
        sum = ex_select(c, in, v, sum);
        order += x->nd;
    }
    return sum;
}

static Ex *unpack_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    const Lin *at = lin_const(c->pool, aff(n->i));
    const Mono *stride = mono_one(c->pool);
    Index jx = { { 0 } };

    for (int i = n->nA - 1; i >= 0; i--) {
        int d = dim_of(n, n->A[i]);
        at = lin_add(c->pool, at, lin_mul(c->pool, ix->at[d], stride));
        stride = mono_mul(c->pool, stride, size_of(c, n, d));
    }
    jx.at[0] = lin_const(c->pool, aff(0));
    jx.at[a->nd - 1] = at;
    return value(c, a, &jx, guard);
}

static Ex *shift_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    int d = dim_of(n, n->A[0]);
    const Lin *at = offset(c, ix->at[d], minus(n->i));

    if (!n->j)
        return inside(c, n, n->in[0], ix, at, guard);
    int64_t size = local_n(c->g, n, d);
    Ex *to = ex_op(c, Di64, "(a % b + b) % b", ex_lin(c, Di64, at),
                   ex_int(c, aff(size)), NULL);
    Index jx = but_axis(n->in[0], n, ix, n->A[0], ex_index(c, to));
    return value(c, n->in[0], &jx, guard);
}

/* ---- places -------------------------------------------------------------- */

/* The local index l of a dim, moved by one number, or by another one from
 * `half` on.                                                                 */
static const Lin *moved(Kern *c, const Lin *l, int64_t half, Aff first,
                        Aff second)
{
    Ex *arg[4] = { ex_lin(c, Di64, l), ex_int(c, aff(half)), ex_int(c, first),
                   ex_int(c, second) };

    return lin_add(c->pool, l, ex_index(c, ex_expr(c, Di64, "a < b ? c : d", 4,
                                                   arg)));
}

/* The global index at the local index l along dim d of n.                    */
static const Lin *global_at(Kern *c, const Node *n, int d, const Lin *l)
{
    Piece p[MAXPIECE];

    if (pieces(c->g, n, d, p) == 1)
        return aff_zero(&p[0].start) ? l : offset(c, l, p[0].start);
    return moved(c, l, p[0].len, p[0].start,
                 aff_add(p[1].start, minus(p[0].len)));
}

/* The local index of a global one; below 0 where it is not on this rank, or
 * beyond what the rank has.                                                  */
static const Lin *local_at(Kern *c, const Node *n, int d, Ex *global)
{
    Piece p[MAXPIECE];

    if (pieces(c->g, n, d, p) == 1) {
        const Lin *at = ex_index(c, global);
        return aff_zero(&p[0].start) ? at
             : offset(c, at, aff_scale(p[0].start, -1));
    }
    Ex *arg[4] = { global, ex_int(c, p[0].start), ex_int(c, p[1].start),
                   ex_int(c, aff(p[0].len)) };
    return ex_index(c, ex_expr(c, Di64, "a >= b && a < b + d ? a - b : "
                               "a >= c && a < c + d ? a - c + d : -1", 4, arg));
}

static Ex *gather_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0], *e = n->in[1];
    Index ex = by_axis(c, e, n, ix);
    int d = dim_of(a, n->A[0]);
    Ex *to = ex_as(c, Di64, value(c, e, &ex, guard));

    return inside(c, n, a, ix, local_at(c, a, d, to), guard);
}

/* What n keeps of its operand: each piece lies in the operand's piece of the
 * same number, or in the only one.                                           */
static Ex *localslice_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    int d = dim_of(n, n->A[0]), k = dim_of(a, n->A[0]);
    Piece p[MAXPIECE], q[MAXPIECE];
    int two = pieces(c->g, n, d, p) == 2, from = pieces(c->g, a, k, q) - 1;
    Aff start = aff_add(p[0].start, aff_scale(q[0].start, -1));
    const Lin *at = offset(c, ix->at[d], start);

    if (two)
        at = moved(c, ix->at[d], p[0].len, start,
                   aff_add(aff_add(p[1].start, aff_scale(q[from].start, -1)),
                           aff(from * q[0].len - p[0].len)));
    Index jx = but_axis(a, n, ix, n->A[0], at);
    return value(c, a, &jx, guard);
}

/* ---- rows ---------------------------------------------------------------- */

static int is_top(const Dim *d)
{
    return !strcmp(d->a->name, "top");
}

/* Factor of dim d of index tensor e in a pair's number token * top + slot.   */
static const Mono *pair_factor(Kern *c, const Node *e, int d)
{
    const Mono *m = mono_one(c->pool);

    if (is_top(&e->dim[d]))
        return m;
    for (int i = 0; i < e->nd; i++)
        if (i > d || is_top(&e->dim[i]))
            m = mono_mul(c->pool, m, size_of(c, e, i));
    return m;
}

/* Sizes of the index tensor as it lies on this rank: those of the route
 * node.                                                                      */
static const Mono *pair_mod(Kern *c, const Node *e, int d)
{
    for (int i = 0; i < d; i++)
        if (!is_top(&e->dim[i]))
            return size_of(c, e, d);
    return is_top(&e->dim[d]) ? size_of(c, e, d) : NULL;
}

static Ex *map_entry(Kern *c, Node *map, int64_t start, const Lin *at,
                     Ex *guard)
{
    return ex_load(c, storage(map), Di32, offset(c, at, aff(start)), guard);
}

static Ex *dispatch_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *x = n->in[0], *map = n->in[1], *e = map->in[0];
    int row = 0;
    Index jx = { { 0 } };

    while (!g_isrow(n->dim[row].a))
        row++;
    Ex *at = map_entry(c, map, map_layout(c->g, map).pair, ix->at[row], guard);
    int padded = map->i && map->j;
    Ex *have = padded ? ex_op(c, Di32, "a >= 0", at, NULL, NULL) : NULL;
    const Lin *pair = ex_index(c, at);
    for (int d = 0; d < x->nd; d++) {
        int k = dim_of(e, x->dim[d].a);
        jx.at[d] = k < 0 ? ix->at[dim_of(n, x->dim[d].a)]
                 : digit(c, pair, pair_factor(c, e, k), pair_mod(c, e, k));
    }
    if (!have)
        return value(c, x, &jx, guard);
    return ex_select(c, have, value(c, x, &jx, ex_both(c, guard, have)),
                     zero(c, n));
}

static Ex *undispatch_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *r = n->in[0], *map = n->in[1], *e = map->in[0];
    const Lin *pair = lin_make(c->pool, aff(0), 0, NULL, 0);

    for (int d = 0; d < e->nd; d++)
        pair = lin_add(c->pool, pair,
                       lin_mul(c->pool, ix->at[dim_of(n, e->dim[d].a)],
                               pair_factor(c, e, d)));
    Ex *at = map_entry(c, map, map_layout(c->g, map).row, pair, guard);
    Ex *have = ex_op(c, Di32, "a >= 0", at, NULL, NULL);
    Index jx = { { 0 } };
    for (int d = 0; d < r->nd; d++)
        jx.at[d] = g_isrow(r->dim[d].a) ? ex_index(c, at)
                                        : ix->at[dim_of(n, r->dim[d].a)];
    Ex *v = value(c, r, &jx, ex_both(c, guard, have));
    return ex_select(c, have, v, zero(c, n));
}

static Ex *overflow_value(Kern *c, Node *n, Ex *guard)
{
    MapLayout l = map_layout(c->g, n->in[0]);
    const Lin *at = lin_make(c->pool, aff(0), 0, NULL, 0);

    return ex_op(c, Di32, "a > b", map_entry(c, n->in[0], l.total, at, guard),
                 ex_int(c, aff(l.cap)), NULL);
}

/* ---- reductions ---------------------------------------------------------- */

/* A loop for each reduced axis: none that the index or the guard is using.   */
static Ex *reduce(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    uint64_t used = guard ? guard->deps : 0, K = 0;
    Index jx = { { 0 } };

    for (int d = 0; d < n->nd; d++)
        used |= lin_deps(c, ix->at[d]);
    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a), copy = 0, l;
        if (k >= 0) {
            jx.at[d] = ix->at[k];
            continue;
        }
        while (used >> (l = loop_of(c, a, d, copy)) & 1)
            copy++;
        K |= 1ull << l;
        jx.at[d] = lin_var(c->pool, l);
    }
    Dtype dt = compute_type(n->dt);
    Ex *body = ex_as(c, dt, value(c, a, &jx, guard));
    return ex_make(c, &(Ex){ .kind = Xred, .dt = dt, .op = n->op, .K = K,
                          .na = 1, .arg = { body } });
}

/* ---- elementwise --------------------------------------------------------- */

static const Lin *global_index(Kern *c, const Node *n, const Index *ix,
                               const int *order)
{
    const Lin *at = lin_make(c->pool, aff(0), 0, NULL, 0);
    const Mono *stride = mono_one(c->pool);

    for (int i = n->nd - 1; i >= 0; i--) {
        int d = order[i];
        const Lin *x = global_at(c, n, d, ix->at[d]);
        at = lin_add(c->pool, at, lin_mul(c->pool, x, stride));
        stride = mono_mul(c->pool, stride, mono_size(c->pool, n->dim[d].a,
                                                     n->dim[d].n));
    }
    return at;
}

/* Dims in their own order, or by name: a mask must not depend on layout.     */
static void dim_order(const Node *n, int by_name, int *order)
{
    for (int i = 0; i < n->nd; i++) {
        int k = i;
        for (; by_name && k > 0 && strcmp(n->dim[order[k - 1]].a->name,
                                          n->dim[i].a->name) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

static Ex *random_value(Kern *c, Node *n, const Index *ix)
{
    int order[MAXD];
    Ex *arg[3];

    dim_order(n, 0, order);
    arg[0] = ex_int(c, aff(n->i));
    arg[1] = ex_lin(c, Di64, global_index(c, n, ix, order));
    arg[2] = ex_num(c, Df32, n->f);
    const char *text = strcmp(n->s, "normal") ? "(2 * uniform(a, b) - 1) * c"
                                              : "normal(a, b) * c";
    return ex_rounded(c, n->dt, ex_expr(c, Df32, text, 3, arg));
}

/* Number of the micro-batch at index ix of the step: operand 2 is that of the
 * rank's own, which is turn * dp + its coordinate.                           */
static Ex *micro_batch(Kern *c, Node *n, const Index *ix)
{
    const Mesh *m = c->g->mesh;
    Node own = { 0 };
    int d = 0;

    while (d < n->nd && strcmp(n->dim[d].a->name, "micro"))
        d++;
    Ex *mine = value(c, n->in[2], &(Index){ { 0 } }, NULL);
    if (d == n->nd)
        return mine;
    own.nd = 1;
    own.dim[0] = n->dim[d];
    for (int i = 0; m && i < m->natom; i++)
        if (m->mask[Mdp] >> i & 1)
            own.sh[i] = (Shard){ S, n->dim[d].a, Radd };
    Aff start = aff_add(local_start(c->g, n, d),
                        aff_scale(local_start(c->g, &own, 0), -1));
    return ex_op(c, Di64, "a + b", mine, ex_lin(c, Di64,
                 offset(c, ix->at[d], start)), NULL);
}

/* Kept or not by the element's index in its micro-batch, the micro-batch and
 * the step: the same in every layout and fold, and in the backward.          */
static Ex *dropout_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    int order[MAXD], k = 0;
    Index jx = by_axis(c, n->in[0], n, ix);
    Dtype dt = compute_type(n->dt);
    Node one = *n;
    Index in_one = { { 0 } };
    Ex *arg[4] = { ex_int(c, aff(n->i)) };

    for (int d = 0; d < n->nd; d++)
        if (strcmp(n->dim[d].a->name, "micro")) {
            one.dim[k] = n->dim[d];
            in_one.at[k++] = ix->at[d];
        }
    one.nd = k;
    dim_order(&one, 1, order);
    arg[1] = ex_lin(c, Di64, global_index(c, &one, &in_one, order));
    arg[2] = n->nin < 3 ? ex_num(c, Di64, 0) : micro_batch(c, n, ix);
    arg[3] = n->nin < 3 ? ex_num(c, Di64, 0)
                        : value(c, n->in[1], &(Index){ { 0 } }, NULL);
    Ex *u = ex_expr(c, Df32, "uniform_at(a, b, c, d)", 4, arg);
    Ex *keep = ex_op(c, Di32, "a >= b", u, ex_num(c, Df32, n->f), NULL);
    Ex *v = ex_op(c, dt, "a * b", value(c, n->in[0], &jx, guard),
                  ex_num(c, dt, 1 / (1 - n->f)), NULL);
    return ex_rounded(c, n->dt, ex_select(c, keep, v, zero(c, n)));
}

static Ex *const_value(Kern *c, const Node *n)
{
    double f = n->f;

    if (n->dt == Dbf16)
        f = bf16_to_f32(f32_to_bf16((float)f));
    return ex_num(c, compute_type(n->dt), f);
}

static Ex *pow_value(Kern *c, Node *n, Ex *a, Ex *b)
{
    static const struct { double p; const char *text; } known[] = {
        { 0.5, "sqrt(a)" }, { 1, "a" }, { 2, "a * a" }, { 3, "a * a * a" },
        { 4, "(a * a) * (a * a)" }, { -1, "1 / a" }, { -0.5, "1 / sqrt(a)" },
        { -2, "1 / (a * a)" }, { 0, "a * 0 + 1" },
    };
    Dtype dt = compute_type(n->dt);
    const char *text = "pow(a, b)";

    for (size_t i = 0; b->kind == Xnum && i < sizeof known / sizeof *known; i++)
        if (known[i].p == b->f)
            text = known[i].text;
    Ex *arg[2] = { a, b };
    return ex_text(c, dt, text, "ab", 0, text[0] == 'p' ? 2 : 1, arg);
}

/* Ops that only choose or negate one of their operands need no rounding when
 * those are rounded.                                                         */
static int chooses(const Node *n)
{
    static const Op op[] = { Oneg, Oabs, Orelu, Omaximum, Ominimum, Owhere,
                             Osign, Ospread, Ostop_gradient };
    int k = 0;

    for (size_t i = 0; i < sizeof op / sizeof *op; i++)
        k |= n->op == op[i];
    for (int i = n->op == Owhere; k && i < n->nin; i++)
        k = n->in[i]->dt == n->dt;
    return k;
}

static Ex *cast_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Node *a = n->in[0];
    Index jx = by_axis(c, a, n, ix);
    Ex *x = value(c, a, &jx, guard);

    if (n->dt == Dbool)
        return ex_op(c, Di32, "a != 0", x, NULL, NULL);
    if (n->dt == Du8)
        return ex_op(c, Di32, "(uint8_t)a", x, NULL, NULL);
    return ex_rounded(c, n->dt, x);
}

static Ex *ew_value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    const OpInfo *o = &optab[n->op];
    char letters[8] = "";
    Ex *arg[4];

    for (int i = 0; i < n->nin; i++) {
        Index jx = by_axis(c, n->in[i], n, ix);
        arg[i] = value(c, n->in[i], &jx, guard);
        letters[i] = o->operands[2 * i];
    }
    if (n->op == Ospread)
        return arg[0];
    if (n->op == Opow)
        return ex_rounded(c, n->dt, pow_value(c, n, arg[0], arg[1]));
    int raw = op_is(n->op, "cmp") ? ~0 : n->op == Owhere;
    Ex *x = ex_text(c, compute_type(n->dt), o->lower, intern(letters), raw,
                    n->nin, arg);
    return chooses(n) ? x : ex_rounded(c, n->dt, x);
}

/* ---- one node ------------------------------------------------------------ */

static Ex *compute(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    Index jx;

    switch (n->op) {
    case Oconst: return const_value(c, n);
    case Oiota:
        return ex_as(c, compute_type(n->dt), ex_lin(c, Di32,
                         global_index(c, n, ix, (int[]){ 0 })));
    case Orandom: return random_value(c, n, ix);
    case Odropout: return dropout_value(c, n, ix, guard);
    case Ocast: return cast_value(c, n, ix, guard);
    case Orename: return rename_value(c, n, ix, guard);
    case Osplit: return split_value(c, n, ix, guard);
    case Omerge: return merge_value(c, n, ix, guard);
    case Opermute: case Ostop_gradient:
        jx = by_axis(c, n->in[0], n, ix);
        return value(c, n->in[0], &jx, guard);
    case Oslice: return slice_value(c, n, ix, guard);
    case Opad: return pad_value(c, n, ix, guard);
    case Oconcat: return concat_value(c, n, ix, guard);
    case Opack: return pack_value(c, n, ix, guard);
    case Ounpack: return unpack_value(c, n, ix, guard);
    case Oshift: return shift_value(c, n, ix, guard);
    case Ogather: return gather_value(c, n, ix, guard);
    case Olocalslice: return localslice_value(c, n, ix, guard);
    case Odispatch: return dispatch_value(c, n, ix, guard);
    case Oundispatch: return undispatch_value(c, n, ix, guard);
    case Ooverflow: return overflow_value(c, n, guard);
    default: break;
    }
    if (optab[n->op].cls == RED)
        return ex_rounded(c, n->dt, reduce(c, n, ix, guard));
    if (optab[n->op].lowerkind == 'E')
        return ew_value(c, n, ix, guard);
    return load(c, n, ix, guard);
}

static uint64_t memo_key(const Node *n, const Index *ix, const Ex *guard)
{
    uint64_t h = mix64(KEYP(n), guard ? (uint64_t)guard->id : ~0ull);

    for (int d = 0; d < n->nd; d++)
        h = mix64(h, KEYP(ix->at[d]));
    return h;
}

/* Does each index run over no more than the whole dim? Then no guard is needed:
 * one that rules out indices behind this node's is not this node's.          */
static int all_inside(Kern *c, const Node *n, const Index *ix)
{
    for (int d = 0; d < n->nd; d++) {
        const Lin *l = ix->at[d];
        const Term *t = l->t;
        if (l->hasoff || l->nt != 1 || t->var >= MAXLOOP || t->div->n ||
            t->mod || t->k->n || g_isrow(n->dim[d].a) ||
            c->loop[t->var].n->v > local_n(c->g, n, d))
            return 0;
    }
    return 1;
}

static Ex *value(Kern *c, Node *n, const Index *ix, Ex *guard)
{
    if (guard && c->gpu && all_inside(c, n, ix))
        guard = NULL;
    for (int d = 0; d < n->nd; d++)
        if (!ix->at[d])
            die("%s: no index for axis %s", optab[n->op].name,
                n->dim[d].a->name);
    if (table_get(c->member, KEYP(n)))
        return load(c, n, ix, guard);
    for (uint64_t h = memo_key(n, ix, guard); ; h++) {
        Memo *m = table_get(c->memo, h);
        if (m && m->n == n && m->guard == guard &&
            !memcmp(m->ix.at, ix->at, (size_t)n->nd * sizeof *ix->at))
            return m->ex;
        if (m)
            continue;
        m = alloc(c->a, sizeof *m);
        *m = (Memo){ n, *ix, guard, compute(c, n, ix, guard) };
        *table_at(c->memo, h) = m;
        return m->ex;
    }
}

/* ---- what is stored ------------------------------------------------------ */

static Ex *accumulated(Kern *c, Node *n, const Index *ix, Ex *v)
{
    const char *f = !strcmp(n->s, "add") ? "a + b"
                  : !strcmp(n->s, "max") ? "b > a ? b : a" : "b < a ? b : a";

    if (!strcmp(n->s, "last"))
        return v;
    Ex *old = load(c, n, ix, NULL);
    return ex_rounded(c, n->dt, ex_op(c, compute_type(n->dt), f, old, v, NULL));
}

static void store(Kern *c, Node *n)
{
    Node *to = n->op == Owrite ? n->in[0] : n;
    Node *from = n->op == Owrite ? n->in[1] : n->in[0];
    Index ix = { { 0 } };
    Store s = { .n = n };

    for (int d = 0; d < to->nd; d++) {
        int l = loop_of(c, to, d, 0);
        s.loops |= 1ull << l;
        ix.at[d] = lin_var(c->pool, l);
    }
    if (optab[n->op].cls == SINK) {
        Index jx = by_axis(c, from, to, &ix);
        s.val = value(c, from, &jx, NULL);
        if (n->op == Oaccum)
            s.val = accumulated(c, n, &ix, s.val);
    } else {
        s.val = compute(c, n, &ix, NULL);
    }
    s.addr = stride_sum(c, to, &ix);
    vec_push(c->a, c->st, s);
}

static size_t defined(const Pool *p)
{
    size_t n = 0;

    for (size_t i = 0; i < vec_len(p->size); i++)
        n += p->size[i].def != NULL;
    return n;
}

/* Once more while sizes turn out to be products: then a loop that was made
 * before that was known can be cut.                                          */
void kern_build(Kern *c)
{
    size_t was;

    c->pool = pool_new(c->a);
    do {
        was = defined(c->pool);
        c->memo = table_new(c->a);
        c->exof = table_new(c->a);
        c->member = table_new(c->a);
        c->ex = NULL;
        c->st = NULL;
        c->nloop = 0;
        for (int i = 0; i < c->k->nin; i++)
            *table_at(c->member, KEYP(c->k->in[i])) = c->k->in[i];
        for (int i = 0; i < c->k->nout; i++)
            store(c, c->k->out[i]);
    } while (c->gpu && defined(c->pool) > was);
}

static void lower(Graph *g, Group *k, Arena *a, int gpu)
{
    Kern c = { .g = g, .k = k, .a = a, .gpu = gpu };

    kern_build(&c);
    kern_tidy(&c);
    kern_print(&c);
    find_inplace(&c);
    set_label(k, a, k->out[0]);
}

void loop_lower(Graph *g, Group *k, Arena *a)
{
    lower(g, k, a, 0);
}

void loop_lower_cuda(Graph *g, Group *k, Arena *a)
{
    lower(g, k, a, 1);
}
