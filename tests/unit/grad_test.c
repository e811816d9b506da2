/* grad_test: every differentiable row of the op table against central
 * differences in fp64. The scalar is sum(out * weights); each leaf element is
 * moved by 1e-5, so the error of the difference is about 1e-10 of the third
 * derivative: 1e-6 relative is met by a right gradient only. */
#include <math.h>
#include <string.h>

#include "../../passes/passes.h"
#include "interp.h"

static int passed, failed;

typedef struct Trial {
    Case c;
    Node *w;              /* weights, out's axes */
    double *wval, **base; /* values by node id */
} Trial;

static double scalar(const Trial *t)
{
    size_t n = vec_len(t->c.g->node);
    double **val = alloc(t->c.g->arena, (n + 1) * sizeof *val), s = 0;

    for (int k = 0; k < t->c.nleaf; k++)
        val[t->c.leaf[k]->id] = t->c.val[k];
    val[t->w->id] = t->wval;
    interp(t->c.g, val);
    for (int64_t i = 0; i < g_elems(t->c.out); i++)
        s += val[t->c.out->id][i] * t->wval[i];
    return s;
}

static double slope(const Trial *t, int k, int64_t i)
{
    double keep = t->c.val[k][i], h = 1e-5, up, down;

    t->c.val[k][i] = keep + h;
    up = scalar(t);
    t->c.val[k][i] = keep - h;
    down = scalar(t);
    t->c.val[k][i] = keep;
    return (up - down) / (2 * h);
}

static void weigh(Trial *t)
{
    Graph *g = t->c.g;
    int64_t n = g_elems(t->c.out);

    t->w = g_node(g, Oparam, NULL, 0, NULL);
    t->w->at.param.path = intern("weights");
    t->w->dt = t->c.out->dt;
    t->w->nd = t->c.out->nd;
    memcpy(t->w->dim, t->c.out->dim, sizeof t->w->dim);
    t->wval = alloc(g->arena, (size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        t->wval[i] = 0.5 + 0.25 * (double)(i % 7) - (double)(i % 3);
}

/* Element of the gradient that belongs to element i of the leaf: by axes'
 * names. */
static double gradient_at(const Node *d, const double *v, const Node *x,
                          int64_t i)
{
    int64_t at = 0, idx[MAXD];

    for (int k = x->nd; k-- > 0; i /= x->dim[k].n)
        idx[k] = i % x->dim[k].n;
    for (int k = 0; k < d->nd; k++)
        at = at * d->dim[k].n + idx[dim_of(x, d->dim[k].a)];
    return v[at];
}

static double check_leaf(const Trial *t, int k, const Node *d, const double *v)
{
    double diff = 0, size = 0;

    for (int64_t i = 0; i < g_elems(t->c.leaf[k]); i++) {
        double want = slope(t, k, i);
        double got = d ? gradient_at(d, v, t->c.leaf[k], i) : 0;
        diff = fmax(diff, fabs(want - got));
        size = fmax(size, fabs(want));
    }
    return diff / fmax(size, 1e-2);
}

static double trial(Trial *t)
{
    Graph *g = t->c.g;
    double worst = 0;

    weigh(t);
    g_renumber(g);
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = 0;
    for (int k = 0; k < t->c.nleaf; k++)
        t->c.leaf[k]->mark = !t->c.fixed[k];
    Node **dy = backward(g, &t->c.out, &t->w, 1);
    Node *d[6];
    for (int k = 0; k < t->c.nleaf; k++)
        d[k] = dy[t->c.leaf[k]->id];
    g_renumber(g);
    double **val = alloc(g->arena, (vec_len(g->node) + 1) * sizeof *val);
    for (int k = 0; k < t->c.nleaf; k++)
        val[t->c.leaf[k]->id] = t->c.val[k];
    val[t->w->id] = t->wval;
    interp(g, val);
    for (int k = 0; k < t->c.nleaf; k++)
        if (!t->c.fixed[k])
            worst = fmax(worst,
                         check_leaf(t, k, d[k], d[k] ? val[d[k]->id] : NULL));
    return worst;
}

int main(void)
{
    Arena *a = arena_new();

    for (int i = 0;; i++) {
        Trial t = { 0 };
        arena_reset(a);
        if (!case_at(i, a, &t.c))
            break;
        if (!optab[t.c.op].gradkind || dtypes[t.c.out->dt].kind != 'f' ||
            t.c.out->dt == Dbf16)
            continue;
        double e = trial(&t);
        double limit = t.c.op == Ocast ? 2e-2 : 1e-6; /* f32 steps of a cast */
        if (e < limit)
            passed++, printf("ok - grad %s %s: %.1e\n", optab[t.c.op].name,
                             t.c.name, e);
        else
            failed++,
                printf("not ok - grad %s %s: differs by %.1e of the largest\n",
                       optab[t.c.op].name, t.c.name, e);
    }
    return failed > 0;
}
