/* instr_values.c: each instruction of a plan says which values it reads from
 * its buffers and which it leaves there, from the groups and types of the graph
 * and not from where buffers lie. So a reader of the plan can prove that
 * memory, order, pipeline and collectives give every instruction what the graph
 * meant (ir/verify/value_check.c).
 *
 *     %h = gemm dot reads %x %w        v 12,=5/3,>13:7+4,-   of shape 7,
 *     %s = allreduce %h                v 13,>14:7,-          partial over
 *                                                            atoms 4
 *
 * An accumulator is two values: cleared, and with what was added; where several
 * instructions add to it in turn (accumulate.c), one more for each. One that is
 * not cleared (Instr.store_first) is read as the instruction itself leaves it.
 */
#include "emit.h"

static const Node *value(const Node *n)
{
    while (is_view(n))
        n = n->in[0];
    return n;
}

static int number(ProgramBuilder *builder, const Node *n, int cleared)
{
    void **at = table_at_pair(builder->value, KEYP(n), (uint64_t)cleared);

    if (!*at) {
        *at = (void *)(uintptr_t)++builder->nvalue;
        vec_push(builder->arena, builder->shape,
                 shape_index(builder->shapes, builder->graph,
                             n->op == Owrite ? storage((Node *)n) : n));
    }
    return (int)(uintptr_t)*at;
}

static void type_of(const ProgramBuilder *builder, const Node *n, ValueUse *use)
{
    for (int t = 0; builder->graph->mesh && t < builder->graph->mesh->natom;
         t++)
        if (n->sh[t].k == P)
            use->part[n->sh[t].op] |= 1u << t;
}

/* How group reads what is in its i-th buffer, where that is not as it was
 * made. */
static int read_as(ProgramBuilder *builder, const Group *group, int i,
                   const ValueUse *use)
{
    const Node *n = storage(group->arg[i]),
               *v = group->view ? group->view[i] : NULL;

    if (use->read < 0)
        return shape_index(builder->shapes, builder->graph, v ? v : n);
    return v && use->read && is_view(v)
               ? shape_index(builder->shapes, builder->graph, v)
               : -1;
}

/* n: whose buffer it is. A state's holds what it began with, or its write. */
static int reads(ProgramBuilder *builder, const Group *group, const Node *n)
{
    for (int i = 0; i < group->nin; i++) {
        const Node *v = value(group->in[i]);
        if (storage((Node *)v) == n)
            return is_persistent(v) && v->op != Oresult ? ~v->buf
                                                        : number(builder, v, 0);
    }
    return 0;
}

const Node *made_in(const Group *group, const Node *n)
{
    for (int i = 0; i < group->nout; i++)
        if (storage(group->out[i]) == n)
            return value(group->out[i]);
    return NULL;
}

static void makes(ProgramBuilder *builder, const Group *group, const Node *n,
                  ValueUse *use)
{
    const Node *v = made_in(group, n);

    if (!v)
        return;
    int sums = v->op == Oaccum && v->at.accum.op != Rlast;
    int adds = sums && group->fam != FAMzero && accumulates(group, v);
    type_of(builder, v, use);
    use->make = number(builder, v, sums && !adds);
    use->shape = builder->shape[use->make - 1];
    if (adds && !group->stores)
        use->read = v->nin > 1 ? number(builder, value(v->in[1]), 0)
                    : group->instr.store_first ? use->make
                                               : number(builder, v, 1);
}

/* Which integers of a kernel its operands explain. */
static void mark(ProgramBuilder *builder, Instr *instr)
{
    const ValueShape *all = shapes_all(builder->shapes);
    size_t n = (size_t)instr->nbuf + 1;
    const ValueShape **in = alloc(builder->arena, n * sizeof *in);
    const ValueShape **out = alloc(builder->arena, n * sizeof *out);

    for (int i = 0; i < instr->nbuf; i++) {
        const ValueUse *use = &instr->flow[i];
        if (use->read)
            in[i] =
                &all[use->as >= 0 ? use->as : builder->shape[use->read - 1]];
        if (use->make)
            out[i] = &all[use->shape];
    }
    mark_places(builder->arena, builder->graph->mesh, instr, in, out);
}

/* Atoms over which n sums a part of an axis. */
static uint32_t summed(const ProgramBuilder *builder, const Node *n)
{
    OpClass c = optab[n->op].cls;
    uint32_t atoms = 0;

    if (c != RED && c != EIN && n->op != Ogather)
        return 0;
    for (int t = 0; t < builder->graph->mesh->natom; t++)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->sh[t].k == S && attrs_name(n, n->in[i]->sh[t].a))
                atoms |= 1u << t;
    return atoms;
}

/* How instr reads what is in its i-th buffer, if it does. */
static const ValueShape *read_shape(const ProgramBuilder *builder,
                                    const Instr *instr, int i)
{
    const ValueUse *use = &instr->flow[i];

    return &shapes_all(
        builder
            ->shapes)[use->as >= 0 ? use->as : builder->shape[use->read - 1]];
}

static uint32_t cut_operands(const ProgramBuilder *builder, const Instr *instr)
{
    uint32_t cut = 0;

    for (int i = 0; i < instr->nbuf; i++)
        cut |=
            instr->flow[i].read ? shape_cut(read_shape(builder, instr, i)) : 0;
    return cut;
}

/* Those of them that no operand is cut over, of what instr makes terms of. */
static uint32_t inner_atoms(const ProgramBuilder *builder, const Group *group,
                            const Instr *instr)
{
    uint32_t atoms = 0, terms = 0;

    for (int i = 0; i < group->n; i++)
        atoms |= summed(builder, group->node[i]);
    for (int i = 0; i < instr->nbuf; i++) {
        const ValueUse *use = &instr->flow[i];
        terms |= use->part[0] | use->part[1] | use->part[2];
    }
    return atoms & terms & ~cut_operands(builder, instr);
}

/* ---- repetitions --------------------------------------------------------- */

static int is_in(Node *const *v, int count, const Node *n)
{
    while (count-- > 0 && v[count] != n)
        ;
    return count;
}

/* Is n, a member of group or what one reads, the same all along a? Broadcasts
 * that are not in memory are no members. */
static int is_even(const Group *group, const char *even, const Node *n,
                   const Axis *a)
{
    int at;

    while (n->op == Obroadcast && dim_of(n, a) >= 0 &&
           is_in(group->in, group->nin, n) < 0)
        n = n->in[0];
    at = is_in(group->node, group->n, n);
    return dim_of(n, a) < 0 || (at >= 0 && even[at]);
}

/* Which of group's nodes are the same all along a: a broadcast of the group's
 * own gave them the axis, and nothing that group reads leads there with it. */
static char *even_along(const ProgramBuilder *builder, const Group *group,
                        const Axis *a)
{
    char *even = alloc(builder->arena, (size_t)group->n + 1);

    for (int i = 0; i < group->n; i++) {
        const Node *n = group->node[i];
        OpClass c = optab[n->op].cls;
        even[i] =
            (c == EW && n->op != Odropout && n->op != Odither) || c == RED;
        for (int j = 0; j < n->nin; j++)
            even[i] = even[i] && is_even(group, even, n->in[j], a);
    }
    return even;
}

static int reads_axis(const ProgramBuilder *builder, const Instr *instr,
                      const char *name)
{
    for (int i = 0; i < instr->nbuf; i++)
        if (instr->flow[i].read &&
            shape_dim(read_shape(builder, instr, i), name) >= 0)
            return 1;
    return 0;
}

/* Atoms that cut no operand and over which the parts that instr makes of an
 * axis are all the same. It need be said only where an operand has that name
 * too. */
static uint32_t spread_atoms(const ProgramBuilder *builder, const Group *group,
                             const Instr *instr)
{
    uint32_t even = 0, parts = cut_operands(builder, instr);

    for (int i = 0; i < instr->nbuf && i < group->narg; i++) {
        const Node *v =
            instr->flow[i].make ? made_in(group, storage(group->arg[i])) : NULL;
        for (int t = 0; v && t < builder->graph->mesh->natom; t++) {
            const Axis *a = v->sh[t].k == S ? v->sh[t].a : NULL;
            if (parts >> t & 1 || !a || !reads_axis(builder, instr, a->name))
                continue;
            if (dim_of(v, a) >= 0 &&
                is_even(group, even_along(builder, group, a), v, a))
                even |= 1u << t;
            else
                parts |= 1u << t;
        }
    }
    return even & ~parts;
}

/* ---- an instruction ------------------------------------------------------ */

void flow_instr(ProgramBuilder *builder, const Group *group, Instr *instr)
{
    if (!builder->value)
        builder->value = table_new(builder->arena);
    instr->flow =
        alloc(builder->arena, sizeof *instr->flow * (size_t)(instr->nbuf + 1));
    for (int i = 0; i < instr->nbuf; i++)
        instr->flow[i] = (ValueUse){ .as = -1, .shape = -1 };
    for (int i = 0; i < instr->nbuf && i < group->narg; i++) {
        const Node *n = group->arg[i] ? storage(group->arg[i]) : NULL;
        if (!n)
            continue;
        ValueUse *use = &instr->flow[i];
        use->read = reads(builder, group, n);
        makes(builder, group, n, use);
        if (!use->read && !use->make) /* a row map read for its extents only */
            use->read = is_persistent(n) ? ~n->buf : number(builder, n, 0);
        use->as = read_as(builder, group, i, use);
    }
    if (builder->graph->mesh)
        instr->inner = inner_atoms(builder, group, instr);
    if (instr->kind != Ikernel || !builder->graph->mesh)
        return;
    instr->spread = spread_atoms(builder, group, instr);
    mark(builder, instr);
}

/* A buffer that two nodes speak of has one entry; an output that is an input
 * needs none. */
static void add_end(ProgramBuilder *builder, Program *program, Table *seen,
                    int buf, const Node *n)
{
    void **at = table_at(seen, (uint64_t)buf + 1);
    int lasting = is_persistent(n) && n->op != Oresult;

    if (*at || lasting)
        return;
    *at = program;
    int v = number(builder, n, 0);
    vec_push(builder->arena, program->end, ((FinalValue){ buf, v }));
    program->nend = (int)vec_len(program->end);
}

void flow_ends(ProgramBuilder *builder, Program *program)
{
    const Graph *g = builder->graph;
    Table *seen = table_new(builder->arena);

    if (!builder->value)
        builder->value = table_new(builder->arena);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == Owrite || n->op == Oresult)
            add_end(builder, program, seen, storage(n)->buf, n);
        if (n->op != Ooutput)
            continue;
        add_end(builder, program, seen, storage(n->in[0])->buf,
                value(n->in[0]));
        shape_index(builder->shapes, g, n->in[0]); /* the plan has it */
    }
}
