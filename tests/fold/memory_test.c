/* memory_test: where buffers lie never changes a bit. Each model runs a few
 * steps as planned, and again
 *
 *   poisoned   all bytes that the plan calls dead are filled with 0xff (NaN)
 *              the moment they die, and everything before the first step
 *   apart      every buffer in a place of its own
 *   mirrored   what lay lowest lies highest
 *   stored     no result in place of an operand
 *
 * and every loss, parameter, moment and state must be the same bits. The first
 * is done by steps that poison, put behind each step of the plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/lives.h"
#include "../unit/tensors.h"

enum { STEPS = 2, ALIGN = 256 };

static const char poison_text[] =
    "void poison(void *const *buf, const int64_t *iv, int64_t lo, int64_t hi)\n"
    "{\n"
    "    char *p = buf[0];\n"
    "    (void)iv;\n"
    "    for (int64_t i = lo; i < hi; i++)\n"
    "        p[i] = -1;\n"
    "}\n";

static int failed;

/* ---- inputs -------------------------------------------------------------- */

typedef struct Batch {
    const Mesh *mesh;
    int64_t step;
} Batch;
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

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { mix64((uint64_t)t->name[0], (uint64_t)(b->step * 64 + micro)),
               dst };

    if (t->dt != Di32)
        err(NULL, "input %s is not i32", t->name);
    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

/* ---- plans --------------------------------------------------------------- */

static void lower_apart(Graph *g, Group *k, Arena *a)
{
    T_host.lower(g, k, a);
    if (k->fam != FAMcomm)
        k->ninplace = 0;
}

static Plan *make_plan(const char *model, const char *const *keys, int inplace)
{
    Opts *o = opts_new(forever);
    Target *T = alloc(forever, sizeof *T);

    for (; *keys; keys++) {
        size_t n = strcspn(*keys, "=");
        opts_set(o, internn(*keys, n), intern(*keys + n + 1), NULL);
    }
    *T = T_host;
    if (!inplace)
        T->lower = lower_apart;
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, T, &co);
}

/* A copy whose only role may be changed. */
static Plan *copy_plan(const Plan *p)
{
    Plan *q = alloc(forever, sizeof *q);
    Role *r = alloc(forever, sizeof *r);

    *q = *p;
    *r = p->role[0];
    q->role = r;
    r->buf = alloc(forever, sizeof *r->buf * (size_t)r->nbuf);
    memcpy(r->buf, p->role[0].buf, sizeof *r->buf * (size_t)r->nbuf);
    return q;
}

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* What a join makes parts of a buffer moves with it. */
static void move_parts(const Role *was, Role *r)
{
    for (int g = 0; g < r->nprog; g++)
        for (int k = 0; k < r->prog[g].ninstr; k++) {
            const Instr *s = &r->prog[g].instr[k];
            for (int i = 1; i < s->nbuf && s->kind == Ijoin; i++)
                r->buf[s->buf[i]].offset = r->buf[s->buf[0]].offset +
                                           was->buf[s->buf[i]].offset -
                                           was->buf[s->buf[0]].offset;
        }
}

static Plan *apart(const Plan *p)
{
    Plan *q = copy_plan(p);
    Role *r = q->role;

    r->arena = r->persist;
    for (int i = 0; i < r->nbuf; i++) {
        if (r->buf[i].prog < 0)
            continue;
        r->buf[i].offset = r->arena;
        r->arena += aligned(r->buf[i].bytes);
    }
    move_parts(p->role, r);
    return q;
}

static Plan *mirrored(const Plan *p)
{
    Plan *q = copy_plan(p);
    Role *r = q->role;

    r->arena = aligned(r->arena);
    for (int i = 0; i < r->nbuf; i++) {
        Buf *b = &r->buf[i];
        if (b->prog >= 0)
            b->offset = r->persist + r->arena - b->offset - aligned(b->bytes);
    }
    move_parts(p->role, r);
    return q;
}

/* ---- a plan that poisons ------------------------------------------------- */

typedef struct Poison {
    Plan *p;
    Buf *buf; /* vecs */
    Instr *step;
    Phase *phase;
    int steps; /* that poison */
} Poison;

static void add_poison(Poison *x, int prog, const LastUse *d)
{
    int at = (int)vec_len(x->step);
    Buf b = { .name = "dead",
              .cls = Bscratch,
              .dt = Du8,
              .offset = d->offset,
              .bytes = d->bytes,
              .prog = prog,
              .born = at,
              .dies = at };
    Instr s = { .kind = Ikernel,
                .kernel = "poison",
                .label = "poison",
                .nbuf = 1,
                .launch = { .items = d->bytes, .grain = 1 << 20 } };

    s.buf = alloc(forever, sizeof *s.buf);
    s.buf[0] = (int)vec_len(x->buf);
    vec_push(forever, x->buf, b);
    vec_push(forever, x->step, s);
    x->steps++;
}

static void add_deaths(Poison *x, int prog, const LastUse *d, int from, int to,
                       int last)
{
    for (size_t i = 0; i < vec_len(d); i++)
        if (d[i].instr >= from && d[i].instr < to && d[i].last == last &&
            d[i].bytes)
            add_poison(x, prog, &d[i]);
}

static void end_phase(Poison *x, Phase f, int first, int64_t repeat)
{
    f.first = first;
    f.n = (int)vec_len(x->step) - first;
    f.repeat = repeat;
    vec_push(forever, x->phase, f);
}

static Program poison_program(Poison *x, int g)
{
    Program p = x->p->role[0].prog[g];
    const LastUse *d = deaths(forever, x->p->role, g);

    const Phase poison = { .name = "poison", .reg = REGpre };
    x->step = NULL;
    x->phase = NULL;
    add_deaths(x, g, d, -1, 0, 0);
    end_phase(x, poison, 0, 1);
    for (int f = 0; f < p.nphase; f++) {
        const Phase *h = &p.phase[f];
        int first = (int)vec_len(x->step), end = h->first + h->n;
        for (int s = h->first; s < end; s++) {
            vec_push(forever, x->step, p.instr[s]);
            add_deaths(x, g, d, s, s + 1, 0);
        }
        end_phase(x, *h, first, h->repeat);
        first = (int)vec_len(x->step);
        add_deaths(x, g, d, h->first, end, 1);
        end_phase(x, poison, first, 1);
    }
    p.instr = x->step;
    p.ninstr = (int)vec_len(x->step);
    p.phase = x->phase;
    p.nphase = (int)vec_len(x->phase);
    return p;
}

static Plan *poisoned(const Plan *p)
{
    Poison x = { .p = copy_plan(p) };
    Role *r = x.p->role;
    Program *prog = alloc(forever, sizeof *prog * (size_t)r->nprog);

    for (int i = 0; i < r->nbuf; i++)
        vec_push(forever, x.buf, r->buf[i]);
    for (int g = 0; g < r->nprog; g++)
        prog[g] = poison_program(&x, g);
    r->prog = prog;
    r->buf = x.buf;
    r->nbuf = (int)vec_len(x.buf);
    if (x.steps < 50)
        die("only %d steps poison", x.steps);
    return x.p;
}

/* ---- running ------------------------------------------------------------- */

typedef struct Result {
    double loss[STEPS];
    int n;
    double **v;
    int64_t *len;
} Result;

static void read_tensors(Exec *x, Result *w)
{
    const Role *r = exec_role(x, 0);

    w->v = alloc(forever, (size_t)r->ntensor * sizeof *w->v);
    w->len = alloc(forever, (size_t)r->ntensor * sizeof *w->len);
    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *t = &r->tensor[i];
        if (t->kind == TKinput || t->kind == TKoutput)
            continue;
        int64_t n = exec_read(x, t->name, 0, NULL, 0);
        w->v[w->n] = alloc(forever, (size_t)(n + 1) * sizeof(double));
        exec_read(x, t->name, 0, w->v[w->n], n);
        w->len[w->n++] = n;
    }
}

static Result train(const Plan *p)
{
    Result w = { .n = 0 };
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        StepValues block = { 1e-3, 1 - pow(0.9, t + 1), 1 - pow(0.95, t + 1),
                             t };
        Batch batch = { p->mesh, t };
        Feed f = { fill, &batch };
        exec_exact(x, PGstep, &block, &f);
        w.loss[t] = exec_result(x, RESULTloss);
    }
    read_tensors(x, &w);
    exec_close(x);
    return w;
}

static void compare(const char *what, const char *how, const Result *x,
                    const Result *y)
{
    int ok = x->n == y->n && x->n > 10 && isfinite(y->loss[STEPS - 1]) &&
             !memcmp(x->loss, y->loss, sizeof x->loss);

    for (int i = 0; i < x->n && ok; i++)
        ok = x->len[i] == y->len[i] &&
             !memcmp(x->v[i], y->v[i], (size_t)x->len[i] * sizeof(double));
    failed += !ok;
    printf("%sok - %s %s: losses %.9g, as planned %.9g\n", ok ? "" : "not ",
           what, how, x->loss[STEPS - 1], y->loss[STEPS - 1]);
    fflush(stdout);
}

/* ---- all models ---------------------------------------------------------- */

typedef struct Case {
    const char *model, *keys[6];
} Case;

/* The first FEW always, all of them with PLEAT_ALL=1. */
/* clang-format off */
static const Case cases[] = {
    {"tests/hf/mixtral-aux.lua", {"precision.policy=fp32", "train.batch=8"}},
    {"tests/hf/mixtral-aux.lua", {"precision.policy=fp32", "train.batch=16",
                                  "fold.dp=2", "fold.tp=2", "fold.ep=2"}},
    {"tests/models/expert_choice.lua",
     {"precision.policy=fp32", "train.batch=4"}},
    {"tests/hf/dsv3.lua", {"precision.policy=bf16", "train.batch=8"}},
    {"tests/hf/qwen3.lua", {"precision.policy=bf16", "train.batch=8"}},
    {"tests/models/hash.lua", {"precision.policy=fp64", "train.batch=8"}},
    {"tests/hf/mixtral-aux.lua", {"precision.policy=fp32", "train.batch=2"}},
};
/* clang-format on */

enum { NCASE = sizeof cases / sizeof *cases, FEW = 3, HOWS = 5 };

static Plan *plans[NCASE * HOWS];
static const char *const hows[HOWS] = { "as planned", "poisoned", "apart",
                                        "mirrored", "stored" };

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Kernel *)a)->name, ((const Kernel *)b)->name);
}

/* All plans get all kernels, so that one text is compiled. */
static void share_kernels(int nplan)
{
    Kernel *all = NULL;
    size_t n = 0;

    vec_push(forever, all, ((Kernel){ "poison", poison_text }));
    for (int i = 0; i < nplan; i++)
        for (int k = 0; k < plans[i]->nkernel; k++)
            vec_push(forever, all, plans[i]->kernel[k]);
    qsort(all, vec_len(all), sizeof *all, by_name);
    for (size_t i = 0; i < vec_len(all); i++)
        if (i == 0 || strcmp(all[i].name, all[n - 1].name))
            all[n++] = all[i];
    for (int i = 0; i < nplan; i++) {
        plans[i]->kernel = all;
        plans[i]->nkernel = (int)n;
    }
}

int main(void)
{
    int n = getenv("PLEAT_ALL") ? NCASE : FEW;

    for (int i = 0; i < n; i++) {
        Plan *p = make_plan(cases[i].model, cases[i].keys, 1);
        const char *why = lives_wrong(forever, p->role);
        if (why)
            die("%s: %s", cases[i].model, why);
        Plan **to = &plans[i * HOWS];
        to[0] = p;
        to[1] = poisoned(p);
        to[2] = apart(p);
        to[3] = mirrored(p);
        to[4] = make_plan(cases[i].model, cases[i].keys, 0);
    }
    share_kernels(n * HOWS);
    for (int i = 0; i < n; i++) {
        Result want = train(plans[i * HOWS]);
        for (int k = 1; k < HOWS; k++) {
            Result w = train(plans[i * HOWS + k]);
            compare(strf(forever, "%s %s", cases[i].model, cases[i].keys[1]),
                    hows[k], &w, &want);
        }
    }
    return failed != 0;
}
