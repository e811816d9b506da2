/* attn_producer.c: attention on Hopper's tensor cores. A block holds 128 rows;
 * one warpgroup fetches, two multiply, 64 rows each. The rows' operands stay in
 * shared memory, the columns' come in tiles through a ring of places that
 * barriers hand over, so that the two run at their own pace and one's
 * exponentials fall beside the other's products:
 *
 *     forward    s = Q K'            o  += P V (of the tile before)
 *     queries    s = Q K', d = E V'  dQ += S K
 *     keys       s = K Q', d = V E'  dK += S Q, dV += P E
 *
 * so a tile serves as it lies for both products: its rows are what the first
 * contracts along, and the second contracts over. P and S never leave
 * registers: what an accumulator holds is the left operand of the next
 * product. */
#include <string.h>

#include "attn_gpu.h"

enum { ROOM = 224 << 10, DEEPEST = 4 };

/* ---- what fits ----------------------------------------------------------- */

/* Are rows whole pieces of `k` elements that lie at multiples of k? */
int attn_straight(const Attn *attn, const AttnSlab *s, int64_t k)
{
    for (int d = 0; d < s->v.n->nd; d++) {
        const Axis *a = s->v.n->dim[d].a;
        int64_t stride = local_stride(attn->graph, s->v.n, a);
        if (a == s->in ? stride != 1 : stride % k != 0)
            return 0;
    }
    return s->w % k == 0;
}

AttnSlab attn_slab(const Attn *attn, AttnView v, Axis *a, Axis *in)
{
    int64_t w = attn_count(attn, in);

    return (AttnSlab){ v, a, in, w, (w + 63) / 64 * 64, 0 };
}

static Axis *value_axis(const Attn *attn)
{
    Axis *in[MAXD];

    attn_inner(attn, attn->node->in[attn->values], in);
    return in[0];
}

static int64_t place(AttnSlab *s, int n, int64_t rows)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        s[i].at = at;
        at += s[i].W * rows * 2;
    }
    return at;
}

/* Bytes of shared memory; a tile of queries brings 2 numbers each. */
static int64_t lay_out(AttnWg *w, int64_t cols, int64_t stages)
{
    w->cols = cols;
    w->stages = stages;
    w->rowbytes = place(w->row, w->nrow, ATWGROWS);
    w->dscores = place(w->col, w->ncol, cols);
    w->colbytes = w->dscores + (w->job->keys    ? 1024
                                : w->job->loads ? ATSQUARE
                                                : 0);
    return 1024 + w->lines * w->rowbytes + stages * w->colbytes;
}

int64_t attn_wg_tiles(const AttnWg *w)
{
    return w->lines * w->rowbytes;
}

int64_t attn_wg_sums(const AttnGpu *x, const AttnJob *j)
{
    int64_t w = 0;

    if (!x->back)
        w = (attn_inner_count(&x->attn, x->attn.values) + 63) / 64 * 64;
    for (int i = 0; i < j->nout; i++)
        w += (attn_inner_count(&x->attn, j->out[i]) + 63) / 64 * 64;
    return w;
}

/* Tiles of 128 columns where their accumulators leave room for the sums: an
 * instruction of 64 columns waits for shared memory. */
static void choose_tile(AttnWg *w)
{
    int64_t stages = DEEPEST, cols = 128;

    w->lines = 1;
    if (!w->job->loads &&
        (attn_wg_sums(w->gpu, w->job) > 128 || lay_out(w, 128, 2) > ROOM))
        cols = lay_out(w, 64, 2) > ROOM ? 32 : 64;
    w->lines += !w->gpu->back;
    if (lay_out(w, cols, 2) > ROOM)
        w->lines = 1;
    while (stages > 2 && lay_out(w, cols, stages) > ROOM)
        stages--;
    lay_out(w, cols, stages);
}

AttnWg attn_wg(AttnGpu *x, const AttnJob *j)
{
    Attn *attn = &x->attn;
    AttnWg w = { .gpu = x, .job = j };
    Axis *v = value_axis(attn);

    for (int i = 0; i < attn->ndot; i++) {
        Axis *in = attn->dot[i].n->at.dot.axes.v[0];
        AttnSlab q = attn_slab(attn, attn_operand(attn, attn->dot[i].q),
                               attn->query, in);
        AttnSlab k =
            attn_slab(attn, attn_operand(attn, attn->dot[i].k), attn->key, in);
        if (!j->loads)
            w.row[w.nrow++] = j->keys ? k : q;
        w.col[w.ncol++] = j->keys ? q : k;
    }
    AttnSlab value =
        attn_slab(attn, attn_operand(attn, attn->values), attn->key, v);
    if (j->keys) {
        w.row[w.nrow++] = value;
        w.col[w.ncol++] = attn_slab(attn, x->dout, attn->query, v);
    } else if (!j->loads) {
        if (x->back)
            w.row[w.nrow++] = attn_slab(attn, x->dout, attn->query, v);
        w.col[w.ncol++] = value;
    }
    choose_tile(&w);
    int64_t n = attn_count(attn, j->keys ? attn->query : attn->key);
    w.tiles = (n + w.cols - 1) / w.cols;
    w.total = w.tiles * attn_product(attn, j->loop, j->nloop);
    return w;
}

static int dots_fit(const Attn *attn)
{
    unsigned seen = 1u << attn->values;
    Axis *in[MAXD];

    for (int i = 0; i < attn->ndot; i++) {
        unsigned two = 1u << attn->dot[i].q | 1u << attn->dot[i].k;
        if (seen & two || attn->dot[i].n->at.dot.axes.n != 1)
            return 0;
        seen |= two;
    }
    for (int op = 0; op < attn->nop; op++)
        if (seen >> op & 1 && attn->node->in[op]->dt != Dbf16)
            return 0;
    return attn->nterm == 1 &&
           attn_inner(attn, attn->node->in[attn->values], in) == 1;
}

int attn_wg_fits(AttnGpu *x)
{
    x->shared = 0;
    if (!dots_fit(&x->attn) || (x->lse.n && x->lse.n->dt != Df32))
        return 0;
    if (x->back && (x->delta.n->dt != Df32 || x->dout.n->dt != Dbf16))
        return 0;
    for (int i = 0; i < x->njob; i++) {
        AttnWg w = attn_wg(x, &x->job[i]);
        int64_t bytes = lay_out(&w, w.cols, w.stages);
        x->shared = bytes > x->shared ? bytes : x->shared;
        if (attn_wg_sums(x, w.job) > attn_most(x) ||
            (!w.job->keys && w.job->nloop))
            return 0;
    }
    return x->shared <= ROOM;
}

/* ---- what both roles say ------------------------------------------------- */

static const char *int_text(const AttnWg *w, int64_t v)
{
    return strf(w->gpu->attn.arena, "%lld", (long long)v);
}

/* Where the columns of tile `now` are. */
void attn_wg_place(AttnWg *w, int depth)
{
    Attn *attn = &w->gpu->attn;
    int keys = w->job->keys;
    const char *k = int_text(w, w->tiles), *from = keys ? "q0" : "k0";
    const char *size = attn_size(attn, keys ? attn->query : attn->key);

    attn_coords(attn, depth, strf(attn->arena, "(now / %s)", k),
                (Axis *const *)w->job->loop, w->job->nloop);
    put_line(&attn->out, depth, "const int %s = now %% %s * %lld;", from, k,
             (long long)w->cols);
    put_line(&attn->out, depth, "const int %s = (int)at_least(%s - %s, %lld);",
             keys ? "rows" : "cols", size, from, (long long)w->cols);
}

/* What is stored is read by blocks of queries: all that one of them sees is. */
static const char *unseen_tile(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    if (!w->job->stores)
        return attn_unseen(attn, "q0", "(q0 + rows)");
    return attn_unseen(attn, "(q0 & ~127)",
                       strf(attn->arena, "at_least((q0 | 127) + 1, %s)",
                            attn_size(attn, attn->query)));
}

/* Over all tiles that some row sees. */
void attn_wg_over(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    int64_t turns = attn_sum_turns(w->gpu, w->job);
    int64_t each = w->total / w->job->split / turns;
    const char *part = w->job->split == 1 ? "0" : "share";

    if (turns > 1)
        part = strf(attn->arena, "(launch / 2 %% %lld * %lld + %s)",
                    (long long)turns, (long long)w->job->split, part);
    put_line(&attn->out, 3,
             "for (int now = (int)%s * %lld, end = now + %lld; now < end; "
             "now++) {",
             part, (long long)each, (long long)each);
    attn_wg_place(w, 4);
    if (unseen_tile(w)) {
        put_line(&attn->out, 4, "if (%s)", unseen_tile(w));
        put_line(&attn->out, 5, "continue;");
    }
}

static void put_skip(AttnWg *w, int depth)
{
    Attn *attn = &w->gpu->attn;

    if (!unseen_tile(w))
        return;
    put_line(&attn->out, depth, "for (; now < %lld; now++) {",
             (long long)w->total);
    attn_wg_place(w, depth + 1);
    put_line(&attn->out, depth + 1, "if (!(%s))", unseen_tile(w));
    put_line(&attn->out, depth + 2, "break;");
    put_line(&attn->out, depth, "}");
}

/* Forward: to an item's first such tile, or its first if none is seen, so that
 * every item has one; and in a loop over the others to the next. */
void attn_wg_first(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, 3, "int now = 0;");
    put_skip(w, 3);
    if (unseen_tile(w)) {
        put_line(&attn->out, 3, "if (now >= %lld)", (long long)w->total);
        put_line(&attn->out, 4, "now = 0;");
    }
}

void attn_wg_follow(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    attn_wg_next(w, 4);
    put_line(&attn->out, 4, "now++;");
    put_skip(w, 4);
    put_line(&attn->out, 4, "if (now >= %lld)", (long long)w->total);
    put_line(&attn->out, 5, "break;");
}

static int has_loop(const AttnWg *w, const AttnSlab *s)
{
    for (int i = 0; i < w->job->nloop; i++)
        if (dim_of(s->v.n, w->job->loop[i]) >= 0)
            return 1;
    return 0;
}

/* Are there rows that change with the combination? */
int attn_wg_changes(const AttnWg *w)
{
    for (int i = 0; i < w->nrow; i++)
        if (has_loop(w, &w->row[i]))
            return 1;
    return 0;
}

static int parts_of(const AttnWg *w)
{
    return w->gpu->back ? 1 : 2;
}

/* ---- fetching ------------------------------------------------------------ */

static void put_load(AttnWg *w, int depth, const AttnSlab *s, int64_t rows,
                     const char *to)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, depth,
             "load_tile<%lld, %lld, %d>(%s + %lld, %s, %s, %s,",
             (long long)rows, (long long)s->W, attn_straight(attn, s, 8), to,
             (long long)s->at, attn_at(attn, s->v),
             attn_stride(attn, s->v, s->a), attn_stride(attn, s->v, s->in));
    put_line(&attn->out, depth, "    %s, (int)%s, %lld);",
             s->a == attn->key ? "k0" : "q0", attn_size(attn, s->a),
             (long long)s->w);
}

/* Rows that stay, or those of one combination of the loop's axes. */
static void put_rows(AttnWg *w, int depth, int loop, const char *bar)
{
    for (int i = 0; i < w->nrow; i++)
        if (has_loop(w, &w->row[i]) == loop)
            put_load(w, depth, &w->row[i], ATWGROWS, "line");
    put_line(&w->gpu->attn.out, depth, "fetched(%s);", bar);
}

static void put_numbers(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, 4,
             "load_numbers<%lld>(to + %lld, %s, %s, %s, %s, q0, (int)%s);",
             (long long)w->cols, (long long)w->colbytes - 1024,
             attn_at(attn, w->gpu->lse),
             attn_stride(attn, w->gpu->lse, attn->query),
             attn_at(attn, w->gpu->delta),
             attn_stride(attn, w->gpu->delta, attn->query),
             attn_size(attn, attn->query));
}

static void put_part(AttnWg *w, int part)
{
    Attn *attn = &w->gpu->attn;
    int from = part ? attn->ndot : 0,
        to = parts_of(w) == 1 || part ? w->ncol : attn->ndot;

    put_line(&attn->out, 4, "await(ring_empty(%d, stage), phase ^ 1);", part);
    for (int i = from; i < to; i++)
        put_load(w, 4, &w->col[i], w->cols, "to");
    if (w->job->keys)
        put_numbers(w);
    if (w->job->loads)
        put_line(&attn->out, 4, "load_dscores(to + %lld, %s);",
                 (long long)w->dscores, attn_dscores_at(w->gpu, w->job));
    put_line(&attn->out, 4, "fetched(ring_full(%d, stage));", part);
}

void attn_wg_next(AttnWg *w, int depth)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, depth, "if (++stage == %lld)", (long long)w->stages);
    put_line(&attn->out, depth + 1, "stage = 0, phase ^= 1;");
}

/* Where the rows are: forward, the round's place. */
void attn_wg_line(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;
    long long n = w->lines;

    if (w->job->loads) /* no rows; places of tiles go on from item to item */
        return;
    if (w->gpu->back) {
        put_line(&attn->out, 3, "const uint32_t line = base;");
        put_line(&attn->out, 3, "int stage = 0, phase = 0;");
        return;
    }
    put_line(&attn->out, 3, "const int at = round %% %lld;", n);
    put_line(&attn->out, 3, "const uint32_t line = base + at * %lld;",
             (long long)w->rowbytes);
}

static void put_tile(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, 4, "const uint32_t to = base + %lld + stage * %lld;",
             (long long)attn_wg_tiles(w), (long long)w->colbytes);
    for (int i = 0; i < parts_of(w); i++)
        put_part(w, i);
}

static void fetch_forward(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, 3, "await(LINE_EMPTY(at), ~(round / %lld) & 1);",
             (long long)w->lines);
    put_rows(w, 3, 0, "LINE_FULL(at)");
    attn_wg_first(w);
    put_line(&attn->out, 3, "for (;;) {");
    put_line(&attn->out, 4, "{");
    attn_wg_place(w, 4);
    put_tile(w);
    put_line(&attn->out, 4, "}");
    attn_wg_follow(w);
    put_line(&attn->out, 3, "}");
}

static void fetch_change(AttnWg *w)
{
    Attn *attn = &w->gpu->attn;

    put_line(&attn->out, 4, "if (now / %lld != combination) {",
             (long long)w->tiles);
    put_line(&attn->out, 5, "combination = now / %lld;", (long long)w->tiles);
    put_line(&attn->out, 5, "await(CHANGE_EMPTY, ~changes++ & 1);");
    put_rows(w, 5, 1, "CHANGE_FULL");
    put_line(&attn->out, 4, "}");
}

void attn_wg_fetch(AttnGpu *x, const AttnJob *j)
{
    Attn *attn = &x->attn;
    AttnWg w = attn_wg(x, j);

    attn_wg_line(&w);
    if (!x->back) {
        fetch_forward(&w);
        return;
    }
    if (!j->loads)
        put_rows(&w, 3, 0, "ROWS_FULL");
    if (attn_wg_changes(&w))
        put_line(&attn->out, 3, "int combination = -1, changes = 0;");
    attn_wg_over(&w);
    if (attn_wg_changes(&w))
        fetch_change(&w);
    put_tile(&w);
    attn_wg_next(&w, 4);
    put_line(&attn->out, 3, "}");
}
