/* flowtype.c: what steps say they read and make (plan.h, ValueUse), each step
 * by itself: every value is made by one step; slots are used as the kind of
 * step uses them; and types follow. A type says over which atoms ranks hold
 * parts of a value, or terms of a sum. Collectives change it in one way only:
 *
 *     allreduce A       part A -> whole          allgather A   cut A  -> whole
 *     reducescatter A   part A -> cut A          alltoall A    cut A  -> cut A
 *
 * so nothing is summed that is whole already (twice), or over ranks that have
 * no term of it. What a kernel or a product makes cannot be more alike over the
 * ranks than what it reads: an atom that tells ranks apart stays in the type
 * until a collective takes it. The rest of a kernel's type is the compiler's
 * word (ir/rule.c proves it of the graph). */
#include <string.h>

#include "plan.h"

typedef struct Typer {
    const PlanCheck *c;
    const Program *g;
    const Step *s;
    Origin *made;
    int n;         /* by number */
    uint32_t *cut; /* by buffer: of what lasts */
    char *held;    /* by buffer: a step before made a value in it */
} Typer;

int has_flow(const Role *r)
{
    for (int k = 0; k < r->nprog; k++)
        for (int i = 0; i < r->prog[k].nstep; i++)
            if (r->prog[k].step[i].flow)
                return 1;
    return 0;
}

static int may_vary(StepKind k)
{
    return k == Skernel;
}

/* ---- slots --------------------------------------------------------------- */

/* How a kind uses its i-th buffer: r, w, b, or - (work space). */
static char use_of(const Step *s, int i)
{
    switch (s->kind) {
    case Sgemm: return i < 2 ? 'r' : i > 2 ? '-' : s->iv[10].c ? 'b' : 'w';
    case Sgmm:
    case Sgmmw: return i == 4 ? '-' : i != 2 ? 'r' : s->iv[8].c ? 'b' : 'w';
    case Szero:
    case Srecv: return 'w';
    case Sjoin: return i ? 'r' : 'w';
    case Ssend:
    case Swait: return 'r';
    default: return "rw-"[i];
    }
}

static int lasts(const Buf *b)
{
    return b->prog == -1 && b->cls != Bscratch && b->cls != Btemp;
}

/* A kernel says for each buffer whether any of its slots reads or writes it. */
static const char *kernel_slots(const Typer *t)
{
    const Step *s = t->s;
    if (!s->rw)
        return "does not say how it uses its buffers";
    for (int i = 0; i < s->nbuf; i++) {
        int reads = 0, makes = 0;
        if (s->buf[i] < 0 || t->c->r->buf[s->buf[i]].cls == Bscratch)
            continue;
        for (int k = 0; k < s->nbuf; k++) {
            reads |= s->buf[k] == s->buf[i] && s->flow[k].read;
            makes |= s->buf[k] == s->buf[i] && s->flow[k].make;
        }
        if (s->rw[i] != (reads && makes ? 'b' : reads ? 'r' : 'w'))
            return strf(t->c->arena, "uses '%s' as its values do not",
                        t->c->r->buf[s->buf[i]].name);
    }
    return 0;
}

static const char *slot_wrong(Typer *t, int i)
{
    const Step *s = t->s;
    const ValueUse *f = &s->flow[i];
    int b = s->buf[i];
    if (b < 0 || t->c->r->buf[b].cls == Bscratch)
        return f->read || f->make ? "has a value in no buffer" : NULL;
    if (!f->read && !f->make)
        return "has a buffer without a value";
    if (f->read < 0 && (~f->read != b || !lasts(&t->c->r->buf[b])))
        return strf(t->c->arena,
                    "reads '%s' in place of what was there when "
                    "the program began",
                    t->c->r->buf[b].name);
    if (f->read > 0 && (f->read > t->n || t->made[f->read].step < 0))
        return "reads a value that no step makes";
    if (f->make && f->bytes != t->c->r->buf[b].bytes)
        return strf(t->c->arena, "makes a value that is not as large as '%s'",
                    t->c->r->buf[b].name);
    if (f->make && f->dt != t->c->r->buf[b].dt &&
        (!t->held[b] || t->c->r->buf[b].prog < 0))
        return strf(t->c->arena, "makes a value of another dtype than '%s'",
                    t->c->r->buf[b].name);
    t->held[b] |= f->make != 0;
    if (s->kind == Skernel)
        return 0;
    char use = use_of(s, i);
    if ((use != 'w' && use != '-') != (f->read != 0) ||
        (use == 'w' || use == 'b') != (f->make != 0))
        return "uses a buffer as its kind does not";
    return 0;
}

/* ---- types --------------------------------------------------------------- */

static ValueUse type_of(const Typer *t, int i)
{
    int v = t->s->flow[i].read;
    if (v < 0)
        return (ValueUse){ .cut = t->cut[~v], .dt = t->c->r->buf[~v].dt };
    return v ? *t->made[v].f : (ValueUse){ 0 };
}

int same_type(const ValueUse *x, const ValueUse *y)
{
    return x->dt == y->dt && !memcmp(x->part, y->part, sizeof x->part) &&
           x->cut == y->cut;
}

static const char *group_in_words(const Typer *t, uint32_t atoms)
{
    char s[128];
    mesh_words(t->c->p->mesh, atoms, s, sizeof s);
    return strf(t->c->arena, "%s", s);
}

/* Over the stages' atoms types say nothing. */
static const char *collective(const Typer *t)
{
    const Step *s = t->s;
    uint32_t A = s->atoms & ~t->c->p->mesh->mask[Mpp];
    ValueUse x = type_of(t, 0), y = s->flow[1];
    int sums = s->kind == Sreducescatter || s->kind == Sallreduce;
    int64_t op = sums ? s->iv[3].c : 0;
    uint32_t *from = sums ? &x.part[op] : &x.cut;
    if ((*from & A) != A)
        return strf(t->c->arena,
                    sums ? "sums over %s what is no sum there"
                         : "gathers over %s what lies there whole",
                    group_in_words(t, A & ~*from));
    if (s->kind != Salltoall && s->kind != Srotate)
        *from &= ~A;
    if (s->kind == Sreducescatter)
        x.cut |= A;
    if (!same_type(&x, &y))
        return strf(t->c->arena, "over %s does not make what it says",
                    group_in_words(t, s->atoms));
    return 0;
}

/* Atoms of an integer. */
static uint32_t varies(const Aff *x)
{
    uint32_t v = 0;
    for (int i = 0; i < MAXATOM; i++)
        v |= x->k[i] ? 1u << i : 0;
    return v;
}

/* What a step that computes makes is as unlike over ranks as what it reads. */
static const char *computed(const Typer *t)
{
    const Step *s = t->s;
    uint32_t in[3] = { 0 }, cut = 0, out[3] = { 0 }, any = 0;
    for (int i = 0; i < s->nbuf; i++) {
        ValueUse x = type_of(t, i);
        const ValueUse *y = &s->flow[i];
        for (int k = 0; k < 3; k++) {
            in[k] |= x.part[k];
            out[k] |= y->make ? y->part[k] : 0;
            any |= y->make ? y->part[k] : 0;
        }
        cut |= x.cut;
        any |= y->make ? y->cut : 0;
    }
    for (int k = 0; k < 3; k++)
        if (in[k] & ~out[k])
            return strf(t->c->arena, "takes terms of a sum over %s for the sum",
                        group_in_words(t, in[k] & ~out[k]));
    for (int i = 0; i < s->nint; i++)
        cut |= varies(&s->iv[i]);
    cut &= ~t->c->p->mesh->mask[Mpp];
    if (cut & ~any)
        return strf(t->c->arena,
                    "makes out of parts over %s what is said to "
                    "be the same there",
                    group_in_words(t, cut & ~any));
    return 0;
}

/* What is added to, and what is copied, keeps its type. */
static const char *kept(const Typer *t, int from, int to)
{
    ValueUse x = type_of(t, from);
    return same_type(&x, &t->s->flow[to]) ? NULL : "changes a type";
}

/* Products and transfers say the dtypes of their values. */
static const char *dtype_wrong(const Typer *t)
{
    const Step *s = t->s;
    for (int i = 0; i < s->nbuf && s->kind != Skernel; i++) {
        int second =
            (s->kind == Sgemm || s->kind == Sgmm || s->kind == Sgmmw) &&
            s->flow[i].make;
        int map = i == 3 && s->kind != Sgemm;
        ValueUse x = s->flow[i].make ? s->flow[i] : type_of(t, i);
        if (s->nint && (s->flow[i].read || s->flow[i].make) && !map &&
            x.dt != (Dtype)s->iv[second].c)
            return "has another dtype than its values";
    }
    return 0;
}

static const char *type_wrong(const Typer *t)
{
    const Step *s = t->s;
    const char *why = dtype_wrong(t);
    if (why)
        return why;
    for (int i = 0; i < s->nint && !may_vary(s->kind); i++)
        if (varies(&s->iv[i]))
            return "has integers that depend on the rank";
    switch (s->kind) {
    case Skernel:
    case Sgemm:
    case Sgmm:
    case Sgmmw:
    case Sjoin: return computed(t);
    case Scopy: return kept(t, 0, 1);
    case Sallgather:
    case Sreducescatter:
    case Sallreduce:
    case Salltoall:
    case Srotate: return collective(t);
    default: return 0;
    }
}

static const char *step_type_wrong(Typer *t)
{
    const Step *s = t->s;
    const char *why = 0;
    if (s->nbuf && !s->flow)
        return "does not say what it reads and makes";
    for (int i = 0; i < s->nbuf && !why; i++)
        why = slot_wrong(t, i);
    if (!why && s->kind == Skernel)
        why = kernel_slots(t);
    for (int i = 0; i < s->nbuf && !why; i++)
        if (s->flow[i].read > 0 && s->flow[i].make)
            why = kept(t, i, i);
    return why ? why : type_wrong(t);
}

/* ---- the whole ----------------------------------------------------------- */

uint32_t *lasting_cuts(const PlanCheck *c)
{
    uint32_t *cut = alloc(c->arena, ((size_t)c->r->nbuf + 1) * sizeof *cut);
    for (int i = 0; i < c->r->ntensor; i++) {
        const Tensor *t = &c->r->tensor[i];
        cut[t->buf] |= t->shard & ~c->p->mesh->mask[Mpp];
        for (int d = 0; d < t->nd; d++)
            for (int k = 0; k < t->dim[d].npiece; k++)
                cut[t->buf] |=
                    varies(&t->dim[d].piece[k].start) & ~c->p->mesh->mask[Mpp];
    }
    return cut;
}

static const char *number_values(Typer *t, int *step)
{
    int slots = 0;
    for (int i = 0; i < t->g->nstep; i++)
        slots += t->g->step[i].nbuf;
    t->n = slots;
    t->made = alloc(t->c->arena, ((size_t)slots + 1) * sizeof *t->made);
    for (int i = 0; i <= slots; i++)
        t->made[i].step = -1;
    for (*step = 0; *step < t->g->nstep; ++*step) {
        const Step *s = &t->g->step[*step];
        for (int k = 0; k < s->nbuf && s->flow; k++) {
            const ValueUse *f = &s->flow[k];
            uint32_t all = f->part[0] | f->part[1] | f->part[2] | f->cut;
            if (f->make < 0 || f->make > slots)
                return "makes a value without a number";
            if (all >> t->c->p->mesh->natom)
                return "speaks of atoms that the mesh does not have";
            if (f->make && t->made[f->make].step >= 0)
                return "makes a value that another step makes";
            if (f->make)
                t->made[f->make] = (Origin){ *step, f };
        }
    }
    return 0;
}

const char *values_wrong(const PlanCheck *c, int prog, Origin **made)
{
    const Program *g = &c->r->prog[prog];
    Typer t = { .c = c, .g = g };
    int step = 0;
    const char *why = number_values(&t, &step);
    t.cut = lasting_cuts(c);
    t.held = alloc(c->arena, (size_t)c->r->nbuf + 1);
    for (int i = 0; i < g->nstep && !why; i++) {
        t.s = &g->step[step = i];
        why = step_type_wrong(&t);
    }
    *made = t.made;
    if (!why)
        return 0;
    const Step *s = &g->step[step];
    return strf(c->arena, "role %d: program '%s': step %d '%s'%s %s", c->role,
                g->name, step, s->label ? s->label : "",
                s->file ? strf(c->arena, " (%s:%d)", s->file, s->line) : "",
                why);
}
