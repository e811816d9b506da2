/* examine.c: one model, through the compiler and the runtime, against the
 * reference. Every plan is made in a process of its own, which may die; the
 * kernels of all are compiled at once, then each runs one step. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/share.h"
#include "want.h"

enum { CPUSECONDS = 20, ALLSECONDS = 120 };

/* Relative noise of one result in fp64: that of a sum of a few hundred terms.
 * Results may be SLACK times as far as noise moved them. */
static const double NOISE64 = 0x1p-45, SLACK = 16;

/* Finite differences lose half of the digits. */
static const double DIFFERENCES = 1e-5;

const char *const verdicts[NVERDICT] = {
    "not run", "right", "no test", "refused", "aborted", "too slow", "wrong",
};

static const char *const checkkeys[NCHECK] = {
#define CHECK(name, keys, sentence) keys,
#include "checks.def"
#undef CHECK
};

const char *const checknames[NCHECK] = {
#define CHECK(name, keys, sentence) #name,
#include "checks.def"
#undef CHECK
};

typedef struct Exam {
    const char *file;
    unsigned which;
    Report *r;
    Graph *g; /* the model, traced for fp64 */
    Want *want;
    Plan *plan[NCHECK];
} Exam;

/* ---- tracing ------------------------------------------------------------- */

static Opts *options(const char *words)
{
    Opts *o = opts_new(forever);
    char *next, *all = strf(forever, "%s train.clip=0", words);

    for (char *w = strtok_r(all, " ", &next); w;
         w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    return o;
}

static void note_ops(Report *r, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        r->op[g->node[i]->op] = 1;
        if (g->node[i]->op == Ocall)
            note_ops(r, g->node[i]->body);
    }
}

static void try_trace(void *ctx)
{
    Exam *e = ctx;

    trace(e->file, options("precision=fp64"), TRACEquiet);
}

/* ---- compiling ----------------------------------------------------------- */

typedef struct Making {
    Exam *e;
    Check c;
    FILE *out;
} Making;

static void make_plan(void *ctx)
{
    Making *m = ctx;
    Opts *o = options(checkkeys[m->c]);
    const char *target = opts_str(o, "target");
    Trace t = trace(m->e->file, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    size_t len;
    Plan *p = compile(t.g, target_named(target ? target : "host"), &co);
    char *text = plan_print(forever, p, &len);

    fwrite(text, 1, len, m->out);
}

/* The plan of a check, or null; its outcome says why. */
static Plan *plan_apart(Exam *e, Check c)
{
    Making m = { e, c, tmpfile() };
    Outcome *o = &e->r->o[c];
    Plan *p = NULL;

    if (!m.out)
        err(NULL, "no temporary file");
    apart(make_plan, &m, CPUSECONDS, o);
    if (o->v == NOTRUN) {
        long len = ftell(m.out);
        fseek(m.out, 0, SEEK_END);
        len = ftell(m.out);
        char *text = alloc(forever, (size_t)len + 1);
        rewind(m.out);
        if (fread(text, 1, (size_t)len, m.out) == (size_t)len)
            p = plan_parse(forever, text, (size_t)len, e->file);
    }
    fclose(m.out);
    return p;
}

/* ---- running ------------------------------------------------------------- */

typedef struct Filling {
    const Tensor *t;
    int64_t from, vocab, step;
    void *dst;
} Filling;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Filling *f = ctx;

    for (int64_t i = 0; i < n; i++) {
        double v = input_value(f->t->name, f->t->dt, f->vocab, f->step,
                               f->from + global + i);
        switch (f->t->dt) {
        case Df64: ((double *)f->dst)[local + i] = v; break;
        case Df32: ((float *)f->dst)[local + i] = (float)v; break;
        case Dbf16:
            ((uint16_t *)f->dst)[local + i] = f32_to_bf16((float)v);
            break;
        case Di64: ((int64_t *)f->dst)[local + i] = (int64_t)v; break;
        case Di32: ((int32_t *)f->dst)[local + i] = (int32_t)v; break;
        default: ((uint8_t *)f->dst)[local + i] = (uint8_t)v;
        }
    }
}

typedef struct Source_ {
    const Plan *p;
    int64_t vocab;
} Inputs;

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    const Inputs *in = self;
    Filling f = { t, turn * tensor_elems(t), in->vocab, 0, dst };

    tensor_runs(in->p->mesh, t, rank, fill_run, &f);
}

static void write_leaves(Exec *x, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        int64_t n = exec_read(x, p->path, 0, NULL, 0);
        if (n < 0)
            continue;
        double *v = alloc(forever, (size_t)(n + 1) * sizeof *v);
        for (int64_t k = 0; k < n; k++)
            v[k] = leaf_value(g, p->path, k);
        exec_write(x, p->path, v, n);
    }
}

static Exec *run_step(const Exam *e, const Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    Inputs in = { p, vocabulary(e->g) };
    Feed f = { fill, &in };
    double b[2];

    opts_pair(p->opts, "train.betas", b);
    Block block = { 1e-3, 1 - b[0], 1 - b[1], 0 };
    exec_run(x, "init", NULL, NULL);
    write_leaves(x, e->g);
    exec_run(x, "step", &block, &f);
    return x;
}

/* The value of that name; null: the plan has none. */
static double *result(Exec *x, const Wanted *w)
{
    double *v = alloc(forever, (size_t)(w->n + 1) * sizeof *v), b[2];

    if (!strcmp(w->kind, "loss") || !strcmp(w->kind, "metric")) {
        *v = exec_result(x, w->name);
        return v;
    }
    if (exec_read(x, w->name, 0, NULL, 0) != w->n)
        return NULL;
    exec_read(x, w->name, 0, v, w->n);
    opts_pair(x->plan->opts, "train.betas", b);
    for (int64_t i = 0; !strcmp(w->kind, "gradient") && i < w->n; i++)
        v[i] /= 1 - b[0];
    return v;
}

static double largest(const Wanted *w)
{
    double most = 0;

    for (int64_t i = 0; i < w->n; i++)
        most = fmax(most, fabs(w->v[i]));
    return most;
}

/* Largest difference over its bound. A parameter that the plan does not train
 * has gradient 0. */
static double off_bound(Exec *x, const Wanted *w)
{
    double *v = result(x, w), most = 0, limit;

    limit = SLACK * w->bound + 1e-13 * largest(w) + 1e-300;
    for (int64_t i = 0; i < w->n; i++) {
        double d = fabs((v ? v[i] : 0) - w->v[i]) / limit;
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    return most;
}

static void compare(const Exam *e, Check c, Exec *x)
{
    Outcome *o = &e->r->o[c];

    o->v = FINE;
    for (size_t i = 0; i < vec_len(e->want->v); i++) {
        const Wanted *w = &e->want->v[i];
        double d = off_bound(x, w);
        if (d <= o->apart)
            continue;
        o->apart = d;
        if (d <= 1)
            continue;
        o->v = WRONG;
        snprintf(o->what, sizeof o->what, "%s of %s: %.3g of %.3g", w->kind,
                 w->of, d * (SLACK * w->bound + 1e-13 * largest(w)),
                 largest(w));
    }
}

/* ---- a model ------------------------------------------------------------- */

static void judge(Exam *e)
{
    Outcome *o = &e->r->o[CKreference];

    e->r->now = CKreference;
    Trace t = trace(e->file, options("precision=fp64"), TRACEquiet);
    e->g = t.g;
    note_ops(e->r, t.g);
    e->want = want_new(forever, t.g, NOISE64);
    o->v = FINE;
    o->apart = e->want->off / DIFFERENCES;
    if (e->want->bad) {
        o->v = UNFIT;
        snprintf(o->what, sizeof o->what, "%s", e->want->bad);
    } else if (o->apart > 1) {
        o->v = WRONG;
        snprintf(o->what, sizeof o->what, "differences are off by %.2g",
                 e->want->off);
    }
}

static void run_all(Exam *e)
{
    Plan *all[NCHECK];
    size_t n = 0;

    for (int c = CKhost; c < NCHECK; c++) {
        if (!(e->which >> c & 1))
            continue;
        e->r->now = (Check)c;
        e->plan[c] = plan_apart(e, (Check)c);
        if (!e->plan[c])
            continue;
        e->r->o[c].v = FINE;
        if (strcmp(e->plan[c]->target, "host") || !e->want)
            e->plan[c] = NULL;
        else
            all[n++] = e->plan[c];
    }
    if (n)
        share_kernels(all, n);
    for (int c = CKhost; c < NCHECK; c++)
        if (e->plan[c]) {
            e->r->now = (Check)c;
            Exec *x = run_step(e, e->plan[c]);
            compare(e, (Check)c, x);
            exec_close(x);
        }
}

static void look_at(void *ctx)
{
    Exam *e = ctx;

    if (e->which >> CKreference & 1)
        judge(e);
    else
        e->r->o[CKreference].v = FINE;
    if (e->r->o[CKreference].v == FINE)
        run_all(e);
}

void examine(const char *file, unsigned which, Report *r)
{
    Exam e = { .file = file, .which = which, .r = r };
    Outcome died = { 0 }, *o = &r->o[CKfront];

    *r = (Report){ 0 };
    apart(try_trace, &e, CPUSECONDS, o);
    if (o->v != NOTRUN) {
        if (o->v == REFUSED)
            o->v = UNFIT;
        return;
    }
    o->v = FINE;
    apart(look_at, &e, ALLSECONDS, &died);
    if (died.v != NOTRUN)
        r->o[r->now] = died;
}

int outcome_bad(const Outcome *o)
{
    return o->v != NOTRUN && o->v != FINE && o->v != UNFIT;
}

Check report_bad(const Report *r)
{
    int c = 0;

    while (c < NCHECK && !outcome_bad(&r->o[c]))
        c++;
    return (Check)c;
}
