/* needed_values.c: which values of a kernel are still to be computed where its
 * text is being written. */
#include "loop.h"

int nest_inline(const Expr *e)
{
    return e->kind == Xnum || e->kind == Xint || e->kind == Xkey ||
           e->kind == Xlin;
}

static int is_cheap(const Expr *e)
{
    return nest_inline(e) || e->kind == Xload ||
           (e->kind == Xexpr && e->na == 1 && is_cheap(e->arg[0]));
}

/* The store of e that was done for this item, if its element can be named: one
 * element, not one for each lane where e is the same in all. */
Store *nest_saved(KernelPrinter *printer, const Expr *e)
{
    if (is_cheap(e) || printer->flat)
        return NULL;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *s = &printer->kernel->st[i];
        if (s->done && s->val == e && !(s->loops & ~printer->bound) &&
            !(s->loops & printer->lane & ~e->deps) &&
            !(printer->gpu && (s->flat || !(s->loops & ~printer->items))))
            return s;
    }
    return NULL;
}

static void reach(KernelPrinter *printer, Expr *e, Expr ***out)
{
    if (e->seen == printer->stamp || e->local)
        return;
    e->seen = printer->stamp;
    if (!nest_saved(printer, e)) {
        for (int i = 0; e->lin && i < e->lin->nt; i++)
            if (e->lin->term[i].var >= MAXLOOP)
                reach(printer,
                      printer->kernel->ex[e->lin->term[i].var - MAXLOOP], out);
        for (int i = 0; i < e->na; i++)
            if (e->arg[i])
                reach(printer, e->arg[i], out);
    }
    vec_push(printer->arena, *out, e);
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
        Expr *e = all[i];
        if (e->kind == Xred && !nest_saved(printer, e) && !(e->deps & ~open) &&
            (e->deps & with) == with)
            vec_push(printer->arena, out, e);
    }
    return out;
}
