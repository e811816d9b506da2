/* nvtx.c: what profilers call what they see: a range a program's run, a row and
 * a step, by the model's names. Costs a test of a pointer when none listens.
 * NVTX is a header of the CUDA toolkit; without it there are no ranges. */
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
