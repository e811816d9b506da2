/* blocks_test: values rounded to e4m3 in blocks by the kernels for GPUs are the
 * numbers and scales of the formulas of ops, to the bit: of weights, of rows,
 * as they lie, turned and both at once, of sizes that end inside of a block,
 * with blocks of zeros, of NaN, of infinities and of the least numbers. */
#include "../../codegen/codegen.h"
#include "emu.h"
#include "emurun.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct Case {
    const char *name;
    int rows, lies, turned, X, P,
        Q; /* rows: P of more that there is room for */
} cases[] = {
    { "weights", 0, 1, 0, 2, 136, 200 },
    { "weights turned", 0, 0, 1, 2, 200, 264 },
    { "weights small", 0, 0, 1, 3, 8, 16 },
    { "weights both ways", 0, 1, 1, 2, 136, 264 },
    { "rows", 1, 1, 0, 1, 37, 304 },
};
enum { NCASE = sizeof cases / sizeof *cases, SPARE = 5 };

static int blocks_of_axis(int n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static Group *group_of(const struct Case *c)
{
    Group *k = alloc(forever, sizeof *k);
    Text t = { .arena = forever };
    int bp = c->rows ? c->P : blocks_of_axis(c->P), bq = blocks_of_axis(c->Q);

    put(&t, "#define P %d\n#define Q %d\n#define AT_ONCE 3\n%s", c->P, c->Q,
        blocks_pre);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(256)\n"
            "@(const uint16_t *w, uint8_t *q, float *s, uint8_t *tq, "
            "float *ts)\n{\n    ");
    if (c->rows)
        put(&t, "quantize_rows(w, q, s, %d);\n}\n", c->P - SPARE);
    else
        put(&t, "quantize_square<%d, %d>(w, q, s, tq, ts);\n}\n", c->lies,
            c->turned);
    set_text_named(k, forever, t.s);
    k->narg = 5;
    int64_t all = (int64_t)c->X * bp * bq;
    cuda_set_launch(
        k, forever,
        (Launch){ .items = c->rows ? (all + 47) / 48 : all, .threads = 256 });
    return k;
}

/* Of element i: blocks differ by a lot, some are of special numbers. */
static float number(int block, int i)
{
    static const float special[] = { 0, NAN, INFINITY, 0x1p-133f, 0x1p127f };
    float x = (float)((i * 2654435761u >> 20) % 511) / 256 - 1;

    if (block % 7 < 5 && (block % 7 == 0 || i % 37 == 0))
        return special[block % 7];
    return ldexpf(x, block % 11 * 3 - 15);
}

static float scale_of(float most)
{
    float s = most == 0 ? 1 : fminf(448 / most, 3.4028234663852886e38f);

    s += most - most;
    return s != s ? s : exp2f(floorf(log2f(s)));
}

typedef struct Data {
    uint16_t *w;
    uint8_t *q, *tq;
    float *s, *ts;
    size_t bytes[5];
} Data;

/* Element at of block b; line: which of lines, of how many columns. */
static int differs(const struct Case *c, const Data *d, int x, int p, int q,
                   float scale)
{
    int64_t from = ((int64_t)x * c->P + p) * c->Q + q;
    int64_t to = ((int64_t)x * c->Q + q) * c->P + p;
    uint8_t want =
        narrow_nearest(De4m3, (float)bf16_to_f32(d->w[from]) * scale);

    return (c->lies && d->q[from] != want) || (c->turned && d->tq[to] != want);
}

static int scale_differs(float is, float one)
{
    return !(is == one || (isnan(is) && isnan(one)));
}

static int block_differs(const struct Case *c, const Data *d, int x, int bp,
                         int bq)
{
    int high = c->rows ? 1 : BLOCK, bad = 0;
    int p1 = (bp + 1) * high < c->P ? (bp + 1) * high : c->P;
    int q1 = (bq + 1) * BLOCK < c->Q ? (bq + 1) * BLOCK : c->Q;
    int np = c->rows ? c->P : blocks_of_axis(c->P), nq = blocks_of_axis(c->Q);
    float most = 0;

    for (int p = bp * high; p < p1; p++)
        for (int q = bq * BLOCK; q < q1; q++) {
            float v =
                fabsf(bf16_to_f32(d->w[((int64_t)x * c->P + p) * c->Q + q]));
            most = v != v || v > most ? v : most;
            if (v != v)
                most = INFINITY;
        }
    float scale = scale_of(most), one = 1 / scale;
    if (c->lies)
        bad += scale_differs(d->s[(x * np + bp) * nq + bq], one);
    if (c->turned)
        bad += scale_differs(d->ts[(x * nq + bq) * np + bp], one);
    for (int p = bp * high; p < p1; p++)
        for (int q = bq * BLOCK; q < q1; q++)
            bad += differs(c, d, x, p, q, scale);
    return bad;
}

static int run(const struct Case *c, const Group *k)
{
    int np = c->rows ? c->P : blocks_of_axis(c->P), nq = blocks_of_axis(c->Q);
    size_t n = (size_t)c->X * (size_t)c->P * (size_t)c->Q;
    size_t bytes = (size_t)(c->X * np * nq) * 4 + RUNGUARD;
    Data d = { .bytes = { n * 2 + RUNGUARD, n + RUNGUARD, bytes, n + RUNGUARD,
                          bytes } };
    int bad = 0, there = c->rows ? c->P - SPARE : np;

    d.w = calloc(1, d.bytes[0]);
    d.q = memset(malloc(d.bytes[1]), 0x55, d.bytes[1]);
    d.s = memset(malloc(d.bytes[2]), 0x55, d.bytes[2]);
    d.tq = memset(malloc(d.bytes[3]), 0x55, d.bytes[3]);
    d.ts = memset(malloc(d.bytes[4]), 0x55, d.bytes[4]);
    for (int i = 0; i < (int)n; i++) {
        int line = i / c->Q, q = i % c->Q;
        int b = (c->rows ? line : line / BLOCK) * 3 + q / BLOCK;
        d.w[i] = f32_to_bf16(number(b, i));
    }
    void *buf[] = { d.w, d.q, d.s, d.tq, d.ts };
    bad += emurun_launch(k, buf, d.bytes, NULL) != 0;
    for (int x = 0; x < c->X; x++)
        for (int bp = 0; bp < there; bp++)
            for (int bq = 0; bq < nq; bq++)
                bad += block_differs(c, &d, x, bp, bq);
    for (size_t i = (size_t)(c->P - SPARE) * (size_t)c->Q; c->rows && i < n;
         i++)
        bad += d.q[i] != 0x55; /* no row of an expert */
    free(d.w);
    free(d.q);
    free(d.s);
    free(d.tq);
    free(d.ts);
    return bad;
}

int main(void)
{
    Group *k[NCASE];
    int failed = 0;

    for (int i = 0; i < NCASE; i++)
        k[i] = group_of(&cases[i]);
    if (!emurun_compile(forever, k, NCASE))
        return printf("not ok - blocks: texts do not compile\n"), 1;
    for (int i = 0; i < NCASE; i++) {
        int bad = run(&cases[i], k[i]);
        printf("%s - blocks, %s: %d elements differ\n", bad ? "not ok" : "ok",
               cases[i].name, bad);
        failed |= bad != 0;
    }
    emurun_close();
    return failed;
}
