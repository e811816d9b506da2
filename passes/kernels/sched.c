/* sched.c: the order in which groups run: their numbers (Node.kernel).
 *
 * Phases follow each other: what loss denominators need, denominators, pre,
 * body, post. Inside a phase a group runs after those whose results it reads,
 * and a group that writes a parameter or state after all that read the old
 * value. Among groups that could run next the model's order decides. (Delaying
 * groups to their first use was measured: in our models none could move past
 * the peak that would not keep more alive than it makes.)
 *
 * Nothing waits for itself: where states swap, fuse has made a new value a
 * buffer of its own (join_write).
 */
#include "kernels.h"

#include <string.h>

typedef struct Task {
    Group *group;
    int phase; /* START, regions, in body each call */
    int wait;  /* tasks that must run before */
    int *next; /* vec: tasks that wait for this */
} Task;

typedef struct Sched {
    Graph *graph;
    Arena *arena;
    Task *task;
    int count;
    Table *maker;   /* value -> its task + 1 */
    Table *readers; /* path of a param or state -> Readers */
} Sched;

typedef struct Readers {
    int *task;
} Readers;

static void after(Sched *s, int first, int then)
{
    if (first == then)
        return;
    vec_push(s->arena, s->task[first].next, then);
    s->task[then].wait++;
}

/* ---- who makes and reads what -------------------------------------------- */

static void *number(int i)
{
    return (void *)(uintptr_t)(unsigned)(i + 1);
}

static int maker(const Sched *s, Node *n)
{
    return (int)(uintptr_t)table_get(s->maker, KEYP(viewed(n))) - 1;
}

static void note_results(Sched *s, int i)
{
    const Group *k = s->task[i].group;

    for (int j = 0; j < k->nout; j++)
        if (k->out[j]->op != Owrite)
            *table_at(s->maker, KEYP(viewed(k->out[j]))) = number(i);
}

static void note_reads(Sched *s, int i)
{
    const Group *k = s->task[i].group;

    for (int j = 0; j < k->nin; j++) {
        Node *n = storage(k->in[j]);
        if (!is_lasting(n))
            continue;
        Readers **r = (Readers **)table_at(s->readers, KEYP(n_name(n)));
        if (!*r)
            *r = alloc(s->arena, sizeof **r);
        vec_push(s->arena, (*r)->task, i);
    }
}

/* ---- what waits for what ------------------------------------------------- */

/* Does task a run in a later region than b? Which call of a body runs first is
 * the table's business. */
static int is_later(const Sched *s, int a, int b)
{
    return s->task[a].phase > s->task[b].phase &&
           s->task[a].group->reg != s->task[b].group->reg;
}

static void wait_for_operands(Sched *s, int i)
{
    const Group *k = s->task[i].group;

    for (int j = 0; j < k->nin; j++) {
        int m = maker(s, k->in[j]);
        if (m < 0 || m == i)
            continue;
        if (is_later(s, m, i))
            die("sched: %%%s is read in %s but made in %s", k->in[j]->name,
                regions[k->reg], regions[s->task[m].group->reg]);
        if (s->task[m].phase == s->task[i].phase)
            after(s, m, i);
    }
}

static void wait_for_readers(Sched *s, int i)
{
    const Group *k = s->task[i].group;

    for (int j = 0; j < k->nout; j++) {
        if (k->out[j]->op != Owrite)
            continue;
        const Readers *r =
            table_get(s->readers, KEYP(n_name(storage(k->out[j]))));
        for (size_t q = 0; r && q < vec_len(r->task); q++) {
            if (is_later(s, r->task[q], i))
                die("sched: %%%s is written before it is read",
                    storage(k->out[j])->name);
            if (s->task[r->task[q]].phase == s->task[i].phase)
                after(s, r->task[q], i);
        }
    }
}

/* ---- phases -------------------------------------------------------------- */

enum { START = -1 }; /* before den: what den reads of pre */

static int phase_of(const Sched *s, const Group *k)
{
    int calls = k->reg < REGpost ? k->call : (int)vec_len(s->graph->call);

    return (int)k->reg + calls;
}

/* Operands come first in k, so one walk backwards finds all that den needs. */
static void find_phases(Sched *s)
{
    for (int i = 0; i < s->count; i++)
        s->task[i].phase = phase_of(s, s->task[i].group);
    for (int i = s->count; i-- > 0;) {
        const Group *k = s->task[i].group;
        if (s->task[i].phase > REGden)
            continue;
        for (int j = 0; j < k->nin; j++) {
            int m = maker(s, k->in[j]);
            if (m >= 0 && s->task[m].phase == REGpre)
                s->task[m].phase = START;
        }
    }
}

/* ---- between stages ------------------------------------------------------ */

static int stands_after(const Node *a, const Node *b)
{
    return a->call != b->call ? a->call > b->call : n_chan(a) > n_chan(b);
}

/* What stages do together, in a call and outside all, goes in the order that
 * all of them keep. */
static void keep_order(Sched *s)
{
    int *v = NULL;

    for (int i = 0; i < s->count; i++) {
        const Node *n = s->task[i].group->node[0];
        size_t k = vec_len(v);
        if (!is_transfer(n))
            continue;
        vec_push(s->arena, v, i);
        for (; k > 0 && stands_after(s->task[v[k - 1]].group->node[0], n); k--)
            v[k] = v[k - 1];
        v[k] = i;
    }
    for (size_t k = 1; k < vec_len(v); k++)
        if (s->task[v[k - 1]].group->call == s->task[v[k]].group->call)
            after(s, v[k - 1], v[k]);
}

/* ---- order --------------------------------------------------------------- */

/* Of the tasks that could run, the earliest in the model first. */
static int *order(Sched *s)
{
    Heap h = { 0 };
    int *seq = alloc(s->arena, sizeof(int) * (size_t)(s->count + 1)), n = 0;

    for (int i = 0; i < s->count; i++)
        if (!s->task[i].wait)
            heap_add(s->arena, &h, s->task[i].phase, i);
    while (n < s->count) {
        if (!h.n)
            err(NULL, "%s: %d kernels wait for each other",
                programnames[s->graph->prog], s->count - n);
        int i = heap_take(&h).id;
        seq[n++] = i;
        for (size_t j = 0; j < vec_len(s->task[i].next); j++) {
            int k = s->task[i].next[j];
            if (!--s->task[k].wait)
                heap_add(s->arena, &h, s->task[k].phase, k);
        }
    }
    return seq;
}

static void list_tasks(Sched *s, Group *const *k)
{
    s->count = (int)vec_len(k);
    s->task = alloc(s->arena, sizeof *s->task * (size_t)(s->count + 1));
    for (int i = 0; i < s->count; i++)
        s->task[i].group = k[i];
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
