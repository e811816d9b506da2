/* tokenizer_test: tokens of a megabyte of made-up text (unit/mixtext.c) are
 * those that the tokenizers library makes with the same tokenizer.json, and
 * decode to the same text. tests/data/tokenizer/make.py wrote what is expected,
 * with the text that `--text` prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <unistd.h>
#include <utf8proc.h>
#include <zlib.h>

#include "../../runtime/runtime.h"
#include "mixtext.h"

enum { SIZE = 1300000 };

typedef struct Expected {
    int doc;
    long n;
    unsigned long ids, text;
} Expected;

static char *text;
static size_t len;

/* The next document from *at; 0: no more. */
static size_t next_doc(const char **at)
{
    const char *s = *at + (*at != text);

    if (*at == text + len)
        return 0;
    const char *end = memchr(s, 0x1e, (size_t)(text + len - s));
    *at = end ? end : text + len;
    return (size_t)(*at - s);
}

static void one_doc(Encoder *e, const char *s, size_t n, const Expected *x)
{
    Arena *a = arena_new();
    Text out = { .arena = a };

    assert_int_equal(utf8_bad(s, n), -1);
    assert_null(encode(e, s, n, ENCtemplate));
    unsigned long ids =
        crc32(0, (const void *)e->id, (unsigned)((size_t)e->n * sizeof *e->id));
    decode(e->t, e->id, e->n, &out);
    unsigned long back = crc32(0, (const void *)out.s, (unsigned)out.len);
    if (e->n != x->n || ids != x->ids || back != x->text)
        fail_msg("document %d: %lld tokens, crc %08lx, of text %08lx; the "
                 "library: %ld, %08lx, %08lx",
                 x->doc, (long long)e->n, ids, back, x->n, x->ids, x->text);
    arena_free(a);
}

static void test_case(void **state)
{
    const char *name = *state, *s = text;
    Tokenizer *t = tokenizer_open(
        strf(forever, "tests/data/tokenizer/%s.json", name), NULL);
    Encoder *e = encoder_new(t);
    FILE *f = fopen("tests/data/tokenizer/expected.txt", "r");
    char which[32];
    Expected x;
    int docs = 0;

    assert_non_null(f);
    while (fscanf(f, "%31s %d %ld %lx %lx", which, &x.doc, &x.n, &x.ids,
                  &x.text) == 5) {
        if (strcmp(which, name))
            continue;
        assert_int_equal(x.doc, docs++);
        size_t n = next_doc(&s);
        one_doc(e, s - n, n, &x);
    }
    fclose(f);
    assert_int_equal(next_doc(&s), 0);
    assert_true(docs > 100);
    encoder_free(e);
}

/* Characters newer than PCRE2's tables and than utf8proc's. */
static void test_newer(void **state)
{
    FILE *f = fopen("tests/data/tokenizer/newer.expected", "r");
    size_t n;
    char *s = file_read(forever, "tests/data/tokenizer/newer.txt", &n);
    char which[32];
    Expected x;
    int cases = 0;

    (void)state;
    assert_non_null(f);
    assert_non_null(s);
    for (; fscanf(f, "%31s %d %ld %lx %lx", which, &x.doc, &x.n, &x.ids,
                  &x.text) == 5;
         cases++) {
        Encoder *e = encoder_new(tokenizer_open(
            strf(forever, "tests/data/tokenizer/%s.json", which), NULL));
        one_doc(e, s, n, &x);
        encoder_free(e);
    }
    fclose(f);
    assert_int_equal(cases, 7);
}

/* ---- what is refused ----------------------------------------------------- */

static jmp_buf back;
static char said[4096];

static void hook(const char *msg)
{
    snprintf(said, sizeof said, "%s", msg);
    longjmp(back, 1);
}

static Tokenizer *tokenizer_of(const char *json)
{
    char path[] = "/tmp/pleat-tokenizer-test.XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    Tokenizer *volatile t = NULL;

    assert_non_null(f);
    fputs(json, f);
    fclose(f);
    said[0] = 0;
    err_hook = hook;
    if (!setjmp(back))
        t = tokenizer_open(path, NULL);
    err_hook = NULL;
    remove(path);
    return t;
}

static void refuses(const char *json, const char *why)
{
    tokenizer_of(json);
    if (!strstr(said, why))
        fail_msg("'%s' does not say '%s'", said, why);
}

#define BPE                        \
    "\"model\":{\"type\":\"BPE\"," \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
#define WITH(what) "{" what "," BPE "\"merges\":[\"a b\"]}}"
#define SPLIT(p)                                              \
    WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":" \
         "{\"Regex\":\"" p "\"},\"behavior\":\"Isolated\",\"invert\":false}")

static void test_refused(void **state)
{
    (void)state;
    refuses("{", ":1: error: ");
    refuses("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}",
            "model 'Unigram' is not known here: only BPE is");
    refuses("{}", "model '' is not known here: only BPE is");
    refuses(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xff\":0},\"merges\":[]}}",
        "is no valid UTF-8");
    refuses("{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "WordPiece");
    refuses("{" BPE "\"merges\":[\"a c\"]}}", "number 1 has 'c', which is not");
    refuses("{" BPE "\"merges\":[\"a b c\"]}}", "number 1 is not two tokens");
    refuses("{" BPE "\"merges\":[[\"b\",\"a\"]]}}", "has 'ba', which is not");
    refuses("{" BPE "\"merges\":[],\"dropout\":0.1}}", "dropout");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
            "\"a\" has a wrong number");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":9999999},"
            "\"merges\":[]}}",
            "full of holes");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},"
            "\"merges\":[]}}",
            "has the number of another token");
    refuses(WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), "Lowercase");
    refuses(WITH("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"), "Bert");
    refuses(WITH("\"added_tokens\":[{\"id\":1,\"content\":\"ab\"}]"),
            "'ab' has the wrong number");
    refuses(WITH("\"added_tokens\":[{\"id\":1}]"), "has no content");
    refuses(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\","
                 "\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}"),
            "a token has no number");
    refuses(SPLIT("(a\\u0000"), "has no pattern");
    refuses(SPLIT("(a"), "pattern '(a': missing");
    refuses(SPLIT("a{1,2}+"), "{..}+");
    refuses(SPLIT("[a&&[^b]]"), "sets inside []");
    refuses(SPLIT("(?m:.)"), "(?m)");
    refuses(SPLIT("\\\\h+"), "\\h");
}

/* Zero bytes in texts; of equal keys the last one counts. */
static void test_keys(void **state)
{
    Tokenizer *t = tokenizer_of(
        "{\"added_tokens\":[{\"id\":3,\"content\":\"b\\u0000\"}],\"model\":{"
        "\"type\":\"BPE\",\"vocab\":{\"a\":7,\"\\u0000\":0,\"a\":1,"
        "\"a\\u0000\":2,\"\\u0000\":0},\"merges\":[\"a \\u0000\"]}}");
    size_t n;

    (void)state;
    assert_string_equal(said, "");
    assert_int_equal(t->vocab, 4);
    Encoder *e = encoder_new(t);
    assert_null(encode(e, "ab\0a\0", 5, 0));
    assert_int_equal(e->n, 3);
    assert_true(e->id[0] == 1 && e->id[1] == 3 && e->id[2] == 2);
    assert_memory_equal(tokenizer_text(t, 2, &n), "a", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_text(t, 3, &n), "b", 2);
    assert_int_equal(n, 2);
    assert_int_equal(tokenizer_id(t, "b"), -1);
    encoder_free(e);
}

static void test_utf8(void **state)
{
    /* clang-format off */
    static const struct { const char *s; int bad; } rows[] = {
        {"plain", -1}, {"\xc3\xa9", -1}, {"abcdefgh\x80", 8}, {"\xc3", 0},
        {"a\xc0\xaf", 1}, {"\xed\xa0\x80", 0}, {"\xf4\x90\x80\x80", 0},
        {"\xf0\x8f\xbf\xbf", 0}, {"\xe0\x9f\xbf", 0}, {"\xf5\x80\x80\x80", 0},
        {"\xf4\x8f\xbf\xbf", -1}, {"\xe2\x82", 0}, {"\xff", 0},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(utf8_bad(rows[i].s, strlen(rows[i].s)), rows[i].bad);
}

/* A pair that is listed twice has the later rank: what tokenizers 0.23.3 gives
 * for `abc`, and for that twenty times, which goes through the heap. */
static void test_pair_twice(void **state)
{
    /* clang-format off */
    static const struct { const char *merges; int ids[2]; } rows[] = {
        { "\"a b\",\"b c\"",                     { 3, 2 } }, /* ab c */
        { "\"a b\",\"b c\",\"a b\"",             { 0, 4 } }, /* a bc */
        { "\"b c\",\"a b\",\"b c\"",             { 3, 2 } },
        { "\"a b\",\"b c\",\"a b\",\"b c\"",     { 3, 2 } },
    };
    /* clang-format on */
    char many[61] = "";

    (void)state;
    for (int i = 0; i < 20; i++)
        strcat(many, "abc");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Tokenizer *t = tokenizer_of(
            strf(forever,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
                 "\"c\":2,\"ab\":3,\"bc\":4},\"merges\":[%s]}}",
                 rows[i].merges));
        assert_non_null(t);
        Encoder *e = encoder_new(t);
        assert_null(encode(e, "abc", 3, 0));
        assert_int_equal(e->n, 2);
        assert_memory_equal(e->id, rows[i].ids, sizeof rows[i].ids);
        assert_null(encode(e, many, 60, 0));
        assert_int_equal(e->n, 40);
        for (int k = 0; k < 40; k++)
            assert_int_equal(e->id[k], rows[i].ids[k % 2]);
        encoder_free(e);
    }
}

/* A word of a megabyte: its tokens are its halves', and it takes no time. */
static void test_long_word(void **state)
{
    Encoder *e =
        encoder_new(tokenizer_open("tests/data/tokenizer/gpt2.json", NULL));
    size_t n = 1 << 20;
    char *s = malloc(n);

    (void)state;
    assert_non_null(s);
    memset(s, 'a', n);
    assert_null(encode(e, s, n, 0));
    int64_t whole = e->n;
    assert_null(encode(e, s, n / 2, 0));
    assert_int_equal(whole, 2 * e->n);
    memset(s, ' ', n);
    assert_null(encode(e, s, n, 0));
    assert_true(e->n > 0);
    free(s);
    encoder_free(e);
}

/* ---- brackets of patterns ------------------------------------------------ */

/* The code points of most blocks, 4096 characters a piece. */
static size_t next_code_points(int *c, char *s)
{
    static const int gap[][2] = { { 0x3500, 0x9f00 },   { 0xac80, 0xe000 },
                                  { 0x12500, 0x13400 }, { 0x17000, 0x18a00 },
                                  { 0x20000, 0xe0000 }, { 0xe0200, 0x110000 } };
    size_t n = 0;

    for (int k = 0; k < 4096 && *c < 0x110000; k++) {
        n += (size_t)utf8proc_encode_char(*c, (utf8proc_uint8_t *)s + n);
        ++*c;
        for (int i = 0; i < countof(gap); i++)
            *c = *c == gap[i][0] ? gap[i][1] : *c;
    }
    return n;
}

/* What a pattern leaves of all code points: the bytes that the tokenizers
 * library (tests/data/tokenizer/make.py names its version) leaves. */
static void test_brackets(void **state)
{
    /* clang-format off */
    static const struct { const char *pattern; long n; unsigned long crc; } row[] = {
        { "[[:alnum:]]", 201953, 0xb70168c9 },
        { "[[:alpha:]]", 204573, 0x9a8b9ba4 },
        { "[[:ascii:]]", 295552, 0x6209a4d1 },
        { "[[:blank:]]", 295630, 0x0357f9da },
        { "[[:cntrl:]]", 295583, 0x5a3d4d75 },
        { "[[:digit:]]", 293059, 0x4aef089e },
        { "[[:graph:]]", 142769, 0xef44a188 },
        { "[[:lower:]]", 287662, 0x98d2c04b },
        { "[[:print:]]", 142721, 0x7cd23ad7 },
        { "[[:punct:]]", 263082, 0xe8e89b70 },
        { "[[:space:]]", 295618, 0x21c8bad7 },
        { "[[:upper:]]", 289435, 0xfe0e0e98 },
        { "[[:word:]]", 198051, 0x42524004 },
        { "[[:xdigit:]]", 295657, 0xac6514fe },
        { "[^[:alpha:]]", 91106, 0x4c8b4520 },
        { "[[:^alpha:]x]", 91105, 0xfb4451e7 },
        { "[^[:^upper:]]", 289435, 0xfe0e0e98 },
        { "\\w", 198039, 0x93472773 },
        { "\\W", 97640, 0x54553d3a },
        { "[\\w]", 198051, 0x42524004 },
        { "[^\\w]", 97628, 0x305d11ec },
        { "[a\\W]", 97627, 0xb5e2ae56 },
        { "[^\\W_]", 198052, 0x6c76c001 },
        { "\\p{Alphabetic}", 204573, 0x9a8b9ba4 },
        { "\\P{Upper}", 6244, 0x30e8a46c },
        { "[^\\S\\n]", 295619, 0x01f8cd0d },
        { "\\D", 2620, 0xd74e0844 },
    };
    /* clang-format on */
    static const char was[] = "[[:alpha:]]+|[^[:alpha:]]+";
    char dir[] = "/tmp/pleat-brackets.XXXXXX", s[4 * 4096];
    size_t n;
    char *json =
        file_read(forever, "tests/data/tokenizer/posix_class.json", &n);
    char *at = strstr(json, was), *how = strstr(json, "Isolated");

    (void)state;
    assert_non_null(mkdtemp(dir));
    const char *path = strf(forever, "%s/tokenizer.json", dir);
    for (int i = 0; i < countof(row); i++) {
        Text out = { .arena = forever }, pattern = { .arena = forever };
        put_json(&pattern, row[i].pattern);
        put(&out, "%.*s%s%.*sRemoved%s", (int)(at - json - 1), json, pattern.s,
            (int)(how - at - (long)sizeof was), at + sizeof was,
            how + strlen("Isolated"));
        assert_int_equal(file_write(path, out.s, out.len), 0);
        Encoder *e = encoder_new(tokenizer_open(path, NULL));
        unsigned long crc = 0;
        long tokens = 0;
        for (int c = 1; (n = next_code_points(&c, s));) {
            assert_null(encode(e, s, n, 0));
            crc = crc32(crc, (const void *)e->id,
                        (unsigned)((size_t)e->n * sizeof *e->id));
            tokens += e->n;
        }
        if (tokens != row[i].n || crc != row[i].crc)
            fail_msg("%s leaves %ld bytes, the library %ld", row[i].pattern,
                     tokens, row[i].n);
        encoder_free(e);
    }
    unlink(path);
    rmdir(dir);
}

/* An " \u2163", of which [:alpha:] takes the numeral. */
static void test_numeral(void **state)
{
    static const int32_t want[] = { 220, 158, 227, 96 };
    Encoder *e = encoder_new(
        tokenizer_open("tests/data/tokenizer/posix_class.json", NULL));

    (void)state;
    assert_null(encode(e, " \u2163", 4, 0));
    assert_int_equal(e->n, 4);
    assert_memory_equal(e->id, want, sizeof want);
    encoder_free(e);
}

int main(int argc, char **argv)
{
    text = mix_text(SIZE, &len);
    if (argc > 1 && !strcmp(argv[1], "--text"))
        return fwrite(text, 1, len, stdout) != len;
#define CASE(name)                                       \
    {                                                    \
        "tokens of " #name, test_case, NULL, NULL, #name \
    }
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        CASE(gpt2), CASE(llama3), CASE(qwen2), CASE(deepseek), CASE(flags),
        CASE(mixtral), CASE(metaspace), cmocka_unit_test(test_newer),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_utf8), cmocka_unit_test(test_pair_twice),
        cmocka_unit_test(test_long_word), cmocka_unit_test(test_brackets),
        cmocka_unit_test(test_numeral),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
