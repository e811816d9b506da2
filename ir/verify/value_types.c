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
 * word (ir/graph/sharding_rules.c proves it of the graph). */
#include "verify.h"

typedef struct Typer {
    const PlanCheck *c;
    const Program *g;
    const Instr *s;
    ValueOrigin *made;
    int n;        /* by number */
    char *held;   /* by buffer: an instruction before made a value in it */
    int **filled; /* by buffer, of stacks: vec of maps by which they are */
    int *walked;  /* by number: the last walk (is_behind) that went there */
    int walks;
} Typer;

/* What an instruction reads: how it lies there, what is still to be summed. */
typedef struct Type {
    const ValueShape *s;
    const uint32_t *part;
} Type;

int has_flow(const Role *role)
{
    for (int k = 0; k < role->nprog; k++)
        for (int i = 0; i < role->prog[k].ninstr; i++)
            if (role->prog[k].instr[i].flow)
                return 1;
    return 0;
}

/* ---- slots --------------------------------------------------------------- */

/* Kernels read what lives always as it lies; others may name its axes anew. */
static int may_read_as(const Typer *typer, const ValueUse *use)
{
    const ValueShape *y = &typer->c->p->shape[use->as];
    const ValueShape *x =
        use->read < 0 ? typer->c->lasting[~use->read]
                      : &typer->c->p->shape[typer->made[use->read].f->shape];
    return x && (typer->s->kind == Ikernel
                     ? shapes_equal(y, x)
                     : is_view_of(y, x) || shapes_renamed(y, x));
}

static const char *slot_wrong(Typer *typer, int i)
{
    const Instr *instr = typer->s;
    const ValueUse *value_use = &instr->flow[i];
    int b = instr->buf[i];
    const Buf *buf = b < 0 ? NULL : &typer->c->r->buf[b];
    const ValueShape *shape =
        value_use->make ? &typer->c->p->shape[value_use->shape] : NULL;
    if (!buf || buf->cls == Bscratch)
        return (value_use->read || value_use->make) && law(Lvalue_buffer)
                   ? "has a value in no buffer"
                   : NULL;
    if (!value_use->read && !value_use->make && law(Lbuffer_value))
        return "has a buffer without a value";
    if (value_use->read < 0 &&
        (~value_use->read != b || !typer->c->lasting[b]) && law(Lreads_lasting))
        return strf(
            typer->c->arena,
            "reads '%s' in place of what was there when the program began",
            buf->name);
    if (value_use->read > 0 &&
        (value_use->read > typer->n ||
         typer->made[value_use->read].instr < 0) &&
        law(Lvalue_made))
        return "reads a value that no instruction makes";
    if (value_use->make && shape_bytes(shape) != buf->bytes && law(Lvalue_size))
        return strf(typer->c->arena,
                    "makes a value that is not as large as '%s'", buf->name);
    if (value_use->make && shape->dt != buf->dt &&
        (!typer->held[b] || buf->prog < 0) && law(Lvalue_dtype))
        return strf(typer->c->arena, "makes a value of another dtype than '%s'",
                    buf->name);
    if (value_use->read && value_use->as >= 0 &&
        !may_read_as(typer, value_use) && law(Lreads_as))
        return strf(typer->c->arena, "reads '%s' as what it is not", buf->name);
    if ((value_use->read > 0 && value_use->read == value_use->make) !=
            stores_first(instr, i) &&
        law(Lstore_first))
        return "adds to what it makes itself, and no first run stores it";
    typer->held[b] |= value_use->make != 0;
    if (instr->kind == Ikernel)
        return 0;
    char use = instr_use(instr, i);
    if (((use != 'w' && use != '-') != (value_use->read != 0) ||
         (use == 'w' || use == 'b') != (value_use->make != 0)) &&
        law(Lkind_uses))
        return "uses a buffer as its kind does not";
    return 0;
}

/* ---- stacks -------------------------------------------------------------- */

/* Of instruction instr: the value that says where operand i begins; 0: none. */
static int map_value(const Typer *typer, int instr, int i)
{
    const Instr *s = &typer->g->instr[instr];
    int from = rows_from(typer->c->p, s, i);
    return from < 0 || from >= s->nbuf ? 0 : s->flow[from].read;
}

/* Does what makes this map read `last`, itself or by maps made between them? */
static int is_behind(Typer *typer, int map, int last)
{
    int *made_of = NULL;
    typer->walks++;
    vec_push(typer->c->arena, made_of, map);
    for (size_t k = 0; k < vec_len(made_of); k++) {
        int made = typer->made[made_of[k]].instr;
        const Instr *instr = &typer->g->instr[made];
        for (int i = 0; i < instr->nbuf; i++) {
            int v = instr->flow[i].read;
            if (v == last)
                return 1;
            if (v > 0 && v <= typer->n && typer->made[v].instr < made &&
                typer->made[v].instr > typer->made[last].instr &&
                typer->c->p->shape[typer->made[v].f->shape].map &&
                typer->walked[v] != typer->walks) {
                typer->walked[v] = typer->walks;
                vec_push(typer->c->arena, made_of, v);
            }
        }
    }
    return 0;
}

/* Is map the last of those by which a stack is filled, or behind that one? Then
 * it is the last. Rows of a layer between them may lie in no stack. */
static int is_next(Typer *typer, int stack, int map)
{
    int **v = &typer->filled[stack];
    for (size_t i = 0; i < vec_len(*v); i++)
        if ((*v)[i] == map)
            return 1;
    size_t n = vec_len(*v);
    int next = !n || is_behind(typer, map, (*v)[n - 1]);
    vec_push(typer->c->arena, *v, map);
    return next;
}

static const char *stack_wrong(Typer *typer, int instr, int i)
{
    const ValueUse *use = &typer->s->flow[i];
    int b = typer->s->buf[i], map = b < 0 ? 0 : map_value(typer, instr, i);
    int stack = b < 0 ? 0 : typer->c->r->buf[b].stack;
    if (!stack)
        return NULL;
    const ValueOrigin *origin = use->read > 0 ? &typer->made[use->read] : NULL;
    int at =
        origin ? (int)(origin->f - typer->g->instr[origin->instr].flow) : 0;
    if ((map <= 0 || (origin && map_value(typer, origin->instr, at) != map)) &&
        law(Lstack_word))
        return "has rows of a stack where they do not begin";
    return use->make && map > 0 && !is_next(typer, stack - 1, map) &&
                   law(Lstack_order)
               ? "fills a stack out of order"
               : NULL;
}

/* ---- types --------------------------------------------------------------- */

/* Of slot i; nothing, cut over nothing, where it reads nothing. */
static Type type_of(const Typer *typer, int i)
{
    static const ValueShape none;
    static const uint32_t whole[3];
    const ValueUse *use = &typer->s->flow[i];
    Type x = { &none, whole };
    if (use->read < 0)
        x.s = typer->c->lasting[~use->read];
    if (use->read > 0) {
        x.part = typer->made[use->read].f->part;
        x.s = &typer->c->p->shape[typer->made[use->read].f->shape];
    }
    if (use->read && use->as >= 0)
        x.s = &typer->c->p->shape[use->as];
    return x;
}

static int same_parts(const uint32_t x[3], const uint32_t y[3])
{
    return !memcmp(x, y, 3 * sizeof *x);
}

static const char *group_in_words(const Typer *typer, uint32_t atoms)
{
    char s[128];
    mesh_words(typer->c->p->mesh, atoms, s, sizeof s);
    return strf(typer->c->arena, "%s", s);
}

/* Over the stages' atoms types say nothing. */
static const char *collective(const Typer *typer)
{
    const Instr *instr = typer->s;
    uint32_t A = instr->atoms & ~typer->c->p->mesh->mask[Mpp], part[3];
    Type x = type_of(typer, 0);
    int sums = instr->kind == Ireducescatter || instr->kind == Iallreduce;
    Reduce op = instr->kind == Ireducescatter ? instr->reducescatter.op
                : sums                        ? instr->allreduce.op
                                              : Radd;
    uint32_t from = sums ? x.part[op] : shape_cut(x.s);
    if ((from & A) != A && law(Lcomm_over))
        return strf(typer->c->arena,
                    sums ? "sums over %s what is no sum there"
                         : "gathers over %s what lies there whole",
                    group_in_words(typer, A & ~from));
    memcpy(part, x.part, sizeof part);
    if (sums)
        part[op] &= ~A;
    if (!same_parts(part, instr->flow[1].part) && law(Lcomm_parts))
        return strf(typer->c->arena, "over %s does not make what it says",
                    group_in_words(typer, instr->atoms));
    return NULL;
}

/* Atoms of an integer. */
static uint32_t varies(const RankAffine *affine)
{
    uint32_t v = 0;
    for (int i = 0; i < MAXATOM; i++)
        v |= affine->k[i] ? 1u << i : 0;
    return v;
}

typedef struct Unlike { /* atoms over which values differ */
    uint32_t part[3], cut;
    int any; /* are there values */
} Unlike;

/* Of all that is read, integers too, and of all that is made. */
static void unlike(const Typer *typer, Unlike *in, Unlike *out)
{
    const Instr *instr = typer->s;
    *in = *out = (Unlike){ 0 };
    for (int i = 0; i < instr->nbuf; i++) {
        Type x = type_of(typer, i);
        const ValueUse *use = &instr->flow[i];
        for (int k = 0; k < 3; k++) {
            in->part[k] |= x.part[k];
            out->part[k] |= use->make ? use->part[k] : 0;
        }
        in->any |= instr->flow[i].read != 0;
        in->cut |= shape_cut(x.s);
        out->cut |= use->make ? shape_cut(&typer->c->p->shape[use->shape]) : 0;
    }
    for (int i = 0; i < instr->nword; i++)
        in->cut |= varies(&instr->word[i].at) & ~typer->c->p->mesh->mask[Mpp];
}

static uint32_t parts(const Unlike *unlike)
{
    return unlike->part[0] | unlike->part[1] | unlike->part[2];
}

/* Does the instruction read an axis whole that it makes a part of, over these
 * atoms? An axis that it reads nowhere is a repetition, and all parts are the
 * same; so is one of which the instruction says so (spread), whatever else has
 * its name. */
static int takes_parts(const Typer *typer, uint32_t atoms)
{
    const Instr *instr = typer->s;
    for (int i = 0; i < instr->nbuf; i++) {
        const ValueUse *use = &instr->flow[i];
        const ValueShape *shape =
            use->make ? &typer->c->p->shape[use->shape] : NULL;
        for (int d = 0; shape && d < shape->nd; d++)
            for (int k = 0; k < instr->nbuf && shape->dim[d].cut & atoms; k++)
                if (instr->flow[k].read &&
                    shape_dim(type_of(typer, k).s, shape->dim[d].axis) >= 0)
                    return 1;
    }
    return 0;
}

/* What an instruction that computes makes is as unlike over ranks as what it
 * reads, no less and no more. A constant is a term of any sum. */
static const char *computed(const Typer *typer)
{
    Unlike in, out;
    unlike(typer, &in, &out);
    uint32_t terms = parts(&out), less = in.cut & ~(out.cut | terms);
    uint32_t same = in.any ? ~(in.cut | parts(&in) | typer->s->inner) : 0;
    for (int k = 0; k < 3; k++)
        if (in.part[k] & ~out.part[k] && law(Lterms_kept))
            return strf(typer->c->arena,
                        "takes terms of a sum over %s for the sum",
                        group_in_words(typer, in.part[k] & ~out.part[k]));
    if (less && law(Lparts_kept))
        return strf(
            typer->c->arena,
            "makes out of parts over %s what is said to be the same there",
            group_in_words(typer, less));
    if (terms & same && law(Lterms_new))
        return strf(
            typer->c->arena,
            "makes terms of a sum over %s out of what is the same there",
            group_in_words(typer, terms & same));
    same &= out.cut & ~typer->s->spread;
    if (takes_parts(typer, same) && law(Lparts_new))
        return strf(typer->c->arena,
                    "makes parts over %s out of what is the same there",
                    group_in_words(typer, same));
    return NULL;
}

/* What is added to, and what is copied, keeps its type. */
static const char *kept(const Typer *typer, int from, int to)
{
    Type x = type_of(typer, from);
    const ValueUse *use = &typer->s->flow[to];
    int same = same_parts(x.part, use->part) &&
               shapes_equal(x.s, &typer->c->p->shape[use->shape]);
    return !same && law(Ltype_kept) ? "changes a type" : NULL;
}

static const char *dtype_wrong(const Typer *typer)
{
    const Instr *instr = typer->s;
    for (int i = 0; i < instr->nbuf; i++) {
        const ValueUse *use = &instr->flow[i];
        Dtype dt = use->make ? typer->c->p->shape[use->shape].dt
                             : type_of(typer, i).s->dt;
        if (instr_operand(instr, i)->typed && (use->read || use->make) &&
            dt != instr_dtype(instr, i) && law(Linstr_dtype))
            return "has another dtype than its values";
    }
    return 0;
}

static const char *type_wrong(const Typer *typer)
{
    const Instr *instr = typer->s;
    const char *why = dtype_wrong(typer);
    if (why)
        return why;
    switch (instr->kind) {
    case Ikernel:
    case Igemm:
    case Igmm:
    case Igmm_wgrad:
    case Ijoin: return computed(typer);
    case Icopy: return kept(typer, 0, 1);
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall:
    case Ippermute:
    case Isendrows:
    case Ireturnrows: return collective(typer);
    default: return 0;
    }
}

/* Is it a value of that shape, whose axes are all there are but for a map? */
static int takes(const KernelOperand *operand, const ValueShape *shape)
{
    if (shape->map)
        return operand->nd == 1 && operand->n[0] == shape->elems;
    for (int d = 0; d < shape->nd && d < operand->nd; d++)
        if (operand->n[d] != shape->dim[d].n)
            return 0;
    return operand->nd == shape->nd;
}

/* A kernel's operands are as its signature declares them. */
static const char *declared(const Typer *typer, const ValueShape *const *in,
                            const ValueShape *const *out)
{
    const Instr *instr = typer->s;
    const KernelSignature *signature = &typer->c->p->sig[instr->call.sig];
    for (int i = 0; i < instr->nbuf; i++) {
        const ValueShape *shape = out[i] ? out[i] : in[i];
        if (!shape)
            continue;
        if (signature->use[i] != (!out[i] ? 'r'
                                  : in[i] ? 'b'
                                          : 'w') &&
            law(Lkernel_uses))
            return strf(typer->c->arena, "uses '%s' as its values do not",
                        typer->c->r->buf[instr->buf[i]].name);
        if (signature->op[i].dt != shape->dt && law(Lsig_dtype))
            return strf(typer->c->arena, "has an operand %d of another dtype",
                        i);
        if (!takes(&signature->op[i], shape) && law(Lsig_extents))
            return strf(typer->c->arena, "has an operand %d of other extents",
                        i);
    }
    return NULL;
}

/* Shapes by slot, for operands.c. */
static const char *operands(const Typer *typer)
{
    const Instr *s = typer->s;
    size_t n = (size_t)s->nbuf + 1;
    const ValueShape **in = alloc(typer->c->arena, n * sizeof *in);
    const ValueShape **out = alloc(typer->c->arena, n * sizeof *out);
    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *use = &s->flow[i];
        in[i] = use->read ? type_of(typer, i).s : NULL;
        out[i] = use->make ? &typer->c->p->shape[use->shape] : NULL;
    }
    const char *why = s->kind == Ikernel ? declared(typer, in, out) : NULL;
    return why ? why : operands_wrong(typer->c, s, in, out);
}

/* Words of a kernel say whether it adds (signature.c: then to an operand). */
static int adds_to_one(const Instr *instr)
{
    int adds = instr->kind == Igemm || instr->kind == Igmm_wgrad, n = 0;
    for (int i = 0; i < instr->nword; i++)
        adds |= instr->word[i].type == WORDadd;
    for (int i = 0; i < instr->nbuf; i++)
        n += instr_use(instr, i) == 'b';
    return adds && n == 1;
}

static const char *instr_type_wrong(Typer *typer, int instr)
{
    const Instr *s = typer->s;
    const char *why = 0;
    if (s->nbuf && !s->flow && law(Linstr_says))
        return "does not say what it reads and makes";
    if (s->store_first && !adds_to_one(s) && law(Ladds_one))
        return "is to store in the first run what it cannot";
    for (int i = 0; i < s->nbuf && !why; i++)
        why = slot_wrong(typer, i);
    for (int i = 0; i < s->nbuf && !why; i++)
        why = stack_wrong(typer, instr, i);
    for (int i = 0; i < s->nbuf && !why; i++)
        if (s->flow[i].read > 0 && s->flow[i].make)
            why = kept(typer, i, i);
    why = why ? why : type_wrong(typer);
    return why ? why : operands(typer);
}

/* ---- the whole ----------------------------------------------------------- */

static const char *number_values(Typer *typer, int *instr)
{
    int slots = 0;
    for (int i = 0; i < typer->g->ninstr; i++)
        slots += typer->g->instr[i].nbuf;
    typer->n = slots;
    typer->made =
        alloc(typer->c->arena, ((size_t)slots + 1) * sizeof *typer->made);
    for (int i = 0; i <= slots; i++)
        typer->made[i].instr = -1;
    for (*instr = 0; *instr < typer->g->ninstr; ++*instr) {
        const Instr *s = &typer->g->instr[*instr];
        for (int k = 0; k < s->nbuf && s->flow; k++) {
            const ValueUse *use = &s->flow[k];
            if ((use->make < 0 || use->make > slots) && law(Lvalue_number))
                return "makes a value without a number";
            if ((use->as < -1 || use->as >= typer->c->p->nshape ||
                 (use->make &&
                  (use->shape < 0 || use->shape >= typer->c->p->nshape))) &&
                law(Lvalue_shape))
                return "has a value of a shape that does not exist";
            if (use->make && typer->made[use->make].instr >= 0 &&
                law(Lvalue_once))
                return "makes a value that another instruction makes";
            if (use->make)
                typer->made[use->make] = (ValueOrigin){ *instr, use };
        }
    }
    return 0;
}

const char *values_wrong(const PlanCheck *check, int prog, ValueOrigin **made)
{
    const Program *g = &check->r->prog[prog];
    Typer t = { .c = check, .g = g };
    int instr = 0;
    const char *why = number_values(&t, &instr);
    t.held = alloc(check->arena, (size_t)check->r->nbuf + 1);
    t.filled =
        alloc(check->arena, ((size_t)check->r->nbuf + 1) * sizeof *t.filled);
    t.walked = alloc(check->arena, ((size_t)t.n + 1) * sizeof *t.walked);
    for (int i = 0; i < g->ninstr && !why; i++) {
        t.s = &g->instr[instr = i];
        why = instr_type_wrong(&t, i);
    }
    *made = t.made;
    if (!why)
        return 0;
    return instr_told(check, g, instr, why);
}
