/* plain_products.c: says aloud which products are made by plain threads, many
 * times slower, though their dtype is one of tensor cores: those of experts in
 * which a row of an operand is no whole number of 16-byte pieces. */
#include "emit.h"

enum { PIECE = 8 };                     /* elements of bf16 */
static const double worth_saying = 1.1; /* times as long */

/* Of one expert's operand: the elements of a row, and the last axis there. */
static int64_t row_width(const Graph *g, const Node *x, const Axis *expert,
                         int *last)
{
    int64_t n = 1;

    *last = -1;
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != expert && !g_isrow(x->dim[d].a)) {
            n *= local_n(g, x, d);
            *last = d;
        }
    return n;
}

static int is_said(const Graph *g, const Axis *a)
{
    Compile *c = g->compile;

    if (!c->said)
        c->said = table_new(g->arena);
    void **slot = table_at(c->said, KEYP(a));
    int is = *slot != NULL;
    *slot = c;
    return is;
}

void warn_plain(const Graph *g, const Group *k, double secs, double fast)
{
    const Node *n = k->node[0];
    const Node *side[2] = { n->in[0], n->op == Ogmm ? n : n->in[1] };

    for (int i = 0; i < 2 && secs > worth_saying * fast; i++) {
        int d;
        int64_t w = row_width(g, side[i], n->in[2]->at.route.axis, &d);
        if (d < 0 || w % PIECE == 0 || is_said(g, side[i]->dim[d].a))
            continue;
        const Dim *x = &side[i]->dim[d];
        int64_t unit = PIECE * (x->n / local_n(g, side[i], d));
        int64_t down = x->n / unit * unit;
        warn(n->loc,
             "experts of %s=%lld leave the tensor cores, which take multiples "
             "of %lld: a product is predicted to take %.1f times as long; "
             "nearest: %s=%lld",
             x->a->name, (long long)x->n, (long long)unit, secs / fast,
             x->a->name,
             (long long)(down && x->n - down <= unit / 2 ? down : down + unit));
    }
}
