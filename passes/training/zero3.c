/* zero3.c: ZeRO-3. A rank keeps its shard of a bucket of parameters; the bucket
 * is itself a parameter. Every micro-batch gathers it before the unit's forward
 * and again before its backward:
 *
 *     %q  = dot %x %wq                  %z  = param zero.3        dp:flat.a1
 *     %dx = dot %dy %wq          =>     %q  = dot %x (unpack %z at=0)
 *     %g  = accum %dwq                  %dx = dot %dy (unpack %z' at=0)
 *                                       %g  = accum (pack %dwq ..)
 *
 * %z' is %z with another copy number, so that the gathered value is not kept
 * between the two. The accumulator is sharded like the parameter: every
 * micro-batch reduce-scatters its gradients. ZeRO-2 does only the latter. */
#include "training.h"

/* ---- parameters ---------------------------------------------------------- */

/* Declares the bucket's parameter, like a member; at=-1 marks it. */
static void declare(Graph *g, const Bucket *bucket, const Param *like)
{
    Param *p = alloc(g->arena, sizeof *p);

    if (g_param(g, bucket->name))
        return;
    *p = *like;
    p->path = bucket->name;
    p->init = INITpack;
    p->bucket = bucket->name;
    p->at = -1;
    p->arg = 0;
    p->expert = NULL;
    p->nd = bucket_dims(bucket, p->dim);
    vec_push(g->arena, g->param, p);
}

static Node *shard(Graph *g, const Bucket *bucket, int again)
{
    const Param *p = g_param(g, bucket->name);
    Node *n = g_node(g, Oparam, p->loc, 0, NULL);

    n->at.param.path = p->path;
    n->dt = p->dt;
    n->nd = p->nd;
    n->reg = REGbody;
    n->again = again;
    memcpy(n->dim, p->dim, sizeof n->dim);
    return infer(g, n);
}

typedef struct BucketReads {
    const Bucket *b;
    Table *member; /* path -> index + 1 */
    Node *z[2];
    Node *made[2][MAXIN]; /* forward, backward; null: not yet */
} BucketReads;

/* Member k, unpacked directly before its first reader. */
static Node *member(Graph *g, BucketReads *reads, int way, size_t k)
{
    Node **n = &reads->made[way][k];

    if (!*n) {
        *n = bucket_unpack(g, reads->b, k, reads->z[way]);
        (*n)->reg = REGbody;
        (*n)->again = way;
    }
    return *n;
}

/* Readers of a member read it from the gathered bucket. Returns the shard
 * that the forward gathers. */
static Node *read_shards(Graph *g, const Bucket *bucket)
{
    size_t count = vec_len(g->node);
    Node **old = g->node;
    BucketReads r = { .b = bucket, .member = table_new(g->arena) };

    g->node = NULL;
    for (size_t k = 0; k < vec_len(bucket->param); k++)
        *table_at(r.member, KEYP(bucket->param[k]->path)) =
            (void *)(uintptr_t)(k + 1);
    for (int way = 0; way < 2; way++)
        r.z[way] = shard(g, bucket, way);
    for (size_t i = 0; i < count; i++) {
        Node *n = old[i];
        for (int j = 0; j < n->nin; j++) {
            const Node *p = n->in[j];
            size_t k = p->op != Oparam
                           ? 0
                           : (size_t)(uintptr_t)table_get(
                                 r.member, KEYP(intern(p->at.param.path)));
            if (k)
                n->in[j] = member(g, &r, is_backward(n), k - 1);
        }
        vec_push(g->arena, g->node, n);
    }
    return r.z[0];
}

/* ---- gradients ----------------------------------------------------------- */

static Node *sum_gradients(Graph *g, const Bucket *bucket)
{
    size_t n = vec_len(bucket->grad);
    Node *in[MAXIN], *acc;
    const Scope *scope = g_backward(g, bucket->unit);

    for (size_t k = 0; k < n; k++) {
        in[k] = g_cast(g, bucket->grad[k]->in[0], Df32);
        in[k]->reg = REGbody;
    }
    acc = bucket_pack(g, bucket, in);
    acc->reg = REGbody;
    acc->scope = scope;
    acc = g_accum(g, acc, Radd);
    acc->scope = scope;
    acc->of = bucket->name;
    acc->name = intern(strf(g->arena, "grad.%s", bucket->name));
    return acc;
}

void bucket_scatter(Graph *g, Bucket *bucket)
{
    if (!is_frozen_rule(&bucket->rule))
        bucket->sum = sum_gradients(g, bucket);
    if (!bucket->shards)
        return;
    declare(g, bucket, bucket->param[0]);
    bucket->node[0] = read_shards(g, bucket);
}

/* ---- other programs ------------------------------------------------------ */

void shards_like(Graph *g, const Graph *step)
{
    for (size_t i = 0; i < vec_len(step->param); i++) {
        const Param *p = step->param[i];
        Param *own = is_member(p, NULL) ? g_param(g, p->path) : NULL;
        if (own && g_param((Graph *)(uintptr_t)step, p->bucket)) {
            own->bucket = p->bucket;
            own->at = p->at;
        }
    }
    for (size_t i = 0; i < vec_len(step->param); i++) {
        const Param *p = step->param[i];
        if (!p->bucket || p->at >= 0 || g_param(g, p->path))
            continue;
        Param *q = alloc(g->arena, sizeof *q);
        *q = *p;
        q->copy = 0;
        for (size_t k = 0; k < vec_len(g->param); k++)
            if (g->param[k]->bucket == p->bucket && g->param[k]->at == 0)
                q->dt = g->param[k]->dt;
        vec_push(g->arena, g->param, q);
    }
}

void pass_zero3(Graph *g)
{
    size_t n = vec_len(g->param);

    for (size_t i = 0; i < n; i++) {
        const Param *p = g->param[i];
        if (1 << p->kind & PARAMETERS && p->bucket && p->at < 0)
            read_shards(g, bucket_named(g, p->bucket));
    }
    g_tidy(g);
}
