/* fit_test: memory decides what is rebuilt (passes/fit.c). With `memory` from
 * what a plan takes where nothing is rebuilt that costs time down to below the
 * least: a plan takes no more than it may, or the least of all; less memory
 * never gives a faster plan; and one that has all it needs is the plan without
 * a limit. */
#define _GNU_SOURCE
#include <string.h>

#include "../fold/foldrun.h"

enum { LIMITS = 8 };

/* clang-format off */
static const struct { const char *model, *keys; } cases[] = {
    { "tests/hf/qwen3.lua",   "target=null precision=bf16 axes.batch=8" },
    { "tests/hf/mixtral-aux.lua", "target=null precision=bf16 fold.dp=4 fold.ep=4 fold.zero=3 fold.pair=1 axes.batch=8" },
    { "tests/hf/dsv3.lua",    "target=null precision=bf16 fold.pp=2 fold.dp=2 axes.batch=4" },
};
/* clang-format on */

static int failed;

static Plan *plan_of(int i, const char *memory)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", cases[i].keys), " ", &next);

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    opts_set(o, "train.batch", "64", NULL);
    if (memory)
        opts_set(o, "memory", memory, NULL);
    Trace t = trace(cases[i].model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, target_of(t.g->opts), &co);
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
        if (!fits || now < plan_secs(last, PGstep) || !same) {
            printf("# limit %lld: %lld bytes, %.9g ms, before %.9g ms\n",
                   (long long)limit, (long long)bytes, 1e3 * now,
                   1e3 * plan_secs(last, PGstep));
            wrong++;
        }
        fewer += bytes < most(last);
        last = p;
    }
    failed += wrong || !fewer;
    printf(
        "%sok - fit %s %s: %lld to %lld bytes in %d plans, %.4g to %.4g ms\n",
        wrong || !fewer ? "not " : "", cases[i].model, cases[i].keys,
        (long long)all, (long long)most(last), fewer, 1e3 * secs,
        1e3 * plan_secs(last, PGstep));
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        lower((int)i);
    return failed != 0;
}
