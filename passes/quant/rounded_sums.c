/* rounded_sums.c: fuses sums of rows with the quantization of values in blocks
 * of 128 columns (join_rounding.c). The quantizing kernel also writes the sums
 * of blocks, which a second kernel adds.
 *
 *     %a = mul %y %w                      %p = sum (split %a ffn) ffn'by128
 *     %s = sum %a ffn               =>    %s = sum %p ffn'of128
 *     %b = quantize_blocks (mul %y %v)
 *
 * The backward of an expert's activation has this form: the gradients of both
 * factors are quantized; that of the router's weight is a sum. */
#include "quant.h"

enum { MOSTLEAVES = 16 };

typedef struct Leaves {
    const Node *of[MOSTLEAVES];
    int n;
} Leaves;

static int lies_as(const Node *n, const Node *x)
{
    return n->map == x->map && same_dims(n, x);
}

static void add_leaf(Leaves *leaves, const Node *n)
{
    for (int i = 0; i < leaves->n; i++)
        if (leaves->of[i] == n)
            return;
    if (leaves->n < MOSTLEAVES)
        leaves->of[leaves->n++] = n;
}

/* Collects the operands of n's tree of elementwise operations with n's dims. */
static void find_leaves(const Node *n, int depth, Leaves *leaves)
{
    enum { DEEPEST = 12 };

    if (depth == DEEPEST || (n->op != Ocast && !optab[n->op].expr)) {
        add_leaf(leaves, n);
        return;
    }
    for (int k = 0; k < n->nin; k++)
        if (lies_as(n->in[k], n))
            find_leaves(n->in[k], depth + 1, leaves);
}

static int share_leaf(const Node *n, const Node *x)
{
    Leaves a = { 0 }, b = { 0 };

    find_leaves(n, 0, &a);
    find_leaves(x, 0, &b);
    for (int i = 0; i < a.n; i++)
        for (int k = 0; k < b.n; k++)
            if (a.of[i] == b.of[k])
                return 1;
    return 0;
}

/* Is m a sum of rows with x's layout, and x an operand of n's tree? */
static int is_beside(const Node *m, const Node *x)
{
    return m->op == Osum && m->dt != Dbf16 && n_axes(m)->n == 1 &&
           n_axes(m)->v[0] == x->dim[x->nd - 1].a && lies_as(m->in[0], x) &&
           x->nd < MAXD && m->again == x->again && share_leaf(m->in[0], x);
}

char *rounded_sums(Graph *g)
{
    size_t n = vec_len(g->node);
    char *columns = alloc(g->arena, n + 1), *beside = alloc(g->arena, n + 1);

    g_renumber(g);
    for (size_t i = 0; i < n && pass_target(g)->rounds; i++) {
        const Node *p = g->node[i];
        if (p->op == Opart && p->in[0]->op == Oquantize_blocks &&
            p->in[0]->nin > 1 && p->at.part.index > 1)
            columns[p->in[0]->id] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        const Node *q = g->node[i];
        if (!columns[i] || !pass_target(g)->rounds(g, q))
            continue;
        for (size_t k = 0; k < n; k++)
            if (is_beside(g->node[k], q->in[0]))
                beside[k] = 1;
    }
    return beside;
}

int is_sum_of_blocks(const Node *m, const Node *x)
{
    const Node *s = m->in[0];

    if (m->op != Osum || s->op != Osplit || n_axes(m)->n != 1 ||
        s->nd != x->nd + 1 || !lies_as(s->in[0], x))
        return 0;
    const Dim last = s->dim[s->nd - 1];
    return last.n == SCALEBLOCK && n_axes(m)->v[0] == last.a &&
           s->at.split.axis == x->dim[x->nd - 1].a;
}
