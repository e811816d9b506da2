/* products.h: products, and grouped ones on GPUs. */
#ifndef PLEAT_PRODUCTS_H
#define PLEAT_PRODUCTS_H

#include "../loop/loop.h"

void gemm_lower(Graph *g, Group *group, Arena *a); /* gemm.c */
/* FLOPs of product n, bytes of the arguments of its group. */
void set_product_cost(const Graph *g, Group *group, const Node *n);
void gmm_lower(Graph *g, Group *group, Arena *a);
void gmm_wgrad_lower(Graph *g, Group *group, Arena *a);

/* blocks.c: numbers of 8 bits and their scales; in the kernel that makes what
 * is rounded: the nodes of such a group, MOSTROUNDED at most, their number; may
 * n be in one (Target.rounds); the loop kernel, of which the text that stands
 * before it is returned. */
void blocks_lower_cuda(Graph *g, Group *group, Arena *a);
int blocks_of_loop(const Group *group, const Node **node);
int blocks_fit_loop(const Graph *g, const Node *n);
/* Are n's blocks those of matrices [m n], one behind the other? */
int blocks_of_matrix(const Graph *g, const Node *n, int64_t m, int64_t columns);
char *blocks_loop_lower(Graph *g, Group *group, Arena *a);

/* In the text that needs them. */
extern const char gmm_pre[], scale_pre[], blocks_pre[], wgmma_pre[],
    update_pre[];

/* update.c: what a weights' gradient's kernel makes of its result. */
typedef struct ProductUpdate {
    const char *text;       /* stands before the product's */
    const char *parameters; /* of the kernel, each with a comma behind it */
    const char *values;     /* of struct Update */
    int ahead;              /* slots of a warpgroup */
    int64_t bytes;          /* of a slot */
    Node **kept, **number;  /* vecs: buffers in the order of parameters */
    Node **read;            /* vec: of kept, what is read; all are written */
} ProductUpdate;
/* Of a group that updates (group_updates). */
ProductUpdate *update_text(Group *group, Arena *a, int ahead);

/* grouped.c: a grouped product's instruction of the host becomes a kernel. */
typedef struct GroupedTile {
    int64_t rows, cols; /* of the result a block makes at once */
    int pingpong;       /* a warpgroup makes a tile alone */
} GroupedTile;
typedef struct GroupedForm {
    int weight;  /* gmm_wgrad */
    int squares; /* sums of squares beside it */
    int terms;   /* 2: the sum of two products */
    int stash;   /* of terms: the second's rows lie in a stack */
    int dense; /* one weight for all of cap rows, whose offsets nobody gives */
    int band;  /* rows of tiles one behind the other; 0: grouped.c says */
    GroupedTile tile;
    const ProductUpdate *update; /* in place of storing; null: none */
} GroupedForm;
void grouped_lower_cuda(Graph *g, Group *group, Arena *a);
/* A product of matrices: by the library, or with scales by such a kernel. */
void dense_lower_cuda(Graph *g, Group *group, Arena *a);
ProductPath grouped_path(const Group *group);
/* Of the instruction's integers v (instructions.def): the text of a tile (@ for
 * its name), the bytes of shared memory it takes. */
char *grouped_text(Arena *a, const GmmArgs *args, GroupedForm form,
                   int64_t *shared);
int grouped_threads(const GmmArgs *args, const GroupedForm *form); /* its */
int64_t grouped_squares(const Graph *g, const Node *n,
                        int updates); /* Target.squares */
/* Numbers that warps leave of a weights' gradient: sums of squares of tiles. */
int64_t tile_squares(const GmmArgs *args, const GroupedTile *tile);
int grouped_updates(const Graph *g, const Node *n,
                    const Node *rounded); /* Target.updates */
int grouped_sums(const Graph *g, const Node *n, const Node *other);
Node *sum_sq_of(const Group *group);   /* that it leaves; null */
int grouped_terms(const Group *group); /* products whose sum it makes */
/* Buffers of operands and result: rows, weights, result, offsets; scales of
 * both; of a second term the rows, weights and their scales. */
int grouped_operands(int terms, int scaled);
int has_scaled_product(const Graph *g, const Node *n); /* Target.scaled */

#endif
