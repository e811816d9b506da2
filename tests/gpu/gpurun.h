/* gpurun.h: run groups on a GPU without a plan, for tests. */
#ifndef PLEAT_GPURUN_H
#define PLEAT_GPURUN_H

#include "../unit/hostrun.h"

typedef struct GpuRun GpuRun;

/* Null and a line on stdout when there is no GPU. */
GpuRun *gpurun_open(void);
/* Kernels of all groups, compiled in parallel. */
void gpurun_compile(GpuRun *x, Group *const *k, int n);
/* Without a GPU: how many kernels compiled, 0 without NVRTC. */
int gpurun_only_compile(Group *const *k, int n, const char *arch);
/* Arguments go to the GPU, the step runs, they come back. ctx: a GpuRun. */
RunStep gpurun_step;
/* Steps that wrote behind an argument's end, since the last call. */
int gpurun_strays(GpuRun *x);

#endif
