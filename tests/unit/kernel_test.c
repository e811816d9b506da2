/* kernel_test: kernels against the reference interpreter. Every row of the op
 * table in fp64, fp32 and bf16, and graphs whose parts fuse: norms, softmax, a
 * loss with its gradient, an optimizer step, routed experts. One translation
 * unit holds all kernels, as in a plan. */
#include "hostrun.h"
#include "trials.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void judge_fusion(const Trial *t)
{
    int n = trial_kernels(t), good = n <= t->most;

    good ? passed++ : failed++;
    printf("%sok - kernel %s: %d kernels, at most %d\n", good ? "" : "not ",
           t->name, n, t->most);
}

static void judge(Trial *t, void *lib)
{
    double worst = 0, size;

    host_run(t->g, t->k, (int)vec_len(t->k), host_step, lib);
    if (t->most)
        judge_fusion(t);
    for (int o = 0; o < t->nout; o++) {
        double *got = host_get(t->g, t->sink[o]->in[0], t->g->arena);
        worst = fmax(worst, trial_differs(t, o, t->want[o], got, &size) / size);
    }
    if (worst <= t->limit)
        passed++, printf("ok - kernel %s: %.1e\n", t->name, worst);
    else
        failed++, printf("not ok - kernel %s: differs by %.1e of the largest\n",
                         t->name, worst);
}

/* ---- dropout: which, by element, micro-batch and step -------------------- */

static double *drop(Trial *t, double step, double micro, int which, void *lib)
{
    trial_turn(t, step, micro);
    host_run(t->g, t->k, (int)vec_len(t->k), host_step, lib);
    return host_get(t->g, t->sink[which]->in[0], t->g->arena);
}

static double share_of(const double *v, const double *w, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += w ? v[i] == w[i] : v[i] != 0;
    return s / (double)n;
}

static void check(int good, const char *name, double x)
{
    good ? passed++ : failed++;
    printf("%sok - kernel dropout %s: %.4f\n", good ? "" : "not ", name, x);
}

static void judge_drop(Trial *t, void *lib)
{
    Node *x = t->sink[0]->in[0], *y = t->sink[1]->in[0];
    int64_t n = g_elems(x);
    double *a = drop(t, 3, 5, 0, lib), *b = drop(t, 3, 5, 1, lib), same = 0;

    for (int64_t i = 0; i < n; i++)
        same += trial_value(y, b, x, i) == a[i];
    check(same == (double)n, "in any layout", same / (double)n);
    double kept = share_of(a, NULL, n); /* 36000 trials: 6 deviations */
    check(fabs(kept - 0.75) < 0.014, "keeps three of four", kept);
    double scaled = 0; /* all elements are 1 */
    for (int64_t i = 0; i < n; i++)
        scaled += a[i] == 0 || a[i] == 1 / 0.75;
    check(scaled == (double)n, "keeps the mean", scaled / (double)n);
    double other = share_of(a, drop(t, 4, 5, 0, lib), n);
    check(fabs(other - 0.625) < 0.016, "differs by step", other);
    other = share_of(a, drop(t, 3, 6, 0, lib), n);
    check(fabs(other - 0.625) < 0.016, "differs by micro-batch", other);
}

/* kernel_test                      all
 * kernel_test random first count   that many random graphs */
int main(int argc, char **argv)
{
    Arena *a = arena_new();
    Trial *list = NULL;

    setenv("PLEAT_OPT", "0", 1); /* compilers take most of the time */
    if (argc > 3) {
        list = trial_random(a, &T_host, NULL, atoi(argv[2]), atoi(argv[3]));
    } else {
        list = trial_patterns(a, &T_host, trial_rows(a, &T_host, NULL), 3);
        list = trial_random(a, &T_host, list, 0, 20);
    }
    Group **all = NULL;
    Trial dropping = trial_dropout(a, &T_host);

    for (size_t k = 0; k < vec_len(dropping.k); k++)
        vec_push(a, all, dropping.k[k]);
    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k); k++)
            vec_push(a, all, list[i].k[k]);
    void *lib = host_compile(a, all, (int)vec_len(all));
    if (!lib)
        return printf("not ok - kernels do not compile\n"), 1;
    for (size_t i = 0; i < vec_len(list); i++)
        if (argc < 2 || strstr(list[i].name, argv[1]))
            judge(&list[i], lib);
    if (argc < 2)
        judge_drop(&dropping, lib);
    return failed > 0;
}
