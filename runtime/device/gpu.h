/* gpu.h: the parts of the device that is one GPU. */
#ifndef PLEAT_GPU_H
#define PLEAT_GPU_H

#include "device.h"

typedef struct Gpu Gpu;

/* ---- GPUs: nvrtc.c cublaslt.c nccl.c p2p_nccl.c -------------------------- */

typedef struct Cubin {
    char *image;
    size_t n;
} Cubin;
/* Of every kernel of the plan but the host's for "sm_90a", from the cache if it
 * has them: processes begin what it has not, the end waits for them. */
typedef struct Builds Builds;
Builds *nvrtc_begin(Arena *a, const Plan *p, Pool *pool, const char *arch);
Cubin *nvrtc_end(Builds *builds, Comm *comm);
void nvrtc_wait(Builds *builds); /* for those processes alone */
/* Both. */
Cubin *nvrtc_all(Arena *a, const Plan *p, Pool *pool, const char *arch,
                 Comm *comm);
/* Of all these plans at once, into the cache; ranks of a host a part each. What
 * is refused is so in nvrtc_all. */
void nvrtc_prepare(Arena *a, Plan *const *plan, int n, Pool *pool,
                   const char *arch);

enum { LTWORK = 32 << 20 };
typedef struct Lt Lt;
typedef struct LtCall LtCall;
Lt *lt_open(Arena *a, uint64_t work);
/* buf stays the caller's and is read at every lt_run. */
LtCall *lt_bind(Lt *lt, const GemmArgs *args, void *const *buf);
/* C = A x B + beta C, whatever the instruction says of it: by the same
 * algorithm. */
void lt_run(Lt *lt, const LtCall *call, double beta, void *stream);

/* What an algorithm depends on: products that share one. */
typedef struct LtShape {
    const char *key;
    LtCall *call;     /* the first such product */
    uint64_t algo[8]; /* cuBLASLt's own form */
    double ms;        /* as measured; 0: it was not */
} LtShape;
LtShape **lt_shapes(const Lt *lt); /* vec */
int lt_accepts(const Lt *lt, const LtShape *shape, const uint64_t *algo);
/* Run each proposed algorithm, keep the fastest; overwrites what the product
 * writes. */
void lt_measure(Lt *lt, LtShape *shape, void *stream, void *const event[2]);

/* tune.c: one algorithm a shape on all ranks, from a file that lasts. */
void tune(Gpu *gpu);
void tune_text(const void *gpu, Text *out); /* the file's lines */
/* Its whole lines whose key is not in v yet, to v; others are left out. */
enum { ALGOWORDS = 8 };
typedef struct TunedAlgo {
    const char *key;
    uint64_t algo[ALGOWORDS];
} TunedAlgo;
void tune_read(Arena *a, TunedAlgo **v, const char *s);

typedef struct Nccl Nccl;
Nccl *nccl_open(Arena *a, const Plan *p, Comm *comm);
void nccl_close(Nccl *nccl);
/* ncclCommAbort in two halves: what runs ends; what nothing holds is freed. */
void nccl_abort(Nccl *nccl);
void nccl_reclaim(Nccl *nccl);
const char *nccl_check(const Nccl *nccl);
void *nccl_group(const Nccl *nccl, uint32_t atoms);
/* A communicator of the ranks that name the same color, by key; -1: none, null.
 * All ranks ask at once. */
void *nccl_pair(Nccl *nccl, int64_t color, int64_t key);
void nccl_run(void *comm, const Instr *instr, int64_t ranks, int64_t me,
              uint64_t send, uint64_t recv, void *stream);
void nccl_send(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream);
void nccl_recv(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream);

typedef struct Links Links;
typedef struct LinkEnd LinkEnd;
Links *links_open(Arena *a, const Plan *p, int64_t rank, Nccl *nccl);
void links_warm(Links *links, uint64_t work, void *stream);
/* For a send, recv or wait; runs: how often. */
LinkEnd *link_bind(Links *links, ProgramKind prog, const Instr *instr,
                   int64_t runs);
void links_reset(Links *links); /* before a program */
void link_run(LinkEnd *end, const Instr *instr, uint64_t buf, void *stream);
void links_finish(Links *links); /* after it */

/* peer_gpu.c: exchanges of rows. The arena that others reach, as alloc. */
void *gpu_shared(Gpu *gpu, int64_t bytes, MemoryUse use);
typedef struct PeerCall PeerCall;
PeerCall *peer_bind(Gpu *gpu, const BoundInstr *bound);
void peer_abort(Gpu *gpu); /* kernels in flight end */
void peer_run(const PeerCall *call, const RowsArgs *args, void *stream);

/* host_calls.c: kernels of the host. Null: the plan has none. */
typedef struct HostCalls HostCalls;
typedef struct HostKernel HostKernel;
HostCalls *host_calls_open(Arena *a, const Plan *p);
void host_calls_close(HostCalls *calls); /* behind all streams */
HostKernel *host_call_bind(const HostCalls *calls, const BoundInstr *bound);
void host_call_run(HostKernel *call, void *stream);

/* ---- cuda.c: a plan on a GPU --------------------------------------------- */

struct Gpu {
    Arena *mem;
    const Plan *plan;
    const Role *role;
    Comm *comm;
    Pool *pool;
    int64_t rank;
    int device, cores;        /* multiprocessors */
    char name[128], arch[16]; /* "sm_90a" */
    int each;                 /* wait after each call */
    void *context, *stream[NSTREAM];
    Builds *builds;          /* of its kernels */
    uint64_t work;           /* of products */
    int64_t total, used;     /* bytes of the GPU; of those when last seen*/
    int64_t pinned;          /* bytes of the host's */
    int64_t use[NMEMORYUSE]; /* bytes of the GPU's */
    void **peer;   /* arenas that others reach, by rank; null: none are */
    int64_t words; /* ... where their words begin */
    volatile uint32_t *stop; /* not 0: exchanges end; where the GPU sees it: */
    uint64_t stopat;
    void **fn; /* by kernel */
    Lt *lt;
    Nccl *nccl;
    Links *links;
    HostCalls *host;
    int64_t step;  /* of the run that is launched, from 0; -1 */
    int tuned;     /* shapes of products measured here */
    int capturing; /* calls become a graph */
    int error;     /* the last */
    void **graph;  /* vec: all there are */
    volatile uint32_t *trail;
    uint64_t trailat; /* word the GPU writes, where it sees it; 0: it does not*/
};

void gpu_ok(int error, const char *what); /* err() unless error is 0 */
/* A kernel may be given so many bytes of shared memory; unasked it has 48 KiB,
 * of which its own variables take some. */
void gpu_allow(void *fn, int64_t shared, const char *what);
void gpu_drop_graphs(Gpu *gpu);

/* abort.c: from now on, when the run fails, what gpu waits for is aborted;
 * null: nothing is. */
void abort_watch(Gpu *gpu);
/* Around launching and taking results: after an abort others stay in hold. */
void abort_hold(void);
void abort_release(void);

/* gpu_fault.c: a call has failed. Returns if the GPU has not; else err() names
 * the run that is launched, or the one that was launched before and not
 * read. */
void gpu_fault(int error);
void fault_launching(Gpu *gpu, ProgramKind prog,
                     int64_t step); /* gpu or null */

/* flight_recorder.c: at which collective the GPU is */
void trail_open(Gpu *gpu);
uint32_t trail_place(const Gpu *gpu, const Program *prog, const Instr *instr);
void trail_put(Gpu *gpu, uint32_t place, int ended, StreamKind on);
/* As Device.where. */
const Instr *trail_at(const void *gpu, int *ended);

/* device.c */
void gpu_doctor(FILE *f); /* gpu_list, then what targets lack */
void device_open(Gpu *gpu);
int gpu_wake(int part);
uint64_t device_take(Gpu *gpu, int64_t bytes, MemoryUse use);
void device_count(Gpu *gpu, MemoryUse use); /* what is newly used, is its */
void *gpu_pinned(Gpu *gpu, int64_t bytes);
void **gpu_peers(Gpu *gpu, int64_t bytes, MemoryUse use);
void gpu_drop_peers(Gpu *gpu, void **at);
int64_t gpu_memory(void *gpu, Text *out); /* as Device.usage */
Roofline gpu_peak(const char *name, Dtype dt);

#endif
