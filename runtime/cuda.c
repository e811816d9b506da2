/* cuda.c: a plan on one GPU, bound once: memory, kernels, products, groups of
 * ranks, links between stages, the arguments of every step. replay.c runs it.
 * Outside the plan's arena there are the context, kernels, NCCL's buffers, work
 * space of products, and a copy of each run's inputs and results.            */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { ALIGN = 256, MAJOR = 75, MINOR = 76, SHARED = 8, UNTIMED = 2 };

void gpu_ok(int error, const char *what)
{
    const char *text = "?";

    if (!error)
        return;
    dl.cuGetErrorString(error, &text);
    err(NULL, "GPU: %s: %s", what, text);
}

int64_t gpu_aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- the device ---------------------------------------------------------- */

static int64_t used(void)
{
    size_t left = 0, total = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    return (int64_t)(total - left);
}

/* Kernels that use an architecture's own instructions run on no other.       */
static void check_kernels(const Gpu *x)
{
    const Plan *p = x->plan;
    int hopper = strstr(p->prelude, "wgmma") != NULL;

    for (int i = 0; i < p->nkernel && !hopper; i++)
        hopper = strstr(p->kernel[i].text, "wgmma") != NULL;
    if (hopper && strcmp(x->arch, "sm_90a"))
        err(NULL, "the plan's kernels are for sm_90a (H100, H200); this GPU is "
            "%s, %s", x->name, x->arch);
}

/* Plans split work evenly, and the same text must give the same code.        */
static void check_peers(const Gpu *x)
{
    char mine[160] = "", first[160] = "";

    snprintf(mine, sizeof mine, "%s (%s)", x->name, x->arch);
    memcpy(first, mine, sizeof mine);
    comm_share(x->comm, first, sizeof first);
    int differ = strcmp(mine, first) != 0;
    int64_t any = comm_max(x->comm, differ ? x->rank : -1);
    if (any >= 0 && comm_speaks(x->comm, any == x->rank))
        err(NULL, "mixed GPUs: rank %lld has %s, rank 0 %s", (long long)any,
            mine, first);
}

static void use_device(Gpu *x)
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
    gpu_ok(dl.cuDevicePrimaryCtxRetain(&ctx, x->device), "opening it");
    gpu_ok(dl.cuCtxSetCurrent(ctx), "using it");
    gpu_ok(dl.cuStreamCreate(&x->stream, 1), "a stream");
    dl.cuDeviceGetName(x->name, sizeof x->name, x->device);
    dl.cuDeviceGetAttribute(&major, MAJOR, x->device);
    dl.cuDeviceGetAttribute(&minor, MINOR, x->device);
    snprintf(x->arch, sizeof x->arch, "sm_%d%d%s", major, minor,
             major >= 9 ? "a" : "");
    x->context = used();
    check_peers(x);
    check_kernels(x);
}

/* ---- memory -------------------------------------------------------------- */

/* "param 1.25, optim 7.50, temp 3.00": GiB by class; what programs share is
 * temp.                                                                      */
static char *classes(Gpu *x)
{
    const Role *r = x->role;
    Text t = {.arena = x->mem};
    int64_t n[NBUFCLASS] = {0};

    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0)
            n[r->buf[i].cls] += r->buf[i].bytes;
    n[Btemp] += r->arena - r->persist;
    for (int i = 0; i < NBUFCLASS; i++)
        if (n[i])
            put(&t, "%s%s %.2f", t.len ? ", " : "", bufclasses[i],
                (double)n[i] / 0x1p30);
    return t.s ? t.s : "";
}

static uint64_t take(Gpu *x, int64_t bytes, const char *what)
{
    size_t left = 0, total = 0;
    uint64_t p = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    if (dl.cuMemAlloc_v2(&p, (size_t)(bytes ? bytes : 1)))
        err(NULL, "out of memory on GPU %d (rank %lld): %s needs %.2f GiB; "
            "%.2f of %.2f GiB are free (the plan in GiB: %s)", x->device,
            (long long)x->rank, what, (double)bytes / 0x1p30,
            (double)left / 0x1p30, (double)total / 0x1p30, classes(x));
    return p;
}

static uint8_t *pinned(int64_t bytes)
{
    void *p = NULL;

    gpu_ok(dl.cuMemHostAlloc(&p, (size_t)(bytes ? bytes : 1), 0),
           "pinned memory");
    return p;
}

char *gpu_says(Gpu *x)
{
    size_t left = 0, total = 0;

    dl.cuMemGetInfo_v2(&left, &total);
    double plan = (double)x->role->arena / 0x1p30;
    double context = (double)x->context / 0x1p30;
    double work = (double)(LTWORK + x->nstage) / 0x1p30;
    double all = (double)(total - left) / 0x1p30;
    return strf(x->mem, "GPU %d, %s: %.2f of %.2f GiB used: plan %.2f (%s); "
                "context and others %.2f, work space %.2f, kernels and "
                "communication %.2f\n", x->device, x->name, all,
                (double)total / 0x1p30, plan, classes(x), context, work,
                all - plan - context - work);
}

/* ---- kernels ------------------------------------------------------------- */

static void load_kernels(Gpu *x)
{
    Cubin *c = nvrtc_all(x->mem, x->plan, x->pool, x->arch);
    int n = x->plan->nkernel;

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

/* ---- binding ------------------------------------------------------------- */

/* Of a buffer in a frame: as the first micro-batch has it.                   */
uint64_t gpu_address(const Gpu *x, int buf)
{
    if (buf < 0)
        return 0;
    const Buf *b = &x->role->buf[buf];
    const Frame *f = b->frame && b->prog >= 0
        ? &x->role->prog[b->prog].frame[b->frame - 1] : NULL;
    return x->arena + (uint64_t)(b->offset + (f ? f->slot[0] : 0));
}

static void bind_kernel(Gpu *x, GpuCall *c)
{
    const Step *s = c->s;
    int n = s->nbuf + s->nint - 5;

    for (int i = 0; i < 5; i++)
        c->grid[i] = c->iv[i];
    c->fn = x->fn[kernel_named(x->plan, s->kernel)];
    c->param = alloc(x->mem, (size_t)(n + 1) * sizeof *c->param);
    for (int i = 0; i < n; i++)
        c->param[i] = &c->buf[i];
    for (int i = s->nbuf; i < n; i++)
        c->buf[i] = (uint64_t)c->iv[i - s->nbuf + 5];
    if (c->grid[4] > 48 << 10)
        gpu_ok(dl.cuFuncSetAttribute(c->fn, SHARED, (int)c->grid[4]),
               s->kernel);
}

static void bind_group(Gpu *x, GpuCall *c)
{
    c->ranks = mesh_extent(x->plan->mesh, c->s->atoms);
    c->me = mesh_pos(x->plan->mesh, c->s->atoms, x->rank);
    if (c->ranks > 1)
        c->comm = nccl_group(x->nccl, c->s->atoms);
}

static void bind(Gpu *x, GpuProgram *g, GpuCall *c, const Step *s,
                 int64_t turns)
{
    int n = s->nbuf + s->nint + 1;

    c->s = s;
    c->iv = alloc(x->mem, (size_t)(s->nint + 1) * sizeof *c->iv);
    for (int i = 0; i < s->nint; i++)
        c->iv[i] = aff_at(x->plan->mesh, &s->iv[i], x->rank);
    c->buf = alloc(x->mem, (size_t)n * sizeof *c->buf);
    for (int i = 0; i < s->nbuf; i++)
        c->buf[i] = gpu_address(x, s->buf[i]);
    if (s->nbuf && s->buf[0] >= 0)
        c->bytes = x->role->buf[s->buf[0]].bytes;
    switch (s->kind) {
    case Skernel: bind_kernel(x, c); return;
    case Sgemm: c->lt = lt_bind(x->lt, c->iv, s->nint, c->buf); return;
    case Szero: case Scopy: case Sjoin: return;
    case Sallgather: case Sreducescatter: case Sallreduce: case Salltoall:
    case Srotate: bind_group(x, c); return;
    case Ssend: case Srecv: case Swait:
        c->end = link_bind(x->links, g->p->name, s->kind, c->iv, turns);
        return;
    default:
        err(&(Loc){s->file, s->line, NULL}, "step %s does not run on a GPU",
            stepinfo[s->kind].name);
    }
}

static void bind_phase(Gpu *x, GpuProgram *g, int f)
{
    const Phase *p = &g->p->phase[f];

    for (int k = p->first; k < p->first + p->n; k++) {
        const Step *s = &g->p->step[k];
        bind(x, g, &g->call[k], s, phase_turns(g->p, f));
        for (int i = 0; i < s->nbuf; i++) {
            const Buf *b = s->buf[i] < 0 ? NULL : &x->role->buf[s->buf[i]];
            if (b && b->frame && &x->role->prog[b->prog] == g->p)
                vec_push(x->mem, g->patch[f],
                         ((GpuPatch){&g->call[k].buf[i], b->offset,
                                     b->frame - 1}));
        }
    }
}

static int64_t input_bytes(const Role *r)
{
    int64_t n = 0;

    for (int i = 0; i < r->ntensor; i++)
        if (!strcmp(r->tensor[i].kind, "input"))
            n += gpu_aligned(r->buf[r->tensor[i].buf].bytes);
    return n;
}

static void bind_program(Gpu *x, int k)
{
    GpuProgram *g = &x->prog[k];
    const Role *r = x->role;

    g->p = &r->prog[k];
    g->course = &x->course[k];
    g->turns = plan_turns(x->plan, g->p->name);
    g->scalars = gpu_aligned(8 * (r->nin + 1));
    g->perturn = input_bytes(r) + ALIGN;
    g->nin = g->scalars + g->turns * g->perturn;
    g->nout = gpu_aligned(8 * (r->nout + 1));
    for (int i = 0; i < 2; i++) {
        g->in[i] = pinned(g->nin);
        g->out[i] = pinned(g->nout);
        gpu_ok(dl.cuEventCreate(&g->done[i], UNTIMED), "an event");
    }
    if (x->nstage < g->nin + g->nout)
        x->nstage = g->nin + g->nout;
    g->call = alloc(x->mem, (size_t)(g->p->nstep + 1) * sizeof *g->call);
    g->patch = alloc(x->mem, (size_t)(g->p->nphase + 1) * sizeof *g->patch);
    for (int f = 0; f < g->p->nphase; f++)
        bind_phase(x, g, f);
}

/* ---- interface ----------------------------------------------------------- */

Gpu *gpu_open(Arena *a, const Plan *p, Comm *c, Pool *pool, uint8_t *host,
              const Course *course)
{
    Gpu *x = alloc(a, sizeof *x);
    const char *sums = opts_str(p->opts, "deterministic");

    if (c->n > 1)
        err(NULL, "a plan for %lld GPUs runs under mpirun, one rank a GPU",
            (long long)c->world);
    if (sums && !strcmp(sums, "placement") && c->world > 1)
        err(opts_loc(p->opts, "deterministic"), "deterministic=placement needs "
            "sums in rank order; on several GPUs NCCL chooses the order "
            "(target=host keeps it)");
    *x = (Gpu){.mem = a, .plan = p, .comm = c, .rank = c->first, .host = host,
               .pool = pool, .course = course,
               .each = getenv("PLEAT_SYNC") != NULL};
    x->role = &p->role[role_of(p, x->rank)];
    use_device(x);
    x->arena = take(x, x->role->arena, "the plan");
    x->work = take(x, LTWORK, "work space of products");
    x->lt = lt_open(a, x->work);
    load_kernels(x);
    x->nccl = nccl_open(a, p->mesh, c);
    x->links = links_open(a, p, x->rank, x->nccl);
    x->prog = alloc(a, (size_t)x->role->nprog * sizeof *x->prog);
    for (int i = 0; i < x->role->nprog; i++)
        bind_program(x, i);
    x->stage = take(x, x->nstage, "inputs and results");
    links_warm(x->links, x->work, x->stream);
    return x;
}

void gpu_close(Gpu *x)
{
    dl.cuStreamSynchronize(x->stream);
    nccl_close(x->nccl);
    dl.cuMemFree_v2(x->arena);
    dl.cuMemFree_v2(x->work);
    dl.cuMemFree_v2(x->stage);
    dl.cuDevicePrimaryCtxRelease_v2(x->device);
}

void gpu_pull(Gpu *x)
{
    gpu_ok(dl.cuStreamSynchronize(x->stream), "reading the state");
    gpu_ok(dl.cuMemcpyDtoH_v2(x->host, x->arena, (size_t)x->role->persist),
           "reading the state");
}

void gpu_push(Gpu *x)
{
    gpu_ok(dl.cuStreamSynchronize(x->stream), "writing the state");
    gpu_ok(dl.cuMemcpyHtoD_v2(x->arena, x->host, (size_t)x->role->persist),
           "writing the state");
}
