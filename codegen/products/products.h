/* products.h: matrix products, grouped products (per expert) and quantization
 * in blocks. */
#ifndef PLEAT_PRODUCTS_H
#define PLEAT_PRODUCTS_H

#include "../loop/loop.h"

/* gemm.c: instructions of library products. */
void gemm_lower(Graph *g, Group *group, Arena *a);
/* Sets FLOPs of product n and bytes of the group's arguments. */
void set_product_cost(const Graph *g, Group *group, const Node *n);
/* Instructions of grouped products: gmm, and gmm_wgrad with its update. */
void gmm_lower(Graph *g, Group *group, Arena *a);
void gmm_wgrad_lower(Graph *g, Group *group, Arena *a);

/* blocks.c: e4m3 values with one scale per block. blocks_lower_cuda: kernel of
 * a quantize_blocks that reads memory. blocks_of_loop: fills `node` with the
 * quantize_blocks nodes (at most MOSTROUNDED) that the group's loop kernel
 * computes itself, returns their number. blocks_fit_loop: may n be one of them
 * (Target.rounds)? blocks_loop_lower: lowers such a group and returns the text
 * that precedes its kernel. */
void blocks_lower_cuda(Graph *g, Group *group, Arena *a);
int blocks_of_loop(const Group *group, const Node **node);
int blocks_fit_loop(const Graph *g, const Node *n);
/* Are n's blocks those of consecutive matrices [m columns]? */
int blocks_of_matrix(const Graph *g, const Node *n, int64_t m, int64_t columns);
char *blocks_loop_lower(Graph *g, Group *group, Arena *a);

/* Embedded in the texts that use them. */
extern const char gmm_cuh[], scale_cuh[], blocks_cuh[], grouped_cuh[],
    update_cuh[];

/* update.c: the optimizer update that a wgrad kernel makes from its result. */
typedef struct ProductUpdate {
    const char *text;      /* precedes the product's text */
    int ahead;             /* slots per warpgroup */
    int64_t bytes;         /* bytes of a slot */
    Node **kept, **number; /* vecs: buffers in the order of the parameters */
    Node **read; /* vec: those of `kept` that are read; all are written */
} ProductUpdate;
/* The update of a group for which group_updates() holds. */
ProductUpdate *update_text(Group *group, Arena *a, int ahead);

/* grouped.c: makes a GPU kernel from the host's grouped product. */
typedef struct GroupedTile {
    int64_t rows, cols; /* size of a result tile */
    int pingpong;       /* each warpgroup computes tiles of its own */
} GroupedTile;
typedef struct GroupedForm {
    int weight;  /* gmm_wgrad */
    int squares; /* computes sums of squares of the result */
    int terms;   /* 2: the sum of two products */
    int stash;   /* the second product's rows are in a stash */
    int dense;   /* one matrix product: one expert with cap rows, no offsets */
    int band;    /* tiles of a band along m; 0: BANDROWS */
    GroupedTile tile;
    const ProductUpdate *update; /* replaces the stores; null: none */
} GroupedForm;
/* The kernel of a gmm or gmm_wgrad group. */
void grouped_lower_cuda(Graph *g, Group *group, Arena *a);
/* A matrix product: a library instruction, or a kernel if it has scales. */
void dense_lower_cuda(Graph *g, Group *group, Arena *a);
/* Speed class of a grouped product, for the time model. */
ProductPath grouped_path(const Group *group);
/* Text of the kernel ("@" in place of its name) for the instruction's integers
 * (instructions.def). *shared gets its dynamic shared memory in bytes. */
char *grouped_text(Arena *a, const GmmArgs *args, GroupedForm form,
                   int64_t *shared);
/* Threads of a block. */
int grouped_threads(const GmmArgs *args, const GroupedForm *form);
/* Target.squares: partial sums of squares that the kernel of n leaves. */
int64_t grouped_squares(const Graph *g, const Node *n, int updates);
/* Partial sums of squares of a weight gradient: one per warp and tile. */
int64_t tile_squares(const GmmArgs *args, const GroupedTile *tile);
/* Target.updates: can the kernel of n update, and quantize `rounded`?
 * Target.sums: can one kernel compute the sum of two products? */
int grouped_updates(const Graph *g, const Node *n, const Node *rounded);
int grouped_sums(const Graph *g, const Node *n, const Node *other);
Node *sum_sq_of(const Group *group);   /* its sum_sq output, or null */
int grouped_terms(const Group *group); /* products whose sum it computes */
/* Number of buffers: rows, weights, result, offsets, the scales of both
 * operands, and rows, weights and scales of a second product. */
int grouped_operands(int terms, int scaled);
int has_scaled_product(const Graph *g, const Node *n); /* Target.scaled */

#endif
