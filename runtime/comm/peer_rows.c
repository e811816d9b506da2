/* peer_rows.c: exchanges of rows on the host (instructions.def), through
 * memory that the group's ranks share: a rank writes rows to where they are
 * read, and reads those that it sums where they were made. In one process all
 * ranks share all; under MPI their arenas are peer memory, where a buffer has
 * one offset on all ranks of a stage.
 *
 * Nobody may write to a rank that still reads what was there before, or go on
 * before its own rows are read: all meet before and after, by words in peer
 * memory that count the meetings of two ranks. Those after carry how many rows
 * came. A word is not written again before its reader has met the writer once
 * more. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "comm.h"

enum { BEFORE, AFTER, MEETINGS, ROWBITS = 32, ROWGRAIN = 64, MAXRANKS = 4096 };

struct Shared {
    void **at; /* arenas, by rank; behind each its words [MEETINGS][rank],
                        by who wrote them */
    int64_t me, bytes; /* of an arena */
    uint32_t *times;   /* met so far, by rank */
};

typedef struct Rows {
    const RowsArgs *args;
    RowsMap layout;
    int64_t ranks, me, bytes; /* of a row */
    const int32_t *map;
    uint8_t *own;  /* tokens */
    uint8_t *here; /* blocks, by rank */
    uint8_t **at;  /* blocks of each rank */
    int64_t *came; /* rows, by rank */
} Rows;

/* ---- memory and words ---------------------------------------------------- */

static _Atomic uint64_t *word(const Shared *s, int64_t world, int64_t rank,
                              int meeting, int64_t from)
{
    uint8_t *p = (uint8_t *)s->at[rank] + s->bytes;

    return (_Atomic uint64_t *)(void *)p + meeting * world + from;
}

static int64_t words(const Comm *c)
{
    return MEETINGS * c->world * (int64_t)sizeof(uint64_t);
}

Shared *comm_shared(Comm *c, Arena *a, int64_t bytes, const char *what)
{
    Shared *s = alloc(a, sizeof *s);

    s->me = c->first;
    s->bytes = (bytes + 7) / 8 * 8;
    s->at = comm_peers(a, c, s->bytes + words(c), what);
    s->times = alloc(a, (size_t)c->world * sizeof *s->times);
    memset((uint8_t *)s->at[s->me] + s->bytes, 0, (size_t)words(c));
    comm_barrier(c);
    return s;
}

void *comm_own(const Shared *s)
{
    return s->at[s->me];
}

void comm_drop_shared(Comm *c, Shared *s)
{
    comm_drop_peers(c, s->at, s->bytes + words(c));
}

/* All ranks of the group come here. rows: sent to each. */
static void meet(const Comm *c, const Coll *k, int meeting, const int64_t *rows,
                 int64_t *came)
{
    Shared *s = k->shared;

    for (int64_t j = 0; j < k->size; j++) {
        int64_t r = k->ranks[j];
        uint64_t times = meeting == BEFORE ? ++s->times[r] : s->times[r];
        atomic_store_explicit(word(s, c->world, r, meeting, c->first),
                              times << ROWBITS | (uint64_t)rows[j],
                              memory_order_release);
    }
    for (int64_t j = 0; j < k->size; j++) {
        int64_t r = k->ranks[j];
        _Atomic uint64_t *w = word(s, c->world, c->first, meeting, r);
        uint64_t v;
        while ((v = atomic_load_explicit(w, memory_order_acquire)) >> ROWBITS !=
               s->times[r])
            sched_yield();
        came[j] = (int64_t)(uint32_t)v;
    }
}

/* ---- who shares it ------------------------------------------------------- */

/* Of the group of a rank, one of another machine; -1: there is none. */
static int64_t far_rank(const Comm *c, const Mesh *m, uint32_t atoms,
                        int64_t rank)
{
    static int64_t ranks[MAXRANKS];
    int64_t n = mesh_extent(m, atoms);

    mesh_group(m, atoms, rank, ranks);
    for (int64_t j = 0; j < n; j++)
        if (strcmp(c->peer[ranks[j]].host, c->peer[rank].host))
            return ranks[j];
    return -1;
}

static void need_near(Comm *c, const Mesh *m, const Instr *s)
{
    for (int64_t r = 0; r < c->world; r++) {
        int64_t other = far_rank(c, m, s->atoms, r);
        if (other >= 0 && comm_speaks(c, 1))
            err(&(Loc){ s->file, s->line, NULL },
                "rows go through memory that ranks share, but ranks %lld and "
                "%lld are on different machines (route.dispatcher=alltoall "
                "exchanges between these; fold.host=N: ranks of a machine)",
                (long long)r, (long long)other);
    }
}

void comm_need_near(Comm *c, const Plan *p)
{
    uint32_t seen = 0;

    for (int r = 0; r < p->nrole && c->n < c->world; r++)
        for (int g = 0; g < p->role[r].nprog; g++)
            for (int i = 0; i < p->role[r].prog[g].ninstr; i++) {
                const Instr *s = &p->role[r].prog[g].instr[i];
                if (!moves_rows(s->kind) || s->atoms == seen)
                    continue;
                need_near(c, p->mesh, s);
                seen = s->atoms;
            }
}

/* ---- rows ---------------------------------------------------------------- */

/* Rows in a block of a map: those without a token are its last. */
static int64_t rows_in(const Rows *x, int64_t block)
{
    const int32_t *pair = x->map + x->layout.pair + block * x->args->pair;
    int64_t n = 0;

    while (n < x->args->pair && pair[n] >= 0)
        n++;
    return n;
}

static uint8_t *block_of(const Rows *x, int64_t rank)
{
    return x->at[rank] + x->me * x->args->pair * x->bytes;
}

static void send_range(void *ctx, int64_t lo, int64_t hi)
{
    const Rows *x = ctx;

    for (int64_t i = lo; i < hi; i++) {
        int64_t to = i / x->args->pair, at = x->map[x->layout.pair + i];
        if (at >= 0)
            memcpy(block_of(x, to) + i % x->args->pair * x->bytes,
                   x->own + at / x->ranks * x->bytes, (size_t)x->bytes);
    }
}

static void clear_range(void *ctx, int64_t lo, int64_t hi)
{
    const Rows *x = ctx;

    for (int64_t i = lo; i < hi; i++)
        if (i % x->args->pair >= x->came[i / x->args->pair])
            memset(x->here + i * x->bytes, 0, (size_t)x->bytes);
}

#define SUM(T, A, LOAD, STORE)                                     \
    for (int64_t e = 0; e < x->args->width; e++) {                 \
        A sum = 0;                                                 \
        for (int64_t r = 0; r < x->ranks; r++)                     \
            if (row[r])                                            \
                sum += LOAD(((const T *)(const void *)row[r])[e]); \
        ((T *)(void *)to)[e] = (T)STORE(sum);                      \
    }

static void sum_token(const Rows *x, int64_t t)
{
    const uint8_t *row[MAXRANKS];
    uint8_t *to = x->own + t * x->bytes;

    for (int64_t r = 0; r < x->ranks; r++) {
        int64_t i =
            x->map[x->layout.row + t * x->ranks + r] - r * x->args->pair;
        row[r] = i < 0 ? NULL : block_of(x, r) + i * x->bytes;
    }
    if (x->args->dt == Df64)
        SUM(double, double, , )
    else if (x->args->dt == Df32)
        SUM(float, float, , )
    else
        SUM(uint16_t, float, bf16_to_f32, f32_to_bf16)
}

static void sum_range(void *ctx, int64_t lo, int64_t hi)
{
    for (int64_t t = lo; t < hi; t++)
        sum_token(ctx, t);
}

/* ---- interface ----------------------------------------------------------- */

/* As rank `me` sees it; at: the blocks of each rank. */
static Rows rows_of(const Coll *k, const Part *p, int64_t me, uint8_t **at,
                    int64_t *came)
{
    const RowsArgs *v = &k->instr->rows;
    int sends = k->instr->kind == Isendrows;

    return (Rows){ .args = v,
                   .layout = rows_map(v, k->size),
                   .ranks = k->size,
                   .me = me,
                   .bytes = v->width * dtypes[v->dt].bytes,
                   .map = p->map,
                   .own = sends ? p->send : p->recv,
                   .here = sends ? p->recv : p->send,
                   .at = at,
                   .came = came };
}

static void move(Pool *p, const Coll *k, Rows *x)
{
    if (k->instr->kind == Isendrows)
        pool_run(p, send_range, x, x->ranks * x->args->pair, ROWGRAIN);
    else
        pool_run(p, sum_range, x, x->args->tokens, ROWGRAIN);
}

static void clear(Pool *p, const Coll *k, Rows *x)
{
    if (k->instr->kind == Isendrows)
        pool_run(p, clear_range, x, x->ranks * x->args->pair, ROWGRAIN);
}

static void count(Comm *c, const Rows *x, const int64_t *rows)
{
    c->counts = 1;
    for (int64_t j = 0; j < x->ranks; j++)
        c->moved += j == x->me ? 0 : rows[j] * x->bytes;
}

static void rows_here(Comm *c, Pool *p, const Coll *k)
{
    static uint8_t *at[MAXRANKS];
    static int64_t came[MAXRANKS], sent[MAXRANKS];

    for (int64_t j = 0; j < k->size; j++)
        at[j] = k->instr->kind == Isendrows ? k->part[j].recv : k->part[j].send;
    for (int64_t me = 0; me < k->size; me++) {
        Rows x = rows_of(k, &k->part[me], me, at, came);
        for (int64_t j = 0; j < k->size; j++)
            sent[j] = rows_in(&x, j);
        count(c, &x, sent);
        move(p, k, &x);
    }
    for (int64_t me = 0; me < k->size; me++) {
        Rows x = rows_of(k, &k->part[me], me, at, came);
        for (int64_t j = 0; j < k->size; j++)
            came[j] = rows_in(&(Rows){ .args = x.args,
                                       .layout = x.layout,
                                       .map = k->part[j].map },
                              me);
        clear(p, k, &x);
    }
}

static void rows_far(Comm *c, Pool *p, const Coll *k)
{
    static uint8_t *at[MAXRANKS];
    static int64_t came[MAXRANKS], sent[MAXRANKS];
    Shared *s = k->shared;
    Rows x = rows_of(k, k->part, k->me, at, came);

    for (int64_t j = 0; j < k->size; j++) {
        at[j] = (uint8_t *)s->at[k->ranks[j]] +
                (x.here - (uint8_t *)s->at[c->first]);
        sent[j] = rows_in(&x, j);
    }
    meet(c, k, BEFORE, sent, came);
    move(p, k, &x);
    meet(c, k, AFTER, sent, came);
    clear(p, k, &x);
    count(c, &x, sent);
}

void comm_rows(Comm *c, Pool *p, const Coll *k)
{
    if (c->n == c->world || k->size == 1)
        rows_here(c, p, k);
    else
        rows_far(c, p, k);
}
