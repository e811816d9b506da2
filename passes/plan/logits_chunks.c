/* logits_chunks.c: computes a head in slices of tokens. If logits are read only
 * by per-token operations (a cross entropy) and by the gradients of their
 * product, the product, loss and gradient of each slice are placed together:
 * the logits of only one slice are live at a time.
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
 * %x0 is a slice of %x along the slowest token axis that divides. If ranks hold
 * parts of that axis, it is split into the parts and the rest, and the rest is
 * sliced. In a pipeline stage the gradient moves into the forward call.
 * logits_sites.c finds heads and chooses the axis and the number of slices. */
#include "plan.h"

/* ---- operands ------------------------------------------------------------ */

static Node *as(const Slices *slices, Node *n, const Node *like)
{
    n->reg = slices->head->reg;
    n->call = slices->head->call;
    n->scope = like->scope;
    n->dt = like->dt;
    return n;
}

/* Copies x's types; the axis of all tokens becomes the part's axis. */
static void take_types(const Slices *slices, Node *n, const Node *x)
{
    n->sh = slices->part
                ? g_type_along(slices->graph, x->sh, slices->axis, slices->part)
                : x->sh;
}

/* The axes that replace a split axis. */
static Axes both(const Slices *slices)
{
    return g_axes(slices->graph, (Axis *[]){ slices->part, slices->rest }, 2);
}

/* Copies x's dims; the axis has `len` elements, of itself or of each part. */
static void take_dims(const Slices *slices, Node *n, const Node *x, int64_t len)
{
    n->nd = 0;
    for (int d = 0; d < x->nd; d++) {
        Dim dim = x->dim[d];
        if (dim.a == slices->axis && slices->part)
            n->dim[n->nd++] = (Dim){ slices->part, slices->parts };
        if (dim.a == slices->axis)
            dim = (Dim){ slices->rest, len };
        n->dim[n->nd++] = dim;
    }
}

static Node *in_parts(const Slices *slices, Node *x)
{
    if (!slices->part)
        return x;
    Node *n = as(slices, g_node(slices->graph, Osplit, x->loc, 1, &x), x);
    n->at.split.axis = slices->axis;
    n->at.split.into = both(slices);
    take_dims(slices, n, x, slices->len * slices->count);
    take_types(slices, n, x);
    return infer(slices->graph, n);
}

/* A copy, in the head's call, of a node of another call. */
static Node *early(Slices *slices, Node *n)
{
    Node *in[MAXIN];

    if (slices->early[n->id])
        return slices->early[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = early(slices, n->in[k]);
    Node *c = g_copyof(slices->graph, n, in);
    c->call = slices->head->call;
    return slices->early[n->id] = c;
}

static Node *slice(Slices *slices, Node *x, int k)
{
    Node ***v = &slices->piece[x->id];

    if (!has_dim(x, slices->axis))
        return early(slices, x);
    *v = *v ? *v : alloc(slices->arena, (size_t)slices->count * sizeof **v);
    if ((*v)[k])
        return (*v)[k];
    Node *all = in_parts(slices, early(slices, x));
    Node *n = as(slices, g_node(slices->graph, Oslice, x->loc, 1, &all), all);
    n->at.slice =
        (struct slice_attrs){ slices->rest, k * slices->len, slices->len };
    take_dims(slices, n, x, slices->len);
    take_types(slices, n, x);
    return (*v)[k] = infer(slices->graph, n);
}

/* ---- slices -------------------------------------------------------------- */

/* Replaces the axis in attributes: sums are over all axes that it is split
 * into, collectives exchange the part's axis. */
static void take_axes(const Slices *slices, Node *c, int sums)
{
    Axis *ax[MAXD + 1];
    int k = 0;

    if (!slices->part)
        return;
    attrs_replace(slices->graph, c, slices->axis, slices->part);
    if (!sums)
        return;
    for (; k < n_axes(c)->n; k++)
        ax[k] = n_axes(c)->v[k];
    ax[k++] = slices->rest;
    *n_axes(c) = g_axes(slices->graph, ax, k);
}

static Node *copy(Slices *slices, Node *n, int k)
{
    Node *in[MAXIN];
    int sums = slices->is[n->id] == SLICEdw;

    for (int i = 0; i < n->nin; i++)
        in[i] = slices->is[n->in[i]->id] ? slices->copy[n->in[i]->id][k]
                                         : slice(slices, n->in[i], k);
    Node *c = g_copyof(slices->graph, n, in);
    c->call = slices->head->call;
    take_axes(slices, c, sums);
    if (sums && c->dt == Dbf16)
        c->dt = Df32;
    take_dims(slices, c, n, slices->len);
    take_types(slices, c, n);
    if (optab[n->op].cls == EW || optab[n->op].cls == RED)
        c->piece = slices->id + k;
    return infer(slices->graph, c);
}

static void make_slice(Slices *slices, size_t count, int k)
{
    for (size_t i = 0; i < count; i++) {
        if (!slices->is[i])
            continue;
        if (!slices->copy[i])
            slices->copy[i] = alloc(slices->arena, (size_t)slices->count *
                                                       sizeof *slices->copy[i]);
        slices->copy[i][k] = copy(slices, slices->graph->node[i], k);
    }
}

/* ---- joining the slices -------------------------------------------------- */

static Node *sum(Slices *slices, const Node *n)
{
    Node **v = slices->copy[n->id], *r = v[0];

    for (int k = 1; k < slices->count; k++) {
        r = as(slices, g_ew(slices->graph, Oadd, n->loc, r, v[k], NULL), v[0]);
        r->sh = n->sh;
    }
    if (r->dt != n->dt) {
        r = as(slices, g_cast(slices->graph, r, n->dt), v[0]);
        r->dt = n->dt;
        r->sh = n->sh;
    }
    return r;
}

/* Concatenates `count` slices of n, `len` elements in total. */
static Node *row(const Slices *slices, const Node *n, Node *const *v, int count,
                 int64_t len)
{
    Node *r =
        as(slices, g_node(slices->graph, Oconcat, n->loc, count, v), v[0]);

    r->at.concat.axis = slices->rest;
    take_dims(slices, r, n, len);
    take_types(slices, r, n);
    return infer(slices->graph, r);
}

/* Concatenates all slices in steps of at most MAXIN operands. Copies of the
 * stage share the axis and outlive this one, so the parts are not made its
 * factors. */
static Node *gathered(Slices *slices, const Node *n)
{
    Node **v = slices->copy[n->id], *some[MAXIN];
    int factors = slices->axis->nfactor;
    int each = (slices->count + MAXIN - 1) / MAXIN, k = 0;

    for (int at = 0; at < slices->count; at += each) {
        int here = slices->count - at < each ? slices->count - at : each;
        some[k++] = here == 1
                        ? v[at]
                        : row(slices, n, v + at, here, slices->len * here);
    }
    Node *r = row(slices, n, some, k, slices->len * slices->count);
    if (!slices->part)
        return r;
    Node *m = as(slices, g_node(slices->graph, Omerge, n->loc, 1, &r), r);
    m->at.merge.axes = both(slices);
    m->at.merge.new = slices->axis;
    m->nd = n->nd;
    memcpy(m->dim, n->dim, sizeof m->dim);
    m->sh = n->sh;
    m = infer(slices->graph, m);
    slices->axis->nfactor = factors;
    return m;
}

static Node *whole(Slices *slices, Node *n)
{
    Node **r = &slices->whole[n->id];

    if (!*r)
        *r =
            slices->is[n->id] == SLICEdw ? sum(slices, n) : gathered(slices, n);
    return *r;
}

/* Readers of a result read the joined value; sums of gradients move to where
 * the slices' gradients are made. */
static void read_whole(Slices *slices, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Node *n = slices->graph->node[i];
        int here = n->op == Oadd || n->op == Ocast || n->op == Opack ||
                   n->op == Oreducescatter || n->op == Oaccum,
            sums = 0;
        for (int k = 0; k < n->nin && !slices->is[i]; k++) {
            int id = n->in[k]->id;
            sums |= slices->is[id] == SLICEdw || slices->late[id] == 2;
            if (slices->is[id])
                n->in[k] = whole(slices, n->in[k]);
            here &= n->in[k]->call == slices->head->call;
        }
        if (sums && here) {
            n->call = slices->head->call;
            slices->late[i] = 2;
        }
    }
}

/* Places the new nodes at the head's position, operands before users. */
static void put_in_place(Slices *slices, size_t count)
{
    Graph *g = slices->graph;
    Node **old = g->node;
    size_t at = (size_t)slices->head->id, all = vec_len(old);

    g->node = NULL;
    for (size_t i = 0; i < all; i++)
        old[i]->mark = i < count && slices->is[i];
    for (size_t i = 0; i < at; i++)
        g_visit(old[i], &g->node, g->arena);
    for (size_t i = count; i < all; i++)
        g_visit(old[i], &g->node, g->arena);
    for (size_t i = at; i < count; i++)
        g_visit(old[i], &g->node, g->arena);
    g_tidy(g);
}

/* ---- the pass ------------------------------------------------------------ */

/* A split axis keeps its layout in pieces. */
static void name_axes(Slices *slices)
{
    Graph *g = slices->graph;
    const char *name = slices->axis->name;

    slices->part = NULL;
    slices->rest = slices->axis;
    if (slices->parts == 1)
        return;
    slices->part = g_axis(g, strf(g->arena, "%s'part", name));
    slices->rest = g_axis(g, strf(g->arena, "%s'rest", name));
    slices->part->zigzag = slices->axis->root && slices->axis->root->zigzag;
}

static void cut_up(Slices *slices)
{
    size_t count = vec_len(slices->graph->node);

    why(slices->graph, slices->head,
        "in %d slices of %lld along %s, %lld bytes each", slices->count,
        (long long)(slices->head->dim[dim_of(slices->head, slices->axis)].n /
                    slices->count),
        slices->axis->name,
        (long long)(local_bytes(slices->graph, slices->head) / slices->count));
    slices->copy = alloc(slices->arena, (count + 1) * sizeof *slices->copy);
    slices->piece = alloc(slices->arena, (count + 1) * sizeof *slices->piece);
    slices->whole = alloc(slices->arena, (count + 1) * sizeof *slices->whole);
    name_axes(slices);
    for (int k = 0; k < slices->count; k++)
        make_slice(slices, count, k);
    read_whole(slices, count);
    put_in_place(slices, count);
}

/* Lists ids of all operands, once for all large products. */
static void list_operands(Slices *slices, const Graph *g)
{
    size_t n = vec_len(g->node);
    int *first = alloc(g->arena, (n + 1) * sizeof *first), *in = NULL;

    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < g->node[i]->nin; k++)
            vec_push(g->arena, in, g->node[i]->in[k]->id);
        first[i + 1] = (int)vec_len(in);
    }
    slices->first = first;
    slices->in = in;
}

void pass_logits_chunks(Graph *g)
{
    Node **head = NULL;
    Slices all = { .graph = g, .id = 1 };

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (head_tokens(g, g->node[i]))
            vec_push(g->arena, head, g->node[i]);
    g_renumber(g);
    list_operands(&all, g);
    for (size_t i = 0; i < vec_len(head); i++) {
        Slices s = all;
        s.arena = arena_new();
        s.head = head[i];
        s.operand = head_tokens(g, head[i]);
        if (cut_head(&s) > 1) {
            cut_up(&s);
            g_renumber(g);
            list_operands(&all, g);
            all.id += s.count;
        }
        arena_free(s.arena);
    }
}
