/* host_update.c: chooses optimizer updates that run on the host's processors,
 * beside their offloaded states. An update on the device copies masters and
 * moments in and out; an update on the host copies the gradient out and the new
 * parameter in, and its processors access the states in host memory:
 *
 *     device    in   m v master                host    out  gradient
 *               out  m v master                        in   parameter
 *
 * Link and processors work in parallel, so a mix of both has the smallest time;
 * copies and processors share the host's memory. train.update=auto assigns
 * updates in order, each to the side that minimizes the longest of four times
 * (copies in, copies out, processors, memory), unless all on one side take
 * less. Small updates stay on the device: they need as many launches on the
 * host, which cost more than predicted.
 *
 * Only elementwise updates can move, since a device sums in another order, and
 * only those with equal bits on the host. */
#include "../../ir/settings/keys.h"
#include "plan.h"

enum { SMALL = 16 }; /* launches: shorter updates stay on the device */

typedef struct UpdateLoad { /* seconds; memory: of host memory */
    double in, out, host, memory;
} UpdateLoad;

typedef struct Update {
    Group *group;
    UpdateLoad device, host; /* load if it runs there */
    int moves;               /* it runs on the host */
} Update;

static int is_hosted_write(const Node *n)
{
    return n->op == Owrite && is_hosted(n->in[0]);
}

static int has(const Group *group, const Node *n)
{
    for (int i = 0; i < group->n; i++)
        if (group->node[i] == n)
            return 1;
    return 0;
}

static int is_update(const Group *group)
{
    int writes = 0;

    if (group->reg != REGpost || group->fam != FAMloop || group->map)
        return 0;
    for (int i = 0; i < group->n; i++) {
        Node *n = group->node[i];
        OpClass c = optab[n->op].cls;
        int moves =
            (c == EW && !op_is(n->op, OPapprox)) || c == VIEW || c == MOVE;
        if (n->op == Owrite ? !has(group, storage(n->in[1])) : !moves)
            return 0;
        writes |= is_hosted_write(n);
    }
    return writes;
}

/* ---- loads --------------------------------------------------------------- */

static double secs_of(const Graph *g, const Node *n)
{
    return n->nd ? copy_secs(g, (double)local_bytes(g, n)) : 0;
}

typedef struct UpdateBytes {
    double all, hosted; /* bytes read and written; hosted: those in host memory
                           before and after a step */
} UpdateBytes;

/* Adds bytes read from host or device memory. Scalars are copied once for all
 * updates. */
static void add_reads(const Graph *g, Update *update, UpdateBytes *bytes)
{
    for (int i = 0; i < update->group->nin; i++) {
        Node *n = update->group->in[i];
        if (is_hosted(storage(n))) {
            update->device.in += secs_of(g, n);
            bytes->hosted += (double)local_bytes(g, n);
        } else
            update->host.out += secs_of(g, n);
        bytes->all += (double)local_bytes(g, n);
    }
}

static void add_writes(const Graph *g, Update *update, UpdateBytes *bytes)
{
    for (int i = 0; i < update->group->nout; i++) {
        const Node *n = update->group->out[i];
        const Node *to = n->op == Owrite ? n->in[0] : n;
        if (is_hosted_write(n)) {
            update->device.out += secs_of(g, to);
            bytes->hosted += (double)local_bytes(g, to);
        } else
            update->host.in += secs_of(g, to);
        bytes->all += (double)local_bytes(g, to);
    }
}

/* Adds host memory traffic: copies once; copied operands are read again, copied
 * results are written. */
static void add_memory(const Graph *g, Update *update, UpdateBytes bytes)
{
    update->host.host = host_secs(g, bytes.all);
    update->host.memory = host_memory_secs(g, 2 * bytes.all - bytes.hosted);
    update->device.memory = host_memory_secs(g, bytes.hosted);
}

static Update *find_updates(const Graph *g, Arena *a, Group *const *group)
{
    Update *all = NULL;

    for (size_t i = 0; i < vec_len(group); i++) {
        Update update = { .group = group[i] };
        UpdateBytes bytes = { 0 };
        if (!is_update(group[i]))
            continue;
        add_reads(g, &update, &bytes);
        add_writes(g, &update, &bytes);
        add_memory(g, &update, bytes);
        vec_push(a, all, update);
    }
    return all;
}

/* ---- assignment ---------------------------------------------------------- */

static UpdateLoad plus(UpdateLoad a, UpdateLoad b)
{
    return (UpdateLoad){ a.in + b.in, a.out + b.out, a.host + b.host,
                         a.memory + b.memory };
}

static double longest(UpdateLoad load)
{
    return fmax(fmax(load.host, load.memory), fmax(load.in, load.out));
}

static double small_secs(const Graph *g)
{
    return SMALL * machine_of(g)->launch;
}

/* May the update move by default? */
static int may_leave(const Graph *g, const Update *update)
{
    return longest(update->device) > small_secs(g);
}

static double moved_secs(const Update *update)
{
    UpdateLoad sum = { 0 };

    for (size_t i = 0; i < vec_len(update); i++)
        sum = plus(sum, update[i].moves ? update[i].host : update[i].device);
    return longest(sum);
}

static double deal_out(const Graph *g, Update *update)
{
    UpdateLoad sum = { 0 };

    for (size_t i = 0; i < vec_len(update); i++) {
        UpdateLoad there = plus(sum, update[i].host),
                   here = plus(sum, update[i].device);
        update[i].moves =
            longest(there) < longest(here) && may_leave(g, &update[i]);
        sum = update[i].moves ? there : here;
    }
    return longest(sum);
}

/* Updates that move to the host: none, all that may by default, all. */
enum { MOVEnone, MOVEmost, MOVEall };

static double move(const Graph *g, Update *update, int which)
{
    for (size_t i = 0; i < vec_len(update); i++)
        update[i].moves =
            which == MOVEall || (which == MOVEmost && may_leave(g, &update[i]));
    return moved_secs(update);
}

static void decide(const Graph *g, Update *update)
{
    int asked = opts_update(g->opts) == UPDATEhost,
        there = asked ? MOVEall : MOVEmost;
    double device = move(g, update, MOVEnone), host = move(g, update, there),
           both = deal_out(g, update);
    size_t n = 0;

    if (!asked &&
        (!host_speed(g) || device <= fmin(host, both) + small_secs(g)))
        move(g, update, MOVEnone);
    else if (asked || host <= both)
        move(g, update, there);
    for (size_t i = 0; i < vec_len(update); i++)
        n += (size_t)update[i].moves;
    why(g, NULL,
        "%zu of %zu updates run on the host's processors: all there take %.4g "
        "ms, none %.4g ms, dealt out %.4g ms",
        n, vec_len(update), 1e3 * host, 1e3 * device, 1e3 * both);
}

static void move_there(const Graph *g, const Update *update)
{
    const Group *group = update->group;

    for (int i = 0; i < group->n; i++)
        group->node[i]->host =
            group->node[i]->op != Owrite || is_hosted_write(group->node[i]);
    why(g, group->out[0],
        "updated on the host's processors: %.3g ms beside %.3g ms of copies "
        "out and %.3g ms in; on the device %.3g ms of copies each way",
        1e3 * update->host.host, 1e3 * update->host.out, 1e3 * update->host.in,
        1e3 * fmax(update->device.in, update->device.out));
}

/* Returns the time if link and processors end together and are used for nothing
 * else. */
double hosted_secs(const Graph *g, double bytes)
{
    double link = copy_secs(g, bytes), there = host_secs(g, 2 * bytes);

    switch (opts_update(g->opts)) {
    case UPDATEhost: return fmin(link, there);
    case UPDATEauto:
        return host_speed(g) > 0 ? link * there / (link + there) : link;
    default: return link;
    }
}

void host_updates(Graph *g, Arena *a, Group *const *group)
{
    Update *update = NULL;

    if (program_trains(g->prog) && opts_update(g->opts) != UPDATEdevice)
        update = find_updates(g, a, group);
    if (update)
        decide(g, update);
    for (size_t i = 0; i < vec_len(update); i++)
        if (update[i].moves)
            move_there(g, &update[i]);
}
