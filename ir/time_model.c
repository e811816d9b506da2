/* time_model.c: how long a plan's program takes, from the predicted seconds of
 * its instructions. One rank stands for its stage. A stage goes through its
 * phases and rows until it has to wait: for a value that was not sent, for a
 * receiver that did not take what it sends, or in a collective over stages for
 * the others. Where no stage can go on, they wait for each other for ever.
 *
 * Each stream of a stage has a clock. What compute waits for on another counts
 * as work: it is the part of a transfer that nothing hides. */

#include "plan.h"

typedef struct LinkTimes { /* from one stage to another, one channel */
    int from, to;
    int64_t chan;
    double *sent, *taken; /* vecs: when the i-th arrived, was received*/
    double free;          /* when it can carry the next */
} LinkTimes;

typedef struct WaitPoint { /* where a stage may have to wait */
    const Instr *s;
    double before; /* seconds of the instructions since the last stop */
    int link;      /* transfers */
} WaitPoint;

typedef struct PhaseTimeline { /* a phase */
    WaitPoint *stop;           /* vec */
    double after;              /* seconds behind the last stop */
} PhaseTimeline;

typedef struct Walker { /* a stage under way */
    const Program *g;
    PhaseTimeline *course;     /* by phase */
    ScheduleSlot *row;         /* vec */
    size_t at, stop;           /* row, stop of its phase */
    int came;                  /* `before` of that stop is spent */
    int meets;                 /* waits in a collective over stages */
    size_t *received, *waited; /* by link */
    double now[NSTREAM], busy;
    double *event; /* vec: when it was recorded last, by number */
} Walker;

typedef struct TimeWalk {
    Arena *arena;
    const Plan *p;
    Walker *w;
    LinkTimes *link;  /* vec */
    int bare;         /* transfers take no time */
    PlanWatch *watch; /* null: nobody asks for each instruction */
    void *context;
} TimeWalk;

/* ---- what there is to do ------------------------------------------------- */

static int link_of(TimeWalk *x, int from, int to, int64_t chan)
{
    for (size_t i = 0; i < vec_len(x->link); i++)
        if (x->link[i].from == from && x->link[i].to == to &&
            x->link[i].chan == chan)
            return (int)i;
    vec_push(x->arena, x->link,
             ((LinkTimes){ .from = from, .to = to, .chan = chan }));
    return (int)vec_len(x->link) - 1;
}

static double secs_of(const TimeWalk *x, const Instr *s)
{
    InstrClass k = instr_info(s->kind)->cls;
    return x->bare && (k == CLASStransfer || k == CLASScollective) ? 0
                                                                   : s->secs;
}

/* Is it done with other stages? */
static int is_far(const Plan *p, const Instr *s)
{
    return p->nrole > 1 && (s->atoms & p->mesh->mask[Mpp]);
}

static int is_stop(const TimeWalk *x, const Instr *s)
{
    const Issue *l = &s->issue;
    return x->watch || instr_info(s->kind)->cls == CLASStransfer ||
           is_far(x->p, s) || l->stream || l->nwait || l->record;
}

static PhaseTimeline course_of(TimeWalk *x, int role, const Program *g,
                               const Phase *f)
{
    PhaseTimeline c = { 0 };
    for (int i = f->first; i < f->first + f->n; i++) {
        const Instr *s = &g->instr[i];
        if (!is_stop(x, s)) {
            c.after += secs_of(x, s);
            continue;
        }
        WaitPoint t = { s, c.after, -1 };
        if (s->kind == Irecv)
            t.link = link_of(x, (int)s->transfer.peer, role, s->transfer.chan);
        else if (instr_info(s->kind)->cls == CLASStransfer)
            t.link = link_of(x, role, (int)s->transfer.peer, s->transfer.chan);
        vec_push(x->arena, c.stop, t);
        c.after = 0;
    }
    return c;
}

static void begin(TimeWalk *x, int role, ProgramKind program)
{
    const Role *r = &x->p->role[role];
    int k = role_prog(r, program);
    Walker *w = &x->w[role];
    if (k < 0)
        return;
    w->g = &r->prog[k];
    w->course = alloc(x->arena, sizeof *w->course * (size_t)(w->g->nphase + 1));
    for (int f = 0; f < w->g->nphase; f++)
        w->course[f] = course_of(x, role, w->g, &w->g->phase[f]);
    w->row = program_rows(x->arena, w->g);
}

/* ---- going --------------------------------------------------------------- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void await_events(Walker *w, const Issue *l)
{
    double *now = &w->now[l->stream], before = *now;
    for (int i = 0; i < l->nwait; i++)
        if ((size_t)l->wait[i] < vec_len(w->event))
            *now = later(*now, w->event[l->wait[i]]);
    if (l->stream == STREAMcompute)
        w->busy += *now - before;
}

static void record_event(const TimeWalk *x, Walker *w, const Issue *l)
{
    while (l->record && vec_len(w->event) <= (size_t)l->record)
        vec_push(x->arena, w->event, 0);
    if (l->record)
        w->event[l->record] = w->now[l->stream];
}

/* w works on s until `end`. */
static void report_span(const TimeWalk *x, const Walker *w, const Instr *s,
                        double end)
{
    if (x->watch)
        x->watch(x->context, &(InstrSpan){ (int)(w - x->w), &w->row[w->at], s,
                                           end - secs_of(x, s), end });
}

/* May the stage go past this stop? Then it did. */
static int pass(TimeWalk *x, Walker *w, const WaitPoint *t)
{
    LinkTimes *l = t->link < 0 ? NULL : &x->link[t->link];
    double *now = &w->now[t->s->issue.stream], secs = secs_of(x, t->s);

    switch (t->s->kind) {
    case Isend:
        l->free = later(*now, l->free) + secs;
        vec_push(x->arena, l->sent, l->free);
        report_span(x, w, t->s, l->free);
        return 1;
    case Irecv:
        if (w->received[t->link] >= vec_len(l->sent))
            return 0;
        *now = later(*now, l->sent[w->received[t->link]++]);
        vec_push(x->arena, l->taken, *now);
        return 1;
    case Iwait:
        if (w->waited[t->link] >= vec_len(l->taken))
            return 0;
        *now = later(*now, l->taken[w->waited[t->link]++]);
        return 1;
    default: break;
    }
    w->meets = is_far(x->p, t->s);
    if (w->meets)
        return 0;
    *now += secs;
    if (now == w->now)
        w->busy += secs;
    report_span(x, w, t->s, *now);
    return 1;
}

static int is_done(const Walker *w)
{
    return w->at == vec_len(w->row);
}

/* As far as w can go; did it move? */
static int advance(TimeWalk *x, Walker *w)
{
    int moved = 0;
    while (!is_done(w) && !w->meets) {
        const PhaseTimeline *c = &w->course[w->row[w->at].phase];
        int end = w->stop == vec_len(c->stop);
        double secs = end ? c->after : c->stop[w->stop].before;
        if (!w->came) {
            w->now[STREAMcompute] += secs;
            w->busy += secs;
            if (!end)
                await_events(w, &c->stop[w->stop].s->issue);
        }
        w->came = 1;
        if (!end && !pass(x, w, &c->stop[w->stop]))
            return moved;
        if (!end)
            record_event(x, w, &c->stop[w->stop].s->issue);
        w->came = 0;
        w->stop = end ? 0 : w->stop + 1;
        w->at += end;
        moved = 1;
    }
    return moved;
}

/* All stages stand in a collective over stages: it runs. */
static int meet(const TimeWalk *x)
{
    double start = 0;
    for (int i = 0; i < x->p->nrole; i++) {
        if (!x->w[i].meets)
            return 0;
        start = later(start, x->w[i].now[STREAMcompute]);
    }
    for (int i = 0; i < x->p->nrole; i++) {
        Walker *w = &x->w[i];
        const Instr *s = w->course[w->row[w->at].phase].stop[w->stop].s;
        w->now[STREAMcompute] = start + secs_of(x, s);
        w->busy += secs_of(x, s);
        report_span(x, w, s, w->now[STREAMcompute]);
        record_event(x, w, &s->issue);
        w->meets = w->came = 0;
        w->stop++;
    }
    return 1;
}

static const char *stuck(const TimeWalk *x)
{
    Text t = { .arena = x->arena };
    for (int i = 0; i < x->p->nrole; i++) {
        const Walker *w = &x->w[i];
        if (is_done(w))
            continue;
        const Phase *f = &w->g->phase[w->row[w->at].phase];
        const Instr *s = w->course[w->row[w->at].phase].stop[w->stop].s;
        put(&t, "%sstage %d in %s '%s' of %s", t.len ? ", " : "", i,
            instr_info(s->kind)->name, s->label ? s->label : "", f->name);
    }
    return t.len ? t.s : NULL;
}

static double end_of(const TimeWalk *x)
{
    double end = 0;
    for (int i = 0; i < x->p->nrole; i++)
        for (int s = 0; s < NSTREAM; s++)
            end = later(end, x->w[i].now[s]);
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
    const Program *g = i < 0 ? NULL : &p->role[0].prog[i];
    int64_t n = 1;
    for (int f = 0; g && f < g->nphase; f++)
        if (g->phase[f].reg == REGbody && g->phase[f].repeat)
            n = phase_micro(&g->phase[f], g->phase[f].repeat, 0);
    for (int t = 0; g && t < g->nslot; t++)
        n = g->slot[t].micro < n ? n : g->slot[t].micro + 1;
    return n;
}

int64_t phase_runs(const Program *g, int phase)
{
    int64_t n = g->phase[phase].repeat;
    for (int t = 0; t < g->nslot; t++)
        n += g->slot[t].phase == phase;
    return n;
}
