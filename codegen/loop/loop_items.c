/* loop_items.c: the items of a kernel and its stores, for hosts and GPUs: which
 * loops an item has, how many there are, where one stands, what it stores. */
#include "loop.h"

const SizeProduct *form_stride(const AffineExpr *affine, int loop)
{
    for (int i = 0; i < affine->nt; i++)
        if (affine->term[i].var == loop)
            return affine->term[i].k;
    return NULL;
}

/* Loops of an item, ragged one first. */
int form_items(KernelPrinter *printer, uint64_t m, int *u)
{
    int k = 0;

    for (int pick = 1; pick >= 0; pick--)
        for (int i = 0; i < printer->norder; i++)
            if ((m & BIT(printer->order[i])) &&
                !!printer->kernel->loop[printer->order[i]].map == pick)
                u[k++] = printer->order[i];
    return k;
}

const SizeProduct *form_count(KernelPrinter *printer, const int *u, int from,
                              int to)
{
    const SizeProduct *m = mono_one(printer->kernel->pool);

    for (int i = from; i < to; i++)
        m = mono_mul(printer->kernel->pool, m,
                     printer->kernel->loop[u[i]].extent);
    return m;
}

/* Index variables of the loops u[0..k), set from the number q of their
 * setting. */
void form_decode(KernelPrinter *printer, const int *u, int k, const char *q)
{
    if (k)
        nest_line(printer, "ix d = %s;", q);
    for (int i = k - 1; i > 0; i--) {
        int at = nest_size(printer, printer->kernel->loop[u[i]].extent);
        nest_line(printer, "ix i%d = d %% n%d;", u[i], at);
        nest_line(printer, "d /= n%d;", at);
    }
    if (k)
        nest_line(printer, "ix i%d = d;", u[0]);
}

LoopBody form_stage(KernelPrinter *printer, uint64_t loops)
{
    LoopBody b = { 0 };

    printer->kernel->nstage++;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *store = &printer->kernel->st[i];
        if (store->done || store->loops != loops)
            continue;
        store->stage = printer->kernel->nstage;
        vec_push(printer->arena, b.root, nest_stored(store));
        vec_push(printer->arena, b.st, store);
        b.nroot = ++b.nst;
    }
    return b;
}

Expr **form_values(KernelPrinter *printer)
{
    Expr **v = NULL;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        vec_push(printer->arena, v, printer->kernel->st[i].val);
    return v;
}

double form_elements(KernelPrinter *printer, uint64_t m)
{
    double e = 1;

    for (int u = 0; u < printer->kernel->nloop; u++)
        if (m & BIT(u))
            e *= (double)printer->kernel->loop[u].extent->v;
    return e;
}
