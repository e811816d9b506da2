/* copy.c: what lasts on a GPU is copied to the host while the GPU computes. The
 * copies are on a stream of their own, behind what has been launched; an event
 * behind them is what every program waits for before its first step that writes
 * what lasts. In a graph that wait is a node of its own, which takes the event
 * as it is when the graph is launched: the graph of a step is the same whether
 * there is a copy or not. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "runtime.h"

enum { NOTREADY = 600, PAUSE = 200000, OUTSIDE = 1 };

int gpu_pin(Gpu *x, void *p, int64_t bytes)
{
    if (dl.cuMemHostRegister_v2(p, (size_t)bytes, 0))
        return 0;
    x->pinned += bytes;
    gpu_ok(dl.cuStreamCreate(&x->copies, 1), "a stream");
    gpu_ok(dl.cuEventCreate(&x->copying, 0), "an event");
    gpu_ok(dl.cuEventCreate(&x->copied, 0), "an event");
    gpu_ok(dl.cuEventRecord(x->copied, x->copies), "an event");
    return 1;
}

void gpu_unpin(Gpu *x, void *p)
{
    dl.cuStreamSynchronize(x->copies);
    dl.cuMemHostUnregister(p);
    dl.cuEventDestroy_v2(x->copying);
    dl.cuEventDestroy_v2(x->copied);
    x->copies = x->copying = x->copied = NULL;
}

void gpu_copy(Gpu *x, const Extent *v, uint8_t *to)
{
    gpu_ok(dl.cuEventRecord(x->copying, x->stream), "an event");
    gpu_ok(dl.cuStreamWaitEvent(x->copies, x->copying, 0), "an event");
    gpu_ok(dl.cuEventRecord(x->copying, x->copies), "an event");
    for (size_t i = 0; i < vec_len(v); i++)
        gpu_ok(dl.cuMemcpyDtoHAsync_v2(to + v[i].to,
                                       x->arena + (uint64_t)v[i].at,
                                       (size_t)v[i].bytes, x->copies),
               "copying what a checkpoint holds");
    gpu_ok(dl.cuEventRecord(x->copied, x->copies), "an event");
}

/* The event of a captured stream would be one inside of the graph. */
void gpu_order(Gpu *x, const GpuCall *c)
{
    if (!x->copied || x->ordered || !c->lasts)
        return;
    gpu_ok(
        dl.cuStreamWaitEvent(x->stream, x->copied, x->capturing ? OUTSIDE : 0),
        "an event");
    x->ordered = 1;
}

void gpu_idle(Gpu *x, void (*f)(void *self), void *self)
{
    x->idle = f;
    x->idler = self;
}

int gpu_copied(Gpu *x)
{
    int e = dl.cuCtxSetCurrent(x->context);

    while (!e && (e = dl.cuEventQuery(x->copied)) == NOTREADY) {
        nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
        e = 0;
    }
    return e ? -1 : 0;
}
