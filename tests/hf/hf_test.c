/* hf_test: loss, every gradient and ten training losses of the tiny models that
 * Hugging Face transformers computed (make.py), through the whole compiler and
 * runtime: the .lua file is traced and compiled, weights come in through hf{},
 * the gradient is read off the first moment after one step, m = (1 - beta1) g.
 *
 * The reference is float64 throughout. Our fp64 differs by the order of sums:
 * 1e-12 leaves three digits to that and fails for any term computed in float32.
 * fp32 may differ by the rounding of every operation of two layers, 6e-8 each:
 * about 8 of them in the loss, 80 in a gradient, 30 in later losses.
 * TEST_TARGET=cuda runs them on a GPU, with the same numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/share.h"
#include "../unit/tensors.h"

enum { STEPS = 10 };

typedef struct Policy {
    const char *name;
    double loss, grad, steps;
} Policy;
static const Policy policies[] = {
    { "fp64", 1e-12, 1e-12, 1e-12 },
    { "fp32", 5e-7, 5e-6, 2e-6 },
};
static const char *const cases[] = {
    "mixtral", "mixtral-aux", "qwen2", "qwen3",    "qwen3-lora",
    "olmoe",   "dsv2",        "dsv3",  "dsv3-mtp",
};

static const char adamw[] = "adamw";
static const char *const optimizers[] = { adamw, "muon", "adafactor" };

typedef struct Run {
    const char *name;
    const Policy *pol;
    Plan *plan;
    Exec *x;
    StFile *ref;
} Run;

static int failed;

static void report(const Run *r, const char *what, double diff, double tol)
{
    int ok = diff <= tol; /* false for NaN too */

    failed += !ok;
    printf("%sok - %s %s %s: difference %.2g, at most %.1g\n", ok ? "" : "not ",
           r->name, r->pol->name, what, diff, tol);
}

static StFile *open_file(const char *name, const char *suffix)
{
    StFile *f;
    const char *path = strf(forever, "%s%s", name, suffix);
    const char *why = st_open(forever, path, &f);

    if (why)
        err(NULL, "%s: %s", path, why);
    return f;
}

static void load(Exec *x, StFile *f, const char *name, unsigned how)
{
    exec_pull(x);
    hf_load(x, &f, 1, name, how, NULL);
    exec_push(x);
}

static Plan *make_plan(const char *name, const Policy *pol, const char *by)
{
    Opts *o = opts_new(forever);

    opts_set(o, "train.optimizer", by, NULL);
    opts_set(o, "precision.policy", pol->name, NULL);
    opts_set(o, "world", "1", NULL);
    Trace t = trace(strf(forever, "%s.lua", name), o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    const char *target = getenv("TEST_TARGET");
    return compile(t.g, target ? target_named(target) : &T_host, &co);
}

static void train_step(Run *r, Data *d, int64_t t)
{
    double b[2], lr = opts_num(r->plan->opts, "train.lr");

    opts_pair(r->plan->opts, "train.betas", b);
    StepValues block = { lr, 1 - pow(b[0], (double)t + 1),
                         1 - pow(b[1], (double)t + 1), t };
    Feed f = data_feed(d, t * data_perstep(d));
    exec_exact(r->x, PGstep, &block, &f);
}

/* The reference's gradients, laid into the parameters of a second run. */
static Exec *reference_gradients(Run *r)
{
    Exec *y = exec_open(r->plan, r->x->comm);
    StFile *grads = alloc(forever, sizeof *grads);

    *grads = *r->ref;
    grads->n = 0;
    grads->t = alloc(forever, (size_t)r->ref->n * sizeof *grads->t);
    for (int i = 0; i < r->ref->n; i++)
        if (!strncmp(r->ref->t[i].name, "grad.", 5)) {
            grads->t[grads->n] = r->ref->t[i];
            grads->t[grads->n++].name += 5;
        }
    exec_run(y, PGinit, NULL, NULL);
    load(y, grads, "reference",
         opts_str(r->plan->opts, "hf.adapter") ? HFadapters : 0);
    return y;
}

static double difference(Run *r, Exec *y, const Tensor *t, double scale)
{
    int64_t n = exec_read(y, t->name, 0, NULL, 0);
    double *want = alloc(forever, (size_t)n * sizeof *want);
    double *got = alloc(forever, (size_t)n * sizeof *got);

    exec_read(y, t->name, 0, want, n);
    exec_read(r->x, strf(forever, "optim.m.%s", t->name), 0, got, n);
    for (int64_t i = 0; i < n; i++)
        got[i] *= scale;
    return tensor_apart(t, got, want);
}

static void compare_gradients(Run *r, Exec *y)
{
    const Role *role = exec_role(r->x, 0);
    double b[2];

    opts_pair(r->plan->opts, "train.betas", b);
    for (int i = 0; i < role->ntensor; i++)
        if (role->tensor[i].kind == TKparam &&
            !opts_match(r->plan->opts, "train.freeze", role->tensor[i].name))
            report(r, strf(forever, "gradient of %s", role->tensor[i].name),
                   difference(r, y, &role->tensor[i], 1 / (1 - b[0])),
                   r->pol->grad);
}

/* The losses of a case with optimizer `by`; null: the reference has none. */
static const StTensor *losses_by(const StFile *ref, const char *by)
{
    return st_find(ref, by == adamw ? "loss" : strf(forever, "loss.%s", by));
}

static void one_case(const char *name, const Policy *pol, const char *by)
{
    Run r = { name, pol, NULL, NULL, open_file(name, ".ref.safetensors") };
    const StTensor *loss = losses_by(r.ref, by);

    if (!loss || (by != adamw && strcmp(pol->name, "fp64") != 0))
        return; /* Muon rounds to bf16 under other policies */
    r.plan = make_plan(name, pol, by);
    Comm *comm = comm_open(forever, 1);
    StFile *weights = open_file(name, ".safetensors");
    Data *d = data_open(forever, r.plan, "data.train", 0);

    r.x = exec_open(r.plan, comm);
    exec_run(r.x, PGinit, NULL, NULL);
    load(r.x, weights, name, 0);
    for (int t = 0; t < STEPS; t++) {
        train_step(&r, d, t);
        if (t == 0 && by == adamw)
            compare_gradients(&r, reference_gradients(&r));
        double want = st_get(loss->dt, r.ref->data + loss->begin, t);
        report(&r, strf(forever, "%s loss of step %d", by, t + 1),
               fabs(exec_result(r.x, RESULTloss) / want - 1),
               t ? pol->steps : pol->loss);
    }
    exec_close(r.x);
}

/* hf_test [FOLDER [FIRST STRIDE]]: cases FIRST, FIRST + STRIDE .. (all), for
 * processes beside each other. */
int main(int argc, char **argv)
{
    size_t first = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    size_t stride = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;

    if (chdir(argc > 1 ? argv[1] : "tests/hf"))
        err(NULL, "run me in the repository, or give the folder of the cases");
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++)
        for (size_t i = first; i < sizeof cases / sizeof *cases; i += stride)
            for (int k = 0; k < countof(optimizers); k++)
                one_case(cases[i], &policies[p], optimizers[k]);
    return failed != 0;
}
