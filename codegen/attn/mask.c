/* mask.c: which differences key - query the conditions of a score let through,
 * where they compare positions: tiles outside are skipped, tiles inside need no
 * condition. A pair is hidden where its score is -inf. */
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
static const Axis *axis_of_position(const Attn *attn, const Node *n)
{
    if (n->op == Oarg) {
        const Node *x = attn->node->in[n->at.arg.index];
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
static Linear line_of(const Attn *attn, const Node *n)
{
    const Axis *a = axis_of_position(attn, n);

    if (a)
        return (Linear){ a == attn->query, a == attn->key, 0,
                         a == attn->query || a == attn->key };
    switch (n->op) {
    case Oconst: return (Linear){ 0, 0, n->at.constant.value, 1 };
    case Ocast:
    case Obroadcast:
    case Ostop_gradient: return line_of(attn, n->in[0]);
    case Oneg: return scaled(line_of(attn, n->in[0]), -1);
    case Oadd: return plus(line_of(attn, n->in[0]), line_of(attn, n->in[1]));
    case Osub:
        return plus(line_of(attn, n->in[0]),
                    scaled(line_of(attn, n->in[1]), -1));
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
static MaskBounds ordered(const Attn *attn, const Node *a, const Node *b,
                          int strict)
{
    Linear x = plus(line_of(attn, a), scaled(line_of(attn, b), -1));

    if (!x.ok || x.k != -x.q || fabs(x.k) != 1)
        return everything;
    if (x.k > 0) /* d <= -c */
        return (MaskBounds){ -INFINITY, floor(-x.c - (strict ? 0.5 : 0)) };
    return (MaskBounds){ ceil(x.c + (strict ? 0.5 : 0)), INFINITY };
}

static MaskBounds where_holds(const Attn *attn, const Node *c)
{
    const Node *a = c->nin > 0 ? c->in[0] : NULL;
    const Node *b = c->nin > 1 ? c->in[1] : NULL;

    switch (c->op) {
    case Ole: return ordered(attn, a, b, 0);
    case Olt: return ordered(attn, a, b, 1);
    case Oge: return ordered(attn, b, a, 0);
    case Ogt: return ordered(attn, b, a, 1);
    case Oeq: return both(ordered(attn, a, b, 0), ordered(attn, b, a, 0));
    case Oland: return both(where_holds(attn, a), where_holds(attn, b));
    case Olor: return either(where_holds(attn, a), where_holds(attn, b));
    case Ocast:
    case Obroadcast: return where_holds(attn, a);
    default: return everything;
    }
}

/* Does the condition hold just where the bounds of it say? */
static int is_exact(const Attn *attn, const Node *c)
{
    switch (c->op) {
    case Ole:
    case Olt:
    case Oge:
    case Ogt: {
        MaskBounds b = where_holds(attn, c);
        return !isinf(b.lo) || !isinf(b.hi);
    }
    case Oland: return is_exact(attn, c->in[0]) && is_exact(attn, c->in[1]);
    case Ocast:
    case Obroadcast: return is_exact(attn, c->in[0]);
    default: return 0;
    }
}

int attn_isopen(const Attn *attn, const Node *n)
{
    return attn->open && n->op == Owhere && is_exact(attn, n->in[0]);
}

int attn_hides(const Attn *attn)
{
    for (size_t i = 0; i < vec_len(attn->body->node); i++) {
        const Node *n = attn->body->node[i];
        if (n->op == Owhere && !attn_isopen(attn, n))
            return 1;
    }
    return !attn->open;
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
static MaskBounds seen(const Attn *attn, const Node *n)
{
    switch (n->op) {
    case Owhere:
        if (is_const(n->in[2], -1))
            return both(where_holds(attn, n->in[0]), seen(attn, n->in[1]));
        return everything;
    case Oadd: return both(seen(attn, n->in[0]), seen(attn, n->in[1]));
    case Omul:
    case Odiv: return is_const(n->in[1], 0) ? seen(attn, n->in[0]) : everything;
    case Ocast:
    case Obroadcast: return seen(attn, n->in[0]);
    default: return everything;
    }
}

const char *attn_unseen(Attn *attn, const char *q0, const char *q1)
{
    MaskBounds b = seen(attn, attn->score);
    Text x = { .arena = attn->arena };

    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(attn, attn->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) > %.0f", attn_global(attn, attn->key, "k0"),
            attn_global(attn, attn->query, strf(attn->arena, "%s - 1", q1)),
            b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) < %.0f", x.s ? " || " : "",
            attn_global(attn, attn->key, "(k0 + cols) - 1"),
            attn_global(attn, attn->query, q0), b.lo + 0.0);
    return x.s;
}

const char *attn_allseen(Attn *attn)
{
    MaskBounds b = everything;
    Text x = { .arena = attn->arena };

    for (size_t i = 0; i < vec_len(attn->body->node); i++) {
        const Node *n = attn->body->node[i];
        if (n->op == Owhere && is_exact(attn, n->in[0]))
            b = both(b, where_holds(attn, n->in[0]));
    }
    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(attn, attn->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) <= %.0f",
            attn_global(attn, attn->key, "(k0 + cols) - 1"),
            attn_global(attn, attn->query, "q0"), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) >= %.0f", x.s ? " && " : "",
            attn_global(attn, attn->key, "k0"),
            attn_global(attn, attn->query, "(q0 + rows) - 1"), b.lo + 0.0);
    return x.s;
}

static int is_whole(const Attn *attn, const Axis *a)
{
    const Node *s = attn->score;

    return attn_count(attn, a) == s->dim[dim_of(s, a)].n;
}

int attn_is_causal(const Attn *attn)
{
    MaskBounds b = seen(attn, attn->score);

    return isinf(b.lo) && b.hi <= 0 && is_whole(attn, attn->query) &&
           is_whole(attn, attn->key) &&
           attn_count(attn, attn->query) == attn_count(attn, attn->key);
}

/* Keys from k0 on that the queries [q0, q0 + rows) can see; null: all. */
static const char *keys_seen(Attn *attn)
{
    MaskBounds b = seen(attn, attn->score);

    if (isinf(b.hi))
        return NULL;
    AttnPlace q = attn_place(attn, attn->query),
              k = attn_place(attn, attn->key);
    if (!q.two && !k.two)
        return strf(attn->arena, "%s + q0 + rows - (%s + k0) + %.0f", q.at,
                    k.at, b.hi + 0.0);
    const char *last = attn_global(attn, attn->query, "q0 + rows - 1");
    if (!k.two)
        return strf(attn->arena, "%s + 1 - (%s + k0) + %.0f", last, k.at,
                    b.hi + 0.0);
    return strf(attn->arena, "at_upto(%s + %.0f, %s, %s, %s) - k0", last,
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
static double share_seen(const Attn *attn)
{
    MaskBounds b = seen(attn, attn->score);
    double nq = (double)attn->score->dim[dim_of(attn->score, attn->query)].n;
    double nk = (double)attn->score->dim[dim_of(attn->score, attn->key)].n;

    return fmax(0, pairs_upto(b.hi, nq, nk) - pairs_upto(b.lo - 1, nq, nk)) /
           (nq * nk);
}

void attn_skip(Attn *attn, int depth, const char *unseen)
{
    if (!unseen)
        return;
    put_line(&attn->out, depth, "if (%s)", unseen);
    put_line(&attn->out, depth + 1, "continue;");
}

/* seen: the tile's columns that some row can see; wide: rounded up to 16. */
void attn_visible(Attn *attn, int depth)
{
    const char *n = keys_seen(attn);

    if (n)
        put_line(&attn->out, depth, "const int64_t seen = at_least(cols, %s);",
                 n);
    else
        put_line(&attn->out, depth, "const int64_t seen = cols;");
    put_line(&attn->out, depth, "const int64_t wide = (seen + 15) / 16 * 16;");
}

static int has_gradient(const Attn *attn, int op)
{
    return attn->node->op == Oattn_bwd && attn_part(attn, op);
}

/* Operations of all products. The backward makes the scores and the gradient of
 * the weights, then a product for each gradient of an operand. */
static double products(const Attn *attn)
{
    double square = share_seen(attn) * (double)attn_count(attn, attn->query) *
                    (double)attn_count(attn, attn->key),
           sum = 0;
    Axis *in[MAXD];

    square *= (double)attn_product(attn, attn->x, attn->nx);
    for (int i = 0; i < attn->ndot; i++)
        sum += (1 + has_gradient(attn, attn->dot[i].q) +
                has_gradient(attn, attn->dot[i].k)) *
               (double)attn_product(attn, attn->dot[i].n->at.dot.axes.v,
                                    attn->dot[i].n->at.dot.axes.n);
    int n = attn_inner(attn, attn->node->in[attn->values], in);
    sum += (1 + has_gradient(attn, attn->values)) *
           (double)attn_product(attn, in, n);
    return 2 * square * sum;
}

void attn_cost(Attn *attn)
{
    attn->group->instr.flops = products(attn);
    for (int i = 0; i < attn->group->narg; i++)
        attn->group->instr.bytes +=
            (double)local_bytes(attn->graph, attn->group->arg[i]);
}
