/* trials.h: graphs whose values the reference interpreter knows: every row of
 * the op table, graphs whose parts fuse (patterns.c), random ones; in groups
 * for a target. Who runs the groups compares what comes out. */
#ifndef PLEAT_TRIALS_H
#define PLEAT_TRIALS_H

#include "../functions.h"
#include "../../passes/passes.h"

enum { TRIALOUTS = 8 };

typedef struct Trial {
    const char *name;
    Op op;    /* of the row; NOP: several */
    Dtype dt; /* of what was fp64 */
    Graph *g;
    int nout;
    Node *out[TRIALOUTS];
    Node *sink[TRIALOUTS]; /* a value ends in its sink's operand */
    Node dims[TRIALOUTS];  /* its axes before fusion */
    double *want[TRIALOUTS];
    Group **k;
    double limit; /* of a difference, over the largest value */
    int most;     /* kernels with text; 0: not said */
} Trial;

extern int trial_wants; /* 0: want is left open */
/* fuse() and lower. */
Group **trial_groups(Graph *g, const Target *T, Arena *a);
/* Append those of all rows, patterns, or n random graphs to list, a vec. */
Trial *trial_rows(Arena *a, const Target *T, Trial *list);
/* In the first `sizes` sizes; the fourth is one that tensor cores take. */
Trial *trial_patterns(Arena *a, const Target *T, Trial *list, int sizes);
Trial *trial_random(Arena *a, const Target *T, Trial *list, int from, int n);
/* Of ones, in two layouts; trial_turn says in which step and micro-batch. */
Trial trial_dropout(Arena *a, const Target *T);
void trial_turn(Trial *t, double step, double micro);
/* Of output o: got, in the order of the sink's operand, against what should be;
 * the largest difference, and the largest value to *size. */
double trial_differs(const Trial *t, int o, const double *want,
                     const double *got, double *size);
int trial_kernels(const Trial *t); /* with text */
/* Element i of the value as it was ordered before fusion. */
double trial_value(const Node *now, const double *v, const Node *was,
                   int64_t i);

/* ---- patterns.c: making graphs ------------------------------------------- */

typedef struct Make {
    Arena *a;
    Graph *g;
    Node *leaf[16];
    double *val[16];
    int nleaf;
    uint64_t seed;
    Trial *t;
} Make;

double mk_uniform(Make *m);
Node *mk_real(Make *m, const char *axes);
Node *mk_ew(Make *m, Op op, Node *a, Node *b);
Node *mk_red(Make *m, Op op, Node *a, const char *axis);
Node *mk_op2(Make *m, Op op, Node *a, Node *b, const char *axis);
void mk_result(Make *m, Node *n);
void mk_sizes(Graph *g, int how);
/* Round values, fill leaves, work out what should come, fuse and lower. */
void trial_prepare(Trial *t, Arena *a, const Target *T, Node **leaf,
                   double **val, int nleaf, Dtype dt);

#endif
