/* routes_test: what becomes of tokens beyond a share, on a GPU as on the host:
 * a few steps of small models under every policy, and of what chooses tokens or
 * sums along them, losses and gradient norms compared. A step that overflows
 * leaves every bit of the state as it was before its fallback runs.
 *
 * Tolerances, of losses, relative: fp32 1e-4 (orders of sums, which training
 * amplifies), bf16 2e-2.
 *
 *     routes_test           all
 *     routes_test word      those whose model or keys contain it */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { STEPS = 6 };

typedef struct Case {
    const char *model, *keys;
    int fallbacks;
} Case;

static const Case cases[] = {
    { "models/tiny.lua", "", 0 },
    { "models/tiny.lua", "precision=bf16", 0 },
    { "models/tiny.lua", "route.policy=capacity", 0 },
    { "models/tiny.lua", "route.policy=capacity route.factor=0.6", 0 },
    { "models/tiny.lua", "route.policy=capacity route.drop=position", 0 },
    { "models/tiny.lua", "route.policy=capacity precision=bf16", 0 },
    { "models/tiny.lua", "route.policy=padded", 0 },
    { "models/tiny.lua", "route.policy=padded route.factor=0.6", 0 },
    { "models/tiny.lua", "route.policy=padded precision=bf16", 0 },
    { "models/tiny.lua", "route.factor=0.5", STEPS },
    { "models/tiny.lua", "route.factor=0.3 precision=bf16", STEPS },
    { "models/tiny.lua", "route.factor=1 train.batch=16 axes.batch=4", 0 },
    { "tests/models/top1_z.lua", "", 0 },
    { "tests/models/top1_z.lua", "route.policy=capacity route.factor=1", 0 },
    { "tests/models/expert_choice.lua", "", 0 },
    { "tests/models/expert_choice.lua", "axes.seq=96", 0 },
    { "tests/models/linear.lua", "axes.seq=600", 0 },
    { "tests/models/hash.lua", "route.factor=0.5", STEPS },
};
enum { N = sizeof cases / sizeof *cases };

static Plan *plan_of(const Case *c, const Target *T)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", c->keys), " ", &next);
    size_t len;

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    opts_set(o, "target", T->name, NULL);
    Trace t = trace(c->model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    char *text = plan_print(forever, compile(t.g, T, &co), &len);
    return plan_parse(forever, text, len, c->model);
}

typedef struct Run {
    double loss[STEPS], norm[STEPS];
    int fallbacks, touched;
} Run;

/* What lasts, all but inputs and results: buffers of the state, one after
 * another. */
static uint8_t *lasting(Exec *x, size_t *n)
{
    const Role *r = x->rank[0].role;
    uint8_t *v = alloc(forever, (size_t)r->persist);

    *n = 0;
    exec_pull(x);
    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        if (b->prog >= 0 || b->cls == Bio || b->offset + b->bytes > r->persist)
            continue;
        memcpy(v + *n, x->rank[0].arena + b->offset, (size_t)b->bytes);
        *n += (size_t)b->bytes;
    }
    return v;
}

static Run train(Plan *p)
{
    Run r = { .touched = 0 };
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    size_t n;

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        StepValues b = fold_block(p, t);
        Feed f = fold_feed(p, t);
        const uint8_t *was = lasting(x, &n);
        exec_run(x, PGstep, &b, &f);
        if (exec_result(x, RESULToverflow) > 0) {
            r.touched += memcmp(was, lasting(x, &n), n) != 0;
            r.fallbacks++;
            exec_run(x, PGfallback, &b, &f);
        }
        r.loss[t] = exec_result(x, RESULTloss);
        r.norm[t] = exec_result(x, RESULTgrad_norm);
    }
    exec_close(x);
    return r;
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want) / fabs(want);

    return d <= a ? a : d;
}

static int compare(const Case *c)
{
    Run want = train(plan_of(c, &T_host)), got = train(plan_of(c, &T_cuda));
    double may = strstr(c->keys, "bf16") ? 2e-2 : 1e-4, loss = 0, norm = 0;

    for (int t = 0; t < STEPS; t++) {
        loss = worse(loss, got.loss[t], want.loss[t]);
        norm = worse(norm, got.norm[t], want.norm[t]);
    }
    int ok = loss <= may && norm <= 10 * may && !got.touched && !want.touched &&
             got.fallbacks == c->fallbacks && want.fallbacks == c->fallbacks;
    printf("%sok - %s %s: losses differ by %.1e, norms by %.1e, at most %.0e "
           "and %.0e; %d of %d steps fell back, %d touched the state\n",
           ok ? "" : "not ", c->model, c->keys, loss, norm, may, 10 * may,
           got.fallbacks, STEPS, got.touched);
    fflush(stdout);
    return !ok;
}

int main(int argc, char **argv)
{
    int failed = 0;

    if (!dl_open(LIBcuda) || dl.cuInit(0)) {
        printf("ok - routes # SKIP no GPU\n");
        return 0;
    }
    for (int i = 0; i < N; i++)
        if (argc < 2 || strstr(cases[i].model, argv[1]) ||
            strstr(cases[i].keys, argv[1]))
            failed |= compare(&cases[i]);
    return failed;
}
