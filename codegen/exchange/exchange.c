/* exchange.c: exchanges of rows on GPUs, from the host's instruction: a kernel
 * whose sizes are constants (exchange.pre). Beside the instruction's buffers it
 * gets this rank's arena, where the group's words begin behind arenas, its
 * position in the group, a word of the host that ends it, and the arenas of all
 * of the group. */
#include "exchange.h"

/* At most so many multiprocessors are taken from what computes beside it. A
 * ring's parts are at least LEAST pieces; shorter rows go by teams of threads,
 * with so many pieces on their way as fit a thread's registers: those that it
 * sums are of all ranks. */
enum { BLOCKS = 16, WARP = 32, SENT = 8, SUMMED = 16, LEAST = 16, MOST = 256 };

/* A ring a warp; parts of rows that stores may still read. */
typedef struct CopyShape {
    int64_t threads, stages, unread, part, place; /* part: 0: no ring */
} CopyShape;

static void put_define(Text *out, const char *name, int64_t v)
{
    put(out, "#define %s %ld\n", name, v);
}

/* Elements that a thread moves at once: 16 bytes where rows are whole pieces
 * of that. */
static int64_t piece_of(const RowsArgs *args)
{
    int64_t n = 16 / dtypes[args->dt].bytes;

    while (args->width % n)
        n /= 2;
    return n;
}

/* The largest power of two that divides n, at most `most`. */
static int64_t share_of(int64_t n, int64_t most)
{
    int64_t p = 1;

    while (n % (2 * p) == 0 && 2 * p <= most)
        p *= 2;
    return p;
}

/* The most pieces, a divisor of n, of which there is room for `rows`. */
static int64_t part_of(int64_t n, int64_t rows)
{
    enum { ROOM = 192 << 10, PIECE = 16 };
    int64_t part = ROOM / PIECE / rows;

    part = part < MOST ? part : MOST;
    while (part > 0 && n % part)
        part--;
    return part < LEAST ? 0 : part;
}

/* Of what returns a place has a row of each rank, and threads sum: many warps
 * hide the time of that, so 10 multiprocessors fill the link. */
static CopyShape shape_of(const RowsArgs *args, int sends, int64_t ranks)
{
    CopyShape s = sends ? (CopyShape){ 256, 6, 2, 0, 1 }
                        : (CopyShape){ 768, 2, 0, 0, ranks };
    int64_t piece = piece_of(args), places = s.threads / WARP * s.stages;

    if (piece * dtypes[args->dt].bytes == 16 && ranks <= WARP)
        s.part = part_of(args->width / piece, places * s.place);
    return s.part ? s : (CopyShape){ .threads = 512 };
}

static void put_sizes(Text *out, const RowsArgs *args, const CopyShape *shape,
                      int64_t most)
{
    int64_t piece = piece_of(args), pieces = args->width / piece;
    int64_t team = share_of(pieces, WARP);

    put_define(out, "TOKENS", args->tokens);
    put_define(out, "PAIR", args->pair);
    put_define(out, "PIECE", piece);
    put_define(out, "ROWPIECES", pieces);
    put_define(out, "TEAM", team);
    put_define(out, "EACH", share_of(pieces / team, most));
    put_define(out, "THREADS", shape->threads);
    put_define(out, "BULK", shape->part > 0);
    put_define(out, "PART", shape->part);
    put_define(out, "STAGES", shape->stages);
    put_define(out, "UNREAD", shape->unread);
}

/* What is sent is not computed with: rows of one byte an element go as rows of
 * half as many elements of two. */
static RowsArgs as_sent(RowsArgs args)
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
    const RowsArgs rows = as_sent(instr->rows), *v = &rows;
    int sends = instr->kind == Isendrows;
    CopyShape s = shape_of(v, sends, ranks);

    put(&t, "#undef THREADS\n#define T %s\n#define TC %s\n",
        dtypes[v->dt].store, dtypes[v->dt].compute);
    put_define(&t, "SENDS", sends);
    put_define(&t, "RANKS", ranks);
    put_sizes(&t, v, &s, sends ? SENT : ranks < SUMMED ? SUMMED / ranks : 1);
    put(&t, "%s", exchange_pre);
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
    const RowsArgs rows = as_sent(group->instr.rows);
    CopyShape s = shape_of(&rows, kind == Isendrows, ranks);

    set_text_named(group, a, exchange_text(a, &group->instr, ranks));
    group->instr.kind = kind;
    group->instr.rows.blocks = BLOCKS;
    group->instr.rows.threads = (int)s.threads;
    group->instr.rows.shared =
        s.threads / WARP * s.stages * s.place * s.part * 16;
}
