/* schedule.c: pipeline schedules as tables: a row of acts for each rank.
 * Published schedules are generated, others are read from a file (csv.c). Also
 * the check of a table, and its simulated time.
 *
 *     1f1b, 3 ranks, 4 micro-batches          time ->
 *     rank 0   F0 F1 F2 .  .  .  B0 F3 B1 . . B2 . . B3
 *     rank 1   .  F0 F1 .  B0 F2 B1 F3 ..
 *     rank 2   .  .  F0 B0 F1 B1 ..
 *
 * Sources: arXiv 2104.04473 (interleaved; Megatron's order), 2401.10241
 * (ZB-H1), DeepSeek's DualPipeV. */
#include "../settings/keys.h"
#include "plan.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static Schedule *table(Arena *a, const char *name, int ranks, int chunks,
                       int micros)
{
    Schedule *s = alloc(a, sizeof *s);
    *s = (Schedule){ intern(name), ranks, chunks, micros, 0, 0 };
    s->rank = alloc(a, (size_t)chunks * sizeof *s->rank);
    s->row = alloc(a, (size_t)ranks * sizeof *s->row);
    for (int c = 0; c < chunks; c++)
        s->rank[c] = c % ranks;
    return s;
}

static void add(Arena *a, Schedule *schedule, int r, ScheduleEntry q)
{
    vec_push(a, schedule->row[r], q);
}

/* ---- 1F1B and interleaved ------------------------------------------------ */

/* Groups of micro-batches go through all chunks of a rank. A group has at least
 * as many as there are ranks (if the step has enough): a smaller one idles, or
 * waits for itself. The first `longer` groups have one more. */
typedef struct ScheduleGroups {
    int n, size, longer;
} ScheduleGroups;

static ScheduleGroups groups_of(const Schedule *schedule)
{
    int n = schedule->micros / schedule->ranks > 1
                ? schedule->micros / schedule->ranks
                : 1;
    return (ScheduleGroups){ n, schedule->micros / n, schedule->micros % n };
}

/* Returns the k-th forward of a rank, or with `back` the k-th backward. */
static ScheduleEntry kth(const Schedule *schedule, int r, int k, int back)
{
    ScheduleGroups g = groups_of(schedule);
    int v = schedule->chunks / schedule->ranks, first = 0, n = g.size + 1;
    if (k < g.longer * n * v) {
        first = k / (n * v) * n;
    } else {
        first = g.longer * n;
        n = g.size;
        first += (k - first * v) / (n * v) * n;
    }
    int in = k - first * v, c = in / n;
    return (ScheduleEntry){ back ? WB : WF,
                            (back ? v - 1 - c : c) * schedule->ranks + r,
                            first + in % n, 0 };
}

static void one_f_one_b(Arena *a, Schedule *schedule)
{
    ScheduleGroups g = groups_of(schedule);
    int v = schedule->chunks / schedule->ranks, p = schedule->ranks,
        all = schedule->micros * v;
    for (int r = 0; r < p; r++) {
        int warm = v == 1 ? p - r - 1
                          : 2 * (p - r - 1) + (v - 1) * (g.size + !!g.longer);
        warm = least(warm, all);
        for (int k = 0; k < all + warm; k++) {
            if (k < all)
                add(a, schedule, r, kth(schedule, r, k, 0));
            if (k >= warm)
                add(a, schedule, r, kth(schedule, r, k - warm, 1));
        }
    }
}

/* ---- ZB-H1 --------------------------------------------------------------- */

/* 1F1B with W delayed by r micro-batches on rank r: no rank has more live
 * activations than rank 0, and the last W fill the idle end of 1F1B. */
static void zero_bubble(Arena *a, Schedule *schedule)
{
    int m = schedule->micros;
    for (int r = 0; r < schedule->ranks; r++) {
        int warm = least(schedule->ranks - r - 1, m), late = least(r, m - warm);
        for (int k = 0; k < warm; k++)
            add(a, schedule, r, (ScheduleEntry){ WF, r, k, 0 });
        for (int k = 0; k < m; k++) {
            if (warm + k < m)
                add(a, schedule, r, (ScheduleEntry){ WF, r, warm + k, 0 });
            add(a, schedule, r, (ScheduleEntry){ WI, r, k, 0 });
            if (k >= late)
                add(a, schedule, r, (ScheduleEntry){ WW, r, k - late, 0 });
        }
        for (int k = m - late; k < m; k++)
            add(a, schedule, r, (ScheduleEntry){ WW, r, k, 0 });
    }
}

/* ---- DualPipeV ----------------------------------------------------------- */

/* A rank, which has chunks r (descending part of the V) and 2p-1-r
 * (ascending). */
typedef struct VScheduleRank {
    Arena *a;
    Schedule *s;
    int r, f[2], b[2]; /* next micro-batch of each chunk */
    ScheduleEntry *late;
    size_t done; /* vec: delayed W; number of completed ones */
} VScheduleRank;

static void forward(VScheduleRank *rank, int up, int pair)
{
    int c = up ? rank->s->chunks - 1 - rank->r : rank->r;
    add(rank->a, rank->s, rank->r,
        (ScheduleEntry){ WF, c, rank->f[up]++, pair });
}

static void backward(VScheduleRank *rank, int up, int split)
{
    int c = up ? rank->s->chunks - 1 - rank->r : rank->r;
    ScheduleEntry q = { split ? WI : WB, c, rank->b[up]++, 0 };
    add(rank->a, rank->s, rank->r, q);
    q.w = WW;
    if (split)
        vec_push(rank->a, rank->late, q);
}

static void weights(VScheduleRank *rank)
{
    add(rank->a, rank->s, rank->r, rank->late[rank->done++]);
}

static void both(VScheduleRank *rank, int up)
{
    forward(rank, up, 1);
    backward(rank, !up, 0);
}

static void vee_start(VScheduleRank *rank)
{
    int p = rank->s->ranks, r = rank->r;
    for (int i = 0; i < 2 * (p - r - 1); i++)
        forward(rank, 0, 0);
    for (int i = 0; i < r + 1; i++) {
        forward(rank, 0, 0);
        forward(rank, 1, 0);
    }
    for (int i = 0; i < p - r - 1; i++) {
        backward(rank, 1, 1);
        weights(rank);
        forward(rank, 1, 0);
    }
}

static void vee_main(VScheduleRank *rank)
{
    int p = rank->s->ranks, r = rank->r;
    for (int i = 0; i < rank->s->micros - 2 * p + r + 1; i++) {
        if (i || r < p - 1) {
            both(rank, 0);
        } else { /* the last rank cannot overlap yet */
            forward(rank, 0, 0);
            backward(rank, 1, 0);
        }
        both(rank, 1);
    }
    for (int i = 0; i < p - r - 1; i++) {
        backward(rank, 1, 0);
        both(rank, 1);
    }
}

static void vee_end(VScheduleRank *rank)
{
    int p = rank->s->ranks, r = rank->r, half = (r + 1) / 2;
    for (int i = 0; i < r + 1; i++) {
        backward(rank, 1, i > half || (i == half && r % 2));
        backward(rank, 0, i >= half);
    }
    for (int i = 0; i < p - r - 1; i++) {
        weights(rank);
        backward(rank, 0, 1);
    }
    for (int i = 0; i < r + 1; i++)
        weights(rank);
}

static void dualpipev(Arena *a, Schedule *schedule)
{
    for (int c = schedule->ranks; c < schedule->chunks; c++)
        schedule->rank[c] = schedule->chunks - 1 - c;
    for (int r = 0; r < schedule->ranks; r++) {
        VScheduleRank v = { .a = a, .s = schedule, .r = r };
        vee_start(&v);
        vee_main(&v);
        vee_end(&v);
    }
}

/* ---- only forward -------------------------------------------------------- */

/* Groups of as many micro-batches as ranks go through a rank's chunks in order:
 * (group, chunk, micro-batch) ascends for any placement of chunks. */
Schedule *schedule_forward(Arena *a, const Schedule *like, int micros)
{
    Schedule *s = table(a, "forward", like->ranks, like->chunks, micros);
    memcpy(s->rank, like->rank, (size_t)s->chunks * sizeof *s->rank);
    for (int m = 0; m < s->micros; m += s->ranks)
        for (int c = 0; c < s->chunks; c++)
            for (int i = m; i < least(m + s->ranks, s->micros); i++)
                add(a, s, s->rank[c], (ScheduleEntry){ WF, c, i, 0 });
    return s;
}

/* ---- simulation ---------------------------------------------------------- */

typedef struct ScheduleSim {
    const Schedule *s;
    const double *cost;
    double hop;
    double *end[2]; /* ends of F, and of B or I: [chunk * micros +
                                     micro-batch]; negative: not yet */
    double *clock;  /* [rank] */
    size_t *next;
    double **start;
} ScheduleSim;

static double cost_of_act(const ScheduleSim *sim, const ScheduleEntry *entry)
{
    const double *c = sim->cost + entry->chunk;
    int n = sim->s->chunks;
    if (entry->w == WB && c[WB * n] == 0)
        return c[WI * n] + c[WW * n];
    return c[(int)entry->w * n];
}

/* Has chunk c completed its F (or backward) of entry's micro-batch? *t is
 * raised to the time at which entry's rank has the result. */
static int after(const ScheduleSim *sim, int back, int c,
                 const ScheduleEntry *entry, double *t)
{
    const Schedule *schedule = sim->s;
    double end = sim->end[back][(size_t)c * (size_t)schedule->micros +
                                (size_t)entry->micro];
    if (end < 0)
        return 0;
    if (schedule->rank[c] != schedule->rank[entry->chunk])
        end += sim->hop;
    *t = end > *t ? end : *t;
    return 1;
}

static int ready(const ScheduleSim *sim, const ScheduleEntry *entry, double *t)
{
    int c = entry->chunk;
    if (entry->w == WF)
        return !c || after(sim, 0, c - 1, entry, t);
    if (entry->w == WW)
        return after(sim, 1, c, entry, t);
    return after(sim, 0, c, entry, t) &&
           (c == sim->s->chunks - 1 || after(sim, 1, c + 1, entry, t));
}

/* Runs a rank's next act, or two that overlap, which start together. */
static int advance(ScheduleSim *sim, int r)
{
    const Schedule *schedule = sim->s;
    const ScheduleEntry *entry = schedule->row[r] + sim->next[r];
    double t = sim->clock[r], start;
    size_t n = entry->pair ? 2 : 1;
    for (size_t i = 0; i < n; i++)
        if (!ready(sim, entry + i, &t))
            return 0;
    start = t;
    for (size_t i = 0; i < n; i++)
        t += cost_of_act(sim, entry + i);
    for (size_t i = 0; i < n; i++) {
        size_t k = (size_t)entry[i].chunk * (size_t)schedule->micros +
                   (size_t)entry[i].micro;
        if (entry[i].w != WW)
            sim->end[entry[i].w != WF][k] = t;
        sim->start[r][sim->next[r]++] = start;
    }
    sim->clock[r] = t;
    return 1;
}

/* Simulates all ranks. Returns the first rank that never ends, or -1. */
static int simulate(Arena *a, ScheduleSim *sim)
{
    const Schedule *schedule = sim->s;
    size_t all = (size_t)schedule->chunks * (size_t)schedule->micros;
    for (int k = 0; k < 2; k++) {
        sim->end[k] = alloc(a, all * sizeof **sim->end);
        for (size_t i = 0; i < all; i++)
            sim->end[k][i] = -1;
    }
    sim->clock = alloc(a, (size_t)schedule->ranks * sizeof *sim->clock);
    sim->next = alloc(a, (size_t)schedule->ranks * sizeof *sim->next);
    sim->start = alloc(a, (size_t)schedule->ranks * sizeof *sim->start);
    for (int r = 0; r < schedule->ranks; r++)
        sim->start[r] =
            alloc(a, (vec_len(schedule->row[r]) + 1) * sizeof **sim->start);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int r = 0; r < schedule->ranks; r++)
            while (sim->next[r] < vec_len(schedule->row[r]) && advance(sim, r))
                moved = 1;
    }
    for (int r = 0; r < schedule->ranks; r++)
        if (sim->next[r] < vec_len(schedule->row[r]))
            return r;
    return -1;
}

int schedule_splits(const Schedule *schedule)
{
    for (int r = 0; r < schedule->ranks; r++)
        for (size_t i = 0; i < vec_len(schedule->row[r]); i++)
            if (schedule->row[r][i].w == WI)
                return 1;
    return 0;
}

static int goes_back(const Schedule *schedule)
{
    for (size_t i = 0; i < vec_len(schedule->row[0]); i++)
        if (schedule->row[0][i].w != WF)
            return 1;
    return 0;
}

static int peak_of(const ScheduleEntry *row, int back)
{
    int now = 0, peak = 0;
    for (size_t i = 0; i < vec_len(row); i++) {
        now += row[i].w == WF;
        peak = now > peak ? now : peak;
        now -= row[i].w == WB || row[i].w == WW || !back;
    }
    return peak;
}

Timing schedule_time(Arena *a, const Schedule *schedule, const double *cost,
                     double hop)
{
    ScheduleSim x = { .s = schedule, .cost = cost, .hop = hop };
    Timing t = { 0 };
    int stuck = simulate(a, &x), back = goes_back(schedule);
    if (stuck >= 0)
        die("schedule %s: rank %d has no end", schedule->name, stuck);
    t.start = x.start;
    t.busy = alloc(a, (size_t)schedule->ranks * sizeof *t.busy);
    t.peak = alloc(a, (size_t)schedule->ranks * sizeof *t.peak);
    for (int r = 0; r < schedule->ranks; r++) {
        for (size_t i = 0; i < vec_len(schedule->row[r]); i++)
            t.busy[r] += cost_of_act(&x, &schedule->row[r][i]);
        t.peak[r] = peak_of(schedule->row[r], back);
        t.makespan = x.clock[r] > t.makespan ? x.clock[r] : t.makespan;
    }
    return t;
}

/* ---- check --------------------------------------------------------------- */

static const char *act_name(Arena *a, const ScheduleEntry *entry)
{
    return strf(a, "%d%c%d", entry->chunk, jobnames[entry->w], entry->micro);
}

/* Checks an act. seen: works of this chunk and micro-batch completed before
 * it. */
static const char *act_wrong(Arena *a, const Schedule *schedule, int r,
                             const ScheduleEntry *entry, int seen)
{
    const char *name = act_name(a, entry);
    if (schedule->rank[entry->chunk] != r)
        return strf(a, "%s: chunk %d is on rank %d", name, entry->chunk,
                    schedule->rank[entry->chunk]);
    if (seen >> entry->w & 1)
        return strf(a, "%s stands there twice", name);
    if (entry->w != WF && !(seen >> WF & 1))
        return strf(a, "%s stands before its F", name);
    if (entry->w == WW && !(seen >> WI & 1) && !(seen >> WB & 1))
        return strf(a, "%s stands before its I", name);
    if ((entry->w == WB && seen != 1 << WF) ||
        (entry->w != WF && seen >> WB & 1))
        return strf(a, "%s: a backward is either B, or I and W", name);
    return NULL;
}

static const char *pair_wrong(Arena *a, const ScheduleEntry *row, size_t i)
{
    const ScheduleEntry *q = row + i, *o = q + 1;
    if (!q->pair)
        return NULL;
    if (i + 1 == vec_len(row) || o->pair || (q->w == WF) == (o->w == WF) ||
        q->w == WW || o->w == WW)
        return strf(a, "%s: only F and B, or F and I, overlap", act_name(a, q));
    return NULL;
}

static const char *rows_wrong(Arena *a, const Schedule *schedule, char *seen,
                              int *r)
{
    for (*r = 0; *r < schedule->ranks; ++*r) {
        const ScheduleEntry *row = schedule->row[*r];
        for (size_t i = 0; i < vec_len(row); i++) {
            const ScheduleEntry *q = row + i;
            if (q->w >= NJOB || q->chunk < 0 || q->chunk >= schedule->chunks ||
                q->micro < 0 || q->micro >= schedule->micros)
                return "an act of no chunk";
            char *was = &seen[(size_t)q->chunk * (size_t)schedule->micros +
                              (size_t)q->micro];
            const char *why = act_wrong(a, schedule, *r, q, *was);
            if (!why)
                why = pair_wrong(a, row, i);
            if (why)
                return why;
            *was |= (char)(1 << q->w);
        }
        if (!vec_len(row))
            return "has nothing to do";
    }
    return NULL;
}

/* Checks that all forwards exist, and all backwards or none. */
static const char *lacks(Arena *a, const Schedule *schedule, const char *seen,
                         int *r)
{
    int back = 0;
    for (size_t i = 0; i < (size_t)schedule->chunks * (size_t)schedule->micros;
         i++)
        back |= seen[i] & ~(1 << WF);
    for (int c = 0; c < schedule->chunks; c++)
        for (int m = 0; m < schedule->micros; m++) {
            int has = seen[(size_t)c * (size_t)schedule->micros + (size_t)m];
            *r = schedule->rank[c];
            if (!(has >> WF & 1))
                return strf(a, "%dF%d is not there", c, m);
            if (back && has == 1 << WF)
                return strf(a, "%dB%d is not there", c, m);
            if (has >> WI & 1 && !(has >> WW & 1))
                return strf(a, "%dW%d is not there", c, m);
        }
    return NULL;
}

const char *schedule_wrong(Arena *a, const Schedule *schedule, int *rank)
{
    int nowhere, *r = rank ? rank : &nowhere;
    char *seen =
        alloc(a, (size_t)schedule->chunks * (size_t)schedule->micros + 1);
    double *unit = alloc(a, NJOB * (size_t)schedule->chunks * sizeof *unit);
    ScheduleSim x = { .s = schedule, .cost = unit };
    const char *why = rows_wrong(a, schedule, seen, r);

    if (!why)
        why = lacks(a, schedule, seen, r);
    if (why)
        return why;
    *r = simulate(a, &x);
    if (*r < 0)
        return NULL;
    const ScheduleEntry *entry = schedule->row[*r] + x.next[*r];
    return strf(a, "waits for ever at %s", act_name(a, entry));
}

/* ---- schedules by name --------------------------------------------------- */

static void check_numbers(int k, const char *kind, int ranks, int vpp,
                          int micros, const Loc *loc)
{
    int need = k == SCHEDULEzerobubble ? 1 : 2;
    if (k != SCHEDULEzerobubble && k != SCHEDULEdualpipev)
        return;
    if (vpp != need)
        err(loc,
            "schedule %s has %d chunk%s a rank, and fold.vpp is %d (nearest "
            "legal: vpp=%d)",
            kind, need, need > 1 ? "s" : "", vpp, need);
    if (need == 2 && micros < 2 * ranks)
        err(loc,
            "schedule %s on %d ranks needs %d micro-batches for a rank to run "
            "in turn, and there %s %d (nearest legal: %d)",
            kind, ranks, 2 * ranks, micros > 1 ? "are" : "is", micros,
            2 * ranks);
}

static Schedule *generated(Arena *a, int k, const char *kind, int ranks,
                           int vpp, int micros)
{
    Schedule *s = table(a, kind, ranks, ranks * vpp, micros);
    switch (k) {
    case SCHEDULEzerobubble: zero_bubble(a, s); break;
    case SCHEDULEdualpipev: dualpipev(a, s); break;
    default: one_f_one_b(a, s);
    }
    return s;
}

/* Reads a table from a file, whose numbers of ranks and chunks must be the
 * fold's. */
static Schedule *from_file(Arena *a, const char *path, int ranks, int vpp,
                           int micros, const Loc *loc)
{
    Schedule *s = schedule_read(a, path);
    if (!s)
        err(loc, "schedule '%s' is neither a kind nor a file that can be read",
            path);
    if (s->ranks != ranks || s->chunks != ranks * vpp)
        err(loc,
            "schedule %s has %d chunks on %d ranks, and fold.pp=%d fold.vpp=%d "
            "make %d on %d",
            path, s->chunks, s->ranks, ranks, vpp, ranks * vpp, ranks);
    if (s->micros != micros)
        err(loc, "schedule %s has %d micro-batches, and a rank runs %d in turn",
            path, s->micros, micros);
    return s;
}

Schedule *schedule_make(Arena *a, const char *kind, int ranks, int vpp,
                        int micros, const Loc *loc)
{
    int k = key_word("fold.schedule", kind), r;
    if (ranks < 1 || vpp < 1 || micros < 1)
        die("schedule %s: %d ranks, %d chunks, %d micro-batches", kind, ranks,
            vpp, micros);
    check_numbers(k, kind, ranks, vpp, micros, loc);
    if (k < 0)
        return from_file(a, kind, ranks, vpp, micros, loc);
    Schedule *s = generated(a, k, kind, ranks, vpp, micros);
    const char *why = schedule_wrong(a, s, &r);
    if (why)
        die("schedule %s, %d ranks, %d chunks each, %d micro-batches: rank %d: "
            "%s",
            kind, ranks, vpp, micros, r, why);
    return s;
}
