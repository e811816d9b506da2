/* attn_gpu: attention kernels for GPUs, on one. Each form's forward and
 * backward in bf16 are run twice and compared: with themselves, bit for bit,
 * and with the same form in fp32, whose kernels are others (a warp a row).
 * Then forms of the widths that matter are timed. An argument picks forms by a
 * part of their name.
 *
 * Distances are of vectors: |x - y| / |y|. Results are bf16 (2e-3) and so are
 * weights and score gradients before they are summed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/runtime.h"
#include "../unit/attn_cases.h"

enum { TIMES = 5, LASTING = 400 }; /* launches, milliseconds */
static const double allowed = 1e-2;

/* batch kv group seq key dim rot vdim */
/* clang-format off */
static const Form checked[] = {
    { "d128 s256", { 1, 2, 1, 256, 256, 128, 1, 128 }, attn_causal, 0.5 },
    { "d128 s1000 gqa8", { 2, 2, 8, 1000, 1000, 128, 1, 128 }, attn_causal,
      0.5 },
    { "d128 s777 full", { 1, 2, 2, 777, 777, 128, 1, 128 }, attn_plain, 0.5 },
    { "d64 s513", { 2, 2, 2, 513, 513, 64, 1, 64 }, attn_causal, 0.5 },
    { "d64 window", { 1, 2, 2, 600, 600, 64, 1, 64 }, attn_window, 0.5 },
    { "d128 late", { 1, 2, 2, 600, 600, 128, 1, 128 }, attn_late, 0.5 },
    { "d48 odd", { 1, 2, 1, 129, 129, 48, 1, 40 }, attn_causal, 0.5 },
    { "d256 s300", { 1, 2, 2, 300, 300, 256, 1, 256 }, attn_causal, 0.5 },
    { "mla 128+64", { 1, 4, 1, 700, 700, 128, 64, 128 }, attn_mla, 0.5 },
    { "d128 s2048", { 1, 1, 8, 2048, 2048, 128, 1, 128 }, attn_causal, 0.5 },
};
/* clang-format on */
static const Form timed[] = {
    { "qwen3 b1", { 1, 4, 8, 4096, 4096, 128, 1, 128 }, attn_causal, 0.5 },
    { "qwen3 b4", { 4, 4, 8, 4096, 4096, 128, 1, 128 }, attn_causal, 0.5 },
    { "d128 32k", { 1, 1, 8, 32768, 32768, 128, 1, 128 }, attn_causal, 0.5 },
    { "d128 full", { 1, 4, 8, 4096, 4096, 128, 1, 128 }, attn_plain, 0.5 },
    { "d64", { 1, 4, 8, 4096, 4096, 64, 1, 64 }, attn_causal, 0.5 },
    { "d256", { 1, 4, 4, 4096, 4096, 256, 1, 256 }, attn_causal, 0.5 },
    { "mla 32 heads", { 1, 32, 1, 4096, 4096, 128, 64, 128 }, attn_mla, 0.5 },
};

/* ---- the device ---------------------------------------------------------- */

static void *stream;
static int64_t cores = GPUBLOCKS; /* blocks that take work in turns */

static void cu(int e, const char *what)
{
    const char *s = "?";

    if (!e)
        return;
    dl.cuGetErrorString(e, &s);
    printf("Bail out! %s: %s\n", what, s);
    exit(1);
}

static int open_device(void)
{
    void *ctx;
    int n = 0;

    if (!dl_open(LIBnvrtc) || !dl_open(LIBcuda) || dl.cuInit(0) ||
        dl.cuDeviceGetCount(&n) || !n)
        return 0;
    cu(dl.cuDevicePrimaryCtxRetain(&ctx, 0), "context");
    cu(dl.cuCtxSetCurrent(ctx), "context");
    cu(dl.cuStreamCreate(&stream, 1), "stream");
    return 1;
}

static uint64_t room_for(size_t n)
{
    uint64_t p;

    cu(dl.cuMemAlloc_v2(&p, n), "memory");
    return p;
}

/* ---- kernels ------------------------------------------------------------- */

/* ATTN_KEEP: a folder for the texts. ATTN_DEFINE: text before them. ATTN_TEXT:
 * a folder with texts to take in their place, of the same names. */
static const char *text_for(const Group *k)
{
    const char *first = getenv("ATTN_DEFINE"), *dir = getenv("ATTN_TEXT");
    size_t n;
    char *other =
        dir ? file_read(forever,
                        strf(forever, "%s/%s.cu", dir, k->instr.kernel), &n)
            : NULL;

    return other ? other
                 : strf(forever, "%s\n%s%s", first ? first : "", cuda_pre,
                        k->text);
}

static void keep(const Group *k, const char *text)
{
    const char *dir = getenv("ATTN_KEEP");
    FILE *f = dir ? fopen(strf(forever, "%s/%s.cu", dir, k->instr.kernel), "w")
                  : NULL;

    if (!f)
        return;
    fputs(text, f);
    fclose(f);
}

static void *compiled(const Group *k)
{
    static const char *const flag[] = { "--gpu-architecture=sm_90a",
                                        "--fmad=false", "--std=c++17",
                                        "-default-device",
                                        "--ptxas-options=-v" };
    const char *text = text_for(k);
    void *prog, *module, *fn;
    size_t n = 0;

    keep(k, text);

    dl.nvrtcCreateProgram(&prog, text, "attn", 0, NULL, NULL);
    int bad = dl.nvrtcCompileProgram(prog, 5, flag);
    if (bad || getenv("ATTN_KEEP")) {
        dl.nvrtcGetProgramLogSize(prog, &n);
        char *log = calloc(1, n + 1);
        dl.nvrtcGetProgramLog(prog, log);
        printf("%s\n", log);
        free(log);
    }
    if (bad)
        exit(1);
    dl.nvrtcGetCUBINSize(prog, &n);
    char *image = malloc(n);
    dl.nvrtcGetCUBIN(prog, image);
    dl.nvrtcDestroyProgram(&prog);
    if (!stream)
        return NULL;
    cu(dl.cuModuleLoadData(&module, image), "module");
    cu(dl.cuModuleGetFunction(&fn, module, k->instr.kernel), "function");
    if (k->instr.launch.shared)
        cu(dl.cuFuncSetAttribute(fn, 8, (int)k->instr.launch.shared),
           "shared memory");
    return fn;
}

/* ---- a form on the device ------------------------------------------------ */

typedef struct Card {
    Run r;
    Table *at; /* node -> its memory */
    void *fwd, *bwd;
    uint64_t work; /* space of the backward kernel */
} Card;

static void lower(Card *d, const Form *c, Dtype dt)
{
    Run *r = &d->r;

    attn_build(r, c, dt);
    attn_kernels_cuda(r);
    d->at = table_new(forever);
    d->fwd = compiled(&r->fwd);
    d->bwd = compiled(&r->bwd);
    d->work = stream && r->bwd.scratch ? room_for((size_t)r->bwd.scratch) : 0;
}

static size_t bytes_of(const Node *n)
{
    return (size_t)(g_elems(n) * dtypes[n->dt].bytes);
}

static uint64_t memory_of(Card *d, const Node *n)
{
    void **p = table_at(d->at, KEYP(n));

    if (!*p)
        *p = (void *)(uintptr_t)room_for(bytes_of(n));
    return (uint64_t)(uintptr_t)*p;
}

static void send(Card *d, const Node *n, const double *x)
{
    void *p = attn_stored(n, x);

    cu(dl.cuMemcpyHtoD_v2(memory_of(d, n), p, bytes_of(n)), "copy");
    free(p);
}

static void *fetch(Card *d, const Node *n)
{
    void *p = malloc(bytes_of(n));

    cu(dl.cuMemcpyDtoH_v2(p, memory_of(d, n), bytes_of(n)), "copy");
    return p;
}

static void launch(Card *d, const Group *k, void *fn)
{
    uint64_t buf[32];
    void *arg[32];

    for (int i = 0; i < k->narg; i++) {
        buf[i] = memory_of(d, k->arg[i]);
        arg[i] = &buf[i];
    }
    const Launch *l = &k->instr.launch;
    int64_t number = 0;
    int64_t blocks = l->persistent && cores < l->items ? cores : l->items;
    buf[k->narg] = d->work;
    arg[k->narg] = &buf[k->narg];
    arg[k->narg + (k->scratch > 0)] = &number;
    for (; number < (l->then ? 2 * l->pairs : 1); number++)
        cu(dl.cuLaunchKernel(fn, (unsigned)(number % 2 ? l->then : blocks),
                             (unsigned)l->y, (unsigned)l->z,
                             (unsigned)l->threads, 1, 1, (unsigned)l->shared,
                             stream, arg, NULL),
           "launch");
}

static void finish(const char *what)
{
    cu(dl.cuStreamSynchronize(stream), what);
}

static void close_form(Card *d)
{
    Run *r = &d->r;
    const Node *all[40];
    int n = 0;

    if (d->work)
        dl.cuMemFree_v2(d->work);
    for (int i = 0; i < r->fwd.narg; i++)
        all[n++] = r->fwd.arg[i];
    for (int i = 0; i < r->bwd.narg; i++)
        all[n++] = r->bwd.arg[i];
    for (int i = 0; i < n; i++) {
        void **p = table_at(d->at, KEYP(all[i]));
        if (*p)
            dl.cuMemFree_v2((uint64_t)(uintptr_t)*p);
        *p = NULL;
    }
}

/* ---- values -------------------------------------------------------------- */

static void give_values(Card *d, Card *like)
{
    Run *r = &d->r;

    for (int i = 0; i < r->m.nop; i++) {
        r->x[i] = like ? like->r.x[i] : attn_values(r->m.op[i], r->c->scale);
        send(d, r->m.op[i], r->x[i]);
    }
    r->w = like ? like->r.w : attn_values(r->out, 1);
    send(d, r->dout, r->w);
}

static void clear(Card *d, Node *const *n, int count)
{
    for (int i = 0; i < count; i++)
        if (n[i])
            cu(dl.cuMemsetD8Async(memory_of(d, n[i]), 0xff, bytes_of(n[i]),
                                  stream),
               "clear");
}

static void make_deltas(Card *d)
{
    void *p = fetch(d, d->r.out);
    double *y = attn_loaded(d->r.out, p), *sum = attn_deltas(&d->r, y);

    send(d, d->r.delta, sum);
    free(sum);
    free(y);
    free(p);
}

static void run_form(Card *d)
{
    Run *r = &d->r;

    clear(d, (Node *[]){ r->out, r->lse }, 2);
    launch(d, &r->fwd, d->fwd);
    finish("forward");
    make_deltas(d);
    clear(d, r->grad, r->m.nop);
    launch(d, &r->bwd, d->bwd);
    finish("backward");
}

/* ---- comparing ----------------------------------------------------------- */

static int check(const Form *c)
{
    Card *d = calloc(2, sizeof *d), *ref = d + 1;
    Node *out[16], *want[16];
    const char *name[16];
    void *first[16];
    int bad = 0, differ = 0;

    lower(d, c, Dbf16);
    lower(ref, c, Df32);
    give_values(d, NULL);
    give_values(ref, d);
    int n = attn_results(&d->r, out, name);
    attn_results(&ref->r, want, name);
    run_form(ref);
    run_form(d);
    for (int i = 0; i < n; i++)
        first[i] = fetch(d, out[i]);
    cores = 78; /* an H20's */
    run_form(d);
    cores = GPUBLOCKS;
    printf("# %s:", c->name);
    for (int i = 0; i < n; i++) {
        void *again = fetch(d, out[i]), *right = fetch(ref, want[i]);
        int64_t size = g_elems(want[i]);
        double *x =
            attn_summed(&d->r, out[i], attn_loaded(out[i], again), size);
        double e = attn_distance(x, attn_loaded(want[i], right), size);
        differ += memcmp(first[i], again, bytes_of(out[i])) != 0;
        bad += !(e <= allowed);
        printf(" %s %.2g", name[i], e);
    }
    printf("\n%s - attention %s: against fp32\n", bad ? "not ok" : "ok",
           c->name);
    printf("%s - attention %s: on fewer multiprocessors the same "
           "bits\n",
           differ ? "not ok" : "ok", c->name);
    close_form(d);
    close_form(ref);
    return bad + differ;
}

/* ---- time ---------------------------------------------------------------- */

static double flops(const Form *c)
{
    const Sizes *z = &c->z;
    double square = (double)(z->batch * z->kv * z->group * z->seq * z->key);
    int64_t rot = c->scores == attn_mla ? z->rot : 0;

    return 2 * square * (double)(z->dim + rot + z->vdim) *
           (c->scores == attn_plain ? 1 : 0.5);
}

/* Milliseconds of a launch, of `n` one behind the other. */
static double time_of(Card *d, const Group *k, void *fn, int n)
{
    void *from, *to;
    float ms;

    dl.cuEventCreate(&from, 0);
    dl.cuEventCreate(&to, 0);
    dl.cuEventRecord(from, stream);
    for (int i = 0; i < n; i++)
        launch(d, k, fn);
    dl.cuEventRecord(to, stream);
    finish("timing");
    dl.cuEventElapsedTime(&ms, from, to);
    return ms / n;
}

/* What one launch takes, and what it takes of many, when the GPU's power bounds
 * its clock as it does in a step of training: TFLOP/s. */
static void print_rates(Card *d, const Group *k, void *fn, const char *name,
                        double work)
{
    double best = INFINITY;

    for (int i = 0; i < TIMES; i++)
        best = fmin(best, time_of(d, k, fn, 1));
    double mean = time_of(d, k, fn, (int)(LASTING / best) + 1);
    printf("  %s %7.3f ms %5.1f, lasting %7.3f ms %5.1f", name, best,
           work / best, mean, work / mean);
}

static void measure(const Form *c)
{
    Card *d = calloc(1, sizeof *d);
    Run *r = &d->r;

    lower(d, c, Dbf16);
    give_values(d, NULL);
    run_form(d);
    double work = 1e-9 * flops(c), mla = c->scores == attn_mla;
    double back = work * (mla ? (3 * 192 + 2 * 128) / 320.0 : 2.5);
    printf("# %-12s", c->name);
    print_rates(d, &r->fwd, d->fwd, "forward", work);
    print_rates(d, &r->bwd, d->bwd, "backward", back);
    printf(" TFLOP/s\n");
    close_form(d);
}

/* Without a GPU: texts alone, for a look at what becomes of them. */
static int texts(const char *only)
{
    static Card d[16];
    int n = 0;

    for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
        if (strstr(timed[i].name, only)) {
            lower(&d[n], &timed[i], Dbf16);
            printf("%s: forward %s, backward %s\n", timed[i].name,
                   d[n].r.fwd.instr.kernel, d[n].r.bwd.instr.kernel);
            n++;
        }
    for (size_t i = 0; i < sizeof checked / sizeof *checked; i++)
        if (*only && strstr(checked[i].name, only))
            lower(&d[n++], &checked[i], Dbf16);
    return 0;
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    int bad = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!open_device()) {
        printf("ok - attention # SKIP no GPU\n");
        return getenv("ATTN_KEEP") ? texts(only) : 0;
    }
    for (size_t i = 0; i < sizeof checked / sizeof *checked; i++)
        if (strstr(checked[i].name, only))
            bad += check(&checked[i]);
    for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
        if (strstr(timed[i].name, only))
            measure(&timed[i]);
    return bad != 0;
}
