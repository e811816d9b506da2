/* products.c: cuBLASLt. A product is what its descriptions and layouts say when
 * it is asked for, summed in the type it computes in; what cuBLASLt refuses is
 * refused. There are four algorithms; an algorithm is for the types, layouts
 * and alignments it was proposed for:
 *
 *   1   no work space
 *   2   two halves of the sum, added in the compute type, through work space
 *   3   the same in another order
 *   4   two halves, each rounded to the result's type: proposed where asked for
 *
 * fast=n makes the n-th the fastest of the device's clock. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { R32F = 0, R64F = 1, R16BF = 14, COMPUTE32F = 68, COMPUTE64F = 70 };
enum { NOTVALID = 7, NOTSUPPORTED = 15 };
enum { TRANSA = 3, TRANSB = 4 };
enum { ROWORDER = 1, BATCHCOUNT = 5, BATCHOFFSET = 6 };
enum { MAXWORK = 1, SCHEMES = 3, ALIGNA = 5, ALIGND = 8, OUTPUTTYPE = 4 };
enum { ALGOS = 4, WORK = 1 << 20, WORKALIGN = 16, ALLSCHEMES = 7, ANY = 256 };

typedef struct Desc {
    int compute, scale, trans[2];
} Desc;

typedef struct Layout { /* column-major */
    int type, batch;
    uint64_t rows, cols;
    int64_t ld, stride;
} Layout;

typedef struct Pref {
    uint64_t work;
    uint32_t schemes, align[4];
} Pref;

typedef struct Algo {
    uint64_t id, types, align, unused[5];
} Algo;

typedef struct Found { /* cublasLtMatmulHeuristicResult_t */
    Algo algo;
    size_t work;
    int state;
    float waves;
    int reserved[4];
} Found;

size_t cublasLtGetVersion(void)
{
    return 130000;
}

/* ---- descriptions -------------------------------------------------------- */

int cublasLtMatmulDescCreate(Desc **d, int compute, int scale)
{
    *d = malloc(sizeof **d);
    **d = (Desc){ compute, scale, { 0, 0 } };
    return 0;
}

int cublasLtMatmulDescSetAttribute(Desc *d, int attr, const void *v, size_t n)
{
    if ((attr != TRANSA && attr != TRANSB) || n != sizeof(int))
        return wrong(NOTVALID, "attribute %d of a product", attr);
    memcpy(&d->trans[attr - TRANSA], v, n);
    return d->trans[attr - TRANSA] >> 1 ? NOTVALID : 0;
}

int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows,
                               uint64_t cols, int64_t ld)
{
    *l = malloc(sizeof **l);
    **l = (Layout){ type, 1, rows, cols, ld, 0 };
    return 0;
}

int cublasLtMatrixLayoutSetAttribute(Layout *l, int attr, const void *v,
                                     size_t n)
{
    if (attr == BATCHCOUNT && n == sizeof l->batch)
        memcpy(&l->batch, v, n);
    else if (attr == BATCHOFFSET && n == sizeof l->stride)
        memcpy(&l->stride, v, n);
    else
        return wrong(NOTVALID, "attribute %d of a layout, %zu bytes", attr, n);
    return 0;
}

int cublasLtMatmulPreferenceCreate(Pref **p)
{
    *p = malloc(sizeof **p);
    **p = (Pref){ 0, ALLSCHEMES, { ANY, ANY, ANY, ANY } };
    return 0;
}

int cublasLtMatmulPreferenceDestroy(Pref *p)
{
    free(p);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(Pref *p, int attr, const void *v,
                                         size_t n)
{
    if (attr == MAXWORK && n == sizeof p->work)
        memcpy(&p->work, v, n);
    else if (attr == SCHEMES && n == sizeof p->schemes)
        memcpy(&p->schemes, v, n);
    else if (attr >= ALIGNA && attr <= ALIGND && n == sizeof p->align[0])
        memcpy(&p->align[attr - ALIGNA], v, n);
    else
        return wrong(NOTVALID, "attribute %d of a preference, %zu bytes", attr,
                     n);
    return 0;
}

/* ---- what fits ----------------------------------------------------------- */

static size_t size_of(int type)
{
    return type == R64F ? 8 : type == R32F ? 4 : type == R16BF ? 2 : 0;
}

/* Types of A and C that a product of this kind takes. */
static int takes(const Desc *d, int a, int c)
{
    if (d->compute == COMPUTE64F)
        return d->scale == R64F && a == R64F && c == R64F;
    return d->compute == COMPUTE32F && d->scale == R32F &&
           ((a == R32F && c == R32F) ||
            (a == R16BF && (c == R16BF || c == R32F)));
}

static int holds(const Layout *l)
{
    return l->rows && l->cols && l->ld >= (int64_t)l->rows && l->batch > 0;
}

static int same(const Layout *a, const Layout *b)
{
    return a->type == b->type && a->batch == b->batch && a->rows == b->rows &&
           a->cols == b->cols && a->ld == b->ld && a->stride == b->stride;
}

typedef struct Sizes {
    uint64_t m, n, k;
} Sizes;

/* 0, or the status that cuBLASLt gives. */
static int fits(const Desc *d, const Layout *A, const Layout *B,
                const Layout *C, const Layout *D, Sizes *s)
{
    uint64_t kb = d->trans[1] ? B->cols : B->rows;

    *s = (Sizes){ d->trans[0] ? A->cols : A->rows,
                  d->trans[1] ? B->rows : B->cols,
                  d->trans[0] ? A->rows : A->cols };
    if (!holds(A) || !holds(B) || !holds(C) || kb != s->k || C->rows != s->m ||
        C->cols != s->n || A->batch != C->batch || B->batch != C->batch)
        return wrong(NOTVALID,
                     "a product of %llu x %llu by %llu x %llu into %llu x "
                     "%llu, leading dimensions %lld %lld %lld",
                     (unsigned long long)s->m, (unsigned long long)s->k,
                     (unsigned long long)kb, (unsigned long long)s->n,
                     (unsigned long long)C->rows, (unsigned long long)C->cols,
                     (long long)A->ld, (long long)B->ld, (long long)C->ld);
    if (A->type != B->type || !takes(d, A->type, C->type) || !same(C, D))
        return wrong(NOTSUPPORTED, "a product of types %d %d into %d", A->type,
                     B->type, C->type);
    return 0;
}

static uint64_t types_of(const Desc *d, const Layout *A, const Layout *C)
{
    return (uint64_t)(d->compute << 16 | A->type << 8 | C->type);
}

static size_t work_of(uint64_t id)
{
    return id > 1 ? WORK : 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *lt, const Desc *d, const Layout *A,
                                   const Layout *B, const Layout *C,
                                   const Layout *D, const Pref *p, int n,
                                   Found *results, int *found)
{
    Sizes s;
    int e = fits(d, A, B, C, D, &s);
    uint64_t align = 0;

    (void)lt;
    *found = 0;
    for (int i = 0; i < 4; i++)
        align |= (uint64_t)p->align[i] << 16 * i;
    for (uint64_t id = 1; id <= ALGOS && *found < n && !e; id++) {
        if (work_of(id) > p->work || (id == 4 && !(p->schemes & OUTPUTTYPE)))
            continue;
        results[(*found)++] = (Found){
            .algo = { .id = id, .types = types_of(d, A, C), .align = align },
            .work = work_of(id),
        };
    }
    return e ? e : *found ? 0 : NOTSUPPORTED;
}

int cublasLtMatmulAlgoCheck(void *lt, const Desc *d, const Layout *A,
                            const Layout *B, const Layout *C, const Layout *D,
                            const Algo *a, Found *result)
{
    Sizes s;

    (void)lt;
    if (fits(d, A, B, C, D, &s) || !a->id || a->id > ALGOS ||
        a->types != types_of(d, A, C))
        return NOTSUPPORTED;
    *result = (Found){ .algo = *a, .work = work_of(a->id) };
    return 0;
}

/* ---- one product --------------------------------------------------------- */

typedef struct Product {
    Desc desc;
    Layout A, B, C;
    Sizes s;
    double alpha, beta;
    const char *a, *b, *c;
    char *d, *work;
    uint64_t algo;
} Product;

static double load(const char *p, int type, int64_t i)
{
    float x = 0;
    uint16_t h;
    uint32_t u;
    double v;

    if (type == R64F)
        return memcpy(&v, p + 8 * i, 8), v;
    if (type == R32F)
        return memcpy(&x, p + 4 * i, 4), x;
    memcpy(&h, p + 2 * i, 2);
    u = (uint32_t)h << 16;
    return memcpy(&x, &u, 4), x;
}

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    if (x != x)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void store(char *p, int type, int64_t i, double v)
{
    float x = (float)v;
    uint16_t h = to_bf16(x);

    if (type == R64F)
        memcpy(p + 8 * i, &v, 8);
    else if (type == R32F)
        memcpy(p + 4 * i, &x, 4);
    else
        memcpy(p + 2 * i, &h, 2);
}

/* op(X) by columns of n: x[j * n + i] = op(X)[i][j]. */
static double *unpack(const char *p, const Layout *l, int turned, uint64_t n,
                      uint64_t cols)
{
    double *x = malloc((n * cols + 1) * sizeof *x);

    for (uint64_t j = 0; j < cols; j++)
        for (uint64_t i = 0; i < n; i++)
            x[j * n + i] = load(p, l->type,
                                turned ? (int64_t)i * l->ld + (int64_t)j
                                       : (int64_t)j * l->ld + (int64_t)i);
    return x;
}

/* y (n) += a column times k of A, each step rounded to what it computes in. */
static void add_column(double *y, const double *a, double b, uint64_t n,
                       int single)
{
    if (!single) {
        for (uint64_t i = 0; i < n; i++)
            y[i] += a[i] * b;
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        y[i] = (double)(float)(y[i] + (double)(float)(a[i] * b));
}

static void sum_column(const Product *p, const double *a, const double *b,
                       double *y, uint64_t from, uint64_t to)
{
    for (uint64_t i = 0; i < p->s.m; i++)
        y[i] = 0;
    for (uint64_t k = from; k < to; k++)
        add_column(y, a + k * p->s.m, b[k], p->s.m,
                   p->desc.compute == COMPUTE32F);
}

/* Column j of op(A) op(B), as the algorithm adds it up. */
static void column(const Product *p, const double *a, const double *b,
                   double *y, double *z)
{
    uint64_t k = p->s.k, half = p->algo > 1 ? k / 2 : k;
    char rounded[8];

    sum_column(p, a, b, y, 0, half);
    if (half == k)
        return;
    sum_column(p, a, b, z, half, k);
    for (uint64_t i = 0; i < p->s.m; i++) {
        if (p->algo == 4) {
            store(rounded, p->C.type, 0, y[i]);
            y[i] = load(rounded, p->C.type, 0);
        }
        y[i] += z[i];
        if (p->desc.compute == COMPUTE32F)
            y[i] = (double)(float)y[i];
    }
}

static void one_matrix(const Product *p, int64_t at)
{
    const Layout *C = &p->C;
    const char *A = p->a + at * p->A.stride * (int64_t)size_of(p->A.type);
    const char *B = p->b + at * p->B.stride * (int64_t)size_of(p->B.type);
    int64_t first = at * C->stride;
    double *a = unpack(A, &p->A, p->desc.trans[0], p->s.m, p->s.k);
    double *b = unpack(B, &p->B, p->desc.trans[1], p->s.k, p->s.n);
    double *y = malloc(2 * p->s.m * sizeof *y);

    for (uint64_t j = 0; j < p->s.n; j++) {
        column(p, a, b + j * p->s.k, y, y + p->s.m);
        for (uint64_t i = 0; i < p->s.m; i++) {
            int64_t e = first + (int64_t)j * C->ld + (int64_t)i;
            double v = p->alpha * y[i];
            if (p->beta != 0)
                v += p->beta * load(p->c, C->type, e);
            store(p->d, C->type, e, v);
        }
    }
    free(a);
    free(b);
    free(y);
}

static Moved product_go(const void *what, Run *r)
{
    const Product *p = what;

    (void)r;
    pass_time(p->algo == (uint64_t)setting_number("fast", 1) ? 1 : 2);
    if (idle())
        return DONE;
    if (work_of(p->algo))
        memset(p->work, 0xff, work_of(p->algo));
    for (int64_t i = 0; i < p->C.batch; i++)
        one_matrix(p, i);
    return DONE;
}

/* Bytes from the first to the last element. */
static size_t extent(const Layout *l)
{
    int64_t last = (l->batch - 1) * l->stride + (int64_t)(l->cols - 1) * l->ld +
                   (int64_t)l->rows - 1;

    return (size_t)(last + 1) * size_of(l->type);
}

static int misaligned(const void *p, uint64_t align)
{
    return align && (uintptr_t)p % align;
}

/* The places of a product in this process; 0, or a status. */
static int place(Product *p, const void *A, const void *B, const void *C,
                 void *D, void *work, size_t nwork, const Algo *algo)
{
    size_t need = work_of(p->algo), nd = extent(&p->C);

    p->a = device_at((uintptr_t)A, extent(&p->A), "A of a product");
    p->b = device_at((uintptr_t)B, extent(&p->B), "B of a product");
    p->c = device_at((uintptr_t)C, nd, "C of a product");
    p->d = device_at((uintptr_t)D, nd, "D of a product");
    if (!p->a || !p->b || !p->c || !p->d)
        return NOTVALID;
    if (misaligned(A, algo->align & 0xffff) ||
        misaligned(B, algo->align >> 16 & 0xffff) ||
        misaligned(D, algo->align >> 48))
        return wrong(NOTSUPPORTED,
                     "operands that are less aligned than was said");
    if ((p->a < p->d + nd && p->d < p->a + extent(&p->A)) ||
        (p->b < p->d + nd && p->d < p->b + extent(&p->B)))
        return wrong(NOTVALID, "a product into its operand");
    if (nwork < need || misaligned(work, WORKALIGN))
        return wrong(NOTVALID, "work space of %zu bytes", nwork);
    if (need)
        p->work = device_at((uintptr_t)work, need, "work space of products");
    return need && !p->work ? NOTVALID : 0;
}

int cublasLtMatmul(void *lt, const Desc *desc, const void *alpha, const void *A,
                   const Layout *la, const void *B, const Layout *lb,
                   const void *beta, const void *C, const Layout *lc, void *D,
                   const Layout *ld, const Algo *algo, void *work, size_t nwork,
                   Stream *s)
{
    Product *p = malloc(sizeof *p);

    (void)lt;
    *p = (Product){ .desc = *desc, .A = *la, .B = *lb, .C = *lc };
    p->alpha = load(alpha, desc->scale, 0);
    p->beta = load(beta, desc->scale, 0);
    p->algo = algo->id;
    device_lock();
    int e = fits(desc, la, lb, lc, ld, &p->s);
    if (!e && (!algo->id || algo->id > ALGOS ||
               algo->types != types_of(desc, la, lc)))
        e = wrong(NOTSUPPORTED, "an algorithm for other types");
    e = e ? e : place(p, A, B, C, D, work, nwork, algo);
    if (e)
        free(p);
    else
        e = enqueue(s, product_go, free, p) ? 14 : 0;
    device_unlock();
    return e;
}
