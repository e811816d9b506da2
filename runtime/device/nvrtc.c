/* nvrtc.c: compiles kernel texts to cubins for one GPU, each distinct text
 * once, in parallel, stored in the private cache under a hash of text, compiler
 * and flags. The text of a refused kernel and the compiler's log stay beside
 * the cache, and the message names both.
 *
 * NVRTC 13.0 runs its front end, about a fifth of its time, under one lock of
 * the process, so processes compile instead of threads, the longest text first,
 * and this one finds their results in the cache. libnvrtc.alt has the same
 * lock; --split-compile changes the bits. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gpu.h"

enum { MINIMAL = 1204 }; /* version 12.4: --minimal is known */
enum { MAXFLAG = 5 };

typedef struct Build { /* kernels of a plan */
    const Plan *plan;
    Cubin *out;       /* per kernel */
    char **why;       /* per kernel: the log if it was refused */
    const char *left; /* per kernel: is it a kernel of the host? */
} Build;

typedef struct BuildPart { /* a kernel of a plan */
    Build *build;
    int kernel;
    size_t length;      /* bytes of its text */
    XXH128_hash_t hash; /* hash of text, compiler and flags */
    const char *path;   /* file in the cache */
} BuildPart;

struct Builds {
    Arena *mem;
    Pool *pool;
    const char *dir, *version;
    const char *flag[MAXFLAG];
    int nflag;
    int64_t ranks, place; /* ranks that share the work; index of this one */
    Build *build;         /* per plan */
    int nbuild;
    BuildPart *part; /* vec: the longest first */
    Workers *workers;
    _Atomic int64_t next; /* next part for a thread of this process */
};

/* ---- files --------------------------------------------------------------- */

static XXH128_hash_t hash_of(const Builds *builds, const Plan *p, int i)
{
    XXH3_state_t *x_x_h3_state_t = XXH3_createState();
    const char *part[] = { p->prelude, p->kernel[i].text, builds->version };

    XXH3_128bits_reset(x_x_h3_state_t);
    for (int k = 0; k < countof(part); k++)
        XXH3_128bits_update(x_x_h3_state_t, part[k], strlen(part[k]) + 1);
    for (int k = 0; k < builds->nflag; k++)
        XXH3_128bits_update(x_x_h3_state_t, builds->flag[k],
                            strlen(builds->flag[k]) + 1);
    XXH128_hash_t h = XXH3_128bits_digest(x_x_h3_state_t);
    XXH3_freeState(x_x_h3_state_t);
    return h;
}

static int load(const char *path, Cubin *cubin)
{
    struct stat st;
    int fd = file_open(path);
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

static void compile(const Builds *builds, const BuildPart *part)
{
    const Plan *p = part->build->plan;
    const Kernel *kernel = &p->kernel[part->kernel];
    size_t np = strlen(p->prelude);
    char *text = malloc(np + part->length + 1);
    void *prog = NULL;
    Cubin *cubin = &part->build->out[part->kernel];

    memcpy(text, p->prelude, np);
    memcpy(text + np, kernel->text, part->length + 1);
    dl.nvrtcCreateProgram(&prog, text, kernel->name, 0, NULL, NULL);
    if (dl.nvrtcCompileProgram(prog, builds->nflag, builds->flag)) {
        part->build->why[part->kernel] = log_of(prog);
    } else {
        dl.nvrtcGetCUBINSize(prog, &cubin->n);
        cubin->image = malloc(cubin->n);
        dl.nvrtcGetCUBIN(prog, cubin->image);
    }
    dl.nvrtcDestroyProgram(&prog);
    free(text);
}

static void keep(const BuildPart *part)
{
    const Cubin *cubin = &part->build->out[part->kernel];

    if (cubin->image)
        cache_keep(part->path, cubin->image, cubin->n);
}

/* ---- processes ----------------------------------------------------------- */

static int longest_first(const void *a, const void *b)
{
    const BuildPart *x = a, *y = b;

    if (x->length != y->length)
        return x->length < y->length ? 1 : -1;
    return XXH128_cmp(&x->hash, &y->hash);
}

static int cached(const BuildPart *part)
{
    return !access(part->path, R_OK);
}

/* Is part i equal to the one before? Equal texts of several plans are
 * adjacent. */
static int seen(const Builds *builds, int64_t i)
{
    return i && XXH128_isEqual(builds->part[i - 1].hash, builds->part[i].hash);
}

static void work(void *ctx, int64_t i)
{
    const Builds *builds = ctx;
    const BuildPart *part = &builds->part[i];

    if (seen(builds, i) || cached(part))
        return;
    compile(builds, part);
    keep(part);
    if (part->build->out[part->kernel].image && !cached(part))
        _exit(1); /* the disk is full: further results would be lost too */
}

/* Set once a plan has its kernels: it may then have pages that a device reads,
 * and older Linux kernels move these at a fork. */
static int loaded;

static void start_workers(Builds *builds)
{
    int64_t n = (int64_t)vec_len(builds->part), lacks = 0;
    int64_t most = pool_size(builds->pool);

    vec_sort(builds->part, longest_first);
    for (int64_t i = 0; i < n; i++)
        lacks += !seen(builds, i) && !cached(&builds->part[i]);
    most = most < lacks ? most : lacks;
    if (most > 1 && !launched() && !loaded)
        builds->workers = workers_start((int)most, work, builds, n);
}

void nvrtc_wait(Builds *builds)
{
    workers_join(builds->workers);
    builds->workers = NULL;
}

/* ---- threads ------------------------------------------------------------- */

/* Takes cubins from the cache and compiles the missing ones in this process. */
static void take(void *ctx, int64_t lo, int64_t hi)
{
    Builds *builds = ctx;
    int64_t n = (int64_t)vec_len(builds->part), i;

    (void)lo, (void)hi;
    while ((i = atomic_fetch_add(&builds->next, 1)) < n) {
        const BuildPart *part = &builds->part[i];
        Build *build = part->build;
        int k = part->kernel;
        if (i % builds->ranks != builds->place || build->out[k].image ||
            build->why[k] || load(part->path, &build->out[k]))
            continue;
        compile(builds, part);
        keep(part);
    }
}

static void take_all(Builds *builds)
{
    builds->next = 0;
    pool_run(builds->pool, take, builds, pool_size(builds->pool), 1);
}

/* Each rank of a host compiles a part and takes the others' parts from the
 * cache; it compiles parts that are missing there (another file system, a
 * refused kernel). */
static void finish(Builds *builds, Comm *comm)
{
    nvrtc_wait(builds);
    take_all(builds);
    if (builds->ranks == 1 || !comm)
        return;
    comm_barrier(comm);
    builds->ranks = 1;
    builds->place = 0;
    take_all(builds);
}

/* ---- all kernels --------------------------------------------------------- */

static void add_plan(Builds *builds, const Plan *p)
{
    size_t n = (size_t)p->nkernel + 1;
    Build *build = &builds->build[builds->nbuild++];

    *build = (Build){ .plan = p,
                      .out = alloc(builds->mem, n * sizeof *build->out),
                      .why = alloc(builds->mem, n * sizeof *build->why),
                      .left = kernels_of_host(builds->mem, p) };
    for (int i = 0; i < p->nkernel; i++) {
        if (build->left[i])
            continue;
        BuildPart part = { build, i, strlen(p->kernel[i].text),
                           hash_of(builds, p, i), NULL };
        part.path = strf(builds->mem, "%s/%016lx%016lx.cubin", builds->dir,
                         part.hash.high64, part.hash.low64);
        vec_push(builds->mem, builds->part, part);
    }
}

static Builds *builds_open(Arena *a, int plans, Pool *pool, const char *arch)
{
    Builds *b = alloc(a, sizeof *b);
    int major = 0, minor = 0;

    if (!dl_open(LIBnvrtc))
        err(NULL, "GPU kernels need NVRTC: %s", dl_why(LIBnvrtc));
    dl.nvrtcVersion(&major, &minor);
    *b = (Builds){ .mem = a,
                   .pool = pool,
                   .dir = cache_folder(),
                   .version = strf(a, "nvrtc %d.%d", major, minor),
                   .flag = { strf(a, "--gpu-architecture=%s", arch),
                             "--fmad=false", "--std=c++17", "-default-device",
                             "--minimal" },
                   .nflag = MAXFLAG - (100 * major + minor < MINIMAL),
                   .ranks = launch_local() };
    b->place = launch_place() % b->ranks;
    b->build = alloc(a, (size_t)plans * sizeof *b->build);
    return b;
}

static _Noreturn void refuse(const Builds *builds, const Build *build, int i)
{
    const Kernel *kernel = &build->plan->kernel[i];
    Arena *a = builds->mem;
    char *text = strf(a, "%s/%s.cu", builds->dir, kernel->name);
    char *log = strf(a, "%s/%s.log", builds->dir, kernel->name);
    char *all = strf(a, "%s%s", build->plan->prelude, kernel->text);

    cache_keep(text, all, strlen(all));
    cache_keep(log, build->why[i], strlen(build->why[i]));
    err_internal(
        NULL,
        "NVRTC refuses kernel %s: %.*s (its text is in %s, the log in %s)",
        kernel->name, (int)strcspn(build->why[i], "\n"), build->why[i], text,
        log);
}

Builds *nvrtc_begin(Arena *a, const Plan *p, Pool *pool, const char *arch)
{
    Builds *b = builds_open(a, 1, pool, arch);

    add_plan(b, p);
    start_workers(b);
    return b;
}

Cubin *nvrtc_end(Builds *builds, Comm *comm)
{
    const Build *build = builds->build;

    finish(builds, comm);
    loaded = 1;
    for (int i = 0; i < build->plan->nkernel; i++)
        if (build->why[i])
            refuse(builds, build, i);
    return build->out;
}

Cubin *nvrtc_all(Arena *a, const Plan *p, Pool *pool, const char *arch,
                 Comm *comm)
{
    return nvrtc_end(nvrtc_begin(a, p, pool, arch), comm);
}

void nvrtc_prepare(Arena *a, Plan *const *plan, int n, Pool *pool,
                   const char *arch)
{
    Builds *b = builds_open(a, n, pool, arch);

    for (int i = 0; i < n; i++)
        add_plan(b, plan[i]);
    start_workers(b);
    finish(b, NULL);
    for (size_t i = 0; i < vec_len(b->part); i++) {
        free(b->part[i].build->out[b->part[i].kernel].image);
        free(b->part[i].build->why[b->part[i].kernel]);
    }
}
