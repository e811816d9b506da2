/* tensor_test: boxes of tensors through shared memory (tensor.cu), of every
 * rank, element size and swizzle, at random places inside of a tensor and over
 * its borders, against loops over elements. */
#include "emu.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char tensor_cu[];

enum { MAXRANK = 5, AREA = 1 << 16, BOX = 1 << 14, ROUNDS = 40 };

/* As in tensor.cu. */
typedef struct Tensor {
    uint8_t *base;
    uint64_t stride[4];
    int rank, type, swizzle, dim[MAXRANK], box[MAXRANK], at[MAXRANK];
} Tensor;

/* Numbers of element types in a map, and their bytes. */
static const struct {
    int type, bytes;
} kinds[] = { { 0, 1 }, { 10, 2 }, { 7, 4 }, { 9, 8 } };

static _Alignas(128) uint8_t from[AREA], to[AREA], was[AREA], maps[256];
static uint8_t dump[BOX];
static uint64_t seed = 88172645463325252u;

static int chance(int n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- a random pair of tensors -------------------------------------------- */

static int box_bytes(const Tensor *t, int size)
{
    for (int d = 0; d < t->rank; d++)
        size *= t->box[d];
    return size;
}

/* Rows of whole 16 bytes, with a swizzle as wide as it. */
static void choose_box(Tensor *t, int size)
{
    static const int span[4] = { 256, 32, 64, 128 };
    int most = span[t->swizzle] / 16;

    do {
        t->box[0] = (t->swizzle ? most : 1 + chance(most)) * 16 / size;
        for (int d = 1; d < t->rank; d++)
            t->box[d] = 1 + chance(t->rank > 3 ? 4 : 12);
    } while (t->box[0] > 256 || box_bytes(t, size) > BOX);
}

/* Dimensions and places: often the box hangs over a border, or lies outside. */
static int choose_place(Tensor *t, int size, uint8_t *base)
{
    uint64_t stride;

    t->base = base;
    for (int d = 0; d < t->rank; d++) {
        t->dim[d] = 1 + chance(d ? 9 : 60);
        t->at[d] = chance(t->dim[d] + t->box[d]) - t->box[d] / 2;
    }
    stride = ((uint64_t)(t->dim[0] * size) + 15) / 16 * 16;
    stride += 16 * (uint64_t)chance(3);
    for (int d = 1; d < t->rank; d++) {
        t->stride[d - 1] = stride;
        stride *= (uint64_t)t->dim[d];
    }
    return stride <= AREA;
}

/* ---- what should come ---------------------------------------------------- */

/* Element i of the box, inner axis first; null: outside of the tensor. */
static uint8_t *element(const Tensor *t, int size, int i, uint8_t *base)
{
    uint8_t *p = base;

    for (int d = 0; d < t->rank; d++) {
        int c = t->at[d] + i % t->box[d];
        i /= t->box[d];
        if (c < 0 || c >= t->dim[d])
            return NULL;
        p += d ? (uint64_t)c * t->stride[d - 1] : (uint64_t)(c * size);
    }
    return p;
}

/* Where byte `at` of a box lies: 16-byte pieces change places within 128 bytes,
 * by the number of those. */
static int swizzled(const Tensor *t, int at)
{
    int line = at / 128, piece = at / 16 % 8;

    piece ^= t->swizzle == 3   ? line % 8
             : t->swizzle == 2 ? line % 4
             : t->swizzle == 1 ? line % 2
                               : 0;
    return line * 128 + piece * 16 + at % 16;
}

static int compare(const Tensor *a, const Tensor *b, int size, int add)
{
    static const uint8_t zero[8];
    int n = box_bytes(a, size) / size, bad = 0;

    for (int i = 0; i < n; i++) {
        const uint8_t *p = element(a, size, i, from);
        p = p ? p : zero;
        bad += memcmp(dump + swizzled(a, i * size), p, (size_t)size) != 0;
        uint8_t *q = element(b, size, i, was);
        float x, y;
        if (q && add) {
            memcpy(&x, p, 4);
            memcpy(&y, q, 4);
            x += y;
            memcpy(q, &x, 4);
        } else if (q) {
            memcpy(q, p, (size_t)size);
        }
    }
    return bad + (memcmp(to, was, AREA) != 0);
}

/* ---- the test ------------------------------------------------------------ */

static void fill(uint8_t *p, int add)
{
    for (int i = 0; i < AREA; i += 4) {
        float x = (float)chance(1 << 20);
        uint32_t v = (uint32_t)chance(1 << 30);
        memcpy(p + i, add ? (void *)&x : (void *)&v, 4);
    }
}

static int launch(EmuKernel *k, Tensor *a, Tensor *b, int bytes, int how)
{
    const unsigned one[3] = { 1, 1, 1 }, threads[3] = { 32, 1, 1 };
    void *pd = dump, *pm = maps;
    void *param[] = { &a, &b, &pd, &pm, &bytes, &how };

    return emu_launch(k, one, threads, BOX + 1024, param);
}

static int round_trip(EmuKernel *k, int rank, int kind, int swizzle)
{
    int size = kinds[kind].bytes, add = size == 4 && chance(2);
    Tensor a = { .rank = rank, .type = kinds[kind].type, .swizzle = swizzle };
    Tensor b;

    choose_box(&a, size);
    b = a;
    while (!choose_place(&a, size, from))
        ;
    while (!choose_place(&b, size, to))
        ;
    fill(from, add);
    fill(to, add);
    memcpy(was, to, AREA);
    emu_order((unsigned)chance(4));
    if (launch(k, &a, &b, box_bytes(&a, size), add))
        return 1;
    return compare(&a, &b, size, add) != 0;
}

static int judge(EmuKernel *k, int rank)
{
    int bad = 0, n = 0;

    for (int kind = 0; kind < 4; kind++)
        for (int swizzle = 0; swizzle < 4; swizzle++)
            for (int i = 0; i < ROUNDS; i++, n++)
                bad += round_trip(k, rank, kind, swizzle);
    printf("%s - tensor copies of rank %d: %d boxes, %d differ\n",
           bad ? "not ok" : "ok", rank, n, bad);
    return bad;
}

/* What a map must not be. */
static int refuses(EmuKernel *k)
{
    Tensor t = { .base = from,
                 .stride = { 128 },
                 .rank = 2,
                 .type = 10,
                 .swizzle = 3,
                 .dim = { 64, 8 },
                 .box = { 64, 4 } };
    Tensor wrong[4] = { t, t, t, t };
    int bad = launch(k, &t, &t, 512, 0) != 0;

    wrong[0].box[0] = 128;  /* wider than its swizzle */
    wrong[1].stride[0] = 8; /* not of 16 bytes */
    wrong[2].base = from + 8;
    wrong[3].box[1] = 0;
    for (int i = 0; i < 4; i++)
        bad += launch(k, &wrong[i], &t, 512, 0) == 0;
    bad += launch(k, &t, &t, 512, 2) == 0; /* a map not acquired */
    bad += launch(k, &t, &t, 496, 0) == 0; /* other bytes than expected */
    printf("%s - tensor copies refuse wrong maps: %d not\n",
           bad ? "not ok" : "ok", bad);
    return bad;
}

int main(void)
{
    char *log;
    void *image;
    size_t size;
    int bad = 0;

    if (emu_compile(tensor_cu, NULL, 0, &log, &image, &size))
        return printf("not ok - tensor: %s\n", log), 1;
    EmuModule *m = emu_load(image, size);
    EmuKernel *k = emu_kernel(m, "through");
    for (int rank = 1; rank <= MAXRANK; rank++)
        bad |= judge(k, rank);
    bad |= refuses(k);
    emu_unload(m);
    return bad != 0;
}
