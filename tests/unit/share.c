/* share.c: see share.h. Kernels of one name are equal, so one of each stays. */
#include "share.h"

#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Kernel *)a)->name, ((const Kernel *)b)->name);
}

void share_kernels(Plan *const *p, size_t np)
{
    Kernel *all = NULL;
    size_t n = 0;

    for (size_t i = 0; i < np; i++)
        for (int k = 0; k < p[i]->nkernel; k++)
            vec_push(forever, all, p[i]->kernel[k]);
    qsort(all, vec_len(all), sizeof *all, by_name);
    for (size_t i = 0; i < vec_len(all); i++)
        if (i == 0 || strcmp(all[i].name, all[n - 1].name))
            all[n++] = all[i];
    for (size_t i = 0; i < np; i++) {
        p[i]->kernel = all;
        p[i]->nkernel = (int)n;
    }
}
