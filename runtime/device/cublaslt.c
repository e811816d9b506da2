/* cublaslt.c: dense products on a GPU by cuBLASLt. Matrices of instructions are
 * row-major and those of cuBLASLt column-major, so it computes the transposed
 * product: C^T = B^T A^T. The last of up to three batch axes is cuBLASLt's
 * strided batch; the others are consecutive calls.
 *
 * Products of one shape share one algorithm: the first that cuBLASLt proposes,
 * until tune.c sets another. Split sums are added in the compute type, so a
 * result is rounded once. */
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
    void *desc, *A, *B,
        *C; /* cuBLASLt's descriptors: A is the instruction's B */
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

/* Returns the layout of a row-major [rows cols] matrix with leading dimension
 * ld, as its column-major transpose. */
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

/* Returns operand i's alignment in bytes over all calls. */
static int alignment(const LtCall *call, int i)
{
    uint64_t bits = (uint64_t)(uintptr_t)call->buf[i] | ALIGNED;

    for (int k = 0; k < 2; k++)
        bits |= call->n[k] > 1 ? (uint64_t)call->stride[k][i] : 0;
    return (int)(bits & -bits);
}

/* Returns "1,0,4096,...,256": the numbers on which an algorithm depends. */
static char *key_of(const Lt *lt, const LtCall *call, const GemmArgs *args)
{
    Text t = { .arena = lt->mem };
    const BatchLoop *last =
        args->batch.n ? &args->batch.at[args->batch.n - 1] : NULL;

    put(&t, "%d,%d,%ld,%ld,%ld,%ld,%ld,%ld,%d,%d,%d,", args->in, args->out,
        args->m, args->n, args->k, args->lda, args->ldb, args->ldc, args->ta,
        args->tb, args->beta);
    if (last)
        put(&t, "%ld,%ld,%ld,%ld,", last->n, last->a, last->b, last->c);
    for (int i = 0; i < 3; i++)
        put(&t, "%d%s", alignment(call, i), i < 2 ? "," : "");
    return t.s;
}

/* Asks for algorithms. Returns their number. The first proposals of a process
 * take 0.14 s; without them the first product would. */
static int propose(Lt *lt, const LtCall *call, LtHeuristic *heuristic)
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
        uint32_t n = (uint32_t)alignment(call, operand[i]);
        ok(dl.cublasLtMatmulPreferenceSetAttribute(pref, ALIGNA + i, &n,
                                                   sizeof n),
           "a preference");
    }
    ok(dl.cublasLtMatmulAlgoGetHeuristic(lt->handle, call->desc, call->A,
                                         call->B, call->C, call->C, pref,
                                         CANDIDATES, heuristic, &found),
       "choosing an algorithm");
    dl.cublasLtMatmulPreferenceDestroy(pref);
    return found;
}

static LtShape *shape_of(Lt *lt, LtCall *call, const GemmArgs *args)
{
    const char *key = intern(key_of(lt, call, args));
    LtHeuristic f[CANDIDATES];

    for (size_t i = 0; i < vec_len(lt->shape); i++)
        if (lt->shape[i]->key == key)
            return lt->shape[i];
    LtShape *s = alloc(lt->mem, sizeof *s);
    *s = (LtShape){ .key = key, .call = call };
    if (!propose(lt, call, f))
        err(NULL, "cuBLASLt has no algorithm for a product of this plan");
    memcpy(s->algo, f[0].algo, sizeof s->algo);
    vec_push(lt->mem, lt->shape, s);
    return s;
}

/* ---- binding ------------------------------------------------------------- */

/* Binds all batch axes but the last as consecutive calls. */
static void bind_outer(LtCall *call, const GemmArgs *args)
{
    int64_t in = dtypes[args->in].bytes, out = dtypes[args->out].bytes;

    call->n[0] = call->n[1] = 1;
    for (int k = 0; k < args->batch.n - 1; k++) {
        const BatchLoop *loop = &args->batch.at[k];
        call->n[k] = loop->n;
        call->stride[k][0] = loop->a * in;
        call->stride[k][1] = loop->b * in;
        call->stride[k][2] = loop->c * out;
    }
}

LtCall *lt_bind(Lt *lt, const GemmArgs *args, void *const *buf)
{
    LtCall *c = alloc(lt->mem, sizeof *c);
    BatchLoop b = args->batch.n ? args->batch.at[args->batch.n - 1]
                                : (BatchLoop){ .n = 1 };
    int turnA = args->tb, turnB = args->ta;

    c->buf = buf;
    bind_outer(c, args);
    c->f64 = args->out == Df64;
    c->beta = args->beta;
    ok(dl.cublasLtMatmulDescCreate(&c->desc, c->f64 ? COMPUTE64F : COMPUTE32F,
                                   c->f64 ? R64F : R32F),
       "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSA, &turnA, 4),
       "a description");
    ok(dl.cublasLtMatmulDescSetAttribute(c->desc, TRANSB, &turnB, 4),
       "a description");
    c->A = matrix(args->in, args->tb ? args->n : args->k,
                  args->tb ? args->k : args->n, args->ldb, b.n, b.b);
    c->B = matrix(args->in, args->ta ? args->k : args->m,
                  args->ta ? args->m : args->k, args->lda, b.n, b.a);
    c->C = matrix(args->out, args->m, args->n, args->ldc, b.n, b.c);
    c->shape = shape_of(lt, c, args);
    return c;
}

static int call(Lt *lt, const LtCall *lt_call, const uint64_t *algo,
                double beta64, const int64_t off[3], void *stream)
{
    float one = 1, beta = (float)beta64;
    double one64 = 1;
    void *p[3];

    for (int i = 0; i < 3; i++)
        p[i] = (uint8_t *)lt_call->buf[i] + off[i];
    return dl.cublasLtMatmul(
        lt->handle, lt_call->desc, lt_call->f64 ? (void *)&one64 : (void *)&one,
        p[1], lt_call->A, p[0], lt_call->B,
        lt_call->f64 ? (void *)&beta64 : (void *)&beta, p[2], lt_call->C, p[2],
        lt_call->C, algo, (void *)(uintptr_t)lt->work, LTWORK, stream);
}

void lt_run(Lt *lt, const LtCall *lt_call, double beta, void *stream)
{
    for (int64_t i = 0; i < lt_call->n[0]; i++)
        for (int64_t j = 0; j < lt_call->n[1]; j++) {
            int64_t off[3];
            for (int k = 0; k < 3; k++)
                off[k] = i * lt_call->stride[0][k] + j * lt_call->stride[1][k];
            ok(call(lt, lt_call, lt_call->shape->algo, beta, off, stream),
               "a product");
        }
}

/* ---- choice of an algorithm ---------------------------------------------- */

LtShape **lt_shapes(const Lt *lt)
{
    return lt->shape;
}

int lt_accepts(const Lt *lt, const LtShape *shape, const uint64_t *algo)
{
    const LtCall *call = shape->call;
    LtHeuristic f = { 0 };

    return !dl.cublasLtMatmulAlgoCheck(lt->handle, call->desc, call->A, call->B,
                                       call->C, call->C, algo, &f) &&
           f.work <= LTWORK;
}

/* Returns the milliseconds of one product; < 0: it does not run. */
static float time_of(Lt *lt, const LtCall *lt_call, const uint64_t *algo,
                     int times, void *stream, void *const event[2])
{
    static const int64_t first[3];
    float ms = 0;
    int bad = 0;

    dl.cuEventRecord(event[0], stream);
    for (int i = 0; i < times && !bad; i++)
        bad = call(lt, lt_call, algo, lt_call->beta, first, stream);
    dl.cuEventRecord(event[1], stream);
    gpu_ok(dl.cuEventSynchronize(event[1]), "timing a product");
    dl.cuEventElapsedTime(&ms, event[0], event[1]);
    return bad ? -1 : ms / (float)times;
}

/* Algorithms that are much slower in the first timing are not timed again;
 * among equals the one proposed first wins. */
void lt_measure(Lt *lt, LtShape *shape, void *stream, void *const event[2])
{
    LtHeuristic f[CANDIDATES];
    int n = propose(lt, shape->call, f);
    float best = 0;

    for (int i = 0; i < n; i++) {
        float ms = time_of(lt, shape->call, f[i].algo, 1, stream, event);
        if (ms >= 0 && (!best || ms < 2 * best))
            ms = time_of(lt, shape->call, f[i].algo, REPEATS, stream, event);
        if (ms < 0 || (best && ms > 0.99f * best))
            continue;
        best = ms;
        memcpy(shape->algo, f[i].algo, sizeof shape->algo);
    }
    shape->ms = best;
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
