/* recompute.c: the free half of recomputation, always on. A forward value that
 * a backward loop kernel can rebuild, by elementwise ops and moves, from values
 * that are kept anyway is not kept:
 *
 *     %h = silu %a                     %h   = silu %a           forward
 *     %y = mul %h %b             =>    %y   = mul %h %b
 *     ...                              ...
 *     %db = mul %dy %h                 %h'  = silu %a           again
 *                                      %db  = mul %dy %h'
 *
 * Which values to keep is a minimum cut by bytes: what no loop kernel can
 * rebuild hangs on the source, what backward loop kernels read hangs on the
 * sink, a value's capacity is its size, and what other backward kernels (BLAS,
 * attention, collectives) read is kept already and costs nothing. Reductions
 * are kept: their results are small. Copies carry `again`, so that g_tidy never
 * merges them with their originals. */
#include <string.h>

#include "activations.h"

typedef struct Edge {
    int to, rev;
    int64_t cap;
} Edge;

typedef struct FlowNetwork { /* vertices: 2i in, 2i+1 out, then s, t */
    Arena *arena;
    Edge **adj; /* vec per vertex */
    int *level, *at, nv, s, t;
} FlowNetwork;

static const int64_t INF = INT64_MAX / 4;

static void edge(FlowNetwork *f, int u, int v, int64_t cap)
{
    Edge a = { v, (int)vec_len(f->adj[v]), cap };
    Edge b = { u, (int)vec_len(f->adj[u]), 0 };

    vec_push(f->arena, f->adj[u], a);
    vec_push(f->arena, f->adj[v], b);
}

/* Distances from s over edges with room; is t reached? */
static int bfs(FlowNetwork *f, int *queue)
{
    int head = 0, tail = 0;

    for (int i = 0; i < f->nv; i++)
        f->level[i] = -1;
    f->level[f->s] = 0;
    queue[tail++] = f->s;
    while (head < tail) {
        int u = queue[head++];
        for (size_t i = 0; i < vec_len(f->adj[u]); i++) {
            Edge *e = &f->adj[u][i];
            if (e->cap > 0 && f->level[e->to] < 0) {
                f->level[e->to] = f->level[u] + 1;
                queue[tail++] = e->to;
            }
        }
    }
    return f->level[f->t] >= 0;
}

static int64_t push_flow(FlowNetwork *f, int u, int64_t limit)
{
    if (u == f->t)
        return limit;
    for (; f->at[u] < (int)vec_len(f->adj[u]); f->at[u]++) {
        Edge *e = &f->adj[u][f->at[u]];
        if (e->cap <= 0 || f->level[e->to] != f->level[u] + 1)
            continue;
        int64_t got = push_flow(f, e->to, limit < e->cap ? limit : e->cap);
        if (got > 0) {
            e->cap -= got;
            f->adj[e->to][e->rev].cap += got;
            return got;
        }
    }
    return 0;
}

/* Of all minimum cuts the one nearest the sink, which rebuilds least: level 1
 * marks the vertices from which the sink can still be reached, others get 0. */
static void sink_side(FlowNetwork *f, int *queue)
{
    int head = 0, tail = 0;

    memset(f->level, 0, (size_t)f->nv * sizeof *f->level);
    f->level[f->t] = 1;
    queue[tail++] = f->t;
    while (head < tail) {
        int v = queue[head++];
        for (size_t i = 0; i < vec_len(f->adj[v]); i++) {
            Edge *e = &f->adj[v][i];
            if (f->adj[e->to][e->rev].cap > 0 && !f->level[e->to]) {
                f->level[e->to] = 1;
                queue[tail++] = e->to;
            }
        }
    }
}

/* Dinic 1970. */
static void max_flow(FlowNetwork *f)
{
    int *queue = alloc(f->arena, (size_t)f->nv * sizeof *queue);

    while (bfs(f, queue)) {
        memset(f->at, 0, (size_t)f->nv * sizeof *f->at);
        while (push_flow(f, f->s, INF))
            ;
    }
    sink_side(f, queue);
}

/* ---- what the cut is about ----------------------------------------------- */

enum { BACK = 1, FORCED = 2, NEEDED = 4, REBUILT = 8 };

static int rebuildable(const Graph *g, const Node *n)
{
    OpClass c = optab[n->op].cls;

    return n->reg == REGbody && (c == EW || c == MOVE || c == VIEW) &&
           n->op != Opart && n->op != Oscatter_add &&
           (c == VIEW || pass_target(g)->loops(g, n));
}

/* The value whose bytes a chain of views shows. */
static Node *bytes_of(Node *n)
{
    while (optab[n->op].cls == VIEW && n->op != Opart)
        n = n->in[0];
    return n;
}

/* Free to read at any time: parameters, constants, inputs, values of pre. */
static int always_there(const Node *n)
{
    return optab[n->op].cls == SRC || n->reg != REGbody;
}

static void mark_uses(const Graph *g, Node *n)
{
    int loop = pass_target(g)->loops(g, n) && n->op != Oscatter_add;

    for (int k = 0; k < n->nin; k++) {
        Node *x = bytes_of(n->in[k]);
        if (always_there(x) || (x->mark & BACK))
            continue;
        x->mark |= loop ? NEEDED : FORCED;
        if (loop)
            n->in[k]->mark |= NEEDED;
    }
}

static void mark_all(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark =
            g->node[i]->reg == REGbody && is_backward(g->node[i]) ? BACK : 0;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->mark & BACK && optab[g->node[i]->op].cls != VIEW)
            mark_uses(g, g->node[i]);
}

static void build(FlowNetwork *f, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        int in = 2 * (int)i, out = in + 1;
        if (always_there(n) || n->mark & BACK)
            continue;
        edge(f, in, out, n->mark & FORCED ? 0 : local_bytes(g, n));
        if (n->mark & NEEDED)
            edge(f, out, f->t, INF);
        if (!rebuildable(g, n)) {
            edge(f, f->s, in, INF);
            continue;
        }
        for (int k = 0; k < n->nin; k++)
            if (!always_there(n->in[k]))
                edge(f, 2 * n->in[k]->id + 1, in, INF);
    }
}

/* A needed value beyond the cut is rebuilt. */
static int mark_rebuilt(const FlowNetwork *f, Graph *g)
{
    int any = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->mark & (BACK | FORCED) || always_there(n) || !rebuildable(g, n))
            continue;
        if (!f->level[2 * i])
            continue; /* cut here or before: kept */
        n->mark |= REBUILT;
        any = 1;
        if (n->mark & NEEDED && optab[n->op].cls != VIEW)
            why(g, n, "rebuilt in the backward, %lld bytes not kept",
                (long long)local_bytes(g, n));
    }
    return any;
}

static int choose(Graph *g)
{
    FlowNetwork f = { .arena = arena_new(),
                      .nv = 2 * (int)vec_len(g->node) + 2 };

    f.s = f.nv - 2;
    f.t = f.nv - 1;
    f.adj = alloc(f.arena, (size_t)f.nv * sizeof *f.adj);
    f.level = alloc(f.arena, (size_t)f.nv * sizeof *f.level);
    f.at = alloc(f.arena, (size_t)f.nv * sizeof *f.at);
    build(&f, g);
    max_flow(&f);
    int any = mark_rebuilt(&f, g);
    arena_free(f.arena);
    return any;
}

/* ---- copies -------------------------------------------------------------- */

/* The copy of a rebuilt value in the call of its user; kept values stand for
 * themselves. Calls come one after another. */
static Node *again(Graph *g, Node *n, const Node *user)
{
    Node *in[MAXIN], *c = n->tmp;

    if (!(n->mark & REBUILT))
        return n;
    if (c && c->call == user->call)
        return c;
    for (int k = 0; k < n->nin; k++)
        in[k] = again(g, n->in[k], user);
    c = g_copyof(g, n, in);
    c->again = n->again + 1;
    c->scope = user->scope;
    c->call = user->call;
    c->mark = BACK;
    return n->tmp = c;
}

void pass_recompute(Graph *g)
{
    Node **old;
    size_t count;

    g_renumber(g);
    mark_all(g);
    if (!choose(g))
        return;
    old = g->node;
    count = vec_len(old);
    for (size_t i = 0; i < count; i++)
        old[i]->tmp = NULL;
    g->node = NULL;
    for (size_t i = 0; i < count; i++) {
        Node *n = old[i];
        for (int k = 0; k < n->nin && n->mark & BACK; k++)
            n->in[k] = again(g, n->in[k], n);
        vec_push(g->arena, g->node, n);
    }
    g_tidy(g);
}
