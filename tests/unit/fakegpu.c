/* fakegpu.c: a GPU that computes nothing, to run what is around the kernels:
 * opening, memory, order of launches and results, errors. All libraries in one
 * object. Memory is the host's; kernels and products do nothing; copies and
 * zeros are done, in graphs when these are launched. A copy to the host is done
 * when its event is asked for the second time, so what reads too early reads
 * old values. Memory begins as 1.0f everywhere; a result that is still 1.0f
 * comes as 1 + 0.001 * (runs so far), so it tells which run it is of. Copies on
 * another stream than the first are done when somebody waits for them, and not
 * earlier; a run that ends while some are not done has forgotten to wait.
 *
 * FAKE_GPU="key=value ..." sets
 *   count, name, major, minor   the devices; name7: what rank 7 has
 *   memory=MiB                  all of a device                 (1024)
 *   refuse=text                 the first kernel whose text has it
 *   illegal=n                   the n-th kernel that is loaded faults
 *   fault=n                     the GPU fails in that run
 *   nan=n-m                     results of these runs are NaN
 *   poison=n                    the n-th kernel that is loaded makes a NaN
 *   broken=n                    the same, and NCCL says that a peer has failed
 *   stuck=n                     in that run, if it is a graph, a collective
 *                               does not end before an abort
 *   abort=hangs                 what aborts
 *   fast=n                      of 3 algorithms for products the fastest
 * As NCCL does, an abort waits for the graphs that hold the communicator; a
 * line of what it ended goes to the file FAKE_LOG. */
#define _GNU_SOURCE
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NOTREADY = 600, NOMEMORY = 2, ILLEGAL = 700, MAXOP = 1 << 16 };

typedef struct NcclId {
    char c[128];
} NcclId;
typedef struct Op {
    void *to;
    const void *from;
    size_t n;
    int begins; /* tells that a collective does */
    int waits;  /* for what is on its way beside */
} Op;
typedef struct Graph {
    Op *op;
    int n;
} Graph;
typedef struct Event {
    int asked, run;
    Op copy;
    double at;
    int beside; /* recorded on another stream than the first */
} Event;

static Op result; /* to the host, not done yet */
static Graph *capturing;
static int runs, loaded, faulted;
static int opened, aborted, graphs; /* communicators; graphs with any */
static size_t used;

static const char *setting(const char *key, const char *none)
{
    static char value[8][128];
    static int slot;
    const char *s = getenv("FAKE_GPU");
    size_t n = strlen(key);
    char *out = value[slot++ % 8];

    for (; s && *s; s += *s != 0) {
        if (!strncmp(s, key, n) && s[n] == '=') {
            snprintf(out, 128, "%.*s", (int)strcspn(s + n + 1, " "), s + n + 1);
            return out;
        }
        s += strcspn(s, " ");
    }
    return none;
}

static size_t memory(void)
{
    return (size_t)atoll(setting("memory", "1024")) << 20;
}

/* ---- the device ---------------------------------------------------------- */

int cuDriverGetVersion(int *v)
{
    *v = 13000;
    return 0;
}

int cuDeviceGetCount(int *n)
{
    *n = atoi(setting("count", "1"));
    return 0;
}

int cuDeviceGetName(char *name, int len, int device)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char key[64];

    (void)device;
    snprintf(key, sizeof key, "name%s", rank ? rank : "");
    snprintf(name, (size_t)len, "%s", setting(key, setting("name", "H200")));
    return 0;
}

int cuDeviceGetAttribute(int *v, int attribute, int device)
{
    (void)device;
    *v = attribute == 75   ? atoi(setting("major", "9"))
         : attribute == 76 ? atoi(setting("minor", "0"))
         : attribute == 16 ? atoi(setting("processors", "132"))
                           : 1;
    return 0;
}

int cuDeviceGetUuid_v2(void *uuid, int device)
{
    memset(uuid, 7, 16);
    *(char *)uuid = (char)device;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *n, int device)
{
    (void)device;
    *n = memory();
    return 0;
}

int cuGetErrorString(int e, const char **text)
{
    *text = e == ILLEGAL    ? "an illegal memory access was encountered"
            : e == NOMEMORY ? "out of memory"
                            : "some error";
    return 0;
}

/* ---- memory -------------------------------------------------------------- */

int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    *total = memory();
    *left = *total - used;
    return 0;
}

static struct {
    char *p;
    size_t n;
} block[64];
static int nblock;

int cuMemAlloc_v2(uint64_t *p, size_t n)
{
    const float one = 1;

    if (used + n > memory())
        return NOMEMORY;
    used += n;
    char *m = aligned_alloc(256, (n + 511) / 256 * 256);
    for (size_t i = 0; i + 4 <= n; i += 4)
        memcpy(m + i, &one, 4);
    *p = (uint64_t)(uintptr_t)m;
    block[nblock].p = m;
    block[nblock++ % 63].n = n;
    return 0;
}

int cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    *p = calloc(1, n);
    return 0;
}

static int from_run(const char *what, int run)
{
    return run >= atoi(setting(what, "1000000"));
}

/* Does a collective of this run? */
static int waits(int run)
{
    return !aborted && (from_run("stuck", run) || from_run("broken", run));
}

/* Copies on other streams than the first. */
static struct {
    pthread_mutex_t lock;
    Op op[256];
    int n;
} late = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void act(Op o);

static void do_late(void)
{
    pthread_mutex_lock(&late.lock);
    for (int i = 0; i < late.n; i++)
        act(late.op[i]);
    late.n = 0;
    pthread_mutex_unlock(&late.lock);
}

static int is_late(void)
{
    pthread_mutex_lock(&late.lock);
    int n = late.n;
    pthread_mutex_unlock(&late.lock);
    return n > 0;
}

static void act(Op o)
{
    if (o.waits)
        do_late();
    else if (o.from)
        memmove(o.to, o.from, o.n);
    else
        memset(o.to, 0, o.n);
}

static int enqueue(Op o)
{
    if (!capturing) {
        act(o);
    } else {
        if (capturing->n == MAXOP)
            abort();
        capturing->op[capturing->n++] = o;
    }
    return 0;
}

static void *at(uint64_t p)
{
    return (void *)(uintptr_t)p;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    memcpy(at(to), from, n);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    memcpy(to, at(from), n);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s)
{
    (void)s;
    return enqueue((Op){ at(to), from, n, 0, 0 });
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s)
{
    (void)s;
    return enqueue((Op){ at(to), at(from), n, 0, 0 });
}

int cuMemsetD32Async(uint64_t p, unsigned v, size_t n, void *s)
{
    uint32_t *word = malloc(sizeof *word);

    (void)s;
    (void)n;
    *word = v;
    return enqueue((Op){ at(p), word, sizeof *word, !(v & 1), 0 });
}

int cuMemHostGetDevicePointer_v2(uint64_t *p, void *host, unsigned flags)
{
    (void)flags;
    *p = (uint64_t)(uintptr_t)host;
    return 0;
}

int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void *s)
{
    (void)s;
    (void)v;
    return enqueue((Op){ at(p), NULL, n, 0, 0 });
}

static void *first;

int cuStreamCreate(void **s, unsigned flags)
{
    static int n;

    (void)flags;
    *s = (void *)(intptr_t)++n;
    first = first ? first : *s;
    return 0;
}

int cuStreamWaitEvent(void *s, void *event, unsigned flags)
{
    Event *e = event;

    if (s != first || !e->beside)
        return 0;
    return !flags == !capturing ? enqueue((Op){ .waits = 1 }) : 905;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s)
{
    if (s != first) {
        pthread_mutex_lock(&late.lock);
        late.op[late.n++ % 256] = (Op){ to, at(from), n, 0, 0 };
        pthread_mutex_unlock(&late.lock);
        return 0;
    }
    if (is_late() && !waits(runs + 1)) {
        fprintf(stderr, "fakegpu: run %d did not wait for copies\n", runs);
        abort();
    }
    if (n > 1 << 20) { /* no results */
        memcpy(to, at(from), n);
        return 0;
    }
    result = (Op){ to, at(from), n, 0, 0 };
    runs++;
    return 0;
}

/* ---- streams, graphs, events --------------------------------------------- */

int cuStreamBeginCapture_v2(void *s, int mode)
{
    (void)s;
    (void)mode;
    capturing = calloc(1, sizeof *capturing);
    capturing->op = calloc(MAXOP, sizeof(Op));
    return 0;
}

int cuStreamEndCapture(void *s, void **g)
{
    (void)s;
    *g = capturing;
    capturing = NULL;
    return 0;
}

int cuGraphInstantiateWithFlags(void **x, void *g, unsigned long long flags)
{
    (void)flags;
    *x = g;
    graphs++;
    return 0;
}

int cuGraphExecDestroy(void *x)
{
    (void)x;
    graphs--;
    return 0;
}

int cuGraphGetNodes(void *g, void **node, size_t *n)
{
    (void)node;
    *n = (size_t)((Graph *)g)->n;
    return 0;
}

int cuGraphLaunch(void *x, void *s)
{
    Graph *g = x;

    (void)s;
    for (int i = 0; i < g->n; i++) {
        act(g->op[i]);
        if (g->op[i].begins && waits(runs + 1))
            break;
    }
    return 0;
}

int cuEventCreate(void **e, unsigned flags)
{
    (void)flags;
    *e = calloc(1, sizeof(Event));
    return 0;
}

/* The values are those of this moment; the reader sees them later. */
int cuEventRecord(void *event, void *s)
{
    Event *e = event;
    void *now = malloc(result.n + 1);

    e->beside = s != first;
    e->asked = 0;
    if (!result.n || e->beside)
        return 0;
    memcpy(now, result.from, result.n);
    *e = (Event){ 0, runs, { result.to, now, result.n, 0, 0 }, 0, 0 };
    result.n = 0;
    return 0;
}

static void tell(const Event *e)
{
    const char *nan = setting("nan", "0-0"), *to = strchr(nan, '-');
    int bad = e->run >= atoi(nan) && e->run <= atoi(to ? to + 1 : nan);
    float one = 1, v = bad ? NAN : 1 + 0.001f * (float)e->run;

    act(e->copy);
    for (size_t i = 0; i + 4 <= e->copy.n; i += 8)
        if (!memcmp((char *)e->copy.to + i, &one, 4))
            memcpy((char *)e->copy.to + i, &v, 4);
}

int cuEventQuery(void *event)
{
    Event *e = event;

    if (e->beside && !faulted) {
        int ready = e->asked++ > 0;
        if (ready)
            do_late();
        return ready ? 0 : NOTREADY;
    }
    faulted |= e->copy.n && e->run == atoi(setting("fault", "0"));
    if (faulted)
        return ILLEGAL;
    if (e->copy.n && (!e->asked++ || waits(e->run)))
        return NOTREADY;
    if (e->copy.n)
        tell(e);
    e->copy.n = 0;
    return 0;
}

int cuStreamSynchronize(void *s)
{
    (void)s;
    return faulted ? ILLEGAL : 0;
}

int cuStreamQuery(void *s)
{
    return cuStreamSynchronize(s);
}

/* ---- kernels, products, communicators ------------------------------------ */

int cuModuleGetFunction(void **fn, void *module, const char *name)
{
    (void)module;
    (void)name;
    *fn = (void *)(intptr_t)++loaded;
    return 0;
}

/* Every buffer of a kernel begins with a NaN. */
static void poison(void **params)
{
    const float nan = NAN;

    for (int i = 0; i < 2; i++) {
        char *p = *(char **)params[i];
        for (int k = 0; k < nblock && k < 64; k++)
            if (p >= block[k].p && p < block[k].p + block[k].n)
                memcpy(p, &nan, 4);
    }
}

int cuLaunchKernel(void *fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, void *s,
                   void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)s, (void)extra;
    if ((intptr_t)fn == atoi(setting("poison", "0")))
        poison(params);
    faulted |= (intptr_t)fn == atoi(setting("illegal", "0"));
    return 0;
}

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

static int refused;

int nvrtcCreateProgram(void **prog, const char *src, const char *name, int n,
                       const char *const *headers, const char *const *names)
{
    const char *text = setting("refuse", NULL);

    (void)name, (void)n, (void)headers, (void)names;
    *prog = text && strstr(src, text) ? &refused : NULL;
    return 0;
}

int nvrtcCompileProgram(void *prog, int n, const char *const *options)
{
    (void)n;
    (void)options;
    return prog == &refused ? 6 : 0;
}

static const char complaint[] = "k.cu(7): error: it is refused\n";

int nvrtcGetProgramLogSize(void *prog, size_t *n)
{
    (void)prog;
    *n = sizeof complaint;
    return 0;
}

int nvrtcGetProgramLog(void *prog, char *log)
{
    (void)prog;
    memcpy(log, complaint, sizeof complaint);
    return 0;
}

int nvrtcGetCUBINSize(void *prog, size_t *n)
{
    (void)prog;
    *n = 4;
    return 0;
}

int nvrtcGetCUBIN(void *prog, char *cubin)
{
    (void)prog;
    memcpy(cubin, "fake", 4);
    return 0;
}

typedef struct Proposal {
    uint64_t algo[8];
    char more[32];
} Proposal;

static uint64_t ran; /* algorithm of the last product */

int cublasLtMatmulAlgoGetHeuristic(void *lt, void *desc, void *A, void *B,
                                   void *C, void *D, void *pref, int n,
                                   void *results, int *found)
{
    Proposal *p = results;

    (void)lt, (void)desc, (void)A, (void)B, (void)C, (void)D, (void)pref;
    *found = n < 3 ? n : 3;
    for (int i = 0; i < *found; i++)
        p[i] = (Proposal){ { (uint64_t)i + 1 }, "" };
    return 0;
}

int cublasLtMatmul(void *lt, void *desc, const void *alpha, const void *A,
                   void *la, const void *B, void *lb, const void *beta,
                   const void *C, void *lc, void *D, void *ld, const void *algo,
                   void *work, size_t nwork, void *stream)
{
    (void)lt, (void)desc, (void)alpha, (void)A, (void)la, (void)B, (void)lb;
    (void)beta, (void)C, (void)lc, (void)D, (void)ld, (void)work, (void)nwork;
    (void)stream;
    memcpy(&ran, algo, sizeof ran);
    return 0;
}

int cuEventElapsedTime(float *ms, void *from, void *to)
{
    (void)from;
    (void)to;
    *ms = ran == (uint64_t)atoi(setting("fast", "1")) ? 1 : 2;
    return 0;
}

const char *ncclGetErrorString(int error)
{
    return error ? "remote process exited" : "no error";
}

static char communicator[64];

/* As NCCL refuses it: a least and a most are both given or neither. */
static int lopsided(const int *config)
{
    enum { MIN = 6, MAX };
    return (config[MIN] == INT_MIN) != (config[MAX] == INT_MIN);
}

int ncclCommInitRankConfig(void **comm, int n, NcclId id, int rank,
                           void *config)
{
    (void)n, (void)id, (void)rank;
    if (lopsided(config))
        return 4;
    *comm = &communicator[opened++];
    return 0;
}

int ncclCommSplit(void *comm, int color, int key, void **sub, void *config)
{
    (void)comm, (void)key;
    if (lopsided(config))
        return 4;
    *sub = color < 0 ? NULL : &communicator[opened++];
    return 0;
}

int ncclCommAbort(void *comm)
{
    char *c = comm;

    aborted += !*c;
    *c = 1;
    return 0;
}

int ncclGroupEnd(void)
{
    const char *to = getenv("FAKE_LOG");

    if (!aborted)
        return 0;
    while (graphs || !strcmp(setting("abort", ""), "hangs"))
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    FILE *f = to ? fopen(to, "a") : NULL;
    if (f) {
        fprintf(f, "%d of %d aborted after run %d\n", aborted, opened, runs);
        fclose(f);
    }
    return 0;
}

int ncclCommGetAsyncError(void *comm, int *error)
{
    (void)comm;
    *error = from_run("broken", runs) ? 6 : 0;
    return 0;
}

int ncclGetVersion(int *v)
{
    *v = 22807;
    return 0;
}
