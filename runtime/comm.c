/* comm.c: collectives on the host.
 *
 * `local`: all ranks of a plan live in this process and take every step
 * together, so a collective reads its peers' buffers. `mpi`: one rank here,
 * blocks travel by mpi_exchange. Both move the same blocks and both sum in rank
 * order with one rounding, so they give the same bits.
 *
 * Every collective but the reductions is a set of blocks, one from each rank to
 * each; a block is up to four loops around contiguous elements.              */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* ---- launcher ------------------------------------------------------------ */

/* How launchers say who a process is: mpirun, and srun with PMIx. */
static const struct { const char *sign, *world, *rank, *local; } launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
     "SLURM_STEP_TASKS_PER_NODE"},
};

enum { NLAUNCHER = sizeof launchers / sizeof *launchers };

static int launcher(void)
{
    int i = 0;

    while (i < NLAUNCHER && !getenv(launchers[i].sign))
        i++;
    return i;
}

static int64_t env_int(const char *name, int64_t least)
{
    const char *s = getenv(name);
    int64_t n = s ? strtoll(s, NULL, 10) : least;

    return n < least ? least : n;
}

int64_t launch_world(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].world, 1) : 1;
}

int64_t launch_rank(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].rank, 0) : 0;
}

int64_t launch_local(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].local, 1) : 1;
}

/* Before MPI runs all ranks meet the same error, and rank 0 says it; after that
 * an error is one rank's own, and ends the others.                           */
static void fail_here(const char *msg)
{
    if (mpi_running()) {
        fprintf(stderr, "rank %lld: %s", (long long)launch_rank(), msg);
        mpi_abort(err_status);
    }
    exit(err_status);
}

void launch_errors(void)
{
    if (launch_rank() > 0)
        err_hook = fail_here;
}

Comm *comm_open(Arena *a, int64_t world)
{
    Comm *c = alloc(a, sizeof *c);

    *c = (Comm){"local", world, 0, world};
    if (launcher() < NLAUNCHER)
        mpi_start(c);
    else if (env_int("SLURM_STEP_NUM_TASKS", 1) > 1)
        err(NULL, "srun started %s programs that do not know each other; use "
            "mpirun, or srun --mpi=pmix", getenv("SLURM_STEP_NUM_TASKS"));
    if (c->world != world)
        err(NULL, "the plan is for %lld ranks, mpirun started %lld",
            (long long)world, (long long)c->world);
    return c;
}

void comm_close(Comm *c)
{
    (void)c;
    if (mpi_running())
        mpi_stop();
}

void comm_abort(int status)
{
    if (mpi_running())
        mpi_abort(status);
    exit(status);
}

void comm_barrier(Comm *c)
{
    if (c->n < c->world)
        mpi_barrier();
}

void comm_share(Comm *c, void *p, int64_t bytes)
{
    if (c->n < c->world)
        mpi_bcast(p, bytes);
}

int64_t comm_max(Comm *c, int64_t v)
{
    return c->n < c->world ? mpi_max(v) : v;
}

/* ---- blocks -------------------------------------------------------------- */

/* How a group's ranks hold their axis in halves (steps.def); zig 0: as one. */
typedef struct Zigzag { int64_t zig, low, ranks; } Zigzag;

/* Place of half h of position r among all halves. */
static int64_t half_place(const Zigzag *z, int64_t r, int64_t h)
{
    int64_t p = r / z->low % z->zig, T = z->ranks / z->zig;
    int64_t t = r % z->low + r / (z->low * z->zig) * z->low;

    return (h ? 2 * z->zig - 1 - p : p) * T + t;
}

/* Where the block of a position begins in a buffer: each position's `step`
 * after the last, a second half `half` behind the first; or, placed, each half
 * at its place, `half` apart.                                                */
typedef struct Spot { int64_t step, half; int placed; } Spot;

/* A block is one or two times (halves) n[0] x n[1] x n[2] x n[3] runs of `run`
 * elements; strides in elements.                                             */
typedef struct Shape {
    int64_t n[4], src[4], dst[4], run;
    Spot to;                      /* in the sender's buffer, by receiver      */
    Spot from;                    /* in the receiver's buffer, by sender      */
    Zigzag z;
    int halves;
} Shape;

static int64_t spot_at(const Shape *s, const Spot *x, int64_t pos, int64_t h)
{
    return x->placed ? half_place(&s->z, pos, h) * x->half
                     : pos * x->step + h * x->half;
}

static Shape shape_allgather(const int64_t *iv, int64_t g)
{
    int64_t outer = iv[1], chunk = iv[2];
    int halves = iv[3] ? 2 : 1;
    int64_t half = chunk / halves;

    return (Shape){{1, 1, 1, outer}, {0, 0, 0, chunk}, {0, 0, 0, g * chunk},
                   half, {0, half, 0}, {chunk, half, iv[3] != 0},
                   {iv[3], iv[4], g}, halves};
}

/* Of a reduce-scatter: what is sent to each. */
static Shape shape_scatter(const int64_t *iv, int64_t g)
{
    int64_t outer = iv[1], chunk = iv[2];
    int halves = iv[4] ? 2 : 1;
    int64_t half = chunk / halves;

    return (Shape){{1, 1, 1, outer}, {0, 0, 0, g * chunk}, {0, 0, 0, chunk},
                   half, {chunk, half, iv[4] != 0}, {0, half, 0},
                   {iv[4], iv[5], g}, halves};
}

/* [outer][A/G][mid][B][inner] -> [outer][A][mid][B/G][inner], or
 * [outer][B][mid][A/G][inner] -> [outer][B/G][mid][A][inner].                */
static Shape shape_alltoall(const int64_t *iv, int64_t g)
{
    int64_t outer = iv[1], A = iv[2], mid = iv[3], B = iv[4], inner = iv[5];
    int64_t a = A / g, b = B / g;
    int onA = iv[7] > 0, onB = iv[7] < 0, halves = onA || onB ? 2 : 1;
    int64_t a2 = onA ? a / 2 : a, b2 = onB ? b / 2 : b;
    Shape s = {.z = {onB ? -iv[7] : iv[7], iv[8], g}, .halves = halves};

    if (!iv[6]) {
        s = (Shape){{outer, a2, mid, 1},
                    {a * mid * B * inner, mid * B * inner, B * inner, 0},
                    {A * mid * b * inner, mid * b * inner, b * inner, 0},
                    b2 * inner,
                    {b * inner, onB ? b2 * inner : a2 * mid * B * inner, onB},
                    {a * mid * b * inner,
                     onA ? a2 * mid * b * inner : b2 * inner, onA},
                    s.z, halves};
        return s;
    }
    return (Shape){{outer, b2, mid, 1},
                   {B * mid * a * inner, mid * a * inner, a * inner, 0},
                   {b * mid * A * inner, mid * A * inner, A * inner, 0},
                   a2 * inner,
                   {b * mid * a * inner,
                    onB ? b2 * mid * a * inner : a2 * inner, onB},
                   {a * inner, onA ? a2 * inner : b2 * mid * A * inner, onA},
                   s.z, halves};
}

static int64_t half_elems(const Shape *s)
{
    return s->n[0] * s->n[1] * s->n[2] * s->n[3] * s->run;
}

static int64_t block_elems(const Shape *s)
{
    return s->halves * half_elems(s);
}

typedef enum Dense { NEITHER, DSTDENSE, SRCDENSE } Dense;

/* Copy one half; a dense side has its runs one after another. */
static void copy_half(const Shape *s, int size, const uint8_t *src,
                       uint8_t *dst, Dense dense)
{
    int64_t at = 0;

    for (int64_t i = 0; i < s->n[0]; i++)
        for (int64_t j = 0; j < s->n[1]; j++)
            for (int64_t k = 0; k < s->n[2]; k++)
                for (int64_t l = 0; l < s->n[3]; l++, at += s->run) {
                    int64_t x = i * s->src[0] + j * s->src[1] +
                                k * s->src[2] + l * s->src[3];
                    int64_t y = i * s->dst[0] + j * s->dst[1] +
                                k * s->dst[2] + l * s->dst[3];
                    memcpy(dst + (dense == DSTDENSE ? at : y) * size,
                           src + (dense == SRCDENSE ? at : x) * size,
                           (size_t)(s->run * size));
                }
}

/* The block from position `from` to position `to`. A dense side's pointer is
 * where the block begins, the other's where the buffer does.                 */
static void copy_block(const Shape *s, int size, const uint8_t *src, int64_t to,
                       uint8_t *dst, int64_t from, Dense dense)
{
    for (int64_t h = 0; h < s->halves; h++) {
        int64_t x = dense == SRCDENSE ? h * half_elems(s)
                                      : spot_at(s, &s->to, to, h);
        int64_t y = dense == DSTDENSE ? h * half_elems(s)
                                      : spot_at(s, &s->from, from, h);
        copy_half(s, size, src + x * size, dst + y * size, dense);
    }
}

/* ---- sums in rank order -------------------------------------------------- */

typedef struct Sum {
    Dtype dt;
    int64_t op, size;             /* ranks                                    */
    const uint8_t *const *src;    /* of each rank; element i of outer block o */
    int64_t chunk, step;          /*   is at o * step + i                     */
    uint8_t *const *dst;          /* one result, or the same to all           */
    int64_t ndst, dststep;
} Sum;

enum { STRIP = 256 };             /* elements summed at a time, in registers  */

#define FOLD(A, T, LOAD, EXPR)                                                 \
    for (int64_t r = 1; r < k->size; r++) {                                    \
        const T *s = (const T *)(const void *)k->src[r] + from;                \
        for (int64_t i = 0; i < w; i++) {                                      \
            A x = LOAD(s[i]), y = acc[i];                                      \
            acc[i] = EXPR;                                                     \
        }                                                                      \
    }

#define REDUCE(T, A, LOAD, STORE)                                              \
    do {                                                                       \
        A acc[STRIP];                                                          \
        for (int64_t i = 0; i < w; i++)                                        \
            acc[i] = LOAD(((const T *)(const void *)k->src[0])[from + i]);     \
        if (k->op == 0)                                                        \
            FOLD(A, T, LOAD, y + x)                                            \
        else if (k->op == 1)                                                   \
            FOLD(A, T, LOAD, x <= y ? y : y == y ? x : y)                      \
        else                                                                   \
            FOLD(A, T, LOAD, x >= y ? y : y == y ? x : y)                      \
        for (int64_t d = 0; d < k->ndst; d++)                                  \
            for (int64_t i = 0; i < w; i++)                                    \
                ((T *)(void *)k->dst[d])[to + i] = (T)STORE(acc[i]);           \
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

/* Elements [lo, hi) of all outer blocks laid end to end. */
static void sum_range(void *ctx, int64_t lo, int64_t hi)
{
    const Sum *k = ctx;

    while (lo < hi) {
        int64_t o = lo / k->chunk, i = lo % k->chunk;
        int64_t n = k->chunk - i < hi - lo ? k->chunk - i : hi - lo;
        n = n < STRIP ? n : STRIP;
        sum_strip(k, o * k->step + i, o * k->dststep + i, n);
        lo += n;
    }
}

enum { MAXGROUP = 4096, GRAIN = 16384 };

/* ---- local --------------------------------------------------------------- */

static void local_blocks(const Coll *k, const Shape *s, int size)
{
    for (int64_t to = 0; to < k->size; to++)
        for (int64_t from = 0; from < k->size; from++)
            copy_block(s, size, k->part[from].send, to, k->part[to].recv, from,
                       NEITHER);
}

static int64_t rotated_from(const Coll *k, int64_t me)
{
    return (me + k->size - k->iv[2]) % k->size;
}

static void local_rotate(const Coll *k)
{
    size_t bytes = (size_t)(k->iv[1] * dtypes[k->iv[0]].bytes);

    for (int64_t me = 0; me < k->size; me++)
        memcpy(k->part[me].recv, k->part[rotated_from(k, me)].send, bytes);
}

static void far_rotate(const Coll *k)
{
    mpi_shift(k, k->part[0].send, (k->me + k->iv[2]) % k->size,
              k->part[0].recv, rotated_from(k, k->me),
              k->iv[1] * dtypes[k->iv[0]].bytes);
}

static void local_reduce(const Coll *k, Pool *p)
{
    static const uint8_t *src[MAXGROUP];
    static uint8_t *dst[MAXGROUP];
    int size = dtypes[k->iv[0]].bytes;
    int64_t outer = k->iv[1], chunk = k->iv[2];
    Sum s = {(Dtype)k->iv[0], k->iv[3], k->size, src, chunk, chunk, dst,
             k->size, chunk};

    for (int64_t r = 0; r < k->size; r++)
        dst[r] = k->part[r].recv;
    for (int64_t r = 0; r < k->size && k->kind == Sallreduce; r++)
        src[r] = k->part[r].send;
    if (k->kind == Sallreduce) {
        pool_run(p, sum_range, &s, outer * chunk, GRAIN);
        return;
    }
    Shape x = shape_scatter(k->iv, k->size);
    s.step = k->size * chunk;
    s.ndst = 1;
    s.chunk = x.run;
    for (int64_t me = 0; me < k->size; me++)
        for (int64_t h = 0; h < x.halves; h++) {
            for (int64_t r = 0; r < k->size; r++)
                src[r] = (uint8_t *)k->part[r].send +
                         spot_at(&x, &x.to, me, h) * size;
            uint8_t *to = (uint8_t *)k->part[me].recv + h * x.run * size;
            s.dst = &to;
            pool_run(p, sum_range, &s, outer * x.run, GRAIN);
        }
}

/* ---- mpi: pack, exchange, unpack or sum ---------------------------------- */

static void far_blocks(const Coll *k, const Shape *s, int size)
{
    int64_t bytes = block_elems(s) * size;
    uint8_t *out = k->stage, *in = out;
    const uint8_t *send = k->part[0].send;
    int64_t outstep = s->to.step || s->to.placed ? bytes : 0;

    for (int64_t to = 0; to < (outstep ? k->size : 1); to++, in += bytes)
        copy_block(s, size, send, to, in, 0, DSTDENSE);
    mpi_exchange(k, out, outstep, in, bytes);
    for (int64_t from = 0; from < k->size; from++)
        copy_block(s, size, in + from * bytes, 0, k->part[0].recv, from,
                   SRCDENSE);
}

/* outer x chunk elements of every rank to this one, summed into dst. */
static void far_sum(const Coll *k, Pool *p, const uint8_t *out,
                    int64_t outstep, int64_t elems, uint8_t *in, uint8_t *dst)
{
    static const uint8_t *src[MAXGROUP];
    int64_t bytes = elems * dtypes[k->iv[0]].bytes;
    Sum s = {(Dtype)k->iv[0], k->iv[3], k->size, src, elems, elems, &dst, 1,
             elems};

    mpi_exchange(k, out, outstep, in, bytes);
    for (int64_t r = 0; r < k->size; r++)
        src[r] = in + r * bytes;
    pool_run(p, sum_range, &s, elems, GRAIN);
}

static void far_reducescatter(const Coll *k, Pool *p)
{
    int size = dtypes[k->iv[0]].bytes;
    int64_t outer = k->iv[1], chunk = k->iv[2], g = k->size;
    Shape s = shape_scatter(k->iv, g);
    int64_t bytes = outer * chunk * size;
    uint8_t *out = k->stage;

    for (int64_t to = 0; to < g; to++)
        copy_block(&s, size, k->part[0].send, to, out + to * bytes, 0,
                   DSTDENSE);
    far_sum(k, p, out, bytes, outer * chunk, out + g * bytes,
            k->part[0].recv);
}

/* Each rank sums an equal share, then the shares are gathered. */
static void far_allreduce(const Coll *k, Pool *p)
{
    int size = dtypes[k->iv[0]].bytes;
    int64_t n = k->iv[1] * k->iv[2], g = k->size, share = (n + g - 1) / g;
    uint8_t *out = k->stage, *in = out + share * g * size;

    memcpy(out, k->part[0].send, (size_t)(n * size));
    memset(out + n * size, 0, (size_t)((share * g - n) * size));
    far_sum(k, p, out, share * size, share, in, out + k->me * share * size);
    mpi_exchange(k, out + k->me * share * size, 0, in, share * size);
    memcpy(k->part[0].recv, in, (size_t)(n * size));
}

/* ---- interface ----------------------------------------------------------- */

static Shape shape_of(StepKind kind, const int64_t *iv, int64_t g)
{
    return kind == Sallgather ? shape_allgather(iv, g)
                              : shape_alltoall(iv, g);
}

void comm_run(Comm *c, Pool *p, const Coll *k)
{
    int far = c->n < c->world;

    if (k->size > MAXGROUP)
        err(NULL, "a group of %lld ranks, at most %d", (long long)k->size,
            MAXGROUP);
    if (k->kind == Sallreduce && far && k->size > 1) {
        far_allreduce(k, p);
    } else if (k->kind == Sreducescatter && far && k->size > 1) {
        far_reducescatter(k, p);
    } else if (k->kind == Srotate && far && k->size > 1) {
        far_rotate(k);
    } else if (k->kind == Srotate) {
        local_rotate(k);
    } else if (k->kind == Sallreduce || k->kind == Sreducescatter) {
        local_reduce(k, p);
    } else {
        Shape s = shape_of(k->kind, k->iv, k->size);
        if (far && k->size > 1)
            far_blocks(k, &s, dtypes[k->iv[0]].bytes);
        else
            local_blocks(k, &s, dtypes[k->iv[0]].bytes);
    }
}
