/* tensor_copy.c: tensors of files made of boxes of mapped ones. A file is made
 * in pieces (ckpt_write.c), by as many threads as there are: of each tensor in
 * a piece its bytes are gathered in units that a core's cache holds, straight
 * to where they are written from. Meanwhile the disk reads what later pieces
 * are made of. A large model needs no more memory than a small one. With 512 KB
 * a unit and tiles of 64 a core turns 5.6 GB/s of bf16. */
#include <pthread.h>

#include "ckpt.h"

enum { UNIT = 512 << 10 }; /* bytes */

/* A range of elements of o. */
typedef struct CopyUnit {
    const OutTensor *o;
    int64_t lo, hi;
} CopyUnit;

/* ---- values -------------------------------------------------------------- */

static float f8_values[2][256]; /* e4m3, e5m2 */

static void read_f8(void)
{
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        f8_values[0][i] = (float)st_get(FTF8_E4M3, &b, 0);
        f8_values[1][i] = (float)st_get(FTF8_E5M2, &b, 0);
    }
}

typedef struct UnitFill {
    const Share *part;
    const CopyUnit *u;
    const uint8_t *raw; /* the unit's elements as the sources' dtype*/
    uint8_t *to;
} UnitFill;

/* Element by element: parts of several dtypes. */
static void value_box(void *ctx, const Stride *stride, int n, int64_t to,
                      int64_t from)
{
    const UnitFill *fill = ctx;

    if (n == 0) {
        st_set(fill->u->o->st.dt, fill->to, to - fill->u->lo,
               view_get(&fill->part->v, from));
        return;
    }
    for (int64_t i = 0; i < stride->n; i++)
        value_box(ctx, stride + 1, n - 1, to + i * stride->to,
                  from + i * stride->from);
}

/* FP8 with a scale for each block, to F32. The innermost loop is contiguous
 * where it goes. */
static void scale_box(void *ctx, const Stride *stride, int n, int64_t to,
                      int64_t from)
{
    static const Stride once = { 1, 1, 1 };
    const UnitFill *fill = ctx;
    const View *view = &fill->part->v;
    const float *value = f8_values[view->dt == FTF8_E5M2];

    if (n > 1 || (n == 1 && stride->to != 1)) {
        for (int64_t i = 0; i < stride->n; i++)
            scale_box(ctx, stride + 1, n - 1, to + i * stride->to,
                      from + i * stride->from);
        return;
    }
    stride = n ? stride : &once;
    const uint8_t *x = fill->raw + to - fill->u->lo;
    float *y = (float *)(void *)fill->to + (to - fill->u->lo);
    for (int64_t i = 0; i < stride->n;) {
        int64_t at = from + i * stride->from,
                k = view_same(view, at, stride->from);
        float s = view_scale(view, at);
        for (k = k < stride->n - i ? i + k : stride->n; i < k; i++)
            y[i] = value[x[i]] * s;
    }
}

/* n elements of dtype `from` as dtype `dt`. */
static void cast(FileType from, const uint8_t *x, FileType dt, uint8_t *y,
                 int64_t n)
{
    enum { AT_ONCE = 1024 };
    float v[AT_ONCE];
    int bf16 = dt == FTBF16, f32 = dt == FTF32;

    if (!bf16 && !f32) {
        for (int64_t i = 0; i < n; i++)
            st_set(dt, y, i, st_get(from, x, i));
        return;
    }
    for (int64_t i = 0; i < n; i += AT_ONCE) {
        int64_t k = n - i < AT_ONCE ? n - i : AT_ONCE;
        if (!st_floats(from, x, i, 1, k, v))
            for (int64_t q = 0; q < k; q++)
                v[q] = (float)st_get(from, x, i + q);
        if (f32)
            memcpy(y + i * 4, v, (size_t)k * 4);
        for (int64_t q = 0; q < k && bf16; q++) {
            uint16_t h = f32_to_bf16(v[q]);
            memcpy(y + (i + q) * 2, &h, 2);
        }
    }
}

/* The elements of a tensor in F64. */
static double *values(Arena *a, const OutTensor *tensor)
{
    int64_t bytes = st_elems(&tensor->st) * tensor->st.bytes;
    double *v = alloc(a, (size_t)bytes);

    tensor_gather(tensor, 0, bytes, (uint8_t *)v, alloc(a, (size_t)bytes));
    return v;
}

/* y, the unit's elements: x, of dtype `from`, and the product of low rank. */
static void add_low(const CopyUnit *unit, FileType from, const uint8_t *x,
                    uint8_t *y)
{
    const LowRank *low = &unit->o->low;
    int64_t inputs = unit->o->st.n[1], rank = low->a->st.n[0];
    Arena *arena = arena_new();
    const double *a = values(arena, low->a), *b = values(arena, low->b);

    for (int64_t i = 0; i < unit->hi - unit->lo; i++) {
        int64_t row = (unit->lo + i) / inputs, col = (unit->lo + i) % inputs;
        double sum = 0;
        for (int64_t r = 0; r < rank; r++)
            sum += b[row * rank + r] * a[r * inputs + col];
        st_set(unit->o->st.dt, y, i, st_get(from, x, i) + low->scale * sum);
    }
    arena_free(arena);
}

/* The unit's bytes, to `to`; raw: as many elements of the sources' dtype. */
static void gather(const CopyUnit *unit, uint8_t *raw, uint8_t *to)
{
    const OutTensor *tensor = unit->o;
    int same = !tensor->from || tensor->from == tensor->st.dt, scaled = 0;

    for (size_t i = 0; i < vec_len(tensor->part); i++) {
        const Share *share = &tensor->part[i];
        UnitFill f = { share, unit, raw, to };
        if (!tensor->from) {
            strided_boxes(&share->p, unit->lo, unit->hi, value_box, &f);
            continue;
        }
        strided_copy(&share->p, st_bytes(tensor->from), share->v.data,
                     same ? to : raw, unit->lo, unit->hi);
        if (share->v.scale)
            strided_boxes(&share->p, unit->lo, unit->hi, scale_box, &f);
        scaled |= share->v.scale != NULL;
    }
    if (tensor->low.a)
        add_low(unit, same ? tensor->st.dt : tensor->from, same ? to : raw, to);
    else if (!same && !scaled)
        cast(tensor->from, raw, tensor->st.dt, to, unit->hi - unit->lo);
}

/* ---- bytes --------------------------------------------------------------- */

/* Units large enough that source rows are read in whole lines; the dtype of the
 * sources may be the largest one. */
static int64_t unit_elems(const OutTensor *tensor)
{
    int64_t each = UNIT / tensor->st.bytes, most = CKPTPIECE / 8, room = 1;

    for (size_t i = 0; i < vec_len(tensor->part); i++) {
        int64_t r = strided_room(&tensor->part[i].p);
        room = r > room ? r : room;
    }
    each = each > room ? each / room * room : room;
    return each < most ? each : most;
}

void tensor_gather(const OutTensor *tensor, int64_t lo, int64_t hi, uint8_t *to,
                   uint8_t *raw)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int64_t size = tensor->st.bytes, each = unit_elems(tensor), end = hi / size;

    pthread_once(&once, read_f8);
    for (int64_t at = lo / size; at < end;) {
        int64_t next = (at / each + 1) * each;
        CopyUnit u = { tensor, at, next < end ? next : end };
        gather(&u, raw, to + at * size - lo);
        at = u.hi;
    }
}

/* Where the elements of a box lie in its file, to be read. */
static void read_box(void *ctx, const Stride *stride, int n, int64_t to,
                     int64_t from)
{
    const View *view = ctx;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), size, at;
    int64_t elems = 1;

    (void)to;
    for (int k = 0; k < n; k++)
        elems += (stride[k].n - 1) * stride[k].from;
    size = (uintptr_t)st_bytes(view->dt);
    at = (uintptr_t)view->data + (uintptr_t)from * size;
    madvise((void *)(at / page * page), at % page + (uintptr_t)elems * size,
            MADV_WILLNEED);
}

void tensor_ahead(const OutTensor *tensor, int64_t lo, int64_t hi)
{
    for (size_t i = 0; i < vec_len(tensor->part); i++)
        strided_boxes(&tensor->part[i].p, lo / tensor->st.bytes,
                      hi / tensor->st.bytes, read_box,
                      (void *)(uintptr_t)&tensor->part[i].v);
}
