/* loop_print.c: the text of scopes and loops of a kernel.
 *
 * nest_need prints what is needed of the loops open now, reductions included:
 * what depends on no inner loop is computed before that loop opens. A reduction
 * over the contiguous loop v runs in 16 lanes, in order, folded pairwise; one
 * that keeps v ("vertical": combine over top, column sums) runs over arrays of
 * 128 elements of v. Reductions over the same loops share a pass, and a value
 * that a pass has stored for this item is loaded again rather than rebuilt. */
#include "loop.h"

/* ---- scopes -------------------------------------------------------------- */

Braces nest_enter(KernelPrinter *n, uint64_t loops)
{
    Braces s = { vec_len(n->done), n->bound };

    if (n->bound & loops)
        die("a loop is opened in itself");
    n->bound |= loops;
    n->depth++;
    return s;
}

Braces nest_open(KernelPrinter *n, int u)
{
    nest_line(n, "for (ix i%d = 0; i%d < %s; i%d++) {", u, u, nest_limit(n, u),
              u);
    return nest_enter(n, BIT(u));
}

void nest_leave(KernelPrinter *n, Braces s)
{
    for (size_t i = s.done; i < vec_len(n->done); i++)
        n->done[i]->local = n->done[i]->array = 0;
    if (n->done)
        ((VecHead *)(void *)n->done)[-1].len = s.done;
    n->bound = s.bound;
    n->depth--;
    nest_line(n, "}");
}

void nest_leave_all(KernelPrinter *n, const Braces *s, int ns)
{
    while (ns)
        nest_leave(n, s[--ns]);
}

int nest_local(KernelPrinter *n, Expr *e)
{
    e->local = ++n->nlocal;
    vec_push(n->a, n->done, e);
    return e->local;
}

void nest_compute(KernelPrinter *n, Expr *e)
{
    Store *s = nest_saved(n, e);

    if (nest_inline(e) || e->local)
        return;
    const char *text =
        s ? nest_load(n, storage(s->n), s->addr) : nest_value(n, e);
    nest_line(n, "const %s t%d = %s;", dtypes[e->dt].compute, nest_local(n, e),
              text);
}

/* ---- innermost lines ----------------------------------------------------- */

void nest_gather(KernelPrinter *n, const Expr *r, const char *how,
                 const char *t, const char *x)
{
    if (r->op == Osum)
        nest_line(n, "%s%s += %s;", how, t, x);
    else
        nest_line(n, "%s%s = %s %c %s ? %s : %s;", how, t, x,
                  r->op == Omax ? '>' : '<', t, x, t);
}

/* x as `to` holds it. */
const char *nest_stored(KernelPrinter *n, const Node *to, const char *x)
{
    return to->dt == Dbf16 ? strf(n->a, "f32_bf16(%s)", x)
                           : strf(n->a, "(%s)%s", dtypes[to->dt].store, x);
}

void nest_store(KernelPrinter *n, Store *s)
{
    Node *to = storage(s->n);
    const char *at = nest_element(n, to, s->addr), *x = nest_ref(n, s->val);

    nest_line(n, "%s = %s;", at, nest_stored(n, to, x));
}

void nest_body(KernelPrinter *n, const LoopBody *b, const char *lane)
{
    nest_need(n, b->root, b->nroot);
    for (int i = 0; i < b->nacc; i++) {
        const Expr *r = b->acc[i];
        const char *x = nest_ref(n, r->arg[0]);
        nest_gather(n, r, "", strf(n->a, "t%d[%s]", r->local, lane), x);
    }
    for (int i = 0; i < b->nst; i++)
        nest_store(n, b->st[i]);
}

/* Loop u from `from` (a multiple of LANES) to `to`. */
static void lanes(KernelPrinter *n, int u, const LoopBody *b, const char *from,
                  const char *to)
{
    nest_line(n, "for (ix j = %s; j + %d <= %s; j += %d)", from, LANES, to,
              LANES);
    nest_line(n, "#pragma GCC unroll 1"); /* left whole, it becomes vectors */
    nest_line(n, "for (int l = 0; l < %d; l++) {", LANES);
    Braces s = nest_enter(n, BIT(u));
    nest_line(n, "const ix i%d = j + l;", u);
    nest_body(n, b, "l");
    nest_leave(n, s);
    nest_line(n, "for (ix i%d = %s & -%d; i%d < %s; i%d++) {", u, to, LANES, u,
              to, u);
    s = nest_enter(n, BIT(u));
    nest_body(n, b, strf(n->a, "i%d & %d", u, LANES - 1));
    nest_leave(n, s);
}

void nest_plain(KernelPrinter *n, int u, const LoopBody *b, const char *from,
                const char *to)
{
    nest_line(n, "#pragma GCC ivdep");
    nest_line(n, "for (ix i%d = %s; i%d < %s; i%d++) {", u, from, u, to, u);
    Braces s = nest_enter(n, BIT(u));
    nest_body(n, b, strf(n->a, "i%d - v%d", u, u));
    nest_leave(n, s);
}

/* ---- reductions ---------------------------------------------------------- */

const char *nest_first(const Expr *r)
{
    if (r->op == Osum)
        return "0";
    if (r->dt == Df32 || r->dt == Df64)
        return r->op == Omax ? "-INFINITY" : "INFINITY";
    return r->op == Omax ? "INT32_MIN" : "INT32_MAX";
}

static void declare(KernelPrinter *n, Expr *const *r, int nr, int width,
                    const char *used)
{
    for (int i = 0; i < nr; i++)
        nest_line(n, "%s t%d[%d];", dtypes[r[i]->dt].compute,
                  nest_local(n, r[i]), width);
    nest_line(n, "for (int64_t l = 0; l < %s; l++) {", used);
    n->depth++;
    for (int i = 0; i < nr; i++)
        nest_line(n, "t%d[l] = %s;", r[i]->local, nest_first(r[i]));
    n->depth--;
    nest_line(n, "}");
}

static void fold(KernelPrinter *n, Expr *r)
{
    int from = r->local;

    nest_line(n, "for (int h = %d; h; h /= 2)", LANES / 2);
    nest_line(n, "for (int l = 0; l < h; l++)");
    nest_gather(n, r, "    ", strf(n->a, "t%d[l]", from),
                strf(n->a, "t%d[l + h]", from));
    nest_line(n, "const %s t%d = t%d[0];", dtypes[r->dt].compute, ++n->nlocal,
              from);
    r->local = n->nlocal;
}

LoopBody nest_sums(KernelPrinter *n, Expr **r, int nr)
{
    LoopBody b = { .nroot = nr, .acc = r, .nacc = nr };

    for (int i = 0; i < nr; i++)
        vec_push(n->a, b.root, r[i]->arg[0]);
    return b;
}

void nest_add_store(KernelPrinter *n, LoopBody *b, Store *s)
{
    vec_push(n->a, b->root, s->val);
    vec_push(n->a, b->st, s);
    b->nroot++;
    b->nst++;
}

static void arrays(KernelPrinter *n, const LoopBody *b);

/* Opens all loops of K but the last; returns the last, the scopes in s. What
 * needs none of them is computed first, arrays over b->block too. */
int nest_outer(KernelPrinter *n, uint64_t K, const LoopBody *b, Braces *s,
               int *ns)
{
    int last = -1;

    *ns = 0;
    arrays(n, b);
    for (int i = 0; i < n->norder; i++) {
        int u = n->order[i];
        if (!(K & BIT(u)))
            continue;
        if (last >= 0) {
            s[(*ns)++] = nest_open(n, last);
            nest_need(n, b->root, b->nroot);
            arrays(n, b);
        }
        last = u;
    }
    return last;
}

static int has_vertical(KernelPrinter *n, int u, const LoopBody *b)
{
    return u == n->v && vec_len(nest_pending(n, b->root, b->nroot,
                                             n->bound | BIT(u), BIT(u)));
}

void nest_inner(KernelPrinter *n, int u, const LoopBody *b)
{
    const char *end = nest_limit(n, u);

    if (!has_vertical(n, u, b)) {
        if (b->nacc)
            lanes(n, u, b, "0", end);
        else
            nest_plain(n, u, b, "0", end);
        return;
    }
    nest_line(n, "for (ix v%d = 0; v%d < %s; v%d += %d) {", u, u, end, u,
              BLOCK);
    Braces s = nest_enter(n, 0);
    nest_line(n, "const ix w%d = %s - v%d < %d ? %s : v%d + %d;", u, end, u,
              BLOCK, end, u, BLOCK);
    nest_block(n, u, b);
    nest_leave(n, s);
}

/* Is x computed where e is? Not if it is only part of a sum over its own
 * loops: that is made over others (sum_loops.c). */
static int computes(KernelPrinter *n, Expr *e, const Expr *x)
{
    if (e == x)
        return 1;
    if (e->seen == n->stamp || e->local || nest_saved(n, e) ||
        (e->kind == Xred && (e->K & x->deps)))
        return 0;
    e->seen = n->stamp;
    for (int i = 0; e->lin && i < e->lin->nt; i++)
        if (e->lin->t[i].var >= MAXLOOP &&
            computes(n, n->c->ex[e->lin->t[i].var - MAXLOOP], x))
            return 1;
    for (int i = 0; i < e->na; i++)
        if (e->arg[i] && computes(n, e->arg[i], x))
            return 1;
    return 0;
}

/* Stores that can be done on the way of a reduction over K in an item. */
void nest_ride(KernelPrinter *n, uint64_t K, LoopBody *b)
{
    int sums = b->nroot;

    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *s = &n->c->st[i];
        int found = 0;
        if (s->done || s->loops != (n->items | K) || n->bound != n->items)
            continue;
        n->stamp++;
        for (int j = 0; j < sums && !found; j++)
            found = computes(n, b->root[j], s->val);
        if (found)
            nest_add_store(n, b, s);
    }
}

static void pass(KernelPrinter *n, Expr **r, int nr)
{
    LoopBody b = nest_sums(n, r, nr);
    Braces s[MAXLOOP];
    int ns;

    nest_need(n, b.root, nr);
    nest_ride(n, r[0]->K, &b);
    declare(n, r, nr, LANES, strf(n->a, "%d", LANES));
    int u = nest_outer(n, r[0]->K, &b, s, &ns);
    nest_inner(n, u, &b);
    nest_leave_all(n, s, ns);
    for (int i = 0; i < nr; i++)
        fold(n, r[i]);
    for (int i = 0; i < b.nst; i++)
        b.st[i]->done = 1;
}

static int is_ready(KernelPrinter *n, Expr *r, Expr *const *pend, size_t np)
{
    Expr **all = nest_reached(n, r->arg, 1);

    for (size_t i = 0; i < vec_len(all); i++)
        for (size_t k = 0; k < np; k++)
            if (all[i] == pend[k])
                return 0;
    return 1;
}

/* The reductions of pend that share a pass with r, r first. */
static Expr **share(KernelPrinter *n, Expr *r, Expr *const *pend)
{
    Expr **out = NULL;
    size_t np = vec_len(pend);

    vec_push(n->a, out, r);
    for (size_t i = 0; i < np; i++)
        if (pend[i] != r && !pend[i]->local && pend[i]->K == r->K &&
            is_ready(n, pend[i], pend, np))
            vec_push(n->a, out, pend[i]);
    return out;
}

void nest_walk(KernelPrinter *n, Expr *const *root, int nroot,
               void (*value)(KernelPrinter *n, Expr *e),
               void (*sums)(KernelPrinter *n, Expr **r, int nr))
{
    Expr **pend = nest_apart(n, root, nroot, n->bound, 0);
    Expr **all = nest_reached(n, root, nroot);

    for (size_t i = 0; i < vec_len(all); i++) {
        Expr *e = all[i];
        if (e->local || (e->deps & ~n->bound))
            continue;
        if (e->kind != Xred || nest_saved(n, e)) {
            value(n, e);
            continue;
        }
        Expr **r = share(n, e, pend);
        sums(n, r, (int)vec_len(r));
    }
}

void nest_need(KernelPrinter *n, Expr *const *root, int nroot)
{
    nest_walk(n, root, nroot, nest_compute, pass);
}

/* ---- blocks of v --------------------------------------------------------- */

static void vertical(KernelPrinter *n, int u, Expr **r, int nr)
{
    LoopBody b = nest_sums(n, r, nr);
    Braces s[MAXLOOP];
    int ns;

    b.vertical = 1;
    b.block = u + 1;
    declare(n, r, nr, BLOCK, strf(n->a, "w%d - v%d", u, u));
    int last = nest_outer(n, r[0]->K, &b, s, &ns);
    s[ns++] = nest_open(n, last);
    nest_need(n, b.root, nr);
    nest_block(n, u, &b);
    nest_leave_all(n, s, ns);
    for (int i = 0; i < nr; i++)
        r[i]->array = u + 1;
}

/* Reductions that keep loop b->block - 1 and need no loop that is not open. */
static void arrays(KernelPrinter *n, const LoopBody *b)
{
    int u = b->block - 1;

    if (u < 0)
        return;
    Expr **pend = nest_apart(n, b->root, b->nroot, n->bound | BIT(u), BIT(u));
    for (size_t i = 0; i < vec_len(pend); i++) {
        if (pend[i]->local)
            continue;
        Expr **r = share(n, pend[i], pend);
        vertical(n, u, r, (int)vec_len(r));
    }
}

/* The body for elements v .. w of loop u. */
void nest_block(KernelPrinter *n, int u, const LoopBody *b)
{
    const char *v = strf(n->a, "v%d", u), *w = strf(n->a, "w%d", u);
    LoopBody x = *b;

    x.block = u + 1;
    arrays(n, &x);
    if (b->nacc && !b->vertical)
        lanes(n, u, b, v, w);
    else
        nest_plain(n, u, b, v, w);
}
