/* flight_recorder.c: records the current collective of a GPU. The GPU writes a
 * word to host memory at the start and at the end of each collective, inside
 * graphs too, so the watchdog can name it if ranks wait forever. A word encodes
 * program, instruction, and whether it has ended; a write takes about 1 us.
 * Used with several ranks, if a trial write works. */
#include "gpu.h"

enum { MAPPED = 2, STEPBITS = 24 };

/* Does a write inside a graph work? */
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

/* Returns the word of an instruction; 0: it has none. */
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
