/* host_device.c: the device that is this machine's processors. Buffers of plans
 * lie in the host's memory, several ranks of a plan may live in one process,
 * and an instruction has run when its call returns: streams are one, an event
 * is a time. Under MPI a collective of another stream than compute is only
 * begun, and ended when its event is waited for, or its stream goes on. */
#include <stdatomic.h>
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
    void *apart;            /* the same of collectives beside others */
    int64_t napart;
    const Instr *_Atomic ending; /* a collective that is waited for */
    struct Beside {              /* the last collective beside compute */
        int64_t n;               /* which it is, from 1 */
        int64_t done;            /* of them are at their end */
        StreamKind on;
        Coll k;
        Part part;
        UnderWay way;
    } beside;
} Host;

typedef struct HostEvent {
    double at;
    int64_t behind; /* collectives beside compute */
} HostEvent;

typedef struct HostCall {
    KernelFn *fn;
    void *scratch; /* products, collectives */
    Channel *chan; /* send, wait; recv when its sender is here */
    int64_t need;  /* bytes of work space */
    int beside;    /* a collective of another stream than compute */
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
    int last = b->instr->nbuf ? b->instr->buf[b->instr->nbuf - 1] : -1;

    c->need = instr_work(b->instr, b->group);
    if (last >= 0 && r->buf[last].bytes >= c->need && !r->buf[last].frame)
        c->scratch = b->buf[b->instr->nbuf - 1];
}

static void bind(void *d, BoundInstr *b, const Program *prog, int64_t runs)
{
    Host *h = d;
    HostCall *c = alloc(h->mem, sizeof *c);

    (void)prog;
    b->own = c;
    vec_push(h->mem, h->call, c);
    switch (instr_info(b->instr->kind)->cls) {
    case CLASScompute: c->fn = host_kernel(h->code, b->instr->kernel); break;
    case CLASStransfer: c->chan = channel_bind(h->channels, b, runs); break;
    case CLASSproduct: bind_scratch(h, b, c); break;
    case CLASScollective:
        vec_push(h->mem, h->atoms, b->instr->atoms);
        c->beside = b->on != STREAMcompute;
        if (h->comm->n < h->comm->world)
            bind_scratch(h, b, c);
        break;
    case CLASSmemory: break;
    }
}

/* Of those that have none: calls beside compute, or the others. */
static void share_work(Host *h, int beside, void **work, int64_t *bytes)
{
    for (size_t i = 0; i < vec_len(h->call); i++) {
        const HostCall *c = h->call[i];
        if (c->beside == beside && !c->scratch && c->need > *bytes)
            *bytes = c->need;
    }
    if (*bytes)
        *work = poison_pages(pages(*bytes, "work space"), *bytes);
    for (size_t i = 0; i < vec_len(h->call); i++)
        if (h->call[i]->beside == beside && !h->call[i]->scratch)
            h->call[i]->scratch = *work;
}

static void bound(void *d)
{
    Host *h = d;

    share_work(h, 0, &h->work, &h->nwork);
    share_work(h, 1, &h->apart, &h->napart);
    comm_groups(h->comm, h->mem, h->plan->mesh, h->atoms,
                (int)vec_len(h->atoms));
    channels_open(h->channels);
    blas_reserve(h->pool);
}

static void close(void *d)
{
    Host *h = d;

    drop_pages(h->work, h->nwork);
    drop_pages(h->apart, h->napart);
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

static void end_beside(Host *h)
{
    struct Beside *b = &h->beside;

    if (b->done == b->n)
        return;
    b->done = b->n;
    atomic_store(&h->ending, b->k.instr);
    comm_end(h->pool, &b->k, &b->way);
    atomic_store(&h->ending, NULL);
}

/* For the watchdog: which collective, not which instruction comes after it. */
static const Instr *where(const void *d, int *ended)
{
    *ended = 0;
    return atomic_load(&((const Host *)d)->ending);
}

/* An instruction of this stream goes on. */
static Host *follow(void *d, StreamKind on)
{
    Host *h = d;

    if (on != STREAMcompute && on == h->beside.on)
        end_beside(h);
    return h;
}

static void finish(void *d)
{
    Host *h = d;

    end_beside(h);
    channels_finish(h->channels);
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
    pool_run(follow(d, b->on)->pool, call_kernel, (void *)b,
             b->instr->launch.items, b->instr->launch.grain);
}

static void product(void *d, const BoundInstr *b)
{
    blas_run(follow(d, b->on)->blas, b->instr, b->buf,
             ((HostCall *)b->own)->scratch);
}

static void transfer(void *d, const BoundInstr *b)
{
    follow(d, b->on);
    channel_run(((HostCall *)b->own)->chan, b);
}

static void collective(void *d, const BoundInstr *b, const Part *part)
{
    Host *h = d;
    struct Beside *x = &h->beside;
    HostCall *c = b->own;
    Coll k = { .instr = b->instr,
               .size = b->group,
               .ranks = b->ranks,
               .part = part,
               .me = b->me,
               .stage = c->scratch,
               .shared = h->shared };

    end_beside(h);
    if (!c->beside || h->comm->n == h->comm->world) {
        comm_run(h->comm, h->pool, &k);
        return;
    }
    x->n++;
    x->on = b->on;
    x->k = k;
    x->part = *part;
    x->k.part = &x->part;
    comm_begin(h->comm, h->pool, &x->k, &x->way);
}

static void clear(void *d, StreamKind on, void *p, int64_t bytes)
{
    follow(d, on);
    memset(p, 0, (size_t)bytes);
}

static void copy(void *d, StreamKind on, CopyKind k, void *to, const void *from,
                 int64_t bytes)
{
    (void)k;
    follow(d, on);
    memcpy(to, from, (size_t)bytes);
}

/* ---- time ---------------------------------------------------------------- */

static void *event(void *d, EventKind k)
{
    (void)k;
    return alloc(((Host *)d)->mem, sizeof(HostEvent));
}

static void record(void *d, StreamKind on, void *e)
{
    const Host *h = d;

    *(HostEvent *)e =
        (HostEvent){ monotonic(),
                     on == STREAMcompute ? h->beside.done : h->beside.n };
}

static void wait(void *d, StreamKind on, void *e)
{
    Host *h = d;

    (void)on;
    if (((HostEvent *)e)->behind > h->beside.done)
        end_beside(h);
}

static int query(void *d, void *e)
{
    (void)d, (void)e;
    return 0;
}

static void sync(void *d, StreamKind on)
{
    (void)on;
    end_beside(d);
}

static double between(void *d, void *from, void *to)
{
    (void)d;
    return ((HostEvent *)to)->at - ((HostEvent *)from)->at;
}

/* ---- what is said of it -------------------------------------------------- */

static const char *chip(const void *d)
{
    (void)d;
    return host_processor(forever);
}

static int64_t memory(const void *d)
{
    (void)d;
    return host_memory();
}

static int64_t usage(void *d, Text *out)
{
    (void)out;
    return ((Host *)d)->nwork + ((Host *)d)->napart;
}

static Roofline peak(void *d, Dtype dt)
{
    const Host *h = d;

    return host_peak(h->blas, h->pool, dt);
}

static void tuned(const void *d, Text *out)
{
    (void)d;
    put(out, "compiler %s\nblas %s\n", host_compiler(), blas_kind());
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
    .where = where, .chip = chip, .memory = memory, .usage = usage, .peak = peak,
    .tuned = tuned
    /* clang-format on */
};
