/* examine.c: one model, through the compiler and the runtime, against the
 * reference. Every plan is made in a process of its own, which may die; the
 * kernels of all are compiled at once, then each runs one step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "want.h"
#include "../unit/share.h"

enum { CPUSECONDS = 20, ALLSECONDS = 200 };

/* Relative noise of one result, and how many times as far as that moves a
 * tensor rounding may: in fp64 and fp32 noise is as large as the error of a sum
 * of a hundred terms; in bf16, whose sums are fp32, it is one rounding. */
static const double NOISE64 = 0x1p-45, NOISE32 = 0x1p-18, NOISE16 = 0x1p-8;
static const double SLACK = 16, SLACK16 = 6;

/* Finite differences lose half of the digits. */
static const double DIFFERENCES = 1e-5;

const char *const verdicts[NVERDICT] = {
    "not run", "right", "no test", "refused", "aborted", "too slow", "wrong",
};

const CheckInfo checktab[NCHECK] = {
#define CHECK(name, how, micro, keys, sentence) \
    { #name, how, micro, keys, sentence },
#include "checks.def"
#undef CHECK
};

/* What one rank gives by a recipe of few bits; bounds are those of fp64. */
typedef struct OneRank {
    const RecipeErrors *recipe;
    Want *w;
} OneRank;

typedef struct Exam {
    const char *file;
    unsigned which;
    Report *r;
    Graph *g;    /* the model, traced for fp64 */
    Want **want; /* vec: of fp64, by number of micro-batches */
    Plan *plan[NCHECK];
    double **host; /* its results, as want[0] lists them */
    OneRank *one;  /* vec */
} Exam;

static void note_ops(Report *r, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        r->op[g->node[i]->op] = 1;
        if (g->node[i]->op == Ocall)
            note_ops(r, g->node[i]->body);
    }
}

/* ---- the reference ------------------------------------------------------- */

static void judge(Exam *e)
{
    Outcome *o = &e->r->o[CKreference];

    e->g = traced(e->file, CKhost, RANKSall).g;
    note_ops(e->r, e->g);
    Want *w = want_new(forever, e->g, NOISE64, SLACK, NULL);
    vec_push(forever, e->want, w);
    o->v = FINE;
    const Node *twice = compared_twice(e->g);
    if (twice) {
        o->v = WRONG;
        snprintf(o->what, sizeof o->what,
                 "%s in an attention compares what is computed outside too",
                 optab[twice->op].name);
        return;
    }
    if (w->bad) {
        o->v = UNFIT;
        snprintf(o->what, sizeof o->what, "%s", w->bad);
        return;
    }
    want_differences(w);
    o->apart = w->off / DIFFERENCES;
    if (o->apart > 1) {
        o->v = WRONG;
        snprintf(o->what, sizeof o->what, "differences are off by %.2g",
                 w->off);
    }
}

/* Does a model round to bf16 itself? */
static int rounds(const Graph *g)
{
    int yes = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        yes |=
            (n->op == Ocast && n->dt == Dbf16) || (n->body && rounds(n->body));
    }
    return yes;
}

/* In fp64 without few bits. */
static Want *exact(Exam *e, Graph *g)
{
    for (size_t i = 0; i < vec_len(e->want); i++)
        if (e->want[i]->ref->micro == micro_of(g))
            return e->want[i];
    Want *w = want_new(forever, g, NOISE64, SLACK, NULL);
    vec_push(forever, e->want, w);
    return w;
}

/* What a check's step should give. */
static Want *want_of(Exam *e, Check c)
{
    Graph *g = traced(e->file, c, RANKSall).g;
    const RecipeErrors *few = recipe_errors(g);
    Dtype real = opts_dtype(g->opts);

    if (real == Dbf16 || (real == Df32 && rounds(g)))
        return want_new(forever, g, NOISE16, SLACK16, few);
    if (real == Df32)
        return want_new(forever, g, NOISE32, few ? SLACK16 : SLACK, few);
    return few ? want_new(forever, g, NOISE64, SLACK16, few) : exact(e, g);
}

/* ---- plans --------------------------------------------------------------- */

static Plan *read_plan(FILE *f, const char *name)
{
    fseek(f, 0, SEEK_END);
    size_t len = (size_t)ftell(f);
    char *text = alloc(forever, len + 1);

    rewind(f);
    if (fread(text, 1, len, f) != len)
        err(NULL, "cannot read a temporary file");
    return plan_parse(forever, text, len, name);
}

/* Programs that do not run do nothing: there is less to compile. Buffers still
 * say which one they are of. */
static void keep_step(Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].nprog; i++) {
            Program *x = &p->role[r].prog[i];
            if (x->kind == PGeval || x->kind == PGforward)
                x->nphase = x->nslot = x->ninstr = x->nend = 0;
        }
}

static int calls_it(const Program *g, const char *kernel)
{
    for (int i = 0; i < g->ninstr; i++)
        if (g->instr[i].kernel && !strcmp(g->instr[i].kernel, kernel))
            return 1;
    return 0;
}

static void keep_kernels(Plan *p)
{
    int n = 0;

    for (int k = 0; k < p->nkernel; k++) {
        int used = 0;
        for (int r = 0; r < p->nrole && !used; r++)
            for (int i = 0; i < p->role[r].nprog && !used; i++)
                used = calls_it(&p->role[r].prog[i], p->kernel[k].name);
        if (used)
            p->kernel[n++] = p->kernel[k];
    }
    p->nkernel = n;
}

/* A fold that a model cannot have is no test; the message says which. */
static int no_such_fold(Check c, const Outcome *o)
{
    return o->v == REFUSED && strstr(checktab[c].keys, "fold.") &&
           strstr(o->what, "fold.");
}

/* The plan of a check, or null; its outcome says why. */
static Plan *plan_apart(const Exam *e, Check c, Ranks ranks, Outcome *o)
{
    Making m = { e->file, c, ranks, tmpfile() };
    Plan *p = NULL;

    if (!m.out)
        err(NULL, "no temporary file");
    apart(make_plan, &m, CPUSECONDS, o);
    if (o->v == NOTRUN) {
        o->v = FINE;
        p = read_plan(m.out, e->file);
        keep_step(p);
        keep_kernels(p);
    } else if (no_such_fold(c, o)) {
        o->v = UNFIT;
    }
    fclose(m.out);
    return p;
}

/* ---- running ------------------------------------------------------------- */

static double **results(const Want *w, Exec *x)
{
    double **v = alloc(forever, (vec_len(w->v) + 1) * sizeof *v);

    for (size_t i = 0; i < vec_len(w->v); i++)
        v[i] = step_result(x, &w->v[i]);
    return v;
}

static int on_gpu(Check c)
{
    return strstr(checktab[c].keys, "target=cuda") != NULL;
}

/* Where there is no GPU, a plan for one is all. */
static int runs(Check c)
{
    How how = checktab[c].how;

    return (how == NUMBERS || how == BITS) && (!on_gpu(c) || gpu_count());
}

/* By a recipe of few bits in fp64 a fold, or a GPU, gives what one rank of the
 * host does: roundings of fp64 change nothing that is rounded to few bits.
 * Null: another check, or one of the same keys. */
static Want *want_of_one_rank(Exam *e, Check c)
{
    Graph *g = traced(e->file, c, RANKSone).g;
    const RecipeErrors *few = recipe_errors(g);
    const char *keys = checktab[c].keys;
    Outcome o = { 0 };

    if (!few || opts_dtype(g->opts) != Df64 ||
        (!strstr(keys, "fold.") && !strstr(keys, "train.") && !on_gpu(c)))
        return NULL;
    for (size_t i = 0; i < vec_len(e->one); i++)
        if (e->one[i].recipe == few && e->one[i].w->ref->micro == micro_of(g))
            return e->one[i].w;
    OneRank one = { few, want_new(forever, g, NOISE64, SLACK, NULL) };
    Plan *p = plan_apart(e, c, RANKSone, &o);
    if (!p)
        return NULL;
    Exec *x = step_run(e->g, p);
    double **v = results(one.w, x);
    for (size_t i = 0; i < vec_len(one.w->v); i++)
        if (v[i])
            one.w->v[i].v = v[i];
    exec_close(x);
    vec_push(forever, e->one, one);
    return one.w;
}

static void run(Exam *e, Check c)
{
    Outcome *o = &e->r->o[c];
    Want *w = want_of_one_rank(e, c);

    w = w ? w : want_of(e, c);
    if (w->bad) {
        o->v = UNFIT;
        snprintf(o->what, sizeof o->what, "%s", w->bad);
        return;
    }
    setenv("PLEAT_THREADS", c == CKthreads ? "3" : "1", 1);
    Exec *x = step_run(e->g, e->plan[c]);
    if (c == CKhost)
        e->host = results(w, x);
    if (checktab[c].how == NUMBERS)
        step_compare(w, x, o);
    else if (e->host)
        step_equal(w, x, e->host, o);
    exec_close(x);
}

static void run_all(Exam *e)
{
    Plan *all[NCHECK];
    size_t n = 0;

    for (int c = CKhost; c < NCHECK; c++) {
        if (!(e->which >> c & 1))
            continue;
        e->r->now = (Check)c;
        e->plan[c] = plan_apart(e, (Check)c, RANKSall, &e->r->o[c]);
        if (e->plan[c] && e->want && runs((Check)c) && !on_gpu((Check)c))
            all[n++] = e->plan[c];
    }
    if (n)
        share_kernels(all, n);
    for (int c = CKhost; c < NCHECK; c++) {
        e->r->now = (Check)c;
        if (e->plan[c] && e->want && runs((Check)c))
            run(e, (Check)c);
    }
}

/* ---- a model ------------------------------------------------------------- */

static void try_trace(void *ctx)
{
    const Exam *e = ctx;

    traced(e->file, CKhost, RANKSall);
}

static void look_at(void *ctx)
{
    Exam *e = ctx;

    e->r->now = CKreference;
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
