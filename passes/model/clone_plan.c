/* clone_plan.c: which experts have clones on other ranks, and how many of their
 * rows these take. Of n[expert], the rows that a micro-batch has for each:
 *
 *     mean          rows of all over the ranks
 *     spill[expert] what a rank has over the mean, of its hottest experts first
 *     spare[rank]   what a rank has below the mean, at most CLONEROOM of it
 *
 * Spills and spares, the largest of each first, are laid side by side on a
 * line. Where those of an expert and of a rank lie above each other is what a
 * clone there would take; each rank has clones of the experts that give it
 * most, as many as it has slots, none for less than CLONELEAST of the mean. So
 * all is found at once, by sums over what is larger, and equal counts give
 * equal plans: of equals the one with the lower number is first. */
#include "model.h"

/* ---- building ------------------------------------------------------------ */

static Node *total(Cursor b, Node *x, Axis *axis)
{
    return b_red(b, Osum, x, &axis, 1);
}

/* The first place of the rank that has place x of experts. */
static Node *first_place(const CloneSite *site, Node *x)
{
    Node *each = b_const(site->b, Di32, (double)site->each);

    return b_op2(site->b, Osub, x, b_op2(site->b, Omod, x, each));
}

/* Of the rank of each expert along axis. */
static Node *rank_of(const CloneSite *site, Axis *axis)
{
    Node *place =
        g_to_padded(site->b.g, site->map->at.route.axis, b_iota(site->b, axis));

    return first_place(site, place);
}

/* ---- sums over what is larger -------------------------------------------- */

/* [a b]: does the one along b stand before that along a, the larger first? x
 * [a] as y [b]. */
static Node *before(const CloneSite *site, Node *x, Axis *a, Node *y, Axis *b)
{
    Node *self = b_iota(site->b, a);
    Node *lower = b_op2(site->b, Olt, b_iota(site->b, b), self);
    Node *equal = b_op2(site->b, Oland, b_op2(site->b, Oeq, y, x), lower);

    return b_op2(site->b, Olor, b_op2(site->b, Ogt, y, x), equal);
}

/* x [a]: the sum of those that stand before each, along b; of: null, or only of
 * those. */
static Node *sum_before(const CloneSite *site, Node *x, Axis *a, Axis *b,
                        Node *of)
{
    Node *y = b_rename(site->b, x, a, b);
    Node *is = before(site, x, a, y, b);

    is = of ? b_op2(site->b, Oland, is, of) : is;
    return total(site->b,
                 b_op3(site->b, Owhere, is, y, b_const(site->b, x->dt, 0)), b);
}

static Node *beyond(const CloneSite *site, Node *x, Node *mean)
{
    Node *zero = b_const(site->b, Df32, 0);

    return b_op2(site->b, Omaximum, b_op2(site->b, Osub, x, mean), zero);
}

/* ---- the plan ------------------------------------------------------------ */

/* i32 [expert]: choices of each, by all ranks in this micro-batch. */
static Node *count(const CloneSite *site)
{
    Node *e = site->map->in[0];
    Axis *axes[MAXD];

    for (int d = 0; d < e->nd; d++)
        axes[d] = e->dim[d].a;
    return b_red(site->b, Osum,
                 b_op2(site->b, Oeq, e, b_iota(site->b, site->expert)), axes,
                 e->nd);
}

/* f32 [expert]; n: counts. */
static Node *spill(const CloneSite *site, Node *n, Node *mean)
{
    Node *rank = rank_of(site, site->expert2);
    Node *same = b_op2(site->b, Oeq, rank_of(site, site->expert), rank);
    Node *m = b_rename(site->b, n, site->expert, site->expert2);
    Node *load = total(
        site->b, b_op3(site->b, Owhere, same, m, b_const(site->b, Df32, 0)),
        site->expert2);
    Node *up_to = b_op2(site->b, Osub, load,
                        sum_before(site, n, site->expert, site->expert2, same));

    Node *others = beyond(site, b_op2(site->b, Osub, up_to, n), mean);

    return b_op2(site->b, Osub, beyond(site, up_to, mean), others);
}

/* f32 [rank] */
static Node *spare(const CloneSite *site, Node *n, Node *mean)
{
    Node *each = b_const(site->b, Di32, (double)site->each);
    Node *first = b_op2(site->b, Omul, b_iota(site->b, site->rank), each);
    Node *its = b_op2(site->b, Oeq, first, rank_of(site, site->expert));
    Node *load = total(
        site->b, b_op3(site->b, Owhere, its, n, b_const(site->b, Df32, 0)),
        site->expert);
    Node *room = b_op2(site->b, Omul, mean, b_const(site->b, Df32, CLONEROOM));

    return b_op2(site->b, Ominimum, beyond(site, mean, load), room);
}

/* f32 [rank expert]: rows of the expert that a clone there would take. */
static Node *overlap(const CloneSite *site, Node *n, Node *mean)
{
    Node *out = spill(site, n, mean), *in = spare(site, n, mean);
    Node *from = sum_before(site, out, site->expert, site->expert2, NULL);
    Node *to = sum_before(site, in, site->rank, site->rank2, NULL);
    Node *last = b_op2(site->b, Oadd, from, out);
    Node *end = b_op2(site->b, Ominimum, b_op2(site->b, Oadd, to, in), last);
    Node *rows = b_op2(site->b, Osub, end, b_op2(site->b, Omaximum, to, from));
    Node *least =
        b_op2(site->b, Omul, mean, b_const(site->b, Df32, CLONELEAST));
    Node *some = b_op2(site->b, Ogt, rows, b_const(site->b, Df32, 0));
    Node *is = b_op2(site->b, Oland, b_op2(site->b, Oge, rows, least), some);

    return b_op3(site->b, Owhere, is, rows, b_const(site->b, Df32, 0));
}

static Node *by_slot(const CloneSite *site, Node *a)
{
    Axis *axes[2] = { site->rank, site->copy };
    Node *n = b_node(site->b, Omerge, 1, &a);

    n->at.merge.axes = g_axes(site->b.g, axes, 2);
    n->at.merge.new = site->clone;
    return infer(site->b.g, n);
}

/* Slots in which an expert's shares lie side by side, from 0 on. */
static Node *shares_before(const CloneSite *site, Node *expert, Node *share)
{
    Node *same =
        b_op2(site->b, Oeq,
              b_rename(site->b, expert, site->clone, site->clone2), expert);
    Node *self = b_iota(site->b, site->clone);
    Node *lower = b_op2(site->b, Olt, b_iota(site->b, site->clone2), self);
    Node *other = b_rename(site->b, share, site->clone, site->clone2);
    Node *zero = b_const(site->b, Di32, 0);
    Node *is = b_op2(site->b, Oland, same, lower);

    return total(site->b, b_op3(site->b, Owhere, is, other, zero),
                 site->clone2);
}

/* f32: rows of the rank that has most over an equal share of those of the step.
 * Of a choice without a row, -1, no rank is the one. */
Node *clone_load(const CloneSite *site, Node *slot)
{
    Node *e = site->map->in[0], *zero = b_const(site->b, Di32, 0);
    Node *rank = b_iota(site->b, site->rank), *copies, *load;
    Node *place = g_to_padded(site->b.g, site->map->at.route.axis, e);
    Axis *axes[MAXD];
    int n = 0;

    copies = b_const(site->b, Di32, (double)site->copy->n);
    Node *first =
        b_op2(site->b, Osub, slot, b_op2(site->b, Omod, slot, copies));
    Node *there =
        b_op2(site->b, Oeq, first, b_op2(site->b, Omul, rank, copies));
    Node *each = b_const(site->b, Di32, (double)site->each);
    Node *begin = b_op2(site->b, Omul, rank, each);
    Node *home = b_op2(site->b, Oeq, first_place(site, place), begin);
    home = b_op2(site->b, Oland, home, b_op2(site->b, Oge, e, zero));
    Node *is =
        b_op3(site->b, Owhere, b_op2(site->b, Oge, slot, zero), there, home);
    for (int d = 0; d < e->nd; d++)
        if (!g_ismicro(e->dim[d].a))
            axes[n++] = e->dim[d].a;
    load = b_red(site->b, Omean, b_cast(site->b, is, Df32), axes, n);
    load = b_op2(site->b, Odiv, load, total(site->b, load, site->rank));
    load = b_op2(site->b, Omul, load,
                 b_const(site->b, Df32, (double)site->rank->n));
    return b_red(site->b, Omax, load, (Axis *[]){ site->rank }, 1);
}

ClonePlan plan_clones(const CloneSite *site)
{
    Node *n = b_cast(site->b, count(site), Df32);
    Node *ranks = b_const(site->b, Df32, (double)site->rank->n);
    Node *mean = b_op2(site->b, Odiv, total(site->b, n, site->expert), ranks);
    Node *rows = overlap(site, n, mean);
    Node *best = b_node(site->b, Otopk, 1, &rows);

    best->at.topk.k = site->copy->n;
    best->at.topk.axis = site->expert;
    best->at.topk.new = site->copy;
    infer(site->b.g, best);
    Node *take = by_slot(site, b_gather(site->b, rows, best, site->expert));
    Node *is = b_op2(site->b, Ogt, take, b_const(site->b, Df32, 0));
    Node *none = b_const(site->b, Di32, -1);
    Node *e = b_op3(site->b, Owhere, is, by_slot(site, best), none);
    Node *one = b_const(site->b, Df32, 1);
    Node *of =
        b_op2(site->b, Omaximum, b_gather(site->b, n, e, site->expert), one);
    Node *shares = b_const(site->b, Df32, CLONESHARES);
    Node *share = b_op2(site->b, Omul, b_op2(site->b, Odiv, take, of), shares);
    ClonePlan p = { .expert = e };

    share = b_cast(site->b, share, Di32);
    p.from = shares_before(site, e, share);
    p.to = b_op2(site->b, Oadd, p.from, share);
    return p;
}

Node *clone_of(const CloneSite *site, const ClonePlan *plan, Node *token)
{
    Node *all = b_const(site->b, Di32, CLONESHARES);
    Node *mixed = b_const(site->b, Di32, 633); /* near all / 1.618, and odd */
    Node *e = site->map->in[0];
    Node *at = b_op2(site->b, Omul, b_op2(site->b, Omod, token, all), mixed);
    Axis *clone = site->clone;

    at = b_op2(site->b, Omod, at, all);
    Node *below = b_op2(site->b, Olt, at, plan->to);
    Node *is =
        b_op2(site->b, Oland, b_op2(site->b, Oge, at, plan->from), below);
    is = b_op2(site->b, Oland, b_op2(site->b, Oeq, e, plan->expert), is);
    Node *none = b_const(site->b, Di32, -1);
    Node *n = b_op3(site->b, Owhere, is, b_iota(site->b, clone), none);
    return b_red(site->b, Omax, n, &clone, 1);
}
