/* optimizers.h: optimizers for graphs that tests make. */
#ifndef PLEAT_TESTS_OPTIMIZERS_H
#define PLEAT_TESTS_OPTIMIZERS_H

#include "../../passes/passes.h"

/* Adds the optimizer of a model that names none to g, for any parameter. */
void optimizers_add(Graph *g);

#endif
