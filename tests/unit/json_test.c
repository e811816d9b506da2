/* json_test: the reader for JSON of others: what it takes beyond the standard,
 * where damage is, and that it finds what jansson finds in random texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "../../runtime/runtime.h"

static JsonValue opened(const char *s, size_t n)
{
    JsonValue v;
    JsonError e;

    assert_int_equal(jv_open(s, n, &v, &e), 0);
    return v;
}

#define JSON(s) opened(s, sizeof s - 1)

static void numbers(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct { const char *s; double x; } row[] = {
        { "0", 0 }, { "-0", 0 }, { "-17", -17 }, { "1e3", 1000 },
        { "2.5E-1", 0.25 }, { "true", 1 }, { "false", 0 },
        { "1000000000000000019884624838656", 1000000000000000019884624838656. },
        { "16383921213128281234", 16383921213128281234. },
        { "1e999", INFINITY }, { "Infinity", INFINITY }, { "-Infinity", -INFINITY },
    };
    /* clang-format on */
    int64_t x;

    for (int i = 0; i < countof(row); i++)
        assert_true(jv_real(opened(row[i].s, strlen(row[i].s))) == row[i].x);
    assert_true(isnan(jv_real(JSON("NaN"))) && isnan(jv_real(JSON("null"))));
    assert_true(isnan(jv_real(JSON("\"1\""))));
    char *long_one = alloc(forever, 5000);
    memset(long_one, '7', 5000);
    assert_true(isinf(jv_real(opened(long_one, 5000))));
    assert_true(jv_int(JSON("9223372036854775807"), &x) && x == INT64_MAX);
    assert_true(jv_int(JSON("9007199254740993"), &x) && x == 9007199254740993);
    assert_true(jv_int(JSON("-9223372036854775808"), &x) && x == INT64_MIN);
    assert_true(jv_int(JSON("4.0"), &x) && x == 4);
    assert_true(jv_int(JSON("2e2"), &x) && x == 200);
    assert_false(jv_int(JSON("1.5"), &x) || jv_int(JSON("NaN"), &x) ||
                 jv_int(JSON("1e30"), &x) || jv_int(JSON("true"), &x) ||
                 jv_int(JSON("9223372036854775808"), &x));
}

static void is_text(JsonValue v, const char *want, size_t n)
{
    size_t len;
    char *s = jv_text(forever, v, &len);

    assert_non_null(s);
    assert_int_equal(len, n);
    assert_memory_equal(s, want, n);
}

#define TEXT(json, want) is_text(JSON(json), want, sizeof want - 1)

static void texts(void **state)
{
    (void)state;
    TEXT("\"\"", "");
    TEXT("\"a\\u0000b\"", "a\0b");
    TEXT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    TEXT("\"\\u00e9\\u20AC\\ud83d\\ude00\"", "\u00e9\u20ac\U0001f600");
    TEXT("\"\\ud83dx\"", "\ufffdx");
    TEXT("\"\\ude00\\ud83d\"", "\ufffd\ufffd");
    TEXT("\"\\ud83d\\u0041\"", "\ufffd"
                               "A");
    TEXT("\"\\ud83d\\ud83d\\ude00\"", "\ufffd\U0001f600");
    assert_null(jv_text(forever, JSON("\"\xff\""), NULL));
    assert_null(jv_text(forever, JSON("\"\xed\xa0\x80\""), NULL));
    assert_null(jv_text(forever, JSON("17"), NULL));
    assert_null(jv_text(forever, JSON("\"a\\u0000b\""), NULL));
    assert_true(jv_is(JSON("\"\\u0074e\\u00e9\""), "te\u00e9"));
    assert_false(jv_is(JSON("\"te\""), "t") || jv_is(JSON("\"t\""), "te") ||
                 jv_is(JSON("\"t\\u0000\""), "t") || jv_is(JSON("1"), "1"));
}

static void members(void **state)
{
    JsonValue v = JSON("\xef\xbb\xbf {\"a\": [1, {\"a\": 2}], \"\\u0000k\": "
                       "NaN, \"b\":{ }, \"a\": [3 , 4,5],\"c\":null} \n");
    JsonValue key, x, all[3];
    size_t at = 0;

    (void)state;
    assert_int_equal(jv_count(v), 5);
    assert_int_equal(jv_count(jv_get(v, "a")), 3);
    for (x = jv_get(v, "a"), at = 0; jv_next(x, &at, &key, &all[0]);)
        ;
    assert_int_equal(jv_kind(all[0]), JSONnone);
    assert_int_equal(jv_count(jv_get(v, "b")), 0);
    assert_int_equal(jv_kind(jv_get(v, "")), JSONnone);
    assert_int_equal(jv_kind(jv_get(jv_get(v, "c"), "d")), JSONnone);
    at = 0;
    jv_fields(v, (const char *const[]){ "c", "d", "b" }, 3, all);
    assert_int_equal(jv_kind(all[0]), JSONnull);
    assert_int_equal(jv_kind(all[1]), JSONnone);
    assert_int_equal(jv_kind(all[2]), JSONobject);
    while (jv_next(v, &at, &key, &x))
        if (jv_kind(x) == JSONnumber)
            is_text(key, "\0k", 2);
    assert_true(jv_same(forever, JSON("{\"x\":[1,2.0],\"y\":\"\\u0041\"}"),
                        JSON("{\"y\": \"A\", \"x\": [1.0, 2]}")));
    assert_false(jv_same(forever, JSON("[1,[2]]"), JSON("[1,[3]]")) ||
                 jv_same(forever, JSON("[1]"), JSON("[1,1]")) ||
                 jv_same(forever, JSON("{\"x\":1}"), JSON("{\"y\":1}")) ||
                 jv_same(forever, JSON("null"), JSON("false")));
}

/* Where damage is, and that of a text cut off anywhere its end says so. */
static void damage(void **state)
{
    /* clang-format off */
    static const struct { const char *s; int64_t line, column; } row[] = {
        { "[1,\n 2,\n 3 4]", 3, 4 }, { "{\"a\":1,}", 1, 8 }, { "[1,]", 1, 4 },
        { "{1:2}", 1, 2 }, { "{\"a\" 1}", 1, 6 }, { "[01]", 1, 3 },
        { "[1}", 1, 3 }, { "{\"a\":1]", 1, 7 }, { "[1] 2", 1, 5 },
        { "[.5]", 1, 2 }, { "[1.]", 1, 4 }, { "[+1]", 1, 2 }, { "'a'", 1, 1 },
        { "\"a\tb\"", 1, 3 }, { "\"\\x\"", 1, 3 }, { "\"\\u12g4\"", 1, 6 },
        { "nul", 1, 4 }, { "nulL", 1, 1 }, { "", 1, 1 }, { " \n", 2, 1 },
        { "[1, // a\n2]", 1, 5 }, { "-", 1, 2 }, { "[-a]", 1, 3 },
    };
    /* clang-format on */
    static const char whole[] =
        "{\"a\": [1, -Infinity, \"\\u00e9\\n\", true], \"b\": {\"c\": 1.5e+3}}";
    JsonValue v;
    JsonError e;

    (void)state;
    for (int i = 0; i < countof(row); i++) {
        size_t n = strlen(row[i].s);
        char *s = malloc(n + 1); /* its end is the sanitizer's */
        memcpy(s, row[i].s, n);
        assert_int_equal(jv_open(s, n, &v, &e), -1);
        assert_true(e.line == row[i].line && e.column == row[i].column);
        assert_non_null(e.why);
        free(s);
    }
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *s = malloc(n + 1);
        memcpy(s, whole, n);
        assert_int_equal(jv_open(s, n, &v, &e), -1);
        assert_int_equal(e.at, n);
        free(s);
    }
    JSON("{\"a\": [1, -Infinity]}");
}

static void deep(void **state)
{
    enum { DEPTH = 1 << 20 };
    char *s = malloc(2 * DEPTH), *obj = malloc(6 * DEPTH);
    JsonValue v;
    JsonError e;

    (void)state;
    memset(s, '[', DEPTH);
    memset(s + DEPTH, ']', DEPTH);
    assert_int_equal(jv_open(s, 2 * DEPTH, &v, &e), 0);
    assert_int_equal(jv_count(v), 1);
    s[DEPTH + 1000] = '}';
    assert_int_equal(jv_open(s, 2 * DEPTH, &v, &e), -1);
    assert_int_equal(e.at, DEPTH + 1000);
    for (size_t i = 0; i < DEPTH; i++)
        memcpy(obj + 5 * i, i % 3 ? "{\"k\":" : "[ 7, ", 5);
    assert_int_equal(jv_open(obj, 5 * DEPTH, &v, &e), -1);
    assert_int_equal(e.at, 5 * DEPTH);
    free(s);
    free(obj);
}

/* ---- beside jansson ------------------------------------------------------ */

static uint64_t seed = 1;

static unsigned rnd(unsigned n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

static void agree(const json_t *j, JsonValue v)
{
    size_t at = 0;
    int64_t n = 0;
    JsonValue key, x;

    if (json_is_string(j)) {
        is_text(v, json_string_value(j), json_string_length(j));
    } else if (json_is_number(j)) {
        assert_true(json_number_value(j) == jv_real(v));
    } else if (json_is_object(j)) {
        while (jv_next(v, &at, &key, &x))
            if (!memchr(key.s, '\\', key.n))
                agree(json_object_get(j, jv_text(forever, key, NULL)),
                      jv_get(v, jv_text(forever, key, NULL)));
    } else if (json_is_array(j)) {
        for (; jv_next(v, &at, &key, &x); n++)
            agree(json_array_get(j, (size_t)n), x);
        assert_int_equal(n, json_array_size(j));
    } else {
        assert_int_equal(jv_kind(v), json_is_null(j)   ? JSONnull
                                     : json_is_true(j) ? JSONtrue
                                                       : JSONfalse);
    }
}

/* Random strings of JSON's pieces: what jansson takes is read, and alike. */
static void random_texts(void **state)
{
    static const char *const piece[] = {
        "{",       "}",      "[",           "]",
        ",",       ":",      "\"a\"",       "\"b\\n\"",
        "1",       "-2.5e1", "0",           "true",
        "null",    " ",      "\"\\u00e9\"", "\"\\ud83d\\ude00\"",
        "{\"a\":", "[1,",    "]}",          "\n",
        "\"",      "\\",     "e",           "."
    };
    int taken = 0;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        char s[128];
        size_t n = 0;
        json_error_t why;
        JsonValue v;
        JsonError e;
        for (unsigned k = 1 + rnd(8); k--;) {
            const char *p = piece[rnd(countof(piece))];
            memcpy(s + n, p, strlen(p));
            n += strlen(p);
        }
        json_t *j = json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        int bad = jv_open(s, n, &v, &e);
        /* numbers that only this reader takes */
        if (!j && json_error_code(&why) == json_error_numeric_overflow)
            continue;
        assert_int_equal(!j, !!bad);
        if (j)
            agree(j, v);
        taken += j != NULL;
        json_decref(j);
    }
    assert_true(taken > 2000);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers), cmocka_unit_test(texts),
        cmocka_unit_test(members), cmocka_unit_test(damage),
        cmocka_unit_test(deep),    cmocka_unit_test(random_texts),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
