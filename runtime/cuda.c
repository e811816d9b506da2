/* cuda.c: a plan on one GPU. Everything is bound once: kernels loaded, products
 * described, groups made. A program is a list of calls on one stream; its first
 * run launches them one by one, then they are captured, and every later run is
 * one launch of a graph:
 *
 *     step block, inputs of all micro-batches   pinned memory -> arena
 *     the program's steps                       turn by turn
 *     result block                              arena -> pinned memory
 *
 * Inputs of a turn are copied from their place in pinned memory right before
 * the turn, so the host only fills pinned memory and launches.               */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

typedef struct GpuCall {
    const Step *s;
    void *fn, **param;            /* kernels                                  */
    uint64_t *value;              /* what the params point to                 */
    int64_t grid[5];              /* x threads y z shared bytes               */
    uint64_t buf[8];
    int64_t bytes;                /* of the first buffer                      */
    int64_t *iv;
    LtCall *lt;
    void *comm; int64_t ranks;
} GpuCall;

typedef struct GpuProgram {
    const Program *p;
    GpuCall *call;
    int64_t turns;
    uint8_t *in;                  /* pinned: scalars, then turns of inputs    */
    uint8_t *out;                 /* pinned: results                          */
    int64_t scalars, perturn;     /* bytes                                    */
    int runs;
    void *graph;                  /* executable; null: not yet                */
} GpuProgram;

struct Gpu {
    Arena *mem;
    const Plan *plan;
    const Role *role;
    Comm *comm;
    int64_t rank;
    int device;
    void *stream;
    uint64_t arena, work;
    uint8_t *host;
    void **fn;                    /* by kernel                                */
    Lt *lt;
    Nccl *nccl;
    GpuProgram *prog;
    void **mark; int nmark, maxmark;      /* events between calls, when timed */
    int *marked;                  /* the step that ends at each               */
};

enum { ALIGN = 256, MAJOR = 75, MINOR = 76, SHARED = 8 };

static void ok(int error, const char *what)
{
    const char *text = "?";

    if (!error)
        return;
    dl.cuGetErrorString(error, &text);
    err(NULL, "GPU: %s: %s", what, text);
}

/* ---- the device ---------------------------------------------------------- */

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static const char *use_device(Gpu *x)
{
    int count = 0, major = 0, minor = 0;
    void *ctx = NULL;

    if (!dl_open(LIBcuda))
        err(NULL, "target=cuda needs a GPU: %s", dl_why(LIBcuda));
    if (dl.cuInit(0) || dl.cuDeviceGetCount(&count) || !count)
        err(NULL, "target=cuda needs a GPU and there is none");
    int64_t local = launch_local();
    if (count > 1 && local > count)
        err(NULL, "%lld ranks on this host, but %d GPUs", (long long)local,
            count);
    x->device = count == 1 ? 0 : (int)(launch_place() % count);
    ok(dl.cuDevicePrimaryCtxRetain(&ctx, x->device), "opening it");
    ok(dl.cuCtxSetCurrent(ctx), "using it");
    ok(dl.cuStreamCreate(&x->stream, 1), "a stream");
    dl.cuDeviceGetAttribute(&major, MAJOR, x->device);
    dl.cuDeviceGetAttribute(&minor, MINOR, x->device);
    return strf(x->mem, "sm_%d%d%s", major, minor, major >= 9 ? "a" : "");
}

static uint64_t take(int64_t bytes, const char *what)
{
    size_t left = 0, total = 0;
    uint64_t p = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    if (dl.cuMemAlloc_v2(&p, (size_t)(bytes ? bytes : 1)))
        err(NULL, "out of memory on GPU: %s needs %.2f GiB, %.2f of %.2f GiB "
            "are free", what, (double)bytes / 0x1p30, (double)left / 0x1p30,
            (double)total / 0x1p30);
    return p;
}

static uint8_t *pinned(int64_t bytes)
{
    void *p = NULL;

    ok(dl.cuMemHostAlloc(&p, (size_t)(bytes ? bytes : 1), 0), "pinned memory");
    return p;
}

static void load_kernels(Gpu *x, Pool *pool, const char *arch)
{
    Cubin *c = nvrtc_all(x->mem, x->plan, pool, arch);
    int n = x->plan->nkernel;

    x->fn = alloc(x->mem, (size_t)(n + 1) * sizeof *x->fn);
    for (int i = 0; i < n; i++) {
        void *module = NULL;
        ok(dl.cuModuleLoadData(&module, c[i].image), x->plan->kernel[i].name);
        ok(dl.cuModuleGetFunction(&x->fn[i], module, x->plan->kernel[i].name),
           x->plan->kernel[i].name);
        free(c[i].image);
    }
}

/* ---- binding ------------------------------------------------------------- */

static uint64_t address(const Gpu *x, int buf)
{
    return buf < 0 ? 0 : x->arena + (uint64_t)x->role->buf[buf].offset;
}

static int kernel_named(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nkernel; i++)
        if (!strcmp(p->kernel[i].name, name))
            return i;
    err(NULL, "the plan has no kernel %s", name);
}

static void bind_kernel(Gpu *x, GpuCall *c)
{
    const Step *s = c->s;
    int n = s->nbuf + s->nint - 5;

    for (int i = 0; i < 5; i++)
        c->grid[i] = c->iv[i];
    c->fn = x->fn[kernel_named(x->plan, s->kernel)];
    c->value = alloc(x->mem, (size_t)(n + 1) * sizeof *c->value);
    c->param = alloc(x->mem, (size_t)(n + 1) * sizeof *c->param);
    for (int i = 0; i < n; i++) {
        c->value[i] = i < s->nbuf ? address(x, s->buf[i])
                                  : (uint64_t)c->iv[i - s->nbuf + 5];
        c->param[i] = &c->value[i];
    }
    if (c->grid[4] > 48 << 10)
        ok(dl.cuFuncSetAttribute(c->fn, SHARED, (int)c->grid[4]), s->kernel);
}

/* Do its ranks hold their axis in pieces (zig of steps.def)?                 */
static int in_halves(const GpuCall *c)
{
    StepKind k = c->s->kind;
    int zig = k == Sallgather ? 3 : k == Sreducescatter ? 4 : 7;

    return k != Sallreduce && c->iv[zig] != 0;
}

static void bind(Gpu *x, GpuCall *c, const Step *s)
{
    c->s = s;
    c->iv = alloc(x->mem, (size_t)(s->nint + 1) * sizeof *c->iv);
    for (int i = 0; i < s->nint; i++)
        c->iv[i] = aff_at(x->plan->mesh, &s->iv[i], x->rank);
    for (int i = 0; i < s->nbuf && i < 8; i++)
        c->buf[i] = address(x, s->buf[i]);
    if (s->nbuf && s->buf[0] >= 0)
        c->bytes = x->role->buf[s->buf[0]].bytes;
    switch (s->kind) {
    case Skernel: bind_kernel(x, c); return;
    case Sgemm: c->lt = lt_bind(x->lt, c->iv, s->nint, c->buf); return;
    case Szero: case Scopy: case Sjoin: return;
    case Sallgather: case Sreducescatter: case Sallreduce: case Salltoall:
        c->ranks = mesh_extent(x->plan->mesh, s->atoms);
        if (in_halves(c))
            err(NULL, "step %s of two pieces a rank does not run on a GPU yet "
                "(fold.balance=contiguous does)", stepinfo[s->kind].name);
        if (c->ranks > 1)
            c->comm = nccl_group(x->nccl, s->atoms);
        return;
    default:
        err(NULL, "step %s does not run on a GPU", stepinfo[s->kind].name);
    }
}

static int64_t input_bytes(const Role *r)
{
    int64_t n = 0;

    for (int i = 0; i < r->ntensor; i++)
        if (!strcmp(r->tensor[i].kind, "input"))
            n += aligned(r->buf[r->tensor[i].buf].bytes);
    return n;
}

static void bind_program(Gpu *x, int k)
{
    GpuProgram *g = &x->prog[k];
    const Role *r = x->role;

    g->p = &r->prog[k];
    g->turns = plan_turns(x->plan, g->p->name);
    g->scalars = aligned(8 * (r->nin + 1));
    g->perturn = input_bytes(r) + ALIGN;
    g->in = pinned(g->scalars + g->turns * g->perturn);
    g->out = pinned(8 * (r->nout + 1));
    g->call = alloc(x->mem, (size_t)(g->p->nstep + 1) * sizeof *g->call);
    for (int i = 0; i < g->p->nstep; i++)
        bind(x, &g->call[i], &g->p->step[i]);
}

Gpu *gpu_open(Arena *a, const Plan *p, Comm *c, Pool *pool, uint8_t *host)
{
    Gpu *x = alloc(a, sizeof *x);

    if (c->n > 1)
        err(NULL, "a plan for %lld GPUs runs under mpirun, one rank a GPU",
            (long long)c->world);
    *x = (Gpu){.mem = a, .plan = p, .comm = c, .rank = c->first, .host = host};
    x->role = &p->role[role_of(p, x->rank)];
    const char *arch = use_device(x);
    x->arena = take(x->role->arena, "the plan");
    x->work = take(LTWORK, "work space of products");
    x->lt = lt_open(a, x->work);
    load_kernels(x, pool, arch);
    x->nccl = nccl_open(a, p->mesh, c);
    x->prog = alloc(a, (size_t)x->role->nprog * sizeof *x->prog);
    for (int i = 0; i < x->role->nprog; i++)
        bind_program(x, i);
    return x;
}

void gpu_close(Gpu *x)
{
    dl.cuStreamSynchronize(x->stream);
    nccl_close(x->nccl);
    dl.cuMemFree_v2(x->arena);
    dl.cuMemFree_v2(x->work);
    dl.cuDevicePrimaryCtxRelease_v2(x->device);
}

/* ---- one run ------------------------------------------------------------- */

static void launch(Gpu *x, GpuCall *c)
{
    const int64_t *g = c->grid;

    switch (c->s->kind) {
    case Skernel:
        if (g[0] && g[2] && g[3])
            ok(dl.cuLaunchKernel(c->fn, (unsigned)g[0], (unsigned)g[2],
                                 (unsigned)g[3], (unsigned)g[1], 1, 1,
                                 (unsigned)g[4], x->stream, c->param, NULL),
               c->s->label ? c->s->label : c->s->kernel);
        return;
    case Sgemm: lt_run(x->lt, c->lt, x->stream); return;
    case Szero:
        ok(dl.cuMemsetD8Async(c->buf[0], 0, (size_t)c->bytes, x->stream),
           "clearing");
        return;
    case Sjoin:
        for (int i = 1; i < c->s->nint; i += 2)
            ok(dl.cuMemsetD8Async(c->buf[0] + (uint64_t)c->iv[i], 0,
                                  (size_t)c->iv[i + 1], x->stream),
               "clearing");
        return;
    case Scopy:
        ok(dl.cuMemcpyDtoDAsync_v2(c->buf[1], c->buf[0], (size_t)c->bytes,
                                   x->stream), "copying");
        return;
    default:
        if (c->comm)
            nccl_run(c->comm, c->s->kind, c->iv, c->ranks, c->buf[0], c->buf[1],
                     x->stream);
        else if (c->buf[0] != c->buf[1])
            ok(dl.cuMemcpyDtoDAsync_v2(c->buf[1], c->buf[0], (size_t)c->bytes,
                                       x->stream), "copying");
    }
}

static void copy_in(Gpu *x, int buf, const uint8_t *from, int64_t bytes)
{
    ok(dl.cuMemcpyHtoDAsync_v2(address(x, buf), from, (size_t)bytes, x->stream),
       "copying inputs");
}

static int scalar_named(const Role *r, const char *name)
{
    for (int i = 0; i < r->nin; i++)
        if (!strcmp(r->in[i].name, name))
            return i;
    return -1;
}

/* A turn's inputs and its number from their place in pinned memory.          */
static void begin_turn(Gpu *x, GpuProgram *g, int64_t turn)
{
    const Role *r = x->role;
    const uint8_t *at = g->in + g->scalars + turn * g->perturn;
    int micro = scalar_named(r, "micro");

    if (micro >= 0)
        copy_in(x, r->in[micro].buf, at, dtypes[r->in[micro].dt].bytes);
    at += ALIGN;
    for (int i = 0; i < r->ntensor; i++) {
        if (strcmp(r->tensor[i].kind, "input"))
            continue;
        int64_t n = r->buf[r->tensor[i].buf].bytes;
        copy_in(x, r->tensor[i].buf, at, n);
        at += aligned(n);
    }
}

static void mark(Gpu *x, int step)
{
    if (x->nmark >= x->maxmark)
        return;
    void **e = &x->mark[x->nmark];
    if (!*e)
        ok(dl.cuEventCreate(e, 0), "an event");
    ok(dl.cuEventRecord(*e, x->stream), "an event");
    x->marked[x->nmark++] = step;
}

static void issue(Gpu *x, GpuProgram *g)
{
    const Role *r = x->role;
    int64_t loaded = -1;

    for (int i = 0; i < r->nin; i++)
        if (strcmp(r->in[i].name, "micro"))
            copy_in(x, r->in[i].buf, g->in + 8 * i, dtypes[r->in[i].dt].bytes);
    for (int f = 0; f < g->p->nphase; f++) {
        const Phase *p = &g->p->phase[f];
        int data = !strcmp(p->name, "body") || !strcmp(p->name, "den");
        for (int64_t turn = 0; turn < p->repeat; turn++) {
            if (data && turn != loaded)
                begin_turn(x, g, loaded = turn);
            mark(x, -1);
            for (int k = p->first; k < p->first + p->n; k++) {
                launch(x, &g->call[k]);
                mark(x, k);
            }
        }
    }
    for (int i = 0; i < r->nout; i++)
        ok(dl.cuMemcpyDtoHAsync_v2(g->out + 8 * i, address(x, r->out[i].buf),
                                   (size_t)dtypes[r->out[i].dt].bytes,
                                   x->stream), "copying results");
}

/* The first run launches, so that what is made on first use (library kernels,
 * connections) is there; the second is captured.                             */
static void go(Gpu *x, GpuProgram *g)
{
    void *graph = NULL;

    if (g->runs++ == 0 || x->maxmark || getenv("PLEAT_NOGRAPH")) {
        issue(x, g);
        return;
    }
    if (!g->graph) {
        ok(dl.cuStreamBeginCapture_v2(x->stream, 1), "capturing");
        issue(x, g);
        ok(dl.cuStreamEndCapture(x->stream, &graph), "capturing");
        ok(dl.cuGraphInstantiateWithFlags(&g->graph, graph, 0), "the graph");
        dl.cuGraphDestroy(graph);
    }
    ok(dl.cuGraphLaunch(g->graph, x->stream), "launching the graph");
}

static void put_scalar(const Gpu *x, GpuProgram *g, const char *name, double v)
{
    int i = scalar_named(x->role, name);

    if (i >= 0)
        elem_set(x->role->in[i].dt, g->in + 8 * i, 0, v);
}

static void fill_turns(Gpu *x, GpuProgram *g, const Feed *feed)
{
    const Role *r = x->role;
    const Mesh *m = x->plan->mesh;
    int micro = scalar_named(r, "micro");

    for (int64_t turn = 0; turn < g->turns; turn++) {
        uint8_t *at = g->in + g->scalars + turn * g->perturn;
        if (micro >= 0)
            elem_set(r->in[micro].dt, at, 0,
                     (double)(turn * m->size[Mdp] +
                              mesh_pos(m, m->mask[Mdp], x->rank)));
        at += ALIGN;
        for (int i = 0; i < r->ntensor; i++) {
            if (strcmp(r->tensor[i].kind, "input"))
                continue;
            if (feed)
                feed->fill(feed->self, &r->tensor[i], x->rank, turn, at);
            at += aligned(r->buf[r->tensor[i].buf].bytes);
        }
    }
}

static int64_t calls_of(const GpuProgram *g)
{
    int64_t n = 0;

    for (int f = 0; f < g->p->nphase; f++)
        n += g->p->phase[f].repeat * (g->p->phase[f].n + 1);
    return n;
}

static void start_marks(Gpu *x, const GpuProgram *g)
{
    x->nmark = 0;
    x->maxmark = (int)calls_of(g);
    if (!x->mark) {
        x->mark = alloc(x->mem, (size_t)x->maxmark * sizeof *x->mark);
        x->marked = alloc(x->mem, (size_t)x->maxmark * sizeof *x->marked);
    }
}

static void add_times(Gpu *x, double *spent)
{
    for (int i = 1; i < x->nmark; i++) {
        float ms = 0;
        if (x->marked[i] < 0)
            continue;
        dl.cuEventElapsedTime(&ms, x->mark[i - 1], x->mark[i]);
        spent[x->marked[i]] += 1e-3 * ms;
    }
    x->maxmark = 0;
}

void gpu_run(Gpu *x, int prog, const Block *b, const Feed *feed, double *spent)
{
    GpuProgram *g = &x->prog[prog];
    const Role *r = x->role;

    if (b) {
        put_scalar(x, g, "lr", b->lr);
        put_scalar(x, g, "bc1", b->bc1);
        put_scalar(x, g, "bc2", b->bc2);
        put_scalar(x, g, "step", (double)b->step);
    }
    fill_turns(x, g, feed);
    if (spent)
        start_marks(x, g);
    go(x, g);
    ok(dl.cuStreamSynchronize(x->stream), "running the plan");
    if (spent)
        add_times(x, spent);
    for (int i = 0; i < r->nout; i++)
        memcpy(x->host + r->buf[r->out[i].buf].offset, g->out + 8 * i,
               (size_t)dtypes[r->out[i].dt].bytes);
}

void gpu_pull(Gpu *x)
{
    ok(dl.cuMemcpyDtoH_v2(x->host, x->arena, (size_t)x->role->persist),
       "reading the state");
}

void gpu_push(Gpu *x)
{
    ok(dl.cuMemcpyHtoD_v2(x->arena, x->host, (size_t)x->role->persist),
       "writing the state");
}
