/* pair_test: micro-batches in pairs (fold.pair) have the bits of micro-batches
 * one by one: losses, gradient norms, gradients and states of three steps, in
 * any legal order of their instructions too. With PLEAT_ALL=1 more models. */
#include <math.h>
#include <stdlib.h>

#include "foldrun.h"
#include "spread.h"

enum { STEPS = 3 };

#define APART "tests/models/apart.lua"
#define TINY  "models/tiny.lua"
#define SMALL                                                      \
    " axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=4 axes.ffn=16 " \
    "axes.expert=4 axes.batch=1"

/* fallbacks: of the steps, as either has them. */
/* clang-format off */
static const struct { const char *model, *keys; int fallbacks; } folds[] = {
    { "tests/models/dropout.lua", "fold.dp=2 fold.tp=2 fold.ep=2 fold.zero=3 train.batch=8 route.factor=1.4", 1 },
    { "tests/models/folds.lua", "fold.dp=2 fold.ep=2 route.factor=1.9 axes.batch=8 axes.seq=16 axes.heads=2 train.batch=64", 0 }, /* stacks */
    { APART, "fold.dp=2 fold.tp=2 fold.ep=4 fold.zero=3 route.policy=capacity route.factor=0.75", 0 },
    { APART, "fold.dp=2 fold.ep=2 fold.zero=3 route.factor=0.6", STEPS },
    { APART, "fold.dp=2 fold.cp=2 fold.ep=2 route.dispatcher=peer route.factor=0", 0 },
    { TINY, "fold.ep=2 train.batch=4" SMALL, 0 },
    { TINY, "fold.tp=2 fold.ep=2 fold.zero=3 train.batch=4" SMALL, 0 },
    { "tests/models/biases.lua", "fold.ep=2 fold.zero=2 train.batch=8", 0 },
    { "tests/hf/qwen3.lua", "fold.tp=2 fold.ep=2 train.batch=8", 0 },
    { "tests/hf/dsv3-mtp.lua", "fold.ep=2 train.batch=8", 0 },
};
/* clang-format on */
enum { FEW = 2, MANY = sizeof folds / sizeof *folds };

/* One by one, in pairs, in pairs in another order. */
enum { ALONE, PAIRS, MOVED, NPLAN };

static const Phase *body(const Plan *p)
{
    const Program *g = &p->role[0].prog[role_prog(&p->role[0], PGstep)];
    int f = 0;

    while (g->phase[f].reg != REGbody)
        f++;
    return &g->phase[f];
}

static int same(int i, Plan *const *p, int moved)
{
    const char *where = "";
    Trained want = fold_train(p[ALONE], STEPS);
    double far = 0;

    for (int k = PAIRS; k < NPLAN; k++) {
        Trained got = fold_train(p[k], STEPS);
        far = fmax(far, fold_apart(&got, &want, &where));
        far = got.fallbacks == folds[i].fallbacks ? far : INFINITY;
    }
    int ok = far == 0 && want.fallbacks == folds[i].fallbacks && moved > 50 &&
             !body(p[ALONE])->pair && body(p[PAIRS])->pair;
    printf("%sok - pairs of %s %s\n", ok ? "" : "not ", folds[i].model,
           folds[i].keys);
    printf("# %d fallbacks, largest difference %g %s, %d instructions moved\n",
           want.fallbacks, far, where, moved);
    return ok;
}

int main(void)
{
    Plan *p[MANY * NPLAN];
    int n = getenv("PLEAT_ALL") ? MANY : FEW, moved[MANY], failed = 0;

    for (int i = 0; i < n; i++) {
        Plan **own = &p[NPLAN * i];
        for (int k = 0; k < NPLAN; k++)
            own[k] = fold_words(folds[i].model, strf(forever, "%s fold.pair=%d",
                                                     folds[i].keys, k > 0));
        moved[i] = shuffle_streams(forever, own[MOVED], (uint64_t)i + 1);
    }
    fold_share(p, NPLAN * n);
    for (int i = 0; i < n; i++)
        failed += !same(i, &p[NPLAN * i], moved[i]);
    return failed != 0;
}
