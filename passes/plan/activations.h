/* activations.h: which values of the forward are kept for the backward. */
#ifndef PLEAT_ACTIVATIONS_H
#define PLEAT_ACTIVATIONS_H

#include "../core/core.h"

/* ---- gathers.c: parameters that are gathered twice ----------------------- */

/* In each micro-batch: made by grad, or gathered for what is. */
int runs_backward(const Node *n);
int is_rebuilt(const Node *n); /* made again by recompute */
/* tmp of a value gathered for the forward: what the backward gathers, or null;
 * of all others null. */
void find_twins(Graph *g);
/* One gather where less than its bytes is kept after the forward's last use. By
 * id: bytes kept. Did it change anything? */
int share_gathers(Graph *g, const int64_t *after);

/* ---- price.c: memory against time ---------------------------------------- */

/* The value whose bytes a chain of views shows. */
Node *owner_of_bytes(Node *n);
/* Free to read at any time: parameters, constants, inputs, values of pre. */
int always_there(const Node *n);
double seconds_of(const Graph *g, const Node *n); /* in a kernel of its own */
/* By Node.call: micro-batches at most that hold at a time what it keeps. */
int *micros_alive(const Graph *g);
/* Adds to kept[number in the table of its unit, 0: of none] the bytes of each
 * value of the forward that the backward reads, and of rounded weights. */
void kept_bytes(const Graph *g, Table *unit, int64_t *kept);

/* ---- stash.c ------------------------------------------------------------- */

/* Says of stored values in which stack they lie (Node.stash), before kernels
 * are lowered. */
void stash_values(Graph *g, Group *const *k);

/* ---- logits_sites.c: what logits_chunks.c cuts --------------------------- */

/* What becomes of a node: it stays, there is one a slice, it is dx, dw. */
enum { SLICEnot, SLICEeach, SLICEdx, SLICEdw };

typedef struct Slices { /* of one head */
    Graph *graph;
    Arena *arena;             /* of this head */
    Node *head, *operand;     /* the product, its operand with tokens */
    const int *first, *in;    /* by id, and one more: where in `in` the ids of
                                 its operands begin */
    Axis *axis, *part, *rest; /* of tokens; what it is split into, or null*/
    int64_t parts, len;       /* len: of axis (or rest) in a slice */
    int count, id;            /* slices; of the first, for fuse */
    char *is;                 /* by id */
    char *late;               /* by id: not is, but reads it */
    Node ***copy;             /* by id: of each slice */
    Node ***piece;            /* by id: slices of an operand */
    Node **whole;             /* by id: the results together again */
    Node **early;             /* by id: what it is in the head's call */
} Slices;

/* The operand of n with tokens, if n may be a head; or null. */
Node *head_tokens(Graph *g, const Node *n);
/* In how many slices->head is made; slices has graph, arena, head, operand,
 * first and in, and gets the rest but what slices are. err() when train.slices
 * divides no axis. */
int cut_head(Slices *slices);

#endif
