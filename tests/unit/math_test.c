/* math_test: the functions of host.pre against libm in double. Errors are in
 * units of the last place of the right result; limits are what was measured,
 * rounded up, so a change for the worse is seen. */
#include "../../codegen/text/host.pre"
#include "../../ir/base/narrow.pre"
#include "../../codegen/text/math.pre"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int failed;

typedef struct Row {
    const char *name;
    float (*f)(float x);
    double (*want)(double x);
    float lo, hi;
    double ulps;
    int zero; /* 1: passes through zero */
} Row;

static double d_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double d_softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}
static double d_gelu(double x)
{
    return x * 0.5 * erfc(-x / sqrt(2));
}
static double d_dgelu(double x)
{
    return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
}

/* Near a zero of a function only the absolute error counts: the unit is that of
 * 1/8 at least. */
static const Row rows[] = {
    { "exp", exp_f32, exp, -103, 88, 2, 0 },
    { "log", log_f32, log, 1e-44f, 3e38f, 2, 1 },
    { "log near 1", log_f32, log, 0.5f, 2, 2, 1 },
    { "sigmoid", sigmoid_f32, d_sigmoid, -80, 80, 4, 0 },
    { "tanh", tanh_f32, tanh, -12, 12, 3, 1 },
    { "softplus", softplus_f32, d_softplus, -80, 80, 3, 0 },
    { "erf", erf_f32, erf, -5, 5, 3, 1 },
    { "sin", sin_f32, sin, -30, 30, 2, 1 },
    { "cos", cos_f32, cos, -30, 30, 2, 1 },
    { "sin far", sin_f32, sin, -1e6f, 1e6f, 2, 1 },
    { "cos far", cos_f32, cos, -1e6f, 1e6f, 2, 1 },
    { "gelu", gelu_f32, d_gelu, -3, 6, 6, 1 },
    { "dgelu", dgelu_f32, d_dgelu, -3, 6, 6, 1 },
};

static double unit(double x, float least)
{
    float a = (float)fabs(x);

    a = a < least ? least : a;
    return (double)(nextafterf(a, INFINITY) - a);
}

static void sweep(const Row *r)
{
    enum { STEPS = 400000 };
    double worst = 0;
    float at = 0;

    for (int i = 0; i <= STEPS; i++) {
        double t = (double)i / STEPS;
        float x = r->lo > 0 ? (float)(r->lo * pow((double)r->hi / r->lo, t))
                            : (float)(r->lo + ((double)r->hi - r->lo) * t);
        double want = r->want((double)x), e = fabs((double)r->f(x) - want);
        e /= unit(want, r->zero ? 0.125f : FLT_MIN);
        if (!(e <= worst))
            worst = e, at = x;
    }
    failed += !(worst <= r->ulps);
    printf("%sok - math %s: %.2f units at %g, at most %g\n",
           worst <= r->ulps ? "" : "not ", r->name, worst, (double)at, r->ulps);
}

typedef struct Edge {
    const char *name;
    float got, want;
} Edge;

static int same(float a, float b)
{
    return a == b || (a != a && b != b);
}

static void edges(void)
{
    const float inf = INFINITY, nan_ = NAN;
    /* clang-format off */
    const Edge e[] = {
        { "exp(-inf)", exp_f32(-inf), 0 }, { "exp(inf)", exp_f32(inf), inf },
        { "exp(nan)", exp_f32(nan_), nan_ }, { "exp(0)", exp_f32(0), 1 },
        { "exp(89)", exp_f32(89), inf }, { "exp(-200)", exp_f32(-200), 0 },
        { "log(0)", log_f32(0), -inf }, { "log(-1)", log_f32(-1), nan_ },
        { "log(inf)", log_f32(inf), inf }, { "log(1)", log_f32(1), 0 },
        { "log(nan)", log_f32(nan_), nan_ },
        { "tanh(inf)", tanh_f32(inf), 1 }, { "tanh(-inf)", tanh_f32(-inf), -1 },
        { "tanh(nan)", tanh_f32(nan_), nan_ },
        { "sigmoid(-inf)", sigmoid_f32(-inf), 0 },
        { "sigmoid(inf)", sigmoid_f32(inf), 1 },
        { "softplus(-inf)", softplus_f32(-inf), 0 },
        { "softplus(inf)", softplus_f32(inf), inf },
        { "softplus(nan)", softplus_f32(nan_), nan_ },
        { "sin(inf)", sin_f32(inf), nan_ }, { "cos(nan)", cos_f32(nan_), nan_ },
        { "dgelu(inf)", dgelu_f32(inf), 1 },
        { "gelu(inf)", gelu_f32(inf), inf },
        { "pow(2, 10)", pow_f32(2, 10), 1024 },
        { "pow(-2, 3)", pow_f32(-2, 3), -8 },
        { "pow(-2, 0.5)", pow_f32(-2, 0.5f), nan_ },
        { "pow(0, 2)", pow_f32(0, 2), 0 },
        { "pow(0, -1)", pow_f32(0, -1), inf },
        { "pow(0, 0)", pow_f32(0, 0), 1 },
        { "pow(nan, 1)", pow_f32(nan_, 1), nan_ },
        { "pow(10, -5)", pow_f32(10, -5), 1e-5f },
        { "bf16(1 + 2^-8)", rbf_f32(1.00390625f), 1 },
        { "bf16(1 + 3 * 2^-8)", rbf_f32(1.01171875f), 1.015625f },
        { "bf16(inf)", rbf_f32(inf), inf },
        { "bf16(nan)", rbf_f32(nan_), nan_ },
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof e / sizeof *e; i++) {
        int good = same(e[i].got, e[i].want);
        failed += !good;
        printf("%sok - math %s is %g, want %g\n", good ? "" : "not ", e[i].name,
               (double)e[i].got, (double)e[i].want);
    }
}

/* Moments of a million normals: 5 standard deviations of each estimate. */
static void normals(void)
{
    enum { N = 1 << 20 };
    double s[4] = { 0 };

    for (int i = 0; i < N; i++) {
        double x = (double)normal_f32(12345, i), p = x;
        for (int k = 0; k < 4; k++, p *= x)
            s[k] += p / N;
    }
    const double want[4] = { 0, 1, 0, 3 }, sd[4] = { 1, 1.4143, 3.873, 9.8 };
    for (int k = 0; k < 4; k++) {
        int good = fabs(s[k] - want[k]) < 5 * sd[k] / 1024;
        failed += !good;
        printf("%sok - math moment %d of normals: %.4f\n", good ? "" : "not ",
               k + 1, s[k]);
    }
}

/* Salmon et al. 2011, known answers of philox4x32-10. */
static void known_answers(void)
{
    /* clang-format off */
    static const struct {
        int64_t key, counter;
        uint32_t c, d, want[4];
    } t[] = {
        { 0, 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { -1, -1, 0xffffffff, 0xffffffff,
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822, (int64_t)0x85a308d3243f6a88, 0x13198a2e,
          0x03707344, { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint32_t x[4];
        philox(t[i].key, t[i].counter, t[i].c, t[i].d, x);
        int good = !memcmp(x, t[i].want, sizeof x);
        failed += !good;
        printf("%sok - math philox known answer %zu\n", good ? "" : "not ", i);
    }
}

/* ---- narrow.pre ---------------------------------------------------------- */

static uint32_t mixed(int64_t i)
{
    uint32_t z = (uint32_t)i * 0x9e3779b9u + 0x7f4a7c15u;

    z = (z ^ z >> 16) * 0x85ebca6bu;
    z = (z ^ z >> 13) * 0xc2b2ae35u;
    return z ^ z >> 16;
}

/* All numbers of bf16, then fp32 of random bits, every other one between 2^-22
 * and 2^9: subnormals of narrow dtypes, ties, what overflows. */
static float sample(int64_t i)
{
    uint32_t r = mixed(i - 65536);

    if (i < 65536)
        return f32_bits((int32_t)((uint32_t)i << 16));
    return f32_bits((
        int32_t)(i & 1 ? (r & 0x83ffffffu) | (105 + (r >> 26 & 31)) << 23 : r));
}

/* What PyTorch makes of them, a sum of codes by weights: data/narrow.py. */
static void narrow(void)
{
    static const struct {
        const char *name;
        int32_t (*code)(float x);
        uint32_t want;
    } row[] = {
        { "e4m3", e4m3_code, 0xe8fa7312 },
        { "e5m2", e5m2_code, 0xe8d331d6 },
        { "e8m0", e8m0_code, 0xa24f0ccf },
        { "e2m1", e2m1_code, 0x504a4e26 },
    };

    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < 65536 + 10000000; i++)
            sum += (uint32_t)row[k].code(sample(i)) * (mixed(i + 77) | 1);
        failed += sum != row[k].want;
        printf("%sok - math %s of 65536 bf16 and 10^7 fp32: %08x\n",
               sum == row[k].want ? "" : "not ", row[k].name, sum);
    }
}

/* Each value is made of its code again, and is between its neighbours. */
static void narrow_values(void)
{
    static const struct {
        const char *name;
        int32_t (*code)(float x);
        float (*value)(int32_t c);
        int32_t last;
        float largest, least;
    } row[] = {
        { "e4m3", e4m3_code, e4m3_value, 0x7e, 448, 0x1p-9f },
        { "e5m2", e5m2_code, e5m2_value, 0x7b, 57344, 0x1p-16f },
        { "e8m0", e8m0_code, e8m0_value, 0xfe, 0x1p127f, 0x1p-126f },
        { "e2m1", e2m1_code, e2m1_value, 7, 6, 0.5f },
    };

    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        int good = row[k].value(row[k].last) == row[k].largest &&
                   row[k].value(1) == row[k].least;
        for (int32_t c = 1; c <= row[k].last; c++)
            good &= row[k].code(row[k].value(c)) == c &&
                    row[k].value(c) > row[k].value(c - 1);
        failed += !good;
        printf("%sok - math values of %s\n", good ? "" : "not ", row[k].name);
    }
}

/* Always a neighbour, itself where bf16 has it, and over steps its mean. */
static void stochastic(void)
{
    static const float x[] = { 1.0009765625f,   -3.14159274f, 1e-20f, 0.75f,
                               0x1.fffffep127f, 0x1p-140f,    0 };
    enum { STEPS = 40000 };

    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        float low = f32_bits(bits_f32(x[i]) & (int32_t)0xffff0000u);
        float high = f32_bits((int32_t)((uint32_t)bits_f32(low) + 0x10000u));
        float last = high == low || !isfinite(high) ? 0 : high - low;
        double sum = 0;
        int good = 1;
        for (int s = 0; s < STEPS; s++) {
            float y = stochastic_bf16_f32(x[i], (float)s);
            good &= y == low || (y == high && x[i] != low);
            sum += last != 0 ? (double)(y - x[i]) / last : 0;
        }
        good &= fabs(sum / STEPS) < 3 * 0.5 / sqrt(STEPS);
        failed += !good;
        printf("%sok - math stochastic rounding of %g: mean %.4f last places "
               "off\n",
               good ? "" : "not ", x[i], sum / STEPS);
    }
    float nan = stochastic_bf16_f32(NAN, 3), inf = -INFINITY;
    int good = isnan(nan) && stochastic_bf16_f32(inf, 3) == inf;
    failed += !good;
    printf("%sok - math stochastic rounding keeps infinities and NaN\n",
           good ? "" : "not ");
}

/* bf16 and what it has not of x make x again: of every bf16 those around the
 * middle and the ends of what rounds to it. One in 131072 is a last place off,
 * and that one rounds to the same and comes back whole. */
static void remainders(void)
{
    static const uint32_t low[] = { 0,      1,      0x1234, 0x7fff,
                                    0x8000, 0x8001, 0xabcd, 0xffff };
    int good = 1, off = 0;

    for (uint32_t high = 0; high < 0x10000; high++)
        for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
            const float x = f32_bits((int32_t)(high << 16 | low[i]));
            const float y = join_bf16_f32(rbf_f32(x), remainder_bf16_f32(x));
            const int tie = low[i] == 0x8000 && high % 2 == 0;
            if (isnan(x)) {
                good &= isnan(y);
                continue;
            }
            good &= bits_f32(y) == bits_f32(x) - tie;
            good &= bits_f32(rbf_f32(y)) == bits_f32(rbf_f32(x));
            good &=
                bits_f32(join_bf16_f32(rbf_f32(y), remainder_bf16_f32(y))) ==
                bits_f32(y);
            off += tie;
        }
    failed += !good;
    printf("%sok - math bf16 and remainders make fp32 again, but for %d ties\n",
           good ? "" : "not ", off);
}

/* Always a neighbour, and over random numbers the mean. */
static void stochastic_e2m1(void)
{
    static const float x[] = { 0.1f, -0.3f, 0.75f, 1.9f, -2.2f,
                               3.9f, 5.9f,  -4.5f, 6,    0x1p-20f };
    enum { DRAWS = 40000 };

    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        float last = a < 2 ? 0.5f : a < 4 ? 1 : 2;
        double sum = 0;
        int good = 1;
        for (int s = 0; s < DRAWS; s++) {
            float u = uniform_at_f32(7, s, 0, 0);
            float y = e2m1_value((int32_t)stochastic_e2m1_f32(x[i], u));
            good &= fabsf(y - x[i]) < last;
            sum += (double)((y - x[i]) / last);
        }
        good &= fabs(sum / DRAWS) < 3 * 0.5 / sqrt(DRAWS);
        failed += !good;
        printf("%sok - math stochastic e2m1 of %g: mean %.4f places off\n",
               good ? "" : "not ", x[i], sum / DRAWS);
    }
    int good = stochastic_e2m1_f32(1e9f, 0) == 7 &&
               stochastic_e2m1_f32(-INFINITY, 0) == 15 &&
               stochastic_e2m1_f32(NAN, 0) == 7 &&
               stochastic_e2m1_f32(1.5f, 0) == 3;
    failed += !good;
    printf("%sok - math stochastic e2m1 saturates, keeps what it has\n",
           good ? "" : "not ");
}

/* The matrix / 4 and then its transpose / 4 leave sums of few powers of two as
 * they are, to the bit: the inverse is the transpose. */
static void hadamard(void)
{
    int good = 1;

    for (int k = 0; k < 4096; k++) {
        float x[16], y[16] = { 0 }, m = (float)(k * 37 % 65536);
        for (int i = 0; i < 16; i++)
            x[i] = ldexpf(k >> i % 12 & 1 ? -1 : 1, (int)(mixed(k + i) % 16));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++)
                y[i] += hadamard_sign_f32((float)i, (float)j, m) * x[j] / 4;
        for (int j = 0; j < 16; j++) {
            float z = 0;
            for (int i = 0; i < 16; i++)
                z += hadamard_sign_f32((float)i, (float)j, m) * y[i] / 4;
            good &= z == x[j];
        }
    }
    failed += !good;
    printf("%sok - math Hadamard and back\n", good ? "" : "not ");
}

int main(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        sweep(&rows[i]);
    edges();
    normals();
    known_answers();
    narrow();
    narrow_values();
    stochastic();
    remainders();
    stochastic_e2m1();
    hadamard();
    return failed > 0;
}
