/* attn_producer.c: attention on Hopper's tensor cores, layout and producer. A
 * block has 128 rows: one producer warpgroup loads, two consumer warpgroups
 * multiply, 64 rows each. Operands of rows stay in shared memory; operands of
 * columns pass as tiles through a ring of stages with mbarriers, so the
 * consumers run independently, and the exponentials of one overlap the products
 * of the other:
 *
 *     forward    s = Q K'            o  += P V (of the previous tile)
 *     queries    s = Q K', d = E V'  dQ += S K
 *     keys       s = K Q', d = V E'  dK += S Q, dV += P E
 *
 * A tile serves both products in one layout: the first contracts its columns,
 * the second its rows. P and S stay in registers: an accumulator is the left
 * operand of the next product. So do the rows of K where the keys' job stores
 * S. */
#include "attn_gpu.h"

enum { SHAREDBYTES = 224 << 10, DEEPEST = 4 };
/* widest sums that leave registers for scores and their gradients */
enum { MANYSUMS = 256 };
enum { ROWREGS = 208 }; /* registers of a thread for sums, a tile and rows */

/* ---- layout -------------------------------------------------------------- */

/* Are rows whole vectors of k elements, aligned to k elements? */
int attn_straight(const Attn *attn, const AttnSlab *slab, int64_t k)
{
    for (int d = 0; d < slab->v.n->nd; d++) {
        const Axis *a = slab->v.n->dim[d].a;
        int64_t stride = local_stride(attn->graph, slab->v.n, a);
        if (a == slab->in ? stride != 1 : stride % k != 0)
            return 0;
    }
    return slab->w % k == 0;
}

AttnSlab attn_slab(const Attn *attn, AttnView v, Axis *a, Axis *in)
{
    int64_t w = attn_local_size(attn, in);

    return (AttnSlab){ v, a, in, w, (w + 63) / 64 * 64, 0 };
}

static Axis *value_axis(const Attn *attn)
{
    Axis *in[MAXD];

    attn_inner_axes(attn, attn->node->in[attn->values], in);
    return in[0];
}

static int64_t place_slabs(AttnSlab *slab, int n, int64_t rows)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        slab[i].at = at;
        at += slab[i].W * rows * 2;
    }
    return at;
}

/* Bytes of shared memory; a tile of queries also has two numbers per query. */
static int64_t lay_out(AttnWg *wg, int64_t cols, int64_t stages)
{
    wg->cols = cols;
    wg->stages = stages;
    wg->rowbytes = place_slabs(wg->row, wg->nrow, ATWGROWS);
    wg->dscores = place_slabs(wg->col, wg->ncol, cols);
    wg->colbytes = wg->dscores + (wg->job->keys    ? 1024
                                  : wg->job->loads ? ATSQUARE
                                                   : 0);
    return 1024 + wg->lines * wg->rowbytes + stages * wg->colbytes;
}

int64_t attn_wg_tiles(const AttnWg *wg)
{
    return wg->lines * wg->rowbytes;
}

int64_t attn_wg_sums(const AttnGpu *attn, const AttnJob *job)
{
    int64_t w = 0;

    if (!attn->back)
        w = (attn_inner_count(&attn->attn, attn->attn.values) + 63) / 64 * 64;
    for (int i = 0; i < job->nout; i++)
        w += (attn_inner_count(&attn->attn, job->out[i]) + 63) / 64 * 64;
    return w;
}

/* Tiles have 128 columns if their accumulators leave registers for the sums: an
 * instruction with 64 columns waits for shared memory. */
static void choose_tile(AttnWg *wg)
{
    int64_t stages = DEEPEST, cols = 128;

    wg->lines = 1;
    if (!wg->job->loads && (attn_wg_sums(wg->gpu, wg->job) > 128 ||
                            lay_out(wg, 128, 2) > SHAREDBYTES))
        cols = lay_out(wg, 64, 2) > SHAREDBYTES ? 32 : 64;
    wg->lines += !wg->gpu->back;
    if (lay_out(wg, cols, 2) > SHAREDBYTES)
        wg->lines = 1;
    while (stages > 2 && lay_out(wg, cols, stages) > SHAREDBYTES)
        stages--;
    lay_out(wg, cols, stages);
}

static int has_loop(const AttnWg *wg, const AttnSlab *slab)
{
    for (int i = 0; i < wg->job->nloop; i++)
        if (dim_of(slab->v.n, wg->job->loop[i]) >= 0)
            return 1;
    return 0;
}

/* Number of the dots' row operands that fit into registers besides the sums and
 * a tile: its scores (replaced by the weights' gradients) and its weights in
 * bf16. */
static int rows_held(const AttnWg *wg)
{
    int64_t left =
        ROWREGS - attn_wg_sums(wg->gpu, wg->job) / 2 - 3 * wg->cols / 4;
    int n = 0;

    while (n < wg->gpu->attn.ndot && !has_loop(wg, &wg->row[n]) &&
           (left -= wg->row[n].W / 4) >= 0)
        n++;
    return n;
}

/* A 64-column product reads shared memory during all of its 32 cycles, and
 * stores use it as well; rows in registers reduce that. It pays only for jobs
 * that store gradients of scores: decisions/attention-backward.md. */
static void choose_order(AttnWg *wg)
{
    int values = attn_has_out(wg->job, wg->gpu->attn.values);

    if (attn_unit(&wg->gpu->attn) == 0 || !wg->job->keys || !values)
        return;
    wg->held = wg->job->stores ? rows_held(wg) : 0;
    wg->tight = wg->held || attn_wg_sums(wg->gpu, wg->job) > MANYSUMS;
}

AttnWg attn_wg(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    AttnWg w = { .gpu = gpu, .job = job };
    Axis *axis = value_axis(attn);

    for (int i = 0; i < attn->ndot; i++) {
        Axis *in = attn->dot[i].n->at.dot.axes.v[0];
        AttnSlab q = attn_slab(attn, attn_operand(attn, attn->dot[i].q),
                               attn->query, in);
        AttnSlab k =
            attn_slab(attn, attn_operand(attn, attn->dot[i].k), attn->key, in);
        if (!job->loads)
            w.row[w.nrow++] = job->keys ? k : q;
        w.col[w.ncol++] = job->keys ? q : k;
    }
    AttnSlab value =
        attn_slab(attn, attn_operand(attn, attn->values), attn->key, axis);
    if (job->keys) {
        w.row[w.nrow++] = value;
        w.col[w.ncol++] = attn_slab(attn, gpu->dout, attn->query, axis);
    } else if (!job->loads) {
        if (gpu->back)
            w.row[w.nrow++] = attn_slab(attn, gpu->dout, attn->query, axis);
        w.col[w.ncol++] = value;
    }
    choose_tile(&w);
    choose_order(&w);
    int64_t n = attn_local_size(attn, job->keys ? attn->query : attn->key);
    w.tiles = (n + w.cols - 1) / w.cols;
    w.total = w.tiles * attn_local_product(attn, job->loop, job->nloop);
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
           attn_inner_axes(attn, attn->node->in[attn->values], in) == 1;
}

int attn_wg_fits(AttnGpu *attn)
{
    attn->shared = 0;
    if (!dots_fit(&attn->attn) || (attn->lse.n && attn->lse.n->dt != Df32))
        return 0;
    if (attn->back && (attn->delta.n->dt != Df32 || attn->dout.n->dt != Dbf16))
        return 0;
    for (int i = 0; i < attn->njob; i++) {
        AttnWg w = attn_wg(attn, &attn->job[i]);
        int64_t bytes = lay_out(&w, w.cols, w.stages);
        attn->shared = bytes > attn->shared ? bytes : attn->shared;
        if (attn_wg_sums(attn, w.job) > attn_most_width(attn) ||
            (!w.job->keys && w.job->nloop))
            return 0;
    }
    return attn->shared <= SHAREDBYTES;
}

/* ---- text that producer and consumers share ------------------------------ */

static const char *int_text(const AttnWg *wg, int64_t v)
{
    return strf(wg->gpu->attn.arena, "%ld", v);
}

/* Position of the columns of tile `now`. */
void attn_wg_place(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;
    int keys = wg->job->keys;
    const char *k = int_text(wg, wg->tiles), *from = keys ? "q0" : "k0";
    const char *size = attn_size_name(attn, keys ? attn->query : attn->key);

    attn_coords(attn, depth, strf(attn->arena, "(now / %s)", k),
                (Axis *const *)wg->job->loop, wg->job->nloop);
    attn_line(attn, depth, "const int %s = now %% %s * %ld;", from, k,
              wg->cols);
    attn_line(attn, depth, "const int %s = (int)at_least(%s - %s, %ld);",
              keys ? "rows" : "cols", size, from, wg->cols);
}

/* Condition to skip a tile. Blocks of queries read the stored gradients, so
 * every tile that one of their queries sees is stored. */
static const char *unseen_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    if (!wg->job->stores)
        return attn_tile_masked(attn, "q0", "(q0 + rows)");
    return attn_tile_masked(attn, "(q0 & ~127)",
                            strf(attn->arena, "at_least((q0 | 127) + 1, %s)",
                                 attn_size_name(attn, attn->query)));
}

/* Loop over all tiles that a row sees. */
void attn_wg_over(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    int64_t turns = attn_sum_parts(wg->gpu, wg->job);
    int64_t each = wg->total / wg->job->split / turns;
    const char *part = wg->job->split == 1 ? "0" : "share";

    if (turns > 1)
        part = strf(attn->arena, "(launch / 2 %% %ld * %ld + %s)", turns,
                    wg->job->split, part);
    attn_line(attn, 3,
              "for (int now = (int)%s * %ld, end = now + %ld; now < end; "
              "now++) {",
              part, each, each);
    attn_wg_place(wg, 4);
    if (unseen_tile(wg)) {
        attn_line(attn, 4, "if (%s)", unseen_tile(wg));
        attn_line(attn, 5, "continue;");
    }
}

static void put_skip(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    if (!unseen_tile(wg))
        return;
    attn_line(attn, depth, "for (; now < %ld; now++) {", wg->total);
    attn_wg_place(wg, depth + 1);
    attn_line(attn, depth + 1, "if (!(%s))", unseen_tile(wg));
    attn_line(attn, depth + 2, "break;");
    attn_line(attn, depth, "}");
}

/* Forward: attn_wg_first moves to the first visible tile of an item, or to its
 * first tile if none is visible, so that every item has one; attn_wg_follow
 * moves to the next visible tile. */
void attn_wg_first(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 3, "int now = 0;");
    put_skip(wg, 3);
    if (unseen_tile(wg)) {
        attn_line(attn, 3, "if (now >= %ld)", wg->total);
        attn_line(attn, 4, "now = 0;");
    }
}

void attn_wg_follow(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_wg_next(wg, 4);
    attn_line(attn, 4, "now++;");
    put_skip(wg, 4);
    attn_line(attn, 4, "if (now >= %ld)", wg->total);
    attn_line(attn, 5, "break;");
}

/* Do some rows change with the combination of loop axes? */
int attn_wg_changes(const AttnWg *wg)
{
    for (int i = 0; i < wg->nrow; i++)
        if (has_loop(wg, &wg->row[i]))
            return 1;
    return 0;
}

static int parts_of(const AttnWg *wg)
{
    return wg->gpu->back ? 1 : 2;
}

/* ---- loads --------------------------------------------------------------- */

static void put_load(AttnWg *wg, int depth, const AttnSlab *slab, int64_t rows,
                     const char *to)
{
    Attn *attn = &wg->gpu->attn;
    const char *column = attn_stride_name(attn, slab->v, slab->in);
    const char *stride = attn_stride_name(attn, slab->v, slab->a);

    attn_line(attn, depth, "load_tile<%ld, %ld, %d>(%s + %ld, %s, %s, %s,",
              rows, slab->W, attn_straight(attn, slab, 8), to, slab->at,
              attn_row_pointer(attn, slab->v), stride, column);
    attn_line(attn, depth, "    %s, (int)%s, %ld);",
              slab->a == attn->key ? "k0" : "q0", attn_size_name(attn, slab->a),
              slab->w);
}

/* Rows that stay, or those of one combination of the loop axes. */
static void put_rows(AttnWg *wg, int depth, int loop, const char *bar)
{
    for (int i = 0; i < wg->nrow; i++)
        if (has_loop(wg, &wg->row[i]) == loop)
            put_load(wg, depth, &wg->row[i], ATWGROWS, "line");
    attn_line(&wg->gpu->attn, depth, "bar_arrive_fetched(%s);", bar);
}

static void put_numbers(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;
    AttnView lse = wg->gpu->lse, delta = wg->gpu->delta;
    const char *size = attn_size_name(attn, attn->query);
    const char *sd = attn_stride_name(attn, delta, attn->query);
    const char *d = attn_row_pointer(attn, delta);
    const char *sl = attn_stride_name(attn, lse, attn->query);

    attn_line(attn, 4,
              "load_numbers<%ld>(to + %ld, %s, %s, %s, %s, q0, (int)%s);",
              wg->cols, wg->colbytes - 1024, attn_row_pointer(attn, lse), sl, d,
              sd, size);
}

static void put_part(AttnWg *wg, int part)
{
    Attn *attn = &wg->gpu->attn;
    int from = part ? attn->ndot : 0,
        to = parts_of(wg) == 1 || part ? wg->ncol : attn->ndot;

    attn_line(attn, 4, "bar_wait(ring_empty(%d, stage), phase ^ 1);", part);
    for (int i = from; i < to; i++)
        put_load(wg, 4, &wg->col[i], wg->cols, "to");
    if (wg->job->keys)
        put_numbers(wg);
    if (wg->job->loads)
        put_line(&attn->out, 4,
                 "load_dscores(to + %ld, %s, ring_full(%d, stage));",
                 wg->dscores, attn_dscores_at(wg->gpu, wg->job), part);
    attn_line(attn, 4, "bar_arrive_fetched(ring_full(%d, stage));", part);
}

void attn_wg_next(AttnWg *wg, int depth)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, depth, "if (++stage == %ld)", wg->stages);
    attn_line(attn, depth + 1, "stage = 0, phase ^= 1;");
}

/* Memory of the rows; forward: the round's buffer. */
void attn_wg_line(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;
    int64_t n = wg->lines;

    if (wg->job->loads) /* no rows; stages continue over items */
        return;
    if (wg->gpu->back) {
        attn_line(attn, 3, "const uint32_t line = base;");
        attn_line(attn, 3, "int stage = 0, phase = 0;");
        return;
    }
    attn_line(attn, 3, "const int at = round %% %ld;", n);
    attn_line(attn, 3, "const uint32_t line = base + at * %ld;", wg->rowbytes);
}

static void put_tile(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4, "const uint32_t to = base + %ld + stage * %ld;",
              attn_wg_tiles(wg), wg->colbytes);
    for (int i = 0; i < parts_of(wg); i++)
        put_part(wg, i);
}

static void fetch_forward(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 3, "bar_wait(LINE_EMPTY(at), ~(round / %ld) & 1);",
              wg->lines);
    put_rows(wg, 3, 0, "LINE_FULL(at)");
    attn_wg_first(wg);
    attn_line(attn, 3, "for (;;) {");
    attn_line(attn, 4, "{");
    attn_wg_place(wg, 4);
    put_tile(wg);
    attn_line(attn, 4, "}");
    attn_wg_follow(wg);
    attn_line(attn, 3, "}");
}

static void fetch_change(AttnWg *wg)
{
    Attn *attn = &wg->gpu->attn;

    attn_line(attn, 4, "if (now / %ld != combination) {", wg->tiles);
    attn_line(attn, 5, "combination = now / %ld;", wg->tiles);
    attn_line(attn, 5, "bar_wait(CHANGE_EMPTY, ~changes++ & 1);");
    put_rows(wg, 5, 1, "CHANGE_FULL");
    attn_line(attn, 4, "}");
}

void attn_wg_fetch(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    AttnWg w = attn_wg(gpu, job);

    attn_wg_line(&w);
    if (!gpu->back) {
        fetch_forward(&w);
        return;
    }
    if (!job->loads)
        put_rows(&w, 3, 0, "ROWS_FULL");
    if (attn_wg_changes(&w))
        attn_line(attn, 3, "int combination = -1, changes = 0;");
    attn_wg_over(&w);
    if (attn_wg_changes(&w))
        fetch_change(&w);
    put_tile(&w);
    attn_wg_next(&w, 4);
    attn_line(attn, 3, "}");
}
