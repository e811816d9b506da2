/* hostrun.h: run groups on this machine without the runtime, for tests. */
#ifndef PLEAT_HOSTRUN_H
#define PLEAT_HOSTRUN_H

#include "../../ir/graph/graph.h"

/* A buffer of a node filled from doubles in the node's order. Buffers hang on
 * the storage nodes' tmp. */
void host_set(const Graph *g, Node *n, const double *v);
double *host_get(const Graph *g, Node *n, Arena *a);
/* Compile the texts of all groups; null and a message when the compiler
 * fails. */
void *host_compile(Arena *a, Group *const *k, int n);
/* Runs one group. buf: of its arguments, then work space; bytes: their sizes,
 * those of arguments with RUNGUARD bytes behind the value. */
enum { RUNGUARD = 64 };
typedef void RunStep(void *ctx, const Group *k, void *const *buf,
                     const size_t *bytes, const int64_t *iv);
/* On this machine, every kernel in uneven ranges. lib: host_compile's. */
RunStep host_step;
/* Run the groups in order. */
void host_run(const Graph *g, Group *const *k, int n, RunStep *f, void *ctx);

#endif
