/* training.h: gradients, the optimizer, buckets of ZeRO. */
#ifndef PLEAT_TRAINING_H
#define PLEAT_TRAINING_H

#include "../model/model.h"
#include "../pipe/pipe.h"
#include "../sharding/sharding.h"

/* ---- bucket.c ------------------------------------------------------------ */

/* Parameters that are packed and sharded together for the optimizer, or one
 * parameter that no ranks share: flat is then null, and pack and unpack do
 * nothing. */
typedef struct Bucket {
    const char *name;    /* "zero.0", or the parameter's path */
    Axis *own, *flat;    /* own null: no atom shards the members */
    int64_t ranks, size; /* size of own; elements of flat */
    Param **param;       /* vec: [member], as the next fields */
    Node **node, **grad;
    Axis **order, **cut; /* vecs: attributes of pack */
    int norder, ncut;
    const Scope *unit; /* ZeRO-2, 3: gradients are scattered in the
                                     backward of this unit; null: in post */
    int shards;        /* ZeRO-3: ranks keep only shards of it */
    UpdateRule rule;
    Node *sum; /* step: the packed gradients */
    int seen;
} Bucket;

/* Returns the buckets of trained parameters and their accumulators, in order of
 * the first member; by[i]: bucket of parameter i. rule[i]: only parameters with
 * equal rules share a bucket. */
Bucket **buckets_of(Graph *g, Node **param, Node **grad, const UpdateRule *rule,
                    size_t n, Bucket **by);
Bucket *bucket_named(Graph *g, const char *name); /* interned path; rebuilt from
                                                     its parameters */
/* Returns the member that an unpack of a bucket's parameter extracts. */
const Param *bucket_member(Graph *g, const Node *unpack);
int bucket_dims(const Bucket *bucket,
                Dim *dim); /* dims of the packed value; returns nd */
Node *bucket_pack(Graph *g, const Bucket *bucket, Node *const *in);
Node *bucket_unpack(Graph *g, const Bucket *bucket, size_t k, Node *x);

/* ---- zero3.c ------------------------------------------------------------- */

/* Replaces the members' accumulators by the bucket's, bucket->sum. If ranks
 * keep shards of parameters, members are read from the bucket's parameter,
 * bucket->node[0]. */
void bucket_scatter(Graph *g, Bucket *bucket);
/* Gives another program the shards of `step`. */
void shards_like(Graph *g, const Graph *step);

/* ---- step.c post.c optimize.c: post -------------------------------------- */

typedef struct TrainStep {
    Graph *g;
    const Loc *l;
    const Scope *scope; /* scope of new nodes */
    Node *total;        /* the step's loss */
    Node *ok;           /* the step is not skipped; null: none ever is */
    Node *scale;        /* clipping factor, null: none */
    Node *lr;           /* learning rate of the schedule */
    Table *post;        /* node -> its value in post */
    Table *bucket;      /* path of a trained parameter -> Bucket */
} TrainStep;

/* fp32 arithmetic of post, in step->scope; values of the step block by name;
 * results that the step reports. */
Node *post_op1(TrainStep *step, Op op, Node *a);
Node *post_op2(TrainStep *step, Op op, Node *a, Node *b);
Node *post_num(TrainStep *step, double v);
/* Reduces n > 0 values by op, eight at a time, so that no kernel has too many
 * operands. */
Node *post_all(TrainStep *step, Op op, Node *const *v, size_t n);
Node *post_scalar(TrainStep *step, StepValue v);
void post_result(TrainStep *step, const char *name, Node *n);
Node *in_post(Node *n);
void post_set(TrainStep *step, Node *state, Node *value);
void post_needs(TrainStep *step, Node *condition); /* adds it to ok */
Node *post_if_ok(TrainStep *step, Node *value, Node *old);
/* Writes the value, or the old one if the step is skipped. */
void post_write(TrainStep *step, Node *state, Node *value);
/* Returns the master as it is stored: as a bf16 parameter and a 16-bit
 * remainder. */
Node *post_settled(TrainStep *step, Node *master);
/* Returns the TrainStep of a graph that has a step; its ok is that of the
 * results. */
TrainStep post_of(Graph *g);

/* Fills step->bucket and param, the parameters with gradients in order. Returns
 * their number. */
size_t step_buckets(TrainStep *step, Node **node, size_t count, Node **param);
void step_clip(TrainStep *step); /* sets ok and scale */
void step_optimize(TrainStep *step, Node **param, size_t n);

/* ---- quant/primary.c ----------------------------------------------------- */

/* Are its members stored in FP8? All or none are. */
int bucket_is_primary(const Bucket *bucket);
/* In post: quantizes value, fp32 in the master's layout, and writes FP8 values
 * and scales of such a bucket. */
void primary_write(TrainStep *step, const Bucket *bucket, Node *value);
/* Gives another program of the model the same FP8 weights. */
void primary_like(Graph *g, const Graph *step);

/* ---- grad.c -------------------------------------------------------------- */

/* Appends the gradients of the nodes in `seed` to g; dseed[i]: their given
 * gradients. Returns [id before the call]: a node's gradient or null. Visits
 * only nodes that lead to marked ones (n->mark = 1). */
Node **backward(Graph *g, Node **seed, Node **dseed, int n);

#endif
