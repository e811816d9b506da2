/* matrix.c: a dot as matrix products. Its axes are of four kinds: in both
 * operands and the result (batch), in one operand and the result (M, N), in
 * both operands only (K). Axes of a kind that are nested in all three tensors
 * are merged. The result must fit C = A x B with one M, N and K, each matrix
 * contiguous along one of its sides, and at most three outer loops. */
#include "graph.h"

typedef struct Side {
    int64_t n, s[3];
} Side; /* strides in A, B, C */
typedef struct Sides {
    int n;
    Side at[4 * MAXD];
} Sides;

static void collapse(Sides *sides)
{
    for (int p = 0; p < sides->n; p++)
        for (int q = 0; q < sides->n; q++) {
            Side *x = &sides->at[p], *y = &sides->at[q];
            int same = p != q;
            for (int i = 0; i < 3; i++)
                same = same && x->s[i] == y->n * y->s[i];
            if (!same)
                continue;
            y->n *= x->n;
            *x = sides->at[--sides->n];
            p = -1;
            break;
        }
}

enum { BATCH, M_, N_, K_, NKIND };

static int kind_of(const Side *side)
{
    return !side->s[2] ? K_ : !side->s[1] ? M_ : !side->s[0] ? N_ : BATCH;
}

static void add_sides(const Graph *g, const Node *of, const Node *const t[3],
                      int only_new, Sides *sides)
{
    for (int d = 0; d < of->nd; d++) {
        const Axis *a = of->dim[d].a;
        Side x = { local_n(g, of, d), { 0 } };
        if (x.n == 1 || (only_new && dim_of(t[2], a) >= 0))
            continue;
        for (int i = 0; i < 3; i++)
            x.s[i] = local_stride(g, t[i], a);
        Sides *to = &sides[kind_of(&x)];
        to->at[to->n++] = x;
    }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the orientation of matrix i [rows cols]: 0 as stored, 1 stored
 * transposed, -1 neither. *ld: leading dimension. */
static int orient(const Side *r, const Side *c, int i, int64_t *ld)
{
    int64_t sr = r->n == 1 ? 0 : r->s[i], sc = c->n == 1 ? 0 : c->s[i];

    if (sc == 1 || sc == 0) {
        if (sc == 1 || c->n == 1) {
            *ld = larger(sr, c->n);
            return 0;
        }
    }
    if (sr == 1 || r->n == 1) {
        *ld = larger(sc, r->n);
        return 1;
    }
    return -1;
}

static int fits(const Side *m, const Side *n, const Side *k, Matrix *matrix)
{
    Side one = { 1, { 0 } };

    m = m ? m : &one;
    n = n ? n : &one;
    k = k ? k : &one;
    matrix->M = m->n;
    matrix->N = n->n;
    matrix->K = k->n;
    matrix->ta = orient(m, k, 0, &matrix->lda);
    matrix->tb = orient(k, n, 1, &matrix->ldb);
    return matrix->ta >= 0 && matrix->tb >= 0 &&
           orient(m, n, 2, &matrix->ldc) == 0;
}

static int add_batch(Matrix *matrix, const Sides *sides, const Side *but)
{
    for (int i = 0; i < sides->n; i++) {
        const Side *side = &sides->at[i];
        if (side == but)
            continue;
        if (matrix->nbatch == 3)
            return 0;
        matrix->batch[matrix->nbatch] = side->n;
        matrix->sa[matrix->nbatch] = side->s[0];
        matrix->sb[matrix->nbatch] = side->s[1];
        matrix->sc[matrix->nbatch++] = side->s[2];
    }
    return 1;
}

static void try_pair(const Sides *sides, const Side *m, const Side *n,
                     Matrix *best)
{
    Matrix x = { 0 };
    const Side *k = sides[K_].n ? &sides[K_].at[0] : NULL;

    if (!fits(m, n, k, &x) || !add_batch(&x, &sides[BATCH], NULL) ||
        !add_batch(&x, &sides[M_], m) || !add_batch(&x, &sides[N_], n))
        return;
    if (x.M * x.N > best->M * best->N)
        *best = x;
}

static int plain(const Graph *g, const Node *a, const Node *b, const Node *c,
                 Matrix *best)
{
    const Node *t[3] = { a, b, c };
    Sides v[NKIND] = { { 0 } };

    add_sides(g, c, t, 0, v);
    add_sides(g, a, t, 1, v);
    for (int i = 0; i < NKIND; i++)
        collapse(&v[i]);
    *best = (Matrix){ 0 };
    if (v[K_].n > 1)
        return 0;
    for (int i = 0; i < v[M_].n || i == 0; i++)
        for (int j = 0; j < v[N_].n || j == 0; j++)
            try_pair(v, v[M_].n ? &v[M_].at[i] : NULL,
                     v[N_].n ? &v[N_].at[j] : NULL, best);
    return best->M > 0;
}

int as_matrix(const Graph *g, const Node *a, const Node *b, const Node *c,
              Matrix *matrix)
{
    Matrix y;
    int ok = plain(g, a, b, c, matrix), turned = plain(g, b, a, c, &y);

    if (turned && (!ok || y.M * y.N > matrix->M * matrix->N)) {
        *matrix = y;
        matrix->swap = 1;
    }
    return ok || turned;
}
