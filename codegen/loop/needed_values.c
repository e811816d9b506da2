/* needed_values.c: which values of a kernel are still to be computed where its
 * text is being written. */
#include "loop.h"

int nest_inline(const Expr *expr)
{
    return expr->kind == Xnum || expr->kind == Xint || expr->kind == Xkey ||
           expr->kind == Xlin;
}

/* ---- sums in one place --------------------------------------------------- */

static int is_op(const Expr *expr, Op op)
{
    return expr->kind == Xexpr && expr->of == optab[op].expr;
}

/* The contiguous loop's own index, and no other's. */
static int is_index(const KernelPrinter *printer, const Expr *expr)
{
    return expr->kind == Xlin && expr->dt == Di32 && expr->lin->nt == 1 &&
           expr->lin->term[0].var == printer->v && !expr->lin->term[0].k->n;
}

static int is_row_value(const KernelPrinter *printer, const Expr *expr)
{
    return !(expr->deps & BIT(printer->v));
}

int nest_one_hot(const KernelPrinter *printer, const Expr *expr, OneHot *hot)
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

/* ---- values that are needed ---------------------------------------------- */

static int is_cheap(const Expr *expr)
{
    return nest_inline(expr) || expr->kind == Xload ||
           (expr->kind == Xexpr && expr->na == 1 && is_cheap(expr->arg[0]));
}

/* The store of expr that was done for this item, if its element can be named:
 * one element, not one for each lane where expr is the same in all. */
Store *nest_saved(KernelPrinter *printer, const Expr *expr)
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

static void reach(KernelPrinter *printer, Expr *expr, Expr ***out)
{
    if (expr->seen == printer->stamp || expr->local)
        return;
    expr->seen = printer->stamp;
    if (!nest_saved(printer, expr)) {
        for (int i = 0; expr->lin && i < expr->lin->nt; i++)
            if (expr->lin->term[i].var >= MAXLOOP)
                reach(printer,
                      printer->kernel->ex[expr->lin->term[i].var - MAXLOOP],
                      out);
        OneHot hot;
        int one = nest_one_hot(printer, expr, &hot);
        for (int i = 0; i < expr->na; i++)
            if (expr->arg[i] && !(one && expr->arg[i] == hot.choice))
                reach(printer, expr->arg[i], out);
        if (one) {
            reach(printer, hot.at, out);
            reach(printer, hot.number, out);
        }
    }
    vec_push(printer->arena, *out, expr);
}

/* Values not at hand that the roots need, operands first. */
Expr **nest_reached(KernelPrinter *printer, Expr *const *root, int nroot)
{
    Expr **out = NULL;

    printer->stamp++;
    for (int i = 0; i < nroot; i++)
        reach(printer, root[i], &out);
    return out;
}

/* Reductions among them that can be done once the loops in `open` are. */
Expr **nest_pending(KernelPrinter *printer, Expr *const *root, int nroot,
                    uint64_t open, uint64_t with)
{
    Expr **all = nest_reached(printer, root, nroot), **out = NULL;

    for (size_t i = 0; i < vec_len(all); i++) {
        Expr *expr = all[i];
        if (expr->kind == Xred && !nest_saved(printer, expr) &&
            !(expr->deps & ~open) && (expr->deps & with) == with)
            vec_push(printer->arena, out, expr);
    }
    return out;
}
