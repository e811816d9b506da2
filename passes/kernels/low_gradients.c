/* low_gradients.c: precision.grads=bf16: a gradient computed by one product, in
 * a step with one micro-batch a rank, is rounded to bf16 once, by the product,
 * and widened where the optimizer reads it:
 *
 *     %d = dot %x %y      f32               %d = dot %x %y      bf16
 *     %g = accum %d       f32        =>     %g = accum %d       bf16
 *     %m = mul %g %g                        %c = cast %g to=f32
 *                                           %m = mul %c %c
 *
 * Frameworks that keep gradients in the dtype of weights do the same. A
 * gradient that is a sum over micro-batches, ranks, slices of a head or several
 * products stays fp32, so that no term is rounded. Measured:
 * decisions/low-gradients.md. */
#include "../../ir/settings/keys.h"
#include "kernels.h"

typedef struct LowGradients {
    const Graph *graph;
    char *low; /* [id] */
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

/* Is n a gradient with one product as its only term? */
static int is_one_product(const Graph *g, const Node *n, const int *uses)
{
    return n->op == Oaccum && n->of && n->nin == 1 && n->dt == Df32 &&
           uses[n->in[0]->id] == 1 && is_bf16_product(n->in[0]) &&
           feeds(g, n->in[0], n);
}

/* Does n read the gradient element by element, in post? */
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

/* Gives each reader its own cast, so that no kernel stores the widened
 * value. */
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
