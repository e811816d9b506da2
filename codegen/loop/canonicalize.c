/* canonicalize.c: make the loops of a kernel fit its accesses. A loop whose
 * digits are used apart (a merged axis next to its factors) is cut into one
 * loop for each digit; then loops that every access walks as one (same factor
 * between their strides everywhere) become one. What is left of digits is
 * divided explicitly.
 *
 *     x[b][s][h] + w[h]          b s h   ->   bs h
 *     x[b][s][h] + y[b][s][h]    b s h   ->   bsh */
#include "loop.h"

#include <stdlib.h>

/* ---- all index expressions in use ---------------------------------------- */

static void mark(LoopKernel *c, Expr *e);

static void mark_lin(LoopKernel *c, const AffineExpr *l)
{
    for (int i = 0; l && i < l->nt; i++)
        if (l->term[i].var >= MAXLOOP)
            mark(c, c->ex[l->term[i].var - MAXLOOP]);
}

/* Marks what e needs and finds deps anew. */
static void mark(LoopKernel *c, Expr *e)
{
    if (e->seen)
        return;
    e->seen = 1;
    e->deps = 0;
    mark_lin(c, e->lin);
    for (int i = 0; e->lin && i < e->lin->nt; i++) {
        int v = e->lin->term[i].var;
        e->deps |= v < MAXLOOP ? 1ull << v : c->ex[v - MAXLOOP]->deps;
    }
    for (int i = 0; i < e->na; i++)
        if (e->arg[i]) {
            mark(c, e->arg[i]);
            e->deps |= e->arg[i]->deps;
        }
    e->deps &= ~e->K;
}

static void mark_used(LoopKernel *c)
{
    for (size_t i = 0; i < vec_len(c->ex); i++)
        c->ex[i]->seen = 0;
    for (size_t i = 0; i < vec_len(c->st); i++) {
        mark(c, c->st[i].val);
        mark_lin(c, c->st[i].addr);
    }
}

/* The i-th index expression in use, or null past the end. */
static const AffineExpr **lin_at(LoopKernel *c, size_t i)
{
    size_t n = vec_len(c->ex);

    return i < n ? &c->ex[i]->lin : &c->st[i - n].addr;
}

static size_t lin_count(const LoopKernel *c)
{
    return vec_len(c->ex) + vec_len(c->st);
}

static int lin_used(const LoopKernel *c, size_t i)
{
    return i >= vec_len(c->ex) || (c->ex[i]->seen && c->ex[i]->lin);
}

/* ---- cutting ------------------------------------------------------------- */

enum { MAXCUT = 16 };
typedef struct Cuts {
    int n;
    const SizeProduct *at[MAXCUT];
    int loop[MAXCUT];
} Cuts;

/* Loops that every result and every sum has. */
static uint64_t common(const LoopKernel *c)
{
    uint64_t m = ~(uint64_t)0;

    for (size_t i = 0; i < vec_len(c->st); i++)
        m &= c->st[i].loops;
    for (size_t i = 0; i < vec_len(c->ex); i++)
        if (c->ex[i]->seen && c->ex[i]->kind == Xred)
            m &= c->ex[i]->deps;
    return m;
}

static int has_both(uint64_t m, int p, int q)
{
    return m >> p & m >> q & 1;
}

/* May loop p take the name of loop q? Nothing runs over both, and a sum over q
 * is made before any loop of a row is open. */
static int can_be(const LoopKernel *c, int p, int q)
{
    uint64_t items = common(c);

    if (p == q || c->loop[q].gone || c->loop[q].map)
        return 0;
    for (size_t i = 0; i < vec_len(c->st); i++)
        if (has_both(c->st[i].loops, p, q))
            return 0;
    for (size_t i = 0; i < vec_len(c->ex); i++) {
        const Expr *e = c->ex[i];
        if (e->seen && (has_both(e->deps | e->K, p, q) ||
                        (e->kind == Xred && (e->K >> q & 1 || e->K >> p & 1) &&
                         (e->deps & ~items))))
            return 0;
    }
    return 1;
}

static void add_cut(Cuts *s, const SizeProduct *m)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i] == m)
            return;
    if (s->n < MAXCUT)
        s->at[s->n++] = m;
}

static int by_factors(const void *x, const void *y)
{
    const SizeProduct *a = *(const SizeProduct *const *)x,
                      *b = *(const SizeProduct *const *)y;

    return a->n != b->n ? a->n - b->n : a->id - b->id;
}

/* Does an access walk p and q as one loop, q the faster? */
static int walked(LoopKernel *c, int p, int q)
{
    for (size_t i = 0; i < lin_count(c); i++) {
        const AffineExpr *l = lin_used(c, i) ? *lin_at(c, i) : NULL;
        const SizeProduct *k = NULL, *want = NULL;
        for (int j = 0; l && j < l->nt; j++) {
            if (l->term[j].var == p)
                k = l->term[j].k;
            if (l->term[j].var == q)
                want = mono_mul(c->pool, l->term[j].k, c->loop[q].extent);
        }
        if (k && k == want)
            return 1;
    }
    return 0;
}

/* On a GPU a row's loop is cut as another part of the kernel has it, so that
 * both are one and the row is held (map_gpu.c). */
static void cut_like_others(LoopKernel *c, int loop, Cuts *s)
{
    for (int p = 0; p < c->nloop; p++)
        for (int q = 0; q < c->nloop; q++)
            if (p != q && can_be(c, loop, p) && can_be(c, loop, q) &&
                mono_mul(c->pool, c->loop[p].extent, c->loop[q].extent) ==
                    c->loop[loop].extent &&
                walked(c, p, q))
                add_cut(s, c->loop[q].extent);
}

static Cuts cuts_of(LoopKernel *c, int loop)
{
    Cuts s = { 0 };

    add_cut(&s, mono_one(c->pool));
    add_cut(&s, c->loop[loop].extent);
    if (c->gpu)
        cut_like_others(c, loop, &s);
    for (size_t i = 0; i < lin_count(c); i++) {
        if (!lin_used(c, i))
            continue;
        const AffineExpr *l = *lin_at(c, i);
        for (int k = 0; k < l->nt; k++) {
            const Term *t = &l->term[k];
            if (t->var != loop)
                continue;
            add_cut(&s, t->div);
            if (t->mod)
                add_cut(&s, mono_mul(c->pool, t->div, t->mod));
        }
    }
    qsort(s.at, (size_t)s.n, sizeof *s.at, by_factors);
    return s;
}

static int chained(LoopKernel *c, const Cuts *s)
{
    for (int i = 1; i < s->n; i++)
        if (!mono_div(c->pool, s->at[i], s->at[i - 1]))
            return 0;
    return 1;
}

/* Terms of a cut loop become sums over the new loops. */
static const AffineExpr *cut_lin(LoopKernel *c, const AffineExpr *l, int loop,
                                 const Cuts *s)
{
    Term t[256];
    int n = 0;

    for (int i = 0; i < l->nt; i++) {
        const Term *x = &l->term[i];
        if (x->var != loop) {
            t[n++] = *x;
            continue;
        }
        const SizeProduct *end =
            x->mod ? mono_mul(c->pool, x->div, x->mod) : c->loop[loop].extent;
        for (int k = 0; k + 1 < s->n; k++) {
            const SizeProduct *f = mono_div(c->pool, s->at[k], x->div);
            if (f && mono_div(c->pool, end, s->at[k + 1]) && n < 256)
                t[n++] = (Term){ s->loop[k], mono_one(c->pool), NULL,
                                 mono_mul(c->pool, x->k, f) };
        }
    }
    return lin_make(c->pool, l->off, l->hasoff, t, n);
}

static uint64_t cut_mask(uint64_t m, int loop, const Cuts *s)
{
    if (!(m >> loop & 1))
        return m;
    m &= ~(1ull << loop);
    for (int k = 0; k + 1 < s->n; k++)
        m |= 1ull << s->loop[k];
    return m;
}

/* A loop of n rounds for a digit of loop p: one there is, or a new one. */
static int loop_of_digit(LoopKernel *c, int p, const SizeProduct *n,
                         uint64_t taken)
{
    for (int q = 0; q < c->nloop && c->gpu; q++)
        if (c->loop[q].extent == n && !(taken >> q & 1) && can_be(c, p, q))
            return q;
    if (c->nloop == MAXLOOP)
        die("a kernel of more than %d loops", MAXLOOP);
    c->loop[c->nloop] = (Loop){ .axis = c->loop[p].axis, .extent = n };
    return c->nloop++;
}

static void cut(LoopKernel *c, int loop, Cuts *s)
{
    uint64_t taken = 0;

    for (int k = 0; k + 1 < s->n; k++) {
        s->loop[k] = loop_of_digit(
            c, loop, mono_div(c->pool, s->at[k + 1], s->at[k]), taken);
        taken |= 1ull << s->loop[k];
    }
    for (size_t i = 0; i < lin_count(c); i++)
        if (lin_used(c, i))
            *lin_at(c, i) = cut_lin(c, *lin_at(c, i), loop, s);
    for (size_t i = 0; i < vec_len(c->ex); i++)
        c->ex[i]->K = cut_mask(c->ex[i]->K, loop, s);
    for (size_t i = 0; i < vec_len(c->st); i++)
        c->st[i].loops = cut_mask(c->st[i].loops, loop, s);
    c->loop[loop].gone = 1;
    mark_used(c);
}

static void cut_all(LoopKernel *c)
{
    int n = c->nloop;

    for (int i = 0; i < n; i++) {
        Cuts s = cuts_of(c, i);
        if (s.n > 2 && !c->loop[i].map && chained(c, &s))
            cut(c, i, &s);
    }
}

/* ---- digits that remain -------------------------------------------------- */

static int divide(LoopKernel *c, const Term *t)
{
    Term whole = { t->var, mono_one(c->pool), NULL, mono_one(c->pool) };
    const AffineExpr *x = lin_make(c->pool, aff(0), 0, &whole, 1);
    Expr *arg[2] = { ex_lin(c, Di64, x), ex_int(c, aff(t->div->v)) };

    if (t->div->n)
        arg[0] = ex_expr(c, Di64, "a / b", 2, arg);
    if (t->mod) {
        arg[1] = ex_int(c, aff(t->mod->v));
        arg[0] = ex_expr(c, Di64, "a % b", 2, arg);
    }
    return MAXLOOP + arg[0]->id;
}

static const AffineExpr *without_digits(LoopKernel *c, const AffineExpr *l)
{
    int any = 0;

    for (int i = 0; i < l->nt; i++)
        any |= l->term[i].mod || l->term[i].div->n;
    if (!any)
        return l;
    Term *t = alloc(c->arena, ((size_t)l->nt + 1) * sizeof *t);
    for (int i = 0; i < l->nt; i++) {
        t[i] = l->term[i];
        if (!t[i].mod && !t[i].div->n)
            continue;
        t[i] =
            (Term){ divide(c, &l->term[i]), mono_one(c->pool), NULL, t[i].k };
    }
    return lin_make(c->pool, l->off, l->hasoff, t, l->nt);
}

static void divide_digits(LoopKernel *c)
{
    size_t n = vec_len(c->ex);

    for (size_t i = 0; i < n; i++)
        if (c->ex[i]->seen && c->ex[i]->lin)
            c->ex[i]->lin = without_digits(c, c->ex[i]->lin);
    for (size_t i = 0; i < vec_len(c->st); i++)
        c->st[i].addr = without_digits(c, c->st[i].addr);
}

/* ---- merging ------------------------------------------------------------- */

static int factors_of(const AffineExpr *l, int loop, const SizeProduct **k)
{
    int n = 0;

    for (int i = 0; i < l->nt; i++)
        if (l->term[i].var == loop)
            k[n++] = l->term[i].k;
    return n;
}

/* Does l walk p and q as one loop, q the faster? */
static int as_one(LoopKernel *c, const AffineExpr *l, int p, int q)
{
    const SizeProduct *kp[64], *kq[64];

    if (l->nt > 64)
        return 0;
    int np = factors_of(l, p, kp), nq = factors_of(l, q, kq);
    if (np != nq)
        return 0;
    for (int i = 0; i < nq; i++) {
        const SizeProduct *want = mono_mul(c->pool, kq[i], c->loop[q].extent);
        int j = 0;
        while (j < np && kp[j] != want)
            j++;
        if (j == np)
            return 0;
        kp[j] = kp[--np];
    }
    return 1;
}

static int together(uint64_t m, int p, int q)
{
    return (m >> p & 1) == (m >> q & 1);
}

static int can_merge(LoopKernel *c, int p, int q)
{
    if (c->loop[q].map)
        return 0;
    for (size_t i = 0; i < vec_len(c->st); i++)
        if (!together(c->st[i].loops, p, q))
            return 0;
    for (size_t i = 0; i < vec_len(c->ex); i++)
        if (c->ex[i]->seen && !together(c->ex[i]->K, p, q))
            return 0;
    for (size_t i = 0; i < lin_count(c); i++)
        if (lin_used(c, i) && !as_one(c, *lin_at(c, i), p, q))
            return 0;
    return 1;
}

static const AffineExpr *without_loop(LoopKernel *c, const AffineExpr *l, int p)
{
    Term *t = alloc(c->pool->arena, ((size_t)l->nt + 1) * sizeof *t);
    int n = 0;

    for (int i = 0; i < l->nt; i++)
        if (l->term[i].var != p)
            t[n++] = l->term[i];
    return n == l->nt ? l : lin_make(c->pool, l->off, l->hasoff, t, n);
}

static void merge(LoopKernel *c, int p, int q)
{
    Loop *a = &c->loop[p], *b = &c->loop[q];

    for (size_t i = 0; i < lin_count(c); i++)
        if (lin_used(c, i))
            *lin_at(c, i) = without_loop(c, *lin_at(c, i), p);
    for (size_t i = 0; i < vec_len(c->ex); i++)
        c->ex[i]->K &= ~(1ull << p);
    for (size_t i = 0; i < vec_len(c->st); i++)
        c->st[i].loops &= ~(1ull << p);
    if (a->map) {
        b->map = a->map;
        b->per = a->per ? mono_mul(c->pool, a->per, b->extent) : b->extent;
    }
    b->extent = mono_mul(c->pool, a->extent, b->extent);
    a->gone = 1;
}

static int merge_any(LoopKernel *c)
{
    for (int p = 0; p < c->nloop; p++)
        for (int q = 0; q < c->nloop; q++)
            if (p != q && !c->loop[p].gone && !c->loop[q].gone &&
                can_merge(c, p, q)) {
                merge(c, p, q);
                return 1;
            }
    return 0;
}

void kern_tidy(LoopKernel *c)
{
    mark_used(c);
    cut_all(c);
    divide_digits(c);
    mark_used(c);
    while (merge_any(c))
        ;
    mark_used(c);
}
