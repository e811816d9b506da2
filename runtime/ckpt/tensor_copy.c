/* tensor_copy.c: tensors made of boxes of mapped ones, moved from files to
 * files. A tensor is moved in units that a core's cache holds, by as many
 * threads as there are: a unit is gathered into the thread's own memory and
 * written where it belongs. Two writers of one inode wait for each other,
 * spinning, so who finds its file taken goes on with the next unit, and as many
 * files as there are threads are written at a time. What keeps its order and
 * dtype is left to copy_file_range, as cp does. A large model needs no more
 * memory than a small one. With 512 KB a unit and tiles of 64 a core turns 5.6
 * GB/s of bf16. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt.h"

/* Bytes: of a unit, of one in order, at most of one, of what a thread keeps
 * until it can write it, of what a file holds back from the disk. */
enum {
    UNIT = 512 << 10,
    LONG = 8 << 20,
    LARGEST = 64 << 20,
    KEPT = 4 << 20,
    EARLY = 64 << 20
};
enum { SLOTS = 4 };

typedef struct CopyUnit {
    OutTensor *o;
    int64_t k, lo, hi;
} CopyUnit;

typedef struct OutFile {
    int fd;
    int64_t written;
    pthread_mutex_t lock; /* held by who writes */
} OutFile;

struct TensorCopy {
    OutFile *file;
    int nfile, threads;
    int durable;      /* hand pages to the disk early */
    CopyUnit *unit;   /* vec */
    size_t room;      /* elements of a unit, at most */
    float f8[2][256]; /* e4m3, e5m2 */
    _Atomic size_t next;
    _Atomic int failed; /* errno of a write */
};

/* ---- units --------------------------------------------------------------- */

/* Does its one part hold it as it is? */
static int in_order(const OutTensor *o)
{
    const Strided *strided = &o->part[0].p;

    return vec_len(o->part) == 1 && o->from && !strcmp(o->from, o->st.dt) &&
           (strided->n == 0 || (strided->n == 1 && strided->loop[0].to == 1 &&
                                strided->loop[0].from == 1));
}

/* Units large enough that source rows are read in whole lines. */
static int64_t unit_elems(const OutTensor *o)
{
    int64_t b = o->st.bytes, each = UNIT / b, room = 1;

    if (in_order(o))
        return LONG / b;
    for (size_t i = 0; i < vec_len(o->part); i++) {
        int64_t r = strided_room(&o->part[i].p);
        room = r > room ? r : room;
    }
    each = each > room ? each / room * room : room;
    return each < LARGEST / b ? each : LARGEST / b;
}

static void add_units(Arena *a, TensorCopy *j, OutTensor *o, int64_t *k)
{
    int64_t n = st_elems(&o->st), each = unit_elems(o);

    each = each < n ? each : n;
    o->left = n;
    if (!in_order(o) && (size_t)each > j->room)
        j->room = (size_t)each;
    for (int64_t lo = 0; lo < n; lo += each) {
        CopyUnit u = { o, (*k)++, lo, lo + each < n ? lo + each : n };
        vec_push(a, j->unit, u);
    }
}

/* As many files at a time as there are threads. */
static int by_turn(const void *a, const void *b, void *threads)
{
    const CopyUnit *x = a, *y = b;
    int n = *(int *)threads, f = x->o->file, g = y->o->file;

    if (f / n != g / n)
        return f / n - g / n;
    return x->k != y->k ? (x->k > y->k) - (x->k < y->k) : f - g;
}

/* ---- values -------------------------------------------------------------- */

typedef struct UnitFill {
    const TensorCopy *j;
    const Share *part;
    const CopyUnit *u;
    const uint8_t *raw; /* the unit's elements as the sources' dtype*/
    uint8_t *to;
} UnitFill;

/* Element by element: parts of several dtypes. */
static void value_box(void *ctx, const Stride *l, int n, int64_t to,
                      int64_t from)
{
    const UnitFill *f = ctx;

    if (n == 0) {
        st_set(f->u->o->st.dt, f->to, to - f->u->lo,
               view_get(&f->part->v, from));
        return;
    }
    for (int64_t i = 0; i < l->n; i++)
        value_box(ctx, l + 1, n - 1, to + i * l->to, from + i * l->from);
}

/* FP8 with a scale for each block, to F32. The innermost loop is contiguous
 * where it goes. */
static void scale_box(void *ctx, const Stride *l, int n, int64_t to,
                      int64_t from)
{
    static const Stride once = { 1, 1, 1 };
    const UnitFill *f = ctx;
    const View *v = &f->part->v;
    const float *value = f->j->f8[!strcmp(v->dt, "F8_E5M2")];

    if (n > 1 || (n == 1 && l->to != 1)) {
        for (int64_t i = 0; i < l->n; i++)
            scale_box(ctx, l + 1, n - 1, to + i * l->to, from + i * l->from);
        return;
    }
    l = n ? l : &once;
    const uint8_t *x = f->raw + to - f->u->lo;
    float *y = (float *)(void *)f->to + (to - f->u->lo);
    for (int64_t i = 0; i < l->n;) {
        int64_t at = from + i * l->from, k = view_same(v, at, l->from);
        float s = view_scale(v, at);
        for (k = k < l->n - i ? i + k : l->n; i < k; i++)
            y[i] = value[x[i]] * s;
    }
}

static void narrow(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = f32_to_bf16(x[i]);
}

/* n elements of dtype `from` as dtype `dt`. */
static void cast(const char *from, const uint8_t *x, const char *dt, uint8_t *y,
                 int64_t n)
{
    if (!strcmp(from, "F32") && !strcmp(dt, "BF16")) {
        narrow((const void *)x, (void *)y, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        st_set(dt, y, i, st_get(from, x, i));
}

/* The unit's bytes, to `to`; raw: as much memory again. */
static void gather(const TensorCopy *j, const CopyUnit *u, uint8_t *raw,
                   uint8_t *to)
{
    const OutTensor *o = u->o;
    int same = o->from && !strcmp(o->from, o->st.dt), scaled = 0;

    for (size_t i = 0; i < vec_len(o->part); i++) {
        const Share *p = &o->part[i];
        UnitFill f = { j, p, u, raw, to };
        if (!o->from) {
            strided_boxes(&p->p, u->lo, u->hi, value_box, &f);
            continue;
        }
        strided_copy(&p->p, st_bytes(o->from), p->v.data, same ? to : raw,
                     u->lo, u->hi);
        if (p->v.scale)
            strided_boxes(&p->p, u->lo, u->hi, scale_box, &f);
        scaled |= p->v.scale != NULL;
    }
    if (o->from && !same && !scaled)
        cast(o->from, raw, o->st.dt, to, u->hi - u->lo);
}

/* ---- writing ------------------------------------------------------------- */

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

/* n bytes from p, which f maps; file to file where the kernel can. */
static int copy_at(int fd, const StFile *f, const uint8_t *p, int64_t n,
                   int64_t at)
{
    while (n) {
        off_t from = p - f->map, to = at;
        ssize_t k = copy_file_range(f->fd, &from, fd, &to, (size_t)n, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return write_at(fd, p, n, at);
        p += k;
        at += k;
        n -= k;
    }
    return 0;
}

/* Nothing more of o will be read: what was mapped for it is let go. */
static void let_go(const OutTensor *o)
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

/* A unit's bytes at p to its file, which this thread holds and gives back. */
static void put_unit(TensorCopy *j, const CopyUnit *u, const uint8_t *p)
{
    OutTensor *o = u->o;
    OutFile *f = &j->file[o->file];
    int64_t n = (u->hi - u->lo) * o->st.bytes, at = o->at + u->lo * o->st.bytes;
    int64_t before = f->written;
    int no = in_order(o) ? copy_at(f->fd, o->part[0].f, p, n, at)
                         : write_at(f->fd, p, n, at);
    int flush = j->durable && (f->written += n) / EARLY != before / EARLY;

    pthread_mutex_unlock(&f->lock);
    if (no)
        atomic_store(&j->failed, no);
    if (flush)
        sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    if (atomic_fetch_sub(&o->left, u->hi - u->lo) == u->hi - u->lo)
        let_go(o);
}

/* ---- threads ------------------------------------------------------------- */

typedef struct Worker {
    TensorCopy *j;
    uint8_t *raw;
    struct {
        const CopyUnit *u;
        uint8_t *p;
    } slot[SLOTS];
    int n, nslot; /* units that wait to be written; slots */
} Worker;

/* Write what waits for files that nobody holds, or all. */
static void drain(Worker *w, int all)
{
    int kept = 0;

    for (int i = 0; i < w->n; i++) {
        const CopyUnit *u = w->slot[i].u;
        uint8_t *p = w->slot[i].p;
        pthread_mutex_t *lock = &w->j->file[u->o->file].lock;
        if (all ? pthread_mutex_lock(lock) : pthread_mutex_trylock(lock)) {
            w->slot[i].p = w->slot[kept].p;
            w->slot[kept].u = u;
            w->slot[kept++].p = p;
            continue;
        }
        put_unit(w->j, u, p);
    }
    w->n = kept;
}

static void carry(Worker *w)
{
    TensorCopy *j = w->j;
    size_t i, n = vec_len(j->unit);

    while (!j->failed && (i = atomic_fetch_add(&j->next, 1)) < n) {
        const CopyUnit *u = &j->unit[i];
        if (in_order(u->o)) {
            const Share *p = &u->o->part[0];
            int64_t skip = p->p.from + u->lo - p->p.to;
            pthread_mutex_lock(&j->file[u->o->file].lock);
            put_unit(j, u, p->v.data + skip * u->o->st.bytes);
            continue;
        }
        gather(j, u, w->raw, w->slot[w->n].p);
        w->slot[w->n++].u = u;
        drain(w, w->n == w->nslot);
    }
    drain(w, 1);
}

static void work(void *ctx, int64_t lo, int64_t hi)
{
    Worker w = { .j = ctx };
    size_t room = w.j->room * 8; /* the largest dtype */

    if (lo == hi)
        return;
    w.nslot = room > KEPT / SLOTS ? room > KEPT / 2 ? 1 : 2 : SLOTS;
    uint8_t *p = malloc(room * (size_t)(w.nslot + 1) + 1);
    w.raw = p;
    for (int i = 0; i < w.nslot; i++)
        w.slot[i].p = p + (size_t)(i + 1) * room;
    if (p)
        carry(&w);
    else
        atomic_store(&w.j->failed, ENOMEM);
    free(p);
}

/* ---- files --------------------------------------------------------------- */

TensorCopy *carry_new(Arena *a, int nfile, int durable)
{
    TensorCopy *j = alloc(a, sizeof *j);

    j->file = alloc(a, (size_t)nfile * sizeof *j->file);
    j->durable = durable;
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        j->f8[0][i] = (float)st_get("F8_E4M3", &b, 0);
        j->f8[1][i] = (float)st_get("F8_E5M2", &b, 0);
    }
    return j;
}

int carry_file(Arena *a, TensorCopy *j, OutTensor *out, const char *path)
{
    int k = j->nfile;
    StTensor *v = NULL;
    size_t len;
    int64_t total, units = 0;

    for (size_t i = 0; i < vec_len(out); i++) {
        out[i].st.taken = (int64_t)i;
        if (out[i].file == k)
            vec_push(a, v, out[i].st);
    }
    char *head = st_header(a, v, (int)vec_len(v), &len, &total);
    for (size_t i = 0; i < vec_len(v); i++) {
        OutTensor *o = &out[v[i].taken];
        o->at = (int64_t)len + v[i].begin;
        add_units(a, j, o, &units);
    }
    if (ckpt_complain(ckpt_layout(a, path, head, len, total)))
        return -1;
    j->file[k].fd = open(path, O_WRONLY | O_CLOEXEC);
    if (j->file[k].fd < 0)
        return ckpt_complain(ckpt_why(a, "cannot write", path));
    pthread_mutex_init(&j->file[k].lock, NULL);
    j->nfile++;
    return 0;
}

int carry_run(TensorCopy *j, const char *what)
{
    Pool *pool = pool_open(0);
    int bad = 0;

    j->threads = pool_size(pool);
    if (j->unit)
        qsort_r(j->unit, vec_len(j->unit), sizeof *j->unit, by_turn,
                &j->threads);
    pool_run(pool, work, j, j->threads, 1);
    pool_close(pool);
    for (int k = 0; k < j->nfile; k++) {
        bad |= close(j->file[k].fd);
        pthread_mutex_destroy(&j->file[k].lock);
    }
    if (j->failed)
        errno = j->failed;
    return j->failed || bad
               ? ckpt_complain(ckpt_why(forever, "cannot write", what))
               : 0;
}
