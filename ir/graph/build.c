/* build.c: a cursor, and nodes that are built there. */
#include "graph.h"

Cursor cursor_at(Graph *g, const Node *at)
{
    return (Cursor){ g, at, at->reg, 0 };
}

Node *b_here(Cursor b, Node *n)
{
    g_placed(n, b.at)->reg = b.reg;
    n->again = b.again;
    return n;
}

Node *b_node(Cursor b, Op op, int nin, Node *const *in)
{
    return b_here(b, g_node(b.g, op, b.at->loc, nin, in));
}

Node *b_op3(Cursor b, Op op, Node *x, Node *y, Node *z)
{
    return b_here(b, g_ew(b.g, op, b.at->loc, x, y, z));
}

Node *b_op2(Cursor b, Op op, Node *x, Node *y)
{
    return b_op3(b, op, x, y, NULL);
}

Node *b_op1(Cursor b, Op op, Node *x)
{
    return b_op3(b, op, x, NULL, NULL);
}

Node *b_const(Cursor b, Dtype dt, double v)
{
    Node *n = g_const(b.g, b.at->loc, dt, v);

    n->scope = b.at->scope;
    n->reg = b.reg;
    return n;
}

Node *b_iota(Cursor b, Axis *a)
{
    return b_here(b, g_iota(b.g, a, b.at));
}

Node *b_cast(Cursor b, Node *x, Dtype dt)
{
    return x->dt == dt ? x : b_here(b, g_cast(b.g, x, dt));
}

Node *b_red(Cursor b, Op op, Node *x, Axis **a, int n)
{
    return n ? b_here(b, g_red(b.g, op, x, a, n)) : x;
}

Node *b_rename(Cursor b, Node *x, Axis *from, Axis *to)
{
    Node *n = b_node(b, Orename, 1, &x);

    n->at.rename.from = g_axes(b.g, &from, 1);
    n->at.rename.to = g_axes(b.g, &to, 1);
    return infer(b.g, n);
}

Node *b_gather(Cursor b, Node *x, Node *e, Axis *a)
{
    Node *n = b_node(b, Ogather, 2, (Node *[]){ x, e });

    n->at.gather.axis = a;
    return infer(b.g, n);
}
