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

typedef struct UpdateValue { /* as far as the phase is walked */
    UpdateTask *maker;       /* the last that stores it */
    UpdateTask *copy;        /* makes it of another; null: none does */
    UpdateTask **reader;     /* vec */
} UpdateValue;

typedef struct UpdateOrder {
    ProgramBuilder *builder;
    Arena *arena;
    UpdateTask *task;           /* of the groups, then of the copies */
    UpdateValue *value;         /* by number */
    UpdateTask **queue[NQUEUE]; /* vecs */
    size_t head[NQUEUE];
    double free[NSIDE];
} UpdateOrder;

/* A copy's arguments: from, to. */
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

/* Of what task reads and a copy makes of what was there before. */
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

/* What others read of it stands before. */
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

/* Copies of what it made, behind all who read what they overwrite. */
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
