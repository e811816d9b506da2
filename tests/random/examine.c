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

typedef struct Exam {
    const char *file;
    unsigned which;
    Report *r;
    Graph *g;    /* the model, traced for fp64 */
    Want **want; /* vec: of fp64, by number of micro-batches */
    Plan *plan[NCHECK];
    double **host; /* its results, as want[0] lists them */
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

    e->g = traced(e->file, CKhost).g;
    note_ops(e->r, e->g);
    Want *w = want_new(forever, e->g, NOISE64, SLACK);
    vec_push(forever, e->want, w);
    o->v = FINE;
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

/* What a check's step should give. */
static Want *want_of(Exam *e, Check c)
{
    Trace t = traced(e->file, c);

    int fp32 = strstr(checktab[c].keys, "precision=fp32") != NULL;

    if (strstr(checktab[c].keys, "precision=bf16") || (fp32 && rounds(t.g)))
        return want_new(forever, t.g, NOISE16, SLACK16);
    if (fp32)
        return want_new(forever, t.g, NOISE32, SLACK);
    for (size_t i = 0; i < vec_len(e->want); i++)
        if (e->want[i]->ref->micro == micro_of(t.g))
            return e->want[i];
    Want *w = want_new(forever, t.g, NOISE64, SLACK);
    vec_push(forever, e->want, w);
    return w;
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

/* Of all programs only those that run: there is less to compile. */
static void keep_step(Plan *p)
{
    for (int r = 0; r < p->nrole; r++) {
        Role *x = &p->role[r];
        int n = 0;
        for (int i = 0; i < x->nprog; i++)
            if (x->prog[i].kind != PGeval && x->prog[i].kind != PGforward)
                x->prog[n++] = x->prog[i];
        x->nprog = n;
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
static Plan *plan_apart(Exam *e, Check c)
{
    Making m = { e->file, c, tmpfile() };
    Outcome *o = &e->r->o[c];
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

static void run(Exam *e, Check c)
{
    Outcome *o = &e->r->o[c];
    Want *w = want_of(e, c);

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
        e->plan[c] = plan_apart(e, (Check)c);
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

    traced(e->file, CKhost);
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
