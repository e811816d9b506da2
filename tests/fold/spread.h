/* spread.h: a plan's instructions on several streams. */
#ifndef SPREAD_H
#define SPREAD_H

#include "../../ir/plan/plan.h"

/* Of each phase all but the first and the last instruction, on streams chosen
 * by chance, behind events of those that use the same bytes; kernels that are
 * not on compute start first. */
void spread_streams(Arena *a, Plan *p, uint64_t seed);
/* Instructions in an order by chance, of those that streams and events allow:
 * what a device may do, for the host, which takes them one by one. Body and
 * post that run once are one piece. How many stand elsewhere. */
int shuffle_streams(Arena *a, Plan *p, uint64_t seed);

#endif
