/* signatures.c: what a kernel declares (instruction.h), from its group, whoever
 * wrote its text: how it uses its operands, how they lie, and a hash of what it
 * computes of them.
 *
 *     %s = sum(%x * %x, hidden)        x operand 0, s operand 1
 *     ->   loop; 0: operand 0 of axes 0 1; 1: mul 0 0 of axes 0 1;
 *          2: sum 1 over 1, of axis 0; operand 1 is 2
 *
 * Nodes and axes count as they come, so that layers, and models that differ in
 * names alone, have the same hash. Sizes are those of operands; keys of random
 * numbers are words. */
#include "emit.h"

/* ---- what is computed ---------------------------------------------------- */

typedef struct ExpressionHash {
    const Group *k;
    Table *node, *axis; /* -> 1 + number */
    uint64_t nodes, axes, h;
} ExpressionHash;

static void add(ExpressionHash *hash, uint64_t v)
{
    hash->h = mix64(hash->h, v);
}

/* A word of a table, whose rows may get other numbers. */
static void add_name(ExpressionHash *hash, const char *s)
{
    for (; *s; s++)
        add(hash, (unsigned char)*s);
}

static uint64_t axis_number(ExpressionHash *hash, const Axis *a)
{
    void **at = table_at(hash->axis, KEYP(a));

    if (!*at)
        *at = (void *)(uintptr_t)++hash->axes;
    return (uint64_t)(uintptr_t)*at;
}

/* A rename is of pairs, and what is summed over axes, in no order; others are
 * lists. */
static void add_axes(ExpressionHash *hash, const Node *n, Axes v)
{
    int any =
        optab[n->op].cls == RED || optab[n->op].cls == EIN || n->op == Orename;
    uint64_t all = (uint64_t)v.n;

    for (int d = 0; d < v.n; d++) {
        uint64_t a = axis_number(hash, v.v[d]);
        if (n->op == Orename)
            a = mix64(a, axis_number(hash, n->at.rename.to.v[d]));
        all = any ? all + mix64(1, a) : mix64(all, a);
    }
    add(hash, all);
}

static void add_attrs(ExpressionHash *hash, const Node *n)
{
    Node plain = { .op = n->op, .at = n->at };

    if (n->op == Orandom)
        plain.at.random.key = 0;
    if (n->op == Odropout)
        plain.at.dropout.key = 0;
    if (n->op == Odither)
        plain.at.dither.key = 0;
    for (int i = 0; i < optab[n->op].nattr; i++) {
        const AttrInfo *info = &optab[n->op].attr[i];
        uint64_t bits = 0;
        if (info->type == ATint || info->type == ATreal)
            memcpy(&bits, attr_at(&plain, info), sizeof bits);
        else if (info->type == ATaxis || info->type == ATaxes)
            add_axes(hash, n, attr_axes(n, info));
        else if (info->type != ATstr) /* a name */
            bits = *(const unsigned *)attr_at(n, info);
        add(hash, bits);
    }
}

/* The operand that n lies in; -1: none. */
static int operand_of(const Group *group, const Node *n)
{
    const Node *stored = storage((Node *)(uintptr_t)n);

    for (int i = 0; i < group->narg; i++)
        if (group->arg[i] && storage(group->arg[i]) == stored)
            return i;
    return -1;
}

static int is_read(const Group *group, const Node *n)
{
    for (int i = 0; i < group->nin; i++)
        if (group->in[i] == n)
            return 1;
    return 0;
}

/* An accumulator that the kernel clears: what is added to it is not its own. */
static int is_cleared(const Group *group, const Node *n)
{
    for (int i = 0; i < group->n; i++)
        if (group->node[i] == n)
            return 0;
    return n->op == Oaccum;
}

/* Numbers n behind what it is computed of. */
static uint64_t visit(ExpressionHash *hash, const Node *n)
{
    uint64_t of[MAXIN + 1] = { 0 };

    if (!n || table_get(hash->node, KEYP(n)))
        return n ? (uint64_t)(uintptr_t)table_get(hash->node, KEYP(n)) : 0;
    int leaf = is_read(hash->k, n) || is_cleared(hash->k, n);
    int count = leaf ? 0 : n->nin;
    for (int i = 0; i < count; i++)
        of[i] = visit(hash, n->in[i]);
    of[count] = visit(hash, n->map);
    for (size_t i = 0; n->body && i < vec_len(n->body->node); i++)
        visit(hash, n->body->node[i]);
    add_name(hash, leaf ? "" : optab[n->op].name);
    add(hash, leaf ? (uint64_t)operand_of(hash->k, n) : 0);
    add_name(hash, dtypes[n->dt].name);
    for (int d = 0; d < n->nd; d++)
        add(hash, axis_number(hash, n->dim[d].a));
    for (int i = 0; i <= count; i++)
        add(hash, of[i]);
    if (!leaf)
        add_attrs(hash, n);
    *table_at(hash->node, KEYP(n)) = (void *)(uintptr_t)++hash->nodes;
    return hash->nodes;
}

static uint64_t expression_hash(const Group *group)
{
    if (group->expr && *group->expr)
        return *group->expr;
    Arena *scratch = arena_new();
    ExpressionHash x = { .k = group,
                         .node = table_new(scratch),
                         .axis = table_new(scratch) };

    add_name(&x, families[group->fam]);
    for (int i = 0; i < group->n; i++)
        visit(&x, group->node[i]);
    for (int i = 0; i < group->nout; i++) {
        add(&x, visit(&x, group->out[i]));
        add(&x, (uint64_t)operand_of(group, group->out[i]));
    }
    arena_free(scratch);
    if (group->expr)
        *group->expr = x.h;
    return x.h;
}

/* ---- operands ------------------------------------------------------------ */

/* What group does to n, whose buffer is its own. */
static char use_of(const Group *group, const Node *n)
{
    const Node *made = made_in(group, n);
    int reads = !made || (accumulates(group, made) && !group->stores);

    for (int i = 0; i < group->nin; i++)
        reads |= storage(group->in[i]) == n;
    return !made ? 'r' : reads ? 'b' : 'w';
}

static KernelOperand operand(Arena *a, const Graph *g, const Node *n)
{
    int map = n->op == Oroute;
    int64_t *v = alloc(a, sizeof *v * (size_t)(n->nd + 1));

    for (int d = 0; d < n->nd; d++)
        v[d] = local_n(g, n, d);
    if (map)
        v[0] = local_elems(g, n);
    return (KernelOperand){ n->dt, map ? 1 : n->nd, v, 0 };
}

/* 1 + the operand of group that says where rows of n begin in their stack. */
static int base_of(const Group *group, const Node *n)
{
    return n->stash ? 1 + operand_of(group, n->map) : 0;
}

static void declare_operands(ProgramBuilder *builder, const Group *group,
                             const Instr *instr, KernelSignature *signature)
{
    char *use = alloc(builder->arena, (size_t)instr->nbuf + 1);

    signature->use = use;
    signature->op = alloc(builder->arena,
                          sizeof *signature->op * (size_t)(instr->nbuf + 1));
    for (int i = 0; i < instr->nbuf; i++) {
        const Node *n =
            i < group->narg && group->arg[i] ? storage(group->arg[i]) : NULL;
        use[i] = instr->buf[i] < 0 ? '-' : n ? use_of(group, n) : 'w';
        if (n && instr->buf[i] >= 0) {
            signature->op[i] = operand(builder->arena, builder->graph, n);
            signature->op[i].base = base_of(group, n);
        } else if (instr->buf[i] >= 0)
            signature->op[i] = (KernelOperand){ Du8, 1, &group->scratch, 0 };
    }
}

/* ---- a call -------------------------------------------------------------- */

struct Signatures {
    KernelSignature *all; /* vec */
    Table *at;            /* hash -> 1 + number */
};

Signatures *signatures_new(Arena *a)
{
    Signatures *x = alloc(a, sizeof *x);

    x->at = table_new(a);
    return x;
}

void signatures_give(const Signatures *signatures, Plan *p)
{
    p->nsig = (int)vec_len(signatures->all);
    p->sig = signatures->all;
}

static void set_call(Instr *instr, int64_t sig, uint64_t hash)
{
    if (instr->kind == Ikernel) {
        instr->call = (KernelArgs){ sig, hash };
    } else {
        instr->rows.sig = sig;
        instr->rows.hash = hash;
    }
}

void sign_call(ProgramBuilder *builder, const Group *group, Instr *instr)
{
    Signatures *signatures = builder->sigs;
    KernelSignature d = { .kernel = instr->kernel,
                          .launch = instr->launch,
                          .nword = instr->nword,
                          .word = instr->word };

    d.expr = expression_hash(group);
    if (moves_rows(instr->kind))
        declare_rows(builder->arena, instr,
                     mesh_extent(builder->graph->mesh, instr->atoms), &d);
    else
        declare_operands(builder, group, instr, &d);
    set_signature_hash(&d);
    void **at = table_at(signatures->at, d.hash);
    if (!*at) {
        vec_push(builder->arena, signatures->all, d);
        *at = (void *)(uintptr_t)vec_len(signatures->all);
    }
    set_call(instr, (int64_t)(uintptr_t)*at - 1, d.hash);
    bind_signature(builder->arena, &d, instr);
}
