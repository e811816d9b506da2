/* parts_test: the runtime's parts against plain loops. Threads cover every
 * range once, processes every call; products equal naive ones and do not depend
 * on threads; collectives put every element where instructions.def says;
 * pieces, data order and files. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tinyplan.h"
#include "tensors.h"

static uint64_t seed = 1;

static double noise(void)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(int64_t)(seed >> 33) / 0x1p30 - 1;
}

static int below(int n)
{
    noise();
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- threads ------------------------------------------------------------- */

typedef struct Hits {
    atomic_int *n;
} Hits;

static void hit(void *ctx, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        ((Hits *)ctx)->n[i]++;
}

static void test_pool_covers_once(void **state)
{
    static atomic_int n[5000];
    Hits h = { n };

    (void)state;
    for (int threads = 1; threads <= 5; threads += 2) {
        Pool *p = pool_open(threads);
        for (int job = 0; job < 3000; job++) {
            int64_t items = below(job % 7 ? 40 : 5000);
            pool_run(p, hit, &h, items, 1 + below(9));
            for (int64_t i = 0; i < items; i++)
                if (atomic_exchange(&n[i], 0) != 1)
                    fail_msg("item %d of %d", (int)i, (int)items);
        }
        pool_close(p);
    }
}

/* ---- processes ----------------------------------------------------------- */

enum { CALLS = 200, DIES = 60 };

static void mark(void *ctx, int64_t i)
{
    atomic_int *n = ctx;

    n[i]++;
    if (i == DIES)
        _exit(1);
}

/* Each call is made once, and those behind one whose process dies too. */
static void test_workers_cover_once(void **state)
{
    size_t bytes = CALLS * sizeof(atomic_int);
    atomic_int *n = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_true(n != MAP_FAILED);
    for (int processes = 2; processes <= 5; processes++) {
        workers_join(workers_start(processes, mark, n, CALLS));
        for (int i = 0; i < CALLS; i++)
            assert_int_equal(atomic_exchange(&n[i], 0), 1);
    }
    munmap(n, bytes);
}

static void hang(void *ctx, int64_t i)
{
    (void)ctx, (void)i;
    pause();
}

/* A process that exits leaves none: this one would become their parent. */
static void test_workers_end_at_exit(void **state)
{
    int status;

    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        workers_start(2, hang, NULL, 2);
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

/* ---- products ------------------------------------------------------------ */

enum { BIG = 1 << 16 };

typedef struct Operand {
    void *p;
    Dtype dt;
} Operand;

static Operand operand(Dtype dt, int64_t n, double scale)
{
    Operand o = { alloc(forever, (size_t)(n * dtypes[dt].bytes)), dt };

    for (int64_t i = 0; i < n; i++)
        elem_set(dt, o.p, i, scale * noise());
    return o;
}

static double get(Operand o, int64_t i)
{
    return elem_get(o.dt, o.p, i);
}

/* What a result may differ by: K additions in the accumulator's precision. */
static double slack(Dtype out, int64_t k, double value)
{
    double u = out == Df64 ? 0x1p-52 : 0x1p-23;
    double last = out == Dbf16 ? 0x1p-8 * fabs(value) : 0;

    return last + 4 * u * (double)k;
}

/* Returns the largest error over what is allowed. */
static double check_gemm(Blas *b, const GemmArgs *g, Operand A, Operand B,
                         Operand C, const double *before)
{
    double worst = 0;
    const BatchLoop *x = g->batch.at;
    const Instr s = { .kind = Igemm, .gemm = *g };
    void *buf[4] = { A.p, B.p, C.p, NULL };

    blas_run(b, &s, buf, alloc(forever, (size_t)instr_work(&s, 1) + 8));
    for (int64_t t = 0; t < x->n; t++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                int64_t at = t * x->c + i * g->ldc + j;
                double y = g->beta ? before[at] : 0;
                for (int64_t k = 0; k < g->k; k++) {
                    int64_t a = g->ta ? k * g->lda + i : i * g->lda + k;
                    int64_t c = g->tb ? j * g->ldb + k : k * g->ldb + j;
                    y += get(A, a + t * x->a) * get(B, c + t * x->b);
                }
                worst = fmax(worst,
                             fabs(get(C, at) - y) / slack(C.dt, g->k + 1, y));
            }
    return worst;
}

static void test_gemm(void **state)
{
    static const Dtype types[][2] = { { Df32, Df32 },
                                      { Df64, Df64 },
                                      { Dbf16, Dbf16 },
                                      { Dbf16, Df32 },
                                      { Df32, Dbf16 } };
    Pool *p = pool_open(3);
    Blas *b = blas_open(forever, p);
    static double before[BIG];
    double worst = 0;

    (void)state;
    for (int round = 0; round < 200; round++) {
        int64_t M = 1 + below(40), N = 1 + below(40), K = below(30);
        int64_t ta = below(2), tb = below(2), acc = below(2), T = 1 + below(3);
        const Dtype *dt = types[below(5)];
        int64_t lda = (ta ? M : K) + below(3), ldb = (tb ? K : N) + below(3);
        int64_t ldc = N + below(3), sa = (ta ? K : M) * lda;
        int64_t sb = below(2) ? (tb ? N : K) * ldb : 0;
        BatchLoop loop = { T, sa, sb, M * ldc };
        GemmArgs g = { dt[0], dt[1], M,       N,       K,        lda,
                       ldb,   ldc,   (int)ta, (int)tb, (int)acc, { 1, &loop } };
        Operand A = operand(dt[0], T * sa + 1, 1);
        Operand B = operand(dt[0], T * (tb ? N : K) * ldb + 1, 1);
        Operand C = operand(dt[1], T * M * ldc, 1);
        for (int64_t i = 0; i < T * M * ldc; i++)
            before[i] = get(C, i);
        double w = check_gemm(b, &g, A, B, C, before);
        worst = w > worst ? w : worst;
    }
    print_message("# gemm: largest error %.2f of what is allowed\n", worst);
    assert_true(worst < 1);
    pool_close(p);
}

/* A product large enough to be cut: the same bits on 1, 2 and 5 threads. */
static void test_gemm_ignores_threads(void **state)
{
    enum { M = 700, N = 300, K = 200 };
    const Instr s = { .kind = Igemm,
                      .gemm = { .in = Df32,
                                .out = Df32,
                                .m = M,
                                .n = N,
                                .k = K,
                                .lda = K,
                                .ldb = N,
                                .ldc = N } };
    Operand A = operand(Df32, M * K, 1), B = operand(Df32, K * N, 1), C[3];
    static const int threads[] = { 1, 2, 5 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        Pool *p = pool_open(threads[i]);
        C[i] = operand(Df32, M * N, 1);
        void *buf[4] = { A.p, B.p, C[i].p, NULL };
        blas_run(blas_open(forever, p), &s, buf, NULL);
        pool_close(p);
    }
    assert_memory_equal(C[0].p, C[1].p, M * N * 4);
    assert_memory_equal(C[0].p, C[2].p, M * N * 4);
}

enum { E = 5, CAP = 64 };

static double grouped_value(const int32_t *off, int64_t e, int64_t i, int64_t j,
                            Operand a, Operand b, const GmmArgs *g, int rows)
{
    int64_t K = g->k, N = g->n;
    double y = 0;

    for (int64_t k = 0; k < K && rows; k++)
        y += get(a, i * K + k) *
             get(b, e * g->stride + (g->tw ? j * g->ldw + k : k * g->ldw + j));
    for (int64_t r = off[e]; r < off[e + 1] && !rows; r++)
        y += get(a, r * K + i) * get(b, r * N + j);
    return y;
}

/* Every element of out (rows) or dW against the sum it should be; the rest as
 * before. The largest error over what is allowed. */
static double check_grouped(InstrKind kind, const int32_t *off, Operand a,
                            Operand b, Operand out, const double *before,
                            const GmmArgs *g)
{
    int rows = kind == Igmm;
    double worst = 0;

    for (int64_t e = 0; e < E; e++)
        for (int64_t i = rows ? off[e] : 0, end = rows ? off[e + 1] : g->k;
             i < end; i++)
            for (int64_t j = 0; j < g->n; j++) {
                int64_t at = rows    ? i * g->n + j
                             : g->tw ? e * g->stride + j * g->ldw + i
                                     : e * g->stride + i * g->ldw + j;
                double y = grouped_value(off, e, i, j, a, b, g, rows) +
                           (g->beta ? before[at] : 0);
                worst =
                    fmax(worst, fabs(get(out, at) - y) / slack(out.dt, CAP, y));
            }
    for (int64_t i = off[E] * g->n; i < CAP * g->n && rows; i++)
        assert_true(get(out, i) == before[i]);
    return worst;
}

static void test_grouped(void **state)
{
    /* clang-format off */
    static const int32_t offs[][E + 1] = {
        { 0, 10, 10, 31, 40, 40 },
        { 0, 0, 0, 0, 0, 0 },
        { 0, 64, 64, 64, 64, 64 },
        { 0, 0, 1, 2, 2, 64 },
    };
    /* clang-format on */
    static const Dtype types[][2] = {
        { Df32, Df32 }, { Df64, Df64 }, { Dbf16, Dbf16 }, { Dbf16, Df32 }
    };
    static double before[BIG];
    Pool *p = pool_open(3);
    Blas *bl = blas_open(forever, p);
    double worst = 0;

    (void)state;
    for (int round = 0; round < 128; round++) {
        const Dtype *dt = types[round % 4];
        InstrKind kind = round & 4 ? Igmm_wgrad : Igmm;
        int64_t K = 1 + below(20), N = 1 + below(20), tw = below(2);
        int64_t ldw = (tw ? K : N) + below(2), stride = (tw ? N : K) * ldw;
        Instr s = { .kind = kind,
                    .gmm = { dt[0], dt[1], E, K, N, ldw, (int)tw, stride,
                             (int)below(2), CAP, 0 } };
        int32_t map[E + 1];
        memcpy(map, offs[below(4)], sizeof map);
        Operand a = operand(dt[0], CAP * K, 1);
        Operand b = operand(dt[0], kind == Igmm ? E * stride : CAP * N, 1);
        int64_t n = kind == Igmm ? CAP * N : E * stride;
        Operand out = operand(dt[1], n, 1);
        for (int64_t i = 0; i < n; i++)
            before[i] = get(out, i);
        void *buf[5] = { a.p, b.p, out.p, map, NULL };
        blas_run(bl, &s, buf, alloc(forever, (size_t)instr_work(&s, 1) + 8));
        double w = check_grouped(kind, map, a, b, out, before, &s.gmm);
        worst = w > worst ? w : worst;
    }
    print_message("# gmm: largest error %.2f of what is allowed\n", worst);
    assert_true(worst < 1);
    pool_close(p);
}

/* ---- collectives: instructions.def, element by element ------------------- */

enum { G = 3, LEN = 4096 };

static float sent[G][LEN], got[G][LEN];

static void collect(const Instr *s)
{
    static const int64_t ranks[] = { 0, 1, 2 };
    Part part[G];
    Pool *p = pool_open(2);
    Comm *c = comm_open(forever, G);

    for (int r = 0; r < G; r++) {
        part[r] = (Part){ .send = sent[r], .recv = got[r] };
        for (int i = 0; i < LEN; i++) {
            sent[r][i] = (float)(r * LEN + i);
            got[r][i] = -1;
        }
    }
    comm_run(c, p,
             &(Coll){ .instr = s, .size = G, .ranks = ranks, .part = part });
    pool_close(p);
}

static void test_allgather(void **state)
{
    const Instr s = { .kind = Iallgather, .allgather = { Df32, 5, 7, 0, 0 } };

    (void)state;
    collect(&s);
    for (int me = 0; me < G; me++)
        for (int o = 0; o < 5; o++)
            for (int r = 0; r < G; r++)
                for (int i = 0; i < 7; i++)
                    assert_true(got[me][(o * G + r) * 7 + i] ==
                                sent[r][o * 7 + i]);
    assert_true(got[0][5 * G * 7] == -1);
}

static void test_reductions(void **state)
{
    (void)state;
    for (Reduce op = Radd; op <= Rmin; op++) {
        const Instr rs = { .kind = Ireducescatter,
                           .reducescatter = { Df32, 5, 7, op, 0, 0 } };
        const Instr ar = { .kind = Iallreduce, .allreduce = { Df32, 300, op } };
        collect(&rs);
        for (int me = 0; me < G; me++)
            for (int o = 0; o < 5; o++)
                for (int i = 0; i < 7; i++) {
                    int at = (o * G + me) * 7 + i;
                    float sum = sent[0][at] + sent[1][at] + sent[2][at];
                    assert_true(got[me][o * 7 + i] ==
                                (op ? sent[op == Rmax ? 2 : 0][at] : sum));
                }
        collect(&ar);
        for (int me = 0; me < G; me++)
            for (int i = 0; i < 300; i++) {
                float sum = sent[0][i] + sent[1][i] + sent[2][i];
                assert_true(got[me][i] ==
                            (op ? sent[op == 1 ? 2 : 0][i] : sum));
            }
    }
}

static void test_alltoall(void **state)
{
    enum { O = 2, A = 6, MID = 3, B = 9, IN = 2, a = A / G, b = B / G };

    (void)state;
    for (int64_t swap = 0; swap < 2; swap++) {
        const Instr s = { .kind = Ialltoall,
                          .alltoall = { Df32, O, A, MID, B, IN, swap, 0, 0 } };
        collect(&s);
        for (int me = 0; me < G; me++)
            for (int i = 0; i < O * A * MID * b * IN; i++) {
                int in = i % IN, y = i / IN;
                int last = y % (swap ? A : b), m = y / (swap ? A : b) % MID;
                int first = y / (swap ? A : b) / MID % (swap ? b : A);
                int o = i / (A * MID * b * IN);
                int x = swap ? last : first, z = swap ? first : last;
                int from = x / a,
                    at = swap ? (((o * B + me * b + z) * MID + m) * a + x % a) *
                                        IN +
                                    in
                              : (((o * a + x % a) * MID + m) * B + me * b + z) *
                                        IN +
                                    in;
                assert_true(got[me][i] == sent[from][at]);
            }
    }
}

/* What NCCL is told to send and receive, one run after another. */
typedef struct Run {
    int64_t out, in, n;
} Run;
typedef struct Runs {
    Run run[LEN];
    int n;
} Runs;

static void add_run(void *ctx, int64_t out, int64_t in, int64_t n)
{
    Runs *r = ctx;

    r->run[r->n++] = (Run){ out, in, n };
}

/* The k-th run that one rank sends another goes where that one says its k-th
 * from the first does: then all have what the collective gives. */
static void compare_runs(const Instr *s)
{
    static Runs to[G]; /* of any rank, by peer */
    static float by_runs[G][LEN];

    collect(s);
    for (int p = 0; p < G; p++) {
        to[p].n = 0;
        comm_runs(s, G, p, p, add_run, &to[p]);
    }
    for (int i = 0; i < G * LEN; i++)
        by_runs[i / LEN][i % LEN] = -1;
    for (int me = 0; me < G; me++)
        for (int p = 0; p < G; p++) {
            assert_int_equal(to[p].n, to[me].n);
            for (int k = 0; k < to[p].n; k++) {
                assert_int_equal(to[p].run[k].n, to[me].run[k].n);
                memcpy(by_runs[p] + to[me].run[k].in,
                       sent[me] + to[p].run[k].out,
                       (size_t)to[p].run[k].n * sizeof(float));
            }
        }
    assert_memory_equal(by_runs, got, sizeof got);
}

static void test_runs(void **state)
{
    Instr dense = { .kind = Iallgather, .allgather = { Df32, 5, 14, 0, 0 } };
    Instr halves = { .kind = Iallgather, .allgather = { Df32, 5, 14, 3, 1 } };

    (void)state;
    compare_runs(&dense);
    compare_runs(&halves);
    for (int swap = 0; swap < 2; swap++)
        for (int64_t zig = -3; zig <= 3; zig += 3) {
            Instr s = { .kind = Ialltoall,
                        .alltoall = { Df32, 2, 6, 3, 18, 2, swap, zig,
                                      zig ? 1 : 0 } };
            compare_runs(&s);
        }
}

/* ---- pieces -------------------------------------------------------------- */

typedef struct Seen {
    int n[400];
    int64_t last;
} Seen;

static void see(void *ctx, int64_t global, int64_t local, int64_t n)
{
    Seen *s = ctx;

    for (int64_t i = 0; i < n; i++) {
        s->n[global + i]++;
        assert_true(local + i > s->last);
        s->last = local + i;
    }
}

/* Zigzag along one axis, plain along another, padding at the end of it. */
static void test_pieces_cover(void **state)
{
    int64_t size[NMESH] = { [Mtp] = 2, [Mcp] = 2 };
    Mesh *m = mesh_new(forever, 8, size, "tp-cp-dp-pp", NULL);
    RankAffine up = aff(0), down = aff(9), part = aff(0);
    Seen s = { 0 };

    (void)state;
    up.k[1] = 3;
    down.k[1] = -3;
    part.k[0] = 3;
    Piece zig[] = { { up, 3 }, { down, 3 } }, half[] = { { part, 3 } };
    Piece all[] = { { aff(0), 4 } };
    Tensor t = { .kind = TKparam, .nd = 3, .dt = Df32 };
    t.dim[0] = (PlanDim){ "seq", ROLEseq, 12, 2, zig };
    t.dim[1] = (PlanDim){ "heads", ROLEheads, 5, 1, half };
    t.dim[2] = (PlanDim){ "dim", ROLEnone, 4, 1, all };
    assert_int_equal(tensor_held(&t), 72);
    for (int64_t r = 0; r < 8; r++) {
        s.last = -1;
        if (tensor_owner(m, &t, r))
            tensor_runs(m, &t, r, see, &s);
    }
    for (int i = 0; i < 240; i++)
        assert_int_equal(s.n[i], 1);
    assert_int_equal(tensor_at(m, &t.dim[0], 2, 4), 7);
}

/* ---- data ---------------------------------------------------------------- */

static void test_order_is_a_permutation(void **state)
{
    static const int64_t sizes[] = { 1, 2, 3, 7, 64, 1000, 4097 };
    static char seen[4097];

    (void)state;
    for (int k = 0; k < 7; k++) {
        int64_t fixed = 0;
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < sizes[k]; i++) {
            int64_t x = data_order(5, 2, i, sizes[k]);
            assert_true(x >= 0 && x < sizes[k] && !seen[x]);
            seen[x] = 1;
            fixed += x == i;
        }
        assert_true(sizes[k] < 64 || fixed < 12);
    }
    assert_int_not_equal(data_order(5, 2, 0, 1000), data_order(6, 2, 0, 1000));
    assert_int_not_equal(data_order(5, 2, 0, 1000), data_order(5, 3, 0, 1000));
}

/* ---- safetensors: what must be refused, and with which words ------------- */

static const char *try_file(const char *head, size_t data)
{
    char path[] = "/tmp/pleat-parts.XXXXXX", bytes[64] = { 0 };
    int fd = mkstemp(path);
    uint64_t n = strlen(head);
    StFile *f;

    assert_true(fd >= 0);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(n >> 8 * i);
    assert_true(write(fd, bytes, 8) == 8);
    assert_true(write(fd, head, n) == (ssize_t)n);
    memset(bytes, 0, sizeof bytes);
    assert_true(write(fd, bytes, data) == (ssize_t)data);
    close(fd);
    const char *why = st_open(forever, path, &f);
    unlink(path);
    if (!why)
        st_close(f);
    return why;
}

static void test_safetensors_refusals(void **state)
{
    /* clang-format off */
    static const struct { const char *head; size_t data; const char *why; }
    bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
         "outside the file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9,
         "bytes follow"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
         "does not fit its shape"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "dtype is not known"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
         "not made of sizes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
         "\"data_offsets\":[0,0]}}", 0, "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],"
         "\"data_offsets\":[0,0]}}", 0, "does not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
         "two tensors are named 'a'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
         "\"shape\":[1]}}", 4, "more than dtype"},
        {"{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         4, "no text without NUL"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "overlaps"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
         "hole"},
        {"[1,2]", 0, "not JSON"}, {"{\"a\":", 0, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8,
         "not a short list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
         "not two numbers"},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = try_file(bad[i].head, bad[i].data);
        if (!bad[i].why != !why || (why && !strstr(why, bad[i].why)))
            fail_msg("case %d: %s", (int)i, why ? why : "accepted");
    }
}

/* Numbers of every kind and width, also where they are not aligned. */
static void test_numbers(void **state)
{
    static const struct {
        char kind;
        int bytes;
        double x;
    } row[] = {
        { 'i', 8, -2 }, { 'u', 8, 18446744073709551616. },
        { 'i', 4, -2 }, { 'u', 4, 4294967294 },
        { 'i', 2, -2 }, { 'u', 2, 65534 },
        { 'i', 1, -2 }, { 'u', 1, 254 },
    };
    uint8_t minus_two[9] = { 0 };
    float f = -1.5f;
    double d = -0.1;

    (void)state;
    for (int i = 0; i < countof(row); i++) {
        memset(minus_two + 1, 255, 8);
        minus_two[1] = 254;
        assert_true(number_get(row[i].kind, row[i].bytes, minus_two + 1) ==
                    row[i].x);
    }
    memcpy(minus_two + 1, &f, 4);
    assert_true(number_get('f', 4, minus_two + 1) == -1.5);
    memcpy(minus_two + 1, &d, 8);
    assert_true(number_get('f', 8, minus_two + 1) == -0.1);
}

/* Bytes of a good header changed at random: accepted or refused, and if
 * accepted every tensor lies in the file. */
static void test_safetensors_mutations(void **state)
{
    static const char good[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]}}";
    char path[] = "/tmp/pleat-mutate.XXXXXX", bytes[sizeof good + 8 + 14];
    int fd = mkstemp(path), refused = 0;

    (void)state;
    for (int round = 0; round < 4000; round++) {
        StFile *f;
        memset(bytes, 0, sizeof bytes);
        bytes[0] = sizeof good - 1;
        memcpy(bytes + 8, good, sizeof good - 1);
        for (int k = below(4); k >= 0; k--)
            bytes[below(sizeof good + 7)] =
                below(3) ? "0123456789{}[],:\""[below(17)] : (char)below(256);
        size_t n = sizeof good - 1 + 8 + 14 - (size_t)below(2);
        assert_true(pwrite(fd, bytes, n, 0) == (ssize_t)n);
        assert_int_equal(ftruncate(fd, (off_t)n), 0);
        if (st_open(forever, path, &f)) {
            refused++;
            continue;
        }
        for (int i = 0; i < f->n; i++)
            assert_true(f->t[i].begin >= 0 &&
                        f->data + f->t[i].end <= f->map + f->size);
        st_close(f);
    }
    close(fd);
    unlink(path);
    assert_true(refused > 2000 && refused < 4000);
}

/* ---- Hugging Face names -------------------------------------------------- */

/* w[vocab next] split over two tensors of theirs, one with its axes turned and
 * at an offset: "(next|2)" and a fixed vocab row. */
static void test_hf_round_trip(void **state)
{
    Plan *p = tiny_plan(2, "");
    char dir[] = "/tmp/pleat-hf.XXXXXX";
    enum { V = TINYVOCAB };
    double w[V * V], back[V * V];

    (void)state;
    p->hf = alloc(forever, (V + 1) * sizeof *p->hf);
    for (int v = 0; v < V; v++) {
        HfMap *h = &p->hf[p->nhf++];
        h->hf = strf(forever, "rows.%d.weight", v / 2);
        h->param = "w";
        h->nfix = 1;
        h->fixaxis[0] = "vocab";
        h->fixat[0] = v;
        h->nd = 2;
        h->dim[0] = (HfDim){ 1, { { "next", V, 0, V } } };
        h->dim[1] = (HfDim){ 1, { { NULL, 2, v % 2, 1 } } };
    }
    Exec *x = exec_open(p, comm_open(forever, 2));
    for (int i = 0; i < V * V; i++)
        w[i] = bf16_to_f32(f32_to_bf16((float)noise()));
    exec_write(x, "w", w, V * V);
    exec_write(x, "optim.master.w", w, V * V);
    assert_non_null(mkdtemp(dir));
    char *ckpt = strf(forever, "%s/ckpt", dir);
    char *out = strf(forever, "%s/out", dir);
    assert_int_equal(ckpt_save(x, ckpt, &(State){ .step = 1 }), 0);
    assert_int_equal(convert_export(p, dir, out, FTnone, 0, 1 << 20), 0);
    exec_run(x, PGinit, NULL, NULL);
    ckpt_from(x, out);
    assert_int_equal(exec_read(x, "w", 0, back, V * V), V * V);
    assert_memory_equal(w, back, sizeof w);
    assert_int_equal(exec_read(x, "optim.master.w", 0, back, V * V), V * V);
    assert_memory_equal(w, back, sizeof w);
    StFile *f;
    assert_null(
        st_open(forever, strf(forever, "%s/model.safetensors", out), &f));
    const StTensor *t = st_find(f, "rows.3.weight");
    assert_true(st_get(t->dt, f->data + t->begin, 5 * 2 + 1) == w[7 * V + 5]);
    assert_int_equal(system(strf(forever, "rm -r %s", dir)), 0);
    exec_close(x);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_covers_once),
        cmocka_unit_test(test_workers_cover_once),
        cmocka_unit_test(test_workers_end_at_exit),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_ignores_threads),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_allgather),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_alltoall),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_pieces_cover),
        cmocka_unit_test(test_order_is_a_permutation),
        cmocka_unit_test(test_safetensors_refusals),
        cmocka_unit_test(test_safetensors_mutations),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_hf_round_trip),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
