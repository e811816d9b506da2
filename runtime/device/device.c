/* device.c: assigns a GPU to a rank, checks that the plan can run on it, and
 * counts its memory by use. Outside the plan's arena are the context, kernels,
 * buffers of NCCL and graphs, workspaces of products, and a copy of each run's
 * inputs and results. Memory that libraries allocate is the difference of the
 * free memory before and after. */
#include "gpu.h"

enum { PROCESSORS = 16, MAJOR = 75, MINOR = 76 };

static double gib(int64_t bytes)
{
    return (double)bytes / 0x1p30;
}

/* ---- GPUs of this machine ------------------------------------------------ */

int gpu_count(void)
{
    int n = 0;

    if (!dl_open(LIBcuda) || dl.cuInit(0) || dl.cuDeviceGetCount(&n))
        return 0;
    return n;
}

/* Context of this rank's GPU; null: gpu_wake made none. */
static void *woken;

static int device_of_rank(int count)
{
    return (int)(launch_place() % count);
}

static void wake_context(void)
{
    int count = gpu_count();

    if (!count || dl.cuDevicePrimaryCtxRetain(&woken, device_of_rank(count)))
        woken = NULL;
}

static int wake_driver(void)
{
    if (!gpu_count())
        return 0;
    dl_begin(LIBnvrtc);
    dl_begin(LIBcublaslt);
    return 1;
}

/* Device.wake. Ignores failures, which device_open reports. */
int gpu_wake(int part)
{
    if (!part)
        return wake_driver();
    wake_context();
    return 0;
}

static void take_context(Gpu *gpu)
{
    gpu->context = woken;
    woken = NULL;
    if (!gpu->context)
        gpu_ok(dl.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device),
               "opening it");
    gpu_ok(dl.cuCtxSetCurrent(gpu->context), "using it");
}

static void arch_of(int device, char *s, size_t n)
{
    int major = 0, minor = 0;

    dl.cuDeviceGetAttribute(&major, MAJOR, device);
    dl.cuDeviceGetAttribute(&minor, MINOR, device);
    snprintf(s, n, "sm_%d%d%s", major, minor, major >= 9 ? "a" : "");
}

static void say_lacks(FILE *f, const char *target, const Lib *need, int n,
                      const char *more)
{
    int lacks = 0;

    fprintf(f, "%-10s ", target);
    for (int i = 0; i < n; i++)
        if (!dl_open(need[i]))
            fprintf(f, "%s%s", lacks++ ? ", " : "lacks ", dl_what(need[i]));
    if (more)
        fprintf(f, "%s%s", lacks++ ? ", " : "lacks ", more);
    fprintf(f, "%s\n", lacks ? "" : "can run");
}

void gpu_list(FILE *f)
{
    char name[128] = "", arch[16];

    for (int i = 0, n = gpu_count(); i < n; i++) {
        size_t bytes = 0;
        int cores = 0;
        dl.cuDeviceGetName(name, sizeof name, i);
        dl.cuDeviceTotalMem_v2(&bytes, i);
        dl.cuDeviceGetAttribute(&cores, PROCESSORS, i);
        arch_of(i, arch, sizeof arch);
        fprintf(f, "GPU %-6d %s, %s, %d processors, %.1f GiB\n", i, name, arch,
                cores, gib((int64_t)bytes));
    }
}

void gpu_doctor(FILE *f)
{
    static const Lib one[] = { LIBcuda, LIBnvrtc, LIBcublaslt },
                     many[] = { LIBnccl, LIBmpi };
    int n = gpu_count();

    gpu_list(f);
    say_lacks(f, "one GPU", one, 3, dl_open(LIBcuda) && !n ? "a GPU" : NULL);
    say_lacks(f, "more GPUs", many, 2, n < 2 ? "a second GPU" : NULL);
}

/* ---- can the plan run here? ---------------------------------------------- */

/* Calls err() if kernels use architecture-specific instructions of another
 * chip. */
static void check_kernels(const Gpu *gpu)
{
    const Plan *p = gpu->plan;
    int hopper = 0;

    for (int i = 0; i < p->nsig; i++)
        hopper |= p->sig[i].launch.hopper;
    if (hopper && strcmp(gpu->arch, "sm_90a"))
        err(NULL,
            "the plan's kernels are for sm_90a (H100, H200); this GPU is %s, "
            "%s",
            gpu->name, gpu->arch);
}

/* Calls err() unless all GPUs are alike: plans divide work evenly, and equal
 * kernel texts must give equal code. */
static void check_kinds(const Gpu *gpu)
{
    char mine[160] = "", first[160] = "";

    snprintf(mine, sizeof mine, "%s (%s)", gpu->name, gpu->arch);
    memcpy(first, mine, sizeof mine);
    comm_share(gpu->comm, first, sizeof first);
    int differ = strcmp(mine, first) != 0;
    int64_t any = comm_max(gpu->comm, differ ? gpu->rank : -1);
    if (any >= 0 && comm_speaks(gpu->comm, any == gpu->rank))
        err(NULL, "mixed GPUs: rank %ld has %s, rank 0 %s", any, mine, first);
}

typedef struct DeviceId {
    char host[64], uuid[16];
} DeviceId;

/* Calls err() if two ranks share a GPU: they would wait for each other inside a
 * collective forever. */
static void check_places(const Gpu *gpu)
{
    int64_t n = gpu->comm->world, twin = -1;
    DeviceId *p = alloc(gpu->mem, (size_t)n * sizeof *p), mine = { 0 };

    if (n == 1)
        return;
    gethostname(mine.host, sizeof mine.host - 1);
    dl.cuDeviceGetUuid_v2(mine.uuid, gpu->device);
    comm_gather(gpu->comm, &mine, p, sizeof mine);
    for (int64_t i = 0; i < gpu->rank && twin < 0; i++)
        if (!memcmp(&p[i], &mine, sizeof mine))
            twin = i;
    int64_t any = comm_max(gpu->comm, twin < 0 ? -1 : gpu->rank);
    if (any >= 0 && comm_speaks(gpu->comm, any == gpu->rank))
        err(NULL,
            "too few GPUs on host %s: %ld ranks, ranks %ld and %ld would "
            "share GPU %d",
            mine.host, launch_local(), twin, gpu->rank, gpu->device);
}

static void name_device(Gpu *gpu)
{
    size_t bytes = 0;

    dl.cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->device);
    arch_of(gpu->device, gpu->arch, sizeof gpu->arch);
    dl.cuDeviceGetAttribute(&gpu->cores, PROCESSORS, gpu->device);
    dl.cuDeviceTotalMem_v2(&bytes, gpu->device);
    gpu->total = (int64_t)bytes;
}

void device_open(Gpu *gpu)
{
    start_phase("GPU");
    if (!dl_open(LIBcuda))
        err(NULL, "target=cuda needs a GPU; its driver, libcuda.so.1, is %s",
            dl_why(LIBcuda));
    int count = gpu_count();
    if (!count)
        err(NULL, "target=cuda needs a GPU and there is none");
    gpu->device = device_of_rank(count);
    name_device(gpu);
    check_kinds(gpu);
    check_places(gpu);
    check_kernels(gpu);
    gpu->builds = nvrtc_begin(gpu->mem, gpu->plan, gpu->pool, gpu->arch);
    dl_begin(LIBcublaslt);
    take_context(gpu);
    gpu_ok(dl.cuStreamCreate(&gpu->stream[STREAMcompute], 1), "a stream");
    device_count(gpu, MEMcontext);
}

/* ---- memory -------------------------------------------------------------- */

void device_count(Gpu *gpu, MemoryUse use)
{
    size_t left = 0, total = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    int64_t now = (int64_t)(total - left);
    gpu->use[use] += now - gpu->used;
    gpu->used = now;
}

/* Returns "param 1.25, optim 7.50, temp 3.00": GiB by class; memory shared by
 * programs counts as temp. */
static char *classes(Gpu *gpu)
{
    const Role *role = gpu->role;
    Text out = { .arena = gpu->mem };
    int64_t n[NBUFCLASS] = { 0 };

    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].prog < 0 && !in_host(role, &role->buf[i]))
            n[role->buf[i].cls] += role->buf[i].bytes;
    n[Btemp] += role->arena - role->persist;
    for (int i = 0; i < NBUFCLASS; i++)
        if (n[i])
            put(&out, "%s%s %.2f", out.len ? ", " : "", bufclasses[i],
                gib(n[i]));
    return out.s ? out.s : "";
}

uint64_t device_take(Gpu *gpu, int64_t bytes, MemoryUse use)
{
    size_t left = 0, total = 0;
    uint64_t p = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    if (dl.cuMemAlloc_v2(&p, (size_t)(bytes ? bytes : 1)))
        err(NULL,
            "out of memory on GPU %d (rank %ld): %s needs %s GiB; %s of %.2f "
            "GiB are free (the plan in GiB: %s)",
            gpu->device, gpu->rank, memory_uses[use],
            gib_text(gpu->mem, bytes, (int64_t)left),
            gib_text(gpu->mem, (int64_t)left, bytes), gib((int64_t)total),
            classes(gpu));
    device_count(gpu, use);
    return p;
}

void *gpu_pinned(Gpu *gpu, int64_t bytes)
{
    void *p = NULL;

    gpu_ok(dl.cuMemHostAlloc(&p, (size_t)(bytes ? bytes : 1), 0),
           "pinned memory");
    gpu->pinned += bytes;
    return p;
}

/* Device.peers. Each arena is an allocation of whole blocks, since an IPC
 * handle covers a whole block. */
void **gpu_peers(Gpu *gpu, int64_t bytes, MemoryUse use)
{
    enum { BLOCK = 2 << 20, REACHED = 1 };
    const char *what = memory_uses[use];
    Comm *comm = gpu->comm;
    void **at = alloc(gpu->mem, (size_t)comm->world * sizeof *at);
    IpcHandle *all = alloc(gpu->mem, (size_t)comm->world * sizeof *all), mine;
    uint64_t p = device_take(gpu, (bytes / BLOCK + 1) * BLOCK, use);
    int bad = 0;

    at[gpu->rank] = (void *)(uintptr_t)p;
    if (comm->world == 1)
        return at;
    gpu_ok(dl.cuIpcGetMemHandle(&mine, p), what);
    comm_gather(comm, &mine, all, sizeof mine);
    for (int64_t r = 0; r < comm->world; r++) {
        if (r == gpu->rank || !comm_near(comm, r))
            continue;
        bad |= dl.cuIpcOpenMemHandle_v2(&p, all[r], REACHED);
        at[r] = (void *)(uintptr_t)p;
    }
    comm_agree(comm, bad, what);
    return at;
}

void gpu_drop_peers(Gpu *gpu, void **at)
{
    for (int64_t r = 0; r < gpu->comm->world; r++)
        if (r != gpu->rank && at[r])
            dl.cuIpcCloseMemHandle((uint64_t)(uintptr_t)at[r]);
    comm_barrier(gpu->comm);
    dl.cuMemFree_v2((uint64_t)(uintptr_t)at[gpu->rank]);
}

int64_t gpu_memory(void *gpu, Text *out)
{
    Gpu *x = gpu;
    int64_t outside = 0;

    device_count(x, MEMgraphs);
    put(out, "GPU %d, %s, %.2f of %.2f GiB used:\n", x->device, x->name,
        gib(x->used), gib(x->total));
    put(out, "%10.3f GiB  plan (%s)\n", gib(x->role->arena), classes(x));
    for (int i = 0; i < NMEMORYUSE; i++) {
        int64_t n = x->use[i] - (i == MEMplan ? x->role->arena : 0);
        outside += n;
        if (x->use[i])
            put(out, "%10.3f GiB  %s\n", gib(n),
                i == MEMplan ? "beside the plan, to whole pages"
                             : memory_uses[i]);
    }
    put(out,
        "%10.3f GiB  outside of the plan, and %.1f MiB of the host's memory "
        "pinned\n",
        gib(outside), (double)x->pinned / 0x1p20);
    return outside;
}
