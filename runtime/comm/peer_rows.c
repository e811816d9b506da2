/* peer_rows.c: exchanges of rows on the host (instructions.def) by memory that
 * the group's ranks share: a rank writes rows into the reader's buffer, and
 * reads the rows that it sums in the buffer of their producer. One process
 * shares all memory; under MPI the arenas are peer memory, in which a buffer
 * has the same offset on all ranks of a stage.
 *
 * A rank may write only after the reader has finished with the old rows, and
 * may go on only after its own rows are read. So ranks have a barrier before
 * and after an exchange: words in peer memory count the barriers of two ranks.
 * The words of the second barrier carry the number of rows sent. A word is
 * written again only after its reader has taken part in the next barrier. */
#include <sched.h>

#include "comm.h"

enum { BEFORE, AFTER, MEETINGS, ROWBITS = 32, ROWGRAIN = 64, MAXRANKS = 4096 };

struct Shared {
    void **at; /* per rank: arena, followed by its words [MEETINGS][writer] */
    int64_t me, bytes; /* bytes of an arena */
    uint32_t *times;   /* per rank: barriers so far */
};

typedef struct Rows {
    const RowsArgs *args;
    RowsMap layout;
    int64_t ranks, me, bytes; /* bytes of a row */
    const int32_t *map;
    uint8_t *own;  /* tokens */
    uint8_t *here; /* own blocks, one per rank */
    uint8_t **at;  /* per rank: its blocks */
    int64_t *came; /* per rank: rows received */
} Rows;

/* ---- memory and words ---------------------------------------------------- */

static _Atomic uint64_t *word(const Shared *shared, int64_t world, int64_t rank,
                              int meeting, int64_t from)
{
    uint8_t *p = (uint8_t *)shared->at[rank] + shared->bytes;

    return (_Atomic uint64_t *)(void *)p + meeting * world + from;
}

static int64_t words(const Comm *comm)
{
    return MEETINGS * comm->world * (int64_t)sizeof(uint64_t);
}

Shared *comm_shared(Comm *comm, Arena *a, int64_t bytes, const char *what)
{
    Shared *s = alloc(a, sizeof *s);

    s->me = comm->first;
    s->bytes = (bytes + 7) / 8 * 8;
    s->at = comm_peers(a, comm, s->bytes + words(comm), what);
    s->times = alloc(a, (size_t)comm->world * sizeof *s->times);
    memset((uint8_t *)s->at[s->me] + s->bytes, 0, (size_t)words(comm));
    comm_barrier(comm);
    return s;
}

void *comm_own(const Shared *shared)
{
    return shared->at[shared->me];
}

void comm_drop_shared(Comm *comm, Shared *shared)
{
    comm_drop_peers(comm, shared->at, shared->bytes + words(comm));
}

/* Barrier of the group. rows: number sent to each rank. */
static void meet(const Comm *comm, const Coll *coll, int meeting,
                 const int64_t *rows, int64_t *came)
{
    Shared *shared = coll->shared;

    for (int64_t j = 0; j < coll->size; j++) {
        int64_t r = coll->ranks[j];
        uint64_t times =
            meeting == BEFORE ? ++shared->times[r] : shared->times[r];
        atomic_store_explicit(
            word(shared, comm->world, r, meeting, comm->first),
            times << ROWBITS | (uint64_t)rows[j], memory_order_release);
    }
    for (int64_t j = 0; j < coll->size; j++) {
        int64_t r = coll->ranks[j];
        _Atomic uint64_t *w =
            word(shared, comm->world, comm->first, meeting, r);
        uint64_t v;
        while ((v = atomic_load_explicit(w, memory_order_acquire)) >> ROWBITS !=
               shared->times[r])
            sched_yield();
        came[j] = (int64_t)(uint32_t)v;
    }
}

/* ---- ranks that share memory --------------------------------------------- */

/* Returns a rank of the same group on another machine; -1: there is none. */
static int64_t far_rank(const Comm *comm, const Mesh *m, uint32_t atoms,
                        int64_t rank)
{
    static int64_t ranks[MAXRANKS];
    int64_t n = mesh_extent(m, atoms);

    mesh_group(m, atoms, rank, ranks);
    for (int64_t j = 0; j < n; j++)
        if (strcmp(comm->peer[ranks[j]].host, comm->peer[rank].host))
            return ranks[j];
    return -1;
}

static void need_near(Comm *comm, const Mesh *m, const Instr *instr)
{
    for (int64_t r = 0; r < comm->world; r++) {
        int64_t other = far_rank(comm, m, instr->atoms, r);
        if (other >= 0 && comm_speaks(comm, 1))
            err(&(Loc){ instr->file, instr->line, NULL },
                "rows go through memory that ranks share, but ranks %ld and "
                "%ld are on different machines (route.dispatcher=alltoall "
                "exchanges between these; fold.host=N: ranks of a machine)",
                r, other);
    }
}

void comm_need_near(Comm *comm, const Plan *p)
{
    uint32_t seen = 0;

    for (int r = 0; r < p->nrole && comm->n < comm->world; r++)
        for (int g = 0; g < p->role[r].nprog; g++)
            for (int i = 0; i < p->role[r].prog[g].ninstr; i++) {
                const Instr *instr = &p->role[r].prog[g].instr[i];
                if (!moves_rows(instr->kind) || instr->atoms == seen)
                    continue;
                need_near(comm, p->mesh, instr);
                seen = instr->atoms;
            }
}

/* ---- rows ---------------------------------------------------------------- */

/* Returns the rows of a map's block; rows without a token are its last. */
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

/* Returns the operands of rank `me`; at: the blocks of each rank. */
static Rows rows_of(const Coll *coll, const Part *part, int64_t me,
                    uint8_t **at, int64_t *came)
{
    const RowsArgs *args = &coll->instr->rows;
    int sends = coll->instr->kind == Isendrows;

    return (Rows){ .args = args,
                   .layout = rows_map(args, coll->size),
                   .ranks = coll->size,
                   .me = me,
                   .bytes = args->width * dtypes[args->dt].bytes,
                   .map = part->map,
                   .own = sends ? part->send : part->recv,
                   .here = sends ? part->recv : part->send,
                   .at = at,
                   .came = came };
}

static void move(Pool *pool, const Coll *coll, Rows *x)
{
    if (coll->instr->kind == Isendrows)
        pool_run(pool, send_range, x, x->ranks * x->args->pair, ROWGRAIN);
    else
        pool_run(pool, sum_range, x, x->args->tokens, ROWGRAIN);
}

static void clear(Pool *pool, const Coll *coll, Rows *x)
{
    if (coll->instr->kind == Isendrows)
        pool_run(pool, clear_range, x, x->ranks * x->args->pair, ROWGRAIN);
}

static void count(Comm *comm, const Rows *x, const int64_t *rows)
{
    comm->counts = 1;
    for (int64_t j = 0; j < x->ranks; j++)
        comm->moved += j == x->me ? 0 : rows[j] * x->bytes;
}

static void rows_here(Comm *comm, Pool *pool, const Coll *coll)
{
    static uint8_t *at[MAXRANKS];
    static int64_t came[MAXRANKS], sent[MAXRANKS];

    for (int64_t j = 0; j < coll->size; j++)
        at[j] = coll->instr->kind == Isendrows ? coll->part[j].recv
                                               : coll->part[j].send;
    for (int64_t me = 0; me < coll->size; me++) {
        Rows x = rows_of(coll, &coll->part[me], me, at, came);
        for (int64_t j = 0; j < coll->size; j++)
            sent[j] = rows_in(&x, j);
        count(comm, &x, sent);
        move(pool, coll, &x);
    }
    for (int64_t me = 0; me < coll->size; me++) {
        Rows x = rows_of(coll, &coll->part[me], me, at, came);
        for (int64_t j = 0; j < coll->size; j++)
            came[j] = rows_in(&(Rows){ .args = x.args,
                                       .layout = x.layout,
                                       .map = coll->part[j].map },
                              me);
        clear(pool, coll, &x);
    }
}

static void rows_far(Comm *comm, Pool *pool, const Coll *coll)
{
    static uint8_t *at[MAXRANKS];
    static int64_t came[MAXRANKS], sent[MAXRANKS];
    Shared *shared = coll->shared;
    Rows x = rows_of(coll, coll->part, coll->me, at, came);

    for (int64_t j = 0; j < coll->size; j++) {
        at[j] = (uint8_t *)shared->at[coll->ranks[j]] +
                (x.here - (uint8_t *)shared->at[comm->first]);
        sent[j] = rows_in(&x, j);
    }
    meet(comm, coll, BEFORE, sent, came);
    move(pool, coll, &x);
    meet(comm, coll, AFTER, sent, came);
    clear(pool, coll, &x);
    count(comm, &x, sent);
}

void comm_rows(Comm *comm, Pool *pool, const Coll *coll)
{
    if (comm->n == comm->world || coll->size == 1)
        rows_here(comm, pool, coll);
    else
        rows_far(comm, pool, coll);
}
