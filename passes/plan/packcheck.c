/* packcheck.c: checks a packing, independently of the packer, by a sweep
 * through time: a new rectangle must not overlap a live one. The number of
 * overlaps is the number that begin below its end minus the number that end at
 * or below its beginning; two counting trees over the addresses give these, n
 * log n in all. */
#include "pack.h"

enum { ALIGN = 256 };

/* Fenwick tree: counts at positions 1..n, prefix sums in log n. */
typedef struct PrefixCounts {
    int n, *at;
} PrefixCounts;

static void count(PrefixCounts *counts, int i, int v)
{
    for (; i <= counts->n; i += i & -i)
        counts->at[i] += v;
}

static int count_to(const PrefixCounts *counts, int i)
{
    int v = 0;
    for (; i; i -= i & -i)
        v += counts->at[i];
    return v;
}

/* Returns the position of x among the n sorted addresses, from 1. */
static int position(const int64_t *v, int n, int64_t x)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo + 1;
}

typedef struct Moment {
    int64_t time;
    int i, dies;
} Moment;

/* Sorts births before deaths: lifetimes are inclusive. */
static int by_time(const void *x, const void *y)
{
    const Moment *a = x, *b = y;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->dies != b->dies)
        return a->dies - b->dies;
    return a->i - b->i;
}

static const char *place_wrong(Arena *a, const Rect *rect, int i,
                               int64_t height)
{
    if (rect[i].offset < 0 || rect[i].offset + rect[i].bytes > height)
        return strf(a, "buffer %d lies beyond %lld bytes", i,
                    (long long)height);
    if (rect[i].offset % ALIGN)
        return strf(a, "buffer %d lies at %lld, not a multiple of %d", i,
                    (long long)rect[i].offset, ALIGN);
    if (rect[i].fixed >= 0 && rect[i].offset != rect[i].fixed)
        return strf(a, "buffer %d lies at %lld and not at %lld", i,
                    (long long)rect[i].offset, (long long)rect[i].fixed);
    return NULL;
}

static const char *sweep(Arena *a, const Rect *rect, const Moment *moment,
                         int n)
{
    int64_t *v = alloc(a, sizeof *v * (size_t)(n + 1));
    for (int k = 0; k < n; k++) {
        const Rect *x = &rect[moment[k].i];
        v[k] = x->offset + (moment[k].dies ? x->bytes : 0);
    }
    qsort(v, (size_t)n, sizeof *v, by_value);
    size_t bytes = sizeof(int) * (size_t)(n + 2);
    PrefixCounts begin = { n, alloc(a, bytes) }, end = { n, alloc(a, bytes) };
    for (int k = 0; k < n; k++) {
        const Rect *x = &rect[moment[k].i];
        int lo = position(v, n, x->offset);
        int hi = position(v, n, x->offset + x->bytes);
        if (!moment[k].dies && count_to(&begin, hi - 1) > count_to(&end, lo))
            return strf(a, "buffer %d overlaps another while both are alive",
                        moment[k].i);
        count(&begin, lo, moment[k].dies ? -1 : 1);
        count(&end, hi, moment[k].dies ? -1 : 1);
    }
    return NULL;
}

const char *pack_wrong(Arena *a, const Rect *rect, int n, int64_t height)
{
    Moment *m = alloc(a, sizeof *m * (size_t)(2 * n + 1));
    const char *wrong;
    int k = 0;

    for (int i = 0; i < n; i++) {
        if (rect[i].bytes <= 0)
            continue;
        if ((wrong = place_wrong(a, rect, i, height)))
            return wrong;
        m[k++] = (Moment){ rect[i].born, i, 0 };
        m[k++] = (Moment){ rect[i].dies, i, 1 };
    }
    qsort(m, (size_t)k, sizeof *m, by_time);
    return sweep(a, rect, m, k);
}
