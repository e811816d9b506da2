/* tune.c: chooses the algorithm of each dense product by measuring, once. The
 * choice is stored beside the kernel cache per GPU, cuBLASLt and driver, and in
 * the run's folder, which a resumed run reads first, so that a plan gives the
 * same bits. The first rank of each pipeline stage measures shapes that no file
 * has; all ranks take its choice, and rank 0 writes the file. A line is "key
 * algorithm check", in hexadecimal. */
#include <inttypes.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gpu.h"

enum { WORDS = ALGOWORDS, WARM = 20 }; /* ms: until clocks are up */

static const char *first; /* see tune_from */

void tune_from(const char *path)
{
    first = path;
}

/* ---- text ---------------------------------------------------------------- */

static char *made_with(Arena *a, const Gpu *gpu)
{
    int driver = 0;

    dl.cuDriverGetVersion(&driver);
    return strf(a, "gpu %s %s\ncublaslt %zu driver %d work %d\n", gpu->name,
                gpu->arch, dl.cublasLtGetVersion(), driver, LTWORK);
}

static uint64_t check_of(const char *key, const uint64_t *algo)
{
    return XXH3_64bits_withSeed(algo, WORDS * sizeof *algo,
                                XXH3_64bits(key, strlen(key)));
}

static void put_choice(Text *out, const char *key, const uint64_t *algo)
{
    put(out, "%s ", key);
    for (int i = 0; i < WORDS; i++)
        put(out, "%016" PRIx64, algo[i]);
    put(out, " %016" PRIx64 "\n", check_of(key, algo));
}

/* Parses a line to *algo. Returns 0 if it is damaged. */
static int read_choice(const char *line, size_t n, TunedAlgo *algo)
{
    char word[17] = "";
    size_t len = strcspn(line, " ");

    if (n != len + 1 + 16 * WORDS + 1 + 16)
        return 0;
    algo->key = intern(strf(forever, "%.*s", (int)len, line));
    for (int i = 0; i <= WORDS; i++) {
        memcpy(word, line + len + 1 + 16 * i + (i == WORDS), 16);
        uint64_t v = strtoull(word, NULL, 16);
        if (i < WORDS)
            algo->algo[i] = v;
        else if (v != check_of(algo->key, algo->algo))
            return 0;
    }
    return 1;
}

static TunedAlgo *choice_of(TunedAlgo *algo, const char *key)
{
    for (size_t i = 0; i < vec_len(algo); i++)
        if (algo[i].key == key)
            return &algo[i];
    return NULL;
}

void tune_read(Arena *a, TunedAlgo **v, const char *s)
{
    while (*s) {
        size_t n = strcspn(s, "\n");
        TunedAlgo c;
        if (read_choice(s, n, &c) && !choice_of(*v, c.key))
            vec_push(a, *v, c);
        s += n + (s[n] != 0);
    }
}

void tune_text(const void *gpu, Text *out)
{
    const Gpu *x = gpu;
    LtShape **s = lt_shapes(x->lt);

    put(out, "%s", made_with(out->arena, x));
    for (size_t i = 0; i < vec_len(s); i++)
        put_choice(out, s[i]->key, s[i]->algo);
}

/* ---- ranks --------------------------------------------------------------- */

/* Returns the text of `rank` on all ranks. */
static const char *share(Gpu *gpu, int64_t rank, Text *out)
{
    int64_t n = (int64_t)out->len;

    comm_share_from(gpu->comm, rank, &n, sizeof n);
    char *s = alloc(gpu->mem, (size_t)n + 1);
    if (gpu->rank == rank && n)
        memcpy(s, out->s, (size_t)n);
    comm_share_from(gpu->comm, rank, s, n);
    return s;
}

/* Returns the choices in rank 0's files: those of the resumed run first, if GPU
 * and libraries are the same. */
static TunedAlgo *known(Gpu *gpu, const char *cache)
{
    Text out = { .arena = gpu->mem };
    const char *with = made_with(gpu->mem, gpu);
    TunedAlgo *v = NULL;
    size_t n;

    if (!gpu->rank && first) {
        char *all = file_read(gpu->mem, first, &n);
        const char *s = all ? strstr(all, with) : NULL;
        put(&out, "%s", s ? s + strlen(with) : "");
        if (!s)
            warn(NULL,
                 "%s was made with another GPU or library: sums may round "
                 "differently from here on",
                 first);
    }
    const char *kept = gpu->rank ? NULL : file_read(gpu->mem, cache, &n);
    put(&out, "%s", kept ? kept : "");
    tune_read(gpu->mem, &v, share(gpu, 0, &out));
    return v;
}

static int leads(const Gpu *gpu)
{
    const Plan *p = gpu->plan;
    int64_t r = 0;

    while (role_of(p, r) != role_of(p, gpu->rank))
        r++;
    return r == gpu->rank;
}

/* Measures the shapes of this rank's role that no file has. */
static void measure(Gpu *gpu, TunedAlgo *algo, Text *out)
{
    LtShape **s = lt_shapes(gpu->lt);
    void *event[2];
    double warm = 0;

    for (int i = 0; i < 2; i++)
        gpu_ok(dl.cuEventCreate(&event[i], 0), "an event");
    for (size_t i = 0; i < vec_len(s); i++) {
        TunedAlgo *c = choice_of(algo, s[i]->key);
        if (c && lt_accepts(gpu->lt, s[i], c->algo))
            continue;
        double until = warm ? 0 : monotonic() + 1e-3 * WARM;
        do
            lt_measure(gpu->lt, s[i], gpu->stream[STREAMcompute], event);
        while (monotonic() < until);
        warm = 1;
        gpu->tuned++;
        put_choice(out, s[i]->key, s[i]->algo);
    }
    for (int i = 0; i < 2; i++)
        dl.cuEventDestroy_v2(event[i]);
}

static void keep(const Gpu *gpu, const char *path, TunedAlgo *algo)
{
    Text out = { .arena = gpu->mem };

    put(&out, "%s", made_with(gpu->mem, gpu));
    for (size_t i = 0; i < vec_len(algo); i++)
        put_choice(&out, algo[i].key, algo[i].algo);
    cache_keep(path, out.s, out.len);
}

void tune(Gpu *gpu)
{
    const char *with = made_with(gpu->mem, gpu);
    char *path = strf(gpu->mem, "%s/tuned.%016" PRIx64, cache_folder(),
                      (uint64_t)XXH3_64bits(with, strlen(with)));
    TunedAlgo *v = known(gpu, path), *all = NULL;
    Text mine = { .arena = gpu->mem };
    LtShape **s = lt_shapes(gpu->lt);

    start_phase("tuning");
    if (leads(gpu))
        measure(gpu, v, &mine);
    for (int i = 0; i < gpu->plan->nrole; i++) {
        int64_t r = 0;
        while (role_of(gpu->plan, r) != i)
            r++;
        tune_read(gpu->mem, &all, share(gpu, r, &mine));
    }
    int new = vec_len(all) > 0;
    for (size_t i = 0; i < vec_len(v); i++)
        if (!choice_of(all, v[i].key))
            vec_push(gpu->mem, all, v[i]);
    if (new && !gpu->rank)
        keep(gpu, path, all);
    for (size_t i = 0; i < vec_len(s); i++) {
        TunedAlgo *c = choice_of(all, s[i]->key);
        if (c)
            memcpy(s[i]->algo, c->algo, sizeof c->algo);
    }
}
