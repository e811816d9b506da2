/* dl.c: opens shared libraries at first use, so that one program starts on
 * machines without GPUs or MPI and reports which libraries it found. syms.def
 * lists their functions. */
#include <dlfcn.h>
#include <pthread.h>

#include "process.h"

Dl dl;

typedef struct LibInfo {
    const char *name, *what, *files, *package;
} LibInfo;

/* clang-format off */
static const LibInfo libinfo[NLIB] = {
#define LIB(id, what, names, package) {#id, what, names, package},
#include "syms.def"
};
/* clang-format on */

/* clang-format off */
static const struct { Lib lib; const char *name; size_t at; int must; } syms[] = {
#define SYM(id, name, ret, args) {LIB##id, #name, offsetof(Dl, name), 1},
#define TRY(id, name, ret, args) {LIB##id, #name, offsetof(Dl, name), 0},
#define OBJ(id, name) {LIB##id, #name, offsetof(Dl, name), 1},
#include "syms.def"
};
/* clang-format on */

static struct {
    int tried, ok, begun; /* begun: a thread maps it */
    const char *why;
    pthread_t thread;
} lib[NLIB];

/* Opens the first of these files that loads. On failure returns null and *why:
 * no file exists, or the loader's message about the last one. */
static void *open_any(const char *files, const char **why)
{
    for (const char *name; (name = next_word(&files, " "));) {
        void *h = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
        const char *said = h ? NULL : dlerror();
        if (h)
            return h;
        if (said && !strstr(said, "No such file"))
            *why = strf(forever, "%s", said);
    }
    return NULL;
}

static const char *bind(Lib l, void *h)
{
    for (int i = 0; i < countof(syms); i++) {
        if (syms[i].lib != l)
            continue;
        void *p = dlsym(h, syms[i].name);
        if (!p && syms[i].must)
            return strf(forever, "it has no %s", syms[i].name);
        memcpy((char *)&dl + syms[i].at, &p, sizeof p);
    }
    return NULL;
}

/* Thread: maps a library, which stays mapped; dl_open reports errors. It must
 * not call next_word, whose interning is not thread-safe. */
static void *map(void *files)
{
    char name[64];

    for (const char *s = files; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        if (dlopen(name, RTLD_NOW | RTLD_GLOBAL))
            break;
        s += n;
    }
    return NULL;
}

void dl_begin(Lib l)
{
    if (!lib[l].tried && !lib[l].begun)
        lib[l].begun = !pthread_create(&lib[l].thread, NULL, map,
                                       (void *)(uintptr_t)libinfo[l].files);
}

static void settle(Lib l)
{
    if (lib[l].begun)
        pthread_join(lib[l].thread, NULL);
    lib[l].begun = 0;
}

void dl_settle(void)
{
    for (int l = 0; l < NLIB; l++)
        settle((Lib)l);
}

int dl_open(Lib l)
{
    settle(l);
    if (lib[l].tried)
        return lib[l].ok;
    if (l == LIBblas)
        coretype_choose();
    lib[l].tried = 1;
    if (l == LIBblas) /* OpenBLAS would start its threads while loading */
        setenv("OPENBLAS_NUM_THREADS", "1", 0);
    const char *why = "not found";
    void *h = open_any(libinfo[l].files, &why);
    lib[l].why = h ? bind(l, h) : why;
    lib[l].ok = !lib[l].why;
    return lib[l].ok;
}

const char *dl_why(Lib l)
{
    return lib[l].why;
}

const char *dl_missing(Arena *a, Lib l)
{
    return strf(a, "needs lib%s: %s (apt install %s)", libinfo[l].name,
                dl_why(l), libinfo[l].package);
}

const char *dl_what(Lib l)
{
    return libinfo[l].what;
}

const char *dl_name(Lib l)
{
    return libinfo[l].name;
}

int dl_is_open(Lib l)
{
    return lib[l].ok;
}
