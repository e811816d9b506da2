/* watch.c: says where a rank waits for ever. Only under a launcher, where
 * another process may be dead, stopped, or in another step: when no step has
 * ended for $PLEAT_TIMEOUT seconds (600) the rank says which one it is in, and
 * leaves with status 3; mpirun then ends the others.                         */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum { TICK = 100, DEFAULT = 600 };   /* milliseconds, seconds                */

static atomic_int stop;
static pthread_t thread;
static int started;

static void say_where(const Exec *x, const Step *s, double secs)
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    fprintf(stderr, "rank %lld (host %s): step %lld %s %s", (long long)
            x->comm->first, host, (long long)x->step + 1,
            stepinfo[s->kind].name, s->label ? s->label : "");
    if (s->file)
        fprintf(stderr, " (%s:%d)", s->file, s->line);
    fprintf(stderr, ": no progress for %.0f s\n", secs);
}

static void *watch(void *arg)
{
    const Exec *x = arg;
    const char *s = getenv("PLEAT_TIMEOUT");
    double limit = s && atof(s) > 0 ? atof(s) : DEFAULT, waited = 0;
    int64_t seen = -1;

    while (!atomic_load(&stop)) {
        nanosleep(&(struct timespec){0, TICK * 1000000}, NULL);
        int64_t ticks = atomic_load_explicit(&x->ticks, memory_order_relaxed);
        const Step *at = atomic_load_explicit(&x->now, memory_order_relaxed);
        waited = ticks == seen && at ? waited + TICK * 1e-3 : 0;
        seen = ticks;
        if (waited >= limit) {
            say_where(x, at, waited);
            _exit(3);
        }
    }
    return NULL;
}

void watch_start(Exec *x)
{
    if (x->comm->n < x->comm->world)
        started = !pthread_create(&thread, NULL, watch, x);
}

void watch_stop(void)
{
    atomic_store(&stop, 1);
    if (started)
        pthread_join(thread, NULL);
    started = 0;
}
