/* canonicalize.c: fits the loops of a kernel to its accesses. A loop whose
 * digits are used separately (a merged axis next to its factors) is cut into a
 * loop per digit. Loops that all accesses traverse as one (equal ratio of
 * strides) are merged. Remaining digits become explicit divisions.
 *
 *     x[b][s][h] + w[h]          b s h   ->   bs h
 *     x[b][s][h] + y[b][s][h]    b s h   ->   bsh */
#include "loop.h"

/* ---- index expressions in use -------------------------------------------- */

static void mark_expr(LoopKernel *kernel, Expr *expr);

static void mark_affine(LoopKernel *kernel, const AffineExpr *affine)
{
    for (int i = 0; affine && i < affine->nt; i++)
        if (affine->term[i].var >= MAXLOOP)
            mark_expr(kernel, kernel->ex[affine->term[i].var - MAXLOOP]);
}

/* Marks the values that expr needs and recomputes their deps. */
static void mark_expr(LoopKernel *kernel, Expr *expr)
{
    if (expr->seen)
        return;
    expr->seen = 1;
    expr->deps = 0;
    mark_affine(kernel, expr->lin);
    for (int i = 0; expr->lin && i < expr->lin->nt; i++) {
        int v = expr->lin->term[i].var;
        expr->deps |= v < MAXLOOP ? 1ull << v : kernel->ex[v - MAXLOOP]->deps;
    }
    for (int i = 0; i < expr->na; i++)
        if (expr->arg[i]) {
            mark_expr(kernel, expr->arg[i]);
            expr->deps |= expr->arg[i]->deps;
        }
    expr->deps &= ~expr->K;
}

static void mark_used(LoopKernel *kernel)
{
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        kernel->ex[i]->seen = 0;
    for (size_t i = 0; i < vec_len(kernel->st); i++) {
        mark_expr(kernel, kernel->st[i].val);
        mark_affine(kernel, kernel->st[i].addr);
    }
}

/* The i-th index expression, of expressions first, then of stores. */
static const AffineExpr **index_at(LoopKernel *kernel, size_t i)
{
    size_t n = vec_len(kernel->ex);

    return i < n ? &kernel->ex[i]->lin : &kernel->st[i - n].addr;
}

static size_t index_count(const LoopKernel *kernel)
{
    return vec_len(kernel->ex) + vec_len(kernel->st);
}

static int index_used(const LoopKernel *kernel, size_t i)
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

/* Loops that all stores and all reductions have. */
static uint64_t common_loops_of(const LoopKernel *kernel)
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

/* May loop p be replaced by loop q? No store or value runs over both, and a
 * reduction over q is computed before any loop of a row is open; reductions of
 * a tile run over the columns of a thread. */
static int can_replace(const LoopKernel *kernel, int p, int q)
{
    uint64_t items = common_loops_of(kernel);

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

/* Does an access traverse p and q as one loop, q the inner one? */
static int walked_as_one(LoopKernel *kernel, int p, int q)
{
    for (size_t i = 0; i < index_count(kernel); i++) {
        const AffineExpr *l =
            index_used(kernel, i) ? *index_at(kernel, i) : NULL;
        const SizeProduct *k = NULL, *want = NULL;
        for (int j = 0; l && j < l->nt; j++) {
            if (l->term[j].var == p)
                k = l->term[j].k;
            if (l->term[j].var == q)
                want = size_mul(kernel->pool, l->term[j].k,
                                kernel->loop[q].extent);
        }
        if (k && k == want)
            return 1;
    }
    return 0;
}

/* GPU: cuts a row's loop like other parts of the kernel do, so that they share
 * loops and the row stays in registers (map_gpu.c). */
static void cut_like_others(LoopKernel *kernel, int loop, Cuts *cuts)
{
    for (int p = 0; p < kernel->nloop; p++)
        for (int q = 0; q < kernel->nloop; q++)
            if (p != q && can_replace(kernel, loop, p) &&
                can_replace(kernel, loop, q) &&
                size_mul(kernel->pool, kernel->loop[p].extent,
                         kernel->loop[q].extent) == kernel->loop[loop].extent &&
                walked_as_one(kernel, p, q))
                add_cut(cuts, kernel->loop[q].extent);
}

static Cuts cuts_of(LoopKernel *kernel, int loop)
{
    Cuts s = { 0 };

    add_cut(&s, size_one(kernel->pool));
    add_cut(&s, kernel->loop[loop].extent);
    if (kernel->gpu)
        cut_like_others(kernel, loop, &s);
    for (size_t i = 0; i < index_count(kernel); i++) {
        if (!index_used(kernel, i))
            continue;
        const AffineExpr *l = *index_at(kernel, i);
        for (int k = 0; k < l->nt; k++) {
            const Term *term = &l->term[k];
            if (term->var != loop)
                continue;
            add_cut(&s, term->div);
            if (term->mod)
                add_cut(&s, size_mul(kernel->pool, term->div, term->mod));
        }
    }
    qsort(s.at, (size_t)s.n, sizeof *s.at, by_factors);
    return s;
}

static int is_divisor_chain(LoopKernel *kernel, const Cuts *cuts)
{
    for (int i = 1; i < cuts->n; i++)
        if (!size_div(kernel->pool, cuts->at[i], cuts->at[i - 1]))
            return 0;
    return 1;
}

/* Terms of a cut loop become sums over the new loops. */
static const AffineExpr *cut_affine(LoopKernel *kernel,
                                    const AffineExpr *affine, int loop,
                                    const Cuts *cuts)
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
            term->mod ? size_mul(kernel->pool, term->div, term->mod)
                      : kernel->loop[loop].extent;
        for (int k = 0; k + 1 < cuts->n; k++) {
            const SizeProduct *f =
                size_div(kernel->pool, cuts->at[k], term->div);
            if (f && size_div(kernel->pool, end, cuts->at[k + 1]) && n < 256)
                t[n++] = (Term){ cuts->loop[k], size_one(kernel->pool), NULL,
                                 size_mul(kernel->pool, term->k, f) };
        }
    }
    return affine_make(kernel->pool, affine->off, affine->hasoff, t, n);
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

/* A loop of `product` iterations for a digit of loop p: an existing one, or a
 * new one. */
static int loop_of_digit(LoopKernel *kernel, int p, const SizeProduct *product,
                         uint64_t taken)
{
    for (int q = 0; q < kernel->nloop && kernel->gpu; q++)
        if (kernel->loop[q].extent == product && !(taken >> q & 1) &&
            can_replace(kernel, p, q))
            return q;
    if (kernel->nloop == MAXLOOP)
        die("a kernel of more than %d loops", MAXLOOP);
    kernel->loop[kernel->nloop] =
        (Loop){ .axis = kernel->loop[p].axis, .extent = product };
    return kernel->nloop++;
}

static void cut_loop(LoopKernel *kernel, int loop, Cuts *cuts)
{
    uint64_t taken = 0;

    for (int k = 0; k + 1 < cuts->n; k++) {
        cuts->loop[k] = loop_of_digit(
            kernel, loop, size_div(kernel->pool, cuts->at[k + 1], cuts->at[k]),
            taken);
        taken |= 1ull << cuts->loop[k];
    }
    for (size_t i = 0; i < index_count(kernel); i++)
        if (index_used(kernel, i))
            *index_at(kernel, i) =
                cut_affine(kernel, *index_at(kernel, i), loop, cuts);
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
        if (s.n > 2 && !kernel->loop[i].map && is_divisor_chain(kernel, &s)) {
            cut_loop(kernel, i, &s);
            any = 1;
        }
    }
    if (any)
        ex_unify(kernel);
}

/* ---- remaining digits ---------------------------------------------------- */

static int divide_term(LoopKernel *kernel, const Term *term)
{
    Term whole = { term->var, size_one(kernel->pool), NULL,
                   size_one(kernel->pool) };
    const AffineExpr *x = affine_make(kernel->pool, aff(0), 0, &whole, 1);
    Expr *arg[2] = { ex_aff(kernel, Di64, x),
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
        t[i] = (Term){ divide_term(kernel, &affine->term[i]),
                       size_one(kernel->pool), NULL, t[i].k };
    }
    return affine_make(kernel->pool, affine->off, affine->hasoff, t,
                       affine->nt);
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

/* Does affine traverse p and q as one loop, q the inner one? */
static int walks_as_one(LoopKernel *kernel, const AffineExpr *affine, int p,
                        int q)
{
    const SizeProduct *kp[64], *kq[64];

    if (affine->nt > 64)
        return 0;
    int np = factors_of(affine, p, kp), nq = factors_of(affine, q, kq);
    if (np != nq)
        return 0;
    for (int i = 0; i < nq; i++) {
        const SizeProduct *want =
            size_mul(kernel->pool, kq[i], kernel->loop[q].extent);
        int j = 0;
        while (j < np && kp[j] != want)
            j++;
        if (j == np)
            return 0;
        kp[j] = kp[--np];
    }
    return 1;
}

static int same_bit(uint64_t m, int p, int q)
{
    return (m >> p & 1) == (m >> q & 1);
}

static int can_merge(LoopKernel *kernel, int p, int q)
{
    if (kernel->loop[q].map)
        return 0;
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        if (!same_bit(kernel->st[i].loops, p, q))
            return 0;
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->seen && !same_bit(kernel->ex[i]->K, p, q))
            return 0;
    for (size_t i = 0; i < index_count(kernel); i++)
        if (index_used(kernel, i) &&
            !walks_as_one(kernel, *index_at(kernel, i), p, q))
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
               : affine_make(kernel->pool, affine->off, affine->hasoff, t, n);
}

static void merge_loops(LoopKernel *kernel, int p, int q)
{
    Loop *a = &kernel->loop[p], *b = &kernel->loop[q];

    for (size_t i = 0; i < index_count(kernel); i++)
        if (index_used(kernel, i))
            *index_at(kernel, i) =
                without_loop(kernel, *index_at(kernel, i), p);
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        kernel->ex[i]->K &= ~(1ull << p);
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        kernel->st[i].loops &= ~(1ull << p);
    if (a->map) {
        b->map = a->map;
        b->per = a->per ? size_mul(kernel->pool, a->per, b->extent) : b->extent;
    }
    b->extent = size_mul(kernel->pool, a->extent, b->extent);
    a->gone = 1;
}

static int merge_any(LoopKernel *kernel)
{
    for (int p = 0; p < kernel->nloop; p++)
        for (int q = 0; q < kernel->nloop; q++)
            if (p != q && !kernel->loop[p].gone && !kernel->loop[q].gone &&
                can_merge(kernel, p, q)) {
                merge_loops(kernel, p, q);
                return 1;
            }
    return 0;
}

void canonicalize_loops(LoopKernel *kernel)
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
