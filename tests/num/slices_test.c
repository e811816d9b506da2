/* slices_test: a head in slices is the whole head in fp64, to the order in
 * which sums are made: loss, gradient norm, every gradient and state of some
 * steps. And it needs as much less room as all logits but a slice's: gradients
 * of logits lie where these lay. In more slices a layer would have the peak. */
#include <stdlib.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { STEPS = 2, TOKENS = 4 * 32, VOCAB = 1024 };

/* Sums over TOKENS in another order, and AdamW's root over them. */
static const double TOL = 1e-12;

/* ranks: that share the logits of TOKENS. */
/* clang-format off */
static const struct { const char *model, *keys, *slices; int ranks; }
cases[] = {
    { "tests/hf/qwen3.lua",    "", "8", 1 },
    { "tests/hf/qwen3.lua",    "fold.cp=2 axes.batch=8 train.batch=16", "8", 1 },
    { "tests/hf/qwen3.lua",    "fold.tp=2 fold.ep=2", "4", 2 },
    { "tests/models/tied.lua", "axes.seq=32", "4", 1 },
    { "tests/hf/dsv3-mtp.lua", "fold.pp=2", "4", 1 },
};
/* clang-format on */
enum { N = sizeof cases / sizeof *cases };

static int failed;

static Plan *plan_of(int i, const char *slices)
{
    char *keys[MAXKEYS] = { "precision.policy=fp64", "train.batch=8",
                            "axes.batch=4", "fold.overlap=0",
                            strf(forever, "axes.vocab=%d", VOCAB) };
    char *next, *w = strtok_r(strf(forever, "%s", cases[i].keys), " ", &next);
    int n = 5;

    for (; w; w = strtok_r(NULL, " ", &next))
        keys[n++] = w;
    keys[n++] = strf(forever, "train.slices=%s", slices);
    return fold_plan(cases[i].model, keys, n);
}

/* Bytes of the rank that has the head. */
static double room(const Plan *p)
{
    const Role *r = &p->role[p->nrole - 1];

    return (double)r->prog[role_prog(r, PGstep)].transient / 1024;
}

static void compare(int i, Plan *slices, Plan *whole)
{
    const char *at;
    Trained a = fold_train(slices, STEPS), b = fold_train(whole, STEPS);
    double most = fold_apart(&a, &b, &at), n = atof(cases[i].slices);
    double logits = TOKENS * VOCAB * 8.0 / 1024 / cases[i].ranks;
    double saved = room(whole) - room(slices);
    int ok = most <= TOL && saved >= logits * (1 - 1 / n) * 0.99;

    failed += !ok;
    printf("%sok - slices %s %s %s: difference %.2g (%s), at most %.0e; "
           "%.0f KiB less, of logits %.0f\n",
           ok ? "" : "not ", cases[i].slices, cases[i].model, cases[i].keys,
           most, at, TOL, saved, logits);
    fflush(stdout);
}

int main(void)
{
    Plan *p[2 * N];

    for (int i = 0; i < 2 * N; i++)
        p[i] = plan_of(i / 2, i % 2 ? "1" : cases[i / 2].slices);
    fold_share(p, 2 * N);
    for (int i = 0; i < N; i++)
        compare(i, p[2 * i], p[2 * i + 1]);
    return failed != 0;
}
