/* host.c: compiles a plan's host kernels to shared libraries, each kernel once.
 *
 * The compiler is $CC or cc; only this file has its flags. Libraries are stored
 * in a folder that only its owner can read. Plans of a model share most
 * kernels, so the folder has a link for each kernel, named by the hash of its
 * text, prelude, compiler, flags and processor, to the library that contains
 * it; kernels without a link are compiled to one new library. A library is
 * written under a temporary name and renamed, and a lock lets one process
 * compile while others on the host wait. Long texts are split into parts that
 * compile in parallel: kernels are independent functions after one prelude. */
#include <dlfcn.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/wait.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "host.h"

struct Code {
    int n;
    const Kernel *kernel; /* the plan's kernels */
    void **so; /* per kernel: dlopen handle; another library may have an
                             edited kernel of the same name */
};

enum { MAXPART = 8, PARTBYTES = 48 << 10, MAXARG = 48 };

/* No flag lets the compiler change a result: contraction is off, and only errno
 * and traps are not supported. */
static const char *const flags[] = { "-std=gnu11",
                                     "-march=native",
                                     "-ffp-contract=off",
                                     "-fno-math-errno",
                                     "-fno-trapping-math",
                                     "-fPIC",
                                     "-w",
                                     NULL };

/* Returns the optimization level: PLEAT_OPT (0 g 1 2 3) replaces -O3 for short
 * runs. gcc -Og compiles in less than half the time of -O1 and its code is
 * nearly as fast. */
static const char *level(void)
{
    const char *s = getenv("PLEAT_OPT");

    return s && *s && !s[1] && strchr("0g123", *s) ? strf(forever, "-O%s", s)
                                                   : "-O3";
}

/* Returns the flag by which kernels of tests poison their arrays on the
 * stack. */
static const char *poison_flag(void)
{
    return poison_asked() ? "-DPLEAT_POISON" : NULL;
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

/* Appends a text of any length, or null. */
static void put_whole(Text *out, const char *text)
{
    putn(out, text, text ? strlen(text) : 0);
}

static char *hash_of(Arena *a, const Text *text)
{
    XXH128_hash_t h = XXH3_128bits(text->s, text->len);

    return strf(a, "%016lx%016lx", h.high64, h.low64);
}

/* Returns a key of everything that a kernel's code depends on except its
 * text. */
static char *common_key(Arena *a, const Plan *p)
{
    Text out = { .arena = a };

    put(&out, "%s\n%s ", host_compiler(), level());
    for (int i = 0; flags[i]; i++)
        put(&out, "%s ", flags[i]);
    put(&out, "%s", processor_text(a));
    put_whole(&out, poison_flag());
    put_whole(&out, p->prelude);
    return hash_of(a, &out);
}

static char *kernel_key(Arena *a, const char *common, const char *text)
{
    Text out = { .arena = a };

    put(&out, "%s", common);
    put_whole(&out, text);
    return hash_of(a, &out);
}

/* Returns the key of n kernels together. */
static char *keys_key(Arena *a, char *const *key, int n)
{
    Text out = { .arena = a };

    for (int i = 0; i < n; i++)
        put(&out, "%s ", key[i]);
    return hash_of(a, &out);
}

/* ---- compiling ----------------------------------------------------------- */

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

/* Writes kernels i, i+parts, i+2*parts ..: neighbours have similar sizes.
 * Returns 0, or -1 and errno. */
static int write_part(Arena *a, const Plan *p, const char *dir, int part,
                      int parts)
{
    Text out = { .arena = a };
    int fd = file_create(strf(a, "%s/%d.c", dir, part), O_TRUNC);

    put_whole(&out, p->prelude);
    for (int i = part; i < p->nkernel; i += parts) {
        put(&out, "\n");
        put_whole(&out, p->kernel[i].text);
    }
    put(&out, "\n");
    return fd < 0 ? -1 : file_close(fd, file_put(fd, out.s, out.len));
}

static int write_parts(Arena *a, const Plan *p, const char *dir, int parts)
{
    int bad = 0;

    for (int i = 0; i < parts && !bad; i++)
        bad = write_part(a, p, dir, i, parts);
    return bad;
}

static pid_t start_part(Arena *a, const char *dir, int part, int out)
{
    char *argv[MAXARG] = { 0 };
    int n = compiler_words(argv, 8);

    for (int i = 0; flags[i]; i++)
        argv[n++] = strf(a, "%s", flags[i]);
    argv[n++] = strf(a, "%s", level());
    argv[n++] = "-c";
    argv[n++] = strf(a, "%s/%d.c", dir, part);
    if (poison_flag())
        argv[n++] = strf(a, "%s", poison_flag());
    argv[n++] = "-o";
    argv[n++] = strf(a, "%s/%d.o", dir, part);
    return start(argv, out);
}

static int link_parts(Arena *a, const char *dir, int parts, int out)
{
    char *argv[MAXARG] = { 0 };
    int n = compiler_words(argv, 8);

    argv[n++] = "-shared";
    argv[n++] = "-nostdlib"; /* this process has libc and libm */
    argv[n++] = "-o";
    argv[n++] = strf(a, "%s/all.so", dir);
    for (int i = 0; i < parts; i++)
        argv[n++] = strf(a, "%s/%d.o", dir, i);
    argv[n++] = "-lgcc";
    return finish(start(argv, out));
}

static int compile_parts(Arena *a, const char *dir, int parts, int out)
{
    pid_t pid[MAXPART];
    int bad = 0;

    for (int i = 0; i < parts; i++)
        pid[i] = start_part(a, dir, i, out);
    for (int i = 0; i < parts; i++)
        bad |= finish(pid[i]);
    return bad || link_parts(a, dir, parts, out);
}

/* Returns the first line of a compiler's log with "error", or its first
 * line. */
static char *first_error(Arena *a, const char *path)
{
    char line[512] = "", first[512] = "";
    FILE *f = file_stream(path);

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

/* Reports a failed compilation: an error in the text is an internal error and
 * keeps the texts, others are faults of the compiler or its disk. */
static _Noreturn void refuse(Arena *a, OutputFolder *parts)
{
    const char *why = first_error(a, logfile), *texts = parts->temp;

    if (!strncmp(why, texts, strlen(texts)) && strstr(why, ": error: "))
        err_internal(NULL, "the C compiler refuses kernels: %s (texts: %s)",
                     why, texts);
    folder_drop(parts);
    err(NULL, "the C compiler failed on the plan's kernels: %s (all of it: %s)",
        why, logfile);
}

/* Compiles the kernels of p to the library so. Parts are in a temporary folder,
 * which a killed process leaves to the next call. */
static void compile(Arena *a, const Plan *p, const char *dir, const char *so)
{
    OutputFolder folder = folder_open(a, strf(a, "%s.%ld", so, (long)getpid()));
    int parts = part_count(p);

    folder_sweep(dir);
    logfile = strf(forever, "%s/log", dir);
    int out = file_create(logfile, O_TRUNC);
    int bad = !folder.temp || out < 0 || write_parts(a, p, folder.temp, parts);
    if (!bad && compile_parts(a, folder.temp, parts, out))
        refuse(a, &folder);
    const char *made = strf(a, "%s/all.so", bad ? "" : folder.temp);
    bad = bad || file_sync(made) || file_move(made, so);
    int why = errno;
    close(out);
    if (folder.temp)
        folder_drop(&folder);
    if (bad)
        err(NULL, "cannot write %s: %s", so, strerror(why));
}

/* ---- libraries --------------------------------------------------------- */

/* Returns the path of the link for this key: a hard link to the library, which
 * takes no inode, although a plan has many kernels; or an older Pleat's
 * file. */
static char *link_of(Arena *a, const char *dir, const char *key)
{
    return strf(a, "%s/%s.kernel", dir, key);
}

typedef struct Library {
    dev_t device;
    ino_t file;
    void *so; /* null: damaged */
} Library;

/* Returns the cache's library for this path; null: there is none, or it is
 * damaged. A library with several names is opened once, since dlopen compares a
 * name with all open libraries. */
static void *made_before(Arena *a, Library **all, const char *path)
{
    struct stat st;

    if (stat(path, &st))
        return NULL;
    for (size_t i = 0; i < vec_len(*all); i++)
        if ((*all)[i].device == st.st_dev && (*all)[i].file == st.st_ino)
            return (*all)[i].so;
    Library new = { st.st_dev, st.st_ino, dlopen(path, RTLD_NOW | RTLD_LOCAL) };
    vec_push(a, *all, new);
    return new.so;
}

/* Links a library under a kernel's key; without the link the kernel is compiled
 * again. */
static void keep_link(Arena *a, const char *dir, const char *key,
                      const char *library)
{
    char *path = link_of(a, dir, key);
    char *part = strf(a, "%s.%ld", path, (long)getpid());

    if (!link(library, path) || errno != EEXIST)
        return;
    if (link(library, part))
        return;
    rename(part, path);
    unlink(part); /* rename leaves it if both names are one file */
}

/* Compiles the kernels that the cache lacks to one library. */
static void make_rest(Arena *a, Code *code, const Plan *p, const char *dir,
                      char *const *key)
{
    Plan rest = *p;
    char **missing = alloc(a, sizeof *missing * (size_t)p->nkernel);

    rest.kernel = alloc(a, sizeof *rest.kernel * (size_t)p->nkernel);
    rest.nkernel = 0;
    for (int i = 0; i < p->nkernel; i++)
        if (!code->so[i]) {
            missing[rest.nkernel] = key[i];
            rest.kernel[rest.nkernel++] = p->kernel[i];
        }
    if (!rest.nkernel)
        return;
    char *path = strf(a, "%s/%s.so", dir, keys_key(a, missing, rest.nkernel));
    compile(a, &rest, dir, path);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        err(NULL, "cannot load the compiled kernels: %s", dlerror());
    for (int i = 0; i < p->nkernel; i++)
        if (!code->so[i]) {
            code->so[i] = so;
            keep_link(a, dir, key[i], path);
        }
}

KernelFn *host_kernel(const Code *code, const char *name)
{
    KernelFn *f;
    void *p = NULL;

    for (int i = 0; i < code->n && !p; i++)
        if (!strcmp(code->kernel[i].name, name))
            p = dlsym(code->so[i], name);
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
    char *common = common_key(a, p);
    char **key = alloc(a, sizeof *key * (size_t)p->nkernel);
    for (int i = 0; i < p->nkernel; i++)
        key[i] = kernel_key(a, common, p->kernel[i].text);
    c->n = p->nkernel;
    c->kernel = p->kernel;
    c->so = alloc(a, sizeof *c->so * (size_t)p->nkernel);
    int lock = file_create(
        strf(a, "%s/%s.lock", dir, keys_key(a, key, p->nkernel)), 0);
    if (lock >= 0)
        flock(lock, LOCK_EX);
    Library *libraries = NULL;
    /* dlopen returns a library that it opened before under this name, although
     * another process may have replaced the file: the kernel's symbol
     * decides. */
    for (int i = 0; i < c->n; i++) {
        void *so = made_before(a, &libraries, link_of(a, dir, key[i]));
        c->so[i] = so && dlsym(so, p->kernel[i].name) ? so : NULL;
    }
    make_rest(a, c, p, dir, key);
    if (lock >= 0)
        close(lock);
    return c;
}
