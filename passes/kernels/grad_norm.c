/* grad_norm.c: computes the sum of a gradient's squares in the product that
 * adds to its accumulator, so that no kernel reads the gradient again for its
 * norm:
 *
 *     %a = accum %gmm_wgrad                 %a = accum %gmm_wgrad
 *     %m = mul %a %a                   %q = squares %a     a number per warp
 *     %s = sum %m                      %s = sum %q
 *
 * Every micro-batch overwrites them; after the last one they belong to the
 * whole sum. A gradient that is summed over ranks, or packed with others,
 * before its norm is another value and is read again. The update is fused with
 * this product only with train.skip_bad=0 (product_update.c): otherwise nothing
 * may be written before the norm is known to be finite. Measured:
 * decisions/gradient-norm.md. */
#include "kernels.h"

/* Can product n compute its result in accumulator x's buffer? */
static int makes_in(const Graph *g, const Node *n, const Node *x)
{
    Matrix m;

    switch (n->op) {
    case Ogmm: return 0;
    case Ogmm_wgrad: return same_order(n, x);
    case Odot: return as_matrix(g, n->in[0], n->in[1], x, &m);
    default: return 1;
    }
}

int feeds(const Graph *g, const Node *n, const Node *x)
{
    return x->op == Oaccum && x->in[0] == n && x->at.accum.op == Radd &&
           x->reg == n->reg && x->call == n->call && x->dt == n->dt &&
           (x->dt == Df32 || x->dt == Df64 || is_low_gradient(x)) &&
           makes_in(g, n, x);
}

/* Returns the accumulator of which m is the square; null: none. */
static Node *squared(const Node *m)
{
    Node *x = m->in[0];

    return x->op == Ocast && is_low_gradient(x->in[0]) ? x->in[0] : x;
}

/* Returns the square of an accumulator if s sums exactly that, in one stage or
 * more; null: it does not. */
static Node *summed(const Node *s, const int *uses)
{
    Node *m = s->in[0];

    while ((m->op == Osum || m->op == Osplit) && uses[m->id] == 1)
        m = m->in[0];
    return s->nd == 0 && m->op == Omul && m->in[0] == m->in[1] ? m : NULL;
}

static int64_t squares_of(const Graph *g, const Target *target, const Node *a,
                          const int *uses)
{
    const Node *n = a->op == Oaccum ? a->in[0] : NULL;

    return n && n->op == Ogmm_wgrad && uses[n->id] == 1 && feeds(g, n, a)
               ? target->squares(g, n, 0)
               : 0;
}

/* Adds the partial sums; ranks with parts of the accumulator have their own. */
static Node *add_squares(Graph *g, Node *a, int64_t count)
{
    Node *q = g_node(g, Osum_sq, a->loc, 1, &a);
    Axis *axis = g_axis(g, "squares'1");
    Shard sh[MAXATOM] = { 0 };

    g_placed(q, a);
    q->dt = is_low_gradient(a) ? Df32 : a->dt;
    for (int i = 0; g->mesh && i < g->mesh->natom; i++)
        if (a->sh[i].k == S) {
            sh[i] = (Shard){ S, Radd, axis };
            count *= g->mesh->atom[i].size;
        }
    q->sh = g_type(g, sh);
    q->nd = 1;
    q->dim[0] = (Dim){ axis, count };
    return q;
}

static void sum_squares(Graph *g, Node *s, Node *q)
{
    s->in[0] = q;
    s->at.sum.axes = g_axes(g, &q->dim[0].a, 1);
}

typedef struct Squares {
    Graph *graph;
    Node **sum;  /* [accumulator's id]: sum of its squares */
    Node **late; /* squares whose user comes later */
    char *gone;  /* replaced nodes between squares and their sum */
} Squares;

static void find(Squares *squares, const Target *target, Node *s,
                 const int *uses)
{
    Node *m = s->op == Osum && s->reg == REGpost ? summed(s, uses) : NULL;

    if (!m || !squares_of(squares->graph, target, squared(m), uses))
        return;
    squares->sum[squared(m)->id] = s;
    squares->late[m->id] = m;
    for (const Node *x = s->in[0]; x != m; x = x->in[0])
        squares->gone[x->id] = 1;
}

/* Adds a node. A square with another user (AdamW's) is moved to that user, so
 * that it is not kept. */
static void put_node(Squares *squares, Node *n)
{
    if (squares->late[n->id] == n || squares->gone[n->id])
        return;
    for (int k = 0; k < n->nin; k++) {
        Node *m = n->in[k];
        if (squares->late[m->id] != m)
            continue;
        squares->late[m->id] = NULL;
        vec_push(squares->graph->arena, squares->graph->node, m);
    }
    vec_push(squares->graph->arena, squares->graph->node, n);
}

void pass_grad_norm(Graph *g)
{
    const Target *T = pass_target(g);
    Node **old = g->node;
    size_t n = vec_len(old);

    if (!T->squares)
        return;
    g_renumber(g);
    int *uses = use_counts(g, g->arena);
    Squares q = { g, alloc(g->arena, (n + 1) * sizeof *q.sum),
                  alloc(g->arena, (n + 1) * sizeof *q.late),
                  alloc(g->arena, n + 1) };
    for (size_t i = 0; i < n; i++)
        find(&q, T, old[i], uses);
    g->node = NULL;
    for (size_t i = 0; i < n; i++) {
        Node *a = old[i], *s = q.sum[i];
        put_node(&q, a);
        if (s)
            sum_squares(g, s, add_squares(g, a, squares_of(g, T, a, uses)));
    }
    g_tidy(g);
}
