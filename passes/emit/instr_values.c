/* instr_values.c: each instruction of a plan says which values it reads from
 * its buffers and which it leaves there, from the groups and types of the graph
 * and not from where buffers lie. So a reader of the plan can prove that
 * memory, order, pipeline and collectives give every instruction what the graph
 * meant (ir/value_check.c).
 *
 *     %h = gemm dot reads %x %w        v 12,=5/3,>13:7+4,-   of shape 7,
 *     %s = allreduce %h                v 13,>14:7,-          partial over
 *                                                            atoms 4
 *
 * An accumulator is two values: cleared, and with what was added; where several
 * instructions add to it in turn (accumulate.c), one more for each. */
#include <string.h>

#include "emit.h"

static const Node *value(const Node *n)
{
    while (is_view(n))
        n = n->in[0];
    return n;
}

static int number(ProgramBuilder *m, const Node *n, int cleared)
{
    void **at = table_at(m->value, KEYP(n) + (uint64_t)cleared);

    if (!*at) {
        *at = (void *)(uintptr_t)++m->nvalue;
        vec_push(m->arena, m->shape,
                 shape_index(m->shapes, m->graph,
                             n->op == Owrite ? storage((Node *)n) : n));
    }
    return (int)(uintptr_t)*at;
}

static void type_of(const ProgramBuilder *m, const Node *n, ValueUse *f)
{
    for (int t = 0; m->graph->mesh && t < m->graph->mesh->natom; t++)
        if (n->sh[t].k == P)
            f->part[n->sh[t].op] |= 1u << t;
}

/* How k reads what is in its i-th buffer, where that is not as it was made. */
static int read_as(ProgramBuilder *m, const Group *k, int i, const ValueUse *f)
{
    const Node *n = storage(k->arg[i]), *v = k->view ? k->view[i] : NULL;

    if (f->read < 0)
        return shape_index(m->shapes, m->graph, v ? v : n);
    return v && f->read && is_view(v) ? shape_index(m->shapes, m->graph, v)
                                      : -1;
}

/* n: whose buffer it is. A state's holds what it began with, or its write. */
static int reads(ProgramBuilder *m, const Group *k, const Node *n)
{
    for (int i = 0; i < k->nin; i++) {
        const Node *v = value(k->in[i]);
        if (storage((Node *)v) == n)
            return is_persistent(v) && v->op != Oresult ? ~v->buf
                                                        : number(m, v, 0);
    }
    return 0;
}

const Node *made_in(const Group *k, const Node *n)
{
    for (int i = 0; i < k->nout; i++)
        if (storage(k->out[i]) == n)
            return value(k->out[i]);
    return NULL;
}

int accumulates(const Group *k, const Node *n)
{
    if (n->op != Oaccum || n->at.accum.op == Rlast)
        return 0;
    for (int i = 0; i < k->n; i++)
        if (k->node[i] == n)
            return 1;
    return 0;
}

static void makes(ProgramBuilder *m, const Group *k, const Node *n, ValueUse *f)
{
    const Node *v = made_in(k, n);

    if (!v)
        return;
    int sums = v->op == Oaccum && v->at.accum.op != Rlast;
    int adds = sums && k->fam != FAMzero && accumulates(k, v);
    type_of(m, v, f);
    f->make = number(m, v, sums && !adds);
    f->shape = m->shape[f->make - 1];
    if (adds && !k->stores)
        f->read = v->nin > 1 ? number(m, value(v->in[1]), 0) : number(m, v, 1);
}

/* Which integers of a kernel its operands explain. */
static void mark(ProgramBuilder *m, Instr *s)
{
    const ValueShape *all = shapes_all(m->shapes);
    size_t n = (size_t)s->nbuf + 1;
    const ValueShape **in = alloc(m->arena, n * sizeof *in);
    const ValueShape **out = alloc(m->arena, n * sizeof *out);

    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *f = &s->flow[i];
        if (f->read)
            in[i] = &all[f->as >= 0 ? f->as : m->shape[f->read - 1]];
        if (f->make)
            out[i] = &all[f->shape];
    }
    mark_places(m->arena, m->graph->mesh, s, in, out);
}

/* Atoms over which n sums a part of an axis. */
static uint32_t summed(const ProgramBuilder *m, const Node *n)
{
    OpClass c = optab[n->op].cls;
    uint32_t atoms = 0;

    if (c != RED && c != EIN && n->op != Ogather)
        return 0;
    for (int t = 0; t < m->graph->mesh->natom; t++)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->sh[t].k == S && attrs_name(n, n->in[i]->sh[t].a))
                atoms |= 1u << t;
    return atoms;
}

/* How s reads what is in its i-th buffer, if it does. */
static const ValueShape *read_shape(const ProgramBuilder *m, const Instr *s,
                                    int i)
{
    const ValueUse *f = &s->flow[i];

    return &shapes_all(m->shapes)[f->as >= 0 ? f->as : m->shape[f->read - 1]];
}

static uint32_t cut_operands(const ProgramBuilder *m, const Instr *s)
{
    uint32_t cut = 0;

    for (int i = 0; i < s->nbuf; i++)
        cut |= s->flow[i].read ? shape_cut(read_shape(m, s, i)) : 0;
    return cut;
}

/* Those of them that no operand is cut over, of what s makes terms of. */
static uint32_t inner_atoms(const ProgramBuilder *m, const Group *k,
                            const Instr *s)
{
    uint32_t atoms = 0, terms = 0;

    for (int i = 0; i < k->n; i++)
        atoms |= summed(m, k->node[i]);
    for (int i = 0; i < s->nbuf; i++) {
        const ValueUse *f = &s->flow[i];
        terms |= f->part[0] | f->part[1] | f->part[2];
    }
    return atoms & terms & ~cut_operands(m, s);
}

/* ---- repetitions --------------------------------------------------------- */

static int is_in(Node *const *v, int count, const Node *n)
{
    while (count-- > 0 && v[count] != n)
        ;
    return count;
}

/* Is n, a member of k or what one reads, the same all along a? Broadcasts that
 * are not in memory are no members. */
static int is_even(const Group *k, const char *even, const Node *n,
                   const Axis *a)
{
    int at;

    while (n->op == Obroadcast && dim_of(n, a) >= 0 &&
           is_in(k->in, k->nin, n) < 0)
        n = n->in[0];
    at = is_in(k->node, k->n, n);
    return dim_of(n, a) < 0 || (at >= 0 && even[at]);
}

/* Which of k's nodes are the same all along a: a broadcast of the group's own
 * gave them the axis, and nothing that k reads leads there with it. */
static char *even_along(const ProgramBuilder *m, const Group *k, const Axis *a)
{
    char *even = alloc(m->arena, (size_t)k->n + 1);

    for (int i = 0; i < k->n; i++) {
        const Node *n = k->node[i];
        OpClass c = optab[n->op].cls;
        even[i] = (c == EW && n->op != Odropout) || c == RED;
        for (int j = 0; j < n->nin; j++)
            even[i] = even[i] && is_even(k, even, n->in[j], a);
    }
    return even;
}

static int reads_axis(const ProgramBuilder *m, const Instr *s, const char *name)
{
    for (int i = 0; i < s->nbuf; i++)
        if (s->flow[i].read && shape_dim(read_shape(m, s, i), name) >= 0)
            return 1;
    return 0;
}

/* Atoms that cut no operand and over which the parts that s makes of an axis
 * are all the same. It need be said only where an operand has that name too. */
static uint32_t spread_atoms(const ProgramBuilder *m, const Group *k,
                             const Instr *s)
{
    uint32_t even = 0, parts = cut_operands(m, s);

    for (int i = 0; i < s->nbuf && i < k->narg; i++) {
        const Node *v = s->flow[i].make ? made_in(k, storage(k->arg[i])) : NULL;
        for (int t = 0; v && t < m->graph->mesh->natom; t++) {
            const Axis *a = v->sh[t].k == S ? v->sh[t].a : NULL;
            if (parts >> t & 1 || !a || !reads_axis(m, s, a->name))
                continue;
            if (dim_of(v, a) >= 0 && is_even(k, even_along(m, k, a), v, a))
                even |= 1u << t;
            else
                parts |= 1u << t;
        }
    }
    return even & ~parts;
}

/* ---- an instruction ------------------------------------------------------ */

void flow_instr(ProgramBuilder *m, const Group *k, Instr *s)
{
    if (!m->value)
        m->value = table_new(m->arena);
    s->flow = alloc(m->arena, sizeof *s->flow * (size_t)(s->nbuf + 1));
    for (int i = 0; i < s->nbuf; i++)
        s->flow[i] = (ValueUse){ .as = -1, .shape = -1 };
    for (int i = 0; i < s->nbuf && i < k->narg; i++) {
        const Node *n = k->arg[i] ? storage(k->arg[i]) : NULL;
        if (!n)
            continue;
        ValueUse *f = &s->flow[i];
        f->read = reads(m, k, n);
        makes(m, k, n, f);
        if (!f->read && !f->make) /* a row map read for its extents only */
            f->read = is_persistent(n) ? ~n->buf : number(m, n, 0);
        f->as = read_as(m, k, i, f);
    }
    if (m->graph->mesh)
        s->inner = inner_atoms(m, k, s);
    if (s->kind != Ikernel || !m->graph->mesh)
        return;
    s->spread = spread_atoms(m, k, s);
    mark(m, s);
}

/* A buffer that two nodes speak of has one entry; an output that is an input
 * needs none. */
static void add_end(ProgramBuilder *m, Program *p, Table *seen, int buf,
                    const Node *n)
{
    void **at = table_at(seen, (uint64_t)buf + 1);
    int lasting = is_persistent(n) && n->op != Oresult;

    if (*at || lasting)
        return;
    *at = p;
    int v = number(m, n, 0);
    vec_push(m->arena, p->end, ((FinalValue){ buf, v }));
    p->nend = (int)vec_len(p->end);
}

void flow_ends(ProgramBuilder *m, Program *p)
{
    const Graph *g = m->graph;
    Table *seen = table_new(m->arena);

    if (!m->value)
        m->value = table_new(m->arena);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == Owrite || n->op == Oresult)
            add_end(m, p, seen, storage(n)->buf, n);
        if (n->op != Ooutput)
            continue;
        add_end(m, p, seen, storage(n->in[0])->buf, value(n->in[0]));
        shape_index(m->shapes, g, n->in[0]); /* the plan has it */
    }
}
