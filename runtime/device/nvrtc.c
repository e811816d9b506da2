/* nvrtc.c: kernel text to cubins for one GPU, each distinct text once, in
 * parallel, kept in the private cache under a hash of text, compiler and flags.
 * A kernel that is refused: its text and the compiler's log stay beside the
 * cache, the message names both. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gpu.h"

typedef struct Build {
    const Plan *plan;
    int64_t ranks, place; /* that compile beside each other; this one */
    const char *dir, *arch, *version;
    Cubin *out;       /* by kernel */
    char **why;       /* by kernel: the log, when it was refused */
    const char *left; /* by kernel: it is of the host */
} Build;

enum { NFLAG = 4 };

static void flags_of(const Build *build, const char *flag[NFLAG])
{
    flag[0] = build->arch;
    flag[1] = "--fmad=false";
    flag[2] = "--std=c++17";
    flag[3] = "-default-device";
}

/* ---- files --------------------------------------------------------------- */

static void path_of(const Build *build, int i, char *path, size_t n)
{
    const char *flag[NFLAG];
    XXH3_state_t *x_x_h3_state_t = XXH3_createState();
    const char *part[] = { build->plan->prelude, build->plan->kernel[i].text,
                           build->version };

    flags_of(build, flag);
    XXH3_128bits_reset(x_x_h3_state_t);
    for (int k = 0; k < countof(part); k++)
        XXH3_128bits_update(x_x_h3_state_t, part[k], strlen(part[k]) + 1);
    for (int k = 0; k < NFLAG; k++)
        XXH3_128bits_update(x_x_h3_state_t, flag[k], strlen(flag[k]) + 1);
    XXH128_hash_t h = XXH3_128bits_digest(x_x_h3_state_t);
    XXH3_freeState(x_x_h3_state_t);
    snprintf(path, n, "%s/%016lx%016lx.cubin", build->dir, h.high64, h.low64);
}

static int load(const char *path, Cubin *cubin)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int ok = fd >= 0 && !fstat(fd, &st) && st.st_size > 0;

    if (ok) {
        cubin->n = (size_t)st.st_size;
        cubin->image = malloc(cubin->n);
        ok = cubin->image &&
             read(fd, cubin->image, cubin->n) == (ssize_t)cubin->n;
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

/* ---- one kernel ---------------------------------------------------------- */

static char *log_of(void *prog)
{
    size_t n = 0;

    dl.nvrtcGetProgramLogSize(prog, &n);
    char *s = calloc(1, n + 1);
    dl.nvrtcGetProgramLog(prog, s);
    return s;
}

static void compile(Build *build, int i)
{
    size_t np = strlen(build->plan->prelude),
           nt = strlen(build->plan->kernel[i].text);
    const char *flag[NFLAG];
    char *text = malloc(np + nt + 1);
    void *prog = NULL;
    Cubin *cubin = &build->out[i];

    memcpy(text, build->plan->prelude, np);
    memcpy(text + np, build->plan->kernel[i].text, nt + 1);
    flags_of(build, flag);
    dl.nvrtcCreateProgram(&prog, text, build->plan->kernel[i].name, 0, NULL,
                          NULL);
    if (dl.nvrtcCompileProgram(prog, NFLAG, flag)) {
        build->why[i] = log_of(prog);
    } else {
        dl.nvrtcGetCUBINSize(prog, &cubin->n);
        cubin->image = malloc(cubin->n);
        dl.nvrtcGetCUBIN(prog, cubin->image);
    }
    dl.nvrtcDestroyProgram(&prog);
    free(text);
}

static void one(void *ctx, int64_t lo, int64_t hi)
{
    Build *build = ctx;
    char path[4096];

    for (int64_t i = lo; i < hi; i++) {
        path_of(build, (int)i, path, sizeof path);
        if (build->left[i] || i % build->ranks != build->place ||
            build->out[i].image || build->why[i] || load(path, &build->out[i]))
            continue;
        compile(build, (int)i);
        if (build->out[i].image)
            cache_keep(path, build->out[i].image, build->out[i].n);
    }
}

/* ---- all of them --------------------------------------------------------- */

static _Noreturn void refuse(Arena *a, const Build *build, int i)
{
    const Kernel *kernel = &build->plan->kernel[i];
    char *text = strf(a, "%s/%s.cu", build->dir, kernel->name);
    char *log = strf(a, "%s/%s.log", build->dir, kernel->name);
    char *all = strf(a, "%s%s", build->plan->prelude, kernel->text);

    cache_keep(text, all, strlen(all));
    cache_keep(log, build->why[i], strlen(build->why[i]));
    err(NULL,
        "NVRTC refuses kernel %s: %.*s (its text is in %s, the log in %s)",
        kernel->name, (int)strcspn(build->why[i], "\n"), build->why[i], text,
        log);
}

/* Ranks of one host compile a part each, and take the others' from the cache;
 * what is not there (another file system, a kernel refused) each compiles. */
static void build(Build *b, Pool *pool, Comm *comm)
{
    pool_run(pool, one, b, b->plan->nkernel, 1);
    if (b->ranks == 1)
        return;
    comm_barrier(comm);
    b->ranks = 1;
    b->place = 0;
    pool_run(pool, one, b, b->plan->nkernel, 1);
}

static Build build_new(Arena *a, const Plan *p, const char *arch)
{
    size_t n = (size_t)p->nkernel + 1;
    int major = 0, minor = 0;
    Build b = { .plan = p, .dir = cache_folder() };

    if (!dl_open(LIBnvrtc))
        err(NULL, "GPU kernels need NVRTC: %s", dl_why(LIBnvrtc));
    dl.nvrtcVersion(&major, &minor);
    b.arch = strf(a, "--gpu-architecture=%s", arch);
    b.version = strf(a, "nvrtc %d.%d", major, minor);
    b.left = kernels_of_host(a, p);
    b.out = alloc(a, n * sizeof *b.out);
    b.why = alloc(a, n * sizeof *b.why);
    b.ranks = launch_local();
    b.place = launch_place() % b.ranks;
    return b;
}

Cubin *nvrtc_all(Arena *a, const Plan *p, Pool *pool, const char *arch,
                 Comm *comm)
{
    Build b = build_new(a, p, arch);

    build(&b, pool, comm);
    for (int i = 0; i < p->nkernel; i++)
        if (b.why[i])
            refuse(a, &b, i);
    return b.out;
}

/* ---- of several plans ---------------------------------------------------- */

typedef struct BuildPart { /* a kernel of one of them */
    Build *build;
    int kernel;
} BuildPart;

static void one_part(void *ctx, int64_t lo, int64_t hi)
{
    for (BuildPart *part = ctx; lo < hi; lo++) {
        Build *build = part[lo].build;
        int i = part[lo].kernel;
        one(build, i, i + 1);
        free(build->out[i].image);
        free(build->why[i]);
    }
}

void nvrtc_prepare(Arena *a, Plan *const *plan, int n, Pool *pool,
                   const char *arch)
{
    Build *b = alloc(a, (size_t)n * sizeof *b);
    BuildPart *part = NULL;

    for (int i = 0; i < n; i++) {
        b[i] = build_new(a, plan[i], arch);
        for (int k = 0; k < plan[i]->nkernel; k++)
            vec_push(a, part, ((BuildPart){ &b[i], k }));
    }
    pool_run(pool, one_part, part, (int64_t)vec_len(part), 1);
}
