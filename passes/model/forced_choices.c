/* forced_choices.c: experts that tokens choose whatever their router says, for
 * benchmarks (route.balance). The router's choice still is computed: its cost
 * belongs to a benchmark.
 *
 *     %e = topk %p 2 expert      =>      %e = topk %p 2 expert
 *     %w = pick %w1 %e                   %d = random .., its topk      in pre
 *                                        %f = add (mul %e 0) (gather %d ..)
 *                                        %w = pick %w1 %f
 *
 * forced: in each block of as many tokens as there are experts, choice j of
 * token t is expert (t + o_j) mod experts: each expert gets every choice once,
 * and a token's experts lie anywhere. assumed: experts are drawn one after
 * another, each by its odds among those that are left (route.assume; Efraimidis
 * and Spirakis 2006: the largest of log(u) / odds); token t has the draws of
 * row t mod DRAWS. */
#include "../../ir/settings/keys.h"
#include "model.h"

enum { DRAWS = 1021 }; /* a prime: no other period meets it */

typedef struct Forced {
    Graph *g;
    const Node *pick;
    Node *e;             /* the router's choice */
    const Axis *choices; /* of a token; null: it has one */
    Axis *experts;
    int64_t number; /* of the choice in the model */
} Forced;

/* The axis of a token's choices; null: it has one. */
static const Axis *choices_of(const Node *e)
{
    const Node *c = choice_of(e);

    return c->op == Otopk ? c->at.topk.new : NULL;
}

Node *token_number(Graph *g, const Node *by, const Node *e, const Axis *top,
                   int64_t *tokens)
{
    Node *sum = NULL;

    *tokens = 1;
    for (int d = e->nd; d-- > 0;) {
        if (e->dim[d].a == top || g_ismicro(e->dim[d].a))
            continue;
        Node *i = g_iota(g, e->dim[d].a, by);
        Node *k = g_const(g, by->loc, Di32, (double)*tokens);
        i = g_placed(g_ew(g, Omul, by->loc, i, k, NULL), by);
        sum = sum ? g_placed(g_ew(g, Oadd, by->loc, sum, i, NULL), by) : i;
        *tokens *= e->dim[d].n;
    }
    return sum;
}

static Node *ew(const Forced *forced, Op op, Node *a, Node *b)
{
    return g_placed(g_ew(forced->g, op, forced->pick->loc, a, b, NULL),
                    forced->pick);
}

static Node *number(const Forced *forced, Dtype dt, double v)
{
    return g_const(forced->g, forced->pick->loc, dt, v);
}

static Node *in_pre(Node *n)
{
    n->reg = REGpre;
    return n;
}

/* f32 [rows experts], in [0, 1). */
static Node *uniform(const Forced *forced, Axis *rows, int64_t n)
{
    Node *r = g_node(forced->g, Orandom, forced->pick->loc, 0, NULL);

    r->at.random.kind = RANDuniform;
    r->at.random.arg = 1;
    r->at.random.key = forced->number;
    r->dt = Df32;
    r->dim[r->nd++] = (Dim){ rows, n };
    r->dim[r->nd++] = (Dim){ forced->experts, forced->experts->n };
    return in_pre(g_placed(infer(forced->g, r), forced->pick));
}

/* The largest of each row, as many as a token chooses: [rows top] or [rows]. */
static Node *largest(const Forced *forced, Node *v)
{
    Graph *g = forced->g;
    const Node *c = choice_of(forced->e);
    Axis *top = forced->choices ? c->at.topk.new : g_axis(g, "top'1");
    Node *n = g_node(g, Otopk, forced->pick->loc, 1, &v);

    n->at.topk.k = forced->choices ? c->at.topk.k : 1;
    n->at.topk.axis = forced->experts;
    n->at.topk.new = top;
    in_pre(g_placed(infer(g, n), forced->pick));
    return forced->choices
               ? n
               : in_pre(g_placed(g_red(g, Osum, n, &top, 1), forced->pick));
}

static Node *row_of(const Forced *forced, Node *table, Axis *rows, Node *at)
{
    Node *in[2] = { table, at };
    Node *n = g_node(forced->g, Ogather, forced->pick->loc, 2, in);

    n->at.gather.axis = rows;
    return g_placed(infer(forced->g, n), forced->pick);
}

/* ---- rules --------------------------------------------------------------- */

static Node *balanced(const Forced *forced)
{
    int64_t tokens, experts = forced->experts->n;
    Axis *block = g_axis(forced->g, "block'1");
    Node *t = token_number(forced->g, forced->pick, forced->e, forced->choices,
                           &tokens);
    Node *size = number(forced, Di32, (double)experts);
    Node *at = ew(forced, Osub, t, ew(forced, Omod, t, size));

    at = g_cast(forced->g, ew(forced, Odiv, at, size), Di32); /* exact */
    Node *u = uniform(forced, block, (tokens + experts - 1) / experts);
    Node *n = row_of(forced, largest(forced, u), block, at);
    return ew(forced, Omod, ew(forced, Oadd, n, t), size);
}

/* f32 [experts]: 1 / odds. */
static Node *inverse_odds(const Forced *forced)
{
    const Opts *opts = forced->g->opts;
    double power;

    if (!assumed_power(opts, &power))
        err(opts_loc(opts, "route.balance"),
            "route.balance=assumed draws by route.assume=uniform or zipf:1, "
            "not by a file");
    if (power == 0)
        return number(forced, Df32, 1);
    Node *i = in_pre(g_iota(forced->g, forced->experts, forced->pick));
    Node *at = in_pre(ew(forced, Oadd, i, number(forced, Di32, 1)));
    Node *ln = in_pre(ew(forced, Olog, g_cast(forced->g, at, Df32), NULL));
    Node *up = in_pre(ew(forced, Omul, ln, number(forced, Df32, power)));
    return in_pre(ew(forced, Oexp, up, NULL));
}

static Node *drawn(const Forced *forced)
{
    int64_t tokens;
    Axis *draw = g_axis(forced->g, "draw'1");
    Node *t = token_number(forced->g, forced->pick, forced->e, forced->choices,
                           &tokens);
    int64_t n = tokens < DRAWS ? tokens : DRAWS;
    Node *u = uniform(forced, draw, n);

    u = in_pre(ew(forced, Omaximum, u, number(forced, Df32, 1e-30)));
    u = in_pre(ew(forced, Omul, in_pre(ew(forced, Olog, u, NULL)),
                  inverse_odds(forced)));
    Node *at = ew(forced, Omod, t, number(forced, Di32, (double)n));
    return row_of(forced, largest(forced, u), draw, at);
}

/* ---- entry --------------------------------------------------------------- */

static Node *forced_choice(const Forced *forced)
{
    Node *n = opts_expert_load(forced->g->opts) == LOADassumed
                  ? drawn(forced)
                  : balanced(forced);
    Node *zero = ew(forced, Omul, forced->e, number(forced, forced->e->dt, 0));

    return ew(forced, Oadd, zero, n);
}

void force_choices(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *done = table_new(g->arena);
    Forced f = { .g = g };

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i], *e = router_choice(p);
        if (!e || table_get(done, KEYP(e)))
            continue;
        f.pick = p;
        f.e = e;
        f.choices = choices_of(e);
        f.experts = unpadded(p->at.pick.axis);
        Node *b = forced_choice(&f);
        f.number++;
        *table_at(done, KEYP(b)) = b;
        for (size_t k = 0; k < count; k++)
            for (int q = 0; q < g->node[k]->nin; q++)
                if (g->node[k]->in[q] == e)
                    g->node[k]->in[q] = b;
    }
    g_sort(g);
}
