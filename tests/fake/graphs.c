/* graphs.c: what a capture recorded, and its launches. Nodes run in any order
 * that their edges allow. A graph that is destroyed while it runs is freed when
 * it has ended. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

typedef struct Node {
    Task *task;
    Tail before; /* what it waits for */
    int *next;   /* what waits for it */
    int nnext;
} Node;

struct Graph {
    Node *node;
    int n, room, holders;
    int holds; /* the communicators of its nodes, once instantiated */
};

typedef struct Launch { /* the state of one */
    int *left;          /* by node: of what it waits for */
    int *ready, nready, done;
    Run *run; /* by node */
} Launch;

/* ---- tails --------------------------------------------------------------- */

static void add(int **v, int *n, int x)
{
    *v = realloc(*v, (size_t)(*n + 1) * sizeof **v);
    (*v)[(*n)++] = x;
}

static int has(const Tail *t, int node)
{
    for (int i = 0; i < t->n; i++)
        if (t->node[i] == node)
            return 1;
    return 0;
}

void tail_add(Tail *to, const Tail *from)
{
    for (int i = 0; i < from->n; i++)
        if (!has(to, from->node[i]))
            add(&to->node, &to->n, from->node[i]);
}

void tail_copy(Tail *to, const Tail *from)
{
    to->n = 0;
    tail_add(to, from);
}

/* ---- graphs -------------------------------------------------------------- */

Graph *graph_new(void)
{
    Graph *g = calloc(1, sizeof *g);

    g->holders = 1;
    return g;
}

static void hold_comms(Graph *g, int by)
{
    if (g->holds + by < 0 || g->holds + by > 1)
        return;
    g->holds += by;
    for (int i = 0; i < g->n; i++)
        comms_held(g->node[i].task, by);
}

void graph_free(Graph *g)
{
    if (--g->holders)
        return;
    hold_comms(g, -1);
    for (int i = 0; i < g->n; i++) {
        Node *n = &g->node[i];
        n->task->forget(n->task->what);
        free(n->task);
        free(n->before.node);
        free(n->next);
    }
    free(g->node);
    free(g);
}

void graph_add(Graph *g, Tail *behind, Task *t)
{
    if (g->n == g->room) {
        g->room = 2 * g->room + 64;
        g->node = realloc(g->node, (size_t)g->room * sizeof *g->node);
    }
    g->node[g->n] = (Node){ .task = t };
    tail_copy(&g->node[g->n].before, behind);
    for (int i = 0; i < behind->n; i++) {
        Node *b = &g->node[behind->node[i]];
        add(&b->next, &b->nnext, g->n);
    }
    behind->n = 0;
    add(&behind->node, &behind->n, g->n);
    g->n++;
}

/* Is everything of one behind, or part of, all? Nodes are in order. */
int graph_has(const Graph *g, const Tail *all, const Tail *one)
{
    char *seen = calloc(1, (size_t)g->n + 1);
    int ok = 1;

    for (int i = 0; i < all->n; i++)
        seen[all->node[i]] = 1;
    for (int i = g->n - 1; i >= 0; i--)
        for (int k = 0; seen[i] && k < g->node[i].before.n; k++)
            seen[g->node[i].before.node[k]] = 1;
    for (int i = 0; i < one->n; i++)
        ok &= seen[one->node[i]];
    free(seen);
    return ok;
}

/* ---- launches ------------------------------------------------------------ */

static Launch *launch_of(const Graph *g, const Run *r)
{
    size_t n = (size_t)g->n + 1, bytes = n * (2 * sizeof(int) + sizeof(Run));
    Launch *l = calloc(1, sizeof *l + bytes);

    l->run = (Run *)(void *)(l + 1);
    l->left = (int *)(void *)(l->run + n);
    l->ready = l->left + n;
    for (int i = 0; i < g->n; i++) {
        l->run[i] = (Run){ .number = r->number, .replayed = 1 };
        l->left[i] = g->node[i].before.n;
        if (!l->left[i])
            l->ready[l->nready++] = i;
    }
    return l;
}

static void finish(const Graph *g, Launch *l, int k)
{
    int i = l->ready[k];

    free(l->run[i].state);
    l->ready[k] = l->ready[--l->nready];
    l->done++;
    for (int j = 0; j < g->node[i].nnext; j++)
        if (!--l->left[g->node[i].next[j]])
            l->ready[l->nready++] = g->node[i].next[j];
}

static Moved launch_go(const void *what, Run *r)
{
    const Graph *g = what;

    if (!r->state)
        r->state = launch_of(g, r);
    Launch *l = r->state;
    unsigned from = l->nready ? one_of((unsigned)l->nready) : 0;
    Moved m = BLOCKED;
    for (int i = 0; i < l->nready && m == BLOCKED; i++) {
        int k = (int)((from + (unsigned)i) % (unsigned)l->nready);
        Task *t = g->node[l->ready[k]].task;
        m = t->go(t->what, &l->run[l->ready[k]]);
        if (m == DONE)
            finish(g, l, k);
    }
    return l->done == g->n ? DONE : m == BLOCKED ? BLOCKED : MOVED;
}

static void let_go(void *what)
{
    graph_free(what);
}

/* ---- the driver's functions ---------------------------------------------- */

int cuGraphGetNodes(Graph *g, void **node, size_t *n)
{
    (void)node;
    *n = (size_t)g->n;
    return 0;
}

int cuGraphInstantiateWithFlags(Graph **x, Graph *g, unsigned long long flags)
{
    (void)flags;
    device_lock();
    g->holders++;
    hold_comms(g, 1);
    device_unlock();
    *x = g;
    return 0;
}

static int destroy(Graph *g)
{
    device_lock();
    graph_free(g);
    device_unlock();
    return 0;
}

int cuGraphDestroy(Graph *g)
{
    return destroy(g);
}

int cuGraphExecDestroy(Graph *g)
{
    return destroy(g);
}

int cuGraphLaunch(Graph *g, Stream *s)
{
    device_lock();
    g->holders++;
    int e = enqueue(s, launch_go, let_go, g);
    device_unlock();
    return e;
}
