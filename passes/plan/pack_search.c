/* pack_search.c: searches for a packing below a given height, over canonical
 * packings, after MiniMalloc (Moffitt, ASPLOS 2023).
 *
 * If every rectangle of a packing is moved down until it rests on another or on
 * the ground, and they are listed by offset, each is exactly as low as those
 * listed before it allow. So it is enough to try lists, lowest first. A branch
 * is pruned
 *
 * if a section cannot hold its remaining rectangles: each of them is at least
 * as high as the lowest can be, and as the one tried, if another rectangle fits
 * wholly below the one tried (it comes first), if the one tried has nothing
 * above it (it is not the cause of a failure), and divided into independent
 * parts if nothing spans the time between them.
 *
 * Work is counted in rectangles and sections visited. */
#include "pack.h"

/* Old `low` of a raised rectangle, or ~item: a placed rectangle. */
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
    int64_t *low; /* lowest offset that each can still take */
    char *done;
    int *todo;      /* independent parts are runs of this */
    int *list, *at; /* rectangles of section s: list[at[s]..) */
    int *first;     /* [section]: first rectangle by birth */
    int *order;
    int *witness;   /* [section]: one that proves that it can still fit */
    int64_t *rest;  /* [section]: remaining bytes */
    int *cross;     /* [s]: remaining rectangles live in s and s + 1 */
    UndoEntry *old; /* vec: undo log */
} PackSearch;

/* The rectangle tried last at this depth, or placed last before. */
typedef struct Mark {
    int64_t low;
    int i;
} Mark;

static int after(Mark a, Mark b)
{
    return a.low != b.low ? a.low > b.low : a.i > b.i;
}

/* ---- sections ------------------------------------------------------------ */

static void list_sections(PackSearch *search)
{
    size_t total = 0, *end;

    search->at = alloc(search->arena, sizeof(int) * (size_t)(search->nsec + 1));
    search->first =
        alloc(search->arena, sizeof(int) * (size_t)(search->nsec + 2));
    search->order = alloc(search->arena, sizeof(int) * (size_t)search->count);
    end = alloc(search->arena, sizeof *end * (size_t)(search->nsec + 2));
    for (int i = 0; i < search->count; i++) {
        search->first[search->rect[i].born + 1]++;
        for (int k = search->rect[i].born; k <= search->rect[i].dies; k++)
            end[k + 1]++;
    }
    for (int k = 0; k <= search->nsec; k++) {
        search->first[k + 1] += search->first[k];
        end[k + 1] += end[k];
        search->at[k] = (int)end[k];
    }
    total = end[search->nsec];
    search->list = alloc(search->arena, sizeof(int) * (total + 1));
    int *next = alloc(search->arena, sizeof(int) * (size_t)(search->nsec + 1));
    memcpy(next, search->first, sizeof(int) * (size_t)search->nsec);
    for (int i = 0; i < search->count; i++) {
        search->order[next[search->rect[i].born]++] = i;
        for (int k = search->rect[i].born; k <= search->rect[i].dies; k++)
            search->list[end[k]++] = i;
    }
}

/* Can the remaining rectangles of section k still fit above their lowest
 * start? */
static int section_fits(PackSearch *search, int k, int64_t level)
{
    int64_t most = search->cap - search->rest[k];
    int w = search->witness[k];

    if (!search->rest[k])
        return 1;
    if (level > most)
        return 0;
    if (!search->done[w] && search->low[w] <= most)
        return 1;
    for (int j = search->at[k]; j < search->at[k + 1]; j++) {
        w = search->list[j];
        if (search->done[w] || search->low[w] > most)
            continue;
        search->work -= j - search->at[k];
        search->witness[k] = w;
        return 1;
    }
    search->work -= search->at[k + 1] - search->at[k];
    return 0;
}

/* ---- placement ----------------------------------------------------------- */

typedef struct Reach {
    int lo, hi, above;
} Reach;

static int lift(PackSearch *search, int j, int64_t top, Reach *reach)
{
    if (search->done[j])
        return 1;
    reach->above = 1;
    if (search->low[j] >= top)
        return 1;
    vec_push(search->arena, search->old, ((UndoEntry){ j, search->low[j] }));
    search->low[j] = top;
    if (search->rect[j].born < reach->lo)
        reach->lo = search->rect[j].born;
    if (search->rect[j].dies > reach->hi)
        reach->hi = search->rect[j].dies;
    return top + search->rect[j].bytes <= search->cap;
}

static void count(PackSearch *search, int i, int sign)
{
    const Rect *rect = &search->rect[i];

    search->done[i] = sign < 0;
    for (int k = rect->born; k <= rect->dies; k++)
        search->rest[k] += sign * rect->bytes;
    for (int k = rect->born; k < rect->dies; k++)
        search->cross[k] += sign;
}

/* Places i at its low. Returns 0 if that cannot succeed; the caller undoes it.
 * reach->above: a remaining rectangle is above i. */
static int place(PackSearch *search, int i, Reach *reach)
{
    const Rect *rect = &search->rect[i];
    int64_t top = search->low[i] + rect->bytes;
    int ok = 1;

    *reach = (Reach){ rect->born, rect->dies, 0 };
    count(search, i, -1);
    vec_push(search->arena, search->old, ((UndoEntry){ ~i, 0 }));
    for (int k = search->at[rect->born]; k < search->at[rect->born + 1] && ok;
         k++)
        ok = lift(search, search->list[k], top, reach);
    int end = search->first[rect->dies + 1];
    for (int k = search->first[rect->born + 1]; k < end && ok; k++)
        ok = lift(search, search->order[k], top, reach);
    search->work -= end - search->first[rect->born] +
                    search->at[rect->born + 1] - search->at[rect->born];
    return ok;
}

static void undo(PackSearch *search, size_t mark)
{
    while (vec_len(search->old) > mark) {
        UndoEntry o = search->old[--((VecHead *)(void *)search->old)[-1].len];
        if (o.item < 0)
            count(search, ~o.item, 1);
        else
            search->low[o.item] = o.low;
    }
}

static int sections_fit(PackSearch *search, Reach h, int64_t level)
{
    search->work -= (h.hi - h.lo) / 4;
    for (int k = h.lo; k <= h.hi; k++)
        if (!section_fits(search, k, level))
            return 0;
    return 1;
}

/* ---- the search ---------------------------------------------------------- */

/* Returns the highest offset of the next of todo[a..b): all remaining
 * rectangles of a section are above it. */
static int64_t ceiling_of(PackSearch *search, int a, int b)
{
    int from = search->nsec, to = -1;
    int64_t most = 0;

    for (int k = a; k < b; k++) {
        const Rect *rect = &search->rect[search->todo[k]];
        from = rect->born < from ? rect->born : from;
        to = rect->dies > to ? rect->dies : to;
    }
    for (int k = from; k <= to; k++)
        most = search->rest[k] > most ? search->rest[k] : most;
    search->work -= (b - a) / 2 + (to - from) / 8;
    return search->cap - most;
}

/* Returns the next rectangle to try in todo[a..b): the lowest after `tried`, if
 * it is not above `ceiling` and no other fits wholly below it; -1: none. */
static int choose(PackSearch *search, int a, int b, Mark tried, int64_t ceiling)
{
    Mark best = { INT64_MAX, -1 };
    int64_t least = INT64_MAX;
    int where = -1;

    search->work -= (b - a) / 2;
    for (int k = a; k < b; k++) {
        int i = search->todo[k];
        Mark m = { search->low[i], i };
        int64_t top = m.low + search->rect[i].bytes;
        if (top < least)
            least = top;
        if (after(m, tried) && after(best, m))
            best = m, where = k;
    }
    return best.low < least && best.low <= ceiling ? where : -1;
}

static int solve(PackSearch *search, int a, int b, Mark last);

/* Divides todo[a..b) into runs that share no section and solves each. */
static int solve_parts(PackSearch *search, int a, int b, Reach cut, Mark last)
{
    for (int k = cut.lo; k < cut.hi; k++) {
        if (search->cross[k])
            continue;
        int m = a;
        for (int j = a; j < b; j++) {
            int i = search->todo[j];
            if (search->rect[i].dies > k)
                continue;
            search->todo[j] = search->todo[m];
            search->todo[m++] = i;
        }
        search->work -= b - a;
        if (m == a || m == b)
            continue;
        cut.lo = k + 1;
        return solve(search, a, m, last) &&
               solve_parts(search, m, b, cut, last);
    }
    return a == b || solve(search, a, b, last);
}

static int solve(PackSearch *search, int a, int b, Mark last)
{
    int64_t ceiling = ceiling_of(search, a, b);
    Mark tried = last;

    for (;;) {
        int k = choose(search, a, b, tried, ceiling);
        if (k < 0 || search->work < 0)
            return 0;
        int i = search->todo[k];
        size_t mark = vec_len(search->old);
        Reach h;
        tried = (Mark){ search->low[i], i };
        search->todo[k] = search->todo[a];
        search->todo[a] = i;
        int ok = place(search, i, &h);
        Mark next = h.above ? tried : last;
        if (ok && sections_fit(search, h, next.low)) {
            Reach cut = { search->rect[i].born - 1, search->rect[i].dies + 1,
                          0 };
            if (cut.lo < 0)
                cut.lo = 0;
            if (cut.hi > search->nsec - 1)
                cut.hi = search->nsec - 1;
            search->rect[i].offset = tried.low;
            if (solve_parts(search, a + 1, b, cut, next))
                return 1;
        }
        undo(search, mark);
        if (ok && !h.above)
            return 0;
    }
}

int pack_under(Arena *a, Rect *rect, int n, int64_t cap, int64_t *work)
{
    PackSearch s = {
        .arena = a, .rect = rect, .count = n, .cap = cap, .work = *work
    };

    for (int i = 0; i < n; i++)
        if (rect[i].dies >= s.nsec)
            s.nsec = rect[i].dies + 1;
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
