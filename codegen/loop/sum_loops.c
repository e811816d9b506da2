/* sum_loops.c: gives nested sums loops of their own. The loops of a sum are
 * bound variables: any loops of the same lengths give the same value, so sums
 * over one axis share loops and passes if possible. A sum that is needed while
 * one of its loops is open for another purpose
 *
 *     for m:  y[m] = x[m] * sum over k of a[k] * (sum over m of b[k][m])
 *
 * cannot use that loop, nor values computed for its current element. Before it
 * is printed, it gets other loops, and its operand is rebuilt over them:
 *
 *     for m:  y[m] = x[m] * sum over k of a[k] * (sum over m' of b[k][m']) */
#include "loop.h"

/* A substitution of loops, and the expressions it has built. */
typedef struct Renaming {
    KernelPrinter *n;
    uint64_t from, to;
    int loop[MAXLOOP]; /* replacement of each loop of `from` */
    Expr **made;       /* indexed by id */
} Renaming;

static Expr *renamed(Renaming *renaming, Expr *expr);

static const AffineExpr *renamed_affine(Renaming *renaming,
                                        const AffineExpr *affine)
{
    LoopKernel *kernel = renaming->n->kernel;

    if (!affine || !(affine_loops(kernel, affine) & renaming->from))
        return affine;
    Term *t = alloc(renaming->n->arena, ((size_t)affine->nt + 1) * sizeof *t);
    for (int i = 0; i < affine->nt; i++) {
        t[i] = affine->term[i];
        if (t[i].var >= MAXLOOP)
            t[i].var =
                MAXLOOP + renamed(renaming, kernel->ex[t[i].var - MAXLOOP])->id;
        else if (renaming->from & BIT(t[i].var))
            t[i].var = renaming->loop[t[i].var];
    }
    return affine_make(kernel->pool, affine->off, affine->hasoff, t,
                       affine->nt);
}

/* expr over the replaced loops; expr itself if it depends on none of them. */
static Expr *renamed(Renaming *renaming, Expr *expr)
{
    if (!(expr->deps & renaming->from))
        return expr;
    if (expr->kind == Xred && (expr->K & renaming->to))
        die("a sum inside has the loop that is to be another's");
    if (renaming->made[expr->id])
        return renaming->made[expr->id];
    Expr x = *expr;
    x.local = x.array = 0;
    x.lin = renamed_affine(renaming, expr->lin);
    for (int i = 0; i < expr->na; i++)
        x.arg[i] = expr->arg[i] ? renamed(renaming, expr->arg[i]) : NULL;
    return renaming->made[expr->id] = ex_make(renaming->n->kernel, &x);
}

/* A loop like u that is not in `used`. */
static int other_loop(KernelPrinter *printer, int u, uint64_t used)
{
    LoopKernel *kernel = printer->kernel;

    while (used & BIT(u)) {
        if (!kernel->loop[u].other) {
            if (kernel->nloop == MAXLOOP)
                die("a kernel of more than %d loops", MAXLOOP);
            kernel->loop[kernel->nloop] = kernel->loop[u];
            kernel->loop[kernel->nloop].other = 0;
            kernel->loop[u].other = kernel->nloop;
            printer->order[printer->norder++] = kernel->nloop++;
        }
        u = kernel->loop[u].other;
    }
    return u;
}

/* Replaces the open loops of sum expr; returns 1 if there was one. A loop of a
 * row in registers may be open: all sums run over the same elements
 * (map_gpu.c). */
static int replace_open_loops(KernelPrinter *printer, Expr *expr)
{
    Renaming r = { .n = printer,
                   .from = expr->K & printer->bound & ~printer->row };
    uint64_t used = printer->bound | expr->K | expr->arg[0]->deps;

    if (!r.from)
        return 0;
    r.made =
        alloc(printer->arena, vec_len(printer->kernel->ex) * sizeof *r.made);
    for (int i = 0, end = printer->norder; i < end; i++) {
        int u = printer->order[i];
        if (!(r.from & BIT(u)))
            continue;
        r.loop[u] = other_loop(printer, u, used);
        used |= BIT(r.loop[u]);
        r.to |= BIT(r.loop[u]);
    }
    expr->arg[0] = renamed(&r, expr->arg[0]);
    expr->K = (expr->K & ~r.from) | r.to;
    return 1;
}

Expr **separated_reductions(KernelPrinter *printer, Expr *const *root,
                            int nroot, uint64_t open, uint64_t with)
{
    for (;;) {
        Expr **v = pending_reductions(printer, root, nroot, open, with);
        size_t i = 0;
        while (i < vec_len(v) && !replace_open_loops(printer, v[i]))
            i++;
        if (i == vec_len(v))
            return v;
    }
}
