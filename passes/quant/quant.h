/* quant.h: quantized products: placement, scales, e4m3 weights and lowering.
 * Results belong to the arena of the graph. */
#ifndef PLEAT_QUANT_H
#define PLEAT_QUANT_H

#include "../training/training.h"

/* ---- watch.c delayed.c --------------------------------------------------- */

typedef enum OperandUse { USEvalue, USEweight, USEgradient, NUSE } OperandUse;

/* Does program k have metrics of rounded values? */
int watches(const Graph *g, ProgramKind k);
typedef struct RoundingWatch RoundingWatch;
RoundingWatch *watch_new(Graph *g); /* null: nothing is watched */
/* Records an operand that `quantize` rounds. */
void watch_quantize(RoundingWatch *watch, const Node *quantize, OperandUse use,
                    const Param *param);
void watch_results(const RoundingWatch *watch); /* adds the metrics */
/* The largest magnitude of x in the step, for post; x is rounded at `at`. */
Node *amax_of_step(Graph *g, const Node *at, Node *x);

typedef struct Delayed Delayed;
Delayed *delayed_new(Graph *g);
/* The scale of the operand `use` of param's product from its history. most: the
 * dtype's largest finite number. The amax of x, which is rounded at `at`, is
 * appended to the history. */
Node *delayed_scale(Delayed *delayed, const Param *param, OperandUse use,
                    const Node *at, Node *x, double most);
void delayed_writes(const Delayed *delayed); /* writes the histories */

/* ---- wire.c -------------------------------------------------------------- */

typedef struct Wire Wire;

/* Must run before any product of g is scaled. */
Wire *wire_new(Graph *g);
/* The value to quantize for rows that are quantized in blocks along `cut`: the
 * tokens before their exchange, or the rows after it. Adds the decision and its
 * seconds to why(). */
Node *wire_source(const Wire *wire, Node *rows, const Axis *cut, int64_t block);
/* v, a value of those tokens, exchanged like the rows. */
Node *wire_moved(const Wire *wire, Node *rows, Node *v);

/* ---- rounded_weights.c --------------------------------------------------- */

/* Bytes kept for n, a weight that is quantized once a step. */
int64_t rounded_bytes(const Graph *g, const Node *n);
/* Quantizes weights for each reader where memory costs more than the time. */
void round_again(Graph *g);

/* ---- quantize.c scaled_products.c ---------------------------------------- */

/* Lowers n, an amax, hadamard, quantize or dequantize, to operations of loop
 * kernels (quantize.c). */
Node *open_blocks(Graph *g, Node *n);
/* Makes grouped products of dequantized operands products of the quantized
 * numbers and scales, if the target has such a kernel (scaled_products.c). */
void scaled_products(Graph *g);

/* ---- rounded_sums.c ------------------------------------------------------ */

/* By id: is the node a sum of rows that a quantizing kernel can also write? */
char *rounded_sums(Graph *g);
/* Is m a sum over blocks of SCALEBLOCK elements of a value with x's layout? */
int is_sum_of_blocks(const Node *m, const Node *x);

#endif
