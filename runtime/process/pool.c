/* pool.c: threads that share the ranges of a kernel.
 *
 * One job at a time. Its ranges are numbered; a thread takes the next number
 * from `claim`, whose upper half is the job's number, so a thread that wakes
 * late cannot take a range of a job whose fields it has not read: the job's
 * fields change only while `claim` says that nothing is left.
 *
 * Kernels of a step follow each other within microseconds. Threads therefore
 * spin a little before they sleep, and give the processor away meanwhile when
 * there are more threads than processors. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "process.h"

enum { MAXTHREAD = 256, SPINS = 4000, PERTHREAD = 4 };

struct Pool {
    int n; /* threads, including the caller */
    int spins;
    _Atomic uint64_t claim; /* job << 32 | next range */
    _Atomic uint32_t wake;  /* counts jobs; sleepers wait for a change */
    _Atomic int sleeping, stop;
    _Atomic int64_t done; /* ranges finished */
    _Atomic(Work *) f;
    _Atomic(void *) ctx;
    _Atomic int64_t items, ranges, each;
    pthread_t thread[MAXTHREAD];
};

static void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t val)
{
    syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
}

/* Takes and runs ranges until none is left. */
static void work(Pool *pool)
{
    for (;;) {
        uint64_t c = atomic_load_explicit(&pool->claim, memory_order_acquire);
        int64_t i = (int64_t)(c & 0xffffffff);
        int64_t ranges =
            atomic_load_explicit(&pool->ranges, memory_order_relaxed);
        int64_t each = atomic_load_explicit(&pool->each, memory_order_relaxed);
        int64_t items =
            atomic_load_explicit(&pool->items, memory_order_relaxed);
        Work *f = atomic_load_explicit(&pool->f, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&pool->ctx, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (i >= ranges)
            return;
        if (!atomic_compare_exchange_strong(&pool->claim, &c, c + 1))
            continue;
        int64_t lo = i * each, hi = lo + each < items ? lo + each : items;
        f(ctx, lo, hi);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    }
}

static void await_job(Pool *pool, uint32_t seen)
{
    for (int i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->wake, memory_order_acquire) != seen)
            return;
        relax();
    }
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(&pool->wake) == seen)
        futex(&pool->wake, FUTEX_WAIT, seen);
    atomic_fetch_sub(&pool->sleeping, 1);
}

static void *thread_main(void *arg)
{
    Pool *pool = arg;
    uint32_t seen = 0;

    for (;;) {
        await_job(pool, seen);
        /* wake is read before `stop`, which may be set between the two reads
         * and is then seen in the next turn. */
        seen = atomic_load(&pool->wake);
        if (atomic_load(&pool->stop))
            return NULL;
        work(pool);
    }
}

static int processors(void)
{
    cpu_set_t set;

    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return 1;
}

static int default_threads(int cpus)
{
    const char *s = getenv("PLEAT_THREADS");
    int n = s && atoi(s) > 0 ? atoi(s) : cpus / (int)launch_local();

    return n < 1 ? 1 : n > MAXTHREAD ? MAXTHREAD : n;
}

Pool *pool_open(int threads)
{
    int cpus = processors();
    Pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);

    if (!pool)
        err(NULL, "out of memory for threads");
    *pool = (Pool){ .n = threads > 0 ? threads : default_threads(cpus) };
    pool->spins = (int64_t)pool->n * launch_local() > cpus ? 0 : SPINS;
    for (int i = 1; i < pool->n; i++)
        if (pthread_create(&pool->thread[i], NULL, thread_main, pool))
            pool->n = i;
    return pool;
}

void pool_close(Pool *pool)
{
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->wake, 1);
    futex(&pool->wake, FUTEX_WAKE, MAXTHREAD);
    for (int i = 1; i < pool->n; i++)
        pthread_join(pool->thread[i], NULL);
    free(pool);
}

int pool_size(const Pool *pool)
{
    return pool->n;
}

static void publish(Pool *pool, Work *f, void *ctx, int64_t n, int64_t ranges)
{
    uint64_t job = (atomic_load(&pool->claim) >> 32) + 1;

    atomic_store(&pool->claim, job << 32 | 0xffffffff);
    atomic_thread_fence(memory_order_release);
    int64_t each = (n + ranges - 1) / ranges;
    atomic_store_explicit(&pool->f, f, memory_order_relaxed);
    atomic_store_explicit(&pool->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&pool->items, n, memory_order_relaxed);
    atomic_store_explicit(&pool->each, each, memory_order_relaxed);
    atomic_store_explicit(&pool->ranges, (n + each - 1) / each,
                          memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->claim, (job & 0xffffffff) << 32);
    atomic_fetch_add(&pool->wake, 1);
    if (atomic_load(&pool->sleeping))
        futex(&pool->wake, FUTEX_WAKE, (uint32_t)pool->n);
}

void pool_run(Pool *pool, Work *f, void *ctx, int64_t n, int64_t grain)
{
    if (n <= 0)
        return;
    grain = grain < 1 ? 1 : grain;
    int64_t ranges = (n + grain - 1) / grain;
    if (ranges > (int64_t)pool->n * PERTHREAD)
        ranges = (int64_t)pool->n * PERTHREAD;
    if (pool->n == 1 || ranges == 1) {
        f(ctx, 0, n);
        return;
    }
    publish(pool, f, ctx, n, ranges);
    work(pool);
    int64_t all = atomic_load_explicit(&pool->ranges, memory_order_relaxed);
    for (int i = 0;
         atomic_load_explicit(&pool->done, memory_order_acquire) < all; i++)
        if (i < pool->spins)
            relax();
        else
            sched_yield();
}

typedef struct CopyWork {
    uint8_t *to;
    const uint8_t *from;
} CopyWork;

static void copy_some(void *ctx, int64_t lo, int64_t hi)
{
    const CopyWork *work = ctx;

    memcpy(work->to + lo, work->from + lo, (size_t)(hi - lo));
}

void pool_copy(Pool *pool, void *to, const void *from, int64_t bytes)
{
    pool_run(pool, copy_some, &(CopyWork){ to, from }, bytes, 1 << 20);
}

enum { PASSES = 5, MOVED = 256 << 20, CHUNK = 4096 }; /* bytes; elements */

static void update_some(void *ctx, int64_t lo, int64_t hi)
{
    float *v = ctx;

    for (int64_t i = lo * CHUNK; i < hi * CHUNK; i++)
        v[i] = v[i] * 0.9f + 1;
}

/* The first pass allocates the pages and is not timed. */
double pool_moves(Pool *pool)
{
    float *v = pages(MOVED, "measuring memory");
    double best = 0;

    for (int i = 0; i <= PASSES; i++) {
        double began = monotonic();
        pool_run(pool, update_some, v, MOVED / (CHUNK * (int64_t)sizeof *v), 1);
        double speed = 2.0 * MOVED / (monotonic() - began);
        best = i && speed > best ? speed : best;
    }
    drop_pages(v, MOVED);
    return best;
}
