/* expert_capacity.c: which of the pairs (token, choice) an expert takes when it
 * has room for a fixed number of each micro-batch (capacity, as in GShard and
 * Switch):
 *
 *     C = ceil(tokens * top / experts * route.factor), at most all tokens
 *
 *     %p = pick %w1 %e                 %k = keep %e %g rows=C
 *     %y = dot %x %p hidden            %p = pick %w1 %k
 *     ...                        =>    ...
 *     %z = mul %y %g                   %z = mul %y %g
 *     %o = sum %z top                  %o = sum %z top
 *
 * g, the weights that multiply the rows, decides who stays, or the order of the
 * tokens does (route.drop). Weights that agree but for rounding are equal, so
 * that all folds drop the same. A pair that goes is -1 in %k: it has no row, so
 * its contribution and the gradient of its weight are 0. What else reads %e, as
 * a balance loss does, sees the router's choice. The share of dropped pairs is
 * a metric of the layer. */
#include "../../ir/keys.h"
#include "model.h"

/* ---- the weights --------------------------------------------------------- */

enum { AFTER = 1, INROWS = 2 }; /* behind a weight indexed by e; its rows */

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

/* One number for each pair: the axes of e and no others. */
static int per_pair(const Node *x, const Node *e)
{
    if (x->nd != e->nd)
        return 0;
    for (int i = 0; i < x->nd; i++)
        if (dim_of(e, x->dim[i].a) < 0)
            return 0;
    return 1;
}

/* What multiplies the rows of e; null: nothing does. */
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

/* ---- equal load ---------------------------------------------------------- */

static int is_choice(const Node *c, const Axis *a)
{
    return c->op == Otopk && a == c->at.topk.new;
}

/* The token's number in its micro-batch, row-major; *tokens: how many. */
static Node *token_number(Graph *g, const Node *pick, const Node *e,
                          int64_t *tokens)
{
    const Node *c = choice_of(e);
    Node *sum = NULL;

    *tokens = 1;
    for (int d = e->nd; d-- > 0;) {
        if (is_choice(c, e->dim[d].a) || g_ismicro(e->dim[d].a))
            continue;
        Node *i = g_node(g, Oiota, pick->loc, 0, NULL), *k;
        i->at.iota.axis = e->dim[d].a;
        i->dt = Di32;
        i->dim[i->nd++] = e->dim[d];
        g_placed(infer(g, i), pick);
        k = g_const(g, pick->loc, Di32, (double)*tokens);
        i = g_placed(g_ew(g, Omul, pick->loc, i, k, NULL), pick);
        sum = sum ? g_placed(g_ew(g, Oadd, pick->loc, sum, i, NULL), pick) : i;
        *tokens *= e->dim[d].n;
    }
    return sum;
}

/* For each block the first experts of a pseudo-random order of all, as many as
 * a token chooses: [block top], or [block]. number: of the choice. */
static Node *drawn(Graph *g, const Node *pick, const Node *e, Axis *block,
                   int64_t blocks, int64_t number)
{
    const Node *c = choice_of(e);
    int several = c->op == Otopk;
    Axis *experts = unpadded(pick->at.pick.axis);
    Axis *top = several ? c->at.topk.new : g_axis(g, "top'1");
    Node *n = g_node(g, Orandom, pick->loc, 0, NULL);

    n->at.random.kind = RANDuniform;
    n->at.random.arg = 1;
    n->at.random.key = number;
    n->dt = Df32;
    n->dim[n->nd++] = (Dim){ block, blocks };
    n->dim[n->nd++] = (Dim){ experts, experts->n };
    g_placed(infer(g, n), pick)->reg = REGpre;
    n = g_node(g, Otopk, pick->loc, 1, &n);
    n->at.topk.k = several ? c->at.topk.k : 1;
    n->at.topk.axis = experts;
    n->at.topk.new = top;
    g_placed(infer(g, n), pick)->reg = REGpre;
    if (!several)
        g_placed(n = g_red(g, Osum, n, &top, 1), pick)->reg = REGpre;
    return n;
}

/* In each block of as many tokens as there are experts, choice j of token t is
 * expert (t + o_j) mod experts: each expert gets every choice once, and a
 * token's experts lie anywhere. The router's choice still is computed: its cost
 * belongs to a benchmark. */
static Node *balanced(Graph *g, const Node *pick, Node *e, int64_t number)
{
    int64_t tokens, experts = unpadded(pick->at.pick.axis)->n;
    Axis *block = g_axis(g, "block'1");
    Node *t = token_number(g, pick, e, &tokens);
    Node *size = g_const(g, pick->loc, Di32, (double)experts);
    Node *at = g_placed(g_ew(g, Omod, pick->loc, t, size, NULL), pick);

    at = g_placed(g_ew(g, Osub, pick->loc, t, at, NULL), pick);
    at = g_placed(g_ew(g, Odiv, pick->loc, at, size, NULL), pick);
    Node *in[2] = { drawn(g, pick, e, block, (tokens + experts - 1) / experts,
                          number),
                    g_placed(g_cast(g, at, Di32), pick) }; /* exact */
    Node *n = g_node(g, Ogather, pick->loc, 2, in);
    n->at.gather.axis = block;
    g_placed(infer(g, n), pick);
    n = g_placed(g_ew(g, Oadd, pick->loc, n, t, NULL), pick);
    n = g_placed(g_ew(g, Omod, pick->loc, n, size, NULL), pick);
    Node *zero =
        g_ew(g, Omul, pick->loc, e, g_const(g, pick->loc, e->dt, 0), NULL);
    g_placed(zero, pick);
    return g_placed(g_ew(g, Oadd, pick->loc, zero, n, NULL), pick);
}

static void force_balance(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *done = table_new(g->arena);
    int64_t number = 0;

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i], *e = p->op == Opick ? p->in[1] : NULL;
        if (!e || table_get(done, KEYP(e)))
            continue;
        Node *b = balanced(g, p, e, number++);
        *table_at(done, KEYP(b)) = b;
        for (size_t k = 0; k < count; k++)
            for (int q = 0; q < g->node[k]->nin; q++)
                if (g->node[k]->in[q] == e)
                    g->node[k]->in[q] = b;
    }
    g_sort(g);
}

/* ---- what is kept -------------------------------------------------------- */

/* A product that is whole but for its rounding is not rounded up. */
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
        Node *p = g->node[i];
        if (p->op != Opick || p->in[1]->op == Odrop_to_capacity)
            continue;
        void **k = table_at(kept, KEYP(p->in[1]));
        if (!*k) {
            *k = keep(g, p);
            if (counts && of_batch(p->in[1]))
                count_dropped(g, *k);
        }
        any = 1;
    }
    for (size_t i = 0; i < count && any; i++) {
        Node *p = g->node[i];
        void *k = p->op == Opick ? table_get(kept, KEYP(p->in[1])) : NULL;
        if (k)
            p->in[1] = k;
    }
    if (any)
        g_sort(g); /* weights may stand behind the first product */
}

/* ---- entry --------------------------------------------------------------- */

void pass_expert_capacity(Graph *g)
{
    if (program_trains(g->prog) && opts_int(g->opts, "train.expert_metrics"))
        expert_metrics(g);
    if (opts_expert_load(g->opts) == LOADforced)
        force_balance(g);
    if (opts_route_policy(g->opts) != ROUTEdropless)
        drop_pairs(g);
}
