/* host_calls.c: kernels of a GPU's plan that run on the host's processors, in
 * host memory (Launch.host). They are compiled as the host device's kernels
 * are. A stream or graph calls each as a host function in order, from a thread
 * of the driver, which shares the work with threads that only do this. */
#include "gpu.h"
#include "host.h"

struct HostCalls {
    Arena *arena;
    Code *code;
    Pool *pool;
};

struct HostKernel {
    Pool *pool;
    KernelFn *fn;
    const BoundInstr *bound;
};

static void need_compiler(void)
{
    int bad;
    const char *line = host_compiler_here(&bad);

    if (bad)
        err(NULL,
            "the plan updates on the host's processors, which needs a C "
            "compiler: %s (set CC; train.update=device needs none)",
            line);
}

HostCalls *host_calls_open(Arena *a, const Plan *p)
{
    const char *is = kernels_of_host(a, p);
    Plan part = *p;
    HostCalls *x = alloc(a, sizeof *x);

    part.prelude = p->host;
    part.kernel = alloc(a, sizeof *part.kernel * (size_t)(p->nkernel + 1));
    part.nkernel = 0;
    for (int i = 0; i < p->nkernel; i++)
        if (is[i])
            part.kernel[part.nkernel++] = p->kernel[i];
    if (!part.nkernel)
        return NULL;
    need_compiler();
    *x = (HostCalls){ a, host_load(a, &part), pool_open(0) };
    return x;
}

void host_calls_close(HostCalls *calls)
{
    if (calls)
        pool_close(calls->pool);
}

/* Binds a kernel of the host, whose buffers have the same address in all
 * micro-batches. */
HostKernel *host_call_bind(const HostCalls *calls, const BoundInstr *bound)
{
    HostKernel *call = alloc(calls->arena, sizeof *call);

    *call =
        (HostKernel){ calls->pool,
                      host_kernel(calls->code, bound->instr->kernel), bound };
    return call;
}

static void some(void *ctx, int64_t lo, int64_t hi)
{
    const HostKernel *call = ctx;

    call->fn(call->bound->buf, call->bound->iv, lo, hi);
}

static void whole(void *ctx)
{
    const HostKernel *call = ctx;
    const Launch *launch = &call->bound->instr->launch;

    pool_run(call->pool, some, ctx, launch->items, launch->grain);
}

void host_call_run(HostKernel *call, void *stream)
{
    gpu_ok(dl.cuLaunchHostFunc(stream, whole, call),
           instr_label(call->bound->instr));
}
