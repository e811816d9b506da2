/* activation_slots.c: places of the values of a pipeline stage.
 *
 *     through     | accumulators, values of pre: a fixed place, always live
 *     private     | values of one call: packed by instruction; no two calls run
 *                 | at once, so all calls share one block
 *     framed      | values that a micro-batch keeps between calls
 *
 * Framed values that are made and last read in the same rows, in every
 * micro-batch, form a frame, in which they are consecutive. A frame of a
 * micro-batch is a rectangle: its bytes, from its first row to its last. All
 * rectangles of all frames are packed into one pool like buffers, with rows of
 * the table as time. Micro-batch m has its frame at slot[of[m]] of the pool. */
#include "plan.h"

/* ---- rows ---------------------------------------------------------------- */

CallTimes *rows_of(Arena *a, const Program *prog, Table *packed)
{
    CallTimes *t = alloc(a, sizeof *t);

    *t = (CallTimes){
        .arena = a, .prog = prog, .packed = packed, .spans = table_new(a)
    };
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

static int row_of(const CallTimes *times, const Used *used, int micro)
{
    return times->at[(used->phase - times->call) * times->micros + micro];
}

/* First and last row of a micro-batch's calls of a value. */
typedef struct CallSpan {
    int first, last;
} CallSpan; /* indices in used */

static CallSpan ends_of(const CallTimes *times, const Live *live, int micro)
{
    CallSpan e = { 0, 0 };

    for (int i = 1; i < (int)vec_len(live->used); i++) {
        int row = row_of(times, &live->used[i], micro);
        if (row < row_of(times, &live->used[e.first], micro))
            e.first = i;
        if (row > row_of(times, &live->used[e.last], micro))
            e.last = i;
    }
    return e;
}

/* Spans of values that the same calls name. */
typedef struct CallSpans {
    CallSpan end;              /* first and last call of micro-batch 0 */
    int same_first, same_last; /* equal for all micro-batches? */
    CallSpan *row;             /* [micro-batch]: first and last row */
} CallSpans;

static void fill_spans(const CallTimes *times, const Live *live, CallSpans *to)
{
    size_t bytes = sizeof *to->row * (size_t)times->micros;

    to->end = ends_of(times, live, 0);
    to->same_first = to->same_last = 1;
    to->row = alloc(times->arena, bytes);
    for (int m = 0; m < times->micros; m++) {
        CallSpan e = ends_of(times, live, m);
        to->same_first &= e.first == to->end.first;
        to->same_last &= e.last == to->end.last;
        to->row[m] = (CallSpan){ row_of(times, &live->used[e.first], m),
                                 row_of(times, &live->used[e.last], m) };
    }
}

/* Returns the spans for a value's list of calls; equal lists share a CallSpans,
 * computed at its first use. */
static const CallSpans *spans_of(const CallTimes *times, const Live *live)
{
    CallSpans *spans = NULL;

    for (size_t i = 0; i < vec_len(live->used); i++) {
        void **at = table_at_pair(times->spans, KEYP(spans),
                                  (uint64_t)live->used[i].phase);
        if (!*at)
            *at = alloc(times->arena, sizeof *spans);
        spans = *at;
    }
    if (!spans->row)
        fill_spans(times, live, spans);
    return spans;
}

/* ---- lives --------------------------------------------------------------- */

static void settle_rows(const CallTimes *times, Live *live)
{
    const CallSpans *spans = spans_of(times, live);

    if (!spans->same_first)
        die("alloc: %s is made in two calls", live->node->name);
    live->first = live->used[spans->end.first].first;
    live->last = spans->same_last ? live->used[spans->end.last].last : -1;
}

void rows_settle(const CallTimes *times, Live *live)
{
    if (!live->used)
        return;
    if (live->node && (live->node->op == Oaccum || live->node->op == Osum_sq))
        live->outside = 1;
    if (!live->outside) {
        settle_rows(times, live);
        return;
    }
    live->born = live->born < times->from ? live->born : times->from;
    if (live->dies <= times->to) {
        live->dies = times->to;
        live->last = -1;
    }
}

void rows_join(const CallTimes *times, Live *y, const Live *x)
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
        vec_push(times->arena, all, u);
    }
    y->used = all;
    y->born = x->born < y->born ? x->born : y->born;
    y->dies = x->dies > y->dies ? x->dies : y->dies;
}

/* ---- private values ------------------------------------------------------ */

static int is_private(const Live *live)
{
    return live->same < 0 && !live->outside && vec_len(live->used) == 1;
}

static int is_framed(const Live *live)
{
    return live->same < 0 && !live->outside && vec_len(live->used) > 1;
}

/* Packs the private values of each call; most[call]: their lower bound. */
static int64_t place_private(const CallTimes *times, Layout *layout, int host,
                             int64_t *most)
{
    Rect *r = alloc(times->arena, sizeof *r * (size_t)(layout->n + 1));
    int *id = alloc(times->arena, sizeof *id * (size_t)(layout->n + 1));
    int **of = alloc(times->arena, sizeof *of * (size_t)times->ncall);
    int64_t height = 0;

    for (int i = 0; i < layout->n; i++)
        if (is_private(&layout->live[i]) && layout->live[i].host == host)
            vec_push(times->arena,
                     of[layout->live[i].used->phase - times->call], i);
    for (int c = 0; c < times->ncall; c++) {
        int n = (int)vec_len(of[c]);
        for (int i = 0; i < n; i++) {
            const Live *live = &layout->live[id[i] = of[c][i]];
            r[i] = (Rect){ live->born, live->dies, live->bytes, -1, 0 };
        }
        Packed p = pack_known(times->packed, r, n, 0, PACKWORK / times->ncall);
        for (int i = 0; i < n; i++)
            layout->live[id[i]].offset = r[i].offset;
        height = p.height > height ? p.height : height;
        most[c] = p.bound;
    }
    return height;
}

/* ---- frames -------------------------------------------------------------- */

typedef struct SlotLifetime { /* a frame under construction */
    const CallSpan *row;      /* [micro-batch]: first and last row */
    int64_t bytes;
} SlotLifetime;

static const char *frame_name(const CallTimes *times, const CallSpan *row)
{
    const Program *prog = times->prog;

    return strf(times->arena, "%s-%s",
                prog->phase[prog->slot[row->first].phase].name,
                prog->phase[prog->slot[row->last].phase].name);
}

/* Assigns every framed value to the frame with its lifetime. */
static SlotLifetime *fill_frames(const CallTimes *times, Layout *layout,
                                 int host)
{
    size_t bytes = sizeof(CallSpan) * (size_t)times->micros;
    size_t first = vec_len(layout->frame);
    SlotLifetime *v = NULL;

    for (int i = 0; i < layout->n; i++) {
        Live *live = &layout->live[i];
        size_t k = 0;
        if (!is_framed(live) || live->host != host)
            continue;
        const CallSpan *row = spans_of(times, live)->row;
        while (k < vec_len(v) && v[k].row != row &&
               memcmp(v[k].row, row, bytes))
            k++;
        if (k == vec_len(v)) {
            SlotGroup f = { .name = frame_name(times, row) };
            vec_push(times->arena, v, ((SlotLifetime){ row, 0 }));
            vec_push(times->arena, layout->frame, f);
        }
        live->frame = (int)(first + k) + 1;
        live->offset = v[k].bytes;
        v[k].bytes += (live->bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
    }
    return v;
}

/* Converts the offsets of a frame's micro-batches to slots. */
static void name_slots(const CallTimes *times, SlotGroup *group,
                       const Rect *rect)
{
    int64_t *at = alloc(times->arena, sizeof *at * (size_t)times->micros);

    for (int m = 0; m < times->micros; m++)
        at[m] = rect[m].offset;
    qsort(at, (size_t)times->micros, sizeof *at, by_value);
    for (int m = 0; m < times->micros; m++)
        if (!m || at[m] != at[m - 1])
            at[group->nslot++] = at[m];
    group->slot = at;
    group->nof = times->micros;
    group->of = alloc(times->arena, sizeof *group->of * (size_t)times->micros);
    for (int m = 0; m < times->micros; m++) {
        const int64_t *s = bsearch(&rect[m].offset, at, (size_t)group->nslot,
                                   sizeof *at, by_value);
        group->of[m] = (int)(s - at);
    }
}

/* Places each frame separately: a micro-batch takes the first free slot. */
static int64_t place_apart(const CallTimes *times, Rect *rect, size_t n)
{
    int *until = alloc(times->arena, sizeof *until * (size_t)times->micros);
    int64_t height = 0;

    for (size_t k = 0; k < n; k++) {
        Rect *x = &rect[k * (size_t)times->micros];
        int slots = 0;
        for (int m = 0; m < times->micros; m++) {
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

enum { POOLWORK = 2000000 }; /* limit of pack()'s work for a pool */

static int64_t place_pool(const CallTimes *times, SlotGroup *frame,
                          const SlotLifetime *lifetime, Rect *rect)
{
    size_t n = vec_len(lifetime), all = n * (size_t)times->micros;
    Rect *apart = alloc(times->arena, sizeof *apart * (all + 1));
    const char *wrong;

    for (size_t k = 0; k < n; k++)
        for (int m = 0; m < times->micros; m++)
            rect[k * (size_t)times->micros + (size_t)m] =
                (Rect){ lifetime[k].row[m].first, lifetime[k].row[m].last,
                        lifetime[k].bytes, -1, 0 };
    memcpy(apart, rect, sizeof *rect * all);
    int64_t height = place_apart(times, apart, n);
    Packed p = pack_known(times->packed, rect, (int)all, 0, POOLWORK);
    if (height <= p.height)
        memcpy(rect, apart, sizeof *rect * all);
    else
        height = p.height;
    if ((wrong = pack_wrong(times->arena, rect, (int)all, height)))
        die("alloc: frames: %s", wrong);
    for (size_t k = 0; k < n; k++) {
        frame[k].bytes = lifetime[k].bytes;
        name_slots(times, &frame[k], rect + k * (size_t)times->micros);
    }
    return height;
}

/* Returns the largest sum over rows of live frames' bytes and the call's
 * private bytes. */
static int64_t most_alive(const CallTimes *times, const Rect *rect, size_t n,
                          const int64_t *priv)
{
    int64_t *d =
        alloc(times->arena, sizeof *d * (size_t)(times->prog->nslot + 1));
    int64_t load = 0, most = 0;

    for (size_t i = 0; i < n; i++) {
        d[rect[i].born] += rect[i].bytes;
        d[rect[i].dies + 1] -= rect[i].bytes;
    }
    for (int i = 0; i < times->prog->nslot; i++) {
        load += d[i];
        int64_t here = load + priv[times->prog->slot[i].phase - times->call];
        most = here > most ? here : most;
    }
    return most;
}

TableMemory rows_place(const CallTimes *times, Layout *layout, int host)
{
    int64_t *priv = alloc(times->arena, sizeof *priv * (size_t)times->ncall);
    TableMemory out = { .host = host, .first = vec_len(layout->frame) };

    out.priv = place_private(times, layout, host, priv);
    SlotLifetime *v = fill_frames(times, layout, host);
    size_t all = vec_len(v) * (size_t)times->micros;
    Rect *r = alloc(times->arena, sizeof *r * (all + 1));
    out.pool = place_pool(times, layout->frame + out.first, v, r);
    out.bound = most_alive(times, r, all, priv);
    return out;
}

void rows_move(Layout *layout, const TableMemory *memory, int64_t priv,
               int64_t pool)
{
    for (int i = 0; i < layout->n; i++)
        if (is_private(&layout->live[i]) &&
            layout->live[i].host == memory->host)
            layout->live[i].offset += priv;
    for (size_t k = memory->first; k < vec_len(layout->frame); k++)
        for (int s = 0; s < layout->frame[k].nslot; s++)
            layout->frame[k].slot[s] += pool;
}
