/* sharding_rules.c: sharding strategies of ops. Over one atom a node has
 * several strategies, which follow from its class and axis names:
 *
 *     dot [t h] x [h f] -> [t f] over h
 *         S(t) R    -> S(t)        t, f: batch, left or right
 *         R    S(f) -> S(f)
 *         S(h) S(h) -> P(add)      contracted: partial sums
 *         R    R    -> R
 *         P    R    -> P           linear in each operand
 *
 * Ragged rows hide axes: over an atom that shards the route map (by expert, or
 * by a token axis), every tensor of its rows is sharded in the same way, the
 * only strategy. Rows in blocks, and tokens received in blocks, have an axis
 * that is sharded instead of the tokens (block_axis). If the map is whole, rows
 * behave as any tensor. */

#include "graph.h"

static Shard whole(void)
{
    return (Shard){ R, Radd, NULL };
}

static Shard along(Axis *a)
{
    return (Shard){ S, Radd, a };
}

static Shard partial(Reduce op)
{
    return (Shard){ P, op, NULL };
}

typedef struct StrategyList {
    const Node *n;
    ShardStrategy *w;
    int count;
} StrategyList;

/* Adds a strategy with all operands whole. */
static ShardStrategy *add(StrategyList *list, Shard out)
{
    if (list->count == MAXWAY)
        die("%s: more than %d ways to cut it", optab[list->n->op].name, MAXWAY);
    if (list->n->nin > MAXIN)
        err(list->n->loc, "%s: %d operands, at most %d",
            optab[list->n->op].name, list->n->nin, MAXIN);
    ShardStrategy *w = &list->w[list->count++];
    w->out = out;
    memset(w->in, 0, (size_t)list->n->nin * sizeof *w->in);
    return w;
}

/* Adds a strategy that shards operands with axis a along it, others whole. */
static ShardStrategy *add_along(StrategyList *list, Axis *a, Shard out)
{
    ShardStrategy *w = add(list, out);

    for (int k = 0; k < list->n->nin; k++)
        if (has_dim(list->n->in[k], a))
            w->in[k] = along(a);
    return w;
}

/* Adds a strategy with partial operands in mask, others whole, and a partial
 * result. */
static void add_partial(StrategyList *list, Reduce op, unsigned mask)
{
    ShardStrategy *w = add(list, partial(op));

    for (int k = 0; k < list->n->nin; k++)
        if (mask >> k & 1)
            w->in[k] = partial(op);
}

static unsigned every(const Node *n)
{
    return (1u << n->nin) - 1;
}

/* ---- classes ------------------------------------------------------------- */

static int widens(const Node *n)
{
    return n->op == Ocast && dtypes[n->dt].kind == 'f' && !is_narrow(n->dt) &&
           dtypes[n->in[0]->dt].kind == 'f' &&
           dtypes[n->dt].bytes >= dtypes[n->in[0]->dt].bytes;
}

static void elementwise(StrategyList *list)
{
    const Node *n = list->n;

    for (int i = 0; i < n->nd; i++)
        if (!g_isrow(n->dim[i].a))
            add_along(list, n->dim[i].a, along(n->dim[i].a));
    add(list, whole());
    if ((op_is(n->op, OPlinear) || widens(n)) && n->nin)
        add_partial(list, Radd, every(n));
    if (op_is(n->op, OPbilinear))
        add_partial(list, Radd, 1);
    if (n->op == Omul)
        add_partial(list, Radd, 2);
    if (n->op == Omaximum || n->op == Ostop_gradient)
        add_partial(list, Rmax, every(n));
    if (n->op == Ominimum || n->op == Ostop_gradient)
        add_partial(list, Rmin, every(n));
}

static Reduce reduction_of(Op op)
{
    return op == Omax || op == Ooverflow ? Rmax : op == Omin ? Rmin : Radd;
}

static void reduction(StrategyList *list)
{
    const Node *n = list->n, *a = n->in[0];

    for (int i = 0; i < a->nd; i++) {
        Axis *x = a->dim[i].a;
        if (!g_isrow(x))
            add_along(list, x,
                      has_dim(n, x) ? along(x) : partial(reduction_of(n->op)));
    }
    add(list, whole());
    add_partial(list, reduction_of(n->op), 1);
}

/* dot, gmm, gmm_wgrad: shards axes of the result, or contracted axes. */
static void product(StrategyList *list)
{
    const Node *n = list->n;

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n->in[k]->nd; i++) {
            Axis *x = n->in[k]->dim[i].a;
            if (g_isrow(x) || (k && has_dim(n->in[0], x)) ||
                (n->nin > 2 && x == n->in[2]->at.route.axis))
                continue;
            add_along(list, x, has_dim(n, x) ? along(x) : partial(Radd));
        }
    add(list, whole());
    add_partial(list, Radd, 1);
    add_partial(list, Radd, 2);
}

/* Ops along one whole axis: shards any other axis. */
static void beside(StrategyList *list, const Axis *a)
{
    const Node *n = list->n;

    for (int i = 0; i < n->nd; i++) {
        Axis *x = n->dim[i].a;
        if (x != a && !g_isrow(x) && has_dim(n->in[0], x))
            add_along(list, x, along(x));
    }
    add(list, whole());
    if (op_is(n->op, OPlinear))
        add_partial(list, Radd, every(n));
}

/* Does a zigzag axis stay one: renamed, or as the slowest part of a split? */
static int keeps_pieces(const Graph *g, int atom, const Axis *axis,
                        const Axis *to)
{
    int from = zigzag_atoms(g->mesh, axis) >> atom & 1;
    int into = zigzag_atoms(g->mesh, to) >> atom & 1;

    return to == axis || from == into;
}

/* Returns the axis of the view that corresponds to the operand's sharded axis;
 * null: none. */
static Axis *becomes(const Node *n, Axis *axis)
{
    int k;

    switch (n->op) {
    case Orename:
        k = axes_at(&n->at.rename.from, axis);
        return k < 0 ? axis : n->at.rename.to.v[k];
    case Osplit: return axis == n->at.split.axis ? n->at.split.into.v[0] : axis;
    case Omerge:
        k = axes_at(&n->at.merge.axes, axis);
        return k < 0 ? axis : k == 0 ? n->at.merge.new : NULL;
    default: return axis;
    }
}

static void view(StrategyList *list, const Graph *g, int atom)
{
    const Node *a = list->n->in[0];

    for (int i = 0; i < a->nd; i++) {
        Axis *x = a->dim[i].a, *to = becomes(list->n, x);
        if (!to || g_isrow(x) || !keeps_pieces(g, atom, x, to))
            continue;
        add(list, along(to))->in[0] = along(x);
    }
    add(list, whole());
    add_partial(list, Radd, 1);
}

/* amax, quantize, dequantize, spread: shards values and their blocks together
 * if each block is whole on a rank. For a block that spans an axis, and for a
 * partial maximum of magnitudes, each rank finds its own maximum. */
static void by_blocks(StrategyList *list, const Graph *g, int atom)
{
    const Node *n = list->n,
               *x = n->op == Odequantize || n->op == Ospread ? n : n->in[0];
    const struct amax_attrs *t = &n->at.amax;
    Axis *pairs = n_pairs(n);

    for (int i = 0; i < x->nd; i++) {
        Axis *a = x->dim[i].a, *stored = a;
        int at = axes_at(&t->axes, a);
        Axis *count = at < 0 ? a : t->blocks.n ? t->blocks.v[at] : NULL;
        if (g_isrow(a) || (count != a && count &&
                           (x->dim[i].n % block_size(n, at) ||
                            zigzag_atoms(g->mesh, a) >> atom & 1)))
            continue;
        if (pairs && at == t->axes.n - 1)
            stored = pairs;
        ShardStrategy *w = add(list, n->op == Oquantize ? along(stored)
                                     : x == n || n->op == Ohadamard ? along(a)
                                     : count ? along(count)
                                             : partial(Rmax));
        w->in[0] = along(n->op == Odequantize ? stored : a);
        if (n->op == Ospread)
            w->in[0] = has_dim(n->in[0], count) ? along(count) : whole();
        if (n->nin > 1 && count && has_dim(n->in[1], count))
            w->in[1] = along(count);
    }
    add(list, whole());
    if (n->op == Oamax && x->op == Ounpack && x->at.unpack.largest)
        add_partial(list, Rmax, 1);
}

/* a at axis = e. A rank with a part of the axis has only that part's
 * elements. */
static void gathers(StrategyList *list)
{
    const Node *n = list->n, *a = n->in[0], *e = n->in[1];

    for (int i = 0; i < n->nd; i++) {
        Axis *x = n->dim[i].a;
        ShardStrategy *w = add_along(list, x, along(x));
        if (x == n->at.gather.axis && has_dim(a, x))
            w->in[0] = whole();
    }
    if (!has_dim(e, n->at.gather.axis))
        add(list, partial(Radd))->in[0] = along(n->at.gather.axis);
    add(list, whole());
    add_partial(list, Radd, 1);
}

/* zeros [axis ..], at axis = e += v. A rank keeps the elements of its part. */
static void scatters(StrategyList *list)
{
    const Node *n = list->n, *v = n->in[0], *e = n->in[1];

    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a != n->at.scatter_add.axis)
            add_along(list, n->dim[i].a, along(n->dim[i].a));
    if (!has_dim(v, n->at.scatter_add.axis) &&
        !has_dim(e, n->at.scatter_add.axis))
        add(list, along(n->at.scatter_add.axis));
    for (int i = 0; i < e->nd; i++)
        if (!has_dim(n, e->dim[i].a))
            add_along(list, e->dim[i].a, partial(Radd));
    add(list, whole());
    add_partial(list, Radd, 1);
}

/* Routes are sharded by expert over ep's atoms, whole over etp's, and like the
 * tokens over others: a rank has every token that its experts may get, and of
 * tokens sent to peers those that it received. Rows in blocks are local. */
static void routes(StrategyList *list, const Graph *g, int atom)
{
    const Node *n = list->n, *e = n->in[0];
    int blocks = n->at.route.blocks.n;
    Axis *sent = block_axis(n, atom);
    Axis *came = axis_cut_over(&n->at.route.peers, atom);

    if (!blocks && g->mesh->mask[Mep] >> atom & 1) {
        add(list, along(n->at.route.axis))->in[0] =
            sent ? along(sent) : whole();
        return;
    }
    int whole_only = blocks ? !sent : g->mesh->mask[Metp] >> atom & 1;
    for (int i = 0; i < e->nd && !whole_only; i++)
        if (e->dim[i].a != n->at.route.top && (!came || e->dim[i].a == came))
            add_along(list, e->dim[i].a, along(e->dim[i].a));
    if (!blocks || !sent)
        add(list, whole());
}

/* The previous route in the stash is sharded alike, by its own experts. */
static void behind_route(StrategyList *list)
{
    const Node *n = list->n;

    for (int i = 0; i < list->count && n->nin > 1; i++) {
        Shard *before = &list->w[i].in[1];
        *before = list->w[i].out;
        if (before->k == S && before->a == n->at.route.axis)
            before->a = n->in[1]->at.route.axis;
    }
}

/* Capacity is decided among all tokens of a micro-batch. */
static void keeps(StrategyList *list)
{
    for (int i = 0; i < list->n->nd; i++)
        if (g_ismicro(list->n->dim[i].a))
            add_along(list, list->n->dim[i].a, along(list->n->dim[i].a));
    add(list, whole());
}

/* Token axes cannot be sharded if the map is whole. */
static void between(StrategyList *list)
{
    const Node *n = list->n, *x = n->in[0], *e = n->in[1]->in[0];

    for (int i = 0; i < x->nd; i++)
        if (!is_rows(n->in[1], x->dim[i].a) && !has_dim(e, x->dim[i].a))
            add_along(list, x->dim[i].a, along(x->dim[i].a));
    add(list, whole());
    add_partial(list, Radd, 1);
}

/* Are all to be reduced alike? */
static int all_partial(const Node *n, int atom)
{
    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->sh[atom].k != P ||
            n->in[k]->sh[atom].op != n->in[0]->sh[atom].op)
            return 0;
    return 1;
}

/* Over an atom of `own` each member is sharded along its own axis, which the
 * lists name. Over others all are partial, or all whole; maxima may be partial
 * alone. */
static void packs(StrategyList *list, int atom)
{
    const Node *n = list->n, *b = n->op == Opack ? n : n->in[0];
    uint32_t own = b->nd > 1 ? b->dim[0].a->atoms : 0;
    int cuts = __builtin_popcount(own);
    int at = __builtin_popcount(own & ((1u << atom) - 1));

    if (!(own >> atom & 1)) {
        if (n->op == Ounpack && n->at.unpack.largest &&
            b->dim[b->nd - 1].a->atoms >> atom & 1)
            add(list, partial(Rmax))->in[0] = along(b->dim[b->nd - 1].a);
        else if (all_partial(n, atom))
            add_partial(list, n->in[0]->sh[atom].op, every(n));
        else
            add(list, whole());
        return;
    }
    Axis *a = b->dim[0].a;
    ShardStrategy *w =
        add(list, along(n->op == Opack ? a : n->at.unpack.cut.v[at]));
    for (int k = 0; k < n->nin; k++)
        w->in[k] = along(n->op == Opack ? n->at.pack.cut.v[k * cuts + at] : a);
}

/* ---- attention ----------------------------------------------------------- */

static int sees(const Node *n, int k, const Axis *a)
{
    return dim_of(n->in[k], a) >= 0;
}

/* Ring attention: queries and keys are sharded alike; ranks pass keys
 * around. */
static void attends_ring(StrategyList *list)
{
    const Node *n = list->n;

    for (int k = 0; k < n->nin; k++)
        if (sees(n, k, n->at.attn.key) && sees(n, k, n->at.attn.query))
            return;
    ShardStrategy *w = add(list, along(n->at.attn.query));
    for (int k = 0; k < n->nin; k++)
        if (sees(n, k, n->at.attn.key) || sees(n, k, n->at.attn.query))
            w->in[k] = along(sees(n, k, n->at.attn.key) ? n->at.attn.key
                                                        : n->at.attn.query);
}

static int may_ring(const Graph *g, int atom)
{
    return g->level < PLACED && (g->mesh->mask[Mcp] >> atom & 1) && g->opts &&
           opts_int(g->opts, "fold.ring");
}

/* Shards any axis of the scores but the key's. The gradient of an operand
 * without the axis is partial. */
static void attends(StrategyList *list, const Graph *g, int atom)
{
    if (list->n->at.attn.ring >> atom & 1 || may_ring(g, atom))
        attends_ring(list);
    if (list->n->at.attn.ring >> atom & 1)
        return;
    const Graph *body = list->n->body;
    const Node *y = body->node[vec_len(body->node) - 1]->in[0];

    for (int i = 0; i < y->nd; i++)
        if (y->dim[i].a != list->n->at.attn.key)
            add_along(list, y->dim[i].a, along(y->dim[i].a));
    add(list, whole());
}

static uint32_t ring_of(const Node *n)
{
    return n->op == Oattn || n->op == Oattn_bwd ? n->at.attn.ring : 0;
}

static void parts(StrategyList *list, int atom)
{
    const Node *n = list->n;
    Shard t = n->in[0]->sh[atom];
    int ring = ring_of(n->in[0]) >> atom & 1;
    Shard out = t.k != S || has_dim(n, t.a) ? t
                : ring && has_dim(n, n->in[0]->at.attn.key)
                    ? along(n->in[0]->at.attn.key)
                : n->in[0]->op == Oattn_bwd ? partial(Radd)
                                            : whole();

    add(list, out)->in[0] = t;
}

/* ---- sinks --------------------------------------------------------------- */

/* A bucket of ZeRO-3 is reduce-scattered by every micro-batch. */
static void accumulates(StrategyList *list, int atom)
{
    const Node *n = list->n;
    Reduce op = n->at.accum.op == Rlast ? Radd : n->at.accum.op;

    for (int i = 0; i < n->nd; i++)
        add_along(list, n->dim[i].a, along(n->dim[i].a));
    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a->atoms >> atom & 1)
            return;
    add(list, whole());
    add_partial(list, op, every(n));
}

/* Each rank sums the squares of its part. */
static void sums_squares(StrategyList *list)
{
    const Node *n = list->n, *a = n->in[0];

    for (int i = 0; i < a->nd; i++) {
        ShardStrategy *w = add(list, (Shard){ S, Radd, n->dim[0].a });
        w->in[0] = (Shard){ S, Radd, a->dim[i].a };
    }
    add(list, whole());
}

static void sinks(StrategyList *list, int atom)
{
    const Node *n = list->n;

    if (n->op == Owrite) {
        ShardStrategy *w = add(list, n->in[0]->sh[atom]);
        w->in[0] = w->in[1] = w->out;
    } else if (n->op == Ooutput) {
        for (int i = 0; i < n->in[0]->nd; i++)
            add_along(list, n->in[0]->dim[i].a, along(n->in[0]->dim[i].a));
        add(list, whole());
    } else {
        add(list, whole());
    }
}

/* ---- rows with a sharded map --------------------------------------------- */

static const Node *map_of(const Node *n)
{
    if (n->map || n->op == Oroute)
        return n->map;
    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->op == Oroute || n->in[k]->map)
            return n->in[k]->op == Oroute ? n->in[k] : n->in[k]->map;
    return NULL;
}

/* Returns n's shard if its map is sharded along axis, an expert or a token
 * axis: rows and map like the map, others along the token axis or its
 * replacement. Only experts' weights are sharded by expert. */
static Shard beside_rows(const Node *user, const Node *n, Axis *axis,
                         Axis *block)
{
    const Node *map = map_of(user);
    int expert = axis == map->at.route.axis;

    if (n->map || n->op == Oroute)
        return along(axis);
    if (has_dim(n, axis) && (!expert || optab[user->op].cls == EIN))
        return along(axis);
    return block && has_dim(n, block) ? along(block) : whole();
}

/* Adds the only strategy over an atom that shards the map. */
static void ragged(StrategyList *list, const Node *map, int atom)
{
    const Node *n = list->n;
    Axis *x = map->sh[atom].a, *block = block_axis(map, atom);
    Shard out = beside_rows(n, n, x, block);
    ShardStrategy *w =
        add(list, out.k == S ? out : partial(reduction_of(n->op)));

    for (int k = 0; k < n->nin; k++)
        w->in[k] = beside_rows(n, n->in[k], x, block);
}

/* ---- all strategies ------------------------------------------------------ */

static void by_class(StrategyList *list, const Graph *g, int atom)
{
    switch (optab[list->n->op].cls) {
    case EW: elementwise(list); break;
    case RED: reduction(list); break;
    case EIN: product(list); break;
    case VIEW: view(list, g, atom); break;
    case ROW:
    case MOVE: beside(list, whole_axis(list->n)); break;
    default: break;
    }
}

static int is_narrow_value(const Node *n)
{
    return arithmetic_dtype(n->dt) != n->dt;
}

/* Drops strategies with partial values of 8-bit dtypes, which cannot be
 * summed. */
static void drop_narrow_partials(StrategyList *list)
{
    const Node *n = list->n;
    int kept = 0, any = is_narrow_value(n);

    for (int k = 0; k < n->nin; k++)
        any |= is_narrow_value(n->in[k]);
    if (!any)
        return;
    for (int i = 0; i < list->count; i++) {
        int bad = list->w[i].out.k == P && is_narrow_value(n);
        for (int k = 0; k < n->nin; k++)
            bad |= list->w[i].in[k].k == P && is_narrow_value(n->in[k]);
        if (!bad)
            list->w[kept++] = list->w[i];
    }
    list->count = kept;
}

static void by_op(StrategyList *list, const Graph *g, int atom)
{
    const Node *n = list->n;

    switch (n->op) {
    case Odrop_to_capacity: keeps(list); break;
    case Oroute:
        routes(list, g, atom);
        behind_route(list);
        break;
    case Opart: parts(list, atom); break;
    case Oattn:
    case Oattn_bwd: attends(list, g, atom); break;
    case Ogather: gathers(list); break;
    case Oamax:
    case Ohadamard:
    case Oquantize:
    case Ospread:
    case Odequantize: by_blocks(list, g, atom); break;
    case Oscatter_add: scatters(list); break;
    case Opack:
    case Ounpack: packs(list, atom); break;
    case Odispatch:
    case Ocombine: between(list); break;
    case Oaccum: accumulates(list, atom); break;
    case Osum_sq: sums_squares(list); break;
    case Owrite:
    case Oresult:
    case Ooutput:
    case Oloss:
    case Ometric:
    case Oupdate: sinks(list, atom); break;
    default: by_class(list, g, atom);
    }
}

int ways(const Graph *g, const Node *n, int atom, ShardStrategy *strategy)
{
    StrategyList s = { n, strategy, 0 };
    const Node *map = map_of(n);

    if (map && map->sh[atom].k == S)
        ragged(&s, map, atom);
    else
        by_op(&s, g, atom);
    drop_narrow_partials(&s);
    return s.count;
}

/* ---- checking ------------------------------------------------------------ */

static int matches(const Node *n, int atom, const ShardStrategy *strategy)
{
    if (!same_shard(&strategy->out, &n->sh[atom]))
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!same_shard(&strategy->in[k], &n->in[k]->sh[atom]))
            return 0;
    return 1;
}

/* Does a collective convert type `from` to `to` over one of its atoms? */
static int reshards(const Node *n, const Shard *from, const Shard *to)
{
    switch (n->op) {
    case Oallgather: return from->k == S && from->a == n_axis(n) && to->k == R;
    case Oreducescatter:
        return from->k == P && to->k == S && to->a == n_axis(n);
    case Oppermute:
        return same_shard(from, to) && to->k == S && to->a == n_axis(n);
    case Oallreduce: return from->k == P && to->k == R;
    case Opp_sum: return from->k == R && to->k == R;
    case Oshard_slice: return from->k == R && to->k == S && to->a == n_axis(n);
    case Oalltoall:
        return from->k == S && from->a == n->at.alltoall.from && to->k == S &&
               to->a == n->at.alltoall.to;
    default: return 0;
    }
}

const char *type_wrong(const Graph *g, const Node *n)
{
    ShardStrategy w[MAXWAY];
    int comm = optab[n->op].cls == COMM && n->op != Orecv;

    for (int t = 0; g->mesh && t < g->mesh->natom; t++) {
        const Shard *to = &n->sh[t];
        int ok = optab[n->op].cls == SRC || n->op == Osend || n->op == Orecv;
        if (comm && n_atoms(n) >> t & 1)
            ok = reshards(n, &n->in[0]->sh[t], to);
        else if (comm)
            ok = same_shard(&n->in[0]->sh[t], to);
        else
            for (int i = ways(g, n, t, w); i-- > 0 && !ok;)
                ok = matches(n, t, &w[i]);
        if (!ok)
            return "no way to run it makes this type of those operands";
    }
    return NULL;
}
