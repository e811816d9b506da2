/* model.h: the model made simpler and explicit. */
#ifndef PLEAT_MODEL_H
#define PLEAT_MODEL_H

#include "../core/core.h"

/* ---- expert_capacity.c --------------------------------------------------- */

const Node *choice_of(const Node *e); /* the router's own index, behind e */
/* route.policy=dropless with route.factor: a rank has room for so many times
 * its equal share of rows. When more come, `step` does nothing and says so, and
 * the program step.fallback takes them in rounds (overflow_fallback.c). */
int limits_rows(const Graph *g);
int rounds_of(const Graph *g, const Node *route); /* 1: never too many */

#endif
