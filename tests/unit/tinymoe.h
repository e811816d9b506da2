/* tinymoe.h: a model small enough to look at, built without the front end:
 * embed, [norm, mlp], [norm, experts], head, loss. Keys are options,
 * "fold.tp=2 ...". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "../functions.h"
#include "optimizers.h"

enum { BATCH = 2, SEQ = 8, HIDDEN = 8, FFN = 16, EXPERT = 4, VOCAB = 32 };

typedef struct Model {
    Graph *g;
    Axis *micro, *batch, *seq, *hidden, *ffn, *expert, *vocab, *top;
} Model;

static Axis *axis(Graph *g, const char *name, AxisRole role, int64_t n)
{
    Axis *a = g_axis(g, name);

    a->n = n;
    a->role = role;
    return a;
}

static Model model(const char *keys)
{
    Opts *o = opts_new(forever);
    Graph *g = g_new(forever, "test");
    char key[32], value[32];

    while (*keys) {
        int used = 0;
        assert_int_equal(sscanf(keys, "%31[^=]=%31s%n", key, value, &used), 2);
        opts_set(o, key, value, NULL);
        keys += used + (keys[used] == ' ');
    }
    g->opts = o;
    return (Model){ g,
                    axis(g, "micro", ROLEmicro, 1),
                    axis(g, "batch", ROLEbatch, BATCH),
                    axis(g, "seq", ROLEseq, SEQ),
                    axis(g, "hidden", ROLEnone, HIDDEN),
                    axis(g, "ffn", ROLEffn, FFN),
                    axis(g, "expert", ROLEchoice, EXPERT),
                    axis(g, "vocab", ROLEvocab, VOCAB),
                    axis(g, "top", ROLEnone, 0) };
}

/* ---- building, in the logical level -------------------------------------- */

static Node *leaf(Model *m, Op op, const char *name, Dtype dt, int nd,
                  Axis *const *a)
{
    Node *n = g_node(m->g, op, NULL, 0, NULL);

    set_name(n, intern(name));
    n->dt = dt;
    for (int i = 0; i < nd; i++)
        n->dim[n->nd++] = (Dim){ a[i], a[i]->n };
    return infer(m->g, n);
}

static Node *param(Model *m, const char *path, int nd, Axis *const *a)
{
    Node *n = leaf(m, Oparam, path, Dreal, nd, a);
    Param *p = alloc(forever, sizeof *p);

    p->path = n->at.param.path;
    p->dt = Dreal;
    p->nd = nd;
    memcpy(p->dim, n->dim, sizeof p->dim);
    p->init = INITnormal;
    p->arg = 0.02;
    vec_push(forever, m->g->param, p);
    return n;
}

#define AXES(...)   \
    (Axis *[])      \
    {               \
        __VA_ARGS__ \
    }

static Node *param1(Model *m, const char *path, Axis *a)
{
    return param(m, path, 1, AXES(a));
}

static Node *param2(Model *m, const char *path, Axis *a, Axis *b)
{
    return param(m, path, 2, AXES(a, b));
}

static Node *param3(Model *m, const char *path, Axis *a, Axis *b, Axis *c)
{
    return param(m, path, 3, AXES(a, b, c));
}

static Node *ids(Model *m, const char *name)
{
    return leaf(m, Oinput, name, Di32, 3, AXES(m->micro, m->batch, m->seq));
}

static Node *op(Model *m, Op o, Node *a, Node *b)
{
    return g_ew(m->g, o, NULL, a, b, NULL);
}

static Node *dot(Model *m, Node *a, Node *b, Axis *over)
{
    return g_dot(m->g, NULL, a, b, &over, 1, NULL);
}

static Node *red(Model *m, Op o, Node *a, Axis *over)
{
    return g_red(m->g, o, a, &over, 1);
}

static Node *indexed(Model *m, Op o, Node *a, Node *e, Axis *over)
{
    Node *n = g_node(m->g, o, NULL, 2, (Node *[]){ a, e });

    if (o == Opick)
        n->at.pick.axis = over;
    else
        n->at.gather.axis = over;
    return infer(m->g, n);
}

static Node *rmsnorm(Model *m, Node *x, Node *w)
{
    Node *s = red(m, Omean, op(m, Omul, x, x), m->hidden);

    s = op(m, Orsqrt, op(m, Oadd, s, g_const(m->g, NULL, Dreal, 1e-5)), NULL);
    return op(m, Omul, op(m, Omul, x, s), w);
}

static Node *mlp(Model *m, Node *x)
{
    Node *h = dot(m, x, param2(m, "up", m->hidden, m->ffn), m->hidden);

    return dot(m, op(m, Osilu, h, NULL), param2(m, "down", m->ffn, m->hidden),
               m->ffn);
}

static Node *topk(Model *m, Node *p)
{
    Node *e = g_node(m->g, Otopk, NULL, 1, &p);

    e->at.topk = (struct topk_attrs){ 2, m->expert, m->top };
    return infer(m->g, e);
}

static Node *moe(Model *m, Node *x)
{
    Node *p = dot(m, x, param2(m, "gate", m->hidden, m->expert), m->hidden);
    p = op(m, Osigmoid, p, NULL);
    Node *e = topk(m, p), *g = indexed(m, Ogather, p, e, m->expert);
    Node *w1 = param3(m, "w1", m->expert, m->hidden, m->ffn);
    Node *w2 = param3(m, "w2", m->expert, m->ffn, m->hidden);
    Node *h = dot(m, x, indexed(m, Opick, w1, e, m->expert), m->hidden);
    h = op(m, Osilu, h, NULL);
    h = dot(m, h, indexed(m, Opick, w2, e, m->expert), m->ffn);
    return red(m, Osum, op(m, Omul, g, h), m->top);
}

static Node *cross_entropy(Model *m, Node *logits, Node *labels)
{
    Node *max = red(m, Omax, logits, m->vocab);
    max = op(m, Ostop_gradient, max, NULL);
    Node *z =
        red(m, Osum, op(m, Oexp, op(m, Osub, logits, max), NULL), m->vocab);
    Node *lse = op(m, Oadd, op(m, Olog, z, NULL), max);

    return op(m, Osub, lse, indexed(m, Ogather, logits, labels, m->vocab));
}

static void loss(Model *m, Node *t)
{
    Node *mean = g_red(m->g, Omean, t, AXES(m->batch, m->seq), 2);
    Node *n = g_node(m->g, Oloss, NULL, 1, &mean);

    n->at.loss.name = intern("lm");
    n->at.loss.weight = 1;
    infer(m->g, n);
}

/* The program `step` after the pass upto. */
static Graph *tinymoe(const char *keys, const char *upto)
{
    static const char *const passes[] = {
        "simplify",  "expand", "route",    "grad",        "step",
        "precision", "fold",   "sharding", "collectives",
    };
    Model v = model(keys), *m = &v;
    Node *embed = param2(m, "embed", m->vocab, m->hidden);
    Node *x = indexed(m, Ogather, embed, ids(m, "tokens"), m->vocab);

    x = op(m, Oadd, x, mlp(m, rmsnorm(m, x, param1(m, "n1", m->hidden))));
    x = op(m, Oadd, x, moe(m, rmsnorm(m, x, param1(m, "n2", m->hidden))));
    x = dot(m, x, param2(m, "head", m->hidden, m->vocab), m->hidden);
    loss(m, cross_entropy(m, x, ids(m, "labels")));
    optimizers_add(m->g);
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        run_pass(m->g, target_named("host"), passes[i]);
        if (!strcmp(passes[i], upto))
            break;
    }
    return m->g;
}
