/* beside_test: a checkpoint that is written beside training has the bytes of
 * one that training waits for, in every kind of fold. The snapshot is taken as
 * late as can be: when a step asks for it that writes what lasts. The step
 * behind the save and one more run meanwhile. Linked so that snapshot_wait is
 * ours (ld's --wrap).
 *
 * Forward and backward write nothing that lasts: only phases of `post` do. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foldrun.h"

enum { BEFORE = 2, MORE = 2, MICRO = 8, PATIENCE = 20000 };

static const char model[] = "tests/models/folds.lua";

static const char *const folds[] = {
    "world=1",
    "fold.tp=2 fold.dp=2 fold.ep=4",
    "fold.dp=4 fold.zero=0",
    ("fold.dp=4 fold.ep=2 fold.zero=2 train.offload=moments,masters "
     "train.update=host"),
    "fold.dp=2 fold.ep=2 fold.zero=3",
    "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2",
    "fold.pp=2 fold.vpp=2 fold.schedule=interleaved fold.tp=2 fold.dp=2",
    "fold.pp=2 fold.vpp=2 fold.schedule=dualpipev fold.dp=2 fold.zero=3",
    "fold.pp=4 fold.cp=2 fold.schedule=zerobubble",
};

enum { NFOLD = sizeof folds / sizeof *folds };

static int failed;

/* ---- a snapshot that comes late ------------------------------------------ */

static _Atomic int asked;
static void (*their_guard)(void *);

int __real_snapshot_wait(Snapshot *s, Pool *pool);
int __wrap_snapshot_wait(Snapshot *s, Pool *pool);

int __wrap_snapshot_wait(Snapshot *s, Pool *pool)
{
    for (int i = 0; i < PATIENCE && !asked; i++)
        usleep(1000);
    return __real_snapshot_wait(s, pool);
}

static void guard(void *self)
{
    asked++;
    their_guard(self);
}

/* ---- one fold ------------------------------------------------------------ */

static Plan *plan_of(const char *fold, const char *precision)
{
    return fold_words(model, strf(forever,
                                  "precision.policy=%s train.batch=%d "
                                  "train.snapshot=1 %s",
                                  precision, MICRO, fold));
}

static void one_step(Exec *x, int64_t step)
{
    StepValues b = fold_block(x->plan, step);
    Feed f = fold_feed(x->plan, step);

    exec_exact(x, PGstep, &b, &f);
}

static const char *differ(const char *a, const char *b)
{
    static const char *const names[] = { "model.safetensors",
                                         "optim.safetensors", "state.json",
                                         "index" };

    for (int i = 0; i < 4; i++) {
        size_t n = 0, m = 0;
        char *p = file_read(forever, strf(forever, "%s/%s", a, names[i]), &n);
        char *q = file_read(forever, strf(forever, "%s/%s", b, names[i]), &m);
        if (!p || !q || n != m || memcmp(p, q, n))
            return names[i];
    }
    return NULL;
}

/* Null, or the phase of a step that writes what lasts and should not. */
static const char *early_write(const Plan *p)
{
    for (int r = 0; r < p->nrole; r++) {
        const Role *role = &p->role[r];
        const Program *g = &role->prog[role_prog(role, PGstep)];
        for (int f = 0; f < g->nphase; f++)
            for (int k = 0; k < g->phase[f].n; k++)
                if (instr_lasts(role, &g->instr[g->phase[f].first + k]) &&
                    g->phase[f].reg != REGpost)
                    return g->phase[f].name;
    }
    return NULL;
}

static void result(const char *what, const char *fold, const char *bad)
{
    failed += bad != NULL;
    printf("%sok - beside: %s: %s%s%s\n", bad ? "not " : "", fold, what,
           bad ? ": " : "", bad ? bad : "");
    fflush(stdout);
}

static void save_twice(Exec *x, const char *waits, const char *beside)
{
    State s = { .step = BEFORE, .plan = "x" };
    Text t = { .arena = forever };

    if (ckpt_save(x, waits, &s))
        die("no checkpoint in %s", waits);
    Saver *v = saver_open(x, beside, 0, -1, SAVEbeside, &t);
    asked = 0;
    saver_save(v, &s, NULL, SAVEbeside);
    their_guard = x->guard;
    if (!their_guard)
        die("it does not save beside training: %s", t.s);
    x->guard = guard;
    for (int i = 0; i < MORE; i++)
        one_step(x, BEFORE + i);
    if (saver_wait(v)->bad)
        die("no checkpoint in %s", beside);
    saver_close(v);
}

static void one_fold(const char *home, Plan *p, const char *name)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    char *waits = strf(forever, "%s/waits", home);
    char *beside = strf(forever, "%s/beside", home);

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < BEFORE; t++)
        one_step(x, t);
    save_twice(x, waits, beside);
    const char *bad = differ(strf(forever, "%s/step-%08d", waits, BEFORE),
                             strf(forever, "%s/step-%08d", beside, BEFORE));
    result("the same bytes, asked for once", name,
           bad          ? bad
           : asked != 1 ? "asked more than once, or not"
                        : NULL);
    exec_close(x);
    if (system(strf(forever, "rm -rf %s %s", waits, beside)))
        die("cannot remove %s", beside);
}

int main(void)
{
    char *dir = getenv("TMPDIR");
    char *home = strf(forever, "%s/pleat-beside.XXXXXX", dir ? dir : "/tmp");
    static const char *const precisions[] = { "bf16", "fp64" };
    int n = getenv("PLEAT_ALL") ? 2 : 1;

    if (!mkdtemp(home))
        die("no folder in %s", dir ? dir : "/tmp");
    for (int k = 0; k < n; k++) {
        Plan *plan[NFOLD];
        for (int i = 0; i < NFOLD; i++)
            plan[i] = plan_of(folds[i], precisions[k]);
        fold_share(plan, NFOLD);
        for (int i = 0; i < NFOLD; i++) {
            char *name = strf(forever, "%s %s", precisions[k], folds[i]);
            result("only post writes what lasts", name, early_write(plan[i]));
            one_fold(home, plan[i], name);
        }
    }
    return rmdir(home) || failed;
}
