/* optimizer_test: a step of training after its gradients, worked out by hand:
 * the gradient norm, clipping, AdamW with its corrections and decay, SGD, Lion,
 * factors of a parameter's rate and decay, and what a step does that is not
 * finite: nothing. tests/models/optimizer.lua has gradients in closed form.
 * First step by step in fp64, in folds that share the work in different ways;
 * then as `run` does it from a file of bytes, with its schedule and order of
 * data. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/share.h"
#include "../unit/tensors.h"

enum { SEQ = 3, TALL = 3, WIDE = 5, W = TALL * WIDE, MICRO = 4, STEPS = 9 };

/* Some dozen operations; a fold adds in another order. */
static const double TOL = 1e-13;
static const double PRINTED = 1e-8; /* metrics.jsonl has nine digits */
static const char model[] = "tests/models/optimizer.lua";
static const double betas[2] = { 0.8, 0.9 };
static int failed;

static void verdict(int ok, const char *what, const char *how, double diff,
                    double limit)
{
    failed += !ok;
    printf("%sok - optimizer, %s, %s: difference %.2g, at most %.0e\n",
           ok ? "" : "not ", what, how, diff, limit);
    fflush(stdout);
}

/* ---- by hand ------------------------------------------------------------- */

enum { NPARAM = 3 };
static const struct {
    const char *name;
    int n;
} params[NPARAM] = { { "w", W }, { "norm", TALL }, { "root", W } };

typedef struct Setting {
    double clip, decay, eps, lr;
    double decays[NPARAM]; /* factor */
    enum { ADAMW, SGD, LION } rule;
    double slower[NPARAM]; /* the rate over the schedule's, less 1 */
} Setting;
typedef struct Hand {
    double p[NPARAM][W], m[NPARAM][W], v[NPARAM][W];
    double seen; /* the model's own state: a sum of means */
    double loss, norm;
    int ok;
} Hand;

/* Loss and gradients of one micro-batch, added. root of [wide tall], which
 * does not matter: its elements differ by their own values only. */
static void add_gradients(Hand *h, double a, double g[NPARAM][W])
{
    double big = a > 1e6 ? 1e200 : 1, sum = 0, roots = 0;
    double far = a > 4e4 && a < 6e4 ? INFINITY : 0;

    for (int i = 0; i < W; i++) {
        double c = i / WIDE - 1 + (i % WIDE) / 2.0;
        g[0][i] += c * a * big / 64 / MICRO;
        sum += h->p[0][i] * c;
        double y = sqrt(h->p[2][i] * a);
        roots += y;
        g[2][i] += 0.5 * (0.5 / y * a) / 16 / MICRO;
    }
    for (int i = 0; i < TALL; i++) {
        g[1][i] += (i + 1) * a * big / 64 / MICRO;
        sum += h->p[1][i] * (i + 1);
    }
    h->loss += (sum * a * big / 64 + 0.5 * roots / 16 + far) / MICRO;
}

/* Loshchilov and Hutter 2019, algorithm 2; t from 1. */
static void adamw(Hand *h, int k, int i, double g, const Setting *s, int t)
{
    double *p = &h->p[k][i], *m = &h->m[k][i], *v = &h->v[k][i];
    double decay = s->decays[k] * s->decay, lr = s->lr * (1 + s->slower[k]);

    *m = betas[0] * *m + (1 - betas[0]) * g;
    *v = betas[1] * *v + (1 - betas[1]) * g * g;
    double m1 = *m / (1 - pow(betas[0], t)), v1 = *v / (1 - pow(betas[1], t));
    *p = *p - lr * decay * *p - lr * m1 / (sqrt(v1) + s->eps);
}

static void sgd(Hand *h, int k, int i, double g, const Setting *s)
{
    double *p = &h->p[k][i], *m = &h->m[k][i];

    *m = 0.7 * *m + g;
    *p = *p - s->lr * s->decay * s->decays[k] * *p - s->lr * *m;
}

/* Chen et al. 2023, algorithm 2. */
static void lion(Hand *h, int k, int i, double g, const Setting *s)
{
    double *p = &h->p[k][i], *m = &h->m[k][i];
    double c = betas[0] * *m + (1 - betas[0]) * g;

    *p =
        *p - s->lr * s->decay * s->decays[k] * *p - s->lr * ((c > 0) - (c < 0));
    *m = betas[1] * *m + (1 - betas[1]) * g;
}

static void update(Hand *h, int k, int i, double g, const Setting *s, int t)
{
    switch (s->rule) {
    case ADAMW: adamw(h, k, i, g, s, t); return;
    case SGD: sgd(h, k, i, g, s); return;
    case LION: lion(h, k, i, g, s); return;
    }
}

/* One step on the means a of its micro-batches; t from 1. */
static void step_by_hand(Hand *h, const double *a, const Setting *s, int t)
{
    double g[NPARAM][W] = { { 0 } }, squares = 0, scale = 1;

    h->loss = 0;
    for (int m = 0; m < MICRO; m++)
        add_gradients(h, a[m], g);
    for (int k = 0; k < NPARAM; k++)
        for (int i = 0; i < params[k].n; i++)
            squares += g[k][i] * g[k][i];
    h->norm = sqrt(squares);
    h->ok = isfinite(h->loss) && isfinite(h->norm);
    if (!h->ok)
        return;
    for (int m = 0; m < MICRO; m++)
        h->seen += a[m] / MICRO;
    if (s->clip > 0 && h->norm > s->clip)
        scale = s->clip / (h->norm + 1e-6); /* as PyTorch clips */
    for (int k = 0; k < NPARAM; k++)
        for (int i = 0; i < params[k].n; i++)
            update(h, k, i, g[k][i] * scale, s, t);
}

/* ---- step by step -------------------------------------------------------- */

/* Small and large gradients; then none that is finite: 0 / 0 under a loss of 0,
 * a loss that is not a number, squares beyond the largest number, an infinite
 * loss alone. */
static const int32_t bad[STEPS] = { 2, 90, 3, 0, 5, -40, 4000000, 50000, 7 };
static const int32_t *level = bad;

static int32_t token(int step, int64_t i)
{
    return level[step] ? level[step] + (int32_t)(i % 5) : 0;
}

static double mean_of(int step, int micro)
{
    double sum = 0;

    for (int i = 0; i < SEQ; i++)
        sum += token(step, micro * SEQ + i);
    return sum / SEQ;
}

typedef struct Fill {
    int step;
    int64_t from;
    int32_t *dst;
} Fill;
typedef struct Batch {
    const Mesh *mesh;
    int step;
} Batch;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] = token(f->step, f->from + global + i);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { b->step, micro * tensor_elems(t), dst };

    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

/* clang-format off */
static const char *const folds[] = {
    "world=1", "fold.dp=4", "fold.dp=2 fold.zero=0", "fold.dp=4 fold.zero=3",
};
/* keys of the run; what they mean */
static const struct { const char *keys; Setting s; } settings[] = {
    { "",                              { 1, 0.1, 1e-8, 0, { 1, 0, 1 }, ADAMW, { 0 } } },
    { "train.clip=0",                  { 0, 0.1, 1e-8, 0, { 1, 0, 1 }, ADAMW, { 0 } } },
    { "train.clip=0.25 train.eps=0.5", { 0.25, 0.1, 0.5, 0, { 1, 0, 1 }, ADAMW, { 0 } } },
    { "train.no_decay=ro* train.weight_decay=0.5",
                                       { 1, 0.5, 1e-8, 0, { 1, 1, 0 }, ADAMW, { 0 } } },
    { "train.weight_decay=0",          { 1, 0, 1e-8, 0, { 0, 0, 0 }, ADAMW, { 0 } } },
    { "train.lr.*=0.5 train.lr.ro*=0.25 train.decay.w=3",
                                       { 1, 0.1, 1e-8, 0, { 3, 0, 1 }, ADAMW, { -.5, -.5, -.75 } } },
    { "train.optimizer=sgd train.momentum=0.7",
                                       { 1, 0.1, 0, 0, { 1, 0, 1 }, SGD, { 0 } } },
    { "train.optimizer=lion train.clip=0",
                                       { 0, 0.1, 0, 0, { 1, 0, 1 }, LION, { 0 } } },
};
/* clang-format on */
enum {
    NF = sizeof folds / sizeof *folds,
    NS = sizeof settings / sizeof *settings
};

static Plan *plan_of(const char *keys)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", keys), " ", &next);

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    opts_set(o, "precision", "fp64", NULL);
    opts_set(o, "train.betas", "0.8,0.9", NULL);
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want) / fmax(1, fabs(want));

    return got == want || d <= a ? a : d;
}

/* Parameters and the state. */
static double values_apart(Exec *x, const Hand *h)
{
    double got[W], most;

    exec_read(x, "seen", 0, got, 1);
    most = worse(0, got[0], h->seen);
    for (int k = 0; k < NPARAM; k++) {
        exec_read(x, params[k].name, 0, got, W);
        for (int i = 0; i < params[k].n; i++)
            most = worse(most, got[i], h->p[k][i]);
    }
    return most;
}

/* Loss and norm, and whether the step says that it is to be left out. */
static double results_apart(Exec *x, const Hand *h)
{
    double loss = exec_result(x, RESULTloss),
           norm = exec_result(x, RESULTgrad_norm);
    double most = exec_result(x, RESULTok) == h->ok ? 0 : INFINITY;

    if (isfinite(h->loss))
        most = worse(most, loss, h->loss);
    if (isfinite(h->norm))
        most = worse(most, norm, h->norm);
    return most;
}

static void read_values(Exec *x, Hand *h)
{
    exec_read(x, "seen", 0, &h->seen, 1);
    for (int k = 0; k < NPARAM; k++)
        exec_read(x, params[k].name, 0, h->p[k], W);
}

static void run_steps(const char *fold, const char *keys, Setting s, Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    double most = 0, results = 0, idle = 0;
    Hand h = { .ok = 1 };

    exec_run(x, PGinit, NULL, NULL);
    read_values(x, &h);
    for (int t = 0; t < STEPS; t++) {
        double a[MICRO];
        s.lr = 0.01 * (t + 1);
        StepValues b = { s.lr, 1 - pow(betas[0], t + 1),
                         1 - pow(betas[1], t + 1), t };
        Batch batch = { p->mesh, t };
        for (int m = 0; m < MICRO; m++)
            a[m] = mean_of(t, m);
        exec_run(x, PGstep, &b, &(Feed){ fill, &batch });
        step_by_hand(&h, a, &s, t + 1);
        double d = values_apart(x, &h);
        results = fmax(results, results_apart(x, &h));
        most = fmax(most, d);
        idle = !h.ok ? fmax(idle, d) : idle;
        read_values(x, &h); /* so that differences do not add up */
    }
    exec_close(x);
    const char *how = strf(forever, "%s%s%s", fold, *keys ? " " : "", keys);
    verdict(results <= TOL, "loss, norm and ok", how, results, TOL);
    verdict(most <= TOL, "values", how, most, TOL);
    verdict(idle == 0, "values of steps left out", how, idle, 0);
}

/* ---- as `run` does it ---------------------------------------------------- */

/* The steps are those of a file of bytes, in its order; the third has no finite
 * gradient, takes its samples all the same, and changes nothing. */
static const int32_t bytes[STEPS] = { 2, 90, 0, 5, 200, 3, 7, 1, 4 };

static void write_bytes(const char *path)
{
    FILE *f = fopen(path, "w");

    if (!f)
        die("cannot write %s", path);
    level = bytes;
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < MICRO * SEQ; i++)
            fputc(token(t, i), f);
    fputc(0, f);
    fclose(f);
}

/* Warm-up over 3 steps to 0.02, then a line to 0.002 at the end. */
static double rate_at(int step)
{
    if (step < 3)
        return 0.02 * (step + 1) / 3;
    return 0.002 + (0.02 - 0.002) * (1 - (step - 3) / (STEPS - 3.0));
}

static int run_silently(const char *dir, Plan *p)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();

    if (!pid) {
        int fd = open(strf(forever, "%s/log", dir), O_WRONLY | O_CREAT, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        exit(run_plan(p, NULL));
    }
    waitpid(pid, &status, 0);
    return status;
}

/* Initial values are the same in every run of a seed. */
static Hand start_of(Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    Hand h = { .ok = 1 };

    exec_run(x, PGinit, NULL, NULL);
    read_values(x, &h);
    exec_close(x);
    return h;
}

/* Line by line: loss and learning rate, and the norm where it is finite. */
static double metrics_apart(const char *path, Hand *h, int *lines)
{
    Setting s = { 1, 0.3, 1e-8, 0, { 1, 0, 1 }, ADAMW, { 0 } };
    FILE *f = fopen(path, "r");
    json_t *j;
    double most = 0;

    while (f && (j = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        double a[MICRO];
        if (!json_object_get(j, "loss")) { /* of a save */
            json_decref(j);
            continue;
        }
        int t = (*lines)++;
        for (int m = 0; m < MICRO && t < STEPS; m++)
            a[m] = mean_of(t, m);
        s.lr = rate_at(t);
        step_by_hand(h, a, &s, t + 1);
        most =
            worse(most, json_number_value(json_object_get(j, "loss")), h->loss);
        most = worse(most, json_number_value(json_object_get(j, "lr")), s.lr);
        if (h->ok)
            most =
                worse(most, json_number_value(json_object_get(j, "grad_norm")),
                      h->norm);
        json_decref(j);
    }
    if (f)
        fclose(f);
    return most;
}

static void run_whole(const char *fold)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = strf(forever, "%s/pleat-optimizer.XXXXXX", tmp ? tmp : "/tmp");
    int lines = 0;

    if (!mkdtemp(dir))
        die("cannot make %s", dir);
    write_bytes(strf(forever, "%s/bytes", dir));
    Plan *p = plan_of(strf(forever,
                           "%s train.lr=0.02 train.min_lr=0.002 "
                           "train.schedule=linear train.warmup=3 "
                           "train.weight_decay=0.3 data.train=%s/bytes "
                           "data.format=bytes data.order=files name=%s/run",
                           fold, dir, dir));
    Hand h = start_of(p);
    int status = run_silently(dir, p);
    double most =
        metrics_apart(strf(forever, "%s/run/metrics.jsonl", dir), &h, &lines);
    verdict(!status && lines == STEPS && most <= PRINTED, "a run", fold, most,
            PRINTED);
    if (system(strf(forever, "rm -r '%s'", dir)))
        die("cannot remove %s", dir);
}

int main(void)
{
    Plan *p[NF * NS];

    for (int i = 0; i < NF * NS; i++)
        p[i] = plan_of(
            strf(forever, "%s %s", folds[i % NF], settings[i / NF].keys));
    share_kernels(p, NF * NS);
    for (int i = 0; i < NF * NS; i++)
        run_steps(folds[i % NF], settings[i / NF].keys, settings[i / NF].s,
                  p[i]);
    run_whole("world=1");
    run_whole("fold.dp=2");
    return failed != 0;
}
