/* affine.c: integer expressions for indices and addresses. An index is a sum of
 * terms ((variable / div) % mod) * k; div, mod and k are products of sizes,
 * which are identified by axis, not by value, so the text of a kernel depends
 * on structure only. Equal expressions are interned.
 *
 * A merge splits its index into digits (i / n, i % n); an address that uses all
 * digits becomes the variable again, so views have no cost. */
#include "loop.h"

SizePool *pool_new(Arena *a)
{
    SizePool *pool = alloc(a, sizeof *pool);

    pool->arena = a;
    pool->of = table_new(a);
    return pool;
}

/* ---- products of sizes --------------------------------------------------- */

static uint64_t hash_ints(uint64_t h, const int *v, int n)
{
    for (int i = 0; i < n; i++)
        h = mix64(h, (uint64_t)v[i]);
    return mix64(h, (uint64_t)n);
}

static const SizeProduct *size_make(SizePool *pool, const int *f, int n,
                                    int64_t v)
{
    if (n > MAXFACTOR)
        die("a stride of more than %d sizes", MAXFACTOR);
    for (uint64_t h = hash_ints(1, f, n);; h++) {
        void **slot = table_at(pool->of, h);
        SizeProduct *m = *slot;
        if (!m) {
            *slot = m = alloc(pool->arena, sizeof *m);
            m->n = n;
            m->v = v;
            m->id = (int)vec_len(pool->product);
            memcpy(m->f, f, (size_t)n * sizeof *f);
            vec_push(pool->arena, pool->product, m);
            return m;
        }
        if (m->n == n && !memcmp(m->f, f, (size_t)n * sizeof *f))
            return m;
    }
}

const SizeProduct *size_one(SizePool *pool)
{
    return size_make(pool, NULL, 0, 1);
}

static int size_id(SizePool *pool, const Axis *a, int64_t n)
{
    size_t len = vec_len(pool->size);

    for (size_t i = 0; i < len; i++)
        if (pool->size[i].axis == a && pool->size[i].n == n)
            return (int)i;
    vec_push(pool->arena, pool->size, ((Size){ a, n, NULL }));
    return (int)len;
}

const SizeProduct *size_axis(SizePool *pool, const Axis *a, int64_t n)
{
    int id = size_id(pool, a, n);
    const SizeProduct *def = pool->size[id].def, *m = size_one(pool);

    if (!def)
        return size_make(pool, &id, 1, n);
    for (int i = 0; i < def->n; i++) {
        Size s = pool->size[def->f[i]];
        m = size_mul(pool, m, size_axis(pool, s.axis, s.n));
    }
    return m;
}

const SizeProduct *size_mul(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y)
{
    int f[2 * MAXFACTOR], n = 0, i = 0, j = 0;

    while (i < x->n || j < y->n)
        if (j == y->n || (i < x->n && x->f[i] <= y->f[j]))
            f[n++] = x->f[i++];
        else
            f[n++] = y->f[j++];
    return size_make(pool, f, n, x->v * y->v);
}

const SizeProduct *size_div(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y)
{
    int f[MAXFACTOR], n = 0, j = 0;

    for (int i = 0; i < x->n; i++)
        if (j < y->n && x->f[i] == y->f[j])
            j++;
        else
            f[n++] = x->f[i];
    return j == y->n ? size_make(pool, f, n, y->v ? x->v / y->v : 0) : NULL;
}

/* The order of definitions does not affect correctness: without one, two equal
 * strides are merely not recognized as equal. */
void size_define(SizePool *pool, const Axis *a, int64_t n,
                 const SizeProduct *product)
{
    int id = size_id(pool, a, n);
    const SizeProduct *now = size_axis(pool, a, n);

    if (now == product || pool->size[id].def || product->v != n)
        return;
    for (int i = 0; i < product->n; i++)
        if (product->f[i] == id)
            return;
    pool->size[id].def = product;
}

/* ---- affine expressions -------------------------------------------------- */

static int size_order(const SizeProduct *x, const SizeProduct *y)
{
    return (x ? x->id : -1) - (y ? y->id : -1);
}

static int by_term(const void *x, const void *y)
{
    const Term *a = x, *b = y;
    int d = a->var - b->var;

    d = d ? d : size_order(a->div, b->div);
    d = d ? d : size_order(a->mod, b->mod);
    return d ? d : size_order(a->k, b->k);
}

/* Joins two adjacent digits of a variable into the more significant one: ((v /
 * DM) % M2) * CM + ((v / D) % M) * C = ((v / D) % (M2 * M)) * C. Returns 1 if
 * they were adjacent. */
static int join_digits(SizePool *pool, Term *hi, const Term *lo)
{
    if (hi->var != lo->var || !lo->mod ||
        hi->div != size_mul(pool, lo->div, lo->mod) ||
        hi->k != size_mul(pool, lo->k, lo->mod))
        return 0;
    hi->div = lo->div;
    hi->k = lo->k;
    hi->mod = hi->mod ? size_mul(pool, hi->mod, lo->mod) : NULL;
    return 1;
}

static int join_any_digits(SizePool *pool, Term *term, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j && join_digits(pool, &term[i], &term[j])) {
                term[j] = term[n - 1];
                return n - 1;
            }
    return n;
}

static uint64_t hash_lin(const AffineExpr *affine)
{
    uint64_t h = mix64(7, (uint64_t)affine->off.c);

    for (int i = 0; i < MAXATOM; i++)
        h = mix64(h, (uint64_t)affine->off.k[i]);
    for (int i = 0; i < affine->nt; i++) {
        const Term *term = &affine->term[i];
        h = mix64(mix64(h, (uint64_t)term->var), KEYP(term->div));
        h = mix64(mix64(h, KEYP(term->mod)), KEYP(term->k));
    }
    return mix64(h, (uint64_t)affine->hasoff);
}

/* Compares field by field, since a Term has padding. */
static int same_lin(const AffineExpr *x, const AffineExpr *y)
{
    if (x->hasoff != y->hasoff || x->nt != y->nt ||
        memcmp(&x->off, &y->off, sizeof x->off))
        return 0;
    for (int i = 0; i < x->nt; i++)
        if (x->term[i].var != y->term[i].var ||
            x->term[i].div != y->term[i].div ||
            x->term[i].mod != y->term[i].mod || x->term[i].k != y->term[i].k)
            return 0;
    return 1;
}

const AffineExpr *affine_make(SizePool *pool, RankAffine off, int hasoff,
                              const Term *term, int nt)
{
    AffineExpr l = { .off = off, .hasoff = hasoff, .nt = nt };

    l.term = alloc(pool->arena, ((size_t)nt + 1) * sizeof *l.term);
    if (nt)
        memcpy(l.term, term, (size_t)nt * sizeof *term);
    for (int n = -1; n != l.nt;)
        n = l.nt, l.nt = join_any_digits(pool, l.term, l.nt);
    qsort(l.term, (size_t)l.nt, sizeof *l.term, by_term);
    for (uint64_t h = hash_lin(&l);; h++) {
        void **slot = table_at(pool->of, h);
        if (!*slot) {
            l.id = (int)vec_len(pool->affine);
            *slot = memcpy(alloc(pool->arena, sizeof l), &l, sizeof l);
            vec_push(pool->arena, pool->affine, (const AffineExpr *)*slot);
            return *slot;
        }
        if (same_lin(*slot, &l))
            return *slot;
    }
}

const AffineExpr *affine_var(SizePool *pool, int var)
{
    Term t = { var, size_one(pool), NULL, size_one(pool) };

    return affine_make(pool, aff(0), 0, &t, 1);
}

const AffineExpr *affine_const(SizePool *pool, RankAffine off)
{
    return affine_make(pool, off, 1, NULL, 0);
}

const AffineExpr *affine_add(SizePool *pool, const AffineExpr *x,
                             const AffineExpr *y)
{
    int n = x->nt + y->nt;
    Term *t = alloc(pool->arena, ((size_t)n + 1) * sizeof *t);

    for (int i = 0; i < n; i++)
        t[i] = i < x->nt ? x->term[i] : y->term[i - x->nt];
    return affine_make(pool, aff_add(x->off, y->off), x->hasoff | y->hasoff, t,
                       n);
}

const AffineExpr *affine_mul(SizePool *pool, const AffineExpr *affine,
                             const SizeProduct *product)
{
    Term *t = alloc(pool->arena, ((size_t)affine->nt + 1) * sizeof *t);

    for (int i = 0; i < affine->nt; i++) {
        t[i] = affine->term[i];
        t[i].k = size_mul(pool, t[i].k, product);
    }
    return affine_make(pool, aff_scale(affine->off, product->v), affine->hasoff,
                       t, affine->nt);
}

/* ---- digits -------------------------------------------------------------- */

typedef const SizeProduct *Extent(void *ctx, int var);

static const SizeProduct *term_extent(SizePool *pool, const Term *term,
                                      Extent *extent, void *ctx)
{
    if (term->mod)
        return term->mod;
    const SizeProduct *n = extent(ctx, term->var);
    return n ? size_div(pool, n, term->div) : NULL;
}

/* Are the terms the digits of a mixed-radix number, so that their sum is always
 * less than `whole`? */
static int is_below(SizePool *pool, const Term *term, int n,
                    const SizeProduct *whole, Extent *extent, void *ctx)
{
    const SizeProduct *at = size_one(pool);

    for (int used = 0; used < n; used++) {
        int i = 0;
        while (i < n && term[i].k != at)
            i++;
        const SizeProduct *m =
            i < n ? term_extent(pool, &term[i], extent, ctx) : NULL;
        if (!m)
            return 0;
        at = size_mul(pool, at, m);
    }
    return size_div(pool, whole, at) != NULL;
}

/* (t / div) % mod of a single term with factor 1: a digit of a digit. */
static const AffineExpr *term_digit(SizePool *pool, Term t,
                                    const SizeProduct *div,
                                    const SizeProduct *mod)
{
    const SizeProduct *left = t.mod ? size_div(pool, t.mod, div) : NULL;

    if (t.mod && !left)
        return NULL;
    if (mod && left && left != mod && !size_div(pool, left, mod))
        return NULL;
    t.div = size_mul(pool, t.div, div);
    t.mod = mod ? mod : left;
    return affine_make(pool, aff(0), 0, &t, 1);
}

/* Moves terms that are multiples of product to hi (divided by it), the others
 * to lo. */
static int split_terms(SizePool *pool, const AffineExpr *affine,
                       const SizeProduct *product, Term *hi, Term *lo)
{
    int nhi = 0, nlo = 0;

    for (int i = 0; i < affine->nt; i++) {
        const SizeProduct *k = size_div(pool, affine->term[i].k, product);
        if (k) {
            hi[nhi] = affine->term[i];
            hi[nhi++].k = k;
        } else {
            lo[nlo++] = affine->term[i];
        }
    }
    return nhi;
}

enum { ABOVE, BELOW };

/* affine / product (ABOVE) or affine % product (BELOW); null if that is
 * unknown. */
static const AffineExpr *divide_affine(SizePool *pool, const AffineExpr *affine,
                                       const SizeProduct *product, int side,
                                       Extent *extent, void *ctx)
{
    Term *hi = alloc(pool->arena, ((size_t)affine->nt + 1) * sizeof *hi * 2);
    Term *lo = hi + affine->nt + 1;
    int nhi = split_terms(pool, affine, product, hi, lo);

    if (!is_below(pool, lo, affine->nt - nhi, product, extent, ctx))
        return NULL;
    return side == ABOVE ? affine_make(pool, aff(0), 0, hi, nhi)
                         : affine_make(pool, aff(0), 0, lo, affine->nt - nhi);
}

const AffineExpr *affine_digit(SizePool *pool, const AffineExpr *affine,
                               const SizeProduct *div, const SizeProduct *mod,
                               Extent *extent, void *ctx)
{
    if (div->n == 0 && !mod)
        return affine;
    if (affine->hasoff)
        return NULL;
    if (affine->nt == 1 && affine->term[0].k->n == 0)
        return term_digit(pool, affine->term[0], div, mod);
    affine = divide_affine(pool, affine, div, ABOVE, extent, ctx);
    return affine && mod ? divide_affine(pool, affine, mod, BELOW, extent, ctx)
                         : affine;
}
