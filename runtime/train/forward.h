/* forward.h: runs a model with input "tokens" and output "logits" on sequences
 * of tokens, for generate.c and score.c. */
#ifndef PLEAT_FORWARD_H
#define PLEAT_FORWARD_H

#include "train.h"

typedef struct ForwardPass {
    Exec *x;
    const Tensor *tokens, *logits;
    int64_t batch, seq, vocab;
    int32_t *window; /* [batch][seq] */
    int64_t *n;      /* [batch]: tokens of each sequence; zeros follow */
    const void *out; /* logits of the last run; null in other processes */
    TextArgs text;   /* its tokenizer t is never null */
} ForwardPass;

/* Returns how a plan's text becomes tokens. Calls err() without a tokenizer. */
TextArgs forward_text(const Plan *p);
const PlanDim *forward_seq(const Plan *p);
const PlanDim *forward_batch(const Plan *p);
/* Returns null, or the reason why this model or fold cannot run forward. */
const char *forward_open(ForwardPass *pass, Exec *exec);
/* Opens a plan on one rank with the values of its key `from`. Failures call
 * err(). */
void forward_alone(ForwardPass *pass, Plan *p);
void forward_run(ForwardPass *pass);
/* Reads the logits [vocab] after token `at` of a sequence. In a fold only the
 * first process can, for sequence 0. */
void forward_logits(const ForwardPass *pass, int64_t sequence, int64_t at,
                    double *out);

#endif
