/* simplify.c: folds constants, drops identities, merges equal nodes, and moves
 * the router's weights before the last projection, since scaling commutes with
 * contraction:
 *
 *     %y = dot %h %w2[e] ffn               %s = mul %g %h
 *     %z = mul %g %y                =>     %y = dot %s %w2[e] ffn
 *     %o = sum %z top                      %o = sum %y top
 *
 * The product %y then need not be kept for the gradient of %g: %h is narrower
 * and is kept anyway (memory-efficient permutation of Megatron-Core). */
#include "model.h"

typedef struct Simplify {
    int *uses;
} Simplify;

static int folds(const Node *n)
{
    if (optab[n->op].cls != EW || n->nd || n->nin > 2 || n->op == Ocast)
        return 0;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->op != Oconst)
            return 0;
    return dtypes[n->dt].kind == 'f';
}

static double evaluate(const Node *n, int *known)
{
    double a = n->in[0]->at.constant.value,
           b = n->nin > 1 ? n->in[1]->at.constant.value : 0;

    switch (n->op) {
    case Oadd: return a + b;
    case Osub: return a - b;
    case Omul: return a * b;
    case Odiv: return a / b;
    case Oneg: return -a;
    case Osqrt: return sqrt(a);
    case Omaximum: return fmax(a, b);
    case Ominimum: return fmin(a, b);
    default: *known = 0; return 0;
    }
}

static Node *fold(Graph *g, Node *n)
{
    int known = 1;
    double v = evaluate(n, &known);

    return known ? g_const(g, n->loc, n->dt, v) : n;
}

/* Returns the operand that n equals, or n. */
static Node *identity(Node *n)
{
    Node *a = n->in[0], *b = n->nin > 1 ? n->in[1] : NULL, *r = n;

    switch (n->op) {
    case Oadd: r = constant_is(b, 0) ? a : constant_is(a, 0) ? b : n; break;
    case Osub: r = constant_is(b, 0) ? a : n; break;
    case Omul: r = constant_is(b, 1) ? a : constant_is(a, 1) ? b : n; break;
    case Odiv: r = constant_is(b, 1) ? a : n; break;
    case Opow: r = constant_is(b, 1) ? a : n; break;
    case Ocast: r = n->dt == Dreal ? n : a; break; /* see precision.c */
    case Obroadcast: r = a; break;
    default: break;
    }
    return r->dt == n->dt && same_dims(r, n) ? r : n;
}

static Node *power(Graph *g, Node *n)
{
    Node *a = n->in[0];

    if (constant_is(n->in[1], 2))
        return g_ew(g, Omul, n->loc, a, a, NULL);
    if (constant_is(n->in[1], 0.5))
        return g_ew(g, Osqrt, n->loc, a, NULL, NULL);
    return n;
}

/* Returns the dot of n = sum(mul(g, dot(h, W[e])), top), and its operand index
 * in mul; null: n has another form. */
static Node *projection(const Node *n, const Simplify *simplify, int *at)
{
    const Node *m = n->in[0];

    if (m->op != Omul || simplify->uses[m->id] != 1)
        return NULL;
    for (*at = 0; *at < 2; ++*at) {
        Node *d = m->in[*at];
        if (d->op == Odot && d->in[1]->op == Opick &&
            simplify->uses[d->id] == 1)
            return d;
    }
    return NULL;
}

/* Is every axis of a an axis of b? */
static int within(const Node *a, const Node *b)
{
    for (int i = 0; i < a->nd; i++)
        if (dim_of(b, a->dim[i].a) < 0)
            return 0;
    return 1;
}

static Node *weigh_first(Graph *g, Node *n, const Simplify *simplify)
{
    int at;
    Node *d = projection(n, simplify, &at), *w, *h, *y;

    if (!d)
        return n;
    w = n->in[0]->in[!at];
    h = d->in[0];
    if (!within(w, d->in[1]->in[1]) || !within(w, h))
        return n;
    why(g, n, "router weights move before the projection of line %d",
        d->loc ? d->loc->line : 0);
    unsigned modules = h->scope->marks & ~(unsigned)MARKSONE;
    y = g_ew(g, Omul, n->in[0]->loc, h, w, NULL);
    y->scope = g_marked(g, n->scope, n->scope->marks | modules);
    y = g_dot(g, d->loc, y, d->in[1], d->at.dot.axes.v, d->at.dot.axes.n, NULL);
    y->scope = n->scope;
    return g_red(g, Osum, y, n->at.sum.axes.v, n->at.sum.axes.n);
}

Node *g_folded(Graph *g, Node *n)
{
    Node *r = n;

    if (optab[n->op].cls == EW && n->nin <= 2)
        r = folds(n) ? fold(g, n) : identity(n);
    return r == n && n->op == Opow ? power(g, n) : r;
}

static Node *simplified(Graph *g, Node *n, void *ctx)
{
    Simplify *simplify = ctx;
    Node *r = g_folded(g, n);

    if (r == n && n->op == Osum && simplify->uses)
        r = weigh_first(g, n, simplify);
    return r;
}

void pass_simplify(Graph *g)
{
    Simplify s = { 0 };

    g_tidy(g);
    s.uses = use_counts(g, g->arena);
    rewrite(g, simplified, &s);
}
