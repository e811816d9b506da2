/* gpu.h: parts of the device "cuda", one GPU. */
#ifndef PLEAT_GPU_H
#define PLEAT_GPU_H

#include "device.h"

typedef struct Gpu Gpu;

/* ---- GPUs: nvrtc.c cublaslt.c nccl.c p2p_nccl.c -------------------------- */

typedef struct Cubin {
    char *image;
    size_t n;
} Cubin;
/* Cubins of a plan's kernels, except the host's, for an architecture such as
 * "sm_90a". nvrtc_begin starts processes that compile kernels which the cache
 * lacks; nvrtc_end waits for them and returns the cubins by kernel. */
typedef struct Builds Builds;
Builds *nvrtc_begin(Arena *a, const Plan *p, Pool *pool, const char *arch);
Cubin *nvrtc_end(Builds *builds, Comm *comm);
void nvrtc_wait(Builds *builds); /* only waits for these processes */
/* nvrtc_begin, then nvrtc_end. */
Cubin *nvrtc_all(Arena *a, const Plan *p, Pool *pool, const char *arch,
                 Comm *comm);
/* Compiles the kernels of n plans into the cache; each rank of a host compiles
 * a part. nvrtc_all reports refused kernels. */
void nvrtc_prepare(Arena *a, Plan *const *plan, int n, Pool *pool,
                   const char *arch);

enum { LTWORK = 32 << 20 };
typedef struct Lt Lt;
typedef struct LtCall LtCall;
Lt *lt_open(Arena *a, uint64_t work);
/* buf belongs to the caller and is read at every lt_run. */
LtCall *lt_bind(Lt *lt, const GemmArgs *args, void *const *buf);
/* C = A x B + beta C with the given beta, by the instruction's algorithm. */
void lt_run(Lt *lt, const LtCall *call, double beta, void *stream);

/* Products that share an algorithm. */
typedef struct LtShape {
    const char *key;
    LtCall *call;     /* the first of these products */
    uint64_t algo[8]; /* cuBLASLt's own form */
    double ms;        /* measured; 0: not measured */
} LtShape;
LtShape **lt_shapes(const Lt *lt); /* vec */
int lt_accepts(const Lt *lt, const LtShape *shape, const uint64_t *algo);
/* Runs each proposed algorithm and keeps the fastest; overwrites the product's
 * result. */
void lt_measure(Lt *lt, LtShape *shape, void *stream, void *const event[2]);

/* tune.c: sets one algorithm a shape on all ranks, from a persistent file. */
void tune(Gpu *gpu);
void tune_text(const void *gpu, Text *out); /* the file's lines */
/* Appends to v the file's valid lines whose key v lacks. */
enum { ALGOWORDS = 8 };
typedef struct TunedAlgo {
    const char *key;
    uint64_t algo[ALGOWORDS];
} TunedAlgo;
void tune_read(Arena *a, TunedAlgo **v, const char *s);

typedef struct Nccl Nccl;
Nccl *nccl_open(Arena *a, const Plan *p, Comm *comm);
void nccl_close(Nccl *nccl);
/* ncclCommAbort in two parts: nccl_abort ends kernels in flight, nccl_reclaim
 * frees communicators that no graph uses. */
void nccl_abort(Nccl *nccl);
void nccl_reclaim(Nccl *nccl);
const char *nccl_check(const Nccl *nccl);
void *nccl_group(const Nccl *nccl, uint32_t atoms);
/* Called by all ranks together: returns a communicator of the ranks with this
 * color, in order of their keys; color -1: null. */
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
/* Binds a send, recv or wait; runs: its executions in a program. */
LinkEnd *link_bind(Links *links, ProgramKind prog, const Instr *instr,
                   int64_t runs);
void links_reset(Links *links); /* called before a program */
void link_run(LinkEnd *end, const Instr *instr, uint64_t buf, void *stream);
void links_finish(Links *links); /* called after a program */

/* peer_gpu.c: row exchanges. Allocates the arena that other ranks access. */
void *gpu_shared(Gpu *gpu, int64_t bytes, MemoryUse use);
typedef struct PeerCall PeerCall;
PeerCall *peer_bind(Gpu *gpu, const BoundInstr *bound);
void peer_abort(Gpu *gpu); /* ends kernels in flight */
void peer_run(const PeerCall *call, const Launch *launch, void *stream);

/* host_calls.c: kernels of the host. Null: the plan has none. */
typedef struct HostCalls HostCalls;
typedef struct HostKernel HostKernel;
HostCalls *host_calls_open(Arena *a, const Plan *p);
void host_calls_close(HostCalls *calls); /* after all streams have ended */
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
    int each;                 /* wait after each call (PLEAT_SYNC) */
    void *context, *stream[NSTREAM];
    Builds *builds;          /* kernels being compiled */
    uint64_t work;           /* workspace of products */
    int64_t total, used;     /* bytes of the GPU; bytes in use when last read */
    int64_t pinned;          /* bytes of pinned host memory */
    int64_t use[NMEMORYUSE]; /* bytes of GPU memory by use */
    void **peer;   /* per rank: arena of row exchanges; null: there are none */
    int64_t words; /* offset of the arenas' words */
    volatile uint32_t *stop; /* not 0: exchanges end; its device address: */
    uint64_t stopat;
    void **fn; /* per kernel: its function */
    Lt *lt;
    Nccl *nccl;
    Links *links;
    HostCalls *host;
    int64_t step;  /* step of the launched run, counted from 0; -1: none */
    int tuned;     /* shapes of products measured here */
    int capturing; /* calls become a graph */
    int error;     /* last error code */
    void **graph;  /* vec: all graphs */
    volatile uint32_t *trail;
    uint64_t
        trailat; /* device address of the flight recorder's word; 0: none */
};

void gpu_ok(int error, const char *what); /* err() unless error is 0 */
/* Returns the function of its kernel, allowed the dynamic shared memory of its
 * launch; the default is 48 KiB together with its static variables. */
void *gpu_kernel(Gpu *gpu, const Instr *instr);
void gpu_drop_graphs(Gpu *gpu);

/* abort.c: a failure of the run aborts the waits of gpu from now on; null: no
 * longer. */
void abort_watch(Gpu *gpu);
/* Enclose launching and taking results; after an abort abort_hold never
 * returns. */
void abort_hold(void);
void abort_release(void);

/* gpu_fault.c: handles a failed call. Returns if the GPU still works; otherwise
 * err() names the launched run, or the one before if its results are not
 * read. */
void gpu_fault(int error);
void fault_launching(Gpu *gpu, ProgramKind prog,
                     int64_t step); /* gpu or null */

/* flight_recorder.c: the GPU's current collective */
void trail_open(Gpu *gpu);
uint32_t trail_place(const Gpu *gpu, const Program *prog, const Instr *instr);
void trail_put(Gpu *gpu, uint32_t place, int ended, StreamKind on);
/* Device.where */
const Instr *trail_at(const void *gpu, int *ended);

/* device.c */
void gpu_doctor(FILE *f); /* gpu_list, then missing requirements of targets */
void device_open(Gpu *gpu);
int gpu_wake(int part);
uint64_t device_take(Gpu *gpu, int64_t bytes, MemoryUse use);
void device_count(Gpu *gpu, MemoryUse use); /* attributes new memory to `use` */
void *gpu_pinned(Gpu *gpu, int64_t bytes);
void **gpu_peers(Gpu *gpu, int64_t bytes, MemoryUse use);
void gpu_drop_peers(Gpu *gpu, void **at);
int64_t gpu_memory(void *gpu, Text *out); /* Device.usage */
Roofline gpu_peak(const char *name, Dtype dt);

#endif
