/* folds_test: every legal fold of a small model (4 layers, 8 heads, 8 experts)
 * on up to 8 ranks trains as one rank does: loss, gradient norm and every
 * gradient, in fp64, all ranks in this process. Folds of the experts over four
 * ranks or more do so again with room for an equal share of rows, for which
 * equal tokens tie; with PLEAT_ALL all do.
 *
 * Legal: tp cp dp pp in 1 2 4, their product at most 8; etp in 1 2 4 and ep in
 * 1 2 4 8 divide a stage; vpp in 1 2 4 with pp > 1, and at most 8 chunks, of
 * which some are then empty. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "foldrun.h"

enum { STEPS = 2, MICRO = 8, WORLD = 8, CHUNKS = 8, LEAST = 248 + 25 };

/* Folds sum in other orders. */
static const double TOL = 1e-10;
static const char model[] = "tests/models/folds.lua";

typedef struct Case {
    int tp, cp, dp, pp, vpp, ep, etp, padded;
    Plan *plan;
} Case;

static Case *cases; /* vec; the first of either kind: one rank */

static int is_legal(const Case *c)
{
    int stage = c->tp * c->cp * c->dp;

    return stage * c->pp <= WORLD && stage % (c->ep * c->etp) == 0 &&
           (c->vpp == 1 || (c->pp > 1 && c->pp * c->vpp <= CHUNKS));
}

static int is_one(const Case *c)
{
    return c->tp * c->cp * c->dp * c->pp == 1;
}

static int is_wanted(const Case *c)
{
    int experts = c->ep >= 4 && c->pp == 1;

    return is_legal(c) &&
           (!c->padded || is_one(c) || experts || getenv("PLEAT_ALL"));
}

/* The i-th of all combinations, tp fastest; 0: past the end. */
static int combination(int i, Case *c)
{
    static const int size[] = { 1, 2, 4, 8 };
    static const int n[] = { 3, 3, 3, 3, 3, 4, 3 };
    int *digit[] = { &c->tp, &c->cp, &c->dp, &c->pp, &c->vpp, &c->ep, &c->etp };

    for (int d = 0; d < 7; i /= n[d++])
        *digit[d] = size[i % n[d]];
    return i == 0;
}

static char *text_of(const Case *c)
{
    return strf(forever, "tp=%d cp=%d dp=%d pp=%d vpp=%d ep=%d etp=%d%s", c->tp,
                c->cp, c->dp, c->pp, c->vpp, c->ep, c->etp,
                c->padded ? " padded" : "");
}

static Plan *plan_of(const Case *c)
{
    /* clang-format off */
    char *keys[] = {
        "precision.policy=fp64", strf(forever, "train.batch=%d", MICRO),
        strf(forever, "fold.tp=%d", c->tp), strf(forever, "fold.cp=%d", c->cp),
        strf(forever, "fold.dp=%d", c->dp), strf(forever, "fold.pp=%d", c->pp),
        strf(forever, "fold.vpp=%d", c->vpp),
        strf(forever, "fold.ep=%d", c->ep),
        strf(forever, "fold.etp=%d", c->etp),
        c->vpp > 1 ? "fold.schedule=interleaved" : "fold.schedule=1f1b",
        "route.policy=padded", "route.factor=1", /* last: not for all */
    };
    /* clang-format on */

    int n = (int)(sizeof keys / sizeof *keys);
    return fold_plan(model, keys, c->padded ? n : n - 2);
}

static double seconds(void)
{
    struct timespec t;

    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns how many folds fail. */
static int run_all(void)
{
    const char *at, *worstat = "";
    double worst = 0;
    int failed = 0;
    Trained one = { 0 };

    for (size_t i = 0; i < vec_len(cases); i++) {
        Trained w = fold_train(cases[i].plan, STEPS);
        if (is_one(&cases[i])) {
            one = w;
            continue;
        }
        double d = fold_apart(&w, &one, &at);
        char *text = text_of(&cases[i]);
        failed += d > TOL;
        printf("%sok - folds: %s: %.2g (%s)\n", d > TOL ? "not " : "", text, d,
               at);
        fflush(stdout);
        if (d > worst) {
            worst = d;
            worstat = strf(forever, "%s of %s", at, text);
        }
    }
    printf("# %zu folds, largest difference %.2g (%s), at most %.0e\n",
           vec_len(cases), worst, worstat, TOL);
    return failed;
}

int main(int argc, char **argv)
{
    double start = seconds();
    Plan **plan = NULL;
    Case c;

    for (c.padded = 0; c.padded < 2; c.padded++)
        for (int i = 0; combination(i, &c); i++)
            if (is_wanted(&c) &&
                (argc < 2 || !i || strstr(text_of(&c), argv[1])))
                vec_push(forever, cases, c);
    for (size_t i = 0; i < vec_len(cases); i++) {
        cases[i].plan = plan_of(&cases[i]);
        vec_push(forever, plan, cases[i].plan);
    }
    double compiled = seconds();
    int kernels = fold_share(plan, (int)vec_len(plan));
    int failed = run_all();
    printf("# %d kernels; %.1f s of compiling plans, %.1f s of the rest\n",
           kernels, compiled - start, seconds() - compiled);
    if (argc < 2 && vec_len(cases) < LEAST)
        printf("not ok - folds: only %zu are legal\n", vec_len(cases));
    return failed || (argc < 2 && vec_len(cases) < LEAST);
}
