/* comm.h: ranks of a run: their parts of tensors, their collectives, and the
 * watchdog that reports an absent rank. */
#ifndef PLEAT_COMM_H
#define PLEAT_COMM_H

#include "../process/process.h"

/* ---- shard.c: a rank's part of a tensor ---------------------------------- */

/* Called for n elements that are contiguous in the logical tensor and
 * locally. */
typedef void RunFn(void *ctx, int64_t global, int64_t local, int64_t n);
void tensor_runs(const Mesh *m, const Tensor *tensor, int64_t rank, RunFn *fn,
                 void *ctx);
/* The rank has elements [lo, hi) of its local part; element i is at i + shift
 * of its buffer. */
typedef struct Clip {
    int64_t lo, hi, shift;
} Clip;
Clip clip_of(const Mesh *m, const Tensor *tensor, int64_t rank);
int64_t tensor_elems(const Tensor *tensor); /* elements of the logical tensor */
int64_t tensor_held(const Tensor *tensor);  /* elements of a rank's part */
/* Does this rank write its part, among the ranks that hold equal ones? A rank
 * with a stage's copy never does. */
int tensor_owner(const Mesh *m, const Tensor *tensor, int64_t rank);
/* Returns the j-th global index that the rank holds along dim. */
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
    const struct Peer *peer; /* mpi: host and process of each rank */
    int counts;              /* were rows exchanged by shared memory? */
    int64_t moved;           /* bytes of rows sent to other ranks */
} Comm;

void launch_errors(void); /* fail.c: one line, from one rank */
/* Opens the ranks: by MPI under a launcher (the first call starts it),
 * otherwise all in this process. Calls err() if the world size is another. */
Comm *comm_open(Arena *a, int64_t world);
/* Under a launcher: replaces the text by rank 0's on all ranks. */
void comm_plan(Text *out);
void comm_close(Comm *comm);
/* Called by all ranks at the same failure. Returns 1 on the rank that reports
 * it (the first with `knows`, or rank 0 if none has); the others wait here for
 * the end of the run. */
int comm_speaks(Comm *comm, int knows);
void comm_barrier(Comm *comm);
void comm_share(Comm *comm, void *p, int64_t bytes); /* broadcast from rank 0 */
void comm_share_from(Comm *comm, int64_t rank, void *p, int64_t bytes);
int64_t comm_max(Comm *comm, int64_t v); /* maximum over all processes */
/* comm_max in two calls that do not wait; the second is called until it returns
 * 1. Only one may be pending. All processes first call comm_questions. */
void comm_questions(Comm *comm);
void comm_ask(Comm *comm, int64_t v);
int comm_answer(Comm *comm, int64_t *most);
/* Gathers `bytes` of each process on all, in order of ranks. */
void comm_gather(Comm *comm, const void *mine, void *all, int64_t bytes);
/* Creates the groups for the sets of atoms over which this process's ranks run
 * collectives; called before the first comm_run. Every member of a group must
 * name it. */
void comm_groups(Comm *comm, Arena *a, const Mesh *m, const uint32_t *atoms,
                 int n);

int is_collective(InstrKind k);
/* Called for n elements of an all-gather, all-to-all or reduce-scatter that are
 * contiguous on both sides: at `out` of the buffer sent to position `to` of the
 * group, and at `in` of the buffer received from position `from`. With to =
 * from, the peer gets the same runs in the same order. */
typedef void PairFn(void *ctx, int64_t out, int64_t in, int64_t n);
void comm_runs(const Instr *instr, int64_t size, int64_t to, int64_t from,
               PairFn *fn, void *ctx);

/* Operands of one rank in a collective. */
typedef struct Part {
    void *send, *recv;
    const void *map; /* exchanges of rows: route map */
} Part;
typedef struct Coll {
    const Instr *instr;
    int64_t size;          /* ranks of the group */
    const int64_t *ranks;  /* ranks in group order */
    const Part *part;      /* local: size parts; mpi: one, this rank's */
    int64_t me;            /* mpi: position of this rank */
    void *stage;           /* mpi: instr_work bytes */
    void *group;           /* mpi: set by comm_run */
    struct Shared *shared; /* mpi: memory for exchanges of rows */
} Coll;
void comm_run(Comm *comm, Pool *pool, Coll *coll);
/* comm_run in two calls, between which other instructions may run. MPI has at
 * most one pending. k and the buffers it names must not change. */
typedef struct UnderWay {
    void *request, **later; /* MPI requests; null: the call waits */
    const uint8_t *in;      /* received blocks; null: already in place */
} UnderWay;
void comm_begin(Comm *comm, Pool *pool, Coll *coll, UnderWay *way);
void comm_end(Pool *pool, const Coll *coll, UnderWay *way);

/* peer_memory.c: is a rank on this machine? */
int comm_near(const Comm *comm, int64_t rank);
/* Returns the arenas of all ranks of this machine, as Device.peers does. */
void **comm_peers(Arena *a, Comm *comm, int64_t bytes, const char *what);
void comm_drop_peers(Comm *comm, void **at, int64_t bytes);
/* peer_rows.c: under MPI, this rank's arena, which other ranks of the machine
 * access; ranks that exchange rows have one stage and arenas of one size. */
typedef struct Shared Shared;
Shared *comm_shared(Comm *comm, Arena *a, int64_t bytes, const char *what);
void *comm_own(const Shared *shared);
void comm_drop_shared(Comm *comm, Shared *shared);
/* Called by all ranks. Calls err() if ranks that exchange rows are on different
 * machines. */
void comm_need_near(Comm *comm, const Plan *p);
void comm_rows(Comm *comm, Pool *pool,
               const Coll *coll); /* called by comm_run */
/* Called by all ranks. Calls err() on all if one of them has `bad`. */
void comm_agree(Comm *comm, int bad, const char *what);

/* ---- segments.c ---------------------------------------------------------- */

/* Removes shared memory in /dev/shm that is this user's, older than a minute,
 * of Open MPI, and mapped by no process. */
void segments_sweep(void);

/* mpi.c, called by comm.c and p2p_host.c */
void mpi_start(Comm *comm);
void mpi_stop(void);
int mpi_running(void);
void mpi_sendrecv(const uint8_t *out, int64_t dest, uint8_t *in, int64_t src,
                  int64_t bytes);
void *mpi_group(const int64_t *ranks, int64_t n);
/* Sends block i of `out` to rank i of the group and receives block i of `in`
 * from it. outstep: `bytes`, or 0 for one block to all, which may lie in `in`.
 * later: null, or set to the pending request. */
void mpi_blocks(const Coll *coll, const uint8_t *out, int64_t outstep,
                uint8_t *in, int64_t bytes, void **later);
void mpi_bcast(void *p, int64_t bytes, int64_t from);
void mpi_barrier(void);
void mpi_gather(const void *mine, void *all, int64_t bytes);
int64_t mpi_max(int64_t v);
void mpi_questions(void);
void mpi_ask(int64_t v);
int mpi_answer(int64_t *most);
/* Transfers between two ranks; messages of one tag keep their order.
 * mpi_pieces returns the number of requests of a message. */
int64_t mpi_pieces(int64_t bytes);
void mpi_send(const void *p, int64_t bytes, int64_t to, int64_t tag,
              void **request);
void mpi_recv(void *p, int64_t bytes, int64_t from, int64_t tag);
void mpi_wait(void **request, int64_t n);
/* Returns an MPI type of n[0] x n[1] .. runs of `bytes` (below 2 GiB) with
 * these strides in bytes. */
void *mpi_strided(int64_t bytes, const int64_t *n, const int64_t *stride,
                  int dims);
void mpi_forget(void *type);
/* Sends a value of one type while receiving one of another type. */
void mpi_swap(const void *out, void *otype, int64_t dest, void *in, void *itype,
              int64_t src);
_Noreturn void mpi_abort(int status);

/* ranks.c: appends the table of ranks; lists only some of more than `most`. */
void ranks_table(Text *out, const Plan *p, const Comm *comm, int64_t most);

/* ---- collective_layout.c: blocks between two ranks ----------------------- */

/* Split of a group's axis into two halves a rank (instructions.def); zig 0: not
 * split. */
typedef struct Zigzag {
    int64_t zig, low, ranks;
} Zigzag;

/* Start of a position's block in a buffer: positions are `stride` apart and the
 * second half follows the first by `half`; with `placed`, each half is at its
 * place among all halves, which are `half` apart. */
typedef struct BlockPlace {
    int64_t stride, half;
    int placed;
} BlockPlace;

/* A block has one or two halves of n[0] x n[1] x n[2] x n[3] runs of `run`
 * elements; strides in elements. */
typedef struct BlockLayout {
    int64_t n[4], src[4], dst[4], run;
    BlockPlace to;   /* per receiver, in the sender's buffer */
    BlockPlace from; /* per sender, in the receiver's buffer */
    Zigzag zigzag;
    int halves;
} BlockLayout;

typedef enum DenseSide { NEITHER, DSTDENSE, SRCDENSE } DenseSide;

BlockLayout blocks_of(const Instr *instr, int64_t ranks);
/* Returns the start of half h of a position's block, in elements. */
int64_t block_place(const BlockLayout *layout, const BlockPlace *place,
                    int64_t pos, int64_t h);
int64_t block_elems(const BlockLayout *layout);
/* Are blocks (or the only one) dense in a buffer, in group order? */
int is_dense(const BlockLayout *layout, const int64_t *stride,
             const BlockPlace *place, int one);
/* Copies the block from position `from` to position `to`. The pointer of a
 * dense side is the block's start, of another side the buffer's. */
void copy_block(const BlockLayout *layout, int size, const uint8_t *src,
                int64_t to, uint8_t *dst, int64_t from, DenseSide dense);

/* ---- watchdog.c: a rank that waits forever ------------------------------- */

/* Identity of a rank, known to all ranks. */
typedef struct Peer {
    uint64_t token;
    uint32_t address;
    uint16_t port; /* network byte order */
    int32_t pid;
    char host[64], cpus[48];
} Peer;
const Peer *watch_open(Arena *a, int64_t me, int64_t world); /* [world] */
void watch_close(void);
/* Progress of a run. */
typedef struct Progress {
    _Atomic int64_t ticks;      /* instructions started */
    _Atomic(const Instr *) now; /* current instruction; null: none */
    _Atomic int64_t awaited;    /* step waited for, counted from 1; 0: none */
    int64_t step;               /* step of the last step block */
    const Mesh *mesh;
    const Instr *(*where)(const void *device, int *ended); /* Device.where */
    const void *device;
} Progress;
void watch_start(const Progress *progress); /* starts to watch progress */
void watch_stop(void);
/* The launcher ends the run; may be called in a signal handler. */
void watch_signal(void);
/* Encloses a wait for other ranks: n ranks, or with atoms 0 no group. */
void watch_enter(uint32_t atoms, const int64_t *ranks, int64_t n);
void watch_all(void); /* watch_enter for all ranks */
void watch_others(
    void); /* watch_enter for all ranks, which arrive in any order */
/* Between watch_works(1) and (0), other ranks wait for this one without
 * limit. */
void watch_works(int on);
void watch_leave(void);
double watch_waited(void); /* seconds spent in waits so far */
/* May this rank report why the run fails? Only the first one may. */
int watch_claim(void);
/* Registers end, which any thread calls if the run fails: it ends the device's
 * waits within seconds, and only the end of the process may follow. asked
 * returns null, or the failure of another rank or the network. */
void watch_ends(void (*end)(void), const char *(*asked)(void));
void watch_end(void); /* calls end */

#endif
