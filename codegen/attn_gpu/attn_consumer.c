/* attn_consumer.c: attention on Hopper's tensor cores, the consumer warpgroups:
 * scores and their gradients between the two products, sums after the second
 * one. See attn_producer.c. */
#include "attn_gpu.h"

/* ---- scores -------------------------------------------------------------- */

/* Query r and key j of element i. Beyond the last row or column the score reads
 * the operands of the last one; such columns get no weight. */
static void put_element(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;
    int keys = wg->job->keys;
    const char *col = "(i >> 2) * 8 + (lane & 3) * 2 + (i & 1)";
    const char *row = "row + (i & 2) * 4";
    const char *nr = keys ? "cols" : "rows", *nc = keys ? "rows" : "cols";
    int64_t rows = attn_local_size(attn, keys ? attn->key : attn->query);
    int64_t cols = attn_local_size(attn, keys ? attn->query : attn->key);

    if (rows % ATWGROWS)
        row = strf(attn->arena, "(int)at_least(%s, %s - 1)", row, nr);
    put_line(&attn->out, depth, "const int at = %s;", col);
    put_line(&attn->out, depth, "const int in = %s;",
             cols % wg->cols && !attn->open ? strf(attn->arena, "at < %s", nc)
                                            : "1");
    if (cols % wg->cols && !attn->open)
        col = strf(attn->arena, "in ? at : %s - 1", nc);
    else
        col = "at";
    put_line(&attn->out, depth, "const int r = %s, j = %s;", keys ? col : row,
             keys ? row : col);
}

/* lse or delta of element i: a thread has two rows, or 4 of 16 columns. */
static void put_number(AttnWg *wg, int depth, const char *name)
{
    put_line(&wg->gpu->attn.out, depth,
             wg->job->keys ? "const float %s = number_of(%s_of, i);"
                           : "const float %s = %s_of[i >> 1 & 1];",
             name, name);
}

static void open_elements(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    attn->open = open;
    put(&attn->out, "#pragma unroll\n");
    put_line(&attn->out, depth, "for (int i = 0; i < %lld; i++) {",
             (long long)wg->cols / 2);
    put_element(wg, depth + 1);
}

static void close_elements(AttnWg *wg, int depth)
{
    put_line(&wg->gpu->attn.out, depth, "}");
    wg->gpu->attn.open = 0;
}

/* s: scores to weights (backward), or masked scores (forward). */
static void put_weights(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    open_elements(wg, depth, open);
    put_line(&attn->out, depth + 1, "const float s0 = s[i];");
    put_line(&attn->out, depth + 1, "float z;");
    attn_score1(attn, depth + 1, 0);
    if (wg->gpu->back) {
        put_number(wg, depth + 1, "lse");
        put_line(&attn->out, depth + 1, "s[i] = weight_%s(z, lse);",
                 attn_may_mask(attn) ? "f32" : "seen");
    } else {
        put_line(&attn->out, depth + 1, "s[i] = z;");
    }
    close_elements(wg, depth);
}

/* s: scores to gradients of dots, d: gradients of weights to weights. */
static void put_gradients(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    open_elements(wg, depth, open);
    put_line(&attn->out, depth + 1, "float s0 = s[i], pr;");
    put_line(&attn->out, depth + 1, "const float dp = d[i];");
    put_number(wg, depth + 1, "lse");
    put_number(wg, depth + 1, "delta");
    attn_score1(attn, depth + 1, 1);
    put_line(&attn->out, depth + 1, "s[i] = s0, d[i] = pr;");
    close_elements(wg, depth);
}

/* Condition for a whole tile in which all mask conditions hold, so that its
 * pairs need no test. (Scores with functions test each pair: two texts with 64
 * tanh take seconds to compile.) */
static const char *whole_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;
    int keys = wg->job->keys;
    int64_t n = attn_local_size(attn, keys ? attn->query : attn->key);
    const char *all = attn_tile_unmasked(attn);

    if (n % wg->cols == 0)
        return all;
    const char *full = strf(attn->arena, "%s == %lld", keys ? "rows" : "cols",
                            (long long)wg->cols);
    return all ? strf(attn->arena, "%s && %s", full, all) : full;
}

static void put_scores(AttnWg *wg, int depth,
                       void (*put_them)(AttnWg *wg, int depth, int open))
{
    Attn *attn = &wg->gpu->attn;
    const char *all = whole_tile(wg);

    if (!all || attn_unit(attn) == 0) {
        put_them(wg, depth, !all);
        return;
    }
    put_line(&attn->out, depth, "if (%s) {", all);
    put_them(wg, depth + 1, 1);
    put_line(&attn->out, depth, "} else {");
    put_them(wg, depth + 1, 0);
    put_line(&attn->out, depth, "}");
}

/* ---- products ------------------------------------------------------------ */

/* Rows times columns of slabs [from, to), into s or d. */
static void put_product(AttnWg *wg, int depth, const char *sum, int from,
                        int to)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = from; i < to; i++)
        put_line(&attn->out, depth,
                 "mma_%s_by_cols<%lld, %lld>(%s, %s, from + %lld, %d);",
                 i < wg->held ? "held" : "rows", (long long)wg->row[i].W,
                 (long long)wg->cols, sum,
                 strf(attn->arena, i < wg->held ? "h%lld" : "line + %lld",
                      i < wg->held ? (long long)i : (long long)wg->row[i].at),
                 (long long)wg->col[i].at, i > from);
    put_line(&attn->out, depth, "wg_commit();");
}

/* Loads rows that stay in registers. */
static void put_take_rows(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->held; i++) {
        const AttnSlab *row = &wg->row[i];
        put_line(&attn->out, 3, "uint32_t h%d[%lld][4];", i,
                 (long long)row->W / 16);
        put_line(&attn->out, 3, "take_rows<%lld>(h%d, line + %lld);",
                 (long long)row->W, i, (long long)row->at);
    }
}

/* Issues the product of the previous tile's weights and values. */
static void put_values(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;
    const AttnSlab *slab = &wg->col[attn->ndot];

    put_line(&attn->out, depth, "keep_in_registers(p);");
    put_line(&attn->out, depth, "keep_in_registers(o%d);", attn->values);
    put_line(&attn->out, depth, "wg_fence();");
    put_line(
        &attn->out, depth,
        "mma_registers_by_cols<%lld, %lld>(o%d, p, base + %lld + last * %lld);",
        (long long)slab->W, (long long)wg->cols, attn->values,
        (long long)(attn_wg_tiles(wg) + slab->at), (long long)wg->colbytes);
    put_line(&attn->out, depth, "wg_commit();");
}

/* ---- sums ---------------------------------------------------------------- */

/* The gradient that the columns of slab i are summed into, or -1. */
static int summed_gradient(const AttnWg *wg, int i)
{
    const Attn *attn = &wg->gpu->attn;

    if (!wg->gpu->back)
        return i == attn->ndot ? attn->values : -1;
    if (i == attn->ndot && !wg->job->keys)
        return -1;
    int op = i == attn->ndot ? attn->values
             : wg->job->keys ? attn->dot[i].k
                             : attn->dot[i].q;
    return attn_has_out(wg->job, op) ? op : -1;
}

/* Issues the sums of slabs [from, to) with weights `p`, packed from `x`. */
static void put_sums(AttnWg *wg, const char *p, const char *x, int from, int to)
{
    Attn *attn = &wg->gpu->attn;
    int any = 0;

    for (int i = from; i < to; i++)
        any |= summed_gradient(wg, i) >= 0;
    if (!any)
        return;
    put_line(&attn->out, 4, "uint32_t %s[%lld][4];", p,
             (long long)wg->cols / 16);
    put_line(&attn->out, 4, "pack(%s, %s), keep_in_registers(%s);", p, x, p);
    put_line(&attn->out, 4, "wg_fence();");
    for (int i = to; i-- > from;)
        if (summed_gradient(wg, i) >= 0)
            put_line(&attn->out, 4,
                     "mma_registers_by_cols<%lld, %lld>(o%d, %s, from + %lld);",
                     (long long)wg->col[i].W, (long long)wg->cols,
                     summed_gradient(wg, i), p, (long long)wg->col[i].at);
    put_line(&attn->out, 4, "wg_commit();");
    if (wg->job->stores && from == 0)
        put_line(&attn->out, 4, "store_dscores<%lld>(%s, %s, q0, row, cols);",
                 (long long)wg->cols, attn_dscores_at(wg->gpu, wg->job), p);
}

static void keep_sums(AttnWg *wg)
{
    const char *p[2] = { NULL, NULL };

    for (int i = 0; i < wg->ncol; i++)
        if (summed_gradient(wg, i) >= 0) {
            int values = i == wg->gpu->attn.ndot;
            put_line(&wg->gpu->attn.out, 4, "keep_in_registers(o%d);",
                     summed_gradient(wg, i));
            if (!values || !wg->tight)
                p[values] = values ? "p" : "ps";
        }
    for (int i = 0; i < 2; i++)
        if (p[i])
            put_line(&wg->gpu->attn.out, 4, "keep_in_registers(%s);", p[i]);
}

/* Call `what` on each partial accumulator in the launches selected by `when`,
 * in the block that has the sums; ends: that block returns. */
static void put_partial_sums(AttnWg *wg, const char *when, const char *what,
                             int ends)
{
    Attn *attn = &wg->gpu->attn;
    int64_t turns = attn_sum_parts(wg->gpu, wg->job);

    if (turns == 1)
        return;
    put_line(&attn->out, 3, "if (launch / 2 %% %lld %s%s) {", (long long)turns,
             strf(attn->arena, when, (long long)turns - 1),
             wg->job->split > 1 ? " && share == 0" : "");
    for (int i = 0; i < wg->job->nout; i++)
        put_line(&attn->out, 4, "%s(o%d, %s);", what, wg->job->out[i],
                 attn_waiting_at(wg->gpu, wg->job, i));
    if (ends)
        put_line(&attn->out, 4, "return;");
    put_line(&attn->out, 3, "}");
}

static void zero_sums(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->ncol; i++) {
        int op = summed_gradient(wg, i);
        if (op < 0)
            continue;
        put_line(&attn->out, 3, "float o%d[%lld];", op,
                 (long long)wg->col[i].W / 2);
        put_line(&attn->out, 3, "zero(o%d);", op);
    }
    put_partial_sums(wg, "> 0", "load_partial", 0);
}

/* Stores to rows from `to` on, `rows` of them, scaled by f0 and f1. */
static void put_store(AttnWg *wg, int depth, AttnView v, int op, const char *to,
                      const char *rows, const char *f0, const char *f1)
{
    Attn *attn = &wg->gpu->attn;
    Axis *in[MAXD], *a = wg->job->keys ? attn->key : attn->query;

    attn_inner_axes(attn, attn->node->in[op], in);
    AttnSlab s = attn_slab(attn, v, a, in[0]);
    put_line(&attn->out, depth,
             "store_rows<%lld, %d, %d>(%s, %s, %s, o%d, row, %s, %lld, %s, "
             "%s);",
             (long long)s.W,
             attn_straight(attn, &s, 2) + attn_straight(attn, &s, 8),
             wg->job->loads ? 2 : 8, to, attn_stride_name(attn, v, a),
             attn_stride_name(attn, v, s.in), op, rows, (long long)s.w, f0, f1);
}

static const char *rows_at(Attn *attn, AttnView v, const Axis *a,
                           const char *from)
{
    return strf(attn->arena, "%s + %s * %s", attn_row_pointer(attn, v), from,
                attn_stride_name(attn, v, a));
}

/* ---- forward ------------------------------------------------------------- */

/* A tile's scores are computed while the previous tile's weights are multiplied
 * with values, across items too. (Before the first tile of a block this product
 * is meaningless; its result is discarded.) */
static void open_tile(AttnWg *wg, int depth, const char *first)
{
    Attn *attn = &wg->gpu->attn;

    attn_wg_place(wg, depth);
    put_line(&attn->out, depth,
             "const uint32_t from = base + %lld + stage * %lld;",
             (long long)attn_wg_tiles(wg), (long long)wg->colbytes);
    put_line(&attn->out, depth, "float s[%lld], scale[2];",
             (long long)wg->cols / 2);
    put_line(&attn->out, depth, "barrier_wait(ring_full(0, stage), phase);");
    put_line(&attn->out, depth, "%sbarrier_wait(ring_full(1, last), late);",
             first);
    put_line(&attn->out, depth, "fetch_fence();");
    put_line(&attn->out, depth, "wg_fence();");
    put_product(wg, depth, "s", 0, attn->ndot);
    put_values(wg, depth);
    put_line(&attn->out, depth, "wg_wait<1>();");
    put_line(&attn->out, depth, "keep_in_registers(s);");
    put_line(&attn->out, depth, "consumer_release(ring_empty(0, stage));");
    put_scores(wg, depth, put_weights);
}

static void await_values(AttnWg *wg, int depth, const char *first)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, depth, "wg_wait<0>();");
    put_line(&attn->out, depth, "%sconsumer_release(ring_empty(1, last));",
             first);
    put_line(&attn->out, depth, "keep_in_registers(p);");
    put_line(&attn->out, depth, "keep_in_registers(o%d);", attn->values);
}

/* Results of the item whose last values have been summed. */
static void put_results(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, depth,
             "sum[0] = row_sum(sum[0]), sum[1] = row_sum(sum[1]);");
    if (wg->gpu->lse.n) {
        put_line(&attn->out, depth, "for (int h = 0; h < 2; h++)");
        put_line(&attn->out, depth + 1,
                 "if ((lane & 3) == 0 && row + 8 * h < held)");
        put_line(&attn->out, depth + 2,
                 "lse_to[(row + 8 * h) * %s] = max[h] * UNIT + (sum[h] > 0 ? "
                 "log_f32(sum[h]) : 0);",
                 attn_stride_name(attn, wg->gpu->lse, attn->query));
    }
    if (wg->gpu->out.n)
        put_store(wg, depth, wg->gpu->out, attn->values, "out_to", "held",
                  "(sum[0] != 0 ? 1 / sum[0] : 0)",
                  "(sum[1] != 0 ? 1 / sum[1] : 0)");
}

static void first_tile(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    open_tile(wg, depth, "if (round) ");
    put_line(&attn->out, depth, "float most[2] = { -INFINITY, -INFINITY };");
    put_line(&attn->out, depth, "float all[2] = { };");
    put_line(&attn->out, depth, "online_softmax(s, most, all, scale);");
    await_values(wg, depth, "if (round) ");
    put_line(&attn->out, depth, "if (round) {");
    put_results(wg, depth + 1);
    put_line(&attn->out, depth, "}");
    put_line(&attn->out, depth, "zero(o%d);", attn->values);
    put_line(&attn->out, depth, "for (int h = 0; h < 2; h++)");
    put_line(&attn->out, depth + 1, "max[h] = most[h], sum[h] = all[h];");
    put_line(&attn->out, depth, "pack(p, s);");
}

static void next_tile(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    open_tile(wg, depth, "");
    put_line(&attn->out, depth, "online_softmax(s, max, sum, scale);");
    await_values(wg, depth, "");
    put_line(&attn->out, depth, "rescale(o%d, scale);", attn->values);
    put_line(&attn->out, depth, "pack(p, s);");
}

/* Declares sums and the destination of the previous item, before a block's
 * first item. */
void attn_wg_open(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, gpu->job);

    put_line(&attn->out, 1, "const int lane = TID & 31;");
    put_line(&attn->out, 1,
             "const int row = ((TID >> 5) - 4) * 16 + (lane >> 2);");
    put_line(&attn->out, 1, "float o%d[%lld], max[2], sum[2];", attn->values,
             (long long)w.col[attn->ndot].W / 2);
    put_line(&attn->out, 1, "uint32_t p[%lld][4] = { };",
             (long long)w.cols / 16);
    put_line(&attn->out, 1, "int last = 0, late = 0, held = 0;");
    if (gpu->out.n)
        put_line(&attn->out, 1, "%s *out_to = %s;",
                 dtypes[gpu->out.n->dt].store,
                 attn_pointer_name(attn, gpu->out));
    if (gpu->lse.n)
        put_line(&attn->out, 1, "float *lse_to = %s;",
                 attn_pointer_name(attn, gpu->lse));
    put_line(&attn->out, 1, "zero(o%d);", attn->values);
    /* without it ptxas serializes width 256 */
    put_line(&attn->out, 1, "keep_in_registers(p);");
}

void attn_wg_close(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, gpu->job);

    put_line(&attn->out, 1, "barrier_wait(ring_full(1, last), late);");
    put_line(&attn->out, 1, "fetch_fence();");
    put_values(&w, 1);
    await_values(&w, 1, "");
    put_results(&w, 1);
}

static void put_forward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, 3, "barrier_wait(LINE_FULL(at), round / %lld & 1);",
             (long long)wg->lines);
    attn_wg_first(wg);
    put_line(&attn->out, 3, "{");
    first_tile(wg, 4);
    put_line(&attn->out, 3, "}");
    put_line(&attn->out, 3, "held = rows;");
    if (wg->gpu->out.n)
        put_line(&attn->out, 3, "out_to = %s;",
                 rows_at(attn, wg->gpu->out, attn->query, "q0"));
    if (wg->gpu->lse.n)
        put_line(&attn->out, 3, "lse_to = %s;",
                 rows_at(attn, wg->gpu->lse, attn->query, "q0"));
    put_line(&attn->out, 3, "for (;;) {");
    put_line(&attn->out, 4, "last = stage, late = phase;");
    attn_wg_follow(wg);
    next_tile(wg, 4);
    put_line(&attn->out, 3, "}");
    put_line(&attn->out, 3, "consumer_release(LINE_EMPTY(at));");
}

/* ---- backward ------------------------------------------------------------ */

/* Logsumexps and deltas of a thread's two rows. */
static void open_backward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;
    const AttnView *v[2] = { &wg->gpu->lse, &wg->gpu->delta };

    if (wg->job->keys || wg->job->loads)
        return;
    put_line(&attn->out, 3, "float lse_of[2], delta_of[2];");
    put_line(&attn->out, 3, "for (int h = 0; h < 2; h++) {");
    put_line(&attn->out, 4, "const int r = row + 8 * h;");
    for (int i = 0; i < 2; i++)
        put_line(&attn->out, 4,
                 "%s_of[h] = r < rows ? (%s)[(q0 + r) * %s] : 0;",
                 i ? "delta" : "lse", attn_row_pointer(attn, *v[i]),
                 attn_stride_name(attn, *v[i], attn->query));
    put_line(&attn->out, 3, "}");
}

static void put_number_pointers(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, 4,
             "const float4 *const lse_of = (const float4 *)(room + (from - "
             "shared_at(room)) + %lld) + (lane & 3);",
             (long long)wg->colbytes - 1024);
    put_line(&attn->out, 4, "const float4 *const delta_of = lse_of + %lld;",
             (long long)wg->cols / 4);
}

/* x[i], the gradient of a score, from its weight and d[i]. */
static void put_dscores(AttnWg *wg, const char *x, const char *weight)
{
    Attn *attn = &wg->gpu->attn;

    put(&attn->out, "#pragma unroll\n");
    put_line(&attn->out, 4, "for (int i = 0; i < %lld; i++) {",
             (long long)wg->cols / 2);
    put_number(wg, 5, "delta");
    put_line(&attn->out, 5, "%s[i] = %s * (d[i] - delta);", x, weight);
    put_line(&attn->out, 4, "}");
}

/* Weights are computed during the product that makes d, gradients of scores
 * during that of the values' gradient. */
static void scaled_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    put_line(&attn->out, 4, "wg_wait<1>();");
    put_line(&attn->out, 4, "keep_in_registers(s);");
    put_scores(wg, 4, put_weights);
    put_sums(wg, "p", "s", attn->ndot, attn->ndot + 1);
    put_line(&attn->out, 4, "wg_wait<%d>();",
             summed_gradient(wg, attn->ndot) >= 0);
    put_line(&attn->out, 4, "keep_in_registers(d);");
    put_dscores(wg, "s", "s[i]");
    put_sums(wg, "ps", "s", 0, attn->ndot);
}

/* If registers are few, s is dead before d is computed: weights are those in
 * bf16 that the values' gradient was summed with. */
static void tight_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    put_line(&attn->out, 4, "wg_wait<0>();");
    put_line(&attn->out, 4, "keep_in_registers(s);");
    put_scores(wg, 4, put_weights);
    put_sums(wg, "p", "s", attn->ndot, attn->ndot + 1);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    put_line(&attn->out, 4, "wg_wait<0>();");
    put_line(&attn->out, 4, "keep_in_registers(d), keep_in_registers(p);");
    put_dscores(wg, "d", "unpacked(p, i)");
    put_sums(wg, "ps", "d", 0, attn->ndot);
}

static void any_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    put_line(&attn->out, 4, "wg_wait<0>();");
    put_line(&attn->out, 4, "keep_in_registers(s);");
    put_line(&attn->out, 4, "keep_in_registers(d);");
    put_scores(wg, 4, put_gradients);
    put_sums(wg, "p", "d", attn->ndot, attn->ndot + 1);
    put_sums(wg, "ps", "s", 0, attn->ndot);
}

/* Multiplies stored gradients of scores with keys. */
static void loaded_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, 4, "wg_fence();");
    for (int i = 0; i < wg->ncol; i++)
        if (summed_gradient(wg, i) >= 0)
            put_line(
                &attn->out, 4,
                "mma_dscores_by_keys<%lld>(o%d, from + %lld, from + %lld);",
                (long long)wg->col[i].W, summed_gradient(wg, i),
                (long long)wg->dscores, (long long)wg->col[i].at);
    put_line(&attn->out, 4, "wg_commit();");
    put_line(&attn->out, 4, "wg_wait<0>();");
    for (int i = 0; i < wg->ncol; i++)
        if (summed_gradient(wg, i) >= 0)
            put_line(&attn->out, 4, "keep_in_registers(o%d);",
                     summed_gradient(wg, i));
    put_line(&attn->out, 4, "consumer_release(ring_empty(0, stage));");
}

static void backward_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, 4, "float s[%lld], d[%lld];", (long long)wg->cols / 2,
             (long long)wg->cols / 2);
    if (wg->job->keys)
        put_number_pointers(wg);
    put_line(&attn->out, 4, "wg_fence();");
    if (attn_unit(attn) == 0)
        any_tile(wg);
    else if (wg->tight)
        tight_tile(wg);
    else
        scaled_tile(wg);
    put_line(&attn->out, 4, "wg_wait<0>();");
    keep_sums(wg);
    put_line(&attn->out, 4, "consumer_release(ring_empty(0, stage));");
}

static void put_change(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_line(&attn->out, 4, "if (now / %lld != combination) {",
             (long long)wg->tiles);
    put_line(&attn->out, 5, "combination = now / %lld;", (long long)wg->tiles);
    put_line(&attn->out, 5, "if (changes)");
    put_line(&attn->out, 6, "consumer_release(CHANGE_EMPTY);");
    put_line(&attn->out, 5, "barrier_wait(CHANGE_FULL, changes++ & 1);");
    put_line(&attn->out, 4, "}");
}

static void put_backward_loop(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    open_backward(wg);
    if (attn_wg_changes(wg))
        put_line(&attn->out, 3, "int combination = -1, changes = 0;");
    attn_wg_over(wg);
    if (attn_wg_changes(wg))
        put_change(wg);
    put_line(&attn->out, 4, "const uint32_t from = base + %lld + stage * %lld;",
             (long long)attn_wg_tiles(wg), (long long)wg->colbytes);
    put_line(&attn->out, 4, "barrier_wait(ring_full(0, stage), phase);");
    put_line(&attn->out, 4, "fetch_fence();");
    if (wg->job->loads)
        loaded_tile(wg);
    else
        backward_tile(wg);
    attn_wg_next(wg, 4);
    put_line(&attn->out, 3, "}");
}

static void close_backward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->job->nout && wg->job->split > 1; i++)
        put_line(&attn->out, 3, "reduce_cluster_sums(o%d, base, share, %lld);",
                 wg->job->out[i], (long long)wg->job->split);
    if (wg->job->split > 1) {
        put_line(&attn->out, 3, "if (share)");
        put_line(&attn->out, 4, "return;");
    }
    put_partial_sums(wg, "< %lld", "store_partial", 1);
    for (int i = 0; i < wg->job->nout; i++) {
        int op = wg->job->out[i];
        const char *f = op == attn->values ? "1" : "UNIT";
        AttnView v = attn_gradient_view(wg->gpu, op);
        put_store(wg, 3, v, op,
                  wg->job->keys ? rows_at(attn, v, attn->key, "k0")
                                : rows_at(attn, v, attn->query, "q0"),
                  wg->job->keys ? "cols" : "rows", f, f);
    }
}

/* ---- jobs ---------------------------------------------------------------- */

void attn_wg_job(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, job);

    attn_wg_line(&w);
    if (!gpu->back) {
        put_forward(&w);
        return;
    }
    put_line(&attn->out, 3, "const int lane = TID & 31;");
    put_line(&attn->out, 3,
             job->loads
                 ? "const int row = dscores_row();"
                 : "const int row = ((TID >> 5) - 4) * 16 + (lane >> 2);");
    zero_sums(&w);
    if (!job->loads)
        put_line(&attn->out, 3, "barrier_wait(ROWS_FULL, 0);");
    put_take_rows(&w);
    put_backward_loop(&w);
    close_backward(&w);
}
