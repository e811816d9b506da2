/* host.h: parts of the device "host", this machine's processors. */
#ifndef PLEAT_HOST_H
#define PLEAT_HOST_H

#include "device.h"

/* ---- host.c: kernel text to functions ------------------------------------ */

typedef void KernelFn(void *const *buf, const int64_t *iv, int64_t lo,
                      int64_t hi);
typedef struct Code Code;
/* Compiles the plan's kernels or takes them from the private cache. Calls err()
 * if the compiler fails. */
Code *host_load(Arena *a, const Plan *p);
KernelFn *host_kernel(const Code *code, const char *name);

/* ---- blas.c: matrix products --------------------------------------------- */

typedef struct Blas Blas;
Blas *blas_open(Arena *a, Pool *pool);
/* Called after all other allocations: err() if OpenBLAS's buffers do not
 * fit. */
void blas_reserve(const Pool *pool);
/* buf: per operand; scratch: instr_work bytes. */
void blas_run(Blas *blas, const Instr *instr, void *const *buf, void *scratch);
Roofline host_peak(Blas *blas, Pool *pool, Dtype dt);

/* p2p_host.c: transfers between stages. A message inside a process is a pointer
 * to the sender's buffer: recv copies it, and the sender's wait needs that
 * copy. */
typedef struct Channel Channel;
typedef struct Channels Channels;
Channels *channels_new(Arena *a, const Comm *comm);
/* Returns the channel of a send, recv or wait; null: it needs none. */
Channel *channel_bind(Channels *channels, const BoundInstr *bound,
                      int64_t runs);
void channels_open(
    Channels *channels); /* called after all instructions are bound */
void channels_reset(Channels *channels);
int channel_ready(const Channel *channel, const BoundInstr *bound);
void channel_run(Channel *channel, const BoundInstr *bound);
void channels_finish(const Channels *channels);

#endif
