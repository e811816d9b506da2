/* shard.c: what of a logical tensor a rank holds, by the pieces in the plan.
 *
 * Along each axis a rank holds a list of pieces [start, start + len) of the
 * global index, one after another; its part is their product, row-major. What
 * lies beyond the axis' end is padding: it is held, and never moved. Of a
 * tensor in a bucket the rank has only a run of that part. */

#include "comm.h"

int64_t dim_held(const PlanDim *d)
{
    int64_t n = 0;

    for (int i = 0; i < d->npiece; i++)
        n += d->piece[i].len;
    return n;
}

int64_t tensor_elems(const Tensor *t)
{
    int64_t n = 1;

    for (int d = 0; d < t->nd; d++)
        n *= t->dim[d].n;
    return n;
}

int64_t tensor_held(const Tensor *t)
{
    int64_t n = 1;

    for (int d = 0; d < t->nd; d++)
        n *= dim_held(&t->dim[d]);
    return n;
}

int64_t tensor_at(const Mesh *m, const PlanDim *d, int64_t rank, int64_t j)
{
    int i = 0;

    while (i + 1 < d->npiece && j >= d->piece[i].len)
        j -= d->piece[i++].len;
    return aff_at(m, &d->piece[i].start, rank) + j;
}

/* Ranks that differ only in atoms the tensor does not depend on hold equal
 * parts; the one with zeros there writes. Stages hold different tensors, apart
 * from copies. */
int tensor_owner(const Mesh *m, const Tensor *t, int64_t rank)
{
    if (is_copy(t))
        return 0;
    for (int a = 0; a < m->natom; a++) {
        if (m->mask[Mpp] >> a & 1 || !mesh_coord(m, rank, a))
            continue;
        int used = t->run && t->shard >> a & 1;
        for (int d = 0; d < t->nd; d++)
            for (int i = 0; i < t->dim[d].npiece; i++)
                used |= t->dim[d].piece[i].start.k[a] != 0;
        if (!used)
            return 0;
    }
    return 1;
}

Clip clip_of(const Mesh *m, const Tensor *t, int64_t rank)
{
    int64_t n = tensor_held(t);

    if (!t->run)
        return (Clip){ 0, n, t->at };
    int64_t lo = mesh_pos(m, t->shard, rank) * t->run - t->at;
    int64_t hi = lo + t->run;
    return (Clip){ lo < 0 ? 0 : lo, hi < n ? hi : n, -lo };
}

typedef struct ShardWalk {
    const Mesh *mesh;
    const Tensor *tensor;
    int64_t rank;
    int whole;     /* dims from here on are held whole */
    int64_t inner; /* elements of those */
    Clip clip;
    RunFn *run;
    void *ctx;
} ShardWalk;

static void give(const ShardWalk *w, int64_t global, int64_t local, int64_t n)
{
    int64_t skip = local < w->clip.lo ? w->clip.lo - local : 0;

    if (n > w->clip.hi - local)
        n = w->clip.hi - local;
    if (n > skip)
        w->run(w->ctx, global + skip, local + skip + w->clip.shift, n - skip);
}

static int is_whole(const ShardWalk *w, int d)
{
    const PlanDim *p = &w->tensor->dim[d];

    return p->npiece == 1 && p->piece[0].len == p->n &&
           aff_at(w->mesh, &p->piece[0].start, w->rank) == 0;
}

/* Rows of dim d at (global, local), both in units of that dim's rows. */
static void walk(const ShardWalk *w, int d, int64_t global, int64_t local)
{
    const PlanDim *p = &w->tensor->dim[d];
    int last = d + 1 == w->whole;
    int64_t held = dim_held(p);

    global *= p->n;
    local *= held;
    for (int i = 0; i < p->npiece; local += p->piece[i++].len) {
        int64_t s = aff_at(w->mesh, &p->piece[i].start, w->rank);
        int64_t len = p->piece[i].len < p->n - s ? p->piece[i].len : p->n - s;
        if (last && len > 0)
            give(w, (global + s) * w->inner, local * w->inner, len * w->inner);
        for (int64_t j = 0; j < len && !last; j++)
            walk(w, d + 1, global + s + j, local + j);
    }
}

void tensor_runs(const Mesh *m, const Tensor *t, int64_t rank, RunFn *f,
                 void *ctx)
{
    ShardWalk w = { m, t, rank, t->nd, 1, clip_of(m, t, rank), f, ctx };

    while (w.whole > 0 && is_whole(&w, w.whole - 1))
        w.inner *= t->dim[--w.whole].n;
    if (w.whole)
        walk(&w, 0, 0, 0);
    else
        give(&w, 0, 0, w.inner);
}
