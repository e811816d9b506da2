/* inplace.c: which results of a kernel may lie where an operand lay.
 *
 * Every iteration loads what it needs before it stores, and reductions of an
 * item are done before the loop that stores what needs them. Stores that share
 * loops are a stage (form_stage numbers them as it prints). So a result of the
 * last stage may take an operand's buffer when each load of the operand
 *
 *   is at the result's own element (indices are interned: the same pointer), or
 *   runs through the item's own elements for a reduction that is one value an
 *   item: x - max(x), not x[i] * sum over j of x[j] w[i, j].
 *
 * On a GPU a team's threads go through an item at their own speed: no pass
 * before the result's may have read the operand unless all have met since.
 *
 * alloc decides whether the operand is dead by then. */
#include "loop.h"

/* Loops that all stores and reductions have: those over the kernel's items. */
static uint64_t item_loops(const LoopKernel *c)
{
    uint64_t m = ~(uint64_t)0;

    for (size_t i = 0; i < vec_len(c->st); i++)
        m &= c->st[i].loops;
    for (size_t i = 0; i < vec_len(c->ex); i++)
        if (c->ex[i]->kind == Xred)
            m &= c->ex[i]->deps;
    return m;
}

/* Is every reduction over this loop one value an item? */
static int by_item(const LoopKernel *c, int loop, uint64_t items)
{
    for (size_t i = 0; i < vec_len(c->ex); i++) {
        const Expr *e = c->ex[i];
        if (e->kind == Xred && (e->K >> loop & 1) && (e->deps & ~items))
            return 0;
    }
    return 1;
}

/* Does y differ from x, where the result is stored, only in that it runs over
 * other loops of the same axes, and those inside an item? */
static int same_item(const LoopKernel *c, const AffineExpr *x,
                     const AffineExpr *y, uint64_t loops, uint64_t items)
{
    if (x->nt != y->nt || x->hasoff || y->hasoff)
        return 0;
    for (int i = 0; i < x->nt; i++) {
        const Term *s = &x->term[i], *t = &y->term[i];
        if (s->div != t->div || s->mod != t->mod || s->k != t->k)
            return 0;
        if (s->var == t->var)
            continue;
        if (s->var >= MAXLOOP || t->var >= MAXLOOP ||
            c->loop[s->var].axis != c->loop[t->var].axis ||
            c->loop[s->var].extent != c->loop[t->var].extent ||
            (items >> s->var & 1) || (loops >> t->var & 1) ||
            !by_item(c, t->var, items))
            return 0;
    }
    return 1;
}

static int only_at(const LoopKernel *c, const Node *buf, const Store *s)
{
    uint64_t items = item_loops(c);
    int loads = 0;

    for (size_t i = 0; i < vec_len(c->ex); i++) {
        const Expr *e = c->ex[i];
        if (e->kind != Xload || storage(e->buf) != buf)
            continue;
        if (e->lin != s->addr &&
            !same_item(c, s->addr, e->lin, s->loops, items))
            return 0;
        if (e->passes & s->apart)
            return 0;
        loads++;
    }
    return loads > 0;
}

static int index_of(Node *const *v, int n, const Node *x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return i;
    return -1;
}

void find_inplace(LoopKernel *c)
{
    Group *k = c->group;
    size_t most = vec_len(c->st) * (size_t)k->nin;

    k->ninplace = 0;
    k->inplace = alloc(c->arena, (most + 1) * sizeof *k->inplace);
    for (size_t i = 0; i < vec_len(c->st); i++)
        for (int j = 0; j < k->nin; j++) {
            const Store *s = &c->st[i];
            int out = index_of(k->out, k->nout, s->node);
            if (out < 0 || !s->stage || s->stage != c->nstage ||
                dtypes[s->node->dt].bytes != dtypes[k->in[j]->dt].bytes ||
                !only_at(c, storage(k->in[j]), s))
                continue;
            k->inplace[k->ninplace][0] = out;
            k->inplace[k->ninplace++][1] = j;
        }
}
