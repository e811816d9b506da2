/* keep_test: which folders of a run's checkpoints are listed, used, counted and
 * removed: damaged ones, copies under other names, what somebody else put
 * there, and what crashes leave. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tensors.h"

static char *dir;
static Pool *pool;

static char *in(const char *name)
{
    return strf(forever, "%s/%s", dir, name);
}

static char *step_path(int64_t step)
{
    return strf(forever, "%s/step-%08lld", dir, (long long)step);
}

static int is_there(const char *path)
{
    return !access(path, F_OK);
}

/* Each test has a folder of its own. */
static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    dir = strf(forever, "%s/pleat.keep.XXXXXX", tmp ? tmp : "/tmp");
    pool = pool_open(2);
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    pool_close(pool);
    return system(strf(forever, "rm -rf %s", dir));
}

/* A whole checkpoint; its tensor's value tells it from another. */
static void make(int64_t step, float value)
{
    char *tmp = ckpt_folder(forever, dir, step);

    assert_null(ckpt_begin(forever, dir, tmp));
    for (int i = MODEL; i <= OPTIM; i++) {
        StTensor t = {
            .name = "w", .dt = FTF32, .bytes = 4, .nd = 1, .n = { 1 }
        };
        char *path = strf(forever, "%s/%s", tmp, ckptfile[i]);
        int64_t total = 0, size = 0;
        size_t len = 0;
        char *head = st_header(forever, &t, 1, &len, &total);
        assert_null(ckpt_layout(forever, path, head, len, total));
        uint8_t *map = file_map(path, &size, 1);
        assert_non_null(map);
        memcpy(map + len, &value, sizeof value);
    }
    State s = { .step = step, .plan = "x" };
    assert_null(ckpt_end(forever, pool, dir, tmp, &s, NULL));
}

static void damage(int64_t step)
{
    char *path = strf(forever, "%s/%s", step_path(step), ckptfile[MODEL]);
    int64_t size = 0;
    uint8_t *map = file_map(path, &size, 1);

    assert_non_null(map);
    map[size - 1] ^= 64;
}

static void copy(int64_t step, const char *name)
{
    assert_int_equal(
        system(strf(forever, "cp -r %s %s", step_path(step), in(name))), 0);
}

/* -1: there is none. */
static int64_t newest(void)
{
    State s = { .step = -1 };
    char *path = ckpt_newest(forever, dir, &s, NULL);

    assert_true(!path || is_there(path));
    return path ? s.step : -1;
}

/* As a process does that has written the newest, and knows no other. */
static void prune(int64_t step, int64_t most)
{
    Retention k = { forever, most, NULL };

    ckpt_prune(forever, pool, &k, dir, step);
}

/* "1 2 5": checkpoints under our names, whole or not. */
static void steps_are(const char *want)
{
    Text t = { .arena = forever };

    for (int64_t i = 0; i < 100; i++)
        if (is_there(step_path(i)))
            put(&t, "%s%lld", t.len ? " " : "", (long long)i);
    assert_string_equal(t.s ? t.s : "", want);
}

/* ---- listing ------------------------------------------------------------- */

static void other_names(void **state)
{
    (void)state;
    assert_int_equal(newest(), -1);
    assert_int_equal(ckpt_exists(in("none")), 0);
    make(1, 1);
    assert_int_equal(ckpt_exists(in("step-00000001/index")), 0); /* a file */
    copy(1, "step-best");
    copy(1, "step-2");
    copy(1, "step-000000003");
    copy(1, "step-00000004.bak");
    assert_int_equal(mkdir(in("step-"), 0755), 0);
    assert_int_equal(newest(), 1);
    copy(1, "step-00000005"); /* our name, another step */
    assert_int_equal(newest(), 1);
    make(100000000, 2); /* nine digits */
    assert_int_equal(newest(), 100000000);
}

static void falls_back(void **state)
{
    (void)state;
    make(1, 1);
    make(2, 2);
    make(3, 3);
    damage(3);
    assert_int_equal(newest(), 2);
    unlink(strf(forever, "%s/index", step_path(2)));
    assert_int_equal(newest(), 1);
}

/* ---- pruning ------------------------------------------------------------- */

static void whole_ones_count(void **state)
{
    (void)state;
    for (int i = 1; i <= 5; i++)
        make(i, 1);
    damage(4);
    prune(5, 2); /* 5 and 3 are whole; 4 is neither counted nor removed */
    steps_are("3 4 5");
    assert_int_equal(newest(), 5);
    make(6, 1);
    prune(6, 1);
    steps_are("6");
    make(7, 1);
    prune(7, 0);
    steps_are("6 7");
}

/* A run that continued before a damaged one; it comes to its step again. */
static void damaged_newer(void **state)
{
    (void)state;
    make(1, 1);
    make(9, 1);
    damage(9);
    make(2, 1);
    prune(2, 1);
    steps_are("2 9");
    assert_int_equal(newest(), 2);
    make(9, 2);
    assert_int_equal(newest(), 9);
    prune(9, 1);
    steps_are("9");
}

static void strangers_stay(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++)
        make(i, 1);
    assert_int_equal(
        file_write(strf(forever, "%s/notes", step_path(1)), "x", 1), 0);
    copy(2, "step-best");
    assert_int_equal(system(strf(forever, "rm -r %s", step_path(2))), 0);
    copy(3, "step-00000002"); /* not the step that its name says */
    prune(4, 1);
    steps_are("1 2 4");
    assert_true(is_there(in("step-best/index")));
    assert_true(is_there(strf(forever, "%s/notes", step_path(1))));
    State s;
    assert_null(ckpt_verify(forever, step_path(1), &s));
}

/* ---- what crashes leave -------------------------------------------------- */

static void an_old_one_waits(void **state)
{
    (void)state;
    make(1, 1);
    make(2, 2);
    assert_int_equal(rename(step_path(2), in(".step-00000002.old")), 0);
    assert_int_equal(ckpt_exists(dir), 1);
    assert_int_equal(newest(), 2);
    make(3, 3); /* the next save gives it its name again */
    steps_are("1 2 3");
    copy(2, ".step-00000002.old");
    make(4, 4);
    assert_false(is_there(in(".step-00000002.old")));
    steps_are("1 2 3 4");
}

static void halves_go(void **state)
{
    (void)state;
    make(1, 1);
    copy(1, ".step-00000001.gone");
    copy(1, ".step-00000007.tmp");
    copy(1, ".step-best.tmp");
    assert_int_equal(unlink(in(".step-00000007.tmp/index")), 0);
    assert_int_equal(newest(), 1);
    make(2, 1);
    assert_false(is_there(in(".step-00000001.gone")));
    assert_false(is_there(in(".step-00000007.tmp")));
    assert_true(is_there(in(".step-best.tmp")));
    steps_are("1 2");
}

static void the_same_step_again(void **state)
{
    int64_t size = 0;
    float v;

    (void)state;
    make(1, 1);
    make(1, 2);
    uint8_t *map = file_map(
        strf(forever, "%s/%s", step_path(1), ckptfile[MODEL]), &size, 0);
    assert_non_null(map);
    memcpy(&v, map + size - 4, 4);
    assert_true(v == 2);
    assert_int_equal(newest(), 1);
    assert_false(is_there(in(".step-00000001.old")));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(other_names),   TEST(falls_back),          TEST(whole_ones_count),
        TEST(damaged_newer), TEST(strangers_stay),      TEST(an_old_one_waits),
        TEST(halves_go),     TEST(the_same_step_again),
    };

    return cmocka_run_group_tests_name("keep", tests, NULL, NULL);
}
