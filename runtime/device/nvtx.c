/* nvtx.c: ranges for profilers: a program's run, a row and a step, with the
 * model's names. Without a profiler a range costs a test of a pointer. NVTX is
 * a header of the CUDA toolkit; without it there are no ranges. */
#include "device.h"

#ifdef HAVE_CUDA
#include <nvtx3/nvToolsExt.h>

void nvtx_begin(const char *name)
{
    nvtxRangePushA(name);
}

void nvtx_end(void)
{
    nvtxRangePop();
}

#else

void nvtx_begin(const char *name)
{
    (void)name;
}

void nvtx_end(void)
{
}

#endif
