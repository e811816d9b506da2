/* formats_test: files of tokens that other programs wrote are read token for
 * token, by their names and content alone; what is no such file is refused with
 * its reason. tests/data/files.py made the files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../runtime/runtime.h"

#define FILES "tests/data/files/"
enum { N = 100 };

static Tokens opened(const char *path, enum data_format format)
{
    Tokens t;
    const char *why = tokens_open(forever, path, format, &t);

    if (why)
        fail_msg("%s %s", path, why);
    return t;
}

static void test_tokens(void **state)
{
    /* clang-format off */
    static const struct { const char *name, *format; } files[] = {
        {"u1.npy", "npy"}, {"i1.npy", "npy"}, {"u2.npy", "npy"}, {"i2.npy", "npy"},
        {"i4.npy", "npy"}, {"u4.npy", "npy"}, {"i8.npy", "npy"}, {"f4.npy", "npy"},
        {"f8.npy", "npy"}, {"v2.npy", "npy"}, {"v3.npy", "npy"}, {"rows.npy", "npy"},
        {"nano.bin", "nanogpt"}, {"llmc2.bin", "llmc"}, {"llmc4.bin", "llmc"},
    };
    /* clang-format on */

    (void)state;
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        Tokens t = opened(strf(forever, FILES "%s", files[k].name), FORMATauto);
        assert_int_equal(t.format, key_word("data.format", files[k].format));
        if (t.n != N)
            fail_msg("%s: %lld tokens", t.path, (long long)t.n);
        for (int i = 0; i < N; i++)
            if (tokens_at(&t, i) != (i * i / 7 + i) % 13)
                fail_msg("%s: token %d is %g", t.path, i, tokens_at(&t, i));
        int rows = !strcmp(files[k].name, "rows.npy");
        assert_int_equal(t.rows, rows ? 10 : 0);
        assert_int_equal(t.cols, rows ? 10 : 0);
        tokens_close(&t);
    }
}

/* One text at a time, each with its zero. */
static void test_texts(void **state)
{
    static const char *const files[] = { "texts.jsonl",      "texts.jsonl.gz",
                                         "members.jsonl.gz", "texts.arrow",
                                         "file.arrow",       "texts.parquet" };
    Tokens want = opened(FILES "texts.txt", FORMATbytes);

    (void)state;
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        if (ends_with(files[k], ".parquet") && !dl_open(LIBduckdb)) {
            print_message("no libduckdb: %s is not read\n", files[k]);
            continue;
        }
        Tokens t = opened(strf(forever, FILES "%s", files[k]), FORMATauto);
        int64_t at, next = 0;
        assert_int_equal(t.n, want.n);
        assert_memory_equal(t.data, want.data, (size_t)t.n);
        assert_int_equal(t.docs, 7);
        for (int64_t i = 0; i < t.docs; i++) {
            int64_t len = tokens_doc(&t, i, &at);
            assert_int_equal(at, next);
            assert_int_equal(t.data[at + len - 1], 0);
            next = at + len;
        }
        assert_int_equal(next, t.n);
        tokens_close(&t);
    }
    tokens_close(&want);
}

/* A null among texts is an empty one. */
static void test_tables(void **state)
{
    static const char want[] = "plain\0\0tab\tnewline\nquote\"slash/back\\";

    (void)state;
    for (int i = 0; i < 1 + (dl_open(LIBduckdb) != 0); i++) {
        Tokens t =
            opened(i ? FILES "hole.parquet" : FILES "hole.arrow", FORMATauto);
        assert_int_equal(t.docs, 3);
        assert_int_equal(t.n, sizeof want);
        assert_memory_equal(t.data, want, sizeof want);
        tokens_close(&t);
    }
}

/* Sequences of Megatron-Core's builder; the empty ones too. */
static void test_indexed(void **state)
{
    static const struct {
        /* clang-format off */
        const char *name;
        Elem e;
        int docs, n;
    } sets[] = {
        { "a.bin", EU16, 300, 6210 },
        { "b.bin", EI32, 40, 1720 },
        { "c.bin", EU8, 9, 26 },
        { "d.bin", EI64, 1000, 1498 },
    };
    /* clang-format on */

    (void)state;
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++) {
        Tokens t = opened(strf(forever, "tests/data/indexed/%s", sets[k].name),
                          FORMATauto);
        int64_t next = 0, at;
        assert_int_equal(t.e, sets[k].e);
        assert_int_equal(t.docs, sets[k].docs);
        assert_int_equal(t.n, sets[k].n);
        for (int64_t i = 0; i < t.docs; i++) {
            int64_t len = tokens_doc(&t, i, &at);
            assert_int_equal(at, next);
            next += len;
        }
        assert_int_equal(next, t.n);
        for (int64_t i = 0; i < t.n; i++)
            assert_in_range(tokens_at(&t, i), 0, 15);
        tokens_close(&t);
    }
}

/* ---- refused ------------------------------------------------------------- */

static char *home;

static int setup(void **state)
{
    (void)state;
    home = strf(forever, "/tmp/pleat-formats.XXXXXX");
    return !mkdtemp(home);
}

static int teardown(void **state)
{
    (void)state;
    return system(strf(forever, "rm -rf %s", home));
}

static const char *refused(const char *path, enum data_format format)
{
    Tokens t;
    const char *why = tokens_open(forever, path, format, &t);

    return why ? why : "nothing is wrong";
}

/* A copy of a file with n bytes at `at` replaced, cut to len if len >= 0. */
static const char *changed(const char *from, const char *name, int64_t at,
                           const void *bytes, size_t n, int64_t len)
{
    static uint8_t s[1 << 16];
    const char *path = strf(forever, "%s/%s", home, name);
    FILE *f = fopen(from, "r");
    size_t all;

    assert_non_null(f);
    all = fread(s, 1, sizeof s, f);
    fclose(f);
    memcpy(s + at, bytes, n);
    f = fopen(path, "w");
    fwrite(s, 1, len < 0 ? all : (size_t)len, f);
    fclose(f);
    return path;
}

static void expect(const char *path, enum data_format format, const char *why)
{
    const char *got = refused(path, format);

    if (!strstr(got, why))
        fail_msg("%s: '%s' is not in '%s'", path, why, got);
}

static void test_refused(void **state)
{
    (void)state;
    expect(FILES "big.npy", FORMATauto, "has elements of type '>i4'");
    expect(FILES "bool.npy", FORMATauto, "has elements of type '|b1'");
    expect(FILES "fortran.npy", FORMATauto, "is in Fortran order");
    expect(FILES "arrays.npz", FORMATnpy, "is no .npy file");
    expect(FILES "nano.bin", FORMATmegatron, "nano.idx cannot be read");
    expect(FILES "u2.npy", FORMATmegatron, "is not named .bin");
    expect(FILES "nano.bin", FORMATllmc, "is too short for an llm.c header");
    expect(FILES "texts.jsonl", FORMATllmc, "is too short");
    expect(FILES "texts.txt", FORMATjsonl, "line 1: ");
    expect(FILES "packed.arrow", FORMATauto, "is compressed inside");
    expect(FILES "texts.txt", FORMATarrow, "is damaged");
    expect(changed(FILES "texts.arrow", "t.arrow", 0, "", 0, 3000), FORMATauto,
           "is cut off");
    expect("tests/data", FORMATauto, "is not a file");
    expect(FILES "absent", FORMATauto, "cannot be read: No such file");
}

/* Counts that no file has, and files shorter than they say. */
static void test_absurd(void **state)
{
    /* clang-format off */
    static const uint8_t huge[] = {0, 0, 0, 0, 0, 0, 0, 0x80}, many[] = {
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    static const struct { int64_t at; const void *bytes; size_t n; int64_t len;
                          const char *why; } idx[] = {
        {0, "m", 1, -1, "is no Megatron index"},
        {9, "\2", 1, -1, "is of version 2"},
        {17, "\7", 1, -1, "token type 7 is not known"},
        {17, "\0", 1, -1, "token type 0 is not known"},
        {18, huge, 8, -1, "is damaged: -9223372036854775808 sequences"},
        {18, many, 8, -1, "is damaged: 9223372036854775807 sequences"},
        {26, many, 8, -1, "and 9223372036854775807 document bounds"},
        {26, huge, 8, -1, "is damaged"},
        {26, "\0", 1, -1, "is damaged"},
        {0, "", 0, 33, "is no Megatron index"},
        {0, "", 0, 800, "is damaged"},
        {34 + 40 * 4 + 39 * 8, many, 8, -1, "names more tokens than it has"},
        {34 + 39 * 4, many, 3, -1, "names more tokens than it has"},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof idx / sizeof *idx; i++) {
        const char *bin =
            changed("tests/data/indexed/b.bin", "b.bin", 0, "", 0, -1);
        changed("tests/data/indexed/b.idx", "b.idx", idx[i].at, idx[i].bytes,
                idx[i].n, idx[i].len);
        expect(bin, FORMATauto, idx[i].why);
    }
    expect(changed(FILES "llmc2.bin", "l.bin", 8, many, 4, -1), FORMATllmc,
           "is cut off: 100 of -1 tokens");
    expect(changed(FILES "llmc2.bin", "l.bin", 8, many + 4, 4, -1), FORMATllmc,
           "is cut off: 100 of 2147483647 tokens");
    expect(changed(FILES "llmc2.bin", "l.bin", 0, "\x8a", 1, -1), FORMATllmc,
           "evaluation set");
    expect(changed(FILES "llmc2.bin", "l.bin", 0, "", 0, 1100), FORMATllmc,
           "is cut off: 38 of 100");
    expect(changed(FILES "nano.bin", "n.bin", 0, "", 0, 101), FORMATauto,
           "has 101 bytes, no multiple");
    expect(changed(FILES "u2.npy", "u.npy", 0, "", 0, 200), FORMATauto,
           "is cut off");
    expect(changed(FILES "u2.npy", "u.npy", 0, "", 0, 100), FORMATauto,
           "damaged header");
    expect(changed(FILES "texts.jsonl.gz", "t.jsonl.gz", 0, "", 0, 150),
           FORMATauto, "is damaged");
    expect(changed(FILES "texts.jsonl.gz", "t.jsonl.gz", 40, "\0\0\0", 3, -1),
           FORMATauto, "is damaged");
}

/* What lm-evaluation-harness makes of HellaSwag's lines is what is asked. */
static void test_questions(void **state)
{
    const Question *q = questions_read(forever, FILES "hellaswag.jsonl");
    const Question *made =
        questions_read(forever, FILES "hellaswag.made.jsonl");

    (void)state;
    assert_int_equal(vec_len(q), 3);
    assert_int_equal(vec_len(made), 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(q[i].context, made[i].context);
        assert_int_equal(q[i].right, made[i].right);
        assert_int_equal(vec_len(q[i].ending), vec_len(made[i].ending));
        for (size_t k = 0; k < vec_len(q[i].ending); k++)
            assert_string_equal(q[i].ending[k], made[i].ending[k]);
    }
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_indexed),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_questions),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, setup, teardown);
}
