/* loop_items.c: items and stores of a kernel, for hosts and GPUs: the loops of
 * an item, the number of items, their indices, the stores of a stage. */
#include "loop.h"

const SizeProduct *affine_stride(const AffineExpr *affine, int loop)
{
    for (int i = 0; i < affine->nt; i++)
        if (affine->term[i].var == loop)
            return affine->term[i].k;
    return NULL;
}

/* Loops of an item, ragged one first. */
int item_loops(KernelPrinter *printer, uint64_t m, int *u)
{
    int k = 0;

    for (int pick = 1; pick >= 0; pick--)
        for (int i = 0; i < printer->norder; i++)
            if ((m & BIT(printer->order[i])) &&
                !!printer->kernel->loop[printer->order[i]].map == pick)
                u[k++] = printer->order[i];
    return k;
}

const SizeProduct *loop_product(KernelPrinter *printer, const int *u, int from,
                                int to)
{
    const SizeProduct *m = size_one(printer->kernel->pool);

    for (int i = from; i < to; i++)
        m = size_mul(printer->kernel->pool, m,
                     printer->kernel->loop[u[i]].extent);
    return m;
}

/* Prints the index variables of loops u[0..k) from their flat index q. */
void put_indices(KernelPrinter *printer, const int *u, int k, const char *q)
{
    if (k)
        text_line(printer, "ix d = %s;", q);
    for (int i = k - 1; i > 0; i--) {
        int at = size_arg(printer, printer->kernel->loop[u[i]].extent);
        text_line(printer, "ix i%d = d %% n%d;", u[i], at);
        text_line(printer, "d /= n%d;", at);
    }
    if (k)
        text_line(printer, "ix i%d = d;", u[0]);
}

LoopBody begin_stage(KernelPrinter *printer, uint64_t loops)
{
    LoopBody b = { 0 };

    printer->kernel->nstage++;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *store = &printer->kernel->st[i];
        if (store->done || store->loops != loops)
            continue;
        store->stage = printer->kernel->nstage;
        vec_push(printer->arena, b.root, value_to_store(store));
        vec_push(printer->arena, b.st, store);
        b.nroot = ++b.nst;
    }
    return b;
}

Expr **stored_values(KernelPrinter *printer)
{
    Expr **v = NULL;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        vec_push(printer->arena, v, printer->kernel->st[i].val);
    return v;
}

double loop_elements(KernelPrinter *printer, uint64_t m)
{
    double e = 1;

    for (int u = 0; u < printer->kernel->nloop; u++)
        if (m & BIT(u))
            e *= (double)printer->kernel->loop[u].extent->v;
    return e;
}
