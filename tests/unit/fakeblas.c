/* fakeblas.c: an OpenBLAS of plain loops whose choice of kernels and mistakes
 * the environment sets, for coretype.sh:
 *
 *     FAKE_BLAS_OWN     the type it takes without OPENBLAS_CORETYPE
 *     FAKE_BLAS_WRONG   types whose products of odd sizes are wrong
 *     FAKE_BLAS_DIES    types that the processor does not run
 *     FAKE_BLAS_LOG     a file that gets the type, a line each time it loads */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *openblas_get_corename(void);
char *openblas_get_config(void);
void openblas_set_num_threads(int n);

static const char *setting(const char *name)
{
    const char *s = getenv(name);

    return s ? s : "";
}

static char type[64]; /* written once: threads compute products together */

char *openblas_get_corename(void)
{
    return type;
}

char *openblas_get_config(void)
{
    static char text[] = "OpenBLAS 9.9.9 DYNAMIC_ARCH of plain loops";

    return text;
}

void openblas_set_num_threads(int n)
{
    (void)n;
}

static int listed(const char *list)
{
    return strstr(setting(list), openblas_get_corename()) != NULL;
}

__attribute__((constructor)) static void loaded(void)
{
    const char *s = setting("OPENBLAS_CORETYPE");
    FILE *f = fopen(setting("FAKE_BLAS_LOG"), "a");

    snprintf(type, sizeof type, "%s", *s ? s : setting("FAKE_BLAS_OWN"));
    if (f) {
        fprintf(f, "%s\n", openblas_get_corename());
        fclose(f);
    }
}

/* What is wrong is off by one in the last element. */
#define PRODUCT(name, real)                                                 \
    void name(int order, int ta, int tb, int m, int n, int k, real alpha,   \
              const real *a, int lda, const real *b, int ldb, real beta,    \
              real *c, int ldc);                                            \
    void name(int order, int ta, int tb, int m, int n, int k, real alpha,   \
              const real *a, int lda, const real *b, int ldb, real beta,    \
              real *c, int ldc)                                             \
    {                                                                       \
        (void)order;                                                        \
        if (listed("FAKE_BLAS_DIES"))                                       \
            raise(SIGILL);                                                  \
        for (int64_t i = 0; i < m; i++)                                     \
            for (int64_t j = 0; j < n; j++) {                               \
                real s = 0;                                                 \
                for (int64_t l = 0; l < k; l++)                             \
                    s += (ta == 111 ? a[i * lda + l] : a[l * lda + i]) *    \
                         (tb == 111 ? b[l * ldb + j] : b[j * ldb + l]);     \
                s *= alpha;                                                 \
                c[i * ldc + j] = beta != 0 ? s + beta * c[i * ldc + j] : s; \
            }                                                               \
        if (m % 2 && listed("FAKE_BLAS_WRONG"))                             \
            c[(int64_t)(m - 1) * ldc + n - 1] += 1;                         \
    }

PRODUCT(cblas_sgemm, float)
PRODUCT(cblas_dgemm, double)
