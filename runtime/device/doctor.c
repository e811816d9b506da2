/* doctor.c: inventory of this machine: compiler, libraries, processor, GPUs. */
#include "gpu.h"
#include "host.h"

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
    else if (l == LIBzstd)
        fprintf(f, "%s", dl.ZSTD_versionString());
    else if (l == LIBbz2)
        fprintf(f, "%s", dl.BZ2_bzlibVersion());
    else if (l == LIBlzma)
        fprintf(f, "%s", dl.lzma_version_string());
}

static void say_libraries(FILE *f, int all)
{
    for (Lib l = 0; l < NLIB; l++) {
        if (!all && !dl_is_open(l))
            continue;
        fprintf(f, "%-10s ", dl_name(l));
        if (dl_open(l))
            say(f, l);
        else
            fprintf(f, "%s", dl_why(l));
        fprintf(f, " (%s)\n", dl_what(l));
        if (all && l == LIBblas && blas_note())
            fprintf(f, "%-10s warning: %s\n", "", blas_note());
    }
}

void dl_list(FILE *f, int all)
{
    int bad;

    fprintf(f, "%-10s %s\n", "compiler", host_compiler_here(&bad));
    say_libraries(f, all);
}

void doctor(FILE *f)
{
    Pool *pool = pool_open(0);

    fprintf(f, "%-10s %s\n", "compiler", host_compiler());
    fprintf(f, "%-10s %d of %ld processors\n", "threads", pool_size(pool),
            sysconf(_SC_NPROCESSORS_ONLN));
    pool_close(pool);
    say_libraries(f, 1);
    gpu_doctor(f);
}
