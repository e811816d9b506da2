/* workspace.c: bytes of workspace that products and collectives need on the
 * host. The code generator uses it, so that the plan contains all memory, and
 * the runtime, so that a plan with too little still runs.
 *
 * products bf16 operands widened to fp32; a bf16 result before rounding
 * collectives blocks packed for each rank, and blocks received from each; not
 *                used if all ranks share one process */
#include "plan.h"

static int64_t gemm_work(const GemmArgs *args)
{
    int64_t a = args->m * args->k, b = args->k * args->n, c = args->m * args->n;

    for (int i = 0; i < args->batch.n; i++) {
        const BatchLoop *loop = &args->batch.at[i];
        a *= loop->a ? loop->n : 1; /* stride 0: one item, repeated */
        b *= loop->b ? loop->n : 1;
        c *= loop->n;
    }
    return 4 * ((args->in == Dbf16 ? a + b : 0) + (args->out == Dbf16 ? c : 0));
}

static int64_t grouped_work(InstrKind k, const GmmArgs *args)
{
    int64_t weights = args->experts * args->k * args->n, n = 0;

    if (args->in == Dbf16)
        n += args->cap * args->k + (k == Igmm ? weights : args->cap * args->n);
    if (args->out == Dbf16)
        n += k == Igmm ? args->cap * args->n : weights;
    return 4 * n;
}

static int64_t allreduce_work(const AllreduceArgs *args, int64_t ranks)
{
    int64_t size = dtypes[args->dt].bytes;

    if (args->n * ranks * size <= GATHERSUM)
        return args->n * ranks * size;
    return 2 * ((args->n + ranks - 1) / ranks) * ranks *
           size; /* equal shares */
}

static int64_t allgather_work(const AllgatherArgs *args, int64_t ranks)
{
    int64_t n = args->outer * args->chunk * dtypes[args->dt].bytes;

    return args->outer > 1 || args->zig ? n * (ranks + 1) : 0;
}

static int64_t reducescatter_work(const ReducescatterArgs *args, int64_t ranks)
{
    int64_t n = args->outer * args->chunk * dtypes[args->dt].bytes;

    return (args->outer > 1 || args->zig ? 2 : 1) * n * ranks;
}

static int64_t alltoall_work(const AlltoallArgs *args, int64_t ranks)
{
    return 2 * args->outer * (args->a / ranks) * args->mid * args->b *
           args->inner * dtypes[args->dt].bytes;
}

int64_t instr_work(const Instr *instr, int64_t ranks)
{
    if (instr_info(instr->kind)->cls == CLASScollective && ranks < 2)
        return 0;
    switch (instr->kind) {
    case Igemm: return gemm_work(&instr->gemm);
    case Igmm:
    case Igmm_wgrad: return grouped_work(instr->kind, &instr->gmm);
    case Iallgather: return allgather_work(&instr->allgather, ranks);
    case Ireducescatter:
        return reducescatter_work(&instr->reducescatter, ranks);
    case Iallreduce: return allreduce_work(&instr->allreduce, ranks);
    case Ialltoall: return alltoall_work(&instr->alltoall, ranks);
    default: return 0;
    }
}
