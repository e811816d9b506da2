/* tile_gpu.c: a kernel on a GPU of whose values some are rounded in blocks of
 * 128 x 128 or of 128 lines (products/blocks.pre) before they leave the chip. A
 * block of threads makes a tile of 128 lines of 128 columns, a piece a thread
 * at a time, those of a warp side by side along a line, and leaves what is to
 * be rounded in shared memory as bf16:
 *
 *     for (int k = 0; k < PIECES_OF(4); k++) {
 *         const ix p = (ix)square_piece<4>(k);
 *         ... as single_items() of map_gpu.c has it for thread p ...
 *         most = hold_piece<4>(held, k, t26, most);
 *     }
 *     round_square<4>(held, most, (uint8_t *)b8, b9);
 *
 * The elements are those of the map, by the same expressions, so neither values
 * nor what they are rounded to depend on who rounds them. What is summed of a
 * tile's line is summed by the threads that have it, a team (by_team() of
 * map_gpu.c).
 *
 * AdamW with its rounding, Mixtral's widths on an H200: 6.86 ms two launches,
 * as much with two pieces of a thread underway; 6.85 by 4 blocks of threads a
 * multiprocessor; 7.42 and 9.48 where registers are few enough for 5 and 6.
 * What swiglu's backward makes, two values rounded and a sum: 3.59 ms two
 * launches by 3 blocks, which instructions bound, 4.29 by 2 with two pieces
 * underway; 4.24 by kernels of their own. */
#include "loop.h"

enum { SIDE = 128 };

static const Node *map_of(const LoopTile *tile)
{
    return tile->of[0].node->nin > 1 ? tile->of[0].node->in[1] : NULL;
}

/* A part's pointer, of elements of the type that blocks.pre gives it. */
static const char *part_text(KernelPrinter *printer, const Rounded *of, int i)
{
    Node *n = of->part[i];

    if (!n)
        return "0";
    int at = add_arg(printer->group, printer->arena, storage(n));
    return strf(printer->arena, i % 2 ? "b%d" : "(uint8_t *)b%d", at);
}

/* Where the tile's values lie that are rounded as its i-th. */
static const char *held_at(KernelPrinter *printer, int i)
{
    return i ? strf(printer->arena, "held + %d", i * SIDE * SIDE) : "held";
}

/* The loop of experts' rows, if that counts them one by one; -1. */
static int row_loop(const KernelPrinter *printer)
{
    for (int u = 0; u < printer->kernel->nloop; u++)
        if ((printer->items & BIT(u)) && printer->kernel->loop[u].map &&
            !printer->kernel->loop[u].per)
            return u;
    return -1;
}

/* Of lines with sums, whose loops are rows, blocks and columns of a block v:
 * all is known without a division. */
static int put_line_piece(KernelPrinter *printer, int v, int w)
{
    int u[MAXLOOP], k = form_items(printer, printer->items, u);
    const Loop *loop = printer->kernel->loop;

    if (k != 2 || u[0] != row_loop(printer) ||
        loop[u[1]].extent->v * SIDE != printer->kernel->tile->columns ||
        printer->items & BIT(v))
        return 0;
    nest_line(printer, "const ix i%d = place.row + piece_line<%d>(k);", u[0],
              w);
    nest_line(printer, "const ix i%d = (int)blockIdx.x %% BLOCKSQ;", u[1]);
    nest_line(printer, "const ix v%d = TID %% %d * %d;", v, SIDE / w, w);
    return 1;
}

/* Index variables of the k-th piece, which has w elements of loop v. */
static void put_piece(KernelPrinter *printer, int v, int w, const Node *map)
{
    int64_t per = printer->kernel->loop[v].extent->v / w;
    int u[MAXLOOP], k = form_items(printer, printer->items & ~BIT(v), u);

    if (map && put_line_piece(printer, v, w))
        return;
    nest_line(printer,
              map ? "const ix p = (ix)row_piece<%d>(place, k);"
                  : "const ix p = (ix)square_piece<%d>(k);",
              w);
    nest_line(printer, "const ix %s%d = p %% %ld * %d;", w > 1 ? "v" : "i", v,
              per, w);
    form_decode(printer, u, k, strf(printer->arena, "p / %ld", per));
}

void tile_hold(KernelPrinter *printer, const Store *store, const Expr *val)
{
    int t = val->local;

    if (!t || !val->array) {
        const char *x = nest_ref(printer, (Expr *)(uintptr_t)val);
        t = ++printer->nlocal;
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[val->dt].compute, t, wide_count(printer),
                  wide_each(printer), t, x);
    }
    nest_line(printer, "most = hold_piece<%d>(%s, k, t%d, most);",
              printer->width, held_at(printer, store->held - 1), t);
}

/* Which 128 rows of an expert are the block's; those that it lacks are 0. */
static void put_place(KernelPrinter *printer, const Node *map)
{
    int at = add_arg(printer->group, printer->arena,
                     storage((Node *)(uintptr_t)map));

    nest_line(printer, "const int32_t *const off = (const int32_t *)b%d;", at);
    nest_line(printer, "const Place place = "
                       "block_place((int)blockIdx.x / BLOCKSQ, off);");
    nest_line(printer, "if (place.rows == 0) return;");
}

/* ---- values of lines ----------------------------------------------------- */

static int is_read_by(const Expr *x, const Expr *expr)
{
    int reads = 0;

    for (int k = 0; k < x->na; k++)
        reads |= x->arg[k] == expr;
    for (int i = 0; x->lin && i < x->lin->nt; i++)
        reads |= x->lin->term[i].var == MAXLOOP + expr->id;
    return reads;
}

/* Does something of other loops read it? */
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
    Expr **x = nest_reached(printer, &expr, 1);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload)
            return 1;
    return 0;
}

/* What is read of memory for all of a line, made by a thread of each line and
 * left in shared memory: else each of a thread's pieces would wait for a row's
 * token, what chose its expert, and its weight, one after another. */
static Expr **put_line_values(KernelPrinter *printer, int r)
{
    LoopKernel *kernel = printer->kernel;
    Expr **line = NULL;

    for (size_t i = 0; r >= 0 && i < vec_len(kernel->ex); i++) {
        Expr *expr = kernel->ex[i];
        if (expr->seen && expr->deps == BIT(r) && !nest_inline(expr) &&
            is_read_along(kernel, expr) && reads_memory(printer, expr))
            vec_push(printer->arena, line, expr);
    }
    if (!vec_len(line))
        return NULL;
    for (size_t i = 0; i < vec_len(line); i++)
        nest_line(printer, "__shared__ %s line%zu[%d];",
                  dtypes[line[i]->dt].compute, i, SIDE);
    nest_line(printer, "if (TID < place.rows) {");
    Braces s = nest_enter(printer, BIT(r));
    nest_line(printer, "const ix i%d = place.row + TID;", r);
    nest_need(printer, line, (int)vec_len(line));
    for (size_t i = 0; i < vec_len(line); i++)
        nest_line(printer, "line%zu[TID] = %s;", i, nest_ref(printer, line[i]));
    nest_leave(printer, s);
    nest_line(printer, "__syncthreads();");
    return line;
}

/* They are at hand for the piece's line. */
static void take_line_values(KernelPrinter *printer, Expr *const *line, int w)
{
    for (size_t i = 0; i < vec_len(line); i++)
        nest_line(printer, "const %s t%d = line%zu[piece_line<%d>(k)];",
                  dtypes[line[i]->dt].compute, nest_local(printer, line[i]), i,
                  w);
}

/* ---- tiles --------------------------------------------------------------- */

/* Lines that an expert lacks are 0 in the tile, and nowhere else. */
static void put_rows(KernelPrinter *printer, int w)
{
    nest_line(printer, "if (piece_line<%d>(k) >= place.rows) {", w);
    for (int i = 0; i < printer->kernel->tile->n; i++)
        nest_line(printer, "    hold_none<%d>(%s, k);", w, held_at(printer, i));
    nest_line(printer, "    continue;");
    nest_line(printer, "}");
}

/* Threads have each an item, or where there are sums a team has a line of v. */
static void open_lanes(KernelPrinter *printer, int v, int w)
{
    wide_open(printer, v, w, -1);
    printer->own = (printer->items & BIT(v)) != 0;
    if (printer->own)
        return;
    printer->team = SIDE / w;
    printer->row = BIT(v);
    printer->bound |= BIT(v);
    nest_line(printer, "const int lane = TID %% %d; (void)lane;",
              printer->team);
}

static void put_tile(KernelPrinter *printer, int v, int w, const Node *map)
{
    nest_line(printer, "extern __shared__ __align__(16) uint16_t held[];");
    nest_line(printer, "uint32_t most = 0;");
    if (map)
        put_place(printer, map);
    Expr **line = put_line_values(printer, map ? row_loop(printer) : -1);
    nest_line(printer, "#pragma unroll 1");
    nest_line(printer, "for (int k = 0; k < PIECES_OF(%d); k++) {", w);
    printer->depth++;
    if (map)
        put_rows(printer, w);
    put_piece(printer, v, w, map);
    nest_line(printer, "{");
    Braces s = nest_enter(printer, printer->items);
    open_lanes(printer, v, w);
    take_line_values(printer, line, w);
    wide_stages(printer);
    nest_leave(printer, s);
    printer->depth--;
    nest_line(printer, "}");
}

static void put_rounding(KernelPrinter *printer, int at, int w, int in_rows)
{
    const Rounded *of = &printer->kernel->tile->of[at];
    const char *part[4], *held = held_at(printer, at);

    for (int i = 0; i < 4; i++)
        part[i] = part_text(printer, of, i);
    if (in_rows)
        nest_line(printer, "round_columns<%d>(%s, %s, %s, %s, %s, place);",
                  of->part[0] != NULL, held, part[0], part[1], part[2],
                  part[3]);
    else
        nest_line(printer, "round_square<%d>(%s, most, %s, %s);", w, held,
                  part[0], part[1]);
}

void tile_form(KernelPrinter *printer)
{
    const LoopTile *tile = printer->kernel->tile;
    const Graph *g = printer->kernel->graph;
    const Node *map = map_of(tile);
    int v = printer->v, w = v < 0 ? 0 : wide_width(printer, v);
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
