/* attn_warp.c: attention with a warp a row. Its lanes are 32 columns while
 * scores are made, and 32 elements of the row's sums afterwards, when the
 * weights go around:
 *
 *     for each 32 columns that the row may see
 *         lane: score of its column, its weight (and dterm)
 *         for each of the 32: sums += its weight x its operand
 *
 * Any dtype, any widths: what tests and small models run on. Lanes read rows of
 * their own: four elements at a time, for each is a line of its own (a backward
 * of tiny.lua in fp32: 124 to 73 us). */
#include <string.h>

#include "attn_gpu.h"

/* Where element `at` of a row of v's inner axes is. */
static const char *offset_of(Attn *t, AttnView v, Axis *const *in, int n,
                             const char *at)
{
    Text x = { .arena = t->arena };

    put(&x, "%s", n ? "" : "0");
    for (int i = 0; i < n; i++) {
        put(&x, "%s%s", i ? " + " : "", at);
        for (int k = i + 1; k < n; k++)
            put(&x, " / %s", attn_size(t, in[k]));
        if (i)
            put(&x, " %% %s", attn_size(t, in[i]));
        put(&x, " * %s", attn_stride(t, v, in[i]));
    }
    return x.s;
}

/* "const auto *name": the row of v at index `at` along axis a. */
static void put_row(Attn *t, int depth, const char *name, AttnView v, Axis *a,
                    const char *at)
{
    put_line(&t->o, depth, "const auto *%s = %s + (%s) * %s;", name,
             attn_at(t, v), at, attn_stride(t, v, a));
}

/* to += the product of row q0 + r of x and row k0 + j of y over the axes. */
typedef struct Pair {
    AttnView x, y;
    Axis *xa, *ya;
    const char *xat, *yat;
} Pair;

/* Does a row of v lie in whole pieces of four? */
static int in_fours(const Attn *t, AttnView v, Axis *const *in, int n)
{
    const Node *x = v.n;

    return n == 1 && x->nd && x->dim[x->nd - 1].a == in[0] &&
           local_n(t->g, x, x->nd - 1) % 4 == 0;
}

static void put_dot(Attn *t, int depth, const char *to, Pair p, Axis *const *in,
                    int n)
{
    put_line(&t->o, depth, "{");
    put_row(t, depth + 1, "x", p.x, p.xa, p.xat);
    put_row(t, depth + 1, "y", p.y, p.ya, p.yat);
    if (in_fours(t, p.x, in, n) && in_fours(t, p.y, in, n)) {
        put_line(&t->o, depth + 1, "%s += dot_fours<%lld, at_%s>(x, y);", to,
                 (long long)attn_product(t, in, n), t->t);
        put_line(&t->o, depth, "}");
        return;
    }
    put_line(&t->o, depth + 1, "at_%s sum = 0;", t->t);
    put_line(&t->o, depth + 1, "for (int c = 0; c < %lld; c++)",
             (long long)attn_product(t, in, n));
    put_line(&t->o, depth + 2, "sum += (at_%s)up(x[%s]) * (at_%s)up(y[%s]);",
             t->t, offset_of(t, p.x, in, n, "c"), t->t,
             offset_of(t, p.y, in, n, "c"));
    put_line(&t->o, depth + 1, "%s += sum;", to);
    put_line(&t->o, depth, "}");
}

static void put_terms(Attn *t, int depth)
{
    for (int i = 0; i < t->ndot; i++) {
        const AttnDot *d = &t->dot[i];
        Axis *in[MAXD];
        int n = attn_inner(t, t->n->in[d->k], in);
        Pair p = { attn_operand(t, d->q),
                   attn_operand(t, d->k),
                   t->query,
                   t->key,
                   "q0 + r",
                   "k0 + j" };
        put_dot(t, depth, strf(t->arena, "s%d", d->term), p, in, n);
    }
}

/* delta: a row's gradient times its result; dp: times a value. */
static void put_delta(AttnGpu *x, int depth)
{
    Attn *t = &x->t;

    put_line(&t->o, depth, "lse = row_lse((at_%s)(%s)[(q0 + r) * %s]);", t->t,
             attn_at(t, x->lse), attn_stride(t, x->lse, t->query));
    put_line(&t->o, depth, "delta = (at_%s)(%s)[(q0 + r) * %s];", t->t,
             attn_at(t, x->delta), attn_stride(t, x->delta, t->query));
}

static void put_dp(AttnGpu *x, int depth)
{
    Attn *t = &x->t;
    Axis *in[MAXD];
    int n = attn_inner(t, t->n->in[t->v], in);
    Pair p = { x->dout, attn_operand(t, t->v), t->query, t->key, "q0 + r",
               "k0 + j" };

    put_dot(t, depth, "dp", p, in, n);
}

/* ---- sums ---------------------------------------------------------------- */

/* Where the lane's element c is: see unknown() for one that is divided. */
static const char *lane_offset(Attn *t, AttnView v, Axis *const *in, int n)
{
    return offset_of(t, v, in, n, n > 1 ? "unknown(c)" : "c");
}

static int64_t lanes(const Attn *t, int op)
{
    return (attn_inner_count(t, op) + 31) / 32;
}

static void put_sum(Attn *t, const char *name, int64_t n)
{
    put_line(&t->o, 2, "at_%s %s[%lld];", t->t, name, (long long)n);
    put_line(&t->o, 2, "for (int u = 0; u < %lld; u++)", (long long)n);
    put_line(&t->o, 3, "%s[u] = 0;", name);
}

/* acc += all lanes' weights x rows of v, whose inner axes are op's. Rows
 * without weight are not read: there may be none. */
static void put_weighed(Attn *t, int depth, const char *acc, const char *weight,
                        AttnView v, Axis *a, const char *at, int op)
{
    Axis *in[MAXD];
    int n = attn_inner(t, t->n->in[op], in);

    put_line(&t->o, 0, "#pragma unroll 8");
    put_line(&t->o, depth, "for (int i = 0; i < 32; i++) {");
    put_line(&t->o, depth + 1, "const at_%s w = __shfl_sync(~0u, %s, i);", t->t,
             weight);
    put_row(t, depth + 1, "x", v, a, at);
    put_line(&t->o, depth + 1,
             "for (int u = 0, c = lane; c < %lld; u++, c += 32)",
             (long long)attn_inner_count(t, op));
    put_line(&t->o, depth + 2, "%s[u] += w * (w != 0 ? (at_%s)up(x[%s]) : 0);",
             acc, t->t, lane_offset(t, v, in, n));
    put_line(&t->o, depth, "}");
}

static void put_result(Attn *t, AttnView v, Axis *a, const char *at,
                       const char *acc, int op)
{
    Axis *in[MAXD];
    int n = attn_inner(t, t->n->in[op], in);

    put_line(&t->o, 2, "for (int u = 0, c = lane; c < %lld; u++, c += 32)",
             (long long)attn_inner_count(t, op));
    put_line(&t->o, 3, "put_to(%s + (%s) * %s + %s, %s[u]);", attn_at(t, v), at,
             attn_stride(t, v, a), lane_offset(t, v, in, n), acc);
}

/* ---- a tile -------------------------------------------------------------- */

static void put_pairs(AttnGpu *x, int depth)
{
    Attn *t = &x->t;

    for (int i = 0; i < t->nterm; i++)
        put_line(&t->o, depth, "at_%s s%d = 0;", t->t, i);
    if (x->back)
        put_line(&t->o, depth, "at_%s dp = 0, pr = 0;", t->t);
    else
        put_line(&t->o, depth, "at_%s z = -INFINITY;", t->t);
    put_line(&t->o, depth, "if (in) {");
    put_terms(t, depth + 1);
    if (x->back)
        put_dp(x, depth + 1);
    attn_score1(t, depth + 1, x->back);
    put_line(&t->o, depth, "}");
}

/* Columns 32 at a time, of all combinations of the job's other axes. */
static int open_columns(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;
    Axis *a = j->keys ? t->query : t->key;
    const char *from = j->keys ? "q0" : "k0", *n = j->keys ? "rows" : "cols";
    int depth = 2;

    for (int i = 0; i < j->nloop; i++) {
        const char *c = attn_code(t, j->loop[i]);
        put_line(&t->o, depth++, "for (int64_t i_%s = 0; i_%s < %s; i_%s++) {",
                 c, c, attn_size(t, j->loop[i]), c);
    }
    if (x->back && !j->keys) {
        put_line(&t->o, depth, "lse = INFINITY, delta = 0;");
        put_delta(x, depth);
    }
    put_line(&t->o, depth++, "for (int %s = 0; %s < %s; %s += 32) {", from,
             from, attn_size(t, a), from);
    put_line(&t->o, depth, "const int %s = (int)at_least(%s - %s, 32);", n,
             attn_size(t, a), from);
    attn_skip(t, depth, attn_unseen(t, "q0", "(q0 + rows)"));
    put_line(&t->o, depth, "const int %s = lane, in = lane < %s;",
             j->keys ? "r" : "j", n);
    return depth;
}

static void close_columns(AttnGpu *x, int depth)
{
    while (depth-- > 2)
        put_line(&x->t.o, depth, "}");
}

/* ---- jobs ---------------------------------------------------------------- */

static void forward(AttnGpu *x, const AttnJob *j)
{
    /* clang-format off */
    static const char *const step[] = {
        "const at_%s top = warp_max(z), most = top > max ? top : max;",
        "const at_%s base = most == -INFINITY ? 0 : most;",
        "const at_%s p = exp_%s(z - base), old = exp_%s(max - base);",
        "sum = sum * old + warp_sum(p), max = most;",
    };
    /* clang-format on */
    Attn *t = &x->t;
    int64_t n = lanes(t, t->v);

    put_sum(t, "acc", n);
    put_line(&t->o, 2, "at_%s max = -INFINITY, sum = 0;", t->t);
    int depth = open_columns(x, j);
    put_pairs(x, depth);
    for (size_t i = 0; i < sizeof step / sizeof *step; i++)
        put_line(&t->o, depth, step[i], t->t, t->t, t->t);
    put_line(&t->o, depth, "for (int u = 0; u < %lld; u++)", (long long)n);
    put_line(&t->o, depth + 1, "acc[u] *= old;");
    put_weighed(t, depth, "acc", "p", attn_operand(t, t->v), t->key, "k0 + i",
                t->v);
    close_columns(x, depth);
    if (x->lse.n) {
        put_line(&t->o, 2, "if (lane == 0)");
        put_line(&t->o, 3,
                 "(%s)[(q0 + r) * %s] = max + (sum > 0 ? log_%s(sum) "
                 ": 0);",
                 attn_at(t, x->lse), attn_stride(t, x->lse, t->query), t->t);
    }
    put_line(&t->o, 2, "const at_%s f = sum != 0 ? 1 / sum : 0;", t->t);
    put_line(&t->o, 2, "for (int u = 0; u < %lld; u++)", (long long)n);
    put_line(&t->o, 3, "acc[u] *= f;");
    if (x->out.n)
        put_result(t, x->out, t->query, "q0 + r", "acc", t->v);
}

/* What a tile adds to the gradient of operand op. */
static void put_parts(AttnGpu *x, int depth, const char *acc, int op)
{
    Attn *t = &x->t;

    if (op == t->v)
        put_weighed(t, depth, acc, "pr", x->dout, t->query, "q0 + i", op);
    for (int i = 0; i < t->ndot; i++) {
        const char *s = strf(t->arena, "s%d", t->dot[i].term);
        if (t->dot[i].k == op)
            put_weighed(t, depth, acc, s, attn_operand(t, t->dot[i].q),
                        t->query, "q0 + i", op);
        if (t->dot[i].q == op)
            put_weighed(t, depth, acc, s, attn_operand(t, t->dot[i].k), t->key,
                        "k0 + i", op);
    }
}

static void backward(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;

    for (int i = 0; i < j->nout; i++)
        put_sum(t, strf(t->arena, "acc%d", j->out[i]), lanes(t, j->out[i]));
    put_line(&t->o, 2, "at_%s lse = INFINITY, delta = 0;", t->t);
    int depth = open_columns(x, j);
    if (j->keys) {
        put_line(&t->o, depth, "lse = INFINITY, delta = 0;");
        put_line(&t->o, depth, "if (in) {");
        put_delta(x, depth + 1);
        put_line(&t->o, depth, "}");
    }
    put_pairs(x, depth);
    for (int i = 0; i < j->nout; i++)
        put_parts(x, depth, strf(t->arena, "acc%d", j->out[i]), j->out[i]);
    close_columns(x, depth);
    for (int i = 0; i < j->nout; i++)
        put_result(t, attn_grad(x, j->out[i]), j->keys ? t->key : t->query,
                   j->keys ? "k0 + j" : "q0 + r",
                   strf(t->arena, "acc%d", j->out[i]), j->out[i]);
}

void attn_warp_job(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;

    put_line(&t->o, 2, "const int lane = TID & 31, %s = TID >> 5;",
             j->keys ? "j" : "r");
    put_line(&t->o, 2, "if (%s >= %s)", j->keys ? "j" : "r",
             j->keys ? "cols" : "rows");
    put_line(&t->o, 3, "return;");
    if (x->back)
        backward(x, j);
    else
        forward(x, j);
}
