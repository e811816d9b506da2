/* flight_recorder.c: at which collective a GPU is. Beside each, in the graph
 * too, the GPU writes to the host's memory that it begins and that it has
 * ended: when ranks wait for each other for ever, the watchdog can say where. A
 * word is program, instruction, and whether it has ended; writing one takes 0.9
 * us of an H200. Only with several ranks, and where such a write works, which
 * is tried. */
#include "gpu.h"

enum { MAPPED = 2, STEPBITS = 24 };

/* Does a graph write? */
static int works(Gpu *gpu)
{
    void *graph = NULL, *exec = NULL;
    int bad =
        dl.cuStreamBeginCapture_v2(gpu->stream[STREAMcompute], 1) ||
        dl.cuMemsetD32Async(gpu->trailat, 1, 1, gpu->stream[STREAMcompute]);

    bad |= dl.cuStreamEndCapture(gpu->stream[STREAMcompute], &graph);
    bad = bad || dl.cuGraphInstantiateWithFlags(&exec, graph, 0) ||
          dl.cuGraphLaunch(exec, gpu->stream[STREAMcompute]) ||
          dl.cuStreamSynchronize(gpu->stream[STREAMcompute]);
    if (exec)
        dl.cuGraphExecDestroy(exec);
    if (graph)
        dl.cuGraphDestroy(graph);
    return !bad && *gpu->trail == 1;
}

void trail_open(Gpu *gpu)
{
    void *p = NULL;

    if (gpu->comm->world == 1 ||
        dl.cuMemHostAlloc(&p, sizeof *gpu->trail, MAPPED) ||
        dl.cuMemHostGetDevicePointer_v2(&gpu->trailat, p, 0))
        return;
    gpu->trail = p;
    *gpu->trail = 0;
    if (!works(gpu))
        gpu->trailat = 0;
    *gpu->trail = 0;
}

/* 0: it has none. */
uint32_t trail_place(const Gpu *gpu, const Program *program, const Instr *instr)
{
    uint32_t at = (uint32_t)(instr - program->instr);

    return at < 1u << (STEPBITS - 1)
               ? (uint32_t)(program - gpu->role->prog + 1) << STEPBITS | at << 1
               : 0;
}

void trail_put(Gpu *gpu, uint32_t place, int ended, StreamKind on)
{
    if (gpu->trailat && place)
        gpu_ok(dl.cuMemsetD32Async(gpu->trailat, place | (uint32_t)ended, 1,
                                   gpu->stream[on]),
               "saying where it is");
}

const Instr *trail_at(const void *gpu, int *ended)
{
    const Gpu *x = gpu;
    uint32_t v = x->trail ? *x->trail : 0, prog = v >> STEPBITS;

    *ended = (int)(v & 1);
    if (!prog || prog > (uint32_t)x->role->nprog)
        return NULL;
    return &x->role->prog[prog - 1].instr[(v & ((1u << STEPBITS) - 1)) >> 1];
}
