/* grouped.c: grouped products on a GPU, and scaled ones of matrices, from the
 * instruction of the host: a kernel whose sizes are constants. wgmma.pre where
 * tensor cores take the operands, gmm.pre for all others. */
#include "products.h"

enum { GMMTILE = 64, GMMTHREADS = 256, WGTHREADS = 384 };

static int64_t ceil_of(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

static void put_define(Text *out, const char *name, int64_t v)
{
    put(out, "#define %s %lld\n", name, (long long)v);
}

/* ---- tensor cores -------------------------------------------------------- */

/* Shared memory of a block, of which a multiprocessor has one; what is left of
 * it beside slices: boxes on their way out, the start's alignment, barriers. */
enum {
    SHARED = 227 << 10,
    BOXES = 4 * 8192,
    BESIDE = BOXES + 1024 + 512,
    MAXSTAGES = 8,
    MAPS = 640,
    DEEP = 128,  /* bytes of k in a slice */
    WGWARPS = 8, /* that multiply; with an update each has eight rows in fp32 in
                    place of boxes */
    FEWROWS = 384,
    BANDROWS = 16 /* of tiles that run at a time, by as many bytes of columns */
};

/* Tensor cores take bf16 in rows of whole 16-byte pieces, and e4m3 whose k is
 * contiguous. */
static int has_tensor_cores(const GmmArgs *args, int weight)
{
    int piece = 16 / (int)dtypes[args->in].bytes;

    return (args->in == Dbf16 || (args->in == De4m3 && (weight || args->tw))) &&
           (args->out == Dbf16 || args->out == Df32) && args->k % piece == 0 &&
           args->n % (weight ? piece : 8) == 0 && args->ldw % piece == 0 &&
           args->experts <= 4096;
}

/* Elements of a rank of the dims of x that n has, or with `has` 0 lacks. */
static int64_t share_of(const Graph *g, const Node *x, const Node *n, int has)
{
    int64_t e = 1;

    for (int d = 0; d < x->nd; d++)
        if ((dim_of(n, x->dim[d].a) >= 0) == has)
            e *= local_n(g, x, d);
    return e;
}

/* Of a product of matrices of e4m3 with scales. */
static GmmArgs dense_args(const Graph *g, const Node *n)
{
    const Node *rows = n->in[0], *w = n->in[1];
    GmmArgs v = { .in = De4m3, .out = n->dt, .tw = 1, .experts = 1 };

    v.cap = share_of(g, rows, n, 1);
    v.n = share_of(g, w, n, 1);
    v.k = v.ldw = share_of(g, w, n, 0);
    v.stride = v.n * v.k;
    return v;
}

/* rows [row K], w [expert N K] */
static GmmArgs grouped_args(const Graph *g, const Node *n)
{
    const Node *rows = n->in[0], *w = n->in[1];
    const Axis *sum = n->at.gmm.axes.v[0];
    GmmArgs v = { .in = De4m3, .out = n->dt, .tw = 1, .n = 1 };

    v.experts = map_layout(g, n->in[2]).experts;
    v.k = v.ldw = local_n(g, rows, dim_of(rows, sum));
    for (int d = 0; d < w->nd; d++)
        if (w->dim[d].a != sum && w->dim[d].a != n->in[2]->at.route.axis)
            v.n *= local_n(g, w, d);
    return v;
}

/* a [row K], b [row N] -> [expert K N], of their columns in blocks */
static GmmArgs weight_args(const Graph *g, const Node *n)
{
    return (GmmArgs){ .in = De4m3,
                      .out = n->dt,
                      .experts = map_layout(g, n->in[2]).experts,
                      .k = share_of(g, n->in[0], n, 1),
                      .n = share_of(g, n->in[1], n, 1) };
}

int has_scaled_product(const Graph *g, const Node *n)
{
    GmmArgs v = n->op == Odot   ? dense_args(g, n)
                : n->op == Ogmm ? grouped_args(g, n)
                                : weight_args(g, n);

    return has_tensor_cores(&v, n->op == Ogmm_wgrad);
}

/* Of a product by itself. */
static GmmArgs args_of(const Graph *g, const Node *n)
{
    Group k = { .fam = optab[n->op].fam, .n = 1, .nout = 1 };
    Node *node = (Node *)(uintptr_t)n;
    Arena *scratch = arena_new();

    k.node = k.out = &node;
    (n->op == Ogmm ? gmm_lower : gmm_wgrad_lower)((Graph *)(uintptr_t)g, &k,
                                                  scratch);
    arena_free(scratch);
    return k.instr.gmm;
}

int grouped_sums(const Graph *g, const Node *n, const Node *other)
{
    GmmArgs v = args_of(g, n), w = args_of(g, other);

    return n->in[2] == other->in[2] && has_tensor_cores(&v, 0) &&
           (v.in == Dbf16 || v.in == De4m3) && v.in == w.in && v.out == w.out &&
           v.k == w.k && v.n == w.n && v.ldw == w.ldw && v.tw == w.tw &&
           v.stride == w.stride;
}

/* 64 x BN += 64 x 32 bytes of A, 32 bytes x BN of B; ADD 0: is that. */
static void put_product(Text *out, int64_t wide, Dtype in, const char *turned)
{
    int n = (int)wide / 2;

    put(out,
        "template <int ADD>\n"
        "FN void wgmma_tile(float *d, uint64_t a, uint64_t b)\n{\n"
        "    asm "
        "volatile(\"wgmma.mma_async.sync.aligned.m64n%lldk%d.f32.%s.%s {\"\n",
        (long long)wide, 32 / (int)dtypes[in].bytes, dtypes[in].name,
        dtypes[in].name);
    for (int i = 0; i < n; i++)
        put(out, "%s\"%%%d%s\"%s", i % 8 ? "" : "        ", i,
            i + 1 < n ? "," : "", i % 8 == 7 || i + 1 == n ? "\n" : " ");
    put(out, "        \"}, %%%d, %%%d, %%%d, 1, 1%s;\\n\"\n        :", n, n + 1,
        n + 2, turned);
    for (int i = 0; i < n; i++)
        put(out, "%s \"+f\"(d[%d])%s", i % 4 || !i ? "" : "\n         ", i,
            i + 1 < n ? "," : "");
    put(out, "\n        : \"l\"(a), \"l\"(b), \"n\"(ADD));\n}\n");
}

/* Measured on an H200 (gmm_bench: experts of uneven sizes, one empty), TFLOP/s
 * by tile, * ping-pong:
 *
 *     rows of an expert, K x N     128x192*  128x256  128x128*  64x256*
 *     1024  2048 x 768                  772      722       627      673
 *     1024  768 x 2048                  728      671       657      651
 *     256   2048 x 768                  565      539       468      500
 *     256   768 x 2048                  551      514       482      510
 *     1024  768 x 2048, and another     684      740       589
 *     4096  4096 x 14336                773      753       590      641
 *     4096  14336 x 4096                701      756       518      663
 *     1024  weights 2048 x 768          634      610       595      615
 *     256   weights 2048 x 768          342      335       363      344
 *     4096  weights 4096 x 14336        774      752       603      648
 *
 * Tiles that run at a time share their operands if these are in L2 when a tile
 * comes to them: all along its sum, since tiles begin at any time. On an H100,
 * 8 experts of 4096 rows, all rows of tiles first, then in bands of 8, 16, 24:
 *
 *     4096 x 14336          128x192*       652     747     768     759
 *                           128x256        707     784     775     776
 *     weights 4096 x 14336  128x192*       714     700     732     720
 *                           128x256        727     704     712     704
 *     weights 14336 x 4096  128x192*       514     659     656     663
 *                           128x256        651     700     705     713
 *
 * In a step of Mixtral's widths both tiles take the same for the last.
 *
 * Weights of 256 rows, 2048 x 768, stored in bf16, in a step on an H100: 0.285
 * ms by 128x128*, 0.284, 0.279, 0.291, 0.309, 0.311 by 128x192*, 128x256,
 * 256x128, 64x256*, 256x192 (0.414 in fp32 by 128x128*): the bytes that a tile
 * fetches no longer decide.
 *
 * Storing while the other multiplies is worth more than fewer bytes a product,
 * but for very long sums; weights of short ones are bound by what they store,
 * and a smaller tile begins to sooner. With few rows an expert L2 is busy (79 %
 * of its rate at 256 rows, weights; 86 to 89 % at 1024, adding or not).
 * Of e4m3 with scales 128x256, 256x128, 128x128 made 1150, 943, 983 (8 experts
 * of 4096 rows, 7168 x 4096), 1143, 1072, 995 (2048 x 7168), 1027, 915, 920
 * (128 of 1024, 2048 x 768): a warpgroup scales what it has while the other
 * multiplies. One matrix, 8192 x 8192 x 8192: 1201, 1008, 1086 (cuBLASLt 1218).
 * With a slice's rows in registers, where both halves of 256 columns find them,
 * 128x256 makes 1136 (1201), 1103 (1190), 1094 (1151), 1003 (1054).
 * Weights by e4m3 in columns: tiles of 128x256 made 877 adding nothing, 740
 * adding (8 experts of 4096 rows, 4096 x 14336) and 632, 550 (128 of 1024,
 * 2048 x 768); 128x128 835, 712 and 632, 563; 128x192 820 and 610; of a step
 * 720 and 495, where bf16 makes 574 and 500. Each warpgroup with a ring and
 * tiles of 128x128 of its own made 713 and 536, 128x192 that begins a product
 * before it scales the one before the same as without.
 * What bounds weights by e4m3, 8 experts of 4096 rows, 4096 x 14336, alone on
 * an H200, 942 TFLOP/s: without loads of columns' scales 961, without storing
 * 981, with one instruction an element in place of two 1030, without scales
 * 1171; scales as pairs of bf16, half the loads, 868.
 * Warpgroups of one tile that take turns, so that one surely multiplies while
 * the other scales, are slower, with scales of blocks too: a step of Mixtral's
 * widths on an H200 146.9 to 159.4 ms, 153.4 and 151.9 where the turn changes
 * with one and two of a product's four steps underway. All of a tile of 128x192
 * at once: weights 893 where 128x256 made 930, with blocks 1190 and 1084 where
 * 1177 and 1130 (4096 x 14336, 2048 x 7168), on an H100.
 * Measured and not better: blocks in pairs that fetch for each other
 * (multicast: 0 to 5 % slower; half as fast where a warp gives a place back by
 * an arrival of release.cluster, which is a fence), what weights are added to
 * fetched into the boxes it leaves from, beside the product (0.818 to 0.804 ms
 * alone, 1 % slower in a step), weights that copies out add to what was there
 * (cp.reduce: the same in a step, 406), stored from registers (a fifth slower
 * at 256 rows), what weights are added to read to registers while the other
 * warpgroup multiplies (24 calls of a step, half of which add, on an H200: 19.9
 * to 22.5 ms, 23.0 unless L2 is told of it before; passing the turn to the
 * other before what the ring brings is added ends in a launch failure), 256x192
 * and 256x128 tiles that fetch less (318 and 322 where 128x128 made 363), a
 * warp that stores its own rows, more boxes or an evict-first hint on their way
 * out (the same). A step of 4 x 4 sequences takes 690 of the chip's 700 W, its
 * clock is 1.6 of 1.98 GHz: weights of 1024 rows make 402 to 456 there and 512
 * to 540 alone, adding. */
static GroupedTile best_tile(const GmmArgs *args, int weight, int terms)
{
    /* clang-format off */
    static const struct {
        GroupedTile t;
        double rate, deep, few, scaled, columns;
    } tile[] = {
        { { 128, 192, 1 }, 1, 0.97, 0.94, 0, 0 },
        { { 128, 256, 0 }, 0.93, 1, 0.92, 1, 1 },
        { { 128, 128, 1 }, 0.83, 0.7, 1, 0, 0 },
        { { 128, 128, 0 }, 0, 0, 0, 0.86, 0.95 },
        { { 128, 64, 1 }, 0.5, 0.4, 0.88, 0, 0 },
        { { 128, 64, 0 }, 0, 0, 0, 0.6, 0.6 },
    };
    /* clang-format on */
    int64_t n = weight && args->tw ? args->k : args->n;
    int64_t sum = weight ? args->cap / args->experts : args->k;
    size_t best = 0;
    double most = 0;

    for (size_t i = 0; i < sizeof tile / sizeof *tile; i++) {
        double use =
            (double)n / (double)(ceil_of(n, tile[i].t.cols) * tile[i].t.cols);
        double scaled = weight ? tile[i].columns : tile[i].scaled;
        double rate = use * (args->in == De4m3          ? scaled
                             : weight && sum <= FEWROWS ? tile[i].few
                             : sum < 8192 && terms < 2  ? tile[i].rate
                                                        : tile[i].deep);
        if (rate > most)
            most = rate, best = i;
    }
    return tile[best].t;
}

/* Of a product that updates, where registers hold a tile and what it is updated
 * with, and slots for that take places of the ring. Measured on an H100, ms of
 * all weights' gradients and updates of experts in a step (Qwen3's widths, 4
 * layers, 1/1 and 4/1; Mixtral's, 2 layers, 4/1), by tile and slots:
 *
 *     apart               27.4      32.9      61.4
 *     128x128*    2       22.3      27.7      53.1
 *     128x128*    3       22.5      29.2
 *     128x64*     4, 3    23.2, 22.8   31.2
 *     128x256     1                 36.1      77.8
 *     128x192*    2                           75.2
 *
 * Of each element 24 bytes are moved in place of 32: 19.3 of 22.3 ms are that.
 * In boxes of 64 x 32, a barrier of the warpgroup each, where a thread updates
 * eight neighbours, so that an instruction of 16 bytes leaves half of each
 * sector of fp32 to the next, 24.6, 29.9, 55.9.
 *
 * With weights by e4m3 a warpgroup of its own updates: of the two that multiply
 * one scales while the other multiplies, and a tile that is not theirs alone
 * leaves them registers, 176 a thread. They wait only until the tile before has
 * been read, 64 KiB of sums. Mixtral's widths, 2 layers, 4/1, precision=fp8
 * precision.primary=all, on an H200: apart 142.8 ms a step, so 136.8, with two
 * slots 138.1; a tile of each, in turns, of which the next 64 x 64 begin before
 * the last are scaled, 232 registers and spills, 140.8; the same with a ring
 * each and without turns 141.1. Of 1,024 rows, DeepSeek-V3's widths, an update
 * moves 3.2 of 4.0 TB/s: two warpgroups that update are not tried. */
static const struct UpdateForm {
    GroupedTile tile;
    int apart; /* by a warpgroup of its own */
    int ahead; /* slots */
} update_forms[] = { { { 128, 128, 1 }, 0, 2 }, { { 128, 128, 0 }, 1, 4 } };

static const struct UpdateForm *update_form(const GmmArgs *args)
{
    return &update_forms[args->in == De4m3];
}

int grouped_threads(const GmmArgs *args, const GroupedForm *form)
{
    return form->update && update_form(args)->apart ? WGTHREADS + 128
                                                    : WGTHREADS;
}

/* Rows and columns of a weights' gradient; one that is stored transposed is
 * made so: its operands change places. */
static void weight_sides(const GmmArgs *args, int64_t *m, int64_t *n)
{
    *m = args->tw ? args->n : args->k;
    *n = args->tw ? args->k : args->n;
}

int64_t tile_squares(const GmmArgs *args, const GroupedTile *tile)
{
    enum { WARPS = 4 }; /* of a warpgroup */
    int64_t m, n;

    weight_sides(args, &m, &n);
    return args->experts * ceil_of(m, tile->rows) * ceil_of(n, tile->cols) *
           (tile->pingpong ? WARPS : 2 * WARPS);
}

int64_t grouped_squares(const Graph *g, const Node *n, int updates)
{
    GmmArgs v = args_of(g, n);

    if (!has_tensor_cores(&v, 1))
        return 0;
    GroupedTile tile = updates ? update_form(&v)->tile : best_tile(&v, 1, 1);
    return tile_squares(&v, &tile);
}

int grouped_updates(const Graph *g, const Node *n, const Node *rounded)
{
    GmmArgs v = args_of(g, n);
    int64_t rows, columns;

    weight_sides(&v, &rows, &columns);
    return has_tensor_cores(&v, 1) && (v.in == Dbf16 || v.in == De4m3) &&
           (!rounded ||
            (v.ldw == columns && blocks_of_matrix(g, rounded, rows, columns)));
}

/* Row 0 of an operand, a pointer to rows of so many elements. */
static const char *rows_at(Arena *a, const char *name, int stash, int64_t wide)
{
    return stash ? strf(a, "%s + (int64_t)off[EXPERTS + 1] * %lld", name,
                        (long long)wide)
                 : name;
}

static const char *scales_in_order(int scaled, int swap)
{
    return !scaled ? "" : swap ? "sb, sa" : "sa, sb";
}

static void put_call(Text *out, const GroupedForm *form, const char *result,
                     const char *add)
{
    put(out,
        "    grouped_product(term, %s, off, %s, scales, work, %s, update);\n"
        "}\n",
        result, form->squares ? "squares" : "0", add);
}

/* Beside the operands what is updated; nothing is stored but that. */
static void put_update_kernel(Text *out, const GmmArgs *args,
                              const GroupedForm *form, const char *left,
                              const char *right)
{
    int scaled = args->in == De4m3, swap = args->tw;

    put(out,
        "extern \"C\" __global__ void __launch_bounds__(%d, 1)\n"
        "@(const TI *a, const TI *b, const int32_t *off, %s%s%s\n"
        "  uint8_t *work)\n"
        "{\n    const Term term[] = { { %s, %s } };\n"
        "    const Scales scales[] = { { %s } };\n"
        "    const Update update = { %s };\n",
        grouped_threads(args, form),
        scaled ? "const float *sa, const float *sb, " : "",
        form->squares ? "float *squares, " : "", form->update->parameters, left,
        right, scales_in_order(scaled, swap), form->update->values);
    put_call(out, form, "(TO *)work", "0");
}

/* The kernel, of operands in the order of their buffers. */
static void put_kernel(Text *out, const GmmArgs *args, const GroupedForm *form)
{
    int swap = form->weight && args->tw;
    int64_t wide[2] = { args->k, args->n };
    const char *left = rows_at(out->arena, swap ? "b" : "a",
                               args->stash >> swap & 1, wide[swap]);
    const char *right = rows_at(out->arena, swap ? "a" : "b",
                                args->stash >> !swap & 1, wide[!swap]);
    int scaled = args->in == De4m3;
    const char *off = form->dense ? "" : " const int32_t *off,";
    int twice = form->terms > 1;
    const char *more =
        strf(out->arena, "%s%s%s",
             scaled ? "const float *sa, const float *sb, " : "",
             twice ? "const TI *a2, const TI *b2, " : "",
             scaled && twice ? "const float *sa2, const float *sb2, " : "");
    const char *squares = form->squares ? "float *squares, " : "";

    if (form->update) {
        put_update_kernel(out, args, form, left, right);
        return;
    }
    put(out,
        "extern \"C\" __global__ void __launch_bounds__(%d, 1)\n"
        "@(const TI *a, const TI *b, TO *c,%s\n"
        "  %s%suint8_t *work, int64_t add)\n"
        "{\n%s    const Term term[] = { { %s, %s }, { %s, %s } };\n"
        "    const Scales scales[] = { { %s }, { %s } };\n"
        "    const Update update = { };\n",
        WGTHREADS, off, more, squares,
        form->dense ? "    const int32_t off[] = { 0, CAP };\n" : "", left,
        right, twice ? rows_at(out->arena, "a2", form->stash, args->k) : "0",
        twice ? "b2" : "0", scales_in_order(scaled, swap),
        scaled && twice ? "sa2, sb2" : "");
    put_call(out, form, rows_at(out->arena, "c", args->stash >> 2 & 1, args->n),
             "(int)add");
}

/* What of shared memory a kernel's slices take. */
typedef struct RingSizes {
    int64_t once;   /* columns of a product that is scaled at once */
    int64_t stages; /* places */
    int rooms;      /* boxes of a warpgroup on their way out */
    int64_t shared; /* bytes, with the boxes */
} RingSizes;

/* Beside slices: of each warpgroup that updates. */
static int64_t slot_bytes(const GmmArgs *args, const GroupedForm *form)
{
    int teams = update_form(args)->apart ? 1 : 2;

    return form->update ? teams * form->update->ahead * form->update->bytes : 0;
}

/* What goes out: boxes of C; with an update the sums of a tile, or of eight
 * rows of each warp. */
static int64_t box_bytes(const GmmArgs *args, const GroupedForm *form,
                         int rooms)
{
    const GroupedTile *tile = &form->tile;

    return !form->update              ? BOXES / 2 * rooms
           : update_form(args)->apart ? tile->rows * 4 * tile->cols
                                      : WGWARPS * 8 * 4 * tile->cols;
}

/* Columns of rows have scales beside each slice. Of their widest tile a fourth
 * place of the ring is worth more than a second box (the table's figures: 877
 * and 866, 632 and 616). */
static RingSizes ring_of(const GmmArgs *args, const GroupedForm *form,
                         int columns)
{
    const GroupedTile *tile = &form->tile;
    RingSizes ring = { .rooms = columns ? 1 : 2 };
    int64_t lines = tile->rows + tile->cols, slice = lines * DEEP;
    int64_t boxes = box_bytes(args, form, ring.rooms);
    int64_t room = SHARED - BESIDE + BOXES - boxes - (args->experts + 1) * 4 -
                   slot_bytes(args, form);

    ring.once = tile->cols <= 128       ? tile->cols
                : tile->cols % 128 == 0 ? 128
                                        : tile->cols / 2;
    int64_t scale = tile->rows + tile->cols / ring.once * (ring.once + 16);
    int64_t stages = room / (slice + columns * scale * 4);
    ring.stages = stages < MAXSTAGES ? stages : MAXSTAGES;
    ring.shared = ring.stages * slice + boxes + 1024 + slot_bytes(args, form);
    return ring;
}

/* wgmma.pre */
char *grouped_text(Arena *a, const GmmArgs *args, GroupedForm form,
                   int64_t *shared)
{
    Text t = { .arena = a };
    GroupedTile tile = form.tile;
    int weight = form.weight;
    int64_t m = args->k, n = args->n;
    int scaled = args->in == De4m3, columns = scaled && weight;
    const RingSizes ring = ring_of(args, &form, columns);

    if (weight)
        weight_sides(args, &m, &n);
    *shared = ring.shared;
    put_define(&t, "WEIGHT", weight);
    put_define(&t, "BAND", form.band ? form.band : BANDROWS);
    put_define(&t, "SQUARES", form.squares ? tile_squares(args, &tile) : 0);
    put_define(&t, "TERMS", form.terms);
    put_define(&t, "M", m);
    put_define(&t, "N", n);
    put_define(&t, "K", args->k);
    put_define(&t, "LDA", weight ? m : args->k);
    put_define(&t, "LDB", weight ? n : args->ldw);
    put_define(&t, "LDC", weight ? args->ldw : args->n);
    put_define(&t, "EXPERTS", args->experts);
    put_define(&t, "CAP", args->cap);
    put_define(&t, "TRANSA", weight && !scaled);
    put_define(&t, "TRANSB", !scaled && (weight || !args->tw));
    put_define(&t, "STRIDEB", args->stride);
    put_define(&t, "STRIDEC", args->stride);
    put_define(&t, "BM", tile.rows);
    put_define(&t, "BN", tile.cols);
    put_define(&t, "STAGES", ring.stages);
    put_define(&t, "PINGPONG", tile.pingpong);
    put_define(&t, "SCALED", scaled);
    put_define(&t, "ONCE", ring.once);
    put_define(&t, "ROOMS", ring.rooms);
    put_define(&t, "PLACES", row_blocks(args->cap, args->experts));
    put_define(&t, "TIKIND", scaled ? 0 : 10);
    put_define(&t, "TOKIND", args->out == Dbf16 ? 10 : 7);
    put(&t, "#define TI %s\n#define TO %s\n", scaled ? "uint8_t" : "uint16_t",
        dtypes[args->out].store);
    put_product(&t, scaled ? ring.once : tile.cols, args->in,
                scaled     ? ""
                : weight   ? ", 1, 1"
                : args->tw ? ", 0, 0"
                           : ", 0, 1");
    if (form.update)
        putn(&t, form.update->text, strlen(form.update->text));
    putn(&t, wgmma_pre, strlen(wgmma_pre));
    put_kernel(&t, args, &form);
    return t.s;
}

/* A block of each multiprocessor, of so many bytes of shared memory. */
static void launch_on_all(Group *group, Arena *a, int threads, int64_t shared)
{
    group->scratch = GPUBLOCKS * MAPS;
    cuda_set_launch(group, a,
                    (Launch){ .items = GPUBLOCKS,
                              .threads = threads,
                              .shared = shared,
                              .persistent = 1,
                              .hopper = 1 });
}

static void add_buffer(Group *group, Arena *a, Node *n, Node *view)
{
    vec_push(a, group->arg, storage(n));
    vec_push(a, group->view, view);
    group->narg++;
}

/* Operands, map, scales, sums of squares, what is updated, numbers. */
static void set_update_buffers(const Graph *g, Group *group, Arena *a,
                               const ProductUpdate *update)
{
    Node *n = group->node[0], *squares = sum_sq_of(group);

    group->arg = group->view = NULL;
    group->narg = 0;
    for (int i = 0; i < n->nin; i++)
        add_buffer(group, a, n->in[i], n->in[i]);
    if (squares)
        add_buffer(group, a, squares, squares);
    group->instr.bytes -= (double)local_bytes(g, group->node[1]);
    for (size_t i = 0; i < vec_len(update->kept); i++) {
        add_buffer(group, a, update->kept[i], NULL);
        group->instr.bytes += (double)local_bytes(g, update->kept[i]);
    }
    for (size_t i = 0; i < vec_len(update->read); i++)
        group->instr.bytes += (double)local_bytes(g, update->read[i]);
    for (size_t i = 0; i < vec_len(update->number); i++)
        add_buffer(group, a, update->number[i], update->number[i]);
}

static void on_tensor_cores(const Graph *g, Group *group, Arena *a,
                            const GmmArgs *args, int weight)
{
    int64_t shared = 0;
    GroupedForm form = { .weight = weight,
                         .squares = sum_sq_of(group) != NULL,
                         .terms = grouped_terms(group) };

    if (group_updates(group)) {
        form.tile = update_form(args)->tile;
        form.update = update_text(group, a, update_form(args)->ahead);
        set_text_named(group, a, grouped_text(a, args, form, &shared));
        set_update_buffers(g, group, a, form.update);
        launch_on_all(group, a, grouped_threads(args, &form), shared);
        return;
    }
    form.tile = best_tile(args, weight, form.terms);
    if (form.terms > 1)
        form.stash = group->arg[args->in == De4m3 ? 6 : 4]->stash > 0;
    set_text_named(group, a, grouped_text(a, args, form, &shared));
    group->narg =
        grouped_operands(form.terms, args->in == De4m3) + form.squares;
    launch_on_all(group, a, WGTHREADS, shared);
}

/* ---- all others ---------------------------------------------------------- */

static void on_threads(Group *group, Arena *a, const GmmArgs *args, int weight)
{
    const DtypeInfo *in = &dtypes[args->in], *out = &dtypes[args->out];
    Text t = { .arena = a };

    put(&t, "#define TA %s\n#define TC %s\n#define TO %s\n", in->store,
        in->compute, out->store);
    put_define(&t, "EXPERTS", args->experts);
    put_define(&t, "K", args->k);
    put_define(&t, "N", args->n);
    put_define(&t, "LDW", args->ldw);
    put_define(&t, "TW", args->tw);
    put_define(&t, "STRIDEW", args->stride);
    put(&t, "%s", gmm_pre);
    put(&t,
        "extern \"C\" __global__ void __launch_bounds__(%d)\n"
        "@(const TA *a, const TA *b, TO *c, const int32_t *off, int64_t add)\n"
        "{\n    %s(%s, %s, %s, off, (int)add);\n}\n",
        GMMTHREADS, weight ? "gmm_wgrad_tile" : "gmm_tile",
        rows_at(a, "a", args->stash & 1, args->k),
        rows_at(a, "b", args->stash >> 1 & 1, args->n),
        rows_at(a, "c", args->stash >> 2 & 1, args->n));
    set_text_named(group, a, t.s);
    group->narg = 4;
    int64_t rows = ceil_of(args->cap, GMMTILE) + args->experts;
    cuda_set_launch(
        group, a,
        (Launch){ .items = weight ? ceil_of(args->k, GMMTILE) : rows,
                  .threads = GMMTHREADS,
                  .y = ceil_of(args->n, GMMTILE),
                  .z = weight ? args->experts : 1 });
}

void dense_lower_cuda(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0];
    GroupedForm form = { .terms = 1, .dense = 1 };
    int64_t shared = 0;

    if (!is_scaled_product(n)) {
        gemm_lower(g, group, a);
        return;
    }
    const GmmArgs v = dense_args(g, n);
    Node *arg[5] = { n->in[0], n->in[1], group->out[0], n->in[2], n->in[3] };
    for (int i = 0; i < 5; i++)
        vec_push(a, group->arg, storage(arg[i]));
    group->narg = 5;
    group->maystore = 1;
    group->path = PATHfast;
    form.tile = best_tile(&v, 0, 1);
    set_text_named(group, a, grouped_text(a, &v, form, &shared));
    set_product_cost(g, group, n);
    set_label(group, a, n);
    launch_on_all(group, a, WGTHREADS, shared);
    add_word(group, a, (Word){ WORDadd, aff(0), 0 });
}

ProductPath grouped_path(const Group *group)
{
    return group->instr.gmm.in != Dbf16 ||
                   has_tensor_cores(&group->instr.gmm,
                                    group->fam == FAMgmm_wgrad)
               ? PATHfast
               : PATHthreads;
}

void grouped_lower_cuda(Graph *g, Group *group, Arena *a)
{
    int weight = group->fam == FAMgmm_wgrad;

    (weight ? gmm_wgrad_lower : gmm_lower)(g, group, a);
    const GmmArgs v = group->instr.gmm;

    group->path = grouped_path(group);
    if (is_scaled_product(group->node[0]))
        group->view = NULL;
    if (has_tensor_cores(&v, weight))
        on_tensor_cores(g, group, a, &v, weight);
    else
        on_threads(group, a, &v, weight);
    if (!group_updates(group))
        add_word(group, a, (Word){ WORDadd, aff(v.beta), 0 });
}
