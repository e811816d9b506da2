/* rate_test: learning rates of every schedule at its corners and between
 * them, and the parts of a batch's ramp, worked out by hand from the formulas
 * in lr_schedule.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "../../runtime/runtime.h"

typedef struct Row {
    const char *keys;
    int64_t step;
    double want;
} Row;

#define WSD                                               \
    "train.schedule=wsd train.steps=100 train.warmup=10 " \
    "train.decay=0.2"

/* clang-format off */
static const Row rows[] = {
    /* of lr=1 min_lr=0.1                                step  rate */
    { "train.schedule=constant",                            7, 1 },
    { "train.schedule=constant train.warmup=4",             0, 0.25 },
    { "train.schedule=linear train.steps=100",              0, 1 },
    { "train.schedule=linear train.steps=100",             50, 0.55 },
    { "train.schedule=linear train.steps=100",            100, 0.1 },
    { "train.schedule=linear train.steps=100",            999, 0.1 },
    { "train.schedule=linear train.steps=110 train.warmup=10", 35, 0.775 },
    { "train.schedule=cosine train.steps=100",             50, 0.55 },
    { "train.schedule=cosine train.steps=90",              30, 0.775 },
    { "train.schedule=0:1,0.5:0,1:1 train.steps=100",       0, 1 },
    { "train.schedule=0:1,0.5:0,1:1 train.steps=100",      25, 0.55 },
    { "train.schedule=0:1,0.5:0,1:1 train.steps=100",      50, 0.1 },
    { "train.schedule=0:1,0.5:0,1:1 train.steps=100",     100, 1 },
    { "train.schedule=0:0.5,1:0 train.steps=110 train.warmup=10", 60, 0.325 },
    { "train.schedule=inverse_sqrt train.warmup=4",         3, 1 },
    { "train.schedule=inverse_sqrt train.warmup=4",        15, 0.5 },
    { "train.schedule=inverse_sqrt train.warmup=4",      9999, 0.1 },
    { WSD,                                                  4, 0.5 },
    { WSD,                                                 79, 1 },
    { WSD,                                                 80, 1 },
    { WSD " train.decay_style=linear",                     90, 0.55 },
    { WSD " train.decay_style=cosine",                     90, 0.55 },
    { WSD " train.decay_style=minus_sqrt",                 85, 0.55 },
    { WSD " train.decay_style=exponential",               100, 0.1 },
    { WSD,                                                 90, 0.47279220613578553 },
};
/* clang-format on */

static Opts *options(const char *keys)
{
    Opts *o = opts_new(forever);
    char *s = strf(forever, "train.lr=1 train.min_lr=0.1 %s", keys);

    for (char *p = strtok(s, " "); p; p = strtok(NULL, " ")) {
        char *value = strchr(p, '=');
        *value++ = 0;
        opts_set(o, p, value, NULL);
    }
    return o;
}

static void values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double have = rate(options(rows[i].keys), rows[i].step);
        if (have - rows[i].want > 1e-15 || rows[i].want - have > 1e-15)
            fail_msg("%s at %lld: %.17g, not %.17g", rows[i].keys,
                     (long long)rows[i].step, have, rows[i].want);
    }
}

/* From 4 to 16 by 4 in three parts of 70 sequences: ends are rounded down. */
static void ramps(void **state)
{
    static const int64_t batch[] = { 4, 8, 12, 0 }, until[] = { 23, 46, 70, 0 };
    const Opts *o = options("train.ramp=4,4,70 train.batch=16");
    int64_t end;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ramp(o, i, &end), batch[i]);
        assert_int_equal(end, until[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(values),
                                        cmocka_unit_test(ramps) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
