/* stash.c: stores ragged rows that the backward reads in stacks. A layer has
 * capacity for route.factor times its expected rows, since any one may get as
 * many. All layers together rarely get more than expected, so kept rows are in
 * stacks with capacity for route.stash times the rows of all layers, each after
 * those of the layer before:
 *
 *     rows    0            b1         b2            b3        R
 *             | layer 0 .. | layer 1  | layer 2  .. |         |
 *
 *     b[l + 1] = b[l] + rows of layer l, rounded up to whole blocks of 128
 *
 * b[l] is a word of the layer's map: its route reads the map of the route
 * before. Kernels add it to the pointer of an operand in a stack, and write
 * only rows of their map. A layer begins at most at R - room, where room is its
 * capacity, so all accesses are inside the stack. If its rows would begin
 * higher, the step has overflowed and runs again by its fallback, which keeps
 * no rows.
 *
 * R = route.stash x sum of expected rows + largest (room - expected) + 128 a
 * layer, at least the largest room. Values of different layers with one dtype
 * and row size share a stack, unless the stack is not smaller than they are. A
 * pipeline stage has stacks for each call and micro-batch.
 *
 * A stack is live until the last layer's rows are read. There is none if
 * gradients reuse the memory of rows, which saves more: with one micro-batch or
 * pair a step gradients of parameters do, and in a divided backward (I, W)
 * those of rows. */
#include "plan.h"

enum { KEPT = 1, OTHER = 2 };

/* ---- the graph ----------------------------------------------------------- */

/* Is n rows of a route with a budget, made by the forward? */
static int is_ragged(const Node *n)
{
    return n->map && n->map->at.route.budget > 0 && !runs_backward(n) &&
           n->reg == REGbody && n->nd > 1 && g_isrow(n->dim[0].a);
}

static void mark_routes(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = 0;
    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin && runs_backward(g->node[i]); k++) {
            const Node *x = owner_of_bytes(g->node[i]->in[k]);
            if (is_ragged(x))
                x->map->mark = KEPT;
        }
}

/* Returns R for these routes; 0: a stack saves nothing. */
static int64_t rows_of_stacks(const Graph *g, Node *const *route)
{
    double expected = 0, more = 0, most = 0;
    int64_t room = 0;

    for (size_t i = 0; i < vec_len(route); i++) {
        MapLayout l = map_layout(g, route[i]);
        double rows = expected_rows(route[i], &l);
        expected += rows;
        room += l.cap;
        more = fmax(more, (double)l.cap - rows);
        most = fmax(most, (double)l.cap);
    }
    double all = opts_num(g->opts, "route.stash") * expected + more +
                 SCALEBLOCK * (double)vec_len(route);
    int64_t rows = (int64_t)ceil(fmax(all, most) / SCALEBLOCK) * SCALEBLOCK;
    return rows < room && rows <= INT32_MAX ? rows : 0;
}

static void chain_routes(Graph *g, Node *const *route)
{
    int64_t rows = rows_of_stacks(g, route);

    for (size_t i = 0; i < vec_len(route) && rows; i++) {
        Node *n = route[i], **in = alloc(g->arena, 2 * sizeof *in);
        n->at.route.stash = rows;
        in[0] = n->in[0];
        in[1] = i ? route[i - 1] : NULL;
        n->in = in;
        n->nin = i ? 2 : 1;
    }
    if (rows)
        why(g, route[0], "rows of %zu layers lie in stacks of %lld rows",
            vec_len(route), (long long)rows);
}

/* Do gradients reuse the memory of rows? */
static int frees_rows(const Graph *g)
{
    int at_once = takes_pairs(g) && !why_unpaired(g) ? 2 : 1;

    for (size_t i = 0; i < vec_len(g->call); i++)
        if (g->call[i].k == ROWwork && g->call[i].w == WI)
            return 1;
    return !g->call && micro_turns(g) == at_once;
}

void pass_stash(Graph *g)
{
    if (!program_budgeted(g->prog) || !g->mesh ||
        opts_num(g->opts, "route.stash") <= 0 || frees_rows(g))
        return;
    mark_routes(g);
    for (int c = 0; c <= (int)vec_len(g->call); c++) {
        Node **route = NULL;
        for (size_t i = 0; i < vec_len(g->node); i++)
            if (g->node[i]->call == c && g->node[i]->mark == KEPT)
                vec_push(g->arena, route, g->node[i]);
        chain_routes(g, route);
    }
}

/* ---- kernels ------------------------------------------------------------- */

typedef struct Stack { /* a stack under construction */
    const Node *first; /* first map of its values' chain */
    Dtype dt;
    int64_t row, rows, room; /* bytes of a row, R, rows without a stack */
    Table *maps;             /* maps of its values, one per layer */
} Stack;

/* Do kernels of the group's family support operands in stacks? */
static int finds_rows(const Group *group)
{
    return group->fam == FAMloop || group->fam == FAMgmm ||
           group->fam == FAMgmm_wgrad || group->fam == FAMblocks;
}

static void mark_value(const Group *group, Node *n)
{
    Node *x = storage(n);

    if (!is_ragged(x) || !x->map->at.route.stash)
        return;
    if (!finds_rows(group))
        x->mark |= OTHER;
    if (runs_backward(group->node[0]))
        x->mark |= KEPT;
}

static Node **kept_values(Graph *g, Group *const *k)
{
    Node **v = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = g->node[i]->stash = 0;
    for (size_t i = 0; i < vec_len(k); i++) {
        for (int j = 0; j < k[i]->nin; j++)
            mark_value(k[i], k[i]->in[j]);
        for (int j = 0; j < k[i]->nout; j++)
            mark_value(k[i], k[i]->out[j]);
    }
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->mark == KEPT)
            vec_push(g->arena, v, g->node[i]);
    return v;
}

/* Returns the first map of the chain; each call, and each micro-batch of a
 * pair, has its own. */
static const Node *first_map(const Node *map)
{
    while (map->nin > 1)
        map = map->in[1];
    return map;
}

/* Returns the first stack for rows like n's without rows of n's layer. */
static int find_stack(const Graph *g, Stack **all, const Node *n)
{
    MapLayout l = map_layout(g, n->map);
    const Node *first = first_map(n->map);
    int64_t row = local_bytes(g, n) / l.cap;
    int i = 0;

    for (; i < (int)vec_len(*all); i++) {
        const Stack *stack = &(*all)[i];
        if (stack->first == first && stack->dt == n->dt && stack->row == row &&
            !table_get(stack->maps, KEYP(n->map)))
            break;
    }
    if (i == (int)vec_len(*all))
        vec_push(g->arena, *all,
                 ((Stack){ first, n->dt, row, n->map->at.route.stash, 0,
                           table_new(g->arena) }));
    (*all)[i].room += l.cap;
    *table_at((*all)[i].maps, KEYP(n->map)) = n->map;
    return i;
}

void stash_values(Graph *g, Group *const *k)
{
    Node **v = kept_values(g, k);
    Stack *all = NULL;

    for (size_t i = 0; i < vec_len(v); i++)
        v[i]->stash = 1 + find_stack(g, &all, v[i]);
    for (size_t i = 0; i < vec_len(v); i++)
        if (all[v[i]->stash - 1].rows >= all[v[i]->stash - 1].room)
            v[i]->stash = 0;
}
