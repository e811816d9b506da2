/* expert_metrics.c: how evenly a layer's experts are chosen, as metrics of each
 * step, where train.expert_metrics asks for them. load is the share of all
 * choices of the step that fall on an expert, before any is dropped:
 *
 *     expert_loads    load / mean(load) of each expert, a vector
 *     expert_load     the largest of them
 *     rank_load       the same of what ranks hold, where ep cuts experts evenly
 *     expert_entropy  -sum(load ln load) / ln(experts); 1: all equally often
 *
 * and of the model the largest expert_load of its layers. */
#include "model.h"

static int has_metric(const Graph *g, const Scope *scope, const char *name)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Ometric && g->node[i]->scope == scope &&
            g->node[i]->at.metric.name == name)
            return 1;
    return 0;
}

void add_metric(Graph *g, const char *name, Node *value)
{
    const char *own = intern(name);

    for (int k = 2; has_metric(g, value->scope, own); k++)
        own = intern(strf(g->arena, "%s%d", name, k));
    Node *m = g_placed(g_node(g, Ometric, value->loc, 1, &value), value);
    m->at.metric.name = own;
    infer(g, m);
}

static Node *two(Graph *g, Op op, Node *a, Node *b)
{
    return g_placed(g_ew(g, op, a->loc, a, b, NULL), a);
}

static Node *number(Graph *g, const Node *like, double v)
{
    return g_const(g, like->loc, Df32, v);
}

static Node *over(Graph *g, Op op, Node *a, Axis *axis)
{
    return g_placed(g_red(g, op, a, &axis, 1), a);
}

/* [axis]: the share of choices that each has. */
static Node *load_of(Graph *g, const Node *pick, Node *e, Axis *axis)
{
    Axis *axes[MAXD];
    int n = 0;
    Node *each = g_iota(g, axis, pick);

    for (int i = 0; i < e->nd; i++)
        if (!g_ismicro(e->dim[i].a))
            axes[n++] = e->dim[i].a;
    Node *is = g_placed(g_ew(g, Oeq, pick->loc, e, each, NULL), pick);
    Node *share = g_red(g, Omean, g_placed(g_cast(g, is, Df32), pick), axes, n);
    g_placed(share, pick);
    return two(g, Odiv, share, over(g, Osum, share, axis));
}

/* Shares of n over the mean of all. */
static Node *over_mean(Graph *g, Node *load, Axis *axis)
{
    return two(g, Omul, load, number(g, load, (double)axis->n));
}

static Node *entropy(Graph *g, Node *load, Axis *axis)
{
    Node *least = two(g, Omaximum, load, number(g, load, 1e-30));
    Node *ln = g_placed(g_ew(g, Olog, load->loc, least, NULL, NULL), load);
    double scale = axis->n > 1 ? -1 / log((double)axis->n) : 0;

    return two(g, Omul, over(g, Osum, two(g, Omul, load, ln), axis),
               number(g, load, scale));
}

Axis *own_axis(Graph *g, const char *name, int64_t n)
{
    for (int k = 1;; k++) {
        Axis *a = g_axis(g, strf(g->arena, "%s'%d", name, k));
        a->n = a->n ? a->n : n;
        if (a->n == n)
            return a;
    }
}

static Node *of_ranks(Graph *g, Node *load, Axis *axis, int64_t ranks)
{
    Axis **into = alloc(g->arena, 2 * sizeof *into);
    Node *n = g_placed(g_node(g, Osplit, load->loc, 1, &load), load);

    into[0] = own_axis(g, "rank", ranks);
    into[1] = own_axis(g, "member", axis->n / ranks);
    n->at.split.axis = axis;
    n->at.split.into = (Axes){ 2, into };
    Node *rank = over_mean(g, over(g, Osum, infer(g, n), into[1]), into[0]);
    return over(g, Omax, rank, into[0]);
}

static Node *add_layer(Graph *g, const Node *pick, Node *e, Node *most)
{
    Axis *axis = unpadded(pick->at.pick.axis);
    int64_t ranks = opts_int(g->opts, "fold.ep");
    Node *load = load_of(g, pick, e, axis);
    Node *each = over_mean(g, load, axis), *full = over(g, Omax, each, axis);

    add_metric(g, "expert_loads", each);
    add_metric(g, "expert_load", full);
    add_metric(g, "expert_entropy", entropy(g, load, axis));
    if (ranks > 1 && axis->n % ranks == 0)
        add_metric(g, "rank_load", of_ranks(g, load, axis, ranks));
    return most ? two(g, Omaximum, most, full) : full;
}

static const Scope *outermost(const Scope *scope)
{
    while (scope->up)
        scope = scope->up;
    return scope;
}

void expert_metrics(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *seen = table_new(g->arena);
    Node *most = NULL;

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i], *e = router_choice(p);
        if (!e || !of_batch(e))
            continue;
        void **once = table_at(seen, KEYP(e));
        if (!*once)
            most = add_layer(g, p, e, most);
        *once = e;
    }
    if (!most)
        return;
    Node *all = g_copyof(g, most, most->in);
    all->scope = outermost(most->scope);
    add_metric(g, "expert_load", infer(g, all));
}
