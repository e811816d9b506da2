/* roofline.c: peak rates of a device, for floors and MFU. Rates of GPUs are
 * those of data sheets, without sparsity; the host is measured: one product by
 * BLAS, one copy by all threads. */
#include "gpu.h"
#include "host.h"

typedef struct ChipSheet {
    const char *name;
    double bf16, fp32, fp64, bytes; /* FLOP/s; bytes/s */
} ChipSheet;

/* The first row whose name is part of the device's name applies. */
/* clang-format off */
static const ChipSheet sheets[] = {
    { "H200",      989e12, 67e12, 67e12, 4.80e12 },
    { "H100 PCIe", 756e12, 51e12, 51e12, 2.00e12 },
    { "H100 NVL",  835e12, 60e12, 60e12, 3.90e12 },
    { "H100",      989e12, 67e12, 67e12, 3.35e12 },
};
/* clang-format on */

Roofline gpu_peak(const char *name, Dtype dt)
{
    for (int i = 0; i < countof(sheets); i++) {
        const ChipSheet *sheet = &sheets[i];
        if (strstr(name, sheet->name))
            return (Roofline){ dt == Df64   ? sheet->fp64
                               : dt == Df32 ? sheet->fp32
                                            : sheet->bf16,
                               sheet->bytes };
    }
    return (Roofline){ 0, 0 };
}

/* ---- the host ------------------------------------------------------------ */

enum { SIDE = 1024, COPY = 128 << 20, TRIES = 4 };

static double product_time(Blas *blas, Dtype dt)
{
    int64_t n = SIDE;
    Instr s = { .kind = Igemm,
                .gemm = { .in = dt,
                          .out = dt,
                          .m = n,
                          .n = n,
                          .k = n,
                          .lda = n,
                          .ldb = n,
                          .ldc = n } };
    size_t bytes = (size_t)(n * n * dtypes[dt].bytes);
    void *buf[4] = { calloc(1, bytes), calloc(1, bytes), calloc(1, bytes),
                     NULL };
    double best = 1e9;

    for (int i = 0; i < TRIES && buf[0] && buf[1] && buf[2]; i++) {
        double t = monotonic();
        blas_run(blas, &s, buf, NULL);
        t = monotonic() - t;
        best = t < best ? t : best;
    }
    for (int i = 0; i < 3; i++)
        free(buf[i]);
    return best;
}

static double copy_time(Pool *pool)
{
    char *to = malloc(COPY), *from = malloc(COPY);
    double best = 1e9;

    if (to && from)
        memset(from, 1, COPY);
    for (int i = 0; i < TRIES && to && from; i++) {
        double t = monotonic();
        pool_copy(pool, to, from, COPY);
        t = monotonic() - t;
        best = t < best ? t : best;
    }
    free(to);
    free(from);
    return best;
}

Roofline host_peak(Blas *blas, Pool *pool, Dtype dt)
{
    dt = dt == Df64 ? Df64 : Df32;
    return (Roofline){ 2.0 * SIDE * SIDE * SIDE / product_time(blas, dt),
                       2.0 * COPY / copy_time(pool) };
}
