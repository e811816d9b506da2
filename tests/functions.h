/* functions.h: ir.h with the ops of functions.def among its Op, for references
 * that compute them another way. Before any other header of ours. */
#ifndef PLEAT_TESTS_FUNCTIONS_H
#define PLEAT_TESTS_FUNCTIONS_H

#define FUNCTION(name, operands, special, grad, lower) O##name,
#include "../ir/graph/graph.h"
#undef FUNCTION

#endif
