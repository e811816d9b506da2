/* hf.c: parameters under Hugging Face names. A row of the plan's table says how
 * one of their tensors, or a part of one, lies in one of our parameters: each
 * dim of theirs is a mixed radix of our axes, major first, an axis possibly at
 * an offset inside a longer digit; our remaining axes are fixed ("expert 3").
 * So an element of ours is at an affine function of its indices, both ways.  */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

/* ---- one row of the table ------------------------------------------------ */

static int64_t dim_size(const HfDim *d)
{
    int64_t n = 1;

    for (int i = 0; i < d->nf; i++)
        n *= d->f[i].total;
    return n;
}

static int dim_at(const Tensor *t, const char *axis)
{
    for (int d = 0; d < t->nd; d++)
        if (!strcmp(t->dim[d].axis, axis))
            return d;
    err(&(Loc){t->file, t->line, NULL}, "hf: parameter '%s' has no axis '%s'",
        t->name, axis);
}

/* base, strides and fixed axes; *cover: elements that the row carries. */
static View row_view(const HfMap *h, const Tensor *t, int64_t *cover)
{
    View v = {0};
    int64_t step = 1;

    *cover = 1;
    for (int d = 0; d < t->nd; d++)
        v.fix[d] = -1;
    for (int i = 0; i < h->nfix; i++)
        v.fix[dim_at(t, h->fixaxis[i])] = h->fixat[i];
    for (int k = h->nd - 1; k >= 0; k--)
        for (int i = h->dim[k].nf - 1; i >= 0; i--) {
            const HfFactor *f = &h->dim[k].f[i];
            v.base += f->start * step;
            if (f->axis && *f->axis) {
                v.stride[dim_at(t, f->axis)] = step;
                *cover *= f->n;
            }
            step *= f->total;
        }
    for (int d = 0; d < t->nd; d++)
        if (v.fix[d] >= 0)
            v.base -= v.fix[d] * v.stride[d];
    return v;
}

static void check_row(const HfMap *h, const StFile *f, const StTensor *s)
{
    int ok = s->nd == h->nd;

    for (int k = 0; k < h->nd && ok; k++)
        ok = s->n[k] == dim_size(&h->dim[k]);
    if (!ok) {
        Text a = {.arena = forever}, b = {.arena = forever};
        for (int k = 0; k < s->nd; k++)
            put(&a, "%s%lld", k ? " " : "", (long long)s->n[k]);
        for (int k = 0; k < h->nd; k++)
            put(&b, "%s%lld", k ? " " : "", (long long)dim_size(&h->dim[k]));
        err(NULL, "'%s' is [%s] in %s, parameter '%s' makes it [%s]", s->name,
            a.s ? a.s : "", f->path, h->param, b.s ? b.s : "");
    }
    if (!st_isfloat(s->dt))
        err(NULL, "'%s' in %s is %s; convert it to F32, BF16 or F16 first",
            s->name, f->path, s->dt);
}

/* ---- loading ------------------------------------------------------------- */

static StTensor *find_tensor(StFile **file, int n, const char *name, int *at)
{
    for (*at = 0; *at < n; ++*at) {
        StTensor *t = st_find(file[*at], name);
        if (t)
            return t;
    }
    return NULL;
}

static void load_row(Exec *x, const HfMap *h, const StFile *f, StTensor *s,
                     const char *name)
{
    for (int64_t k = 0; k < x->comm->n; k++) {
        int64_t rank = x->comm->first + k, cover;
        const Role *r = exec_role(x, rank);
        int i = role_tensor(r, name);
        if (i < 0)
            continue;
        const Tensor *t = &r->tensor[i];
        View v = row_view(h, t, &cover);
        v.data = f->data + s->begin;
        v.dt = s->dt;
        view_load(x->plan->mesh, t, rank, &v, exec_buf(x, rank, t->buf));
    }
}

static const Tensor *param_named(const Plan *p, const char *name)
{
    for (int r = 0; r < p->nrole; r++) {
        int i = role_tensor(&p->role[r], name);
        if (i >= 0)
            return &p->role[r].tensor[i];
    }
    return NULL;
}

/* ---- unrolled axes ------------------------------------------------------- */

/* h, or with {axis} in its name one row for each index of the axis, to *v. */
static void unroll(const Plan *p, const HfMap *h, HfMap **v)
{
    const Tensor *t = param_named(p, h->param);
    int i = 0;

    while (i < h->nfix && h->fixat[i] >= 0)
        i++;
    if (i == h->nfix || !t) {
        vec_push(forever, *v, *h);
        return;
    }
    char *word = strf(forever, "{%s}", h->fixaxis[i]);
    const char *at = strstr(h->hf, word);
    int head = at ? (int)(at - h->hf) : (int)strlen(h->hf);
    const char *rest = at ? at + strlen(word) : "";
    HfMap one = *h;
    for (int64_t k = 0; k < t->dim[dim_at(t, h->fixaxis[i])].n; k++) {
        one.hf = strf(forever, "%.*s%lld%s", head, h->hf, (long long)k, rest);
        one.fixat[i] = k;
        unroll(p, &one, v);
    }
}

/* The plan, its table with one row for each of their tensors. */
static Plan *unrolled(const Plan *p)
{
    Plan *q = alloc(forever, sizeof *q);
    HfMap *v = NULL;

    *q = *p;
    for (int i = 0; i < p->nhf; i++)
        unroll(p, &p->hf[i], &v);
    q->hf = v;
    q->nhf = (int)vec_len(v);
    return q;
}

/* ---- all of them --------------------------------------------------------- */

/* Elements of each row's parameter that the rows before and it have filled. */
static void refuse_unfilled(const Plan *p, const int64_t *filled,
                            const char *what)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            int64_t n = 0;
            if (strcmp(t->kind, "param"))
                continue;
            for (int k = 0; k < p->nhf; k++)
                n += !strcmp(p->hf[k].param, t->name) ? filled[k] : 0;
            if (n < tensor_elems(t))
                err(&(Loc){t->file, t->line, NULL}, "%s fills %lld of %lld "
                    "elements of parameter '%s'%s", what, (long long)n,
                    (long long)tensor_elems(t), t->name,
                    n ? "" : " (does hf{} name it?)");
        }
}

static void refuse_leftovers(StFile **file, int n, const char *what)
{
    Text names = {.arena = forever};
    int left = 0;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < file[i]->n; k++) {
            const StTensor *s = &file[i]->t[k];
            int64_t elems = (s->end - s->begin) / s->bytes;
            if (s->taken >= elems)
                continue;
            if (left++ < 3)
                put(&names, "%s'%s'", left > 1 ? ", " : "", s->name);
        }
    if (left)
        err(NULL, "%s has %d tensor%s that no parameter takes: %s%s", what,
            left, left > 1 ? "s" : "", names.s, left > 3 ? ", ..." : "");
}

void hf_load(Exec *x, StFile **file, int n, const char *what)
{
    const Plan *p = unrolled(x->plan);
    int64_t *filled = alloc(forever, (size_t)p->nhf * sizeof *filled);

    for (int i = 0; i < p->nhf; i++) {
        const HfMap *h = &p->hf[i];
        const Tensor *t = param_named(p, h->param);
        int at;
        StTensor *s = find_tensor(file, n, h->hf, &at);
        if (!t)
            err(NULL, "hf: the model has no parameter '%s'", h->param);
        if (!s && !strcmp(t->kind, "param"))
            err(NULL, "%s has no tensor '%s' for parameter '%s'", what, h->hf,
                h->param);
        if (!s)
            continue;
        check_row(h, file[at], s);
        row_view(h, t, &filled[i]);
        s->taken += filled[i];
        load_row(x, h, file[at], s, h->param);
        load_row(x, h, file[at], s, strf(forever, "optim.master.%s", h->param));
    }
    refuse_unfilled(p, filled, what);
    refuse_leftovers(file, n, what);
}

/* ---- saving -------------------------------------------------------------- */

/* Their tensors, each once, as this plan's rows shape them. A vec. */
static StTensor *list_hf(Arena *a, const Plan *p)
{
    StTensor *v = NULL;

    for (int i = 0; i < p->nhf; i++) {
        const HfMap *h = &p->hf[i];
        size_t k = 0;
        while (k < vec_len(v) && strcmp(v[k].name, h->hf))
            k++;
        if (k < vec_len(v))
            continue;
        StTensor s = {.name = h->hf, .dt = "F32", .bytes = 4, .nd = h->nd};
        for (int d = 0; d < h->nd; d++)
            s.n[d] = dim_size(&h->dim[d]);
        vec_push(a, v, s);
    }
    return v;
}

typedef struct Spread {
    const Tensor *t;
    const View *v;
    const void *local;
    Dtype dt;
    uint8_t *out;
} Spread;

/* A run of our logical elements to their places. */
static void spread_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Spread *s = ctx;

    for (int64_t i = 0; i < n; i++) {
        int64_t rest = global + i, to = s->v->base;
        int mine = 1;
        for (int d = s->t->nd - 1; d >= 0; d--) {
            int64_t x = rest % s->t->dim[d].n;
            rest /= s->t->dim[d].n;
            mine &= s->v->fix[d] < 0 || s->v->fix[d] == x;
            to += x * s->v->stride[d];
        }
        float f = (float)elem_get(s->dt, s->local, local + i);
        if (mine)
            memcpy(s->out + to * 4, &f, sizeof f);
    }
}

static void save_row(Exec *x, const HfMap *h, uint8_t *out)
{
    const Plan *p = x->plan;
    const char *master = strf(forever, "optim.master.%s", h->param);

    for (int64_t k = 0; k < x->comm->n; k++) {
        int64_t rank = x->comm->first + k, cover;
        const Role *r = exec_role(x, rank);
        int i = role_tensor(r, master);
        i = i < 0 ? role_tensor(r, h->param) : i;
        if (i < 0 || !tensor_owner(p->mesh, &r->tensor[i], rank))
            continue;
        const Tensor *t = &r->tensor[i];
        View v = row_view(h, t, &cover);
        Spread s = {t, &v, exec_buf(x, rank, t->buf), t->dt, out};
        tensor_runs(p->mesh, t, rank, spread_run, &s);
    }
}

static uint8_t *make_file(const char *path, const char *head, size_t len,
                          int64_t total)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    void *p = MAP_FAILED;
    int no = fd < 0 ? errno : posix_fallocate(fd, 0, total);

    if (!no)
        p = mmap(NULL, (size_t)total, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                 0);
    if (p == MAP_FAILED)
        err(NULL, "cannot write %s: %s", path, strerror(no ? no : errno));
    close(fd);
    return memcpy(p, head, len);
}

void hf_save(Exec *x, const char *dir)
{
    const Plan *p = unrolled(x->plan);
    StTensor *v = list_hf(forever, p);
    size_t len;
    int64_t total;

    if (x->comm->n < x->comm->world)
        err(NULL, "export runs in one process, not under mpirun");
    if (!p->nhf)
        err(NULL, "the model has no hf{} table");
    if (mkdir(dir, 0755) && errno != EEXIST)
        err(NULL, "cannot make %s: %s", dir, strerror(errno));
    char *head = st_header(forever, v, (int)vec_len(v), &len, &total);
    uint8_t *map = make_file(strf(forever, "%s/model.safetensors", dir), head,
                             len, total);
    for (int i = 0; i < p->nhf; i++)
        for (size_t k = 0; k < vec_len(v); k++)
            if (!strcmp(v[k].name, p->hf[i].hf))
                save_row(x, &p->hf[i], map + len + v[k].begin);
    munmap(map, (size_t)total);
}
