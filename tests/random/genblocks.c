/* genblocks.c: statements of whole layers: norms, softmax, attention, experts. */
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

const GenRow genblocks[] = {
    { 10, normed },
    { 0, NULL },
};
