/* exchange.h: exchange of expert rows through peer memory. */
#ifndef PLEAT_EXCHANGE_H
#define PLEAT_EXCHANGE_H

#include "../text/text.h"

extern const char exchange_cuh[];

/* Makes the GPU kernel of a sendrows or returnrows instruction (set up by
 * comm_lower) and sets its blocks, threads and shared memory. */
void exchange_lower_cuda(const Graph *g, Group *group, Arena *a);

#endif
