/* stored_test: FP8 weights of a file, with a scale for each 128 x 128, under
 * the recipe blockwise. Masters are number times scale; they are rounded for
 * products again. With powers of two as scales the products multiply what the
 * file has, bit for bit; so are numbers and scales where the largest of a block
 * is above 224, half of what e4m3 holds: else numbers are 2^k as large, scales
 * 2^-k, which both dtypes hold exactly. Other scales are none of the recipe's:
 * half a last place of e4m3 may be lost, and bf16's before it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../runtime/ckpt/ckpt.h"
#include "../fold/foldrun.h"

enum { H = 300, W = 260, BLOCK = 128, HB = 3, FB = 3, TOP = 0x7e };

/* Of each block: the largest code that it has, and its scale. */
typedef struct StoredBlock {
    int most;
    float scale;
} StoredBlock;

static const StoredBlock powers[FB][HB] = {
    { { TOP, 0x1p-9f }, { 0x77, 0x1p-12f }, { 0x76, 0x1p-10f } },
    { { 0x38, 0x1p-8f }, { 0x07, 0x1p-6f }, { 0, 0x1p-5f } },
    { { 0x7d, 0x1p-40f }, { TOP, 0x1p20f }, { 0x01, 0x1p3f } },
};
static const StoredBlock others[FB][HB] = {
    { { TOP, 0.0031f }, { 0x77, 0.00071f }, { 0x76, 0.002f } },
    { { 0x38, 1 / 3.0f }, { 0x07, 0.7f }, { 0, 0.1f } },
    { { 0x7d, 3e-12f }, { TOP, 1e6f }, { 0x01, 5 } },
};

/* The file: codes and scales of w, and what the model multiplies it by. */
typedef struct StoredMatrix {
    uint8_t code[W][H];
    float scale[FB][HB];
} StoredMatrix;

static int failed;

static void check(int good, const char *name, double x)
{
    failed += !good;
    printf("%sok - %s: %g\n", good ? "" : "not ", name, x);
}

static float number(const StoredMatrix *w, int f, int h)
{
    return (float)st_get(FTF8_E4M3, &w->code[f][h], 0);
}

static float scale(const StoredMatrix *w, int f, int h)
{
    return w->scale[f / BLOCK][h / BLOCK];
}

/* Codes that follow no order, of both signs, with the largest in each block. */
static void fill(StoredMatrix *w, const StoredBlock block[FB][HB])
{
    for (int f = 0; f < W; f++)
        for (int h = 0; h < H; h++) {
            const StoredBlock *b = &block[f / BLOCK][h / BLOCK];
            uint64_t r = mix64((uint64_t)f, (uint64_t)h);
            int code = f % BLOCK == 0 && h % BLOCK == 0
                           ? b->most
                           : (int)(r % (uint64_t)(b->most + 1));
            w->code[f][h] = (uint8_t)(code | (r >> 40 & 1) << 7);
            w->scale[f / BLOCK][h / BLOCK] = b->scale;
        }
}

static StTensor tensor(const char *name, FileType dt, int64_t rows,
                       int64_t cols, int64_t *end)
{
    StTensor t = { .name = name,
                   .dt = dt,
                   .bytes = st_bytes(dt),
                   .nd = 2,
                   .n = { rows, cols },
                   .begin = *end };

    t.end = *end = t.begin + rows * cols * t.bytes;
    return t;
}

/* The file's tensors, sorted by name; p is the identity, the others zeros. */
static void load(Exec *x, const StoredMatrix *w)
{
    int64_t size = 0;
    StTensor t[] = {
        tensor("c", FTF32, H, W, &size),
        tensor("p", FTF32, H, H, &size),
        tensor("q", FTF32, H, W, &size),
        tensor("s", FTF32, HB, FB, &size),
        tensor("w_scale_inv", FTF32, FB, HB, &size), /* aligned, before w */
        tensor("w", FTF8_E4M3, W, H, &size),
    };
    StFile file = { .path = "stored", .n = 6, .t = t }, *one = &file;
    uint8_t *data = alloc(forever, (size_t)size);

    for (int i = 0; i < H; i++)
        st_set(FTF32, data + t[1].begin, i * (H + 1), 1);
    memcpy(data + t[4].begin, w->scale, sizeof w->scale);
    memcpy(data + t[5].begin, w->code, sizeof w->code);
    StTensor last = t[5];
    t[5] = t[4], t[4] = last;
    file.data = data;
    exec_pull(x);
    hf_load(x, &one, 1, "stored", 0, NULL);
    exec_filled(x);
}

/* The gradient of a parameter, which is its first moment, as beta1 is 0. */
static const double *gradient(Exec *x, const char *name)
{
    int64_t n;

    return fold_read(x, strf(forever, "optim.m.%s", name), &n);
}

static Exec *loaded(const char *model, const char *words, const StoredMatrix *w)
{
    Plan *p = fold_words(model,
                         strf(forever, "%s precision.recipe=blockwise", words));
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    load(x, w);
    return x;
}

static Exec *stepped(const char *words, const StoredMatrix *w)
{
    Exec *x = loaded("tests/hf/stored.lua", words, w);
    StepValues block = fold_block(x->plan, 0);
    Feed feed = fold_feed(x->plan, 0);

    exec_exact(x, PGstep, &block, &feed);
    return x;
}

/* The power of two by which numbers of a block become larger: as much as keeps
 * its largest at most 448. Of zeros the scale is 1, whatever was stored. */
static double shift(const StoredBlock *b)
{
    uint8_t most = (uint8_t)b->most;

    return b->most ? exp2(floor(log2(448 / st_get(FTF8_E4M3, &most, 0))))
                   : b->scale;
}

static void stored(const char *words)
{
    static StoredMatrix w;
    double products = 0, numbers = 0, scaled = 0;

    fill(&w, powers);
    Exec *x = stepped(words, &w);
    const double *y = gradient(x, "c"), *q = gradient(x, "q"),
                 *s = gradient(x, "s");
    for (int f = 0; f < W; f++)
        for (int h = 0; h < H; h++) {
            double k = shift(&powers[f / BLOCK][h / BLOCK]);
            double of = (double)number(&w, f, h);
            products += y[h * W + f] != of * (double)scale(&w, f, h);
            numbers += q[h * W + f] != of * k;
            scaled += s[h / BLOCK * FB + f / BLOCK] * k != scale(&w, f, h);
        }
    check(!products, strf(forever, "%s: products of other values", words),
          products);
    check(!numbers, strf(forever, "%s: other numbers", words), numbers);
    check(!scaled, strf(forever, "%s: other scales", words), scaled);
    exec_close(x);
}

/* What lives of a matrix that is kept as numbers and scales alone, made of a
 * file's: of a rank, and of ranks whose shards of the master cut its blocks. */
static void kept(const char *words)
{
    static StoredMatrix w;
    double numbers = 0, scaled = 0;
    int64_t n;

    fill(&w, powers);
    Exec *x = loaded(
        "tests/hf/stored_numbers.lua",
        strf(forever,
             "%s precision=fp8 precision.place=all precision.primary=all",
             words),
        &w);
    const double *q = fold_read(x, "w", &n), *s = fold_read(x, "scales.w", &n);
    for (int f = 0; f < W; f++)
        for (int h = 0; h < H; h++) {
            double k = shift(&powers[f / BLOCK][h / BLOCK]);
            numbers += q[h * W + f] != (double)number(&w, f, h) * k;
            scaled += s[h / BLOCK * FB + f / BLOCK] * k != scale(&w, f, h);
        }
    check(!numbers, strf(forever, "kept, %s: other numbers", words), numbers);
    check(!scaled, strf(forever, "kept, %s: other scales", words), scaled);
    exec_close(x);
}

/* The largest error of a product's value over the value, of those that a last
 * place of normal numbers says: half of it, and bf16's. */
static void rounded_anew(void)
{
    static StoredMatrix w;
    double most = 0;

    fill(&w, others);
    Exec *x = stepped("precision=fp8 precision.place=all", &w);
    const double *y = gradient(x, "c"), *s = gradient(x, "s");
    for (int f = 0; f < W; f++)
        for (int h = 0; h < H; h++) {
            double v = (double)(number(&w, f, h) * scale(&w, f, h));
            double least = 0x1p-6 * s[h / BLOCK * FB + f / BLOCK];
            if (fabs(v) >= least)
                most = fmax(most, fabs(y[h * W + f] / v - 1));
        }
    check(most > 0 && most <= 0x1p-4 + 0x1p-8,
          "scales that are no powers of two: values differ by at most", most);
    exec_close(x);
}

int main(void)
{
    stored("precision=fp8 precision.place=all");
    stored("precision=fp32");
    stored("precision=fp8 precision.place=all fold.tp=2 world=2");
    kept("fold.zero=0");
    kept("fold.dp=2 world=2 train.batch=4");
    kept("fold.dp=4 fold.zero=3 world=4 train.batch=4");
    rounded_anew();
    return failed != 0;
}
