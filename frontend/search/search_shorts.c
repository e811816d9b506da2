/* search_shorts.c: costs of units from short plans: of one rank, of ep alone,
 * of a fold. */
#include "search.h"

/* Compiles the short plans of n folds. Returns the state of each job
 * (JOBdone ..); writes the costs of units of those that compiled to `cost`. */
const char *search_price_shorts(Space *space, const ShortFold *fold, int n,
                                ModelCost *cost)
{
    size_t each = (size_t)space->s.units.nrun + 1;
    UnitCost *plan = alloc(forever, (size_t)n * each * sizeof *plan);
    const char *done = search_short(&space->s, fold, n, plan, space->end);

    space->work += n * search_short_work(&space->s);
    for (int i = 0; i < n; i++)
        if (done[i] == JOBdone)
            cost[i] = search_costs(&space->s.units, plan + each * (size_t)i);
    return done;
}

/* Costs of one rank with the smallest batch; 0: the model has no such plan. */
int search_reference(Space *space, ModelCost ref[2])
{
    ShortFold one[2] = { { .world = 1 } };

    for (int a = 0; a < NMESH; a++)
        one->point.size[a] = 1;
    one->point.vpp = one->point.zero = 1;
    one->point.batch = space->s.model[0].batch;
    one[1] = one[0];
    one[0].step_only = one[1].rebuild = 1;
    const char *done = search_price_shorts(space, one, 2, ref);
    if (done[0] == JOBnot || done[1] == JOBnot)
        err(NULL, "search: --seconds %g ended before a plan was estimated",
            space->args->seconds);
    return done[0] == JOBdone && done[1] == JOBdone;
}

/* Appends the jobs of a fold to `want`: with free recomputation, and on request
 * with full recomputation and in pairs. */
FoldPrice search_add_jobs(ShortFold **want, Point p, int64_t world, int all,
                          int pairs)
{
    FoldPrice fold = { .point = p };

    for (int k = 0; k < NCOST; k++) {
        if ((k == COSTall && !all) || (k == COSTpairs && !pairs))
            continue;
        ShortFold job = { p, world, k == COSTall, all && k != COSTall,
                          k == COSTpairs };
        vec_push(forever, *want, job);
        fold.job[k] = (int)vec_len(*want);
    }
    return fold;
}

/* Copies the costs of the jobs of search_add_jobs. A fold without a job for
 * pairs has no price of pairs. */
void search_take_costs(FoldPrice *fold, const char *done, const ModelCost *cost)
{
    int all = fold->job[COSTall] - 1, pairs = fold->job[COSTpairs] - 1;
    int free = fold->job[COSTfree] - 1;

    all = all < 0 ? free : all;
    fold->done = done[free] == JOBdone ? done[all] : done[free];
    if (fold->done != JOBdone)
        return;
    fold->cost[COSTfree] = cost[free];
    fold->cost[COSTall] = cost[all];
    if (pairs >= 0 && done[pairs] == JOBdone)
        fold->cost[COSTpairs] = cost[pairs];
}

/* Prices units with each ep, on ep ranks with the fewest sequences: the time of
 * products with fewer rows for more experts, and of hidden transfers, is not
 * proportional to the costs of one rank. Pairs are priced for at most WIDE
 * ranks. */
void search_price_plain(Space *space)
{
    ShortFold *want = NULL;
    int64_t n = space->s.experts, most = n ? n : 1;

    for (int64_t ep = 1; ep <= most && ep <= space->s.world; ep++) {
        Point p = { .vpp = 1, .zero = 1, .batch = space->s.model[0].batch };
        int pairs = ep > 1 && space->s.world <= WIDE;
        for (int a = 0; a < NMESH; a++)
            p.size[a] = a == Mep || a == Mdp ? ep : 1;
        if (space->s.world % ep == 0)
            vec_push(forever, space->plain,
                     search_add_jobs(&want, p, ep, 1, pairs));
    }
    ModelCost *cost = alloc(forever, (vec_len(want) + 1) * sizeof *cost);
    const char *done =
        search_price_shorts(space, want, (int)vec_len(want), cost);
    for (size_t i = 0; i < vec_len(space->plain); i++)
        search_take_costs(&space->plain[i], done, cost);
}

const ModelCost *search_plain(const Space *space, const Point *point)
{
    for (size_t i = 0; i < vec_len(space->plain); i++)
        if (space->plain[i].done == JOBdone &&
            space->plain[i].point.size[Mep] == point->size[Mep])
            return space->plain[i].cost;
    return NULL;
}
