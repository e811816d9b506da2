/* rewrite.c: the loop of most graph passes. */
#include "core.h"

void rewrite(Graph *g, Node *(*f)(Graph *g, Node *n, void *ctx), void *ctx)
{
    Node **old = g->node;
    size_t count = vec_len(old);
    Arena *scratch = arena_new();
    Node **to = alloc(scratch, (count + 1) * sizeof *to);

    g_renumber(g);
    g->node = NULL;
    for (size_t i = 0; i < count; i++) {
        Node *n = old[i];
        for (int k = 0; k < n->nin; k++)
            n->in[k] = to[n->in[k]->id];
        if (n->map)
            n->map = to[n->map->id];
        to[i] = f(g, n, ctx);
        if (to[i] == n && n->op == Omerge)
            infer(g, n); /* the operand's axes may have another order */
        if (to[i] == n)
            vec_push(g->arena, g->node, n);
        n->id = (int)i;
    }
    arena_free(scratch);
    g_tidy(g);
}

int *use_counts(const Graph *g, Arena *a)
{
    int *uses = alloc(a, (vec_len(g->node) + 1) * sizeof *uses);

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            uses[g->node[i]->in[k]->id]++;
    return uses;
}

Table *use_table(const Graph *g)
{
    Table *uses = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            ++*(uintptr_t *)table_at(uses, KEYP(g->node[i]->in[k]));
    return uses;
}

static Node *bound(Graph *g, const Node *n, Node **to, const Scope *scope,
                   const Loc *loc)
{
    Node *in[MAXIN], *c;

    for (int k = 0; k < n->nin; k++)
        in[k] = to[n->in[k]->id];
    if (n->op == Ocall)
        return inline_body(g, n->body, in, scope, loc);
    c = g_copyof(g, n, in);
    c->scope = scope;
    if (!c->loc)
        c->loc = loc;
    return infer(g, c);
}

Node *inline_body(Graph *g, const Graph *body, Node *const *in,
                  const Scope *scope, const Loc *loc)
{
    size_t count = vec_len(body->node);
    Arena *scratch = arena_new();
    Node **to = alloc(scratch, (count + 1) * sizeof *to), *last;

    for (size_t i = 0; i < count; i++) {
        Node *n = body->node[i];
        n->id = (int)i;
        to[i] =
            n->op == Oarg ? in[n->at.arg.index] : bound(g, n, to, scope, loc);
    }
    last = to[count - 1];
    arena_free(scratch);
    return last;
}

void g_visit(Node *n, Node ***out, Arena *a)
{
    if (n->mark)
        return;
    n->mark = 1;
    for (int k = 0; k < n->nin; k++)
        g_visit(n->in[k], out, a);
    if (n->map)
        g_visit(n->map, out, a);
    vec_push(a, *out, n);
}

void g_sort(Graph *g)
{
    Node **out = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = 0;
    for (size_t i = 0; i < vec_len(g->node); i++)
        g_visit(g->node[i], &out, g->arena);
    g->node = out;
    g_renumber(g);
}

Node *new_part(Graph *g, Node *of, int index, Dtype dt, const Node *like)
{
    Node *p = g_node(g, Opart, of->loc, 1, &of);

    p->at.part.index = index;
    p->dt = dt;
    p->scope = of->scope;
    p->nd = like->nd;
    memcpy(p->dim, like->dim, sizeof p->dim);
    return infer(g, p);
}

/* Counts are integers, other numbers fp32. */
Node *g_step_value(Graph *g, const Loc *loc, StepValue v)
{
    Node *n = g_node(g, Ostepval, loc, 0, NULL);

    n->at.stepval.name = v;
    n->dt = v == STEPstep || v == STEPmicro ? Di64 : Df32;
    return infer(g, n);
}

/* A row of scores has one logsumexp: it has the result's axes except those that
 * only the value has. */
Node *logsumexp_part(Graph *g, Node *attn, const Node *out)
{
    const Graph *body = attn->body;
    const Node *y = body->node[vec_len(body->node) - 1]->in[0];
    Node *p = g_node(g, Opart, attn->loc, 1, &attn);

    p->at.part.index = 1;
    p->dt = Df32;
    p->scope = attn->scope;
    for (int i = 0; i < out->nd; i++)
        if (dim_of(y, out->dim[i].a) >= 0)
            p->dim[p->nd++] = out->dim[i];
    return infer(g, p);
}
