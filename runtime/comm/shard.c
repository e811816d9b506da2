/* shard.c: a rank's part of a logical tensor, by the pieces in the plan.
 *
 * Along each axis a rank holds a list of pieces [start, start + len) of the
 * global index, in order; its part is their product, row-major. Elements beyond
 * the end of an axis are padding, which is stored and never moved. A rank has
 * only a run of its part of a tensor in a bucket. */
#include "comm.h"

int64_t dim_held(const PlanDim *dim)
{
    int64_t n = 0;

    for (int i = 0; i < dim->npiece; i++)
        n += dim->piece[i].len;
    return n;
}

int64_t tensor_elems(const Tensor *tensor)
{
    int64_t n = 1;

    for (int d = 0; d < tensor->nd; d++)
        n *= tensor->dim[d].n;
    return n;
}

int64_t tensor_held(const Tensor *tensor)
{
    int64_t n = 1;

    for (int d = 0; d < tensor->nd; d++)
        n *= dim_held(&tensor->dim[d]);
    return n;
}

int64_t tensor_at(const Mesh *m, const PlanDim *dim, int64_t rank, int64_t j)
{
    int i = 0;

    while (i + 1 < dim->npiece && j >= dim->piece[i].len)
        j -= dim->piece[i++].len;
    return aff_at(m, &dim->piece[i].start, rank) + j;
}

/* Ranks that differ only in atoms on which the tensor does not depend hold
 * equal parts; the rank with zeros there writes. Stages hold different tensors,
 * except copies. */
int tensor_owner(const Mesh *m, const Tensor *tensor, int64_t rank)
{
    if (is_copy(tensor))
        return 0;
    for (int a = 0; a < m->natom; a++) {
        if (m->mask[Mpp] >> a & 1 || !mesh_coord(m, rank, a))
            continue;
        int used = tensor->run && tensor->shard >> a & 1;
        for (int d = 0; d < tensor->nd; d++)
            for (int i = 0; i < tensor->dim[d].npiece; i++)
                used |= tensor->dim[d].piece[i].start.k[a] != 0;
        if (!used)
            return 0;
    }
    return 1;
}

Clip clip_of(const Mesh *m, const Tensor *tensor, int64_t rank)
{
    int64_t n = tensor_held(tensor);

    if (!tensor->run)
        return (Clip){ 0, n, tensor->at };
    int64_t lo = mesh_pos(m, tensor->shard, rank) * tensor->run - tensor->at;
    int64_t hi = lo + tensor->run;
    return (Clip){ lo < 0 ? 0 : lo, hi < n ? hi : n, -lo };
}

typedef struct ShardWalk {
    const Mesh *mesh;
    const Tensor *tensor;
    int64_t rank;
    int whole;     /* first of the trailing dims that are held whole */
    int64_t inner; /* elements of these dims */
    Clip clip;
    RunFn *run;
    void *ctx;
} ShardWalk;

static void give(const ShardWalk *walk, int64_t global, int64_t local,
                 int64_t n)
{
    int64_t skip = local < walk->clip.lo ? walk->clip.lo - local : 0;

    if (n > walk->clip.hi - local)
        n = walk->clip.hi - local;
    if (n > skip)
        walk->run(walk->ctx, global + skip, local + skip + walk->clip.shift,
                  n - skip);
}

static int is_whole(const ShardWalk *walk, int d)
{
    const PlanDim *dim = &walk->tensor->dim[d];

    return dim->npiece == 1 && dim->piece[0].len == dim->n &&
           aff_at(walk->mesh, &dim->piece[0].start, walk->rank) == 0;
}

/* Visits rows of dim d at (global, local), both in units of that dim's rows. */
static void walk(const ShardWalk *shard_walk, int d, int64_t global,
                 int64_t local)
{
    const PlanDim *dim = &shard_walk->tensor->dim[d];
    int last = d + 1 == shard_walk->whole;
    int64_t held = dim_held(dim);

    global *= dim->n;
    local *= held;
    for (int i = 0; i < dim->npiece; local += dim->piece[i++].len) {
        int64_t s =
            aff_at(shard_walk->mesh, &dim->piece[i].start, shard_walk->rank);
        int64_t len =
            dim->piece[i].len < dim->n - s ? dim->piece[i].len : dim->n - s;
        if (last && len > 0)
            give(shard_walk, (global + s) * shard_walk->inner,
                 local * shard_walk->inner, len * shard_walk->inner);
        for (int64_t j = 0; j < len && !last; j++)
            walk(shard_walk, d + 1, global + s + j, local + j);
    }
}

void tensor_runs(const Mesh *m, const Tensor *tensor, int64_t rank, RunFn *fn,
                 void *ctx)
{
    ShardWalk w = { m,  tensor, rank, tensor->nd, 1, clip_of(m, tensor, rank),
                    fn, ctx };

    while (w.whole > 0 && is_whole(&w, w.whole - 1))
        w.inner *= tensor->dim[--w.whole].n;
    if (w.whole)
        walk(&w, 0, 0, 0);
    else
        give(&w, 0, 0, w.inner);
}
