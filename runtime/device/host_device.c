/* host_device.c: the device that is this machine's processors. Buffers of plans
 * lie in the host's memory, several ranks of a plan may live in one process,
 * and an instruction has run when its call returns: streams are one, an event
 * is a time. */
#include <string.h>

#include "host.h"

typedef struct Host {
    Arena *mem;
    const Plan *plan;
    Comm *comm;
    Pool *pool;
    Code *code;
    Blas *blas;
    Channels *channels;
    Shared *shared;         /* the arena that other ranks reach, or null */
    struct HostCall **call; /* vec: of all instructions */
    uint32_t *atoms;        /* vec: of collectives */
    void *work;             /* what instructions without a large enough */
    int64_t nwork;          /*   scratch buffer take turns with */
} Host;

typedef struct HostCall {
    KernelFn *fn;
    void *scratch; /* products, collectives */
    Channel *chan; /* send, wait; recv when its sender is here */
    int64_t need;  /* bytes of work space */
} HostCall;

/* ---- opening ------------------------------------------------------------- */

static int one(void)
{
    return 1;
}

static void *open(const DeviceArgs *a)
{
    Host *h = alloc(a->mem, sizeof *h);

    *h = (Host){ .mem = a->mem,
                 .plan = a->plan,
                 .comm = a->comm,
                 .pool = a->pool,
                 .channels = channels_new(a->mem, a->comm) };
    return h;
}

static void load(void *d)
{
    Host *h = d;

    h->code = host_load(h->mem, h->plan);
    h->blas = blas_open(h->mem, h->pool);
}

/* Its own scratch buffer, if that is enough. */
static void bind_scratch(const Host *h, const BoundInstr *b, HostCall *c)
{
    const Role *r = &h->plan->role[role_of(h->plan, b->rank)];
    int last = b->s->nbuf ? b->s->buf[b->s->nbuf - 1] : -1;

    c->need = instr_work(b->s, b->group);
    if (last >= 0 && r->buf[last].bytes >= c->need && !r->buf[last].frame)
        c->scratch = b->buf[b->s->nbuf - 1];
}

static void bind(void *d, BoundInstr *b, const Program *g, int64_t runs)
{
    Host *h = d;
    HostCall *c = alloc(h->mem, sizeof *c);

    (void)g;
    b->own = c;
    vec_push(h->mem, h->call, c);
    switch (instr_info(b->s->kind)->cls) {
    case CLASScompute: c->fn = host_kernel(h->code, b->s->kernel); break;
    case CLASStransfer: c->chan = channel_bind(h->channels, b, runs); break;
    case CLASSproduct: bind_scratch(h, b, c); break;
    case CLASScollective:
        vec_push(h->mem, h->atoms, b->s->atoms);
        if (h->comm->n < h->comm->world)
            bind_scratch(h, b, c);
        break;
    case CLASSmemory: break;
    }
}

static void bound(void *d)
{
    Host *h = d;

    for (size_t i = 0; i < vec_len(h->call); i++)
        if (!h->call[i]->scratch && h->call[i]->need > h->nwork)
            h->nwork = h->call[i]->need;
    if (h->nwork)
        h->work = poison_pages(pages(h->nwork, "work space"), h->nwork);
    for (size_t i = 0; i < vec_len(h->call); i++)
        if (!h->call[i]->scratch)
            h->call[i]->scratch = h->work;
    comm_groups(h->comm, h->mem, h->plan->mesh, h->atoms,
                (int)vec_len(h->atoms));
    channels_open(h->channels);
    blas_reserve(h->pool);
}

static void close(void *d)
{
    Host *h = d;

    drop_pages(h->work, h->nwork);
}

/* ---- memory -------------------------------------------------------------- */

static void *take(void *d, ArenaKind k, int64_t bytes, const char *what)
{
    Host *h = d;

    if (k != ARENApeer || h->comm->n == h->comm->world)
        return pages(bytes, what);
    h->shared = comm_shared(h->comm, h->mem, bytes, what);
    return comm_own(h->shared);
}

static void give(void *d, ArenaKind k, void *p, int64_t bytes)
{
    Host *h = d;

    if (k == ARENApeer && h->shared)
        comm_drop_shared(h->comm, h->shared);
    else
        drop_pages(p, bytes);
}

static void **peers(void *d, int64_t bytes, const char *what)
{
    Host *h = d;

    return comm_peers(h->mem, h->comm, bytes, what);
}

static void drop_peers(void *d, void **at, int64_t bytes)
{
    comm_drop_peers(((Host *)d)->comm, at, bytes);
}

/* ---- instructions -------------------------------------------------------- */

static void begin(void *d)
{
    channels_reset(((Host *)d)->channels);
}

static void finish(void *d)
{
    channels_finish(((Host *)d)->channels);
}

static int ready(void *d, const BoundInstr *b)
{
    const HostCall *c = b->own;

    (void)d;
    return !c->chan || channel_ready(c->chan, b);
}

static void call_kernel(void *ctx, int64_t lo, int64_t hi)
{
    const BoundInstr *b = ctx;

    ((HostCall *)b->own)->fn(b->buf, b->iv, lo, hi);
}

static void launch(void *d, const BoundInstr *b)
{
    pool_run(((Host *)d)->pool, call_kernel, (void *)b, b->s->launch.items,
             b->s->launch.grain);
}

static void product(void *d, const BoundInstr *b)
{
    blas_run(((Host *)d)->blas, b->s, b->buf, ((HostCall *)b->own)->scratch);
}

static void transfer(void *d, const BoundInstr *b)
{
    (void)d;
    channel_run(((HostCall *)b->own)->chan, b);
}

static void collective(void *d, const BoundInstr *b, const Part *part)
{
    Host *h = d;

    comm_run(h->comm, h->pool,
             &(Coll){ b->s, b->group, b->ranks, part, b->me,
                      ((HostCall *)b->own)->scratch, NULL, h->shared });
}

static void clear(void *d, StreamKind on, void *p, int64_t bytes)
{
    (void)d, (void)on;
    memset(p, 0, (size_t)bytes);
}

static void copy(void *d, StreamKind on, CopyKind k, void *to, const void *from,
                 int64_t bytes)
{
    (void)d, (void)on, (void)k;
    memcpy(to, from, (size_t)bytes);
}

/* ---- time ---------------------------------------------------------------- */

static void *event(void *d, EventKind k)
{
    (void)k;
    return alloc(((Host *)d)->mem, sizeof(double));
}

static void record(void *d, StreamKind on, void *e)
{
    (void)d, (void)on;
    *(double *)e = monotonic();
}

static void wait(void *d, StreamKind on, void *e)
{
    (void)d, (void)on, (void)e;
}

static int query(void *d, void *e)
{
    (void)d, (void)e;
    return 0;
}

static void sync(void *d, StreamKind on)
{
    (void)d, (void)on;
}

static double between(void *d, void *from, void *to)
{
    (void)d;
    return *(double *)to - *(double *)from;
}

/* ---- what is said of it -------------------------------------------------- */

static int64_t memory(const void *d)
{
    (void)d;
    return host_memory();
}

static int64_t usage(void *d, Text *t)
{
    (void)t;
    return ((Host *)d)->nwork;
}

static Roofline peak(void *d, Dtype dt)
{
    const Host *h = d;

    return host_peak(h->blas, h->pool, dt);
}

static void tuned(const void *d, Text *t)
{
    (void)d;
    put(t, "compiler %s\nblas %s\n", host_compiler(), blas_kind());
}

const Device host_device = {
    /* clang-format off */
    .name = "host", .can = CANrun | CANranks | CANorder, .count = one,
    .open = open, .load = load, .bind = bind, .bound = bound, .close = close,
    .alloc = take, .free = give, .peers = peers, .drop_peers = drop_peers,
    .clear = clear, .copy = copy,
    .begin = begin, .finish = finish, .ready = ready, .launch = launch,
    .product = product, .transfer = transfer, .collective = collective,
    .event = event, .record = record, .wait = wait, .query = query,
    .sync = sync, .between = between,
    .memory = memory, .usage = usage, .peak = peak, .tuned = tuned
    /* clang-format on */
};
