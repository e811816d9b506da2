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

static void set_scalar(Exec *x, const char *name, double v)
{
    for (int64_t i = 0; i < x->comm->n; i++) {
        const Role *r = x->rank[i].role;
        for (int k = 0; k < r->nin; k++)
            if (!strcmp(r->in[k].name, name))
                elem_set(r->in[k].dt, x->rank[i].buf[r->in[k].buf], 0, v);
    }
}

/* micro: the first micro-batch of the turn among all of the step, so the same
 * on all ranks. */
static void set_micro(Exec *x, const Rank *r, int64_t turn)
{
    int64_t v = turn * x->plan->mesh->size[Mdp];

    for (int k = 0; k < r->role->nin; k++)
        if (!strcmp(r->role->in[k].name, "micro"))
            elem_set(r->role->in[k].dt, r->buf[r->role->in[k].buf], 0,
                     (double)v);
}

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
        set_micro(x, s->rank[i], micro);
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
                s->rank[i]->arena + f->slot[f->of[t->micro]] + p[k].offset;
        }
    }
}

static InstrTiming *record(Exec *x, const Stage *s, int step)
{
    static InstrTiming nowhere;
    const ScheduleSlot *t = turn_of(s);

    if (x->nran == x->maxran)
        return &nowhere;
    InstrTiming *r = &x->ran[x->nran++];
    *r = (InstrTiming){ s->role, t->phase, step, t->micro, 0, 0 };
    return r;
}

static void begin_row(Exec *x, Stage *s)
{
    const ScheduleSlot *t = turn_of(s);

    load(x, s, &s->course[s->prog].needs[t->phase], t->micro);
    patch(s, t);
    if (x->maxran)
        record(x, s, -1)->start = monotonic();
}

/* To the next step, over the ends of rows; row -1: from the start. */
static void go_on(Exec *x, Stage *s)
{
    s->step++;
    while (!at_end(s)) {
        if (s->row >= 0 && s->step < program(s)->phase[turn_of(s)->phase].n)
            return;
        s->row++;
        s->step = 0;
        if (!at_end(s))
            begin_row(x, s);
    }
}

/* ---- one step ------------------------------------------------------------ */

static void call_kernel(void *ctx, int64_t lo, int64_t hi)
{
    const BoundInstr *b = ctx;

    b->fn(b->buf, b->iv, lo, hi);
}

static void run_one(Exec *x, BoundInstr *b)
{
    const Instr *s = b->s;

    switch (s->kind) {
    case Ikernel:
        pool_run(x->pool, call_kernel, b, b->iv[0],
                 s->nword > 1 ? b->iv[1] : 1);
        break;
    case Izero: memset(b->buf[0], 0, (size_t)b->bytes); break;
    case Ijoin:
        for (int i = 0; i < s->join.gap.n; i++)
            memset((uint8_t *)b->buf[0] + s->join.gap.at[i].from, 0,
                   (size_t)s->join.gap.at[i].bytes);
        break;
    case Icopy: memcpy(b->buf[1], b->buf[0], (size_t)b->bytes); break;
    case Isend:
    case Irecv:
    case Iwait: channel_run(b); break;
    default: blas_run(x->blas, s, b->buf, b->scratch);
    }
}

/* The collective at which rank r stands, with all members that are here; the
 * group's first member runs it for the others. */
static void run_group(Exec *x, const Rank *r)
{
    enum { MAXLOCAL = 1024 };
    static Part part[MAXLOCAL];
    const BoundInstr *b = rank_instr(r);
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
    comm_run(
        x->comm, x->pool,
        &(Coll){ b->s, b->group, b->ranks, part, b->me, b->scratch, NULL });
}

/* The step at which these stages stand; several: a wide collective. */
static void run_step(Exec *x, Stage *const *s, int n)
{
    const Instr *step = rank_instr(s[0]->rank[0])->s;
    double start = x->spent || x->maxran ? monotonic() : 0;

    atomic_store_explicit(&x->now, step, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->ticks, 1, memory_order_relaxed);
    for (int i = 0; i < n && x->guard; i++)
        if (rank_instr(s[i]->rank[0])->lasts)
            exec_guard(x);
    if (x->copy && !x->bad)
        look_before(x, s, n);
    for (int i = 0; i < n && x->poison && !x->copy; i++)
        for (int64_t k = 0; k < s[i]->n; k++)
            poison_instr(s[i]->rank[k], rank_instr(s[i]->rank[k]));
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->n; k++)
            if (is_collective(step->kind))
                run_group(x, s[i]->rank[k]);
            else
                run_one(x, rank_instr(s[i]->rank[k]));
    if (x->copy && !x->bad)
        look_after(x, s, n);
    for (int i = 0; i < n && x->maxran; i++) {
        InstrTiming *r = record(x, s[i], step_of(s[i]));
        r->start = start;
        r->end = monotonic();
    }
    for (int i = 0; i < n && x->spent; i++)
        x->spent[s[i] - x->stage][step_of(s[i])] += monotonic() - start;
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
    for (int64_t i = 0; i < s->n && b->chan && n; i++)
        n = channel_ready(rank_instr(s->rank[i]));
    if (n)
        run_step(x, x->meet, n);
    for (int i = 0; i < n; i++)
        go_on(x, x->meet[i]);
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

static void run_stages(Exec *x)
{
    int moved = 1, left = x->nstage;

    for (int i = 0; i < x->nstage; i++)
        go_on(x, &x->stage[i]);
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

static void start(Exec *x, ProgramKind program)
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
    channels_reset(x);
}

static void look_at(void *self, int row, int step, int after)
{
    Exec *x = self;
    Stage *s = &x->stage[0];

    if (x->bad)
        return;
    if (s->row != row) {
        s->row = row;
        patch(s, turn_of(s));
    }
    s->step = step;
    if (after)
        look_after(x, &s, 1);
    else
        look_before(x, &s, 1);
}

static void run_gpu(Exec *x, ProgramKind k, const StepValues *b,
                    const Feed *feed)
{
    static const Instr graph = { .kind = Ikernel,
                                 .label = "of the GPU's graph" };
    int prog = role_prog(x->rank[0].role, k);

    if (prog < 0)
        err(NULL, "the plan has no program '%s'", programnames[k]);
    x->step = b ? b->step : x->step;
    atomic_store_explicit(&x->now, &graph, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->ticks, 1, memory_order_relaxed);
    x->gpu->look = x->copy ? look_at : NULL;
    x->gpu->looker = x;
    x->gpu->timed = x->maxran > 0;
    x->gpu->held = x->hold;
    x->gpu->limits = x->limits;
    if (x->copy)
        start(x, k);
    x->fresh =
        gpu_run(x->gpu, prog, b, feed, x->spent ? x->spent[0] : NULL, x->late);
    if (x->maxran)
        x->nran = gpu_ran(x->gpu, prog, x->ran);
    x->waited = x->gpu->waited;
    atomic_store_explicit(&x->now, NULL, memory_order_relaxed);
}

int exec_settle(Exec *x)
{
    int fresh = x->gpu ? gpu_settle(x->gpu) : 0;

    x->waited = x->gpu ? x->gpu->waited : 0;
    return fresh;
}

void exec_run(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed)
{
    if (x->gpu) {
        run_gpu(x, k, b, feed);
        return;
    }
    start(x, k);
    if (b) {
        set_scalar(x, "lr", b->lr);
        set_scalar(x, "bc1", b->bc1);
        set_scalar(x, "bc2", b->bc2);
        set_scalar(x, "step", (double)b->step);
        set_scalar(x, "hold", x->hold);
        set_scalar(x, "skip_loss", x->limits.loss);
        set_scalar(x, "skip_gnorm", x->limits.gnorm);
        x->step = b->step;
    }
    x->feed = feed;
    run_stages(x);
    channels_finish(x);
    x->feed = NULL;
    atomic_store_explicit(&x->now, NULL, memory_order_relaxed);
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
