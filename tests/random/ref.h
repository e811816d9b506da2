/* ref.h: what a model means, straight from the graph that the front end traced:
 * values, losses, gradients and updates in fp64, in plain loops. It shares no
 * code with the passes or codegen, so that it can judge both. */
#ifndef PLEAT_RANDOM_REF_H
#define PLEAT_RANDOM_REF_H

#include "../functions.h"

enum { MAXNAMED = 64, MAXREFIN = MAXIN };

/* A node with its composites opened. The axis micro has all micro-batches of
 * the step. */
typedef struct Val {
    const Node *n;
    int nin, in[MAXREFIN]; /* indices of operands */
    int nd;
    Axis *a[MAXD];
    int64_t len[MAXD], step[MAXD]; /* row-major, in elements */
    int64_t elems;
    int real, need; /* a float; one that parameters lead to */
    double times;   /* a sum after the step: how often it counts */
    int weights;    /* an attention's result: index of the sum that its weights
                       are divided by; 0: no attention */
    double *v, *d;  /* value; gradient of the step's loss */
} Val;

/* A number or tensor of the model that has a name outside. */
typedef struct Named {
    const char *name;
    int at;     /* the value */
    double sum; /* of a loss or metric */
} Named;

/* How far rounding to few bits may move a number: by these shares of itself and
 * of its tensor's largest, or by so much. */
typedef struct FewBits {
    double itself, largest, least;
} FewBits;

typedef struct Ref {
    Arena *a;
    Graph *g;
    int64_t micro, step; /* micro-batches; number of the step */
    Val *val;            /* vec */
    Axis *microaxis;
    Named param[MAXNAMED], state[MAXNAMED], input[MAXNAMED];
    Named loss[MAXNAMED], metric[MAXNAMED], update[MAXNAMED];
    int nparam, nstate, ninput, nloss, nmetric, nupdate;
    double total; /* the step's loss */
    /* Decisions (comparisons, order of topk, kinks): by how much each operand
     * is the larger; how near the nearest two different operands are, over
     * their tensors' largest; equal operands; a hash of all. */
    double *gap; /* vec */
    double margin;
    int ties;
    uint64_t decided;
    /* Relative noise of every result, for bounds of rounding; 0: none. */
    double noise;
    /* Of operands of a weight's products, in runs with noise: of the weight and
     * what it meets, of gradients; null: they are not rounded. */
    const FewBits *value, *gradient;
    uint64_t seed;
    int frozen; /* stop_gradient keeps what it was: for differences */
} Ref;

/* Leaves are zero. die() for an op that has no meaning here. */
Ref *ref_new(Arena *a, Graph *g, int64_t micro);
Val *ref_leaf(const Ref *r, const char *name, Op op); /* null: none */
void ref_values(Ref *r);            /* values, losses, metrics, updates */
void ref_gradients(Ref *r);         /* then gradients */
double ref_uniform(uint64_t *seed); /* [0, 1) */

/* The gradient's product with a random direction, and the same by finite
 * differences of the loss: their distance over their size; negative: decisions
 * lie too near to tell. rounding: how far that may move the loss, whose terms
 * may cancel; what it explains counts as no distance. ref_gradients went
 * before. */
double ref_differences(Ref *r, uint64_t seed, double rounding);

/* ---- refwalk.c: all index tuples of some values -------------------------- */

enum { MAXWALK = 4 };
typedef struct Walk {
    int nd, nv;
    Axis *a[4 * MAXD];
    int64_t len[4 * MAXD], i[4 * MAXD];
    int64_t step[MAXWALK][4 * MAXD], at[MAXWALK];
} Walk;

/* Over the axes of the values in `space`; at[] of all of v[0..nv). */
Walk walk_over(const Val *const *space, int nspace, const Val *const *v,
               int nv);
void walk_skip(Walk *w, int k, const Axis *a); /* v[k] does not follow a */
int walk_next(Walk *w);                        /* 0: that was the last */
int walk_axis(const Walk *w, const Axis *a);   /* -1: none */
int val_axis(const Val *v, const Axis *a);     /* -1: none */

/* ---- refvalue.c ---------------------------------------------------------- */

void ref_value(Ref *r, Val *x);
double ref_dropped(const Ref *r, const Val *x, const Walk *w); /* 0 or scale */
/* Are operands of product x rounded to few bits? Those of a weight are, but for
 * vocabularies and routers. */
int ref_few_bits(const Ref *r, const Val *x);
/* n numbers as rounding may change them. */
const double *ref_rounded(Ref *r, const FewBits *b, const double *v, int64_t n);

/* ---- refgrad.c ----------------------------------------------------------- */

void ref_back(Ref *r, const Val *x); /* adds to its operands' d */

#endif
