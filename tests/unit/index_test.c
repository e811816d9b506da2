/* index_test: the index of a checkpoint whose files are hashed in pieces: a bit
 * anywhere, pieces in another order or a byte less are refused; an index of
 * before, with hashes of whole files, is good. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tensors.h"

enum { PIECE = 4 << 20, BYTES = 2 * PIECE + 12345 };

static const char *dir;
static const State state0 = { .step = 7, .plan = "x" };

/* A file of one tensor of bytes in disorder. */
static void tensor_file(const char *path)
{
    StTensor t = {
        .name = "w", .dt = FTU8, .bytes = 1, .nd = 1, .n = { BYTES }
    };
    int64_t total = 0, size = 0;
    size_t len = 0;
    char *head = st_header(forever, &t, 1, &len, &total);
    uint64_t v = 1;

    assert_null(ckpt_layout(forever, path, head, len, total));
    uint8_t *map = file_map(path, &size, 1);
    assert_non_null(map);
    for (int64_t i = (int64_t)len; i < size; i++) {
        v = v * 6364136223846793005u + 1442695040888963407u;
        map[i] = (uint8_t)(v >> 56);
    }
}

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char *ckpt = strf(forever, "%s/pleat.index.XXXXXX", tmp ? tmp : "/tmp");
    (void)state;
    if (!mkdtemp(ckpt))
        return -1;
    char *part = ckpt_folder(forever, ckpt, state0.step);
    if (ckpt_begin(forever, ckpt, part))
        return -1;
    tensor_file(strf(forever, "%s/model.safetensors", part));
    tensor_file(strf(forever, "%s/optim.safetensors", part));
    dir = strf(forever, "%s/step-00000007", ckpt);
    Pool *pool = pool_open(2);
    const char *why = ckpt_end(forever, pool, ckpt, part, &state0, NULL);
    pool_close(pool);
    return why ? -1 : 0;
}

static int teardown(void **state)
{
    static const char *const names[] = { "model.safetensors", "state.json",
                                         "optim.safetensors", "index", "." };
    (void)state;
    for (int i = 0; i < 5; i++)
        remove(strf(forever, "%s/%s", dir, names[i]));
    remove(strf(forever, "%s/../latest", dir));
    rmdir(dir);
    return rmdir(strf(forever, "%.*s", (int)strlen(dir) - 14, dir));
}

static int is_good(void)
{
    State s = { 0 };

    return !ckpt_verify(forever, dir, &s) && s.step == state0.step;
}

static uint8_t *file(const char *name, int64_t *size)
{
    uint8_t *map = file_map(strf(forever, "%s/%s", dir, name), size, 1);

    assert_non_null(map);
    return map;
}

static void test_damage(void **state)
{
    int64_t n = 0;
    uint8_t *p = file("optim.safetensors", &n);
    const int64_t at[] = { PIECE - 1, PIECE, PIECE + 77, 2 * PIECE, n - 1 };

    (void)state;
    assert_true(is_good());
    for (int i = 0; i < 5; i++) {
        p[at[i]] ^= 16;
        assert_false(is_good());
        p[at[i]] ^= 16;
    }
    for (int64_t i = 0; i < PIECE / 2; i++) { /* halves change places */
        uint8_t b = p[PIECE + i];
        p[PIECE + i] = p[3 * PIECE / 2 + i];
        p[3 * PIECE / 2 + i] = b;
    }
    assert_false(is_good());
    for (int64_t i = 0; i < PIECE / 2; i++) {
        uint8_t b = p[PIECE + i];
        p[PIECE + i] = p[3 * PIECE / 2 + i];
        p[3 * PIECE / 2 + i] = b;
    }
    assert_true(is_good());
}

static void put_hash(Text *t, const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);

    put(t, "%016llx%016llx", (unsigned long long)h.high64,
        (unsigned long long)h.low64);
}

static void whole_index(void)
{
    Text t = { .arena = forever };
    int64_t n = 0;

    for (int i = 0; i < NCKPTFILE; i++) {
        uint8_t *p = file(ckptfile[i], &n);
        put_hash(&t, p, (size_t)n);
        put(&t, " %lld %s\n", (long long)n, ckptfile[i]);
    }
    put_hash(&t, t.s, t.len);
    put(&t, "\n");
    assert_int_equal(file_write(strf(forever, "%s/index", dir), t.s, t.len), 0);
}

static void test_index_of_before(void **state)
{
    int64_t n = 0;

    (void)state;
    whole_index();
    assert_true(is_good());
    uint8_t *p = file("model.safetensors", &n);
    p[PIECE + 5] ^= 1;
    assert_false(is_good());
}

/* A later program's: refused by its number, whatever its hashes say. */
static void test_format(void **state)
{
    int64_t n = 0;
    uint8_t *p = file("state.json", &n),
            *at = memmem(p, (size_t)n, "pleat ", 6);
    State s;

    (void)state;
    assert_non_null(at);
    at[6] = '9';
    whole_index();
    const char *why = ckpt_verify(forever, dir, &s);
    assert_non_null(why);
    assert_non_null(strstr(why, "is of checkpoint format 9; Pleat "));
    at[6] = (uint8_t)('0' + format_now(FMTcheckpoint));
    whole_index();
    assert_true(is_good());
}

/* A number of state.json out of range is refused; a seed may be negative. */
static void states(void **state)
{
    static const char *const keys[] = { "step", "tokens", "samples", "skipped",
                                        "seed" };
    static const char *const bad[] = { "-1",
                                       "\"x\"",
                                       "1.5",
                                       "1e3",
                                       "null",
                                       "[]",
                                       "true",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "4611686018427387904" };
    char *home = strf(forever, "%s/ranges", dir);
    State read;

    (void)state;
    assert_int_equal(mkdir(home, 0755), 0);
    for (int k = -1; k < countof(keys); k++)
        for (int b = 0; b < countof(bad); b++) {
            Text t = { .arena = forever };
            put(&t, "{\"format\": \"pleat 1\", \"plan\": \"x\"");
            for (int i = 0; i < countof(keys); i++)
                put(&t, ", \"%s\": %s", keys[i], i == k ? bad[b] : "3");
            put(&t, "}");
            file_write(strf(forever, "%s/state.json", home), t.s, t.len);
            const char *why = ckpt_state(forever, home, &read);
            int seed = k == 4 && (b == 0 || b == 7 || b == 9);
            assert_true(k < 0 || seed ? !why : why != NULL);
        }
    unlink(strf(forever, "%s/state.json", home));
    assert_int_equal(rmdir(home), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(states),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_index_of_before),
    };

    return cmocka_run_group_tests_name("index", tests, setup, teardown);
}
