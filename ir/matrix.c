/* matrix.c: a dot as matrix products. Its axes are of four kinds: in both
 * operands and the result (batch), in one operand and the result (M, N), in
 * both operands only (K). Axes of a kind that lie one inside the other
 * everywhere count as one. What is left must fit C = A x B with one M, one N,
 * one K, each matrix contiguous along one of its sides, and at most three
 * loops outside. */
#include "ir.h"

typedef struct Side {
    int64_t n, s[3];
} Side; /* strides in A, B, C */
typedef struct Sides {
    int n;
    Side at[4 * MAXD];
} Sides;

static void collapse(Sides *v)
{
    for (int p = 0; p < v->n; p++)
        for (int q = 0; q < v->n; q++) {
            Side *x = &v->at[p], *y = &v->at[q];
            int same = p != q;
            for (int i = 0; i < 3; i++)
                same = same && x->s[i] == y->n * y->s[i];
            if (!same)
                continue;
            y->n *= x->n;
            *x = v->at[--v->n];
            p = -1;
            break;
        }
}

enum { BATCH, M_, N_, K_, NKIND };

static int kind_of(const Side *x)
{
    return !x->s[2] ? K_ : !x->s[1] ? M_ : !x->s[0] ? N_ : BATCH;
}

static void add_sides(const Graph *g, const Node *of, const Node *const t[3],
                      int only_new, Sides *v)
{
    for (int d = 0; d < of->nd; d++) {
        const Axis *a = of->dim[d].a;
        Side x = { local_n(g, of, d), { 0 } };
        if (x.n == 1 || (only_new && dim_of(t[2], a) >= 0))
            continue;
        for (int i = 0; i < 3; i++)
            x.s[i] = local_stride(g, t[i], a);
        Sides *to = &v[kind_of(&x)];
        to->at[to->n++] = x;
    }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Rows x cols of a matrix with strides sr, sc: 0 as it is, 1 stored transposed,
 * -1 neither. */
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

static int fits(const Side *m, const Side *n, const Side *k, Matrix *x)
{
    Side one = { 1, { 0 } };

    m = m ? m : &one;
    n = n ? n : &one;
    k = k ? k : &one;
    x->M = m->n;
    x->N = n->n;
    x->K = k->n;
    x->ta = orient(m, k, 0, &x->lda);
    x->tb = orient(k, n, 1, &x->ldb);
    return x->ta >= 0 && x->tb >= 0 && orient(m, n, 2, &x->ldc) == 0;
}

static int add_batch(Matrix *x, const Sides *v, const Side *but)
{
    for (int i = 0; i < v->n; i++) {
        const Side *s = &v->at[i];
        if (s == but)
            continue;
        if (x->nbatch == 3)
            return 0;
        x->batch[x->nbatch] = s->n;
        x->sa[x->nbatch] = s->s[0];
        x->sb[x->nbatch] = s->s[1];
        x->sc[x->nbatch++] = s->s[2];
    }
    return 1;
}

static void try_pair(const Sides *v, const Side *m, const Side *n, Matrix *best)
{
    Matrix x = { 0 };
    const Side *k = v[K_].n ? &v[K_].at[0] : NULL;

    if (!fits(m, n, k, &x) || !add_batch(&x, &v[BATCH], NULL) ||
        !add_batch(&x, &v[M_], m) || !add_batch(&x, &v[N_], n))
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
              Matrix *x)
{
    Matrix y;
    int ok = plain(g, a, b, c, x), turned = plain(g, b, a, c, &y);

    if (turned && (!ok || y.M * y.N > x->M * x->N)) {
        *x = y;
        x->swap = 1;
    }
    return ok || turned;
}
