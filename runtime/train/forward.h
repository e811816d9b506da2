/* forward.h: a model with input "tokens" and output "logits", run on sequences
 * of tokens: what generate.c and score.c share. */
#ifndef PLEAT_FORWARD_H
#define PLEAT_FORWARD_H

#include "train.h"

typedef struct ForwardPass {
    Exec *x;
    const Tensor *tokens, *logits;
    int64_t batch, seq, vocab;
    int32_t *window; /* [batch][seq] */
    int64_t *n;      /* [batch]: tokens of each sequence; zeros behind them */
    const void *out; /* logits of the last run; null on other processes */
    TextArgs text;   /* t is never null */
} ForwardPass;

/* Of a plan: how text becomes tokens, the axis of its sequences, and of which
 * one there is (null: one). err() if it has none. */
TextArgs forward_text(const Plan *p);
const PlanDim *forward_seq(const Plan *p);
const PlanDim *forward_batch(const Plan *p);
/* Null, or why this model or fold cannot. */
const char *forward_open(ForwardPass *pass, Exec *exec);
/* The plan on one rank with the values that its key `from` names; err(). */
void forward_alone(ForwardPass *pass, Plan *p);
void forward_run(ForwardPass *pass);
/* The logits [vocab] behind token `at` of a sequence. In a fold only those of
 * sequence 0, by the first process. */
void forward_logits(const ForwardPass *pass, int64_t sequence, int64_t at,
                    double *out);

#endif
