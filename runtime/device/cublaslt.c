/* cublaslt.c: dense products on a GPU through cuBLASLt. Instructions speak
 * of row-major matrices and cuBLASLt of column-major ones: it is asked for the
 * transposed product: C^T = B^T A^T. Of up to three batch axes the last is
 * cuBLASLt's strided batch, the others are calls one after another.
 *
 * Products of one shape share one algorithm: the first that cuBLASLt proposes
 * until tune.c sets another. Split sums are added in the compute type: a result
 * is rounded once. */
#include <string.h>

#include "gpu.h"

enum { R32F = 0, R64F = 1, R16BF = 14, COMPUTE32F = 68, COMPUTE64F = 70 };
enum { TRANSA = 3, TRANSB = 4, BATCHCOUNT = 5, BATCHOFFSET = 6 };
enum { MAXWORK = 1, SPLITSUMS = 3, ALIGNA = 5, INCOMPUTETYPE = 2 };
enum { CANDIDATES = 8, ALIGNED = 256, REPEATS = 3 };

typedef struct LtHeuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algo[8];
    size_t work;
    int state;
    float waves;
    int reserved[4];
} LtHeuristic;

struct Lt {
    Arena *mem;
    void *handle;
    uint64_t work;   /* LTWORK bytes */
    LtShape **shape; /* vec */
};

struct LtCall {
    void *desc, *A, *B, *C; /* of cuBLASLt: A is the instruction's B */
    LtShape *shape;
    int f64;
    double beta;
    void *const *buf;           /* a b c */
    int64_t n[2], stride[2][3]; /* outer batch axes, bytes */
};

static void ok(int status, const char *what)
{
    if (!status)
        return;
    gpu_fault(0);
    err(NULL, "cuBLASLt: %s fails with status %d", what, status);
}

static int type_of(Dtype dt)
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

/* Row-major rows x cols with leading dimension ld, seen as its transpose. */
static void *matrix(Dtype dt, int64_t rows, int64_t cols, int64_t ld,
                    int64_t batch, int64_t stride)
{
    void *m = NULL;

    ok(dl.cublasLtMatrixLayoutCreate(&m, type_of(dt), (uint64_t)cols,
                                     (uint64_t)rows, ld),
       "a layout");
    if (batch > 1) {
        set(m, BATCHCOUNT, batch, 0);
        set(m, BATCHOFFSET, stride, 1);
    }
    return m;
}

/* ---- shapes -------------------------------------------------------------- */

/* Of operand i over all calls, in bytes. */
static int alignment(const LtCall *c, int i)
{
    uint64_t bits = (uint64_t)(uintptr_t)c->buf[i] | ALIGNED;

    for (int k = 0; k < 2; k++)
        bits |= c->n[k] > 1 ? (uint64_t)c->stride[k][i] : 0;
    return (int)(bits & -bits);
}

/* "1,0,4096,...,256": what an algorithm depends on. */
static char *key_of(const Lt *l, const LtCall *c, const GemmArgs *g)
{
    Text t = { .arena = l->mem };
    const BatchLoop *last = g->batch.n ? &g->batch.at[g->batch.n - 1] : NULL;

    put(&t, "%d,%d,%lld,%lld,%lld,%lld,%lld,%lld,%d,%d,%d,", g->in, g->out,
        (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->lda,
        (long long)g->ldb, (long long)g->ldc, g->ta, g->tb, g->beta);
    if (last)
        put(&t, "%lld,%lld,%lld,%lld,", (long long)last->n, (long long)last->a,
            (long long)last->b, (long long)last->c);
    for (int i = 0; i < 3; i++)
        put(&t, "%d%s", alignment(c, i), i < 2 ? "," : "");
    return t.s;
}

static int propose(Lt *l, const LtCall *c, LtHeuristic *f)
{
    size_t most = LTWORK;
    uint32_t sums = INCOMPUTETYPE;
    void *pref = NULL;
    int found = 0;

    ok(dl.cublasLtMatmulPreferenceCreate(&pref), "a preference");
    ok(dl.cublasLtMatmulPreferenceSetAttribute(pref, MAXWORK, &most,
                                               sizeof most),
       "a preference");
    ok(dl.cublasLtMatmulPreferenceSetAttribute(pref, SPLITSUMS, &sums,
                                               sizeof sums),
       "a preference");
    for (int i = 0; i < 4; i++) { /* cuBLASLt's A B C D */
        static const int operand[] = { 1, 0, 2, 2 };
        uint32_t n = (uint32_t)alignment(c, operand[i]);
        ok(dl.cublasLtMatmulPreferenceSetAttribute(pref, ALIGNA + i, &n,
                                                   sizeof n),
           "a preference");
    }
    ok(dl.cublasLtMatmulAlgoGetHeuristic(l->handle, c->desc, c->A, c->B, c->C,
                                         c->C, pref, CANDIDATES, f, &found),
       "choosing an algorithm");
    dl.cublasLtMatmulPreferenceDestroy(pref);
    return found;
}

static LtShape *shape_of(Lt *l, LtCall *c, const GemmArgs *g)
{
    const char *key = intern(key_of(l, c, g));
    LtHeuristic f[CANDIDATES];

    for (size_t i = 0; i < vec_len(l->shape); i++)
        if (l->shape[i]->key == key)
            return l->shape[i];
    LtShape *s = alloc(l->mem, sizeof *s);
    *s = (LtShape){ .key = key, .call = c };
    if (!propose(l, c, f))
        err(NULL, "cuBLASLt has no algorithm for a product of this plan");
    memcpy(s->algo, f[0].algo, sizeof s->algo);
    vec_push(l->mem, l->shape, s);
    return s;
}

/* ---- binding ------------------------------------------------------------- */

/* All batch axes but the last: calls one after another. */
static void bind_outer(LtCall *c, const GemmArgs *g)
{
    int64_t in = dtypes[g->in].bytes, out = dtypes[g->out].bytes;

    c->n[0] = c->n[1] = 1;
    for (int k = 0; k < g->batch.n - 1; k++) {
        const BatchLoop *b = &g->batch.at[k];
        c->n[k] = b->n;
        c->stride[k][0] = b->a * in;
        c->stride[k][1] = b->b * in;
        c->stride[k][2] = b->c * out;
    }
}

LtCall *lt_bind(Lt *l, const GemmArgs *g, void *const *buf)
{
    LtCall *c = alloc(l->mem, sizeof *c);
    BatchLoop b =
        g->batch.n ? g->batch.at[g->batch.n - 1] : (BatchLoop){ .n = 1 };
    int turnA = g->tb, turnB = g->ta;

    c->buf = buf;
    bind_outer(c, g);
    c->f64 = g->out == Df64;
    c->beta = g->beta;
    ok(dl.cublasLtMatmulDescCreate(&c->desc, c->f64 ? COMPUTE64F : COMPUTE32F,
                                   c->f64 ? R64F : R32F),
       "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSA, &turnA, 4),
       "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSB, &turnB, 4),
       "a description");
    c->A = matrix(g->in, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb, b.n,
                  b.b);
    c->B = matrix(g->in, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda, b.n,
                  b.a);
    c->C = matrix(g->out, g->m, g->n, g->ldc, b.n, b.c);
    c->shape = shape_of(l, c, g);
    return c;
}

static int call(Lt *l, const LtCall *c, const uint64_t *algo,
                const int64_t off[3], void *stream)
{
    float one = 1, beta = (float)c->beta;
    double one64 = 1;
    void *p[3];

    for (int i = 0; i < 3; i++)
        p[i] = (uint8_t *)c->buf[i] + off[i];
    return dl.cublasLtMatmul(
        l->handle, c->desc, c->f64 ? (void *)&one64 : (void *)&one, p[1], c->A,
        p[0], c->B, c->f64 ? (const void *)&c->beta : &beta, p[2], c->C, p[2],
        c->C, algo, (void *)(uintptr_t)l->work, LTWORK, stream);
}

void lt_run(Lt *l, const LtCall *c, void *stream)
{
    for (int64_t i = 0; i < c->n[0]; i++)
        for (int64_t j = 0; j < c->n[1]; j++) {
            int64_t off[3];
            for (int k = 0; k < 3; k++)
                off[k] = i * c->stride[0][k] + j * c->stride[1][k];
            ok(call(l, c, c->shape->algo, off, stream), "a product");
        }
}

/* ---- which algorithm ----------------------------------------------------- */

LtShape **lt_shapes(const Lt *l)
{
    return l->shape;
}

int lt_accepts(const Lt *l, const LtShape *s, const uint64_t *algo)
{
    const LtCall *c = s->call;
    LtHeuristic f = { 0 };

    return !dl.cublasLtMatmulAlgoCheck(l->handle, c->desc, c->A, c->B, c->C,
                                       c->C, algo, &f) &&
           f.work <= LTWORK;
}

/* Milliseconds of one product; < 0: it does not run. */
static float time_of(Lt *l, const LtCall *c, const uint64_t *algo, int times,
                     void *stream, void *const event[2])
{
    static const int64_t first[3];
    float ms = 0;
    int bad = 0;

    dl.cuEventRecord(event[0], stream);
    for (int i = 0; i < times && !bad; i++)
        bad = call(l, c, algo, first, stream);
    dl.cuEventRecord(event[1], stream);
    gpu_ok(dl.cuEventSynchronize(event[1]), "timing a product");
    dl.cuEventElapsedTime(&ms, event[0], event[1]);
    return bad ? -1 : ms / (float)times;
}

/* Those that are far behind once are not timed again; of equals the one that
 * was proposed first. */
void lt_measure(Lt *l, LtShape *s, void *stream, void *const event[2])
{
    LtHeuristic f[CANDIDATES];
    int n = propose(l, s->call, f);
    float best = 0;

    for (int i = 0; i < n; i++) {
        float ms = time_of(l, s->call, f[i].algo, 1, stream, event);
        if (ms >= 0 && (!best || ms < 2 * best))
            ms = time_of(l, s->call, f[i].algo, REPEATS, stream, event);
        if (ms < 0 || (best && ms > 0.99f * best))
            continue;
        best = ms;
        memcpy(s->algo, f[i].algo, sizeof s->algo);
    }
    s->ms = best;
}

Lt *lt_open(Arena *a, uint64_t work)
{
    Lt *l = alloc(a, sizeof *l);

    if (!dl_open(LIBcublaslt))
        err(NULL, "products on a GPU need cuBLASLt: %s", dl_why(LIBcublaslt));
    *l = (Lt){ .mem = a, .work = work };
    ok(dl.cublasLtCreate(&l->handle), "starting");
    return l;
}
