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

int runs_backward(const Node *n)
{
    return n->reg == REGbody && is_backward(n);
}

double seconds_of(const Graph *g, const Node *n)
{
    const MachineSpeeds *m = machine_of(g);
    Cost c = cost_of(g, n);
    double work = c.flops / (optab[n->op].cls == EIN ? m->gemm : m->loop);
    double move = c.bytes / m->memory;

    return m->launch + (work > move ? work : move);
}

static double body_seconds(const Graph *g)
{
    const MachineSpeeds *m = machine_of(g);
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        OpClass c = optab[n->op].cls;
        if (n->reg != REGbody || c == VIEW || c == SRC)
            continue;
        double bytes = (double)local_bytes(g, n);
        if (c == COMM && n->nin)
            bytes = fmax(bytes, (double)local_bytes(g, n->in[0]));
        if (c == EIN)
            sum += seconds_of(g, n);
        else
            sum += bytes / (c == COMM ? m->link : m->memory);
    }
    return sum;
}

/* Forward values that backward kernels read: by node id, 1. */
static char *find_kept(const Graph *g)
{
    char *kept = alloc(g->arena, vec_len(g->node) + 1);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin && runs_backward(n); k++) {
            Node *x = owner_of_bytes(n->in[k]);
            if (!always_there(x) && !runs_backward(x))
                kept[x->id] = 1;
        }
    }
    return kept;
}

static double rank_bytes(const Graph *g)
{
    const char *kept = find_kept(g);
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (kept[i] || is_lasting(n) || n->op == Oaccum)
            sum += (double)local_bytes(g, n);
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
