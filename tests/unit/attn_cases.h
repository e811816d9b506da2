/* attn_cases.h: attentions for the test and the benchmark of their kernels. */
#ifndef PLEAT_ATTN_CASES_H
#define PLEAT_ATTN_CASES_H

#include "../functions.h"
#include "../../codegen/attn/attn.h"
#include "../../codegen/codegen.h"

typedef struct Sizes {
    int64_t batch, kv, group, seq, key, dim, rot, vdim;
} Sizes;

/* One attention being built: the outer graph and its body. */
typedef struct Build {
    Graph *g, *b;
    Axis *micro, *batch, *kv, *group, *seq, *key, *dim, *rot, *vdim;
    Dtype dt;
    Node *op[12];
    int nop;       /* operands outside ... */
    Node *arg[12]; /* ... and in the body */
    int trains[12];
} Build;

/* Declares operands, the values last; returns the scores. */
typedef Node *Scores(Build *m);
Scores attn_plain, attn_causal, attn_mla, attn_window, attn_chunks, attn_late,
    attn_strict, attn_capped, attn_documents, attn_latent, attn_biases,
    attn_mlabiases;

typedef struct Form {
    const char *name;
    Sizes z;
    Scores *scores;
    double scale; /* of the random operands */
} Form;

enum { F64, F32, BF16, NDT };

/* A form in one dtype, with its kernels and values. */
typedef struct Run {
    const Form *c;
    Build m;
    Node *attn, *out, *lse, *dout, *back, *grad[12];
    Node *delta; /* cuda: sums of result times gradient */
    Group fwd, bwd;
    double *x[12], *w;      /* operands, dout, as doubles */
    double *y, *l, *dx[12]; /* results */
} Run;

typedef void Entry(void *const *buf, const int64_t *iv, int64_t lo, int64_t hi);

void attn_build(Run *r, const Form *c, Dtype dt);
void attn_kernels(Run *r); /* lower both groups */
/* For a GPU: backward reads delta, and latent attention's gradient of the key
 * that heads share is one of each head. */
void attn_kernels_cuda(Run *r);
/* Every form in every dtype, with kernels and random values: the same numbers
 * in all dtypes. */
void attn_prepare(Run (*all)[NDT], const Form *c, int n);
Entry *attn_entry(const Group *k);
double attn_random(void); /* [0, 1) */
double *attn_values(const Node *n, double scale);
void *attn_stored(const Node *n, const double *x); /* null: all NaN */
double *attn_loaded(const Node *n, const void *p);
/* The numbers of a buffer, or null for one to be written. */
const double *attn_known(const Run *r, const Node *n);

/* What a backward for a GPU reads, from a result. */
double *attn_deltas(const Run *r, const double *y);
/* Results and their names, at most 16. */
int attn_results(const Run *r, Node **out, const char **name);
/* A result as n numbers: of those that are more, sums over heads. Takes x. */
double *attn_summed(const Run *r, const Node *p, double *x, int64_t n);
double attn_distance(const double *x, const double *y,
                     int64_t n); /* |x-y|/|y| */

#endif
