/* interpreter.c: runs programs. A stage is the ranks of this process that run
 * one role. It runs instructions of its rows (a phase for a micro-batch) until
 * it would block: a recv before its send, a wait before its copy was taken, a
 * collective with members in stages that have not arrived. The stages of one
 * process take turns. If none can advance, they wait for each other, which is
 * an error and not a hang. Under mpirun a process has one stage and MPI
 * blocks. */
#include "exec.h"

/* ---- inputs of a micro-batch --------------------------------------------- */

/* Loads the inputs of a row's micro-batch from the feed or the staged block. */
static void load(Exec *exec, Stage *stage, const ScheduleSlot *row)
{
    const Needs *needs = &stage->course[stage->prog].needs[row->phase];
    const Phase *phase = &stage_program(stage)->phase[row->phase];
    int64_t micro = phase_micro(phase, row->micro, 0);

    for (size_t k = 0; k < vec_len(needs->input) && exec->feed; k++) {
        const Tensor *t = &stage->rank[0]->role->tensor[needs->input[k]];
        int64_t own = phase_micro(phase, row->micro, t->second);
        if (stage->loaded[needs->input[k]] == own)
            continue;
        for (int64_t i = 0; i < stage->nrank; i++)
            exec->feed->fill(exec->feed->self, t, stage->rank[i]->id, own,
                             stage->rank[i]->buf[t->buf]);
        stage->loaded[needs->input[k]] = own;
    }
    for (int64_t i = 0;
         i < stage->nrank && needs->micro && stage->micro != micro; i++)
        exec->micro(exec, stage->rank[i], micro);
    stage->micro = needs->micro ? micro : stage->micro;
}

/* Sets operands that lie in frames to this micro-batch's addresses. */
static void patch(const Stage *stage, const ScheduleSlot *slot)
{
    const SlotGroup *frame = stage_program(stage)->frame;

    for (int64_t i = 0; i < stage->nrank; i++) {
        Patch *p = stage->rank[i]->patch[stage->prog][slot->phase];
        for (size_t k = 0; k < vec_len(p); k++) {
            const SlotGroup *group = &frame[p[k].frame];
            *p[k].at =
                rank_place(stage->rank[i],
                           group->slot[group->of[slot->micro]] + p[k].offset);
        }
    }
}

/* Sets instructions that store in the first run of their phase and add in the
 * later ones. */
static void set_adds(const Stage *stage)
{
    const UnrolledProgram *course = &stage->course[stage->prog];
    const int *instr = course->stores[course->row[stage->row].phase];

    for (int64_t i = 0; i < stage->nrank; i++)
        for (size_t k = 0; k < vec_len(instr); k++) {
            BoundInstr *bound = &stage->rank[i]->bound[stage->prog][instr[k]];
            bound->adds = !course->first[stage->row];
            if (bound->add)
                *bound->add = bound->adds;
        }
}

/* ---- clocks -------------------------------------------------------------- */

/* Records an instruction between two marks; instr -1: the start of a row. */
static void record(Exec *exec, const Stage *stage, int instr, int64_t from,
                   int64_t to)
{
    const ScheduleSlot *slot = stage_slot(stage);

    if (exec->nran < exec->maxran)
        exec->ran[exec->nran++] =
            (InstrTiming){ stage->role, slot->phase, instr, slot->micro,
                           0,           0,           from,  to };
}

/* Records a mark on the stream and returns its number. */
static int64_t mark(Exec *exec, StreamKind on)
{
    if (exec->nmark == exec->maxmark)
        return exec->nmark - 1;
    void **e = &exec->mark[exec->nmark];
    if (!*e)
        *e = exec->dev->event(exec->on, EVENTtimed);
    exec->dev->record(exec->on, on, *e);
    exec->timed |= 1u << on;
    return exec->nmark++;
}

void exec_times(Exec *exec, double began)
{
    for (int on = 0; on < NSTREAM; on++)
        if (exec->timed >> on & 1)
            exec->dev->sync(exec->on, (StreamKind)on);
    for (int64_t i = 0; i < exec->nran; i++) {
        InstrTiming *timing = &exec->ran[i];
        timing->start = began + exec->dev->between(exec->on, exec->mark[0],
                                                   exec->mark[timing->from]);
        timing->end = began + exec->dev->between(exec->on, exec->mark[0],
                                                 exec->mark[timing->to]);
    }
}

static void begin_row(Exec *exec, Stage *stage)
{
    const ScheduleSlot *slot = stage_slot(stage);

    if (exec->nstage == 1)
        nvtx_begin(stage_program(stage)->phase[slot->phase].name);
    load(exec, stage, slot);
    patch(stage, slot);
    set_adds(stage);
    if (!exec->maxran)
        return;
    exec->marked = mark(exec, STREAMcompute);
    record(exec, stage, -1, exec->marked, exec->marked);
}

/* Moves to the first instruction at or after instr that runs in this row.
 * Returns 0 if none is left. */
static int stage_goes_on(Stage *stage)
{
    const Program *program = stage_program(stage);
    const ScheduleSlot *slot = stage_slot(stage);
    int n = program->phase[slot->phase].n;

    while (stage->instr < n &&
           !runs_in(program, &program->instr[stage_instr(stage)], slot))
        stage->instr++;
    return stage->instr < n;
}

/* Moves to the next instruction, across the ends of rows; row -1: to the
 * first. */
void stage_next(Exec *exec, Stage *stage)
{
    stage->instr++;
    while (!stage_ended(stage)) {
        if (stage->row >= 0 && stage_goes_on(stage))
            return;
        if (stage->row >= 0 && exec->nstage == 1)
            nvtx_end();
        stage->row++;
        stage->instr = 0;
        if (!stage_ended(stage))
            begin_row(exec, stage);
    }
}

/* ---- one instruction ----------------------------------------------------- */

static void run_memory(Exec *exec, const BoundInstr *bound)
{
    const GapList *gap = &bound->instr->join.gap;

    switch (bound->instr->kind) {
    case Izero:
        exec->dev->clear(exec->on, bound->on, bound->buf[0], bound->bytes);
        break;
    case Ijoin:
        for (int i = 0; i < gap->n; i++)
            exec->dev->clear(exec->on, bound->on,
                             (uint8_t *)bound->buf[0] + gap->at[i].from,
                             gap->at[i].bytes);
        break;
    default:
        exec->dev->copy(exec->on, bound->on, bound->copy, bound->buf[1],
                        bound->buf[0], bound->bytes);
    }
}

/* Runs a collective for all members in this process; the group's first member
 * runs it for the others. */
static void run_group(Exec *exec, const BoundInstr *bound)
{
    enum { MAXLOCAL = 1024 };
    static Part part[MAXLOCAL];
    int64_t n = exec->comm->n < exec->comm->world ? 1 : bound->group;

    if (n > 1 && bound->me != 0)
        return;
    if (n > MAXLOCAL)
        err(NULL, "a group of %ld ranks in one process", n);
    for (int64_t j = 0; j < n; j++) {
        const BoundInstr *instr =
            n == 1
                ? bound
                : rank_instr(&exec->rank[bound->ranks[j] - exec->comm->first]);
        part[j] = (Part){ instr->buf[0], instr->buf[1], instr->buf[2] };
    }
    exec->dev->collective(exec->on, bound, part);
}

typedef struct OwnBlocks {
    Exec *exec;
    const BoundInstr *bound;
    int64_t size; /* bytes of an element */
} OwnBlocks;

/* Copies n bytes from offset `from` of the sent buffer to offset `to` of the
 * received one. */
static void copy_own(Exec *exec, const BoundInstr *bound, int64_t from,
                     int64_t to, int64_t n)
{
    uint8_t *send = (uint8_t *)bound->buf[0] + from;
    uint8_t *recv = (uint8_t *)bound->buf[1] + to;

    if (recv + n <= send || send + n <= recv)
        exec->dev->copy(exec->on, bound->on, COPYwithin, recv, send, n);
}

static void copy_run(void *ctx, int64_t out, int64_t in, int64_t n)
{
    const OwnBlocks *own = ctx;

    copy_own(own->exec, own->bound, out * own->size, in * own->size,
             n * own->size);
}

/* Replaces a collective by copies of the rank's own data (Exec.alone). Every
 * block of an all-to-all becomes the block that stays on this rank: routing
 * indices of other ranks would name experts that are not here. Other
 * collectives repeat the rank's bytes until the result is full. All results are
 * written and values stay in range. */
static void fill_with_own(Exec *exec, const BoundInstr *bound)
{
    const Role *role = exec->rank[bound->rank - exec->comm->first].role;
    const Instr *instr = bound->instr;
    int64_t from = role->buf[instr->buf[0]].bytes,
            to = role->buf[instr->buf[1]].bytes;
    OwnBlocks own = { exec, bound, dtypes[instr_dtype(instr, 0)].bytes };
    int blocks = instr->kind == Ialltoall;

    for (int64_t r = 0; r < bound->group && blocks; r++)
        comm_runs(instr, bound->group, bound->me, r, copy_run, &own);
    for (int64_t at = 0; at < to && from && !blocks; at += from)
        copy_own(exec, bound, 0, at, to - at < from ? to - at : from);
}

static void await_events(Exec *exec, const BoundInstr *bound)
{
    for (size_t i = 0; i < vec_len(bound->wait); i++)
        exec->dev->wait(exec->on, bound->on, bound->wait[i]);
}

static void run_one(Exec *exec, const BoundInstr *bound)
{
    switch (instr_info(bound->instr->kind)->cls) {
    case CLASScompute: exec->dev->launch(exec->on, bound); break;
    case CLASSproduct: exec->dev->product(exec->on, bound); break;
    case CLASSmemory: run_memory(exec, bound); break;
    case CLASStransfer: exec->dev->transfer(exec->on, bound); break;
    case CLASScollective:
        if (exec->alone)
            fill_with_own(exec, bound);
        else
            run_group(exec, bound);
        break;
    }
    if (bound->signal)
        exec->dev->record(exec->on, bound->on, bound->signal);
    if (exec->dev->issued)
        exec->dev->issued(exec->on, bound);
}

/* Poisons results after the stream has drained: earlier instructions may still
 * read that memory. */
static void poison(Exec *exec, const Rank *rank)
{
    const BoundInstr *bound = rank_instr(rank);

    if (bound->on != STREAMcompute)
        exec->dev->sync(exec->on, bound->on);
    poison_instr(rank, bound);
}

/* Returns the mark at which an instruction begins: the previous one on compute,
 * on other streams a new one after the events it waits for. */
static int64_t begin_instr(Exec *exec, const BoundInstr *bound)
{
    if (!exec->maxran || bound->on == STREAMcompute)
        return exec->marked;
    return mark(exec, bound->on);
}

static void end_instr(Exec *exec, Stage *const *s, int n, int64_t from)
{
    if (!exec->maxran)
        return;
    StreamKind on = rank_instr(s[0]->rank[0])->on;
    int64_t to = mark(exec, on);
    for (int i = 0; i < n; i++)
        record(exec, s[i], stage_instr(s[i]), from, to);
    if (on == STREAMcompute)
        exec->marked = to;
}

static void show_results(const Exec *exec, Stage *const *s, int n)
{
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++) {
            exec->dev->sync(exec->on, rank_instr(s[i]->rank[k])->on);
            exec->look(exec->looker, s[i], s[i]->rank[k]);
        }
}

/* Runs the current instruction of n stages; n > 1: a collective across
 * stages. */
void run_instr(Exec *exec, Stage *const *s, int n)
{
    const Instr *now = rank_instr(s[0]->rank[0])->instr;

    nvtx_begin(instr_label(now));
    atomic_store_explicit(&exec->progress.now, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&exec->progress.ticks, 1, memory_order_relaxed);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            await_events(exec, rank_instr(s[i]->rank[k]));
    for (int i = 0; i < n; i++) /* the capture has its stream by now */
        if (rank_instr(s[i]->rank[0])->lasts)
            exec_guard(exec, rank_instr(s[i]->rank[0])->on);
    if (exec->copy && !exec->bad)
        look_before(exec, s, n);
    for (int i = 0; i < n && exec->poison && !exec->copy; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            poison(exec, s[i]->rank[k]);
    int64_t from = begin_instr(exec, rank_instr(s[0]->rank[0]));
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            run_one(exec, rank_instr(s[i]->rank[k]));
    if (exec->copy && !exec->bad)
        look_after(exec, s, n);
    if (exec->look)
        show_results(exec, s, n);
    end_instr(exec, s, n, from);
    nvtx_end();
}

/* ---- stages that can advance --------------------------------------------- */

static int same_call(const BoundInstr *a, const BoundInstr *b)
{
    return a->instr->atoms == b->instr->atoms && same_args(a->instr, b->instr);
}

/* Collects the stages of a collective's members in exec->meet. Returns their
 * number; 0: not all have arrived. */
static int meet(Exec *exec, Stage *stage)
{
    const BoundInstr *bound = rank_instr(stage->rank[0]);
    int n = 0;

    for (int i = 0; i < exec->nstage; i++)
        exec->stage[i].met = 0;
    for (int64_t j = 0; j < bound->group; j++) {
        const Rank *rank = &exec->rank[bound->ranks[j] - exec->comm->first];
        if (rank->stage->met)
            continue;
        if (stage_ended(rank->stage) || !same_call(rank_instr(rank), bound))
            return 0;
        rank->stage->met = 1;
        exec->meet[n++] = rank->stage;
    }
    return n;
}

/* Runs one instruction of a stage and of the stages that share it. Returns 0 if
 * it has to wait. */
static int advance(Exec *exec, Stage *stage)
{
    if (stage_ended(stage))
        return 0;
    const BoundInstr *bound = rank_instr(stage->rank[0]);
    int n = 1;
    exec->meet[0] = stage;
    if (bound->wide && exec->comm->n > 1)
        n = meet(exec, stage);
    for (int64_t i = 0; i < stage->nrank && n; i++)
        n = exec->dev->ready(exec->on, rank_instr(stage->rank[i])) ? n : 0;
    if (n)
        run_instr(exec, exec->meet, n);
    for (int i = 0; i < n; i++)
        stage_next(exec, exec->meet[i]);
    return n > 0;
}

static _Noreturn void deadlock(const Exec *exec)
{
    int stuck = 0;

    for (int i = 0; i < exec->nstage; i++) {
        const Stage *stage = &exec->stage[i];
        if (stage_ended(stage))
            continue;
        const Instr *instr = rank_instr(stage->rank[0])->instr;
        note(&(Loc){ instr->file, instr->line, NULL },
             "stage %d stands at %s %s (%s, micro-batch %d)", stage->role,
             instr_info(instr->kind)->name, instr->label ? instr->label : "",
             stage_program(stage)->phase[stage_slot(stage)->phase].name,
             stage_slot(stage)->micro);
        stuck++;
    }
    err(NULL, "deadlock: %d of %d pipeline stages wait for each other", stuck,
        exec->nstage);
}

void exec_stages(Exec *exec)
{
    int moved = 1, left = exec->nstage;

    for (int i = 0; i < exec->nstage; i++)
        stage_next(exec, &exec->stage[i]);
    while (left) {
        if (!moved)
            deadlock(exec);
        left = moved = 0;
        for (int i = 0; i < exec->nstage; i++) {
            while (advance(exec, &exec->stage[i]))
                moved = 1;
            left += !stage_ended(&exec->stage[i]);
        }
    }
}

/* ---- interface ----------------------------------------------------------- */

void exec_start(Exec *exec, ProgramKind program)
{
    for (int i = 0; i < exec->nstage; i++) {
        Stage *stage = &exec->stage[i];
        const Role *role = stage->rank[0]->role;
        stage->prog = role_prog(role, program);
        if (stage->prog < 0)
            err(NULL, "the plan has no program '%s'", programnames[program]);
        stage->row = stage->instr = -1;
        stage->micro = -1;
        for (int k = 0; k < role->ntensor; k++)
            stage->loaded[k] = -1;
    }
    exec->nran = 0;
    exec->nmark = 0;
    exec->timed = 0;
    exec->ordered = 0;
    exec->dev->begin(exec->on);
}
