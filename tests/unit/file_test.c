/* file_test: a file is replaced whole or not at all, and what a write that
 * fails leaves behind: the old file, and nothing else. crash.sh strikes at
 * each system call of the same functions. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../ir/plan/plan.h"

static char *home;

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    home = strf(forever, "%s/pleat.file.XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(home) ? 0 : -1;
}

static const char *in(const char *name)
{
    return strf(forever, "%s/%s", home, name);
}

static void holds(const char *name, const char *want)
{
    size_t n = 0;
    char *s = file_read(forever, in(name), &n);

    assert_non_null(s);
    assert_int_equal(n, strlen(want));
    assert_string_equal(s, want);
}

static int names(void)
{
    DIR *d = opendir(home);
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        n += *e->d_name != '.';
    closedir(d);
    return n;
}

static void replaced(void **state)
{
    (void)state;
    assert_int_equal(file_replace(in("a"), OUTown, "one", 3), 0);
    holds("a", "one");
    assert_int_equal(file_replace(in("a"), OUTown, "two and more", 12), 0);
    holds("a", "two and more");
    assert_int_equal(file_replace(in("a"), OUTown, "", 0), 0);
    holds("a", "");
    assert_int_equal(names(), 1);
    assert_int_equal(file_replace(in("none/a"), OUTown, "x", 1), -1);
    assert_int_equal(errno, ENOENT);
}

/* Room for a part of the new bytes: the write is short, the next fails. */
static void no_room(void **state)
{
    struct rlimit was, least = { 5, RLIM_INFINITY };

    (void)state;
    assert_int_equal(file_replace(in("a"), OUTown, "old", 3), 0);
    getrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_IGN);
    least.rlim_max = was.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
    int bad = file_replace(in("a"), OUTown, "new and longer", 14), why = errno;
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(bad, -1);
    assert_int_equal(why, EFBIG);
    holds("a", "old");
    assert_int_equal(names(), 1);
}

static void moved(void **state)
{
    (void)state;
    assert_int_equal(file_write(in("b"), "b", 1), 0);
    assert_int_equal(file_move(in("b"), in("a")), 0);
    holds("a", "b");
    assert_int_equal(names(), 1);
    assert_int_equal(file_move(in("b"), in("a")), -1);
    assert_int_equal(errno, ENOENT);
}

static void folders(void **state)
{
    struct stat st;

    (void)state;
    assert_int_equal(folders_make(in("x/y//z/")), 0);
    assert_int_equal(folders_make(in("x/y/z")), 0);
    assert_int_equal(stat(in("x/y/z"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(folders_make(in("a")), -1); /* a file */
    assert_int_equal(errno, ENOTDIR);
    assert_int_equal(folders_make(in("a/b")), -1);
    assert_int_equal(folder_make(in("x")), -1);
    assert_int_equal(errno, EEXIST);
    assert_int_equal(file_sync(in("x")), 0);
    assert_int_equal(file_sync(in("none")), -1);
}

static int teardown(void **state)
{
    static const char *const all[] = { "a", "x/y/z", "x/y", "x", "" };

    (void)state;
    for (int i = 0; i < 5; i++)
        remove(in(all[i]));
    return access(home, F_OK) ? 0 : -1;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaced),
        cmocka_unit_test(no_room),
        cmocka_unit_test(moved),
        cmocka_unit_test(folders),
    };

    return cmocka_run_group_tests_name("file", tests, setup, teardown);
}
