/* aliasing.c: which node's buffer holds a value. A view shares its operand's
 * buffer, a write its state's, a continued sum its first term's. */
#include "graph.h"

static int renames(const Node *n)
{
    const Node *a = n->in[0];

    for (int i = 0; i < a->nd; i++) {
        int k = axes_at(&n->at.rename.from, a->dim[i].a);
        if (n->dim[i].a != (k >= 0 ? n->at.rename.to.v[k] : a->dim[i].a))
            return 0;
    }
    return 1;
}

/* Do the dims of `fine` become those of `coarse` if the neighbouring axes v of
 * fine, in that order, are merged to one axis of coarse? */
static int merges(const Node *fine, const Node *coarse, Axis *const *v, int nv,
                  const Axis *axis)
{
    int i = 0;

    for (int k = 0; k < coarse->nd; k++) {
        int run = coarse->dim[k].a == axis ? nv : 1;
        for (int q = 0; q < run; q++, i++)
            if (i >= fine->nd ||
                fine->dim[i].a != (run == nv && coarse->dim[k].a == axis
                                       ? v[q]
                                       : coarse->dim[k].a))
                return 0;
    }
    return i == fine->nd;
}

int is_view(const Node *n)
{
    switch (n->op) {
    case Orename: return renames(n);
    case Osplit:
        return merges(n, n->in[0], n->at.split.into.v, n->at.split.into.n,
                      n->at.split.axis);
    case Omerge:
        return merges(n->in[0], n, n->at.merge.axes.v, n->at.merge.axes.n,
                      n->at.merge.new);
    case Ostop_gradient: return same_order(n, n->in[0]);
    case Ocast: return n->dt == n->in[0]->dt && same_order(n, n->in[0]);
    default: return 0;
    }
}

Node *viewed(Node *n)
{
    while (is_view(n) || n->op == Owrite)
        n = n->in[0];
    return n;
}

Node *storage(Node *n)
{
    while ((n = viewed(n))->op == Oaccum && n->nin > 1)
        n = n->in[1];
    return n;
}
