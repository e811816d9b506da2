/* host.h: the parts of the device that is this machine's processors. */
#ifndef PLEAT_HOST_H
#define PLEAT_HOST_H

#include "device.h"

/* ---- host.c: kernel text to functions ------------------------------------ */

typedef void KernelFn(void *const *buf, const int64_t *iv, int64_t lo,
                      int64_t hi);
typedef struct Code Code;
/* Compile the plan's kernels, or take them from the private cache. err() when
 * the compiler fails. */
Code *host_load(Arena *a, const Plan *p);
KernelFn *host_kernel(const Code *code, const char *name);

/* ---- blas.c: matrix products --------------------------------------------- */

typedef struct Blas Blas;
Blas *blas_open(Arena *a, Pool *pool);
/* When all else has its memory: err() if products would have none. */
void blas_reserve(const Pool *pool);
/* buf: by operand; scratch as large as instr_work says. */
void blas_run(Blas *blas, const Instr *instr, void *const *buf, void *scratch);
Roofline host_peak(Blas *blas, Pool *pool, Dtype dt);

/* p2p_host.c: what a stage hands to another. The local message is a pointer to
 * the sender's buffer: recv copies, wait wants it copied. */
typedef struct Channel Channel;
typedef struct Channels Channels;
Channels *channels_new(Arena *a, const Comm *comm);
/* Of a send, recv or wait; null: it needs none. */
Channel *channel_bind(Channels *channels, const BoundInstr *bound,
                      int64_t runs);
void channels_open(Channels *channels); /* after all instructions were bound */
void channels_reset(Channels *channels);
int channel_ready(const Channel *channel, const BoundInstr *bound);
void channel_run(Channel *channel, const BoundInstr *bound);
void channels_finish(const Channels *channels);

#endif
