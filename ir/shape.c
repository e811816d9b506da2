/* shape.c: how values lie in memory, as a plan says it (plan.h, ValueShape):
 * what holds of each shape, the shapes of what lives always, and views. What
 * instructions do with shapes is in operands.c and rank_offsets.c. */
#include <string.h>

#include "plan.h"

uint32_t shape_cut(const ValueShape *x)
{
    uint32_t cut = 0;
    for (int d = 0; d < x->nd; d++)
        cut |= x->dim[d].cut;
    return cut;
}

int64_t shape_elems(const ValueShape *x)
{
    int64_t n = 1;
    for (int d = 0; d < x->nd; d++)
        n = sat_mul(n, x->dim[d].n);
    return n;
}

int64_t shape_bytes(const ValueShape *x)
{
    return sat_mul(x->elems, dtypes[x->dt].bytes);
}

/* Blocks of an axis; -1: the last would not be whole. */
static int64_t blocks(int64_t n, int64_t block)
{
    return !block ? 1 : n % block ? -1 : n / block;
}

int64_t shape_scales(const ValueShape *x)
{
    const ScaleInfo *s = &scales[x->scale];
    int64_t many = 1;

    if (x->scale == SCALEnone || x->scale == SCALEtensor)
        return x->scale == SCALEtensor;
    if (x->nd < 2)
        return -1;
    for (int d = 0; d < x->nd - 2; d++)
        many = sat_mul(many, x->dim[d].n);
    int64_t rows = blocks(x->dim[x->nd - 2].n, s->rows);
    int64_t cols = blocks(x->dim[x->nd - 1].n, s->cols);
    return rows < 0 || cols < 0 ? -1 : sat_mul(many, sat_mul(rows, cols));
}

static int same_name(const char *a, const char *b)
{
    return a == b || !strcmp(a, b);
}

static int same_dim(const ValueDim *x, const ValueDim *y)
{
    return same_name(x->axis, y->axis) && x->n == y->n && x->cut == y->cut &&
           x->zigzag == y->zigzag;
}

int shapes_equal(const ValueShape *x, const ValueShape *y)
{
    if (x == y)
        return 1;
    for (int d = 0; d < x->nd && x->nd == y->nd; d++)
        if (!same_dim(&x->dim[d], &y->dim[d]))
            return 0;
    return x->nd == y->nd && x->dt == y->dt && x->map == y->map &&
           x->elems == y->elems && x->scale == y->scale;
}

int shape_dim(const ValueShape *x, const char *axis)
{
    for (int d = 0; d < x->nd; d++)
        if (same_name(x->dim[d].axis, axis))
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

/* ---- each ---------------------------------------------------------------- */

static const char *shape_wrong(const PlanCheck *c, const ValueShape *x)
{
    const Mesh *m = c->p->mesh;
    uint32_t seen = 0;
    for (int d = 0; d < x->nd; d++) {
        const ValueDim *a = &x->dim[d];
        if ((a->cut >> m->natom || a->cut & m->mask[Mpp]) && law(Lshape_atoms))
            return "is cut over other atoms than those of a stage";
        if (a->cut & seen && law(Lshape_cut_once))
            return "is cut twice over the same ranks";
        if (a->zigzag && (!(a->cut & m->mask[Mcp]) || a->n % 2) &&
            law(Lshape_zigzag))
            return "has an axis in two pieces that its ranks do not have";
        if (shape_dim(x, a->axis) != d && law(Lshape_axis_once))
            return "has an axis twice";
        seen |= a->cut;
    }
    if (x->scale && (dtypes[x->dt].kind != 'f' || shape_scales(x) < 0) &&
        law(Lshape_scale))
        return "is scaled in blocks that it does not have";
    return NULL;
}

const char *shapes_wrong(const PlanCheck *c)
{
    for (int i = 0; i < c->p->nshape; i++) {
        const char *why = shape_wrong(c, &c->p->shape[i]);
        if (why)
            return strf(c->arena, "shape %d %s", i, why);
    }
    return NULL;
}

/* ---- what lives always --------------------------------------------------- */

uint32_t plan_dim_cut(const PlanDim *d)
{
    uint32_t cut = 0;
    for (int i = 0; i < d->npiece; i++)
        for (int k = 0; k < MAXATOM; k++)
            cut |= d->piece[i].start.k[k] ? 1u << k : 0;
    return cut;
}

int is_zigzag(const PlanDim *d)
{
    for (int k = 0; k < MAXATOM && d->npiece > 1; k++)
        if (d->piece[1].start.k[k] < 0)
            return 1;
    return 0;
}

void tensor_shape(const Tensor *tensor, ValueShape *x)
{
    *x = (ValueShape){ .dt = tensor->dt, .nd = tensor->nd };
    for (int d = 0; d < tensor->nd; d++) {
        const PlanDim *p = &tensor->dim[d];
        x->dim[d] = (ValueDim){ p->axis, 0, plan_dim_cut(p), is_zigzag(p) };
        for (int i = 0; i < p->npiece; i++)
            x->dim[d].n += p->piece[i].len;
    }
    x->elems = shape_elems(x);
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

static void of_bucket(Arena *a, const Tensor *tensor, ValueShape *x)
{
    uint32_t own = 0;
    for (int d = 0; d < tensor->nd; d++)
        own |= plan_dim_cut(&tensor->dim[d]);
    *x = (ValueShape){ .dt = tensor->dt, .elems = tensor->run };
    if (own)
        x->dim[x->nd++] = (ValueDim){ bucket_axis(a, "own", own), 1, own, 0 };
    x->dim[x->nd++] = (ValueDim){ bucket_axis(a, "flat", tensor->shard),
                                  tensor->run, tensor->shard, 0 };
}

static void of_scalars(const Scalar *s, int n, ValueShape **v, ValueShape *room)
{
    for (int i = 0; i < n; i++) {
        room[i] = (ValueShape){ .dt = s[i].dt, .elems = scalar_elems(&s[i]) };
        if (s[i].dim.n)
            room[i].dim[room[i].nd++] = s[i].dim;
        v[s[i].buf] = &room[i];
    }
}

ValueShape **lasting_shapes(const PlanCheck *c)
{
    const Role *r = c->r;
    size_t n = (size_t)(r->nbuf + r->ntensor + r->nin + r->nout) + 1;
    ValueShape **v = alloc(c->arena, n * sizeof *v);
    ValueShape *room = alloc(c->arena, n * sizeof *room);
    of_scalars(r->in, r->nin, v, room);
    of_scalars(r->out, r->nout, v, room + r->nin);
    room += r->nin + r->nout;
    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *t = &r->tensor[i];
        if (t->kind == TKoutput || v[t->buf])
            continue;
        v[t->buf] = room++;
        if (t->run)
            of_bucket(c->arena, t, v[t->buf]);
        else
            tensor_shape(t, v[t->buf]);
    }
    return v;
}
