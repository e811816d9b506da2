/* sum_loops.c: sums get loops of their own. The names of a sum's loops are
 * bound: it means the same over any others of the same lengths. So sums over
 * one axis share loops, and passes, wherever they can. But a sum that is needed
 * while one of its loops is open for something else
 *
 *     for m:  y[m] = x[m] * sum over k of a[k] * (sum over m of b[k][m])
 *
 * cannot run over that loop, and what has been computed for the loop's present
 * element is not an element of the sum. Before it is printed it is given other
 * loops, and all that it adds up is made anew over them:
 *
 *     for m:  y[m] = x[m] * sum over k of a[k] * (sum over m' of b[k][m'])  */
#include "loop.h"

/* What a renaming replaces, and what was made by it so far. */
typedef struct Renaming {
    KernelPrinter *n;
    uint64_t from, to;
    int loop[MAXLOOP]; /* for each loop of `from` */
    Expr **made;       /* by id */
} Renaming;

static Expr *renamed(Renaming *r, Expr *e);

static const AffineExpr *renamed_lin(Renaming *r, const AffineExpr *l)
{
    LoopKernel *c = r->n->kernel;

    if (!l || !(lin_deps(c, l) & r->from))
        return l;
    Term *t = alloc(r->n->arena, ((size_t)l->nt + 1) * sizeof *t);
    for (int i = 0; i < l->nt; i++) {
        t[i] = l->term[i];
        if (t[i].var >= MAXLOOP)
            t[i].var = MAXLOOP + renamed(r, c->ex[t[i].var - MAXLOOP])->id;
        else if (r->from & BIT(t[i].var))
            t[i].var = r->loop[t[i].var];
    }
    return lin_make(c->pool, l->off, l->hasoff, t, l->nt);
}

/* e over the other loops; e itself where it depends on none of them. */
static Expr *renamed(Renaming *r, Expr *e)
{
    if (!(e->deps & r->from))
        return e;
    if (e->kind == Xred && (e->K & r->to))
        die("a sum inside has the loop that is to be another's");
    if (r->made[e->id])
        return r->made[e->id];
    Expr x = *e;
    x.local = x.array = 0;
    x.lin = renamed_lin(r, e->lin);
    for (int i = 0; i < e->na; i++)
        x.arg[i] = e->arg[i] ? renamed(r, e->arg[i]) : NULL;
    return r->made[e->id] = ex_make(r->n->kernel, &x);
}

/* A loop like u that is not among those in use. */
static int other_loop(KernelPrinter *printer, int u, uint64_t used)
{
    LoopKernel *c = printer->kernel;

    while (used & BIT(u)) {
        if (!c->loop[u].other) {
            if (c->nloop == MAXLOOP)
                die("a kernel of more than %d loops", MAXLOOP);
            c->loop[c->nloop] = c->loop[u];
            c->loop[c->nloop].other = 0;
            c->loop[u].other = c->nloop;
            printer->order[printer->norder++] = c->nloop++;
        }
        u = c->loop[u].other;
    }
    return u;
}

/* Gives the sum s other loops in place of those that are open: 1 if any is. A
 * loop whose elements a team holds is open to all sums over it (map_gpu.c). */
static int set_apart(KernelPrinter *printer, Expr *s)
{
    Renaming r = { .n = printer,
                   .from = s->K & printer->bound & ~printer->row };
    uint64_t used = printer->bound | s->K | s->arg[0]->deps;

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
    s->arg[0] = renamed(&r, s->arg[0]);
    s->K = (s->K & ~r.from) | r.to;
    return 1;
}

Expr **nest_apart(KernelPrinter *printer, Expr *const *root, int nroot,
                  uint64_t open, uint64_t with)
{
    for (;;) {
        Expr **v = nest_pending(printer, root, nroot, open, with);
        size_t i = 0;
        while (i < vec_len(v) && !set_apart(printer, v[i]))
            i++;
        if (i == vec_len(v))
            return v;
    }
}
