/* clones.c: experts that have most tokens are copied to ranks that have few,
 * and share their tokens with their copies (route.clones; ECHO):
 *
 *     %m = route %e expert             %s  = slot of each choice's clone, or -1
 *     %r = dispatch %x %m              %m  = route (%s < 0 ? %e : -1) expert
 *     %y = gmm %r %w %m          =>    %r  = dispatch %x %m
 *     %u = combine %y %m               %y  = gmm %r %w %m ..
 *     %o = sum %u top                  %mc = route %s clone
 *                                      %rc = dispatch %x %mc
 *                                      %wc = gather %w %c       [clone ..]
 *                                      %yc = gmm %rc %wc %mc ..
 *                                      %o  = add (sum ..) (sum ..)
 *
 * clone numbers the slots of all ranks, cut over them as experts are; %c is the
 * expert in each, -1 in none (clone_plan.c, by the counts of the micro-batch).
 * A gather along what ep cuts is a partial sum, which a reduce-scatter takes to
 * the slots; its gradient, a scatter, brings those of clones home, where they
 * are added. Nothing else knows of clones: they have no state. Which rows a
 * clone takes is said by the token's number alone, so that all folds agree. In
 * step.fallback there are none. */
#include "../../ir/settings/keys.h"
#include "model.h"

/* ---- where --------------------------------------------------------------- */

/* What the map's rows multiply; null: something that has no copies. */
static Node **weights_of(const Graph *g, const Node *m)
{
    Node **w = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == Ogmm && n->in[2] == m)
            vec_push(g->arena, w, n->in[1]);
    }
    return w;
}

static int is_site(const Graph *g, const Node *m)
{
    return m->op == Oroute && m->reg == REGbody && of_batch(m->in[0]) &&
           dim_of(m->in[0], unpadded(m->at.route.axis)) < 0 &&
           vec_len(weights_of(g, m));
}

static CloneSite site_of(Graph *g, Node *m, int64_t slots)
{
    const Axis *axis = m->at.route.axis;
    int64_t ranks = opts_int(g->opts, "fold.ep");
    CloneSite s = { .graph = g,
                    .map = m,
                    .b = cursor_at(g, m),
                    .expert = unpadded(m->at.route.axis),
                    .each = axis->n / ranks };

    if (slots > s.expert->n - s.each)
        err(opts_loc(g->opts, "route.clones"),
            "route.clones=%lld: there are only %lld experts that a rank has "
            "not",
            (long long)slots, (long long)(s.expert->n - s.each));
    s.expert2 = own_axis(g, "other", s.expert->n);
    s.rank = own_axis(g, "rank", ranks);
    s.rank2 = own_axis(g, "other", ranks);
    s.copy = own_axis(g, "copy", slots);
    s.clone = own_axis(g, "clone", ranks * slots);
    s.clone2 = own_axis(g, "other", ranks * slots);
    s.clone->role = ROLEchoice;
    return s;
}

/* ---- rows ---------------------------------------------------------------- */

/* The map of the clones' rows. `share` of an equal share of all rows is
 * expected there on the fullest rank; there is room for CLONEROOM, which is
 * what the plan gives it at most. */
static Node *map_of_clones(const CloneSite *site, Node *slot, double share)
{
    Graph *g = site->graph;
    Node *m = g_node(g, Oroute, site->map->loc, 1, &slot);
    const struct route_attrs *home = &site->map->at.route;
    struct route_attrs *t = &m->at.route;

    share = fmax(share, CLONELEAST);
    t->axis = site->clone;
    t->top = home->top;
    t->budget = home->budget * CLONEROOM / share;
    if (t->top)
        t->mean = map_choices(site->map) * share;
    else
        t->load = share;
    return infer(g, m);
}

static Node *copied(const CloneSite *site, Node *w, const ClonePlan *plan)
{
    Node *place =
        g_to_padded(site->graph, site->map->at.route.axis, plan->expert);

    return b_gather(cursor_at(site->graph, w), w, place,
                    site->map->at.route.axis);
}

static double elements_each(Node *const *w, const Axis *axis)
{
    double e = 0;

    for (size_t i = 0; i < vec_len(w); i++)
        e += (double)g_elems(w[i]) / (double)axis->n;
    return e;
}

static void place(Graph *g, size_t first, const Node *by)
{
    for (size_t i = first; i < vec_len(g->node); i++)
        g_placed(g->node[i], by);
}

static void add_clones(RowCopies *copies, const CloneSite *site)
{
    Graph *g = copies->graph;
    size_t first = vec_len(g->node);
    Node *m = site->map, **w = weights_of(g, m);
    Table *instead = table_new(copies->arena);
    int64_t tokens;

    CloneLoad load = expected_clones(site);
    report_clones(site, &load, elements_each(w, m->at.route.axis));
    ClonePlan plan = plan_clones(site);
    Node *token = token_number(g, m, m->in[0], m->at.route.top, &tokens);
    Node *slot = clone_of(site, &plan, token);
    for (size_t i = 0; i < vec_len(w); i++)
        if (!table_get(instead, KEYP(w[i])))
            *table_at(instead, KEYP(w[i])) = copied(site, w[i], &plan);
    Node *none = g_const(g, m->loc, Di32, -1);
    Node *is = g_ew(g, Oge, m->loc, slot, g_const(g, m->loc, Di32, 0), NULL);
    Node *home = g_ew(g, Owhere, m->loc, is, none, m->in[0]);
    Node *map[2] = { m, map_of_clones(site, slot, load.clones) };
    int counts = opts_int(g->opts, "train.expert_metrics") != 0;
    Node *most = counts ? clone_load(site, slot) : NULL;
    place(g, first, m);
    if (most)
        add_metric(g, "clone_load", most);
    sum_rows_of_maps(copies, map, 2, instead);
    m->in[0] = home;
    m->at.route.skew =
        routes_even(g->opts) ? 0 : fmax(load.after - load.clones, 0);
}

/* ---- entry --------------------------------------------------------------- */

static int has_ranks(const Graph *g)
{
    const Loc *loc = opts_loc(g->opts, "route.clones");

    if (opts_route_policy(g->opts) != ROUTEdropless)
        err(loc, "route.clones: clones are for tokens that no policy drops, "
                 "route.policy=dropless");
    if (opts_int(g->opts, "fold.ep") > 1)
        return 1;
    if (g->prog == PGstep && !g->compile->options.again)
        warn(loc,
             "route.clones changes nothing: fold.ep is 1, so no other rank "
             "could take an expert's rows");
    return 0;
}

void pass_clones(Graph *g)
{
    int64_t slots = opts_int(g->opts, "route.clones");
    size_t count = vec_len(g->node);
    RowCopies copies = { .graph = g, .arena = arena_new() };

    if (slots && has_ranks(g) && g->prog != PGfallback) {
        g_renumber(g);
        for (size_t i = 0; i < count; i++) {
            Node *m = g->node[i];
            if (!is_site(g, m))
                continue;
            CloneSite site = site_of(g, m, slots);
            add_clones(&copies, &site);
        }
        g_sort(g);
        g_tidy(g);
    }
    arena_free(copies.arena);
}
