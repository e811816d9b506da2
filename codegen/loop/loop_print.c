/* loop_print.c: text of the scopes and loops of a host kernel.
 *
 * print_needed computes, reductions included, each value that depends on open
 * loops only, so values that do not depend on an inner loop precede it. A
 * reduction over the contiguous loop v runs in 16 lanes that are folded
 * pairwise. A reduction that keeps v ("vertical": combine over top, column
 * sums) uses arrays of 128 elements of v. Reductions over the same loops share
 * a pass. A value that a pass has stored for this item is loaded again instead
 * of recomputed. */
#include "loop.h"

/* ---- scopes -------------------------------------------------------------- */

Braces scope_enter(KernelPrinter *printer, uint64_t loops)
{
    Braces s = { vec_len(printer->done), printer->bound };

    if (printer->bound & loops)
        die("a loop is opened in itself");
    printer->bound |= loops;
    printer->depth++;
    return s;
}

Braces scope_open_loop(KernelPrinter *printer, int u)
{
    text_line(printer, "for (ix i%d = 0; i%d < %s; i%d++) {", u, u,
              loop_end(printer, u), u);
    return scope_enter(printer, BIT(u));
}

void scope_leave(KernelPrinter *printer, Braces s)
{
    for (size_t i = s.done; i < vec_len(printer->done); i++)
        printer->done[i]->local = printer->done[i]->array = 0;
    vec_cut(printer->done, s.done);
    printer->bound = s.bound;
    printer->depth--;
    text_line(printer, "}");
}

void scope_leave_all(KernelPrinter *printer, const Braces *out, int ns)
{
    while (ns)
        scope_leave(printer, out[--ns]);
}

int declare_local(KernelPrinter *printer, Expr *expr)
{
    expr->local = ++printer->nlocal;
    vec_push(printer->arena, printer->done, expr);
    return expr->local;
}

void print_value(KernelPrinter *printer, Expr *expr)
{
    Store *s = finished_store(printer, expr);

    if (is_inline(expr) || expr->local)
        return;
    expr->open |= printer->bound;
    const char *text = s ? load_text(printer, storage(s->node), s->addr)
                         : expr_text(printer, expr);
    text_line(printer, "const %s t%d = %s;", dtypes[expr->dt].compute,
              declare_local(printer, expr), text);
}

/* ---- innermost lines ----------------------------------------------------- */

void print_accumulate(KernelPrinter *printer, const Expr *expr, const char *how,
                      const char *t, const char *x)
{
    if (expr->op == Osum)
        text_line(printer, "%s%s += %s;", how, t, x);
    else
        text_line(printer, "%s%s = %s %c %s ? %s : %s;", how, t, x,
                  expr->op == Omax ? '>' : '<', t, x, t);
}

Expr *value_to_store(const Store *store)
{
    return ex_unrounded(storage(store->node)->dt, store->val);
}

void print_store(KernelPrinter *printer, Store *store)
{
    Node *to = storage(store->node);
    const char *at = element_text(printer, to, store->addr),
               *x = value_name(printer, value_to_store(store));

    text_line(printer, "%s = %s;", at, text_save(printer->arena, to->dt, x));
}

void print_body(KernelPrinter *printer, const LoopBody *body, const char *lane)
{
    print_needed(printer, body->root, body->nroot);
    for (int i = 0; i < body->nacc; i++) {
        const Expr *r = body->acc[i];
        const char *x = value_name(printer, r->arg[0]);
        print_accumulate(printer, r, "",
                         strf(printer->arena, "t%d[%s]", r->local, lane), x);
    }
    for (int i = 0; i < body->nst; i++)
        print_store(printer, body->st[i]);
}

/* Loop u from `from` (a multiple of LANES) to `to`. */
static void print_lane_loop(KernelPrinter *printer, int u, const LoopBody *body,
                            const char *from, const char *to)
{
    text_line(printer, "for (ix j = %s; j + %d <= %s; j += %d)", from, LANES,
              to, LANES);
    text_line(printer,
              "#pragma GCC unroll 1"); /* not unrolled, it is vectorized */
    text_line(printer, "for (int l = 0; l < %d; l++) {", LANES);
    Braces s = scope_enter(printer, BIT(u));
    text_line(printer, "const ix i%d = j + l;", u);
    print_body(printer, body, "l");
    scope_leave(printer, s);
    text_line(printer, "for (ix i%d = %s & -%d; i%d < %s; i%d++) {", u, to,
              LANES, u, to, u);
    s = scope_enter(printer, BIT(u));
    print_body(printer, body, strf(printer->arena, "i%d & %d", u, LANES - 1));
    scope_leave(printer, s);
}

void print_plain_loop(KernelPrinter *printer, int u, const LoopBody *body,
                      const char *from, const char *to)
{
    text_line(printer, "#pragma GCC ivdep");
    text_line(printer, "for (ix i%d = %s; i%d < %s; i%d++) {", u, from, u, to,
              u);
    Braces s = scope_enter(printer, BIT(u));
    print_body(printer, body, strf(printer->arena, "i%d - v%d", u, u));
    scope_leave(printer, s);
}

/* ---- reductions ---------------------------------------------------------- */

const char *identity(const Expr *expr)
{
    if (expr->op == Osum)
        return "0";
    if (expr->dt == Df32 || expr->dt == Df64)
        return expr->op == Omax ? "-INFINITY" : "INFINITY";
    return expr->op == Omax ? "INT32_MIN" : "INT32_MAX";
}

static void declare_arrays(KernelPrinter *printer, Expr *const *r, int nr,
                           int width, const char *used)
{
    for (int i = 0; i < nr; i++) {
        int t = declare_local(printer, r[i]);
        text_line(printer, "%s t%d[%d]; UNWRITTEN(t%d);",
                  dtypes[r[i]->dt].compute, t, width, t);
    }
    text_line(printer, "for (int64_t l = 0; l < %s; l++) {", used);
    printer->depth++;
    for (int i = 0; i < nr; i++)
        text_line(printer, "t%d[l] = %s;", r[i]->local, identity(r[i]));
    printer->depth--;
    text_line(printer, "}");
}

static void fold_lanes(KernelPrinter *printer, Expr *expr)
{
    int from = expr->local;

    text_line(printer, "for (int h = %d; h; h /= 2)", LANES / 2);
    text_line(printer, "for (int l = 0; l < h; l++)");
    print_accumulate(printer, expr, "    ",
                     strf(printer->arena, "t%d[l]", from),
                     strf(printer->arena, "t%d[l + h]", from));
    text_line(printer, "const %s t%d = t%d[0];", dtypes[expr->dt].compute,
              ++printer->nlocal, from);
    expr->local = printer->nlocal;
}

LoopBody reduction_body(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = { .nroot = nr, .acc = r, .nacc = nr };

    for (int i = 0; i < nr; i++)
        vec_push(printer->arena, b.root, r[i]->arg[0]);
    return b;
}

void body_add_store(KernelPrinter *printer, LoopBody *body, Store *store)
{
    vec_push(printer->arena, body->root, value_to_store(store));
    vec_push(printer->arena, body->st, store);
    body->nroot++;
    body->nst++;
}

static void print_block_reductions(KernelPrinter *printer,
                                   const LoopBody *body);

/* Opens all loops of K but the last and returns the last; `out` gets the
 * scopes. Values that need none of these loops are computed first, as are
 * arrays over body->block. */
int open_outer_loops(KernelPrinter *printer, uint64_t K, const LoopBody *body,
                     Braces *out, int *ns)
{
    int last = -1;

    *ns = 0;
    print_block_reductions(printer, body);
    for (int i = 0; i < printer->norder; i++) {
        int u = printer->order[i];
        if (!(K & BIT(u)))
            continue;
        if (last >= 0) {
            out[(*ns)++] = scope_open_loop(printer, last);
            print_needed(printer, body->root, body->nroot);
            print_block_reductions(printer, body);
        }
        last = u;
    }
    return last;
}

static int has_vertical(KernelPrinter *printer, int u, const LoopBody *body)
{
    return u == printer->v &&
           vec_len(pending_reductions(printer, body->root, body->nroot,
                                      printer->bound | BIT(u), BIT(u)));
}

void print_inner_loop(KernelPrinter *printer, int u, const LoopBody *body)
{
    const char *end = loop_end(printer, u);

    if (!has_vertical(printer, u, body)) {
        if (body->nacc)
            print_lane_loop(printer, u, body, "0", end);
        else
            print_plain_loop(printer, u, body, "0", end);
        return;
    }
    text_line(printer, "for (ix v%d = 0; v%d < %s; v%d += %d) {", u, u, end, u,
              BLOCK);
    Braces s = scope_enter(printer, 0);
    text_line(printer, "const ix w%d = %s - v%d < %d ? %s : v%d + %d;", u, end,
              u, BLOCK, end, u, BLOCK);
    print_block_loop(printer, u, body);
    scope_leave(printer, s);
}

/* Is x computed where e is? Not if it is only part of a reduction over its own
 * loops, which will get other loops (sum_loops.c). */
static int is_computed_in(KernelPrinter *printer, Expr *e, const Expr *x)
{
    if (e == x)
        return 1;
    if (e->seen == printer->stamp || e->local || finished_store(printer, e) ||
        (e->kind == Xred && (e->K & x->deps)))
        return 0;
    e->seen = printer->stamp;
    for (int i = 0; e->lin && i < e->lin->nt; i++)
        if (e->lin->term[i].var >= MAXLOOP &&
            is_computed_in(
                printer, printer->kernel->ex[e->lin->term[i].var - MAXLOOP], x))
            return 1;
    for (int i = 0; i < e->na; i++)
        if (e->arg[i] && is_computed_in(printer, e->arg[i], x))
            return 1;
    return 0;
}

/* Adds to body the stores that the pass of a reduction over K can do. */
void store_while_reducing(KernelPrinter *printer, uint64_t K, LoopBody *body)
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
            found = is_computed_in(printer, body->root[j], store->val);
        if (found)
            body_add_store(printer, body, store);
    }
}

static void print_reductions(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = reduction_body(printer, r, nr);
    Braces s[MAXLOOP];
    int ns;

    print_needed(printer, b.root, nr);
    store_while_reducing(printer, r[0]->K, &b);
    declare_arrays(printer, r, nr, LANES, strf(printer->arena, "%d", LANES));
    int u = open_outer_loops(printer, r[0]->K, &b, s, &ns);
    print_inner_loop(printer, u, &b);
    scope_leave_all(printer, s, ns);
    for (int i = 0; i < nr; i++)
        fold_lanes(printer, r[i]);
    for (int i = 0; i < b.nst; i++)
        b.st[i]->done = 1;
}

static int is_ready(KernelPrinter *printer, Expr *expr, Expr *const *pend,
                    size_t np)
{
    Expr **all = needed_values(printer, expr->arg, 1);

    for (size_t i = 0; i < vec_len(all); i++)
        for (size_t k = 0; k < np; k++)
            if (all[i] == pend[k])
                return 0;
    return 1;
}

/* The reductions of pend that share a pass with expr, expr first. */
static Expr **sharing_reductions(KernelPrinter *printer, Expr *expr,
                                 Expr *const *pend)
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

void compute_needed(KernelPrinter *printer, Expr *const *root, int nroot,
                    void (*value)(KernelPrinter *printer, Expr *e),
                    void (*sums)(KernelPrinter *printer, Expr **r, int nr))
{
    Expr **pend = separated_reductions(printer, root, nroot, printer->bound, 0);
    Expr **all = needed_values(printer, root, nroot);

    for (size_t i = 0; i < vec_len(all); i++) {
        Expr *e = all[i];
        if (e->local || (e->deps & ~printer->bound))
            continue;
        if (e->kind != Xred || finished_store(printer, e)) {
            value(printer, e);
            continue;
        }
        Expr **r = sharing_reductions(printer, e, pend);
        sums(printer, r, (int)vec_len(r));
    }
}

void print_needed(KernelPrinter *printer, Expr *const *root, int nroot)
{
    compute_needed(printer, root, nroot, print_value, print_reductions);
}

/* ---- blocks of v --------------------------------------------------------- */

static void print_vertical(KernelPrinter *printer, int u, Expr **r, int nr)
{
    LoopBody b = reduction_body(printer, r, nr);
    Braces s[MAXLOOP];
    int ns;

    b.vertical = 1;
    b.block = u + 1;
    declare_arrays(printer, r, nr, BLOCK,
                   strf(printer->arena, "w%d - v%d", u, u));
    int last = open_outer_loops(printer, r[0]->K, &b, s, &ns);
    s[ns++] = scope_open_loop(printer, last);
    print_needed(printer, b.root, nr);
    print_block_loop(printer, u, &b);
    scope_leave_all(printer, s, ns);
    for (int i = 0; i < nr; i++)
        r[i]->array = u + 1;
}

/* Reductions that keep loop body->block - 1 and whose other loops are open. */
static void print_block_reductions(KernelPrinter *printer, const LoopBody *body)
{
    int u = body->block - 1;

    if (u < 0)
        return;
    Expr **pend = separated_reductions(printer, body->root, body->nroot,
                                       printer->bound | BIT(u), BIT(u));
    for (size_t i = 0; i < vec_len(pend); i++) {
        if (pend[i]->local)
            continue;
        Expr **r = sharing_reductions(printer, pend[i], pend);
        print_vertical(printer, u, r, (int)vec_len(r));
    }
}

/* The body for elements v .. w of loop u. */
void print_block_loop(KernelPrinter *printer, int u, const LoopBody *body)
{
    const char *v = strf(printer->arena, "v%d", u),
               *w = strf(printer->arena, "w%d", u);
    LoopBody x = *body;

    x.block = u + 1;
    print_block_reductions(printer, &x);
    if (body->nacc && !body->vertical)
        print_lane_loop(printer, u, body, v, w);
    else
        print_plain_loop(printer, u, body, v, w);
}
