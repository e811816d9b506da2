/* grid_test: loop kernels and rows for GPUs against the reference interpreter:
 * the graphs of kernel_test with the texts of target=cuda, compiled as C++ for
 * this machine and run a block after another. A thread is a context with its
 * own stack; it gives way where a block or a warp waits for its threads, and
 * they take turns in order, so all have arrived when the first goes on.
 * Products on tensor cores are the host's. */
#define _GNU_SOURCE
#include "../../codegen/codegen.h"
#include "hostrun.h"
#include "trials.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST = 1024, STACK = 1 << 16, ARGS = 48 };

/* ---- what stands before the texts: CUDA's words -------------------------- */

static const char words[] =
    "#define __device__\n"
    "#define __global__\n"
    "#define __forceinline__ inline\n"
    "#define __launch_bounds__(...)\n"
    "#define __shared__ static\n"
    "#define memcpy __builtin_memcpy\n"
    "extern \"C\" {\n"
    "double exp(double); double log(double); double pow(double, double);\n"
    "double tanh(double); double log1p(double); double erfc(double);\n"
    "double sin(double); double cos(double); float floorf(float);\n"
    "struct Dim { unsigned x, y, z; };\n"
    "struct alignas(16) uint4 { unsigned x, y, z, w; };\n"
    "Dim threadIdx, blockIdx, blockDim, gridDim;\n"
    "void (*grid_wait)(void);\n"
    "unsigned long long (*grid_swap)(unsigned long long, unsigned);\n"
    "}\n"
    "static inline void __syncthreads() { grid_wait(); }\n"
    "static inline void __syncwarp() { grid_wait(); }\n"
    "static inline float __int_as_float(int b)\n"
    "{ float x; memcpy(&x, &b, 4); return x; }\n"
    "static inline float __uint_as_float(unsigned b)\n"
    "{ float x; memcpy(&x, &b, 4); return x; }\n"
    "static inline unsigned __float_as_uint(float x)\n"
    "{ unsigned b; memcpy(&b, &x, 4); return b; }\n"
    "static inline long long __double_as_longlong(double x)\n"
    "{ long long b; memcpy(&b, &x, 8); return b; }\n"
    "static inline int __popc(unsigned x) { return __builtin_popcount(x); }\n"
    "static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }\n"
    "static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }\n"
    "static inline float __fmaf_rn(float a, float b, float c)\n"
    "{ return __builtin_fmaf(a, b, c); }\n"
    "static inline double __fma_rn(double a, double b, double c)\n"
    "{ return __builtin_fma(a, b, c); }\n"
    "template <class T> T __shfl_sync(unsigned, T x, int lane)\n"
    "{\n"
    "    unsigned long long v = 0;\n"
    "    memcpy(&v, &x, sizeof x);\n"
    "    v = grid_swap(v, (threadIdx.x & ~31u) + (lane & 31));\n"
    "    memcpy(&x, &v, sizeof x);\n"
    "    return x;\n"
    "}\n"
    "template <class T> T __shfl_xor_sync(unsigned m, T x, int h)\n"
    "{ return __shfl_sync(m, x, (threadIdx.x & 31) ^ h); }\n"
    "template <class T> T __shfl_up_sync(unsigned m, T x, int h)\n"
    "{\n"
    "    const int lane = threadIdx.x & 31;\n"
    "    return __shfl_sync(m, x, lane >= h ? lane - h : lane);\n"
    "}\n"
    "static inline unsigned __ballot_sync(unsigned, int yes)\n"
    "{\n"
    "    unsigned m = 0;\n"
    "    for (int i = 0; i < 32; i++)\n"
    "        m |= (unsigned)(__shfl_sync(~0u, yes, i) != 0) << i;\n"
    "    return m;\n"
    "}\n";

static void *compile_all(Arena *a, Group *const *k, int n)
{
    char c[] = "/tmp/pleat-grid-XXXXXX.cc";
    int fd = mkstemps(c, 3);
    FILE *f = fdopen(fd, "w");
    const char *so = strf(a, "%s.so", c);

    fputs(words, f);
    fputs(unit_text(a, &T_cuda, k, n), f);
    fclose(f);
    int bad = system(strf(a,
                          "c++ -O1 -w -ffp-contract=off -shared -fPIC "
                          "-o %s %s -lm",
                          so, c));
    void *lib = bad ? NULL : dlopen(so, RTLD_NOW);
    if (!getenv("KEEP_KERNELS") && !bad)
        unlink(c);
    else
        printf("# kernels in %s\n", c);
    unlink(so);
    return lib;
}

/* ---- threads ------------------------------------------------------------- */

typedef struct Dim3 {
    unsigned x, y, z;
} Dim3;
typedef unsigned long long Swap(unsigned long long v, unsigned of);

static ucontext_t home, thread[MOST];
static char *stack[MOST];
static int over[MOST], now, turn[MOST];
static unsigned long long slot[2][MOST];
static void *arg[ARGS];
#define V8 void *, void *, void *, void *, void *, void *, void *, void *
static void (*body)(V8, V8, V8, V8, V8, V8);

static void wait_turn(void)
{
    swapcontext(&thread[now], &home);
}

/* Two sets of slots: a thread is at most one exchange ahead of another. */
static unsigned long long swap(unsigned long long v, unsigned of)
{
    int set = turn[now]++ & 1;

    slot[set][now] = v;
    wait_turn();
    return slot[set][of];
}

/* All parameters are 8 bytes; those that a kernel lacks do no harm. */
static void run_thread(void)
{
    void **p = arg;

#define P(i) \
    p[i], p[i + 1], p[i + 2], p[i + 3], p[i + 4], p[i + 5], p[i + 6], p[i + 7]
    body(P(0), P(8), P(16), P(24), P(32), P(40));
    over[now] = 1;
    swapcontext(&thread[now], &home);
}

static void start_thread(int i)
{
    if (!stack[i])
        stack[i] = malloc(STACK);
    getcontext(&thread[i]);
    thread[i].uc_stack.ss_sp = stack[i];
    thread[i].uc_stack.ss_size = STACK;
    makecontext(&thread[i], run_thread, 0);
    over[i] = turn[i] = 0;
}

static void run_block(int threads, Dim3 *tid)
{
    for (int i = 0; i < threads; i++)
        start_thread(i);
    for (int left = threads; left;) {
        left = 0;
        for (now = 0; now < threads; now++) {
            if (over[now])
                continue;
            tid->x = (unsigned)now;
            swapcontext(&home, &thread[now]);
            left += !over[now];
        }
    }
}

static void *symbol(void *lib, const char *name)
{
    void *p = dlsym(lib, name);

    if (!p)
        die("no %s among the kernels", name);
    return p;
}

/* iv: blocks threads blocks.y blocks.z bytes, then what depends on the rank. */
static void launch(void *lib, const Group *k, void *const *buf,
                   const int64_t *iv)
{
    int nbuf = k->narg + (k->scratch > 0), narg = nbuf;
    Dim3 *block = symbol(lib, "blockIdx"), *dim = symbol(lib, "blockDim");
    void *f = symbol(lib, k->step.kernel);

    for (int i = 0; i < nbuf; i++)
        arg[i] = buf[i];
    for (int i = 5; i < k->step.nint; i++)
        memcpy(&arg[narg++], &iv[i], 8);
    if (narg > ARGS)
        die("grid_test: %d arguments", narg);
    memcpy(&body, &f, sizeof f);
    *(void (**)(void))symbol(lib, "grid_wait") = wait_turn;
    *(Swap **)symbol(lib, "grid_swap") = swap;
    dim->x = (unsigned)iv[1];
    for (block->z = 0; block->z < iv[3]; block->z++)
        for (block->y = 0; block->y < iv[2]; block->y++)
            for (block->x = 0; block->x < iv[0]; block->x++)
                run_block((int)iv[1], symbol(lib, "threadIdx"));
}

static void step(void *lib, const Group *k, void *const *buf,
                 const size_t *bytes, const int64_t *iv)
{
    if (k->step.kind == Skernel)
        launch(lib, k, buf, iv);
    else
        host_step(lib, k, buf, bytes, iv);
}

/* ---- the test ------------------------------------------------------------ */

static int judge(Trial *t, void *lib)
{
    double worst = 0, size;

    host_run(t->g, t->k, (int)vec_len(t->k), step, lib);
    for (int o = 0; o < t->nout; o++) {
        double *got = host_get(t->g, t->sink[o]->in[0], t->g->arena);
        worst = fmax(worst, trial_differs(t, o, t->want[o], got, &size) / size);
    }
    if (worst <= t->limit)
        printf("ok - grid %s: %.1e\n", t->name, worst);
    else
        printf("not ok - grid %s: differs by %.1e of the largest\n", t->name,
               worst);
    return !(worst <= t->limit);
}

/* Grouped products on threads: each text has its own constants. */
static void keep_apart(Group *k, Arena *a)
{
    static const char *const name[] = { "TA", "TC",  "TO", "EXPERTS", "K",
                                        "N",  "LDW", "TW", "STRIDEW" };
    Text t = { .arena = a };

    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        put(&t, "#undef %s\n", name[i]);
    put(&t, "namespace n_%s {\n%s}\n", k->step.kernel, k->text);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        put(&t, "#undef %s\n", name[i]);
    k->text = t.s;
}

/* Grouped products on tensor cores are those of hosts. */
static void lower(Graph *g, Group *k, Arena *a)
{
    T_cuda.lower(g, k, a);
    if (k->fam != FAMgmm && k->fam != FAMgmmw)
        return;
    if (!strstr(k->text, "wgmma")) {
        keep_apart(k, a);
        return;
    }
    k->scratch = 0;
    T_host.lower(g, k, a);
}

/* grid_test                        all
 * grid_test word                   those with the word in their names
 * grid_test random first count     that many random graphs */
int main(int argc, char **argv)
{
    Arena *a = arena_new();
    Trial *list = NULL;
    Target T = T_cuda;
    Group **all = NULL;
    int bad = 0;

    if (system("c++ --version >/dev/null 2>&1"))
        return printf("ok - grid # SKIP no C++ compiler\n"), 0;
    T.lower = lower;
    if (argc > 3) {
        list = trial_random(a, &T, NULL, atoi(argv[2]), atoi(argv[3]));
    } else {
        list = trial_patterns(a, &T, trial_rows(a, &T, NULL), 3);
        list = trial_random(a, &T, list, 0, 40);
    }
    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k); k++)
            vec_push(a, all, list[i].k[k]);
    void *lib = compile_all(a, all, (int)vec_len(all));
    if (!lib)
        return printf("not ok - kernels do not compile\n"), 1;
    for (size_t i = 0; i < vec_len(list); i++)
        if (argc < 2 || strstr(list[i].name, argv[1]))
            bad |= judge(&list[i], lib);
    return bad;
}
