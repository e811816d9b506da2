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
static Table *last_uses(const ProgramBuilder *builder)
{
    Table *t = table_new(builder->arena);

    for (size_t i = 0; i < vec_len(builder->group); i++)
        for (int j = 0; j < builder->group[i]->narg; j++)
            if (builder->group[i]->arg[j])
                *table_at(t, KEYP(storage(builder->group[i]->arg[j]))) =
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

static int joins(const Graph *g, const Group *group, size_t instr,
                 const Table *last)
{
    const Node *n = group->node[0];

    if (group->n != 1 || n->op != Opack || group->instr.kind != Ikernel ||
        n->nin < 1 || local_n(g, n, n->nd - 1) != n->dim[n->nd - 1].n)
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

static void join(const Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0], **arg = NULL;
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
    group->instr.kind = Ijoin;
    group->instr.kernel = NULL;
    group->instr.flops = 0;
    group->instr.bytes = (double)gaps;
    group->instr.word = NULL;
    group->instr.nword = 0;
    group->instr.join = (JoinArgs){ n->dt, { (int)vec_len(gap), gap } };
    group->arg = arg;
    group->narg = (int)vec_len(arg);
    group->text = NULL;
    group->scratch = group->ninplace = 0;
}

void make_joins(ProgramBuilder *builder)
{
    Table *last = last_uses(builder);

    for (size_t i = 0; i < vec_len(builder->group); i++)
        if (builder->group[i]->n &&
            joins(builder->graph, builder->group[i], i, last))
            join(builder->graph, builder->group[i], builder->arena);
}
