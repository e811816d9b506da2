/* lasting_shapes.c: shapes of persistent values in their buffers. */
#include "verify.h"

static void of_bucket(Arena *a, const Tensor *tensor, ValueShape *shape)
{
    uint32_t own = 0;
    for (int d = 0; d < tensor->nd; d++)
        own |= plan_dim_cut(&tensor->dim[d]);
    *shape = (ValueShape){ .dt = tensor->dt, .elems = tensor->run };
    if (own)
        shape->dim[shape->nd++] =
            (ValueDim){ bucket_axis(a, "own", own), 1, own, 0 };
    shape->dim[shape->nd++] = (ValueDim){ bucket_axis(a, "flat", tensor->shard),
                                          tensor->run, tensor->shard, 0 };
}

static void of_scalars(const Scalar *scalar, int n, ValueShape **v,
                       ValueShape *room)
{
    for (int i = 0; i < n; i++) {
        room[i] = (ValueShape){ .dt = scalar[i].dt,
                                .elems = scalar_elems(&scalar[i]) };
        if (scalar[i].dim.n)
            room[i].dim[room[i].nd++] = scalar[i].dim;
        v[scalar[i].buf] = &room[i];
    }
}

ValueShape **lasting_shapes(const PlanCheck *check)
{
    const Role *role = check->r;
    size_t n =
        (size_t)(role->nbuf + role->ntensor + role->nin + role->nout) + 1;
    ValueShape **v = alloc(check->arena, n * sizeof *v);
    ValueShape *room = alloc(check->arena, n * sizeof *room);
    of_scalars(role->in, role->nin, v, room);
    of_scalars(role->out, role->nout, v, room + role->nin);
    room += role->nin + role->nout;
    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *t = &role->tensor[i];
        if (t->kind == TKoutput || v[t->buf])
            continue;
        v[t->buf] = room++;
        if (t->run)
            of_bucket(check->arena, t, v[t->buf]);
        else
            tensor_shape(t, v[t->buf]);
    }
    return v;
}
