/* infer.c: infers axes and sizes of a node from its operands. Axes have names,
 * so one rule per class covers nearly all ops; the switch in rule() has the
 * others. Wrong sizes are errors of the user: err() at the node's place, with a
 * note where the other size came from. */
#include "graph.h"

typedef struct Dims {
    int n;
    Dim d[2 * MAXD];
} Dims;

static int find(const Dims *dims, const Axis *a)
{
    for (int i = 0; i < dims->n; i++)
        if (dims->d[i].a == a)
            return i;
    return -1;
}

static void push(const Node *n, Dims *dims, Axis *a, int64_t size)
{
    if (dims->n == 2 * MAXD)
        err(n->loc, "%s: more than %d axes", optab[n->op].name, MAXD);
    dims->d[dims->n++] = (Dim){ a, size };
}

const char *shape_text(const Graph *g, const Node *n)
{
    Text out = { .arena = g->arena };

    put(&out, "[");
    for (int i = 0; i < n->nd; i++)
        if (!g_ismicro(n->dim[i].a))
            put(&out, "%s%s=%ld", out.len > 1 ? " " : "", n->dim[i].a->name,
                n->dim[i].n);
    put(&out, "]");
    return out.s;
}

static const char *opname(const Node *n)
{
    return n->op == Ocall && n->at.call.name ? n->at.call.name
                                             : optab[n->op].name;
}

static void clash(Graph *g, const Node *n, const Axis *a, int k0, int k1)
{
    const Node *x = n->in[k0], *y = n->in[k1];

    note(x->loc, "argument %d %s made here", k0 + 1, shape_text(g, x));
    note(y->loc, "argument %d %s made here", k1 + 1, shape_text(g, y));
    err(n->loc, "%s: axis '%s' is %ld in argument %d and %ld in argument %d",
        opname(n), a->name, x->dim[dim_of(x, a)].n, k0 + 1,
        y->dim[dim_of(y, a)].n, k1 + 1);
}

/* Checks that shared axes of all operands have equal sizes. */
static void agree(Graph *g, const Node *n, int nin)
{
    for (int k = 1; k < nin; k++)
        for (int i = 0; i < n->in[k]->nd; i++)
            for (int q = 0; q < k; q++) {
                Dim d = n->in[k]->dim[i];
                int at = dim_of(n->in[q], d.a);
                if (at >= 0 && n->in[q]->dim[at].n != d.n)
                    clash(g, n, d.a, q, k);
            }
}

static void missing(Graph *g, const Node *n, int k, const Axis *a)
{
    const Node *x = n->in[k];
    const char *names[MAXD];
    size_t nname = 0;

    for (int i = 0; i < x->nd; i++)
        if (!g_ismicro(x->dim[i].a))
            names[nname++] = x->dim[i].a->name;
    note(x->loc, "argument %d made here", k + 1);
    err(n->loc, "%s: tensor %s has no axis '%s'%s", opname(n), shape_text(g, x),
        a->name, did_you_mean(a->name, names, nname));
}

static void need_one(Graph *g, const Node *n, int k, const Axis *a)
{
    if (dim_of(n->in[k], a) < 0)
        missing(g, n, k, a);
}

static void need(Graph *g, const Node *n, int k, const Axes *axes)
{
    for (int i = 0; i < axes->n; i++)
        need_one(g, n, k, axes->v[i]);
}

/* ---- axes by class ------------------------------------------------------- */

static Dims dims_of(const Node *a)
{
    Dims s;

    s.n = a->nd;
    memcpy(s.d, a->dim, (size_t)a->nd * sizeof *s.d);
    return s;
}

static int are_dims(const Node *n, const Dim *d, int nd)
{
    return n->nd == nd && !memcmp(n->dim, d, (size_t)nd * sizeof *d);
}

/* Returns the union of the operands' axes, in the order of the first operand
 * that has all of them, otherwise in order of first appearance. */
static Dims unite(Graph *g, const Node *n, int nin)
{
    Dims s;
    int alike = 1;

    for (int k = 1; k < nin; k++)
        alike &= are_dims(n->in[k], n->in[0]->dim, n->in[0]->nd);
    if (alike && nin)
        return dims_of(n->in[0]);
    s.n = 0;
    agree(g, n, nin);
    for (int k = 0; k < nin; k++)
        for (int i = 0; i < n->in[k]->nd; i++)
            if (find(&s, n->in[k]->dim[i].a) < 0)
                push(n, &s, n->in[k]->dim[i].a, n->in[k]->dim[i].n);
    for (int k = 0; k < nin; k++)
        if (n->in[k]->nd == s.n) {
            memcpy(s.d, n->in[k]->dim, (size_t)s.n * sizeof *s.d);
            break;
        }
    return s;
}

static Dims without(const Node *a, const Axes *axes)
{
    Dims s;

    s.n = 0;
    for (int i = 0; i < a->nd; i++)
        if (axes_at(axes, a->dim[i].a) < 0)
            s.d[s.n++] = a->dim[i];
    return s;
}

static void extend(const Node *n, Dims *dims, const Node *b, Axis *const *v,
                   int nv)
{
    for (int i = 0; i < b->nd; i++)
        if (axis_at(v, nv, b->dim[i].a) < 0 && find(dims, b->dim[i].a) < 0)
            push(n, dims, b->dim[i].a, b->dim[i].n);
}

static Dims dot_dims(Graph *g, const Node *n)
{
    agree(g, n, 2);
    need(g, n, 0, &n->at.dot.axes);
    need(g, n, 1, &n->at.dot.axes);
    Dims s = without(n->in[0], &n->at.dot.axes);
    extend(n, &s, n->in[1], n->at.dot.axes.v, n->at.dot.axes.n);
    return s;
}

static Dims replace(const Node *a, const Axis *axis, Axis *by, int64_t size)
{
    Dims s = dims_of(a);

    for (int i = 0; i < s.n; i++)
        if (s.d[i].a == axis)
            s.d[i] = (Dim){ by, size };
    return s;
}

static Dims rename_dims(const Node *n)
{
    const Axes *from = &n->at.rename.from, *to = &n->at.rename.to;
    Dims s = dims_of(n->in[0]);

    if (from->n != to->n)
        err(n->loc, "rename: %d axes become %d", from->n, to->n);
    for (int k = 0; k < from->n; k++) /* at once: names may be swapped */
        s.d[dim_of(n->in[0], from->v[k])].a = to->v[k];
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < i; k++)
            if (s.d[i].a == s.d[k].a)
                err(n->loc, "rename: two axes would be named '%s'",
                    s.d[i].a->name);
    return s;
}

/* Returns the dims of a split: declared sizes, or those of an earlier infer;
 * one may follow by division. */
static Dims split_dims(Graph *g, const Node *n)
{
    const Node *a = n->in[0];
    const Axes *into = &n->at.split.into;
    const Axis *axis = n->at.split.axis;
    int at = dim_of(a, axis), open = -1;
    int64_t rest = a->dim[at].n, size[MAXD];
    Dims s = { 0 };

    for (int i = 0; i < into->n; i++) {
        int k = dim_of(n, into->v[i]);
        size[i] = k >= 0 ? n->dim[k].n : into->v[i]->n;
        if (size[i] == 0 && open < 0)
            open = i;
        else if (size[i] == 0 || rest % size[i])
            err(n->loc, "split: axis '%s' of %ld does not divide into '%s'%s",
                axis->name, a->dim[at].n, into->v[i]->name,
                size[i] ? strf(g->arena, " of %ld", size[i])
                        : ", whose size is not declared");
        else
            rest /= size[i];
    }
    if (open >= 0)
        size[open] = rest;
    else if (rest != 1)
        err(n->loc, "split: axis '%s' of %ld is not the product of its parts",
            axis->name, a->dim[at].n);
    for (int i = 0; i < a->nd; i++)
        if (i != at)
            push(n, &s, a->dim[i].a, a->dim[i].n);
        else
            for (int k = 0; k < into->n; k++)
                push(n, &s, into->v[k], size[k]);
    return s;
}

int are_neighbours(const Node *a, const Axes *axes)
{
    int at = dim_of(a, axes->v[0]);

    for (int i = 0; i < axes->n; i++)
        if (at < 0 || dim_of(a, axes->v[i]) != at + i)
            return 0;
    return 1;
}

/* A merge is a view only if the axes are neighbours: inserts a permute before n
 * that moves them to the place of the first one. */
static void gather_axes(Graph *g, Node *n)
{
    Node *a = n->in[0], *p = g_node(g, Opermute, n->loc, 1, &a);
    const Axes *axes = &n->at.merge.axes;
    size_t len = vec_len(g->node);
    int k = 0;

    p->scope = n->scope;
    p->reg = a->reg;
    p->call = n->call;
    p->dt = a->dt;
    p->map = a->map;
    for (int i = 0; i < a->nd; i++) {
        if (a->dim[i].a == axes->v[0])
            for (int q = 0; q < axes->n; q++)
                p->dim[k++] = a->dim[dim_of(a, axes->v[q])];
        else if (axes_at(axes, a->dim[i].a) < 0)
            p->dim[k++] = a->dim[i];
    }
    p->nd = k;
    n->in[0] = p;
    if (len >= 2 && g->node[len - 2] == n) {
        g->node[len - 2] = p;
        g->node[len - 1] = n;
        g_renumber(g);
    }
}

static Dims merge_dims(Graph *g, Node *n)
{
    const Axes *axes = &n->at.merge.axes;
    Axis *to = n->at.merge.new;
    int64_t size = 1;
    Dims s = { 0 };

    if (!are_neighbours(n->in[0], axes))
        gather_axes(g, n);
    const Node *a = n->in[0];
    for (int i = 0; i < axes->n; i++)
        size *= a->dim[dim_of(a, axes->v[i])].n;
    for (int i = 0; i < a->nd; i++) {
        if (a->dim[i].a == axes->v[0])
            push(n, &s, to, size);
        else if (axes_at(axes, a->dim[i].a) < 0)
            push(n, &s, a->dim[i].a, a->dim[i].n);
    }
    if (to->nfactor == 0 && axes->n <= 4)
        for (int i = 0; i < axes->n; i++)
            to->factor[to->nfactor++] = axes->v[i];
    return s;
}

static Dims concat_dims(Graph *g, const Node *n)
{
    Dims s = dims_of(n->in[0]);
    int at = find(&s, n->at.concat.axis);

    for (int k = 1; k < n->nin; k++) {
        need_one(g, n, k, n->at.concat.axis);
        s.d[at].n += n->in[k]->dim[dim_of(n->in[k], n->at.concat.axis)].n;
        if (s.d[at].n > MOSTELEMS)
            err(n->loc, "concat makes an axis of more than 2^53 elements");
    }
    return s;
}

/* Are the axes of x those listed from v on, and is it sharded along its own
 * axes? Advances v and cut. unpack's lists have pack's layout. */
static void listed(const Node *n, const Node *x, int *v, int *cut, int ncut)
{
    const struct pack_attrs *t = &n->at.pack;
    int ok = *v + x->nd <= t->order.n && *cut + ncut <= t->cut.n;

    for (int i = 0; i < x->nd && ok; i++)
        ok = dim_of(x, t->order.v[*v + i]) >= 0;
    for (int i = 0; i < ncut && ok; i++)
        ok = dim_of(x, t->cut.v[*cut + i]) >= 0;
    if (!ok)
        err(n->loc, "%s: the axes listed are not those of %%%s", opname(n),
            x->name ? x->name : "?");
    *v += x->nd;
    *cut += ncut;
}

static int cuts_of(const Node *bucket)
{
    return __builtin_popcount(bucket->dim[0].a->atoms) * (bucket->nd > 1);
}

/* Returns the dims of a pack, [own flat] or [flat]. */
static Dims pack_dims(const Node *n)
{
    int v = 0, cut = 0;

    if (n->nd < 1 || n->nd > 2)
        err(n->loc, "pack: the result has %d axes, not 1 or 2", n->nd);
    for (int k = 0; k < n->nin; k++)
        listed(n, n->in[k], &v, &cut, cuts_of(n));
    if (v != n->at.pack.order.n || cut != n->at.pack.cut.n)
        err(n->loc, "pack: lists more axes than the operands have");
    if (bucket_at(n, n->nin) > n->dim[n->nd - 1].n)
        err(n->loc, "pack: %ld elements into %ld", bucket_at(n, n->nin),
            n->dim[n->nd - 1].n);
    return dims_of(n);
}

static Dims unpack_dims(const Node *n)
{
    const struct unpack_attrs *t = &n->at.unpack;
    const Node *a = n->in[0];
    int v = 0, cut = 0;

    if (a->nd < 1 || a->nd > 2)
        err(n->loc, "unpack: the operand has %d axes, not 1 or 2", a->nd);
    listed(n, n, &v, &cut, cuts_of(a));
    int64_t own = a->nd > 1 ? a->dim[0].n : 1;
    if (v != t->order.n || cut != t->cut.n || t->at < 0 ||
        t->at + g_elems(n) / own > a->dim[a->nd - 1].n)
        err(n->loc, "unpack: lies beyond its operand");
    return dims_of(n);
}

/* Returns the indices' axes, then the remaining axes of the indexed tensor. */
static Dims gather_dims(Graph *g, const Node *n)
{
    need_one(g, n, 0, n->at.gather.axis);
    Dims s = dims_of(n->in[1]);
    extend(n, &s, n->in[0], &n->at.gather.axis, 1);
    return s;
}

/* ---- rows ---------------------------------------------------------------- */

static int64_t rows_of(const Node *map)
{
    return g_elems(map->in[0]);
}

/* Returns [row, axes of x except the token axes and top]; rows in blocks are
 * ordered by rank. */
static Dims dispatch_dims(Graph *g, const Node *n)
{
    const Node *x = n->in[0], *map = n->in[1], *e = map->in[0];
    const Axes *blocks = &map->at.route.blocks;
    Dims s = { 0 };

    for (int i = 0; i < blocks->n; i++)
        push(n, &s, blocks->v[i], blocks->v[i]->n);
    if (!blocks->n)
        push(n, &s, g_axis(g, axisroles[ROLErow]), rows_of(map));
    for (int i = 0; i < x->nd; i++)
        if (dim_of(e, x->dim[i].a) < 0)
            push(n, &s, x->dim[i].a, x->dim[i].n);
    return s;
}

static Dims combine_dims(const Node *n)
{
    Dims s = dims_of(n->in[1]->in[0]);

    for (int i = 0; i < n->in[0]->nd; i++)
        if (!is_rows(n->in[1], n->in[0]->dim[i].a))
            push(n, &s, n->in[0]->dim[i].a, n->in[0]->dim[i].n);
    return s;
}

static Dims gmm_dims(Graph *g, const Node *n)
{
    Axis *expert = n->in[2]->at.route.axis;

    need(g, n, 0, &n->at.gmm.axes);
    need(g, n, 1, &n->at.gmm.axes);
    Dims s = without(n->in[0], &n->at.gmm.axes);
    for (int i = 0; i < n->in[1]->nd; i++) {
        Dim d = n->in[1]->dim[i];
        if (d.a != expert && axes_at(&n->at.gmm.axes, d.a) < 0)
            push(n, &s, d.a, d.n);
    }
    return s;
}

static Dims gmm_wgrad_dims(const Node *n)
{
    Axis *expert = n->in[2]->at.route.axis;
    Dims s = { 0 };

    if (is_scaled_product(n))
        return dims_of(n);
    push(n, &s, expert,
         n->at.gmm_wgrad.experts ? n->at.gmm_wgrad.experts : expert->n);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n->in[k]->nd; i++)
            if (!g_isrow(n->in[k]->dim[i].a))
                push(n, &s, n->in[k]->dim[i].a, n->in[k]->dim[i].n);
    return s;
}

/* Returns the route node whose rows n has; null: none. */
static Node *row_map(const Node *n, const Dims *dims)
{
    const Node *of = n->op == Opart ? n->in[0] : n;

    for (int i = 0; i < dims->n; i++) {
        if (!g_isrow(dims->d[i].a))
            continue;
        if (n->op == Odispatch || n->op == Ogmm)
            return n->in[n->op == Ogmm ? 2 : 1];
        if (of->op == Oquantize_blocks && of->nin > 1)
            return of->in[1];
        for (int k = 0; k < of->nin; k++)
            if (of->in[k]->map)
                return of->in[k]->map;
        return n->map;
    }
    return NULL;
}

/* ---- one node ------------------------------------------------------------ */

static Dims leaf(const Node *n)
{
    Dims s = dims_of(n);

    if (n->op == Oiota && s.n == 0)
        push(n, &s, n->at.iota.axis, n->at.iota.axis->n);
    return s;
}

static Dims resized(Graph *g, const Node *n, int64_t size)
{
    need_one(g, n, 0, n_axis(n));
    return replace(n->in[0], n_axis(n), n_axis(n), size);
}

static Dims topk_dims(Graph *g, const Node *n)
{
    const struct topk_attrs *t = &n->at.topk;

    need_one(g, n, 0, t->axis);
    int64_t have = n->in[0]->dim[dim_of(n->in[0], t->axis)].n;
    if (t->k < 1 || t->k > have)
        err(n->loc, "topk: k is %ld and axis '%s' has %ld", t->k, t->axis->name,
            have);
    return replace(n->in[0], t->axis, t->new, t->k);
}

static Dims slice_dims(Graph *g, const Node *n)
{
    const struct slice_attrs *t = &n->at.slice;

    need_one(g, n, 0, t->axis);
    int64_t have = n->in[0]->dim[dim_of(n->in[0], t->axis)].n;
    if (t->start < 0 || t->len < 1 || t->len > have - t->start)
        err(n->loc, "slice: %ld from %ld of axis '%s', which has %ld", t->len,
            t->start, t->axis->name, have);
    return resized(g, n, t->len);
}

static Dims pick_dims(const Node *n)
{
    Dims s = dims_of(n->in[1]);

    extend(n, &s, n->in[0], &n->at.pick.axis, 1);
    return s;
}

/* ---- blocks with scales -------------------------------------------------- */

int64_t block_size(const Node *n, int i)
{
    const struct amax_attrs *t = &n->at.amax;

    return i + 1 < t->axes.n ? scales[t->layout].rows : scales[t->layout].cols;
}

Axis *n_pairs(const Node *n)
{
    return n->op == Oquantize     ? n->at.quantize.pairs
           : n->op == Odequantize ? n->at.dequantize.pairs
                                  : NULL;
}

/* Checks that the blocked axes are as many as the layout's, none of them
 * ragged. */
static void check_blocks(const Node *n)
{
    const struct amax_attrs *t = &n->at.amax;
    const ScaleInfo *info = &scales[t->layout];
    int cut = !info->cols ? 0 : info->rows > 1 ? 2 : 1;

    if (!t->axes.n)
        err(n->loc, "%s: 'axes' names none", opname(n));
    if (t->layout == SCALEnone || t->blocks.n != cut ||
        (cut && t->axes.n != cut))
        err(n->loc, "%s: '%s' cuts %d axes into blocks, got %d of %d",
            opname(n), scalenames[t->layout], cut, t->blocks.n, t->axes.n);
    for (int i = 0; i < t->axes.n; i++)
        if (g_isrow(t->axes.v[i]))
            err(n->loc, "%s: rows of experts are not cut into blocks",
                opname(n));
}

/* Checks dtypes: packed pairs need two numbers an element, others are reals;
 * axes of the result must be new. */
static void check_elements(Graph *g, const Node *n)
{
    const struct amax_attrs *t = &n->at.amax;
    const Node *x = n->in[0];
    Dtype stored = n->op == Oquantize ? n->at.quantize.to : x->dt;
    Axis *made = n->op == Odequantize ? t->axes.v[t->axes.n - 1] : n_pairs(n);

    if (n->op != Oamax && (stored == De2m1x2) != (n_pairs(n) != NULL))
        err(n->loc, "%s: 'pairs' is the axis of e2m1x2, and of no other dtype",
            opname(n));
    if (dtypes[x->dt].kind != 'f' && stored != De2m1x2)
        err(n->loc, "%s: the tensor must be of reals, got %s", opname(n),
            dtypes[x->dt].name);
    for (int i = 0; i < t->blocks.n + (n_pairs(n) != NULL); i++) {
        const Axis *a = i < t->blocks.n ? t->blocks.v[i] : made;
        if (dim_of(x, a) >= 0 || (i < t->blocks.n && axes_at(&t->axes, a) >= 0))
            err(n->loc, "%s: tensor %s already has the axis '%s'", opname(n),
                shape_text(g, x), a->name);
    }
}

/* Replaces each blocked axis by the axis of its blocks, or removes it. */
static Dims amax_dims(const Node *n, Dims s)
{
    const struct amax_attrs *t = &n->at.amax;
    int k = 0;

    for (int i = 0; i < s.n; i++) {
        int at = axes_at(&t->axes, s.d[i].a);
        int64_t size = at < 0 ? 1 : block_size(n, at);
        if (at < 0)
            s.d[k++] = s.d[i];
        else if (t->blocks.n)
            s.d[k++] = (Dim){ t->blocks.v[at], (s.d[i].n + size - 1) / size };
    }
    s.n = k;
    return s;
}

/* Returns x's dims after checking that the axis has whole blocks of 16. */
static Dims hadamard_dims(Graph *g, const Node *n)
{
    Dims s = dims_of(n->in[0]);

    check_blocks(n);
    check_elements(g, n);
    need(g, n, 0, &n->at.amax.axes);
    for (int i = 0; i < n->at.amax.axes.n; i++)
        if (block_size(n, i) != 16 ||
            s.d[find(&s, n->at.amax.axes.v[i])].n % 16)
            err(n->loc, "hadamard: axis '%s' is not of whole blocks of 16",
                n->at.amax.axes.v[i]->name);
    return s;
}

/* Checks that the scales have the dims of the values' blocks. */
static void check_scales(const Graph *g, const Node *n, const Node *s,
                         const Dims *want)
{
    for (int i = 0; i < s->nd; i++) {
        int k = find(want, s->dim[i].a);
        if (k < 0 || want->d[k].n != s->dim[i].n)
            err(n->loc, "%s: the scales %s are not those of the blocks",
                opname(n), shape_text(g, s));
    }
}

static Dims scaled_dims(Graph *g, const Node *n)
{
    const Axes *axes = &n->at.amax.axes;
    Axis *pairs = n_pairs(n);
    int quantizes = n->op == Oquantize;
    Dims x = dims_of(n->in[0]), out;

    check_blocks(n);
    check_elements(g, n);
    Axis *last = axes->v[axes->n - 1];
    Axis *cut = quantizes || !pairs ? last : pairs;
    need_one(g, n, 0, cut);
    for (int i = 0; i + 1 < axes->n; i++)
        need_one(g, n, 0, axes->v[i]);
    if (quantizes && n->at.quantize.key && n->at.quantize.to != De2m1x2)
        err(n->loc, "quantize: 'key' is for e2m1x2, not for %s",
            dtypes[n->at.quantize.to].name);
    int at = find(&x, cut);
    if (pairs && quantizes && x.d[at].n % 2)
        err(n->loc, "quantize: two numbers an element, axis '%s' has %ld",
            last->name, x.d[at].n);
    out = x;
    if (pairs && quantizes)
        out.d[at] = (Dim){ pairs, x.d[at].n / 2 };
    if (pairs && !quantizes)
        out.d[at] = x.d[at] = (Dim){ last, x.d[at].n * 2 };
    Dims want = amax_dims(n, x);
    check_scales(g, n, n->in[1], &want);
    return out;
}

/* Returns the dims of a spread: its own axes, whose blocks the operand has. */
static Dims spread_dims(const Graph *g, const Node *n)
{
    Dims s = dims_of(n), want = amax_dims(n, s);

    for (int i = 0; i < n->at.spread.axes.n; i++)
        if (find(&s, n->at.spread.axes.v[i]) < 0)
            err(n->loc, "spread: the result has no axis '%s'",
                n->at.spread.axes.v[i]->name);
    check_scales(g, n, n->in[0], &want);
    return s;
}

static Dims rule(Graph *g, Node *n)
{
    switch (n->op) {
    case Obroadcast:
    case Opermute:
    case Oscatter_add:
    case Opart:
    case Ocall:
    case Osum_sq:
    case Orecv: return dims_of(n);
    case Odot: return dot_dims(g, n);
    case Opick: return pick_dims(n);
    case Ogmm: return gmm_dims(g, n);
    case Ogmm_wgrad: return gmm_wgrad_dims(n);
    case Otopk: return topk_dims(g, n);
    case Orename: need(g, n, 0, &n->at.rename.from); return rename_dims(n);
    case Osplit: need_one(g, n, 0, n->at.split.axis); return split_dims(g, n);
    case Omerge: need(g, n, 0, &n->at.merge.axes); return merge_dims(g, n);
    case Oslice: return slice_dims(g, n);
    case Opad: return resized(g, n, n->at.pad.len);
    case Oconcat:
        need_one(g, n, 0, n->at.concat.axis);
        return concat_dims(g, n);
    case Ooffload:
    case Oreload: return dims_of(n->in[0]);
    case Oshift:
    case Ocumsum: need_one(g, n, 0, n_axis(n)); return dims_of(n->in[0]);
    case Ogather: return gather_dims(g, n);
    case Oamax:
        check_blocks(n);
        check_elements(g, n);
        need(g, n, 0, &n->at.amax.axes);
        return amax_dims(n, dims_of(n->in[0]));
    case Ohadamard: return hadamard_dims(g, n);
    case Oquantize:
    case Odequantize: return scaled_dims(g, n);
    case Ospread: return spread_dims(g, n);
    case Opack: return pack_dims(n);
    case Ounpack: return unpack_dims(n);
    case Odispatch: return dispatch_dims(g, n);
    case Ocombine: return combine_dims(n);
    case Oroute:
    case Ooverflow:
    case Oquantize_blocks:
    case Oattn:
    case Oattn_bwd: return (Dims){ 0 };
    case Odrop_to_capacity:
    case Ofake_quantize:
    case Oaccum:
    case Oresult: return dims_of(n->in[0]);
    default: break;
    }
    switch (optab[n->op].cls) {
    case SRC: return leaf(n);
    case EW: return unite(g, n, n->nin);
    case RED: need(g, n, 0, n_axes(n)); return without(n->in[0], n_axes(n));
    case COMM: return dims_of(n->in[0]);
    default: return (Dims){ 0 };
    }
}

/* Sets n's dims; keeps the builder's order of the same axes. */
static void set_dims(Node *n, const Dims *dims)
{
    int same = n->nd == dims->n;

    if (are_dims(n, dims->d, dims->n))
        return;
    for (int i = 0; same && i < dims->n; i++)
        same = dim_of(n, dims->d[i].a) >= 0;
    if (!same) {
        memcpy(n->dim, dims->d, (size_t)dims->n * sizeof *dims->d);
        n->nd = dims->n;
        return;
    }
    for (int i = 0; i < dims->n; i++)
        n->dim[dim_of(n, dims->d[i].a)].n = dims->d[i].n;
}

Node *infer(Graph *g, Node *n)
{
    Dims s = rule(g, n);

    if (s.n > MAXD)
        err(n->loc, "%s: result has %d axes, at most %d", opname(n), s.n, MAXD);
    set_dims(n, &s);
    n->dt = infer_dtype(n);
    n->map = row_map(n, &s);
    return n;
}
