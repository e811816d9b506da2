/* placement.h: choice of quantized products, for fp8.c and its neighbours. */
#ifndef PLEAT_PLACEMENT_H
#define PLEAT_PLACEMENT_H

#include "quant.h"

typedef enum ScaleFormula {
    FORMULAamax,
    FORMULApow2,
    FORMULAmx,
    FORMULAnv,
    FORMULAdelayed
} ScaleFormula;

typedef enum RoundingMode { ROUNDnearest, ROUNDstochastic } RoundingMode;
typedef enum OperandTransform {
    TRANSFORMnone,
    TRANSFORMhadamard
} OperandTransform;

typedef struct ScaledDtype {
    Dtype to;
    ScaleLayout layout;
    ScaleFormula formula;
    RoundingMode rounding;
} ScaledDtype;

typedef struct Recipe {
    ScaledDtype use[NUSE];
    OperandTransform transform;
} Recipe;

extern const Recipe recipes[]; /* rows of recipes.def */

typedef struct Placement {
    Graph *g;
    const Recipe *recipe;
    Dtype real;
    int pays;             /* only products that save time are scaled */
    int kernels;          /* the target multiplies numbers of this recipe */
    Table *readers;       /* a value -> products of weights that read it */
    Table *choice;        /* Param -> its WeightChoice */
    Table *gradient;      /* product that makes a weight's gradient -> Param */
    RoundingWatch *watch; /* null: nothing is watched */
    Delayed *delayed;
    Wire *wire;      /* null: gradients of weights read values as they are */
    Table *rows;     /* values that may be read rounded only -> RowsRounded */
    const Node *end; /* the last of the graph, behind all products */
} Placement;

/* A value as numbers of few bits. */
typedef struct Rounding {
    const Node *of;
    Axes axes, blocks;
    Axis *pairs;
    Node *numbers;
    Node *inverse; /* what 1 stands for in a block; null: `outer` says it */
    Node *outer;   /* a product is times it; null: times nothing */
} Rounding;

/* Rows of experts, all of whose readers take them rounded, or another value
 * all of whose readers in the backward do (precision.kept). */
typedef struct RowsRounded {
    const Node *product; /* that reads them as its operand k; null: none */
    int k, others;       /* others: read them otherwise */
    const Param *param;
    Node *values; /* once they are made */
} RowsRounded;

/* Of a weight, for all programs alike. */
typedef struct WeightChoice {
    const char *stays; /* null: its products are scaled */
    double gain;       /* seconds of a micro-batch on a rank, if predicted */
    const char *own;   /* null: its own gradient is scaled too; else why not */
    double own_gain;
    const Node *n;  /* the first product that reads it */
    Rounding *once; /* vec: what `pre` rounds of it */
} WeightChoice;

/* ---- idle_keys.c --------------------------------------------------------- */

/* Warns of keys that change nothing in the step, once a model, and where no
 * product is scaled for which the keys ask. recipe: null without few bits. */
void warn_idle_keys(const Placement *placement);

/* ---- primary.c ----------------------------------------------------------- */

/* Are numbers of weights the same whatever product reads them, powers of two
 * their scales, and are there masters to make them of? recipe may be null. */
int has_numbers_of_weights(const Graph *g, const Recipe *recipe);
/* Notes what the weights that are kept as numbers were rounded of. */
void primary_watch(const Placement *placement);

/* ---- placement.c --------------------------------------------------------- */

/* An empty one, by the options: recipe null where they ask for no few bits. */
void placement_new(Graph *g, Placement *placement);
/* What counts blocks of so many along a; of positions apart, as a is cut. */
Axis *axis_of_blocks(Graph *g, Axis *a, int size);

/* Is x weights of clones, taken of those of all experts, or gradients of all,
 * with those of clones (passes/model/clones.c)? */
int is_between_clones(const Node *x);
/* The parameter that x is, by whatever axes and dtype; null: none. */
const Param *weight_of(Graph *g, const Node *x);
/* Does x differ between micro-batches? Rows do whose experts data chooses. */
int differs_by_micro(Graph *g, const Node *x);
/* The operand of product n that is a weight, the other being data; -1: none. */
int weight_at(Graph *g, const Node *n);
/* The longest axis of x, the last of several, of those that product n sums
 * over, or null any; but. Not micro, nor of rows and experts. */
Axis *longest_axis(const Node *x, const Node *n, const Axis *but);
/* Axes cut into blocks by a layout for operand x of n; how many, 0 for a layout
 * without blocks, -1: x lacks them. */
int axes_cut(ScaleLayout layout, const Node *n, const Node *x, Axis *cut[2]);
/* Whether operand k of n can be cut so: it has the axes, and two numbers make
 * an element. */
int can_cut(const Placement *placement, const Node *n, int k, OperandUse use);
/* Has the target a kernel for products of such numbers, and its machine
 * instructions? */
int has_scaled_kernels(const Graph *g, const Recipe *recipe);
/* Are rows of experts rounded to e4m3 by powers of two, 1x128? */
int has_wide_rows(const Recipe *recipe);
/* Chooses for each weight; says why. */
void judge_weights(Placement *placement);
void report_weights(const Placement *placement);

#endif
