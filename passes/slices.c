/* slices.c: a head in slices of tokens. Where a product's result (logits) goes
 * only into what treats every token by itself (a cross entropy) and into the
 * gradient of the product, each slice's product, loss and gradient stand
 * together, so that the logits of one slice live at a time:
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
 *                                         %dw  = add %dw0 %dw1   (sums.c)
 *
 * %x0 is a slice of %x along an axis of tokens, the slowest that divides. Where
 * ranks hold parts of that axis it is split first, into as many parts as they
 * cut it and the rest, and each part is sliced. Of a pipeline's stage the
 * gradient moves into the call that runs forward, where the head then ends.
 *
 * A slice costs a read and a write of the weight's fp32 gradient, 8 h V bytes,
 * against 6 h V FLOP a token: on an H200 (4.3 TB/s, 790 TFLOP/s) no more than
 * the time of 245 tokens. Measured (Qwen3 of 4 layers, 16384 tokens, V 151936):
 * slices of 4096 gain 2 % of the step, their products run faster; slices of
 * 1024 lose 4 %. So by itself the pass makes slices of LEAST tokens and more,
 * and leaves alone what needs LITTLE room. An eval has no gradient and the same
 * slices; a forward's logits are its result.                                */
#include <string.h>

#include "passes.h"

enum { LEAST = 4096, LITTLE = 256 << 20 };

enum { OUT, EACH, PRODUCT, SUM }; /* what becomes of a node: it stays as it is;
                                     one a slice; dx; dw                      */

typedef struct Slices {
    Graph *g;
    Arena *a;                     /* of this head                             */
    Node *head, *x;               /* the product, its operand with tokens     */
    Axis *axis, *part, *rest;     /* of tokens; what it is split into, or null*/
    int64_t parts, len;           /* len: of axis (or rest) in a slice        */
    int n, id;                    /* slices; of the first, for fuse           */
    char *is;                     /* by id                                    */
    char *late;                   /* by id: not is, but reads it              */
    Node ***copy;                 /* by id: of each slice                     */
    Node ***piece;                /* by id: slices of an operand              */
    Node **whole;                 /* by id: the results together again        */
    Node **early;                 /* by id: what it is in the head's call     */
} Slices;

static int is_given(const Graph *g)
{
    return opts_given(g->opts, "train.slices");
}

static int is_backward(const Node *n)
{
    return !strncmp(n->scope, "d.", 2) || !strcmp(n->scope, "d");
}

static int has(const Node *n, const Axis *a)
{
    return dim_of(n, a) >= 0;
}

static int lists(Axis *const *v, int n, const Axis *a)
{
    for (int i = 0; i < n; i++)
        if (v[i] == a)
            return 1;
    return 0;
}

/* ---- what is sliced ------------------------------------------------------ */

/* Has n more than one number a token?                                        */
static int is_wide(const Slices *s, const Node *n)
{
    for (int i = 0; i < n->nd; i++)
        if (!has(s->x, n->dim[i].a) || !has(s->head, n->dim[i].a))
            return 1;
    return 0;
}

/* Does n make each token's result of that token?                             */
static int by_token(const Node *n, const Axis *a)
{
    if (!has(n, a) || n->map)
        return 0;
    switch (optab[n->op].cls) {
    case EW: return n->op != Odropout;
    case RED: case COMM: return n->op != Orotate && !is_transfer(n);
    case VIEW: return n->op != Opart && !lists(n->A, n->nA, a) &&
                      !lists(n->B, n->nB, a);
    case MOVE: return n->op == Opermute || ((n->op == Ogather ||
                      n->op == Oscatter_add) && n->A[0] != a);
    default: return 0;
    }
}

/* Some operand of n that is sliced, the widest; null: none.                  */
static const Node *sliced(const Slices *s, const Node *n)
{
    const Node *x = NULL;

    for (int k = 0; k < n->nin; k++)
        if (s->is[n->in[k]->id] == EACH && (!x || is_wide(s, n->in[k])))
            x = n->in[k];
    return x;
}

/* Sets what becomes of n, which reads what stands after the head or not;
 * returns null, or why that cannot be.                                       */
static const char *kind_of(const Slices *s, const Node *n, int after,
                           char *kind)
{
    const Node *x = sliced(s, n);

    *kind = OUT;
    if (!x)
        return NULL;
    if (n->op == Odot && is_backward(n) && is_wide(s, x)) {
        int both = s->is[n->in[0]->id] && s->is[n->in[1]->id];
        *kind = has(n, s->axis) ? PRODUCT : SUM;
        return both ? "a product of two of its values" : NULL;
    }
    if (by_token(n, s->axis) && (is_wide(s, n) || !after))
        *kind = EACH;
    else if (is_wide(s, x))
        return strf(s->a, "%s reads it whole", optab[n->op].name);
    return NULL;
}

/* What only slices read, of their own size, is made a slice at a time too
 * (what a cross entropy makes of labels).                                    */
static void find_more(Slices *s)
{
    Node **v = s->g->node;
    char *other = alloc(s->a, vec_len(v) + 1);
    char *one = alloc(s->a, vec_len(v) + 1);

    for (size_t i = vec_len(v); i-- > 0;) {
        const Node *n = v[i];
        int small = n->nin && n->reg == REGbody && by_token(n, s->axis) &&
                    optab[n->op].cls != COMM;
        for (int d = 0; d < n->nd; d++)
            small &= has(s->head, n->dim[d].a);
        if (small && one[i] && !other[i])
            s->is[i] = EACH;
        for (int k = 0; k < n->nin; k++)
            (s->is[i] ? one : other)[n->in[k]->id] = 1;
    }
}

/* Null, or why the head cannot be cut along the axis.                        */
static const char *find(Slices *s)
{
    Node **v = s->g->node;
    int back = 0;

    memset(s->is, 0, vec_len(v));
    memset(s->late, 0, vec_len(v));
    s->is[s->head->id] = EACH;
    for (size_t i = (size_t)s->head->id + 1; i < vec_len(v); i++) {
        const Node *n = v[i];
        int after = 0;
        for (int k = 0; k < n->nin; k++)
            after |= s->late[n->in[k]->id];
        const char *why = kind_of(s, n, after, &s->is[i]);
        if (why)
            return why;
        if (after && s->is[i])
            return "its gradient needs the loss of other tokens";
        for (int k = 0; k < n->nin && !s->is[i]; k++)
            after |= s->is[n->in[k]->id];
        s->late[i] = after != 0;
        back |= s->is[i] == SUM;
    }
    if (!back && s->g->prog[0] == 's')
        return "nobody trains it";
    find_more(s);
    return NULL;
}

/* ---- where it is cut ----------------------------------------------------- */

/* Parts in which ranks hold the axis of n.                                   */
static int64_t held_in(const Graph *g, const Node *n, const Axis *a)
{
    uint32_t atoms = 0;

    for (int t = 0; g->mesh && t < g->mesh->natom; t++)
        if (n->sh[t].k == S && n->sh[t].a == a)
            atoms |= 1u << t;
    return cut_parts(g->mesh, a, atoms);
}

static void find_parts(Slices *s)
{
    s->parts = 1;
    for (size_t i = 0; i < vec_len(s->g->node); i++) {
        const Node *n = s->g->node[i];
        for (int k = -1; k < n->nin && s->is[i]; k++) {
            int64_t p = held_in(s->g, k < 0 ? n : n->in[k], s->axis);
            s->parts = p > s->parts ? p : s->parts;
        }
    }
}

/* Slices: as asked for, or as many as have LEAST tokens each.                */
static int count_for(const Slices *s, int64_t of)
{
    const Graph *g = s->g;
    int64_t tokens = local_elems(g, s->x), n = 1;

    if (is_given(g)) {
        n = opts_int(g->opts, "train.slices");
        return of % n ? 0 : (int)n;
    }
    for (int d = 0; d < s->x->nd; d++)
        if (lists(s->head->A, s->head->nA, s->x->dim[d].a))
            tokens /= local_n(g, s->x, d);
    if (local_bytes(g, s->head) < LITTLE)
        return 1;
    for (int64_t k = 2; k <= of && tokens / k >= LEAST; k++)
        n = of % k ? n : k;
    return (int)n;
}

/* Along the d-th axis of the head; null: so it is, in s->n slices.           */
static const char *cut_along(Slices *s, int d)
{
    s->axis = s->head->dim[d].a;
    const char *why = find(s);
    if (why)
        return why;
    find_parts(s);
    int64_t all = s->head->dim[d].n, of = all / s->parts;
    s->n = all % s->parts ? 0 : count_for(s, of);
    s->len = s->n ? of / s->n : 0;
    return NULL;
}

static int is_tokens(const Slices *s, const Dim *d)
{
    return has(s->x, d->a) && strcmp(d->a->name, "micro") && !g_isrow(d->a) &&
           (s->head->in[0] == s->x ? !has(s->head->in[1], d->a)
                                   : !has(s->head->in[0], d->a));
}

/* Along the axis of most slices, the first of equals.                        */
static const char *cut(Slices *s)
{
    const char *why = "it has no tokens";
    const Graph *g = s->g;
    int best = -1, most = 0, any = 0;

    for (int d = 0; d < s->head->nd; d++) {
        if (!is_tokens(s, &s->head->dim[d]))
            continue;
        const char *no = cut_along(s, d);
        any |= !no;
        if (!no && s->n > most) {
            most = s->n;
            best = d;
        }
        why = no;
    }
    if (best < 0 && any && is_given(g))
        err(opts_loc(g->opts, "train.slices"), "train.slices=%lld divides none "
            "of the axes %s that a rank has of line %d",
            (long long)opts_int(g->opts, "train.slices"),
            shape_text(g, s->x), s->head->loc ? s->head->loc->line : 0);
    return best < 0 ? why : cut_along(s, best);
}

/* ---- operands ------------------------------------------------------------ */

static Node *as(const Slices *s, Node *n, const Node *like)
{
    n->reg = s->head->reg;
    n->call = s->head->call;
    n->scope = like->scope;
    n->dt = like->dt;
    return n;
}

/* x's types, where they say axis `a` now `b`.                                */
static void take_types(Node *n, const Node *x, const Axis *a, Axis *b)
{
    memcpy(n->sh, x->sh, sizeof n->sh);
    for (int t = 0; t < MAXATOM; t++)
        if (n->sh[t].k == S && n->sh[t].a == a)
            n->sh[t].a = b;
}

static Axis **axes_of(const Slices *s, Axis *a, Axis *b)
{
    Axis **v = alloc(s->g->arena, 2 * sizeof *v);

    v[0] = a;
    v[1] = b;
    return v;
}

/* x's dims, the axis as `len` elements: of itself, or of each part.          */
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
    Node *n = as(s, g_node(s->g, Osplit, x->loc, 1, &x), x);
    n->A = axes_of(s, s->axis, NULL);
    n->B = axes_of(s, s->part, s->rest);
    n->nA = 1;
    n->nB = 2;
    take_dims(s, n, x, s->len * s->n);
    take_types(n, x, s->axis, s->part);
    return infer(s->g, n);
}

/* There when the head's call runs: it is of that call or read by it.         */
static void find_there(Slices *s)
{
    Node **v = s->g->node;

    for (size_t i = 0; i < vec_len(v); i++) {
        if (v[i]->reg != REGbody || v[i]->call == s->head->call || !v[i]->call)
            s->early[i] = v[i];
        for (int k = 0; k < v[i]->nin && v[i]->call == s->head->call; k++)
            s->early[v[i]->in[k]->id] = v[i]->in[k];
    }
}

/* In the call of the head, what another call makes of what is there.         */
static Node *early(Slices *s, Node *n)
{
    Node *in[MAXIN];

    if (s->early[n->id])
        return s->early[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = early(s, n->in[k]);
    Node *c = g_copyof(s->g, n, in);
    c->call = s->head->call;
    return s->early[n->id] = c;
}

static Node *slice(Slices *s, Node *x, int k)
{
    Node ***v = &s->piece[x->id];

    if (!has(x, s->axis))
        return early(s, x);
    *v = *v ? *v : alloc(s->a, (size_t)s->n * sizeof **v);
    if ((*v)[k])
        return (*v)[k];
    Node *all = in_parts(s, early(s, x));
    Node *n = as(s, g_node(s->g, Oslice, x->loc, 1, &all), all);
    n->A = axes_of(s, s->rest, NULL);
    n->nA = 1;
    n->i = k * s->len;
    n->j = s->len;
    take_dims(s, n, x, s->len);
    take_types(n, x, s->axis, s->part ? s->part : s->axis);
    return (*v)[k] = infer(s->g, n);
}

/* Null, or an operand that only a later call can make.                       */
static const Node *comes_late(const Slices *s, const Node *n)
{
    OpClass c = optab[n->op].cls;
    const Node *late = NULL;

    if (s->early[n->id] || n->mark)
        return NULL;
    if ((c != EW && c != VIEW && c != SRC && c != MOVE && c != RED &&
         n->op != Oallgather && n->op != Olocalslice) || is_transfer(n))
        return n;
    for (int k = 0; k < n->nin && !late; k++)
        late = s->is[n->in[k]->id] ? n : comes_late(s, n->in[k]);
    if (!late)
        ((Node *)(uintptr_t)n)->mark = 1;
    return late;
}

static int may_run_early(const Slices *s)
{
    for (size_t i = 0; i < vec_len(s->g->node); i++)
        s->g->node[i]->mark = 0;
    for (size_t i = 0; i < vec_len(s->g->node); i++) {
        const Node *n = s->g->node[i];
        for (int k = 0; k < n->nin && s->is[i]; k++)
            if (!s->is[n->in[k]->id] && comes_late(s, n->in[k]))
                return 0;
    }
    return 1;
}

/* ---- slices -------------------------------------------------------------- */

/* The axis in an attribute: a sum over it is one over what it is split into,
 * ranks exchange parts.                                                      */
static void take_axes(const Slices *s, Axis ***v, int *n)
{
    Axis **w = alloc(s->g->arena, ((size_t)*n + 2) * sizeof *w);
    int k = 0;

    if (!s->part || !lists(*v, *n, s->axis))
        return;
    for (int i = 0; i < *n; i++)
        w[k++] = (*v)[i] == s->axis ? s->part : (*v)[i];
    *v = w;
}

static Node *copy(Slices *s, Node *n, int k)
{
    Node *in[MAXIN];
    int sums = s->is[n->id] == SUM;

    for (int i = 0; i < n->nin; i++)
        in[i] = s->is[n->in[i]->id] ? s->copy[n->in[i]->id][k]
                                    : slice(s, n->in[i], k);
    Node *c = g_copyof(s->g, n, in);
    c->call = s->head->call;
    take_axes(s, &c->A, &c->nA);
    take_axes(s, &c->B, &c->nB);
    if (sums && s->part)
        c->A[c->nA++] = s->rest;
    if (sums && c->dt == Dbf16)
        c->dt = Df32;
    take_dims(s, c, n, s->len);
    take_types(c, n, s->axis, s->part ? s->part : s->axis);
    if (optab[n->op].cls == EW || optab[n->op].cls == RED)
        c->j = s->id + k;
    return infer(s->g, c);
}

static void make_slice(Slices *s, size_t count, int k)
{
    for (size_t i = 0; i < count; i++) {
        if (!s->is[i])
            continue;
        if (!s->copy[i])
            s->copy[i] = alloc(s->a, (size_t)s->n * sizeof *s->copy[i]);
        s->copy[i][k] = copy(s, s->g->node[i], k);
    }
}

/* ---- together again ------------------------------------------------------ */

static Node *sum(Slices *s, const Node *n)
{
    Node **v = s->copy[n->id], *r = v[0];

    for (int k = 1; k < s->n; k++) {
        r = as(s, g_ew(s->g, Oadd, n->loc, r, v[k], NULL), v[0]);
        memcpy(r->sh, n->sh, sizeof r->sh);
    }
    if (r->dt != n->dt) {
        r = as(s, g_cast(s->g, r, n->dt), v[0]);
        r->dt = n->dt;
        memcpy(r->sh, n->sh, sizeof r->sh);
    }
    return r;
}

/* Some slices of n, of len elements in all.                                  */
static Node *row(const Slices *s, const Node *n, Node *const *v, int count,
                 int64_t len)
{
    Node *r = as(s, g_node(s->g, Oconcat, n->loc, count, v), v[0]);

    r->A = axes_of(s, s->rest, NULL);
    r->nA = 1;
    take_dims(s, r, n, len);
    take_types(r, n, s->axis, s->part ? s->part : s->axis);
    return infer(s->g, r);
}

/* As many at a time as an op may read.                                       */
static Node *gathered(Slices *s, const Node *n)
{
    Node **v = s->copy[n->id], *some[MAXIN];
    int each = (s->n + MAXIN - 1) / MAXIN, k = 0;

    for (int at = 0; at < s->n; at += each) {
        int here = s->n - at < each ? s->n - at : each;
        some[k++] = here == 1 ? v[at] : row(s, n, v + at, here, s->len * here);
    }
    Node *r = row(s, n, some, k, s->len * s->n);
    if (!s->part)
        return r;
    Node *m = as(s, g_node(s->g, Omerge, n->loc, 1, &r), r);
    m->A = axes_of(s, s->part, s->rest);
    m->B = axes_of(s, s->axis, NULL);
    m->nA = 2;
    m->nB = 1;
    m->nd = n->nd;
    memcpy(m->dim, n->dim, sizeof m->dim);
    memcpy(m->sh, n->sh, sizeof m->sh);
    return infer(s->g, m);
}

static Node *whole(Slices *s, Node *n)
{
    Node **r = &s->whole[n->id];

    if (!*r)
        *r = s->is[n->id] == SUM ? sum(s, n) : gathered(s, n);
    return *r;
}

/* What reads a result reads it whole; what only adds up gradients goes where
 * they are made now.                                                         */
static void read_whole(Slices *s, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Node *n = s->g->node[i];
        int here = n->op == Oadd || n->op == Ocast || n->op == Opack ||
                   n->op == Oreducescatter || n->op == Oaccum, sums = 0;
        for (int k = 0; k < n->nin && !s->is[i]; k++) {
            int id = n->in[k]->id;
            sums |= s->is[id] == SUM || s->late[id] == 2;
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

static void visit(Node *n, Node ***out, Arena *a)
{
    if (n->mark)
        return;
    n->mark = 1;
    for (int k = 0; k < n->nin; k++)
        visit(n->in[k], out, a);
    if (n->map)
        visit(n->map, out, a);
    vec_push(a, *out, n);
}

/* New nodes stand where the head stood, operands before users.               */
static void put_in_place(Slices *s, size_t count)
{
    Graph *g = s->g;
    Node **old = g->node;
    size_t at = (size_t)s->head->id, all = vec_len(old);

    g->node = NULL;
    for (size_t i = 0; i < all; i++)
        old[i]->mark = i < count && s->is[i];
    for (size_t i = 0; i < at; i++)
        visit(old[i], &g->node, g->arena);
    for (size_t i = count; i < all; i++)
        visit(old[i], &g->node, g->arena);
    for (size_t i = at; i < count; i++)
        visit(old[i], &g->node, g->arena);
    g_tidy(g);
}

/* ---- the pass ------------------------------------------------------------ */

/* A split axis keeps lying in pieces where it did.                           */
static void name_axes(Slices *s)
{
    Graph *g = s->g;
    const char *name = s->axis->name;

    s->part = NULL;
    s->rest = s->axis;
    if (s->parts == 1)
        return;
    s->part = g_axis(g, strf(g->arena, "%s_part", name));
    s->rest = g_axis(g, strf(g->arena, "%s_here", name));
    s->part->zigzag = s->axis->root && s->axis->root->zigzag;
}

static void cut_up(Slices *s)
{
    size_t count = vec_len(s->g->node);

    name_axes(s);
    for (int k = 0; k < s->n; k++)
        make_slice(s, count, k);
    read_whole(s, count);
    put_in_place(s, count);
}

/* Does n look like a head: data times a weight, forward, into more?          */
static Node *tokens_of(Graph *g, const Node *n)
{
    Axis *micro = g_axis(g, "micro");

    if (n->op != Odot || n->reg != REGbody || n->map || is_backward(n) ||
        !has(n, micro) || has(n->in[0], micro) == has(n->in[1], micro))
        return NULL;
    return has(n->in[0], micro) ? n->in[0] : n->in[1];
}

static int slice_head(Graph *g, Node *n, int id)
{
    Slices s = { .g = g, .a = arena_new(), .head = n, .id = id };
    size_t count = vec_len(g->node) + 1;

    s.x = tokens_of(g, n);
    s.is = alloc(s.a, count);
    s.late = alloc(s.a, count);
    s.copy = alloc(s.a, count * sizeof *s.copy);
    s.piece = alloc(s.a, count * sizeof *s.piece);
    s.whole = alloc(s.a, count * sizeof *s.whole);
    s.early = alloc(s.a, count * sizeof *s.early);
    g_renumber(g);
    const char *no = cut(&s);
    find_there(&s);
    if (!no && s.n > 1 && !may_run_early(&s))
        no = "its gradient needs what comes later";
    if (!no && s.n > 1) {
        why(n, "in %d slices of %lld along %s, %lld bytes each", s.n,
            (long long)(s.head->dim[dim_of(n, s.axis)].n / s.n), s.axis->name,
            (long long)(local_bytes(g, n) / s.n));
        cut_up(&s);
    }
    int made = no ? 0 : s.n;
    if (no && (local_bytes(g, n) >= LITTLE || is_given(g)))
        why(n, "is not made in slices: %s", no);
    arena_free(s.a);
    return made > 1 ? made : 0;
}

void pass_slices(Graph *g)
{
    Node **head = NULL;
    int id = 1;

    if (is_given(g) &&
        opts_int(g->opts, "train.slices") == 1)
        return;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (tokens_of(g, g->node[i]))
            vec_push(g->arena, head, g->node[i]);
    for (size_t i = 0; i < vec_len(head); i++)
        id += slice_head(g, head[i], id);
}
