/* search_cost.c: a step of a point of the search without compiling it, from
 * what units (layers) cost and how a schedule puts them together. What units
 * cost is measured in short plans of the same fold; or, before that is known,
 * scaled from those of one rank:
 *
 *   work          sequences / (tp cp); launches stay
 *   transfers     per unit: 5 of a micro-batch's rows over tp (9 where the
 *                 unit has no experts), 3 over cp, 4 of rows to experts
 *   once a step   what a rank holds of parameters, their gradients over dp
 *
 * On pp stages, m micro-batches, t the slowest stage's (arXiv 2104.04473,
 * 2401.10241, DeepSeek's DualPipeV; F = I = W = t/3):
 *
 *   1f1b          (m - 1) t + sum of t
 *   interleaved   m t + (pp - 1) t / vpp
 *   zerobubble    m t + (pp - 1) t / 3
 *   dualpipev     m t + (pp - 1) t / 3
 *
 * What is alive meanwhile the schedule itself says (search_memory.c).       */
#include "../../ir/settings/keys.h"
#include "search.h"

/* What is there once is not summed: the most of those that are added. */
static KeptBytes weighted_kept(KeptBytes a, double k, KeptBytes b)
{
    KeptBytes c = { a.through + k * b.through,
                    a.kept + k * b.kept,
                    a.input + k * b.input,
                    a.weights + k * b.weights,
                    a.between + k * b.between,
                    a.once_inside,
                    a.once_outside };

    if (k > 0) {
        c.once_inside = fmax(a.once_inside, b.once_inside);
        c.once_outside = fmax(a.once_outside, b.once_outside);
    }
    return c;
}

static UnitCost weighted(UnitCost a, double k, UnitCost b)
{
    return (UnitCost){ a.body + k * b.body,
                       a.open + k * b.open,
                       a.rest + k * b.rest,
                       a.calls + k * b.calls,
                       a.persist + k * b.persist,
                       a.optim + k * b.optim,
                       a.post_bytes + k * b.post_bytes,
                       weighted_kept(a.step, k, b.step),
                       weighted_kept(a.fallback, k, b.fallback) };
}

/* ---- from short plans ---------------------------------------------------- */

/* The run whose units cost what run r's only one does; r: none. */
static int run_like(const SearchModel *model, int r)
{
    double own = 0, flops = 0;
    int best = r;

    for (int u = 0; u < model->nunit; u++)
        own = model->unit[u].run == r ? model->unit[u].flops : own;
    for (int u = 0; u < model->nunit && model->left[r] == 1; u++) {
        flops = model->unit[u].flops;
        if (model->left[model->unit[u].run] > 1 && fabs(flops / own - 1) < 0.05)
            best = model->unit[u].run;
    }
    return best;
}

ModelCost search_costs(const SearchModel *model, const UnitCost *plan)
{
    ModelCost c = { .ends = plan[0] };
    int n = 1;

    c.unit = alloc(forever, (size_t)(model->nrun + 1) * sizeof *c.unit);
    c.ends.step.once_inside = c.ends.fallback.once_inside = 0;
    for (int r = 0; r < model->nrun; r++)
        if (model->left[r] > 1) {
            c.unit[r] = weighted(plan[n++], -1, plan[0]);
            c.unit[r].step.once_outside = c.unit[r].fallback.once_outside = 0;
        }
    for (int r = 0; r < model->nrun; r++) {
        c.unit[r] = c.unit[run_like(model, r)];
        c.ends = weighted(c.ends, -1, c.unit[r]);
    }
    return c;
}

/* ---- scaled -------------------------------------------------------------- */

/* Seconds of a collective of n ranks, `stride` apart, each of which sends so
 * many bytes in all. */
static double send_secs(const Search *search, int64_t n, int64_t stride,
                        double bytes, int each)
{
    double all = (double)n,
           here = (double)(search->host ? search->host / stride : n);

    return n < 2 ? 0
                 : transfer_secs(&search->machine, all,
                                 fmin(fmax(here, 1), all), bytes, each);
}

typedef struct Sharing {  /* of a point */
    double dense, expert; /* ranks that a parameter is cut over, */
    double dp, edp;       /* that hold the same part */
} Sharing;

static Sharing sharing_of(const Point *point)
{
    const int64_t *n = point->size;

    return (Sharing){ (double)n[Mtp], (double)(n[Metp] * n[Mep]),
                      (double)(n[Mdp] * n[Mcp]), (double)n[Medp] };
}

/* Bytes of parameters whose total is `each` an element, `cut` of it shared. */
static double held(const Sharing *sharing, const UnitShape *shape, double each,
                   int cut)
{
    return each * (shape->dense / sharing->dense / (cut ? sharing->dp : 1) +
                   shape->expert / sharing->expert / (cut ? sharing->edp : 1));
}

/* Of a micro-batch, nothing hidden; routed: with those to experts. */
static double unit_transfers(const Search *search, const Point *point,
                             const UnitShape *shape, int routed)
{
    const int64_t *n = point->size;
    double rows = shape->row * (double)point->batch / (double)n[Mcp];
    double own = rows / (double)n[Mtp], ep = (double)n[Mep];
    double hit = ep * (1 - pow(1 - 1 / ep, shape->chosen));
    int times = shape->expert > 0 ? 5 : 9;

    return times * send_secs(search, n[Mtp], 1, rows, 0) +
           3 * send_secs(search, n[Mcp], n[Mtp], rows / 2, 0) +
           (shape->expert > 0
                ? 4 * routed *
                          send_secs(search, n[Mep], n[Metp], own * hit, 1) +
                      4 * send_secs(search, n[Metp], 1,
                                    own * hit * (double)n[Metp], 0)
                : 0);
}

static KeptBytes scaled_kept(KeptBytes k, double share, double through)
{
    return (KeptBytes){ through,
                        k.kept * share,
                        k.input * share,
                        k.weights * share,
                        k.between * share,
                        k.once_inside * share,
                        k.once_outside * share };
}

/* One unit of shape, which costs `ref` on one rank with the sequences of the
 * first model, and `plain` (null: not known) with these and the point's ep.
 * What is done once a step, and parameters, follow from the first. */
static UnitCost scaled_unit(const Search *search, const Point *point,
                            UnitCost ref, const UnitCost *plain,
                            const UnitShape *shape)
{
    Sharing x = sharing_of(point);
    const UnitCost *of = plain ? plain : &ref;
    double launch = search->machine.launch * of->calls;
    double cut = x.dense * (double)point->size[Mcp];
    double share =
        (double)point->batch / ((double)search->model[0].batch * cut);
    double all = shape->dense + shape->expert, now = held(&x, shape, 1, 0);
    double each = all > 0 ? ref.persist / all : 0;
    double weights = each > search->weight ? search->weight : each;
    UnitCost c = { .calls = of->calls };

    c.open = unit_transfers(search, point, shape, !plain);
    if (point->zero > 1)
        c.open +=
            send_secs(search, (int64_t)x.dp, (int64_t)x.dense, 4 * now, 0);
    if (point->zero == 3)
        c.open += 2 * send_secs(search, (int64_t)x.dp, (int64_t)x.dense,
                                search->weight * now, 0);
    c.body = fmax(of->body - launch, 0) * share + launch + c.open;
    c.open += plain ? plain->open * share : 0;
    c.rest = all > 0 ? ref.rest * held(&x, shape, 1, point->zero > 0) / all : 0;
    c.rest += send_secs(search, (int64_t)x.dp, (int64_t)x.dense,
                        (4 + search->weight) * shape->dense / x.dense, 0) +
              send_secs(search, (int64_t)x.edp, (int64_t)x.expert,
                        (4 + search->weight) * shape->expert / x.expert, 0);
    c.optim = held(&x, shape, each - weights, point->zero > 0);
    c.persist = held(&x, shape, weights, point->zero == 3) + c.optim;
    double through =
        all > 0 ? held(&x, shape, ref.step.through / all, point->zero > 1) : 0;
    c.step = scaled_kept(of->step, share, through);
    c.fallback = scaled_kept(of->fallback, share, through);
    c.post_bytes =
        all > 0 ? held(&x, shape, ref.post_bytes / all, point->zero > 1) : 0;
    return c;
}

ModelCost search_scaled(const Search *search, const Point *point,
                        const ModelCost *ref, const ModelCost *plain)
{
    const SearchModel *model = &search->units;
    ModelCost c = { .ends = scaled_unit(search, point, ref->ends,
                                        plain ? &plain->ends : NULL,
                                        &model->ends) };

    c.unit = alloc(search->scratch, (size_t)(model->nrun + 1) * sizeof *c.unit);
    for (int r = 0; r < model->nrun; r++)
        c.unit[r] =
            scaled_unit(search, point, ref->unit[r],
                        plain ? &plain->unit[r] : NULL, &model->shape[r]);
    return c;
}

/* ---- put together -------------------------------------------------------- */

static int is_folded(const Point *point)
{
    return point->schedule == SCHEDULEdualpipev;
}

static int stage_of(const Point *point, int chunk)
{
    int pp = (int)point->size[Mpp];

    return is_folded(point) && chunk >= pp ? 2 * pp - 1 - chunk : chunk % pp;
}

typedef struct StageUnits {
    const int *stage; /* of each unit */
    int *like;        /* by stage: the first whose units are of the same runs */
} StageUnits;

/* Are the units of stage j, one after another, of the runs of stage i's? */
static int same_runs(const SearchModel *model, const int *stage, int i, int j)
{
    int u = 0, v = 0;

    for (;; u++, v++) {
        while (u < model->nunit && stage[u] != i)
            u++;
        while (v < model->nunit && stage[v] != j)
            v++;
        if (u == model->nunit || v == model->nunit)
            return u == v;
        if (model->unit[u].run != model->unit[v].run)
            return 0;
    }
}

/* The chunks of more than one stage; made once for each number of them. */
static const Stages *cut_of(Search *search, const Point *point)
{
    Graph *g = search->model[0].g;
    void **at =
        table_at(search->cuts, (uint64_t)(point->size[Mpp] * point->vpp));

    if (!*at) {
        search_keys(g->opts, point);
        *at = stages_cut(g);
    }
    return *at;
}

static void find_stages(Search *search, const Point *point, StageUnits *to)
{
    const SearchModel *model = &search->units;
    int pp = (int)point->size[Mpp];
    int *stage = alloc(forever, (size_t)(model->nunit + 1) * sizeof *stage);

    for (int u = 0; u < model->nunit && pp > 1; u++)
        stage[u] = stage_of(point, cut_of(search, point)->chunk[u]);
    to->stage = stage;
    to->like = alloc(forever, (size_t)pp * sizeof *to->like);
    for (int i = 0; i < pp; i++)
        while (!same_runs(model, stage, to->like[i], i))
            to->like[i]++;
}

/* Where the units are; made once for each number of stages and chunks. */
static const StageUnits *stages_of(Search *search, const Point *point)
{
    uint64_t chunks = (uint64_t)(point->size[Mpp] * point->vpp);
    void **at = table_at_pair(search->cuts, (uint64_t)point->size[Mpp],
                              2 * chunks + (uint64_t)is_folded(point));

    if (!*at) {
        StageUnits *to = *at = alloc(forever, sizeof *to);
        find_stages(search, point, to);
    }
    return *at;
}

/* What the units of each stage cost. */
static UnitCost *sum_stages(Search *search, const Point *point,
                            const ModelCost *cost)
{
    const SearchModel *model = &search->units;
    const StageUnits *units = stages_of(search, point);
    int pp = (int)point->size[Mpp];
    UnitCost *at = alloc(search->scratch, (size_t)pp * sizeof *at);

    for (int u = 0; u < model->nunit; u++) {
        int stage = units->stage[u];
        if (units->like[stage] == stage)
            at[stage] = weighted(at[stage], 1, cost->unit[model->unit[u].run]);
    }
    for (int i = 0; i < pp; i++)
        at[i] = at[units->like[i]];
    return at;
}

Forecast search_combine(Search *search, const Point *point,
                        const ModelCost *cost)
{
    const SearchModel *model = &search->units;
    int pp = (int)point->size[Mpp], chunks = pp * (int)point->vpp;
    double micros =
        (double)search->batch / (double)(point->batch * point->size[Mdp]);
    double most = 0, sum = 0, rest = 0, open = 0, fill;
    double bytes = 0, optim = 0;
    const UnitCost *at = sum_stages(search, point, cost);
    const StageAlive *alive = search_alive(search, point, (int64_t)micros);

    for (int i = 0; i < pp; i++) {
        int last = i == stage_of(point, chunks - 1), first = !i;
        double part = last ? 1 : 0, params = 0.5 * (first + last);
        UnitCost ends = weighted((UnitCost){ 0 }, part, cost->ends);
        ends.persist = params * cost->ends.persist;
        ends.optim = params * cost->ends.optim;
        ends.step.through = params * cost->ends.step.through;
        double body = at[i].body + ends.body;
        most = fmax(most, body);
        open = fmax(open, at[i].open + ends.open);
        rest = fmax(rest, at[i].rest + ends.rest);
        sum += body;
        double needs = search_stage_bytes(alive, i, point, &at[i], &ends);
        optim = needs > bytes ? at[i].optim + ends.optim : optim;
        bytes = fmax(bytes, needs);
    }
    fill = point->schedule == SCHEDULEinterleaved
               ? (pp - 1) * most / (double)point->vpp
           : point->schedule == SCHEDULE1f1b ? sum - most
                                             : (pp - 1) * most / 3;
    double row = model->nrun ? model->shape[0].row : 0;
    int64_t apart = search->host && search->host < search->world
                        ? search->host
                        : search->world / pp;
    double hops = 2.0 * (chunks - 1) *
                  send_secs(search, pp, apart,
                            row * (double)point->batch /
                                (double)(point->size[Mtp] * point->size[Mcp]),
                            0);
    return (Forecast){ .secs = micros * most + fill + rest + hops,
                       .open = micros * open + hops,
                       .idle = fill,
                       .bytes = bytes,
                       .optim = optim };
}
