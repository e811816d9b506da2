/* shape.c: how values lie in memory, as a plan says it (plan.h, ValueShape):
 * what holds of each shape, the shapes of what lives always, and views. What
 * instructions do with shapes is in operands.c and rank_offsets.c. */
#include "plan.h"

uint32_t shape_cut(const ValueShape *shape)
{
    uint32_t cut = 0;
    for (int d = 0; d < shape->nd; d++)
        cut |= shape->dim[d].cut;
    return cut;
}

int64_t shape_elems(const ValueShape *shape)
{
    int64_t n = 1;
    for (int d = 0; d < shape->nd; d++)
        n = sat_mul(n, shape->dim[d].n);
    return n;
}

int64_t shape_bytes(const ValueShape *shape)
{
    return sat_mul(shape->elems, dtypes[shape->dt].bytes);
}

/* Blocks of an axis; -1: the last would not be whole. */
static int64_t blocks(int64_t n, int64_t block)
{
    return !block ? 1 : n % block ? -1 : n / block;
}

int64_t shape_scales(const ValueShape *shape)
{
    const ScaleInfo *info = &scales[shape->scale];
    int64_t many = 1;

    if (shape->scale == SCALEnone || shape->scale == SCALEtensor)
        return shape->scale == SCALEtensor;
    if (shape->nd < 2)
        return -1;
    for (int d = 0; d < shape->nd - 2; d++)
        many = sat_mul(many, shape->dim[d].n);
    int64_t rows = blocks(shape->dim[shape->nd - 2].n, info->rows);
    int64_t cols = blocks(shape->dim[shape->nd - 1].n, info->cols);
    return rows < 0 || cols < 0 ? -1 : sat_mul(many, sat_mul(rows, cols));
}

static int same_name(const char *a, const char *b)
{
    return a == b || !strcmp(a, b);
}

int shapes_renamed(const ValueShape *x, const ValueShape *y)
{
    for (int d = 0; d < x->nd && x->nd == y->nd; d++)
        if (x->dim[d].n != y->dim[d].n || x->dim[d].cut != y->dim[d].cut ||
            x->dim[d].zigzag != y->dim[d].zigzag)
            return 0;
    return x->nd == y->nd && x->dt == y->dt && x->map == y->map &&
           x->elems == y->elems && x->scale == y->scale;
}

int shapes_equal(const ValueShape *x, const ValueShape *y)
{
    if (x == y)
        return 1;
    for (int d = 0; d < x->nd && x->nd == y->nd; d++)
        if (!same_name(x->dim[d].axis, y->dim[d].axis))
            return 0;
    return shapes_renamed(x, y);
}

int shape_dim(const ValueShape *shape, const char *axis)
{
    for (int d = 0; d < shape->nd; d++)
        if (same_name(shape->dim[d].axis, axis))
            return d;
    return -1;
}

/* Renamed, split and merged axes: the same elements over the same ranks. Axes
 * that keep their name keep their order. */
int is_view_of(const ValueShape *y, const ValueShape *x)
{
    int last = -1;
    if (x->dt != y->dt || x->elems != y->elems || shape_cut(x) != shape_cut(y))
        return 0;
    for (int d = 0; d < y->nd; d++) {
        int at = shape_dim(x, y->dim[d].axis);
        if (at >= 0 && at <= last)
            return 0;
        last = at >= 0 ? at : last;
    }
    return 1;
}

/* ---- what lives always --------------------------------------------------- */

uint32_t plan_dim_cut(const PlanDim *dim)
{
    uint32_t cut = 0;
    for (int i = 0; i < dim->npiece; i++)
        for (int k = 0; k < MAXATOM; k++)
            cut |= dim->piece[i].start.k[k] ? 1u << k : 0;
    return cut;
}

int is_zigzag(const PlanDim *dim)
{
    for (int k = 0; k < MAXATOM && dim->npiece > 1; k++)
        if (dim->piece[1].start.k[k] < 0)
            return 1;
    return 0;
}

void tensor_shape(const Tensor *tensor, ValueShape *shape)
{
    *shape = (ValueShape){ .dt = tensor->dt, .nd = tensor->nd };
    for (int d = 0; d < tensor->nd; d++) {
        const PlanDim *dim = &tensor->dim[d];
        shape->dim[d] =
            (ValueDim){ dim->axis, 0, plan_dim_cut(dim), is_zigzag(dim) };
        for (int i = 0; i < dim->npiece; i++)
            shape->dim[d].n += dim->piece[i].len;
    }
    shape->elems = shape_elems(shape);
}

const char *bucket_axis(Arena *a, const char *what, uint32_t atoms)
{
    Text out = { .arena = a };
    put(&out, "%s", what);
    for (int i = 0; i < MAXATOM; i++)
        if (atoms >> i & 1)
            put(&out, ".a%d", i);
    return out.s;
}
