/* query.h: aliasing, matrix forms of dots, composites, costs */
#ifndef PLEAT_GRAPH_QUERY_H
#define PLEAT_GRAPH_QUERY_H

/* ---- aliasing.c: buffers of values --------------------------------------- */

/* Is n a view (rename split merge, stop_gradient, cast to its own dtype) with
 * its operand's memory layout? It then has the same bytes. */
int is_view(const Node *n);
Node *viewed(Node *n);  /* the viewed value; a write's is its state */
Node *storage(Node *n); /* viewed, and the first term of a continued sum
                                     (accumulate.c) */

/* ---- matrix.c: a dot as matrix products ---------------------------------- */

/* C[M,N] = A[M,K] x B[K,N] inside up to three loops. swap: A is the dot's
 * second operand. ta, tb: the matrix is stored transposed. Strides are in
 * elements. */
typedef struct Matrix {
    int64_t M, N, K, lda, ldb, ldc;
    int ta, tb, swap;
    int nbatch;
    int64_t batch[3], sa[3], sb[3], sc[3];
} Matrix;
/* Finds the products of operands a and b with a result laid out like c. Returns
 * 0 if a layout does not allow it. */
int as_matrix(const Graph *g, const Node *a, const Node *b, const Node *c,
              Matrix *matrix);

/* ---- composite.c --------------------------------------------------------- */

int is_attention(const Node *n);      /* a call that is one */
int reads_scores(const Node *n);      /* one, or the logsumexp of one */
const Node *unrounded(const Node *n); /* the value behind casts */
/* The scores s of y = exp(s - max s) / sum, along one axis; null: y is none. */
const Node *softmax_scores(const Node *y, const Axis **axis);
/* Does operand k of n have a gradient if n has one? Comparisons pass none. */
int passes_gradient(const Node *n, int k);
/* Returns a bit for each argument of a composite's body that has a gradient if
 * the result has one. */
unsigned gradient_operands(const Graph *body);

/* ---- cost.c -------------------------------------------------------------- */

typedef struct Cost {
    double flops, bytes;
} Cost;
Cost cost_of(const Graph *g, const Node *n);    /* on one rank */
double flops_of(const Graph *g, const Node *n); /* including its body's */
double g_tokens(const Graph *g); /* elements of the input of tokens */
/* Returns training FLOPs per token by the usual formula: 6 times the
 * multiply-adds of dots with parameters and of attention (causal: half). */
double flops_per_token(const Graph *g, int64_t *params, int64_t *active);

#endif
