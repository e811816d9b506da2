/* hoist.c: computes costly values that depend only on constants once a step
 * instead of in each micro-batch.
 *
 *     body:  %i = iota seq                   pre:   %i = iota seq
 *            %c = cos %i              =>            %c = cos %i
 *            %y = mul %x %c                  body:  %y = mul %x %c
 * */
#include "model.h"

/* Node.mark: 1: depends only on constants; 2: and contains a costly op. */
void pass_hoist(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = n->op == Oconst || n->op == Oiota;
        if (optab[n->op].cls != EW && optab[n->op].cls != VIEW &&
            optab[n->op].cls != MOVE)
            continue;
        n->mark = n->nin > 0 && n->op != Odropout ? 1 + op_calls(n->op) : 0;
        for (int k = 0; k < n->nin; k++)
            if (n->in[k]->mark == 0)
                n->mark = 0;
            else if (n->mark && n->in[k]->mark == 2)
                n->mark = 2;
        if (n->mark == 2)
            n->reg = REGpre;
    }
    for (size_t i = vec_len(g->node); i-- > 0;)
        for (int k = 0; k < g->node[i]->nin; k++)
            if (g->node[i]->reg == REGpre)
                g->node[i]->in[k]->reg = REGpre;
}
