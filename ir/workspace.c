/* workspace.c: the work space that products and collectives need on the
 * host. It is asked for by the code generator, so that the plan holds all
 * memory, and by the runtime, so that a plan that gave too little still runs.
 *
 *   products     bf16 operands widened to fp32; a bf16 result before rounding
 *   collectives  blocks packed for each rank, and what arrives from each; not
 *                used when all ranks share one process */
#include "plan.h"

static int64_t gemm_work(const GemmArgs *g)
{
    int64_t a = g->m * g->k, b = g->k * g->n, c = g->m * g->n;

    for (int i = 0; i < g->batch.n; i++) {
        const BatchLoop *x = &g->batch.at[i];
        a *= x->a ? x->n : 1; /* stride 0: the same one again */
        b *= x->b ? x->n : 1;
        c *= x->n;
    }
    return 4 * ((g->in == Dbf16 ? a + b : 0) + (g->out == Dbf16 ? c : 0));
}

static int64_t grouped_work(InstrKind k, const GmmArgs *g)
{
    int64_t weights = g->experts * g->k * g->n, n = 0;

    if (g->in == Dbf16)
        n += g->cap * g->k + (k == Igmm ? weights : g->cap * g->n);
    if (g->out == Dbf16)
        n += k == Igmm ? g->cap * g->n : weights;
    return 4 * n;
}

static int64_t allreduce_work(const AllreduceArgs *x, int64_t ranks)
{
    int64_t size = dtypes[x->dt].bytes;

    if (x->n * ranks * size <= GATHERSUM)
        return x->n * ranks * size;
    return 2 * ((x->n + ranks - 1) / ranks) * ranks * size; /* equal shares */
}

static int64_t allgather_work(const AllgatherArgs *x, int64_t ranks)
{
    int64_t n = x->outer * x->chunk * dtypes[x->dt].bytes;

    return x->outer > 1 || x->zig ? n * (ranks + 1) : 0;
}

static int64_t reducescatter_work(const ReducescatterArgs *x, int64_t ranks)
{
    int64_t n = x->outer * x->chunk * dtypes[x->dt].bytes;

    return (x->outer > 1 || x->zig ? 2 : 1) * n * ranks;
}

static int64_t alltoall_work(const AlltoallArgs *x, int64_t ranks)
{
    return 2 * x->outer * (x->a / ranks) * x->mid * x->b * x->inner *
           dtypes[x->dt].bytes;
}

int64_t instr_work(const Instr *s, int64_t ranks)
{
    if (instr_info(s->kind)->cls == CLASScollective && ranks < 2)
        return 0;
    switch (s->kind) {
    case Igemm: return gemm_work(&s->gemm);
    case Igmm:
    case Igmm_wgrad: return grouped_work(s->kind, &s->gmm);
    case Iallgather: return allgather_work(&s->allgather, ranks);
    case Ireducescatter: return reducescatter_work(&s->reducescatter, ranks);
    case Iallreduce: return allreduce_work(&s->allreduce, ranks);
    case Ialltoall: return alltoall_work(&s->alltoall, ranks);
    default: return 0;
    }
}
