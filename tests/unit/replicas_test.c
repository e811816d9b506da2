/* replicas_test: a rank whose values differ in one bit from those of the ranks
 * that must hold the same is found, and named with the tensor and the step; in
 * one process and in several. The bit is flipped by a kernel of the plan. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tinyplan.h"

static const char k_flip[] = /* values step; rank, the one, its step, byte */
    "void @(ARGS)\n{\n"
    "    uint8_t *p = b[0]; const int64_t *step = b[1];\n"
    "    if (iv[0] == iv[1] && *step == iv[2]) p[iv[3]] ^= 1;\n"
    "    (void)lo; (void)hi;\n}\n";

static char *home;

static int setup(void **state)
{
    static uint8_t text[4096];
    const char *dir = getenv("TMPDIR");

    (void)state;
    home = strf(forever, "%s/pleat-replicas.XXXXXX", dir ? dir : "/tmp");
    if (!mkdtemp(home))
        return -1;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)((i * i / 3 + i) % 16);
    setenv("XDG_CACHE_HOME", strf(forever, "%s/cache", home), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    return file_write(strf(forever, "%s/text", home), text, sizeof text);
}

static int teardown(void **state)
{
    (void)state;
    return system(strf(forever, "rm -rf '%s'", home));
}

static int buffer(const Plan *p, const char *name)
{
    int i = 0;

    while (strcmp(p->role[0].buf[i].name, name))
        i++;
    return i;
}

/* The plan for dp ranks; `rank` flips a bit of byte 6 of `what` in step `step`
 * (from 0), after its update. */
static Plan *flips(int64_t dp, const char *what, int64_t rank, int64_t step,
                   const char *keys)
{
    Plan *p =
        tiny_plan(dp, strf(forever,
                           "data.train=%s/text data.format=bytes train.batch=8 "
                           "train.lr=0.5 seed=3 %s",
                           home, keys));
    Program *g = &p->role[0].prog[role_prog(&p->role[0], PGstep)];
    Kernel *all = alloc(forever, (size_t)(p->nkernel + 1) * sizeof *all);
    Instr *s = &g->instr[g->ninstr++];
    int64_t pos = 1;

    memcpy(all, p->kernel, (size_t)p->nkernel * sizeof *all);
    all[p->nkernel++] = (Kernel){ intern("k_flip"), k_flip };
    p->kernel = all;
    *s = (Instr){ .kind = Ikernel,
                  .kernel = intern("k_flip"),
                  .label = "k_flip",
                  .file = "tiny.lua",
                  .line = 99,
                  .nbuf = 2,
                  .launch = { .items = 1, .grain = 1 },
                  .nword = 4,
                  .secs = 1e-6 };
    s->buf = alloc(forever, 2 * sizeof *s->buf);
    s->buf[0] = buffer(p, what);
    s->buf[1] = buffer(p, "step");
    s->word = alloc(forever, 4 * sizeof *s->word);
    const int64_t v[] = { 0, rank, step, 6 };
    for (int i = 0; i < 4; i++)
        s->word[i] = word_int(v[i]);
    for (int a = 0; a < p->mesh->natom; a++)
        if (p->mesh->mask[Mdp] >> a & 1) {
            s->word[0].at.k[a] = pos;
            pos *= p->mesh->atom[a].size;
        }
    g->phase[g->nphase - 1].n++;
    sign_kernels(p);
    plan_check(p);
    return p;
}

static char *said;

/* In a child: its status, and what it says to `said`. */
static int run(Plan *p)
{
    char *log = strf(forever, "%s/log", home);
    pid_t pid;
    int status;
    size_t n;

    fflush(NULL);
    pid = fork();
    if (!pid) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        exit(run_plan(p, NULL));
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    said = file_read(forever, log, &n);
    assert_non_null(said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void says(const char *what)
{
    if (!strstr(said, what))
        print_message("# no '%s' in:\n%s\n", what, said);
    assert_non_null(strstr(said, what));
}

static char *keys(const char *name, const char *more)
{
    return strf(forever, "train.steps=8 name=%s/%s %s", home, name, more);
}

static void test_named_by_majority(void **state)
{
    (void)state;
    assert_int_equal(
        run(flips(4, "w", 2, 5, keys("most", "train.check_every=2"))), 3);
    says("error: rank 2 holds other values of 'w' than ranks {0 1 3} after "
         "step 6, and must hold the same (they did after step 4)");
    assert_null(strstr(said, "step    7/8"));
}

static void test_two_without_majority(void **state)
{
    (void)state;
    assert_int_equal(
        run(flips(2, "w", 1, 0, keys("two", "train.check_every=1"))), 3);
    says("error: ranks {0 1} hold other values of 'w' than each other after "
         "step 1,");
}

static void test_states_too(void **state)
{
    (void)state;
    assert_int_equal(
        run(flips(4, "count", 0, 2, keys("count", "train.check_every=3"))), 3);
    says("error: rank 0 holds other values of 'count' than ranks {1-3}");
}

/* What each rank has for itself may be anything; 0 looks at nothing. */
static void test_not_named(void **state)
{
    (void)state;
    assert_int_equal(
        run(flips(4, "grad.w", 2, 7, keys("temp", "train.check_every=1"))), 0);
    assert_int_equal(
        run(flips(4, "w", 2, 7, keys("never", "train.check_every=0"))), 0);
    assert_int_equal(run(flips(4, "w", 9, 7, keys("good", ""))), 0);
}

/* By default before a save: it does not get what is wrong. */
static void test_before_a_save(void **state)
{
    (void)state;
    assert_int_equal(
        run(flips(4, "w", 3, 5, keys("save", "train.save_every=2"))), 3);
    says("error: rank 3 holds other values of 'w' than ranks {0-2} after "
         "step 6,");
    char *ckpt = strf(forever, "%s/save/ckpt", home);
    assert_int_equal(access(strf(forever, "%s/step-00000004", ckpt), F_OK), 0);
    assert_int_not_equal(access(strf(forever, "%s/step-00000006", ckpt), F_OK),
                         0);
}

/* The save of step 2 is in flight, on a slow disk, and is finished. */
static void test_in_processes(void **state)
{
    const char *pleat = getenv("PLEAT");
    char *plan = strf(forever, "%s/a.plan", home);
    Plan *p = flips(4, "w", 1, 3,
                    keys("mpi", "train.check_every=2 train.save_every=2"));
    size_t n;
    char *text = plan_print(forever, p, &n);
    char *bin = strf(forever, "%s", pleat ? pleat : "build/pleat");

    (void)state;
    if (system("mpirun --version >/dev/null 2>&1"))
        skip();
    assert_int_equal(file_write(plan, text, n), 0);
    int status = system(
        strf(forever,
             "ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0 "
             "FAULT=slow:1 FAULT_IN=optim.safetensors FAULT_RANK=0 "
             "LD_PRELOAD=%.*stests/unit/faultfs.so "
             "mpirun -n 4 %s-run %s >%s/log 2>&1",
             (int)(strlen(bin) - strlen("pleat")), bin, bin, plan, home));
    said = file_read(forever, strf(forever, "%s/log", home), &n);
    assert_int_equal(WEXITSTATUS(status), 3);
    says("error: rank 1 holds other values of 'w' than ranks {0 2 3} after "
         "step 4, and must hold the same (they did after step 2)");
    assert_int_equal(
        access(strf(forever, "%s/mpi/ckpt/step-00000002", home), F_OK), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_by_majority),
        cmocka_unit_test(test_two_without_majority),
        cmocka_unit_test(test_states_too),
        cmocka_unit_test(test_not_named),
        cmocka_unit_test(test_before_a_save),
        cmocka_unit_test(test_in_processes),
    };

    return cmocka_run_group_tests_name("replicas", tests, setup, teardown);
}
