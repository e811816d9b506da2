/* route.c: expert rows of token-expert pairs. drop_to_capacity drops pairs
 * beyond an expert's capacity; route makes the routing map; dispatch copies
 * token rows to expert rows. */
#include "rows.h"

/* ---- drop_to_capacity ---------------------------------------------------- */

/* Threads of a block that scans n pairs twice. The scan is bound by latency:
 * decisions/route-blocks.md. */
static int pair_scan_threads(int64_t n)
{
    enum { MANYPAIRS = 1 << 15, MANYTHREADS = 1024 };

    return n < MANYPAIRS ? THREADMAP : MANYTHREADS;
}

/* Per micro-batch, over all tokens in the order of the result's axes. */
int drop_to_capacity_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *e = n->in[0], *weight = n->in[1];
    const Node *t[3] = { n, e, weight };
    RowWalks item = { 0 }, pair = { 0 };
    Dtype ct = compute_type(weight->dt);
    RowText o = row_begin(group, a);

    for (int d = 0; d < n->nd; d++)
        row_walk(g, g_ismicro(n->dim[d].a) ? &item : &pair, n, d, t);
    int64_t items = row_count(&item), pairs = row_count(&pair),
            x = n->at.drop_to_capacity.axis->n;
    row_buffer(&o, "e", e, e->dt);
    if (!n->at.drop_to_capacity.first)
        row_buffer(&o, "g", weight, weight->dt);
    row_buffer(&o, "y", n, n->dt);
    row_line(&o, "int32_t *const work = buf[%d];", group->narg);
    row_size(&o, "n", pairs);
    row_size(&o, "experts", x);
    row_size(&o, "room", n->at.drop_to_capacity.rows);
    row_offsets(&o, "ITEM", &item);
    row_offsets(&o, "PAIR", &pair);
    row_define(&o, "VALUE(name, i)",
               strf(a, "PAIR(name, i) const %s v##name = coarse_%s(%s);",
                    dtypes[ct].compute, dtypes[ct].name,
                    text_load(a, weight->dt, "g[p2 + name##2]")));
    row_flag(&o, "FIRST", n->at.drop_to_capacity.first);
    row_flag(&o, "GRID", gpu);
    put(&o.text, "%s%s", sort_cuh, capacity_cuh);
    group->scratch = items * (gpu ? pairs : x + 2 * pairs) * 4;
    row_finish(&o, g, gpu ? items * x : items, items * pairs * 16);
    return gpu ? pair_scan_threads(pairs) : 0;
}

/* ---- route --------------------------------------------------------------- */

/* Global index of this rank's first expert. */
static RankAffine first_expert(const Graph *g, const Node *route)
{
    Node x = *route;

    x.nd = 1;
    x.dim[0] = (Dim){ route->at.route.axis, route->at.route.axis->n };
    return local_start(g, &x, 0);
}

/* Size of the index tensor's axis `top`, and its stride in elements. */
static void top_layout(const Graph *g, const Node *route, int64_t *top,
                       int64_t *behind)
{
    const Node *e = route->in[0];

    *top = *behind = 1;
    for (int d = 0; d < e->nd; d++)
        if (e->dim[d].a == route_slot(route)) {
            *top = local_n(g, e, d);
            *behind = local_stride(g, e, e->dim[d].a);
        }
}

typedef struct RouteGrid {
    int64_t blocks, each; /* pairs of a block */
    int threads;          /* threads of a block */
} RouteGrid;

static RouteGrid route_grid(const MapLayout *layout)
{
    enum { BLOCKS = 128 };
    int threads = pair_scan_threads(layout->pairs);
    int64_t round = (int64_t)threads * BLOCKS;
    int64_t each = divide_up(layout->pairs, round) * threads;

    return (RouteGrid){ divide_up(layout->pairs, each), each, threads };
}

int route_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *e = n->in[0];
    MapLayout l = map_layout(g, n);
    RowText o = row_begin(group, a);
    RouteGrid grid = route_grid(&l);
    int64_t top, behind, budget = n->at.route.budget > 0;
    int follows = n->at.route.stash && n->nin > 1;

    top_layout(g, n, &top, &behind);
    row_buffer(&o, "e", e, e->dt);
    row_buffer(&o, "map", n, Di32);
    if (follows)
        row_buffer(&o, "last", n->in[1], Di32);
    if (gpu) {
        row_line(&o, "int32_t *const count = buf[%d];", group->narg);
        row_size(&o, "each_block", grid.each);
        row_size(&o, "blocks", grid.blocks);
    }
    if (n->at.route.stash)
        row_size(&o, "most", n->at.route.stash - l.cap);
    if (follows)
        row_size(&o, "rows", map_layout(g, n->in[1]).experts);
    row_size(&o, "at_off", l.offset);
    row_size(&o, "at_pair", l.pair);
    row_size(&o, "at_row", l.row);
    row_size(&o, "at_total", l.total);
    row_size(&o, "pairs", l.pairs);
    row_size(&o, "experts", l.experts);
    row_size(&o, "cap", l.cap);
    row_start(&o, "first", first_expert(g, n));
    row_size(&o, "top", top);
    row_size(&o, "in", behind);
    row_size(&o, "each", l.each);
    row_size(&o, "from", budget && !l.each ? l.first : 0);
    row_define(&o, "EXPERT(i)",
               behind == 1 ? "(e[i] - first)"
                           : "(e[((i) / top / in * top + (i) % top) * in + "
                             "(i) / top % in] - first)");
    row_flag(&o, "PADDED", l.each > 0);
    row_flag(&o, "BUDGET", budget);
    row_flag(&o, "STASH", n->at.route.stash > 0);
    row_flag(&o, "FOLLOWS", follows);
    row_flag(&o, "GRID", gpu);
    put(&o.text, "%s", route_cuh);
    row_finish(&o, g, gpu ? grid.blocks : 1, l.pairs * 4);
    group->scratch = gpu ? grid.blocks * l.experts * 4 : 0;
    group->instr.launch.then = gpu ? grid.blocks : 0;
    group->instr.launch.pairs = gpu;
    return gpu ? grid.threads : 0;
}

/* ---- dispatch ------------------------------------------------------------ */

/* Is x stored in the order of its axes, up to renamed, split and merged
 * axes? */
static int is_plain(const Node *x)
{
    while (x->op == Orename || x->op == Osplit || x->op == Omerge)
        x = x->in[0];
    return !is_view(x);
}

/* The tensor whose rows group's dispatch n copies (without a broadcast over
 * top), or null if it is not in memory. */
static Node *row_source(const Group *group, const Node *n)
{
    Node *x = n->in[0];

    if (x->op == Obroadcast)
        x = x->in[0];
    for (int i = 0; i < group->nin && is_plain(x); i++)
        if (storage(group->in[i]) == storage(x))
            return x;
    return NULL;
}

/* Elements of a row if row r of n equals token pair[r] / top of x as stored:
 * token axes first, in the order of the index tensor, then the other axes of n.
 * Else 0. */
static int64_t dispatched_row_elems(const Graph *g, const Node *n,
                                    const Node *x)
{
    const Node *e = n->in[1]->in[0];
    int64_t wide = 1;
    int d = 0, first = 0;

    while (first < n->nd && is_rows(n->in[1], n->dim[first].a))
        first++;
    if (n->dt != x->dt || !first)
        return 0;
    for (int i = 0; i < e->nd; i++) {
        if (e->dim[i].a == route_slot(n->in[1]))
            continue;
        if (d == x->nd || x->dim[d].a != e->dim[i].a ||
            local_n(g, x, d) != local_n(g, e, i))
            return 0;
        d++;
    }
    if (x->nd - d != n->nd - first)
        return 0;
    for (int i = first; i < n->nd; i++, d++) {
        if (x->dim[d].a != n->dim[i].a)
            return 0;
        wide *= local_n(g, x, d);
    }
    return wide;
}

int dispatch_lower_cuda(Graph *g, Group *group, Arena *a)
{
    Node *n = group->n == 1 ? group->node[0] : NULL;
    Node *x = n && n->op == Odispatch && group->out[0] == n
                  ? row_source(group, n)
                  : NULL;
    int64_t bytes = x ? dispatched_row_elems(g, n, x) * dtypes[n->dt].bytes : 0;
    int64_t top, behind;

    if (!bytes || bytes % 16)
        return 0;
    Node *map = n->in[1];
    MapLayout l = map_layout(g, map);
    top_layout(g, map, &top, &behind);
    RowText o = row_begin(group, a);
    int at[3] = { add_arg(group, a, map), add_arg(group, a, x),
                  add_arg(group, a, n) };
    row_line(&o, "const int32_t *const map = buf[%d];", at[0]);
    row_line(&o, "const uint4 *const x = buf[%d];", at[1]);
    put_pointer(&o.text, g, group, a, at[2], "uint4", 16, "y");
    row_size(&o, "top", top);
    row_size(&o, "experts", l.experts);
    row_size(&o, "pair", l.pair);
    row_size(&o, "tokens", l.pairs / top);
    row_size(&o, "row", l.row);
    row_flag(&o, "WIDTH", bytes / 16);
    row_flag(&o, "PADDED", l.each > 0);
    put(&o.text, "%s", dispatch_cuh);
    row_finish(&o, g, ((l.each ? l.cap : l.pairs / top) + 7) / 8, 1);
    return 1;
}
