/* targets.c: one row per target. */
#include "codegen.h"

#include <string.h>

/* ---- what a loop kernel can take in -------------------------------------- */

static int loops(const Graph *g, const Node *n)
{
    const OpInfo *o = &optab[n->op];

    (void)g;
    if (o->cls == VIEW)
        return n->op != Opart;
    return o->fam == FAMloop;
}

/* Products and collectives have no text: the runtime says what they need. */
static int64_t work_of(const Graph *g, const Instr *s)
{
    return instr_work(s, g->mesh ? mesh_extent(g->mesh, s->atoms) : 1);
}

static int (*const rows[NFAMILY])(Graph *g, Group *k, Arena *a, int gpu) = {
    [FAMtopk] = topk_lower,
    [FAMcumsum] = cumsum_lower,
    [FAMroute] = route_lower,
    [FAMdrop_to_capacity] = drop_to_capacity_lower,
    [FAMscatter] = scatter_lower,
};

static void rows_host(Graph *g, Group *k, Arena *a)
{
    rows[k->fam](g, k, a, 0);
}

static void rows_cuda(Graph *g, Group *k, Arena *a)
{
    cuda_row_grid(g, k, a, rows[k->fam](g, k, a, 1));
}

typedef void Lower(Graph *g, Group *k, Arena *a);

static const struct {
    Lower *host, *cuda;
} generators[NFAMILY] = {
    [FAMloop] = { loop_lower, cuda_loop_lower },
    [FAMgemm] = { gemm_lower, gemm_lower },
    [FAMgmm] = { gmm_lower, grouped_lower_cuda },
    [FAMgmm_wgrad] = { gmm_wgrad_lower, grouped_lower_cuda },
    [FAMblocks] = { NULL, blocks_lower_cuda },
    [FAMattn] = { attn_lower, attn_lower_cuda },
    [FAMattn_bwd] = { attn_bwd_lower, attn_lower_cuda },
    [FAMtopk] = { rows_host, rows_cuda },
    [FAMcumsum] = { rows_host, rows_cuda },
    [FAMdrop_to_capacity] = { rows_host, rows_cuda },
    [FAMroute] = { rows_host, rows_cuda },
    [FAMscatter] = { rows_host, rows_cuda },
    [FAMcomm] = { comm_lower, comm_lower_cuda },
    [FAMzero] = { zero_lower, zero_lower },
    [FAMcopy] = { copy_lower, copy_lower },
};

static void lower(Lower *generator, Graph *g, Group *k, Arena *a)
{
    k->instr.word = NULL;
    k->instr.nword = k->narg = 0;
    k->arg = NULL;
    if (generator)
        generator(g, k, a);
}

static void lower_host(Graph *g, Group *k, Arena *a)
{
    lower(generators[k->fam].host, g, k, a);
    if (!k->scratch)
        k->scratch = work_of(g, &k->instr);
}

static void lower_cuda(Graph *g, Group *k, Arena *a)
{
    lower(generators[k->fam].cuda, g, k, a);
}

/* No text: buffers and instructions only, so that any cluster can be planned
 * anywhere. Products read bf16 as it is, as GPUs do, and need no room. */
static void lower_null(Graph *g, Group *k, Arena *a)
{
    if (k->fam == FAMblocks ||
        (k->fam == FAMgmm && is_scaled_product(k->node[0])))
        lower_cuda(g, k, a);
    else
        lower_host(g, k, a);
    k->text = NULL;
    if (k->fam == FAMgmm || k->fam == FAMgmm_wgrad)
        k->path = grouped_path(k);
    if (k->fam == FAMgemm || k->fam == FAMgmm || k->fam == FAMgmm_wgrad)
        k->scratch = 0;
}

/* clang-format off */
const Target T_host = {
    .name = "host", .prelude = host_pre, .machine = MACHINEserver,
    .items = 16, .keeps = attn_can, .loops = loops,
    .lower = lower_host,
};
const Target T_null = {
    .name = "null", .prelude = "", .machine = MACHINEh200,
    .items = 16, .scaled = grouped_scaled, .keeps = attn_can, .loops = loops,
    .lower = lower_null,
};
const Target T_cuda = {
    .name = "cuda", .prelude = cuda_pre, .machine = MACHINEh200,
    .items = 256, .grid = 1, .scaled = grouped_scaled, .keeps = attn_can_cuda, .loops = loops,
    .squares = grouped_squares, .sums = grouped_sums, .lower = lower_cuda,
};
/* clang-format on */

static const Target *const targets[] = { &T_host, &T_null, &T_cuda };

const Target *target_named(const char *name)
{
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!strcmp(targets[i]->name, name))
            return targets[i];
    return NULL;
}
