/* device.h: what executes a plan's instructions. A device is a row of
 * functions. No code outside of a row asks which device it
 * is: it calls the row, or asks for an ability.
 *
 * A device has arenas, streams and events. Calls of one stream run in the order
 * in which they were given; between streams only events order. A device that
 * computes while it is called (host) has nothing to wait for. */
#ifndef PLEAT_DEVICE_H
#define PLEAT_DEVICE_H

#include "../comm/comm.h"

/* What a plan or a run of it may require. */
typedef enum Ability {
    CANrun = 1,       /* execute at all */
    CANranks = 2,     /* several ranks in one process */
    CANorder = 4,     /* sums of collectives in rank order */
    CANcapture = 8,   /* calls become a graph, launched as one */
    OWNmemory = 16,   /* not the host's, where what lasts has a mirror and
                         inputs and results are staged; runs are launched ahead
                         of their results */
    OWNproducts = 32, /* the same on all ranks, who all have it */
} Ability;

typedef enum ArenaKind {
    ARENAdevice, /* where buffers of plans lie */
    ARENApeer,   /* the same, of as many bytes on all ranks, reached by those
                    of this machine: one a device, for exchanges of rows */
    ARENApinned, /* of the host, to and from which a device copies by itself */
    ARENAstash   /* of the device: what outlives its layer */
} ArenaKind;

/* What a device's memory is for: in messages and in the table of `usage`. */
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
    EVENToutside /* recorded outside of graphs: one that waits for it takes it
                    as it is when the graph is launched */
} EventKind;

/* An instruction of one rank, with all that it needs. */
typedef struct BoundInstr {
    const Instr *instr;
    int64_t rank;
    void *
        *buf; /* in the device's memory; of framed ones: of this micro-batch */
    int64_t *iv;
    int64_t *add; /* of iv: does it add? null: no word says so */
    int adds; /* 0: now it stores what it adds in other runs (store_first) */
    int64_t bytes;             /* zero, copy, send, recv, wait */
    CopyKind copy;             /* copy */
    int64_t group, *ranks, me; /* collectives, transfers */
    int wide;                  /* collective with members in other stages */
    int lasts;                 /* it writes what lasts */
    StreamKind on;             /* and behind what, and who may wait for it */
    void **wait;               /* vec: events */
    void *signal;              /* event, or null */
    void *own;                 /* the device's */
} BoundInstr;

/* Per second: FLOPs of products in a precision, bytes of memory; 0: unknown. */
typedef struct Roofline {
    double flops, bytes;
} Roofline;

typedef struct DeviceArgs {
    Arena *mem;
    const Plan *plan;
    Comm *comm;
    Pool *pool;
} DeviceArgs;

/* d: what open gave. Addresses are of the device's memory where nothing else is
 * said. err() where something fails. */
typedef struct Device {
    const char *name;   /* of the target whose plans it runs */
    unsigned can;       /* abilities */
    int (*count)(void); /* how many this process could have */
    /* Before open, in parts from 0, what it needs of no plan; 0: there is no
     * further part. Or null. */
    int (*wake)(int part);

    /* In this order: open, alloc of the ranks' arenas, load, a bind for each
     * instruction, bound. runs: how often it runs in a program. */
    void *(*open)(const DeviceArgs *a);
    /* After open: compiles what these plans need at once, on all processors, so
     * that their loads find it; or null. */
    void (*prepare)(void *d, Plan *const *plan, int n);
    void (*load)(void *d);
    void (*bind)(void *d, BoundInstr *b, const Program *g, int64_t runs);
    void (*bound)(void *d);
    void (*close)(void *d);

    void *(*alloc)(void *d, ArenaKind k, int64_t bytes, MemoryUse use);
    void (*free)(void *d, ArenaKind k, void *p, int64_t bytes);
    /* Peer arenas, asked for by all ranks at once, of so many bytes each: those
     * of all ranks of this machine, which read and write them all. By rank;
     * null: a rank of another machine. They begin as what alloc gives. */
    void **(*peers)(void *d, int64_t bytes, MemoryUse use);
    void (*drop_peers)(void *d, void **at, int64_t bytes);
    /* With memory of its own: the host's as if it were an arena; 0: not so. */
    int (*pin)(void *d, void *p, int64_t bytes);
    void (*unpin)(void *d, void *p, int64_t bytes);

    /* Before and after the instructions of a program. */
    void (*begin)(void *d);
    void (*finish)(void *d);
    int (*ready)(void *d, const BoundInstr *b); /* it would not wait */
    void (*launch)(void *d, const BoundInstr *b);
    void (*product)(void *d, const BoundInstr *b);
    void (*transfer)(void *d, const BoundInstr *b);
    /* part: of this rank; of all of the group where they are all here */
    void (*collective)(void *d, const BoundInstr *b, const Part *part);
    void (*clear)(void *d, StreamKind on, void *p, int64_t bytes);
    void (*copy)(void *d, StreamKind on, CopyKind k, void *to, const void *from,
                 int64_t bytes);
    void (*issued)(void *d, const BoundInstr *b); /* after each; or null */

    void *(*event)(void *d, EventKind k); /* lives as long as the device */
    void (*record)(void *d, StreamKind on, void *event);
    void (*wait)(void *d, StreamKind on, void *event);
    int (*query)(void *d, void *event); /* any thread; 1: not yet; -1: failed */
    void (*sync)(void *d, StreamKind on);
    double (*between)(void *d, void *from, void *to); /* seconds */

    /* With CANcapture: what `compute` gets between capture and captured becomes
     * a graph and does not run; replay launches it. nodes: added to. */
    void (*capture)(void *d);
    void *(*captured)(void *d, size_t *nodes);
    void (*replay)(void *d, void *graph);

    /* With memory of its own: around launching and taking results. What fails
     * in between is this run's; issued: the step whose instructions are called;
     * -1: none. */
    void (*enter)(void *d, ProgramKind prog, int64_t step, int64_t issued);
    void (*leave)(void *d);
    void (*fault)(void *d, const char *what); /* after query gave -1 */
    /* The collective at which it is, or (*ended) which it is behind; null:
     * unknown. Any thread. Or null. */
    const Instr *(*where)(const void *d, int *ended);

    const char *(*chip)(const void *d); /* its name */
    int64_t (*memory)(const void *d);   /* bytes there are */
    int64_t (*usage)(void *d, Text *t); /* a table; bytes outside of the plan */
    Roofline (*peak)(void *d, Dtype dt);
    void (*tuned)(const void *d, Text *t);  /* what results depend on: lines */
    void (*report)(FILE *f, const Plan *p); /* in place of running it, or null*/
} Device;

extern const Device host_device, cuda_device, null_device;
/* The first row of which this process has one. */
const Device *device_here(void);
const Device *device_named(const char *name); /* null: no such row */
/* The one that runs p, for comm's ranks; err() where it lacks an ability. */
const Device *device_for(const Plan *p, const Comm *comm);

/* err() where nothing executes it */
void need_device(const Plan *p);

/* gpu_fault.c: before the process starts again, to name the call that failed */
void fault_first(void (*f)(void));
/* tune.c: from now on what this file has comes first: a resumed run's. */
void tune_from(const char *path);

/* nvtx.c: ranges for profilers, one in another */
void nvtx_begin(const char *name);
void nvtx_end(void);

/* ---- doctor.c: what this machine has ------------------------------------- */

const char *host_compiler(void);          /* first line of its --version */
const char *host_compiler_here(int *bad); /* ... or why there is none */
int gpu_count(void);    /* of this process; 0: no GPU or no driver */
void gpu_list(FILE *f); /* a line each */
/* The compiler, and a line for each library that is open, or of all. */
void dl_list(FILE *f, int all);
/* One line for each library, the compiler, the processor: `pleat doctor`. */
void doctor(FILE *f);

#endif
