/* query.h: aliasing, matrix forms of dots, composites, costs */
#ifndef PLEAT_GRAPH_QUERY_H
#define PLEAT_GRAPH_QUERY_H

/* ---- aliasing.c: whose buffer holds a value ------------------------------ */

/* A view (rename split merge, stop_gradient, cast to its own dtype) whose dims
 * lie as its operand's do: same bytes. */
int is_view(const Node *n);
Node *viewed(Node *n);  /* through views; a write's is its state */
Node *storage(Node *n); /* and a sum's that goes on (accumulate.c): where it
                                     began */

/* ---- matrix.c: a dot as matrix products ---------------------------------- */

/* C[M,N] = A[M,K] x B[K,N] in a loop over up to three axes outside. swap: A is
 * the dot's second operand. ta, tb: that matrix is stored transposed.
 * Elements. */
typedef struct Matrix {
    int64_t M, N, K, lda, ldb, ldc;
    int ta, tb, swap;
    int nbatch;
    int64_t batch[3], sa[3], sb[3], sc[3];
} Matrix;
/* Operands a and b to a result laid out like c; 0: some layout does not allow
 * it. */
int as_matrix(const Graph *g, const Node *a, const Node *b, const Node *c,
              Matrix *matrix);

/* ---- composite.c --------------------------------------------------------- */

int is_attention(const Node *n);      /* a call that is one */
int reads_scores(const Node *n);      /* one, or the logsumexp of one */
const Node *unrounded(const Node *n); /* the value behind casts */
/* The scores s of y = exp(s - max s) / sum, along one axis; null: y is none. */
const Node *softmax_scores(const Node *y, const Axis **axis);
/* Does operand k of n have a gradient if n has one? A comparison's has none. */
int passes_gradient(const Node *n, int k);
/* The arguments of a composite's body that have a gradient if its result has
 * one, a bit each. */
unsigned gradient_operands(const Graph *body);

/* ---- cost.c -------------------------------------------------------------- */

typedef struct Cost {
    double flops, bytes;
} Cost;
Cost cost_of(const Graph *g, const Node *n);    /* on one rank */
double flops_of(const Graph *g, const Node *n); /* with those of its body */
double g_tokens(const Graph *g); /* elements of the input of tokens */
/* Training FLOPs per token from the graph, as papers count them: 6 times the
 * multiply-adds of dots with parameters and of attention (causal: half). */
double flops_per_token(const Graph *g, int64_t *params, int64_t *active);

#endif
