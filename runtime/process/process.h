/* process.h: this process and its machine: libraries, threads, memory, cache
 * folder, place among the launched processes. */
#ifndef PLEAT_PROCESS_H
#define PLEAT_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../ir/plan/plan.h"
#include "json.h"

/* ---- dl.c: libraries found at run time, one table: syms.def -------------- */

typedef enum Lib {
#define LIB(id, what, names, package) LIB##id,
#include "syms.def"
    NLIB
} Lib;

typedef struct NcclId {
    char c[128];
} NcclId;

typedef struct IpcHandle {
    char c[64];
} IpcHandle;

typedef struct Dl { /* functions; null if the library was not found */
#define SYM(id, name, ret, args) ret(*name) args;
#define OBJ(id, name)            void *name;
#include "syms.def"
} Dl;

extern Dl dl;
/* Returns 1 and fills dl with a library's functions, or 0: dl_why() has the
 * reason. */
int dl_open(Lib l);
/* Starts a thread that maps a library for a later dl_open, since relocating
 * cuBLASLt takes long. Its constructors look up the driver's functions and call
 * none, so they wait for no lock of the driver. */
void dl_begin(Lib l);
/* Waits for these threads; call it before a fork whose child opens
 * libraries. */
void dl_settle(void);
const char *dl_why(Lib l);
/* "needs libzstd: not found (apt install libzstd1)" */
const char *dl_missing(Arena *a, Lib l);
const char *dl_what(Lib l); /* "GPU driver" */
const char *dl_name(Lib l);
int dl_is_open(Lib l); /* did a dl_open of it succeed? */
/* ---- limits.c: the first call of a program ------------------------------- */

extern const char built_from[]; /* commit from which the program was built */
void process_start(const char *commit); /* commit: built_from */
/* on: a fault or abort() ends this process with status INTERNAL_ERROR; off: by
 * its signal. */
void catch_faults(int on);

/* ---- startup.c: clock, and phases before the first step ------------------ */

double monotonic(void); /* seconds of a monotonic clock */
void start_phase(
    const char *name);      /* ends the current phase; null: begins none */
void start_says(Text *out); /* a line with the seconds of all phases */

/* ---- hostmem.c: the host's memory ---------------------------------------- */

void *pages(int64_t bytes, const char *what); /* zeroed */
void drop_pages(void *p, int64_t bytes);
int64_t host_free(void);              /* bytes that this process can allocate */
int64_t host_memory(void);            /* bytes of the machine's memory */
const char *host_processor(Arena *a); /* its name, or "unknown" */
/* Returns the processor's name and flags as Linux lists them; the choice of
 * kernels depends on them. */
const char *processor_text(Arena *a);
/* Is PLEAT_POISON=1 set? Tests then fill unwritten memory with NaN. */
int poison_asked(void);
void *poison_pages(void *p, int64_t bytes); /* returns p */
/* Maps a whole file read-only. Returns null, or the reason why not. */
const char *map_whole(Arena *a, const char *path, const uint8_t **p,
                      int64_t *n);

/* ---- elem.c: an element in memory ---------------------------------------- */

double elem_get(Dtype dt, const void *p, int64_t i);
/* Returns the number at p, which may be unaligned. kind: 'f' 'i' 'u'; bytes: 8,
 * 4, 2 or 1, a real has 8 or 4. */
double number_get(char kind, int bytes, const void *p);
void elem_set(Dtype dt, void *p, int64_t i, double v);

/* ---- cache.c: results that later runs use again -------------------------- */

const char *cache_folder(void); /* private; created if missing */
/* Writes a file atomically: other ranks may write the same one. Failures are
 * ignored. */
void cache_keep(const char *path, const void *p, size_t n);

/* ---- coretype.c: OpenBLAS's core type ------------------------------------ */

/* Sets OPENBLAS_CORETYPE if OpenBLAS would choose badly; call it before the
 * library is loaded. */
void coretype_choose(void);
/* Returns "OpenBLAS 0.3.21, kernels for Haswell"; equal texts give bit-equal
 * products. */
const char *blas_kind(void);
int64_t blas_hash(void); /* hash of blas_kind(), not negative */
int blas_wrong(void);    /* does no type compute right products? */
/* Returns the type that was set and the reason; null: none was set. */
const char *blas_note(void);

/* ---- pool.c: threads ----------------------------------------------------- */

typedef struct Pool Pool;
typedef void Work(void *ctx, int64_t lo, int64_t hi);
/* threads 0: $PLEAT_THREADS, or this process's share of the processors. Never
 * freed. */
Pool *pool_open(int threads);
void pool_close(Pool *pool);
int pool_size(const Pool *pool);
/* Calls f on disjoint ranges that cover [0, n), each at least `grain` long but
 * the last, and returns when all are done. */
void pool_run(Pool *pool, Work *f, void *ctx, int64_t n, int64_t grain);
void pool_copy(Pool *pool, void *to, const void *from, int64_t bytes);
/* Measures the bytes/s at which the pool's threads update memory in place. */
double pool_moves(Pool *pool);

/* ---- workers.c: processes ------------------------------------------------ */

enum { MAXWORKERS = 32 };
typedef struct Workers Workers;
typedef void WorkerCall(void *ctx, int64_t i);
/* Starts at most n processes that make call(ctx, i) for each i < calls, in this
 * order; exit of this process ends them. Only one set at a time, and not after
 * MPI_Init, since MPI does not support fork. Returns null if memory is
 * short. */
Workers *workers_start(int n, WorkerCall *call, void *ctx, int64_t calls);
void workers_join(Workers *workers); /* waits for all; workers may be null */

/* ---- launch.c: world size and rank --------------------------------------- */

/* World size and rank by the launcher's environment; 1 and 0 without one. */
int64_t launch_world(void);
int64_t launch_rank(void);
int64_t launch_local(void); /* ranks of this job on this host */
int launched(void);         /* was a launcher that MPI knows used? */
int64_t launch_lost(void);  /* processes started by a launcher that MPI lacks */
int64_t launch_place(void); /* index of this process among those */

#endif
