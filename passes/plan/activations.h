/* activations.h: choice of forward values that are kept for the backward. */
#ifndef PLEAT_ACTIVATIONS_H
#define PLEAT_ACTIVATIONS_H

#include "../core/core.h"

/* ---- gathers.c: parameters that are gathered twice ----------------------- */

/* Is n of the backward: made by grad, or gathered for such a node? */
int runs_backward(const Node *n);
int is_rebuilt(const Node *n); /* is it a copy made by recompute? */
/* Sets tmp of a value gathered for the forward to the backward's gather, or
 * null; of all others to null. */
void find_twins(Graph *g);
/* Merges both gathers if less than their bytes is kept after the forward's last
 * use. after: [id], bytes kept. Returns whether it changed the graph. */
int share_gathers(Graph *g, const int64_t *after);

/* ---- price.c: memory against time ---------------------------------------- */

/* Returns the value that a chain of views shares bytes with. */
Node *owner_of_bytes(Node *n);
/* Can n be read at any time: parameters, constants, inputs, values of pre? */
int always_there(const Node *n);
double seconds_of(const Graph *g, const Node *n); /* in a separate kernel */
/* Returns [Node.call]: the most micro-batches that hold the call's values at a
 * time. */
int *micros_alive(const Graph *g);
/* Adds the bytes of each forward value that the backward reads, and of rounded
 * weights, to kept[number of its unit in the table; 0: no unit]. */
void kept_bytes(const Graph *g, Table *unit, int64_t *kept);

/* ---- stash.c ------------------------------------------------------------- */

/* Assigns stored values to stacks (Node.stash), before kernels are lowered. */
void stash_values(Graph *g, Group *const *k);

/* ---- logits_sites.c: heads that logits_chunks.c slices ------------------- */

/* Role of a node: it stays, it has a copy per slice, it is dx, dw. */
enum { SLICEnot, SLICEeach, SLICEdx, SLICEdw };

typedef struct Slices { /* slices of a head */
    Graph *graph;
    Arena *arena;             /* freed with the head */
    Node *head, *operand;     /* the product, its operand with tokens */
    const int *first, *in;    /* [id], and one more: start of the ids of its
                                 operands in `in` */
    Axis *axis, *part, *rest; /* axis of tokens; its split parts, or null */
    int64_t parts, len;       /* len: size of axis (or rest) in a slice */
    int count, id;            /* number of slices; id of the first, for fuse */
    char *is;                 /* [id]: role */
    char *late;               /* [id]: not sliced, but reads a sliced node */
    Node ***copy;             /* [id][slice] */
    Node ***piece;            /* [id][slice]: parts of an operand */
    Node **whole;             /* [id]: the joined results */
    Node **early;             /* [id]: its node in the head's call */
} Slices;

/* Returns the operand of n with tokens, if n may be a head; or null. */
Node *head_tokens(Graph *g, const Node *n);
/* Returns the number of slices of slices->head. slices has graph, arena, head,
 * operand, first and in; the other fields except copies are set. Calls err() if
 * train.slices divides no axis. */
int cut_head(Slices *slices);

#endif
