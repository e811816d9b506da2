/* routers_test: routers written in the language's primitives, and those of the
 * prelude with what balances them. Each learns a repeating text in 50 steps,
 * and its gradients, a few elements of every parameter, agree with central
 * differences in fp64 through compiler and runtime. */
#include <math.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/tensors.h"

enum { STEPS = 50, PROBES = 4 };

/* The difference's own error, h^2 of the third derivative, is about 1e-9. */
static const double STEP = 1e-5, TOL = 1e-6;

/* After the first step the first moments are half of the gradients. */
#define BETAS "0.5,0.95"

static int failed;

static void verdict(int ok, const char *model, const char *what, double got,
                    double limit)
{
    failed += !ok;
    printf("%sok - %s %s: %.3g, at most %.3g\n", ok ? "" : "not ", model, what,
           got, limit);
    fflush(stdout);
}

/* ---- a text with structure: each byte follows from the one before -------- */

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    int32_t *dst = ((int32_t **)ctx)[0];
    int64_t shift = *((int64_t **)ctx)[1];

    for (int64_t i = 0; i < n; i++)
        dst[local + i] = (int32_t)((global + i + shift) * 7 % 61);
}

/* Labels are the tokens that come next. */
static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    int64_t shift = !strcmp(t->name, "labels") + 5 * micro;
    void *ctx[2] = { dst, &shift };

    tensor_runs(self, t, rank, fill_run, ctx);
}

static Exec *open_model(const char *model)
{
    Opts *o = opts_new(forever);

    opts_set(o, "precision", "fp64", NULL);
    opts_set(o, "train.clip", "0", NULL);
    opts_set(o, "train.betas", BETAS, NULL);
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    Plan *p = compile(t.g, &T_host, &co);
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    exec_run(x, PGinit, NULL, NULL);
    return x;
}

static StepValues block(const Exec *x, double lr, int t)
{
    double b[2];

    opts_pair(x->plan->opts, "train.betas", b);
    return (StepValues){ lr, 1 - pow(b[0], t + 1), 1 - pow(b[1], t + 1), t };
}

static void learns(Exec *x, const char *model)
{
    Feed f = { fill, x->plan->mesh };
    double first = 0, last = 0;

    for (int t = 0; t < STEPS; t++) {
        StepValues b = block(x, 3e-3, t);
        exec_exact(x, PGstep, &b, &f);
        last = exec_result(x, RESULTloss);
        first = t ? first : last;
    }
    verdict(last < 0.5 * first, model, "loss after 50 steps", last,
            0.5 * first);
}

/* ---- gradients ----------------------------------------------------------- */

static double loss_at(Exec *x, const Tensor *t, double *v, int64_t n, int64_t i,
                      double d)
{
    Feed f = { fill, x->plan->mesh };
    double keep = v[i];
    StepValues b = block(x, 0, 0);

    v[i] += d;
    exec_write(x, t->name, v, n);
    exec_run(x, PGeval, &b, &f);
    v[i] = keep;
    exec_write(x, t->name, v, n);
    return exec_result(x, RESULTloss);
}

static double probe(Exec *x, const Tensor *t, const double *g)
{
    int64_t n = tensor_elems(t);
    double *v = alloc(forever, (size_t)n * sizeof *v), most = 0, size = 0;

    exec_read(x, t->name, 0, v, n);
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs(g[i]));
    for (int k = 0; k < PROBES; k++) {
        int64_t i = (int64_t)(mix64(7, (uint64_t)k) % (uint64_t)n);
        double want =
            (loss_at(x, t, v, n, i, STEP) - loss_at(x, t, v, n, i, -STEP)) /
            (2 * STEP);
        most = fmax(most, fabs(want - g[i]) / fmax(size, 1e-3));
    }
    return most;
}

/* A step at learning rate 0 leaves moments behind and parameters alone; states
 * are put back. */
static void step_in_place(Exec *x, const Role *r)
{
    Feed f = { fill, x->plan->mesh };
    StepValues b = block(x, 0, 0);
    double **v = alloc(forever, (size_t)r->ntensor * sizeof *v);

    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *t = &r->tensor[i];
        if (t->kind != TKstate)
            continue;
        v[i] = alloc(forever, (size_t)tensor_elems(t) * sizeof **v);
        exec_read(x, t->name, 0, v[i], tensor_elems(t));
    }
    exec_exact(x, PGstep, &b, &f);
    for (int i = 0; i < r->ntensor; i++)
        if (v[i])
            exec_write(x, r->tensor[i].name, v[i], tensor_elems(&r->tensor[i]));
}

static void right(Exec *x, const char *model)
{
    const Role *r = exec_role(x, 0);
    double **g = alloc(forever, (size_t)r->ntensor * sizeof *g), most = 0;

    step_in_place(x, r);
    for (int i = 0; i < r->ntensor; i++) {
        int64_t n = tensor_elems(&r->tensor[i]);
        const char *name = strf(forever, "optim.m.%s", r->tensor[i].name);
        if (r->tensor[i].kind != TKparam)
            continue;
        g[i] = alloc(forever, (size_t)n * sizeof **g);
        if (exec_read(x, name, 0, g[i], n) != n)
            die("no moment of %s", r->tensor[i].name);
        for (int64_t k = 0; k < n; k++)
            g[i][k] *= 2;
    }
    for (int i = 0; i < r->ntensor; i++)
        if (g[i])
            most = fmax(most, probe(x, &r->tensor[i], g[i]));
    verdict(most <= TOL, model, "gradients against differences", most, TOL);
}

int main(void)
{
    /* clang-format off */
    static const char *const models[] = {
        "tests/models/expert_choice.lua", "tests/models/hash.lua",
        "tests/models/top1_z.lua", "tests/models/router_pre.lua",
        "tests/models/router_post.lua", "tests/models/router_sigmoid.lua",
        "tests/models/router_top1.lua", "tests/models/router_choice.lua",
        "tests/models/router_hash.lua",
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Exec *x = open_model(models[i]);
        right(x, models[i]);
        learns(x, models[i]);
        exec_close(x);
    }
    return failed != 0;
}
