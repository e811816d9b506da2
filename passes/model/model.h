/* model.h: the model made simpler and explicit. */
#ifndef PLEAT_MODEL_H
#define PLEAT_MODEL_H

#include "../core/core.h"

/* ---- expert_capacity.c --------------------------------------------------- */

/* route.policy=dropless: a rank has room for route.factor times its equal share
 * of rows. When more come, `step` does nothing and says so, and the program
 * step.fallback takes them in rounds (overflow_fallback.c). */
int may_overflow(const Graph *g, const Node *route);
double budget_of(const Graph *g, const Node *route); /* of a round */
int of_batch(const Node *e); /* does it differ between sequences? */

/* ---- expert_metrics.c ---------------------------------------------------- */

void expert_metrics(Graph *g);
/* In the value's scope, by this name or one with a number behind it. */
void add_metric(Graph *g, const char *name, Node *value);

#endif
