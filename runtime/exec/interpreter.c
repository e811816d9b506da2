/* interpreter.c: programs run. A stage is the ranks here that run one role; it
 * stands at an instruction of a row (a phase for a micro-batch) and goes on
 * until it would block: a recv of what was not sent, a wait for what was not
 * taken, a collective with members in other stages that have not come. In one
 * process the stages take turns at that; when none can move they wait for each
 * other, which is an error and not a hang. Under mpirun there is one stage here
 * and MPI blocks. */

#include "exec.h"

/* ---- what a micro-batch needs -------------------------------------------- */

/* From the feed, or from where the run has staged it. */
static void load(Exec *x, Stage *s, const ScheduleSlot *row)
{
    const Needs *n = &s->course[s->prog].needs[row->phase];
    const Phase *f = &stage_program(s)->phase[row->phase];
    int64_t micro = phase_micro(f, row->micro, 0);

    for (size_t k = 0; k < vec_len(n->input) && x->feed; k++) {
        const Tensor *t = &s->rank[0]->role->tensor[n->input[k]];
        int64_t own = phase_micro(f, row->micro, t->second);
        if (s->loaded[n->input[k]] == own)
            continue;
        for (int64_t i = 0; i < s->nrank; i++)
            x->feed->fill(x->feed->self, t, s->rank[i]->id, own,
                          s->rank[i]->buf[t->buf]);
        s->loaded[n->input[k]] = own;
    }
    for (int64_t i = 0; i < s->nrank && n->micro && s->micro != micro; i++)
        x->micro(x, s->rank[i], micro);
    s->micro = n->micro ? micro : s->micro;
}

/* Buffers in frames lie where this micro-batch has them. */
static void patch(const Stage *s, const ScheduleSlot *t)
{
    const SlotGroup *frame = stage_program(s)->frame;

    for (int64_t i = 0; i < s->nrank; i++) {
        Patch *p = s->rank[i]->patch[s->prog][t->phase];
        for (size_t k = 0; k < vec_len(p); k++) {
            const SlotGroup *f = &frame[p[k].frame];
            *p[k].at =
                rank_place(s->rank[i], f->slot[f->of[t->micro]] + p[k].offset);
        }
    }
}

/* ---- clocks -------------------------------------------------------------- */

/* What came to its end now, and began at the mark before; instr -1: a row,
 * which begins. */
static void record(Exec *x, const Stage *s, int instr, int from)
{
    const ScheduleSlot *t = stage_slot(s);

    if (x->nran < x->maxran)
        x->ran[x->nran++] =
            (InstrTiming){ s->role, t->phase, instr, t->micro,
                           0,       0,        from,  x->nmark - 1 };
}

static void mark(Exec *x)
{
    if (x->nmark == x->maxran)
        return;
    void **e = &x->mark[x->nmark++];
    if (!*e)
        *e = x->dev->event(x->on, EVENTtimed);
    x->dev->record(x->on, STREAMcompute, *e);
}

void exec_times(Exec *x, double began)
{
    for (int64_t i = 0; i < x->nran; i++) {
        InstrTiming *r = &x->ran[i];
        r->start = began + x->dev->between(x->on, x->mark[0], x->mark[r->from]);
        r->end = began + x->dev->between(x->on, x->mark[0], x->mark[r->to]);
    }
}

static void begin_row(Exec *x, Stage *s)
{
    const ScheduleSlot *t = stage_slot(s);

    if (x->nstage == 1)
        nvtx_begin(stage_program(s)->phase[t->phase].name);
    load(x, s, t);
    patch(s, t);
    if (!x->maxran)
        return;
    mark(x);
    record(x, s, -1, x->nmark - 1);
}

/* To the next instruction, over the ends of rows; row -1: from the start. */
void stage_next(Exec *x, Stage *s)
{
    s->instr++;
    while (!stage_ended(s)) {
        if (s->row >= 0 &&
            s->instr < stage_program(s)->phase[stage_slot(s)->phase].n)
            return;
        if (s->row >= 0 && x->nstage == 1)
            nvtx_end();
        s->row++;
        s->instr = 0;
        if (!stage_ended(s))
            begin_row(x, s);
    }
}

/* ---- one instruction ----------------------------------------------------- */

static void run_memory(Exec *x, const BoundInstr *b)
{
    const GapList *gap = &b->instr->join.gap;

    switch (b->instr->kind) {
    case Izero: x->dev->clear(x->on, b->on, b->buf[0], b->bytes); break;
    case Ijoin:
        for (int i = 0; i < gap->n; i++)
            x->dev->clear(x->on, b->on, (uint8_t *)b->buf[0] + gap->at[i].from,
                          gap->at[i].bytes);
        break;
    default:
        x->dev->copy(x->on, b->on, b->copy, b->buf[1], b->buf[0], b->bytes);
    }
}

/* The collective at which rank r stands, with all members that are here; the
 * group's first member runs it for the others. */
static void run_group(Exec *x, const BoundInstr *b)
{
    enum { MAXLOCAL = 1024 };
    static Part part[MAXLOCAL];
    int64_t n = x->comm->n < x->comm->world ? 1 : b->group;

    if (n > 1 && b->me != 0)
        return;
    if (n > MAXLOCAL)
        err(NULL, "a group of %lld ranks in one process", (long long)n);
    for (int64_t j = 0; j < n; j++) {
        const BoundInstr *o =
            n == 1 ? b : rank_instr(&x->rank[b->ranks[j] - x->comm->first]);
        part[j] = (Part){ o->buf[0], o->buf[1], o->buf[2] };
    }
    x->dev->collective(x->on, b, part);
}

/* In place of a collective: bytes of the rank's own, from the first on as often
 * as they fit. Blocks of an all-to-all so get what this rank would send away;
 * all that is read later was written, and numbers stay in their ranges. */
static void fill_with_own(Exec *x, const BoundInstr *b)
{
    const Role *r = x->rank[b->rank - x->comm->first].role;
    int64_t from = r->buf[b->instr->buf[0]].bytes,
            to = r->buf[b->instr->buf[1]].bytes;
    uint8_t *send = b->buf[0], *recv = b->buf[1];

    for (int64_t at = 0; at < to && from; at += from) {
        int64_t n = to - at < from ? to - at : from;
        if (recv + at + n <= send || send + n <= recv + at)
            x->dev->copy(x->on, b->on, COPYwithin, recv + at, send, n);
    }
}

static void await_events(Exec *x, const BoundInstr *b)
{
    for (size_t i = 0; i < vec_len(b->wait); i++)
        x->dev->wait(x->on, b->on, b->wait[i]);
}

static void run_one(Exec *x, const BoundInstr *b)
{
    switch (instr_info(b->instr->kind)->cls) {
    case CLASScompute: x->dev->launch(x->on, b); break;
    case CLASSproduct: x->dev->product(x->on, b); break;
    case CLASSmemory: run_memory(x, b); break;
    case CLASStransfer: x->dev->transfer(x->on, b); break;
    case CLASScollective:
        if (x->alone)
            fill_with_own(x, b);
        else
            run_group(x, b);
        break;
    }
    if (b->signal)
        x->dev->record(x->on, b->on, b->signal);
    if (x->dev->issued)
        x->dev->issued(x->on, b);
}

/* What stands before it on its stream must not read what is poisoned. */
static void poison(Exec *x, const Rank *r)
{
    const BoundInstr *b = rank_instr(r);

    if (b->on != STREAMcompute)
        x->dev->sync(x->on, b->on);
    poison_instr(r, b);
}

/* The instruction at which these stages stand; several: a wide collective. */
void run_instr(Exec *x, Stage *const *s, int n)
{
    const Instr *now = rank_instr(s[0]->rank[0])->instr;

    nvtx_begin(instr_label(now));
    atomic_store_explicit(&x->progress.now, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->progress.ticks, 1, memory_order_relaxed);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            await_events(x, rank_instr(s[i]->rank[k]));
    for (int i = 0; i < n; i++) /* its stream is in the capture by now */
        if (rank_instr(s[i]->rank[0])->lasts)
            exec_guard(x, rank_instr(s[i]->rank[0])->on);
    if (x->copy && !x->bad)
        look_before(x, s, n);
    for (int i = 0; i < n && x->poison && !x->copy; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            poison(x, s[i]->rank[k]);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++)
            run_one(x, rank_instr(s[i]->rank[k]));
    if (x->copy && !x->bad)
        look_after(x, s, n);
    if (x->maxran)
        mark(x);
    for (int i = 0; i < n && x->maxran; i++)
        record(x, s[i], stage_instr(s[i]), x->nmark - 2);
    nvtx_end();
}

/* ---- who can move -------------------------------------------------------- */

static int same_call(const BoundInstr *a, const BoundInstr *b)
{
    return a->instr->atoms == b->instr->atoms && same_args(a->instr, b->instr);
}

/* The stages of a wide collective's members to x->meet when all have come to
 * it; how many, or 0. */
static int meet(Exec *x, Stage *s)
{
    const BoundInstr *b = rank_instr(s->rank[0]);
    int n = 0;

    for (int i = 0; i < x->nstage; i++)
        x->stage[i].met = 0;
    for (int64_t j = 0; j < b->group; j++) {
        const Rank *r = &x->rank[b->ranks[j] - x->comm->first];
        if (r->stage->met)
            continue;
        if (stage_ended(r->stage) || !same_call(rank_instr(r), b))
            return 0;
        r->stage->met = 1;
        x->meet[n++] = r->stage;
    }
    return n;
}

/* One instruction of a stage, and of those that take it together; 0: it must
 * wait. */
static int advance(Exec *x, Stage *s)
{
    if (stage_ended(s))
        return 0;
    const BoundInstr *b = rank_instr(s->rank[0]);
    int n = 1;
    x->meet[0] = s;
    if (b->wide && x->comm->n > 1)
        n = meet(x, s);
    for (int64_t i = 0; i < s->nrank && n; i++)
        n = x->dev->ready(x->on, rank_instr(s->rank[i])) ? n : 0;
    if (n)
        run_instr(x, x->meet, n);
    for (int i = 0; i < n; i++)
        stage_next(x, x->meet[i]);
    return n > 0;
}

static _Noreturn void deadlock(const Exec *x)
{
    int stuck = 0;

    for (int i = 0; i < x->nstage; i++) {
        const Stage *s = &x->stage[i];
        if (stage_ended(s))
            continue;
        const Instr *p = rank_instr(s->rank[0])->instr;
        note(&(Loc){ p->file, p->line, NULL },
             "stage %d stands at %s %s (%s, micro-batch %d)", s->role,
             instr_info(p->kind)->name, p->label ? p->label : "",
             stage_program(s)->phase[stage_slot(s)->phase].name,
             stage_slot(s)->micro);
        stuck++;
    }
    err(NULL, "deadlock: %d of %d pipeline stages wait for each other", stuck,
        x->nstage);
}

void exec_stages(Exec *x)
{
    int moved = 1, left = x->nstage;

    for (int i = 0; i < x->nstage; i++)
        stage_next(x, &x->stage[i]);
    while (left) {
        if (!moved)
            deadlock(x);
        left = moved = 0;
        for (int i = 0; i < x->nstage; i++) {
            while (advance(x, &x->stage[i]))
                moved = 1;
            left += !stage_ended(&x->stage[i]);
        }
    }
}

/* ---- interface ----------------------------------------------------------- */

void exec_start(Exec *x, ProgramKind program)
{
    for (int i = 0; i < x->nstage; i++) {
        Stage *s = &x->stage[i];
        const Role *r = s->rank[0]->role;
        s->prog = role_prog(r, program);
        if (s->prog < 0)
            err(NULL, "the plan has no program '%s'", programnames[program]);
        s->row = s->instr = -1;
        s->micro = -1;
        for (int k = 0; k < r->ntensor; k++)
            s->loaded[k] = -1;
    }
    x->nran = 0;
    x->nmark = 0;
    x->ordered = 0;
    x->dev->begin(x->on);
}
