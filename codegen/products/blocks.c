/* blocks.c: values rounded to numbers of 8 bits with a scale for each block, in
 * the order in which a product reads them (blocks.pre), of what memory holds or
 * of what the kernel makes itself (loop/tile_gpu.c). */
#include "products.h"

/* LINES: blocks of rows that a kernel's threads take side by side, ATONCE times
 * over; TOGETHER: blocks of threads of a multiprocessor. (Rows of tokens and
 * their columns, Mixtral's widths, by as many as 84 registers let there be, 2:
 * 0.651 ms of a step on an H200, by 4 0.614.) */
enum { THREADS = 256, SIDE = 128, LINES = 16, ATONCE = 4, TOGETHER = 4 };

/* Part i of `blocks`, or what writes it to its place; null: nobody reads it. */
static Node *part_of(const Group *k, const Node *blocks, int64_t i)
{
    for (int m = 0; m < k->nout; m++) {
        Node *n = k->out[m], *part = n->op == Owrite ? n->in[1] : n;
        if (part->op == Opart && part->in[0] == blocks &&
            part->at.part.index == i)
            return n;
    }
    return NULL;
}

/* Columns of the matrix whose blocks n makes: of rows the last axis, else all
 * behind the first that is cut. */
static int64_t columns_of(const Graph *g, const Node *n, int *rows)
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

static int64_t blocks_along(int64_t n)
{
    return (n + SIDE - 1) / SIDE;
}

static int in_rows(const Node *n)
{
    return n->at.quantize_blocks.layout == SCALEwide;
}

/* Argument `name`, or the row of a stack where the map says that n's rows
 * begin; wide: elements of a row. */
static void put_rows(Text *out, const char *name, Node *n, const char *wide)
{
    put(out, "%s", n ? name : "0");
    if (n && storage(n)->stash)
        put(out, " + (int64_t)off[EXPERTS + 1] * %s", wide);
    put(out, ", ");
}

/* Does it read tokens, as rows of which its map sends them? */
static int gathers_rows(const Node *n)
{
    return n->nin > 1 && !n->in[0]->map;
}

/* Of rows: those that the map says there are. pair: in it, which token's each
 * is. */
static void put_ragged(Text *out, const Group *group, int64_t pair, int lies,
                       int turned)
{
    int gathered = gathers_rows(group->node[0]);

    put(out,
        "@(const uint16_t *x%s%s, const int32_t *off)\n{\n    quantize_%s(",
        lies ? ", uint8_t *q, float *s" : "",
        turned ? ", uint8_t *tq, float *ts" : "",
        !turned ? "rows" : strf(out->arena, "columns<%d, %d>", lies, gathered));
    put_rows(out, "x", group->node[0]->in[0], "Q");
    put_rows(out, "q", part_of(group, group->node[0], 0), "Q");
    put_rows(out, "s", part_of(group, group->node[0], 1), "BLOCKSQ");
    if (turned)
        put(out, "tq, ts, off, off + %lld);\n}\n", (long long)pair);
    else
        put(out, "off[EXPERTS]);\n}\n");
}

/* Weights: all they have, in the orders that are read. */
static void put_kernel(Text *out, const Group *group, int64_t pair)
{
    const Node *n = group->node[0];
    int lies = part_of(group, n, 0) != NULL,
        turned = part_of(group, n, 2) != NULL;

    put(out, "extern \"C\" __global__ void __launch_bounds__(%d, %d)\n",
        THREADS, TOGETHER);
    if (in_rows(n) && n->nin == 1) {
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
    put_ragged(out, group, pair, lies, turned);
}

/* blocks.pre for a matrix [p q], of rows that lie as the map says. */
static void put_pre(Text *out, const Graph *g, const Node *map, int64_t p,
                    int64_t q)
{
    MapLayout l = map ? map_layout(g, map) : (MapLayout){ .experts = 1 };
    const Axis *slot = map ? route_slot(map) : NULL;
    int64_t top = slot ? local_n(g, map->in[0], dim_of(map->in[0], slot)) : 1;

    put(out,
        "#define P %lld\n#define Q %lld\n#define AT_ONCE %d\n"
        "#define EXPERTS %lld\n#define TOP %lld\n",
        (long long)p, (long long)q, ATONCE, (long long)l.experts,
        (long long)top);
    putn(out, scale_pre, strlen(scale_pre));
    putn(out, blocks_pre, strlen(blocks_pre));
}

/* ---- of what the kernel makes -------------------------------------------- */

/* Whole blocks: of weights as they lie, of rows in columns too. */
int blocks_fit_loop(const Graph *g, const Node *n)
{
    const Node *x = n->in[0];
    int at;
    int64_t q = columns_of(g, n, &at);

    if (q % SIDE || gathers_rows(n) || in_rows(n) != (n->nin > 1))
        return 0;
    return in_rows(n) ? x->nd == 2 : local_n(g, x, at) % SIDE == 0;
}

int blocks_of_matrix(const Graph *g, const Node *n, int64_t m, int64_t columns)
{
    int at;

    return n->at.quantize_blocks.layout == SCALEsquare && n->nin == 1 &&
           columns_of(g, n, &at) == columns && local_n(g, n->in[0], at) == m;
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

    tile.columns = columns_of(g, n, &at);
    for (int k = 0; k < tile.n; k++) {
        tile.of[k].node = node[k];
        for (int i = 0; i < 4; i++)
            tile.of[k].part[i] = part_of(group, node[k], i);
    }
    loop_lower_tiles(g, group, a, &tile);
    group->maystore = 1;
    put_pre(&t, g, map, map ? map_layout(g, map).cap : local_n(g, n->in[0], at),
            tile.columns);
    return t.s;
}

/* ---- of what memory holds ------------------------------------------------ */

void blocks_lower_cuda(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0], *x = n->in[0],
         *map = n->nin > 1 ? n->in[1] : NULL;
    Node *arg[6] = { x,
                     part_of(group, group->node[0], 0),
                     part_of(group, group->node[0], 1),
                     part_of(group, group->node[0], 2),
                     part_of(group, group->node[0], 3),
                     map };
    int at;
    int64_t q = columns_of(g, n, &at), all = local_elems(g, x) / q;
    int64_t p = in_rows(n) ? all : local_n(g, x, at);
    int64_t blocks = blocks_along(q) * (in_rows(n) ? p : blocks_along(p));
    int64_t turn = LINES * ATONCE;
    int64_t items = in_rows(n) ? (blocks + turn - 1) / turn : all / p * blocks;
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
    put_pre(&t, g, map, p, q);
    put_kernel(&t, group, l.pair);
    set_text_named(group, a, t.s);
    set_label(group, a, n);
    if (map && arg[3])
        items = row_blocks(p, l.experts) * blocks_along(q);
    cuda_set_launch(group, a, (Launch){ .items = items, .threads = THREADS });
}
