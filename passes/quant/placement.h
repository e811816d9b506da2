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
    int kernels;          /* the target has products of this recipe */
    Table *readers;       /* value -> number of weight products that read it */
    Table *choice;        /* Param -> its WeightChoice */
    Table *gradient;      /* product of a weight's gradient -> Param */
    RoundingWatch *watch; /* null: no metrics */
    Delayed *delayed;
    Wire *wire;      /* null: weight gradients read values unquantized */
    Table *rows;     /* values with quantized readers only -> RowsRounded */
    const Node *end; /* the last node of the graph */
} Placement;

/* A quantized value. */
typedef struct Rounding {
    const Node *of;
    Axes axes, blocks;
    Axis *pairs;
    Node *numbers;
    Node *inverse; /* inverse scales of blocks; null: `outer` is */
    Node *outer;   /* factor of a product's result; null: 1 */
} Rounding;

/* Rows of experts with quantized readers only, or another value whose readers
 * in the backward are quantized (precision.kept). */
typedef struct RowsRounded {
    const Node *product; /* reader, as its operand k; null: none */
    int k, others;       /* others: number of other readers */
    const Param *param;
    Node *values; /* null until they are made */
} RowsRounded;

/* The choice of a weight, equal in all programs. */
typedef struct WeightChoice {
    const char *stays; /* null: its products are scaled */
    double gain;       /* seconds of a micro-batch on a rank, if predicted */
    const char *own;   /* null: its gradient is quantized too, or the reason */
    double own_gain;
    const Node *n;  /* the first product that reads it */
    Rounding *once; /* vec: its quantizations in `pre` */
} WeightChoice;

/* ---- idle_keys.c --------------------------------------------------------- */

/* Warns once a model of keys without effect on the step, and if the keys ask
 * for quantized products and there are none. recipe: null without
 * quantization. */
void warn_idle_keys(const Placement *placement);

/* ---- primary.c ----------------------------------------------------------- */

/* Does the recipe allow stored e4m3 weights: square blocks, power-of-two
 * scales, rounding to nearest, and fp32 masters? recipe may be null. */
int has_numbers_of_weights(const Graph *g, const Recipe *recipe);
/* Records the values from which stored weights are quantized, for metrics. */
void primary_watch(const Placement *placement);

/* ---- placement.c --------------------------------------------------------- */

/* Initializes the placement from the options; recipe is null if they ask for no
 * quantization. */
void placement_new(Graph *g, Placement *placement);
/* The axis of blocks of `size` elements along a; an axis of positions has one
 * of its own, sharded like a. */
Axis *axis_of_blocks(Graph *g, Axis *a, int size);

/* Is x the weights of clones, selected from those of all experts, or the
 * gradients of all experts with those of clones (passes/model/clones.c)? */
int is_between_clones(const Node *x);
/* The parameter of which x is a view or cast; null: none. */
const Param *weight_of(Graph *g, const Node *x);
/* Does x differ between micro-batches? Routed rows do. */
int differs_by_micro(Graph *g, const Node *x);
/* The index of the weight operand of product n if the other is data; -1:
 * none. */
int weight_at(Graph *g, const Node *n);
/* The longest axis of x (the last of equal ones) over which n sums (n null:
 * any), except `but`, micro, and axes of rows and experts. */
Axis *longest_axis(const Node *x, const Node *n, const Axis *but);
/* The blocked axes of a layout for operand x of n. Returns their number, 0 for
 * a layout without blocks, -1 if x lacks them. */
int axes_cut(ScaleLayout layout, const Node *n, const Node *x, Axis *cut[2]);
/* Can operand k of n be quantized: has it the axes, of even size for packed
 * types? */
int can_cut(const Placement *placement, const Node *n, int k, OperandUse use);
/* Has the target kernels, and its machine instructions, for the recipe's
 * products? */
int has_scaled_kernels(const Graph *g, const Recipe *recipe);
/* Does the recipe quantize rows of experts to e4m3 in blocks of 1x128 with
 * power-of-two scales? */
int has_wide_rows(const Recipe *recipe);
/* Decides each weight, with a why() line. */
void judge_weights(Placement *placement);
void report_weights(const Placement *placement);

#endif
