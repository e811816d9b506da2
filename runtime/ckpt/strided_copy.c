/* strided_copy.c: copies of elements between files with different axis orders.
 * A Strided is a box of elements: one loop an axis, with its stride in source
 * and destination. Loops are ordered by descending destination stride and
 * merged where both orders agree: a transposed matrix has two loops, an equal
 * order has none (memcpy). strided_boxes cuts a Strided to a range of the
 * destination. The result is whole boxes, which are transposed in tiles that
 * fit in cache. */
#include "ckpt.h"

enum { TILE = 64 };

/* ---- loops --------------------------------------------------------------- */

void strided_loop(Strided *strided, int64_t n, int64_t to, int64_t from)
{
    int k = strided->n;

    if (n == 1)
        return;
    for (; k > 0 && strided->loop[k - 1].to < to; k--)
        strided->loop[k] = strided->loop[k - 1];
    strided->loop[k] = (Stride){ n, to, from };
    strided->n++;
}

void strided_merge(Strided *strided)
{
    int n = 0;

    for (int k = 0; k < strided->n; k++) {
        const Stride *stride = &strided->loop[k];
        Stride *last = n ? &strided->loop[n - 1] : NULL;
        if (last && last->to == stride->to * stride->n &&
            last->from == stride->from * stride->n)
            *last = (Stride){ last->n * stride->n, stride->to, stride->from };
        else
            strided->loop[n++] = *stride;
    }
    strided->n = n;
}

/* The loop with the smallest stride in the source. */
static int nearest_loop(const Stride *stride, int n)
{
    int s = n - 1;

    for (int k = n - 1; k >= 0; k--)
        if (stride[k].from < stride[s].from)
            s = k;
    return s;
}

int64_t strided_room(const Strided *strided)
{
    return strided->n
               ? TILE *
                     strided->loop[nearest_loop(strided->loop, strided->n)].to
               : 1;
}

/* ---- cutting ------------------------------------------------------------- */

typedef struct Within {
    const Strided *p;
    int64_t lo, hi;
    BoxFn *f;
    void *ctx;
} Within;

/* Elements spanned by loops k and following. */
static int64_t span(const Strided *strided, int k)
{
    int64_t n = 1;

    for (; k < strided->n; k++)
        n += (strided->loop[k].n - 1) * strided->loop[k].to;
    return n;
}

static void cut(const Within *within, int k, int64_t to, int64_t from)
{
    int64_t all = span(within->p, k);

    if (to >= within->hi || to + all <= within->lo)
        return;
    if (to >= within->lo && to + all <= within->hi) {
        within->f(within->ctx, within->p->loop + k, within->p->n - k, to, from);
        return;
    }
    Stride box[MAXD], *l = box;
    int64_t inner = span(within->p, k + 1);
    memcpy(box, within->p->loop + k, (size_t)(within->p->n - k) * sizeof *box);
    int64_t first = within->lo - inner - to,
            end = (within->hi - to + l->to - 1) / l->to;
    first = first < 0 ? 0 : first / l->to + 1;
    end = end < l->n ? end : l->n;
    int64_t a = first + (to + first * l->to < within->lo), b = end;
    b -= to + (end - 1) * l->to + inner > within->hi;
    if (a > first)
        cut(within, k + 1, to + first * l->to, from + first * l->from);
    l->n = b - a;
    if (a < b)
        within->f(within->ctx, box, within->p->n - k, to + a * l->to,
                  from + a * l->from);
    if (b < end && b >= a)
        cut(within, k + 1, to + b * l->to, from + b * l->from);
}

void strided_boxes(const Strided *strided, int64_t lo, int64_t hi, BoxFn *fn,
                   void *ctx)
{
    Within c = { strided, lo, hi, fn, ctx };

    cut(&c, 0, strided->to, strided->from);
}

/* ---- transposition ------------------------------------------------------- */

typedef uint8_t V16 __attribute__((vector_size(16), aligned(1)));
typedef uint16_t V8 __attribute__((vector_size(16), aligned(2)));
typedef uint32_t V4 __attribute__((vector_size(16), aligned(4)));

#define LOW16(a, b)                                                            \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, \
                            22, 7, 23)
#define HIGH16(a, b)                                                        \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, \
                            29, 14, 30, 15, 31)
#define LOW8(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH8(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW4(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH4(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)

/* A function that transposes N x N elements with row strides of `down` and
 * `out` bytes: log N rounds that interleave row i with row i + N / 2. */
#define TURN(name, V, N, LOW, HIGH)                                         \
    static inline void name(const uint8_t *from, int64_t down, uint8_t *to, \
                            int64_t out)                                    \
    {                                                                       \
        V r[N], t[N];                                                       \
        for (int i = 0; i < N; i++)                                         \
            memcpy(&r[i], from + i * down, sizeof r[i]);                    \
        for (int k = 1; k < N; k *= 2) {                                    \
            for (int i = 0; i < N / 2; i++) {                               \
                t[2 * i] = LOW(r[i], r[i + N / 2]);                         \
                t[2 * i + 1] = HIGH(r[i], r[i + N / 2]);                    \
            }                                                               \
            memcpy(r, t, sizeof r);                                         \
        }                                                                   \
        for (int i = 0; i < N; i++)                                         \
            memcpy(to + i * out, &r[i], sizeof r[i]);                       \
    }

TURN(turn16, V16, 16, LOW16, HIGH16)
TURN(turn8, V8, 8, LOW8, HIGH8)
TURN(turn4, V4, 4, LOW4, HIGH4)

static inline void turn_block(int size, const uint8_t *from, int64_t down,
                              uint8_t *to, int64_t out)
{
    if (size == 1)
        turn16(from, down, to, out);
    else if (size == 2)
        turn8(from, down, to, out);
    else
        turn4(from, down, to, out);
}

/* Transposes TILE x TILE elements through a contiguous buffer: row strides of
 * files are often powers of two and would conflict in the cache. Prefetches the
 * tile `ahead` bytes further. */
static inline void turn_tile(int size, const uint8_t *from, int64_t down,
                             uint8_t *to, int64_t out, int64_t ahead)
{
    uint8_t mid[TILE * TILE * 4];
    int w = 16 / size, row = TILE * size;

    for (int j = 0; j < TILE; j += w) {
        const uint8_t *x = from + j * down;
        for (int k = 0; k < w; k++)
            for (int q = 0; q < row; q += 64)
                __builtin_prefetch(x + k * down + q + ahead);
        for (int i = 0; i < TILE; i += w)
            turn_block(size, x + i * size, down, mid + i * row + j * size, row);
    }
    for (int i = 0; i < TILE; i++)
        memcpy(to + i * out, mid + i * row, (size_t)row);
}

/* Copies element by element; s is the outer loop. */
static void plain(const uint8_t *from, uint8_t *to, int size, const Stride *s,
                  const Stride *d)
{
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < d->n; j++) {
            const uint8_t *x = from + (i * s->from + j * d->from) * size;
            uint8_t *y = to + (i * s->to + j * d->to) * size;
            switch (size) {
            case 2: memcpy(y, x, 2); break;
            case 4: memcpy(y, x, 4); break;
            case 8: memcpy(y, x, 8); break;
            default: *y = *x;
            }
        }
}

/* Copies the remainder at a tile edge. s: contiguous in the source; d:
 * contiguous in the destination. */
static void edge(const uint8_t *from, uint8_t *to, int size, Stride s, Stride d)
{
    int64_t w = 16 / size, n = s.n / w * w, m = d.n / w * w;

    if (s.from != 1 || d.to != 1 || size > 4)
        n = m = 0;
    for (int64_t i = 0; i < n; i += w)
        for (int64_t j = 0; j < m; j += w)
            turn_block(size, from + (i + j * d.from) * size, d.from * size,
                       to + (i * s.to + j) * size, s.to * size);
    Stride right = { s.n - n, s.to, s.from }, below = { d.n - m, d.to, d.from };
    Stride left = { n, s.to, s.from };
    plain(from + n * s.from * size, to + n * s.to * size, size, &right, &d);
    plain(from + m * d.from * size, to + m * d.to * size, size, &left, &below);
}

static void whole(const uint8_t *from, uint8_t *to, int size, Stride s,
                  Stride d, int64_t ahead)
{
    switch (size) {
    case 1: turn_tile(1, from, d.from, to, s.to, ahead); break;
    case 2: turn_tile(2, from, d.from * 2, to, s.to * 2, ahead); break;
    default: turn_tile(4, from, d.from * 4, to, s.to * 4, ahead); break;
    }
}

/* Transposes in tiles along the rows of the source; `ahead` is the next
 * tile. */
static void turn(const uint8_t *from, uint8_t *to, int size, Stride s, Stride d)
{
    int fit = s.from == 1 && d.to == 1 && size <= 4;

    for (int64_t j = 0; j < d.n; j += TILE)
        for (int64_t i = 0; i < s.n; i += TILE) {
            Stride a = s, b = d;
            const uint8_t *x = from + (i * s.from + j * d.from) * size;
            uint8_t *y = to + (i * s.to + j * d.to) * size;
            a.n = s.n - i < TILE ? s.n - i : TILE;
            b.n = d.n - j < TILE ? d.n - j : TILE;
            if (fit && a.n == TILE && b.n == TILE)
                whole(x, y, size, s, d,
                      size * (i + TILE < s.n ? TILE : TILE * d.from - i));
            else
                edge(x, y, size, a, b);
        }
}

/* ---- copying ------------------------------------------------------------- */

typedef struct StridedRun {
    const uint8_t *from;
    uint8_t *to;
    int64_t lo;
    int size;
} StridedRun;

static void copy_innermost(const uint8_t *from, uint8_t *to, int size,
                           const Stride *s, const Stride *d)
{
    static const Stride once = { 1, 0, 0 };

    if (s != d)
        turn(from, to, size, *s, *d);
    else if (d->to == 1 && d->from == 1)
        memcpy(to, from, (size_t)(d->n * size));
    else
        plain(from, to, size, &once, d);
}

static void copy_box(void *ctx, const Stride *stride, int n, int64_t to,
                     int64_t from)
{
    static const Stride once = { 1, 1, 1 };
    const StridedRun *run = ctx;
    int64_t at[MAXD] = { 0 };
    int s = n ? nearest_loop(stride, n) : 0, d = n - 1, k;

    to -= run->lo;
    do {
        int64_t x = from, y = to;
        for (k = 0; k < n; k++) {
            x += at[k] * stride[k].from;
            y += at[k] * stride[k].to;
        }
        copy_innermost(run->from + x * run->size, run->to + y * run->size,
                       run->size, n ? &stride[s] : &once,
                       n ? &stride[d] : &once);
        for (k = n - 1; k >= 0; at[k--] = 0)
            if (k != s && k != d && ++at[k] < stride[k].n)
                break;
    } while (k >= 0);
}

void strided_copy(const Strided *strided, int size, const uint8_t *from,
                  uint8_t *to, int64_t lo, int64_t hi)
{
    StridedRun c = { from, to, lo, size };

    strided_boxes(strided, lo, hi, copy_box, &c);
}
