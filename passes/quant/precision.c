/* precision.c: decide every dtype. `real` becomes the policy's: fp32, bf16, or
 * fp64 for tests, where f32() and bf16() are the identity. Under bf16
 * constants, states, masters and accumulators stay fp32. Means become sums and
 * products here, after `step` has told means and sums apart.
 *
 * One value, one rounding. What f32() or an fp32 accumulator takes from a
 * product or sum directly is fp32, and who takes the bf16 value casts it:
 *
 *     %z = dot %x %w       bf16          %z = dot %x %w       f32
 *     %a = cast %z to=f32         =>     %b = cast %z to=bf16
 *     %y = silu %z         bf16          %y = silu %b         bf16
 *
 * So is a sum of several that an accumulator takes. A cast of a real value to
 * `real` forbids it: f32() of that is of the rounded value, whoever else takes
 * the fp32 one.
 *
 * From here on every node is rounded to its dtype wherever it is made: what
 * later passes keep, make again or fuse changes no value but by the order of a
 * sum, which follows from what its kernel reads. */
#include "placement.h"

typedef struct Policy {
    Dtype real, high; /* of real values; of explicit fp32 values */
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

/* ---- what is not rounded ------------------------------------------------- */

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

/* The dtype in which n takes its operand: of f32() and accumulators. */
static Dtype taken(const Policy *policy, const Node *n)
{
    return n->op == Ocast    ? decided(policy, n->at.cast.to)
           : n->op == Oaccum ? decided(policy, n->dt)
                             : Dnone;
}

/* mark: the sum is fp32. */
static void mark_sums(Graph *g, const Policy *policy)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = 0;
        if (taken(policy, n) == Df32 && adds(n->in[0]))
            n->in[0]->mark = 1;
    }
}

/* An fp32 sum that adds gradients of clones where their experts' are. */
static int brings_home(const Node *n)
{
    return n->op == Oscatter_add && n->mark && is_between_clones(n);
}

/* x in a dtype, where n stands. */
static Node *cast_for(Graph *g, const Node *n, Node *x, Dtype t)
{
    Node *c = g_cast(g, x, t);

    if (c != x)
        c->reg = n->reg;
    return c;
}

/* Both operands of a product have its dtype. */
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

/* A product or sum; if it is fp32 in place of bf16, its rounding. */
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

/* A sum on its way into an accumulator. */
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

/* A function of integers, which would be fp32, as one of fp64 values. */
static Node *of_reals(Graph *g, Node *n)
{
    for (int k = 0; k < n->nin; k++)
        n->in[k] = cast_for(g, n, n->in[k], Df64);
    return infer(g, n);
}

typedef struct Decide {
    Policy p;
    Table *done;
    char *terms; /* by id: such sums; null: there are none */
} Decide;

static Node *decide(Graph *g, Node *n, void *ctx);

/* An attention's body, once: forward and backward share it. */
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

/* What a body takes has its argument's dtype: with an fp32 operand what was
 * real is fp32. */
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

/* The sums that n reads, which is one or takes one whole, and nobody else. */
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

/* Gradients of clones as those of their experts. */
static void mark_clones(Graph *g, const int *uses)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (brings_home(n) && adds(n->in[0]) && uses[n->in[0]->id] == 1)
            n->in[0]->mark = 1;
    }
}

/* Sums that accumulators add, or buckets of gradients that accumulators do. */
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
