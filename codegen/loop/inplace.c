/* inplace.c: finds results of a kernel that may use the buffer of an operand.
 *
 * Each iteration loads its operands before it stores, and the reductions of an
 * item precede the loop that stores their users. Stores over the same loops
 * form a stage (numbered by begin_stage). A result of the last stage, or of any
 * stage if a team holds a whole row and computes all values before it stores,
 * may use an operand's buffer if each load of the operand
 *
 *   is at the result's own element (indices are interned: the same pointer), or
 *   runs over the item's own elements for a reduction with one value per item:
 *   x - max(x), but not x[i] * sum over j of x[j] w[i, j], or
 *   is a gather from the item's own elements before its stores: x[label].
 *
 * The threads of a team run at different speeds on a GPU, so no earlier pass
 * may have read the operand without a barrier since.
 *
 * alloc decides whether the operand is dead by then. */
#include "loop.h"

/* Loops that all stores and reductions share: loops over the kernel's items. */
static uint64_t shared_loops(const LoopKernel *kernel)
{
    uint64_t m = ~(uint64_t)0;

    for (size_t i = 0; i < vec_len(kernel->st); i++)
        m &= kernel->st[i].loops;
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->kind == Xred)
            m &= kernel->ex[i]->deps;
    return m;
}

/* Does every reduction over this loop have one value per item? */
static int is_per_item(const LoopKernel *kernel, int loop, uint64_t items)
{
    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (expr->kind == Xred && (expr->K >> loop & 1) &&
            (expr->deps & ~items))
            return 0;
    }
    return 1;
}

/* Is the index one value per item, and the load outside of loops inside the
 * item? Indices are always in range, so such an index in place of a loop
 * addresses an element of the item. */
static int is_gathered(const LoopKernel *kernel, const Expr *load, int var,
                       uint64_t items)
{
    return var >= MAXLOOP && !(kernel->ex[var - MAXLOOP]->deps & ~items) &&
           load->open && !(load->open & ~items);
}

/* Does the load's index differ from the result's x only in loops inside the
 * item, over the same axes, or in a gathered index? */
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
        if (is_gathered(kernel, load, t->var, items))
            continue;
        if (t->var >= MAXLOOP ||
            kernel->loop[s->var].axis != kernel->loop[t->var].axis ||
            kernel->loop[s->var].extent != kernel->loop[t->var].extent ||
            (loops >> t->var & 1) || !is_per_item(kernel, t->var, items))
            return 0;
    }
    return 1;
}

static int loads_match(const LoopKernel *kernel, const Node *buf,
                       const Store *store)
{
    uint64_t items = shared_loops(kernel);
    int loads = 0;

    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (expr->kind != Xload || storage(expr->buf) != buf)
            continue;
        if (expr->lin != store->addr &&
            !same_item(kernel, store->addr, expr, store->loops, items))
            return 0;
        if (expr->passes & store->unsynced)
            return 0;
        loads++;
    }
    return loads > 0;
}

/* Are all values of an item computed before the first store? */
static int computes_before_stores(const LoopKernel *kernel)
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
                (store->stage != kernel->nstage &&
                 !computes_before_stores(kernel)) ||
                dtypes[store->node->dt].bytes !=
                    dtypes[group->in[j]->dt].bytes ||
                !loads_match(kernel, storage(group->in[j]), store))
                continue;
            group->inplace[group->ninplace][0] = out;
            group->inplace[group->ninplace++][1] = j;
        }
}
