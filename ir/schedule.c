/* schedule.c: who does what in which order in a pipeline, as a table: a row of
 * acts for each rank. The published schedules are generated; any other comes
 * from a file (csv.c). Then what must hold of a table, and how long it takes.
 *
 *     1f1b, 3 ranks, 4 micro-batches          time ->
 *     rank 0   F0 F1 F2 .  .  .  B0 F3 B1 . . B2 . . B3
 *     rank 1   .  F0 F1 .  B0 F2 B1 F3 ..
 *     rank 2   .  .  F0 B0 F1 B1 ..
 *
 * Sources: arXiv 2104.04473 (interleaved; Megatron's order), 2401.10241
 * (ZB-H1), DeepSeek's DualPipeV. */
#include <string.h>
#include "keys.h"

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

static void add(Arena *a, Schedule *s, int r, ScheduleEntry q)
{
    vec_push(a, s->row[r], q);
}

/* ---- 1F1B and interleaved ------------------------------------------------ */

/* Micro-batches go in groups through all chunks of a rank. Every group has at
 * least as many as there are ranks (if there are so many at all): a shorter one
 * leaves holes, or waits for itself. The first `longer` groups have one more.*/
typedef struct ScheduleGroups {
    int n, size, longer;
} ScheduleGroups;

static ScheduleGroups groups_of(const Schedule *s)
{
    int n = s->micros / s->ranks > 1 ? s->micros / s->ranks : 1;
    return (ScheduleGroups){ n, s->micros / n, s->micros % n };
}

/* The k-th forward of a rank, and with `back` the k-th backward. */
static ScheduleEntry kth(const Schedule *s, int r, int k, int back)
{
    ScheduleGroups g = groups_of(s);
    int v = s->chunks / s->ranks, first = 0, n = g.size + 1;
    if (k < g.longer * n * v) {
        first = k / (n * v) * n;
    } else {
        first = g.longer * n;
        n = g.size;
        first += (k - first * v) / (n * v) * n;
    }
    int in = k - first * v, c = in / n;
    return (ScheduleEntry){ back ? WB : WF,
                            (back ? v - 1 - c : c) * s->ranks + r,
                            first + in % n, 0 };
}

static void one_f_one_b(Arena *a, Schedule *s)
{
    ScheduleGroups g = groups_of(s);
    int v = s->chunks / s->ranks, p = s->ranks, all = s->micros * v;
    for (int r = 0; r < p; r++) {
        int warm = v == 1 ? p - r - 1
                          : 2 * (p - r - 1) + (v - 1) * (g.size + !!g.longer);
        warm = least(warm, all);
        for (int k = 0; k < all + warm; k++) {
            if (k < all)
                add(a, s, r, kth(s, r, k, 0));
            if (k >= warm)
                add(a, s, r, kth(s, r, k - warm, 1));
        }
    }
}

/* ---- ZB-H1 --------------------------------------------------------------- */

/* 1F1B whose W wait, on rank r for the r-th micro-batch: then no rank has more
 * alive than rank 0, and the last W fill the end, where 1F1B idles. */
static void zero_bubble(Arena *a, Schedule *s)
{
    int m = s->micros;
    for (int r = 0; r < s->ranks; r++) {
        int warm = least(s->ranks - r - 1, m), late = least(r, m - warm);
        for (int k = 0; k < warm; k++)
            add(a, s, r, (ScheduleEntry){ WF, r, k, 0 });
        for (int k = 0; k < m; k++) {
            if (warm + k < m)
                add(a, s, r, (ScheduleEntry){ WF, r, warm + k, 0 });
            add(a, s, r, (ScheduleEntry){ WI, r, k, 0 });
            if (k >= late)
                add(a, s, r, (ScheduleEntry){ WW, r, k - late, 0 });
        }
        for (int k = m - late; k < m; k++)
            add(a, s, r, (ScheduleEntry){ WW, r, k, 0 });
    }
}

/* ---- DualPipeV ----------------------------------------------------------- */

/* One rank, which has chunk r on the way down and 2p-1-r on the way up. */
typedef struct VScheduleRank {
    Arena *a;
    Schedule *s;
    int r, f[2], b[2]; /* next micro-batch of each chunk */
    ScheduleEntry *late;
    size_t done; /* vec: W put off, and how many were done */
} VScheduleRank;

static void forward(VScheduleRank *v, int up, int pair)
{
    int c = up ? v->s->chunks - 1 - v->r : v->r;
    add(v->a, v->s, v->r, (ScheduleEntry){ WF, c, v->f[up]++, pair });
}

static void backward(VScheduleRank *v, int up, int split)
{
    int c = up ? v->s->chunks - 1 - v->r : v->r;
    ScheduleEntry q = { split ? WI : WB, c, v->b[up]++, 0 };
    add(v->a, v->s, v->r, q);
    q.w = WW;
    if (split)
        vec_push(v->a, v->late, q);
}

static void weights(VScheduleRank *v)
{
    add(v->a, v->s, v->r, v->late[v->done++]);
}

static void both(VScheduleRank *v, int up)
{
    forward(v, up, 1);
    backward(v, !up, 0);
}

static void vee_start(VScheduleRank *v)
{
    int p = v->s->ranks, r = v->r;
    for (int i = 0; i < 2 * (p - r - 1); i++)
        forward(v, 0, 0);
    for (int i = 0; i < r + 1; i++) {
        forward(v, 0, 0);
        forward(v, 1, 0);
    }
    for (int i = 0; i < p - r - 1; i++) {
        backward(v, 1, 1);
        weights(v);
        forward(v, 1, 0);
    }
}

static void vee_main(VScheduleRank *v)
{
    int p = v->s->ranks, r = v->r;
    for (int i = 0; i < v->s->micros - 2 * p + r + 1; i++) {
        if (i || r < p - 1) {
            both(v, 0);
        } else { /* the last rank has nothing to overlap yet */
            forward(v, 0, 0);
            backward(v, 1, 0);
        }
        both(v, 1);
    }
    for (int i = 0; i < p - r - 1; i++) {
        backward(v, 1, 0);
        both(v, 1);
    }
}

static void vee_end(VScheduleRank *v)
{
    int p = v->s->ranks, r = v->r, half = (r + 1) / 2;
    for (int i = 0; i < r + 1; i++) {
        backward(v, 1, i > half || (i == half && r % 2));
        backward(v, 0, i >= half);
    }
    for (int i = 0; i < p - r - 1; i++) {
        weights(v);
        backward(v, 0, 1);
    }
    for (int i = 0; i < r + 1; i++)
        weights(v);
}

static void dualpipev(Arena *a, Schedule *s)
{
    for (int c = s->ranks; c < s->chunks; c++)
        s->rank[c] = s->chunks - 1 - c;
    for (int r = 0; r < s->ranks; r++) {
        VScheduleRank v = { .a = a, .s = s, .r = r };
        vee_start(&v);
        vee_main(&v);
        vee_end(&v);
    }
}

/* ---- only forward -------------------------------------------------------- */

/* Groups of as many micro-batches as there are ranks, each through a rank's
 * chunks in order: (group, chunk, micro-batch) ascends wherever chunks lie. */
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

/* ---- how long, how much -------------------------------------------------- */

typedef struct ScheduleSim {
    const Schedule *s;
    const double *cost;
    double hop;
    double *end[2]; /* of F, and of B or I: by chunk * micros +
                                     micro-batch; negative: not yet */
    double *clock;  /* by rank */
    size_t *next;
    double **start;
} ScheduleSim;

static double cost_of_act(const ScheduleSim *x, const ScheduleEntry *q)
{
    const double *c = x->cost + q->chunk;
    int n = x->s->chunks;
    if (q->w == WB && c[WB * n] == 0)
        return c[WI * n] + c[WW * n];
    return c[(int)q->w * n];
}

/* Is chunk c done with its F (or backward) of q's micro-batch? *t: not before
 * q's rank knows. */
static int after(const ScheduleSim *x, int back, int c, const ScheduleEntry *q,
                 double *t)
{
    const Schedule *s = x->s;
    double end = x->end[back][(size_t)c * (size_t)s->micros + (size_t)q->micro];
    if (end < 0)
        return 0;
    if (s->rank[c] != s->rank[q->chunk])
        end += x->hop;
    *t = end > *t ? end : *t;
    return 1;
}

static int ready(const ScheduleSim *x, const ScheduleEntry *q, double *t)
{
    int c = q->chunk;
    if (q->w == WF)
        return !c || after(x, 0, c - 1, q, t);
    if (q->w == WW)
        return after(x, 1, c, q, t);
    return after(x, 0, c, q, t) &&
           (c == x->s->chunks - 1 || after(x, 1, c + 1, q, t));
}

/* A rank's next act, or two that overlap: they start when both can. */
static int advance(ScheduleSim *x, int r)
{
    const Schedule *s = x->s;
    const ScheduleEntry *q = s->row[r] + x->next[r];
    double t = x->clock[r], start;
    size_t n = q->pair ? 2 : 1;
    for (size_t i = 0; i < n; i++)
        if (!ready(x, q + i, &t))
            return 0;
    start = t;
    for (size_t i = 0; i < n; i++)
        t += cost_of_act(x, q + i);
    for (size_t i = 0; i < n; i++) {
        size_t k = (size_t)q[i].chunk * (size_t)s->micros + (size_t)q[i].micro;
        if (q[i].w != WW)
            x->end[q[i].w != WF][k] = t;
        x->start[r][x->next[r]++] = start;
    }
    x->clock[r] = t;
    return 1;
}

/* The first rank that never comes to its end, or -1. */
static int simulate(Arena *a, ScheduleSim *x)
{
    const Schedule *s = x->s;
    size_t all = (size_t)s->chunks * (size_t)s->micros;
    for (int k = 0; k < 2; k++) {
        x->end[k] = alloc(a, all * sizeof **x->end);
        for (size_t i = 0; i < all; i++)
            x->end[k][i] = -1;
    }
    x->clock = alloc(a, (size_t)s->ranks * sizeof *x->clock);
    x->next = alloc(a, (size_t)s->ranks * sizeof *x->next);
    x->start = alloc(a, (size_t)s->ranks * sizeof *x->start);
    for (int r = 0; r < s->ranks; r++)
        x->start[r] = alloc(a, (vec_len(s->row[r]) + 1) * sizeof **x->start);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int r = 0; r < s->ranks; r++)
            while (x->next[r] < vec_len(s->row[r]) && advance(x, r))
                moved = 1;
    }
    for (int r = 0; r < s->ranks; r++)
        if (x->next[r] < vec_len(s->row[r]))
            return r;
    return -1;
}

int schedule_splits(const Schedule *s)
{
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < vec_len(s->row[r]); i++)
            if (s->row[r][i].w == WI)
                return 1;
    return 0;
}

static int goes_back(const Schedule *s)
{
    for (size_t i = 0; i < vec_len(s->row[0]); i++)
        if (s->row[0][i].w != WF)
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

Timing schedule_time(Arena *a, const Schedule *s, const double *cost,
                     double hop)
{
    ScheduleSim x = { .s = s, .cost = cost, .hop = hop };
    Timing t = { 0 };
    int stuck = simulate(a, &x), back = goes_back(s);
    if (stuck >= 0)
        die("schedule %s: rank %d has no end", s->name, stuck);
    t.start = x.start;
    t.busy = alloc(a, (size_t)s->ranks * sizeof *t.busy);
    t.peak = alloc(a, (size_t)s->ranks * sizeof *t.peak);
    for (int r = 0; r < s->ranks; r++) {
        for (size_t i = 0; i < vec_len(s->row[r]); i++)
            t.busy[r] += cost_of_act(&x, &s->row[r][i]);
        t.peak[r] = peak_of(s->row[r], back);
        t.makespan = x.clock[r] > t.makespan ? x.clock[r] : t.makespan;
    }
    return t;
}

/* ---- what must hold ------------------------------------------------------ */

static const char *act_name(Arena *a, const ScheduleEntry *q)
{
    return strf(a, "%d%c%d", q->chunk, jobnames[q->w], q->micro);
}

/* seen: which jobs of this chunk and micro-batch were done before q. */
static const char *act_wrong(Arena *a, const Schedule *s, int r,
                             const ScheduleEntry *q, int seen)
{
    const char *name = act_name(a, q);
    if (s->rank[q->chunk] != r)
        return strf(a, "%s: chunk %d is on rank %d", name, q->chunk,
                    s->rank[q->chunk]);
    if (seen >> q->w & 1)
        return strf(a, "%s stands there twice", name);
    if (q->w != WF && !(seen >> WF & 1))
        return strf(a, "%s stands before its F", name);
    if (q->w == WW && !(seen >> WI & 1) && !(seen >> WB & 1))
        return strf(a, "%s stands before its I", name);
    if ((q->w == WB && seen != 1 << WF) || (q->w != WF && seen >> WB & 1))
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

static const char *rows_wrong(Arena *a, const Schedule *s, char *seen, int *r)
{
    for (*r = 0; *r < s->ranks; ++*r) {
        const ScheduleEntry *row = s->row[*r];
        for (size_t i = 0; i < vec_len(row); i++) {
            const ScheduleEntry *q = row + i;
            if (q->w >= NJOB || q->chunk < 0 || q->chunk >= s->chunks ||
                q->micro < 0 || q->micro >= s->micros)
                return "an act of no chunk";
            char *was =
                &seen[(size_t)q->chunk * (size_t)s->micros + (size_t)q->micro];
            const char *why = act_wrong(a, s, *r, q, *was);
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

/* Everything is there; all backward or none. */
static const char *lacks(Arena *a, const Schedule *s, const char *seen, int *r)
{
    int back = 0;
    for (size_t i = 0; i < (size_t)s->chunks * (size_t)s->micros; i++)
        back |= seen[i] & ~(1 << WF);
    for (int c = 0; c < s->chunks; c++)
        for (int m = 0; m < s->micros; m++) {
            int has = seen[(size_t)c * (size_t)s->micros + (size_t)m];
            *r = s->rank[c];
            if (!(has >> WF & 1))
                return strf(a, "%dF%d is not there", c, m);
            if (back && has == 1 << WF)
                return strf(a, "%dB%d is not there", c, m);
            if (has >> WI & 1 && !(has >> WW & 1))
                return strf(a, "%dW%d is not there", c, m);
        }
    return NULL;
}

const char *schedule_wrong(Arena *a, const Schedule *s, int *rank)
{
    int nowhere, *r = rank ? rank : &nowhere;
    char *seen = alloc(a, (size_t)s->chunks * (size_t)s->micros + 1);
    double *unit = alloc(a, NJOB * (size_t)s->chunks * sizeof *unit);
    ScheduleSim x = { .s = s, .cost = unit };
    const char *why = rows_wrong(a, s, seen, r);

    if (!why)
        why = lacks(a, s, seen, r);
    if (why)
        return why;
    *r = simulate(a, &x);
    if (*r < 0)
        return NULL;
    const ScheduleEntry *q = s->row[*r] + x.next[*r];
    return strf(a, "waits for ever at %s", act_name(a, q));
}

/* ---- by name ------------------------------------------------------------- */

static void check_numbers(int k, const char *kind, int ranks, int vpp,
                          int micros, const Loc *l)
{
    int need = k == SCHEDULEzerobubble ? 1 : 2;
    if (k != SCHEDULEzerobubble && k != SCHEDULEdualpipev)
        return;
    if (vpp != need)
        err(l,
            "schedule %s has %d chunk%s a rank, and fold.vpp is %d (nearest "
            "legal: vpp=%d)",
            kind, need, need > 1 ? "s" : "", vpp, need);
    if (need == 2 && micros < 2 * ranks)
        err(l,
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

/* A file's table has its own numbers; they must be the fold's. */
static Schedule *from_file(Arena *a, const char *path, int ranks, int vpp,
                           int micros, const Loc *l)
{
    Schedule *s = schedule_read(a, path);
    if (!s)
        err(l, "schedule '%s' is neither a kind nor a file that can be read",
            path);
    if (s->ranks != ranks || s->chunks != ranks * vpp)
        err(l,
            "schedule %s has %d chunks on %d ranks, and fold.pp=%d fold.vpp=%d "
            "make %d on %d",
            path, s->chunks, s->ranks, ranks, vpp, ranks * vpp, ranks);
    if (s->micros != micros)
        err(l, "schedule %s has %d micro-batches, and a rank runs %d in turn",
            path, s->micros, micros);
    return s;
}

Schedule *schedule_make(Arena *a, const char *kind, int ranks, int vpp,
                        int micros, const Loc *l)
{
    int k = key_word("fold.schedule", kind), r;
    if (ranks < 1 || vpp < 1 || micros < 1)
        die("schedule %s: %d ranks, %d chunks, %d micro-batches", kind, ranks,
            vpp, micros);
    check_numbers(k, kind, ranks, vpp, micros, l);
    if (k < 0)
        return from_file(a, kind, ranks, vpp, micros, l);
    Schedule *s = generated(a, k, kind, ranks, vpp, micros);
    const char *why = schedule_wrong(a, s, &r);
    if (why)
        die("schedule %s, %d ranks, %d chunks each, %d micro-batches: rank %d: "
            "%s",
            kind, ranks, vpp, micros, r, why);
    return s;
}
