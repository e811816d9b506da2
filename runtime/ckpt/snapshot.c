/* snapshot.c: a copy in the host's memory of the tensors that this process
 * writes to a checkpoint, so that training continues during the write. The copy
 * is taken between two updates: forward and backward only read persistent
 * tensors, so they run during the copy; the first program that writes
 * persistent tensors waits for it.
 *
 * The memory is reserved when the run starts, for all processes of a host
 * together, within train.snapshot or the free memory. If any process lacks
 * memory, no process has a snapshot and training waits for saves. */
#include <time.h>

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
    Extent **range; /* vec of each local rank */
    int64_t *at;    /* offset of each local rank's part */
    int64_t bytes;
    uint8_t *mem;
    void *behind; /* event that a copy waits for */
};

/* ---- size ---------------------------------------------------------------- */

static int64_t copied_bytes(const Extent *extent)
{
    size_t n = vec_len(extent);

    return n ? (extent[n - 1].to + extent[n - 1].bytes + PAGE - 1) / PAGE * PAGE
             : 0;
}

int64_t snapshot_bytes(Arena *a, const Plan *p, int64_t rank)
{
    return copied_bytes(ckpt_ranges(a, p, rank));
}

static int64_t room_bytes(const Snapshot *snapshot)
{
    return snapshot->bytes ? snapshot->bytes : PAGE;
}

int64_t snapshot_size(const Snapshot *snapshot)
{
    return snapshot->bytes;
}

static void plan_ranges(Arena *a, Snapshot *snapshot)
{
    const Comm *comm = snapshot->x->comm;

    snapshot->range = alloc(a, (size_t)comm->n * sizeof(Extent *));
    snapshot->at = alloc(a, (size_t)comm->n * sizeof *snapshot->at);
    for (int64_t i = 0; i < comm->n; i++) {
        snapshot->range[i] = ckpt_ranges(a, snapshot->x->plan, comm->first + i);
        snapshot->at[i] = snapshot->bytes;
        snapshot->bytes += copied_bytes(snapshot->range[i]);
    }
}

/* ---- available memory ---------------------------------------------------- */

typedef struct Demand {
    int64_t snapshot, steps; /* bytes; steps: not yet touched by steps */
} Demand;

/* Steps on a device with its own memory take none of the host's. */
static Demand demand_of(const Snapshot *snapshot)
{
    Demand m = { snapshot->bytes, 0 };

    for (int64_t i = 0; i < snapshot->x->comm->n && !exec_apart(snapshot->x);
         i++) {
        const Role *role = snapshot->x->rank[i].role;
        m.steps += role->arena - role->persist + role->host;
    }
    return m;
}

/* The sum over all processes of this host. */
static Demand demand_here(Arena *a, const Snapshot *snapshot)
{
    Comm *comm = snapshot->x->comm;
    Demand mine = demand_of(snapshot), sum = { 0, 0 }, *all;

    if (comm->n == comm->world)
        return mine;
    all = alloc(a, (size_t)comm->world * sizeof *all);
    comm_gather(comm, &mine, all, sizeof mine);
    for (int64_t r = 0; r < comm->world; r++)
        if (!strcmp(comm->peer[r].host, comm->peer[comm->first].host)) {
            sum.snapshot += all[r].snapshot;
            sum.steps += all[r].steps;
        }
    return sum;
}

/* Bytes for snapshots: the limit or the free memory, less the demand of steps
 * and a reserve. */
static int64_t room_for(const Exec *exec, const Demand *demand)
{
    const char *given = opts_str(exec->plan->opts, "train.snapshot");
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * PAGE;

    if (given)
        return (int64_t)(opts_num(exec->plan->opts, "train.snapshot") * 0x1p30);
    return host_free() - demand->steps - all / SPARE;
}

/* ---- opening ------------------------------------------------------------- */

static void touch(void *ctx, int64_t lo, int64_t hi)
{
    memset((uint8_t *)ctx + lo, 0, (size_t)(hi - lo));
}

/* Allocates and touches the pages, so that no save pays for page faults; some
 * devices pin them. 0: out of memory. */
static int take_room(Snapshot *snapshot)
{
    size_t n = (size_t)room_bytes(snapshot);
    void *p = NULL;

    if (posix_memalign(&p, n < HUGE_PAGE ? PAGE : HUGE_PAGE, n))
        return 0;
    snapshot->mem = p;
    madvise(p, n, MADV_HUGEPAGE);
    pool_run(snapshot->x->pool, touch, p, (int64_t)n, GRAIN);
    if (!exec_apart(snapshot->x) ||
        snapshot->x->dev->pin(snapshot->x->on, p, (int64_t)n))
        return 1;
    free(p);
    snapshot->mem = NULL;
    return 0;
}

/* A line of bytes needed and available. given: all hosts have the memory. */
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

/* In a CUDA graph the wait for a copy is a node of its own: the graph of a step
 * is the same with and without a copy. */
static void open_copies(Snapshot *snapshot)
{
    Exec *exec = snapshot->x;

    snapshot->behind = exec->dev->event(exec->on, EVENTplain);
    exec->copied = exec->dev->event(exec->on, EVENToutside);
    exec->dev->record(exec->on, STREAMcopy, exec->copied);
}

Snapshot *snapshot_open(Arena *a, Exec *exec, Text *out)
{
    Snapshot *s = alloc(a, sizeof *s);

    s->x = exec;
    plan_ranges(a, s);
    Demand m = demand_here(a, s);
    int64_t room = room_for(exec, &m);
    int given = m.snapshot <= room && take_room(s);
    int all = !comm_max(exec->comm, !given);
    say_room(out, m.snapshot, room, all);
    if (all && exec_apart(exec))
        open_copies(s);
    if (all)
        return s;
    snapshot_close(s);
    return NULL;
}

void snapshot_close(Snapshot *snapshot)
{
    if (!snapshot || !snapshot->mem)
        return;
    Exec *exec = snapshot->x;
    if (exec->copied)
        exec->dev->sync(exec->on, STREAMcopy);
    exec->copied = NULL; /* the event stays: graphs may refer to it */
    if (exec_apart(exec))
        exec->dev->unpin(exec->on, snapshot->mem, room_bytes(snapshot));
    free(snapshot->mem);
    snapshot->mem = NULL;
}

/* ---- copying ------------------------------------------------------------- */

const void *snapshot_of(const Snapshot *snapshot, int64_t rank, const void *p)
{
    int64_t i = rank - snapshot->x->comm->first;
    const Rank *r = &snapshot->x->rank[i];
    int64_t at = rank_hosts(r, p) ? HOSTSPACE + ((const uint8_t *)p - r->host)
                                  : (const uint8_t *)p - r->arena;
    const Extent *extent = snapshot->range[i];

    for (size_t k = 0; k < vec_len(extent); k++)
        if (at >= extent[k].at && at < extent[k].at + extent[k].bytes)
            return snapshot->mem + snapshot->at[i] + extent[k].to +
                   (at - extent[k].at);
    die("snapshot: byte %ld of rank %ld is not in it", at, rank);
}

/* A device with its own memory copies asynchronously after the launched work;
 * its next writer of persistent tensors waits for the copy. */
void snapshot_start(Snapshot *snapshot)
{
    Exec *exec = snapshot->x;
    const Extent *extent = snapshot->range[0];

    if (!exec_apart(exec))
        return;
    exec->dev->record(exec->on, STREAMcompute, snapshot->behind);
    exec->dev->wait(exec->on, STREAMcopy, snapshot->behind);
    for (size_t i = 0; i < vec_len(extent); i++)
        if (extent[i].at < HOSTSPACE)
            exec->dev->copy(exec->on, STREAMcopy, COPYout,
                            snapshot->mem + extent[i].to,
                            exec->rank[0].base + extent[i].at, extent[i].bytes);
    exec->dev->record(exec->on, STREAMcopy, exec->copied);
}

int snapshot_by_threads(const Snapshot *snapshot)
{
    const Extent *extent = snapshot->range[0];

    return !exec_apart(snapshot->x) ||
           (vec_len(extent) && extent[vec_len(extent) - 1].at >= HOSTSPACE);
}

int snapshot_wait(Snapshot *snapshot, Pool *pool)
{
    int e = 0;

    while (snapshot->x->copied &&
           (e = snapshot->x->dev->query(snapshot->x->on, snapshot->x->copied)) >
               0)
        nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
    for (int64_t i = 0; i < snapshot->x->comm->n && !e; i++)
        for (size_t k = 0; k < vec_len(snapshot->range[i]); k++) {
            const Extent *extent = &snapshot->range[i][k];
            if (!exec_apart(snapshot->x) || extent->at >= HOSTSPACE)
                pool_copy(pool, snapshot->mem + snapshot->at[i] + extent->to,
                          rank_mirror(&snapshot->x->rank[i], extent->at),
                          extent->bytes);
        }
    return e;
}
