/* gathers.c: sharded parameters are gathered for the forward and again, from a
 * parameter with `again`, for the backward (zero3.c). Backward readers use the
 * second gather:
 *
 *     %q  = dot %x %w                  %q  = dot %x %w
 *     %q' = dot %x %w        =>        %q' = dot %x %w'       again
 *     %dx = dot %dq %w'                %dx = dot %dq %w'
 *
 * If the backward follows so soon that freeing the first gather saves nothing
 * (the weight of the head), both use it. */
#include "plan.h"

/* Returns the parameter of which n is made; null: n has other operands. */
static const Node *gathered(const Node *n)
{
    for (; n->op != Oparam; n = n->in[0]) {
        OpClass c = optab[n->op].cls;
        if (n->nin != 1 || (c != COMM && c != MOVE && c != VIEW))
            return NULL;
    }
    return n;
}

static int gathered_again(const Node *n)
{
    const Node *p = gathered(n);

    return p && p != n && p->again;
}

static int same_gather(const Node *a, const Node *b)
{
    return a->op == b->op && same_attrs(a, b) &&
           (a->op == Oparam || same_gather(a->in[0], b->in[0]));
}

/* Returns the slot for gathers equal to n. */
static void **gather_at(Table *twin, const Node *n)
{
    uint64_t h = attrs_hash(n->op, n);

    for (const Node *x = n; x->op != Oparam; x = x->in[0])
        h = attrs_hash(mix64(h, x->in[0]->op), x->in[0]);
    for (;; h++) {
        void **slot = table_at(twin, h);
        if (!*slot || same_gather(*slot, n))
            return slot;
    }
}

int runs_backward(const Node *n)
{
    return n->reg == REGbody && (is_backward(n) || gathered_again(n));
}

int is_rebuilt(const Node *n)
{
    return n->again && n->reg == REGbody && !gathered_again(n);
}

/* Does n precede the readers of its twin: in the same call, or in a forward? A
 * backward of two calls may gather for nodes that it computes in each. */
static int is_before(const Graph *g, const Node *n, const Node *twin)
{
    return twin &&
           (n->call == twin->call || (n->call && g->call[n->call - 1].w == WF));
}

void find_twins(Graph *g)
{
    Arena *a = arena_new();
    Table *twin = table_new(a);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->tmp = NULL;
        if (n->reg == REGbody && gathered_again(n))
            *gather_at(twin, n) = n;
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        int forward = n->nin && n->reg == REGbody && !runs_backward(n);
        Node *again = forward && gathered(n) ? *gather_at(twin, n) : NULL;
        n->tmp = is_before(g, n, again) ? again : NULL;
    }
    arena_free(a);
}

int share_gathers(Graph *g, const int64_t *after)
{
    int any = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i], *twin = n->tmp;
        if (!twin || runs_backward(n) || after[i] >= local_bytes(g, n))
            continue;
        twin->tmp = n;
        n->tmp = NULL;
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        for (int k = 0; k < n->nin && !gathered(n); k++)
            if (n->in[k]->tmp && gathered_again(n->in[k])) {
                n->in[k] = n->in[k]->tmp;
                any = 1;
            }
    }
    return any;
}
