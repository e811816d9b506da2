/* value_types.c: what instructions say they read and make (plan.h, ValueUse),
 * each instruction by itself: every value is made by one instruction; slots are
 * used as the kind of instruction uses them; and types follow. A type says over
 * which atoms ranks hold parts of a value, or terms of a sum. Collectives
 * change it in one way only:
 *
 *     allreduce A       part A -> whole          allgather A   cut A  -> whole
 *     reducescatter A   part A -> cut A          alltoall A    cut A  -> cut A
 *     sendrows A      cut A  -> cut A          returnrows A  cut A  -> cut A
 *
 * so nothing is summed that is whole already (twice), or over ranks that have
 * no term of it. What a kernel or a product makes cannot be more alike over the
 * ranks than what it reads: an atom that tells ranks apart stays in the type
 * until a collective takes it. The rest of a kernel's type is the compiler's
 * word (ir/sharding_rules.c proves it of the graph). */
#include <string.h>

#include "plan.h"

typedef struct Typer {
    const PlanCheck *c;
    const Program *g;
    const Instr *s;
    ValueOrigin *made;
    int n;        /* by number */
    char *held;   /* by buffer: an instruction before made a value in it */
    int **filled; /* by buffer, of stacks: vec of maps by which they are */
} Typer;

/* What an instruction reads: how it lies there, what is still to be summed. */
typedef struct Type {
    const ValueShape *s;
    const uint32_t *part;
} Type;

int has_flow(const Role *r)
{
    for (int k = 0; k < r->nprog; k++)
        for (int i = 0; i < r->prog[k].ninstr; i++)
            if (r->prog[k].instr[i].flow)
                return 1;
    return 0;
}

/* ---- slots --------------------------------------------------------------- */

/* Kernels read what lives always as it lies; others may name its axes anew. */
static int may_read_as(const Typer *t, const ValueUse *f)
{
    const ValueShape *y = &t->c->p->shape[f->as];
    const ValueShape *x = f->read < 0
                              ? t->c->lasting[~f->read]
                              : &t->c->p->shape[t->made[f->read].f->shape];
    return x && (t->s->kind == Ikernel ? shapes_equal(y, x) : is_view_of(y, x));
}

static const char *slot_wrong(Typer *t, int i)
{
    const Instr *s = t->s;
    const ValueUse *f = &s->flow[i];
    int b = s->buf[i];
    const Buf *u = b < 0 ? NULL : &t->c->r->buf[b];
    const ValueShape *l = f->make ? &t->c->p->shape[f->shape] : NULL;
    if (!u || u->cls == Bscratch)
        return (f->read || f->make) && law(Lvalue_buffer)
                   ? "has a value in no buffer"
                   : NULL;
    if (!f->read && !f->make && law(Lbuffer_value))
        return "has a buffer without a value";
    if (f->read < 0 && (~f->read != b || !t->c->lasting[b]) &&
        law(Lreads_lasting))
        return strf(
            t->c->arena,
            "reads '%s' in place of what was there when the program began",
            u->name);
    if (f->read > 0 && (f->read > t->n || t->made[f->read].instr < 0) &&
        law(Lvalue_made))
        return "reads a value that no instruction makes";
    if (f->make && shape_bytes(l) != u->bytes && law(Lvalue_size))
        return strf(t->c->arena, "makes a value that is not as large as '%s'",
                    u->name);
    if (f->make && l->dt != u->dt && (!t->held[b] || u->prog < 0) &&
        law(Lvalue_dtype))
        return strf(t->c->arena, "makes a value of another dtype than '%s'",
                    u->name);
    if (f->read && f->as >= 0 && !may_read_as(t, f) && law(Lreads_as))
        return strf(t->c->arena, "reads '%s' as what it is not", u->name);
    t->held[b] |= f->make != 0;
    if (s->kind == Ikernel)
        return 0;
    char use = instr_use(s, i);
    if (((use != 'w' && use != '-') != (f->read != 0) ||
         (use == 'w' || use == 'b') != (f->make != 0)) &&
        law(Lkind_uses))
        return "uses a buffer as its kind does not";
    return 0;
}

/* ---- stacks -------------------------------------------------------------- */

/* Of instruction instr: the value that says where operand i begins; 0: none. */
static int map_value(const Typer *t, int instr, int i)
{
    const Instr *s = &t->g->instr[instr];
    int from = rows_from(t->c->p, s, i);
    return from < 0 || from >= s->nbuf ? 0 : s->flow[from].read;
}

static int reads_value(const Instr *s, int value)
{
    for (int i = 0; i < s->nbuf; i++)
        if (s->flow[i].read == value)
            return 1;
    return 0;
}

/* Is map the last of those by which a stack is filled, or made of that one?
 * Then it is the last. */
static int is_next(Typer *t, int stack, int map)
{
    int **v = &t->filled[stack];
    for (size_t i = 0; i < vec_len(*v); i++)
        if ((*v)[i] == map)
            return 1;
    size_t n = vec_len(*v);
    int next = !n || reads_value(&t->g->instr[t->made[map].instr], (*v)[n - 1]);
    vec_push(t->c->arena, *v, map);
    return next;
}

static const char *stack_wrong(Typer *t, int instr, int i)
{
    const ValueUse *f = &t->s->flow[i];
    int b = t->s->buf[i], map = b < 0 ? 0 : map_value(t, instr, i);
    int stack = b < 0 ? 0 : t->c->r->buf[b].stack;
    if (!stack)
        return NULL;
    const ValueOrigin *o = f->read > 0 ? &t->made[f->read] : NULL;
    int at = o ? (int)(o->f - t->g->instr[o->instr].flow) : 0;
    if ((map <= 0 || (o && map_value(t, o->instr, at) != map)) &&
        law(Lstack_word))
        return "has rows of a stack where they do not begin";
    return f->make && map > 0 && !is_next(t, stack - 1, map) &&
                   law(Lstack_order)
               ? "fills a stack out of order"
               : NULL;
}

/* ---- types --------------------------------------------------------------- */

/* Of slot i; nothing, cut over nothing, where it reads nothing. */
static Type type_of(const Typer *t, int i)
{
    static const ValueShape none;
    static const uint32_t whole[3];
    const ValueUse *f = &t->s->flow[i];
    Type x = { &none, whole };
    if (f->read < 0)
        x.s = t->c->lasting[~f->read];
    if (f->read > 0) {
        x.part = t->made[f->read].f->part;
        x.s = &t->c->p->shape[t->made[f->read].f->shape];
    }
    if (f->read && f->as >= 0)
        x.s = &t->c->p->shape[f->as];
    return x;
}

static int same_parts(const uint32_t x[3], const uint32_t y[3])
{
    return !memcmp(x, y, 3 * sizeof *x);
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
    const Instr *s = t->s;
    uint32_t A = s->atoms & ~t->c->p->mesh->mask[Mpp], part[3];
    Type x = type_of(t, 0);
    int sums = s->kind == Ireducescatter || s->kind == Iallreduce;
    Reduce op = s->kind == Ireducescatter ? s->reducescatter.op
                : sums                    ? s->allreduce.op
                                          : Radd;
    uint32_t from = sums ? x.part[op] : shape_cut(x.s);
    if ((from & A) != A && law(Lcomm_over))
        return strf(t->c->arena,
                    sums ? "sums over %s what is no sum there"
                         : "gathers over %s what lies there whole",
                    group_in_words(t, A & ~from));
    memcpy(part, x.part, sizeof part);
    if (sums)
        part[op] &= ~A;
    if (!same_parts(part, s->flow[1].part) && law(Lcomm_parts))
        return strf(t->c->arena, "over %s does not make what it says",
                    group_in_words(t, s->atoms));
    return NULL;
}

/* Atoms of an integer. */
static uint32_t varies(const RankAffine *x)
{
    uint32_t v = 0;
    for (int i = 0; i < MAXATOM; i++)
        v |= x->k[i] ? 1u << i : 0;
    return v;
}

typedef struct Unlike { /* atoms over which values differ */
    uint32_t part[3], cut;
    int any; /* are there values */
} Unlike;

/* Of all that is read, integers too, and of all that is made. */
static void unlike(const Typer *t, Unlike *in, Unlike *out)
{
    const Instr *s = t->s;
    *in = *out = (Unlike){ 0 };
    for (int i = 0; i < s->nbuf; i++) {
        Type x = type_of(t, i);
        const ValueUse *y = &s->flow[i];
        for (int k = 0; k < 3; k++) {
            in->part[k] |= x.part[k];
            out->part[k] |= y->make ? y->part[k] : 0;
        }
        in->any |= s->flow[i].read != 0;
        in->cut |= shape_cut(x.s);
        out->cut |= y->make ? shape_cut(&t->c->p->shape[y->shape]) : 0;
    }
    for (int i = 0; i < s->nword; i++)
        in->cut |= varies(&s->word[i].at) & ~t->c->p->mesh->mask[Mpp];
}

static uint32_t parts(const Unlike *x)
{
    return x->part[0] | x->part[1] | x->part[2];
}

/* Does the instruction read an axis whole that it makes a part of, over these
 * atoms? An axis that it reads nowhere is a repetition, and all parts are the
 * same; so is one of which the instruction says so (spread), whatever else has
 * its name. */
static int takes_parts(const Typer *t, uint32_t atoms)
{
    const Instr *s = t->s;
    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *f = &s->flow[i];
        const ValueShape *y = f->make ? &t->c->p->shape[f->shape] : NULL;
        for (int d = 0; y && d < y->nd; d++)
            for (int k = 0; k < s->nbuf && y->dim[d].cut & atoms; k++)
                if (s->flow[k].read &&
                    shape_dim(type_of(t, k).s, y->dim[d].axis) >= 0)
                    return 1;
    }
    return 0;
}

/* What an instruction that computes makes is as unlike over ranks as what it
 * reads, no less and no more. A constant is a term of any sum. */
static const char *computed(const Typer *t)
{
    Unlike in, out;
    unlike(t, &in, &out);
    uint32_t terms = parts(&out), less = in.cut & ~(out.cut | terms);
    uint32_t same = in.any ? ~(in.cut | parts(&in) | t->s->inner) : 0;
    for (int k = 0; k < 3; k++)
        if (in.part[k] & ~out.part[k] && law(Lterms_kept))
            return strf(t->c->arena, "takes terms of a sum over %s for the sum",
                        group_in_words(t, in.part[k] & ~out.part[k]));
    if (less && law(Lparts_kept))
        return strf(
            t->c->arena,
            "makes out of parts over %s what is said to be the same there",
            group_in_words(t, less));
    if (terms & same && law(Lterms_new))
        return strf(
            t->c->arena,
            "makes terms of a sum over %s out of what is the same there",
            group_in_words(t, terms & same));
    same &= out.cut & ~t->s->spread;
    if (takes_parts(t, same) && law(Lparts_new))
        return strf(t->c->arena,
                    "makes parts over %s out of what is the same there",
                    group_in_words(t, same));
    return NULL;
}

/* What is added to, and what is copied, keeps its type. */
static const char *kept(const Typer *t, int from, int to)
{
    Type x = type_of(t, from);
    const ValueUse *y = &t->s->flow[to];
    int same = same_parts(x.part, y->part) &&
               shapes_equal(x.s, &t->c->p->shape[y->shape]);
    return !same && law(Ltype_kept) ? "changes a type" : NULL;
}

static const char *dtype_wrong(const Typer *t)
{
    const Instr *s = t->s;
    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *f = &s->flow[i];
        Dtype dt = f->make ? t->c->p->shape[f->shape].dt : type_of(t, i).s->dt;
        if (instr_operand(s, i)->typed && (f->read || f->make) &&
            dt != instr_dtype(s, i) && law(Linstr_dtype))
            return "has another dtype than its values";
    }
    return 0;
}

static const char *type_wrong(const Typer *t)
{
    const Instr *s = t->s;
    const char *why = dtype_wrong(t);
    if (why)
        return why;
    switch (s->kind) {
    case Ikernel:
    case Igemm:
    case Igmm:
    case Igmm_wgrad:
    case Ijoin: return computed(t);
    case Icopy: return kept(t, 0, 1);
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall:
    case Ippermute:
    case Isendrows:
    case Ireturnrows: return collective(t);
    default: return 0;
    }
}

/* Is it a value of that shape, whose axes are all there are but for a map? */
static int takes(const KernelOperand *o, const ValueShape *x)
{
    if (x->map)
        return o->nd == 1 && o->n[0] == x->elems;
    for (int d = 0; d < x->nd && d < o->nd; d++)
        if (o->n[d] != x->dim[d].n)
            return 0;
    return o->nd == x->nd;
}

/* A kernel's operands are as its signature declares them. */
static const char *declared(const Typer *t, const ValueShape *const *in,
                            const ValueShape *const *out)
{
    const Instr *s = t->s;
    const KernelSignature *d = &t->c->p->sig[s->call.sig];
    for (int i = 0; i < s->nbuf; i++) {
        const ValueShape *x = out[i] ? out[i] : in[i];
        if (!x)
            continue;
        if (d->use[i] != (!out[i] ? 'r'
                          : in[i] ? 'b'
                                  : 'w') &&
            law(Lkernel_uses))
            return strf(t->c->arena, "uses '%s' as its values do not",
                        t->c->r->buf[s->buf[i]].name);
        if (d->op[i].dt != x->dt && law(Lsig_dtype))
            return strf(t->c->arena, "has an operand %d of another dtype", i);
        if (!takes(&d->op[i], x) && law(Lsig_extents))
            return strf(t->c->arena, "has an operand %d of other extents", i);
    }
    return NULL;
}

/* Shapes by slot, for operands.c. */
static const char *operands(const Typer *t)
{
    const Instr *s = t->s;
    size_t n = (size_t)s->nbuf + 1;
    const ValueShape **in = alloc(t->c->arena, n * sizeof *in);
    const ValueShape **out = alloc(t->c->arena, n * sizeof *out);
    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *f = &s->flow[i];
        in[i] = f->read ? type_of(t, i).s : NULL;
        out[i] = f->make ? &t->c->p->shape[f->shape] : NULL;
    }
    const char *why = s->kind == Ikernel ? declared(t, in, out) : NULL;
    return why ? why : operands_wrong(t->c, s, in, out);
}

static const char *instr_type_wrong(Typer *t, int instr)
{
    const Instr *s = t->s;
    const char *why = 0;
    if (s->nbuf && !s->flow && law(Linstr_says))
        return "does not say what it reads and makes";
    for (int i = 0; i < s->nbuf && !why; i++)
        why = slot_wrong(t, i);
    for (int i = 0; i < s->nbuf && !why; i++)
        why = stack_wrong(t, instr, i);
    for (int i = 0; i < s->nbuf && !why; i++)
        if (s->flow[i].read > 0 && s->flow[i].make)
            why = kept(t, i, i);
    why = why ? why : type_wrong(t);
    return why ? why : operands(t);
}

/* ---- the whole ----------------------------------------------------------- */

static const char *number_values(Typer *t, int *instr)
{
    int slots = 0;
    for (int i = 0; i < t->g->ninstr; i++)
        slots += t->g->instr[i].nbuf;
    t->n = slots;
    t->made = alloc(t->c->arena, ((size_t)slots + 1) * sizeof *t->made);
    for (int i = 0; i <= slots; i++)
        t->made[i].instr = -1;
    for (*instr = 0; *instr < t->g->ninstr; ++*instr) {
        const Instr *s = &t->g->instr[*instr];
        for (int k = 0; k < s->nbuf && s->flow; k++) {
            const ValueUse *f = &s->flow[k];
            if ((f->make < 0 || f->make > slots) && law(Lvalue_number))
                return "makes a value without a number";
            if ((f->as < -1 || f->as >= t->c->p->nshape ||
                 (f->make && (f->shape < 0 || f->shape >= t->c->p->nshape))) &&
                law(Lvalue_shape))
                return "has a value of a shape that does not exist";
            if (f->make && t->made[f->make].instr >= 0 && law(Lvalue_once))
                return "makes a value that another instruction makes";
            if (f->make)
                t->made[f->make] = (ValueOrigin){ *instr, f };
        }
    }
    return 0;
}

const char *values_wrong(const PlanCheck *c, int prog, ValueOrigin **made)
{
    const Program *g = &c->r->prog[prog];
    Typer t = { .c = c, .g = g };
    int instr = 0;
    const char *why = number_values(&t, &instr);
    t.held = alloc(c->arena, (size_t)c->r->nbuf + 1);
    t.filled = alloc(c->arena, ((size_t)c->r->nbuf + 1) * sizeof *t.filled);
    for (int i = 0; i < g->ninstr && !why; i++) {
        t.s = &g->instr[instr = i];
        why = instr_type_wrong(&t, i);
    }
    *made = t.made;
    if (!why)
        return 0;
    return instr_told(c, g, instr, why);
}
