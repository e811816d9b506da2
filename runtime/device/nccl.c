/* nccl.c: the plan's collectives between GPUs. Each distinct set of atoms has a
 * communicator, split from the world's at start, in one order on all ranks
 * whatever their stages do; MPI transfers the id. Dense blocks use NCCL's own
 * collectives, a call a block in one group; other layouts use a send and a
 * receive (or a sum to one rank) for each run of elements that is contiguous on
 * both sides, in one group. */
#include <limits.h>

#include "gpu.h"

enum { NI8 = 0, NI32 = 2, NI64 = 4, NF32 = 7, NF64 = 8, NBF16 = 9 };
enum { CTAS = 16, PAIRCTAS = 4, V2_18 = 21801 };
enum { NSUM = 0, NMAX = 2, NMIN = 3, NOCOLOR = -1, INPROGRESS = 7 };

typedef struct NcclGroup {
    uint32_t atoms;
    void *comm;
} NcclGroup;

struct Nccl {
    Arena *mem;
    const Mesh *mesh;
    int64_t rank;
    Comm *comm;
    void *world;
    int ctas; /* largest number of CTAs of a group; INT_MIN: NCCL's choice */
    NcclGroup *group; /* vec; atoms 0: a pair of stages */
};

/* Calls err() unless status is 0. A CUDA error inside NCCL usually means that
 * memory is short, so the message says so. */
static void ok(int status, const char *what)
{
    size_t left = 0, total = 0;

    if (!status)
        return;
    gpu_fault(0);
    dl.cuMemGetInfo_v2(&left, &total);
    err(NULL,
        "NCCL: %s: %s (%.2f of %.2f GiB of the GPU are free; NCCL_DEBUG=WARN "
        "tells more)",
        what, dl.ncclGetErrorString(status), (double)left / 0x1p30,
        (double)total / 0x1p30);
}

/* ---- communicators ------------------------------------------------------- */

typedef struct Config { /* ncclConfig_t of 2.18; later ones read it */
    size_t size;
    unsigned magic, version;
    int blocking, cluster, minctas, maxctas;
    const char *net;
    int share;
} Config;

/* Returns a communicator's configuration. Every communicator takes about 0.1
 * GiB and more when it is used. Groups run one after another on one stream, so
 * they share the world's buffers; links between stages run beside them and have
 * their own. With more than one communicator none has more than CTAS channels,
 * which saves up to 1 GiB a GPU. */
static Config config(int ctas, int share)
{
    int least = ctas == INT_MIN ? INT_MIN : 1; /* one without the other is
                                                    an invalid argument */
    return (Config){ sizeof(Config), 0xcafebeef, V2_18, INT_MIN, INT_MIN,
                     least,          ctas,       NULL,  share };
}

static void *split(Nccl *nccl, uint32_t atoms, int64_t color, int64_t key)
{
    NcclGroup g = { .atoms = atoms };
    Config c = atoms ? config(nccl->ctas, 1) : config(PAIRCTAS, 0);

    watch_all();
    ok(dl.ncclCommSplit(nccl->world, (int)color, (int)key, &g.comm, &c),
       "splitting a communicator");
    watch_leave();
    if (g.comm)
        vec_push(nccl->mem, nccl->group, g);
    return g.comm;
}

static int is_named(const Role *role, uint32_t atoms)
{
    for (int g = 0; g < role->nprog; g++)
        for (int k = 0; k < role->prog[g].ninstr; k++)
            if (is_collective(role->prog[g].instr[k].kind) &&
                role->prog[g].instr[k].atoms == atoms)
                return 1;
    return 0;
}

/* Opens the group of ranks that share these atoms with this rank, if its role
 * uses it. All ranks in order are the world's communicator. */
static void open_group(Nccl *nccl, const Role *mine, uint32_t atoms)
{
    int64_t n = mesh_extent(nccl->mesh, atoms);
    int64_t *ranks = alloc(nccl->mem, (size_t)n * sizeof *ranks), straight = 0;

    mesh_group(nccl->mesh, atoms, nccl->rank, ranks);
    while (straight < n && ranks[straight] == straight)
        straight++;
    if (straight == nccl->mesh->world)
        vec_push(nccl->mem, nccl->group, ((NcclGroup){ atoms, nccl->world }));
    else if (n > 1)
        split(nccl, atoms, is_named(mine, atoms) ? ranks[0] : NOCOLOR,
              mesh_pos(nccl->mesh, atoms, nccl->rank));
}

Nccl *nccl_open(Arena *a, const Plan *p, Comm *comm)
{
    Nccl *x = alloc(a, sizeof *x);
    NcclId id;

    *x = (Nccl){ .mem = a, .mesh = p->mesh, .rank = comm->first, .comm = comm };
    if (comm->world == 1)
        return x;
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* NVLink multicast */
    setenv("NCCL_MAX_P2P_NCHANNELS", "8", 0);
    if (!dl_open(LIBnccl))
        err(NULL, "several GPUs need NCCL: %s", dl_why(LIBnccl));
    memset(&id, 0, sizeof id);
    if (comm->first == 0)
        ok(dl.ncclGetUniqueId(&id), "making an id");
    comm_share(comm, &id, sizeof id);
    uint32_t *set = plan_groups(a, p, is_collective);
    x->ctas = p->nrole > 1 ? CTAS : INT_MIN;
    for (size_t i = 0; i < vec_len(set); i++)
        if (mesh_extent(p->mesh, set[i]) > 1 &&
            mesh_extent(p->mesh, set[i]) < comm->world)
            x->ctas = CTAS;
    Config cf = config(x->ctas, INT_MIN);
    watch_all();
    ok(dl.ncclCommInitRankConfig(&x->world, (int)comm->world, id,
                                 (int)comm->first, &cf),
       "starting");
    watch_leave();
    for (size_t i = 0; i < vec_len(set); i++)
        open_group(x, &p->role[role_of(p, x->rank)], set[i]);
    return x;
}

/* Called by all ranks together; closes in one order, since each close waits for
 * its members. Graphs that use a communicator must be destroyed before. */
void nccl_close(Nccl *nccl)
{
    comm_barrier(nccl->comm);
    watch_all();
    for (size_t i = 0; i < vec_len(nccl->group); i++)
        if (nccl->group[i].comm != nccl->world) {
            dl.ncclCommFinalize(nccl->group[i].comm);
            dl.ncclCommDestroy(nccl->group[i].comm);
        }
    if (nccl->world) {
        dl.ncclCommFinalize(nccl->world);
        dl.ncclCommDestroy(nccl->world);
    }
    watch_leave();
}

/* Ends kernels in flight, so that calls return; frees nothing. */
void nccl_abort(Nccl *nccl)
{
    dl.ncclGroupStart();
    for (size_t i = 0; i < vec_len(nccl->group); i++)
        if (nccl->group[i].comm != nccl->world)
            dl.ncclCommAbort(nccl->group[i].comm);
    if (nccl->world)
        dl.ncclCommAbort(nccl->world);
}

void nccl_reclaim(Nccl *nccl)
{
    dl.ncclGroupEnd();
    nccl->world = NULL;
    nccl->group = NULL;
}

/* Returns null, or the failure of another rank or the network. */
const char *nccl_check(const Nccl *nccl)
{
    int e = 0, asked = 0;

    if (nccl->world)
        asked = dl.ncclCommGetAsyncError(nccl->world, &e);
    for (size_t i = 0; i < vec_len(nccl->group) && !e && !asked; i++)
        asked = dl.ncclCommGetAsyncError(nccl->group[i].comm, &e);
    if (asked || (e && e != INPROGRESS))
        return dl.ncclGetErrorString(asked ? asked : e);
    return NULL;
}

void *nccl_group(const Nccl *nccl, uint32_t atoms)
{
    for (size_t i = 0; i < vec_len(nccl->group); i++)
        if (nccl->group[i].atoms == atoms)
            return nccl->group[i].comm;
    die("nccl: no communicator of atoms %x", atoms);
}

void *nccl_pair(Nccl *nccl, int64_t color, int64_t key)
{
    return split(nccl, 0, color < 0 ? NOCOLOR : color, key);
}

/* ---- calls of NCCL ------------------------------------------------------- */

static int type_of(Dtype dt)
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
                   stream),
       "sending");
}

void nccl_recv(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream)
{
    ok(dl.ncclRecv((void *)(uintptr_t)buf, (size_t)n, type_of(dt), peer, comm,
                   stream),
       "receiving");
}

typedef struct NcclCall { /* one collective */
    void *comm, *stream;
    InstrKind kind;
    Dtype dt;
    int op;
    int64_t peer;
    uint64_t from, to;
} NcclCall;

/* Sends a run to the peer and receives one; for a reduction, reduces the peer's
 * run to it and receives this rank's own. */
static void piece(void *ctx, int64_t out, int64_t in, int64_t n)
{
    const NcclCall *call = ctx;
    int64_t size = dtypes[call->dt].bytes;
    uint64_t from = call->from + (uint64_t)(out * size);
    uint64_t to = call->to + (uint64_t)(in * size);

    if (call->kind == Ireducescatter) {
        ok(dl.ncclReduce((void *)(uintptr_t)from, (void *)(uintptr_t)to,
                         (size_t)n, type_of(call->dt), call->op,
                         (int)call->peer, call->comm, call->stream),
           "a sum");
        return;
    }
    nccl_send(call->comm, call->dt, n, from, (int)call->peer, call->stream);
    nccl_recv(call->comm, call->dt, n, to, (int)call->peer, call->stream);
}

/* Issues an all-gather or reduce-scatter of dense blocks. */
static void blocks(const NcclCall *call, int64_t outer, int64_t chunk,
                   int64_t ranks)
{
    char *one =
        (char *)(uintptr_t)(call->kind == Iallgather ? call->from : call->to);
    char *all =
        (char *)(uintptr_t)(call->kind == Iallgather ? call->to : call->from);
    int64_t bytes = chunk * dtypes[call->dt].bytes;
    int type = type_of(call->dt);
    size_t n = (size_t)chunk;

    for (; outer > 0; outer--, one += bytes, all += bytes * ranks)
        if (call->kind == Iallgather)
            ok(dl.ncclAllGather(one, all, n, type, call->comm, call->stream),
               "all-gather");
        else
            ok(dl.ncclReduceScatter(all, one, n, type, call->op, call->comm,
                                    call->stream),
               "reduce-scatter");
}

static void allreduce(const NcclCall *call, const AllreduceArgs *args)
{
    ok(dl.ncclAllReduce((void *)(uintptr_t)call->from,
                        (void *)(uintptr_t)call->to, (size_t)args->n,
                        type_of(call->dt), call->op, call->comm, call->stream),
       "all-reduce");
}

static void ppermute(const NcclCall *call, const PpermuteArgs *args,
                     int64_t ranks, int64_t me)
{
    nccl_send(call->comm, call->dt, args->n, call->from,
              (int)((me + args->by) % ranks), call->stream);
    nccl_recv(call->comm, call->dt, args->n, call->to,
              (int)((me + ranks - args->by) % ranks), call->stream);
}

/* Issues runs to and from each rank, in any layout. */
static void pieces(NcclCall *call, const Instr *instr, int64_t ranks)
{
    for (call->peer = 0; call->peer < ranks; call->peer++)
        comm_runs(instr, ranks, call->peer, call->peer, piece, call);
}

static int op_of(const Instr *instr)
{
    static const int ops[] = { [Radd] = NSUM, [Rmax] = NMAX, [Rmin] = NMIN };

    return instr->kind == Ireducescatter ? ops[instr->reducescatter.op]
           : instr->kind == Iallreduce   ? ops[instr->allreduce.op]
                                         : NSUM;
}

void nccl_run(void *comm, const Instr *instr, int64_t ranks, int64_t me,
              uint64_t send, uint64_t recv, void *stream)
{
    NcclCall c = { .comm = comm,
                   .stream = stream,
                   .kind = instr->kind,
                   .dt = instr_dtype(instr, 0),
                   .op = op_of(instr),
                   .from = send,
                   .to = recv };

    ok(dl.ncclGroupStart(), "a group");
    if (instr->kind == Ippermute)
        ppermute(&c, &instr->ppermute, ranks, me);
    else if (instr->kind == Iallreduce)
        allreduce(&c, &instr->allreduce);
    else if (instr->kind == Iallgather && !instr->allgather.zig)
        blocks(&c, instr->allgather.outer, instr->allgather.chunk, ranks);
    else if (instr->kind == Ireducescatter && !instr->reducescatter.zig)
        blocks(&c, instr->reducescatter.outer, instr->reducescatter.chunk,
               ranks);
    else
        pieces(&c, instr, ranks);
    ok(dl.ncclGroupEnd(), "a group");
}
