/* needed_values.c: which values of a kernel are still to be computed where its
 * text is being written. */
#include "loop.h"

int nest_inline(const Expr *expr)
{
    return expr->kind == Xnum || expr->kind == Xint || expr->kind == Xkey ||
           expr->kind == Xlin;
}

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
        for (int i = 0; i < expr->na; i++)
            if (expr->arg[i])
                reach(printer, expr->arg[i], out);
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
