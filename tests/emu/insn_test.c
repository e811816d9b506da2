/* insn_test: instructions of the emulation one by one (insn.cu), in several
 * orders, against C; copies of boxes against loops; mistakes that a launch must
 * end with, and texts that must not compile. */
#include "emu.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FN __attribute__((unused)) static inline
#include "../../ir/base/narrow.pre"

extern const char insn_cu[];

enum { MOST = 4096, ORDERS = 5 };

static uint32_t in[MOST], out[MOST];
static EmuModule *module;

/* ---- what should come ---------------------------------------------------- */

typedef uint32_t Want(int thread, int i);

static uint32_t bits(float x)
{
    uint32_t b;

    memcpy(&b, &x, sizeof b);
    return b;
}

static uint32_t rounded(float x) /* to bf16 */
{
    uint32_t b = bits(x);

    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

/* e4m3 of lo and hi, then e5m2 of them. */
static uint32_t narrow(float hi, float lo)
{
    return (uint32_t)e4m3_code(lo) | (uint32_t)e4m3_code(hi) << 8 |
           (uint32_t)e5m2_code(lo) << 16 | (uint32_t)e5m2_code(hi) << 24;
}

static uint32_t compute(int t, int i)
{
    uint32_t a = (uint32_t)t * 2654435761u, b = (uint32_t)t % 37;
    int32_t s = (int32_t)a;
    float x = (float)t - 11.5f, y = x * 0.25f;
    uint32_t r[19] = {
        a + b,
        a - b,
        a * b,
        (uint32_t)((uint64_t)a * b >> 32),
        (uint32_t)((uint64_t)((int64_t)s * (int32_t)b) >> 32),
        b > 31 ? (s < 0 ? ~0u : 0) : (uint32_t)(s >> b),
        b > 31 ? 0 : a << b,
        s < (int32_t)b ? a : b,
        a < 0x40000000 ? 1 : 2,
        rounded(x) << 16 | rounded(y),
        bits(exp2f(y)),
        bits(fmaf(x, y, x)),
        a ^ b,
        (uint32_t)(int32_t)y,
        s < (int32_t)b ? a : b,
        (uint32_t)t % 32,
        bits(x < 1 ? x : 1),
        y < 0,
        narrow(x * x * 5, y),
    };

    return r[i];
}

static uint32_t exchange(int t, int i)
{
    int l = t % 32, w = t - l;
    uint32_t yes = 0, most = 0, least = ~0u;

    for (int k = 0; k < 32; k++) {
        uint32_t x = (uint32_t)(w + k) * 3;
        yes |= (uint32_t)(x % 5 == 0) << k;
        most = k / 16 == l / 16 && (x ^ 5) > most ? x ^ 5 : most;
        least = 7 - x < least ? 7 - x : least;
    }
    uint32_t r[10] = {
        (uint32_t)(w + 5) * 3,
        (uint32_t)(w + (l ^ 3)) * 3,
        (uint32_t)(w + (l < 4 ? l : l - 4)) * 3,
        (uint32_t)(w + (l > 24 ? l : l + 7)) * 3,
        (uint32_t)(w + (l ^ 8)) * 3,
        yes,
        (uint32_t)(w + (l ^ 1)) * 9,
        (uint32_t)(t / 16 == 1) + 2 * (uint32_t)(t / 16 == 0),
        most,
        least,
    };

    return r[i];
}

static uint32_t some_end(int t, int i)
{
    (void)i;
    return t < 20 ? (uint32_t)(t ^ 1) + (t == 0) + 100 : 0;
}

static uint32_t hand_over(int t, int i)
{
    (void)i;
    return (uint32_t)(31 - t % 32 + t / 32);
}

static uint32_t same(int t, int i)
{
    (void)i;
    return (uint32_t)t;
}

static uint32_t neighbours(int t, int i)
{
    (void)i;
    return (uint32_t)((t + 96) % 128);
}

static uint32_t access_(int t, int i)
{
    uint32_t u = (uint32_t)t,
             r[6] = { u * 70000, ~u, u * 70000 >> 16, ~u, u, u };

    return r[i];
}

static uint32_t atomics(int t, int i)
{
    uint32_t r[5] = { 0 };

    (void)t;
    for (uint32_t k = 0; k < 64; k++) {
        uint32_t x = k * 7 % 101;
        int more = (int)x - 50 > (int32_t)r[1];
        r[0] += x;
        r[1] = more ? x - 50 : r[1];
        r[2]++;
        r[3] |= 1u << x % 32;
        r[4] = r[4] * 3 + !r[4];
    }
    return r[i];
}

/* Bit p: the phase of parity p is complete, or not begun. */
static uint32_t phases(int t, int i)
{
    static const uint32_t r[] = { 2, 2, 1, 1, 2, 2, 1, 1, 2 };

    (void)t;
    return r[i];
}

static uint32_t ring(int t, int i)
{
    (void)i;
    return (uint32_t)((31 - t % 32) * 10 + t / 32);
}

static uint32_t pieces(int t, int i)
{
    static const uint32_t r[] = { 0, 1, 2, 3, 4, 5, 0, 0, 9 };

    (void)t;
    return r[i];
}

static uint32_t too_soon(int t, int i)
{
    return i < 8 ? ~0u : pieces(t, i);
}

static uint32_t reported(int t, int i)
{
    (void)i;
    return (uint32_t)(127 - t);
}

static uint32_t twice(int t, int i)
{
    (void)i;
    return 2 * (uint32_t)t;
}

/* ---- right --------------------------------------------------------------- */

/* threads x each numbers are compared; only: one order. */
static const struct {
    const char *kernel;
    int blocks, threads, count, each, only;
    Want *want;
} rows[] = {
    { "compute", 1, 64, 64, 19, -1, compute },
    { "exchange", 1, 64, 64, 10, -1, exchange },
    { "some_end", 1, 32, 32, 1, -1, some_end },
    { "hand_over", 1, 64, 128, 1, -1, hand_over },
    { "registers", 1, 384, 384, 1, -1, same },
    { "neighbours", 4, 32, 128, 1, -1, neighbours },
    { "access", 1, 32, 32, 6, -1, access_ },
    { "atomics", 2, 32, 1, 5, -1, atomics },
    { "phases", 1, 1, 1, 9, -1, phases },
    { "ring", 1, 64, 320, 1, -1, ring },
    { "pieces", 1, 1, 1, 9, -1, pieces },
    { "pieces_too_soon", 1, 1, 1, 9, 0, too_soon },
    { "pieces_too_soon", 1, 1, 1, 9, 1, pieces },
    { "reported", 1, 32, 32, 1, -1, reported },
    { "reported_inc", 1, 32, 32, 1, -1, reported },
    { "bulk", 1, 32, 64, 1, -1, twice },
};
enum { NROW = sizeof rows / sizeof *rows };

static int launch(const char *kernel, int blocks, int threads)
{
    EmuKernel *k = emu_kernel(module, kernel);
    const unsigned grid[3] = { (unsigned)blocks, 1, 1 };
    const unsigned block[3] = { (unsigned)threads, 1, 1 };
    void *po = out, *pi = in, *param[] = { &po, &pi };

    for (uint32_t i = 0; i < MOST; i++)
        in[i] = i;
    memset(out, 0, sizeof out);
    return k ? emu_launch(k, grid, block, 0, param) : -1;
}

static int right(int r)
{
    int bad = 0;

    for (int order = 0; order < ORDERS; order++) {
        if (rows[r].only >= 0 && rows[r].only != order)
            continue;
        emu_order((unsigned)order);
        if (launch(rows[r].kernel, rows[r].blocks, rows[r].threads))
            return printf("not ok - emu %s ends\n", rows[r].kernel), 1;
        for (int t = 0; t < rows[r].count; t++)
            for (int i = 0; i < rows[r].each; i++) {
                uint32_t w = rows[r].want(t, i), g = out[t * rows[r].each + i];
                if (w != g && bad++ < 9)
                    printf("# order %d thread %d number %d: %#x, not %#x\n",
                           order, t, i, g, w);
            }
    }
    printf("%s - emu %s\n", bad ? "not ok" : "ok", rows[r].kernel);
    return bad != 0;
}

/* ---- wrong --------------------------------------------------------------- */

enum { ILLEGAL = 700, TIMEOUT = 702, MISALIGNED = 716, FAILED = 719 };

static const struct {
    const char *kernel;
    int error;
} ends[] = {
    { "misaligned", MISALIGNED },  { "outside", ILLEGAL },
    { "nowhere", ILLEGAL },        { "waits_for_ever", TIMEOUT },
    { "half_meets", TIMEOUT },     { "too_many", FAILED },
    { "no_barrier", FAILED },      { "wrong_mask", FAILED },
    { "meets_elsewhere", FAILED }, { "ends_too_soon", FAILED },
    { "more_registers", TIMEOUT }, { "stops", FAILED },
};
enum { NEND = sizeof ends / sizeof *ends };

static int wrong(int r)
{
    int threads = strcmp(ends[r].kernel, "more_registers") ? 32 : 384;

    emu_order(0);
    int error = launch(ends[r].kernel, 1, threads);
    int bad = error != ends[r].error;
    printf("%s - emu %s ends with error %d\n", bad ? "not ok" : "ok",
           ends[r].kernel, error);
    return bad;
}

#define KERNEL(body) "extern \"C\" __global__ void k(int *p) { " body " }"
static const struct {
    const char *text, *says;
} refused[] = {
    { KERNEL("asm(\"frob.u32 %0;\" : \"=r\"(*p));"), "unknown instruction" },
    { KERNEL("asm(\"add.u32 %0, %0;\" : \"+r\"(*p));"), "number of operands" },
    { KERNEL("asm(\"add.u32 %0, %0, %1;\" : \"+r\"(*p));"), "not there" },
    { KERNEL("asm(\"add.frob.u32 %0, %0, 1;\" : \"+r\"(*p));"), "modifier" },
    { KERNEL("asm(\"add.u32 %0, q, 1;\" : \"+r\"(*p));"), "not declared" },
    { KERNEL("asm(\"cp.async.cg.shared.global [%0], [%0], 8;\" :: \"l\"(p));"),
      "16" },
    { KERNEL("asm(\"wgmma.mma_async.sync.aligned.m64n8k32.f32.bf16.bf16 "
             "{%0,%0,%0,%0}, 1, 1, 1, 1, 1, 0, 0;\" : \"+f\"(*(float *)p));"),
      "shape" },
    { KERNEL("asm(\"add.u64 %0, %0, 1;\" : \"+l\"(*p));"), "size" },
    { KERNEL("undeclared(p);"), "undeclared" },
};
enum { NREFUSED = sizeof refused / sizeof *refused };

static int refuses(int r)
{
    char *log = NULL;
    void *image = NULL;
    size_t size = 0;
    int bad = !emu_compile(refused[r].text, NULL, 0, &log, &image, &size) ||
              !log || !strstr(log, refused[r].says);

    printf("%s - emu refuses: %s\n", bad ? "not ok" : "ok", refused[r].says);
    if (bad)
        printf("# %s\n", log ? log : "compiled");
    free(log);
    free(image);
    return bad;
}

int main(void)
{
    char *log = NULL;
    void *image = NULL;
    size_t size = 0;
    int bad = 0;

    if (emu_compile(insn_cu, NULL, 0, &log, &image, &size))
        return printf("not ok - emu: %s\n", log), 1;
    module = emu_load(image, size);
    for (int r = 0; r < NROW; r++)
        bad |= right(r);
    for (int r = 0; r < NEND; r++)
        bad |= wrong(r);
    for (int r = 0; r < NREFUSED; r++)
        bad |= refuses(r);
    emu_unload(module);
    free(image);
    free(log);
    return bad;
}
