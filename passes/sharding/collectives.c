/* collectives.c: converts every operand to the type that its user requires. A
 * value is resharded once for each type, for all its users:
 *
 *     %x = add ...      seq:tp             %x  = add ...        seq:tp
 *     %q = dot %x %wq   kv:tp       =>     %x1 = allgather %x seq
 *     %k = dot %x %wk   kv:tp              %q  = dot %x1 %wq    kv:tp
 *                                          %k  = dot %x1 %wk    kv:tp
 *
 * Constants, iota, random numbers and values computed from them are computed
 * again in the required type, and a broadcast is resharded before it grows. */
#include "sharding.h"

/* ---- the pass ------------------------------------------------------------ */

static int tuple(const Node *n)
{
    return n->op == Oattn || n->op == Oattn_bwd || n->op == Oroute;
}

/* Returns the resharded operands of n. Old nodes keep their operands until the
 * end, since later choices read them. */
static Node **operands(Partitioner *part, Node *n)
{
    Node **in = alloc(part->graph->arena, ((size_t)n->nin + 1) * sizeof *in);
    OperandShards need;
    Shard same[MAXATOM];

    if (n->nin)
        choose_strategy(part, n, same, need);
    for (int k = 0; k < n->nin; k++)
        in[k] = tuple(n->in[k]) ? n->in[k] : demand(part, n, k, need[k]);
    return in;
}

void pass_collectives(Graph *g)
{
    if (!g->mesh->natom)
        return;
    g_renumber(g);
    Partitioner *p = partitioner_new(g, 1);
    Node **old = g->node;
    size_t count = vec_len(old);
    Node ***now = alloc(p->arena, (count + 1) * sizeof *now);

    g->node = NULL;
    for (size_t i = 0; i < count; i++) {
        now[i] = operands(p, old[i]);
        vec_push(g->arena, g->node, old[i]);
    }
    for (size_t i = 0; i < count; i++)
        old[i]->in = now[i];
    g_tidy(g);
    arena_free(p->arena);
}
