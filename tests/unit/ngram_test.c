/* ngram_test: n-gram losses of a text that fits a sheet of paper, against the
 * same sums written out; and of text that is none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../../runtime/runtime.h"

enum { SEQ = 4, A = 'a', B = 'b', C = 'c' };

/* The two data files, in place of data.c. */
struct Data {
    int64_t n;
    int32_t s[2][SEQ + 1];
};

int64_t data_samples(const Data *d)
{
    return d->n;
}

int64_t data_sample(const Data *d, int64_t i, int32_t *out)
{
    for (int k = 0; out && k <= SEQ; k++)
        out[k] = d->s[i % d->n][k];
    return SEQ + 1;
}

static const Data train = { 1, { { A, B, A, B, A } } };
static const Data valid = { 1, { { A, B, A, C, A } } };

/* Counted are b a b a after their contexts. Witten-Bell by hand. */
static void losses(void **state)
{
    double u = 1.0 / 256, a = (2 + 2 * u) / 6, c = 2 * u / 6, b = a;
    double b_a = (2 + b) / 3, a_b = (2 + a) / 3, c_a = c / 3, a_c = a;
    double a_ab = (2 + a_b) / 3, c_ba = c_a / 2, a_ac = a_c;
    /* clang-format off */
    double want[NGRAM] = {
        -log(b * a * c * a) / SEQ,
        -log(b_a * a_b * c_a * a_c) / SEQ,
        -log(b_a * a_ab * c_ba * a_ac) / SEQ,
    };
    /* clang-format on */
    double got[NGRAM];

    (void)state;
    assert_int_equal(ngrams(forever, &train, &valid, 1, got), 1);
    for (int i = 0; i < NGRAM; i++)
        assert_true(fabs(got[i] - want[i]) < 1e-14);
    assert_int_equal(ngrams(forever, &train, &valid, 3, got), 1);
    assert_true(fabs(got[2] - want[2]) < 1e-14);
}

static void no_bytes(void **state)
{
    Data words = train;
    double got[NGRAM];

    (void)state;
    words.s[0][2] = 256;
    assert_int_equal(ngrams(forever, &words, &valid, 1, got), 0);
    assert_int_equal(ngrams(forever, &train, &words, 1, got), 0);
    words.s[0][2] = -1;
    assert_int_equal(ngrams(forever, &words, &valid, 1, got), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses),
        cmocka_unit_test(no_bytes),
    };

    return cmocka_run_group_tests_name("ngram", tests, NULL, NULL);
}
