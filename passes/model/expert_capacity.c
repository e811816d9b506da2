/* expert_capacity.c: selects the pairs (token, choice) that an expert takes if
 * its capacity per micro-batch is fixed (as in GShard and Switch):
 *
 *     C = ceil(tokens * top / experts * route.factor), at most all tokens
 *
 *     %p = pick %w1 %e                 %k = keep %e %g rows=C
 *     %y = dot %x %p hidden            %p = pick %w1 %k
 *     ...                        =>    ...
 *     %z = mul %y %g                   %z = mul %y %g
 *     %o = sum %z top                  %o = sum %z top
 *
 * The weights g that multiply the rows determine which pairs are kept, or the
 * order of the tokens (route.drop). Weights that agree up to rounding are
 * equal, so that all folds drop the same pairs. A dropped pair is -1 in %k: it
 * has no row, so its contribution and the gradient of its weight are 0. Other
 * readers of %e, such as a balance loss, read the router's choice. The share of
 * dropped pairs is a metric of the layer. */
#include "../../ir/settings/keys.h"
#include "model.h"

/* ---- the weights --------------------------------------------------------- */

enum { AFTER = 1, INROWS = 2 }; /* after a weight indexed by e; its rows */

static int over_top(const Node *n, const Node *e)
{
    for (int i = 0; i < n_axes(n)->n; i++)
        if (dim_of(e, n_axes(n)->v[i]) >= 0)
            return 1;
    return 0;
}

static void mark_rows(Graph *g, const Node *e)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        OpClass cls = optab[n->op].cls;
        n->mark = n->op == Opick && n->in[1] == e ? AFTER | INROWS : 0;
        for (int k = 0; k < n->nin; k++) {
            n->mark |= n->in[k]->mark & AFTER;
            if (cls == EW || n->op == Odot || (cls == RED && !over_top(n, e)))
                n->mark |= n->in[k]->mark & INROWS;
        }
    }
}

/* Has x one number per pair: exactly the axes of e? */
static int per_pair(const Node *x, const Node *e)
{
    if (x->nd != e->nd)
        return 0;
    for (int i = 0; i < x->nd; i++)
        if (dim_of(e, x->dim[i].a) < 0)
            return 0;
    return 1;
}

/* Returns the weights that multiply the rows of e; null: none. */
static Node *weights_of(Graph *g, const Node *e)
{
    mark_rows(g, e);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        for (int k = 0; n->op == Omul && k < 2; k++)
            if (n->in[k]->mark & INROWS && !(n->in[!k]->mark & AFTER) &&
                per_pair(n->in[!k], e))
                return n->in[!k];
    }
    return NULL;
}

/* ---- kept pairs ---------------------------------------------------------- */

/* Returns the capacity of an expert. A product that is an integer up to
 * rounding is not rounded up. */
static int64_t rows_each(const Graph *g, const Node *e, const Axis *axis)
{
    double tokens = 1, top = 1, share, mean = mean_choices(g, e);

    const Node *c = choice_of(e);
    for (int i = 0; i < e->nd; i++)
        if (c->op == Otopk && e->dim[i].a == c->at.topk.new)
            top = (double)e->dim[i].n;
        else if (!g_ismicro(e->dim[i].a))
            tokens *= (double)e->dim[i].n;
    top = mean > 0 ? fmin(mean, top) : top;
    share = tokens * top / (double)axis->n * opts_num(g->opts, "route.factor");
    return (int64_t)fmin(fmax(ceil(share * (1 - 1e-12)), 1), tokens);
}

static Node *keep(Graph *g, const Node *pick)
{
    Node *e = pick->in[1], *in[2] = { e, weights_of(g, e) }, *n;
    int first = opts_drop_order(g->opts) == DROPposition;

    if (!in[1] && !first)
        why(g, pick, "nothing multiplies its rows: pairs are kept by position");
    first |= !in[1];
    in[1] = first ? e : in[1];
    n = g_node(g, Odrop_to_capacity, pick->loc, 2, in);
    Axis *axis = unpadded(pick->at.pick.axis);
    int64_t rows = rows_each(g, e, axis);
    n->at.drop_to_capacity =
        (struct drop_to_capacity_attrs){ axis, rows, first };
    why(g, pick, "%lld rows an expert, the rest is dropped", (long long)rows);
    return infer(g, g_placed(n, pick));
}

Node *router_choice(const Node *n)
{
    int chosen =
        n->op == Opick && dim_of(n->in[1], unpadded(n->at.pick.axis)) < 0;

    return chosen ? n->in[1] : NULL;
}

int of_batch(const Node *e)
{
    for (int i = 0; i < e->nd; i++)
        if (axis_covers(e->dim[i].a, ROLEbatch))
            return 1;
    return 0;
}

static void count_dropped(Graph *g, Node *keep)
{
    Axis *axes[MAXD];
    int n = 0;

    for (int i = 0; i < keep->nd; i++)
        if (!g_ismicro(keep->dim[i].a))
            axes[n++] = keep->dim[i].a;
    Node *gone = g_ew(g, One, keep->loc, keep, keep->in[0], NULL);
    gone = g_cast(g, gone, Df32);
    Node *share = g_red(g, Omean, gone, axes, n);
    gone->scope = gone->in[0]->scope = share->scope = keep->scope;
    add_metric(g, "dropped", share);
}

static void drop_pairs(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *kept = table_new(g->arena);
    int counts = g->prog != PGforward, any = 0;

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i], *e = router_choice(p);
        if (!e || e->op == Odrop_to_capacity)
            continue;
        void **k = table_at(kept, KEYP(e));
        if (!*k) {
            *k = keep(g, p);
            if (counts && of_batch(e))
                count_dropped(g, *k);
        }
        any = 1;
    }
    for (size_t i = 0; i < count && any; i++) {
        Node *p = g->node[i];
        void *k = router_choice(p) ? table_get(kept, KEYP(p->in[1])) : NULL;
        if (k)
            p->in[1] = k;
    }
    if (any)
        g_sort(g); /* weights may come after the first product */
}

/* ---- entry --------------------------------------------------------------- */

void pass_expert_capacity(Graph *g)
{
    if (program_trains(g->prog) && opts_int(g->opts, "train.expert_metrics"))
        expert_metrics(g);
    if (opts_expert_load(g->opts) != LOADlearned)
        force_choices(g);
    if (opts_route_policy(g->opts) != ROUTEdropless)
        drop_pairs(g);
}
