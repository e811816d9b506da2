/* shapes.c: shapes of the values of a plan's instructions (plan.h, ValueShape),
 * from the nodes' types. Each distinct shape is stored once.
 *
 *     %q = dot .. f32 [micro=4 seq=512 hidden=128] @ tp:hidden dp:micro
 *     shape f32 ( micro 1 cut 6 ) ( seq 512 ) ( hidden 64 cut 1 ) */
#include "emit.h"

struct Shapes {
    Arena *arena;
    Table *at;       /* hash -> 1 + index of the last one, linked by next */
    ValueShape *all; /* vec */
    int *next;       /* vec: the previous one with the same hash; -1: none */
};

Shapes *shapes_new(Arena *a)
{
    Shapes *x = alloc(a, sizeof *x);

    *x = (Shapes){ .arena = a, .at = table_new(a) };
    return x;
}

ValueShape *shapes_all(const Shapes *shapes)
{
    return shapes->all;
}

static uint64_t hash(const ValueShape *shape)
{
    uint64_t h = mix64((uint64_t)shape->dt, (uint64_t)shape->elems);

    for (int d = 0; d < shape->nd; d++) {
        h = mix64(h, KEYP(shape->dim[d].axis));
        h = mix64(h, (uint64_t)shape->dim[d].n << 20 ^ shape->dim[d].cut);
    }
    return h;
}

static int keep(Shapes *shapes, const ValueShape *shape)
{
    void **slot = table_at(shapes->at, hash(shape) | 1);
    int i = (int)(uintptr_t)*slot - 1;

    for (; i >= 0; i = shapes->next[i])
        if (shapes_equal(&shapes->all[i], shape))
            return i;
    vec_push(shapes->arena, shapes->all, *shape);
    vec_push(shapes->arena, shapes->next, (int)(uintptr_t)*slot - 1);
    *slot = (void *)(uintptr_t)vec_len(shapes->all);
    return (int)vec_len(shapes->all) - 1;
}

/* Returns atoms that shard n but none of its axes: those of its rows' map. */
static uint32_t unnamed(const Graph *g, const Node *n)
{
    uint32_t all = atoms_of(g, n, S) | atoms_of(g, n, F);

    for (int d = 0; d < n->nd; d++)
        all &= ~cut_atoms(g->mesh, n, n->dim[d].a);
    return all;
}

/* Adds a dim. A padded axis has its unpadded name, as in tensors. */
static void add_dim(ValueShape *shape, Axis *a, int64_t n, uint32_t cut,
                    uint32_t zigzag)
{
    if (shape->nd == MAXD)
        die("shape: more than %d axes", MAXD);
    shape->dim[shape->nd++] =
        (ValueDim){ unpadded(a)->name, n, cut, (cut & zigzag) != 0 };
}

/* Sets the shape of a row map: the axes that shard it, each once. */
static void map_shape(const Graph *g, const Node *n, ValueShape *shape)
{
    const Mesh *m = g->mesh;

    for (int i = 0; m && i < m->natom; i++) {
        uint32_t cut = 0;
        int seen = 0;
        for (int k = 0; k < m->natom && n->sh[i].k == S; k++)
            if (n->sh[k].k == S && n->sh[k].a == n->sh[i].a) {
                cut |= 1u << k;
                seen |= k < i;
            }
        Axis *a = n->sh[i].a;
        if (!cut || seen)
            continue;
        int at = dim_of(n->in[0], a);
        int64_t all = at < 0 ? a->n : n->in[0]->dim[at].n;
        add_dim(shape, a, all / mesh_extent(m, cut), cut, zigzag_atoms(m, a));
    }
}

int shape_index(Shapes *shapes, const Graph *g, const Node *n)
{
    ValueShape s = { .dt = n->dt,
                     .elems = local_elems(g, n),
                     .map = n->op == Oroute };
    uint32_t rest = unnamed(g, n);

    if (s.map)
        map_shape(g, n, &s);
    for (int d = 0; d < n->nd; d++) {
        Axis *a = n->dim[d].a;
        int row = g_isrow(a);
        add_dim(&s, a, local_n(g, n, d),
                cut_atoms(g->mesh, n, a) | (row ? rest : 0),
                zigzag_atoms(g->mesh, a));
    }
    return keep(shapes, &s);
}
