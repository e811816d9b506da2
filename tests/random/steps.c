/* steps.c: one step of a plan, all ranks in this process, and what it gave. */
#include <math.h>
#include <string.h>

#include "want.h"
#include "../unit/tensors.h"

/* ---- inputs and leaves --------------------------------------------------- */

typedef struct Filling {
    const Tensor *t;
    int64_t from, vocab;
    void *dst;
} Filling;

static void store(Dtype dt, void *dst, int64_t i, double v)
{
    switch (dt) {
    case Df64: ((double *)dst)[i] = v; break;
    case Df32: ((float *)dst)[i] = (float)v; break;
    case Dbf16: ((uint16_t *)dst)[i] = f32_to_bf16((float)v); break;
    case Di64: ((int64_t *)dst)[i] = (int64_t)v; break;
    case Di32: ((int32_t *)dst)[i] = (int32_t)v; break;
    default: ((uint8_t *)dst)[i] = (uint8_t)v;
    }
}

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Filling *f = ctx;

    for (int64_t i = 0; i < n; i++)
        store(f->t->dt, f->dst, local + i,
              input_value(f->t->name, f->t->dt, f->vocab, 0,
                          f->from + global + i));
}

typedef struct Inputs {
    const Plan *p;
    int64_t vocab;
} Inputs;

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Inputs *in = self;
    Filling f = { t, micro * tensor_elems(t), in->vocab, dst };

    tensor_runs(in->p->mesh, t, rank, fill_run, &f);
}

/* The parameter's values, to it or to what holds them for it. */
static void write_leaf(Exec *x, const Graph *g, const Param *p,
                       const char *name)
{
    int64_t n = exec_read(x, name, 0, NULL, 0);

    if (n < 0)
        return;
    double *v = alloc(forever, (size_t)(n + 1) * sizeof *v);
    for (int64_t k = 0; k < n; k++)
        v[k] = leaf_value(g, p->path, k);
    exec_write(x, name, v, n);
}

/* Weights that live as numbers of few bits are made of their masters. */
static void write_leaves(Exec *x, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        write_leaf(x, g, p, p->path);
        write_leaf(x, g, p, strf(forever, "optim.master.%s", p->path));
    }
    exec_filled(x);
}

Exec *step_run(const Graph *g, const Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    Inputs in = { p, vocabulary(g) };
    Feed f = { fill, &in };
    double b[2];

    opts_pair(p->opts, "train.betas", b);
    StepValues block = { 1e-3, 1 - b[0], 1 - b[1], 0 };
    exec_run(x, PGinit, NULL, NULL);
    write_leaves(x, g);
    exec_run(x, PGstep, &block, &f);
    return x;
}

/* ---- results ------------------------------------------------------------- */

double *step_result(Exec *x, const Wanted *w)
{
    double *v = alloc(forever, (size_t)(w->n + 1) * sizeof *v), b[2];

    if (!strcmp(w->kind, "loss") || !strcmp(w->kind, "metric")) {
        *v = exec_named(x, w->name);
        return v;
    }
    if (exec_read(x, w->name, 0, NULL, 0) != w->n)
        return NULL;
    exec_read(x, w->name, 0, v, w->n);
    opts_pair(x->plan->opts, "train.betas", b);
    for (int64_t i = 0; !strcmp(w->kind, "gradient") && i < w->n; i++)
        v[i] /= 1 - b[0];
    return v;
}

static double largest(const Wanted *w)
{
    double most = 0;

    for (int64_t i = 0; i < w->n; i++)
        most = fmax(most, fabs(w->v[i]));
    return most;
}

/* A parameter that the plan does not train has gradient 0. */
static double difference(Exec *x, const Wanted *w)
{
    const double *v = step_result(x, w);
    double most = 0;

    for (int64_t i = 0; i < w->n; i++) {
        double d = fabs((v ? v[i] : 0) - w->v[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    return most;
}

void step_compare(const Want *w, Exec *x, Outcome *o)
{
    o->v = FINE;
    for (size_t i = 0; i < vec_len(w->v); i++) {
        const Wanted *k = &w->v[i];
        double d = difference(x, k), size = largest(k);
        double off = d / (w->slack * k->bound + 1e-13 * size + 1e-300);
        if (off <= o->apart)
            continue;
        o->apart = off;
        if (off <= 1)
            continue;
        o->v = WRONG;
        snprintf(o->what, sizeof o->what, "%s of %s: %.3g of %.3g", k->kind,
                 k->of, d, size);
    }
}

void step_equal(const Want *w, Exec *x, double *const *same, Outcome *o)
{
    o->v = FINE;
    for (size_t i = 0; i < vec_len(w->v); i++) {
        const Wanted *k = &w->v[i];
        const double *v = step_result(x, k);
        if (!v && !same[i])
            continue;
        if (v && same[i] && !memcmp(v, same[i], (size_t)k->n * sizeof *v))
            continue;
        o->v = WRONG;
        snprintf(o->what, sizeof o->what, "other bits in the %s of %s", k->kind,
                 k->of);
    }
}
