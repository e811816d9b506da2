/* flops_test: what is counted, against counts by hand. A multiply-add is two
 * FLOPs, the backward twice the forward; of attention, half is behind the mask.
 * Of a model: parameters, those of one token, FLOPs of one token, summed up
 * product by product. Of a plan: what it says of each product, against the
 * sizes that the product is called with. */
#include <math.h>
#include <stdio.h>

#include "../../frontend/frontend.h"

static int failed;

static void same(const char *model, const char *what, double got, double want)
{
    failed += got != want;
    printf("%sok - %s, %s: %.0f, by hand %.0f\n", got == want ? "" : "not ",
           model, what, got, want);
}

static Plan *plan_with(const char *model, Opts *o)
{
    Trace t = trace(model, o, TRACEquiet);
    return compile(t.g, &T_null, &(CompileOptions){ 0 });
}

static Plan *plan_of(const char *model)
{
    Opts *o = opts_new(forever);

    opts_set(o, "world", "1", NULL);
    return plan_with(model, o);
}

/* ---- models -------------------------------------------------------------- */

/* Widths; kv is what keys have, and values. */
typedef struct Sizes {
    const char *model;
    double layers, seq, hidden, heads, kv, dim, ffn, shared, expert, top, vocab;
} Sizes;

static const Sizes sizes[] = {
    { "tests/models/folds.lua", 4, 8, 8, 8, 8, 2, 8, 8, 8, 2, 16 },
    { "models/mixtral.lua", 32, 4096, 4096, 32, 8, 128, 14336, 0, 8, 2, 32000 },
};

static void whole_model(const Sizes *s)
{
    Plan *p = plan_of(s->model);
    double qkvo = s->hidden * s->dim * (2 * s->heads + 2 * s->kv);
    double one = 3 * s->hidden * s->ffn, always = 2 * s->hidden * s->shared;
    double other = qkvo + always + 2 * s->hidden + s->hidden * s->expert;
    double ends = 2 * s->vocab * s->hidden + s->hidden;
    double scores = 2 * s->seq * s->heads * s->dim / 2;
    double macs = s->layers * (qkvo + scores + always + s->top * one) +
                  s->hidden * s->vocab;

    same(s->model, "parameters", (double)p->params,
         s->layers * (other + s->expert * one) + ends);
    same(s->model, "active", (double)p->active,
         s->layers * (other + s->top * one) + ends);
    same(s->model, "FLOPs of a token", p->flops / (double)p->tokens,
         3 * 2 * macs);
}

/* ---- products ------------------------------------------------------------ */

static double instr_flops(const Instr *s)
{
    const GemmArgs *g = &s->gemm;
    double n = 2;

    if (s->kind != Igemm)
        return n * (double)(s->gmm.cap * s->gmm.k * s->gmm.n);
    n *= (double)(g->m * g->n * g->k);
    for (int i = 0; i < g->batch.n; i++)
        n *= (double)g->batch.at[i].n;
    return n;
}

static void each_product(const char *model)
{
    const Role *r = &plan_of(model)->role[0];
    const Program *g = &r->prog[role_prog(r, PGstep)];
    int n[2] = { 0 }, bad = 0;

    for (int i = 0; i < g->ninstr; i++) {
        const Instr *s = &g->instr[i];
        if (instr_info(s->kind)->cls != CLASSproduct)
            continue;
        n[s->kind != Igemm]++;
        if (s->flops == instr_flops(s))
            continue;
        bad++;
        printf("# %s: %.0f, by its sizes %.0f\n", s->label, s->flops,
               instr_flops(s));
    }
    failed += bad || !n[0] || !n[1];
    printf("%sok - %s: FLOPs of %d dense and %d grouped products\n",
           bad || !n[0] || !n[1] ? "not " : "", model, n[0], n[1]);
}

/* Of the grouped products of step.fallback; *n: how many there are. */
static double fallback_flops(const char *model, const char *factor, int *n)
{
    Opts *o = opts_new(forever);
    double sum = 0;

    opts_set(o, "fold.ep", "4", NULL);
    opts_set(o, "fold.dp", "4", NULL);
    opts_set(o, "train.batch", "8", NULL);
    opts_set(o, "route.factor", factor, NULL);
    const Role *r = &plan_with(model, o)->role[0];
    const Program *g = &r->prog[role_prog(r, PGfallback)];
    for (int i = 0; i < g->ninstr; i++)
        if (g->instr[i].kind == Igmm || g->instr[i].kind == Igmm_wgrad) {
            sum += g->instr[i].flops;
            ++*n;
        }
    return sum;
}

/* A smaller budget takes more rounds for the same pairs. */
static void rounds(const char *model)
{
    int few = 0, many = 0;
    double a = fallback_flops(model, "2", &few);
    double b = fallback_flops(model, "1", &many);
    int bad = a <= 0 || fabs(a - b) > 1e-9 * a || few >= many;

    failed += bad;
    printf("%sok - %s: FLOPs of step.fallback: %.0f by %d products, %.0f by "
           "%d\n",
           bad ? "not " : "", model, a, few, b, many);
}

int main(void)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        whole_model(&sizes[i]);
    each_product("tests/models/folds.lua");
    each_product("tests/hf/dsv3.lua");
    rounds("tests/models/folds.lua");
    return failed != 0;
}
