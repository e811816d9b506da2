/* fields.c: damage that follows from what a plan is, not from what it means:
 * every number, name and list of it is a row here, and a row is changed in each
 * way that its type has. What a signature says of operands and ranks is changed
 * as the calls repeat it: no hash gives that away. Kernels' texts, options and
 * predicted costs are left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutants.h"

/* ---- every record of a plan ---------------------------------------------- */

typedef void **Records(Mutant *m); /* addresses, a vec */

static void **plans(Mutant *m)
{
    void **v = NULL;
    vec_push(m->arena, v, (void *)m->p);
    return v;
}

static void **meshes(Mutant *m)
{
    void **v = NULL;
    vec_push(m->arena, v, (void *)m->p->mesh);
    return v;
}

/* The elements of a list that each record of `outer` has. */
#define OF(name, outer, Outer, list, n)                       \
    static void **name(Mutant *m)                             \
    {                                                         \
        void **v = NULL, **o = outer(m);                      \
        for (size_t k = 0; k < vec_len(o); k++) {             \
            Outer *x = o[k];                                  \
            for (int i = 0; i < (int)(n); i++)                \
                vec_push(m->arena, v, (void *)&(x->list)[i]); \
        }                                                     \
        return v;                                             \
    }

OF(sizes, meshes, Mesh, size, NMESH)
OF(roles, plans, Plan, role, x->nrole)
OF(hfs, plans, Plan, hf, x->nhf)
OF(hfdims, hfs, HfMap, dim, x->nd)
OF(factors, hfdims, HfDim, f, x->nf)
OF(bufs, roles, Role, buf, x->nbuf)
OF(tensors, roles, Role, tensor, x->ntensor)
OF(dims, tensors, Tensor, dim, x->nd)
OF(pieces, dims, PlanDim, piece, x->npiece)
OF(inputs, roles, Role, in, x->nin)
OF(results, roles, Role, out, x->nout)
OF(programs, roles, Role, prog, x->nprog)
OF(phases, programs, Program, phase, x->nphase)
OF(turns, programs, Program, slot, x->nslot)
OF(frames, programs, Program, frame, x->nframe)
OF(slots, frames, SlotGroup, slot, x->nslot)
OF(places, frames, SlotGroup, of, x->nof)
OF(ends, programs, Program, end, x->nend)
OF(instrs, programs, Program, instr, x->ninstr)
OF(waits, instrs, Instr, issue.wait, x->issue.nwait)
OF(operands, instrs, Instr, buf, x->nbuf)
OF(values, instrs, Instr, flow, x->flow ? x->nbuf : 0)
OF(signatures, plans, Plan, sig, x->nsig)
OF(declared, signatures, KernelSignature, op, strlen(x->use))
OF(words, signatures, KernelSignature, word, x->nword)
OF(kernels, plans, Plan, kernel, x->nkernel)
OF(fixed, hfs, HfMap, fixat, x->nfix)
OF(shapes, plans, Plan, shape, x->nshape)
OF(shapedims, shapes, ValueShape, dim, x->nd)

/* The integers of a list, one after another. */
static void **in_list(Mutant *m, void **v, void *list, int64_t width)
{
    struct {
        int n;
        int64_t *at;
    } l;
    memcpy(&l, list, sizeof l);
    for (int64_t i = 0; i < l.n * width; i++)
        vec_push(m->arena, v, (void *)&l.at[i]);
    return v;
}

void **args_of(Mutant *m, Instr *s, FieldType type)
{
    void **v = NULL;
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++) {
        char *at = (char *)&s->none + f->at;
        if (f->type == type)
            vec_push(m->arena, v, (void *)at);
        else if (f->type == FIELDlist && type == FIELDint)
            v = in_list(m, v, at, f->min);
    }
    return v;
}

/* The integers of kernels. */
static void **allints(Mutant *m)
{
    void **v = NULL, **all = words(m);
    for (size_t i = 0; i < vec_len(all); i++)
        if (((Word *)all[i])->type == WORDint)
            vec_push(m->arena, v, (void *)&((Word *)all[i])->at);
    return v;
}

/* What is the same on all ranks. */
static void **constants(Mutant *m)
{
    void **v = NULL, **all = words(m);
    for (size_t i = 0; i < vec_len(all); i++) {
        Word *x = all[i];
        vec_push(m->arena, v,
                 x->type == WORDreal ? (void *)&x->real : (void *)&x->at.c);
    }
    return v;
}

static void **extents(Mutant *m)
{
    void **v = NULL, **all = declared(m);
    for (size_t i = 0; i < vec_len(all); i++)
        for (int d = 0; d < ((KernelOperand *)all[i])->nd; d++)
            vec_push(m->arena, v,
                     (void *)(uintptr_t) & ((KernelOperand *)all[i])->n[d]);
    return v;
}

/* Of all instructions. */
static void **all_args(Mutant *m, FieldType type)
{
    void **v = NULL, **all = instrs(m);
    for (size_t i = 0; i < vec_len(all); i++) {
        void **w = args_of(m, all[i], type);
        for (size_t k = 0; k < vec_len(w); k++)
            vec_push(m->arena, v, w[k]);
    }
    return v;
}

static void **numbers(Mutant *m)
{
    return all_args(m, FIELDint);
}

static void **hashes(Mutant *m)
{
    return all_args(m, FIELDhash);
}

static void **flags(Mutant *m)
{
    return all_args(m, FIELDflag);
}

static void **types(Mutant *m)
{
    return all_args(m, FIELDdtype);
}

static void **reductions(Mutant *m)
{
    return all_args(m, FIELDreduce);
}

/* Integers of kernels that depend on the rank. */
static void **places_of_ranks(Mutant *m)
{
    void **v = NULL, **all = allints(m);
    for (size_t i = 0; i < vec_len(all); i++) {
        const RankAffine *x = all[i];
        int varies = 0;
        for (int k = 0; k < MAXATOM; k++)
            varies |= x->k[k] != 0;
        if (varies)
            vec_push(m->arena, v, all[i]);
    }
    return v;
}

static void **collectives(Mutant *m)
{
    void **v = NULL, **all = instrs(m);
    for (size_t i = 0; i < vec_len(all); i++)
        if (((Instr *)all[i])->atoms)
            vec_push(m->arena, v, all[i]);
    return v;
}

static void **of_kind(Mutant *m, InstrKind k)
{
    void **v = NULL, **all = instrs(m);
    for (size_t i = 0; i < vec_len(all); i++)
        if (((Instr *)all[i])->kind == k)
            vec_push(m->arena, v, all[i]);
    return v;
}

static void **gemms(Mutant *m)
{
    return of_kind(m, Igemm);
}

static void **joins(Mutant *m)
{
    return of_kind(m, Ijoin);
}

/* ---- rows ---------------------------------------------------------------- */

typedef enum MemberType {
    I64,
    I32,
    BITS,   /* a set of atoms */
    CHOICE, /* one of so many */
    AFFINE,
    RANKS, /* of an affine: only how it depends on the rank */
    NAME
} MemberType;

typedef struct Member {
    const char *record, *name;
    Records *records;
    size_t at;
    MemberType type;
    int choices;
} Member;

#define ROW(text, records, Struct, field, type) \
    { text, #field, records, offsetof(Struct, field), type, 0 },
#define ONE(text, records, Struct, field, n) \
    { text, #field, records, offsetof(Struct, field), CHOICE, n },
#define BARE(text, records, type) { text, "", records, 0, type, 0 },

/* clang-format off */
static const Member fields[] = {
    ROW("plan",     plans,       Plan,     tokens,  I64)
    BARE("mesh",    sizes,                          I64)
    ROW("mesh",     meshes,      Mesh,     world,   I64)
    ROW("hf",       hfs,         HfMap,    param,   NAME)
    ROW("hf",       hfs,         HfMap,    hf,      NAME)
    BARE("hf fixed", fixed,                         I64)
    ROW("kernel",   kernels,     Kernel,   name,    NAME)
    ROW("factor",   factors,     HfFactor, axis,    NAME)
    ROW("factor",   factors,     HfFactor, total,   I64)
    ROW("factor",   factors,     HfFactor, start,   I64)
    ROW("factor",   factors,     HfFactor, n,       I64)
    ONE("shape",    shapes,      ValueShape,    dt,      NDTYPE)
    ROW("shape",    shapes,      ValueShape,    elems,   I64)
    ONE("shape",    shapes,      ValueShape,    scale,   NSCALE)
    ROW("shape dim", shapedims,  ValueDim, axis,    NAME)
    ROW("shape dim", shapedims,  ValueDim, n,       I64)
    ROW("shape dim", shapedims,  ValueDim, cut,     BITS)
    ONE("shape dim", shapedims,  ValueDim, zigzag,  2)
    ROW("role",     roles,       Role,     arena,   I64)
    ROW("role",     roles,       Role,     persist, I64)
    ROW("role",     roles,       Role,     host,    I64)
    ROW("buf",      bufs,        Buf,      name,    NAME)
    ONE("buf",      bufs,        Buf,      cls,     NBUFCLASS)
    ONE("buf",      bufs,        Buf,      dt,      NDTYPE)
    ROW("buf",      bufs,        Buf,      offset,  I64)
    ROW("buf",      bufs,        Buf,      bytes,   I64)
    ROW("buf",      bufs,        Buf,      prog,    I32)
    ROW("buf",      bufs,        Buf,      frame,   I32)
    ROW("buf",      bufs,        Buf,      stack,   I32)
    ROW("buf",      bufs,        Buf,      born,    I32)
    ROW("buf",      bufs,        Buf,      dies,    I32)
    ROW("tensor",   tensors,     Tensor,   name,    NAME)
    ONE("tensor",   tensors,     Tensor,   kind,    NTENSORKIND)
    ONE("tensor",   tensors,     Tensor,   dt,      NDTYPE)
    ROW("tensor",   tensors,     Tensor,   buf,     I32)
    ONE("tensor",   tensors,     Tensor,   second,  2)
    ROW("tensor",   tensors,     Tensor,   of,      I32)
    ROW("tensor",   tensors,     Tensor,   below,   I64)
    ROW("tensor",   tensors,     Tensor,   at,      I64)
    ROW("tensor",   tensors,     Tensor,   run,     I64)
    ROW("tensor",   tensors,     Tensor,   shard,   BITS)
    ROW("dim",      dims,        PlanDim,  axis,    NAME)
    ONE("dim",      dims,        PlanDim,  role,    NROLE)
    ROW("dim",      dims,        PlanDim,  n,       I64)
    ROW("piece",    pieces,      Piece,    start,   AFFINE)
    ROW("piece",    pieces,      Piece,    len,     I64)
    ROW("in",       inputs,      Scalar,   name,    NAME)
    ROW("in",       inputs,      Scalar,   buf,     I32)
    ONE("in",       inputs,      Scalar,   dt,      NDTYPE)
    ROW("out",      results,     Scalar,   name,    NAME)
    ROW("out",      results,     Scalar,   buf,     I32)
    ONE("out",      results,     Scalar,   dt,      NDTYPE)
    ONE("program",  programs,    Program,  kind,    NPROGRAM)
    ROW("program",  programs,    Program,  transient, I64)
    ROW("phase",    phases,      Phase,    name,    NAME)
    ROW("phase",    phases,      Phase,    first,   I32)
    ROW("phase",    phases,      Phase,    n,       I32)
    ROW("phase",    phases,      Phase,    repeat,  I64)
    ONE("phase",    phases,      Phase,    pair,    2)
    ROW("turn",     turns,       ScheduleSlot,     phase,   I32)
    ROW("turn",     turns,       ScheduleSlot,     micro,   I32)
    ONE("turn",     turns,       ScheduleSlot,     pair,    2)
    ROW("frame",    frames,      SlotGroup,    bytes,   I64)
    BARE("slot",    slots,                          I64)
    BARE("frame of", places,                        I32)
    ROW("end",      ends,        FinalValue,     buf,     I32)
    ROW("end",      ends,        FinalValue,     value,   I32)
    ONE("instr",    instrs,       Instr,     kind,    NINSTR)
    ROW("instr",    instrs,       Instr,     atoms,   BITS)
    ROW("group",    collectives, Instr,     atoms,   BITS)
    ONE("instr",    instrs,       Instr,     issue.stream, NSTREAM)
    ROW("instr",    instrs,       Instr,     issue.record, I32)
    ROW("instr",    instrs,       Instr,     issue.sms, I32)
    ONE("instr",    instrs,       Instr,     issue.priority, 2)
    ONE("instr",    instrs,       Instr,     store_first, 2)
    ONE("instr",    instrs,       Instr,     last_only, 2)
    ROW("signature", signatures, KernelSignature, kernel, NAME)
    ROW("signature", signatures, KernelSignature, expr, I64)
    ROW("signature", signatures, KernelSignature, use, NAME)
    ONE("signature", declared,   KernelOperand, dt,   NDTYPE)
    ROW("signature", declared,   KernelOperand, base, I32)
    BARE("extent",  extents,                        I64)
    BARE("constant", constants,                     I64)
    BARE("hash",    hashes,                         I64)
    BARE("operand", operands,                       I32)
    BARE("wait",    waits,                          I32)
    BARE("number",  numbers,                        I64)
    BARE("flag",    flags,                          I32)
    { "dtype", "", types, 0, CHOICE, NDTYPE },
    { "reduction", "", reductions, 0, CHOICE, Rmin + 1 },
    BARE("place",   places_of_ranks,                RANKS)
    BARE("integer of a kernel", allints,            RANKS)
    ROW("value",    values,      ValueUse, read,    I32)
    ROW("value",    values,      ValueUse, make,    I32)
    ROW("value",    values,      ValueUse, as,      I32)
    ROW("value",    values,      ValueUse, shape,   I32)
    ROW("value",    values,      ValueUse, part[0], BITS)
    ROW("value",    values,      ValueUse, part[1], BITS)
    ROW("value",    values,      ValueUse, part[2], BITS)
};

/* A list in a record: its first element or a pointer to it, and its length. */
typedef struct List {
    const char *name;
    Records *records;
    size_t at, n, elem, room; /* room: elements inside the record; 0: none */
} List;

#define LIST(text, records, Struct, list, n) \
    {text, records, offsetof(Struct, list), offsetof(Struct, n), \
     sizeof *((Struct *)0)->list, 0},
#define INSIDE(text, records, Struct, list, n) \
    {text, records, offsetof(Struct, list), offsetof(Struct, n), \
     sizeof *((Struct *)0)->list, \
     sizeof ((Struct *)0)->list / sizeof *((Struct *)0)->list},

static const List lists[] = {
    LIST("roles",    plans,    Plan,    role,   nrole)
    LIST("hfs",      plans,    Plan,    hf,     nhf)
    LIST("kernels",  plans,    Plan,    kernel, nkernel)
    LIST("signatures", plans,  Plan,    sig,    nsig)
    LIST("extents",  declared, KernelOperand, n, nd)
    LIST("words",    signatures, KernelSignature, word, nword)
    INSIDE("hf dims", hfs,     HfMap,   dim,    nd)
    LIST("shapes",   plans,    Plan,    shape,  nshape)
    INSIDE("shape dims", shapes, ValueShape, dim,    nd)
    LIST("bufs",     roles,    Role,    buf,    nbuf)
    LIST("tensors",  roles,    Role,    tensor, ntensor)
    LIST("ins",      roles,    Role,    in,     nin)
    LIST("outs",     roles,    Role,    out,    nout)
    LIST("programs", roles,    Role,    prog,   nprog)
    INSIDE("dims",   tensors,  Tensor,  dim,    nd)
    LIST("pieces",   dims,     PlanDim, piece,  npiece)
    LIST("phases",   programs, Program, phase,  nphase)
    LIST("turns",    programs, Program, slot,   nslot)
    LIST("frames",   programs, Program, frame,  nframe)
    LIST("ends",     programs, Program, end,    nend)
    LIST("instructions", programs, Program, instr, ninstr)
    LIST("slots",    frames,   SlotGroup,   slot,   nslot)
    LIST("places",   frames,   SlotGroup,   of,     nof)
    LIST("operands", instrs,    Instr,    buf,    nbuf)
    LIST("waits",    instrs,    Instr,    issue.wait, issue.nwait)
    LIST("batches",  gemms,    Instr,    gemm.batch.at, gemm.batch.n)
    LIST("gaps",     joins,    Instr,    join.gap.at, join.gap.n)
};
/* clang-format on */
enum {
    NFIELD = sizeof fields / sizeof *fields,
    NLIST = sizeof lists / sizeof *lists
};

/* ---- numbers ------------------------------------------------------------- */

typedef enum ShardStrategy { NEAR, FAR, NONE, COPY, SWAP, NWAY } ShardStrategy;
static const char *const ways[] = { "near", "far", "none", "copy", "swap" };

static int64_t near(Mutant *m, int64_t v)
{
    return v + (below(m, 2) ? 1 : -1);
}

static int64_t far(Mutant *m, int64_t v)
{
    static const int64_t by[] = { -256, -64, -8, -2, 2, 8, 64, 256 };
    switch (below(m, 4)) {
    case 0: return 2 * v;
    case 1: return v / 2;
    case 2: return -v;
    default: return v + by[below(m, 8)];
    }
}

static int64_t number(Mutant *m, ShardStrategy w, int64_t v)
{
    return w == NEAR ? near(m, v) : w == FAR ? far(m, v) : 0;
}

static uint32_t bits(Mutant *m, ShardStrategy w, uint32_t v)
{
    int n = m->p->mesh->natom;
    switch (w) {
    case NEAR: return v ^ 1u << below(m, n);
    case FAR: return (uint32_t)below(m, 1 << n);
    default: return 0;
    }
}

/* A coefficient goes, changes, moves to another atom, or comes. */
static void ranks(Mutant *m, ShardStrategy w, int64_t *x)
{
    int n = m->p->mesh->natom, i = below(m, n), k = below(m, n);
    for (int q = 0; q < n && !x[i]; q++)
        i = (i + 1) % n;
    if (!n)
        return;
    if (w == NONE) {
        x[i] = 0;
    } else if (w == NEAR) {
        x[i] = below(m, 2) ? near(m, x[i]) : far(m, x[i]);
    } else {
        int64_t was = x[i];
        x[i] = x[k];
        x[k] = was;
    }
}

static const char *word(Mutant *m, ShardStrategy w, const char *s)
{
    size_t n = s ? strlen(s) : 0;
    if (!n)
        return s;
    if (w == NONE)
        return intern("");
    if (w == FAR)
        return intern(strf(m->arena, "%sx", s));
    char *t = strf(m->arena, "%s", s);
    t[below(m, (int)n)] = "abrwx"[below(m, 5)];
    return intern(t);
}

static void change(Mutant *m, const Member *f, ShardStrategy w, void *at)
{
    switch (f->type) {
    case I64: *(int64_t *)at = number(m, w, *(int64_t *)at); break;
    case I32: *(int *)at = (int)number(m, w, *(int *)at); break;
    case BITS: *(uint32_t *)at = bits(m, w, *(uint32_t *)at); break;
    case CHOICE: *(int *)at = below(m, f->choices); break;
    case RANKS: ranks(m, w, at); break;
    case AFFINE:
        if (below(m, 2))
            ranks(m, w, ((RankAffine *)at)->k);
        else
            ((RankAffine *)at)->c = number(m, w, ((RankAffine *)at)->c);
        break;
    case NAME: *(const char **)at = word(m, w, *(const char **)at); break;
    }
}

static size_t width(const Member *f)
{
    return f->type == I64                          ? sizeof(int64_t)
           : f->type == NAME                       ? sizeof(char *)
           : f->type == AFFINE || f->type == RANKS ? sizeof(RankAffine)
                                                   : sizeof(int);
}

/* Calls repeat what signatures say now. */
int mutant_sign(Mutant *m)
{
    void **v = signatures(m), **all = instrs(m);
    for (size_t i = 0; i < vec_len(v); i++)
        set_signature_hash(v[i]);
    for (size_t i = 0; i < vec_len(all); i++) {
        Instr *s = all[i];
        int64_t sig = instr_call(s).sig;
        uint64_t *hash = moves_rows(s->kind) ? &s->rows.hash : &s->call.hash;
        if (sig >= 0 && sig < m->p->nsig)
            *hash = m->p->sig[sig].hash;
    }
    return 1;
}

static int is_use(const Member *f)
{
    return f->records == signatures && f->at == offsetof(KernelSignature, use);
}

static int is_declared(const Member *f)
{
    return f->records == declared || f->records == extents ||
           f->type == RANKS || is_use(f);
}

/* A signature that says of more operands what it does to them has as many. */
static void fit_operands(Mutant *m)
{
    void **v = signatures(m);
    for (size_t i = 0; i < vec_len(v); i++) {
        KernelSignature *d = v[i];
        while (vec_len(d->op) < strlen(d->use))
            vec_push(m->arena, d->op, ((KernelOperand){ .dt = Df32 }));
    }
}

/* What was an instruction of that kind: fields of one name keep their value. */
static void adapt(Instr *s, InstrKind was)
{
    Instr old = *s;
    memset(&s->none, 0, offsetof(Instr, kernel) - offsetof(Instr, none));
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++)
        for (const Field *g = instr_info(was)->fields(); g->name; g++)
            if (f->type == g->type && !strcmp(f->name, g->name))
                memcpy((char *)&s->none + f->at, (char *)&old.none + g->at,
                       f->type == FIELDint    ? sizeof(int64_t)
                       : f->type == FIELDlist ? sizeof(GapList)
                                              : sizeof(int));
}

static int change_kind(Mutant *m)
{
    void **v = instrs(m);
    Instr *s = v[below(m, (int)vec_len(v))];
    InstrKind was = s->kind;
    s->kind = below(m, 2) ? (InstrKind)below(m, NINSTR)
                          : ((Instr *)v[below(m, (int)vec_len(v))])->kind;
    adapt(s, was);
    return s->kind != was;
}

static int change_field(Mutant *m, const Member *f, ShardStrategy w)
{
    if (f->records == instrs && f->at == offsetof(Instr, kind))
        return change_kind(m);
    void **v = f->records(m);
    size_t n = width(f);
    if (!v)
        return 0;
    char *x = (char *)v[below(m, (int)vec_len(v))] + f->at,
         *y = (char *)v[below(m, (int)vec_len(v))] + f->at;
    char was[sizeof(RankAffine)];
    if (f->type == RANKS) /* constants are the kernel's */
        x += offsetof(RankAffine, k), y += offsetof(RankAffine, k),
            n = sizeof was - sizeof(int64_t) * 2;
    memcpy(was, x, n);
    if (w == COPY || w == SWAP)
        memcpy(x, y, n);
    else
        change(m, f, w, x);
    if (w == SWAP)
        memcpy(y, was, n);
    if (is_use(f))
        fit_operands(m);
    if (is_declared(f))
        mutant_sign(m);
    return memcmp(was, x, n) != 0;
}

/* ---- lists --------------------------------------------------------------- */

typedef enum Move { DROP, TWICE, EXCHANGE, LATER, NMOVE } Move;
static const char *const moves[] = { "drop", "twice", "exchange", "later" };

/* The list in another order: element order[i] of the old one at i. */
static int reorder(Mutant *m, const List *l, char *x, const int *order, int n)
{
    char *was = l->room ? x + l->at : *(char **)(x + l->at);
    char *v = alloc(m->arena, l->elem * (size_t)(n + 1));
    if (l->room && (size_t)n > l->room)
        return 0;
    for (int i = 0; i < n; i++)
        memcpy(v + (size_t)i * l->elem, was + (size_t)order[i] * l->elem,
               l->elem);
    if (l->room)
        memcpy(was, v, l->elem * (size_t)n);
    else
        *(char **)(x + l->at) = v;
    *(int *)(x + l->n) = n;
    return 1;
}

static int alike(const List *l, char *x, int a, int b)
{
    const char *v = l->room ? x + l->at : *(char **)(x + l->at);
    return !memcmp(v + (size_t)a * l->elem, v + (size_t)b * l->elem, l->elem);
}

static int change_list(Mutant *m, const List *l, Move move)
{
    void **r = l->records(m), **some = NULL;
    for (size_t i = 0; i < vec_len(r); i++)
        if (*(int *)((char *)r[i] + l->n) > 0)
            vec_push(m->arena, some, r[i]);
    if (!some)
        return 0;
    char *x = some[below(m, (int)vec_len(some))];
    int n = *(int *)(x + l->n), k = 0;
    int a = below(m, n), b = below(m, n);
    int *order = alloc(m->arena, sizeof *order * (size_t)(n + 2));
    if (move >= EXCHANGE && alike(l, x, a, b))
        return 0;
    for (int i = 0; i < n; i++) {
        if (i == a && move == DROP)
            continue;
        order[k++] = i;
        if (i == a && move == TWICE)
            order[k++] = i;
    }
    if (move == EXCHANGE)
        order[a] = b, order[b] = a;
    for (int i = a; move == LATER && i != b; i += a < b ? 1 : -1)
        order[i] = order[i + (a < b ? 1 : -1)];
    if (move == LATER)
        order[b] = a;
    int done = reorder(m, l, x, order, k);
    if (l->records == declared)
        mutant_sign(m);
    return done;
}

/* ---- kinds --------------------------------------------------------------- */

static int meant(void)
{
    int n = 0;
    while (mutantkinds[n].name)
        n++;
    return n;
}

int mutant_kinds(void)
{
    return meant() + NFIELD * NWAY + NLIST * NMOVE;
}

const char *mutant_kind(Arena *a, int k)
{
    int n = meant();
    if (k < n)
        return mutantkinds[k].name;
    k -= n;
    if (k < NFIELD * NWAY)
        return strf(a, "%s %s: %s", fields[k / NWAY].record,
                    fields[k / NWAY].name, ways[k % NWAY]);
    k -= NFIELD * NWAY;
    return strf(a, "%s: %s", lists[k / NMOVE].name, moves[k % NMOVE]);
}

int mutant_damage(Mutant *m, int k)
{
    int n = meant();
    if (k < n)
        return mutantkinds[k].damage(m);
    k -= n;
    if (k < NFIELD * NWAY)
        return change_field(m, &fields[k / NWAY], (ShardStrategy)(k % NWAY));
    k -= NFIELD * NWAY;
    return change_list(m, &lists[k / NMOVE], (Move)(k % NMOVE));
}

/* ---- by hand ------------------------------------------------------------- */

/* One word of it: "buf bytes + 8", "tensor dt of tokens = 3", "gemm m = 9". */
typedef struct FuseSet {
    char what[32], name[32], sign, to[32];
} FuseSet;

static int64_t given(const FuseSet *x, int64_t was)
{
    return (x->sign == '+' ? was : 0) + strtoll(x->to, NULL, 10);
}

/* Records other than programs that have a name begin with it. */
static const char *name_of(const Member *f, void *record)
{
    return f->records == programs ? programnames[((Program *)record)->kind]
                                  : *(const char **)record;
}

/* Some record of a field; of those with that name. */
static void *some(Mutant *m, const Member *f, const FuseSet *x)
{
    void **v = f->records(m), **w = NULL;
    for (size_t i = 0; i < vec_len(v); i++)
        if (!*x->name || !strcmp(name_of(f, v[i]), x->name))
            vec_push(m->arena, w, v[i]);
    return w ? w[below(m, (int)vec_len(w))] : NULL;
}

/* A field of some instruction of a kind. */
static int set_arg(Mutant *m, const FuseSet *x, const char *kind,
                   const char *name)
{
    void **v = NULL, **all = instrs(m);
    for (size_t k = 0; k < vec_len(all); k++)
        if (!strcmp(instr_info(((Instr *)all[k])->kind)->name, kind))
            vec_push(m->arena, v, all[k]);
    Instr *s = v ? v[below(m, (int)vec_len(v))] : NULL;
    if (!s)
        return 0;
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++) {
        char *at = (char *)&s->none + f->at;
        if (strcmp(f->name, name) != 0)
            continue;
        if (f->type == FIELDint)
            *(int64_t *)at = given(x, *(int64_t *)at);
        else if (f->type == FIELDlist && ((GapList *)at)->n)
            ((GapList *)at)->at->from = given(x, ((GapList *)at)->at->from);
        else if (f->type != FIELDlist)
            *(int *)at = (int)given(x, *(int *)at);
        return f->type != FIELDlist || ((GapList *)at)->n;
    }
    return 0;
}

static int set_field(Mutant *m, const Member *f, const FuseSet *x)
{
    char *at = some(m, f, x);
    if (!at)
        return 0;
    at += f->at;
    switch (f->type) {
    case I64: *(int64_t *)at = given(x, *(int64_t *)at); break;
    case NAME: *(const char **)at = intern(x->to); break;
    case AFFINE:
        ((RankAffine *)at)->k[atoi(x->name)] = strtoll(x->to, NULL, 10);
        break;
    case RANKS: return 0;
    default: *(int *)at = (int)given(x, *(int *)at); break;
    }
    return 1;
}

static int set_one(Mutant *m, const char *text)
{
    FuseSet x = { .sign = 0 };
    char kind[16], arg[16];
    if (sscanf(text, " %31[^=+@] @ %31s %c %31[^;]", x.what, x.name, &x.sign,
               x.to) != 4) {
        *x.name = 0;
        if (sscanf(text, " %31[^=+] %c %31[^;]", x.what, &x.sign, x.to) != 3)
            return 0;
    }
    x.what[strlen(x.what) - 1] = 0;
    for (int i = 0; i < NFIELD; i++)
        if (!strcmp(strf(m->arena, "%s%s%s", fields[i].record,
                         *fields[i].name ? " " : "", fields[i].name),
                    x.what))
            return set_field(m, &fields[i], &x);
    return sscanf(x.what, "%15s %15s", kind, arg) == 2 &&
           set_arg(m, &x, kind, arg);
}

int mutant_set(Mutant *m, const char *what)
{
    int n = 0;
    for (const char *s = what; s; s = strchr(s, ';')) {
        s += *s == ';';
        if (!set_one(m, s))
            return 0;
        n++;
    }
    mutant_sign(m);
    return n;
}
