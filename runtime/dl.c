/* dl.c: libraries are found when they are needed, so that one program starts on
 * a machine without GPUs, without MPI, and says what it found. syms.def is the
 * only list of their functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

Dl dl;

typedef struct LibInfo {
    const char *name, *what, *files;
} LibInfo;

/* clang-format off */
static const LibInfo libinfo[NLIB] = {
#define LIB(id, what, names) {#id, what, names},
#define SYM(id, name, ret, args)
#define OBJ(id, name)
#include "syms.def"
#undef LIB
#undef SYM
#undef OBJ
};
/* clang-format on */

/* clang-format off */
static const struct { Lib lib; const char *name; size_t at; } syms[] = {
#define LIB(id, what, names)
#define SYM(id, name, ret, args) {LIB##id, #name, offsetof(Dl, name)},
#define OBJ(id, name) {LIB##id, #name, offsetof(Dl, name)},
#include "syms.def"
#undef LIB
#undef SYM
#undef OBJ
};
/* clang-format on */

enum { NSYM = sizeof syms / sizeof *syms };

static struct {
    int tried, ok;
    const char *why;
} lib[NLIB];

static void *open_any(const char *files)
{
    char name[64];

    while (*files) {
        size_t n = strcspn(files, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, files);
        void *h = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
        if (h)
            return h;
        files += n + strspn(files + n, " ");
    }
    return NULL;
}

static const char *bind(Lib l, void *h)
{
    for (int i = 0; i < NSYM; i++) {
        if (syms[i].lib != l)
            continue;
        void *p = dlsym(h, syms[i].name);
        if (!p)
            return strf(forever, "it has no %s", syms[i].name);
        memcpy((char *)&dl + syms[i].at, &p, sizeof p);
    }
    return NULL;
}

int dl_open(Lib l)
{
    if (lib[l].tried)
        return lib[l].ok;
    if (l == LIBblas)
        coretype_choose();
    lib[l].tried = 1;
    if (l == LIBblas) /* it would start its threads while loading */
        setenv("OPENBLAS_NUM_THREADS", "1", 0);
    void *h = open_any(libinfo[l].files);
    lib[l].why = h ? bind(l, h) : "not found";
    lib[l].ok = !lib[l].why;
    return lib[l].ok;
}

const char *dl_why(Lib l)
{
    return lib[l].why;
}

const char *dl_what(Lib l)
{
    return libinfo[l].what;
}

/* ---- doctor -------------------------------------------------------------- */

static void say_mpi(FILE *f)
{
    char text[8192] = "";
    int n = 0;

    dl.MPI_Get_library_version(text, &n);
    fprintf(f, "%.*s", (int)strcspn(text, ",\n"), text);
}

static void say_cuda(FILE *f)
{
    int version = 0, n = gpu_count();

    dl.cuDriverGetVersion(&version);
    fprintf(f, "driver for CUDA %d.%d, %d GPU%s", version / 1000,
            version % 1000 / 10, n, n == 1 ? "" : "s");
}

static void say(FILE *f, Lib l)
{
    int a = 0, b = 0;

    if (l == LIBblas)
        fprintf(f, "%s", blas_kind());
    else if (l == LIBmpi)
        say_mpi(f);
    else if (l == LIBcuda)
        say_cuda(f);
    else if (l == LIBnvrtc && !dl.nvrtcVersion(&a, &b))
        fprintf(f, "%d.%d", a, b);
    else if (l == LIBcublaslt)
        fprintf(f, "%zu.%zu.%zu", dl.cublasLtGetVersion() / 10000,
                dl.cublasLtGetVersion() / 100 % 100,
                dl.cublasLtGetVersion() % 100);
    else if (l == LIBnccl && !dl.ncclGetVersion(&a))
        fprintf(f, "%d.%d.%d", a / 10000, a / 100 % 100, a % 100);
}

void doctor(FILE *f)
{
    Pool *p = pool_open(0);

    fprintf(f, "%-10s %s\n", "compiler", host_compiler());
    fprintf(f, "%-10s %d of %ld processors\n", "threads", pool_size(p),
            sysconf(_SC_NPROCESSORS_ONLN));
    pool_close(p);
    for (Lib l = 0; l < NLIB; l++) {
        fprintf(f, "%-10s ", libinfo[l].name);
        if (dl_open(l))
            say(f, l);
        else
            fprintf(f, "%s", lib[l].why);
        fprintf(f, " (%s)\n", libinfo[l].what);
        if (l == LIBblas && blas_note())
            fprintf(f, "%-10s warning: %s\n", "", blas_note());
    }
    gpu_doctor(f);
}
