/* exchange.h: exchanges of rows through peers' memory. */
#ifndef PLEAT_EXCHANGE_H
#define PLEAT_EXCHANGE_H

#include "../text/text.h"

extern const char exchange_pre[]; /* in the text that needs it */

/* What an instruction of a host becomes on a GPU. */
void exchange_lower_cuda(const Graph *g, Group *group, Arena *a);

#endif
