/* safetensors.c: the file format, read strictly.
 *
 *     u64 n, n bytes of JSON, then the data:
 *     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * A file is refused, with the reason, when keys repeat, when a tensor's bytes
 * do not equal its shape's, or when tensors overlap or leave holes. Offsets are
 * checked before any is used; nothing here exits, so a caller may try another
 * file. In files we write, __metadata__ holds the axes of each tensor ("axes
 * <name>": "expert hidden ffn"), so a reader with another axis order can
 * permute. */
#include "ckpt.h"

enum { MAXHEADER = 100000000 };

static const struct {
    const char *name;
    int bytes;
    char kind;
    Dtype narrow;
} types[] = {
    { 0 },
#define FILETYPE(name, bytes, kind, dtype) { #name, bytes, kind, dtype },
#include "filetypes.def"
};

/* FTnone: no such type. */
static FileType type_named(const char *s)
{
    FileType dt = FTcount;

    while (--dt && strcmp(types[dt].name, s))
        ;
    return dt;
}

const char *st_name(FileType dt)
{
    return types[dt].name;
}

int st_isfloat(FileType dt)
{
    return types[dt].kind == 'f';
}

int st_isscaled(FileType dt)
{
    return types[dt].kind == '8';
}

FileType st_type(Dtype dt)
{
    return type_named(dtypes[dt].st);
}

/* ---- elements ------------------------------------------------------------ */

static double half(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double s = h >> 15 ? -1 : 1;

    if (e == 31)
        return m ? (double)__builtin_nanf("") : s * (double)__builtin_inff();
    return e ? s * (1024 + m) * 0x1p-25 * (double)(1ull << e) : s * m * 0x1p-24;
}

int st_floats(FileType dt, const uint8_t *p, int64_t at, int64_t step,
              int64_t n, float *to)
{
    int size = types[dt].bytes;
    uint16_t h;

    if (dt != FTF32 && dt != FTF16 && dt != FTBF16 && !st_isscaled(dt))
        return 0;
    p += at * size;
    for (int64_t i = 0; i < n; i++, p += step * size)
        switch (dt) {
        case FTF32: memcpy(&to[i], p, 4); break;
        case FTF16:
            memcpy(&h, p, 2);
            to[i] = (float)half(h);
            break;
        case FTBF16:
            memcpy(&h, p, 2);
            to[i] = bf16_to_f32(h);
            break;
        default: to[i] = narrow_value(types[dt].narrow, *p); break;
        }
    return 1;
}

int st_bytes(FileType dt)
{
    return types[dt].bytes;
}

int64_t st_elems(const StTensor *tensor)
{
    int64_t n = 1;

    for (int d = 0; d < tensor->nd; d++)
        n *= tensor->n[d];
    return n;
}

/* To nearest even; 65520 and more is infinite. */
static uint16_t f32_to_f16(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000)
        return (uint16_t)(sign | (int)rint(fabs((double)f) * 0x1p24));
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - (112u << 23)) >> 13);
}

void st_set(FileType dt, uint8_t *p, int64_t i, double v)
{
    float f = (float)v;
    uint16_t h = 0;

    switch (dt) {
    case FTF64: memcpy(p + 8 * i, &v, 8); return;
    case FTF32: memcpy(p + 4 * i, &f, 4); return;
    case FTF16: h = f32_to_f16(f); break;
    case FTBF16: h = f32_to_bf16(f); break;
    default:
        if (!types[dt].narrow)
            die("st_set: %s", st_name(dt));
        p[i] = narrow_nearest(types[dt].narrow, f);
        return;
    }
    memcpy(p + 2 * i, &h, 2);
}

double st_get(FileType dt, const uint8_t *p, int64_t i)
{
    int n = types[dt].bytes;
    union {
        double f8;
        float f4;
        uint16_t u2;
        int16_t i2;
        int8_t i1;
        int64_t i8;
        uint64_t u8;
        int32_t i4;
        uint32_t u4;
    } v = { 0 };

    memcpy(&v, p + i * n, (size_t)n);
    switch (dt) {
    case FTF64: return v.f8;
    case FTI64: return (double)v.i8;
    case FTU64: return (double)v.u8;
    case FTF32: return v.f4;
    case FTI32: return v.i4;
    case FTU32: return v.u4;
    case FTF16: return half(v.u2);
    case FTBF16: return bf16_to_f32(v.u2);
    case FTI16: return v.i2;
    case FTU16: return v.u2;
    case FTI8: return v.i1;
    default:
        return types[dt].narrow ? narrow_value(types[dt].narrow, p[i]) : p[i];
    }
}

/* ---- reading ------------------------------------------------------------- */

static const char *read_shape(StTensor *tensor, const json_t *shape,
                              int64_t *elems)
{
    size_t nd = json_array_size(shape);

    if (!json_is_array(shape) || nd > MAXD)
        return "its shape is not a short list";
    *elems = 1;
    for (tensor->nd = 0; tensor->nd < (int)nd; tensor->nd++) {
        const json_t *n = json_array_get(shape, (size_t)tensor->nd);
        tensor->n[tensor->nd] = json_integer_value(n);
        if (!json_is_integer(n) || tensor->n[tensor->nd] < 0)
            return "its shape is not made of sizes";
        if (__builtin_mul_overflow(*elems, tensor->n[tensor->nd], elems))
            return "its shape is too large";
    }
    return NULL;
}

static const char *read_offsets(StTensor *tensor, const json_t *off,
                                int64_t elems, int64_t avail)
{
    const json_t *b = json_array_get(off, 0), *e = json_array_get(off, 1);
    int64_t bytes;

    if (json_array_size(off) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return "its data_offsets are not two numbers";
    tensor->begin = json_integer_value(b);
    tensor->end = json_integer_value(e);
    if (tensor->begin < 0 || tensor->end < tensor->begin || tensor->end > avail)
        return "its data lies outside the file (cut off?)";
    if (__builtin_mul_overflow(elems, (int64_t)tensor->bytes, &bytes) ||
        bytes != tensor->end - tensor->begin)
        return "its size does not fit its shape";
    return NULL;
}

static const char *read_tensor(Arena *a, StTensor *tensor, const char *name,
                               const json_t *v, int64_t avail)
{
    const char *dt = json_string_value(json_object_get(v, "dtype"));
    int64_t elems;

    tensor->dt = dt ? type_named(dt) : FTnone;
    if (!tensor->dt)
        return "its dtype is not known";
    tensor->name = strf(a, "%s", name);
    tensor->bytes = st_bytes(tensor->dt);
    const char *why = read_shape(tensor, json_object_get(v, "shape"), &elems);
    if (why)
        return why;
    return read_offsets(tensor, json_object_get(v, "data_offsets"), elems,
                        avail);
}

static int by_offset(const void *a, const void *b)
{
    const StTensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

static const char *check_tiling(Arena *a, const StFile *file, int64_t avail)
{
    int64_t at = 0;

    qsort(file->t, (size_t)file->n, sizeof *file->t, by_offset);
    for (int i = 0; i < file->n; at = file->t[i++].end)
        if (file->t[i].begin != at)
            return strf(a, "tensor '%s' %s", file->t[i].name,
                        file->t[i].begin < at ? "overlaps another"
                                              : "leaves a hole before it");
    return at == avail ? NULL : "bytes follow the last tensor";
}

static const char *read_header(Arena *a, StFile *file, json_t *head,
                               int64_t avail)
{
    const char *name;
    json_t *v;
    const json_t *meta = json_object_get(head, "__metadata__");

    file->t = alloc(a, (json_object_size(head) + 1) * sizeof *file->t);
    json_object_foreach(head, name, v)
    {
        if (v == meta)
            continue;
        StTensor *t = &file->t[file->n++];
        const char *why = read_tensor(a, t, name, v, avail);
        if (why)
            return strf(a, "tensor '%s': %s", name, why);
        const char *axes =
            json_string_value(json_object_get(meta, strf(a, "axes %s", name)));
        t->axes = axes ? strf(a, "%s", axes) : NULL;
    }
    const char *why = check_tiling(a, file, avail);
    qsort(file->t, (size_t)file->n, sizeof *file->t, by_name);
    return why;
}

static const char *read_file(Arena *a, StFile *file)
{
    uint64_t n = 0;
    json_error_t e;

    if (file->size < 10)
        return "too short";
    for (int i = 7; i >= 0; i--)
        n = n << 8 | file->map[i];
    if (n > MAXHEADER || (int64_t)n > file->size - 8)
        return "its header is longer than the file";
    if (file->map[8] != '{')
        return "its header is not JSON";
    json_t *head =
        json_loadb((const char *)file->map + 8, n, JSON_REJECT_DUPLICATES, &e);
    if (!head)
        return strf(a, "its header: %s", e.text);
    file->data = file->map + 8 + n;
    const char *why =
        json_is_object(head)
            ? read_header(a, file, head, file->size - 8 - (int64_t)n)
            : "its header is not an object";
    json_decref(head);
    return why;
}

const char *st_open(Arena *a, const char *path, StFile **out)
{
    int fd = file_open(path);
    struct stat st;
    StFile *f = alloc(a, sizeof *f);

    if (fd < 0 || fstat(fd, &st)) {
        const char *why = file_why();
        if (fd >= 0)
            close(fd);
        return strf(a, "%s: %s", path, why);
    }
    f->path = strf(a, "%s", path);
    f->size = st.st_size;
    void *p = f->size
                  ? mmap(NULL, (size_t)f->size, PROT_READ, MAP_PRIVATE, fd, 0)
                  : MAP_FAILED;
    f->fd = fd;
    if (p == MAP_FAILED) {
        close(fd);
        return strf(a, "%s: %s", path, f->size ? strerror(errno) : "empty");
    }
    f->map = p;
    const char *why = read_file(a, f);
    if (!why) {
        *out = f;
        return NULL;
    }
    st_close(f);
    return strf(a, "%s: %s", path, why);
}

void st_close(StFile *file)
{
    munmap((void *)(uintptr_t)file->map, (size_t)file->size);
    close(file->fd);
}

StTensor *st_find(const StFile *file, const char *name)
{
    StTensor key = { .name = name };

    return bsearch(&key, file->t, (size_t)file->n, sizeof *file->t, by_name);
}

StTensor *st_find_in(StFile *const *file, int n, const char *name, StFile **in)
{
    StTensor *t = NULL;

    for (int i = 0; i < n && !t; i++)
        if ((t = st_find(file[i], name)))
            *in = file[i];
    return t;
}

StFile *st_need(Arena *a, const char *path)
{
    StFile *f;
    const char *why = st_open(a, path, &f);

    if (why)
        err(NULL, "%s", why);
    return f;
}

/* ---- writing ------------------------------------------------------------- */

/* Largest elements first, so that all are aligned. */
static int by_size(const void *a, const void *b)
{
    const StTensor *x = a, *y = b;

    return x->bytes != y->bytes ? y->bytes - x->bytes
                                : strcmp(x->name, y->name);
}

static void put_tensor(Text *out, const StTensor *tensor)
{
    put(out, ",");
    put_json(out, tensor->name);
    put(out, ":{\"dtype\":\"%s\",\"shape\":[", st_name(tensor->dt));
    for (int d = 0; d < tensor->nd; d++)
        put(out, "%s%ld", d ? "," : "", tensor->n[d]);
    put(out, "],\"data_offsets\":[%ld,%ld]}", tensor->begin, tensor->end);
}

char *st_header(Arena *a, StTensor *tensor, int n, size_t *len, int64_t *total)
{
    Text h = { .arena = a };
    int64_t at = 0;

    qsort(tensor, (size_t)n, sizeof *tensor, by_size);
    putn(&h, "\0\0\0\0\0\0\0\0", 8);
    put(&h, "{\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; i < n; i++) {
        if (!tensor[i].axes)
            continue;
        put(&h, ",");
        put_json(&h, strf(a, "axes %s", tensor[i].name));
        put(&h, ":");
        put_json(&h, tensor[i].axes);
    }
    put(&h, "}");
    for (int i = 0; i < n; i++) {
        int64_t bytes = tensor[i].bytes;
        for (int d = 0; d < tensor[i].nd; d++)
            bytes *= tensor[i].n[d];
        tensor[i].begin = at;
        tensor[i].end = at += bytes;
        put_tensor(&h, &tensor[i]);
    }
    put(&h, "}");
    while (h.len % 8)
        put(&h, " ");
    for (int i = 0; i < 8; i++)
        h.s[i] = (char)((h.len - 8) >> 8 * i & 255);
    *len = h.len;
    *total = (int64_t)h.len + at;
    return h.s;
}
