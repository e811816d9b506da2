/* stash_test: rows that layers keep for the backward in stacks of all layers.
 * The plan takes less memory than where each layer has room of its own, and
 * computes the same bits; in fp64 what one rank does, also where rows are kept
 * as numbers of 8 bits and scales, and where a layer in the middle keeps fewer
 * rows than those around it (the last two cases). Stacks that are too low
 * though each layer has room overflow in every step, whose fallback computes
 * what the step does. Memory is printed. */
#include "../fold/foldrun.h"

enum { STEPS = 1 };

/* Sums over ranks, and over rounds, come in another order. */
static const double TOL = 1e-10;

#define MODEL "tests/models/folds.lua"
#define GAP   "tests/models/gap.lua"
#define ALL   "precision=fp64 axes.seq=256 train.batch=4 "
#define FEW \
    "precision.recipe=blockwise precision.wire=all precision.kept=rounded "

enum { ONE, NARROW, SPARSE, NREFERENCE }; /* on one rank */
static const struct {
    const char *model, *keys;
} references[] = { { MODEL, ALL }, { MODEL, ALL FEW }, { GAP, ALL } };

static const struct {
    const char *keys;
    int fallbacks, reference;
} cases[] = {
    { "fold.ep=2 route.dispatcher=alltoall fold.zero=3", 0, ONE },
    { "fold.ep=2 fold.etp=2 fold.tp=2 route.dispatcher=allgather", 0, ONE },
    { "fold.pp=2 fold.ep=2", 0, ONE },
    { "fold.ep=2 route.stash=0.3", STEPS, ONE },
    { "fold.pp=2 fold.ep=2 route.stash=0.1", STEPS, ONE },
    { FEW "fold.pp=2 fold.ep=2 route.dispatcher=alltoall", 0, NARROW },
    { "fold.ep=2", 0, SPARSE },
};
enum { N = sizeof cases / sizeof *cases };

static int failed;

/* The step's bytes; *stash: of its stacks. */
static int64_t bytes_of(const Plan *p, int64_t *stash)
{
    int64_t most = 0;

    *stash = 0;
    for (int i = 0; i < p->nrole; i++) {
        const Role *r = &p->role[i];
        const Program *g = role_program(r, PGstep);
        most = g->transient > most ? g->transient : most;
        for (int k = 0; k < r->nbuf; k++)
            *stash += r->buf[k].cls == Bstash ? r->buf[k].bytes : 0;
    }
    return most;
}

static void compare(int i, Plan *with, Plan *without, const Trained *one)
{
    const char *at, *far;
    Trained a = fold_train(with, STEPS), b = fold_train(without, STEPS);
    double bits = fold_apart(&a, &b, &at), fold = fold_apart(&a, one, &far);
    int64_t stash, none, bytes = bytes_of(with, &stash),
                         all = bytes_of(without, &none);
    int ok = (cases[i].fallbacks ? bits <= TOL : bits == 0) && fold <= TOL &&
             stash && !none && bytes < all && !b.fallbacks &&
             a.fallbacks == cases[i].fallbacks;

    failed += !ok;
    printf("%sok - stash %s: difference %g (%s), of one rank %.2g (%s), at "
           "most %.0e; %d of %d steps fell back\n",
           ok ? "" : "not ", cases[i].keys, bits, at, fold, far, TOL,
           a.fallbacks, STEPS);
    printf("# %.0f KiB, %.0f of them in stacks; %.0f without\n",
           (double)bytes / 1024, (double)stash / 1024, (double)all / 1024);
    fflush(stdout);
}

int main(void)
{
    Plan *p[2 * N + NREFERENCE];
    Trained one[NREFERENCE];

    for (int i = 0; i < N; i++)
        for (int none = 0; none < 2; none++)
            p[2 * i + none] =
                fold_words(references[cases[i].reference].model,
                           strf(forever, ALL "fold.dp=2 route.factor=1.9 %s%s",
                                cases[i].keys, none ? " route.stash=0" : ""));
    for (int k = 0; k < NREFERENCE; k++)
        p[2 * N + k] = fold_words(references[k].model, references[k].keys);
    fold_share(p, 2 * N + NREFERENCE);
    for (int k = 0; k < NREFERENCE; k++)
        one[k] = fold_train(p[2 * N + k], STEPS);
    for (int i = 0; i < N; i++)
        compare(i, p[2 * i], p[2 * i + 1], &one[cases[i].reference]);
    return failed != 0;
}
