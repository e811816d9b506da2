/* spread.h: a plan's instructions on several streams. */
#ifndef SPREAD_H
#define SPREAD_H

#include "../../ir/plan.h"

/* Of each phase all but the first and the last instruction, on streams chosen
 * by chance, behind events of those that use the same bytes; kernels that are
 * not on compute start first. */
void spread_streams(Arena *a, Plan *p, uint64_t seed);

#endif
