/* mesh_test.c: atoms against the formulas of both grids, for every fold of up
 * to 24 ranks; what is refused is refused for a reason that the brute force
 * sees too, and the value it proposes is legal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/plan/plan.h"

enum { RANKS = 24 };

static jmp_buf heard;
static char message[4096];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static Mesh *try_mesh(Arena *a, int64_t world, const int64_t *size,
                      const char *order)
{
    Mesh *volatile m = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        m = mesh_new(a, world, size, order, NULL);
    err_hook = NULL;
    return m;
}

/* Running products of one grid without pp, all that divide one another? */
static int has_atoms(const int64_t *dense, const int64_t *expert)
{
    int64_t d = 1, cut[7], n = 0;

    for (int i = 0; i < 3; i++)
        cut[n++] = d *= dense[i];
    d = 1;
    for (int i = 0; i < 3; i++)
        cut[n++] = d *= expert[i];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (cut[i] % cut[k] && cut[k] % cut[i])
                return 0;
    return 1;
}

/* rank = x0 + n0 (x1 + n1 (x2 + n2 x3)): the coordinates. */
static void coordinates(int64_t rank, const int64_t n[4], int64_t x[4])
{
    for (int i = 0; i < 4; i++) {
        x[i] = rank % n[i];
        rank /= n[i];
    }
}

static void same_as_formula(const Mesh *m)
{
    static const MeshAxis grid[2][4] = { { Mtp, Mcp, Mdp, Mpp },
                                         { Metp, Mep, Medp, Mpp } };

    for (int g = 0; g < 2; g++) {
        int64_t n[4], x[4], y[4], ranks[RANKS];
        for (int i = 0; i < 4; i++)
            n[i] = m->size[grid[g][i]];
        for (int64_t r = 0; r < m->world; r++) {
            coordinates(r, n, x);
            for (int i = 0; i < 4; i++) {
                uint32_t mask = m->mask[grid[g][i]];
                assert_int_equal(mesh_extent(m, mask), n[i]);
                assert_int_equal(mesh_pos(m, mask, r), x[i]);
                mesh_group(m, mask, r, ranks);
                assert_int_equal(ranks[x[i]], r);
                for (int64_t k = 0; k < n[i]; k++) {
                    coordinates(ranks[k], n, y);
                    for (int q = 0; q < 4; q++)
                        assert_int_equal(y[q], q == i ? k : x[q]);
                }
            }
        }
    }
}

/* The ranks of ep hold n elements that ep does not divide: each once, by their
 * places, and no two ranks numbers that differ by more than one. */
static void holds_all(const Mesh *m, int64_t n)
{
    int64_t ep = m->size[Mep], ranks[RANKS], few = n, most = 0;
    int seen[3 * RANKS] = { 0 };
    Piece p[2];

    mesh_group(m, m->mask[Mep], 0, ranks);
    uneven_pieces(m, n, m->mask[Mep], p);
    for (int64_t k = 0; k < ep; k++) {
        int64_t place = k * (n / ep + 1), have = 0;
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < p[i].len; j++, place++) {
                int64_t x = aff_at(m, &p[i].start, ranks[k]) + j;
                if (x >= n)
                    continue;
                assert_int_equal(uneven_place(n, ep, x), place);
                assert_int_equal(seen[x]++, 0);
                have++;
            }
        few = have < few ? have : few;
        most = have > most ? have : most;
    }
    for (int64_t x = 0; x < n; x++)
        assert_int_equal(seen[x], 1);
    assert_int_equal(most - few, 1);
}

/* The proposal after "nearest legal: " is one. */
static int proposal_works(Arena *a, int64_t world, const int64_t *size)
{
    const char *s = strstr(message, "nearest legal: ");
    int64_t n[NMESH];

    memcpy(n, size, sizeof n);
    if (!s)
        return 1;
    s += 15;
    for (int i = 0; i < NMESH; i++) {
        size_t len = strlen(meshnames[i]);
        if (!strncmp(s, meshnames[i], len) && s[len] == '=')
            n[i] = atoll(s + len + 1);
    }
    return try_mesh(a, world, n, "tp-cp-dp-pp") != NULL;
}

static int one_fold(int64_t W, int64_t tp, int64_t cp, int64_t pp, int64_t etp,
                    int64_t ep)
{
    Arena *a = arena_new();
    int64_t size[NMESH] = {
        [Mtp] = tp, [Mcp] = cp, [Mpp] = pp, [Metp] = etp, [Mep] = ep
    };
    int64_t dense[] = { tp, cp, 0 }, expert[] = { etp, ep, 0 };
    int want = W % (tp * cp * pp) == 0 && W % (etp * ep * pp) == 0;

    if (want) {
        dense[2] = W / (tp * cp * pp);
        expert[2] = W / (etp * ep * pp);
        want = has_atoms(dense, expert);
    }
    Mesh *m = try_mesh(a, W, size, "tp-cp-dp-pp");
    if (!m != !want)
        fail_msg("W=%d tp=%d cp=%d pp=%d etp=%d ep=%d: %s", (int)W, (int)tp,
                 (int)cp, (int)pp, (int)etp, (int)ep, m ? "taken" : message);
    if (m)
        same_as_formula(m);
    for (int64_t n = ep + 1; m && n < 3 * ep; n++)
        if (n % ep)
            holds_all(m, n);
    if (!m)
        assert_true(proposal_works(a, W, size));
    arena_free(a);
    return want;
}

static void all_folds(void **state)
{
    (void)state;
    int legal = 0, all = 0;

    for (int64_t W = 1; W <= RANKS; W++)
        for (int64_t tp = 1; tp <= W && tp <= 8; tp++)
            for (int64_t cp = 1; cp <= 4; cp++)
                for (int64_t pp = 1; pp <= 3; pp++)
                    for (int64_t etp = 1; etp <= 3; etp++)
                        for (int64_t ep = 1; ep <= W && ep <= 8; ep++, all++)
                            legal += one_fold(W, tp, cp, pp, etp, ep);
    print_message("# %d of %d folds are legal\n", legal, all);
    assert_in_range(legal, 500, all / 2);
}

/* Megatron's other orders: pp inside, ep before tp. */
static void orders(void **state)
{
    (void)state;
    int64_t size[NMESH] = { [Mtp] = 2, [Mpp] = 2, [Metp] = 2, [Mep] = 2 };
    int64_t ranks[16];
    Mesh *m = try_mesh(forever, 16, size, "tp-cp-pp-dp");

    assert_non_null(m);
    mesh_group(m, m->mask[Mpp], 5, ranks);
    assert_int_equal(ranks[0], 5);
    assert_int_equal(ranks[1], 7);
    mesh_group(m, m->mask[Mdp], 1, ranks);
    assert_int_equal(ranks[3], 13);
    mesh_group(m, m->mask[Mep], 0, ranks);
    assert_int_equal(ranks[1], 4);
    m = try_mesh(forever, 16, size, "ep-tp-cp-dp-pp");
    assert_non_null(m);
    mesh_group(m, m->mask[Mep], 0, ranks);
    assert_int_equal(ranks[1], 1);
    size[Metp] = 1;
    assert_null(try_mesh(forever, 16, size, "tp-cp-pp-dp"));
    assert_non_null(strstr(message, "pipeline stages differ"));
}

static const struct {
    int64_t world, tp, cp, dp, pp, etp, ep;
    /* clang-format off */
    const char *order, *said;
} refused[] = {
    { 8, 3, 0, 0, 0, 0, 0, NULL, "tp*cp*pp = 3*1*1 = 3 does not divide the 8 "
      "ranks of the world (nearest legal: tp=2)" },
    { 8, 2, 0, 3, 0, 0, 0, NULL, "tp*cp*pp*dp = 2*1*1*3 = 6, but the world has "
      "8 ranks (nearest legal: dp=4)" },
    { 8, 0, 0, 0, 0, 0, 5, NULL, "etp*ep*pp = 1*5*1 = 5 does not divide the 8 "
      "ranks of the world (nearest legal: ep=4)" },
    { 12, 4, 0, 0, 0, 0, 6, NULL, "cut a stage at 4 and at 6 ranks, which do "
      "not divide each other (nearest legal: tp=3, or ep=4)" },
    { -1, 0, 0, 0, 0, 0, 0, NULL, "world: -1 is not between" },
    { 8, -2, 0, 0, 0, 0, 0, NULL, "tp: -2 is not between" },
    { 0, 1 << 20, 0, 1 << 20, 0, 0, 0, NULL, "more than 16777216 ranks" },
    { 8, 0, 0, 0, 0, 0, 0, "tp-cp-dp", "lacks 'pp'" },
    { 8, 0, 0, 0, 0, 0, 0, "tp-cp-dp-pp-tp", "names 'tp' twice" },
    { 8, 0, 0, 0, 0, 0, 0, "tp-cp-dq-pp", "'dq' is not one of" },
    { 8, 0, 0, 0, 0, 0, 0, "tp-cp-dp-pp-", "'' is not one of" },
};
/* clang-format on */

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        /* clang-format off */
        int64_t size[NMESH] = {
            [Mtp] = refused[i].tp, [Mcp] = refused[i].cp,
            [Mdp] = refused[i].dp, [Mpp] = refused[i].pp,
            [Metp] = refused[i].etp, [Mep] = refused[i].ep,
        };
        /* clang-format on */
        const char *order = refused[i].order ? refused[i].order : "tp-cp-dp-pp";
        assert_null(try_mesh(forever, refused[i].world, size, order));
        if (!strstr(message, refused[i].said))
            fail_msg("said %s, not %s", message, refused[i].said);
    }
}

static void defaults(void **state)
{
    (void)state;
    int64_t size[NMESH] = { [Mtp] = 2, [Mep] = 8 };
    Mesh *m = try_mesh(forever, 0, size, "tp-cp-dp-pp");

    assert_int_equal(m->world, 8);
    assert_int_equal(m->size[Mdp], 4);
    assert_int_equal(m->size[Medp], 1);
    int64_t none[NMESH] = { 0 };
    assert_int_equal(try_mesh(forever, 0, none, "tp-cp-dp-pp")->natom, 0);
}

static void affine(void **state)
{
    (void)state;
    int64_t size[NMESH] = { [Mtp] = 2, [Mep] = 4 };
    Mesh *m = try_mesh(forever, 8, size, "tp-cp-dp-pp");
    RankAffine x = aff(100);

    x.k[0] = 1, x.k[1] = -10, x.k[2] = 7;
    for (int64_t r = 0; r < 8; r++)
        assert_int_equal(aff_at(m, &x, r),
                         100 + r % 2 - 10 * (r / 2 % 2) + 7 * (r / 4));
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_folds),
        cmocka_unit_test(orders),
        cmocka_unit_test(refusals),
        cmocka_unit_test(defaults),
        cmocka_unit_test(affine),
    };
    /* clang-format on */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
