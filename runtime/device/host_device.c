/* host_device.c: the device "host", this machine's processors. Buffers are in
 * host memory, several ranks of a plan may share a process, and an instruction
 * has run when its call returns: there is one stream, and an event is a time.
 * Under MPI a collective on another stream than compute is only started; it is
 * completed when its event is waited for or its stream continues. */
#include "host.h"

typedef struct Host {
    Arena *mem;
    const Plan *plan;
    Comm *comm;
    Pool *pool;
    Code *code;
    Blas *blas;
    Channels *channels;
    Shared *shared;         /* the arena that other ranks access, or null */
    struct HostCall **call; /* vec: all instructions */
    uint32_t *atoms;        /* vec: atoms of collectives */
    void *work;             /* workspace shared by instructions without a */
    int64_t nwork;          /*   large enough scratch buffer; its bytes */
    void *apart;            /* workspace shared by overlapped collectives */
    int64_t napart;
    const Instr *_Atomic ending; /* collective that is waited for */
    struct Beside {              /* the last overlapped collective */
        int64_t n;               /* its number, counted from 1 */
        int64_t done;            /* number of completed ones */
        StreamKind on;
        Coll k;
        Part part;
        UnderWay way;
    } beside;
} Host;

typedef struct HostEvent {
    double at;
    int64_t behind; /* overlapped collectives started before it */
} HostEvent;

typedef struct HostCall {
    KernelFn *fn;
    void *scratch; /* products, collectives */
    Channel *chan; /* send, wait; recv from a sender in this process */
    int64_t need;  /* bytes of workspace */
    int beside;    /* is it a collective of another stream than compute? */
} HostCall;

/* ---- opening ------------------------------------------------------------- */

static int one(void)
{
    return 1;
}

static void *open_host(const DeviceArgs *args)
{
    Host *h = alloc(args->mem, sizeof *h);

    *h = (Host){ .mem = args->mem,
                 .plan = args->plan,
                 .comm = args->comm,
                 .pool = args->pool,
                 .channels = channels_new(args->mem, args->comm) };
    return h;
}

static void load(void *d)
{
    Host *host = d;

    host->code = host_load(host->mem, host->plan);
    host->blas = blas_open(host->mem, host->pool);
}

/* Uses the instruction's scratch buffer as workspace if it is large enough. */
static void bind_scratch(const Host *host, const BoundInstr *bound,
                         HostCall *call)
{
    const Role *r = &host->plan->role[role_of(host->plan, bound->rank)];
    int last =
        bound->instr->nbuf ? bound->instr->buf[bound->instr->nbuf - 1] : -1;

    call->need = instr_work(bound->instr, bound->group);
    if (last >= 0 && r->buf[last].bytes >= call->need && !r->buf[last].frame)
        call->scratch = bound->buf[bound->instr->nbuf - 1];
}

static void bind(void *d, BoundInstr *bound, const Program *prog, int64_t runs)
{
    Host *host = d;
    HostCall *c = alloc(host->mem, sizeof *c);

    (void)prog;
    bound->own = c;
    vec_push(host->mem, host->call, c);
    switch (instr_info(bound->instr->kind)->cls) {
    case CLASScompute:
        c->fn = host_kernel(host->code, bound->instr->kernel);
        break;
    case CLASStransfer:
        c->chan = channel_bind(host->channels, bound, runs);
        break;
    case CLASSproduct: bind_scratch(host, bound, c); break;
    case CLASScollective:
        vec_push(host->mem, host->atoms, bound->instr->atoms);
        c->beside = bound->on != STREAMcompute;
        if (host->comm->n < host->comm->world)
            bind_scratch(host, bound, c);
        break;
    case CLASSmemory: break;
    }
}

/* Allocates one workspace for the instructions without one: overlapped
 * collectives, or all others. */
static void share_work(Host *host, int beside, void **work, int64_t *bytes)
{
    for (size_t i = 0; i < vec_len(host->call); i++) {
        const HostCall *call = host->call[i];
        if (call->beside == beside && !call->scratch && call->need > *bytes)
            *bytes = call->need;
    }
    if (*bytes)
        *work = poison_pages(pages(*bytes, "work space"), *bytes);
    for (size_t i = 0; i < vec_len(host->call); i++)
        if (host->call[i]->beside == beside && !host->call[i]->scratch)
            host->call[i]->scratch = *work;
}

static void bound(void *d)
{
    Host *host = d;

    share_work(host, 0, &host->work, &host->nwork);
    share_work(host, 1, &host->apart, &host->napart);
    comm_groups(host->comm, host->mem, host->plan->mesh, host->atoms,
                (int)vec_len(host->atoms));
    channels_open(host->channels);
    blas_reserve(host->pool);
}

static void close_host(void *d)
{
    Host *host = d;

    drop_pages(host->work, host->nwork);
    drop_pages(host->apart, host->napart);
}

/* ---- memory -------------------------------------------------------------- */

static void *take(void *d, ArenaKind k, int64_t bytes, MemoryUse use)
{
    const char *what = memory_uses[use];
    Host *host = d;

    if (k != ARENApeer || host->comm->n == host->comm->world)
        return pages(bytes, what);
    host->shared = comm_shared(host->comm, host->mem, bytes, what);
    return comm_own(host->shared);
}

static void give(void *d, ArenaKind k, void *p, int64_t bytes)
{
    Host *host = d;

    if (k == ARENApeer && host->shared)
        comm_drop_shared(host->comm, host->shared);
    else
        drop_pages(p, bytes);
}

static void **peers(void *d, int64_t bytes, MemoryUse use)
{
    Host *host = d;

    return comm_peers(host->mem, host->comm, bytes, memory_uses[use]);
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

static void end_beside(Host *host)
{
    struct Beside *b = &host->beside;

    if (b->done == b->n)
        return;
    b->done = b->n;
    atomic_store(&host->ending, b->k.instr);
    comm_end(host->pool, &b->k, &b->way);
    atomic_store(&host->ending, NULL);
}

/* Device.where: the pending collective, not the instruction after it. */
static const Instr *where(const void *d, int *ended)
{
    *ended = 0;
    return atomic_load(&((const Host *)d)->ending);
}

/* Completes the pending collective before an instruction of its stream. */
static Host *follow(void *d, StreamKind on)
{
    Host *h = d;

    if (on != STREAMcompute && on == h->beside.on)
        end_beside(h);
    return h;
}

static void finish(void *d)
{
    Host *host = d;

    end_beside(host);
    channels_finish(host->channels);
}

static int ready(void *d, const BoundInstr *bound)
{
    const HostCall *call = bound->own;

    (void)d;
    return !call->chan || channel_ready(call->chan, bound);
}

static void call_kernel(void *ctx, int64_t lo, int64_t hi)
{
    const BoundInstr *bound = ctx;

    ((HostCall *)bound->own)->fn(bound->buf, bound->iv, lo, hi);
}

static void launch(void *d, const BoundInstr *bound)
{
    pool_run(follow(d, bound->on)->pool, call_kernel, (void *)bound,
             bound->instr->launch.items, bound->instr->launch.grain);
}

static void product(void *d, const BoundInstr *bound)
{
    Instr now = *bound->instr;

    if (!bound->adds)
        instr_store(&now);
    blas_run(follow(d, bound->on)->blas, &now, bound->buf,
             ((HostCall *)bound->own)->scratch);
}

static void transfer(void *d, const BoundInstr *bound)
{
    follow(d, bound->on);
    channel_run(((HostCall *)bound->own)->chan, bound);
}

static void collective(void *d, const BoundInstr *bound, const Part *part)
{
    Host *host = d;
    struct Beside *x = &host->beside;
    HostCall *call = bound->own;
    Coll k = { .instr = bound->instr,
               .size = bound->group,
               .ranks = bound->ranks,
               .part = part,
               .me = bound->me,
               .stage = call->scratch,
               .shared = host->shared };

    end_beside(host);
    if (!call->beside || host->comm->n == host->comm->world) {
        comm_run(host->comm, host->pool, &k);
        return;
    }
    x->n++;
    x->on = bound->on;
    x->k = k;
    x->part = *part;
    x->k.part = &x->part;
    comm_begin(host->comm, host->pool, &x->k, &x->way);
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
    const Host *host = d;

    *(HostEvent *)e =
        (HostEvent){ monotonic(),
                     on == STREAMcompute ? host->beside.done : host->beside.n };
}

static void wait(void *d, StreamKind on, void *e)
{
    Host *host = d;

    (void)on;
    if (((HostEvent *)e)->behind > host->beside.done)
        end_beside(host);
}

static int query(void *d, void *e)
{
    (void)d, (void)e;
    return 0;
}

static void sync_host(void *d, StreamKind on)
{
    (void)on;
    end_beside(d);
}

static double between(void *d, void *from, void *to)
{
    (void)d;
    return ((HostEvent *)to)->at - ((HostEvent *)from)->at;
}

/* ---- description --------------------------------------------------------- */

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
    const Host *host = d;

    return host_peak(host->blas, host->pool, dt);
}

static void tuned(const void *d, Text *out)
{
    (void)d;
    put(out, "compiler %s\nblas %s\n", host_compiler(), blas_kind());
}

const Device host_device = {
    /* clang-format off */
    .name = "host", .can = CANrun | CANranks | CANorder, .count = one,
    .open = open_host, .load = load, .bind = bind, .bound = bound, .close = close_host,
    .alloc = take, .free = give, .peers = peers, .drop_peers = drop_peers,
    .clear = clear, .copy = copy,
    .begin = begin, .finish = finish, .ready = ready, .launch = launch,
    .product = product, .transfer = transfer, .collective = collective,
    .event = event, .record = record, .wait = wait, .query = query,
    .sync = sync_host, .between = between,
    .where = where, .chip = chip, .memory = memory, .usage = usage, .peak = peak,
    .tuned = tuned
    /* clang-format on */
};
