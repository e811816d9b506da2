/* pack_search.c: does a set of rectangles fit under a given height? A search
 * over canonical packings, after MiniMalloc (Moffitt, ASPLOS 2023).
 *
 * Slide every rectangle of a packing down until it rests on another or on the
 * ground, then list them by offset: each lies exactly as low as those listed
 * before it allow. So it is enough to try lists, lowest first. A branch is cut
 *
 *   when some section cannot hold what is still to come: every rectangle alive
 *   there lies at least as high as the lowest of them can, and as the one
 *   tried,
 *   when another rectangle fits wholly below the one tried (it belongs first),
 *   when the one tried has nothing above it (then it cannot be to blame),
 *   and into independent parts when nothing spans the time between them.
 *
 * Costs are counted in rectangles and sections looked at. */
#include "pack.h"

#include <string.h>

/* A lifted rectangle's old low, or ~item: a rectangle placed. */
typedef struct UndoEntry {
    int item;
    int64_t low;
} UndoEntry;

typedef struct PackSearch {
    Arena *arena;
    Rect *rect;
    int count; /* born, dies: sections */
    int nsec;
    int64_t cap, work;
    int64_t *low; /* lowest offset each may still take */
    char *done;
    int *todo;      /* parts of the work are runs of this */
    int *list, *at; /* rectangles of section s: list[at[s]..) */
    int *first;     /* by birth: where each section's start */
    int *order;
    int *witness;   /* one that proves section s can still fit */
    int64_t *rest;  /* bytes still to come in each section */
    int *cross;     /* still to come, alive in s and s + 1 */
    UndoEntry *old; /* vec: to be undone */
} PackSearch;

/* What has been tried last at this depth, or placed last before. */
typedef struct Mark {
    int64_t low;
    int i;
} Mark;

static int after(Mark a, Mark b)
{
    return a.low != b.low ? a.low > b.low : a.i > b.i;
}

/* ---- the sections -------------------------------------------------------- */

static void list_sections(PackSearch *s)
{
    size_t total = 0, *end;

    s->at = alloc(s->arena, sizeof(int) * (size_t)(s->nsec + 1));
    s->first = alloc(s->arena, sizeof(int) * (size_t)(s->nsec + 2));
    s->order = alloc(s->arena, sizeof(int) * (size_t)s->count);
    end = alloc(s->arena, sizeof *end * (size_t)(s->nsec + 2));
    for (int i = 0; i < s->count; i++) {
        s->first[s->rect[i].born + 1]++;
        for (int k = s->rect[i].born; k <= s->rect[i].dies; k++)
            end[k + 1]++;
    }
    for (int k = 0; k <= s->nsec; k++) {
        s->first[k + 1] += s->first[k];
        end[k + 1] += end[k];
        s->at[k] = (int)end[k];
    }
    total = end[s->nsec];
    s->list = alloc(s->arena, sizeof(int) * (total + 1));
    int *next = alloc(s->arena, sizeof(int) * (size_t)(s->nsec + 1));
    memcpy(next, s->first, sizeof(int) * (size_t)s->nsec);
    for (int i = 0; i < s->count; i++) {
        s->order[next[s->rect[i].born]++] = i;
        for (int k = s->rect[i].born; k <= s->rect[i].dies; k++)
            s->list[end[k]++] = i;
    }
}

/* Can what is to come in section k still fit above where it must start? */
static int section_fits(PackSearch *s, int k, int64_t level)
{
    int64_t most = s->cap - s->rest[k];
    int w = s->witness[k];

    if (!s->rest[k])
        return 1;
    if (level > most)
        return 0;
    if (!s->done[w] && s->low[w] <= most)
        return 1;
    for (int j = s->at[k]; j < s->at[k + 1]; j++) {
        w = s->list[j];
        if (s->done[w] || s->low[w] > most)
            continue;
        s->work -= j - s->at[k];
        s->witness[k] = w;
        return 1;
    }
    s->work -= s->at[k + 1] - s->at[k];
    return 0;
}

/* ---- one placement ------------------------------------------------------- */

typedef struct Reach {
    int lo, hi, above;
} Reach;

static int lift(PackSearch *s, int j, int64_t top, Reach *h)
{
    if (s->done[j])
        return 1;
    h->above = 1;
    if (s->low[j] >= top)
        return 1;
    vec_push(s->arena, s->old, ((UndoEntry){ j, s->low[j] }));
    s->low[j] = top;
    if (s->rect[j].born < h->lo)
        h->lo = s->rect[j].born;
    if (s->rect[j].dies > h->hi)
        h->hi = s->rect[j].dies;
    return top + s->rect[j].bytes <= s->cap;
}

static void count(PackSearch *s, int i, int sign)
{
    const Rect *x = &s->rect[i];

    s->done[i] = sign < 0;
    for (int k = x->born; k <= x->dies; k++)
        s->rest[k] += sign * x->bytes;
    for (int k = x->born; k < x->dies; k++)
        s->cross[k] += sign;
}

/* Put i at its low; zero when that cannot lead anywhere, to be undone then.
 * h->above: something still to come lies above i. */
static int place(PackSearch *s, int i, Reach *h)
{
    const Rect *x = &s->rect[i];
    int64_t top = s->low[i] + x->bytes;
    int ok = 1;

    *h = (Reach){ x->born, x->dies, 0 };
    count(s, i, -1);
    vec_push(s->arena, s->old, ((UndoEntry){ ~i, 0 }));
    for (int k = s->at[x->born]; k < s->at[x->born + 1] && ok; k++)
        ok = lift(s, s->list[k], top, h);
    int end = s->first[x->dies + 1];
    for (int k = s->first[x->born + 1]; k < end && ok; k++)
        ok = lift(s, s->order[k], top, h);
    s->work -= end - s->first[x->born] + s->at[x->born + 1] - s->at[x->born];
    return ok;
}

static void undo(PackSearch *s, size_t mark)
{
    while (vec_len(s->old) > mark) {
        UndoEntry o = s->old[--((VecHead *)(void *)s->old)[-1].len];
        if (o.item < 0)
            count(s, ~o.item, 1);
        else
            s->low[o.item] = o.low;
    }
}

static int sections_fit(PackSearch *s, Reach h, int64_t level)
{
    s->work -= (h.hi - h.lo) / 4;
    for (int k = h.lo; k <= h.hi; k++)
        if (!section_fits(s, k, level))
            return 0;
    return 1;
}

/* ---- the search ---------------------------------------------------------- */

/* How high the next of todo[a..b) may lie: all that is still to come in a
 * section lies above it. */
static int64_t ceiling_of(PackSearch *s, int a, int b)
{
    int from = s->nsec, to = -1;
    int64_t most = 0;

    for (int k = a; k < b; k++) {
        const Rect *x = &s->rect[s->todo[k]];
        from = x->born < from ? x->born : from;
        to = x->dies > to ? x->dies : to;
    }
    for (int k = from; k <= to; k++)
        most = s->rest[k] > most ? s->rest[k] : most;
    s->work -= (b - a) / 2 + (to - from) / 8;
    return s->cap - most;
}

/* Next rectangle to try in todo[a..b): the lowest after `tried`, if that is not
 * above `ceiling` and no other fits wholly below it. -1: none left. */
static int choose(PackSearch *s, int a, int b, Mark tried, int64_t ceiling)
{
    Mark best = { INT64_MAX, -1 };
    int64_t least = INT64_MAX;
    int where = -1;

    s->work -= (b - a) / 2;
    for (int k = a; k < b; k++) {
        int i = s->todo[k];
        Mark m = { s->low[i], i };
        int64_t top = m.low + s->rect[i].bytes;
        if (top < least)
            least = top;
        if (after(m, tried) && after(best, m))
            best = m, where = k;
    }
    return best.low < least && best.low <= ceiling ? where : -1;
}

static int solve(PackSearch *s, int a, int b, Mark last);

/* Sort todo[a..b) into runs that share no section and solve each. */
static int solve_parts(PackSearch *s, int a, int b, Reach cut, Mark last)
{
    for (int k = cut.lo; k < cut.hi; k++) {
        if (s->cross[k])
            continue;
        int m = a;
        for (int j = a; j < b; j++) {
            int i = s->todo[j];
            if (s->rect[i].dies > k)
                continue;
            s->todo[j] = s->todo[m];
            s->todo[m++] = i;
        }
        s->work -= b - a;
        if (m == a || m == b)
            continue;
        cut.lo = k + 1;
        return solve(s, a, m, last) && solve_parts(s, m, b, cut, last);
    }
    return a == b || solve(s, a, b, last);
}

static int solve(PackSearch *s, int a, int b, Mark last)
{
    int64_t ceiling = ceiling_of(s, a, b);
    Mark tried = last;

    for (;;) {
        int k = choose(s, a, b, tried, ceiling);
        if (k < 0 || s->work < 0)
            return 0;
        int i = s->todo[k];
        size_t mark = vec_len(s->old);
        Reach h;
        tried = (Mark){ s->low[i], i };
        s->todo[k] = s->todo[a];
        s->todo[a] = i;
        int ok = place(s, i, &h);
        Mark next = h.above ? tried : last;
        if (ok && sections_fit(s, h, next.low)) {
            Reach cut = { s->rect[i].born - 1, s->rect[i].dies + 1, 0 };
            if (cut.lo < 0)
                cut.lo = 0;
            if (cut.hi > s->nsec - 1)
                cut.hi = s->nsec - 1;
            s->rect[i].offset = tried.low;
            if (solve_parts(s, a + 1, b, cut, next))
                return 1;
        }
        undo(s, mark);
        if (ok && !h.above)
            return 0;
    }
}

int pack_under(Arena *a, Rect *r, int n, int64_t cap, int64_t *work)
{
    PackSearch s = {
        .arena = a, .rect = r, .count = n, .cap = cap, .work = *work
    };

    for (int i = 0; i < n; i++)
        if (r[i].dies >= s.nsec)
            s.nsec = r[i].dies + 1;
    s.low = alloc(a, sizeof *s.low * (size_t)n);
    s.done = alloc(a, (size_t)n);
    s.todo = alloc(a, sizeof *s.todo * (size_t)n);
    s.witness = alloc(a, sizeof *s.witness * (size_t)s.nsec);
    s.rest = alloc(a, sizeof *s.rest * (size_t)s.nsec);
    s.cross = alloc(a, sizeof *s.cross * (size_t)s.nsec);
    list_sections(&s);
    for (int i = 0; i < n; i++) {
        s.todo[i] = i;
        count(&s, i, 1);
    }
    Reach all = { 0, s.nsec - 1, 0 };
    int ok = sections_fit(&s, all, 0) &&
             solve_parts(&s, 0, n, all, (Mark){ -1, -1 });
    *work = s.work;
    return ok;
}
