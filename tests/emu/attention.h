/* attention.h: attention kernels for GPUs on small uneven sizes, against the
 * host's in fp64. */
#ifndef PLEAT_ATTENTION_H
#define PLEAT_ATTENTION_H

#include "../unit/attn_cases.h"

typedef struct Attention {
    Run right, r; /* fp64 on the host, the GPU's */
} Attention;

void attention_make(Attention *x, const Form *c, Dtype dt);
/* Values, and what should come, by host kernels; all at once. 0: they do not
 * compile. */
int attention_prepare(Attention *x, int n);
/* x's kernels on the values of another of the same form. */
void attention_share(Attention *x, const Attention *prepared);
/* Runs forward and backward, as they were compiled (emurun.h); results are NaN
 * before. The largest distance of a row of a result from what it should be,
 * over what is allowed; infinite: an error. *bits: a hash of all results. */
double attention_error(Attention *x, uint64_t *bits);

#endif
