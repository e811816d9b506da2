/* balance_test: the losses and states that balance experts, in folds and in
 * fp64, against their formulas written out in loops. Two
 * steps at learning rate 0, so that the second reads the counts of the first.
 * Losses and states are compared directly, gradients with central differences
 * of the loops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/share.h"
#include "../unit/tensors.h"

enum {
    B = 2,
    Q = 12,
    T = B * Q,
    E = 6,
    G = 3,
    V = 16,
    MICRO = 8,
    K = 2,
    STEPS = 2,
    NLOSS = 4
};

/* Sums of a few thousand terms; of differences: h^2 of the third derivative. */
static const double TOL = 1e-12, H = 1e-5, GTOL = 1e-8;

static const char *const folds[] = {
    "world=1",
    "fold.tp=2",
    "fold.cp=2",
    "fold.dp=4",
    "fold.tp=2 fold.cp=2 fold.dp=2",
};
static const char *const names[NLOSS] = { "micro", "sequence", "global", "z" };
static const double weight[NLOSS] = { 0.3, 0.2, 0.5, 0.1 };
static int failed;

static int id_at(int step, int64_t i)
{
    return (int)(mix64((uint64_t)step + 5, (uint64_t)i) % V);
}

/* ---- by hand ------------------------------------------------------------- */

typedef struct Router {
    double table[V][E], load[E], bias[E], quantile[E];
} Router;

/* The k largest of x, ties to the lower index, as marks. */
static void best(const double *x, int n, int k, int *mark)
{
    memset(mark, 0, (size_t)n * sizeof *mark);
    while (k-- > 0) {
        int at = -1;
        for (int i = 0; i < n; i++)
            if (!mark[i] && (at < 0 || x[i] > x[at]))
                at = i;
        mark[at] = 1;
    }
}

/* Sum over experts of E * mean p * share over n tokens. */
static double balance(double (*p)[E], int n, const double *shares)
{
    double loss = 0;

    for (int e = 0; e < E; e++) {
        double mean = 0, share = 0;
        for (int t = 0; t < n; t++) {
            int mark[E];
            best(p[t], E, K, mark);
            mean += p[t][e] / n;
            share += (double)mark[e] / (n * K);
        }
        loss += E * mean * (shares ? shares[e] : share);
    }
    return loss;
}

/* The probabilities of one micro-batch; returns its z-loss. */
static double softmaxes(const Router *r, int step, int m, double (*p)[E])
{
    double z = 0;

    for (int t = 0; t < T; t++) {
        const double *x = r->table[id_at(step, m * T + t)];
        double sum = 0;
        for (int e = 0; e < E; e++)
            sum += p[t][e] = exp(x[e]);
        for (int e = 0; e < E; e++)
            p[t][e] /= sum;
        z += log(sum) * log(sum) / T;
    }
    return z;
}

static double losses(const Router *r, int step, double *l)
{
    double all = 0;

    memset(l, 0, NLOSS * sizeof *l);
    for (int m = 0; m < MICRO; m++) {
        double p[T][E];
        l[3] += softmaxes(r, step, m, p) / MICRO;
        l[0] += balance(p, T, NULL) / MICRO;
        for (int b = 0; b < B; b++)
            l[1] += balance(p + (size_t)b * Q, Q, NULL) / (B * MICRO);
        l[2] += balance(p, T, r->load) / MICRO;
    }
    for (int i = 0; i < NLOSS; i++)
        all += weight[i] * l[i];
    return all;
}

/* Groups of E / G by their best score; then the K best of the best two. */
static void choose(const double *x, int *mark)
{
    double group[G], y[E];
    int in[G];

    for (int i = 0; i < G; i++) {
        group[i] = -INFINITY;
        for (int j = i * E / G; j < (i + 1) * E / G; j++)
            group[i] = fmax(group[i], x[j]);
    }
    best(group, G, 2, in);
    for (int e = 0; e < E; e++)
        y[e] = in[e / (E / G)] ? x[e] : -INFINITY;
    best(y, E, K, mark);
}

static int downward(const void *v, const void *w)
{
    const double *a = v, *b = w;

    return (*a < *b) - (*a > *b);
}

/* Adds what a sequence of Q tokens says of each expert: the number between the
 * scores of the last token that may choose it and of the first that may not. */
static void add_quantiles(const Router *r, int step, int64_t from, double *sum)
{
    enum { MEAN = Q * K / E };
    double x[E][Q];

    for (int t = 0; t < Q; t++) {
        const double *logits = r->table[id_at(step, from + t)];
        double s[E], chosen[E];
        for (int e = 0; e < E; e++) {
            s[e] = 1 / (1 + exp(-logits[e]));
            chosen[e] = s[e] + r->quantile[e];
        }
        qsort(chosen, E, sizeof *chosen, downward);
        for (int e = 0; e < E; e++)
            x[e][t] = s[e] - chosen[K];
    }
    for (int e = 0; e < E; e++) {
        qsort(x[e], Q, sizeof *x[e], downward);
        sum[e] += (x[e][MEAN - 1] + x[e][MEAN]) / 2 / (B * MICRO);
    }
}

static void move_quantiles(Router *r, int step)
{
    double mean[E] = { 0 };

    for (int i = 0; i < MICRO * B; i++)
        add_quantiles(r, step, (int64_t)i * Q, mean);
    for (int e = 0; e < E; e++)
        r->quantile[e] = 0.7 * r->quantile[e] - 0.3 * mean[e];
}

static void end_of_step(Router *r, int step)
{
    double load[E] = { 0 };
    int count[E] = { 0 }, all = MICRO * T * K;

    for (int i = 0; i < MICRO * T; i++) {
        const double *x = r->table[id_at(step, i)];
        double s[E];
        int mark[E];
        best(x, E, K, mark);
        for (int e = 0; e < E; e++)
            load[e] += (double)mark[e] / all;
        for (int e = 0; e < E; e++)
            s[e] = 1 / (1 + exp(-x[e])) + r->bias[e];
        choose(s, mark);
        for (int e = 0; e < E; e++)
            count[e] += mark[e];
    }
    memcpy(r->load, load, sizeof load);
    for (int e = 0; e < E; e++)
        r->bias[e] += 1e-3 * ((all > E * count[e]) - (all < E * count[e]));
}

/* ---- by the compiler ----------------------------------------------------- */

typedef struct Batch {
    const Mesh *mesh;
    int step;
} Batch;
typedef struct Fill {
    int64_t from;
    int32_t *dst;
    int step;
} Fill;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] = id_at(f->step, f->from + global + i);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { micro * tensor_elems(t), dst, b->step };

    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

static Plan *plan_of(const char *fold)
{
    Opts *o = opts_new(forever);
    char *next, *word = strtok_r(strf(forever, "%s", fold), " ", &next);

    for (; word; word = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(word, "=");
        opts_set(o, internn(word, n), intern(word + n + 1), NULL);
    }
    opts_set(o, "precision", "fp64", NULL);
    Trace t = trace("tests/models/balance.lua", o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

static void verdict(int ok, const char *fold, const char *what, double diff,
                    double limit)
{
    failed += !ok;
    printf("%sok - %s, %s: difference %.2g, at most %.0e\n", ok ? "" : "not ",
           fold, what, diff, limit);
    fflush(stdout);
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want);

    return d <= a ? a : d;
}

static double state_apart(Exec *x, const char *name, const double *want)
{
    double got[E], most = 0;

    exec_read(x, name, 0, got, E);
    for (int e = 0; e < E; e++)
        most = worse(most, got[e], want[e]);
    return most;
}

/* m of the first step is (1 - beta1) gradient. */
static double gradient_apart(Exec *x, Router *r)
{
    double got[V][E], l[NLOSS], most = 0;

    exec_read(x, "optim.m.table", 0, got[0], (int64_t)V * E);
    for (int v = 0; v < V; v++)
        for (int e = 0; e < E; e++) {
            double keep = r->table[v][e], up, down;
            r->table[v][e] = keep + H;
            up = losses(r, 0, l);
            r->table[v][e] = keep - H;
            down = losses(r, 0, l);
            r->table[v][e] = keep;
            most = worse(most, got[v][e] / (1 - 0.9), (up - down) / (2 * H));
        }
    return most;
}

static void run_fold(const char *fold, Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    double most[NLOSS + 2] = { 0 }, zero[E] = { 0 }, l[NLOSS];
    Router r = { .bias = { 0 } };

    for (int e = 0; e < E; e++)
        r.load[e] = 1.0 / E;
    exec_run(x, PGinit, NULL, NULL);
    exec_read(x, "table", 0, r.table[0], (int64_t)V * E);
    for (int step = 0; step < STEPS; step++) {
        StepValues b = { 0, 0.1, 0.05, step };
        Batch batch = { p->mesh, step };
        Feed f = { fill, &batch };
        exec_exact(x, PGstep, &b, &f);
        double all = losses(&r, step, l);
        for (int i = 0; i < NLOSS; i++)
            most[i] =
                worse(most[i],
                      exec_named(x, strf(forever, "loss.%s", names[i])), l[i]);
        most[NLOSS] = worse(most[NLOSS], exec_result(x, RESULTloss), all);
        if (step == 0)
            most[NLOSS + 1] = gradient_apart(x, &r);
        end_of_step(&r, step);
        move_quantiles(&r, step);
    }
    for (int i = 0; i <= NLOSS; i++)
        verdict(most[i] <= TOL, fold, i < NLOSS ? names[i] : "loss", most[i],
                TOL);
    verdict(most[NLOSS + 1] <= GTOL, fold, "gradient of the table",
            most[NLOSS + 1], GTOL);
    double load = state_apart(x, "load", r.load);
    double bias = state_apart(x, "bias", r.bias);
    double quantile = state_apart(x, "quantile", r.quantile);
    double even = state_apart(x, "even", zero);
    verdict(load <= TOL, fold, "counts of the step before", load, TOL);
    verdict(bias <= TOL, fold, "bias", bias, TOL);
    verdict(quantile <= TOL, fold, "bias by quantiles", quantile, TOL);
    verdict(even == 0, fold, "bias with equal counts", even, 0);
    exec_close(x);
}

int main(void)
{
    enum { N = sizeof folds / sizeof *folds };
    Plan *p[N];

    for (int i = 0; i < N; i++)
        p[i] = plan_of(folds[i]);
    share_kernels(p, N);
    for (int i = 0; i < N; i++)
        run_fold(folds[i], p[i]);
    return failed != 0;
}
