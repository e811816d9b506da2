/* grouped.h: grouped products for GPUs on small uneven sizes, against plain
 * loops. */
#ifndef PLEAT_GROUPED_H
#define PLEAT_GROUPED_H

#include "../../codegen/codegen.h"

enum { MOSTEXPERTS = 48 };

typedef struct Product {
    const char *name;
    int weight; /* GMMW */
    int64_t K, N;
    int tw, f32; /* weights are N x K; the result's dtype */
    GroupedTile tile;
    int add, squares;
    int terms;    /* 2: the sum with another product */
    int64_t more; /* columns of weights that belong to others */
    int scaled;   /* of e4m3 with scales of blocks */
    int base;     /* row of a stack where theirs begin; 0: they lie in none */
    int experts, rows[MOSTEXPERTS];
    int update; /* of weights: slots of an update (grouped.c); 0: none */
    int rounds; /* one of its values is rounded in blocks, which are tiles */
} Product;

/* Its kernel's text, to be compiled (emurun.h). */
Group *product_group(Arena *a, const Product *p);
/* Runs it. What no expert has is NaN before, and so is the result, but for what
 * is added to. Largest error over what is allowed, of each expert by its own
 * largest; infinite: an error, something else was written, or not what an
 * update makes of the result, to the bit. *bits: a hash of the result. */
double product_error(const Product *p, const Group *k, uint64_t *bits);

#endif
