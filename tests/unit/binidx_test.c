/* binidx_test: token files have the bytes that Megatron-LM's builder gives the
 * same documents (CRC-32 of files it wrote). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

#include "../../runtime/runtime.h"

static char *home;

static void same(const char *name, long size, unsigned long crc)
{
    size_t n;
    char *s = file_read(forever, strf(forever, "%s/%s", home, name), &n);

    assert_non_null(s);
    assert_int_equal(n, size);
    assert_int_equal(crc32(0, (uint8_t *)s, (unsigned)n), crc);
}

static void write_docs(const char *name, int64_t vocab)
{
    static const int32_t a[] = { 5, 6, 7 }, b[] = { 1 }, last[] = { 65499, 0 };
    int32_t c[42] = { 2, 3 };
    BinIdx *w = binidx_create(strf(forever, "%s/%s", home, name), vocab);

    for (int i = 0; i < 40; i++)
        c[i + 2] = 100 + i;
    binidx_add(w, a, 3);
    binidx_add(w, NULL, 0);
    binidx_add(w, b, 1);
    binidx_add(w, c, 42);
    binidx_add(w, last, 2);
    assert_int_not_equal(access(strf(forever, "%s/%s.idx", home, name), F_OK),
                         0);
    binidx_close(w);
}

static void test_bytes(void **state)
{
    (void)state;
    write_docs("small", 65499);
    write_docs("wide", 65500);
    same("small.bin", 96, 0x86f3869f);
    same("small.idx", 130, 0x1deaa45c);
    same("wide.bin", 192, 0x4c526962);
    same("wide.idx", 130, 0xbbd0ee4b);
}

static int setup(void **state)
{
    (void)state;
    home = strf(forever, "/tmp/pleat-binidx-test.XXXXXX");
    return mkdtemp(home) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return system(strf(forever, "rm -rf %s", home));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bytes) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
