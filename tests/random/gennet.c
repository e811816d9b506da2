/* gennet.c: models of the usual shape: tokens, layers that repeat, a head. What
 * a layer does is random; what it returns has the axes of its argument. */
#include <string.h>

#include "gen.h"

typedef struct Sum {
    Text s;
    Tens like;
} Sum;

/* A term with the axes of the result: the mean over its others. */
static void to_sum(Gen *g, const Tens *t, void *ctx)
{
    Sum *sum = ctx;
    Tens over = { 0 };

    for (int i = 0; i < t->nd; i++) {
        int at = dim_at(&sum->like, t->dim[i].a);
        if (at < 0 || sum->like.dim[at].n != t->dim[i].n)
            add_dim(&over, t->dim[i]);
    }
    const char *x = tame(g, t, 3);
    put(&sum->s, " + ");
    if (over.nd)
        put(&sum->s, "mean(%s, \"%s\")", x, names_of(g, &over));
    else
        put(&sum->s, "0.5 * %s", x);
}

/* A function of x. */
static void layer(Gen *g, const char *name, Tens like, int64_t n)
{
    size_t from = vec_len(g->t);
    const char *indent = g->indent;
    Sum sum = { { .arena = g->a }, like };

    line(g, "local function %s(x)", name);
    g->indent = strf(g->a, "%s  ", indent);
    like.most = 3;
    Tens *x = add_tensor(g, "x", &like, "");
    x->uses = 1;
    statements(g, n);
    put(&sum.s, "%s", "x");
    x->live = 1;
    each_open(g, from, to_sum, &sum);
    line(g, "return %s", sum.s.s);
    g->indent = indent;
    line(g, "end");
    if (g->t)
        ((VecHead *)(void *)g->t)[-1].len = from;
}

static Tens hidden_shape(Gen *g)
{
    Tens t = real(3);

    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "batch", "seq", "hidden" };
        GDim d = { intern(names[i]), 0 };
        for (size_t k = 0; k < vec_len(g->axis); k++)
            if (g->axis[k].a == d.a)
                d.n = g->axis[k].n;
        add_dim(&t, d);
    }
    t.data = 1;
    return t;
}

/* Layers follow each other, each with parameters of its own. */
static Tens *layers(Gen *g, Tens *x, Tens like)
{
    int64_t n = 1 + below(g, 3), kinds = n > 1 ? 1 + chance(g, 30) : 1;

    for (int k = 0; k < kinds; k++)
        layer(g, strf(g->a, "layer%d", k), like, 1 + below(g, 5));
    x->uses++;
    x = emit(g, &like, "%s", x->name);
    if (chance(g, 50)) {
        line(g, "for i = 0, %lld do", (long long)n - 1);
        line(g, "  %s = scope(\"layers.\" .. i, %s, %s)", x->name,
             kinds > 1 ? "i % 2 == 0 and layer0 or layer1" : "layer0", x->name);
        line(g, "end");
    } else {
        for (int64_t i = 0; i < n; i++)
            line(g,
                 "%s = scope(\"layers\", function() return "
                 "scope(\"%lld\", layer%lld, %s) end)",
                 x->name, (long long)i, (long long)(i % kinds), x->name);
    }
    x->most = 10;
    return x;
}

static void head(Gen *g, Tens *x, Tens *table)
{
    Tens like = *x, w = { 0 };

    line(g, "local labels = input(\"labels\", \"batch seq\")");
    if (!table) {
        add_dim(&w, like.dim[2]);
        add_dim(&w, (GDim){ intern("vocab"), 0 });
        declarable(g, w.dim[1]);
    }
    x->uses++;
    like.dim[2] = (GDim){ intern("vocab"), 0 };
    like.most = 8;
    Tens *z = emit(g, &like, "dot(%s, %s, \"hidden\")", tame(g, x, 3),
                   table ? table->name
                         : strf(g->a,
                                "param(\"%s\", \"hidden vocab\", "
                                "normal(0.5))",
                                new_param(g)));
    z->live = 1;
    z->uses = 1;
    x->live = 1;
    for (size_t k = 0; k < vec_len(g->t); k++)
        g->t[k]->live |= g->t[k] == table;
    const char *ce =
        strf(g->a, "cross_entropy(f32(%s), labels, \"vocab\")", z->name);
    if (chance(g, 50))
        line(g, "loss(\"lm\", mean(%s, \"batch seq\"))", ce);
    else
        line(g,
             "loss(\"lm\", sum(%s, \"batch seq\"), 1, "
             "sum(f32(ge(labels, 0)), \"batch seq\") + 1e-9)",
             ce);
    z->closed = 1;
    if (chance(g, 50))
        line(g, "output(\"logits\", %s)", z->name);
}

void gen_net(Gen *g)
{
    Tens like, *table, w = { 0 };

    declare(g, "hidden",
            chance(g, 80) ? 2 * (1 + below(g, 4)) : 1 + below(g, 7));
    declare(g, "vocab", 5 + below(g, 5));
    like = hidden_shape(g);
    line(g, "local tokens = input(\"tokens\", \"batch seq\")");
    g->inputs = 1;
    Tens ids = like;
    drop_dim(&ids, 2);
    ids.kind = INTEGER;
    ids.most = 9;
    add_tensor(g, "tokens", &ids, "");
    add_dim(&w, g->axis[vec_len(g->axis) - 1]);
    add_dim(&w, like.dim[2]);
    table = make_param(g, &w, "normal(1)");
    table->uses++;
    Tens *x = emit(g, &like, "embed(tokens, %s)", table->name);
    if (chance(g, 30))
        statements(g, 1 + below(g, 3));
    x = layers(g, x, like);
    if (chance(g, 40))
        statements(g, 1 + below(g, 4));
    if (chance(g, 80))
        head(g, x, chance(g, 30) ? table : NULL);
}
