/* safetensors.c: strict reader and writer of the safetensors format.
 *
 *     u64 n, n bytes of JSON, then the data:
 *     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * The reader returns an error if keys repeat, if a tensor's bytes do not match
 * its shape, or if tensors overlap or leave holes. Offsets are checked before
 * use. In files that Pleat writes, __metadata__ holds the axes of each tensor
 * ("axes <name>": "expert hidden ffn"), so a reader with another axis order can
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

/* FTnone: unknown type. */
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

/* Rounds to nearest even; 65520 and above becomes infinite. */
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
    uint16_t h;

    p += i * n;
    if (types[dt].narrow)
        return narrow_value(types[dt].narrow, *p);
    if (dt != FTF16 && dt != FTBF16)
        return number_get(types[dt].kind, n, p);
    memcpy(&h, p, 2);
    return dt == FTF16 ? half(h) : (double)bf16_to_f32(h);
}

/* ---- reading ------------------------------------------------------------- */

/* Reads a list of at most n integers to x. Returns their count; -1: not such a
 * list. */
static int read_list(JsonValue list, int64_t *x, int n)
{
    JsonValue key, v;
    int k = 0;

    for (size_t at = 0; jv_next(list, &at, &key, &v); k++)
        if (k == n || !jv_int(v, &x[k]))
            return -1;
    return jv_kind(list) == JSONarray ? k : -1;
}

static const char *read_shape(StTensor *tensor, JsonValue shape, int64_t *elems)
{
    tensor->nd = read_list(shape, tensor->n, MAXD);
    if (tensor->nd < 0)
        return "its shape is not a short list of numbers";
    *elems = 1;
    for (int d = 0; d < tensor->nd; d++) {
        if (tensor->n[d] < 0)
            return "its shape is not made of sizes";
        if (__builtin_mul_overflow(*elems, tensor->n[d], elems))
            return "its shape is too large";
    }
    return NULL;
}

static const char *read_offsets(StTensor *tensor, JsonValue offsets,
                                int64_t elems, int64_t avail)
{
    int64_t bytes, at[2];

    if (read_list(offsets, at, 2) != 2)
        return "its data_offsets are not two numbers";
    tensor->begin = at[0];
    tensor->end = at[1];
    if (tensor->begin < 0 || tensor->end < tensor->begin || tensor->end > avail)
        return "its data lies outside the file (cut off?)";
    if (__builtin_mul_overflow(elems, (int64_t)tensor->bytes, &bytes) ||
        bytes != tensor->end - tensor->begin)
        return "its size does not fit its shape";
    return NULL;
}

static const char *read_tensor(Arena *a, StTensor *tensor, JsonValue v,
                               int64_t avail)
{
    static const char *const key[] = { "dtype", "shape", "data_offsets" };
    JsonValue field[3];
    int64_t elems;

    jv_fields(v, key, 3, field);
    const char *dt = jv_text(a, field[0], NULL);
    tensor->dt = dt ? type_named(dt) : FTnone;
    if (jv_count(v) > 3)
        return "it has more than dtype, shape and data_offsets";
    if (!tensor->dt)
        return "its dtype is not known";
    tensor->bytes = st_bytes(tensor->dt);
    const char *why = read_shape(tensor, field[1], &elems);
    return why ? why : read_offsets(tensor, field[2], elems, avail);
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

/* Sets the tensors' axes from "axes <name>" of __metadata__. */
static void read_axes(Arena *a, StFile *file, JsonValue meta)
{
    JsonValue key, v;

    for (size_t at = 0; jv_next(meta, &at, &key, &v);) {
        const char *name = jv_text(a, key, NULL);
        int is = name && !strncmp(name, "axes ", 5);
        StTensor *t = is ? st_find(file, name + 5) : NULL;
        if (t)
            t->axes = jv_text(a, v, NULL);
    }
}

static const char *read_header(Arena *a, StFile *file, JsonValue head,
                               int64_t avail)
{
    JsonValue key, v, meta = { 0 };

    file->t = alloc(a, ((size_t)jv_count(head) + 1) * sizeof *file->t);
    for (size_t at = 0; jv_next(head, &at, &key, &v);) {
        StTensor *t = &file->t[file->n];
        if (jv_is(key, "__metadata__")) {
            meta = v;
            continue;
        }
        t->name = jv_text(a, key, NULL);
        const char *why = t->name ? read_tensor(a, t, v, avail)
                                  : "its name is no text without NUL";
        if (why)
            return strf(a, "tensor %.*s: %s", (int)key.n, key.s, why);
        file->n++;
    }
    const char *why = check_tiling(a, file, avail);
    qsort(file->t, (size_t)file->n, sizeof *file->t, by_name);
    for (int i = 1; i < file->n; i++)
        if (!by_name(&file->t[i - 1], &file->t[i]))
            return strf(a, "two tensors are named '%s'", file->t[i].name);
    read_axes(a, file, meta);
    return why;
}

static const char *read_file(Arena *a, StFile *file)
{
    uint64_t n = 0;
    JsonValue head;
    JsonError e;

    if (file->size < 10)
        return "too short";
    for (int i = 7; i >= 0; i--)
        n = n << 8 | file->map[i];
    if (n > MAXHEADER || (int64_t)n > file->size - 8)
        return memcmp(file->map, "version ", 8)
                   ? "its header is longer than the file"
                   : "is a pointer of Git LFS: git lfs pull fetches the file";
    if (file->map[8] != '{')
        return "its header is not JSON";
    if (jv_open((const char *)file->map + 8, n, &head, &e))
        return strf(a, "its header: %s", e.why);
    file->data = file->map + 8 + n;
    return read_header(a, file, head, file->size - 8 - (int64_t)n);
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

/* Orders by element size, descending: all tensors are then aligned. */
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
