/* convert.c: checkpoints from Hugging Face folders and back, file to file. A
 * tensor to write is made of parts, boxes of mapped source tensors; units of it
 * that a core's cache holds are gathered by as many threads as there are, each
 * into its own memory, and written where they belong (exports: 1.6 GB/s with
 * units of 256 KB, 1.2 of 1 MB, 0.9 of 4 MB; most is the kernel's copying). No
 * more memory is needed for a large model than for a small one.              */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

enum { UNIT = 512 << 10, LARGEST = 64 << 20 };        /* bytes of a unit      */

typedef struct Share { Strided p; View v; int64_t bytes; } Share;

typedef struct Out {
    StTensor st;                  /* of the file that it goes to              */
    int file;
    int64_t at;                   /* bytes from that file's beginning         */
    const char *from;             /* dtype of all parts; null: not of one     */
    int64_t filled;
    _Atomic int64_t left;         /* elements not written yet                 */
    Share *part;                  /* vec                                      */
} Out;

typedef struct Unit { Out *o; int64_t lo, hi; } Unit;

typedef struct Carry {
    Out *out;                     /* vec                                      */
    Unit *unit;                   /* vec, in the order of the files           */
    int *fd;
    size_t room;                  /* bytes of a unit, at most                 */
    _Atomic size_t next;
    _Atomic int failed;           /* errno of a write                         */
} Carry;

/* ---- units --------------------------------------------------------------- */

static int64_t elems_of(const StTensor *t)
{
    int64_t n = 1;

    for (int d = 0; d < t->nd; d++)
        n *= t->n[d];
    return n;
}

/* Units large enough that source rows are read in whole lines.               */
static void add_units(Arena *a, Carry *j, Out *o)
{
    int64_t n = elems_of(&o->st), b = o->st.bytes, each = UNIT / b;

    for (size_t i = 0; i < vec_len(o->part); i++) {
        int64_t room = strided_room(&o->part[i].p);
        each = room > each ? room : each;
    }
    each = each < LARGEST / b ? each : LARGEST / b;
    each = each < n ? each : n;
    o->left = n;
    j->room = (size_t)(each * 8) > j->room ? (size_t)(each * 8) : j->room;
    for (int64_t lo = 0; lo < n; lo += each) {
        Unit u = {o, lo, lo + each < n ? lo + each : n};
        vec_push(a, j->unit, u);
    }
}

/* ---- values -------------------------------------------------------------- */

typedef struct Fill { const Share *part; const Unit *u; uint8_t *to; } Fill;

/* Element by element: other dtypes, scales.                                  */
static void value_box(void *ctx, const Stride *l, int n, int64_t to,
                      int64_t from)
{
    const Fill *f = ctx;

    if (n == 0) {
        st_set(f->u->o->st.dt, f->to, to - f->u->lo,
               view_get(&f->part->v, from));
        return;
    }
    for (int64_t i = 0; i < l->n; i++)
        value_box(ctx, l + 1, n - 1, to + i * l->to, from + i * l->from);
}

static void narrow(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = f32_to_bf16(x[i]);
}

/* n elements of dtype `from` as dtype `dt`.                                  */
static void cast(const char *from, const uint8_t *x, const char *dt,
                 uint8_t *y, int64_t n)
{
    if (!strcmp(from, "F32") && !strcmp(dt, "BF16")) {
        narrow((const void *)x, (void *)y, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        st_set(dt, y, i, st_get(from, x, i));
}

/* The unit's bytes, in buf or in buf + room.                                 */
static const uint8_t *gather(const Unit *u, uint8_t *buf, size_t room)
{
    const Out *o = u->o;
    int size = o->from ? st_bytes(o->from) : o->st.bytes;

    for (size_t i = 0; i < vec_len(o->part); i++) {
        const Share *p = &o->part[i];
        Fill f = {p, u, buf};
        if (o->from)
            strided_copy(&p->p, size, p->v.data, buf, u->lo, u->hi);
        else
            strided_boxes(&p->p, u->lo, u->hi, value_box, &f);
    }
    if (!o->from || !strcmp(o->from, o->st.dt))
        return buf;
    cast(o->from, buf, o->st.dt, buf + room, u->hi - u->lo);
    return buf + room;
}

static int write_at(int fd, const uint8_t *p, int64_t n, int64_t at)
{
    while (n) {
        ssize_t k = pwrite(fd, p, (size_t)n, at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? errno : ENOSPC;
        p += k;
        at += k;
        n -= k;
    }
    return 0;
}

/* Nothing more of o will be read: what was mapped for it is let go.          */
static void let_go(const Out *o)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (size_t i = 0; i < vec_len(o->part); i++) {
        const Share *p = &o->part[i];
        uintptr_t lo = ((uintptr_t)p->v.data + page - 1) / page * page;
        uintptr_t hi = (uintptr_t)p->v.data + (uintptr_t)p->bytes;
        if (lo < hi)
            madvise((void *)lo, (hi - lo) / page * page, MADV_DONTNEED);
    }
}

static void work(void *ctx, int64_t lo, int64_t hi)
{
    Carry *j = ctx;
    uint8_t *buf = lo < hi ? malloc(2 * j->room) : NULL;
    size_t i, n = vec_len(j->unit);

    if (!buf)
        atomic_store(&j->failed, ENOMEM);
    while (!j->failed && (i = atomic_fetch_add(&j->next, 1)) < n) {
        const Unit *u = &j->unit[i];
        Out *o = u->o;
        const uint8_t *p = gather(u, buf, j->room);
        int no = write_at(j->fd[o->file], p, (u->hi - u->lo) * o->st.bytes,
                          o->at + u->lo * o->st.bytes);
        if (no)
            atomic_store(&j->failed, no);
        if (atomic_fetch_sub(&o->left, u->hi - u->lo) == u->hi - u->lo)
            let_go(o);
    }
    free(buf);
}

/* ---- files --------------------------------------------------------------- */

/* The header of file k to path, and its descriptor; the outs that go there
 * learn their places.                                                        */
static int open_out(Arena *a, Carry *j, int k, const char *path)
{
    StTensor *v = NULL;
    size_t len;
    int64_t total;

    for (size_t i = 0; i < vec_len(j->out); i++) {
        j->out[i].st.taken = (int64_t)i;
        if (j->out[i].file == k)
            vec_push(a, v, j->out[i].st);
    }
    char *head = st_header(a, v, (int)vec_len(v), &len, &total);
    for (size_t i = 0; i < vec_len(v); i++) {
        Out *o = &j->out[v[i].taken];
        o->at = (int64_t)len + v[i].begin;
        add_units(a, j, o);
    }
    if (ckpt_layout(path, head, len, total))
        return -1;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? ckpt_complain("cannot write", path) : fd;
}

/* All units to the files opened; 0, or -1 with a warning.                    */
static int run(Carry *j, int nfile, const char *what)
{
    Pool *pool = pool_open(0);
    int bad = 0;

    pool_run(pool, work, j, pool_size(pool), 1);
    pool_close(pool);
    for (int k = 0; k < nfile; k++)
        bad |= close(j->fd[k]);
    if (j->failed)
        errno = j->failed;
    return j->failed || bad ? ckpt_complain("cannot write", what) : 0;
}

/* ---- parts --------------------------------------------------------------- */

static void add_part(Arena *a, Out *o, const HfRow *r, const int64_t *to,
                     int64_t tobase, const View *from, int64_t bytes)
{
    Share p = {{.to = tobase, .from = from->base}, *from, bytes};
    int64_t n = 1;

    for (int d = 0; d < r->t->nd; d++) {
        int64_t fix = r->v.fix[d] < 0 ? 0 : r->v.fix[d];
        int64_t len = r->v.fix[d] < 0 ? r->t->dim[d].n : 1;
        p.p.to += fix * to[d];
        p.p.from += fix * from->stride[d];
        strided_loop(&p.p, len, to[d], from->stride[d]);
        n *= len;
    }
    strided_merge(&p.p);
    o->filled += n;
    const char *dt = from->scale ? NULL : from->dt;
    if (!o->part)
        o->from = dt;
    else if (o->from && (!dt || strcmp(dt, o->from)))
        o->from = NULL;
    vec_push(a, o->part, p);
}

/* ---- in ------------------------------------------------------------------ */

static Out *import_outs(Arena *a, const HfRow *row)
{
    Out *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const HfRow *r = &row[i];
        int64_t stride[MAXD], step = 1;
        if (!r->s)
            continue;
        if (!vec_len(v) || strcmp(v[vec_len(v) - 1].st.name, r->t->name)) {
            Out o = {.st = ckpt_describe(a, r->t, r->t->name)};
            vec_push(a, v, o);
        }
        for (int d = r->t->nd - 1; d >= 0; step *= r->t->dim[d--].n)
            stride[d] = step;
        add_part(a, &v[vec_len(v) - 1], r, stride, 0, &r->v,
                 r->s->end - r->s->begin);
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        v[i].st.dt = v[i].from ? v[i].from : "F32";
        v[i].st.bytes = st_bytes(v[i].st.dt);
    }
    return v;
}

/* What else is in their folder (config.json, tokenizer.json ..), to ours.    */
static void copy_beside(Arena *a, const char *from, const char *to)
{
    DIR *d = opendir(from);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        const char *dot = strrchr(e->d_name, '.');
        size_t n = 0;
        if (!dot || e->d_name[0] == '.' || strstr(e->d_name, ".safetensors") ||
            (strcmp(dot, ".json") && strcmp(dot, ".txt") &&
             strcmp(dot, ".model") && strcmp(dot, ".jinja")))
            continue;
        mkdir(to, 0755);
        char *s = ckpt_text(a, strf(a, "%s/%s", from, e->d_name), &n);
        if (s)
            ckpt_write(strf(a, "%s/%s", to, e->d_name), s, n);
    }
    if (d)
        closedir(d);
}

int convert_import(const Plan *p, const char *hf, const char *dir)
{
    Arena *a = forever;
    StFile **file = ckpt_files(a, hf);
    int n = (int)vec_len(file), fd[2] = {-1, -1};
    Carry j = {.out = import_outs(a, hf_rows(p, file, n, hf, 0)), .fd = fd};
    State s = {.seed = (uint64_t)opts_int(p->opts, "seed")};
    char *ckpt = strf(a, "%s/ckpt", dir), *tmp = ckpt_folder(a, ckpt, 0);
    if (ckpt_exists(ckpt))
        err(NULL, "%s has checkpoints already", dir);
    int bad = ckpt_begin(a, ckpt, tmp);
    for (int k = MODEL; k <= OPTIM && !bad; k++) {    /* moments: none, zero  */
        fd[k] = open_out(a, &j, k, strf(a, "%s/%s", tmp, ckptfile[k]));
        bad = fd[k] < 0;
    }
    bad = bad || run(&j, 2, tmp);
    for (int k = MODEL; k <= OPTIM && !bad; k++)
        bad = ckpt_sync(strf(a, "%s/%s", tmp, ckptfile[k]), O_RDWR);
    bad = ckpt_end(a, ckpt, tmp, &s, bad);
    if (!bad)
        copy_beside(a, hf, strf(a, "%s/hf", dir));
    for (int i = 0; i < n; i++)
        st_close(file[i]);
    return bad ? 1 : 0;
}

/* ---- out ----------------------------------------------------------------- */

static int by_hf(const void *a, const void *b)
{
    const HfRow *const *x = a, *const *y = b;
    int c = strcmp((*x)->h->hf, (*y)->h->hf);

    return c ? c : *x < *y ? -1 : *x > *y;
}

/* The first row of each of their tensors says which number it has; numbers in
 * the order of the rows.                                                     */
static int *number_tensors(Arena *a, const HfRow *row)
{
    size_t n = vec_len(row);
    const HfRow **v = alloc(a, (n + 1) * sizeof *v);
    int *first = alloc(a, (n + 1) * sizeof *first), count = 0;

    for (size_t i = 0; i < n; i++)
        v[i] = &row[i];
    qsort(v, n, sizeof *v, by_hf);
    for (size_t i = 0, k = 0; i < n; i++) {
        k = i && !strcmp(v[i]->h->hf, v[k]->h->hf) ? k : i;
        first[v[i] - row] = (int)(v[k] - row);
    }
    for (size_t i = 0; i < n; i++)
        first[i] = first[i] == (int)i ? count++ : first[first[i]];
    return first;
}

static Out new_out(const HfRow *r)
{
    Out o = {.st = {.name = r->h->hf, .nd = r->h->nd}};

    for (int d = 0; d < r->h->nd; d++)
        o.st.n[d] = hf_dim(&r->h->dim[d]);
    return o;
}

static Out *export_outs(Arena *a, const HfRow *row, StFile **file, int nfile,
                        const char *dt)
{
    int *number = number_tensors(a, row);
    Out *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const HfRow *r = &row[i];
        const StFile *f = NULL;
        StTensor *s = NULL;
        for (int k = 0; k < nfile && !s; k++)
            s = st_find(f = file[k], r->t->name);
        if (!s)
            err(NULL, "%s has no tensor '%s'", file[0]->path, r->t->name);
        if (number[i] == (int)vec_len(v))
            vec_push(a, v, new_out(r));
        View from = ckpt_view(f, s, r->t);
        add_part(a, &v[number[i]], r, r->v.stride, r->v.base, &from,
                 s->end - s->begin);
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        StTensor *s = &v[i].st;
        s->dt = dt ? dt : v[i].from ? v[i].from : "F32";
        s->bytes = st_bytes(s->dt);
        if (v[i].filled != elems_of(s))
            err(NULL, "hf{} fills %lld of %lld elements of '%s'",
                (long long)v[i].filled, (long long)elems_of(s), s->name);
    }
    return v;
}

/* Files of at most `shard` bytes, but one tensor each at least.              */
static int deal(Out *v, int64_t shard)
{
    int64_t held = 0;
    int k = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        int64_t bytes = elems_of(&v[i].st) * v[i].st.bytes;
        if (held && held + bytes > shard) {
            k++;
            held = 0;
        }
        held += bytes;
        v[i].file = k;
    }
    return k + 1;
}

static const char *file_name(Arena *a, int k, int n)
{
    return n == 1 ? "model.safetensors"
                  : strf(a, "model-%05d-of-%05d.safetensors", k + 1, n);
}

static int write_weight_map(Arena *a, const Out *v, int nfile, const char *to)
{
    json_t *map = json_object(), *j = json_object(), *meta = json_object();
    int64_t total = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        total += elems_of(&v[i].st) * v[i].st.bytes;
        json_object_set_new(map, v[i].st.name,
                            json_string(file_name(a, v[i].file, nfile)));
    }
    json_object_set_new(meta, "total_size", json_integer(total));
    json_object_set_new(j, "metadata", meta);
    json_object_set_new(j, "weight_map", map);
    int bad = json_dump_file(j, to, JSON_INDENT(2));
    json_decref(j);
    return bad ? ckpt_complain("cannot write", to) : 0;
}

/* What the import found beside their weights, near the checkpoint.           */
static void give_beside(Arena *a, const char *from, const char *to)
{
    static const char *const up[] = {"hf", "../hf", "../../hf"};

    for (int i = 0; i < 3; i++) {
        const char *dir = strf(a, "%s/%s", from, up[i]);
        if (!access(dir, F_OK)) {
            copy_beside(a, dir, to);
            return;
        }
    }
}

int convert_export(const Plan *p, const char *from, const char *hf,
                   const char *dt, int state, int64_t shard)
{
    Arena *a = forever;
    StFile **file = ckpt_files(a, from);
    int n = (int)vec_len(file), bad = 0;
    HfRow *row = hf_rows(p, NULL, 0, hf, state);
    Carry j = {.out = export_outs(a, row, file, n, dt)};
    int nfile = deal(j.out, shard);

    if (mkdir(hf, 0755) && errno != EEXIST)
        err(NULL, "cannot make %s: %s", hf, strerror(errno));
    j.fd = alloc(a, (size_t)nfile * sizeof *j.fd);
    for (int k = 0; k < nfile && !bad; k++) {
        j.fd[k] = open_out(a, &j, k, strf(a, "%s/%s", hf,
                                          file_name(a, k, nfile)));
        bad = j.fd[k] < 0;
    }
    bad = bad || run(&j, nfile, hf);
    if (!bad && nfile > 1)
        bad = write_weight_map(a, j.out, nfile, strf(a,
            "%s/model.safetensors.index.json", hf));
    if (!bad)
        give_beside(a, from, hf);
    for (int i = 0; i < n; i++)
        st_close(file[i]);
    return bad ? 1 : 0;
}
