/* peer_gpu.c: row exchanges between GPUs that access each other's memory
 * (codegen/exchange). The arenas of all ranks of this machine are mapped once.
 * Each is followed by words for the barriers of a group's blocks, a run of
 * words for each set of ranks that exchanges rows. */
#include "gpu.h"

enum { MEETINGS = 2, WORD = 8, ALIGN = 256 };

struct PeerCall {
    void *fn, **param;
    void *at[]; /* arenas of the group */
};

/* ---- arenas and words ---------------------------------------------------- */

static int64_t words_of(const Gpu *gpu, uint32_t atoms)
{
    return PEERBLOCKS * (MEETINGS * mesh_extent(gpu->plan->mesh, atoms) + 1) *
           WORD;
}

/* Returns the offset of a set's words after the arena, equal on all ranks: sets
 * are in the plan's order. An unknown set: bytes of all words. */
static int64_t words_at(const Gpu *gpu, uint32_t atoms)
{
    const uint32_t *set = plan_groups(gpu->mem, gpu->plan, moves_rows);
    int64_t at = 0;

    for (size_t i = 0; i < vec_len(set) && set[i] != atoms; i++)
        at += words_of(gpu, set[i]);
    return at;
}

/* Allocates a word of host memory that waiting kernels poll. */
static void open_stop(Gpu *gpu)
{
    enum { MAPPED = 2 };
    void *p = NULL;

    gpu_ok(dl.cuMemHostAlloc(&p, sizeof *gpu->stop, MAPPED), "a mapped word");
    gpu_ok(dl.cuMemHostGetDevicePointer_v2(&gpu->stopat, p, 0),
           "a mapped word");
    gpu->stop = p;
    *gpu->stop = 0;
}

void peer_abort(Gpu *gpu)
{
    if (gpu->stop)
        *gpu->stop = 1;
}

void *gpu_shared(Gpu *gpu, int64_t bytes, MemoryUse use)
{
    const char *what = memory_uses[use];
    int64_t words = words_at(gpu, 0);

    gpu->words = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    gpu->peer = gpu_peers(gpu, gpu->words + words, use);
    gpu_ok(dl.cuMemsetD8Async((uint64_t)(uintptr_t)gpu->peer[gpu->rank] +
                                  (uint64_t)gpu->words,
                              0, (size_t)words, gpu->stream[STREAMcompute]),
           what);
    gpu_ok(dl.cuStreamSynchronize(gpu->stream[STREAMcompute]), what);
    open_stop(gpu);
    comm_barrier(gpu->comm);
    return gpu->peer[gpu->rank];
}

/* ---- calls --------------------------------------------------------------- */

PeerCall *peer_bind(Gpu *gpu, const BoundInstr *bound)
{
    enum { OPERANDS = 3, OWN = OPERANDS, WORDS, ME, STOP, BEFORE };
    const Instr *instr = bound->instr;
    size_t n = (size_t)bound->group;
    PeerCall *c = alloc(gpu->mem, sizeof *c + n * sizeof *c->at);
    int64_t *number = alloc(gpu->mem, 2 * sizeof *number);

    if (!instr->kernel)
        err(&(Loc){ instr->file, instr->line, NULL }, "%s has no kernel",
            instr_label(instr));
    c->fn = gpu_kernel(gpu, instr);
    c->param = alloc(gpu->mem, (BEFORE + n) * sizeof *c->param);
    for (int i = 0; i < OPERANDS; i++)
        c->param[i] = &bound->buf[i];
    number[0] = gpu->words + words_at(gpu, instr->atoms);
    number[1] = bound->me;
    c->param[OWN] = &gpu->peer[gpu->rank];
    c->param[WORDS] = &number[0];
    c->param[ME] = &number[1];
    c->param[STOP] = &gpu->stopat;
    for (size_t j = 0; j < n; j++) {
        c->at[j] = gpu->peer[bound->ranks[j]];
        c->param[BEFORE + j] = &c->at[j];
    }
    return c;
}

void peer_run(const PeerCall *call, const Launch *launch, void *stream)
{
    gpu_ok(dl.cuLaunchKernel(call->fn, (unsigned)launch->items, 1, 1,
                             (unsigned)launch->threads, 1, 1,
                             (unsigned)launch->shared, stream, call->param,
                             NULL),
           "an exchange of rows");
}
