/* optimizers.c: the prelude's optimizers for graphs that no model file made. */
#include "optimizers.h"

#include "../../frontend/frontend.h"

void optimizers_add(Graph *g)
{
    const Source model = {
        "model.lua", "axes { a=1 } loss('l', sum(param('p', 'a'), 'a'))"
    };
    Opts *o = opts_new(g->arena);

    opts_set(o, "train.betas", opts_str(g->opts, "train.betas"), NULL);
    opts_set(o, "train.eps", opts_str(g->opts, "train.eps"), NULL);
    Trace t = trace_sources(&model, 1, o);
    for (size_t i = 0; i < vec_len(t.g->node); i++)
        if (t.g->node[i]->op == Ooptimizer) {
            t.g->node[i]->scope = g->top;
            vec_push(g->arena, g->node, t.g->node[i]);
        }
}
