/* pipe.c: splits a graph into one graph for each pipeline stage, which has the
 * nodes that run there, in calls. A value of one stage that another stage reads
 * is sent:
 *
 *     %h = mul %x %w     F of 0       role 0  F0:        %h = mul %x %w
 *     %y = mul %h %v     F of 1  =>           send.F0.F1: %s = send %h peer=1
 *                                     role 1  recv.F0.F1: %r = recv peer=0
 *                                             F1:        %y = mul %r %v
 *
 * A value is sent to a stage once, to the first call that reads it there. Calls
 * of one stage read each other's values directly. The schedule table
 * (schedule.c) orders the calls; eval and forward have no backward. Values made
 * before the bodies are computed by every stage that reads them. */
#include <limits.h>

#include "pipe.h"

/* ---- transfers ----------------------------------------------------------- */

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

/* Returns the node that call `call` (1 + index) of stage s reads for n. */
static Node *seen(Pipe *pipe, int s, int call, Node *n)
{
    StagePart *part = &pipe->part[s];
    Node *in[MAXIN], *map;

    if (n->op != Oconst && (n->reg != REGbody || any_region(n)))
        return pipe_shared(pipe, s, n);
    if (pipe->spot[n->id].chunk >= 0) {
        if (!part->at[n->id])
            die("pipe: %%%s is read on stage %d before it is there", n->name,
                s);
        return part->at[n->id];
    }
    Node *anew = table_get_pair(part->anew, KEYP(n), (uint64_t)call);
    if (anew)
        return anew;
    for (int k = 0; k < n->nin; k++)
        in[k] = seen(pipe, s, call, n->in[k]);
    map = n->map ? seen(pipe, s, call, n->map) : NULL;
    Node *c = pipe_copy(pipe, s, &part->body, n, in);
    c->name = NULL;
    c->reg = REGbody;
    c->map = map;
    c->call = call;
    return *table_at_pair(part->anew, KEYP(n), (uint64_t)call) = c;
}

/* Adds n, or a copy of a route, to a call of stage s. */
static void put_in_call(Pipe *pipe, int s, int call, Node *n)
{
    StagePart *part = &pipe->part[s];
    Node **in = alloc(pipe->arena, ((size_t)n->nin + 1) * sizeof *in);

    for (int k = 0; k < n->nin; k++)
        in[k] = seen(pipe, s, call, n->in[k]);
    Node *map = n->map ? seen(pipe, s, call, n->map) : NULL;
    Node *c = pipe_copy(pipe, s, &part->body, n, in);
    c->map = map;
    c->call = call;
    part->at[n->id] = c;
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

static Call edge_call(RowKind k, const StageTransfer *transfer)
{
    return (Call){ k, transfer->from, transfer->a, transfer->to, transfer->b };
}

static int transfer_call(const Pipe *pipe, int s, RowKind k, int edge)
{
    return call_index(pipe->part[s].graph, edge_call(k, &pipe->edge[edge])) + 1;
}

static void put_recv(Pipe *pipe, const StageRead *read, int reader)
{
    int call = transfer_call(pipe, read->stage, ROWrecv, read->edge);
    StagePart *part = &pipe->part[read->stage];
    Node *map = read->node->map
                    ? seen(pipe, read->stage, reader, read->node->map)
                    : NULL;

    part->graph->node = part->body;
    Node *r = g_node(part->graph, Orecv, read->node->loc, 0, NULL);
    part->body = part->graph->node;
    part->graph->node = NULL;
    r->dt = read->node->dt;
    r->nd = read->node->nd;
    memcpy(r->dim, read->node->dim, sizeof r->dim);
    r->sh = read->node->sh;
    r->map = map;
    r->scope = read->node->scope;
    r->again = read->node->again;
    r->at.recv.peer = pipe_stage_at(pipe, read->node);
    r->at.recv.chan = read->chan;
    r->call = call;
    part->at[read->node->id] = r;
}

static void put_send(Pipe *pipe, const StageRead *read)
{
    int s = pipe_stage_at(pipe, read->node);
    int call = transfer_call(pipe, s, ROWsend, read->edge);
    StagePart *part = &pipe->part[s];
    Node *v = part->at[read->node->id];

    part->graph->node = part->body;
    Node *r = g_node(part->graph, Osend, read->node->loc, 1, &v);
    part->body = part->graph->node;
    part->graph->node = NULL;
    r->scope = read->node->scope;
    r->at.send.peer = read->stage;
    r->at.send.chan = read->chan;
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
        const StageTransfer *transfer = &pipe->edge[i];
        if (pipe->schedule->rank[transfer->a] == g->role) {
            add_call(g, edge_call(ROWsend, transfer));
            add_call(g, edge_call(ROWwait, transfer));
        }
        if (pipe->schedule->rank[transfer->b] == g->role)
            add_call(g, edge_call(ROWrecv, transfer));
    }
}

static void list_turns(Pipe *pipe, Graph *g, const PipeRow *row)
{
    for (size_t i = 0; i < vec_len(row); i++) {
        const PipeRow *pipe_row = &row[i];
        int call =
            pipe_row->k == ROWwork
                ? call_index(g, work_call(pipe_row->w, pipe_row->chunk))
                : transfer_call(pipe, g->role, pipe_row->k, pipe_row->edge) - 1;
        vec_push(g->arena, g->slot,
                 ((ScheduleSlot){ call, pipe_row->micro, pipe_row->pair }));
    }
}

static void make_parts(Pipe *pipe)
{
    size_t count = vec_len(pipe->graph->node) + 1;

    pipe->part = alloc(pipe->arena, (size_t)pipe->stages * sizeof *pipe->part);
    for (int s = 0; s < pipe->stages; s++) {
        StagePart *part = &pipe->part[s];
        part->graph = g_like(pipe->graph);
        part->graph->role = s;
        part->graph->nrole = pipe->stages;
        part->at = alloc(pipe->arena, count * sizeof *part->at);
        part->all = alloc(pipe->arena, count * sizeof *part->all);
        part->anew = table_new(pipe->arena);
        list_calls(pipe, part->graph);
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

/* Fills a call: receives, work, sends. Calls are filled in order of time. */
static void fill_call(Pipe *pipe, Assignment at)
{
    int s = pipe->schedule->rank[at.chunk];
    int call =
        call_index(pipe->part[s].graph, work_call(at.work, at.chunk)) + 1;

    for (size_t i = 0; i < vec_len(pipe->cross); i++) {
        const StageRead *x = &pipe->cross[i];
        const StageTransfer *transfer = &pipe->edge[x->edge];
        if (transfer->b != at.chunk || transfer->to != at.work)
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

/* ---- completion of a stage's graph --------------------------------------- */

static void append(Graph *g, Node **v, Region reg)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i]->reg == reg)
            vec_push(g->arena, g->node, v[i]);
}

/* Places sources in the first region that reads them. */
static void place_sources(const StagePart *part, Node *const *all)
{
    for (size_t i = 0; i < vec_len(part->source); i++)
        part->source[i]->reg = REGpost;
    for (size_t i = 0; i < vec_len(all); i++)
        for (int k = 0; k < all[i]->nin; k++) {
            Node *o = all[i]->in[k];
            if (any_region(o) && !o->call && all[i]->reg < o->reg)
                o->reg = all[i]->reg;
        }
}

static void join_parts(StagePart *part)
{
    Graph *g = part->graph;
    Node **all = NULL;

    for (size_t i = 0; i < vec_len(part->before); i++)
        vec_push(g->arena, all, part->before[i]);
    for (size_t i = 0; i < vec_len(part->body); i++)
        vec_push(g->arena, all, part->body[i]);
    for (size_t i = 0; i < vec_len(part->post); i++)
        vec_push(g->arena, all, part->post[i]);
    place_sources(part, all);
    for (Region r = REGden; r < NREGION; r++) {
        append(g, part->source, r);
        append(g,
               r == REGpost   ? part->post
               : r == REGbody ? part->body
                              : part->before,
               r);
    }
}

/* Returns the stages that hold a parameter's value: that of its bucket for a
 * member whose bucket is sharded. */
static const Holders *held_of(const Pipe *pipe, const Param *param)
{
    int packed = is_member(param, NULL) && g_param(pipe->graph, param->bucket);

    return pipe_held(pipe->held, packed ? param->bucket : param->path);
}

/* Keeps the parameters that the stage has in any program; the first stage keeps
 * unused ones. */
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
    Arena *scratch = table_arena(held);
    Pipe *pipe = alloc(scratch, sizeof *pipe);

    *pipe = (Pipe){ .graph = g, .arena = scratch, .held = held };
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

/* The needs of all programs are found before any is split. */
void pipe_programs(Graph *const *g)
{
    size_t n = vec_len(g);

    if (!n || !g[0]->stages)
        return;
    Arena *scratch = arena_new();
    Pipe **pipes = alloc(scratch, n * sizeof *pipes);
    Table *held = table_new(scratch);
    for (size_t i = 0; i < n; i++)
        pipes[i] = place_bodies(g[i], held);
    for (size_t i = 0; i < n; i++)
        cut(pipes[i]);
    arena_free(scratch);
}

/* Splits a single program. */
void pass_pipe(Graph *g)
{
    Graph **v = NULL;

    vec_push(g->arena, v, g);
    pipe_programs(v);
}
