/* tensors.c: see tensors.h. */
#include <math.h>
#include <string.h>

#include "tensors.h"

double exec_named(const Exec *x, const char *name)
{
    const Role *r = x->rank[0].role;
    int i = 0;

    while (i < r->nout && strcmp(r->out[i].name, name))
        i++;
    return i < r->nout ? exec_out(x, i) : NAN;
}

typedef struct Outside {
    Dtype dt;
    void *local;
    double *out;
    const double *in;
    int64_t cap;
} Outside;

static void take_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Outside *o = ctx;

    for (int64_t i = 0; i < n && global + i < o->cap; i++)
        o->out[global + i] = elem_get(o->dt, o->local, local + i);
}

static void give_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Outside *o = ctx;

    for (int64_t i = 0; i < n && global + i < o->cap; i++)
        elem_set(o->dt, o->local, local + i, o->in[global + i]);
}

/* Every part of a tensor of the table that is in this process. */
static int64_t each_part(Exec *x, const char *name, RunFn *f, Outside *o)
{
    int64_t n = -1;

    for (int64_t i = 0; i < x->comm->n; i++) {
        const Rank *r = &x->rank[i];
        int k = role_tensor(r->role, name);
        if (k < 0)
            continue;
        const Tensor *t = &r->role->tensor[k];
        o->dt = t->dt;
        o->local = r->buf[t->buf];
        tensor_runs(x->plan->mesh, t, r->id, f, o);
        n = tensor_elems(t);
    }
    return n;
}

static int64_t read_buffer(Exec *x, const char *name, int64_t rank, double *out,
                           int64_t cap)
{
    const Rank *r = &x->rank[rank - x->comm->first];

    for (int i = 0; i < r->role->nbuf; i++) {
        const Buf *b = &r->role->buf[i];
        if (!b->name || strcmp(b->name, name) || !dtypes[b->dt].bytes)
            continue;
        int64_t n = b->bytes / dtypes[b->dt].bytes;
        for (int64_t k = 0; k < n && k < cap; k++)
            out[k] = elem_get(b->dt, r->buf[i], k);
        return n;
    }
    return -1;
}

int64_t exec_read(Exec *x, const char *name, int64_t rank, double *out,
                  int64_t cap)
{
    Outside o = { .out = out, .cap = cap };

    exec_pull(x);
    int64_t n = each_part(x, name, take_run, &o);

    return n >= 0 ? n : read_buffer(x, name, rank, out, cap);
}

int64_t exec_write(Exec *x, const char *name, const double *in, int64_t n)
{
    Outside o = { .in = in, .cap = n };

    exec_guard(x, STREAMcompute);
    int64_t count = each_part(x, name, give_run, &o);
    exec_push(x);
    return count;
}

uint8_t *file_map(const char *path, int64_t *size, int writable)
{
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    struct stat st;
    void *p = MAP_FAILED;

    if (fd >= 0 && !fstat(fd, &st) && st.st_size) {
        *size = st.st_size;
        p = mmap(NULL, (size_t)st.st_size,
                 writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                 0);
    }
    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? NULL : p;
}
