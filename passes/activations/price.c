/* price.c: what a second of a micro-batch is worth in bytes of a rank's memory.
 * Saving memory may cost as many percent of the time as it saves of the memory,
 * or train.recompute times as many: so a second is worth
 *
 *     bytes of a rank / seconds of a micro-batch / train.recompute
 *
 * The bytes are parameters, states, gradients and what is kept for the backward
 * where nothing is rebuilt; the seconds are those of products and collectives,
 * and of every other value written once. Both are known before kernels and
 * their order are: they weigh, they do not predict. A rank that needs little
 * memory saves none, unless train.recompute is given. */
#include <math.h>

#include "activations.h"

Node *owner_of_bytes(Node *n)
{
    while (optab[n->op].cls == VIEW && n->op != Opart)
        n = n->in[0];
    return n;
}

int always_there(const Node *n)
{
    return optab[n->op].cls == SRC || n->reg != REGbody;
}

double seconds_of(const Graph *g, const Node *n)
{
    const MachineSpeeds *m = machine_of(g);
    OpClass c = optab[n->op].cls;
    Cost cost = cost_of(g, n);
    double work = cost.flops / (c == EIN ? m->gemm : m->loop);

    if (c == COMM) {
        double in = n->nin ? (double)local_bytes(g, n->in[0]) : 0;
        return m->hop + fmax(in, (double)local_bytes(g, n)) / m->link;
    }
    return m->launch + fmax(work, cost.bytes / m->memory);
}

static double body_seconds(const Graph *g)
{
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        OpClass c = optab[n->op].cls;
        if (n->reg != REGbody || c == VIEW || c == SRC)
            continue;
        if (c == EIN || c == COMM)
            sum += seconds_of(g, n);
        else
            sum += (double)local_bytes(g, n) / machine_of(g)->memory;
    }
    return sum;
}

/* ---- what is kept -------------------------------------------------------- */

/* Rows of the stage's table between which a call's values are kept. */
static int most_alive(const Graph *g, int from, int to)
{
    int load = 0, most = 1;

    for (size_t i = 0; i < vec_len(g->slot); i++) {
        load += g->slot[i].phase == from;
        most = load > most ? load : most;
        load -= g->slot[i].phase == to;
    }
    return most;
}

static int first_row(const Graph *g, int call)
{
    size_t i = 0;

    while (i < vec_len(g->slot) && g->slot[i].phase != call)
        i++;
    return (int)i;
}

typedef struct Kept {
    char *node; /* by id: a forward value that backward kernels read */
    int *last;  /* by call: the last one that reads what it keeps */
} Kept;

static void keep(const Graph *g, Kept *k, const Node *x, const Node *reader)
{
    int from = x->call - 1, to = reader->call - 1;

    if (always_there(x) || runs_backward(x))
        return;
    k->node[x->id] = 1;
    if (from >= 0 && to >= 0 && first_row(g, to) > first_row(g, k->last[from]))
        k->last[from] = to;
}

static Kept find_kept(const Graph *g)
{
    int calls = (int)vec_len(g->call);
    Kept k = { .node = alloc(g->arena, vec_len(g->node) + 1),
               .last = alloc(g->arena, sizeof(int) * (size_t)(calls + 1)) };

    for (int c = 0; c < calls; c++)
        k.last[c] = c;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        for (int j = 0; j < n->nin && runs_backward(n); j++)
            keep(g, &k, owner_of_bytes(n->in[j]), n);
    }
    return k;
}

int *micros_alive(const Graph *g)
{
    int calls = (int)vec_len(g->call);
    Kept k = find_kept(g);
    int *alive = alloc(g->arena, sizeof *alive * (size_t)(calls + 1));

    alive[0] = 1;
    for (int c = 0; c < calls; c++)
        alive[c + 1] = most_alive(g, c, k.last[c]);
    return alive;
}

static double rank_bytes(const Graph *g)
{
    const char *kept = find_kept(g).node;
    const int *alive = micros_alive(g);
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        double bytes = (double)local_bytes(g, n);
        if (kept[i])
            sum += bytes * alive[n->call];
        else if (is_lasting(n) || n->op == Oaccum)
            sum += bytes;
    }
    return sum;
}

double bytes_a_second(const Graph *g)
{
    enum { LITTLE = 256 << 20 };
    double worth = opts_num(g->opts, "train.recompute");
    double bytes = rank_bytes(g), secs = body_seconds(g);

    if (bytes < LITTLE && !opts_given(g->opts, "train.recompute"))
        worth = 0;
    return worth > 0 && secs > 0 && program_trains(g->prog)
               ? bytes / secs / worth
               : HUGE_VAL;
}
