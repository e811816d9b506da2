/* grad_buckets.c: gradients are summed where their bucket is. A bucket's
 * members begin at multiples of PACKALIGN, so that each accumulator can be a
 * part of the bucket's buffer and packing them is no copy:
 *
 *     %a = accum ..    %b = accum ..    %g = pack %a %b
 *
 *     bucket   |..........................|    one buffer, from the first birth
 *     %a %b    [ a      ][ b        ]          until the instruction `join`
 *     %g       [ a      ][ b        ][ 0 ]     from there: gaps are cleared
 *
 * A bucket with a member that comes from elsewhere (summed over other ranks
 * first, read later than the bucket is made) is packed by its kernel. */
#include "emit.h"

/* Stored value -> 1 + the last instruction that names it. */
static Table *last_uses(const ProgramBuilder *m)
{
    Table *t = table_new(m->arena);

    for (size_t i = 0; i < vec_len(m->group); i++)
        for (int j = 0; j < m->group[i]->narg; j++)
            if (m->group[i]->arg[j])
                *table_at(t, KEYP(storage(m->group[i]->arg[j]))) =
                    (void *)(uintptr_t)(i + 1);
    return t;
}

/* Does x lie as its part of the bucket does, its axes in this order? */
static int lies_so(const Node *x, const Node *pack, Axis *const *order)
{
    if (storage((Node *)(uintptr_t)x)->op != Oaccum || x->op != Oaccum ||
        x->dt != pack->dt)
        return 0;
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != order[d])
            return 0;
    return 1;
}

static int joins(const Graph *g, const Group *k, size_t instr,
                 const Table *last)
{
    const Node *n = k->node[0];

    if (k->n != 1 || n->op != Opack || k->instr.kind != Ikernel || n->nin < 1 ||
        local_n(g, n, n->nd - 1) != n->dim[n->nd - 1].n)
        return 0;
    Axis *const *order = n->at.pack.order.v;
    for (int i = 0; i < n->nin; i++) {
        const Node *x = n->in[i];
        if (!lies_so(x, n, order) ||
            (uintptr_t)table_get(last, KEYP(storage(n->in[i]))) != instr + 1)
            return 0;
        for (int j = 0; j < i; j++)
            if (n->in[j] == x)
                return 0;
        order += x->nd;
    }
    return 1;
}

static void add_gap(Arena *a, Gap **v, int64_t from, int64_t to)
{
    if (to != from)
        vec_push(a, *v, ((Gap){ from, to - from }));
}

static void join(const Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], **arg = NULL;
    Gap *gap = NULL;
    int64_t end = 0, gaps = local_bytes(g, n);

    vec_push(a, arg, n);
    for (int i = 0; i < n->nin; i++) {
        add_gap(a, &gap, end, join_at(n, i));
        end = join_at(n, i) + local_bytes(g, n->in[i]);
        gaps -= local_bytes(g, n->in[i]);
        vec_push(a, arg, n->in[i]);
    }
    add_gap(a, &gap, end, local_bytes(g, n));
    k->instr.kind = Ijoin;
    k->instr.kernel = NULL;
    k->instr.flops = 0;
    k->instr.bytes = (double)gaps;
    k->instr.word = NULL;
    k->instr.nword = 0;
    k->instr.join = (JoinArgs){ n->dt, { (int)vec_len(gap), gap } };
    k->arg = arg;
    k->narg = (int)vec_len(arg);
    k->text = NULL;
    k->scratch = k->ninplace = 0;
}

void make_joins(ProgramBuilder *m)
{
    Table *last = last_uses(m);

    for (size_t i = 0; i < vec_len(m->group); i++)
        if (m->group[i]->n && joins(m->graph, m->group[i], i, last))
            join(m->graph, m->group[i], m->arena);
}
