/* expr.c: expressions of a kernel. Equal ones are one object. */
#include "loop.h"

#include <string.h>

uint64_t lin_deps(const LoopKernel *c, const AffineExpr *l)
{
    uint64_t m = 0;

    for (int i = 0; l && i < l->nt; i++) {
        int v = l->term[i].var;
        m |= v < MAXLOOP ? 1ull << v : c->ex[v - MAXLOOP]->deps;
    }
    return m;
}

static uint64_t hash_ex(const Expr *e)
{
    uint64_t bits, h = mix64(mix64((uint64_t)e->kind, e->dt), e->K);

    memcpy(&bits, &e->f, 8);
    h = mix64(mix64(mix64(h, KEYP(e->of)), KEYP(e->lin)), KEYP(e->buf));
    h = mix64(mix64(mix64(h, bits), (uint64_t)e->op), (uint64_t)e->iv.c);
    for (int i = 0; i < e->na; i++)
        h = mix64(h, e->arg[i] ? (uint64_t)e->arg[i]->id : ~0ull);
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

Expr *ex_make(LoopKernel *c, Expr *e)
{
    for (uint64_t h = hash_ex(e);; h++) {
        void **slot = table_at(c->exof, h);
        if (*slot && same_ex(*slot, e))
            return *slot;
        if (*slot)
            continue;
        Expr *x = alloc(c->arena, sizeof *x);
        *x = *e;
        x->id = (int)vec_len(c->ex);
        x->deps = lin_deps(c, e->lin);
        for (int i = 0; i < e->na; i++)
            x->deps |= e->arg[i] ? e->arg[i]->deps : 0;
        x->deps &= ~e->K;
        vec_push(c->arena, c->ex, x);
        return *slot = x;
    }
}

Expr *ex_scalar(LoopKernel *c, Dtype dt, const ScalarExpr *of, int raw, int na,
                Expr *const *arg)
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
    return ex_make(c, &e);
}

Expr *ex_expr(LoopKernel *c, Dtype dt, const char *text, int na,
              Expr *const *arg)
{
    return ex_scalar(c, dt, scalar_of(text), ~0, na, arg);
}

Expr *ex_op(LoopKernel *c, Dtype dt, const char *text, Expr *a, Expr *b,
            Expr *d)
{
    Expr *arg[3] = { a, b, d };

    return ex_expr(c, dt, text, d ? 3 : b ? 2 : 1, arg);
}

Expr *ex_num(LoopKernel *c, Dtype dt, double f)
{
    return ex_make(c, &(Expr){ .kind = Xnum, .dt = dt, .f = f });
}

Expr *ex_key(LoopKernel *c, int64_t x)
{
    return ex_make(c, &(Expr){ .kind = Xkey, .dt = Di64, .iv = aff(x) });
}

Expr *ex_int(LoopKernel *c, RankAffine x)
{
    return ex_make(c, &(Expr){ .kind = Xint, .dt = Di64, .iv = x });
}

Expr *ex_lin(LoopKernel *c, Dtype dt, const AffineExpr *l)
{
    return ex_make(c, &(Expr){ .kind = Xlin, .dt = dt, .lin = l });
}

Expr *ex_as(LoopKernel *c, Dtype dt, Expr *x)
{
    if (x->kind == Xnum)
        return ex_num(c, dt, x->f);
    return x->dt == dt ? x : ex_scalar(c, dt, scalar_of("a"), 0, 1, &x);
}

/* An integer value as a variable of index expressions. */
const AffineExpr *ex_index(LoopKernel *c, Expr *x)
{
    if (x->kind == Xlin)
        return x->lin;
    return lin_var(c->pool, MAXLOOP + ex_as(c, Di64, x)->id);
}

Expr *ex_rounded(LoopKernel *c, Dtype dt, Expr *x)
{
    Dtype ct = compute_type(dt);

    x = ex_as(c, ct, x);
    if (!*dtypes[dt].round || (x->kind == Xload && x->buf->dt == dt))
        return x;
    return ex_op(c, ct, dtypes[dt].round, x, NULL, NULL);
}

Expr *ex_unrounded(Dtype dt, Expr *x)
{
    const char *round = dtypes[dt].round;

    return *round && x->kind == Xexpr && x->of == scalar_of(round) ? x->arg[0]
                                                                   : x;
}

Expr *ex_select(LoopKernel *c, Expr *guard, Expr *yes, Expr *no)
{
    return ex_op(c, yes->dt, "a ? b : c", guard, yes, no);
}

Expr *ex_both(LoopKernel *c, Expr *x, Expr *y)
{
    return !x ? y : !y ? x : ex_op(c, Di32, "a & b", x, y, NULL);
}

/* 0 <= l < n */
Expr *ex_within(LoopKernel *c, const AffineExpr *l, RankAffine n)
{
    return ex_op(c, Di32, "(uint64_t)a < (uint64_t)b", ex_lin(c, Di64, l),
                 ex_int(c, n), NULL);
}

Expr *ex_load(LoopKernel *c, Node *buf, Dtype dt, const AffineExpr *at,
              Expr *guard)
{
    return ex_make(c, &(Expr){ .kind = Xload,
                               .dt = compute_type(dt),
                               .buf = buf,
                               .lin = at,
                               .na = 1,
                               .arg = { guard } });
}
