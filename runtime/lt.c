/* lt.c: dense products on a GPU through cuBLASLt. Steps speak of row-major
 * matrices and cuBLASLt of column-major ones, so it is asked for the transposed
 * product: C^T = B^T A^T. Of up to three batch axes the last is cuBLASLt's
 * strided batch, the others are calls one after another.                     */
#include <string.h>

#include "runtime.h"

enum { R32F = 0, R64F = 1, R16BF = 14, COMPUTE32F = 68, COMPUTE64F = 70 };
enum { TRANSA = 3, TRANSB = 4, BATCHCOUNT = 5, BATCHOFFSET = 6, MAXWORK = 1 };
enum { GDT, GDTC, GM, GN, GK, GLDA, GLDB, GLDC, GTA, GTB, GACC, GBATCH };

typedef struct Found {            /* cublasLtMatmulHeuristicResult_t          */
    uint64_t algo[8];
    size_t work;
    int state;
    float waves;
    int reserved[4];
} Found;

struct Lt {
    Arena *mem;
    void *handle;
    uint64_t work;                /* LTWORK bytes                             */
};

struct LtCall {
    void *desc, *A, *B, *C;       /* of cuBLASLt: A is the step's B           */
    Found found;
    int f64;
    double beta;
    const uint64_t *buf;          /* the step's A B C                         */
    int64_t n[2], stride[2][3];   /* outer batch axes, bytes                  */
};

static void ok(int status, const char *what)
{
    if (status)
        err(NULL, "cuBLASLt: %s fails with status %d", what, status);
}

static int type_of(int64_t dt)
{
    return dt == Df64 ? R64F : dt == Dbf16 ? R16BF : R32F;
}

static void set(void *layout, int attr, int64_t v, int wide)
{
    int32_t small = (int32_t)v;

    ok(dl.cublasLtMatrixLayoutSetAttribute(layout, attr,
                                           wide ? (void *)&v : (void *)&small,
                                           wide ? sizeof v : sizeof small),
       "a layout");
}

/* Row-major rows x cols with leading dimension ld, seen as its transpose.    */
static void *matrix(int64_t dt, int64_t rows, int64_t cols, int64_t ld,
                    int64_t batch, int64_t stride)
{
    void *m = NULL;

    ok(dl.cublasLtMatrixLayoutCreate(&m, type_of(dt), (uint64_t)cols,
                                     (uint64_t)rows, ld), "a layout");
    if (batch > 1) {
        set(m, BATCHCOUNT, batch, 0);
        set(m, BATCHOFFSET, stride, 1);
    }
    return m;
}

static void choose(Lt *l, LtCall *c)
{
    size_t most = LTWORK;
    void *pref = NULL;
    int found = 0;

    ok(dl.cublasLtMatmulPreferenceCreate(&pref), "a preference");
    ok(dl.cublasLtMatmulPreferenceSetAttribute(pref, MAXWORK, &most,
                                               sizeof most), "a preference");
    ok(dl.cublasLtMatmulAlgoGetHeuristic(l->handle, c->desc, c->A, c->B, c->C,
                                         c->C, pref, 1, &c->found, &found),
       "choosing an algorithm");
    if (!found)
        err(NULL, "cuBLASLt has no algorithm for a product of this plan");
}

LtCall *lt_bind(Lt *l, const int64_t *iv, int nint, const uint64_t *buf)
{
    LtCall *c = alloc(l->mem, sizeof *c);
    int nb = (nint - GBATCH) / 4, last = GBATCH + 4 * (nb - 1);
    int64_t batch = nb ? iv[last] : 1, s[3] = {0};
    int turnA = iv[GTB] != 0, turnB = iv[GTA] != 0;

    c->buf = buf;
    for (int i = 0; i < 3 && nb; i++)
        s[i] = iv[last + 1 + i];
    c->n[0] = c->n[1] = 1;
    for (int k = 0; k < nb - 1; k++) {
        c->n[k] = iv[GBATCH + 4 * k];
        for (int i = 0; i < 3; i++)
            c->stride[k][i] = iv[GBATCH + 4 * k + 1 + i] *
                              dtypes[iv[i < 2 ? GDT : GDTC]].bytes;
    }
    c->f64 = iv[GDTC] == Df64;
    c->beta = iv[GACC] ? 1 : 0;
    ok(dl.cublasLtMatmulDescCreate(&c->desc, c->f64 ? COMPUTE64F : COMPUTE32F,
                                   c->f64 ? R64F : R32F), "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSA, &turnA, 4),
       "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSB, &turnB, 4),
       "a description");
    c->A = matrix(iv[GDT], iv[GTB] ? iv[GN] : iv[GK],
                  iv[GTB] ? iv[GK] : iv[GN], iv[GLDB], batch, s[1]);
    c->B = matrix(iv[GDT], iv[GTA] ? iv[GK] : iv[GM],
                  iv[GTA] ? iv[GM] : iv[GK], iv[GLDA], batch, s[0]);
    c->C = matrix(iv[GDTC], iv[GM], iv[GN], iv[GLDC], batch, s[2]);
    choose(l, c);
    return c;
}

static void call(Lt *l, const LtCall *c, const int64_t off[3], void *stream)
{
    float one = 1, beta = (float)c->beta;
    double one64 = 1;
    void *p[3];

    for (int i = 0; i < 3; i++)
        p[i] = (void *)(uintptr_t)(c->buf[i] + (uint64_t)off[i]);
    ok(dl.cublasLtMatmul(l->handle, c->desc,
                         c->f64 ? (void *)&one64 : (void *)&one, p[1], c->A,
                         p[0], c->B, c->f64 ? (const void *)&c->beta : &beta,
                         p[2], c->C, p[2], c->C, c->found.algo,
                         (void *)(uintptr_t)l->work, LTWORK, stream),
       "a product");
}

void lt_run(Lt *l, const LtCall *c, void *stream)
{
    for (int64_t i = 0; i < c->n[0]; i++)
        for (int64_t j = 0; j < c->n[1]; j++) {
            int64_t off[3];
            for (int k = 0; k < 3; k++)
                off[k] = i * c->stride[0][k] + j * c->stride[1][k];
            call(l, c, off, stream);
        }
}

Lt *lt_open(Arena *a, uint64_t work)
{
    Lt *l = alloc(a, sizeof *l);

    if (!dl_open(LIBcublaslt))
        err(NULL, "products on a GPU need cuBLASLt: %s", dl_why(LIBcublaslt));
    *l = (Lt){.mem = a, .work = work};
    ok(dl.cublasLtCreate(&l->handle), "starting");
    return l;
}
