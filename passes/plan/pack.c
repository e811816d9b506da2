/* pack.c: assigns offsets to buffers with known lifetimes.
 *
 * A buffer is a rectangle with a height in bytes, live from time `born` to time
 * `dies`. The packer chooses offsets so that no rectangles overlap and the
 * total height is minimal ("offline dynamic storage allocation"). The lower
 * bound is the largest sum of live bytes at one time; a packing as low as the
 * goal, or within 0.5 % of the bound, ends the work. In order:
 *
 * skyline repeatedly places the rectangle that fits lowest on those already
 *              placed, in some order among equals; n log n
 * search pack_search.c, for small instances: each order for a while, then
 *              random orders, since their times differ by orders of magnitude
 * squeeze the skyline again, with the rectangles above the aim moved to the
 *              front of the order
 *
 * If some offsets are fixed: first fit around them.
 *
 * Work is counted instead of measured, so a plan is the same on every
 * machine. */
#include "pack.h"

#include <limits.h>

enum {
    ALIGN = 256,
    FEW = 2000,      /* most rectangles of a search */
    SHORT = 1 << 17, /* work units of a short search */
    IDLE = 4         /* rounds without progress before the end */
};

typedef struct PackItem {
    int id;       /* index of its Rect */
    int lo, hi;   /* first and last section of its life */
    int64_t time; /* length of its life */
    int64_t size, fixed, off;
    int64_t load; /* largest load of its sections */
} PackItem;

typedef struct Pack {
    Arena *arena;
    PackItem *item;
    int count; /* rectangles that are not empty */
    int nfixed;
    int nsec;
    int64_t goal;          /* 0: near the bound */
    int64_t bound, height; /* height: the best so far */
    uint64_t chance;       /* state of the random generator */
    int64_t *best;
    const char *how;
    int64_t work;           /* remaining work units */
    struct SkylineRun *run; /* the skyline's memory, reused */
    Keyed *low;
} Pack;

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the height that ends the work. */
static int64_t aim(const Pack *pack)
{
    return pack->goal ? pack->goal : pack->bound + pack->bound / 200;
}

static int good(const Pack *pack)
{
    return pack->height <= aim(pack);
}

/* ---- sections ------------------------------------------------------------ */

/* Divides time into sections: a new one starts at a birth after a death, so
 * every section is a maximal set of rectangles that live together. */
static void cut_sections(Pack *pack, const Rect *rect)
{
    Keyed *e = alloc(pack->arena, sizeof *e * (size_t)(2 * pack->count + 1));
    int died = 0, s = 0;

    for (int i = 0; i < pack->count; i++) {
        const Rect *x = &rect[pack->item[i].id];
        e[2 * i] = (Keyed){ 2 * (int64_t)x->born, 2 * i };
        e[2 * i + 1] = (Keyed){ 2 * (int64_t)x->dies + 1, 2 * i + 1 };
    }
    qsort(e, (size_t)(2 * pack->count), sizeof *e, by_key);
    for (int k = 0; k < 2 * pack->count; k++) {
        PackItem *x = &pack->item[e[k].id / 2];
        if (e[k].id % 2) {
            x->hi = s;
            died = 1;
        } else {
            s += died;
            died = 0;
            x->lo = s;
        }
    }
    pack->nsec = s + 1;
}

static void find_bound(Pack *pack)
{
    int64_t *d = alloc(pack->arena, sizeof *d * (size_t)(pack->nsec + 1)),
            load = 0;

    for (int i = 0; i < pack->count; i++) {
        d[pack->item[i].lo] += pack->item[i].size;
        d[pack->item[i].hi + 1] -= pack->item[i].size;
        if (pack->item[i].fixed >= 0)
            pack->bound =
                max64(pack->bound, pack->item[i].fixed + pack->item[i].size);
    }
    for (int s = 0; s < pack->nsec; s++) {
        load += d[s];
        pack->bound = max64(pack->bound, load);
        d[s] = load;
    }
    for (int i = 0; i < pack->count; i++)
        for (int s = pack->item[i].lo; s <= pack->item[i].hi; s++)
            pack->item[i].load = max64(pack->item[i].load, d[s]);
}

static void keep(Pack *pack, int64_t height, const char *how)
{
    if (height >= pack->height)
        return;
    pack->height = height;
    pack->how = how;
    for (int i = 0; i < pack->count; i++)
        pack->best[i] = pack->item[i].off;
}

static int64_t height_of(const Pack *pack)
{
    int64_t h = 0;
    for (int i = 0; i < pack->count; i++)
        h = max64(h, pack->item[i].off + pack->item[i].size);
    return h;
}

/* ---- orders -------------------------------------------------------------- */

/* Sort keys of orders: Size, Length, Area, Total load around it, largest first;
 * earliest Born. */
static const char *const orders[] = {
    "LAT", "TAL", "AST", "BS", "LS", "SLA", "TLA",
};
enum { NORDER = sizeof orders / sizeof *orders };

static int64_t trait(const PackItem *item, char c)
{
    int64_t len = item->hi - item->lo + 1;
    switch (c) {
    case 'L': return -len;
    case 'S': return -item->size;
    case 'A': return -len * (item->size / ALIGN + 1);
    case 'B': return item->lo;
    default: return -item->load;
    }
}

enum { NKEY = 3 };
typedef struct SortKey {
    int64_t key[NKEY];
    int rect;
} SortKey;

static int by_rank(const void *x, const void *y)
{
    const SortKey *a = x, *b = y;
    for (int k = 0; k < NKEY; k++)
        if (a->key[k] != b->key[k])
            return a->key[k] < b->key[k] ? -1 : 1;
    return a->rect - b->rect;
}

/* Sorts items: seq[k] is the item at place k. */
static void sort_items(Pack *pack, const char *how, int *seq)
{
    SortKey *r = alloc(pack->arena, sizeof *r * (size_t)pack->count);

    for (int i = 0; i < pack->count; i++) {
        r[i].rect = i;
        for (int k = 0; how[k]; k++)
            r[i].key[k] = trait(&pack->item[i], how[k]);
    }
    qsort(r, (size_t)pack->count, sizeof *r, by_rank);
    for (int i = 0; i < pack->count; i++)
        seq[i] = r[i].rect;
}

/* ---- rectangles within a span -------------------------------------------- */

/* The unplaced rectangles as leaves of a binary tree ordered by (lo, hi) with
 * interleaved bits, so that a subtree is a small box of lifetimes. Each node
 * has its box and the best rank in it. */
typedef struct LifeBox {
    int best, minlo, maxlo, minhi, maxhi;
} LifeBox;
typedef struct Tree {
    int half;
    LifeBox *at; /* root 1, leaves half..2 half - 1 */
    int *leaf;   /* [item] */
} Tree;

static const LifeBox nothing = { INT_MAX, INT_MAX, -1, INT_MAX, -1 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

static uint64_t spread_bits(uint64_t x)
{
    uint64_t y = 0;
    for (int b = 0; b < 32; b++)
        y |= (x >> b & 1) << 2 * b;
    return y;
}

static void join(Tree *tree, int x)
{
    const LifeBox *a = &tree->at[2 * x], *b = &tree->at[2 * x + 1];
    tree->at[x] = (LifeBox){
        least(a->best, b->best),  least(a->minlo, b->minlo),
        most(a->maxlo, b->maxlo), least(a->minhi, b->minhi),
        most(a->maxhi, b->maxhi),
    };
}

static void find_leaves(Pack *pack, Tree *tree)
{
    Keyed *e = alloc(pack->arena, sizeof *e * (size_t)pack->count);

    for (int i = 0; i < pack->count; i++) {
        uint64_t lo = (uint64_t)pack->item[i].lo,
                 hi = (uint64_t)pack->item[i].hi;
        e[i] = (Keyed){ (int64_t)(spread_bits(lo) << 1 | spread_bits(hi)), i };
    }
    qsort(e, (size_t)pack->count, sizeof *e, by_key);
    tree->leaf = alloc(pack->arena, sizeof(int) * (size_t)pack->count);
    for (int k = 0; k < pack->count; k++)
        tree->leaf[e[k].id] = k;
}

/* seq[rank] = item. */
static void fill_tree(const Pack *pack, Tree *tree, const int *seq)
{
    for (int k = 0; k < tree->half; k++)
        tree->at[tree->half + k] = nothing;
    for (int k = 0; k < pack->count; k++) {
        const PackItem *item = &pack->item[seq[k]];
        tree->at[tree->half + tree->leaf[seq[k]]] =
            (LifeBox){ k, item->lo, item->lo, item->hi, item->hi };
    }
    for (int k = tree->half - 1; k > 0; k--)
        join(tree, k);
}

static void take(Tree *tree, int item)
{
    int x = tree->half + tree->leaf[item];
    tree->at[x] = nothing;
    for (x /= 2; x; x /= 2)
        join(tree, x);
}

/* Returns the best rank below x among lifetimes within [lo, hi], if better than
 * `best`. */
static int best_within(Pack *pack, const Tree *tree, int x, int lo, int hi,
                       int best)
{
    const LifeBox *box = &tree->at[x];

    pack->work--;
    if (box->best >= best || box->maxlo < lo || box->minhi > hi)
        return best;
    if (box->minlo >= lo && box->maxhi <= hi)
        return box->best;
    int first =
        tree->at[2 * x].best < tree->at[2 * x + 1].best ? 2 * x : 2 * x + 1;
    best = best_within(pack, tree, first, lo, hi, best);
    return best_within(pack, tree, first ^ 1, lo, hi, best);
}

/* ---- skyline ------------------------------------------------------------- */

/* A run of sections [i, end] of one height, stored at index i; linked. */
typedef struct SkylineRun {
    int end, prev, next;
    int64_t top;
} SkylineRun;

typedef struct Skyline {
    SkylineRun *run;
    Heap low; /* runs by height; valid while the run has that height */
} Skyline;

static void push_run(Pack *pack, Skyline *skyline, int run)
{
    heap_add(pack->arena, &skyline->low, skyline->run[run].top, run);
}

/* Merges the next run into run i. */
static void swallow(Skyline *skyline, int i)
{
    int j = skyline->run[i].next;

    skyline->run[i].end = skyline->run[j].end;
    skyline->run[i].next = skyline->run[j].next;
    if (skyline->run[j].next >= 0)
        skyline->run[skyline->run[j].next].prev = i;
    skyline->run[j].top = -1;
}

/* Merges run i with neighbours of its new height. */
static void settle(Pack *pack, Skyline *skyline, int i)
{
    SkylineRun *run = skyline->run;

    if (run[i].next >= 0 && run[run[i].next].top == run[i].top)
        swallow(skyline, i);
    if (run[i].prev >= 0 && run[run[i].prev].top == run[i].top) {
        i = run[i].prev;
        swallow(skyline, i);
    }
    push_run(pack, skyline, i);
}

/* Splits run i before section s. Returns the second part. */
static int cut_run(Skyline *skyline, int i, int s)
{
    SkylineRun *run = skyline->run;

    run[s] = (SkylineRun){ run[i].end, i, run[i].next, run[i].top };
    if (run[i].next >= 0)
        run[run[i].next].prev = s;
    run[i].next = s;
    run[i].end = s - 1;
    return s;
}

static void put_on(Pack *pack, Skyline *skyline, int i, PackItem *item)
{
    item->off = skyline->run[i].top;
    if (skyline->run[i].end > item->hi)
        push_run(pack, skyline, cut_run(skyline, i, item->hi + 1));
    if (i < item->lo) {
        push_run(pack, skyline, i);
        i = cut_run(skyline, i, item->lo);
    }
    skyline->run[i].top += item->size;
    settle(pack, skyline, i);
}

/* Raises the lowest run, into which nothing fits, to its lower neighbour. */
static void fill_up(Pack *pack, Skyline *skyline, int i)
{
    SkylineRun *run = skyline->run;
    int64_t a = run[i].prev >= 0 ? run[run[i].prev].top : INT64_MAX;
    int64_t b = run[i].next >= 0 ? run[run[i].next].top : INT64_MAX;

    run[i].top = a < b ? a : b;
    settle(pack, skyline, i);
}

static int64_t skyline(Pack *pack, Tree *tree, const int *seq, const char *how)
{
    Skyline k = { .run = pack->run, .low = { pack->low, 0 } };
    int left = pack->count;

    fill_tree(pack, tree, seq);
    k.run[0] = (SkylineRun){ pack->nsec - 1, -1, -1, 0 };
    push_run(pack, &k, 0);
    pack->work -= 4 * pack->count;
    while (left) {
        Keyed l = heap_take(&k.low);
        if (k.run[l.id].top != l.key)
            continue;
        int best = best_within(pack, tree, 1, l.id, k.run[l.id].end, INT_MAX);
        if (best == INT_MAX) {
            fill_up(pack, &k, l.id);
            continue;
        }
        take(tree, seq[best]);
        put_on(pack, &k, l.id, &pack->item[seq[best]]);
        left--;
    }
    pack->low = k.low.at;
    int64_t h = height_of(pack);
    keep(pack, h, how);
    return h;
}

/* ---- first fit ----------------------------------------------------------- */

/* Returns the lowest offset for item among the n placed ones, sorted by
 * offset. */
static int64_t lowest_gap(Pack *pack, PackItem *const *placed, int n,
                          const PackItem *item)
{
    int64_t o = 0;

    pack->work -= n / 4;
    for (int k = 0; k < n; k++) {
        const PackItem *pack_item = placed[k];
        if (pack_item->lo > item->hi || pack_item->hi < item->lo)
            continue;
        if (pack_item->off >= o + item->size)
            return o;
        o = max64(o, pack_item->off + pack_item->size);
    }
    return o;
}

static void insert(PackItem **placed, int n, PackItem *item)
{
    for (; n > 0 && placed[n - 1]->off > item->off; n--)
        placed[n] = placed[n - 1];
    placed[n] = item;
}

/* First fit around the fixed rectangles; the others in order. */
static void firstfit(Pack *pack, const int *seq)
{
    PackItem **placed =
        alloc(pack->arena, sizeof *placed * (size_t)pack->count);
    int n = 0;

    for (int i = 0; i < pack->count; i++)
        if (pack->item[i].fixed >= 0)
            insert(placed, n++, &pack->item[i]);
    for (int i = 0; i < pack->count; i++) {
        PackItem *item = &pack->item[seq[i]];
        if (item->fixed >= 0)
            continue;
        item->off = lowest_gap(pack, placed, n, item);
        insert(placed, n++, item);
    }
    keep(pack, height_of(pack), "first fit");
}

/* ---- squeeze ------------------------------------------------------------- */

/* Moves each item that reaches above the aim to half its place in the order. */
static void promote(Pack *pack, int *seq, int64_t aim)
{
    SortKey *r = alloc(pack->arena, sizeof *r * (size_t)pack->count);

    for (int k = 0; k < pack->count; k++) {
        const PackItem *item = &pack->item[seq[k]];
        int out = item->off + item->size > aim;
        r[k] = (SortKey){ { out ? k - 1 : 2 * (int64_t)k, !out, 0 }, seq[k] };
    }
    qsort(r, (size_t)pack->count, sizeof *r, by_rank);
    for (int k = 0; k < pack->count; k++)
        seq[k] = r[k].rect;
}

static void squeeze(Pack *pack, Tree *tree, int *seq, int64_t work)
{
    int64_t stop = pack->work - work, best = INT64_MAX;

    for (int idle = 0; idle < IDLE && !good(pack) && pack->work > stop;
         idle++) {
        promote(pack, seq, aim(pack));
        int64_t h = skyline(pack, tree, seq, "squeeze");
        pack->work -= pack->count;
        if (h < best)
            idle = 0;
        best = h < best ? h : best;
    }
}

/* ---- entry --------------------------------------------------------------- */

static void setup(Pack *pack, Rect *rect, int n)
{
    pack->item = alloc(pack->arena, sizeof *pack->item * (size_t)(n + 1));
    pack->best = alloc(pack->arena, sizeof *pack->best * (size_t)(n + 1));
    pack->height = INT64_MAX;
    for (int i = 0; i < n; i++) {
        rect[i].offset = rect[i].fixed >= 0 ? rect[i].fixed : 0;
        if (rect[i].bytes <= 0)
            continue;
        pack->nfixed += rect[i].fixed >= 0;
        pack->item[pack->count++] = (PackItem){
            .id = i,
            .fixed = rect[i].fixed,
            .off = rect[i].offset,
            .size = (rect[i].bytes + ALIGN - 1) / ALIGN * ALIGN,
            .time = rect[i].dies - rect[i].born + 1,
        };
    }
    cut_sections(pack, rect);
    find_bound(pack);
}

static int search(Pack *pack, const int *seq, int64_t cap, int64_t limit)
{
    Arena *a = arena_new();
    Rect *r = alloc(a, sizeof *r * (size_t)pack->count);
    int64_t left = limit;

    for (int i = 0; i < pack->count; i++) {
        const PackItem *item = &pack->item[seq[i]];
        r[i] = (Rect){ item->lo, item->hi, item->size, -1, 0 };
    }
    int ok = pack_under(a, r, pack->count, cap, &left);
    pack->work -= limit - left;
    for (int i = 0; ok && i < pack->count; i++)
        pack->item[seq[i]].off = r[i].offset;
    if (ok)
        keep(pack, height_of(pack), "search");
    arena_free(a);
    return ok;
}

/* Searches below the aim, and halfway to it if that fails. */
static void search_in(Pack *pack, const int *seq, int64_t limit)
{
    int64_t half = (pack->bound + pack->height) / 2;

    if (!search(pack, seq, aim(pack), limit) && half > aim(pack))
        search(pack, seq, half, limit);
}

static int64_t below(Pack *pack, int64_t n)
{
    pack->chance = pack->chance * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((pack->chance >> 33) % (uint64_t)n);
}

/* Returns about 1024 log2(x), x > 0, by integers, so it is equal on every
 * machine. */
static int64_t log_of(int64_t x)
{
    int bits = 0;

    while (x >> bits > 1)
        bits++;
    return bits * 1024 +
           ((bits > 10 ? x >> (bits - 10) : x << (10 - bits)) & 1023);
}

/* Sorts by a product of powers of length, size, load and a random number. */
static void sort_by_chance(Pack *pack, int *seq)
{
    Arena *a = arena_new();
    SortKey *r = alloc(a, sizeof *r * (size_t)pack->count);
    int64_t length = below(pack, 256), load = below(pack, 1024);
    int64_t size = length * (128 + below(pack, 256)) / 256;
    int64_t noise = below(pack, 256) * below(pack, 256) / 512;
    int64_t timed = below(pack, 2);

    for (int i = 0; i < pack->count; i++) {
        const PackItem *item = &pack->item[i];
        r[i] = (SortKey){ .rect = i };
        r[i].key[0] =
            -length * log_of(timed ? item->time : item->hi - item->lo + 1) -
            size * log_of(item->size / ALIGN) -
            load * log_of(item->load / ALIGN) -
            noise * (below(pack, 2049) - 1024);
    }
    qsort(r, (size_t)pack->count, sizeof *r, by_rank);
    for (int i = 0; i < pack->count; i++)
        seq[i] = r[i].rect;
    arena_free(a);
}

static void search_all(Pack *pack, int *const *seq)
{
    int *any = alloc(pack->arena, sizeof *any * (size_t)pack->count);

    for (int64_t limit = SHORT; limit <= 32 * SHORT; limit *= 2)
        for (int k = 0; k < NORDER && pack->work > limit && !good(pack); k++)
            search_in(pack, seq[k], limit);
    /* Half of the work goes to short searches, a quarter to searches twice as
       long, and so on. */
    for (int i = 1; pack->work > SHORT && !good(pack); i++) {
        int64_t limit = SHORT;
        for (int k = i; k % 4 == 0; k /= 4)
            limit *= 2;
        sort_by_chance(pack, any);
        search_in(pack, any, limit);
    }
}

static Tree make_tree(Pack *pack)
{
    Tree t = { .half = 1 };

    while (t.half < pack->count)
        t.half *= 2;
    t.at = alloc(pack->arena, sizeof *t.at * (size_t)(2 * t.half));
    find_leaves(pack, &t);
    pack->run = alloc(pack->arena, sizeof *pack->run * (size_t)pack->nsec);
    return t;
}

static void try_all(Pack *pack)
{
    int *seq[NORDER];
    Tree t = make_tree(pack);

    for (int k = 0; k < NORDER && !good(pack); k++) {
        seq[k] = alloc(pack->arena, sizeof *seq[k] * (size_t)pack->count);
        sort_items(pack, orders[k], seq[k]);
        if (pack->nfixed)
            firstfit(pack, seq[k]);
        else
            skyline(pack, &t, seq[k], "skyline");
    }
    if (pack->nfixed || good(pack))
        return;
    if (pack->count <= FEW)
        search_all(pack, seq);
    for (int k = 0; k < NORDER && !good(pack) && pack->work > 0; k++)
        squeeze(pack, &t, seq[k], pack->work / (NORDER - k));
}

Packed pack(Arena *a, Rect *rect, int n, int64_t goal, int64_t work)
{
    Pack p = { .arena = a, .goal = goal, .work = work };

    setup(&p, rect, n);
    if (!p.count)
        return (Packed){ .how = "empty" };
    try_all(&p);
    for (int i = 0; i < p.count; i++)
        rect[p.item[i].id].offset = p.best[i];
    return (Packed){ p.height, p.bound, work - p.work, p.how };
}
