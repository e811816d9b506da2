/* cuda.c: kernels for GPUs from the same groups. A loop kernel is printed for a
 * grid (map_gpu.c: who does what); what has one thread an item (topk, cumsum,
 * scatter_add) keeps its text and gets its item from the grid.
 *
 * Measured and not kept: kernels that are brought onto the chip while the one
 * before them ends and wait there (programmatic serialization in the graph):
 * 6.85 in place of 6.93 ms a step of tiny.lua, 52.36 in place of 52.13 of
 * Qwen3's widths with 4 layers. */
#include "codegen.h"

/* Does every index of the kernel fit 31 bits? */
static int is_small(const Graph *g, const Group *group, int64_t items)
{
    int64_t most = items;

    for (int i = 0; i < group->narg; i++)
        if (group->arg[i] && local_elems(g, group->arg[i]) > most)
            most = local_elems(g, group->arg[i]);
    return most < (int64_t)1 << 30;
}

/* The body of a text made by set_text: behind its signature. */
static const char *body_of(const char *text)
{
    return strchr(text, '{');
}

/* serial: each thread has one item, lo; before: text that it needs. */
static void wrap(const Graph *g, Group *group, Arena *a, int64_t blocks,
                 int64_t threads, int serial, const char *before)
{
    Text t = { .arena = a };
    int64_t items = group->instr.launch.items;
    const char *body = body_of(group->text);

    put(&t, "#undef ix\n#undef THREADS\n#define ix %s\n#define THREADS %ld\n",
        is_small(g, group, blocks * threads) ? "int" : "int64_t", threads);
    putn(&t, before, strlen(before));
    put(&t, "extern \"C\" __global__ void %s__launch_bounds__(%ld%s)\n@(",
        group->cluster ? strf(a, "__cluster_dims__(%d, 1, 1) ", group->cluster)
                       : "",
        threads, group->together ? strf(a, ", %d", group->together) : "");
    cuda_put_parameters(&t, group);
    if (serial)
        put(&t,
            "    const ix lo = (ix)blockIdx.x * THREADS + TID, hi = lo + 1;\n  "
            "  if (lo >= %ld)\n        return;\n",
            items);
    putn(&t, body, strlen(body));
    put(&t, "}\n");
    set_text_named(group, a, t.s);
    cuda_set_launch(group, a,
                    (Launch){ .items = blocks,
                              .threads = threads,
                              .shared = group->instr.launch.shared,
                              .hopper = group->cluster > 0,
                              .then = group->instr.launch.then,
                              .pairs = group->instr.launch.pairs });
}

/* ---- families ------------------------------------------------------------ */

void cuda_loop_lower(Graph *g, Group *group, Arena *a)
{
    if (dispatch_lower_cuda(g, group, a)) {
        wrap(g, group, a, group->instr.launch.items, THREADMAP, 0, "");
        return;
    }
    loop_lower_cuda(g, group, a);
    wrap(g, group, a, group->instr.launch.items, group->instr.launch.threads, 0,
         "");
}

void cuda_blocks_lower(Graph *g, Group *group, Arena *a)
{
    const Node *node[MOSTROUNDED];

    if (!blocks_of_loop(group, node)) {
        blocks_lower_cuda(g, group, a);
        return;
    }
    const char *before = blocks_loop_lower(g, group, a);
    wrap(g, group, a, group->instr.launch.items, group->instr.launch.threads, 0,
         before);
}

enum { THREADROW = 128 };

void cuda_row_grid(Graph *g, Group *group, Arena *a, int threads)
{
    int64_t items = group->instr.launch.items;

    wrap(g, group, a, threads ? items : (items + THREADROW - 1) / THREADROW,
         threads ? threads : THREADROW, !threads, "");
}
