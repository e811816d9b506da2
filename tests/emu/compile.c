/* compile.c: a kernel text to a shared object: preprocessed, rewritten, and
 * compiled by this machine's C++ compiler. Refuses what NVRTC and ptxas would:
 * unknown options, PTX that is not understood. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char words_hh[];

enum { MAXARG = 24, DIR = 400, PATH = DIR + 16 };

typedef struct Work {
    char dir[DIR];
    const char *arg[MAXARG];
    int narg;
    Out *log;
} Work;

static void path_of(const Work *w, const char *name, char to[PATH])
{
    snprintf(to, PATH, "%s/%s", w->dir, name);
}

/* ---- files --------------------------------------------------------------- */

static int write_file(const Work *w, const char *name, const char *const *text)
{
    char path[PATH];

    path_of(w, name, path);
    FILE *f = fopen(path, "w");
    if (!f)
        return 0;
    for (; *text; text++)
        fputs(*text, f);
    return fclose(f) == 0;
}

static char *read_file(const Work *w, const char *name, size_t *n)
{
    char path[PATH];
    struct stat st;

    path_of(w, name, path);
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    *n = fstat(fileno(f), &st) ? 0 : (size_t)st.st_size;
    char *s = malloc(*n + 1);
    *n = fread(s, 1, *n, f);
    s[*n] = 0;
    fclose(f);
    return s;
}

static void remove_all(const Work *w)
{
    static const char *const name[] = { "in.cc", "flat.cc", "out.cc", "out.so",
                                        "log" };
    char path[PATH];

    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        path_of(w, name[i], path);
        unlink(path);
    }
    rmdir(w->dir);
}

/* ---- the compiler -------------------------------------------------------- */

/* In the work's folder, with what it says in the log; -1: not at all. No fork:
 * the process may be large. */
static int spawn(Work *w)
{
    char path[PATH];
    posix_spawn_file_actions_t acts;
    pid_t pid = 0;
    int status = -1;

    path_of(w, "log", path);
    posix_spawn_file_actions_init(&acts);
    posix_spawn_file_actions_addopen(&acts, 1, path,
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&acts, 1, 2);
    posix_spawn_file_actions_addchdir_np(&acts, w->dir);
    int bad = posix_spawnp(&pid, w->arg[0], &acts, NULL,
                           (char *const *)(uintptr_t)w->arg, environ);
    posix_spawn_file_actions_destroy(&acts);
    while (!bad && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return bad ? -1 : status;
}

/* c++ with these arguments. */
static int run(Work *w, const char *const *arg)
{
    const char *cxx = getenv("CXX");
    size_t n = 0;

    w->narg = 0;
    w->arg[w->narg++] = cxx && *cxx ? cxx : "c++";
    while (*arg)
        w->arg[w->narg++] = *arg++;
    w->arg[w->narg] = NULL;
    int status = spawn(w);
    char *said = status ? read_file(w, "log", &n) : NULL;
    if (status)
        out_put(w->log, "error: %s: %s\n", w->arg[0],
                status < 0 ? "does not start" : "refuses the text");
    if (said)
        out_add(w->log, said, n);
    free(said);
    return status == 0;
}

/* Do all asm texts parse? */
static int check_sites(Out *log, const void *image, size_t size)
{
    EmuModule *m = emu_load(image, size);
    int ok = m != NULL;

    if (!m)
        out_put(log, "error: the image does not load\n");
    for (Site *s = m ? m->sites : NULL; s && s->text; s++) {
        Ptx *p = ptx_parse(s->text, s->constraints, log);
        ok &= p != NULL;
        ptx_free(p);
    }
    if (m)
        emu_unload(m);
    return ok;
}

/* PLEAT_OPT as for kernels of the host: 0 where a kernel runs once or twice. */
static const char *level(void)
{
    const char *opt = getenv("PLEAT_OPT");

    return opt && !strcmp(opt, "0") ? "-O0" : "-Og";
}

static char *flatten(Work *w, const char *src)
{
    static const char *const only[] = { "-std=c++17", "-E", "-P",      "-w",
                                        "in.cc",      "-o", "flat.cc", NULL };
    size_t n = 0;

    return write_file(w, "in.cc", (const char *[]){ words_hh, src, NULL }) &&
                   run(w, only)
               ? read_file(w, "flat.cc", &n)
               : NULL;
}

static void *build(Work *w, const char *src, size_t *size)
{
    const char *const make[] = { "-std=c++17",
                                 level(),
                                 "-w",
                                 "-march=native",
                                 "-ffp-contract=off",
                                 "-fno-strict-aliasing",
                                 "-fno-math-errno",
                                 "-fno-trapping-math",
                                 "-fno-exceptions",
                                 "-shared",
                                 "-Wl,-Bsymbolic",
                                 "-fPIC",
                                 "out.cc",
                                 "-o",
                                 "out.so",
                                 "-lm",
                                 NULL };
    char *flat = flatten(w, src);
    char *text = flat ? emu_rewrite(flat, w->log) : NULL;
    free(flat);
    if (!text)
        return NULL;
    int ok =
        write_file(w, "out.cc", (const char *[]){ text, NULL }) && run(w, make);
    free(text);
    return ok ? read_file(w, "out.so", size) : NULL;
}

/* ---- interface ----------------------------------------------------------- */

static int knows(const char *option)
{
    static const char *const known[] = {
        "--gpu-architecture=sm_90a", "--fmad=false",   "--std=c++17",
        "-default-device",           "--device-debug", "--generate-line-info",
        "--ptxas-options="
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(option, known[i], strlen(known[i])))
            return 1;
    return 0;
}

static int open_folder(Work *w)
{
    const char *dir = getenv("TMPDIR");

    snprintf(w->dir, DIR, "%.380s/emu.XXXXXX", dir ? dir : "/tmp");
    if (mkdtemp(w->dir))
        return 1;
    out_put(w->log, "error: no folder %s: %s\n", w->dir, strerror(errno));
    return 0;
}

char *emu_flatten(const char *src)
{
    Out said = { 0 };
    Work w = { .log = &said };
    char *flat = NULL;

    if (open_folder(&w)) {
        flat = flatten(&w, src);
        remove_all(&w);
    }
    free(said.s);
    return flat;
}

int emu_compile(const char *src, const char *const *options, int noptions,
                char **log, void **image, size_t *size)
{
    Out said = { 0 };
    Work w = { .log = &said };
    int ok = 1;

    *image = NULL;
    out_put(&said, "%s", "");
    for (int i = 0; i < noptions; i++)
        if (!knows(options[i])) {
            out_put(&said, "error: unrecognized option %s\n", options[i]);
            ok = 0;
        }
    ok = ok && open_folder(&w);
    if (ok) {
        *image = build(&w, src, size);
        if (getenv("EMU_KEEP"))
            fprintf(stderr, "emu: texts are in %s\n", w.dir);
        else
            remove_all(&w);
        if (*image && !check_sites(&said, *image, *size)) {
            free(*image);
            *image = NULL;
        }
    }
    *log = said.s;
    return *image ? 0 : 6; /* NVRTC_ERROR_COMPILATION */
}
