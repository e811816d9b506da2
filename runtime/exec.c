/* exec.c: a plan in memory, and its steps one after another.
 *
 * exec_open allocates each rank's arena once and binds every step of every
 * program: function, buffer addresses, integers for this rank. After that
 * nothing is allocated; a step is a loop over an array.
 *
 * All ranks of this process take each step together (one rank under mpirun, all
 * of a plan with the communicator `local`); a collective runs when all members
 * have come to it.                                                           */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime.h"

typedef struct Bound {            /* a step of one rank                       */
    const Step *s;
    KernelFn *fn;
    void **buf;
    int64_t *iv;
    void *scratch;                /* gemm, gmm, gmmw, collectives             */
    int64_t group, *ranks, me;    /* collectives                              */
} Bound;

typedef struct Rank {
    int64_t id;
    const Role *role;
    uint8_t *arena;
    void **buf;
    Bound **step;                 /* [program][step]                          */
} Rank;

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* ---- memory -------------------------------------------------------------- */

/* Zeroed pages; big arenas begin at a huge page so that the kernel can use
 * them.                                                                      */
static void *pages(int64_t bytes, const char *what)
{
    int64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    int64_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    uint8_t *p = mmap(NULL, (size_t)(size + align), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        err(NULL, "out of memory: %s needs %.1f MiB", what,
            (double)bytes / 1048576);
    uint8_t *q = (uint8_t *)(((uintptr_t)p + (uintptr_t)align - 1) /
                             (uintptr_t)align * (uintptr_t)align);
    if (q > p)
        munmap(p, (size_t)(q - p));
    if (p + align > q)
        munmap(q + size, (size_t)(p + align - q));
    madvise(q, (size_t)size, MADV_HUGEPAGE);
    return q;
}

static void drop_pages(void *p, int64_t bytes)
{
    if (p)
        munmap(p, (size_t)((bytes + PAGE - 1) / PAGE * PAGE));
}

/* ---- binding ------------------------------------------------------------- */

static int is_comm(StepKind k)
{
    return k == Sallgather || k == Sreducescatter || k == Sallreduce ||
           k == Salltoall || k == Srotate;
}

static int is_blas(StepKind k)
{
    return k == Sgemm || k == Sgmm || k == Sgmmw;
}

static void bind_group(Exec *x, const Rank *r, Bound *b)
{
    const Mesh *m = x->plan->mesh;

    b->group = mesh_extent(m, b->s->atoms);
    b->ranks = alloc(x->mem, (size_t)b->group * sizeof *b->ranks);
    mesh_group(m, b->s->atoms, r->id, b->ranks);
    b->me = mesh_pos(m, b->s->atoms, r->id);
}

/* Bytes of work space, and the step's own scratch buffer if that is enough. */
static int64_t bind_scratch(Exec *x, const Rank *r, Bound *b)
{
    const Step *s = b->s;
    int64_t need = 0;

    if (is_blas(s->kind) || (is_comm(s->kind) && x->comm->n < x->comm->world))
        need = step_work(s->kind, b->iv, s->nint, b->group);
    int last = s->nbuf ? s->buf[s->nbuf - 1] : -1;
    if (last >= 0 && r->role->buf[last].bytes >= need)
        b->scratch = r->buf[last];
    return need > 0 && !b->scratch ? need : 0;
}

static int64_t bind_step(Exec *x, const Rank *r, Bound *b, const Step *s)
{
    b->s = s;
    b->buf = alloc(x->mem, (size_t)(s->nbuf + 1) * sizeof *b->buf);
    for (int i = 0; i < s->nbuf; i++)
        b->buf[i] = s->buf[i] < 0 ? NULL : r->buf[s->buf[i]];
    b->iv = alloc(x->mem, (size_t)(s->nint + 2) * sizeof *b->iv);
    for (int i = 0; i < s->nint; i++)
        b->iv[i] = aff_at(x->plan->mesh, &s->iv[i], r->id);
    if (s->kind == Skernel)
        b->fn = host_kernel(x->code, s->kernel);
    if (is_comm(s->kind))
        bind_group(x, r, b);
    return bind_scratch(x, r, b);
}

static void bind_rank(Exec *x, Rank *r, int64_t id)
{
    const Plan *p = x->plan;

    r->id = id;
    r->role = &p->role[role_of(p, id)];
    r->arena = pages(r->role->arena, "the plan");
    r->buf = alloc(x->mem, (size_t)r->role->nbuf * sizeof *r->buf);
    for (int i = 0; i < r->role->nbuf; i++)
        r->buf[i] = r->arena + r->role->buf[i].offset;
    r->step = alloc(x->mem, (size_t)r->role->nprog * sizeof *r->step);
    for (int i = 0; i < r->role->nprog; i++) {
        const Program *g = &r->role->prog[i];
        r->step[i] = alloc(x->mem, (size_t)g->nstep * sizeof **r->step);
        for (int k = 0; k < g->nstep; k++) {
            int64_t n = bind_step(x, r, &r->step[i][k], &g->step[k]);
            x->nwork = n > x->nwork ? n : x->nwork;
        }
    }
}

/* Steps without a large enough scratch buffer take turns with one. */
static void bind_work(Exec *x)
{
    if (!x->nwork)
        return;
    x->work = pages(x->nwork, "work space");
    for (int64_t i = 0; i < x->comm->n; i++)
        for (int g = 0; g < x->rank[i].role->nprog; g++)
            for (int k = 0; k < x->rank[i].role->prog[g].nstep; k++)
                if (!x->rank[i].step[g][k].scratch)
                    x->rank[i].step[g][k].scratch = x->work;
}

Exec *exec_open(const Plan *p, Comm *c)
{
    Arena *a = arena_new();
    Exec *x = alloc(a, sizeof *x);

    *x = (Exec){.plan = p, .mem = a, .comm = c};
    if (p->nrole > 1 && c->n > 1)
        err(NULL, "a plan of %d pipeline stages runs under mpirun only",
            p->nrole);
    x->code = host_load(a, p);
    x->pool = pool_open(0);
    x->blas = blas_open(a, x->pool);
    x->rank = alloc(a, (size_t)c->n * sizeof *x->rank);
    for (int64_t i = 0; i < c->n; i++)
        bind_rank(x, &x->rank[i], c->first + i);
    bind_work(x);
    return x;
}

void exec_close(Exec *x)
{
    for (int64_t i = 0; i < x->comm->n; i++)
        drop_pages(x->rank[i].arena, x->rank[i].role->arena);
    drop_pages(x->work, x->nwork);
    pool_close(x->pool);
    arena_free(x->mem);
}

/* ---- one step ------------------------------------------------------------ */

static void call_kernel(void *ctx, int64_t lo, int64_t hi)
{
    const Bound *b = ctx;

    b->fn(b->buf, b->iv, lo, hi);
}

static void run_local(Exec *x, Bound *b, int64_t bytes)
{
    const Step *s = b->s;

    if (s->kind == Skernel)
        pool_run(x->pool, call_kernel, b, b->iv[0], s->nint > 1 ? b->iv[1] : 1);
    else if (s->kind == Szero)
        memset(b->buf[0], 0, (size_t)bytes);
    else if (s->kind == Scopy)
        memcpy(b->buf[1], b->buf[0], (size_t)bytes);
    else
        blas_run(x->blas, s->kind, b->buf, b->iv, s->nint, b->scratch);
}

/* Every group of a collective once, at its first member in this process. */
static void run_comm(Exec *x, int prog, int k)
{
    enum { MAXLOCAL = 1024 };
    static Part part[MAXLOCAL];

    for (int64_t i = 0; i < x->comm->n; i++) {
        const Bound *b = &x->rank[i].step[prog][k];
        int64_t n = x->comm->n < x->comm->world ? 1 : b->group;
        if (n > 1 && b->me != 0)
            continue;
        if (n > MAXLOCAL)
            err(NULL, "a group of %lld ranks in one process", (long long)n);
        for (int64_t j = 0; j < n; j++) {
            const Bound *o = n == 1 ? b
                : &x->rank[b->ranks[j] - x->comm->first].step[prog][k];
            part[j] = (Part){o->buf[0], o->buf[1]};
        }
        comm_run(x->comm, x->pool,
                 &(Coll){b->s->kind, b->iv, b->group, b->ranks, part, b->me,
                         b->scratch});
    }
}

/* ---- looking for the first bad number ------------------------------------ */

typedef enum Look { LOOKnan, LOOKinf } Look;

/* Does the buffer hold a NaN, or +infinity (-infinity is what masks hold)? */
static int is_bad(const Buf *b, const void *p, Look look)
{
    if (dtypes[b->dt].kind != 'f')
        return 0;
    int64_t n = b->bytes / dtypes[b->dt].bytes;
    for (int64_t i = 0; i < n; i++) {
        double v = elem_get(b->dt, p, i);
        if (v != v || (look == LOOKinf && v > 0 && isinf(v)))
            return 1;
    }
    return 0;
}

enum { MAXLOOK = 64 };

/* Which of a step's buffers are bad, as bits. What is born here starts clean.*/
static uint64_t look_at(const Rank *r, int prog, int k)
{
    const Step *s = &r->role->prog[prog].step[k];
    uint64_t bad = 0;

    for (int i = 0; i < s->nbuf && i < MAXLOOK; i++)
        if (s->buf[i] >= 0 && r->role->buf[s->buf[i]].cls != Bscratch &&
            is_bad(&r->role->buf[s->buf[i]], r->buf[s->buf[i]], LOOKinf))
            bad |= 1ull << i;
    return bad;
}

static void clear_born(const Rank *r, int prog, int k)
{
    const Step *s = &r->role->prog[prog].step[k];

    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &r->role->buf[s->buf[i]];
        if (b && b->prog == prog && b->born == k)
            memset(r->buf[s->buf[i]], 0, (size_t)b->bytes);
    }
}

static const char *say_bad(Exec *x, const Rank *r, int prog, int k, int i)
{
    const Step *s = &r->role->prog[prog].step[k];
    const Buf *b = &r->role->buf[s->buf[i]];
    const char *file = b->file ? b->file : s->file;
    int line = b->file ? b->line : s->line;
    const char *what = is_bad(b, r->buf[s->buf[i]], LOOKnan) ? "NaN"
                                                             : "infinity";

    return strf(x->mem, "first %s in '%s' after %s%s%s (rank %lld)", what,
                b->name, s->label ? s->label : stepinfo[s->kind].name,
                file ? strf(x->mem, " (%s:%d)", file, line) : "", "",
                (long long)r->id);
}

/* ---- programs ------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_step(Exec *x, int prog, int k)
{
    uint64_t before[1024];
    int64_t n = x->comm->n;
    const Step *s = x->rank[0].step[prog][k].s;

    atomic_store_explicit(&x->now, s, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->ticks, 1, memory_order_relaxed);
    for (int64_t i = 0; i < n && x->checked && n <= 1024; i++) {
        clear_born(&x->rank[i], prog, k);
        before[i] = look_at(&x->rank[i], prog, k);
    }
    if (is_comm(s->kind))
        run_comm(x, prog, k);
    for (int64_t i = 0; i < n && !is_comm(s->kind); i++) {
        Bound *b = &x->rank[i].step[prog][k];
        run_local(x, b, s->nbuf ? x->rank[i].role->buf[s->buf[0]].bytes : 0);
    }
    for (int64_t i = 0; i < n && x->checked && n <= 1024 && !x->bad; i++) {
        uint64_t now = look_at(&x->rank[i], prog, k) & ~before[i];
        if (now)
            x->bad = say_bad(x, &x->rank[i], prog, k, __builtin_ctzll(now));
    }
}

static void set_scalar(Exec *x, const char *name, double v)
{
    for (int64_t i = 0; i < x->comm->n; i++) {
        const Role *r = x->rank[i].role;
        for (int k = 0; k < r->nin; k++)
            if (!strcmp(r->in[k].name, name))
                elem_set(r->in[k].dt, x->rank[i].buf[r->in[k].buf], 0, v);
    }
}

/* micro: this micro-batch among all of the step (turn * dp + dp coordinate). */
static void set_micro(Exec *x, int64_t turn)
{
    const Mesh *m = x->plan->mesh;

    for (int64_t i = 0; i < x->comm->n; i++) {
        const Role *r = x->rank[i].role;
        int64_t v = turn * m->size[Mdp] +
                    mesh_pos(m, m->mask[Mdp], x->rank[i].id);
        for (int k = 0; k < r->nin; k++)
            if (!strcmp(r->in[k].name, "micro"))
                elem_set(r->in[k].dt, x->rank[i].buf[r->in[k].buf], 0,
                         (double)v);
    }
}

static void load_inputs(Exec *x, const Feed *feed, int64_t turn)
{
    for (int64_t i = 0; i < x->comm->n && feed; i++) {
        const Role *r = x->rank[i].role;
        for (int k = 0; k < r->ntensor; k++)
            if (!strcmp(r->tensor[k].kind, "input"))
                feed->fill(feed->self, &r->tensor[k], x->rank[i].id, turn,
                           x->rank[i].buf[r->tensor[k].buf]);
    }
}

/* Phases of one role. Stages of a pipeline exchange nothing yet. */
static void run_phases(Exec *x, int prog, const Feed *feed)
{
    const Program *g = &x->rank[0].role->prog[prog];
    int64_t loaded = -1;

    for (int f = 0; f < g->nphase; f++)
        for (int64_t turn = 0; turn < g->phase[f].repeat; turn++) {
            const char *name = g->phase[f].name;
            int data = !strcmp(name, "body") || !strcmp(name, "den");
            if (data && turn != loaded) {
                load_inputs(x, feed, turn);
                set_micro(x, turn);
                loaded = turn;
            }
            int first = g->phase[f].first;
            for (int k = first; k < first + g->phase[f].n; k++) {
                double start = x->spent ? now() : 0;
                run_step(x, prog, k);
                if (x->spent)
                    x->spent[k] += now() - start;
            }
        }
}

static int find_program(const Exec *x, const char *name)
{
    int g = role_prog(x->rank[0].role, name);

    if (g < 0)
        err(NULL, "the plan has no program '%s'", name);
    return g;
}

void exec_run(Exec *x, const char *program, const Block *b, const Feed *feed)
{
    int g = find_program(x, program);

    if (b) {
        set_scalar(x, "lr", b->lr);
        set_scalar(x, "bc1", b->bc1);
        set_scalar(x, "bc2", b->bc2);
        set_scalar(x, "step", (double)b->step);
        x->step = b->step;
    }
    run_phases(x, g, feed);
    atomic_store_explicit(&x->now, NULL, memory_order_relaxed);
}

/* A loss of -infinity, which is no fault in any other tensor. Null: none.    */
static const char *bad_loss(Exec *x)
{
    const Role *r = x->rank[0].role;

    for (int i = 0; i < r->nout; i++)
        if (!strncmp(r->out[i].name, "loss.", 5) &&
            isinf(exec_result(x, r->out[i].name)))
            return strf(x->mem, "%s is infinite", r->out[i].name);
    return NULL;
}

const char *exec_checked(Exec *x, const char *program, const Block *b,
                         const Feed *feed)
{
    x->checked = 1;
    x->bad = NULL;
    exec_run(x, program, b, feed);
    x->checked = 0;
    return x->bad ? x->bad : bad_loss(x);
}

/* ---- reading and writing from outside ------------------------------------ */

const Role *exec_role(const Exec *x, int64_t rank)
{
    return x->rank[rank - x->comm->first].role;
}

void *exec_buf(const Exec *x, int64_t rank, int buf)
{
    return x->rank[rank - x->comm->first].buf[buf];
}

int64_t exec_bytes(const Exec *x)
{
    return x->rank[0].role->arena;
}

double exec_result(const Exec *x, const char *name)
{
    const Role *r = x->rank[0].role;

    for (int i = 0; i < r->nout; i++)
        if (!strcmp(r->out[i].name, name))
            return elem_get(r->out[i].dt, x->rank[0].buf[r->out[i].buf], 0);
    return NAN;
}

typedef struct Outside {
    Dtype dt;
    void *local;
    double *out; const double *in;
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

static int64_t read_buffer(Exec *x, const char *name, int64_t rank,
                           double *out, int64_t cap)
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
    Outside o = {.out = out, .cap = cap};
    int64_t n = each_part(x, name, take_run, &o);

    return n >= 0 ? n : read_buffer(x, name, rank, out, cap);
}

int64_t exec_write(Exec *x, const char *name, const double *in, int64_t n)
{
    Outside o = {.in = in, .cap = n};

    return each_part(x, name, give_run, &o);
}

/* ---- what the plan says about itself ------------------------------------- */

double plan_secs(const Plan *p, const char *program)
{
    double worst = 0;

    for (int r = 0; r < p->nrole; r++) {
        int i = role_prog(&p->role[r], program);
        double secs = 0;
        const Program *g = i < 0 ? NULL : &p->role[r].prog[i];
        for (int f = 0; g && f < g->nphase; f++)
            for (int k = 0; k < g->phase[f].n; k++)
                secs += g->step[g->phase[f].first + k].secs *
                        (double)g->phase[f].repeat;
        worst = secs > worst ? secs : worst;
    }
    return worst;
}

int64_t plan_turns(const Plan *p, const char *program)
{
    int i = role_prog(&p->role[0], program);
    const Program *g = i < 0 ? NULL : &p->role[0].prog[i];
    int64_t n = 1;

    for (int f = 0; g && f < g->nphase; f++)
        if (!strcmp(g->phase[f].name, "body"))
            n = g->phase[f].repeat;
    return n;
}
