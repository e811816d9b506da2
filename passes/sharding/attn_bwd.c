/* attn_bwd.c: the backward of attention for kernels that are many blocks at
 * once (a GPU). What every block would have to make again is made beforehand,
 * sums of result times gradient; and where blocks would have to add, each
 * stores: a key that several heads share has a gradient of each head, summed
 * afterwards, if other keys are each head's own (latent attention: its scores
 * are there anyway):
 *
 *     %b = attn_bwd .. %out %lse %dy         %m = mul %out %dy
 *     %k = part %b 3   [key rot]             %d = sum %m dim
 *                                      =>    %b = attn_bwd .. %d %lse %dy
 *                                            %p = part %b 3   [heads key rot]
 *                                            %k = sum %p heads
 *
 * Without it, few blocks would walk all heads one behind the other. */
#include "sharding.h"

static Node *as(Node *n, const Node *like, const Node *user)
{
    n->sh = like->sh;
    n->reg = user->reg;
    n->scope = user->scope;
    n->loc = user->loc;
    return n;
}

static Node *delta(Graph *g, const Node *n, Node *out, const Node *lse,
                   Node *dy)
{
    Axis *a[MAXD];
    int na = axes_lacking(lse, out, a);
    Node *x = as(g_cast(g, out, lse->dt), out, n);
    Node *y = as(g_cast(g, dy, lse->dt), dy, n);
    Node *m = as(g_ew(g, Omul, n->loc, x, y, NULL), out, n);

    return as(g_red(g, Osum, m, a, na), lse, n);
}

/* ---- gradients of each head ---------------------------------------------- */

/* Has another operand with keys all these axes? */
static int others_have(const Node *n, const Node *x, Axis *const *a, int na)
{
    for (int k = 0; k < n->nin - 3; k++) {
        const Node *y = n->in[k];
        int all = y != x && dim_of(y, n->at.attn.key) >= 0;
        for (int i = 0; i < na; i++)
            all = all && dim_of(y, a[i]) >= 0;
        if (all)
            return 1;
    }
    return 0;
}

/* The part with those axes in front of its keys. What is partial over ranks is
 * not converted on its way. */
static Node *wide_part(Graph *g, const Node *node, Axis *const *a, int na)
{
    Node *n = node->in[0], *lse = n->in[n->nin - 2];
    Node *q = as(g_node(g, Opart, node->loc, 1, &n), node, node);

    q->at.part.index = node->at.part.index;
    q->dt = atoms_of(g, node, P) ? node->dt : lse->dt;
    for (int d = 0; d < node->nd; d++) {
        for (int i = 0; i < na && node->dim[d].a == n->at.attn.key; i++)
            q->dim[q->nd++] = lse->dim[dim_of(lse, a[i])];
        q->dim[q->nd++] = node->dim[d];
    }
    Shard sh[MAXATOM];
    for (int i = 0; i < MAXATOM; i++)
        sh[i] =
            n->sh[i].k == S && dim_of(q, n->sh[i].a) >= 0 ? n->sh[i] : q->sh[i];
    q->sh = g_type(g, sh);
    return infer(g, q);
}

static Node *of_heads(Graph *g, Node *node)
{
    const Node *n = node->in[0], *lse = n->in[n->nin - 2];
    Axis *a[MAXD];
    int na = axes_lacking(node, lse, a), keep = 0;

    for (int i = 0; i < na; i++)
        if (a[i] != n->at.attn.query)
            a[keep++] = a[i];
    if (!keep || dim_of(node, n->at.attn.key) < 0 ||
        dim_of(node, n->at.attn.query) >= 0 ||
        !others_have(n, n->in[node->at.part.index], a, keep))
        return node;
    why(g, node, "of each head, summed after");
    Node *sum =
        as(g_red(g, Osum, wide_part(g, node, a, keep), a, keep), node, node);
    return as(g_cast(g, sum, node->dt), node, node);
}

/* ---- the pass ------------------------------------------------------------ */

static Node *replace(Graph *g, Node *n, void *ctx)
{
    (void)ctx;
    if (n->op == Opart && n->in[0]->op == Oattn_bwd)
        return of_heads(g, n);
    if (n->op == Oattn_bwd && !n->at.attn.given) {
        Node **in = n->in + n->nin - 3;
        in[0] = delta(g, n, in[0], in[1], in[2]);
    }
    return n;
}

void attn_bwd_apart(Graph *g)
{
    rewrite(g, replace, NULL);
}

void pass_attn_bwd(Graph *g)
{
    if (pass_target(g)->grid)
        attn_bwd_apart(g);
}
