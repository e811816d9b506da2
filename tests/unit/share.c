/* share.c: see share.h. Kernels of one name are equal, so one of each stays;
 * those of the host stay with their plan. */
#include "share.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Kernel *)a)->name, ((const Kernel *)b)->name);
}

void share_kernels(Plan *const *p, size_t np)
{
    Kernel *all = NULL, **own = alloc(forever, np * sizeof *own); /* vecs */
    const char *prelude = "";
    size_t n = 0;

    for (size_t i = 0; i < np; i++) {
        const char *host = kernels_of_host(forever, p[i]);
        for (int k = 0; k < p[i]->nkernel; k++)
            if (host[k])
                vec_push(forever, own[i], p[i]->kernel[k]);
            else
                vec_push(forever, all, p[i]->kernel[k]);
        if (strlen(p[i]->prelude) > strlen(prelude))
            prelude = p[i]->prelude;
    }
    qsort(all, vec_len(all), sizeof *all, by_name);
    for (size_t i = 0; i < vec_len(all); i++)
        if (i == 0 || strcmp(all[i].name, all[n - 1].name))
            all[n++] = all[i];
    for (size_t i = 0; i < np; i++) {
        p[i]->prelude = prelude; /* the longest has all: see Group.shared */
        p[i]->nkernel = (int)(n + vec_len(own[i]));
        p[i]->kernel =
            alloc(forever, (size_t)p[i]->nkernel * sizeof *p[i]->kernel);
        memcpy(p[i]->kernel, all, n * sizeof *all);
        for (size_t k = 0; k < vec_len(own[i]); k++)
            p[i]->kernel[n + k] = own[i][k];
    }
}

/* Of one of n experts: elements [o][.][i], o < outer, i < inner. */
static double expert_apart(const double *x, const double *y, int64_t outer,
                           int64_t n, int64_t inner)
{
    double top = 0, diff = 0;

    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t at = o * n * inner + i;
            double d = fabs(x[at] - y[at]);
            top = fmax(top, fabs(y[at]));
            diff = d <= diff ? diff : d == d ? d : INFINITY;
        }
    return diff == 0 ? 0 : diff / top;
}

double tensor_apart(const Tensor *t, const double *x, const double *y)
{
    int64_t outer = 1, n = 1, inner = 1;
    double most = 0;

    for (int d = 0; d < t->nd; d++)
        if (!strcmp(t->dim[d].axis, "expert") && t->nd > 2)
            n = t->dim[d].n, outer = inner, inner = 1;
        else
            inner *= t->dim[d].n;
    for (int64_t e = 0; e < n; e++)
        most = fmax(
            most, expert_apart(x + e * inner, y + e * inner, outer, n, inner));
    return most;
}
