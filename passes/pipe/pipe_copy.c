/* pipe_copy.c: copies nodes of the program into the graph of a stage. */
#include "pipe.h"

Node *pipe_copy(Pipe *pipe, int s, Node ***list, const Node *n, Node *const *in)
{
    Graph *g = pipe->part[s].graph;

    g->node = *list;
    Node *c = g_copyof(g, n, in);
    *list = g->node;
    g->node = NULL;
    c->name = n->name;
    return c;
}

Node *pipe_shared(Pipe *pipe, int s, Node *n)
{
    StagePart *part = &pipe->part[s];
    Node *in[MAXIN];

    if (part->at[n->id])
        return part->at[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = pipe_shared(pipe, s, n->in[k]);
    Node *map = n->map ? pipe_shared(pipe, s, n->map) : NULL;
    Node *c = pipe_copy(pipe, s, any_region(n) ? &part->source : &part->before,
                        n, in);
    c->map = map;
    return part->at[n->id] = c;
}
