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

#include "../../ir/settings/keys.h"
#include "../../runtime/runtime.h"

#define FILES "tests/data/files/"
enum { N = 100, VOCAB = 16, WIDE = 100000 };

/* The vocabulary is large where that tells the width of tokens. */
static Tokens opened(const char *path, int format)
{
    Tokens t;
    int64_t vocab = ends_with(path, "wide.bin") ? WIDE : VOCAB;
    const char *why = tokens_open(forever, path, format, vocab, NULL, &t);

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
        {"nano.bin", "uint16"}, {"wide.bin", "uint32"}, {"llmc2.bin", "llmc"}, {"llmc4.bin", "llmc"},
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

/* Files that hold the same texts, by other writers, and a csv, which is asked
 * for. lib: what reads it, if that is here. */
static const struct {
    /* clang-format off */
    const char *name, *want, *format;
    int lib;
} texts[] = {
    { "texts.jsonl", "texts.txt", "jsonl", -1 }, { "texts.jsonl.gz", "texts.txt", "jsonl", -1 },
    { "members.jsonl.gz", "texts.txt", "jsonl", -1 }, { "texts.jsonl.bz2", "texts.txt", "jsonl", LIBbz2 },
    { "texts.jsonl.xz", "texts.txt", "jsonl", LIBlzma }, { "wide.jsonl", "texts.txt", "jsonl", -1 },
    { "texts.json", "texts.txt", "jsonl", -1 }, { "texts.csv", "texts.txt", "csv", -1 },
    { "texts.tsv", "texts.txt", "tsv", -1 }, { "texts.arrow", "texts.txt", "arrow", -1 },
    { "file.arrow", "texts.txt", "arrow", -1 }, { "texts.parquet", "texts.txt", "parquet", -1 },
    { "many.snappy.parquet", "many.jsonl.gz", "parquet", -1 }, { "many.gzip.parquet", "many.jsonl.gz", "parquet", -1 },
    { "many.lengths.parquet", "many.jsonl.gz", "parquet", LIBzstd }, { "many.delta.parquet", "many.jsonl.gz", "parquet", -1 },
    { "many.plain.parquet", "many.jsonl.gz", "parquet", -1 }, { "many.whole.parquet", "many.jsonl.gz", "parquet", -1 },
    { "many.polars.parquet", "many.jsonl.gz", "parquet", LIBzstd }, { "many.polars2.parquet", "many.jsonl.gz", "parquet", -1 },
    { "many.words.arrow", "many.jsonl.gz", "arrow", -1 }, { "views.arrow", "views.jsonl.gz", "arrow", -1 },
};
/* clang-format on */

static int asked(int k)
{
    int format = key_word("data.format", texts[k].format);

    return format == FORMATcsv || format == FORMATtsv ? (int)format
                                                      : FORMATauto;
}

static void test_texts(void **state)
{
    (void)state;
    for (int k = 0; k < countof(texts); k++) {
        if (texts[k].lib >= 0 && !dl_open((Lib)texts[k].lib)) {
            print_message("%s is not read: no library\n", texts[k].name);
            continue;
        }
        const char *from = strf(forever, FILES "%s", texts[k].want);
        Tokens want =
            opened(from, ends_with(from, ".txt") ? FORMATbytes : FORMATauto);
        Tokens t = opened(strf(forever, FILES "%s", texts[k].name), asked(k));
        int64_t at, next = 0;
        if (t.n != want.n || memcmp(t.data, want.data, (size_t)t.n))
            fail_msg("%s has other texts", t.path);
        if (want.docs > 1)
            assert_int_equal(t.docs, want.docs);
        for (int64_t i = 0; i < t.docs; i++) {
            int64_t len = tokens_doc(&t, i, &at);
            assert_int_equal(at, next);
            assert_int_equal(t.data[at + len - 1], 0);
            next = at + len;
        }
        assert_int_equal(next, t.n);
        tokens_close(&t);
        tokens_close(&want);
    }
}

/* A null among texts is an empty one. */
static void test_tables(void **state)
{
    static const char want[] = "plain\0\0tab\tnewline\nquote\"slash/back\\";

    (void)state;
    for (int i = 0; i < 2; i++) {
        if (i && !dl_open(LIBzstd))
            continue;
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

static const char *refused(const char *path, int format)
{
    Tokens t;
    const char *why = tokens_open(forever, path, format, VOCAB, NULL, &t);

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

static void expect(const char *path, int format, const char *why)
{
    const char *got = refused(path, format);

    if (!strstr(got, why))
        fail_msg("%s: '%s' is not in '%s'", path, why, got);
}

/* The kind of every file, and how much it holds, under three other names. */
static void test_names(void **state)
{
    static const char *const names[] = { "x.bin", "x.jsonl", "x" };
    static const char *const others[] = { "nano.bin", "llmc2.bin", "llmc4.bin",
                                          "rows.npy" };

    (void)state;
    for (int k = 0; k < countof(texts) + countof(others); k++) {
        int other = k - countof(texts);
        const char *from = strf(forever, FILES "%s",
                                other < 0 ? texts[k].name : others[other]);
        int format = other < 0 ? asked(k) : FORMATauto;
        if (other < 0 && texts[k].lib >= 0 && !dl_open((Lib)texts[k].lib))
            continue;
        Tokens want = opened(from, format);
        if (other < 0)
            assert_int_equal(want.format,
                             key_word("data.format", texts[k].format));
        for (int i = 0; i < countof(names); i++) {
            Tokens t = opened(changed(from, names[i], 0, "", 0, -1), format);
            assert_int_equal(t.format, want.format);
            assert_int_equal(t.n, want.n);
            assert_int_equal(t.docs, want.docs);
            tokens_close(&t);
        }
        tokens_close(&want);
    }
}

static void expect_text(const char *text, const char *why)
{
    const char *path = strf(forever, "%s/text", home);
    FILE *f = fopen(path, "w");

    fputs(text, f);
    fclose(f);
    expect(path, FORMATauto, why);
}

static void test_refused(void **state)
{
    (void)state;
    expect(FILES "big.npy", FORMATauto, "has elements of type '>i4'");
    expect(FILES "bool.npy", FORMATauto, "has elements of type '|b1'");
    expect(FILES "fortran.npy", FORMATauto, "is in Fortran order");
    expect(FILES "arrays.npz", FORMATnpy, "is no .npy file");
    expect(FILES "arrays.npz", FORMATauto, "is a zip archive");
    expect(FILES "small.safetensors", FORMATauto, "is a safetensors file");
    expect("tests/data/indexed/a.idx", FORMATauto, "is a Megatron index");
    expect("tests/data/runs/format1.tar.gz", FORMATauto,
           "is a tar archive inside gzip");
    expect(FILES "brotli.parquet", FORMATauto,
           "is compressed by another codec");
    expect(FILES "texts.jsonl", FORMATcsv, "has no \"text\"");
    expect_text("[{\"text\": \"a\"}, {\"text\": \"b\"}",
                "is cut off inside its array");
    expect_text("[{\"text\": \"a\"} {\"text\": \"b\"}]", "lacks a comma");
    expect_text("[{\"text\": \"a\"}] more", "has more behind its array");
    expect_text("{\"text\": \"a\"}\n{\"body\": \"b\", \"id\": 1}\n",
                "line 2: has no \"text\" (data.field= names one of: body, id)");
    expect_text("{'text': 'a'}\n", "line 1: no key where one must stand");
    expect_text("ab\"}\n{\"text\": \"b\"}\n", "line 1: neither a value");
    expect_text("{\"text\": 5}\n", "line 1: has a \"text\" that is no text");
    expect_text("id,text\n1,one\n2,\"two, or\n2\"\n",
                "data.format=csv takes its column");
    expect_text("id\ttext\n1\tone\n2\ttwo", "data.format=tsv takes its column");
    expect(FILES "nano.bin", FORMATmegatron, "has no .idx beside it");
    expect(FILES "nano.bin", FORMATllmc, "is too short for an llm.c header");
    expect(FILES "texts.jsonl", FORMATllmc, "is too short");
    expect(FILES "texts.txt", FORMATjsonl, "line 1: ");
    expect(changed(FILES "wide.bin", "w.bin", 0, "\0\0\0\0", 4, 4), FORMATauto,
           "may hold tokens of 16 or of 32 bits");
    expect(FILES "packed.arrow", FORMATauto, "is compressed inside");
    expect(FILES "texts.txt", FORMATarrow, "is damaged");
    expect(changed(FILES "texts.arrow", "t.arrow", 0, "", 0, 3000), FORMATauto,
           "is cut off");
    expect("tests/data", FORMATauto, "Is a directory");
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
           "is no text, and no tokens of 16 or 32 bits below");
    expect(changed(FILES "u2.npy", "u.npy", 0, "", 0, 200), FORMATauto,
           "is cut off");
    expect(changed(FILES "u2.npy", "u.npy", 0, "", 0, 100), FORMATauto,
           "damaged header");
    expect(changed(FILES "texts.jsonl.gz", "t.jsonl.gz", 0, "", 0, 150),
           FORMATauto, "is cut off");
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
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_questions),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, setup, teardown);
}
