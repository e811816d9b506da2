/* optimize.c: the optimizer in `post`: gradient norm, clipping and AdamW, for a
 * bucket of parameters at a time.
 *
 *     g  = grad * min(1, clip / (norm + 1e-6))
 *     m' = b1 m + (1-b1) g          v' = b2 v + (1-b2) g^2
 *     p' = p (1 - lr wd) - (lr/bc1) m' / (sqrt(v') / sqrt(bc2) + eps)
 *
 * (Loshchilov and Hutter 2019, algorithm 2; bc = 1 - beta^t.) */
#include <stdlib.h>
#include <string.h>

#include "../../ir/keys.h"
#include "training.h"

/* ---- what is trained ----------------------------------------------------- */

static double decay(const TrainStep *s, const Param *param)
{
    const Opts *o = s->g->opts;
    int none = opts_str(o, "train.no_decay")
                   ? opts_match(o, "train.no_decay", param->path)
                   : param->nd <= 1;

    return none ? 0 : opts_num(o, "train.weight_decay");
}

static Table *gradients(Graph *g, Node **node, size_t count)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < count; i++)
        if (node[i]->of)
            *table_at(t, KEYP(intern(node[i]->of))) = node[i];
    return t;
}

size_t step_buckets(TrainStep *s, Node **node, size_t count, Node **param)
{
    Arena *a = s->g->arena;
    Table *grads = gradients(s->g, node, count);
    Node **grad = alloc(a, (count + 1) * sizeof *grad);
    double *wd = alloc(a, (count + 1) * sizeof *wd);
    Bucket **by = alloc(a, (count + 1) * sizeof *by);
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (node[i]->op != Oparam)
            continue;
        param[n] = node[i];
        grad[n] = table_get(grads, KEYP(node[i]->at.param.path));
        wd[n] = decay(s, g_param(s->g, node[i]->at.param.path));
        n += grad[n] != NULL;
    }
    buckets_of(s->g, param, grad, wd, n, by);
    for (size_t i = 0; i < n; i++) {
        *table_at(s->bucket, KEYP(param[i]->at.param.path)) = by[i];
        if (by[i]->unit && !by[i]->sum)
            bucket_scatter(s->g, by[i]);
    }
    return n;
}

/* ---- gradient norm ------------------------------------------------------- */

static Node *square_sum(TrainStep *s, Node *x)
{
    return in_post(g_total(s->g, post_op2(s, Omul, x, x)));
}

/* Sums of eight at a time, so that no kernel reads a thousand operands. */
static Node *sum_all(TrainStep *s, Node **v, size_t n)
{
    while (n > 1) {
        size_t k = 0;
        for (size_t i = 0; i < n; i += 8) {
            Node *t = v[i];
            for (size_t j = i + 1; j < n && j < i + 8; j++)
                t = post_op2(s, Oadd, t, v[j]);
            v[k++] = t;
        }
        n = k;
    }
    return v[0];
}

static Node *packed(TrainStep *s, const Bucket *bucket, Node *const *in)
{
    Node *n = bucket_pack(s->g, bucket, in);

    if (bucket->flat)
        in_post(n)->scope = s->scope;
    return n;
}

/* The gradients of each bucket, packed, and the squares of all. */
static size_t add_squares(TrainStep *s, Node **sq)
{
    Graph *g = s->g;
    size_t n = 0;

    for (size_t i = 0; i < vec_len(g->param); i++) {
        Bucket *b = table_get(s->bucket, KEYP(g->param[i]->path));
        if (!b || b->seen & 1)
            continue;
        b->seen = 1;
        s->scope = g_partscope(g, PARTpost, strf(g->arena, "post.%s", b->name));
        b->sum = b->unit ? b->sum : packed(s, b, b->grad);
        sq[n++] = square_sum(s, b->sum);
    }
    return n;
}

/* A step whose loss or norm is above its limit, a scalar of the step block,
 * writes nothing. */
static void limit(TrainStep *s, const char *what, StepValue most, Node *value)
{
    double v;

    if (opts_limit(s->g->opts, "train.skip_above", what, &v))
        s->ok = post_op2(s, Oland, s->ok,
                         post_op2(s, Ole, value, post_scalar(s, most)));
}

void step_clip(TrainStep *s)
{
    Graph *g = s->g;
    Node **sq = alloc(g->arena, (vec_len(g->param) + 1) * sizeof *sq), *norm;
    double clip = opts_num(g->opts, "train.clip");
    size_t n = add_squares(s, sq);

    s->scope = g_partscope(g, PARTpost, "post");
    s->ok = post_op1(s, Oisfinite, s->total);
    limit(s, "loss", STEPskip_loss, s->total);
    if (n == 0)
        return;
    norm = post_op1(s, Osqrt, sum_all(s, sq, n));
    post_result(s, "grad_norm", norm);
    s->ok = post_op2(s, Oland, s->ok, post_op1(s, Oisfinite, norm));
    limit(s, "gnorm", STEPskip_gnorm, norm);
    if (clip > 0)
        s->scale =
            post_op2(s, Ominimum, post_num(s, 1),
                     post_op2(s, Odiv, post_num(s, clip),
                              post_op2(s, Oadd, norm, post_num(s, 1e-6))));
}

/* ---- AdamW --------------------------------------------------------------- */

static Dtype companion_dtype(const Graph *g, TensorKind kind)
{
    int low = opts_moment_dtype(g->opts) == MOMENTbf16;

    return low && kind != TKmaster ? Dbf16 : Df32;
}

/* A master starts as a copy of its parameter, or of all of the bucket. */
static void set_start(Param *q, const Bucket *bucket)
{
    const Param *p = bucket->param[0];

    q->init = q->kind != TKmaster ? INITconst
              : bucket->flat      ? INITpack
                                  : INITcopy;
    q->of = bucket->flat ? NULL : p->path;
    q->arg = 0;
    if (!bucket->flat)
        return;
    q->expert = NULL;
    q->at = 0;
    q->nd = bucket_dims(bucket, q->dim);
}

/* A value of the optimizer beside a bucket's parameters. */
static Node *companion(TrainStep *s, const Bucket *bucket, TensorKind kind)
{
    Graph *g = s->g;
    Param *q = alloc(g->arena, sizeof *q);
    Node *n = g_node(g, Ostate, bucket->param[0]->loc, 0, NULL);

    *q = *bucket->param[0];
    q->kind = kind;
    q->dt = companion_dtype(g, kind);
    q->path =
        intern(strf(g->arena, "%s%s", tensor_kinds[kind].prefix, bucket->name));
    set_start(q, bucket);
    vec_push(g->arena, g->param, q);
    n->at.state.path = q->path;
    n->scope = g_scope(g, text_scope(q->path));
    n->dt = q->dt;
    n->nd = q->nd;
    memcpy(n->dim, q->dim, sizeof n->dim);
    return infer(g, in_post(n));
}

static Node *moment(TrainStep *s, Node *old, Node *x, double beta)
{
    return post_op2(s, Oadd, post_op2(s, Omul, old, post_num(s, beta)),
                    post_op2(s, Omul, x, post_num(s, 1 - beta)));
}

/* The arithmetic is fp32 whatever a value is stored as. */
static Node *high(TrainStep *s, Node *n)
{
    Node *c = g_cast(s->g, n, Df32);

    if (c != n)
        in_post(c)->scope = s->scope;
    return c;
}

/* The new value of w by its gradient d; the moments m and v are written. */
static Node *adamw(TrainStep *s, Node *w, Node *d, Node *m, Node *v, double wd)
{
    double eps = opts_num(s->g->opts, "train.eps");
    Node *m1, *v1, *den;

    if (s->scale)
        d = post_op2(s, Omul, d, s->scale);
    m1 = moment(s, high(s, m), d, s->b1);
    v1 = moment(s, high(s, v), post_op2(s, Omul, d, d), s->b2);
    den = post_op2(s, Omul, post_op1(s, Osqrt, v1), s->root);
    den = post_op2(s, Oadd, den, post_num(s, eps));
    if (wd > 0) {
        Node *lost = post_op2(s, Omul, s->lr, post_num(s, wd));
        w = post_op2(s, Omul, w, post_op2(s, Osub, post_num(s, 1), lost));
    }
    Node *move = post_op2(s, Odiv, post_op2(s, Omul, s->rate, m1), den);
    w = post_op2(s, Osub, w, move);
    post_write(s, m, m1);
    post_write(s, v, v1);
    return w;
}

static void write_members(TrainStep *s, const Bucket *bucket, Node *value)
{
    for (size_t k = 0; k < vec_len(bucket->param); k++) {
        Node *x = bucket_unpack(s->g, bucket, k, value);
        in_post(x)->scope = s->scope;
        post_set(s, bucket->node[k], x);
    }
}

/* A master that is kept is what its parameter is rounded from. */
static void optimize_bucket(TrainStep *s, const Bucket *bucket)
{
    int low = opts_dtype(s->g->opts) == Dbf16;
    Node *m = companion(s, bucket, TKm), *v = companion(s, bucket, TKv);
    Node *old = bucket->shards        ? bucket->node[0]
                : bucket->flat && low ? NULL
                                      : packed(s, bucket, bucket->node);
    Node *w = low ? companion(s, bucket, TKmaster) : high(s, old);
    Node *w1 = adamw(s, w, bucket->sum, m, v, decay(s, bucket->param[0]));

    if (low)
        post_write(s, w, w1);
    if (!bucket->flat || bucket->shards)
        post_set(s, old,
                 !low ? post_if_ok(s, w1, old)
                      : in_post(g_cast(s->g, post_if_ok(s, w1, w), old->dt)));
    else
        write_members(s, bucket,
                      old ? post_if_ok(s, w1, old)
                          : in_post(g_cast(s->g, post_if_ok(s, w1, w),
                                           bucket->param[0]->dt)));
}

void step_optimize(TrainStep *s, Node **param, size_t n)
{
    double betas[2];

    opts_pair(s->g->opts, "train.betas", betas);
    s->b1 = betas[0];
    s->b2 = betas[1];
    s->lr = post_scalar(s, STEPlr);
    s->rate = post_op2(s, Odiv, s->lr, post_scalar(s, STEPbc1));
    s->root = post_op1(s, Orsqrt, post_scalar(s, STEPbc2));
    for (size_t i = 0; i < n; i++) {
        Bucket *b = table_get(s->bucket, KEYP(param[i]->at.param.path));
        if (!b || b->seen & 2)
            continue;
        b->seen |= 2;
        s->l = b->param[0]->loc;
        s->scope =
            g_partscope(s->g, PARTpost, strf(s->g->arena, "post.%s", b->name));
        optimize_bucket(s, b);
    }
}
