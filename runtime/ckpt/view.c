/* view.c: loads a rank's part of a tensor from a strided source: a tensor of a
 * file, possibly transposed, of another dtype, with scales. */
#include "ckpt.h"

enum { BLOCK = 128 }; /* rows and columns of one scale */

float view_scale(const View *view, int64_t at)
{
    if (!view->scale)
        return 1;
    int64_t row = at / view->cols / BLOCK, col = at % view->cols / BLOCK;
    return view->scale[row * ((view->cols + BLOCK - 1) / BLOCK) + col];
}

double view_get(const View *view, int64_t at)
{
    double x = st_get(view->dt, view->data, at);

    return view->scale ? x * view_scale(view, at) : x;
}

int64_t view_same(const View *view, int64_t at, int64_t step)
{
    int64_t row = at / view->cols % BLOCK, col = at % view->cols;
    int64_t down = step / view->cols, right = BLOCK - col % BLOCK;

    right = right < view->cols - col ? right : view->cols - col;
    if (step < view->cols)
        return (right + step - 1) / step;
    return step % view->cols ? 1 : (BLOCK - row + down - 1) / down;
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

/* fp32 to bf16: the common case, weights of a checkpoint of masters. */
static void round_row(uint16_t *to, const uint8_t *from, int64_t n)
{
    float v;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&v, from + 4 * i, sizeof v);
        to[i] = f32_to_bf16(v);
    }
}

/* The low halves of fp32 that the bf16 weights lack. */
static void cut_row(int16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = f32_remainder(from[i]);
}

/* Converts through fp32, which holds every source dtype exactly: no per-element
 * branch on the dtype. */
static int load_floats(const ShardLoad *load, int64_t src, int64_t step,
                       int64_t dst, int64_t n)
{
    enum { SOME = 1024 };
    const View *view = load->v;
    int64_t k;
    float x[SOME];

    for (; n > 0; n -= k, src += k * step, dst += k) {
        k = n < SOME ? n : SOME;
        int64_t same = view->scale ? view_same(view, src, step) : k;
        k = k < same ? k : same;
        if (!st_floats(view->dt, view->data, src, step, k, x))
            return 0;
        float s = view_scale(view, src);
        for (int64_t i = 0; view->scale && i < k; i++)
            x[i] *= s;
        if (load->t->dt == Df32)
            memcpy((float *)load->dst + dst, x, (size_t)k * sizeof *x);
        else if (load->t->kind == TKremainder)
            cut_row((int16_t *)load->dst + dst, x, k);
        else
            round_row((uint16_t *)load->dst + dst, (const void *)x, k);
    }
    return 1;
}

static void load_row(const ShardLoad *load, int64_t src, int64_t step,
                     int64_t dst, int64_t n)
{
    int size = dtypes[load->t->dt].bytes;
    int64_t skip = dst < load->clip.lo ? load->clip.lo - dst : 0;

    n = n < load->clip.hi - dst ? n : load->clip.hi - dst;
    if (n <= skip)
        return;
    src += skip * step;
    dst += skip + load->clip.shift;
    n -= skip;
    if (load->same && step == 1) {
        memcpy((char *)load->dst + dst * size, load->v->data + src * size,
               (size_t)(n * size));
        return;
    }
    if (step == 1 && load->t->dt == Dbf16 && load->v->dt == FTF32) {
        round_row((uint16_t *)load->dst + dst, load->v->data + src * 4, n);
        return;
    }
    int cuts = load->t->kind == TKremainder;
    if ((load->t->dt == Df32 || load->t->dt == Dbf16 || cuts) &&
        load_floats(load, src, step, dst, n))
        return;
    for (int64_t i = 0; i < n; i++) {
        double x = view_get(load->v, src + i * step);
        elem_set(load->t->dt, load->dst, dst + i,
                 cuts ? f32_remainder((float)x) : x);
    }
}

/* Loads dim d of the part. src: element of the source; dst: row index of dim d.
 */
static void load(const ShardLoad *shard_load, int d, int64_t src, int64_t dst)
{
    if (d == shard_load->t->nd) {
        load_row(shard_load, src, 1, dst, 1);
        return;
    }
    const PlanDim *dim = &shard_load->t->dim[d];
    int64_t step = shard_load->v->stride[d];
    dst *= dim_held(dim);
    for (int i = 0; i < dim->npiece; dst += dim->piece[i++].len) {
        int64_t s =
            aff_at(shard_load->m, &dim->piece[i].start, shard_load->rank);
        int64_t e =
            s + dim->piece[i].len < dim->n ? s + dim->piece[i].len : dim->n;
        int64_t lo = s, fix = shard_load->v->fix[d];
        if (fix >= 0) {
            if (fix < s || fix >= e)
                continue;
            lo = fix;
            e = fix + 1;
        }
        if (d + 1 == shard_load->t->nd) {
            load_row(shard_load, src + lo * step, step, dst + lo - s, e - lo);
            continue;
        }
        for (int64_t j = lo; j < e; j++)
            load(shard_load, d + 1, src + j * step, dst + j - s);
    }
}

void view_load(const Mesh *m, const Tensor *tensor, int64_t rank,
               const View *view, void *dst)
{
    ShardLoad l = { m,
                    tensor,
                    rank,
                    view,
                    dst,
                    clip_of(m, tensor, rank),
                    view->dt == st_type(tensor->dt) };

    load(&l, 0, view->base, 0);
}
