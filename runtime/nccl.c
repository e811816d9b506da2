/* nccl.c: the plan's collectives between GPUs. One communicator for each
 * distinct set of atoms, split from that of the world; the id travels over MPI.
 * What is dense in blocks is NCCL's own collective, a call a block in one
 * group; other shapes are a send and a receive (or a sum to one rank) for each
 * run of elements that follow each other on both sides, in one group.        */
#include <string.h>

#include "runtime.h"

enum { NI8 = 0, NI32 = 2, NI64 = 4, NF32 = 7, NF64 = 8, NBF16 = 9 };
enum { NSUM = 0, NMAX = 2, NMIN = 3, NOCOLOR = -1, INPROGRESS = 7 };

typedef struct Group { uint32_t atoms; void *comm; } Group;

struct Nccl {
    Arena *mem;
    const Mesh *mesh;
    int64_t rank;
    void *world;
    Group *group;                 /* vec; atoms 0: a pair of stages           */
};

static void ok(int status, const char *what)
{
    if (status)
        err(NULL, "NCCL: %s: %s", what, dl.ncclGetErrorString(status));
}

/* ---- communicators ------------------------------------------------------- */

Nccl *nccl_open(Arena *a, const Mesh *m, Comm *c)
{
    Nccl *x = alloc(a, sizeof *x);
    NcclId id;

    *x = (Nccl){.mem = a, .mesh = m, .rank = c->first};
    if (c->world == 1)
        return x;
    if (!dl_open(LIBnccl))
        err(NULL, "several GPUs need NCCL: %s", dl_why(LIBnccl));
    memset(&id, 0, sizeof id);
    if (c->first == 0)
        ok(dl.ncclGetUniqueId(&id), "making an id");
    comm_share(c, &id, sizeof id);
    watch_all();
    ok(dl.ncclCommInitRank(&x->world, (int)c->world, id, (int)c->first),
       "starting");
    watch_leave();
    return x;
}

void nccl_close(Nccl *x)
{
    for (size_t i = 0; i < vec_len(x->group); i++)
        dl.ncclCommDestroy(x->group[i].comm);
    if (x->world)
        dl.ncclCommDestroy(x->world);
}

/* Has another rank or the network failed?                                    */
void nccl_check(Nccl *x)
{
    int e = 0;

    if (x->world)
        ok(dl.ncclCommGetAsyncError(x->world, &e), "asking for errors");
    for (size_t i = 0; i < vec_len(x->group) && !e; i++)
        ok(dl.ncclCommGetAsyncError(x->group[i].comm, &e),
           "asking for errors");
    if (e != INPROGRESS)
        ok(e, "while a step ran");
}

static void *split(Nccl *x, uint32_t atoms, int64_t color, int64_t key)
{
    Group g = {.atoms = atoms};

    watch_all();
    ok(dl.ncclCommSplit(x->world, (int)color, (int)key, &g.comm, NULL),
       "splitting a communicator");
    watch_leave();
    if (g.comm)
        vec_push(x->mem, x->group, g);
    return g.comm;
}

/* All ranks ask for the same sets in the same order.                         */
void *nccl_group(Nccl *x, uint32_t atoms)
{
    for (size_t i = 0; i < vec_len(x->group); i++)
        if (x->group[i].atoms == atoms)
            return x->group[i].comm;
    int64_t *ranks = alloc(x->mem, (size_t)mesh_extent(x->mesh, atoms) *
                                       sizeof *ranks);
    mesh_group(x->mesh, atoms, x->rank, ranks);
    return split(x, atoms, ranks[0], mesh_pos(x->mesh, atoms, x->rank));
}

void *nccl_pair(Nccl *x, int64_t color, int64_t key)
{
    return split(x, 0, color < 0 ? NOCOLOR : color, key);
}

/* ---- what NCCL is asked for ---------------------------------------------- */

static int type_of(int64_t dt)
{
    switch (dt) {
    case Df64: return NF64;
    case Dbf16: return NBF16;
    case Di32: return NI32;
    case Di64: return NI64;
    case Df32: return NF32;
    default: return NI8;
    }
}

void nccl_send(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream)
{
    ok(dl.ncclSend((void *)(uintptr_t)buf, (size_t)n, type_of(dt), peer, comm,
                   stream), "sending");
}

void nccl_recv(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream)
{
    ok(dl.ncclRecv((void *)(uintptr_t)buf, (size_t)n, type_of(dt), peer, comm,
                   stream), "receiving");
}

typedef struct Call {             /* one collective                           */
    void *comm, *stream;
    StepKind kind;
    Dtype dt;
    int op;
    int64_t peer;
    uint64_t from, to;
} Call;

/* A run to the peer and the one from it; of a sum the run that is the peer's
 * and the place of this rank's own.                                          */
static void piece(void *ctx, int64_t out, int64_t in, int64_t n)
{
    const Call *c = ctx;
    int64_t size = dtypes[c->dt].bytes;
    uint64_t from = c->from + (uint64_t)(out * size);
    uint64_t to = c->to + (uint64_t)(in * size);

    if (c->kind == Sreducescatter) {
        ok(dl.ncclReduce((void *)(uintptr_t)from, (void *)(uintptr_t)to,
                         (size_t)n, type_of(c->dt), c->op, (int)c->peer,
                         c->comm, c->stream), "a sum");
        return;
    }
    nccl_send(c->comm, c->dt, n, from, (int)c->peer, c->stream);
    nccl_recv(c->comm, c->dt, n, to, (int)c->peer, c->stream);
}

/* Dense blocks: all-gather, reduce-scatter, all-reduce as NCCL has them.     */
static void dense(const Call *c, const int64_t *iv, int64_t ranks)
{
    int64_t size = dtypes[c->dt].bytes, chunk = iv[2];
    int type = type_of(c->dt);

    for (int64_t o = 0; o < iv[1]; o++) {
        uint64_t small = (uint64_t)(o * chunk * size);
        uint64_t big = small * (uint64_t)ranks;
        char *from = (char *)(uintptr_t)c->from, *to = (char *)(uintptr_t)c->to;
        if (c->kind == Sallgather)
            ok(dl.ncclAllGather(from + small, to + big, (size_t)chunk, type,
                                c->comm, c->stream), "all-gather");
        else if (c->kind == Sreducescatter)
            ok(dl.ncclReduceScatter(from + big, to + small, (size_t)chunk, type,
                                    c->op, c->comm, c->stream),
               "reduce-scatter");
        else
            ok(dl.ncclAllReduce(from + small, to + small, (size_t)chunk, type,
                                c->op, c->comm, c->stream), "all-reduce");
    }
}

static void rotate(const Call *c, const int64_t *iv, int64_t ranks, int64_t me)
{
    nccl_send(c->comm, c->dt, iv[1], c->from, (int)((me + iv[2]) % ranks),
              c->stream);
    nccl_recv(c->comm, c->dt, iv[1], c->to, (int)((me + ranks - iv[2]) % ranks),
              c->stream);
}

/* Do its ranks hold their axis in pieces (zig of steps.def)?                 */
static int in_halves(StepKind k, const int64_t *iv)
{
    return (k == Sallgather && iv[3]) || (k == Sreducescatter && iv[4]);
}

void nccl_run(void *comm, StepKind kind, const int64_t *iv, int64_t ranks,
              int64_t me, uint64_t send, uint64_t recv, void *stream)
{
    static const int ops[] = {NSUM, NMAX, NMIN};
    int sums = kind == Sreducescatter || kind == Sallreduce;
    Call c = {.comm = comm, .stream = stream, .kind = kind,
              .dt = (Dtype)iv[0], .op = sums ? ops[iv[3] % 3] : 0,
              .from = send, .to = recv};

    ok(dl.ncclGroupStart(), "a group");
    if (kind == Srotate)
        rotate(&c, iv, ranks, me);
    else if (kind != Salltoall && !in_halves(kind, iv))
        dense(&c, iv, ranks);
    else
        for (c.peer = 0; c.peer < ranks; c.peer++)
            comm_runs(kind, iv, ranks, c.peer, piece, &c);
    ok(dl.ncclGroupEnd(), "a group");
}
