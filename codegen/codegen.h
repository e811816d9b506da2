/* codegen.h: kernel text for a target, for those outside. Targets are rows in
 * targets.c. */
#ifndef PLEAT_CODEGEN_H
#define PLEAT_CODEGEN_H

#include "attn_gpu/attn_gpu.h"
#include "exchange/exchange.h"
#include "loop/loop.h"
#include "products/products.h"
#include "rows/rows.h"

void comm_lower(Graph *g, Group *group, Arena *a); /* comm.c */
void comm_lower_cuda(Graph *g, Group *group, Arena *a);

/* cuda.c: loops for a GPU; what is lowered as for hosts in a grid. */
void cuda_loop_lower(Graph *g, Group *group, Arena *a);
void cuda_blocks_lower(Graph *g, Group *group, Arena *a);
void cuda_row_grid(Graph *g, Group *group, Arena *a, int threads);

#endif
