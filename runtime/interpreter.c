/* interpreter.c: programs run. A stage is the ranks here that run one role; it
 * stands at a step of a row (a turn of a phase) and goes on until it would
 * block: a recv of what was not sent, a wait for what was not taken, a
 * collective with members in other stages that have not come. In one process
 * the stages take turns at that; when none can move they wait for each other,
 * which is an error and not a hang. Under mpirun there is one stage here and
 * MPI blocks. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

/* ---- where a stage stands ------------------------------------------------ */

static const Program *program(const Stage *s)
{
    return &s->rank[0]->role->prog[s->prog];
}

static int at_end(const Stage *s)
{
    return s->row == s->course[s->prog].nrow;
}

static const ScheduleSlot *turn_of(const Stage *s)
{
    return &s->course[s->prog].row[s->row];
}

static int step_of(const Stage *s)
{
    return program(s)->phase[turn_of(s)->phase].first + s->step;
}

BoundInstr *rank_instr(const Rank *r)
{
    return &r->step[r->stage->prog][step_of(r->stage)];
}

/* ---- what a turn needs --------------------------------------------------- */

/* micro: the first micro-batch of the turn among all of the step, so the same
 * on all ranks. */
double first_micro(const Exec *x, int64_t turn)
{
    int64_t v = turn * x->plan->mesh->size[Mdp];

    return (double)v;
}

void set_scalar(const Rank *r, const char *name, double v)
{
    int k = scalar_named(r->role, name);

    if (k >= 0)
        elem_set(r->role->in[k].dt, r->buf[r->role->in[k].buf], 0, v);
}

/* From the feed, or from where the run has staged it. */
static void load(Exec *x, Stage *s, const Needs *n, int64_t micro)
{
    for (size_t k = 0; k < vec_len(n->input) && x->feed; k++) {
        const Tensor *t = &s->rank[0]->role->tensor[n->input[k]];
        if (s->loaded[n->input[k]] == micro)
            continue;
        for (int64_t i = 0; i < s->n; i++)
            x->feed->fill(x->feed->self, t, s->rank[i]->id, micro,
                          s->rank[i]->buf[t->buf]);
        s->loaded[n->input[k]] = micro;
    }
    for (int64_t i = 0; i < s->n && n->micro && s->micro != micro; i++)
        if (x->staged)
            staged_micro(x, micro);
        else
            set_scalar(s->rank[i], "micro", first_micro(x, micro));
    s->micro = n->micro ? micro : s->micro;
}

/* Buffers in frames lie where this micro-batch has them. */
static void patch(const Stage *s, const ScheduleSlot *t)
{
    const SlotGroup *frame = program(s)->frame;

    for (int64_t i = 0; i < s->n; i++) {
        Patch *p = s->rank[i]->patch[s->prog][t->phase];
        for (size_t k = 0; k < vec_len(p); k++) {
            const SlotGroup *f = &frame[p[k].frame];
            *p[k].at =
                s->rank[i]->base + f->slot[f->of[t->micro]] + p[k].offset;
        }
    }
}

/* ---- clocks -------------------------------------------------------------- */

/* What came to its end now, and began at the mark before; step -1: a row, which
 * begins. */
static void record(Exec *x, const Stage *s, int step, int from)
{
    const ScheduleSlot *t = turn_of(s);

    if (x->nran < x->maxran)
        x->ran[x->nran++] =
            (InstrTiming){ s->role, t->phase, step, t->micro,
                           0,       0,        from, x->nmark - 1 };
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
    const ScheduleSlot *t = turn_of(s);

    if (x->nstage == 1)
        nvtx_begin(program(s)->phase[t->phase].name);
    load(x, s, &s->course[s->prog].needs[t->phase], t->micro);
    patch(s, t);
    if (!x->maxran)
        return;
    mark(x);
    record(x, s, -1, x->nmark - 1);
}

/* To the next step, over the ends of rows; row -1: from the start. */
void stage_next(Exec *x, Stage *s)
{
    s->step++;
    while (!at_end(s)) {
        if (s->row >= 0 && s->step < program(s)->phase[turn_of(s)->phase].n)
            return;
        if (s->row >= 0 && x->nstage == 1)
            nvtx_end();
        s->row++;
        s->step = 0;
        if (!at_end(s))
            begin_row(x, s);
    }
}

/* ---- one step ------------------------------------------------------------ */

static void run_memory(Exec *x, const BoundInstr *b)
{
    const GapList *gap = &b->s->join.gap;

    switch (b->s->kind) {
    case Izero: x->dev->clear(x->on, b->buf[0], b->bytes); break;
    case Ijoin:
        for (int i = 0; i < gap->n; i++)
            x->dev->clear(x->on, (uint8_t *)b->buf[0] + gap->at[i].from,
                          gap->at[i].bytes);
        break;
    default:
        x->dev->copy(x->on, STREAMcompute, COPYwithin, b->buf[1], b->buf[0],
                     b->bytes);
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
        part[j] = (Part){ o->buf[0], o->buf[1] };
    }
    x->dev->collective(x->on, b, part);
}

static void run_one(Exec *x, const BoundInstr *b)
{
    switch (instr_info(b->s->kind)->cls) {
    case CLASScompute: x->dev->launch(x->on, b); break;
    case CLASSproduct: x->dev->product(x->on, b); break;
    case CLASSmemory: run_memory(x, b); break;
    case CLASStransfer: x->dev->transfer(x->on, b); break;
    case CLASScollective: run_group(x, b); break;
    }
    x->dev->issued(x->on, b);
}

/* The step at which these stages stand; several: a wide collective. */
void run_step(Exec *x, Stage *const *s, int n)
{
    const Instr *step = rank_instr(s[0]->rank[0])->s;

    nvtx_begin(instr_label(step));
    atomic_store_explicit(&x->now, step, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->ticks, 1, memory_order_relaxed);
    for (int i = 0; i < n; i++)
        if (rank_instr(s[i]->rank[0])->lasts)
            exec_guard(x);
    if (x->copy && !x->bad)
        look_before(x, s, n);
    for (int i = 0; i < n && x->poison && !x->copy; i++)
        for (int64_t k = 0; k < s[i]->n; k++)
            poison_instr(s[i]->rank[k], rank_instr(s[i]->rank[k]));
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->n; k++)
            run_one(x, rank_instr(s[i]->rank[k]));
    if (x->copy && !x->bad)
        look_after(x, s, n);
    if (x->maxran)
        mark(x);
    for (int i = 0; i < n && x->maxran; i++)
        record(x, s[i], step_of(s[i]), x->nmark - 2);
    nvtx_end();
}

/* ---- who can move -------------------------------------------------------- */

static int same_call(const BoundInstr *a, const BoundInstr *b)
{
    return a->s->atoms == b->s->atoms && same_args(a->s, b->s);
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
        if (at_end(r->stage) || !same_call(rank_instr(r), b))
            return 0;
        r->stage->met = 1;
        x->meet[n++] = r->stage;
    }
    return n;
}

/* One step of a stage, and of those that take it together; 0: it must wait. */
static int advance(Exec *x, Stage *s)
{
    if (at_end(s))
        return 0;
    const BoundInstr *b = rank_instr(s->rank[0]);
    int n = 1;
    x->meet[0] = s;
    if (b->wide && x->comm->n > 1)
        n = meet(x, s);
    for (int64_t i = 0; i < s->n && n; i++)
        n = x->dev->ready(x->on, rank_instr(s->rank[i])) ? n : 0;
    if (n)
        run_step(x, x->meet, n);
    for (int i = 0; i < n; i++)
        stage_next(x, x->meet[i]);
    return n > 0;
}

static _Noreturn void deadlock(const Exec *x)
{
    int stuck = 0;

    for (int i = 0; i < x->nstage; i++) {
        const Stage *s = &x->stage[i];
        if (at_end(s))
            continue;
        const Instr *p = rank_instr(s->rank[0])->s;
        note(&(Loc){ p->file, p->line, NULL },
             "stage %d stands at %s %s (%s, micro-batch %d)", s->role,
             instr_info(p->kind)->name, p->label ? p->label : "",
             program(s)->phase[turn_of(s)->phase].name, turn_of(s)->micro);
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
            left += !at_end(&x->stage[i]);
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
        s->row = s->step = -1;
        s->micro = -1;
        for (int k = 0; k < r->ntensor; k++)
            s->loaded[k] = -1;
    }
    x->nran = 0;
    x->nmark = 0;
    x->ordered = 0;
    x->dev->begin(x->on);
}

int64_t step_scalars(const Exec *x, const StepValues *b, StepScalar *v)
{
    StepScalar all[] = { { "lr", b->lr },
                         { "bc1", b->bc1 },
                         { "bc2", b->bc2 },
                         { "step", (double)b->step },
                         { "hold", x->hold },
                         { "skip_loss", x->limits.loss },
                         { "skip_gnorm", x->limits.gnorm } };

    memcpy(v, all, sizeof all);
    return NSTEPSCALAR;
}

void exec_run(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed)
{
    StepScalar v[NSTEPSCALAR];
    double began = monotonic();

    x->step = b ? b->step : x->step;
    if (x->staged) {
        staged_run(x, k, b, feed);
        return;
    }
    exec_start(x, k);
    for (int64_t i = 0, n = b ? step_scalars(x, b, v) : 0; i < n; i++)
        for (int64_t r = 0; r < x->comm->n; r++)
            set_scalar(&x->rank[r], v[i].name, v[i].value);
    x->feed = feed;
    exec_stages(x);
    x->dev->finish(x->on);
    x->feed = NULL;
    atomic_store_explicit(&x->now, NULL, memory_order_relaxed);
    exec_times(x, began);
}

/* A loss of -infinity, which is no fault in any other tensor. Null: none. */
static const char *bad_loss(Exec *x)
{
    const Role *r = x->rank[0].role;

    for (int i = 0; i < r->nout; i++) {
        const Buf *b = &r->buf[r->out[i].buf];
        if (!strncmp(r->out[i].name, "loss.", 5) &&
            isinf(exec_result(x, r->out[i].name)))
            return strf(x->mem, "%s is infinite%s", r->out[i].name,
                        b->file ? strf(x->mem, " (%s:%d)", b->file, b->line)
                                : "");
    }
    return NULL;
}

const char *exec_checked(Exec *x, ProgramKind k, const StepValues *b,
                         const Feed *feed)
{
    look_open(x);
    exec_run(x, k, b, feed);
    look_close(x);
    return x->bad ? x->bad : bad_loss(x);
}

void exec_record(Exec *x, ProgramKind program)
{
    int64_t n = 0;

    for (int i = 0; i < x->nstage && program < NPROGRAM; i++) {
        const Stage *s = &x->stage[i];
        int prog = role_prog(s->rank[0]->role, program);
        const UnrolledProgram *c = prog < 0 ? NULL : &s->course[prog];
        for (int k = 0; c && k < c->nrow; k++)
            n += 1 + s->rank[0]->role->prog[prog].phase[c->row[k].phase].n;
    }
    x->ran = n ? alloc(x->mem, (size_t)n * sizeof *x->ran) : NULL;
    x->mark = n ? alloc(x->mem, (size_t)n * sizeof *x->mark) : NULL;
    x->maxran = n;
    x->nran = 0;
}

/* ---- what ran, as a file ------------------------------------------------- */

static void put_event(Text *t, const InstrTiming *r, const char *name,
                      double end)
{
    put(t, "%s{\"name\": ", t->len > 1 ? ",\n" : "\n");
    put_json(t, name);
    put(t,
        ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
        "\"dur\": %.3f, \"args\": {\"micro\": %lld",
        r->stage, r->step >= 0, r->start * 1e6, (end - r->start) * 1e6,
        (long long)r->micro);
}

/* Further what a user looks for, and the kernel a profiler names. */
static void put_facts(Text *t, const Instr *s)
{
    if (s && s->kernel)
        put(t, ", \"kernel\": \"%s\"", s->kernel);
    if (s && s->file) {
        put(t, ", \"at\": ");
        put_json(t, strf(t->arena, "%s:%d", s->file, s->line));
    }
    if (s && s->secs > 0)
        put(t, ", \"planned us\": %.1f", s->secs * 1e6);
    put(t, "}}");
}

/* Where the row that began at k ends: with its last step. */
static double row_end(const Exec *x, int64_t k)
{
    const InstrTiming *row = &x->ran[k];
    double end = row->start;

    for (k++; k < x->nran; k++) {
        const InstrTiming *r = &x->ran[k];
        if (r->stage == row->stage && r->step < 0)
            break;
        end = r->stage == row->stage ? r->end : end;
    }
    return end;
}

char *exec_trace(Arena *a, const Exec *x, ProgramKind program, size_t *len)
{
    Text t = { .arena = a };

    put(&t, "[");
    for (int64_t k = 0; k < x->nran; k++) {
        const InstrTiming *r = &x->ran[k];
        const Role *role = &x->plan->role[r->stage];
        const Program *g = &role->prog[role_prog(role, program)];
        const Instr *s = r->step < 0 ? NULL : &g->instr[r->step];
        put_event(&t, r,
                  !s         ? g->phase[r->phase].name
                  : s->label ? s->label
                             : instr_info(s->kind)->name,
                  s ? r->end : row_end(x, k));
        put_facts(&t, s);
    }
    put(&t, "\n]\n");
    *len = t.len;
    return t.s;
}
