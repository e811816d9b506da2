/* price.c: costs of a value: seconds to recompute it, and the number of
 * micro-batches that keep it at a time. Graph.price is the time worth a byte:
 * fit.c finds the smallest one at which a program fits, or train.recompute
 * states it. The seconds are estimated before kernels and their order are
 * known, for comparisons only. */
#include "plan.h"

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

/* Returns the machine's speed that limits n's arithmetic. */
static Speed work_of(const Node *n)
{
    switch (n->op) {
    case Oattn: return SPEEDattn;
    case Oattn_bwd: return SPEEDattn_bwd;
    case Ogmm: return SPEEDgrouped;
    case Ogmm_wgrad: return SPEEDweights;
    default: return optab[n->op].cls == EIN ? SPEEDgemm : SPEEDloop;
    }
}

double seconds_of(const Graph *g, const Node *n)
{
    const MachineSpeeds *speeds = machine_of(g);
    Speed speed = work_of(n);
    Cost cost = cost_of(g, n);

    if (optab[n->op].cls == COMM) {
        double in = n->nin ? (double)local_bytes(g, n->in[0]) : 0;
        double bytes = fmax(in, (double)local_bytes(g, n));
        return speeds->hop + bytes / speed_at(speeds, SPEEDlink, bytes);
    }
    int product = optab[n->op].cls == EIN && speed != SPEEDloop;
    double size = speed == SPEEDgrouped || speed == SPEEDweights
                      ? rows_of_expert(g, n->map)
                      : cost.flops;
    if (product)
        return speeds->launch +
               product_secs(speeds, speed, size, cost.flops, cost.bytes);
    return speeds->launch +
           fmax(cost.flops / speed_at(speeds, speed, size),
                cost.bytes / speed_at(speeds, SPEEDmemory, cost.bytes));
}

/* ---- kept values --------------------------------------------------------- */

/* Returns the most micro-batches live between two calls of the stage's
 * table. */
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

/* Updates last [call]: the last call that reads its values. */
static void keep(const Graph *g, int *last, const Node *x, const Node *reader)
{
    int from = x->call - 1, to = reader->call - 1;

    if (always_there(x) || runs_backward(x) || from < 0 || to < 0)
        return;
    if (first_row(g, to) > first_row(g, last[from]))
        last[from] = to;
}

int *micros_alive(const Graph *g)
{
    int calls = (int)vec_len(g->call);
    int *last = alloc(g->arena, sizeof *last * (size_t)(calls + 1));
    int *alive = alloc(g->arena, sizeof *alive * (size_t)(calls + 1));

    for (int c = 0; c < calls; c++)
        last[c] = c;
    for (size_t i = 0; i < vec_len(g->node) && calls; i++) {
        const Node *n = g->node[i];
        for (int j = 0; j < n->nin && runs_backward(n); j++)
            keep(g, last, owner_of_bytes(n->in[j]), n);
    }
    alive[0] = 1;
    for (int c = 0; c < calls; c++)
        alive[c + 1] = most_alive(g, c, last[c]);
    return alive;
}

void kept_bytes(const Graph *g, Table *unit, int64_t *kept)
{
    const int *alive = micros_alive(g);
    char *seen = alloc(g->arena, vec_len(g->node) + 1);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        kept[(uintptr_t)table_get(unit, KEYP(n->scope->unit))] +=
            rounded_bytes(g, n);
        for (int k = 0; k < n->nin && runs_backward(n); k++) {
            const Node *x = owner_of_bytes(n->in[k]);
            if (seen[x->id] || always_there(x) || runs_backward(x))
                continue;
            seen[x->id] = 1;
            kept[(uintptr_t)table_get(unit, KEYP(x->scope->unit))] +=
                local_bytes(g, x) * alive[x->call];
        }
    }
}

double bytes_a_second(const Graph *g, const Scope *unit)
{
    int dear = g->dear && unit && table_get(g->dear, KEYP(unit));
    double price = dear ? g->dear_price : g->price;

    return price > 0 && program_trains(g->prog) ? 1 / price : HUGE_VAL;
}
