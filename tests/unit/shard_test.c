/* shard_test: runs of buckets. Parameters lie one after another in a bucket
 * that the data parallel ranks share in equal runs; a run begins and ends
 * anywhere, in the middle of a row, across parameters, behind the last one.
 * What tensor_runs and view_load say is compared with the definition, element
 * by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../../runtime/runtime.h"

enum { WORLD = 8, MAXBUF = 256, MAXELEMS = 4096 };

/* By tensor of the bucket and global element: how many ranks own it. */
typedef struct Seen {
    int64_t place[MAXELEMS]; /* on this rank; -1: not here */
    int owned[MAXELEMS];
    int owner;
} Seen;

static void see(void *ctx, int64_t global, int64_t local, int64_t n)
{
    Seen *s = ctx;

    assert_true(n > 0);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(s->place[global + i], -1);
        s->place[global + i] = local + i;
        s->owned[global + i] += s->owner;
    }
}

/* The global element of local element i, or -1: padding. */
static int64_t global_of(const Mesh *m, const Tensor *t, int64_t rank,
                         int64_t i)
{
    int64_t at[MAXD], g = 0;

    for (int d = t->nd - 1; d >= 0; i /= dim_held(&t->dim[d]), d--)
        at[d] = tensor_at(m, &t->dim[d], rank, i % dim_held(&t->dim[d]));
    for (int d = 0; d < t->nd; d++) {
        if (at[d] >= t->dim[d].n)
            return -1;
        g = g * t->dim[d].n + at[d];
    }
    return g;
}

/* Every element where the definition has it; its value there. */
static void check_rank(const Mesh *m, const Tensor *t, int64_t rank,
                       const Seen *s, const double *buf)
{
    int64_t pos = mesh_pos(m, t->shard, rank), found = 0, placed = 0;

    for (int64_t i = 0; i < tensor_held(t); i++) {
        int64_t g = global_of(m, t, rank, i), e = t->at + i;
        int here = !t->run || (e >= pos * t->run && e < (pos + 1) * t->run);
        if (g < 0 || !here)
            continue;
        assert_int_equal(s->place[g], t->run ? e - pos * t->run : e);
        assert_true(buf[s->place[g]] == (double)g + 0.5);
        found++;
    }
    for (int64_t g = 0; g < tensor_elems(t); g++)
        placed += s->place[g] >= 0;
    assert_int_equal(placed, found);
}

static void check_bucket(const Mesh *m, Tensor *t, int n)
{
    static Seen seen[8];
    double source[MAXELEMS];

    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < MAXELEMS; i++)
        source[i] = (double)i + 0.5;
    for (int64_t rank = 0; rank < m->world; rank++) {
        double all[MAXBUF];
        for (int64_t i = 0; i < MAXBUF; i++)
            all[i] = -1;
        for (int k = 0; k < n; k++) {
            double buf[MAXBUF] = { 0 };
            View v = { .data = (uint8_t *)source, .dt = FTF64 };
            int64_t step = 1;
            for (int d = t[k].nd - 1; d >= 0; step *= t[k].dim[d--].n)
                v.stride[d] = step, v.fix[d] = -1;
            view_load(m, &t[k], rank, &v, buf);
            memset(seen[k].place, -1, sizeof seen[k].place);
            seen[k].owner = tensor_owner(m, &t[k], rank);
            tensor_runs(m, &t[k], rank, see, &seen[k]);
            check_rank(m, &t[k], rank, &seen[k], buf);
            for (int64_t g = 0; g < tensor_elems(&t[k]); g++) {
                int64_t at = seen[k].place[g];
                assert_true(at < 0 || (at < MAXBUF && all[at] < 0));
                if (at >= 0)
                    all[at] = k;
            }
        }
    }
    for (int k = 0; k < n; k++)
        for (int64_t g = 0; g < tensor_elems(&t[k]); g++)
            assert_int_equal(seen[k].owned[g], 1);
}

static PlanDim dim(const char *axis, int64_t n, int atom, int64_t len)
{
    PlanDim d = { axis, ROLEnone, n, 1, alloc(forever, sizeof(Piece)) };

    d.piece[0] = (Piece){ aff(0), len };
    if (atom >= 0)
        d.piece[0].start.k[atom] = len;
    return d;
}

static int atom_of(const Mesh *m, MeshAxis a)
{
    return __builtin_ctz(m->mask[a]);
}

/* a [5 7] over tp with padding, b [4], c [12 5] in two pieces over tp. */
static void fill_bucket(const Mesh *m, Tensor *t, int64_t ranks, uint32_t over)
{
    int tp = atom_of(m, Mtp);
    int64_t at = 0;
    Piece *zig = alloc(forever, 2 * sizeof *zig);

    zig[0] = (Piece){ aff(0), 3 };
    zig[1] = (Piece){ aff(9), 3 };
    zig[0].start.k[tp] = 3;
    zig[1].start.k[tp] = -3;
    for (int i = 0; i < 3; i++)
        t[i] = (Tensor){ .name = &"abc"[i],
                         .kind = TKmoment,
                         .dt = Df64,
                         .nd = 2,
                         .shard = over };
    t[0].dim[0] = dim("rows", 5, tp, 3);
    t[0].dim[1] = dim("columns", 7, -1, 7);
    t[1].nd = 1;
    t[1].dim[0] = dim("rows", 4, -1, 4);
    t[2].dim[0] = (PlanDim){ "rows", ROLEnone, 12, 2, zig };
    t[2].dim[1] = dim("columns", 5, -1, 5);
    for (int i = 0; i < 3; i++) {
        t[i].at = at;
        at += tensor_held(&t[i]);
    }
    for (int i = 0; i < 3; i++)
        t[i].run = (at + ranks - 1) / ranks;
}

static Mesh *mesh(void)
{
    int64_t size[NMESH] = { [Mtp] = 2 };

    return mesh_new(forever, WORLD, size, "tp-cp-dp-pp", NULL);
}

/* 55 elements over 4 ranks, 14 each: runs end inside rows, c crosses three. */
static void test_runs_cross_rows_and_parameters(void **state)
{
    Mesh *m = mesh();
    Tensor t[3];

    (void)state;
    fill_bucket(m, t, 4, m->mask[Mdp]);
    assert_int_equal(t[2].at, 25);
    assert_int_equal(t[2].run, 14);
    check_bucket(m, t, 3);
}

/* b over tp too, where it is replicated, and alone: some ranks have nothing. */
static void test_runs_may_be_empty(void **state)
{
    Mesh *m = mesh();
    Tensor t = { .name = "b",
                 .kind = TKmoment,
                 .dt = Df64,
                 .nd = 1,
                 .run = 1,
                 .shard = m->mask[Mdp] | m->mask[Mtp] };

    (void)state;
    t.dim[0] = dim("rows", 4, -1, 4);
    check_bucket(m, &t, 1);
    t.dim[0] = dim("rows", 3, -1, 3);
    t.at = 2;
    t.run = 3;
    check_bucket(m, &t, 1);
}

/* The parameters themselves lie whole behind each other; only some of the data
 * parallel ranks share a run (hybrid sharding). */
static void test_whole_and_hybrid(void **state)
{
    Mesh *m = mesh();
    Tensor t[3];
    uint32_t half = 0;

    (void)state;
    fill_bucket(m, t, 4, m->mask[Mdp]);
    for (int i = 0; i < 3; i++)
        t[i].run = 0;
    check_bucket(m, t, 3);
    int64_t size[NMESH] = { [Mtp] = 2, [Mep] = 4 };
    m = mesh_new(forever, WORLD, size, "tp-cp-dp-pp", NULL);
    half = m->mask[Mdp] & m->mask[Mep];
    assert_int_equal(mesh_extent(m, half), 2);
    fill_bucket(m, t, 2, half);
    check_bucket(m, t, 3);
}

/* Of two stages only the first owns; its ranks as any others. */
static void test_copies_are_not_owned(void **state)
{
    Mesh *m = mesh();
    Tensor t = { .name = "e", .kind = TKcopy, .dt = Df64, .nd = 1 };

    (void)state;
    t.dim[0] = dim("rows", 4, -1, 4);
    for (int64_t r = 0; r < WORLD; r++)
        assert_false(tensor_owner(m, &t, r));
    t.kind = TKparam;
    check_bucket(m, &t, 1);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_cross_rows_and_parameters),
        cmocka_unit_test(test_runs_may_be_empty),
        cmocka_unit_test(test_whole_and_hybrid),
        cmocka_unit_test(test_copies_are_not_owned),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
