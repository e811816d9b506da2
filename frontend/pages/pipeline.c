/* pipeline.c: the schedule table of a plan, rebuilt from its stages' slots: as
 * a picture with a line per stage and a column per unit of time, and as
 * PyTorch's CSV.
 *
 *     time    0           4           8
 *     stage 0 F0 F1 .  .  .  B0 -- B1 --
 *     stage 1 .  F0 B0 -- F1 B1 --
 *
 * A forward takes one unit, a backward two (I and W one each), a transfer none:
 * the picture shows the schedule, not its seconds. */
#include "../commands.h"

enum { WIDTH = 100, FIRST = 9 }; /* columns of a line; of the stage's name */

/* ---- from slots ---------------------------------------------------------- */

static const Call *call_of(const Program *prog, const ScheduleSlot *slot)
{
    return &prog->phase[slot->phase].call;
}

static void put_slot(Text *out, const Program *prog, const ScheduleSlot *slot)
{
    const Call *c = call_of(prog, slot);

    put(out, "%d%c%d", c->chunk, jobnames[c->w], slot->micro);
}

/* Appends a stage's works, a cell each; two that overlap are consecutive. */
static void put_stage(Text *out, const Program *prog)
{
    int n = 0, open = 0;

    for (int i = 0; i < prog->nslot; i++) {
        const ScheduleSlot *slot = &prog->slot[i];
        if (call_of(prog, slot)->k != ROWwork)
            continue;
        if (open)
            put(out, ";");
        else if (n++)
            put(out, ",");
        put(out, "%s", slot->pair ? "(" : "");
        put_slot(out, prog, slot);
        put(out, "%s", open ? ")OVERLAP_F_B" : "");
        open = slot->pair;
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

static char *cell_at(const Picture *picture, int r, int unit)
{
    return picture->cell +
           (size_t)(r * picture->n + unit) * (size_t)(picture->w + 1);
}

/* Returns "F3", or "2F3" if a stage has several chunks. */
static const char *act_text(const Schedule *schedule,
                            const ScheduleEntry *entry)
{
    if (schedule->chunks == schedule->ranks)
        return strf(forever, "%c%d", jobnames[entry->w], entry->micro);
    return strf(forever, "%d%c%d", entry->chunk, jobnames[entry->w],
                entry->micro);
}

static void fill(Picture *picture)
{
    for (int r = 0; r < picture->s->ranks; r++) {
        const ScheduleEntry *row = picture->s->row[r];
        for (int i = 0; i < picture->n; i++)
            strcpy(cell_at(picture, r, i), ".");
        for (size_t i = 0; i < vec_len(row); i++) {
            int at = (int)picture->time.start[r][i];
            if (i && row[i - 1].pair)
                at += row[i - 1].w == WB ? 2 : 1;
            strcpy(cell_at(picture, r, at), act_text(picture->s, &row[i]));
            if (row[i].w == WB)
                strcpy(cell_at(picture, r, at + 1), "--");
        }
    }
}

static void put_line(Text *out, const Picture *picture, int r, int from, int to)
{
    put(out, "stage %-*d", FIRST - 6, r);
    while (to > from && !strcmp(cell_at(picture, r, to - 1), "."))
        to--;
    for (int i = from; i < to; i++)
        put(out, "%-*s", i < to - 1 ? picture->w + 1 : 0,
            cell_at(picture, r, i));
    put(out, "\n");
}

static void put_table(Text *out, const Picture *picture)
{
    int per = (WIDTH - FIRST) / (picture->w + 1) / 4 * 4;

    for (int from = 0; from < picture->n; from += per) {
        int to = from + per < picture->n ? from + per : picture->n;
        put(out, "%s%-*s", from ? "\n" : "", FIRST, "time");
        for (int i = from; i < to; i += 4)
            put(out, "%-*d", i + 4 < to ? 4 * (picture->w + 1) : 0, i);
        put(out, "\n");
        for (int r = 0; r < picture->s->ranks; r++)
            put_line(out, picture, r, from, to);
    }
}

static void put_numbers(Text *out, const Picture *picture)
{
    const Schedule *schedule = picture->s;
    double busy = 0;

    for (int r = 0; r < schedule->ranks; r++)
        busy += picture->time.busy[r];
    put(out,
        "%d stages, %d chunks, %d micro-batches: %d units, %.1f %% of them "
        "idle\n",
        schedule->ranks, schedule->chunks, schedule->micros, picture->n,
        100 * (1 - busy / (schedule->ranks * picture->time.makespan)));
    put(out, "micro-batches alive at most, by stage:");
    for (int r = 0; r < schedule->ranks; r++)
        put(out, " %d", picture->time.peak[r]);
    put(out, "\n");
}

char *draw_schedule(const Schedule *schedule)
{
    static const double of[NJOB] = { [WF] = 1, [WB] = 2, [WI] = 1, [WW] = 1 };
    size_t n = NJOB * (size_t)schedule->chunks;
    double *cost = alloc(forever, n * sizeof *cost);
    Text out = { .arena = forever };
    Picture x = { .s = schedule };

    for (size_t i = 0; i < n; i++)
        cost[i] = of[i / (size_t)schedule->chunks];
    x.time = schedule_time(forever, schedule, cost, 0);
    x.n = (int)x.time.makespan;
    ScheduleEntry widest = { WF, schedule->chunks - 1, schedule->micros - 1,
                             0 };
    x.w = (int)strlen(act_text(schedule, &widest));
    x.cell =
        alloc(forever, (size_t)(schedule->ranks * x.n) * (size_t)(x.w + 1));
    fill(&x);
    put_table(&out, &x);
    put_numbers(&out, &x);
    return out.s;
}
