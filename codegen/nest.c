/* nest.c: order the loops of a kernel and write its text.
 *
 * Three forms, by what the stores and reductions have in common:
 *
 *   map       no reduction, all stores run over the same loops. An item is one
 *             element; the last loop is contiguous and left to the compiler.
 *   rows      an item is one setting of the loops that every result has. In it
 *             come passes over the other loops: reductions first (16 lanes, in
 *             order, folded pairwise), then stores, which use their results.
 *   columns   as rows, but the contiguous loop v is one of the item's loops: an
 *             item is a block of 128 of its elements, everything runs over arrays
 *             of that width.
 *
 * A reduction that keeps v ("vertical": combine over top, column sums) always
 * runs over such an array; one that reduces v uses lanes. At each level of the
 * nest, what depends on no inner loop is computed before that loop opens. A value
 * that a pass has stored for this item is loaded again rather than rebuilt.
 *
 * Numbers, sizes and strides are arguments: the text depends on structure.      */
#include "codegen.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, BLOCK = 128, GRAIN = 16384 };

typedef struct Nest {
    Kern *c;
    Group *k;
    Arena *a;
    Text t;
    int depth;
    uint64_t bound;               /* loops that are open                        */
    uint64_t items;               /* loops of an item                           */
    int order[MAXLOOP], norder;   /* outermost first                            */
    int v;                        /* the contiguous loop, or -1                 */
    int nlocal, stamp;
    Ex **done;                    /* vec: values printed in the open scopes     */
    const Mono **size; int *sizeat;        /* vecs: arguments that are sizes    */
    const Lin **off; int *offat;           /* ... and constant parts            */
    Ex **num; int *numat;                  /* ... and numbers, integers         */
    const Node **ext; int *extat;          /* ragged extents                    */
} Nest;

/* What the innermost lines do with the values they computed.                   */
typedef struct Body {
    Ex **root; int nroot;         /* values needed                              */
    Ex **acc; int nacc;           /* reductions to add to                       */
    Store **st; int nst;          /* stores to do                               */
    int vertical;                 /* acc are arrays over v, not lanes           */
} Body;

static void need(Nest *n, Ex *const *root, int nroot);

__attribute__((format(printf, 2, 3)))
static void line(Nest *n, const char *fmt, ...)
{
    va_list ap;

    for (int i = 0; i < n->depth; i++)
        put(&n->t, "    ");
    va_start(ap, fmt);
    const char *s = vstrf(n->a, fmt, ap);
    va_end(ap);
    putn(&n->t, s, strlen(s));
    put(&n->t, "\n");
}

static uint64_t bit(int loop)
{
    return 1ull << loop;
}

/* ---- arguments ------------------------------------------------------------------ */

static int int_of_size(Nest *n, const Mono *m)
{
    for (size_t i = 0; i < vec_len(n->size); i++)
        if (n->size[i] == m)
            return n->sizeat[i];
    int at = add_size(n->k, n->a, m->v);
    vec_push(n->a, n->size, m);
    vec_push(n->a, n->sizeat, at);
    return at;
}

static int int_of_off(Nest *n, const Lin *l)
{
    for (size_t i = 0; i < vec_len(n->off); i++)
        if (!memcmp(&n->off[i]->off, &l->off, sizeof l->off))
            return n->offat[i];
    int at = add_int(n->k, n->a, l->off);
    vec_push(n->a, n->off, l);
    vec_push(n->a, n->offat, at);
    return at;
}

static int int_of_ex(Nest *n, Ex *e)
{
    for (size_t i = 0; i < vec_len(n->num); i++)
        if (n->num[i] == e)
            return n->numat[i];
    Aff x = e->iv;
    if (e->kind == Xnum)
        memcpy(&x.c, &e->f, 8);
    int at = add_int(n->k, n->a, x);
    vec_push(n->a, n->num, e);
    vec_push(n->a, n->numat, at);
    return at;
}

/* Rows that hold something: an int32 in the route node's buffer.                */
static int extent_of(Nest *n, const Node *map)
{
    for (size_t i = 0; i < vec_len(n->ext); i++)
        if (n->ext[i] == map)
            return (int)i;
    MapLayout l = map_layout(n->c->g, map);
    int at = add_size(n->k, n->a, l.offset + l.experts);
    vec_push(n->a, n->ext, map);
    vec_push(n->a, n->extat, at);
    return (int)vec_len(n->ext) - 1;
}

static const char *limit(Nest *n, int loop)
{
    const Loop *l = &n->c->loop[loop];

    if (!l->map)
        return strf(n->a, "n%d", int_of_size(n, l->n));
    const char *e = strf(n->a, "e%d", extent_of(n, l->map));
    return l->per ? strf(n->a, "%s * n%d", e, int_of_size(n, l->per)) : e;
}

/* ---- values ------------------------------------------------------------------------ */

static const char *lin_text(Nest *n, const Lin *l);

static int plain_number(double f)
{
    double a = fabs(f);

    return a == 0 || a == 0.5 || a == 1 || a == 2 || a == 3 || a == 4;
}

static const char *number(Nest *n, Ex *e)
{
    const char *s = e->dt == Df32 ? "f" : "";

    if (e->dt == Di32 || e->dt == Di64)
        return plain_number(e->f) && e->f == floor(e->f)
             ? strf(n->a, e->f < 0 ? "(%g)" : "%g", e->f)
             : strf(n->a, "(%s)c%d", dtypes[e->dt].compute, int_of_ex(n, e));
    if (isinf(e->f))
        return e->f < 0 ? "(-INFINITY)" : "INFINITY";
    if (plain_number(e->f))
        return strf(n->a, signbit(e->f) ? "(%.1f%s)" : "%.1f%s", e->f, s);
    return strf(n->a, e->dt == Df32 ? "(float)c%d" : "c%d", int_of_ex(n, e));
}

/* How a value that is at hand is written.                                       */
static const char *ref(Nest *n, Ex *e)
{
    switch (e->kind) {
    case Xnum: return number(n, e);
    case Xint: return strf(n->a, "n%d", int_of_ex(n, e));
    case Xlin:
        return e->dt == Di64 ? strf(n->a, "(%s)", lin_text(n, e->lin))
                             : strf(n->a, "(int32_t)(%s)", lin_text(n, e->lin));
    default: break;
    }
    if (!e->local)
        die("a value is used before it is computed");
    if (e->array)
        return strf(n->a, "t%d[i%d - v%d]", e->local, e->array - 1,
                    e->array - 1);
    return strf(n->a, "t%d", e->local);
}

static const char *term_text(Nest *n, const Term *t)
{
    const char *v = t->var < MAXLOOP
                  ? strf(n->a, "i%d", t->var)
                  : ref(n, n->c->ex[t->var - MAXLOOP]);

    return t->k->n ? strf(n->a, "%s * n%d", v, int_of_size(n, t->k)) : v;
}

static const char *lin_text(Nest *n, const Lin *l)
{
    const char *s = "";

    for (int i = 0; i < l->nt; i++)
        s = strf(n->a, "%s%s%s", s, *s ? " + " : "", term_text(n, &l->t[i]));
    if (l->hasoff)
        s = strf(n->a, "%s%sn%d", s, *s ? " + " : "", int_of_off(n, l));
    return *s ? s : "0";
}

static const char *element(Nest *n, Node *buf, const Lin *at)
{
    return strf(n->a, "b%d[%s]", add_arg(n->k, n->a, buf), lin_text(n, at));
}

static const char *load_text(Nest *n, Node *buf, const Lin *at)
{
    const char *s = element(n, buf, at);

    return buf->dt == Dbf16 ? strf(n->a, "bf16_f32(%s)", s) : s;
}

static const char *operand(Nest *n, const Ex *e, int i)
{
    const char *s = ref(n, e->arg[i]);

    if (e->arg[i]->dt == e->dt || (e->raw >> i & 1))
        return s;
    return strf(n->a, "(%s)%s", dtypes[e->dt].compute, s);
}

static const char *value_text(Nest *n, Ex *e)
{
    const char *arg[4];
    Text t = { .arena = n->a };

    if (e->kind == Xload) {
        const char *s = load_text(n, e->buf, e->lin);
        return e->arg[0] ? strf(n->a, "%s ? %s : 0", ref(n, e->arg[0]), s) : s;
    }
    for (int i = 0; i < e->na; i++)
        arg[i] = operand(n, e, i);
    put(&t, "%s", "");
    if (!strcmp(e->text, "a"))
        return arg[0];
    put_expr(&t, e->text, e->letters, arg, e->suffix);
    return t.s;
}

/* ---- what depends on what ----------------------------------------------------------- */

static int is_inline(const Ex *e)
{
    return e->kind == Xnum || e->kind == Xint || e->kind == Xlin;
}

static int is_cheap(const Ex *e)
{
    return is_inline(e) || e->kind == Xload ||
           (e->kind == Xexpr && e->na == 1 && is_cheap(e->arg[0]));
}

/* The store of e that was done for this item, if its element can be named.      */
static Store *saved(Nest *n, const Ex *e)
{
    if (is_cheap(e))
        return NULL;
    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *s = &n->c->st[i];
        if (s->done && s->val == e && !(s->loops & ~n->bound))
            return s;
    }
    return NULL;
}

static void reach(Nest *n, Ex *e, Ex ***out)
{
    if (e->seen == n->stamp || e->local)
        return;
    e->seen = n->stamp;
    if (!saved(n, e)) {
        for (int i = 0; e->lin && i < e->lin->nt; i++)
            if (e->lin->t[i].var >= MAXLOOP)
                reach(n, n->c->ex[e->lin->t[i].var - MAXLOOP], out);
        for (int i = 0; i < e->na; i++)
            if (e->arg[i])
                reach(n, e->arg[i], out);
    }
    vec_push(n->a, *out, e);
}

/* Values not at hand that the roots need, operands first.                       */
static Ex **reached(Nest *n, Ex *const *root, int nroot)
{
    Ex **out = NULL;

    n->stamp++;
    for (int i = 0; i < nroot; i++)
        reach(n, root[i], &out);
    return out;
}

/* Reductions among them that can be done once the loops in `open` are.          */
static Ex **pending(Nest *n, Ex *const *root, int nroot, uint64_t open,
                    uint64_t with)
{
    Ex **all = reached(n, root, nroot), **out = NULL;

    for (size_t i = 0; i < vec_len(all); i++) {
        Ex *e = all[i];
        if (e->kind == Xred && !saved(n, e) && !(e->deps & ~open) &&
            (e->deps & with) == with)
            vec_push(n->a, out, e);
    }
    return out;
}

/* ---- scopes ------------------------------------------------------------------------ */

typedef struct Scope { size_t done; uint64_t bound; } Scope;

static Scope enter(Nest *n, uint64_t loops)
{
    Scope s = { vec_len(n->done), n->bound };

    n->bound |= loops;
    n->depth++;
    return s;
}

static void leave(Nest *n, Scope s)
{
    for (size_t i = s.done; i < vec_len(n->done); i++)
        n->done[i]->local = n->done[i]->array = 0;
    if (n->done)
        ((VecHead *)(void *)n->done)[-1].len = s.done;
    n->bound = s.bound;
    n->depth--;
    line(n, "}");
}

static int new_local(Nest *n, Ex *e)
{
    e->local = ++n->nlocal;
    vec_push(n->a, n->done, e);
    return e->local;
}

static void compute(Nest *n, Ex *e)
{
    Store *s = saved(n, e);

    if (is_inline(e) || e->local)
        return;
    const char *text = s ? load_text(n, storage(s->n), s->addr)
                         : value_text(n, e);
    line(n, "const %s t%d = %s;", dtypes[e->dt].compute, new_local(n, e), text);
}

/* ---- innermost lines ------------------------------------------------------------------ */

static void accumulate(Nest *n, const Ex *r, const char *lane)
{
    const char *x = ref(n, r->arg[0]);
    const char *a = strf(n->a, "t%d[%s]", r->local, lane);

    if (r->op == Osum)
        line(n, "%s += %s;", a, x);
    else
        line(n, "%s = %s %c %s ? %s : %s;", a, x, r->op == Omax ? '>' : '<', a,
             x, a);
}

static void store(Nest *n, Store *s)
{
    Node *to = storage(s->n);
    const char *at = element(n, to, s->addr), *x = ref(n, s->val);

    if (to->dt == Dbf16)
        line(n, "%s = f32_bf16(%s);", at, x);
    else
        line(n, "%s = (%s)%s;", at, dtypes[to->dt].store, x);
}

static void body(Nest *n, const Body *b, const char *lane)
{
    need(n, b->root, b->nroot);
    for (int i = 0; i < b->nacc; i++)
        accumulate(n, b->acc[i], lane);
    for (int i = 0; i < b->nst; i++)
        store(n, b->st[i]);
}

/* Loop u from `from` (a multiple of LANES) to `to`.                             */
static void lanes(Nest *n, int u, const Body *b, const char *from,
                  const char *to)
{
    line(n, "for (int64_t j = %s; j + %d <= %s; j += %d)", from, LANES, to,
         LANES);
    line(n, "for (int l = 0; l < %d; l++) {", LANES);
    Scope s = enter(n, bit(u));
    line(n, "const int64_t i%d = j + l;", u);
    body(n, b, "l");
    leave(n, s);
    line(n, "for (int64_t i%d = %s & -%d; i%d < %s; i%d++) {", u, to, LANES, u,
         to, u);
    s = enter(n, bit(u));
    body(n, b, strf(n->a, "i%d & %d", u, LANES - 1));
    leave(n, s);
}

static void plain(Nest *n, int u, const Body *b, const char *from,
                  const char *to)
{
    line(n, "#pragma GCC ivdep");
    line(n, "for (int64_t i%d = %s; i%d < %s; i%d++) {", u, from, u, to, u);
    Scope s = enter(n, bit(u));
    body(n, b, strf(n->a, "i%d - v%d", u, u));
    leave(n, s);
}

static void block(Nest *n, int u, const Body *b);

/* ---- reductions ------------------------------------------------------------------------ */

static const char *first_value(const Ex *r)
{
    if (r->op == Osum)
        return "0";
    if (r->dt == Df32 || r->dt == Df64)
        return r->op == Omax ? "-INFINITY" : "INFINITY";
    return r->op == Omax ? "INT32_MIN" : "INT32_MAX";
}

static void declare(Nest *n, Ex *const *r, int nr, int width, const char *used)
{
    for (int i = 0; i < nr; i++)
        line(n, "%s t%d[%d];", dtypes[r[i]->dt].compute, new_local(n, r[i]),
             width);
    line(n, "for (int64_t l = 0; l < %s; l++) {", used);
    n->depth++;
    for (int i = 0; i < nr; i++)
        line(n, "t%d[l] = %s;", r[i]->local, first_value(r[i]));
    n->depth--;
    line(n, "}");
}

static void fold(Nest *n, Ex *r)
{
    int from = r->local;
    const char *a = strf(n->a, "t%d[l]", from);
    const char *x = strf(n->a, "t%d[l + h]", from);

    line(n, "for (int h = %d; h; h /= 2)", LANES / 2);
    line(n, "for (int l = 0; l < h; l++)");
    if (r->op == Osum)
        line(n, "    %s += %s;", a, x);
    else
        line(n, "    %s = %s %c %s ? %s : %s;", a, x,
             r->op == Omax ? '>' : '<', a, x, a);
    line(n, "const %s t%d = t%d[0];", dtypes[r->dt].compute, ++n->nlocal, from);
    r->local = n->nlocal;
}

static Ex **bodies(Nest *n, Ex *const *r, int nr)
{
    Ex **b = NULL;

    for (int i = 0; i < nr; i++)
        vec_push(n->a, b, r[i]->arg[0]);
    return b;
}

/* Opens all loops of K but the last; returns the last, the scopes in s.         */
static int open_outer(Nest *n, uint64_t K, const Body *b, Scope *s, int *ns)
{
    int last = -1;

    *ns = 0;
    for (int i = 0; i < n->norder; i++) {
        int u = n->order[i];
        if (!(K & bit(u)))
            continue;
        if (last >= 0) {
            line(n, "for (int64_t i%d = 0; i%d < %s; i%d++) {", last, last,
                 limit(n, last), last);
            s[(*ns)++] = enter(n, bit(last));
            need(n, b->root, b->nroot);
        }
        last = u;
    }
    return last;
}

static int has_vertical(Nest *n, int u, const Body *b)
{
    return u == n->v &&
           vec_len(pending(n, b->root, b->nroot, n->bound | bit(u), bit(u)));
}

static void inner(Nest *n, int u, const Body *b)
{
    const char *end = limit(n, u);

    if (!has_vertical(n, u, b)) {
        if (b->nacc)
            lanes(n, u, b, "0", end);
        else
            plain(n, u, b, "0", end);
        return;
    }
    line(n, "for (int64_t v%d = 0; v%d < %s; v%d += %d) {", u, u, end, u, BLOCK);
    Scope s = enter(n, 0);
    line(n, "const int64_t w%d = %s - v%d < %d ? %s : v%d + %d;", u, end, u,
         BLOCK, end, u, BLOCK);
    block(n, u, b);
    leave(n, s);
}

/* Stores that can be done on the way of a reduction over K in an item.          */
static void ride(Nest *n, uint64_t K, Body *b)
{
    Ex **all = reached(n, b->root, b->nroot);

    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *s = &n->c->st[i];
        if (s->done || s->loops != (n->items | K) || n->bound != n->items)
            continue;
        for (size_t j = 0; j < vec_len(all); j++)
            if (all[j] == s->val) {
                vec_push(n->a, b->st, s);
                b->nst++;
                break;
            }
    }
}

static void pass(Nest *n, Ex **r, int nr)
{
    Body b = { .root = bodies(n, r, nr), .nroot = nr, .acc = r, .nacc = nr };
    Scope s[MAXLOOP];
    int ns;

    need(n, b.root, nr);
    ride(n, r[0]->K, &b);
    declare(n, r, nr, LANES, strf(n->a, "%d", LANES));
    int u = open_outer(n, r[0]->K, &b, s, &ns);
    inner(n, u, &b);
    while (ns)
        leave(n, s[--ns]);
    for (int i = 0; i < nr; i++)
        fold(n, r[i]);
    for (int i = 0; i < b.nst; i++)
        b.st[i]->done = b.st[i]->early = 1;
}

static int is_ready(Nest *n, Ex *r, Ex *const *pend, size_t np)
{
    Ex **all = reached(n, r->arg, 1);

    for (size_t i = 0; i < vec_len(all); i++)
        for (size_t k = 0; k < np; k++)
            if (all[i] == pend[k])
                return 0;
    return 1;
}

/* The reductions of pend that share a pass with r, r first.                     */
static Ex **share(Nest *n, Ex *r, Ex *const *pend)
{
    Ex **out = NULL;
    size_t np = vec_len(pend);

    vec_push(n->a, out, r);
    for (size_t i = 0; i < np; i++)
        if (pend[i] != r && !pend[i]->local && pend[i]->K == r->K &&
            is_ready(n, pend[i], pend, np))
            vec_push(n->a, out, pend[i]);
    return out;
}

/* Compute what the roots need of the loops open now.                            */
static void need(Nest *n, Ex *const *root, int nroot)
{
    Ex **pend = pending(n, root, nroot, n->bound, 0);
    Ex **all = reached(n, root, nroot);

    for (size_t i = 0; i < vec_len(all); i++) {
        Ex *e = all[i];
        if (e->local || (e->deps & ~n->bound))
            continue;
        if (e->kind != Xred || saved(n, e)) {
            compute(n, e);
            continue;
        }
        Ex **r = share(n, e, pend);
        pass(n, r, (int)vec_len(r));
    }
}

/* ---- blocks of v -------------------------------------------------------------------- */

static void vertical(Nest *n, int u, Ex **r, int nr)
{
    Body b = { .root = bodies(n, r, nr), .nroot = nr, .acc = r, .nacc = nr,
               .vertical = 1 };
    Scope s[MAXLOOP];
    int ns;

    declare(n, r, nr, BLOCK, strf(n->a, "w%d - v%d", u, u));
    int last = open_outer(n, r[0]->K, &b, s, &ns);
    line(n, "for (int64_t i%d = 0; i%d < %s; i%d++) {", last, last,
         limit(n, last), last);
    s[ns++] = enter(n, bit(last));
    need(n, b.root, nr);
    block(n, u, &b);
    while (ns)
        leave(n, s[--ns]);
    for (int i = 0; i < nr; i++)
        r[i]->array = u + 1;
}

/* The body for elements v .. w of loop u.                                       */
static void block(Nest *n, int u, const Body *b)
{
    Ex **pend = pending(n, b->root, b->nroot, n->bound | bit(u), bit(u));
    const char *v = strf(n->a, "v%d", u), *w = strf(n->a, "w%d", u);

    for (size_t i = 0; i < vec_len(pend); i++) {
        if (pend[i]->local)
            continue;
        Ex **r = share(n, pend[i], pend);
        vertical(n, u, r, (int)vec_len(r));
    }
    if (b->nacc && !b->vertical)
        lanes(n, u, b, v, w);
    else
        plain(n, u, b, v, w);
}

/* ---- order of loops -------------------------------------------------------------------- */

static uint64_t loops_of(const Kern *c, const Lin *l)
{
    uint64_t m = 0;

    for (int i = 0; i < l->nt; i++)
        if (l->t[i].var < MAXLOOP)
            m |= bit(l->t[i].var);
    (void)c;
    return m;
}

static const Mono *stride_of(const Lin *l, int loop)
{
    for (int i = 0; i < l->nt; i++)
        if (l->t[i].var == loop)
            return l->t[i].k;
    return NULL;
}

/* Put the loops of access l that are not ordered yet outside those that are, by
 * falling stride.                                                               */
static void order_by(Nest *n, const Lin *l, uint64_t *left)
{
    int add[MAXLOOP], k = 0;
    uint64_t m = loops_of(n->c, l) & *left;

    for (int u = 0; u < n->c->nloop; u++) {
        if (!(m & bit(u)))
            continue;
        int at = k++;
        for (; at > 0 && stride_of(l, add[at - 1])->n < stride_of(l, u)->n; at--)
            add[at] = add[at - 1];
        add[at] = u;
    }
    memmove(n->order + k, n->order, (size_t)n->norder * sizeof *n->order);
    memcpy(n->order, add, (size_t)k * sizeof *add);
    n->norder += k;
    *left &= ~m;
}

static int count_bits(uint64_t m)
{
    int k = 0;

    for (; m; m &= m - 1)
        k++;
    return k;
}

/* Accesses, stores first, then loads in use.                                    */
static const Lin **accesses(Nest *n)
{
    Kern *c = n->c;
    const Lin **v = NULL;

    for (size_t i = 0; i < vec_len(c->st); i++)
        vec_push(n->a, v, c->st[i].addr);
    for (size_t i = 0; i < vec_len(c->ex); i++)
        if (c->ex[i]->seen && c->ex[i]->kind == Xload)
            vec_push(n->a, v, c->ex[i]->lin);
    return v;
}

static uint64_t all_loops(Nest *n)
{
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        m |= n->c->st[i].loops;
    for (size_t i = 0; i < vec_len(n->c->ex); i++)
        if (n->c->ex[i]->seen)
            m |= n->c->ex[i]->K;
    return m;
}

static void order_loops(Nest *n)
{
    const Lin **acc = accesses(n), *big = acc[0];
    uint64_t left = all_loops(n), all = left;

    for (size_t i = 1; i < vec_len(acc); i++)
        if (count_bits(loops_of(n->c, acc[i])) >
            count_bits(loops_of(n->c, big)))
            big = acc[i];
    order_by(n, big, &left);
    for (size_t i = 0; i < vec_len(acc); i++)
        order_by(n, acc[i], &left);
    for (int u = 0; u < n->c->nloop; u++)
        if (left & bit(u)) {
            memmove(n->order + 1, n->order,
                    (size_t)n->norder++ * sizeof *n->order);
            n->order[0] = u;
        }
    n->v = -1;
    if (n->norder) {
        int u = n->order[n->norder - 1];
        const Mono *k = stride_of(big, u);
        n->v = (all & bit(u)) && k && k->n == 0 ? u : -1;
    }
}

/* ---- forms ------------------------------------------------------------------------------- */

static Ex **reductions(Nest *n)
{
    Ex **r = NULL;

    for (size_t i = 0; i < vec_len(n->c->ex); i++)
        if (n->c->ex[i]->seen && n->c->ex[i]->kind == Xred)
            vec_push(n->a, r, n->c->ex[i]);
    return r;
}

/* Loops of an item, ragged one first.                                           */
static int item_loops(Nest *n, uint64_t m, int *u)
{
    int k = 0;

    for (int pick = 1; pick >= 0; pick--)
        for (int i = 0; i < n->norder; i++)
            if ((m & bit(n->order[i])) &&
                !!n->c->loop[n->order[i]].map == pick)
                u[k++] = n->order[i];
    return k;
}

static const Mono *count_of(Nest *n, const int *u, int from, int to)
{
    const Mono *m = mono_one(n->c->pool);

    for (int i = from; i < to; i++)
        m = mono_mul(n->c->pool, m, n->c->loop[u[i]].n);
    return m;
}

/* Index variables of the loops u[0..k), set from the number q of their setting.  */
static void decode(Nest *n, const int *u, int k, const char *q)
{
    if (k)
        line(n, "int64_t d = %s;", q);
    for (int i = k - 1; i > 0; i--) {
        int at = int_of_size(n, n->c->loop[u[i]].n);
        line(n, "int64_t i%d = d %% n%d;", u[i], at);
        line(n, "d /= n%d;", at);
    }
    if (k)
        line(n, "int64_t i%d = d;", u[0]);
}

/* The next setting: the last index counts up, with carry.                       */
static void advance(Nest *n, const int *u, int k)
{
    for (int i = k - 1; i >= 0; i--) {
        int at = int_of_size(n, n->c->loop[u[i]].n);
        if (i == 0)
            line(n, "%si%d++;", k > 1 ? "    " : "", u[i]);
        else
            line(n, "%sif (++i%d == n%d && !(i%d = 0))", i < k - 1 ? "    " : "",
                 u[i], at, u[i]);
    }
}

static void cap_items(Nest *n, const int *u, int k, const char *per)
{
    if (!k || !n->c->loop[u[0]].map)
        return;
    const Mono *m = count_of(n, u, 1, k);
    const char *end = limit(n, u[0]);
    if (m->n)
        end = strf(n->a, "%s * n%d", end, int_of_size(n, m));
    if (per)
        end = strf(n->a, "%s * %s", end, per);
    line(n, "if (hi > %s)", end);
    line(n, "    hi = %s;", end);
}

static Body store_body(Nest *n, uint64_t loops)
{
    Body b = { 0 };

    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *s = &n->c->st[i];
        if (s->done || s->loops != loops)
            continue;
        vec_push(n->a, b.root, s->val);
        vec_push(n->a, b.st, s);
        b.nroot = ++b.nst;
    }
    return b;
}

static int64_t map_form(Nest *n)
{
    int u[MAXLOOP];
    uint64_t all = n->c->st[0].loops;
    Body b = store_body(n, all);
    int k = item_loops(n, all, u);

    cap_items(n, u, k, NULL);
    need(n, b.root, b.nroot);
    if (k <= 1) {
        if (k == 0)
            line(n, "for (int64_t p = lo; p < hi; p++) {");
        else
            line(n, "#pragma GCC ivdep"), line(n,
                 "for (int64_t i%d = lo; i%d < hi; i%d++) {", u[0], u[0], u[0]);
        Scope s = enter(n, all);
        body(n, &b, NULL);
        leave(n, s);
        return count_of(n, u, 0, k)->v;
    }
    int v = u[k - 1], size = int_of_size(n, n->c->loop[v].n);
    decode(n, u, k - 1, strf(n->a, "lo / n%d", size));
    line(n, "for (int64_t p = lo, f = lo %% n%d, w; p < hi; p += w - f, f = 0) {",
         size);
    Scope s = enter(n, all & ~bit(v));
    line(n, "w = n%d - f < hi - p ? n%d : f + hi - p;", size, size);
    need(n, b.root, b.nroot);
    plain(n, v, &b, "f", "w");
    advance(n, u, k - 1);
    leave(n, s);
    return count_of(n, u, 0, k)->v;
}

/* All stores of an item, those over the same loops together.                    */
static void stages(Nest *n, int block_of)
{
    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *st = &n->c->st[i];
        Scope s[MAXLOOP];
        int ns;
        if (st->done)
            continue;
        uint64_t rest = st->loops & ~n->items;
        Body b = store_body(n, st->loops);
        need(n, b.root, b.nroot);
        if (block_of >= 0) {
            int last = open_outer(n, rest, &b, s, &ns);
            if (last >= 0) {
                line(n, "for (int64_t i%d = 0; i%d < %s; i%d++) {", last, last,
                     limit(n, last), last);
                s[ns++] = enter(n, bit(last));
                need(n, b.root, b.nroot);
            }
            block(n, block_of, &b);
        } else {
            int last = open_outer(n, rest, &b, s, &ns);
            if (last >= 0)
                inner(n, last, &b);
            else
                for (int j = 0; j < b.nst; j++)
                    store(n, b.st[j]);
        }
        while (ns)
            leave(n, s[--ns]);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}

static Ex **all_values(Nest *n)
{
    Ex **v = NULL;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        vec_push(n->a, v, n->c->st[i].val);
    return v;
}

static int64_t rows_form(Nest *n)
{
    int u[MAXLOOP], k = item_loops(n, n->items, u);
    Ex **v = all_values(n);

    cap_items(n, u, k, NULL);
    if (n->items)
        need(n, v, (int)vec_len(v));
    decode(n, u, k, "lo");
    line(n, "for (int64_t p = lo; p < hi; p++) {");
    Scope s = enter(n, n->items);
    need(n, v, (int)vec_len(v));
    stages(n, -1);
    advance(n, u, k);
    leave(n, s);
    return count_of(n, u, 0, k)->v;
}

static int64_t columns_form(Nest *n)
{
    int u[MAXLOOP], v = n->v, k = item_loops(n, n->items & ~bit(v), u);
    Ex **x = all_values(n);
    int size = int_of_size(n, n->c->loop[v].n);
    const char *end = limit(n, v);

    line(n, "const int64_t nb = (n%d + %d) / %d;", size, BLOCK - 1, BLOCK);
    cap_items(n, u, k, "nb");
    need(n, x, (int)vec_len(x));
    line(n, "for (int64_t p = lo; p < hi; p++) {");
    n->items &= ~bit(v);
    Scope s = enter(n, n->items);
    line(n, "const int64_t v%d = p %% nb * %d;", v, BLOCK);
    line(n, "const int64_t w%d = %s - v%d < %d ? %s : v%d + %d;", v, end, v,
         BLOCK, end, v, BLOCK);
    decode(n, u, k, "p / nb");
    need(n, x, (int)vec_len(x));
    n->items |= bit(v);
    stages(n, v);
    leave(n, s);
    return count_of(n, u, 0, k)->v *
           ((n->c->loop[v].n->v + BLOCK - 1) / BLOCK);
}

/* ---- the kernel ------------------------------------------------------------------------ */

static int is_map(Nest *n, Ex *const *red)
{
    for (size_t i = 1; i < vec_len(n->c->st); i++)
        if (n->c->st[i].loops != n->c->st[0].loops)
            return 0;
    return vec_len(red) == 0;
}

static uint64_t common_loops(Nest *n, Ex *const *red)
{
    uint64_t m = n->c->st[0].loops;

    for (size_t i = 1; i < vec_len(n->c->st); i++)
        m &= n->c->st[i].loops;
    for (size_t i = 0; i < vec_len(red); i++)
        m &= red[i]->deps;
    return m;
}

static double elements(Nest *n, uint64_t m)
{
    double e = 1;

    for (int u = 0; u < n->c->nloop; u++)
        if (m & bit(u))
            e *= (double)n->c->loop[u].n->v;
    return e;
}

static double work(Nest *n, Ex *const *red)
{
    double w = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        w += elements(n, n->c->st[i].loops);
    for (size_t i = 0; i < vec_len(red); i++)
        w += elements(n, red[i]->deps | red[i]->K);
    return w;
}

static void prologue(Nest *n, Text *t)
{
    Group *k = n->k;

    put(t, "{\n");
    for (int i = 0; i < k->narg; i++)
        put(t, "    %s *const b%d = buf[%d];\n", dtypes[k->arg[i]->dt].store, i,
            i);
    for (int i = 2; i < k->step.nint; i++)
        put(t, "    const int64_t n%d = iv[%d]; (void)n%d;\n", i, i, i);
    for (size_t i = 0; i < vec_len(n->num); i++)
        if (n->num[i]->kind == Xnum)
            put(t, "    const double c%d = number(iv[%d]);\n", n->numat[i],
                n->numat[i]);
    for (size_t i = 0; i < vec_len(n->ext); i++)
        put(t, "    const int64_t e%zu = b%d[n%d];\n", i,
            add_arg(k, n->a, storage((Node *)n->ext[i])), n->extat[i]);
}

static void set_cost(Nest *n)
{
    Group *k = n->k;
    const Graph *g = n->c->g;

    for (int i = 0; i < k->narg; i++)
        k->step.bytes += (double)local_bytes(g, k->arg[i]);
    for (int i = 0; i < k->n; i++)
        k->step.flops += cost_of(g, k->node[i]).flops;
}

void kern_print(Kern *c)
{
    Nest n = { .c = c, .k = c->k, .a = c->a, .depth = 1,
               .t = { .arena = c->a } };
    Text all = { .arena = c->a };
    Ex **red = reductions(&n);

    n.stamp = 1;
    add_size(c->k, c->a, 0);
    add_size(c->k, c->a, 1);
    order_loops(&n);
    n.items = common_loops(&n, red);
    int map = is_map(&n, red), cols = n.v >= 0 && (n.items & bit(n.v));
    int64_t items = map ? map_form(&n) : cols ? columns_form(&n)
                                             : rows_form(&n);
    double per = work(&n, red) / (double)(items ? items : 1);
    c->k->step.iv[0] = aff(items);
    c->k->step.iv[1] = aff(per >= GRAIN ? 1 : (int64_t)(GRAIN / per));
    for (size_t i = 0; i < vec_len(n.ext); i++)
        add_arg(c->k, c->a, storage((Node *)n.ext[i]));
    prologue(&n, &all);
    putn(&all, n.t.s, n.t.len);
    put(&all, "}\n");
    set_text(c->k, c->a, all.s);
    set_cost(&n);
}
