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

static int edge_of(Pipe *p, const Assignment *from, const Assignment *to)
{
    StageTransfer e = { from->w, from->chunk, to->w, to->chunk };

    for (size_t i = 0; i < vec_len(p->edge); i++)
        if (p->edge[i].from == e.from && p->edge[i].a == e.a &&
            p->edge[i].to == e.to && p->edge[i].b == e.b)
            return (int)i;
    vec_push(p->a, p->edge, e);
    return (int)vec_len(p->edge) - 1;
}

static void find_crossings(Pipe *p)
{
    for (size_t i = 0; i < vec_len(p->g->node); i++)
        for (int s = 0; s < p->stages && p->spot[i].chunk >= 0; s++) {
            int when = p->first[i * (size_t)p->stages + (size_t)s];
            if (when == INT_MAX)
                continue;
            Assignment to = pipe_moment(p, when);
            StageRead c = { p->g->node[i], s, edge_of(p, &p->spot[i], &to),
                            -1 };
            if (c.n->op != Oroute)
                c.chan = p->chan++;
            vec_push(p->a, p->cross, c);
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
    uint64_t key = (uint64_t)n->id * (vec_len(x->g->call) + 1) + (uint64_t)call;
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
static void put_in_call(Pipe *p, int s, int call, Node *n)
{
    StagePart *x = &p->part[s];
    Node **in = alloc(p->a, ((size_t)n->nin + 1) * sizeof *in);

    for (int k = 0; k < n->nin; k++)
        in[k] = seen(p, s, call, n->in[k]);
    Node *map = n->map ? seen(p, s, call, n->map) : NULL;
    Node *c = pipe_copy(p, s, &x->body, n, in);
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

static int transfer_call(const Pipe *p, int s, RowKind k, int edge)
{
    return call_index(p->part[s].g, edge_call(k, &p->edge[edge])) + 1;
}

static void put_recv(Pipe *p, const StageRead *x, int reader)
{
    int call = transfer_call(p, x->stage, ROWrecv, x->edge);
    StagePart *part = &p->part[x->stage];
    Node *map = x->n->map ? seen(p, x->stage, reader, x->n->map) : NULL;

    part->g->node = part->body;
    Node *r = g_node(part->g, Orecv, x->n->loc, 0, NULL);
    part->body = part->g->node;
    part->g->node = NULL;
    r->dt = x->n->dt;
    r->nd = x->n->nd;
    memcpy(r->dim, x->n->dim, sizeof r->dim);
    memcpy(r->sh, x->n->sh, sizeof r->sh);
    r->map = map;
    r->scope = x->n->scope;
    r->again = x->n->again;
    r->at.recv.peer = pipe_stage_at(p, x->n);
    r->at.recv.chan = x->chan;
    r->call = call;
    part->at[x->n->id] = r;
}

static void put_send(Pipe *p, const StageRead *x)
{
    int s = pipe_stage_at(p, x->n);
    int call = transfer_call(p, s, ROWsend, x->edge);
    StagePart *part = &p->part[s];
    Node *v = part->at[x->n->id];

    part->g->node = part->body;
    Node *r = g_node(part->g, Osend, x->n->loc, 1, &v);
    part->body = part->g->node;
    part->g->node = NULL;
    r->scope = x->n->scope;
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

static void list_calls(Pipe *p, Graph *g)
{
    int train = program_trains(p->g->prog);

    for (int c = 0; c < p->chunks; c++) {
        if (p->s->rank[c] != g->role)
            continue;
        add_call(g, work_call(WF, c));
        if (train && p->splits)
            add_call(g, work_call(WI, c));
        if (train)
            add_call(g, work_call(p->splits ? WW : WB, c));
    }
    for (size_t i = 0; i < vec_len(p->edge); i++) {
        const StageTransfer *e = &p->edge[i];
        if (p->s->rank[e->a] == g->role) {
            add_call(g, edge_call(ROWsend, e));
            add_call(g, edge_call(ROWwait, e));
        }
        if (p->s->rank[e->b] == g->role)
            add_call(g, edge_call(ROWrecv, e));
    }
}

static void list_turns(Pipe *p, Graph *g, const PipeRow *row)
{
    for (size_t i = 0; i < vec_len(row); i++) {
        const PipeRow *r = &row[i];
        int call = r->k == ROWwork
                       ? call_index(g, work_call(r->w, r->chunk))
                       : transfer_call(p, g->role, r->k, r->edge) - 1;
        vec_push(g->arena, g->slot,
                 ((ScheduleSlot){ call, r->micro, r->pair }));
    }
}

static void make_parts(Pipe *p)
{
    size_t count = vec_len(p->g->node) + 1;

    p->part = alloc(p->a, (size_t)p->stages * sizeof *p->part);
    for (int s = 0; s < p->stages; s++) {
        StagePart *x = &p->part[s];
        x->g = g_like(p->g);
        x->g->role = s;
        x->g->nrole = p->stages;
        x->at = alloc(p->a, count * sizeof *x->at);
        x->all = alloc(p->a, count * sizeof *x->all);
        x->anew = table_new(p->a);
        list_calls(p, x->g);
    }
    PipeRow **row = schedule_rows(p->a, p->s, p->edge, (int)vec_len(p->edge));
    for (int s = 0; s < p->stages; s++)
        list_turns(p, p->part[s].g, row[s]);
}

/* ---- bodies -------------------------------------------------------------- */

static int same_spot(const Assignment *a, const Assignment *b)
{
    return a->chunk == b->chunk && a->w == b->w;
}

/* All calls in the order of time: what comes in, the work, what goes out. */
static void fill_call(Pipe *p, Assignment at)
{
    int s = p->s->rank[at.chunk];
    int call = call_index(p->part[s].g, work_call(at.w, at.chunk)) + 1;

    for (size_t i = 0; i < vec_len(p->cross); i++) {
        const StageRead *x = &p->cross[i];
        const StageTransfer *e = &p->edge[x->edge];
        if (e->b != at.chunk || e->to != at.w)
            continue;
        if (x->chan < 0)
            put_in_call(p, s, call, x->n);
        else
            put_recv(p, x, call);
    }
    for (size_t i = 0; i < vec_len(p->g->node); i++)
        if (same_spot(&p->spot[i], &at))
            put_in_call(p, s, call, p->g->node[i]);
    for (size_t i = 0; i < vec_len(p->cross); i++)
        if (same_spot(&p->spot[p->cross[i].n->id], &at) &&
            p->cross[i].chan >= 0)
            put_send(p, &p->cross[i]);
}

static void fill_bodies(Pipe *p)
{
    int train = program_trains(p->g->prog);

    for (int c = 0; c < p->chunks; c++)
        fill_call(p, (Assignment){ c, WF });
    for (int c = p->chunks; train && c-- > 0;) {
        fill_call(p, (Assignment){ c, p->splits ? WI : WB });
        if (p->splits)
            fill_call(p, (Assignment){ c, WW });
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
    Graph *g = x->g;
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
static const Holders *held_of(const Pipe *p, const Param *x)
{
    int member = x->kind == TKparam && x->bucket && x->at >= 0;

    return pipe_held(p->held,
                     member && g_param(p->g, x->bucket) ? x->bucket : x->path);
}

/* Those that the stage has in any program; the first has those that nobody
 * uses. */
static void keep_params(Pipe *p, Graph *g)
{
    Param **old = g->param;

    g->param = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        const Holders *h = held_of(p, old[i]);
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
    Pipe *p = alloc(g->arena, sizeof *p);

    *p = (Pipe){ .g = g, .a = g->arena, .held = held };
    p->stages = (int)g->mesh->size[Mpp];
    p->chunks = g->stages->nchunk;
    p->s = pipe_schedule(g, &p->splits);
    pipe_assign(p);
    pipe_hold(p);
    return p;
}

static void cut(Pipe *p)
{
    find_crossings(p);
    make_parts(p);
    fill_bodies(p);
    pipe_post(p);
    for (int s = 0; s < p->stages; s++) {
        Graph *g = p->part[s].g;
        join_parts(&p->part[s]);
        g_tidy(g);
        keep_params(p, g);
        g->next = s + 1 < p->stages ? p->part[s + 1].g : NULL;
    }
    *p->g = *p->part[0].g;
}

/* Before any is cut it is known what all need. */
void pipe_programs(Graph *const *g)
{
    size_t n = vec_len(g);

    if (!n || !g[0]->stages)
        return;
    Arena *a = g[0]->arena;
    Pipe **p = alloc(a, n * sizeof *p);
    Table *held = table_new(a);
    for (size_t i = 0; i < n; i++)
        p[i] = place_bodies(g[i], held);
    for (size_t i = 0; i < n; i++)
        cut(p[i]);
}

/* A program by itself. */
void pass_pipe(Graph *g)
{
    Graph **v = NULL;

    vec_push(g->arena, v, g);
    pipe_programs(v);
}
