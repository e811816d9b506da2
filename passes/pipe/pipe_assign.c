/* pipe_assign.c: assigns nodes to chunks. Every node of the body gets a chunk
 * and a work: F, or B, or with a schedule that splits the backward I (input
 * gradients, for which earlier chunks wait) and W (the rest; in a fallback I
 * has all).
 *
 *     forward    the chunk of its unit, or a later one of an operand; a node in
 *                no unit is in E, or in L if it needs the last unit (in that
 *                unit's chunk if an mtp unit reads it: the last norm)
 *     backward   reversed: the chunk of its unit or an earlier one of a term
 *                that it reads; in no unit: L, or E if it needs the gradient of
 *                the first unit
 *     free       nodes that depend only on inputs, or on parameters (masks,
 *                casts, gathered weights), are computed by each call that reads
 *                them
 *     gathered   a value that only one other chunk reads is gathered there: its
 *                shard is sent
 *
 * A gradient with terms of several chunks is accumulated by each of them and
 * summed in post:
 *
 *     %a = add %x %y       x: B of 0, y: B of 3      %g  = accum %x
 *     %g = accum %a                            =>    %g2 = accum %y
 *     .. %g ..                                       %s  = add %g %g2     post
 *                                                    .. %s .. */
#include <limits.h>

#include "pipe.h"

enum { DATA = 1, WEIGHT = 2, NOBODY = INT_MAX };

typedef struct Assign {
    Pipe *pipe;
    Graph *graph;
    const Stages *st;
    char *needs; /* [id], as the next fields: DATA WEIGHT */
    char *back;  /* 1: of the backward; 2: reads no gradient */
    char *ends;  /* needs the last unit, or (backward) the
                                     gradient of the first */
    char *feeds; /* a unit's forward needs it */
    Table *home; /* scope of such nodes -> 1 + chunk */
    int last;    /* the last unit that is not mtp */
} Assign;

static int is_sink(const Node *n)
{
    return optab[n->op].cls == SINK;
}

/* Is n computed by each call that reads it? */
static int is_free(const Assign *assign, const Node *n)
{
    return optab[n->op].cls == SRC || n->reg != REGbody ||
           (!is_sink(n) && assign->needs[n->id] != (DATA | WEIGHT));
}

static void find_needs(Assign *assign)
{
    for (size_t i = 0; i < vec_len(assign->graph->node); i++) {
        const Node *n = assign->graph->node[i];
        char x = n->op == Oinput ? DATA : is_lasting(n) ? WEIGHT : 0;
        for (int k = 0; k < n->nin; k++)
            x |= assign->needs[n->in[k]->id];
        if (n->map)
            x |= assign->needs[n->map->id];
        assign->needs[i] = n->op == Oaccum && n->reg == REGden ? 0 : x;
    }
}

static int is_between(const Stages *st, const Scope *scope)
{
    for (size_t i = 0; i < vec_len(st->between); i++)
        if (in_scope(scope, st->between[i]))
            return 1;
    return 0;
}

static void find_feeds(Assign *assign)
{
    for (size_t i = vec_len(assign->graph->node); i-- > 0;) {
        const Node *n = assign->graph->node[i];
        if (n->reg != REGbody || is_backward(n))
            continue;
        assign->feeds[n->id] |= unit_at(assign->st, n->scope) >= 0 ||
                                is_between(assign->st, n->scope);
        for (int k = 0; k < n->nin && assign->feeds[n->id]; k++)
            assign->feeds[n->in[k]->id] = 1;
    }
}

/* ---- forward ------------------------------------------------------------- */

static int max(int x, int y)
{
    return x > y ? x : y;
}
static int min(int x, int y)
{
    return x < y ? x : y;
}

/* Places the backward of this scope in its forward's chunk. */
static int live_at(Assign *assign, const Scope *scope, int chunk)
{
    if (scope->base != assign->graph->top)
        *table_at(assign->home, KEYP(scope->base)) =
            (void *)(uintptr_t)(chunk + 1);
    return chunk;
}

static void forward(Assign *assign, const Node *n, Assignment *assignment)
{
    int unit = unit_at(assign->st, n->scope), at = -1;

    assign->ends[n->id] = unit >= 0 && unit == assign->last;
    for (int k = 0; k <= n->nin; k++) {
        const Node *x = read_by(n, k);
        if (!x || is_free(assign, x))
            continue;
        at = max(at, assign->pipe->spot[x->id].chunk);
        assign->ends[n->id] |= assign->ends[x->id];
    }
    if (is_sink(n) && at >= 0)
        assignment->chunk = at;
    else if (unit >= 0)
        assignment->chunk = max(at, assign->st->chunk[unit]);
    else if (assign->feeds[n->id] && at >= 0)
        assignment->chunk = live_at(assign, n->scope, at);
    else
        assignment->chunk =
            max(at, assign->ends[n->id] || is_sink(n) ? assign->st->last
                                                      : assign->st->first);
}

/* ---- backward ------------------------------------------------------------ */

/* Is n between a gradient and its accumulator? Such nodes stay in the
 * gradient's chunk, not in their unit's. */
static int is_gradient_sum(const Node *n)
{
    return n->scope->part == PARTgrad;
}

/* Assigns a backward node; without a gradient of a unit it gets the chunk of
 * its forward, and later that of its first reader (settle). */
static void backward_of(Assign *assign, const Node *n, Assignment *assignment)
{
    int unit = unit_at(assign->st, n->scope), at = NOBODY, fwd = -1, reads = 0;

    assign->ends[n->id] = unit == 0;
    for (int k = 0; k <= n->nin; k++) {
        const Node *x = read_by(n, k);
        if (!x || is_free(assign, x))
            continue;
        int chunk = assign->pipe->spot[x->id].chunk;
        reads |= assign->back[x->id];
        if (assign->back[x->id] == 1) {
            at = min(at, chunk);
            assign->ends[n->id] |= assign->ends[x->id];
        } else {
            fwd = max(fwd, chunk);
        }
    }
    assign->back[n->id] = at == NOBODY && (unit < 0 || !reads) ? 2 : 1;
    int home = is_backward(n) ? (int)(uintptr_t)table_get(
                                    assign->home, KEYP(n->scope->twin->base))
                              : 0;
    if (unit >= 0)
        assignment->chunk = min(at, assign->st->chunk[unit]);
    else if (home)
        assignment->chunk = min(at, home - 1);
    else if (at == NOBODY)
        assignment->chunk = fwd >= 0 ? fwd : assign->st->last;
    else
        assignment->chunk = assign->ends[n->id] && !is_gradient_sum(n)
                                ? min(at, assign->st->first)
                                : at;
}

/* Calls f for each backward node that backward node i reads, from the last node
 * to the first. */
static void for_each_backward_read(Assign *assign,
                                   void (*f)(Assign *assign, int read, int by))
{
    for (int i = (int)vec_len(assign->graph->node); i-- > 0;) {
        const Node *n = assign->graph->node[i];
        if (!assign->back[i] || is_free(assign, n))
            continue;
        for (int k = 0; k <= n->nin; k++) {
            const Node *x = read_by(n, k);
            if (x && assign->back[x->id] && !is_free(assign, x))
                f(assign, x->id, i);
        }
    }
}

/* Moves backward nodes that read no gradient to the chunk of their reader. */
static void settle(Assign *assign, int read, int by)
{
    Assignment *assignment = &assign->pipe->spot[read];

    if (assign->back[read] == 2)
        assignment->chunk =
            max(assignment->chunk, assign->pipe->spot[by].chunk);
}

/* Returns [id]: the only chunk that reads the node, -1: none, -2: several. */
static int *only_readers(const Assign *assign)
{
    int *only = alloc(assign->pipe->arena,
                      (vec_len(assign->graph->node) + 1) * sizeof *only);

    for (size_t i = 0; i < vec_len(assign->graph->node); i++)
        only[i] = -1;
    return only;
}

/* Moves a gather, or a part of one, that only one other chunk of the same
 * direction reads to that chunk; values that F keeps for a later B stay. */
static void gather_at_reader(Assign *assign)
{
    Assignment *spot = assign->pipe->spot;
    int *only = only_readers(assign);
    char *fwd = alloc(assign->pipe->arena, vec_len(assign->graph->node) + 1);

    for (size_t i = vec_len(assign->graph->node); i-- > 0;) {
        const Node *n = assign->graph->node[i];
        if (is_free(assign, n))
            continue;
        if ((n->op == Oallgather || n->op == Oshard_slice) && only[i] >= 0 &&
            (assign->back[i] || fwd[i]))
            spot[i].chunk = only[i];
        for (int k = 0; k <= n->nin; k++) {
            const Node *x = read_by(n, k);
            if (!x)
                continue;
            only[x->id] = only[x->id] == -1 || only[x->id] == spot[i].chunk
                              ? spot[i].chunk
                              : -2;
            fwd[x->id] |= !assign->back[i];
        }
    }
}

/* Marks nodes that an earlier chunk needs as I. */
static void split_backward(Assign *assign, int read, int by)
{
    Assignment *x = &assign->pipe->spot[read], *y = &assign->pipe->spot[by];

    if (x->chunk > y->chunk || y->work == WI)
        x->work = WI;
}

/* ---- all nodes ----------------------------------------------------------- */

/* Does n have the chunk of its operand: a part of several results, or a
 * sink? */
static int follows(const Assign *assign, const Node *n)
{
    return n->nin && !is_free(assign, n->in[0]) &&
           (n->op == Opart || is_sink(n));
}

static void follow(Assign *assign)
{
    for (size_t i = 0; i < vec_len(assign->graph->node); i++) {
        const Node *n = assign->graph->node[i];
        if (n->reg != REGbody || !follows(assign, n) || is_free(assign, n))
            continue;
        Assignment *s = &assign->pipe->spot[i],
                   *of = &assign->pipe->spot[n->in[0]->id];
        s->chunk = of->chunk;
        if (n->op == Opart || of->work == WF ||
            assign->pipe->spot[i].work == WF)
            s->work = of->work;
    }
}

/* Returns the work of backward nodes for which no earlier chunk waits. A
 * fallback runs them in I too, so that recomputed values need not be kept until
 * W. */
static WorkKind last_work(const Pipe *pipe)
{
    return !pipe->splits ? WB : pipe->graph->prog == PGfallback ? WI : WW;
}

static void place(Assign *assign, Node *n)
{
    Assignment *assignment = &assign->pipe->spot[n->id];

    assignment->chunk = -1;
    if (is_free(assign, n))
        return;
    assign->back[n->id] = (char)is_backward(n);
    for (int k = 0; k < n->nin; k++)
        assign->back[n->id] |= assign->back[n->in[k]->id] != 0;
    if (n->op == Opart)
        assign->back[n->id] = assign->back[n->in[0]->id];
    assignment->work = assign->back[n->id] ? last_work(assign->pipe) : WF;
    if (assign->back[n->id])
        backward_of(assign, n, assignment);
    else
        forward(assign, n, assignment);
}

/* Assigns chunks and works, and finds transfers. */
static void assign(Pipe *pipe)
{
    Graph *g = pipe->graph;
    size_t n = vec_len(g->node) + 1;
    Assign a = { .pipe = pipe, .graph = g, .st = g->stages };

    g_renumber(g);
    pipe->spot = alloc(pipe->arena, n * sizeof *pipe->spot);
    a.needs = alloc(pipe->arena, n);
    a.back = alloc(pipe->arena, n);
    a.ends = alloc(pipe->arena, n);
    a.last = a.st->nunit - 1;
    while (a.last > 0 && a.st->unit[a.last]->kind == UNITmtp)
        a.last--;
    a.feeds = alloc(pipe->arena, n);
    a.home = table_new(pipe->arena);
    find_needs(&a);
    find_feeds(&a);
    for (size_t i = 0; i < vec_len(g->node); i++)
        place(&a, g->node[i]);
    for_each_backward_read(&a, settle);
    gather_at_reader(&a);
    follow(&a);
    if (pipe->splits)
        for_each_backward_read(&a, split_backward);
    follow(&a);
    pipe_needs(pipe);
}

/* ---- sums over chunks ---------------------------------------------------- */

typedef struct Terms {
    Node **term;
} Terms;

static void add_terms(Pipe *pipe, Node *n, const int *uses, Terms *terms,
                      int top)
{
    if (n->op != Oadd || (!top && uses[n->id] > 1) ||
        pipe->spot[n->id].chunk < 0 || !same_dims(n->in[0], n->in[1])) {
        vec_push(pipe->arena, terms->term, n);
        return;
    }
    add_terms(pipe, n->in[0], uses, terms, 0);
    add_terms(pipe, n->in[1], uses, terms, 0);
}

/* Returns the sum of the terms in a chunk; null: none. */
static Node *sum_in(Pipe *pipe, const Terms *terms, const Node *like, int chunk)
{
    Node *sum = NULL;

    for (size_t i = 0; i < vec_len(terms->term); i++) {
        Node *x = terms->term[i];
        if (pipe->spot[x->id].chunk != chunk)
            continue;
        if (!sum) {
            sum = x;
            continue;
        }
        Node *in[2] = { sum, x };
        sum = g_copyof(pipe->graph, like, in);
    }
    return sum;
}

/* Returns acc plus the accumulators of chunks other than `own`; null: there are
 * no others. */
static Node *split_accum(Pipe *pipe, Node *acc, const Terms *terms, int own)
{
    Node *add = acc->in[0], *all = NULL;

    for (int c = 0; c < pipe->chunks; c++) {
        Node *x = c == own ? NULL : sum_in(pipe, terms, add, c);
        if (!x)
            continue;
        Node *more = g_copyof(pipe->graph, acc, &x);
        Node *in[2] = { all ? all : acc, more };
        more->of = NULL; /* a part of the gradient */
        all = g_copyof(pipe->graph, add, in);
        all->reg = REGpost;
        all->dt = acc->dt;
        all->scope = acc->scope;
        all->sh = acc->sh;
        memcpy(all->dim, acc->dim, sizeof all->dim);
    }
    if (all)
        acc->in[0] = sum_in(pipe, terms, add, own);
    return all;
}

/* Returns the chunk of the first term on the stage that owns acc's parameter,
 * or else of the first term; -2: a term is in no chunk. */
static int own_chunk(const Pipe *pipe, const Table *held, const Node *acc,
                     const Terms *terms)
{
    int owner = acc->of ? pipe_owner(held, acc->of) : -1, own = -1;

    for (size_t i = 0; i < vec_len(terms->term); i++) {
        int c = pipe->spot[terms->term[i]->id].chunk;
        if (c < 0)
            return -2;
        if (own < 0 || (pipe->schedule->rank[c] == owner &&
                        pipe->schedule->rank[own] != owner))
            own = c;
    }
    return own;
}

/* Replaces the accumulator by `all` in post. */
static void read_instead(Graph *g, Node *const *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            int id = g->node[i]->in[k]->id;
            if (g->node[i]->reg == REGpost && all[id])
                g->node[i]->in[k] = all[id];
        }
}

/* Moves new nodes of the body, which are at the end, before post; the sums
 * follow there. */
static void reorder(Graph *g, size_t count)
{
    Node **old = g->node;

    g->node = NULL;
    for (int post = 0; post < 2; post++) {
        for (size_t i = count; i < vec_len(old) && post; i++)
            if (old[i]->reg == REGpost)
                vec_push(g->arena, g->node, old[i]);
        for (size_t i = 0; i < count; i++)
            if ((old[i]->reg == REGpost) == post)
                vec_push(g->arena, g->node, old[i]);
        for (size_t i = count; i < vec_len(old) && !post; i++)
            if (old[i]->reg != REGpost)
                vec_push(g->arena, g->node, old[i]);
    }
}

/* Splits all gradients with terms of several chunks. reorder puts new sums at
 * the end of the body, so their accumulators are moved after them. */
static int split_sums(Pipe *pipe, const Table *held)
{
    Graph *g = pipe->graph;
    size_t count = vec_len(g->node);
    int *uses = use_counts(g, pipe->arena), any = 0;
    Node **all = alloc(pipe->arena, (count + 1) * sizeof *all);

    for (size_t i = 0; i < count; i++) {
        Node *n = g->node[i];
        Terms t = { 0 };
        if (n->op != Oaccum || n->reg != REGbody || n->at.accum.op != Radd ||
            n->in[0]->op != Oadd)
            continue;
        add_terms(pipe, n->in[0], uses, &t, uses[n->in[0]->id] == 1);
        int own = own_chunk(pipe, held, n, &t);
        all[i] = own < 0 ? NULL : split_accum(pipe, n, &t, own);
        any |= all[i] != NULL;
    }
    if (!any)
        return 0;
    read_instead(g, all, count);
    reorder(g, count);
    return 1;
}

/* Appends n after its operands, otherwise in the present order. */
static void visit(Graph *g, Node *n)
{
    if (n->mark)
        return;
    n->mark = 1;
    for (int k = 0; k <= n->nin; k++)
        if (read_by(n, k))
            visit(g, read_by(n, k));
    vec_push(g->arena, g->node, n);
}

static void sort_nodes(Graph *g)
{
    Node **old = g->node;

    for (size_t i = 0; i < vec_len(old); i++)
        old[i]->mark = 0;
    g->node = NULL;
    for (size_t i = 0; i < vec_len(old); i++)
        visit(g, old[i]);
}

/* Returns the needs of one program's bodies. */
static Table *held_by(const Pipe *pipe)
{
    Pipe alone = *pipe;

    alone.held = table_new(pipe->arena);
    pipe_hold(&alone);
    return alone.held;
}

Table *pipe_alone(Graph *g)
{
    Pipe pipe = { .graph = g, .arena = g->arena };

    pipe.stages = (int)g->mesh->size[Mpp];
    pipe.chunks = g->stages->nchunk;
    pipe.schedule = pipe_schedule(g, &pipe.splits);
    assign(&pipe);
    return held_by(&pipe);
}

void pipe_assign(Pipe *pipe)
{
    assign(pipe);
    if (split_sums(pipe, held_by(pipe))) {
        sort_nodes(pipe->graph);
        g_tidy(pipe->graph);
        g_names(pipe->graph);
        assign(pipe);
    }
}

const Schedule *pipe_schedule(Graph *g, int *splits)
{
    int pp = (int)g->mesh->size[Mpp], micros = (int)micro_turns(g);
    Schedule *s = schedule_make(g->arena, opts_str(g->opts, "fold.schedule"),
                                pp, g->stages->nchunk / pp, micros,
                                opts_loc(g->opts, "fold.schedule"));

    *splits = schedule_splits(s);
    if (program_trains(g->prog))
        return s;
    return schedule_forward(g->arena, s, g->prog != PGforward ? micros : 1);
}
