/* models_test: every fold of a model trains as one rank does, through the
 * whole compiler and runtime, all ranks in this process. Compared are, in
 * fp64, three losses and gradient norms, every gradient of the first step
 * (read off the first moment, m = (1 - beta1) g), and the model's states at
 * the end.
 *
 *     models_test                 some folds of each model
 *     PLEAT_ALL=1 models_test     all folds of 8 and fewer ranks
 *     models_test model [key=value ..]     this model, this fold             */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

enum { STEPS = 3, MICRO = 8, MAXKEYS = 16 };

/* Folds sum in other orders, and three steps of AdamW carry that on.         */
static const double TOL = 1e-10;

/* axes: keys that change the model itself (axes, route), and so its reference
 * too.                                                                       */
typedef struct Fold {
    const char *model;
    int tp, cp, dp, ep, etp;
    const char *axes;
} Fold;

/* One of each kind: experts over dp, over tp, over both, inside experts, inside
 * a part of dp; context; everything; masters and moments in shards within two
 * ranks, or whole; sizes that tp and cp do not divide.                       */
#define CAP "route.policy=capacity route.factor=0.75"
#define PAD "route.policy=padded route.factor=1"
static const Fold some[] = {
    { "tests/hf/mixtral-aux.lua",        1, 1, 2, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 1, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 4, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 2, "" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 1, 1, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 4, 1, "" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 4, 2, 1, "fold.hybrid=2" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 2, 1, "fold.zero=0" },
    { "tests/hf/qwen3.lua",              2, 1, 2, 4, 1, "" },
    { "tests/hf/dsv3.lua",               2, 1, 2, 4, 1, "" },
    { "tests/hf/dsv3.lua",               1, 2, 2, 2, 2, "" },
    { "tests/models/hash.lua",           2, 1, 2, 2, 2, "" },
    { "tests/models/top1_z.lua",         2, 1, 2, 4, 1, "" },
    { "tests/models/expert_choice.lua",  2, 1, 2, 2, 2, "" },
    { "tests/models/dropout.lua",        2, 1, 2, 4, 1, "" },
    { "tests/models/statistics.lua",     2, 1, 4, 1, 1, "" },
    { "tests/models/statistics.lua",     1, 2, 2, 1, 1, "" },
    { "tests/models/zoo.lua",            2, 2, 2, 4, 1, "" },
    { "tests/models/window.lua",         2, 2, 2, 1, 1, "" },
    { "tests/models/linear.lua",         1, 2, 2, 1, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 1, 4, 1, "axes.seq=27" },
    { "tests/hf/qwen3.lua",              4, 1, 2, 2, 2, "axes.vocab=99" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 4, 2, CAP },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 1, CAP " route.drop=position" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 2, 4, 1, PAD },
    { "tests/hf/dsv3.lua",               2, 2, 1, 2, 2, CAP },
    { "tests/hf/dsv3.lua",               2, 1, 4, 8, 1, PAD },
    { "tests/models/hash.lua",           2, 2, 1, 4, 1, CAP },
    { "tests/models/top1_z.lua",         1, 2, 4, 2, 1, CAP },
    { "tests/models/top1_z.lua",         2, 1, 2, 4, 1, PAD },
};

/* What one rank computed.                                                    */
typedef struct Want {
    const char *model;
    double loss[STEPS], norm[STEPS];
    Plan *plan;
    int n; const Tensor *tensor;
    double **grad, **state;       /* by tensor; null: not one                 */
} Want;

static int failed;

/* ---- inputs -------------------------------------------------------------- */

/* Tokens depend on input, step and place in the whole step, whoever asks: the
 * turns follow each other as the micro-batches in one turn do.               */
typedef struct Fill { uint64_t seed; int64_t from; int32_t *dst; } Fill;
typedef struct Batch { const Mesh *mesh; int64_t step; } Batch;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] = (int32_t)(
            mix64(f->seed, (uint64_t)(f->from + global + i)) % 97);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { mix64((uint64_t)t->name[0], (uint64_t)b->step),
               turn * tensor_elems(t), dst };

    if (t->dt != Di32)
        err(NULL, "input %s is not i32", t->name);
    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

/* ---- one fold ------------------------------------------------------------ */

/* The plan as its file would be read; what the compiler needed is let go.    */
static Plan *make_plan(const char *model, char **keys, int nkeys)
{
    Opts *o = opts_new(forever);
    size_t len;

    for (int i = 0; i < nkeys; i++) {
        size_t n = strcspn(keys[i], "=");
        opts_set(o, internn(keys[i], n), intern(keys[i] + n + 1), NULL);
    }
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    char *text = plan_print(forever, compile(t.g, &T_host, &co), &len);
    arena_free(t.g->arena);
    return plan_parse(forever, text, len, model);
}

static double *read_all(Exec *x, const char *name)
{
    int64_t n = exec_read(x, name, 0, NULL, 0);
    double *v = alloc(forever, (size_t)(n + 1) * sizeof *v);

    if (n < 0)
        die("no tensor %s", name);
    exec_read(x, name, 0, v, n);
    return v;
}

static void gradients(Exec *x, Want *w)
{
    const Role *r = exec_role(x, 0);

    w->n = r->ntensor;
    w->tensor = r->tensor;
    w->grad = alloc(forever, (size_t)w->n * sizeof *w->grad);
    w->state = alloc(forever, (size_t)w->n * sizeof *w->state);
    for (int i = 0; i < w->n; i++)
        if (!strcmp(r->tensor[i].kind, "m"))
            w->grad[i] = read_all(x, r->tensor[i].name);
}

static void states(Exec *x, Want *w)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->tensor[i].kind, "state"))
            w->state[i] = read_all(x, w->tensor[i].name);
}

static Want train(const char *model, Plan *plan)
{
    Want w = { .model = model, .plan = plan };
    Exec *x = exec_open(w.plan, comm_open(forever, w.plan->mesh->world));
    double b[2];

    opts_pair(w.plan->opts, "train.betas", b);
    exec_run(x, "init", NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        Block block = { 1e-3, 1 - pow(b[0], t + 1), 1 - pow(b[1], t + 1), t };
        Batch batch = { w.plan->mesh, t };
        Feed f = { fill, &batch };
        exec_run(x, "step", &block, &f);
        w.loss[t] = exec_result(x, "loss");
        w.norm[t] = exec_result(x, "grad_norm");
        if (t == 0)
            gradients(x, &w);
    }
    states(x, &w);
    exec_close(x);
    return w;
}

/* ---- comparing ----------------------------------------------------------- */

/* Largest difference of two tensors over the largest element of the second.  */
static double apart(const double *x, const double *y, int64_t n)
{
    double top = 0, diff = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs(x[i] - y[i]);
        top = fabs(y[i]) > top ? fabs(y[i]) : top;
        diff = d <= diff ? diff : d;
    }
    return diff == 0 ? 0 : diff / top;
}

static double worse(double a, double b, const char **at, const char *name)
{
    if (b <= a)
        return a;
    *at = name;
    return b;
}

static int same_tensor(const Want *w, const char *name)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->tensor[i].name, name))
            return i;
    die("no tensor %s", name);
}

static void compare(const Want *x, const Want *y, const char *fold)
{
    const char *at = "nothing";
    double most = 0;
    int grads = 0;

    for (int t = 0; t < STEPS; t++) {
        most = worse(most, fabs(x->loss[t] / y->loss[t] - 1), &at, "loss");
        most = worse(most, fabs(x->norm[t] / y->norm[t] - 1), &at, "grad_norm");
    }
    for (int i = 0; i < y->n; i++) {
        if (!y->grad[i] && !y->state[i])
            continue;
        int64_t n = tensor_elems(&y->tensor[i]);
        int k = same_tensor(x, y->tensor[i].name);
        const double *p = y->grad[i] ? x->grad[k] : x->state[k];
        const double *q = y->grad[i] ? y->grad[i] : y->state[i];
        most = worse(most, apart(p, q, n), &at, y->tensor[i].name);
        grads += y->grad[i] != NULL;
    }
    int ok = most <= TOL && grads > 0;
    failed += !ok;
    printf("%sok - %s %s: difference %.2g (%s), at most %.0e\n",
           ok ? "" : "not ", x->model, fold, most, at, TOL);
    fflush(stdout);
}

/* ---- all folds asked for ------------------------------------------------- */

/* Every plan is made first and then gets the kernels of all: the text is
 * compiled once, however many folds run it.                                  */
typedef struct Case { const char *model, *fold; Plan *plan; } Case;

static Case *jobs;                /* vec; fold null: one rank, the reference  */

static void add_job(const char *model, const char *fold, char **keys, int nkeys)
{
    static const char *last;
    char *all[MAXKEYS] = { "precision.policy=fp64",
                           strf(forever, "train.batch=%d", MICRO * 2) };
    char *one[MAXKEYS] = { all[0], all[1], "world=1" };
    int n = 3;

    for (int i = 0; i < nkeys && n < MAXKEYS; i++)
        if (!strncmp(keys[i], "axes.", 5) || !strncmp(keys[i], "route.", 6))
            one[n++] = keys[i];
    const char *id = model;
    for (int i = 3; i < n; i++)
        id = strf(forever, "%s %s", id, one[i]);
    if (!last || strcmp(last, id)) {
        Case r = { model, NULL, make_plan(model, one, n) };
        vec_push(forever, jobs, r);
        last = id;
    }
    for (int i = 0; i < nkeys && i + 2 < MAXKEYS; i++)
        all[i + 2] = keys[i];
    Case j = { model, fold, make_plan(model, all, nkeys + 2) };
    vec_push(forever, jobs, j);
}

static void add_fold(const Fold *f)
{
    char *keys[MAXKEYS] = {
        strf(forever, "fold.tp=%d", f->tp), strf(forever, "fold.cp=%d", f->cp),
        strf(forever, "fold.dp=%d", f->dp), strf(forever, "fold.ep=%d", f->ep),
        strf(forever, "fold.etp=%d", f->etp),
    }, *next, *word = strtok_r(strf(forever, "%s", f->axes), " ", &next);
    int n = 5;

    for (; word && n < MAXKEYS; word = strtok_r(NULL, " ", &next))
        keys[n++] = word;

    add_job(f->model, strf(forever, "tp=%d cp=%d dp=%d ep=%d etp=%d%s%s", f->tp,
                           f->cp, f->dp, f->ep, f->etp, *f->axes ? " " : "",
                           f->axes), keys, n);
}

static void all_folds(const char *model)
{
    static const int size[] = { 1, 2, 4, 8 };

    for (int c = 0; c < 4 * 2 * 4 * 3 * 3; c++) {
        Fold f = { model, size[c % 4], size[c / 4 % 2], size[c / 8 % 4],
                   size[c / 32 % 3], size[c / 96], "" };
        int ranks = f.tp * f.cp * f.dp;
        if (ranks > 1 && ranks <= 8 && ranks % (f.ep * f.etp) == 0)
            add_fold(&f);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Kernel *)a)->name, ((const Kernel *)b)->name);
}

static void share_kernels(void)
{
    Kernel *all = NULL;
    size_t n = 0;

    for (size_t i = 0; i < vec_len(jobs); i++)
        for (int k = 0; k < jobs[i].plan->nkernel; k++)
            vec_push(forever, all, jobs[i].plan->kernel[k]);
    qsort(all, vec_len(all), sizeof *all, by_name);
    for (size_t i = 0; i < vec_len(all); i++)
        if (i == 0 || strcmp(all[i].name, all[n - 1].name))
            all[n++] = all[i];
    for (size_t i = 0; i < vec_len(jobs); i++) {
        jobs[i].plan->kernel = all;
        jobs[i].plan->nkernel = (int)n;
    }
    printf("# %zu plans, %zu kernels\n", vec_len(jobs), n);
}

static void run_jobs(void)
{
    Want one = { 0 };

    share_kernels();
    for (size_t i = 0; i < vec_len(jobs); i++) {
        Want w = train(jobs[i].model, jobs[i].plan);
        if (jobs[i].fold)
            compare(&w, &one, jobs[i].fold);
        else
            one = w;
    }
}

int main(int argc, char **argv)
{
    static const char *const models[] = {
        "tests/hf/mixtral-aux.lua", "tests/hf/qwen3.lua", "tests/hf/dsv3.lua",
        "tests/models/hash.lua", "tests/models/top1_z.lua",
        "tests/models/expert_choice.lua", "tests/models/dropout.lua",
        "tests/models/zoo.lua", "tests/models/window.lua",
        "tests/models/linear.lua",
    };

    if (argc > 1)
        add_job(argv[1], "as given", argv + 2, argc - 2);
    for (size_t i = 0; argc == 1 && getenv("PLEAT_ALL") &&
                       i < sizeof models / sizeof *models; i++)
        all_folds(models[i]);
    for (size_t i = 0; argc == 1 && !getenv("PLEAT_ALL") &&
                       i < sizeof some / sizeof *some; i++)
        add_fold(&some[i]);
    run_jobs();
    return failed != 0;
}
