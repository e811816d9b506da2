/* step.c: builds the parts of a training step around the bodies. Losses and
 * statistics leave the body through accumulators; `post` has the model's own
 * updates and the optimizer's writes (optimize.c). A loss or norm that is not
 * finite skips all writes, unless train.skip_bad=0. `eval` has only the
 * losses. */
#include "training.h"

/* ---- statistics over the step -------------------------------------------- */

/* Returns a reduction over batch in post: over all micro-batches too. */
static Node *statistic(TrainStep *step, Node *n)
{
    static const Reduce ops[] = {
        [Osum] = Radd, [Omean] = Radd, [Omax] = Rmax, [Omin] = Rmin
    };
    Axis *ax[MAXD + 1];
    int k = 0;

    for (int i = 0; i < n_axes(n)->n; i++)
        ax[k++] = n_axes(n)->v[i];
    ax[k++] = g_micro(step->g);
    Node *x = g_per_micro(step->g, n->in[0]);
    if (n->op == Odot) {
        Node *y = g_per_micro(step->g, n->in[1]);
        return g_accum(step->g, g_dot(step->g, n->loc, x, y, ax, k, NULL),
                       Radd);
    }
    x = g_cast(step->g, x, Df32);
    Node *part = g_red(step->g, n->op == Omean ? Osum : n->op, x, ax, k);
    Node *all = g_accum(step->g, part, ops[n->op]);
    if (n->op != Omean)
        return all;
    double count = (double)g_elems(n->in[0]) / (double)g_elems(n);
    count *= micro_batches(step->g);
    return post_op2(step, Omul, all, post_num(step, 1 / count));
}

/* Are the dims of op unknown to infer? */
static int has_own_dims(Op op)
{
    switch (op) {
    case Oiota:
    case Orandom:
    case Obroadcast:
    case Osplit:
    case Opermute:
    case Oscatter_add:
    case Opart:
    case Ocall:
    case Ounpack: return 1;
    default: return 0;
    }
}

/* Sets such dims in post, without micro. */
static void own_dims(Graph *g, Node *n)
{
    int at = dim_of(n, g_micro(g));

    if (!has_own_dims(n->op))
        n->nd = 0;
    else if (at >= 0)
        memmove(n->dim + at, n->dim + at + 1,
                (size_t)(--n->nd - at) * sizeof *n->dim);
}

static Node *post_value(TrainStep *step, Node *n, const Node *user);

static Node *copy_in_post(TrainStep *step, const Node *n, const Node *user)
{
    Node *in[MAXIN], *c;

    if (n->op == Oaccum || (n->nin == 0 && g_is_data(step->g, n)))
        err(user->loc,
            "%s: the value depends on data other than through a "
            "reduction over 'batch'",
            optab[user->op].name);
    for (int k = 0; k < n->nin; k++) {
        in[k] = post_value(step, n->in[k], user);
        if (n->body && in[k]->dt != n->in[k]->dt) /* the body's type */
            in[k] = in_post(g_cast(step->g, in[k], n->in[k]->dt));
    }
    c = g_copyof(step->g, n, in);
    own_dims(step->g, c);
    return in_post(infer(step->g, c));
}

/* Returns the value of n in post. */
static Node *post_value(TrainStep *step, Node *n, const Node *user)
{
    void **to = table_at(step->post, KEYP(n));

    if (*to)
        return *to;
    Node *r = !g_is_data(step->g, n) && any_region(n) ? n
              : g_over_batch(step->g, n)              ? statistic(step, n)
                                         : copy_in_post(step, n, user);
    return *table_at(step->post, KEYP(n)) = r;
}

/* ---- losses -------------------------------------------------------------- */

static Node *over_step(Graph *g, Node *n)
{
    return g_accum(g, g_total(g, g_cast(g, g_per_micro(g, n), Df32)), Radd);
}

/* Returns the sum of a loss over micro-batches, divided by that of its
 * denominator. */
static Node *loss_value(TrainStep *step, const Node *n)
{
    Node *den = n->nin > 1 ? over_step(step->g, n->in[1])
                           : post_num(step, micro_batches(step->g));

    return post_op2(step, Odiv, over_step(step->g, n->in[0]), den);
}

/* Adds a loss; losses of one name (a router's in every layer) are reported as
 * their sum. */
static void add_loss(TrainStep *step, const Node *n, Table *named)
{
    Node *v = loss_value(step, n);
    double weight = n->at.loss.weight;
    Node *w = weight == 1 ? v : post_op2(step, Omul, v, post_num(step, weight));
    void **sum = table_at(named, KEYP(intern(n->at.loss.name)));

    *sum = *sum ? post_op2(step, Oadd, *sum, v) : v;
    step->total = step->total ? post_op2(step, Oadd, step->total, w) : w;
}

static void report_losses(TrainStep *step, Node **node, size_t count,
                          Table *named)
{
    for (size_t i = 0; i < count; i++) {
        if (node[i]->op != Oloss)
            continue;
        const char *name = node[i]->at.loss.name;
        void **sum = table_at(named, KEYP(intern(name)));
        if (*sum)
            post_result(step, strf(step->g->arena, "loss.%s", name), *sum);
        *sum = NULL;
    }
}

/* ---- the pass ------------------------------------------------------------ */

/* Returns the name of a metric, with the layer's name for a metric of a
 * layer. */
static const char *metric_name(Graph *g, const Node *n)
{
    return strf(g->arena, "metric.%s%s%s", n->scope->path,
                *n->scope->path ? "." : "", n->at.metric.name);
}

/* Returns the largest element of n over all micro-batches. */
static Node *largest(TrainStep *step, Node *n)
{
    Node *x = g_cast(step->g, g_per_micro(step->g, n), Df32);
    Axis *ax[MAXD];

    for (int i = 0; i < x->nd; i++)
        ax[i] = x->dim[i].a;
    return g_accum(step->g, g_red(step->g, Omax, x, ax, x->nd), Rmax);
}

/* Adds sinks for losses, metrics and updates of the model. */
static void add_sinks(TrainStep *step, Node **node, size_t count)
{
    Table *named = table_new(step->g->arena);

    for (size_t i = 0; i < count; i++) {
        Node *n = node[i];
        step->l = n->loc;
        if (n->op == Oloss)
            add_loss(step, n, named);
        else if (n->op == Ometric && n->at.metric.beyond)
            post_result(step,
                        strf(step->g->arena, "beyond.%s", n->at.metric.name),
                        largest(step, n->in[0]));
        else if (n->op == Ometric)
            post_result(step, metric_name(step->g, n),
                        post_value(step, n->in[0], n));
    }
    report_losses(step, node, count, named);
}

static void add_updates(TrainStep *step, Node **node, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (node[i]->op == Oupdate) {
            step->l = node[i]->loc;
            post_write(step, node[i]->in[0],
                       post_value(step, node[i]->in[1], node[i]));
        }
}

/* Skips all writes if rows overflowed in a layer; the fallback runs the step
 * again. The number of such layers is counted, summed over stages. A step that
 * must hold, because the one before it may run again, writes nothing either and
 * reports the same. */
static void stop_on_overflow(TrainStep *step, Node **node, size_t count)
{
    Node *any = NULL;

    for (size_t i = 0; i < count; i++) {
        Node *a = node[i];
        if (a->op != Oaccum || a->in[0]->op != Ocast ||
            a->in[0]->in[0]->op != Ooverflow)
            continue;
        any = any ? post_op2(step, Oadd, any, a) : a;
    }
    if (!any)
        return;
    any = post_op2(step, Oadd, any, post_scalar(step, STEPhold));
    post_result(step, "overflow", any);
    post_needs(step, post_op2(step, Ole, any, post_num(step, 0)));
}

/* Sorts nodes by region, for readability; sources move to the first region that
 * reads them. */
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
        if (op != Oloss && op != Ometric && op != Oupdate && op != Ooptimizer)
            g->node[k++] = g->node[i];
    }
    ((VecHead *)(void *)g->node)[-1].len = k;
}

void pass_step(Graph *g)
{
    size_t count = vec_len(g->node);
    Node **node = alloc(g->arena, (count + 1) * sizeof *node);
    Node **param = alloc(g->arena, (count + 1) * sizeof *param);
    TrainStep s = { .g = g,
                    .scope = g_partscope(g, PARTpost, "post"),
                    .post = table_new(g->arena),
                    .bucket = table_new(g->arena) };

    memcpy(node, g->node, count * sizeof *node);
    add_sinks(&s, node, count);
    post_result(&s, "loss", s.total);
    if (program_trains(g->prog)) {
        size_t n = step_buckets(&s, node, count, param);
        step_clip(&s);
        if (s.ok)
            post_result(&s, "ok", s.ok);
        stop_on_overflow(&s, node, count);
        add_updates(&s, node, count);
        step_optimize(&s, param, n);
    }
    drop_logical_sinks(g);
    g_tidy(g);
    by_region(g);
}
