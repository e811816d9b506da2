/* shard.c: what of a logical tensor a rank holds, by the pieces in the plan.
 *
 * Along each axis a rank holds a list of pieces [start, start + len) of the
 * global index, one after another; its part is their product, row-major. What
 * lies beyond the axis' end is padding: it is held, and never moved. Of a
 * tensor in a bucket the rank has only a run of that part. */
#include <string.h>

#include "runtime.h"

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

/* Of the local part's elements the rank has [lo, hi); element i is at i + shift
 * of its buffer. */
typedef struct Clip {
    int64_t lo, hi, shift;
} Clip;

static Clip clip_of(const Mesh *m, const Tensor *t, int64_t rank)
{
    int64_t n = tensor_held(t);

    if (!t->run)
        return (Clip){ 0, n, t->at };
    int64_t lo = mesh_pos(m, t->shard, rank) * t->run - t->at;
    int64_t hi = lo + t->run;
    return (Clip){ lo < 0 ? 0 : lo, hi < n ? hi : n, -lo };
}

typedef struct ShardWalk {
    const Mesh *m;
    const Tensor *t;
    int64_t rank;
    int whole;     /* dims from here on are held whole */
    int64_t inner; /* elements of those */
    Clip clip;
    RunFn *f;
    void *ctx;
} ShardWalk;

static void give(const ShardWalk *w, int64_t global, int64_t local, int64_t n)
{
    int64_t skip = local < w->clip.lo ? w->clip.lo - local : 0;

    if (n > w->clip.hi - local)
        n = w->clip.hi - local;
    if (n > skip)
        w->f(w->ctx, global + skip, local + skip + w->clip.shift, n - skip);
}

static int is_whole(const ShardWalk *w, int d)
{
    const PlanDim *p = &w->t->dim[d];

    return p->npiece == 1 && p->piece[0].len == p->n &&
           aff_at(w->m, &p->piece[0].start, w->rank) == 0;
}

/* Rows of dim d at (global, local), both in units of that dim's rows. */
static void walk(const ShardWalk *w, int d, int64_t global, int64_t local)
{
    const PlanDim *p = &w->t->dim[d];
    int last = d + 1 == w->whole;
    int64_t held = dim_held(p);

    global *= p->n;
    local *= held;
    for (int i = 0; i < p->npiece; local += p->piece[i++].len) {
        int64_t s = aff_at(w->m, &p->piece[i].start, w->rank);
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

/* ---- elements ------------------------------------------------------------ */

double elem_get(Dtype dt, const void *p, int64_t i)
{
    switch (dt) {
    case Df64: return ((const double *)p)[i];
    case Dreal:
    case Df32: return ((const float *)p)[i];
    case Dbf16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case Di64: return (double)((const int64_t *)p)[i];
    case Di32: return ((const int32_t *)p)[i];
    case Du8:
    case Dbool: return ((const uint8_t *)p)[i];
    default: return 0;
    }
}

void elem_set(Dtype dt, void *p, int64_t i, double v)
{
    switch (dt) {
    case Df64: ((double *)p)[i] = v; break;
    case Dreal:
    case Df32: ((float *)p)[i] = (float)v; break;
    case Dbf16: ((uint16_t *)p)[i] = f32_to_bf16((float)v); break;
    case Di64: ((int64_t *)p)[i] = (int64_t)v; break;
    case Di32: ((int32_t *)p)[i] = (int32_t)v; break;
    case Du8:
    case Dbool: ((uint8_t *)p)[i] = (uint8_t)v; break;
    default: break;
    }
}

/* ---- loading from a strided source --------------------------------------- */

enum { BLOCK = 128 }; /* rows and columns of one scale */

double view_get(const View *v, int64_t at)
{
    double x = st_get(v->dt, v->data, at);

    if (!v->scale)
        return x;
    int64_t row = at / v->cols / BLOCK, col = at % v->cols / BLOCK;
    return x * v->scale[row * ((v->cols + BLOCK - 1) / BLOCK) + col];
}

int64_t view_same(const View *v, int64_t at, int64_t step)
{
    int64_t row = at / v->cols % BLOCK, col = at % v->cols;
    int64_t down = step / v->cols, right = BLOCK - col % BLOCK;

    right = right < v->cols - col ? right : v->cols - col;
    if (step < v->cols)
        return (right + step - 1) / step;
    return step % v->cols ? 1 : (BLOCK - row + down - 1) / down;
}

typedef struct ShardLoad {
    const Mesh *m;
    const Tensor *t;
    int64_t rank;
    const View *v;
    void *dst;
    Clip clip;
    int same; /* source and tensor have one dtype */
} ShardLoad;

/* What weights of a checkpoint of masters are: most of what is loaded. */
static void round_row(uint16_t *to, const uint8_t *from, int64_t n)
{
    float v;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&v, from + 4 * i, sizeof v);
        to[i] = f32_to_bf16(v);
    }
}

/* By way of floats, which hold what is read: no element asks what it is. */
static int load_floats(const ShardLoad *l, int64_t src, int64_t step,
                       int64_t dst, int64_t n)
{
    enum { SOME = 1024 };
    const View *v = l->v;
    int64_t wide = (v->cols + BLOCK - 1) / BLOCK, k;
    float x[SOME];

    for (; n > 0; n -= k, src += k * step, dst += k) {
        k = n < SOME ? n : SOME;
        int64_t same = v->scale ? view_same(v, src, step) : k;
        k = k < same ? k : same;
        if (!st_floats(v->dt, v->data, src, step, k, x))
            return 0;
        float s =
            v->scale
                ? v->scale[src / v->cols / BLOCK * wide + src % v->cols / BLOCK]
                : 1;
        for (int64_t i = 0; v->scale && i < k; i++)
            x[i] *= s;
        if (l->t->dt == Df32)
            memcpy((float *)l->dst + dst, x, (size_t)k * sizeof *x);
        else
            round_row((uint16_t *)l->dst + dst, (const void *)x, k);
    }
    return 1;
}

static void load_row(const ShardLoad *l, int64_t src, int64_t step, int64_t dst,
                     int64_t n)
{
    int size = dtypes[l->t->dt].bytes;
    int64_t skip = dst < l->clip.lo ? l->clip.lo - dst : 0;

    n = n < l->clip.hi - dst ? n : l->clip.hi - dst;
    if (n <= skip)
        return;
    src += skip * step;
    dst += skip + l->clip.shift;
    n -= skip;
    if (l->same && step == 1) {
        memcpy((char *)l->dst + dst * size, l->v->data + src * size,
               (size_t)(n * size));
        return;
    }
    if (step == 1 && l->t->dt == Dbf16 && !strcmp(l->v->dt, "F32")) {
        round_row((uint16_t *)l->dst + dst, l->v->data + src * 4, n);
        return;
    }
    if ((l->t->dt == Df32 || l->t->dt == Dbf16) &&
        load_floats(l, src, step, dst, n))
        return;
    for (int64_t i = 0; i < n; i++)
        elem_set(l->t->dt, l->dst, dst + i, view_get(l->v, src + i * step));
}

/* Dim d of the part: src is the element in the source, dst the place among the
 * rows of dim d. */
static void load(const ShardLoad *l, int d, int64_t src, int64_t dst)
{
    if (d == l->t->nd) {
        load_row(l, src, 1, dst, 1);
        return;
    }
    const PlanDim *p = &l->t->dim[d];
    int64_t step = l->v->stride[d];
    dst *= dim_held(p);
    for (int i = 0; i < p->npiece; dst += p->piece[i++].len) {
        int64_t s = aff_at(l->m, &p->piece[i].start, l->rank);
        int64_t e = s + p->piece[i].len < p->n ? s + p->piece[i].len : p->n;
        int64_t lo = s, fix = l->v->fix[d];
        if (fix >= 0) {
            if (fix < s || fix >= e)
                continue;
            lo = fix;
            e = fix + 1;
        }
        if (d + 1 == l->t->nd) {
            load_row(l, src + lo * step, step, dst + lo - s, e - lo);
            continue;
        }
        for (int64_t j = lo; j < e; j++)
            load(l, d + 1, src + j * step, dst + j - s);
    }
}

void view_load(const Mesh *m, const Tensor *t, int64_t rank, const View *v,
               void *dst)
{
    ShardLoad l = { m,
                    t,
                    rank,
                    v,
                    dst,
                    clip_of(m, t, rank),
                    !strcmp(v->dt, dtypes[t->dt].st) };

    load(&l, 0, v->base, 0);
}
