/* cuda_graph.c: programs run on a GPU. A program's first run launches its steps
 * one by one; then they are captured, and every later run is one launch of a
 * graph:
 *
 *     inputs, all micro-batches      pinned memory -> stage
 *     the graph: rows of the course in order; each copies from the stage what
 *                it reads of its micro-batch; then the results to the stage
 *     results                        stage -> pinned memory
 *
 * Beyond 64k calls there is a graph for each row that has addresses of its own,
 * with the copies from the stage outside: micro-batches share it.
 *
 * There are two sets of pinned memory, so a run is prepared and launched while
 * the one before it runs. Rows of a pipeline's table name buffers whose place
 * depends on the micro-batch: arguments are copied when a call is issued, so
 * each is issued with its own addresses. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

enum {
    NOTREADY = 600,
    SPINS = 2000,
    PAUSE = 20000,
    MAXNODES = 64 << 10
}; /* of one graph */

/* ---- one call ------------------------------------------------------------ */

static const char *name_of(const Instr *s)
{
    return s->label    ? s->label
           : s->kernel ? s->kernel
                       : instr_info(s->kind)->name;
}

/* With PLEAT_SYNC: is all well after it? */
static void check(const Gpu *x, const GpuCall *c)
{
    const char *text = "?";
    char when[32] = "";
    int e = dl.cuStreamSynchronize(x->stream);

    if (!e)
        return;
    dl.cuGetErrorString(e, &text);
    if (x->step >= 0)
        snprintf(when, sizeof when, "step %lld, ", (long long)x->step + 1);
    err(&(Loc){ c->s->file, c->s->line, NULL }, "GPU: %s: in %s%s %s (%s)",
        text, when, instr_info(c->s->kind)->name,
        c->s->kernel ? c->s->kernel : "", name_of(c->s));
}

static void copy(Gpu *x, uint64_t to, uint64_t from, int64_t bytes)
{
    gpu_ok(dl.cuMemcpyDtoDAsync_v2(to, from, (size_t)bytes, x->stream),
           "copying");
}

static void collective(Gpu *x, const GpuCall *c)
{
    trail_put(x, c->s, 0);
    nccl_run(c->comm, c->s, c->ranks, c->me, c->buf[0], c->buf[1], x->stream);
    trail_put(x, c->s, 1);
}

static void launch(Gpu *x, GpuCall *c)
{
    const int64_t *g = c->grid;

    switch (c->s->kind) {
    case Ikernel:
        if (g[0] && g[2] && g[3])
            gpu_ok(dl.cuLaunchKernel(c->fn, (unsigned)g[0], (unsigned)g[2],
                                     (unsigned)g[3], (unsigned)g[1], 1, 1,
                                     (unsigned)g[4], x->stream, c->param, NULL),
                   name_of(c->s));
        break;
    case Igemm: lt_run(x->lt, c->lt, x->stream); break;
    case Izero:
        gpu_ok(dl.cuMemsetD8Async(c->buf[0], 0, (size_t)c->bytes, x->stream),
               "clearing");
        break;
    case Ijoin:
        for (int i = 0; i < c->s->join.gap.n; i++) {
            const Gap *v = &c->s->join.gap.at[i];
            gpu_ok(dl.cuMemsetD8Async(c->buf[0] + (uint64_t)v->from, 0,
                                      (size_t)v->bytes, x->stream),
                   "clearing");
        }
        break;
    case Icopy: copy(x, c->buf[1], c->buf[0], c->bytes); break;
    case Isend:
    case Irecv:
    case Iwait:
        trail_put(x, c->s, 0);
        link_run(c->end, c->s, c->buf[0], x->stream);
        trail_put(x, c->s, 1);
        break;
    default:
        if (c->comm)
            collective(x, c);
        else if (c->buf[0] != c->buf[1])
            copy(x, c->buf[1], c->buf[0], c->bytes);
    }
    if (x->each)
        check(x, c);
}

/* ---- one row ------------------------------------------------------------- */

static int scalar_named(const Role *r, const char *name)
{
    for (int i = 0; i < r->nin; i++)
        if (!strcmp(r->in[i].name, name))
            return i;
    return -1;
}

static int result_named(const Role *r, const char *name)
{
    for (int i = 0; i < r->nout; i++)
        if (!strcmp(r->out[i].name, name))
            return i;
    return -1;
}

static int64_t turn_at(const GpuProgram *g, int64_t turn)
{
    return g->scalars + turn * g->perturn;
}

static int64_t input_at(const GpuProgram *g, int tensor)
{
    size_t i = 0;

    while (g->input[i].tensor != tensor)
        i++;
    return g->input[i].at;
}

/* What the row reads of its micro-batch, unless it is there. */
static void load(Gpu *x, GpuProgram *g, const ScheduleSlot *t)
{
    const Needs *n = &g->course->needs[t->phase];
    uint64_t from = x->stage + (uint64_t)turn_at(g, t->micro);
    const Role *r = x->role;
    int m = g->micro;

    for (size_t k = 0; k < vec_len(n->input); k++) {
        int i = n->input[k];
        if (x->loaded[i] == t->micro)
            continue;
        copy(x, gpu_address(x, r->tensor[i].buf),
             from + (uint64_t)input_at(g, i), r->buf[r->tensor[i].buf].bytes);
        x->loaded[i] = t->micro;
    }
    if (m < 0 || !n->micro || x->micro == t->micro)
        return;
    copy(x, gpu_address(x, r->in[m].buf), from, dtypes[r->in[m].dt].bytes);
    x->micro = t->micro;
}

/* Buffers in frames lie where this micro-batch has them. */
static void patch(Gpu *x, GpuProgram *g, const ScheduleSlot *t)
{
    GpuPatch *p = g->patch[t->phase];

    for (size_t k = 0; k < vec_len(p); k++) {
        const SlotGroup *f = &g->p->frame[p[k].frame];
        *p[k].at =
            x->arena + (uint64_t)(f->slot[f->of[t->micro]] + p[k].offset);
    }
}

static void mark(Gpu *x, int what)
{
    if (x->nmark >= x->maxmark)
        return;
    void **e = &x->mark[x->nmark];
    if (!*e)
        gpu_ok(dl.cuEventCreate(e, 0), "an event");
    gpu_ok(dl.cuEventRecord(*e, x->stream), "an event");
    x->marked[x->nmark++] = what;
}

static void look(Gpu *x, const GpuProgram *g, const ScheduleSlot *t, int step,
                 int after)
{
    if (x->look)
        x->look(x->looker, (int)(t - g->course->row), step, after);
}

static void calls(Gpu *x, GpuProgram *g, const ScheduleSlot *t)
{
    const Phase *p = &g->p->phase[t->phase];

    nvtx_begin(p->name);
    mark(x, -1 - (int)(t - g->course->row));
    for (int k = p->first; k < p->first + p->n; k++) {
        nvtx_begin(name_of(g->call[k].s));
        look(x, g, t, k - p->first, 0);
        gpu_order(x, &g->call[k]);
        launch(x, &g->call[k]);
        look(x, g, t, k - p->first, 1);
        nvtx_end();
        mark(x, k);
    }
    nvtx_end();
}

/* ---- rows as graphs ------------------------------------------------------ */

static void begin_graph(Gpu *x)
{
    gpu_ok(dl.cuStreamBeginCapture_v2(x->stream, 1), "capturing");
    x->capturing = 1;
    x->ordered = 0;
}

static void *graph_of(Gpu *x, size_t *nodes)
{
    void *graph = NULL, *exec = NULL;
    size_t n = 0;

    x->capturing = 0;
    gpu_ok(dl.cuStreamEndCapture(x->stream, &graph), "capturing");
    dl.cuGraphGetNodes(graph, NULL, &n);
    gpu_ok(dl.cuGraphInstantiateWithFlags(&exec, graph, 0), "the graph");
    dl.cuGraphDestroy(graph);
    *nodes += n;
    return exec;
}

/* The graph of a row whose addresses are those that are patched in now. */
static const Segment *segment_of(Gpu *x, GpuProgram *g, const ScheduleSlot *t)
{
    GpuPatch *p = g->patch[t->phase];
    size_t n = vec_len(p);
    Segment s = { .phase = t->phase };

    for (size_t i = 0; i < vec_len(g->segment); i++) {
        const Segment *old = &g->segment[i];
        size_t k = 0;
        while (old->phase == t->phase && k < n && old->at[k] == *p[k].at)
            k++;
        if (old->phase == t->phase && k == n)
            return old;
    }
    s.at = alloc(x->mem, (n + 1) * sizeof *s.at);
    for (size_t k = 0; k < n; k++)
        s.at[k] = *p[k].at;
    begin_graph(x);
    calls(x, g, t);
    s.graph = graph_of(x, &g->nodes);
    vec_push(x->mem, g->segment, s);
    return &g->segment[vec_len(g->segment) - 1];
}

/* Too many nodes for one graph, and nothing between stages inside of it? */
static int in_segments(const Gpu *x, const GpuProgram *g)
{
    const char *most = getenv("PLEAT_NODES");
    int64_t n = 0;

    for (int i = 0; i < g->course->nrow; i++)
        n += g->p->phase[g->course->row[i].phase].n;
    return x->plan->nrole == 1 && n > (most ? atoll(most) : MAXNODES);
}

/* ---- one program --------------------------------------------------------- */

static void run_row(Gpu *x, GpuProgram *g, const ScheduleSlot *t, int segments)
{
    load(x, g, t);
    patch(x, g, t);
    if (segments)
        gpu_ok(dl.cuGraphLaunch(segment_of(x, g, t)->graph, x->stream),
               "launching a graph");
    else
        calls(x, g, t);
}

static void issue(Gpu *x, GpuProgram *g, int segments)
{
    const Role *r = x->role;

    x->running = g;
    x->ordered = 0;
    links_reset(x->links);
    if (x->look) /* what was there before is not this run's */
        gpu_ok(dl.cuMemsetD8Async(x->arena + (uint64_t)r->persist, 0,
                                  (size_t)(r->arena - r->persist), x->stream),
               "clearing");
    x->micro = -1;
    for (int i = 0; i < r->ntensor; i++)
        x->loaded[i] = -1;
    int hold = scalar_named(r, "hold"), over = result_named(r, "overflow");
    for (int i = 0; i < r->nin; i++)
        if (i != g->micro)
            copy(x, gpu_address(x, r->in[i].buf),
                 i == hold ? x->hold : x->stage + 8 * (uint64_t)i,
                 dtypes[r->in[i].dt].bytes);
    for (int i = 0; i < g->course->nrow; i++)
        run_row(x, g, &g->course->row[i], segments);
    links_finish(x->links);
    if (hold >= 0 && over >= 0)
        copy(x, x->hold, gpu_address(x, r->out[over].buf),
             dtypes[r->in[hold].dt].bytes);
    for (int i = 0; i < r->nout; i++)
        copy(x, x->stage + (uint64_t)(g->nin + 8 * i),
             gpu_address(x, r->out[i].buf), dtypes[r->out[i].dt].bytes);
}

static void replay(Gpu *x, GpuProgram *g)
{
    if (!g->graph && in_segments(x, g)) {
        issue(x, g, 1);
        return;
    }
    if (!g->graph) {
        begin_graph(x);
        issue(x, g, 0);
        g->graph = graph_of(x, &g->nodes);
    }
    gpu_ok(dl.cuGraphLaunch(g->graph, x->stream), "launching the graph");
}

void replay_close(GpuProgram *g)
{
    if (g->graph)
        dl.cuGraphExecDestroy(g->graph);
    for (size_t i = 0; i < vec_len(g->segment); i++)
        dl.cuGraphExecDestroy(g->segment[i].graph);
}

/* The first run launches, so that what is made on first use (library kernels,
 * connections) is there; the second is captured. */
static void go(Gpu *x, GpuProgram *g, int slot)
{
    int plain = !g->runs++ || x->maxmark || x->each || x->look ||
                getenv("PLEAT_NOGRAPH");

    gpu_ok(dl.cuMemcpyHtoDAsync_v2(x->stage, g->in[slot], (size_t)g->nin,
                                   x->stream),
           "copying inputs");
    if (plain)
        issue(x, g, 0);
    else
        replay(x, g);
    gpu_ok(dl.cuMemcpyDtoHAsync_v2(g->out[slot], x->stage + (uint64_t)g->nin,
                                   (size_t)g->nout, x->stream),
           "copying results");
    gpu_ok(dl.cuEventRecord(g->done[slot], x->stream), "an event");
}

/* ---- its inputs ---------------------------------------------------------- */

static void put_scalar(const Gpu *x, uint8_t *in, const char *name, double v)
{
    int i = scalar_named(x->role, name);

    if (i >= 0)
        elem_set(x->role->in[i].dt, in + 8 * i, 0, v);
}

static void fill_turns(Gpu *x, GpuProgram *g, uint8_t *in, const Feed *feed)
{
    const Role *r = x->role;
    int64_t dp = x->plan->mesh->size[Mdp];

    for (int64_t turn = 0; turn < g->turns; turn++) {
        uint8_t *to = in + turn_at(g, turn);
        if (g->micro >= 0)
            elem_set(r->in[g->micro].dt, to, 0, (double)(turn * dp));
        for (size_t i = 0; i < vec_len(g->input) && feed; i++)
            feed->fill(feed->self, &r->tensor[g->input[i].tensor], x->rank,
                       turn, to + g->input[i].at);
    }
}

/* ---- the end of a run ---------------------------------------------------- */

static void pause_for(Gpu *x)
{
    if (x->idle)
        x->idle(x->idler);
    nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
}

/* Waits for the run of this slot, and for ranks that it waits for: one that is
 * dead, and what NCCL says of it, ends in the watchdog's line. */
static void settle(Gpu *x, GpuProgram *g, int slot)
{
    const Role *r = x->role;
    double begun = monotonic();
    int e;

    watch_all();
    atomic_store(&x->awaited, g->at[slot] + 1);
    for (int64_t n = 1; (e = dl.cuEventQuery(g->done[slot])) == NOTREADY; n++)
        if (n > SPINS)
            pause_for(x);
    watch_leave();
    abort_hold();
    atomic_store(&x->awaited, 0);
    x->waited += monotonic() - begun;
    if (e) {
        fault_launching(x, g, g->at[slot]);
        gpu_ok(e, "a run");
    }
    for (int i = 0; i < r->nout; i++)
        memcpy(x->host + r->buf[r->out[i].buf].offset, g->out[slot] + 8 * i,
               (size_t)dtypes[r->out[i].dt].bytes);
    abort_release();
}

int gpu_settle(Gpu *x)
{
    GpuProgram *g = x->last;

    if (!g)
        return 0;
    x->last = NULL;
    settle(x, g, x->slot);
    return 1;
}

/* ---- clocks -------------------------------------------------------------- */

static void start_marks(Gpu *x, const GpuProgram *g)
{
    int64_t n = 0;

    for (int i = 0; i < g->course->nrow; i++)
        n += 1 + g->p->phase[g->course->row[i].phase].n;
    x->nmark = 0;
    x->maxmark = (int)n;
    if (x->roommark >= n)
        return;
    x->roommark = n;
    x->mark = alloc(x->mem, (size_t)n * sizeof *x->mark);
    x->marked = alloc(x->mem, (size_t)n * sizeof *x->marked);
}

static double between(const Gpu *x, int from, int to)
{
    float ms = 0;

    dl.cuEventElapsedTime(&ms, x->mark[from], x->mark[to]);
    return 1e-3 * ms;
}

static void add_times(const Gpu *x, double *spent)
{
    for (int i = 1; i < x->nmark; i++)
        if (x->marked[i] >= 0)
            spent[x->marked[i]] += between(x, i - 1, i);
}

int64_t gpu_ran(const Gpu *x, int prog, InstrTiming *out)
{
    const ScheduleSlot *row = x->course[prog].row, *t = row;

    for (int i = 0; i < x->nmark; i++) {
        int k = x->marked[i], begins = k < 0;
        double at = x->began + between(x, 0, i);
        t = begins ? &row[-1 - k] : t;
        out[i] = (InstrTiming){ (int)(x->role - x->plan->role),
                                t->phase,
                                begins ? -1 : k,
                                t->micro,
                                at,
                                at };
        if (!begins)
            out[i].start = x->began + between(x, 0, i - 1);
    }
    return x->nmark;
}

/* ---- interface ----------------------------------------------------------- */

/* Words of a number of the scalar's type: its copy reads all of it. */
static void set_hold(const Gpu *x)
{
    int i = scalar_named(x->role, "hold");
    uint32_t word[2] = { 0, 0 };

    if (i >= 0)
        elem_set(x->role->in[i].dt, word, 0, x->held);
    for (int k = 0; k < 2; k++)
        gpu_ok(dl.cuMemsetD32Async(x->hold + 4 * (uint64_t)k, word[k], 1,
                                   x->stream),
               "a flag");
}

int gpu_run(Gpu *x, int prog, const StepValues *b, const Feed *feed,
            double *spent, int late)
{
    GpuProgram *g = &x->prog[prog], *before = late ? x->last : NULL;
    int slot = (int)(g->runs & 1), old = x->slot;

    if (!before)
        gpu_settle(x);
    if (!x->loaded)
        x->loaded =
            alloc(x->mem, (size_t)(x->role->ntensor + 1) * sizeof *x->loaded);
    g->at[slot] = b ? b->step : -1;
    if (b) {
        put_scalar(x, g->in[slot], "lr", b->lr);
        put_scalar(x, g->in[slot], "bc1", b->bc1);
        put_scalar(x, g->in[slot], "bc2", b->bc2);
        put_scalar(x, g->in[slot], "step", (double)b->step);
        put_scalar(x, g->in[slot], "skip_loss", x->limits.loss);
        put_scalar(x, g->in[slot], "skip_gnorm", x->limits.gnorm);
    }
    fill_turns(x, g, g->in[slot], feed);
    if (spent || x->timed)
        start_marks(x, g);
    nvtx_begin(programnames[g->p->kind]);
    x->began = monotonic();
    watch_all();
    abort_hold();
    x->step = g->at[slot];
    fault_launching(x, before ? before : g, before ? before->at[old] : x->step);
    if (!before)
        set_hold(x);
    go(x, g, slot);
    fault_launching(NULL, NULL, 0);
    abort_release();
    watch_leave();
    nvtx_end();
    x->last = g;
    x->slot = slot;
    if (before)
        settle(x, before, old);
    if (!late)
        gpu_settle(x);
    if (spent)
        add_times(x, spent);
    x->maxmark = 0;
    return !late || before;
}
