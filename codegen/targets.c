/* targets.c: the targets, one row each. */
#include "codegen.h"

/* ---- fusion into loop kernels -------------------------------------------- */

static int loops_can_compute(const Graph *g, const Node *n)
{
    const OpInfo *info = &optab[n->op];

    (void)g;
    if (info->cls == VIEW)
        return n->op != Opart;
    return info->fam == FAMloop;
}

/* Workspace of an instruction without text (a product or collective), in
 * bytes. */
static int64_t workspace_of(const Graph *g, const Instr *instr)
{
    return instr_work(instr, g->mesh ? mesh_extent(g->mesh, instr->atoms) : 1);
}

static int (*const row_generators[NFAMILY])(Graph *g, Group *k, Arena *a,
                                            int gpu) = {
    [FAMtopk] = topk_lower,
    [FAMcumsum] = cumsum_lower,
    [FAMroute] = route_lower,
    [FAMdrop_to_capacity] = drop_to_capacity_lower,
    [FAMscatter] = scatter_lower,
    [FAMfake_quantize] = fake_quantize_lower,
};

static void rows_host(Graph *g, Group *group, Arena *a)
{
    row_generators[group->fam](g, group, a, 0);
}

static void rows_cuda(Graph *g, Group *group, Arena *a)
{
    cuda_row_grid(g, group, a, row_generators[group->fam](g, group, a, 1));
}

typedef void Lower(Graph *g, Group *k, Arena *a);

static const struct {
    Lower *host, *cuda;
} generators[NFAMILY] = {
    [FAMloop] = { loop_lower, cuda_loop_lower },
    [FAMgemm] = { gemm_lower, dense_lower_cuda },
    [FAMgmm] = { gmm_lower, grouped_lower_cuda },
    [FAMgmm_wgrad] = { gmm_wgrad_lower, grouped_lower_cuda },
    [FAMblocks] = { NULL, cuda_blocks_lower },
    [FAMattn] = { attn_lower, attn_lower_cuda },
    [FAMattn_bwd] = { attn_bwd_lower, attn_lower_cuda },
    [FAMtopk] = { rows_host, rows_cuda },
    [FAMcumsum] = { rows_host, rows_cuda },
    [FAMdrop_to_capacity] = { rows_host, rows_cuda },
    [FAMroute] = { rows_host, rows_cuda },
    [FAMscatter] = { rows_host, rows_cuda },
    [FAMfake_quantize] = { rows_host, rows_cuda },
    [FAMcomm] = { comm_lower, comm_lower_cuda },
    [FAMzero] = { zero_lower, zero_lower },
    [FAMcopy] = { copy_lower, copy_lower },
};

static void lower_with(Lower *generator, Graph *g, Group *group, Arena *a)
{
    group->instr.word = NULL;
    group->instr.nword = group->narg = 0;
    group->arg = NULL;
    if (generator)
        generator(g, group, a);
}

static void lower_host(Graph *g, Group *group, Arena *a)
{
    lower_with(generators[group->fam].host, g, group, a);
    if (!group->scratch)
        group->scratch = workspace_of(g, &group->instr);
}

static void lower_cuda(Graph *g, Group *group, Arena *a)
{
    lower_with(generators[group->fam].cuda, g, group, a);
}

/* lower for the null target: buffers and instructions without text, so that any
 * cluster can be planned on any machine. Products read bf16 directly, as on
 * GPUs, and need no workspace. */
static void lower_null(Graph *g, Group *group, Arena *a)
{
    if (group->fam == FAMblocks || is_scaled_product(group->node[0]))
        lower_cuda(g, group, a);
    else
        lower_host(g, group, a);
    group->text = NULL;
    if (group->fam == FAMgmm || group->fam == FAMgmm_wgrad)
        group->path = grouped_path(group);
    if (group->fam == FAMgemm || group->fam == FAMgmm ||
        group->fam == FAMgmm_wgrad)
        group->scratch = 0;
}

/* clang-format off */
const Target T_host = {
    .name = "host", .prelude = host_pre, .machine = MACHINEserver,
    .items = 16, .refuses = attn_refused, .loops = loops_can_compute,
    .lower = lower_host,
};
const Target T_null = {
    .name = "null", .prelude = "", .machine = MACHINEh200,
    .items = 16, .scaled = has_scaled_product, .refuses = attn_refused, .loops = loops_can_compute,
    .rounds = blocks_fit_loop, .lower = lower_null,
};
const Target T_cuda = {
    .name = "cuda", .prelude = cuda_pre, .machine = MACHINEh200,
    .items = 256, .grid = 1, .scaled = has_scaled_product, .refuses = attn_refused_cuda, .loops = loops_can_compute,
    .squares = grouped_squares, .sums = grouped_sums, .rounds = blocks_fit_loop,
    .updates = grouped_updates, .lower = lower_cuda,
    .host = &T_host,
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
