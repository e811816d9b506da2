/* samples_test: a sample of folds with every option that must not change the
 * numbers: pipeline schedules, sharding of parameters, context in pieces or
 * around a ring, capacity, padding and budgets of experts; in three precisions.
 * The model (tests/models/apart.lua) has layers whose experts are busy, mostly
 * idle or never chosen, and routers that no rounding turns, so that nothing has
 * to be replayed. Compared are losses, gradient norms and every gradient.
 *
 *     samples_test                all of them
 *     samples_test word ..        those whose keys have all these words */
#include <stdlib.h>
#include <string.h>

#include "foldrun.h"

enum { STEPS = 2 };

static const char model[] = "tests/models/apart.lua";

/* In fp64 folds only sum in other orders. Below, a fold may be as far from fp64
 * as one rank of the same precision, with room for chance: its partial sums are
 * rounded on their way, which one rank's are not. Both are one draw each, which
 * differ with the order in which BLAS sums: of pp=4 in fp32, padded, a fold is
 * 0.5 times as far with OpenBLAS' kernels for Sandybridge, 2.5 times with those
 * for Haswell and Zen. */
static const double TOL = 1e-10, CHANCE = 3;

#define CAP    " route.policy=capacity route.factor=0.75"
#define LATE   CAP " route.drop=position"
#define PAD    " route.policy=padded route.factor=0.75 route.drop=position"
#define BUDGET " route.factor=0.6"
#define A2A    " route.dispatcher=alltoall"
#define PEER   " route.dispatcher=peer"
#define VPP    " fold.vpp=2 fold.schedule=interleaved"
#define ZB     " fold.schedule=zerobubble"
#define DPV    " fold.vpp=2 fold.schedule=dualpipev"
#define CSV    " fold.schedule=build/tests/fold/samples.csv"
#define Z3     " fold.zero=3"
#define PAIR   " fold.pair=1"
#define RING   " fold.ring=1"
#define SEVEN  " axes.expert=7" /* two on each of four ranks, but one */
/* All of them in fp64. In bf16 nothing is dropped by probability: rounding
 * turns which of two pairs is the better. */
/* clang-format off */
static const struct { const char *keys, *also; } folds[] = {
    { "fold.dp=8 fold.ep=8" Z3, "fp32 bf16" },
    { "fold.dp=4 fold.tp=2 fold.ep=8" Z3 CAP PAIR, "" },
    { "fold.cp=2 fold.tp=2 fold.dp=2 fold.ep=8" LATE, "bf16" },
    { "fold.cp=4 fold.dp=2 fold.ep=4" RING Z3 PAD, "fp32 bf16" },
    { "fold.cp=2 fold.tp=2 fold.dp=2 fold.ep=2 fold.etp=2" RING, "" },
    { "fold.cp=2 fold.dp=4 fold.ep=8 fold.hybrid=2" Z3 BUDGET, "" },
    { "fold.dp=8 fold.ep=8" Z3 A2A, "fp32 bf16" },
    { "fold.cp=2 fold.tp=2 fold.dp=2 fold.ep=4" A2A LATE PAIR, "bf16" },
    { "fold.dp=4 fold.tp=2 fold.ep=4 fold.etp=2" A2A BUDGET SEVEN, "fp32" },
    { "fold.dp=8 fold.ep=8 route.factor=0" Z3 PEER, "fp32 bf16" },
    { "fold.cp=2 fold.tp=2 fold.dp=2 fold.ep=4 fold.overlap=1" PEER LATE SEVEN, "" },
    { "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=2 fold.etp=2" PEER DPV BUDGET,
      "" },
    { "fold.pp=2 fold.dp=4 fold.ep=4" Z3 CAP, "" },
    { "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=4" ZB Z3 LATE, "bf16" },
    { "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=4" VPP RING CAP, "fp32" },
    { "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=2" DPV Z3 PAD, "bf16" },
    { "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=2 fold.etp=2" DPV BUDGET,
      "fp32" },
    { "fold.pp=2 fold.dp=4 fold.ep=4" CSV Z3, "" },
    { "fold.pp=2 fold.tp=2 fold.cp=2 fold.ep=4 fold.layout=Et||tt|tL" VPP Z3,
      "fp32" },
    { "fold.pp=4 fold.dp=2 fold.ep=2" BUDGET Z3, "bf16" },
    { "fold.pp=4 fold.cp=2 fold.ep=2" ZB RING LATE, "" },
    { "fold.pp=4 fold.tp=2 fold.ep=2 fold.layout=E|tt||ttL" Z3 PAD,
      "fp32 bf16" },
    { "fold.pp=4 fold.dp=2 fold.ep=2 train.batch=2 fold.zero=0", "" },
    { "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=4 train.batch=6" ZB, "" },
};
/* clang-format on */
enum { NFOLD = sizeof folds / sizeof *folds, NPREC = 3 };

static const char *const precisions[NPREC] = { "fp64", "fp32", "bf16" };

/* fold: null of a reference. ref: one rank of the same precision; its ref: one
 * rank in fp64. */
typedef struct Case {
    const char *words, *fold;
    Plan *plan;
    Trained got;
    size_t ref;
    int precision;
} Case;

static Case *cases; /* vec; references before what reads them */
static int failed;

/* Two stages, four micro-batches of two data-parallel ranks, as PyTorch would
 * write it; what runs it does not know where the table is from. */
static void write_csv(void)
{
    Schedule *s = schedule_make(forever, "zerobubble", 2, 1, 2, NULL);
    const char *text = schedule_print(forever, s);
    FILE *f = fopen("build/tests/fold/samples.csv", "w");

    if (!f || fputs(text, f) < 0 || fclose(f))
        die("build/tests/fold/samples.csv cannot be written");
}

static size_t add_case(const char *words, int precision, size_t ref)
{
    Case j = { .words = words, .precision = precision, .ref = ref };

    j.plan = fold_words(model, words);
    vec_push(forever, cases, j);
    return vec_len(cases) - 1;
}

/* One rank, in this precision and in fp64. */
static size_t reference(const char *words, int precision)
{
    const char *own = strf(forever, "precision.policy=%s world=1%s",
                           precisions[precision], fold_model_words(words));

    for (size_t i = 0; i < vec_len(cases); i++)
        if (!strcmp(cases[i].words, own))
            return i;
    return add_case(own, precision, precision ? reference(words, 0) : 0);
}

static int has_words(const char *words, char **want)
{
    while (*want && strstr(words, *want))
        want++;
    return !*want;
}

static void add_fold(const char *fold, const char *also, char **want)
{
    const char *batch = strstr(fold, "train.batch=") ? "" : " train.batch=8";

    for (int p = 0; p < NPREC; p++) {
        const char *words = strf(forever, "precision.policy=%s %s%s",
                                 precisions[p], fold, batch);
        if ((p && !strstr(also, precisions[p])) || !has_words(words, want))
            continue;
        size_t ref = reference(words, p);
        add_case(words, p, ref);
        cases[vec_len(cases) - 1].fold = fold;
    }
}

/* References stand before what is compared with them. */
static void run(Case *j)
{
    const Case *ref = &cases[j->ref],
               *exact = ref->precision ? &cases[ref->ref] : ref;
    const char *at;

    j->got = fold_train(j->plan, STEPS);
    if (!j->fold)
        return;
    double most = fold_apart(&j->got, &exact->got, &at), tol = TOL;
    if (j->precision)
        tol = CHANCE * fold_apart(&ref->got, &exact->got, &(const char *){ 0 });
    int ok = most <= tol && !strstr(j->words, BUDGET) == !j->got.fallbacks;
    failed += !ok;
    printf("%sok - samples: %s: %.2g (%s), at most %.2g", ok ? "" : "not ",
           j->words, most, at, tol);
    if (j->got.fallbacks)
        printf("; %d of %d steps fell back", j->got.fallbacks, STEPS);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    Plan **plan = NULL;

    (void)argc;
    write_csv();
    for (int i = 0; i < NFOLD; i++)
        add_fold(folds[i].keys, folds[i].also, argv + 1);
    for (size_t i = 0; i < vec_len(cases); i++)
        vec_push(forever, plan, cases[i].plan);
    int kernels = fold_share(plan, (int)vec_len(plan));
    for (size_t i = 0; i < vec_len(cases); i++)
        run(&cases[i]);
    printf("# %zu plans, %d kernels\n", vec_len(cases), kernels);
    return failed != 0;
}
