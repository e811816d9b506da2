/* gathers.c: parameters that ranks hold in shards are gathered for the forward
 * and again, from a parameter with `again`, for the backward (zero3.c). What
 * the forward's would be kept for reads the backward's:
 *
 *     %q  = dot %x %w                  %q  = dot %x %w
 *     %q' = dot %x %w        =>        %q' = dot %x %w'       again
 *     %dx = dot %dq %w'                %dx = dot %dq %w'
 *
 * Where the backward follows so soon that nothing is gained by letting the
 * first go (the weight of the head), both read the forward's. */
#include "activations.h"

/* Of what is made of one parameter alone; 0: n is not that. */
static uint64_t gather_key(const Node *n)
{
    OpClass c = optab[n->op].cls;

    if (n->op == Oparam)
        return attrs_hash(1, n);
    if (n->nin != 1 || (c != COMM && c != MOVE && c != VIEW))
        return 0;
    uint64_t h = gather_key(n->in[0]);
    return h ? attrs_hash(mix64(h, n->op), n) : 0;
}

static int gathered_again(const Node *n)
{
    if (!n->nin || !gather_key(n))
        return 0;
    while (n->nin)
        n = n->in[0];
    return n->again != 0;
}

int runs_backward(const Node *n)
{
    return n->reg == REGbody && (is_backward(n) || gathered_again(n));
}

int is_rebuilt(const Node *n)
{
    return n->again && n->reg == REGbody && !gathered_again(n);
}

void find_twins(Graph *g)
{
    Arena *a = arena_new();
    Table *twin = table_new(a);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->tmp = NULL;
        if (n->reg == REGbody && gathered_again(n))
            *table_at(twin, gather_key(n)) = n;
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        int forward = n->nin && n->reg == REGbody && !runs_backward(n);
        uint64_t key = forward ? gather_key(n) : 0;
        if (key)
            n->tmp = table_get(twin, key);
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
        for (int k = 0; k < n->nin && !gather_key(n); k++)
            if (n->in[k]->tmp && gathered_again(n->in[k])) {
                n->in[k] = n->in[k]->tmp;
                any = 1;
            }
    }
    return any;
}
