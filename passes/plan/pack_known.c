/* pack_known.c: stores packings of a compile. Middle stages of a pipeline, and
 * copies of a stage (fit.c), often have equal rectangles, and searches
 * (pack_search.c) take most of the time of alloc. */
#include "plan.h"

typedef struct KnownPacking {
    Rect *rect; /* with the resulting offsets */
    int n;
    int64_t goal, work;
    Packed packed;
} KnownPacking;

static uint64_t hash_rects(const KnownPacking *of)
{
    uint64_t h =
        mix64(mix64((uint64_t)of->n, (uint64_t)of->goal), (uint64_t)of->work);

    for (int i = 0; i < of->n; i++) {
        const Rect *r = &of->rect[i];
        h = mix64(h, (uint64_t)r->born << 32 | (uint32_t)r->dies);
        h = mix64(mix64(h, (uint64_t)r->bytes), (uint64_t)r->fixed);
    }
    return h;
}

static int is_same(const KnownPacking *a, const KnownPacking *b)
{
    int same = a->n == b->n && a->goal == b->goal && a->work == b->work;

    for (int i = 0; i < a->n && same; i++) {
        const Rect *x = &a->rect[i], *y = &b->rect[i];
        same = x->born == y->born && x->dies == y->dies &&
               x->bytes == y->bytes && x->fixed == y->fixed;
    }
    return same;
}

static KnownPacking *packed_anew(Table *known, const KnownPacking *asked)
{
    Arena *a = table_arena(known), *scratch = arena_new();
    size_t n = (size_t)asked->n;
    KnownPacking *made = alloc(a, sizeof *made);

    *made = *asked;
    made->rect = alloc(a, (n + 1) * sizeof *made->rect);
    if (n)
        memcpy(made->rect, asked->rect, n * sizeof *made->rect);
    made->packed =
        pack(scratch, made->rect, asked->n, asked->goal, asked->work);
    arena_free(scratch);
    return made;
}

Packed pack_known(Table *known, Rect *rect, int n, int64_t goal, int64_t work)
{
    KnownPacking asked = { rect, n, goal, work, { 0 } };
    uint64_t h = hash_rects(&asked);
    void **at = table_at(known, h);

    while (*at && !is_same(*at, &asked))
        at = table_at(known, ++h);
    if (!*at)
        *at = packed_anew(known, &asked);
    const KnownPacking *made = *at;
    for (int i = 0; i < n; i++)
        rect[i].offset = made->rect[i].offset;
    return made->packed;
}
