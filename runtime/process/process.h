/* process.h: this process and what it has of its machine: libraries, threads,
 * memory, a folder that is its own, its place among those that were started. */
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

typedef struct Dl { /* null where the library was not found */
#define SYM(id, name, ret, args) ret(*name) args;
#define OBJ(id, name)            void *name;
#include "syms.def"
} Dl;

extern Dl dl;
/* 1: found, its symbols are in dl. 0: dl_why() says why not. */
int dl_open(Lib l);
/* A thread maps it, for a later dl_open: of cuBLASLt 13.0 95 MB are relocated,
 * which takes 70 ms, 1 s where the disk is read. Its constructors look up the
 * driver's functions and call none, so they wait for no lock of the driver. */
void dl_begin(Lib l);
void dl_settle(void); /* before a fork whose process opens libraries */
const char *dl_why(Lib l);
/* "needs libzstd: not found (apt install libzstd1)" */
const char *dl_missing(Arena *a, Lib l);
const char *dl_what(Lib l); /* "GPU driver" */
const char *dl_name(Lib l);
int dl_is_open(Lib l); /* was it asked for, and found? */
/* ---- limits.c: the first call of a program ------------------------------- */

extern const char built_from[];         /* of the program, not of the folder */
void process_start(const char *commit); /* that */
/* On: a fault or abort() of this process ends it with INTERNAL_ERROR; off: by
 * its signal. */
void catch_faults(int on);

/* ---- startup.c: time, and what that before the first step goes to -------- */

double monotonic(void);             /* seconds, of a clock that only grows */
void start_phase(const char *name); /* ends the one before; null */
void start_says(Text *out);         /* a line: all of them */

/* ---- hostmem.c: the host's memory ---------------------------------------- */

void *pages(int64_t bytes, const char *what); /* zeroed */
void drop_pages(void *p, int64_t bytes);
int64_t host_free(void);              /* bytes that this process may take */
int64_t host_memory(void);            /* ... that the machine has */
const char *host_processor(Arena *a); /* its name, or "unknown" */
/* Its name and flags as Linux lists them: what its best kernels depend on. */
const char *processor_text(Arena *a);
/* With PLEAT_POISON=1, for tests: what is not written yet is no number. */
int poison_asked(void);
void *poison_pages(void *p, int64_t bytes); /* p */
/* A file. Null, or why not. */
const char *map_whole(Arena *a, const char *path, const uint8_t **p,
                      int64_t *n);

/* ---- elem.c: an element in memory ---------------------------------------- */

double elem_get(Dtype dt, const void *p, int64_t i);
/* The number at p, aligned or not. kind: 'f' 'i' 'u'; 8, 4, 2 or 1 bytes, a
 * real 8 or 4. */
double number_get(char kind, int bytes, const void *p);
void elem_set(Dtype dt, void *p, int64_t i, double v);

/* ---- cache.c: what is made once ------------------------------------------ */

const char *cache_folder(void); /* private, made when missing */
/* Whole or not at all: other ranks may be writing the same file. */
void cache_keep(const char *path, const void *p, size_t n);

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
void pool_close(Pool *pool);
int pool_size(const Pool *pool);
/* f on disjoint ranges that cover [0, n), none smaller than grain but the last;
 * returns when all are done. */
void pool_run(Pool *pool, Work *f, void *ctx, int64_t n, int64_t grain);
void pool_copy(Pool *pool, void *to, const void *from, int64_t bytes);
/* Bytes/s of memory that its threads read and write in place, measured. */
double pool_moves(Pool *pool);

/* ---- workers.c: processes ------------------------------------------------ */

enum { MAXWORKERS = 32 };
typedef struct Workers Workers;
typedef void WorkerCall(void *ctx, int64_t i);
/* n processes at most make call(ctx, i) of each i < calls, in this order; exit
 * ends them. Once at a time, and not behind MPI_Init, which no fork survives.
 * Null: there is no memory. */
Workers *workers_start(int n, WorkerCall *call, void *ctx, int64_t calls);
void workers_join(Workers *workers); /* waits for them; null */

/* ---- launch.c: who this process is among ranks --------------------------- */

/* Ranks and this rank by the launcher's environment; 1 and 0 without one. */
int64_t launch_world(void);
int64_t launch_rank(void);
int64_t launch_local(void); /* ranks of this job on this host */
int launched(void);         /* by a launcher that MPI knows */
int64_t launch_lost(void);  /* programs that one it does not started */
int64_t launch_place(void); /* this rank among them */

#endif
