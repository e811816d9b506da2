/* nccl.c: the plan's collectives between GPUs. One communicator for each
 * distinct set of atoms, split from that of the world; the id travels over MPI.
 * A collective of `outer` blocks is one NCCL call a block in one group.      */
#include <string.h>

#include "runtime.h"

enum { NI8 = 0, NI32 = 2, NI64 = 4, NF32 = 7, NF64 = 8, NBF16 = 9 };
enum { NSUM = 0, NMAX = 2, NMIN = 3 };

typedef struct Group { uint32_t atoms; void *comm; } Group;

struct Nccl {
    const Mesh *mesh;
    int64_t rank;
    void *world;
    Group group[64]; int n;
};

static void ok(int status, const char *what)
{
    if (status)
        err(NULL, "NCCL: %s: %s", what, dl.ncclGetErrorString(status));
}

Nccl *nccl_open(Arena *a, const Mesh *m, Comm *c)
{
    Nccl *x = alloc(a, sizeof *x);
    NcclId id;

    *x = (Nccl){.mesh = m, .rank = c->first};
    if (c->world == 1)
        return x;
    if (!dl_open(LIBnccl))
        err(NULL, "several GPUs need NCCL: %s", dl_why(LIBnccl));
    memset(&id, 0, sizeof id);
    if (c->first == 0)
        ok(dl.ncclGetUniqueId(&id), "making an id");
    comm_share(c, &id, sizeof id);
    ok(dl.ncclCommInitRank(&x->world, (int)c->world, id, (int)c->first),
       "starting");
    return x;
}

void nccl_close(Nccl *x)
{
    for (int i = 0; i < x->n; i++)
        dl.ncclCommDestroy(x->group[i].comm);
    if (x->world)
        dl.ncclCommDestroy(x->world);
}

/* All ranks ask for the same sets in the same order.                         */
void *nccl_group(Nccl *x, uint32_t atoms)
{
    for (int i = 0; i < x->n; i++)
        if (x->group[i].atoms == atoms)
            return x->group[i].comm;
    if (x->n == 64)
        err(NULL, "a plan of more than 64 kinds of groups");
    int64_t size = mesh_extent(x->mesh, atoms);
    int64_t ranks[size > 0 ? size : 1];
    Group *g = &x->group[x->n++];
    mesh_group(x->mesh, atoms, x->rank, ranks);
    g->atoms = atoms;
    ok(dl.ncclCommSplit(x->world, (int)ranks[0],
                        (int)mesh_pos(x->mesh, atoms, x->rank), &g->comm, NULL),
       "splitting a communicator");
    return g->comm;
}

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

/* One block to and from each peer for every setting of the axes outside it:
 * swap 0   [outer][A/G][mid][B][inner] -> [outer][A][mid][B/G][inner]
 * swap 1   [outer][B][mid][A/G][inner] -> [outer][B/G][mid][A][inner]        */
static void exchange(void *comm, const int64_t *iv, int64_t G, const char *from,
                     char *to, void *stream)
{
    int type = type_of(iv[0]), swap = iv[6] != 0;
    int64_t e = dtypes[iv[0]].bytes, outer = iv[1], mid = iv[3], in = iv[5] * e;
    int64_t a = iv[2] / G, b = iv[4] / G, rows = swap ? b : a;
    int64_t len = (swap ? a : b) * in;

    for (int64_t k = 0; k < outer * rows * mid; k++) {
        int64_t m = k % mid, x = k / mid % rows, o = k / mid / rows;
        for (int64_t r = 0; r < G; r++) {
            int64_t near = ((o * rows + x) * mid + m) * G + r;
            int64_t far = ((o * G + r) * rows + x) * mid + m;
            ok(dl.ncclSend(from + (swap ? far : near) * len,
                           (size_t)(len / e), type, (int)r, comm, stream),
               "sending");
            ok(dl.ncclRecv(to + (swap ? near : far) * len, (size_t)(len / e),
                           type, (int)r, comm, stream), "receiving");
        }
    }
}

void nccl_run(void *comm, StepKind kind, const int64_t *iv, int64_t ranks,
              uint64_t send, uint64_t recv, void *stream)
{
    static const int ops[] = {NSUM, NMAX, NMIN};
    int type = type_of(iv[0]), op = kind == Sallgather ? 0 : ops[iv[3] % 3];
    int64_t bytes = dtypes[iv[0]].bytes, outer = iv[1], chunk = iv[2];
    char *from = (char *)(uintptr_t)send, *to = (char *)(uintptr_t)recv;

    ok(dl.ncclGroupStart(), "a group");
    if (kind == Salltoall)
        exchange(comm, iv, ranks, from, to, stream);
    for (int64_t o = 0; o < outer && kind != Salltoall; o++) {
        int64_t small = o * chunk * bytes, big = small * ranks;
        if (kind == Sallgather)
            ok(dl.ncclAllGather(from + small, to + big, (size_t)chunk, type,
                                comm, stream), "all-gather");
        else if (kind == Sreducescatter)
            ok(dl.ncclReduceScatter(from + big, to + small, (size_t)chunk, type,
                                    op, comm, stream), "reduce-scatter");
        else
            ok(dl.ncclAllReduce(from + small, to + small, (size_t)chunk, type,
                                op, comm, stream), "all-reduce");
    }
    ok(dl.ncclGroupEnd(), "a group");
}
