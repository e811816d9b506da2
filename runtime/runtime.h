/* runtime.h: what executes a plan. The border to the compiler is plan.h; this
 * folder links neither Lua nor passes nor code generators. */
#ifndef PLEAT_RUNTIME_H
#define PLEAT_RUNTIME_H

#include <stdatomic.h>

#include "../ir/plan.h"
#include "data.h"

/* ---- dl.c: libraries found at run time, one table: syms.def -------------- */

typedef enum Lib {
#define LIB(id, what, names) LIB##id,
#define SYM(id, name, ret, args)
#define OBJ(id, name)
#include "syms.def"
#undef LIB
#undef SYM
#undef OBJ
    NLIB
} Lib;

typedef struct NcclId {
    char c[128];
} NcclId;

typedef struct Dl { /* null where the library was not found */
#define LIB(id, what, names)
#define SYM(id, name, ret, args) ret(*name) args;
#define OBJ(id, name)            void *name;
#include "syms.def"
#undef LIB
#undef SYM
#undef OBJ
} Dl;

extern Dl dl;
/* 1: found, its symbols are in dl. 0: dl_why() says why not. */
int dl_open(Lib l);
const char *dl_why(Lib l);
const char *dl_what(Lib l); /* "GPU driver" */
/* The compiler, and a line for each library that is open, or of all. */
void dl_list(FILE *f, int all);
/* One line for each library, the compiler, the processor: `pleat doctor`. */
void doctor(FILE *f);

/* ---- limits.c: the first call of a program ------------------------------- */

extern const char built_from[];         /* of the program, not of the folder */
void process_start(const char *commit); /* that */

/* ---- startup.c: what the time before the first step goes to -------------- */

/* hostmem.c: bytes that this process may take; that the machine has */
int64_t host_free(void);
int64_t host_memory(void);
void *pages(int64_t bytes, const char *what); /* zeroed */
void drop_pages(void *p, int64_t bytes);
double monotonic(void);             /* seconds, of a clock that only grows */
void start_phase(const char *name); /* ends the one before; null */
void start_says(Text *t);           /* a line: all of them */

/* ---- coretype.c: which of its kernels OpenBLAS takes --------------------- */

/* Sets OPENBLAS_CORETYPE where OpenBLAS would choose badly; before it is
 * loaded. */
void coretype_choose(void);
/* "OpenBLAS 0.3.21, kernels for Haswell": products of equal bits. */
const char *blas_kind(void);
int64_t blas_hash(void); /* of it, not negative */
int blas_wrong(void);    /* no type computes right products */
/* What was chosen for it, and why; null: nothing. */
const char *blas_note(void);

/* ---- pool.c: threads ----------------------------------------------------- */

typedef struct Pool Pool;
typedef void Work(void *ctx, int64_t lo, int64_t hi);
/* threads 0: $PLEAT_THREADS, or this process's share of the processors. */
Pool *pool_open(int threads);
void pool_close(Pool *p);
int pool_size(const Pool *p);
/* f on disjoint ranges that cover [0, n), none smaller than grain but the last;
 * returns when all are done. */
void pool_run(Pool *p, Work *f, void *ctx, int64_t n, int64_t grain);

/* ---- host.c: kernel text to functions ------------------------------------ */

typedef void KernelFn(void *const *buf, const int64_t *iv, int64_t lo,
                      int64_t hi);
typedef struct Code Code;
/* Compile the plan's kernels, or take them from the private cache. err() when
 * the compiler fails. */
Code *host_load(Arena *a, const Plan *p);
KernelFn *host_kernel(const Code *c, const char *name);
const char *host_compiler(void);          /* first line of its --version */
const char *host_compiler_here(int *bad); /* ... or why there is none */

/* ---- blas.c: matrix products --------------------------------------------- */

typedef struct Blas Blas;
Blas *blas_open(Arena *a, Pool *p);
/* When all else has its memory: err() if products would have none. */
void blas_reserve(const Pool *p);
/* buf: by operand; scratch as large as instr_work says. */
void blas_run(Blas *b, const Instr *s, void *const *buf, void *scratch);

const char *cache_folder(void); /* private, made when missing */
/* Whole or not at all: other ranks may be writing the same file. */
void cache_keep(const char *path, const void *p, size_t n);

/* ---- GPUs: nvrtc.c cublaslt.c nccl.c p2p_nccl.c -------------------------- */

struct Comm;
typedef struct Cubin {
    char *image;
    size_t n;
} Cubin;
/* Of every kernel of the plan for "sm_90a", from the cache if it has them. */
Cubin *nvrtc_all(Arena *a, const Plan *p, Pool *pool, const char *arch,
                 struct Comm *c);

enum { LTWORK = 32 << 20 };
typedef struct Lt Lt;
typedef struct LtCall LtCall;
Lt *lt_open(Arena *a, uint64_t work);
/* buf stays the caller's and is read at every lt_run. */
LtCall *lt_bind(Lt *l, const GemmArgs *g, void *const *buf);
void lt_run(Lt *l, const LtCall *c, void *stream);

/* What an algorithm depends on: products that share one. */
typedef struct LtShape {
    const char *key;
    LtCall *call;     /* the first such product */
    uint64_t algo[8]; /* cuBLASLt's own form */
    double ms;        /* as measured; 0: it was not */
} LtShape;
LtShape **lt_shapes(const Lt *l); /* vec */
int lt_accepts(const Lt *l, const LtShape *s, const uint64_t *algo);
/* Run each proposed algorithm, keep the fastest; overwrites what the product
 * writes. */
void lt_measure(Lt *l, LtShape *s, void *stream, void *const event[2]);

/* tune.c: one algorithm a shape on all ranks, from a file that lasts. */
struct Gpu;
void tune(struct Gpu *x);
/* From now on what this file has comes first: a resumed run's. */
void tune_from(const char *path);
void tune_text(const void *gpu, Text *t); /* the file's lines */
/* Its whole lines whose key is not in v yet, to v; others are left out. */
enum { ALGOWORDS = 8 };
typedef struct TunedAlgo {
    const char *key;
    uint64_t algo[ALGOWORDS];
} TunedAlgo;
void tune_read(Arena *a, TunedAlgo **v, const char *s);

typedef struct Nccl Nccl;
Nccl *nccl_open(Arena *a, const Plan *p, struct Comm *c);
void nccl_close(Nccl *x);
/* ncclCommAbort in two halves: what runs ends; what nothing holds is freed. */
void nccl_abort(Nccl *x);
void nccl_reclaim(Nccl *x);
const char *nccl_check(const Nccl *x);
void *nccl_group(const Nccl *x, uint32_t atoms);
/* A communicator of the ranks that name the same color, by key; -1: none, null.
 * All ranks ask at once. */
void *nccl_pair(Nccl *x, int64_t color, int64_t key);
void nccl_run(void *comm, const Instr *s, int64_t ranks, int64_t me,
              uint64_t send, uint64_t recv, void *stream);
void nccl_send(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream);
void nccl_recv(void *comm, Dtype dt, int64_t n, uint64_t buf, int peer,
               void *stream);

typedef struct Links Links;
typedef struct LinkEnd LinkEnd;
Links *links_open(Arena *a, const Plan *p, int64_t rank, Nccl *nccl);
void links_warm(Links *x, uint64_t work, void *stream);
/* For a send, recv or wait; turns: how often it runs. */
LinkEnd *link_bind(Links *x, ProgramKind prog, const Instr *s, int64_t turns);
void links_reset(Links *x); /* before a program */
void link_run(LinkEnd *e, const Instr *s, uint64_t buf, void *stream);
void links_finish(Links *x); /* after it */

/* ---- shard.c: what of a tensor this rank holds --------------------------- */

/* n elements that follow each other both in the logical tensor and locally. */
typedef void RunFn(void *ctx, int64_t global, int64_t local, int64_t n);
void tensor_runs(const Mesh *m, const Tensor *t, int64_t rank, RunFn *f,
                 void *ctx);
int64_t tensor_elems(const Tensor *t); /* of the logical tensor */
int64_t tensor_held(const Tensor *t);  /* of dim[]'s part of a rank */
/* Of the ranks that hold equal parts, the one that writes it; never one with a
 * copy. */
int tensor_owner(const Mesh *m, const Tensor *t, int64_t rank);
/* The j-th global index held along dim d. */
int64_t tensor_at(const Mesh *m, const PlanDim *d, int64_t rank, int64_t j);
int64_t dim_held(const PlanDim *d);
double elem_get(Dtype dt, const void *p, int64_t i);
void elem_set(Dtype dt, void *p, int64_t i, double v);

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
} Comm;

/* Ranks and this rank by the launcher's environment; 1 and 0 without one. */
int64_t launch_world(void);
int64_t launch_rank(void);
int64_t launch_local(void); /* ranks of this job on this host */
int launched(void);         /* by a launcher that MPI knows */
int64_t launch_lost(void);  /* programs that one it does not started */
int64_t launch_place(void); /* this rank among them */
void launch_errors(void);   /* one line, from one rank */
/* Under a launcher MPI (started by the first call); else all ranks here. */
Comm *comm_open(Arena *a, int64_t world);
/* Under a launcher: rank 0's text to all. */
void comm_plan(Text *t);
void comm_close(Comm *c);
/* All ranks come to the same failure. 1: this one says so (the first with
 * knows, or rank 0 when none does); the others wait here for the end. */
int comm_speaks(Comm *c, int knows);
void comm_barrier(Comm *c);
void comm_share(Comm *c, void *p, int64_t bytes); /* rank 0's to all */
void comm_share_from(Comm *c, int64_t rank, void *p, int64_t bytes);
int64_t comm_max(Comm *c, int64_t v); /* over all processes */
/* The same in two halves, the second called until it gives 1: neither waits.
 * One question at a time. Before the first, by all processes together: */
void comm_questions(Comm *c);
void comm_ask(Comm *c, int64_t v);
int comm_answer(Comm *c, int64_t *most);
/* `bytes` of each process to all, by rank. */
void comm_gather(Comm *c, const void *mine, void *all, int64_t bytes);
/* Before the first comm_run: the sets of atoms over which this process's ranks
 * run collectives. Every member of a group must name it. */
void comm_groups(Comm *c, Arena *a, const Mesh *m, const uint32_t *atoms,
                 int n);

int is_collective(InstrKind k);
ScheduleSlot *course_rows(Arena *a, const Program *g); /* vec: rows in order */
/* Of an all-gather, all-to-all, reduce-scatter: n elements that follow each
 * other on both sides, at `out` of what is sent to a peer and at `in` of where
 * the peer's go; the peer names the same in the same order. */
typedef void PairFn(void *ctx, int64_t out, int64_t in, int64_t n);
void comm_runs(const Instr *s, int64_t size, int64_t peer, PairFn *f,
               void *ctx);

/* One collective as one rank sees it. */
typedef struct Part {
    void *send, *recv;
} Part;
typedef struct Coll {
    const Instr *s;
    int64_t size;         /* its ranks */
    const int64_t *ranks; /* in group order */
    const Part *part;     /* local: size parts; mpi: one, this rank's */
    int64_t me;           /* mpi: position of this rank */
    void *stage;          /* mpi: instr_work bytes */
    void *group;          /* mpi: set by comm_run */
} Coll;
void comm_run(Comm *c, Pool *p, Coll *k);

/* mpi.c, called by comm.c and p2p_host.c */
void mpi_start(Comm *c);
void mpi_stop(void);
int mpi_running(void);
void mpi_sendrecv(const uint8_t *out, int64_t dest, uint8_t *in, int64_t src,
                  int64_t bytes);
void *mpi_group(const int64_t *ranks, int64_t n);
/* `bytes` from each rank; out may be its place in `in`. */
void mpi_allgather(const Coll *k, const uint8_t *out, uint8_t *in,
                   int64_t bytes);
/* Block i of out to rank i of the group, block i of in from it. */
void mpi_alltoall(const Coll *k, const uint8_t *out, uint8_t *in,
                  int64_t bytes);
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
/* A type: n[0] x n[1] .. runs of `bytes` (below 2 GiB), `step` bytes apart. */
void *mpi_strided(int64_t bytes, const int64_t *n, const int64_t *step,
                  int dims);
void mpi_forget(void *type);
/* A value of one type to a rank while one of another comes from a rank. */
void mpi_swap(const void *out, void *otype, int64_t dest, void *in, void *itype,
              int64_t src);
_Noreturn void mpi_abort(int status);

/* ranks.c: who runs where; of more than `most` ranks only some. */
void ranks_table(Text *t, const Plan *p, const Comm *c, int64_t most);

/* ---- devices ------------------------------------------------------------- */

/* roofline.c: per second: FLOPs of products in this precision, bytes of memory;
 * 0: unknown. */
typedef struct Roofline {
    double flops, bytes;
} Roofline;
Roofline gpu_peak(const char *name, const char *precision);
Roofline host_peak(Blas *b, Pool *p, const char *precision);

#include "device.h"

/* err() where nothing executes it */
void need_device(const Plan *p);
const char *instr_label(const Instr *s); /* for people; never null */

/* p2p_host.c: what a stage hands to another. The local message is a pointer to
 * the sender's buffer: recv copies, wait wants it copied. */
typedef struct Channel Channel;
typedef struct Channels Channels;
Channels *channels_new(Arena *a, const Comm *c);
/* Of a send, recv or wait; null: it needs none. */
Channel *channel_bind(Channels *x, const BoundInstr *b, int64_t turns);
void channels_open(Channels *x); /* after all steps were bound */
void channels_reset(Channels *x);
int channel_ready(const Channel *c, const BoundInstr *b);
void channel_run(Channel *c, const BoundInstr *b);
void channels_finish(const Channels *x);

/* ---- exec.c interpreter.c nan_check.c: a plan in memory ------------------ */

/* Where the inputs of a step come from. fill() writes rank's part of t, in t's
 * layout, for the turn-th micro-batch that the rank runs in this step. */
typedef struct Feed {
    void (*fill)(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst);
    void *self;
} Feed;

/* The step block (stepval names of the language). */
typedef struct StepValues {
    double lr, bc1, bc2;
    int64_t step;
} StepValues;

/* Beyond these a step changes nothing (train.skip_above); INFINITY: no limit.*/
typedef struct Limits {
    double loss, gnorm;
} Limits;

/* A buffer in a frame, where a step of the phase names it. */
typedef struct Patch {
    void **at;
    int64_t offset;
    int frame;
} Patch;

typedef struct Rank {
    int64_t id;
    const Role *role;
    struct Stage *stage;
    uint8_t *base;     /* its arena in the device's memory */
    uint8_t *arena;    /* in the host's: the same, or its mirror */
    void **buf;        /* in the host's */
    BoundInstr **step; /* [program][step] */
    Patch ***patch;    /* [program][phase]: vec */
} Rank;

/* What a phase reads of its micro-batch. */
typedef struct Needs {
    int *input;
    int micro;
} Needs; /* vec of tensors */

/* A program as one stage runs it: phases unrolled, the table in its place. */
typedef struct UnrolledProgram {
    int nrow;
    ScheduleSlot *row;
    Needs *needs;
} UnrolledProgram;

/* Ranks here that run one role, step by step together. */
typedef struct Stage {
    int role;
    Rank **rank;
    int64_t n;
    UnrolledProgram *course; /* by program */
    int64_t *loaded;         /* by tensor: micro-batch; -1: none */
    int64_t micro;           /* that the scalar `micro` says; -1: none */
    int prog, row, step;     /* where it stands; row nrow: at the end */
    int met;                 /* a member of the collective looked at */
} Stage;

/* What ran, in order of start; step -1: a row of the table began. */
typedef struct InstrTiming {
    int stage, phase, step;
    int64_t micro;
    double start, end; /* seconds */
    int64_t from, to;  /* marks */
} InstrTiming;

typedef struct Exec {
    const Plan *plan;
    Arena *mem;
    Comm *comm;
    Pool *pool;
    const Device *dev;
    void *on;              /* what its row opened */
    struct Staged *staged; /* not null: the device has memory of its own */
    int late;      /* a run of it returns when it was launched, the results are
                      those of the one before */
    int hold;      /* of plans that may overflow: a step writes nothing, and
                      says that it did; a late one does so if the one before it
                      did */
    double waited; /* seconds in which the host only waited */
    Rank *rank;    /* comm->n of them */
    Stage *stage;
    int nstage;
    Stage **meet; /* room for all of them */
    void *copy;   /* exec_checked: buffers before a step */
    int64_t ncopy;
    const char *bad;            /* what exec_checked found */
    int poison;                 /* see poison.c */
    int64_t step, at;           /* of the last block; launched last, -1: none */
    Limits limits;              /* of every step */
    const Feed *feed;           /* of the run */
    _Atomic int64_t ticks;      /* steps of programs begun */
    _Atomic(const Instr *) now; /* the one that runs; null: none */
    _Atomic int64_t awaited;    /* step waited for, from 1; 0: none */
    InstrTiming *ran;
    int64_t nran, maxran; /* see exec_record */
    void **mark;          /* events */
    int64_t nmark;
    /* Before anything writes what lasts: guard is called, if not null, and the
     * device waits for `copied`, if not null, once a run (`ordered`). */
    void (*guard)(void *self);
    void *guarded;
    void *copied;
    int ordered;
    void *there[2];           /* mirror.c: events */
    void (*idle)(void *self); /* null, or called while a run is waited for */
    void *idler;
} Exec;

Exec *exec_open(const Plan *p, Comm *c);
Exec *exec_open_on(const Device *d, const Plan *p, Comm *c);
void exec_close(Exec *x);
/* Has its device memory of its own? Then arenas here are a mirror of it. */
int exec_apart(const Exec *x);
/* A table of the device's memory. Bytes outside of the plan. */
int64_t exec_usage(Exec *x, Text *t);
/* poison.c: what is not written yet is no number, when tests ask for it. */
int poison_asked(void);
void *poison_pages(void *p, int64_t bytes); /* p */
void poison_instr(const Rank *r, const BoundInstr *b);
/* Run a program once. feed and b may be null for programs without inputs.
 * err() when stages wait for each other. */
void exec_run(Exec *x, ProgramKind program, const StepValues *b,
              const Feed *feed);
int exec_settle(Exec *x); /* after late runs: the last one's results;
                                     0: they were here */
/* The same, after every step looking for the first NaN or infinity it makes:
 * one line that names tensor, place and rank; null: none. */
const char *exec_checked(Exec *x, ProgramKind program, const StepValues *b,
                         const Feed *feed);
/* From now on x->ran holds what the last run of this program did; NPROGRAM:
 * no longer. */
void exec_record(Exec *x, ProgramKind program);
/* That as Chrome's trace events: a process a stage; thread 0 has the rows, 1
 * the steps. */
char *exec_trace(Arena *a, const Exec *x, ProgramKind program, size_t *len);
/* A result of the last run ("loss", "grad_norm", "ok"); NAN: no such result. */
double exec_result(const Exec *x, const char *name);
double plain_nan(double v); /* v; of NaN the one that prints as "nan" */
/* Elements of a tensor of the table, whole, or of a buffer, as rank `rank`
 * holds it; -1: neither. At most cap are written to out. Every rank must live
 * in this process to read a tensor that is spread over ranks. */
int64_t exec_read(Exec *x, const char *name, int64_t rank, double *out,
                  int64_t cap);
int64_t exec_write(Exec *x, const char *name, const double *in, int64_t n);
void exec_pull(Exec *x); /* what lasts, to the mirror: before reading */
void exec_push(Exec *x); /* ... from it: after writing */
void exec_drop(Exec *x); /* the mirror is not read again */
int64_t exec_bytes(const Exec *x); /* arenas of all ranks here */
const Role *exec_role(const Exec *x, int64_t rank);
void *exec_buf(const Exec *x, int64_t rank, int buf);
void *exec_fetch(const Exec *x, int64_t rank, int buf); /* ... as it is now */
/* Of bytes in the device's arena: where the host has them, as they are now. */
void *exec_seen(const Exec *x, const Rank *r, const void *p, int64_t bytes);
/* Every input once, whatever stages read it; null: past the end. */
const Tensor *plan_input(const Plan *p, int i);

/* exec.c, for the others */
void exec_guard(Exec *x); /* before what lasts is written */
int instr_lasts(const Role *r, const Instr *s); /* does it write what lasts?*/
int scalar_named(const Role *r, const char *name); /* -1: none */

/* interpreter.c, for replay.c and others */
BoundInstr *rank_instr(const Rank *r); /* the one at which it stands */
double first_micro(const Exec *x, int64_t turn);
void exec_start(Exec *x, ProgramKind program); /* all stages */
void stage_next(Exec *x, Stage *s); /* its next step; row -1: the first */
void run_step(Exec *x, Stage *const *s, int n);
void exec_stages(Exec *x);              /* to their ends */
void exec_times(Exec *x, double began); /* of the marks to x->ran */

/* The scalars of a step. */
enum { NSTEPSCALAR = 7 };
typedef struct StepScalar {
    const char *name;
    double value;
} StepScalar;
int64_t step_scalars(const Exec *x, const StepValues *b, StepScalar *v);

/* replay.c: programs on a device with memory of its own */
typedef struct Staged Staged;
void staged_open(Exec *x);
void staged_close(Exec *x);
void staged_run(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed);
void staged_micro(Exec *x, int64_t turn); /* the scalar `micro` */
void staged_usage(const Exec *x, Text *t);

/* nan_check.c: the first bad number */
void look_open(Exec *x);
void look_close(Exec *x);
void look_before(Exec *x, Stage *const *s, int n);
void look_after(Exec *x, Stage *const *s, int n);

/* ---- cuda.c: a plan on a GPU --------------------------------------------- */

typedef struct Gpu {
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
    uint64_t work;       /* of products */
    int64_t total, used; /* bytes of the GPU; of those when last seen*/
    int64_t pinned;      /* bytes of the host's */
    struct {
        const char *what;
        int64_t bytes;
    } use[16];
    int nuse;
    void **fn; /* by kernel */
    Lt *lt;
    Nccl *nccl;
    Links *links;
    int64_t step;  /* of the run that is launched, from 0; -1 */
    int tuned;     /* shapes of products measured here */
    int capturing; /* calls become a graph */
    int error;     /* the last */
    void **graph;  /* vec: all there are */
    volatile uint32_t *trail;
    uint64_t trailat; /* word the GPU writes, where it sees it; 0: it does not*/
} Gpu;

void gpu_ok(int error, const char *what); /* err() unless error is 0 */
void gpu_drop_graphs(Gpu *x);

/* abort.c: from now on, when the run fails, what x waits for is aborted; null:
 * nothing is. */
void abort_watch(Gpu *x);
/* Around launching and taking results: after an abort others stay in hold. */
void abort_hold(void);
void abort_release(void);
/* From any thread, within seconds; then only the process' end may follow. */
void gpu_abort(void);
/* Null, or how another rank or the network has failed. */
const char *abort_asked(void);

/* gpu_fault.c: a call has failed. Returns if the GPU has not; else err() names
 * the run that is launched, or the one that was launched before and not
 * read. */
void gpu_fault(int error);
void fault_launching(Gpu *x, ProgramKind prog, int64_t step); /* x or null */

/* flight_recorder.c: at which collective the GPU is */
void trail_open(Gpu *x);
uint32_t trail_place(const Gpu *x, const Program *g, const Instr *s);
void trail_put(Gpu *x, uint32_t place, int ended);
/* As Device.where. */
const Instr *trail_at(const void *gpu, int *ended);

/* device.c */
int gpu_count(void);      /* of this process; 0: no GPU or no driver */
void gpu_list(FILE *f);   /* a line each */
void gpu_doctor(FILE *f); /* ... then what targets lack */
void device_open(Gpu *x);
uint64_t device_take(Gpu *x, int64_t bytes, const char *what);
void device_count(Gpu *x, const char *what); /* what is newly used, is its */
void *gpu_pinned(Gpu *x, int64_t bytes);
int64_t gpu_memory(void *gpu, Text *t); /* as Device.usage */

/* nvtx.c: ranges for profilers, one in another */
void nvtx_begin(const char *name);
void nvtx_end(void);

/* ---- collective_layout.c: what two ranks of a collective exchange -------- */

/* How a group's ranks hold their axis in halves (instructions.def); zig 0: as
 * one. */
typedef struct Zigzag {
    int64_t zig, low, ranks;
} Zigzag;

/* Where the block of a position begins in a buffer: each position's `step`
 * after the last, a second half `half` behind the first; or, placed, each half
 * at its place, `half` apart. */
typedef struct BlockPlace {
    int64_t step, half;
    int placed;
} BlockPlace;

/* A block is one or two times (halves) n[0] x n[1] x n[2] x n[3] runs of `run`
 * elements; strides in elements. */
typedef struct BlockLayout {
    int64_t n[4], src[4], dst[4], run;
    BlockPlace to;   /* in the sender's buffer, by receiver */
    BlockPlace from; /* in the receiver's buffer, by sender */
    Zigzag z;
    int halves;
} BlockLayout;

typedef enum DenseSide { NEITHER, DSTDENSE, SRCDENSE } DenseSide;

BlockLayout blocks_of(const Instr *s, int64_t ranks);
/* Half h of the block of a position, in elements. */
int64_t block_place(const BlockLayout *s, const BlockPlace *x, int64_t pos,
                    int64_t h);
int64_t block_elems(const BlockLayout *s);
/* Are blocks (or the only one) dense in a buffer, in group order? */
int is_dense(const BlockLayout *s, const int64_t *stride, const BlockPlace *x,
             int one);
/* The block from position `from` to position `to`. A dense side's pointer is
 * where the block begins, the other's where the buffer does. */
void copy_block(const BlockLayout *s, int size, const uint8_t *src, int64_t to,
                uint8_t *dst, int64_t from, DenseSide dense);

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
void watch_start(Exec *x); /* from now on x must make progress */
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
/* May this rank say why the run fails? Only the first one may. */
int watch_claim(void);

/* ---- data.c: inputs ------------------------------------------------------ */

typedef struct Data Data;
enum { DATAshuffle = 1 }; /* training order; else as in the files */
/* key "data.train" or "data.valid"; null when it is not set. */
Data *data_open(Arena *a, const Plan *p, const char *key, int flags);
/* ... of another place than the key says, in messages still the key's. */
Data *data_open_at(Arena *a, const Plan *p, const char *key, const char *spec,
                   int flags);
/* Inputs of the step that begins with this sample of the order. */
Feed data_feed(Data *d, int64_t first);
int64_t data_samples(const Data *d);
int64_t data_perstep(const Data *d); /* samples of one step */
int64_t data_vocab(const Data *d);   /* 0: unknown */
const Samples *data_source(const Data *d);
int64_t sample_elems(const Tensor *t); /* without micro and batch */
int64_t plan_vocab(const Plan *p); /* the largest axis of that role; 0: none */
/* The i-th sample in the files' order: its tokens, seq + 1 of them, to out when
 * there is one; -1 beyond the end. Returns how many; 0: these are no tokens. */
int64_t data_sample(const Data *d, int64_t i, int32_t *out);

/* ---- ngram.c: what counting alone predicts ------------------------------- */

enum { NGRAM = 3 }; /* loss[i]: of contexts of i bytes */
/* Cross-entropy of the first samples of valid by counts of train; 0: not
 * bytes. */
int ngrams(Arena *a, const Data *train, const Data *valid, int64_t samples,
           double loss[NGRAM]);

/* ---- lr_schedule.c: learning rate, batch --------------------------------- */

double rate(const Opts *o, int64_t step); /* of a step counted from 0 */
StepValues step_block(const Opts *o, int64_t step);
/* The i-th smaller batch of train.ramp, and the sample before which its steps
 * begin; 0: there are i of them. err() when the key is not to be read. */
int64_t ramp(const Opts *o, int i, int64_t *until);

/* A source of elements for one tensor: element (i0, i1, ...) of the tensor is
 * at base + sum of i[d] * stride[d]. Dims with fix[d] >= 0 are loaded only
 * there. */
typedef struct View {
    const uint8_t *data;
    const char *dt;
    int64_t base, stride[MAXD], fix[MAXD];
    /* Blocks of 128 x 128 elements of a matrix `cols` wide have a scale each.*/
    const float *scale;
    int64_t cols;
} View;
double view_get(const View *v, int64_t at); /* the source's element */
/* How many elements from `at` on, `step` apart, lie in the same block. */
int64_t view_same(const View *v, int64_t at, int64_t step);

#include "ckpt.h"

/* ---- events.c: TensorBoard ----------------------------------------------- */

typedef struct Events Events;
Events *events_open(Arena *a, int fd); /* closes fd */
/* A null e writes nothing, nor does one whose file could not be written. */
void event_scalar(Events *e, int64_t step, const char *tag, double v);
void event_text(Events *e, int64_t step, const char *tag, const char *s,
                size_t n); /* Markdown */
void events_close(Events *e);

/* ---- log.c: step lines and metrics.jsonl --------------------------------- */

typedef struct Log Log;
/* dir: the run's folder; null: lines only. */
Log *log_open(Arena *a, const Plan *p, const Exec *x, const char *dir);
void log_plan(Log *l, const Plan *p, const Exec *x); /* from now on */
/* A step that was run. samples: seen with it; secs: of the step; host: those in
 * which this process worked for it, < 0: all of them. */
typedef struct Logged {
    int64_t step, samples;
    double lr, secs, host;
} Logged;
void log_step(Log *l, const Exec *x, const Logged *s);
/* v: by result, as averaged. beside: more for the line, or "". */
/* set: the name of one of several validation sets; else null. */
void log_valid(Log *l, int64_t step, const char *set, const double *v,
               const char *beside);
void log_saved(Log *l, const Saved *s);
void log_sample(Log *l, int64_t step, const char *s, size_t n);
void log_note(Log *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void log_close(Log *l);

/* ---- train.c generate.c: commands ---------------------------------------- */

/* A smaller batch at the start of a run (train.ramp), by the same model. */
typedef struct RampStage {
    Plan *plan;
    int64_t until; /* its last step begins before this sample */
} RampStage;

typedef struct RunArgs {
    const char *text;
    size_t len; /* the plan's bytes; null: print them */
    const RampStage *ramp;
    int nramp;      /* smallest first; then the plan itself */
    int64_t replay; /* not 0: only reach this step again */
    int64_t begun;  /* ... with settings from this one on */
} RunArgs;
#include "record.h"

/* Train as the plan's keys say. The exit status; err() when something is
 * wrong. */
int run_plan(Plan *p, const RunArgs *a);
/* Validation only, on the weights of `from`. */
int eval_plan(Plan *p);

typedef struct GenArgs {
    const char *prompt;
    int64_t n;          /* tokens to make */
    double temperature; /* 0: always the likeliest */
    int64_t topk;       /* 0: all */
    uint64_t seed;
} GenArgs;
int generate_plan(Plan *p, const GenArgs *g, FILE *out);
/* Samples while x trains, as train.sample_... say; err() when this fold cannot.
 * All processes call sample(); free() its text, n bytes; null: no memory. */
typedef struct Sampler Sampler;
Sampler *sampler_open(Arena *a, Exec *x);
char *sample(Sampler *s, int64_t step, size_t *n);
/* Time `steps` steps on made-up tokens, step by step of the plan: bench.c. */
int bench_plan(Plan *p, int64_t steps, FILE *out);

#endif
