/* search.c: `pleat search`: the fold, micro-batch, schedule and ZeRO stage with
 * which a cluster runs a step in the least time, what is rebuilt following from
 * its memory (passes/fit.c). Three prices of a point, each dearer and truer:
 *
 *   scaled     all points, from short plans of one rank (search_cost.c)
 *   short      the best of these, from short plans of their own fold
 *   compiled   the best of these: whole plans; what is chosen is one
 *
 * In a world of at most EXACT ranks all points are compiled whole, as far as
 * the time goes, but those whose products alone take longer than the best
 * plan: then what is chosen is the best there is, and it says so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/keys.h"
#include "frontend.h"

/* Seconds: LATE, FIXING, RUNNING (of a run that states no fold). */
enum { EXACT = 16, MOST = 3000, LATE = 300, FIXING = 30, RUNNING = 5 };
enum { SEQUENCES = 8, CHUNKS = 8, TOKENS = 512 }; /* see add_all */

#define WRONG 0.96 /* of the limit is what estimates may take */

/* ---- the space ----------------------------------------------------------- */

/* What the command line gives; 0 (schedule and zero: -1): it is free. */
static void read_pins(Space *x)
{
    const Opts *o = x->args->keys;

    for (int a = 0; a < NMESH; a++)
        if (a != Medp)
            x->pin.size[a] =
                opts_int_given(o, strf(forever, "fold.%s", meshnames[a]));
    x->pin.vpp = opts_int_given(o, "fold.vpp");
    x->pin.zero = opts_given(o, "fold.zero") ? opts_int(o, "fold.zero") : -1;
    x->pin.batch = opts_int_given(o, x->s.batch_key);
    x->pin.schedule =
        opts_given(o, "fold.schedule")
            ? key_word("fold.schedule", opts_str(o, "fold.schedule"))
            : -1;
}

static int may_be(int64_t pin, int64_t v)
{
    return !pin || pin == v;
}

/* Does a schedule take so many chunks and micro-batches? */
static int schedule_takes(const Point *p, int kind, int64_t micros)
{
    int64_t pp = p->size[Mpp];

    switch (kind) {
    case SCHEDULE1f1b: return p->vpp == 1;
    case SCHEDULEinterleaved: return pp > 1 && p->vpp > 1 && micros >= pp;
    case SCHEDULEzerobubble: return pp > 1 && p->vpp == 1;
    default: return pp > 1 && p->vpp == 2 && micros >= 2 * pp;
    }
}

double search_estimate(const Space *x, const Candidate *c)
{
    double ratio = x->ratios ? exp(x->log_ratio / x->ratios) : 1;

    return c->known == PRICEscaled ? c->f.secs * ratio : c->f.secs;
}

static int fits(const Space *x, const Forecast *f)
{
    return !x->s.limit || f->bytes <= (double)x->s.limit;
}

double search_bytes(const Space *x, const Candidate *c)
{
    double more = c->known < PRICEcompiled ? x->more[c->p.schedule] : 1;

    return c->f.bytes * fmax(more, 1);
}

int search_fits(const Space *x, const Candidate *c)
{
    return !x->s.limit || search_bytes(x, c) <= (double)x->s.limit;
}

/* Nothing rebuilt where that fits; else as much as it takes, at a straight line
 * to what rebuilding all costs. An estimate leaves room for how wrong it is. */
static Forecast with_limit(const Space *x, Forecast none, Forecast all)
{
    double room = WRONG * (double)x->s.limit, more = none.bytes - all.bytes;

    none.bytes *= x->s.limit ? 1 / WRONG : 1;
    all.bytes *= x->s.limit ? 1 / WRONG : 1;
    if (fits(x, &none) || more <= 0)
        return none;
    double share = fits(x, &all) ? (WRONG * none.bytes - room) / more : 1;
    all.again = all.secs > none.secs ? all.secs - none.secs : 0;
    all.secs = none.secs + share * all.again;
    all.again *= share;
    all.bytes = none.bytes - share * more / WRONG;
    return all;
}

static void add_schedules(Space *x, Point p, const ModelCost cost[2])
{
    int64_t micros = x->s.batch / (p.batch * p.size[Mdp]);

    for (int kind = SCHEDULE1f1b; kind <= SCHEDULEdualpipev; kind++) {
        if ((x->pin.schedule >= 0 && x->pin.schedule != kind) ||
            !schedule_takes(&p, kind, micros))
            continue;
        p.schedule = kind;
        Forecast none = search_combine(&x->s, &p, &cost[0]);
        Forecast all = search_combine(&x->s, &p, &cost[1]);
        Forecast f = with_limit(x, none, all);
        x->legal++;
        if (x->s.world > EXACT && x->s.limit &&
            f.bytes > 1.5 * (double)x->s.limit)
            continue;
        vec_push(forever, x->at, ((Candidate){ p, f, f, PRICEscaled }));
    }
}

/* A fallback runs rarely: it rebuilds all, before a step rebuilds anything. */
static void rebuilt_fallback(const Space *x, ModelCost cost[2])
{
    for (int r = 0; r < x->s.units.nrun; r++)
        cost[0].unit[r].fallback_bytes = cost[1].unit[r].fallback_bytes;
    cost[0].ends.fallback_bytes = cost[1].ends.fallback_bytes;
}

static void add_chunks(Space *x, Point p, const ModelCost ref[2])
{
    ModelCost cost[2] = { search_scaled(&x->s, &p, &ref[0]),
                          search_scaled(&x->s, &p, &ref[1]) };

    rebuilt_fallback(x, cost);
    int64_t units = x->s.units.nunit + 2, most = units / p.size[Mpp];

    most = p.size[Mpp] == 1 ? 1 : x->pin.vpp || most < CHUNKS ? most : CHUNKS;
    for (p.vpp = 1; p.vpp <= most; p.vpp++)
        if (x->pin.vpp ? p.vpp == x->pin.vpp : !(p.vpp & (p.vpp - 1)))
            add_schedules(x, p, cost);
}

static void add_batches(Space *x, Point p, const ModelCost ref[2])
{
    size_t used = arena_used(x->s.scratch);
    int64_t copies = p.size[Mdp] * p.size[Mcp];

    for (size_t i = 0; i < vec_len(x->s.model); i++) {
        p.batch = x->s.model[i].batch;
        if (x->s.batch % (p.batch * p.size[Mdp]))
            continue;
        for (p.zero = 0; p.zero <= 3; p.zero++)
            if (x->pin.zero >= 0 ? p.zero == x->pin.zero
                                 : p.zero == 1 || (p.zero > 1 && copies > 1))
                add_chunks(x, p, ref);
    }
    if (arena_used(x->s.scratch) - used > 1 << 20)
        arena_reset(x->s.scratch);
}

static void add_experts(Space *x, Point p, const ModelCost ref[2])
{
    int64_t stage = x->s.world / p.size[Mpp], n = x->s.experts;
    const char *order = opts_str(x->s.model[0].g->opts, "fold.order");

    for (int64_t ep = 1; ep <= (n ? n : 1); ep++)
        for (int64_t etp = 1; etp <= stage && etp <= (n ? stage : 1); etp++) {
            if (stage % (ep * etp) || (n % ep && !x->pin.size[Mep]) ||
                (p.size[Mtp] % etp && !x->pin.size[Metp]) ||
                !may_be(x->pin.size[Mep], ep) ||
                !may_be(x->pin.size[Metp], etp))
                continue;
            p.size[Mep] = ep;
            p.size[Metp] = etp;
            p.size[Medp] = stage / (ep * etp);
            if (mesh_legal(x->s.world, p.size, order))
                add_batches(x, p, ref);
        }
}

/* The space, but for what is given: tp stays where links join ranks, etp
 * divides tp, ep the experts; a rank has TOKENS of a sequence at least, where
 * cp cuts it; up to SEQUENCES of a micro-batch, up to CHUNKS of a stage, powers
 * of two. */
static void add_all(Space *x, const ModelCost ref[2])
{
    int64_t world = x->s.world, seq = x->s.seq;
    const int64_t *pin = x->pin.size;

    for (int64_t tp = 1; tp <= world; tp++)
        for (int64_t cp = 1; cp <= world / tp && world % tp == 0; cp++)
            for (int64_t pp = 1; pp <= world / tp / cp; pp++) {
                Point p = { .size = { [Mtp] = tp, [Mcp] = cp, [Mpp] = pp } };
                if (world % (tp * cp * pp) || !may_be(pin[Mtp], tp) ||
                    !may_be(pin[Mcp], cp) || !may_be(pin[Mpp], pp) ||
                    (tp > x->s.tensor && !pin[Mtp]) ||
                    (pp > 1 && pp > x->s.units.nunit + 2) ||
                    (cp > 1 && !pin[Mcp] && seq < TOKENS * cp * tp))
                    continue;
                p.size[Mdp] = world / (tp * cp * pp);
                if (may_be(pin[Mdp], p.size[Mdp]))
                    add_experts(x, p, ref);
            }
}

/* ---- prices -------------------------------------------------------------- */

static const Space *sorting;

/* What fits by its time, then the rest by its bytes, then what is refused. */
static int by_price(const void *a, const void *b)
{
    const Candidate *c = a, *d = b;
    int refused = (c->known == PRICErefused) - (d->known == PRICErefused);
    int fit = search_fits(sorting, c), large = search_fits(sorting, d) - fit;
    double x = fit ? search_estimate(sorting, c) : search_bytes(sorting, c);
    double y = fit ? search_estimate(sorting, d) : search_bytes(sorting, d);

    return refused ? refused : large ? large : (x > y) - (x < y);
}

static void sort_candidates(Space *x)
{
    sorting = x;
    qsort(x->at, vec_len(x->at), sizeof *x->at, by_price);
}

/* Costs of one rank with the least batch; 0: the model has no such plan. */
static int price_reference(Space *x, ModelCost ref[2])
{
    const SearchModel *m = &x->s.units;
    ShortPlan *want = alloc(forever, 2 * (size_t)(m->nrun + 1) * sizeof *want);
    ShortPlan one = { .world = 1 };

    for (int a = 0; a < NMESH; a++)
        one.point.size[a] = 1;
    one.point.vpp = one.point.batch = one.point.zero = 1;
    one.point.batch = x->s.model[0].batch;
    int n = search_shorts(m, &one, want);
    one.rebuild = 1;
    n += search_shorts(m, &one, want + n);
    UnitCost *cost = alloc(forever, (size_t)n * sizeof *cost);
    ShortJobs jobs = { &x->s, want };
    char *done = search_short(&jobs, n, cost, x->begun + LATE);
    for (int i = 0; i < n; i++)
        if (done[i] != JOBdone)
            return 0;
    ref[0] = search_costs(m, cost);
    ref[1] = search_costs(m, cost + n / 2);
    return 1;
}

/* Do they differ in the schedule at most, so that short plans are the same? */
static int same_fold(const Point *a, const Point *b)
{
    return !memcmp(a->size, b->size, sizeof a->size) && a->batch == b->batch &&
           a->zero == b->zero;
}

static void take_short(Space *x, const Point *p, const ModelCost cost[2])
{
    for (size_t i = 0; i < vec_len(x->at); i++) {
        Candidate *c = &x->at[i];
        if (c->known != PRICEscaled || !same_fold(&c->p, p))
            continue;
        Forecast none = search_combine(&x->s, &c->p, &cost[0]);
        c->guess = c->f;
        c->f = with_limit(x, none, search_combine(&x->s, &c->p, &cost[1]));
        c->known = PRICEshort;
        if (c->f.secs > 0 && c->guess.secs > 0) {
            x->log_ratio += log(c->f.secs / c->guess.secs);
            x->ratios++;
        }
    }
}

static void refuse_fold(Space *x, const Point *p)
{
    for (size_t i = 0; i < vec_len(x->at); i++)
        if (x->at[i].known == PRICEscaled && same_fold(&x->at[i].p, p))
            x->at[i].known = PRICErefused;
}

/* The best fold that is only scaled gets short plans of its own; 0: none of the
 * best is. */
static int refine(Space *x, double end)
{
    const SearchModel *m = &x->s.units;
    size_t i = 0;

    while (i < vec_len(x->at) && i < SHOWN && x->at[i].known != PRICEscaled)
        i++;
    if (i == vec_len(x->at) || i == SHOWN)
        return 0;
    Point p = x->at[i].p;
    double room = (double)x->s.limit;
    int free = !room || x->at[i].f.bytes < 0.7 * room;
    ShortPlan *want = alloc(forever, 2 * (size_t)(m->nrun + 1) * sizeof *want);
    ShortPlan like = { .point = p, .world = x->s.world / p.size[Mpp] };
    int n = search_shorts(m, &like, want), all = n;
    like.rebuild = 1;
    all += free ? 0 : search_shorts(m, &like, want + n);
    UnitCost *cost = alloc(forever, (size_t)all * sizeof *cost);
    ShortJobs jobs = { &x->s, want };
    char *done = search_short(&jobs, all, cost, end);
    int worst = JOBdone;
    for (int k = 0; k < all; k++)
        worst = done[k] == JOBdone ? worst : done[k];
    if (worst == JOBnot)
        return 0;
    if (worst == JOBrefused)
        refuse_fold(x, &p);
    else {
        ModelCost own[2] = { search_costs(m, cost),
                             search_costs(m, cost + all - n) };
        rebuilt_fallback(x, own);
        take_short(x, &p, own);
    }
    sort_candidates(x);
    return 1;
}

/* ---- whole plans --------------------------------------------------------- */

/* The best compiled one that fits; null: none yet. */
static const Candidate *chosen(const Space *x)
{
    const Candidate *best = NULL;

    for (size_t i = 0; i < vec_len(x->at); i++) {
        const Candidate *c = &x->at[i];
        if (c->known == PRICEcompiled && fits(x, &c->f) &&
            (!best || c->f.secs < best->f.secs))
            best = c;
    }
    return best;
}

static void take_whole(Space *x, Candidate *c, const Forecast *f)
{
    double *more = &x->more[c->p.schedule];

    c->guess = c->f;
    c->guess.secs = search_estimate(x, c);
    c->f = *f;
    c->known = PRICEcompiled;
    *more = fmax(*more, f->bytes / c->guess.bytes);
}

/* Compiles the next `most` of those that have such prices, `one`: of each
 * schedule one; 0: none was. */
static int compile_next(Space *x, PriceKind first, int most, int one,
                        double end)
{
    const Point *p[EXACT];
    Candidate *c[EXACT];
    Forecast f[EXACT];
    int n = 0, ran = 0, seen = 0;

    for (size_t i = 0; i < vec_len(x->at) && n < most; i++) {
        int kind = x->at[i].p.schedule, price = x->at[i].known;
        if (price < (int)first || price > PRICEshort ||
            (one && seen >> kind & 1))
            continue;
        seen |= 1 << kind;
        p[n] = &x->at[i].p;
        c[n++] = &x->at[i];
    }
    if (!n)
        return 0;
    char *done = search_whole(&x->s, p, n, f, end);
    for (int i = 0; i < n; i++) {
        ran += done[i] != JOBnot;
        if (done[i] == JOBdone)
            take_whole(x, c[i], &f[i]);
        else if (done[i] == JOBrefused)
            c[i]->known = PRICErefused;
    }
    sort_candidates(x);
    return ran;
}

/* Seconds below which no plan of the model can be on these ranks. */
double search_least(const Space *x)
{
    return x->s.flops / ((double)x->s.world * x->s.machine.gemm);
}

static int is_decided(const Space *x)
{
    const Candidate *best = chosen(x);
    double least = search_least(x);

    for (size_t i = 0; i < vec_len(x->at); i++)
        if (x->at[i].known < PRICEcompiled && (!best || best->f.secs > least))
            return 0;
    return 1;
}

/* Those after the best compiled one are worse by their short plans. */
static int is_settled(const Space *x)
{
    const Candidate *best = chosen(x);

    return best && best == &x->at[0];
}

static void compile_best(Space *x)
{
    int exact = x->s.world <= EXACT;
    double late = x->begun + LATE;
    PriceKind first = PRICEshort;

    while (!is_settled(x) && (!chosen(x) || search_clock() < x->end))
        if (!compile_next(x, first, 2, 1, chosen(x) ? x->end : late)) {
            if (first == PRICEscaled)
                break;
            first = PRICEscaled;
        }
    while (exact && !is_decided(x) && search_clock() < x->end)
        if (!compile_next(x, PRICEscaled, EXACT, 0, x->end))
            break;
    x->proven = exact && is_decided(x);
}

/* ---- the model --------------------------------------------------------- */

/* The model with so many sequences in a micro-batch; 0: as it says. What its
 * own fold{} says does not bind a search. */
static Graph *traced(const Space *x, int64_t batch)
{
    Opts *o = opts_new(forever);

    opts_copy(o, x->args->keys);
    if (!opts_given(o, "target"))
        opts_set(o, "target", "null", NULL);
    if (batch)
        opts_set(o, x->s.batch_key, strf(forever, "%lld", (long long)batch),
                 NULL);
    return trace(x->args->file, o, TRACEquiet).g;
}

static void read_sizes(Space *x, Graph *g)
{
    const Axis *seq = g_role(g, ROLEseq);
    int64_t params, active;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op == Opick && n->at.pick.axis->n > x->s.experts)
            x->s.experts = n->at.pick.axis->n;
        if (n->op == Oinput && !x->s.tokens)
            x->s.tokens = (double)g_elems(n);
    }
    x->s.seq = seq ? seq->n : 0;
    x->s.flops = flops_per_token(g, &params, &active);
}

static void set_world(Space *x, Graph *g)
{
    const Opts *o = g->opts;

    if (!opts_given(o, "world"))
        err(NULL, "search: for how many ranks? cluster=h100x64 says a machine "
                  "and their number, or world=64");
    x->s.world = opts_int(o, "world");
    x->s.host = opts_int(o, "fold.host");
    x->s.target = target_of(o);
    x->s.machine = machine_speeds(o, x->s.target->machine);
    x->s.limit = memory_limit(o, x->s.target);
    x->s.tensor = x->s.host ? x->s.host : x->s.world;
    x->s.weight = dtypes[opts_dtype(o)].bytes;
}

/* Micro-batches of 1, 2, 4 .. sequences, or of as many as are given. */
static void set_models(Space *x)
{
    Graph *g = traced(x, 0);
    const Axis *a = g_role(g, ROLEbatch);

    if (!a)
        err(NULL, "search: the model has no axis of sequences");
    x->s.batch_key = strf(forever, "axes.%s", a->name);
    set_world(x, g);
    read_sizes(x, g);
    x->s.batch = opts_given(g->opts, "train.batch")
                     ? opts_int(g->opts, "train.batch")
                     : a->n;
    x->s.tokens *= (double)x->s.batch / (double)a->n;
    x->s.flops *= x->s.tokens;
    int given = opts_given(x->args->keys, x->s.batch_key);
    for (int64_t b = given ? a->n : 1; b <= (given ? a->n : SEQUENCES); b *= 2)
        if (x->s.batch % b == 0)
            vec_push(forever, x->s.model,
                     ((SearchTrace){ b, b == a->n ? g : traced(x, b) }));
    if (!x->s.model)
        err(NULL, "search: %lld sequences a step are no multiple of %s=%lld",
            (long long)x->s.batch, x->s.batch_key, (long long)a->n);
    search_units(&x->s.units, x->s.model[0].g);
    search_shapes(&x->s.units, x->s.model[0].g);
    for (int r = 0; r < x->s.units.nrun; r++)
        x->s.units.shape[r].row *= x->s.weight / (double)x->s.model[0].batch;
}

/* Nothing of the space is left: a compile says why. */
static _Noreturn void no_point(Space *x)
{
    Graph *g = traced(x, x->s.model[0].batch);
    CompileOptions o = { .out = stderr };

    compile(g, x->s.target, &o);
    err(NULL,
        "search: %lld ranks and %lld sequences a step have no legal fold "
        "with these keys",
        (long long)x->s.world, (long long)x->s.batch);
}

static const Candidate *smallest(const Space *x)
{
    const Candidate *best = NULL;

    for (size_t i = 0; i < vec_len(x->at); i++)
        if (x->at[i].known != PRICErefused &&
            (!best || search_bytes(x, &x->at[i]) < search_bytes(x, best)))
            best = &x->at[i];
    return best;
}

static _Noreturn void nothing_fits(const Space *x)
{
    const Candidate *c = smallest(x);
    Text t = { .arena = forever };

    if (!c)
        no_point((Space *)(uintptr_t)x);
    put_point(&t, x, &c->p);
    err(NULL,
        "search: no plan fits into %s of a rank; the least, %s, is that "
        "of %s "
        "(pleat compile with these says whose)",
        bytes_text(x->s.limit), bytes_text((int64_t)search_bytes(x, c)), t.s);
}

/* ---- a plan that does not fit -------------------------------------------- */

static Point point_of(const Space *x, const Plan *p)
{
    const Opts *o = p->opts;
    Point at = { .vpp = opts_int(o, "fold.vpp"),
                 .zero = opts_int(o, "fold.zero"),
                 .batch = x->s.model[0].batch,
                 .schedule = (int)opts_pp_schedule(o) };

    memcpy(at.size, p->mesh->size, sizeof at.size);
    return at;
}

/* Twice as many ranks of a, if that leaves whole numbers of others. */
static void add_ranks(const Space *x, Point **v, Point p, MeshAxis a)
{
    const char *order = opts_str(x->s.model[0].g->opts, "fold.order");
    int64_t *n = p.size;

    n[a] *= 2;
    int64_t dense = n[Mtp] * n[Mcp] * n[Mpp], expert = n[Metp] * n[Mep];
    n[Mdp] = x->s.world / dense;
    n[Medp] = x->s.world / n[Mpp] / (expert ? expert : 1);
    if (dense * n[Mdp] == x->s.world &&
        expert * n[Medp] * n[Mpp] == x->s.world && n[Mdp] && n[Medp] &&
        x->s.batch % (p.batch * n[Mdp]) == 0 &&
        (a != Mep || n[Mep] <= x->s.experts) &&
        mesh_legal(x->s.world, n, order))
        vec_push(forever, *v, p);
}

/* One step away from it, in what takes less memory. */
static Point *smaller_points(const Space *x, Point p)
{
    static const MeshAxis axis[] = { Mep, Mpp, Mtp, Mcp };
    Point *v = NULL, q = p;

    for (q.zero = p.zero + 1; q.zero <= 3 && p.size[Mdp] * p.size[Mcp] > 1;
         q.zero++)
        vec_push(forever, v, q);
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        add_ranks(x, &v, p, axis[i]);
    for (size_t i = 1; i < vec_len(x->s.model); i++) {
        p.batch = x->s.model[i].batch;
        vec_push(forever, v, p);
    }
    return v;
}

static void set_fixes(Space *x, const Plan *p)
{
    Graph *g = traced(x, 0);
    const Axis *a = g_role(g, ROLEbatch);

    x->s.world = p->mesh->world;
    x->s.target = target_named(p->target);
    x->s.limit = memory_limit(p->opts, x->s.target);
    x->s.batch_key = a ? strf(forever, "axes.%s", a->name) : NULL;
    read_sizes(x, g);
    vec_push(forever, x->s.model, ((SearchTrace){ a ? a->n : 1, g }));
    x->s.batch = opts_given(p->opts, "train.batch")
                     ? opts_int(p->opts, "train.batch")
                     : x->s.model[0].batch;
    for (int64_t b = 2; a && b <= 4 && a->n % b == 0; b *= 2)
        vec_push(forever, x->s.model,
                 ((SearchTrace){ a->n / b, traced(x, a->n / b) }));
}

void put_fixes(Text *out, const Args *a, const Plan *p)
{
    Space x = { .args = a, .begun = search_clock() };

    set_fixes(&x, p);
    Point *v = smaller_points(&x, point_of(&x, p));
    int n = (int)vec_len(v), found = 0;
    const Point **at = alloc(forever, (size_t)(n + 1) * sizeof *at);
    Forecast *f = alloc(forever, (size_t)(n + 1) * sizeof *f);
    for (int i = 0; i < n; i++)
        at[i] = &v[i];
    char *done =
        x.s.batch_key ? search_whole(&x.s, at, n, f, x.begun + FIXING) : "";
    for (int i = 0; i < n && found < 3; i++)
        if (done[i] == JOBdone && fits(&x, &f[i])) {
            put(out, "%s ", found++ ? "; or" : "\nit fits with");
            put_point(out, &x, &v[i]);
            put(out, " (%s, %.1f ms)", bytes_text((int64_t)f[i].bytes),
                1e3 * f[i].secs);
        }
    if (!found)
        put(out, "\nno fold next to it fits; pleat search goes "
                 "through all of them");
}

/* ---- the command --------------------------------------------------------- */

/* The best compiled plan that fits; err() where there is none. */
static const Candidate *search_space(Space *x)
{
    ModelCost ref[2];

    x->begun = search_clock();
    x->end = x->args->seconds > 0 ? x->begun + x->args->seconds : HUGE_VAL;
    x->s.scratch = arena_new();
    x->s.cuts = table_new(forever);
    set_models(x);
    read_pins(x);
    if (!price_reference(x, ref))
        no_point(x);

    add_all(x, ref);
    if (!x->at)
        x->legal ? nothing_fits(x) : no_point(x);
    sort_candidates(x);
    if (x->s.world > EXACT && vec_len(x->at) > MOST)
        vec_cut(x->at, MOST);
    while (search_clock() < x->end && refine(x, x->end))
        ;
    compile_best(x);
    if (!chosen(x))
        nothing_fits(x);
    sort_candidates(x);
    return chosen(x);
}

static int search_job(void *arg, FILE *out)
{
    Space x = { .args = arg };

    search_report(out, &x, search_space(&x));
    return 0;
}

int cmd_search(Args *a)
{
    return guarded(search_job, a, NULL);
}

/* ---- the fold of a run --------------------------------------------------- */

int states_fold(const Opts *o)
{
    for (const KeyInfo *k = keytab; k->name; k++)
        if (!strcmp(k->table, "fold") && strcmp(k->name, "host") &&
            opts_given(o, key_name(k)))
            return 1;
    return 0;
}

/* Micro-batches stay those of the model: what a step computes depends on their
 * size. Writes the keys, nothing where some are stated. */
static int fold_of_run_job(void *arg, FILE *out)
{
    Args a = *(const Args *)arg;
    const Graph *g = trace(a.file, a.keys, TRACEquiet).g;
    const Axis *batch = g_role(g, ROLEbatch);
    Space x = { .args = &a };
    Text t = { .arena = forever };

    if (states_fold(g->opts) || opts_given(g->opts, "train.ramp") || !batch)
        return 0;
    opts_set(a.keys, "target", target_of(g->opts)->name, NULL);
    opts_set(a.keys, strf(forever, "axes.%s", batch->name),
             strf(forever, "%lld", (long long)batch->n), NULL);
    a.seconds = RUNNING;
    const Candidate *best = search_space(&x);
    put_fold(&t, &best->p);
    fprintf(out, "%s", t.s);
    printf("fold: %s (dp=%lld, %s %zu by predicted time, %.4g ms a step; these "
           "keys choose it again)\n",
           t.s, (long long)best->p.size[Mdp],
           x.proven ? "the best of" : "chosen among", x.legal,
           1e3 * best->f.secs);
    return 0;
}

const char *search_fold(const Args *a)
{
    Text t = { .arena = forever };
    int status = guarded(fold_of_run_job, (void *)(uintptr_t)a, &t);

    if (status)
        exit(status);
    return t.len ? t.s : "";
}
