/* rows_test: kernels on a GPU against the host's: every row of the op table,
 * graphs whose parts fuse, random ones, dropout, attention; nobody writes a
 * test for a row. Both sides start from the same numbers.
 *
 * A result without sums is made of one text on both sides: the same bits, but
 * for functions that each side's library has, two roundings. Sums have another
 * order: a chain of a few roundings of the dtype, over the largest value.
 * Attention on tensor cores rounds weights to bf16 and takes the fast exp; a
 * gradient weighs roundings of results. Every step is also watched for writes
 * behind its arguments; its work space is full of NaN when it starts.
 *
 *     rows_test           all
 *     rows_test name      those whose name contains it
 *     rows_test -c name   no GPU: only compile the kernels
 *     rows_test -t name   ... print their texts */
#include "gpurun.h"
#include "../unit/attn_cases.h"
#include "../unit/trials.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int passed, failed, same;

/* ---- attention ----------------------------------------------------------- */

static const Form forms[] = {
    { "tiny", { 1, 1, 1, 3, 5, 2, 2, 3 }, attn_plain, 1 },
    { "one", { 1, 1, 1, 1, 1, 1, 1, 1 }, attn_causal, 1 },
    { "causal", { 2, 3, 1, 130, 130, 32, 1, 32 }, attn_causal, 1 },
    { "grouped", { 1, 2, 3, 70, 70, 20, 1, 17 }, attn_causal, 1 },
    { "cross", { 2, 1, 2, 61, 149, 16, 1, 40 }, attn_plain, 1 },
    { "window", { 1, 2, 2, 150, 150, 12, 1, 12 }, attn_window, 1 },
    { "chunks", { 1, 2, 2, 150, 150, 12, 1, 12 }, attn_chunks, 1 },
    { "late", { 1, 1, 2, 67, 67, 8, 1, 8 }, attn_late, 1 },
    { "documents", { 2, 2, 1, 75, 75, 10, 6, 9 }, attn_documents, 0.3 },
    { "latent", { 1, 3, 1, 66, 66, 5, 7, 1 }, attn_latent, 1 },
    { "mla", { 2, 3, 1, 101, 101, 24, 8, 16 }, attn_mla, 1 },
    { "64 wide", { 2, 2, 2, 192, 192, 64, 1, 64 }, attn_causal, 0.5 },
    { "128 wide", { 1, 2, 4, 320, 320, 128, 1, 128 }, attn_causal, 0.4 },
    { "128 odd", { 1, 1, 2, 203, 203, 128, 1, 128 }, attn_causal, 0.4 },
    { "192 and 128", { 1, 2, 1, 256, 256, 128, 64, 128 }, attn_mla, 0.4 },
};

/* The same on both sides, and values that bf16 holds. */
static void fill(Graph *g, Node *n, double scale, uint64_t key)
{
    int64_t e = g_elems(n);
    double *v = alloc(g->arena, (size_t)(e + 1) * sizeof *v);

    for (int64_t i = 0; i < e; i++) {
        double u = (double)(mix64(key, (uint64_t)i) >> 11) * 0x1p-53;
        float f = (float)(scale * (4 * u - 2));
        v[i] = n->dt == Di32 ? (double)(i * 3 / (e + 1))
                             : bf16_to_f32(f32_to_bf16(f));
    }
    host_set(g, n, v);
}

static void output(Trial *t, Node *n)
{
    int i = t->nout++;

    t->out[i] = n;
    t->dims[i] = *n;
    t->sink[i] = g_node(t->g, Ooutput, NULL, 1, &n);
    t->sink[i]->at.output.name = intern("out");
    infer(t->g, t->sink[i]);
}

/* Forward and backward of one form; none where the GPU has no kernel for it. */
static Trial *attention(Arena *a, const Target *T, Trial *list, int f, Dtype dt)
{
    Run r = { 0 };
    Trial t = { .op = Oattn, .dt = dt };

    attn_build(&r, &forms[f], dt);
    if (T_cuda.refuses(r.m.g, r.attn))
        return list;
    t.g = r.m.g;
    t.name = strf(a, "attention %s %s", forms[f].name, dtypes[dt].name);
    for (int i = 0; i < r.m.nop; i++)
        fill(t.g, r.m.op[i], forms[f].scale, (uint64_t)i);
    fill(t.g, r.dout, 1, 99);
    output(&t, r.out);
    output(&t, r.lse);
    for (int i = 0; i < r.m.nop; i++)
        if (r.grad[i])
            output(&t, r.grad[i]);
    if (T->grid) {
        compile_begin(t.g, T, &(CompileOptions){ 0 });
        attn_bwd_apart(t.g);
    }
    t.k = trial_groups(t.g, T, a);
    t.limit = dt == Df64 ? 1e-12 : dt == Df32 ? 2e-5 : 2e-2;
    vec_push(a, list, t);
    return list;
}

static Trial *attentions(Arena *a, const Target *T, Trial *list)
{
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
            list = attention(a, T, list, (int)i, dts[d]);
    return list;
}

/* ---- all magnitudes ------------------------------------------------------ */

/* Of either sign, from 2^least on. */
static double some_magnitude(uint64_t key, int64_t i, int least, int exponents)
{
    uint64_t u = mix64(key, (uint64_t)i);
    double m = 1 + (double)(u >> 41) * 0x1p-23;

    return ldexp(u & 1 ? -m : m, least + (int)(u >> 1 & 0xffff) % exponents);
}

/* Quotients and roots of fp32, subnormal ones too: GPUs make them side by side
 * where none is (divide, cuda.pre), and to the bit what IEEE 754 says. */
static Trial magnitudes(Arena *a, const Target *T)
{
    Trial t = { .name = "quotients and roots of all magnitudes f32",
                .dt = Df32,
                .g = g_new(a, "magnitudes") };
    Make m = { .a = a, .g = t.g };
    Node *in[2];

    mk_sizes(t.g, 3);
    for (int k = 0; k < 2; k++) {
        in[k] = mk_real(&m, "b s h");
        in[k]->dt = Df32;
        for (int64_t i = 0; i < g_elems(in[k]); i++)
            m.val[k][i] = k         ? some_magnitude(7, i, -64, 90)
                          : i % 64  ? some_magnitude(3, i, -149, 200)
                          : i % 128 ? 0
                                    : -0.0;
        host_set(t.g, in[k], m.val[k]);
    }
    output(&t, mk_ew(&m, Odiv, in[0], in[1]));
    output(&t, mk_ew(&m, Osqrt, mk_ew(&m, Oabs, in[0], NULL), NULL));
    t.k = trial_groups(t.g, T, a);
    return t;
}

/* ---- both sides ---------------------------------------------------------- */

static Trial *all_trials(Arena *a, const Target *T)
{
    Trial *list = trial_patterns(a, T, trial_rows(a, T, NULL), 4);
    Trial drop = trial_dropout(a, T);

    list = trial_random(a, T, list, 0, 40);
    trial_turn(&drop, 3, 5);
    vec_push(a, list, drop);
    vec_push(a, list, magnitudes(a, T));
    return attentions(a, T, list);
}

static Group **all_groups(Arena *a, const Trial *list, const char *only)
{
    Group **all = NULL;

    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k); k++)
            if (strstr(list[i].name, only))
                vec_push(a, all, list[i].k[k]);
    return all;
}

/* Of output o, elements as they were ordered before fusion. */
static double *values(Trial *t, int o)
{
    Node *n = t->sink[o]->in[0];
    double *got = host_get(t->g, n, t->g->arena);
    int64_t e = local_elems(t->g, n);
    double *v = alloc(t->g->arena, (size_t)(e + 1) * sizeof *v);

    for (int64_t i = 0; i < e; i++)
        v[i] = n->nd ? trial_value(n, got, &t->dims[o], i) : got[i];
    return v;
}

/* Of bf16, whose sums are fp32: measured are up to 2.5. */
enum { TILT = 6 };

/* How far the best factor between both is from one, in deviations of what
 * independent roundings of the elements would make it: an error that all
 * elements share shows long before it leaves the rounding of one. */
static double tilt(const Trial *t, const double *got, const double *want,
                   int64_t n)
{
    double unit = t->dt == Dbf16 ? 0x1p-8 : t->dt == Df32 ? 0x1p-23 : 0x1p-52;
    double gw = 0, ww = 0, w4 = 0;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(got[i]) && isfinite(want[i])) {
            gw += got[i] * want[i];
            ww += want[i] * want[i];
            w4 += pow(want[i], 4);
        }
    return ww > 0 ? fabs(gw - ww) / (sqrt(w4) * unit) : 0;
}

/* No sums on the way, so not a bit may differ. */
static int exact(const Trial *t)
{
    OpClass c = t->op == NOP ? RED : optab[t->op].cls;

    return c == EW || c == VIEW || (c == MOVE && t->op != Oscatter_add);
}

static double last_bits(const Trial *t)
{
    OpClass c = t->op == NOP ? RED : optab[t->op].cls;

    return c != EW || t->dt == Dbf16 ? 0 : t->dt == Df32 ? 0x1p-22 : 0x1p-51;
}

/* What roundings of an elementwise result count against: the largest of it and
 * of its operands, whose terms may cancel (dgelu is 0 near -0.75). */
static double terms_size(const Trial *t, int o, double size)
{
    const Node *n = &t->dims[o];

    for (int k = 0; k < n->nin && last_bits(t) > 0; k++) {
        const double *v = host_get(t->g, n->in[k], t->g->arena);
        for (int64_t i = 0; i < local_elems(t->g, n->in[k]); i++)
            size = isfinite(v[i]) ? fmax(size, fabs(v[i])) : size;
    }
    return size;
}

static void judge(Trial *h, Trial *g, void *lib, GpuRun *x)
{
    double limit = exact(g) ? last_bits(g) : g->limit;
    double worst = 0, lean = 0, size;

    host_run(h->g, h->k, (int)vec_len(h->k), host_step, lib);
    host_run(g->g, g->k, (int)vec_len(g->k), gpurun_step, x);
    for (int o = 0; o < g->nout; o++) {
        double *got = host_get(g->g, g->sink[o]->in[0], g->g->arena);
        double *want = values(h, o);
        double d = trial_differs(g, o, want, got, &size);
        worst = fmax(worst, d / terms_size(h, o, size));
        lean = fmax(lean, tilt(g, values(g, o), want,
                               local_elems(g->g, g->sink[o]->in[0])));
    }
    int good =
        worst <= limit && !gpurun_strays(x) && (g->dt != Dbf16 || lean <= TILT);
    good ? passed++ : failed++;
    same += worst == 0;
    printf("%sok - gpu %s: %.1e, at most %.0e; tilt %.2f\n", good ? "" : "not ",
           g->name, worst, limit, lean);
    fflush(stdout);
}

/* Where the time goes. */
static void say(const char *what)
{
    static struct timespec was;
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    if (was.tv_sec)
        printf("# %s: %.1f s\n", what,
               (double)(t.tv_sec - was.tv_sec) +
                   1e-9 * (double)(t.tv_nsec - was.tv_nsec));
    fflush(stdout);
    was = t;
}

int main(int argc, char **argv)
{
    int compile = argc > 1 && !strcmp(argv[1], "-c");
    int texts = argc > 1 && !strcmp(argv[1], "-t"), at = 1 + (compile || texts);
    const char *only = argc > at ? argv[at] : "";
    Arena *a = arena_new();
    trial_wants = 0;
    say("");
    Trial *g = all_trials(a, &T_cuda);
    Group **kg = all_groups(a, g, only);
    int n = (int)vec_len(kg);

    for (int i = 0; texts && i < n; i++)
        printf("%s\n",
               kg[i]->text ? kg[i]->text : instr_info(kg[i]->instr.kind)->name);
    if (texts)
        return 0;
    if (compile)
        return printf("ok - gpu rows: %d kernels compile\n",
                      gpurun_only_compile(kg, n, "sm_90a")),
               0;
    GpuRun *x = gpurun_open();
    if (!x)
        return 1;
    Trial *h = all_trials(a, &T_host);
    Group **kh = all_groups(a, h, only);
    say("graphs, starting the GPU");
    void *lib = host_compile(a, kh, (int)vec_len(kh));
    if (!lib)
        return printf("not ok - host kernels do not compile\n"), 1;
    say("kernels of the host");
    gpurun_compile(x, kg, n);
    say("kernels of the GPU");
    for (size_t i = 0; i < vec_len(g); i++)
        if (strstr(g[i].name, only))
            judge(&h[i], &g[i], lib, x);
    say("running them");
    printf("# %d passed, %d failed, %d with the same bits\n", passed, failed,
           same);
    return failed > 0;
}
