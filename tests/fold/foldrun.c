/* foldrun.c: see foldrun.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/share.h"
#include "foldrun.h"
#include "../unit/tensors.h"

/* ---- inputs -------------------------------------------------------------- */

enum { TOKENS = 97 }; /* or the model's vocabulary, if smaller */

typedef struct Fill {
    uint64_t seed, mod;
    int64_t from;
    int32_t *dst;
} Fill;
typedef struct Batch {
    const Mesh *mesh;
    int64_t step, vocab;
} Batch;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] =
            (int32_t)(mix64(f->seed, (uint64_t)(f->from + global + i)) %
                      f->mod);
}

/* The turns follow each other as the micro-batches in one turn do. */
static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { mix64((uint64_t)t->name[0], (uint64_t)b->step),
               (uint64_t)b->vocab, micro * tensor_elems(t), dst };

    if (t->dt != Di32)
        err(NULL, "input %s is not i32", t->name);
    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

Feed fold_feed(const Plan *p, int64_t step)
{
    static Batch b;

    b = (Batch){ p->mesh, step, TOKENS };
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++)
            for (int d = 0; d < p->role[r].tensor[i].nd; d++) {
                const PlanDim *x = &p->role[r].tensor[i].dim[d];
                if (x->role == ROLEvocab && x->n < b.vocab)
                    b.vocab = x->n;
            }
    return (Feed){ fill, &b };
}

StepValues fold_block(const Plan *p, int64_t step)
{
    double b[2];

    opts_pair(p->opts, "train.betas", b);
    return (StepValues){ 1e-3, 1 - pow(b[0], (double)(step + 1)),
                         1 - pow(b[1], (double)(step + 1)), step };
}

/* ---- plans --------------------------------------------------------------- */

const Target *fold_target = &T_host;

void fold_target_given(void)
{
    const char *name = getenv("TEST_TARGET");

    if (name && !(fold_target = target_named(name)))
        die("no target %s", name);
}

/* Few tokens seldom fit the default room: without other keys all have room. */
Plan *fold_plan(const char *model, char *const *keys, int nkeys)
{
    Opts *o = opts_new(forever);
    size_t len;

    for (int i = 0; i < nkeys; i++) {
        size_t n = strcspn(keys[i], "=");
        opts_set(o, internn(keys[i], n), intern(keys[i] + n + 1), NULL);
    }
    if (!opts_given(o, "route.factor") && !opts_given(o, "route.policy"))
        opts_set(o, "route.factor", "0", NULL);
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    char *text = plan_print(forever, compile(t.g, fold_target, &co), &len);
    arena_free(t.g->arena);
    return plan_parse(forever, text, len, model);
}

Plan *fold_words(const char *model, const char *words)
{
    char *key[MAXKEYS], *next;
    int n = 0;

    for (char *w = strtok_r(strf(forever, "%s", words), " ", &next); w;
         w = strtok_r(NULL, " ", &next)) {
        if (n == MAXKEYS)
            die("more than %d keys: %s", MAXKEYS, words);
        key[n++] = w;
    }
    return fold_plan(model, key, n);
}

char *fold_model_words(const char *words)
{
    int route = strstr(words, "route.policy=") != NULL;
    char *all = strf(forever, "%s", words), *next;
    Text t = { .arena = forever };

    put(&t, "%s", "");
    for (char *w = strtok_r(all, " ", &next); w; w = strtok_r(NULL, " ", &next))
        if (!strncmp(w, "axes.", 5) || !strncmp(w, "train.batch=", 12) ||
            (route && !strncmp(w, "route.", 6)))
            put(&t, " %s", w);
    return t.s;
}

int fold_share(Plan **p, int nplan)
{
    share_kernels(p, (size_t)nplan);
    return nplan ? p[0]->nkernel : 0;
}

/* ---- training ------------------------------------------------------------ */

const Tensor **fold_tensors(const Plan *p, unsigned kinds)
{
    const Tensor **v = NULL;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            size_t k = 0;
            if (!tensor_is(t, kinds))
                continue;
            while (k < vec_len(v) && strcmp(v[k]->name, t->name))
                k++;
            if (k == vec_len(v))
                vec_push(forever, v, t);
        }
    return v;
}

double *fold_read(Exec *x, const char *name, int64_t *n)
{
    *n = exec_read(x, name, 0, NULL, 0);
    if (*n < 0)
        die("no tensor %s", name);
    double *v = alloc(forever, (size_t)(*n + 1) * sizeof *v);
    exec_read(x, name, 0, v, *n);
    return v;
}

static void read_values(Exec *x, Trained *w, unsigned kinds, int grad)
{
    const Tensor **t = fold_tensors(x->plan, kinds);

    for (size_t i = 0; i < vec_len(t); i++) {
        if (grad && strncmp(t[i]->name, "optim.m.", 8) &&
            strncmp(t[i]->name, "optim.row.", 10))
            continue;
        Found v = { t[i], t[i]->name, grad, 0, NULL };
        v.v = fold_read(x, v.name, &v.n);
        vec_push(forever, w->value, v);
    }
}

Trained fold_train(Plan *p, int steps)
{
    Trained w = { .steps = steps };
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < steps; t++) {
        StepValues block = fold_block(p, t);
        Feed f = fold_feed(p, t);
        w.fallbacks += exec_exact(x, PGstep, &block, &f);
        w.loss[t] = exec_result(x, RESULTloss);
        w.norm[t] = exec_result(x, RESULTgrad_norm);
        if (t == 0)
            read_values(x, &w, MOMENTS, 1);
    }
    read_values(x, &w, 1 << TKstate | 1 << TKhistory, 0);
    exec_close(x);
    return w;
}

/* ---- comparing ----------------------------------------------------------- */

static void worse(double *most, double d, const char **at, const char *name)
{
    if (d <= *most)
        return;
    *most = d == d ? d : INFINITY;
    *at = name;
}

static const Found *same_value(const Trained *w, const char *name)
{
    for (size_t i = 0; i < vec_len(w->value); i++)
        if (!strcmp(w->value[i].name, name))
            return &w->value[i];
    die("no tensor %s", name);
}

double fold_apart(const Trained *x, const Trained *want, const char **where)
{
    double most = 0;
    int grads = 0;

    *where = "nothing";
    for (int t = 0; t < want->steps; t++) {
        worse(&most, fabs(x->loss[t] / want->loss[t] - 1), where, "loss");
        worse(&most, fabs(x->norm[t] / want->norm[t] - 1), where, "grad_norm");
    }
    for (size_t i = 0; i < vec_len(want->value); i++) {
        const Found *y = &want->value[i], *v = same_value(x, y->name);
        if (v->n != y->n)
            die("%s has %lld elements, not %lld", y->name, (long long)v->n,
                (long long)y->n);
        worse(&most, tensor_apart(y->t, v->v, y->v), where, y->name);
        grads += y->grad;
    }
    if (!grads)
        die("no gradient to compare");
    return most;
}
