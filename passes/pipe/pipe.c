/* pipe.c: one graph becomes a graph for each pipeline stage, which has only the
 * nodes that run there, in calls. What one stage makes and another reads is
 * sent:
 *
 *     %h = mul %x %w     F of 0       role 0  F0:        %h = mul %x %w
 *     %y = mul %h %v     F of 1  =>           send.F0.F1: %s = send %h peer=1
 *                                     role 1  recv.F0.F1: %r = recv peer=0
 *                                             F1:        %y = mul %r %v
 *
 * A value goes to a stage once, to the first call that reads it there. Calls of
 * one stage read each other's values where they lie. Which call runs when is
 * the table (schedule.c), for eval and forward without its backward. What
 * stands before the bodies is made by every stage that reads it. */
#include <limits.h>
#include <string.h>

#include "pipe.h"

/* ---- what crosses -------------------------------------------------------- */

static int edge_of(Pipe *pipe, const Assignment *from, const Assignment *to)
{
    StageTransfer e = { from->work, from->chunk, to->work, to->chunk };

    for (size_t i = 0; i < vec_len(pipe->edge); i++)
        if (pipe->edge[i].from == e.from && pipe->edge[i].a == e.a &&
            pipe->edge[i].to == e.to && pipe->edge[i].b == e.b)
            return (int)i;
    vec_push(pipe->arena, pipe->edge, e);
    return (int)vec_len(pipe->edge) - 1;
}

static void find_crossings(Pipe *pipe)
{
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++)
        for (int s = 0; s < pipe->stages && pipe->spot[i].chunk >= 0; s++) {
            int when = pipe->first[i * (size_t)pipe->stages + (size_t)s];
            if (when == INT_MAX)
                continue;
            Assignment to = pipe_moment(pipe, when);
            StageRead c = { pipe->graph->node[i], s,
                            edge_of(pipe, &pipe->spot[i], &to), -1 };
            if (c.node->op != Oroute)
                c.chan = pipe->chan++;
            vec_push(pipe->arena, pipe->cross, c);
        }
}

/* ---- parts --------------------------------------------------------------- */

/* n as call `call` (1 + its index) of stage s reads it. */
static Node *seen(Pipe *p, int s, int call, Node *n)
{
    StagePart *x = &p->part[s];
    Node *in[MAXIN], *map;

    if (n->op != Oconst && (n->reg != REGbody || any_region(n)))
        return pipe_shared(p, s, n);
    if (p->spot[n->id].chunk >= 0) {
        if (!x->at[n->id])
            die("pipe: %%%s is read on stage %d before it is there", n->name,
                s);
        return x->at[n->id];
    }
    uint64_t key =
        (uint64_t)n->id * (vec_len(x->graph->call) + 1) + (uint64_t)call;
    void **anew = table_at(x->anew, key);
    if (*anew)
        return *anew;
    for (int k = 0; k < n->nin; k++)
        in[k] = seen(p, s, call, n->in[k]);
    map = n->map ? seen(p, s, call, n->map) : NULL;
    Node *c = pipe_copy(p, s, &x->body, n, in);
    c->name = NULL;
    c->reg = REGbody;
    c->map = map;
    c->call = call;
    return *table_at(x->anew, key) = c;
}

/* n, or a copy of a route, in a call of stage s. */
static void put_in_call(Pipe *pipe, int s, int call, Node *n)
{
    StagePart *x = &pipe->part[s];
    Node **in = alloc(pipe->arena, ((size_t)n->nin + 1) * sizeof *in);

    for (int k = 0; k < n->nin; k++)
        in[k] = seen(pipe, s, call, n->in[k]);
    Node *map = n->map ? seen(pipe, s, call, n->map) : NULL;
    Node *c = pipe_copy(pipe, s, &x->body, n, in);
    c->map = map;
    c->call = call;
    x->at[n->id] = c;
}

static int same_call(const Call *a, const Call *b)
{
    return a->k == b->k && a->w == b->w && a->chunk == b->chunk &&
           a->to == b->to && a->other == b->other;
}

static int call_index(const Graph *g, Call want)
{
    for (size_t i = 0; i < vec_len(g->call); i++)
        if (same_call(&g->call[i], &want))
            return (int)i;
    die("pipe: stage %d has no %c%d", g->role, jobnames[want.w], want.chunk);
}

static Call work_call(WorkKind w, int chunk)
{
    return (Call){ .k = ROWwork, .w = w, .chunk = chunk };
}

static Call edge_call(RowKind k, const StageTransfer *e)
{
    return (Call){ k, e->from, e->a, e->to, e->b };
}

static int transfer_call(const Pipe *pipe, int s, RowKind k, int edge)
{
    return call_index(pipe->part[s].graph, edge_call(k, &pipe->edge[edge])) + 1;
}

static void put_recv(Pipe *pipe, const StageRead *x, int reader)
{
    int call = transfer_call(pipe, x->stage, ROWrecv, x->edge);
    StagePart *part = &pipe->part[x->stage];
    Node *map =
        x->node->map ? seen(pipe, x->stage, reader, x->node->map) : NULL;

    part->graph->node = part->body;
    Node *r = g_node(part->graph, Orecv, x->node->loc, 0, NULL);
    part->body = part->graph->node;
    part->graph->node = NULL;
    r->dt = x->node->dt;
    r->nd = x->node->nd;
    memcpy(r->dim, x->node->dim, sizeof r->dim);
    memcpy(r->sh, x->node->sh, sizeof r->sh);
    r->map = map;
    r->scope = x->node->scope;
    r->again = x->node->again;
    r->at.recv.peer = pipe_stage_at(pipe, x->node);
    r->at.recv.chan = x->chan;
    r->call = call;
    part->at[x->node->id] = r;
}

static void put_send(Pipe *pipe, const StageRead *x)
{
    int s = pipe_stage_at(pipe, x->node);
    int call = transfer_call(pipe, s, ROWsend, x->edge);
    StagePart *part = &pipe->part[s];
    Node *v = part->at[x->node->id];

    part->graph->node = part->body;
    Node *r = g_node(part->graph, Osend, x->node->loc, 1, &v);
    part->body = part->graph->node;
    part->graph->node = NULL;
    r->scope = x->node->scope;
    r->at.send.peer = x->stage;
    r->at.send.chan = x->chan;
    r->call = call;
}

/* step, and step.fallback. */
/* ---- calls and the table ------------------------------------------------- */

static void add_call(Graph *g, Call c)
{
    vec_push(g->arena, g->call, c);
}

static void list_calls(Pipe *pipe, Graph *g)
{
    int train = program_trains(pipe->graph->prog);

    for (int c = 0; c < pipe->chunks; c++) {
        if (pipe->schedule->rank[c] != g->role)
            continue;
        add_call(g, work_call(WF, c));
        if (train && pipe->splits)
            add_call(g, work_call(WI, c));
        if (train)
            add_call(g, work_call(pipe->splits ? WW : WB, c));
    }
    for (size_t i = 0; i < vec_len(pipe->edge); i++) {
        const StageTransfer *e = &pipe->edge[i];
        if (pipe->schedule->rank[e->a] == g->role) {
            add_call(g, edge_call(ROWsend, e));
            add_call(g, edge_call(ROWwait, e));
        }
        if (pipe->schedule->rank[e->b] == g->role)
            add_call(g, edge_call(ROWrecv, e));
    }
}

static void list_turns(Pipe *pipe, Graph *g, const PipeRow *row)
{
    for (size_t i = 0; i < vec_len(row); i++) {
        const PipeRow *r = &row[i];
        int call = r->k == ROWwork
                       ? call_index(g, work_call(r->w, r->chunk))
                       : transfer_call(pipe, g->role, r->k, r->edge) - 1;
        vec_push(g->arena, g->slot,
                 ((ScheduleSlot){ call, r->micro, r->pair }));
    }
}

static void make_parts(Pipe *pipe)
{
    size_t count = vec_len(pipe->graph->node) + 1;

    pipe->part = alloc(pipe->arena, (size_t)pipe->stages * sizeof *pipe->part);
    for (int s = 0; s < pipe->stages; s++) {
        StagePart *x = &pipe->part[s];
        x->graph = g_like(pipe->graph);
        x->graph->role = s;
        x->graph->nrole = pipe->stages;
        x->at = alloc(pipe->arena, count * sizeof *x->at);
        x->all = alloc(pipe->arena, count * sizeof *x->all);
        x->anew = table_new(pipe->arena);
        list_calls(pipe, x->graph);
    }
    PipeRow **row = schedule_rows(pipe->arena, pipe->schedule, pipe->edge,
                                  (int)vec_len(pipe->edge));
    for (int s = 0; s < pipe->stages; s++)
        list_turns(pipe, pipe->part[s].graph, row[s]);
}

/* ---- bodies -------------------------------------------------------------- */

static int same_spot(const Assignment *a, const Assignment *b)
{
    return a->chunk == b->chunk && a->work == b->work;
}

/* All calls in the order of time: what comes in, the work, what goes out. */
static void fill_call(Pipe *pipe, Assignment at)
{
    int s = pipe->schedule->rank[at.chunk];
    int call =
        call_index(pipe->part[s].graph, work_call(at.work, at.chunk)) + 1;

    for (size_t i = 0; i < vec_len(pipe->cross); i++) {
        const StageRead *x = &pipe->cross[i];
        const StageTransfer *e = &pipe->edge[x->edge];
        if (e->b != at.chunk || e->to != at.work)
            continue;
        if (x->chan < 0)
            put_in_call(pipe, s, call, x->node);
        else
            put_recv(pipe, x, call);
    }
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++)
        if (same_spot(&pipe->spot[i], &at))
            put_in_call(pipe, s, call, pipe->graph->node[i]);
    for (size_t i = 0; i < vec_len(pipe->cross); i++)
        if (same_spot(&pipe->spot[pipe->cross[i].node->id], &at) &&
            pipe->cross[i].chan >= 0)
            put_send(pipe, &pipe->cross[i]);
}

static void fill_bodies(Pipe *pipe)
{
    int train = program_trains(pipe->graph->prog);

    for (int c = 0; c < pipe->chunks; c++)
        fill_call(pipe, (Assignment){ c, WF });
    for (int c = pipe->chunks; train && c-- > 0;) {
        fill_call(pipe, (Assignment){ c, pipe->splits ? WI : WB });
        if (pipe->splits)
            fill_call(pipe, (Assignment){ c, WW });
    }
}

/* ---- a stage's graph, done ----------------------------------------------- */

static void append(Graph *g, Node **v, Region reg)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i]->reg == reg)
            vec_push(g->arena, g->node, v[i]);
}

/* What stands ready goes to the first region that reads it. */
static void place_sources(const StagePart *x, Node *const *all)
{
    for (size_t i = 0; i < vec_len(x->source); i++)
        x->source[i]->reg = REGpost;
    for (size_t i = 0; i < vec_len(all); i++)
        for (int k = 0; k < all[i]->nin; k++) {
            Node *o = all[i]->in[k];
            if (any_region(o) && !o->call && all[i]->reg < o->reg)
                o->reg = all[i]->reg;
        }
}

static void join_parts(StagePart *x)
{
    Graph *g = x->graph;
    Node **all = NULL;

    for (size_t i = 0; i < vec_len(x->before); i++)
        vec_push(g->arena, all, x->before[i]);
    for (size_t i = 0; i < vec_len(x->body); i++)
        vec_push(g->arena, all, x->body[i]);
    for (size_t i = 0; i < vec_len(x->post); i++)
        vec_push(g->arena, all, x->post[i]);
    place_sources(x, all);
    for (Region r = REGden; r < NREGION; r++) {
        append(g, x->source, r);
        append(g,
               r == REGpost   ? x->post
               : r == REGbody ? x->body
                              : x->before,
               r);
    }
}

/* Where its value lies: a member of a bucket that ranks keep shards of has none
 * of its own. */
static const Holders *held_of(const Pipe *pipe, const Param *x)
{
    int packed = is_member(x, NULL) && g_param(pipe->graph, x->bucket);

    return pipe_held(pipe->held, packed ? x->bucket : x->path);
}

/* Those that the stage has in any program; the first has those that nobody
 * uses. */
static void keep_params(Pipe *pipe, Graph *g)
{
    Param **old = g->param;

    g->param = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        const Holders *h = held_of(pipe, old[i]);
        int owner = *h->owner < 0 ? 0 : *h->owner;
        if (g->role != owner && !h->has[g->role])
            continue;
        Param *x = alloc(g->arena, sizeof *x);
        *x = *old[i];
        x->copy = g->role != owner;
        vec_push(g->arena, g->param, x);
    }
}

/* ---- the pass ------------------------------------------------------------ */

static Pipe *place_bodies(Graph *g, Table *held)
{
    Pipe *pipe = alloc(g->arena, sizeof *pipe);

    *pipe = (Pipe){ .graph = g, .arena = g->arena, .held = held };
    pipe->stages = (int)g->mesh->size[Mpp];
    pipe->chunks = g->stages->nchunk;
    pipe->schedule = pipe_schedule(g, &pipe->splits);
    pipe_assign(pipe);
    pipe_hold(pipe);
    return pipe;
}

static void cut(Pipe *pipe)
{
    find_crossings(pipe);
    make_parts(pipe);
    fill_bodies(pipe);
    pipe_post(pipe);
    for (int s = 0; s < pipe->stages; s++) {
        Graph *g = pipe->part[s].graph;
        join_parts(&pipe->part[s]);
        g_tidy(g);
        keep_params(pipe, g);
        g->next = s + 1 < pipe->stages ? pipe->part[s + 1].graph : NULL;
    }
    *pipe->graph = *pipe->part[0].graph;
}

/* Before any is cut it is known what all need. */
void pipe_programs(Graph *const *g)
{
    size_t n = vec_len(g);

    if (!n || !g[0]->stages)
        return;
    Arena *a = g[0]->arena;
    Pipe **pipes = alloc(a, n * sizeof *pipes);
    Table *held = table_new(a);
    for (size_t i = 0; i < n; i++)
        pipes[i] = place_bodies(g[i], held);
    for (size_t i = 0; i < n; i++)
        cut(pipes[i]);
}

/* A program by itself. */
void pass_pipe(Graph *g)
{
    Graph **v = NULL;

    vec_push(g->arena, v, g);
    pipe_programs(v);
}
