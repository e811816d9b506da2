/* compared_test: a mask of real scores is one value: attention lets through
 * just the keys that it says outside, in every precision
 * (tests/models/compared.lua). */
#include <stdio.h>
#include <string.h>

#include "../fold/foldrun.h"

static int failed;

static int differing(const double *a, const double *b, int64_t n)
{
    int count = 0;

    for (int64_t i = 0; i < n; i++)
        count += a[i] != b[i];
    return count;
}

static void compare(Exec *x, const char *precision, const char *name)
{
    static double outside[1 << 12];
    const double *inside;
    int64_t n, m;

    inside = fold_read(x, strf(forever, "%s_outside", name), &n);
    memcpy(outside, inside, (size_t)n * sizeof *inside);
    inside = fold_read(x, strf(forever, "%s_inside", name), &m);
    int wrong = m != n || differing(outside, inside, n);
    int all = differing(outside, (double[1 << 12]){ 0 }, n);
    failed += wrong || !all;
    printf("%sok - %s, mask %s: %d of %d keys, the same inside\n",
           wrong || !all ? "not " : "", precision, name, all, (int)n);
}

int main(void)
{
    static const char *const names[] = { "topk", "max",  "again", "derived",
                                         "sign", "kink", "causal" };
    static const char *const precisions[] = { "fp64", "fp32", "bf16" };
    Plan *p[3];

    for (int i = 0; i < 3; i++)
        p[i] = fold_words("tests/models/compared.lua",
                          strf(forever, "precision=%s world=1", precisions[i]));
    fold_share(p, 3);
    for (int i = 0; i < 3; i++) {
        Exec *x = exec_open(p[i], comm_open(forever, 1));
        StepValues block = fold_block(p[i], 0);
        Feed f = fold_feed(p[i], 0);
        exec_run(x, PGinit, NULL, NULL);
        exec_exact(x, PGstep, &block, &f);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            compare(x, precisions[i], names[k]);
    }
    return failed != 0;
}
