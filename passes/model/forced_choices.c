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
    Cursor b, pre;       /* at the pick; there, but in pre */
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
    Cursor b = cursor_at(g, by);
    Node *sum = NULL;

    *tokens = 1;
    for (int d = e->nd; d-- > 0;) {
        if (e->dim[d].a == top || g_ismicro(e->dim[d].a))
            continue;
        Node *i = b_iota(b, e->dim[d].a);
        i = b_op2(b, Omul, i, b_const(b, Di32, (double)*tokens));
        sum = sum ? b_op2(b, Oadd, sum, i) : i;
        *tokens *= e->dim[d].n;
    }
    return sum;
}

/* f32 [rows experts], in [0, 1). */
static Node *uniform(const Forced *forced, Axis *rows, int64_t n)
{
    Node *r = b_node(forced->pre, Orandom, 0, NULL);

    r->at.random.kind = RANDuniform;
    r->at.random.arg = 1;
    r->at.random.key = forced->number;
    r->dt = Df32;
    r->dim[r->nd++] = (Dim){ rows, n };
    r->dim[r->nd++] = (Dim){ forced->experts, forced->experts->n };
    return infer(forced->b.g, r);
}

/* The largest of each row, as many as a token chooses: [rows top] or [rows]. */
static Node *largest(const Forced *forced, Node *v)
{
    Graph *g = forced->b.g;
    const Node *c = choice_of(forced->e);
    Axis *top = forced->choices ? c->at.topk.new : g_axis(g, "top'1");
    Node *n = b_node(forced->pre, Otopk, 1, &v);

    n->at.topk.k = forced->choices ? c->at.topk.k : 1;
    n->at.topk.axis = forced->experts;
    n->at.topk.new = top;
    infer(g, n);
    return forced->choices ? n : b_red(forced->pre, Osum, n, &top, 1);
}

/* ---- rules --------------------------------------------------------------- */

static Node *balanced(const Forced *forced)
{
    Cursor b = forced->b;
    int64_t tokens, experts = forced->experts->n;
    Axis *block = g_axis(b.g, "block'1");
    Node *t = token_number(b.g, b.at, forced->e, forced->choices, &tokens);
    Node *size = b_const(b, Di32, (double)experts);
    Node *at = b_op2(b, Osub, t, b_op2(b, Omod, t, size));

    at = b_cast(b, b_op2(b, Odiv, at, size), Di32); /* exact */
    Node *u = uniform(forced, block, (tokens + experts - 1) / experts);
    Node *n = b_gather(b, largest(forced, u), at, block);
    return b_op2(b, Omod, b_op2(b, Oadd, n, t), size);
}

/* f32 [experts]: 1 / odds. */
static Node *inverse_odds(const Forced *forced)
{
    Cursor b = forced->pre;
    const Opts *opts = b.g->opts;
    double power;

    if (!assumed_power(opts, &power))
        err(opts_loc(opts, "route.balance"),
            "route.balance=assumed draws by route.assume=uniform or zipf:1, "
            "not by a file");
    if (power == 0)
        return b_const(b, Df32, 1);
    Node *one = b_const(b, Di32, 1);
    Node *at = b_op2(b, Oadd, b_iota(b, forced->experts), one);
    Node *ln = b_op1(b, Olog, b_cast(b, at, Df32));
    return b_op1(b, Oexp, b_op2(b, Omul, ln, b_const(b, Df32, power)));
}

static Node *drawn(const Forced *forced)
{
    Cursor b = forced->b, pre = forced->pre;
    int64_t tokens;
    Axis *draw = g_axis(b.g, "draw'1");
    Node *t = token_number(b.g, b.at, forced->e, forced->choices, &tokens);
    int64_t n = tokens < DRAWS ? tokens : DRAWS;
    Node *u = uniform(forced, draw, n);

    u = b_op2(pre, Omaximum, u, b_const(pre, Df32, 1e-30));
    Node *odds = inverse_odds(forced);
    u = b_op2(pre, Omul, b_op1(pre, Olog, u), odds);
    Node *at = b_op2(b, Omod, t, b_const(b, Di32, (double)n));
    return b_gather(b, largest(forced, u), at, draw);
}

/* ---- entry --------------------------------------------------------------- */

static Node *forced_choice(const Forced *forced)
{
    Cursor b = forced->b;
    Node *n = opts_expert_load(b.g->opts) == LOADassumed ? drawn(forced)
                                                         : balanced(forced);
    Node *zero = b_op2(b, Omul, forced->e, b_const(b, forced->e->dt, 0));

    return b_op2(b, Oadd, zero, n);
}

void force_choices(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *done = table_new(g->arena);
    Forced f = { 0 };

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i], *e = router_choice(p);
        if (!e || table_get(done, KEYP(e)))
            continue;
        f.b = f.pre = cursor_at(g, p);
        f.pre.reg = REGpre;
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
