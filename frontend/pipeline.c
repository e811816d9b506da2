/* pipeline.c: the table of a plan's stages, read back from their slots: for
 * people as a picture, a line a stage and a column a unit of time, and for
 * programs as PyTorch's CSV.
 *
 *     time    0           4           8
 *     stage 0 F0 F1 .  .  .  B0 -- B1 --
 *     stage 1 .  F0 B0 -- F1 B1 --
 *
 * A forward takes one unit, a backward two (I and W one each), a transfer none:
 * the shape of the schedule, not its seconds. */
#include <string.h>

#include "commands.h"

enum { WIDTH = 100, FIRST = 9 }; /* columns of a line; of the stage's name */

/* ---- from slots ---------------------------------------------------------- */

static const Call *call_of(const Program *prog, const ScheduleSlot *t)
{
    return &prog->phase[t->phase].call;
}

static void put_slot(Text *out, const Program *prog, const ScheduleSlot *w)
{
    const Call *c = call_of(prog, w);

    put(out, "%d%c%d", c->chunk, jobnames[c->w], w->micro);
}

/* A stage's work, a cell each. Two that overlap follow each other. */
static void put_stage(Text *out, const Program *prog)
{
    int n = 0, open = 0;

    for (int i = 0; i < prog->nslot; i++) {
        const ScheduleSlot *w = &prog->slot[i];
        if (call_of(prog, w)->k != ROWwork)
            continue;
        if (open)
            put(out, ";");
        else if (n++)
            put(out, ",");
        put(out, "%s", w->pair ? "(" : "");
        put_slot(out, prog, w);
        put(out, "%s", open ? ")OVERLAP_F_B" : "");
        open = w->pair;
    }
    put(out, "\n");
}

Schedule *plan_schedule(const Plan *p, const char *name)
{
    Text out = { .arena = forever };

    for (int r = 0; r < p->nrole; r++) {
        const Program *step = role_program(&p->role[r], PGstep);
        if (!step || !step->nslot)
            err(NULL, "%s has no schedule: its model is not cut into stages",
                name);
        put_stage(&out, step);
    }
    return schedule_csv(forever, out.s, out.len, name);
}

/* ---- the picture --------------------------------------------------------- */

typedef struct Picture {
    const Schedule *s;
    Timing time;
    int w, n;   /* characters a unit, units */
    char *cell; /* [rank][unit][w + 1] */
} Picture;

static char *cell_at(const Picture *x, int r, int unit)
{
    return x->cell + (size_t)(r * x->n + unit) * (size_t)(x->w + 1);
}

/* "F3", or where a stage has several chunks "2F3". */
static const char *act_text(const Schedule *s, const ScheduleEntry *q)
{
    if (s->chunks == s->ranks)
        return strf(forever, "%c%d", jobnames[q->w], q->micro);
    return strf(forever, "%d%c%d", q->chunk, jobnames[q->w], q->micro);
}

static void fill(Picture *x)
{
    for (int r = 0; r < x->s->ranks; r++) {
        const ScheduleEntry *row = x->s->row[r];
        for (int i = 0; i < x->n; i++)
            strcpy(cell_at(x, r, i), ".");
        for (size_t i = 0; i < vec_len(row); i++) {
            int at = (int)x->time.start[r][i];
            if (i && row[i - 1].pair)
                at += row[i - 1].w == WB ? 2 : 1;
            strcpy(cell_at(x, r, at), act_text(x->s, &row[i]));
            if (row[i].w == WB)
                strcpy(cell_at(x, r, at + 1), "--");
        }
    }
}

static void put_line(Text *out, const Picture *x, int r, int from, int to)
{
    put(out, "stage %-*d", FIRST - 6, r);
    while (to > from && !strcmp(cell_at(x, r, to - 1), "."))
        to--;
    for (int i = from; i < to; i++)
        put(out, "%-*s", i < to - 1 ? x->w + 1 : 0, cell_at(x, r, i));
    put(out, "\n");
}

static void put_table(Text *out, const Picture *x)
{
    int per = (WIDTH - FIRST) / (x->w + 1) / 4 * 4;

    for (int from = 0; from < x->n; from += per) {
        int to = from + per < x->n ? from + per : x->n;
        put(out, "%s%-*s", from ? "\n" : "", FIRST, "time");
        for (int i = from; i < to; i += 4)
            put(out, "%-*d", i + 4 < to ? 4 * (x->w + 1) : 0, i);
        put(out, "\n");
        for (int r = 0; r < x->s->ranks; r++)
            put_line(out, x, r, from, to);
    }
}

static void put_numbers(Text *out, const Picture *x)
{
    const Schedule *s = x->s;
    double busy = 0;

    for (int r = 0; r < s->ranks; r++)
        busy += x->time.busy[r];
    put(out,
        "%d stages, %d chunks, %d micro-batches: %d units, %.1f %% of them "
        "idle\n",
        s->ranks, s->chunks, s->micros, x->n,
        100 * (1 - busy / (s->ranks * x->time.makespan)));
    put(out, "micro-batches alive at most, by stage:");
    for (int r = 0; r < s->ranks; r++)
        put(out, " %d", x->time.peak[r]);
    put(out, "\n");
}

char *draw_schedule(const Schedule *s)
{
    static const double of[NJOB] = { [WF] = 1, [WB] = 2, [WI] = 1, [WW] = 1 };
    size_t n = NJOB * (size_t)s->chunks;
    double *cost = alloc(forever, n * sizeof *cost);
    Text out = { .arena = forever };
    Picture x = { .s = s };

    for (size_t i = 0; i < n; i++)
        cost[i] = of[i / (size_t)s->chunks];
    x.time = schedule_time(forever, s, cost, 0);
    x.n = (int)x.time.makespan;
    ScheduleEntry widest = { WF, s->chunks - 1, s->micros - 1, 0 };
    x.w = (int)strlen(act_text(s, &widest));
    x.cell = alloc(forever, (size_t)(s->ranks * x.n) * (size_t)(x.w + 1));
    fill(&x);
    put_table(&out, &x);
    put_numbers(&out, &x);
    return out.s;
}
