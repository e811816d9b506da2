/* pack.c: offsets for buffers whose lifetimes are known beforehand.
 *
 * A buffer is a rectangle: so many bytes high, alive from time `born` to time
 * `dies`. The packer slides the rectangles up and down until none overlap and
 * the whole is as low as possible ("offline dynamic storage allocation"). No
 * packing is lower than the largest sum of bytes alive at one time, the bound;
 * a packing within 0.5 % of it is good enough and ends the work. In order:
 *
 *   skyline    again and again the rectangle that can lie lowest on what is
 *              already there, n log n
 *   first fit  rectangles in a fixed order (longest, largest ... first), each
 *              into the lowest gap that holds it
 *   squeeze    first fit again, with the rectangles that stick out moved to the
 *              front of the order
 *   search     exact.c, for small instances
 *
 * Nothing here looks at a clock: work is counted, so a plan is the same on
 * every machine.                                                              */
#include "passes.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

typedef struct Item {
    int id;                       /* index of its Rect                         */
    int lo, hi;                   /* first and last section it is alive in     */
    int64_t size, fixed, off;
    int64_t load;                 /* the largest of its sections               */
} Item;

typedef struct Block Block;

typedef struct Pack {
    Arena *arena;
    Item *item; int n;            /* without the empty ones                    */
    int *fixed, nfixed;
    int nsec;
    int64_t bound, height;        /* height: of the best so far                */
    int64_t *best;
    const char *how;
    int64_t work;                 /* units left                                */
    Block *spare;
} Pack;

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int good(const Pack *p)
{
    return p->height - p->bound <= p->bound / 200;
}

/* ---- sections ----------------------------------------------------------------- */

typedef struct Event { int64_t key; int item; } Event;

static int by_key(const void *x, const void *y)
{
    const Event *a = x, *b = y;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->item - b->item;
}

/* Times become sections: a new one starts where something is born after
 * something died, so every section is a largest set of what lives together.     */
static void cut_sections(Pack *p, const Rect *r)
{
    Event *e = alloc(p->arena, sizeof *e * (size_t)(2 * p->n + 1));
    int died = 0, s = 0;

    for (int i = 0; i < p->n; i++) {
        const Rect *x = &r[p->item[i].id];
        e[2 * i] = (Event){2 * (int64_t)x->born, 2 * i};
        e[2 * i + 1] = (Event){2 * (int64_t)x->dies + 1, 2 * i + 1};
    }
    qsort(e, (size_t)(2 * p->n), sizeof *e, by_key);
    for (int k = 0; k < 2 * p->n; k++) {
        Item *x = &p->item[e[k].item / 2];
        if (e[k].item % 2) {
            x->hi = s;
            died = 1;
        } else {
            s += died;
            died = 0;
            x->lo = s;
        }
    }
    p->nsec = s + 1;
}

static void find_bound(Pack *p)
{
    int64_t *d = alloc(p->arena, sizeof *d * (size_t)(p->nsec + 1)), load = 0;

    for (int i = 0; i < p->n; i++) {
        d[p->item[i].lo] += p->item[i].size;
        d[p->item[i].hi + 1] -= p->item[i].size;
        if (p->item[i].fixed >= 0)
            p->bound = max64(p->bound, p->item[i].fixed + p->item[i].size);
    }
    for (int s = 0; s < p->nsec; s++) {
        load += d[s];
        p->bound = max64(p->bound, load);
        d[s] = load;
    }
    for (int i = 0; i < p->n; i++)
        for (int s = p->item[i].lo; s <= p->item[i].hi; s++)
            p->item[i].load = max64(p->item[i].load, d[s]);
}

static void keep(Pack *p, int64_t height, const char *how)
{
    if (height >= p->height) return;
    p->height = height;
    p->how = how;
    for (int i = 0; i < p->n; i++) p->best[i] = p->item[i].off;
}

static int64_t height_of(const Pack *p)
{
    int64_t h = 0;
    for (int i = 0; i < p->n; i++)
        h = max64(h, p->item[i].off + p->item[i].size);
    return h;
}

/* ---- orders ------------------------------------------------------------------- */

/* What comes first: Size, Length, Area, the Total load around it; most first.   */
static const char *const orders[] = {"LAT", "TAL", "TLA", "AST", "SLA"};
enum { NORDER = sizeof orders / sizeof *orders };

static int64_t trait(const Item *x, char c)
{
    int64_t len = x->hi - x->lo + 1;
    switch (c) {
    case 'L': return -len;
    case 'S': return -x->size;
    case 'A': return -len * (x->size / ALIGN + 1);
    default: return -x->load;
    }
}

enum { NKEY = 3 };
typedef struct Rank { int64_t key[NKEY]; int i; } Rank;

static int by_rank(const void *x, const void *y)
{
    const Rank *a = x, *b = y;
    for (int k = 0; k < NKEY; k++)
        if (a->key[k] != b->key[k]) return a->key[k] < b->key[k] ? -1 : 1;
    return a->i - b->i;
}

/* seq[k] = the item that comes k-th.                                            */
static void sort_items(Pack *p, const char *how, int *seq)
{
    Rank *r = alloc(p->arena, sizeof *r * (size_t)p->n);

    for (int i = 0; i < p->n; i++) {
        r[i].i = i;
        for (int k = 0; k < NKEY; k++)
            r[i].key[k] = trait(&p->item[i], how[k]);
    }
    qsort(r, (size_t)p->n, sizeof *r, by_rank);
    for (int i = 0; i < p->n; i++) seq[i] = r[i].i;
}

/* ---- skyline ------------------------------------------------------------------- */

/* floor of each section: a tree of maxima over [0, half). A cover is a value
 * that holds for the whole range below a node.                                   */
typedef struct Sky { int half; int64_t *top, *cover; } Sky;

static Sky sky_new(Arena *a, int n)
{
    Sky k = {.half = 1};
    while (k.half < n) k.half *= 2;
    k.top = alloc(a, sizeof *k.top * (size_t)(2 * k.half));
    k.cover = alloc(a, sizeof *k.cover * (size_t)(2 * k.half));
    return k;
}

static int64_t sky_max(const Sky *k, int lo, int hi)
{
    int64_t m = 0;
    int l = lo + k->half, r = hi + k->half + 1;

    for (; l < r; l /= 2, r /= 2) {
        if (l & 1) m = max64(m, k->top[l++]);
        if (r & 1) m = max64(m, k->top[--r]);
    }
    for (l = (lo + k->half) / 2; l; l /= 2) m = max64(m, k->cover[l]);
    for (r = (hi + k->half) / 2; r; r /= 2) m = max64(m, k->cover[r]);
    return m;
}

static void sky_lift(const Sky *k, int x)
{
    for (x /= 2; x; x /= 2)
        k->top[x] = max64(k->cover[x],
                          max64(k->top[2 * x], k->top[2 * x + 1]));
}

/* v is at least the maximum of the range.                                        */
static void sky_raise(const Sky *k, int lo, int hi, int64_t v)
{
    int l = lo + k->half, r = hi + k->half + 1;

    for (; l < r; l /= 2, r /= 2) {
        if (l & 1) k->top[l] = k->cover[l] = v, l++;
        if (r & 1) --r, k->top[r] = k->cover[r] = v;
    }
    sky_lift(k, lo + k->half);
    sky_lift(k, hi + k->half);
}

typedef struct Heap { int n; Rank *at; } Heap;

static int before(const Rank *a, const Rank *b)
{
    if (a->key[0] != b->key[0]) return a->key[0] < b->key[0];
    return a->key[1] < b->key[1];
}

static void sink(Heap *h, int i)
{
    Rank x = h->at[i];
    for (int c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(&h->at[c + 1], &h->at[c])) c++;
        if (!before(&h->at[c], &x)) break;
        h->at[i] = h->at[c];
    }
    h->at[i] = x;
}

/* Lowest place at or above o that no fixed rectangle takes.                     */
static int64_t clear_fixed(const Pack *p, const Item *x, int64_t o)
{
    for (int k = 0; k < p->nfixed; k++) {
        const Item *f = &p->item[p->fixed[k]];
        int meet = f->lo <= x->hi && x->lo <= f->hi;
        if (meet && f->off < o + x->size && o < f->off + f->size)
            o = f->off + f->size, k = -1;
    }
    return o;
}

/* The heap holds offsets that were right once. They only grow, so the top is
 * right when a look at the sky confirms it.                                      */
static void skyline(Pack *p, const int *seq)
{
    Heap h = {0, alloc(p->arena, sizeof(Rank) * (size_t)p->n)};
    Sky k = sky_new(p->arena, p->nsec);

    for (int i = 0; i < p->n; i++)
        if (p->item[seq[i]].fixed < 0)
            h.at[h.n++] = (Rank){{0, i, 0}, seq[i]};
    while (h.n) {
        Item *x = &p->item[h.at[0].i];
        int64_t o = clear_fixed(p, x, sky_max(&k, x->lo, x->hi));
        p->work -= 16;
        if (o == h.at[0].key[0]) {
            x->off = o;
            sky_raise(&k, x->lo, x->hi, o + x->size);
            h.at[0] = h.at[--h.n];
        } else {
            h.at[0].key[0] = o;
        }
        sink(&h, 0);
    }
    keep(p, height_of(p), "skyline");
}

/* ---- first fit ------------------------------------------------------------------ */

/* What is placed, by offset, in blocks that know which sections they touch.      */
enum { BLOCK = 64 };
typedef struct Placed { int64_t off, top; int lo, hi; } Placed;
struct Block {
    Block *next;
    int n, lo, hi;
    Placed at[BLOCK];
};

static Block *new_block(Pack *p)
{
    Block *b = p->spare;
    if (b) p->spare = b->next;
    else b = alloc(p->arena, sizeof *b);
    b->next = NULL;
    b->n = 0;
    b->lo = p->nsec;
    b->hi = -1;
    return b;
}

static void split(Pack *p, Block *b)
{
    Block *c = new_block(p);
    c->next = b->next;
    b->next = c;
    c->n = b->n = BLOCK / 2;
    memcpy(c->at, b->at + BLOCK / 2, sizeof *c->at * (size_t)c->n);
    c->lo = b->lo;
    c->hi = b->hi;
}

static void insert(Pack *p, Block *b, Placed x)
{
    while (b->next && b->next->n && b->next->at[0].off < x.off) b = b->next;
    if (b->n == BLOCK) {
        split(p, b);
        if (b->next->at[0].off < x.off) b = b->next;
    }
    int k = b->n++;
    for (; k > 0 && b->at[k - 1].off > x.off; k--) b->at[k] = b->at[k - 1];
    b->at[k] = x;
    if (x.lo < b->lo) b->lo = x.lo;
    if (x.hi > b->hi) b->hi = x.hi;
}

static int64_t lowest_gap(Pack *p, const Block *b, const Item *x)
{
    int64_t o = 0;

    for (; b; b = b->next) {
        p->work--;
        if (b->lo > x->hi || b->hi < x->lo) continue;
        for (int k = 0; k < b->n; k++) {
            const Placed *y = &b->at[k];
            if (y->lo > x->hi || y->hi < x->lo) continue;
            if (y->off >= o + x->size) return o;
            o = max64(o, y->top);
        }
        p->work -= b->n / 4;
    }
    return o;
}

static Block *new_list(Pack *p)
{
    Block *b = new_block(p);
    for (int k = 0; k < p->nfixed; k++) {
        const Item *f = &p->item[p->fixed[k]];
        insert(p, b, (Placed){f->off, f->off + f->size, f->lo, f->hi});
    }
    return b;
}

static int64_t firstfit(Pack *p, const int *seq, const char *how)
{
    Block *list = new_list(p);
    int64_t h = 0;

    for (int i = 0; i < p->n; i++) {
        Item *x = &p->item[seq[i]];
        if (x->fixed >= 0) continue;
        x->off = lowest_gap(p, list, x);
        insert(p, list, (Placed){x->off, x->off + x->size, x->lo, x->hi});
        h = max64(h, x->off + x->size);
    }
    for (Block *b = list, *next; b; b = next) {
        next = b->next;
        b->next = p->spare;
        p->spare = b;
    }
    keep(p, h, how);
    return h;
}

/* ---- squeeze --------------------------------------------------------------------- */

/* What reaches above the aim goes first next time, and drags the others along:
 * each such item moves to half its place in the order.                            */
static void promote(Pack *p, int *seq, int64_t aim)
{
    Rank *r = alloc(p->arena, sizeof *r * (size_t)p->n);

    for (int k = 0; k < p->n; k++) {
        const Item *x = &p->item[seq[k]];
        int out = x->off + x->size > aim;
        r[k] = (Rank){{out ? k - 1 : 2 * (int64_t)k, !out, 0}, seq[k]};
    }
    qsort(r, (size_t)p->n, sizeof *r, by_rank);
    for (int k = 0; k < p->n; k++) seq[k] = r[k].i;
}

static void squeeze(Pack *p, int *seq, int64_t work)
{
    int64_t stop = p->work - work;

    while (!good(p) && p->work > stop) {
        promote(p, seq, p->bound + p->bound / 200);
        firstfit(p, seq, "squeeze");
        p->work -= p->n;
    }
}

/* ---- entry ------------------------------------------------------------------------ */

static void setup(Pack *p, Rect *r, int n)
{
    p->item = alloc(p->arena, sizeof *p->item * (size_t)(n + 1));
    p->best = alloc(p->arena, sizeof *p->best * (size_t)(n + 1));
    p->fixed = alloc(p->arena, sizeof *p->fixed * (size_t)(n + 1));
    p->height = INT64_MAX;
    for (int i = 0; i < n; i++) {
        r[i].offset = r[i].fixed >= 0 ? r[i].fixed : 0;
        if (r[i].bytes <= 0) continue;
        if (r[i].fixed >= 0) p->fixed[p->nfixed++] = p->n;
        p->item[p->n++] = (Item){
            .id = i, .fixed = r[i].fixed, .off = r[i].offset,
            .size = (r[i].bytes + ALIGN - 1) / ALIGN * ALIGN,
        };
    }
    cut_sections(p, r);
    find_bound(p);
}

static void search(Pack *p, const int *seq, int64_t cap, int64_t limit)
{
    Rect *r = alloc(p->arena, sizeof *r * (size_t)p->n);
    int64_t left = limit;

    for (int i = 0; i < p->n; i++) {
        const Item *x = &p->item[seq[i]];
        r[i] = (Rect){x->lo, x->hi, x->size, -1, 0};
    }
    int ok = pack_under(p->arena, r, p->n, cap, &left);
    p->work -= limit - left;
    for (int i = 0; ok && i < p->n; i++) p->item[seq[i]].off = r[i].offset;
    if (ok) keep(p, height_of(p), "search");
}

static void try_all(Pack *p)
{
    int *seq[NORDER];

    for (int k = 0; k < NORDER && !good(p); k++) {
        seq[k] = alloc(p->arena, sizeof *seq[k] * (size_t)p->n);
        sort_items(p, orders[k], seq[k]);
        if (k == 0) skyline(p, seq[k]);
        if (!good(p)) firstfit(p, seq[k], "first fit");
    }
    for (int64_t lim = p->work / 64; p->work > 0 && !good(p); lim *= 2)
        for (int k = 0; k < NORDER && p->work > 0 && !good(p); k++)
            search(p, seq[k], p->bound + p->bound / 200, lim);
    for (int k = 0; k < NORDER && !good(p); k++)
        squeeze(p, seq[k], p->work / 4);
}

Packed pack(Arena *a, Rect *r, int n, int64_t work)
{
    Pack p = {.arena = a, .work = work};

    setup(&p, r, n);
    if (!p.n) return (Packed){.how = "empty"};
    try_all(&p);
    for (int i = 0; i < p.n; i++) r[p.item[i].id].offset = p.best[i];
    return (Packed){p.height, p.bound, work - p.work, p.how};
}
