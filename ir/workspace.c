/* workspace.c: the work space that library steps and collectives need on the
 * host. It is asked for by the code generator, so that the plan holds all
 * memory, and by the runtime, so that a plan that gave too little still runs.
 *
 *   products     bf16 operands widened to fp32; a bf16 result before rounding
 *   collectives  blocks packed for each rank, and what arrives from each; not
 *                used when all ranks share one process */
#include "plan.h"

static int64_t gemm_work(const int64_t *iv, int nint)
{
    int64_t a = iv[2] * iv[4], b = iv[4] * iv[3], c = iv[2] * iv[3];

    for (int i = 11; i + 3 < nint; i += 4) {
        a *= iv[i + 1] ? iv[i] : 1; /* stride 0: the same one again */
        b *= iv[i + 2] ? iv[i] : 1;
        c *= iv[i];
    }
    return 4 * ((iv[0] == Dbf16 ? a + b : 0) + (iv[1] == Dbf16 ? c : 0));
}

static int64_t grouped_work(InstrKind k, const int64_t *iv)
{
    int64_t weights = iv[2] * iv[3] * iv[4], cap = iv[9], n = 0;

    if (iv[0] == Dbf16)
        n += cap * iv[3] + (k == Igmm ? weights : cap * iv[4]);
    if (iv[1] == Dbf16)
        n += k == Igmm ? cap * iv[4] : weights;
    return 4 * n;
}

static int64_t comm_work(InstrKind k, const int64_t *iv, int64_t ranks)
{
    int64_t size = dtypes[iv[0]].bytes, n = iv[1] * iv[2];

    if (ranks < 2)
        return 0;
    if (k == Iallreduce && n * ranks * size <= GATHERSUM)
        return n * ranks * size;
    if (k == Iallreduce) /* in equal shares */
        return 2 * ((n + ranks - 1) / ranks) * ranks * size;
    if (k == Ireducescatter)
        return (iv[1] > 1 || iv[4] ? 2 : 1) * n * ranks * size;
    if (k == Iallgather)
        return iv[1] > 1 || iv[3] ? n * (ranks + 1) * size : 0;
    return 2 * iv[1] * (iv[2] / ranks) * iv[3] * iv[4] * iv[5] * size;
}

int64_t instr_work(InstrKind k, const int64_t *iv, int nint, int64_t ranks)
{
    switch (k) {
    case Igemm: return gemm_work(iv, nint);
    case Igmm:
    case Igmm_wgrad: return grouped_work(k, iv);
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall: return comm_work(k, iv, ranks);
    default: return 0;
    }
}
