/* base_test.c: arenas, tables, strings, errors, dtypes, options, words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/graph/graph.h"
#include "../../ir/settings/keys.h"

static uint64_t chance(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

/* ---- hearing err() ------------------------------------------------------- */

static jmp_buf heard;
static char message[4096];

/* Two sizes are never the same text unless they are the same. */
static void sizes_differ(void **state)
{
    (void)state;
    int64_t gib = 1ll << 30;
    assert_string_equal(gib_text(forever, gib, 2 * gib), "1.000");
    assert_string_equal(gib_text(forever, gib, gib), "1.000");
    assert_string_equal(gib_text(forever, gib, gib - gib / 5000), "1.0000");
    assert_string_equal(gib_text(forever, gib - gib / 5000, gib), "0.9998");
    for (int64_t n = 1; n < 1ll << 40; n *= 3)
        assert_string_not_equal(gib_text(forever, n, n + 1),
                                gib_text(forever, n + 1, n));
}

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

/* ---- arenas -------------------------------------------------------------- */

static void arenas(void **state)
{
    (void)state;
    Arena *a = arena_new();

    for (int round = 0; round < 3; round++) {
        unsigned char *last = NULL;
        for (size_t n = 0; n < 3000; n += 7) {
            unsigned char *p = alloc(a, n);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(p[i], 0);
            memset(p, 0xff, n);
            assert_true(!last || *last == 0xff || n <= 7);
            last = p;
        }
        assert_in_range(arena_used(a), 640000, 660000);
        arena_reset(a);
        assert_int_equal(arena_used(a), 0);
    }
    unsigned char *big = alloc(a, 50 << 20);
    assert_int_equal(big[(50 << 20) - 1], 0);
    arena_free(a);
}

static void vectors(void **state)
{
    (void)state;
    Arena *a = arena_new();
    int *v = NULL;

    assert_int_equal(vec_len(v), 0);
    for (int i = 0; i < 10000; i++)
        vec_push(a, v, i);
    assert_int_equal(vec_len(v), 10000);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(v[i], i);
    arena_free(a);
}

/* ---- tables -------------------------------------------------------------- */

/* Nodes of a graph and calls, as passes have them, that mix64 makes one of. */
static void tables_of_pairs(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, second;
    } alike[][2] = {
        { { 0x7f3a193dfae0, 8 }, { 0x7f3a193e0540, 16 } },
        { { 0x7f3a193dfae0, 0 }, { 0x7f3a193e0540, 8 } },
        { { 0x7f3a19bdf940, 18 }, { 0x7f3a19be06e0, 10 } },
    };
    Arena *a = arena_new();
    Table *t = table_new(a);
    int is[3][2];

    for (int i = 0; i < 3; i++) {
        assert_true(mix64(alike[i][0].key, alike[i][0].second) ==
                    mix64(alike[i][1].key, alike[i][1].second));
        for (int k = 0; k < 2; k++) {
            void **at = table_at_pair(t, alike[i][k].key, alike[i][k].second);
            assert_null(*at);
            *at = &is[i][k];
        }
    }
    for (int i = 0; i < 1000; i++) /* it grows */
        *table_at_pair(t, 0x7f3a193dfae0, 100 + (uint64_t)i) = t;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            assert_ptr_equal(
                table_get_pair(t, alike[i][k].key, alike[i][k].second),
                &is[i][k]);
    assert_ptr_equal(table_get(t, 0x7f3a193dfae0), &is[1][0]);
    assert_null(table_get(t, 0x7f3a19bdf940));
    arena_free(a);
}

/* ---- strings ------------------------------------------------------------- */

static void interned(void **state)
{
    (void)state;
    char name[32];
    const char *first[5000];

    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "name.%d", i);
        first[i] = intern(name);
        assert_string_equal(first[i], name);
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "name.%d and more", i);
        size_t n = (size_t)(strchr(name, ' ') - name);
        assert_ptr_equal(internn(name, n), first[i]);
        assert_true(intern(name) != first[i]);
    }
}

static void texts(void **state)
{
    (void)state;
    Arena *a = arena_new();
    Text t = { .arena = a };
    size_t n = 0;

    for (int i = 0; i < 3000; i++) {
        put(&t, "%d,%s;", i, "x");
        n += (size_t)snprintf(NULL, 0, "%d,x;", i);
        assert_int_equal(t.len, n);
        assert_int_equal(t.s[t.len], 0);
    }
    put(&t, "%5000d", 1);
    assert_int_equal(t.len, n + 5000);
    assert_int_equal(strncmp(t.s, "0,x;1,x;2,x;", 12), 0);
    assert_string_equal(strf(a, "%s-%d", "a", 3), "a-3");
    arena_free(a);
}

static void suggestions(void **state)
{
    (void)state;
    static const char *const names[] = { "hidden", "heads", "seq", "ffn" };

    assert_string_equal(nearest("hiden", names, 4), "hidden");
    assert_string_equal(nearest("hdiden", names, 4), "hidden");
    assert_string_equal(nearest("sqe", names, 4), "seq");
    assert_string_equal(nearest("head", names, 4), "heads");
    assert_null(nearest("vocabulary", names, 4));
    assert_null(nearest("xy", names, 4));
    assert_null(nearest("", names, 4));
}

/* ---- errors -------------------------------------------------------------- */

static void messages(void **state)
{
    (void)state;
    const Loc outer = { intern("m.lua"), 1, NULL };
    const Loc here = { intern("m.lua"), 3, &outer }, gone = { "x.lua", 9, 0 };

    source_add("m.lua", "f()\n\n   y = f(x)  \nz", 20);
    err_hook = hear;
    if (!setjmp(heard)) {
        note(&outer, "made %s", "here");
        err(&here, "axis '%s' is %d", "k", 4);
    }
    assert_string_equal(message, "m.lua:3: error: axis 'k' is 4\n    y = f(x)\n"
                                 "m.lua:1: note: called from here\n    f()\n"
                                 "m.lua:1: note: made here\n    f()\n");
    if (!setjmp(heard))
        err(&gone, "no source");
    assert_string_equal(message, "x.lua:9: error: no source\n");
    if (!setjmp(heard))
        err(NULL, "nowhere");
    assert_string_equal(message, "error: nowhere\n");
    err_hook = NULL;
}

/* ---- dtypes -------------------------------------------------------------- */

/* Nearest bf16 by its two neighbours, ties to the even one. */
static uint16_t rounded(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    uint16_t lo = (uint16_t)(bits >> 16), hi = (uint16_t)(lo + 1);
    double a = bf16_to_f32(lo), b = bf16_to_f32(hi);
    if (isinf(b)) /* what 2^128 would be */
        b = a > 0 ? 0x1p128 : -0x1p128;
    double da = fabs(x - a), db = fabs(x - b);
    return da < db ? lo : db < da ? hi : lo % 2 ? hi : lo;
}

static void bf16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float x = bf16_to_f32((uint16_t)i);
        if (isnan(x))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(x))));
        else
            assert_int_equal(f32_to_bf16(x), i);
    }
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = (uint32_t)chance();
        float x;
        if (i % 3 == 0)
            bits = (bits & 0xffff0000u) | 0x8000;
        memcpy(&x, &bits, 4);
        if (isfinite(x))
            assert_int_equal(f32_to_bf16(x), rounded(x));
    }
    float odd;
    uint32_t bits = 0x7f800001; /* a NaN with a low bit only */
    memcpy(&odd, &bits, 4);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(odd))));
}

static void dtype_table(void **state)
{
    (void)state;
    for (int i = 0; i < NDTYPE; i++)
        assert_int_equal(dtype_named(dtypes[i].name), i);
    assert_int_equal(dtype_named("f16"), -1);
    assert_int_equal(dtypes[Dbf16].bytes, 2);
    assert_string_equal(dtypes[Df32].st, "F32");
}

/* ---- options ------------------------------------------------------------- */

/* clang-format off */
static const struct { const char *key, *value, *said; } wrong[] = {
    { "train.stepz", "1", "unknown key 'train.stepz' (did you mean "
      "'train.steps'?)" },
    { "steps", "1", "unknown key 'steps' (did you mean 'train.steps'?)" },
    { "fold.orde", "1", "unknown key 'fold.orde' (did you mean 'fold.order'?)" },
    { "zzzzzzzzzzzz", "1", "unknown key 'zzzzzzzzzzzz'\n" },
    { "train.steps", "many", "train.steps: 'many' is not an integer" },
    { "train.steps", "1.5", "train.steps: '1.5' is not an integer" },
    { "train.steps", "", "train.steps: '' is not an integer" },
    { "train.steps", "99999999999999999999", "is not an integer" },
    { "train.steps", "-1", "train.steps: -1 is below the least value 0" },
    { "fold.ep", "0", "fold.ep: 0 is below the least value 1" },
    { "train.lr", "nan", "train.lr: 'nan' is not a number" },
    { "train.lr", "1e999", "is not a number" },
    { "train.lr", "-1", "below the least value 0" },
    { "resume", "yes", "resume: 'yes' is neither 0 nor 1" },
    { "train.schedule", "cosin", "train.schedule: 'cosin' is not one of "
      "constant, linear, cosine, wsd, inverse_sqrt (did you mean 'cosine'?)" },
    { "precision", "fp4", "precision.policy: 'fp4' is not one of" },
    { "train.betas", "0.9", "is not two numbers like 0.9,0.95" },
    { "axes.batch", "0", "axes.batch: 0 is below the least value 1" },
    { "axes.", "3", "unknown key 'axes.'" },
    { "name", "a\"b", "no quotes" },
};
/* clang-format on */

static int accepts(const char *key, const char *value)
{
    err_hook = hear;
    if (!setjmp(heard)) {
        opts_set(opts_new(forever), key, value, NULL);
        err_hook = NULL;
        return 1;
    }
    err_hook = NULL;
    return 0;
}

static void wrong_options(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (accepts(wrong[i].key, wrong[i].value))
            fail_msg("%s=%s was taken", wrong[i].key, wrong[i].value);
        if (!strstr(message, wrong[i].said))
            fail_msg("%s=%s: said %s", wrong[i].key, wrong[i].value, message);
    }
}

/* Every default is a value its own key accepts. */
static void defaults(void **state)
{
    (void)state;
    for (const KeyInfo *k = keytab; k->name; k++) {
        const char *key =
            *k->table ? strf(forever, "%s.%s", k->table, k->name) : k->name;
        Opts *o = opts_new(forever);
        if (k->dflt) {
            assert_string_equal(opts_str(o, key), k->dflt);
            if (k->kind[strlen(k->kind) - 1] != '/') /* else: not built yet */
                opts_set(o, key, k->dflt, NULL);
        } else {
            assert_null(opts_str(o, key));
            assert_int_equal(opts_int(o, key), 0);
        }
        assert_true(strlen(k->doc) > 5);
    }
}

static void options(void **state)
{
    (void)state;
    Opts *o = opts_new(forever);
    const Loc l = { "models/x.lua", 3, NULL };
    const char *key, *value;
    double betas[2];

    opts_set(o, "axes.seq", "64", NULL);
    opts_set(o, "axes.batch", "2", NULL);
    opts_set(o, "axes.seq", "128", NULL);
    opts_set(o, "data.train", "d/t.bin", &l);
    opts_set(o, "data.valid", "/d/v.bin", &l);
    opts_set(o, "data.tokenizer", "bytes", &l);
    opts_set(o, "precision", "bf16", NULL);
    opts_set(o, "seed", "7", NULL);
    opts_set(o, "resume", "true", NULL);
    opts_set(o, "train.no_decay", "*.bias, norm*", NULL);
    opts_set(o, "train.betas", "0.8, 0.99", NULL);
    assert_int_equal(opts_int(o, "axes.seq"), 128);
    assert_int_equal(opts_int(o, "axes.none"), 0);
    assert_string_equal(opts_str(o, "data.train"), "models/d/t.bin");
    assert_string_equal(opts_str(o, "data.valid"), "/d/v.bin");
    assert_string_equal(opts_str(o, "data.tokenizer"), "bytes");
    assert_string_equal(opts_str(o, "precision.policy"), "bf16");
    assert_int_equal(opts_int(o, "seed"), 7);
    assert_int_equal(opts_int(o, "resume"), 1);
    assert_true(opts_num(o, "train.lr") == 3e-4);
    assert_true(opts_given(o, "resume") && !opts_given(o, "train.lr"));
    assert_ptr_equal(opts_loc(o, "data.train"), &l);
    opts_pair(o, "train.betas", betas);
    assert_true(betas[0] == 0.8 && betas[1] == 0.99);
    assert_true(opts_match(o, "train.no_decay", "layers.0.q.bias"));
    assert_true(opts_match(o, "train.no_decay", "norm.weight"));
    assert_false(opts_match(o, "train.no_decay", "layers.0.q.bias2"));
    assert_true(opts_each(o, 0, &key, &value));
    assert_string_equal(key, "train.no_decay");
    assert_true(opts_each(o, 8, &key, &value));
    assert_string_equal(key, "axes.batch");
    assert_true(opts_each(o, 9, &key, &value));
    assert_string_equal(value, "128");
    assert_false(opts_each(o, 10, &key, &value));
    opts_set(o, "train.lr.*", "0.5", NULL);
    opts_set(o, "train.lr.layers.*", "0.25", NULL);
    assert_true(opts_factor(o, "train.lr.", "layers.0.q") == 0.25);
    opts_set(o, "train.lr.*", "2", NULL);
    assert_true(opts_factor(o, "train.lr.", "layers.0.q") == 2);
    assert_true(opts_factor(o, "train.decay.", "layers.0.q") == 1);
}

/* A key's words are its enum's, in their order. */
static void key_words(void **state)
{
    (void)state;
    Opts *o = opts_new(forever);

    assert_int_equal(opts_route_policy(o), ROUTEdropless);
    opts_set(o, "route", "padded", NULL);
    assert_int_equal(opts_route_policy(o), ROUTEpadded);
    assert_int_equal((int)opts_cp_balance(o), -1);
    opts_set(o, "fold.balance", "contiguous", NULL);
    assert_int_equal(opts_cp_balance(o), BALANCEcontiguous);
    opts_set(o, "fold.schedule", "dualpipev", NULL);
    assert_int_equal(opts_pp_schedule(o), SCHEDULEdualpipev);
    opts_set(o, "fold.schedule", "turns.csv", NULL);
    assert_int_equal((int)opts_pp_schedule(o), -1);
    assert_int_equal(key_word("data.format", "npy"), FORMATnpy);
    assert_int_equal(key_word("data.format", "llmc nanogpt"), -1);
    assert_string_equal(key_word_text("data.format", FORMATauto), "auto");
    assert_string_equal(key_word_text("data.format", FORMATnpy), "npy");
}

/* ---- words --------------------------------------------------------------- */

static void words(void **state)
{
    (void)state;
    static const char *const w[] = {
        "layers.0.w1", "",          " ",     "a b",  "a\"b\\c", "x=1",  "%q",
        "tab\there",   "line\nend", "größe", "-inf", "#",       "\x7f",
    };
    Text t = { .arena = forever };
    const size_t n = sizeof w / sizeof *w;

    for (size_t i = 0; i < n; i++) {
        put_word(&t, w[i]);
        put(&t, i % 3 ? " " : "  # comment\n\n");
    }
    Lex x = { .arena = forever, .p = t.s, .end = t.s + t.len, .file = "w" };
    for (size_t i = 0; i < n; i++) {
        if (!lex_more(&x))
            assert_true(lex_next(&x));
        assert_string_equal(lex_word(&x), w[i]);
    }
    assert_false(lex_more(&x));
    assert_false(lex_next(&x));
}

static void numbers(void **state)
{
    (void)state;
    static const int64_t edge[] = { 0, -1, INT64_MAX, INT64_MIN, 1000000007 };
    char want[64];

    for (int i = 0; i < 100000; i++) {
        uint64_t bits = chance() >> (i % 64);
        int64_t v = i < 5 ? edge[i] : (int64_t)bits;
        double d;
        memcpy(&d, &bits, 8);
        Arena *a = arena_new();
        Text t = { .arena = a };
        put_hex(&t, d);
        snprintf(want, sizeof want, "%a", d);
        assert_string_equal(t.s, want);
        put(&t, " ");
        put_int(&t, v);
        Lex x = { .arena = a, .p = t.s, .end = t.s + t.len, .file = "n" };
        double back = lex_num(&x);
        assert_true(isnan(d) ? isnan(back) : !memcmp(&back, &d, 8));
        assert_true(lex_int(&x) == v);
        arena_free(a);
    }
}

static int is_int(const char *s)
{
    Lex x = {
        .arena = forever, .p = s, .end = s + strlen(s), .file = "n", .line = 1
    };

    err_hook = hear;
    if (!setjmp(heard)) {
        lex_int(&x);
        err_hook = NULL;
        return 1;
    }
    err_hook = NULL;
    return 0;
}

static void bad_numbers(void **state)
{
    (void)state;
    /* clang-format off */
    static const char *const bad[] = {
        "9223372036854775808",
        "-9223372036854775809",
        "-",
        "1x",
        "+1",
        "",
        "99999999999999999999999999",
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (is_int(bad[i]))
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(strncmp(message, "n:1: error: ", 12), 0);
    }
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas),
        cmocka_unit_test(vectors),
        cmocka_unit_test(tables_of_pairs),
        cmocka_unit_test(interned),
        cmocka_unit_test(texts),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(messages),
        cmocka_unit_test(bf16),
        cmocka_unit_test(dtype_table),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(defaults),
        cmocka_unit_test(options),
        cmocka_unit_test(key_words),
        cmocka_unit_test(words),
        cmocka_unit_test(numbers),
        cmocka_unit_test(bad_numbers),
        cmocka_unit_test(sizes_differ),
    };
    /* clang-format on */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
