/* guard.c: runs a model file in a child process. Instruction hooks do not fire
 * inside Lua's string functions, so only a signal can end an endless pattern
 * match. For any failure the parent prints one line with the location. After
 * the trace the child continues with the job. */
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../commands.h"

enum { SECONDS = 10 };

static Watch *shared;
static struct rlimit cpu, core;

Watch *watch(void)
{
    return shared;
}

/* Limit of a model file's CPU seconds; $PLEAT_SECONDS overrides it. */
static int most_seconds(void)
{
    const char *s = getenv("PLEAT_SECONDS");
    int n = s ? atoi(s) : 0;

    return n > 0 ? n : SECONDS;
}

/* Sets the limits while the model file runs; they do not apply to the
 * passes. */
void watch_tracing(int on)
{
    struct rusage u;
    struct rlimit r;

    if (!shared)
        return;
    shared->tracing = on;
    if (!on) {
        setrlimit(RLIMIT_CPU, &cpu);
        setrlimit(RLIMIT_CORE, &core);
        return;
    }
    getrlimit(RLIMIT_CPU, &cpu);
    getrlimit(RLIMIT_CORE, &core);
    getrusage(RUSAGE_SELF, &u);
    r = cpu;
    r.rlim_cur =
        (rlim_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec + most_seconds());
    if (r.rlim_cur < cpu.rlim_cur)
        setrlimit(RLIMIT_CPU, &r);
    r = core;
    r.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &r);
}

/* Passes are recursive over chains of nodes: 500,000 operations in a row need
 * more stack than the usual 8 MB. Linux reserves 128 MB of addresses. */
static void widen_stack(void)
{
    const rlim_t enough = (rlim_t)120 << 20;
    struct rlimit r;

    if (getrlimit(RLIMIT_STACK, &r) || r.rlim_cur >= enough)
        return;
    r.rlim_cur = r.rlim_max < enough ? r.rlim_max : enough;
    setrlimit(RLIMIT_STACK, &r);
}

/* Keeps freed memory in the process: later stages reuse it, and a page returned
 * to the system must be cleared again. */
static void keep_freed_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

static void read_all(int fd, Text *out)
{
    char buf[1 << 16];
    ssize_t n;

    while ((n = read(fd, buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            putn(out, buf, (size_t)n);
    close(fd);
}

/* Prints the source line, which only the child had loaded. */
static void show_source(const char *file)
{
    FILE *in = file_stream(file);
    char *text = malloc(1 << 20);
    size_t n = in && text ? fread(text, 1, 1 << 20, in) : 0;

    if (n)
        source_add(file, text, n);
    free(text);
    if (in)
        fclose(in);
}

/* Was the child ended from outside? Then no message is needed. */
static int asked(int sig)
{
    return sig == SIGINT || sig == SIGTERM || sig == SIGPIPE || sig == SIGHUP;
}

static int report(int status)
{
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    if (!sig)
        return WEXITSTATUS(status);
    if (!shared->tracing || asked(sig)) {
        if (sig == SIGABRT)
            return INTERNAL_ERROR; /* die() has printed the error */
        if (sig == SIGKILL || asked(sig))
            return 128 + sig;
        err_internal(NULL, "killed by signal %d", sig);
    }
    Loc l = { intern(shared->file), shared->line, NULL };
    show_source(l.file);
    if (sig == SIGXCPU || sig == SIGKILL)
        err(&l, "the model ran for more than %d seconds", most_seconds());
    err_internal(&l, "the front end was killed by signal %d", sig);
}

static GuardBeside *beside;

void guard_beside(GuardBeside *f)
{
    beside = f;
}

/* Waits until the job writes, or ends. */
static void run_beside(int fd)
{
    struct pollfd from = { .fd = fd, .events = POLLIN };
    GuardBeside *f = beside;

    beside = NULL;
    for (int i = 0; f && !poll(&from, 1, 0) && f(i);)
        i++;
}

int guarded(int (*job)(void *arg, FILE *out), void *arg, Text *text)
{
    int fd[2] = { -1, -1 }, status;
    pid_t pid, parent = getpid();

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || (text && pipe(fd) < 0))
        err(NULL, "cannot start a process: %s", strerror(errno));
    fflush(NULL);
    pid = fork();
    if (pid < 0)
        err(NULL, "cannot start a process: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        catch_faults(0); /* report() prints the error */
        widen_stack();
        keep_freed_memory();
        if (text)
            close(fd[0]);
        FILE *out = text ? fdopen(fd[1], "wb") : stdout;
        int r = job(arg, out);
        if (fflush(out) || (text && fclose(out)))
            r = 1;
        exit(r);
    }
    if (text) {
        close(fd[1]);
        run_beside(fd[0]);
        read_all(fd[0], text);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            err(NULL, "lost the front end: %s", strerror(errno));
    return report(status);
}
