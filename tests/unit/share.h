/* share.h: many plans of small models, one compiler run; how far apart their
 * values are. */
#ifndef PLEAT_SHARE_H
#define PLEAT_SHARE_H

#include "../../ir/graph/graph.h"

/* Give each of the n plans the kernels of all, so that one text is compiled
 * for all of them. */
void share_kernels(Plan *const *p, size_t n);

/* The largest difference of x from y, values of tensor t, over the largest of
 * y; of experts' weights, each over its own largest: those of an expert with
 * few tokens are small. (A router's are not: where its expert is not chosen,
 * they are sums that cancel.) NaN is infinitely far from anything. */
double tensor_apart(const Tensor *t, const double *x, const double *y);

#endif
