/* cuda.c: a plan on one GPU, bound once: kernels, products, groups of ranks,
 * links between stages, the arguments of every step. device.c opens the GPU and
 * counts its memory, cuda_graph.c runs programs. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { ALIGN = 256, SHARED = 8, UNTIMED = 2 };
enum { PIECE = 32 << 20, GRAIN = 1 << 20 }; /* bytes */

void gpu_ok(int error, const char *what)
{
    const char *text = "?";

    if (!error)
        return;
    gpu_fault(error);
    dl.cuGetErrorString(error, &text);
    err(NULL, "GPU: %s: %s", what, text);
}

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
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

/* ---- binding ------------------------------------------------------------- */

/* Of a buffer in a frame: as the first micro-batch has it. */
uint64_t gpu_address(const Gpu *x, int buf)
{
    if (buf < 0)
        return 0;
    const Buf *b = &x->role->buf[buf];
    const SlotGroup *f = b->frame && b->prog >= 0
                             ? &x->role->prog[b->prog].frame[b->frame - 1]
                             : NULL;
    return x->arena + (uint64_t)(b->offset + (f ? f->slot[0] : 0));
}

static void bind_kernel(Gpu *x, GpuCall *c)
{
    const Instr *s = c->s;
    int n = s->nbuf + s->nword - 5;

    for (int i = 0; i < 5; i++)
        c->grid[i] = c->iv[i];
    if (c->grid[3] < 0) { /* its blocks take work in turns */
        c->grid[3] = 1;
        c->grid[0] = c->grid[0] < x->cores ? c->grid[0] : x->cores;
    }
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

static void bind(Gpu *x, GpuProgram *g, GpuCall *c, const Instr *s,
                 int64_t turns)
{
    int n = s->nbuf + s->nword + 1;

    c->s = s;
    c->lasts = instr_lasts(x->role, s);
    c->iv = alloc(x->mem, (size_t)(s->nword + 1) * sizeof *c->iv);
    for (int i = 0; i < s->nword; i++)
        c->iv[i] = word_value(x->plan->mesh, &s->word[i], x->rank);
    c->buf = alloc(x->mem, (size_t)n * sizeof *c->buf);
    for (int i = 0; i < s->nbuf; i++)
        c->buf[i] = gpu_address(x, s->buf[i]);
    if (s->nbuf && s->buf[0] >= 0)
        c->bytes = x->role->buf[s->buf[0]].bytes;
    switch (s->kind) {
    case Ikernel: bind_kernel(x, c); return;
    case Igemm: c->lt = lt_bind(x->lt, &s->gemm, c->buf); return;
    case Izero:
    case Icopy:
    case Ijoin: return;
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall:
    case Ippermute: bind_group(x, c); return;
    case Isend:
    case Irecv:
    case Iwait: c->end = link_bind(x->links, g->p->kind, s, turns); return;
    default:
        err(&(Loc){ s->file, s->line, NULL },
            "instruction %s does not run on a GPU", instr_info(s->kind)->name);
    }
}

static void bind_phase(Gpu *x, GpuProgram *g, int f)
{
    const Phase *p = &g->p->phase[f];

    for (int k = p->first; k < p->first + p->n; k++) {
        const Instr *s = &g->p->instr[k];
        bind(x, g, &g->call[k], s, phase_turns(g->p, f));
        for (int i = 0; i < s->nbuf; i++) {
            const Buf *b = s->buf[i] < 0 ? NULL : &x->role->buf[s->buf[i]];
            if (b && b->frame && &x->role->prog[b->prog] == g->p)
                vec_push(x->mem, g->patch[f],
                         ((GpuPatch){ &g->call[k].buf[i], b->offset,
                                      b->frame - 1 }));
        }
    }
}

/* A turn: the scalar `micro`, then the inputs. */
static void bind_inputs(Gpu *x, GpuProgram *g)
{
    const Role *r = x->role;

    g->scalars = aligned(8 * (r->nin + 1));
    g->perturn = aligned(8);
    for (int i = 0; i < r->ntensor; i++) {
        if (strcmp(r->tensor[i].kind, "input"))
            continue;
        vec_push(x->mem, g->input, ((GpuInput){ i, g->perturn }));
        g->perturn += aligned(r->buf[r->tensor[i].buf].bytes);
    }
    g->micro = -1;
    for (int i = 0; i < r->nin; i++)
        if (!strcmp(r->in[i].name, "micro"))
            g->micro = i;
}

static void bind_program(Gpu *x, int k)
{
    GpuProgram *g = &x->prog[k];
    const Role *r = x->role;

    g->p = &r->prog[k];
    g->course = &x->course[k];
    g->turns = plan_turns(x->plan, g->p->kind);
    bind_inputs(x, g);
    g->nin = g->scalars + g->turns * g->perturn;
    g->nout = aligned(8 * (r->nout + 1));
    for (int i = 0; i < 2; i++) {
        g->in[i] = gpu_pinned(x, g->nin);
        g->out[i] = gpu_pinned(x, g->nout);
        gpu_ok(dl.cuEventCreate(&g->done[i], UNTIMED), "an event");
    }
    if (x->nstage < g->nin + g->nout)
        x->nstage = g->nin + g->nout;
    g->call = alloc(x->mem, (size_t)(g->p->ninstr + 1) * sizeof *g->call);
    g->patch = alloc(x->mem, (size_t)(g->p->nphase + 1) * sizeof *g->patch);
    for (int f = 0; f < g->p->nphase; f++)
        bind_phase(x, g, f);
}

/* ---- interface ----------------------------------------------------------- */

Gpu *gpu_open(Arena *a, const Plan *p, Comm *c, Pool *pool, uint8_t *host,
              const UnrolledProgram *course)
{
    Gpu *x = alloc(a, sizeof *x);
    const char *sums = opts_str(p->opts, "deterministic");

    if (c->n > 1)
        err(NULL, "a plan for %lld GPUs runs under mpirun, one rank a GPU",
            (long long)c->world);
    if (sums && !strcmp(sums, "placement") && c->world > 1)
        err(opts_loc(p->opts, "deterministic"),
            "deterministic=placement needs "
            "sums in rank order; on several GPUs NCCL chooses the order "
            "(target=host keeps it)");
    *x = (Gpu){ .mem = a,
                .plan = p,
                .comm = c,
                .rank = c->first,
                .host = host,
                .pool = pool,
                .course = course,
                .each = getenv("PLEAT_SYNC") != NULL };
    x->role = &p->role[role_of(p, x->rank)];
    device_open(x);
    x->arena = device_take(x, x->role->arena, "the plan");
    x->work = device_take(x, LTWORK, "work space of products");
    load_kernels(x);
    device_count(x, "kernels");
    start_phase("products");
    x->lt = lt_open(a, x->work);
    start_phase("communicators");
    x->nccl = nccl_open(a, p, c);
    x->links = links_open(a, p, x->rank, x->nccl);
    device_count(x, "communicators");
    start_phase("binding");
    x->prog = alloc(a, (size_t)x->role->nprog * sizeof *x->prog);
    for (int i = 0; i < x->role->nprog; i++)
        bind_program(x, i);
    trail_open(x);
    tune(x);
    device_count(x, "products");
    x->stage = device_take(x, x->nstage + ALIGN, "inputs and results");
    x->hold = x->stage + (uint64_t)x->nstage;
    abort_watch(x);
    abort_hold();
    watch_all();
    links_warm(x->links, x->work, x->stream);
    watch_leave();
    abort_release();
    device_count(x, "communicators");
    return x;
}

void gpu_close(Gpu *x)
{
    dl.cuStreamSynchronize(x->stream);
    abort_watch(NULL);
    for (int i = 0; i < x->role->nprog; i++) /* they hold communicators */
        replay_close(&x->prog[i]);
    nccl_close(x->nccl);
    dl.cuMemFree_v2(x->arena);
    dl.cuMemFree_v2(x->work);
    dl.cuMemFree_v2(x->stage);
    for (int i = 0; i < x->role->nprog; i++)
        for (int k = 0; k < 2; k++) {
            dl.cuMemFreeHost(x->prog[i].in[k]);
            dl.cuMemFreeHost(x->prog[i].out[k]);
        }
    dl.cuDevicePrimaryCtxRelease_v2(x->device);
}

/* ---- what lasts, between the GPU and its mirror -------------------------- */

typedef struct Carried {
    uint8_t *to;
    const uint8_t *from;
} Carried;

static void copy_piece(void *ctx, int64_t lo, int64_t hi)
{
    const Carried *p = ctx;

    memcpy(p->to + lo, p->from + lo, (size_t)(hi - lo));
}

static int64_t piece_bytes(const Gpu *x, int64_t at)
{
    int64_t left = x->role->persist - at;

    return left < PIECE ? left : PIECE;
}

/* Through two pinned blocks: one is copied by all threads while the other is
 * on its way. */
static void pull_pieces(Gpu *x, uint8_t *const block[2], void *const there[2])
{
    for (int64_t at = 0, i = 0; at < x->role->persist + PIECE;
         at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(x, at), before = at - PIECE;
        if (n > 0) {
            gpu_ok(dl.cuMemcpyDtoHAsync_v2(block[i], x->arena + (uint64_t)at,
                                           (size_t)n, x->stream),
                   "reading the state");
            gpu_ok(dl.cuEventRecord(there[i], x->stream), "an event");
        }
        if (before < 0)
            continue;
        gpu_ok(dl.cuEventSynchronize(there[i ^ 1]), "reading the state");
        pool_run(x->pool, copy_piece,
                 &(Carried){ x->host + before, block[i ^ 1] },
                 piece_bytes(x, before), GRAIN);
    }
}

static void push_pieces(Gpu *x, uint8_t *const block[2], void *const there[2])
{
    for (int64_t at = 0, i = 0; at < x->role->persist; at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(x, at);
        if (at >= 2 * PIECE)
            gpu_ok(dl.cuEventSynchronize(there[i]), "writing the state");
        pool_run(x->pool, copy_piece, &(Carried){ block[i], x->host + at }, n,
                 GRAIN);
        gpu_ok(dl.cuMemcpyHtoDAsync_v2(x->arena + (uint64_t)at, block[i],
                                       (size_t)n, x->stream),
               "writing the state");
        gpu_ok(dl.cuEventRecord(there[i], x->stream), "an event");
    }
}

static void move(Gpu *x, void f(Gpu *, uint8_t *const *, void *const *))
{
    uint8_t *block[2];
    void *there[2];

    for (int i = 0; i < 2; i++) {
        block[i] = gpu_pinned(x, PIECE);
        gpu_ok(dl.cuEventCreate(&there[i], UNTIMED), "an event");
    }
    f(x, block, there);
    gpu_ok(dl.cuStreamSynchronize(x->stream), "moving the state");
    for (int i = 0; i < 2; i++) {
        dl.cuMemFreeHost(block[i]);
        dl.cuEventDestroy_v2(there[i]);
    }
    x->pinned -= 2 * PIECE;
}

void gpu_pull(Gpu *x)
{
    move(x, pull_pieces);
}

void gpu_push(Gpu *x)
{
    gpu_order(x, NULL);
    move(x, push_pieces);
}

void gpu_fetch(Gpu *x, void *to, int64_t offset, int64_t bytes)
{
    gpu_ok(dl.cuStreamSynchronize(x->stream), "looking at a result");
    gpu_ok(dl.cuMemcpyDtoH_v2(to, x->arena + (uint64_t)offset, (size_t)bytes),
           "looking at a result");
}
