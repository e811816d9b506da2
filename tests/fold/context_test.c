/* context_test: a sequence cut over context ranks, in two pieces a rank or in
 * one, keys gathered or going around, alone and beside every other axis, trains
 * as one rank does: in fp64 losses, gradient norms and every gradient.
 * With keys going around no rank ever has all keys of a layer.
 *
 *     context_test                     the cases below
 *     context_test model [key=value ..] */
#include <stdlib.h>
#include <string.h>

#include "foldrun.h"

enum { STEPS = 1, WORDS = 12 };

/* Folds sum in other orders, and a step of AdamW carries that on. */
static const double TOL = 1e-10;

typedef struct Case {
    const char *model, *axes, *keys;
} Case;

#define MIXTRAL "tests/hf/mixtral-aux.lua"
#define WINDOW  "tests/models/window.lua"
#define DSV3    "tests/hf/dsv3.lua"

/* Long sequences have tiles that a mask skips, on both sides of a border
 * between pieces. */
static const Case cases[] = {
    { MIXTRAL, "", "fold.cp=2" },
    { MIXTRAL, "", "fold.cp=2 fold.balance=contiguous" },
    { MIXTRAL, "", "fold.cp=2 fold.ring=1" },
    { MIXTRAL, "", "fold.cp=2 fold.ring=1 fold.balance=contiguous" },
    { MIXTRAL, "", "fold.cp=4 fold.tp=2 fold.ep=8" },
    { MIXTRAL, "", "fold.cp=4 fold.tp=2 fold.ep=4 fold.ring=1" },
    { MIXTRAL, "", "fold.cp=4 fold.ep=2 fold.ring=1" },
    { MIXTRAL, "", "fold.cp=2 fold.tp=2 fold.dp=2 fold.ep=4 fold.ring=1" },
    { MIXTRAL, "", "fold.cp=2 fold.tp=2 fold.order=cp-tp-dp-pp" },
    { MIXTRAL, "", "fold.cp=4 fold.tp=2 fold.order=cp-tp-dp-pp fold.ring=1" },
    { MIXTRAL, "axes.seq=27", "fold.cp=3 fold.ring=1" },
    { MIXTRAL, "axes.seq=400", "fold.cp=2 fold.tp=2" },
    { MIXTRAL, "axes.seq=400", "fold.cp=2 fold.ring=1" },
    { WINDOW, "", "fold.cp=2 fold.tp=2 fold.dp=2 fold.ring=1" },
    { WINDOW, "axes.seq=512", "fold.cp=4" },
    { WINDOW, "axes.seq=512", "fold.cp=4 fold.ring=1" },
    { WINDOW, "axes.seq=512", "fold.cp=4 fold.balance=contiguous" },
    { DSV3, "", "fold.cp=2 fold.tp=2" },
    { DSV3, "", "fold.cp=2 fold.tp=2 fold.ring=1" },
    { DSV3, "", "fold.cp=4 fold.ep=4 fold.ring=1" },
    { "tests/models/expert_choice.lua", "", "fold.cp=2 fold.balance=zigzag" },
    { "tests/models/zoo.lua", "",
      "fold.cp=2 fold.tp=2 fold.dp=2 fold.balance=zigzag" },
    { "tests/models/dropout.lua", "", "fold.cp=2 fold.tp=2" },
};
enum { NCASE = sizeof cases / sizeof *cases };

static int failed;

static void result(int ok, const char *what)
{
    printf("%sok - %s\n", ok ? "" : "not ", what);
    fflush(stdout);
    failed += !ok;
}

/* Words of a text, behind those that every plan has. */
static Plan *plan_of(const char *model, const char *axes, const char *keys)
{
    char *key[WORDS] = { "precision.policy=fp64", "train.batch=8" };
    char *all = strf(forever, "%s %s", axes, keys);
    int n = 2;

    for (char *w = strtok(all, " "); w && n < WORDS; w = strtok(NULL, " "))
        key[n++] = w;
    return fold_plan(model, key, n);
}

/* ---- memory -------------------------------------------------------------- */

/* Most bytes of a buffer that an attention of the model fills. */
static int64_t largest(const Plan *p)
{
    int64_t most = 0;

    for (int i = 0; i < p->role[0].nbuf; i++) {
        const Buf *b = &p->role[0].buf[i];
        if (b->cls == Btemp && strstr(b->name, "layers.0.attn.") &&
            b->bytes > most)
            most = b->bytes;
    }
    return most;
}

static void test_memory(void)
{
    enum { BATCH = 2, SEQ = 256, KV = 2, HEAD = 16 };
    int64_t keys = BATCH * SEQ * KV * HEAD * 8;
    const char *axes = "axes.seq=256";
    Plan *all = plan_of(MIXTRAL, axes, "fold.cp=8");
    Plan *ring = plan_of(MIXTRAL, axes, "fold.cp=8 fold.ring=1");

    printf("# all keys of a layer: %lld bytes; largest buffer of attention: "
           "gathered %lld, ring %lld\n",
           (long long)keys, (long long)largest(all), (long long)largest(ring));
    result(largest(all) >= keys && largest(ring) < keys,
           "no rank has all keys when they go around");
}

/* ---- numbers ------------------------------------------------------------- */

static void compare(const Case *c, Plan *p, const Trained *want)
{
    const char *at = "nothing";
    Trained got = fold_train(p, STEPS);
    double d = fold_apart(&got, want, &at);

    result(d <= TOL,
           strf(forever,
                "%s %s%s%s: difference %.2g (%s), at most "
                "%.0e",
                c->model, c->axes, *c->axes ? " " : "", c->keys, d, at, TOL));
}

static int same_model(const Case *a, const Case *b)
{
    return !strcmp(a->model, b->model) && !strcmp(a->axes, b->axes);
}

static void run(const Case *c, int n)
{
    Plan **plan = alloc(forever, 2 * (size_t)n * sizeof *plan);
    Trained one = { 0 };
    int m = 0;

    for (int i = 0; i < n; i++) {
        if (!i || !same_model(&c[i], &c[i - 1]))
            plan[m++] = plan_of(c[i].model, c[i].axes, "world=1");
        plan[m++] = plan_of(c[i].model, c[i].axes, c[i].keys);
    }
    printf("# %d plans, %d kernels\n", m, fold_share(plan, m));
    m = 0;
    for (int i = 0; i < n; i++) {
        if (!i || !same_model(&c[i], &c[i - 1]))
            one = fold_train(plan[m++], STEPS);
        compare(&c[i], plan[m++], &one);
    }
}

int main(int argc, char **argv)
{
    Text axes = { .arena = forever }, keys = { .arena = forever };

    if (argc < 2) {
        test_memory();
        run(cases, NCASE);
        return failed != 0;
    }
    putn(&axes, "", 0);
    putn(&keys, "", 0);
    for (int i = 2; i < argc; i++)
        put(strncmp(argv[i], "axes.", 5) ? &keys : &axes, "%s ", argv[i]);
    run(&(Case){ argv[1], axes.s, keys.s }, 1);
    return failed != 0;
}
