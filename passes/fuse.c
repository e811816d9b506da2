/* fuse.c: group nodes into kernels.
 *
 * Nodes are taken in order. A loop node joins the kernel of an operand, or ties
 * several of them together, when one nest of loops can make them all and no
 * other kernel stands between; else it starts a kernel. What is used outside its
 * kernel is stored, the rest never reaches memory.
 *
 * Some nodes belong to no kernel, they are rebuilt wherever they are used: views,
 * constants, iota and what little is made of them only, broadcasts, widening
 * casts, windows, moves between tokens and rows.
 *
 * One nest: let O be the axes that all stored members and all reductions have. O
 * are the kernel's items. It must not be empty unless all are scalars, and each
 * stored member must have O as its slowest axes, so that an item is a run of
 * memory: a softmax or norm with what follows it is a kernel over rows, a sum
 * over the rows (a column sum) takes in only what nobody else needs. A member
 * read at a moved index (a window, a gather) may be rebuilt there only if that
 * repeats no costly work and no item needs another's results.
 *
 * A product takes in the cast of its result and the accumulator it feeds.        */
#include "passes.h"

#include <string.h>

enum { WINDOW = 160, MOST = 48 };

typedef struct Unit {             /* a kernel in the making                     */
    struct Unit *into;            /* tied to another                            */
    Family fam;
    Region reg;
    Node **node;                  /* vec, operands first                        */
    int last;                     /* id of its last node                        */
    int seen;
    Node *alone;                  /* products: what the step stores             */
    struct Unit **before;         /* vec: read what it overwrites               */
    int wait;                     /* (ordering) units before it                 */
    struct Unit **next;
} Unit;

/* An operand as a member sees it: through views and clear nodes, with the axes
 * along which it is not read at the member's own index.                         */
typedef struct Operand { Node *n; Axis **moved; } Operand;

typedef struct Fuse {
    Graph *g;
    const Target *T;
    Arena *a;
    int n;
    Node ***user;                 /* by id: vec of direct users                 */
    char *clear;                  /* by id: rebuilt where it is used            */
    char *costly;                 /* by id: worth storing rather than repeating */
    Unit **unit;                  /* by id                                      */
    Operand **operand;            /* by id: vec, found when first asked for     */
    int *seen;                    /* by id: stamp of the last walk              */
    Unit **all;                   /* vec                                        */
    int stamp;
} Fuse;

/* ---- kinds of nodes --------------------------------------------------------------- */

static int is_red(const Node *n)
{
    return optab[n->op].cls == RED;
}

static int is_source(const Node *n)
{
    return n->op == Oinput || n->op == Oparam || n->op == Ostate ||
           n->op == Ostepval || n->op == Oarg || n->op == Opart;
}

static int in_loop(const Fuse *f, const Node *n)
{
    return !is_view(n) && f->T->loops(f->g, n);
}

static int is_function(const Node *n)
{
    const char *s = optab[n->op].lowerkind == 'E' ? optab[n->op].lower : "";

    return strchr(s, '(') && strchr(s, '(') != s && n->op != Osign;
}

static int bytes_of(const Node *n)
{
    return dtypes[n->dt].bytes;
}

/* May be rebuilt at each use without a thought.                                 */
static int is_clear(const Fuse *f, const Node *n)
{
    switch (n->op) {
    case Oconst: case Oiota: case Ospread: case Ostop_gradient: case Oslice:
    case Olocalslice: case Odispatch: case Oundispatch:
    case Orename: case Osplit: case Omerge:
        return 1;
    case Ocast:
        return bytes_of(n) >= bytes_of(n->in[0]) && !is_red(n->in[0]);
    default: break;
    }
    if (optab[n->op].lowerkind != 'E' || is_function(n) || n->nin == 0)
        return 0;
    for (int k = 0; k < n->nin; k++) {
        const Node *x = n->in[k];
        if (!(f->clear[x->id] && (x->op == Oconst || x->op == Oiota ||
                                  f->clear[x->id] == 2)))
            return 0;
    }
    return 2;
}

static int passes_by(const Fuse *f, const Node *n)
{
    return f->clear[n->id] || is_view(n);
}

/* Is n, or what is made of it for free, used by something that reads memory?     */
static int memory_use(const Fuse *f, const Node *n)
{
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++) {
        const Node *u = f->user[n->id][i];
        if (is_view(u) ? memory_use(f, u) : !in_loop(f, u))
            return 1;
    }
    return 0;
}

static void find_clear(Fuse *f)
{
    for (int i = 0; i < f->n; i++) {
        Node *n = f->g->node[i];
        f->clear[i] = in_loop(f, n) ? (char)is_clear(f, n) : 0;
    }
    for (int i = 0; i < f->n; i++)
        if (f->clear[i] && memory_use(f, f->g->node[i]))
            f->clear[i] = 0;
}

static void find_users(Fuse *f)
{
    for (int i = 0; i < f->n; i++)
        for (int k = 0; k < f->g->node[i]->nin; k++)
            vec_push(f->a, f->user[f->g->node[i]->in[k]->id], f->g->node[i]);
}

/* ---- operands through what is clear -------------------------------------------------- */

static Axis **with(const Fuse *f, Axis **v, Axis *a)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i] == a)
            return v;
    Axis **w = NULL;
    for (size_t i = 0; i < vec_len(v); i++)
        vec_push(f->a, w, v[i]);
    vec_push(f->a, w, a);
    return w;
}

/* Axes of operand k that n reads elsewhere than at its own index.               */
static Axis **moved_by(const Fuse *f, const Node *n, int k, Axis **v)
{
    const Node *x = n->in[k];

    switch (n->op) {
    case Orename: case Osplit: case Omerge: case Oslice: case Opad:
    case Oconcat: case Oshift: case Olocalslice:
        for (int i = 0; i < n->nA; i++)
            v = with(f, v, n->A[i]);
        return v;
    case Ogather:
        return k == 0 ? with(f, v, n->A[0]) : v;
    case Odispatch: case Oundispatch:
        for (int d = 0; k == 0 && d < x->nd; d++)
            if (dim_of(n, x->dim[d].a) < 0)
                v = with(f, v, x->dim[d].a);
        return v;
    default:
        return v;
    }
}

static void walk(const Fuse *f, const Node *n, Axis **moved, Operand **out)
{
    for (int k = n->op == Owrite; k < n->nin; k++) {
        Operand o = { n->in[k], moved_by(f, n, k, moved) };
        if (passes_by(f, o.n))
            walk(f, o.n, o.moved, out);
        else
            vec_push(f->a, *out, o);
    }
    if (n->map)
        vec_push(f->a, *out, ((Operand){ n->map, NULL }));
}

static Operand *operands(Fuse *f, const Node *n)
{
    if (!f->operand[n->id])
        walk(f, n, NULL, &f->operand[n->id]);
    return f->operand[n->id];
}

static Unit *root(Unit *u)
{
    while (u && u->into)
        u = u->into;
    return u;
}

static Unit *unit_of(const Fuse *f, const Node *n)
{
    return root(f->unit[n->id]);
}

/* ---- the set that would be one kernel ------------------------------------------------- */

typedef struct Set {
    Fuse *f;
    Node **node;                  /* vec; the new node last                      */
    int stamp;
} Set;

static int has(const Set *s, const Node *n)
{
    Unit *u = unit_of(s->f, n);

    return n == s->node[vec_len(s->node) - 1] || (u && u->seen == s->stamp);
}

/* Is n needed by anything but the set?                                          */
static int is_stored(const Set *s, const Node *n)
{
    if (optab[n->op].cls == SINK)
        return 1;
    for (size_t i = 0; i < vec_len(s->f->user[n->id]); i++) {
        Node *u = s->f->user[n->id][i];
        if (passes_by(s->f, u) ? is_stored(s, u) : !has(s, u) || u->reg != n->reg)
            return 1;
    }
    return 0;
}

static const Node *layout_of(const Node *n)     /* dims of what it stores         */
{
    return n->op == Owrite ? n->in[0] : n;
}

typedef struct Axes { int n; Axis *a[MAXD]; } Axes;

static int has_axis(const Axes *s, const Axis *a)
{
    for (int i = 0; i < s->n; i++)
        if (s->a[i] == a)
            return 1;
    return 0;
}

/* Axes of n that have more than one element here.                               */
static Axes axes_of(const Graph *g, const Node *n)
{
    Axes s = { 0 };

    for (int d = 0; d < n->nd; d++)
        if (local_n(g, n, d) > 1 || g_isrow(n->dim[d].a))
            s.a[s.n++] = n->dim[d].a;
    return s;
}

static void keep_common(Axes *s, const Axes *t)
{
    int k = 0;

    for (int i = 0; i < s->n; i++)
        if (has_axis(t, s->a[i]))
            s->a[k++] = s->a[i];
    s->n = k;
}

/* Are O the slowest axes of n?                                                  */
static int leads(const Graph *g, const Axes *O, const Node *n)
{
    Axes t = axes_of(g, n);

    for (int i = 0; i < O->n; i++)
        if (i >= t.n || !has_axis(O, t.a[i]))
            return 0;
    return 1;
}

static int crosses(const Operand *o, const Axes *O)
{
    for (size_t i = 0; i < vec_len(o->moved); i++)
        if (has_axis(O, o->moved[i]))
            return 1;
    return 0;
}

/* Loops that evaluating n runs over, in memory order.                           */
static const Node *space_of(const Node *n)
{
    return is_red(n) ? n->in[0] : layout_of(n);
}

/* Would reading p from m repeat costly work? Not when p's axes are the slowest
 * of m's, then it is computed once for each of their settings.                  */
static int repeats(const Set *s, const Node *m, const Operand *o)
{
    const Graph *g = s->f->g;

    if (!s->f->costly[o->n->id])
        return 0;
    Axes p = axes_of(g, o->n), q = axes_of(g, space_of(m));
    if (o->moved)
        return local_elems(g, space_of(m)) > local_elems(g, o->n);
    return q.n > p.n && !leads(g, &p, space_of(m));
}

/* Costly to rebuild: a function of a value that is not stored, or a reduction;
 * mark: needs a reduction of the set.                                           */
static void mark_costly(Set *s)
{
    for (size_t i = 0; i < vec_len(s->node); i++) {
        Node *n = s->node[i];
        Operand *op = operands(s->f, n);
        int c = is_red(n) || is_function(n) || n->op == Orandom ||
                n->op == Odropout;
        n->mark = is_red(n);
        for (size_t k = 0; k < vec_len(op); k++) {
            if (!has(s, op[k].n))
                continue;
            c |= s->f->costly[op[k].n->id];
            n->mark |= op[k].n->mark;
        }
        s->f->costly[n->id] = (char)c;
    }
}

/* The axes that all stored members and all reductions have; 0 when some stored
 * member does not have them as its slowest.                                     */
static int item_axes(Set *s, Axes *O)
{
    Graph *g = s->f->g;
    int first = 1;

    for (size_t i = 0; i < vec_len(s->node); i++) {
        Node *n = s->node[i];
        if (!is_stored(s, n) && !is_red(n))
            continue;
        Axes t = axes_of(g, layout_of(n));
        if (first)
            *O = t;
        else
            keep_common(O, &t);
        first = 0;
    }
    for (size_t i = 0; i < vec_len(s->node); i++) {
        const Node *n = s->node[i];
        if (!is_stored(s, n))
            continue;
        if ((O->n == 0 && axes_of(g, layout_of(n)).n) ||
            !leads(g, O, layout_of(n)))
            return 0;
    }
    return 1;
}

static int fits(Set *s)
{
    Axes O = { 0 };

    if (!item_axes(s, &O))
        return 0;
    mark_costly(s);
    for (size_t i = 0; i < vec_len(s->node); i++) {
        Operand *op = operands(s->f, s->node[i]);
        for (size_t k = 0; k < vec_len(op); k++) {
            if (!has(s, op[k].n))
                continue;
            int kept = op[k].n->mark || (op[k].moved && is_stored(s, op[k].n));
            if ((kept && crosses(&op[k], &O)) ||
                repeats(s, s->node[i], &op[k]))
                return 0;
        }
    }
    return 1;
}

/* ---- no kernel between --------------------------------------------------------------- */

/* Push what the kernel of n (or n itself) needs and the stamp has not seen.     */
static void push_needs(Fuse *f, const Node *n, int stamp, Node ***stack)
{
    Operand *op = operands(f, n);

    for (size_t k = 0; k < vec_len(op); k++) {
        Node *p = op[k].n->op == Opart ? op[k].n->in[0] : op[k].n;
        if (f->seen[p->id] == stamp)
            continue;
        f->seen[p->id] = stamp;
        vec_push(f->a, *stack, p);
    }
}

/* Does a kernel outside the set need the set and lead to it? Walk back from what
 * the set reads; nothing before the set's first node can depend on it.          */
static int has_detour(Set *s, int first)
{
    Fuse *f = s->f;
    Node **stack = NULL;

    for (size_t i = 0; i < vec_len(s->node); i++)
        f->seen[s->node[i]->id] = s->stamp;
    for (size_t i = 0; i < vec_len(s->node); i++)
        push_needs(f, s->node[i], s->stamp, &stack);
    for (size_t i = 0; i < vec_len(s->node); i++)
        f->seen[s->node[i]->id] = 0;
    while (vec_len(stack)) {
        size_t at = vec_len(stack) - 1;
        Node *n = stack[at];
        ((VecHead *)(void *)stack)[-1].len = at;
        if (has(s, n))
            return 1;
        Unit *u = unit_of(f, n);
        if (!u || u->last < first)
            continue;
        for (size_t k = 0; k < vec_len(u->node); k++) {
            f->seen[u->node[k]->id] = s->stamp;
            push_needs(f, u->node[k], s->stamp, &stack);
        }
    }
    return 0;
}

/* ---- joining ----------------------------------------------------------------------------- */

static Unit *new_unit(Fuse *f, Node *n, Family fam)
{
    Unit *u = alloc(f->a, sizeof *u);

    *u = (Unit){ .fam = fam, .reg = n->reg, .last = n->id };
    vec_push(f->a, u->node, n);
    vec_push(f->a, f->all, u);
    f->unit[n->id] = u;
    return u;
}

static void add_members(Set *s, Unit *u)
{
    for (size_t i = 0; i < vec_len(u->node); i++) {
        Node *n = u->node[i];
        size_t k = vec_len(s->node);
        vec_push(s->f->a, s->node, n);
        for (; k > 0 && s->node[k - 1]->id > n->id; k--)
            s->node[k] = s->node[k - 1];
        s->node[k] = n;
    }
}

static int can_join(Fuse *f, Unit *const *u, int nu, Node *n)
{
    Set s = { .f = f, .stamp = ++f->stamp };

    for (int i = 0; i < nu; i++) {
        u[i]->seen = s.stamp;
        add_members(&s, u[i]);
    }
    vec_push(f->a, s.node, n);
    if (vec_len(s.node) > MOST)
        return 0;
    return fits(&s) && !has_detour(&s, s.node[0]->id);
}

/* Kernels of n's operands, the latest first.                                    */
static int candidates(Fuse *f, Node *n, Unit **out, int max)
{
    Operand *op = operands(f, n);
    int k = 0;

    for (size_t i = 0; i < vec_len(op); i++) {
        Unit *u = unit_of(f, op[i].n);
        int known = 0;
        for (int j = 0; j < k; j++)
            known |= out[j] == u;
        if (!u || known || u->fam != FAMloop || u->reg != n->reg || k == max ||
            n->id - u->last > WINDOW)
            continue;
        int at = k++;
        for (; at > 0 && out[at - 1]->last < u->last; at--)
            out[at] = out[at - 1];
        out[at] = u;
    }
    return k;
}

static void tie(Fuse *f, Unit *const *u, int nu, Node *n)
{
    Set s = { .f = f };
    Unit *to = u[0];

    for (int i = 0; i < nu; i++) {
        add_members(&s, u[i]);
        if (i)
            u[i]->into = to;
    }
    vec_push(f->a, s.node, n);
    to->node = s.node;
    to->last = n->id;
    f->unit[n->id] = to;
}

static void place_loop(Fuse *f, Node *n)
{
    enum { TRY = 8 };
    Unit *cand[TRY], *take[TRY];
    int nc = n->op == Owrite ? 0 : candidates(f, n, cand, TRY), nt = 0;

    for (int i = 0; i < nc; i++) {
        take[nt] = cand[i];
        if (can_join(f, take, nt + 1, n))
            nt++;
    }
    if (nt)
        tie(f, take, nt, n);
    else
        new_unit(f, n, FAMloop);
}

/* ---- writes ------------------------------------------------------------------------------ */

/* A state is written in place by the kernel that makes its value when that is a
 * plain map and no other kernel must both follow it and read the old value.      */
static int is_plain_map(Fuse *f, Unit *u, const Node *state)
{
    Set s = { .f = f, .node = u->node, .stamp = ++f->stamp };
    Axes t = axes_of(f->g, state);

    u->seen = s.stamp;
    for (size_t i = 0; i < vec_len(u->node); i++) {
        const Node *n = u->node[i];
        Operand *op = operands(f, n);
        Axes q = axes_of(f->g, layout_of(n));
        if (is_red(n) || (is_stored(&s, n) &&
                          (q.n != t.n || !leads(f->g, &q, state))))
            return 0;
        for (size_t k = 0; k < vec_len(op); k++)
            if (storage(op[k].n) == state && op[k].moved)
                return 0;
    }
    return 1;
}

/* Must v run after u? By operands, and by what has been decided about writes.   */
static int depends(Fuse *f, Unit *v, const Unit *u)
{
    int stamp = ++f->stamp;
    Unit **stack = NULL;

    vec_push(f->a, stack, v);
    while (vec_len(stack)) {
        size_t at = vec_len(stack) - 1;
        Unit *x = root(stack[at]);
        ((VecHead *)(void *)stack)[-1].len = at;
        if (x == u)
            return 1;
        if (x->seen == stamp || x->reg != u->reg)
            continue;
        x->seen = stamp;
        for (size_t i = 0; i < vec_len(x->before); i++)
            vec_push(f->a, stack, x->before[i]);
        for (size_t i = 0; i < vec_len(x->node); i++) {
            Operand *op = operands(f, x->node[i]);
            for (size_t k = 0; k < vec_len(op); k++) {
                const Node *p = op[k].n;
                Unit *y = unit_of(f, p->op == Opart ? p->in[0] : p);
                if (y && y->seen != stamp)
                    vec_push(f->a, stack, y);
            }
        }
    }
    return 0;
}

/* Kernels of u's region, other than u, that read the state.                     */
static void add_readers(Fuse *f, const Node *n, const Unit *u, Unit ***out)
{
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++) {
        Node *x = f->user[n->id][i];
        Unit *v = unit_of(f, x);
        if (passes_by(f, x))
            add_readers(f, x, u, out);
        else if (v && v != u && v->reg == u->reg &&
                 !(x->op == Owrite && x->in[0] == n))
            vec_push(f->a, *out, v);
    }
}

static void join_write(Fuse *f, Node *n)
{
    Unit *u = unit_of(f, n->in[1]), *own = unit_of(f, n), **reader = NULL;
    const Node *state = storage(n->in[0]);

    if (passes_by(f, n->in[1]) || !u || u->fam != FAMloop ||
        u->reg != n->reg || vec_len(u->node) >= MOST ||
        !is_plain_map(f, u, state))
        return;
    add_readers(f, state, u, &reader);
    for (size_t i = 0; i < vec_len(reader); i++)
        if (depends(f, reader[i], u))
            return;
    for (size_t i = 0; i < vec_len(reader); i++)
        vec_push(f->a, u->before, reader[i]);
    own->into = u;
    vec_push(f->a, u->node, n);
    if (n->id > u->last)
        u->last = n->id;
}

static void join_writes(Fuse *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->g->node[i]->op == Owrite)
            join_write(f, f->g->node[i]);
}

/* ---- products and the rest ------------------------------------------------------------------ */

static Node *only_user(const Fuse *f, const Node *n)
{
    return vec_len(f->user[n->id]) == 1 ? f->user[n->id][0] : NULL;
}

static int follows(const Node *u, const Node *n)
{
    for (int d = 0; u && d < n->nd; d++)
        if (u->nd != n->nd || u->dim[d].a != n->dim[d].a)
            return 0;
    return u && u->reg == n->reg && (u->dt == Df32 || u->dt == Df64);
}

static void place_product(Fuse *f, Node *n, Family fam)
{
    Unit *u = new_unit(f, n, fam);
    Node *x = only_user(f, n);

    u->alone = n;
    if (x && x->op == Ocast && fam != FAMscatter && follows(x, n)) {
        vec_push(f->a, u->node, x);
        f->unit[x->id] = u;
        u->alone = x;
        x = only_user(f, x);
    }
    if (x && x->op == Oaccum && !strcmp(x->s, "add") && x->reg == n->reg &&
        (x->dt == Df32 || x->dt == Df64) && fam != FAMgmm &&
        (fam == FAMgmmw ? follows(x, n) : 1)) {
        vec_push(f->a, u->node, x);
        f->unit[x->id] = u;
        u->alone = x;
    }
    for (size_t i = 1; i < vec_len(u->node); i++)
        f->clear[u->node[i]->id] = 0;
}

static Family family_of(const Fuse *f, const Node *n)
{
    static const struct { const char *lower; Family fam; } row[] = {
        { "gemm", FAMgemm }, { "gmm", FAMgmm }, { "gmmw", FAMgmmw },
        { "attn", FAMattn }, { "attnback", FAMattnback }, { "topk", FAMtopk },
        { "cumsum", FAMcumsum }, { "route", FAMroute },
        { "scatter", FAMscatter }, { "comm", FAMcomm },
    };

    if (is_source(n) || is_view(n) || n->op == Ooutput)
        return FAMnone;
    if (f->T->loops(f->g, n))
        return FAMloop;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (!strcmp(optab[n->op].lower, row[i].lower))
            return row[i].fam;
    die("fuse: no kernel family for %s", optab[n->op].name);
}

static void place_all(Fuse *f)
{
    for (int i = 0; i < f->n; i++) {
        Node *n = f->g->node[i];
        Family fam = family_of(f, n);
        n->mark = 0;
        if (fam == FAMgemm || fam == FAMgmm || fam == FAMgmmw ||
            fam == FAMscatter)
            place_product(f, n, fam);
    }
    for (int i = 0; i < f->n; i++) {
        Node *n = f->g->node[i];
        Family fam = family_of(f, n);
        if (f->unit[i] || fam == FAMnone || f->clear[i])
            continue;
        if (fam == FAMloop)
            place_loop(f, n);
        else
            new_unit(f, n, fam);
    }
}

/* ---- groups ------------------------------------------------------------------------------------ */

static void add_once(Arena *a, Node ***v, int *n, Node *x)
{
    for (int i = 0; i < *n; i++)
        if ((*v)[i] == x)
            return;
    vec_push(a, *v, x);
    ++*n;
}

static void add_inputs(Fuse *f, Group *k, Unit *u, Node *n)
{
    Operand *op = operands(f, n);

    for (size_t i = 0; i < vec_len(op); i++)
        if (unit_of(f, op[i].n) != u)
            add_once(f->a, &k->in, &k->nin, storage(op[i].n));
}

static void add_results(Fuse *f, Group *k, Unit *u)
{
    Set s = { .f = f, .stamp = ++f->stamp, .node = u->node };

    u->seen = s.stamp;
    for (size_t i = 0; i < vec_len(u->node); i++) {
        Node *n = u->node[i];
        if (u->alone ? n == u->alone
                     : u->fam != FAMloop || is_stored(&s, n))
            add_once(f->a, &k->out, &k->nout, n);
    }
}

/* Results of a node with several are its parts.                                 */
static void add_parts(Fuse *f, Group *k, Node *n)
{
    k->out = NULL;
    k->nout = 0;
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++)
        if (f->user[n->id][i]->op == Opart)
            add_once(f->a, &k->out, &k->nout, f->user[n->id][i]);
}

static Group *group_of(Fuse *f, Unit *u)
{
    Group *k = alloc(f->a, sizeof *k);

    k->fam = u->fam;
    k->reg = u->reg;
    k->n = (int)vec_len(u->node);
    k->node = u->node;
    for (int i = 0; i < k->n; i++) {
        add_inputs(f, k, u, u->node[i]);
        if (u->node[i]->map)
            k->map = u->node[i]->map;
    }
    add_results(f, k, u);
    if (u->fam == FAMattn || u->fam == FAMattnback)
        add_parts(f, k, u->node[0]);
    return k;
}

/* ---- order --------------------------------------------------------------------------------------- */

static void wait_for(Fuse *f, Unit *u, Node *n)
{
    Operand *op = operands(f, n);

    for (size_t i = 0; i < vec_len(op); i++) {
        Node *p = op[i].n;
        Unit *v = unit_of(f, p->op == Opart ? p->in[0] : p);
        if (!v || v == u)
            continue;
        vec_push(f->a, v->next, u);
        u->wait++;
    }
}

/* Kernels whose operands are there, the one with the earliest last node first.  */
static Group **in_order(Fuse *f)
{
    Group **out = NULL;
    Unit **ready = NULL;
    size_t left = 0;

    for (size_t i = 0; i < vec_len(f->all); i++) {
        Unit *u = f->all[i];
        for (size_t k = 0; !u->into && k < vec_len(u->node); k++)
            wait_for(f, u, u->node[k]);
        left += !u->into;
    }
    for (size_t i = 0; i < vec_len(f->all); i++)
        for (size_t k = 0; k < vec_len(f->all[i]->before); k++) {
            vec_push(f->a, root(f->all[i]->before[k])->next, f->all[i]);
            f->all[i]->wait++;
        }
    for (size_t i = 0; i < vec_len(f->all); i++)
        if (!f->all[i]->into && !f->all[i]->wait)
            vec_push(f->a, ready, f->all[i]);
    for (; vec_len(ready); left--) {
        size_t best = 0, len = vec_len(ready);
        for (size_t i = 1; i < len; i++)
            if (ready[i]->last < ready[best]->last)
                best = i;
        Unit *u = ready[best];
        ready[best] = ready[len - 1];
        ((VecHead *)(void *)ready)[-1].len = len - 1;
        vec_push(f->a, out, group_of(f, u));
        for (size_t i = 0; i < vec_len(u->next); i++)
            if (!--u->next[i]->wait)
                vec_push(f->a, ready, u->next[i]);
    }
    if (left)
        die("fuse: %zu kernels wait for each other", left);
    return out;
}

Group **fuse(Graph *g, const Target *T, Arena *a)
{
    Fuse f = { .g = g, .T = T, .a = a };

    legalise(g);
    g_renumber(g);
    f.n = (int)vec_len(g->node);
    f.user = alloc(a, ((size_t)f.n + 1) * sizeof *f.user);
    f.clear = alloc(a, (size_t)f.n + 1);
    f.costly = alloc(a, (size_t)f.n + 1);
    f.unit = alloc(a, ((size_t)f.n + 1) * sizeof *f.unit);
    f.operand = alloc(a, ((size_t)f.n + 1) * sizeof *f.operand);
    f.seen = alloc(a, ((size_t)f.n + 1) * sizeof *f.seen);
    find_users(&f);
    find_clear(&f);
    place_all(&f);
    join_writes(&f);
    return in_order(&f);
}
