/* fit_test: memory decides what is rebuilt (passes/plan/fit.c). With `memory`
 * from what a plan takes where nothing is rebuilt that costs time down to below
 * the least: a plan takes no more than it may, or the least of all; less memory
 * never gives a faster plan that fits; and one that has all it needs is the
 * plan without a limit. Limits lead to at least so many plans. Unasked,
 * micro-batches go in pairs where they may and a step is predicted to be
 * shorter. */
#include <fenv.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { LIMITS = 8 };

/* clang-format off */
static const struct { const char *model, *keys; int layers, plans; } cases[] = {
    { "tests/hf/qwen3.lua",   "target=null precision=bf16 axes.batch=8", 0, 8 },
    { "tests/hf/mixtral-aux.lua", "target=null precision=bf16 fold.dp=4 fold.ep=4 fold.zero=3 fold.pair=1 axes.batch=8", 0, 3 },
    { "tests/hf/dsv3.lua",    "target=null precision=bf16 fold.pp=2 fold.dp=2 axes.batch=4", 0, 2 },
    /* Pairs take less time, and fit with what masters take away. */
    { "tests/models/folds.lua", "cluster=h100x2 precision=bf16 fold.ep=2", 0, 2 },
    /* Small updates of the optimizer stay on the device. */
    { "tests/models/folds.lua", "cluster=h100x1 precision=bf16 axes.batch=16", 0, 6 },
    /* Slices of one sequence's logits in each copy of the stage. */
    { "models/qwen3_moe.lua", "cluster=h100x2 fold.tp=2 fold.ep=2 axes.batch=1", 2, 2 },
    /* Stages whose levels differ in what they wait for copies. */
    { "models/mixtral.lua", "cluster=h100x8 fold.pp=2 fold.ep=4 fold.zero=1 axes.batch=1", 4, 3 },
};
/* clang-format on */

static int failed;

/* Its text with another number of layers (0: its own). */
static Trace cut_trace(const char *model, int layers, Opts *o)
{
    static const char name[] = "local layers, eps = ";
    size_t n;
    Source source = { model, file_need(forever, model, &n) };
    const char *at = layers ? strstr(source.text, name) : NULL;

    if (!layers)
        return trace(model, o, TRACEquiet);
    if (!at)
        die("%s has no '%s'", model, name);
    at += sizeof name - 1;
    source.text = strf(forever, "%.*s%d%s", (int)(at - source.text),
                       source.text, layers, at + strspn(at, "0123456789"));
    return trace_sources(&source, 1, o);
}

static Plan *plan_with(const char *model, int layers, const char *keys)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", keys), " ", &next);

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    opts_set(o, "train.batch", "64", NULL);
    Trace t = cut_trace(model, layers, o);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, target_of(t.g->opts), &co);
}

static Plan *plan_of(int i, const char *memory)
{
    const char *limit = memory ? strf(forever, " memory=%s", memory) : "";

    return plan_with(cases[i].model, cases[i].layers,
                     strf(forever, "%s%s", cases[i].keys, limit));
}

static int64_t most(const Plan *p)
{
    int64_t bytes = 0;

    for (int i = 0; i < p->nrole; i++)
        bytes = p->role[i].arena > bytes ? p->role[i].arena : bytes;
    return bytes;
}

/* From all that it needs to a sixteenth less than the least. */
static void lower(int i)
{
    const Plan *free = plan_of(i, NULL), *last = free;
    int64_t all = most(free), least = most(plan_of(i, "1B"));
    double secs = plan_secs(free, PGstep);
    int wrong = 0, fewer = 0;

    for (int k = 0; k <= LIMITS; k++) {
        int64_t limit = all - (all - least + least / 16) * k / LIMITS;
        const Plan *p = plan_of(i, strf(forever, "%lldB", (long long)limit));
        double now = plan_secs(p, PGstep);
        int64_t bytes = most(p);
        int fits = bytes <= limit || (bytes == least && limit < least);
        int same = k || (bytes == all && now == secs);
        int faster = bytes <= limit && now < plan_secs(last, PGstep);
        if (!fits || faster || !same) {
            printf("# limit %lld: %lld bytes, %.9g ms, before %.9g ms\n",
                   (long long)limit, (long long)bytes, 1e3 * now,
                   1e3 * plan_secs(last, PGstep));
            wrong++;
        }
        fewer += bytes < most(last);
        last = p;
    }
    int bad = wrong || fewer < cases[i].plans;
    failed += bad;
    printf(
        "%sok - fit %s %s: %lld to %lld bytes in %d plans, %.4g to %.4g ms\n",
        bad ? "not " : "", cases[i].model, cases[i].keys, (long long)all,
        (long long)most(last), fewer, 1e3 * secs,
        1e3 * plan_secs(last, PGstep));
}

/* ---- pairs --------------------------------------------------------------- */

/* clang-format off */
static const struct { const char *keys; int pairs; } folds[] = {
    { "target=null fold.dp=4 fold.ep=4 axes.batch=8", 1 },
    { "target=cuda fold.dp=4 fold.ep=4 axes.batch=8", 1 },
    { "target=host fold.dp=4 fold.ep=4 axes.batch=8", 0 }, /* serial */
    { "target=null fold.dp=2 axes.batch=8", 0 }, /* no exchange */
    { "target=null fold.dp=4 fold.ep=4 axes.batch=16", 0 }, /* one */
    { "target=null fold.dp=4 fold.ep=4 fold.pp=2 axes.batch=4", 0 },
    { "target=null fold.dp=4 fold.ep=4 axes.batch=8 memory=1B", 0 },
};
/* clang-format on */

static int has_pairs(const Plan *p)
{
    const Program *step = role_program(&p->role[0], PGstep);
    int pairs = 0;

    for (int f = 0; f < step->nphase; f++)
        pairs |= step->phase[f].pair;
    return pairs;
}

/* Unasked a plan is the faster of the two, where pairs may be taken. */
static void choose(int i)
{
    static const char *const asked[] = { "", "fold.pair=0", "fold.pair=1" };
    double secs[3];
    int pairs = 0;

    for (int k = 0; k < 3; k++) {
        const char *keys = strf(forever, "%s %s", folds[i].keys, asked[k]);
        const Plan *p = plan_with("tests/hf/mixtral-aux.lua", 0, keys);
        secs[k] = plan_secs(p, PGstep);
        pairs = k ? pairs : has_pairs(p);
    }
    int ok = pairs == folds[i].pairs && secs[0] == secs[1 + pairs] &&
             (!pairs || secs[2] < secs[1]);
    failed += !ok;
    printf("%sok - pairs unasked %s: %.9g ms, %.9g one by one, %.9g in pairs\n",
           ok ? "" : "not ", folds[i].keys, 1e3 * secs[0], 1e3 * secs[1],
           1e3 * secs[2]);
}

/* A weight that one product reads in one micro-batch: to round it there and not
 * before takes no time, at a memory of no price. That decides, and no NaN. */
static void decide(void)
{
    static const char text[] =
        "axes { batch=64, seq=16, hidden=256, ffn=128 }\n"
        "local x = where(gt(input('x', 'batch seq'), iota('hidden')), 1, 0)\n"
        "local y = dot(x, param('w', 'hidden ffn'), 'hidden')\n"
        "loss('l', sum(y * y, 'batch seq ffn'))\n";
    Source source = { "decide.lua", text };
    Opts *o = opts_new(forever);

    opts_set(o, "target", "cuda", NULL);
    opts_set(o, "precision.policy", "fp8", NULL);
    opts_set(o, "precision.place", "all", NULL);
    opts_set(o, "train.batch", "64", NULL);
    Trace t = trace_sources(&source, 1, o);
    feclearexcept(FE_INVALID);
    compile(t.g, target_of(t.g->opts),
            &(CompileOptions){ .source = t.source, .nsource = t.nsource });
    int nan = fetestexcept(FE_INVALID);
    failed += nan != 0;
    printf("%sok - fit: no number of a decision is a NaN\n", nan ? "not " : "");
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        lower((int)i);
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++)
        choose((int)i);
    decide();
    return failed != 0;
}
