/* precision.c: decides every dtype. `real` becomes the policy's dtype: fp32,
 * bf16, or fp64 for tests, where f32() and bf16() are the identity. Under bf16
 * constants, states, masters and accumulators stay fp32. Means become sums and
 * products here, after `step`, which treats means and sums differently.
 *
 * A value is rounded once. A product or sum that f32() or an fp32 accumulator
 * reads directly is fp32; readers of the bf16 value read a cast:
 *
 *     %z = dot %x %w       bf16          %z = dot %x %w       f32
 *     %a = cast %z to=f32         =>     %b = cast %z to=bf16
 *     %y = silu %z         bf16          %y = silu %b         bf16
 *
 * The same holds for an addition of several products or sums that an
 * accumulator reads. A cast of a real value to `real` prevents it: f32() of the
 * cast reads the rounded value, even if other readers read the fp32 one.
 *
 * From here on every node is rounded to its dtype where it is computed. Later
 * passes that keep, recompute or fuse nodes change no value except by the order
 * of sums, which depends on the operands of the kernel. */
#include "placement.h"

typedef struct Policy {
    Dtype real, high; /* dtypes of real values; of explicit fp32 values */
    int all64;
} Policy;

static Policy policy_of(const Graph *g)
{
    Dtype real = opts_dtype(g->opts);
    int all64 = real == Df64;

    return (Policy){ real, all64 ? Df64 : Df32, all64 };
}

static Dtype decided(const Policy *policy, Dtype t)
{
    if (t == Dreal)
        return policy->real;
    return policy->all64 && dtypes[t].kind == 'f' ? Df64 : t;
}

static Dtype of_param(const Policy *policy, const Param *param)
{
    if (param->dt == Dreal && param->kind != TKparam)
        return policy->high;
    return decided(policy, param->dt);
}

static Node *leaf(Graph *g, Node *n, const Policy *policy)
{
    if (is_lasting(n)) {
        Param *x = g_param(g, n_name(n));
        n->dt = x->dt = of_param(policy, x);
    } else {
        n->dt = n->op == Oconst && n->dt == Dreal ? policy->high
                                                  : decided(policy, n->dt);
    }
    return n;
}

static Node *cast(Graph *g, Node *n, const Policy *policy)
{
    Dtype t = decided(policy, n->at.cast.to);

    if (n->in[0]->dt == t && n->in[0]->mark)
        return g_cast(g, n->in[0]->in[0], t);
    if (n->in[0]->dt == t)
        return n->in[0];
    n->at.cast.to = t;
    return infer(g, n);
}

/* ---- sums that stay fp32 ------------------------------------------------- */

static int adds(const Node *n)
{
    switch (n->op) {
    case Odot:
    case Ogmm:
    case Ogmm_wgrad:
    case Osum:
    case Omean:
    case Oscatter_add: return 1;
    default: return 0;
    }
}

/* The dtype in which n, an f32() or an accumulator, reads its operand. */
static Dtype taken(const Policy *policy, const Node *n)
{
    return n->op == Ocast    ? decided(policy, n->at.cast.to)
           : n->op == Oaccum ? decided(policy, n->dt)
                             : Dnone;
}

/* Sets the mark of sums that are computed in fp32. */
static void mark_sums(Graph *g, const Policy *policy)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = 0;
        if (taken(policy, n) == Df32 && adds(n->in[0]))
            n->in[0]->mark = 1;
    }
}

/* Is n an fp32 sum of gradients of clones at their experts' ranks? */
static int brings_home(const Node *n)
{
    return n->op == Oscatter_add && n->mark && is_between_clones(n);
}

/* A cast of x to a dtype, at n's position. */
static Node *cast_for(Graph *g, const Node *n, Node *x, Dtype t)
{
    Node *c = g_cast(g, x, t);

    if (c != x)
        c->reg = n->reg;
    return c;
}

/* Casts both operands of a product to its dtype. */
static Node *product(Graph *g, Node *n)
{
    n->dt = Dnone;
    infer(g, n);
    for (int k = 0; k < 2; k++)
        n->in[k] = cast_for(g, n, n->in[k], n->dt);
    return n;
}

static Node *sum_as(Graph *g, const Node *n, Dtype t)
{
    Node *x = cast_for(g, n, n->in[0], t);

    return g_placed(g_red(g, Osum, x, n_axes(n)->v, n_axes(n)->n), n);
}

static Node *mean(Graph *g, const Node *n, Dtype t)
{
    double count = (double)g_elems(n->in[0]) / (double)g_elems(n);
    Node *sum = sum_as(g, n, t);
    Node *c = g_const(g, n->loc, t, 1 / count);

    return g_placed(g_ew(g, Omul, n->loc, sum, c, NULL), n);
}

static Node *rounded(Graph *g, Node *n)
{
    Node *c = g_cast(g, n, Dbf16);

    c->mark = 1;
    return c;
}

/* Sets the dtype of a product or sum; if that is fp32 in place of bf16, adds
 * the cast to bf16. */
static Node *sum(Graph *g, Node *n, const Policy *policy)
{
    n->dt = Dnone;
    if (optab[n->op].cls == EIN)
        product(g, n);
    else
        infer(g, n);
    Dtype t = n->dt = decided(policy, n->dt);
    int wide = t == Dbf16 && n->mark;
    n->mark = 0;
    if (n->op == Omean) {
        n = mean(g, n, t == Dbf16 ? Df32 : t);
        return wide ? rounded(g, n) : g_cast(g, n, t);
    }
    if (!wide)
        return n;
    if (n->op == Osum)
        return rounded(g, sum_as(g, n, Df32));
    n->dt = Df32;
    vec_push(g->arena, g->node, n);
    return rounded(g, n);
}

/* Sets the dtype of an addition that an accumulator reads. */
static Node *term(Graph *g, Node *n)
{
    for (int k = 0; k < 2; k++) {
        Node *x = n->in[k]->mark ? n->in[k]->in[0] : n->in[k];
        n->in[k] = g_cast(g, x, Df32);
    }
    n->dt = Dnone;
    return infer(g, n);
}

/* ---- one node ------------------------------------------------------------ */

/* Casts the integers of a real function to fp64 under fp64 precision. */
static Node *of_reals(Graph *g, Node *n)
{
    for (int k = 0; k < n->nin; k++)
        n->in[k] = cast_for(g, n, n->in[k], Df64);
    return infer(g, n);
}

typedef struct Decide {
    Policy p;
    Table *done;
    char *terms; /* by id: additions that accumulators read; null: none */
} Decide;

static Node *decide(Graph *g, Node *n, void *ctx);

/* Visits an attention's body once: forward and backward share it. */
static void inside(Graph *body, Decide *d)
{
    void **seen = table_at(d->done, KEYP(body));
    char *terms = d->terms;

    if (*seen)
        return;
    *seen = body;
    d->terms = NULL;
    mark_sums(body, &d->p);
    rewrite(body, decide, d);
    d->terms = terms;
    g_names(body);
}

/* Parameters of a body get the dtypes of its arguments: with an fp32 argument,
 * real values of the body become fp32. */
static void as_arguments(Graph *g, Node *n)
{
    for (size_t i = 0; i < vec_len(n->body->node); i++) {
        const Node *a = n->body->node[i];
        if (a->op == Oarg)
            n->in[a->at.arg.index] =
                cast_for(g, n, n->in[a->at.arg.index], a->dt);
    }
}

static Node *decide(Graph *g, Node *n, void *ctx)
{
    Decide *d = ctx;
    const Policy *policy = &d->p;

    if (n->body) {
        inside(n->body, d);
        as_arguments(g, n);
    }
    if (d->terms && d->terms[n->id])
        return term(g, n);
    if ((taken(policy, n) == Df32 || brings_home(n)) && n->in[0]->mark)
        n->in[0] = n->in[0]->in[0];
    if (adds(n))
        return sum(g, n, policy);
    switch (n->op) {
    case Ocast: return cast(g, n, policy);
    case Oquantize:
        n->at.quantize.to = decided(policy, n->at.quantize.to);
        break;
    case Oaccum:
    case Opart: n->dt = decided(policy, n->dt); break;
    default: break;
    }
    if (optab[n->op].cls == SRC)
        return leaf(g, n, policy);
    infer(g, n);
    return policy->all64 && n->dt == Df32 ? of_reals(g, n) : n;
}

/* Marks the additions that only n reads; n is such an addition or an
 * accumulator.
 * */
static void find_terms(const Node *n, const int *uses, char *terms)
{
    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        if (n->op == Oadd && adds(x) && uses[x->id] == 1)
            x->mark = 1;
        if (x->op != Oadd || !x->nd || uses[x->id] != 1 || x->dt != Dreal)
            continue;
        terms[x->id] = 1;
        find_terms(x, uses, terms);
    }
}

/* Marks gradients of clones like those of their experts. */
static void mark_clones(Graph *g, const int *uses)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (brings_home(n) && adds(n->in[0]) && uses[n->in[0]->id] == 1)
            n->in[0]->mark = 1;
    }
}

/* Marks additions that accumulators read, directly or through buckets. */
static void find_all_terms(Graph *g, Decide *decide)
{
    g_renumber(g);
    int *uses = use_counts(g, g->arena);
    decide->terms = alloc(g->arena, vec_len(g->node) + 1);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i], *x = n->nin ? n->in[0] : NULL;
        if (n->op != Oaccum || n->at.accum.op != Radd)
            continue;
        find_terms(n, uses, decide->terms);
        for (int k = 0; x->op == Opack && k < x->nin; k++)
            if (x->in[k]->op == Ocast)
                find_terms(x->in[k], uses, decide->terms);
    }
    mark_clones(g, uses);
}

void pass_precision(Graph *g)
{
    Decide d = { policy_of(g), table_new(g->arena), NULL };

    mark_sums(g, &d.p);
    if (d.p.real == Dbf16)
        find_all_terms(g, &d);
    rewrite(g, decide, &d);
}
