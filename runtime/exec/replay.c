/* replay.c: runs programs on a device with its own memory. The first run of a
 * program launches its instructions one by one; a device that can capture then
 * captures them, and every later run is one launch of a graph (see is_plain for
 * the exceptions):
 *
 *     inputs, all micro-batches      pinned memory -> stage
 *     the graph: rows of the program in order; each copies its micro-batch's
 *                inputs from the stage; then the results to the stage
 *     results                        stage -> pinned memory
 *
 * Beyond 64k calls there is one graph for each row with different addresses;
 * micro-batches share it, and the copies from the stage are outside.
 *
 * Pinned memory exists twice, so the next run is prepared and launched while
 * one runs. Rows of a pipeline's table name buffers whose address depends on
 * the micro-batch: arguments are copied when a call is issued, so each call is
 * issued with its own addresses. */
#include <time.h>

#include "exec.h"

enum { SPINS = 2000, PAUSE = 20000, ALIGN = 256, WORD = 8 };
enum { MAXNODES = 64 << 10 }; /* limit of a graph */

/* Location of an input's bytes in the staged block of micro-batch 0. */
typedef struct StagedInput {
    int tensor;
    int64_t at;
} StagedInput;

/* A row's calls as a graph, and the addresses of its patched operands. */
typedef struct Segment {
    int phase;
    int first; /* some calls store what they add in later rows */
    void **at;
    void *graph;
} Segment;

typedef struct StagedProgram {
    const Program *prog;
    const UnrolledProgram *course;
    int64_t micros;
    uint8_t *in[2];  /* pinned: scalars, then inputs of micro-batches */
    uint8_t *out[2]; /* pinned: results */
    void *done[2];   /* events: the results have arrived */
    int64_t at[2];   /* step of the run, counted from 0; -1: none */
    int64_t scalars, permicro, nin, nout; /* bytes */
    int64_t runs;
    struct Graphs {
        void *whole;      /* null: not captured, or split into segments */
        Segment *segment; /* vec */
        size_t nodes;
    } graphs[2];        /* [1]: those captured with Exec.alone */
    StagedInput *input; /* vec */
    int micro;          /* index of the scalar `micro`; -1: none */
} StagedProgram;

struct Staged {
    StagedProgram *prog;
    const StagedProgram *running; /* program whose calls are issued */
    uint8_t *stage; /* device memory: inputs and results of a run, then */
    uint8_t *hold;  /*   the flag that the last run overflowed */
    uint8_t *word;  /* pinned: initial value of the flag, for the first run */
    int64_t nstage;
    StagedProgram *last;
    int slot; /* run whose results have not arrived */
};

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static void copy(Exec *exec, void *to, const void *from, int64_t bytes)
{
    exec->dev->copy(exec->on, STREAMcompute, COPYwithin, to, from, bytes);
}

static int64_t scalar_bytes(const Scalar *scalar)
{
    return scalar_elems(scalar) * dtypes[scalar->dt].bytes;
}

/* Bytes of a scalar in the result block. */
static int64_t result_bytes(const Scalar *scalar)
{
    return (scalar_bytes(scalar) + WORD - 1) / WORD * WORD;
}

/* ---- opening ------------------------------------------------------------- */

/* Lays out the staged block of a micro-batch: the scalar `micro`, then
 * inputs. */
static void place_inputs(Exec *exec, StagedProgram *program)
{
    const Role *role = exec->rank[0].role;

    program->scalars = aligned(WORD * (role->nin + 1));
    program->permicro = aligned(WORD);
    for (int i = 0; i < role->ntensor; i++) {
        if (role->tensor[i].kind != TKinput || role->tensor[i].second)
            continue;
        vec_push(exec->mem, program->input,
                 ((StagedInput){ i, program->permicro }));
        program->permicro += aligned(role->buf[role->tensor[i].buf].bytes);
    }
    program->micro = role_value(role, STEPmicro);
    program->nin = program->scalars + program->micros * program->permicro;
    for (int i = 0; i < role->nout; i++)
        program->nout += result_bytes(&role->out[i]);
    program->nout = aligned(program->nout + WORD);
}

static void *pinned(Exec *exec, int64_t bytes)
{
    return exec->dev->alloc(exec->on, ARENApinned, bytes, MEMresults);
}

static void open_program(Exec *exec, StagedProgram *program, int prog)
{
    program->prog = &exec->rank[0].role->prog[prog];
    program->course = &exec->stage[0].course[prog];
    program->micros = plan_micros(exec->plan, program->prog->kind);
    place_inputs(exec, program);
    for (int i = 0; i < 2; i++) {
        program->in[i] = pinned(exec, program->nin);
        program->out[i] = pinned(exec, program->nout);
        program->done[i] = exec->dev->event(exec->on, EVENTplain);
    }
}

void staged_open(Exec *exec)
{
    Staged *v = exec->staged = alloc(exec->mem, sizeof *v);
    int n = exec->rank[0].role->nprog;

    v->prog = alloc(exec->mem, (size_t)n * sizeof *v->prog);
    for (int i = 0; i < n; i++) {
        StagedProgram *g = &v->prog[i];
        open_program(exec, g, i);
        v->nstage = v->nstage < g->nin + g->nout ? g->nin + g->nout : v->nstage;
    }
    v->word = pinned(exec, WORD);
    v->stage =
        exec->dev->alloc(exec->on, ARENAdevice, v->nstage + ALIGN, MEMresults);
    v->hold = v->stage + v->nstage;
}

void staged_close(Exec *exec)
{
    Staged *staged = exec->staged;

    exec->dev->sync(exec->on, STREAMcompute);
    for (int i = 0; i < exec->rank[0].role->nprog; i++)
        for (int k = 0; k < 2; k++) {
            StagedProgram *program = &staged->prog[i];
            exec->dev->free(exec->on, ARENApinned, program->in[k],
                            program->nin);
            exec->dev->free(exec->on, ARENApinned, program->out[k],
                            program->nout);
        }
    exec->dev->free(exec->on, ARENApinned, staged->word, WORD);
    exec->dev->free(exec->on, ARENAdevice, staged->stage,
                    staged->nstage + ALIGN);
}

void staged_usage(const Exec *exec, Text *out)
{
    for (int i = 0; i < exec->rank[0].role->nprog; i++) {
        const StagedProgram *program = &exec->staged->prog[i];
        if (program->graphs[0].nodes)
            put(out, "%10zu nodes in the graph of %s\n",
                program->graphs[0].nodes, programnames[program->prog->kind]);
    }
}

/* ---- one row ------------------------------------------------------------- */

static uint8_t *micro_at(const Staged *staged, int64_t micro)
{
    return staged->stage + staged->running->scalars +
           micro * staged->running->permicro;
}

/* Feed.fill from the staged block, for each micro-batch of a pair too. */
static void fill_staged(void *self, const Tensor *tensor, int64_t rank,
                        int64_t micro, void *dst)
{
    Exec *exec = self;
    const Rank *r = exec->rank;
    const StagedInput *input = exec->staged->running->input;

    (void)rank, (void)dst;
    while (strcmp(r->role->tensor[input->tensor].name, tensor->name))
        input++;
    copy(exec, rank_address(r, tensor->buf),
         micro_at(exec->staged, micro) + input->at,
         r->role->buf[tensor->buf].bytes);
}

static void take_micro(Exec *exec, const Rank *rank, int64_t micro)
{
    int m = exec->staged->running->micro;

    if (m >= 0)
        copy(exec, rank_address(rank, rank->role->in[m].buf),
             micro_at(exec->staged, micro), scalar_bytes(&rank->role->in[m]));
}

/* ---- rows as graphs ------------------------------------------------------ */

/* Issues the calls of the stage's current row. */
static void run_row(Exec *exec, Stage *stage)
{
    int phase = stage->course[stage->prog].row[stage->row].phase;
    int n = stage->rank[0]->role->prog[stage->prog].phase[phase].n;

    for (stage->instr = 0; stage->instr < n; stage->instr++)
        run_instr(exec, &stage, 1);
    stage->instr = n - 1;
}

/* Returns the current row's graph for the addresses that are patched in now;
 * captures it if there is none. */
static const Segment *segment_of(Exec *exec, StagedProgram *program,
                                 Stage *stage)
{
    int phase = program->course->row[stage->row].phase;
    const Patch *patch = exec->rank[0].patch[stage->prog][phase];
    size_t n = vec_len(patch);
    struct Graphs *all = &program->graphs[exec->alone];
    const UnrolledProgram *course = program->course;
    Segment new = { .phase = phase,
                    .first = course->first[stage->row] &&
                             vec_len(course->stores[phase]) };

    for (size_t i = 0; i < vec_len(all->segment); i++) {
        const Segment *old = &all->segment[i];
        size_t k = 0;
        int alike = old->phase == phase && old->first == new.first;
        while (alike && k < n && old->at[k] == *patch[k].at)
            k++;
        if (alike && k == n)
            return old;
    }
    new.at = alloc(exec->mem, (n + 1) * sizeof *new.at);
    for (size_t k = 0; k < n; k++)
        new.at[k] = *patch[k].at;
    exec->ordered = 0;
    exec->dev->capture(exec->on);
    run_row(exec, stage);
    new.graph = exec->dev->captured(exec->on, &all->nodes);
    vec_push(exec->mem, all->segment, new);
    return &all->segment[vec_len(all->segment) - 1];
}

static void run_segments(Exec *exec, StagedProgram *program)
{
    Stage *stage = &exec->stage[0];

    for (stage_next(exec, stage); stage->row < program->course->nrow;
         stage_next(exec, stage)) {
        exec->dev->replay(exec->on, segment_of(exec, program, stage)->graph);
        stage->instr =
            program->prog->phase[program->course->row[stage->row].phase].n - 1;
    }
}

/* Is a program split into one graph per row? It has too many nodes for one
 * graph, no transfer between stages, no stream that continues from row to row,
 * and no instruction that runs in only some rows of its phase. */
static int in_segments(const Exec *exec, const StagedProgram *program)
{
    const char *most = getenv("PLEAT_NODES");
    int64_t n = 0;
    int alike = !program_streams(program->prog);

    for (int i = 0; i < program->course->nrow; i++)
        n += program->prog->phase[program->course->row[i].phase].n;
    for (int i = 0; i < program->prog->ninstr; i++)
        alike &= !program->prog->instr[i].last_only;
    return exec->plan->nrole == 1 && alike &&
           n > (most ? atoll(most) : MAXNODES);
}

/* ---- one program --------------------------------------------------------- */

static void take_scalars(Exec *exec, const StagedProgram *program)
{
    const Rank *rank = exec->rank;
    int hold = role_value(rank->role, STEPhold);

    for (int i = 0; i < rank->role->nin; i++)
        if (i != program->micro)
            copy(exec, rank_address(rank, rank->role->in[i].buf),
                 i == hold ? exec->staged->hold
                           : exec->staged->stage + WORD * i,
                 scalar_bytes(&rank->role->in[i]));
}

static void give_results(Exec *exec, const StagedProgram *program)
{
    const Rank *rank = exec->rank;
    int hold = role_value(rank->role, STEPhold);
    int over = role_result(rank->role, RESULToverflow);

    if (hold >= 0 && over >= 0)
        copy(exec, exec->staged->hold,
             rank_address(rank, rank->role->out[over].buf),
             scalar_bytes(&rank->role->in[hold]));
    uint8_t *to = exec->staged->stage + program->nin;
    for (int i = 0; i < rank->role->nout;
         to += result_bytes(&rank->role->out[i++]))
        copy(exec, to, rank_address(rank, rank->role->out[i].buf),
             scalar_bytes(&rank->role->out[i]));
}

static void issue(Exec *exec, StagedProgram *program,
                  void calls(Exec *, StagedProgram *))
{
    const Feed f = { fill_staged, exec };

    exec_start(exec, program->prog->kind);
    exec->staged->running = program;
    take_scalars(exec, program);
    exec->feed = &f;
    exec->micro = take_micro;
    calls(exec, program);
    exec->feed = NULL;
    exec->dev->finish(exec->on);
    give_results(exec, program);
}

static void run_calls(Exec *exec, StagedProgram *program)
{
    (void)program;
    exec_stages(exec);
}

static void replay(Exec *exec, StagedProgram *program)
{
    struct Graphs *all = &program->graphs[exec->alone];

    if (!all->whole && in_segments(exec, program)) {
        issue(exec, program, run_segments);
        return;
    }
    if (!all->whole) {
        exec->dev->capture(exec->on);
        issue(exec, program, run_calls);
        all->whole = exec->dev->captured(exec->on, &all->nodes);
    }
    exec->dev->replay(exec->on, all->whole);
}

/* Does the program copy activations to host memory while it computes? */
static int copies_beside(const Program *program)
{
    for (int f = 0; f < program->nphase; f++) {
        const Phase *phase = &program->phase[f];
        for (int i = 0; i < phase->n && phase->reg == REGbody; i++) {
            StreamKind on = program->instr[phase->first + i].issue.stream;
            if (on == STREAMcopy || on == STREAMreload)
                return 1;
        }
    }
    return 0;
}

/* Is a program launched call by call? Copies to host memory delay computation
 * inside a graph by about 1 %. Calls wait for room in the GPU's queue, and an
 * abort would wait for them, so ranks that wait for other ranks use graphs. */
static int is_plain(const Exec *exec, const StagedProgram *program)
{
    const char *asked = getenv("PLEAT_NOGRAPH");

    if (!(exec->dev->can & CANcapture) || exec->maxran || exec->copy ||
        getenv("PLEAT_SYNC"))
        return 1;
    return asked ? strcmp(asked, "0") != 0
                 : exec->comm->world == 1 && copies_beside(program->prog);
}

/* Runs a program: the first run launches its calls, which also creates library
 * kernels and connections; the second is captured. */
static void go(Exec *exec, StagedProgram *program, int slot)
{
    Staged *staged = exec->staged;
    int plain = !program->runs++ || is_plain(exec, program);

    exec->dev->copy(exec->on, STREAMcompute, COPYin, staged->stage,
                    program->in[slot], program->nin);
    if (plain)
        issue(exec, program, run_calls);
    else
        replay(exec, program);
    exec->dev->copy(exec->on, STREAMcompute, COPYout, program->out[slot],
                    staged->stage + program->nin, program->nout);
    exec->dev->record(exec->on, STREAMcompute, program->done[slot]);
}

/* ---- inputs of a run ----------------------------------------------------- */

static void fill_scalars(Exec *exec, uint8_t *in, const StepValues *values)
{
    const Role *role = exec->rank[0].role;

    for (int i = 0; i < role->nin && values; i++)
        if (role->in[i].value != STEPmicro)
            elem_set(role->in[i].dt, in + WORD * i, 0,
                     step_value(exec, values, role->in[i].value));
}

static void fill_micros(Exec *exec, StagedProgram *program, uint8_t *in,
                        const Feed *feed)
{
    const Role *role = exec->rank[0].role;

    for (int64_t micro = 0; micro < program->micros; micro++) {
        uint8_t *to = in + program->scalars + micro * program->permicro;
        if (program->micro >= 0)
            elem_set(role->in[program->micro].dt, to, 0,
                     first_micro(exec, micro));
        for (size_t i = 0; i < vec_len(program->input) && feed; i++)
            feed->fill(feed->self, &role->tensor[program->input[i].tensor],
                       exec->rank[0].id, micro, to + program->input[i].at);
    }
}

/* Sets the overflow flag for a run that follows no run which may overflow; the
 * device sets it otherwise. */
static void set_hold(Exec *exec)
{
    Staged *staged = exec->staged;
    int i = role_value(exec->rank[0].role, STEPhold);

    memset(staged->word, 0, WORD);
    if (i >= 0)
        elem_set(exec->rank[0].role->in[i].dt, staged->word, 0, exec->hold);
    exec->dev->copy(exec->on, STREAMcompute, COPYin, staged->hold, staged->word,
                    WORD);
}

/* ---- the end of a run ---------------------------------------------------- */

static void pause_for(Exec *exec)
{
    if (exec->idle)
        exec->idle(exec->idler);
    nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
}

/* Waits for the run of this slot and the ranks it depends on. The watchdog
 * reports a dead rank or an error of NCCL. */
static void settle(Exec *exec, StagedProgram *program, int slot)
{
    const Rank *rank = exec->rank;
    double begun = monotonic();
    int e;

    watch_all();
    atomic_store(&exec->progress.awaited, program->at[slot] + 1);
    for (int64_t n = 1;
         (e = exec->dev->query(exec->on, program->done[slot])) > 0; n++)
        if (n > SPINS)
            pause_for(exec);
    watch_leave();
    exec->dev->enter(exec->on, program->prog->kind, program->at[slot],
                     exec->at);
    atomic_store(&exec->progress.awaited, 0);
    exec->waited += monotonic() - begun;
    if (e)
        exec->dev->fault(exec->on, "a run");
    const uint8_t *from = program->out[slot];
    for (int i = 0; i < rank->role->nout;
         from += result_bytes(&rank->role->out[i++]))
        memcpy(rank->buf[rank->role->out[i].buf], from,
               (size_t)scalar_bytes(&rank->role->out[i]));
    exec->dev->leave(exec->on);
}

int exec_settle(Exec *exec)
{
    StagedProgram *g = exec->staged ? exec->staged->last : NULL;

    if (!g)
        return 0;
    exec->staged->last = NULL;
    settle(exec, g, exec->staged->slot);
    return 1;
}

/* ---- interface ----------------------------------------------------------- */

static void launch(Exec *exec, StagedProgram *program, int slot,
                   const StagedProgram *before)
{
    int old = exec->staged->slot;

    if (exec->guard && program_trains(program->prog->kind))
        exec->guard(exec->guarded);
    nvtx_begin(programnames[program->prog->kind]);
    watch_all();
    exec->at = program->at[slot];
    exec->dev->enter(exec->on,
                     before ? before->prog->kind : program->prog->kind,
                     before ? before->at[old] : exec->at, exec->at);
    if (!before || !program_trains(before->prog->kind))
        set_hold(exec);
    go(exec, program, slot);
    exec->dev->leave(exec->on);
    watch_leave();
    nvtx_end();
}

void staged_run(Exec *exec, ProgramKind k, const StepValues *values,
                const Feed *feed)
{
    static const Instr graph = { .kind = Ikernel,
                                 .label = "of the GPU's graph" };
    int prog = role_prog(exec->rank[0].role, k), late = exec->late, old;

    if (prog < 0)
        err(NULL, "the plan has no program '%s'", programnames[k]);
    StagedProgram *g = &exec->staged->prog[prog];
    StagedProgram *before = late ? exec->staged->last : NULL;
    int slot = (int)(g->runs & 1);
    old = exec->staged->slot;
    atomic_store_explicit(&exec->progress.now, &graph, memory_order_relaxed);
    atomic_fetch_add_explicit(&exec->progress.ticks, 1, memory_order_relaxed);
    if (!before)
        exec_settle(exec);
    g->at[slot] = values ? values->step : -1;
    fill_scalars(exec, g->in[slot], values);
    fill_micros(exec, g, g->in[slot], feed);
    double began = monotonic();
    launch(exec, g, slot, before);
    atomic_store_explicit(&exec->progress.now, &graph, memory_order_relaxed);
    exec->staged->last = g;
    exec->staged->slot = slot;
    if (before)
        settle(exec, before, old);
    if (!late)
        exec_settle(exec);
    if (exec->maxran)
        exec_times(exec, began);
    atomic_store_explicit(&exec->progress.now, NULL, memory_order_relaxed);
}
