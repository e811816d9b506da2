/* tinyplan.h: a plan made by hand for tests of the runtime: a table of next-
 * token logits, learned by momentum, over dp ranks that share its moments. */
#ifndef TINYPLAN_H
#define TINYPLAN_H

#include "../../runtime/runtime.h"

enum { TINYVOCAB = 16, TINYSEQ = 8, TINYBATCH = 2 };

/* keys: "train.steps=4 data.train=x", as on the command line. train.batch is 8
 * sequences whatever dp is. */
Plan *tiny_plan(int64_t dp, const char *keys);
/* Each kernel's call in a plan made by hand gets a signature of its own, by its
 * kernel, words, rw (null: all b) and buffers. Kernels with @( in their text
 * get the name of kernel_new. */
void sign_kernels(Plan *p);

#endif
