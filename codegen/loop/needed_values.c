/* needed_values.c: the values of a kernel that are still to be computed at the
 * current place of its text. */
#include "loop.h"

int is_inline(const Expr *expr)
{
    return expr->kind == Xnum || expr->kind == Xint || expr->kind == Xkey ||
           expr->kind == Xlin;
}

/* ---- one-hot sums -------------------------------------------------------- */

static int is_op(const Expr *expr, Op op)
{
    return expr->kind == Xexpr && expr->of == optab[op].expr;
}

/* Is it the index of the contiguous loop alone? */
static int is_index(const KernelPrinter *printer, const Expr *expr)
{
    return expr->kind == Xlin && expr->dt == Di32 && expr->lin->nt == 1 &&
           expr->lin->term[0].var == printer->v && !expr->lin->term[0].k->n;
}

static int is_row_value(const KernelPrinter *printer, const Expr *expr)
{
    return !(expr->deps & BIT(printer->v));
}

int is_one_hot_sum(const KernelPrinter *printer, const Expr *expr, OneHot *hot)
{
    if (!printer->gpu || printer->v < 0 || !is_op(expr, Oadd))
        return 0;
    for (int k = 0; k < 2; k++) {
        Expr *choice = expr->arg[k], *equal = choice->arg[0];
        if (!is_op(choice, Owhere) || !is_op(equal, Oeq) ||
            choice->dt != expr->dt || expr->arg[!k]->dt != expr->dt ||
            choice->arg[2]->kind != Xnum || choice->arg[2]->f != 0)
            continue;
        int i = is_index(printer, equal->arg[1]);
        *hot = (OneHot){ .base = expr->arg[!k],
                         .at = equal->arg[!i],
                         .index = equal->arg[i],
                         .number = choice->arg[1],
                         .equal = equal,
                         .choice = choice };
        if (is_index(printer, hot->index) && hot->at->dt == Di32 &&
            is_row_value(printer, hot->at) &&
            is_row_value(printer, hot->number))
            return 1;
    }
    return 0;
}

/* ---- needed values ------------------------------------------------------- */

static int is_cheap(const Expr *expr)
{
    return is_inline(expr) || expr->kind == Xload ||
           (expr->kind == Xexpr && expr->na == 1 && is_cheap(expr->arg[0]));
}

/* The finished store of expr for this item if its element has a known address
 * and thread. One element suffices: not one for each lane if expr does not
 * depend on lanes. */
Store *finished_store(KernelPrinter *printer, const Expr *expr)
{
    if (is_cheap(expr) || printer->flat)
        return NULL;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *s = &printer->kernel->st[i];
        if (s->done && s->val == expr && !(s->loops & ~printer->bound) &&
            !(s->loops & printer->lane & ~expr->deps) &&
            !(printer->gpu && (s->flat || !(s->loops & ~printer->items))))
            return s;
    }
    return NULL;
}

static void visit_needed(KernelPrinter *printer, Expr *expr, Expr ***out)
{
    if (expr->seen == printer->stamp || expr->local)
        return;
    expr->seen = printer->stamp;
    if (!finished_store(printer, expr)) {
        for (int i = 0; expr->lin && i < expr->lin->nt; i++)
            if (expr->lin->term[i].var >= MAXLOOP)
                visit_needed(
                    printer,
                    printer->kernel->ex[expr->lin->term[i].var - MAXLOOP], out);
        OneHot hot;
        int one = is_one_hot_sum(printer, expr, &hot);
        for (int i = 0; i < expr->na; i++)
            if (expr->arg[i] && !(one && expr->arg[i] == hot.choice))
                visit_needed(printer, expr->arg[i], out);
        if (one) {
            visit_needed(printer, hot.at, out);
            visit_needed(printer, hot.number, out);
        }
    }
    vec_push(printer->arena, *out, expr);
}

/* Values that the roots need and that are not yet computed, operands first. */
Expr **needed_values(KernelPrinter *printer, Expr *const *root, int nroot)
{
    Expr **out = NULL;

    printer->stamp++;
    for (int i = 0; i < nroot; i++)
        visit_needed(printer, root[i], &out);
    return out;
}

/* Those of them that are reductions, computable once the loops `open` are open,
 * and depend on all loops of `with`. */
Expr **pending_reductions(KernelPrinter *printer, Expr *const *root, int nroot,
                          uint64_t open, uint64_t with)
{
    Expr **all = needed_values(printer, root, nroot), **out = NULL;

    for (size_t i = 0; i < vec_len(all); i++) {
        Expr *expr = all[i];
        if (expr->kind == Xred && !finished_store(printer, expr) &&
            !(expr->deps & ~open) && (expr->deps & with) == with)
            vec_push(printer->arena, out, expr);
    }
    return out;
}
