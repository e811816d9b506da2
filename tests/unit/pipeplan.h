/* pipeplan.h: a pipeline made by hand for tests of the runtime: two stages, one
 * weight each, 1F1B, and the same sums in plain C. */
#ifndef PIPEPLAN_H
#define PIPEPLAN_H

#include "../../runtime/runtime.h"

enum { PIPEN = 5, PIPEMICRO = 4 };

/* pp = 2, dp ranks a stage; train.batch is PIPEMICRO * dp. */
Plan *pipe_plan(int64_t dp);
/* The input's element; name "x" or "t", micro-batch counted over dp. */
double pipe_input(const char *name, int64_t step, int64_t micro, int64_t i);
Feed pipe_feed(const Plan *p, int64_t step);
/* Weights a and b [PIPEN] after one more step; the loss before it. */
double pipe_step(int64_t dp, int64_t step, double lr, double *a, double *b);

#endif
