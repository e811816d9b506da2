/* spans.c: finds two of n byte ranges that overlap while both are live, by a
 * sweep through time over a segment tree of the bytes, in n log n. */
#include "plan.h"

/* Segment tree over the intervals between all bounds of spans, with the number
 * of live spans that cover each. top[i]: largest count below i; own[i]: spans
 * that cover all of i. */
typedef struct SpanCover {
    int n, *top, *own;
} SpanCover;

static void cover(SpanCover *span_cover, int i, int lo, int hi, int a, int b,
                  int v)
{
    if (b <= lo || hi <= a)
        return;
    if (a <= lo && hi <= b) {
        span_cover->own[i] += v;
        span_cover->top[i] += v;
        return;
    }
    int mid = (lo + hi) / 2;
    cover(span_cover, 2 * i, lo, mid, a, b, v);
    cover(span_cover, 2 * i + 1, mid, hi, a, b, v);
    int l = span_cover->top[2 * i], r = span_cover->top[2 * i + 1];
    span_cover->top[i] = span_cover->own[i] + (l > r ? l : r);
}

static int covered(const SpanCover *cover, int i, int lo, int hi, int a, int b)
{
    if (b <= lo || hi <= a)
        return 0;
    if (a <= lo && hi <= b)
        return cover->top[i];
    int mid = (lo + hi) / 2;
    int l = covered(cover, 2 * i, lo, mid, a, b);
    int r = covered(cover, 2 * i + 1, mid, hi, a, b);
    return cover->own[i] + (l > r ? l : r);
}

static int by_from(const void *a, const void *b)
{
    const Span *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->id > y->id) - (x->id < y->id);
}

static int by_to(const void *a, const void *b)
{
    const Span *x = *(Span *const *)a, *y = *(Span *const *)b;
    return (x->to > y->to) - (x->to < y->to);
}

static int rank_in(const int64_t *v, int n, int64_t x)
{
    const int64_t *at = bsearch(&x, v, (size_t)n, sizeof *v, by_value);
    return (int)(at - v);
}

/* Returns a span that overlaps span[at]. */
static int partner(const Span *span, int at)
{
    const Span *x = &span[at];
    for (int i = 0; i < at; i++)
        if (span[i].to >= x->from && span[i].lo < x->hi && x->lo < span[i].hi)
            return i;
    die("spans: an overlap with nobody");
}

/* Numbers the bounds of all n spans. Returns the number of intervals. */
static int number_ends(Arena *a, Span *span, int n)
{
    int64_t *end = alloc(a, (2 * (size_t)n + 1) * sizeof *end);
    int k = 0;
    for (int i = 0; i < n; i++) {
        end[2 * i] = span[i].offset;
        end[2 * i + 1] = span[i].offset + span[i].bytes;
    }
    qsort(end, 2 * (size_t)n, sizeof *end, by_value);
    for (int i = 0; i < 2 * n; i++)
        if (!i || end[i] != end[k - 1])
            end[k++] = end[i];
    for (int i = 0; i < n; i++) {
        span[i].lo = rank_in(end, k, span[i].offset);
        span[i].hi = rank_in(end, k, span[i].offset + span[i].bytes);
    }
    return k;
}

int spans_meet(Span *span, int n, int *one, int *two)
{
    Arena *a = arena_new();
    Span **ends = alloc(a, ((size_t)n + 1) * sizeof *ends);
    int done = 0, found = 0;
    SpanCover t = { .n = number_ends(a, span, n) };

    t.top = alloc(a, 4 * ((size_t)t.n + 1) * sizeof *t.top);
    t.own = alloc(a, 4 * ((size_t)t.n + 1) * sizeof *t.own);
    qsort(span, (size_t)n, sizeof *span, by_from);
    for (int i = 0; i < n; i++)
        ends[i] = &span[i];
    qsort(ends, (size_t)n, sizeof *ends, by_to);
    for (int i = 0; i < n && !found; i++) {
        for (; ends[done]->to < span[i].from; done++)
            cover(&t, 1, 0, t.n, ends[done]->lo, ends[done]->hi, -1);
        if (covered(&t, 1, 0, t.n, span[i].lo, span[i].hi)) {
            *one = span[partner(span, i)].id;
            *two = span[i].id;
            found = 1;
        }
        cover(&t, 1, 0, t.n, span[i].lo, span[i].hi, 1);
    }
    arena_free(a);
    return found;
}
