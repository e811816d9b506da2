/* memory.c: memory of the device and pinned memory of the host; copies. An
 * address of the device is an address here plus SHIFT, where nothing is, so
 * host code that uses one faults. Memory begins as NaNs of every type (all bits
 * set), between pages that nobody may touch. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { MOST = 512, PAGE = 4096, MAPPED = 2, RESULTS = 1 << 20 };

static const uintptr_t first = (uintptr_t)0x2000 << 32;
static const uint64_t SHIFT = (uint64_t)0x3000 << 32;

typedef struct StepValues {
    char *p;
    size_t n;
    int mapped;         /* of the host: is it the device's too? */
    int theirs;         /* the program's own, registered */
    int fd;             /* of the device: the file whose pages it is */
    int peer;           /* another process', its id; 0: this one's */
    struct Door *doors; /* behind the file's pages, shared */
} StepValues;

/* Where a set of processes meets: how often it has, and who stands there. */
typedef struct Door {
    _Atomic int set;       /* sum of their ids; 0: free */
    _Atomic uint64_t word; /* meetings << 32 | processes */
} Door;
enum { DOORS = 64, WINDOW = 10 }; /* ms */

static StepValues device[MOST], pinned[MOST];
static int ndevice, npinned;
static size_t used;

static size_t total(void)
{
    return (size_t)setting_number("memory", 1024) << 20;
}

static StepValues *block_of(StepValues *b, int nblock, const void *p, size_t n)
{
    const char *at = p;

    for (int i = 0; i < nblock; i++)
        if (b[i].p && at >= b[i].p && n <= b[i].n &&
            (size_t)(at - b[i].p) <= b[i].n - n)
            return &b[i];
    return NULL;
}

static StepValues *new_block(StepValues *b, int *n, const char *what)
{
    for (int i = 0; i < *n; i++)
        if (!b[i].p)
            return &b[i];
    if (*n == MOST) {
        wrong(INVALID, "more than %d blocks of %s", MOST, what);
        abort();
    }
    return &b[(*n)++];
}

/* ---- addresses ----------------------------------------------------------- */

int is_device(const void *local, size_t n)
{
    return block_of(device, ndevice, local, n) != NULL;
}

uint64_t local_address(uint64_t v)
{
    return is_device((void *)(uintptr_t)(v - SHIFT), 0) ? v - SHIFT : v;
}

void *device_at(uint64_t p, size_t n, const char *what)
{
    void *local = (void *)(uintptr_t)(p - SHIFT);

    if (is_device(local, n))
        return local;
    wrong(INVALID, "%s: %zu bytes at %#llx are not the device's", what, n,
          (unsigned long long)p);
    return NULL;
}

void *mapped_at(uint64_t p, size_t n, const char *what)
{
    StepValues *b = block_of(pinned, npinned, (void *)(uintptr_t)p, n);

    return b && b->mapped ? (void *)(uintptr_t)p : device_at(p, n, what);
}

static int is_pinned(const void *p, size_t n)
{
    return block_of(pinned, npinned, p, n) != NULL;
}

/* ---- blocks -------------------------------------------------------------- */

int cuDeviceTotalMem_v2(size_t *n, int which)
{
    (void)which;
    *n = total();
    return 0;
}

int cuMemGetInfo_v2(size_t *left, size_t *all)
{
    *all = total();
    *left = *all - used;
    return 0;
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Of a file; a page that faults before it and one behind it. */
static char *reserve(size_t bytes, int fd)
{
    static uintptr_t next = first;
    size_t n = whole_pages(bytes);
    char *p = mmap((void *)next, n + 2 * PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    if (p == MAP_FAILED || fd < 0 ||
        mmap(p + PAGE, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) == MAP_FAILED) {
        wrong(INVALID, "no memory here for %zu bytes", bytes);
        return NULL;
    }
    next += n + 2 * PAGE;
    return p + PAGE;
}

/* Of this process; others may open it. */
static int new_file(size_t bytes)
{
    int fd = memfd_create("fake GPU", MFD_CLOEXEC);

    return fd >= 0 && !ftruncate(fd, (off_t)(whole_pages(bytes) + PAGE)) ? fd
                                                                         : -1;
}

static Door *doors_of(int fd, size_t bytes)
{
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                   (off_t)whole_pages(bytes));

    return p == MAP_FAILED ? NULL : p;
}

static void fill(char *p, size_t n)
{
    const float one = 1;

    memset(p, 0xff, n);
    for (size_t i = 0; idle() && i + 4 <= n; i += 4)
        memcpy(p + i, &one, 4);
}

int cuMemAlloc_v2(uint64_t *p, size_t n)
{
    device_lock();
    int fd = n && used + n <= total() ? new_file(n) : -1;
    char *m = fd >= 0 ? reserve(n, fd) : NULL;
    if (m) {
        fill(m, n);
        *new_block(device, &ndevice, "memory") = (StepValues){
            .p = m, .n = n, .mapped = 1, .fd = fd, .doors = doors_of(fd, n)
        };
        used += n;
        *p = (uint64_t)(uintptr_t)m + SHIFT;
    }
    device_unlock();
    return m ? 0 : n ? NOMEMORY : wrong(INVALID, "an allocation of no bytes");
}

int cuMemFree_v2(uint64_t p)
{
    char *m = (char *)(uintptr_t)(p - SHIFT);
    int e = 0;

    device_lock();
    StepValues *b = block_of(device, ndevice, m, 0);
    if (!p)
        e = 0;
    else if (!b || b->p != m || b->peer)
        e = wrong(INVALID, "freeing %#llx, which is no allocation",
                  (unsigned long long)p);
    else if (!(e = drain(NULL))) {
        munmap(b->p, whole_pages(b->n));
        munmap(b->doors, PAGE);
        close(b->fd);
        used -= b->n;
        b->p = NULL;
    }
    device_unlock();
    return e;
}

/* ---- of other processes -------------------------------------------------- */

typedef struct Handle {
    int pid, fd;
    size_t n;
    char room[48];
} Handle;

int cuIpcGetMemHandle(Handle *h, uint64_t p)
{
    char *m = (char *)(uintptr_t)(p - SHIFT);
    const StepValues *b = block_of(device, ndevice, m, 0);

    if (!b || b->p != m || b->peer)
        return wrong(INVALID, "a handle of what is no allocation");
    *h = (Handle){ .pid = getpid(), .fd = b->fd, .n = b->n };
    return 0;
}

int cuIpcOpenMemHandle_v2(uint64_t *p, Handle h, unsigned flags)
{
    enum { REACHED = 1 };
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    if (flags != REACHED || h.pid == getpid())
        return wrong(INVALID, "a handle of this process, or flags %u", flags);
    device_lock();
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char *m = fd >= 0 ? reserve(h.n, fd) : NULL;
    if (m)
        *new_block(device, &ndevice, "memory") =
            (StepValues){ .p = m,
                          .n = h.n,
                          .mapped = 1,
                          .fd = fd,
                          .peer = h.pid,
                          .doors = doors_of(fd, h.n) };
    *p = (uint64_t)(uintptr_t)m + SHIFT;
    device_unlock();
    return m ? 0 : wrong(INVALID, "a handle that nobody has");
}

static Door *door_of(const StepValues *b, int set)
{
    for (int i = 0; i < DOORS; i++) {
        int none = 0;
        _Atomic int *at = &b->doors[i].set;
        if (atomic_load(at) == set ||
            atomic_compare_exchange_strong(at, &none, set) || none == set)
            return &b->doors[i];
    }
    wrong(INVALID, "more than %d sets of processes", DOORS);
    abort();
}

/* In until all n are, or not at all. */
static int all_come(Door *d, unsigned n)
{
    uint64_t was = atomic_fetch_add(&d->word, 1) + 1, left = was;

    if ((uint32_t)was == n) {
        atomic_store(&d->word, ((was >> 32) + 1) << 32);
        return 1;
    }
    for (int i = 0; i < WINDOW; i++) {
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        if (atomic_load(&d->word) >> 32 != was >> 32)
            return 1;
    }
    do
        left = atomic_load(&d->word);
    while (left >> 32 == was >> 32 &&
           ((uint32_t)left == n ||
            !atomic_compare_exchange_strong(&d->word, &left, left - 1)));
    return left >> 32 != was >> 32;
}

int peers_come(const uint64_t *arg, int n)
{
    const StepValues *door = NULL;
    unsigned peers = 0;
    int least = getpid(), set = least;

    for (int i = 0; i < n; i++) {
        const StepValues *b =
            block_of(device, ndevice, (void *)(uintptr_t)arg[i], 0);
        if (!b || (!b->peer && door))
            continue;
        peers += b->peer != 0;
        set += b->peer;
        door = !door || (b->peer && b->peer < least) ? b : door;
        least = door->peer ? door->peer : least;
    }
    return !peers || all_come(door_of(door, set), peers + 1);
}

int cuIpcCloseMemHandle(uint64_t p)
{
    char *m = (char *)(uintptr_t)(p - SHIFT);

    device_lock();
    StepValues *b = block_of(device, ndevice, m, 0);
    int known = b && b->p == m && b->peer && !drain(NULL);
    if (known) {
        munmap(b->p, whole_pages(b->n));
        munmap(b->doors, PAGE);
        close(b->fd);
        b->p = NULL;
    }
    device_unlock();
    return known ? 0 : wrong(INVALID, "closing what was not opened");
}

/* ---- of the host --------------------------------------------------------- */

int cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
    *p = calloc(1, n);
    device_lock();
    *new_block(pinned, &npinned, "pinned memory") =
        (StepValues){ .p = *p, .n = n, .mapped = (flags & MAPPED) != 0 };
    device_unlock();
    return *p ? 0 : NOMEMORY;
}

int cuMemFreeHost(void *p)
{
    device_lock();
    StepValues *b = block_of(pinned, npinned, p, 0);
    int e = b && b->p == p ? drain(NULL)
                           : wrong(INVALID, "freeing what is not pinned");
    if (!e) {
        b->p = NULL;
        free(p);
    }
    device_unlock();
    return e;
}

/* Memory of the program's own: no results come there. */
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
    (void)flags;
    if ((uintptr_t)p % 4096)
        return wrong(INVALID, "memory that begins in the middle of a page");
    device_lock();
    *new_block(pinned, &npinned, "pinned memory") =
        (StepValues){ .p = p, .n = n, .theirs = 1 };
    device_unlock();
    return 0;
}

int cuMemHostUnregister(void *p)
{
    device_lock();
    StepValues *b = block_of(pinned, npinned, p, 1);
    int known = b && b->p == p && b->theirs;
    if (known)
        b->p = NULL;
    device_unlock();
    return known ? 0 : wrong(INVALID, "memory that was not registered");
}

int cuMemHostGetDevicePointer_v2(uint64_t *p, void *host, unsigned flags)
{
    StepValues *b = block_of(pinned, npinned, host, 1);

    (void)flags;
    *p = (uint64_t)(uintptr_t)host;
    return b && b->mapped ? 0 : wrong(INVALID, "memory that is not mapped");
}

/* ---- copies at once ------------------------------------------------------ */

/* They wait for no stream that was made not to wait for them: all of ours. */
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    device_lock();
    void *at = faulted ? NULL : device_at(to, n, "a copy to the device");
    if (at)
        memcpy(at, from, n);
    device_unlock();
    return at ? 0 : faulted ? faulted : INVALID;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    device_lock();
    void *at = faulted ? NULL : device_at(from, n, "a copy from the device");
    if (at)
        memcpy(to, at, n);
    device_unlock();
    return at ? 0 : faulted ? faulted : INVALID;
}

/* ---- copies in a stream -------------------------------------------------- */

typedef struct Copy {
    char *to;
    const char *from; /* NULL: words of value */
    size_t n;
    uint32_t value;
    int width, result; /* bytes of a word; the run whose results come */
    int beside; /* not results: there were so many, and 1, when it was asked */
    char *staged; /* what was pageable */
} Copy;

static int results; /* that are there */

/* With copies=late, those that are no results of a run, nor of its graph, run
 * behind those of the next one, unless that run waits, or none comes. */
static int may_wait(const Copy *c, Run *r)
{
    enum { PATIENCE = 4000 };

    return c->beside > results && *setting("copies", "") == 'l' &&
           !is_stalled() && r->stage++ < PATIENCE;
}

static Moved copy_go(const void *what, Run *r)
{
    const Copy *c = what;

    if (may_wait(c, r))
        return BLOCKED;
    results += c->result != 0;
    if (c->from)
        memmove(c->to, c->from, c->n);
    for (size_t i = 0; !c->from && i < c->n; i += (size_t)c->width)
        memcpy(c->to + i, &c->value, (size_t)c->width);
    if (c->result)
        tell_result(c->to, c->n, c->result);
    return DONE;
}

static void copy_forget(void *what)
{
    free(((Copy *)what)->staged);
    free(what);
}

static int start(Stream *s, Copy c)
{
    if (!c.to)
        return INVALID;
    Copy *own = malloc(sizeof *own);
    *own = c;
    return enqueue(s, copy_go, copy_forget, own);
}

/* Pageable memory is read before the call returns. */
static int from_host(Stream *s, char *to, const void *from, size_t n)
{
    Copy c = { .to = to, .from = from, .n = n };

    if (!is_pinned(from, n)) {
        if (is_capturing(s))
            return wrong(INVALID,
                         "a graph copies from memory that is not pinned");
        c.staged = malloc(n + 1);
        memcpy(c.staged, from, n);
        c.from = c.staged;
    }
    return start(s, c);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s)
{
    device_lock();
    int e = from_host(s, device_at(to, n, "a copy to the device"), from, n);
    device_unlock();
    return e;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s)
{
    device_lock();
    char *t = device_at(to, n, "where a copy goes");
    const char *f = device_at(from, n, "what is copied");
    int overlaps = t && f && t < f + n && f < t + n;
    int e = overlaps ? wrong(INVALID, "a copy onto itself")
            : f      ? start(s, (Copy){ .to = t, .from = f, .n = n })
                     : INVALID;
    device_unlock();
    return e;
}

/* Into pageable memory: returns when it is there. Few bytes are results. */
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s)
{
    device_lock();
    const char *f = device_at(from, n, "a copy from the device");
    Copy c = { .to = f ? to : NULL, .from = f, .n = n };
    int pageable = !is_pinned(to, n), captured = is_capturing(s);

    const StepValues *b = block_of(pinned, npinned, to, n);
    c.result = n <= RESULTS && !captured && !(b && b->theirs) ? next_run() : 0;
    c.beside = c.result || captured ? 0 : results + 1;
    int e = captured && pageable
                ? wrong(INVALID, "a graph copies to memory that is not pinned")
                : start(s, c);
    if (!e && pageable)
        e = drain(s);
    device_unlock();
    return e;
}

static int set(uint64_t p, uint32_t value, int width, size_t n, Stream *s)
{
    device_lock();
    char *to = mapped_at(p, n * (size_t)width, "what is set");
    int e = (uintptr_t)to % (unsigned)width
                ? wrong(INVALID, "words that are not aligned")
                : start(s, (Copy){ .to = to,
                                   .n = n * (size_t)width,
                                   .value = value,
                                   .width = width });
    device_unlock();
    return e;
}

int cuMemsetD32Async(uint64_t p, unsigned v, size_t n, void *s)
{
    return set(p, v, 4, n, s);
}

int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void *s)
{
    return set(p, v, 1, n, s);
}
