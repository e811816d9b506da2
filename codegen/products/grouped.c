/* grouped.c: GPU kernels of grouped products and of scaled matrix products,
 * made from the host's instruction with all sizes as constants: grouped.cuh if
 * tensor cores support the operands, else gmm.cuh. */
#include "products.h"

enum { GMMTILE = 64, GMMTHREADS = 256, WGTHREADS = 384 };

/* ---- tensor cores -------------------------------------------------------- */

/* Shared memory of a block, one per multiprocessor. Besides slices it has boxes
 * to be stored, the alignment of the start, and barriers. */
enum {
    SHARED = 227 << 10,
    BOXES = 4 * 8192,
    BESIDE = BOXES + 1024 + 512,
    MAXSTAGES = 8,
    MAPS = 640,
    DEEP = 128, /* bytes of k in a slice */
    /* warps that multiply; in an update each has 8 rows in fp32 instead of
     * boxes */
    WGWARPS = 8,
    FEWROWS = 384,
    BANDROWS = 16 /* tiles of a band along m that run concurrently */
};

/* Tensor cores take bf16 with rows of whole 16-byte pieces, and e4m3 with
 * contiguous k. */
static int has_tensor_cores(const GmmArgs *args, int weight)
{
    int piece = 16 / (int)dtypes[args->in].bytes;

    return (args->in == Dbf16 || (args->in == De4m3 && (weight || args->tw))) &&
           (args->out == Dbf16 || args->out == Df32) && args->k % piece == 0 &&
           args->n % (weight ? piece : 8) == 0 && args->ldw % piece == 0 &&
           args->experts <= 4096;
}

/* Local elements of the dims of x that n has (has 1) or lacks (has 0). */
static int64_t elements_by_dims(const Graph *g, const Node *x, const Node *n,
                                int has)
{
    int64_t e = 1;

    for (int d = 0; d < x->nd; d++)
        if ((dim_of(n, x->dim[d].a) >= 0) == has)
            e *= local_n(g, x, d);
    return e;
}

/* Arguments of a matrix product of e4m3 with scales. */
static GmmArgs dense_args(const Graph *g, const Node *n)
{
    const Node *rows = n->in[0], *w = n->in[1];
    GmmArgs v = { .in = De4m3, .out = n->dt, .tw = 1, .experts = 1 };

    v.cap = elements_by_dims(g, rows, n, 1);
    v.n = elements_by_dims(g, w, n, 1);
    v.k = v.ldw = elements_by_dims(g, w, n, 0);
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

/* a [row K], b [row N] -> [expert K N], from columns in blocks */
static GmmArgs wgrad_args(const Graph *g, const Node *n)
{
    return (GmmArgs){ .in = De4m3,
                      .out = n->dt,
                      .experts = map_layout(g, n->in[2]).experts,
                      .k = elements_by_dims(g, n->in[0], n, 1),
                      .n = elements_by_dims(g, n->in[1], n, 1) };
}

int has_scaled_product(const Graph *g, const Node *n)
{
    GmmArgs v = n->op == Odot   ? dense_args(g, n)
                : n->op == Ogmm ? grouped_args(g, n)
                                : wgrad_args(g, n);

    return has_tensor_cores(&v, n->op == Ogmm_wgrad);
}

/* Arguments of a grouped product outside of a group. */
static GmmArgs grouped_product_args(const Graph *g, const Node *n)
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
    GmmArgs v = grouped_product_args(g, n), w = grouped_product_args(g, other);

    return n->in[2] == other->in[2] && has_tensor_cores(&v, 0) &&
           (v.in == Dbf16 || v.in == De4m3) && v.in == w.in && v.out == w.out &&
           v.k == w.k && v.n == w.n && v.ldw == w.ldw && v.tw == w.tw &&
           v.stride == w.stride;
}

/* The tile with the highest expected rate. `rate`: relative throughput for
 * average sums; `deep`: for sums of 8192 and more or two products; `few`: for
 * weight gradients of few rows; `scaled`, `columns`: for e4m3 by blocks and by
 * columns. Ping-pong tiles overlap stores with products, which is worth more
 * than the smaller traffic of a larger tile, except for long sums.
 * decisions/grouped-tiles.md has the measured rates,
 * decisions/grouped-scaled.md those of e4m3. */
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
            (double)n / (double)(divide_up(n, tile[i].t.cols) * tile[i].t.cols);
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

/* Tile and slots of a product that updates: registers hold a tile and its
 * operands, and slots reduce the ring. FP8: a dedicated warpgroup runs the
 * update, since one of the two consumers multiplies while the other scales.
 * decisions/update-in-product.md compares other forms. */
static const struct UpdateForm {
    GroupedTile tile;
    int apart; /* a dedicated warpgroup updates */
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

/* Rows and columns of a weight gradient. A transposed result is computed with
 * exchanged operands. */
static void wgrad_sides(const GmmArgs *args, int64_t *m, int64_t *n)
{
    *m = args->tw ? args->n : args->k;
    *n = args->tw ? args->k : args->n;
}

int64_t tile_squares(const GmmArgs *args, const GroupedTile *tile)
{
    enum { WARPS = 4 }; /* warps of a warpgroup */
    int64_t m, n;

    wgrad_sides(args, &m, &n);
    return args->experts * divide_up(m, tile->rows) * divide_up(n, tile->cols) *
           (tile->pingpong ? WARPS : 2 * WARPS);
}

int64_t grouped_squares(const Graph *g, const Node *n, int updates)
{
    GmmArgs v = grouped_product_args(g, n);

    if (!has_tensor_cores(&v, 1))
        return 0;
    GroupedTile tile = updates ? update_form(&v)->tile : best_tile(&v, 1, 1);
    return tile_squares(&v, &tile);
}

int grouped_updates(const Graph *g, const Node *n, const Node *rounded)
{
    GmmArgs v = grouped_product_args(g, n);
    int64_t rows, columns;

    wgrad_sides(&v, &rows, &columns);
    return has_tensor_cores(&v, 1) && (v.in == Dbf16 || v.in == De4m3) &&
           (!rounded ||
            (v.ldw == columns && blocks_of_matrix(g, rounded, rows, columns)));
}

/* Use of shared memory by the ring of slices. */
typedef struct RingSizes {
    int64_t once;   /* columns of a product that are scaled at once */
    int64_t stages; /* stages of the ring */
    int rooms;      /* store buffers of a warpgroup */
    int64_t shared; /* bytes, with the store buffers */
} RingSizes;

/* Bytes of the slots of all warpgroups that update. */
static int64_t slot_bytes(const GmmArgs *args, const GroupedForm *form)
{
    int teams = update_form(args)->apart ? 1 : 2;

    return form->update ? teams * form->update->ahead * form->update->bytes : 0;
}

/* Bytes of results in flight: boxes of C; with an update the sums of a tile, or
 * 8 rows of each warp. */
static int64_t box_bytes(const GmmArgs *args, const GroupedForm *form,
                         int rooms)
{
    const GroupedTile *tile = &form->tile;

    return !form->update              ? BOXES / 2 * rooms
           : update_form(args)->apart ? tile->rows * 4 * tile->cols
                                      : WGWARPS * 8 * 4 * tile->cols;
}

/* FP8 weight gradients load scales per K slice; for 128x256 a 4th stage is
 * better than a second store buffer (decisions/grouped-scaled.md). */
static RingSizes ring_sizes(const GmmArgs *args, const GroupedForm *form,
                            int columns)
{
    const GroupedTile *tile = &form->tile;
    RingSizes ring = { .rooms = columns ? 1 : 2 };
    int64_t lines = tile->rows + tile->cols, slice = lines * DEEP;
    int64_t boxes = box_bytes(args, form, ring.rooms);
    int64_t room = SHARED - BESIDE + BOXES - boxes - (args->experts + 1) * 4 -
                   slot_bytes(args, form);

    ring.once = tile->cols % 128 ? 64 : 128;
    int64_t scale = tile->rows + tile->cols / ring.once * (ring.once + 16);
    int64_t stages = room / (slice + columns * scale * 4);
    ring.stages = stages < MAXSTAGES ? stages : MAXSTAGES;
    ring.shared = ring.stages * slice + boxes + 1024 + slot_bytes(args, form);
    return ring;
}

/* Text of grouped.cuh with its constants. */
char *grouped_text(Arena *a, const GmmArgs *args, GroupedForm form,
                   int64_t *shared)
{
    Text t = { .arena = a };
    GroupedTile tile = form.tile;
    int weight = form.weight;
    int64_t m = args->k, n = args->n;
    int scaled = args->in == De4m3, columns = scaled && weight;
    const RingSizes ring = ring_sizes(args, &form, columns);

    if (weight)
        wgrad_sides(args, &m, &n);
    *shared = ring.shared;
    putn(&t, hopper_cuh, strlen(hopper_cuh));
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
    put_define(&t, "SCALED_COLUMNS", ring.once);
    put_define(&t, "STORE_BUFFERS", ring.rooms);
    put_define(&t, "ROW_BLOCKS", row_blocks(args->cap, args->experts));
    put_define(&t, "BLOCK_THREADS", grouped_threads(args, &form));
    put_define(&t, "STASH", args->stash | form.stash << 3);
    put_define(&t, "SWAP", weight && args->tw);
    put_define(&t, "DENSE", form.dense);
    put_define(&t, "TIKIND", scaled ? 0 : 10);
    put_define(&t, "TOKIND", args->out == Dbf16 ? 10 : 7);
    put(&t, "#define TI %s\n#define TO %s\n", scaled ? "uint8_t" : "uint16_t",
        dtypes[args->out].store);
    if (form.update)
        putn(&t, form.update->text, strlen(form.update->text));
    putn(&t, grouped_cuh, strlen(grouped_cuh));
    return t.s;
}

/* One block per multiprocessor with `shared` bytes of dynamic shared memory. */
static void launch_persistent(Group *group, Arena *a, int threads,
                              int64_t shared)
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

/* Buffers in order: operands, map, scales, sums of squares, updated tensors,
 * scalars. */
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

static void lower_on_tensor_cores(const Graph *g, Group *group, Arena *a,
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
        launch_persistent(group, a, grouped_threads(args, &form), shared);
        return;
    }
    form.tile = best_tile(args, weight, form.terms);
    if (form.terms > 1)
        form.stash = group->arg[args->in == De4m3 ? 6 : 4]->stash > 0;
    set_text_named(group, a, grouped_text(a, args, form, &shared));
    group->narg =
        grouped_operands(form.terms, args->in == De4m3) + form.squares;
    launch_persistent(group, a, WGTHREADS, shared);
}

/* ---- CUDA cores ---------------------------------------------------------- */

static void lower_on_cuda_cores(Group *group, Arena *a, const GmmArgs *args,
                                int weight)
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
    put_define(&t, "WEIGHT", weight);
    put_define(&t, "STASH", args->stash);
    put(&t, "%s", gmm_cuh);
    set_text_named(group, a, t.s);
    group->narg = 4;
    int64_t rows = divide_up(args->cap, GMMTILE) + args->experts;
    cuda_set_launch(
        group, a,
        (Launch){ .items = weight ? divide_up(args->k, GMMTILE) : rows,
                  .threads = GMMTHREADS,
                  .y = divide_up(args->n, GMMTILE),
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
    launch_persistent(group, a, WGTHREADS, shared);
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
        lower_on_tensor_cores(g, group, a, &v, weight);
    else
        lower_on_cuda_cores(group, a, &v, weight);
    if (!group_updates(group))
        add_word(group, a, (Word){ WORDadd, aff(v.beta), 0 });
}
