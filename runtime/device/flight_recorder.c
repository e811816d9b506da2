/* flight_recorder.c: at which collective a GPU is. Beside each, in the graph
 * too, the GPU writes to the host's memory that it begins and that it has
 * ended: when ranks wait for each other for ever, the watchdog can say where. A
 * word is program, instruction, and whether it has ended; writing one takes 0.9
 * us of an H200. Only with several ranks, and where such a write works, which
 * is tried. */
#include "gpu.h"

enum { MAPPED = 2, STEPBITS = 24 };

/* Does a graph write? */
static int works(Gpu *x)
{
    void *graph = NULL, *exec = NULL;
    int bad = dl.cuStreamBeginCapture_v2(x->stream[STREAMcompute], 1) ||
              dl.cuMemsetD32Async(x->trailat, 1, 1, x->stream[STREAMcompute]);

    bad |= dl.cuStreamEndCapture(x->stream[STREAMcompute], &graph);
    bad = bad || dl.cuGraphInstantiateWithFlags(&exec, graph, 0) ||
          dl.cuGraphLaunch(exec, x->stream[STREAMcompute]) ||
          dl.cuStreamSynchronize(x->stream[STREAMcompute]);
    if (exec)
        dl.cuGraphExecDestroy(exec);
    if (graph)
        dl.cuGraphDestroy(graph);
    return !bad && *x->trail == 1;
}

void trail_open(Gpu *x)
{
    void *p = NULL;

    if (x->comm->world == 1 ||
        dl.cuMemHostAlloc(&p, sizeof *x->trail, MAPPED) ||
        dl.cuMemHostGetDevicePointer_v2(&x->trailat, p, 0))
        return;
    x->trail = p;
    *x->trail = 0;
    if (!works(x))
        x->trailat = 0;
    *x->trail = 0;
}

/* 0: it has none. */
uint32_t trail_place(const Gpu *x, const Program *g, const Instr *s)
{
    uint32_t at = (uint32_t)(s - g->instr);

    return at < 1u << (STEPBITS - 1)
               ? (uint32_t)(g - x->role->prog + 1) << STEPBITS | at << 1
               : 0;
}

void trail_put(Gpu *x, uint32_t place, int ended, StreamKind on)
{
    if (x->trailat && place)
        gpu_ok(dl.cuMemsetD32Async(x->trailat, place | (uint32_t)ended, 1,
                                   x->stream[on]),
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
