/* interp.h: the reference meaning of every op, and a small case of every
 * row. */
#ifndef PLEAT_INTERP_H
#define PLEAT_INTERP_H

#include "../functions.h"

/* Evaluate g in order, naively, in fp64 (integers and truths as doubles). val
 * is by node id; entries that are set (inputs, parameters, states, step values,
 * arguments) are taken as they are. One rank, one micro-batch. A route node's
 * value is map_layout's buffer, one double per integer. */
void interp(Graph *g, double **val);

typedef struct Case {
    const char *name; /* "mul broadcast" */
    Op op;
    Graph *g;
    int nleaf;
    Node *leaf[6];  /* parameters, to be filled by the caller */
    int fixed[6];   /* 1: an index or a choice, filled already */
    double *val[6]; /* of leaf, filled with suitable numbers */
    Node *out;      /* the node of the row under test */
} Case;

/* The i-th case of all rows, on fresh memory of arena; 0 past the end. */
int case_at(int i, Arena *arena, Case *c);

#endif
