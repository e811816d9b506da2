/* precision.c: decide every dtype. `real` becomes the policy's: fp32, bf16, or
 * fp64 for tests, where f32() and bf16() are the identity. Under bf16
 * constants, states, masters and accumulators stay fp32, and a gradient goes
 * from its product or sum into the fp32 accumulator unrounded. Means become
 * sums and products here, after `step` has told means and sums apart.        */
#include <string.h>

#include "passes.h"

typedef struct Policy {
    Dtype real, high;             /* of real values; of explicit fp32 values  */
    int all64;
} Policy;

static Policy policy_of(const Graph *g)
{
    const char *s = opts_str(g->opts, "precision.policy");

    if (!strcmp(s, "fp64"))
        return (Policy){ Df64, Df64, 1 };
    return (Policy){ !strcmp(s, "bf16") ? Dbf16 : Df32, Df32, 0 };
}

static Dtype decided(const Policy *p, Dtype t)
{
    if (t == Dreal)
        return p->real;
    return p->all64 && dtypes[t].kind == 'f' ? Df64 : t;
}

static Dtype of_param(const Policy *p, const Param *x)
{
    if (x->dt == Dreal && x->kind != PKparam)
        return p->high;
    return decided(p, x->dt);
}

static Node *leaf(Graph *g, Node *n, const Policy *p)
{
    if (n->op == Oparam || n->op == Ostate) {
        Param *x = g_param(g, n->s);
        n->dt = x->dt = of_param(p, x);
    } else {
        n->dt = n->op == Oconst && n->dt == Dreal ? p->high : decided(p, n->dt);
    }
    return n;
}

static Node *cast(Graph *g, Node *n, const Policy *p)
{
    Dtype t = decided(p, (Dtype)dtype_named(n->s));

    if (n->in[0]->dt == t)
        return n->in[0];
    n->s = intern(dtypes[t].name);
    return infer(g, n);
}

/* Both operands of a product have its dtype.                                 */
static Node *product(Graph *g, Node *n)
{
    n->dt = Dnone;
    infer(g, n);
    for (int k = 0; k < 2; k++)
        n->in[k] = g_cast(g, n->in[k], n->dt);
    return n;
}

static Node *sum_as(Graph *g, const Node *n, Dtype t)
{
    Node *sum = g_red(g, Osum, g_cast(g, n->in[0], t), n->A, n->nA);

    sum->scope = n->scope;
    sum->reg = n->reg;
    return sum;
}

static Node *mean(Graph *g, Node *n)
{
    double count = (double)g_elems(n->in[0]) / (double)g_elems(n);
    Dtype t = dtypes[n->in[0]->dt].kind == 'f' ? n->in[0]->dt : n->dt;
    Node *sum = sum_as(g, n, t);
    Node *c = g_const(g, n->loc, t == Dbf16 ? Df32 : t, 1 / count);
    Node *r = g_ew(g, Omul, n->loc, sum, c, NULL);

    r->scope = n->scope;
    r->reg = n->reg;
    return r;
}

static Node *accum(Graph *g, Node *n, const Policy *p, const int *uses)
{
    Node *x = n->in[0];

    n->dt = decided(p, n->dt);
    if (optab[x->op].cls == EIN && uses[x->id] == 1)
        x->dt = n->dt;
    if (x->op == Osum && x->dt == Dbf16)
        n->in[0] = sum_as(g, x, n->dt);
    return infer(g, n);
}

typedef struct Decide { Policy p; int *uses; Table *done; } Decide;

static Node *decide(Graph *g, Node *n, void *ctx);

/* An attention's body, once: forward and backward share it.                  */
static void inside(Graph *body, Decide *d)
{
    void **seen = table_at(d->done, KEYP(body));

    if (*seen)
        return;
    *seen = body;
    rewrite(body, decide, d);
    g_names(body);
}

static Node *decide(Graph *g, Node *n, void *ctx)
{
    Decide *d = ctx;

    if (n->body)
        inside(n->body, d);
    switch (n->op) {
    case Ocast: return cast(g, n, &d->p);
    case Odot: case Ogmm: case Ogmmw: return product(g, n);
    case Omean:
        n->dt = decided(&d->p, n->dt);
        return mean(g, n);
    case Oaccum: return accum(g, n, &d->p, d->uses);
    case Opart: n->dt = decided(&d->p, n->dt); return n;
    default: break;
    }
    if (optab[n->op].cls == SRC)
        return leaf(g, n, &d->p);
    return infer(g, n);
}

void pass_precision(Graph *g)
{
    Decide d = { policy_of(g), NULL, table_new(g->arena) };

    g_renumber(g);
    d.uses = use_counts(g, g->arena);
    rewrite(g, decide, &d);
}
