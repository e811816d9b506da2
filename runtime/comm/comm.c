/* comm.c: collectives on the host.
 *
 * `local`: all ranks of a plan live in this process and take every step
 * together, so a collective reads its peers' buffers. `mpi`: one rank here,
 * blocks travel by Open MPI's all-gather and all-to-all; its reductions, whose
 * order of sums depends on size and machine, are not used. Both communicators
 * move the same blocks and sum in rank order with one rounding, so they give
 * the same bits.
 *
 * Every collective but the reductions is a set of blocks, one from each rank to
 * each; a block is up to four loops around contiguous elements. */
#include "comm.h"

enum { SILENCE = 10 }; /* seconds in which another ends this rank */

/* ---- ranks --------------------------------------------------------------- */

/* Returns the ranks of this run; MPI is initialized. */
static Comm *started(void)
{
    static Comm *c;

    if (!c) {
        c = alloc(forever, sizeof *c);
        mpi_start(c);
        c->peer = watch_open(forever, c->first, c->world);
    }
    return c;
}

void comm_plan(Text *out)
{
    Comm *comm = started();
    int64_t n = (int64_t)out->len;

    comm_share(comm, &n, sizeof n);
    if (comm->first)
        *out = (Text){ forever, alloc(forever, (size_t)n + 1), (size_t)n,
                       (size_t)n + 1 };
    comm_share(comm, out->s, n);
}

/* Checks the world size before MPI starts: all ranks fail alike. */
Comm *comm_open(Arena *a, int64_t world)
{
    Comm *c = alloc(a, sizeof *c);

    *c = (Comm){ .name = "local", .world = world, .n = world };
    if (launched() && launch_world() != world)
        err(NULL, "the plan is for %ld ranks, mpirun started %ld", world,
            launch_world());
    if (!launched() && launch_lost() > 1)
        err(NULL,
            "srun started %ld programs that do not know each other; use "
            "mpirun, or srun --mpi=pmix",
            launch_lost());
    if (!launched())
        return c;
    return started();
}

void comm_close(Comm *comm)
{
    (void)comm;
    if (mpi_running()) {
        watch_close();
        mpi_stop();
    }
}

int comm_speaks(Comm *comm, int knows)
{
    int64_t mine = knows ? comm->world - comm->first : 0;
    int64_t best = comm_max(comm, mine);

    if (comm->n == comm->world || (best ? mine == best : !comm->first))
        return 1;
    sleep(SILENCE);
    _exit(err_status);
}

void comm_barrier(Comm *comm)
{
    if (comm->n == comm->world)
        return;
    watch_all();
    mpi_barrier();
    watch_leave();
}

void comm_share_from(Comm *comm, int64_t rank, void *p, int64_t bytes)
{
    if (comm->n == comm->world)
        return;
    watch_all();
    mpi_bcast(p, bytes, rank);
    watch_leave();
}

void comm_share(Comm *comm, void *p, int64_t bytes)
{
    comm_share_from(comm, 0, p, bytes);
}

int64_t comm_max(Comm *comm, int64_t v)
{
    if (comm->n == comm->world)
        return v;
    watch_all();
    v = mpi_max(v);
    watch_leave();
    return v;
}

void comm_questions(Comm *comm)
{
    if (comm->n < comm->world)
        mpi_questions();
}

static int64_t asked; /* local: value of the pending comm_max */

void comm_ask(Comm *comm, int64_t v)
{
    asked = v;
    if (comm->n < comm->world)
        mpi_ask(v);
}

int comm_answer(Comm *comm, int64_t *most)
{
    *most = asked;
    return comm->n == comm->world || mpi_answer(most);
}

void comm_gather(Comm *comm, const void *mine, void *all, int64_t bytes)
{
    if (comm->n == comm->world) {
        memcpy(all, mine, (size_t)bytes);
        return;
    }
    watch_all();
    mpi_gather(mine, all, bytes);
    watch_leave();
}

/* ---- sums in rank order -------------------------------------------------- */

typedef struct Sum {
    Dtype dt;
    Reduce op;
    int64_t size;              /* ranks */
    const uint8_t *const *src; /* per rank; element i of outer block o is */
    int64_t chunk, stride;     /*   at o * stride + i */
    uint8_t *const *dst;       /* one result, or a copy for each rank */
    int64_t ndst, dststride;
} Sum;

enum { STRIP = 256 }; /* elements summed at a time, in registers */

#define FOLD(A, T, LOAD, EXPR)                                  \
    for (int64_t r = 1; r < k->size; r++) {                     \
        const T *s = (const T *)(const void *)k->src[r] + from; \
        for (int64_t i = 0; i < w; i++) {                       \
            A x = LOAD(s[i]), y = acc[i];                       \
            acc[i] = EXPR;                                      \
        }                                                       \
    }

#define REDUCE(T, A, LOAD, STORE)                                          \
    do {                                                                   \
        A acc[STRIP];                                                      \
        for (int64_t i = 0; i < w; i++)                                    \
            acc[i] = LOAD(((const T *)(const void *)k->src[0])[from + i]); \
        if (k->op == Radd)                                                 \
            FOLD(A, T, LOAD, y + x)                                        \
        else if (k->op == Rmax)                                            \
            FOLD(A, T, LOAD, x <= y ? y : y == y ? x : y)                  \
        else                                                               \
            FOLD(A, T, LOAD, x >= y ? y : y == y ? x : y)                  \
        for (int64_t d = 0; d < k->ndst; d++)                              \
            for (int64_t i = 0; i < w; i++)                                \
                ((T *)(void *)k->dst[d])[to + i] = (T)STORE(acc[i]);       \
    } while (0)

static void sum_strip(const Sum *k, int64_t from, int64_t to, int64_t w)
{
    switch (k->dt) {
    case Df32: REDUCE(float, float, , ); break;
    case Df64: REDUCE(double, double, , ); break;
    case Dbf16: REDUCE(uint16_t, float, bf16_to_f32, f32_to_bf16); break;
    case Di64: REDUCE(int64_t, int64_t, , ); break;
    case Di32: REDUCE(int32_t, int32_t, , ); break;
    default: REDUCE(uint8_t, int, , ); break;
    }
}

/* Sums elements [lo, hi), counted over all outer blocks. */
static void sum_range(void *ctx, int64_t lo, int64_t hi)
{
    const Sum *k = ctx;

    while (lo < hi) {
        int64_t o = lo / k->chunk, i = lo % k->chunk;
        int64_t n = k->chunk - i < hi - lo ? k->chunk - i : hi - lo;
        n = n < STRIP ? n : STRIP;
        sum_strip(k, o * k->stride + i, o * k->dststride + i, n);
        lo += n;
    }
}

enum { MAXGROUP = 4096, GRAIN = 16384, PAIRS = 1 << 18 };

/* ---- local --------------------------------------------------------------- */

static void local_blocks(const Coll *k, const BlockLayout *s, int size)
{
    for (int64_t to = 0; to < k->size; to++)
        for (int64_t from = 0; from < k->size; from++)
            copy_block(s, size, k->part[from].send, to, k->part[to].recv, from,
                       NEITHER);
}

static int64_t rotated_from(const Coll *k, int64_t me)
{
    return (me + k->size - k->instr->ppermute.by) % k->size;
}

static int64_t rotated_bytes(const Coll *k)
{
    return k->instr->ppermute.n * dtypes[k->instr->ppermute.dt].bytes;
}

static void local_ppermute(const Coll *k)
{
    size_t bytes = (size_t)rotated_bytes(k);

    for (int64_t me = 0; me < k->size; me++)
        memcpy(k->part[me].recv, k->part[rotated_from(k, me)].send, bytes);
}

static void far_ppermute(const Coll *k)
{
    int64_t to = (k->me + k->instr->ppermute.by) % k->size;

    mpi_sendrecv(k->part[0].send, k->ranks[to], k->part[0].recv,
                 k->ranks[rotated_from(k, k->me)], rotated_bytes(k));
}

static void local_allreduce(const Coll *k, Pool *pool)
{
    static const uint8_t *src[MAXGROUP];
    static uint8_t *dst[MAXGROUP];
    const AllreduceArgs *x = &k->instr->allreduce;
    Sum s = { x->dt, x->op, k->size, src, x->n, x->n, dst, k->size, x->n };

    for (int64_t r = 0; r < k->size; r++) {
        src[r] = k->part[r].send;
        dst[r] = k->part[r].recv;
    }
    pool_run(pool, sum_range, &s, x->n, GRAIN);
}

static void local_reducescatter(const Coll *k, Pool *pool)
{
    static const uint8_t *src[MAXGROUP];
    const ReducescatterArgs *args = &k->instr->reducescatter;
    int size = dtypes[args->dt].bytes;
    BlockLayout x = blocks_of(k->instr, k->size);
    uint8_t *to;
    Sum s = { args->dt, args->op, k->size,    src, x.run, k->size * args->chunk,
              &to,      1,        args->chunk };

    for (int64_t me = 0; me < k->size; me++)
        for (int64_t h = 0; h < x.halves; h++) {
            for (int64_t r = 0; r < k->size; r++)
                src[r] = (uint8_t *)k->part[r].send +
                         block_place(&x, &x.to, me, h) * size;
            to = (uint8_t *)k->part[me].recv + h * x.run * size;
            pool_run(pool, sum_range, &s, args->outer * x.run, GRAIN);
        }
}

/* ---- mpi: pack, exchange, unpack or sum ---------------------------------- */

/* Returns this rank's n blocks contiguously: in its buffer, or packed into
 * stage. Blocks of a reduction are packed in the order of the result. */
static const uint8_t *packed(const Coll *k, const BlockLayout *s, int size,
                             int64_t n, uint8_t *stage)
{
    int64_t bytes = block_elems(s) * size;
    const uint8_t *send = k->part[0].send;
    DenseSide d = k->instr->kind == Ireducescatter ? NEITHER : DSTDENSE;

    if (is_dense(s, s->src, &s->to, n == 1))
        return send;
    for (int64_t to = 0; to < n; to++)
        copy_block(s, size, send, to, stage + to * bytes, 0, d);
    return stage;
}

/* Returns an MPI type for one half of a block in a buffer. */
static void *half_type(const BlockLayout *s, const int64_t *stride, int size)
{
    int64_t bytes[4];

    for (int i = 0; i < 4; i++)
        bytes[i] = stride[i] * size;
    return mpi_strided(s->run * size, s->n, bytes, 4);
}

/* Exchanges large blocks pair by pair, without packing. */
static void far_pairs(const Coll *k, const BlockLayout *s, int size)
{
    const uint8_t *send = k->part[0].send;
    uint8_t *recv = k->part[0].recv;
    int64_t g = k->size;
    void *out = half_type(s, s->src, size), *in = half_type(s, s->dst, size);

    copy_block(s, size, send, k->me, recv, k->me, NEITHER);
    for (int64_t i = 1; i < g; i++) {
        int64_t to = (k->me + i) % g, from = (k->me + g - i) % g;
        for (int64_t h = 0; h < s->halves; h++)
            mpi_swap(send + block_place(s, &s->to, to, h) * size, out,
                     k->ranks[to],
                     recv + block_place(s, &s->from, from, h) * size, in,
                     k->ranks[from]);
    }
    mpi_forget(out);
    mpi_forget(in);
}

static void far_blocks(const Coll *k, int size, UnderWay *way)
{
    BlockLayout shape = blocks_of(k->instr, k->size), *s = &shape;
    int64_t bytes = block_elems(s) * size;
    int direct = is_dense(s, s->dst, &s->from, 0);
    uint8_t *recv = k->part[0].recv, *stage = k->stage;
    uint8_t *in = direct ? recv : stage;
    uint8_t *spare = direct ? stage : stage + k->size * bytes;

    if (k->instr->kind == Ialltoall && !direct && bytes >= PAIRS &&
        s->run * size <= INT32_MAX) {
        far_pairs(k, s, size);
        return;
    }
    int same = k->instr->kind == Iallgather;
    mpi_blocks(k, packed(k, s, size, same ? 1 : k->size, spare),
               same ? 0 : bytes, in, bytes, way->later);
    way->in = direct ? NULL : in;
}

static void place_blocks(const Coll *k, int size, const uint8_t *in)
{
    BlockLayout s = blocks_of(k->instr, k->size);
    int64_t bytes = block_elems(&s) * size;

    for (int64_t from = 0; from < k->size; from++)
        copy_block(&s, size, in + from * bytes, 0, k->part[0].recv, from,
                   SRCDENSE);
}

/* Sums `elems` elements of every rank, stored rank after rank at `in`, into
 * dst. */
static void far_sum(const Coll *k, Pool *pool, const uint8_t *in, Dtype dt,
                    Reduce op, int64_t elems, void *dst)
{
    static const uint8_t *src[MAXGROUP];
    uint8_t *to = dst;
    Sum s = { dt, op, k->size, src, elems, elems, &to, 1, elems };

    for (int64_t r = 0; r < k->size; r++)
        src[r] = in + r * elems * dtypes[dt].bytes;
    pool_run(pool, sum_range, &s, elems, GRAIN);
}

static void far_reducescatter(const Coll *k, UnderWay *way)
{
    const ReducescatterArgs *x = &k->instr->reducescatter;
    int size = dtypes[x->dt].bytes;
    int64_t bytes = x->outer * x->chunk * size, g = k->size;
    BlockLayout s = blocks_of(k->instr, g);
    uint8_t *in = k->stage;

    mpi_blocks(k, packed(k, &s, size, g, in + g * bytes), bytes, in, bytes,
               way->later);
    way->in = in;
}

/* Each rank sums an equal share, then the shares are gathered. */
static void far_shares(const Coll *k, Pool *pool)
{
    const AllreduceArgs *x = &k->instr->allreduce;
    int size = dtypes[x->dt].bytes;
    int64_t n = x->n, g = k->size, share = (n + g - 1) / g;
    uint8_t *in = k->stage, *sum = k->part[0].recv;
    const uint8_t *out = k->part[0].send;

    if (share * g != n) {
        out = sum = in + share * g * size;
        memcpy(sum, k->part[0].send, (size_t)(n * size));
        memset(sum + n * size, 0, (size_t)((share * g - n) * size));
    }
    mpi_blocks(k, out, share * size, in, share * size, NULL);
    far_sum(k, pool, in, x->dt, x->op, share, sum + k->me * share * size);
    mpi_blocks(k, sum + k->me * share * size, 0, sum, share * size, NULL);
    if (share * g != n)
        memcpy(k->part[0].recv, sum, (size_t)(n * size));
}

/* Small data are gathered and summed on every rank, which halves the
 * messages. */
static void far_allreduce(const Coll *k, Pool *pool, UnderWay *way)
{
    const AllreduceArgs *x = &k->instr->allreduce;
    int64_t bytes = x->n * dtypes[x->dt].bytes;

    if (bytes * k->size > GATHERSUM) {
        far_shares(k, pool);
        return;
    }
    mpi_blocks(k, k->part[0].send, 0, k->stage, bytes, way->later);
    way->in = k->stage;
}

/* Unpacks or sums the received blocks. */
static void far_end(const Coll *k, Pool *pool, const uint8_t *in)
{
    const AllreduceArgs *args = &k->instr->allreduce;
    const ReducescatterArgs *r = &k->instr->reducescatter;
    void *to = k->part[0].recv;

    switch (k->instr->kind) {
    case Iallreduce:
        far_sum(k, pool, in, args->dt, args->op, args->n, to);
        break;
    case Ireducescatter:
        far_sum(k, pool, in, r->dt, r->op, r->outer * r->chunk, to);
        break;
    default: place_blocks(k, dtypes[instr_dtype(k->instr, 0)].bytes, in);
    }
}

/* ---- interface ----------------------------------------------------------- */

typedef struct CommGroup {
    uint32_t atoms;
    void *comm;
} CommGroup;

/* Groups are created in order of their atoms, so that no two ranks wait for
 * each other. */
void comm_groups(Comm *comm, Arena *a, const Mesh *m, const uint32_t *atoms,
                 int n)
{
    int64_t *ranks = alloc(a, (size_t)comm->world * sizeof *ranks);

    if (comm->n == comm->world)
        return;
    comm->group = alloc(a, (size_t)n * sizeof *comm->group);
    for (uint32_t least = 0;;) {
        uint32_t next = UINT32_MAX;
        for (int i = 0; i < n; i++)
            if (atoms[i] > least && atoms[i] < next)
                next = atoms[i];
        if (next == UINT32_MAX)
            return;
        mesh_group(m, next, comm->first, ranks);
        watch_enter(next, ranks, mesh_extent(m, next));
        comm->group[comm->ngroup++] =
            (CommGroup){ next, mpi_group(ranks, mesh_extent(m, next)) };
        watch_leave();
        least = next;
    }
}

static void *group_of(const Comm *comm, uint32_t atoms)
{
    for (int i = 0; i < comm->ngroup; i++)
        if (comm->group[i].atoms == atoms)
            return comm->group[i].comm;
    die("comm: a collective over atoms %x was not announced", atoms);
}

static void far_begin(const Coll *k, Pool *pool, UnderWay *way)
{
    switch (k->instr->kind) {
    case Iallreduce: far_allreduce(k, pool, way); break;
    case Ireducescatter: far_reducescatter(k, way); break;
    case Ippermute: far_ppermute(k); break;
    default: far_blocks(k, dtypes[instr_dtype(k->instr, 0)].bytes, way);
    }
}

static void run_here(const Coll *k, Pool *pool)
{
    BlockLayout s;

    switch (k->instr->kind) {
    case Iallreduce: local_allreduce(k, pool); break;
    case Ireducescatter: local_reducescatter(k, pool); break;
    case Ippermute: local_ppermute(k); break;
    default:
        s = blocks_of(k->instr, k->size);
        local_blocks(k, &s, dtypes[instr_dtype(k->instr, 0)].bytes);
    }
}

static void begin(Comm *comm, Pool *pool, Coll *k, UnderWay *way)
{
    if (k->size > MAXGROUP)
        err(NULL, "a group of %ld ranks, at most %d", k->size, MAXGROUP);
    if (moves_rows(k->instr->kind)) {
        watch_enter(k->instr->atoms, k->ranks, k->size);
        comm_rows(comm, pool, k);
        watch_leave();
        return;
    }
    if (comm->n == comm->world || k->size == 1) {
        run_here(k, pool);
        return;
    }
    k->group = group_of(comm, k->instr->atoms);
    watch_enter(k->instr->atoms, k->ranks, k->size);
    far_begin(k, pool, way);
    watch_leave();
}

void comm_begin(Comm *comm, Pool *pool, Coll *k, UnderWay *way)
{
    *way = (UnderWay){ .later = &way->request };
    begin(comm, pool, k, way);
}

void comm_end(Pool *pool, const Coll *k, UnderWay *way)
{
    if (way->request) {
        watch_enter(k->instr->atoms, k->ranks, k->size);
        mpi_wait(&way->request, 1);
        watch_leave();
    }
    if (way->in)
        far_end(k, pool, way->in);
}

void comm_run(Comm *comm, Pool *pool, Coll *k)
{
    UnderWay u = { 0 };

    begin(comm, pool, k, &u);
    comm_end(pool, k, &u);
}
