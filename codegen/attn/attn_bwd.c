/* attn_bwd.c: the backward kernel for hosts. Scores are recomputed from
 * operands and logsumexps; with p = exp(s - lse) and delta = sum of dout * out,
 *
 *     ds = p * (dout x values - delta)       dvalues += p' x dout
 *     dkeys += dterm' x queries              dqueries += dterm x keys
 *
 * where dterm is ds passed back through the body's elementwise part. One item
 * is one combination of the axes that all operands with a gradient have, so it
 * owns all results it writes:
 *
 *     for each tile of 64 keys, its gradient tiles zero
 *         for each combination of the axes of some key-side operands
 *             for each tile of 48 queries of each combination of the others
 *
 * Key-side gradients are stored after the loop that completes them. Query-side
 * gradients accumulate in memory in the computation type: in the result if it
 * has that type, else in scratch. The order of all sums is fixed.
 *
 * A single item (latent attention of one sequence) is cut into parts: one per
 * key tile, which sums key-side gradients only, and one per query tile. A range
 * with all parts computes both at once; other ranges compute scores twice, but
 * sum in the same order, to the same bits. */
#include "attn.h"

typedef struct Backward {
    Attn attn;
    int nover;
    Axis *over[MAXD]; /* score axes of an item */
    int nmid;
    Axis *mid[MAXD]; /* axes of some key-side operands */
    int nfree;
    Axis *free[MAXD]; /* axes of no key-side operand */
    AttnView out, lse, dout, delta;
    Node *grad[MAXIN];
} Backward;

static int key_count(const Attn *attn, const Axis *a)
{
    int n = 0;

    for (int op = 0; op < attn->nop; op++)
        n += attn_is_keyside(attn, op) && dim_of(attn->node->in[op], a) >= 0;
    return n;
}

static int in_all(const Backward *back, const Axis *a)
{
    for (int op = 0; op < back->attn.nop; op++)
        if (back->grad[op] && dim_of(back->grad[op], a) < 0)
            return 0;
    return 1;
}

/* mid: axes of more key-side operands first. */
static void split_axes(Backward *back)
{
    for (int i = 0; i < back->attn.nx; i++) {
        Axis *a = back->attn.x[i];
        int at = back->nmid, keys = key_count(&back->attn, a);
        if (in_all(back, a)) {
            back->over[back->nover++] = a;
        } else if (!keys) {
            back->free[back->nfree++] = a;
        } else {
            for (; at > 0 && key_count(&back->attn, back->mid[at - 1]) < keys;
                 at--)
                back->mid[at] = back->mid[at - 1];
            back->mid[at] = a;
            back->nmid++;
        }
    }
}

/* Number of loops over `mid` inside of which the operand is packed and its
 * gradient summed. */
static int level_of(const Backward *back, int op)
{
    int n = 0;

    for (int i = 0; i < back->nmid; i++)
        n += dim_of(back->attn.node->in[op], back->mid[i]) >= 0;
    return n;
}

/* ---- accumulators of gradients ------------------------------------------- */

static AttnView result_view(Backward *back, int op)
{
    return (AttnView){ strf(back->attn.arena, "g%d", op), back->grad[op],
                       ATresult, 0 };
}

static int in_scratch(const Backward *back, int op)
{
    return back->grad[op]->dt != back->attn.dt;
}

/* A tensor in scratch with n's dims and the computation type. */
static AttnView scratch_view(Backward *back, const char *name, Node *n)
{
    Attn *attn = &back->attn;
    int64_t bytes = dtypes[attn->dt].bytes;
    AttnView v = { name, n, ATscratch, attn->group->scratch / bytes };

    attn->group->scratch +=
        (local_elems(attn->graph, n) + 15) / 16 * 16 * bytes;
    return v;
}

static void make_views(Backward *back, AttnView *sum)
{
    Attn *attn = &back->attn;
    Node **in = attn->node->in + attn->nop;

    back->out = (AttnView){ "o", in[0], AToperand, 0 };
    back->lse = (AttnView){ "l", in[1], AToperand, 0 };
    back->dout = (AttnView){ "e", in[2], AToperand, 0 };
    back->delta =
        attn->node->at.attn.given ? back->out : scratch_view(back, "d", in[1]);
    for (int op = 0; op < attn->nop; op++)
        if (back->grad[op] && !attn_is_keyside(attn, op))
            sum[op] = in_scratch(back, op)
                          ? scratch_view(back, strf(attn->arena, "h%d", op),
                                         back->grad[op])
                          : result_view(back, op);
}

/* ---- elements of a query-side gradient that an item owns ----------------- */

/* Loops over the axes that are not the item's, for the queries of this range;
 * `off` gets the element's offset, 0 for a scalar. */
static int element_loops(Backward *back, int depth, AttnView v, Text *off)
{
    Attn *attn = &back->attn;

    if (!v.n->nd)
        put(off, "0");
    for (int d = 0; d < v.n->nd; d++) {
        Axis *a = v.n->dim[d].a;
        const char *c = attn_axis(attn, a);
        int q = a == attn->query;
        if (axis_at(back->over, back->nover, a) < 0)
            attn_line(
                attn, depth++, "for (int64_t i_%s = %s; i_%s < %s; i_%s++)", c,
                q ? "qlo" : "0", c, q ? "qhi" : attn_size_name(attn, a), c);
        put(off, "%si_%s * %s", off->s ? " + " : "", c,
            attn_stride_name(attn, v, a));
    }
    return depth;
}

static void zero_sums(Backward *back, const AttnView *sum)
{
    Attn *attn = &back->attn;

    for (int op = 0; op < attn->nop; op++) {
        Text off = { .arena = attn->arena };
        if (!sum[op].n)
            continue;
        attn_line(attn, 2, "if (queries)");
        int depth = element_loops(back, 3, sum[op], &off);
        attn_line(attn, depth, "%s[%s] = 0;", attn_pointer_name(attn, sum[op]),
                  off.s);
    }
}

static void round_sums(Backward *back, const AttnView *sum)
{
    Attn *attn = &back->attn;

    for (int op = 0; op < attn->nop; op++) {
        Text off = { .arena = attn->arena };
        if (!sum[op].n || sum[op].kind != ATscratch)
            continue;
        attn_line(attn, 2, "if (queries)");
        int depth = element_loops(back, 3, sum[op], &off);
        const char *from = strf(attn->arena, "%s[%s]",
                                attn_pointer_name(attn, sum[op]), off.s);
        attn_line(attn, depth, "%s[%s] = %s;",
                  attn_pointer_name(attn, result_view(back, op)), off.s,
                  text_save(attn->arena, back->grad[op]->dt, from));
    }
}

/* ---- workspace ----------------------------------------------------------- */

static void row_tile(Attn *attn, const char *name, const char *w, int64_t n)
{
    attn_tile(attn, name, strf(attn->arena, "at_rows * %s", w), ATROWS * n);
}

static void declare_workspace(Backward *back)
{
    Attn *attn = &back->attn;
    int64_t widest = 0;

    attn_keytiles(attn, 1);
    for (int op = 0; op < attn->nop; op++)
        if (back->grad[op] && attn_is_keyside(attn, op))
            attn_tile(
                attn, strf(attn->arena, "c%d", op),
                strf(attn->arena, "at_keypad * %s", attn_width_name(attn, op)),
                ATKEYPAD * attn_row_width(attn, op));
    for (int i = 0; i < attn->ndot; i++) {
        int k = attn->dot[i].k;
        int64_t w = attn_row_width(attn, k);
        row_tile(attn, strf(attn->arena, "a%d", i), attn_width_name(attn, k),
                 w);
        widest = w > widest ? w : widest;
    }
    row_tile(attn, "et", attn_width_name(attn, attn->values),
             attn_row_width(attn, attn->values));
    row_tile(attn, "ot", attn_width_name(attn, attn->values),
             attn_row_width(attn, attn->values));
    row_tile(attn, "qt", attn_int(attn, "widest", aff(widest)), widest);
    for (int i = 0; i < attn->nterm; i++)
        row_tile(attn, strf(attn->arena, "t%d", i), "at_ld", ATLD);
    for (int op = 0; op < attn->nop; op++)
        if (attn->wanted >> op & 1)
            row_tile(attn, strf(attn->arena, "u%d", op), "at_ld", ATLD);
    row_tile(attn, "pt", "at_ld", ATLD);
    row_tile(attn, "dt", "at_ld", ATLD);
}

/* ---- phases -------------------------------------------------------------- */

/* Opens the loop over query tiles of all combinations of the free axes. */
static void each_tile(Backward *back, int depth)
{
    Attn *attn = &back->attn;

    attn_line(attn, depth++, "for (int64_t m = mlo; m < mhi; m++) {");
    attn_querytile(attn, depth, back->free, back->nfree);
}

static void mid_loop(Backward *back, int depth, int i)
{
    const char *c = attn_axis(&back->attn, back->mid[i]);

    attn_line(&back->attn, depth, "for (int64_t i_%s = 0; i_%s < %s; i_%s++) {",
              c, c, attn_size_name(&back->attn, back->mid[i]), c);
}

static void pack_results(Backward *back, int depth, AttnView v,
                         const char *tile)
{
    Attn *attn = &back->attn;

    attn_clear(attn, depth, tile, "at_rows", attn->values);
    attn_move(attn, depth, ATpack, v, attn->query, attn->values, tile);
}

/* delta[r] = row r of dout * out; dout is packed. */
static void row_deltas(Backward *back, int depth)
{
    Attn *attn = &back->attn;
    const char *w = attn_width_name(attn, attn->values);

    pack_results(back, depth, back->out, "ot");
    attn_line(attn, depth, "at_dot_%s(rows, delta, et, ot, %s);", attn->type,
              w);
}

static const char *row_of(Attn *attn, AttnView v)
{
    const char *stride = attn_stride_name(attn, v, attn->query);

    return strf(attn->arena, "(%s)[(q0 + r) * %s]", attn_row_pointer(attn, v),
                stride);
}

static void store_deltas(Backward *back)
{
    Attn *attn = &back->attn;
    int depth = 3;

    if (attn->node->at.attn.given)
        return;
    attn_line(attn, 2, "if (keys && queries) {");
    for (int i = 0; i < back->nmid; i++)
        mid_loop(back, depth++, i);
    each_tile(back, depth++);
    pack_results(back, depth, back->dout, "et");
    attn_line(attn, depth, "at_%s delta[at_rows];", attn->type);
    attn_line(attn, depth, "UNWRITTEN(delta);");
    row_deltas(back, depth);
    attn_line(attn, depth, "for (int64_t r = 0; r < rows; r++)");
    attn_line(attn, depth + 1, "%s = delta[r];", row_of(attn, back->delta));
    while (depth-- > 2)
        attn_line(attn, depth, "}");
}

/* A row without a visible key has lse -inf; inf makes its weights exp(s - inf)
 * = 0. */
static void row_numbers(Backward *back, int depth)
{
    Attn *attn = &back->attn;

    attn_line(attn, depth, "at_%s lse[at_rows], delta[at_rows];", attn->type);
    attn_line(attn, depth, "UNWRITTEN(lse), UNWRITTEN(delta);");
    attn_line(attn, depth, "for (int64_t r = 0; r < rows; r++) {");
    attn_line(attn, depth + 1, "lse[r] = %s;", row_of(attn, back->lse));
    attn_line(attn, depth + 1, "if (lse[r] == -INFINITY)");
    attn_line(attn, depth + 2, "lse[r] = INFINITY;");
    attn_line(attn, depth, "}");
    int given = attn->node->at.attn.given;
    attn_line(attn, depth, "%s {", given ? "" : "if (keys && queries)");
    attn_line(attn, depth + 1, "for (int64_t r = 0; r < rows; r++)");
    attn_line(attn, depth + 2, "delta[r] = %s;", row_of(attn, back->delta));
    attn_line(attn, depth, "}%s", given ? "" : " else {");
    if (given)
        return;
    row_deltas(back, depth + 1);
    attn_line(attn, depth, "}");
}

static void tile_scores(Backward *back, int depth)
{
    Attn *attn = &back->attn;
    const char *w = attn_width_name(attn, attn->values);

    attn_packqueries(attn, depth);
    pack_results(back, depth, back->dout, "et");
    attn_products(attn, depth);
    attn_line(
        attn, depth,
        "at_mm_%s(rows, wide, %s, et, %s, 1, f%d, at_keys, dt, at_ld, 0);",
        attn->type, w, w, attn->values);
    row_numbers(back, depth);
    attn_line(attn, depth, "for (int64_t r = 0; r < rows; r++) {");
    attn_line(attn, depth + 1, "const at_%s *restrict dp = dt + r * at_ld;",
              attn->type);
    attn_line(attn, depth + 1, "at_%s *restrict pr = pt + r * at_ld;",
              attn->type);
    for (int op = 0; op < attn->nop; op++)
        if (attn->wanted >> op & 1)
            attn_line(attn, depth + 1,
                      "at_%s *restrict ur%d = u%d + r * at_ld;", attn->type, op,
                      op);
    attn_score(attn, depth + 1, 1);
    attn_line(attn, depth, "}");
}

static void query_gradient(Backward *back, int depth, int i, AttnView sum)
{
    Attn *attn = &back->attn;
    const AttnDot *dot = &attn->dot[i];
    const char *w = attn_width_name(attn, dot->k);

    attn_line(attn, depth, "if (queries) {");
    attn_line(attn, depth + 1,
              "at_mm_%s(rows, %s, seen, t%d, at_ld, 1, b%d, %s, qt, %s, 0);",
              attn->type, w, dot->term, dot->k, w, w);
    attn_move(attn, depth + 1, ATadd, sum, attn->query, dot->k, "qt");
    attn_line(attn, depth, "}");
}

/* c += transposed tile x operand. */
static void key_gradient(Backward *back, int depth, int op, const char *tile,
                         const char *weighed)
{
    Attn *attn = &back->attn;
    const char *w = attn_width_name(attn, op);

    attn_line(attn, depth, "if (keys)");
    attn_line(attn, depth + 1,
              "at_mm_%s(seen, %s, rows, %s, 1, at_ld, %s, %s, c%d, %s, 1);",
              attn->type, w, tile, weighed, w, op, w);
}

static void leaf_gradient(Backward *back, int depth, int op, AttnView sum)
{
    Attn *attn = &back->attn;
    const char *q = attn_stride_name(attn, sum, attn->query);
    const char *k = attn_stride_name(attn, sum, attn->key);

    attn_line(attn, depth,
              "at_leaf_%s(rows, seen, u%d, %s + q0 * %s + k0 * %s, %s, %s);",
              attn->type, op, attn_row_pointer(attn, sum), q, k, q, k);
}

static void tile_gradients(Backward *back, int depth, const AttnView *sum)
{
    Attn *attn = &back->attn;

    for (int op = 0; op < attn->nop; op++)
        if (attn->wanted >> op & 1)
            leaf_gradient(back, depth, op, sum[op]);
    if (back->grad[attn->values])
        key_gradient(back, depth, attn->values, "pt", "et");
    for (int i = 0; i < attn->ndot; i++) {
        const AttnDot *dot = &attn->dot[i];
        if (back->grad[dot->k])
            key_gradient(back, depth, dot->k,
                         strf(attn->arena, "t%d", dot->term),
                         strf(attn->arena, "a%d", i));
        if (sum[dot->q].n)
            query_gradient(back, depth, i, sum[dot->q]);
    }
}

/* Packs the key-side operands of one level and clears their gradients. */
static void open_keys(Backward *back, int depth, int level)
{
    Attn *attn = &back->attn;

    for (int op = 0; op < attn->nop; op++) {
        if (!attn_is_keyside(attn, op) || level_of(back, op) != level)
            continue;
        attn_packkeys(attn, depth, op, 1);
        if (back->grad[op])
            attn_clear(attn, depth, strf(attn->arena, "c%d", op), "at_keypad",
                       op);
    }
}

static void close_keys(Backward *back, int depth, int level)
{
    Attn *attn = &back->attn;

    for (int op = 0; op < attn->nop; op++) {
        if (!attn_is_keyside(attn, op) || level_of(back, op) != level ||
            !back->grad[op])
            continue;
        attn_line(attn, depth, "if (keys)");
        attn_move(attn, depth + 1, ATput, result_view(back, op), attn->key, op,
                  strf(attn->arena, "c%d", op));
    }
}

static void key_tile(Backward *back, const AttnView *sum)
{
    Attn *attn = &back->attn;
    const char *unseen = attn_tile_masked(attn, "q0", "(q0 + rows)");
    int depth = 3;

    attn_line(attn, 2, "for (int64_t k0 = klo; k0 < khi; k0 += at_keys) {");
    attn_line(attn, 3, "const int64_t cols = at_least(khi - k0, at_keys);");
    open_keys(back, depth, 0);
    for (int i = 0; i < back->nmid; i++) {
        mid_loop(back, depth++, i);
        open_keys(back, depth, i + 1);
    }
    each_tile(back, depth);
    attn_skip(attn, depth + 1, unseen);
    attn_visible(attn, depth + 1);
    tile_scores(back, depth + 1);
    tile_gradients(back, depth + 1, sum);
    attn_line(attn, depth, "}");
    for (int i = back->nmid; i >= 0; i--) {
        close_keys(back, depth, i);
        attn_line(attn, --depth, "}");
    }
}

/* ---- items --------------------------------------------------------------- */

static void find_gradients(Backward *back)
{
    for (int op = 0; op < back->attn.nop; op++)
        if ((back->grad[op] = attn_result(&back->attn, op)) &&
            (back->attn.leaf >> op & 1))
            back->attn.wanted |= 1u << op;
}

/* Parts of an item: kparts of 64 keys each, then one per 48 queries. */
static void set_items_and_parts(Backward *back)
{
    Attn *attn = &back->attn;
    int64_t items = attn_local_product(attn, back->over, back->nover);
    int64_t nfree = attn_local_product(attn, back->free, back->nfree);
    int64_t tiles = (attn_local_size(attn, attn->query) + ATROWS - 1) / ATROWS;
    int64_t ktiles = (attn_local_size(attn, attn->key) + ATKEYS - 1) / ATKEYS;
    int cut = items == 1 && tiles > 1 && !attn->wanted;
    int64_t parts = cut ? ktiles + tiles : 1;

    set_items(attn->group, items * parts, 1);
    attn_int(attn, "parts", aff(parts));
    attn_int(attn, "kparts", aff(cut ? ktiles : 0));
    attn_int(attn, "nfree", aff(nfree));
    attn_int(attn, "ntile", aff(tiles * nfree));
}

/* The loop over items: all parts of one, or the parts of one side. */
static void each_item(Backward *back)
{
    /* clang-format off */
    static const char *const lines[] = {
        "const int64_t part = item %% parts, left = hi - item + part;",
        "const int keys = left >= parts && part == 0 ? 1 : part < kparts;",
        "const int queries = left >= parts && part == 0 ? 1 : part >= kparts;",
        "const int64_t last = keys && !queries ? kparts : parts;",
        "const int64_t end = at_least(left, last);",
        "const int64_t klo = queries ? 0 : part * at_keys;",
        "const int64_t khi = queries ? %s : at_least(end * at_keys, %s);",
        "const int64_t mlo = keys ? 0 : (part - kparts) * nfree;",
        "const int64_t mhi = keys ? ntile : (end - kparts) * nfree;",
    };
    /* clang-format on */
    Attn *attn = &back->attn;
    const char *nk = attn_size_name(attn, attn->key),
               *nq = attn_size_name(attn, attn->query);

    attn_line(attn, 1,
              "for (int64_t item = lo, next; item < hi; item = next) {");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        attn_line(attn, 2, lines[i], nk, nk);
    attn_line(attn, 2, "next = item - part + end;");
    attn_line(attn, 2, "const int64_t qlo = mlo / nfree * at_rows;");
    attn_line(attn, 2,
              "const int64_t qhi = at_least(mhi / nfree * at_rows, %s);", nq);
    attn_coords(attn, 2, "item / parts", back->over, back->nover);
}

void attn_bwd_lower(Graph *g, Group *group, Arena *a)
{
    Backward back = { 0 };
    AttnView sum[MAXIN] = { 0 };

    if (!attn_read(&back.attn, g, attn_of_group(group)))
        die("attention: kept, but its body does not fit");
    attn_begin(&back.attn, group, a);
    find_gradients(&back);
    split_axes(&back);
    set_items_and_parts(&back);
    make_views(&back, sum);
    declare_workspace(&back);
    each_item(&back);
    zero_sums(&back, sum);
    store_deltas(&back);
    key_tile(&back, sum);
    round_sums(&back, sum);
    attn_line(&back.attn, 1, "}");
    attn_finish(&back.attn);
    attn_cost(&back.attn);
}
