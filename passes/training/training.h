/* training.h: gradients, the optimizer, their buckets, dtypes, first values. */
#ifndef PLEAT_TRAINING_H
#define PLEAT_TRAINING_H

#include "../model/model.h"
#include "../pipe/pipe.h"
#include "../sharding/sharding.h"

/* ---- bucket.c ------------------------------------------------------------ */

/* Parameters whose optimizer works on a shard of them all. Or one parameter
 * that no group shares: then flat is null, pack and unpack do nothing. */
typedef struct Bucket {
    const char *name;    /* "zero.0", or the parameter's path */
    Axis *own, *flat;    /* own null: no atom cuts the members */
    int64_t ranks, size; /* size of own; elements of flat */
    Param **param;       /* vec; as the following by member */
    Node **node, **grad;
    Axis **order, **cut; /* vecs: attributes of pack */
    int norder, ncut;
    const Scope *unit; /* ZeRO-2, 3: gradients are cut where this
                                     unit runs backward; null: in post */
    int shards;        /* ZeRO-3: ranks keep shards of it only */
    UpdateRule rule;
    Node *sum; /* for step: the gradients, packed */
    int seen;
} Bucket;

/* The buckets of trained parameters and their accumulators, in order of the
 * first member; by[i] that of node i. rule[i]: only equal ones share one. */
Bucket **buckets_of(Graph *g, Node **param, Node **grad, const UpdateRule *rule,
                    size_t n, Bucket **by);
Bucket *bucket_named(Graph *g, const char *name); /* interned path; from its
                                                     parameters */
/* The member that an unpack of a bucket's parameter makes. */
const Param *bucket_member(Graph *g, const Node *unpack);
int bucket_dims(const Bucket *bucket,
                Dim *dim); /* of what all are packed to: nd */
Node *bucket_pack(Graph *g, const Bucket *bucket, Node *const *in);
Node *bucket_unpack(Graph *g, const Bucket *bucket, size_t k, Node *x);

/* ---- zero3.c ------------------------------------------------------------- */

/* bucket->sum becomes the bucket's accumulator in place of its members'. If
 * ranks keep shards of parameters, members are read from the bucket's own,
 * which becomes bucket->node[0]. */
void bucket_scatter(Graph *g, Bucket *bucket);
/* Other programs keep the same shards as `step`. */
void shards_like(Graph *g, const Graph *step);

/* ---- step.c post.c optimize.c: what stands in post ----------------------- */

typedef struct TrainStep {
    Graph *g;
    const Loc *l;
    const Scope *scope; /* of what is being built */
    Node *total;        /* the step's loss */
    Node *ok;           /* the step is not held back; null: none is */
    Node *scale;        /* clipping factor, null: none */
    Node *lr;           /* of the schedule */
    Table *post;        /* a node -> its value in post */
    Table *bucket;      /* a trained parameter's path -> its Bucket */
} TrainStep;

/* fp32 arithmetic of post, in step->scope; values of the step block by name;
 * what the step reports. */
Node *post_op1(TrainStep *step, Op op, Node *a);
Node *post_op2(TrainStep *step, Op op, Node *a, Node *b);
Node *post_num(TrainStep *step, double v);
/* Of n > 0 values, eight at a time, so that no kernel reads a thousand. */
Node *post_all(TrainStep *step, Op op, Node *const *v, size_t n);
Node *post_scalar(TrainStep *step, StepValue v);
void post_result(TrainStep *step, const char *name, Node *n);
Node *in_post(Node *n);
void post_set(TrainStep *step, Node *state, Node *value);
void post_needs(TrainStep *step, Node *condition); /* ok: and that */
Node *post_if_ok(TrainStep *step, Node *value, Node *old);
/* Writes the value, or the old one where the step is held back. */
void post_write(TrainStep *step, Node *state, Node *value);
/* A master as all keep it: that its bf16 parameter and 16 bits more hold. */
Node *post_settled(TrainStep *step, Node *master);
/* A step of a graph that has one: its `ok` are the results'. */
TrainStep post_of(Graph *g);

/* Fills step->bucket; param: those that have gradients, in order. How many. */
size_t step_buckets(TrainStep *step, Node **node, size_t count, Node **param);
void step_clip(TrainStep *step); /* sets ok and scale */
void step_optimize(TrainStep *step, Node **param, size_t n);

/* ---- quant/primary.c ----------------------------------------------------- */

/* Are its members kept as numbers of 8 bits? All or none are. */
int bucket_is_primary(const Bucket *bucket);
/* In post: numbers and scales of a bucket that is, of value, fp32, which is as
 * its master. */
void primary_write(TrainStep *step, const Bucket *bucket, Node *value);
/* Another program of the model has the same weights as numbers. */
void primary_like(Graph *g, const Graph *step);

/* ---- grad.c -------------------------------------------------------------- */

/* Append to g the gradients of the nodes in `seed` (dseed[i] their given
 * gradients); returns, by node id before the call, each node's gradient or
 * null. Only nodes that lead to `want` (marked n->mark = 1) are visited. */
Node **backward(Graph *g, Node **seed, Node **dseed, int n);

#endif
