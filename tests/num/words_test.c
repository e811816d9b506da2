/* words_test: functions of the language that are made of others, in fp64,
 * against plain loops. tests/models/words.lua keeps what each makes in a state.
 * Moments of random numbers, which differ between elements, steps and
 * micro-batches. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { Q = 16, A = 2, D = 8, TAPS = 4, BINS = 4, LONG = 30 };

static const double TOL = 1e-12;

enum { N = A * D }; /* elements of a place */

static double x[Q][N], w[N][TAPS];
static int failed;

static void compare(Exec *exec, const char *name, const double *want, int64_t n)
{
    int64_t have;
    const double *got = fold_read(exec, name, &have);
    double most = have == n ? 0 : INFINITY;

    for (int64_t i = 0; i < n && have == n; i++) {
        double d = fabs(got[i] - want[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    failed += most > TOL;
    printf("%sok - words, %s: difference %.2g, at most %.0e\n",
           most > TOL ? "not " : "", name, most, TOL);
}

/* A value for each element of x. */
typedef double Element(int s, int i);

static void compare_each(Exec *exec, const char *name, Element *f)
{
    double want[Q][N];

    for (int s = 0; s < Q; s++)
        for (int i = 0; i < N; i++)
            want[s][i] = f(s, i);
    compare(exec, name, want[0], Q * N);
}

/* A value for each place. */
typedef int Place(int s);

static void compare_places(Exec *exec, const char *name, Place *f, int n)
{
    double want[Q];

    for (int s = 0; s < n; s++)
        want[s] = f(s);
    compare(exec, name, want, n);
}

/* ---- integers ------------------------------------------------------------ */

static int number(int s)
{
    return s * 7 - 40;
}

static int at(int s)
{
    return s * 5 % 16;
}

static int itself(int s)
{
    return s;
}

static int towards_zero(int s)
{
    return (int)trunc(number(s) / 4.0 + 0.1);
}

static int down(int s)
{
    return (int)floor(number(s) / 6.0);
}

static int down_negative(int s)
{
    return (int)floor(number(s) / -6.0);
}

static int exclusive(int s)
{
    return number(s) ^ at(s) * 9;
}

static int doc(int s)
{
    return s < 0 ? 0 : doc(s - 1) + (at(s) % 4 == 0);
}

static int begin(int s)
{
    return s == 0 || at(s) % 4 == 0 ? s : begin(s - 1);
}

/* ---- of x ---------------------------------------------------------------- */

static double floor_of(int s, int i)
{
    return floor(x[s][i] * 3);
}

static double real_floor(int s, int i)
{
    return floor(x[s][i] / 0.3);
}

static double largest_so_far(int s, int i)
{
    return s ? fmax(x[s][i], largest_so_far(s - 1, i)) : x[s][i];
}

static double convolved(int s, int i)
{
    double sum = 0;

    for (int k = 0; k < TAPS; k++)
        if (s - (TAPS - 1 - k) >= 0)
            sum += w[i][k] * x[s - (TAPS - 1 - k)][i];
    return sum * x[s][i];
}

/* Where the element lies whose place is `s` after sorting. */
static double order(int s, int i)
{
    for (int from = 0; from < Q; from++) {
        int before = 0;
        for (int k = 0; k < Q; k++)
            before += x[k][i] > x[from][i];
        if (before == s)
            return from;
    }
    return -1;
}

static double sorted(int s, int i)
{
    return x[(int)order(s, i)][i] * s;
}

static double normed(int s, int i)
{
    double square = 0;

    for (int k = 0; k < N; k++)
        square += x[s][k] * x[s][k] / N;
    return x[s][i] / sqrt(square + 1e-5) * x[s][i];
}

/* The first n elements turned in pairs (j, j + n/2) as of place p. */
static double turned(int s, int i, int n, int p)
{
    int d = i % D, h = n / 2, j = d % h;
    double angle = p * pow(1e4, -2.0 * j / n);

    if (d >= n)
        return x[s][i];
    return d < h ? x[s][i] * cos(angle) - x[s][i + h] * sin(angle)
                 : x[s][i] * cos(angle) + x[s][i - h] * sin(angle);
}

static double rope_part(int s, int i)
{
    return turned(s, i, D / 2, s) * x[s][i];
}

static double rope_at(int s, int i)
{
    return turned(s, i, D, doc(s) * 3) * x[s][i];
}

static void all_bins(Exec *exec)
{
    double want[N][BINS];

    for (int i = 0; i < N; i++)
        for (int b = 0; b < BINS; b++) {
            want[i][b] = -9;
            for (int s = 0; s < Q; s++)
                if (at(s) % 3 == b)
                    want[i][b] = fmax(want[i][b], x[s][i]);
        }
    compare(exec, "scatter_max", want[0], N * BINS);
}

static void all_lists(Exec *exec)
{
    double want[LONG][N];

    for (int s = 0; s < LONG; s++)
        for (int i = 0; i < N; i++)
            want[s][i] = x[(s + 1) % Q][i] * (s + 1);
    compare(exec, "concat", want[0], LONG * N);
}

/* ---- random numbers ------------------------------------------------------ */

static double state_of(Exec *exec, const char *kind, const char *what)
{
    char name[40];
    int64_t n;

    snprintf(name, sizeof name, "%s%s", kind, what);
    return fold_read(exec, name, &n)[0];
}

/* Moments of 2 x 16 x 4096 numbers, within five standard errors or more. */
static void all_moments(Exec *exec, const char *kind, double m1, double m2,
                        double m3, double within)
{
    const struct {
        const char *name;
        double want;
    } c[] = {
        { "1", m1 },          { "2", m2 },           { "3", m3 },
        { "_next", m1 * m1 }, { "_place", m1 * m1 }, { "_other", m1 * m1 },
    };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        double got = state_of(exec, kind, c[i].name);
        int bad = !(fabs(got - c[i].want) <= within);
        failed += bad;
        printf("%sok - words, random %s%s: %.4f, %.4f within %g\n",
               bad ? "not " : "", kind, c[i].name, got, c[i].want, within);
    }
}

/* Another step draws others. */
static void differs(const char *kind, double first, double second)
{
    int bad = first == second;

    failed += bad;
    printf("%sok - words, random %s differs between steps\n", bad ? "not " : "",
           kind);
}

static void all_random(Exec *exec, StepValues *block, Feed *f)
{
    static const char *const kinds[] = { "uniform", "normal", "gumbel" };
    const double euler = 0.57721566490153286, var = 1.6449340668482264;
    double first[3];

    all_moments(exec, "uniform", 0.5, 1 / 3.0, 0.25, 0.005);
    all_moments(exec, "normal", 0, 1, 0, 0.06);
    all_moments(
        exec, "gumbel", euler, var + euler * euler,
        2 * 1.2020569031595942 + 3 * euler * var + euler * euler * euler, 0.2);
    for (int i = 0; i < 3; i++)
        first[i] = state_of(exec, kinds[i], "1");
    block->step = 1;
    exec_exact(exec, PGstep, block, f);
    for (int i = 0; i < 3; i++)
        differs(kinds[i], first[i], state_of(exec, kinds[i], "1"));
}

int main(void)
{
    Plan *p = fold_words("tests/models/words.lua",
                         "precision=fp64 world=1 train.batch=2");
    Exec *exec = exec_open(p, comm_open(forever, 1));
    StepValues block = fold_block(p, 0);
    Feed f = fold_feed(p, 0);
    int64_t n;

    exec_run(exec, PGinit, NULL, NULL);
    memcpy(x, fold_read(exec, "x", &n), sizeof x);
    memcpy(w, fold_read(exec, "w", &n), sizeof w);
    exec_exact(exec, PGstep, &block, &f);
    compare_places(exec, "int", towards_zero, Q);
    compare_places(exec, "down", down, Q);
    compare_places(exec, "down_negative", down_negative, Q);
    compare_places(exec, "xor", exclusive, Q);
    compare_places(exec, "doc", doc, Q);
    compare_places(exec, "begin", begin, Q);
    compare_places(exec, "iota", itself, 10);
    compare_each(exec, "floor", floor_of);
    compare_each(exec, "real_floor", real_floor);
    compare_each(exec, "cummax", largest_so_far);
    compare_each(exec, "conv", convolved);
    compare_each(exec, "order", order);
    compare_each(exec, "sort", sorted);
    compare_each(exec, "rmsnorm", normed);
    compare_each(exec, "rope_part", rope_part);
    compare_each(exec, "rope_at", rope_at);
    all_bins(exec);
    all_lists(exec);
    all_random(exec, &block, &f);
    return failed != 0;
}
