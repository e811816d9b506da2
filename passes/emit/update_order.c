/* update_order.c: the order of a phase in which updates run on the host's
 * processors. The link out, the link in, those processors and the device work
 * side by side, each on what is given to it in order: what stands at the wrong
 * place holds up all behind it. So the phase is walked by predicted times. Six
 * queues wait, copies of both ways in two each, and of their heads the one that
 * can begin first is next:
 *
 *     out        gradients for the host | what the device has updated
 *     in         what the device updates | parameters from the host
 *     processors updates there, as they stand
 *     device     all else, as it stands
 *
 * What is brought for an update of the device begins when the one before it
 * does. Of what waits in the host's memory for an update or its way to the
 * device there is as much as three of the largest: the copy out is behind the
 * update whose bytes are free again, an update behind such a copy in
 * (Group.behind, streams.c). */
#include "emit.h"

enum { WAITING = 3 };

typedef enum UpdateQueue {
    Qsent,
    Qbrought,
    Qstate,
    Qwritten,
    Qhost,
    Qdevice,
    NQUEUE
} UpdateQueue;

/* What each keeps busy. */
typedef enum UpdateSide {
    SIDEout,
    SIDEin,
    SIDEhost,
    SIDEdevice,
    NSIDE
} UpdateSide;

static const UpdateSide sides[NQUEUE] = {
    [Qsent] = SIDEout,   [Qwritten] = SIDEout, [Qstate] = SIDEin,
    [Qbrought] = SIDEin, [Qhost] = SIDEhost,   [Qdevice] = SIDEdevice,
};

typedef struct UpdateTask {
    Group *group;
    double secs, start, end;
    int done;
    int64_t bytes;                       /* of a copy */
    struct UpdateTask **after;           /* vec: behind their ends */
    struct UpdateTask *begun;            /* behind its beginning; null */
    struct UpdateTask **sent, **brought; /* vecs: an update's copies */
} UpdateTask;

typedef struct UpdateOrder {
    ProgramBuilder *builder;
    Arena *arena;
    UpdateTask *task;           /* of the groups, then of the copies */
    UpdateTask **queue[NQUEUE]; /* vecs */
    size_t head[NQUEUE];
    double free[NSIDE];
    Table *made;   /* value -> the task that stores it last */
    Table *copied; /* ... the copy that makes it */
} UpdateOrder;

static Node *stored_by(const Group *copy)
{
    return storage(copy->out[0]);
}

static Node *source_of(const Group *copy)
{
    const Node *n = copy->node[0];

    return storage(n->in[n->op == Owrite]);
}

static UpdateTask *copy_task(UpdateOrder *order, UpdateTask *task, Group *copy)
{
    UpdateTask *made = table_get(order->made, KEYP(source_of(copy)));

    *task = (UpdateTask){ .group = copy,
                          .secs = copy->instr.secs,
                          .bytes = (int64_t)copy->instr.bytes };
    if (made)
        vec_push(order->arena, task->after, made);
    *table_at(order->copied, KEYP(stored_by(copy))) = task;
    return task;
}

/* ---- queues -------------------------------------------------------------- */

static void enter(UpdateOrder *order, UpdateQueue q, UpdateTask *task)
{
    vec_push(order->arena, order->queue[q], task);
}

/* What group reads that copies make, each once. */
static void queue_reads(UpdateOrder *order, UpdateTask *task,
                        UpdateTask *before)
{
    const Group *group = task->group;

    for (int j = 0; j < group->narg; j++) {
        Node *n = group->named[j].stored;
        UpdateTask *copy = n && !group->named[j].writes
                               ? table_get(order->copied, KEYP(n))
                               : NULL;
        if (!copy)
            continue;
        vec_push(order->arena, task->after, copy);
        if (copy->done || source_of(copy->group)->host)
            continue;
        copy->done = 1;
        copy->begun = group->host ? NULL : before;
        if (group->host)
            vec_push(order->arena, task->sent, copy);
        enter(order, group->host ? Qsent : Qstate, copy);
    }
}

/* Copies of what it made, in the order they have. */
static void queue_made(UpdateOrder *order, UpdateTask *copy)
{
    UpdateTask *maker = table_get(order->made, KEYP(source_of(copy->group)));

    if (!maker)
        return;
    if (maker->group->host)
        vec_push(order->arena, maker->brought, copy);
    copy->done = 1;
    enter(order, maker->group->host ? Qbrought : Qwritten, copy);
}

static int by_maker(const void *a, const void *b)
{
    const UpdateTask *x = *(UpdateTask *const *)a, *y = *(UpdateTask *const *)b;

    if (x->after[0] != y->after[0])
        return x->after[0] < y->after[0] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void fill_queues(UpdateOrder *order, int n, int ncopy)
{
    UpdateTask *before = NULL;

    for (int i = 0; i < n; i++) {
        size_t states = vec_len(order->queue[Qstate]);
        queue_reads(order, &order->task[i], before);
        if (vec_len(order->queue[Qstate]) > states)
            before = &order->task[i];
        enter(order, order->task[i].group->host ? Qhost : Qdevice,
              &order->task[i]);
    }
    for (int i = n; i < n + ncopy; i++)
        if (!order->task[i].done)
            queue_made(order, &order->task[i]);
    vec_sort(order->queue[Qwritten], by_maker);
    vec_sort(order->queue[Qbrought], by_maker);
    for (int i = n; i < n + ncopy; i++)
        if (!order->task[i].done)
            die("offload: nobody needs what %s copies",
                order->task[i].group->instr.label);
        else
            order->task[i].done = 0;
}

/* ---- what waits in the host's memory ------------------------------------- */

static int64_t sum_bytes(UpdateTask *const *v)
{
    int64_t bytes = 0;

    for (size_t i = 0; i < vec_len(v); i++)
        bytes += v[i]->bytes;
    return bytes;
}

static int64_t copies_bytes(const UpdateTask *update, int brought)
{
    return sum_bytes(brought ? update->brought : update->sent);
}

static void stay_behind(UpdateOrder *order, UpdateTask *task,
                        UpdateTask *behind)
{
    task->group->behind = behind->group;
    vec_push(order->arena, task->after, behind);
}

static void limit_one(UpdateOrder *order, UpdateTask *update, UpdateTask *was,
                      int brought)
{
    size_t n = vec_len(was->brought);

    if (brought && n)
        stay_behind(order, update, was->brought[n - 1]);
    for (size_t i = 0; i < vec_len(update->sent) && !brought; i++)
        stay_behind(order, update->sent[i], was);
}

/* Of updates the last before each with which there would be too much. */
static void limit(UpdateOrder *order, int brought)
{
    UpdateTask **v = order->queue[Qhost];
    int64_t most = 0, sum = 0;
    size_t from = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        int64_t bytes = copies_bytes(v[i], brought);
        most = bytes > most ? bytes : most;
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        sum += copies_bytes(v[i], brought);
        while (sum > WAITING * most)
            sum -= copies_bytes(v[from++], brought);
        if (from)
            limit_one(order, v[i], v[from - 1], brought);
    }
}

/* ---- going --------------------------------------------------------------- */

/* When the queue's head can begin; infinity: it waits for what has no time. */
static double begins(const UpdateOrder *order, UpdateQueue q)
{
    if (order->head[q] == vec_len(order->queue[q]))
        return HUGE_VAL;
    const UpdateTask *task = order->queue[q][order->head[q]];
    double at = order->free[sides[q]];
    for (size_t i = 0; i < vec_len(task->after); i++)
        at = fmax(at, task->after[i]->done ? task->after[i]->end : HUGE_VAL);
    if (task->begun)
        at = fmax(at, task->begun->done ? task->begun->start : HUGE_VAL);
    return at;
}

static Group *take(UpdateOrder *order, UpdateQueue q, double at)
{
    UpdateTask *task = order->queue[q][order->head[q]++];

    task->done = 1;
    task->start = at;
    task->end = order->free[sides[q]] = at + task->secs;
    return task->group;
}

static Group *take_first(UpdateOrder *order)
{
    UpdateQueue first = Qsent;
    double least = HUGE_VAL;

    for (UpdateQueue q = 0; q < NQUEUE; q++) {
        double at = begins(order, q);
        first = at < least ? q : first;
        least = fmin(at, least);
    }
    if (least == HUGE_VAL)
        die("offload: updates wait for each other");
    return take(order, first, least);
}

static UpdateOrder open_order(ProgramBuilder *builder, Arena *scratch,
                              Group *const *group, int n, Group *const *copy)
{
    UpdateOrder x = { .builder = builder, .arena = scratch };
    int beside = (int)opts_int(builder->graph->opts, "fold.overlap");

    x.task = alloc(scratch, sizeof *x.task * ((size_t)n + vec_len(copy) + 1));
    x.made = table_new(scratch);
    x.copied = table_new(scratch);
    for (int i = 0; i < n; i++) {
        int no = beside && runs_beside(builder, &group[i]->instr);
        x.task[i].group = group[i];
        x.task[i].secs = no ? 0 : group[i]->instr.secs;
        for (int j = 0; j < group[i]->narg; j++)
            if (group[i]->named[j].writes)
                *table_at(x.made, KEYP(group[i]->named[j].stored)) = &x.task[i];
    }
    for (size_t i = 0; i < vec_len(copy); i++)
        copy_task(&x, &x.task[(size_t)n + i], copy[i]);
    fill_queues(&x, n, (int)vec_len(copy));
    limit(&x, 0);
    limit(&x, 1);
    return x;
}

/* What compute begins with comes first: other streams begin behind it. */
Group **order_updates(ProgramBuilder *builder, Group *const *group, int n,
                      Group *const *copy, Group **out)
{
    Arena *scratch = arena_new();
    UpdateOrder x = open_order(builder, scratch, group, n, copy);
    size_t left = (size_t)n + vec_len(copy);

    if (begins(&x, Qdevice) < HUGE_VAL) {
        vec_push(builder->arena, out, take(&x, Qdevice, 0));
        left--;
    }
    for (; left; left--)
        vec_push(builder->arena, out, take_first(&x));
    arena_free(scratch);
    return out;
}
