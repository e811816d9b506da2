/* reshard_test: a checkpoint saved under one fold continues under any other.
 * Two steps are trained and saved; each of some other folds loads them and has
 * the same parameters, moments, masters and states to the bit, and the loss of
 * the step after is that of the run that goes on; one round of them multiplies
 * numbers of 8 bits. In the last, weights live as numbers and scales, which are
 * made again of the masters, whole on one rank or in runs of several. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foldrun.h"

enum { BEFORE = 2, MICRO = 8, NEXT = 2 };

static const char model[] = "tests/models/folds.lua";
enum { KINDS = MODELTENSORS | 1 << TKscales | MASTERS | MOMENTS };

/* Each is loaded by the NEXT ones behind it, the last ones by the first. There
 * are six experts: ep=4 does not divide them. */
static const char *const folds[] = {
    "world=1",
    "fold.tp=2 fold.dp=2 fold.ep=4",
    "fold.pp=2 train.offload=moments,masters train.update=host",
    "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2",
    "fold.pp=2 fold.vpp=2 fold.schedule=interleaved fold.tp=2 fold.dp=2",
    "fold.pp=4 fold.cp=2",
    "fold.dp=4 fold.zero=0",
    "fold.tp=4 fold.ep=2 fold.etp=2",
};

/* Of whole weights: ranks of tp would cut their blocks. */
static const char *const whole[] = {
    "world=1",
    "fold.dp=4 fold.zero=1",
    "fold.dp=2 fold.ep=2 fold.zero=1 train.offload=moments,masters",
    "fold.pp=2 fold.dp=2 fold.zero=0",
};

enum {
    NFOLD = sizeof folds / sizeof *folds,
    NWHOLE = sizeof whole / sizeof *whole
};

typedef struct Case {
    const char *fold, *dir;
    Plan *plan;
    double loss;  /* of step BEFORE */
    Found *value; /* vec: everything before it */
} Case;

static int failed;

/* precision: of precision.policy, and more keys. */
static Plan *plan_of(const char *fold, const char *precision)
{
    return fold_words(
        model,
        strf(forever, "precision.policy=%s train.batch=%d axes.expert=6 %s",
             precision, MICRO, fold));
}

static double one_step(Exec *x, int64_t step)
{
    StepValues b = fold_block(x->plan, step);
    Feed f = fold_feed(x->plan, step);

    exec_exact(x, PGstep, &b, &f);
    return exec_result(x, RESULTloss);
}

/* A master, whichever way a fold keeps it. */
static void join(Exec *x, Found *f)
{
    const char *of = f->name + strlen(tensor_kinds[TKremainder].prefix);
    const double *p = fold_read(x, of, &f->n);

    for (int64_t i = 0; i < f->n; i++)
        f->v[i] = f32_joined(f32_to_bf16((float)p[i]), (int16_t)f->v[i]);
    f->name = strf(forever, "%s%s", tensor_kinds[TKmaster].prefix, of);
}

static Found *read_all(Exec *x)
{
    const Tensor **t = fold_tensors(x->plan, KINDS);
    Found *v = NULL;

    for (size_t i = 0; i < vec_len(t); i++) {
        Found f = { .name = t[i]->name };
        f.v = fold_read(x, f.name, &f.n);
        if (t[i]->kind == TKremainder)
            join(x, &f);
        vec_push(forever, v, f);
    }
    return v;
}

static void save(Case *c)
{
    Exec *x = exec_open(c->plan, comm_open(forever, c->plan->mesh->world));
    State s = { .step = BEFORE, .plan = "x" };

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < BEFORE; t++)
        one_step(x, t);
    c->value = read_all(x);
    if (ckpt_save(x, c->dir, &s))
        die("no checkpoint in %s", c->dir);
    c->loss = one_step(x, BEFORE);
    exec_close(x);
}

/* The first tensor that is not the same to the bit; null: all are. */
static const char *differs(const Found *got, const Found *want)
{
    if (vec_len(got) != vec_len(want))
        return "how many there are";
    for (size_t i = 0; i < vec_len(want); i++) {
        size_t k = 0;
        while (k < vec_len(got) && strcmp(got[k].name, want[i].name))
            k++;
        if (k == vec_len(got) || got[k].n != want[i].n ||
            memcmp(got[k].v, want[i].v, (size_t)got[k].n * sizeof(double)))
            return want[i].name;
    }
    return NULL;
}

static void load(const Case *from, const Case *to, double tol)
{
    Exec *x = exec_open(to->plan, comm_open(forever, to->plan->mesh->world));
    State s;

    exec_run(x, PGinit, NULL, NULL);
    int found = ckpt_resume(x, from->dir, &s) && s.step == BEFORE;
    exec_filled(x);
    const char *bad = differs(read_all(x), from->value);
    double apart = fabs(one_step(x, BEFORE) / from->loss - 1);
    int ok = found && !bad && apart <= tol;
    failed += !ok;
    printf("%sok - reshard: %s -> %s: next loss %.2g apart, at most %.0e%s%s\n",
           ok ? "" : "not ", from->fold, to->fold, apart, tol,
           bad ? ", differs: " : "", bad ? bad : "");
    fflush(stdout);
    exec_close(x);
}

/* Among n folds, each loaded by so many next ones. */
static void round_of(const char *home, const char *precision,
                     const char *const *fold, int n, int nexts, double tol)
{
    Case c[NFOLD] = { 0 };
    Plan *plan[NFOLD];

    for (int i = 0; i < n; i++) {
        c[i].fold = strf(forever, "%s %s", precision, fold[i]);
        c[i].dir = strf(forever, "%s/%s.%d", home, precision, i);
        c[i].plan = plan[i] = plan_of(fold[i], precision);
    }
    fold_share(plan, n);
    for (int i = 0; i < n; i++)
        save(&c[i]);
    for (int i = 0; i < n; i++)
        for (int k = 1; k <= nexts; k++)
            load(&c[i], &c[(i + k) % n], tol);
}

int main(void)
{
    char *dir = getenv("TMPDIR");
    char *home = strf(forever, "%s/pleat-reshard.XXXXXX", dir ? dir : "/tmp");

    if (!mkdtemp(home))
        die("no folder in %s", dir ? dir : "/tmp");
    round_of(home, "fp64 precision.recipe=blockwise", folds, NFOLD, NEXT,
             1e-12);
    round_of(home, "bf16", folds, NFOLD, NEXT,
             1e-4); /* sums of bf16 in another order */
    round_of(home,
             "fp8 precision.place=all precision.primary=all axes.hidden=144",
             whole, NWHOLE, 1, 1e-5);
    round_of(home, "fp64 train.optimizer=muon", folds, 4, 1, 1e-12);
    round_of(home, "fp64 train.optimizer=adafactor", folds, 4, 1, 1e-12);
    int bad = system(strf(forever, "rm -rf %s", home));
    return failed || bad;
}
