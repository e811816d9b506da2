/* sched.c: orders groups and numbers them (Node.kernel).
 *
 * Phases in order: operands of loss denominators, denominators, pre, body,
 * post. Inside a phase a group runs after the groups whose results it reads,
 * and a group that writes a parameter or state after all readers of the old
 * value. Among groups that could run next the model's order decides
 * (decisions/kernel-order.md).
 *
 * The order has no cycles: where states are swapped, fuse gives a new value its
 * own buffer (join_write).
 * */
#include "kernels.h"

typedef struct Task {
    Group *group;
    int phase; /* START, regions, each call of body */
    int wait;  /* number of tasks that must run before */
    int *next; /* vec: tasks that wait for this one */
} Task;

typedef struct Sched {
    Graph *graph;
    Arena *arena;
    Task *task;
    int count;
    Table *maker;   /* value -> 1 + its task */
    Table *readers; /* path of a parameter or state -> Readers */
} Sched;

typedef struct Readers {
    int *task;
} Readers;

static void after(Sched *sched, int first, int then)
{
    if (first == then)
        return;
    vec_push(sched->arena, sched->task[first].next, then);
    sched->task[then].wait++;
}

/* ---- producers and readers ----------------------------------------------- */

static void *number(int i)
{
    return (void *)(uintptr_t)(unsigned)(i + 1);
}

static int maker(const Sched *sched, Node *n)
{
    return (int)(uintptr_t)table_get(sched->maker, KEYP(viewed(n))) - 1;
}

static void note_results(Sched *sched, int i)
{
    const Group *group = sched->task[i].group;

    for (int j = 0; j < group->nout; j++)
        if (group->out[j]->op != Owrite)
            *table_at(sched->maker, KEYP(viewed(group->out[j]))) = number(i);
}

static void note_reads(Sched *sched, int i)
{
    const Group *group = sched->task[i].group;

    for (int j = 0; j < group->nin; j++) {
        Node *n = storage(group->in[j]);
        if (!is_lasting(n))
            continue;
        Readers **r = (Readers **)table_at(sched->readers, KEYP(n_name(n)));
        if (!*r)
            *r = alloc(sched->arena, sizeof **r);
        vec_push(sched->arena, (*r)->task, i);
    }
}

/* ---- dependences --------------------------------------------------------- */

/* Does task a run in a later region than b? The schedule table orders calls. */
static int is_later(const Sched *sched, int a, int b)
{
    return sched->task[a].phase > sched->task[b].phase &&
           sched->task[a].group->reg != sched->task[b].group->reg;
}

static void wait_for_operands(Sched *sched, int i)
{
    const Group *group = sched->task[i].group;

    for (int j = 0; j < group->nin; j++) {
        int m = maker(sched, group->in[j]);
        if (m < 0 || m == i)
            continue;
        if (is_later(sched, m, i))
            die("sched: %%%s is read in %s but made in %s", group->in[j]->name,
                regions[group->reg], regions[sched->task[m].group->reg]);
        if (sched->task[m].phase == sched->task[i].phase)
            after(sched, m, i);
    }
}

static void wait_for_readers(Sched *sched, int i)
{
    const Group *group = sched->task[i].group;

    for (int j = 0; j < group->nout; j++) {
        if (group->out[j]->op != Owrite)
            continue;
        const Readers *r =
            table_get(sched->readers, KEYP(n_name(storage(group->out[j]))));
        for (size_t q = 0; r && q < vec_len(r->task); q++) {
            if (is_later(sched, r->task[q], i))
                die("sched: %%%s is written before it is read",
                    storage(group->out[j])->name);
            if (sched->task[r->task[q]].phase == sched->task[i].phase)
                after(sched, r->task[q], i);
        }
    }
}

/* ---- phases -------------------------------------------------------------- */

enum { START = -1 }; /* nodes of pre that den reads */

static int phase_of(const Sched *sched, const Group *group)
{
    int calls =
        group->reg < REGpost ? group->call : (int)vec_len(sched->graph->call);

    return (int)group->reg + calls;
}

/* Finds phases. Operands precede users, so one backward walk finds all operands
 * of den. */
static void find_phases(Sched *sched)
{
    for (int i = 0; i < sched->count; i++)
        sched->task[i].phase = phase_of(sched, sched->task[i].group);
    for (int i = sched->count; i-- > 0;) {
        const Group *group = sched->task[i].group;
        if (sched->task[i].phase > REGden)
            continue;
        for (int j = 0; j < group->nin; j++) {
            int m = maker(sched, group->in[j]);
            if (m >= 0 && sched->task[m].phase == REGpre)
                sched->task[m].phase = START;
        }
    }
}

/* ---- between stages ------------------------------------------------------ */

static int stands_after(const Node *a, const Node *b)
{
    return a->call != b->call ? a->call > b->call : n_chan(a) > n_chan(b);
}

/* Operations between stages, inside a call and outside, keep the order of all
 * stages. */
static void keep_order(Sched *sched)
{
    int *v = NULL;

    for (int i = 0; i < sched->count; i++) {
        const Node *n = sched->task[i].group->node[0];
        size_t k = vec_len(v);
        if (!is_transfer(n))
            continue;
        vec_push(sched->arena, v, i);
        for (; k > 0 && stands_after(sched->task[v[k - 1]].group->node[0], n);
             k--)
            v[k] = v[k - 1];
        v[k] = i;
    }
    for (size_t k = 1; k < vec_len(v); k++)
        if (sched->task[v[k - 1]].group->call == sched->task[v[k]].group->call)
            after(sched, v[k - 1], v[k]);
}

/* ---- order --------------------------------------------------------------- */

/* Returns the order: of the tasks that could run, the earliest in the model
 * first. */
static int *order(Sched *sched)
{
    Heap h = { 0 };
    int *seq = alloc(sched->arena, sizeof(int) * (size_t)(sched->count + 1)),
        n = 0;

    for (int i = 0; i < sched->count; i++)
        if (!sched->task[i].wait)
            heap_add(sched->arena, &h, sched->task[i].phase, i);
    while (n < sched->count) {
        if (!h.n)
            err(NULL, "%s: %d kernels wait for each other",
                programnames[sched->graph->prog], sched->count - n);
        int i = heap_take(&h).id;
        seq[n++] = i;
        for (size_t j = 0; j < vec_len(sched->task[i].next); j++) {
            int k = sched->task[i].next[j];
            if (!--sched->task[k].wait)
                heap_add(sched->arena, &h, sched->task[k].phase, k);
        }
    }
    return seq;
}

static void list_tasks(Sched *sched, Group *const *k)
{
    sched->count = (int)vec_len(k);
    sched->task =
        alloc(sched->arena, sizeof *sched->task * (size_t)(sched->count + 1));
    for (int i = 0; i < sched->count; i++)
        sched->task[i].group = k[i];
}

Group **sched(Graph *g, Group *const *k, Arena *a)
{
    Sched s = { .graph = g, .arena = a };
    Group **out = NULL;

    s.maker = table_new(a);
    s.readers = table_new(a);
    list_tasks(&s, k);
    for (int i = 0; i < s.count; i++)
        note_results(&s, i);
    for (int i = 0; i < s.count; i++)
        note_reads(&s, i);
    find_phases(&s);
    for (int i = 0; i < s.count; i++) {
        wait_for_operands(&s, i);
        wait_for_readers(&s, i);
    }
    keep_order(&s);
    int *seq = order(&s);
    for (int i = 0; i < s.count; i++)
        vec_push(a, out, s.task[seq[i]].group);
    return out;
}

void pass_sched(Graph *g)
{
    Group **k = sched(g, groups_of(g, g->arena), g->arena);

    for (size_t i = 0; i < vec_len(k); i++)
        for (int j = 0; j < k[i]->n; j++)
            k[i]->node[j]->kernel = (int)i + 1;
    g->group = k;
}
