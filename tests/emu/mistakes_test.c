/* mistakes_test: deliberate mistakes in kernels' texts, each of which some
 * order of the emulation must find: by wrong numbers, poison, an error. */
#include "attention.h"
#include "emu.h"
#include "emurun.h"
#include "grouped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDERS = 6 };

/* ---- right kernels ------------------------------------------------------- */

/* clang-format off */
#define UNEVEN 4, { 70, 0, 1, 129 }
#define EXPERTS 0, 0, UNEVEN
static const Product products[] = {
    /*            weight K    N   tw f32 tile            add sq terms more .. update rounds */
    { "rows",        0, 328, 200, 1, 0, { 128, 192, 1 }, 0, 0, 1, 0, EXPERTS, 0, 0 },
    { "two a tile",  0, 200, 264, 0, 0, { 128, 256, 0 }, 0, 0, 2, 0, EXPERTS, 0, 0 },
    { "weights",     1, 136, 200, 0, 1, { 128, 192, 1 }, 1, 1, 1, 0, EXPERTS, 0, 0 },
    { "rounded",     1, 272, 144, 0, 1, { 128, 128, 0 }, 0, 1, 1, 0, 1, 0, UNEVEN, 4, 1 },
};
/* batch kv group seq key dim rot vdim */
static const Form forms[] = {
    { "causal d128", { 1, 1, 2, 330, 330, 128, 1, 128 }, attn_causal, 0.5 },
    { "odd d40",    { 1, 2, 1, 129, 77, 40, 1, 36 }, attn_plain, 0.5 },
};
/* clang-format on */
enum { NPRODUCT = sizeof products / sizeof *products };
enum { NFORM = sizeof forms / sizeof *forms };
enum { ROWS, TWO, WEIGHTS, ROUNDED, CAUSAL, ODD }; /* what a mistake is in */

/* ---- mistakes ------------------------------------------------------------ */

typedef struct Mistake {
    const char *what;
    int in;
    const char *from, *to;
} Mistake;

/* clang-format off */
static const Mistake mistakes[] = {
    /* none, which is not to be found */
    { "none in rows", ROWS, "", "" },
    { "none in two a tile", TWO, "", "" },
    { "none in weights", WEIGHTS, "", "" },
    { "none in weights rounded", ROUNDED, "", "" },
    { "none in attention", CAUSAL, "", "" },
    { "none in odd attention", ODD, "", "" },
    /* those that issue 11 names */
    { "expert rows shifted by one", ROWS, ": CAP - rows;", ": CAP - rows + 1;" },
    { "half the warps' squares", WEIGHTS, "% (4 * TEAM)] = sum;", "% (4 * TEAM)] = TID & 32 ? 0 : sum;" },
    { "a ring barrier's phase", ROWS, "bar_wait(full + 8 * r.at, r.parity);\n        if", "bar_wait(full + 8 * r.at, r.parity ^ 1);\n        if" },
    { "a descriptor's stride", ROWS, "(1024 >> 4) << 32", "(512 >> 4) << 32" },
    { "a skipped tile of attention", CAUSAL, "now++;\n", "now += now == 1 ? 2 : 1;\n" },
    /* waits of updates */
    { "a tile's sums updated before they are there", ROUNDED, "bar_wait(full, turn & 1);", ";" },
    { "a tile's sums given before the last are taken", ROUNDED, "bar_wait(empty, (turn & 1) ^ 1);", ";" },
    { "the largest of a block before all warps have theirs", ROUNDED, "warp[TID >> 5] = most;\n    warpgroup_sync(TID >> 7);", "warp[TID >> 5] = most;" },
    /* waits and fences of products */
    { "slices not waited for", ROWS, "bar_wait(full + 8 * r.at, r.parity);\n        if", "if" },
    { "a place filled before it is given back", ROWS, "bar_wait(empty + 8 * r.at, r.parity ^ 1);\n            bar_expect", "bar_expect" },
    { "a place given back too soon", ROWS, "wg_wait<1>();\n        }", "}" },
    { "sums used before they are there", ROWS, "wg_wait<0>();\n    if (before", "wg_wait<1>();\n    if (before" },
    { "no wgmma.fence", ROWS, "    wg_fence();\n", "" },
    { "no commit", ROWS, "    wg_commit();\n}", "}" },
    { "no proxy fence before a store", ROWS, "asm volatile(\"fence.proxy.async.shared::cta;\\n\" ::: \"memory\");", "" },
    { "a map that is not acquired", ROWS, "acquire_map(maps + 128 * i);", ";" },
    { "a box written before it is read", ROWS, "                stores_read<STORE_BUFFERS - 1>();\n", "                ;\n" },
    { "no wait for the last stores", ROWS, "    stores_done();\n", "" },
    { "too few bytes expected", ROWS, "bar_expect(full + 8 * r.at, SLICE)", "bar_expect(full + 8 * r.at, SLICE - 128)" },
    { "too many bytes expected", ROWS, "bar_expect(full + 8 * r.at, SLICE)", "bar_expect(full + 8 * r.at, SLICE + 128)" },
    { "a barrier of too many", ROWS, "TEAM * 4", "TEAM * 8" },
    { "a barrier of too few", TWO, "TEAM * 4", "TEAM * 2" },
    { "turns not taken", WEIGHTS, "take_turn(wg);", ";" },
    { "warps that do not meet before the store", ROWS, "            warpgroup_sync(wg);\n            if (leads)\n                store_box", "            if (leads)\n                store_box" },
    { "the block does not meet", ROWS, "    __syncthreads();\n    for (int i = TID", "    for (int i = TID" },
    /* operands of products */
    { "sums not begun with 0", TWO, "acc[i][j] = 0;", ";" },
    { "an operand not transposed", TWO, "TRANSA, TRANSB>", "TRANSA, !TRANSB>" },
    { "an operand negated", TWO, "IN \", p, 1, 1, \"", "IN \", p, -1, 1, \"" },
    { "blocks at another distance", TWO, "(block >> 4) << 16", "(block >> 5) << 16" },
    { "another swizzle", TWO, "(uint64_t)1 << 62", "(uint64_t)2 << 62" },
    { "rows of the next expert", TWO, "CAP, CAP + 1, c, c,", "CAP + 1, CAP + 1, c, c," },
    { "a row pair exchanged", TWO, "put_pair(at + 1024, acc[4 * j + 2], acc[4 * j + 3]", "put_pair(at + 1024, acc[4 * j + 3], acc[4 * j + 2]" },
    { "halves of a pair exchanged", TWO, "two_bf16(x, y))", "two_bf16(y, x))" },
    { "what was there is not waited for", WEIGHTS, "if (s % BOXES_PER_STAGE == 0)", "if (s < 0)" },
    { "a place copied to before it is loaded from", WEIGHTS, "            loads_done();\n", "            __syncwarp();\n" },
    { "a box of what was there", WEIGHTS, "t.n + s % (BN / BOX_COLUMNS) * BOX_COLUMNS, t.m + m,", "t.n + s % (BN / BOX_COLUMNS) * BOX_COLUMNS, t.m + m + 1," },
    { "the first term twice", TWO, "maps += second * (SECOND - LEFT);", "" },
    { "a second term whose map is not acquired", TWO, "TERMS > 1 && TID >= 256 ? 5 : 3", "3" },
    { "a tile of 128 rows as if of 64", ROWS, "rows <= 64", "rows <= 128" },
    /* attention */
    { "a ring barrier's phase in attention", CAUSAL, "bar_wait(ring_full(0, stage), phase);", "bar_wait(ring_full(0, stage), phase ^ 1);" },
    { "columns not waited for", CAUSAL, "bar_wait(ring_full(0, stage), phase);", "" },
    { "values not waited for", CAUSAL, "bar_wait(ring_full(1, last), late);", "" },
    { "no proxy fence in attention", CAUSAL, "async_fence();", "" },
    { "scores used before they are there", CAUSAL, "wg_wait<1>();", "" },
    { "a place given back by half the warps", CAUSAL, "TID & 1 ? 8 : 128", "TID & 1 ? 4 : 128" },
    { "sums not scaled", CAUSAL, "rescale(o2, scale);", "" },
    { "an arrival that counts for itself", CAUSAL, "arrive.noinc.", "arrive." },
    { "blocks of a cluster that do not meet", CAUSAL, "        cluster_meet();\n        if (share == 0)", "        if (share == 0)" },
    { "another block's sums", CAUSAL, "mapa.shared::cluster.u32 a, %0, 0;", "mapa.shared::cluster.u32 a, %0, 1;" },
    { "rows swizzled otherwise", CAUSAL, "(c ^ (r & 7)) << 4", "(c ^ (r & 3)) << 4" },
    { "rows in registers swizzled otherwise", CAUSAL, "(q >> 1)) ^ (r & 7)) << 4)", "(q >> 1)) ^ (r & 3)) << 4)" },
    { "fewer gradients of scores expected", CAUSAL, "[%0], 32768;", "[%0], 16384;" },
    { "another column's logsumexp", CAUSAL, "i & 1 ? four.w : four.z", "i & 1 ? four.z : four.w" },
    { "rows beyond the last", ODD, "row0 + r + 16 * i < rows", "row0 + r + 16 * i <= rows" },
    { "columns beyond the last", ODD, "x[k] = in && k < left ? from[k * sc] : 0;", "x[k] = in && k <= left ? from[k * sc] : 0;" },
};
/* clang-format on */
enum { NMISTAKE = sizeof mistakes / sizeof *mistakes };

/* Every place of `from`; null: there is none. */
static char *edited(const char *text, const char *from, const char *to)
{
    Text t = { .arena = forever };
    int n = 0;

    for (const char *at; (at = strstr(text, from)); n++) {
        putn(&t, text, (size_t)(at - text));
        put(&t, "%s", to);
        text = at + strlen(from);
    }
    put(&t, "%s", text);
    return n ? t.s : NULL;
}

/* The kernel with the mistake, by a name of its own. */
static int mistaken(Group *k, const Mistake *m, int i)
{
    const char *name = strf(forever, "m%d_%s", i, k->instr.kernel);
    const char *text = *m->from ? edited(k->text, m->from, m->to) : k->text;

    if (!text)
        return 0;
    k->text = edited(text, k->instr.kernel, name);
    k->instr.kernel = intern(name);
    return 1;
}

/* ---- the test ------------------------------------------------------------ */

typedef struct Case {
    int in;
    Group *product;
    Attention attn;
} Case;

static double worst_of(Case *c, unsigned order)
{
    uint64_t bits;

    emu_order(order);
    return c->in < NPRODUCT ? product_error(&products[c->in], c->product, &bits)
                            : attention_error(&c->attn, &bits);
}

/* The order that finds it; -1: none does. */
static int found_by(Case *c)
{
    for (unsigned order = 0; order < ORDERS; order++)
        if (!(worst_of(c, order) <= 1))
            return (int)order;
    return -1;
}

static Attention right[NFORM];

static int make(Case *c, int i, Group ***all)
{
    const Mistake *m = &mistakes[i];
    int n = 0;

    *c = (Case){ .in = m->in };
    if (c->in < NPRODUCT) {
        c->product = product_group(forever, &products[c->in]);
        n = mistaken(c->product, m, i);
        vec_push(forever, *all, c->product);
        return n;
    }
    attention_make(&c->attn, &forms[c->in - NPRODUCT], Dbf16);
    attention_share(&c->attn, &right[c->in - NPRODUCT]);
    Group *k[] = { &c->attn.r.fwd, &c->attn.r.bwd };
    for (int b = 0; b < 2; b++) {
        n += mistaken(k[b], m, i);
        vec_push(forever, *all, k[b]);
    }
    return n;
}

static int judge(Case *c, const Mistake *m)
{
    int order = found_by(c), none = !*m->from;
    int wrong = none ? order >= 0 : order < 0;

    printf("%s - mistakes: %s: ", wrong ? "not ok" : "ok", m->what);
    if (order < 0)
        printf("not found\n");
    else
        printf("found by order %d\n", order);
    fflush(stdout);
    return wrong;
}

static Case cases[NMISTAKE];

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    Group **all = NULL;
    int bad = 0;

    setenv("PLEAT_OPT", "0", 1); /* compilers take most of the time */
    for (int i = 0; i < NFORM; i++)
        attention_make(&right[i], &forms[i], Dbf16);
    if (!attention_prepare(right, NFORM))
        return printf("not ok - mistakes: host kernels\n"), 1;
    for (int i = 0; i < NMISTAKE; i++)
        if (strstr(mistakes[i].what, word) && !make(&cases[i], i, &all)) {
            printf("not ok - mistakes: %s: no such text\n", mistakes[i].what);
            bad = 1;
        }
    if (!emurun_compile(forever, all, (int)vec_len(all)))
        return printf("not ok - mistakes: texts do not compile\n"), 1;
    for (int i = 0; i < NMISTAKE; i++)
        if (strstr(mistakes[i].what, word))
            bad |= judge(&cases[i], &mistakes[i]);
    emurun_close();
    return bad;
}
