/* cuda.c: GPU kernels from the same groups as host kernels. Loop kernels are
 * printed for a grid (map_gpu.c). Kernels with one thread per item (topk,
 * cumsum, scatter_add) keep their host text and take the item from the grid.
 * Programmatic dependent launch was measured and not kept:
 * decisions/dependent-launch.md. */
#include "codegen.h"

/* Does every element index of the kernel fit into 31 bits? */
static int fits_int(const Graph *g, const Group *group, int64_t items)
{
    int64_t most = items;

    for (int i = 0; i < group->narg; i++)
        if (group->arg[i] && local_elems(g, group->arg[i]) > most)
            most = local_elems(g, group->arg[i]);
    return most < (int64_t)1 << 30;
}

/* The body of a text made by set_text, without its signature. */
static const char *kernel_body(const char *text)
{
    return strchr(text, '{');
}

/* Replaces the host signature by that of a GPU kernel with `blocks` blocks of
 * `threads` threads. serial: each thread computes one item, lo. before: text in
 * front of the kernel. */
static void wrap_kernel(const Graph *g, Group *group, Arena *a, int64_t blocks,
                        int64_t threads, int serial, const char *before)
{
    Text t = { .arena = a };
    int64_t items = group->instr.launch.items;
    const char *body = kernel_body(group->text);

    put(&t, "#undef ix\n#undef THREADS\n#define ix %s\n#define THREADS %ld\n",
        fits_int(g, group, blocks * threads) ? "int" : "int64_t", threads);
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
        wrap_kernel(g, group, a, group->instr.launch.items, THREADMAP, 0, "");
        return;
    }
    loop_lower_cuda(g, group, a);
    wrap_kernel(g, group, a, group->instr.launch.items,
                group->instr.launch.threads, 0, "");
}

void cuda_blocks_lower(Graph *g, Group *group, Arena *a)
{
    const Node *node[MOSTROUNDED];

    if (!blocks_of_loop(group, node)) {
        blocks_lower_cuda(g, group, a);
        return;
    }
    const char *before = blocks_loop_lower(g, group, a);
    wrap_kernel(g, group, a, group->instr.launch.items,
                group->instr.launch.threads, 0, before);
}

enum { ROWTHREADS = 128 }; /* threads of a block, one item each */

void cuda_row_grid(Graph *g, Group *group, Arena *a, int threads)
{
    int64_t items = group->instr.launch.items;

    wrap_kernel(g, group, a,
                threads ? items : (items + ROWTHREADS - 1) / ROWTHREADS,
                threads ? threads : ROWTHREADS, !threads, "");
}
