/* mask.c: bounds of key - query for visible pairs, from conditions that
 * compare positions: tiles outside of them are skipped, tiles inside need no
 * condition. A pair is masked if its score is -inf. */
#include "attn.h"

/* Bounds of key - query. chunk n > 0: the key is also at least
 * query - query % n. */
typedef struct MaskBounds {
    double lo, hi;
    int64_t chunk;
} MaskBounds;
typedef struct Linear {
    double q, k, c;
    int ok;
} Linear;

static const MaskBounds everything = { -INFINITY, INFINITY, 0 };

/* The axis whose position is n's value, or null. */
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

/* n as q * query + k * key + c; ok 0: it is not linear. */
static Linear linear_form(const Attn *attn, const Node *n)
{
    const Axis *a = axis_of_position(attn, n);

    if (a)
        return (Linear){ a == attn->query, a == attn->key, 0,
                         a == attn->query || a == attn->key };
    switch (n->op) {
    case Oconst: return (Linear){ 0, 0, n->at.constant.value, 1 };
    case Ocast:
    case Obroadcast:
    case Ostop_gradient: return linear_form(attn, n->in[0]);
    case Oneg: return scaled(linear_form(attn, n->in[0]), -1);
    case Oadd:
        return plus(linear_form(attn, n->in[0]), linear_form(attn, n->in[1]));
    case Osub:
        return plus(linear_form(attn, n->in[0]),
                    scaled(linear_form(attn, n->in[1]), -1));
    default: return (Linear){ 0, 0, 0, 0 };
    }
}

static MaskBounds both(MaskBounds x, MaskBounds y)
{
    int first = x.chunk && (!y.chunk || x.chunk < y.chunk);

    return (MaskBounds){ fmax(x.lo, y.lo), fmin(x.hi, y.hi),
                         first ? x.chunk : y.chunk };
}

static MaskBounds union_hull(MaskBounds x, MaskBounds y)
{
    return (MaskBounds){ fmin(x.lo, y.lo), fmax(x.hi, y.hi),
                         x.chunk == y.chunk ? x.chunk : 0 };
}

/* n if the value is query - mod(query, n), else 0. */
static int64_t chunk_of(const Attn *attn, const Node *n)
{
    const Node *x = n->op == Oarg ? attn->node->in[n->at.arg.index] : n;

    while ((x->op == Ocast || x->op == Opermute) && x->nd == 1)
        x = x->in[0];
    if (x->op != Osub || n->nd != 1 || n->dim[0].a != attn->query)
        return 0;
    const Node *at = unrounded(x->in[0]), *mod = unrounded(x->in[1]);
    if (mod->op != Omod || unrounded(mod->in[0]) != at || !is_position(at))
        return 0;
    const Node *size = unrounded(mod->in[1]);
    return size->op == Oconst ? (int64_t)fmax(size->at.constant.value, 0) : 0;
}

/* a <= b (or a < b): the integer differences d for which it may hold. */
static MaskBounds ordered(const Attn *attn, const Node *a, const Node *b,
                          int strict)
{
    Linear x = plus(linear_form(attn, a), scaled(linear_form(attn, b), -1));
    int64_t chunk = strict || axis_of_position(attn, b) != attn->key
                        ? 0
                        : chunk_of(attn, a);

    if (chunk)
        return (MaskBounds){ 1 - (double)chunk, INFINITY, chunk };
    if (!x.ok || x.k != -x.q || fabs(x.k) != 1)
        return everything;
    if (x.k > 0) /* d <= -c */
        return (MaskBounds){ -INFINITY, floor(-x.c - (strict ? 0.5 : 0)), 0 };
    return (MaskBounds){ ceil(x.c + (strict ? 0.5 : 0)), INFINITY, 0 };
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
    case Olor: return union_hull(where_holds(attn, a), where_holds(attn, b));
    case Ocast:
    case Obroadcast: return where_holds(attn, a);
    default: return everything;
    }
}

/* Do its bounds describe the condition exactly? */
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

int attn_is_exact_mask(const Attn *attn, const Node *n)
{
    return attn->open && n->op == Owhere && is_exact(attn, n->in[0]);
}

int attn_may_mask(const Attn *attn)
{
    for (size_t i = 0; i < vec_len(attn->body->node); i++) {
        const Node *n = attn->body->node[i];
        if (n->op == Owhere && !attn_is_exact_mask(attn, n))
            return 1;
    }
    return !attn->open;
}

/* sign != 0: an infinite constant of that sign; 0: a positive finite one. */
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

/* Differences for which n may differ from -inf. */
static MaskBounds visible(const Attn *attn, const Node *n)
{
    switch (n->op) {
    case Owhere:
        if (is_const(n->in[2], -1))
            return both(where_holds(attn, n->in[0]), visible(attn, n->in[1]));
        return everything;
    case Oadd: return both(visible(attn, n->in[0]), visible(attn, n->in[1]));
    case Omul:
    case Odiv:
        return is_const(n->in[1], 0) ? visible(attn, n->in[0]) : everything;
    case Ocast:
    case Obroadcast: return visible(attn, n->in[0]);
    default: return everything;
    }
}

/* "key - (query)" of global positions. The arguments of `query` precede. */
static const char *distance(Attn *attn, const char *key, const char *query)
{
    const char *q = attn_global(attn, attn->query, query);

    return strf(attn->arena, "%s - (%s)", attn_global(attn, attn->key, key), q);
}

const char *attn_tile_masked(Attn *attn, const char *q0, const char *q1)
{
    MaskBounds b = visible(attn, attn->score);
    Text x = { .arena = attn->arena };

    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_index_map(attn, attn->query);
    if (!isinf(b.hi))
        put(&x, "%s > %.0f",
            distance(attn, "k0", strf(attn->arena, "%s - 1", q1)), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s < %.0f", x.s ? " || " : "",
            distance(attn, "(k0 + cols) - 1", q0), b.lo + 0.0);
    if (b.chunk) {
        const char *q = attn_global(attn, attn->query, q0);
        put(&x, " || %s < (%s) / %ld * %ld",
            attn_global(attn, attn->key, "(k0 + cols) - 1"), q, b.chunk,
            b.chunk);
    }
    return x.s;
}

const char *attn_tile_unmasked(Attn *attn)
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
    attn_index_map(attn, attn->query);
    if (!isinf(b.hi))
        put(&x, "%s <= %.0f", distance(attn, "(k0 + cols) - 1", "q0"),
            b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s >= %.0f", x.s ? " && " : "",
            distance(attn, "k0", "(q0 + rows) - 1"), b.lo + 0.0);
    if (b.chunk) {
        const char *q = attn_global(attn, attn->query, "(q0 + rows) - 1");
        put(&x, " && %s >= (%s) / %ld * %ld",
            attn_global(attn, attn->key, "k0"), q, b.chunk, b.chunk);
    }
    return x.s;
}

static int is_whole(const Attn *attn, const Axis *a)
{
    const Node *s = attn->score;

    return attn_local_size(attn, a) == s->dim[dim_of(s, a)].n;
}

int attn_is_causal(const Attn *attn)
{
    MaskBounds b = visible(attn, attn->score);

    return isinf(b.lo) && b.hi <= 0 && is_whole(attn, attn->query) &&
           is_whole(attn, attn->key) &&
           attn_local_size(attn, attn->query) ==
               attn_local_size(attn, attn->key);
}

/* Number of keys from k0 on that the queries [q0, q0 + rows) may see; null:
 * all. */
static const char *visible_keys(Attn *attn)
{
    MaskBounds b = visible(attn, attn->score);

    if (isinf(b.hi))
        return NULL;
    AttnPlace q = attn_index_map(attn, attn->query),
              k = attn_index_map(attn, attn->key);
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

/* The sum of min(max(j, 0), n) over all j up to `end`. */
static double sum_upto(double end, double n)
{
    double m = fmax(0, fmin(end, n));

    return m * (m + 1) / 2 + fmax(0, end - n) * n;
}

/* Pairs with key - query <= d. */
static double pairs_upto(double d, double nq, double nk)
{
    return isinf(d) ? (d > 0 ? nq * nk : 0)
                    : sum_upto(nq + d, nk) - sum_upto(d, nk);
}

/* Pairs that the chunk of the query lets see, too. */
static double pairs_in_chunks(MaskBounds b, double nq, double nk)
{
    double sum = 0;

    for (double q = 0; q < nq; q++) {
        double first = fmax(0, fmax(q + b.lo, q - fmod(q, (double)b.chunk)));
        sum += fmax(0, fmin(nk - 1, q + b.hi) - first + 1);
    }
    return sum;
}

/* Fraction of all pairs that are visible. */
static double unmasked_fraction(const Attn *attn)
{
    MaskBounds b = visible(attn, attn->score);
    double nq = (double)attn->score->dim[dim_of(attn->score, attn->query)].n;
    double nk = (double)attn->score->dim[dim_of(attn->score, attn->key)].n;

    double pairs =
        b.chunk ? pairs_in_chunks(b, nq, nk)
                : pairs_upto(b.hi, nq, nk) - pairs_upto(b.lo - 1, nq, nk);
    return fmax(0, pairs) / (nq * nk);
}

void attn_skip(Attn *attn, int depth, const char *unseen)
{
    if (!unseen)
        return;
    attn_line(attn, depth, "if (%s)", unseen);
    attn_line(attn, depth + 1, "continue;");
}

/* Declares `seen`, the tile's columns that a row may see, and `wide`, rounded
 * up to 16. */
void attn_visible(Attn *attn, int depth)
{
    const char *n = visible_keys(attn);

    if (n)
        attn_line(attn, depth, "const int64_t seen = at_least(cols, %s);", n);
    else
        attn_line(attn, depth, "const int64_t seen = cols;");
    attn_line(attn, depth, "const int64_t wide = (seen + 15) / 16 * 16;");
}

static int has_gradient(const Attn *attn, int op)
{
    return attn->node->op == Oattn_bwd && attn_result(attn, op);
}

/* FLOPs of all products: the backward recomputes scores and the gradient of the
 * weights, and has a product for each gradient of an operand. */
static double product_flops(const Attn *attn)
{
    double square = unmasked_fraction(attn) *
                    (double)attn_local_size(attn, attn->query) *
                    (double)attn_local_size(attn, attn->key),
           sum = 0;
    Axis *in[MAXD];

    square *= (double)attn_local_product(attn, attn->x, attn->nx);
    for (int i = 0; i < attn->ndot; i++)
        sum += (1 + has_gradient(attn, attn->dot[i].q) +
                has_gradient(attn, attn->dot[i].k)) *
               (double)attn_local_product(attn, attn->dot[i].n->at.dot.axes.v,
                                          attn->dot[i].n->at.dot.axes.n);
    int n = attn_inner_axes(attn, attn->node->in[attn->values], in);
    sum += (1 + has_gradient(attn, attn->values)) *
           (double)attn_local_product(attn, in, n);
    return 2 * square * sum;
}

void attn_cost(Attn *attn)
{
    attn->group->instr.flops = product_flops(attn);
    for (int i = 0; i < attn->group->narg; i++)
        attn->group->instr.bytes +=
            (double)local_bytes(attn->graph, attn->group->arg[i]);
}
