/* expand.c: open the composites that the target has no kernels for.
 *
 *     %p = call %x name=softmax            %m = max %x key
 *                                   =>     %e = exp ...
 *                                          %p = div %e %z
 *
 * An attention that the target keeps becomes `attn`, whose results are parts: 0
 * the output, 1 the logsumexp of each query's scores. Its body stays, opened,
 * for the generator. */
#include "model.h"

static const Scope *inner_scope(Graph *g, const Node *n)
{
    return g_inner(g, n->scope, n->at.call.name);
}

/* The body with its own calls opened, as a graph of its own. */
static Graph *open_body(Graph *g, const Node *n)
{
    Graph *b = g_like(g);
    Node *in[MAXIN];

    for (int i = 0; i < n->nin; i++) {
        Node *a = g_node(b, Oarg, n->in[i]->loc, 0, NULL);
        a->at.arg.index = i;
        a->dt = n->in[i]->dt;
        a->nd = n->in[i]->nd;
        memcpy(a->dim, n->in[i]->dim, sizeof a->dim);
        in[i] = infer(b, a);
    }
    inline_body(b, n->body, in, g->top, n->loc);
    g_tidy(b);
    g_names(b);
    return b;
}

/* Axes of the value that are not the result's rows: the operand of the last
 * dot has them beside the key. */
static Node *keep_attention(Graph *g, Node *n, Graph *body)
{
    Node *a = g_node(g, Oattn, n->loc, n->nin, n->in);

    a->scope = n->scope;
    attrs_like(a, n);
    a->body = body;
    infer(g, a);
    return new_part(g, a, 0, n->dt, n);
}

/* Warns of scores in memory, once a line of the model. */
static void warn_stored(const Graph *g, const Node *n, const char *why)
{
    const Node *p = n->body->node[vec_len(n->body->node) - 1]->in[0];
    void **said = table_at_pair(g->compile->said, KEYP(n->loc), NPRODUCTPATH);

    if (!*said)
        warn(n->loc,
             "attention: no kernels on %s: %s; the scores %s are stored: %.1f "
             "MB in fp32 a micro-batch",
             pass_target(g)->name, why, shape_text(g, p),
             (double)g_elems(p) * 4e-6);
    *said = g->compile;
}

static Node *open_call(Graph *g, Node *n, void *ctx)
{
    (void)ctx;
    if (n->op != Ocall)
        return n;
    Node *out = n->nin ? n->in[n->nin - 1] : NULL;
    if (reads_scores(n) && !is_attention(n) && out->op == Opart &&
        out->in[0]->op == Oattn)
        return g_cast(g, logsumexp_part(g, out->in[0], n), n->dt);
    if (is_attention(n)) {
        Node probe = *n;
        probe.body = open_body(g, n);
        const char *refused = pass_target(g)->refuses(g, &probe);
        if (!refused)
            return keep_attention(g, n, probe.body);
        warn_stored(g, &probe, refused);
    }
    Node *r = inline_body(g, n->body, n->in, inner_scope(g, n), n->loc);
    r->scope =
        g_marked(g, r->scope, r->scope->marks | (n->scope->marks & MARKSONE));
    return r;
}

void pass_expand(Graph *g)
{
    rewrite(g, open_call, NULL);
}
