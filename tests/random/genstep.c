/* genstep.c: what concerns the step: dropout, inputs, states with updates,
 * metrics, losses with denominators. */
#include <string.h>

#include "gen.h"

static int dropped(Gen *g)
{
    Tens *t = pick(g, REAL, NULL, NULL), like;

    if (!t)
        return 0;
    like = *t;
    like.most *= 2;
    like.data = 1; /* the mask is another in every micro-batch */
    emit(g, &like, "dropout(%s, %s)", t->name, ONE_OF(g, "0.25", "0.5"));
    return 1;
}

static int noisy(Gen *g)
{
    Tens *t = pick(g, REAL, NULL, NULL), like;

    if (!t)
        return 0;
    like = *t;
    like.most += 4;
    like.data = 1;
    emit(g, &like, "%s + 0.3 * random(\"%s\", %s)", t->name,
         ONE_OF(g, "uniform", "normal", "gumbel"), t->name);
    return 1;
}

/* What updates and metrics may read: no data but through a reduction over
 * batch. */
static int countable(const Tens *t, const void *with)
{
    (void)with;
    return t->nd > 0 && (!t->data || dim_at(t, intern("batch")) >= 0);
}

/* A state of some of the axes, which becomes a mean over the others. */
static int counted(Gen *g)
{
    Tens *t = pick(g, REAL, countable, NULL), like, over = { 0 };

    if (!t)
        return 0;
    like = *t;
    for (int i = like.nd; i-- > 0;)
        if (like.dim[i].a == intern("batch") || like.nd > 3 || chance(g, 40)) {
            add_dim(&over, like.dim[i]);
            drop_dim(&like, i);
        }
    if (!like.nd || !over.nd)
        return 0;
    for (int i = 0; i < like.nd; i++)
        if (!declarable(g, like.dim[i]))
            return 0;
    like.data = 0;
    like.most = 2;
    const char *f = ONE_OF(g, "mean", "mean", "sum", "max", "min");
    Tens *s = emit(g, &like, "state(\"s%d\", \"%s\", %s)", g->states++,
                   names_of(g, &like), ONE_OF(g, "0.3", "zeros", "-0.2"));
    line(g, "update(%s, %s * %s + 0.3 * %s(%s, \"%s\"))", s->name, s->name,
         ONE_OF(g, "0.9", "0.5"), f, t->name, names_of(g, &over));
    return 1;
}

static int measured(Gen *g)
{
    Tens *t = pick(g, REAL, countable, NULL);

    if (!t)
        return 0;
    line(g, "metric(\"m%d\", %s(%s, \"%s\"))", g->states++,
         ONE_OF(g, "mean", "sum", "max", "min"), t->name, names_of(g, t));
    return 1;
}

/* A loss over what inputs alone decide. */
static int shared(Gen *g)
{
    Tens *t = pick(g, REAL, countable, NULL);

    if (!t || !g->inputs)
        return 0;
    line(g,
         "loss(\"d%d\", sum(tanh(%s), \"%s\"), %s, sum(f32(%s), "
         "\"batch seq\") + 1)",
         g->losses++, t->name, names_of(g, t), ONE_OF(g, "1", "0.2"),
         ONE_OF(g, "gt(tokens, 1)", "tokens", "le(tokens, 3)"));
    return 1;
}

/* Numbers of each sequence, of its elements, or of a picture. */
static int fed(Gen *g)
{
    Tens x = real(1.5);

    if (*g->indent) /* a layer's would be declared again */
        return 0;
    x.data = 1;
    add_dim(&x, g->axis[0]);
    for (int64_t n = below(g, 3); n > 0; n--) {
        GDim d = some_axis(g, 1);
        if (dim_at(&x, d.a) < 0 && elems(&x) * d.n <= GENELEMS / 4)
            add_dim(&x, d);
    }
    emit(g, &x, "input(\"n%d\", \"%s\")", g->states++, names_of(g, &x));
    return 1;
}

const GenRow genstep[] = {
    { 10, dropped }, { 5, counted }, { 5, measured }, { 4, shared },
    { 5, fed },      { 5, noisy },   { 0, NULL },
};
