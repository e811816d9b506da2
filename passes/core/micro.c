/* micro.c: the axis `micro` and sums over it: numbers of micro-batches of a
 * step and a rank, values that count once in each, and accumulators. */
#include "core.h"

double micro_batches(const Graph *g)
{
    const Loc *at = opts_loc(g->opts, "train.batch");
    const Axis *a = g_role(g, ROLEbatch);
    int64_t batch = a && a->n ? a->n : 1, all;

    all = opts_given(g->opts, "train.batch") ? opts_int(g->opts, "train.batch")
                                             : batch;
    if (all % batch)
        err(at, "train.batch is %lld, not a multiple of axis '%s', %lld",
            (long long)all, a->name, (long long)batch);
    if (all / batch > MAXMICROS)
        err(at,
            "train.batch is %lld: %lld micro-batches of %lld, and a step has "
            "at most %d",
            (long long)all, (long long)(all / batch), (long long)batch,
            MAXMICROS);
    return (double)(all / batch);
}

Node *g_total(Graph *g, Node *n)
{
    Axis *ax[MAXD];

    for (int i = 0; i < n->nd; i++)
        ax[i] = n->dim[i].a;
    return g_red(g, Osum, n, ax, n->nd);
}

Node *g_per_micro(Graph *g, Node *n)
{
    Axis *micro = g_micro(g);
    Node *s;

    if (dim_of(n, micro) >= 0)
        return n;
    s = g_node(g, Obroadcast, n->loc, 1, &n);
    s->scope = n->scope;
    s->reg = n->reg == REGden ? REGden : REGbody;
    s->dim[s->nd++] = (Dim){ micro, 1 };
    for (int i = 0; i < n->nd; i++)
        s->dim[s->nd++] = n->dim[i];
    return infer(g, s);
}

Node *g_accum(Graph *g, Node *n, Reduce op)
{
    Node *a = g_node(g, Oaccum, n->loc, 1, &n);

    a->at.accum.op = op;
    a->dt = Df32;
    return infer(g, g_placed(a, n));
}

int64_t micro_turns(const Graph *g)
{
    int64_t dp = g->mesh->size[Mdp], all = (int64_t)micro_batches(g);

    if (all % dp)
        err(opts_loc(g->opts, "fold.dp"),
            "fold.dp is %lld, but a step has "
            "%lld micro-batch%s (train.batch over axis 'batch'): each rank "
            "must run as many",
            (long long)dp, (long long)all, all == 1 ? "" : "es");
    return all / dp;
}

int64_t program_turns(const Graph *g)
{
    if (!program_trains(g->prog) && g->prog != PGeval)
        return 1;
    return g->mesh ? micro_turns(g) : (int64_t)micro_batches(g);
}

const char *why_unpaired(const Graph *g)
{
    return g->mesh->size[Mpp] > 1 ? "stages have a schedule of their own"
           : micro_turns(g) % 2   ? "each rank has an odd number of them"
                                  : NULL;
}

int takes_pairs(const Graph *g)
{
    int asked =
        opts_given(g->opts, "fold.pair") && opts_int(g->opts, "fold.pair");

    return program_budgeted(g->prog) &&
           (g->turns == TURNSpairs || (g->turns == TURNSopen && asked));
}

int may_pair(const Graph *g)
{
    return g->turns == TURNSopen && program_budgeted(g->prog) && g->mesh &&
           !opts_given(g->opts, "fold.pair") && !states_price(g->opts) &&
           opts_int(g->opts, "fold.overlap") && !machine_of(g)->serial &&
           !why_unpaired(g);
}
