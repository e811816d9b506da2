/* hostrun.h: run groups on this machine without the runtime, for tests.      */
#ifndef PLEAT_HOSTRUN_H
#define PLEAT_HOSTRUN_H

#include "../../codegen/codegen.h"
#include "../../passes/passes.h"

/* fuse() and lower. Buffers hang on the storage nodes' tmp.                  */
Group **host_groups(Graph *g, Arena *a);
/* A buffer of a node filled from doubles in the node's order.                */
void host_set(const Graph *g, Node *n, const double *v);
double *host_get(const Graph *g, Node *n, Arena *a);
/* Compile the texts of all groups; null and a message when the compiler
 * fails.                                                                     */
void *host_compile(Arena *a, Group *const *k, int n);
/* Run the groups in order; every kernel in uneven ranges.                    */
void host_run(const Graph *g, Group *const *k, int n, void *lib);

#endif
