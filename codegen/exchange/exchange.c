/* exchange.c: kernels that exchange expert rows between GPUs (exchange.cuh),
 * made from the host's instruction with all sizes as constants. Besides the
 * instruction's buffers a kernel gets this rank's arena, the offset of the
 * group's words behind the arenas, its position in the group, the host's stop
 * word, and the arenas of all ranks of the group. */
#include "exchange.h"

/* BLOCKS: thread blocks of a launch, few because compute kernels run at the
 * same time. SENT, SUMMED: pieces of 16 bytes in flight per thread, for
 * sendrows and for the sums of returnrows (over all ranks). LEASTPART,
 * MOSTPART: pieces of a part in a ring; teams of threads move shorter rows. */
enum { BLOCKS = 16, WARP = 32, SENT = 8, SUMMED = 16 };
enum { LEASTPART = 16, MOSTPART = 256 };

/* Shape of a bulk copy: a ring of `stages` buffers per warp, of which `unread`
 * stores may still read. */
typedef struct CopyShape {
    /* part: pieces, 0: no ring; place: parts in a buffer */
    int64_t threads, stages, unread, part, place;
} CopyShape;

/* Elements that a thread moves at once: 16 bytes if rows are whole multiples of
 * it, else less. */
static int64_t piece_elements(const RowsArgs *args)
{
    int64_t n = 16 / dtypes[args->dt].bytes;

    while (args->width % n)
        n /= 2;
    return n;
}

/* The largest power of two, at most `most`, that divides n. */
static int64_t power_of_two_divisor(int64_t n, int64_t most)
{
    int64_t p = 1;

    while (n % (2 * p) == 0 && 2 * p <= most)
        p *= 2;
    return p;
}

/* Pieces of a part: the largest divisor of n for which `rows` parts fit into
 * shared memory; 0: below LEASTPART. */
static int64_t part_pieces(int64_t n, int64_t rows)
{
    enum { SHAREDBYTES = 192 << 10, PIECEBYTES = 16 };
    int64_t part = SHAREDBYTES / PIECEBYTES / rows;

    part = part < MOSTPART ? part : MOSTPART;
    while (part > 0 && n % part)
        part--;
    return part < LEASTPART ? 0 : part;
}

/* A buffer of returnrows has one part from each rank, and threads sum them;
 * many warps hide that latency, so few multiprocessors saturate the link. */
static CopyShape copy_shape(const RowsArgs *args, int sends, int64_t ranks)
{
    CopyShape s = sends ? (CopyShape){ 256, 6, 2, 0, 1 }
                        : (CopyShape){ 768, 2, 0, 0, ranks };
    int64_t piece = piece_elements(args), places = s.threads / WARP * s.stages;

    if (piece * dtypes[args->dt].bytes == 16 && ranks <= WARP)
        s.part = part_pieces(args->width / piece, places * s.place);
    return s.part ? s : (CopyShape){ .threads = 512 };
}

static void put_sizes(Text *out, const RowsArgs *args, const CopyShape *shape,
                      int64_t most)
{
    int64_t piece = piece_elements(args), pieces = args->width / piece;
    int64_t team = power_of_two_divisor(pieces, WARP);

    put_define(out, "TOKENS", args->tokens);
    put_define(out, "PAIR", args->pair);
    put_define(out, "PIECE", piece);
    put_define(out, "ROWPIECES", pieces);
    put_define(out, "TEAM", team);
    put_define(out, "EACH", power_of_two_divisor(pieces / team, most));
    put_define(out, "THREADS", shape->threads);
    put_define(out, "BULK", shape->part > 0);
    put_define(out, "PART", shape->part);
    put_define(out, "STAGES", shape->stages);
    put_define(out, "UNREAD", shape->unread);
}

/* Rows are copied, not computed with, so one-byte elements are sent as half as
 * many two-byte elements. */
static RowsArgs copied_as(RowsArgs args)
{
    if (dtypes[args.dt].bytes > 1)
        return args;
    args.dt = Dbf16;
    args.width /= 2;
    return args;
}

static char *exchange_text(Arena *a, const Instr *instr, int64_t ranks)
{
    Text t = { .arena = a };
    const RowsArgs rows = copied_as(instr->rows), *v = &rows;
    int sends = instr->kind == Isendrows;
    CopyShape s = copy_shape(v, sends, ranks);

    put(&t, "%s#undef THREADS\n#define T %s\n#define TC %s\n", hopper_cuh,
        dtypes[v->dt].store, dtypes[v->dt].compute);
    put_define(&t, "SENDS", sends);
    put_define(&t, "RANKS", ranks);
    put_sizes(&t, v, &s, sends ? SENT : ranks < SUMMED ? SUMMED / ranks : 1);
    put(&t, "%s", exchange_cuh);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(THREADS)\n"
            "@(void *x, void *to, void *map, void *own, int64_t words, int64_t "
            "me, void *stop");
    for (int64_t r = 0; r < ranks; r++)
        put(&t, ", void *p%ld", r);
    put(&t, ")\n{\n    Group g = { (char *)own, { ");
    for (int64_t r = 0; r < ranks; r++)
        put(&t, "(char *)p%ld, ", r);
    put(&t, "}, words, (int)me, (const volatile uint32_t *)stop, 0 };\n"
            "    g.times = *times_of(g) + 1;\n"
            "    exchange(g, (const Piece *)x, (Piece *)to, (const int32_t "
            "*)map);\n}\n");
    return t.s;
}

void exchange_lower_cuda(const Graph *g, Group *group, Arena *a)
{
    InstrKind kind = group->instr.kind;
    int64_t ranks = mesh_extent(g->mesh, group->instr.atoms);
    const RowsArgs rows = copied_as(group->instr.rows);
    CopyShape s = copy_shape(&rows, kind == Isendrows, ranks);

    set_text_named(group, a, exchange_text(a, &group->instr, ranks));
    group->instr.kind = kind;
    group->instr.launch =
        (Launch){ .items = BLOCKS,
                  .threads = s.threads,
                  .y = 1,
                  .z = 1,
                  .shared = s.threads / WARP * s.stages * s.place * s.part * 16,
                  .peers = 1 };
}
