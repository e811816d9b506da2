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
#include <string.h>

#include "attn.h"

typedef struct Forward {
    Attn t;
    int own;
    Axis *over[MAXD]; /* score axes of an item */
    int nfree;
    Axis *free[MAXD]; /* score axes inside an item */
    AttnView out, lse;
    int64_t row; /* work elements of one tile of queries */
} Forward;

static void split_axes(Forward *f)
{
    Attn *t = &f->t;

    for (int i = 0; i < t->nx; i++) {
        int keys = 0;
        for (int op = 0; op < t->nop; op++)
            keys |= attn_keyside(t, op) && dim_of(t->n->in[op], t->x[i]) >= 0;
        if (keys)
            f->over[f->own++] = t->x[i];
        else
            f->free[f->nfree++] = t->x[i];
    }
}

static int64_t tiles_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Query tiles a chunk: what shares one packing of keys, within 400 KiB. */
static void plan_chunks(Forward *f)
{
    Attn *t = &f->t;
    int64_t bytes = dtypes[t->dt].bytes, tiles, chunk;

    f->row = ATROWS * (attn_width(t, t->v) + 2);
    for (int i = 0; i < t->ndot; i++)
        f->row += ATROWS * attn_width(t, t->dot[i].k);
    tiles = tiles_of(attn_count(t, t->query), ATROWS) *
            attn_product(t, f->free, f->nfree);
    chunk = 400 * 1024 / (f->row * bytes);
    chunk = chunk < 1 ? 1 : chunk > 8 ? 8 : chunk;
    chunk = tiles_of(tiles, tiles_of(tiles, chunk));
    set_items(t->k, attn_product(t, f->over, f->own) * tiles_of(tiles, chunk),
              1);
    attn_int(t, "ntile", aff(tiles));
    attn_int(t, "chunk", aff(chunk));
    attn_int(t, "nchunk", aff(tiles_of(tiles, chunk)));
    attn_int(t, "nfree", aff(attn_product(t, f->free, f->nfree)));
    f->t.work += f->row * chunk;
}

/* ---- work space ---------------------------------------------------------- */

static void workspace(Forward *f)
{
    Attn *t = &f->t;

    attn_keytiles(t, 0);
    for (int i = 0; i < t->nterm; i++)
        attn_tile(t, strf(t->arena, "t%d", i), "at_rows * at_ld",
                  ATROWS * ATLD);
    attn_int(t, "rowwork", aff(f->row));
}

/* The loop over the chunk's query tiles, with names for the pieces of each
 * one's work space. Ends inside of its body. */
static void each_tile(Forward *f, int depth)
{
    Attn *t = &f->t;
    const char *at = "ws + (m - m0) * rowwork";

    put_line(&t->o, depth++, "for (int64_t m = m0; m < m1; m++) {");
    attn_querytile(t, depth, f->free, f->nfree);
    for (int i = 0; i < t->ndot; i++) {
        put_line(&t->o, depth, "at_%s *const a%d = %s;", t->t, i, at);
        at = strf(t->arena, "a%d + at_rows * %s", i,
                  attn_widthname(t, t->dot[i].k));
    }
    put_line(&t->o, depth, "at_%s *const acc = %s;", t->t, at);
    put_line(&t->o, depth, "at_%s *const max = acc + at_rows * %s;", t->t,
             attn_widthname(t, t->v));
    put_line(&t->o, depth, "at_%s *const sum = max + at_rows;", t->t);
}

/* ---- phases -------------------------------------------------------------- */

static void pack_chunk(Forward *f)
{
    Attn *t = &f->t;

    each_tile(f, 2);
    put_line(&t->o, 3,
             "memset(acc, 0, sizeof *acc * at_rows * (size_t)(%s + 2));",
             attn_widthname(t, t->v));
    put_line(&t->o, 3, "for (int r = 0; r < at_rows; r++)");
    put_line(&t->o, 4, "max[r] = -INFINITY;");
    attn_packqueries(t, 3);
    put_line(&t->o, 2, "}");
}

static void key_tile(Forward *f)
{
    Attn *t = &f->t;
    const char *unseen = attn_unseen(t, "qlo", "qhi");

    put_line(&t->o, 2, "for (int64_t k0 = 0; k0 < %s; k0 += at_keys) {",
             attn_size(t, t->key));
    put_line(&t->o, 3, "const int64_t cols = at_least(%s - k0, at_keys);",
             attn_size(t, t->key));
    attn_skip(t, 3, unseen);
    for (int op = 0; op < t->nop; op++)
        if (attn_keyside(t, op))
            attn_packkeys(t, 3, op, attn_contracted(t, op));
    each_tile(f, 3);
    attn_skip(t, 4, attn_unseen(t, "q0", "(q0 + rows)"));
    attn_visible(t, 4);
    attn_products(t, 4);
    put_line(&t->o, 4, "for (int64_t r = 0; r < rows; r++) {");
    attn_score(t, 5, 0);
    put_line(&t->o, 4, "}");
    put_line(&t->o, 4, "at_softmax_%s(rows, t0, max, sum, acc, %s);", t->t,
             attn_widthname(t, t->v));
    put_line(&t->o, 4,
             "at_mm_%s(rows, w%d, seen, t0, at_ld, 1, b%d, w%d, acc, "
             "w%d, 1);",
             t->t, t->v, t->v, t->v, t->v);
    put_line(&t->o, 3, "}");
    put_line(&t->o, 2, "}");
}

static void store_lse(Forward *f)
{
    Attn *t = &f->t;

    put_line(&t->o, 3, "for (int64_t r = 0; r < rows; r++)");
    put_line(&t->o, 4, "(%s)[(q0 + r) * %s] =", attn_at(t, f->lse),
             attn_stride(t, f->lse, t->query));
    put_line(&t->o, 5, "max[r] + (sum[r] > 0 ? log_%s(sum[r]) : 0);", t->t);
}

static void store_chunk(Forward *f)
{
    Attn *t = &f->t;

    each_tile(f, 2);
    if (f->lse.n)
        store_lse(f);
    if (f->out.n) {
        put_line(&t->o, 3, "at_divide_%s(rows, acc, sum, %s);", t->t,
                 attn_widthname(t, t->v));
        attn_move(t, 3, ATput, f->out, t->query, t->v, "acc");
    }
    put_line(&t->o, 2, "}");
}

static void item(Forward *f)
{
    Attn *t = &f->t;

    put_line(&t->o, 1, "for (int64_t item = lo; item < hi; item++) {");
    attn_coords(t, 2, "item / nchunk", f->over, f->own);
    put_line(&t->o, 2, "const int64_t m0 = item %% nchunk * chunk;");
    put_line(&t->o, 2, "const int64_t m1 = at_least(m0 + chunk, ntile);");
    if (attn_unseen(t, "", "")) {
        put_line(&t->o, 2, "const int64_t qlo = m0 / nfree * at_rows;");
        put_line(&t->o, 2,
                 "const int64_t qhi = at_least(((m1 - 1) / nfree + 1)"
                 " * at_rows, %s);",
                 attn_size(t, t->query));
    }
    pack_chunk(f);
    key_tile(f);
    store_chunk(f);
    put_line(&t->o, 1, "}");
}

void attn_lower(Graph *g, Group *k, Arena *a)
{
    Forward f = { 0 };
    Node *n = attn_main(k);

    if (!attn_read(&f.t, g, n))
        die("attention: kept, but its body does not fit");
    attn_begin(&f.t, k, a);
    split_axes(&f);
    plan_chunks(&f);
    f.out = (AttnView){ "o", attn_part(&f.t, 0), ATresult, 0 };
    f.lse = (AttnView){ "l", attn_part(&f.t, 1), ATresult, 0 };
    workspace(&f);
    item(&f);
    attn_finish(&f.t);
    attn_cost(&f.t);
}
