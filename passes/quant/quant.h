/* quant.h: quantized products: placement, scales, e4m3 weights, lowering. */
#ifndef PLEAT_QUANT_H
#define PLEAT_QUANT_H

#include "../training/training.h"

/* ---- watch.c delayed.c --------------------------------------------------- */

typedef enum OperandUse { USEvalue, USEweight, USEgradient, NUSE } OperandUse;

/* Does program k have metrics of what is rounded? */
int watches(const Graph *g, ProgramKind k);
typedef struct RoundingWatch RoundingWatch;
RoundingWatch *watch_new(Graph *g); /* null: nothing is watched */
/* Notes what `quantize` does to an operand. */
void watch_quantize(RoundingWatch *watch, const Node *quantize, OperandUse use,
                    const Param *param);
void watch_results(
    const RoundingWatch *watch); /* the step's metrics of all noted */
/* The largest magnitude of x over the step, where `at` stands, for post. */
Node *amax_of_step(Graph *g, const Node *at, Node *x);

typedef struct Delayed Delayed;
Delayed *delayed_new(Graph *g);
/* The scale of parameter's operand by its history, where `most` is the dtype's
 * largest number; x, which is rounded where `at` stands, joins the history. */
Node *delayed_scale(Delayed *delayed, const Param *param, OperandUse use,
                    const Node *at, Node *x, double most);
void delayed_writes(const Delayed *delayed); /* histories of the next step */

/* ---- wire.c -------------------------------------------------------------- */

typedef struct Wire Wire;

/* Before any product of g is scaled. */
Wire *wire_new(Graph *g);
/* What is to be rounded of rows that are cut into blocks of so many along an
 * axis, with a why() line of seconds: the tokens that they are sent of, or the
 * rows. */
Node *wire_source(const Wire *wire, Node *rows, const Axis *cut, int64_t block);
/* v of those tokens, sent as the rows were. */
Node *wire_moved(const Wire *wire, Node *rows, Node *v);

/* ---- rounded_weights.c --------------------------------------------------- */

/* Of n, a weight that is rounded once a step: what is kept for it. */
int64_t rounded_bytes(const Graph *g, const Node *n);
/* Rounds weights for each reader where memory is worth the time. */
void round_again(Graph *g);

/* ---- quantize.c scaled_products.c ---------------------------------------- */

/* What loop kernels make amax, quantize or dequantize of (quantize.c). */
Node *open_blocks(Graph *g, Node *n);
/* Grouped products of their operands' numbers and scales, where the target has
 * a kernel for that (scaled_products.c). */
void scaled_products(Graph *g);

/* ---- rounded_sums.c ------------------------------------------------------ */

/* By id: is it a sum of rows that is made of what a kernel reads to make what
 * it rounds in blocks of rows? */
char *rounded_sums(Graph *g);
/* Is m a sum over blocks of SCALEBLOCK of what lies as x does? */
int is_sum_of_blocks(const Node *m, const Node *x);

#endif
