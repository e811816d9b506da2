/* plain_products.c: says aloud which products lose the kernels that are made
 * for their dtype, tensor cores', and what it costs: a row of an operand is no
 * whole number of 16-byte pieces. */
#include "plan.h"

enum { PIECE = 16 };
static const double worth_saying = 1.1; /* times as long */

static const struct {
    const char *what, *leave;
} says[NPRODUCTPATH] = {
    [PATHunaligned] = { "products", "the fastest kernels of tensor cores" },
    [PATHthreads] = { "experts", "the tensor cores" },
};

/* Elements from one row to the next of the i-th matrix of a product, whose last
 * axis is dim *last; -1: it has none. Of one expert's. */
static int64_t row_width(const Graph *g, const Group *group, int i, int *last)
{
    const Node *x = group->view[i];
    const GemmArgs *gemm = &group->instr.gemm;
    int64_t n = 1;

    *last = x->nd - 1;
    if (group->fam == FAMgemm)
        return (const int64_t[]){ gemm->lda, gemm->ldb, gemm->ldc }[i];
    *last = -1;
    const Axis *expert = group->node[0]->in[2]->at.route.axis;
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != expert && !g_isrow(x->dim[d].a)) {
            n *= local_n(g, x, d);
            *last = d;
        }
    return n;
}

static int is_said(const Graph *g, const Axis *a, ProductPath path)
{
    void **slot = table_at_pair(g->compile->said, KEYP(a->name), path);
    int is = *slot != NULL;
    *slot = g->compile;
    return is;
}

static void say(const Graph *g, const Group *group, const Node *x, int d,
                double times)
{
    const Dim *dim = &x->dim[d];
    int64_t unit = PIECE / dtypes[x->dt].bytes * (dim->n / local_n(g, x, d));
    int64_t down = dim->n / unit * unit;

    warn(group->node[0]->loc,
         "%s of %s=%lld leave %s, which take multiples of %lld: a product is "
         "predicted to take %.1f times as long; nearest: %s=%lld",
         says[group->path].what, dim->a->name, (long long)dim->n,
         says[group->path].leave, (long long)unit, times, dim->a->name,
         (long long)(down && dim->n - down <= unit / 2 ? down : down + unit));
}

static void warn_attention(const Graph *g, const Group *group, double times)
{
    const Loc *loc = group->node[0]->loc;
    void **said = table_at_pair(g->compile->said, KEYP(loc), PATHthreads);

    if (!*said)
        warn(loc,
             "attention leaves the tensor cores: it is predicted to take %.1f "
             "times as long; they take one dot of bf16 queries and keys over "
             "one axis",
             times);
    *said = g->compile;
}

void warn_path(const Graph *g, const Group *group, double secs, double fast)
{
    if (group->fam == FAMattn || group->fam == FAMattn_bwd) {
        warn_attention(g, group, secs / fast);
        return;
    }
    for (int i = 0; i < 3 && secs > worth_saying * fast; i++) {
        const Node *x = group->view[i];
        int d;
        int64_t width = row_width(g, group, i, &d);
        if (d >= 0 && width * dtypes[x->dt].bytes % PIECE &&
            !is_said(g, x->dim[d].a, group->path))
            say(g, group, x, d, secs / fast);
    }
}
