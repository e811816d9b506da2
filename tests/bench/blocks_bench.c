/* blocks_bench: rows of experts rounded to e4m3 in blocks, along rows, in
 * columns of 128 rows, and both at once: bytes a second, read and written, by
 * how many blocks of threads a multiprocessor has at least; whether sampled
 * columns are what plain loops say.
 *
 * Without a GPU it compiles the kernels only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codegen/codegen.h"
#include "../../runtime/runtime.h"

enum { MOST = 128, SAMPLES = 200, TIMES = 10, NARG = 6 };
enum { ROWS = 1, COLUMNS = 2 };

static const struct Case {
    int64_t rows, wide;
    int experts;
} cases[] = {
    { 131072, 2048, 128 },
    { 131072, 768, 128 },
    { 32768, 4096, 8 },
    { 32768, 14336, 8 },
};
static const struct Form {
    const char *name;
    int makes, least; /* blocks of threads of a multiprocessor */
} forms[] = {
    { "rows", ROWS, 1 },           { "columns", COLUMNS, 1 },
    { "columns", COLUMNS, 4 },     { "columns", COLUMNS, 5 },
    { "both", ROWS | COLUMNS, 1 }, { "both", ROWS | COLUMNS, 3 },
    { "both", ROWS | COLUMNS, 4 },
};
enum { NCASE = countof(cases), NFORM = countof(forms), ATONCE = 4 };

static void *stream, *fill_fn;
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

static const char fill_text[] =
    "extern \"C\" __global__ void @(uint16_t *p, int64_t n)\n"
    "{\n"
    "    for (int64_t i = blockIdx.x * 256ll + TID; i < n;\n"
    "         i += gridDim.x * 256ll)\n"
    "        p[i] = f32_bf16((float)((int)((uint32_t)i * 2654435761u >> 20) - "
    "2048));\n"
    "}\n";

static float value(int64_t i)
{
    return bf16_to_f32(
        f32_to_bf16((float)((int)((uint32_t)i * 2654435761u >> 20) - 2048)));
}

/* ---- kernels ------------------------------------------------------------- */

static Kernel named(const char *text)
{
    Group k = { 0 };

    set_text_named(&k, forever, text);
    return (Kernel){ .name = k.instr.kernel, .text = k.text };
}

static Kernel kernel_of(const struct Case *c, const struct Form *f)
{
    Text t = { .arena = forever };
    int lies = f->makes & ROWS, turned = f->makes & COLUMNS;

    put(&t,
        "#define P %lld\n#define Q %lld\n#define AT_ONCE %d\n"
        "#define EXPERTS %d\n%s%s"
        "extern \"C\" __global__ void __launch_bounds__(256, %d)\n"
        "@(const uint16_t *x, uint8_t *q, float *s, uint8_t *tq, float *ts,\n"
        "  const int32_t *off)\n{\n    ",
        (long long)c->rows, (long long)c->wide, ATONCE, c->experts, scale_cuh,
        blocks_cuh, f->least);
    put(&t,
        turned ? "quantize_columns<%d>(x, q, s, tq, ts, off);\n}\n"
               : "quantize_rows(x, q, s, off[EXPERTS]);\n}\n",
        lies);
    return named(t.s);
}

static void make_all(void *fn[NCASE * NFORM], Pool *pool, int gpu)
{
    Kernel k[NCASE * NFORM + 1];
    int n = NCASE * NFORM;

    for (int i = 0; i < n; i++)
        k[i] = kernel_of(&cases[i / NFORM], &forms[i % NFORM]);
    k[n] = named(fill_text);
    Plan p = { .prelude = cuda_pre, .nkernel = n + 1, .kernel = k };
    Cubin *c = nvrtc_all(forever, &p, pool, "sm_90a", NULL);
    for (int i = 0; gpu && i <= n; i++) {
        void *module = NULL;
        ok(dl.cuModuleLoadData(&module, c[i].image), "module");
        ok(dl.cuModuleGetFunction(i < n ? &fn[i] : &fill_fn, module, k[i].name),
           k[i].name);
    }
}

/* ---- a case -------------------------------------------------------------- */

static unsigned grid_of(const struct Case *c, const struct Form *f)
{
    int64_t along = (c->wide + BLOCK - 1) / BLOCK, turn = 16 * ATONCE;

    if (f->makes & COLUMNS)
        return (unsigned)(row_blocks(c->rows, c->experts) * along);
    return (unsigned)((along * c->rows + turn - 1) / turn);
}

static double milliseconds(const struct Case *c, const struct Form *f, void *fn,
                           uint64_t *arg)
{
    void *p[NARG], *from, *to;
    float ms = 0;

    for (int i = 0; i < NARG; i++)
        p[i] = &arg[i];
    ok(dl.cuEventCreate(&from, 0), "event");
    ok(dl.cuEventCreate(&to, 0), "event");
    for (int i = 0; i <= TIMES; i++) {
        if (i == 1)
            dl.cuEventRecord(from, stream);
        ok(dl.cuLaunchKernel(fn, grid_of(c, f), 1, 1, 256, 1, 1, 0, stream, p,
                             NULL),
           "launch");
    }
    dl.cuEventRecord(to, stream);
    ok(dl.cuStreamSynchronize(stream), "run");
    dl.cuEventElapsedTime(&ms, from, to);
    return ms / TIMES;
}

/* Sampled columns of blocks of rows that are not those of the host. */
static int wrong(const struct Case *c, uint64_t tq, uint64_t ts)
{
    uint64_t at = 12345;
    int bad = 0, block = 0;

    for (int x = 0; x < c->experts; x++)
        for (int r0 = off[x]; r0 < off[x + 1]; r0 += BLOCK, block++) {
            uint8_t line[BLOCK];
            float one, most = 0;
            at = at * 6364136223846793005u + 1442695040888963407u;
            if (at >> 33 & 15)
                continue;
            int64_t q = (int64_t)((at >> 40) % (uint64_t)c->wide);
            uint64_t to = (uint64_t)(block * c->wide + q);
            ok(dl.cuMemcpyDtoH_v2(line, tq + to * BLOCK, BLOCK), "reading");
            ok(dl.cuMemcpyDtoH_v2(&one, ts + to * 4, 4), "reading");
            for (int r = r0; r < off[x + 1] && r < r0 + BLOCK; r++)
                most = fmaxf(most, fabsf(value(r * c->wide + q)));
            float s = exp2f(floorf(log2f(448 / most)));
            bad += one != 1 / s;
            for (int r = r0; r < r0 + BLOCK; r++) {
                float v = r < off[x + 1] ? value(r * c->wide + q) : 0;
                bad += line[r - r0] != narrow_nearest(De4m3, v * s);
            }
        }
    return bad;
}

static void measure(const struct Case *c, void *const *fn, uint64_t *arg)
{
    int64_t n = c->rows * c->wide;
    void *p[] = { &arg[0], &n };

    for (int x = 0; x < c->experts; x++)
        off[x + 1] = (int32_t)((c->rows - 40) * (x + 1) / c->experts);
    ok(dl.cuMemcpyHtoD_v2(arg[5], off, sizeof off), "sizes");
    ok(dl.cuLaunchKernel(fill_fn, 2048, 1, 1, 256, 1, 1, 0, stream, p, NULL),
       "fill");
    for (int i = 0; i < NFORM; i++) {
        const struct Form *f = &forms[i];
        double ms = milliseconds(c, f, fn[i], arg);
        double bytes =
            (double)n * (2 + !!(f->makes & ROWS) * (1 + 4.0 / BLOCK) +
                         !!(f->makes & COLUMNS) * (1 + 4.0 / BLOCK));
        int bad = f->makes & COLUMNS ? wrong(c, arg[3], arg[4]) : 0;
        printf("%s - %lldx%lld, %d experts, %s, %d blocks: %.3f ms, %.2f "
               "TB/s, %d differ\n",
               bad ? "not ok" : "ok", (long long)c->rows, (long long)c->wide,
               c->experts, f->name, f->least, ms, bytes / ms * 1e-9, bad);
        fflush(stdout);
    }
}

int main(void)
{
    static void *fn[NCASE * NFORM];
    void *ctx = NULL;
    int gpu = dl_open(LIBcuda) && !dl.cuInit(0);
    size_t most = (size_t)32768 * 14336;
    size_t size[NARG] = { most * 2, most,      most / 32,
                          most * 2, most / 16, sizeof off };
    uint64_t arg[NARG];

    if (!dl_open(LIBnvrtc)) {
        printf("ok - blocks_bench # SKIP %s\n", dl_why(LIBnvrtc));
        return 0;
    }
    if (gpu) {
        ok(dl.cuDevicePrimaryCtxRetain(&ctx, 0), "context");
        ok(dl.cuCtxSetCurrent(ctx), "context");
        ok(dl.cuStreamCreate(&stream, 1), "stream");
    }
    make_all(fn, pool_open(0), gpu);
    if (!gpu) {
        printf("ok - blocks_bench: compiled # SKIP no GPU\n");
        return 0;
    }
    for (int i = 0; i < NARG; i++)
        ok(dl.cuMemAlloc_v2(&arg[i], size[i]), "memory");
    for (int i = 0; i < NCASE; i++)
        measure(&cases[i], fn + i * NFORM, arg);
    return 0;
}
