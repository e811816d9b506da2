/* time_model.c: predicts the time of a plan's program from the predicted
 * seconds of its instructions. One rank represents its stage. A stage runs its
 * phases and rows until it has to wait: for a value that is not sent yet, for a
 * receiver, or in a collective for other stages. If no stage can continue, the
 * plan deadlocks.
 *
 * Each stream of a stage has a clock. The time for which compute waits on
 * another stream counts as work: it is the exposed part of a transfer. */
#include "plan.h"

typedef struct LinkTimes { /* a channel from one stage to another */
    int from, to;
    int64_t chan;
    double *sent, *taken; /* vecs: arrival and receipt of message i */
    double free;          /* time at which it can carry the next message */
} LinkTimes;

typedef struct WaitPoint { /* an instruction at which a stage may wait */
    const Instr *s;
    double before; /* seconds of the instructions since the last stop */
    int link;      /* transfers: its link */
} WaitPoint;

typedef struct PhaseTimeline { /* a phase */
    WaitPoint *stop;           /* vec */
    double after;              /* seconds after the last stop */
    int ends;                  /* has its last run more instructions? */
} PhaseTimeline;

typedef struct Walker { /* progress of a stage */
    const Program *g;
    PhaseTimeline *course;     /* [phase] */
    ScheduleSlot *row;         /* vec */
    size_t at, stop;           /* row, stop of its phase */
    int last;                  /* the row is the last of a phase with `ends` */
    int came;                  /* `before` of that stop has passed */
    int meets;                 /* waits in a collective over stages */
    size_t *received, *waited; /* [link] */
    double now[NSTREAM], busy;
    double *event; /* vec: [event]: time of its last record */
} Walker;

typedef struct TimeWalk {
    Arena *arena;
    const Plan *p;
    Walker *w;
    LinkTimes *link;  /* vec */
    int bare;         /* transfers take no time */
    PlanWatch *watch; /* null, or called for each instruction */
    void *context;
} TimeWalk;

/* ---- time lines of phases ------------------------------------------------ */

static int link_of(TimeWalk *walk, int from, int to, int64_t chan)
{
    for (size_t i = 0; i < vec_len(walk->link); i++)
        if (walk->link[i].from == from && walk->link[i].to == to &&
            walk->link[i].chan == chan)
            return (int)i;
    vec_push(walk->arena, walk->link,
             ((LinkTimes){ .from = from, .to = to, .chan = chan }));
    return (int)vec_len(walk->link) - 1;
}

static double secs_of(const TimeWalk *walk, const Instr *instr)
{
    InstrClass k = instr_info(instr->kind)->cls;
    return walk->bare && (k == CLASStransfer || k == CLASScollective)
               ? 0
               : instr->secs;
}

/* Does the instruction involve other stages? */
static int is_far(const Plan *p, const Instr *instr)
{
    return p->nrole > 1 && (instr->atoms & p->mesh->mask[Mpp]);
}

static int is_stop(const TimeWalk *walk, const Instr *instr)
{
    const Issue *issue = &instr->issue;
    return walk->watch || instr_info(instr->kind)->cls == CLASStransfer ||
           is_far(walk->p, instr) || issue->stream || issue->nwait ||
           issue->record || instr->last_only;
}

static PhaseTimeline course_of(TimeWalk *walk, int role, const Program *program,
                               const Phase *phase)
{
    PhaseTimeline c = { 0 };
    for (int i = phase->first; i < phase->first + phase->n; i++) {
        const Instr *instr = &program->instr[i];
        c.ends |= instr->last_only;
        if (!is_stop(walk, instr)) {
            c.after += secs_of(walk, instr);
            continue;
        }
        WaitPoint t = { instr, c.after, -1 };
        if (instr->kind == Irecv)
            t.link = link_of(walk, (int)instr->transfer.peer, role,
                             instr->transfer.chan);
        else if (instr_info(instr->kind)->cls == CLASStransfer)
            t.link = link_of(walk, role, (int)instr->transfer.peer,
                             instr->transfer.chan);
        vec_push(walk->arena, c.stop, t);
        c.after = 0;
    }
    return c;
}

static int is_done(const Walker *walker)
{
    return walker->at == vec_len(walker->row);
}

static void begin_row(Walker *walker)
{
    const ScheduleSlot *row = &walker->row[walker->at];

    walker->stop = 0;
    walker->last = !is_done(walker) && walker->course[row->phase].ends &&
                   is_last_row(walker->g, row);
}

static void begin(TimeWalk *walk, int role, ProgramKind program)
{
    const Role *r = &walk->p->role[role];
    int k = role_prog(r, program);
    Walker *walker = &walk->w[role];
    if (k < 0)
        return;
    walker->g = &r->prog[k];
    walker->course = alloc(walk->arena, sizeof *walker->course *
                                            (size_t)(walker->g->nphase + 1));
    for (int f = 0; f < walker->g->nphase; f++)
        walker->course[f] =
            course_of(walk, role, walker->g, &walker->g->phase[f]);
    walker->row = program_rows(walk->arena, walker->g);
    begin_row(walker);
}

/* ---- simulation ---------------------------------------------------------- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void await_events(Walker *walker, const Issue *issue)
{
    double *now = &walker->now[issue->stream], before = *now;
    for (int i = 0; i < issue->nwait; i++)
        if ((size_t)issue->wait[i] < vec_len(walker->event))
            *now = later(*now, walker->event[issue->wait[i]]);
    if (issue->stream == STREAMcompute)
        walker->busy += *now - before;
}

static void record_event(const TimeWalk *walk, Walker *walker,
                         const Issue *issue)
{
    while (issue->record && vec_len(walker->event) <= (size_t)issue->record)
        vec_push(walk->arena, walker->event, 0);
    if (issue->record)
        walker->event[issue->record] = walker->now[issue->stream];
}

/* Reports that walker executes instr until `end`. */
static void report_span(const TimeWalk *walk, const Walker *walker,
                        const Instr *instr, double end)
{
    if (walk->watch)
        walk->watch(walk->context,
                    &(InstrSpan){ (int)(walker - walk->w),
                                  &walker->row[walker->at], instr,
                                  end - secs_of(walk, instr), end });
}

/* Is only one stage simulated, so that nothing waits for transfers? */
static int is_alone(const TimeWalk *walk)
{
    return walk->p->nrole == 1;
}

/* Passes this stop if the stage can. Returns 0 if it has to wait. */
static int pass(TimeWalk *walk, Walker *walker, const WaitPoint *point)
{
    LinkTimes *times = point->link < 0 ? NULL : &walk->link[point->link];
    double *now = &walker->now[point->s->issue.stream],
           secs = secs_of(walk, point->s);

    switch (point->s->kind) {
    case Isend:
        times->free = later(*now, times->free) + secs;
        vec_push(walk->arena, times->sent, times->free);
        report_span(walk, walker, point->s, times->free);
        return 1;
    case Irecv:
        if (is_alone(walk))
            return 1;
        if (walker->received[point->link] >= vec_len(times->sent))
            return 0;
        *now = later(*now, times->sent[walker->received[point->link]++]);
        vec_push(walk->arena, times->taken, *now);
        return 1;
    case Iwait:
        if (is_alone(walk))
            return 1;
        if (walker->waited[point->link] >= vec_len(times->taken))
            return 0;
        *now = later(*now, times->taken[walker->waited[point->link]++]);
        return 1;
    default: break;
    }
    walker->meets = is_far(walk->p, point->s);
    if (walker->meets)
        return 0;
    *now += secs;
    if (now == walker->now)
        walker->busy += secs;
    report_span(walk, walker, point->s, *now);
    return 1;
}

/* Is the stop not executed in this row? */
static int is_left_out(const Walker *walker, const Instr *instr)
{
    return instr->last_only && !walker->last;
}

/* Advances walker as far as possible. Returns 0 if it did not move. */
static int advance(TimeWalk *walk, Walker *walker)
{
    int moved = 0;
    while (!is_done(walker) && !walker->meets) {
        const PhaseTimeline *timeline =
            &walker->course[walker->row[walker->at].phase];
        int end = walker->stop == vec_len(timeline->stop);
        const WaitPoint *stop = end ? NULL : &timeline->stop[walker->stop];
        double secs = end ? timeline->after : stop->before;
        int runs = !end && !is_left_out(walker, stop->s);
        if (!walker->came) {
            walker->now[STREAMcompute] += secs;
            walker->busy += secs;
            if (runs)
                await_events(walker, &stop->s->issue);
        }
        walker->came = 1;
        if (runs && !pass(walk, walker, stop))
            return moved;
        if (runs)
            record_event(walk, walker, &stop->s->issue);
        walker->came = 0;
        walker->stop++;
        walker->at += end;
        if (end)
            begin_row(walker);
        moved = 1;
    }
    return moved;
}

/* Runs a collective over stages once all are in it. Returns 0 if they are
 * not. */
static int meet(const TimeWalk *walk)
{
    double start = 0;
    for (int i = 0; i < walk->p->nrole; i++) {
        if (!walk->w[i].meets)
            return 0;
        start = later(start, walk->w[i].now[STREAMcompute]);
    }
    for (int i = 0; i < walk->p->nrole; i++) {
        Walker *w = &walk->w[i];
        const Instr *s = w->course[w->row[w->at].phase].stop[w->stop].s;
        w->now[STREAMcompute] = start + secs_of(walk, s);
        w->busy += secs_of(walk, s);
        report_span(walk, w, s, w->now[STREAMcompute]);
        record_event(walk, w, &s->issue);
        w->meets = w->came = 0;
        w->stop++;
    }
    return 1;
}

static const char *stuck(const TimeWalk *walk)
{
    Text t = { .arena = walk->arena };
    for (int i = 0; i < walk->p->nrole; i++) {
        const Walker *walker = &walk->w[i];
        if (is_done(walker))
            continue;
        const Phase *phase = &walker->g->phase[walker->row[walker->at].phase];
        const Instr *instr =
            walker->course[walker->row[walker->at].phase].stop[walker->stop].s;
        put(&t, "%sstage %d in %s '%s' of %s", t.len ? ", " : "", i,
            instr_info(instr->kind)->name, instr->label ? instr->label : "",
            phase->name);
    }
    return t.len ? t.s : NULL;
}

static double end_of(const TimeWalk *walk)
{
    double end = 0;
    for (int i = 0; i < walk->p->nrole; i++)
        for (int s = 0; s < NSTREAM; s++)
            end = later(end, walk->w[i].now[s]);
    return end;
}

static TimeWalk go(TimeWalk x, ProgramKind k)
{
    Arena *a = x.arena;
    const Plan *p = x.p;
    int moved = 1;

    x.w = alloc(a, sizeof *x.w * (size_t)p->nrole);
    for (int i = 0; i < p->nrole; i++)
        begin(&x, i, k);
    for (int i = 0; i < p->nrole; i++) {
        size_t n = (vec_len(x.link) + 1) * sizeof(size_t);
        x.w[i].received = alloc(a, n);
        x.w[i].waited = alloc(a, n);
    }
    while (moved) {
        moved = 0;
        for (int i = 0; i < p->nrole; i++)
            moved |= advance(&x, &x.w[i]);
        moved |= meet(&x);
    }
    return x;
}

Planned plan_time(Arena *a, const Plan *p, ProgramKind k)
{
    TimeWalk x = go((TimeWalk){ .arena = a, .p = p }, k);
    Planned out = { .busy = alloc(a, sizeof(double) * (size_t)p->nrole) };

    out.makespan = end_of(&x);
    for (int i = 0; i < p->nrole; i++)
        out.busy[i] = x.w[i].busy;
    out.stuck = stuck(&x);
    return out;
}

void plan_watch(const Plan *p, ProgramKind k, PlanWatch *watch, void *context)
{
    Arena *a = arena_new();
    go((TimeWalk){ .arena = a, .p = p, .watch = watch, .context = context }, k);
    arena_free(a);
}

double plan_bare(const Plan *p, ProgramKind k)
{
    Arena *a = arena_new();
    TimeWalk x = go((TimeWalk){ .arena = a, .p = p, .bare = 1 }, k);
    double secs = end_of(&x);
    arena_free(a);
    return secs;
}

double plan_secs(const Plan *p, ProgramKind k)
{
    Arena *a = arena_new();
    double secs = plan_time(a, p, k).makespan;
    arena_free(a);
    return secs;
}

int64_t plan_micros(const Plan *p, ProgramKind k)
{
    int i = role_prog(&p->role[0], k);
    const Program *program = i < 0 ? NULL : &p->role[0].prog[i];
    int64_t n = 1;
    for (int f = 0; program && f < program->nphase; f++)
        if (program->phase[f].reg == REGbody && program->phase[f].repeat)
            n = phase_micro(&program->phase[f], program->phase[f].repeat, 0);
    for (int t = 0; program && t < program->nslot; t++)
        n = program->slot[t].micro < n ? n : program->slot[t].micro + 1;
    return n;
}

int64_t phase_runs(const Program *program, int phase)
{
    int64_t n = program->phase[phase].repeat;
    for (int t = 0; t < program->nslot; t++)
        n += program->slot[t].phase == phase;
    return n;
}

int64_t instr_runs(const Program *program, int phase, const Instr *instr)
{
    return instr->last_only ? 1 : phase_runs(program, phase);
}
