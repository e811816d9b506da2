/* snapshot.c: a copy of what this process writes of a checkpoint, in the host's
 * memory, so that training goes on while it is written. It is taken between two
 * updates: a step's forward and backward only read what lasts, so they run
 * meanwhile, and the first step of a program that writes it waits.
 *
 * Its room is planned when the run starts, for all processes of a host
 * together: train.snapshot says how much there is, or else what is free.
 * Without room for all there is none for anybody, and saves wait. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ckpt.h"

enum {
    HUGE_PAGE = 2 << 20,
    PAGE = 4096,
    GRAIN = 1 << 20,
    SPARE = 16,
    PAUSE = 200000
};

struct Snapshot {
    Exec *x;
    Extent **range; /* by rank here: vec */
    int64_t *at;    /* by rank here: where its part begins */
    int64_t bytes;
    uint8_t *mem;
    void *behind; /* event: what a copy is behind */
};

/* ---- how large ----------------------------------------------------------- */

static int64_t copied_bytes(const Extent *v)
{
    size_t n = vec_len(v);

    return n ? (v[n - 1].to + v[n - 1].bytes + PAGE - 1) / PAGE * PAGE : 0;
}

int64_t snapshot_bytes(Arena *a, const Plan *p, int64_t rank)
{
    return copied_bytes(ckpt_ranges(a, p, rank));
}

static int64_t room_bytes(const Snapshot *s)
{
    return s->bytes ? s->bytes : PAGE;
}

int64_t snapshot_size(const Snapshot *s)
{
    return s->bytes;
}

static void plan_ranges(Arena *a, Snapshot *s)
{
    const Comm *c = s->x->comm;

    s->range = alloc(a, (size_t)c->n * sizeof(Extent *));
    s->at = alloc(a, (size_t)c->n * sizeof *s->at);
    for (int64_t i = 0; i < c->n; i++) {
        s->range[i] = ckpt_ranges(a, s->x->plan, c->first + i);
        s->at[i] = s->bytes;
        s->bytes += copied_bytes(s->range[i]);
    }
}

/* ---- how much room ------------------------------------------------------- */

typedef struct Demand {
    int64_t snapshot, steps; /* bytes: of this; that steps have yet to touch */
} Demand;

/* On a device with memory of its own steps take none of the host's. */
static Demand demand_of(const Snapshot *s)
{
    Demand m = { s->bytes, 0 };

    for (int64_t i = 0; i < s->x->comm->n && !exec_apart(s->x); i++) {
        const Role *r = s->x->rank[i].role;
        m.steps += r->arena - r->persist + r->host;
    }
    return m;
}

/* Of all processes of this host. */
static Demand demand_here(Arena *a, const Snapshot *s)
{
    Comm *c = s->x->comm;
    Demand mine = demand_of(s), sum = { 0, 0 }, *all;

    if (c->n == c->world)
        return mine;
    all = alloc(a, (size_t)c->world * sizeof *all);
    comm_gather(c, &mine, all, sizeof mine);
    for (int64_t r = 0; r < c->world; r++)
        if (!strcmp(c->peer[r].host, c->peer[c->first].host)) {
            sum.snapshot += all[r].snapshot;
            sum.steps += all[r].steps;
        }
    return sum;
}

/* What it is allowed to take, or can, less what steps need and some spare. */
static int64_t room_for(const Exec *x, const Demand *m)
{
    const char *given = opts_str(x->plan->opts, "train.snapshot");
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * PAGE;

    if (given)
        return (int64_t)(opts_num(x->plan->opts, "train.snapshot") * 0x1p30);
    return host_free() - m->steps - all / SPARE;
}

/* ---- opening ------------------------------------------------------------- */

static void touch(void *ctx, int64_t lo, int64_t hi)
{
    memset((uint8_t *)ctx + lo, 0, (size_t)(hi - lo));
}

/* Touched now, so that no save pays for its pages; some devices want them to
 * stay. 0: there is no room after all. */
static int take_room(Snapshot *s)
{
    size_t n = (size_t)room_bytes(s);
    void *p = NULL;

    if (posix_memalign(&p, n < HUGE_PAGE ? PAGE : HUGE_PAGE, n))
        return 0;
    s->mem = p;
    madvise(p, n, MADV_HUGEPAGE);
    pool_run(s->x->pool, touch, p, (int64_t)n, GRAIN);
    if (!exec_apart(s->x) || s->x->dev->pin(s->x->on, p, (int64_t)n))
        return 1;
    free(p);
    s->mem = NULL;
    return 0;
}

/* A line: so many bytes are needed, there is room for so many; were they given
 * on all hosts? */
static void say_room(Text *out, int64_t need, int64_t room, int given)
{
    const char *gib = gib_text(out->arena, need, room);

    if (given) {
        put(out,
            "checkpoints: written beside training from %s GiB of this host's "
            "memory\n",
            gib);
        return;
    }
    put(out,
        "checkpoints: training waits for each; beside training they need %s "
        "GiB of this host's memory, ",
        gib);
    if (need > room)
        put(out, "and there are %s GiB for it\n",
            gib_text(out->arena, room > 0 ? room : 0, need));
    else
        put(out, "which are not to be had everywhere\n");
}

/* In a graph the wait for a copy is a node of its own: the graph of a step is
 * the same whether there is a copy or not. */
static void open_copies(Snapshot *s)
{
    Exec *x = s->x;

    s->behind = x->dev->event(x->on, EVENTplain);
    x->copied = x->dev->event(x->on, EVENToutside);
    x->dev->record(x->on, STREAMcopy, x->copied);
}

Snapshot *snapshot_open(Arena *a, Exec *x, Text *out)
{
    Snapshot *s = alloc(a, sizeof *s);

    s->x = x;
    plan_ranges(a, s);
    Demand m = demand_here(a, s);
    int64_t room = room_for(x, &m);
    int given = m.snapshot <= room && take_room(s);
    int all = !comm_max(x->comm, !given);
    say_room(out, m.snapshot, room, all);
    if (all && exec_apart(x))
        open_copies(s);
    if (all)
        return s;
    snapshot_close(s);
    return NULL;
}

void snapshot_close(Snapshot *s)
{
    if (!s || !s->mem)
        return;
    Exec *x = s->x;
    if (x->copied)
        x->dev->sync(x->on, STREAMcopy);
    x->copied = NULL; /* the event stays: graphs may name it */
    if (exec_apart(x))
        x->dev->unpin(x->on, s->mem, room_bytes(s));
    free(s->mem);
    s->mem = NULL;
}

/* ---- taking it ----------------------------------------------------------- */

const void *snapshot_of(const Snapshot *s, int64_t rank, const void *p)
{
    int64_t i = rank - s->x->comm->first;
    const Rank *r = &s->x->rank[i];
    int64_t at = rank_hosts(r, p) ? HOSTSPACE + ((const uint8_t *)p - r->host)
                                  : (const uint8_t *)p - r->arena;
    const Extent *v = s->range[i];

    for (size_t k = 0; k < vec_len(v); k++)
        if (at >= v[k].at && at < v[k].at + v[k].bytes)
            return s->mem + s->at[i] + v[k].to + (at - v[k].at);
    die("snapshot: byte %lld of rank %lld is not in it", (long long)at,
        (long long)rank);
}

/* A device with memory of its own copies what it has by itself, behind what was
 * launched, and its own next writer of what lasts waits for that. */
void snapshot_start(Snapshot *s)
{
    Exec *x = s->x;
    const Extent *v = s->range[0];

    if (!exec_apart(x))
        return;
    x->dev->record(x->on, STREAMcompute, s->behind);
    x->dev->wait(x->on, STREAMcopy, s->behind);
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i].at < HOSTSPACE)
            x->dev->copy(x->on, STREAMcopy, COPYout, s->mem + v[i].to,
                         x->rank[0].base + v[i].at, v[i].bytes);
    x->dev->record(x->on, STREAMcopy, x->copied);
}

int snapshot_by_threads(const Snapshot *s)
{
    const Extent *v = s->range[0];

    return !exec_apart(s->x) ||
           (vec_len(v) && v[vec_len(v) - 1].at >= HOSTSPACE);
}

int snapshot_wait(Snapshot *s, Pool *pool)
{
    int e = 0;

    while (s->x->copied && (e = s->x->dev->query(s->x->on, s->x->copied)) > 0)
        nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
    for (int64_t i = 0; i < s->x->comm->n && !e; i++)
        for (size_t k = 0; k < vec_len(s->range[i]); k++) {
            const Extent *r = &s->range[i][k];
            if (!exec_apart(s->x) || r->at >= HOSTSPACE)
                pool_copy(pool, s->mem + s->at[i] + r->to,
                          rank_mirror(&s->x->rank[i], r->at), r->bytes);
        }
    return e;
}
