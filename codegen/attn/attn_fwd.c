/* attn_fwd.c: the forward kernel for hosts. A query tile has 48 rows of one
 * combination of the axes that no key-side operand has (grouped heads); a chunk
 * is a run of query tiles with the same keys. One item is one chunk:
 *
 *     pack the chunk's queries; results 0, maxima -inf, sums 0
 *     for each tile of 64 keys that a query of the chunk sees
 *         pack keys and values
 *         for each query tile that sees it
 *             scores = queries x keys, then the body's elementwise part
 *             weights = exp(scores - new maximum); rescale earlier sums
 *             results += weights x values
 *     results / sums; maximum + log sum
 *
 * Each row visits the key tiles in ascending order, so results do not depend on
 * the division into chunks and items. */
#include "attn.h"

typedef struct Forward {
    Attn attn;
    int nover;
    Axis *over[MAXD]; /* score axes of an item */
    int nfree;
    Axis *free[MAXD]; /* score axes within an item */
    AttnView out, lse;
    int64_t row; /* workspace elements of a query tile */
} Forward;

static void split_axes(Forward *forward)
{
    Attn *attn = &forward->attn;

    for (int i = 0; i < attn->nx; i++) {
        int keys = 0;
        for (int op = 0; op < attn->nop; op++)
            keys |= attn_is_keyside(attn, op) &&
                    dim_of(attn->node->in[op], attn->x[i]) >= 0;
        if (keys)
            forward->over[forward->nover++] = attn->x[i];
        else
            forward->free[forward->nfree++] = attn->x[i];
    }
}

/* Sets the query tiles of a chunk, which share one packing of keys: at most 8,
 * within 400 KiB. */
static void plan_chunks(Forward *forward)
{
    Attn *attn = &forward->attn;
    int64_t bytes = dtypes[attn->dt].bytes, tiles, chunk;

    forward->row = ATROWS * (attn_row_width(attn, attn->values) + 2);
    for (int i = 0; i < attn->ndot; i++)
        forward->row += ATROWS * attn_row_width(attn, attn->dot[i].k);
    tiles = divide_up(attn_local_size(attn, attn->query), ATROWS) *
            attn_local_product(attn, forward->free, forward->nfree);
    chunk = 400 * 1024 / (forward->row * bytes);
    chunk = chunk < 1 ? 1 : chunk > 8 ? 8 : chunk;
    chunk = divide_up(tiles, divide_up(tiles, chunk));
    set_items(attn->group,
              attn_local_product(attn, forward->over, forward->nover) *
                  divide_up(tiles, chunk),
              1);
    attn_int(attn, "ntile", aff(tiles));
    attn_int(attn, "chunk", aff(chunk));
    attn_int(attn, "nchunk", aff(divide_up(tiles, chunk)));
    attn_int(attn, "nfree",
             aff(attn_local_product(attn, forward->free, forward->nfree)));
    forward->attn.work += forward->row * chunk;
}

/* ---- workspace ----------------------------------------------------------- */

static void declare_workspace(Forward *forward)
{
    Attn *attn = &forward->attn;

    attn_keytiles(attn, 0);
    for (int i = 0; i < attn->nterm; i++)
        attn_tile(attn, strf(attn->arena, "t%d", i), "at_rows * at_ld",
                  ATROWS * ATLD);
    attn_int(attn, "rowwork", aff(forward->row));
}

/* Opens the loop over the chunk's query tiles and names the parts of each one's
 * workspace. */
static void each_tile(Forward *forward, int depth)
{
    Attn *attn = &forward->attn;
    const char *at = "ws + (m - m0) * rowwork";

    attn_line(attn, depth++, "for (int64_t m = m0; m < m1; m++) {");
    attn_querytile(attn, depth, forward->free, forward->nfree);
    for (int i = 0; i < attn->ndot; i++) {
        attn_line(attn, depth, "at_%s *const a%d = %s;", attn->type, i, at);
        at = strf(attn->arena, "a%d + at_rows * %s", i,
                  attn_width_name(attn, attn->dot[i].k));
    }
    attn_line(attn, depth, "at_%s *const acc = %s;", attn->type, at);
    attn_line(attn, depth, "at_%s *const max = acc + at_rows * %s;", attn->type,
              attn_width_name(attn, attn->values));
    attn_line(attn, depth, "at_%s *const sum = max + at_rows;", attn->type);
}

/* ---- phases -------------------------------------------------------------- */

static void pack_chunk(Forward *forward)
{
    Attn *attn = &forward->attn;

    each_tile(forward, 2);
    attn_line(attn, 3,
              "memset(acc, 0, sizeof *acc * at_rows * (size_t)(%s + 2));",
              attn_width_name(attn, attn->values));
    attn_line(attn, 3, "for (int r = 0; r < at_rows; r++)");
    attn_line(attn, 4, "max[r] = -INFINITY;");
    attn_packqueries(attn, 3);
    attn_line(attn, 2, "}");
}

static void key_tile(Forward *forward)
{
    Attn *attn = &forward->attn;
    const char *unseen = attn_tile_masked(attn, "qlo", "qhi");

    attn_line(attn, 2, "for (int64_t k0 = 0; k0 < %s; k0 += at_keys) {",
              attn_size_name(attn, attn->key));
    attn_line(attn, 3, "const int64_t cols = at_least(%s - k0, at_keys);",
              attn_size_name(attn, attn->key));
    attn_skip(attn, 3, unseen);
    for (int op = 0; op < attn->nop; op++)
        if (attn_is_keyside(attn, op))
            attn_packkeys(attn, 3, op, attn_contracted(attn, op));
    each_tile(forward, 3);
    attn_skip(attn, 4, attn_tile_masked(attn, "q0", "(q0 + rows)"));
    attn_visible(attn, 4);
    attn_products(attn, 4);
    attn_line(attn, 4, "for (int64_t r = 0; r < rows; r++) {");
    attn_score(attn, 5, 0);
    attn_line(attn, 4, "}");
    attn_line(attn, 4, "at_softmax_%s(rows, t0, max, sum, acc, %s);",
              attn->type, attn_width_name(attn, attn->values));
    attn_line(attn, 4,
              "at_mm_%s(rows, w%d, seen, t0, at_ld, 1, b%d, w%d, acc, w%d, 1);",
              attn->type, attn->values, attn->values, attn->values,
              attn->values);
    attn_line(attn, 3, "}");
    attn_line(attn, 2, "}");
}

static void store_lse(Forward *forward)
{
    Attn *attn = &forward->attn;
    const char *stride = attn_stride_name(attn, forward->lse, attn->query);

    attn_line(attn, 3, "for (int64_t r = 0; r < rows; r++)");
    attn_line(attn, 4,
              "(%s)[(q0 + r) * %s] =", attn_row_pointer(attn, forward->lse),
              stride);
    attn_line(attn, 5, "max[r] + (sum[r] > 0 ? log_%s(sum[r]) : 0);",
              attn->type);
}

static void store_chunk(Forward *forward)
{
    Attn *attn = &forward->attn;

    each_tile(forward, 2);
    if (forward->lse.n)
        store_lse(forward);
    if (forward->out.n) {
        attn_line(attn, 3, "at_divide_%s(rows, acc, sum, %s);", attn->type,
                  attn_width_name(attn, attn->values));
        attn_move(attn, 3, ATput, forward->out, attn->query, attn->values,
                  "acc");
    }
    attn_line(attn, 2, "}");
}

static void put_chunks(Forward *forward)
{
    Attn *attn = &forward->attn;

    attn_line(attn, 1, "for (int64_t item = lo; item < hi; item++) {");
    attn_coords(attn, 2, "item / nchunk", forward->over, forward->nover);
    attn_line(attn, 2, "const int64_t m0 = item %% nchunk * chunk;");
    attn_line(attn, 2, "const int64_t m1 = at_least(m0 + chunk, ntile);");
    if (attn_tile_masked(attn, "", "")) {
        attn_line(attn, 2, "const int64_t qlo = m0 / nfree * at_rows;");
        attn_line(attn, 2,
                  "const int64_t qhi = at_least(((m1 - 1) / nfree + 1) * "
                  "at_rows, %s);",
                  attn_size_name(attn, attn->query));
    }
    pack_chunk(forward);
    key_tile(forward);
    store_chunk(forward);
    attn_line(attn, 1, "}");
}

void attn_lower(Graph *g, Group *group, Arena *a)
{
    Forward f = { 0 };
    Node *n = attn_of_group(group);

    if (!attn_read(&f.attn, g, n))
        die("attention: kept, but its body does not fit");
    attn_begin(&f.attn, group, a);
    split_axes(&f);
    plan_chunks(&f);
    f.out = (AttnView){ "o", attn_result(&f.attn, 0), ATresult, 0 };
    f.lse = (AttnView){ "l", attn_result(&f.attn, 1), ATresult, 0 };
    declare_workspace(&f);
    put_chunks(&f);
    attn_finish(&f.attn);
    attn_cost(&f.attn);
}
