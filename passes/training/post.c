/* post.c: builds nodes of `post`, which runs once a step after its
 * micro-batches. */
#include "training.h"

Node *post_op2(TrainStep *step, Op op, Node *a, Node *b)
{
    Node *n = g_ew(step->g, op, step->l, a, b, NULL);

    n->reg = REGpost;
    n->scope = step->scope;
    return n;
}

Node *post_op1(TrainStep *step, Op op, Node *a)
{
    return post_op2(step, op, a, NULL);
}

Node *post_num(TrainStep *step, double v)
{
    Node *n = g_const(step->g, step->l, Df32, v);

    n->reg = REGpost;
    return n;
}

Node *post_all(TrainStep *step, Op op, Node *const *v, size_t n)
{
    Node *all = NULL;

    if (n == 1)
        return v[0];
    Node **some = alloc(step->g->arena, (n / 8 + 1) * sizeof *some);
    for (size_t i = 0; i < n; i++)
        some[i / 8] = all = i % 8 ? post_op2(step, op, all, v[i]) : v[i];
    return post_all(step, op, some, (n + 7) / 8);
}

Node *post_scalar(TrainStep *step, StepValue v)
{
    Node *n = in_post(g_step_value(step->g, NULL, v));
    Node *c = g_cast(step->g, n, Df32);

    if (c != n)
        in_post(c)->scope = step->scope;
    return c;
}

void post_result(TrainStep *step, const char *name, Node *n)
{
    Node *r = g_node(step->g, Oresult, n->loc, 1, &n);

    r->at.result.name = intern(name);
    r->reg = REGpost;
    infer(step->g, r);
}

Node *in_post(Node *n)
{
    n->reg = REGpost;
    return n;
}

void post_set(TrainStep *step, Node *state, Node *value)
{
    Node *in[2] = { state, value };
    Node *w = g_node(step->g, Owrite, step->l, 2, in);

    w->scope = step->scope;
    infer(step->g, in_post(w));
}

void post_needs(TrainStep *step, Node *condition)
{
    step->ok =
        step->ok ? post_op2(step, Oland, step->ok, condition) : condition;
}

/* Returns the value, or the old one if the step is skipped. */
Node *post_if_ok(TrainStep *step, Node *value, Node *old)
{
    Node *n = g_cast(step->g, value, old->dt);

    if (!step->ok && n == value)
        return n;
    n = in_post(step->ok ? g_ew(step->g, Owhere, step->l, step->ok, n, old)
                         : n);
    n->scope = step->scope;
    return n;
}

void post_write(TrainStep *step, Node *state, Node *value)
{
    post_set(step, state, post_if_ok(step, value, state));
}

static Node *result_named_in(const Graph *g, const char *name)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oresult && g->node[i]->at.result.name == name)
            return g->node[i]->in[0];
    return NULL;
}

TrainStep post_of(Graph *g)
{
    TrainStep step = { .g = g, .scope = g_partscope(g, PARTpost, "post") };
    Node *over = result_named_in(g, intern("overflow"));

    step.ok = result_named_in(g, intern("ok"));
    if (over)
        post_needs(&step, post_op2(&step, Ole, over, post_num(&step, 0)));
    return step;
}
