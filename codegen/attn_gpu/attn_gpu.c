/* attn_gpu.c: attention for GPUs. A launch has jobs, one after another: one for
 * forward, one for each set of gradients with the same axes for backward. A
 * block of a job has rows (queries or keys) of one combination of the axes of
 * its results, and loops over the columns (the other side) of all combinations
 * of the other axes:
 *
 *     job        rows      columns          sums
 *     forward    queries   keys             weights x values
 *     queries    queries   keys             dterm x keys
 *     keys       keys      queries          dterm' x queries, p' x dout
 *
 * Backward jobs recompute scores, which makes 7 products instead of 5, or the
 * keys' job stores their gradients for the queries' job (attn_dscores.c). There
 * are no atomic additions, and the order of all sums is fixed. Two forms:
 * tensor cores (attn_producer.c, attn_consumer.c) for bf16 operands whose
 * widths fit; else one warp per row (attn_warp.c). On tensor cores weights and
 * dterm are rounded to bf16 before their second product, and exp is
 * approximate; sums, maxima and logsumexps are fp32.
 * decisions/attention-forward.md and attention-backward.md have the measured
 * rates and the other forms that were tried. */
#include "attn_gpu.h"

/* ---- supported attentions ------------------------------------------------ */

/* Does n depend on a parameter, so that its gradient may be wanted? */
static int is_trained(const Node *n, Table *seen)
{
    if (n->op == Oparam)
        return 1;
    if (table_get(seen, KEYP(n)))
        return 0;
    *table_at(seen, KEYP(n)) = (void *)n;
    for (int k = 0; k < n->nin; k++)
        if (passes_gradient(n, k) && is_trained(n->in[k], seen))
            return 1;
    return 0;
}

const char *attn_refused_cuda(const Graph *g, const Node *n)
{
    Attn attn;

    if (!attn_read(&attn, g, n))
        return attn.why;
    for (int op = 0; op < attn.nop; op++)
        if (attn.leaf >> op & 1 && passes_gradient(n, op) &&
            is_trained(n->in[op], table_new(g->arena)))
            return "a trained tensor is added to the scores; stop_gradient(..) "
                   "it, or make it a dimension more of queries and keys";
    return NULL;
}

/* ---- the text ------------------------------------------------------------ */

static void make_views(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;

    if (!gpu->back) {
        gpu->out = (AttnView){ "o", attn_result(attn, 0), ATresult, 0 };
        gpu->lse = (AttnView){ "l", attn_result(attn, 1), ATresult, 0 };
        return;
    }
    gpu->delta = (AttnView){ "u", attn->node->in[attn->nop], AToperand, 0 };
    gpu->lse = (AttnView){ "l", attn->node->in[attn->nop + 1], AToperand, 0 };
    gpu->dout = (AttnView){ "e", attn->node->in[attn->nop + 2], AToperand, 0 };
    for (int op = 0; op < attn->nop; op++)
        if ((gpu->grad[op] = attn_result(attn, op)) && attn->leaf >> op & 1)
            die("attention: a trained operand of a score on a GPU");
}

/* Blocks of rows of a job; items of a launch. */
static int64_t blocks_of_rows(const AttnGpu *gpu, const AttnJob *job,
                              int64_t rows)
{
    const Attn *attn = &gpu->attn;
    int64_t n = attn_local_size(attn, job->keys ? attn->key : attn->query);

    return (n + rows - 1) / rows;
}

static int64_t items_of(const AttnGpu *attn, const AttnJob *job, int64_t rows)
{
    return blocks_of_rows(attn, job, rows) * attn_combinations(attn, job);
}

/* Under a causal mask all queries see the first keys, so their block takes
 * twice the mean time. If there are few blocks, two blocks of a cluster share
 * each of them (decisions/attention-backward.md). */
static void split_jobs(AttnGpu *attn)
{
    attn->cluster = 1;
    for (int i = 0; i < attn->njob && attn->back; i++) {
        AttnJob *j = &attn->job[i];
        int64_t loop = attn_local_product(&attn->attn, j->loop, j->nloop) /
                       attn_sum_parts(attn, j);
        if (items_of(attn, j, ATWGROWS) < 2 * GPUBLOCKS && loop % 2 == 0)
            attn->cluster = j->split = 2;
    }
}

/* Coordinates of an item's combination and its rows, longest work first: late
 * queries see most keys; most queries see early keys. */
static void put_item(AttnGpu *gpu, const AttnJob *job, int64_t rows)
{
    Attn *attn = &gpu->attn;
    Axis *a = job->keys ? attn->key : attn->query;
    int64_t over = attn_combinations(gpu, job);
    int64_t n = blocks_of_rows(gpu, job, rows);
    const char *c = strf(attn->arena, "(item %% %ld)", over);

    if (gpu->pairs > 1)
        c = strf(attn->arena, "(launch / %ld * %ld + item %% %ld)",
                 2 * attn_sum_parts(gpu, job), over, over);

    attn_coords(attn, 2, c, (Axis *const *)job->over, job->nover);
    attn_line(attn, 2, "const int %s = (int)(%sitem / %ld) * %ld;",
              job->keys ? "k0" : "q0",
              job->keys ? "" : strf(attn->arena, "%ld - ", n - 1), over, rows);
    attn_line(attn, 2, "const int %s = (int)at_least(%s - %s, %ld);",
              job->keys ? "cols" : "rows", attn_size_name(attn, a),
              job->keys ? "k0" : "q0", rows);
}

/* Opens a job: each block has one item, or a share of one with the other blocks
 * of its cluster. Returns the job's blocks. */
static int64_t open_job_items(AttnGpu *gpu, const AttnJob *job, int64_t rows)
{
    Attn *attn = &gpu->attn;
    int64_t items = items_of(gpu, job, rows);
    int64_t blocks = items * job->split;

    blocks = (blocks + gpu->cluster - 1) / gpu->cluster * gpu->cluster;
    attn_line(attn, 1, "if (block < %ld) {", blocks);
    attn_line(attn, 2, "const int64_t item = block / %ld;", job->split);
    if (blocks > items * job->split) {
        attn_line(attn, 2, "if (item >= %ld)", items);
        attn_line(attn, 3, "return;");
    }
    if (job->split > 1)
        attn_line(attn, 2, "const int share = (int)(block %% %ld);",
                  job->split);
    put_item(gpu, job, rows);
    return blocks;
}

/* Persistent blocks, one per multiprocessor. Each round assigns one item to
 * every block, in alternating direction. The next item's rows are loaded and
 * its first scores computed while the previous item finishes
 * (decisions/attention-forward.md). */
static int64_t put_persistent_items(AttnGpu *gpu, const AttnJob *job,
                                    void (*put_job)(AttnGpu *gpu,
                                                    const AttnJob *job))
{
    Attn *attn = &gpu->attn;
    int64_t items = items_of(gpu, job, ATWGROWS);
    int64_t blocks = items < GPUBLOCKS ? items : GPUBLOCKS;

    attn_line(attn, 1, "int stage = 0, phase = 0;");
    attn_line(attn, 1, "for (int round = 0;; round++) {");
    attn_line(attn, 2,
              "const int64_t item = (int64_t)round * gridDim.x + (round & 1 ? "
              "gridDim.x - 1 - blockIdx.x : blockIdx.x);");
    attn_line(attn, 2, "if (item >= %ld)", items);
    attn_line(attn, 3, "break;");
    put_item(gpu, job, ATWGROWS);
    put_job(gpu, job);
    attn_line(attn, 1, "}");
    return (blocks + gpu->cluster - 1) / gpu->cluster * gpu->cluster;
}

static int64_t put_jobs(AttnGpu *gpu, int64_t rows,
                        void (*put_job)(AttnGpu *gpu, const AttnJob *j))
{
    Attn *attn = &gpu->attn;
    int64_t blocks = 0;

    attn_line(attn, 1, "int64_t block = blockIdx.x;");
    for (int i = 0; i < gpu->njob; i++) {
        const AttnJob *j = &gpu->job[i];
        if (j->loads)
            continue;
        int64_t n = open_job_items(gpu, j, rows);
        put_job(gpu, j);
        attn_line(attn, 2, "return;");
        attn_line(attn, 1, "}");
        attn_line(attn, 1, "block -= %ld;", n);
        blocks += n;
    }
    return blocks;
}

static void put_backward(AttnGpu *gpu,
                         void (*put_job)(AttnGpu *gpu, const AttnJob *j))
{
    Attn *attn = &gpu->attn;

    for (int i = 0; i < gpu->njob; i++)
        if (gpu->job[i].loads) {
            attn_line(attn, 1, "if (launch & 1) {");
            gpu->then = put_persistent_items(gpu, &gpu->job[i], put_job);
            attn_line(attn, 1, "return;");
            attn_line(attn, 1, "}");
        }
    gpu->blocks = put_jobs(gpu, ATWGROWS, put_job);
}

/* One producer warpgroup loads for all jobs; two consumer warpgroups
 * multiply. */
static void put_roles(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;
    int many = 0;

    for (int i = 0; i < gpu->njob; i++)
        many |= attn_job_width(gpu, &gpu->job[i]) > 256 || gpu->pairs;
    attn_line(attn, 1, "extern __shared__ __align__(1024) uint8_t room[];");
    attn_line(attn, 1, "__shared__ __align__(8) uint64_t barriers[BARRIERS];");
    attn_line(attn, 1,
              "const uint32_t base = (shared_at(room) + 1023) & ~1023u;");
    attn_line(attn, 1, "make_barriers(barriers);");
    attn_line(attn, 1, "if (__shfl_sync(~0u, TID >> 7, 0) == 0) {");
    attn_line(attn, 1, "few_registers<%d>();", many ? 24 : 40);
    if (gpu->back)
        put_backward(gpu, attn_wg_fetch);
    else
        put_persistent_items(gpu, gpu->job, attn_wg_fetch);
    attn_line(attn, 1, "} else {");
    attn_line(attn, 1, "many_registers<%d>();", many ? 240 : 232);
    if (gpu->back) {
        put_backward(gpu, attn_wg_job);
    } else {
        attn_wg_open(gpu);
        gpu->blocks = put_persistent_items(gpu, gpu->job, attn_wg_job);
        attn_wg_close(gpu);
    }
    attn_line(attn, 1, "}");
}

void attn_lower_cuda(Graph *g, Group *group, Arena *a)
{
    AttnGpu x = { 0 };
    Text s = { .arena = a };

    if (!attn_read(&x.attn, g, attn_of_group(group)))
        die("attention: kept, but its body does not fit");
    attn_begin(&x.attn, group, a);
    x.attn.gpu = 1;
    x.back = x.attn.node->op == Oattn_bwd;
    make_views(&x);
    x.attn.scaled = 1;
    attn_make_jobs(&x);
    x.attn.scaled = x.tensor = attn_wg_fits(&x);
    group->path = x.tensor ? PATHfast : PATHthreads;
    x.cluster = 1;
    if (x.tensor && x.back)
        attn_share_dscores(&x);
    if (x.tensor)
        split_jobs(&x);
    if (x.tensor)
        put_roles(&x);
    else
        x.blocks = put_jobs(&x, ATWARPS, attn_warp_job);
    group->instr.launch.then = x.then;
    int threads = x.tensor ? 384 : 256;
    put(&s, "%s%s", attn_gpu_pre, x.tensor ? hopper_cuh : "");
    if (x.tensor)
        put(&s, "#undef UNIT\n#define UNIT (float)%a\n",
            attn_unit(&x.attn) > 0 ? attn_unit(&x.attn) : 1.0);
    put(&s, "%s", x.tensor ? attn_wgmma_pre : attn_warp_pre);
    put(&s, "extern \"C\" __global__ void ");
    if (x.cluster > 1)
        put(&s, "__cluster_dims__(%ld, 1, 1) ", x.cluster);
    put(&s, "__launch_bounds__(%d, 1)\n@(", threads);
    cuda_put_parameters(&s, group);
    if (x.pairs)
        put(&s, "    uint8_t *const dscores = buf[%d];\n", group->narg);
    put(&s, "%s%s}\n", x.attn.decl.s, x.attn.out.s);
    set_text_named(group, a, s.s);
    set_label(group, a, x.attn.node);
    attn_cost(&x.attn);
    cuda_set_launch(group, a,
                    (Launch){ .items = x.blocks,
                              .threads = threads,
                              .shared = x.shared,
                              .then = x.then,
                              .pairs = x.pairs,
                              .persistent = x.tensor && !x.back,
                              .hopper = x.tensor });
}
