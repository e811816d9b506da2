/* grad.c: append the backward graph. Reverse mode over the nodes that lead from
 * a parameter to a loss; one rule per op, most of them expressions of ops.def:
 *
 *     %y = silu %a                 %d = dsilu %a
 *                                  %da = mul %dy %d
 *
 * A rule gives the gradient with the axes of the result; axes the operand lacks
 * are summed; the dtype becomes that in which the operand is computed with.
 * What is rounded has the gradient of the result (straight through). Seeds are
 * weight / den, so that the step's loss is sum of weight * sum(t) / sum(den)
 * over micro-batches and known before the first backward. */
#include "training.h"

typedef struct Back {
    Graph *g;
    Node **dy;  /* by forward id: gradient so far, or null */
    char *need; /* by forward id: leads from a parameter */
} Back;

static void add_to(Back *back, Node *x, Node *d)
{
    if (!d || !back->need[x->id])
        return;
    d = g_cast(back->g, g_broadcast(back->g, g_sumto(back->g, d, x), x),
               arithmetic_dtype(x->dt));
    Node **slot = &back->dy[x->id];
    *slot = *slot ? g_ew(back->g, Oadd, x->loc, *slot, d, NULL) : d;
}

/* ---- gradients that rows of ops.def say ---------------------------------- */

/* The value of a gradient's expression for n. */
static Node *built(Graph *g, const ScalarExpr *scalar, Node *n, Node *dy)
{
    Node *in[SCALARIN] = { 0 };

    switch (scalar->kind) {
    case SCoperand: return n->in[scalar->operand];
    case SCresult: return n;
    case SCgrad: return dy;
    case SCnumber: return g_const(g, n->loc, dy->dt, scalar->number);
    default: break;
    }
    if (scalar->op == NOP)
        die("gradient of %s: %s is of kernels", optab[n->op].name,
            scalar->word->text);
    for (int i = 0; i < scalar->n; i++)
        in[i] = built(g, scalar->in[i], n, dy);
    return g_ew(g, scalar->op, n->loc, in[0], in[1], in[2]);
}

static void by_expression(Back *back, Node *n, Node *dy)
{
    for (int k = 0; k < n->nin; k++) {
        const ScalarExpr *e = optab[n->op].grad[k];
        if (e && back->need[n->in[k]->id])
            add_to(back, n->in[k], built(back->g, e, n, dy));
    }
}

/* ---- rules with code, g_<op> --------------------------------------------- */

static Node *with_attrs(Graph *g, Op op, const Node *n, int nin,
                        Node *const *in)
{
    Node *r = g_node(g, op, n->loc, nin, in);

    attrs_like(r, n);
    return r;
}

static Node *shaped_like(Graph *g, Node *r, const Node *x)
{
    r->nd = x->nd;
    memcpy(r->dim, x->dim, sizeof r->dim);
    return infer(g, r);
}

static Node *product_over(Graph *g, const Node *n, Node *dy, Node *other,
                          const Node *x)
{
    Axis *ax[MAXD];
    int k = axes_lacking(x, dy, ax);

    if (k == 0)
        return g_ew(g, Omul, n->loc, dy, other, NULL);
    return g_dot(g, n->loc, dy, other, ax, k, x);
}

static void g_dots(Back *back, Node *n, Node *dy)
{
    for (int k = 0; k < 2; k++)
        if (back->need[n->in[k]->id]) {
            Node *other = n->in[!k];
            Node *d = g_cast(back->g, dy, other->dt);
            add_to(back, n->in[k],
                   product_over(back->g, n, d, other, n->in[k]));
        }
}

static void g_cast_(Back *back, Node *n, Node *dy)
{
    add_to(back, n->in[0], g_cast(back->g, dy, n->in[0]->dt));
}

/* Two numbers of an element have no gradient of their own, what they were has.
 */
static void g_dequantize(Back *back, Node *n, Node *dy)
{
    Node *x = n->in[0];

    if (n->at.dequantize.pairs && x->op != Oquantize)
        err(n->loc, "dequantize: no gradient leads through packed numbers that "
                    "were moved; move them once they are dequantized");
    add_to(back, n->at.dequantize.pairs ? x->in[0] : x, dy);
}

static void g_broadcast_(Back *back, Node *n, Node *dy)
{
    add_to(back, n->in[0], dy);
}

static void g_dropout(Back *back, Node *n, Node *dy)
{
    if (!n->at.dropout.drawn)
        add_to(back, n->in[0],
               infer(back->g, with_attrs(back->g, Odropout, n, 1, &dy)));
}

/* Ties share the gradient evenly. */
static void g_extreme(Back *back, Node *n, Node *dy)
{
    Graph *g = back->g;
    Node *x = n->in[0];
    Node *hit = g_cast(g, g_ew(g, Oeq, n->loc, x, n, NULL), dy->dt);
    Node *count = g_red(g, Osum, hit, n_axes(n)->v, n_axes(n)->n);
    Node *share = g_ew(g, Odiv, n->loc, dy, count, NULL);

    add_to(back, x, g_ew(g, Omul, n->loc, hit, share, NULL));
}

static void g_gmm(Back *back, Node *n, Node *dy)
{
    Node *in[3] = { dy, n->in[1], n->in[2] }, *r;
    Axis *ax[MAXD];
    int k = axes_lacking(n->in[0], dy, ax);

    if (back->need[n->in[0]->id]) {
        in[0] = g_cast(back->g, dy, n->in[1]->dt);
        r = g_node(back->g, Ogmm, n->loc, 3, in);
        r->at.gmm.axes = g_axes(back->g, ax, k);
        add_to(back, n->in[0], infer(back->g, r));
    }
    if (back->need[n->in[1]->id]) {
        Node *w = n->in[1];
        in[0] = n->in[0];
        in[1] = g_cast(back->g, dy, in[0]->dt);
        r = g_node(back->g, Ogmm_wgrad, n->loc, 3, in);
        r->at.gmm_wgrad.experts = w->dim[dim_of(w, n->in[2]->at.route.axis)].n;
        add_to(back, w, shaped_like(back->g, r, w));
    }
}

static void g_mean(Back *back, Node *n, Node *dy)
{
    double count = (double)g_elems(n->in[0]) / (double)g_elems(n);
    Node *c = g_const(back->g, n->loc, dy->dt, 1 / count);

    add_to(back, n->in[0], g_ew(back->g, Omul, n->loc, dy, c, NULL));
}

static void g_cumsum(Back *back, Node *n, Node *dy)
{
    Graph *g = back->g;
    Node *before = infer(g, with_attrs(g, Ocumsum, n, 1, &dy));
    Node *rest = g_ew(g, Osub, n->loc,
                      g_red(g, Osum, dy, &n->at.cumsum.axis, 1), before, NULL);

    add_to(back, n->in[0], g_ew(g, Oadd, n->loc, rest, dy, NULL));
}

static void g_view(Back *b, Node *n, Node *dy)
{
    static const Op back[] = {
        [Orename] = Orename, [Osplit] = Omerge, [Omerge] = Osplit
    };
    Node *r = g_node(b->g, back[n->op], n->loc, 1, &dy);

    if (n->op == Orename) {
        r->at.rename.from = n->at.rename.to;
        r->at.rename.to = n->at.rename.from;
    } else if (n->op == Osplit) {
        r->at.merge.axes = n->at.split.into;
        r->at.merge.new = n->at.split.axis;
    } else {
        r->at.split.axis = n->at.merge.new;
        r->at.split.into = n->at.merge.axes;
        shaped_like(b->g, r, n->in[0]); /* the sizes to split into */
    }
    add_to(b, n->in[0], infer(b->g, r));
}

static void g_window(Back *back, Node *n, Node *dy)
{
    Node *r = with_attrs(back->g, n->op == Oslice ? Opad : Oslice, n, 1, &dy);
    int64_t len = n->in[0]->dim[dim_of(n->in[0], n_axis(n))].n;

    if (r->op == Opad)
        r->at.pad.len = len;
    else
        r->at.slice.len = len;
    add_to(back, n->in[0], infer(back->g, r));
}

static void g_concat(Back *back, Node *n, Node *dy)
{
    int64_t at = 0;

    for (int k = 0; k < n->nin; k++) {
        Node *r = with_attrs(back->g, Oslice, n, 1, &dy);
        r->at.slice.start = at;
        r->at.slice.len = n->in[k]->dim[dim_of(n->in[k], n->at.concat.axis)].n;
        at += r->at.slice.len;
        add_to(back, n->in[k], infer(back->g, r));
    }
}

static void g_shift(Back *back, Node *n, Node *dy)
{
    Node *r = with_attrs(back->g, Oshift, n, 1, &dy);

    r->at.shift.by = -n->at.shift.by;
    add_to(back, n->in[0], infer(back->g, r));
}

static void g_permute(Back *back, Node *n, Node *dy)
{
    add_to(back, n->in[0], dy);
}

static void g_gather(Back *back, Node *n, Node *dy)
{
    Node *in[2] = { dy, n->in[1] };
    Node *r = with_attrs(back->g, Oscatter_add, n, 2, in);

    add_to(back, n->in[0], shaped_like(back->g, r, n->in[0]));
}

static void g_scatter_add(Back *back, Node *n, Node *dy)
{
    Node *in[2] = { dy, n->in[1] };

    add_to(back, n->in[0],
           infer(back->g, with_attrs(back->g, Ogather, n, 2, in)));
}

static void g_dispatch(Back *back, Node *n, Node *dy)
{
    Node *in[2] = { dy, n->in[1] };
    Op op = n->op == Odispatch ? Ocombine : Odispatch;

    add_to(back, n->in[0], infer(back->g, g_node(back->g, op, n->loc, 2, in)));
}

/* The scores' gradient is p (dout v - sum of out dout + dlse), where p are the
 * weights: dlse is subtracted from the sum. */
static Node *row_sums(Graph *g, Node *out, Node *dout, Node *dlse)
{
    Node *x = g_cast(g, out, dlse->dt), *y = g_cast(g, dout, dlse->dt);
    Node *sum = g_sumto(g, g_ew(g, Omul, out->loc, x, y, NULL), dlse);

    return g_ew(g, Osub, out->loc, sum, dlse, NULL);
}

/* Part i of attention n; null: it has none. */
static Node *part_at(const Graph *g, const Node *n, int64_t i)
{
    for (size_t k = 0; k < vec_len(g->node); k++)
        if (g->node[k]->op == Opart && g->node[k]->in[0] == n &&
            g->node[k]->at.part.index == i)
            return g->node[k];
    return NULL;
}

/* The gradients of both parts are complete here; a part that nothing reads is
 * made. */
static void g_attn(Back *back, Node *n, Node *unused)
{
    Graph *g = back->g;
    const Node *result = n->body->node[vec_len(n->body->node) - 1];
    Node *in[MAXIN + 3], *r, *out = part_at(g, n, 0), *lse = part_at(g, n, 1);
    Node *dlse = lse ? back->dy[lse->id] : NULL;
    Node *dy = out ? back->dy[out->id] : NULL;

    (void)unused;
    out = out ? out : new_part(g, n, 0, result->dt, result);
    dy = dy ? dy : g_broadcast(g, g_const(g, n->loc, out->dt, 0), out);
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    in[n->nin] = dlse ? row_sums(g, out, dy, dlse) : out;
    in[n->nin + 1] = lse ? lse : logsumexp_part(g, n, out);
    in[n->nin + 2] = dy;
    r = with_attrs(g, Oattn_bwd, n, n->nin + 3, in);
    r->body = n->body;
    r->at.attn.given = dlse != NULL;
    infer(g, r);
    for (int k = 0; k < n->nin; k++)
        if (passes_gradient(n, k) && back->need[n->in[k]->id])
            add_to(back, n->in[k], new_part(g, r, k, n->in[k]->dt, n->in[k]));
}

static void g_part(Back *back, Node *n, Node *dy)
{
    if (n->in[0]->op == Oattn)
        back->dy[n->in[0]->id] = dy;
}

typedef void Rule(Back *b, Node *n, Node *dy);

static Rule *const rules[NNAMED] = {
    [Odot] = g_dots,
    [Ocast] = g_cast_,
    [Obroadcast] = g_broadcast_,
    [Oquantize] = g_broadcast_,
    [Odequantize] = g_dequantize,
    [Osum] = g_broadcast_,
    [Omean] = g_mean,
    [Odropout] = g_dropout,
    [Omax] = g_extreme,
    [Omin] = g_extreme,
    [Ogmm] = g_gmm,
    [Ocumsum] = g_cumsum,
    [Orename] = g_view,
    [Osplit] = g_view,
    [Omerge] = g_view,
    [Opermute] = g_permute,
    [Oslice] = g_window,
    [Opad] = g_window,
    [Oconcat] = g_concat,
    [Oshift] = g_shift,
    [Ogather] = g_gather,
    [Oscatter_add] = g_scatter_add,
    [Odispatch] = g_dispatch,
    [Ocombine] = g_dispatch,
    [Opart] = g_part,
    [Oattn] = g_attn,
};

static Rule *rule(Op op)
{
    return op < NNAMED ? rules[op] : NULL;
}

/* ---- the walk ------------------------------------------------------------ */

static void find_needed(Back *back, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Node *n = back->g->node[i];
        back->need[i] = (char)n->mark;
        for (int k = 0; k < n->nin; k++)
            if (passes_gradient(n, k))
                back->need[i] |= back->need[n->in[k]->id];
    }
}

/* Everything a rule built belongs to the backward of n. */
static void sign(Graph *g, size_t from, const Node *n)
{
    const Scope *scope = g_backward(g, n->scope);

    for (size_t i = from; i < vec_len(g->node); i++) {
        g->node[i]->scope = scope;
        g->node[i]->reg = REGbody;
        if (!g->node[i]->loc)
            g->node[i]->loc = n->loc;
    }
}

static void step_back(Back *back, Node *n, Node *dy)
{
    size_t from = vec_len(back->g->node);

    if (rule(n->op))
        rule(n->op)(back, n, dy);
    else if (optab[n->op].gradkind == 'E')
        by_expression(back, n, dy);
    sign(back->g, from, n);
}

Node **backward(Graph *g, Node **seed, Node **dseed, int n)
{
    size_t count;
    Back back = { .g = g };

    g_renumber(g);
    count = vec_len(g->node);
    back.dy = alloc(g->arena, (count + 1) * sizeof *back.dy);
    back.need = alloc(g->arena, count + 1);
    find_needed(&back, count);
    for (int i = 0; i < n; i++)
        add_to(&back, seed[i], dseed[i]);
    for (size_t i = count; i-- > 0;)
        if (back.dy[i] && back.need[i])
            step_back(&back, g->node[i], back.dy[i]);
    return back.dy;
}

/* ---- the pass ------------------------------------------------------------ */

/* A denominator's value as computed in den: copies, since the body or pre may
 * need the originals. done: a node -> its copy. */
static Node *in_den(Graph *g, Node *n, Table *done)
{
    void **to = table_at(done, KEYP(n));
    Node *in[MAXIN], *c;

    if (n->reg == REGden || any_region(n) || *to)
        return *to ? *to : n;
    for (int k = 0; k < n->nin; k++)
        in[k] = in_den(g, n->in[k], done);
    c = g_copyof(g, n, in);
    c->reg = REGden;
    return *table_at(done, KEYP(n)) = infer(g, c);
}

/* The sum of a loss's denominators over the step, a scalar known before the
 * first body. */
static Node *denominator(Graph *g, Node *loss)
{
    Node *den, *acc;

    if (loss->nin < 2)
        return g_const(g, loss->loc, Df32, micro_batches(g));
    den = g_per_micro(g, in_den(g, loss->in[1], table_new(g->arena)));
    den->reg = REGden;
    acc = g_accum(g, g_total(g, g_cast(g, den, Df32)), Radd);
    acc->reg = REGden;
    return acc;
}

static Node *seed_of(Graph *g, Node *loss)
{
    Node *den = denominator(g, loss);
    if (den->op == Oconst)
        return g_const(g, loss->loc, Df32,
                       loss->at.loss.weight / den->at.constant.value);
    Node *w = g_const(g, loss->loc, Df32, loss->at.loss.weight);
    Node *s = g_ew(g, Odiv, loss->loc, w, den, NULL);

    s->reg = REGpre;
    return s;
}

static void accumulate(Graph *g, Node *param, Node *d)
{
    Node *a = g_accum(g, d, Radd);

    a->scope = g_partscope(g, PARTgrad, "grad");
    a->of = param->at.param.path;
    a->name = intern(strf(g->arena, "grad.%s", param->at.param.path));
}

/* Gradients are needed of parameters that are not frozen. */
static void mark_params(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = n->op == Oparam && !is_frozen(g, n->at.param.path);
    }
}

void pass_grad(Graph *g)
{
    Node **seed = NULL, **dseed = NULL;
    size_t count = vec_len(g->node);

    for (size_t i = 0; i < count; i++) {
        Node *x = g->node[i];
        if (x->op != Oloss)
            continue;
        vec_push(g->arena, seed, g_per_micro(g, x->in[0]));
        vec_push(g->arena, dseed, seed_of(g, x));
    }
    mark_params(g);
    count = vec_len(g->node);
    Node **dy = backward(g, seed, dseed, (int)vec_len(seed));
    for (size_t i = 0; i < count; i++)
        if (g->node[i]->op == Oparam && dy[i])
            accumulate(g, g->node[i], dy[i]);
        else if (g->node[i]->op == Oparam)
            why(g, g->node[i], "%s: it is not trained",
                is_frozen(g, g->node[i]->at.param.path)
                    ? "frozen"
                    : "no loss depends on it");
}
