/* view.c: what of a tensor a rank holds, from a strided source: a tensor of a
 * file, turned, of another dtype, with scales. */
#include <string.h>

#include "ckpt.h"

enum { BLOCK = 128 }; /* rows and columns of one scale */

float view_scale(const View *v, int64_t at)
{
    if (!v->scale)
        return 1;
    int64_t row = at / v->cols / BLOCK, col = at % v->cols / BLOCK;
    return v->scale[row * ((v->cols + BLOCK - 1) / BLOCK) + col];
}

double view_get(const View *v, int64_t at)
{
    double x = st_get(v->dt, v->data, at);

    return v->scale ? x * view_scale(v, at) : x;
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
    int64_t k;
    float x[SOME];

    for (; n > 0; n -= k, src += k * step, dst += k) {
        k = n < SOME ? n : SOME;
        int64_t same = v->scale ? view_same(v, src, step) : k;
        k = k < same ? k : same;
        if (!st_floats(v->dt, v->data, src, step, k, x))
            return 0;
        float s = view_scale(v, src);
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

void view_load(const Mesh *m, const Tensor *tensor, int64_t rank, const View *v,
               void *dst)
{
    ShardLoad l = { m,
                    tensor,
                    rank,
                    v,
                    dst,
                    clip_of(m, tensor, rank),
                    !strcmp(v->dt, dtypes[tensor->dt].st) };

    load(&l, 0, v->base, 0);
}
