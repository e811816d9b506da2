/* schedule_transfers.c: a schedule with its transfers, as the rows each rank
 * runs.
 *
 *     rank 0   F0  send.F0.F1  F1 ..            recv.B1.B0  B0
 *     rank 1       recv.F0.F1  F0  B0  send.B1.B0           wait.B1.B0
 *
 * All rows of all ranks get a place in one order: by start in a simulation
 * with unit costs, then by rank. What makes a value starts before what reads it
 * in that order. A send stands right after the first, a recv right before the
 * second, a wait behind the recv before the next row of its rank: so every
 * arrow of row order, send -> recv and recv -> wait points forward, and nothing
 * can wait in a circle, even when a send ends only once it is received. */
#include <stdlib.h>
#include <string.h>
#include "plan.h"

/* A transfer's row before it has its place. */
typedef struct PendingTransfer {
    size_t slot;  /* 2 i: before work row i, 2 i + 1: after */
    size_t order; /* of the sends */
    PipeRow row;
} PendingTransfer;

typedef struct TransferInsertion {
    Arena *arena;
    Schedule *s; /* B split into I and W if any is */
    double **start;
    size_t *at;    /* work row of (job, chunk, micro-batch) */
    size_t **rows; /* by job * chunks + chunk: vec, in order */
    const StageTransfer *edge;
    int nedge;
    PendingTransfer **extra; /* by rank: vec */
} TransferInsertion;

/* ---- the work ------------------------------------------------------------ */

static Schedule *split(Arena *a, const Schedule *s)
{
    Schedule *x = alloc(a, sizeof *x);
    int splits = schedule_splits(s);
    *x = *s;
    x->row = alloc(a, (size_t)s->ranks * sizeof *x->row);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < vec_len(s->row[r]); i++) {
            ScheduleEntry q = s->row[r][i];
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

static size_t *place(const TransferInsertion *t, WorkKind w, int chunk,
                     int micro)
{
    const Schedule *s = t->s;
    return &t->at[((size_t)w * (size_t)s->chunks + (size_t)chunk) *
                      (size_t)s->micros +
                  (size_t)micro];
}

static void note_places(TransferInsertion *t)
{
    const Schedule *s = t->s;
    size_t n = NJOB * (size_t)s->chunks * (size_t)s->micros;
    t->at = alloc(t->arena, n * sizeof *t->at);
    memset(t->at, 0xff, n * sizeof *t->at);
    t->rows = alloc(t->arena, NJOB * (size_t)s->chunks * sizeof *t->rows);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < vec_len(s->row[r]); i++) {
            const ScheduleEntry *q = &s->row[r][i];
            *place(t, q->w, q->chunk, q->micro) = i;
            vec_push(t->arena, t->rows[(int)q->w * s->chunks + q->chunk], i);
        }
}

static void times(TransferInsertion *t)
{
    static const double of[NJOB] = { [WF] = 1, [WB] = 2, [WI] = 1, [WW] = 1 };
    size_t n = (size_t)t->s->chunks;
    double *cost = alloc(t->arena, NJOB * n * sizeof *cost);
    for (size_t i = 0; i < NJOB * n; i++)
        cost[i] = of[i / n];
    t->start = schedule_time(t->arena, t->s, cost, 0).start;
}

/* ---- transfers ----------------------------------------------------------- */

/* Is row i of rank r behind row j of rank q in the one order? */
static int behind(const TransferInsertion *t, int r, size_t i, int q, size_t j)
{
    double x = t->start[r][i], y = t->start[q][j];
    return x > y || (x == y && r > q);
}

static size_t next_behind(const TransferInsertion *t, int r, int q, size_t j)
{
    size_t low = 0, high = vec_len(t->s->row[r]);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (behind(t, r, mid, q, j))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static void extra(TransferInsertion *t, int r, size_t slot, size_t order,
                  PipeRow row)
{
    PendingTransfer x = { slot, order, row };
    vec_push(t->arena, t->extra[r], x);
}

/* Two rows that overlap stand together: transfers go before or after both. */
static size_t before(const ScheduleEntry *row, size_t i)
{
    return 2 * (i && row[i - 1].pair ? i - 1 : i);
}

static size_t behind_it(const ScheduleEntry *row, size_t i)
{
    return 2 * (row[i].pair ? i + 1 : i) + 1;
}

/* Values arrive in the order they were sent; a recv stands before the first row
 * that needs its value or one sent later. Backwards over the sends. */
static void transfer(TransferInsertion *t, int e)
{
    const StageTransfer *h = &t->edge[e];
    const Schedule *s = t->s;
    int from = s->rank[h->a], to = s->rank[h->b];
    const ScheduleEntry *there = s->row[to];
    const size_t *made = t->rows[(int)h->from * s->chunks + h->a];
    size_t need = SIZE_MAX;
    for (size_t last = vec_len(made); last-- > 0;) {
        size_t i = made[last];
        const ScheduleEntry *q = &s->row[from][i];
        size_t k = *place(t, h->to, h->b, q->micro);
        if (k == SIZE_MAX)
            die("schedule %s has no %d%c%d", s->name, h->b, jobnames[h->to],
                q->micro);
        need = k < need ? k : need;
        if (!behind(t, to, need, from, i))
            die("schedule %s: %d%c%d is needed before it is there", s->name,
                h->a, jobnames[h->from], q->micro);
        PipeRow w = { .k = ROWsend,
                      .w = h->from,
                      .chunk = h->a,
                      .edge = e,
                      .micro = q->micro };
        extra(t, from, behind_it(s->row[from], i), i, w);
        w.k = ROWrecv;
        extra(t, to, before(there, need), i, w);
        w.k = ROWwait;
        extra(t, from, before(s->row[from], next_behind(t, from, to, need)), i,
              w);
    }
}

/* ---- one table ----------------------------------------------------------- */

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

static PipeRow *merge(const TransferInsertion *t, int r)
{
    PipeRow *out = NULL;
    PendingTransfer *x = t->extra[r];
    size_t n = vec_len(x), k = 0, rows = vec_len(t->s->row[r]);
    if (n)
        qsort(x, n, sizeof *x, by_slot);
    for (size_t i = 0; i <= rows; i++) {
        for (; k < n && x[k].slot <= 2 * i; k++)
            vec_push(t->arena, out, x[k].row);
        if (i == rows)
            break;
        const ScheduleEntry *q = &t->s->row[r][i];
        PipeRow w = { .k = ROWwork,
                      .w = q->w,
                      .chunk = q->chunk,
                      .edge = -1,
                      .micro = q->micro,
                      .pair = q->pair };
        vec_push(t->arena, out, w);
    }
    return out;
}

/* Runs the rows where a send ends with its recv and not before. */
typedef struct TransferCount {
    int sent, received, waited;
} TransferCount;

static int runs(const PipeRow *w, TransferCount *c)
{
    c += w->edge;
    switch (w->k) {
    case ROWsend: c->sent++; break;
    case ROWrecv: return c->sent > c->received ? ++c->received : 0;
    case ROWwait: return c->received > c->waited ? ++c->waited : 0;
    case ROWwork: break;
    }
    return 1;
}

static void check_end(const TransferInsertion *t, PipeRow **row)
{
    size_t n = (size_t)t->s->ranks;
    size_t *next = alloc(t->arena, n * sizeof *next);
    TransferCount *c = alloc(t->arena, ((size_t)t->nedge + 1) * sizeof *c);
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
            die("schedule %s: rank %d never comes to an end", t->s->name,
                (int)r);
}

PipeRow **schedule_rows(Arena *a, const Schedule *s, const StageTransfer *e,
                        int n)
{
    TransferInsertion t = {
        .arena = a, .s = split(a, s), .edge = e, .nedge = n
    };
    PipeRow **row = alloc(a, (size_t)s->ranks * sizeof *row);
    t.extra = alloc(a, (size_t)s->ranks * sizeof *t.extra);
    note_places(&t);
    times(&t);
    for (int i = 0; i < n; i++)
        if (s->rank[e[i].a] != s->rank[e[i].b])
            transfer(&t, i);
    for (int r = 0; r < s->ranks; r++)
        row[r] = merge(&t, r);
    check_end(&t, row);
    return row;
}
