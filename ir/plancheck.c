/* plancheck.c: what must hold in a plan before anything runs it. The reader
 * asks it of files, the compiler of its own work, so it believes nothing: every
 * index is in range, every buffer lies in the arena, nothing that is alive at
 * one time overlaps, every instruction has the arguments of its kind and they
 * stay inside their buffers on every rank (instr_check.c, tablecheck.c).
 *
 * Each function returns null or what is wrong. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

int law_off = -1, law_broken = -1;

int law(Law x)
{
    law_broken = (int)x;
    return (int)x != law_off;
}

/* ---- buffers ------------------------------------------------------------- */

static int lies_in(const Buf *b, int64_t from, int64_t bytes)
{
    return b->bytes >= 0 && b->offset >= from && b->offset - from <= bytes &&
           b->bytes <= bytes - (b->offset - from);
}

/* Does b lie in a stack of its own kind of life? */
static int in_stack(const Role *r, const Buf *b)
{
    if (b->stack < 0 || b->stack > r->nbuf)
        return 0;
    const Buf *s = &r->buf[b->stack - 1];
    return s->cls == Bstash && !s->stack && b->cls == Btemp &&
           s->prog == b->prog && s->frame == b->frame &&
           s->offset == b->offset && s->bytes >= b->bytes &&
           s->born <= b->born && b->dies <= s->dies;
}

static const char *buf_wrong(const PlanCheck *c, const Buf *b)
{
    const Role *r = c->r;
    if (b->offset % BUFALIGN && law(Lbuf_aligned))
        return "is not aligned to 256 bytes";
    if (!b->frame && !lies_in(b, 0, r->arena) &&
        !lies_in(b, HOSTSPACE, r->host) && law(Lbuf_in_arena))
        return "does not lie in an arena";
    if ((b->prog >= r->nprog || b->prog < -1) && law(Lbuf_program))
        return "belongs to no program";
    if (b->cls == Bscratch && b->dt != Du8 && law(Lwork_dtype))
        return "is work space of another dtype than u8";
    if (b->prog >= 0 && b->cls <= Bio && law(Lbuf_class))
        return "of a persistent class does not live always";
    if (b->prog >= 0 &&
        (b->born < 0 || b->born > b->dies ||
         b->dies >= r->prog[b->prog].ninstr) &&
        law(Lbuf_life))
        return "has a life outside its program";
    if (b->stack && !in_stack(r, b) && law(Lstack_place))
        return "does not lie in a stack";
    if (!b->frame)
        return 0;
    if ((b->prog < 0 || b->frame < 0 || b->frame > r->prog[b->prog].nframe) &&
        law(Lbuf_frame))
        return "lies in a frame that does not exist";
    if (!lies_in(b, 0, r->prog[b->prog].frame[b->frame - 1].bytes) &&
        law(Lbuf_in_frame))
        return "does not lie in its frame";
    return 0;
}

/* Buffers with one place that are alive in a program: what lives always is born
 * at -1. What lies in a stack is told apart by words of the device. Frames are
 * there while the table runs. */
static int gather(const PlanCheck *c, int prog, Span **out)
{
    Span *v = NULL;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (!b->bytes || b->frame || b->stack ||
            (b->prog != -1 && b->prog != prog))
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
    if (!spans_meet(v, n, &one, &two) || !law(Lbufs_apart))
        return 0;
    return strf(c->arena,
                "role %d: buffers '%s' and '%s' overlap while both are alive",
                c->role, name_of(c, one), name_of(c, two));
}

static const char *bufs_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    const char *why;
    if ((r->arena < 0 || r->arena > HOSTSPACE || r->persist < 0 ||
         r->persist > r->arena || r->host < 0 || r->host > HOSTSPACE) &&
        law(Larena_size))
        return strf(c->arena,
                    "role %d: arena of %lld bytes, %lld of them always, and "
                    "%lld of the host",
                    c->role, (long long)r->arena, (long long)r->persist,
                    (long long)r->host);
    for (int i = 0; i < r->nbuf; i++)
        if ((why = buf_wrong(c, &r->buf[i])))
            return strf(c->arena, "role %d: buffer '%s' %s", c->role,
                        r->buf[i].name, why);
    return 0;
}

/* ---- programs ------------------------------------------------------------ */

/* Phases follow each other and cover all instructions. */
static const char *phases_wrong(const PlanCheck *c, const Program *prog)
{
    int64_t at = 0;
    for (int i = 0; i < prog->nphase; i++) {
        const Phase *f = &prog->phase[i];
        if ((f->first != at || f->n < 0 || f->repeat < 0) &&
            law(Lphases_follow))
            return strf(c->arena,
                        "role %d: program '%s': phase '%s' does not follow",
                        c->role, programnames[prog->kind], f->name);
        at += f->n;
    }
    if (at != prog->ninstr && law(Lphases_cover))
        return strf(
            c->arena,
            "role %d: program '%s' has %d instructions and phases for %lld",
            c->role, programnames[prog->kind], prog->ninstr, (long long)at);
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
        for (int i = 0; i < r->prog[k].ninstr && !why; i++)
            why = instr_wrong(c, k, i);
    for (int k = 0; k < r->nprog && !why; k++)
        why = table_wrong(c, k);
    for (int k = -1; k < r->nprog && !why; k++)
        why = overlaps(c, k);
    for (int k = 0; k < r->nprog && !why; k++)
        why = streams_wrong(c, k);
    return why;
}

/* ---- a stage ------------------------------------------------------------- */

static const char *role_wrong(PlanCheck *c)
{
    const Role *r = c->r;
    const char *why = programs_wrong(c);
    if (!why)
        why = tensors_wrong(c);
    if (why || !has_flow(r))
        return why;
    why = tensors_loose(c);
    why = why ? why : purposes_wrong(c);
    c->lasting = why ? NULL : lasting_shapes(c);
    for (int k = 0; k < r->nprog && !why; k++)
        why = flow_wrong(c, k);
    return why ? why : sizes_wrong(c);
}

/* ---- the rest ------------------------------------------------------------ */

static const char *kernels_wrong(PlanCheck *c)
{
    int n = c->p->nkernel;
    c->kernels = alloc(c->arena, ((size_t)n + 1) * sizeof *c->kernels);
    for (int i = 0; i < n; i++)
        c->kernels[i] = intern(c->p->kernel[i].name);
    qsort(c->kernels, (size_t)n, sizeof *c->kernels, by_pointer);
    for (int i = 1; i < n; i++)
        if (c->kernels[i] == c->kernels[i - 1] && law(Lkernels_once))
            return strf(c->arena, "two kernels '%s'", c->kernels[i]);
    return 0;
}

const char *plan_wrong(Arena *a, const Plan *p)
{
    PlanCheck c = { .arena = a, .p = p };
    const char *why = kernels_wrong(&c);
    if (p->nrole != p->mesh->size[Mpp] &&
        (p->nrole != 1 || has_flow(p->role)) && law(Lroles))
        return strf(a, "%d roles for %lld pipeline stages", p->nrole,
                    (long long)p->mesh->size[Mpp]);
    if (!why)
        why = shapes_wrong(&c);
    if (!why)
        why = signatures_wrong(&c);
    for (c.role = 0; c.role < p->nrole && !why; c.role++) {
        c.r = &p->role[c.role];
        why = role_wrong(&c);
    }
    why = why ? why : shared_wrong(a, p);
    why = why ? why : hf_wrong(a, p);
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
