/* abort.c: ends the waits of a GPU when a run of several GPUs fails. A
 * collective whose peer is dead or stopped never ends by itself: its kernel
 * spins, and the driver may delay the end of the process. ncclCommAbort makes
 * kernels in flight return, frees the library's memory and closes its
 * connections, which other ranks may notice.
 *
 * It is called for all communicators in one group. It first sets a flag per
 * communicator that kernels and the library's threads poll. Freeing a
 * communicator waits for the whole device, so all flags must be set before. It
 * then waits until no graph uses the communicator, so graphs are destroyed in
 * between; a graph in flight is freed when it has ended. A separate thread does
 * this, and the caller waits for it at most LIMIT seconds.
 *
 * An aborted collective has no valid result. Launching and taking results need
 * a lock that an abort never releases: the rank then does neither and waits for
 * the end of the process. */
#include <pthread.h>
#include <time.h>

#include "gpu.h"

enum { ENTRY = 2, LIMIT = 5, POLL = 1000000 }; /* s, s, ns */

static struct {
    pthread_mutex_t lock; /* protects the fields below, and launching */
    Gpu *gpu;
    atomic_int done;
} now = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP };

void abort_hold(void)
{
    pthread_mutex_lock(&now.lock);
}

void abort_release(void)
{
    pthread_mutex_unlock(&now.lock);
}

static const char *asked(void)
{
    const char *why = NULL;

    if (pthread_mutex_trylock(&now.lock))
        return NULL;
    if (now.gpu)
        why = nccl_check(now.gpu->nccl);
    abort_release();
    return why;
}

void gpu_drop_graphs(Gpu *gpu)
{
    for (size_t i = 0; i < vec_len(gpu->graph); i++)
        dl.cuGraphExecDestroy(gpu->graph[i]);
}

static void *end_all(void *arg)
{
    Gpu *gpu = arg;

    if (!dl.cuCtxSetCurrent(gpu->context)) {
        peer_abort(gpu);
        nccl_abort(gpu->nccl);
        gpu_drop_graphs(gpu);
        nccl_reclaim(gpu->nccl);
    }
    atomic_store(&now.done, 1);
    return NULL;
}

/* Takes the lock. Returns 0 if another thread stays in the library or
 * launching. */
static int hold_soon(void)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ENTRY;
    return !pthread_mutex_timedlock(&now.lock, &end);
}

static void gpu_abort(void)
{
    pthread_t thread;
    double end;

    if (!hold_soon())
        return;
    Gpu *gpu = now.gpu;
    now.gpu = NULL;
    if (!gpu) {
        abort_release();
        return;
    }
    if (pthread_create(&thread, NULL, end_all, gpu))
        return;
    pthread_detach(thread);
    for (end = monotonic() + LIMIT;
         !atomic_load(&now.done) && monotonic() < end;)
        nanosleep(&(struct timespec){ 0, POLL }, NULL);
}

void abort_watch(Gpu *gpu)
{
    abort_hold();
    now.gpu = gpu && gpu->comm->world > 1 ? gpu : NULL;
    abort_release();
    watch_ends(gpu_abort, asked);
}
