/* limits.c: prepares a process at its start. Descriptors 0, 1 and 2 are open,
 * so no file of a run becomes one of them. A write beyond the file size limit
 * returns an error. Ends of child processes are reported. The stack is large
 * enough. The exit status after a fault is INTERNAL_ERROR. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "process.h"

/* Bytes of stack: wanted, and required (the deepest models compile with 96
 * KiB). */
enum { STACK = 8 << 20, LEAST = 1 << 20 };

static void take_descriptors(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* Raises the stack limit, which the kernel reads when the main stack grows.
 * Threads, including those of libraries, read it when they are created. */
static void take_stack(void)
{
    struct rlimit r;
    pthread_attr_t a;
    size_t size = 0;

    if (getrlimit(RLIMIT_STACK, &r))
        return;
    if (r.rlim_cur < STACK) {
        struct rlimit more = { STACK, r.rlim_max < STACK ? STACK : r.rlim_max };
        if (setrlimit(RLIMIT_STACK, &more)) {
            r.rlim_cur = r.rlim_max < STACK ? r.rlim_max : STACK;
            setrlimit(RLIMIT_STACK, &r);
        }
    }
    if (!getrlimit(RLIMIT_STACK, &r) && r.rlim_cur < LEAST)
        err(NULL, "a stack of %ld KiB (ulimit -s) is too small; %d are needed",
            r.rlim_cur >> 10, LEAST >> 10);
    if (pthread_getattr_default_np(&a))
        return;
    if (!pthread_attr_getstacksize(&a, &size) && size < LEAST &&
        !pthread_attr_setstacksize(&a, LEAST))
        pthread_setattr_default_np(&a);
    pthread_attr_destroy(&a);
}

static void fault(int sig)
{
    static const char text[] = "internal error: a fault in this process\n" //
        REPORT_LINE;

    if (sig != SIGABRT && write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(INTERNAL_ERROR);
    _exit(INTERNAL_ERROR);
}

/* Sanitizers keep handlers of their own. */
void catch_faults(int on)
{
    static const int faults[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    static char room[1 << 16]; /* after an overflow of the stack */
    struct sigaction set = { .sa_handler = on ? fault : SIG_DFL,
                             .sa_flags = SA_ONSTACK },
                     was;

    sigaltstack(&(stack_t){ .ss_sp = room, .ss_size = sizeof room }, NULL);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (!sigaction(faults[i], NULL, &was) &&
            was.sa_handler == (on ? SIG_DFL : fault))
            sigaction(faults[i], &set, NULL);
}

void process_start(const char *commit)
{
    program_commit = commit;
    take_descriptors();
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* the parent process may have ignored it */
    catch_faults(1);
    take_stack();
}
