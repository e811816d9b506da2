/* crash_test: a run that continues and saves is struck at each call to the file
 * system that concerns its checkpoints, in resuming and in saving: killed, with
 * and without all or some of what was not synced; the disk full once and from
 * then on; an error of the disk; a short write (faultfs.c). One process, and
 * two under mpirun; file systems that exchange names and those that do not;
 * saves beside training and saves that wait. Or at each call that concerns
 * the rest of a run's folder: when it begins, and when it goes on by its folder
 * with a setting that is compiled in.
 *
 * After each: what has a checkpoint's name is whole, and nothing that was saved
 * is lost; the exit status is 0 only if the last step is saved; settings, plan
 * and steps of before are there. Continued, the run comes to the same bits as
 * one that nothing happened to, and leaves nothing but its last checkpoint.
 * Some of the calls; with PLEAT_ALL all.
 *
 *     crash_test          all ways of running
 *     crash_test word     those whose names have the word
 *     crash_test word n   one of n calls */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tinyplan.h"

enum { BEFORE = 2, STRUCK = 4, AFTER = 5, MAXARG = 24 };

static char *home, *bin;
static int failed;

/* What is struck, and how a failure may show. */
static const struct {
    const char *name;
    int ends, fails; /* the process is killed; a call fails */
} modes[] = {
    { "kill", 1, 0 },  { "power", 1, 0 }, { "torn", 1, 0 },
    { "above", 1, 0 }, { "below", 1, 0 }, { "enospc", 0, 1 },
    { "full", 0, 1 },  { "eio", 0, 1 },   { "short", 0, 0 },
};
enum { NMODE = sizeof modes / sizeof *modes };

/* How a run is begun: by a plan; by a model; by its folder. */
typedef enum By { PLAN, MODELFILE, FOLDER } By;

typedef struct RunKind {
    By by;
    const char *name;
    int ranks, rank; /* under mpirun, if several; the one that is struck */
    const char *keys, *env;
    int sample, all; /* of so many calls one; with PLEAT_ALL */
} RunKind;

static const RunKind ways[] = {
    /* clang-format off */
    { PLAN, "beside training", 1, 0, "", NULL, 97, 1 },
    { PLAN, "while it waits", 1, 0, "train.snapshot=0", NULL, 227, 5 },
    { PLAN, "no exchange of names", 1, 0, "", "FAULT_NOEXCHANGE=1", 211, 5 },
    { PLAN, "2 ranks, the first", 2, 0, "", NULL, 293, 7 },
    { PLAN, "2 ranks, the second", 2, 1, "", NULL, 199, 2 },
    { MODELFILE, "the folder, a start", 1, 0, "", NULL, 163, 1 },
    { FOLDER, "the folder, a resume", 1, 0, "train.clip=0.5", NULL, 167, 1 },
    /* clang-format on */
};
enum { NWAY = sizeof ways / sizeof *ways };

/* ---- files --------------------------------------------------------------- */

static char *in_home(const char *name)
{
    return strf(forever, "%s/%s", home, name);
}

static void sh(const char *command)
{
    if (system(command))
        die("failed: %s", command);
}

static int same_files(const char *a, const char *b)
{
    size_t n = 0, m = 0;
    char *p = file_read(forever, a, &n), *q = file_read(forever, b, &m);

    return p && q && n == m && !memcmp(p, q, n);
}

/* ---- running ------------------------------------------------------------- */

static char **split(const char *s, char **v, int *n)
{
    char *next, *w = strtok_r(strf(forever, "%s", s), " ", &next);

    for (; w && *n < MAXARG; w = strtok_r(NULL, " ", &next))
        v[(*n)++] = w;
    v[*n] = NULL;
    return v;
}

/* What is counted: the checkpoints, or all but them. */
static void set_fault(const RunKind *w, const char *name, const char *fault)
{
    setenv("LD_PRELOAD", strf(forever, "%s/tests/unit/faultfs.so", bin), 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
    setenv("FAULT", fault, 1);
    setenv("FAULT_IN", w->by == PLAN ? "/ckpt" : name, 1);
    if (w->by != PLAN)
        setenv("FAULT_NOT", "/ckpt", 1);
    setenv("FAULT_RANK", strf(forever, "%d", w->rank), w->ranks > 1);
    setenv("FAULT_LOG", in_home("calls"), 1);
    setenv("FAULT_GRAVE", in_home("grave"), 1);
    setenv("FAULT_TOP", w->by == PLAN ? strf(forever, "%s/ckpt", name) : name,
           1);
}

static char *begins(const RunKind *w, const char *name)
{
    if (w->by == PLAN)
        return strf(forever, "%s/pleat-run %s/%d.plan name=%s", bin, home,
                    w->ranks, name);
    return strf(forever, "%s/pleat run %s target=host name=%s", bin,
                w->by == FOLDER ? name : in_home("small.lua"), name);
}

/* `steps` of the run in that folder; its status, -9 when it was killed. fault:
 * null, or "kill:7". */
static int run(const RunKind *w, const char *name, int steps, const char *fault)
{
    char *arg[MAXARG + 1];
    int n = 0, status;
    pid_t pid = fork();

    if (!pid) {
        int fd = open(in_home("log"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        setenv("PLEAT_THREADS", "1", 1);
        if (fault)
            set_fault(w, name, fault);
        if (w->ranks == 1)
            unsetenv("FAULT_RANK");
        else
            split(strf(forever, "mpirun -n %d", w->ranks), arg, &n);
        split(strf(forever,
                   "%s train.save_every=1 train.keep=1 train.steps=%d "
                   "resume=1 %s",
                   begins(w, name), steps, w->keys),
              arg, &n);
        if (w->env)
            putenv(strf(forever, "%s", w->env));
        execvp(arg[0], arg);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int says(const char *what)
{
    size_t n;
    char *s = file_read(forever, in_home("log"), &n);

    return s && strstr(s, what) != NULL;
}

/* Calls that were counted, and the k-th one's name. */
static long calls(long k, char *name)
{
    FILE *f = fopen(in_home("calls"), "r");
    long n = 0, at;
    char call[32];

    *name = 0;
    while (f && fscanf(f, "%ld %31s %*s", &at, call) == 2) {
        n = at;
        if (n == k)
            strcpy(name, call);
    }
    if (f)
        fclose(f);
    unlink(in_home("calls"));
    return n;
}

/* The run that is struck, and one that came to its end. */
static char *base_of(const RunKind *w)
{
    return w->by == PLAN        ? strf(forever, "%s/base%d", home, w->ranks)
           : w->by == MODELFILE ? in_home("none")
                                : in_home("begun");
}

static char *whole_of(const RunKind *w)
{
    return w->by == PLAN        ? strf(forever, "%s/ref%d", home, w->ranks)
           : w->by == MODELFILE ? in_home("straight")
                                : in_home("resumed");
}

/* ---- what must hold ------------------------------------------------------ */

/* The newest step that is there whole; -1 and *why: what is not right. */
static int64_t newest_whole(const char *ckpt, const char **why)
{
    DIR *d = opendir(ckpt);
    struct dirent *e;
    int64_t best = -1;
    State s;

    while (d && (e = readdir(d))) {
        if (strncmp(e->d_name, "step-", 5))
            continue;
        const char *bad =
            ckpt_verify(forever, strf(forever, "%s/%s", ckpt, e->d_name), &s);
        if (bad)
            *why = strf(forever, "%s: %s", e->d_name, bad);
        else
            best = s.step > best ? s.step : best;
    }
    if (d)
        closedir(d);
    return best;
}

/* Is what a file said there, under its name or "config.1.lua"? */
static int is_kept(const char *was, const char *dir, const char *name,
                   const char *end)
{
    int there = same_files(was, strf(forever, "%s/%s%s", dir, name, end));

    for (int i = 1; i < 4 && !there; i++)
        there = same_files(was, strf(forever, "%s/%s.%d%s", dir, name, i, end));
    return there;
}

/* Of a folder: null, or what is lost of it. */
static const char *past_lost(const char *base, const char *dir)
{
    static const char *const files[][2] = { { "config", ".lua" },
                                            { "plan", "" },
                                            { "machine", "" },
                                            { "data", "" },
                                            { "tuned", "" } };
    size_t n = 0, m = 0;

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *name = files[i][0], *end = files[i][1];
        char *was = strf(forever, "%s/%s%s", base, name, end);
        if (!access(was, F_OK) && !is_kept(was, dir, name, end))
            return strf(forever, "what %s%s said is lost", name, end);
    }
    char *was = file_read(forever, strf(forever, "%s/metrics.jsonl", base), &n);
    char *now = file_read(forever, strf(forever, "%s/metrics.jsonl", dir), &m);
    return was && (!now || m < n || memcmp(was, now, n))
               ? "steps in metrics.jsonl are lost"
               : NULL;
}

/* Was it saved with settings that the folder does not have? */
static int without_settings(const RunKind *w, const char *ckpt, int64_t best)
{
    size_t n;

    if (w->by != FOLDER || best <= BEFORE)
        return 0;
    char *s = file_read(forever, strf(forever, "%s/../config.lua", ckpt), &n);
    return !s || !strstr(s, "[\"train.clip\"] = \"0.5\"");
}

/* A checkpoint whose name could not be synced is there, and not saved. */
static const char *after_strike(const RunKind *w, const char *ckpt, int mode,
                                int status)
{
    const char *why = NULL;
    int64_t best = newest_whole(ckpt, &why);
    int64_t before = w->by == MODELFILE ? -1 : BEFORE;

    if (why)
        return why;
    if (best < before)
        return "what was saved before is lost";
    if (without_settings(w, ckpt, best))
        return "config.lua is not that of the last checkpoint";
    if (modes[mode].ends)
        return status == 0 ? "it was not killed" : NULL;
    if (!modes[mode].fails)
        return status || best != STRUCK ? "it did not go on" : NULL;
    if (status == 0)
        return best == STRUCK ? NULL : "status 0, the last step is not saved";
    if (status == 1)
        return best == before ? NULL : "status 1 after the first step";
    if (status != 3 || !says("the last checkpoint, of step 4, was not written"))
        return strf(forever, "status %d, and no word", status);
    return best < STRUCK || says("cannot sync") ? NULL
                                                : "status 3, but it is saved";
}

/* The copy is nobody's, and stays where no save took its place. */
static int is_the_copy(const char *ckpt, const char *name)
{
    State s = { 0 };

    return !strcmp(name, strf(forever, "step-%08d", BEFORE + 1)) &&
           !ckpt_verify(forever, strf(forever, "%s/%s", ckpt, name), &s) &&
           s.step == BEFORE;
}

static const char *only_the_last(const char *ckpt)
{
    DIR *d = opendir(ckpt);
    struct dirent *e;
    const char *why = NULL;
    char *last = strf(forever, "step-%08d", AFTER);

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            strcmp(e->d_name, "latest") && strcmp(e->d_name, last) &&
            !is_the_copy(ckpt, e->d_name))
            why = strf(forever, "%s is left", e->d_name);
    if (d)
        closedir(d);
    return why;
}

static const char *after_all(const RunKind *w, const char *ckpt, int status)
{
    const char *why = NULL;

    if (status)
        return strf(forever, "it does not continue: status %d", status);
    if (newest_whole(ckpt, &why) != AFTER || why)
        return why ? why : "the last step is not there";
    for (int i = MODEL; i <= OPTIM; i++) {
        char *name = strf(forever, "step-%08d/%s", AFTER, ckptfile[i]);
        if (!same_files(strf(forever, "%s/%s", ckpt, name),
                        strf(forever, "%s/ckpt/%s", whole_of(w), name)))
            return strf(forever, "%s has other bits", name);
    }
    return only_the_last(ckpt);
}

/* ---- the cases ----------------------------------------------------------- */

/* The run as it was. Where checkpoints are looked at, the name of its next step
 * is taken, by a copy of the one before. */
static char *fresh(const RunKind *w)
{
    char *dir = in_home("case"), *grave = in_home("grave");

    sh(strf(forever, "rm -rf %s %s && mkdir %s && cp -r %s %s", dir, grave,
            grave, base_of(w), dir));
    if (w->by == PLAN)
        sh(strf(forever, "cp -r %s/ckpt/step-%08d %s/ckpt/step-%08d", dir,
                BEFORE, dir, BEFORE + 1));
    return dir;
}

static void one(const RunKind *w, int mode, long k, long *most)
{
    char *dir = fresh(w), *ckpt = strf(forever, "%s/ckpt", dir), call[32];
    int status =
        run(w, dir, STRUCK, strf(forever, "%s:%ld", modes[mode].name, k));
    long n = calls(k, call);
    const char *why = after_strike(w, ckpt, mode, status);

    *most = n > *most ? n : *most;
    why = why ? why : past_lost(base_of(w), dir);
    if (!why)
        why = after_all(w, ckpt, run(w, dir, AFTER, NULL));
    why = why ? why : past_lost(base_of(w), dir);
    if (!why)
        return;
    failed++;
    printf("# %s, %s at call %ld (%s): %s\n", w->name, modes[mode].name, k,
           call, why);
    size_t len = 0;
    char *s = file_read(forever, in_home("log"), &len);
    printf("# %s\n", s ? s : "");
}

/* In another order for each mode, so that a sample has all kinds of calls. */
static void strike_all(const RunKind *w, int step)
{
    char *dir = fresh(w), call[32];
    int status = run(w, dir, STRUCK, "count:0"), before = failed, tried = 0;
    long n = calls(0, call), most = 0;

    for (int m = 0; m < NMODE; m++)
        for (long k = 1 + (m * 5) % step; k <= n; k += step, tried++)
            one(w, m, k, &most);
    int ok = !status && n > 0 && tried > 0 && failed == before;
    failed += !ok && failed == before;
    printf("%sok - crash: %s: %d strikes at %ld calls, %d lost something\n",
           ok ? "" : "not ", w->name, tried, n, failed - before);
    fflush(stdout);
}

static void prepare(int ranks)
{
    RunKind w = { PLAN, "", ranks, 0, "", NULL, 1, 1 };
    size_t n;
    char *keys = strf(forever,
                      "data.train=%s data.format=bytes train.batch=8 "
                      "train.lr=0.5 seed=3",
                      in_home("bytes"));
    char *text = plan_print(forever, tiny_plan(ranks, keys), &n);

    if (file_write(strf(forever, "%s/%d.plan", home, ranks), text, n) ||
        run(&w, base_of(&w), BEFORE, NULL) ||
        run(&w, whole_of(&w), AFTER, NULL))
        die("crash: no run to strike at in %s", home);
}

/* A run of a model, and one that went on by its folder. */
static void prepare_folders(void)
{
    RunKind start = { MODELFILE, "", 1, 0, "", NULL, 1, 1 };
    RunKind resume = { FOLDER, "", 1, 0, "train.clip=0.5", NULL, 1, 1 };

    sh(strf(forever,
            "tar -xzf tests/data/runs/format1.tar.gz -C %s && mkdir %s", home,
            base_of(&start)));
    if (run(&start, whole_of(&start), AFTER, NULL) ||
        run(&start, base_of(&resume), BEFORE, NULL))
        die("crash: no run of a model in %s", home);
    sh(strf(forever, "cp -r %s %s", base_of(&resume), whole_of(&resume)));
    if (run(&resume, whole_of(&resume), AFTER, NULL))
        die("crash: no run goes on in %s", home);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    char self[4096], text[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = 0;
    bin =
        strf(forever, "%.*s", (int)(strstr(self, "/tests/unit/") - self), self);
    home = strf(forever, "%s/pleat-crash.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(home))
        die("no folder in %s", tmp ? tmp : "/tmp");
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = (char)((i * i / 3 + i) % 16);
    if (file_write(in_home("bytes"), text, sizeof text))
        die("no text");
    setenv("XDG_CACHE_HOME", in_home("cache"), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    int most = system("mpirun --version >/dev/null 2>&1") ? 1 : 2;
    for (int ranks = 1; ranks <= most; ranks++)
        prepare(ranks);
    prepare_folders();
    for (int i = 0; i < NWAY; i++)
        if (ways[i].ranks <= most &&
            (argc < 2 || strstr(ways[i].name, argv[1])))
            strike_all(&ways[i], argc > 2              ? atoi(argv[2])
                                 : getenv("PLEAT_ALL") ? ways[i].all
                                                       : ways[i].sample);
    sh(strf(forever, "rm -rf %s", home));
    return failed != 0;
}
