/* search.c: `pleat search`: the fold, micro-batch, schedule and ZeRO stage with
 * which a cluster runs a step in the least time, what is rebuilt following from
 * its memory (passes/plan/fit.c). Three prices of a point, each slower to get
 * and more exact:
 *
 *   scaled     all points, from short plans of one rank (search_cost.c)
 *   short      the best of these, from short plans of their own fold
 *   compiled   the best of these: whole plans; what is chosen is one
 *
 * In a world of at most EXACT ranks all points are compiled whole, as far as
 * the time goes, but those whose products alone take longer than the best
 * plan: then what is chosen is the best there is, and it says so. */
#include "../../ir/settings/keys.h"
#include "search.h"

enum { MOST = 3000 }; /* points that are kept in a wide world */
/* A node of a whole plan that is made several times to fit, or that a run waits
 * for, counts for WHOLE of short ones. A run that states no fold searches for a
 * FEWth of the budget; where no plan that fits is found the budget is FEW times
 * as large. */
enum { WHOLE = 8, FEW = 8 };
enum { SIMPLE = 12 };   /* folds of ep and pp alone with short plans */
enum { SEQUENCES = 8 }; /* of a micro-batch, at most, but for what is given */

#define LARGE   1.08 /* times the limit: an estimate as large may still fit */
#define FAR     3    /* times the limit: estimates are not that wrong */
#define CROWDED 0.7  /* of the limit: plans of less are not made to fit */
#define CLOSE   0.97 /* of the best: an estimate as low is compiled */

double search_whole_work(const Space *space, const Candidate *candidate)
{
    double nodes = (double)vec_len(space->s.model[0].g->node);
    int fitted = space->runs || !candidate ||
                 (space->s.limit &&
                  candidate->f.bytes >= CROWDED * (double)space->s.limit);

    return fitted ? WHOLE * nodes : nodes;
}

static int ratio_row(int64_t ranks)
{
    int row = 0;

    for (; ranks > 1 && row < MAXRATIO - 1; ranks /= 2)
        row++;
    return row;
}

static void add_ratio(Ratio *ratio, double x)
{
    if (x > 0 && x < HUGE_VAL) {
        ratio->log += log(x);
        ratio->n++;
    }
}

/* 1 where none is known. */
static double mean_ratio(const Ratio *ratio)
{
    return ratio->n ? exp(ratio->log / ratio->n) : 1;
}

/* ZeRO 2 and 3 reduce gradients in each micro-batch. Short plans hide more of
 * these transfers than whole plans do, so such points have their own rows. */
static int slow_row(const Point *point)
{
    int kind = point->size[Mpp] > 1 ? point->schedule : MAXSCHEDULE;

    return 2 * kind + (point->zero > 1);
}

double search_estimate(const Space *space, const Candidate *candidate)
{
    const int64_t *n = candidate->p.size;
    const Ratio *ratio = &space->ratio[ratio_row(n[Mtp])][ratio_row(n[Mcp])];
    double secs = candidate->f.secs;

    if (candidate->known == PRICEscaled)
        secs *= mean_ratio(ratio);
    return candidate->known < PRICEcompiled
               ? secs * mean_ratio(&space->slow[slow_row(&candidate->p)])
               : secs;
}

int forecast_fits(const Space *space, const Forecast *forecast)
{
    return !space->s.limit || forecast->bytes <= (double)space->s.limit;
}

double search_bytes(const Space *space, const Candidate *candidate)
{
    const Ratio *more = &space->more[candidate->p.schedule];

    return candidate->f.bytes *
           (candidate->known < PRICEcompiled ? fmax(mean_ratio(more), 1) : 1);
}

int search_fits(const Space *space, const Candidate *candidate)
{
    double most = candidate->known < PRICEcompiled ? LARGE : 1;

    return !space->s.limit ||
           search_bytes(space, candidate) <= most * (double)space->s.limit;
}

/* Seconds a step, for a byte of the optimizer's that is in the host's memory:
 * link and processors end at once. */
static double host_byte_secs(const MachineSpeeds *machine)
{
    double all = machine->offload;

    all += machine->cores > 0 ? machine->cores / 2 : 0;
    return machine->offload > 0 ? 1 / all : HUGE_VAL;
}

/* The part of the time for rebuilding all that takes away x of its bytes. What
 * costs least for a byte is rebuilt first: products last. */
static double rebuilding_part(double x)
{
    return 0.2 * x + 0.8 * x * x * x;
}

/* Nothing rebuilt where that fits; else what takes less time for a byte first:
 * rebuilding, and the host's memory for the optimizer. */
static Forecast with_limit(const Space *space, Forecast none, Forecast all)
{
    double rebuilt = fmax(none.bytes - all.bytes, 0), hosted = none.optim;
    double secs = fmax(all.secs - none.secs, 0);
    double more = none.bytes - (double)space->s.limit,
           each = host_byte_secs(&space->s.machine);

    if (!space->s.limit || more <= 0)
        return none;
    hosted = each < HUGE_VAL ? hosted : 0;
    int first = hosted > 0 && each * rebuilt < secs;
    hosted = fmin(hosted, first ? more : fmax(more - rebuilt, 0));
    rebuilt = fmin(rebuilt, more - hosted);
    if (none.bytes > all.bytes)
        none.again = secs * rebuilding_part(rebuilt / (none.bytes - all.bytes));
    none.secs += none.again + (hosted > 0 ? hosted * each : 0);
    none.bytes -= rebuilt + hosted;
    return none;
}

/* Micro-batches that a rank takes in pairs, if these are the faster: in one
 * stage, of an even number. */
static int may_go_in_pairs(const Space *space, const Point *p)
{
    int64_t micros = space->s.batch / (p->batch * p->size[Mdp]);

    return p->size[Mpp] == 1 && p->size[Mep] > 1 && micros % 2 == 0 &&
           !opts_given(space->args->keys, "fold.pair");
}

Forecast search_priced(Space *space, const Point *p,
                       const ModelCost cost[NCOST])
{
    Forecast f[NCOST] = { 0 };

    for (int k = 0; k < NCOST; k++)
        if (cost[k].unit)
            f[k] =
                search_corrected(space, search_combine(&space->s, p, &cost[k]));
    Forecast one = with_limit(space, f[COSTfree], f[COSTall]);
    if (!cost[COSTpairs].unit || !may_go_in_pairs(space, p))
        return one;
    Forecast two = f[COSTpairs];
    return forecast_fits(space, &two) && two.secs < one.secs ? two : one;
}

/* A fallback runs rarely: it rebuilds all, before a step rebuilds anything. A
 * pair keeps what two micro-batches do. */
static void finish_unit(UnitCost *free, const UnitCost *all, UnitCost *pairs)
{
    free->fallback = all->fallback;
    if (!pairs)
        return;
    pairs->fallback = all->fallback;
    pairs->step = free->step;
    pairs->step.kept *= 2;
    pairs->step.input *= 2;
    pairs->step.weights *= 2;
    pairs->step.between *= 2;
}

void finish_costs(const Space *space, ModelCost cost[NCOST])
{
    int pairs = cost[COSTpairs].unit != NULL;

    for (int r = 0; r < space->s.units.nrun; r++)
        finish_unit(&cost[COSTfree].unit[r], &cost[COSTall].unit[r],
                    pairs ? &cost[COSTpairs].unit[r] : NULL);
    finish_unit(&cost[COSTfree].ends, &cost[COSTall].ends,
                pairs ? &cost[COSTpairs].ends : NULL);
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

static void sort_candidates(Space *space)
{
    sorting = space;
    qsort(space->at, vec_len(space->at), sizeof *space->at, by_price);
}

/* Do they differ in the schedule at most, so that short plans are the same? */
static int same_fold(const Point *a, const Point *b)
{
    return !memcmp(a->size, b->size, sizeof a->size) && a->batch == b->batch &&
           a->zero == b->zero;
}

static int same_point(const Point *a, const Point *b)
{
    return same_fold(a, b) && a->vpp == b->vpp && a->schedule == b->schedule;
}

static void take_short(Space *space, const Point *point,
                       const ModelCost cost[NCOST])
{
    for (size_t i = 0; i < vec_len(space->at); i++) {
        Candidate *candidate = &space->at[i];
        if (candidate->known != PRICEscaled || !same_fold(&candidate->p, point))
            continue;
        candidate->guess = candidate->f;
        candidate->f = search_priced(space, &candidate->p, cost);
        candidate->known = PRICEshort;
        int tp = ratio_row(point->size[Mtp]), cp = ratio_row(point->size[Mcp]);
        add_ratio(&space->ratio[tp][cp],
                  candidate->f.secs / candidate->guess.secs);
    }
}

static void refuse_fold(Space *space, const Point *point)
{
    for (size_t i = 0; i < vec_len(space->at); i++)
        if (space->at[i].known == PRICEscaled &&
            same_fold(&space->at[i].p, point))
            space->at[i].known = PRICErefused;
}

static const FoldPrice *price_of(const Space *space, const Point *point)
{
    for (size_t i = 0; i < vec_len(space->fold); i++)
        if (same_fold(&space->fold[i].point, point))
            return &space->fold[i];
    return NULL;
}

/* A fold that has no short plans yet gets jobs, where it is only scaled. Where
 * all fits nothing is rebuilt. */
static void want_fold(Space *space, const Candidate *candidate,
                      ShortFold **want)
{
    const Point *p = &candidate->p;
    double room = (double)space->s.limit;
    int rebuilds = room > 0 && candidate->f.bytes >= CROWDED * room;

    if (candidate->known == PRICEscaled && !price_of(space, p))
        vec_push(forever, space->fold,
                 search_add_jobs(want, *p, space->s.world / p->size[Mpp],
                                 rebuilds, may_go_in_pairs(space, p)));
}

/* Makes the short plans of the folds from `were` on. */
static void price_wanted(Space *space, size_t were, const ShortFold *want)
{
    int n = (int)vec_len(want);
    ModelCost *cost = alloc(forever, ((size_t)n + 1) * sizeof *cost);
    const char *done = search_price_shorts(space, want, n, cost);

    for (size_t i = were; i < vec_len(space->fold); i++)
        search_take_costs(&space->fold[i], done, cost);
}

/* Short plans of the folds from `first` on that are only scaled, of enough to
 * keep all processors busy: which are next is known but for the few that a
 * price moves out of the best. */
static void price_folds(Space *space, size_t first)
{
    size_t were = vec_len(space->fold), n = 2 * (size_t)search_cores();
    ShortFold *want = NULL;

    for (size_t i = first;
         i < vec_len(space->at) && i < SHOWN && vec_len(want) < n; i++)
        want_fold(space, &space->at[i], &want);
    price_wanted(space, were, want);
}

static int is_simple(const Point *p)
{
    return p->size[Mtp] == 1 && p->size[Mcp] == 1 && p->size[Metp] == 1 &&
           p->vpp == 1 && p->schedule == SCHEDULE1f1b;
}

/* What short plans say of a fold that has them. */
static void take_fold(Space *space, const Point *p)
{
    const FoldPrice *fold = price_of(space, p);
    ModelCost own[NCOST];

    if (fold->done == JOBrefused)
        refuse_fold(space, p);
    if (fold->done != JOBdone)
        return;
    memcpy(own, fold->cost, sizeof own);
    finish_costs(space, own);
    take_short(space, p, own);
}

/* Prices the best folds of pp and ep alone, which users try first, by their own
 * short plans, whatever is estimated of others. */
static void price_simple(Space *space)
{
    size_t were = vec_len(space->fold);
    ShortFold *want = NULL;

    for (size_t i = 0;
         i < vec_len(space->at) && vec_len(space->fold) < were + SIMPLE; i++)
        if (is_simple(&space->at[i].p))
            want_fold(space, &space->at[i], &want);
    price_wanted(space, were, want);
    for (size_t i = were; i < vec_len(space->fold); i++)
        take_fold(space, &space->fold[i].point);
    sort_candidates(space);
}

/* The best fold that is only scaled gets short plans of its own; 0: none of the
 * best is. */
static int refine(Space *space)
{
    size_t i = 0;

    while (i < vec_len(space->at) && i < SHOWN &&
           space->at[i].known != PRICEscaled)
        i++;
    if (i == vec_len(space->at) || i == SHOWN)
        return 0;
    Point p = space->at[i].p;
    if (!price_of(space, &p))
        price_folds(space, i);
    search_progress(space);
    if (price_of(space, &p)->done == JOBnot)
        return 0;
    take_fold(space, &p);
    sort_candidates(space);
    return 1;
}

/* ---- whole plans --------------------------------------------------------- */

/* The best compiled one that fits; null: none yet. */
static const Candidate *chosen(const Space *space)
{
    const Candidate *best = NULL;

    for (size_t i = 0; i < vec_len(space->at); i++) {
        const Candidate *candidate = &space->at[i];
        if (candidate->known == PRICEcompiled &&
            forecast_fits(space, &candidate->f) &&
            (!best || candidate->f.secs < best->f.secs))
            best = candidate;
    }
    return best;
}

static void take_whole(Space *space, Candidate *candidate,
                       const Forecast *forecast)
{
    candidate->guess = candidate->f;
    candidate->guess.secs = search_estimate(space, candidate);
    add_ratio(&space->slow[slow_row(&candidate->p)],
              forecast->secs / candidate->guess.secs *
                  mean_ratio(&space->slow[slow_row(&candidate->p)]));
    candidate->f = search_corrected(space, *forecast);
    candidate->known = PRICEcompiled;
    add_ratio(&space->more[candidate->p.schedule],
              forecast->bytes / candidate->guess.bytes);
}

/* Compiles the next `most` of those that have such prices, `one`: of each
 * schedule one; 0: none was. */
static int compile_next(Space *space, PriceKind first, int most, int one)
{
    const Point *p[EXACT];
    Candidate *c[EXACT];
    Forecast f[EXACT];
    int n = 0, ran = 0, seen = 0;

    for (size_t i = 0; i < vec_len(space->at) && n < most; i++) {
        int kind = space->at[i].p.schedule, price = space->at[i].known;
        if (price < (int)first || price > PRICEshort ||
            (one && seen >> kind & 1))
            continue;
        seen |= 1 << kind;
        p[n] = &space->at[i].p;
        c[n++] = &space->at[i];
    }
    if (!n)
        return 0;
    char *done = search_whole(&space->s, p, n, f, space->end);
    for (int i = 0; i < n; i++)
        space->work += search_whole_work(space, c[i]);
    for (int i = 0; i < n; i++) {
        ran += done[i] != JOBnot;
        if (done[i] == JOBdone)
            take_whole(space, c[i], &f[i]);
        else if (done[i] == JOBrefused)
            c[i]->known = PRICErefused;
    }
    sort_candidates(space);
    search_say(space, chosen(space));
    return ran;
}

/* Seconds below which no plan of the model can be on these ranks: its products
 * at the highest rate that its precision has. */
double search_least(const Space *space)
{
    const MachineSpeeds *m = &space->s.machine;
    const Opts *opts = space->s.model[0].g->opts;
    const char *policy = opts_str(opts, "precision.policy");
    int narrow = (policy && !strcmp(policy, "fp8")) ||
                 opts_given(opts, "precision.recipe");
    double rate = fmax(m->gemm, fmax(m->grouped, m->weights));

    rate = narrow ? fmax(rate, fmax(m->narrow, m->narrow_weights)) : rate;
    double least = space->s.flops / ((double)space->s.world * rate);

    return space->from ? least * fmin(space->from->kernels, 1) : least;
}

static int is_decided(const Space *space)
{
    const Candidate *best = chosen(space);
    double least = search_least(space);

    for (size_t i = 0; i < vec_len(space->at); i++)
        if (space->at[i].known < PRICEcompiled &&
            (!best || best->f.secs > least))
            return 0;
    return 1;
}

/* Is the best compiled one, of at[0], so much better than what the others are
 * estimated to take that no estimate is likely to be that wrong? */
static int is_settled(const Space *space)
{
    const Candidate *best = chosen(space);

    for (size_t i = 0; best && i < vec_len(space->at); i++) {
        const Candidate *candidate = &space->at[i];
        if (candidate->known < PRICEcompiled && search_fits(space, candidate))
            return CLOSE * search_estimate(space, candidate) >= best->f.secs;
    }
    return best != NULL;
}

/* Is there a plan that takes no more than is enough, or can none be? */
static int is_answered(const Space *space)
{
    const Candidate *best = chosen(space);

    return space->enough > 0 && (search_least(space) > space->enough ||
                                 (best && best->f.secs <= space->enough));
}

static int in_budget(const Space *space)
{
    return space->work < space->most && search_clock() < space->end &&
           !is_answered(space);
}

/* Is there budget, or, where no plan was found that fits, one left of which
 * estimates do not say that it is far too large? */
static int goes_on(const Space *space)
{
    int late = space->work >= FEW * space->most || search_clock() >= space->end;

    if (in_budget(space))
        return 1;
    for (size_t i = 0; i < vec_len(space->at) && !chosen(space) && !late; i++) {
        const Candidate *candidate = &space->at[i];
        if (candidate->known < PRICEcompiled &&
            (!space->s.limit ||
             search_bytes(space, candidate) < FAR * (double)space->s.limit))
            return 1;
    }
    return 0;
}

/* Can all points that are left be compiled within the budget? */
static int may_finish(const Space *space)
{
    double left = 0;

    for (size_t i = 0; i < vec_len(space->at); i++)
        if (space->at[i].known < PRICEcompiled)
            left += search_whole_work(space, &space->at[i]);
    return space->s.world <= EXACT && in_budget(space) &&
           space->work + left <= space->most;
}

static void compile_best(Space *space)
{
    PriceKind first = PRICEshort;

    while (!is_settled(space) && goes_on(space))
        if (!compile_next(space, first, 2, !chosen(space))) {
            if (first == PRICEscaled)
                break;
            first = PRICEscaled;
        }
    while (!is_decided(space) && may_finish(space))
        if (!compile_next(space, PRICEscaled, EXACT, 0))
            break;
    space->proven = is_decided(space) && vec_len(space->at) == space->legal;
    space->stopped = !space->proven && !in_budget(space);
}

/* ---- the model --------------------------------------------------------- */

/* The model with so many sequences in a micro-batch; 0: as it says. What its
 * own fold{} says does not bind a search. */
Graph *search_traced(const Space *space, int64_t batch)
{
    Opts *o = opts_new(forever);

    opts_copy(o, space->args->keys);
    if (!opts_given(o, "target"))
        opts_set(o, "target", "null", NULL);
    if (batch)
        opts_set(o, space->s.batch_key, strf(forever, "%lld", (long long)batch),
                 NULL);
    return trace(space->args->file, o, TRACEquiet).g;
}

void search_sizes(Space *space, Graph *g)
{
    const Axis *seq = g_role(g, ROLEseq);
    int64_t params, active;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op == Opick && n->at.pick.axis->n > space->s.experts)
            space->s.experts = n->at.pick.axis->n;
    }
    space->s.tokens = g_tokens(g);
    space->s.seq = seq ? seq->n : 0;
    space->s.flops = flops_per_token(g, &params, &active);
}

static void set_world(Space *space, Graph *g)
{
    const Opts *opts = g->opts;

    if (!opts_given(opts, "world"))
        err(NULL, "search: for how many ranks? cluster=h100x64 says a machine "
                  "and their number, or world=64");
    space->s.world = opts_int(opts, "world");
    mesh_new(forever, space->s.world, (int64_t[NMESH]){ 0 },
             opts_str(opts, "fold.order"), NULL);
    space->s.host = opts_int(opts, "fold.host");
    space->s.target = target_of(opts);
    space->s.machine = machine_speeds(opts, space->s.target->machine);
    space->s.limit = memory_limit(opts, space->s.target);
    space->s.weight = dtypes[opts_dtype(opts)].bytes;
}

static int has_loss(const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oloss)
            return 1;
    return 0;
}

/* Micro-batches of 1, 2, 4 .. sequences, or of as many as are given. */
static void set_models(Space *space)
{
    Graph *g = search_traced(space, 0);
    const Axis *a = g_role(g, ROLEbatch);

    if (!a)
        err(NULL, "search: the model has no axis of sequences");
    if (!has_loss(g))
        err(NULL, "search: the model has no loss: there is no step to plan");
    space->s.batch_key = strf(forever, "axes.%s", a->name);
    set_world(space, g);
    search_sizes(space, g);
    space->s.batch = opts_given(g->opts, "train.batch")
                         ? opts_int(g->opts, "train.batch")
                         : a->n;
    space->s.tokens *= (double)space->s.batch / (double)a->n;
    space->s.flops *= space->s.tokens;
    int given = opts_given(space->args->keys, space->s.batch_key);
    for (int64_t b = given ? a->n : 1; b <= (given ? a->n : SEQUENCES); b *= 2)
        if (space->s.batch % b == 0)
            vec_push(forever, space->s.model,
                     ((SearchTrace){
                         .batch = b,
                         .g = b == a->n ? g : search_traced(space, b) }));
    if (!space->s.model)
        err(NULL, "search: %lld sequences a step are no multiple of %s=%lld",
            (long long)space->s.batch, space->s.batch_key, (long long)a->n);
    search_units(&space->s.units, space->s.model[0].g);
    search_shapes(&space->s.units, space->s.model[0].g);
    for (int r = 0; r < space->s.units.nrun; r++)
        space->s.units.shape[r].row *=
            space->s.weight / (double)space->s.model[0].batch;
}

/* ---- the first plan ------------------------------------------------------ */

/* Compiles the best fold of ep and pp alone, by estimates from one rank. It is
 * in no budget. Returns it, PRICEscaled where it was not compiled. */
static Candidate compile_first(Space *space, const ModelCost ref[2])
{
    Candidate first = { 0 };
    const Point *p = &first.p;
    size_t i = 0;

    search_list(space, ref);
    sort_candidates(space);
    while (i < vec_len(space->at) && !is_simple(&space->at[i].p) &&
           space->s.units.nunit)
        i++;
    if (i < vec_len(space->at)) {
        first = space->at[i];
        search_say(space, &first);
        if (*search_whole(&space->s, &p, 1, &first.f, space->end) == JOBdone)
            first.known = PRICEcompiled;
        if (first.known == PRICEcompiled && forecast_fits(space, &first.f))
            search_say(space, &first);
    }
    vec_cut(space->at, 0);
    space->legal = 0;
    space->least = (Candidate){ 0 };
    return first;
}

static void take_first(Space *space, const Candidate *first)
{
    for (size_t i = 0; i < vec_len(space->at); i++)
        if (first->known == PRICEcompiled &&
            same_point(&space->at[i].p, &first->p))
            take_whole(space, &space->at[i], &first->f);
}

/* ---- the command --------------------------------------------------------- */

/* All legal points, best first, each with what is estimated by a plan of one
 * fold; err() where there is none. */
static void list_points(Space *space)
{
    ModelCost ref[2];
    Candidate first = { 0 };

    space->begun = search_clock();
    space->said = HUGE_VAL;
    space->end = space->args->seconds > 0 ? space->begun + space->args->seconds
                                          : HUGE_VAL;
    space->most = space->args->seconds >= 0 ? HUGE_VAL
                  : space->runs             ? BUDGET / FEW
                                            : BUDGET;
    space->s.scratch = arena_new();
    space->s.cuts = table_new(forever);
    space->s.alive = table_new(forever);
    set_models(space);
    space->most *= space->s.world > WIDE ? 2 : 1;
    if (space->from)
        search_measure(space);
    search_pins(space);
    if (!search_reference(space, ref))
        no_point(space);
    if (!space->args->dump)
        first = compile_first(space, ref);
    search_price_plain(space);
    search_progress(space);
    search_list(space, ref);
    if (!space->at)
        space->legal ? nothing_fits(space) : no_point(space);
    take_first(space, &first);
    sort_candidates(space);
}

/* The best compiled plan that fits; err() where there is none. */
const Candidate *search_space(Space *space)
{
    list_points(space);
    price_simple(space);
    compile_next(space, PRICEshort, 2, 0);
    if (space->s.world > EXACT && vec_len(space->at) > MOST)
        vec_cut(space->at, MOST);
    while (in_budget(space) && refine(space))
        ;
    compile_best(space);
    if (!chosen(space))
        nothing_fits(space);
    sort_candidates(space);
    return chosen(space);
}

int search_job(void *arg, FILE *out)
{
    Space x = { .args = arg, .from = search_from(arg) };

    if (x.args->dump) {
        list_points(&x);
        search_print_points(out, &x);
    } else {
        search_report(out, &x, search_space(&x));
    }
    return 0;
}

/* ---- the fold of a run --------------------------------------------------- */

int is_fold_key(const KeyInfo *key)
{
    return !strcmp(key->table, "fold") && strcmp(key->name, "host");
}

static int states(const Opts *opts, const KeyInfo *key)
{
    return is_fold_key(key) && opts_given(opts, key_name(key));
}

int states_fold(const Opts *opts)
{
    for (const KeyInfo *key = keytab; key->name; key++)
        if (states(opts, key))
            return 1;
    return 0;
}

void copy_fold(Opts *to, const Opts *from)
{
    for (const KeyInfo *key = keytab; key->name; key++)
        if (states(from, key))
            opts_set(to, key_name(key), opts_str(from, key_name(key)), NULL);
}

/* Micro-batches stay those of the model: what a step computes depends on their
 * size. Writes the keys, nothing where some are stated. */
static int fold_of_run_job(void *arg, FILE *out)
{
    Args a = *(const Args *)arg;
    const Graph *g = trace(a.file, a.keys, TRACEquiet).g;
    const Axis *batch = g_role(g, ROLEbatch);
    Space x = { .args = &a, .runs = 1 };
    Text t = { .arena = forever };

    if (states_fold(g->opts) || opts_given(g->opts, "train.ramp") || !batch)
        return 0;
    opts_set(a.keys, "target", target_of(g->opts)->name, NULL);
    opts_set(a.keys, strf(forever, "axes.%s", batch->name),
             strf(forever, "%lld", (long long)batch->n), NULL);
    a.seconds = -1;
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

const char *search_fold(const Args *args)
{
    Text t = { .arena = forever };
    int status = guarded(fold_of_run_job, (void *)(uintptr_t)args, &t);

    if (status)
        exit(status);
    return t.len ? t.s : "";
}
