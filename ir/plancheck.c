/* plancheck.c: what must hold in a plan before anything runs it. The reader
 * asks it of files, the compiler of its own work, so it believes nothing: every
 * index is in range, every buffer lies in the arena, nothing that is alive at
 * one time overlaps, every step has the arguments of its kind and they stay
 * inside their buffers on every rank (stepcheck.c, tablecheck.c).
 *
 * Each function returns null or what is wrong. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* ---- buffers ------------------------------------------------------------- */

static int lies_in(const Buf *b, int64_t bytes)
{
    return b->bytes >= 0 && b->offset >= 0 && b->offset <= bytes &&
           b->bytes <= bytes - b->offset;
}

static const char *buf_wrong(const PlanCheck *c, const Buf *b)
{
    const Role *r = c->r;
    if (b->offset % BUFALIGN)
        return "is not aligned to 256 bytes";
    if (!b->frame && !lies_in(b, r->arena))
        return "does not lie in the arena";
    if (b->prog >= r->nprog || b->prog < -1)
        return "belongs to no program";
    if (b->prog >= 0 && b->cls <= Boptim)
        return "of a persistent class does not live always";
    if (b->prog >= 0 &&
        (b->born < 0 || b->born > b->dies || b->dies >= r->prog[b->prog].nstep))
        return "has a life outside its program";
    if (!b->frame)
        return 0;
    if (b->prog < 0 || b->frame < 0 || b->frame > r->prog[b->prog].nframe)
        return "lies in a frame that does not exist";
    if (!lies_in(b, r->prog[b->prog].frame[b->frame - 1].bytes))
        return "does not lie in its frame";
    return 0;
}

/* Buffers with one place that are alive in a program: what lives always is born
 * at -1. Frames are there while the table runs. */
static int gather(const PlanCheck *c, int prog, Span **out)
{
    Span *v = NULL;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (!b->bytes || b->frame || (b->prog != -1 && b->prog != prog))
            continue;
        Span x = { .id = i,
                   .offset = b->offset,
                   .bytes = b->bytes,
                   .from = b->prog < 0 ? -1 : b->born,
                   .to = b->prog < 0 ? INT32_MAX
                                     : b->dies - joined(c->r, i, b->dies) };
        vec_push(c->arena, v, x);
    }
    if (prog >= 0)
        frame_runs(c, prog, &v);
    *out = v;
    return (int)vec_len(v);
}

static const char *name_of(const PlanCheck *c, int id)
{
    return id < 0 ? "frames" : c->r->buf[id].name;
}

static const char *overlaps(const PlanCheck *c, int prog)
{
    int one, two, n;
    Span *v;
    n = gather(c, prog, &v);
    if (!spans_meet(v, n, &one, &two))
        return 0;
    return strf(c->arena,
                "role %d: buffers '%s' and '%s' overlap while both "
                "are alive",
                c->role, name_of(c, one), name_of(c, two));
}

static const char *bufs_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    const char *why;
    if (r->arena < 0 || r->arena > HUGEBYTES || r->persist < 0 ||
        r->persist > r->arena)
        return strf(c->arena,
                    "role %d: arena of %lld bytes, %lld of them "
                    "always",
                    c->role, (long long)r->arena, (long long)r->persist);
    for (int i = 0; i < r->nbuf; i++)
        if ((why = buf_wrong(c, &r->buf[i])))
            return strf(c->arena, "role %d: buffer '%s' %s", c->role,
                        r->buf[i].name, why);
    return 0;
}

/* ---- programs ------------------------------------------------------------ */

/* Phases follow each other and cover all steps. */
static const char *phases_wrong(const PlanCheck *c, const Program *g)
{
    int64_t at = 0;
    for (int i = 0; i < g->nphase; i++) {
        const Phase *f = &g->phase[i];
        if (f->first != at || f->n < 0 || f->repeat < 0)
            return strf(c->arena,
                        "role %d: program '%s': phase '%s' does not "
                        "follow",
                        c->role, g->name, f->name);
        at += f->n;
    }
    if (at != g->nstep)
        return strf(c->arena,
                    "role %d: program '%s' has %d steps and phases "
                    "for %lld",
                    c->role, g->name, g->nstep, (long long)at);
    return 0;
}

/* What lies where is looked at when all phases and tables are known to be
 * sound. */
static const char *programs_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    const char *why = 0;
    for (int k = 0; k < r->nprog && !why; k++)
        why = phases_wrong(c, &r->prog[k]);
    if (!why)
        why = bufs_wrong(c);
    for (int k = 0; k < r->nprog && !why; k++)
        for (int i = 0; i < r->prog[k].nstep && !why; i++)
            why = step_wrong(c, k, i);
    for (int k = 0; k < r->nprog && !why; k++)
        why = table_wrong(c, k);
    for (int k = -1; k < r->nprog && !why; k++)
        why = overlaps(c, k);
    return why;
}

/* ---- tensors ------------------------------------------------------------- */

/* Elements of a dim on one rank; -1: pieces that go beyond the axis. */
static int64_t dim_elems(const Mesh *m, const PlanDim *d)
{
    int64_t n = 0;
    if (d->n < 0 || d->npiece < 0)
        return -1;
    for (int i = 0; i < d->npiece; i++) {
        Range r = aff_range(m, &d->piece[i].start);
        int64_t len = d->piece[i].len;
        if (aff_stray(m, &d->piece[i].start) || r.min < 0 || len < 0 ||
            len > d->n || r.max > d->n - len)
            return -1;
        n = sat_add(n, len);
    }
    return n;
}

/* The last element + 1 of its buffer that a tensor of n elements on a rank has,
 * on any rank; -1: elements that no rank has. */
static int64_t tensor_end(const PlanCheck *c, const Tensor *t, int64_t n)
{
    int64_t first, end = sat_add(t->at, n);
    if (!t->run)
        return end;
    if (end > sat_mul(t->run, mesh_extent(c->p->mesh, t->shard)))
        return -1;
    first = t->at / t->run * t->run;
    return end - first < t->run ? end - first : t->run;
}

static const char *tensor_wrong(const PlanCheck *c, const Tensor *t)
{
    static const char *const kinds[] = {
        "param", "master", "m", "v", "state", "input", "output", "copy",
    };
    size_t kind = 0;
    int64_t n = 1;
    if (!*t->name)
        return "has no name";
    while (kind < sizeof kinds / sizeof *kinds && strcmp(kinds[kind], t->kind))
        kind++;
    if (kind == sizeof kinds / sizeof *kinds)
        return "is of no kind";
    if (t->buf < 0 || t->buf >= c->r->nbuf)
        return "names a buffer that does not exist";
    if (t->nd < 0 || t->nd > MAXD)
        return "has too many axes";
    if (dtypes[t->dt].bytes == 0)
        return "has a dtype without size";
    for (int i = 0; i < t->nd; i++) {
        int64_t e = dim_elems(c->p->mesh, &t->dim[i]);
        if (e < 0)
            return strf(c->arena, "has pieces beyond axis '%s'",
                        t->dim[i].axis);
        n = sat_mul(n, e);
    }
    if (t->at < 0 || t->run < 0 || (!t->run && t->shard) ||
        (uint64_t)t->shard >> c->p->mesh->natom)
        return "is a part of no bucket";
    int64_t end = tensor_end(c, t, n);
    if (end < 0)
        return "goes beyond its bucket";
    if (c->r->buf[t->buf].frame)
        return "lies in a frame";
    if (sat_mul(end, dtypes[t->dt].bytes) > c->r->buf[t->buf].bytes)
        return "is larger than its buffer";
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *twice(const PlanCheck *c)
{
    int n = c->r->ntensor;
    const char **v = alloc(c->arena, ((size_t)n + 1) * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i] = c->r->tensor[i].name;
    qsort(v, (size_t)n, sizeof *v, by_name);
    for (int i = 1; i < n; i++)
        if (!strcmp(v[i], v[i - 1]))
            return strf(c->arena, "role %d: two tensors '%s'", c->role, v[i]);
    return 0;
}

static const char *scalar_wrong(const PlanCheck *c, const Scalar *s)
{
    if (s->buf < 0 || s->buf >= c->r->nbuf)
        return "names a buffer that does not exist";
    if (dtypes[s->dt].bytes == 0)
        return "has a dtype without size";
    if (c->r->buf[s->buf].frame)
        return "lies in a frame";
    if (dtypes[s->dt].bytes > c->r->buf[s->buf].bytes)
        return "is larger than its buffer";
    return 0;
}

static const char *scalars_wrong(const PlanCheck *c, const Scalar *s, int n)
{
    const char *why;
    for (int i = 0; i < n; i++)
        if ((why = scalar_wrong(c, &s[i])))
            return strf(c->arena, "role %d: scalar '%s' %s", c->role, s[i].name,
                        why);
    return 0;
}

static const char *role_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    const char *why = programs_wrong(c);
    for (int i = 0; i < r->ntensor && !why; i++)
        if ((why = tensor_wrong(c, &r->tensor[i])))
            why = strf(c->arena, "role %d: tensor '%s' %s", c->role,
                       r->tensor[i].name, why);
    if (!why)
        why = twice(c);
    for (int k = 0; k < r->nprog && !why && has_flow(r); k++)
        why = flow_wrong(c, k);
    if (!why && has_flow(r))
        why = sizes_wrong(c);
    if (!why)
        why = scalars_wrong(c, r->in, r->nin);
    if (!why)
        why = scalars_wrong(c, r->out, r->nout);
    return why;
}

/* ---- the rest ------------------------------------------------------------ */

static const char *hf_wrong(const PlanCheck *c, const HfMap *h)
{
    for (int i = 0; i < h->nd; i++)
        for (int k = 0; k < h->dim[i].nf; k++) {
            const HfFactor *f = &h->dim[i].f[k];
            if (f->start < 0 || f->n < 1 ||
                (f->axis && f->start > f->total - f->n))
                return strf(c->arena, "hf '%s' goes beyond axis '%s'", h->hf,
                            f->axis ? f->axis : "");
        }
    for (int i = 0; i < h->nfix; i++)
        if (h->fixat[i] < -1)
            return strf(c->arena, "hf '%s' has a negative index", h->hf);
    return 0;
}

static int by_pointer(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

static const char *kernels_wrong(PlanCheck *c)
{
    int n = c->p->nkernel;
    c->kernels = alloc(c->arena, ((size_t)n + 1) * sizeof *c->kernels);
    for (int i = 0; i < n; i++)
        c->kernels[i] = intern(c->p->kernel[i].name);
    qsort(c->kernels, (size_t)n, sizeof *c->kernels, by_pointer);
    for (int i = 1; i < n; i++)
        if (c->kernels[i] == c->kernels[i - 1])
            return strf(c->arena, "two kernels '%s'", c->kernels[i]);
    return 0;
}

/* A weight belongs to one stage; others that read it have copies. */
static const char *owners_wrong(Arena *a, const Plan *p)
{
    const char **v = 0;
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            if (!strcmp(t->kind, "param") || !strcmp(t->kind, "state"))
                vec_push(a, v, intern(t->name));
        }
    if (v)
        qsort(v, vec_len(v), sizeof *v, by_pointer);
    for (size_t i = 1; i < vec_len(v); i++)
        if (v[i] == v[i - 1])
            return strf(a, "two stages own '%s'", v[i]);
    return 0;
}

const char *plan_wrong(Arena *a, const Plan *p)
{
    PlanCheck c = { .arena = a, .p = p };
    const char *why = kernels_wrong(&c);
    if (p->nrole != 1 && p->nrole != p->mesh->size[Mpp])
        return strf(a, "%d roles for %lld pipeline stages", p->nrole,
                    (long long)p->mesh->size[Mpp]);
    for (int i = 0; i < p->nhf && !why; i++)
        why = hf_wrong(&c, &p->hf[i]);
    for (c.role = 0; c.role < p->nrole && !why; c.role++) {
        c.r = &p->role[c.role];
        why = role_wrong(&c);
    }
    why = why ? why : owners_wrong(a, p);
    return why ? why : meets_wrong(a, p);
}

void plan_check(const Plan *p)
{
    Arena *a = arena_new();
    const char *why = plan_wrong(a, p);
    if (why)
        die("plan: %s", why);
    arena_free(a);
}
