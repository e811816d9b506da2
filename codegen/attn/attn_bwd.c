/* attn_bwd.c: the backward kernel. Scores are made again from operands and
 * logsumexps; with p = exp(s - lse) and delta = sum of dout * out,
 *
 *     ds = p * (dout x values - delta)       dvalues += p' x dout
 *     dkeys += dterm' x queries              dqueries += dterm x keys
 *
 * where dterm is ds through the body's elementwise part, backwards. A parallel
 * item is one combination of the axes that all operands with a gradient have,
 * so it owns all it writes:
 *
 *     for each tile of 64 keys, its gradient tiles zero
 *         for each combination of the axes that only some key-side operands
 *         have
 *             for each tile of 48 queries of each combination of the others
 *
 * Key-side gradients leave their tile after the loop in which all their parts
 * are summed; query-side ones gather in memory in the compute type, in the
 * result itself where it has that type, else in scratch. The order of all sums
 * is fixed.
 *
 * When there is one item only (latent attention of one sequence), it is cut
 * into parts: one for each tile of keys, which sums key-side gradients only,
 * and one for each tile of queries. A range that holds all parts does them at
 * once; any other makes scores twice, but sums in the same order: same bits. */
#include <string.h>

#include "attn.h"

typedef struct Backward {
    Attn t;
    int own;
    Axis *over[MAXD]; /* score axes of an item */
    int nmid;
    Axis *mid[MAXD]; /* of some key-side operands */
    int nfree;
    Axis *free[MAXD]; /* of no key-side operand */
    AttnView out, lse, dout, delta;
    Node *grad[MAXIN];
} Backward;

static int key_count(const Attn *t, const Axis *a)
{
    int n = 0;

    for (int op = 0; op < t->nop; op++)
        n += attn_keyside(t, op) && dim_of(t->n->in[op], a) >= 0;
    return n;
}

static int in_all(const Backward *b, const Axis *a)
{
    for (int op = 0; op < b->t.nop; op++)
        if (b->grad[op] && dim_of(b->grad[op], a) < 0)
            return 0;
    return 1;
}

/* mid: axes that more key-side operands have come first. */
static void split_axes(Backward *b)
{
    for (int i = 0; i < b->t.nx; i++) {
        Axis *a = b->t.x[i];
        int at = b->nmid, keys = key_count(&b->t, a);
        if (in_all(b, a)) {
            b->over[b->own++] = a;
        } else if (!keys) {
            b->free[b->nfree++] = a;
        } else {
            for (; at > 0 && key_count(&b->t, b->mid[at - 1]) < keys; at--)
                b->mid[at] = b->mid[at - 1];
            b->mid[at] = a;
            b->nmid++;
        }
    }
}

/* Inside of how many loops over `mid` the operand is packed and summed. */
static int level_of(const Backward *b, int op)
{
    int n = 0;

    for (int i = 0; i < b->nmid; i++)
        n += dim_of(b->t.n->in[op], b->mid[i]) >= 0;
    return n;
}

/* ---- where gradients gather ---------------------------------------------- */

static AttnView result(Backward *b, int op)
{
    return (AttnView){ strf(b->t.arena, "g%d", op), b->grad[op], ATresult, 0 };
}

static int in_scratch(const Backward *b, int op)
{
    return b->grad[op]->dt != b->t.dt;
}

/* A tensor of the compute type in scratch with n's dims. */
static AttnView scratch(Backward *b, const char *name, Node *n)
{
    Attn *t = &b->t;
    int64_t bytes = dtypes[t->dt].bytes;
    AttnView v = { name, n, ATscratch, t->k->scratch / bytes };

    t->k->scratch += (local_elems(t->g, n) + 15) / 16 * 16 * bytes;
    return v;
}

static void make_views(Backward *b, AttnView *sum)
{
    Attn *t = &b->t;
    Node **in = t->n->in + t->nop;

    b->out = (AttnView){ "o", in[0], AToperand, 0 };
    b->lse = (AttnView){ "l", in[1], AToperand, 0 };
    b->dout = (AttnView){ "e", in[2], AToperand, 0 };
    b->delta = scratch(b, "d", in[1]);
    for (int op = 0; op < t->nop; op++)
        if (b->grad[op] && !attn_keyside(t, op))
            sum[op] = in_scratch(b, op)
                          ? scratch(b, strf(t->arena, "h%d", op), b->grad[op])
                          : result(b, op);
}

/* ---- all elements of a query-side gradient that an item owns ------------- */

static int is_over(const Backward *b, const Axis *a)
{
    for (int i = 0; i < b->own; i++)
        if (b->over[i] == a)
            return 1;
    return 0;
}

/* Loops over what is not the item's, queries of this range only; the element's
 * offset goes to `off`. */
static int element_loops(Backward *b, int depth, AttnView v, Text *off)
{
    Attn *t = &b->t;

    for (int d = 0; d < v.n->nd; d++) {
        Axis *a = v.n->dim[d].a;
        const char *c = attn_code(t, a);
        int q = a == t->query;
        if (!is_over(b, a))
            put_line(&t->o, depth++,
                     "for (int64_t i_%s = %s; i_%s < %s; i_%s++)", c,
                     q ? "qlo" : "0", c, q ? "qhi" : attn_size(t, a), c);
        put(off, "%si_%s * %s", off->s ? " + " : "", c, attn_stride(t, v, a));
    }
    return depth;
}

static void zero_sums(Backward *b, const AttnView *sum)
{
    Attn *t = &b->t;

    for (int op = 0; op < t->nop; op++) {
        Text off = { .arena = t->arena };
        if (!sum[op].n)
            continue;
        put_line(&t->o, 2, "if (queries)");
        int depth = element_loops(b, 3, sum[op], &off);
        put_line(&t->o, depth, "%s[%s] = 0;", attn_base(t, sum[op]), off.s);
    }
}

static void round_sums(Backward *b, const AttnView *sum)
{
    Attn *t = &b->t;

    for (int op = 0; op < t->nop; op++) {
        Text off = { .arena = t->arena };
        if (!sum[op].n || sum[op].kind != ATscratch)
            continue;
        put_line(&t->o, 2, "if (queries)");
        int depth = element_loops(b, 3, sum[op], &off);
        put_line(&t->o, depth, "%s[%s] = %s(%s[%s]);",
                 attn_base(t, result(b, op)), off.s,
                 b->grad[op]->dt == Dbf16 ? "f32_bf16" : "(float)",
                 attn_base(t, sum[op]), off.s);
    }
}

/* ---- work space ---------------------------------------------------------- */

static void row_tile(Attn *t, const char *name, const char *w, int64_t n)
{
    attn_tile(t, name, strf(t->arena, "at_rows * %s", w), ATROWS * n);
}

static void workspace(Backward *b)
{
    Attn *t = &b->t;
    int64_t widest = 0;

    attn_keytiles(t, 1);
    for (int op = 0; op < t->nop; op++)
        if (b->grad[op] && attn_keyside(t, op))
            attn_tile(t, strf(t->arena, "c%d", op),
                      strf(t->arena, "at_keypad * %s", attn_widthname(t, op)),
                      ATKEYPAD * attn_width(t, op));
    for (int i = 0; i < t->ndot; i++) {
        int k = t->dot[i].k;
        int64_t w = attn_width(t, k);
        row_tile(t, strf(t->arena, "a%d", i), attn_widthname(t, k), w);
        widest = w > widest ? w : widest;
    }
    row_tile(t, "et", attn_widthname(t, t->v), attn_width(t, t->v));
    row_tile(t, "ot", attn_widthname(t, t->v), attn_width(t, t->v));
    row_tile(t, "qt", attn_int(t, "widest", aff(widest)), widest);
    for (int i = 0; i < t->nterm; i++)
        row_tile(t, strf(t->arena, "t%d", i), "at_ld", ATLD);
    for (int op = 0; op < t->nop; op++)
        if (t->wanted >> op & 1)
            row_tile(t, strf(t->arena, "u%d", op), "at_ld", ATLD);
    row_tile(t, "pt", "at_ld", ATLD);
    row_tile(t, "dt", "at_ld", ATLD);
}

/* ---- phases -------------------------------------------------------------- */

/* Query tiles of all combinations of the free axes; ends inside of the body. */
static void each_tile(Backward *b, int depth)
{
    Attn *t = &b->t;

    put_line(&t->o, depth++, "for (int64_t m = mlo; m < mhi; m++) {");
    attn_querytile(t, depth, b->free, b->nfree);
}

static void mid_loop(Backward *b, int depth, int i)
{
    const char *c = attn_code(&b->t, b->mid[i]);

    put_line(&b->t.o, depth, "for (int64_t i_%s = 0; i_%s < %s; i_%s++) {", c,
             c, attn_size(&b->t, b->mid[i]), c);
}

static void pack_results(Backward *b, int depth, AttnView v, const char *tile)
{
    Attn *t = &b->t;

    attn_clear(t, depth, tile, "at_rows", t->v);
    attn_move(t, depth, ATpack, v, t->query, t->v, tile);
}

/* delta[r] = row r of dout * out, dout packed already. */
static void row_deltas(Backward *b, int depth)
{
    Attn *t = &b->t;
    const char *w = attn_widthname(t, t->v);

    pack_results(b, depth, b->out, "ot");
    put_line(&t->o, depth, "at_dot_%s(rows, delta, et, ot, %s);", t->t, w);
}

static const char *row_of(Attn *t, AttnView v)
{
    return strf(t->arena, "(%s)[(q0 + r) * %s]", attn_at(t, v),
                attn_stride(t, v, t->query));
}

static void store_deltas(Backward *b)
{
    Attn *t = &b->t;
    int depth = 3;

    put_line(&t->o, 2, "if (keys && queries) {");
    for (int i = 0; i < b->nmid; i++)
        mid_loop(b, depth++, i);
    each_tile(b, depth++);
    pack_results(b, depth, b->dout, "et");
    put_line(&t->o, depth, "at_%s delta[at_rows];", t->t);
    row_deltas(b, depth);
    put_line(&t->o, depth, "for (int64_t r = 0; r < rows; r++)");
    put_line(&t->o, depth + 1, "%s = delta[r];", row_of(t, b->delta));
    while (depth-- > 2)
        put_line(&t->o, depth, "}");
}

/* A row that saw no key has weights exp(s - inf) = 0. */
static void row_numbers(Backward *b, int depth)
{
    Attn *t = &b->t;

    put_line(&t->o, depth, "at_%s lse[at_rows], delta[at_rows];", t->t);
    put_line(&t->o, depth, "for (int64_t r = 0; r < rows; r++) {");
    put_line(&t->o, depth + 1, "lse[r] = %s;", row_of(t, b->lse));
    put_line(&t->o, depth + 1, "if (lse[r] == -INFINITY)");
    put_line(&t->o, depth + 2, "lse[r] = INFINITY;");
    put_line(&t->o, depth, "}");
    put_line(&t->o, depth, "if (keys && queries) {");
    put_line(&t->o, depth + 1, "for (int64_t r = 0; r < rows; r++)");
    put_line(&t->o, depth + 2, "delta[r] = %s;", row_of(t, b->delta));
    put_line(&t->o, depth, "} else {");
    row_deltas(b, depth + 1);
    put_line(&t->o, depth, "}");
}

static void tile_scores(Backward *b, int depth)
{
    Attn *t = &b->t;
    const char *w = attn_widthname(t, t->v);

    attn_packqueries(t, depth);
    pack_results(b, depth, b->dout, "et");
    attn_products(t, depth);
    put_line(&t->o, depth,
             "at_mm_%s(rows, wide, %s, et, %s, 1, f%d, at_keys, "
             "dt, at_ld, 0);",
             t->t, w, w, t->v);
    row_numbers(b, depth);
    put_line(&t->o, depth, "for (int64_t r = 0; r < rows; r++) {");
    put_line(&t->o, depth + 1, "const at_%s *restrict dp = dt + r * at_ld;",
             t->t);
    put_line(&t->o, depth + 1, "at_%s *restrict pr = pt + r * at_ld;", t->t);
    for (int op = 0; op < t->nop; op++)
        if (t->wanted >> op & 1)
            put_line(&t->o, depth + 1,
                     "at_%s *restrict ur%d = u%d + r * at_ld;", t->t, op, op);
    attn_score(t, depth + 1, 1);
    put_line(&t->o, depth, "}");
}

static void query_gradient(Backward *b, int depth, int i, AttnView sum)
{
    Attn *t = &b->t;
    const AttnDot *d = &t->dot[i];
    const char *w = attn_widthname(t, d->k);

    put_line(&t->o, depth, "if (queries) {");
    put_line(&t->o, depth + 1,
             "at_mm_%s(rows, %s, seen, t%d, at_ld, 1, b%d, %s, "
             "qt, %s, 0);",
             t->t, w, d->term, d->k, w, w);
    attn_move(t, depth + 1, ATadd, sum, t->query, d->k, "qt");
    put_line(&t->o, depth, "}");
}

/* c += the transposed tile x what it weighs. */
static void key_gradient(Backward *b, int depth, int op, const char *tile,
                         const char *weighed)
{
    Attn *t = &b->t;
    const char *w = attn_widthname(t, op);

    put_line(&t->o, depth, "if (keys)");
    put_line(&t->o, depth + 1,
             "at_mm_%s(seen, %s, rows, %s, 1, at_ld, %s, %s, "
             "c%d, %s, 1);",
             t->t, w, tile, weighed, w, op, w);
}

static void leaf_gradient(Backward *b, int depth, int op, AttnView sum)
{
    Attn *t = &b->t;
    const char *q = attn_stride(t, sum, t->query);
    const char *k = attn_stride(t, sum, t->key);

    put_line(&t->o, depth,
             "at_leaf_%s(rows, seen, u%d, %s + q0 * %s + k0 * %s, "
             "%s, %s);",
             t->t, op, attn_at(t, sum), q, k, q, k);
}

static void tile_gradients(Backward *b, int depth, const AttnView *sum)
{
    Attn *t = &b->t;

    for (int op = 0; op < t->nop; op++)
        if (t->wanted >> op & 1)
            leaf_gradient(b, depth, op, sum[op]);
    if (b->grad[t->v])
        key_gradient(b, depth, t->v, "pt", "et");
    for (int i = 0; i < t->ndot; i++) {
        const AttnDot *d = &t->dot[i];
        if (b->grad[d->k])
            key_gradient(b, depth, d->k, strf(t->arena, "t%d", d->term),
                         strf(t->arena, "a%d", i));
        if (sum[d->q].n)
            query_gradient(b, depth, i, sum[d->q]);
    }
}

/* Key-side operands of one level: pack them, their gradients start at zero. */
static void open_keys(Backward *b, int depth, int level)
{
    Attn *t = &b->t;

    for (int op = 0; op < t->nop; op++) {
        if (!attn_keyside(t, op) || level_of(b, op) != level)
            continue;
        attn_packkeys(t, depth, op, 1);
        if (b->grad[op])
            attn_clear(t, depth, strf(t->arena, "c%d", op), "at_keypad", op);
    }
}

static void close_keys(Backward *b, int depth, int level)
{
    Attn *t = &b->t;

    for (int op = 0; op < t->nop; op++) {
        if (!attn_keyside(t, op) || level_of(b, op) != level || !b->grad[op])
            continue;
        put_line(&t->o, depth, "if (keys)");
        attn_move(t, depth + 1, ATput, result(b, op), t->key, op,
                  strf(t->arena, "c%d", op));
    }
}

static void key_tile(Backward *b, const AttnView *sum)
{
    Attn *t = &b->t;
    const char *unseen = attn_unseen(t, "q0", "(q0 + rows)");
    int depth = 3;

    put_line(&t->o, 2, "for (int64_t k0 = klo; k0 < khi; k0 += at_keys) {");
    put_line(&t->o, 3, "const int64_t cols = at_least(khi - k0, at_keys);");
    open_keys(b, depth, 0);
    for (int i = 0; i < b->nmid; i++) {
        mid_loop(b, depth++, i);
        open_keys(b, depth, i + 1);
    }
    each_tile(b, depth);
    attn_skip(t, depth + 1, unseen);
    attn_visible(t, depth + 1);
    tile_scores(b, depth + 1);
    tile_gradients(b, depth + 1, sum);
    put_line(&t->o, depth, "}");
    for (int i = b->nmid; i >= 0; i--) {
        close_keys(b, depth, i);
        put_line(&t->o, --depth, "}");
    }
}

/* ---- items --------------------------------------------------------------- */

static void find_gradients(Backward *b)
{
    for (int op = 0; op < b->t.nop; op++)
        if ((b->grad[op] = attn_part(&b->t, op)) && (b->t.leaf >> op & 1))
            b->t.wanted |= 1u << op;
}

/* parts of an item: kparts of 64 keys, then one for each 48 queries. */
static void counts(Backward *b)
{
    Attn *t = &b->t;
    int64_t items = attn_product(t, b->over, b->own);
    int64_t nfree = attn_product(t, b->free, b->nfree);
    int64_t tiles = (attn_count(t, t->query) + ATROWS - 1) / ATROWS;
    int64_t ktiles = (attn_count(t, t->key) + ATKEYS - 1) / ATKEYS;
    int cut = items == 1 && tiles > 1 && !t->wanted;
    int64_t parts = cut ? ktiles + tiles : 1;

    set_items(t->k, items * parts, 1);
    attn_int(t, "parts", aff(parts));
    attn_int(t, "kparts", aff(cut ? ktiles : 0));
    attn_int(t, "nfree", aff(nfree));
    attn_int(t, "ntile", aff(tiles * nfree));
}

/* The loop over items: all parts of one, or those of one side. */
static void each_item(Backward *b)
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
    Attn *t = &b->t;
    const char *nk = attn_size(t, t->key), *nq = attn_size(t, t->query);

    put_line(&t->o, 1,
             "for (int64_t item = lo, next; item < hi; item = next) {");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        put_line(&t->o, 2, lines[i], nk, nk);
    put_line(&t->o, 2, "next = item - part + end;");
    put_line(&t->o, 2, "const int64_t qlo = mlo / nfree * at_rows;");
    put_line(&t->o, 2,
             "const int64_t qhi = at_least(mhi / nfree * at_rows, %s);", nq);
    attn_coords(t, 2, "item / parts", b->over, b->own);
}

void attn_bwd_lower(Graph *g, Group *k, Arena *a)
{
    Backward b = { 0 };
    AttnView sum[MAXIN] = { 0 };

    if (!attn_read(&b.t, g, attn_main(k)))
        die("attention: kept, but its body does not fit");
    attn_begin(&b.t, k, a);
    find_gradients(&b);
    split_axes(&b);
    counts(&b);
    make_views(&b, sum);
    workspace(&b);
    each_item(&b);
    zero_sums(&b, sum);
    store_deltas(&b);
    key_tile(&b, sum);
    round_sums(&b, sum);
    put_line(&b.t.o, 1, "}");
    attn_finish(&b.t);
    attn_cost(&b.t);
}
