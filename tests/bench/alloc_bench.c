/* alloc_bench: how low buffers are packed, and what others would need.
 *
 *     alloc_bench [plan ...]
 *
 * For each program's transient buffers in the order of its steps: the bytes of
 * a caching allocator (PyTorch's rules: 512-byte rounding, a pool of 2 MiB
 * segments for small requests, 20 MiB segments up to 10 MiB, larger ones
 * rounded to 2 MiB, best fit, splitting, merging), of greedy first fit by size,
 * of ours, and the bound. Then published instances and training-shaped ones
 * with the time. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../passes/passes.h"

enum { MANY = 100000 };
static Rect rect[MANY];
static const double MIB = 1 << 20;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- greedy by size ------------------------------------------------------ */

static int larger(const void *x, const void *y)
{
    const Rect *a = *(Rect *const *)x, *b = *(Rect *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->born != b->born ? a->born - b->born : (a > b) - (a < b);
}

static int64_t lowest_gap(Rect *const *by_offset, int n, const Rect *x)
{
    int64_t o = 0;
    for (int i = 0; i < n; i++) {
        const Rect *y = by_offset[i];
        if (y->dies < x->born || x->dies < y->born)
            continue;
        if (y->offset >= o + x->bytes)
            return o;
        if (y->offset + y->bytes > o)
            o = y->offset + y->bytes;
    }
    return o;
}

static int64_t greedy(Arena *a, Rect *r, int n)
{
    Rect **v = alloc(a, sizeof *v * (size_t)(n + 1));
    Rect **placed = alloc(a, sizeof *v * (size_t)(n + 1));
    int64_t h = 0;

    for (int i = 0; i < n; i++)
        v[i] = &r[i];
    qsort(v, (size_t)n, sizeof *v, larger);
    for (int i = 0; i < n; i++) {
        int k = i;
        v[i]->offset = lowest_gap(placed, i, v[i]);
        for (; k > 0 && placed[k - 1]->offset > v[i]->offset; k--)
            placed[k] = placed[k - 1];
        placed[k] = v[i];
        if (v[i]->offset + v[i]->bytes > h)
            h = v[i]->offset + v[i]->bytes;
    }
    return h;
}

/* ---- a caching allocator ------------------------------------------------- */

/* Blocks of all segments in order; a segment begins where first is set. */
typedef struct StepValues {
    int64_t bytes;
    int small, first, owner;
} StepValues;
typedef struct Cache {
    Arena *arena;
    StepValues *b;
    int n, cap;
    int64_t held;
} Cache;

enum { FREE = -1 };

static void open_gap(Cache *c, int at)
{
    if (c->n == c->cap) {
        StepValues *b = alloc(c->arena, sizeof *b * (size_t)(2 * c->cap + 64));
        if (c->n)
            memcpy(b, c->b, sizeof *b * (size_t)c->n);
        c->b = b;
        c->cap = 2 * c->cap + 64;
    }
    memmove(c->b + at + 1, c->b + at, sizeof *c->b * (size_t)(c->n - at));
    c->n++;
}

static int64_t segment(int64_t bytes)
{
    int64_t mib = 1 << 20;
    if (bytes <= mib)
        return 2 * mib;
    if (bytes < 10 * mib)
        return 20 * mib;
    return (bytes + 2 * mib - 1) / (2 * mib) * (2 * mib);
}

static void cache_take(Cache *c, int owner, int64_t bytes)
{
    int64_t need = (bytes + 511) / 512 * 512, mib = 1 << 20;
    int small = need <= mib, best = -1;

    for (int i = 0; i < c->n; i++)
        if (c->b[i].owner == FREE && c->b[i].small == small &&
            c->b[i].bytes >= need &&
            (best < 0 || c->b[i].bytes < c->b[best].bytes))
            best = i;
    if (best < 0) {
        best = c->n;
        open_gap(c, best);
        c->b[best] = (StepValues){ segment(need), small, 1, FREE };
        c->held += c->b[best].bytes;
    }
    int64_t rest = c->b[best].bytes - need;
    if (small ? rest >= 512 : rest > mib) {
        open_gap(c, best + 1);
        c->b[best + 1] = (StepValues){ rest, small, 0, FREE };
        c->b[best].bytes = need;
    }
    c->b[best].owner = owner;
}

static void cache_free(Cache *c, int owner)
{
    int i = 0;

    while (c->b[i].owner != owner)
        i++;
    c->b[i].owner = FREE;
    if (i + 1 < c->n && !c->b[i + 1].first && c->b[i + 1].owner == FREE) {
        c->b[i].bytes += c->b[i + 1].bytes;
        memmove(c->b + i + 1, c->b + i + 2,
                sizeof *c->b * (size_t)(--c->n - i - 1));
    }
    if (i && !c->b[i].first && c->b[i - 1].owner == FREE) {
        c->b[i - 1].bytes += c->b[i].bytes;
        memmove(c->b + i, c->b + i + 1, sizeof *c->b * (size_t)(--c->n - i));
    }
}

/* Bytes that the allocator holds after it has replayed all lives. */
static int64_t cached(Arena *a, const Rect *r, int n, int steps)
{
    Cache c = { .arena = a };
    int **born = alloc(a, sizeof *born * (size_t)(steps + 1));
    int **dies = alloc(a, sizeof *dies * (size_t)(steps + 1));

    for (int i = 0; i < n; i++) {
        vec_push(a, born[r[i].born], i);
        vec_push(a, dies[r[i].dies], i);
    }
    for (int s = 0; s < steps; s++) {
        for (size_t i = 0; i < vec_len(born[s]); i++)
            cache_take(&c, born[s][i], r[born[s][i]].bytes);
        for (size_t i = 0; i < vec_len(dies[s]); i++)
            cache_free(&c, dies[s][i]);
    }
    return c.held;
}

/* ---- plans --------------------------------------------------------------- */

static char *read_file(Arena *a, const char *name, size_t *len)
{
    char *s = file_read(a, name, len);

    if (!s)
        err(NULL, "cannot read %s", name);
    return s;
}

static int transients(const Role *r, int prog)
{
    int n = 0;

    for (int i = 0; i < r->nbuf && n < MANY; i++)
        if (r->buf[i].prog == prog && r->buf[i].bytes)
            rect[n++] = (Rect){ r->buf[i].born, r->buf[i].dies, r->buf[i].bytes,
                                -1, 0 };
    return n;
}

static void plan_rows(const char *name)
{
    Arena *a = arena_new();
    size_t len;
    char *text = read_file(a, name, &len);
    const Plan *p = plan_parse(a, text, len, name);
    const Role *r = &p->role[0];

    for (int g = 0; g < r->nprog; g++) {
        int n = transients(r, g);
        if (!n)
            continue;
        double cache = (double)cached(a, rect, n, r->prog[g].ninstr);
        double size = (double)greedy(a, rect, n);
        double ours = (double)r->prog[g].transient;
        printf("  %-12s %-8s %6d %12.1f %12.1f %12.1f %12.1f  %.4f  %5.1f %%\n",
               p->model, programnames[r->prog[g].kind], n, cache / MIB,
               size / MIB, ours / MIB, (double)r->prog[g].bound / MIB,
               ours / (double)r->prog[g].bound, 100 * (1 - ours / cache));
    }
    arena_free(a);
}

/* ---- instances ----------------------------------------------------------- */

static void row(const char *name, int n)
{
    Arena *a = arena_new();
    double size = (double)greedy(a, rect, n), t = seconds();
    Packed p = pack(a, rect, n, 0, PACKWORK);

    t = seconds() - t;
    printf("  %-21s %6d %25.4f %12.4f %12s  %-9s %6.3f s\n", name, n,
           size / (double)p.bound, (double)p.height / (double)p.bound, "1",
           p.how, t);
    arena_free(a);
}

static uint64_t seed = 1;

static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* Saved and short-lived values of one layer's pass at time t. */
static int layer(int n, int t, int saved, int routed)
{
    for (int k = 0; k < saved; k++)
        rect[n++] = (Rect){ t + 3 * k, 0,
                            (k + 1) * 10000 * (k < 2 ? 100 : routed), -1, 0 };
    for (int k = 0; k < 11; k++, n++) {
        int at = t + below(10);
        rect[n] =
            (Rect){ at, at + 1 + below(4),
                    (1 + below(9)) * 5000 * (k < 6 ? 100 : routed), -1, 0 };
    }
    return n;
}

/* Layers forward and backward; `depth` micro-batches are under way at once
 * (1F1B, the first stage), each with as many rows as its router chose. */
static int training(int layers, int micros, int depth)
{
    int n = 0, t = 0, f = 0, b = 0;
    int *saved = calloc((size_t)(layers * depth), sizeof *saved);

    while (b < micros) {
        int forward = f < micros && f - b < depth;
        for (int i = 0; i < layers; i++, t += 14) {
            int l = forward ? i : layers - 1 - i;
            int *at = &saved[l * depth + (forward ? f : b) % depth];
            if (forward)
                *at = n;
            for (int k = 0; k < 4 && !forward; k++)
                rect[*at + k].dies = t + 12 - 3 * k;
            n = layer(n, t, forward ? 4 : 0, 80 + below(80));
        }
        if (forward)
            f++;
        else
            b++;
    }
    free(saved);
    return n;
}

static void published(char c)
{
    char name[64], line[128];
    long long id, lower, upper, size;
    int n = 0;

    snprintf(name, sizeof name, "tests/data/minimalloc/%c.csv", c);
    FILE *f = fopen(name, "r");
    if (!f)
        err(NULL, "cannot read %s", name);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%lld,%lld,%lld,%lld", &id, &lower, &upper, &size) ==
            4)
            rect[n++] = (Rect){ (int)lower, (int)upper - 1, size, -1, 0 };
    fclose(f);
    snprintf(name, sizeof name, "minimalloc %c", c);
    row(name, n);
}

int main(int argc, char **argv)
{
    static const int shape[][3] = { { 32, 1, 1 },  { 61, 1, 1 }, { 385, 1, 1 },
                                    { 4, 8, 4 },   { 8, 24, 8 }, { 16, 24, 8 },
                                    { 15, 26, 12 } };
    char name[64];

    printf("  %-12s %-8s %6s %12s %12s %12s %12s  %s\n", "MiB", "", "buffers",
           "caching", "by size", "planned", "bound", "ratio   saved");
    for (int i = 1; i < argc; i++)
        plan_rows(argv[i]);
    printf("  %-21s %6s %25s %12s %12s  %-9s %s\n", "height over the bound", "",
           "by size", "planned", "bound", "found by", "in");
    for (char c = 'A'; c <= 'F'; c++)
        published(c);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const int *s = shape[i];
        snprintf(name, sizeof name, "%d layers, %d of %d", s[0], s[2], s[1]);
        row(name, training(s[0], s[1], s[2]));
    }
    return 0;
}
