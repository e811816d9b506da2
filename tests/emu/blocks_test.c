/* blocks_test: values rounded to e4m3 in blocks by the kernels for GPUs are the
 * numbers and scales of the formulas of ops, to the bit: of weights, of rows,
 * as they lie, turned and both at once, of columns of experts' rows, by kernels
 * that make what they round ("held", in pieces of so many), of sizes that end
 * inside of a block, with blocks of zeros, of NaN, of infinities and of the
 * least numbers. */
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
    int columns, gathered, held;
} cases[] = {
    { "weights", 0, 1, 0, 2, 136, 200, 0, 0, 0 },
    { "weights turned", 0, 0, 1, 2, 200, 264, 0, 0, 0 },
    { "weights small", 0, 0, 1, 3, 8, 16, 0, 0, 0 },
    { "weights both ways", 0, 1, 1, 2, 136, 264, 0, 0, 0 },
    { "weights held", 0, 1, 0, 2, 128, 256, 0, 0, 4 },
    { "rows", 1, 1, 0, 1, 37, 304, 0, 0, 0 },
    { "columns", 1, 0, 1, 1, 455, 136, 1, 0, 0 },
    { "rows and columns", 1, 1, 1, 1, 455, 712, 1, 0, 0 },
    { "rows of tokens", 1, 1, 1, 1, 455, 1160, 1, 1, 0 },
    { "rows held", 1, 1, 1, 1, 455, 256, 1, 0, 8 },
};
enum {
    NCASE = sizeof cases / sizeof *cases,
    SPARE = 5,
    EXPERTS = 35,
    MOSTROWS = 455
};

/* Rows of each expert, 450 in all. */
static const int sizes[EXPERTS] = {
    130, 0, 1, [31] = 128, [32] = 60, [34] = 131
};

static int blocks_of_axis(int n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* As loop/tile_gpu.c prints it, of a kernel that makes what memory holds. */
static void put_held(Text *out, const struct Case *c)
{
    put(out,
        "__shared__ __align__(16) uint16_t held[16384];\n"
        "    uint32_t most = 0;\n%s"
        "    for (int k = 0; k < PIECES_OF(%d); k++) {\n",
        c->rows ? "    const Place place = block_place(blockIdx.x / BLOCKSQ, "
                  "off);\n"
                  "    if (place.rows == 0) return;\n"
                : "",
        c->held);
    if (c->rows)
        put(out,
            "        if (piece_line<%d>(k) >= place.rows) {\n"
            "            clear_piece<%d>(held, k);\n            continue;\n"
            "        }\n",
            c->held, c->held);
    put(out,
        "        float t[%d];\n        load<%d, %d>(t, w + %s<%d>(%sk) * %d);\n"
        "        most = keep_piece<%d>(held, k, t, most);\n    }\n    ",
        c->held, c->held, c->held, c->rows ? "row_piece" : "square_piece",
        c->held, c->rows ? "place, " : "", c->held, c->held);
    if (c->rows)
        put(out, "round_columns<%d>(held, q, s, tq, ts, place);\n}\n", c->lies);
    else
        put(out, "round_square<%d>(held, most, q, s);\n}\n", c->held);
}

static Group *group_of(const struct Case *c)
{
    Group *k = alloc(forever, sizeof *k);
    Text t = { .arena = forever };
    int bp = c->rows ? c->P : blocks_of_axis(c->P), bq = blocks_of_axis(c->Q);

    put(&t,
        "#define P %d\n#define Q %d\n#define AT_ONCE 3\n#define EXPERTS "
        "%d\n#define TOP 3\n%s%s",
        c->P, c->Q, EXPERTS, scale_cuh, blocks_cuh);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(256)\n"
            "@(const uint16_t *w, uint8_t *q, float *s, uint8_t *tq, "
            "float *ts, const int32_t *off)\n{\n    ");
    if (c->held)
        put_held(&t, c);
    else if (c->columns)
        put(&t,
            "quantize_columns<%d, %d>(w, q, s, tq, ts, off, off + %d);\n}\n",
            c->lies, c->gathered, EXPERTS + 1);
    else if (c->rows)
        put(&t, "quantize_rows(w, q, s, %d);\n}\n", c->P - SPARE);
    else
        put(&t, "quantize_square<%d, %d>(w, q, s, tq, ts);\n}\n", c->lies,
            c->turned);
    set_text_named(k, forever, t.s);
    k->narg = 6;
    int64_t all = (int64_t)c->X * bp * bq;
    cuda_set_launch(k, forever,
                    (Launch){ .items = c->columns
                                           ? row_blocks(c->P, EXPERTS) * bq
                                       : c->rows ? (all + 47) / 48
                                                 : all,
                              .threads = 256 });
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
    int e;

    s += most - most;
    frexpf(s, &e);
    return s != s ? s : ldexpf(1, e - 1);
}

typedef struct Data {
    uint16_t *w;
    uint8_t *q, *tq;
    float *s, *ts;
    int32_t
        off[EXPERTS + 1 + MOSTROWS + RUNGUARD / 4]; /* and each row's pair */
    size_t bytes[6];
} Data;

/* Element at of block b; line: which of lines, of how many columns. */
static int differs(const struct Case *c, const Data *d, int x, int p, int q,
                   float scale)
{
    int64_t from = ((int64_t)x * c->P + p) * c->Q + q;
    int64_t to = ((int64_t)x * c->Q + q) * c->P + p;
    uint8_t want =
        narrow_nearest(De4m3, (float)bf16_to_f32(d->w[from]) * scale);

    return (c->lies && d->q[from] != want) ||
           (c->turned && !c->columns && d->tq[to] != want);
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
    if (c->turned && !c->columns)
        bad += scale_differs(d->ts[(x * nq + bq) * np + bp], one);
    for (int p = bp * high; p < p1; p++)
        for (int q = bq * BLOCK; q < q1; q++)
            bad += differs(c, d, x, p, q, scale);
    return bad;
}

/* Column q of block `at`, `rows` rows from row0 on. */
static int column_differs(const struct Case *c, const Data *d, int at, int row0,
                          int rows, int q)
{
    const uint8_t *line = d->tq + ((int64_t)at * c->Q + q) * BLOCK;
    const uint16_t *from = d->w + (int64_t)row0 * c->Q + q;
    float most = 0;
    int bad = 0;

    for (int r = 0; r < rows; r++) {
        float v = fabsf(bf16_to_f32(from[(int64_t)r * c->Q]));
        most = v != v || most != most ? NAN : fmaxf(v, most);
    }
    float scale = scale_of(most != most ? INFINITY : most);
    bad += scale_differs(d->ts[at * c->Q + q], 1 / scale);
    for (int r = 0; r < BLOCK; r++) {
        float v = r < rows ? bf16_to_f32(from[(int64_t)r * c->Q]) : 0;
        bad += line[r] != narrow_nearest(De4m3, v * scale);
    }
    return bad;
}

static int columns_differ(const struct Case *c, const Data *d)
{
    int bad = 0, at = 0;

    for (int x = 0; x < EXPERTS; x++)
        for (int r0 = d->off[x]; r0 < d->off[x + 1]; r0 += BLOCK, at++)
            for (int q = 0; q < c->Q; q++)
                bad += column_differs(
                    c, d, at, r0,
                    d->off[x + 1] - r0 < BLOCK ? d->off[x + 1] - r0 : BLOCK, q);
    for (int64_t i = (int64_t)at * c->Q * BLOCK;
         i < row_blocks(c->P, EXPERTS) * c->Q * BLOCK; i++)
        bad += d->tq[i] != 0x55; /* of nobody */
    return bad;
}

/* Tokens of which the rows are, a few of none. */
static uint16_t *scattered(const struct Case *c, Data *d)
{
    size_t wide = (size_t)c->Q * sizeof *d->w;
    uint16_t *tokens = calloc(1, d->bytes[0]);

    for (int r = 0; r < c->P; r++) {
        int token = r * 11 % c->P, none = r % 50 == 7;
        if (none)
            memset(d->w + r * c->Q, 0, wide);
        memcpy(tokens + token * c->Q, d->w + r * c->Q, wide);
        d->off[EXPERTS + 1 + r] = none ? -1 : token * 3 + r % 3;
    }
    return tokens;
}

static int run(const struct Case *c, const Group *k)
{
    int np = c->rows ? c->P : blocks_of_axis(c->P), nq = blocks_of_axis(c->Q);
    size_t n = (size_t)c->X * (size_t)c->P * (size_t)c->Q;
    size_t bytes = (size_t)(c->X * np * nq) * 4 + RUNGUARD;
    size_t lines = (size_t)(row_blocks(c->P, EXPERTS) * c->Q);
    Data d = { .bytes = { n * 2 + RUNGUARD, n + RUNGUARD, bytes,
                          (c->columns ? lines * BLOCK : n) + RUNGUARD,
                          c->columns ? lines * 4 + RUNGUARD : bytes,
                          (EXPERTS + 1 + MOSTROWS) * 4 + RUNGUARD } };
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
    for (int x = 0; x < EXPERTS; x++)
        d.off[x + 1] = d.off[x] + sizes[x];
    uint16_t *from = c->gathered ? scattered(c, &d) : d.w;
    void *buf[] = { from, d.q, d.s, d.tq, d.ts, d.off };
    bad += emurun_launch(k, buf, d.bytes, NULL) != 0;
    for (int x = 0; x < c->X; x++)
        for (int bp = 0; bp < there; bp++)
            for (int bq = 0; bq < nq; bq++)
                bad += block_differs(c, &d, x, bp, bq);
    if (c->columns)
        bad += columns_differ(c, &d);
    for (size_t i = (size_t)(c->P - SPARE) * (size_t)c->Q; c->rows && i < n;
         i++)
        bad += d.q[i] != 0x55; /* no row of an expert */
    if (from != d.w)
        free(from);
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
