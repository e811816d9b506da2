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

Braces nest_enter(KernelPrinter *printer, uint64_t loops)
{
    Braces s = { vec_len(printer->done), printer->bound };

    if (printer->bound & loops)
        die("a loop is opened in itself");
    printer->bound |= loops;
    printer->depth++;
    return s;
}

Braces nest_open(KernelPrinter *printer, int u)
{
    nest_line(printer, "for (ix i%d = 0; i%d < %s; i%d++) {", u, u,
              nest_limit(printer, u), u);
    return nest_enter(printer, BIT(u));
}

void nest_leave(KernelPrinter *printer, Braces s)
{
    for (size_t i = s.done; i < vec_len(printer->done); i++)
        printer->done[i]->local = printer->done[i]->array = 0;
    vec_cut(printer->done, s.done);
    printer->bound = s.bound;
    printer->depth--;
    nest_line(printer, "}");
}

void nest_leave_all(KernelPrinter *printer, const Braces *out, int ns)
{
    while (ns)
        nest_leave(printer, out[--ns]);
}

int nest_local(KernelPrinter *printer, Expr *expr)
{
    expr->local = ++printer->nlocal;
    vec_push(printer->arena, printer->done, expr);
    return expr->local;
}

void nest_compute(KernelPrinter *printer, Expr *expr)
{
    Store *s = nest_saved(printer, expr);

    if (nest_inline(expr) || expr->local)
        return;
    expr->open |= printer->bound;
    const char *text = s ? nest_load(printer, storage(s->node), s->addr)
                         : nest_value(printer, expr);
    nest_line(printer, "const %s t%d = %s;", dtypes[expr->dt].compute,
              nest_local(printer, expr), text);
}

/* ---- innermost lines ----------------------------------------------------- */

void nest_gather(KernelPrinter *printer, const Expr *expr, const char *how,
                 const char *t, const char *x)
{
    if (expr->op == Osum)
        nest_line(printer, "%s%s += %s;", how, t, x);
    else
        nest_line(printer, "%s%s = %s %c %s ? %s : %s;", how, t, x,
                  expr->op == Omax ? '>' : '<', t, x, t);
}

Expr *nest_stored(const Store *store)
{
    return ex_unrounded(storage(store->node)->dt, store->val);
}

void nest_store(KernelPrinter *printer, Store *store)
{
    Node *to = storage(store->node);
    const char *at = nest_element(printer, to, store->addr),
               *x = nest_ref(printer, nest_stored(store));

    nest_line(printer, "%s = %s;", at, text_save(printer->arena, to->dt, x));
}

void nest_body(KernelPrinter *printer, const LoopBody *body, const char *lane)
{
    nest_need(printer, body->root, body->nroot);
    for (int i = 0; i < body->nacc; i++) {
        const Expr *r = body->acc[i];
        const char *x = nest_ref(printer, r->arg[0]);
        nest_gather(printer, r, "",
                    strf(printer->arena, "t%d[%s]", r->local, lane), x);
    }
    for (int i = 0; i < body->nst; i++)
        nest_store(printer, body->st[i]);
}

/* Loop u from `from` (a multiple of LANES) to `to`. */
static void lanes(KernelPrinter *printer, int u, const LoopBody *body,
                  const char *from, const char *to)
{
    nest_line(printer, "for (ix j = %s; j + %d <= %s; j += %d)", from, LANES,
              to, LANES);
    nest_line(printer,
              "#pragma GCC unroll 1"); /* left whole, it becomes vectors */
    nest_line(printer, "for (int l = 0; l < %d; l++) {", LANES);
    Braces s = nest_enter(printer, BIT(u));
    nest_line(printer, "const ix i%d = j + l;", u);
    nest_body(printer, body, "l");
    nest_leave(printer, s);
    nest_line(printer, "for (ix i%d = %s & -%d; i%d < %s; i%d++) {", u, to,
              LANES, u, to, u);
    s = nest_enter(printer, BIT(u));
    nest_body(printer, body, strf(printer->arena, "i%d & %d", u, LANES - 1));
    nest_leave(printer, s);
}

void nest_plain(KernelPrinter *printer, int u, const LoopBody *body,
                const char *from, const char *to)
{
    nest_line(printer, "#pragma GCC ivdep");
    nest_line(printer, "for (ix i%d = %s; i%d < %s; i%d++) {", u, from, u, to,
              u);
    Braces s = nest_enter(printer, BIT(u));
    nest_body(printer, body, strf(printer->arena, "i%d - v%d", u, u));
    nest_leave(printer, s);
}

/* ---- reductions ---------------------------------------------------------- */

const char *nest_first(const Expr *expr)
{
    if (expr->op == Osum)
        return "0";
    if (expr->dt == Df32 || expr->dt == Df64)
        return expr->op == Omax ? "-INFINITY" : "INFINITY";
    return expr->op == Omax ? "INT32_MIN" : "INT32_MAX";
}

static void declare(KernelPrinter *printer, Expr *const *r, int nr, int width,
                    const char *used)
{
    for (int i = 0; i < nr; i++) {
        int t = nest_local(printer, r[i]);
        nest_line(printer, "%s t%d[%d]; UNWRITTEN(t%d);",
                  dtypes[r[i]->dt].compute, t, width, t);
    }
    nest_line(printer, "for (int64_t l = 0; l < %s; l++) {", used);
    printer->depth++;
    for (int i = 0; i < nr; i++)
        nest_line(printer, "t%d[l] = %s;", r[i]->local, nest_first(r[i]));
    printer->depth--;
    nest_line(printer, "}");
}

static void fold(KernelPrinter *printer, Expr *expr)
{
    int from = expr->local;

    nest_line(printer, "for (int h = %d; h; h /= 2)", LANES / 2);
    nest_line(printer, "for (int l = 0; l < h; l++)");
    nest_gather(printer, expr, "    ", strf(printer->arena, "t%d[l]", from),
                strf(printer->arena, "t%d[l + h]", from));
    nest_line(printer, "const %s t%d = t%d[0];", dtypes[expr->dt].compute,
              ++printer->nlocal, from);
    expr->local = printer->nlocal;
}

LoopBody nest_sums(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = { .nroot = nr, .acc = r, .nacc = nr };

    for (int i = 0; i < nr; i++)
        vec_push(printer->arena, b.root, r[i]->arg[0]);
    return b;
}

void nest_add_store(KernelPrinter *printer, LoopBody *body, Store *store)
{
    vec_push(printer->arena, body->root, nest_stored(store));
    vec_push(printer->arena, body->st, store);
    body->nroot++;
    body->nst++;
}

static void arrays(KernelPrinter *printer, const LoopBody *body);

/* Opens all loops of K but the last; returns the last, the scopes in out. What
 * needs none of them is computed first, arrays over body->block too. */
int nest_outer(KernelPrinter *printer, uint64_t K, const LoopBody *body,
               Braces *out, int *ns)
{
    int last = -1;

    *ns = 0;
    arrays(printer, body);
    for (int i = 0; i < printer->norder; i++) {
        int u = printer->order[i];
        if (!(K & BIT(u)))
            continue;
        if (last >= 0) {
            out[(*ns)++] = nest_open(printer, last);
            nest_need(printer, body->root, body->nroot);
            arrays(printer, body);
        }
        last = u;
    }
    return last;
}

static int has_vertical(KernelPrinter *printer, int u, const LoopBody *body)
{
    return u == printer->v &&
           vec_len(nest_pending(printer, body->root, body->nroot,
                                printer->bound | BIT(u), BIT(u)));
}

void nest_inner(KernelPrinter *printer, int u, const LoopBody *body)
{
    const char *end = nest_limit(printer, u);

    if (!has_vertical(printer, u, body)) {
        if (body->nacc)
            lanes(printer, u, body, "0", end);
        else
            nest_plain(printer, u, body, "0", end);
        return;
    }
    nest_line(printer, "for (ix v%d = 0; v%d < %s; v%d += %d) {", u, u, end, u,
              BLOCK);
    Braces s = nest_enter(printer, 0);
    nest_line(printer, "const ix w%d = %s - v%d < %d ? %s : v%d + %d;", u, end,
              u, BLOCK, end, u, BLOCK);
    nest_block(printer, u, body);
    nest_leave(printer, s);
}

/* Is x computed where e is? Not if it is only part of a sum over its own
 * loops: that is made over others (sum_loops.c). */
static int computes(KernelPrinter *printer, Expr *e, const Expr *x)
{
    if (e == x)
        return 1;
    if (e->seen == printer->stamp || e->local || nest_saved(printer, e) ||
        (e->kind == Xred && (e->K & x->deps)))
        return 0;
    e->seen = printer->stamp;
    for (int i = 0; e->lin && i < e->lin->nt; i++)
        if (e->lin->term[i].var >= MAXLOOP &&
            computes(printer,
                     printer->kernel->ex[e->lin->term[i].var - MAXLOOP], x))
            return 1;
    for (int i = 0; i < e->na; i++)
        if (e->arg[i] && computes(printer, e->arg[i], x))
            return 1;
    return 0;
}

/* Stores that can be done on the way of a reduction over K in an item. */
void nest_ride(KernelPrinter *printer, uint64_t K, LoopBody *body)
{
    int sums = body->nroot;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *store = &printer->kernel->st[i];
        int found = 0;
        if (store->done || store->loops != (printer->items | K) ||
            printer->bound != printer->items)
            continue;
        printer->stamp++;
        for (int j = 0; j < sums && !found; j++)
            found = computes(printer, body->root[j], store->val);
        if (found)
            nest_add_store(printer, body, store);
    }
}

static void pass(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = nest_sums(printer, r, nr);
    Braces s[MAXLOOP];
    int ns;

    nest_need(printer, b.root, nr);
    nest_ride(printer, r[0]->K, &b);
    declare(printer, r, nr, LANES, strf(printer->arena, "%d", LANES));
    int u = nest_outer(printer, r[0]->K, &b, s, &ns);
    nest_inner(printer, u, &b);
    nest_leave_all(printer, s, ns);
    for (int i = 0; i < nr; i++)
        fold(printer, r[i]);
    for (int i = 0; i < b.nst; i++)
        b.st[i]->done = 1;
}

static int is_ready(KernelPrinter *printer, Expr *expr, Expr *const *pend,
                    size_t np)
{
    Expr **all = nest_reached(printer, expr->arg, 1);

    for (size_t i = 0; i < vec_len(all); i++)
        for (size_t k = 0; k < np; k++)
            if (all[i] == pend[k])
                return 0;
    return 1;
}

/* The reductions of pend that share a pass with expr, expr first. */
static Expr **share(KernelPrinter *printer, Expr *expr, Expr *const *pend)
{
    Expr **out = NULL;
    size_t np = vec_len(pend);

    vec_push(printer->arena, out, expr);
    for (size_t i = 0; i < np; i++)
        if (pend[i] != expr && !pend[i]->local && pend[i]->K == expr->K &&
            is_ready(printer, pend[i], pend, np))
            vec_push(printer->arena, out, pend[i]);
    return out;
}

void nest_walk(KernelPrinter *printer, Expr *const *root, int nroot,
               void (*value)(KernelPrinter *printer, Expr *e),
               void (*sums)(KernelPrinter *printer, Expr **r, int nr))
{
    Expr **pend = nest_apart(printer, root, nroot, printer->bound, 0);
    Expr **all = nest_reached(printer, root, nroot);

    for (size_t i = 0; i < vec_len(all); i++) {
        Expr *e = all[i];
        if (e->local || (e->deps & ~printer->bound))
            continue;
        if (e->kind != Xred || nest_saved(printer, e)) {
            value(printer, e);
            continue;
        }
        Expr **r = share(printer, e, pend);
        sums(printer, r, (int)vec_len(r));
    }
}

void nest_need(KernelPrinter *printer, Expr *const *root, int nroot)
{
    nest_walk(printer, root, nroot, nest_compute, pass);
}

/* ---- blocks of v --------------------------------------------------------- */

static void vertical(KernelPrinter *printer, int u, Expr **r, int nr)
{
    LoopBody b = nest_sums(printer, r, nr);
    Braces s[MAXLOOP];
    int ns;

    b.vertical = 1;
    b.block = u + 1;
    declare(printer, r, nr, BLOCK, strf(printer->arena, "w%d - v%d", u, u));
    int last = nest_outer(printer, r[0]->K, &b, s, &ns);
    s[ns++] = nest_open(printer, last);
    nest_need(printer, b.root, nr);
    nest_block(printer, u, &b);
    nest_leave_all(printer, s, ns);
    for (int i = 0; i < nr; i++)
        r[i]->array = u + 1;
}

/* Reductions that keep loop body->block - 1 and need no loop that is not open.
 * */
static void arrays(KernelPrinter *printer, const LoopBody *body)
{
    int u = body->block - 1;

    if (u < 0)
        return;
    Expr **pend = nest_apart(printer, body->root, body->nroot,
                             printer->bound | BIT(u), BIT(u));
    for (size_t i = 0; i < vec_len(pend); i++) {
        if (pend[i]->local)
            continue;
        Expr **r = share(printer, pend[i], pend);
        vertical(printer, u, r, (int)vec_len(r));
    }
}

/* The body for elements v .. w of loop u. */
void nest_block(KernelPrinter *printer, int u, const LoopBody *body)
{
    const char *v = strf(printer->arena, "v%d", u),
               *w = strf(printer->arena, "w%d", u);
    LoopBody x = *body;

    x.block = u + 1;
    arrays(printer, &x);
    if (body->nacc && !body->vertical)
        lanes(printer, u, body, v, w);
    else
        nest_plain(printer, u, body, v, w);
}
