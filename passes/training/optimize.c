/* optimize.c: the optimizer in `post`: gradient norm, clipping and the model's
 * update of a bucket of parameters at a time: the body of the bucket's
 * optimizer (frontend/lang/optimizers.c) on the master, on
 *
 *     g = grad * min(1, clip / (norm + 1e-6))
 *
 * and on the states kept beside the bucket.
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
    UpdateRule *rule = alloc(a, (count + 1) * sizeof *rule);
    const Node **optimizers = optimizers_of(step->g);
    Bucket **by = alloc(a, (count + 1) * sizeof *by);
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        const Param *p = node[i]->op == Oparam
                             ? g_param(step->g, node[i]->at.param.path)
                             : NULL;
        if (!p || p->kind == TKscales)
            continue;
        param[n] = node[i];
        grad[n] = table_get(grads, KEYP(p->path));
        rule[n] = (UpdateRule){ .optimizer = NULL };
        if (grad[n])
            rule[n] = update_rule(step->g, optimizers, p);
        n++;
    }
    buckets_of(step->g, param, grad, rule, n, by);
    for (size_t i = 0; i < n; i++) {
        if (grad[i])
            *table_at(step->bucket, KEYP(param[i]->at.param.path)) = by[i];
        if (by[i]->unit && by[i]->node[0] == param[i])
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
    if (clip > 0) {
        Node *above = post_op2(step, Oadd, norm, post_num(step, 1e-6));
        Node *scale = post_op2(step, Odiv, post_num(step, clip), above);
        step->scale = post_op2(step, Ominimum, post_num(step, 1), scale);
    }
}

/* ---- states ------------------------------------------------------------ */

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

/* The i-th state of an optimizer that is not elementwise may lack axes of its
 * parameter. */
static void set_state_dims(const UpdateRule *rule, int i, Param *state)
{
    const Node *like = optimizer_result(rule->optimizer, i);
    int nd = 0;

    for (int d = 0; d < state->nd; d++)
        if (has_dim(like, unpadded(state->dim[d].a)))
            state->dim[nd++] = state->dim[d];
    state->nd = nd;
}

/* A value of the optimizer beside a bucket's parameters; of moments the
 * number. */
static Node *companion(TrainStep *step, const Bucket *bucket, TensorKind kind,
                       const char *state, Dtype dt, int number)
{
    Graph *g = step->g;
    Param *q = alloc(g->arena, sizeof *q);
    Node *n = g_node(g, Ostate, bucket->param[0]->loc, 0, NULL);

    *q = *bucket->param[0];
    q->kind = kind;
    q->dt = dt;
    q->path = intern(strf(g->arena, "%s%s%s", tensor_kinds[kind].prefix, state,
                          bucket->name));
    set_start(q, bucket);
    if (kind == TKmoment && !is_elementwise_rule(&bucket->rule))
        set_state_dims(&bucket->rule, number, q);
    vec_push(g->arena, g->param, q);
    n->at.state.path = q->path;
    n->scope = g_scope(g, text_scope(q->path));
    n->dt = q->dt;
    n->nd = q->nd;
    memcpy(n->dim, q->dim, sizeof n->dim);
    return infer(g, in_post(n));
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
        state->dt == Dbf16)
        value = post_op2(step, Ostochastic_bf16, value,
                         post_scalar(step, STEPstep));
    post_write(step, state, value);
}

/* ---- the optimizer's body ------------------------------------------------ */

/* What stands for the arguments of a body, and the states that it changes. */
typedef struct BucketUpdate {
    Node *arg[UPDATEstates + MOSTSTATES];
    Node *state[MOSTSTATES];
    int nstate;
} BucketUpdate;

/* The states beside a bucket, which begin at 0. */
static BucketUpdate open_update(TrainStep *step, const Bucket *bucket)
{
    int low = opts_moment_dtype(step->g->opts) != MOMENTfp32;
    const char *s = bucket->rule.optimizer->at.optimizer.states, *word;
    BucketUpdate u = { .nstate = 0 };

    while (s && (word = next_word(&s, " "))) {
        int n = (int)strcspn(word, ":");
        u.state[u.nstate] = companion(step, bucket, TKmoment,
                                      strf(step->g->arena, "%.*s.", n, word),
                                      low && !word[n] ? Dbf16 : Df32, u.nstate);
        u.nstate++;
    }
    return u;
}

/* n of a body, or the body of a composite there, on these operands. What has no
 * axes is the same for all buckets. */
static Node *copied(TrainStep *step, const Node *n, Node *const *to)
{
    Graph *g = step->g;
    size_t from = vec_len(g->node);
    Node *in[MAXIN];

    for (int k = 0; k < n->nin; k++)
        in[k] = to[n->in[k]->id];
    Node *c = n->op == Ocall ? inline_body(g, n->body, in, step->scope, step->l)
                             : infer(g, g_copyof(g, n, in));
    for (; from < vec_len(g->node); from++) {
        Node *x = in_post(g->node[from]);
        x->loc = step->l;
        x->scope = optab[x->op].cls == SRC ? g->top
                   : x->nd                 ? step->scope
                                           : g_partscope(g, PARTpost, "post");
    }
    return g_folded(g, c);
}

/* Which elements of the bucket, or experts of its one parameter, are no padding
 * (Axis.parts); null: all. Padding has no gradient, which an optimizer may
 * divide by. */
static Node *of_experts(TrainStep *step, const Bucket *bucket)
{
    Graph *g = step->g;
    Node *in[MAXIN];
    size_t from = vec_len(g->node);
    int pads = 0;

    for (size_t k = 0; k < vec_len(bucket->param); k++) {
        const Param *p = bucket->param[k];
        Node *x = post_num(step, 1);
        x->nd = bucket->flat ? p->nd : 0;
        memcpy(x->dim, p->dim, sizeof x->dim);
        for (int d = 0; d < p->nd; d++) {
            Axis *a = p->dim[d].a;
            if (!a->parts)
                continue;
            Node *expert = g_from_padded(g, a, g_iota(g, a, x));
            Node *is = post_op2(step, Oge, expert, post_num(step, 0));
            x = g_ew(g, Owhere, step->l, is, x, post_num(step, 0));
            pads = 1;
        }
        in[k] = x;
    }
    if (!pads)
        return NULL;
    Node *zero = post_num(step, 0);
    Node *all = post_op2(step, Ogt, packed(step, bucket, in), zero);
    for (; from < vec_len(g->node); from++)
        in_post(g->node[from]);
    return all;
}

/* The new value of w by the gradient of its bucket; the states are written. */
static Node *updated(TrainStep *step, const Bucket *bucket,
                     BucketUpdate *update, Node *w)
{
    const UpdateRule *rule = &bucket->rule;
    Graph *body = rule->optimizer->body;
    Node **to = alloc(step->g->arena, (vec_len(body->node) + 1) * sizeof *to);
    Node *real = of_experts(step, bucket), *old;
    int k = 0;

    update->arg[UPDATEparam] = w;
    update->arg[UPDATEgrad] = bucket->sum;
    if (step->scale)
        update->arg[UPDATEgrad] =
            post_op2(step, Omul, bucket->sum, step->scale);
    update->arg[UPDATErate] = step->lr;
    if (rule->lr != 1)
        update->arg[UPDATErate] =
            post_op2(step, Omul, step->lr, post_num(step, rule->lr));
    update->arg[UPDATEdecay] = post_num(step, 0);
    if (rule->decay > 0)
        update->arg[UPDATEdecay] = post_op2(step, Omul, update->arg[UPDATErate],
                                            post_num(step, rule->decay));
    for (int i = 0; i < update->nstate; i++)
        update->arg[UPDATEstates + i] = high(step, update->state[i]);
    g_renumber(body);
    for (size_t i = 0; i < vec_len(body->node); i++) {
        const Node *n = body->node[i];
        if (n->op != Oresult) {
            to[i] = n->op == Oarg ? update->arg[n->at.arg.index]
                                  : copied(step, n, to);
            continue;
        }
        w = to[n->in[0]->id];
        old = update->arg[k < update->nstate ? UPDATEstates + k : UPDATEparam];
        if (real)
            w = in_post(g_ew(step->g, Owhere, step->l, real, w, old));
        if (k < update->nstate)
            write_moment(step, update->state[k++], w);
    }
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
    BucketUpdate update = open_update(step, bucket);
    Node *p = bucket->node[0],
         *left = companion(step, bucket, TKremainder, "", Di16, 0);
    Node *low = high(step, left);
    Node *w = post_op2(step, Ojoin_bf16, high(step, p), low);
    Node *w1 = updated(step, bucket, &update, w);

    write_halves(step, p, left, post_if_ok(step, w1, w));
}

/* A master that is kept is what its parameter is rounded from. */
static void optimize_bucket(TrainStep *step, const Bucket *bucket)
{
    int low = opts_dtype(step->g->opts) == Dbf16;
    BucketUpdate update = open_update(step, bucket);
    Node *old = bucket->shards        ? bucket->node[0]
                : bucket->flat && low ? NULL
                                      : packed(step, bucket, bucket->node);
    Node *w =
        low ? companion(step, bucket, TKmaster, "", Df32, 0) : high(step, old);
    Node *w1 = updated(step, bucket, &update, w);

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
    size_t halves = 0, all = 0;

    step->lr = post_scalar(step, STEPlr);
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
