/* attn_warp.c: attention with one warp per row. The lanes are 32 columns for
 * scores, then 32 elements of the row's sums, while the weights are broadcast:
 *
 *     for each 32 columns that the row may see
 *         lane: score of its column, its weight (and dterm)
 *         for each of the 32: sums += its weight x its operand
 *
 * It supports any dtype and width; tests and small models use it. Each lane
 * reads a row of its own, four elements at a time, since every access is a
 * separate cache line. */
#include "attn_gpu.h"

/* Offset of element `at` of a row of v's inner axes. */
static const char *offset_of(Attn *attn, AttnView v, Axis *const *in, int n,
                             const char *at)
{
    Text x = { .arena = attn->arena };

    put(&x, "%s", n ? "" : "0");
    for (int i = 0; i < n; i++) {
        put(&x, "%s%s", i ? " + " : "", at);
        for (int k = i + 1; k < n; k++)
            put(&x, " / %s", attn_size_name(attn, in[k]));
        if (i)
            put(&x, " %% %s", attn_size_name(attn, in[i]));
        put(&x, " * %s", attn_stride_name(attn, v, in[i]));
    }
    return x.s;
}

/* Declares "const auto *name": the row of v at index `at` along axis a. */
static void put_row(Attn *attn, int depth, const char *name, AttnView v,
                    Axis *a, const char *at)
{
    const char *stride = attn_stride_name(attn, v, a);

    attn_line(attn, depth, "const auto *%s = %s + (%s) * %s;", name,
              attn_row_pointer(attn, v), at, stride);
}

/* Row q0 + r of x and row k0 + j of y, to be multiplied along the inner
 * axes. */
typedef struct Pair {
    AttnView x, y;
    Axis *xa, *ya;
    const char *xat, *yat;
} Pair;

/* Are rows of v whole aligned groups of four elements? */
static int in_fours(const Attn *attn, AttnView v, Axis *const *in, int n)
{
    const Node *x = v.n;

    return n == 1 && x->nd && x->dim[x->nd - 1].a == in[0] &&
           local_n(attn->graph, x, x->nd - 1) % 4 == 0;
}

static void put_dot(Attn *attn, int depth, const char *to, Pair p,
                    Axis *const *in, int n)
{
    attn_line(attn, depth, "{");
    put_row(attn, depth + 1, "x", p.x, p.xa, p.xat);
    put_row(attn, depth + 1, "y", p.y, p.ya, p.yat);
    if (in_fours(attn, p.x, in, n) && in_fours(attn, p.y, in, n)) {
        attn_line(attn, depth + 1, "%s += dot_fours<%ld, at_%s>(x, y);", to,
                  attn_local_product(attn, in, n), attn->type);
        attn_line(attn, depth, "}");
        return;
    }
    attn_line(attn, depth + 1, "at_%s sum = 0;", attn->type);
    attn_line(attn, depth + 1, "for (int c = 0; c < %ld; c++)",
              attn_local_product(attn, in, n));
    const char *y = offset_of(attn, p.y, in, n, "c");
    attn_line(attn, depth + 2, "sum += (at_%s)up(x[%s]) * (at_%s)up(y[%s]);",
              attn->type, offset_of(attn, p.x, in, n, "c"), attn->type, y);
    attn_line(attn, depth + 1, "%s += sum;", to);
    attn_line(attn, depth, "}");
}

static void put_terms(Attn *attn, int depth)
{
    for (int i = 0; i < attn->ndot; i++) {
        const AttnDot *dot = &attn->dot[i];
        Axis *in[MAXD];
        int n = attn_inner_axes(attn, attn->node->in[dot->k], in);
        Pair p = { attn_operand(attn, dot->q),
                   attn_operand(attn, dot->k),
                   attn->query,
                   attn->key,
                   "q0 + r",
                   "k0 + j" };
        put_dot(attn, depth, strf(attn->arena, "s%d", dot->term), p, in, n);
    }
}

/* put_delta: lse and delta of a row. put_dp: the gradient of a weight, a row of
 * dout times a row of values. */
static void put_delta(AttnGpu *gpu, int depth)
{
    Attn *attn = &gpu->attn;
    const char *stride = attn_stride_name(attn, gpu->lse, attn->query);

    attn_line(attn, depth, "lse = row_lse((at_%s)(%s)[(q0 + r) * %s]);",
              attn->type, attn_row_pointer(attn, gpu->lse), stride);
    stride = attn_stride_name(attn, gpu->delta, attn->query);
    attn_line(attn, depth, "delta = (at_%s)(%s)[(q0 + r) * %s];", attn->type,
              attn_row_pointer(attn, gpu->delta), stride);
}

static void put_dp(AttnGpu *gpu, int depth)
{
    Attn *attn = &gpu->attn;
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[attn->values], in);
    Pair p = { gpu->dout,   attn_operand(attn, attn->values),
               attn->query, attn->key,
               "q0 + r",    "k0 + j" };

    put_dot(attn, depth, "dp", p, in, n);
}

/* ---- sums ---------------------------------------------------------------- */

/* Offset of the lane's element c; unknown() protects a divided index. */
static const char *lane_offset(Attn *attn, AttnView v, Axis *const *in, int n)
{
    return offset_of(attn, v, in, n, n > 1 ? "unknown(c)" : "c");
}

static int64_t lanes(const Attn *attn, int op)
{
    return (attn_inner_count(attn, op) + 31) / 32;
}

static void put_sum(Attn *attn, const char *name, int64_t n)
{
    attn_line(attn, 2, "at_%s %s[%ld];", attn->type, name, n);
    attn_line(attn, 2, "for (int u = 0; u < %ld; u++)", n);
    attn_line(attn, 3, "%s[u] = 0;", name);
}

/* acc += weights of all lanes x rows of v, whose inner axes are op's. Rows with
 * weight 0 are not read: they may not exist. */
static void put_weighed(Attn *attn, int depth, const char *acc,
                        const char *weight, AttnView v, Axis *a, const char *at,
                        int op)
{
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[op], in);

    attn_line(attn, 0, "#pragma unroll 8");
    attn_line(attn, depth, "for (int i = 0; i < 32; i++) {");
    attn_line(attn, depth + 1, "const at_%s w = __shfl_sync(~0u, %s, i);",
              attn->type, weight);
    put_row(attn, depth + 1, "x", v, a, at);
    attn_line(attn, depth + 1,
              "for (int u = 0, c = lane; c < %ld; u++, c += 32)",
              attn_inner_count(attn, op));
    attn_line(attn, depth + 2, "%s[u] += w * (w != 0 ? (at_%s)up(x[%s]) : 0);",
              acc, attn->type, lane_offset(attn, v, in, n));
    attn_line(attn, depth, "}");
}

static void put_result(Attn *attn, AttnView v, Axis *a, const char *at,
                       const char *acc, int op)
{
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[op], in);

    attn_line(attn, 2, "for (int u = 0, c = lane; c < %ld; u++, c += 32)",
              attn_inner_count(attn, op));
    const char *lane = lane_offset(attn, v, in, n);
    const char *stride = attn_stride_name(attn, v, a);
    attn_line(attn, 3, "put_to(%s + (%s) * %s + %s, %s[u]);",
              attn_row_pointer(attn, v), at, stride, lane, acc);
}

/* ---- a tile -------------------------------------------------------------- */

static void put_pairs(AttnGpu *gpu, int depth)
{
    Attn *attn = &gpu->attn;

    for (int i = 0; i < attn->nterm; i++)
        attn_line(attn, depth, "at_%s s%d = 0;", attn->type, i);
    if (gpu->back)
        attn_line(attn, depth, "at_%s dp = 0, pr = 0;", attn->type);
    else
        attn_line(attn, depth, "at_%s z = -INFINITY;", attn->type);
    attn_line(attn, depth, "if (in) {");
    put_terms(attn, depth + 1);
    if (gpu->back)
        put_dp(gpu, depth + 1);
    attn_score1(attn, depth + 1, gpu->back);
    attn_line(attn, depth, "}");
}

/* Columns 32 at a time, for all combinations of the job's other axes. */
static int open_columns(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    Axis *a = job->keys ? attn->query : attn->key;
    const char *from = job->keys ? "q0" : "k0",
               *n = job->keys ? "rows" : "cols";
    int depth = 2;

    for (int i = 0; i < job->nloop; i++) {
        const char *c = attn_axis(attn, job->loop[i]);
        attn_line(attn, depth++, "for (int64_t i_%s = 0; i_%s < %s; i_%s++) {",
                  c, c, attn_size_name(attn, job->loop[i]), c);
    }
    if (gpu->back && !job->keys) {
        attn_line(attn, depth, "lse = INFINITY, delta = 0;");
        put_delta(gpu, depth);
    }
    attn_line(attn, depth++, "for (int %s = 0; %s < %s; %s += 32) {", from,
              from, attn_size_name(attn, a), from);
    attn_line(attn, depth, "const int %s = (int)at_least(%s - %s, 32);", n,
              attn_size_name(attn, a), from);
    attn_skip(attn, depth, attn_tile_masked(attn, "q0", "(q0 + rows)"));
    attn_line(attn, depth, "const int %s = lane, in = lane < %s;",
              job->keys ? "r" : "j", n);
    return depth;
}

static void close_columns(AttnGpu *attn, int depth)
{
    while (depth-- > 2)
        attn_line(&attn->attn, depth, "}");
}

/* ---- jobs ---------------------------------------------------------------- */

static void warp_forward(AttnGpu *gpu, const AttnJob *job)
{
    /* clang-format off */
    static const char *const line[] = {
        "const at_%s top = warp_max(z), most = top > max ? top : max;",
        "const at_%s base = most == -INFINITY ? 0 : most;",
        "const at_%s p = exp_%s(z - base), old = exp_%s(max - base);",
        "sum = sum * old + warp_sum(p), max = most;",
    };
    /* clang-format on */
    Attn *attn = &gpu->attn;
    int64_t n = lanes(attn, attn->values);

    put_sum(attn, "acc", n);
    attn_line(attn, 2, "at_%s max = -INFINITY, sum = 0;", attn->type);
    int depth = open_columns(gpu, job);
    put_pairs(gpu, depth);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        attn_line(attn, depth, line[i], attn->type, attn->type, attn->type);
    attn_line(attn, depth, "for (int u = 0; u < %ld; u++)", n);
    attn_line(attn, depth + 1, "acc[u] *= old;");
    put_weighed(attn, depth, "acc", "p", attn_operand(attn, attn->values),
                attn->key, "k0 + i", attn->values);
    close_columns(gpu, depth);
    if (gpu->lse.n) {
        const char *stride = attn_stride_name(attn, gpu->lse, attn->query);
        attn_line(attn, 2, "if (lane == 0)");
        attn_line(attn, 3,
                  "(%s)[(q0 + r) * %s] = max + (sum > 0 ? log_%s(sum) : 0);",
                  attn_row_pointer(attn, gpu->lse), stride, attn->type);
    }
    attn_line(attn, 2, "const at_%s f = sum != 0 ? 1 / sum : 0;", attn->type);
    attn_line(attn, 2, "for (int u = 0; u < %ld; u++)", n);
    attn_line(attn, 3, "acc[u] *= f;");
    if (gpu->out.n)
        put_result(attn, gpu->out, attn->query, "q0 + r", "acc", attn->values);
}

/* The contribution of a tile to the gradient of operand op. */
static void put_parts(AttnGpu *gpu, int depth, const char *acc, int op)
{
    Attn *attn = &gpu->attn;

    if (op == attn->values)
        put_weighed(attn, depth, acc, "pr", gpu->dout, attn->query, "q0 + i",
                    op);
    for (int i = 0; i < attn->ndot; i++) {
        const char *s = strf(attn->arena, "s%d", attn->dot[i].term);
        if (attn->dot[i].k == op)
            put_weighed(attn, depth, acc, s, attn_operand(attn, attn->dot[i].q),
                        attn->query, "q0 + i", op);
        if (attn->dot[i].q == op)
            put_weighed(attn, depth, acc, s, attn_operand(attn, attn->dot[i].k),
                        attn->key, "k0 + i", op);
    }
}

static void warp_backward(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;

    for (int i = 0; i < job->nout; i++)
        put_sum(attn, strf(attn->arena, "acc%d", job->out[i]),
                lanes(attn, job->out[i]));
    attn_line(attn, 2, "at_%s lse = INFINITY, delta = 0;", attn->type);
    int depth = open_columns(gpu, job);
    if (job->keys) {
        attn_line(attn, depth, "lse = INFINITY, delta = 0;");
        attn_line(attn, depth, "if (in) {");
        put_delta(gpu, depth + 1);
        attn_line(attn, depth, "}");
    }
    put_pairs(gpu, depth);
    for (int i = 0; i < job->nout; i++)
        put_parts(gpu, depth, strf(attn->arena, "acc%d", job->out[i]),
                  job->out[i]);
    close_columns(gpu, depth);
    for (int i = 0; i < job->nout; i++)
        put_result(attn, attn_gradient_view(gpu, job->out[i]),
                   job->keys ? attn->key : attn->query,
                   job->keys ? "k0 + j" : "q0 + r",
                   strf(attn->arena, "acc%d", job->out[i]), job->out[i]);
}

void attn_warp_job(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;

    attn_line(attn, 2, "const int lane = TID & 31, %s = TID >> 5;",
              job->keys ? "j" : "r");
    attn_line(attn, 2, "if (%s >= %s)", job->keys ? "j" : "r",
              job->keys ? "cols" : "rows");
    attn_line(attn, 3, "return;");
    if (gpu->back)
        warp_backward(gpu, job);
    else
        warp_forward(gpu, job);
}
