/* data_test: the same tokens from every format, the same samples in every fold,
 * next tokens as labels, held-out tails, and one clear line for what is
 * wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

#include "tinyplan.h"

enum { N = 400, SEQ = TINYSEQ, PERSTEP = 8 };

static char *home;
static uint8_t text[N];

static char *in_home(const char *name)
{
    return strf(forever, "%s/%s", home, name);
}

static void save(const char *name, const void *head, size_t nhead,
                 const void *p, size_t n)
{
    FILE *f = fopen(in_home(name), "w");

    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, nhead, f), nhead);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void save_npy(const char *name, const char *descr, const char *shape,
                     const void *p, size_t n)
{
    char head[128];
    int len = snprintf(head + 10, 118,
                       "{'descr': '%s', 'fortran_order': "
                       "False, 'shape': (%s), }\n",
                       descr, shape);

    memcpy(head, "\x93NUMPY\1\0", 8);
    head[8] = (char)len;
    head[9] = 0;
    save(name, head, (size_t)len + 10, p, n);
}

/* The tokens of mega.bin as two documents. */
static void save_idx(const char *name)
{
    uint8_t idx[34] = "MMIDIDX\0\0\1", body[48];
    int32_t len[2] = { 150, N - 150 };
    int64_t tail[5] = { 0, 2 * 150, 0, 1, 2 };

    idx[17] = 8; /* u16 */
    idx[18] = 2;
    idx[26] = 3;
    memcpy(body, len, 8);
    memcpy(body + 8, tail, 40);
    save(name, idx, sizeof idx, body, sizeof body);
}

static void save_jsonl(void)
{
    Text t = { .arena = forever };

    for (int line = 0; line < 4; line++) {
        put(&t, "{\"id\": %d, \"text\": \"", line);
        for (int i = 0; i < N / 4 - 1; i++)
            put(&t, "\\u%04x", text[line * (N / 4) + i]);
        put(&t, "\"}\n");
    }
    save("d.jsonl", "", 0, t.s, t.len);
    gzFile z = gzopen(in_home("d.jsonl.gz"), "wb");
    assert_int_equal(gzwrite(z, t.s, (unsigned)t.len), (int)t.len);
    gzclose(z);
}

static int setup(void **state)
{
    static uint16_t wide[N];
    static int32_t whole[N];
    static uint32_t llmc[256] = { 20240520, 1, N };

    (void)state;
    home = strf(forever, "/tmp/pleat-data-test.XXXXXX");
    if (!mkdtemp(home))
        return -1;
    for (int i = 0; i < N; i++) {
        text[i] = (uint8_t)(1 + (i * i / 7 + i) % 15);
        if (i % (N / 4) == N / 4 - 1)
            text[i] = 0; /* ends of the .jsonl's texts */
        wide[i] = text[i];
        whole[i] = text[i];
    }
    save("d.txt", "", 0, text, N);
    save("nano.bin", "", 0, wide, sizeof wide);
    save("llmc.bin", llmc, sizeof llmc, wide, sizeof wide);
    save("mega.bin", "", 0, wide, sizeof wide);
    save_idx("mega.idx");
    save_npy("u2.npy", "<u2", "400,", wide, sizeof wide);
    save_npy("i4.npy", "<i4", "400,", whole, sizeof whole);
    save_jsonl();
    mkdir(in_home("two"), 0755);
    save("two/a", "", 0, text, 200);
    save("two/b", "", 0, text + 200, 200);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return system(strf(forever, "rm -rf %s", home));
}

/* Tokens and labels of one step over all ranks: [sample][seq]. */
typedef struct Step8 {
    int32_t x[PERSTEP][SEQ], y[PERSTEP][SEQ];
} Step8;

static void take(int64_t dp, const char *keys, const char *key, int flags,
                 int64_t step, Step8 *out)
{
    Plan *p = tiny_plan(dp, keys);
    Data *d = data_open(forever, p, key, flags);
    Feed f = data_feed(d, step * data_perstep(d));
    const Role *r = &p->role[0];
    int32_t buf[TINYBATCH * SEQ];

    for (int64_t rank = 0; rank < dp; rank++)
        for (int64_t micro = 0; micro < 4 / dp; micro++)
            for (int i = 0; i < 2; i++) {
                static const char *const names[] = { "tokens", "labels" };
                const Tensor *t = &r->tensor[role_tensor(r, names[i])];
                int64_t first = (micro * dp + rank) * TINYBATCH;
                f.fill(f.self, t, rank, micro, buf);
                memcpy(i ? out->y[first] : out->x[first], buf, sizeof buf);
            }
}

static void test_formats_agree(void **state)
{
    static const char *const files[] = { "nano.bin", "llmc.bin",  "mega.bin",
                                         "mega",     "u2.npy",    "i4.npy",
                                         "d.jsonl",  "d.jsonl.gz" };
    static Step8 want, got;

    (void)state;
    take(1, strf(forever, "data.format=bytes data.train=%s", in_home("d.txt")),
         "data.train", DATAshuffle, 1, &want);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        memset(&got, -1, sizeof got);
        take(1, strf(forever, "data.train=%s", in_home(files[i])), "data.train",
             DATAshuffle, 1, &got);
        if (memcmp(&want, &got, sizeof got))
            fail_msg("%s differs", files[i]);
    }
}

/* Labels are next tokens; an epoch holds every sample once; folds agree. */
static void test_samples(void **state)
{
    static Step8 one, four;
    char *keys = strf(forever, "seed=5 data.format=bytes data.train=%s",
                      in_home("d.txt"));
    int seen[N] = { 0 }, samples = (N - 1) / SEQ, moved = 0;

    (void)state;
    for (int64_t step = 0; step * PERSTEP < samples; step++) {
        take(1, keys, "data.train", DATAshuffle, step, &one);
        take(4, keys, "data.train", DATAshuffle, step, &four);
        assert_memory_equal(&one, &four, sizeof one);
        for (int s = 0; s < PERSTEP && step * PERSTEP + s < samples; s++) {
            int at = 0;
            while (at < samples && (seen[at] || one.x[s][0] != text[at * SEQ] ||
                                    one.x[s][1] != text[at * SEQ + 1] ||
                                    one.x[s][2] != text[at * SEQ + 2] ||
                                    one.x[s][3] != text[at * SEQ + 3]))
                at++;
            assert_true(at < samples);
            seen[at] = 1;
            moved += at != step * PERSTEP + s;
            for (int i = 0; i < SEQ; i++) {
                assert_int_equal(one.x[s][i], text[at * SEQ + i]);
                assert_int_equal(one.y[s][i], text[at * SEQ + i + 1]);
            }
        }
    }
    assert_true(moved > samples / 2);
}

/* The next epoch holds the same samples in another order. */
static void test_epochs(void **state)
{
    static Step8 now;
    enum { SAMPLES = (N - 1) / SEQ };
    int32_t first[2 * SAMPLES + PERSTEP][SEQ];
    int moved = 0, found = 0;

    (void)state;
    for (int64_t step = 0; step * PERSTEP < 2 * SAMPLES; step++) {
        take(1,
             strf(forever, "seed=5 data.format=bytes data.train=%s",
                  in_home("d.txt")),
             "data.train", DATAshuffle, step, &now);
        memcpy(first[step * PERSTEP], now.x, sizeof now.x);
    }
    for (int i = 0; i < SAMPLES; i++) {
        int at = 0;
        while (at < SAMPLES &&
               memcmp(first[i], first[SAMPLES + at], sizeof *first))
            at++;
        found += at < SAMPLES;
        moved += memcmp(first[i], first[SAMPLES + i], sizeof *first) != 0;
    }
    assert_int_equal(found, SAMPLES);
    assert_true(moved > SAMPLES / 2);
}

static void test_folder_and_pattern(void **state)
{
    static Step8 a, b;

    (void)state;
    take(1, strf(forever, "data.format=bytes data.train=%s", in_home("two")),
         "data.train", 0, 2, &a);
    take(1,
         strf(forever, "data.format=bytes data.train=%s", in_home("two/{a,b}")),
         "data.train", 0, 2, &b);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.x[0][0], text[16 * SEQ]);
    assert_int_equal(a.y[0][SEQ - 1], text[17 * SEQ]);
    assert_int_equal(a.x[7][0], text[23 * SEQ]);
    /* 24 samples of the first file, then the second begins anew */
    take(1, strf(forever, "data.format=bytes data.train=%s", in_home("two")),
         "data.train", 0, 3, &a);
    assert_int_equal(a.x[0][0], text[200]);
}

static void test_tail(void **state)
{
    char *keys =
        strf(forever, "data.format=bytes data.train=%s data.valid=tail:0.2",
             in_home("d.txt"));
    static Step8 v;

    (void)state;
    take(1, keys, "data.valid", 0, 0, &v);
    assert_int_equal(v.x[0][0], text[40 * SEQ]);
    Data *d = data_open(forever, tiny_plan(1, keys), "data.train", DATAshuffle);
    assert_int_equal(data_samples(d), 40);
    d = data_open(forever, tiny_plan(1, keys), "data.valid", 0);
    assert_int_equal(data_samples(d), 9);
}

/* Rows in order, and their last label missing when a row is no longer than
 * seq. */
static void test_npy_rows(void **state)
{
    static int32_t rows[10][SEQ + 1];
    static Step8 s;

    (void)state;
    for (int i = 0; i < 10 * (SEQ + 1); i++)
        rows[i / (SEQ + 1)][i % (SEQ + 1)] = i % 16;
    save_npy("rows.npy", "<i4", "10, 9", rows, sizeof rows);
    take(2, strf(forever, "data.format=npy data.train=%s", in_home("rows.npy")),
         "data.train", DATAshuffle, 0, &s);
    for (int r = 0; r < PERSTEP; r++)
        for (int i = 0; i < SEQ; i++) {
            assert_int_equal(s.x[r][i], rows[r][i]);
            assert_int_equal(s.y[r][i], rows[r][i + 1]);
        }
    save_npy("rows8.npy", "<i4", "10, 8", rows, 10 * 8 * 4);
    take(1, strf(forever, "data.train=%s", in_home("rows8.npy")), "data.train",
         DATAshuffle, 0, &s);
    assert_int_equal(s.y[0][SEQ - 2], rows[0][SEQ - 1]);
    assert_int_equal(s.y[0][SEQ - 1], -1);
}

/* ---- errors -------------------------------------------------------------- */

static jmp_buf back;
static char said[4096];

static void hear(const char *msg)
{
    snprintf(said, sizeof said, "%s", msg);
    longjmp(back, 1);
}

static void fails(const char *keys, const char *why)
{
    static Step8 s;

    *said = 0;
    err_hook = hear;
    if (!setjmp(back))
        take(1, keys, "data.train", DATAshuffle, 0, &s);
    err_hook = NULL;
    if (!strstr(said, why))
        fail_msg("'%s' is not in: %s", why, said);
}

static void test_errors(void **state)
{
    /* clang-format off */
    static const struct { const char *file, *keys, *why; } bad[] = {
        {"none", "", "no file"},
        {"empty", "", "is empty"},
        {"short", "", "has 8 tokens, a sample needs 9"},
        {"beyond", "", "token 77 at 3 of"},
        {"badrows.npy", "", "a row of"},
        {"cut.npy", "", "is cut off"},
        {"fortran.npy", "data.format=npy ", "is no .npy file"},
        {"d.txt", "data.format=llmc ", "llm.c"},
        {"bad.jsonl", "", "line 2: has no \"text\""},
        {"nothing", "", "no files in"},
    };
    /* clang-format on */
    uint8_t beyond[9] = { 1, 2, 3, 77, 5, 6, 7, 8, 9 };

    (void)state;
    save("empty", "", 0, "", 0);
    save("short", "", 0, text, 8);
    save("beyond", "", 0, beyond, 9);
    save("fortran.npy", "", 0, text, 100);
    save_npy("badrows.npy", "<i4", "2, 5", text, 40);
    save_npy("cut.npy", "<i4", "20, 9", text, 40);
    const char *lines = "{\"text\": \"abc\"}\n{\"txt\": 1}\n";
    save("bad.jsonl", "", 0, lines, strlen(lines));
    mkdir(in_home("nothing"), 0755);
    mkdir(in_home("nothing/inside"), 0755);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fails(
            strf(forever, "%sdata.train=%s", bad[i].keys, in_home(bad[i].file)),
            bad[i].why);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_agree),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_folder_and_pattern),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_npy_rows),
        cmocka_unit_test(test_errors),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, setup, teardown);
}
