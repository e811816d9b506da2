/* route_model.c: distribution of routing that a plan assumes. A token chooses K
 * of E experts, by a group-limited router from M of G groups of neighbours; the
 * probability of a set of experts is proportional to the product of their odds
 * (route.assume): 1 each, 1/(i+1)^s, or from a file. The probability that a
 * token has no expert in a part is a ratio of sums over sets,
 *
 *     sum over M groups and K of their experts outside the part, of the odds
 *     ----------------------------------------------------------------------
 *     the same sum over all experts
 *
 * which one pass over the experts computes exactly. */
#include "graph.h"

/* ---- the choice ---------------------------------------------------------- */

/* Is e a choice of forced_choices.c under route.balance: e * 0 + the pair's
 * expert? */
static int is_forced(const Node *e)
{
    return e->op == Oadd && e->in[0]->op == Omul &&
           e->in[0]->in[1]->op == Oconst &&
           e->in[0]->in[1]->at.constant.value == 0;
}

static int is_none(const Node *n)
{
    while (n->op == Obroadcast || n->op == Ocast)
        n = n->in[0];
    return n->op == Oconst && n->at.constant.value < 0;
}

/* Returns a of e = where(c, a, -1), a router that drops some choices; null: e
 * is not one. */
static const Node *before_leaving(const Node *e)
{
    return e->op != Owhere     ? NULL
           : is_none(e->in[2]) ? e->in[1]
           : is_none(e->in[1]) ? e->in[2]
                               : NULL;
}

const Node *choice_of(const Node *e)
{
    const Node *all;

    if (e->op == Odrop_to_capacity)
        e = e->in[0];
    if (is_forced(e))
        e = e->in[0]->in[0];
    while ((all = before_leaving(e)))
        e = all;
    return e;
}

double mean_choices(const Graph *g, const Node *e)
{
    double mean = opts_num(g->opts, "route.mean");

    if (e->op == Odrop_to_capacity)
        e = e->in[0];
    return before_leaving(e) ? mean : 0;
}

/* ---- group-limited routers ----------------------------------------------- */

static const Node *behind_casts(const Node *n)
{
    while (n->op == Ocast || n->op == Ostop_gradient)
        n = n->in[0];
    return n;
}

/* Returns the number of groups of a token if merge is where(any(one_hot(topk of
 * groups)), scores, -inf), merged; 0: it is not. */
static int64_t kept_groups(const Node *merge, const Axis *groups)
{
    const Node *w = behind_casts(merge->in[0]), *c;

    if (w->op != Owhere || behind_casts(w->in[2])->op != Oconst ||
        behind_casts(w->in[2])->at.constant.value != -INFINITY)
        return 0;
    c = behind_casts(w->in[0]);
    if (c->op != Omax || c->in[0]->op != Oeq)
        return 0;
    for (int k = 0; k < 2; k++) {
        const Node *node = behind_casts(c->in[0]->in[k]);
        if (node->op == Otopk && node->at.topk.axis == groups)
            return node->at.topk.k;
    }
    return 0;
}

void find_groups(Node *map)
{
    struct route_attrs *t = &map->at.route;
    const Node *e = choice_of(map->in[0]);
    const Node *s = e->op == Otopk ? behind_casts(e->in[0]) : e;

    if (s->op != Omerge || s->at.merge.axes.n != 2)
        return;
    const Axis *groups = s->at.merge.axes.v[0];
    t->kept =
        s->at.merge.new->n == unpadded(t->axis)->n ? kept_groups(s, groups) : 0;
    t->groups = t->kept ? groups->n : 0;
}

/* ---- odds ---------------------------------------------------------------- */

static double *odds_in(Arena *a, const Opts *opts, int64_t experts)
{
    const char *path = opts_str(opts, "route.assume");
    size_t n;
    char *s = file_read(a, path, &n), *end;
    double *v = alloc(a, (size_t)experts * sizeof *v);

    if (!s)
        err(opts_loc(opts, "route.assume"), "cannot read %s: %s", path,
            file_why());
    s = strf(a, "%.*s", (int)n, s);
    for (int64_t i = 0; i < experts; i++, s = end) {
        v[i] = strtod(s, &end);
        if (end == s || !(v[i] > 0) || isinf(v[i]))
            err(opts_loc(opts, "route.assume"),
                "%s: the odds of %ld experts are wanted, numbers above 0; "
                "number %ld is none",
                path, experts, i + 1);
    }
    return v;
}

static double *zipf(Arena *a, double s, int64_t experts)
{
    double *v = alloc(a, (size_t)experts * sizeof *v);

    for (int64_t i = 0; i < experts; i++)
        v[i] = pow((double)i + 1, -s);
    return v;
}

int assumed_power(const Opts *opts, double *power)
{
    const char *s = opts_str(opts, "route.assume");
    int is_zipf = !strncmp(s, "zipf:", 5);

    *power = is_zipf ? strtod(s + 5, NULL) : 0;
    return is_zipf || !strcmp(s, "uniform");
}

int routes_even(const Opts *opts)
{
    double power;

    return assumed_power(opts, &power) && power == 0;
}

double map_choices(const Node *map)
{
    const struct route_attrs *t = &map->at.route;
    int top = t->top ? dim_of(map->in[0], t->top) : -1;

    return t->mean > 0 ? t->mean : top < 0 ? 1 : (double)map->in[0]->dim[top].n;
}

/* Does the map number slots of clones (clone_plan.c), whose odds are
 * unknown? */
static int numbers_clones(const Node *map)
{
    const Node *e = map->in[0];

    return e->op == Omax && axes_at(&e->at.max.axes, map->at.route.axis) >= 0;
}

RouteModel route_model(Arena *a, const Graph *g, const Node *map, int even)
{
    const struct route_attrs *t = &map->at.route;
    double power;
    RouteModel r = { .experts = unpadded(t->axis)->n,
                     .parts = t->axis->parts ? t->axis->parts : 1,
                     .chosen = map_choices(map),
                     .groups = t->kept ? t->groups : 1,
                     .kept = t->kept ? t->kept : 1 };

    if (even || numbers_clones(map))
        r.odds = zipf(a, 0, r.experts);
    else if (assumed_power(g->opts, &power))
        r.odds = zipf(a, power, r.experts);
    else
        r.odds = odds_in(a, g->opts, r.experts);
    return r;
}

/* ---- probabilities ------------------------------------------------------- */

enum { MOST = 64 }; /* experts of a token, groups; beyond it odds are equal */

int64_t route_places(const RouteModel *model)
{
    return (model->experts + model->parts - 1) / model->parts * model->parts;
}

/* Is expert i at places [first, end)? */
static int stands_in(const RouteModel *model, int64_t i, int64_t first,
                     int64_t end)
{
    int64_t at = uneven_place(model->experts, model->parts, i);

    return at >= first && at < end;
}

/* Sums over sets of 0 .. many experts of [from, to) outside [first, end). */
static void sets_of(const RouteModel *model, int64_t many, int64_t from,
                    int64_t to, int64_t first, int64_t end, double *e)
{
    memset(e, 0, (size_t)(many + 1) * sizeof *e);
    e[0] = 1;
    for (int64_t i = from; i < to; i++)
        if (!stands_in(model, i, first, end))
            for (int64_t k = many; k > 0; k--)
                e[k] += e[k - 1] * model->odds[i];
}

static double sets_outside(const RouteModel *model, int64_t many, int64_t first,
                           int64_t end)
{
    double sum[MOST + 1][MOST + 1]; /* [groups][experts] so far */
    double e[MOST + 1];
    int64_t size = model->experts / model->groups;

    memset(sum, 0, (size_t)(model->kept + 1) * sizeof *sum);
    sum[0][0] = 1;
    for (int64_t g = 0; g < model->groups; g++) {
        sets_of(model, many, g * size, (g + 1) * size, first, end, e);
        for (int64_t m = model->kept; m > 0; m--)
            for (int64_t k = many; k >= 0; k--)
                for (int64_t j = 0; j <= k; j++)
                    sum[m][k] += sum[m - 1][k - j] * e[j];
    }
    return sum[model->kept][many];
}

/* Interpolates between the two neighbouring integers of a fractional mean: of
 * all mixtures with this mean it has the largest probability. */
double route_hit(const RouteModel *model, int64_t first, int64_t n)
{
    int64_t few = (int64_t)model->chosen;
    double more = model->chosen - (double)few, hit = 0;

    if (model->chosen >= (double)model->experts)
        return n > 0;
    if (few + (more > 0) > MOST || model->kept > MOST)
        return 1;
    for (int64_t k = few; k <= few + (more > 0); k++)
        hit += (k == few ? 1 - more : more) *
               (1 - sets_outside(model, k, first, first + n) /
                        sets_outside(model, k, 0, 0));
    return hit;
}

double route_pairs(const RouteModel *model, int64_t first, int64_t n)
{
    double sum = 0;

    for (int64_t i = first; i < first + n; i++)
        sum += route_hit(model, i, 1);
    return sum;
}

double route_skew(const RouteModel *model, int64_t ranks)
{
    int64_t n = route_places(model) / ranks; /* places of an equal share */
    double most = 0,
           equal = model->chosen / ((double)model->experts / (double)n);

    for (int64_t k = 0; k < ranks; k++)
        most = fmax(most, route_pairs(model, k * n, n));
    return most / equal;
}
