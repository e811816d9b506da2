/* run_test: a plan from start to end. Loss falls, folds agree, a stopped run
 * continues with the same bits, damaged checkpoints are refused, bad numbers
 * stop a run and name their line, and steps allocate nothing. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "tinyplan.h"
#include "tensors.h"

/* ---- counting allocations: every one of this process comes by here ------- */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ && \
    defined __GLIBC__
#define COUNTS 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t m);
extern void *__libc_realloc(void *p, size_t n);
static atomic_long allocs;

void *malloc(size_t n)
{
    allocs++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
    allocs++;
    return __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
    allocs++;
    return __libc_realloc(p, n);
}
#endif

/* ---- a folder of its own ------------------------------------------------- */

static char *home;

static char *in_home(const char *name)
{
    return strf(forever, "%s/%s", home, name);
}

static void save_bytes(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char *load_bytes(const char *path, size_t *n)
{
    char *s = file_read(forever, path, n);

    assert_non_null(s);
    return s;
}

/* A text with some order in it, in 16 letters. */
static int setup(void **state)
{
    static uint8_t text[4096];
    char *dir = getenv("TMPDIR");

    (void)state;
    home = strf(forever, "%s/pleat-run-test.XXXXXX", dir ? dir : "/tmp");
    if (!mkdtemp(home))
        return -1;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)((i * i / 3 + i) % 16);
    save_bytes(in_home("text"), text, sizeof text);
    setenv("XDG_CACHE_HOME", in_home("cache"), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    return 0;
}

static int teardown(void **state)
{
    char *const rm[] = { "rm", "-rf", home, NULL };
    pid_t pid = fork();

    (void)state;
    if (!pid) {
        execvp(rm[0], rm);
        _exit(1);
    }
    waitpid(pid, NULL, 0);
    return 0;
}

/* ---- running ------------------------------------------------------------- */

static char *keys(const char *more)
{
    return strf(forever,
                "data.train=%s data.format=bytes train.batch=8 "
                "train.lr=0.5 seed=3 %s",
                in_home("text"), more);
}

/* In a child, so that an error can be seen: its status; what it said to
 * `log`. */
static int run(int64_t dp, const char *more, const char *log)
{
    fflush(NULL);
    pid_t pid = fork();
    int status;

    if (!pid) {
        int fd = open(in_home(log), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        exit(run_plan(tiny_plan(dp, keys(more)), NULL));
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int says(const char *log, const char *what)
{
    size_t n;
    char *s = load_bytes(in_home(log), &n);

    s[n] = 0;
    if (!strstr(s, what))
        print_message("# no '%s' in:\n%s\n", what, s);
    return strstr(s, what) != NULL;
}

static void same_bytes(const char *a, const char *b)
{
    size_t n, m;
    char *p = load_bytes(a, &n), *q = load_bytes(b, &m);

    assert_int_equal(n, m);
    assert_memory_equal(p, q, n);
}

/* Losses of `steps` steps from the start. */
static void losses(int64_t dp, int64_t steps, double *out)
{
    Plan *p = tiny_plan(dp, keys("train.steps=8"));
    Exec *x = exec_open(p, comm_open(forever, dp));
    Data *d = data_open(forever, p, "data.train", DATAshuffle);

    exec_run(x, PGinit, NULL, NULL);
    for (int64_t i = 0; i < steps; i++) {
        Feed f = data_feed(d, i * data_perstep(d));
        exec_run(x, PGstep, &(StepValues){ .lr = 0.5, .step = i }, &f);
        out[i] = exec_result(x, RESULTloss);
    }
    exec_close(x);
}

static void test_losses_fall_and_folds_agree(void **state)
{
    double one[8], two[8], four[8], worst = 0;

    (void)state;
    losses(1, 8, one);
    losses(2, 8, two);
    losses(4, 8, four);
    assert_true(one[7] < one[0] - 0.1);
    for (int i = 0; i < 8; i++) {
        worst = fmax(worst, fabs(two[i] - one[i]));
        worst = fmax(worst, fabs(four[i] - one[i]));
    }
    print_message("# largest difference between folds %.3g\n", worst);
    assert_true(worst < 2e-6); /* fp32 sums in another order */
}

/* The step loop, data included, allocates nothing. */
static void test_steps_allocate_nothing(void **state)
{
#ifdef COUNTS
    Plan *p = tiny_plan(2, keys(""));
    Exec *x = exec_open(p, comm_open(forever, 2));
    Data *d = data_open(forever, p, "data.train", DATAshuffle);
    long before = 0;

    (void)state;
    exec_run(x, PGinit, NULL, NULL);
    for (int i = 0; i < 6; i++) {
        Feed f = data_feed(d, i * data_perstep(d));
        exec_run(x, PGstep, &(StepValues){ .lr = 0.5, .step = i }, &f);
        before = i ? before : allocs;
    }
    assert_int_equal(allocs - before, 0);
    void *volatile counted = malloc(1);
    free(counted);
    assert_true(allocs > before);
    exec_close(x);
#else
    (void)state;
    skip();
#endif
}

/* A step's time line, measured: steps in their rows, each with its line. */
static void check_trace(const char *path)
{
    size_t n, k, steps = 0;
    char *s = load_bytes(path, &n);
    json_t *j = json_loadb(s, n, 0, NULL), *v;
    double end = 0;

    assert_true(json_is_array(j));
    json_array_foreach(j, k, v)
    {
        json_t *args = json_object_get(v, "args");
        const char *at = json_string_value(json_object_get(args, "at"));
        double ts = json_number_value(json_object_get(v, "ts"));
        double dur = json_number_value(json_object_get(v, "dur"));
        assert_string_equal(json_string_value(json_object_get(v, "ph")), "X");
        assert_true(dur >= 0);
        if (!json_integer_value(json_object_get(v, "tid"))) {
            end = ts + dur;
            continue;
        }
        assert_true(ts + dur <= end + 0.01); /* printed in ns */
        assert_int_equal(strncmp(at, "tiny.lua:", 9), 0);
        steps++;
    }
    assert_true(steps > 3);
    json_decref(j);
}

static void test_run_folder(void **state)
{
    struct stat st;

    (void)state;
    assert_int_equal(run(1,
                         strf(forever,
                              "train.steps=6 name=%s data.valid="
                              "tail:0.25 train.eval_every=3 train.trace=5",
                              in_home("folder")),
                         "log"),
                     0);
    check_trace(in_home("folder/trace.0.json"));
    assert_true(says("log", "step    6/6 | loss "));
    assert_true(says("log", "val loss "));
    for (int i = 0; i < 5; i++) {
        static const char *const f[] = { "config.lua", "plan", "tuned",
                                         "metrics.jsonl",
                                         "ckpt/step-00000006/index" };
        assert_int_equal(stat(in_home(strf(forever, "folder/%s", f[i])), &st),
                         0);
    }
    assert_true(says("folder/metrics.jsonl", "{\"step\": 6, \"loss\": "));
    assert_true(says("folder/metrics.jsonl", "\"val_loss\": "));
    assert_int_equal(
        run(1, strf(forever, "train.steps=6 name=%s", in_home("folder")),
            "log"),
        1);
    assert_true(says("log", "resume=1"));
}

/* 6 steps, and 3 stopped and continued: the same files. */
static void test_resume_is_bit_equal(void **state)
{
    static const char *const files[] = { "model.safetensors",
                                         "optim.safetensors" };
    char *whole = in_home("whole"), *parts = in_home("parts");

    (void)state;
    assert_int_equal(
        run(2, strf(forever, "train.steps=6 name=%s", whole), "log"), 0);
    assert_int_equal(
        run(2, strf(forever, "train.steps=3 name=%s", parts), "log"), 0);
    assert_int_equal(
        run(2, strf(forever, "train.steps=6 name=%s resume=1", parts), "log"),
        0);
    for (int i = 0; i < 2; i++)
        same_bytes(strf(forever, "%s/ckpt/step-00000006/%s", whole, files[i]),
                   strf(forever, "%s/ckpt/step-00000006/%s", parts, files[i]));
}

/* Saved by 4 ranks, loaded by 1 and by 2, saved again: the same files. */
static void test_any_fold_loads(void **state)
{
    char *dir = in_home("fold");

    (void)state;
    assert_int_equal(run(4, strf(forever, "train.steps=3 name=%s", dir), "log"),
                     0);
    for (int64_t dp = 1; dp <= 2; dp++) {
        Exec *x = exec_open(tiny_plan(dp, keys("")), comm_open(forever, dp));
        State s = { 0 };
        char *to = in_home(strf(forever, "again%d", (int)dp));
        double w[TINYVOCAB * TINYVOCAB], m[TINYVOCAB * TINYVOCAB];
        assert_int_equal(ckpt_resume(x, strf(forever, "%s/ckpt", dir), &s), 1);
        assert_int_equal(s.step, 3);
        assert_int_equal(s.samples, 24);
        assert_int_equal(exec_read(x, "w", 0, w, 256), 256);
        assert_int_equal(exec_read(x, "optim.master.w", 0, m, 256), 256);
        for (int i = 0; i < 256; i++)
            assert_true(w[i] == bf16_to_f32(f32_to_bf16((float)m[i])));
        assert_int_equal(ckpt_save(x, to, &s), 0);
        same_bytes(
            strf(forever, "%s/step-00000003/model.safetensors", to),
            strf(forever, "%s/ckpt/step-00000003/model.safetensors", dir));
        same_bytes(
            strf(forever, "%s/step-00000003/optim.safetensors", to),
            strf(forever, "%s/ckpt/step-00000003/optim.safetensors", dir));
        exec_close(x);
    }
}

/* One bit anywhere in any file, or a byte less: refused. */
static void test_damage_is_refused(void **state)
{
    static const char *const files[] = { "model.safetensors", "index",
                                         "optim.safetensors", "state.json" };
    char *dir = in_home("damage"), *ckpt;
    State s;

    (void)state;
    assert_int_equal(run(1, strf(forever, "train.steps=2 name=%s", dir), "log"),
                     0);
    ckpt = strf(forever, "%s/ckpt/step-00000002", dir);
    assert_null(ckpt_verify(forever, ckpt, &s));
    for (int i = 0; i < 4; i++) {
        char *path = strf(forever, "%s/%s", ckpt, files[i]);
        size_t n;
        char *p = load_bytes(path, &n);
        for (size_t k = 0; k < 40; k++) {
            size_t at = k * 2654435761u % n;
            p[at] ^= (char)(1 << k % 8);
            save_bytes(path, p, n);
            assert_non_null(ckpt_verify(forever, ckpt, &s));
            p[at] ^= (char)(1 << k % 8);
        }
        save_bytes(path, p, n - 1);
        assert_non_null(ckpt_verify(forever, ckpt, &s));
        save_bytes(path, p, n);
        assert_null(ckpt_verify(forever, ckpt, &s));
    }
}

static void test_falls_back_to_the_one_before(void **state)
{
    char *dir = in_home("back"), *bad;
    size_t n;

    (void)state;
    assert_int_equal(run(1,
                         strf(forever,
                              "train.steps=4 train.save_every=2 "
                              "name=%s",
                              dir),
                         "log"),
                     0);
    bad = strf(forever, "%s/ckpt/step-00000004/optim.safetensors", dir);
    char *p = load_bytes(bad, &n);
    p[n - 5] ^= 4;
    save_bytes(bad, p, n);
    assert_int_equal(
        run(1, strf(forever, "train.steps=6 resume=1 name=%s", dir), "log"), 0);
    assert_true(says("log", "step-00000004 is not used: optim.safetensors is "
                            "damaged"));
    assert_true(says("log", "resume at step 2"));
    assert_true(says("log", "step    6/6"));
}

/* The newest two of five stay, and the run goes on from them. */
static void test_keeps_the_last(void **state)
{
    char *dir = in_home("keep");

    (void)state;
    assert_int_equal(run(1,
                         strf(forever,
                              "train.steps=5 train.save_every=1 "
                              "train.keep=2 name=%s",
                              dir),
                         "log"),
                     0);
    for (int i = 1; i <= 5; i++)
        assert_int_equal(
            access(strf(forever, "%s/ckpt/step-%08d", dir, i), F_OK),
            i < 4 ? -1 : 0);
    assert_int_equal(run(1,
                         strf(forever,
                              "train.steps=6 train.keep=2 resume=1 "
                              "name=%s",
                              dir),
                         "log"),
                     0);
    assert_true(says("log", "resume at step 5"));
}

/* A rate that overflows: three bad steps, then status 3 and the place. */
static void test_bad_numbers_stop_the_run(void **state)
{
    (void)state;
    assert_int_equal(run(1,
                         strf(forever, "train.steps=9 train.lr=3e38 name=%s",
                              in_home("bad")),
                         "log"),
                     3);
    assert_true(says("log", "3 steps in a row without a finite gradient"));
    assert_true(says("log", "first NaN in '"));
    assert_true(says("log", "(tiny.lua:"));
}

static void test_sigterm_saves(void **state)
{
    char *dir = in_home("term");
    fflush(NULL);
    pid_t pid = fork();
    int status;
    struct stat st;

    (void)state;
    if (!pid) {
        int fd = open(in_home("log"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        exit(run_plan(tiny_plan(1, keys(strf(forever,
                                             "train.steps=100000000 "
                                             "name=%s",
                                             dir))),
                      NULL));
    }
    while (stat(strf(forever, "%s/metrics.jsonl", dir), &st) || !st.st_size)
        usleep(10000);
    kill(pid, SIGTERM);
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 4);
    assert_true(says("log", "resume=1 continues"));
    assert_true(ckpt_exists(strf(forever, "%s/ckpt", dir)));
}

static void test_from_takes_weights_only(void **state)
{
    char *dir = in_home("source");
    double m[256], w[256], zero = 0;

    (void)state;
    assert_int_equal(run(1, strf(forever, "train.steps=3 name=%s", dir), "log"),
                     0);
    Exec *x = exec_open(tiny_plan(2, keys("")), comm_open(forever, 2));
    exec_run(x, PGinit, NULL, NULL);
    exec_read(x, "w", 0, w, 256);
    ckpt_from(x, dir);
    exec_read(x, "optim.m.w", 0, m, 256);
    for (int i = 0; i < 256; i++)
        zero += fabs(m[i]);
    assert_true(zero == 0);
    exec_read(x, "w", 0, m, 256);
    assert_memory_not_equal(w, m, sizeof w);
    exec_close(x);
}

/* The same plan in two processes and in one: the same files. */
static void test_mpi_equals_local(void **state)
{
    char *pleat = getenv("PLEAT"), *plan = in_home("two.plan");
    char *runner = strf(forever, "%s-run", pleat ? pleat : "build/pleat");
    Plan *p = tiny_plan(2, keys("train.steps=5"));
    size_t n;

    (void)state;
    if (access(runner, X_OK) || system("mpirun --version >/dev/null 2>&1"))
        skip();
    char *text = plan_print(forever, p, &n);
    save_bytes(plan, text, n);
    assert_int_equal(system(strf(forever, "%s %s name=%s >%s 2>&1", runner,
                                 plan, in_home("one"), in_home("log"))),
                     0);
    assert_int_equal(system(strf(forever,
                                 "mpirun -n 2 %s %s name=%s >%s "
                                 "2>&1",
                                 runner, plan, in_home("mpi"), in_home("log"))),
                     0);
    assert_true(says("log", "step    5/5"));
    for (int i = 0; i < 2; i++) {
        static const char *const f[] = { "model", "optim" };
        same_bytes(in_home(strf(forever,
                                "one/ckpt/step-00000005/%s."
                                "safetensors",
                                f[i])),
                   in_home(strf(forever,
                                "mpi/ckpt/step-00000005/%s."
                                "safetensors",
                                f[i])));
    }
    assert_int_equal(WEXITSTATUS(system(
                         strf(forever, "mpirun -n 3 %s %s name=%s >%s 2>&1",
                              runner, plan, in_home("three"), in_home("log")))),
                     1);
    assert_true(says("log", "the plan is for 2 ranks, mpirun started 3"));
}

/* Killed at any moment after its first save, however slow the machine is: what
 * has a final name is whole. */
static void test_kill_leaves_whole_checkpoints(void **state)
{
    char *dir = in_home("kill");
    int whole = 0, fd[2];
    char c;

    (void)state;
    mkdir(dir, 0755);
    for (int round = 0; round < 40; round++) {
        fflush(NULL);
        assert_int_equal(pipe(fd), 0);
        pid_t pid = fork();
        if (!pid) {
            Exec *x = exec_open(tiny_plan(2, ""), comm_open(forever, 2));
            for (int64_t i = 0;; i++)
                if (ckpt_save(x, dir,
                              &(State){ .step = round % 4 * 10 + i % 10,
                                        .plan = "x" }) ||
                    (!i && write(fd[1], "", 1) != 1))
                    _exit(1);
        }
        close(fd[1]);
        assert_int_equal(read(fd[0], &c, 1), 1);
        close(fd[0]);
        usleep((useconds_t)(round * 7919 % 20000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        for (int i = 0; i < 40; i++) {
            State s;
            char *at = strf(forever, "%s/step-%08d", dir, i);
            if (access(at, F_OK))
                continue;
            const char *why = ckpt_verify(forever, at, &s);
            if (why)
                fail_msg("round %d: %s: %s", round, at, why);
            whole++;
        }
    }
    assert_true(whole > 0);
    print_message("# %d whole checkpoints seen\n", whole);
}

/* No room for a file: a warning, no checkpoint, and the one before is kept. */
static void test_full_disk_is_survived(void **state)
{
    char *dir = in_home("full");
    int status;
    State s;

    (void)state;
    mkdir(dir, 0755);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        Exec *x = exec_open(tiny_plan(1, ""), comm_open(forever, 1));
        int good = !ckpt_save(x, dir, &(State){ .step = 1, .plan = "x" });
        freopen(in_home("log"), "w", stderr);
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1100, 1100 });
        int bad = ckpt_save(x, dir, &(State){ .step = 2, .plan = "x" });
        fflush(NULL);
        _exit(good && bad ? 0 : 1);
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
    assert_true(says("log", "checkpoint not written: cannot write"));
    assert_null(
        ckpt_verify(forever, strf(forever, "%s/step-00000001", dir), &s));
    assert_int_not_equal(access(strf(forever, "%s/step-00000002", dir), F_OK),
                         0);
    assert_int_not_equal(
        access(strf(forever, "%s/.step-00000002.tmp", dir), F_OK), 0);
}

/* Rank 1 of two never comes to the first collective. */
static int hang(void)
{
    Exec *x = exec_open(tiny_plan(2, ""), comm_open(forever, 2));
    watch_start(&x->progress);
    if (x->comm->first == 1)
        sleep(60);
    exec_run(x, PGstep, &(StepValues){ .step = 17 }, NULL);
    return 0;
}

static void test_watchdog_names_the_step(void **state)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    (void)state;
    assert_true(n > 0);
    self[n] = 0;
    if (system("mpirun --version >/dev/null 2>&1"))
        skip();
    setenv("PLEAT_TIMEOUT", "0.5", 1);
    int status = system(
        strf(forever, "mpirun -n 2 %s hang >%s 2>&1", self, in_home("log")));
    unsetenv("PLEAT_TIMEOUT");
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_true(says("log", "rank 0 (host "));
    assert_true(says("log", "step 18 allreduce"));
    assert_true(says("log", "(tiny.lua:"));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "hang"))
        return hang();
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_fall_and_folds_agree),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_run_folder),
        cmocka_unit_test(test_resume_is_bit_equal),
        cmocka_unit_test(test_any_fold_loads),
        cmocka_unit_test(test_damage_is_refused),
        cmocka_unit_test(test_falls_back_to_the_one_before),
        cmocka_unit_test(test_kill_leaves_whole_checkpoints),
        cmocka_unit_test(test_full_disk_is_survived),
        cmocka_unit_test(test_bad_numbers_stop_the_run),
        cmocka_unit_test(test_sigterm_saves),
        cmocka_unit_test(test_keeps_the_last),
        cmocka_unit_test(test_from_takes_weights_only),
        cmocka_unit_test(test_mpi_equals_local),
        cmocka_unit_test(test_watchdog_names_the_step),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, setup, teardown);
}
