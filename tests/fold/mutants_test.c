/* mutants_test: the verifier against damaged plans. Plans of small models in
 * many folds are changed in one place each, printed with a valid hash and read
 * again. At least 99 of 100 must be refused; what is not is run, and must give
 * the bits of the original: then the damage means nothing. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "mutants.h"

enum { TRIES = 8, MAXKIND = 64 };

typedef struct Base {
    const char *model, *keys;
    Plan *plan; /* with kernels */
    char *text;
    size_t len; /* without their texts */
    double *bits;
    size_t nbits; /* what it computes; null: not run yet */
} Base;

#define MIX "tests/hf/mixtral-aux.lua"
/* clang-format off */
static Base bases[] = {
    { .model = MIX, .keys = "fold.dp=2 fold.ep=2 train.batch=8" },
    { .model = MIX, .keys = "fold.tp=2 fold.ep=2 train.batch=4" },
    { .model = MIX, .keys = "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=0 train.batch=8" },
    { .model = MIX, .keys = "fold.dp=4 fold.ep=2 fold.zero=3 train.batch=16" },
    { .model = MIX, .keys = "fold.cp=2 fold.tp=2 train.batch=2" },
    { .model = MIX, .keys = "fold.pp=2 train.batch=8" },
    { .model = MIX, .keys = "fold.pp=2 fold.dp=2 fold.schedule=zerobubble train.batch=16" },
    { .model = MIX, .keys = "fold.pp=2 fold.tp=2 fold.cp=2 train.batch=8" },
    { .model = MIX, .keys = "fold.tp=2 fold.dp=2 fold.pp=2 fold.ep=4 train.batch=16" },
    { .model = MIX, .keys = "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" },
};
/* clang-format on */
enum { NBASE = sizeof bases / sizeof *bases };

static int failed;

static void say(int ok, const char *what)
{
    printf("%sok - %s\n", ok ? "" : "not ", what);
    fflush(stdout);
    failed += !ok;
}

/* ---- hearing err() ------------------------------------------------------- */

static jmp_buf heard;
static char message[1024];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static Plan *try_parse(Arena *a, const char *s, size_t n)
{
    Plan *volatile p = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        p = plan_parse(a, s, n, "mutant");
    err_hook = NULL;
    return p;
}

/* ---- plans --------------------------------------------------------------- */

static void make_base(Base *b)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", b->keys), " ", &next);

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    Trace t = trace(b->model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    b->plan = compile(t.g, &T_host, &co);
    Plan bare = *b->plan;
    bare.prelude = "";
    bare.kernel = alloc(forever, sizeof *bare.kernel * (size_t)bare.nkernel);
    for (int i = 0; i < bare.nkernel; i++)
        bare.kernel[i] = (Kernel){ b->plan->kernel[i].name, "" };
    b->text = plan_print(forever, &bare, &b->len);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Kernel *)a)->name, ((const Kernel *)b)->name);
}

/* All plans run the kernels of all: the text is compiled once. */
static void share_kernels(void)
{
    Kernel *all = NULL;
    size_t n = 0;

    for (int i = 0; i < NBASE; i++)
        for (int k = 0; k < bases[i].plan->nkernel; k++)
            vec_push(forever, all, bases[i].plan->kernel[k]);
    qsort(all, vec_len(all), sizeof *all, by_name);
    for (size_t i = 0; i < vec_len(all); i++)
        if (i == 0 || strcmp(all[i].name, all[n - 1].name))
            all[n++] = all[i];
    for (int i = 0; i < NBASE; i++) {
        bases[i].plan->kernel = all;
        bases[i].plan->nkernel = (int)n;
    }
}

/* ---- running ------------------------------------------------------------- */

typedef struct Fill {
    uint64_t seed;
    int32_t *dst;
} Fill;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] =
            (int32_t)(mix64(f->seed, (uint64_t)(global + i)) % 97);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    Fill f = { mix64((uint64_t)t->name[0], (uint64_t)turn), dst };

    tensor_runs(self, t, rank, fill_run, &f);
}

static void read_tensor(Exec *x, const char *name, double **out)
{
    int64_t n = exec_read(x, name, 0, NULL, 0);
    double *v = alloc(forever, (size_t)(n + 1) * sizeof *v);

    exec_read(x, name, 0, v, n);
    for (int64_t i = 0; i < n; i++)
        vec_push(forever, *out, v[i]);
}

/* The tensors of the original after two steps, their losses and norms. */
static double *train(const Base *b, Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    double *v = NULL;

    exec_run(x, "init", NULL, NULL);
    for (int t = 0; t < 2; t++) {
        Block block = { 1e-3, 1 - pow(0.9, t + 1), 1 - pow(0.95, t + 1), t };
        Feed f = { fill, p->mesh };
        exec_run(x, "step", &block, &f);
        double loss = exec_result(x, "loss"), n = exec_result(x, "grad_norm");
        vec_push(forever, v, loss);
        vec_push(forever, v, n);
    }
    for (int r = 0; r < b->plan->nrole; r++)
        for (int i = 0; i < b->plan->role[r].ntensor; i++) {
            const Tensor *t = &b->plan->role[r].tensor[i];
            if (strcmp(t->kind, "input") && strcmp(t->kind, "output"))
                read_tensor(x, t->name, &v);
        }
    exec_close(x);
    return v;
}

static double *run(const Base *b, Plan *p)
{
    double *volatile out = NULL;

    p->prelude = b->plan->prelude;
    p->kernel = b->plan->kernel;
    p->nkernel = b->plan->nkernel;
    err_hook = hear;
    if (!setjmp(heard))
        out = train(b, p);
    err_hook = NULL;
    return out;
}

static int same_bits(Base *b, Plan *p)
{
    if (!b->bits) {
        b->bits = run(b, b->plan);
        b->nbits = vec_len(b->bits);
    }
    const double *v = run(b, p);
    return v && b->bits && vec_len(v) == b->nbits &&
           !memcmp(v, b->bits, b->nbits * sizeof *v);
}

/* ---- all kinds ----------------------------------------------------------- */

typedef struct Count {
    int made, refused, same, wrong;
} Count;

static void one(Base *b, int kind, uint64_t seed, Count *c)
{
    Arena *a = arena_new();
    Mutant m = { .arena = a, .seed = seed };
    size_t len;

    m.p = plan_parse(a, b->text, b->len, "base");
    if (!mutantkinds[kind].damage(&m)) {
        arena_free(a);
        return;
    }
    char *text = plan_print(a, m.p, &len);
    Plan *q = try_parse(a, text, len);
    c->made++;
    if (getenv("PLEAT_SAY"))
        printf("# %s | %s | %s\n", mutantkinds[kind].name, b->keys,
               q ? "ACCEPTED" : message);
    if (!q)
        c->refused++;
    else if (same_bits(b, q))
        c->same++;
    else {
        c->wrong++;
        printf("# %s, %s %s seed %llu: accepted, and computes something else"
               "\n",
               mutantkinds[kind].name, b->model, b->keys,
               (unsigned long long)seed);
    }
    arena_free(a);
}

int main(int argc, char **argv)
{
    int from = argc > 1 ? atoi(argv[1]) : 0, kinds = 0;
    Count all = { 0 }, by[MAXKIND] = { { 0 } };

    for (int i = 0; i < NBASE; i++) {
        make_base(&bases[i]);
        Arena *a = arena_new();
        if (!try_parse(a, bases[i].text, bases[i].len))
            printf("# %s\n", message), failed++;
        arena_free(a);
    }
    share_kernels();
    for (int k = from; mutantkinds[k].name; k++) {
        for (int i = 0; i < NBASE; i++)
            for (int t = 0; t < TRIES; t++)
                one(&bases[i], k, mix64((uint64_t)k, (uint64_t)(i * TRIES + t)),
                    &by[k]);
        Count *c = &by[k];
        printf("# %-28s %4d mutants, %5.1f %% refused, %d mean the same\n",
               mutantkinds[k].name, c->made,
               c->made ? 100.0 * c->refused / c->made : 0, c->same);
        all.made += c->made;
        all.refused += c->refused;
        all.same += c->same;
        all.wrong += c->wrong;
        kinds += c->made > 0;
    }
    printf("# %d mutants of %d kinds, %.2f %% refused, %d mean the same, %d do "
           "not\n",
           all.made, kinds, 100.0 * all.refused / all.made, all.same,
           all.wrong);
    say(all.wrong == 0, "what is accepted computes the same bits");
    say(all.refused >= 0.99 * all.made, "99 of 100 mutants are refused");
    say(all.made >= 2000 && kinds >= 20, "2,000 mutants of 20 kinds");
    return failed != 0;
}
