/* yarn_test: the angles and the scale of rope{yarn={..}} against those of
 * Hugging Face transformers 5.23 (modeling_rope_utils.py, _compute_yarn_
 * parameters), with head_dim 16: inv_freq and attention_factor as it returns
 * them in fp32. Ours are the interpreter's, from what a model file traces. */
#include <math.h>
#include <string.h>

#include "../../frontend/frontend.h"
#include "../unit/interp.h"

enum { HALF = 8, SEQ = 2 };

/* Theirs are rounded to fp32 at every operation; 1e-6 is 16 roundings. */
static const double TOL = 1e-6;

/* clang-format off */
static const struct {
    const char *theta, *yarn;
    double freq[HALF], scale;
} cases[] = {
    { "1e4", "factor=4, original=64",
      { 1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
    { "1e4", "factor=4, original_max_position_embeddings=64, truncate=true",
      { 1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
    { "1e4", "factor=4, original=64, truncate=false",
      { 1, 0.198583528, 0.0255952496, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
    { "1e4", "factor=40, original=16, mscale=0.707, mscale_all_dim=1.0",
      { 1, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05, 2.49999994e-05, 7.90569447e-06 }, 0.921042355 },
    { "1e4", "factor=40, original=16, mscale=0.707",
      { 1, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05, 2.49999994e-05, 7.90569447e-06 }, 1.36888795 },
    { "1e4", "factor=8, original=256, beta_fast=16, beta_slow=2, truncate=false, attention_factor=1.5",
      { 1, 0.28740859, 0.0424417965, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006, 3.95284733e-05 }, 1.5 },
    { "1e4", "factor=0.5, original=64",
      { 1, 0.421637028, 0.166666672, 0.0632455572, 0.0199999996, 0.00632455572, 0.00200000009, 0.000632455572 }, 1 },
    { "15e4", "factor=32, original=4096, truncate=false",
      { 1, 0.225418001, 0.05081328, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06, 9.24208962e-07 }, 1.34657359 },
    { "1e4", "factor=4, original=64, beta_fast=4, beta_slow=4, truncate=false",
      { 1, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
    { "1e4", "factor=4, original=4",
      { 1, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
};
/* clang-format on */

static Node *find(const Graph *g, Op op)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == op)
            return g->node[i];
    return NULL;
}

/* rope of x, whose first half is 1 and second 0: at position 1 the cosines,
 * then the sines, of the angles, times the scale. */
static const double *turned(const char *theta, const char *yarn)
{
    Source s = { "model.lua",
                 strf(forever,
                      "axes { seq=%d, dim=%d }\n"
                      "output('y', rope(param('x', 'seq dim'), 'dim', 'seq', "
                      "%s, { yarn={ %s } }))\n",
                      SEQ, 2 * HALF, theta, yarn) };
    Graph *g = trace_sources(&s, 1, opts_new(forever)).g;
    double **val = alloc(forever, (vec_len(g->node) + 1) * sizeof *val);
    double *x = alloc(forever, sizeof(double) * SEQ * 2 * HALF);

    for (int i = 0; i < SEQ * 2 * HALF; i++)
        x[i] = i / HALF % 2 == 0;
    g_renumber(g);
    val[find(g, Oparam)->id] = x;
    interp(g, val);
    return val[find(g, Ooutput)->in[0]->id] + 2 * HALF;
}

int main(void)
{
    int bad = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double *y = turned(cases[i].theta, cases[i].yarn);
        double most = 0;
        for (int j = 0; j < HALF; j++) {
            double freq = atan2(y[HALF + j], y[j]);
            double scale = hypot(y[j], y[HALF + j]);
            most = fmax(most, fabs(freq / cases[i].freq[j] - 1));
            most = fmax(most, fabs(scale / cases[i].scale - 1));
        }
        int ok = most <= TOL;
        bad += !ok;
        printf("%sok - yarn %s: %.2g off, at most %g\n", ok ? "" : "not ",
               cases[i].yarn, most, TOL);
    }
    return bad != 0;
}
