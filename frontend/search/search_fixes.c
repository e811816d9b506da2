/* search_fixes.c: a plan that does not fit into the memory of a rank: the folds
 * and settings next to its own, of which those are proposed that fit when they
 * are compiled. */
#include "../../ir/settings/keys.h"
#include "search.h"

enum { FIXING = 30, MANY = 3 }; /* seconds; proposals */

static Point point_of(const Space *space, const Plan *p)
{
    const Opts *opts = p->opts;
    Point at = { .vpp = opts_int(opts, "fold.vpp"),
                 .zero = opts_int(opts, "fold.zero"),
                 .batch = space->s.model[0].batch,
                 .schedule = (int)opts_pp_schedule(opts) };

    memcpy(at.size, p->mesh->size, sizeof at.size);
    return at;
}

/* Twice as many ranks of a, if that leaves whole numbers of others. */
static void add_ranks(const Space *space, Point **v, Point p, MeshAxis a)
{
    const char *order = opts_str(space->s.model[0].g->opts, "fold.order");
    int64_t *n = p.size;

    n[a] *= 2;
    int64_t dense = n[Mtp] * n[Mcp] * n[Mpp], expert = n[Metp] * n[Mep];
    n[Mdp] = space->s.world / dense;
    n[Medp] = space->s.world / n[Mpp] / (expert ? expert : 1);
    if (dense * n[Mdp] == space->s.world &&
        expert * n[Medp] * n[Mpp] == space->s.world && n[Mdp] && n[Medp] &&
        space->s.batch % (p.batch * n[Mdp]) == 0 &&
        (a != Mep || n[Mep] <= space->s.experts) &&
        mesh_legal(space->s.world, n, order))
        vec_push(forever, *v, p);
}

/* Keys that take less memory, and a key of each that must not be given. */
static const struct {
    const char *key, *words;
} settings[] = {
    { "train.offload", "train.offload=activations,moments,masters" },
    { "route.stash", "route.stash=1" },
    { "precision.moments", "precision.moments=bf16" },
};
enum { NSETTINGS = sizeof settings / sizeof *settings };

static int may_set(const Space *space, int i)
{
    return !opts_given(space->s.model[0].g->opts, settings[i].key);
}

/* p with each setting; *all: with every one. */
static void add_settings(const Space *space, Point **v, Point p, Point *all)
{
    const char *words = NULL;

    for (int i = 0; i < NSETTINGS; i++)
        if (may_set(space, i)) {
            p.more = settings[i].words;
            vec_push(forever, *v, p);
            words = words ? strf(forever, "%s %s", words, p.more) : p.more;
        }
    all->more = words;
}

/* One step away from it, in what takes less memory; then several at once. */
static Point *smaller_points(const Space *space, Point p)
{
    static const MeshAxis axis[] = { Mep, Mpp, Mtp, Mcp };
    int copies = p.size[Mdp] * p.size[Mcp] > 1 || p.size[Medp] > 1;
    Point *v = NULL, q = p, all = p;

    for (q.zero = p.zero + 1; q.zero <= 3 && copies; q.zero++)
        vec_push(forever, v, q);
    q = p;
    for (size_t i = 1; i < vec_len(space->s.model); i++) {
        q.batch = space->s.model[i].batch;
        vec_push(forever, v, q);
    }
    add_settings(space, &v, p, &all);
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        add_ranks(space, &v, p, axis[i]);
    all.batch = q.batch;
    if (all.more)
        vec_push(forever, v, all);
    for (all.zero = p.zero + 1; all.zero <= 3 && copies; all.zero++)
        vec_push(forever, v, all);
    return v;
}

static void set_fixes(Space *space, const Plan *p)
{
    Graph *g = search_traced(space, 0);
    const Axis *a = g_role(g, ROLEbatch);

    space->s.world = p->mesh->world;
    space->s.target = target_named(p->target);
    space->s.limit = memory_limit(p->opts, space->s.target);
    space->s.batch_key = a ? strf(forever, "axes.%s", a->name) : NULL;
    search_sizes(space, g);
    vec_push(forever, space->s.model,
             ((SearchTrace){ .batch = a ? a->n : 1, .g = g }));
    space->s.batch = opts_given(p->opts, "train.batch")
                         ? opts_int(p->opts, "train.batch")
                         : space->s.model[0].batch;
    for (int64_t b = 2; a && a->n % b == 0; b *= 2)
        vec_push(forever, space->s.model,
                 ((SearchTrace){ .batch = a->n / b,
                                 .g = search_traced(space, a->n / b) }));
}

/* Of the plans that were made and fit; -1: there is none. */
static int fastest(const Space *space, const char *done, const Forecast *f,
                   int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (done[i] == JOBdone && forecast_fits(space, &f[i]) &&
            (best < 0 || f[i].secs < f[best].secs))
            best = i;
    return best;
}

void put_fixes(Text *out, const Args *args, const Plan *p)
{
    Space x = { .args = args, .begun = search_clock() };

    set_fixes(&x, p);
    Point *v = smaller_points(&x, point_of(&x, p));
    int n = (int)vec_len(v), found = 0, made = 0;
    const Point **at = alloc(forever, (size_t)(n + 1) * sizeof *at);
    Forecast *f = alloc(forever, (size_t)(n + 1) * sizeof *f);
    for (int i = 0; i < n; i++)
        at[i] = &v[i];
    char *done = x.s.batch_key ? search_whole(&x.s, at, n, f, x.begun + FIXING)
                               : alloc(forever, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        made += done[i] != JOBnot;
    for (int best; found < MANY && (best = fastest(&x, done, f, n)) >= 0;) {
        put(out, "%s ", found++ ? "; or" : "\nit fits with");
        put_point(out, &x, &v[best]);
        put(out, " (%s, %.1f ms)", bytes_text((int64_t)f[best].bytes),
            1e3 * f[best].secs);
        done[best] = JOBrefused;
    }
    if (!found && made == n)
        put(out,
            "\nno fold or setting next to it fits: %d were compiled; pleat "
            "search goes through all folds",
            n);
    else if (!found)
        put(out,
            "\nit is not known yet whether a fold or setting next to it fits: "
            "%d of %d were compiled in %d s; pleat search goes through all "
            "folds",
            made, n, FIXING);
}
