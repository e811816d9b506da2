/* genrows.c: statements that work along an axis: views, moves, norms and
 * indices. */
#include <math.h>
#include <string.h>

#include "gen.h"

static int has_axes(const Tens *t, const void *with)
{
    (void)with;
    return t->nd > 0;
}

static Tens *row_of(Gen *g, int *at)
{
    Tens *t = pick(g, REAL, has_axes, NULL);

    if (t)
        *at = (int)below(g, t->nd);
    return t;
}

/* Of integers and truths as well. */
static Tens *any_row_of(Gen *g, int *at)
{
    Tens *t = chance(g, 80)
                  ? NULL
                  : pick(g, chance(g, 50) ? INTEGER : TRUTH, has_axes, NULL);

    if (!t)
        return row_of(g, at);
    *at = (int)below(g, t->nd);
    return t;
}

/* ---- views --------------------------------------------------------------- */

static int renamed(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), like;

    if (!t)
        return 0;
    like = *t;
    const char *old = t->dim[at].a;
    GDim d = some_axis(g, 1);
    like.dim[at] = d.n == t->dim[at].n && dim_at(t, d.a) < 0
                       ? d
                       : new_axis(g, "r", t->dim[at].n);
    emit(g, &like, "rename(%s, {%s=\"%s\"})", t->name, old, like.dim[at].a);
    return 1;
}

static int split(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), like;
    GDim d = t ? t->dim[at] : (GDim){ 0 }, into[2];

    if (!t || t->nd == GENDIM)
        return 0;
    into[0] = some_axis(g, 1);
    if (d.n % into[0].n || dim_at(t, into[0].a) >= 0)
        return 0;
    into[1] = new_axis(g, "s", d.n / into[0].n);
    if (chance(g, 50)) {
        GDim x = into[0];
        into[0] = into[1];
        into[1] = x;
    }
    like = *t;
    like.dim[at] = into[0];
    memmove(like.dim + at + 2, like.dim + at + 1,
            (size_t)(like.nd - at - 1) * sizeof *like.dim);
    like.dim[at + 1] = into[1];
    like.nd++;
    emit(g, &like, "split(%s, \"%s\", \"%s %s\")", t->name, d.a, into[0].a,
         into[1].a);
    return 1;
}

static int merged(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), like, v = { 0 };

    if (!t || t->nd < 2)
        return 0;
    like = *t;
    int64_t size = 1;
    for (int64_t n = 2 + below(g, t->nd - 1); v.nd < n;) {
        at = (int)below(g, like.nd);
        size *= like.dim[at].n;
        add_dim(&v, like.dim[at]);
        drop_dim(&like, at);
    }
    GDim d = some_axis(g, 1);
    d = d.n == size && dim_at(t, d.a) < 0 ? d : new_axis(g, "u", size);
    add_dim(&like, d);
    emit(g, &like, "merge(%s, \"%s\", \"%s\")", t->name, names_of(g, &v), d.a);
    return 1;
}

/* ---- moves --------------------------------------------------------------- */

static int sliced(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), like;

    if (!t)
        return 0;
    like = *t;
    int64_t len = 1 + below(g, t->dim[at].n);
    int64_t start = below(g, t->dim[at].n - len + 1);
    like.dim[at].n = len;
    emit(g, &like, "slice(%s, \"%s\", %lld, %lld)", t->name, t->dim[at].a,
         (long long)start, (long long)len);
    return 1;
}

static int shifted(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at);

    if (!t)
        return 0;
    emit(g, t, "shift(%s, \"%s\", %lld%s)", t->name, t->dim[at].a,
         (long long)below(g, 5) - 2, ONE_OF(g, "", ", true"));
    return 1;
}

typedef struct Beside {
    const Tens *t;
    int at;
} Beside;

/* The same axes, and sizes but along one. */
static int beside(const Tens *t, const void *with)
{
    const Beside *b = with;

    if (t->nd != b->t->nd)
        return 0;
    for (int i = 0; i < t->nd; i++) {
        int k = dim_at(b->t, t->dim[i].a);
        if (k < 0 || (k != b->at && t->dim[i].n != b->t->dim[k].n))
            return 0;
    }
    return 1;
}

static int put_together(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), like;

    if (!t)
        return 0;
    Beside b = { t, at };
    Tens *u = pick(g, t->kind, beside, &b);
    like = *t;
    if (!u || t->dim[at].n > 8)
        return 0;
    like.dim[at].n += u->dim[dim_at(u, t->dim[at].a)].n;
    like.most = fmax(t->most, u->most);
    like.data |= u->data;
    if (t->of != u->of || t->ofn != u->ofn)
        return 0;
    emit(g, &like, "concat(%s, %s, \"%s\")", t->name, u->name, t->dim[at].a);
    return 1;
}

static int summed(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like;

    if (!t)
        return 0;
    like = *t;
    like.most *= (double)t->dim[at].n;
    emit(g, &like, "cumsum(%s, \"%s\")", t->name, t->dim[at].a);
    return 1;
}

/* Functions of the prelude along an axis that keep it. */
static int arranged(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like, taps = { .kind = REAL, .most = 1 };

    if (!t)
        return 0;
    const char *axis = t->dim[at].a;
    like = *t;
    if (chance(g, 60)) {
        emit(g, &like, "%s(%s, \"%s\")", ONE_OF(g, "cummax", "sort"), t->name,
             axis);
        return 1;
    }
    add_dim(&taps, new_axis(g, "tap", 1 + below(g, 4)));
    Tens *w = make_param(g, &taps, NULL);
    if (!w)
        return 0;
    w->uses++;
    like.most *= 3;
    emit(g, &like, "conv(%s, %s, \"%s\", \"%s\")", t->name, w->name, axis,
         taps.dim[0].a);
    return 1;
}

/* ---- norms --------------------------------------------------------------- */

static int normed(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like;

    if (!t)
        return 0;
    like = *t;
    const char *axis = t->dim[at].a, *x = tame(g, t, 8);
    like.most = 1;
    switch (below(g, 4)) {
    case 0:
    case 1: emit(g, &like, "softmax(%s, \"%s\")", x, axis); return 1;
    case 2:
        like.most = 2.5;
        emit(g, &like, "%s * rsqrt(mean(%s * %s, \"%s\") + 1e-2)", x, x, x,
             axis);
        return 1;
    default: break;
    }
    if (!declarable(g, t->dim[at]))
        return 0;
    like.most = 3;
    emit(g, &like, "scope(\"n%d\", %s, %s, \"%s\", 1e-2)", g->names,
         ONE_OF(g, "rmsnorm", "layernorm"), x, axis);
    return 1;
}

/* ---- indices ------------------------------------------------------------- */

/* Values and indices of a new axis. */
static int largest(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like;

    if (!t)
        return 0;
    GDim d = t->dim[at];
    int64_t k = 1 + below(g, d.n);
    GDim top = { intern("top"), k };
    if (!chance(g, 10) || dim_at(t, top.a) >= 0)
        top = new_axis(g, "top", k);
    else
        vec_push(g->a, g->made, top);
    int id = ++g->names;
    const char *text =
        strf(g->a, "topk(%s, %lld, \"%s\"%s)", t->name, (long long)k, d.a,
             !strcmp(top.a, "top") ? "" : strf(g->a, ", \"%s\"", top.a));
    line(g, "local g%d, e%d = %s", id, id, text);
    like = *t;
    like.dim[at] = top;
    like.kind = INTEGER;
    like.of = d.a;
    like.ofn = d.n;
    add_tensor(g, strf(g->a, "e%d", id), &like, text);
    like.kind = REAL;
    like.of = NULL;
    add_tensor(g, strf(g->a, "g%d", id), &like, text);
    return 1;
}

static int best(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like;

    if (!t)
        return 0;
    like = *t;
    drop_dim(&like, at);
    like.kind = INTEGER;
    like.most = (double)t->dim[at].n;
    like.of = t->dim[at].a;
    like.ofn = t->dim[at].n;
    emit(g, &like, "argmax(%s, \"%s\")", t->name, t->dim[at].a);
    return 1;
}

static int is_index(const Tens *t, const void *with)
{
    (void)with;
    return t->of != NULL;
}

static int hot(Gen *g)
{
    Tens *e = pick(g, INTEGER, is_index, NULL), *v, like;

    if (!e || dim_at(e, e->of) >= 0 || e->nd == GENDIM ||
        elems(e) * e->ofn > GENELEMS)
        return 0;
    like = *e;
    add_dim(&like, (GDim){ e->of, e->ofn });
    like.of = NULL;
    like.kind = TRUTH;
    like.most = 1;
    Tens *o = emit(g, &like, "one_hot(%s, \"%s\")", e->name, e->of);
    v = pick(g, REAL, beside, &(Beside){ e, -1 });
    if (v && chance(g, 60)) {
        like.kind = REAL;
        like.most = v->most;
        like.data |= v->data;
        o->uses++;
        emit(g, &like, "%s * %s", o->name, v->name);
    }
    return 1;
}

/* An index into axis d: of topk, or worked out from numbers. */
static const char *index_of(Gen *g, GDim d, Tens *shape)
{
    GDim a = some_axis(g, 1);

    *shape = (Tens){ 0 };
    add_dim(shape, a);
    return strf(g->a, "mod(iota(\"%s\") * %lld + %lld, %lld)", a.a,
                (long long)(1 + below(g, 7)), (long long)below(g, 5),
                (long long)d.n);
}

static int indexes(const Tens *t, const void *with)
{
    const GDim *d = with;

    return t->of == d->a && t->ofn == d->n;
}

static int taken(Gen *g)
{
    int at;
    Tens *t = any_row_of(g, &at), shape, like, rest;

    if (!t)
        return 0;
    Tens *e = pick(g, INTEGER, indexes, &t->dim[at]);
    const char *i = e ? e->name : index_of(g, t->dim[at], &shape);
    if (e)
        shape = *e;
    rest = *t;
    drop_dim(&rest, at);
    shape.kind = t->kind;
    like = united(&shape, &rest);
    if (like.nd < 0)
        return 0;
    like.of = NULL;
    like.most = t->most;
    like.data = t->data | shape.data;
    emit(g, &like, "gather(%s, %s, \"%s\")", t->name, i, t->dim[at].a);
    return 1;
}

/* Rows of a table, its first axis, by integers below its size. */
static int is_small(const Tens *t, const void *with)
{
    (void)with;
    return !t->of && t->nd <= 2 && t->most > 0;
}

/* A table whose rows e may choose. */
static int is_table(const Tens *t, const void *with)
{
    const Tens *e = with;

    return t->nd == 2 && !t->data && dim_at(e, t->dim[0].a) < 0 &&
           dim_at(e, t->dim[1].a) < 0;
}

static Tens *new_table(Gen *g, const Tens *e)
{
    Tens w = real(1);

    add_dim(&w, some_axis(g, 2));
    add_dim(&w, some_axis(g, 1));
    if (w.dim[0].a == w.dim[1].a || !is_table(&w, e))
        return NULL;
    Tens *table = make_param(g, &w, NULL);
    table->uses++;
    return table;
}

/* Half of the tables are read elsewhere too. */
static int embedded(Gen *g)
{
    Tens *e = pick(g, INTEGER, is_small, NULL), *table, like;

    if (!e)
        return 0;
    table = chance(g, 50) ? pick(g, REAL, is_table, e) : new_table(g, e);
    if (!table)
        return 0;
    like = *e;
    like.kind = REAL;
    like.most = table->most;
    add_dim(&like, table->dim[1]);
    emit(g, &like, "embed(mod(abs(%s), %lld), %s)", e->name,
         (long long)table->dim[0].n, table->name);
    return 1;
}

/* Values go back to where topk took some from. */
static int returned(Gen *g)
{
    Tens *e = pick(g, INTEGER, is_index, NULL), *v, like;

    if (!e || dim_at(e, e->of) >= 0)
        return 0;
    v = pick(g, REAL, beside, &(Beside){ e, -1 });
    GDim d = { e->of, e->ofn };
    if (!v || !v->nd || !declarable(g, d))
        return 0;
    like = *v;
    like.dim[dim_at(&like, e->dim[e->nd - 1].a)] = d;
    for (int i = 0; i < like.nd; i++)
        if (!declarable(g, like.dim[i]))
            return 0;
    like.most = v->most * 2;
    like.data |= e->data;
    Tens *w = make_param(g, &like, NULL);
    w->uses++;
    emit(g, &like, "scatter_add(%s, %s, %s) * %s", v->name, e->name, w->name,
         w->name);
    return 1;
}

/* Values go to places along an axis; `like` has the other axes. */
static int placed(Gen *g)
{
    int at;
    Tens *t = row_of(g, &at), like;

    if (!t)
        return 0;
    GDim d = some_axis(g, 2), from = t->dim[at];
    if (dim_at(t, d.a) >= 0 || !declarable(g, from))
        return 0;
    like = *t;
    like.dim[at] = d;
    like.most = t->most * (double)from.n;
    if (elems(&like) > GENELEMS)
        return 0;
    Tens *w = make_param(g, &like, NULL);
    if (!w)
        return 0;
    w->uses++;
    const char *form =
        ONE_OF(g,
               "scatter_add(%s, mod(iota(\"%s\") * 2 + 1, %lld), %s, "
               "\"%s\") * %s",
               "maximum(scatter_max(%s, mod(iota(\"%s\") * 2 + 1, %lld), %s, "
               "\"%s\"), -3) * %s");
    emit(g, &like, "%s",
         strf(g->a, form, t->name, from.a, (long long)d.n, w->name, d.a,
              w->name));
    return 1;
}

const GenRow genrows[] = {
    { 6, renamed }, { 6, split },        { 6, merged },   { 6, sliced },
    { 6, shifted }, { 6, put_together }, { 6, summed },   { 16, largest },
    { 12, normed }, { 4, best },         { 4, embedded }, { 4, returned },
    { 10, hot },    { 12, taken },       { 6, placed },   { 6, arranged },
    { 0, NULL },
};
