/* low_gradients.c: with precision.grads=bf16, a gradient that one product makes
 * of the only micro-batch of a step and a rank is rounded to bf16 where it is
 * made, once, and widened where the optimizer reads it:
 *
 *     %d = dot %x %y      f32               %d = dot %x %y      bf16
 *     %g = accum %d       f32        =>     %g = accum %d       bf16
 *     %m = mul %g %g                        %c = cast %g to=f32
 *                                           %m = mul %c %c
 *
 * So frameworks do that keep gradients in the dtype of weights. A gradient that
 * is a sum, over micro-batches, ranks, slices of a head or several products of
 * a weight, stays fp32: it is rounded by no term.
 *
 * Of Qwen3-30B with 4 layers these are 11.2 of 12.4 GB, which a step of one
 * sequence stores once and reads once: on an H100 61.4 to 57.5 ms (predicted:
 * 4.1 less), of 4 sequences 142.9 to 140.5 (2.7). */
#include "../../ir/settings/keys.h"
#include "kernels.h"

typedef struct LowGradients {
    const Graph *graph;
    char *low; /* by id */
} LowGradients;

int is_low_gradient(const Node *n)
{
    return n->op == Oaccum && n->of && n->dt == Dbf16;
}

static int is_bf16_product(const Node *n)
{
    return (n->op == Odot || n->op == Ogmm_wgrad) && !is_scaled_product(n) &&
           n->in[0]->dt == Dbf16 && n->in[1]->dt == Dbf16;
}

/* A gradient as its only product makes it. */
static int is_one_product(const Graph *g, const Node *n, const int *uses)
{
    return n->op == Oaccum && n->of && n->nin == 1 && n->dt == Df32 &&
           uses[n->in[0]->id] == 1 && is_bf16_product(n->in[0]) &&
           feeds(g, n->in[0], n);
}

/* Reads it element by element, in post. */
static int can_widen(const Node *n)
{
    return n->reg == REGpost && optab[n->op].cls == EW;
}

static void find(LowGradients *gradients)
{
    const Graph *g = gradients->graph;
    size_t count = vec_len(g->node);
    int *uses = use_counts(g, g->arena);

    for (size_t i = 0; i < count; i++) {
        const Node *n = g->node[i];
        gradients->low[n->id] = (char)is_one_product(g, n, uses);
        for (int k = 0; k < n->nin && !can_widen(n); k++)
            gradients->low[n->in[k]->id] = 0;
    }
}

static Node *widened(Graph *g, Node *x, const Node *by)
{
    Node *c = g_placed(g_cast(g, x, Df32), by);

    c->sh = x->sh;
    return c;
}

/* Each reader has a cast of its own, so that no kernel stores what it makes. */
static Node *low(Graph *g, Node *n, void *ctx)
{
    const LowGradients *gradients = ctx;
    const Node *last = NULL;
    Node *c = NULL;

    if (gradients->low[n->id]) {
        why(g, n, "is kept in bf16, as its only product makes it");
        n->dt = n->in[0]->dt = Dbf16;
    }
    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        if (!gradients->low[x->id])
            continue;
        c = x == last ? c : widened(g, x, n);
        last = x;
        n->in[k] = c;
    }
    return n;
}

void pass_low_gradients(Graph *g)
{
    LowGradients gradients = { .graph = g };
    int asked = g->opts && opts_gradient_dtype(g->opts) == GRADbf16;

    if (!asked || program_turns(g) > 1)
        return;
    g_renumber(g);
    gradients.low = alloc(g->arena, vec_len(g->node) + 1);
    find(&gradients);
    rewrite(g, low, &gradients);
}
