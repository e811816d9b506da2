/* fp8_test: a product of a weight and both its gradients by each recipe, in
 * fp64, against the same in plain loops: operands cut into blocks, rounded at
 * their scales, multiplied; of nvfp4 turned by a Hadamard matrix and rounded by
 * the same random numbers. tests/models/scaled.lua makes each of the three a
 * gradient, read off the first moment. Each expert of several, whose tokens
 * differ by a lot, is compared with its own largest (scaled_experts.lua). */
#include "../../codegen/text/host.pre"
#include "../../ir/base/narrow.pre"
#include "../../codegen/text/math.pre"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { T = 160, H = 200, N = 136, MOST = H * H };

/* Sums of 200 terms in another order, and roundings of what scales divide. */
static const double TOL = 1e-13;

/* rows x cols: of elements that share a scale, 0: all. */
typedef struct Block {
    int rows, cols;
} Block;

/* How an operand is rounded, given as what a product sums over its columns. */
typedef double Inverse(double amax, double largest, double all);
typedef struct Rounding {
    Dtype to;
    Block block;
    Inverse *inverse; /* of a block: what a stored number stands for */
    int random;       /* up or down, not to the nearest */
    int64_t key;      /* of the random numbers */
    int down;         /* an element's number counts down the columns first */
} Rounding;

typedef struct Recipe {
    const char *name;
    Rounding value, weight, gradient;
    int turned; /* operands of the weight's gradient, by a Hadamard matrix */
    int kept;   /* the weight's gradient reads what the product does */
} Recipe;

static int failed;

/* ---- scales, by the published formulas ----------------------------------- */

static double by_amax(double amax, double largest, double all)
{
    (void)all;
    return amax == 0 ? 1 : amax / largest;
}

static double by_pow2(double amax, double largest, double all)
{
    (void)all;
    return amax == 0 ? 1 : 1 / exp2(floor(log2(largest / amax)));
}

static double by_e8m0(double amax, double largest, double all)
{
    (void)all;
    return amax == 0 ? exp2(-127) : exp2(ceil(log2(amax / largest)));
}

static double by_e4m3(double amax, double largest, double all)
{
    double t = all == 0 ? 1 : 6 * 448 / all;
    return dtype_rounded(De4m3, (float)(amax / largest * t)) / t;
}

/* With no history: a delayed scale in the first step. */
static double by_nothing(double amax, double largest, double all)
{
    (void)amax, (void)largest, (void)all;
    return 1;
}

/* precision.margin=1, of a step whose magnitudes are those of this one. */
static double by_margin(double amax, double largest, double all)
{
    return 2 * by_amax(amax, largest, all);
}

#define TO(dtype, high, wide, of, either)                                     \
    {                                                                         \
        .to = dtype, .block = { high, wide }, .inverse = of, .random = either \
    }
#define ROW(of, of_value, of_weight, of_gradient, turns)    \
    {                                                       \
        .name = of, .value = of_value, .weight = of_weight, \
        .gradient = of_gradient, .turned = turns            \
    }
#define DELAYED(of)                                       \
    ROW("delayed precision.history=1 precision.margin=1", \
        TO(De4m3, 0, 0, of, 0), TO(De4m3, 0, 0, of, 0),   \
        TO(De5m2, 0, 0, of, 0), 0)
static const Recipe second_delayed = DELAYED(by_margin);

static const Recipe recipes[] = {
    DELAYED(by_nothing),
    ROW("blockwise", TO(De4m3, 1, 128, by_pow2, 0),
        TO(De4m3, 128, 128, by_pow2, 0), TO(De4m3, 1, 128, by_pow2, 0), 0),
    { .name = "blockwise precision.kept=rounded",
      .value = TO(De4m3, 1, 128, by_pow2, 0),
      .weight = TO(De4m3, 128, 128, by_pow2, 0),
      .gradient = TO(De4m3, 1, 128, by_pow2, 0),
      .kept = 1 },
    ROW("tensor", TO(De4m3, 0, 0, by_amax, 0), TO(De4m3, 0, 0, by_amax, 0),
        TO(De5m2, 0, 0, by_amax, 0), 0),
    ROW("mxfp8", TO(De4m3, 1, 32, by_e8m0, 0), TO(De4m3, 1, 32, by_e8m0, 0),
        TO(De4m3, 1, 32, by_e8m0, 0), 0),
    ROW("nvfp4", TO(De2m1x2, 1, 16, by_e4m3, 0),
        TO(De2m1x2, 16, 16, by_e4m3, 0), TO(De2m1x2, 1, 16, by_e4m3, 1), 1),
};

/* ---- rounding ------------------------------------------------------------ */

/* To the nearest of the numbers of e2m1, ties to the even code. */
static double to_e2m1(double x)
{
    static const double number[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    int best = 0;

    for (int i = 1; i < 8; i++) {
        double d = fabs(fabs(x) - number[i]) - fabs(fabs(x) - number[best]);
        if (d < 0 || (d == 0 && i % 2 == 0))
            best = i;
    }
    return copysign(number[best], x);
}

/* To either of the neighbours, by the number of element `at` in the step 0. */
static double to_either(double x, int64_t key, int at)
{
    static const double number[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 6 };
    double a = fabs((double)(float)x);
    int low = 0;

    while (low < 7 && number[low + 1] <= a)
        low++;
    double step = number[low + 1] - number[low];
    if (step > 0 &&
        (double)uniform_at_f32(key, at, 0, 0) < (a - number[low]) / step)
        low++;
    return copysign(number[low], x);
}

static double rounded(const Rounding *w, double x, int at)
{
    Dtype t = w->to;

    if (w->random)
        return to_either(x, w->key, at);
    return t == De2m1x2 ? to_e2m1(x) : dtype_rounded(t, (float)x);
}

static double largest_in(const double *x, int cols, int r0, int r1, int c0,
                         int c1)
{
    double most = 0;

    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++)
            most = fmax(most, fabs(x[r * cols + c]));
    return most;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* x [rows cols] as what its numbers and scales stand for. */
static void round_blocks(const double *x, int rows, int cols, const Rounding *w,
                         double *out)
{
    int high = w->block.rows ? w->block.rows : rows;
    int wide = w->block.cols ? w->block.cols : cols;
    double largest = w->to == De2m1x2 ? 6 : dtype_rounded(w->to, FLT_MAX);
    double all = largest_in(x, cols, 0, rows, 0, cols);

    for (int r0 = 0; r0 < rows; r0 += high)
        for (int c0 = 0; c0 < cols; c0 += wide) {
            int r1 = least(r0 + high, rows), c1 = least(c0 + wide, cols);
            double one =
                w->inverse(largest_in(x, cols, r0, r1, c0, c1), largest, all);
            for (int r = r0; r < r1; r++)
                for (int c = c0; c < c1; c++)
                    out[r * cols + c] =
                        one == 0
                            ? 0
                            : rounded(w, x[r * cols + c] / one,
                                      w->down ? c * rows + r : r * cols + c) *
                                  one;
        }
}

static void turned(const double *x, int rows, int cols, double *out)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            out[c * rows + r] = x[r * cols + c];
}

/* Columns of x in blocks of 16 times the matrix, as the seed 0 signs it. */
static void turn(double *x, int rows, int cols)
{
    int signs = (int)(mix64(0, 16) & 0xffff);
    double was[16];

    for (int at = 0; at < rows * cols; at += 16) {
        memcpy(was, x + at, sizeof was);
        for (int i = 0; i < 16; i++) {
            double sum = 0;
            for (int j = 0; j < 16; j++)
                sum += (double)hadamard_sign_f32((float)i, (float)j,
                                                 (float)signs) *
                       was[j];
            x[at + i] = sum / 4;
        }
    }
}

/* As passes/quant/fp8.c makes it of parameter w and seed 0. */
static int64_t key_of(int own_gradient)
{
    uint64_t h = mix64(0, 'w');

    return (int64_t)(mix64(h, (uint64_t)own_gradient) >> 1) | 1;
}

/* out [m n] = x [m k] y^T, y [n k] */
static void exact_product(const double *x, const double *y, int m, int n, int k,
                          double *out)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += x[i * k + l] * y[j * k + l];
            out[i * n + j] = sum;
        }
}

/* The same of both rounded. */
static void product(const double *a, const Rounding *of_a, const double *b,
                    const Rounding *of_b, int m, int n, int k, double *out)
{
    static double x[MOST], y[MOST];

    round_blocks(a, m, k, of_a, x);
    round_blocks(b, n, k, of_b, y);
    exact_product(x, y, m, n, k, out);
}

/* The weight's gradient [H N] by x as it was rounded for the product. */
static void kept_product(const double *x, const Rounding *of_x,
                         const double *ct, double *out)
{
    static double rounded[T * H], turned_back[H * T];

    round_blocks(x, T, H, of_x, rounded);
    turned(rounded, T, H, turned_back);
    exact_product(turned_back, ct, H, N, T, out);
}

/* ---- comparing ----------------------------------------------------------- */

/* before: of the moment that the step found; null: 0. */
static void compare(Exec *x, const char *recipe, const char *name,
                    const double *before, const double *want, int n)
{
    int64_t have;
    const double *got = fold_read(x, strf(forever, "optim.m.%s", name), &have);
    double most = have == n ? 0 : INFINITY, largest = 0;

    for (int i = 0; i < n && have == n; i++) {
        double old = before ? 0.9 * before[i] : 0;
        double d = fabs((got[i] - old) / (1 - 0.9) - want[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
        largest = fmax(largest, fabs(want[i]));
    }
    failed += !(most <= TOL * largest);
    printf("%sok - %s, gradient of %s: difference %.2g of its largest, at most "
           "%.0e\n",
           most <= TOL * largest ? "" : "not ", recipe, name, most / largest,
           TOL);
}

static double small(int h)
{
    return h < 100 ? 1 : exp2(-20);
}

/* The three gradients of the step that was run. */
static void compare_step(Exec *e, const Recipe *r, const double *x,
                         const double *w, const double *c,
                         double *const before[3])
{
    static double xt[H * T], wt[N * H], ct[N * T];
    static double y[T * N], dx[T * H], dw[H * N];
    Rounding gradient = r->gradient, own = r->gradient;

    gradient.key = key_of(0);
    own.key = key_of(1);
    own.down = 1;
    turned(x, T, H, xt);
    turned(w, H, N, wt);
    turned(c, T, N, ct);
    product(x, &r->value, wt, &r->weight, T, N, H, y);
    product(c, &gradient, w, &r->weight, T, H, N, dx);
    if (r->turned) {
        turn(xt, H, T);
        turn(ct, N, T);
    }
    if (r->kept)
        kept_product(x, &r->value, ct, dw);
    else
        product(xt, &r->value, ct, &own, H, N, T, dw);
    for (int i = 0; i < T * H; i++)
        dx[i] *= i / H < 16 ? 0 : small(i % H);
    compare(e, r->name, "c", before[0], y, T * N);
    compare(e, r->name, "p", before[1], dx, T * H);
    compare(e, r->name, "w", before[2], dw, H * N);
}

static double out_named(const Exec *e, const char *name)
{
    const Role *role = exec_role(e, 0);

    for (int i = 0; i < role->nout; i++)
        if (!strcmp(role->out[i].name, name))
            return exec_out(e, i);
    return NAN;
}

static void watched(const Exec *e, const Recipe *r, const double *x)
{
    static double out[T * H];
    double most = 0, lost = 0;

    round_blocks(x, T, H, &r->value, out);
    for (int i = 0; i < T * H; i++) {
        most = fmax(most, fabs(x[i]));
        lost += x[i] != 0 && out[i] == 0;
    }
    double amax = out_named(e, "metric.fp8.activations.amax");
    double flushed = out_named(e, "metric.fp8.activations.flushed");
    int same = fabs(amax / most - 1) < 1e-6 &&
               fabs(flushed - lost / (T * H)) < 1e-6 && lost > 0;
    failed += !same;
    printf("%sok - %s: amax %g, %g of it becomes 0\n", same ? "" : "not ",
           r->name, amax, flushed);
}

/* The moments so far, in memory of the plan's. */
static void read_moments(Exec *e, double *m[3])
{
    static const char *const name[3] = { "optim.m.c", "optim.m.p",
                                         "optim.m.w" };
    int64_t n;

    for (int i = 0; i < 3; i++)
        m[i] = fold_read(e, name[i], &n);
}

/* Tokens of which the model makes rows of zeros. */
static void fill_absent(void *self, const Tensor *t, int64_t rank,
                        int64_t micro, void *to)
{
    int32_t *token = to;

    (void)self, (void)t, (void)rank, (void)micro;
    for (int i = 0; i < T; i++)
        token[i] = -1;
}

/* A step whose scales are of the one before; one in which x is 0 throughout,
 * which leaves the scale of x; and one with that. */
static void later_steps(Exec *e, const StepValues *block, const Feed *feed,
                        const double *x, const double *w, const double *c)
{
    double *m[3];

    read_moments(e, m);
    exec_exact(e, PGstep, block, feed);
    compare_step(e, &second_delayed, x, w, c, m);
    exec_exact(e, PGstep, block, &(Feed){ .fill = fill_absent });
    read_moments(e, m);
    exec_exact(e, PGstep, block, feed);
    compare_step(e, &second_delayed, x, w, c, m);
}

static void one_recipe(const Recipe *r)
{
    static double x[T * H], w[H * N], c[T * N];
    static double *none[3];
    Plan *p =
        fold_words("tests/models/scaled.lua", strf(forever,
                                                   "precision=fp64 world=1 "
                                                   "precision.watch=1 "
                                                   "precision.recipe=%s",
                                                   r->name));
    Exec *e = exec_open(p, comm_open(forever, 1));
    StepValues block = fold_block(p, 0);
    Feed f = fold_feed(p, 0);
    int64_t n;

    block.lr = 0;

    exec_run(e, PGinit, NULL, NULL);
    memcpy(x, fold_read(e, "p", &n), sizeof x);
    memcpy(w, fold_read(e, "w", &n), sizeof w);
    memcpy(c, fold_read(e, "c", &n), sizeof c);
    exec_exact(e, PGstep, &block, &f);
    for (int i = 0; i < T * H; i++)
        x[i] *= i / H < 16 ? 0 : small(i % H);
    compare_step(e, r, x, w, c, none);
    if (!strcmp(r->name, "tensor"))
        watched(e, r, x);
    if (r->value.inverse == by_nothing)
        later_steps(e, &block, &f, x, w, c);
    exec_close(e);
}

/* ---- experts ------------------------------------------------------------- */

enum { EXPERTS = 4 };

/* Rows of each, one behind the other, as the model says. */
static const int first[EXPERTS + 1] = { 0, 100, 100, 101, 160 };

/* Expert x's n numbers of the gradient of `name` from `at` on. */
static void compare_expert(Exec *e, const char *name, int x, int at,
                           const double *want, int n)
{
    int64_t all;
    const double *got =
        at + fold_read(e, strf(forever, "optim.m.%s", name), &all);
    double most = 0, largest = 0;

    for (int i = 0; i < n; i++) {
        double d = fabs(got[i] / (1 - 0.9) - want[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
        largest = fmax(largest, fabs(want[i]));
    }
    int ok =
        most <= TOL * largest && (largest > 0) == (first[x + 1] > first[x]);
    failed += !ok;
    printf("%sok - expert %d of %d rows, gradient of %s: difference %.2g of "
           "its largest, %.2g\n",
           ok ? "" : "not ", x, first[x + 1] - first[x], name,
           largest > 0 ? most / largest : most, largest);
}

/* p [T H], w [H N] of expert x, c [T N] */
static void one_expert(Exec *e, int x, const double *p, const double *w,
                       const double *c)
{
    static const Rounding row = TO(De4m3, 1, 128, by_pow2, 0),
                          square = TO(De4m3, 128, 128, by_pow2, 0);
    static double rows[T * H], xt[H * T], wt[N * H], ct[N * T];
    static double y[T * N], dx[T * H], dw[H * N];
    int r0 = first[x], n = first[x + 1] - r0;
    double small = exp2(-10 * x);

    for (int i = 0; i < n * H; i++)
        rows[i] = p[r0 * H + i] * small;
    turned(w, H, N, wt);
    turned(rows, n, H, xt);
    turned(c + r0 * N, n, N, ct);
    product(rows, &row, wt, &square, n, N, H, y);
    product(c + r0 * N, &row, w, &square, n, H, N, dx);
    memset(dw, 0, sizeof dw);
    if (n)
        product(xt, &row, ct, &row, H, N, n, dw);
    for (int i = 0; i < n * H; i++)
        dx[i] *= small;
    compare_expert(e, "c", x, r0 * N, y, n * N);
    compare_expert(e, "p", x, r0 * H, dx, n * H);
    compare_expert(e, "w", x, x * H * N, dw, H * N);
}

static void experts(void)
{
    static double p[T * H], w[EXPERTS * H * N], c[T * N];
    Plan *plan = fold_words("tests/models/scaled_experts.lua",
                            "precision=fp64 world=1 precision.recipe=blockwise "
                            "precision.place=all precision.wgrad=all");
    Exec *e = exec_open(plan, comm_open(forever, 1));
    StepValues block = fold_block(plan, 0);
    Feed f = fold_feed(plan, 0);
    int64_t n;

    exec_run(e, PGinit, NULL, NULL);
    memcpy(p, fold_read(e, "p", &n), sizeof p);
    memcpy(w, fold_read(e, "w", &n), sizeof w);
    memcpy(c, fold_read(e, "c", &n), sizeof c);
    exec_exact(e, PGstep, &block, &f);
    for (int x = 0; x < EXPERTS; x++)
        one_expert(e, x, p, w + x * H * N, c);
    exec_close(e);
}

int main(void)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        one_recipe(&recipes[i]);
    experts();
    return failed != 0;
}
