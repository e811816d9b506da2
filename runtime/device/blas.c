/* blas.c: dense, batched and grouped matrix products.
 *
 * OpenBLAS computes blocks on one thread each; our pool shares the blocks. The
 * blocks depend only on a product's sizes, so results do not depend on the
 * number of threads. bf16 operands are first widened into the scratch buffer; a
 * bf16 result is accumulated there in fp32 and rounded once.
 *
 * Grouped products (gmm, gmm_wgrad) read each expert's rows from the route map,
 * which begins with the offsets of the local experts; no row beyond the last
 * offset is touched. */
#include "host.h"

enum { ROWMAJOR = 101, NOTRANS = 111, TRANS = 112 };
enum { MAXEXPERT = 4096 };

struct Blas {
    Pool *pool;
    int64_t first[MAXEXPERT + 1]; /* first task of each expert */
};

typedef struct Mat {
    void *p;
    int64_t ld;
    int t;
} Mat;

/* ---- bf16 ---------------------------------------------------------------- */

/* A copy of each loop for each vector width, selected when the program starts:
 * all have the same integer operations, so the same bits. */
#if defined __x86_64__ && defined __GNUC__ && !defined __clang__ && \
    !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__
#define CLONES \
    __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define CLONES
#endif

typedef struct RowCopy { /* n rows of `width` elements */
    const void *src;
    void *dst;
    int64_t width, sld, dld;
} RowCopy;

CLONES static void widen_rows(void *ctx, int64_t lo, int64_t hi)
{
    const RowCopy *copy = ctx;

    for (int64_t i = lo; i < hi; i++) {
        const uint16_t *s = (const uint16_t *)copy->src + i * copy->sld;
        uint32_t *d = (uint32_t *)copy->dst + i * copy->dld;
        for (int64_t j = 0; j < copy->width; j++)
            d[j] = (uint32_t)s[j] << 16;
    }
}

CLONES static void round_rows(void *ctx, int64_t lo, int64_t hi)
{
    const RowCopy *copy = ctx;

    for (int64_t i = lo; i < hi; i++) {
        const uint32_t *s = (const uint32_t *)copy->src + i * copy->sld;
        uint16_t *d = (uint16_t *)copy->dst + i * copy->dld;
        for (int64_t j = 0; j < copy->width; j++) {
            uint32_t x = s[j], nan = (x & 0x7fffffff) > 0x7f800000;
            uint32_t up = (x + 0x7fff + (x >> 16 & 1)) >> 16;
            d[j] = (uint16_t)(nan ? x >> 16 | 0x40 : up);
        }
    }
}

static void each_row(Pool *pool, Work *f, const void *src, int64_t sld,
                     void *dst, int64_t dld, int64_t rows, int64_t width)
{
    RowCopy r = { src, dst, width, sld, dld };

    pool_run(pool, f, &r, rows, width < 16384 ? 16384 / (width + 1) + 1 : 1);
}

/* ---- one block ----------------------------------------------------------- */

static void *at(void *p, Dtype dt, int64_t i)
{
    return (char *)p + i * dtypes[dt].bytes;
}

/* C[m x n] = A x B (+ C); ta: A is stored k x m, tb: B is stored n x k. */
static void product(Dtype dt, int64_t m, int64_t n, int64_t k, Mat a, Mat b,
                    Mat c, int64_t acc)
{
    int ta = a.t ? TRANS : NOTRANS, tb = b.t ? TRANS : NOTRANS;

    if (m < 1 || n < 1)
        return;
    if (k < 1) {
        for (int64_t i = 0; i < m && !acc; i++)
            memset(at(c.p, dt, i * c.ld), 0, (size_t)(n * dtypes[dt].bytes));
        return;
    }
    if (dt == Df64)
        dl.cblas_dgemm(ROWMAJOR, ta, tb, (int)m, (int)n, (int)k, 1, a.p,
                       (int)a.ld, b.p, (int)b.ld, acc ? 1 : 0, c.p, (int)c.ld);
    else
        dl.cblas_sgemm(ROWMAJOR, ta, tb, (int)m, (int)n, (int)k, 1, a.p,
                       (int)a.ld, b.p, (int)b.ld, acc ? 1 : 0, c.p, (int)c.ld);
}

/* Returns the rows of C, out of `rows`, that a task computes. OpenBLAS packs
 * the other operand [others k] again for each task, so a larger one needs more
 * rows a task; at least four tasks are wanted. Products below about 20 us have
 * one task. */
static int64_t block_of(int64_t rows, int64_t others, int64_t k)
{
    int64_t other = others * k, blk = other <= 1 << 16   ? 128
                                      : other <= 1 << 18 ? 256
                                                         : 512;
    int64_t share = (rows / 4 + 63) / 64 * 64;
    int64_t least = (1000000 / (other + 1) + 16) / 16 * 16;

    blk = blk < share ? blk : share;
    blk = blk > 128 ? blk : 128;
    return blk > least ? blk : least;
}

/* ---- gemm ---------------------------------------------------------------- */

typedef struct Gemm {
    Dtype dt;
    int64_t m, n, k, acc;
    Mat a, b, c;
    int nb;
    int64_t bn[MAXBATCH], sa[MAXBATCH], sb[MAXBATCH], sc[MAXBATCH];
    int64_t items, blk, blocks; /* blocks of each item */
    int alongn;                 /* blocks divide N, not M */
} Gemm;

/* Returns the offset of batch item i in an operand with strides s. */
static int64_t item_at(const Gemm *gemm, const int64_t *s, int64_t i)
{
    int64_t off = 0;

    for (int b = gemm->nb - 1; b >= 0; b--) {
        off += i % gemm->bn[b] * s[b];
        i /= gemm->bn[b];
    }
    return off;
}

static void gemm_block(const Gemm *gemm, int64_t i)
{
    int64_t item = i / gemm->blocks, lo = i % gemm->blocks * gemm->blk;
    int64_t m = gemm->m, n = gemm->n, *cut = gemm->alongn ? &n : &m;
    Mat a = gemm->a, b = gemm->b, c = gemm->c;

    *cut = *cut - lo < gemm->blk ? *cut - lo : gemm->blk;
    int64_t oa = item_at(gemm, gemm->sa, item),
            ob = item_at(gemm, gemm->sb, item);
    int64_t oc = item_at(gemm, gemm->sc, item);
    if (gemm->alongn) {
        ob += b.t ? lo * b.ld : lo;
        oc += lo;
    } else {
        oa += a.t ? lo : lo * a.ld;
        oc += lo * c.ld;
    }
    a.p = at(a.p, gemm->dt, oa);
    b.p = at(b.p, gemm->dt, ob);
    c.p = at(c.p, gemm->dt, oc);
    product(gemm->dt, m, n, gemm->k, a, b, c, gemm->acc);
}

static void gemm_blocks(void *ctx, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        gemm_block(ctx, i);
}

/* Returns the number of distinct items of an operand: axes with stride 0 repeat
 * the same item. */
static int64_t distinct(int nb, const int64_t *bn, const int64_t *s)
{
    int64_t n = 1;

    for (int b = 0; b < nb; b++)
        n *= s[b] ? bn[b] : 1;
    return n;
}

typedef enum CastDirection { WIDEN, ROUND } CastDirection;

/* Converts rows of bf16, ld apart, to or from dense fp32. */
static void convert_rows(Blas *bl, uint16_t *p, int64_t ld, float *dense,
                         int64_t rows, int64_t cols, CastDirection way)
{
    if (way == WIDEN)
        each_row(bl->pool, widen_rows, p, ld, dense, cols, rows, cols);
    else
        each_row(bl->pool, round_rows, dense, cols, p, ld, rows, cols);
}

/* Converts all items of an operand ([rows cols] each) between their place and
 * dense fp32 at `dense`; with WIDEN the operand becomes the dense copy. */
static void convert(Blas *bl, const Gemm *gemm, Mat *mat, int64_t *s,
                    int64_t rows, int64_t cols, float *dense, CastDirection way)
{
    int64_t items = distinct(gemm->nb, gemm->bn, s), ds[MAXBATCH], stride = 1;

    for (int b = gemm->nb - 1; b >= 0; b--) {
        ds[b] = s[b] ? stride * rows * cols : 0;
        stride *= s[b] ? gemm->bn[b] : 1;
    }
    for (int64_t i = 0; i < items; i++) {
        int64_t off = 0, r = i;
        for (int b = gemm->nb - 1; b >= 0; b--)
            if (s[b]) {
                off += r % gemm->bn[b] * s[b];
                r /= gemm->bn[b];
            }
        convert_rows(bl, (uint16_t *)mat->p + off, mat->ld,
                     dense + i * rows * cols, rows, cols, way);
    }
    if (way == ROUND)
        return;
    mat->p = dense;
    mat->ld = cols;
    memcpy(s, ds, sizeof ds);
}

static Gemm gemm_read(void *const *buf, const GemmArgs *args)
{
    Gemm g = { .dt = args->in == Df64 ? Df64 : Df32,
               .m = args->m,
               .n = args->n,
               .k = args->k,
               .acc = args->beta,
               .nb = args->batch.n,
               .items = 1 };

    g.a = (Mat){ buf[OPERAND(gemm, a)], args->lda, args->ta };
    g.b = (Mat){ buf[OPERAND(gemm, b)], args->ldb, args->tb };
    g.c = (Mat){ buf[OPERAND(gemm, c)], args->ldc, 0 };
    for (int b = 0; b < g.nb; b++) {
        const BatchLoop *loop = &args->batch.at[b];
        g.bn[b] = loop->n;
        g.sa[b] = loop->a;
        g.sb[b] = loop->b;
        g.sc[b] = loop->c;
        g.items *= loop->n;
    }
    return g;
}

static void gemm_run(Blas *bl, void *const *buf, const GemmArgs *args,
                     float *scratch)
{
    Gemm g = gemm_read(buf, args), whole = g;

    if (args->in == Dbf16) {
        int64_t na = distinct(g.nb, g.bn, g.sa) * g.m * g.k;
        int64_t nb = distinct(g.nb, g.bn, g.sb) * g.k * g.n;
        convert(bl, &whole, &g.a, g.sa, g.a.t ? g.k : g.m, g.a.t ? g.m : g.k,
                scratch, WIDEN);
        convert(bl, &whole, &g.b, g.sb, g.b.t ? g.n : g.k, g.b.t ? g.k : g.n,
                scratch + na, WIDEN);
        scratch += na + nb;
    }
    if (args->out == Dbf16 && g.acc) {
        convert(bl, &whole, &g.c, g.sc, g.m, g.n, scratch, WIDEN);
    } else if (args->out == Dbf16) {
        int64_t stride = g.m * g.n;
        for (int b = g.nb - 1; b >= 0; stride *= g.bn[b--])
            g.sc[b] = stride;
        g.c = (Mat){ scratch, g.n, 0 };
    }
    g.alongn = g.n > g.m;
    int64_t rows = g.alongn ? g.n : g.m;
    g.blk = block_of(rows, g.alongn ? g.m : g.n, g.k);
    g.blocks = (rows + g.blk - 1) / g.blk;
    int64_t small = 2000000 / (2 * g.m * g.n * g.k + 1) + 1;
    pool_run(bl->pool, gemm_blocks, &g, g.items * g.blocks,
             g.blocks > 1 ? 1 : small);
    if (args->out == Dbf16)
        convert(bl, &whole, &whole.c, whole.sc, g.m, g.n, scratch, ROUND);
}

/* ---- grouped ------------------------------------------------------------- */

typedef struct Gmm {
    Dtype dt;
    int64_t k, n, acc, experts, blk;
    Mat a, b, c;    /* rows, W, out; or a, b, dW */
    int64_t stride; /* elements between experts in W or dW */
    const int32_t *off;
    const int64_t *first;
    int weights; /* gmm_wgrad */
} Gmm;

/* Computes a block of rows of one expert: out = rows x W[e]. */
static void rows_block(const Gmm *gmm, int64_t e, int64_t blk)
{
    int64_t r = gmm->off[e] + blk * gmm->blk, m = gmm->off[e + 1] - r;
    Mat a = gmm->a, b = gmm->b, c = gmm->c;

    a.p = at(a.p, gmm->dt, r * a.ld);
    b.p = at(b.p, gmm->dt, e * gmm->stride);
    c.p = at(c.p, gmm->dt, r * c.ld);
    product(gmm->dt, m < gmm->blk ? m : gmm->blk, gmm->n, gmm->k, a, b, c,
            gmm->acc);
}

/* Computes a block of rows of dW[e] as stored: k x n, or n x k if
 * transposed. */
static void weights_block(const Gmm *gmm, int64_t e, int64_t blk)
{
    int64_t r = gmm->off[e], m = gmm->off[e + 1] - r, lo = blk * gmm->blk;
    Mat a = gmm->c.t ? gmm->b : gmm->a, b = gmm->c.t ? gmm->a : gmm->b,
        c = gmm->c;
    int64_t rows = gmm->c.t ? gmm->n : gmm->k,
            cols = gmm->c.t ? gmm->k : gmm->n;

    a.p = at(a.p, gmm->dt, r * a.ld + lo);
    a.t = 1;
    b.p = at(b.p, gmm->dt, r * b.ld);
    c.p = at(c.p, gmm->dt, e * gmm->stride + lo * c.ld);
    rows = rows - lo < gmm->blk ? rows - lo : gmm->blk;
    product(gmm->dt, rows, cols, m, a, b, c, gmm->acc);
}

static void gmm_blocks(void *ctx, int64_t lo, int64_t hi)
{
    const Gmm *gmm = ctx;

    for (int64_t i = lo; i < hi; i++) {
        int64_t e = first_from(gmm->first, (int)gmm->experts, i + 1) - 1;
        if (gmm->weights)
            weights_block(gmm, e, i - gmm->first[e]);
        else
            rows_block(gmm, e, i - gmm->first[e]);
    }
}

/* Sets bl->first to the first task of every expert. Returns the number of
 * tasks. */
static int64_t plan_tasks(Blas *bl, Gmm *gmm)
{
    int64_t n = 0, rows = gmm->c.t ? gmm->n : gmm->k;

    gmm->blk = gmm->weights ? block_of(rows, gmm->k + gmm->n - rows, 64)
                            : block_of(256, gmm->n, gmm->k);
    for (int64_t e = 0; e < gmm->experts; e++) {
        int64_t m = gmm->weights ? rows : gmm->off[e + 1] - gmm->off[e];
        bl->first[e] = n;
        n += (m + gmm->blk - 1) / gmm->blk;
    }
    bl->first[gmm->experts] = n;
    gmm->first = bl->first;
    return n;
}

/* Converts all experts' weights between dense fp32 at d and strided bf16 at
 * mat. */
static void convert_weights(Blas *bl, const Gmm *gmm, const Mat *mat, float *d,
                            CastDirection way)
{
    int64_t rows = mat->t ? gmm->n : gmm->k, cols = mat->t ? gmm->k : gmm->n;

    for (int64_t e = 0; e < gmm->experts; e++)
        convert_rows(bl, (uint16_t *)mat->p + e * gmm->stride, mat->ld,
                     d + e * rows * cols, rows, cols, way);
}

static float *widen(Blas *bl, Mat *mat, int64_t rows, int64_t cap,
                    int64_t width, float *to)
{
    each_row(bl->pool, widen_rows, mat->p, width, to, width, rows, width);
    mat->p = to;
    return to + cap * width;
}

/* Returns row 0 of operand i, whose rows have n elements. */
static void *rows_of(const Instr *instr, void *const *buf, int i, int64_t n)
{
    const int32_t *map = buf[OPERAND(gmm, map)];
    int64_t base = instr->gmm.stash >> i & 1 ? map[instr->gmm.experts + 1] : 0;

    return (uint8_t *)buf[i] + base * n * dtypes[instr_dtype(instr, i)].bytes;
}

static Gmm gmm_read(const Instr *instr, void *const *buf)
{
    const GmmArgs *args = &instr->gmm;
    Gmm g = { .dt = args->in == Df64 ? Df64 : Df32,
              .k = args->k,
              .n = args->n,
              .acc = args->beta,
              .experts = args->experts,
              .stride = args->stride,
              .off = buf[OPERAND(gmm, map)],
              .weights = instr->kind == Igmm_wgrad };
    Mat w = { buf[g.weights ? OPERAND(gmm_wgrad, dw) : OPERAND(gmm, w)],
              args->ldw, args->tw };

    if (g.experts > MAXEXPERT)
        err(NULL, "%ld experts on a rank, at most %d", g.experts, MAXEXPERT);
    g.a = (Mat){ rows_of(instr, buf, 0, g.k), g.k, 0 };
    g.b = g.weights
              ? (Mat){ rows_of(instr, buf, OPERAND(gmm_wgrad, b), g.n), g.n, 0 }
              : w;
    g.c = g.weights
              ? w
              : (Mat){ rows_of(instr, buf, OPERAND(gmm, out), g.n), g.n, 0 };
    return g;
}

static void gmm_run(Blas *bl, const Instr *instr, void *const *buf,
                    float *scratch)
{
    Gmm g = gmm_read(instr, buf), whole = g;
    int64_t cap = instr->gmm.cap, extent = g.off[g.experts];
    int64_t wcols = instr->gmm.tw ? g.k : g.n;
    int outb = instr->gmm.out == Dbf16;

    if (instr->gmm.in == Dbf16) {
        scratch = widen(bl, &g.a, extent, cap, g.k, scratch);
        if (g.weights) {
            scratch = widen(bl, &g.b, extent, cap, g.n, scratch);
        } else {
            convert_weights(bl, &whole, &whole.b, scratch, WIDEN);
            g.b = (Mat){ scratch, wcols, whole.b.t };
            g.stride = g.k * g.n;
            scratch += g.experts * g.k * g.n;
        }
    }
    if (outb && g.weights) {
        if (g.acc)
            convert_weights(bl, &whole, &whole.c, scratch, WIDEN);
        g.c = (Mat){ scratch, wcols, whole.c.t };
        g.stride = g.k * g.n;
    } else if (outb) {
        if (g.acc)
            each_row(bl->pool, widen_rows, whole.c.p, g.n, scratch, g.n, extent,
                     g.n);
        g.c.p = scratch;
    }
    int64_t tasks = plan_tasks(bl, &g);
    pool_run(bl->pool, gmm_blocks, &g, tasks, 1);
    if (outb && g.weights)
        convert_weights(bl, &whole, &whole.c, scratch, ROUND);
    else if (outb)
        each_row(bl->pool, round_rows, scratch, g.n, whole.c.p, g.n, extent,
                 g.n);
}

/* ---- interface ----------------------------------------------------------- */

enum { BUFFER = (128 << 20) + 8192, LIBRARY = 64 << 20 }; /* bytes */

/* Calls err() unless `more` bytes and OpenBLAS's buffers of all threads can be
 * mapped. OpenBLAS retries forever if it cannot map a buffer. */
static void check_room(const Pool *pool, size_t more)
{
    size_t n = (size_t)pool_size(pool), bytes = n * BUFFER + more;
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (room == MAP_FAILED)
        err(NULL,
            "out of memory: OpenBLAS needs %zu MiB for %zu threads "
            "(PLEAT_THREADS sets how many)",
            bytes >> 20, n);
    munmap(room, bytes);
}

Blas *blas_open(Arena *a, Pool *pool)
{
    Blas *blas = alloc(a, sizeof *blas);

    check_room(pool, LIBRARY); /* OpenBLAS 0.3.29 maps a buffer at its load */
    if (!dl_open(LIBblas))
        err(NULL, "no OpenBLAS: %s", dl_why(LIBblas));
    if (blas_wrong())
        err(NULL, "%s", blas_note());
    dl.openblas_set_num_threads(1);
    blas->pool = pool;
    return blas;
}

/* OpenBLAS allocates BUFFER bytes a thread at the thread's first product, keeps
 * them, and retries forever if memory is short, which other processes may have
 * taken by then. This allocates all of them now if the library has a function
 * for it. */
void blas_reserve(const Pool *pool)
{
    size_t n = (size_t)pool_size(pool);
    Arena *a = arena_new();
    void **taken = alloc(a, n * sizeof *taken);

    check_room(pool, 0);
    int takes = dl.blas_memory_alloc && dl.blas_memory_free;
    for (size_t i = 0; takes && i < n; i++)
        taken[i] = dl.blas_memory_alloc(0);
    for (size_t i = 0; takes && i < n; i++)
        dl.blas_memory_free(taken[i]);
    arena_free(a);
}

void blas_run(Blas *blas, const Instr *instr, void *const *buf, void *scratch)
{
    if (instr->kind == Igemm)
        gemm_run(blas, buf, &instr->gemm, scratch);
    else
        gmm_run(blas, instr, buf, scratch);
}
