/* join_rounding.c: quantizes a value in blocks (quantize_blocks) in the kernel
 * that computes it, if that is a map over the same elements: the update of a
 * weight stored in FP8, the activation of experts' rows.
 *
 *     %w = loop ..                    one kernel, which stores %q %s, and %w
 *     %b = quantize_blocks %w   =>    only if it has other readers
 *     %q = part %b 0
 *     %s = part %b 1
 *
 * Two such values of experts' rows are quantized by one kernel, which also sums
 * their blocks' columns (rounded_sums.c). This saves memory traffic; the values
 * are equal, since %w is rounded to its dtype in either kernel. */
#include "kernels.h"

/* Have n and x the same elements in the same order? */
static int lies_alike(Fuse *fuse, const Node *n, const Node *x)
{
    const AxisSet *p = axes_here(fuse, n), *q = axes_here(fuse, x);

    if (p->n != q->n ||
        local_elems(fuse->graph, n) != local_elems(fuse->graph, x))
        return 0;
    for (int i = 0; i < p->n; i++)
        if (p->a[i] != q->a[i])
            return 0;
    return 1;
}

/* Can a map compute the parts that are read: weights in their own layout, rows
 * at least in columns? */
static int makes_parts(const Fuse *fuse, const Node *n)
{
    int columns = 0;

    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++)
        columns |= fuse->user[n->id][i]->at.part.index > 1;
    return columns == (n->nin > 1);
}

static int rounds_rows(const Node *n)
{
    return n->op == Oquantize_blocks && n->nin > 1;
}

/* Can the unit quantize n beside the values that it already quantizes? */
static int has_room(const FuseUnit *unit, const Node *n)
{
    int others = 0;

    for (size_t i = 0; i < vec_len(unit->node); i++)
        others += unit->node[i] != n && unit->node[i]->op == Oquantize_blocks;
    return others < (rounds_rows(n) ? MOSTROUNDED : 1);
}

/* Can member m of the unit be in the kernel that quantizes x as n does? */
static int fits(FuseSet *s, const Node *m, const Node *n)
{
    const Node *x = n->in[0];

    if (m->host || m->again < n->again)
        return 0;
    if (m->op == Oquantize_blocks)
        return rounds_rows(m) && m->in[1] == n->in[1] &&
               lies_alike(s->fuse, m->in[0], x);
    if (is_reduction(m))
        return rounds_rows(n) && is_sum_of_blocks(m, x);
    if (optab[m->op].cls == SINK && m->op != Owrite)
        return 0;
    return !is_stored(s, m) || lies_alike(s->fuse, layout_of(m), x);
}

int may_round(Fuse *fuse, FuseUnit *unit, const Node *n)
{
    FuseSet s = { .fuse = fuse, .stamp = ++fuse->stamp, .node = unit->node };
    const Target *target = fuse->target;
    Node *x = n->in[0];

    if (!target->rounds || unit_of(fuse, x) != unit ||
        !target->rounds(fuse->graph, n) || !makes_parts(fuse, n) ||
        (n->nin > 1 && x->map != n->in[1]) || !has_room(unit, n))
        return 0;
    unit->seen = s.stamp;
    for (size_t i = 0; i < vec_len(unit->node); i++) {
        const Node *m = unit->node[i];
        if (m == n || (m->op == Owrite && made_by(m->in[1]) == n))
            continue;
        if (!fits(&s, m, n))
            return 0;
    }
    return 1;
}

static int is_read_elsewhere(const Fuse *fuse, const Node *x)
{
    return vec_len(fuse->user[x->id]) > 1;
}

/* Explains the gain (-d why): a read, and a write if x has no other readers. */
static void say(const Fuse *fuse, const Node *n)
{
    const Node *x = n->in[0];
    double bytes = (double)local_bytes(fuse->graph, x) *
                   (is_read_elsewhere(fuse, x) ? 1 : 2);

    why(fuse->graph, x, "rounded to %s where it is made: saves %.1f us",
        n->at.quantize_blocks.layout == SCALEsquare ? "blocks of 128x128"
                                                    : "blocks of 128 rows",
        1e6 * bytes / machine_of(fuse->graph)->memory);
}

void join_rounding(Fuse *fuse)
{
    for (size_t i = 0; i < vec_len(fuse->all); i++) {
        FuseUnit *own = fuse->all[i];
        Node *n = own->node[0];
        FuseUnit *unit = own->fam == FAMblocks ? unit_of(fuse, n->in[0]) : NULL;
        if (!unit || (unit->fam != FAMloop && unit->fam != FAMblocks) ||
            unit == own || unit->reg != n->reg || unit->call != n->call ||
            vec_len(unit->node) >= MOSTNODES || !may_round(fuse, unit, n))
            continue;
        own->into = unit;
        unit->fam = FAMblocks;
        vec_push(fuse->arena, unit->node, n);
        unit->last = n->id > unit->last ? n->id : unit->last;
        say(fuse, n);
    }
}
