/* cuda.c: the device "cuda", one GPU: binds instructions (a kernel's arguments,
 * a product of cuBLASLt, a communicator, a link between stages), launches them,
 * and has streams, events and graphs. device.c opens the GPU and counts its
 * memory. */
#include "gpu.h"

enum { SHARED = 8, UNTIMED = 2, NOTREADY = 600, OUTSIDE = 1 };
enum { PRIORITY = 8 }; /* launch attribute CU_LAUNCH_ATTRIBUTE_PRIORITY */

typedef struct GpuCall { /* a bound instruction */
    void *fn, **param;   /* kernels */
    int64_t blocks;      /* kernels: blocks along x */
    LtCall *lt;
    void *comm;       /* collectives; null: group of one rank */
    PeerCall *peer;   /* exchanges of rows */
    HostKernel *host; /* kernels of the host */
    LinkEnd *end;     /* send, recv, wait */
    uint32_t place;   /* argument of trail_put */
} GpuCall;

/* CUlaunchAttribute of the driver's header. */
typedef struct LaunchAttribute {
    int id, pad;
    union {
        int priority;
        char room[64];
    };
} LaunchAttribute;

typedef struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void *stream;
    LaunchAttribute *attribute;
    unsigned n;
} LaunchConfig;

typedef struct GpuEvent {
    void *handle;
    EventKind kind;
} GpuEvent;

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* ---- kernels ------------------------------------------------------------- */

static void load_kernels(Gpu *gpu)
{
    start_phase("kernels");
    Cubin *c = nvrtc_end(gpu->builds, gpu->comm);
    int n = gpu->plan->nkernel;

    start_phase("modules");
    gpu->fn = alloc(gpu->mem, (size_t)(n + 1) * sizeof *gpu->fn);
    for (int i = 0; i < n; i++) {
        const char *name = gpu->plan->kernel[i].name;
        void *module = NULL;
        if (!c[i].image)
            continue; /* kernel of the host */
        gpu_ok(dl.cuModuleLoadData(&module, c[i].image), name);
        gpu_ok(dl.cuModuleGetFunction(&gpu->fn[i], module, name), name);
        free(c[i].image);
    }
}

static void prepare(void *d, Plan *const *plan, int n)
{
    Gpu *gpu = d;

    start_phase("kernels");
    nvrtc_wait(gpu->builds);
    nvrtc_prepare(gpu->mem, plan, n, gpu->pool, gpu->arch);
    start_phase(NULL);
}

void *gpu_kernel(Gpu *gpu, const Instr *instr)
{
    const Plan *p = gpu->plan;
    int i = 0;

    while (i < p->nkernel && strcmp(p->kernel[i].name, instr->kernel) != 0)
        i++;
    if (i == p->nkernel)
        err(NULL, "the plan has no kernel %s", instr->kernel);
    if (instr->launch.shared > 0)
        gpu_ok(dl.cuFuncSetAttribute(gpu->fn[i], SHARED,
                                     (int)instr->launch.shared),
               instr->kernel);
    return gpu->fn[i];
}

static void load(void *d)
{
    Gpu *gpu = d;

    gpu->work = device_take(gpu, LTWORK, MEMwork);
    start_phase("products");
    gpu->lt = lt_open(gpu->mem, gpu->work);
    device_count(gpu, MEMproducts);
    start_phase("kernels");
    gpu->host = host_calls_open(gpu->mem, gpu->plan);
    load_kernels(gpu);
    device_count(gpu, MEMkernels);
    start_phase("communicators");
    gpu->nccl = nccl_open(gpu->mem, gpu->plan, gpu->comm);
    gpu->links = links_open(gpu->mem, gpu->plan, gpu->rank, gpu->nccl);
    device_count(gpu, MEMcommunicators);
}

/* ---- binding ------------------------------------------------------------- */

/* Returns the blocks of a launch. Kernels whose blocks take work from a queue
 * have as many as the GPU runs at a time. */
static int64_t launch_blocks(const Gpu *gpu, const Instr *instr)
{
    int most = instr->issue.sms;

    if (!instr->launch.persistent && !most)
        return instr->launch.items;
    if (!instr->launch.persistent)
        err(&(Loc){ instr->file, instr->line, NULL },
            "%s may hold %d multiprocessors, and its blocks do not take work "
            "in turns",
            instr->kernel, most);
    most = most && most < gpu->cores ? most : gpu->cores;
    return instr->launch.items < most ? instr->launch.items : most;
}

static void bind_kernel(Gpu *gpu, const BoundInstr *bound, GpuCall *call)
{
    const Instr *instr = bound->instr;

    if (instr->launch.host) {
        call->host = host_call_bind(gpu->host, bound);
        return;
    }
    call->blocks = launch_blocks(gpu, instr);
    call->fn = gpu_kernel(gpu, instr);
    call->param = alloc(gpu->mem, (size_t)(instr->nbuf + instr->nword + 1) *
                                      sizeof *call->param);
    for (int i = 0; i < instr->nbuf; i++)
        call->param[i] = &bound->buf[i];
    for (int i = 0; i < instr->nword; i++)
        call->param[instr->nbuf + i] = &bound->iv[i];
}

static void bind(void *d, BoundInstr *bound, const Program *prog, int64_t runs)
{
    Gpu *gpu = d;
    const Instr *s = bound->instr;
    GpuCall *c = bound->own = alloc(gpu->mem, sizeof *c);

    c->place = trail_place(gpu, prog, s);
    switch (instr_info(s->kind)->cls) {
    case CLASScompute: bind_kernel(gpu, bound, c); return;
    case CLASSmemory: return;
    case CLASScollective:
        if (moves_rows(s->kind))
            c->peer = peer_bind(gpu, bound);
        else if (bound->group > 1)
            c->comm = nccl_group(gpu->nccl, s->atoms);
        return;
    case CLASStransfer:
        c->end = link_bind(gpu->links, prog->kind, s, runs);
        return;
    case CLASSproduct: break;
    }
    if (s->kind != Igemm)
        err(&(Loc){ s->file, s->line, NULL },
            "instruction %s does not run on a GPU", instr_info(s->kind)->name);
    c->lt = lt_bind(gpu->lt, &s->gemm, bound->buf);
}

static void bound(void *d)
{
    Gpu *gpu = d;

    trail_open(gpu);
    tune(gpu);
    device_count(gpu, MEMproducts);
    abort_watch(gpu);
    abort_hold();
    watch_all();
    links_warm(gpu->links, gpu->work, gpu->stream[STREAMcompute]);
    watch_leave();
    abort_release();
    device_count(gpu, MEMcommunicators);
}

static void *open_gpu(const DeviceArgs *args)
{
    Gpu *x = alloc(args->mem, sizeof *x);

    *x = (Gpu){ .mem = args->mem,
                .plan = args->plan,
                .comm = args->comm,
                .pool = args->pool,
                .rank = args->comm->first,
                .role =
                    &args->plan->role[role_of(args->plan, args->comm->first)],
                .each = getenv("PLEAT_SYNC") != NULL,
                .step = -1 };
    device_open(x);
    return x;
}

static void close_gpu(void *d)
{
    Gpu *gpu = d;

    dl.cuStreamSynchronize(gpu->stream[STREAMcompute]);
    abort_watch(NULL);
    gpu_drop_graphs(gpu); /* graphs use communicators */
    host_calls_close(gpu->host);
    nccl_close(gpu->nccl);
    dl.cuMemFree_v2(gpu->work);
    dl.cuDevicePrimaryCtxRelease_v2(gpu->device);
}

/* ---- memory -------------------------------------------------------------- */

static void *take(void *d, ArenaKind k, int64_t bytes, MemoryUse use)
{
    if (k == ARENApinned)
        return gpu_pinned(d, bytes);
    if (k == ARENApeer)
        return gpu_shared(d, bytes, use);
    return (void *)(uintptr_t)device_take(d, bytes, use);
}

static void give(void *d, ArenaKind k, void *p, int64_t bytes)
{
    Gpu *gpu = d;

    if (k == ARENApinned) {
        dl.cuMemFreeHost(p);
        gpu->pinned -= bytes;
    } else if (k == ARENApeer) {
        gpu_drop_peers(gpu, gpu->peer);
    } else {
        dl.cuMemFree_v2(address(p));
    }
}

static void **peers(void *d, int64_t bytes, MemoryUse use)
{
    return gpu_peers(d, bytes, use);
}

static void drop_peers(void *d, void **at, int64_t bytes)
{
    (void)bytes;
    gpu_drop_peers(d, at);
}

static int pin(void *d, void *p, int64_t bytes)
{
    Gpu *gpu = d;

    if (dl.cuMemHostRegister_v2(p, (size_t)bytes, 0))
        return 0;
    gpu->pinned += bytes;
    return 1;
}

static void unpin(void *d, void *p, int64_t bytes)
{
    ((Gpu *)d)->pinned -= bytes;
    dl.cuMemHostUnregister(p);
}

/* Returns a stream, created at its first use. Side streams get the highest
 * priority: their blocks start before waiting blocks of compute. */
static void *stream(Gpu *gpu, StreamKind on)
{
    int least, first;

    if (!gpu->stream[on]) {
        dl.cuCtxGetStreamPriorityRange(&least, &first);
        gpu_ok(dl.cuStreamCreateWithPriority(&gpu->stream[on], 1, first),
               "a stream");
    }
    return gpu->stream[on];
}

static void clear(void *d, StreamKind on, void *p, int64_t bytes)
{
    gpu_ok(dl.cuMemsetD8Async(address(p), 0, (size_t)bytes, stream(d, on)),
           "clearing");
}

static void copy(void *d, StreamKind on, CopyKind k, void *to, const void *from,
                 int64_t bytes)
{
    size_t n = (size_t)bytes;
    void *s = stream(d, on);

    switch (k) {
    case COPYwithin:
        gpu_ok(dl.cuMemcpyDtoDAsync_v2(address(to), address(from), n, s),
               "copying");
        break;
    case COPYin:
        gpu_ok(dl.cuMemcpyHtoDAsync_v2(address(to), from, n, s),
               "copying inputs");
        break;
    case COPYout:
        gpu_ok(dl.cuMemcpyDtoHAsync_v2(to, address(from), n, s),
               "copying results");
        break;
    }
}

/* ---- instructions -------------------------------------------------------- */

static void begin(void *d)
{
    links_reset(((Gpu *)d)->links);
}

static void finish(void *d)
{
    links_finish(((Gpu *)d)->links);
}

/* Launching never blocks; the stage's stream waits. */
static int ready(void *d, const BoundInstr *bound)
{
    (void)d, (void)bound;
    return 1;
}

/* Launches a kernel with the highest priority. */
static int launch_first(Gpu *gpu, const BoundInstr *bound, int64_t blocks)
{
    const GpuCall *call = bound->own;
    const Launch *launch = &bound->instr->launch;
    int least = 0;
    LaunchAttribute a = { .id = PRIORITY };
    LaunchConfig k = {
        .grid = { (unsigned)blocks, (unsigned)launch->y, (unsigned)launch->z },
        .block = { (unsigned)launch->threads, 1, 1 },
        .shared = (unsigned)launch->shared,
        .stream = stream(gpu, bound->on),
        .attribute = &a,
        .n = 1,
    };

    dl.cuCtxGetStreamPriorityRange(&least, &a.priority);
    return dl.cuLaunchKernelEx(&k, call->fn, call->param, NULL);
}

static void launch_grid(Gpu *gpu, const BoundInstr *bound, int64_t blocks)
{
    const GpuCall *call = bound->own;
    const Launch *launch = &bound->instr->launch;

    gpu_ok(bound->instr->issue.priority
               ? launch_first(gpu, bound, blocks)
               : dl.cuLaunchKernel(call->fn, (unsigned)blocks,
                                   (unsigned)launch->y, (unsigned)launch->z,
                                   (unsigned)launch->threads, 1, 1,
                                   (unsigned)launch->shared,
                                   stream(gpu, bound->on), call->param, NULL),
           instr_label(bound->instr));
}

static void launch(void *d, const BoundInstr *bound)
{
    const GpuCall *call = bound->own;
    const Launch *l = &bound->instr->launch;
    int64_t number = 0;

    if (call->host) {
        host_call_run(call->host, stream(d, bound->on));
        return;
    }
    call->param[bound->instr->nbuf + bound->instr->nword] = &number;
    for (; number < (l->then ? 2 * l->pairs : 1); number++)
        if (call->blocks)
            launch_grid(d, bound, number % 2 ? l->then : call->blocks);
}

static void product(void *d, const BoundInstr *bound)
{
    double beta = bound->adds ? (double)bound->instr->gemm.beta : 0;

    lt_run(((Gpu *)d)->lt, ((GpuCall *)bound->own)->lt, beta,
           stream(d, bound->on));
}

static void transfer(void *d, const BoundInstr *bound)
{
    const GpuCall *call = bound->own;

    trail_put(d, call->place, 0, bound->on);
    link_run(call->end, bound->instr, address(bound->buf[0]),
             stream(d, bound->on));
    trail_put(d, call->place, 1, bound->on);
}

static void collective(void *d, const BoundInstr *bound, const Part *part)
{
    const GpuCall *call = bound->own;

    if (call->peer) {
        trail_put(d, call->place, 0, bound->on);
        peer_run(call->peer, &bound->instr->launch, stream(d, bound->on));
        trail_put(d, call->place, 1, bound->on);
        return;
    }
    if (!call->comm) {
        if (part->send != part->recv)
            copy(d, bound->on, COPYwithin, part->recv, part->send,
                 bound->bytes);
        return;
    }
    trail_put(d, call->place, 0, bound->on);
    nccl_run(call->comm, bound->instr, bound->group, bound->me,
             address(part->send), address(part->recv), stream(d, bound->on));
    trail_put(d, call->place, 1, bound->on);
}

/* PLEAT_SYNC: waits for the instruction and checks for errors. */
static void issued(void *d, const BoundInstr *bound)
{
    const Gpu *gpu = d;
    const char *text = "?";
    char when[32] = "";
    int e = gpu->each ? dl.cuStreamSynchronize(gpu->stream[bound->on]) : 0;

    if (!e)
        return;
    dl.cuGetErrorString(e, &text);
    if (gpu->step >= 0)
        snprintf(when, sizeof when, "step %ld, ", gpu->step + 1);
    err(&(Loc){ bound->instr->file, bound->instr->line, NULL },
        "GPU: %s: in %s%s %s (%s)", text, when,
        instr_info(bound->instr->kind)->name,
        bound->instr->kernel ? bound->instr->kernel : "",
        instr_label(bound->instr));
}

/* ---- events -------------------------------------------------------------- */

static void *event(void *d, EventKind k)
{
    GpuEvent *e = alloc(((Gpu *)d)->mem, sizeof *e);

    e->kind = k;
    gpu_ok(dl.cuEventCreate(&e->handle, k == EVENTtimed ? 0 : UNTIMED),
           "an event");
    return e;
}

static void record(void *d, StreamKind on, void *event)
{
    const GpuEvent *gpu_event = event;

    gpu_ok(dl.cuEventRecord(gpu_event->handle, stream(d, on)), "an event");
}

/* Makes a stream wait for an event. An event of a captured stream would be a
 * node inside the graph. */
static void wait(void *d, StreamKind on, void *event)
{
    const GpuEvent *gpu_event = event;
    int outside = ((Gpu *)d)->capturing && gpu_event->kind == EVENToutside;

    gpu_ok(dl.cuStreamWaitEvent(stream(d, on), gpu_event->handle,
                                outside ? OUTSIDE : 0),
           "an event");
}

static int query(void *d, void *event)
{
    static _Thread_local void *current;
    Gpu *gpu = d;
    const GpuEvent *gpu_event = event;
    int error = current == gpu->context ? 0 : dl.cuCtxSetCurrent(gpu->context);

    current = gpu->context;
    error = error ? error : dl.cuEventQuery(gpu_event->handle);
    if (error && error != NOTREADY)
        gpu->error = error;
    return error == NOTREADY ? 1 : error ? -1 : 0;
}

static void sync_gpu(void *d, StreamKind on)
{
    gpu_ok(dl.cuStreamSynchronize(stream(d, on)), "waiting for it");
}

static double between(void *d, void *from, void *to)
{
    const GpuEvent *a = from, *b = to;
    float ms = 0;

    (void)d;
    dl.cuEventElapsedTime(&ms, a->handle, b->handle);
    return 1e-3 * ms;
}

/* ---- graphs -------------------------------------------------------------- */

static void capture(void *d)
{
    Gpu *gpu = d;

    gpu_ok(dl.cuStreamBeginCapture_v2(gpu->stream[STREAMcompute], 1),
           "capturing");
    gpu->capturing = 1;
}

static void *captured(void *d, size_t *nodes)
{
    Gpu *gpu = d;
    void *graph = NULL, *exec = NULL;
    size_t n = 0;

    gpu->capturing = 0;
    gpu_ok(dl.cuStreamEndCapture(gpu->stream[STREAMcompute], &graph),
           "capturing");
    dl.cuGraphGetNodes(graph, NULL, &n);
    gpu_ok(dl.cuGraphInstantiateWithFlags(&exec, graph, 0), "the graph");
    dl.cuGraphDestroy(graph);
    *nodes += n;
    vec_push(gpu->mem, gpu->graph, exec);
    return exec;
}

static void replay(void *d, void *graph)
{
    gpu_ok(dl.cuGraphLaunch(graph, stream(d, STREAMcompute)),
           "launching the graph");
}

/* ---- runs ---------------------------------------------------------------- */

static void enter(void *d, ProgramKind prog, int64_t step, int64_t now)
{
    abort_hold();
    ((Gpu *)d)->step = now;
    fault_launching(d, prog, step);
}

static void leave(void *d)
{
    (void)d;
    fault_launching(NULL, PGstep, 0);
    abort_release();
}

static void fault(void *d, const char *what)
{
    gpu_ok(((Gpu *)d)->error, what);
}

static const char *chip(const void *d)
{
    return ((const Gpu *)d)->name;
}

static int64_t memory(const void *d)
{
    return ((const Gpu *)d)->total;
}

static Roofline peak(void *d, Dtype dt)
{
    return gpu_peak(((Gpu *)d)->name, dt);
}

const Device cuda_device = {
    /* clang-format off */
    .name = "cuda", .can = CANrun | CANcapture | OWNmemory | OWNproducts,
    .count = gpu_count, .wake = gpu_wake,
    .open = open_gpu, .prepare = prepare, .load = load, .bind = bind, .bound = bound, .close = close_gpu,
    .alloc = take, .free = give, .peers = peers, .drop_peers = drop_peers,
    .clear = clear, .copy = copy, .pin = pin,
    .unpin = unpin, .begin = begin, .finish = finish, .ready = ready,
    .launch = launch, .product = product, .transfer = transfer,
    .collective = collective, .issued = issued,
    .event = event, .record = record, .wait = wait, .query = query,
    .sync = sync_gpu, .between = between,
    .capture = capture, .captured = captured, .replay = replay,
    .enter = enter, .leave = leave, .fault = fault, .where = trail_at,
    .chip = chip, .memory = memory, .usage = gpu_memory, .peak = peak, .tuned = tune_text
    /* clang-format on */
};
