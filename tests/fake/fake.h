/* fake.h: GPUs made of this machine, to train with target=cuda without one. One
 * object stands for libcuda, NVRTC, cuBLASLt and NCCL (tests/fake/README.md
 * says how to use it); every function of runtime/process/syms.def that is not
 * here succeeds and does nothing (stubs.c).
 *
 * What is asynchronous on a GPU is a task. A stream's tasks run in order, when
 * somebody waits, at the latest legal moment or by chance (streams.c). Tasks of
 * a capture become the nodes of a graph. */
#ifndef PLEAT_FAKE_H
#define PLEAT_FAKE_H

#include <stddef.h>
#include <stdint.h>

enum { LEAST = 0, GREATEST = -5 }; /* priorities */

enum { /* CUDA's numbers */
       INVALID = 1,
       NOMEMORY = 2,
       NOTREADY = 600,
       ILLEGAL = 700,
       TOOLARGE = 701,
       CAPTURING = 900,
       UNJOINED = 904,
       ISOLATED = 905,
       ISCAPTURED = 907
};

/* ---- settings.c ---------------------------------------------------------- */

/* The value of key in $FAKE_GPU ("key=value key=value"), or none. */
const char *setting(const char *key, const char *none);
int64_t setting_number(const char *key, int64_t none);
/* Kernels, products and collectives do nothing: for what is around them. */
int idle(void);
/* A number below n, the next of seed=. */
unsigned one_of(unsigned n);
/* A line on stderr, that this use of a library is wrong. Returns the status. */
int wrong(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- memory.c ------------------------------------------------------------ */

/* Where n bytes of device memory lie in this process, NULL (and a line that
 * names what) when they are not all in one allocation. Addresses that the
 * program under test sees are others: using one on the host is a fault. */
void *device_at(uint64_t p, size_t n, const char *what);
/* The same for mapped memory of the host too. */
void *mapped_at(uint64_t p, size_t n, const char *what);
/* An argument of a kernel: device addresses become this process' own. */
uint64_t local_address(uint64_t v);
int is_device(const void *local, size_t n);

/* A kernel that is given other processes' memory waits for theirs in place, and
 * what these wait for may be this process'. So it begins when all stand before
 * theirs; 0: not now. */
int peers_come(const uint64_t *arg, int n);

/* ---- streams.c ----------------------------------------------------------- */

typedef struct Stream Stream;
typedef enum Moved { BLOCKED, MOVED, DONE } Moved;

/* One execution of a task. */
typedef struct Run {
    int stage;
    int number;   /* of the run of a program, see faults.c */
    int replayed; /* by a graph */
    void *state;  /* malloc'ed by the task, freed after it */
} Run;

typedef struct Task {
    Moved (*go)(const void *what, Run *r);
    void (*forget)(void *what);
    void *what;
    int holders;
} Task;

/* Behind what the stream has. `what` belongs to the task. */
int enqueue(Stream *s, Moved go(const void *, Run *), void forget(void *),
            void *what);
int is_capturing(const Stream *s);
int drain(Stream *s);     /* until it has nothing left; NULL: all of them */
int is_stalled(void);     /* does a stream wait for an event? */
int move_something(void); /* a task or a part of one; 0: all are blocked */
void device_lock(void);
void device_unlock(void);
/* The device's own clock, which products and kernels move. */
void pass_time(double ms);

/* ---- graphs.c ------------------------------------------------------------ */

typedef struct Graph Graph;
typedef struct Tail { /* what a captured stream or event stands behind: vec */
    int *node;
    int n;
} Tail;

void tail_add(Tail *to, const Tail *from);
void tail_copy(Tail *to, const Tail *from);
Graph *graph_new(void);
void graph_free(Graph *g);
void graph_add(Graph *g, Tail *behind, Task *t);
int graph_has(const Graph *g, const Tail *all, const Tail *one);

/* ---- faults.c: what goes wrong on purpose -------------------------------- */

extern int faulted; /* the error that all calls return from then on */
int runs_begun(void);
int next_run(void); /* a result is on its way */
int from_run(const char *what, int run);
void tell_result(void *to, size_t n, int run);
int refuses(const char *text);
/* The n-th kernel is loaded; what becomes of a launch. */
int kernel_loaded(void);
void kernel_runs(int kernel, const uint64_t *arg, int n);

/* ---- comms.c, group.c ---------------------------------------------------- */

int graphs_of_comms(void); /* that hold a communicator */
void comms_held(const Task *t, int by);

#endif
