/* canonicalize.c: make the loops of a kernel fit its accesses. A loop whose
 * digits are used apart (a merged axis next to its factors) is cut into one
 * loop for each digit; then loops that every access walks as one (same factor
 * between their strides everywhere) become one. What is left of digits is
 * divided explicitly.
 *
 *     x[b][s][h] + w[h]          b s h   ->   bs h
 *     x[b][s][h] + y[b][s][h]    b s h   ->   bsh */
#include "loop.h"

/* ---- all index expressions in use ---------------------------------------- */

static void mark(LoopKernel *kernel, Expr *expr);

static void mark_lin(LoopKernel *kernel, const AffineExpr *affine)
{
    for (int i = 0; affine && i < affine->nt; i++)
        if (affine->term[i].var >= MAXLOOP)
            mark(kernel, kernel->ex[affine->term[i].var - MAXLOOP]);
}

/* Marks what expr needs and finds deps anew. */
static void mark(LoopKernel *kernel, Expr *expr)
{
    if (expr->seen)
        return;
    expr->seen = 1;
    expr->deps = 0;
    mark_lin(kernel, expr->lin);
    for (int i = 0; expr->lin && i < expr->lin->nt; i++) {
        int v = expr->lin->term[i].var;
        expr->deps |= v < MAXLOOP ? 1ull << v : kernel->ex[v - MAXLOOP]->deps;
    }
    for (int i = 0; i < expr->na; i++)
        if (expr->arg[i]) {
            mark(kernel, expr->arg[i]);
            expr->deps |= expr->arg[i]->deps;
        }
    expr->deps &= ~expr->K;
}

static void mark_used(LoopKernel *kernel)
{
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        kernel->ex[i]->seen = 0;
    for (size_t i = 0; i < vec_len(kernel->st); i++) {
        mark(kernel, kernel->st[i].val);
        mark_lin(kernel, kernel->st[i].addr);
    }
}

/* The i-th index expression in use, or null past the end. */
static const AffineExpr **lin_at(LoopKernel *kernel, size_t i)
{
    size_t n = vec_len(kernel->ex);

    return i < n ? &kernel->ex[i]->lin : &kernel->st[i - n].addr;
}

static size_t lin_count(const LoopKernel *kernel)
{
    return vec_len(kernel->ex) + vec_len(kernel->st);
}

static int lin_used(const LoopKernel *kernel, size_t i)
{
    return i >= vec_len(kernel->ex) ||
           (kernel->ex[i]->seen && kernel->ex[i]->lin);
}

/* ---- cutting ------------------------------------------------------------- */

enum { MAXCUT = 16 };
typedef struct Cuts {
    int n;
    const SizeProduct *at[MAXCUT];
    int loop[MAXCUT];
} Cuts;

/* Loops that every result and every sum has. */
static uint64_t common(const LoopKernel *kernel)
{
    uint64_t m = ~(uint64_t)0;

    for (size_t i = 0; i < vec_len(kernel->st); i++)
        m &= kernel->st[i].loops;
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->seen && kernel->ex[i]->kind == Xred)
            m &= kernel->ex[i]->deps;
    return m;
}

static int has_both(uint64_t m, int p, int q)
{
    return m >> p & m >> q & 1;
}

/* May loop p take the name of loop q? Nothing runs over both, and a sum over q
 * is made before any loop of a row is open; sums of a tile are of the columns
 * that threads have there. */
static int can_be(const LoopKernel *kernel, int p, int q)
{
    uint64_t items = common(kernel);

    if (p == q || kernel->loop[q].gone || kernel->loop[q].map)
        return 0;
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        if (has_both(kernel->st[i].loops, p, q))
            return 0;
    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (expr->seen &&
            (has_both(expr->deps | expr->K, p, q) ||
             (expr->kind == Xred && !kernel->tile &&
              (expr->K >> q & 1 || expr->K >> p & 1) && (expr->deps & ~items))))
            return 0;
    }
    return 1;
}

static void add_cut(Cuts *cuts, const SizeProduct *product)
{
    for (int i = 0; i < cuts->n; i++)
        if (cuts->at[i] == product)
            return;
    if (cuts->n < MAXCUT)
        cuts->at[cuts->n++] = product;
}

static int by_factors(const void *x, const void *y)
{
    const SizeProduct *a = *(const SizeProduct *const *)x,
                      *b = *(const SizeProduct *const *)y;

    return a->n != b->n ? a->n - b->n : a->id - b->id;
}

/* Does an access walk p and q as one loop, q the faster? */
static int walked(LoopKernel *kernel, int p, int q)
{
    for (size_t i = 0; i < lin_count(kernel); i++) {
        const AffineExpr *l = lin_used(kernel, i) ? *lin_at(kernel, i) : NULL;
        const SizeProduct *k = NULL, *want = NULL;
        for (int j = 0; l && j < l->nt; j++) {
            if (l->term[j].var == p)
                k = l->term[j].k;
            if (l->term[j].var == q)
                want = mono_mul(kernel->pool, l->term[j].k,
                                kernel->loop[q].extent);
        }
        if (k && k == want)
            return 1;
    }
    return 0;
}

/* On a GPU a row's loop is cut as another part of the kernel has it, so that
 * both are one and the row is held (map_gpu.c). */
static void cut_like_others(LoopKernel *kernel, int loop, Cuts *cuts)
{
    for (int p = 0; p < kernel->nloop; p++)
        for (int q = 0; q < kernel->nloop; q++)
            if (p != q && can_be(kernel, loop, p) && can_be(kernel, loop, q) &&
                mono_mul(kernel->pool, kernel->loop[p].extent,
                         kernel->loop[q].extent) == kernel->loop[loop].extent &&
                walked(kernel, p, q))
                add_cut(cuts, kernel->loop[q].extent);
}

static Cuts cuts_of(LoopKernel *kernel, int loop)
{
    Cuts s = { 0 };

    add_cut(&s, mono_one(kernel->pool));
    add_cut(&s, kernel->loop[loop].extent);
    if (kernel->gpu)
        cut_like_others(kernel, loop, &s);
    for (size_t i = 0; i < lin_count(kernel); i++) {
        if (!lin_used(kernel, i))
            continue;
        const AffineExpr *l = *lin_at(kernel, i);
        for (int k = 0; k < l->nt; k++) {
            const Term *term = &l->term[k];
            if (term->var != loop)
                continue;
            add_cut(&s, term->div);
            if (term->mod)
                add_cut(&s, mono_mul(kernel->pool, term->div, term->mod));
        }
    }
    qsort(s.at, (size_t)s.n, sizeof *s.at, by_factors);
    return s;
}

static int chained(LoopKernel *kernel, const Cuts *cuts)
{
    for (int i = 1; i < cuts->n; i++)
        if (!mono_div(kernel->pool, cuts->at[i], cuts->at[i - 1]))
            return 0;
    return 1;
}

/* Terms of a cut loop become sums over the new loops. */
static const AffineExpr *cut_lin(LoopKernel *kernel, const AffineExpr *affine,
                                 int loop, const Cuts *cuts)
{
    Term t[256];
    int n = 0;

    for (int i = 0; i < affine->nt; i++) {
        const Term *term = &affine->term[i];
        if (term->var != loop) {
            t[n++] = *term;
            continue;
        }
        const SizeProduct *end =
            term->mod ? mono_mul(kernel->pool, term->div, term->mod)
                      : kernel->loop[loop].extent;
        for (int k = 0; k + 1 < cuts->n; k++) {
            const SizeProduct *f =
                mono_div(kernel->pool, cuts->at[k], term->div);
            if (f && mono_div(kernel->pool, end, cuts->at[k + 1]) && n < 256)
                t[n++] = (Term){ cuts->loop[k], mono_one(kernel->pool), NULL,
                                 mono_mul(kernel->pool, term->k, f) };
        }
    }
    return lin_make(kernel->pool, affine->off, affine->hasoff, t, n);
}

static uint64_t cut_mask(uint64_t m, int loop, const Cuts *cuts)
{
    if (!(m >> loop & 1))
        return m;
    m &= ~(1ull << loop);
    for (int k = 0; k + 1 < cuts->n; k++)
        m |= 1ull << cuts->loop[k];
    return m;
}

/* A loop of product rounds for a digit of loop p: one there is, or a new one.
 * */
static int loop_of_digit(LoopKernel *kernel, int p, const SizeProduct *product,
                         uint64_t taken)
{
    for (int q = 0; q < kernel->nloop && kernel->gpu; q++)
        if (kernel->loop[q].extent == product && !(taken >> q & 1) &&
            can_be(kernel, p, q))
            return q;
    if (kernel->nloop == MAXLOOP)
        die("a kernel of more than %d loops", MAXLOOP);
    kernel->loop[kernel->nloop] =
        (Loop){ .axis = kernel->loop[p].axis, .extent = product };
    return kernel->nloop++;
}

static void cut(LoopKernel *kernel, int loop, Cuts *cuts)
{
    uint64_t taken = 0;

    for (int k = 0; k + 1 < cuts->n; k++) {
        cuts->loop[k] = loop_of_digit(
            kernel, loop, mono_div(kernel->pool, cuts->at[k + 1], cuts->at[k]),
            taken);
        taken |= 1ull << cuts->loop[k];
    }
    for (size_t i = 0; i < lin_count(kernel); i++)
        if (lin_used(kernel, i))
            *lin_at(kernel, i) =
                cut_lin(kernel, *lin_at(kernel, i), loop, cuts);
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        kernel->ex[i]->K = cut_mask(kernel->ex[i]->K, loop, cuts);
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        kernel->st[i].loops = cut_mask(kernel->st[i].loops, loop, cuts);
    kernel->loop[loop].gone = 1;
    mark_used(kernel);
}

static void cut_all(LoopKernel *kernel)
{
    int n = kernel->nloop, any = 0;

    for (int i = 0; i < n; i++) {
        Cuts s = cuts_of(kernel, i);
        if (s.n > 2 && !kernel->loop[i].map && chained(kernel, &s)) {
            cut(kernel, i, &s);
            any = 1;
        }
    }
    if (any)
        ex_unify(kernel);
}

/* ---- digits that remain -------------------------------------------------- */

static int divide(LoopKernel *kernel, const Term *term)
{
    Term whole = { term->var, mono_one(kernel->pool), NULL,
                   mono_one(kernel->pool) };
    const AffineExpr *x = lin_make(kernel->pool, aff(0), 0, &whole, 1);
    Expr *arg[2] = { ex_lin(kernel, Di64, x),
                     ex_int(kernel, aff(term->div->v)) };

    if (term->div->n)
        arg[0] = ex_expr(kernel, Di64, "a / b", 2, arg);
    if (term->mod) {
        arg[1] = ex_int(kernel, aff(term->mod->v));
        arg[0] = ex_expr(kernel, Di64, "a % b", 2, arg);
    }
    return MAXLOOP + arg[0]->id;
}

static const AffineExpr *without_digits(LoopKernel *kernel,
                                        const AffineExpr *affine)
{
    int any = 0;

    for (int i = 0; i < affine->nt; i++)
        any |= affine->term[i].mod || affine->term[i].div->n;
    if (!any)
        return affine;
    Term *t = alloc(kernel->arena, ((size_t)affine->nt + 1) * sizeof *t);
    for (int i = 0; i < affine->nt; i++) {
        t[i] = affine->term[i];
        if (!t[i].mod && !t[i].div->n)
            continue;
        t[i] = (Term){ divide(kernel, &affine->term[i]), mono_one(kernel->pool),
                       NULL, t[i].k };
    }
    return lin_make(kernel->pool, affine->off, affine->hasoff, t, affine->nt);
}

static void divide_digits(LoopKernel *kernel)
{
    size_t n = vec_len(kernel->ex);

    for (size_t i = 0; i < n; i++)
        if (kernel->ex[i]->seen && kernel->ex[i]->lin)
            kernel->ex[i]->lin = without_digits(kernel, kernel->ex[i]->lin);
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        kernel->st[i].addr = without_digits(kernel, kernel->st[i].addr);
}

/* ---- merging ------------------------------------------------------------- */

static int factors_of(const AffineExpr *affine, int loop, const SizeProduct **k)
{
    int n = 0;

    for (int i = 0; i < affine->nt; i++)
        if (affine->term[i].var == loop)
            k[n++] = affine->term[i].k;
    return n;
}

/* Does affine walk p and q as one loop, q the faster? */
static int as_one(LoopKernel *kernel, const AffineExpr *affine, int p, int q)
{
    const SizeProduct *kp[64], *kq[64];

    if (affine->nt > 64)
        return 0;
    int np = factors_of(affine, p, kp), nq = factors_of(affine, q, kq);
    if (np != nq)
        return 0;
    for (int i = 0; i < nq; i++) {
        const SizeProduct *want =
            mono_mul(kernel->pool, kq[i], kernel->loop[q].extent);
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

static int can_merge(LoopKernel *kernel, int p, int q)
{
    if (kernel->loop[q].map)
        return 0;
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        if (!together(kernel->st[i].loops, p, q))
            return 0;
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->seen && !together(kernel->ex[i]->K, p, q))
            return 0;
    for (size_t i = 0; i < lin_count(kernel); i++)
        if (lin_used(kernel, i) && !as_one(kernel, *lin_at(kernel, i), p, q))
            return 0;
    return 1;
}

static const AffineExpr *without_loop(LoopKernel *kernel,
                                      const AffineExpr *affine, int p)
{
    Term *t = alloc(kernel->pool->arena, ((size_t)affine->nt + 1) * sizeof *t);
    int n = 0;

    for (int i = 0; i < affine->nt; i++)
        if (affine->term[i].var != p)
            t[n++] = affine->term[i];
    return n == affine->nt
               ? affine
               : lin_make(kernel->pool, affine->off, affine->hasoff, t, n);
}

static void merge(LoopKernel *kernel, int p, int q)
{
    Loop *a = &kernel->loop[p], *b = &kernel->loop[q];

    for (size_t i = 0; i < lin_count(kernel); i++)
        if (lin_used(kernel, i))
            *lin_at(kernel, i) = without_loop(kernel, *lin_at(kernel, i), p);
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        kernel->ex[i]->K &= ~(1ull << p);
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        kernel->st[i].loops &= ~(1ull << p);
    if (a->map) {
        b->map = a->map;
        b->per = a->per ? mono_mul(kernel->pool, a->per, b->extent) : b->extent;
    }
    b->extent = mono_mul(kernel->pool, a->extent, b->extent);
    a->gone = 1;
}

static int merge_any(LoopKernel *kernel)
{
    for (int p = 0; p < kernel->nloop; p++)
        for (int q = 0; q < kernel->nloop; q++)
            if (p != q && !kernel->loop[p].gone && !kernel->loop[q].gone &&
                can_merge(kernel, p, q)) {
                merge(kernel, p, q);
                return 1;
            }
    return 0;
}

void kern_tidy(LoopKernel *kernel)
{
    mark_used(kernel);
    cut_all(kernel);
    mark_used(kernel);
    divide_digits(kernel);
    mark_used(kernel);
    while (merge_any(kernel))
        ;
    mark_used(kernel);
}
