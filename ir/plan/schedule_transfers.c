/* schedule_transfers.c: adds transfers to a schedule: the rows that each rank
 * runs.
 *
 *     rank 0   F0  send.F0.F1  F1 ..            recv.B1.B0  B0
 *     rank 1       recv.F0.F1  F0  B0  send.B1.B0           wait.B1.B0
 *
 * All rows of all ranks have a place in one order: by start in a simulation
 * with unit costs, then by rank. In this order the producer of a value precedes
 * its reader. A send is right after the producer, a recv right before the
 * reader, a wait after the recv and before the next row of its rank. So all
 * edges of row order, send -> recv and recv -> wait point forward, and there is
 * no cycle, even if a send ends only when it is received. */
#include "plan.h"

/* A transfer's row without a place yet. */
typedef struct PendingTransfer {
    size_t slot;  /* 2 i: before work row i, 2 i + 1: after */
    size_t order; /* order of its send */
    PipeRow row;
} PendingTransfer;

typedef struct TransferInsertion {
    Arena *arena;
    Schedule *s; /* all B are split into I and W if any is */
    double **start;
    size_t *at;    /* work row of (work, chunk, micro-batch) */
    size_t **rows; /* [work * chunks + chunk]: vec, in order */
    const StageTransfer *edge;
    int nedge;
    PendingTransfer **extra; /* [rank]: vec */
} TransferInsertion;

/* ---- works --------------------------------------------------------------- */

static Schedule *split(Arena *a, const Schedule *schedule)
{
    Schedule *x = alloc(a, sizeof *x);
    int splits = schedule_splits(schedule);
    *x = *schedule;
    x->row = alloc(a, (size_t)schedule->ranks * sizeof *x->row);
    for (int r = 0; r < schedule->ranks; r++)
        for (size_t i = 0; i < vec_len(schedule->row[r]); i++) {
            ScheduleEntry q = schedule->row[r][i];
            int both = splits && q.w == WB;
            if (both)
                q.w = WI;
            vec_push(a, x->row[r], q);
            q.w = WW;
            if (both)
                vec_push(a, x->row[r], q);
        }
    return x;
}

static size_t *place(const TransferInsertion *insertion, WorkKind w, int chunk,
                     int micro)
{
    const Schedule *schedule = insertion->s;
    return &insertion
                ->at[((size_t)w * (size_t)schedule->chunks + (size_t)chunk) *
                         (size_t)schedule->micros +
                     (size_t)micro];
}

static void note_places(TransferInsertion *insertion)
{
    const Schedule *schedule = insertion->s;
    size_t n = NJOB * (size_t)schedule->chunks * (size_t)schedule->micros;
    insertion->at = alloc(insertion->arena, n * sizeof *insertion->at);
    memset(insertion->at, 0xff, n * sizeof *insertion->at);
    insertion->rows = alloc(insertion->arena, NJOB * (size_t)schedule->chunks *
                                                  sizeof *insertion->rows);
    for (int r = 0; r < schedule->ranks; r++)
        for (size_t i = 0; i < vec_len(schedule->row[r]); i++) {
            const ScheduleEntry *entry = &schedule->row[r][i];
            *place(insertion, entry->w, entry->chunk, entry->micro) = i;
            vec_push(insertion->arena,
                     insertion->rows[(int)entry->w * schedule->chunks +
                                     entry->chunk],
                     i);
        }
}

static void times(TransferInsertion *insertion)
{
    static const double of[NJOB] = { [WF] = 1, [WB] = 2, [WI] = 1, [WW] = 1 };
    size_t n = (size_t)insertion->s->chunks;
    double *cost = alloc(insertion->arena, NJOB * n * sizeof *cost);
    for (size_t i = 0; i < NJOB * n; i++)
        cost[i] = of[i / n];
    insertion->start =
        schedule_time(insertion->arena, insertion->s, cost, 0).start;
}

/* ---- transfers ----------------------------------------------------------- */

/* Is row i of rank r after row j of rank q in the common order? */
static int behind(const TransferInsertion *insertion, int r, size_t i, int q,
                  size_t j)
{
    double x = insertion->start[r][i], y = insertion->start[q][j];
    return x > y || (x == y && r > q);
}

static size_t next_behind(const TransferInsertion *insertion, int r, int q,
                          size_t j)
{
    size_t low = 0, high = vec_len(insertion->s->row[r]);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (behind(insertion, r, mid, q, j))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static void extra(TransferInsertion *insertion, int r, size_t slot,
                  size_t order, PipeRow row)
{
    PendingTransfer x = { slot, order, row };
    vec_push(insertion->arena, insertion->extra[r], x);
}

/* Returns the place before row i: rows that overlap stay together. */
static size_t before(const ScheduleEntry *row, size_t i)
{
    return 2 * (i && row[i - 1].pair ? i - 1 : i);
}

static size_t behind_it(const ScheduleEntry *row, size_t i)
{
    return 2 * (row[i].pair ? i + 1 : i) + 1;
}

/* Adds the rows of a transfer. Values arrive in the order of their sends, so a
 * recv is before the first row that needs its value or a later one; sends are
 * visited backwards. */
static void transfer(TransferInsertion *insertion, int e)
{
    const StageTransfer *stage_transfer = &insertion->edge[e];
    const Schedule *schedule = insertion->s;
    int from = schedule->rank[stage_transfer->a],
        to = schedule->rank[stage_transfer->b];
    const ScheduleEntry *there = schedule->row[to];
    const size_t *made =
        insertion->rows[(int)stage_transfer->from * schedule->chunks +
                        stage_transfer->a];
    size_t need = SIZE_MAX;
    for (size_t last = vec_len(made); last-- > 0;) {
        size_t i = made[last];
        const ScheduleEntry *entry = &schedule->row[from][i];
        size_t k = *place(insertion, stage_transfer->to, stage_transfer->b,
                          entry->micro);
        if (k == SIZE_MAX)
            die("schedule %s has no %d%c%d", schedule->name, stage_transfer->b,
                jobnames[stage_transfer->to], entry->micro);
        need = k < need ? k : need;
        if (!behind(insertion, to, need, from, i))
            die("schedule %s: %d%c%d is needed before it is there",
                schedule->name, stage_transfer->a,
                jobnames[stage_transfer->from], entry->micro);
        PipeRow w = { .k = ROWsend,
                      .w = stage_transfer->from,
                      .chunk = stage_transfer->a,
                      .edge = e,
                      .micro = entry->micro };
        extra(insertion, from, behind_it(schedule->row[from], i), i, w);
        w.k = ROWrecv;
        extra(insertion, to, before(there, need), i, w);
        w.k = ROWwait;
        extra(
            insertion, from,
            before(schedule->row[from], next_behind(insertion, from, to, need)),
            i, w);
    }
}

/* ---- the whole table ----------------------------------------------------- */

static int by_slot(const void *pa, const void *pb)
{
    static const int place[] = { [ROWwait] = 0, [ROWrecv] = 1, [ROWsend] = 2 };
    const PendingTransfer *a = pa, *b = pb;
    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    if (a->row.k != b->row.k)
        return place[a->row.k] - place[b->row.k];
    if (a->row.edge != b->row.edge)
        return a->row.edge - b->row.edge;
    return a->order < b->order ? -1 : 1;
}

static PipeRow *merge(const TransferInsertion *insertion, int r)
{
    PipeRow *out = NULL;
    PendingTransfer *x = insertion->extra[r];
    size_t n = vec_len(x), k = 0, rows = vec_len(insertion->s->row[r]);
    if (n)
        qsort(x, n, sizeof *x, by_slot);
    for (size_t i = 0; i <= rows; i++) {
        for (; k < n && x[k].slot <= 2 * i; k++)
            vec_push(insertion->arena, out, x[k].row);
        if (i == rows)
            break;
        const ScheduleEntry *entry = &insertion->s->row[r][i];
        PipeRow w = { .k = ROWwork,
                      .w = entry->w,
                      .chunk = entry->chunk,
                      .edge = -1,
                      .micro = entry->micro,
                      .pair = entry->pair };
        vec_push(insertion->arena, out, w);
    }
    return out;
}

/* Simulation in which a send ends only with its recv. */
typedef struct TransferCount {
    int sent, received, waited;
} TransferCount;

static int runs(const PipeRow *row, TransferCount *count)
{
    count += row->edge;
    switch (row->k) {
    case ROWsend: count->sent++; break;
    case ROWrecv: return count->sent > count->received ? ++count->received : 0;
    case ROWwait: return count->received > count->waited ? ++count->waited : 0;
    case ROWwork: break;
    }
    return 1;
}

static void check_end(const TransferInsertion *insertion, PipeRow **row)
{
    size_t n = (size_t)insertion->s->ranks;
    size_t *next = alloc(insertion->arena, n * sizeof *next);
    TransferCount *c =
        alloc(insertion->arena, ((size_t)insertion->nedge + 1) * sizeof *c);
    for (int moved = 1; moved;) {
        moved = 0;
        for (size_t r = 0; r < n; r++)
            for (; next[r] < vec_len(row[r]) &&
                   (row[r][next[r]].k == ROWwork || runs(&row[r][next[r]], c));
                 next[r]++)
                moved = 1;
    }
    for (size_t r = 0; r < n; r++)
        if (next[r] < vec_len(row[r]))
            die("schedule %s: rank %d never comes to an end",
                insertion->s->name, (int)r);
}

PipeRow **schedule_rows(Arena *a, const Schedule *schedule,
                        const StageTransfer *stage_transfer, int n)
{
    TransferInsertion t = {
        .arena = a, .s = split(a, schedule), .edge = stage_transfer, .nedge = n
    };
    PipeRow **row = alloc(a, (size_t)schedule->ranks * sizeof *row);
    t.extra = alloc(a, (size_t)schedule->ranks * sizeof *t.extra);
    note_places(&t);
    times(&t);
    for (int i = 0; i < n; i++)
        if (schedule->rank[stage_transfer[i].a] !=
            schedule->rank[stage_transfer[i].b])
            transfer(&t, i);
    for (int r = 0; r < schedule->ranks; r++)
        row[r] = merge(&t, r);
    check_end(&t, row);
    return row;
}
