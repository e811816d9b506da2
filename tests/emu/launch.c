/* launch.c: a launch: blocks of a cluster at a time, in the order that was set;
 * the memory of each; what kernels' texts call. */
#include "machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, REGISTERS = 65536 };

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
static int order = -1;
int (*emu_check)(const void *p, size_t n);

/* ---- what texts call ----------------------------------------------------- */

static unsigned allowed(void)
{
    return machine.k->allowed ? machine.k->allowed : MOSTSHARED;
}

/* Places of variables are the same in all blocks of a launch. */
static void *place_of(Slot *s)
{
    if (s->launch != machine.launch) {
        unsigned at = machine.placed + RESERVED;
        at = (at + s->align - 1) / s->align * s->align;
        if (at + s->size > RESERVED + STATIC)
            fail(EINVALIDVALUE, "more than 48 KiB of shared variables");
        machine.placed = at + s->size - RESERVED;
        if (machine.placed + machine.dynamic > allowed())
            fail(EINVALIDVALUE, "more than %u bytes of shared memory",
                 allowed());
        s->at = at;
        s->launch = machine.launch;
        for (int r = 0; r < machine.nblock; r++) /* later ones: start_block */
            memset(machine.block[r]->shared + at, 0xff, s->size);
    }
    return machine.now->b->shared + s->at;
}

static void *dynamic_place(void)
{
    return machine.now->b->shared + machine.begin;
}

static size_t to_shared(const void *p)
{
    const StepValues *b = machine.now->b;
    size_t at = (size_t)((const uint8_t *)p - b->shared);

    if (at > machine.begin + machine.dynamic)
        fail(EFAILED, "%p is not in the block's shared memory", p);
    return at;
}

static void *from_shared(size_t at)
{
    return machine.now->b->shared + at;
}

const Api emu_calls = { ptx_run, place_of, dynamic_place, to_shared,
                        from_shared };

/* ---- blocks -------------------------------------------------------------- */

static size_t dynamic_room(void)
{
    return (machine.dynamic + 127u) / 128 * 128;
}

/* At no multiple of 1024; all that is allowed is within the window. */
static unsigned dynamic_begin(void)
{
    unsigned at = (WINDOW - 128 - (unsigned)dynamic_room()) / 1024 * 1024 + 128;

    return at < DYNAMIC ? at : DYNAMIC;
}

/* Shared memory ends at a page that is not there. */
static uint8_t *take_shared(unsigned rank)
{
    static uint8_t *room[MAXCLUSTER];
    size_t bytes = ((size_t)WINDOW + PAGE - 1) / PAGE * PAGE;

    if (!room[rank]) {
        void *p = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
        room[rank] = p;
        mprotect(room[rank] + bytes, PAGE, PROT_NONE);
    }
    return room[rank] + bytes - machine.begin - dynamic_room();
}

static void start_warps(StepValues *b)
{
    for (int i = 0; i < b->nthread; i++) {
        Thread *t = &b->thread[i];
        Warp *w = &b->warp[i / WARP];
        if (i % WARP == 0)
            *w = (Warp){ .thread = t };
        w->n++;
        unsigned x = machine.dims[0], y = machine.dims[1], id = (unsigned)i;
        *t = (Thread){ .b = b,
                       .w = w,
                       .index = (int)(t - machine.thread),
                       .id = i,
                       .lane = i % WARP,
                       .copies = t->copies,
                       .registers = REGISTERS / b->nthread / 8 * 8,
                       .place = { id % x, id / x % y, id / x / y } };
        if (t->registers > 248)
            t->registers = 248;
        copies_start(t);
    }
}

static int start_block(StepValues *b, Place at, unsigned rank, Thread *thread)
{
    b->at = at;
    b->rank = rank;
    b->thread = thread;
    b->nthread = b->alive =
        (int)(machine.dims[0] * machine.dims[1] * machine.dims[2]);
    memset(b->bar, 0, sizeof b->bar);
    b->met = 0;
    b->shared = take_shared(rank);
    if (!b->shared)
        return 0;
    memset(b->shared + RESERVED, 0xff, machine.placed);
    memset(b->shared + machine.begin, 0xff, dynamic_room());
    start_warps(b);
    b->registers = REGISTERS - b->nthread * b->thread->registers;
    proxy_start(b);
    wgmma_start(b);
    return 1;
}

void thread_over(Thread *t)
{
    StepValues *b = t->b;

    machine.alive--;
    b->alive--;
    b->registers += t->registers;
    meet_over(t);
    if (b->alive == 0) {
        wgmma_over(b);
        copies_over(b);
    }
}

/* ---- clusters ------------------------------------------------------------ */

static Place split(unsigned i, const unsigned n[3])
{
    return (Place){ i % n[0], i / n[0] % n[1], i / n[0] / n[1] };
}

static int run_cluster(unsigned i, const unsigned clusters[3])
{
    const int *c = machine.k->info->cluster;
    unsigned size[3] = { (unsigned)c[0], (unsigned)c[1], (unsigned)c[2] };
    Place at = split(i, clusters);
    int n = machine.nthread / machine.nblock;

    memset(&machine.cluster, 0, sizeof machine.cluster);
    for (int r = 0; r < machine.nblock; r++) {
        Place in = split((unsigned)r, size);
        Place p = { at.x * size[0] + in.x, at.y * size[1] + in.y,
                    at.z * size[2] + in.z };
        if (!machine.block[r])
            machine.block[r] = calloc(1, sizeof **machine.block);
        if (!start_block(machine.block[r], p, (unsigned)r,
                         machine.thread + r * n))
            return EFAILED;
    }
    if (!threads_start())
        return EFAILED;
    return threads_run();
}

/* A random order of n things. */
static unsigned *shuffled(unsigned n)
{
    unsigned *p = malloc((n + 1) * sizeof *p);

    for (unsigned i = 0; i < n; i++)
        p[i] = i;
    for (unsigned i = n; i > 1; i--) {
        unsigned k = (unsigned)(chance() % i), x = p[i - 1];
        p[i - 1] = p[k];
        p[k] = x;
    }
    return p;
}

static int run_clusters(const unsigned clusters[3])
{
    unsigned n = clusters[0] * clusters[1] * clusters[2];
    unsigned *turn = machine.order > 1 ? shuffled(n) : NULL;
    int error = 0;

    for (unsigned i = 0; i < n && !error; i++)
        error = run_cluster(turn                 ? turn[i]
                            : machine.order == 1 ? n - 1 - i
                                                 : i,
                            clusters);
    free(turn);
    return error;
}

/* ---- interface ----------------------------------------------------------- */

void emu_order(unsigned seed)
{
    order = (int)(seed & 0x7fffffff);
}

static unsigned current_order(void)
{
    const char *s = getenv("EMU_SEED");

    if (order < 0)
        order = s ? atoi(s) & 0x7fffffff : 0;
    return (unsigned)order;
}

static const char *unfit(const EmuKernel *k, const unsigned grid[3],
                         const unsigned block[3], unsigned shared)
{
    static const unsigned most[3] = { 0x7fffffff, 65535, 65535 };
    unsigned threads = block[0] * block[1] * block[2];
    int blocks = 1;

    if (threads == 0 || threads > MAXTHREAD || block[2] > 64)
        return "a block has 1 to 1024 threads";
    if (k->info->threads && threads > (unsigned)k->info->threads)
        return "more threads than its launch bounds";
    if (shared > MOSTSHARED)
        return "more than 227 KiB of shared memory";
    for (int i = 0; i < 3; i++) {
        blocks *= k->info->cluster[i];
        if (grid[i] == 0 || grid[i] > most[i])
            return "a grid of a size that is not possible";
        if (grid[i] % (unsigned)k->info->cluster[i])
            return "a grid that is not of whole clusters";
    }
    return blocks > MAXCLUSTER ? "a cluster of more than 8 blocks" : NULL;
}

static void prepare(EmuKernel *k, const unsigned grid[3],
                    const unsigned block[3], unsigned shared, void **params)
{
    const int *c = k->info->cluster;
    static unsigned launches;

    machine.k = k;
    machine.params = params;
    machine.dynamic = shared;
    machine.begin = dynamic_begin();
    machine.launch = ++launches;
    machine.placed = 0;
    machine.error = 0;
    machine.now = NULL;
    machine.order = current_order();
    machine.random = machine.order * 0x9e3779b97f4a7c15 + 88172645463325252;
    machine.nblock = c[0] * c[1] * c[2];
    memcpy(machine.grid, grid, sizeof machine.grid);
    memcpy(machine.dims, block, sizeof machine.dims);
    machine.nthread = machine.nblock * (int)(block[0] * block[1] * block[2]);
    k->module->here->threads = (Place){ block[0], block[1], block[2] };
    k->module->here->blocks = (Place){ grid[0], grid[1], grid[2] };
    if (!machine.thread)
        machine.thread = calloc(MAXALL, sizeof *machine.thread);
    maps_start();
}

void emu_allow(EmuKernel *k, unsigned bytes)
{
    k->allowed = bytes;
}

int emu_launch(EmuKernel *k, const unsigned grid[3], const unsigned block[3],
               unsigned shared, void **params)
{
    const char *why = unfit(k, grid, block, shared);
    unsigned clusters[3];

    if (why) {
        fprintf(stderr, "emu: %s: %s\n", k->name, why);
        return EINVALIDVALUE;
    }
    pthread_mutex_lock(&one_launch);
    prepare(k, grid, block, shared, params);
    for (int i = 0; i < 3; i++)
        clusters[i] = grid[i] / (unsigned)k->info->cluster[i];
    int error = run_clusters(clusters);
    pthread_mutex_unlock(&one_launch);
    return error;
}
