/* workers.c: processes that take calls from one list, for libraries that hold a
 * process-wide lock while they work. They start with a copy of this process's
 * memory and return results in files. A call whose process dies is not
 * repeated. */
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "process.h"

enum { MOSTSECONDS = 300 };                 /* time limit of a call */
enum { LARGE = 32 << 20, MORE = 64 << 20 }; /* bytes; LARGE: the limit */

struct Workers {
    _Atomic int64_t next; /* next call to take */
};

static struct {
    pid_t parent, pid[MAXWORKERS]; /* 0: already waited for */
} started;

/* Keeps freed memory in the process: NVRTC otherwise returns and takes it from
 * the system again and again. */
static void keep_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, LARGE);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, MORE);
}

/* Resets a signal that the parent catches to its default; an ignored signal
 * stays ignored. */
static void end_by(int sig)
{
    struct sigaction s;

    if (!sigaction(sig, NULL, &s) && s.sa_handler != SIG_IGN)
        signal(sig, SIG_DFL);
}

static _Noreturn void work(Workers *workers, WorkerCall *call, void *ctx,
                           int64_t calls, pid_t parent)
{
    static const int own[] = { SIGINT, SIGTERM, SIGHUP };
    int64_t i;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    keep_memory();
    for (int k = 0; k < countof(own); k++)
        end_by(own[k]);
    signal(SIGALRM, SIG_DFL);
    while (getppid() == parent &&
           (i = atomic_fetch_add(&workers->next, 1)) < calls) {
        alarm(MOSTSECONDS);
        call(ctx, i);
    }
    _exit(0);
}

static void wait_for_all(void)
{
    for (int i = 0; i < MAXWORKERS; i++) {
        while (started.pid[i] && waitpid(started.pid[i], NULL, 0) < 0 &&
               errno == EINTR)
            ;
        started.pid[i] = 0;
    }
}

/* At exit: ends the workers, which hold this process's files, pipes and
 * locks. */
static void end_all(void)
{
    if (started.parent != getpid())
        return;
    for (int i = 0; i < MAXWORKERS; i++)
        if (started.pid[i])
            kill(started.pid[i], SIGKILL);
    wait_for_all();
}

Workers *workers_start(int n, WorkerCall *call, void *ctx, int64_t calls)
{
    pid_t parent = getpid();
    Workers *workers = mmap(NULL, sizeof *workers, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (workers == MAP_FAILED)
        return NULL;
    dl_settle();
    if (!started.parent)
        atexit(end_all);
    started.parent = parent;
    for (int i = 0; i < n && i < MAXWORKERS; i++) {
        pid_t pid = fork();
        if (!pid)
            work(workers, call, ctx, calls, parent);
        started.pid[i] = pid > 0 ? pid : 0;
    }
    return workers;
}

void workers_join(Workers *workers)
{
    if (!workers)
        return;
    wait_for_all();
    munmap(workers, sizeof *workers);
}
