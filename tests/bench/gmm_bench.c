/* gmm_bench: grouped products on a GPU, each shape with several tiles: what a
 * launch takes, and whether sampled elements are what a plain loop says; of
 * weights also whether all elements are multiples of the first sums where many
 * launches add, and whether the sums of squares beside them are those of what
 * was stored (of small ones: all is read).
 *
 *     gmm_bench [rows [case]]     131072 rows, on 128 experts unless the case
 *                                 says otherwise
 *
 * Without a GPU it compiles the kernels only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codegen/codegen.h"
#include "../../runtime/runtime.h"

enum { MOST = 128, SAMPLES = 400, SQUARES = 1 << 20, SMALL = 1 << 23 };
enum { NARG = 10, ADDED = 11 /* launches of a timing */ };

/* Tensor cores align 32 products of 8 bits to the largest and drop what is
 * below its 13th bit or so: that much of the root of the squares of all. */
#define TRUNCATED 0x1p-12

typedef struct Case {
    const char *name;
    int weight;
    int64_t K, N, tw;
    int experts; /* 0: MOST; 1: a matrix, whose rows are all of it */
    int twice;   /* the sum of two products, which are the same */
    int scaled;  /* of e4m3 with scales of blocks */
} Case;

/* clang-format off */
static const Case cases[] = {
    { "w1", 0, 2048, 768, 1, 0, 0, 0 }, { "w2", 0, 768, 2048, 1, 0, 0, 0 },
    { "d.w2", 0, 2048, 768, 0, 0, 0, 0 }, { "d.w1", 0, 768, 2048, 0, 0, 0, 0 },
    { "d.w1 + d.w3", 0, 768, 2048, 0, 0, 1, 0 },
    { "gmm_wgrad", 1, 2048, 768, 0, 0, 0, 0 }, { "gmm_wgrad turned", 1, 2048, 768, 1, 0, 0, 0 },
    { "wide gmm_wgrad", 1, 2048, 1024, 0, 64, 0, 0 },
    { "few w1", 0, 4096, 14336, 0, 8, 0, 0 }, { "few w2", 0, 14336, 4096, 0, 8, 0, 0 },
    { "few gmm_wgrad", 1, 4096, 14336, 0, 8, 0, 0 }, { "few gmm_wgrad w2", 1, 14336, 4096, 0, 8, 0, 0 },
    { "odd", 0, 200, 328, 1, 0, 0, 0 }, { "odd turned", 0, 328, 200, 0, 0, 0, 0 },
    { "odd gmm_wgrad", 1, 328, 200, 0, 100, 0, 0 },
    { "fp8 up", 0, 7168, 4096, 1, 8, 0, 1 }, { "fp8 down", 0, 2048, 7168, 1, 8, 0, 1 },
    { "fp8 few w1", 0, 4096, 14336, 1, 8, 0, 1 }, { "fp8 few w2", 0, 14336, 4096, 1, 8, 0, 1 },
    { "fp8 w1", 0, 2048, 768, 1, 0, 0, 1 }, { "fp8 w2", 0, 768, 2048, 1, 0, 0, 1 },
    { "fp8 dense", 0, 8192, 8192, 1, 1, 0, 1 }, { "fp8 odd", 0, 208, 328, 1, 0, 0, 1 },
    { "fp8 wgrad", 1, 2048, 768, 0, 0, 0, 1 }, { "fp8 wgrad w2", 1, 768, 2048, 0, 0, 0, 1 },
    { "fp8 few wgrad", 1, 4096, 14336, 0, 8, 0, 1 }, { "fp8 few wgrad w2", 1, 14336, 4096, 0, 8, 0, 1 },
    { "fp8 odd wgrad", 1, 336, 208, 1, 100, 0, 1 },
};
/* clang-format on */
enum { NCASE = sizeof cases / sizeof *cases };

static const GroupedTile tiles[] = {
    { 128, 192, 1 }, { 128, 256, 0 }, { 128, 128, 1 },
    { 128, 64, 1 },  { 64, 256, 1 },
};
enum { NTILE = sizeof tiles / sizeof *tiles };

static const GroupedTile scaled_tiles[NTILE] = {
    { 128, 256, 0 },
    { 256, 128, 0 },
    { 128, 128, 0 },
    { 128, 64, 0 },
};

static const GroupedTile column_tiles[NTILE] = {
    { 128, 256, 0 }, { 256, 128, 0 }, { 128, 192, 0 },
    { 128, 128, 0 }, { 128, 64, 0 },
};

/* The i-th of a case; no rows: it has fewer. */
static GroupedTile tile_of(const Case *c, int i)
{
    return c->scaled && c->weight ? column_tiles[i]
           : c->scaled            ? scaled_tiles[i]
                                  : tiles[i];
}

static void *stream;
static void *fill_fn, *strayed_fn;
static int E; /* of the case */
static int32_t off[MOST + 1];

static void ok(int e, const char *what)
{
    const char *s = "?";

    if (!e)
        return;
    dl.cuGetErrorString(e, &s);
    printf("not ok - %s: %s\n", what, s);
    exit(1);
}

/* A number of 8 bits in [-1, 1) that element i of tensor `seed` holds. */
static float value(int64_t i, uint32_t seed)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ seed;

    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    x ^= x >> 15;
    return (float)((int)(x & 255) - 128) / 128;
}

static const char fill_text[] =
    "extern \"C\" __global__ void @(uint16_t *p, int64_t n, int64_t seed,\n"
    "                             int64_t as)\n"
    "{\n"
    "    for (int64_t i = blockIdx.x * 256ll + TID; i < n;\n"
    "         i += gridDim.x * 256ll) {\n"
    "        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)seed;\n"
    "        x = (x ^ x >> 15) * 0x2c1b3c6du;\n"
    "        x = (x ^ x >> 12) * 0x297a2d39u;\n"
    "        x ^= x >> 15;\n"
    "        const float v = (float)((int)(x & 255) - 128) / 128;\n"
    "        if (as == 0)\n"
    "            p[i] = f32_bf16(v);\n"
    "        else if (as == 1)\n"
    "            ((e4m3_t *)p)[i] = f32_e4m3(v);\n"
    "        else\n"
    "            ((float *)p)[i] = 1.5f + v;\n"
    "    }\n"
    "}\n";

static const char strayed_text[] =
    "extern \"C\" __global__ void @(const float *p, const float *one, int64_t "
    "n,\n"
    "                             int64_t times, int *strayed)\n"
    "{\n"
    "    for (int64_t i = blockIdx.x * 256ll + TID; i < n;\n"
    "         i += gridDim.x * 256ll) {\n"
    "        const float e = one[i] * times;\n"
    "        if (!(fabsf(p[i] - e) <= 1e-4f * (1 + fabsf(e))))\n"
    "            atomicAdd(strayed, 1);\n"
    "    }\n"
    "}\n";

/* Wide layers with few experts get fewer rows. */
static int64_t most_rows(int i, int64_t rows)
{
    int64_t most = cases[i].experts == 1   ? 8192
                   : cases[i].experts == 8 ? 32768
                                           : rows;

    return rows < most ? rows : most;
}

/* ---- kernels ------------------------------------------------------------- */

typedef struct Made {
    GroupedForm form;
    int scaled;
    int64_t shared;
    void *fn;
} Made;

static GmmArgs args_of(const Case *c, int64_t rows)
{
    return (GmmArgs){ .in = c->scaled ? De4m3 : Dbf16,
                      .out = c->weight ? Df32 : Dbf16,
                      .experts = c->experts ? c->experts : MOST,
                      .k = c->K,
                      .n = c->N,
                      .ldw = c->tw ? c->K : c->N,
                      .tw = c->tw,
                      .stride = c->K * c->N,
                      .cap = rows };
}

static Kernel named(const char *text)
{
    Group k = { 0 };

    set_text_named(&k, forever, text);
    return (Kernel){ .name = k.instr.kernel, .text = k.text };
}

static int is_wanted(int i, const char *only)
{
    return !only || strstr(cases[i / NTILE].name, only);
}

static void make_all(Made *m, int64_t rows, const char *only, Pool *pool,
                     int gpu)
{
    Kernel k[NCASE * NTILE + 2];
    int n = NCASE * NTILE;

    for (int i = 0; i < n; i++) {
        GmmArgs v = args_of(&cases[i / NTILE], most_rows(i / NTILE, rows));
        GroupedTile t = tile_of(&cases[i / NTILE], i % NTILE);
        m[i].form = (GroupedForm){ .weight = cases[i / NTILE].weight,
                                   .squares = cases[i / NTILE].weight,
                                   .terms = 1 + cases[i / NTILE].twice,
                                   .dense = cases[i / NTILE].experts == 1,
                                   .tile = t };
        m[i].scaled = cases[i / NTILE].scaled;
        k[i] = named(t.rows && is_wanted(i, only)
                         ? grouped_text(forever, &v, m[i].form, &m[i].shared)
                         : fill_text);
    }
    k[n] = named(fill_text);
    k[n + 1] = named(strayed_text);
    Plan p = { .prelude = cuda_pre, .nkernel = n + 2, .kernel = k };
    Cubin *c = nvrtc_all(forever, &p, pool, "sm_90a", NULL);
    for (int i = 0; gpu && i < n + 2; i++) {
        void *module = NULL;
        void **fn = i < n ? &m[i].fn : i == n ? &fill_fn : &strayed_fn;
        ok(dl.cuModuleLoadData(&module, c[i].image), "module");
        ok(dl.cuModuleGetFunction(fn, module, k[i].name), k[i].name);
        if (i < n && m[i].shared && is_wanted(i, only))
            ok(dl.cuFuncSetAttribute(*fn, 8, (int)m[i].shared), "shared");
    }
}

/* ---- data ---------------------------------------------------------------- */

static void fill(uint64_t p, int64_t n, int64_t seed, int64_t as)
{
    void *arg[] = { &p, &n, &seed, &as };

    ok(dl.cuLaunchKernel(fill_fn, 2048, 1, 1, 256, 1, 1, 0, stream, arg, NULL),
       "fill");
}

/* Uneven, one expert empty, the last not whole tiles; a few rows of no one. */
static void set_sizes(int64_t rows)
{
    double w[MOST], sum = 0;

    if (E == 1) {
        off[1] = (int32_t)rows;
        return;
    }
    for (int x = 0; x < E; x++)
        sum += w[x] = x == 3 ? 0 : 1.6 + (double)value(x, 77);
    for (int x = 0; x < E; x++)
        off[x + 1] = off[x] + (int32_t)(w[x] / sum * (double)(rows - 40));
}

static int64_t scales_along(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static int expert_of(int64_t r)
{
    int x = 0;

    while (off[x + 1] <= r)
        x++;
    return x;
}

/* Element k of line i of an operand of K columns, whose scales are those of
 * line `block`. */
static double operand_at(const Case *c, int64_t i, int64_t block, int64_t k,
                         uint32_t seed)
{
    double x = (double)value(i * c->K + k, seed);

    if (!c->scaled)
        return x;
    x = (double)narrow_value(De4m3, narrow_nearest(De4m3, (float)x));
    return x * (double)(1.5f + value(block * scales_along(c->K) + k / BLOCK,
                                     seed + 4));
}

/* Blocks of 128 rows before expert x's. */
static int64_t blocks_before(int64_t x)
{
    int64_t n = 0;

    for (int64_t y = 0; y < x; y++)
        n += scales_along(off[y + 1] - off[y]);
    return n;
}

/* Row r of column c of an operand in blocks of rows, `wide` columns. */
static double column_at(int64_t wide, int64_t r, int64_t c, uint32_t seed)
{
    int64_t line = r / BLOCK * wide + c;
    float x = value(line * BLOCK + r % BLOCK, seed);

    return (double)narrow_value(De4m3, narrow_nearest(De4m3, x)) *
           (double)(1.5f + value(line, seed + 4));
}

/* Of a gradient of weights by blocks of rows, all of whose rows there are. */
static double expected_columns(const Case *c, int64_t x, int64_t k, int64_t n,
                               double *norm)
{
    double sum = 0, squares = 0;
    int64_t end = blocks_before(x + 1) * BLOCK;

    for (int64_t r = blocks_before(x) * BLOCK; r < end; r++) {
        double term = column_at(c->K, r, k, 1) * column_at(c->N, r, n, 2);
        sum += term;
        squares += term * term;
    }
    *norm = sqrt(squares);
    return sum;
}

/* What element i of the result is; *norm: the root of its terms' squares. */
static double expected(const Case *c, int64_t i, double *norm)
{
    int64_t K = c->K, N = c->N, stride = K * N;
    double sum = 0, squares = 0;

    if (!c->weight) {
        int64_t r = i / N, n = i % N, x = expert_of(r), w = x * stride;
        for (int64_t k = 0; k < K; k++) {
            double b = c->tw ? operand_at(c, x * N + n,
                                          x * scales_along(N) + n / BLOCK, k, 2)
                             : (double)value(w + k * N + n, 2);
            double term = operand_at(c, r, r, k, 1) * b;
            sum += term;
            squares += term * term;
        }
        *norm = sqrt(squares);
        return sum;
    }
    int64_t x = i / stride, j = i % stride;
    int64_t k = c->tw ? j % K : j / N, n = c->tw ? j / K : j % N;
    if (c->scaled)
        return expected_columns(c, x, k, n, norm);
    for (int64_t r = off[x]; r < off[x + 1]; r++)
        sum += (double)value(r * K + k, 1) * value(r * N + n, 2);
    return sum;
}

static double element(const Case *c, uint64_t p, int64_t i)
{
    float f = 0;

    if (c->weight) {
        ok(dl.cuMemcpyDtoH_v2(&f, p + 4 * (uint64_t)i, 4), "reading");
    } else {
        uint16_t h = 0;
        ok(dl.cuMemcpyDtoH_v2(&h, p + 2 * (uint64_t)i, 2), "reading");
        uint32_t u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
    }
    return f;
}

/* Sampled elements against `times` the sum: the worst in units of what is
 * allowed; rows of no expert are as they were (NaN). */
static double worst(const Case *c, uint64_t p, int64_t rows, int times)
{
    int64_t n = c->weight ? E * c->K * c->N : off[E] * c->N;
    double most = 0;
    uint64_t at = 12345;

    for (int s = 0; s < SAMPLES; s++) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        int64_t i = (int64_t)((at >> 20) % (uint64_t)n);
        if (s < 8)
            i = s < 4 ? s : n - 1 - (s & 3);
        double norm = 0, e = expected(c, i, &norm) * times;
        double y = element(c, p, i);
        double may = c->weight ? 1e-4 * (1 + fabs(e)) : fabs(e) / 128 + 1e-3;
        if (c->scaled)
            may += norm * times * TRUNCATED;
        double d = fabs(y - e) / may;
        most = d > most || d != d ? d : most;
    }
    for (int64_t i = n; !c->weight && i < rows * c->N; i += 97)
        if (!isnan(element(c, p, i)))
            return NAN;
    return most;
}

/* The sums of squares of a gradient's tiles against those of what is in p:
 * relative. */
static double squares_off(const Case *c, GroupedTile tile, uint64_t p,
                          uint64_t squares)
{
    const GmmArgs v = args_of(c, 0);
    const size_t many = (size_t)tile_squares(&v, &tile);
    static float part[SQUARES];
    size_t n = (size_t)(E * c->K * c->N);
    float *all = alloc(forever, n * sizeof *all);
    double sum = 0, is = 0;

    ok(dl.cuMemcpyDtoH_v2(all, p, n * sizeof *all), "reading");
    ok(dl.cuMemcpyDtoH_v2(part, squares, many * sizeof *part), "reading");
    for (size_t i = 0; i < n; i++)
        is += (double)all[i] * all[i];
    for (size_t i = 0; i < many; i++)
        sum += part[i];
    return fabs(sum / is - 1);
}

/* How many elements of p are not `times` those of `one`. */
static int strayed(const Case *c, uint64_t p, uint64_t one, int64_t times,
                   uint64_t count)
{
    int64_t n = E * c->K * c->N;
    int many = 0;
    void *arg[] = { &p, &one, &n, &times, &count };

    dl.cuMemsetD8Async(count, 0, sizeof many, stream);
    ok(dl.cuLaunchKernel(strayed_fn, 2048, 1, 1, 256, 1, 1, 0, stream, arg,
                         NULL),
       "compare");
    ok(dl.cuStreamSynchronize(stream), "compare");
    ok(dl.cuMemcpyDtoH_v2(&many, count, sizeof many), "reading");
    return many;
}

/* ---- a case -------------------------------------------------------------- */

static void launch(const Made *m, uint64_t *arg, int64_t add, unsigned blocks)
{
    void *p[NARG] = { &arg[0], &arg[1], &arg[2] };
    int n = 3;

    if (!m->form.dense)
        p[n++] = &arg[3];
    for (int i = 0; i < 2 && m->form.terms > 1; i++)
        p[n++] = &arg[i];
    if (m->scaled)
        p[n++] = &arg[6], p[n++] = &arg[7];
    if (m->form.squares)
        p[n++] = &arg[4];
    p[n++] = &arg[5];
    p[n] = &add;
    ok(dl.cuLaunchKernel(m->fn, blocks, 1, 1, 384, 1, 1, (unsigned)m->shared,
                         stream, p, NULL),
       "launch");
}

static double milliseconds(const Made *m, uint64_t *arg, int64_t add)
{
    void *from, *to;
    float ms = 0;

    ok(dl.cuEventCreate(&from, 0), "event");
    ok(dl.cuEventCreate(&to, 0), "event");
    launch(m, arg, add, GPUBLOCKS);
    dl.cuEventRecord(from, stream);
    for (int i = 1; i < ADDED; i++)
        launch(m, arg, add, GPUBLOCKS);
    dl.cuEventRecord(to, stream);
    ok(dl.cuStreamSynchronize(stream), "run");
    dl.cuEventElapsedTime(&ms, from, to);
    return ms / (ADDED - 1);
}

static void measure(const Case *c, Made *m, uint64_t *arg, int64_t rows)
{
    E = c->experts ? c->experts : MOST;
    set_sizes(rows);
    ok(dl.cuMemcpyHtoD_v2(arg[3], off, sizeof off), "sizes");
    int64_t nb = c->weight ? rows * c->N : E * c->K * c->N;
    size_t bytes =
        c->weight ? (size_t)(E * c->K * c->N * 4) : (size_t)(rows * c->N * 2);
    int terms = 1 + c->twice;
    double flops = 2.0 * terms * off[E] * (double)c->K * (double)c->N;

    int64_t blocks = row_blocks(rows, E);
    if (c->scaled && c->weight) {
        fill(arg[0], blocks * BLOCK * c->K, 1, 1);
        fill(arg[1], blocks * BLOCK * c->N, 2, 1);
        fill(arg[6], blocks * c->K, 5, 2);
        fill(arg[7], blocks * c->N, 6, 2);
    } else {
        fill(arg[0], rows * c->K, 1, c->scaled);
        fill(arg[1], nb, 2, c->scaled);
        fill(arg[6], rows * scales_along(c->K), 5, 2);
        fill(arg[7], E * scales_along(c->K) * scales_along(c->N), 6, 2);
    }
    for (int i = 0; i < NTILE && tile_of(c, i).rows; i++, m++) {
        GroupedTile t = tile_of(c, i);
        dl.cuMemsetD8Async(arg[2], 0xff, bytes, stream);
        launch(m, arg, 0, GPUBLOCKS);
        ok(dl.cuStreamSynchronize(stream), c->name);
        double e = worst(c, arg[2], rows, terms), e2 = 0, far = 0;
        int small = c->weight && E * c->K * c->N <= SMALL;
        if (c->weight) {
            launch(m, arg, 1, 78); /* an H20 has so many */
            ok(dl.cuStreamSynchronize(stream), c->name);
            e2 = worst(c, arg[2], rows, 2);
            far = small ? squares_off(c, t, arg[2], arg[4]) : 0;
        }
        double ms = milliseconds(m, arg, 0);
        double ms2 = 0;
        int stray = 0;
        if (c->weight) {
            dl.cuMemcpyDtoDAsync_v2(arg[8], arg[2], bytes, stream);
            ms2 = milliseconds(m, arg, 1);
            stray = strayed(c, arg[2], arg[8], 1 + ADDED, arg[9]);
        }
        printf("%s - %-11s %3lldx%3lld%s: %.3f ms %.0f TFLOP/s, adding %.3f "
               "ms, error %.2f %.2f, squares %.1e, %d elements strayed\n",
               e <= 1 && e2 <= 1 && far < 1e-5 && !stray ? "ok" : "not ok",
               c->name, (long long)t.rows, (long long)t.cols,
               t.pingpong ? " ping-pong" : "", ms, flops / ms * 1e-9, ms2, e,
               e2, far, stray);
        fflush(stdout);
    }
}

static void add_sizes(const Case *c, int64_t rows, size_t *size)
{
    size_t x = (size_t)(c->experts ? c->experts : MOST), r = (size_t)rows;
    size_t k = (size_t)c->K, n = (size_t)c->N, w = x * k * n;
    size_t need[3] = { r * k * 2, c->weight ? r * n * 2 : w * 2,
                       c->weight ? w * 4 : r * n * 2 };

    for (int i = 0; i < 3; i++)
        size[i] = need[i] > size[i] ? need[i] : size[i];
    size[6] = size[0] / 16;
    size[7] = size[1] / 16;
    size[8] = c->weight && w * 4 > size[8] ? w * 4 : size[8];
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 1 ? atoll(argv[1]) : 131072;
    const char *only = argc > 2 ? argv[2] : NULL;
    static Made made[NCASE * NTILE];
    void *ctx = NULL;
    int gpu = dl_open(LIBcuda) && !dl.cuInit(0);

    if (!dl_open(LIBnvrtc)) {
        printf("ok - gmm_bench # SKIP %s\n", dl_why(LIBnvrtc));
        return 0;
    }
    if (gpu) {
        ok(dl.cuDevicePrimaryCtxRetain(&ctx, 0), "context");
        ok(dl.cuCtxSetCurrent(ctx), "context");
        ok(dl.cuStreamCreate(&stream, 1), "stream");
    }
    make_all(made, rows, only, pool_open(0), gpu);
    if (!gpu) {
        printf("ok - gmm_bench: compiled # SKIP no GPU\n");
        return 0;
    }
    uint64_t arg[NARG];
    size_t size[NARG] = {
        0, 0, 0, sizeof off, SQUARES * 4, 1 << 20, 0, 0, 0, 4
    };
    for (int i = 0; i < NCASE; i++)
        add_sizes(&cases[i], most_rows(i, rows), size);
    for (int i = 0; i < NARG; i++)
        ok(dl.cuMemAlloc_v2(&arg[i], size[i]), "memory");
    for (int i = 0; i < NCASE; i++)
        if (is_wanted(i * NTILE, only))
            measure(&cases[i], made + i * NTILE, arg, most_rows(i, rows));
    return 0;
}
