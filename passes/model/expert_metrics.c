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
    Node *m = b_node(cursor_at(g, value), Ometric, 1, &value);
    m->at.metric.name = own;
    infer(g, m);
}

static Node *total(Cursor b, Node *x, Axis *axis)
{
    return b_red(b, Osum, x, &axis, 1);
}

/* [axis]: the share of choices that each has. */
static Node *load_of(Cursor b, Node *e, Axis *axis)
{
    Axis *axes[MAXD];
    int n = 0;
    Node *each = b_iota(b, axis);

    for (int i = 0; i < e->nd; i++)
        if (!g_ismicro(e->dim[i].a))
            axes[n++] = e->dim[i].a;
    Node *is = b_cast(b, b_op2(b, Oeq, e, each), Df32);
    Node *share = b_red(b, Omean, is, axes, n);
    return b_op2(b, Odiv, share, total(b, share, axis));
}

/* Shares of n over the mean of all. */
static Node *over_mean(Cursor b, Node *load, Axis *axis)
{
    return b_op2(b, Omul, load, b_const(b, Df32, (double)axis->n));
}

static Node *entropy(Cursor b, Node *load, Axis *axis)
{
    Node *least = b_op2(b, Omaximum, load, b_const(b, Df32, 1e-30));
    Node *ln = b_op1(b, Olog, least);
    double scale = axis->n > 1 ? -1 / log((double)axis->n) : 0;

    Node *factor = b_const(b, Df32, scale);

    return b_op2(b, Omul, total(b, b_op2(b, Omul, load, ln), axis), factor);
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

static Node *of_ranks(Cursor b, Node *load, Axis *axis, int64_t ranks)
{
    Axis *into[2] = { own_axis(b.g, "rank", ranks),
                      own_axis(b.g, "member", axis->n / ranks) };
    Node *n = b_node(b, Osplit, 1, &load);

    n->at.split.axis = axis;
    n->at.split.into = g_axes(b.g, into, 2);
    Node *rank = over_mean(b, total(b, infer(b.g, n), into[1]), into[0]);
    return b_red(b, Omax, rank, into, 1);
}

static Node *add_layer(Graph *g, const Node *pick, Node *e, Node *most)
{
    Axis *axis = unpadded(pick->at.pick.axis);
    int64_t ranks = opts_int(g->opts, "fold.ep");
    Cursor b = cursor_at(g, pick);
    Node *load = load_of(b, e, axis), *each = over_mean(b, load, axis);
    Node *full = b_red(b, Omax, each, &axis, 1);

    add_metric(g, "expert_loads", each);
    add_metric(g, "expert_load", full);
    add_metric(g, "expert_entropy", entropy(b, load, axis));
    if (ranks > 1 && axis->n % ranks == 0)
        add_metric(g, "rank_load", of_ranks(b, load, axis, ranks));
    return most ? b_op2(cursor_at(g, most), Omaximum, most, full) : full;
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
