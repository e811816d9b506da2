/* coll_bench.c: our collectives against Open MPI's own for the same bytes,
 * under mpirun on one machine. Both take turns; the median of each counts.
 * Ours sum in rank order and cut tensors along an inner axis too (the rows
 * "inner"), for which Open MPI's own is timed on dense blocks of that size. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../runtime/runtime.h"

enum { MAXBYTES = 16 << 20, ROUNDS = 41, INNER = 64 };

typedef struct Bench {
    Comm *comm;
    Pool *pool;
    int64_t *ranks, n;
    float *send, *recv, *stage;
} Bench;

/* One kind and shape; elems: of the larger side. */
typedef struct Case {
    const char *name;
    InstrKind kind;
    int inner; /* cut along an inner axis */
} Case;

/* clang-format off */
static const Case cases[] = {
    {"all-gather", Iallgather, 0}, {"all-gather, inner", Iallgather, 1},
    {"reduce-scatter", Ireducescatter, 0},
    {"reduce-scatter, inner", Ireducescatter, 1},
    {"all-reduce", Iallreduce, 0},
    {"all-to-all", Ialltoall, 0}, {"all-to-all, inner", Ialltoall, 1},
};
/* clang-format on */

enum { NCASE = sizeof cases / sizeof *cases };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Instr instr_of(const Case *c, int64_t elems, int64_t g)
{
    int64_t outer = c->inner ? INNER : 1, chunk = elems / outer / g;
    Instr s = { .kind = c->kind, .atoms = 1 };

    if (c->kind == Iallreduce) {
        s.allreduce = (AllreduceArgs){ Df32, elems, Radd };
    } else if (c->kind == Iallgather) {
        s.allgather = (AllgatherArgs){ Df32, outer, chunk, 0, 0 };
    } else if (c->kind == Ireducescatter) {
        s.reducescatter = (ReducescatterArgs){ Df32, outer, chunk, Radd, 0, 0 };
    } else {
        outer = c->inner ? INNER / g : 1;
        s.alltoall =
            (AlltoallArgs){ Df32, outer, g, 1, g, elems / g / outer, 0, 0, 0 };
    }
    return s;
}

static void ours(const Bench *b, const Case *c, int64_t elems)
{
    Instr s = instr_of(c, elems, b->n);
    Part part = { .send = b->send, .recv = b->recv };

    comm_run(b->comm, b->pool,
             &(Coll){ .instr = &s,
                      .size = b->n,
                      .ranks = b->ranks,
                      .part = &part,
                      .me = b->comm->first,
                      .stage = b->stage });
}

static void theirs(const Bench *b, const Case *c, int64_t elems)
{
    int share = (int)(elems / b->n);
    void *world = dl.ompi_mpi_comm_world, *type = dl.ompi_mpi_float;

    switch (c->kind) {
    case Iallgather:
        dl.MPI_Allgather(b->send, share, type, b->recv, share, type, world);
        break;
    case Ireducescatter:
        dl.MPI_Reduce_scatter_block(b->send, b->recv, share, type,
                                    dl.ompi_mpi_op_sum, world);
        break;
    case Iallreduce:
        dl.MPI_Allreduce(b->send, b->recv, (int)elems, type, dl.ompi_mpi_op_sum,
                         world);
        break;
    default: dl.MPI_Alltoall(b->send, share, type, b->recv, share, type, world);
    }
}

static double timed(const Bench *b, const Case *c, int64_t elems, int reps,
                    void (*f)(const Bench *, const Case *, int64_t))
{
    comm_barrier(b->comm);
    double start = now();
    for (int i = 0; i < reps; i++)
        f(b, c, elems);
    comm_barrier(b->comm);
    return (now() - start) / reps;
}

/* Medians; all ranks must agree on nothing, rank 0 prints. */
static double compare(const Bench *b, const Case *c, int64_t bytes)
{
    double t[2][ROUNDS];
    int rounds = bytes < 1 << 20 ? ROUNDS : ROUNDS / 4;
    int reps = bytes < 1 << 18 ? 8 : 1;
    int64_t elems = bytes / (int64_t)sizeof(float);

    for (int i = -1; i < rounds; i++) { /* the first round only warms up */
        double a = timed(b, c, elems, reps, ours);
        double m = timed(b, c, elems, reps, theirs);
        t[0][i < 0 ? 0 : i] = a;
        t[1][i < 0 ? 0 : i] = m;
    }
    for (int k = 0; k < 2; k++)
        qsort(t[k], (size_t)rounds, sizeof *t[k], by_double);
    double a = t[0][rounds / 2], m = t[1][rounds / 2];
    if (!b->comm->first)
        printf("%-22s %8lld KB  %10.1f us %10.1f us  %6.2f\n", c->name,
               (long long)(bytes >> 10), 1e6 * a, 1e6 * m, a / m);
    fflush(stdout);
    return a / m;
}

/* The group of all ranks: atom 0 of a grid that is all data parallel. */
static void open_bench(Bench *b)
{
    int64_t size[NMESH] = { [Mdp] = launch_world() };
    Mesh *m = mesh_new(forever, launch_world(), size, "tp-cp-dp-pp", NULL);

    b->comm = comm_open(forever, launch_world());
    b->n = b->comm->world;
    b->ranks = alloc(forever, (size_t)b->n * sizeof *b->ranks);
    mesh_group(m, 1, b->comm->first, b->ranks);
    comm_groups(b->comm, forever, m, &(uint32_t){ 1 }, 1);
    b->pool = pool_open(0);
    b->send = alloc(forever, MAXBYTES);
    b->recv = alloc(forever, MAXBYTES);
    b->stage = alloc(forever, 2 * MAXBYTES);
    for (int64_t i = 0; i < MAXBYTES / (int64_t)sizeof(float); i++)
        b->send[i] = (float)(i % 97) * 0.25f;
}

int main(void)
{
    Bench b = { 0 };
    double worst = 0;

    open_bench(&b);
    if (!b.comm->first)
        printf("%-22s %11s  %13s %13s  %6s\n", "collective", "bytes", "ours",
               "Open MPI", "ratio");
    for (int i = 0; i < NCASE; i++)
        for (int64_t bytes = 4 << 10; bytes <= MAXBYTES; bytes *= 4) {
            double r = compare(&b, &cases[i], bytes);
            worst = r > worst ? r : worst;
        }
    if (!b.comm->first)
        printf("%-22s %11s  %13s %13s  %6.2f  goal <= 2\n", "largest", "", "",
               "", worst);
    comm_close(b.comm);
    return 0;
}
