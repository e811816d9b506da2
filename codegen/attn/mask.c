/* mask.c: which differences key - query the conditions of a score let through,
 * where they compare positions: tiles outside are skipped, tiles inside need no
 * condition. A pair is hidden where its score is -inf. */
#include <math.h>

#include "attn.h"

typedef struct MaskBounds {
    double lo, hi;
} MaskBounds; /* of key - query */
typedef struct Linear {
    double q, k, c;
    int ok;
} Linear;

static const MaskBounds everything = { -INFINITY, INFINITY };

/* The axis n's value is the position along, or null. */
static const Axis *axis_of_position(const Attn *t, const Node *n)
{
    if (n->op == Oarg) {
        const Node *x = t->n->in[n->at.arg.index];
        while ((x->op == Ocast || x->op == Oppermute) && x->in[0]->nd == 1)
            x = x->in[0];
        return x->nd == 1 && is_position(x) ? n->dim[0].a : NULL;
    }
    return n->nd == 1 && is_position(n) ? n->dim[0].a : NULL;
}

static Linear scaled(Linear x, double f)
{
    return (Linear){ x.q * f, x.k * f, x.c * f, x.ok };
}

static Linear plus(Linear x, Linear y)
{
    return (Linear){ x.q + y.q, x.k + y.k, x.c + y.c, x.ok && y.ok };
}

/* n as q * query + k * key + c. */
static Linear line_of(const Attn *t, const Node *n)
{
    const Axis *a = axis_of_position(t, n);

    if (a)
        return (Linear){ a == t->query, a == t->key, 0,
                         a == t->query || a == t->key };
    switch (n->op) {
    case Oconst: return (Linear){ 0, 0, n->at.constant.value, 1 };
    case Ocast:
    case Obroadcast:
    case Ostop_gradient: return line_of(t, n->in[0]);
    case Oneg: return scaled(line_of(t, n->in[0]), -1);
    case Oadd: return plus(line_of(t, n->in[0]), line_of(t, n->in[1]));
    case Osub:
        return plus(line_of(t, n->in[0]), scaled(line_of(t, n->in[1]), -1));
    default: return (Linear){ 0, 0, 0, 0 };
    }
}

static MaskBounds both(MaskBounds x, MaskBounds y)
{
    return (MaskBounds){ fmax(x.lo, y.lo), fmin(x.hi, y.hi) };
}

static MaskBounds either(MaskBounds x, MaskBounds y)
{
    return (MaskBounds){ fmin(x.lo, y.lo), fmax(x.hi, y.hi) };
}

/* a <= b (or a < b): differences d for which it can hold, whole numbers. */
static MaskBounds ordered(const Attn *t, const Node *a, const Node *b,
                          int strict)
{
    Linear x = plus(line_of(t, a), scaled(line_of(t, b), -1));

    if (!x.ok || x.k != -x.q || fabs(x.k) != 1)
        return everything;
    if (x.k > 0) /* d <= -c */
        return (MaskBounds){ -INFINITY, floor(-x.c - (strict ? 0.5 : 0)) };
    return (MaskBounds){ ceil(x.c + (strict ? 0.5 : 0)), INFINITY };
}

static MaskBounds where_holds(const Attn *t, const Node *c)
{
    const Node *a = c->nin > 0 ? c->in[0] : NULL;
    const Node *b = c->nin > 1 ? c->in[1] : NULL;

    switch (c->op) {
    case Ole: return ordered(t, a, b, 0);
    case Olt: return ordered(t, a, b, 1);
    case Oge: return ordered(t, b, a, 0);
    case Ogt: return ordered(t, b, a, 1);
    case Oeq: return both(ordered(t, a, b, 0), ordered(t, b, a, 0));
    case Oland: return both(where_holds(t, a), where_holds(t, b));
    case Olor: return either(where_holds(t, a), where_holds(t, b));
    case Ocast:
    case Obroadcast: return where_holds(t, a);
    default: return everything;
    }
}

/* Does the condition hold just where the bounds of it say? */
static int is_exact(const Attn *t, const Node *c)
{
    switch (c->op) {
    case Ole:
    case Olt:
    case Oge:
    case Ogt: {
        MaskBounds b = where_holds(t, c);
        return !isinf(b.lo) || !isinf(b.hi);
    }
    case Oland: return is_exact(t, c->in[0]) && is_exact(t, c->in[1]);
    case Ocast:
    case Obroadcast: return is_exact(t, c->in[0]);
    default: return 0;
    }
}

int attn_isopen(const Attn *t, const Node *n)
{
    return t->open && n->op == Owhere && is_exact(t, n->in[0]);
}

int attn_hides(const Attn *t)
{
    for (size_t i = 0; i < vec_len(t->body->node); i++) {
        const Node *n = t->body->node[i];
        if (n->op == Owhere && !attn_isopen(t, n))
            return 1;
    }
    return !t->open;
}

/* Infinite of that sign; 0: positive and finite. */
static int is_const(const Node *n, double sign)
{
    while (n->op == Ocast || n->op == Obroadcast)
        n = n->in[0];
    if (n->op != Oconst)
        return 0;
    if (sign != 0)
        return isinf(n->at.constant.value) && n->at.constant.value * sign > 0;
    return n->at.constant.value > 0 && isfinite(n->at.constant.value);
}

/* Differences for which n can be anything but -inf. */
static MaskBounds seen(const Attn *t, const Node *n)
{
    switch (n->op) {
    case Owhere:
        if (is_const(n->in[2], -1))
            return both(where_holds(t, n->in[0]), seen(t, n->in[1]));
        return everything;
    case Oadd: return both(seen(t, n->in[0]), seen(t, n->in[1]));
    case Omul:
    case Odiv: return is_const(n->in[1], 0) ? seen(t, n->in[0]) : everything;
    case Ocast:
    case Obroadcast: return seen(t, n->in[0]);
    default: return everything;
    }
}

const char *attn_unseen(Attn *t, const char *q0, const char *q1)
{
    MaskBounds b = seen(t, t->score);
    Text x = { .arena = t->arena };

    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(t, t->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) > %.0f", attn_global(t, t->key, "k0"),
            attn_global(t, t->query, strf(t->arena, "%s - 1", q1)), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) < %.0f", x.s ? " || " : "",
            attn_global(t, t->key, "(k0 + cols) - 1"),
            attn_global(t, t->query, q0), b.lo + 0.0);
    return x.s;
}

const char *attn_allseen(Attn *t)
{
    MaskBounds b = everything;
    Text x = { .arena = t->arena };

    for (size_t i = 0; i < vec_len(t->body->node); i++) {
        const Node *n = t->body->node[i];
        if (n->op == Owhere && is_exact(t, n->in[0]))
            b = both(b, where_holds(t, n->in[0]));
    }
    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(t, t->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) <= %.0f", attn_global(t, t->key, "(k0 + cols) - 1"),
            attn_global(t, t->query, "q0"), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) >= %.0f", x.s ? " && " : "",
            attn_global(t, t->key, "k0"),
            attn_global(t, t->query, "(q0 + rows) - 1"), b.lo + 0.0);
    return x.s;
}

/* Keys from k0 on that the queries [q0, q0 + rows) can see; null: all. */
static const char *keys_seen(Attn *t)
{
    MaskBounds b = seen(t, t->score);

    if (isinf(b.hi))
        return NULL;
    AttnPlace q = attn_place(t, t->query), k = attn_place(t, t->key);
    if (!q.two && !k.two)
        return strf(t->arena, "%s + q0 + rows - (%s + k0) + %.0f", q.at, k.at,
                    b.hi + 0.0);
    const char *last = attn_global(t, t->query, "q0 + rows - 1");
    if (!k.two)
        return strf(t->arena, "%s + 1 - (%s + k0) + %.0f", last, k.at,
                    b.hi + 0.0);
    return strf(t->arena, "at_upto(%s + %.0f, %s, %s, %s) - k0", last,
                b.hi + 0.0, k.half, k.at, k.to);
}

/* The sum of j, at least 0 and at most n, over all j up to `end`. */
static double sum_upto(double end, double n)
{
    double m = fmax(0, fmin(end, n));

    return m * (m + 1) / 2 + fmax(0, end - n) * n;
}

/* Pairs whose key is at most d behind the query. */
static double pairs_upto(double d, double nq, double nk)
{
    return isinf(d) ? (d > 0 ? nq * nk : 0)
                    : sum_upto(nq + d, nk) - sum_upto(d, nk);
}

/* Of all pairs: seen. */
static double share_seen(const Attn *t)
{
    MaskBounds b = seen(t, t->score);
    double nq = (double)t->score->dim[dim_of(t->score, t->query)].n;
    double nk = (double)t->score->dim[dim_of(t->score, t->key)].n;

    return fmax(0, pairs_upto(b.hi, nq, nk) - pairs_upto(b.lo - 1, nq, nk)) /
           (nq * nk);
}

void attn_skip(Attn *t, int depth, const char *unseen)
{
    if (!unseen)
        return;
    put_line(&t->o, depth, "if (%s)", unseen);
    put_line(&t->o, depth + 1, "continue;");
}

/* seen: the tile's columns that some row can see; wide: rounded up to 16. */
void attn_visible(Attn *t, int depth)
{
    const char *n = keys_seen(t);

    if (n)
        put_line(&t->o, depth, "const int64_t seen = at_least(cols, %s);", n);
    else
        put_line(&t->o, depth, "const int64_t seen = cols;");
    put_line(&t->o, depth, "const int64_t wide = (seen + 15) / 16 * 16;");
}

/* Multiply-adds of the dots and of the values, times how often each is done. */
static double products(const Attn *t, double dots, double values)
{
    double square = share_seen(t) * (double)attn_count(t, t->query) *
                    (double)attn_count(t, t->key),
           sum = 0;
    Axis *in[MAXD];

    square *= (double)attn_product(t, t->x, t->nx);
    for (int i = 0; i < t->ndot; i++)
        sum += dots * (double)attn_product(t, t->dot[i].n->at.dot.axes.v,
                                           t->dot[i].n->at.dot.axes.n);
    int n = attn_inner(t, t->n->in[t->v], in);
    return 2 * square * (sum + values * (double)attn_product(t, in, n));
}

void attn_cost(Attn *t)
{
    int back = t->n->op == Oattn_bwd;

    t->k->instr.flops = products(t, back ? 3 : 1, back ? 2 : 1);
    for (int i = 0; i < t->k->narg; i++)
        t->k->instr.bytes += (double)local_bytes(t->g, t->k->arg[i]);
}
