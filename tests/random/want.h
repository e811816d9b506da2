/* want.h: what one step of a model should give, with bounds of rounding. */
#ifndef PLEAT_RANDOM_WANT_H
#define PLEAT_RANDOM_WANT_H

#include "random.h"

typedef struct Wanted {
    const char *name; /* as exec_read or exec_result knows it */
    const char *kind; /* "loss", "gradient", "state", "metric" */
    const char *of;   /* the name in the model */
    int64_t n;
    double *v, bound;
} Wanted;

typedef struct Want {
    Ref *ref;
    double slack; /* results may be so many times as far as noise moved them */
    Wanted *v;    /* vec */
    const char *bad; /* why there is nothing to compare with; or null */
    double off;      /* of differences; negative: they could not tell */
} Want;

/* Of a graph traced for a check. noise: relative, of every result, and what
 * rounding to few bits does to operands by few_bits, null: they are not; slack
 * as above. */
typedef struct RecipeErrors RecipeErrors;
Want *want_new(Arena *a, Graph *g, double noise, double slack,
               const RecipeErrors *few_bits);
const RecipeErrors *
recipe_errors(const Graph *g);  /* by its options; null: none */
void want_differences(Want *w); /* sets off */
/* Values of parameters and states, and of inputs, which all ranks share. */
double leaf_value(const Graph *g, const char *path, int64_t i);
double input_value(const char *name, Dtype dt, int64_t vocab, int64_t step,
                   int64_t i);
int64_t vocabulary(const Graph *g);
int64_t micro_of(const Graph *g);

/* ---- steps.c: a plan's step ---------------------------------------------- */

/* A step of a plan, from leaf_value and input_value; g: for these. */
Exec *step_run(const Graph *g, const Plan *p);
/* What it gave of w; null: the plan has none. */
double *step_result(Exec *x, const Wanted *w);
/* Against what is wanted, or against other results, bit by bit. */
void step_compare(const Want *w, Exec *x, Outcome *o);
void step_equal(const Want *w, Exec *x, double *const *same, Outcome *o);

#endif
