/* post.c: nodes of `post`, which runs once a step after its micro-batches. */
#include "training.h"

Node *post_op2(TrainStep *s, Op op, Node *a, Node *b)
{
    Node *n = g_ew(s->g, op, s->l, a, b, NULL);

    n->reg = REGpost;
    n->scope = s->scope;
    return n;
}

Node *post_op1(TrainStep *s, Op op, Node *a)
{
    return post_op2(s, op, a, NULL);
}

Node *post_num(TrainStep *s, double v)
{
    Node *n = g_const(s->g, s->l, Df32, v);

    n->reg = REGpost;
    return n;
}

Node *post_scalar(TrainStep *s, StepValue v)
{
    Node *n = g_node(s->g, Ostepval, NULL, 0, NULL);

    n->at.stepval.name = v;
    n->dt = Df32;
    n->reg = REGpost;
    return infer(s->g, n);
}

void post_result(TrainStep *s, const char *name, Node *n)
{
    Node *r = g_node(s->g, Oresult, n->loc, 1, &n);

    r->at.result.name = intern(name);
    r->reg = REGpost;
    infer(s->g, r);
}

Node *in_post(Node *n)
{
    n->reg = REGpost;
    return n;
}

void post_set(TrainStep *s, Node *state, Node *value)
{
    Node *in[2] = { state, value };
    Node *w = g_node(s->g, Owrite, s->l, 2, in);

    w->scope = s->scope;
    infer(s->g, in_post(w));
}

/* The value, or the old one when something is not finite. */
Node *post_if_ok(TrainStep *s, Node *value, Node *old)
{
    Node *n = g_cast(s->g, value, old->dt);

    n = in_post(g_ew(s->g, Owhere, s->l, s->ok, n, old));
    n->scope = s->scope;
    return n;
}

void post_write(TrainStep *s, Node *state, Node *value)
{
    post_set(s, state, post_if_ok(s, value, state));
}
