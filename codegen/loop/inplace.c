/* inplace.c: which results of a kernel may lie where an operand lay.
 *
 * Every iteration loads what it needs before it stores, and reductions of an
 * item are done before the loop that stores what needs them. Stores that share
 * loops are a stage (form_stage numbers them as it prints). So a result of the
 * last stage, or of any where a team holds a whole row and makes all before it
 * stores, may take an operand's buffer when each load of the operand
 *
 *   is at the result's own element (indices are interned: the same pointer), or
 *   runs through the item's own elements for a reduction that is one value an
 *   item: x - max(x), not x[i] * sum over j of x[j] w[i, j], or
 *   is one of the item's own that it looks up, before its stores: x[label].
 *
 * On a GPU a team's threads go through an item at their own speed: no pass
 * before the result's may have read the operand unless all have met since.
 *
 * alloc decides whether the operand is dead by then. */
#include "loop.h"

/* Loops that all stores and reductions have: those over the kernel's items. */
static uint64_t item_loops(const LoopKernel *kernel)
{
    uint64_t m = ~(uint64_t)0;

    for (size_t i = 0; i < vec_len(kernel->st); i++)
        m &= kernel->st[i].loops;
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->kind == Xred)
            m &= kernel->ex[i]->deps;
    return m;
}

/* Is every reduction over this loop one value an item? */
static int by_item(const LoopKernel *kernel, int loop, uint64_t items)
{
    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (expr->kind == Xred && (expr->K >> loop & 1) &&
            (expr->deps & ~items))
            return 0;
    }
    return 1;
}

/* Is the index one value an item, and the load made before a loop inside the
 * item? No index is outside of its dim: in place of such a loop it leads to an
 * element of the item. */
static int is_looked_up(const LoopKernel *kernel, const Expr *load, int var,
                        uint64_t items)
{
    return var >= MAXLOOP && !(kernel->ex[var - MAXLOOP]->deps & ~items) &&
           load->open && !(load->open & ~items);
}

/* Does the load differ from x, where the result is stored, only in that it runs
 * over other loops of the same axes, and those inside an item, or has an index
 * that is looked up there? */
static int same_item(const LoopKernel *kernel, const AffineExpr *x,
                     const Expr *load, uint64_t loops, uint64_t items)
{
    const AffineExpr *y = load->lin;

    if (x->nt != y->nt || x->hasoff || y->hasoff)
        return 0;
    for (int i = 0; i < x->nt; i++) {
        const Term *s = &x->term[i], *t = &y->term[i];
        if (s->div != t->div || s->mod != t->mod || s->k != t->k)
            return 0;
        if (s->var == t->var)
            continue;
        if (s->var >= MAXLOOP || (items >> s->var & 1))
            return 0;
        if (is_looked_up(kernel, load, t->var, items))
            continue;
        if (t->var >= MAXLOOP ||
            kernel->loop[s->var].axis != kernel->loop[t->var].axis ||
            kernel->loop[s->var].extent != kernel->loop[t->var].extent ||
            (loops >> t->var & 1) || !by_item(kernel, t->var, items))
            return 0;
    }
    return 1;
}

static int only_at(const LoopKernel *kernel, const Node *buf,
                   const Store *store)
{
    uint64_t items = item_loops(kernel);
    int loads = 0;

    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (expr->kind != Xload || storage(expr->buf) != buf)
            continue;
        if (expr->lin != store->addr &&
            !same_item(kernel, store->addr, expr, store->loops, items))
            return 0;
        if (expr->passes & store->apart)
            return 0;
        loads++;
    }
    return loads > 0;
}

/* Are all values of an item made before the first is stored? */
static int made_first(const LoopKernel *kernel)
{
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        if (kernel->st[i].loops & ~kernel->held)
            return 0;
    return kernel->held != 0;
}

static int index_of(Node *const *v, int n, const Node *x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return i;
    return -1;
}

void find_inplace(LoopKernel *kernel)
{
    Group *group = kernel->group;
    size_t most = vec_len(kernel->st) * (size_t)group->nin;

    group->ninplace = 0;
    group->inplace = alloc(kernel->arena, (most + 1) * sizeof *group->inplace);
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        for (int j = 0; j < group->nin; j++) {
            const Store *store = &kernel->st[i];
            int out = index_of(group->out, group->nout, store->node);
            if (out < 0 || !store->stage ||
                (store->stage != kernel->nstage && !made_first(kernel)) ||
                dtypes[store->node->dt].bytes !=
                    dtypes[group->in[j]->dt].bytes ||
                !only_at(kernel, storage(group->in[j]), store))
                continue;
            group->inplace[group->ninplace][0] = out;
            group->inplace[group->ninplace++][1] = j;
        }
}
