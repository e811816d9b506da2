/* grouped.c: see grouped.h. */
#include "grouped.h"
#include "emurun.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAPS = 640, NBUF = 14 };
enum { BEHIND = 40 }; /* rows of no expert */

typedef struct Numbers { /* of a launch */
    int64_t rows, lda, ldb, ldw, cap;
    int32_t off[MOSTEXPERTS + 2 + RUNGUARD / 4];
    double *a[2], *b[2]; /* of terms, as they are stored */
    void *buf[NBUF];
    size_t bytes[NBUF];
} Numbers;

/* ---- text ---------------------------------------------------------------- */

static int64_t capacity(const Product *p)
{
    int64_t n = BEHIND;

    for (int x = 0; x < p->experts; x++)
        n += p->rows[x];
    return n;
}

static int64_t stride_of(const Product *p)
{
    return (p->tw ? p->N : p->K) * ((p->tw ? p->K : p->N) + p->more);
}

/* Arguments before the work space. */
static int beside(const Product *p)
{
    return grouped_operands(p->terms, p->scaled) + p->squares;
}

static GmmArgs args_of(const Product *p)
{
    return (GmmArgs){ .in = p->scaled ? De4m3 : Dbf16,
                      .out = p->f32 ? Df32 : Dbf16,
                      .experts = p->experts,
                      .k = p->K,
                      .n = p->N,
                      .ldw = (p->tw ? p->K : p->N) + p->more,
                      .tw = p->tw,
                      .stride = stride_of(p),
                      .cap = capacity(p),
                      .stash = !p->base    ? 0
                               : p->weight ? 3
                                           : 5 };
}

/* An update: of g, which q0 becomes, and what q1 and q2 were; q3 and q4:
 * numbers and scales of what q2 becomes, if it rounds. Their buffers. */
enum { SUMS = 8, WEIGHTS, CODES, ONES, NUMBER }; /* of q1 q2 q3 q4 x0 */
static const float number = 0.375f;

static ProductUpdate *an_update(Arena *a, const Product *p)
{
    ProductUpdate *u = alloc(a, sizeof *u);

    u->ahead = p->update;
    u->bytes = 128 * 8 * (4 + 2);
    u->text = strf(
        a,
        "#define UPDATE 1\n#define AHEAD %d\n#define KEPT %lld\n"
        "#define ROUNDS %d\n"
        "#define UPDATED_TENSORS float *q0, float *q1, uint16_t *q2, %s"
        "const float *x0,\n"
        "#define UPDATED_VALUES q0, q1, q2, %s *x0\n%s%s"
        "struct Update { float *q0, *q1; uint16_t *q2; %s float x0; };\n"
        "FN void advance(Update &u, int64_t by)\n{\n"
        "    u.q0 += by; u.q1 += by; u.q2 += by; %s\n}\n"
        "FN void fetch_half(const Update &u, int at, const uint8_t *slot,\n"
        "                   int half)\n{\n"
        "    fetch_kept(slot, half, u.q1 + at);\n"
        "    fetch_kept(slot + 4096, half, u.q2 + at);\n}\n"
        "FN void update_piece(const float (&g)[PIECE], const Update &u,\n"
        "    const int (&at)[HALVES], const uint8_t *slot,\n"
        "    uint32_t (&pair)[PIECE / 2])\n{\n"
        "    float m[8], w[8];\n"
        "    load_kept<float>(m, slot);\n"
        "    load_kept<uint16_t>(w, slot + 4096);\n"
        "    LANES(8) m[l] = m[l] * 0.5f + g[l];\n"
        "    LANES(8) w[l] = w[l] - u.x0 * m[l];\n"
        "    store_kept(u.q0, at, g);\n    store_kept(u.q1, at, m);\n"
        "    store_kept(u.q2, at, w);\n    give_pairs(pair, w);\n}\n%s",
        u->ahead, (long long)u->bytes, p->rounds,
        p->rounds ? "uint8_t *q3, float *q4, " : "", p->rounds ? "q3, q4," : "",
        p->rounds ? scale_cuh : "", update_cuh,
        p->rounds ? "uint8_t *q3; float *q4;" : "",
        p->rounds ? "u.q3 += by;" : "",
        !p->rounds
            ? ""
            : "FN uint8_t *numbers_of(const Update &u) { return u.q3; }\n"
              "FN float *scales_of(const Update &u) { return u.q4; }\n");
    return u;
}

static int64_t squares_of(const Product *p)
{
    const GmmArgs v = args_of(p);

    return tile_squares(&v, &p->tile);
}

Group *product_group(Arena *a, const Product *p)
{
    Group *k = alloc(a, sizeof *k);
    int64_t shared;
    const GmmArgs v = args_of(p);
    const GroupedForm form = { .update = p->update ? an_update(a, p) : NULL,
                               .weight = p->weight,
                               .squares = p->squares,
                               .terms = p->terms,
                               .stash = p->base > 0,
                               .band = 2,
                               .tile = p->tile };

    set_text_named(k, a, grouped_text(a, &v, form, &shared));
    k->fam = p->weight ? FAMgmm_wgrad : FAMgmm;
    k->narg = beside(p) + (p->update ? 3 : 0) + (p->rounds ? 2 : 0);
    k->scratch = GPUBLOCKS * MAPS;
    cuda_set_launch(k, a,
                    (Launch){ .items = GPUBLOCKS,
                              .threads = grouped_threads(&v, &form),
                              .shared = shared,
                              .persistent = 1 });
    if (!p->update)
        add_size(k, a, p->add);
    return k;
}

/* ---- numbers ------------------------------------------------------------- */

/* A number of 8 bits in [-1, 1). */
static double value(int64_t i, uint32_t seed)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ seed;

    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    x ^= x >> 15;
    return ((int)(x & 255) - 128) / 128.0;
}

static void *room(size_t n, size_t *bytes)
{
    *bytes = n + RUNGUARD;
    return memset(malloc(*bytes), 0xff, *bytes);
}

/* Experts' sizes of numbers differ by a thousand: small ones count too. */
static double scale_of(int x)
{
    return x % 3 == 1 ? 0x1p-10 : x % 3 == 2 ? 8 : 1;
}

static int expert_of(const Product *p, const Numbers *n, int64_t r)
{
    int x = 0;

    while (x < p->experts && n->off[x + 1] <= r)
        x++;
    return x;
}

/* Element i of an operand becomes x; what is read of it. */
static double stored_as(const Product *p, void *to, int64_t i, double x)
{
    if (p->scaled)
        return (double)narrow_value(De4m3, ((uint8_t *)to)[i] =
                                               narrow_nearest(De4m3, (float)x));
    return (double)bf16_to_f32(((uint16_t *)to)[i] = f32_to_bf16((float)x));
}

static int64_t blocks_of(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* Scales of `lines` lines of blocks of K: all differ, some by a lot. */
static float *scales_of(const Product *p, int64_t lines, uint32_t seed,
                        size_t *bytes)
{
    int64_t all = lines * blocks_of(p->K);
    float *to = room((size_t)all * sizeof *to, bytes);

    for (int64_t i = 0; i < all; i++)
        to[i] = (float)ldexp(1.25 + value(i, seed) / 8, (int)(i % 7) - 3);
    return to;
}

/* Rows of operand `which`, of a scaled product with `scale`: before the first
 * and beyond the last they stay NaN. */
static void *rows(const Product *p, const Numbers *n, int64_t wide,
                  uint32_t which, const float *scale, size_t *bytes,
                  double **as)
{
    size_t each = p->scaled ? 1 : 2;
    uint8_t *all = room((size_t)((p->base + n->cap) * wide) * each, bytes);
    uint8_t *to = all + (size_t)(p->base * wide) * each;

    *as = malloc((size_t)(n->cap * wide) * sizeof **as);
    for (int64_t i = 0; i < n->rows * wide; i++) {
        double s = which == 1 ? scale_of(expert_of(p, n, i / wide)) : 1;
        (*as)[i] = stored_as(p, to, i, s * value(i, which));
        if (p->scaled)
            (*as)[i] *=
                (double)scale[i / wide * blocks_of(wide) + i % wide / BLOCK];
    }
    return all;
}

/* Rows of operand `which` as blocks of 128 rows of an expert, each
 * [column][row], where rows that it lacks are 0, with their scales in buffer
 * `scale`. Blocks that no expert has are NaN. */
static void *columns(const Product *p, Numbers *n, int64_t wide, uint32_t which,
                     int scale, size_t *bytes, double **as)
{
    int64_t places = row_blocks(n->cap, p->experts), at = 0;
    uint8_t *to = room((size_t)(places * wide * BLOCK), bytes);
    float *one = room((size_t)(places * wide) * sizeof *one, &n->bytes[scale]);

    n->buf[scale] = one;
    *as = malloc((size_t)(n->cap * wide) * sizeof **as);
    for (int x = 0; x < p->experts; x++)
        for (int64_t r0 = n->off[x]; r0 < n->off[x + 1]; r0 += BLOCK, at++)
            for (int64_t c = 0; c < wide; c++) {
                uint8_t *line = to + (at * wide + c) * BLOCK;
                float s = (float)ldexp(1.25 + value(at + c, which) / 8,
                                       (int)((at + c) % 7) - 3);
                one[at * wide + c] = s;
                memset(line, 0, BLOCK);
                for (int64_t r = r0; r < n->off[x + 1] && r < r0 + BLOCK; r++) {
                    double v = value(r * wide + c, which) *
                               (which == 1 ? scale_of(x) : 1);
                    (*as)[r * wide + c] =
                        stored_as(p, line, r - r0, v) * (double)s;
                }
            }
    return to;
}

/* Experts' matrices; what belongs to others is NaN. */
static void *weights(const Product *p, const Numbers *n, uint32_t which,
                     const float *scale, size_t *bytes, double **as)
{
    int64_t all = p->experts * stride_of(p), wide = n->ldw - p->more;
    void *to = room((size_t)all * (p->scaled ? 1 : 2), bytes);

    *as = malloc((size_t)all * sizeof **as);
    for (int64_t i = 0; i < all; i++) {
        int64_t x = i / stride_of(p), line = i % stride_of(p) / n->ldw;
        (*as)[i] = NAN;
        if (i % n->ldw < wide)
            (*as)[i] = stored_as(p, to, i, value(i, which));
        if (p->scaled)
            (*as)[i] *= (double)
                scale[(x * blocks_of(p->N) + line / BLOCK) * blocks_of(p->K) +
                      i % n->ldw / BLOCK];
    }
    return to;
}

/* Elements of the result before its first. */
static int64_t before(const Product *p)
{
    return p->weight ? 0 : p->base * p->N;
}

static size_t result_bytes(const Product *p, const Numbers *n)
{
    int64_t all = p->weight ? p->experts * stride_of(p) : n->cap * p->N;

    all += before(p);
    return (size_t)all * (p->f32 ? 4 : 2);
}

/* Rows and weights of term t, and their scales behind them. */
static void add_term(const Product *p, Numbers *n, int t)
{
    int at = t ? grouped_operands(1, p->scaled) : 0;
    int s = t ? at + 2 : 4;
    uint32_t which = (uint32_t)t * 4;

    if (p->scaled) {
        n->buf[s] = scales_of(p, n->rows, 5 + which, &n->bytes[s]);
        n->buf[s + 1] = scales_of(p, p->experts * blocks_of(p->N), 6 + which,
                                  &n->bytes[s + 1]);
    }
    n->buf[at] =
        rows(p, n, p->K, 1 + which, n->buf[s], &n->bytes[at], &n->a[t]);
    n->buf[at + 1] =
        weights(p, n, 2 + which, n->buf[s + 1], &n->bytes[at + 1], &n->b[t]);
}

/* Is element i of the weights one of the product's? */
static int is_own(const Product *p, const Numbers *n, int64_t i)
{
    return i % n->ldw < n->ldw - p->more;
}

/* Lines and columns of an expert's weights. */
static int64_t lines_of(const Product *p)
{
    return p->tw ? p->N : p->K;
}

static int64_t wide_of(const Product *p)
{
    return p->tw ? p->K : p->N;
}

static int64_t count_blocks(const Product *p)
{
    return p->experts * blocks_of(lines_of(p)) * blocks_of(wide_of(p));
}

static void prepare_update(const Product *p, Numbers *n)
{
    int64_t all = p->experts * stride_of(p);
    float *sum = n->buf[SUMS] = room((size_t)all * 4, &n->bytes[SUMS]);
    uint16_t *w = n->buf[WEIGHTS] = room((size_t)all * 2, &n->bytes[WEIGHTS]);
    float *x = n->buf[NUMBER] = room(4, &n->bytes[NUMBER]);

    *x = number;
    if (p->rounds) {
        n->buf[CODES] = room((size_t)all, &n->bytes[CODES]);
        n->buf[ONES] = room((size_t)count_blocks(p) * 4, &n->bytes[ONES]);
    }
    for (int64_t i = 0; i < all; i++)
        if (is_own(p, n, i)) {
            sum[i] = (float)value(i, 7);
            w[i] = f32_to_bf16((float)value(i, 8));
        }
}

static void prepare(const Product *p, Numbers *n)
{
    memset(n->off, 0xff, sizeof n->off);
    n->off[0] = 0;
    for (int x = 0; x < p->experts; x++)
        n->off[x + 1] = n->off[x] + p->rows[x];
    n->rows = n->off[p->experts];
    n->off[p->experts + 1] = p->base;
    n->cap = capacity(p);
    n->ldw = (p->tw ? p->K : p->N) + p->more;
    if (p->scaled && p->weight) {
        n->buf[0] = columns(p, n, p->K, 1, 4, &n->bytes[0], &n->a[0]);
        n->buf[1] = columns(p, n, p->N, 3, 5, &n->bytes[1], &n->b[0]);
    } else if (p->weight) {
        n->buf[0] = rows(p, n, p->K, 1, NULL, &n->bytes[0], &n->a[0]);
        n->buf[1] = rows(p, n, p->N, 3, NULL, &n->bytes[1], &n->b[0]);
    } else {
        for (int t = 0; t < p->terms; t++)
            add_term(p, n, t);
    }
    n->buf[2] = room(result_bytes(p, n), &n->bytes[2]);
    n->buf[3] = n->off;
    n->bytes[3] = (size_t)(p->experts + 2) * 4 + RUNGUARD;
    if (p->squares)
        n->buf[beside(p) - 1] =
            room((size_t)squares_of(p) * 4, &n->bytes[beside(p) - 1]);
    n->buf[beside(p)] = room(GPUBLOCKS * MAPS, &n->bytes[beside(p)]);
    if (p->update)
        prepare_update(p, n);
    if (p->add)
        for (int64_t i = 0; i < p->experts * stride_of(p); i++)
            if (i % n->ldw < n->ldw - p->more)
                ((float *)n->buf[2])[i] = (float)value(i, 4);
}

static void drop(Numbers *n)
{
    for (int i = 0; i < NBUF; i++)
        if (i != 3)
            free(n->buf[i]);
    for (int i = 0; i < 2; i++) {
        free(n->a[i]);
        free(n->b[i]);
    }
}

/* ---- what should come ---------------------------------------------------- */

/* Element i of the result, before it is added to; NaN: no one's. */
static double wanted(const Product *p, const Numbers *n, int64_t i)
{
    double sum = 0;

    if (!p->weight) {
        int64_t r = i / p->N, c = i % p->N;
        if (i < 0 || r >= n->rows)
            return NAN;
        int64_t from = expert_of(p, n, r) * stride_of(p);
        for (int t = 0; t < p->terms; t++)
            for (int64_t k = 0; k < p->K; k++)
                sum +=
                    n->a[t][r * p->K + k] *
                    n->b[t][from + (p->tw ? c * n->ldw + k : k * n->ldw + c)];
        return sum;
    }
    int64_t x = i / stride_of(p), j = i % stride_of(p);
    int64_t line = j / n->ldw, at = j % n->ldw;
    if (at >= n->ldw - p->more)
        return NAN;
    int64_t k = p->tw ? at : line, c = p->tw ? line : at;
    for (int64_t r = n->off[x]; r < n->off[x + 1]; r++)
        sum += n->a[0][r * p->K + k] * n->b[0][r * p->N + c];
    return sum + (p->add ? (double)(float)value(i, 4) : 0);
}

static double stored(const Product *p, const Numbers *n, int64_t i)
{
    i += before(p);
    return p->f32 ? (double)((const float *)n->buf[2])[i]
                  : (double)bf16_to_f32(((const uint16_t *)n->buf[2])[i]);
}

/* fp32 sums of up to some hundred terms; a result of bf16 is rounded once. */
static double worst_of(const Product *p, const Numbers *n)
{
    int64_t all = p->weight ? p->experts * stride_of(p) : n->cap * p->N;
    double largest[MOSTEXPERTS + 1] = { 0 }, differs[MOSTEXPERTS + 1] = { 0 };
    double worst = 0, may = p->f32 ? 4e-6 : 5e-3;

    for (int64_t i = -before(p); i < all; i++) {
        int x = p->weight ? (int)(i / stride_of(p)) : expert_of(p, n, i / p->N);
        double w = wanted(p, n, i), y = stored(p, n, i);
        if (isnan(w) != isnan(y))
            return INFINITY;
        if (isnan(w))
            continue;
        largest[x] = fmax(largest[x], fabs(w));
        differs[x] = fmax(differs[x], fabs(w - y));
    }
    for (int x = 0; x < p->experts; x++)
        if (differs[x] > 0)
            worst = fmax(worst, differs[x] / largest[x] / may);
    return worst;
}

/* The sums of squares against those of what is stored. */
static double squares_off(const Product *p, const Numbers *n)
{
    const float *part = n->buf[beside(p) - 1];
    double sum = 0, is = 0;

    for (int64_t i = 0; i < p->experts * stride_of(p); i++)
        is += isnan(stored(p, n, i)) ? 0 : stored(p, n, i) * stored(p, n, i);
    for (int64_t i = 0; i < squares_of(p); i++)
        sum += (double)part[i];
    return fabs(sum / is - 1) / 1e-6;
}

/* What the kernel has made of its sum, to the bit. */
static int update_is_wrong(const Product *p, const Numbers *n)
{
    const float *sum = n->buf[SUMS];
    const uint16_t *w = n->buf[WEIGHTS];
    int64_t all = p->experts * stride_of(p);

    for (int64_t i = 0; i < all; i++) {
        float half = (float)value(i, 7) * 0.5f;
        float m = half + (float)stored(p, n, i), moved = number * m;
        float was = bf16_to_f32(f32_to_bf16((float)value(i, 8)));
        if (is_own(p, n, i) ? sum[i] != m || w[i] != f32_to_bf16(was - moved)
                            : sum[i] == sum[i] || w[i] != 0xffff)
            return 1;
    }
    return 0;
}

/* pow2_scale of ops.def. */
static float power_of(float most)
{
    int e;

    frexpf(most == 0 ? 1 : fminf(448 / most, FLT_MAX), &e);
    return ldexpf(1, e - 1);
}

/* Of block b of all experts' weights, from element `from` on; what lies beside
 * an expert's columns and behind its lines is of no block. */
static int block_is_wrong(const Numbers *n, int64_t b, int64_t from,
                          int64_t lines, int64_t wide)
{
    const uint16_t *w = (uint16_t *)n->buf[WEIGHTS] + from;
    const uint8_t *code = (uint8_t *)n->buf[CODES] + from;
    float most = 0;

    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < wide; j++)
            most = fmaxf(most, fabsf(bf16_to_f32(w[i * n->ldw + j])));
    float scale = power_of(most);
    int bad = ((float *)n->buf[ONES])[b] != 1 / scale;
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < wide; j++)
            bad |=
                code[i * n->ldw + j] !=
                narrow_nearest(De4m3, bf16_to_f32(w[i * n->ldw + j]) * scale);
    return bad;
}

static int rounding_is_wrong(const Product *p, const Numbers *n)
{
    const uint8_t *code = n->buf[CODES];
    int64_t high = lines_of(p), wide = wide_of(p), b = 0;
    int bad = 0;

    for (int x = 0; x < p->experts; x++)
        for (int64_t i = 0; i < high; i += BLOCK)
            for (int64_t j = 0; j < wide; j += BLOCK)
                bad |= block_is_wrong(n, b++, x * stride_of(p) + i * n->ldw + j,
                                      high - i < BLOCK ? high - i : BLOCK,
                                      wide - j < BLOCK ? wide - j : BLOCK);
    for (int64_t i = 0; i < p->experts * stride_of(p); i++)
        bad |= !is_own(p, n, i) && code[i] != 0xff;
    return bad;
}

/* An update's buffers in the order of its kernel's parameters. */
static void order_buffers(const Product *p, const Numbers *n, void **buf,
                          size_t *bytes)
{
    int order[NBUF] = { 0, 1, 3 }, k = 3;

    for (int i = 0; i < 2 && p->scaled; i++)
        order[k++] = 4 + i;
    if (p->squares)
        order[k++] = beside(p) - 1;
    order[k++] = 2;
    for (int i = SUMS; i <= NUMBER; i++)
        if (p->rounds || (i != CODES && i != ONES))
            order[k++] = i;
    order[k++] = beside(p);
    for (int i = 0; i < NBUF; i++) {
        int from = !p->update ? i : i < k ? order[i] : NBUF - 1;
        buf[i] = n->buf[from];
        bytes[i] = n->bytes[from];
    }
}

static uint64_t bits_of(const Product *p, const Numbers *n)
{
    uint64_t bits = 0;

    for (int i = 2; i < beside(p); i++)
        for (size_t k = 0; k < n->bytes[i]; k++)
            bits = mix64(bits, ((const uint8_t *)n->buf[i])[k]);
    return bits;
}

double product_error(const Product *p, const Group *k, uint64_t *bits)
{
    Numbers n = { 0 };
    void *buf[NBUF];
    size_t bytes[NBUF];
    int64_t iv[6];
    double worst = INFINITY;

    prepare(p, &n);
    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    order_buffers(p, &n, buf, bytes);
    if (!emurun_launch(k, buf, bytes, iv))
        worst = worst_of(p, &n);
    if ((p->update && update_is_wrong(p, &n)) ||
        (p->rounds && rounding_is_wrong(p, &n)))
        worst = INFINITY;
    if (p->squares && worst <= 1)
        worst = fmax(worst, squares_off(p, &n));
    *bits = bits_of(p, &n);
    drop(&n);
    return isnan(worst) ? INFINITY : worst;
}
