/* codegen.h: the generators of all folders. Targets are rows in targets.c. */
#ifndef PLEAT_CODEGEN_H
#define PLEAT_CODEGEN_H

#include "attn_gpu/attn_gpu.h"
#include "exchange/exchange.h"
#include "loop/loop.h"
#include "products/products.h"
#include "rows/rows.h"

/* comm.c: instructions of collectives and row exchanges. */
void comm_lower(Graph *g, Group *group, Arena *a);
void comm_lower_cuda(Graph *g, Group *group, Arena *a);

/* cuda.c: GPU kernels of loops and of quantizations. cuda_row_grid: makes a
 * host kernel a GPU kernel whose items are blocks of `threads` threads; 0:
 * threads. */
void cuda_loop_lower(Graph *g, Group *group, Arena *a);
void cuda_blocks_lower(Graph *g, Group *group, Arena *a);
void cuda_row_grid(Graph *g, Group *group, Arena *a, int threads);

#endif
