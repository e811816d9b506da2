/* composite.c: recognizes composites: an attention by the axes that its call
 * names, a softmax by its computation; finds operands that have a gradient. */
#include "graph.h"

int reads_scores(const Node *n)
{
    return n->op == Ocall && n->at.call.key && n->at.call.query;
}

int is_attention(const Node *n)
{
    return reads_scores(n) && !strcmp(n->at.call.name, "attention");
}

const Node *unrounded(const Node *n)
{
    while (n->op == Ocast || n->op == Ostop_gradient ||
           (n->op == Obroadcast && same_dims(n, n->in[0])))
        n = n->in[0];
    return n;
}

/* Returns the value with one element per row that n broadcasts; null: none. */
static const Node *row_value(const Node *n)
{
    n = unrounded(n);
    while (n->op == Obroadcast)
        n = unrounded(n->in[0]);
    return n;
}

static const Axis *reduced_axis(const Node *n, Op op)
{
    return n->op == op && n_axes(n)->n == 1 ? n_axes(n)->v[0] : NULL;
}

/* y = exp(s - max s) / sum */
const Node *softmax_scores(const Node *y, const Axis **axis)
{
    if (y->op != Odiv)
        return NULL;
    const Node *e = unrounded(y->in[0]), *z = row_value(y->in[1]);
    *axis = reduced_axis(z, Osum);
    if (e->op != Oexp || !*axis || unrounded(z->in[0]) != e)
        return NULL;
    const Node *d = unrounded(e->in[0]);
    if (d->op != Osub)
        return NULL;
    const Node *s = d->in[0], *m = row_value(d->in[1]);
    if (reduced_axis(m, Omax) != *axis || unrounded(m->in[0]) != unrounded(s))
        return NULL;
    return s;
}

/* ---- gradients ----------------------------------------------------------- */

static int differentiable(const Node *n)
{
    return dtypes[n->dt].kind == 'f' || n->op == Oattn;
}

int passes_gradient(const Node *n, int k)
{
    if (!differentiable(n) || !differentiable(n->in[k]))
        return 0;
    if (n->body)
        return n->op != Oattn_bwd && gradient_operands(n->body) >> k & 1;
    return optab[n->op].gradkind == 'E' ? optab[n->op].grad[k] != NULL
                                        : optab[n->op].gradkind != 0;
}

/* Adds the arguments that receive a gradient from n. */
static void add_arguments(const Node *n, Table *seen, unsigned *set)
{
    void **visited = table_at(seen, KEYP(n));

    if (*visited)
        return;
    *visited = seen;
    if (n->op == Oarg)
        *set |= 1u << n->at.arg.index;
    for (int k = 0; k < n->nin; k++)
        if (passes_gradient(n, k))
            add_arguments(n->in[k], seen, set);
}

unsigned gradient_operands(const Graph *body)
{
    unsigned set = 0;

    add_arguments(body->node[vec_len(body->node) - 1], table_new(body->arena),
                  &set);
    return set;
}
