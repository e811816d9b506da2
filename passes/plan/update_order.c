/* update_order.c: orders a phase with updates on the host's processors. Both
 * directions of the link, the processors and the device work in parallel, each
 * in order, so an instruction at the wrong place delays all later ones. The
 * phase is simulated with predicted times. There are six queues, two for each
 * direction of copies, and the head that can start first is next:
 *
 *     out        gradients for the host | states updated by the device
 *     in         states for the device | parameters from the host
 *     processors updates on the host, in order
 *     device     all others, in order
 *
 * Copies for an update on the device start with the update before it. Buffers
 * in host memory that wait for an update, or for a copy to the device, are
 * limited to three of the largest: the copy out waits for the update that frees
 * its bytes, and an update for such a copy in (Group.behind, streams.c). */
#include "plan.h"

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

/* Resource of a task. */
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
    int64_t bytes;                       /* bytes of a copy */
    struct UpdateTask **after;           /* vec: tasks that must have ended */
    struct UpdateTask *begun;            /* task that must have started; null */
    struct UpdateTask **sent, **brought; /* vecs: an update's copies */
} UpdateTask;

typedef struct UpdateValue { /* state of a value in the simulation */
    UpdateTask *maker;       /* the last task that stores it */
    UpdateTask *copy;        /* the copy that makes it; null: none */
    UpdateTask **reader;     /* vec */
} UpdateValue;

typedef struct UpdateOrder {
    ProgramBuilder *builder;
    Arena *arena;
    UpdateTask *task;           /* tasks of groups, then of copies */
    UpdateValue *value;         /* [value] */
    UpdateTask **queue[NQUEUE]; /* vecs */
    size_t head[NQUEUE];
    double free[NSIDE];
} UpdateOrder;

/* Return the source and the result of a copy. */
static const NamedValue *source_of(const UpdateTask *copy)
{
    return &copy->group->named[0];
}

static const NamedValue *result_of(const UpdateTask *copy)
{
    return &copy->group->named[1];
}

/* ---- queues -------------------------------------------------------------- */

static void enter(UpdateOrder *order, UpdateQueue q, UpdateTask *task)
{
    vec_push(order->arena, order->queue[q], task);
}

static void be_behind(UpdateOrder *order, UpdateTask *task, UpdateTask *other)
{
    if (other && other != task)
        vec_push(order->arena, task->after, other);
}

/* Queues a copy that makes an operand of task from an earlier value. */
static void queue_copy(UpdateOrder *order, UpdateTask *task, UpdateTask *copy,
                       UpdateTask *before)
{
    UpdateValue *from = &order->value[source_of(copy)->number];
    int host = task->group->host;

    be_behind(order, copy, from->maker);
    vec_push(order->arena, from->reader, copy);
    copy->done = 1;
    copy->begun = host ? NULL : before;
    if (host)
        vec_push(order->arena, task->sent, copy);
    enter(order, host ? Qsent : Qstate, copy);
}

static void queue_reads(UpdateOrder *order, UpdateTask *task,
                        UpdateTask *before)
{
    for (int j = 0; j < task->group->narg; j++) {
        const NamedValue *named = &task->group->named[j];
        UpdateTask *copy;
        if (!named->stored || named->writes)
            continue;
        vec_push(order->arena, order->value[named->number].reader, task);
        copy = order->value[named->number].copy;
        be_behind(order, task, copy);
        if (copy && !copy->done && !source_of(copy)->stored->host)
            queue_copy(order, task, copy, before);
    }
}

/* Records task's writes; earlier readers of these values must precede it. */
static void note_writes(UpdateOrder *order, UpdateTask *task)
{
    for (int j = 0; j < task->group->narg; j++) {
        const NamedValue *named = &task->group->named[j];
        UpdateValue *value = &order->value[named->number];
        if (!named->stored || !named->writes)
            continue;
        for (size_t i = 0; i < vec_len(value->reader); i++)
            be_behind(order, task, value->reader[i]);
        value->maker = task;
    }
}

/* Queues a copy of a result, after all readers of the value that it
 * overwrites. */
static void queue_made(UpdateOrder *order, UpdateTask *copy)
{
    UpdateTask *maker = order->value[source_of(copy)->number].maker;
    const UpdateValue *to = &order->value[result_of(copy)->number];

    if (!maker)
        die("offload: nobody needs what %s copies", copy->group->instr.label);
    be_behind(order, copy, maker);
    for (size_t i = 0; i < vec_len(to->reader) && !to->copy; i++)
        be_behind(order, copy, to->reader[i]);
    if (maker->group->host)
        vec_push(order->arena, maker->brought, copy);
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

    for (int i = n; i < n + ncopy; i++)
        if (order->task[i].group->node[0]->op != Owrite)
            order->value[result_of(&order->task[i])->number].copy =
                &order->task[i];
    for (int i = 0; i < n; i++) {
        UpdateTask *task = &order->task[i];
        size_t states = vec_len(order->queue[Qstate]);
        queue_reads(order, task, before);
        note_writes(order, task);
        if (vec_len(order->queue[Qstate]) > states)
            before = task;
        enter(order, task->group->host ? Qhost : Qdevice, task);
    }
    for (int i = n; i < n + ncopy; i++)
        if (!order->task[i].done)
            queue_made(order, &order->task[i]);
        else
            order->task[i].done = 0;
    vec_sort(order->queue[Qwritten], by_maker);
    vec_sort(order->queue[Qbrought], by_maker);
}

/* ---- buffers in host memory ---------------------------------------------- */

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
    be_behind(order, task, behind);
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

/* Finds for each update the last earlier one that must have ended before it, so
 * that buffers stay within the limit. */
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

/* ---- simulation ---------------------------------------------------------- */

/* Returns the time at which the queue's head can start; infinity: it waits for
 * a task that has not started. */
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
    x.value = alloc(scratch, sizeof *x.value * ((size_t)builder->nnamed + 1));
    for (int i = 0; i < n; i++) {
        int no = beside && runs_beside(builder, &group[i]->instr);
        x.task[i].group = group[i];
        x.task[i].secs = no ? 0 : group[i]->instr.secs;
    }
    for (size_t i = 0; i < vec_len(copy); i++)
        x.task[(size_t)n + i] =
            (UpdateTask){ .group = copy[i],
                          .secs = copy[i]->instr.secs,
                          .bytes = (int64_t)copy[i]->instr.bytes };
    fill_queues(&x, n, (int)vec_len(copy));
    limit(&x, 0);
    limit(&x, 1);
    return x;
}

/* The first compute instructions are first: other streams start after them. */
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
