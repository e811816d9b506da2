/* genops.c: statements of elementwise ops, reductions and products. */
#include <math.h>
#include <string.h>

#include "gen.h"

/* ---- elementwise --------------------------------------------------------- */

static int unary(Gen *g)
{
    static const struct {
        const char *text;
        double most; /* of the result, by the operand's: below */
    } forms[] = {
        { "tanh(%s)", 1 }, { "sigmoid(%s)", 1 },
        { "silu(%s)", 0 }, { "gelu(%s)", 0 },
        { "relu(%s)", 0 }, { "softplus(%s)", 0 },
        { "abs(%s)", 0 },  { "-%s", 0 },
        { "sin(%s)", 1 },  { "cos(%s)", 1 },
        { "f32(%s)", 0 },  { "bf16(%s)", 0 },
        { "sign(%s)", 1 }, { "stop_gradient(%s)", 0 },
    };
    Tens *t = any_real(g), like = *t;
    int64_t k = below(g, sizeof forms / sizeof *forms);
    const char *x = t->name;

    if (forms[k].most > 0)
        like.most = forms[k].most;
    emit(g, &like, forms[k].text, x);
    return 1;
}

/* Functions whose operand must be positive or small. */
static int guarded(Gen *g)
{
    Tens *t = any_real(g), like = *t;
    const char *x = tame(g, t, 2);

    like.most = 3;
    switch (below(g, 7)) {
    case 0:
        emit(g, &like, "exp(%s)", x);
        like.most = 7;
        break;
    case 1: emit(g, &like, "log(%s * %s + 0.3)", x, x); break;
    case 2: emit(g, &like, "sqrt(%s * %s + 0.2)", x, x); break;
    case 3: emit(g, &like, "rsqrt(%s * %s + 0.2)", x, x); break;
    case 4: emit(g, &like, "(%s * %s + 0.4) ^ 1.5", x, x); break;
    case 5: emit(g, &like, "(%s) ^ %s", x, ONE_OF(g, "2", "3")); break;
    default: emit(g, &like, "%s ^ (%s)", ONE_OF(g, "2", "1.3"), x); break;
    }
    g->t[vec_len(g->t) - 1]->most = 8;
    return 1;
}

static int affine(Gen *g)
{
    Tens *t = any_real(g), like = *t;

    like.most = 1.5 * t->most + 0.3;
    emit(g, &like, "%s",
         strf(g->a,
              ONE_OF(g, "%s * 1.5 - 0.3", "0.7 - %s", "%s / 2", "%s * 0 + 0.6",
                     "1.2 * %s", "%s + 0"),
              t->name));
    return 1;
}

static int fits_with(const Tens *t, const void *with)
{
    return united(with, t).nd >= 0;
}

static int binary(Gen *g)
{
    Tens *a = any_real(g), *b = pick(g, REAL, fits_with, a);

    if (!b)
        return 0;
    Tens like = united(a, b);
    const char *x = tame(g, a, 4), *y = tame(g, b, 4);
    like.most = 16;
    switch (below(g, 8)) {
    case 0:
    case 1: like.most = 8, emit(g, &like, "%s + %s", x, y); break;
    case 2: like.most = 8, emit(g, &like, "%s - %s", x, y); break;
    case 3: emit(g, &like, "%s / (%s * %s + 1)", x, y, y); break;
    case 4: emit(g, &like, "fma(%s, %s, %s)", x, y, x); break;
    case 5: emit(g, &like, "swiglu(%s, %s)", x, y); break;
    default: emit(g, &like, "%s * %s", x, y); break;
    }
    return 1;
}

/* Comparisons stay off equal operands. */
static int choice(Gen *g)
{
    Tens *a = any_real(g), *b = pick(g, REAL, fits_with, a);

    if (!b)
        return 0;
    Tens like = united(a, b);
    const char *x = a->name, *y = b->name,
               *cmp = ONE_OF(g, "lt", "gt", "le", "ge");
    like.most = fmax(a->most, b->most) + 0.1;
    switch (below(g, 5)) {
    case 0: emit(g, &like, "minimum(%s, %s + 0.011)", x, y); break;
    case 1: emit(g, &like, "maximum(%s, %s + 0.011)", x, y); break;
    case 2:
        emit(g, &like, "where(%s(%s, %s + 0.011), %s, %s)", cmp, x, y, y,
             ONE_OF(g, "0", "1.5", "-0.5"));
        break;
    case 3:
        emit(g, &like, "where(%s(%s, %s + 0.011), %s, %s)", cmp, x, y, x, y);
        break;
    default: like.kind = TRUTH; emit(g, &like, "%s(%s, %s + 0.011)", cmp, x, y);
    }
    return 1;
}

static int with_number(Gen *g)
{
    Tens *a = any_real(g), like = *a;

    like.most += 0.5;
    emit(g, &like, "%s(%s, %s)", ONE_OF(g, "maximum", "minimum"), a->name,
         ONE_OF(g, "0.123", "-0.217", "0.011"));
    return 1;
}

/* ---- truth values and integers ------------------------------------------- */

static int logic(Gen *g)
{
    Tens *a = pick(g, TRUTH, NULL, NULL), *b, like;

    if (!a)
        return 0;
    b = pick(g, TRUTH, fits_with, a);
    like = b ? united(a, b) : *a;
    if (!b || chance(g, 20))
        emit(g, a, "lnot(%s)", a->name);
    else
        emit(g, &like, "%s(%s, %s)", ONE_OF(g, "land", "lor", "ne", "eq"),
             a->name, b->name);
    return 1;
}

static int masked(Gen *g)
{
    Tens *c = pick(g, TRUTH, NULL, NULL), *x, like;

    if (!c || !(x = pick(g, REAL, fits_with, c)))
        return 0;
    like = united(x, c);
    like.kind = REAL;
    switch (below(g, 3)) {
    case 0: emit(g, &like, "where(%s, %s, 0)", c->name, x->name); break;
    case 1: emit(g, &like, "%s * f32(%s)", x->name, c->name); break;
    default: emit(g, &like, "%s * %s", x->name, c->name);
    }
    return 1;
}

static const char *iota_text(Gen *g, GDim d)
{
    return strf(
        g->a, ONE_OF(g, "iota(\"%s\")", "iota(\"%s\") * 3", "iota(\"%s\") + 5"),
        d.a);
}

static int integers(Gen *g)
{
    Tens like = { .kind = INTEGER };
    GDim a = some_axis(g, 1), b = some_axis(g, 1);
    int64_t mod = 2 + below(g, 4);

    add_dim(&like, a);
    if (b.a != a.a)
        add_dim(&like, b);
    like.most = (double)mod;
    emit(g, &like, "mod(%s + %s, %lld)", iota_text(g, a), iota_text(g, b),
         (long long)mod);
    return 1;
}

/* Integers of integers, kept small. */
static int arithmetic(Gen *g)
{
    static const char *const two[] = {
        "mod(%s + %s, 5)",     "mod(%s * %s, 7)",
        "mod(%s - %s, 3)",     "maximum(%s, %s)",
        "minimum(%s, %s)",     "where(lt(%1$s, 2), %2$s, %1$s)",
        "mod(xor(%s, %s), 6)",
    };
    static const char *const one[] = {
        "abs(%s)",
        "mod(-%s, 4)",
        "sign(%s)",
        "mod(%s * 3 + 1, 5)",
        "%s // 2",
        "%s // -3",
        "where(gt(%s, 1), 1, 0)",
        "int(f32(%s) * 0.3 + 0.05)",
    };
    Tens *a = pick(g, INTEGER, NULL, NULL), *b, like;

    if (!a)
        return 0;
    b = pick(g, INTEGER, fits_with, a);
    like = b ? united(a, b) : *a;
    like.of = NULL;
    like.most = 7;
    if (b && chance(g, 60))
        emit(g, &like, two[below(g, 7)], a->name, b->name);
    else
        emit(g, a, one[below(g, 8)], a->name)->of = NULL;
    return 1;
}

/* Which of an axis: integers below its size. */
static int indices(Gen *g)
{
    GDim d = some_axis(g, 2);
    Tens *a = pick(g, INTEGER, NULL, NULL), like;

    if (!a || dim_at(a, d.a) >= 0)
        return 0;
    like = *a;
    like.of = d.a;
    like.ofn = d.n;
    if (chance(g, 50))
        emit(g, &like, "index(mod(abs(%s), %lld), \"%s\")", a->name,
             (long long)d.n, d.a);
    else
        emit(g, &like, "hash_index(abs(%s), \"%s\")", a->name, d.a);
    return 1;
}

static int fits_integer(const Tens *t, const void *with)
{
    return fits_with(t, with) && !t->of;
}

static int of_integers(Gen *g)
{
    Tens *a = pick(g, INTEGER, NULL, NULL), *b, like;

    if (!a)
        return 0;
    like = *a;
    like.of = NULL;
    b = pick(g, INTEGER, fits_integer, a);
    if (b && chance(g, 50)) {
        like = united(a, b);
        like.of = NULL;
        like.kind = TRUTH;
        emit(g, &like, "%s(%s, %s)",
             ONE_OF(g, "eq", "ne", "lt", "le", "gt", "ge"), a->name, b->name);
    } else if (chance(g, 50)) {
        like.kind = REAL;
        emit(g, &like,
             ONE_OF(g, "f32(%s) * 0.3", "floor(f32(%s) * 0.3 + 0.05)"),
             a->name);
    } else {
        like.kind = TRUTH;
        emit(g, &like, "eq(mod(%s + 1, 2), 0)", a->name);
    }
    return 1;
}

/* ---- reductions and products --------------------------------------------- */

/* Takes up to two axes away, more rarely all; their names. */
static const char *reduce(Gen *g, Tens *t)
{
    Tens gone = { 0 };
    int64_t n = 1 + below(g, chance(g, 20) ? t->nd : t->nd < 2 ? t->nd : 2);

    while (gone.nd < n) {
        int at = (int)below(g, t->nd);
        add_dim(&gone, t->dim[at]);
        drop_dim(t, at);
    }
    return names_of(g, &gone);
}

static int reduction(Gen *g)
{
    Tens *t = any_real(g), like = *t;

    if (!t->nd)
        return 0;
    int64_t before = elems(t);
    const char *axes = reduce(g, &like);
    const char *f = ONE_OF(g, "sum", "sum", "mean", "max", "min", "logsumexp");
    const char *x = t->name;
    if (!strcmp(f, "logsumexp") && strchr(axes, ' '))
        axes = NULL;
    if (!axes)
        return 0;
    if (!strcmp(f, "sum"))
        like.most *= (double)(before / elems(&like));
    emit(g, &like, "%s(%s, \"%s\")", f, x, axes);
    return 1;
}

static int truths(Gen *g)
{
    Tens *t = pick(g, TRUTH, NULL, NULL), like;

    if (!t || !t->nd)
        return 0;
    like = *t;
    const char *axes = reduce(g, &like);
    if (chance(g, 70)) {
        emit(g, &like, "%s(%s, \"%s\")", ONE_OF(g, "any", "all"), t->name,
             axes);
    } else {
        like.kind = REAL;
        like.most = 2;
        emit(g, &like, "f32(sum(%s, \"%s\")) * 0.2", t->name, axes);
    }
    return 1;
}

static int shares_axis(const Tens *t, const void *with)
{
    const Tens *a = with;
    int shared = 0;

    for (int i = 0; i < t->nd; i++) {
        int at = dim_at(a, t->dim[i].a);
        if (at >= 0 && a->dim[at].n != t->dim[i].n)
            return 0;
        shared += at >= 0;
    }
    return shared > 0 && work(a, t) <= GENWORK &&
           a->nd + t->nd - shared <= GENDIM;
}

/* Summed are some of the axes that both have; the rest are batches. */
static int product(Gen *g)
{
    Tens *a = any_real(g), *b = pick(g, REAL, shares_axis, a);
    Tens like, over = { 0 };
    double n = 1;

    if (!b)
        return 0;
    like = *a;
    like.data |= b->data;
    for (int i = 0; i < b->nd; i++) {
        int at = dim_at(&like, b->dim[i].a);
        if (at < 0) {
            add_dim(&like, b->dim[i]);
        } else if (!over.nd || chance(g, 50)) {
            add_dim(&over, b->dim[i]);
            drop_dim(&like, at);
            n *= (double)b->dim[i].n;
        }
    }
    if (elems(&like) > GENELEMS)
        return 0;
    like.most = fmin(a->most, 4) * fmin(b->most, 4) * sqrt(n);
    emit(g, &like, "dot(%s, %s, \"%s\")", tame(g, a, 4), tame(g, b, 4),
         names_of(g, &over));
    return 1;
}

const GenRow genops[] = {
    { 10, unary },     { 6, guarded },     { 4, affine },   { 14, binary },
    { 8, choice },     { 3, with_number }, { 3, logic },    { 5, masked },
    { 3, arithmetic }, { 3, indices },     { 3, integers }, { 4, of_integers },
    { 14, reduction }, { 2, truths },      { 14, product }, { 0, NULL },
};
