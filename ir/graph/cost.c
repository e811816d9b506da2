/* cost.c: FLOPs and bytes of a node on one rank, and FLOPs of a model per token
 * by the usual formula. */
#include "graph.h"

static double local_product(const Graph *g, const Node *n)
{
    double e = (double)local_elems(g, n);

    if (n->op == Ogmm_wgrad) { /* each row belongs to one expert */
        MapLayout l = map_layout(g, n->in[2]);
        return e * ((double)l.cap / (double)l.experts);
    }
    for (int i = 0; i < n_axes(n)->n; i++) {
        int d = dim_of(n->in[0], n_axes(n)->v[i]);
        e *= d >= 0 ? (double)local_n(g, n->in[0], d) : 1;
    }
    return e;
}

/* Returns the share of a rank's row capacity that a balanced router fills:
 * kernels stop at the last row. Padded rows are always full. A later round has
 * the pairs that earlier rounds left: together the rounds of all ranks have all
 * pairs. */
static double filled(const Graph *g, const Node *n)
{
    const Node *map = n->op == Ogmm_wgrad ? n->in[2] : n->map;

    for (int i = 0; i < n->nin && !map; i++)
        map = n->in[i]->map;
    if (!map || map->op != Oroute || map->at.route.padded)
        return 1;
    MapLayout l = map_layout(g, map);
    double skew = map->at.route.skew > 0 ? map->at.route.skew : 1;
    double most = skew * expected_rows(map, &l);
    double left = most / (double)l.cap - (double)map->at.route.round;
    return fmax(0, fmin(left, 1));
}

/* Returns FLOPs (a multiply-add counts 2, an elementwise or moved element 1)
 * and bytes (each operand read once, the result written once) on one rank. */
Cost cost_of(const Graph *g, const Node *n)
{
    Cost c = { 0 };

    c.bytes = (double)local_bytes(g, n);
    for (int i = 0; i < n->nin; i++)
        c.bytes += (double)local_bytes(g, n->in[i]);
    switch (optab[n->op].cls) {
    case EIN: c.flops = 2 * local_product(g, n); break;
    case EW:
    case MOVE: c.flops = (double)local_elems(g, n); break;
    case RED: c.flops = local_product(g, n); break;
    case VIEW:
    case SRC: c.bytes = 0; break;
    default: break;
    }
    c.flops *= filled(g, n);
    return c;
}

double flops_of(const Graph *g, const Node *n)
{
    double f = n->op == Opick ? 0 : cost_of(g, n).flops;

    for (size_t i = 0; n->body && i < vec_len(n->body->node); i++)
        f += flops_of(n->body, n->body->node[i]);
    return f;
}

/* ---- the model, per token ------------------------------------------------ */

typedef struct FlopCount {
    double macs;      /* multiply-adds of a micro-batch */
    Axis *chosen[64]; /* axes indexed by a router */
    int nchosen;
} FlopCount;

static double product_of(const Node *n)
{
    double e = (double)g_elems(n);

    for (int i = 0; i < n->at.dot.axes.n; i++)
        e *= (double)n->in[0]->dim[dim_of(n->in[0], n->at.dot.axes.v[i])].n;
    return e;
}

/* Is n a router's product, which the formula does not count? */
static int is_router(const FlopCount *count, const Node *n)
{
    for (int i = 0; i < n->nd; i++)
        if (axis_at(count->chosen, count->nchosen, n->dim[i].a) >= 0)
            return 1;
    return 0;
}

static int weight(const Node *n, Node *const *arg)
{
    if (n->op == Oarg)
        return arg && weight(arg[n->at.arg.index], NULL);
    return n->op == Oparam || n->op == Opick;
}

static void count_dots(FlopCount *count, const Graph *g, Node *const *arg,
                       double share)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op == Ocall && (is_attention(n) || !reads_scores(n)))
            count_dots(count, n->body, n->in, is_attention(n) ? 0.5 : 0);
        if (n->op != Odot)
            continue;
        if (share > 0)
            count->macs += share * product_of(n);
        else if ((weight(n->in[0], arg) || weight(n->in[1], arg)) &&
                 !is_router(count, n))
            count->macs += product_of(n);
    }
}

/* Returns the number of experts of a token. */
static int64_t chosen_of(const Graph *g, const Node *e)
{
    const Node *c = choice_of(e);
    double mean = mean_choices(g, e);
    int64_t k = c->op == Otopk ? c->at.topk.k : 1;

    return mean > 0 && mean < (double)k ? (int64_t)ceil(mean) : k;
}

/* Counts all parameters and those active for a token: the chosen share of an
 * expert weight. */
static void count_params(const Graph *g, FlopCount *count, int64_t *all,
                         int64_t *active)
{
    Table *share = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op != Opick)
            continue;
        Axis *experts = unpadded(n->at.pick.axis);
        if (axis_at(count->chosen, count->nchosen, experts) < 0 &&
            count->nchosen < 64)
            count->chosen[count->nchosen++] = experts;
        if (n->in[0]->op == Oparam)
            *table_at(share, KEYP(n->in[0]->at.param.path)) = n;
    }
    *all = *active = 0;
    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        const Node *pick = table_get(share, KEYP(p->path));
        int64_t e = 1, k = 1, of = 1;
        for (int d = 0; d < p->nd; d++) {
            Axis *a = p->dim[d].a;
            int64_t len = a->parts ? unpadded(a)->n : p->dim[d].n;
            e *= len;
            if (pick && a == pick->at.pick.axis)
                of = len;
        }
        if (p->kind != TKparam || p->at < 0)
            continue;
        if (pick)
            k = chosen_of(g, pick->in[1]);
        *all += e;
        *active += e / of * (pick ? k : of);
    }
}

double flops_per_token(const Graph *g, int64_t *params, int64_t *active)
{
    FlopCount c = { 0 };

    count_params(g, &c, params, active);
    count_dots(&c, g, NULL, 0);
    return 6 * c.macs / fmax(1, g_tokens(g));
}
