/* layers_test: the layers that are written in the language, in fp64, against
 * their formulas in plain loops: rotary embeddings with YaRN's defaults and
 * what is given, norms with small numbers, so that eps matters, masks, labels
 * without loss, gradients of ties. tests/models/layers.lua keeps what each
 * makes in a state. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { Q = 7, D = 16, H = D / 2 };

/* Functions of libm and sums of 16 terms in another order. */
static const double TOL = 1e-13, THETA = 1e4, PI = 3.14159265358979323846;

typedef double Grid[Q][D];

static int failed;

/* ---- rotary embeddings --------------------------------------------------- */

typedef struct Yarn { /* Peng et al. 2023, section 3.2; factor 0: plain */
    double factor, original, fast, slow, scale;
} Yarn;

/* The dimension that turns so often in `original` tokens. */
static double dim_of_turns(const Yarn *y, double turns)
{
    return D * log(y->original / (turns * 2 * PI)) / (2 * log(THETA));
}

static double frequency(const Yarn *y, int j)
{
    double f = pow(THETA, -2.0 * j / D);
    if (y->factor == 0)
        return f;
    double low = fmax(floor(dim_of_turns(y, y->fast)), 0);
    double high = fmin(ceil(dim_of_turns(y, y->slow)), D - 1);
    double ramp = fmin(fmax((j - low) / (high - low), 0), 1);
    return f / y->factor * ramp + f * (1 - ramp);
}

static void rope_by_hand(Grid x, const Yarn *y, int neighbours, Grid out)
{
    for (int s = 0; s < Q; s++)
        for (int j = 0; j < H; j++) {
            int a = neighbours ? 2 * j : j, b = neighbours ? a + 1 : j + H;
            double angle = s * frequency(y, j), scale = y->scale;
            double c = cos(angle) * scale, t = sin(angle) * scale;
            out[s][a] = x[s][a] * c - x[s][b] * t;
            out[s][b] = x[s][b] * c + x[s][a] * t;
        }
}

/* ---- rows ---------------------------------------------------------------- */

static void norm_by_hand(Grid x, double eps, int centred, Grid out)
{
    for (int s = 0; s < Q; s++) {
        double mean = 0, square = 0;
        for (int d = 0; d < D && centred; d++)
            mean += x[s][d] / D;
        for (int d = 0; d < D; d++)
            square += (x[s][d] - mean) * (x[s][d] - mean) / D;
        for (int d = 0; d < D; d++)
            out[s][d] = (x[s][d] - mean) / sqrt(square + eps);
    }
}

static double logsumexp(const double *x, int n)
{
    double sum = 0;

    for (int d = 0; d < n; d++)
        sum += exp(x[d]);
    return log(sum);
}

/* Each query sees itself and those before it, `window` in all. */
static void attend_by_hand(Grid x, Grid z, int window, Grid out)
{
    for (int q = 0; q < Q; q++) {
        int first = q - window + 1 > 0 ? q - window + 1 : 0, n = q - first + 1;
        double score[Q] = { 0 };
        for (int k = 0; k < n; k++)
            for (int d = 0; d < D; d++)
                score[k] += x[q][d] * x[first + k][d] / 4;
        double all = logsumexp(score, n);
        for (int d = 0; d < D; d++) {
            out[q][d] = 0;
            for (int k = 0; k < n; k++)
                out[q][d] += exp(score[k] - all) * z[first + k][d];
        }
    }
}

/* ---- comparing ----------------------------------------------------------- */

static void compare(Exec *x, const char *name, const double *want, int64_t n)
{
    int64_t have;
    const double *got = fold_read(x, name, &have);
    double most = have == n ? 0 : INFINITY;

    for (int64_t i = 0; i < n && have == n; i++) {
        double d = fabs(got[i] - want[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    failed += most > TOL;
    printf("%sok - layers, %s: difference %.2g, at most %.0e\n",
           most > TOL ? "not " : "", name, most, TOL);
}

static void all_ropes(Exec *x, Grid a)
{
    static const struct {
        const char *name;
        int neighbours;
        Yarn y;
    } c[] = {
        { "rope", 0, { .scale = 1 } },
        { "rope_neighbours", 1, { .scale = 1 } },
        { "rope_yarn", 0, { 8, 4096, 32, 1, 1 + 0.1 * 2.0794415416798357 } },
        { "rope_yarn_given", 0, { 8, 1024, 4, 0.5, 1.5 } },
    };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        Grid want;
        rope_by_hand(a, &c[i].y, c[i].neighbours, want);
        compare(x, c[i].name, want[0], Q * D);
    }
}

static void all_rows(Exec *x, Grid a, Grid z)
{
    Grid soft, glu;
    double lse[Q], loss[Q];

    for (int s = 0; s < Q; s++) {
        int label = s * 5 % 17 - 1;
        lse[s] = logsumexp(a[s], D);
        loss[s] = label < 0 ? 0 : lse[s] - a[s][label];
        for (int d = 0; d < D; d++) {
            soft[s][d] = exp(a[s][d] - lse[s]);
            glu[s][d] = a[s][d] / (1 + exp(-a[s][d])) * z[s][d];
        }
    }
    compare(x, "softmax", soft[0], Q * D);
    compare(x, "swiglu", glu[0], Q * D);
    compare(x, "logsumexp", lse, Q);
    compare(x, "cross_entropy", loss, Q);
}

static void all_norms(Exec *x, Grid z)
{
    Grid want;

    norm_by_hand(z, 1e-5, 0, want);
    compare(x, "rmsnorm", want[0], Q * D);
    norm_by_hand(z, 1e-3, 0, want);
    compare(x, "rmsnorm_eps", want[0], Q * D);
    norm_by_hand(z, 1e-5, 1, want);
    compare(x, "layernorm", want[0], Q * D);
}

/* Gradients of max and min over equal values, off the first moment. */
static void all_ties(Exec *x)
{
    double most[Q * D], least[Q * D];

    for (int i = 0; i < Q * D; i++) {
        most[i] = (1 - 0.9) / D;
        least[i] = 2 * (1 - 0.9) / D;
    }
    compare(x, "optim.m.tied", most, Q * D);
    compare(x, "optim.m.tied_least", least, Q * D);
}

int main(void)
{
    Plan *p = fold_words("tests/models/layers.lua", "precision=fp64 world=1");
    Exec *x = exec_open(p, comm_open(forever, 1));
    StepValues block = fold_block(p, 0);
    Feed f = fold_feed(p, 0);
    Grid a, z, want;
    int64_t n;

    exec_run(x, PGinit, NULL, NULL);
    memcpy(a, fold_read(x, "x", &n), sizeof a);
    memcpy(z, fold_read(x, "z", &n), sizeof z);
    exec_exact(x, PGstep, &block, &f);
    all_ropes(x, a);
    all_norms(x, z);
    all_rows(x, a, z);
    all_ties(x);
    attend_by_hand(a, z, Q, want);
    compare(x, "causal", want[0], Q * D);
    attend_by_hand(a, z, 3, want);
    compare(x, "window", want[0], Q * D);
    return failed != 0;
}
