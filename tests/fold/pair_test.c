/* pair_test: micro-batches in pairs (fold.pair) have the bits of micro-batches
 * one by one: losses, gradient norms, gradients and states of two steps, in any
 * legal order of their instructions too. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "foldrun.h"
#include "spread.h"

enum { STEPS = 2 };

#define APART "tests/models/apart.lua"
#define TINY  "models/tiny.lua"
#define SMALL                                                      \
    " axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=4 axes.ffn=16 " \
    "axes.expert=4 axes.batch=1"

/* fallbacks: of the steps, as either has them. */
/* clang-format off */
static const struct { const char *model, *keys; int fallbacks; } folds[] = {
    { TINY, "fold.ep=2 train.batch=4" SMALL, 0 },
    { TINY, "fold.tp=2 fold.ep=2 fold.zero=3 train.batch=4" SMALL, 0 },
    { APART, "fold.dp=2 fold.ep=2 fold.zero=3 route.policy=capacity route.factor=0.75", 0 },
    { APART, "fold.dp=2 fold.tp=2 fold.ep=4 route.factor=0.6", STEPS },
    { APART, "fold.dp=2 fold.cp=2 fold.ep=2 route.dispatcher=peer route.factor=0", 0 },
    { "tests/models/dropout.lua", "fold.ep=2 train.batch=8", 0 },
    { "tests/models/biases.lua", "fold.ep=2 fold.zero=2 train.batch=8", 0 },
    { "tests/hf/qwen3.lua", "fold.tp=2 fold.ep=2 train.batch=8", 0 },
    { "tests/hf/dsv3-mtp.lua", "fold.ep=2 train.batch=8", 0 },
};
/* clang-format on */
enum { NFOLD = sizeof folds / sizeof *folds };

static const Phase *body(const Plan *p)
{
    const Program *g = &p->role[0].prog[role_prog(&p->role[0], PGstep)];
    int f = 0;

    while (g->phase[f].reg != REGbody)
        f++;
    return &g->phase[f];
}

static void same(int i, Plan *const *p)
{
    const char *where = "";
    Trained one = fold_train(p[0], STEPS);
    double far = 0;

    for (int k = 1; k < 3; k++) {
        Trained two = fold_train(p[k], STEPS);
        far = fmax(far, fold_apart(&two, &one, &where));
        far = two.fallbacks == one.fallbacks ? far : INFINITY;
    }
    int ok = far == 0 && !body(p[0])->pair && body(p[1])->pair &&
             one.fallbacks == folds[i].fallbacks;
    printf("%sok - pairs of %s %s\n", ok ? "" : "not ", folds[i].model,
           folds[i].keys);
    if (!ok)
        printf("# pair %d, %d fallbacks, apart %g %s\n", body(p[1])->pair,
               one.fallbacks, far, where);
}

int main(void)
{
    Plan *p[NFOLD * 3];
    int moved = 0;

    for (int i = 0; i < NFOLD; i++)
        for (int k = 0; k < 3; k++) {
            p[3 * i + k] =
                fold_words(folds[i].model, strf(forever, "%s fold.pair=%d",
                                                folds[i].keys, k > 0));
            if (k == 2)
                moved += shuffle_streams(forever, p[3 * i + k], (uint64_t)i);
        }
    fold_share(p, 3 * NFOLD);
    for (int i = 0; i < NFOLD; i++)
        same(i, &p[3 * i]);
    printf("# %d instructions elsewhere\n", moved);
    return 0;
}
