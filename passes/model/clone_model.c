/* clone_model.c: expected load of clones under route.assume: the plan of
 * clone_plan.c, computed for the expected rows of each expert, in units of a
 * rank's equal share. */
#include "model.h"

typedef struct Expected {
    const CloneSite *site;
    int64_t experts, ranks;
    int64_t *rank;        /* [expert] */
    double *rows, *spill; /* [expert]; the mean of a rank is 1 */
    double *load, *spare; /* [rank] */
} Expected;

/* Does i precede k in descending order of v? */
static int before(const double *v, int64_t i, int64_t k)
{
    return v[i] > v[k] || (v[i] == v[k] && i < k);
}

static double sum_before(const double *v, int64_t n, int64_t k)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += before(v, i, k) ? v[i] : 0;
    return sum;
}

static void find_rows(Expected *expected, Arena *a)
{
    const CloneSite *site = expected->site;
    RouteModel r = route_model(a, site->graph, site->map, 0);
    double all = 0;

    for (int64_t i = 0; i < expected->experts; i++) {
        int64_t place = uneven_place(r.experts, r.parts, i);
        expected->rank[i] = place / site->each;
        expected->rows[i] = route_hit(&r, place, 1);
        all += expected->rows[i];
    }
    for (int64_t i = 0; i < expected->experts; i++) {
        expected->rows[i] *= (double)expected->ranks / all;
        expected->load[expected->rank[i]] += expected->rows[i];
    }
}

static void find_spills(Expected *expected)
{
    for (int64_t i = 0; i < expected->experts; i++) {
        double up_to = expected->load[expected->rank[i]];
        for (int64_t k = 0; k < expected->experts; k++)
            if (expected->rank[k] == expected->rank[i] &&
                before(expected->rows, k, i))
                up_to -= expected->rows[k];
        expected->spill[i] =
            fmax(up_to - 1, 0) - fmax(up_to - expected->rows[i] - 1, 0);
    }
    for (int64_t r = 0; r < expected->ranks; r++)
        expected->spare[r] = fmin(fmax(1 - expected->load[r], 0), CLONEROOM);
}

/* Returns the rows of expert i that a clone on rank r would take. */
static double overlap(const Expected *expected, int64_t i, int64_t r)
{
    double from = sum_before(expected->spill, expected->experts, i);
    double to = sum_before(expected->spare, expected->ranks, r);
    double rows = fmin(from + expected->spill[i], to + expected->spare[r]) -
                  fmax(from, to);

    return rows > 0 && rows >= CLONELEAST ? rows : 0;
}

/* Fills the slots of rank r with rows of other ranks and reduces their load.
 * Returns the most rows of one slot. */
static double take(Expected *expected, int64_t r, double *sink)
{
    double sum = 0;

    for (int64_t s = 0; s < expected->site->copy->n; s++) {
        int64_t best = -1;
        for (int64_t i = 0; i < expected->experts; i++)
            if (expected->spill[i] > 0 && overlap(expected, i, r) > 0 &&
                sink[i] >= 0 &&
                (best < 0 ||
                 overlap(expected, i, r) > overlap(expected, best, r)))
                best = i;
        if (best < 0)
            break;
        sum += overlap(expected, best, r);
        expected->load[expected->rank[best]] -= overlap(expected, best, r);
        sink[best] = -1; /* at most one slot per rank */
    }
    return sum;
}

static double largest(const double *v, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, v[i]);
    return most;
}

CloneLoad expected_clones(const CloneSite *site)
{
    Arena *a = arena_new();
    Expected e = { site, site->expert->n, site->rank->n, NULL, NULL, NULL, NULL,
                   NULL };
    size_t experts = (size_t)e.experts, ranks = (size_t)e.ranks;
    CloneLoad l = { 0 };

    e.rank = alloc(a, experts * sizeof *e.rank);
    e.rows = alloc(a, experts * sizeof *e.rows);
    e.spill = alloc(a, experts * sizeof *e.spill);
    e.load = alloc(a, ranks * sizeof *e.load);
    e.spare = alloc(a, ranks * sizeof *e.spare);
    find_rows(&e, a);
    find_spills(&e);
    l.before = largest(e.load, e.ranks);
    double *own = alloc(a, ranks * sizeof *own);
    for (int64_t r = 0; r < e.ranks; r++)
        own[r] = take(&e, r, alloc(a, experts * sizeof(double)));
    l.home = largest(e.load, e.ranks);
    l.clones = largest(own, e.ranks);
    for (int64_t r = 0; r < e.ranks; r++)
        l.after = fmax(l.after, e.load[r] + own[r]);
    arena_free(a);
    return l;
}

/* ---- gain ---------------------------------------------------------------- */

/* Returns the seconds of a transfer of `bytes` to each of the ranks. */
static double secs_to_send(const CloneSite *site, double bytes)
{
    const Opts *opts = site->graph->opts;
    double ranks = (double)site->rank->n;
    double host = (double)opts_int(opts, "fold.host");

    return transfer_secs(machine_of(site->graph), ranks,
                         host > 0 ? fmin(host, ranks) : ranks, bytes, 0);
}

void report_clones(const CloneSite *site, const CloneLoad *load,
                   double elements)
{
    enum { FORWARD = 2, BACKWARD = 4, PRODUCTS = 3 }; /* bytes of an element */
    const Graph *g = site->graph;
    const Node *e = site->map->in[0];
    double rows = map_choices(site->map), others = (double)site->rank->n - 1;

    for (int d = 0; d < e->nd; d++)
        rows *= e->dim[d].a == site->map->at.route.top || g_ismicro(e->dim[d].a)
                    ? 1
                    : (double)e->dim[d].n;
    double mine = elements * (double)site->copy->n * others;
    double flops =
        PRODUCTS * 2 * rows * elements * (load->before - load->after);
    double secs = product_secs(machine_of(g), SPEEDgrouped,
                               rows / (double)site->expert->n, flops, 0);

    why(g, site->map,
        "route.clones: %lld slots a rank; by route.assume the fullest rank has "
        "%.3g times an equal share of rows, with clones %.3g, of which clones "
        "have at most %.3g: %.3g ms less of products a micro-batch; weights "
        "%.3g MiB to each rank, %.3g ms, gradients %.3g MiB, %.3g ms",
        (long long)site->copy->n, load->before, load->after, load->clones,
        secs > 0 && flops > 0 ? 1e3 * secs : 0.0, FORWARD * mine / (1 << 20),
        1e3 * secs_to_send(site, FORWARD * mine), BACKWARD * mine / (1 << 20),
        1e3 * secs_to_send(site, BACKWARD * mine));
}
