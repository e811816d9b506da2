/* step.c: what one training step adds around the bodies. Losses and statistics
 * leave the body through accumulators; `post` computes the gradient norm, the
 * clipping factor, AdamW and the model's own updates, and writes them back:
 *
 *     g  = grad * min(1, clip / (norm + 1e-6))
 *     m' = b1 m + (1-b1) g          v' = b2 v + (1-b2) g^2
 *     p' = p (1 - lr wd) - (lr/bc1) m' / (sqrt(v') / sqrt(bc2) + eps)
 *
 * (Loshchilov and Hutter 2019, algorithm 2; bc = 1 - beta^t.) A loss or norm
 * that is not finite skips every write. In `eval` only the losses are kept.  */
#include <stdlib.h>
#include <string.h>

#include "passes.h"

typedef struct Step1 {
    Graph *g;
    const Loc *l;
    const char *scope;            /* of what is being built                   */
    Node *total;                  /* the step's loss                          */
    Node *ok;                     /* everything is finite                     */
    Node *scale;                  /* clipping factor, null: none              */
    Node *lr, *rate, *root;       /* lr/bc1, 1/sqrt(bc2)                      */
    double b1, b2;
    Table *post;                  /* a node -> its value in post              */
    Table *bucket;                /* a trained parameter's path -> its Bucket */
} Step1;

double micro_batches(const Graph *g, const Loc *l)
{
    const Loc *at = opts_loc(g->opts, "train.batch");
    int64_t batch = 1, all;

    for (int i = 0; i < g->naxis; i++)
        if (!strcmp(g->axis[i]->name, "batch") && g->axis[i]->n)
            batch = g->axis[i]->n;
    all = opts_given(g->opts, "train.batch") ? opts_int(g->opts, "train.batch")
                                             : batch;
    if (all % batch)
        err(at ? at : l, "train.batch is %lld, not a multiple of axis 'batch', "
            "%lld", (long long)all, (long long)batch);
    return (double)(all / batch);
}

Node *g_total(Graph *g, Node *n)
{
    Axis *ax[MAXD];

    for (int i = 0; i < n->nd; i++)
        ax[i] = n->dim[i].a;
    return g_red(g, Osum, n, ax, n->nd);
}

Node *g_each_micro(Graph *g, Node *n)
{
    Axis *micro = g_axis(g, "micro");
    Node *s;

    if (dim_of(n, micro) >= 0)
        return n;
    s = g_node(g, Ospread, n->loc, 1, &n);
    s->scope = n->scope;
    s->reg = n->reg == REGden ? REGden : REGbody;
    s->dim[s->nd++] = (Dim){ micro, 1 };
    for (int i = 0; i < n->nd; i++)
        s->dim[s->nd++] = n->dim[i];
    return infer(g, s);
}

Node *g_accum(Graph *g, Node *n, const char *op)
{
    Node *a = g_node(g, Oaccum, n->loc, 1, &n);

    a->s = intern(op);
    a->dt = Df32;
    a->reg = n->reg;
    a->scope = n->scope;
    return infer(g, a);
}

/* ---- small arithmetic in post -------------------------------------------- */

static Node *op2(Step1 *s, Op op, Node *a, Node *b)
{
    Node *n = g_ew(s->g, op, s->l, a, b, NULL);

    n->reg = REGpost;
    n->scope = s->scope;
    return n;
}

static Node *op1(Step1 *s, Op op, Node *a)
{
    return op2(s, op, a, NULL);
}

static Node *num(Step1 *s, double v)
{
    Node *n = g_const(s->g, s->l, Df32, v);

    n->reg = REGpost;
    return n;
}

static Node *scalar(Step1 *s, const char *name)
{
    Node *n = g_node(s->g, Ostepval, NULL, 0, NULL);

    n->s = intern(name);
    n->dt = Df32;
    n->reg = REGpost;
    return infer(s->g, n);
}

static void result(Step1 *s, const char *name, Node *n)
{
    Node *r = g_node(s->g, Oresult, n->loc, 1, &n);

    r->s = intern(name);
    r->reg = REGpost;
    infer(s->g, r);
}

static Node *in_post(Node *n)
{
    n->reg = REGpost;
    return n;
}

/* ---- statistics over the step (DESIGN section 3, one step) --------------- */

int axis_covers(const Axis *a, const char *name)
{
    if (!strcmp(a->name, name))
        return 1;
    for (int i = 0; i < a->nfactor; i++)
        if (axis_covers(a->factor[i], name))
            return 1;
    return 0;
}

/* Does n reduce over the sequences of the batch?                             */
static int over_batch(const Node *n)
{
    for (int i = 0; i < n->nA && optab[n->op].cls == RED; i++)
        if (axis_covers(n->A[i], "batch"))
            return 1;
    return 0;
}

static int is_data(const Node *n, const Graph *g)
{
    Axis *micro = g_axis((Graph *)(uintptr_t)g, "micro");

    return dim_of(n, micro) >= 0 || n->map;
}

/* A reduction over batch as post sees it: over all micro-batches as well.    */
static Node *statistic(Step1 *s, Node *n)
{
    static const char *const ops[] = { [Osum] = "add", [Omean] = "add",
                                       [Omax] = "max", [Omin] = "min" };
    Axis *ax[MAXD + 1];
    int k = 0;

    for (int i = 0; i < n->nA; i++)
        ax[k++] = n->A[i];
    ax[k++] = g_axis(s->g, "micro");
    Node *x = g_cast(s->g, g_each_micro(s->g, n->in[0]), Df32);
    Node *part = g_red(s->g, n->op == Omean ? Osum : n->op, x, ax, k);
    Node *all = g_accum(s->g, part, ops[n->op]);
    if (n->op != Omean)
        return all;
    double count = (double)g_elems(n->in[0]) / (double)g_elems(n);
    return op2(s, Omul, all, num(s, 1 / (count * micro_batches(s->g, s->l))));
}

/* Axes that infer cannot know are the node's own; in post without micro.     */
static void own_dims(Graph *g, Node *n)
{
    int at = dim_of(n, g_axis(g, "micro"));

    if (n->op != Oiota && n->op != Ospread && n->op != Osplit &&
        n->op != Opermute && n->op != Oscatter_add)
        n->nd = 0;
    else if (at >= 0)
        memmove(n->dim + at, n->dim + at + 1,
                (size_t)(--n->nd - at) * sizeof *n->dim);
}

static Node *post_value(Step1 *s, Node *n, const Node *user);

static Node *copy_in_post(Step1 *s, const Node *n, const Node *user)
{
    Node *in[MAXIN], *c;

    if (n->op == Oaccum || (n->nin == 0 && is_data(n, s->g)))
        err(user->loc, "%s: the value depends on data other than through a "
            "reduction over 'batch'", optab[user->op].name);
    for (int k = 0; k < n->nin; k++)
        in[k] = post_value(s, n->in[k], user);
    c = g_copyof(s->g, n, in);
    own_dims(s->g, c);
    return in_post(infer(s->g, c));
}

/* The value of n in post.                                                    */
static Node *post_value(Step1 *s, Node *n, const Node *user)
{
    void **to = table_at(s->post, KEYP(n));

    if (*to)
        return *to;
    Node *r = !is_data(n, s->g) && any_region(n) ? n
            : over_batch(n) ? statistic(s, n) : copy_in_post(s, n, user);
    return *table_at(s->post, KEYP(n)) = r;
}

/* ---- losses -------------------------------------------------------------- */

static Node *over_step(Graph *g, Node *n)
{
    return g_accum(g, g_total(g, g_cast(g, g_each_micro(g, n), Df32)), "add");
}

/* Sum over micro-batches of t, divided by the same sum of den.               */
static Node *loss_value(Step1 *s, const Node *n)
{
    Node *den = n->nin > 1 ? over_step(s->g, n->in[1])
                           : num(s, micro_batches(s->g, n->loc));

    return op2(s, Odiv, over_step(s->g, n->in[0]), den);
}

/* Losses of one name (a router's in every layer) are reported as their sum.  */
static void add_loss(Step1 *s, const Node *n, Table *named)
{
    Node *v = loss_value(s, n);
    Node *w = n->f == 1 ? v : op2(s, Omul, v, num(s, n->f));
    void **sum = table_at(named, KEYP(intern(n->s)));

    *sum = *sum ? op2(s, Oadd, *sum, v) : v;
    s->total = s->total ? op2(s, Oadd, s->total, w) : w;
}

static void report_losses(Step1 *s, Node **node, size_t count, Table *named)
{
    for (size_t i = 0; i < count; i++) {
        void **sum =
            table_at(named, KEYP(intern(node[i]->s ? node[i]->s : "")));
        if (node[i]->op == Oloss && *sum)
            result(s, strf(s->g->arena, "loss.%s", node[i]->s), *sum);
        if (node[i]->op == Oloss)
            *sum = NULL;
    }
}

/* ---- gradients ----------------------------------------------------------- */

static Node *square_sum(Step1 *s, Node *x)
{
    return in_post(g_total(s->g, op2(s, Omul, x, x)));
}

/* Sums of eight at a time, so that no kernel reads a thousand operands.      */
static Node *sum_all(Step1 *s, Node **v, size_t n)
{
    while (n > 1) {
        size_t k = 0;
        for (size_t i = 0; i < n; i += 8) {
            Node *t = v[i];
            for (size_t j = i + 1; j < n && j < i + 8; j++)
                t = op2(s, Oadd, t, v[j]);
            v[k++] = t;
        }
        n = k;
    }
    return v[0];
}

static Node *packed(Step1 *s, const Bucket *b, Node *const *in)
{
    Node *n = bucket_pack(s->g, b, in);

    if (b->flat)
        in_post(n)->scope = s->scope;
    return n;
}

/* The gradients of each bucket, packed, and the squares of all.              */
static size_t add_squares(Step1 *s, Node **sq)
{
    Graph *g = s->g;
    size_t n = 0;

    for (size_t i = 0; i < vec_len(g->param); i++) {
        Bucket *b = table_get(s->bucket, KEYP(g->param[i]->path));
        if (!b || b->seen & 1)
            continue;
        b->seen = 1;
        s->scope = intern(strf(g->arena, "post.%s", b->name));
        b->sum = b->unit ? b->sum : packed(s, b, b->grad);
        sq[n++] = square_sum(s, b->sum);
    }
    return n;
}

static void norm_and_clip(Step1 *s)
{
    Graph *g = s->g;
    Node **sq = alloc(g->arena, (vec_len(g->param) + 1) * sizeof *sq), *norm;
    double clip = opts_num(g->opts, "train.clip");
    size_t n = add_squares(s, sq);

    s->scope = intern("post");
    s->ok = op1(s, Oisfinite, s->total);
    if (n == 0)
        return;
    norm = op1(s, Osqrt, sum_all(s, sq, n));
    result(s, "grad_norm", norm);
    s->ok = op2(s, Oland, s->ok, op1(s, Oisfinite, norm));
    if (clip > 0)
        s->scale = op2(s, Ominimum, num(s, 1),
                       op2(s, Odiv, num(s, clip),
                           op2(s, Oadd, norm, num(s, 1e-6))));
}

/* ---- writes -------------------------------------------------------------- */

static void write_node(Step1 *s, Node *state, Node *value)
{
    Node *in[2] = { state, value };
    Node *w = g_node(s->g, Owrite, s->l, 2, in);

    w->scope = s->scope;
    infer(s->g, in_post(w));
}

/* The value, or the old one when something is not finite.                    */
static Node *if_ok(Step1 *s, Node *value, Node *old)
{
    Node *n = g_cast(s->g, value, old->dt);

    n = in_post(g_ew(s->g, Owhere, s->l, s->ok, n, old));
    n->scope = s->scope;
    return n;
}

static void write_back(Step1 *s, Node *state, Node *value)
{
    write_node(s, state, if_ok(s, value, state));
}

static Dtype companion_dtype(const Graph *g, ParamKind kind)
{
    int low = !strcmp(opts_str(g->opts, "precision.moments"), "bf16");

    return low && kind != PKmaster ? Dbf16 : Df32;
}

/* A master starts as a copy of its parameter, or of all of the bucket.       */
static void set_start(Param *q, const Bucket *b)
{
    const Param *p = b->param[0];

    q->init = q->kind != PKmaster ? "const" : b->flat ? "pack" : "copy";
    q->of = q->kind == PKmaster && !b->flat ? p->path : NULL;
    q->arg = 0;
    if (!b->flat)
        return;
    q->expert = NULL;
    q->at = q->nd = 0;
    if (b->own)
        q->dim[q->nd++] = (Dim){ b->own, b->ranks };
    q->dim[q->nd++] = (Dim){ b->flat, b->size };
}

/* A value of the optimizer beside a bucket's parameters.                     */
static Node *companion(Step1 *s, const Bucket *b, ParamKind kind)
{
    Graph *g = s->g;
    Param *q = alloc(g->arena, sizeof *q);
    Node *n = g_node(g, Ostate, b->param[0]->loc, 0, NULL);

    *q = *b->param[0];
    q->kind = kind;
    q->dt = companion_dtype(g, kind);
    q->path = intern(strf(g->arena, "optim.%s.%s", paramkinds[kind], b->name));
    set_start(q, b);
    vec_push(g->arena, g->param, q);
    n->s = q->path;
    n->scope = text_scope(q->path);
    n->dt = q->dt;
    n->nd = q->nd;
    memcpy(n->dim, q->dim, sizeof n->dim);
    return infer(g, in_post(n));
}

/* Does pattern, with * for any run of characters, match s?                   */
static int matches(const char *p, size_t n, const char *s)
{
    if (n == 0)
        return *s == 0;
    if (*p == '*')
        return matches(p + 1, n - 1, s) || (*s && matches(p, n, s + 1));
    return *s == *p && matches(p + 1, n - 1, s + 1);
}

static double decay(const Step1 *s, const Param *p)
{
    const char *list = opts_str(s->g->opts, "train.no_decay");
    double wd = opts_num(s->g->opts, "train.weight_decay");

    if (!list)
        return p->nd <= 1 ? 0 : wd;
    while (*(list += strspn(list, " ,"))) {
        size_t n = strcspn(list, " ,");
        if (matches(list, n, p->path))
            return 0;
        list += n;
    }
    return wd;
}

static Node *moment(Step1 *s, Node *old, Node *x, double beta)
{
    return op2(s, Oadd, op2(s, Omul, old, num(s, beta)),
               op2(s, Omul, x, num(s, 1 - beta)));
}

/* The arithmetic is fp32 whatever a value is stored as.                      */
static Node *high(Step1 *s, Node *n)
{
    Node *c = g_cast(s->g, n, Df32);

    if (c != n)
        in_post(c)->scope = s->scope;
    return c;
}

/* The new value of w by its gradient d; the moments m and v are written.     */
static Node *adamw(Step1 *s, Node *w, Node *d, Node *m, Node *v, double wd)
{
    double eps = opts_num(s->g->opts, "train.eps");
    Node *m1, *v1, *den;

    if (s->scale)
        d = op2(s, Omul, d, s->scale);
    m1 = moment(s, high(s, m), d, s->b1);
    v1 = moment(s, high(s, v), op2(s, Omul, d, d), s->b2);
    den = op2(s, Oadd, op2(s, Omul, op1(s, Osqrt, v1), s->root), num(s, eps));
    if (wd > 0)
        w = op2(s, Omul, w, op2(s, Osub, num(s, 1),
                                op2(s, Omul, s->lr, num(s, wd))));
    w = op2(s, Osub, w, op2(s, Odiv, op2(s, Omul, s->rate, m1), den));
    write_back(s, m, m1);
    write_back(s, v, v1);
    return w;
}

static void write_members(Step1 *s, const Bucket *b, Node *value)
{
    for (size_t k = 0; k < vec_len(b->param); k++) {
        Node *x = bucket_unpack(s->g, b, k, value);
        in_post(x)->scope = s->scope;
        write_node(s, b->node[k], x);
    }
}

/* A master that is kept is what its parameter is rounded from.               */
static void optimize_bucket(Step1 *s, const Bucket *b)
{
    int low = !strcmp(opts_str(s->g->opts, "precision.policy"), "bf16");
    Node *m = companion(s, b, PKm), *v = companion(s, b, PKv);
    Node *old = b->shards ? b->node[0] : b->flat && low
              ? NULL : packed(s, b, b->node);
    Node *w = low ? companion(s, b, PKmaster) : high(s, old);
    Node *w1 = adamw(s, w, b->sum, m, v, decay(s, b->param[0]));

    if (low)
        write_back(s, w, w1);
    if (!b->flat || b->shards)
        write_node(s, old, !low ? if_ok(s, w1, old)
                                : in_post(g_cast(s->g, if_ok(s, w1, w),
                                                 old->dt)));
    else
        write_members(s, b, old ? if_ok(s, w1, old)
                                : in_post(g_cast(s->g, if_ok(s, w1, w),
                                                 b->param[0]->dt)));
}

static void optimize(Step1 *s, Node **param, size_t n)
{
    const char *betas = opts_str(s->g->opts, "train.betas");
    char *end;

    s->b1 = strtod(betas, &end);
    s->b2 = strtod(end + strspn(end, ", "), NULL);
    s->lr = scalar(s, "lr");
    s->rate = op2(s, Odiv, s->lr, scalar(s, "bc1"));
    s->root = op1(s, Orsqrt, scalar(s, "bc2"));
    for (size_t i = 0; i < n; i++) {
        Bucket *b = table_get(s->bucket, KEYP(param[i]->s));
        if (!b || b->seen & 2)
            continue;
        b->seen |= 2;
        s->l = b->param[0]->loc;
        s->scope = intern(strf(s->g->arena, "post.%s", b->name));
        optimize_bucket(s, b);
    }
}

/* ---- the pass ------------------------------------------------------------ */

/* A metric of a layer carries the layer's name.                              */
static const char *metric_name(Graph *g, const Node *n)
{
    return strf(g->arena, "metric.%s%s%s", n->scope, n->scope[0] ? "." : "",
                n->s);
}

/* One sweep over the nodes there were: what kind each is decides.            */
static void add_sinks(Step1 *s, Node **node, size_t count)
{
    Table *named = table_new(s->g->arena);

    for (size_t i = 0; i < count; i++) {
        Node *n = node[i];
        s->l = n->loc;
        if (n->op == Oloss)
            add_loss(s, n, named);
        else if (n->op == Ometric)
            result(s, metric_name(s->g, n), post_value(s, n->in[0], n));
    }
    report_losses(s, node, count, named);
}

static void add_updates(Step1 *s, Node **node, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (node[i]->op == Oupdate) {
            s->l = node[i]->loc;
            write_back(s, node[i]->in[0],
                       post_value(s, node[i]->in[1], node[i]));
        }
}

/* More rows than room somewhere: nothing is written, the fallback will be. The
 * layers where are counted: stages add theirs up at once. A step that is told
 * to hold, because the one before it may have to run again, writes nothing
 * either and says the same.                                                  */
static void stop_on_overflow(Step1 *s, Node **node, size_t count)
{
    Node *any = NULL;

    for (size_t i = 0; i < count; i++) {
        Node *a = node[i];
        if (a->op != Oaccum || a->in[0]->op != Ocast ||
            a->in[0]->in[0]->op != Ooverflow)
            continue;
        any = any ? op2(s, Oadd, any, a) : a;
    }
    if (!any)
        return;
    any = op2(s, Oadd, any, scalar(s, "hold"));
    result(s, "overflow", any);
    s->ok = op2(s, Oland, s->ok, op2(s, Ole, any, num(s, 0)));
}

static Table *gradients(Graph *g, Node **node, size_t count)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < count; i++)
        if (node[i]->op == Oaccum && node[i]->name &&
            !strncmp(node[i]->name, "grad.", 5))
            *table_at(t, KEYP(intern(node[i]->name + 5))) = node[i];
    return t;
}

/* Trained parameters in order; returns how many.                             */
static size_t fill_buckets(Step1 *s, Node **node, size_t count, Node **param)
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
        grad[n] = table_get(grads, KEYP(node[i]->s));
        wd[n] = decay(s, g_param(s->g, node[i]->s));
        n += grad[n] != NULL;
    }
    buckets_of(s->g, param, grad, wd, n, by);
    for (size_t i = 0; i < n; i++) {
        *table_at(s->bucket, KEYP(param[i]->s)) = by[i];
        if (by[i]->unit && !by[i]->sum)
            bucket_scatter(s->g, by[i]);
    }
    return n;
}

/* Regions one after another, for readers; what stands ready goes where it is
 * first read.                                                                */
static void by_region(Graph *g)
{
    size_t n = vec_len(g->node), k = 0;
    Node **sorted = alloc(g->arena, (n + 1) * sizeof *sorted);

    for (size_t i = 0; i < n; i++)
        if (any_region(g->node[i]) && g->node[i]->op != Oinput)
            g->node[i]->reg = REGpost;
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < g->node[i]->nin; j++) {
            Node *x = g->node[i]->in[j];
            if (any_region(x) && g->node[i]->reg < x->reg)
                x->reg = g->node[i]->reg;
        }
    for (Region r = REGden; r < NREGION; r++)
        for (size_t i = 0; i < n; i++)
            if (g->node[i]->reg == r)
                sorted[k++] = g->node[i];
    memcpy(g->node, sorted, n * sizeof *sorted);
    g_renumber(g);
}

static void drop_logical_sinks(Graph *g)
{
    size_t k = 0, n = vec_len(g->node);

    for (size_t i = 0; i < n; i++) {
        Op op = g->node[i]->op;
        if (op != Oloss && op != Ometric && op != Oupdate)
            g->node[k++] = g->node[i];
    }
    ((VecHead *)(void *)g->node)[-1].len = k;
}

void pass_step(Graph *g)
{
    size_t count = vec_len(g->node);
    Node **node = alloc(g->arena, (count + 1) * sizeof *node);
    Node **param = alloc(g->arena, (count + 1) * sizeof *param);
    Step1 s = { .g = g, .scope = intern("post"), .post = table_new(g->arena),
                .bucket = table_new(g->arena) };

    memcpy(node, g->node, count * sizeof *node);
    add_sinks(&s, node, count);
    result(&s, "loss", s.total);
    if (g->prog[0] == 's') {
        size_t n = fill_buckets(&s, node, count, param);
        norm_and_clip(&s);
        result(&s, "ok", s.ok);
        stop_on_overflow(&s, node, count);
        add_updates(&s, node, count);
        optimize(&s, param, n);
    }
    drop_logical_sinks(g);
    g_tidy(g);
    by_region(g);
}
