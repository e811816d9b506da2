/* shape_check.c: checks laws of the shapes of values. */
#include "verify.h"

static const char *shape_wrong(const PlanCheck *check, const ValueShape *shape)
{
    const Mesh *m = check->p->mesh;
    uint32_t seen = 0;
    for (int d = 0; d < shape->nd; d++) {
        const ValueDim *dim = &shape->dim[d];
        if ((dim->cut >> m->natom || dim->cut & m->mask[Mpp]) &&
            law(Lshape_atoms))
            return "is cut over other atoms than those of a stage";
        if (dim->cut & seen && law(Lshape_cut_once))
            return "is cut twice over the same ranks";
        if (dim->zigzag && (!(dim->cut & m->mask[Mcp]) || dim->n % 2) &&
            law(Lshape_zigzag))
            return "has an axis in two pieces that its ranks do not have";
        if (shape_dim(shape, dim->axis) != d && law(Lshape_axis_once))
            return "has an axis twice";
        seen |= dim->cut;
    }
    if (shape->scale &&
        (dtypes[shape->dt].kind != 'f' || shape_scales(shape) < 0) &&
        law(Lshape_scale))
        return "is scaled in blocks that it does not have";
    return NULL;
}

const char *shapes_wrong(const PlanCheck *check)
{
    for (int i = 0; i < check->p->nshape; i++) {
        const char *why = shape_wrong(check, &check->p->shape[i]);
        if (why)
            return strf(check->arena, "shape %d %s", i, why);
    }
    return NULL;
}
