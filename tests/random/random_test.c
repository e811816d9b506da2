/* random_test: random models of the whole language against a reference that
 * shares no code with the compiler (ref.h), each check of checks.def. Models
 * that once failed are kept in tests/random/kept and tried first.
 *
 *     random_test [--seeds 1-300] [--program FILE] [--only CHECK,...|all]
 *                 [--keys 'KEY=VALUE ...']    of all plans, too
 *                 [--jobs N]      processes at a time
 *                 [--keep DIR]    smaller models that fail alike go there
 *                 [--show SEED]   the model of a seed
 *
 * Without arguments: what is kept, and 40 seeds; with PLEAT_ALL=1 10,000. */
#include <dirent.h>
#include <ftw.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen.h"
#include "random.h"

enum { USUAL = 40, ALL = 10000, MOSTKEPT = 40 };
static const char keptdir[] = "tests/random/kept";

typedef struct Case {
    const char *name; /* "seed 17", or a file's */
    const char *file; /* null: from the seed */
    uint64_t seed;
} Case;

typedef struct Session {
    Case *model; /* vec */
    Report *r;   /* shared, by work */
    _Atomic int *next;
    unsigned which; /* 0: all of a file, some of a seed */
    int jobs;
    const char *keep, *dir; /* dir: temporary */
} Session;

/* ---- arguments ----------------------------------------------------------- */

static void add_seeds(Session *s, int from, int to)
{
    for (int i = from; i <= to; i++) {
        Case w = { strf(forever, "seed %d", i), NULL, (uint64_t)i };
        vec_push(forever, s->model, w);
    }
}

static void add_file(Session *s, const char *file)
{
    const char *slash = strrchr(file, '/');
    Case w = { slash ? slash + 1 : file, file, 0 };

    vec_push(forever, s->model, w);
}

static int is_lua(const struct dirent *d)
{
    const char *dot = strrchr(d->d_name, '.');

    return dot && !strcmp(dot, ".lua");
}

static void add_kept(Session *s)
{
    struct dirent **v;
    int n = scandir(keptdir, &v, is_lua, alphasort);

    for (int i = 0; i < n; i++)
        add_file(s, strf(forever, "%s/%s", keptdir, v[i]->d_name));
}

/* Of names with commas between them, and what those need. */
static unsigned check_bits(const char *names)
{
    unsigned bits = 1u << CKreference | 1u << CKhost;

    for (const char *s = names; *s; s += *s == ',') {
        const char *name = strf(forever, "%.*s", (int)strcspn(s, ","), s);
        int c = 0;
        while (c < NCHECK && strcmp(checktab[c].name, name))
            c++;
        if (c == NCHECK && strcmp(name, "all"))
            err(NULL, "there is no check '%s'", name);
        bits |= c == NCHECK ? (unsigned)ALLCHECKS : 1u << c;
        s += strcspn(s, ",");
    }
    return bits;
}

static void arguments(Session *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int from, to;
        if (value && !strcmp(word, "--seeds") &&
            sscanf(value, "%d-%d", &from, &to) == 2)
            add_seeds(s, from, to);
        else if (value && !strcmp(word, "--program"))
            add_file(s, value);
        else if (value && !strcmp(word, "--only"))
            s->which = check_bits(value);
        else if (value && !strcmp(word, "--keys"))
            more_keys = value;
        else if (value && !strcmp(word, "--jobs"))
            s->jobs = atoi(value);
        else if (value && !strcmp(word, "--show"))
            exit(fputs(gen_model(forever, strtoull(value, NULL, 10)), stdout) <
                 0);
        else if (value && !strcmp(word, "--keep"))
            s->keep = value;
        else
            err(NULL, "%s: see the head of random_test.c", word);
    }
    if (s->model)
        return;
    add_kept(s);
    add_seeds(s, 1, getenv("PLEAT_ALL") ? ALL : USUAL);
}

/* ---- working ------------------------------------------------------------- */

static char *model_text(Arena *a, const Case *w)
{
    size_t n;
    char *s = w->file ? file_read(a, w->file, &n) : gen_model(a, w->seed);

    if (!s)
        err(NULL, "cannot read %s", w->file);
    return s;
}

/* Of a random model: numbers and CUDA always, two of the others; three where
 * there is time. */
static unsigned some_checks(uint64_t seed)
{
    unsigned bits = 1u << CKreference | 1u << CKhost | 1u << CKcuda;

    for (int i = 0; i < (getenv("PLEAT_ALL") ? 3 : 2); i++) {
        seed = mix64(seed, 3);
        bits |= 1u << (CKcuda + 1 + (int)(seed % (NCHECK - CKcuda - 1)));
    }
    return bits;
}

static void worker(Session *s)
{
    int i;

    while ((i = atomic_fetch_add(s->next, 1)) < (int)vec_len(s->model)) {
        const Case *w = &s->model[i];
        Arena *a = arena_new();
        const char *file = w->file ? w->file : strf(a, "%s/%d.lua", s->dir, i);
        if (!w->file) {
            char *text = model_text(a, w);
            write_all(file, OUTown, text, strlen(text));
        }
        unsigned which = s->which  ? s->which
                         : w->file ? ALLCHECKS & ~(unsigned)FEWBITS
                                   : some_checks(w->seed);
        examine(file, which, &s->r[i]);
        if (!w->file)
            unlink(file);
        arena_free(a);
    }
}

static void examine_all(Session *s)
{
    fflush(NULL);
    for (int j = 0; j < s->jobs; j++)
        if (fork() == 0) {
            worker(s);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
}

/* ---- results ------------------------------------------------------------- */

static void count(const Session *s, int c)
{
    int n[NVERDICT] = { 0 }, bad = 0, first = -1;
    double most = 0;

    for (size_t i = 0; i < vec_len(s->model); i++) {
        const Outcome *o = &s->r[i].o[c];
        n[o->v]++;
        if (outcome_bad(o)) {
            bad++;
            first = first < 0 ? (int)i : first;
        } else if (o->apart > most) {
            most = o->apart;
        }
    }
    printf("%sok - random %s:", bad ? "not " : "", checktab[c].name);
    for (int v = FINE; v < NVERDICT; v++)
        if (n[v])
            printf(" %d %s,", n[v], verdicts[v]);
    printf(" at most %.2g of the bound\n", most);
}

static void show_bad(const Session *s)
{
    for (size_t i = 0; i < vec_len(s->model); i++)
        for (int c = 0; c < NCHECK; c++) {
            const Outcome *o = &s->r[i].o[c];
            if (o->v > FINE)
                printf("# %s: %s %s: %s (%.2g)\n", s->model[i].name,
                       checktab[c].name, verdicts[o->v], o->what, o->apart);
        }
    fflush(stdout);
}

static int all_right(const Session *s)
{
    for (size_t i = 0; i < vec_len(s->model); i++)
        if (report_bad(&s->r[i]) != NCHECK)
            return 0;
    return 1;
}

/* ---- keeping ------------------------------------------------------------- */

/* Failures of one message are taken for one. */
static int seen(const char **was, const char *what)
{
    for (size_t i = 0; i < vec_len(was); i++)
        if (same_message(was[i], what))
            return 1;
    return 0;
}

static void keep_one(const Session *s, size_t i, Check c)
{
    Arena *a = arena_new();
    Report *r = shared_memory(sizeof *r);
    const Case *w = &s->model[i];
    const Outcome *o = &s->r[i].o[c];
    const char *file = strf(a, "%s/shrink.lua", s->dir);
    char *text = shrink(a, model_text(a, w), file, c, r);
    char *name = strf(a, "%s/%s-%s-%s", s->keep, checktab[c].name,
                      verdicts[o->v], w->name);
    for (char *p = name; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    if (!w->file)
        name = strf(a, "%s.lua", name);

    text = strf(a, "-- %s: %s %s: %s\n%s", w->name, checktab[c].name,
                verdicts[o->v], r->o[c].what, text);
    write_all(name, OUTown, text, strlen(text));
    printf("# kept %s\n", name);
    fflush(stdout);
    arena_free(a);
}

static void keep(const Session *s)
{
    const char **was = NULL;
    int kept = 0;

    for (size_t i = 0; i < vec_len(s->model) && kept < MOSTKEPT; i++)
        for (int c = 0; c < NCHECK; c++) {
            const Outcome *o = &s->r[i].o[c];
            const char *what =
                strf(forever, "%s %s", checktab[c].name, o->what);
            if (!outcome_bad(o) || seen(was, what))
                continue;
            vec_push(forever, was, what);
            keep_one(s, i, (Check)c);
            kept++;
        }
}

static int remove_one(const char *path, const struct stat *st, int flag,
                      struct FTW *f)
{
    (void)st;
    (void)flag;
    (void)f;
    return remove(path);
}

int main(int argc, char **argv)
{
    Session s = { 0 };
    cpu_set_t set;
    char dir[] = "/tmp/pleat-random-XXXXXX";

    sched_getaffinity(0, sizeof set, &set);
    s.jobs = CPU_COUNT(&set);
    arguments(&s, argc, argv);
    if (!mkdtemp(dir))
        err(NULL, "cannot make a folder in /tmp");
    s.dir = dir;
    setenv("XDG_CACHE_HOME", dir, 1);
    setenv("PLEAT_OPT", "0", 1);
    s.r = shared_memory(vec_len(s.model) * sizeof *s.r);
    s.next = shared_memory(sizeof *s.next);
    examine_all(&s);
    for (int c = 0; c < NCHECK; c++)
        count(&s, c);
    show_bad(&s);
    if (s.keep)
        keep(&s);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return !all_right(&s);
}
