/* exchange.c: exchanges of rows on GPUs, from the host's instruction: a kernel
 * whose sizes are constants (exchange.pre). Beside the instruction's buffers it
 * gets this rank's arena, where the group's words begin behind arenas, its
 * position in the group, a word of the host that ends it, and the arenas of all
 * of the group. */
#include "exchange.h"

/* At most so many multiprocessors are taken from what computes beside it. A
 * thread has so many pieces on their way as fit its registers: those that it
 * sums are of all ranks. */
enum { BLOCKS = 16, THREADS = 512, WARP = 32, SENT = 8, SUMMED = 16 };

static void put_define(Text *t, const char *name, int64_t v)
{
    put(t, "#define %s %lld\n", name, (long long)v);
}

/* Elements that a thread moves at once: 16 bytes where rows are whole pieces
 * of that. */
static int64_t piece_of(const RowsArgs *v)
{
    int64_t n = 16 / dtypes[v->dt].bytes;

    while (v->width % n)
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

static void put_sizes(Text *t, const RowsArgs *v, int64_t most)
{
    int64_t piece = piece_of(v), pieces = v->width / piece;
    int64_t team = share_of(pieces, WARP);

    put_define(t, "TOKENS", v->tokens);
    put_define(t, "PAIR", v->pair);
    put_define(t, "PIECE", piece);
    put_define(t, "ROWPIECES", pieces);
    put_define(t, "TEAM", team);
    put_define(t, "EACH", share_of(pieces / team, most));
    put_define(t, "THREADS", THREADS);
}

char *exchange_text(Arena *a, const Instr *s, int64_t ranks)
{
    Text t = { .arena = a };
    const RowsArgs *v = &s->rows;
    int sends = s->kind == Isendrows;

    put(&t, "#undef THREADS\n#define T %s\n#define TC %s\n",
        dtypes[v->dt].store, dtypes[v->dt].compute);
    put_define(&t, "SENDS", sends);
    put_define(&t, "RANKS", ranks);
    put_sizes(&t, v, sends ? SENT : ranks < SUMMED ? SUMMED / ranks : 1);
    put(&t, "%s", exchange_pre);
    put(&t,
        "extern \"C\" __global__ void __launch_bounds__(THREADS)\n"
        "@(void *x, void *to, void *map, void *own, int64_t words, int64_t me, "
        "void *stop");
    for (int64_t r = 0; r < ranks; r++)
        put(&t, ", void *p%lld", (long long)r);
    put(&t, ")\n{\n    Group g = { (char *)own, { ");
    for (int64_t r = 0; r < ranks; r++)
        put(&t, "(char *)p%lld, ", (long long)r);
    put(&t,
        "}, words, (int)me, (const volatile uint32_t *)stop, 0 };\n"
        "    g.times = *times_of(g) + 1;\n"
        "    %s(g, (const Piece *)x, (Piece *)to, (const int32_t *)map);\n}\n",
        sends ? "send_rows" : "return_rows");
    return t.s;
}

void exchange_lower_cuda(const Graph *g, Group *k, Arena *a)
{
    InstrKind kind = k->instr.kind;

    set_text_named(
        k, a,
        exchange_text(a, &k->instr, mesh_extent(g->mesh, k->instr.atoms)));
    k->instr.kind = kind;
    k->instr.rows.blocks = BLOCKS;
    k->instr.rows.threads = THREADS;
}
