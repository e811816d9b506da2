/* optimize.c: the optimizer in `post`: gradient norm, clipping and AdamW, for a
 * bucket of parameters at a time.
 *
 *     g  = grad * min(1, clip / (norm + 1e-6))
 *     m' = b1 m + (1-b1) g          v' = b2 v + (1-b2) g^2
 *     p' = p (1 - lr wd) - (lr/bc1) m' / (sqrt(v') / sqrt(bc2) + eps)
 *
 * (Loshchilov and Hutter 2019, algorithm 2; bc = 1 - beta^t.)
 *
 * A parameter in bf16 is rounded from an fp32 master. Where both lie alike, the
 * parameter is one half of it, and what rounding took is kept alone, 16 bits
 * (narrow.pre): 28 bytes are read and written of each element in place of 30.
 *
 *     %p = param w        bf16         %p = param w               bf16
 *     %w = state master.w f32          %r = state remainder.w     i16
 *                                  =>  %w = join_bf16 %p %r
 *     write master.w %x                write remainder.w (remainder_bf16 %x)
 *     write w (cast %x to=bf16)        write w (cast %x to=bf16)
 *
 * 65537 numbers of fp32 round to an even one of bf16, one too many: of a new
 * master that is such the last place is changed, however it is kept, so that
 * numbers do not depend on the fold. */
#include "../../ir/settings/keys.h"
#include "training.h"

/* ---- what is trained ----------------------------------------------------- */

static double decay(const TrainStep *step, const Param *param)
{
    const Opts *opts = step->g->opts;
    int none = opts_str(opts, "train.no_decay")
                   ? opts_match(opts, "train.no_decay", param->path)
                   : param->nd <= 1;

    return none ? 0 : opts_num(opts, "train.weight_decay");
}

static Table *gradients(Graph *g, Node **node, size_t count)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < count; i++)
        if (node[i]->of)
            *table_at(t, KEYP(intern(node[i]->of))) = node[i];
    return t;
}

size_t step_buckets(TrainStep *step, Node **node, size_t count, Node **param)
{
    Arena *a = step->g->arena;
    Table *grads = gradients(step->g, node, count);
    Node **grad = alloc(a, (count + 1) * sizeof *grad);
    double *wd = alloc(a, (count + 1) * sizeof *wd);
    Bucket **by = alloc(a, (count + 1) * sizeof *by);
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (node[i]->op != Oparam)
            continue;
        param[n] = node[i];
        grad[n] = table_get(grads, KEYP(node[i]->at.param.path));
        wd[n] = decay(step, g_param(step->g, node[i]->at.param.path));
        n += grad[n] != NULL;
    }
    buckets_of(step->g, param, grad, wd, n, by);
    for (size_t i = 0; i < n; i++) {
        *table_at(step->bucket, KEYP(param[i]->at.param.path)) = by[i];
        if (by[i]->unit && !by[i]->sum)
            bucket_scatter(step->g, by[i]);
    }
    return n;
}

/* ---- gradient norm ------------------------------------------------------- */

static Node *square_sum(TrainStep *step, Node *x)
{
    return in_post(g_total(step->g, post_op2(step, Omul, x, x)));
}

static Node *packed(TrainStep *step, const Bucket *bucket, Node *const *in)
{
    Node *n = bucket_pack(step->g, bucket, in);

    if (bucket->flat)
        in_post(n)->scope = step->scope;
    return n;
}

/* The gradients of each bucket, packed, and the squares of all. */
static size_t add_squares(TrainStep *step, Node **sq)
{
    Graph *g = step->g;
    size_t n = 0;

    for (size_t i = 0; i < vec_len(g->param); i++) {
        Bucket *b = table_get(step->bucket, KEYP(g->param[i]->path));
        if (!b || b->seen & 1)
            continue;
        b->seen = 1;
        step->scope =
            g_partscope(g, PARTpost, strf(g->arena, "post.%s", b->name));
        b->sum = b->unit ? b->sum : packed(step, b, b->grad);
        sq[n++] = square_sum(step, b->sum);
    }
    return n;
}

/* A step whose loss or norm is above its limit, a scalar of the step block,
 * writes nothing. */
static void limit(TrainStep *step, const char *what, StepValue most,
                  Node *value)
{
    double v;

    if (opts_limit(step->g->opts, "train.skip_above", what, &v))
        post_needs(step, post_op2(step, Ole, value, post_scalar(step, most)));
}

void step_clip(TrainStep *step)
{
    Graph *g = step->g;
    Node **sq = alloc(g->arena, (vec_len(g->param) + 1) * sizeof *sq), *norm;
    double clip = opts_num(g->opts, "train.clip");
    size_t n = add_squares(step, sq);

    step->scope = g_partscope(g, PARTpost, "post");
    if (opts_int(g->opts, "train.skip_bad"))
        post_needs(step, post_op1(step, Oisfinite, step->total));
    limit(step, "loss", STEPskip_loss, step->total);
    if (n == 0)
        return;
    norm = post_op1(step, Osqrt, post_all(step, Oadd, sq, n));
    post_result(step, "grad_norm", norm);
    if (opts_int(g->opts, "train.skip_bad"))
        post_needs(step, post_op1(step, Oisfinite, norm));
    limit(step, "gnorm", STEPskip_gnorm, norm);
    if (clip > 0)
        step->scale = post_op2(
            step, Ominimum, post_num(step, 1),
            post_op2(step, Odiv, post_num(step, clip),
                     post_op2(step, Oadd, norm, post_num(step, 1e-6))));
}

/* ---- AdamW --------------------------------------------------------------- */

static Dtype companion_dtype(const Graph *g, TensorKind kind)
{
    int low = opts_moment_dtype(g->opts) != MOMENTfp32;

    return kind == TKremainder ? Di16 : low && kind != TKmaster ? Dbf16 : Df32;
}

/* A master, or what is kept of it, starts as a copy of its parameter, or of all
 * of the bucket. */
static void set_start(Param *param, const Bucket *bucket)
{
    const Param *p = bucket->param[0];

    param->init = 1u << param->kind & MOMENTS ? INITconst
                  : bucket->flat              ? INITpack
                                              : INITcopy;
    param->of = bucket->flat ? NULL : p->path;
    param->arg = 0;
    if (!bucket->flat)
        return;
    param->expert = NULL;
    param->at = 0;
    param->nd = bucket_dims(bucket, param->dim);
}

/* A value of the optimizer beside a bucket's parameters. */
static Node *companion(TrainStep *step, const Bucket *bucket, TensorKind kind,
                       const char *state)
{
    Graph *g = step->g;
    Param *q = alloc(g->arena, sizeof *q);
    Node *n = g_node(g, Ostate, bucket->param[0]->loc, 0, NULL);

    *q = *bucket->param[0];
    q->kind = kind;
    q->dt = companion_dtype(g, kind);
    q->path = intern(strf(g->arena, "%s%s%s", tensor_kinds[kind].prefix, state,
                          bucket->name));
    set_start(q, bucket);
    vec_push(g->arena, g->param, q);
    n->at.state.path = q->path;
    n->scope = g_scope(g, text_scope(q->path));
    n->dt = q->dt;
    n->nd = q->nd;
    memcpy(n->dim, q->dim, sizeof n->dim);
    return infer(g, in_post(n));
}

static Node *moment(TrainStep *step, Node *old, Node *x, double beta)
{
    return post_op2(step, Oadd, post_op2(step, Omul, old, post_num(step, beta)),
                    post_op2(step, Omul, x, post_num(step, 1 - beta)));
}

/* The arithmetic is fp32 whatever a value is stored as. */
static Node *high(TrainStep *step, Node *n)
{
    Node *c = g_cast(step->g, n, Df32);

    if (c != n)
        in_post(c)->scope = step->scope;
    return c;
}

/* Writes a moment, as it is rounded. */
static void write_moment(TrainStep *step, Node *state, Node *value)
{
    if (opts_moment_dtype(step->g->opts) == MOMENTstochastic &&
        opts_dtype(step->g->opts) != Df64)
        value = post_op2(step, Ostochastic_bf16, value,
                         post_scalar(step, STEPstep));
    post_write(step, state, value);
}

/* The new value of w by its gradient d; the moments m and v are written. */
static Node *adamw(TrainStep *step, Node *w, Node *d, Node *m, Node *v,
                   double wd)
{
    double eps = opts_num(step->g->opts, "train.eps");
    Node *m1, *v1, *den;

    if (step->scale)
        d = post_op2(step, Omul, d, step->scale);
    m1 = moment(step, high(step, m), d, step->b1);
    v1 = moment(step, high(step, v), post_op2(step, Omul, d, d), step->b2);
    den = post_op2(step, Omul, post_op1(step, Osqrt, v1), step->root);
    den = post_op2(step, Oadd, den, post_num(step, eps));
    if (wd > 0) {
        Node *lost = post_op2(step, Omul, step->lr, post_num(step, wd));
        w = post_op2(step, Omul, w,
                     post_op2(step, Osub, post_num(step, 1), lost));
    }
    Node *move =
        post_op2(step, Odiv, post_op2(step, Omul, step->rate, m1), den);
    w = post_op2(step, Osub, w, move);
    write_moment(step, m, m1);
    write_moment(step, v, v1);
    return w;
}

static void write_members(TrainStep *step, const Bucket *bucket, Node *value)
{
    for (size_t k = 0; k < vec_len(bucket->param); k++) {
        Node *x = bucket_unpack(step->g, bucket, k, value);
        in_post(x)->scope = step->scope;
        post_set(step, bucket->node[k], x);
    }
}

/* ---- masters ------------------------------------------------------------- */

/* Rounded parameters lie as their masters would, and both are at hand. */
static int keeps_remainders(const Graph *g, const Bucket *bucket)
{
    return opts_dtype(g->opts) == Dbf16 && !bucket_is_primary(bucket) &&
           (!bucket->flat || bucket->shards);
}

static Node *rounded(TrainStep *step, Node *n, Dtype to)
{
    Node *c = in_post(g_cast(step->g, n, to));

    c->scope = step->scope;
    return c;
}

Node *post_settled(TrainStep *step, Node *master)
{
    Node *p = high(step, rounded(step, master, Dbf16));

    return post_op2(step, Ojoin_bf16, p,
                    post_op1(step, Oremainder_bf16, master));
}

/* A new master that is kept as its parameter, p, and a remainder. */
static void write_halves(TrainStep *step, Node *p, Node *remainder,
                         Node *master)
{
    Node *left = post_op1(step, Oremainder_bf16, master);

    post_set(step, p, rounded(step, master, p->dt));
    post_set(step, remainder, rounded(step, left, Di16));
}

static void optimize_halves(TrainStep *step, const Bucket *bucket)
{
    Node *m = companion(step, bucket, TKmoment, "m."),
         *v = companion(step, bucket, TKmoment, "v.");
    Node *p = bucket->node[0], *left = companion(step, bucket, TKremainder, "");
    Node *w = post_op2(step, Ojoin_bf16, high(step, p), high(step, left));
    Node *w1 = adamw(step, w, bucket->sum, m, v, decay(step, bucket->param[0]));

    write_halves(step, p, left, post_if_ok(step, w1, w));
}

/* A master that is kept is what its parameter is rounded from. */
static void optimize_bucket(TrainStep *step, const Bucket *bucket)
{
    int low = opts_dtype(step->g->opts) == Dbf16;
    Node *m = companion(step, bucket, TKmoment, "m."),
         *v = companion(step, bucket, TKmoment, "v.");
    Node *old = bucket->shards        ? bucket->node[0]
                : bucket->flat && low ? NULL
                                      : packed(step, bucket, bucket->node);
    Node *w = low ? companion(step, bucket, TKmaster, "") : high(step, old);
    Node *w1 = adamw(step, w, bucket->sum, m, v, decay(step, bucket->param[0]));

    if (low)
        post_write(step, w, w1 = post_settled(step, w1));
    if (bucket_is_primary(bucket))
        primary_write(step, bucket, post_if_ok(step, w1, w));
    else if (!bucket->flat || bucket->shards)
        post_set(
            step, old,
            !low ? post_if_ok(step, w1, old)
                 : in_post(g_cast(step->g, post_if_ok(step, w1, w), old->dt)));
    else
        write_members(step, bucket,
                      old ? post_if_ok(step, w1, old)
                          : in_post(g_cast(step->g, post_if_ok(step, w1, w),
                                           bucket->param[0]->dt)));
}

void step_optimize(TrainStep *step, Node **param, size_t n)
{
    double betas[2];
    size_t halves = 0, all = 0;

    opts_pair(step->g->opts, "train.betas", betas);
    step->b1 = betas[0];
    step->b2 = betas[1];
    step->lr = post_scalar(step, STEPlr);
    step->rate = post_op2(step, Odiv, step->lr, post_scalar(step, STEPbc1));
    step->root = post_op1(step, Orsqrt, post_scalar(step, STEPbc2));
    for (size_t i = 0; i < n; i++) {
        Bucket *b = table_get(step->bucket, KEYP(param[i]->at.param.path));
        if (!b || b->seen & 2)
            continue;
        b->seen |= 2;
        step->l = b->param[0]->loc;
        step->scope = g_partscope(step->g, PARTpost,
                                  strf(step->g->arena, "post.%s", b->name));
        int half = keeps_remainders(step->g, b);
        if (half)
            optimize_halves(step, b);
        else
            optimize_bucket(step, b);
        halves += (size_t)half;
        all++;
    }
    if (opts_dtype(step->g->opts) == Dbf16)
        why(step->g, NULL,
            "%zu masters are kept as their bf16 parameters and 16 bits more, "
            "%zu, which lie otherwise, apart in fp32",
            halves, all - halves);
}
