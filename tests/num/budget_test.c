/* budget_test: a step whose rows do not fit loses nothing. A router that sends
 * most tokens to few experts overflows a small budget; the step then writes
 * nothing, and the fallback program computes what a dropless step computes:
 * losses, gradient norms and all values in fp64, step after step. Memory of
 * both programs is printed. TEST_TARGET=cuda runs the rows of one rank there.*/
#include <math.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { STEPS = 2 };

/* Sums over rounds come in another order; AdamW carries that on. */
static const double TOL = 1e-10;

/* clang-format off */
static const struct { const char *model, *fold; double factor; int fallbacks; }
cases[] = {
    { "tests/hf/mixtral-aux.lua", "fold.ep=2 fold.dp=2", 0.3, STEPS },
    { "tests/hf/mixtral-aux.lua", "fold.dp=2 fold.tp=2 fold.ep=4", 0.6, STEPS },
    { "tests/hf/mixtral-aux.lua", "world=1", 0.25, STEPS },
    { "tests/hf/dsv3.lua", "world=1", 0.4, STEPS },
    { "tests/hf/mixtral-aux.lua", "fold.ep=4 fold.dp=4", 4, 0 },
    { "tests/hf/mixtral-aux.lua", "fold.ep=2 fold.dp=2", 1.75, 1 },
    { "tests/hf/dsv3.lua", "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2", 0.4, STEPS },
    { "tests/hf/mixtral-aux.lua",
      "fold.ep=2 fold.dp=2 route.dispatcher=alltoall", 0.3, STEPS },
    { "tests/hf/dsv3.lua",
      "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2 route.dispatcher=alltoall",
      0.4, STEPS },
    { "tests/models/hash.lua", "fold.tp=2 fold.dp=2 fold.ep=2", 0.35, STEPS },
    { "tests/models/top1_z.lua", "fold.dp=4 fold.ep=4", 0.5, STEPS },
    { "tests/models/top_p.lua", "fold.dp=2 fold.ep=2 route.mean=3", 1.9, 0 },
    { "tests/models/top_p.lua", "fold.dp=2 fold.tp=2 fold.ep=4 route.mean=3 "
      "route.dispatcher=alltoall", 1, STEPS },
    { "tests/models/folds.lua", "fold.pp=2 fold.dp=2 fold.ep=2", 0.6, STEPS },
    { "tests/models/folds.lua", "fold.pp=2 fold.dp=4 fold.ep=4", 2.2, 0 },
    { "tests/models/folds.lua", "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=4 "
      "fold.schedule=zerobubble fold.zero=3", 0.6, STEPS },
};
/* clang-format on */
enum { N = sizeof cases / sizeof *cases };

static int failed;

/* Few words: most tokens go to few experts. */
typedef struct Fill {
    uint64_t seed;
    int64_t from;
    int32_t *dst;
} Fill;
typedef struct Batch {
    const Mesh *mesh;
    int64_t step;
} Batch;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] =
            (int32_t)(mix64(f->seed, (uint64_t)(f->from + global + i)) % 9);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { (uint64_t)b->step * 2 + (t->name[0] == 'l'),
               micro * tensor_elems(t), dst };

    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

static Plan *plan_of(int i, int budget)
{
    Opts *o = opts_new(forever);
    char *next,
        *word = strtok_r(strf(forever, "%s", cases[i].fold), " ", &next);

    for (; word; word = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(word, "=");
        opts_set(o, internn(word, n), intern(word + n + 1), NULL);
    }
    opts_set(o, "precision", "fp64", NULL);
    opts_set(o, "train.batch", "16", NULL);
    if (budget)
        opts_set(o, "route.factor", strf(forever, "%g", cases[i].factor), NULL);
    Trace t = trace(cases[i].model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, fold_target, &co);
}

/* Every value across steps must be what it was while a step overflows. */
static double *all_values(Exec *x, int64_t *n)
{
    const Tensor **t = fold_tensors(x->plan, MODELTENSORS | MASTERS | MOMENTS);
    double *v = NULL;

    for (size_t i = 0; i < vec_len(t); i++) {
        int64_t m;
        const double *one = fold_read(x, t[i]->name, &m);
        for (int64_t k = 0; k < m; k++)
            vec_push(forever, v, one[k]);
    }
    *n = (int64_t)vec_len(v);
    return v;
}

typedef struct Run {
    double loss[STEPS], norm[STEPS], *last;
    int64_t n;
    int fallbacks, touched;
} Run;

/* A step that is told to hold must say so, and write nothing. */
static int writes_held(Exec *x, const StepValues *b, const Feed *f,
                       const double *was)
{
    int64_t n;

    if (role_prog(exec_role(x, 0), PGfallback) < 0)
        return 0;
    x->hold = 1;
    exec_run(x, PGstep, b, f);
    x->hold = 0;
    const double *is = all_values(x, &n);
    return !(exec_result(x, RESULToverflow) > 0) ||
           memcmp(was, is, (size_t)n * sizeof *was);
}

static Run train(Plan *p)
{
    Run r = { .n = 0 };
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        StepValues b = { 1e-2, 1 - pow(0.9, t + 1), 1 - pow(0.95, t + 1), t };
        Batch batch = { p->mesh, t };
        Feed f = { fill, &batch };
        double *was = all_values(x, &r.n);
        r.touched += writes_held(x, &b, &f, was);
        exec_run(x, PGstep, &b, &f);
        if (exec_result(x, RESULToverflow) > 0) {
            r.touched += memcmp(was, all_values(x, &r.n),
                                (size_t)r.n * sizeof *was) != 0;
            r.fallbacks++;
            exec_run(x, PGfallback, &b, &f);
        }
        r.loss[t] = exec_result(x, RESULTloss);
        r.norm[t] = exec_result(x, RESULTgrad_norm);
    }
    r.last = all_values(x, &r.n);
    exec_close(x);
    return r;
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want);

    return d <= a ? a : d;
}

static double mib(const Plan *p, ProgramKind prog)
{
    int i = role_prog(&p->role[0], prog);

    return i < 0 ? 0 : (double)p->role[0].prog[i].transient / (1 << 20);
}

static void compare(int i, Plan *all, Plan *budget)
{
    Run a = train(all), b = train(budget);
    double most = 0;

    for (int t = 0; t < STEPS; t++) {
        most = worse(most, b.loss[t] / a.loss[t], 1);
        most = worse(most, b.norm[t] / a.norm[t], 1);
    }
    for (int64_t k = 0; k < a.n && k < b.n; k++)
        most = worse(most, b.last[k], a.last[k]);
    int ok = most <= TOL && a.n == b.n && !b.touched &&
             b.fallbacks == cases[i].fallbacks;
    failed += !ok;
    printf("%sok - %s %s factor %g: difference %.2g, at most %.0e; %d of %d "
           "steps fell back\n",
           ok ? "" : "not ", cases[i].model, cases[i].fold, cases[i].factor,
           most, TOL, b.fallbacks, STEPS);
    printf("# MiB of one program: dropless %.2f, step %.2f, fallback %.2f\n",
           mib(all, PGstep), mib(budget, PGstep), mib(budget, PGfallback));
    fflush(stdout);
}

int main(void)
{
    Plan *p[2 * N];
    int of[N], n = 0;

    fold_target_given();
    for (int i = 0; i < N; i++)
        if (fold_target == &T_host || !strcmp(cases[i].fold, "world=1")) {
            p[2 * n] = plan_of(i, 0);
            p[2 * n + 1] = plan_of(i, 1);
            of[n++] = i;
        }
    fold_share(p, 2 * n);
    for (int i = 0; i < n; i++)
        compare(of[i], p[2 * i], p[2 * i + 1]);
    return failed != 0;
}
