/* expr.c: constructors of interned expressions. */
#include "loop.h"

uint64_t affine_loops(const LoopKernel *kernel, const AffineExpr *affine)
{
    uint64_t m = 0;

    for (int i = 0; affine && i < affine->nt; i++) {
        int v = affine->term[i].var;
        m |= v < MAXLOOP ? 1ull << v : kernel->ex[v - MAXLOOP]->deps;
    }
    return m;
}

static uint64_t hash_ex(const Expr *expr)
{
    uint64_t bits, h = mix64(mix64((uint64_t)expr->kind, expr->dt), expr->K);

    memcpy(&bits, &expr->f, 8);
    h = mix64(mix64(mix64(h, KEYP(expr->of)), KEYP(expr->lin)),
              KEYP(expr->buf));
    h = mix64(mix64(mix64(h, bits), (uint64_t)expr->op), (uint64_t)expr->iv.c);
    for (int i = 0; i < expr->na; i++)
        h = mix64(h, expr->arg[i] ? (uint64_t)expr->arg[i]->id : ~0ull);
    return h;
}

static int same_ex(const Expr *x, const Expr *y)
{
    return x->kind == y->kind && x->dt == y->dt && x->of == y->of &&
           x->lin == y->lin && x->buf == y->buf && x->op == y->op &&
           x->K == y->K && x->na == y->na && x->raw == y->raw &&
           x->calls == y->calls && !memcmp(&x->f, &y->f, sizeof x->f) &&
           !memcmp(&x->iv, &y->iv, sizeof x->iv) &&
           !memcmp(x->arg, y->arg, sizeof x->arg);
}

Expr *ex_make(LoopKernel *kernel, Expr *expr)
{
    for (uint64_t h = hash_ex(expr);; h++) {
        void **slot = table_at(kernel->exof, h);
        if (*slot && same_ex(*slot, expr))
            return *slot;
        if (*slot)
            continue;
        Expr *x = alloc(kernel->arena, sizeof *x);
        *x = *expr;
        x->id = (int)vec_len(kernel->ex);
        x->deps = affine_loops(kernel, expr->lin);
        for (int i = 0; i < expr->na; i++)
            x->deps |= expr->arg[i] ? expr->arg[i]->deps : 0;
        x->deps &= ~expr->K;
        vec_push(kernel->arena, kernel->ex, x);
        return *slot = x;
    }
}

/* affine with each integer variable replaced by as[its id]. */
static const AffineExpr *
replaced_affine(LoopKernel *kernel, const AffineExpr *affine, Expr *const *as)
{
    Term *t = alloc(kernel->arena, ((size_t)affine->nt + 1) * sizeof *t);
    int other = 0;

    for (int i = 0; i < affine->nt; i++) {
        int id = affine->term[i].var - MAXLOOP;
        t[i] = affine->term[i];
        if (id < 0 || as[id]->id == id)
            continue;
        t[i].var = MAXLOOP + as[id]->id;
        other = 1;
    }
    return other ? affine_make(kernel->pool, affine->off, affine->hasoff, t,
                               affine->nt)
                 : affine;
}

/* The expression in the table that equals expr; adds expr if there is none. */
static Expr *interned(Table *of, Expr *expr)
{
    for (uint64_t h = hash_ex(expr);; h++) {
        void **slot = table_at(of, h);
        if (!*slot)
            *slot = expr;
        if (same_ex(*slot, expr))
            return *slot;
    }
}

void ex_unify(LoopKernel *kernel)
{
    size_t n = vec_len(kernel->ex);
    Expr **as = alloc(kernel->arena, (n + 1) * sizeof *as);

    kernel->exof = table_new(kernel->arena);
    for (size_t i = 0; i < n; i++) {
        Expr *expr = as[i] = kernel->ex[i];
        if (!expr->seen)
            continue;
        for (int k = 0; k < expr->na; k++)
            expr->arg[k] = expr->arg[k] ? as[expr->arg[k]->id] : NULL;
        if (expr->lin)
            expr->lin = replaced_affine(kernel, expr->lin, as);
        as[i] = interned(kernel->exof, expr);
    }
    for (size_t i = 0; i < vec_len(kernel->st); i++) {
        Store *store = &kernel->st[i];
        store->val = as[store->val->id];
        store->addr = replaced_affine(kernel, store->addr, as);
    }
}

Expr *ex_scalar(LoopKernel *kernel, Dtype dt, const ScalarExpr *of, int raw,
                int na, Expr *const *arg)
{
    Expr e = { .kind = Xexpr,
               .dt = dt,
               .of = of,
               .raw = raw,
               .na = na,
               .calls = dt == Df64 ? Df64 : Df32 };

    for (int i = 0; i < na; i++) {
        e.arg[i] = arg[i];
        if (arg[i]->dt == Df64)
            e.calls = Df64;
    }
    return ex_make(kernel, &e);
}

Expr *ex_expr(LoopKernel *kernel, Dtype dt, const char *text, int na,
              Expr *const *arg)
{
    return ex_scalar(kernel, dt, scalar_of(text), ~0, na, arg);
}

Expr *ex_op(LoopKernel *kernel, Dtype dt, const char *text, Expr *a, Expr *b,
            Expr *d)
{
    Expr *arg[3] = { a, b, d };

    return ex_expr(kernel, dt, text, d ? 3 : b ? 2 : 1, arg);
}

Expr *ex_num(LoopKernel *kernel, Dtype dt, double f)
{
    return ex_make(kernel, &(Expr){ .kind = Xnum, .dt = dt, .f = f });
}

Expr *ex_key(LoopKernel *kernel, int64_t x)
{
    return ex_make(kernel, &(Expr){ .kind = Xkey, .dt = Di64, .iv = aff(x) });
}

Expr *ex_int(LoopKernel *kernel, RankAffine x)
{
    return ex_make(kernel, &(Expr){ .kind = Xint, .dt = Di64, .iv = x });
}

Expr *ex_aff(LoopKernel *kernel, Dtype dt, const AffineExpr *affine)
{
    return ex_make(kernel, &(Expr){ .kind = Xlin, .dt = dt, .lin = affine });
}

Expr *ex_as(LoopKernel *kernel, Dtype dt, Expr *expr)
{
    if (expr->kind == Xnum)
        return ex_num(kernel, dt, expr->f);
    return expr->dt == dt ? expr
                          : ex_scalar(kernel, dt, scalar_of("a"), 0, 1, &expr);
}

/* The integer operand of a conversion to dt, else expr. */
Expr *ex_integer(Expr *expr)
{
    int cast = expr->kind == Xexpr && expr->of == scalar_of("a") &&
               expr->arg[0]->dt == Di32;

    return cast ? expr->arg[0] : expr;
}

/* An integer value as a variable of index expressions. */
const AffineExpr *ex_index(LoopKernel *kernel, Expr *expr)
{
    if (expr->kind == Xlin)
        return expr->lin;
    return affine_var(kernel->pool, MAXLOOP + ex_as(kernel, Di64, expr)->id);
}

Expr *ex_rounded(LoopKernel *kernel, Dtype dt, Expr *expr)
{
    Dtype ct = compute_type(dt);

    expr = ex_as(kernel, ct, expr);
    if (!*dtypes[dt].round || (expr->kind == Xload && expr->buf->dt == dt))
        return expr;
    return ex_op(kernel, ct, dtypes[dt].round, expr, NULL, NULL);
}

Expr *ex_unrounded(Dtype dt, Expr *expr)
{
    const char *round = dtypes[dt].round;

    return *round && expr->kind == Xexpr && expr->of == scalar_of(round)
               ? expr->arg[0]
               : expr;
}

Expr *ex_select(LoopKernel *kernel, Expr *guard, Expr *yes, Expr *no)
{
    return ex_op(kernel, yes->dt, "a ? b : c", guard, yes, no);
}

Expr *ex_both(LoopKernel *kernel, Expr *x, Expr *y)
{
    return !x ? y : !y ? x : ex_op(kernel, Di32, "a & b", x, y, NULL);
}

/* 0 <= affine < n */
Expr *ex_within(LoopKernel *kernel, const AffineExpr *affine, RankAffine n)
{
    return ex_op(kernel, Di32, "(uint64_t)a < (uint64_t)b",
                 ex_aff(kernel, Di64, affine), ex_int(kernel, n), NULL);
}

Expr *ex_load(LoopKernel *kernel, Node *buf, Dtype dt, const AffineExpr *at,
              Expr *guard)
{
    return ex_make(kernel, &(Expr){ .kind = Xload,
                                    .dt = compute_type(dt),
                                    .buf = buf,
                                    .lin = at,
                                    .na = 1,
                                    .arg = { guard } });
}
