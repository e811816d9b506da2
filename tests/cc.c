/* cc.c: the C compiler of the host's kernels in tests, `cc TCC.PRE word ...`
 * (runtime/device/host.c calls it as gcc). tcc compiles kernels 80 times as
 * fast as gcc -Og, and what it makes runs several times as long, most of that
 * in the functions of the prelude: those are compiled by gcc, once a prelude,
 * kept beside this program, and linked in place of tcc's, which are weak. Both
 * compute the same bits (unit/compilers.sh). A text without our prelude is
 * gcc's, and all is with KERNELS=gcc, for tests that train for long. A program,
 * since a script that starts sed, grep and others takes longer than tcc. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAXARG = 64 };

typedef struct Words {
    int n;
    const char *v[MAXARG + 1]; /* the last is null */
} Words;

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "error: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void add(Words *w, const char *word)
{
    errno = E2BIG;
    if (w->n == MAXARG)
        fail(word);
    w->v[w->n++] = word;
}

static void add_all(Words *w, const char *const *words)
{
    while (*words)
        add(w, *words++);
}

_Noreturn static void become(const Words *w)
{
    execvp(w->v[0], (char *const *)(uintptr_t)w->v);
    fail(w->v[0]);
}

/* The exit status, of one that does not start, too. */
static int run(const Words *w)
{
    int status;
    pid_t pid = fork();

    if (pid < 0)
        fail("fork");
    if (!pid)
        become(w);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- files --------------------------------------------------------------- */

/* The text of a file, by malloc; null: there is none. */
static char *text_of(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st))
        return NULL;
    char *s = malloc((size_t)st.st_size + 1);
    ssize_t n = s ? read(fd, s, (size_t)st.st_size) : -1;
    close(fd);
    if (n != st.st_size)
        fail(path);
    s[n] = 0;
    return s;
}

static void write_text(int fd, const char *path, const char *s, size_t n)
{
    if (fd < 0 || write(fd, s, n) != (ssize_t)n || close(fd))
        fail(path);
}

/* ---- a prelude ----------------------------------------------------------- */

/* A word of a command that says how to compile, but for how much. */
static int is_flag(const char *word)
{
    return *word == '-' && strncmp(word, "-O", 2) && strcmp(word, "-c") &&
           strcmp(word, "-o");
}

/* The first n bytes of text by gcc, with the flags of its kernels, to an
 * object; its source stands beside it and is what compilers of the same prelude
 * wait for. */
static void compile_prelude(const char *object, const char *text, size_t n,
                            char **argv)
{
    char source[PATH_MAX], part[PATH_MAX];
    Words w = { 0 };

    snprintf(source, sizeof source, "%.*s.c", (int)strlen(object) - 2, object);
    snprintf(part, sizeof part, "%s.part", object);
    int fd = open(source, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX))
        fail(source);
    if (access(object, R_OK)) {
        if (write(fd, text, n) != (ssize_t)n)
            fail(source);
        add_all(&w, (const char *[]){ "gcc", "-O2", "-fvisibility=hidden",
                                      "-DFN=extern inline",
                                      "-DLARGE=extern inline", NULL });
        for (char **a = argv; *a; a++)
            if (is_flag(*a))
                add(&w, *a);
        add_all(&w, (const char *[]){ "-c", source, "-o", part, NULL });
        int status = run(&w);
        if (status)
            exit(status);
        if (rename(part, object))
            fail(object);
    }
    close(fd);
}

/* ---- compiling and linking ----------------------------------------------- */

static const char *find(char **argv, const char *word)
{
    while (*argv && strcmp(*argv, word))
        argv++;
    return *argv ? argv[1] ? argv[1] : "" : NULL;
}

static int ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);

    return n > k && !strcmp(s + n - k, suffix);
}

_Noreturn static void by_gcc(char **argv)
{
    Words w = { 0 };

    add_all(&w, (const char *[]){ "gcc", "-fira-region=one", NULL });
    add_all(&w, (const char *const *)argv);
    become(&w);
}

/* Where the object of a prelude, compiled with these flags, is kept: beside
 * this program, another build of which compiles it anew. */
static void object_of(const char *text, size_t n, char **argv,
                      char object[PATH_MAX])
{
    char here[PATH_MAX];
    struct stat st;
    ssize_t k = readlink("/proc/self/exe", here, sizeof here - 1);

    if (k < 0 || stat("/proc/self/exe", &st))
        fail("/proc/self/exe");
    here[k] = 0;
    unsigned long long seed = (unsigned long long)st.st_mtime;
    for (char **a = argv; *a; a++)
        if (is_flag(*a))
            seed = XXH3_64bits_withSeed(*a, strlen(*a), seed);
    snprintf(object, PATH_MAX, "%.*s-%016llx.o", PATH_MAX - 20, here,
             (unsigned long long)XXH3_64bits_withSeed(text, n, seed));
}

/* The prelude's object stands in OBJECT.prelude, for whoever links it. */
static void keep_prelude(const char *to, const char *text, size_t n,
                         char **argv)
{
    char object[PATH_MAX], note[PATH_MAX];

    object_of(text, n, argv, object);
    if (access(object, R_OK))
        compile_prelude(object, text, n, argv);
    snprintf(note, sizeof note, "%s.prelude", to);
    write_text(open(note, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), note,
               object, strlen(object));
}

_Noreturn static void compile(const char *pre, char **argv)
{
    const char *to = find(argv, "-o"), *source = NULL;
    Words w = { 0 };

    for (char **a = argv; *a; a++)
        if (ends(*a, ".c"))
            source = *a;
    const char *text = source ? text_of(source) : NULL;
    const char *kernels = text ? strstr(text, "\nvoid k_") : NULL;
    if (!to || !kernels || !strstr(text, "\n#ifndef FN"))
        by_gcc(argv);
    keep_prelude(to, text, (size_t)(kernels + 1 - text), argv);
    add_all(&w, (const char *[]){ "tcc", "-include", pre, "-w", "-fPIC", "-c",
                                  source, "-o", to, NULL });
    for (char **a = argv; *a; a++)
        if (!strncmp(*a, "-D", 2))
            add(&w, *a);
    become(&w);
}

/* By ld itself: gcc would start it by way of another program. The preludes of
 * the objects go along, once each. */
_Noreturn static void link_objects(char **argv)
{
    Words w = { 0 };
    int preludes = 0;
    char note[PATH_MAX];

    add_all(&w, (const char *[]){ "ld", "-shared", "-z", "noexecstack", "-o",
                                  find(argv, "-o"), NULL });
    for (char **a = argv; *a; a++) {
        if (!ends(*a, ".o"))
            continue;
        add(&w, *a);
        snprintf(note, sizeof note, "%s.prelude", *a);
        const char *object = text_of(note);
        unlink(note);
        for (int i = 0; object && i < w.n; i++)
            if (!strcmp(w.v[i], object))
                object = NULL;
        if (object)
            add(&w, object);
        preludes += object != NULL;
    }
    if (!preludes || !find(argv, "-o"))
        by_gcc(argv);
    become(&w);
}

int main(int argc, char **argv)
{
    const char *kernels = getenv("KERNELS");

    if (argc < 3) {
        fprintf(stderr, "usage: cc TCC.PRE word ...\n");
        return 2;
    }
    if (kernels && !strcmp(kernels, "gcc"))
        by_gcc(argv + 2);
    if (find(argv + 2, "--version"))
        become(&(Words){ 2, { "tcc", "-v", NULL } });
    if (find(argv + 2, "-c"))
        compile(argv[1], argv + 2);
    link_objects(argv + 2);
}
