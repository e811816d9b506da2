/* ref.c: the reference as a whole: a traced graph opened into values, its
 * losses, gradients and updates (see ref.h).
 *
 * One step: every input has the axis micro, here with all micro-batches of the
 * step. The loss is the sum over losses of weight * sum over micro of t / sum
 * over micro of den. Updates and metrics are made of the same nodes once more,
 * without micro: there a reduction over batch covers all micro-batches. */
#include <math.h>
#include <string.h>

#include "ref.h"

double ref_uniform(uint64_t *seed)
{
    *seed = mix64(*seed, 0x9d2c5680);
    return (double)(*seed >> 11) * 0x1p-53;
}

/* ---- opening the graph --------------------------------------------------- */

static void add_axis(Val *x, Axis *a, int64_t len)
{
    x->a[x->nd] = a;
    x->len[x->nd++] = len;
}

static void set_steps(Ref *r, Val *x)
{
    int64_t step = 1;

    for (int d = x->nd; d-- > 0; step *= x->len[d])
        x->step[d] = step;
    x->elems = step;
    x->v = alloc(r->a, (size_t)(step + 1) * sizeof *x->v);
    x->d = alloc(r->a, (size_t)(step + 1) * sizeof *x->d);
}

static int leads(const Node *n)
{
    switch (n->op) {
    case Ostop_gradient:
    case Osign:
    case Omod:
    case Ofloor:
    case Ofloor_div:
    case Oxor: return 0;
    default: return 1;
    }
}

static int has_micro(const Ref *r, const Val *x)
{
    return val_axis(x, r->microaxis) >= 0;
}

/* Dropout's mask differs between micro-batches, whatever its operand is. */
static int varies(const Ref *r, const Val *x)
{
    int yes = x->n->op == Odropout && r->micro > 1;

    for (int k = 0; k < x->nin; k++)
        yes |= has_micro(r, &r->val[x->in[k]]);
    return yes;
}

static void set_axes(Ref *r, Val *x)
{
    const Node *n = x->n;

    if (optab[n->op].cls == SINK)
        return;
    if (dim_of(n, r->microaxis) < 0 && varies(r, x))
        add_axis(x, r->microaxis, r->micro);
    for (int d = 0; d < n->nd; d++)
        add_axis(x, n->dim[d].a,
                 n->dim[d].a == r->microaxis ? r->micro : n->dim[d].n);
}

static int push(Ref *r, Val x)
{
    x.real = dtypes[x.n->dt].kind == 'f';
    x.need = x.n->op == Oparam;
    for (int k = 0; k < x.nin; k++)
        x.need |= x.real && leads(x.n) && r->val[x.in[k]].need;
    set_steps(r, &x);
    vec_push(r->a, r->val, x);
    return (int)vec_len(r->val) - 1;
}

static int open_node(Ref *r, const Node *n, const int *in)
{
    Val x = { .n = n, .nin = n->nin, .times = 1 };

    memcpy(x.in, in, (size_t)n->nin * sizeof *in);
    set_axes(r, &x);
    return push(r, x);
}

static int open_graph(Ref *r, const Graph *g, const int *arg);

/* dot(exp / sum, v) at the end of an attention. */
static int open_call(Ref *r, const Node *n, const int *arg)
{
    int at = open_graph(r, n->body, arg);

    if (is_attention(n))
        r->val[at].weights = r->val[r->val[at].in[0]].in[1];
    return at;
}

/* The values of a graph; arg: those of a body's operands. Returns the last. */
static int open_graph(Ref *r, const Graph *g, const int *arg)
{
    Table *at = table_new(r->a);
    int in[MAXREFIN], last = -1;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->nin > MAXREFIN)
            die("reference: %s has %d operands", optab[n->op].name, n->nin);
        for (int k = 0; k < n->nin; k++)
            in[k] = (int)(intptr_t)table_get(at, KEYP(n->in[k])) - 1;
        last = n->op == Oarg    ? arg[n->at.arg.index]
               : n->op == Ocall ? open_call(r, n, in)
                                : open_node(r, n, in);
        *table_at(at, KEYP(n)) = (void *)(intptr_t)(last + 1);
    }
    return last;
}

/* ---- updates and metrics ------------------------------------------------- */

static int covers_batch(const Axis *a)
{
    int yes = a->role == ROLEbatch;

    for (int i = 0; i < a->nfactor; i++)
        yes |= covers_batch(a->factor[i]);
    return yes;
}

/* Sums and such; products of data. */
static int over_batch(const Ref *r, const Val *x)
{
    const Node *n = x->n;

    if (optab[n->op].cls != RED && (n->op != Odot || !varies(r, x)))
        return 0;
    for (int i = 0; i < n_axes(n)->n; i++)
        if (covers_batch(n_axes(n)->v[i]))
            return 1;
    return 0;
}

static void drop_micro(const Ref *r, Val *x)
{
    int at = val_axis(x, r->microaxis);

    if (at < 0)
        return;
    x->nd--;
    for (int d = at; d < x->nd; d++) {
        x->a[d] = x->a[d + 1];
        x->len[d] = x->len[d + 1];
    }
}

/* The value as an update sees it; done: by value, 1 + that. */
static int after_step(Ref *r, int at, Table *done)
{
    void **to = table_at(done, (uint64_t)at + 1);
    Val x = r->val[at];

    if (*to)
        return (int)(intptr_t)*to - 1;
    if (over_batch(r, &x)) {
        if (!has_micro(r, &r->val[x.in[0]]))
            x.times = x.n->op == Osum ? (double)r->micro : 1;
    } else if (x.nin == 0) {
        *to = (void *)(intptr_t)(at + 1);
        return at;
    } else {
        for (int k = 0; k < x.nin; k++)
            x.in[k] = after_step(r, x.in[k], done);
    }
    drop_micro(r, &x);
    x.weights = 0; /* it passes nothing back */
    int made = push(r, x);
    *table_at(done, (uint64_t)at + 1) = (void *)(intptr_t)(made + 1);
    return made;
}

/* ---- names --------------------------------------------------------------- */

static void add_name(Named *v, int *n, const char *name, int at)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(v[i].name, name) && v[i].at == at)
            return;
    if (*n == MAXNAMED)
        die("reference: more than %d named values", MAXNAMED);
    v[(*n)++] = (Named){ .name = name, .at = at };
}

static void name_value(Ref *r, int i)
{
    const Node *n = r->val[i].n;

    switch (n->op) {
    case Oparam: add_name(r->param, &r->nparam, n->at.param.path, i); break;
    case Ostate: add_name(r->state, &r->nstate, n->at.state.path, i); break;
    case Oinput: add_name(r->input, &r->ninput, n->at.input.name, i); break;
    case Oloss: add_name(r->loss, &r->nloss, n->at.loss.name, i); break;
    default: break;
    }
}

static void name_sink(Ref *r, int i, Table *done)
{
    const Node *n = r->val[i].n;

    /* the front end's check of indices is no metric of the model */
    if (n->op != Oupdate && (n->op != Ometric || n->at.metric.beyond))
        return;
    int at = after_step(r, r->val[i].in[n->nin - 1], done);
    if (n->op == Oupdate)
        add_name(r->update, &r->nupdate, n_name(n->in[0]), at);
    else
        add_name(r->metric, &r->nmetric,
                 *n->scope->path
                     ? strf(r->a, "%s.%s", n->scope->path, n->at.metric.name)
                     : n->at.metric.name,
                 at);
}

Ref *ref_new(Arena *a, Graph *g, int64_t micro)
{
    Ref *r = alloc(a, sizeof *r);
    Table *done = table_new(a);

    r->a = a;
    r->g = g;
    r->micro = micro;
    r->microaxis = g_axis(g, "micro");
    open_graph(r, g, NULL);
    int n = (int)vec_len(r->val);
    for (int i = 0; i < n; i++)
        name_value(r, i);
    for (int i = 0; i < n; i++)
        name_sink(r, i, done);
    return r;
}

Val *ref_leaf(const Ref *r, const char *name, Op op)
{
    for (size_t i = 0; i < vec_len(r->val); i++)
        if (r->val[i].n->op == op && !strcmp(n_name(r->val[i].n), name))
            return &r->val[i];
    return NULL;
}

/* ---- values -------------------------------------------------------------- */

static double total(const Ref *r, int at)
{
    const Val *x = &r->val[at];
    double sum = 0;

    for (int64_t i = 0; i < x->elems; i++)
        sum += x->v[i];
    return has_micro(r, x) ? sum : sum * (double)r->micro;
}

/* Sum over micro of the denominator. */
static double den_of(const Ref *r, const Val *loss)
{
    return loss->nin > 1 ? total(r, loss->in[1]) : (double)r->micro;
}

void ref_values(Ref *r)
{
    if (r->gap)
        ((VecHead *)(void *)r->gap)[-1].len = 0;
    r->margin = INFINITY;
    r->ties = 0;
    r->decided = 0;
    r->total = 0;
    for (size_t i = 0; i < vec_len(r->val); i++)
        ref_value(r, &r->val[i]);
    for (int i = 0; i < r->nloss; i++) {
        const Val *x = &r->val[r->loss[i].at];
        r->loss[i].sum = total(r, x->in[0]) / den_of(r, x);
        r->total += x->n->at.loss.weight * r->loss[i].sum;
    }
    for (int i = 0; i < r->nmetric; i++)
        r->metric[i].sum = r->val[r->metric[i].at].v[0];
}

/* ---- gradients ----------------------------------------------------------- */

static void seed(Ref *r, const Val *loss)
{
    Val *t = &r->val[loss->in[0]];
    double each = loss->n->at.loss.weight / den_of(r, loss);

    if (!has_micro(r, t))
        each *= (double)r->micro;
    for (int64_t i = 0; i < t->elems; i++)
        t->d[i] += each;
}

void ref_gradients(Ref *r)
{
    size_t n = vec_len(r->val);

    for (size_t i = 0; i < n; i++)
        memset(r->val[i].d, 0, (size_t)r->val[i].elems * sizeof(double));
    for (int i = 0; i < r->nloss; i++)
        seed(r, &r->val[r->loss[i].at]);
    for (size_t i = n; i-- > 0;) {
        Val *x = &r->val[i];
        for (int64_t k = 0; r->noise && k < x->elems; k++)
            x->d[k] *= 1 + r->noise * (2 * ref_uniform(&r->seed) - 1);
        if (x->need)
            ref_back(r, x);
    }
}

/* ---- differences --------------------------------------------------------- */

typedef struct Direction {
    double *was[MAXNAMED], *by[MAXNAMED];
    double slope, size; /* of the loss along it; sum of its parts */
} Direction;

static void choose_direction(Ref *r, Direction *u, uint64_t seed)
{
    for (int p = 0; p < r->nparam; p++) {
        const Val *x = &r->val[r->param[p].at];
        size_t bytes = (size_t)(x->elems + 1) * sizeof(double);
        u->was[p] = memcpy(alloc(r->a, bytes), x->v, bytes);
        u->by[p] = alloc(r->a, bytes);
        for (int64_t i = 0; i < x->elems; i++) {
            double part = (u->by[p][i] = 2 * ref_uniform(&seed) - 1) * x->d[i];
            u->slope += part;
            u->size += fabs(part);
        }
    }
}

static double loss_at(Ref *r, const Direction *u, double h)
{
    for (int p = 0; p < r->nparam; p++) {
        Val *x = &r->val[r->param[p].at];
        for (int64_t i = 0; i < x->elems; i++)
            x->v[i] = u->was[p][i] + h * u->by[p][i];
    }
    ref_values(r);
    return r->total;
}

/* Central differences of steps h and h/2, their error of h^2 taken off. */
static double difference(Ref *r, const Direction *u, double h, uint64_t *kink)
{
    static const double step[] = { 1, -1, 0.5, -0.5 };
    double f[4];
    uint64_t was = r->decided;

    for (int i = 0; i < 4; i++) {
        f[i] = loss_at(r, u, step[i] * h);
        *kink |= r->decided != was;
    }
    loss_at(r, u, 0);
    return (4 * (f[2] - f[3]) / h - (f[0] - f[1]) / (2 * h)) / 3;
}

double ref_differences(Ref *r, uint64_t seed, double rounding)
{
    static const double steps[] = { 1e-3, 1e-4, 1e-5 };
    Direction u = { .slope = 0 };
    double best = -1;

    choose_direction(r, &u, seed);
    r->frozen = 1;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        uint64_t kink = 0;
        double d = difference(r, &u, steps[i], &kink);
        double apart = fabs(d - u.slope) - rounding / steps[i];
        double off = fmax(apart, 0) / (u.size + 1e-300);
        if (!kink && (best < 0 || off < best))
            best = off;
    }
    r->frozen = 0;
    return best;
}
