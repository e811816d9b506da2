/* abort.c: when a run of several GPUs fails, what its GPU waits for is ended.
 * A collective whose peer is gone or stopped never ends by itself: its kernel
 * spins, and the driver may hold up the end of the process. ncclCommAbort makes
 * the kernels in flight return, frees what the library has and closes its
 * connections, which others may notice.
 *
 * It is called for all communicators in one group: the first thing it does is
 * to raise a flag that kernels and the library's threads look at, and only with
 * all flags up can what is behind one communicator be freed, because freeing
 * waits for the whole device. It then waits until no graph holds the
 * communicator, so the graphs go in between; one in flight is freed when it has
 * ended. All of this is done by a thread of its own, which is not waited for
 * longer than LIMIT.
 *
 * What an aborted collective left is no result. Who launches or takes results
 * holds a lock, and an abort keeps it: from then on the rank does neither, and
 * stays where it is until the process ends. */
#include <pthread.h>
#include <time.h>

#include "gpu.h"

enum { ENTRY = 2, LIMIT = 5, POLL = 1000000 }; /* s, s, ns */

static struct {
    pthread_mutex_t lock; /* of what follows, and of launching */
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

/* 0: another thread is inside of the library, or launching, and does not come
 * out. */
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
