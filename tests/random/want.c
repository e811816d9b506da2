/* want.c: the reference's numbers of one step. How far others may be from them
 * comes from the reference too: it is worked out again with noise in every
 * result, and what that moves a tensor is what rounding may. */
#include <math.h>
#include <string.h>

#include "want.h"
#include "../../ir/settings/keys.h"

enum { NOISY = 3, IDS = 97 };

/* Relative error of the few roundings between the values of losses and the
 * step's loss, which are fp32 in every precision below fp64. */
static const double TOTALS = 0x1p-22;

/* Two numbers that a decision compares are nearer than this, over the largest
 * of their tensors: rounding may decide otherwise. */
static const double NEAR = 1e-9;

/* ---- few bits ------------------------------------------------------------ */

/* Half a last place over the least number of a binade; half of the least number
 * over the largest, where scales may be half of what that allows; with a scale
 * of 1, the delayed one of a first step, half of the least. Rounding at random
 * errs by twice as much. e2m1: 4 to 6, 0 to 1/2 of 6, which a Hadamard matrix
 * may have made of numbers a fourth as large. */
struct RecipeErrors {
    FewBits value, gradient;
};
#define E4M3               \
    {                      \
        0x1p-4, 0x1p-17, 0 \
    }
static const RecipeErrors errors[] = {
    [RECIPEblockwise] = { E4M3, E4M3 },
    [RECIPEtensor] = { E4M3, { 0x1p-3, 0x1p-32, 0 } },
    [RECIPEdelayed] = { { 0x1p-4, 0, 0x1p-10 }, { 0x1p-3, 0, 0x1p-17 } },
    [RECIPEmxfp8] = { E4M3, E4M3 },
    [RECIPEnvfp4] = { { 0x1p-2, 1 / 6., 0 }, { 0x1p-1, 1 / 3., 0 } },
};

const RecipeErrors *recipe_errors(const Graph *g)
{
    enum scaling_recipe r = opts_scaling_recipe(g->opts);

    if ((int)r >= 0)
        return &errors[r];
    return opts_real_dtype(g->opts) == REALfp8 ? &errors[RECIPEblockwise]
                                               : NULL;
}

/* ---- leaves -------------------------------------------------------------- */

static uint64_t hash(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = mix64(h, (unsigned char)*s);
    return h;
}

/* In [0, 1). */
static double draw(uint64_t h, int64_t i)
{
    h = mix64(h, (uint64_t)i);
    return ref_uniform(&h);
}

/* Whole in bf16, so that all precisions start from the same numbers. */
static double rounded(double v)
{
    return (double)bf16_to_f32(f32_to_bf16((float)v));
}

/* Of its initial value's size. What should all be one number differs a little,
 * else many values would be equal. */
double leaf_value(const Graph *g, const char *path, int64_t i)
{
    const Param *p = g_param((Graph *)(uintptr_t)g, path);
    uint64_t h = hash(11, path);
    double u = draw(h, i), size = p->arg;

    if (p->init == INITnormal)
        return rounded(size * sqrt(-2 * log(1 - u)) *
                       cos(2 * acos(-1) * draw(h + 1, i)));
    if (p->init == INITuniform)
        return rounded(size * (2 * u - 1));
    return rounded(size + 0.2 * (u - 0.5));
}

int64_t vocabulary(const Graph *g)
{
    for (int i = 0; i < g->naxis; i++)
        if (!strcmp(g->axis[i]->name, "vocab") && g->axis[i]->n)
            return g->axis[i]->n;
    return IDS;
}

/* One label of six says that there is none. */
double input_value(const char *name, Dtype dt, int64_t vocab, int64_t step,
                   int64_t i)
{
    uint64_t h = hash((uint64_t)step + 7, name);
    double u = draw(h, i);

    if (!strcmp(name, "labels") && draw(h + 1, i) < 1.0 / 6)
        return -1;
    switch (dtypes[dt].kind) {
    case 'i': return floor(u * (double)vocab);
    case 'b': return u < 0.5;
    default: return rounded(3 * u - 1.5);
    }
}

int64_t micro_of(const Graph *g)
{
    const Axis *a = g_role(g, ROLEbatch);
    int64_t batch = a && a->n ? a->n : 1;

    return opts_given(g->opts, "train.batch")
               ? opts_int(g->opts, "train.batch") / batch
               : 1;
}

static void fill_leaves(Ref *r)
{
    int64_t vocab = vocabulary(r->g);

    for (size_t k = 0; k < vec_len(r->val); k++) {
        Val *x = &r->val[k];
        const Node *n = x->n;
        for (int64_t i = 0; i < x->elems; i++)
            if (n->op == Oparam || n->op == Ostate)
                x->v[i] = leaf_value(r->g, n_name(n), i);
            else if (n->op == Oinput)
                x->v[i] =
                    input_value(n->at.input.name, n->dt, vocab, r->step, i);
    }
}

/* ---- results ------------------------------------------------------------- */

static void add(Want *w, const char *kind, const char *prefix, const char *of,
                int64_t n)
{
    Arena *a = w->ref->a;
    Wanted x = { strf(a, "%s%s", prefix, of),
                 kind,
                 of,
                 n,
                 alloc(a, (size_t)(n + 1) * sizeof(double)),
                 0 };

    vec_push(a, w->v, x);
}

static const Val *val_of(const Ref *r, const Named *v, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return &r->val[v[i].at];
    return NULL;
}

static int wants(const Want *w, const char *kind, const char *of)
{
    for (size_t i = 0; i < vec_len(w->v); i++)
        if (!strcmp(w->v[i].kind, kind) && !strcmp(w->v[i].of, of))
            return 1;
    return 0;
}

static void list(Want *w)
{
    const Ref *r = w->ref;

    add(w, "loss", "", "loss", 1);
    for (int i = 0; i < r->nloss; i++)
        if (!wants(w, "loss", r->loss[i].name))
            add(w, "loss", "loss.", r->loss[i].name, 1);
    for (int i = 0; i < r->nmetric; i++)
        add(w, "metric", "metric.", r->metric[i].name, 1);
    for (int i = 0; i < r->nparam; i++)
        add(w, "gradient", "optim.m.", r->param[i].name,
            r->val[r->param[i].at].elems);
    for (int i = 0; i < r->nstate; i++)
        add(w, "state", "", r->state[i].name, r->val[r->state[i].at].elems);
}

static double named_loss(const Ref *r, const char *name)
{
    double sum = 0;

    if (!strcmp(name, "loss"))
        return r->total;
    for (int i = 0; i < r->nloss; i++)
        if (!strcmp(r->loss[i].name, name))
            sum += r->loss[i].sum;
    return sum;
}

static double metric(const Ref *r, const char *name)
{
    return val_of(r, r->metric, r->nmetric, name)->v[0];
}

/* A value that broadcasts to the state's axes. */
static void spread(const Ref *r, const Val *from, const Val *to, double *out)
{
    const Val *all[2] = { to, from };
    Walk w = walk_over(all, 1, all, 2);

    (void)r;
    do
        out[w.at[0]] = from->v[w.at[1]];
    while (walk_next(&w));
}

static void state_after(const Ref *r, const char *name, double *out)
{
    const Val *s = val_of(r, r->state, r->nstate, name);
    const Val *u = val_of(r, r->update, r->nupdate, name);

    spread(r, u ? u : s, s, out);
}

static void take(const Ref *r, const Wanted *x, double *out)
{
    if (!strcmp(x->kind, "loss"))
        *out = named_loss(r, x->of);
    else if (!strcmp(x->kind, "metric"))
        *out = metric(r, x->of);
    else if (!strcmp(x->kind, "state"))
        state_after(r, x->of, out);
    else
        memcpy(out, val_of(r, r->param, r->nparam, x->of)->d,
               (size_t)x->n * sizeof *out);
}

static int all_finite(const Want *w)
{
    for (size_t i = 0; i < vec_len(w->v); i++)
        for (int64_t k = 0; k < w->v[i].n; k++)
            if (!isfinite(w->v[i].v[k]) || fabs(w->v[i].v[k]) > 1e9)
                return 0;
    return 1;
}

/* ---- bounds -------------------------------------------------------------- */

static void run(Ref *r)
{
    ref_values(r);
    ref_gradients(r);
}

/* What noise has moved so far, of the operands of decisions. */
typedef struct Gaps {
    size_t n;
    double *was, *moved;
    int changed; /* a decision */
} Gaps;

static Gaps gaps_of(const Ref *r)
{
    size_t n = vec_len(r->gap), bytes = (n + 1) * sizeof(double);
    Gaps s = { n, alloc(r->a, bytes), alloc(r->a, bytes), 0 };

    if (n)
        memcpy(s.was, r->gap, n * sizeof *s.was);
    return s;
}

/* Operands are as results: rounding may move them `slack` times as far as noise
 * did. A few runs may by chance all leave a decision as it is that rounding
 * changes. */
static int may_change(const Gaps *s, double slack)
{
    int yes = s->changed;

    for (size_t i = 0; i < s->n; i++)
        yes |= s->moved[i] > 0 && fabs(s->was[i]) <= slack * s->moved[i];
    return yes;
}

/* The most that noise moved any element of a tensor. */
static void widen(Want *w, double noise, uint64_t seed, Gaps *s)
{
    Ref *r = w->ref;
    uint64_t was = r->decided;

    r->noise = noise;
    r->seed = seed;
    run(r);
    for (size_t i = 0; i < vec_len(w->v); i++) {
        Wanted *x = &w->v[i];
        double *v = alloc(r->a, (size_t)(x->n + 1) * sizeof *v);
        take(r, x, v);
        for (int64_t k = 0; k < x->n; k++)
            x->bound = fmax(x->bound, fabs(v[k] - x->v[k]));
    }
    s->changed |= r->decided != was;
    for (size_t i = 0; i < s->n && r->decided == was; i++)
        s->moved[i] = fmax(s->moved[i], fabs(r->gap[i] - s->was[i]));
    r->noise = 0;
    r->decided = was;
}

/* What a loss is added up from: the step's from all, weighted. */
static double loss_terms(const Ref *r, const char *name)
{
    int all = !strcmp(name, "loss");
    double sum = 0;

    for (int i = 0; i < r->nloss; i++)
        if (all || !strcmp(r->loss[i].name, name))
            sum += fabs(r->loss[i].sum *
                        (all ? r->val[r->loss[i].at].n->at.loss.weight : 1));
    return sum;
}

/* A few runs may by chance all move a single number little. What they move at
 * all is a result itself, whose own rounding is known; so is that of a constant
 * that a metric shows. */
static void own_rounding(Want *w, double noise)
{
    for (size_t i = 0; i < vec_len(w->v); i++) {
        Wanted *x = &w->v[i];
        int rounds = x->bound > 0 || !strcmp(x->kind, "metric");
        for (int64_t k = 0; rounds && k < x->n; k++)
            x->bound = fmax(x->bound, noise * fabs(x->v[k]));
        if (!strcmp(x->kind, "loss"))
            x->bound += fmin(noise, TOTALS) * loss_terms(w->ref, x->of);
    }
}

static double largest(const Wanted *x)
{
    double most = 0;

    for (int64_t k = 0; k < x->n; k++)
        most = fmax(most, fabs(x->v[k]));
    return most;
}

/* A gradient that is 0 but for rounding is held against the largest. */
static void zero_gradients(Want *w, double noise)
{
    double most = 0;

    for (size_t i = 0; i < vec_len(w->v); i++)
        if (!strcmp(w->v[i].kind, "gradient"))
            most = fmax(most, largest(&w->v[i]));
    for (size_t i = 0; i < vec_len(w->v); i++) {
        Wanted *x = &w->v[i];
        if (!strcmp(x->kind, "gradient") && largest(x) <= noise * most)
            x->bound = fmax(x->bound, noise * most);
    }
}

Want *want_new(Arena *a, Graph *g, double noise, double slack,
               const RecipeErrors *few_bits)
{
    Want *w = alloc(a, sizeof *w);
    Ref *r = w->ref = ref_new(a, g, micro_of(g));

    w->slack = slack;
    r->value = few_bits ? &few_bits->value : NULL;
    r->gradient = few_bits ? &few_bits->gradient : NULL;
    fill_leaves(r);
    run(r);
    list(w);
    for (size_t i = 0; i < vec_len(w->v); i++)
        take(r, &w->v[i], w->v[i].v);
    if (!all_finite(w))
        w->bad = "not finite";
    else if (r->margin < NEAR)
        w->bad = "a decision between nearly equal numbers";
    if (w->bad)
        return w;
    Gaps s = gaps_of(r);
    for (int i = 0; i < NOISY; i++)
        widen(w, noise, (uint64_t)i + 1, &s);
    own_rounding(w, noise);
    zero_gradients(w, noise);
    if ((noise > NEAR || few_bits) && may_change(&s, slack))
        w->bad = "rounding changes a decision";
    return w;
}

/* Noise of 2^-45 made the bound of the loss, which is 2^8 roundings of fp64 in
 * every result. The reference's own sums make a few: eight of them count. */
void want_differences(Want *w)
{
    run(w->ref);
    w->off = ref_differences(w->ref, 5, w->v[0].bound * 0x1p-5);
}
