/* tile_gpu.c: GPU kernels that quantize some of their values in blocks of 128 x
 * 128, or of 128 lines (products/blocks.cuh), where they are computed. A thread
 * block computes a tile of 128 lines of 128 columns, one vector per thread at a
 * time, adjacent threads along a line. Values to be quantized are stored in
 * shared memory as bf16:
 *
 *     for (int k = 0; k < PIECES_OF(4); k++) {
 *         const ix p = (ix)square_piece<4>(k);
 *         ... as print_single_items() of map_gpu.c for thread p ...
 *         most = keep_piece<4>(held, k, t26, most);
 *     }
 *     round_square<4>(held, most, (uint8_t *)b8, b9);
 *
 * Elements are computed by the same expressions as in an elementwise kernel, so
 * values and scales do not depend on fusion. Sums over a line of the tile are
 * computed by the team that has the line (map_to_teams() of map_gpu.c).
 * Measurements: decisions/quantizing-kernels.md. */
#include "loop.h"

enum { SIDE = SCALEBLOCK }; /* lines and columns of a tile */

static const Node *map_of(const LoopTile *tile)
{
    return tile->of[0].node->nin > 1 ? tile->of[0].node->in[1] : NULL;
}

/* Pointer to part i, with the element type that blocks.cuh expects. */
static const char *part_pointer(KernelPrinter *printer, const Rounded *of,
                                int i)
{
    Node *n = of->part[i];

    if (!n)
        return "0";
    int at = add_arg(printer->group, printer->arena, storage(n));
    return strf(printer->arena, i % 2 ? "b%d" : "(uint8_t *)b%d", at);
}

/* Shared memory of the i-th tile. */
static const char *tile_memory(KernelPrinter *printer, int i)
{
    return i ? strf(printer->arena, "held + %d", i * SIDE * SIDE) : "held";
}

/* The loop over expert rows if it has one iteration per row; else -1. */
static int row_loop(const KernelPrinter *printer)
{
    for (int u = 0; u < printer->kernel->nloop; u++)
        if ((printer->items & BIT(u)) && printer->kernel->loop[u].map &&
            !printer->kernel->loop[u].per)
            return u;
    return -1;
}

/* Indices of a vector in tiles with sums, whose loops are rows, blocks and the
 * columns of a block v; no division is needed. Returns 0 if the loops
 * differ. */
static int put_line_piece(KernelPrinter *printer, int v, int w)
{
    int u[MAXLOOP], k = item_loops(printer, printer->items, u);
    const Loop *loop = printer->kernel->loop;

    if (k != 2 || u[0] != row_loop(printer) ||
        loop[u[1]].extent->v * SIDE != printer->kernel->tile->columns ||
        printer->items & BIT(v))
        return 0;
    text_line(printer, "const ix i%d = place.row + piece_line<%d>(k);", u[0],
              w);
    text_line(printer, "const ix i%d = (int)blockIdx.x %% BLOCKSQ;", u[1]);
    text_line(printer, "const ix v%d = TID %% %d * %d;", v, SIDE / w, w);
    return 1;
}

/* Prints the index variables of the k-th vector, of w elements of loop v. */
static void put_piece(KernelPrinter *printer, int v, int w, const Node *map)
{
    int64_t per = printer->kernel->loop[v].extent->v / w;
    int u[MAXLOOP], k = item_loops(printer, printer->items & ~BIT(v), u);

    if (map && put_line_piece(printer, v, w))
        return;
    text_line(printer,
              map ? "const ix p = (ix)row_piece<%d>(place, k);"
                  : "const ix p = (ix)square_piece<%d>(k);",
              w);
    text_line(printer, "const ix %s%d = p %% %ld * %d;", w > 1 ? "v" : "i", v,
              per, w);
    put_indices(printer, u, k, strf(printer->arena, "p / %ld", per));
}

void tile_store(KernelPrinter *printer, const Store *store, const Expr *val)
{
    int t = val->local;

    if (!t || !val->array) {
        const char *x = value_name(printer, (Expr *)(uintptr_t)val);
        t = ++printer->nlocal;
        text_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[val->dt].compute, t, lane_count(printer),
                  each_lane(printer), t, x);
    }
    text_line(printer, "most = keep_piece<%d>(%s, k, t%d, most);",
              printer->width, tile_memory(printer, store->held - 1), t);
}

/* Finds the block's 128 rows of an expert; rows beyond the expert's are 0. */
static void put_place(KernelPrinter *printer, const Node *map)
{
    int at = add_arg(printer->group, printer->arena,
                     storage((Node *)(uintptr_t)map));

    text_line(printer, "const int32_t *const off = (const int32_t *)b%d;", at);
    text_line(printer, "const Place place = "
                       "block_place((int)blockIdx.x / BLOCKSQ, off);");
    text_line(printer, "if (place.rows == 0) return;");
}

/* ---- values of a line ---------------------------------------------------- */

static int is_read_by(const Expr *x, const Expr *expr)
{
    int reads = 0;

    for (int k = 0; k < x->na; k++)
        reads |= x->arg[k] == expr;
    for (int i = 0; x->lin && i < x->lin->nt; i++)
        reads |= x->lin->term[i].var == MAXLOOP + expr->id;
    return reads;
}

/* Does an expression over further loops read it? */
static int is_read_along(const LoopKernel *kernel, const Expr *expr)
{
    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *x = kernel->ex[i];
        if (x->seen && (x->deps | x->K) & ~expr->deps && is_read_by(x, expr))
            return 1;
    }
    return 0;
}

static int reads_memory(KernelPrinter *printer, Expr *expr)
{
    Expr **x = needed_values(printer, &expr, 1);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload)
            return 1;
    return 0;
}

/* Computes values that are read from memory once per line by one thread per
 * line and shares them: otherwise each vector would wait for the row's token,
 * its expert and its weight in sequence. */
static Expr **put_line_values(KernelPrinter *printer, int r)
{
    LoopKernel *kernel = printer->kernel;
    Expr **line = NULL;

    for (size_t i = 0; r >= 0 && i < vec_len(kernel->ex); i++) {
        Expr *expr = kernel->ex[i];
        if (expr->seen && expr->deps == BIT(r) && !is_inline(expr) &&
            is_read_along(kernel, expr) && reads_memory(printer, expr))
            vec_push(printer->arena, line, expr);
    }
    if (!vec_len(line))
        return NULL;
    for (size_t i = 0; i < vec_len(line); i++)
        text_line(printer, "__shared__ %s line%zu[%d];",
                  dtypes[line[i]->dt].compute, i, SIDE);
    text_line(printer, "if (TID < place.rows) {");
    Braces s = scope_enter(printer, BIT(r));
    text_line(printer, "const ix i%d = place.row + TID;", r);
    print_needed(printer, line, (int)vec_len(line));
    for (size_t i = 0; i < vec_len(line); i++)
        text_line(printer, "line%zu[TID] = %s;", i,
                  value_name(printer, line[i]));
    scope_leave(printer, s);
    text_line(printer, "__syncthreads();");
    return line;
}

/* Declares these values for the line of the vector. */
static void take_line_values(KernelPrinter *printer, Expr *const *line, int w)
{
    for (size_t i = 0; i < vec_len(line); i++)
        text_line(printer, "const %s t%d = line%zu[piece_line<%d>(k)];",
                  dtypes[line[i]->dt].compute, declare_local(printer, line[i]),
                  i, w);
}

/* ---- tiles --------------------------------------------------------------- */

/* Lines beyond the expert's rows are 0 in the tile and are not stored
 * elsewhere. */
static void put_missing_rows(KernelPrinter *printer, int w)
{
    text_line(printer, "if (piece_line<%d>(k) >= place.rows) {", w);
    for (int i = 0; i < printer->kernel->tile->n; i++)
        text_line(printer, "    clear_piece<%d>(%s, k);", w,
                  tile_memory(printer, i));
    text_line(printer, "    continue;");
    text_line(printer, "}");
}

/* Each thread has an item; with sums a team has a line of v. */
static void open_tile_lanes(KernelPrinter *printer, int v, int w)
{
    lanes_open(printer, v, w, -1);
    printer->per_thread = (printer->items & BIT(v)) != 0;
    if (printer->per_thread)
        return;
    printer->team = SIDE / w;
    printer->row = BIT(v);
    printer->bound |= BIT(v);
    text_line(printer, "const int lane = TID %% %d; (void)lane;",
              printer->team);
}

static void put_tile(KernelPrinter *printer, int v, int w, const Node *map)
{
    text_line(printer, "extern __shared__ __align__(16) uint16_t held[];");
    text_line(printer, "uint32_t most = 0;");
    if (map)
        put_place(printer, map);
    Expr **line = put_line_values(printer, map ? row_loop(printer) : -1);
    text_line(printer, "#pragma unroll 1");
    text_line(printer, "for (int k = 0; k < PIECES_OF(%d); k++) {", w);
    printer->depth++;
    if (map)
        put_missing_rows(printer, w);
    put_piece(printer, v, w, map);
    text_line(printer, "{");
    Braces s = scope_enter(printer, printer->items);
    open_tile_lanes(printer, v, w);
    take_line_values(printer, line, w);
    print_stages(printer);
    scope_leave(printer, s);
    printer->depth--;
    text_line(printer, "}");
}

static void put_rounding(KernelPrinter *printer, int at, int w, int in_rows)
{
    const Rounded *of = &printer->kernel->tile->of[at];
    const char *part[4], *held = tile_memory(printer, at);

    for (int i = 0; i < 4; i++)
        part[i] = part_pointer(printer, of, i);
    if (in_rows)
        text_line(printer, "round_columns<%d>(%s, %s, %s, %s, %s, place);",
                  of->part[0] != NULL, held, part[0], part[1], part[2],
                  part[3]);
    else
        text_line(printer, "round_square<%d>(%s, most, %s, %s);", w, held,
                  part[0], part[1]);
}

void print_tiles(KernelPrinter *printer)
{
    const LoopTile *tile = printer->kernel->tile;
    const Graph *g = printer->kernel->graph;
    const Node *map = map_of(tile);
    int v = printer->v, w = v < 0 ? 0 : lane_width(printer, v);
    int64_t items = local_elems(g, tile->of[0].node->in[0]) / (SIDE * SIDE);

    if (w != 4 && w != 8)
        die("tiles: pieces of %d elements", w);
    put_tile(printer, v, w, map);
    for (int i = 0; i < tile->n; i++)
        put_rounding(printer, i, w, map != NULL);
    if (map) {
        MapLayout l = map_layout(g, map);
        items = row_blocks(l.cap, l.experts) * (tile->columns / SIDE);
    }
    printer->group->together = tile->n > 1 ? 3 : 4;
    printer->group->instr.launch = (Launch){
        .items = items,
        .threads = THREADMAP,
        .shared = (int64_t)tile->n * SIDE * SIDE * dtypes[Dbf16].bytes,
    };
}
