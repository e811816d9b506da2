/* device.h: devices, which execute a plan's instructions. A device is a table
 * of functions. Other code never tests which device it has: it calls the table
 * or tests an ability.
 *
 * A device has arenas, streams and events. Calls of one stream run in the order
 * of their submission; only events order calls of different streams. A device
 * that computes inside the call (host) never waits. */
#ifndef PLEAT_DEVICE_H
#define PLEAT_DEVICE_H

#include "../comm/comm.h"

/* Abilities that a plan or a run may require. */
typedef enum Ability {
    CANrun = 1,       /* executes instructions */
    CANranks = 2,     /* several ranks in one process */
    CANorder = 4,     /* sums of collectives in rank order */
    CANcapture = 8,   /* calls become a graph, launched as one */
    OWNmemory = 16,   /* memory apart from the host's: persistent data has a
                         mirror, inputs and results are staged, and runs are
                         launched before the last results are read */
    OWNproducts = 32, /* chooses algorithms of products, alike on all ranks */
} Ability;

typedef enum ArenaKind {
    ARENAdevice, /* device memory: buffers of plans */
    ARENApeer,   /* like ARENAdevice, of one size on all ranks and accessible to
                    this machine's ranks; one a device, for row exchanges */
    ARENApinned, /* host memory that a device copies asynchronously */
    ARENAstash   /* device memory: tensors that outlive their layer */
} ArenaKind;

/* Uses of a device's memory, in messages and in the table of `usage`. */
typedef enum MemoryUse {
    MEMcontext,
    MEMkernels,
    MEMproducts,
    MEMcommunicators,
    MEMgraphs,
    MEMwork,
    MEMplan,
    MEMoffloaded,
    MEMresults,
    MEMstate,
    NMEMORYUSE
} MemoryUse;

extern const char *const memory_uses[NMEMORYUSE];

typedef enum CopyKind { COPYwithin, COPYin, COPYout } CopyKind;

typedef enum EventKind {
    EVENTplain,
    EVENTtimed,  /* has a time, for `between` */
    EVENToutside /* recorded outside graphs: a graph that waits for it uses the
                    last record before its launch */
} EventKind;

/* An instruction bound to a rank. */
typedef struct BoundInstr {
    const Instr *instr;
    int64_t rank;
    void **buf; /* device addresses; of framed buffers: of this micro-batch */
    int64_t *iv;
    int64_t
        *add; /* element of iv that is 1 to accumulate; null: there is none */
    int adds; /* 0: this run stores, later runs accumulate (store_first) */
    int64_t bytes;             /* zero, copy, send, recv, wait */
    CopyKind copy;             /* copy */
    int64_t group, *ranks, me; /* collectives, transfers */
    int wide;                  /* collective with members in other stages */
    int lasts;                 /* it writes persistent data */
    StreamKind on;             /* stream */
    void **wait;               /* vec: events that it waits for */
    void *signal;              /* event recorded after it, or null */
    void *own;                 /* the device's own data */
} BoundInstr;

/* FLOP/s of products in a precision, bytes/s of memory; 0: unknown. */
typedef struct Roofline {
    double flops, bytes;
} Roofline;

typedef struct DeviceArgs {
    Arena *mem;
    const Plan *plan;
    Comm *comm;
    Pool *pool;
} DeviceArgs;

/* Functions of a device. d: result of open. Addresses are device memory unless
 * stated. Failures call err(). */
typedef struct Device {
    const char *name;   /* name of the target whose plans it runs */
    unsigned can;       /* bit set of abilities */
    int (*count)(void); /* devices that this process could use */
    /* Initialization before open that needs no plan, in parts 0, 1, ..; returns
     * 0 after the last part. May be null. */
    int (*wake)(int part);

    /* Called in this order: open, alloc of the ranks' arenas, load, bind for
     * each instruction, bound. runs: executions of the instruction in a
     * program. */
    void *(*open)(const DeviceArgs *a);
    /* After open: compiles the kernels of n plans on all processors, for their
     * later loads. May be null. */
    void (*prepare)(void *d, Plan *const *plan, int n);
    void (*load)(void *d);
    void (*bind)(void *d, BoundInstr *b, const Program *g, int64_t runs);
    void (*bound)(void *d);
    void (*close)(void *d);

    void *(*alloc)(void *d, ArenaKind k, int64_t bytes, MemoryUse use);
    void (*free)(void *d, ArenaKind k, void *p, int64_t bytes);
    /* Called by all ranks together: allocates an arena of `bytes` each, which
     * all ranks of this machine access. Returns the arenas by rank; null: a
     * rank of another machine. Initial contents are those of alloc. */
    void **(*peers)(void *d, int64_t bytes, MemoryUse use);
    void (*drop_peers)(void *d, void **at, int64_t bytes);
    /* OWNmemory: registers host memory for copies. Returns 0 if it failed. */
    int (*pin)(void *d, void *p, int64_t bytes);
    void (*unpin)(void *d, void *p, int64_t bytes);

    /* Before and after the instructions of a program. */
    void (*begin)(void *d);
    void (*finish)(void *d);
    int (*ready)(void *d, const BoundInstr *b); /* would it not block? */
    void (*launch)(void *d, const BoundInstr *b);
    void (*product)(void *d, const BoundInstr *b);
    void (*transfer)(void *d, const BoundInstr *b);
    /* part: this rank's; of all ranks of the group if they share the process */
    void (*collective)(void *d, const BoundInstr *b, const Part *part);
    void (*clear)(void *d, StreamKind on, void *p, int64_t bytes);
    void (*copy)(void *d, StreamKind on, CopyKind k, void *to, const void *from,
                 int64_t bytes);
    void (*issued)(void *d, const BoundInstr *b); /* after each one; or null */

    void *(*event)(void *d, EventKind k); /* lives as long as the device */
    void (*record)(void *d, StreamKind on, void *event);
    void (*wait)(void *d, StreamKind on, void *event);
    int (*query)(void *d, void *event); /* any thread; 1: pending; -1: failed */
    void (*sync)(void *d, StreamKind on);
    double (*between)(void *d, void *from, void *to); /* seconds */

    /* CANcapture: calls between capture and captured become a graph and do not
     * run; replay launches it. *nodes grows by the graph's nodes. */
    void (*capture)(void *d);
    void *(*captured)(void *d, size_t *nodes);
    void (*replay)(void *d, void *graph);

    /* OWNmemory: enclose launching and taking results; errors in between belong
     * to this run. issued: step whose instructions are called; -1: none. */
    void (*enter)(void *d, ProgramKind prog, int64_t step, int64_t issued);
    void (*leave)(void *d);
    void (*fault)(void *d, const char *what); /* after query returned -1 */
    /* Returns the current collective, or (*ended) the last one; null: unknown.
     * Any thread. May be null. */
    const Instr *(*where)(const void *d, int *ended);

    const char *(*chip)(const void *d); /* name of the chip */
    int64_t (*memory)(const void *d);   /* bytes of its memory */
    int64_t (*usage)(void *d,
                     Text *t); /* a table; returns bytes outside the plan */
    Roofline (*peak)(void *d, Dtype dt);
    void (*tuned)(const void *d,
                  Text *t); /* lines: choices that affect results */
    void (*report)(FILE *f, const Plan *p); /* replaces a run; or null */
} Device;

extern const Device host_device, cuda_device, null_device;
/* Returns the first device of the table that this process has. */
const Device *device_here(void);
const Device *device_named(const char *name); /* null: no such device */
/* Returns the device that runs p with comm's ranks; err() if it lacks an
 * ability. */
const Device *device_for(const Plan *p, const Comm *comm);

/* Calls err() if no device executes p. */
void need_device(const Plan *p);

/* gpu_fault.c: f is called before the process restarts to name the call that
 * failed */
void fault_first(void (*f)(void));
/* tune.c: choices in this file, that of a resumed run, precede the cache's. */
void tune_from(const char *path);

/* nvtx.c: nested ranges for profilers */
void nvtx_begin(const char *name);
void nvtx_end(void);

/* ---- doctor.c: inventory of this machine --------------------------------- */

const char *host_compiler(void); /* first line of its --version */
const char *
host_compiler_here(int *bad); /* ... or the reason why there is none */
int gpu_count(void);          /* GPUs of this process; 0: no GPU or no driver */
void gpu_list(FILE *f);       /* a line each */
/* Prints a line for the compiler and for each open library, or for all. */
void dl_list(FILE *f, int all);
/* Prints a line for each library, the compiler, the processor: `pleat
 * doctor`. */
void doctor(FILE *f);

#endif
