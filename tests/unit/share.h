/* share.h: many plans of small models, one compiler run. */
#ifndef PLEAT_SHARE_H
#define PLEAT_SHARE_H

#include "../../ir/ir.h"

/* Give each of the n plans the kernels of all, so that one text is compiled
 * for all of them. */
void share_kernels(Plan *const *p, size_t n);

#endif
