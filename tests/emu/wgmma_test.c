/* wgmma_test: products of a warpgroup on random numbers against plain loops, in
 * every layout that a descriptor can say: swizzles, contiguous along k or along
 * rows, distances that are not the tight ones, a in shared memory or in
 * registers, signs, fresh or added sums, types.
 *
 * Where element (row, k) lies is written down here as the PTX ISA's canonical
 * layouts are, as strides of a nest of sizes; the emulation decodes it another
 * way. All numbers are small multiples of 1/4: sums are exact. */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/graph/graph.h"

enum { ROWS = 64, MOSTN = 256, IMAGE = 64 << 10, AREA = 2 * IMAGE };

typedef struct Kind {
    const char *name;
    int bytes, K;
} Kind;

static const Kind kinds[] = {
    { "bf16", 2, 16 }, { "f16", 2, 16 }, { "e4m3", 1, 32 }, { "e5m2", 1, 32 }
};
enum { NKIND = sizeof kinds / sizeof *kinds };

typedef struct Shape {
    int kind, n, regs, turna, turnb; /* a in registers; contiguous along rows */
} Shape;

/* ---- texts --------------------------------------------------------------- */

static void put_operands(Text *t, const Shape *s, int *next)
{
    put(t, "{");
    for (; *next < s->n / 2; ++*next)
        put(t, "%s%%%d", *next ? "," : "", *next);
    if (s->regs)
        put(t, "}, {%%%d,%%%d,%%%d,%%%d}, ", *next, *next + 1, *next + 2,
            *next + 3);
    else
        put(t, "}, %%%d, ", *next);
    *next += s->regs ? 4 : 1;
}

/* a kernel: `image` to shared memory, one product of its descriptors. */
static void put_kernel(Text *t, const Shape *s, int i)
{
    const Kind *k = &kinds[s->kind];
    int at = 0;

    put(t,
        "extern \"C\" __global__ void __launch_bounds__(128)\n"
        "k%d(const uint4 *image, const uint32_t *areg, float *d,\n"
        "    uint64_t a, uint64_t b, int sign)\n{\n"
        "    extern __shared__ uint8_t room[];\n"
        "    const uint32_t base = (__cvta_generic_to_shared(room) + 1023) & "
        "~1023;\n"
        "    for (int c = threadIdx.x; c < %d / 16; c += 128)\n"
        "        asm volatile(\"st.shared.v4.u32 [%%0], {%%1,%%2,%%3,%%4};\"\n"
        "            :: \"r\"(base + 16 * c), \"r\"(image[c].x), "
        "\"r\"(image[c].y), \"r\"(image[c].z), \"r\"(image[c].w));\n"
        "    asm volatile(\"fence.proxy.async;\");\n"
        "    __syncthreads();\n"
        "    float x[%d];\n    uint32_t p[4];\n"
        "    for (int c = 0; c < %d; c++)\n"
        "        x[c] = d[threadIdx.x * %d + c];\n"
        "    for (int c = 0; c < 4; c++)\n"
        "        p[c] = areg[threadIdx.x * 4 + c];\n"
        "    a += base >> 4, b += base >> 4;\n"
        "    asm volatile(\"wgmma.fence.sync.aligned;\");\n",
        i, AREA, s->n / 2, s->n / 2, s->n / 2);
    for (int sign = 0; sign < 2; sign++) {
        at = 0;
        put(t,
            "    if (sign == %d)\n        asm volatile(\"{ .reg .pred q; "
            "setp.ne.s32 q, %d, 0; wgmma.mma_async.sync.aligned."
            "m64n%dk%d.f32.%s.%s ",
            sign, !sign, s->n, k->K, k->name, k->name);
        put_operands(t, s, &at);
        put(t, "%%%d, q, %s, 1", at, sign ? "-1" : "1");
        if (k->bytes == 2 && !s->regs)
            put(t, ", %d", s->turna);
        if (k->bytes == 2)
            put(t, ", %d", s->turnb);
        put(t, "; }\"\n            : ");
        for (int c = 0; c < s->n / 2; c++)
            put(t, "%s\"+f\"(x[%d])", c ? ", " : "", c);
        put(t, s->regs
                   ? " : \"r\"(p[0]), \"r\"(p[1]), \"r\"(p[2]), \"r\"(p[3]), "
                     "\"l\"(b));\n"
                   : " : \"l\"(a), \"l\"(b));\n");
    }
    put(t,
        "    asm volatile(\"wgmma.commit_group.sync.aligned;\");\n"
        "    const int early = x[0] == x[0];\n"
        "    asm volatile(\"wgmma.wait_group.sync.aligned 0;\");\n"
        "    for (int c = 0; c < %d; c++)\n"
        "        d[threadIdx.x * %d + c] = early ? 1e9f : x[c];\n}\n",
        s->n / 2, s->n / 2);
}

/* ---- numbers ------------------------------------------------------------- */

static uint64_t seed = 88172645463325252u;

static int chance(int n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int)(seed >> 33) % n;
}

/* A number of few bits and its code. */
static float value(int kind, uint32_t *code)
{
    static const struct {
        float x;
        uint32_t bf16, f16, e4m3, e5m2;
    } some[] = {
        { 0, 0, 0, 0, 0 },
        { 1, 0x3f80, 0x3c00, 0x38, 0x3c },
        { -1.5f, 0xbfc0, 0xbe00, 0xbc, 0xbe },
        { 2, 0x4000, 0x4000, 0x40, 0x40 },
        { -0.25f, 0xbe80, 0xb400, 0xa8, 0xb4 },
        { 3, 0x4040, 0x4200, 0x44, 0x42 },
        { 0.5f, 0x3f00, 0x3800, 0x30, 0x38 },
    };
    int i = chance((int)(sizeof some / sizeof *some));
    const uint32_t c[] = { some[i].bf16, some[i].f16, some[i].e4m3,
                           some[i].e5m2 };

    *code = c[kind];
    return some[i].x;
}

/* ---- layouts ------------------------------------------------------------- */

typedef struct Layout {
    int swizzle; /* of the descriptor: 0 none, 1 128, 2 64, 3 32 bytes */
    int leading, stride; /* bytes */
    int start, base;     /* in the image; the pattern's place */
} Layout;

/* In units of T = 16 bytes, as in the ISA's tables; W: T of a swizzled row.
 *
 *     along k     none      ((8, m), (T, 2)): ((1T, SBO), (1, LBO))
 *                 swizzled  ((8, m), (T, 2)): ((W T, SBO), (1, T))
 *     along rows  none      ((T, 1, m), (8, k)): ((1, T, SBO), (1T, LBO))
 *                 swizzled  ((T, W, m), (8, k)): ((1, T, LBO), (W T, SBO))
 */
static int place(const Layout *l, int turned, int bytes, int row, int k)
{
    static const int wide[4] = { 1, 8, 4, 2 };
    int T = 16 / bytes, W = wide[l->swizzle], at;

    if (!turned && !l->swizzle)
        at = row % 8 * 16 + row / 8 * l->stride + k % T * bytes +
             k / T * l->leading;
    else if (!turned)
        at =
            row % 8 * W * 16 + row / 8 * l->stride + k % T * bytes + k / T * 16;
    else if (!l->swizzle)
        at = row % T * bytes + row / T * l->stride + k % 8 * 16 +
             k / 8 * l->leading;
    else
        at = row % T * bytes + row / T % W * 16 + row / T / W * l->leading +
             k % 8 * W * 16 + k / 8 * l->stride;
    at += l->start;
    int line = at / 128 - l->base;
    return at ^ (line & (W - 1)) << 4;
}

/* Distances that leave room, or are tight, for n rows. */
static Layout some_layout(int swizzle, int turned, int n, int loose, int start)
{
    static const int wide[4] = { 1, 8, 4, 2 };
    int W = wide[swizzle];
    Layout l = { .swizzle = swizzle, .start = start };

    if (!turned) {
        l.stride = swizzle ? W * 128 : 256;
        l.leading = swizzle ? 16 : 128;
    } else if (swizzle) {
        l.stride = W * 128;      /* eights of k */
        l.leading = 2 * W * 128; /* blocks of W T rows */
    } else {
        l.leading = 128;
        l.stride = 256;
    }
    if (loose) {
        l.stride *= 2;
        l.leading *= turned && swizzle ? 2 : 1;
        if (!turned && !swizzle)
            l.leading = n * 64;
    }
    return l;
}

static uint64_t descriptor(const Layout *l)
{
    return (uint64_t)(l->start >> 4) | (uint64_t)(l->leading >> 4) << 16 |
           (uint64_t)(l->stride >> 4) << 32 | (uint64_t)l->base << 49 |
           (uint64_t)l->swizzle << 62;
}

/* ---- a case -------------------------------------------------------------- */

static _Alignas(16) uint8_t image[AREA];
static float A[ROWS][32], B[MOSTN][32];
static uint32_t acode[ROWS][32];

/* Fails when two elements lie at one place or outside. */
static int fill(const Layout *l, int turned, int kind, int n, float (*x)[32],
                int is_a)
{
    static uint8_t used[AREA];
    int bytes = kinds[kind].bytes;

    memset(used, 0, sizeof used);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < kinds[kind].K; k++) {
            uint32_t code;
            x[r][k] = value(kind, &code);
            int at = place(l, turned, bytes, r, k);
            if (at < l->start || at + bytes > l->start + IMAGE || used[at]++)
                return 0;
            memcpy(image + at, &code, (size_t)bytes);
            if (is_a)
                acode[r][k] = code;
        }
    return 1;
}

/* Register q of a thread: PTX ISA, the fragment of A. */
static void fill_registers(int kind, uint32_t (*reg)[4])
{
    int bytes = kinds[kind].bytes, each = 4 / bytes;

    for (int t = 0; t < 128; t++)
        for (int q = 0; q < 4; q++) {
            int row = t / 32 * 16 + t % 32 / 4 + (q == 1 || q == 3 ? 8 : 0);
            int k = t % 4 * each + (q >= 2 ? 4 * each : 0);
            reg[t][q] = 0;
            for (int i = 0; i < each; i++)
                reg[t][q] |= acode[row][k + i] << i * 8 * bytes;
        }
}

static float product(const Shape *s, int row, int col)
{
    float sum = 0;

    for (int k = 0; k < kinds[s->kind].K; k++)
        sum += A[row][k] * B[col][k];
    return sum;
}

/* d[thread][i] is at row .., column ..: the ISA's figure of D. */
static int compare(const Shape *s, const float *d, int sign)
{
    int bad = 0;

    for (int t = 0; t < 128; t++)
        for (int i = 0; i < s->n / 2; i++) {
            int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
            int col = i / 4 * 8 + t % 4 * 2 + i % 2;
            float want = sign ? -product(s, row, col)
                              : product(s, row, col) + (float)(t - i);
            bad += d[t * s->n / 2 + i] != want;
        }
    return bad;
}

static int run(EmuKernel *k, const Shape *s, const Layout *a, const Layout *b,
               int sign)
{
    static float d[128 * MOSTN / 2];
    static uint32_t reg[128][4];
    const unsigned one[3] = { 1, 1, 1 }, threads[3] = { 128, 1, 1 };
    void *pi = image, *pr = reg, *pd = d;
    uint64_t da = descriptor(a), db = descriptor(b);
    void *param[] = { &pi, &pr, &pd, &da, &db, &sign };

    memset(image, 0xff, sizeof image);
    if (!fill(a, s->turna, s->kind, ROWS, A, 1) ||
        !fill(b, s->turnb, s->kind, s->n, B, 0))
        return -1;
    fill_registers(s->kind, reg);
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < s->n / 2; i++)
            d[t * s->n / 2 + i] = (float)(t - i);
    int error = emu_launch(k, one, threads, AREA + 1024, param);
    return error ? error : compare(s, d, sign);
}

static int judge(EmuKernel *k, const Shape *s)
{
    int bad = 0, runs = 0;

    for (int sa = 0; sa < (s->regs ? 1 : 4); sa++)
        for (int sb = 0; sb < 4; sb++)
            for (int how = 0; how < 4; how++) {
                Layout a = some_layout(sa, s->turna, ROWS, how & 1, 0);
                Layout b = some_layout(sb, s->turnb, s->n, how >> 1, IMAGE);
                if (how == 3 && sb == 1 && !s->turnb)
                    b.start += 512, b.base = 4; /* a pattern that begins late */
                emu_order((unsigned)how);
                bad += run(k, s, &a, &b, how & 1) != 0;
                runs++;
            }
    printf("%s - wgmma %s n%d%s%s%s: %d layouts, %d differ\n",
           bad ? "not ok" : "ok", kinds[s->kind].name, s->n,
           s->regs ? ", a in registers" : "", s->turna ? ", a along rows" : "",
           s->turnb ? ", b along rows" : "", runs, bad);
    return bad;
}

int main(void)
{
    static const int sizes[] = { 8, 64, 256 };
    static const struct {
        int regs, turna, turnb;
    } how[] = { { 0, 0, 0 }, { 1, 0, 0 }, { 0, 0, 1 },
                { 1, 0, 1 }, { 0, 1, 0 }, { 0, 1, 1 } };
    Shape shape[64];
    Text t = { .arena = arena_new() };
    char *log, name[16];
    void *bytes;
    size_t size;
    int n = 0, bad = 0;

    for (int k = 0; k < NKIND; k++)
        for (int i = 0; i < (k ? 1 : 3); i++)
            for (int h = 0; h < (kinds[k].bytes == 2 ? 6 : 2); h++)
                shape[n++] = (Shape){ k, k ? 24 : sizes[i], how[h].regs,
                                      how[h].turna, how[h].turnb };
    put(&t, "typedef unsigned char uint8_t;\ntypedef unsigned uint32_t;\n"
            "typedef unsigned long long uint64_t;\n");
    for (int i = 0; i < n; i++)
        put_kernel(&t, &shape[i], i);
    if (emu_compile(t.s, NULL, 0, &log, &bytes, &size))
        return printf("not ok - wgmma: %s\n", log), 1;
    EmuModule *m = emu_load(bytes, size);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "k%d", i);
        bad |= judge(emu_kernel(m, name), &shape[i]);
    }
    emu_unload(m);
    return bad != 0;
}
