/* sinks_test: the logsumexp and the largest score of an attention, and the
 * gradients of a loss of them, against the same model by scores that are stored
 * (tests/models/sinks.lua), in fp64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { MOST = 1024 };
static const double TOL = 1e-15;

static int failed;

/* An execution after its first step. */
static Exec *after_step(Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, 1));
    StepValues block = fold_block(p, 0);
    Feed f = fold_feed(p, 0);

    exec_run(x, PGinit, NULL, NULL);
    exec_exact(x, PGstep, &block, &f);
    return x;
}

static void compare(Exec *a, Exec *b, const char *name)
{
    double kept[MOST], most = 0, large = 0;
    int64_t n, m;
    const double *v = fold_read(a, name, &n);

    memcpy(kept, v, (size_t)n * sizeof *v);
    v = fold_read(b, name, &m);
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(v[i] - kept[i]));
        large = fmax(large, fabs(v[i]));
    }
    int bad = n != m || !(large > 0) || !(most <= TOL * fmax(1, large));
    failed += bad;
    printf("%sok - %s: difference %.2g, largest %.2g\n", bad ? "not " : "",
           name, most, large);
}

int main(void)
{
    static const char *const names[] = {
        "attn.most",       "optim.m.attn.sink", "optim.m.attn.wq",
        "optim.m.attn.wk", "optim.m.attn.wv",   "optim.m.only.wq",
        "optim.m.only.wk", "optim.m.embed",
    };
    Plan *p[2];

    p[0] = fold_words("tests/models/sinks.lua", "precision=fp64 world=1");
    p[1] = fold_words("tests/models/sinks.lua",
                      "precision=fp64 world=1 option.stored=1");
    fold_share(p, 2);
    Exec *a = after_step(p[0]), *b = after_step(p[1]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        compare(a, b, names[i]);
    return failed != 0;
}
