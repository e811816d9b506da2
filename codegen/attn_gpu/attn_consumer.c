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
    attn_line(attn, depth, "const int at = %s;", col);
    attn_line(attn, depth, "const int in = %s;",
              cols % wg->cols && !attn->open ? strf(attn->arena, "at < %s", nc)
                                             : "1");
    if (cols % wg->cols && !attn->open)
        col = strf(attn->arena, "in ? at : %s - 1", nc);
    else
        col = "at";
    attn_line(attn, depth, "const int r = %s, j = %s;", keys ? col : row,
              keys ? row : col);
}

/* lse or delta of element i: a thread has two rows, or 4 of 16 columns. */
static void put_number(AttnWg *wg, int depth, const char *name)
{
    attn_line(&wg->gpu->attn, depth,
              wg->job->keys ? "const float %s = number_of(%s_of, i);"
                            : "const float %s = %s_of[i >> 1 & 1];",
              name, name);
}

static void open_elements(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    attn->open = open;
    put(&attn->out, "#pragma unroll\n");
    attn_line(attn, depth, "for (int i = 0; i < %ld; i++) {", wg->cols / 2);
    put_element(wg, depth + 1);
}

static void close_elements(AttnWg *wg, int depth)
{
    attn_line(&wg->gpu->attn, depth, "}");
    wg->gpu->attn.open = 0;
}

/* s: scores to weights (backward), or masked scores (forward). */
static void put_weights(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    open_elements(wg, depth, open);
    attn_line(attn, depth + 1, "const float s0 = s[i];");
    attn_line(attn, depth + 1, "float z;");
    attn_score1(attn, depth + 1, 0);
    if (wg->gpu->back) {
        put_number(wg, depth + 1, "lse");
        attn_line(attn, depth + 1, "s[i] = weight_%s(z, lse);",
                  attn_may_mask(attn) ? "f32" : "seen");
    } else {
        attn_line(attn, depth + 1, "s[i] = z;");
    }
    close_elements(wg, depth);
}

/* s: scores to gradients of dots, d: gradients of weights to weights. */
static void put_gradients(AttnWg *wg, int depth, int open)
{
    Attn *attn = &wg->gpu->attn;

    open_elements(wg, depth, open);
    attn_line(attn, depth + 1, "float s0 = s[i], pr;");
    attn_line(attn, depth + 1, "const float dp = d[i];");
    put_number(wg, depth + 1, "lse");
    put_number(wg, depth + 1, "delta");
    attn_score1(attn, depth + 1, 1);
    attn_line(attn, depth + 1, "s[i] = s0, d[i] = pr;");
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
    const char *full =
        strf(attn->arena, "%s == %ld", keys ? "rows" : "cols", wg->cols);
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
    attn_line(attn, depth, "if (%s) {", all);
    put_them(wg, depth + 1, 1);
    attn_line(attn, depth, "} else {");
    put_them(wg, depth + 1, 0);
    attn_line(attn, depth, "}");
}

/* ---- products ------------------------------------------------------------ */

/* Rows times columns of slabs [from, to), into s or d. */
static void put_product(AttnWg *wg, int depth, const char *sum, int from,
                        int to)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = from; i < to; i++)
        attn_line(attn, depth,
                  "mma_%s_by_cols<%ld, %ld>(%s, %s, from + %ld, %d);",
                  i < wg->held ? "held" : "rows", wg->row[i].W, wg->cols, sum,
                  strf(attn->arena, i < wg->held ? "h%ld" : "line + %ld",
                       i < wg->held ? i : wg->row[i].at),
                  wg->col[i].at, i > from);
    attn_line(attn, depth, "wg_commit();");
}

/* Loads rows that stay in registers. */
static void put_take_rows(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->held; i++) {
        const AttnSlab *row = &wg->row[i];
        attn_line(attn, 3, "uint32_t h%d[%ld][4];", i, row->W / 16);
        attn_line(attn, 3, "take_rows<%ld>(h%d, line + %ld);", row->W, i,
                  row->at);
    }
}

/* Issues the product of the previous tile's weights and values. */
static void put_values(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;
    const AttnSlab *slab = &wg->col[attn->ndot];

    attn_line(attn, depth, "keep_in_registers(p);");
    attn_line(attn, depth, "keep_in_registers(o%d);", attn->values);
    attn_line(attn, depth, "wg_fence();");
    put_line(
        &attn->out, depth,
        "mma_registers_by_cols<%ld, %ld>(o%d, p, base + %ld + last * %ld);",
        slab->W, wg->cols, attn->values, (attn_wg_tiles(wg) + slab->at),
        wg->colbytes);
    attn_line(attn, depth, "wg_commit();");
}

/* ---- sums ---------------------------------------------------------------- */

/* The gradient that the columns of slab i are summed into, or -1. */
static int sum_of(const AttnWg *wg, int i)
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
        any |= sum_of(wg, i) >= 0;
    if (!any)
        return;
    attn_line(attn, 4, "uint32_t %s[%ld][4];", p, wg->cols / 16);
    attn_line(attn, 4, "pack(%s, %s), keep_in_registers(%s);", p, x, p);
    attn_line(attn, 4, "wg_fence();");
    for (int i = to; i-- > from;)
        if (sum_of(wg, i) >= 0)
            attn_line(attn, 4,
                      "mma_registers_by_cols<%ld, %ld>(o%d, %s, from + %ld);",
                      wg->col[i].W, wg->cols, sum_of(wg, i), p, wg->col[i].at);
    attn_line(attn, 4, "wg_commit();");
    if (wg->job->stores && from == 0)
        attn_line(attn, 4, "store_dscores<%ld>(%s, %s, q0, row, cols);",
                  wg->cols, attn_dscores_at(wg->gpu, wg->job), p);
}

static void keep_sums(AttnWg *wg)
{
    const char *p[2] = { NULL, NULL };

    for (int i = 0; i < wg->ncol; i++)
        if (sum_of(wg, i) >= 0) {
            int values = i == wg->gpu->attn.ndot;
            attn_line(&wg->gpu->attn, 4, "keep_in_registers(o%d);",
                      sum_of(wg, i));
            if (!values || !wg->tight)
                p[values] = values ? "p" : "ps";
        }
    for (int i = 0; i < 2; i++)
        if (p[i])
            attn_line(&wg->gpu->attn, 4, "keep_in_registers(%s);", p[i]);
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
    attn_line(attn, 3, "if (launch / 2 %% %ld %s%s) {", turns,
              strf(attn->arena, when, turns - 1),
              wg->job->split > 1 ? " && share == 0" : "");
    for (int i = 0; i < wg->job->nout; i++)
        attn_line(attn, 4, "%s(o%d, %s);", what, wg->job->out[i],
                  attn_waiting_at(wg->gpu, wg->job, i));
    if (ends)
        attn_line(attn, 4, "return;");
    attn_line(attn, 3, "}");
}

static void zero_sums(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->ncol; i++) {
        int op = sum_of(wg, i);
        if (op < 0)
            continue;
        attn_line(attn, 3, "float o%d[%ld];", op, wg->col[i].W / 2);
        attn_line(attn, 3, "zero(o%d);", op);
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
    const char *column = attn_stride_name(attn, v, s.in);
    attn_line(attn, depth,
              "store_rows<%ld, %d, %d>(%s, %s, %s, o%d, row, %s, %ld, %s, "
              "%s);",
              s.W, attn_straight(attn, &s, 2) + attn_straight(attn, &s, 8),
              wg->job->loads ? 2 : 8, to, attn_stride_name(attn, v, a), column,
              op, rows, s.w, f0, f1);
}

static const char *rows_at(Attn *attn, AttnView v, const Axis *a,
                           const char *from)
{
    const char *stride = attn_stride_name(attn, v, a);

    return strf(attn->arena, "%s + %s * %s", attn_row_pointer(attn, v), from,
                stride);
}

/* ---- forward ------------------------------------------------------------- */

/* A tile's scores are computed while the previous tile's weights are multiplied
 * with values, across items too. (Before the first tile of a block this product
 * is meaningless; its result is discarded.) */
static void open_tile(AttnWg *wg, int depth, const char *first)
{
    Attn *attn = &wg->gpu->attn;

    attn_wg_place(wg, depth);
    attn_line(attn, depth, "const uint32_t from = base + %ld + stage * %ld;",
              attn_wg_tiles(wg), wg->colbytes);
    attn_line(attn, depth, "float s[%ld], scale[2];", wg->cols / 2);
    attn_line(attn, depth, "bar_wait(ring_full(0, stage), phase);");
    attn_line(attn, depth, "%sbar_wait(ring_full(1, last), late);", first);
    attn_line(attn, depth, "async_fence();");
    attn_line(attn, depth, "wg_fence();");
    put_product(wg, depth, "s", 0, attn->ndot);
    put_values(wg, depth);
    attn_line(attn, depth, "wg_wait<1>();");
    attn_line(attn, depth, "keep_in_registers(s);");
    attn_line(attn, depth, "consumer_release(ring_empty(0, stage));");
    put_scores(wg, depth, put_weights);
}

static void await_values(AttnWg *wg, int depth, const char *first)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, depth, "wg_wait<0>();");
    attn_line(attn, depth, "%sconsumer_release(ring_empty(1, last));", first);
    attn_line(attn, depth, "keep_in_registers(p);");
    attn_line(attn, depth, "keep_in_registers(o%d);", attn->values);
}

/* Results of the item whose last values have been summed. */
static void put_results(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, depth,
              "sum[0] = row_sum(sum[0]), sum[1] = row_sum(sum[1]);");
    if (wg->gpu->lse.n) {
        attn_line(attn, depth, "for (int h = 0; h < 2; h++)");
        attn_line(attn, depth + 1,
                  "if ((lane & 3) == 0 && row + 8 * h < held)");
        attn_line(attn, depth + 2,
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
    attn_line(attn, depth, "float most[2] = { -INFINITY, -INFINITY };");
    attn_line(attn, depth, "float all[2] = { };");
    attn_line(attn, depth, "online_softmax(s, most, all, scale);");
    await_values(wg, depth, "if (round) ");
    attn_line(attn, depth, "if (round) {");
    put_results(wg, depth + 1);
    attn_line(attn, depth, "}");
    attn_line(attn, depth, "zero(o%d);", attn->values);
    attn_line(attn, depth, "for (int h = 0; h < 2; h++)");
    attn_line(attn, depth + 1, "max[h] = most[h], sum[h] = all[h];");
    attn_line(attn, depth, "pack(p, s);");
}

static void next_tile(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    open_tile(wg, depth, "");
    attn_line(attn, depth, "online_softmax(s, max, sum, scale);");
    await_values(wg, depth, "");
    attn_line(attn, depth, "rescale(o%d, scale);", attn->values);
    attn_line(attn, depth, "pack(p, s);");
}

/* Declares sums and the destination of the previous item, before a block's
 * first item. */
void attn_wg_open(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, gpu->job);

    attn_line(attn, 1, "const int lane = TID & 31;");
    attn_line(attn, 1, "const int row = ((TID >> 5) - 4) * 16 + (lane >> 2);");
    attn_line(attn, 1, "float o%d[%ld], max[2], sum[2];", attn->values,
              w.col[attn->ndot].W / 2);
    attn_line(attn, 1, "uint32_t p[%ld][4] = { };", w.cols / 16);
    attn_line(attn, 1, "int last = 0, late = 0, held = 0;");
    if (gpu->out.n)
        attn_line(attn, 1, "%s *out_to = %s;", dtypes[gpu->out.n->dt].store,
                  attn_pointer_name(attn, gpu->out));
    if (gpu->lse.n)
        attn_line(attn, 1, "float *lse_to = %s;",
                  attn_pointer_name(attn, gpu->lse));
    attn_line(attn, 1, "zero(o%d);", attn->values);
    /* without it ptxas serializes width 256 */
    attn_line(attn, 1, "keep_in_registers(p);");
}

void attn_wg_close(AttnGpu *gpu)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, gpu->job);

    attn_line(attn, 1, "bar_wait(ring_full(1, last), late);");
    attn_line(attn, 1, "async_fence();");
    put_values(&w, 1);
    await_values(&w, 1, "");
    put_results(&w, 1);
}

static void put_forward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 3, "bar_wait(LINE_FULL(at), round / %ld & 1);", wg->lines);
    attn_wg_first(wg);
    attn_line(attn, 3, "{");
    first_tile(wg, 4);
    attn_line(attn, 3, "}");
    attn_line(attn, 3, "held = rows;");
    if (wg->gpu->out.n)
        attn_line(attn, 3, "out_to = %s;",
                  rows_at(attn, wg->gpu->out, attn->query, "q0"));
    if (wg->gpu->lse.n)
        attn_line(attn, 3, "lse_to = %s;",
                  rows_at(attn, wg->gpu->lse, attn->query, "q0"));
    attn_line(attn, 3, "for (;;) {");
    attn_line(attn, 4, "last = stage, late = phase;");
    attn_wg_follow(wg);
    next_tile(wg, 4);
    attn_line(attn, 3, "}");
    attn_line(attn, 3, "consumer_release(LINE_EMPTY(at));");
}

/* ---- backward ------------------------------------------------------------ */

/* Logsumexps and deltas of a thread's two rows. */
static void open_backward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;
    const AttnView *v[2] = { &wg->gpu->lse, &wg->gpu->delta };

    if (wg->job->keys || wg->job->loads)
        return;
    attn_line(attn, 3, "float lse_of[2], delta_of[2];");
    attn_line(attn, 3, "for (int h = 0; h < 2; h++) {");
    attn_line(attn, 4, "const int r = row + 8 * h;");
    for (int i = 0; i < 2; i++) {
        const char *stride = attn_stride_name(attn, *v[i], attn->query);
        attn_line(attn, 4, "%s_of[h] = r < rows ? (%s)[(q0 + r) * %s] : 0;",
                  i ? "delta" : "lse", attn_row_pointer(attn, *v[i]), stride);
    }
    attn_line(attn, 3, "}");
}

static void put_number_pointers(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4,
              "const float4 *const lse_of = (const float4 *)(room + (from - "
              "shared_at(room)) + %ld) + (lane & 3);",
              wg->colbytes - 1024);
    attn_line(attn, 4, "const float4 *const delta_of = lse_of + %ld;",
              wg->cols / 4);
}

/* x[i], the gradient of a score, from its weight and d[i]. */
static void put_dscores(AttnWg *wg, const char *x, const char *weight)
{
    Attn *attn = &wg->gpu->attn;

    put(&attn->out, "#pragma unroll\n");
    attn_line(attn, 4, "for (int i = 0; i < %ld; i++) {", wg->cols / 2);
    put_number(wg, 5, "delta");
    attn_line(attn, 5, "%s[i] = %s * (d[i] - delta);", x, weight);
    attn_line(attn, 4, "}");
}

/* Weights are computed during the product that makes d, gradients of scores
 * during that of the values' gradient. */
static void scaled_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    attn_line(attn, 4, "wg_wait<1>();");
    attn_line(attn, 4, "keep_in_registers(s);");
    put_scores(wg, 4, put_weights);
    put_sums(wg, "p", "s", attn->ndot, attn->ndot + 1);
    attn_line(attn, 4, "wg_wait<%d>();", sum_of(wg, attn->ndot) >= 0);
    attn_line(attn, 4, "keep_in_registers(d);");
    put_dscores(wg, "s", "s[i]");
    put_sums(wg, "ps", "s", 0, attn->ndot);
}

/* If registers are few, s is dead before d is computed: weights are those in
 * bf16 that the values' gradient was summed with. */
static void tight_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    attn_line(attn, 4, "wg_wait<0>();");
    attn_line(attn, 4, "keep_in_registers(s);");
    put_scores(wg, 4, put_weights);
    put_sums(wg, "p", "s", attn->ndot, attn->ndot + 1);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    attn_line(attn, 4, "wg_wait<0>();");
    attn_line(attn, 4, "keep_in_registers(d), keep_in_registers(p);");
    put_dscores(wg, "d", "unpacked(p, i)");
    put_sums(wg, "ps", "d", 0, attn->ndot);
}

static void any_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    put_product(wg, 4, "s", 0, attn->ndot);
    put_product(wg, 4, "d", attn->ndot, attn->ndot + 1);
    attn_line(attn, 4, "wg_wait<0>();");
    attn_line(attn, 4, "keep_in_registers(s);");
    attn_line(attn, 4, "keep_in_registers(d);");
    put_scores(wg, 4, put_gradients);
    put_sums(wg, "p", "d", attn->ndot, attn->ndot + 1);
    put_sums(wg, "ps", "s", 0, attn->ndot);
}

/* Multiplies stored gradients of scores with keys. */
static void loaded_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4, "wg_fence();");
    for (int i = 0; i < wg->ncol; i++)
        if (sum_of(wg, i) >= 0)
            put_line(&attn->out, 4,
                     "mma_dscores_by_keys<%ld>(o%d, from + %ld, from + %ld);",
                     wg->col[i].W, sum_of(wg, i), wg->dscores, wg->col[i].at);
    attn_line(attn, 4, "wg_commit();");
    attn_line(attn, 4, "wg_wait<0>();");
    for (int i = 0; i < wg->ncol; i++)
        if (sum_of(wg, i) >= 0)
            attn_line(attn, 4, "keep_in_registers(o%d);", sum_of(wg, i));
    attn_line(attn, 4, "consumer_release(ring_empty(0, stage));");
}

static void backward_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4, "float s[%ld], d[%ld];", wg->cols / 2, wg->cols / 2);
    if (wg->job->keys)
        put_number_pointers(wg);
    attn_line(attn, 4, "wg_fence();");
    if (attn_unit(attn) == 0)
        any_tile(wg);
    else if (wg->tight)
        tight_tile(wg);
    else
        scaled_tile(wg);
    attn_line(attn, 4, "wg_wait<0>();");
    keep_sums(wg);
    attn_line(attn, 4, "consumer_release(ring_empty(0, stage));");
}

static void put_change(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4, "if (now / %ld != combination) {", wg->tiles);
    attn_line(attn, 5, "combination = now / %ld;", wg->tiles);
    attn_line(attn, 5, "if (changes)");
    attn_line(attn, 6, "consumer_release(CHANGE_EMPTY);");
    attn_line(attn, 5, "bar_wait(CHANGE_FULL, changes++ & 1);");
    attn_line(attn, 4, "}");
}

static void put_backward_loop(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    open_backward(wg);
    if (attn_wg_changes(wg))
        attn_line(attn, 3, "int combination = -1, changes = 0;");
    attn_wg_over(wg);
    if (attn_wg_changes(wg))
        put_change(wg);
    attn_line(attn, 4, "const uint32_t from = base + %ld + stage * %ld;",
              attn_wg_tiles(wg), wg->colbytes);
    attn_line(attn, 4, "bar_wait(ring_full(0, stage), phase);");
    attn_line(attn, 4, "async_fence();");
    if (wg->job->loads)
        loaded_tile(wg);
    else
        backward_tile(wg);
    attn_wg_next(wg, 4);
    attn_line(attn, 3, "}");
}

static void close_backward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    for (int i = 0; i < wg->job->nout && wg->job->split > 1; i++)
        attn_line(attn, 3, "reduce_cluster_sums(o%d, base, share, %ld);",
                  wg->job->out[i], wg->job->split);
    if (wg->job->split > 1) {
        attn_line(attn, 3, "if (share)");
        attn_line(attn, 4, "return;");
    }
    put_partial_sums(wg, "< %ld", "store_partial", 1);
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
    attn_line(attn, 3, "const int lane = TID & 31;");
    attn_line(attn, 3,
              job->loads
                  ? "const int row = dscores_row();"
                  : "const int row = ((TID >> 5) - 4) * 16 + (lane >> 2);");
    zero_sums(&w);
    if (!job->loads)
        attn_line(attn, 3, "bar_wait(ROWS_FULL, 0);");
    put_take_rows(&w);
    put_backward_loop(&w);
    close_backward(&w);
}
