/* attn_bench: speed of the host attention kernels on one core, beside that of
 * the BLAS's sgemm where there is one. An argument picks forms by a part of
 * their name. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../unit/attn_cases.h"

/* The widths that matter: head sizes 32 to 128, latent attention, capped. */
static const Form speeds[] = {
    { "d16 s64 gqa2", { 8, 8, 2, 64, 64, 16, 1, 16 }, attn_causal, 1 },
    { "d32 s256", { 4, 4, 1, 256, 256, 32, 1, 32 }, attn_causal, 1 },
    { "d64 s1024", { 1, 8, 1, 1024, 1024, 64, 1, 64 }, attn_causal, 1 },
    { "d128 s2048", { 1, 4, 1, 2048, 2048, 128, 1, 128 }, attn_causal, 1 },
    { "d64 gqa4 full", { 1, 2, 4, 1024, 1024, 64, 1, 64 }, attn_plain, 1 },
    { "mla 128+64", { 1, 4, 1, 1024, 1024, 128, 64, 128 }, attn_mla, 1 },
    { "capped window", { 1, 8, 1, 1024, 1024, 64, 1, 64 }, attn_window, 1 },
};
enum { NSPEED = sizeof speeds / sizeof *speeds };
static Run timed[NSPEED][NDT];

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of some runs, on one core. */
static double time_of(Run *r, const Group *k)
{
    void *buf[32];
    double best = INFINITY, end = seconds() + 0.4;
    int64_t iv[512];
    Entry *f = attn_entry(k);

    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    for (int i = 0; i < k->narg; i++) {
        const double *x = attn_known(r, k->arg[i]);
        double *zero = x ? NULL : calloc((size_t)g_elems(k->arg[i]), 8);
        buf[i] = attn_stored(k->arg[i], x ? x : zero);
        free(zero);
    }
    buf[k->narg] = malloc((size_t)k->scratch + 1);
    do {
        double t = seconds();
        f(buf, iv, 0, k->instr.launch.items);
        best = fmin(best, seconds() - t);
    } while (seconds() < end);
    for (int i = 0; i <= k->narg; i++)
        free(buf[i]);
    return best;
}

/* Multiply-adds of all products that a mask leaves, by two. */
static double flops(const Form *c)
{
    const Sizes *z = &c->z;
    double square = (double)(z->batch * z->kv * z->group * z->seq * z->key);
    int64_t rot = c->scores == attn_mla ? z->rot : 0;
    double width = (double)(z->dim + rot + z->vdim);

    double seen = c->scores == attn_plain ? 1 : 0.5;

    if (c->scores == attn_window)
        seen = 37.0 / (double)z->key;
    return 2 * square * width * seen;
}

typedef void Product(int, int, int, int, int, int, float, const float *, int,
                     const float *, int, float, float *, int);

static void time_sgemm(void)
{
    enum { N = 768 };
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    float *x = calloc(3 * N * N, sizeof *x);
    double best = INFINITY;
    void (*threads)(int);
    Product *f;

    if (!lib)
        return;
    *(void **)&f = dlsym(lib, "cblas_sgemm");
    *(void **)&threads = dlsym(lib, "openblas_set_num_threads");
    threads(1);
    for (int i = 0; i < 10; i++) {
        double t = seconds();
        f(101, 111, 111, N, N, N, 1, x, N, x + N * N, N, 0, x + 2 * N * N, N);
        best = fmin(best, seconds() - t);
    }
    printf("sgemm %d: %.1f GFLOP/s\n", N, 2.0 * N * N * N / best / 1e9);
    free(x);
}

int main(int argc, char **argv)
{
    attn_prepare(timed, speeds, NSPEED);
    time_sgemm();
    printf("%-14s %-4s %9s %9s GFLOP/s, one core\n", "", "", "forward",
           "backward");
    for (int i = 0; i < NSPEED; i++)
        for (int t = F32; t < NDT; t++) {
            Run *r = &timed[i][t];
            if (argc > 1 && !strstr(r->c->name, argv[1]))
                continue;
            r->y = attn_values(r->out, 1);
            r->l = attn_values(r->lse, 0);
            double f = flops(r->c), fwd = time_of(r, &r->fwd);
            for (int64_t q = 0; q < g_elems(r->lse); q++)
                r->l[q] = 8; /* no weight overflows */
            double bwd = time_of(r, &r->bwd);
            printf("%-14s %-4s %9.1f %9.1f\n", r->c->name, dtypes[r->m.dt].name,
                   f / fwd / 1e9, 2.5 * f / bwd / 1e9);
        }
    return 0;
}
