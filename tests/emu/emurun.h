/* emurun.h: run groups lowered for GPUs on this machine, for tests. */
#ifndef PLEAT_EMURUN_H
#define PLEAT_EMURUN_H

#include "../unit/hostrun.h"

/* Kernels of all groups, each distinct text once. 0: a text is refused, the
 * lines are on stdout. */
int emurun_compile(Arena *a, Group *const *k, int n);
/* Kernels by the emulation; products that are no kernel by hostrun's loops.
 * ctx: null. Ends the program when a launch fails. */
RunStep emurun_step;
/* A kernel's launch: iv has what emurun_step gives it, bytes of arguments count
 * RUNGUARD more. 0, a CUDA error number, or -1: it wrote behind an argument. */
int emurun_launch(const Group *k, void *const *buf, const size_t *bytes,
                  const int64_t *iv);
void emurun_close(void);

#endif
