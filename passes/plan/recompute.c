/* recompute.c: drops forward values that the backward can recompute from values
 * that are kept anyway:
 *
 *     %h = silu %a                     %h   = silu %a           forward
 *     %y = mul %h %b             =>    %y   = mul %h %b
 *     ...                              ...
 *     %db = mul %dy %h                 %h'  = silu %a           again
 *                                      %db  = mul %dy %h'
 *
 * Elementwise ops, moves and products can be recomputed. Sums and maxima are
 * kept, since they are small, and so are values from other ranks: no collective
 * of a step runs twice. A value that only backward loop kernels read is
 * recomputed inside these at no cost. For other readers (products, attention,
 * collectives) it has to be stored again, and a product costs its FLOPs: this
 * is done if the saved memory is worth the time (Graph.price). Values that
 * forward products read in FP8 are dequantized only for the backward: there, at
 * no cost, from the quantized ones.
 *
 * The choice is a minimum cut: values that cannot be recomputed are connected
 * to the source, values read by the backward to the sink; keeping a value costs
 * its bytes, recomputing it its seconds, converted to bytes by the price. Among
 * equal bytes, values that are in memory anyway are kept: logits, not their
 * exp. Copies have `again`, so that g_tidy never merges them with their
 * originals.
 *
 * Marks of the model (scope.c) precede costs. A value of keep() is never
 * recomputed. A value of recompute(), or of a module named by train.recompute,
 * is never kept if it can be recomputed, results of attention included. Some
 * modules include their outputs; the outputs of others are treated as any
 * value, as in Megatron-Core (moe-recompute, its checkpoints that keep
 * outputs). */
#include "../../ir/settings/keys.h"
#include "plan.h"

typedef struct Edge {
    int to, rev;
    int64_t cap;
} Edge;

typedef struct FlowNetwork { /* vertices: 2i in, 2i+1 out, then s, t */
    Arena *arena;
    Edge **adj; /* [vertex]: vec */
    int *level, *at, nv, s, t;
} FlowNetwork;

enum { STORING = 64 };
static const int64_t INF = INT64_MAX / 4;

static void edge(FlowNetwork *network, int u, int v, int64_t cap)
{
    Edge a = { v, (int)vec_len(network->adj[v]), cap };
    Edge b = { u, (int)vec_len(network->adj[u]), 0 };

    vec_push(network->arena, network->adj[u], a);
    vec_push(network->arena, network->adj[v], b);
}

/* Computes distances from s over edges with residual capacity. Returns whether
 * t is reached. */
static int bfs(FlowNetwork *network, int *queue)
{
    int head = 0, tail = 0;

    for (int i = 0; i < network->nv; i++)
        network->level[i] = -1;
    network->level[network->s] = 0;
    queue[tail++] = network->s;
    while (head < tail) {
        int u = queue[head++];
        for (size_t i = 0; i < vec_len(network->adj[u]); i++) {
            Edge *edge = &network->adj[u][i];
            if (edge->cap > 0 && network->level[edge->to] < 0) {
                network->level[edge->to] = network->level[u] + 1;
                queue[tail++] = edge->to;
            }
        }
    }
    return network->level[network->t] >= 0;
}

static int64_t push_flow(FlowNetwork *network, int u, int64_t limit)
{
    if (u == network->t)
        return limit;
    for (; network->at[u] < (int)vec_len(network->adj[u]); network->at[u]++) {
        Edge *edge = &network->adj[u][network->at[u]];
        if (edge->cap <= 0 || network->level[edge->to] != network->level[u] + 1)
            continue;
        int64_t got =
            push_flow(network, edge->to, limit < edge->cap ? limit : edge->cap);
        if (got > 0) {
            edge->cap -= got;
            network->adj[edge->to][edge->rev].cap += got;
            return got;
        }
    }
    return 0;
}

/* Finds the minimum cut nearest the sink, which recomputes least: vertices from
 * which the sink can still be reached get level 1, others 0. */
static void sink_side(FlowNetwork *network, int *queue)
{
    int head = 0, tail = 0;

    memset(network->level, 0, (size_t)network->nv * sizeof *network->level);
    network->level[network->t] = 1;
    queue[tail++] = network->t;
    while (head < tail) {
        int v = queue[head++];
        for (size_t i = 0; i < vec_len(network->adj[v]); i++) {
            Edge *edge = &network->adj[v][i];
            if (network->adj[edge->to][edge->rev].cap > 0 &&
                !network->level[edge->to]) {
                network->level[edge->to] = 1;
                queue[tail++] = edge->to;
            }
        }
    }
}

/* Dinic 1970. */
static double max_flow(FlowNetwork *network)
{
    int *queue = alloc(network->arena, (size_t)network->nv * sizeof *queue);
    double sum = 0;
    int64_t got;

    while (bfs(network, queue)) {
        memset(network->at, 0, (size_t)network->nv * sizeof *network->at);
        while ((got = push_flow(network, network->s, INF)))
            sum += (double)got;
    }
    sink_side(network, queue);
    return sum;
}

/* ---- classification ------------------------------------------------------ */

/* LIES: the forward has it in memory for other readers too. LATE: it waits for
 * the backward; the gradient of a sliced head does not. UNREAD: a forward
 * product reads its quantized form. */
enum {
    BACK = 1,
    STORED = 2,
    NEEDED = 4,
    REBUILT = 8,
    LIES = 16,
    DROPPED = 32,
    LATE = 64,
    UNREAD = 128
};

/* Can n be recomputed? In a fallback, which has no more memory than its step
 * and gathers all tokens, gathers can too. */
static int rebuildable(const Graph *g, const Node *n)
{
    OpClass c = optab[n->op].cls;

    if (n->reg != REGbody || n->op == Oscatter_add || n->op == Oamax ||
        n->scope->marks & MARKkeep)
        return 0;
    if (n->op == Opart || n->op == Oattn)
        return (n->op == Oattn ? n : n->in[0])->mark & DROPPED;
    return c == VIEW || c == EIN ||
           (n->op == Oallgather && g->prog == PGfallback) ||
           ((c == EW || c == MOVE) && pass_target(g)->loops(g, n));
}

/* ---- readers ------------------------------------------------------------- */

/* Is n in a forward slice of a head (logits_chunks.c)? */
static int is_of_slice(const Node *n)
{
    for (int k = 0; k < n->nin; k++)
        if (owner_of_bytes(n->in[k])->piece)
            return 1;
    return n->piece != 0;
}

static void mark_uses(const Graph *g, Node *n)
{
    int loop = pass_target(g)->loops(g, n) && n->op != Oscatter_add;
    int late = is_of_slice(n) ? 0 : LATE;

    for (int k = 0; k < n->nin; k++) {
        Node *x = owner_of_bytes(n->in[k]);
        if (always_there(x) || (x->mark & BACK))
            continue;
        x->mark |= late | (loop ? NEEDED : NEEDED | STORED);
        n->in[k]->mark |= late | NEEDED;
    }
}

static void lie_operands(Node *n)
{
    for (int k = 0; k < n->nin; k++)
        owner_of_bytes(n->in[k])->mark |= LIES;
}

/* Marks x, of which a kernel reads the quantized form, and its operands down to
 * that. */
static void mark_unread(Node *x)
{
    for (; x->op != Odequantize; x = x->in[0])
        x->mark |= UNREAD;
    x->mark |= UNREAD;
    lie_operands(x);
}

static void mark_lies(const Graph *g, Node *n)
{
    ScaledOperands of;

    if (optab[n->op].cls == VIEW || pass_target(g)->loops(g, n))
        return;
    n->mark |= LIES;
    if (!multiplies_numbers(g, n, &of)) {
        lie_operands(n);
        return;
    }
    for (int k = 0; k < 2; k++)
        mark_unread(n->in[k]);
}

/* ---- marks of the model -------------------------------------------------- */

/* Modules whose output is not kept either. */
static const unsigned whole =
    1u << MODULElayernorm | 1u << MODULEmoe_act | 1u << MODULEmla_up_proj;

static unsigned modules_of(const Node *n)
{
    unsigned full = n->scope->unit ? 1u << MODULEfull : 0;

    return (n->scope->marks & ~(unsigned)MARKSONE) | full;
}

/* Returns the modules of train.recompute; a fallback has its own. */
static unsigned modules_asked(const Graph *g)
{
    return g->opts && g->prog != PGfallback
               ? opts_words(g->opts, "train.recompute")
               : 0;
}

/* Returns [id]: modules whose output it is, read by a forward node outside. */
static unsigned *modules_left(const Graph *g, char *read, Arena *a)
{
    unsigned *left = alloc(a, (vec_len(g->node) + 1) * sizeof *left);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *node = g->node[i];
        for (int k = 0; k < node->nin && !(node->mark & BACK); k++) {
            const Node *x = node->in[k], *end = owner_of_bytes(node->in[k]);
            unsigned shared = modules_of(node);
            if (x->scope->unit != node->scope->unit)
                shared &= ~(1u << MODULEfull);
            for (;; x = x->in[0]) {
                left[x->id] |= ~shared;
                read[x->id] = 1;
                if (x == end)
                    break;
            }
        }
    }
    return left;
}

/* Drops the results of a kernel together. */
static void drop_parts(const Graph *g)
{
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < vec_len(g->node); i++) {
            Node *n = g->node[i];
            if (n->op != Opart || n->in[0]->op != Oattn || n->mark & BACK)
                continue;
            if (turn)
                n->mark |= n->in[0]->mark & DROPPED;
            else
                n->in[0]->mark |= n->mark & DROPPED;
        }
}

static void mark_dropped(const Graph *g)
{
    unsigned asked = modules_asked(g);
    Arena *a = arena_new();
    char *read = alloc(a, vec_len(g->node) + 1);
    const unsigned *left = modules_left(g, read, a);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        unsigned in = modules_of(n) & asked & (whole | ~left[i]);
        int one = (n->scope->marks & MARKagain) != 0;
        if (!(n->mark & BACK) && n->op != Oattn && read[i] && (one || in))
            n->mark |= DROPPED;
    }
    drop_parts(g);
    arena_free(a);
}

static void mark_all(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = runs_backward(g->node[i]) ? BACK : 0;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (!(g->node[i]->mark & BACK))
            mark_lies(g, g->node[i]);
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->mark & BACK && optab[g->node[i]->op].cls != VIEW)
            mark_uses(g, g->node[i]);
    mark_dropped(g);
}

/* ---- costs --------------------------------------------------------------- */

/* Is a recomputed value read only by loop kernels, which compute it at no
 * cost? */
static int is_made_inside(const Graph *g, const Node *n)
{
    OpClass c = optab[n->op].cls;

    return rebuildable(g, n) && c != EIN && c != COMM && !(n->mark & STORED);
}

/* Returns [id]: bytes of values for the backward that the forward makes after
 * its last read of the node, plus the largest of a head's slice in between; INF
 * if other micro-batches run in between. */
static int64_t *kept_after(const Graph *g, const int *alive, Arena *a)
{
    size_t n = vec_len(g->node);
    int64_t *after = alloc(a, (n + 1) * sizeof *after), sum = 0, slice = 0;
    char *read = alloc(a, n + 1);

    for (size_t i = n; i-- > 0;) {
        const Node *x = g->node[i];
        int64_t bytes = local_bytes(g, x);
        if (x->piece && bytes > slice)
            slice = bytes;
        if (always_there(x) || x->mark & BACK)
            continue;
        for (int k = 0; k < x->nin; k++) {
            int id = owner_of_bytes(x->in[k])->id;
            if (!read[id])
                after[id] = alive[x->call] > 1 ? INF
                            : is_of_slice(x)   ? sum
                                               : sum + slice;
            read[id] = 1;
        }
        if (x->mark & NEEDED && !is_made_inside(g, x))
            sum += bytes;
    }
    return after;
}

/* Does the forward store it only for the backward, from operands that the
 * backward would read? */
static int is_stored_once(const Node *n)
{
    return (n->mark & (UNREAD | LIES)) == UNREAD;
}

/* Returns the cost of recomputing. A value stored again soon after the forward
 * has dropped it saves nothing, nor do values read in slices of a head (logits,
 * and rows that make them): recomputing these would keep gradients of all
 * slices waiting. */
static int64_t rebuild_cost(const Graph *g, const Node *n, double price,
                            int64_t after)
{
    if (is_made_inside(g, n) || n->mark & DROPPED || is_stored_once(n))
        return 0;
    if ((n->mark & (NEEDED | LATE)) == NEEDED)
        return INF;
    if (after < local_bytes(g, n))
        return INF;
    int64_t cost = (int64_t)fmin(price * seconds_of(g, n), (double)INF);
    return cost < INF ? cost : INF;
}

/* Returns the cost of keeping; among equal costs, values in memory anyway are
 * kept. */
static int64_t keep_cost(const Graph *g, const Node *n, int alive)
{
    int64_t bytes = local_bytes(g, n) * alive;

    if (n->mark & DROPPED && rebuildable(g, n))
        return INF;
    return n->mark & LIES ? bytes : bytes + bytes / STORING;
}

static void build(FlowNetwork *network, Graph *g)
{
    const int *alive = micros_alive(g);
    const int64_t *after = kept_after(g, alive, network->arena);
    if (share_gathers(g, after))
        mark_all(g);
    double p = bytes_a_second(g, NULL);

    if (p < HUGE_VAL)
        why(g, NULL, "what is stored again saves at least %.3g MiB for each ms",
            p / (1 << 20) / 1e3);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        int in = 2 * (int)i, out = in + 1;
        if (always_there(n) || n->mark & BACK)
            continue;
        edge(network, in, out, keep_cost(g, n, alive[n->call]));
        if (n->mark & NEEDED)
            edge(network, out, network->t, INF);
        p = bytes_a_second(g, n->scope->unit);
        edge(network, network->s, in,
             rebuildable(g, n) ? rebuild_cost(g, n, p, after[i]) : INF);
        for (int k = 0; k < n->nin && rebuildable(g, n); k++)
            if (!always_there(n->in[k]) && !n->in[k]->tmp)
                edge(network, 2 * n->in[k]->id + 1, in, INF);
    }
}

static void say(const Graph *g, const Node *n, int kept)
{
    double mib = (double)local_bytes(g, n) / (1 << 20);
    double ms = seconds_of(g, n) * 1e3;

    if (optab[n->op].cls == VIEW && n->op != Opart)
        return;
    if (kept && rebuildable(g, n) && !is_made_inside(g, n))
        why(g, n, "kept, %.3g MiB: to rebuild it takes %.3g ms", mib, ms);
    else if (kept)
        why(g, n, "kept, %.3g MiB", mib);
    else if (n->mark & REBUILT && !is_made_inside(g, n))
        why(g, n, "rebuilt in %.3g ms, %.3g MiB not kept%s", ms, mib,
            is_stored_once(n) ? ": no kernel of the forward reads it" : "");
    else if (n->mark & REBUILT && n->mark & NEEDED)
        why(g, n, "rebuilt by its readers, %.3g MiB not kept", mib);
}

/* Marks values beyond the cut as recomputed; values on it are kept. */
static void mark_rebuilt(const FlowNetwork *network, Graph *g, double cost)
{
    const int *alive = micros_alive(g);
    Rebuilding *sum = &g->rebuilding;

    *sum = (Rebuilding){ .cost = cost };
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->mark & BACK || always_there(n))
            continue;
        int kept = network->level[2 * i + 1] && !network->level[2 * i];
        if (network->level[2 * i] && rebuildable(g, n))
            n->mark |= REBUILT;
        if (kept)
            sum->kept += (double)keep_cost(g, n, alive[n->call]);
        else if (n->mark & REBUILT && !(n->mark & DROPPED) &&
                 !is_made_inside(g, n) && !is_stored_once(n))
            sum->secs += seconds_of(g, n);
        say(g, n, kept);
    }
}

/* Explains each module of train.recompute (-d why). */
static void say_modules(const Graph *g)
{
    unsigned asked = modules_asked(g);

    for (int m = 0; m <= MODULEfull; m++) {
        double bytes = 0, secs = 0;
        int count = 0;
        for (size_t i = 0; i < vec_len(g->node); i++) {
            const Node *n = g->node[i];
            if (n->mark & BACK || !(n->mark & REBUILT) ||
                !(n->mark & DROPPED) || !(modules_of(n) >> m & 1))
                continue;
            count += optab[n->op].cls != VIEW;
            bytes += n->mark & NEEDED ? (double)local_bytes(g, n) : 0;
            secs += is_made_inside(g, n) ? 0 : seconds_of(g, n);
        }
        if (asked >> m & 1)
            why(g, NULL,
                "%s: %d values are made again in %.3g ms of a micro-batch, "
                "%.4g MiB that the backward reads are not kept",
                key_word_text("train.recompute", m), count, 1e3 * secs,
                bytes / (1 << 20));
    }
}

static void choose(Graph *g)
{
    FlowNetwork f = { .arena = arena_new(),
                      .nv = 2 * (int)vec_len(g->node) + 2 };

    f.s = f.nv - 2;
    f.t = f.nv - 1;
    f.adj = alloc(f.arena, (size_t)f.nv * sizeof *f.adj);
    f.level = alloc(f.arena, (size_t)f.nv * sizeof *f.level);
    f.at = alloc(f.arena, (size_t)f.nv * sizeof *f.at);
    build(&f, g);
    double cost = max_flow(&f);
    mark_rebuilt(&f, g, cost);
    say_modules(g);
    arena_free(f.arena);
}

/* ---- copies -------------------------------------------------------------- */

/* Returns the copy of a recomputed value in the call of its user, or a kept
 * value itself. Calls are consecutive. */
static Node *again(Graph *g, Node *n, const Node *user)
{
    Node *in[MAXIN], *c = n->tmp;

    if (!(n->mark & REBUILT))
        return c && !(n->mark & BACK) && c->call == user->call ? c : n;
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
    round_again(g);
    mark_all(g);
    find_twins(g);
    choose(g);
    old = g->node;
    count = vec_len(old);
    for (size_t i = 0; i < count; i++)
        if (old[i]->mark & REBUILT)
            old[i]->tmp = NULL;
    g->node = NULL;
    for (size_t i = 0; i < count; i++) {
        Node *n = old[i];
        for (int k = 0; k < n->nin && n->mark & BACK; k++)
            n->in[k] = again(g, n->in[k], n);
        vec_push(g->arena, g->node, n);
    }
    g_sort(g);
    g_tidy(g);
}
