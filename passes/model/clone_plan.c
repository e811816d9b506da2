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

static Node *ew(const CloneSite *site, Op op, Node *a, Node *b)
{
    return g_ew(site->graph, op, site->map->loc, a, b, NULL);
}

static Node *where(const CloneSite *site, Node *is, Node *a, Node *b)
{
    return g_ew(site->graph, Owhere, site->map->loc, is, a, b);
}

static Node *number(const CloneSite *site, Dtype dt, double v)
{
    return g_const(site->graph, site->map->loc, dt, v);
}

static Node *total(const CloneSite *site, Node *a, Axis *axis)
{
    return g_red(site->graph, Osum, a, &axis, 1);
}

static Node *iota(const CloneSite *site, Axis *axis)
{
    return g_iota(site->graph, axis, site->map);
}

static Node *renamed(const CloneSite *site, Node *a, Axis *from, Axis *to)
{
    Node *n = g_node(site->graph, Orename, site->map->loc, 1, &a);

    n->at.rename.from = g_axes(site->graph, &from, 1);
    n->at.rename.to = g_axes(site->graph, &to, 1);
    return infer(site->graph, n);
}

static Node *gathered(const CloneSite *site, Node *a, Node *e, Axis *axis)
{
    Node *in[2] = { a, e };
    Node *n = g_node(site->graph, Ogather, site->map->loc, 2, in);

    n->at.gather.axis = axis;
    return infer(site->graph, n);
}

/* The first place of the rank that has place x of experts. */
static Node *first_place(const CloneSite *site, Node *x)
{
    Node *each = number(site, Di32, (double)site->each);

    return ew(site, Osub, x, ew(site, Omod, x, each));
}

/* Of the rank of each expert along axis. */
static Node *rank_of(const CloneSite *site, Axis *axis)
{
    Node *place =
        g_to_padded(site->graph, site->map->at.route.axis, iota(site, axis));

    return first_place(site, place);
}

/* ---- sums over what is larger -------------------------------------------- */

/* [a b]: does the one along b stand before that along a, the larger first? x
 * [a] as y [b]. */
static Node *before(const CloneSite *site, Node *x, Axis *a, Node *y, Axis *b)
{
    Node *lower = ew(site, Olt, iota(site, b), iota(site, a));
    Node *equal = ew(site, Oland, ew(site, Oeq, y, x), lower);

    return ew(site, Olor, ew(site, Ogt, y, x), equal);
}

/* x [a]: the sum of those that stand before each, along b; of: null, or only of
 * those. */
static Node *sum_before(const CloneSite *site, Node *x, Axis *a, Axis *b,
                        Node *of)
{
    Node *y = renamed(site, x, a, b);
    Node *is = before(site, x, a, y, b);

    is = of ? ew(site, Oland, is, of) : is;
    return total(site, where(site, is, y, number(site, x->dt, 0)), b);
}

static Node *beyond(const CloneSite *site, Node *x, Node *mean)
{
    return ew(site, Omaximum, ew(site, Osub, x, mean), number(site, Df32, 0));
}

/* ---- the plan ------------------------------------------------------------ */

/* i32 [expert]: choices of each, by all ranks in this micro-batch. */
static Node *count(const CloneSite *site)
{
    Node *e = site->map->in[0];
    Axis *axes[MAXD];

    for (int d = 0; d < e->nd; d++)
        axes[d] = e->dim[d].a;
    return g_red(site->graph, Osum, ew(site, Oeq, e, iota(site, site->expert)),
                 axes, e->nd);
}

/* f32 [expert]; n: counts. */
static Node *spill(const CloneSite *site, Node *n, Node *mean)
{
    Node *same = ew(site, Oeq, rank_of(site, site->expert),
                    rank_of(site, site->expert2));
    Node *m = renamed(site, n, site->expert, site->expert2);
    Node *load =
        total(site, where(site, same, m, number(site, Df32, 0)), site->expert2);
    Node *up_to = ew(site, Osub, load,
                     sum_before(site, n, site->expert, site->expert2, same));

    return ew(site, Osub, beyond(site, up_to, mean),
              beyond(site, ew(site, Osub, up_to, n), mean));
}

/* f32 [rank] */
static Node *spare(const CloneSite *site, Node *n, Node *mean)
{
    Node *first = ew(site, Omul, iota(site, site->rank),
                     number(site, Di32, (double)site->each));
    Node *its = ew(site, Oeq, first, rank_of(site, site->expert));
    Node *load =
        total(site, where(site, its, n, number(site, Df32, 0)), site->expert);
    Node *room = ew(site, Omul, mean, number(site, Df32, CLONEROOM));

    return ew(site, Ominimum, beyond(site, mean, load), room);
}

/* f32 [rank expert]: rows of the expert that a clone there would take. */
static Node *overlap(const CloneSite *site, Node *n, Node *mean)
{
    Node *out = spill(site, n, mean), *in = spare(site, n, mean);
    Node *from = sum_before(site, out, site->expert, site->expert2, NULL);
    Node *to = sum_before(site, in, site->rank, site->rank2, NULL);
    Node *end =
        ew(site, Ominimum, ew(site, Oadd, to, in), ew(site, Oadd, from, out));
    Node *rows = ew(site, Osub, end, ew(site, Omaximum, to, from));
    Node *least = ew(site, Omul, mean, number(site, Df32, CLONELEAST));
    Node *is = ew(site, Oland, ew(site, Oge, rows, least),
                  ew(site, Ogt, rows, number(site, Df32, 0)));

    return where(site, is, rows, number(site, Df32, 0));
}

static Node *by_slot(const CloneSite *site, Node *a)
{
    Axis *axes[2] = { site->rank, site->copy };
    Node *n = g_node(site->graph, Omerge, site->map->loc, 1, &a);

    n->at.merge.axes = g_axes(site->graph, axes, 2);
    n->at.merge.new = site->clone;
    return infer(site->graph, n);
}

/* Slots in which an expert's shares lie side by side, from 0 on. */
static Node *shares_before(const CloneSite *site, Node *expert, Node *share)
{
    Node *same =
        ew(site, Oeq, renamed(site, expert, site->clone, site->clone2), expert);
    Node *lower =
        ew(site, Olt, iota(site, site->clone2), iota(site, site->clone));
    Node *other = renamed(site, share, site->clone, site->clone2);

    return total(
        site,
        where(site, ew(site, Oland, same, lower), other, number(site, Di32, 0)),
        site->clone2);
}

/* f32: rows of the rank that has most over an equal share of those of the step.
 * Of a choice without a row, -1, no rank is the one. */
Node *clone_load(const CloneSite *site, Node *slot)
{
    Node *e = site->map->in[0], *zero = number(site, Di32, 0);
    Node *rank = iota(site, site->rank), *copies, *load;
    Node *place = g_to_padded(site->graph, site->map->at.route.axis, e);
    Axis *axes[MAXD];
    int n = 0;

    copies = number(site, Di32, (double)site->copy->n);
    Node *first = ew(site, Osub, slot, ew(site, Omod, slot, copies));
    Node *there = ew(site, Oeq, first, ew(site, Omul, rank, copies));
    Node *each = number(site, Di32, (double)site->each);
    Node *home =
        ew(site, Oeq, first_place(site, place), ew(site, Omul, rank, each));
    home = ew(site, Oland, home, ew(site, Oge, e, zero));
    Node *is = where(site, ew(site, Oge, slot, zero), there, home);
    for (int d = 0; d < e->nd; d++)
        if (!g_ismicro(e->dim[d].a))
            axes[n++] = e->dim[d].a;
    load = g_red(site->graph, Omean, g_cast(site->graph, is, Df32), axes, n);
    load = ew(site, Odiv, load, total(site, load, site->rank));
    load = ew(site, Omul, load, number(site, Df32, (double)site->rank->n));
    return g_red(site->graph, Omax, load, (Axis *[]){ site->rank }, 1);
}

ClonePlan plan_clones(const CloneSite *site)
{
    Node *n = g_cast(site->graph, count(site), Df32);
    Node *mean = ew(site, Odiv, total(site, n, site->expert),
                    number(site, Df32, (double)site->rank->n));
    Node *rows = overlap(site, n, mean);
    Node *best = g_node(site->graph, Otopk, site->map->loc, 1, &rows);

    best->at.topk.k = site->copy->n;
    best->at.topk.axis = site->expert;
    best->at.topk.new = site->copy;
    infer(site->graph, best);
    Node *take = by_slot(site, gathered(site, rows, best, site->expert));
    Node *is = ew(site, Ogt, take, number(site, Df32, 0));
    Node *e = where(site, is, by_slot(site, best), number(site, Di32, -1));
    Node *of = ew(site, Omaximum, gathered(site, n, e, site->expert),
                  number(site, Df32, 1));
    Node *share = ew(site, Omul, ew(site, Odiv, take, of),
                     number(site, Df32, CLONESHARES));
    ClonePlan p = { .expert = e };

    share = g_cast(site->graph, share, Di32);
    p.from = shares_before(site, e, share);
    p.to = ew(site, Oadd, p.from, share);
    return p;
}

Node *clone_of(const CloneSite *site, const ClonePlan *plan, Node *token)
{
    Node *all = number(site, Di32, CLONESHARES);
    Node *mixed = number(site, Di32, 633); /* near all / 1.618, and odd */
    Node *e = site->map->in[0];
    Node *at = ew(site, Omul, ew(site, Omod, token, all), mixed);
    Axis *clone = site->clone;

    at = ew(site, Omod, at, all);
    Node *is = ew(site, Oland, ew(site, Oge, at, plan->from),
                  ew(site, Olt, at, plan->to));
    is = ew(site, Oland, ew(site, Oeq, e, plan->expert), is);
    Node *n = where(site, is, iota(site, clone), number(site, Di32, -1));
    return g_red(site->graph, Omax, n, &clone, 1);
}
