/* attn_fwd.c: the forward kernel. Queries come in tiles of 48 rows of one
 * combination of the axes that no key-side operand has (grouped heads); a chunk
 * is a run of such tiles over the same keys. A parallel item is one chunk:
 *
 *     pack the chunk's queries; results 0, maxima -inf, sums 0
 *     for each tile of 64 keys that some query of the chunk sees
 *         pack keys and values
 *         for each tile of queries that sees it
 *             scores = queries x keys, then the body's elementwise part
 *             weights = exp(scores - new maximum); rescale what was before
 *             results += weights x values
 *     results / sums; maximum + log sum
 *
 * A row meets the key tiles in order from 0 on, whatever the chunk: results do
 * not depend on how items are made or split. */
#include "attn.h"

typedef struct Forward {
    Attn attn;
    int own;
    Axis *over[MAXD]; /* score axes of an item */
    int nfree;
    Axis *free[MAXD]; /* score axes inside an item */
    AttnView out, lse;
    int64_t row; /* work elements of one tile of queries */
} Forward;

static void split_axes(Forward *forward)
{
    Attn *attn = &forward->attn;

    for (int i = 0; i < attn->nx; i++) {
        int keys = 0;
        for (int op = 0; op < attn->nop; op++)
            keys |= attn_keyside(attn, op) &&
                    dim_of(attn->node->in[op], attn->x[i]) >= 0;
        if (keys)
            forward->over[forward->own++] = attn->x[i];
        else
            forward->free[forward->nfree++] = attn->x[i];
    }
}

static int64_t tiles_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Query tiles a chunk: what shares one packing of keys, within 400 KiB. */
static void plan_chunks(Forward *forward)
{
    Attn *attn = &forward->attn;
    int64_t bytes = dtypes[attn->dt].bytes, tiles, chunk;

    forward->row = ATROWS * (attn_width(attn, attn->values) + 2);
    for (int i = 0; i < attn->ndot; i++)
        forward->row += ATROWS * attn_width(attn, attn->dot[i].k);
    tiles = tiles_of(attn_count(attn, attn->query), ATROWS) *
            attn_product(attn, forward->free, forward->nfree);
    chunk = 400 * 1024 / (forward->row * bytes);
    chunk = chunk < 1 ? 1 : chunk > 8 ? 8 : chunk;
    chunk = tiles_of(tiles, tiles_of(tiles, chunk));
    set_items(attn->group,
              attn_product(attn, forward->over, forward->own) *
                  tiles_of(tiles, chunk),
              1);
    attn_int(attn, "ntile", aff(tiles));
    attn_int(attn, "chunk", aff(chunk));
    attn_int(attn, "nchunk", aff(tiles_of(tiles, chunk)));
    attn_int(attn, "nfree",
             aff(attn_product(attn, forward->free, forward->nfree)));
    forward->attn.work += forward->row * chunk;
}

/* ---- work space ---------------------------------------------------------- */

static void workspace(Forward *forward)
{
    Attn *attn = &forward->attn;

    attn_keytiles(attn, 0);
    for (int i = 0; i < attn->nterm; i++)
        attn_tile(attn, strf(attn->arena, "t%d", i), "at_rows * at_ld",
                  ATROWS * ATLD);
    attn_int(attn, "rowwork", aff(forward->row));
}

/* The loop over the chunk's query tiles, with names for the pieces of each
 * one's work space. Ends inside of its body. */
static void each_tile(Forward *forward, int depth)
{
    Attn *attn = &forward->attn;
    const char *at = "ws + (m - m0) * rowwork";

    put_line(&attn->out, depth++, "for (int64_t m = m0; m < m1; m++) {");
    attn_querytile(attn, depth, forward->free, forward->nfree);
    for (int i = 0; i < attn->ndot; i++) {
        put_line(&attn->out, depth, "at_%s *const a%d = %s;", attn->type, i,
                 at);
        at = strf(attn->arena, "a%d + at_rows * %s", i,
                  attn_widthname(attn, attn->dot[i].k));
    }
    put_line(&attn->out, depth, "at_%s *const acc = %s;", attn->type, at);
    put_line(&attn->out, depth, "at_%s *const max = acc + at_rows * %s;",
             attn->type, attn_widthname(attn, attn->values));
    put_line(&attn->out, depth, "at_%s *const sum = max + at_rows;",
             attn->type);
}

/* ---- phases -------------------------------------------------------------- */

static void pack_chunk(Forward *forward)
{
    Attn *attn = &forward->attn;

    each_tile(forward, 2);
    put_line(&attn->out, 3,
             "memset(acc, 0, sizeof *acc * at_rows * (size_t)(%s + 2));",
             attn_widthname(attn, attn->values));
    put_line(&attn->out, 3, "for (int r = 0; r < at_rows; r++)");
    put_line(&attn->out, 4, "max[r] = -INFINITY;");
    attn_packqueries(attn, 3);
    put_line(&attn->out, 2, "}");
}

static void key_tile(Forward *forward)
{
    Attn *attn = &forward->attn;
    const char *unseen = attn_unseen(attn, "qlo", "qhi");

    put_line(&attn->out, 2, "for (int64_t k0 = 0; k0 < %s; k0 += at_keys) {",
             attn_size(attn, attn->key));
    put_line(&attn->out, 3, "const int64_t cols = at_least(%s - k0, at_keys);",
             attn_size(attn, attn->key));
    attn_skip(attn, 3, unseen);
    for (int op = 0; op < attn->nop; op++)
        if (attn_keyside(attn, op))
            attn_packkeys(attn, 3, op, attn_contracted(attn, op));
    each_tile(forward, 3);
    attn_skip(attn, 4, attn_unseen(attn, "q0", "(q0 + rows)"));
    attn_visible(attn, 4);
    attn_products(attn, 4);
    put_line(&attn->out, 4, "for (int64_t r = 0; r < rows; r++) {");
    attn_score(attn, 5, 0);
    put_line(&attn->out, 4, "}");
    put_line(&attn->out, 4, "at_softmax_%s(rows, t0, max, sum, acc, %s);",
             attn->type, attn_widthname(attn, attn->values));
    put_line(&attn->out, 4,
             "at_mm_%s(rows, w%d, seen, t0, at_ld, 1, b%d, w%d, acc, w%d, 1);",
             attn->type, attn->values, attn->values, attn->values,
             attn->values);
    put_line(&attn->out, 3, "}");
    put_line(&attn->out, 2, "}");
}

static void store_lse(Forward *forward)
{
    Attn *attn = &forward->attn;

    put_line(&attn->out, 3, "for (int64_t r = 0; r < rows; r++)");
    put_line(&attn->out, 4,
             "(%s)[(q0 + r) * %s] =", attn_at(attn, forward->lse),
             attn_stride(attn, forward->lse, attn->query));
    put_line(&attn->out, 5, "max[r] + (sum[r] > 0 ? log_%s(sum[r]) : 0);",
             attn->type);
}

static void store_chunk(Forward *forward)
{
    Attn *attn = &forward->attn;

    each_tile(forward, 2);
    if (forward->lse.n)
        store_lse(forward);
    if (forward->out.n) {
        put_line(&attn->out, 3, "at_divide_%s(rows, acc, sum, %s);", attn->type,
                 attn_widthname(attn, attn->values));
        attn_move(attn, 3, ATput, forward->out, attn->query, attn->values,
                  "acc");
    }
    put_line(&attn->out, 2, "}");
}

static void item(Forward *forward)
{
    Attn *attn = &forward->attn;

    put_line(&attn->out, 1, "for (int64_t item = lo; item < hi; item++) {");
    attn_coords(attn, 2, "item / nchunk", forward->over, forward->own);
    put_line(&attn->out, 2, "const int64_t m0 = item %% nchunk * chunk;");
    put_line(&attn->out, 2, "const int64_t m1 = at_least(m0 + chunk, ntile);");
    if (attn_unseen(attn, "", "")) {
        put_line(&attn->out, 2, "const int64_t qlo = m0 / nfree * at_rows;");
        put_line(&attn->out, 2,
                 "const int64_t qhi = at_least(((m1 - 1) / nfree + 1) * "
                 "at_rows, %s);",
                 attn_size(attn, attn->query));
    }
    pack_chunk(forward);
    key_tile(forward);
    store_chunk(forward);
    put_line(&attn->out, 1, "}");
}

void attn_lower(Graph *g, Group *group, Arena *a)
{
    Forward f = { 0 };
    Node *n = attn_main(group);

    if (!attn_read(&f.attn, g, n))
        die("attention: kept, but its body does not fit");
    attn_begin(&f.attn, group, a);
    split_axes(&f);
    plan_chunks(&f);
    f.out = (AttnView){ "o", attn_part(&f.attn, 0), ATresult, 0 };
    f.lse = (AttnView){ "l", attn_part(&f.attn, 1), ATresult, 0 };
    workspace(&f);
    item(&f);
    attn_finish(&f.attn);
    attn_cost(&f.attn);
}
