/* capacity_test: which pairs an expert with limited room takes. A model small
 * enough to be worked out in plain loops (tests/models/room.lua) runs in folds;
 * its loss, the share dropped and every gradient are compared in fp64. With few
 * words in the vocabulary many weights are equal, so ties are met. One case
 * sends all tokens to one expert: others get nothing, and gradients that are
 * exactly 0. Then memory: rows that cannot come take no room. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "../unit/share.h"
#include "../unit/tensors.h"

enum { MAXTOKEN = 21, H = 2, E = 4, V = 8, MICRO = 8, MAXK = 2 };

/* Of a micro-batch: as the model says, and odd, so that nothing divides it. */
static const struct {
    int batch, seq;
} shapes[] = { { 2, 8 }, { 3, 7 } };
static int tokens;

/* Sums of at most MAXTOKEN * MICRO terms of size about 1. */
static const double TOL = 1e-12;

typedef struct Setting {
    const char *policy;
    double factor;   /* 0: dropless */
    int first, idle; /* by position; all but expert 2 get none */
} Setting;

/* clang-format off */
static const Setting settings[] = {
    { "dropless", 0, 0, 0 },      { "dropless", 0, 0, 1 },
    { "capacity", 1, 0, 0 },      { "capacity", 1, 1, 0 },
    { "capacity", 0.5, 0, 0 },    { "capacity", 0.01, 0, 0 },
    { "capacity", 0.01, 1, 0 },   { "capacity", 100, 0, 0 },
    { "capacity", 1, 0, 1 },      { "padded", 1, 0, 0 },
    { "padded", 0.6, 1, 0 },      { "padded", 100, 0, 0 },
    { "padded", 0.01, 0, 0 },     { "padded", 1, 0, 1 },
};
/* clang-format on */

static const char *const folds[] = {
    "world=1",
    "fold.tp=2",
    "fold.cp=2 fold.dp=2 fold.ep=2",
    "fold.tp=2 fold.dp=4 fold.ep=4",
    "fold.tp=2 fold.cp=2 fold.dp=2 fold.ep=4 fold.etp=2",
};

static int failed;

static int id_at(int64_t i)
{
    return (int)(mix64(3, (uint64_t)i) % V);
}

/* ---- by hand ------------------------------------------------------------- */

typedef struct Params {
    double logits[V][E], bias[E], x[V][H], w[E][H], s[MAXTOKEN];
} Params;

typedef struct Token {
    int e[MAXK];
    double p[E];
    int kept[MAXK];
} Token;

static void softmax(const Params *p, int id, double *out)
{
    double top = -INFINITY, sum = 0;

    for (int e = 0; e < E; e++)
        top = fmax(top, p->logits[id][e] + p->bias[e]);
    for (int e = 0; e < E; e++)
        sum += out[e] = exp(p->logits[id][e] + p->bias[e] - top);
    for (int e = 0; e < E; e++)
        out[e] /= sum;
}

static void choose(Token *t, int k)
{
    for (int c = 0; c < k; c++) {
        t->e[c] = -1;
        for (int e = 0; e < E; e++)
            if ((c == 0 || e != t->e[0]) &&
                (t->e[c] < 0 || t->p[e] > t->p[t->e[c]]))
                t->e[c] = e;
    }
}

/* Again and again the best pair that is left, until there is no room. */
static void fill_experts(Token *t, int k, int room, int first)
{
    for (int e = 0; e < E; e++)
        for (int r = 0; r < room; r++) {
            int *best = NULL;
            double weight = 0;
            for (int i = 0; i < tokens; i++)
                for (int c = 0; c < k; c++)
                    if (t[i].e[c] == e && !t[i].kept[c] &&
                        (!best || (!first && t[i].p[e] > weight))) {
                        best = &t[i].kept[c];
                        weight = t[i].p[e];
                    }
            if (best)
                *best = 1;
        }
}

static void add_token(const Params *p, const Token *t, int at, int id, int k,
                      Params *d, double *loss)
{
    double dp[E] = { 0 }, mean = 0;

    for (int c = 0; c < k; c++) {
        int e = t->e[c];
        double y = 0;
        if (!t->kept[c])
            continue;
        for (int h = 0; h < H; h++) {
            y += p->x[id][h] * p->w[e][h];
            d->x[id][h] += t->p[e] * p->w[e][h] * p->s[at];
            d->w[e][h] += t->p[e] * p->x[id][h] * p->s[at];
        }
        d->s[at] += t->p[e] * y;
        dp[e] = y * p->s[at];
        mean += dp[e] * t->p[e];
        *loss += t->p[e] * y * p->s[at];
    }
    for (int e = 0; e < E; e++) {
        d->logits[id][e] += t->p[e] * (dp[e] - mean);
        d->bias[e] += t->p[e] * (dp[e] - mean);
    }
}

/* Sums over all micro-batches; dropped: pairs. */
static double by_hand(const Params *p, const Setting *s, int k, Params *d,
                      int *dropped)
{
    double loss = 0;
    int room =
        s->factor > 0
            ? (int)fmin(tokens,
                        fmax(1, ceil((double)(tokens * k) / E * s->factor)))
            : tokens;

    memset(d, 0, sizeof *d);
    *dropped = 0;
    for (int m = 0; m < MICRO; m++) {
        Token t[MAXTOKEN] = { 0 };
        for (int i = 0; i < tokens; i++) {
            softmax(p, id_at(m * tokens + i), t[i].p);
            choose(&t[i], k);
        }
        fill_experts(t, k, room, s->first);
        for (int i = 0; i < tokens; i++) {
            add_token(p, &t[i], i, id_at(m * tokens + i), k, d, &loss);
            for (int c = 0; c < k; c++)
                *dropped += !t[i].kept[c];
        }
    }
    return loss;
}

/* ---- by the compiler ----------------------------------------------------- */

typedef struct Fill {
    int64_t from;
    int32_t *dst;
} Fill;

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++)
        f->dst[local + i] = id_at(f->from + global + i);
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    Fill f = { micro * tensor_elems(t), dst };

    tensor_runs(self, t, rank, fill_run, &f);
}

static Plan *plan_of(const char *model, const char *fold, const Setting *s)
{
    Opts *o = opts_new(forever);
    char *next, *word = strtok_r(strf(forever, "%s", fold), " ", &next);

    for (; word; word = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(word, "=");
        opts_set(o, internn(word, n), intern(word + n + 1), NULL);
    }
    opts_set(o, "precision", "fp64", NULL);
    opts_set(o, "route.policy", s->policy, NULL);
    if (s->factor > 0)
        opts_set(o, "route.factor", strf(forever, "%g", s->factor), NULL);
    if (s->first)
        opts_set(o, "route.drop", "position", NULL);
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

/* clang-format off */
static const struct { const char *name; size_t at, n; } fields[] = {
    { "logits", offsetof(Params, logits), V * E },
    { "bias", offsetof(Params, bias), E },
    { "x", offsetof(Params, x), V * H }, { "w", offsetof(Params, w), E * H },
    { "s", offsetof(Params, s), 0 },
};
/* clang-format on */
enum { NFIELD = sizeof fields / sizeof *fields };

static int64_t field_n(int i)
{
    return fields[i].n ? (int64_t)fields[i].n : tokens; /* of s */
}

static double *field(Params *p, int i)
{
    return (double *)(void *)((char *)p + fields[i].at);
}

static void read_all(Exec *x, const char *prefix, const char *scope, Params *p)
{
    for (int i = 0; i < NFIELD; i++)
        if (exec_read(x,
                      strf(forever, "%s%s.%s", prefix, scope, fields[i].name),
                      0, field(p, i), field_n(i)) != field_n(i))
            die("no %s%s.%s", prefix, scope, fields[i].name);
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want);

    return d <= a ? a : d;
}

/* The largest difference of loss, share dropped and gradients. */
static double compare(Exec *x, const Setting *s, const char *scope, int k,
                      Params *before, double *loss, int *zeros)
{
    Params want, got;
    int dropped;
    double most = 0, share;

    *loss += by_hand(before, s, k, &want, &dropped) / MICRO;
    if (s->factor > 0) {
        share = exec_named(x, strf(forever, "metric.%s.dropped", scope));
        most = worse(most, share, dropped / (double)(MICRO * tokens * k));
    }
    read_all(x, "optim.m.", scope, &got); /* (1 - beta1) gradient */
    for (int i = 0; i < NFIELD; i++)
        for (int64_t j = 0; j < field_n(i); j++)
            most = worse(most, field(&got, i)[j] / (1 - 0.9),
                         field(&want, i)[j] / MICRO);
    for (int e = 0; s->idle && e < E; e++)
        for (int h = 0; h < H; h++)
            *zeros += e != 2 && k == 1 ? got.w[e][h] == 0 : 0;
    return most;
}

static void starve(Exec *x, const char *name)
{
    double bias[E] = { -1e9, -1e9, 0, -1e9 };

    exec_write(x, name, bias, E);
}

static void run_case(const char *fold, const Setting *s, Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    StepValues b = { 1e-3, 0.1, 0.05, 0 };
    Feed f = { fill, p->mesh };
    Params one, two;
    double loss = 0, most;
    int zeros = 0;

    exec_run(x, PGinit, NULL, NULL);
    if (s->idle) {
        starve(x, "one.bias");
        starve(x, "two.bias");
    }
    read_all(x, "", "one", &one);
    read_all(x, "", "two", &two);
    exec_exact(x, PGstep, &b, &f);
    most = fmax(compare(x, s, "one", 1, &one, &loss, &zeros),
                compare(x, s, "two", 2, &two, &loss, &zeros));
    most = worse(most, exec_result(x, RESULTloss), loss);
    exec_close(x);
    int ok = most <= TOL && (!s->idle || zeros == (E - 1) * H);
    failed += !ok;
    printf("%sok - %s factor %g%s%s, %s: difference %.2g, at most %.0e\n",
           ok ? "" : "not ", s->policy, s->factor,
           s->first ? ", by position" : "", s->idle ? ", idle experts" : "",
           fold, most, TOL);
    fflush(stdout);
}

enum {
    NS = sizeof settings / sizeof *settings,
    NF = sizeof folds / sizeof *folds,
    NSHAPE = sizeof shapes / sizeof *shapes
};

/* All settings in all folds, for tokens of one shape after the other. */
static void run_cases(void)
{
    Plan *p[NSHAPE][NS * NF];
    char *fold[NSHAPE][NF];

    for (int k = 0; k < NSHAPE; k++)
        for (int i = 0; i < NF; i++)
            fold[k][i] =
                strf(forever, "%s axes.batch=%d axes.seq=%d train.batch=%d",
                     folds[i], shapes[k].batch, shapes[k].seq,
                     shapes[k].batch * MICRO);
    for (int k = 0; k < NSHAPE; k++)
        for (int i = 0; i < NS * NF; i++)
            p[k][i] = plan_of("tests/models/room.lua", fold[k][i % NF],
                              &settings[i / NF]);
    share_kernels(p[0], NSHAPE * NS * NF);
    for (int k = 0; k < NSHAPE; k++) {
        tokens = shapes[k].batch * shapes[k].seq;
        for (int i = 0; i < NS * NF; i++)
            run_case(fold[k][i % NF], &settings[i / NF], p[k][i]);
    }
}

/* ---- forced balance ------------------------------------------------------ */

/* A router that wants one expert only, and room for no more than equal shares:
 * nothing is dropped. */
static void forced(const char *fold)
{
    Setting s = { "capacity", 1, 0, 1 };
    Plan *p = plan_of("tests/models/room.lua",
                      strf(forever, "%s route.balance=forced", fold), &s);
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    StepValues b = { 1e-3, 0.1, 0.05, 0 };
    Feed f = { fill, p->mesh };

    exec_run(x, PGinit, NULL, NULL);
    starve(x, "one.bias");
    starve(x, "two.bias");
    exec_exact(x, PGstep, &b, &f);
    double gone = exec_named(x, "metric.one.dropped") +
                  exec_named(x, "metric.two.dropped");
    exec_close(x);
    failed += gone != 0;
    printf("%sok - forced balance, %s: %g dropped\n", gone == 0 ? "" : "not ",
           fold, gone);
}

/* ---- memory -------------------------------------------------------------- */

static int64_t transient(const char *fold, const Setting *s)
{
    const Role *r = &plan_of("models/tiny.lua", fold, s)->role[0];

    return r->prog[role_prog(r, PGstep)].transient;
}

static void less_memory(const char *fold)
{
    Setting all = { "dropless", 0, 0, 0 }, half = { "capacity", 0.5, 0, 0 };
    int64_t a = transient(fold, &all), h = transient(fold, &half);

    failed += h >= a;
    printf("%sok - models/tiny.lua %s: capacity 0.5 takes %.2f MiB, dropless "
           "%.2f\n",
           h < a ? "" : "not ", fold, (double)h / (1 << 20),
           (double)a / (1 << 20));
}

int main(void)
{
    run_cases();
    forced("world=1");
    forced("fold.tp=2 fold.cp=2 fold.dp=2 fold.ep=4");
    less_memory("world=1");
    less_memory("fold.dp=4 fold.ep=4");
    return failed != 0;
}
