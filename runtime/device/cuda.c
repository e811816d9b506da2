/* cuda.c: the device that is one GPU: what each instruction becomes (a kernel's
 * arguments, a product of cuBLASLt, a communicator, a link between stages), how
 * it is launched, streams, events and graphs. device.c opens the GPU and counts
 * its memory. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { SHARED = 8, UNTIMED = 2, NOTREADY = 600, OUTSIDE = 1 };
enum { PRIORITY = 8 }; /* of a launch: an attribute */

typedef struct GpuCall { /* an instruction */
    void *fn, **param;   /* kernels */
    int64_t blocks;      /* ... along x */
    LtCall *lt;
    void *comm;     /* collectives; null: of one rank */
    PeerCall *peer; /* exchanges of rows */
    LinkEnd *end;   /* send, recv, wait */
    uint32_t place; /* for trail_put */
} GpuCall;

/* As in the driver's header. */
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

static void load_kernels(Gpu *x)
{
    start_phase("kernels");
    Cubin *c = nvrtc_all(x->mem, x->plan, x->pool, x->arch, x->comm);
    int n = x->plan->nkernel;

    start_phase("modules");
    x->fn = alloc(x->mem, (size_t)(n + 1) * sizeof *x->fn);
    for (int i = 0; i < n; i++) {
        const char *name = x->plan->kernel[i].name;
        void *module = NULL;
        gpu_ok(dl.cuModuleLoadData(&module, c[i].image), name);
        gpu_ok(dl.cuModuleGetFunction(&x->fn[i], module, name), name);
        free(c[i].image);
    }
}

static int kernel_named(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nkernel; i++)
        if (!strcmp(p->kernel[i].name, name))
            return i;
    err(NULL, "the plan has no kernel %s", name);
}

void gpu_allow(void *fn, int64_t shared, const char *what)
{
    if (shared > 0)
        gpu_ok(dl.cuFuncSetAttribute(fn, SHARED, (int)shared), what);
}

static void load(void *d)
{
    Gpu *x = d;

    x->work = device_take(x, LTWORK, "work space of products");
    load_kernels(x);
    device_count(x, "kernels");
    start_phase("products");
    x->lt = lt_open(x->mem, x->work);
    start_phase("communicators");
    x->nccl = nccl_open(x->mem, x->plan, x->comm);
    x->links = links_open(x->mem, x->plan, x->rank, x->nccl);
    device_count(x, "communicators");
}

/* ---- binding ------------------------------------------------------------- */

/* Blocks that take work in turns are as many as run at a time. */
static int64_t launch_blocks(const Gpu *x, const Instr *s)
{
    int most = s->issue.sms;

    if (!s->launch.persistent && !most)
        return s->launch.items;
    if (!s->launch.persistent)
        err(&(Loc){ s->file, s->line, NULL },
            "%s may hold %d multiprocessors, and its blocks do not take work "
            "in turns",
            s->kernel, most);
    most = most && most < x->cores ? most : x->cores;
    return s->launch.items < most ? s->launch.items : most;
}

static void bind_kernel(Gpu *x, const BoundInstr *b, GpuCall *c)
{
    const Instr *s = b->instr;

    c->blocks = launch_blocks(x, s);
    c->fn = x->fn[kernel_named(x->plan, s->kernel)];
    c->param =
        alloc(x->mem, (size_t)(s->nbuf + s->nword + 1) * sizeof *c->param);
    for (int i = 0; i < s->nbuf; i++)
        c->param[i] = &b->buf[i];
    for (int i = 0; i < s->nword; i++)
        c->param[s->nbuf + i] = &b->iv[i];
    gpu_allow(c->fn, s->launch.shared, s->kernel);
}

static void bind(void *d, BoundInstr *b, const Program *prog, int64_t runs)
{
    Gpu *x = d;
    const Instr *s = b->instr;
    GpuCall *c = b->own = alloc(x->mem, sizeof *c);

    c->place = trail_place(x, prog, s);
    switch (instr_info(s->kind)->cls) {
    case CLASScompute: bind_kernel(x, b, c); return;
    case CLASSmemory: return;
    case CLASScollective:
        if (moves_rows(s->kind))
            c->peer = peer_bind(x, b);
        else if (b->group > 1)
            c->comm = nccl_group(x->nccl, s->atoms);
        return;
    case CLASStransfer:
        c->end = link_bind(x->links, prog->kind, s, runs);
        return;
    case CLASSproduct: break;
    }
    if (s->kind != Igemm)
        err(&(Loc){ s->file, s->line, NULL },
            "instruction %s does not run on a GPU", instr_info(s->kind)->name);
    c->lt = lt_bind(x->lt, &s->gemm, b->buf);
}

static void bound(void *d)
{
    Gpu *x = d;

    trail_open(x);
    tune(x);
    device_count(x, "products");
    abort_watch(x);
    abort_hold();
    watch_all();
    links_warm(x->links, x->work, x->stream[STREAMcompute]);
    watch_leave();
    abort_release();
    device_count(x, "communicators");
}

static void *open(const DeviceArgs *a)
{
    Gpu *x = alloc(a->mem, sizeof *x);

    *x = (Gpu){ .mem = a->mem,
                .plan = a->plan,
                .comm = a->comm,
                .pool = a->pool,
                .rank = a->comm->first,
                .role = &a->plan->role[role_of(a->plan, a->comm->first)],
                .each = getenv("PLEAT_SYNC") != NULL,
                .step = -1 };
    device_open(x);
    return x;
}

static void close(void *d)
{
    Gpu *x = d;

    dl.cuStreamSynchronize(x->stream[STREAMcompute]);
    abort_watch(NULL);
    gpu_drop_graphs(x); /* they hold communicators */
    nccl_close(x->nccl);
    dl.cuMemFree_v2(x->work);
    dl.cuDevicePrimaryCtxRelease_v2(x->device);
}

/* ---- memory -------------------------------------------------------------- */

static void *take(void *d, ArenaKind k, int64_t bytes, const char *what)
{
    if (k == ARENApinned)
        return gpu_pinned(d, bytes);
    if (k == ARENApeer)
        return gpu_shared(d, bytes, what);
    return (void *)(uintptr_t)device_take(d, bytes, what);
}

static void give(void *d, ArenaKind k, void *p, int64_t bytes)
{
    Gpu *x = d;

    if (k == ARENApinned) {
        dl.cuMemFreeHost(p);
        x->pinned -= bytes;
    } else if (k == ARENApeer) {
        gpu_drop_peers(x, x->peer);
    } else {
        dl.cuMemFree_v2(address(p));
    }
}

static void **peers(void *d, int64_t bytes, const char *what)
{
    return gpu_peers(d, bytes, what);
}

static void drop_peers(void *d, void **at, int64_t bytes)
{
    (void)bytes;
    gpu_drop_peers(d, at);
}

static int pin(void *d, void *p, int64_t bytes)
{
    Gpu *x = d;

    if (dl.cuMemHostRegister_v2(p, (size_t)bytes, 0))
        return 0;
    x->pinned += bytes;
    return 1;
}

static void unpin(void *d, void *p, int64_t bytes)
{
    ((Gpu *)d)->pinned -= bytes;
    dl.cuMemHostUnregister(p);
}

/* What runs beside compute is to start before blocks of compute that wait for a
 * multiprocessor. */
static void *stream(Gpu *x, StreamKind on)
{
    int least, first;

    if (!x->stream[on]) {
        dl.cuCtxGetStreamPriorityRange(&least, &first);
        gpu_ok(dl.cuStreamCreateWithPriority(&x->stream[on], 1, first),
               "a stream");
    }
    return x->stream[on];
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

/* A stage's stream waits, not who launches. */
static int ready(void *d, const BoundInstr *b)
{
    (void)d, (void)b;
    return 1;
}

/* Before blocks of other streams that wait to start. */
static int launch_first(Gpu *x, const BoundInstr *b, int64_t blocks)
{
    const GpuCall *c = b->own;
    const Launch *l = &b->instr->launch;
    int least = 0;
    LaunchAttribute a = { .id = PRIORITY };
    LaunchConfig k = {
        .grid = { (unsigned)blocks, (unsigned)l->y, (unsigned)l->z },
        .block = { (unsigned)l->threads, 1, 1 },
        .shared = (unsigned)l->shared,
        .stream = stream(x, b->on),
        .attribute = &a,
        .n = 1,
    };

    dl.cuCtxGetStreamPriorityRange(&least, &a.priority);
    return dl.cuLaunchKernelEx(&k, c->fn, c->param, NULL);
}

static void launch_grid(Gpu *x, const BoundInstr *b, int64_t blocks)
{
    const GpuCall *c = b->own;
    const Launch *l = &b->instr->launch;

    gpu_ok(b->instr->issue.priority
               ? launch_first(x, b, blocks)
               : dl.cuLaunchKernel(c->fn, (unsigned)blocks, (unsigned)l->y,
                                   (unsigned)l->z, (unsigned)l->threads, 1, 1,
                                   (unsigned)l->shared, stream(x, b->on),
                                   c->param, NULL),
           instr_label(b->instr));
}

static void launch(void *d, const BoundInstr *b)
{
    const GpuCall *c = b->own;
    const Launch *l = &b->instr->launch;
    int64_t number = 0;

    c->param[b->instr->nbuf + b->instr->nword] = &number;
    for (; number < (l->then ? 2 * l->pairs : 1); number++)
        if (c->blocks)
            launch_grid(d, b, number % 2 ? l->then : c->blocks);
}

static void product(void *d, const BoundInstr *b)
{
    lt_run(((Gpu *)d)->lt, ((GpuCall *)b->own)->lt, stream(d, b->on));
}

static void transfer(void *d, const BoundInstr *b)
{
    const GpuCall *c = b->own;

    trail_put(d, c->place, 0, b->on);
    link_run(c->end, b->instr, address(b->buf[0]), stream(d, b->on));
    trail_put(d, c->place, 1, b->on);
}

static void collective(void *d, const BoundInstr *b, const Part *part)
{
    const GpuCall *c = b->own;

    if (c->peer) {
        trail_put(d, c->place, 0, b->on);
        peer_run(c->peer, &b->instr->rows, stream(d, b->on));
        trail_put(d, c->place, 1, b->on);
        return;
    }
    if (!c->comm) {
        if (part->send != part->recv)
            copy(d, b->on, COPYwithin, part->recv, part->send, b->bytes);
        return;
    }
    trail_put(d, c->place, 0, b->on);
    nccl_run(c->comm, b->instr, b->group, b->me, address(part->send),
             address(part->recv), stream(d, b->on));
    trail_put(d, c->place, 1, b->on);
}

/* With PLEAT_SYNC: is all well after it? */
static void issued(void *d, const BoundInstr *b)
{
    const Gpu *x = d;
    const char *text = "?";
    char when[32] = "";
    int e = x->each ? dl.cuStreamSynchronize(x->stream[b->on]) : 0;

    if (!e)
        return;
    dl.cuGetErrorString(e, &text);
    if (x->step >= 0)
        snprintf(when, sizeof when, "step %lld, ", (long long)x->step + 1);
    err(&(Loc){ b->instr->file, b->instr->line, NULL },
        "GPU: %s: in %s%s %s (%s)", text, when,
        instr_info(b->instr->kind)->name,
        b->instr->kernel ? b->instr->kernel : "", instr_label(b->instr));
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
    const GpuEvent *e = event;

    gpu_ok(dl.cuEventRecord(e->handle, stream(d, on)), "an event");
}

/* The event of a captured stream would be one inside of the graph. */
static void wait(void *d, StreamKind on, void *event)
{
    const GpuEvent *e = event;
    int outside = ((Gpu *)d)->capturing && e->kind == EVENToutside;

    gpu_ok(
        dl.cuStreamWaitEvent(stream(d, on), e->handle, outside ? OUTSIDE : 0),
        "an event");
}

static int query(void *d, void *event)
{
    static _Thread_local void *current;
    Gpu *x = d;
    const GpuEvent *e = event;
    int error = current == x->context ? 0 : dl.cuCtxSetCurrent(x->context);

    current = x->context;
    error = error ? error : dl.cuEventQuery(e->handle);
    if (error && error != NOTREADY)
        x->error = error;
    return error == NOTREADY ? 1 : error ? -1 : 0;
}

static void sync(void *d, StreamKind on)
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
    Gpu *x = d;

    gpu_ok(dl.cuStreamBeginCapture_v2(x->stream[STREAMcompute], 1),
           "capturing");
    x->capturing = 1;
}

static void *captured(void *d, size_t *nodes)
{
    Gpu *x = d;
    void *graph = NULL, *exec = NULL;
    size_t n = 0;

    x->capturing = 0;
    gpu_ok(dl.cuStreamEndCapture(x->stream[STREAMcompute], &graph),
           "capturing");
    dl.cuGraphGetNodes(graph, NULL, &n);
    gpu_ok(dl.cuGraphInstantiateWithFlags(&exec, graph, 0), "the graph");
    dl.cuGraphDestroy(graph);
    *nodes += n;
    vec_push(x->mem, x->graph, exec);
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
    .count = gpu_count,
    .open = open, .load = load, .bind = bind, .bound = bound, .close = close,
    .alloc = take, .free = give, .peers = peers, .drop_peers = drop_peers,
    .clear = clear, .copy = copy, .pin = pin,
    .unpin = unpin, .begin = begin, .finish = finish, .ready = ready,
    .launch = launch, .product = product, .transfer = transfer,
    .collective = collective, .issued = issued,
    .event = event, .record = record, .wait = wait, .query = query,
    .sync = sync, .between = between,
    .capture = capture, .captured = captured, .replay = replay,
    .enter = enter, .leave = leave, .fault = fault, .where = trail_at,
    .chip = chip, .memory = memory, .usage = gpu_memory, .peak = peak, .tuned = tune_text
    /* clang-format on */
};
