/* comm.h: the ranks of a run: what each holds of a tensor, their collectives,
 * and who notices that one is not there. */
#ifndef PLEAT_COMM_H
#define PLEAT_COMM_H

#include "../process/process.h"

/* ---- shard.c: what of a tensor this rank holds --------------------------- */

/* n elements that follow each other both in the logical tensor and locally. */
typedef void RunFn(void *ctx, int64_t global, int64_t local, int64_t n);
void tensor_runs(const Mesh *m, const Tensor *tensor, int64_t rank, RunFn *fn,
                 void *ctx);
/* Of the local part's elements the rank has [lo, hi); element i is at i + shift
 * of its buffer. */
typedef struct Clip {
    int64_t lo, hi, shift;
} Clip;
Clip clip_of(const Mesh *m, const Tensor *tensor, int64_t rank);
int64_t tensor_elems(const Tensor *tensor); /* of the logical tensor */
int64_t tensor_held(const Tensor *tensor);  /* of dim[]'s part of a rank */
/* Of the ranks that hold equal parts, the one that writes it; never one with a
 * copy. */
int tensor_owner(const Mesh *m, const Tensor *tensor, int64_t rank);
/* The j-th global index held along dim. */
int64_t tensor_at(const Mesh *m, const PlanDim *dim, int64_t rank, int64_t j);
int64_t dim_held(const PlanDim *dim);

/* ---- comm.c mpi.c: ranks and their collectives --------------------------- */

/* Ranks that live in this process: all of a plan (`local`), or one (`mpi`). */
typedef struct Comm {
    const char *name;
    int64_t world;
    int64_t first; /* ranks first .. first+n-1 live here */
    int64_t n;
    int ngroup;
    struct CommGroup *group; /* mpi: communicators, by atoms */
    const struct Peer *peer; /* mpi: who the ranks are */
    int counts;              /* did rows go through shared memory? */
    int64_t moved;           /* bytes of those that went to other ranks */
} Comm;

void launch_errors(void); /* fail.c: one line, from one rank */
/* Under a launcher MPI (started by the first call); else all ranks here. */
Comm *comm_open(Arena *a, int64_t world);
/* Under a launcher: rank 0's text to all. */
void comm_plan(Text *out);
void comm_close(Comm *comm);
/* All ranks come to the same failure. 1: this one says so (the first with
 * knows, or rank 0 when none does); the others wait here for the end. */
int comm_speaks(Comm *comm, int knows);
void comm_barrier(Comm *comm);
void comm_share(Comm *comm, void *p, int64_t bytes); /* rank 0's to all */
void comm_share_from(Comm *comm, int64_t rank, void *p, int64_t bytes);
int64_t comm_max(Comm *comm, int64_t v); /* over all processes */
/* The same in two halves, the second called until it gives 1: neither waits.
 * One question at a time. Before the first, by all processes together: */
void comm_questions(Comm *comm);
void comm_ask(Comm *comm, int64_t v);
int comm_answer(Comm *comm, int64_t *most);
/* `bytes` of each process to all, by rank. */
void comm_gather(Comm *comm, const void *mine, void *all, int64_t bytes);
/* Before the first comm_run: the sets of atoms over which this process's ranks
 * run collectives. Every member of a group must name it. */
void comm_groups(Comm *comm, Arena *a, const Mesh *m, const uint32_t *atoms,
                 int n);

int is_collective(InstrKind k);
/* Of an all-gather, all-to-all, reduce-scatter: n elements that follow each
 * other on both sides, at `out` of what is sent to position `to` of the group
 * and at `in` of where what position `from` sends goes; with to = from, a peer,
 * that one names the same in the same order. */
typedef void PairFn(void *ctx, int64_t out, int64_t in, int64_t n);
void comm_runs(const Instr *instr, int64_t size, int64_t to, int64_t from,
               PairFn *fn, void *ctx);

/* One collective as one rank sees it. */
typedef struct Part {
    void *send, *recv;
    const void *map; /* of exchanges of rows */
} Part;
typedef struct Coll {
    const Instr *instr;
    int64_t size;          /* its ranks */
    const int64_t *ranks;  /* in group order */
    const Part *part;      /* local: size parts; mpi: one, this rank's */
    int64_t me;            /* mpi: position of this rank */
    void *stage;           /* mpi: instr_work bytes */
    void *group;           /* mpi: set by comm_run */
    struct Shared *shared; /* mpi: memory for exchanges of rows */
} Coll;
void comm_run(Comm *comm, Pool *pool, Coll *coll);
/* The same in two calls, between which others may run: MPI has no more than one
 * under way. k and what it names stay as they are. */
typedef struct UnderWay {
    void *request, **later; /* MPI's; null: it waits */
    const uint8_t *in;      /* what arrives; null: it is in its place */
} UnderWay;
void comm_begin(Comm *comm, Pool *pool, Coll *coll, UnderWay *way);
void comm_end(Pool *pool, const Coll *coll, UnderWay *way);

/* peer_memory.c: is a rank on this machine? */
int comm_near(const Comm *comm, int64_t rank);
/* Memory that these read and write, as Device.peers. */
void **comm_peers(Arena *a, Comm *comm, int64_t bytes, const char *what);
void comm_drop_peers(Comm *comm, void **at, int64_t bytes);
/* peer_rows.c: under MPI, this rank's arena, which those of its machine reach;
 * ranks that exchange rows have one stage, and as many bytes. */
typedef struct Shared Shared;
Shared *comm_shared(Comm *comm, Arena *a, int64_t bytes, const char *what);
void *comm_own(const Shared *shared);
void comm_drop_shared(Comm *comm, Shared *shared);
/* All ranks: err() where ranks that exchange rows are on different machines. */
void comm_need_near(Comm *comm, const Plan *p);
void comm_rows(Comm *comm, Pool *pool,
               const Coll *coll); /* called by comm_run */
/* All ranks: err() where one of them cannot. */
void comm_agree(Comm *comm, int bad, const char *what);

/* mpi.c, called by comm.c and p2p_host.c */
void mpi_start(Comm *comm);
void mpi_stop(void);
int mpi_running(void);
void mpi_sendrecv(const uint8_t *out, int64_t dest, uint8_t *in, int64_t src,
                  int64_t bytes);
void *mpi_group(const int64_t *ranks, int64_t n);
/* Block i of `out` (outstep: 0, the same to all, which may be its place in
 * `in`; or `bytes`) to rank i of the group, block i of `in` from it. later:
 * null, or gets the request. */
void mpi_blocks(const Coll *coll, const uint8_t *out, int64_t outstep,
                uint8_t *in, int64_t bytes, void **later);
void mpi_bcast(void *p, int64_t bytes, int64_t from);
void mpi_barrier(void);
void mpi_gather(const void *mine, void *all, int64_t bytes);
int64_t mpi_max(int64_t v);
void mpi_questions(void);
void mpi_ask(int64_t v);
int mpi_answer(int64_t *most);
/* Transfers between two ranks; those of one tag keep their order. A message
 * travels in so many requests. */
int64_t mpi_pieces(int64_t bytes);
void mpi_send(const void *p, int64_t bytes, int64_t to, int64_t tag,
              void **request);
void mpi_recv(void *p, int64_t bytes, int64_t from, int64_t tag);
void mpi_wait(void **request, int64_t n);
/* A type: n[0] x n[1] .. runs of `bytes` (below 2 GiB), `stride` apart. */
void *mpi_strided(int64_t bytes, const int64_t *n, const int64_t *stride,
                  int dims);
void mpi_forget(void *type);
/* A value of one type to a rank while one of another comes from a rank. */
void mpi_swap(const void *out, void *otype, int64_t dest, void *in, void *itype,
              int64_t src);
_Noreturn void mpi_abort(int status);

/* ranks.c: who runs where; of more than `most` ranks only some. */
void ranks_table(Text *out, const Plan *p, const Comm *comm, int64_t most);

/* ---- collective_layout.c: what two ranks of a collective exchange -------- */

/* How a group's ranks hold their axis in halves (instructions.def); zig 0: as
 * one. */
typedef struct Zigzag {
    int64_t zig, low, ranks;
} Zigzag;

/* Where the block of a position begins in a buffer: each position's `stride`
 * after the last, a second half `half` behind the first; or, placed, each half
 * at its place, `half` apart. */
typedef struct BlockPlace {
    int64_t stride, half;
    int placed;
} BlockPlace;

/* A block is one or two times (halves) n[0] x n[1] x n[2] x n[3] runs of `run`
 * elements; strides in elements. */
typedef struct BlockLayout {
    int64_t n[4], src[4], dst[4], run;
    BlockPlace to;   /* in the sender's buffer, by receiver */
    BlockPlace from; /* in the receiver's buffer, by sender */
    Zigzag zigzag;
    int halves;
} BlockLayout;

typedef enum DenseSide { NEITHER, DSTDENSE, SRCDENSE } DenseSide;

BlockLayout blocks_of(const Instr *instr, int64_t ranks);
/* Half h of the block of a position, in elements. */
int64_t block_place(const BlockLayout *layout, const BlockPlace *place,
                    int64_t pos, int64_t h);
int64_t block_elems(const BlockLayout *layout);
/* Are blocks (or the only one) dense in a buffer, in group order? */
int is_dense(const BlockLayout *layout, const int64_t *stride,
             const BlockPlace *place, int one);
/* The block from position `from` to position `to`. A dense side's pointer is
 * where the block begins, the other's where the buffer does. */
void copy_block(const BlockLayout *layout, int size, const uint8_t *src,
                int64_t to, uint8_t *dst, int64_t from, DenseSide dense);

/* ---- watchdog.c: a rank that waits for ever ------------------------------ */

/* Who a rank is, as all ranks know it. */
typedef struct Peer {
    uint64_t token;
    uint32_t address;
    uint16_t port; /* in network order */
    int32_t pid;
    char host[64], cpus[48];
} Peer;
const Peer *watch_open(Arena *a, int64_t me, int64_t world); /* by rank */
void watch_close(void);
/* What a run has done. */
typedef struct Progress {
    _Atomic int64_t ticks;      /* instructions begun */
    _Atomic(const Instr *) now; /* the one that runs; null: none */
    _Atomic int64_t awaited;    /* step waited for, from 1; 0: none */
    int64_t step;               /* of the last step block */
    const Mesh *mesh;
    const Instr *(*where)(const void *device, int *ended); /* Device.where */
    const void *device;
} Progress;
void watch_start(const Progress *progress); /* from now on it must grow */
void watch_stop(void);
void watch_signal(void); /* the launcher ends the run; may be called
                                     in a signal's handler */
/* Around what waits for other ranks: these, atoms 0 when not a group. */
void watch_enter(uint32_t atoms, const int64_t *ranks, int64_t n);
void watch_all(void);    /* the same for all ranks */
void watch_others(void); /* ... who come to it in no order */
/* Between 1 and 0 others may wait for this rank as long as they like. */
void watch_works(int on);
void watch_leave(void);
double watch_waited(void); /* seconds between these so far */
/* May this rank say why the run fails? Only the first one may. */
int watch_claim(void);
/* What a device waits for is ended: end, from any thread, within seconds, when
 * the run fails; then only the process' end may follow. asked: null, or how
 * another rank or the network has failed. */
void watch_ends(void (*end)(void), const char *(*asked)(void));
void watch_end(void); /* calls end */

#endif
