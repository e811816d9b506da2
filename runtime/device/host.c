/* host.c: the plan's kernel text becomes a shared object, once.
 *
 * The compiler is $CC or cc; its flags stand here and nowhere else. The result
 * is kept in a folder that only its owner can read, under the hash of text,
 * compiler, flags and processor; it is written beside its place and renamed, so
 * a reader sees all of it or nothing, and a lock lets one process compile while
 * others on the same host wait. Big texts are cut into parts that compile side
 * by side: kernels are independent functions behind one prelude. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "host.h"

struct Code {
    void *so;
};

enum { MAXPART = 8, PARTBYTES = 48 << 10, MAXARG = 48 };

/* None of these lets the compiler change a result: no contraction, and errno
 * and traps are the only things given up. */
static const char *const flags[] = { "-std=gnu11",
                                     "-march=native",
                                     "-ffp-contract=off",
                                     "-fno-math-errno",
                                     "-fno-trapping-math",
                                     "-fPIC",
                                     "-w",
                                     NULL };

/* PLEAT_OPT, one of 0 g 1 2 3, instead of -O3 for runs that are short. gcc -Og
 * compiles in less than half the time of -O1, and what it makes is nearly as
 * fast; what -O0 makes takes five times as long. */
static const char *level(void)
{
    const char *s = getenv("PLEAT_OPT");

    return s && *s && !s[1] && strchr("0g123", *s) ? strf(forever, "-O%s", s)
                                                   : "-O3";
}

static const char *logfile;

/* ---- running the compiler ------------------------------------------------ */

/* $CC may carry arguments: "ccache gcc". */
static int compiler_words(char **argv, int max)
{
    const char *cc = getenv("CC");
    char *s = strf(forever, "%s", cc && *cc ? cc : "cc"), *save = NULL;
    int n = 0;

    for (s = strtok_r(s, " ", &save); s && n < max;
         s = strtok_r(NULL, " ", &save))
        argv[n++] = s;
    return n;
}

static pid_t start(char **argv, int out)
{
    pid_t pid = fork();

    if (pid)
        return pid;
    dup2(out, 1);
    dup2(out, 2);
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int finish(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *host_compiler_here(int *bad)
{
    static char line[256];
    static int failed;
    char *argv[MAXARG] = { 0 };
    int n = compiler_words(argv, 8), fd[2];

    *bad = failed;
    if (*line || !n || pipe2(fd, O_CLOEXEC))
        return line;
    argv[n] = "--version";
    pid_t pid = start(argv, fd[1]);
    close(fd[1]);
    size_t len = 0;
    char c;
    while (read(fd[0], &c, 1) == 1)
        if (len + 1 < sizeof line && !memchr(line, '\n', len))
            line[len++] = c;
    close(fd[0]);
    *bad = failed = finish(pid) != 0;
    line[strcspn(line, "\n")] = 0;
    return line;
}

const char *host_compiler(void)
{
    int bad;
    const char *line = host_compiler_here(&bad);

    if (bad)
        err(NULL, "no C compiler: %s (set CC)", line);
    return line;
}

/* ---- the cache's key ----------------------------------------------------- */

/* What -march=native depends on. */
static void put_processor(Text *out)
{
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    int left = 2; /* model name, flags */

    while (f && left && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) || !strncmp(line, "flags", 5)) {
            put(out, "%s", line);
            left--;
        }
    if (f)
        fclose(f);
}

static char *plan_key(Arena *a, const Plan *p)
{
    Text out = { .arena = a };

    put(&out, "%s\n%s ", host_compiler(), level());
    for (int i = 0; flags[i]; i++)
        put(&out, "%s ", flags[i]);
    put_processor(&out);
    put(&out, "%s", p->prelude ? p->prelude : "");
    for (int i = 0; i < p->nkernel; i++)
        put(&out, "%s\n", p->kernel[i].text);
    XXH128_hash_t h = XXH3_128bits(out.s, out.len);
    return strf(a, "%016llx%016llx", (unsigned long long)h.high64,
                (unsigned long long)h.low64);
}

/* ---- compiling ----------------------------------------------------------- */

static void write_file(const char *path, const char *s, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || file_put(fd, s, n) || close(fd))
        err(NULL, "cannot write %s: %s", path, strerror(errno));
}

static int part_count(const Plan *p)
{
    size_t n = 0;
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);

    for (int i = 0; i < p->nkernel; i++)
        n += strlen(p->kernel[i].text);
    int parts = (int)(n / PARTBYTES) + 1;
    parts = parts < cpus ? parts : cpus;
    return parts < MAXPART ? parts : MAXPART;
}

/* Kernels i, i+parts, i+2*parts ...: neighbours are of like size. */
static void write_part(Arena *a, const Plan *p, const char *base, int part,
                       int parts)
{
    Text out = { .arena = a };

    put(&out, "%s\n", p->prelude ? p->prelude : "");
    for (int i = part; i < p->nkernel; i += parts)
        put(&out, "%s\n", p->kernel[i].text);
    write_file(strf(a, "%s.%d.c", base, part), out.s, out.len);
}

static pid_t start_part(Arena *a, const char *base, int part, int out)
{
    char *argv[MAXARG] = { 0 };
    int n = compiler_words(argv, 8);

    for (int i = 0; flags[i]; i++)
        argv[n++] = strf(a, "%s", flags[i]);
    argv[n++] = strf(a, "%s", level());
    argv[n++] = "-c";
    argv[n++] = strf(a, "%s.%d.c", base, part);
    argv[n++] = "-o";
    argv[n++] = strf(a, "%s.%d.o", base, part);
    return start(argv, out);
}

static int link_parts(Arena *a, const char *base, int parts, int out)
{
    char *argv[MAXARG] = { 0 };
    int n = compiler_words(argv, 8);

    argv[n++] = "-shared";
    argv[n++] = "-nostdlib"; /* this process has libc and libm */
    argv[n++] = "-o";
    argv[n++] = strf(a, "%s.so", base);
    for (int i = 0; i < parts; i++)
        argv[n++] = strf(a, "%s.%d.o", base, i);
    argv[n++] = "-lgcc";
    return finish(start(argv, out));
}

static void drop_parts(Arena *a, const char *base, int parts)
{
    for (int i = 0; i < parts; i++) {
        unlink(strf(a, "%s.%d.c", base, i));
        unlink(strf(a, "%s.%d.o", base, i));
    }
}

/* The first line of a compiler's log that says "error", or its first line. */
static char *first_error(Arena *a, const char *path)
{
    char line[512] = "", first[512] = "";
    FILE *f = fopen(path, "r");

    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!*first)
            memcpy(first, line, sizeof first);
        if (strstr(line, "error"))
            break;
        *line = 0;
    }
    if (f)
        fclose(f);
    return strf(a, "%s", *line ? line : first);
}

static void compile(Arena *a, const Plan *p, const char *dir, const char *so)
{
    char *base = strf(a, "%s.tmp%ld", so, (long)getpid());
    int parts = part_count(p), bad = 0;
    pid_t pid[MAXPART];

    logfile = strf(forever, "%s/log", dir);
    int out = open(logfile, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        err(NULL, "cannot write %s: %s", logfile, strerror(errno));
    for (int i = 0; i < parts; i++) {
        write_part(a, p, base, i, parts);
        pid[i] = start_part(a, base, i, out);
    }
    for (int i = 0; i < parts; i++)
        bad |= finish(pid[i]);
    bad = bad || link_parts(a, base, parts, out);
    close(out);
    if (bad)
        err(NULL,
            "the C compiler refused the plan's kernels: %s (all of it: %s, "
            "text: %s.*.c)",
            first_error(a, logfile), logfile, base);
    drop_parts(a, base, parts);
    if (rename(strf(a, "%s.so", base), so))
        err(NULL, "cannot write %s: %s", so, strerror(errno));
}

KernelFn *host_kernel(const Code *c, const char *name)
{
    KernelFn *f;
    void *p = c->so ? dlsym(c->so, name) : NULL;

    if (!p)
        err(NULL, "the plan has no kernel '%s'", name);
    memcpy(&f, &p, sizeof f);
    return f;
}

Code *host_load(Arena *a, const Plan *p)
{
    Code *c = alloc(a, sizeof *c);

    if (!p->nkernel)
        return c;
    const char *dir = cache_folder();
    char *key = plan_key(a, p);
    char *so = strf(a, "%s/%s.so", dir, key);
    int lock = open(strf(a, "%s/%s.lock", dir, key),
                    O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock >= 0)
        flock(lock, LOCK_EX);
    if (access(so, R_OK))
        compile(a, p, dir, so);
    c->so = dlopen(so, RTLD_NOW | RTLD_LOCAL);
    if (!c->so) { /* damaged in the cache: once more */
        compile(a, p, dir, so);
        c->so = dlopen(so, RTLD_NOW | RTLD_LOCAL);
    }
    if (lock >= 0)
        close(lock);
    if (!c->so)
        err(NULL, "cannot load the compiled kernels: %s", dlerror());
    return c;
}
