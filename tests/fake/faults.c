/* faults.c: what goes wrong on purpose, and the results of a GPU that computes
 * nothing. A run is a program's; it ends with a copy of its results to the
 * host. An idle GPU's memory begins as 1.0f everywhere: a result that is still
 * 1.0f comes as 1 + 0.001 * (runs so far), so it tells which run it is of.
 *
 *   refuse=text  NVRTC refuses the first kernel whose text has it
 *   illegal=n    the n-th kernel that is loaded faults when it runs
 *   poison=n     the n-th kernel that is loaded makes a NaN
 *   fault=n      the GPU fails in that run
 *   nan=n-m      idle: results of these runs are NaN
 *   stuck=n      from that run on a collective in a graph does not end
 *   broken=n     the same, and NCCL says that a peer has failed
 *   abort=hangs  what aborts */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

int faulted;
static int runs, loaded;

int runs_begun(void)
{
    return runs;
}

int next_run(void)
{
    return ++runs;
}

int from_run(const char *what, int run)
{
    return run >= setting_number(what, INT32_MAX);
}

static int is_nan_run(int run)
{
    const char *nan = setting("nan", "0-0"), *to = strchr(nan, '-');

    return run >= atoi(nan) && run <= atoi(to ? to + 1 : nan);
}

/* n bytes of results have come: a number each 8. */
void tell_result(void *to, size_t n, int run)
{
    const float one = 1, v = is_nan_run(run) ? NAN : 1 + 0.001f * (float)run;

    if (run == setting_number("fault", 0))
        faulted = ILLEGAL;
    for (size_t i = 0; idle() && i + 4 <= n; i += 8)
        if (!memcmp((char *)to + i, &one, 4))
            memcpy((char *)to + i, &v, 4);
}

int refuses(const char *text)
{
    const char *part = setting("refuse", NULL);

    return part && strstr(text, part);
}

int kernel_loaded(void)
{
    return ++loaded;
}

/* Every buffer of a kernel begins with a NaN. */
static void poison(const uint64_t *arg, int n)
{
    const float nan = NAN;

    for (int i = 0; i < n; i++) {
        void *p = (void *)(uintptr_t)arg[i];
        if (is_device(p, sizeof nan))
            memcpy(p, &nan, sizeof nan);
    }
}

void kernel_runs(int kernel, const uint64_t *arg, int n)
{
    if (kernel == setting_number("poison", 0))
        poison(arg, n);
    if (kernel == setting_number("illegal", 0))
        faulted = ILLEGAL;
}
