/* replay.c: programs run on a device with memory of its own. A program's first
 * run launches its instructions one by one; then, on a device that can capture,
 * they are captured, and every later run is one launch of a graph:
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

#include "exec.h"

enum { SPINS = 2000, PAUSE = 20000, ALIGN = 256, WORD = 8 };
enum { MAXNODES = 64 << 10 }; /* of one graph */

/* Where a micro-batch's bytes of an input are, from the first on. */
typedef struct StagedInput {
    int tensor;
    int64_t at;
} StagedInput;

/* A row's calls as a graph, with these addresses for what it patches. */
typedef struct Segment {
    int phase;
    void **at;
    void *graph;
} Segment;

typedef struct StagedProgram {
    const Program *prog;
    const UnrolledProgram *course;
    int64_t micros;
    uint8_t *in[2];  /* pinned: scalars, then inputs of micro-batches */
    uint8_t *out[2]; /* pinned: results */
    void *done[2];   /* events: the results are there */
    int64_t at[2];   /* the step of the run, from 0; -1: none */
    int64_t scalars, permicro, nin, nout; /* bytes */
    int64_t runs;
    struct Graphs {
        void *whole;      /* null: not yet, or in segments */
        Segment *segment; /* vec */
        size_t nodes;
    } graphs[2];        /* [1]: with Exec.alone */
    StagedInput *input; /* vec */
    int micro;          /* scalar of that name; -1: none */
} StagedProgram;

struct Staged {
    StagedProgram *prog;
    const StagedProgram *running; /* whose calls are issued */
    uint8_t *stage; /* of the device: a run's inputs and results, then */
    uint8_t *hold;  /* did the last run overflow? of a run behind none: */
    uint8_t *word;  /*   what this pinned word says */
    int64_t nstage;
    StagedProgram *last;
    int slot; /* run whose results are not here yet */
};

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static void copy(Exec *x, void *to, const void *from, int64_t bytes)
{
    x->dev->copy(x->on, STREAMcompute, COPYwithin, to, from, bytes);
}

static int64_t scalar_bytes(const Scalar *v)
{
    return scalar_elems(v) * dtypes[v->dt].bytes;
}

/* Its room among the results. */
static int64_t result_bytes(const Scalar *v)
{
    return (scalar_bytes(v) + WORD - 1) / WORD * WORD;
}

/* ---- opening ------------------------------------------------------------- */

/* Of a micro-batch: the scalar `micro`, then the inputs. */
static void place_inputs(Exec *x, StagedProgram *g)
{
    const Role *r = x->rank[0].role;

    g->scalars = aligned(WORD * (r->nin + 1));
    g->permicro = aligned(WORD);
    for (int i = 0; i < r->ntensor; i++) {
        if (r->tensor[i].kind != TKinput || r->tensor[i].second)
            continue;
        vec_push(x->mem, g->input, ((StagedInput){ i, g->permicro }));
        g->permicro += aligned(r->buf[r->tensor[i].buf].bytes);
    }
    g->micro = role_value(r, STEPmicro);
    g->nin = g->scalars + g->micros * g->permicro;
    for (int i = 0; i < r->nout; i++)
        g->nout += result_bytes(&r->out[i]);
    g->nout = aligned(g->nout + WORD);
}

static void *pinned(Exec *x, int64_t bytes)
{
    return x->dev->alloc(x->on, ARENApinned, bytes, "inputs and results");
}

static void open_program(Exec *x, StagedProgram *g, int prog)
{
    g->prog = &x->rank[0].role->prog[prog];
    g->course = &x->stage[0].course[prog];
    g->micros = plan_micros(x->plan, g->prog->kind);
    place_inputs(x, g);
    for (int i = 0; i < 2; i++) {
        g->in[i] = pinned(x, g->nin);
        g->out[i] = pinned(x, g->nout);
        g->done[i] = x->dev->event(x->on, EVENTplain);
    }
}

void staged_open(Exec *x)
{
    Staged *v = x->staged = alloc(x->mem, sizeof *v);
    int n = x->rank[0].role->nprog;

    v->prog = alloc(x->mem, (size_t)n * sizeof *v->prog);
    for (int i = 0; i < n; i++) {
        StagedProgram *g = &v->prog[i];
        open_program(x, g, i);
        v->nstage = v->nstage < g->nin + g->nout ? g->nin + g->nout : v->nstage;
    }
    v->word = pinned(x, WORD);
    v->stage = x->dev->alloc(x->on, ARENAdevice, v->nstage + ALIGN,
                             "inputs and results");
    v->hold = v->stage + v->nstage;
}

void staged_close(Exec *x)
{
    Staged *v = x->staged;

    x->dev->sync(x->on, STREAMcompute);
    for (int i = 0; i < x->rank[0].role->nprog; i++)
        for (int k = 0; k < 2; k++) {
            StagedProgram *g = &v->prog[i];
            x->dev->free(x->on, ARENApinned, g->in[k], g->nin);
            x->dev->free(x->on, ARENApinned, g->out[k], g->nout);
        }
    x->dev->free(x->on, ARENApinned, v->word, WORD);
    x->dev->free(x->on, ARENAdevice, v->stage, v->nstage + ALIGN);
}

void staged_usage(const Exec *x, Text *out)
{
    for (int i = 0; i < x->rank[0].role->nprog; i++) {
        const StagedProgram *g = &x->staged->prog[i];
        if (g->graphs[0].nodes)
            put(out, "%10zu nodes in the graph of %s\n", g->graphs[0].nodes,
                programnames[g->prog->kind]);
    }
}

/* ---- one row ------------------------------------------------------------- */

static uint8_t *micro_at(const Staged *v, int64_t micro)
{
    return v->stage + v->running->scalars + micro * v->running->permicro;
}

/* A micro-batch of an input, from the stage; a pair's second lies there as
 * others do. */
static void fill_staged(void *self, const Tensor *t, int64_t rank,
                        int64_t micro, void *dst)
{
    Exec *x = self;
    const Rank *r = x->rank;
    const StagedInput *v = x->staged->running->input;

    (void)rank, (void)dst;
    while (strcmp(r->role->tensor[v->tensor].name, t->name))
        v++;
    copy(x, rank_address(r, t->buf), micro_at(x->staged, micro) + v->at,
         r->role->buf[t->buf].bytes);
}

static void take_micro(Exec *x, const Rank *r, int64_t micro)
{
    int m = x->staged->running->micro;

    if (m >= 0)
        copy(x, rank_address(r, r->role->in[m].buf), micro_at(x->staged, micro),
             scalar_bytes(&r->role->in[m]));
}

/* ---- rows as graphs ------------------------------------------------------ */

/* The calls of the row at which the stage stands. */
static void run_row(Exec *x, Stage *s)
{
    int phase = s->course[s->prog].row[s->row].phase;
    int n = s->rank[0]->role->prog[s->prog].phase[phase].n;

    for (s->instr = 0; s->instr < n; s->instr++)
        run_instr(x, &s, 1);
    s->instr = n - 1;
}

/* Its graph, whose addresses are those that are patched in now. */
static const Segment *segment_of(Exec *x, StagedProgram *g, Stage *s)
{
    int phase = g->course->row[s->row].phase;
    const Patch *p = x->rank[0].patch[s->prog][phase];
    size_t n = vec_len(p);
    struct Graphs *all = &g->graphs[x->alone];
    Segment new = { .phase = phase };

    for (size_t i = 0; i < vec_len(all->segment); i++) {
        const Segment *old = &all->segment[i];
        size_t k = 0;
        while (old->phase == phase && k < n && old->at[k] == *p[k].at)
            k++;
        if (old->phase == phase && k == n)
            return old;
    }
    new.at = alloc(x->mem, (n + 1) * sizeof *new.at);
    for (size_t k = 0; k < n; k++)
        new.at[k] = *p[k].at;
    x->ordered = 0;
    x->dev->capture(x->on);
    run_row(x, s);
    new.graph = x->dev->captured(x->on, &all->nodes);
    vec_push(x->mem, all->segment, new);
    return &all->segment[vec_len(all->segment) - 1];
}

static void run_segments(Exec *x, StagedProgram *g)
{
    Stage *s = &x->stage[0];

    for (stage_next(x, s); s->row < g->course->nrow; stage_next(x, s)) {
        x->dev->replay(x->on, segment_of(x, g, s)->graph);
        s->instr = g->prog->phase[g->course->row[s->row].phase].n - 1;
    }
}

/* Too many nodes for one graph, and rows that are graphs of their own: nothing
 * between stages, and no stream that goes on from row to row? */
static int in_segments(const Exec *x, const StagedProgram *g)
{
    const char *most = getenv("PLEAT_NODES");
    int64_t n = 0;

    for (int i = 0; i < g->course->nrow; i++)
        n += g->prog->phase[g->course->row[i].phase].n;
    return x->plan->nrole == 1 && !program_streams(g->prog) &&
           n > (most ? atoll(most) : MAXNODES);
}

/* ---- one program --------------------------------------------------------- */

static void take_scalars(Exec *x, const StagedProgram *g)
{
    const Rank *r = x->rank;
    int hold = role_value(r->role, STEPhold);

    for (int i = 0; i < r->role->nin; i++)
        if (i != g->micro)
            copy(x, rank_address(r, r->role->in[i].buf),
                 i == hold ? x->staged->hold : x->staged->stage + WORD * i,
                 scalar_bytes(&r->role->in[i]));
}

static void give_results(Exec *x, const StagedProgram *g)
{
    const Rank *r = x->rank;
    int hold = role_value(r->role, STEPhold);
    int over = role_result(r->role, RESULToverflow);

    if (hold >= 0 && over >= 0)
        copy(x, x->staged->hold, rank_address(r, r->role->out[over].buf),
             scalar_bytes(&r->role->in[hold]));
    uint8_t *to = x->staged->stage + g->nin;
    for (int i = 0; i < r->role->nout; to += result_bytes(&r->role->out[i++]))
        copy(x, to, rank_address(r, r->role->out[i].buf),
             scalar_bytes(&r->role->out[i]));
}

static void issue(Exec *x, StagedProgram *g,
                  void calls(Exec *, StagedProgram *))
{
    const Feed f = { fill_staged, x };

    exec_start(x, g->prog->kind);
    x->staged->running = g;
    take_scalars(x, g);
    x->feed = &f;
    x->micro = take_micro;
    calls(x, g);
    x->feed = NULL;
    x->dev->finish(x->on);
    give_results(x, g);
}

static void run_calls(Exec *x, StagedProgram *g)
{
    (void)g;
    exec_stages(x);
}

static void replay(Exec *x, StagedProgram *g)
{
    struct Graphs *all = &g->graphs[x->alone];

    if (!all->whole && in_segments(x, g)) {
        issue(x, g, run_segments);
        return;
    }
    if (!all->whole) {
        x->dev->capture(x->on);
        issue(x, g, run_calls);
        all->whole = x->dev->captured(x->on, &all->nodes);
    }
    x->dev->replay(x->on, all->whole);
}

/* The first run launches, so that what is made on first use (library kernels,
 * connections) is there; the second is captured. */
static void go(Exec *x, StagedProgram *g, int slot)
{
    Staged *v = x->staged;
    int plain = !g->runs++ || x->maxran || x->copy ||
                !(x->dev->can & CANcapture) || getenv("PLEAT_SYNC") ||
                getenv("PLEAT_NOGRAPH");

    x->dev->copy(x->on, STREAMcompute, COPYin, v->stage, g->in[slot], g->nin);
    if (plain)
        issue(x, g, run_calls);
    else
        replay(x, g);
    x->dev->copy(x->on, STREAMcompute, COPYout, g->out[slot], v->stage + g->nin,
                 g->nout);
    x->dev->record(x->on, STREAMcompute, g->done[slot]);
}

/* ---- its inputs ---------------------------------------------------------- */

static void fill_scalars(Exec *x, uint8_t *in, const StepValues *b)
{
    const Role *r = x->rank[0].role;

    for (int i = 0; i < r->nin && b; i++)
        if (r->in[i].value != STEPmicro)
            elem_set(r->in[i].dt, in + WORD * i, 0,
                     step_value(x, b, r->in[i].value));
}

static void fill_micros(Exec *x, StagedProgram *g, uint8_t *in,
                        const Feed *feed)
{
    const Role *r = x->rank[0].role;

    for (int64_t micro = 0; micro < g->micros; micro++) {
        uint8_t *to = in + g->scalars + micro * g->permicro;
        if (g->micro >= 0)
            elem_set(r->in[g->micro].dt, to, 0, first_micro(x, micro));
        for (size_t i = 0; i < vec_len(g->input) && feed; i++)
            feed->fill(feed->self, &r->tensor[g->input[i].tensor],
                       x->rank[0].id, micro, to + g->input[i].at);
    }
}

/* For a run behind none; of one behind another the device knows. */
static void set_hold(Exec *x)
{
    Staged *v = x->staged;
    int i = role_value(x->rank[0].role, STEPhold);

    memset(v->word, 0, WORD);
    if (i >= 0)
        elem_set(x->rank[0].role->in[i].dt, v->word, 0, x->hold);
    x->dev->copy(x->on, STREAMcompute, COPYin, v->hold, v->word, WORD);
}

/* ---- the end of a run ---------------------------------------------------- */

static void pause_for(Exec *x)
{
    if (x->idle)
        x->idle(x->idler);
    nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
}

/* Waits for the run of this slot, and for ranks that it waits for: one that is
 * dead, and what NCCL says of it, ends in the watchdog's line. */
static void settle(Exec *x, StagedProgram *g, int slot)
{
    const Rank *r = x->rank;
    double begun = monotonic();
    int e;

    watch_all();
    atomic_store(&x->progress.awaited, g->at[slot] + 1);
    for (int64_t n = 1; (e = x->dev->query(x->on, g->done[slot])) > 0; n++)
        if (n > SPINS)
            pause_for(x);
    watch_leave();
    x->dev->enter(x->on, g->prog->kind, g->at[slot], x->at);
    atomic_store(&x->progress.awaited, 0);
    x->waited += monotonic() - begun;
    if (e)
        x->dev->fault(x->on, "a run");
    const uint8_t *from = g->out[slot];
    for (int i = 0; i < r->role->nout; from += result_bytes(&r->role->out[i++]))
        memcpy(r->buf[r->role->out[i].buf], from,
               (size_t)scalar_bytes(&r->role->out[i]));
    x->dev->leave(x->on);
}

int exec_settle(Exec *x)
{
    StagedProgram *g = x->staged ? x->staged->last : NULL;

    if (!g)
        return 0;
    x->staged->last = NULL;
    settle(x, g, x->staged->slot);
    return 1;
}

/* ---- interface ----------------------------------------------------------- */

static void launch(Exec *x, StagedProgram *g, int slot,
                   const StagedProgram *before)
{
    int old = x->staged->slot;

    if (x->guard && program_trains(g->prog->kind))
        x->guard(x->guarded);
    nvtx_begin(programnames[g->prog->kind]);
    watch_all();
    x->at = g->at[slot];
    x->dev->enter(x->on, before ? before->prog->kind : g->prog->kind,
                  before ? before->at[old] : x->at, x->at);
    if (!before)
        set_hold(x);
    go(x, g, slot);
    x->dev->leave(x->on);
    watch_leave();
    nvtx_end();
}

void staged_run(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed)
{
    static const Instr graph = { .kind = Ikernel,
                                 .label = "of the GPU's graph" };
    int prog = role_prog(x->rank[0].role, k), late = x->late, old;

    if (prog < 0)
        err(NULL, "the plan has no program '%s'", programnames[k]);
    StagedProgram *g = &x->staged->prog[prog];
    StagedProgram *before = late ? x->staged->last : NULL;
    int slot = (int)(g->runs & 1);
    old = x->staged->slot;
    atomic_store_explicit(&x->progress.now, &graph, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->progress.ticks, 1, memory_order_relaxed);
    if (!before)
        exec_settle(x);
    g->at[slot] = b ? b->step : -1;
    fill_scalars(x, g->in[slot], b);
    fill_micros(x, g, g->in[slot], feed);
    double began = monotonic();
    launch(x, g, slot, before);
    atomic_store_explicit(&x->progress.now, &graph, memory_order_relaxed);
    x->staged->last = g;
    x->staged->slot = slot;
    if (before)
        settle(x, before, old);
    if (!late)
        exec_settle(x);
    if (x->maxran)
        exec_times(x, began);
    atomic_store_explicit(&x->progress.now, NULL, memory_order_relaxed);
}
