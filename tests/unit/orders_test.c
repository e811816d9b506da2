/* orders_test: data.order=megatron gives the samples of Megatron-Core's
 * GPTDataset, BlendedDataset and their builder, every token of every sample, on
 * files that its IndexedDatasetBuilder wrote; NumPy's shuffles and sums to the
 * bit. tests/data/orders.py made the numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>

#include "tinyplan.h"

#define SETS "tests/data/indexed"

/* Each line of orders.txt that begins with word goes to f: how many did. */
static int each_line(const char *word, void (*f)(char *line))
{
    FILE *in = fopen("tests/data/orders.txt", "r");
    static char line[1024];
    size_t n = strlen(word);
    int count = 0;

    assert_non_null(in);
    while (fgets(line, sizeof line, in))
        if (!strncmp(line, word, n) && line[n] == ' ') {
            line[strcspn(line, "\n")] = 0;
            f(line + n + 1);
            count++;
        }
    fclose(in);
    return count;
}

/* ---- samples ------------------------------------------------------------- */

static const char *with_folder(const char *s)
{
    Text t = { .arena = forever };

    for (; *s; s++)
        put(&t, *s == '%' ? SETS : "%c", *s);
    return t.s;
}

/* A word with = begins a key; the others belong to the one before. */
static Plan *plan_of(const char *keys)
{
    Plan *p = tiny_plan(1, "data.order=megatron");
    char *s = strf(forever, "%s", with_folder(keys));

    while (*s) {
        char *key = s, *value = strchr(s, '=');
        *value++ = 0;
        char *next = strchr(value, '=');
        for (s = next ? next : value + strlen(value); next && *s != ' '; s--)
            ;
        if (next)
            *s++ = 0;
        opts_set(p->opts, key, value, NULL);
    }
    return p;
}

static int64_t whole(const Samples *s, int64_t i, int32_t *out)
{
    SampleReader r = samples_read(s, i, 0, "");
    int64_t at, n, k = 0;

    while ((n = reader_next(&r, &at)) > 0)
        for (int64_t j = 0; j < n; j++)
            out[k++] = (int32_t)tokens_at(r.t, at + j);
    return k;
}

static void check_set(const char *row, const Data *d, const char *want)
{
    int32_t token[64];
    char got[64] = "0 0";
    unsigned long crc = 0;

    if (d) {
        const Samples *s = data_source(d);
        for (int64_t i = 0; i < s->n; i++) {
            assert_int_equal(whole(s, i, token), TINYSEQ + 1);
            crc = crc32(crc, (void *)token, 4 * (TINYSEQ + 1));
        }
        snprintf(got, sizeof got, "%lld %08lx", (long long)s->n, crc);
    }
    if (strcmp(got, want))
        fail_msg("%s: got %s, Megatron-Core has %s", row, got, want);
}

static void check_case(char *line)
{
    char *train = strstr(line, " | "), *valid;

    *train = 0;
    train += 3;
    valid = strstr(train, " | ");
    *valid = 0;
    Plan *p = plan_of(line);
    check_set(line, data_open(forever, p, "data.train", DATAshuffle), train);
    check_set(line, data_open(forever, p, "data.valid", 0), valid + 3);
}

static void test_orders(void **state)
{
    (void)state;
    assert_true(each_line("case", check_case) >= 17);
}

/* What the step's inputs hold is those samples, labels one token on. */
static void test_inputs(void **state)
{
    Plan *p = plan_of("seed=1 train.steps=30 data.train=3 %/a 1 %/b");
    Data *d = data_open(forever, p, "data.train", DATAshuffle);
    const Role *r = &p->role[0];
    int32_t x[TINYBATCH * TINYSEQ], y[TINYBATCH * TINYSEQ], want[TINYSEQ + 1];

    (void)state;
    for (int64_t step = 0; step < 30; step++)
        for (int64_t micro = 0; micro < 4; micro++) {
            Feed f = data_feed(d, step * data_perstep(d));
            f.fill(f.self, &r->tensor[role_tensor(r, "tokens")], 0, micro, x);
            f.fill(f.self, &r->tensor[role_tensor(r, "labels")], 0, micro, y);
            for (int b = 0; b < TINYBATCH; b++) {
                whole(data_source(d), (step * 4 + micro) * TINYBATCH + b, want);
                assert_memory_equal(x + b * TINYSEQ, want, 4 * TINYSEQ);
                assert_memory_equal(y + b * TINYSEQ, want + 1, 4 * TINYSEQ);
            }
        }
}

/* ---- a blend in our own order -------------------------------------------- */

/* Shares follow the weights, each part's samples come once an epoch, and a
 * blend asked for backwards is the same blend. */
static void test_blend(void **state)
{
    double w[3] = { 0.5, 0.3, 0.2 };
    Blend *b = blend_new(forever, w, 3), *other = blend_new(forever, w, 3);
    int64_t count[3] = { 0 }, within;
    static int set[20000];

    (void)state;
    for (int64_t i = 0; i < 20000; i++) {
        set[i] = blend_at(b, i, &within);
        assert_int_equal(within, count[set[i]]++);
    }
    for (int k = 0; k < 3; k++)
        assert_true(llabs(count[k] - (int64_t)(20000 * w[k])) <= 1);
    for (int64_t i = 19999; i >= 0; i -= 997)
        assert_int_equal(blend_at(other, i, &within), set[i]);
}

static void test_blend_of_files(void **state)
{
    Plan *p = tiny_plan(1, "seed=3");
    int64_t n, at, seen[1000] = { 0 }, of_a = 0;

    (void)state;
    opts_set(p->opts, "data.train", "3 " SETS "/a 1 " SETS "/d", NULL);
    Data *d = data_open(forever, p, "data.train", DATAshuffle);
    const Samples *s = data_source(d);
    for (int64_t i = 0; of_a < s->part[0].n && i < 2 * s->n; i++) {
        SampleReader r = samples_read(s, i, 0, "");
        n = reader_next(&r, &at);
        assert_true(n > TINYSEQ);
        if (r.t == &s->part[0].file[0].t) {
            assert_int_equal(seen[at / TINYSEQ]++, 0);
            of_a++;
        }
    }
    assert_int_equal(of_a, s->part[0].n); /* all once, none twice */
}

/* ---- NumPy --------------------------------------------------------------- */

static void check_shuffle(char *line)
{
    static uint32_t v[100000];
    unsigned seed, want;
    int n;
    NpRandom r;

    assert_int_equal(sscanf(line, "%u %d %x", &seed, &n, &want), 3);
    for (int i = 0; i < n; i++)
        v[i] = (uint32_t)i;
    np_seed(&r, seed);
    np_shuffle(&r, v, n);
    assert_int_equal(crc32(0, (void *)v, (unsigned)n * 4), want);
}

static void check_sum(char *line)
{
    static double v[5000];
    double sum, mid;
    int n;

    assert_int_equal(sscanf(line, "%d %la %la", &n, &sum, &mid), 3);
    for (int i = 0; i < n; i++)
        v[i] = 1 / (double)((i + 3) * (i + 3)) * (i % 7 + 1);
    assert_true(np_sum(v, n) == sum);
    blend_normalize(v, n);
    assert_true(v[n / 2] == mid);
}

static void test_numpy(void **state)
{
    NpRandom r;

    (void)state;
    np_seed(&r, 5489); /* the generator's published ten thousandth */
    for (int i = 0; i < 9999; i++)
        np_next(&r);
    assert_int_equal(np_next(&r), 4123659995u);
    assert_true(each_line("shuffle", check_shuffle) >= 25);
    assert_true(each_line("sum", check_sum) >= 11);
}

static void test_shares(void **state)
{
    double e[2];

    (void)state;
    assert_int_equal(split_share("969,30,1", 0, e), 1);
    assert_true(e[0] == 0 && e[1] == 0.969);
    assert_int_equal(split_share("969,30,1", 1, e), 1);
    assert_true(e[0] == 0.969 && e[1] == 0.969 + 0.03);
    assert_int_equal(split_share("1", 1, e), 0);
    assert_int_equal(split_share("1,,2", 0, e), -1);
    assert_int_equal(split_share("1,2,3,4", 0, e), -1);
    assert_int_equal(split_share("1,-2", 0, e), -1);
    assert_int_equal(split_share("0,0", 0, e), -1);
    assert_int_equal(split_share("nan", 0, e), -1);
    assert_int_equal(split_share("", 0, e), -1);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_blend),
        cmocka_unit_test(test_blend_of_files),
        cmocka_unit_test(test_numpy),
        cmocka_unit_test(test_shares),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
