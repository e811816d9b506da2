/* tile_gpu.c: a map on a GPU whose value is rounded in blocks of 128 x 128 or
 * of 128 lines (products/blocks.pre) before it leaves the chip. A block of
 * threads makes a tile of 128 lines of 128 columns, a piece a thread at a time,
 * those of a warp side by side along a line, and leaves what is to be rounded
 * in shared memory as bf16:
 *
 *     for (int k = 0; k < PIECES_OF(4); k++) {
 *         const ix p = (ix)square_piece<4>(k);
 *         ... as single_items() of map_gpu.c has it for thread p ...
 *         most = hold_piece<4>(held, k, t26, most);
 *     }
 *     round_square<4>(held, most, (uint8_t *)b8, b9);
 *
 * The elements are those of the map, by the same expressions, so neither values
 * nor what they are rounded to depend on who rounds them.
 *
 * AdamW with its rounding, Mixtral's widths on an H200: 6.86 ms two launches,
 * as much with two pieces of a thread underway; 7.42 and 9.48 where registers
 * are few enough for 5 and 6 blocks a multiprocessor. */
#include "loop.h"

enum { SIDE = 128 };

static const Node *map_of(const LoopTile *tile)
{
    return tile->node->nin > 1 ? tile->node->in[1] : NULL;
}

/* A part's pointer, of elements of the type that blocks.pre gives it. */
static const char *part_text(KernelPrinter *printer, int i)
{
    Node *n = printer->kernel->tile->part[i];

    if (!n)
        return "0";
    int at = add_arg(printer->group, printer->arena, storage(n));
    return strf(printer->arena, i % 2 ? "b%d" : "(uint8_t *)b%d", at);
}

/* Index variables of piece p, which has w elements of loop v. */
static void put_piece(KernelPrinter *printer, int v, int w)
{
    int64_t per = printer->kernel->loop[v].extent->v / w;
    int u[MAXLOOP], k = form_items(printer, printer->items & ~BIT(v), u);

    nest_line(printer, "const ix %s%d = p %% %ld * %d;", w > 1 ? "v" : "i", v,
              per, w);
    form_decode(printer, u, k, strf(printer->arena, "p / %ld", per));
}

void tile_hold(KernelPrinter *printer, const Expr *val)
{
    int t = val->local;

    if (!t || !val->array) {
        const char *x = nest_ref(printer, (Expr *)(uintptr_t)val);
        t = ++printer->nlocal;
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[val->dt].compute, t, wide_count(printer),
                  wide_each(printer), t, x);
    }
    nest_line(printer, "most = hold_piece<%d>(held, k, t%d, most);",
              printer->width, t);
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

static void put_tile(KernelPrinter *printer, int v, int w, const Node *map)
{
    nest_line(printer, "__shared__ __align__(16) uint16_t held[%d];",
              SIDE * SIDE);
    nest_line(printer, "uint32_t most = 0;");
    if (map)
        put_place(printer, map);
    nest_line(printer, "#pragma unroll 1");
    nest_line(printer, "for (int k = 0; k < PIECES_OF(%d); k++) {", w);
    printer->depth++;
    if (map) {
        nest_line(printer, "if (piece_line<%d>(k) >= place.rows) {", w);
        nest_line(printer, "    hold_none<%d>(held, k);", w);
        nest_line(printer, "    continue;");
        nest_line(printer, "}");
    }
    nest_line(printer,
              map ? "const ix p = (ix)row_piece<%d>(place, k);"
                  : "const ix p = (ix)square_piece<%d>(k);",
              w);
    put_piece(printer, v, w);
    nest_line(printer, "{");
    Braces s = nest_enter(printer, printer->items);
    wide_open(printer, v, w, -1);
    wide_stages(printer);
    nest_leave(printer, s);
    printer->depth--;
    nest_line(printer, "}");
}

void tile_form(KernelPrinter *printer)
{
    const LoopTile *tile = printer->kernel->tile;
    const Node *map = map_of(tile);
    int v = printer->v, w = v < 0 ? 0 : wide_width(printer, v);
    int64_t items;
    const char *part[4];

    if (w != 4 && w != 8)
        die("tiles: pieces of %d elements", w);
    printer->own = 1;
    put_tile(printer, v, w, map);
    for (int i = 0; i < 4; i++)
        part[i] = part_text(printer, i);
    if (map) {
        MapLayout l = map_layout(printer->kernel->graph, map);
        nest_line(printer, "round_columns<%d>(held, %s, %s, %s, %s, place);",
                  tile->part[0] != NULL, part[0], part[1], part[2], part[3]);
        items = row_blocks(l.cap, l.experts) * (tile->columns / SIDE);
    } else {
        nest_line(printer, "round_square<%d>(held, most, %s, %s);", w, part[0],
                  part[1]);
        items = local_elems(printer->kernel->graph, tile->node->in[0]) /
                (SIDE * SIDE);
    }
    printer->group->instr.launch =
        (Launch){ .items = items, .threads = THREADMAP };
}
