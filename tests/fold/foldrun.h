/* foldrun.h: one model under many folds, all ranks in this process: plans that
 * share their kernels, a few steps of each, and how far two of them are apart.
 * Inputs depend on step and place in the whole step, never on the fold. */
#ifndef FOLDRUN_H
#define FOLDRUN_H

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

enum { MAXSTEPS = 4, MAXKEYS = 24 };

/* A gradient, read off the first moment after one step, m = (1 - beta1) g; or
 * a state of the model at the end. */
typedef struct Found {
    const Tensor *t;
    const char *name;
    int grad;
    int64_t n;
    double *v;
} Found;

typedef struct Trained {
    int steps, fallbacks; /* that did not fit a budget */
    double loss[MAXSTEPS], norm[MAXSTEPS];
    Found *value; /* vec */
} Trained;

/* Of plans: the host, or what a program, or TEST_TARGET, says. */
extern const Target *fold_target;
void fold_target_given(void);
/* The plan as its file would be read; what the compiler needed is let go. */
Plan *fold_plan(const char *model, char *const *keys, int nkeys);
/* The same with keys in one line, "fold.tp=2 axes.seq=8". */
Plan *fold_words(const char *model, const char *words);
/* Those that change the model itself; a budget does not, nothing is lost. */
char *fold_model_words(const char *words);
/* Every plan gets the kernels of all: their text is compiled once. Returns how
 * many there are. */
int fold_share(Plan **p, int n);
Feed fold_feed(const Plan *p, int64_t step);
StepValues fold_block(const Plan *p, int64_t step);
Trained fold_train(Plan *p, int steps);
/* Largest relative difference over losses, norms and values, of those as
 * tensor_apart says. NaN is larger than anything. *where: a name. */
double fold_apart(const Trained *x, const Trained *want, const char **where);
/* Every tensor of these kinds of any stage, each once. A vec. */
const Tensor **fold_tensors(const Plan *p, unsigned kinds);
double *fold_read(Exec *x, const char *name, int64_t *n);

#endif
