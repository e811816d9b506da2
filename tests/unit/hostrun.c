/* hostrun.c: the steps of a program, one after another, in plain C. Products
 * are three loops; kernels run in uneven ranges, so that a kernel whose result
 * depends on the split is found out. */
#include "hostrun.h"
#include "../../codegen/codegen.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void Kernel_(void *const *buf, const int64_t *iv, int64_t lo,
                     int64_t hi);

/* ---- buffers ------------------------------------------------------------- */

static double get(Dtype dt, const void *p, int64_t i)
{
    switch (dt) {
    case Df64: return ((const double *)p)[i];
    case Df32: return (double)((const float *)p)[i];
    case Dbf16: return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    case De4m3:
    case De5m2:
    case De8m0: return (double)narrow_value(dt, ((const uint8_t *)p)[i]);
    case Di64: return (double)((const int64_t *)p)[i];
    case Di32: return (double)((const int32_t *)p)[i];
    default: return (double)((const uint8_t *)p)[i];
    }
}

static void set(Dtype dt, void *p, int64_t i, double v)
{
    switch (dt) {
    case Df64: ((double *)p)[i] = v; break;
    case Df32: ((float *)p)[i] = (float)v; break;
    case Dbf16: ((uint16_t *)p)[i] = f32_to_bf16((float)v); break;
    case De4m3:
    case De5m2:
    case De8m0: ((uint8_t *)p)[i] = narrow_nearest(dt, (float)v); break;
    case Di64: ((int64_t *)p)[i] = (int64_t)v; break;
    case Di32: ((int32_t *)p)[i] = (int32_t)v; break;
    default: ((uint8_t *)p)[i] = (uint8_t)v; break;
    }
}

static Dtype dtype_of(const Node *n)
{
    return n->op == Oroute ? Di32 : n->dt;
}

/* What is never written shows up: reals are NaN, and integers no index, but
 * behind the value, where one that is no index would be passed over. */
static void *buffer(const Graph *g, Node *n)
{
    n = storage(n);
    if (!n->tmp) {
        size_t bytes = (size_t)local_bytes(g, n) + RUNGUARD;
        n->tmp = alloc(g->arena, bytes);
        memset(n->tmp, 0xff, bytes);
        for (size_t i = 1; dtype_of(n) == Di32 && i <= RUNGUARD / 4; i++)
            set(Di32, (char *)n->tmp + bytes - 4 * i, 0, 0);
        if (n->op == Oaccum)
            memset(n->tmp, 0, bytes - RUNGUARD);
        if (n->op == Oaccum && n->at.accum.op == Rmax)
            for (int64_t i = 0; i < local_elems(g, n); i++)
                set(n->dt, n->tmp, i, -INFINITY);
    }
    return n->tmp;
}

void host_set(const Graph *g, Node *n, const double *v)
{
    void *p = buffer(g, n);

    for (int64_t i = 0; i < local_elems(g, n); i++)
        set(dtype_of(n), p, i, v[i]);
}

double *host_get(const Graph *g, Node *n, Arena *a)
{
    double *v = alloc(a, (size_t)(local_elems(g, n) + 1) * sizeof *v);
    void *p = buffer(g, n);

    for (int64_t i = 0; i < local_elems(g, n); i++)
        v[i] = get(dtype_of(n), p, i);
    return v;
}

/* ---- products ------------------------------------------------------------ */

typedef struct Mat {
    Dtype dt;
    void *p;
    int64_t at, ld;
    int turned;
} Mat;

static double at(const Mat *m, int64_t r, int64_t c)
{
    int64_t i = m->turned ? c * m->ld + r : r * m->ld + c;

    return get(m->dt, m->p, m->at + i);
}

static void product(const Mat *A, const Mat *B, const Mat *C, int64_t M,
                    int64_t N, int64_t K, int add)
{
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            int64_t to = C->at + (C->turned ? j * C->ld + i : i * C->ld + j);
            double s = add ? get(C->dt, C->p, to) : 0;
            for (int64_t k = 0; k < K; k++)
                s += at(A, i, k) * at(B, k, j);
            set(C->dt, C->p, to, s);
        }
}

static void gemm(const GemmArgs *v, void *const *buf)
{
    BatchLoop l[MAXBATCH] = { { .n = 1 }, { .n = 1 }, { .n = 1 } };

    for (int b = 0; b < v->batch.n; b++)
        l[b] = v->batch.at[b];
    for (int64_t x = 0; x < l[0].n * l[1].n * l[2].n; x++) {
        int64_t i[] = { x / (l[1].n * l[2].n), x / l[2].n % l[1].n,
                        x % l[2].n };
        Mat A = { v->in, buf[OPERAND(gemm, a)], 0, v->lda, v->ta };
        Mat B = { v->in, buf[OPERAND(gemm, b)], 0, v->ldb, v->tb };
        Mat C = { v->out, buf[OPERAND(gemm, c)], 0, v->ldc, 0 };
        for (int k = 0; k < MAXBATCH; k++) {
            A.at += i[k] * l[k].a;
            B.at += i[k] * l[k].b;
            C.at += i[k] * l[k].c;
        }
        product(&A, &B, &C, v->m, v->n, v->k, v->beta);
    }
}

static void grouped(const Instr *s, void *const *buf)
{
    const GmmArgs *v = &s->gmm;
    const int32_t *off = buf[OPERAND(gmm, map)];
    int64_t K = v->k, N = v->n;

    for (int64_t e = 0; e < v->experts; e++) {
        int64_t f = off[e], rows = off[e + 1] - f, w = e * v->stride;
        Mat A = { v->in, buf[0], f * K, K, s->kind == Igmm_wgrad };
        if (s->kind == Igmm_wgrad) {
            Mat B = { v->in, buf[OPERAND(gmm_wgrad, b)], f * N, N, 0 };
            Mat C = { v->out, buf[OPERAND(gmm_wgrad, dw)], w, v->ldw, v->tw };
            product(&A, &B, &C, K, N, rows, v->beta);
        } else {
            Mat B = { v->in, buf[OPERAND(gmm, w)], w, v->ldw, v->tw };
            Mat C = { v->out, buf[OPERAND(gmm, out)], f * N, N, 0 };
            product(&A, &B, &C, rows, N, K, v->beta);
        }
    }
}

/* ---- instructions -------------------------------------------------------- */

static void kernel(const Group *k, void *const *buf, const int64_t *iv,
                   void *lib)
{
    Kernel_ *f;
    int64_t n = k->instr.launch.items, a = n / 3, b = n - n / 4;

    *(void **)&f = dlsym(lib, k->instr.kernel);
    if (!f)
        die("no kernel %s", k->instr.kernel);
    f(buf, iv, b, n);
    f(buf, iv, 0, a);
    f(buf, iv, a, b);
}

void host_step(void *lib, const Group *k, void *const *buf, const size_t *bytes,
               const int64_t *iv)
{
    (void)bytes;
    switch (k->instr.kind) {
    case Ikernel: kernel(k, buf, iv, lib); break;
    case Igemm: gemm(&k->instr.gemm, buf); break;
    case Igmm:
    case Igmm_wgrad: grouped(&k->instr, buf); break;
    default: die("hostrun: no instruction %s", instr_info(k->instr.kind)->name);
    }
}

static void step(const Graph *g, const Group *k, RunStep *f, void *ctx)
{
    int last = k->instr.kind == Ikernel ? k->narg : k->narg - 1;
    void *buf[64] = { 0 };
    size_t bytes[64] = { 0 };
    int64_t iv[512];

    for (int i = 0; i < k->narg; i++)
        if (k->arg[i]) {
            buf[i] = buffer(g, k->arg[i]);
            bytes[i] = (size_t)local_bytes(g, storage(k->arg[i])) + RUNGUARD;
        }
    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    if (k->scratch) {
        buf[last] = alloc(g->arena, (size_t)k->scratch);
        bytes[last] = (size_t)k->scratch;
        memset(buf[last], 0xff, bytes[last]);
    }
    f(ctx, k, buf, bytes, iv);
}

/* ---- results in place of operands ---------------------------------------- */

static int used_later(const Graph *g, Group *const *k, int from, int n, Node *x)
{
    for (int i = from; i < n; i++)
        for (int j = 0; j < k[i]->narg; j++)
            if (k[i]->arg[j] && storage(k[i]->arg[j]) == x)
                return 1;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Ooutput && storage(g->node[i]->in[0]) == x)
            return 1;
    return x->nin == 0 || x->op == Oaccum || !x->tmp;
}

/* As alloc does: a result takes over an operand that is dead afterwards. */
static void take_over(const Graph *g, Group *const *k, int at, int n)
{
    for (int p = 0; p < k[at]->ninplace; p++) {
        Node *out = k[at]->out[k[at]->inplace[p][0]];
        Node *in = storage(k[at]->in[k[at]->inplace[p][1]]);
        int taken = 0;
        for (int j = 0; j < k[at]->nout; j++)
            taken |= k[at]->out[j]->tmp == in->tmp;
        if (out->op != Oaccum && !out->tmp && !taken &&
            local_bytes(g, out) == local_bytes(g, in) &&
            !used_later(g, k, at + 1, n, in))
            out->tmp = in->tmp;
    }
}

void host_run(const Graph *g, Group *const *k, int n, RunStep *f, void *ctx)
{
    for (int i = 0; i < n; i++)
        if (k[i]->fam != FAMnone) {
            take_over(g, k, i, n);
            step(g, k[i], f, ctx);
        }
}

/* The whole translation unit: prelude and each distinct kernel once. */
static char *unit_text(Arena *a, Group *const *k, int n)
{
    Table *have = table_new(a);
    Text t = { .arena = a };

    put(&t, "%s", T_host.prelude);
    for (int i = 0; i < n; i++) {
        if (!k[i]->text || table_get(have, KEYP(k[i]->instr.kernel)))
            continue;
        *table_at(have, KEYP(k[i]->instr.kernel)) = k[i];
        if (k[i]->shared && !table_get(have, KEYP(k[i]->shared)))
            put(&t, "%s", k[i]->shared);
        if (k[i]->shared)
            *table_at(have, KEYP(k[i]->shared)) = k[i];
        put(&t, "\n%s", k[i]->text);
    }
    return t.s;
}

void *host_compile(Arena *a, Group *const *k, int n)
{
    char c[] = "/tmp/pleat-kernels-XXXXXX.c";
    int fd = mkstemps(c, 2);
    FILE *f = fdopen(fd, "w");
    const char *so = strf(a, "%s.so", c);
    const char *keep = getenv("KEEP_KERNELS");

    fputs(unit_text(a, k, n), f);
    fclose(f);
    int bad = system(strf(a,
                          "cc -march=native -ffp-contract=off -shared "
                          "-fno-math-errno -fno-trapping-math -fPIC -Wall "
                          "-Wno-unused -O${PLEAT_OPT:-2} -o %s %s -lm",
                          so, c));
    void *lib = bad ? NULL : dlopen(so, RTLD_NOW);
    if (!keep && !bad)
        unlink(c);
    else
        printf("# kernels in %s\n", c);
    unlink(so);
    return lib;
}
