/* functions.h: graph.h with the ops of functions.def in its enum Op, for
 * references that compute them another way. Include it before other headers. */
#ifndef PLEAT_TESTS_FUNCTIONS_H
#define PLEAT_TESTS_FUNCTIONS_H

#define FUNCTION(name, operands, special, grad, lower) O##name,
#include "../ir/graph/graph.h"
#undef FUNCTION

#endif
