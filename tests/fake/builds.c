/* builds.c: kernel texts are compiled when the first of them runs, all that are
 * loaded together: most of what a compiler does for one is reading what stands
 * before all. A batch is what its texts have in common, then each in a
 * namespace with macros of its own. Compiled batches stay in the cache folder,
 * a link for each text; processes that want the same take turns. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "builds.h"
#include "fake.h"

enum { BATCH = 24, THREADS = 2, PATH = 512 };

struct Source {
    char *text, key[33];
    EmuModule *built;
    int missing; /* from the cache */
    Source *next;
};

typedef struct Loaded { /* a file of the cache */
    ino_t file;
    EmuModule *m;
    struct Loaded *next;
} Loaded;

static Source *sources;
static Loaded *loaded;
static char folder[PATH];

/* ---- sources ------------------------------------------------------------- */

Source *source_of(const char *text)
{
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    Source *s = calloc(1, sizeof *s);

    snprintf(s->key, sizeof s->key, "%016llx%016llx",
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    for (Source *o = sources; o; o = o->next)
        if (!strcmp(o->key, s->key)) {
            free(s);
            return o;
        }
    s->text = strdup(text);
    s->next = sources;
    return sources = s;
}

/* ---- the cache ----------------------------------------------------------- */

static void make_folder(const char *path)
{
    mkdir(path, 0700);
    chmod(path, 0700);
}

/* Of this build of the emulator: another one compiles anew. */
static void find_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[PATH / 2];
    struct stat st = { .st_size = 0 };
    Dl_info at;

    if (folder[0])
        return;
    if (dladdr((void *)(uintptr_t)source_of, &at))
        stat(at.dli_fname, &st);
    if (cache)
        snprintf(path, sizeof path, "%s", cache);
    else
        snprintf(path, sizeof path, "%s/.cache", home ? home : "/tmp");
    make_folder(path);
    snprintf(folder, sizeof folder, "%s/pleat-fake-%llx-%llx", path,
             (unsigned long long)st.st_mtime, (unsigned long long)st.st_size);
    make_folder(folder);
}

static void path_of(char path[PATH + 64], const char *key)
{
    snprintf(path, PATH + 64, "%s/%s", folder, key);
}

static int lock_folder(void)
{
    char path[PATH + 64];

    path_of(path, "lock");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

static void *read_all(int fd, size_t n)
{
    char *p = malloc(n + 1);
    size_t at = 0;
    ssize_t k = 1;

    while (at < n && (k = read(fd, p + at, n - at)) > 0)
        at += (size_t)k;
    return p;
}

static EmuModule *load_file(int fd)
{
    struct stat st;

    if (fstat(fd, &st))
        return NULL;
    for (Loaded *l = loaded; l; l = l->next)
        if (l->file == st.st_ino)
            return l->m;
    void *image = read_all(fd, (size_t)st.st_size);
    Loaded *l = malloc(sizeof *l);
    *l = (Loaded){ st.st_ino, emu_load(image, (size_t)st.st_size), loaded };
    free(image);
    loaded = l;
    return l->m;
}

static int take_from_cache(Source *s)
{
    char path[PATH + 64];

    path_of(path, s->key);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    s->built = fd >= 0 ? load_file(fd) : NULL;
    if (fd >= 0)
        close(fd);
    return s->built != NULL;
}

static void put_in_cache(Source *const *v, int n, const void *image,
                         size_t size)
{
    char path[PATH + 64], whole[PATH + 64], name[32];
    static _Atomic int count;

    snprintf(name, sizeof name, "new-%ld-%d", (long)getpid(), count++);
    path_of(whole, name);
    int fd = open(whole, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int ok = fd >= 0 && write(fd, image, size) == (ssize_t)size;
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < n && ok; i++) {
        path_of(path, v[i]->key);
        unlink(path);
        if (link(whole, path))
            ok = 0;
    }
    unlink(whole);
}

/* ---- the text of a batch ------------------------------------------------- */

/* What all begin with: up to the end of a function. */
static size_t common(Source *const *v, int n)
{
    size_t k = strlen(v[0]->text);

    for (int i = 1; i < n; i++) {
        size_t j = 0;
        while (j < k && v[i]->text[j] == v[0]->text[j])
            j++;
        k = j;
    }
    while (k > 2 && memcmp(v[0]->text + k - 3, "\n}\n", 3))
        k--;
    return n > 1 && k > 2 ? k : 0;
}

/* "#pragma push_macro" or pop_macro for each macro that the text makes. */
static void keep_macros(FILE *f, const char *text, const char *how)
{
    static const char *const words[] = { "#define ", "#undef " };

    for (const char *s = text; s; s = strchr(s, '\n')) {
        s += *s == '\n';
        for (int i = 0; i < 2; i++) {
            size_t n = strlen(words[i]);
            if (!strncmp(s, words[i], n))
                fprintf(f, "#pragma %s_macro(\"%.*s\")\n", how,
                        (int)strcspn(s + n, " (\n"), s + n);
        }
    }
}

static char *batch_text(Source *const *v, int n)
{
    size_t same = common(v, n), size;
    char *text;
    FILE *f = open_memstream(&text, &size);

    fprintf(f, "%.*s", (int)same, v[0]->text);
    for (int i = 0; i < n; i++) {
        const char *own = v[i]->text + same;
        if (same)
            keep_macros(f, own, "push");
        if (same)
            fprintf(f, "namespace n_%s {\n", v[i]->key);
        fputs(own, f);
        fprintf(f, "%s", same ? "}\n" : "");
        if (same)
            keep_macros(f, own, "pop");
    }
    fclose(f);
    return text;
}

/* ---- compiling ----------------------------------------------------------- */

static int compile(Source *const *v, int n)
{
    static const char *const options[] = { "--gpu-architecture=sm_90a",
                                           "--fmad=false", "--std=c++17",
                                           "-default-device" };
    char *log = NULL, *text = batch_text(v, n);
    void *image = NULL;
    size_t size = 0;
    int bad = emu_compile(text, options, 4, &log, &image, &size);

    if (!bad)
        put_in_cache(v, n, image, size);
    else if (n == 1)
        wrong(INVALID, "a kernel does not compile: %s", log);
    free(text);
    free(log);
    free(image);
    return !bad;
}

typedef struct Queue {
    Source **v;
    int n, next;
    pthread_mutex_t lock;
} Queue;

/* A batch that fails may have texts that do not go together. */
static void *work(void *arg)
{
    Queue *q = arg;

    for (;;) {
        pthread_mutex_lock(&q->lock);
        int at = q->next, n = q->n - at < BATCH ? q->n - at : BATCH;
        q->next += n;
        pthread_mutex_unlock(&q->lock);
        if (!n)
            return NULL;
        if (!compile(q->v + at, n))
            for (int i = 0; i < n && n > 1; i++)
                compile(q->v + at + i, 1);
    }
}

static void compile_all(Source **v, int n)
{
    Queue q = { v, n, 0, PTHREAD_MUTEX_INITIALIZER };
    pthread_t other[THREADS];
    int k = 0;

    for (; k < THREADS - 1 && k * BATCH + BATCH < n; k++)
        if (pthread_create(&other[k], NULL, work, &q))
            break;
    work(&q);
    while (k)
        pthread_join(other[--k], NULL);
}

EmuModule *source_built(Source *s)
{
    Source **v = NULL;
    int n = 0;

    if (s->built)
        return s->built;
    find_folder();
    int lock = lock_folder();
    for (Source *o = sources; o; o = o->next)
        if (!o->built && !take_from_cache(o)) {
            v = realloc(v, (size_t)(n + 1) * sizeof(Source *));
            v[n++] = o;
        }
    if (n)
        compile_all(v, n);
    for (int i = 0; i < n; i++)
        take_from_cache(v[i]);
    if (lock >= 0)
        close(lock);
    free(v);
    return s->built;
}
