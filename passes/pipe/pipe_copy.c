/* pipe_copy.c: nodes of the program copied into the graph of a stage. */
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
    StagePart *x = &pipe->part[s];
    Node *in[MAXIN];

    if (x->at[n->id])
        return x->at[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = pipe_shared(pipe, s, n->in[k]);
    Node *map = n->map ? pipe_shared(pipe, s, n->map) : NULL;
    Node *c =
        pipe_copy(pipe, s, any_region(n) ? &x->source : &x->before, n, in);
    c->map = map;
    return x->at[n->id] = c;
}
