/* scaled.c: recognizes products that a target's kernels run on FP8 values and
 * their scales (quant/scaled_products.c): their dequantized operands are never
 * stored. */
#include "core.h"

/* Returns the dequantize node of x if it has exactly this layout; null: it has
 * not. */
static const Node *dequantized(const Node *x, ScaleLayout layout)
{
    while (x->op == Ocast)
        x = x->in[0];
    return x->op == Odequantize && x->at.dequantize.layout == layout &&
                   x->in[0]->dt == De4m3 && x->in[1]->dt == Df32 &&
                   x->in[1]->nd == x->in[0]->nd && !x->in[0]->stash
               ? x
               : NULL;
}

/* Have scales the values' layout, with a block axis for each blocked axis, and
 * is each block whole on a rank? */
static int fits(const Graph *g, const Node *d)
{
    const struct dequantize_attrs *t = &d->at.dequantize;
    const Node *x = d->in[0], *s = d->in[1];

    for (int i = 0; i < x->nd; i++) {
        int at = axes_at(&t->axes, x->dim[i].a);
        int64_t size = at < 0 ? 1 : block_size(d, at);
        if (s->dim[i].a != (at < 0 ? x->dim[i].a : t->blocks.v[at]) ||
            local_n(g, s, i) != (local_n(g, x, i) + size - 1) / size)
            return 0;
    }
    return 1;
}

/* Are the rows blocked along the contracted axis, and the weights along the
 * contracted and the output axis? */
static int along_the_sum(const Node *n, const Node *rows, const Node *w)
{
    const Axes *sum = &n->at.gmm.axes;

    return sum->n == 1 && rows->nd == 2 && w->nd == 3 &&
           rows->at.dequantize.axes.v[0] == sum->v[0] &&
           axes_at(&w->at.dequantize.axes, sum->v[0]) >= 0 &&
           axes_at(&w->at.dequantize.axes, n->in[2]->at.route.axis) < 0;
}

/* Returns the only blocked axis of d among those that n contracts (or outputs);
 * null: there is none, or blocks of the merged axes, with it last, differ from
 * d's. */
static const Axis *cut_last(const Graph *g, const Node *n, const Node *d,
                            int summed)
{
    const Node *x = d->in[0];
    const Axis *cut = NULL;
    int64_t beside = 1;

    for (int i = 0; i < x->nd; i++) {
        const Axis *a = x->dim[i].a;
        int at = axes_at(&d->at.dequantize.axes, a);
        if ((axes_at(&n->at.dot.axes, a) >= 0) != summed)
            continue;
        if (at < 0)
            beside *= local_n(g, x, i);
        else if (cut || block_size(d, at) != SCALEBLOCK)
            return NULL;
        else
            cut = a;
    }
    if (!cut)
        return NULL;
    return beside == 1 || local_n(g, x, dim_of(x, cut)) % SCALEBLOCK == 0
               ? cut
               : NULL;
}

/* Is each output axis of one operand, with blocks of rows and columns of a
 * matrix? */
static int is_matrix_of_blocks(const Graph *g, const Node *n, const Node *rows,
                               const Node *w)
{
    const Axis *sum = cut_last(g, n, rows, 1);

    for (int i = 0; i < n->nd; i++)
        if ((dim_of(rows, n->dim[i].a) >= 0) == (dim_of(w, n->dim[i].a) >= 0))
            return 0;
    return sum && cut_last(g, n, w, 1) == sum && cut_last(g, n, w, 0);
}

static int multiplies_grouped(const Node *n, ScaledOperands *of)
{
    of->rows = dequantized(n->in[0], SCALEwide);
    of->w = dequantized(n->in[1], SCALEsquare);
    return of->rows && of->w && along_the_sum(n, of->rows, of->w);
}

static int multiplies_dense(const Graph *g, const Node *n, ScaledOperands *of)
{
    of->rows = of->w = NULL;
    for (int k = 0; k < 2 && !(of->rows && of->w); k++) {
        of->rows = dequantized(n->in[k], SCALEwide);
        of->w = dequantized(n->in[!k], SCALEsquare);
    }
    return of->rows && of->w && is_matrix_of_blocks(g, n, of->rows, of->w);
}

int multiplies_numbers(const Graph *g, const Node *n, ScaledOperands *of)
{
    const Target *target = pass_target(g);

    if (!target->scaled || n->nin > 3)
        return 0;
    int may = n->op == Ogmm   ? multiplies_grouped(n, of)
              : n->op == Odot ? multiplies_dense(g, n, of)
                              : 0;
    return may && fits(g, of->rows) && fits(g, of->w) && target->scaled(g, n);
}
