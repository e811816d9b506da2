/* pipe_test: pipeline stages run. Two stages by hand (pipeplan.c) compute what
 * plain C does; what ran is the table, row by row, in one process and under
 * mpirun; two turns in each other's place are an error and not a hang; a bad
 * number inside a table is named. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "pipeplan.h"
#include "tensors.h"

enum { STEPS = 3 };

static char *home;

static int setup(void **state)
{
    char *dir = getenv("TMPDIR");

    (void)state;
    home = strf(forever, "%s/pleat-pipe-test.XXXXXX", dir ? dir : "/tmp");
    if (!mkdtemp(home))
        return -1;
    setenv("XDG_CACHE_HOME", strf(forever, "%s/cache", home), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return system(strf(forever, "rm -rf %s", home));
}

/* ---- against plain C ----------------------------------------------------- */

static double train(Exec *x, int64_t step)
{
    Feed f = pipe_feed(x->plan, step);

    exec_run(x, PGstep, &(StepValues){ .lr = 0.125, .step = step }, &f);
    return exec_result(x, RESULTloss);
}

static void as_in_c(int64_t dp)
{
    Exec *x = exec_open(pipe_plan(dp), comm_open(forever, 2 * dp));
    double a[PIPEN], b[PIPEN], got[PIPEN], worst = 0;

    exec_run(x, PGinit, NULL, NULL);
    for (int i = 0; i < PIPEN; i++) {
        a[i] = 0.25 * (i + 1);
        b[i] = 0.25 * (i + 4);
    }
    for (int t = 0; t < STEPS; t++) {
        double loss = pipe_step(dp, t, 0.125, a, b);
        worst = fmax(worst, fabs(train(x, t) / loss - 1));
        assert_int_equal(exec_read(x, "a", 0, got, PIPEN), PIPEN);
        for (int i = 0; i < PIPEN; i++)
            worst = fmax(worst, fabs(got[i] - a[i]));
        assert_int_equal(exec_read(x, "b", 0, got, PIPEN), PIPEN);
        for (int i = 0; i < PIPEN; i++)
            worst = fmax(worst, fabs(got[i] - b[i]));
        assert_int_equal(exec_read(x, "a.copy", 2 * dp - 1, got, PIPEN), PIPEN);
        for (int i = 0; i < PIPEN; i++)
            worst = fmax(worst, fabs(got[i] - a[i]));
    }
    print_message("# %lld ranks: largest difference %.2g\n",
                  (long long)(2 * dp), worst);
    assert_true(worst < 1e-14); /* sums over dp in another order */
    exec_close(x);
}

static void test_two_stages(void **state)
{
    (void)state;
    as_in_c(1);
    as_in_c(2);
}

static void test_frames_have_two_slots(void **state)
{
    Plan *p = pipe_plan(1);

    (void)state;
    assert_int_equal(p->role[0].prog[1].frame[0].nslot, 2);
    assert_int_equal(plan_micros(p, PGstep), PIPEMICRO);
    assert_int_equal(phase_runs(&p->role[1].prog[1], 1), PIPEMICRO);
}

/* ---- order --------------------------------------------------------------- */

/* The rows that each stage here ran are its table; each row all of its steps.*/
static int as_planned(const Exec *x)
{
    for (int i = 0; i < x->nstage; i++) {
        const Program *g = &x->plan->role[x->stage[i].role].prog[1];
        int row = 0, instr = 0;
        for (int64_t k = 0; k < x->nran; k++) {
            const InstrTiming *r = &x->ran[k];
            if (r->stage != x->stage[i].role || g->phase[r->phase].repeat)
                continue;
            if (r->instr >= 0) {
                if (r->instr != g->phase[r->phase].first + instr++)
                    return 0;
                continue;
            }
            if (row == g->nslot || r->phase != g->slot[row].phase ||
                r->micro != g->slot[row].micro ||
                (row && instr != g->phase[g->slot[row - 1].phase].n))
                return 0;
            row++;
            instr = 0;
        }
        if (row != g->nslot)
            return 0;
    }
    return 1;
}

static void test_order_is_the_table(void **state)
{
    Exec *x = exec_open(pipe_plan(2), comm_open(forever, 4));

    (void)state;
    exec_run(x, PGinit, NULL, NULL);
    exec_record(x, PGstep);
    for (int t = 0; t < 2; t++) {
        train(x, t);
        assert_int_equal(x->nran, x->maxran);
        assert_true(as_planned(x));
    }
    x->ran[x->nran / 2].micro++;
    x->ran[x->nran / 2 + 1].micro++;
    assert_false(as_planned(x));
    exec_close(x);
}

/* ---- deadlock ------------------------------------------------------------ */

static char *in_child(void (*f)(void), int *status)
{
    char *log = strf(forever, "%s/log", home), *s = alloc(forever, 65536);

    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 2);
        alarm(20);
        f();
        _exit(0);
    }
    assert_true(waitpid(pid, status, 0) == pid);
    FILE *in = fopen(log, "r");
    s[fread(s, 1, 65535, in)] = 0;
    fclose(in);
    return s;
}

/* Stage 0 wants the gradient of a micro-batch that it has not sent. */
static void swapped(void)
{
    Plan *p = pipe_plan(1);
    Program *g = &p->role[0].prog[1];
    int send = 0, recv = 0;

    while (strcmp(g->phase[g->slot[send].phase].name, "send.F0.F1"))
        send++;
    while (strcmp(g->phase[g->slot[recv].phase].name, "recv.B1.B0"))
        recv++;
    ScheduleSlot t = g->slot[send];
    g->slot[send] = g->slot[recv];
    g->slot[recv] = t;
    Exec *x = exec_open(p, comm_open(forever, 2));
    exec_run(x, PGinit, NULL, NULL);
    train(x, 0);
}

static void test_deadlock_is_an_error(void **state)
{
    int status;
    char *said = in_child(swapped, &status);

    (void)state;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(said, "2 of 2 pipeline stages wait for each other"));
    assert_non_null(strstr(said, "stage 0 stands at recv recv.B1.B0"));
    assert_non_null(strstr(said, "stage 1 stands at recv recv.F0.F1"));
    assert_non_null(strstr(said, "pipe.lua:"));
}

/* Collectives that do not match, in post. */
static void mismatched(void)
{
    Plan *p = pipe_plan(1);
    Program *g = &p->role[1].prog[1];

    for (int k = 0; k < g->ninstr; k++)
        if (g->instr[k].kind == Iallreduce)
            g->instr[k].allreduce.op = Rmax;
    Exec *x = exec_open(p, comm_open(forever, 2));
    exec_run(x, PGinit, NULL, NULL);
    train(x, 0);
}

static void test_unlike_collectives_are_an_error(void **state)
{
    int status;
    char *said = in_child(mismatched, &status);

    (void)state;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(said, "stage 1 stands at allreduce sum (post"));
}

/* ---- bad numbers --------------------------------------------------------- */

static void poison(void *self, const Tensor *t, int64_t rank, int64_t micro,
                   void *dst)
{
    const Plan *p = self;
    Feed f = pipe_feed(p, 0);

    f.fill(f.self, t, rank, micro, dst);
    if (*t->name == 't' && micro == 2)
        *(double *)dst = NAN;
}

static void test_first_nan_has_its_name(void **state)
{
    Plan *p = pipe_plan(2);
    Exec *x = exec_open(p, comm_open(forever, 4));
    Feed f = { poison, p };
    StepValues b = { .lr = 0.125 };

    (void)state;
    exec_run(x, PGinit, NULL, NULL);
    exec_run(x, PGstep, &b, &f);
    assert_true(isnan(exec_result(x, RESULTloss)));
    exec_run(x, PGinit, NULL, NULL);
    const char *why = exec_checked(x, PGstep, &b, &f);
    assert_string_equal(why, "first NaN in 'e' after k_f1 (pipe.lua:20) "
                             "(rank 2)");
    exec_close(x);
}

/* ---- mpirun -------------------------------------------------------------- */

/* One rank of three steps: its loss and weight to a file. */
static int as_rank(const char *path)
{
    Plan *p = pipe_plan(2);
    Comm *c = comm_open(forever, 4);
    Exec *x = exec_open(p, c);
    double out[STEPS + PIPEN];
    int64_t me = c->first;

    exec_run(x, PGinit, NULL, NULL);
    exec_record(x, PGstep);
    watch_start(&x->progress);
    for (int t = 0; t < STEPS; t++)
        out[t] = train(x, t);
    watch_stop();
    exec_read(x, exec_role(x, me)->tensor[0].name, me, out + STEPS, PIPEN);
    if (!as_planned(x) || c->n != 1)
        return 1;
    FILE *f = fopen(strf(forever, "%s.%lld", path, (long long)me), "w");
    int bad = !f || fwrite(out, sizeof out, 1, f) != 1 || fclose(f);
    exec_close(x);
    comm_close(c);
    return bad;
}

static void test_mpirun_gives_the_same_bits(void **state)
{
    Exec *x = exec_open(pipe_plan(2), comm_open(forever, 4));
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    double want[STEPS], w[PIPEN], got[STEPS + PIPEN];

    (void)state;
    assert_true(n > 0);
    self[n] = 0;
    if (system("mpirun --version >/dev/null 2>&1"))
        skip();
    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++)
        want[t] = train(x, t);
    assert_int_equal(
        system(strf(forever, "mpirun -n 4 %s as-rank %s/out", self, home)), 0);
    for (int64_t r = 0; r < 4; r++) {
        FILE *f = fopen(strf(forever, "%s/out.%lld", home, (long long)r), "r");
        assert_non_null(f);
        assert_int_equal(fread(got, sizeof got, 1, f), 1);
        fclose(f);
        exec_read(x, exec_role(x, r)->tensor[0].name, r, w, PIPEN);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(got + STEPS, w, sizeof w);
    }
    exec_close(x);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "as-rank"))
        return as_rank(argv[2]);
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_stages),
        cmocka_unit_test(test_frames_have_two_slots),
        cmocka_unit_test(test_order_is_the_table),
        cmocka_unit_test(test_deadlock_is_an_error),
        cmocka_unit_test(test_unlike_collectives_are_an_error),
        cmocka_unit_test(test_first_nan_has_its_name),
        cmocka_unit_test(test_mpirun_gives_the_same_bits),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, setup, teardown);
}
