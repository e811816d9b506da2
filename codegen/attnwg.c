/* attnwg.c: attention on Hopper's tensor cores. A block holds 128 rows; one
 * warpgroup fetches, two multiply, 64 rows each. The rows' operands stay in
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
 * product.                                                                   */
#include <string.h>

#include "codegen.h"

enum {
    ROOM = 224 << 10, SLABS = ATDOTS + 2, DEEPEST = 4, PARTS = 2
};

/* An operand in shared memory: `n` rows along axis `a`, W columns, w of them
 * real, at byte `at` of its place.                                           */
typedef struct Slab {
    AttnView v;
    Axis *a, *in;
    int64_t w, W, at;
} Slab;

/* A place of the ring is handed over in parts: forward, keys, then values.   */
typedef struct Wg {
    AttnGpu *x;
    const AttnJob *j;
    int nrow, ncol;
    Slab row[SLABS], col[SLABS];  /* those of dots, then v or dout            */
    int64_t cols;                 /* columns of a tile                        */
    int64_t stages, lines;        /* places of tiles; forward, of rows        */
    int64_t rowbytes, colbytes;
    int64_t tiles, total;         /* of one combination, of all               */
} Wg;

/* ---- what fits ----------------------------------------------------------- */

static int64_t stride_of(const Attn *t, const Node *n, int d)
{
    int64_t s = 1;

    while (++d < n->nd)
        s *= local_n(t->g, n, d);
    return s;
}

/* Are rows whole pieces of `k` elements that lie at multiples of k?          */
static int is_straight(const Attn *t, const Slab *s, int64_t k)
{
    for (int d = 0; d < s->v.n->nd; d++) {
        int64_t stride = stride_of(t, s->v.n, d);
        if (s->v.n->dim[d].a == s->in ? stride != 1 : stride % k != 0)
            return 0;
    }
    return s->w % k == 0;
}

static Slab slab(const Attn *t, AttnView v, Axis *a, Axis *in)
{
    int64_t w = attn_count(t, in);

    return (Slab){ v, a, in, w, (w + 63) / 64 * 64, 0 };
}

static Axis *value_axis(const Attn *t)
{
    Axis *in[MAXD];

    attn_inner(t, t->n->in[t->v], in);
    return in[0];
}

static int64_t place(Slab *s, int n, int64_t rows)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        s[i].at = at;
        at += s[i].W * rows * 2;
    }
    return at;
}

/* Bytes of shared memory; a tile of queries brings 2 numbers each.           */
static int64_t lay_out(Wg *w, int64_t cols, int64_t stages)
{
    w->cols = cols;
    w->stages = stages;
    w->rowbytes = place(w->row, w->nrow, ATWGROWS);
    w->colbytes = place(w->col, w->ncol, cols) + (w->j->keys ? 1024 : 0);
    return 1024 + w->lines * w->rowbytes + stages * w->colbytes;
}

static int64_t tiles_at(const Wg *w)
{
    return w->lines * w->rowbytes;
}

static int64_t sums_of(const AttnGpu *x, const AttnJob *j)
{
    int64_t w = 0;

    if (!x->back)
        w = (attn_inner_count(&x->t, x->t.v) + 63) / 64 * 64;
    for (int i = 0; i < j->nout; i++)
        w += (attn_inner_count(&x->t, j->out[i]) + 63) / 64 * 64;
    return w;
}

/* Tiles of 128 columns where their accumulators leave room for the sums: an
 * instruction of 64 columns waits for shared memory.                         */
static void choose_tile(Wg *w)
{
    int64_t stages = DEEPEST, cols = 128;

    w->lines = 1;
    if (sums_of(w->x, w->j) > 128 || lay_out(w, 128, 2) > ROOM)
        cols = 64;
    w->lines += !w->x->back;
    if (lay_out(w, cols, 2) > ROOM)
        w->lines = 1;
    while (stages > 2 && lay_out(w, cols, stages) > ROOM)
        stages--;
    lay_out(w, cols, stages);
}

static Wg wg_new(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;
    Wg w = { .x = x, .j = j };
    Axis *v = value_axis(t);

    for (int i = 0; i < t->ndot; i++) {
        Axis *in = t->dot[i].n->A[0];
        Slab q = slab(t, attn_operand(t, t->dot[i].q), t->query, in);
        Slab k = slab(t, attn_operand(t, t->dot[i].k), t->key, in);
        w.row[w.nrow++] = j->keys ? k : q;
        w.col[w.ncol++] = j->keys ? q : k;
    }
    Slab value = slab(t, attn_operand(t, t->v), t->key, v);
    if (j->keys) {
        w.row[w.nrow++] = value;
        w.col[w.ncol++] = slab(t, x->dout, t->query, v);
    } else {
        if (x->back)
            w.row[w.nrow++] = slab(t, x->dout, t->query, v);
        w.col[w.ncol++] = value;
    }
    choose_tile(&w);
    int64_t n = attn_count(t, j->keys ? t->query : t->key);
    w.tiles = (n + w.cols - 1) / w.cols;
    w.total = w.tiles * attn_product(t, j->loop, j->nloop);
    return w;
}

static int dots_fit(const Attn *t)
{
    unsigned seen = 1u << t->v;
    Axis *in[MAXD];

    for (int i = 0; i < t->ndot; i++) {
        unsigned two = 1u << t->dot[i].q | 1u << t->dot[i].k;
        if (seen & two || t->dot[i].n->nA != 1)
            return 0;
        seen |= two;
    }
    for (int op = 0; op < t->nop; op++)
        if (seen >> op & 1 && t->n->in[op]->dt != Dbf16)
            return 0;
    return t->nterm == 1 && attn_inner(t, t->n->in[t->v], in) == 1;
}

int attn_wg_fits(AttnGpu *x)
{
    x->shared = 0;
    if (!dots_fit(&x->t) || (x->lse.n && x->lse.n->dt != Df32))
        return 0;
    if (x->back && (x->delta.n->dt != Df32 || x->dout.n->dt != Dbf16))
        return 0;
    for (int i = 0; i < x->njob; i++) {
        Wg w = wg_new(x, &x->job[i]);
        int64_t bytes = lay_out(&w, w.cols, w.stages);
        x->shared = bytes > x->shared ? bytes : x->shared;
        if (sums_of(x, w.j) > 256 || (!w.j->keys && w.j->nloop))
            return 0;
    }
    return x->shared <= ROOM;
}

/* ---- what both roles say ------------------------------------------------- */

static const char *int_text(const Wg *w, int64_t v)
{
    return strf(w->x->t.arena, "%lld", (long long)v);
}

/* Where the columns of tile `now` are.                                       */
static void put_place(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    int keys = w->j->keys;
    const char *k = int_text(w, w->tiles), *from = keys ? "q0" : "k0";
    const char *size = attn_size(t, keys ? t->query : t->key);

    attn_coords(t, depth, strf(t->arena, "(now / %s)", k),
                (Axis *const *)w->j->loop, w->j->nloop);
    attn_say(t, depth, "const int %s = now %% %s * %lld;", from, k,
             (long long)w->cols);
    attn_say(t, depth, "const int %s = (int)at_least(%s - %s, %lld);",
             keys ? "rows" : "cols", size, from, (long long)w->cols);
}

static const char *unseen_tile(Wg *w)
{
    return attn_unseen(&w->x->t, "q0", "(q0 + rows)", "k0", "(k0 + cols)");
}

/* Over all tiles that some row sees.                                         */
static void open_tiles(Wg *w)
{
    Attn *t = &w->x->t;

    int64_t each = w->total / w->j->split;

    if (w->j->split == 1)
        attn_say(t, 3, "for (int now = 0; now < %lld; now++) {",
                 (long long)each);
    else
        attn_say(t, 3, "for (int now = share * %lld, end = now + %lld; "
                 "now < end; now++) {", (long long)each, (long long)each);
    put_place(w, 4);
    if (unseen_tile(w)) {
        attn_say(t, 4, "if (%s)", unseen_tile(w));
        attn_say(t, 5, "continue;");
    }
}

/* On to the next such tile.                                                  */
static void put_skip(Wg *w, int depth)
{
    Attn *t = &w->x->t;

    if (!unseen_tile(w))
        return;
    attn_say(t, depth, "for (; now < %lld; now++) {", (long long)w->total);
    put_place(w, depth + 1);
    attn_say(t, depth + 1, "if (!(%s))", unseen_tile(w));
    attn_say(t, depth + 2, "break;");
    attn_say(t, depth, "}");
}

static int has_loop(const Wg *w, const Slab *s)
{
    for (int i = 0; i < w->j->nloop; i++)
        if (dim_of(s->v.n, w->j->loop[i]) >= 0)
            return 1;
    return 0;
}

/* Are there rows that change with the combination?                           */
static int has_turns(const Wg *w)
{
    for (int i = 0; i < w->nrow; i++)
        if (has_loop(w, &w->row[i]))
            return 1;
    return 0;
}

static int parts_of(const Wg *w)
{
    return w->x->back ? 1 : 2;
}

/* ---- fetching ------------------------------------------------------------ */

static void put_load(Wg *w, int depth, const Slab *s, int64_t rows,
                     const char *to)
{
    Attn *t = &w->x->t;

    attn_say(t, depth, "load_tile<%lld, %lld, %d>(%s + %lld, %s, %s, %s,",
             (long long)rows, (long long)s->W, is_straight(t, s, 8), to,
             (long long)s->at, attn_at(t, s->v), attn_stride(t, s->v, s->a),
             attn_stride(t, s->v, s->in));
    attn_say(t, depth, "    %s, (int)%s, %lld);", s->a == t->key ? "k0" : "q0",
             attn_size(t, s->a), (long long)s->w);
}

/* Rows that stay, or those of one combination of the loop's axes.            */
static void put_rows(Wg *w, int depth, int loop, const char *bar)
{
    for (int i = 0; i < w->nrow; i++)
        if (has_loop(w, &w->row[i]) == loop)
            put_load(w, depth, &w->row[i], ATWGROWS, "line");
    attn_say(&w->x->t, depth, "fetched(%s);", bar);
}

static void put_numbers(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 4, "load_numbers<%lld>(to + %lld, %s, %s, %s, %s, q0, "
             "(int)%s);", (long long)w->cols, (long long)w->colbytes - 1024,
             attn_at(t, w->x->lse), attn_stride(t, w->x->lse, t->query),
             attn_at(t, w->x->delta), attn_stride(t, w->x->delta, t->query),
             attn_size(t, t->query));
}

static void put_part(Wg *w, int part)
{
    Attn *t = &w->x->t;
    int from = part ? t->ndot : 0, to = parts_of(w) == 1 || part ? w->ncol
                                                                 : t->ndot;

    attn_say(t, 4, "await(ring_empty(%d, stage), phase ^ 1);", part);
    for (int i = from; i < to; i++)
        put_load(w, 4, &w->col[i], w->cols, "to");
    if (w->j->keys)
        put_numbers(w);
    attn_say(t, 4, "fetched(ring_full(%d, stage));", part);
}

static void put_next(Wg *w, int depth)
{
    Attn *t = &w->x->t;

    attn_say(t, depth, "if (++stage == %lld)", (long long)w->stages);
    attn_say(t, depth + 1, "stage = 0, phase ^= 1;");
}

/* Where the rows are: forward, the round's place.                            */
static void put_line(Wg *w)
{
    Attn *t = &w->x->t;
    long long n = w->lines;

    if (w->x->back) {
        attn_say(t, 3, "const uint32_t line = base;");
        attn_say(t, 3, "int stage = 0, phase = 0;");
        return;
    }
    attn_say(t, 3, "const int at = round %% %lld;", n);
    attn_say(t, 3, "const uint32_t line = base + at * %lld;",
             (long long)w->rowbytes);
}

static void put_forward_rows(Wg *w)
{
    attn_say(&w->x->t, 3, "await(LINE_EMPTY(at), ~(round / %lld) & 1);",
             (long long)w->lines);
    put_rows(w, 3, 0, "LINE_FULL(at)");
}

void attn_wg_fetch(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;
    Wg w = wg_new(x, j);

    put_line(&w);
    if (x->back)
        put_rows(&w, 3, 0, "ROWS_FULL");
    else
        put_forward_rows(&w);
    if (has_turns(&w))
        attn_say(t, 3, "int turn = -1, turns = 0;");
    open_tiles(&w);
    if (has_turns(&w)) {
        attn_say(t, 4, "if (now / %lld != turn) {", (long long)w.tiles);
        attn_say(t, 5, "turn = now / %lld;", (long long)w.tiles);
        attn_say(t, 5, "await(TURN_EMPTY, ~turns++ & 1);");
        put_rows(&w, 5, 1, "TURN_FULL");
        attn_say(t, 4, "}");
    }
    attn_say(t, 4, "const uint32_t to = base + %lld + stage * %lld;",
             (long long)tiles_at(&w), (long long)w.colbytes);
    for (int i = 0; i < parts_of(&w); i++)
        put_part(&w, i);
    put_next(&w, 4);
    attn_say(t, 3, "}");
}

/* ---- scores -------------------------------------------------------------- */

/* Element i's query r and key j. Beyond the last row or column, what the score
 * reads is read of the last; such columns have no weight.                    */
static void put_element(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    int keys = w->j->keys;
    const char *col = "(i >> 2) * 8 + (lane & 3) * 2 + (i & 1)";
    const char *row = "row + (i & 2) * 4";
    const char *nr = keys ? "cols" : "rows", *nc = keys ? "rows" : "cols";
    int64_t rows = attn_count(t, keys ? t->key : t->query);
    int64_t cols = attn_count(t, keys ? t->query : t->key);

    if (rows % ATWGROWS)
        row = strf(t->arena, "(int)at_least(%s, %s - 1)", row, nr);
    attn_say(t, depth, "const int at = %s;", col);
    attn_say(t, depth, "const int in = %s;",
             cols % w->cols && !t->open ? strf(t->arena, "at < %s", nc) : "1");
    if (cols % w->cols && !t->open)
        col = strf(t->arena, "in ? at : %s - 1", nc);
    else
        col = "at";
    attn_say(t, depth, "const int r = %s, j = %s;", keys ? col : row,
             keys ? row : col);
}

/* lse and delta of element i: a thread has two rows, or 2 of 8 columns.      */
static void put_number(Wg *w, int depth, const char *name)
{
    attn_say(&w->x->t, depth, w->j->keys
             ? "const float %s = %s_of[(i >> 2) * 8 + (i & 1)];"
             : "const float %s = %s_of[i >> 1 & 1];", name, name);
}

static void open_elements(Wg *w, int depth, int open)
{
    Attn *t = &w->x->t;

    t->open = open;
    put(&t->o, "#pragma unroll\n");
    attn_say(t, depth, "for (int i = 0; i < %lld; i++) {",
             (long long)w->cols / 2);
    put_element(w, depth + 1);
}

static void close_elements(Wg *w, int depth)
{
    attn_say(&w->x->t, depth, "}");
    w->x->t.open = 0;
}

/* s: scores, or backward weights.                                            */
static void put_weights(Wg *w, int depth, int open)
{
    Attn *t = &w->x->t;

    open_elements(w, depth, open);
    attn_say(t, depth + 1, "const float s0 = s[i];");
    attn_say(t, depth + 1, "float z;");
    attn_score1(t, depth + 1, 0);
    if (w->x->back) {
        put_number(w, depth + 1, "lse");
            attn_say(t, depth + 1, "s[i] = weight_%s(z, lse);",
                 attn_hides(t) ? "f32" : "seen");
    } else {
        attn_say(t, depth + 1, "s[i] = z;");
    }
    close_elements(w, depth);
}

/* s: gradients of dots, d: weights.                                          */
static void put_gradients(Wg *w, int depth, int open)
{
    Attn *t = &w->x->t;

    open_elements(w, depth, open);
    attn_say(t, depth + 1, "float s0 = s[i], pr;");
    attn_say(t, depth + 1, "const float dp = d[i];");
    put_number(w, depth + 1, "lse");
    put_number(w, depth + 1, "delta");
    attn_score1(t, depth + 1, 1);
    attn_say(t, depth + 1, "s[i] = s0, d[i] = pr;");
    close_elements(w, depth);
}

/* Tiles in which all conditions of the mask hold, and that are whole, need not
 * ask them of each pair. (A score with functions in it does: two texts of 64
 * tanh compile for seconds.)                                                 */
static const char *whole_tile(Wg *w)
{
    Attn *t = &w->x->t;
    int keys = w->j->keys;
    int64_t n = attn_count(t, keys ? t->query : t->key);
    const char *all = attn_allseen(t, "q0", "(q0 + rows)", "k0", "(k0 + cols)");

    if (n % w->cols == 0)
        return all;
    const char *full = strf(t->arena, "%s == %lld", keys ? "rows" : "cols",
                            (long long)w->cols);
    return all ? strf(t->arena, "%s && %s", full, all) : full;
}

static void put_scores(Wg *w, int depth,
                       void (*put_them)(Wg *w, int depth, int open))
{
    Attn *t = &w->x->t;
    const char *all = whole_tile(w);

    if (!all || attn_unit(t) == 0) {
        put_them(w, depth, !all);
        return;
    }
    attn_say(t, depth, "if (%s) {", all);
    put_them(w, depth + 1, 1);
    attn_say(t, depth, "} else {");
    put_them(w, depth + 1, 0);
    attn_say(t, depth, "}");
}

/* ---- products ------------------------------------------------------------ */

/* Rows times columns of slabs [from, to), into s or d.                       */
static void put_product(Wg *w, int depth, const char *sum, int from, int to)
{
    Attn *t = &w->x->t;

    for (int i = from; i < to; i++)
        attn_say(t, depth, "rows_by_cols<%lld, %lld>(%s, line + %lld, from + "
                 "%lld, %d);", (long long)w->row[i].W, (long long)w->cols, sum,
                 (long long)w->row[i].at, (long long)w->col[i].at, i > from);
    attn_say(t, depth, "wg_commit();");
}

/* The tile before meets its values; not waited for.                          */
static void put_values(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    const Slab *v = &w->col[t->ndot];

    attn_say(t, depth, "hold(p);");
    attn_say(t, depth, "hold(o%d);", t->v);
    attn_say(t, depth, "wg_fence();");
    attn_say(t, depth, "weigh_cols<%lld, %lld>(o%d, p, base + %lld + last * "
             "%lld);", (long long)v->W, (long long)w->cols, t->v,
             (long long)(tiles_at(w) + v->at), (long long)w->colbytes);
    attn_say(t, depth, "wg_commit();");
}

/* ---- sums ---------------------------------------------------------------- */

static int has_out(const Wg *w, int op)
{
    for (int i = 0; i < w->j->nout; i++)
        if (w->j->out[i] == op)
            return 1;
    return 0;
}

/* Which gradient the columns of slab i are summed into, or -1.               */
static int sum_of(const Wg *w, int i)
{
    const Attn *t = &w->x->t;

    if (!w->x->back)
        return i == t->ndot ? t->v : -1;
    if (i == t->ndot && !w->j->keys)
        return -1;
    int op = i == t->ndot ? t->v : w->j->keys ? t->dot[i].k : t->dot[i].q;
    return has_out(w, op) ? op : -1;
}

/* Sums of slabs [from, to) with weights `p` made of `x`; not waited for.     */
static void put_sums(Wg *w, const char *p, const char *x, int from, int to)
{
    Attn *t = &w->x->t;
    int any = 0;

    for (int i = from; i < to; i++)
        any |= sum_of(w, i) >= 0;
    if (!any)
        return;
    attn_say(t, 4, "uint32_t %s[%lld][4];", p, (long long)w->cols / 16);
    attn_say(t, 4, "pack(%s, %s), hold(%s);", p, x, p);
    attn_say(t, 4, "wg_fence();");
    for (int i = to; i-- > from; )
        if (sum_of(w, i) >= 0)
            attn_say(t, 4, "weigh_cols<%lld, %lld>(o%d, %s, from + %lld);",
                     (long long)w->col[i].W, (long long)w->cols, sum_of(w, i),
                     p, (long long)w->col[i].at);
    attn_say(t, 4, "wg_commit();");
}

static void hold_sums(Wg *w)
{
    const char *p[2] = { NULL, NULL };

    for (int i = 0; i < w->ncol; i++)
        if (sum_of(w, i) >= 0) {
            attn_say(&w->x->t, 4, "hold(o%d);", sum_of(w, i));
            p[i == w->x->t.ndot] = i == w->x->t.ndot ? "p" : "ps";
        }
    for (int i = 0; i < 2; i++)
        if (p[i])
            attn_say(&w->x->t, 4, "hold(%s);", p[i]);
}

static void zero_sums(Wg *w)
{
    Attn *t = &w->x->t;

    for (int i = 0; i < w->ncol; i++) {
        int op = sum_of(w, i);
        if (op < 0)
            continue;
        attn_say(t, 3, "float o%d[%lld];", op, (long long)w->col[i].W / 2);
        put(&t->o, "#pragma unroll\n");
        attn_say(t, 3, "for (int i = 0; i < %lld; i++)",
                 (long long)w->col[i].W / 2);
        attn_say(t, 4, "o%d[i] = 0;", op);
    }
}

static void put_store(Wg *w, AttnView v, int op, const char *f0, const char *f1)
{
    Attn *t = &w->x->t;
    Axis *in[MAXD], *a = w->j->keys ? t->key : t->query;

    attn_inner(t, t->n->in[op], in);
    Slab s = slab(t, v, a, in[0]);
    attn_say(t, 3, "store_rows<%lld, %d>(%s + %s * %s, %s, %s, o%d, row, %s, "
             "%lld, %s, %s);", (long long)s.W, is_straight(t, &s, 2),
             attn_at(t, v), w->j->keys ? "k0" : "q0", attn_stride(t, v, a),
             attn_stride(t, v, a), attn_stride(t, v, s.in), op,
             w->j->keys ? "cols" : "rows", (long long)s.w, f0, f1);
}

/* ---- forward ------------------------------------------------------------- */

/* A tile's scores; those of the first beside nothing, of the others beside the
 * values of the tile before.                                                 */
static void forward_tile(Wg *w, int depth, int first)
{
    Attn *t = &w->x->t;

    put_place(w, depth);
    attn_say(t, depth, "const uint32_t from = base + %lld + stage * %lld;",
             (long long)tiles_at(w), (long long)w->colbytes);
    attn_say(t, depth, "float s[%lld], scale[2];", (long long)w->cols / 2);
    attn_say(t, depth, "await(ring_full(0, stage), phase);");
    if (!first)
        attn_say(t, depth, "await(ring_full(1, last), late);");
    attn_say(t, depth, "fetch_fence();");
    attn_say(t, depth, "wg_fence();");
    put_product(w, depth, "s", 0, t->ndot);
    if (!first)
        put_values(w, depth);
    attn_say(t, depth, "wg_wait<%d>();", !first);
    attn_say(t, depth, "hold(s);");
    attn_say(t, depth, "used(ring_empty(0, stage));");
    put_scores(w, depth, put_weights);
    attn_say(t, depth, "soften(s, max, sum, scale);");
    if (!first) {
        attn_say(t, depth, "wg_wait<0>();");
        attn_say(t, depth, "used(ring_empty(1, last));");
        attn_say(t, depth, "hold(p);");
        attn_say(t, depth, "hold(o%d);", t->v);
        attn_say(t, depth, "rescale(o%d, scale);", t->v);
    }
    attn_say(t, depth, "pack(p, s);");
}

static void forward(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 3, "float max[2] = { -INFINITY, -INFINITY }, sum[2] = { };");
    attn_say(t, 3, "int now = 0;");
    put_skip(w, 3);
    attn_say(t, 3, "if (now < %lld) {", (long long)w->total);
    attn_say(t, 4, "uint32_t p[%lld][4];", (long long)w->cols / 16);
    attn_say(t, 4, "int last = 0, late = 0;");
    attn_say(t, 4, "{");
    forward_tile(w, 5, 1);
    attn_say(t, 4, "}");
    attn_say(t, 4, "for (;;) {");
    attn_say(t, 5, "last = stage, late = phase, now++;");
    put_next(w, 5);
    put_skip(w, 5);
    attn_say(t, 5, "if (now >= %lld)", (long long)w->total);
    attn_say(t, 6, "break;");
    forward_tile(w, 5, 0);
    attn_say(t, 4, "}");
    attn_say(t, 4, "used(LINE_EMPTY(at));");
    attn_say(t, 4, "await(ring_full(1, last), late);");
    attn_say(t, 4, "fetch_fence();");
    put_values(w, 4);
    attn_say(t, 4, "wg_wait<0>();");
    attn_say(t, 4, "used(ring_empty(1, last));");
    attn_say(t, 4, "hold(o%d);", t->v);
    attn_say(t, 3, "} else {");
    attn_say(t, 4, "used(LINE_EMPTY(at));");
    attn_say(t, 3, "}");
}

static void close_forward(Wg *w)
{
    Attn *t = &w->x->t;
    AttnView l = w->x->lse;

    attn_say(t, 3, "sum[0] = row_sum(sum[0]), sum[1] = row_sum(sum[1]);");
    if (l.n) {
        attn_say(t, 3, "for (int h = 0; h < 2; h++)");
        attn_say(t, 4, "if ((lane & 3) == 0 && row + 8 * h < rows)");
        attn_say(t, 5, "(%s)[(q0 + row + 8 * h) * %s] = max[h] * UNIT + "
                 "(sum[h] > 0 ? log_f32(sum[h]) : 0);", attn_at(t, l),
                 attn_stride(t, l, t->query));
    }
    attn_say(t, 3, "const float f0 = sum[0] != 0 ? 1 / sum[0] : 0;");
    attn_say(t, 3, "const float f1 = sum[1] != 0 ? 1 / sum[1] : 0;");
    if (w->x->out.n)
        put_store(w, w->x->out, t->v, "f0", "f1");
}

/* ---- backward ------------------------------------------------------------ */

/* Logsumexps, times log2 e, and deltas of a thread's two rows.               */
static void open_backward(Wg *w)
{
    Attn *t = &w->x->t;
    const AttnView *v[2] = { &w->x->lse, &w->x->delta };

    if (w->j->keys)
        return;
    attn_say(t, 3, "float lse_of[2], delta_of[2];");
    attn_say(t, 3, "for (int h = 0; h < 2; h++) {");
    attn_say(t, 4, "const int r = row + 8 * h;");
    for (int i = 0; i < 2; i++)
        attn_say(t, 4, "%s_of[h] = r < rows ? (%s)[(q0 + r) * %s] : 0;",
                 i ? "delta" : "lse", attn_at(t, *v[i]),
                 attn_stride(t, *v[i], t->query));
    attn_say(t, 3, "}");
}

static void backward_tile(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 4, "float s[%lld], d[%lld];", (long long)w->cols / 2,
             (long long)w->cols / 2);
    if (w->j->keys) {
        attn_say(t, 4, "const float *const lse_of = (const float *)(room + "
                 "(from - shared_at(room)) + %lld) + (lane & 3) * 2;",
                 (long long)w->colbytes - 1024);
        attn_say(t, 4, "const float *const delta_of = lse_of + %lld;",
                 (long long)w->cols);
    }
    attn_say(t, 4, "wg_fence();");
    put_product(w, 4, "s", 0, t->ndot);
    put_product(w, 4, "d", t->ndot, t->ndot + 1);
    if (attn_unit(t) > 0) {
        attn_say(t, 4, "wg_wait<1>();");
        attn_say(t, 4, "hold(s);");
        put_scores(w, 4, put_weights);
        put_sums(w, "p", "s", t->ndot, t->ndot + 1);
        attn_say(t, 4, "wg_wait<%d>();", sum_of(w, t->ndot) >= 0);
        attn_say(t, 4, "hold(d);");
        put(&t->o, "#pragma unroll\n");
        attn_say(t, 4, "for (int i = 0; i < %lld; i++) {",
                 (long long)w->cols / 2);
        put_number(w, 5, "delta");
        attn_say(t, 5, "s[i] = s[i] * (d[i] - delta);");
        attn_say(t, 4, "}");
    } else {
        attn_say(t, 4, "wg_wait<0>();");
        attn_say(t, 4, "hold(s);");
        attn_say(t, 4, "hold(d);");
        put_scores(w, 4, put_gradients);
        put_sums(w, "p", "d", t->ndot, t->ndot + 1);
    }
    put_sums(w, "ps", "s", 0, t->ndot);
    attn_say(t, 4, "wg_wait<0>();");
    hold_sums(w);
    attn_say(t, 4, "used(ring_empty(0, stage));");
}

static void put_turn(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 4, "if (now / %lld != turn) {", (long long)w->tiles);
    attn_say(t, 5, "turn = now / %lld;", (long long)w->tiles);
    attn_say(t, 5, "if (turns)");
    attn_say(t, 6, "used(TURN_EMPTY);");
    attn_say(t, 5, "await(TURN_FULL, turns++ & 1);");
    attn_say(t, 4, "}");
}

static void backward(Wg *w)
{
    Attn *t = &w->x->t;

    open_backward(w);
    if (has_turns(w))
        attn_say(t, 3, "int turn = -1, turns = 0;");
    open_tiles(w);
    if (has_turns(w))
        put_turn(w);
    attn_say(t, 4, "const uint32_t from = base + %lld + stage * %lld;",
             (long long)tiles_at(w), (long long)w->colbytes);
    attn_say(t, 4, "await(ring_full(0, stage), phase);");
    attn_say(t, 4, "fetch_fence();");
    backward_tile(w);
    put_next(w, 4);
    attn_say(t, 3, "}");
}

static void close_backward(Wg *w)
{
    Attn *t = &w->x->t;

    for (int i = 0; i < w->j->nout && w->j->split > 1; i++)
        attn_say(t, 3, "gather_sums(o%d, base, share, %lld);", w->j->out[i],
                 (long long)w->j->split);
    if (w->j->split > 1) {
        attn_say(t, 3, "if (share)");
        attn_say(t, 4, "return;");
    }
    for (int i = 0; i < w->j->nout; i++) {
        int op = w->j->out[i];
        const char *f = op == t->v ? "1" : "UNIT";
        put_store(w, attn_grad(w->x, op), op, f, f);
    }
}

/* ---- jobs ---------------------------------------------------------------- */

void attn_wg_job(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;
    Wg w = wg_new(x, j);

    attn_say(t, 3, "const int lane = TID & 31;");
    attn_say(t, 3, "const int row = ((TID >> 5) - 4) * 16 + (lane >> 2);");
    zero_sums(&w);
    put_line(&w);
    if (x->back)
        attn_say(t, 3, "await(ROWS_FULL, 0);");
    else
        attn_say(t, 3, "await(LINE_FULL(at), round / %lld & 1);",
                 (long long)w.lines);
    if (x->back)
        backward(&w);
    else
        forward(&w);
    (x->back ? close_backward : close_forward)(&w);
}
