/* attn_test: host attention kernels against the reference interpreter on their
 * bodies. Forward results and logsumexps are compared element by element;
 * gradients with differences of the interpreter along random directions, and
 * for the smallest form along every axis. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attn_cases.h"
#include "interp.h"

static const Form cases[] = {
    { "tiny", { 1, 1, 1, 3, 5, 2, 2, 3 }, attn_plain, 1 },
    { "mha-causal", { 2, 3, 1, 130, 130, 32, 1, 32 }, attn_causal, 1 },
    { "gqa", { 1, 2, 3, 70, 70, 20, 1, 17 }, attn_causal, 1 },
    { "even", { 1, 2, 2, 120, 120, 8, 1, 8 }, attn_causal, 1 },
    { "cross", { 2, 1, 2, 61, 149, 16, 1, 40 }, attn_plain, 1 },
    { "mla", { 2, 3, 1, 101, 101, 24, 8, 16 }, attn_mla, 1 },
    { "mla-one", { 1, 3, 1, 101, 131, 8, 24, 16 }, attn_mla, 1 },
    { "window", { 1, 2, 2, 150, 150, 12, 1, 12 }, attn_window, 1 },
    { "chunks", { 1, 2, 2, 150, 150, 12, 1, 12 }, attn_chunks, 1 },
    { "biases", { 2, 2, 2, 70, 70, 6, 1, 6 }, attn_biases, 0.5 },
    { "mla-biases", { 2, 3, 1, 50, 70, 6, 5, 7 }, attn_mlabiases, 0.5 },
    { "late", { 1, 1, 2, 67, 67, 8, 1, 8 }, attn_late, 1 },
    { "strict", { 1, 1, 1, 67, 67, 8, 1, 8 }, attn_strict, 1 },
    { "documents", { 2, 2, 1, 75, 75, 10, 6, 9 }, attn_documents, 0.3 },
    { "latent", { 1, 3, 1, 66, 66, 5, 7, 1 }, attn_latent, 1 },
    { "one", { 1, 1, 1, 1, 1, 1, 1, 1 }, attn_causal, 1 },
};
enum { NCASE = sizeof cases / sizeof *cases };
enum { RANKS = 3, WINDOW = 7 }; /* those that tests of their own take */
static Run runs[NCASE][NDT];

/* ---- running kernels ----------------------------------------------------- */

static void call(const Group *k, void **buf, int backwards)
{
    int64_t iv[512], n = k->instr.launch.items, cut = n / 3;
    Entry *f = attn_entry(k);

    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    if (!backwards) {
        f(buf, iv, 0, n);
        return;
    }
    for (int64_t i = n; i-- > cut;)
        f(buf, iv, i, i + 1);
    f(buf, iv, 0, cut);
}

/* Runs a kernel twice, split differently: the same bytes must come out. */
static void run(Run *r, const Group *k)
{
    void *buf[2][32];

    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < k->narg; i++)
            buf[t][i] = attn_stored(k->arg[i], attn_known(r, k->arg[i]));
        buf[t][k->narg] = malloc((size_t)k->scratch + 1);
        memset(buf[t][k->narg], 0xff, (size_t)k->scratch);
        call(k, buf[t], t);
    }
    for (int i = 0; i < k->narg; i++) {
        Node *n = k->arg[i];
        size_t bytes = (size_t)(g_elems(n) * dtypes[n->dt].bytes);
        assert_memory_equal(buf[0][i], buf[1][i], bytes);
        if (n == r->out)
            r->y = attn_loaded(n, buf[0][i]);
        if (n == r->lse)
            r->l = attn_loaded(n, buf[0][i]);
        for (int q = 0; q < r->m.nop; q++)
            if (n == r->grad[q])
                r->dx[q] = attn_loaded(n, buf[0][i]);
    }
    for (int i = 0; i <= k->narg; i++) {
        free(buf[0][i]);
        free(buf[1][i]);
    }
}

static double norm(const double *x, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s = fmax(s, fabs(x[i]));
    return s;
}

static double difference(const double *x, const double *y, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        if (x[i] != y[i]) /* also equal infinities */
            s = fmax(s, isnan(x[i] - y[i]) ? INFINITY : fabs(x[i] - y[i]));
    return s;
}

/* ---- plain evaluation ---------------------------------------------------- */

/* Every value of the body in double; the last is the attention's. They live as
 * long as the arena. */
static double **evaluate(const Run *r, double *const *x, Arena *a)
{
    Graph *b = r->m.b;
    size_t n = vec_len(b->node);
    double **v = alloc(a, n * sizeof *v);

    g_renumber(b);
    b->arena = a;
    for (size_t i = 0; i < n; i++)
        if (b->node[i]->op == Oarg)
            v[i] = x[b->node[i]->at.arg.index];
    interp(b, v);
    return v;
}

/* The result; a query that sees no key gives 0, not 0 / 0. */
static double *result(const Run *r, double **v)
{
    double *o = v[vec_len(r->m.b->node) - 1];

    for (int64_t i = 0; i < g_elems(r->out); i++)
        o[i] = isnan(o[i]) ? 0 : o[i];
    return o;
}

static double weighted(const Run *r, double *const *x)
{
    Arena *a = arena_new();
    double *o = result(r, evaluate(r, x, a)), s = 0;

    for (int64_t i = 0; i < g_elems(r->out); i++)
        s += o[i] * r->w[i];
    arena_free(a);
    return s;
}

static double *logsumexp(const Run *r, double **v)
{
    const Graph *b = r->m.b;
    const Node *o = b->node[vec_len(b->node) - 1], *y = o->in[0];
    const Node *z = y->in[1], *m = y->in[0]->in[0]->in[1];
    double *l = malloc(sizeof(double) * (size_t)g_elems(r->lse));

    for (int64_t i = 0; i < g_elems(r->lse); i++)
        l[i] = isinf(v[m->id][i]) ? -INFINITY : v[m->id][i] + log(v[z->id][i]);
    return l;
}

/* ---- tests --------------------------------------------------------------- */

/* Rounding errors of a sum of `key` terms; bf16 has 8 bits. */
static const double tolerance[NDT] = { 1e-12, 1e-5, 1e-2 };

static void test_forward(void **state)
{
    Run *all = *state, *ref = &all[F64];
    Arena *a = arena_new();
    double **v = evaluate(ref, ref->x, a);
    double *o = result(ref, v), *l = logsumexp(ref, v);

    for (int t = 0; t < NDT; t++) {
        Run *r = &all[t];
        int64_t n = g_elems(r->out), nl = g_elems(r->lse);
        double no = fmax(norm(o, n), 1e-30);
        run(r, &r->fwd);
        double e = difference(o, r->y, n) / no;
        double el = difference(l, r->l, nl) / 10;
        printf("  %-11s %-4s out %.1e lse %.1e\n", r->c->name,
               dtypes[r->m.dt].name, e, el);
        assert_true(e < tolerance[t]);
        assert_true(el < tolerance[t == BF16 ? F32 : t]);
    }
    arena_free(a);
    free(l);
}

/* Derivative of the weighted result along d of operand k. */
static double along(Run *r, int k, const double *d, double h)
{
    int64_t n = g_elems(r->m.op[k]);
    double *keep = r->x[k], *x = malloc((size_t)n * 8), f[2];

    r->x[k] = x;
    for (int s = 0; s < 2; s++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = keep[i] + (s ? h : -h) * d[i];
        f[s] = weighted(r, r->x);
    }
    r->x[k] = keep;
    free(x);
    return (f[1] - f[0]) / (2 * h);
}

/* Central differences of step 1e-5 leave about 1e-10 of truncation and as much
 * of rounding. */
static void check_direction(Run *r, int k, int64_t only)
{
    int64_t n = g_elems(r->m.op[k]);
    double *d = calloc((size_t)n, 8), dot = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        d[i] = only < 0 ? 2 * attn_random() - 1 : i == only;
        dot += d[i] * r->dx[k][i];
        size += fabs(d[i] * r->dx[k][i]);
    }
    double fd = along(r, k, d, 1e-5);
    double e = fabs(fd - dot) / fmax(size, 1e-3);
    if (e > 1e-6)
        fail_msg("%s: operand %d: %.12g by differences, %.12g by kernel",
                 r->c->name, k, fd, dot);
    free(d);
}

/* A slope's gradient weighs the rounding of results with distances: 8. */
static void test_gradient(void **state)
{
    Run *all = *state, *r = &all[F64];

    for (int t = 0; t < NDT; t++)
        run(&all[t], &all[t].bwd);
    for (int k = 0; k < r->m.nop; k++) {
        if (!r->grad[k])
            continue;
        int64_t n = g_elems(r->m.op[k]);
        for (int64_t i = 0; i < (n < 64 ? n : 0); i++)
            check_direction(r, k, i);
        for (int i = 0; i < 2; i++)
            check_direction(r, k, -1);
        for (int t = F32; t < NDT; t++) {
            double size = fmax(norm(r->dx[k], n), 1e-2);
            double e = difference(r->dx[k], all[t].dx[k], n) / size;
            printf("  %-11s %-4s gradient %d %.1e\n", r->c->name,
                   dtypes[all[t].m.dt].name, k, e);
            assert_true(e < (r->m.op[k]->nd == 1 ? 8 : 2) * tolerance[t]);
        }
    }
}

/* Refused: a key that the score also reads outside of a dot, and a score that
 * is not elementwise in its dots. */
static void test_refused(void **state)
{
    Run *all = *state, r = { 0 };
    Build *m = &r.m;

    attn_build(&r, all->c, Df32);
    assert_null(attn_refused(m->g, r.attn));
    assert_int_equal(m->arg[2]->nd, 1);
    m->arg[2]->at.arg.index = 1;
    assert_non_null(attn_refused(m->g, r.attn));
    m->arg[2]->at.arg.index = 2;
    for (size_t i = 0; i < vec_len(m->b->node); i++)
        if (m->b->node[i]->op == Otanh)
            m->b->node[i]->op = Ocumsum;
    assert_non_null(attn_refused(m->g, r.attn));
}

/* ---- ranks --------------------------------------------------------------- */

/* Queries cut over two ranks, keys whole: the same kernels, other integers. */
static void cut_queries(Run *r)
{
    static const int64_t size[NMESH] = { [Mcp] = 2 };
    Shard sh[MAXATOM] = { 0 };
    Node *cut[] = { r->m.op[0], r->out, r->lse, r->dout, r->grad[0] };

    r->m.g->mesh = mesh_new(forever, 2, size, "tp-cp-dp-pp", NULL);
    for (int a = 0; a < r->m.g->mesh->natom; a++)
        if (r->m.g->mesh->mask[Mcp] >> a & 1)
            sh[a] = (Shard){ S, Radd, r->m.seq };
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        cut[i]->sh = g_type(r->m.g, sh);
}

/* One rank's kernel on the whole tensors' buffers, offset to its queries. */
static void call_rank(const Run *r, const Group *k, int64_t rank, void **buf)
{
    int64_t iv[512];
    void *at[32];
    Entry *f = attn_entry(k);

    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(r->m.g->mesh, &k->instr.word[i], rank);
    for (int i = 0; i < k->narg; i++) {
        int64_t e = local_elems(r->m.g, k->arg[i]);
        int whole = e == g_elems(k->arg[i]);
        at[i] = (char *)buf[i] + (whole ? 0 : rank * e * 8);
    }
    at[k->narg] = buf[k->narg];
    f(at, iv, 0, k->instr.launch.items);
}

/* out[i]: what rank `rank` and those before it made of argument i. */
static void run_rank(const Run *r, const Group *k, int64_t rank, double **out)
{
    void *buf[32];

    for (int i = 0; i < k->narg; i++)
        buf[i] = attn_stored(k->arg[i], attn_known(r, k->arg[i]));
    buf[k->narg] = malloc((size_t)k->scratch + 1);
    call_rank(r, k, rank, buf);
    for (int i = 0; i < k->narg; i++) {
        const double *x = buf[i];
        for (int64_t e = 0; e < g_elems(k->arg[i]); e++)
            out[i][e] += isnan(x[e]) ? 0 : x[e];
    }
    for (int i = 0; i <= k->narg; i++)
        free(buf[i]);
}

static void compare_ranks(const Run *whole, const Run *r, const Group *k)
{
    double *sum[32];

    for (int i = 0; i < k->narg; i++)
        sum[i] = calloc((size_t)g_elems(k->arg[i]), 8);
    for (int64_t rank = 0; rank < 2; rank++)
        run_rank(r, k, rank, sum);
    for (int i = 0; i < k->narg; i++) {
        const double *want = k->arg[i] == r->out ? whole->y : NULL;
        want = k->arg[i] == r->lse ? whole->l : want;
        for (int q = 0; q < r->m.nop; q++)
            want = k->arg[i] == r->grad[q] ? whole->dx[q] : want;
        if (want && !attn_known(r, k->arg[i]))
            assert_true(difference(want, sum[i], g_elems(k->arg[i])) < 1e-12);
        free(sum[i]);
    }
}

static void test_ranks(void **state)
{
    Run *all = *state, *whole = &all[F64], r = { 0 };

    attn_build(&r, whole->c, Df64);
    for (int i = 0; i < r.m.nop; i++)
        r.x[i] = whole->x[i];
    r.w = whole->w;
    cut_queries(&r);
    attn_kernels(&r);
    assert_string_equal(r.fwd.instr.kernel, whole->fwd.instr.kernel);
    assert_string_equal(r.bwd.instr.kernel, whole->bwd.instr.kernel);
    compare_ranks(whole, &r, &r.fwd);
    r.y = whole->y;
    r.l = whole->l;
    compare_ranks(whole, &r, &r.bwd);
}

int main(void)
{
    struct CMUnitTest tests[2 * NCASE + 2] = {
        [2 * NCASE] = { "ranks", test_ranks, NULL, NULL, runs[RANKS] },
        { "refused", test_refused, NULL, NULL, runs[WINDOW] },
    };

    setenv("PLEAT_OPT", "0", 1); /* compilers take most of the time */
    attn_prepare(runs, cases, NCASE);
    for (int i = 0; i < NCASE; i++)
        for (int b = 0; b < 2; b++)
            tests[2 * i + b] =
                (struct CMUnitTest){ strf(forever, "%s %s", cases[i].name,
                                          b ? "backward" : "forward"),
                                     b ? test_gradient : test_forward, NULL,
                                     NULL, runs[i] };
    return cmocka_run_group_tests_name("attn", tests, NULL, NULL);
}
