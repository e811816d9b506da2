/* blocks.c: quantization to e4m3 with one power-of-two scale per block, in the
 * layouts that products read (blocks.cuh): of values in memory, or of values
 * that the kernel computes (loop/tile_gpu.c). */
#include "products.h"

/* LINES: blocks of rows that the threads of a kernel process at once, ATONCE
 * times. TOGETHER: thread blocks per multiprocessor
 * (decisions/quantizing-kernels.md). */
enum { THREADS = 256, LINES = 16, ATONCE = 4, TOGETHER = 4 };

/* Result i of `blocks`, or the write that stores it; null: unused. */
static Node *result_part(const Group *k, const Node *blocks, int64_t i)
{
    for (int m = 0; m < k->nout; m++) {
        Node *n = k->out[m], *part = n->op == Owrite ? n->in[1] : n;
        if (part->op == Opart && part->in[0] == blocks &&
            part->at.part.index == i)
            return n;
    }
    return NULL;
}

/* Columns of the matrix that n divides into blocks: the last axis for expert
 * rows, else all axes behind the first one that has blocks. *rows gets the dim
 * before them. */
static int64_t matrix_columns(const Graph *g, const Node *n, int *rows)
{
    const Node *x = n->in[0];
    int64_t columns = 1;

    *rows = x->nd - 1;
    do
        columns *= local_n(g, x, *rows);
    while (--*rows && n->at.quantize_blocks.layout == SCALEsquare &&
           axes_at(&n->at.quantize_blocks.axes, x->dim[*rows].a) < 0);
    return columns;
}

static int by_rows(const Node *n)
{
    return n->at.quantize_blocks.layout == SCALEwide;
}

/* Argument `name`, advanced to the first row of n in its stash; wide: elements
 * per row. */
static void put_row_pointer(Text *out, const char *name, Node *n,
                            const char *wide)
{
    put(out, "%s", n ? name : "0");
    if (n && storage(n)->stash)
        put(out, " + (int64_t)off[EXPERTS + 1] * %s", wide);
    put(out, ", ");
}

/* Does it read tokens, gathered into expert rows by its routing map? */
static int gathers_rows(const Node *n)
{
    return n->nin > 1 && !n->in[0]->map;
}

/* Kernel of expert rows; their number is read from the map. pair: offset in the
 * map of the pair of each row. lies, turned: which layouts are results. */
static void put_expert_rows_kernel(Text *out, const Group *group, int64_t pair,
                                   int lies, int turned)
{
    int gathered = gathers_rows(group->node[0]);

    put(out,
        "@(const uint16_t *x%s%s, const int32_t *off)\n{\n    quantize_%s(",
        lies ? ", uint8_t *q, float *s" : "",
        turned ? ", uint8_t *tq, float *ts" : "",
        !turned ? "rows" : strf(out->arena, "columns<%d, %d>", lies, gathered));
    put_row_pointer(out, "x", group->node[0]->in[0], "Q");
    put_row_pointer(out, "q", result_part(group, group->node[0], 0), "Q");
    put_row_pointer(out, "s", result_part(group, group->node[0], 1), "BLOCKSQ");
    if (turned)
        put(out, "tq, ts, off, off + %ld);\n}\n", pair);
    else
        put(out, "off[EXPERTS]);\n}\n");
}

/* Kernel of weights, or of all rows of a matrix, in the layouts that are
 * used. */
static void put_quantize_kernel(Text *out, const Group *group, int64_t pair)
{
    const Node *n = group->node[0];
    int lies = result_part(group, n, 0) != NULL,
        turned = result_part(group, n, 2) != NULL;

    put(out, "extern \"C\" __global__ void __launch_bounds__(%d, %d)\n",
        THREADS, TOGETHER);
    if (by_rows(n) && n->nin == 1) {
        put(out, "@(const uint16_t *x, uint8_t *q, float *s)\n"
                 "{\n    quantize_rows(x, q, s, P);\n}\n");
        return;
    }
    if (n->nin == 1) {
        put(out,
            "@(const uint16_t *w%s%s)\n{\n    quantize_square<%d, %d>(w, "
            "%s, %s);\n}\n",
            lies ? ", uint8_t *q, float *s" : "",
            turned ? ", uint8_t *tq, float *ts" : "", lies, turned,
            lies ? "q, s" : "0, 0", turned ? "tq, ts" : "0, 0");
        return;
    }
    put_expert_rows_kernel(out, group, pair, lies, turned);
}

/* Prints blocks.cuh for a matrix [p q], with the experts of map (null:
 * none). */
static void put_blocks_pre(Text *out, const Graph *g, const Node *map,
                           int64_t p, int64_t q)
{
    MapLayout l = map ? map_layout(g, map) : (MapLayout){ .experts = 1 };
    const Axis *slot = map ? route_slot(map) : NULL;
    int64_t top = slot ? local_n(g, map->in[0], dim_of(map->in[0], slot)) : 1;

    put(out,
        "#define P %ld\n#define Q %ld\n#define AT_ONCE %d\n"
        "#define EXPERTS %ld\n#define TOP %ld\n",
        p, q, ATONCE, l.experts, top);
    putn(out, scale_cuh, strlen(scale_cuh));
    putn(out, blocks_cuh, strlen(blocks_cuh));
}

/* ---- values computed by the kernel --------------------------------------- */

/* Whole blocks only: weights in their layout, or expert rows in both
 * layouts. */
int blocks_fit_loop(const Graph *g, const Node *n)
{
    const Node *x = n->in[0];
    int at;
    int64_t q = matrix_columns(g, n, &at);

    if (q % SCALEBLOCK || gathers_rows(n) || by_rows(n) != (n->nin > 1))
        return 0;
    return by_rows(n) ? x->nd == 2 : local_n(g, x, at) % SCALEBLOCK == 0;
}

int blocks_of_matrix(const Graph *g, const Node *n, int64_t m, int64_t columns)
{
    int at;

    return n->at.quantize_blocks.layout == SCALEsquare && n->nin == 1 &&
           matrix_columns(g, n, &at) == columns &&
           local_n(g, n->in[0], at) == m;
}

int blocks_of_loop(const Group *group, const Node **node)
{
    int n = 0;

    for (int i = 1; i < group->n; i++)
        if (group->node[i]->op == Oquantize_blocks)
            node[n++] = group->node[i];
    return n;
}

char *blocks_loop_lower(Graph *g, Group *group, Arena *a)
{
    const Node *node[MOSTROUNDED];
    LoopTile tile = { .n = blocks_of_loop(group, node) };
    const Node *n = node[0], *map = n->nin > 1 ? n->in[1] : NULL;
    int at;
    Text t = { .arena = a };

    tile.columns = matrix_columns(g, n, &at);
    for (int k = 0; k < tile.n; k++) {
        tile.of[k].node = node[k];
        for (int i = 0; i < 4; i++)
            tile.of[k].part[i] = result_part(group, node[k], i);
    }
    loop_lower_tiles(g, group, a, &tile);
    group->maystore = 1;
    put_blocks_pre(&t, g, map,
                   map ? map_layout(g, map).cap : local_n(g, n->in[0], at),
                   tile.columns);
    return t.s;
}

/* ---- values in memory ---------------------------------------------------- */

void blocks_lower_cuda(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0], *x = n->in[0],
         *map = n->nin > 1 ? n->in[1] : NULL;
    Node *arg[6] = { x,
                     result_part(group, group->node[0], 0),
                     result_part(group, group->node[0], 1),
                     result_part(group, group->node[0], 2),
                     result_part(group, group->node[0], 3),
                     map };
    int at;
    int64_t q = matrix_columns(g, n, &at), all = local_elems(g, x) / q;
    int64_t p = by_rows(n) ? all : local_n(g, x, at);
    int64_t blocks =
        divide_up(q, SCALEBLOCK) * (by_rows(n) ? p : divide_up(p, SCALEBLOCK));
    int64_t turn = LINES * ATONCE;
    int64_t items = by_rows(n) ? (blocks + turn - 1) / turn : all / p * blocks;
    MapLayout l = map ? map_layout(g, map) : (MapLayout){ 0 };
    Text t = { .arena = a };

    if (map)
        p = l.cap;

    for (int i = 0; i < 6; i++)
        if (arg[i])
            vec_push(a, group->arg, storage(arg[i]));
    group->narg = (int)vec_len(group->arg);
    group->maystore = 1;
    group->instr.kind = Ikernel;
    put_blocks_pre(&t, g, map, p, q);
    put_quantize_kernel(&t, group, l.pair);
    set_text_named(group, a, t.s);
    set_label(group, a, n);
    if (map && arg[3])
        items = row_blocks(p, l.experts) * divide_up(q, SCALEBLOCK);
    cuda_set_launch(group, a, (Launch){ .items = items, .threads = THREADS });
}
