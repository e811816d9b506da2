/* logits_chunks.c: a head in slices of tokens. Where a product's result
 * (logits) goes only into what treats every token by itself (a cross entropy)
 * and into the gradient of the product, each slice's product, loss and gradient
 * stand together, so that the logits of one slice live at a time:
 *
 *     %y  = dot %x %w        hidden       %y0  = dot %x0 %w
 *     %l  = ... %y                        %l0  = ... %y0
 *     ..                                  %g0  = ... %y0
 *     %g  = ... %y                        %dx0 = dot %g0 %w
 *     %dx = dot %g %w        vocab        %dw0 = dot %g0 %x0
 *     %dw = dot %g %x        tokens  =>   %y1  = dot %x1 %w
 *                                         ..
 *                                         %l   = concat %l0 %l1
 *                                         %dx  = concat %dx0 %dx1
 *                                         %dw  = add %dw0 %dw1   (accumulate.c)
 *
 * %x0 is a slice of %x along an axis of tokens, the slowest that divides. Where
 * ranks hold parts of that axis it is split first, into as many parts as they
 * cut it and the rest, and each part is sliced. Of a pipeline's stage the
 * gradient moves into the call that runs forward, where the head then ends.
 * What is a head, where it is cut and into how many: logits_sites.c. */
#include <string.h>

#include "activations.h"

/* ---- operands ------------------------------------------------------------ */

static Node *as(const Slices *s, Node *n, const Node *like)
{
    n->reg = s->head->reg;
    n->call = s->head->call;
    n->scope = like->scope;
    n->dt = like->dt;
    return n;
}

/* x's types, where they say axis `a` now `b`. */
static void take_types(Node *n, const Node *x, const Axis *a, Axis *b)
{
    memcpy(n->sh, x->sh, sizeof n->sh);
    for (int t = 0; t < MAXATOM; t++)
        if (n->sh[t].k == S && n->sh[t].a == a)
            n->sh[t].a = b;
}

/* What stands for the axis where it is in parts. */
static Axes both(const Slices *s)
{
    return g_axes(s->graph, (Axis *[]){ s->part, s->rest }, 2);
}

/* x's dims, the axis as `len` elements: of itself, or of each part. */
static void take_dims(const Slices *s, Node *n, const Node *x, int64_t len)
{
    n->nd = 0;
    for (int d = 0; d < x->nd; d++) {
        Dim dim = x->dim[d];
        if (dim.a == s->axis && s->part)
            n->dim[n->nd++] = (Dim){ s->part, s->parts };
        if (dim.a == s->axis)
            dim = (Dim){ s->rest, len };
        n->dim[n->nd++] = dim;
    }
}

static Node *in_parts(const Slices *s, Node *x)
{
    if (!s->part)
        return x;
    Node *n = as(s, g_node(s->graph, Osplit, x->loc, 1, &x), x);
    n->at.split.axis = s->axis;
    n->at.split.into = both(s);
    take_dims(s, n, x, s->len * s->count);
    take_types(n, x, s->axis, s->part);
    return infer(s->graph, n);
}

/* In the call of the head, what another call makes of what is there. */
static Node *early(Slices *s, Node *n)
{
    Node *in[MAXIN];

    if (s->early[n->id])
        return s->early[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = early(s, n->in[k]);
    Node *c = g_copyof(s->graph, n, in);
    c->call = s->head->call;
    return s->early[n->id] = c;
}

static Node *slice(Slices *s, Node *x, int k)
{
    Node ***v = &s->piece[x->id];

    if (!has_dim(x, s->axis))
        return early(s, x);
    *v = *v ? *v : alloc(s->arena, (size_t)s->count * sizeof **v);
    if ((*v)[k])
        return (*v)[k];
    Node *all = in_parts(s, early(s, x));
    Node *n = as(s, g_node(s->graph, Oslice, x->loc, 1, &all), all);
    n->at.slice = (struct slice_attrs){ s->rest, k * s->len, s->len };
    take_dims(s, n, x, s->len);
    take_types(n, x, s->axis, s->part ? s->part : s->axis);
    return (*v)[k] = infer(s->graph, n);
}

/* ---- slices -------------------------------------------------------------- */

/* The axis in attributes: a sum over it is one over what it is split into,
 * ranks exchange parts. */
static void take_axes(const Slices *s, Node *c, int sums)
{
    Axis *ax[MAXD + 1];
    int k = 0;

    if (!s->part)
        return;
    attrs_replace(s->graph, c, s->axis, s->part);
    if (!sums)
        return;
    for (; k < n_axes(c)->n; k++)
        ax[k] = n_axes(c)->v[k];
    ax[k++] = s->rest;
    *n_axes(c) = g_axes(s->graph, ax, k);
}

static Node *copy(Slices *s, Node *n, int k)
{
    Node *in[MAXIN];
    int sums = s->is[n->id] == SLICEdw;

    for (int i = 0; i < n->nin; i++)
        in[i] = s->is[n->in[i]->id] ? s->copy[n->in[i]->id][k]
                                    : slice(s, n->in[i], k);
    Node *c = g_copyof(s->graph, n, in);
    c->call = s->head->call;
    take_axes(s, c, sums);
    if (sums && c->dt == Dbf16)
        c->dt = Df32;
    take_dims(s, c, n, s->len);
    take_types(c, n, s->axis, s->part ? s->part : s->axis);
    if (optab[n->op].cls == EW || optab[n->op].cls == RED)
        c->piece = s->id + k;
    return infer(s->graph, c);
}

static void make_slice(Slices *s, size_t count, int k)
{
    for (size_t i = 0; i < count; i++) {
        if (!s->is[i])
            continue;
        if (!s->copy[i])
            s->copy[i] = alloc(s->arena, (size_t)s->count * sizeof *s->copy[i]);
        s->copy[i][k] = copy(s, s->graph->node[i], k);
    }
}

/* ---- together again ------------------------------------------------------ */

static Node *sum(Slices *s, const Node *n)
{
    Node **v = s->copy[n->id], *r = v[0];

    for (int k = 1; k < s->count; k++) {
        r = as(s, g_ew(s->graph, Oadd, n->loc, r, v[k], NULL), v[0]);
        memcpy(r->sh, n->sh, sizeof r->sh);
    }
    if (r->dt != n->dt) {
        r = as(s, g_cast(s->graph, r, n->dt), v[0]);
        r->dt = n->dt;
        memcpy(r->sh, n->sh, sizeof r->sh);
    }
    return r;
}

/* Some slices of n, of len elements in all. */
static Node *row(const Slices *s, const Node *n, Node *const *v, int count,
                 int64_t len)
{
    Node *r = as(s, g_node(s->graph, Oconcat, n->loc, count, v), v[0]);

    r->at.concat.axis = s->rest;
    take_dims(s, r, n, len);
    take_types(r, n, s->axis, s->part ? s->part : s->axis);
    return infer(s->graph, r);
}

/* As many at a time as an op may read. */
static Node *gathered(Slices *s, const Node *n)
{
    Node **v = s->copy[n->id], *some[MAXIN];
    int each = (s->count + MAXIN - 1) / MAXIN, k = 0;

    for (int at = 0; at < s->count; at += each) {
        int here = s->count - at < each ? s->count - at : each;
        some[k++] = here == 1 ? v[at] : row(s, n, v + at, here, s->len * here);
    }
    Node *r = row(s, n, some, k, s->len * s->count);
    if (!s->part)
        return r;
    Node *m = as(s, g_node(s->graph, Omerge, n->loc, 1, &r), r);
    m->at.merge.axes = both(s);
    m->at.merge.new = s->axis;
    m->nd = n->nd;
    memcpy(m->dim, n->dim, sizeof m->dim);
    memcpy(m->sh, n->sh, sizeof m->sh);
    return infer(s->graph, m);
}

static Node *whole(Slices *s, Node *n)
{
    Node **r = &s->whole[n->id];

    if (!*r)
        *r = s->is[n->id] == SLICEdw ? sum(s, n) : gathered(s, n);
    return *r;
}

/* What reads a result reads it whole; what only adds up gradients goes where
 * they are made now. */
static void read_whole(Slices *s, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Node *n = s->graph->node[i];
        int here = n->op == Oadd || n->op == Ocast || n->op == Opack ||
                   n->op == Oreducescatter || n->op == Oaccum,
            sums = 0;
        for (int k = 0; k < n->nin && !s->is[i]; k++) {
            int id = n->in[k]->id;
            sums |= s->is[id] == SLICEdw || s->late[id] == 2;
            if (s->is[id])
                n->in[k] = whole(s, n->in[k]);
            here &= n->in[k]->call == s->head->call;
        }
        if (sums && here) {
            n->call = s->head->call;
            s->late[i] = 2;
        }
    }
}

/* New nodes stand where the head stood, operands before users. */
static void put_in_place(Slices *s, size_t count)
{
    Graph *g = s->graph;
    Node **old = g->node;
    size_t at = (size_t)s->head->id, all = vec_len(old);

    g->node = NULL;
    for (size_t i = 0; i < all; i++)
        old[i]->mark = i < count && s->is[i];
    for (size_t i = 0; i < at; i++)
        g_visit(old[i], &g->node, g->arena);
    for (size_t i = count; i < all; i++)
        g_visit(old[i], &g->node, g->arena);
    for (size_t i = at; i < count; i++)
        g_visit(old[i], &g->node, g->arena);
    g_tidy(g);
}

/* ---- the pass ------------------------------------------------------------ */

/* A split axis keeps lying in pieces where it did. */
static void name_axes(Slices *s)
{
    Graph *g = s->graph;
    const char *name = s->axis->name;

    s->part = NULL;
    s->rest = s->axis;
    if (s->parts == 1)
        return;
    s->part = g_axis(g, strf(g->arena, "%s'part", name));
    s->rest = g_axis(g, strf(g->arena, "%s'rest", name));
    s->part->zigzag = s->axis->root && s->axis->root->zigzag;
}

static void cut_up(Slices *s)
{
    size_t count = vec_len(s->graph->node);

    why(s->graph, s->head, "in %d slices of %lld along %s, %lld bytes each",
        s->count,
        (long long)(s->head->dim[dim_of(s->head, s->axis)].n / s->count),
        s->axis->name, (long long)(local_bytes(s->graph, s->head) / s->count));
    s->copy = alloc(s->arena, (count + 1) * sizeof *s->copy);
    s->piece = alloc(s->arena, (count + 1) * sizeof *s->piece);
    s->whole = alloc(s->arena, (count + 1) * sizeof *s->whole);
    name_axes(s);
    for (int k = 0; k < s->count; k++)
        make_slice(s, count, k);
    read_whole(s, count);
    put_in_place(s, count);
}

void pass_logits_chunks(Graph *g)
{
    Node **head = NULL;
    int id = 1;

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (head_tokens(g, g->node[i]))
            vec_push(g->arena, head, g->node[i]);
    g_renumber(g);
    for (size_t i = 0; i < vec_len(head); i++) {
        Slices s = { .graph = g,
                     .arena = arena_new(),
                     .head = head[i],
                     .id = id,
                     .operand = head_tokens(g, head[i]) };
        if (cut_head(&s) > 1) {
            cut_up(&s);
            g_renumber(g);
            id += s.count;
        }
        arena_free(s.arena);
    }
}
