/* gpurun.c: see gpurun.h. Buffers stay those of hostrun.c; each step takes its
 * arguments to the GPU and brings them back. */
#include <string.h>

#include "gpurun.h"
#include "../../runtime/runtime.h"

enum { MAJOR = 75, MINOR = 76, SHARED = 8, ALIGN = 256, MOST = 64 };
enum { ROOM = 1 << 28 }; /* bytes for the arguments of a step */

struct GpuRun {
    char arch[16];
    void *stream;
    uint64_t at, work; /* ROOM bytes, those of products */
    Lt *lt;
    Pool *pool;
    Table *fn; /* by kernel's name */
    int strays;
};

GpuRun *gpurun_open(void)
{
    GpuRun *x = alloc(forever, sizeof *x);
    int count = 0, major = 0, minor = 0;
    void *ctx = NULL;

    if (!dl_open(LIBcuda) || dl.cuInit(0) || dl.cuDeviceGetCount(&count) ||
        !count) {
        printf("not ok - no GPU: %s\n", dl_why(LIBcuda));
        return NULL;
    }
    gpu_ok(dl.cuDevicePrimaryCtxRetain(&ctx, 0), "opening it");
    gpu_ok(dl.cuCtxSetCurrent(ctx), "using it");
    gpu_ok(dl.cuStreamCreate(&x->stream, 1), "a stream");
    dl.cuDeviceGetAttribute(&major, MAJOR, 0);
    dl.cuDeviceGetAttribute(&minor, MINOR, 0);
    snprintf(x->arch, sizeof x->arch, "sm_%d%d%s", major, minor,
             major >= 9 ? "a" : "");
    gpu_ok(dl.cuMemAlloc_v2(&x->at, ROOM), "memory");
    gpu_ok(dl.cuMemAlloc_v2(&x->work, LTWORK), "memory");
    x->lt = lt_open(forever, x->work);
    x->pool = pool_open(0);
    x->fn = table_new(forever);
    return x;
}

static Plan texts(Table *have, Group *const *k, int n)
{
    Plan p = { .prelude = T_cuda.prelude };

    p.kernel = alloc(forever, (size_t)(n + 1) * sizeof *p.kernel);
    for (int i = 0; i < n; i++) {
        const char *name = k[i]->text ? intern(k[i]->instr.kernel) : NULL;
        if (!name || table_get(have, KEYP(name)))
            continue;
        *table_at(have, KEYP(name)) = have;
        p.kernel[p.nkernel++] = (Kernel){ name, k[i]->text };
    }
    return p;
}

int gpurun_only_compile(Group *const *k, int n, const char *arch)
{
    Plan p = texts(table_new(forever), k, n);

    if (!dl_open(LIBnvrtc))
        return 0;
    nvrtc_all(forever, &p, pool_open(0), arch, NULL);
    return p.nkernel;
}

void gpurun_compile(GpuRun *x, Group *const *k, int n)
{
    Plan p = texts(x->fn, k, n);
    Cubin *c = nvrtc_all(forever, &p, x->pool, x->arch, NULL);

    for (int i = 0; i < p.nkernel; i++) {
        void *module = NULL, *fn = NULL;
        const char *name = p.kernel[i].name;
        gpu_ok(dl.cuModuleLoadData(&module, c[i].image), name);
        gpu_ok(dl.cuModuleGetFunction(&fn, module, name), name);
        *table_at(x->fn, KEYP(name)) = fn;
    }
}

/* ---- one step ------------------------------------------------------------ */

typedef struct Args {
    int n;
    uint64_t dev[MOST];
} Args;

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int same_as(void *const *buf, int i)
{
    int j = 0;

    while (buf[j] != buf[i])
        j++;
    return j;
}

static Args take(GpuRun *x, const Group *k, void *const *buf,
                 const size_t *bytes)
{
    Args a = { .n = k->narg + (k->scratch && k->instr.kind == Ikernel) };
    uint64_t at = x->at;

    for (int i = 0; i < a.n; i++) {
        int j = same_as(buf, i);
        a.dev[i] = !buf[i] ? 0 : j < i ? a.dev[j] : at;
        if (!buf[i] || j < i)
            continue;
        if (at + bytes[i] > x->at + ROOM)
            die("gpurun: no room for %s", k->instr.kernel);
        gpu_ok(dl.cuMemcpyHtoDAsync_v2(at, buf[i], bytes[i], x->stream),
               "an argument");
        at += aligned(bytes[i]);
    }
    return a;
}

/* An argument back from the device. Has what lies behind it changed? */
static int bring_one(uint64_t from, uint8_t *to, size_t bytes, size_t guard)
{
    uint8_t was[RUNGUARD], *behind = to + bytes - guard;

    memcpy(was, behind, guard);
    gpu_ok(dl.cuMemcpyDtoH_v2(to, from, bytes), "a result");
    return memcmp(was, behind, guard) != 0;
}

static void bring(GpuRun *x, const Group *k, void *const *buf,
                  const size_t *bytes, const Args *a)
{
    for (int i = 0; i < a->n; i++) {
        if (!buf[i] || same_as(buf, i) < i)
            continue;
        if (bring_one(a->dev[i], buf[i], bytes[i],
                      i < k->narg ? RUNGUARD : 0)) {
            printf("# %s writes behind argument %d\n",
                   k->instr.kernel ? k->instr.kernel : "a product", i);
            x->strays++;
        }
    }
}

static void launch(GpuRun *x, const Group *k, Args *a, const int64_t *iv)
{
    int n = a->n + k->instr.nword;
    int64_t number = 0, launches = 1;
    void *param[MOST], *fn = table_get(x->fn, KEYP(intern(k->instr.kernel)));

    for (int i = a->n; i < n; i++)
        a->dev[i] = (uint64_t)iv[i - a->n];
    for (int i = 0; i < n; i++)
        param[i] = &a->dev[i];
    const Launch *l = &k->instr.launch;
    if (l->shared > 48 << 10)
        gpu_ok(dl.cuFuncSetAttribute(fn, SHARED, (int)l->shared),
               k->instr.kernel);
    if (l->then)
        param[n] = &number, launches = 2 * l->pairs;
    for (; number < launches && l->items; number++)
        gpu_ok(dl.cuLaunchKernel(
                   fn, (unsigned)(number % 2 ? l->then : l->items),
                   (unsigned)l->y, (unsigned)l->z, (unsigned)l->threads, 1, 1,
                   (unsigned)l->shared, x->stream, param, NULL),
               k->instr.kernel);
}

void gpurun_step(void *ctx, const Group *k, void *const *buf,
                 const size_t *bytes, const int64_t *iv)
{
    GpuRun *x = ctx;
    Args a = take(x, k, buf, bytes);
    void *abc[3];

    for (int i = 0; i < 3; i++)
        abc[i] = (void *)(uintptr_t)a.dev[i];
    switch (k->instr.kind) {
    case Ikernel: launch(x, k, &a, iv); break;
    case Igemm:
        lt_run(x->lt, lt_bind(x->lt, &k->instr.gemm, abc), k->instr.gemm.beta,
               x->stream);
        break;
    default: die("gpurun: no instruction %s", instr_info(k->instr.kind)->name);
    }
    gpu_ok(dl.cuStreamSynchronize(x->stream),
           k->instr.kernel ? k->instr.kernel : "a product");
    bring(x, k, buf, bytes, &a);
}

int gpurun_strays(GpuRun *x)
{
    int n = x->strays;

    x->strays = 0;
    return n;
}
