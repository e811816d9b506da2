/* activation_slots.c: where the values of a pipeline stage lie.
 *
 *     through     | accumulators, what pre made: one place, there all the time
 *     private     | values of one call: packed by instruction; as no two calls
 *                 | run at once, all calls share one block
 *     framed      | what a micro-batch keeps from one call to another
 *
 * Framed values that are made and last read in the same rows, in every
 * micro-batch, form a frame; they lie in it one after another. A frame of a
 * micro-batch is a rectangle: its bytes, from its first row to its last. All
 * rectangles of all frames are packed into one pool as buffers are, only that
 * time is the rows of the table. Where in the pool micro-batch m has its frame
 * is slot[of[m]]. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows ---------------------------------------------------------------- */

CallTimes *rows_of(Arena *a, const Program *prog)
{
    CallTimes *t = alloc(a, sizeof *t);

    *t = (CallTimes){ .arena = a, .prog = prog };
    if (!prog->nslot)
        return NULL;
    while (prog->phase[t->call].repeat)
        t->call++;
    while (t->call + t->ncall < prog->nphase &&
           !prog->phase[t->call + t->ncall].repeat)
        t->ncall++;
    const Phase *last = &prog->phase[t->call + t->ncall - 1];
    t->from = prog->phase[t->call].first;
    t->to = last->first + last->n - 1;
    t->micros = prog->nslot / t->ncall;
    if (t->to < t->from)
        return NULL;
    t->at = alloc(a, sizeof *t->at * (size_t)prog->nslot);
    for (int i = 0; i < prog->nslot; i++) {
        int call = prog->slot[i].phase - t->call, m = prog->slot[i].micro;
        if (call < 0 || call >= t->ncall || m < 0 || m >= t->micros)
            die("alloc: row %d of the table", i);
        t->at[call * t->micros + m] = i;
    }
    return t;
}

static int row_of(const CallTimes *t, const Used *u, int micro)
{
    return t->at[(u->phase - t->call) * t->micros + micro];
}

/* The first and the last of the calls of x for a micro-batch. */
typedef struct CallSpan {
    int first, last;
} CallSpan; /* indices of used */

static CallSpan ends_of(const CallTimes *t, const Live *x, int micro)
{
    CallSpan e = { 0, 0 };

    for (int i = 1; i < (int)vec_len(x->used); i++) {
        int row = row_of(t, &x->used[i], micro);
        if (row < row_of(t, &x->used[e.first], micro))
            e.first = i;
        if (row > row_of(t, &x->used[e.last], micro))
            e.last = i;
    }
    return e;
}

/* ---- lives --------------------------------------------------------------- */

static void settle_rows(const CallTimes *t, Live *x)
{
    CallSpan e = ends_of(t, x, 0);
    int same = 1;

    for (int m = 1; m < t->micros; m++) {
        CallSpan o = ends_of(t, x, m);
        if (o.first != e.first)
            die("alloc: %s is made in two calls", x->node->name);
        same &= o.last == e.last;
    }
    x->first = x->used[e.first].first;
    x->last = same ? x->used[e.last].last : -1;
}

void rows_settle(const CallTimes *t, Live *x)
{
    if (!x->used)
        return;
    if (x->node && (x->node->op == Oaccum || x->node->op == Osum_sq))
        x->outside = 1;
    if (!x->outside) {
        settle_rows(t, x);
        return;
    }
    x->born = x->born < t->from ? x->born : t->from;
    if (x->dies <= t->to) {
        x->dies = t->to;
        x->last = -1;
    }
}

void rows_join(const CallTimes *t, Live *y, const Live *x)
{
    Used *all = NULL;
    size_t i = 0, j = 0;

    while (i < vec_len(y->used) || j < vec_len(x->used)) {
        const Used *a = i < vec_len(y->used) ? &y->used[i] : NULL;
        const Used *b = j < vec_len(x->used) ? &x->used[j] : NULL;
        Used u = a && (!b || a->phase <= b->phase) ? *a : *b;
        if (a && b && a->phase == b->phase) {
            u.first = a->first < b->first ? a->first : b->first;
            u.last = a->last > b->last ? a->last : b->last;
        }
        i += a && a->phase == u.phase;
        j += b && b->phase == u.phase;
        vec_push(t->arena, all, u);
    }
    y->used = all;
    y->born = x->born < y->born ? x->born : y->born;
    y->dies = x->dies > y->dies ? x->dies : y->dies;
}

/* ---- what is private to a call ------------------------------------------- */

static int is_private(const Live *x)
{
    return x->same < 0 && !x->outside && vec_len(x->used) == 1;
}

static int is_framed(const Live *x)
{
    return x->same < 0 && !x->outside && vec_len(x->used) > 1;
}

/* Packs each call's; most[call] becomes what it cannot do without. */
static int64_t place_private(const CallTimes *t, Layout *l, int host,
                             int64_t *most)
{
    Rect *r = alloc(t->arena, sizeof *r * (size_t)(l->n + 1));
    int *id = alloc(t->arena, sizeof *id * (size_t)(l->n + 1));
    int **of = alloc(t->arena, sizeof *of * (size_t)t->ncall);
    int64_t height = 0;

    for (int i = 0; i < l->n; i++)
        if (is_private(&l->live[i]) && l->live[i].host == host)
            vec_push(t->arena, of[l->live[i].used->phase - t->call], i);
    for (int c = 0; c < t->ncall; c++) {
        int n = (int)vec_len(of[c]);
        for (int i = 0; i < n; i++) {
            const Live *x = &l->live[id[i] = of[c][i]];
            r[i] = (Rect){ x->born, x->dies, x->bytes, -1, 0 };
        }
        Packed p = pack(t->arena, r, n, 0, PACKWORK / t->ncall);
        for (int i = 0; i < n; i++)
            l->live[id[i]].offset = r[i].offset;
        height = p.height > height ? p.height : height;
        most[c] = p.bound;
    }
    return height;
}

/* ---- frames -------------------------------------------------------------- */

typedef struct SlotLifetime { /* a frame in the making */
    CallSpan *row;            /* by micro-batch: first and last row */
    int64_t bytes;
} SlotLifetime;

static CallSpan *rows_alive(const CallTimes *t, const Live *x)
{
    CallSpan *v = alloc(t->arena, sizeof *v * (size_t)t->micros);

    for (int m = 0; m < t->micros; m++) {
        CallSpan e = ends_of(t, x, m);
        v[m] = (CallSpan){ row_of(t, &x->used[e.first], m),
                           row_of(t, &x->used[e.last], m) };
    }
    return v;
}

static const char *frame_name(const CallTimes *t, const CallSpan *row)
{
    const Program *prog = t->prog;

    return strf(t->arena, "%s-%s",
                prog->phase[prog->slot[row->first].phase].name,
                prog->phase[prog->slot[row->last].phase].name);
}

/* Every framed value to the frame that lives as it does. */
static SlotLifetime *fill_frames(const CallTimes *t, Layout *l, int host)
{
    size_t bytes = sizeof(CallSpan) * (size_t)t->micros;
    size_t first = vec_len(l->frame);
    SlotLifetime *v = NULL;

    for (int i = 0; i < l->n; i++) {
        Live *x = &l->live[i];
        size_t k = 0;
        if (!is_framed(x) || x->host != host)
            continue;
        CallSpan *row = rows_alive(t, x);
        while (k < vec_len(v) && memcmp(v[k].row, row, bytes))
            k++;
        if (k == vec_len(v)) {
            SlotGroup f = { .name = frame_name(t, row) };
            vec_push(t->arena, v, ((SlotLifetime){ row, 0 }));
            vec_push(t->arena, l->frame, f);
        }
        x->frame = (int)(first + k) + 1;
        x->offset = v[k].bytes;
        v[k].bytes += (x->bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
    }
    return v;
}

/* The offsets of a frame by micro-batch as slots. */
static void name_slots(const CallTimes *t, SlotGroup *f, const Rect *r)
{
    int64_t *at = alloc(t->arena, sizeof *at * (size_t)t->micros);

    for (int m = 0; m < t->micros; m++)
        at[m] = r[m].offset;
    qsort(at, (size_t)t->micros, sizeof *at, by_value);
    for (int m = 0; m < t->micros; m++)
        if (!m || at[m] != at[m - 1])
            at[f->nslot++] = at[m];
    f->slot = at;
    f->nof = t->micros;
    f->of = alloc(t->arena, sizeof *f->of * (size_t)t->micros);
    for (int m = 0; m < t->micros; m++) {
        const int64_t *s =
            bsearch(&r[m].offset, at, (size_t)f->nslot, sizeof *at, by_value);
        f->of[m] = (int)(s - at);
    }
}

/* Each frame by itself: a micro-batch takes the first slot that is free. */
static int64_t place_apart(const CallTimes *t, Rect *r, size_t n)
{
    int *until = alloc(t->arena, sizeof *until * (size_t)t->micros);
    int64_t height = 0;

    for (size_t k = 0; k < n; k++) {
        Rect *x = &r[k * (size_t)t->micros];
        int slots = 0;
        for (int m = 0; m < t->micros; m++) {
            int s = 0;
            while (s < slots && until[s] >= x[m].born)
                s++;
            slots += s == slots;
            until[s] = x[m].dies;
            x[m].offset = height + s * x[m].bytes;
        }
        height += slots * x->bytes;
    }
    return height;
}

enum { POOLWORK = 2000000 }; /* units of pack() that a pool is worth */

static int64_t place_pool(const CallTimes *t, SlotGroup *frame,
                          const SlotLifetime *v, Rect *r)
{
    size_t n = vec_len(v), all = n * (size_t)t->micros;
    Rect *apart = alloc(t->arena, sizeof *apart * (all + 1));
    const char *wrong;

    for (size_t k = 0; k < n; k++)
        for (int m = 0; m < t->micros; m++)
            r[k * (size_t)t->micros + (size_t)m] =
                (Rect){ v[k].row[m].first, v[k].row[m].last, v[k].bytes, -1,
                        0 };
    memcpy(apart, r, sizeof *r * all);
    int64_t height = place_apart(t, apart, n);
    Packed p = pack(t->arena, r, (int)all, 0, POOLWORK);
    if (height <= p.height)
        memcpy(r, apart, sizeof *r * all);
    else
        height = p.height;
    if ((wrong = pack_wrong(t->arena, r, (int)all, height)))
        die("alloc: frames: %s", wrong);
    for (size_t k = 0; k < n; k++) {
        frame[k].bytes = v[k].bytes;
        name_slots(t, &frame[k], r + k * (size_t)t->micros);
    }
    return height;
}

/* Bytes of frames alive in each row, with the private ones of its call. */
static int64_t most_alive(const CallTimes *t, const Rect *r, size_t n,
                          const int64_t *priv)
{
    int64_t *d = alloc(t->arena, sizeof *d * (size_t)(t->prog->nslot + 1));
    int64_t load = 0, most = 0;

    for (size_t i = 0; i < n; i++) {
        d[r[i].born] += r[i].bytes;
        d[r[i].dies + 1] -= r[i].bytes;
    }
    for (int i = 0; i < t->prog->nslot; i++) {
        load += d[i];
        int64_t here = load + priv[t->prog->slot[i].phase - t->call];
        most = here > most ? here : most;
    }
    return most;
}

TableMemory rows_place(const CallTimes *t, Layout *l, int host)
{
    int64_t *priv = alloc(t->arena, sizeof *priv * (size_t)t->ncall);
    TableMemory out = { .host = host, .first = vec_len(l->frame) };

    out.priv = place_private(t, l, host, priv);
    SlotLifetime *v = fill_frames(t, l, host);
    size_t all = vec_len(v) * (size_t)t->micros;
    Rect *r = alloc(t->arena, sizeof *r * (all + 1));
    out.pool = place_pool(t, l->frame + out.first, v, r);
    out.bound = most_alive(t, r, all, priv);
    return out;
}

void rows_move(Layout *l, const TableMemory *t, int64_t priv, int64_t pool)
{
    for (int i = 0; i < l->n; i++)
        if (is_private(&l->live[i]) && l->live[i].host == t->host)
            l->live[i].offset += priv;
    for (size_t k = t->first; k < vec_len(l->frame); k++)
        for (int s = 0; s < l->frame[k].nslot; s++)
            l->frame[k].slot[s] += pool;
}
