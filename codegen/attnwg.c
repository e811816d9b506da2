/* attnwg.c: attention on Hopper's tensor cores. A block is two warpgroups of
 * 64 rows; its rows' operands stay in shared memory, the columns' come in
 * tiles, one fetched while the last is multiplied:
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

enum { ROOM = 220 << 10, SLABS = ATDOTS + 2 };

/* An operand in shared memory: `n` rows along axis `a`, W columns, w of them
 * real, at byte `at` of its place.                                           */
typedef struct Slab {
    AttnView v;
    Axis *a, *in;
    int64_t w, W, at;
} Slab;

typedef struct Wg {
    AttnGpu *x;
    const AttnJob *j;
    int nrow, ncol;
    Slab row[SLABS], col[SLABS];  /* those of dots, then v or dout, then out  */
    int64_t cols;                 /* columns of a tile                        */
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

static int64_t bytes_with(Wg *w, int64_t cols)
{
    w->cols = cols;
    w->rowbytes = place(w->row, w->nrow, ATWGROWS);
    w->colbytes = place(w->col, w->ncol, cols);
    return 1024 + w->rowbytes + 2 * w->colbytes;
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
        w.col[w.ncol++] = slab(t, x->out, t->query, v);
    } else {
        if (x->back)
            w.row[w.nrow++] = slab(t, x->dout, t->query, v);
        w.col[w.ncol++] = value;
    }
    if (x->back || w.col[t->ndot].W > 128 || bytes_with(&w, 128) > ROOM)
        bytes_with(&w, 64);
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

static int64_t sums_of(const AttnGpu *x, const AttnJob *j)
{
    int64_t w = 0;

    if (!x->back)
        w = attn_inner_count(&x->t, x->t.v);
    for (int i = 0; i < j->nout; i++)
        w += (attn_inner_count(&x->t, j->out[i]) + 63) / 64 * 64;
    return w;
}

int attn_wg_fits(AttnGpu *x)
{
    x->shared = 0;
    if (!dots_fit(&x->t) || (x->lse.n && x->lse.n->dt != Df32))
        return 0;
    if (x->back && (x->out.n->dt != Dbf16 || x->dout.n->dt != Dbf16))
        return 0;
    for (int i = 0; i < x->njob; i++) {
        Wg w = wg_new(x, &x->job[i]);
        int64_t bytes = bytes_with(&w, w.cols);
        x->shared = bytes > x->shared ? bytes : x->shared;
        if (sums_of(x, w.j) > 256 || (!w.j->keys && w.j->nloop))
            return 0;
    }
    return x->shared <= ROOM;
}

/* ---- tiles --------------------------------------------------------------- */

static const char *int_text(const Wg *w, int64_t v)
{
    return strf(w->x->t.arena, "%lld", (long long)v);
}

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

static int has_loop(const Wg *w, const Slab *s)
{
    for (int i = 0; i < w->j->nloop; i++)
        if (dim_of(s->v.n, w->j->loop[i]) >= 0)
            return 1;
    return 0;
}

/* Rows that stay, or those of one combination of the loop's axes.            */
static int put_rows(Wg *w, int depth, int loop)
{
    int n = 0;

    for (int i = 0; i < w->nrow; i++)
        if (has_loop(w, &w->row[i]) == loop) {
            if (depth)
                put_load(w, depth, &w->row[i], ATWGROWS, "base");
            n++;
        }
    return n;
}

/* Where the columns of tile `n` are.                                         */
static void put_place(Wg *w, int depth, const char *n)
{
    Attn *t = &w->x->t;
    int keys = w->j->keys;
    const char *k = int_text(w, w->tiles), *from = keys ? "q0" : "k0";
    const char *size = attn_size(t, keys ? t->query : t->key);

    attn_coords(t, depth, strf(t->arena, "(%s / %s)", n, k),
                (Axis *const *)w->j->loop, w->j->nloop);
    attn_say(t, depth, "const int %s = %s %% %s * %lld;", from, n, k,
             (long long)w->cols);
    attn_say(t, depth, "const int %s = (int)at_least(%s - %s, %lld);",
             keys ? "rows" : "cols", size, from, (long long)w->cols);
}

static void put_next(Wg *w)
{
    Attn *t = &w->x->t;
    const char *unseen = attn_unseen(t, "q0", "(q0 + rows)", "k0",
                                     "(k0 + cols)");

    attn_say(t, 3, "int next = now + 1;");
    if (unseen) {
        attn_say(t, 3, "for (; next < %lld; next++) {", (long long)w->total);
        put_place(w, 4, "next");
        attn_say(t, 4, "if (!(%s))", unseen);
        attn_say(t, 5, "break;");
        attn_say(t, 3, "}");
    }
    attn_say(t, 3, "const uint32_t to = base + %lld + stage * %lld;",
             (long long)w->rowbytes, (long long)w->colbytes);
    attn_say(t, 3, "if (next < %lld) {", (long long)w->total);
    put_place(w, 4, "next");
    for (int i = 0; i < (w->x->back ? w->ncol : t->ndot); i++)
        put_load(w, 4, &w->col[i], w->cols, "to");
    attn_say(t, 3, "}");
    if (!w->x->back) {
        attn_say(t, 3, "if (now >= 0) {");
        put_place(w, 4, "now");
        put_load(w, 4, &w->col[t->ndot], w->cols, "to");
        attn_say(t, 3, "}");
    }
    attn_say(t, 3, "fetch_commit();");
}

/* ---- scores -------------------------------------------------------------- */

/* o += weights x the values in the place `from`; not waited for.             */
static void put_values(Wg *w, int depth, const char *from)
{
    Attn *t = &w->x->t;
    const Slab *v = &w->col[t->ndot];

    attn_say(t, depth, "hold(p);");
    attn_say(t, depth, "hold(o%d);", t->v);
    attn_say(t, depth, "wg_fence();");
    attn_say(t, depth, "weigh_cols<%lld, %lld>(o%d, p, %s + %lld);",
             (long long)v->W, (long long)w->cols, t->v, from, (long long)v->at);
    attn_say(t, depth, "wg_commit();");
}

/* s = rows x columns over all dots, d that of gradients and values. Forward,
 * the tile before meets its values meanwhile.                                */
static void put_products(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    int n = w->x->back ? t->ndot + 1 : t->ndot;

    attn_say(t, depth, "float s[%lld]%s;", (long long)w->cols / 2,
             w->x->back ? ", d[32]" : "");
    attn_say(t, depth, "wg_fence();");
    for (int i = 0; i < n; i++)
        attn_say(t, depth, "rows_by_cols<%lld, %lld>(%s, base + %lld, from + "
                 "%lld, %d);", (long long)w->row[i].W, (long long)w->cols,
                 i < t->ndot ? "s" : "d", (long long)w->row[i].at,
                 (long long)w->col[i].at, i > 0 && i < t->ndot);
    attn_say(t, depth, "wg_commit();");
    if (!w->x->back) {
        attn_say(t, depth, "if (values) {");
        put_values(w, depth + 1, "from");
        attn_say(t, depth + 1, "wg_wait<1>();");
        attn_say(t, depth, "} else {");
        attn_say(t, depth + 1, "wg_wait<0>();");
        attn_say(t, depth, "}");
        attn_say(t, depth, "hold(s);");
        return;
    }
    if (w->j->keys)
        attn_say(t, depth, "column_numbers<%lld>(lse_of, delta_of, from + %lld,"
                 " from + %lld, %s + q0 * %s, %s, rows);",
                 (long long)w->col[t->ndot].W, (long long)w->col[t->ndot].at,
                 (long long)w->col[t->ndot + 1].at, attn_at(t, w->x->lse),
                 attn_stride(t, w->x->lse, t->query),
                 attn_stride(t, w->x->lse, t->query));
    attn_say(t, depth, "wg_wait<0>();");
    attn_say(t, depth, "hold(s);");
    attn_say(t, depth, "hold(d);");
}

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
             cols % w->cols ? strf(t->arena, "at < %s", nc) : "1");
    if (cols % w->cols)
        col = strf(t->arena, "in ? at : %s - 1", nc);
    else
        col = "at";
    attn_say(t, depth, "const int r = %s, j = %s;", keys ? col : row,
             keys ? row : col);
}

static void put_scores(Wg *w, int depth, int open)
{
    Attn *t = &w->x->t;

    t->open = open;
    put(&t->o, "#pragma unroll\n");
    attn_say(t, depth, "for (int i = 0; i < %lld; i++) {",
             (long long)w->cols / 2);
    put_element(w, depth + 1);
    if (!w->x->back) {
        attn_say(t, depth + 1, "const float s0 = s[i];");
        attn_say(t, depth + 1, "float z;");
        attn_score1(t, depth + 1, 0);
        attn_say(t, depth + 1, "s[i] = z;");
    } else {
        attn_say(t, depth + 1, "float s0 = s[i], pr;");
        attn_say(t, depth + 1, w->j->keys
                 ? "const float dp = d[i], lse = lse_of[at], delta = "
                   "delta_of[at];"
                 : "const float dp = d[i], lse = lse_of[i >> 1 & 1], delta = "
                   "delta_of[i >> 1 & 1];");
        attn_score1(t, depth + 1, 1);
        attn_say(t, depth + 1, "s[i] = s0, d[i] = pr;");
    }
    attn_say(t, depth, "}");
    t->open = 0;
}

static void put_all_scores(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    const char *all = attn_allseen(t, "q0", "(q0 + rows)", "k0", "(k0 + cols)");

    if (all) {
        attn_say(t, depth, "if (%s) {", all);
        put_scores(w, depth + 1, 1);
        attn_say(t, depth, "} else {");
        put_scores(w, depth + 1, 0);
        attn_say(t, depth, "}");
    } else {
        put_scores(w, depth, 0);
    }
}

/* ---- sums ---------------------------------------------------------------- */

static int has_out(const Wg *w, int op)
{
    for (int i = 0; i < w->j->nout; i++)
        if (w->j->out[i] == op)
            return 1;
    return 0;
}

/* Which gradient the columns of slab i are summed into, and the weights.     */
static int sum_of(const Wg *w, int i, const char **weights)
{
    const Attn *t = &w->x->t;

    *weights = i == t->ndot ? "p" : "ps";
    if (!w->x->back)
        return i == t->ndot ? t->v : -1;
    if (i > t->ndot || (i == t->ndot && !w->j->keys))
        return -1;
    int op = i == t->ndot ? t->v : w->j->keys ? t->dot[i].k : t->dot[i].q;
    return has_out(w, op) ? op : -1;
}

static void put_sums(Wg *w, int depth)
{
    Attn *t = &w->x->t;
    const char *weights;
    int p = 0, ps = 0;

    for (int i = 0; i < w->ncol; i++)
        if (sum_of(w, i, &weights) >= 0)
            *(i == t->ndot ? &p : &ps) = 1;
    if (p)
        attn_say(t, depth, "uint32_t p[%lld][4];", (long long)w->cols / 16);
    if (ps)
        attn_say(t, depth, "uint32_t ps[%lld][4];", (long long)w->cols / 16);
    if (p)
        attn_say(t, depth, "pack(p, %s), hold(p);", w->x->back ? "d" : "s");
    if (ps)
        attn_say(t, depth, "pack(ps, s), hold(ps);");
    attn_say(t, depth, "wg_fence();");
    for (int i = w->ncol; i-- > 0; ) {
        int op = sum_of(w, i, &weights);
        if (op >= 0)
            attn_say(t, depth, "weigh_cols<%lld, %lld>(o%d, %s, from + %lld);",
                     (long long)w->col[i].W, (long long)w->cols, op, weights,
                     (long long)w->col[i].at);
    }
    attn_say(t, depth, "wg_commit();");
    attn_say(t, depth, "wg_wait<0>();");
    for (int i = 0; i < w->ncol; i++)
        if (sum_of(w, i, &weights) >= 0)
            attn_say(t, depth, "hold(o%d);", sum_of(w, i, &weights));
}

static void zero_sums(Wg *w)
{
    Attn *t = &w->x->t;
    const char *weights;

    for (int i = 0; i < w->ncol; i++) {
        int op = sum_of(w, i, &weights);
        if (op < 0)
            continue;
        attn_say(t, 2, "float o%d[%lld];", op, (long long)w->col[i].W / 2);
        put(&t->o, "#pragma unroll\n");
        attn_say(t, 2, "for (int i = 0; i < %lld; i++)",
                 (long long)w->col[i].W / 2);
        attn_say(t, 3, "o%d[i] = 0;", op);
    }
}

static void put_store(Wg *w, AttnView v, int op, const char *f0, const char *f1)
{
    Attn *t = &w->x->t;
    Axis *in[MAXD], *a = w->j->keys ? t->key : t->query;

    attn_inner(t, t->n->in[op], in);
    Slab s = slab(t, v, a, in[0]);
    attn_say(t, 2, "store_rows<%lld, %d>(%s + %s * %s, %s, %s, o%d, row, %s, "
             "%lld, %s, %s);", (long long)s.W, is_straight(t, &s, 2),
             attn_at(t, v), w->j->keys ? "k0" : "q0", attn_stride(t, v, a),
             attn_stride(t, v, a), attn_stride(t, v, s.in), op,
             w->j->keys ? "cols" : "rows", (long long)s.w, f0, f1);
}

/* ---- jobs ---------------------------------------------------------------- */

static void store_forward(Wg *w)
{
    Attn *t = &w->x->t;
    AttnView l = w->x->lse;

    attn_say(t, 2, "sum[0] = row_sum(sum[0]), sum[1] = row_sum(sum[1]);");
    if (l.n) {
        attn_say(t, 2, "for (int h = 0; h < 2; h++)");
        attn_say(t, 3, "if ((lane & 3) == 0 && row + 8 * h < rows)");
        attn_say(t, 4, "(%s)[(q0 + row + 8 * h) * %s] = max[h] + "
                 "(sum[h] > 0 ? log_f32(sum[h]) : 0);", attn_at(t, l),
                 attn_stride(t, l, t->query));
    }
    attn_say(t, 2, "const float f0 = sum[0] != 0 ? 1 / sum[0] : 0;");
    attn_say(t, 2, "const float f1 = sum[1] != 0 ? 1 / sum[1] : 0;");
    if (w->x->out.n)
        put_store(w, w->x->out, t->v, "f0", "f1");
}

/* Logsumexps and deltas: a thread's two rows, or a tile's columns.           */
static void put_numbers(Wg *w)
{
    Attn *t = &w->x->t;
    Axis *in = value_axis(t);

    if (w->j->keys) {
        attn_say(t, 2, "__shared__ float numbers[4][64];");
        attn_say(t, 2, "float *const lse_of = numbers[TID >> 7];");
        attn_say(t, 2, "float *const delta_of = numbers[2 + (TID >> 7)];");
        return;
    }
    attn_say(t, 2, "float lse_of[2], delta_of[2];");
    attn_say(t, 2, "for (int h = 0; h < 2; h++) {");
    attn_say(t, 3, "const int r = row + 8 * h;");
    attn_say(t, 3, "lse_of[h] = r < rows ? row_lse((%s)[(q0 + r) * %s]) : "
             "INFINITY;", attn_at(t, w->x->lse),
             attn_stride(t, w->x->lse, t->query));
    attn_say(t, 3, "delta_of[h] = row_delta(%s + q0 * %s, %s, %s, %s + q0 * %s,"
             " %s, %s, r, rows, %lld);", attn_at(t, w->x->dout),
             attn_stride(t, w->x->dout, t->query),
             attn_stride(t, w->x->dout, t->query),
             attn_stride(t, w->x->dout, in), attn_at(t, w->x->out),
             attn_stride(t, w->x->out, t->query),
             attn_stride(t, w->x->out, t->query),
             attn_stride(t, w->x->out, in), (long long)attn_count(t, in));
    attn_say(t, 2, "}");
}

static void put_now(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 3, "if (now >= 0) {");
    put_place(w, 4, "now");
    attn_say(t, 4, "const uint32_t from = base + %lld + (stage ^ 1) * %lld;",
             (long long)w->rowbytes, (long long)w->colbytes);
    put_products(w, 4);
    put_all_scores(w, 4);
    if (w->x->back) {
        put_sums(w, 4);
    } else {
        attn_say(t, 4, "float scale[2];");
        attn_say(t, 4, "soften(s, max, sum, scale);");
        attn_say(t, 4, "wg_wait<0>();");
        attn_say(t, 4, "hold(p);");
        attn_say(t, 4, "hold(o%d);", t->v);
        attn_say(t, 4, "rescale(o%d, scale);", t->v);
        attn_say(t, 4, "pack(p, s);");
    }
    attn_say(t, 3, "}");
}

/* The last tile's values.                                                    */
static void put_last(Wg *w)
{
    Attn *t = &w->x->t;

    if (w->x->back)
        return;
    attn_say(t, 4, "fetch_wait();");
    attn_say(t, 4, "__syncthreads();");
    attn_say(t, 4, "if (now >= 0) {");
    put_values(w, 5, "to");
    attn_say(t, 5, "wg_wait<0>();");
    attn_say(t, 5, "hold(o%d);", t->v);
    attn_say(t, 4, "}");
}

static void put_loop(Wg *w)
{
    Attn *t = &w->x->t;

    attn_say(t, 2, "for (int now = -1, stage = 0;; stage ^= 1) {");
    put_next(w);
    put_now(w);
    attn_say(t, 3, "if (next >= %lld) {", (long long)w->total);
    put_last(w);
    attn_say(t, 4, "break;");
    attn_say(t, 3, "}");
    if (put_rows(w, 0, 1)) {
        attn_say(t, 3, "if (now < 0 || now / %lld != next / %lld) {",
                 (long long)w->tiles, (long long)w->tiles);
        attn_say(t, 4, "__syncthreads();");
        put_place(w, 4, "next");
        put_rows(w, 4, 1);
        attn_say(t, 4, "fetch_commit();");
        attn_say(t, 3, "}");
    }
    if (!w->x->back)
        attn_say(t, 3, "values = now >= 0;");
    attn_say(t, 3, "now = next;");
    attn_say(t, 3, "fetch_wait();");
    attn_say(t, 3, "__syncthreads();");
    attn_say(t, 2, "}");
}

void attn_wg_job(AttnGpu *x, const AttnJob *j)
{
    Attn *t = &x->t;
    Wg w = wg_new(x, j);

    attn_say(t, 2, "extern __shared__ __align__(1024) uint8_t room[];");
    attn_say(t, 2, "const uint32_t base = (shared_at(room) + 1023) & ~1023u;");
    attn_say(t, 2, "const int lane = TID & 31;");
    attn_say(t, 2, "const int row = (TID >> 5) * 16 + (lane >> 2);");
    put_rows(&w, 2, 0);
    zero_sums(&w);
    if (x->back)
        put_numbers(&w);
    else
        attn_say(t, 2, "float max[2] = { -INFINITY, -INFINITY }, "
                 "sum[2] = { };\n        uint32_t p[%lld][4];\n"
                 "        int values = 0;", (long long)w.cols / 16);
    put_loop(&w);
    if (!x->back)
        store_forward(&w);
    for (int i = 0; i < j->nout; i++)
        put_store(&w, attn_grad(x, j->out[i]), j->out[i], "1", "1");
}
