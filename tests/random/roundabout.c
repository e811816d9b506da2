/* roundabout.c: the same function, written in a longer way. Some reals of a
 * traced graph go through ops that together do nothing, some products and means
 * become what they mean. Rounding apart nothing changes, gradients neither. */
#include <string.h>

#include "random.h"

typedef struct Longer {
    Graph *g;
    uint64_t seed;
    int axes; /* made so far */
} Longer;

static int64_t pick(Longer *l, int64_t n)
{
    return (int64_t)(ref_uniform(&l->seed) * (double)n);
}

static Node *node(Longer *l, Op op, const Node *like, int nin, Node *const *in)
{
    Node *n = g_node(l->g, op, like->loc, nin, in);

    n->scope = like->scope;
    return n;
}

static Node *long_ew(Longer *l, Op op, const Node *like, Node *a, Node *b)
{
    Node *in[2] = { a, b };

    return infer(l->g, node(l, op, like, b ? 2 : 1, in));
}

static Node *long_number(Longer *l, const Node *like, double v)
{
    Node *n = node(l, Oconst, like, 0, NULL);

    n->dt = like->dt;
    n->at.constant.value = v;
    return infer(l->g, n);
}

static Axis *fresh(Longer *l, int64_t n, Axis *root)
{
    Axis *a = g_axis(l->g, intern(strf(l->g->arena, "longer%d", ++l->axes)));

    a->n = n;
    if (root)
        a->root = root->root;
    return a;
}

/* An axis of x that is not micro; null: it has none. */
static Axis *some_axis(Longer *l, const Node *x, int64_t *n)
{
    for (int tries = 0; x->nd && tries < 8; tries++) {
        Dim d = x->dim[pick(l, x->nd)];
        *n = d.n;
        if (strcmp(d.a->name, "micro"))
            return d.a;
    }
    return NULL;
}

/* ---- ops that do nothing ------------------------------------------------- */

static Node *rename_one(Longer *l, Node *x, Axis *from, Axis *to)
{
    Node *r = node(l, Orename, x, 1, &x);

    r->at.rename.from = g_axes(l->g, &from, 1);
    r->at.rename.to = g_axes(l->g, &to, 1);
    return infer(l->g, r);
}

static Node *renamed_and_back(Longer *l, Node *x)
{
    int64_t n;
    Axis *a = some_axis(l, x, &n);

    if (!a)
        return x;
    Axis *b = fresh(l, n, a);
    return rename_one(l, rename_one(l, x, a, b), b, a);
}

static Node *cut(Longer *l, Node *x, Axis *a, int64_t from, int64_t n)
{
    Node *s = node(l, Oslice, x, 1, &x);

    s->at.slice = (struct slice_attrs){ a, from, n };
    return infer(l->g, s);
}

static Node *in_two_halves(Longer *l, Node *x)
{
    int64_t n;
    Axis *a = some_axis(l, x, &n);

    if (!a || n < 2)
        return x;
    Node *in[2] = { cut(l, x, a, 0, n / 2), cut(l, x, a, n / 2, n - n / 2) };
    Node *c = node(l, Oconcat, x, 2, in);
    c->at.concat.axis = a;
    return infer(l->g, c);
}

static Node *split_and_merged(Longer *l, Node *x)
{
    int64_t n, k = 2;
    Axis *a = some_axis(l, x, &n);

    while (a && k < n && n % k)
        k++;
    if (!a || k >= n)
        return x;
    Axis *to[2] = { fresh(l, k, NULL), fresh(l, n / k, NULL) };
    Node *s = node(l, Osplit, x, 1, &x);
    s->at.split.axis = a;
    s->at.split.into = g_axes(l->g, to, 2);
    x = infer(l->g, s);
    Node *m = node(l, Omerge, x, 1, &x);
    Axis *whole = fresh(l, n, NULL);
    m->at.merge.axes = g_axes(l->g, to, 2);
    m->at.merge.new = whole;
    return rename_one(l, infer(l->g, m), whole, a);
}

static Node *around_and_back(Longer *l, Node *x)
{
    int64_t n;
    Axis *a = some_axis(l, x, &n);

    for (int k = 0; a && k < 2; k++) {
        Node *s = node(l, Oshift, x, 1, &x);
        s->at.shift = (struct shift_attrs){ a, k ? -1 : 1, 1 };
        x = infer(l->g, s);
    }
    return x;
}

static Node *gathered_in_order(Longer *l, Node *x)
{
    int64_t n;
    Axis *a = some_axis(l, x, &n);

    if (!a)
        return x;
    Axis *order = fresh(l, n, NULL); /* no index has the axis it indexes */
    Node *i = node(l, Oiota, x, 0, NULL);
    i->at.iota.axis = order;
    i->dim[i->nd++] = (Dim){ order, n };
    infer(l->g, i);
    Node *in[2] = { x, i }, *r = node(l, Ogather, x, 2, in);
    r->at.gather.axis = a;
    return rename_one(l, infer(l->g, r), order, a);
}

static Node *plus_zero(Longer *l, Node *x)
{
    return long_ew(l, Oadd, x, x, long_number(l, x, 0));
}

static Node *times_one(Longer *l, Node *x)
{
    return long_ew(l, Omul, x, long_number(l, x, 1), x);
}

static Node *negated_twice(Longer *l, Node *x)
{
    return long_ew(l, Oneg, x, long_ew(l, Oneg, x, x, NULL), NULL);
}

static Node *half_of_both(Longer *l, Node *x)
{
    return long_ew(l, Omul, x, long_ew(l, Oadd, x, x, x),
                   long_number(l, x, 0.5));
}

static Node *chosen_either_way(Longer *l, Node *x)
{
    Node *c = long_ew(l, Olt, x, x, long_number(l, x, 0.0137));
    Node *in[3] = { c, x, x };

    return infer(l->g, node(l, Owhere, x, 3, in));
}

/* ---- ops by what they mean ----------------------------------------------- */

static Node *as_product_and_sum(Longer *l, Node *x)
{
    if (x->op != Odot || x->in[0]->op == Opick || x->in[1]->op == Opick)
        return x;
    Node *p = long_ew(l, Omul, x, x->in[0], x->in[1]);
    if (p->nd > MAXD - 2 || g_elems(p) > 20000)
        return x;
    Node *s = node(l, Osum, x, 1, &p);
    s->at.sum.axes = x->at.dot.axes;
    return infer(l->g, s);
}

/* Over batch an update's mean counts micro-batches too, its sum does not. */
static Node *as_sum(Longer *l, Node *x)
{
    const Axes *ax = &x->at.mean.axes;

    if (x->op != Omean)
        return x;
    for (int i = 0; i < ax->n; i++)
        if (ax->v[i]->role == ROLEbatch || ax->v[i]->nfactor)
            return x;
    Node *s = node(l, Osum, x, 1, x->in);
    s->at.sum.axes = *ax;
    infer(l->g, s);
    double n = (double)g_elems(x->in[0]) / (double)g_elems(x);
    return long_ew(l, Odiv, x, s, long_number(l, x, n));
}

static Node *again(Longer *l, Node *x)
{
    if (optab[x->op].cls != EW || x->op == Odropout || x->nin > 2)
        return x;
    Node *twin = infer(l->g, g_copyof(l->g, x, x->in));
    return long_ew(l, Omul, x, long_ew(l, Oadd, x, x, twin),
                   long_number(l, x, 0.5));
}

static Node *(*const ways_round[])(Longer *l, Node *x) = {
    renamed_and_back,   in_two_halves,
    split_and_merged,   around_and_back,
    gathered_in_order,  plus_zero,
    times_one,          negated_twice,
    half_of_both,       again,
    chosen_either_way,  as_sum,
    as_product_and_sum, as_product_and_sum,
};

/* Real values; not the leaf of a loss, whose denominator may read inputs only,
 * nor square scores with infinities, of which 0 * x would make no number. */
static int may_go_round(const Node *x)
{
    return dtypes[x->dt].kind == 'f' && optab[x->op].cls != SINK &&
           x->op != Opick && x->op != Oconst && x->nd < MAXD - 1;
}

void roundabout(Graph *g, uint64_t seed)
{
    Node **old = g->node;
    Longer l = { g, seed, 0 };

    g_renumber(g);
    size_t n = vec_len(old);
    Node **to = alloc(g->arena, (n + 1) * sizeof *to);
    g->node = NULL;
    for (size_t i = 0; i < n; i++) {
        Node *x = old[i];
        for (int k = 0; k < x->nin; k++)
            if (x->op != Oupdate || k > 0)
                x->in[k] = to[x->in[k]->id];
        size_t id = (size_t)x->id;
        if (x->op == Omerge) /* the operand's axes may come in another order */
            infer(g, x);
        vec_push(g->arena, g->node, x);
        to[id] = x;
        if (may_go_round(x) && pick(&l, 3) == 0)
            to[id] =
                ways_round[pick(&l, sizeof ways_round / sizeof *ways_round)](&l,
                                                                             x);
    }
    g_tidy(g);
    g_names(g);
}
