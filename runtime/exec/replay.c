/* replay.c: programs run on a device with memory of its own. A program's first
 * run launches its instructions one by one; then, on a device that can capture,
 * they are captured, and every later run is one launch of a graph (but see
 * is_plain):
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
    int first; /* some of them store what they add in later rows */
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

static void copy(Exec *exec, void *to, const void *from, int64_t bytes)
{
    exec->dev->copy(exec->on, STREAMcompute, COPYwithin, to, from, bytes);
}

static int64_t scalar_bytes(const Scalar *scalar)
{
    return scalar_elems(scalar) * dtypes[scalar->dt].bytes;
}

/* Its room among the results. */
static int64_t result_bytes(const Scalar *scalar)
{
    return (scalar_bytes(scalar) + WORD - 1) / WORD * WORD;
}

/* ---- opening ------------------------------------------------------------- */

/* Of a micro-batch: the scalar `micro`, then the inputs. */
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

/* A micro-batch of an input, from the stage; a pair's second lies there as
 * others do. */
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

/* The calls of the row at which the stage stands. */
static void run_row(Exec *exec, Stage *stage)
{
    int phase = stage->course[stage->prog].row[stage->row].phase;
    int n = stage->rank[0]->role->prog[stage->prog].phase[phase].n;

    for (stage->instr = 0; stage->instr < n; stage->instr++)
        run_instr(exec, &stage, 1);
    stage->instr = n - 1;
}

/* Its graph, whose addresses are those that are patched in now. */
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

/* Too many nodes for one graph, and rows that are graphs of their own: nothing
 * between stages, no stream that goes on from row to row, and nothing that one
 * of a phase's rows alone runs? */
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

/* Does it copy activations to the host's memory beside what computes? */
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

/* Is it launched call by call? In a graph such copies hold up what computes: 8
 * layers of Qwen3's widths with half of their activations' memory take 764 ms a
 * step in one and 756 so, on an H200; with nothing to copy 742 and 746. Calls
 * wait for room in the GPU's queue, and an abort waits for them: ranks that
 * wait for others have graphs. */
static int is_plain(const Exec *exec, const StagedProgram *program)
{
    const char *asked = getenv("PLEAT_NOGRAPH");

    if (!(exec->dev->can & CANcapture) || exec->maxran || exec->copy ||
        getenv("PLEAT_SYNC"))
        return 1;
    return asked ? strcmp(asked, "0") != 0
                 : exec->comm->world == 1 && copies_beside(program->prog);
}

/* The first run launches, so that what is made on first use (library kernels,
 * connections) is there; the second is captured. */
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

/* ---- its inputs ---------------------------------------------------------- */

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

/* For a run behind none that may overflow; of one behind such a run the device
 * knows. */
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

/* Waits for the run of this slot, and for ranks that it waits for: one that is
 * dead, and what NCCL says of it, ends in the watchdog's line. */
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
