/* gen.c: see gen.h. What statements are made of, and the model around them. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "gen.h"

/* ---- chance -------------------------------------------------------------- */

int64_t below(Gen *g, int64_t n)
{
    return (int64_t)(ref_uniform(&g->seed) * (double)n);
}

int chance(Gen *g, int percent)
{
    return below(g, 100) < percent;
}

const char *one_of(Gen *g, const char *const *list, int n)
{
    return list[below(g, n)];
}

/* ---- tensors ------------------------------------------------------------- */

Tens real(double most)
{
    return (Tens){ .kind = REAL, .most = most };
}

void add_dim(Tens *t, GDim d)
{
    t->dim[t->nd++] = d;
}

int dim_at(const Tens *t, const char *a)
{
    for (int i = 0; i < t->nd; i++)
        if (t->dim[i].a == a)
            return i;
    return -1;
}

void drop_dim(Tens *t, int at)
{
    t->nd--;
    memmove(t->dim + at, t->dim + at + 1,
            (size_t)(t->nd - at) * sizeof *t->dim);
}

int64_t elems(const Tens *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->nd; i++)
        n *= t->dim[i].n;
    return n;
}

/* All axes of both, as an elementwise op gives them. */
static int unite(const Tens *a, const Tens *b, Tens *out, int max)
{
    *out = *a;
    out->data |= b->data;
    for (int i = 0; i < b->nd; i++) {
        int at = dim_at(a, b->dim[i].a);
        if (at >= 0 && a->dim[at].n != b->dim[i].n)
            return 0;
        if (at < 0 && out->nd == max)
            return 0;
        if (at < 0)
            add_dim(out, b->dim[i]);
    }
    return 1;
}

Tens united(const Tens *a, const Tens *b)
{
    Tens t;

    if (!unite(a, b, &t, GENDIM) || elems(&t) > GENELEMS)
        t.nd = -1;
    t.of = NULL;
    return t;
}

int64_t work(const Tens *a, const Tens *b)
{
    int64_t n = elems(a);

    for (int i = 0; i < b->nd; i++)
        if (dim_at(a, b->dim[i].a) < 0)
            n *= b->dim[i].n;
    return n;
}

const char *names_of(Gen *g, const Tens *t)
{
    Text s = { .arena = g->a };

    put(&s, "%s", "");
    for (int i = 0; i < t->nd; i++)
        put(&s, "%s%s", i ? " " : "", t->dim[i].a);
    return s.s;
}

/* ---- statements ---------------------------------------------------------- */

void line(Gen *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(&g->body, "%s%s\n", g->indent, vstrf(g->a, fmt, ap));
    va_end(ap);
}

Tens *add_tensor(Gen *g, const char *name, const Tens *like, const char *text)
{
    Tens *t = alloc(g->a, sizeof *t);

    *t = *like;
    t->uses = t->live = t->closed = 0;
    t->name = name;
    t->text = text;
    vec_push(g->a, g->t, t);
    return t;
}

Tens *emit(Gen *g, const Tens *like, const char *fmt, ...)
{
    const char *name = strf(g->a, "t%d", ++g->names);
    va_list ap;

    va_start(ap, fmt);
    const char *text = vstrf(g->a, fmt, ap);
    va_end(ap);
    line(g, "local %s = %s", name, text);
    return add_tensor(g, name, like, text);
}

GDim new_axis(Gen *g, const char *stem, int64_t n)
{
    GDim d = { intern(strf(g->a, "%s%d", stem, ++g->axes)), n };

    vec_push(g->a, g->made, d);
    return d;
}

const char *new_param(Gen *g)
{
    return strf(g->a, "w%d", g->params++);
}

void declare(Gen *g, const char *name, int64_t n)
{
    GDim d = { intern(name), n };

    vec_push(g->a, g->axis, d);
}

int declarable(Gen *g, GDim d)
{
    for (size_t i = 0; i < vec_len(g->axis); i++)
        if (g->axis[i].a == d.a)
            return g->axis[i].n == d.n;
    if (!strncmp(d.a, "key", 3)) /* then it is not renamed from another */
        return 0;
    for (size_t i = 0; i < vec_len(g->made); i++)
        if (g->made[i].a == d.a && g->made[i].n != d.n)
            return 0;
    declare(g, d.a, d.n);
    return 1;
}

Tens *make_param(Gen *g, const Tens *shape, const char *init)
{
    Tens t = *shape;

    for (int i = 0; i < t.nd; i++)
        if (!declarable(g, t.dim[i]))
            return NULL;
    t.kind = REAL;
    t.of = NULL;
    t.data = 0;
    t.most = 2.5;
    if (!init)
        init = ONE_OF(g, "normal(1)", "normal(0.5)", "normal(0.7)",
                      "uniform(1)", "ones");
    return emit(g, &t, "param(\"%s\", \"%s\", %s)", new_param(g),
                names_of(g, &t), init);
}

GDim some_axis(Gen *g, int64_t atleast)
{
    for (int tries = 0; tries < 20; tries++) {
        GDim d = g->axis[below(g, (int64_t)vec_len(g->axis))];
        if (d.n >= atleast && strncmp(d.a, "key", 3))
            return d;
    }
    return g->axis[0];
}

/* ---- choosing operands --------------------------------------------------- */

/* The newest and those that nothing reads yet come first. */
Tens *pick(Gen *g, Kind k, Fits *fits, const void *with)
{
    Tens *best = NULL;
    double most = -1;

    for (size_t i = 0; i < vec_len(g->t); i++) {
        Tens *t = g->t[i];
        if (t->kind != k || t->closed || (fits && !fits(t, with)))
            continue;
        double age = (double)(vec_len(g->t) - i);
        double v = ref_uniform(&g->seed) / (1 + 0.1 * age);
        v *= t->uses ? 0.7 : 1;
        if (v > most) {
            most = v;
            best = t;
        }
    }
    if (best)
        best->uses++;
    return best;
}

static Tens some_shape(Gen *g)
{
    Tens t = real(2.5);
    int64_t nd = 1 + below(g, 3);

    for (int tries = 0; t.nd < nd && tries < 20; tries++) {
        GDim d = some_axis(g, 1);
        if (dim_at(&t, d.a) < 0 && elems(&t) * d.n <= GENELEMS / 4)
            add_dim(&t, d);
    }
    return t;
}

Tens *any_real(Gen *g)
{
    Tens *t = chance(g, 12) ? NULL : pick(g, REAL, NULL, NULL);
    Tens shape;

    if (!t) {
        shape = some_shape(g);
        t = make_param(g, &shape, NULL);
        t->uses++;
    }
    return t;
}

const char *tame(Gen *g, const Tens *t, double most)
{
    if (t->most <= most)
        return t->name;
    if (chance(g, 60))
        return strf(g->a, "tanh(%s)", t->name);
    return strf(g->a, "(%s * %.3g)", t->name, most / t->most);
}

/* ---- the model ----------------------------------------------------------- */

static void declare_axes(Gen *g)
{
    static const char *const names[] = { "batch", "seq", "h", "k", "e",
                                         "f",     "p",   "q", "v" };
    int64_t m = 1 + below(g, 4), n = 1 + below(g, 4);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        declare(g, names[i], chance(g, 12) ? 1 : 2 + below(g, 6));
    declare(g, "m", m);
    declare(g, "n", n);
    declare(g, "mn", m * n);
}

/* What some axes are for, whatever the model does with them. */
static const char *stated_role(Gen *g, const char *axis)
{
    static const char *const role[] = { "key",   "heads",  "group", "ffn",
                                        "vocab", "choice", "other" };

    if (axis == intern("batch"))
        return "batch";
    return chance(g, 6) ? role[below(g, sizeof role / sizeof *role)] : NULL;
}

static const char *axes_text(Gen *g)
{
    Text s = { .arena = g->a };

    put(&s, "axes { ");
    for (size_t i = 0; i < vec_len(g->axis); i++) {
        const char *a = g->axis[i].a, *role = stated_role(g, a);
        long long n = g->axis[i].n;
        put(&s, "%s%s=", i ? ", " : "", a);
        if (role)
            put(&s, "{ %lld, role=\"%s\" }", n, role);
        else
            put(&s, "%lld", n);
    }
    put(&s, " }\n");
    return s.s;
}

static void one_statement(Gen *g)
{
    static const GenRow *const tables[] = { genops,  genops,  genops, genrows,
                                            genrows, genattn, genmoe, genstep };
    int64_t all = 0;

    for (int tries = 0; tries < 30; tries++) {
        const GenRow *t = tables[below(g, sizeof tables / sizeof *tables)];
        all = 0;
        for (const GenRow *r = t; r->f; r++)
            all += r->weight;
        int64_t at = below(g, all);
        while (at >= t->weight)
            at -= t++->weight;
        if (t->f(g))
            return;
    }
}

void statements(Gen *g, int64_t n)
{
    while (n-- > 0)
        one_statement(g);
}

/* A number of a tensor, for a loss. */
static const char *to_number(Gen *g, const Tens *t)
{
    const char *axes = names_of(g, t), *x = tame(g, t, 4);

    if (!t->nd)
        return strf(g->a, "%s * 0.3", x);
    switch (below(g, 4)) {
    case 0: return strf(g->a, "mean(%s, \"%s\")", x, axes);
    case 1: return strf(g->a, "0.1 * sum(tanh(%s), \"%s\")", x, axes);
    default: return strf(g->a, "mean(%s * %s, \"%s\")", x, x, axes);
    }
}

/* Does the text read that local? */
static int reads(const char *text, const char *name)
{
    size_t n = strlen(name);

    for (const char *s = text; (s = strstr(s, name)); s++)
        if ((s == text || !isalnum((unsigned char)s[-1])) &&
            !isalnum((unsigned char)s[n]))
            return 1;
    return 0;
}

void each_open(Gen *g, size_t from, Term *f, void *ctx)
{
    for (size_t i = vec_len(g->t); i-- > from;) {
        Tens *t = g->t[i];
        if (t->kind == REAL && !t->live) {
            t->live = 1;
            f(g, t, ctx);
        }
        for (size_t k = 0; k < i && t->live; k++)
            g->t[k]->live |= reads(t->text, g->t[k]->name);
    }
}

typedef struct Losses {
    int n;
    Text s[3];
} Losses;

static void to_loss(Gen *g, const Tens *t, void *ctx)
{
    Losses *l = ctx;
    Text *to = &l->s[below(g, l->n)];

    put(to, "%s%s", to->len ? " + " : "", to_number(g, t));
}

static void write_losses(Gen *g)
{
    Losses l = { 1 + (int)below(g, 3),
                 { { .arena = g->a }, { .arena = g->a }, { .arena = g->a } } };

    each_open(g, 0, to_loss, &l);
    for (int i = 0; i < l.n; i++)
        if (l.s[i].len)
            line(g, "loss(\"l%d\", %s%s)", g->losses++, l.s[i].s,
                 ONE_OF(g, "", ", 2", ", 0.3", ", 1"));
}

static void gen_soup(Gen *g)
{
    for (int64_t i = 1 + below(g, 3); i > 0; i--) {
        Tens shape = some_shape(g);
        make_param(g, &shape, NULL);
    }
    if (chance(g, 15)) {
        Tens x = some_shape(g);
        x.data = 1;
        emit(g, &x, "input(\"x\", \"%s\")", names_of(g, &x));
    }
    statements(g, 2 + below(g, 16));
}

/* Two or three micro-batches in a step. */
static const char *train_text(Gen *g)
{
    return chance(g, 85) ? ""
                         : strf(g->a, "train { batch=%lld }\n",
                                (long long)((2 + below(g, 2)) * g->axis[0].n));
}

char *gen_model(Arena *a, uint64_t seed)
{
    Gen gen = { .a = a,
                .seed = mix64(seed, 77),
                .body = { .arena = a },
                .indent = "" },
        *g = &gen;

    declare_axes(g);
    if (chance(g, 35))
        gen_net(g);
    else
        gen_soup(g);
    write_losses(g);
    return strf(a, "%s%s%s", axes_text(g), g->body.s, train_text(g));
}
