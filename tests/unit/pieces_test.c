/* pieces_test: what ranks hold of an axis, and how it gets from one type to
 * another. In meshes of every rank order, with and without zigzag: the pieces
 * of a group cover an axis once; a causal mask leaves all ranks of cp equal
 * work, in each round of a ring too; and from random types to random types the
 * collectives that reshard_step() names, with the integers that the compiler
 * gives them, leave each rank what the type says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "../../codegen/codegen.h"
#include "../../runtime/runtime.h"

enum { RANKS = 16, H = 8, SEQ = 32, D = 8, ALL = H * SEQ * D, TRIES = 240 };

typedef struct Fold {
    int64_t tp, cp, dp, ep;
    const char *order;
} Fold;

/* clang-format off */
static const Fold folds[] = {
    { 2, 2, 2, 0, "tp-cp-dp-pp" },     { 2, 2, 2, 0, "cp-tp-dp-pp" },
    { 1, 4, 2, 2, "tp-cp-dp-pp" },     { 2, 4, 1, 4, "tp-cp-dp-pp" },
    { 2, 4, 2, 4, "dp-cp-tp-pp" },     { 4, 2, 2, 0, "cp-dp-tp-pp" },
    { 1, 8, 1, 4, "tp-cp-dp-pp" },     { 2, 4, 2, 8, "dp-tp-cp-pp" },
};
/* clang-format on */
enum { NFOLD = sizeof folds / sizeof *folds };

static Mesh *mesh_for(const Fold *f)
{
    int64_t size[NMESH] = {
        [Mtp] = f->tp, [Mcp] = f->cp, [Mdp] = f->dp, [Mep] = f->ep
    };

    return mesh_new(forever, f->tp * f->cp * f->dp, size, f->order, NULL);
}

static uint64_t state = 1;

static int64_t pick(int64_t n)
{
    state = mix64(state, 1);
    return (int64_t)(state >> 33) % n;
}

/* ---- values -------------------------------------------------------------- */

typedef struct World {
    Graph *g;
    Axis *h, *seq, *d;
    double *at[RANKS], *to[RANKS]; /* ranks' parts, before and after */
} World;

static World *world_for(const Fold *f, int zigzag)
{
    World *w = alloc(forever, sizeof *w);

    w->g = g_new(forever, "pieces");
    w->g->mesh = mesh_for(f);
    w->h = g_axis(w->g, "h");
    w->seq = g_axis(w->g, "seq");
    w->d = g_axis(w->g, "d");
    w->seq->zigzag = zigzag;
    for (int r = 0; r < RANKS; r++) {
        w->at[r] = alloc(forever, ALL * sizeof *w->at[r]);
        w->to[r] = alloc(forever, ALL * sizeof *w->to[r]);
    }
    return w;
}

static Node *tensor(World *w, const Shard *t)
{
    Node *n = g_node(w->g, Oinput, NULL, 0, NULL);

    n->at.input.name = n->name = "x";
    n->dt = Df64;
    n->nd = 3;
    n->dim[0] = (Dim){ w->h, H };
    n->dim[1] = (Dim){ w->seq, SEQ };
    n->dim[2] = (Dim){ w->d, D };
    n->sh = g_type(w->g, t);
    return n;
}

/* Global index of element i of the dim on a rank. */
static int64_t global(const World *w, const Node *n, int d, int64_t rank,
                      int64_t i)
{
    Piece p[MAXPIECE];
    int np = pieces(w->g, n, d, p), k = 0;

    while (k + 1 < np && i >= p[k].len)
        i -= p[k++].len;
    assert_true(i < p[k].len);
    return aff_at(w->g->mesh, &p[k].start, rank) + i;
}

/* Of a partial sum the first rank has all. */
static int has_none(const World *w, const Shard *t, int64_t rank)
{
    for (int i = 0; i < w->g->mesh->natom; i++)
        if (t[i].k == P && mesh_coord(w->g->mesh, rank, i))
            return 1;
    return 0;
}

static int64_t expected(const World *w, const Node *n, int64_t rank, double *v)
{
    int64_t a = local_n(w->g, n, 0), b = local_n(w->g, n, 1);
    int64_t c = local_n(w->g, n, 2);

    for (int64_t i = 0; i < a * b * c; i++) {
        int64_t x = global(w, n, 0, rank, i / (b * c));
        int64_t y = global(w, n, 1, rank, i / c % b);
        int64_t z = global(w, n, 2, rank, i % c);
        v[i] =
            has_none(w, n->sh, rank) ? 0 : 1 + (double)((x * SEQ + y) * D + z);
    }
    return a * b * c;
}

/* ---- what is held -------------------------------------------------------- */

static Shard along(Axis *a)
{
    return (Shard){ S, Radd, a };
}

static void test_cover(void **unused)
{
    (void)unused;
    for (int f = 0; f < NFOLD * 2; f++) {
        World *w = world_for(&folds[f / 2], f % 2);
        Shard t[MAXATOM] = { 0 };
        const Mesh *m = w->g->mesh;
        for (int i = 0; i < m->natom; i++)
            if ((m->mask[Mcp] | m->mask[Mtp]) >> i & 1)
                t[i] = along(w->seq);
        Node *n = tensor(w, t);
        int seen[SEQ] = { 0 };
        for (int64_t r = 0; r < m->world; r++)
            for (int64_t i = 0; i < local_n(w->g, n, 1); i++)
                seen[global(w, n, 1, r, i)]++;
        for (int i = 0; i < SEQ; i++)
            assert_int_equal(seen[i], m->size[Mdp]);
    }
}

/* Pairs of a query of one rank and a key of another that it sees. */
static int64_t visible(const World *w, const Node *n, int64_t q, int64_t k)
{
    int64_t sum = 0, len = local_n(w->g, n, 1);

    for (int64_t i = 0; i < len; i++)
        for (int64_t j = 0; j < len; j++)
            sum += global(w, n, 1, k, j) <= global(w, n, 1, q, i);
    return sum;
}

static void test_balance(void **unused)
{
    (void)unused;
    for (int f = 0; f < NFOLD; f++) {
        World *w = world_for(&folds[f], 1);
        Shard t[MAXATOM] = { 0 };
        const Mesh *m = w->g->mesh;
        for (int i = 0; i < m->natom; i++)
            if (m->mask[Mcp] >> i & 1)
                t[i] = along(w->seq);
        Node *n = tensor(w, t);
        int64_t C = m->size[Mcp], L = SEQ / (2 * C), ranks[RANKS];
        mesh_group(m, m->mask[Mcp], 0, ranks);
        for (int64_t p = 0; p < C; p++)
            for (int64_t s = 0; s < C; s++)
                assert_int_equal(
                    visible(w, n, ranks[p], ranks[(p + C - s) % C]),
                    2 * L * L + (s ? 0 : L));
        w->seq->zigzag = 0;
        assert_true(visible(w, n, ranks[0], ranks[C - 1]) == 0);
    }
}

/* ---- what collectives leave ---------------------------------------------- */

static void run_group(World *w, const Node *n, const Instr *s, int64_t rank)
{
    int64_t ranks[RANKS];
    const Mesh *m = w->g->mesh;
    int64_t g = mesh_extent(m, s->atoms);
    Part part[RANKS];
    Comm local = { .name = "local", .world = g, .n = g };
    Pool *p = pool_open(1);

    mesh_group(m, s->atoms, rank, ranks);
    for (int64_t i = 0; i < g; i++)
        part[i] = (Part){ .send = w->at[ranks[i]], .recv = w->to[ranks[i]] };
    comm_run(&local, p,
             &(Coll){ .instr = s, .size = g, .ranks = ranks, .part = part });
    pool_close(p);
    (void)n;
}

static void run_collective(World *w, Node *x, Node *n)
{
    Group k = { .fam = FAMcomm, .node = &n, .n = 1 };

    n->in = &x;
    n->nin = 1;
    T_host.lower(w->g, &k, forever);
    for (int64_t r = 0; r < w->g->mesh->world; r++)
        if (mesh_pos(w->g->mesh, k.instr.atoms, r) == 0)
            run_group(w, n, &k.instr, r);
}

/* A slice: all of it is there already. */
static void run_slice(World *w, const Node *x, const Node *n)
{
    for (int64_t r = 0; r < w->g->mesh->world; r++) {
        int64_t have = expected(w, x, r, w->at[r]);
        int64_t want = expected(w, n, r, w->to[r]);
        for (int64_t i = 0; i < want; i++) {
            int64_t j = 0;
            while (j < have && w->at[r][j] != w->to[r][i])
                j++;
            assert_true(j < have);
        }
    }
}

static void check(World *w, const Node *n)
{
    double *want = alloc(forever, ALL * sizeof *want);

    for (int64_t r = 0; r < w->g->mesh->world; r++) {
        int64_t e = expected(w, n, r, want);
        assert_memory_equal(w->to[r], want, (size_t)e * sizeof *want);
    }
}

static int legal(const World *w, const Shard *t)
{
    Node n = *tensor((World *)w, t);

    for (int d = 0; d < 3; d++) {
        uint32_t atoms = 0;
        for (int i = 0; i < w->g->mesh->natom; i++)
            if (t[i].k == S && t[i].a == n.dim[d].a)
                atoms |= 1u << i;
        if (n.dim[d].n % cut_parts(w->g->mesh, n.dim[d].a, atoms))
            return 0;
    }
    return 1;
}

static void random_type(const World *w, Shard *t, int partial)
{
    do {
        memset(t, 0, MAXATOM * sizeof *t);
        for (int i = 0; i < w->g->mesh->natom; i++) {
            Axis *axis[] = { w->seq, w->seq, w->h, w->d };
            int64_t k = pick(5 + partial);
            if (k < 4)
                t[i] = along(axis[k]);
            else if (k == 5)
                t[i] = (Shard){ P, Radd, NULL };
        }
    } while (!legal(w, t));
}

static void walk(World *w, int *steps)
{
    Shard t[MAXATOM], want[MAXATOM];
    Reshard r;

    random_type(w, t, 1);
    random_type(w, want, 0);
    Node *x = tensor(w, t);
    while (reshard_step(w->g->mesh, t, want, &r)) {
        Node *n = tensor(w, t);
        n->op = r.op;
        reshard_attrs(n, &r);
        for (int64_t k = 0; k < w->g->mesh->world; k++)
            expected(w, x, k, w->at[k]);
        if (r.op == Oshard_slice)
            run_slice(w, x, n);
        else
            run_collective(w, x, n);
        check(w, n);
        steps[r.op]++;
        x = n;
    }
}

static void test_repairs(void **unused)
{
    int steps[NNAMED] = { 0 };

    (void)unused;
    for (int f = 0; f < NFOLD * 2; f++) {
        World *w = world_for(&folds[f / 2], f % 2);
        for (int i = 0; i < TRIES / NFOLD; i++)
            walk(w, steps);
    }
    print_message("# %d gathers, %d reduce-scatters, %d all-to-alls\n",
                  steps[Oallgather], steps[Oreducescatter], steps[Oalltoall]);
    assert_true(steps[Oallgather] > 100 && steps[Oreducescatter] > 50 &&
                steps[Oalltoall] > 100 && steps[Oshard_slice] > 50);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cover),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_repairs),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
