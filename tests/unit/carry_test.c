/* carry_test: boxes of elements from one order into another, against a loop
 * that does what the words say: element sizes, orders of axes, sizes that tiles
 * do not divide, any piece of the destination; FP8 with scales; files of
 * tensors of several parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tensors.h"

static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                  { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
static const char *dir;

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char *d = strf(forever, "%s/pleat.carry.XXXXXX", tmp ? tmp : "/tmp");

    (void)state;
    dir = mkdtemp(d);
    return dir ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove(strf(forever, "%s/0", dir));
    remove(strf(forever, "%s/1", dir));
    remove(strf(forever, "%s/from", dir));
    return rmdir(dir);
}

/* n[] in the source's order; the destination has its axes as `order` says. */
static Strided turned(const int64_t n[3], const int order[3], int64_t to[3])
{
    Strided p = { .n = 0 };
    int64_t from[3] = { n[1] * n[2], n[2], 1 }, step = 1;

    for (int d = 2; d >= 0; step *= n[order[d--]])
        to[order[d]] = step;
    for (int d = 0; d < 3; d++)
        strided_loop(&p, n[d], to[d], from[d]);
    strided_merge(&p);
    return p;
}

static uint64_t some(int64_t i)
{
    return ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u >> 24;
}

static void fill(uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint8_t)some(i);
}

static void check_order(const int64_t n[3], const int order[3], int size)
{
    int64_t to[3], all = n[0] * n[1] * n[2];
    Strided p = turned(n, order, to);
    size_t bytes = (size_t)(all * size);
    uint8_t *x = malloc(bytes), *want = malloc(bytes), *y = malloc(bytes);

    fill(x, all * size);
    for (int64_t i = 0; i < all; i++) {
        int64_t at = i / (n[1] * n[2]) * to[0] + i / n[2] % n[1] * to[1] +
                     i % n[2] * to[2];
        memcpy(want + at * size, x + i * size, (size_t)size);
    }
    for (int k = 0; k < 4; k++) {
        int64_t lo = k ? (int64_t)(some(k) % (uint64_t)all) : 0;
        int64_t hi = k ? lo + 1 + (all - lo - 1) * k / 4 : all;
        memset(y, 0, bytes);
        strided_copy(&p, size, x, y + lo * size, lo, hi);
        assert_memory_equal(y + lo * size, want + lo * size,
                            (size_t)((hi - lo) * size));
        for (int64_t i = 0; i < lo * size; i++)
            assert_int_equal(y[i], 0);
    }
    free(x);
    free(y);
    free(want);
}

static void test_orders(void **state)
{
    static const int64_t n[][3] = {
        { 1, 64, 128 }, { 3, 130, 200 }, { 5, 7, 9 },
        { 64, 1, 65 },  { 2, 256, 64 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int k = 0; k < 6; k++)
            for (int size = 1; size <= 8; size *= 2)
                check_order(n[i], orders[k], size);
}

/* ---- files --------------------------------------------------------------- */

enum { PARTS = 3, ROWS = 700, COLS = 670 }; /* files of several pieces */

/* PARTS matrices of a source, each at its place in one tensor [part, .., ..];
 * flip: turned on the way. */
static OutTensor cargo(const char *name, const View *v, int bytes, int flip)
{
    OutTensor c = { .st = { .name = name,
                            .dt = v->scale ? FTF32 : v->dt,
                            .nd = 3,
                            .n = { PARTS, flip ? COLS : ROWS,
                                   flip ? ROWS : COLS },
                            .bytes = v->scale ? 4 : bytes },
                    .from = v->dt };

    for (int i = 0; i < PARTS; i++) {
        Share s = { .v = *v };
        s.v.data += i * ROWS * COLS * bytes;
        s.p.to = i * ROWS * COLS;
        strided_loop(&s.p, ROWS, flip ? 1 : COLS, COLS);
        strided_loop(&s.p, COLS, flip ? ROWS : 1, 1);
        strided_merge(&s.p);
        vec_push(forever, c.part, s);
    }
    return c;
}

static void check_cargo(const StFile *f, const OutTensor *c, int flip)
{
    const StTensor *t = st_find(f, c->st.name);

    assert_non_null(t);
    for (int64_t i = 0; i < PARTS * ROWS * COLS; i++) {
        int64_t in = i % (ROWS * COLS);
        int64_t at = flip ? in % ROWS * COLS + in / ROWS : in;
        double want = view_get(&c->part[i / (ROWS * COLS)].v, at);
        double got = st_get(t->dt, f->data + t->begin, i);
        if (got != (c->part->v.scale ? (double)(float)want : want) &&
            !(got != got && want != want))
            fail_msg("%s: element %lld is %g, not %g", c->st.name, (long long)i,
                     got, want);
    }
}

static StFile *opened(const char *path)
{
    StFile *f = NULL;
    const char *why = st_open(forever, path, &f);

    if (why)
        fail_msg("%s", why);
    return f;
}

/* Two files, one of them with the hashes of its pieces beside. */
static void test_files(void **state)
{
    enum { N = PARTS * ROWS * COLS, BLOCKS = 6 * 6 };
    static uint8_t made[N * 2];
    static float scale[BLOCKS];
    const char *path = strf(forever, "%s/from", dir);
    int64_t size = 0;

    (void)state;
    fill(made, sizeof made);
    assert_int_equal(file_write(path, made, sizeof made), 0);
    const uint8_t *data = file_map(path, &size, 0);
    assert_non_null(data);
    View bf16 = { .data = data, .dt = FTBF16 };
    View f8 = { .data = data, .dt = FTF8_E4M3, .scale = scale, .cols = COLS };
    OutTensor *out = NULL;

    for (int i = 0; i < BLOCKS; i++)
        scale[i] = 0.37f * (float)(i + 1);
    for (int k = 0; k < 4; k++) {
        static const char *const name[] = { "a", "b", "c", "d" };
        OutTensor c = cargo(name[k], k / 2 ? &f8 : &bf16, k / 2 ? 1 : 2, k % 2);
        c.file = k % 2;
        vec_push(forever, out, c);
    }
    Pool *pool = pool_open(2);
    for (int k = 0; k < 2; k++)
        assert_null(tensors_write(forever, pool, out, k,
                                  strf(forever, "%s/%d", dir, k),
                                  k ? PWhashed : PWplain));
    pool_close(pool);
    assert_non_null(pieces_kept(forever, strf(forever, "%s/1", dir)));
    pieces_remove(forever, strf(forever, "%s/1", dir));
    for (int k = 0; k < 4; k++) {
        StFile *f = opened(strf(forever, "%s/%d", dir, k % 2));
        check_cargo(f, &out[k], k % 2);
        st_close(f);
    }
}

/* A whole tensor as it is: from a file that is mapped. */
static void test_whole(void **state)
{
    StFile *f = opened(strf(forever, "%s/0", dir));
    const StTensor *t = st_find(f, "c");
    Share s = { .v = { .data = f->data + t->begin, .dt = t->dt } };
    OutTensor c = { .st = *t, .from = t->dt }, *out = NULL;

    (void)state;
    strided_loop(&s.p, st_elems(t), 1, 1);
    vec_push(forever, c.part, s);
    vec_push(forever, out, c);
    Pool *pool = pool_open(1);
    assert_null(tensors_write(forever, pool, out, 0, strf(forever, "%s/1", dir),
                              PWplain));
    pool_close(pool);
    StFile *g = opened(strf(forever, "%s/1", dir));
    const StTensor *u = st_find(g, "c");
    assert_non_null(u);
    assert_memory_equal(f->data + t->begin, g->data + u->begin,
                        (size_t)(t->end - t->begin));
    st_close(f);
    st_close(g);
}

int main(void)
{
    /* clang-format off */
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_whole),
    };
    /* clang-format on */

    return cmocka_run_group_tests_name("carry", tests, setup, teardown);
}
