/* process.c: jobs that may die, each in a process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        err(NULL, "no shared memory: %s", strerror(errno));
    return p;
}

static void limit(int resource, rlim_t n)
{
    struct rlimit r = { n, n + 5 };

    setrlimit(resource, &r);
}

static void run(void (*job)(void *ctx), void *ctx, int seconds, int to)
{
    dup2(to, 2);
    limit(RLIMIT_CPU, (rlim_t)seconds);
    setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    job(ctx);
    fflush(NULL);
    _exit(0);
}

/* The first line that says what is wrong, without the place. */
static void read_message(int fd, char *to, size_t size)
{
    char text[1 << 14], rest[1 << 12], *s = text;
    size_t n = 0;
    ssize_t k;

    while ((k = read(fd, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)k;
    while (read(fd, rest, sizeof rest) > 0)
        ;
    text[n] = 0;
    char *at = strstr(text, "error: ");
    if (at)
        s = at + strlen("error: ");
    s[strcspn(s, "\n")] = 0;
    snprintf(to, size, "%.*s", (int)size - 1, s);
}

int same_message(const char *a, const char *b)
{
    for (;;) {
        a += strcspn(a, "abcdefghijklmnopqrstuvwxyz%(");
        b += strcspn(b, "abcdefghijklmnopqrstuvwxyz%(");
        if (*a != *b || !*a)
            return *a == *b;
        size_t n = strcspn(a, *a == '(' ? ")" : " "), m;
        m = strcspn(b, *b == '(' ? ")" : " ");
        if (*a != '%' && *a != '(' && (n != m || strncmp(a, b, n)))
            return 0;
        a += n;
        b += m;
    }
}

void apart(void (*job)(void *ctx), void *ctx, int seconds, Outcome *o)
{
    int fd[2], status;

    if (pipe2(fd, O_CLOEXEC))
        err(NULL, "no pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        err(NULL, "no process: %s", strerror(errno));
    if (pid == 0)
        run(job, ctx, seconds, fd[1]);
    close(fd[1]);
    char what[sizeof o->what];
    read_message(fd[0], what, sizeof what);
    close(fd[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (status == 0)
        return;
    o->v = sig == SIGXCPU || sig == SIGKILL   ? SLOW
           : !sig && WEXITSTATUS(status) == 1 ? REFUSED
                                              : ABORTED;
    if (*what || !sig)
        memcpy(o->what, what, sizeof what);
    else
        snprintf(o->what, sizeof o->what, "%s", strsignal(sig));
}
