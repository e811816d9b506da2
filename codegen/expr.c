/* expr.c: expressions of a kernel. Equal ones are one object. */
#include "codegen.h"

#include <string.h>

uint64_t lin_deps(const Kern *c, const Lin *l)
{
    uint64_t m = 0;

    for (int i = 0; l && i < l->nt; i++) {
        int v = l->t[i].var;
        m |= v < MAXLOOP ? 1ull << v : c->ex[v - MAXLOOP]->deps;
    }
    return m;
}

static uint64_t hash_ex(const Ex *e)
{
    uint64_t bits, h = mix64(mix64((uint64_t)e->kind, e->dt), e->K);

    memcpy(&bits, &e->f, 8);
    h = mix64(mix64(mix64(h, KEYP(e->text)), KEYP(e->lin)), KEYP(e->buf));
    h = mix64(mix64(mix64(h, bits), (uint64_t)e->op), (uint64_t)e->iv.c);
    for (int i = 0; i < e->na; i++)
        h = mix64(h, e->arg[i] ? (uint64_t)e->arg[i]->id : ~0ull);
    return h;
}

static int same_ex(const Ex *x, const Ex *y)
{
    return x->kind == y->kind && x->dt == y->dt && x->text == y->text &&
           x->lin == y->lin && x->buf == y->buf && x->op == y->op &&
           x->K == y->K && x->na == y->na && x->raw == y->raw &&
           x->suffix == y->suffix && !memcmp(&x->f, &y->f, sizeof x->f) &&
           !memcmp(&x->iv, &y->iv, sizeof x->iv) &&
           !memcmp(x->arg, y->arg, sizeof x->arg);
}

Ex *ex_make(Kern *c, Ex *e)
{
    for (uint64_t h = hash_ex(e);; h++) {
        void **slot = table_at(c->exof, h);
        if (*slot && same_ex(*slot, e))
            return *slot;
        if (*slot)
            continue;
        Ex *x = alloc(c->a, sizeof *x);
        *x = *e;
        x->id = (int)vec_len(c->ex);
        x->deps = lin_deps(c, e->lin);
        for (int i = 0; i < e->na; i++)
            x->deps |= e->arg[i] ? e->arg[i]->deps : 0;
        x->deps &= ~e->K;
        vec_push(c->a, c->ex, x);
        return *slot = x;
    }
}

Ex *ex_text(Kern *c, Dtype dt, const char *text, const char *letters, int raw,
            int na, Ex *const *arg)
{
    Ex e = { .kind = Xexpr,
             .dt = dt,
             .text = intern(text),
             .letters = letters,
             .raw = raw,
             .na = na,
             .suffix = "_f32" };

    for (int i = 0; i < na; i++) {
        e.arg[i] = arg[i];
        if (arg[i]->dt == Df64)
            e.suffix = "_f64";
    }
    if (dt == Df64)
        e.suffix = "_f64";
    return ex_make(c, &e);
}

Ex *ex_expr(Kern *c, Dtype dt, const char *text, int na, Ex *const *arg)
{
    return ex_text(c, dt, text, "abcd", ~0, na, arg);
}

Ex *ex_op(Kern *c, Dtype dt, const char *text, Ex *a, Ex *b, Ex *d)
{
    Ex *arg[3] = { a, b, d };

    return ex_expr(c, dt, text, d ? 3 : b ? 2 : 1, arg);
}

Ex *ex_num(Kern *c, Dtype dt, double f)
{
    return ex_make(c, &(Ex){ .kind = Xnum, .dt = dt, .f = f });
}

Ex *ex_key(Kern *c, int64_t x)
{
    return ex_make(c, &(Ex){ .kind = Xkey, .dt = Di64, .iv = aff(x) });
}

Ex *ex_int(Kern *c, Aff x)
{
    return ex_make(c, &(Ex){ .kind = Xint, .dt = Di64, .iv = x });
}

Ex *ex_lin(Kern *c, Dtype dt, const Lin *l)
{
    return ex_make(c, &(Ex){ .kind = Xlin, .dt = dt, .lin = l });
}

Ex *ex_as(Kern *c, Dtype dt, Ex *x)
{
    if (x->kind == Xnum)
        return ex_num(c, dt, x->f);
    return x->dt == dt ? x : ex_text(c, dt, "a", "abcd", 0, 1, &x);
}

/* An integer value as a variable of index expressions. */
const Lin *ex_index(Kern *c, Ex *x)
{
    if (x->kind == Xlin)
        return x->lin;
    return lin_var(c->pool, MAXLOOP + ex_as(c, Di64, x)->id);
}

Ex *ex_rounded(Kern *c, Dtype dt, Ex *x)
{
    Dtype ct = compute_type(dt);

    x = ex_as(c, ct, x);
    if (dt != Dbf16 || (x->kind == Xload && x->buf->dt == Dbf16))
        return x;
    return ex_op(c, ct, "rbf(a)", x, NULL, NULL);
}

Ex *ex_select(Kern *c, Ex *guard, Ex *yes, Ex *no)
{
    return ex_op(c, yes->dt, "a ? b : c", guard, yes, no);
}

Ex *ex_both(Kern *c, Ex *x, Ex *y)
{
    return !x ? y : !y ? x : ex_op(c, Di32, "a & b", x, y, NULL);
}

/* 0 <= l < n */
Ex *ex_within(Kern *c, const Lin *l, Aff n)
{
    return ex_op(c, Di32, "(uint64_t)a < (uint64_t)b", ex_lin(c, Di64, l),
                 ex_int(c, n), NULL);
}

Ex *ex_load(Kern *c, Node *buf, Dtype dt, const Lin *at, Ex *guard)
{
    return ex_make(c, &(Ex){ .kind = Xload,
                             .dt = compute_type(dt),
                             .buf = buf,
                             .lin = at,
                             .na = 1,
                             .arg = { guard } });
}
