/* route.c: converts products with indexed weights to rows. A weight indexed by
 * a router's choice, W[e], is virtual; a dot with it becomes a grouped product
 * over rows sorted by expert:
 *
 *     %p = pick %w %e                     %m = route %e
 *     %y = dot %x %p hidden         =>    %r = dispatch %x %m      [row hidden]
 *     %o = sum %y top                     %y = gmm %r %w %m hidden [row ffn]
 *                                         %u = combine %y %m
 *                                         %o = sum %u top
 *
 * Elementwise ops and reductions over other axes stay in rows and convert their
 * operands to rows; any other use converts back (absent pairs are 0). All uses
 * of one e share a row map, and one dispatch per tensor (g_tidy merges
 * them). */
#include "../../ir/settings/keys.h"
#include "model.h"

/* Returns the map of e, one for all uses, so that rows of one dot are rows of
 * the next. */
static Node *route_of(Graph *g, Node *e, Axis *axis, const Node *by)
{
    for (size_t i = vec_len(g->node); i-- > 0;) {
        Node *r = g->node[i];
        if (r->op == Oroute && r->in[0] == e && r->at.route.axis == axis)
            return r;
    }
    Node *m = g_placed(g_node(g, Oroute, by->loc, 1, &e), by);

    struct route_attrs *t = &m->at.route;
    const Node *choice = choice_of(e);
    t->axis = axis;
    if (choice->op == Otopk)
        t->top = choice->at.topk.new;
    double mean = t->top ? mean_choices(g, e) : 0;
    if (mean < map_choices(m))
        t->mean = mean;
    if (e->op == Odrop_to_capacity)
        t->capacity = e->at.drop_to_capacity.rows;
    t->padded = t->capacity && opts_route_policy(g->opts) == ROUTEpadded;
    if (may_overflow(g, m)) {
        t->budget = budget_of(g, m);
        why(g, by, "a rank has room for %g times its equal share of rows",
            t->budget);
    }
    find_groups(m);
    if (!routes_even(g->opts)) {
        RouteModel r = route_model(g->arena, g, m, 0);
        t->skew = route_skew(&r, opts_int(g->opts, "fold.ep"));
    }
    return infer(g, m);
}

static Node *move(Graph *g, Op op, Node *x, Node *map, const Node *by)
{
    Node *in[2] = { x, map };

    return infer(g, g_placed(g_node(g, op, by->loc, 2, in), by));
}

static Node *to_tokens(Graph *g, Node *x, const Node *by)
{
    return x->map ? move(g, Ocombine, x, x->map, by) : x;
}

/* Does x vary over the tokens or choices of map's index? */
static int per_token(const Node *x, const Node *map)
{
    for (int i = 0; i < x->nd; i++)
        if (dim_of(map->in[0], x->dim[i].a) >= 0)
            return 1;
    return 0;
}

static Node *to_rows(Graph *g, Node *x, Node *map, const Node *by)
{
    if (x->map == map)
        return x;
    x = to_tokens(g, x, by);
    return per_token(x, map) ? move(g, Odispatch, x, map, by) : x;
}

static Node *grouped(Graph *g, Node *n, int at)
{
    Node *p = n->in[at], *in[3], *r;

    if (n->in[!at]->op == Opick)
        err(n->loc, "dot: both operands are indexed weights");
    in[2] = route_of(g, p->in[1], p->at.pick.axis, n);
    in[0] = to_rows(g, n->in[!at], in[2], n);
    in[1] = p->in[0];
    if (!in[0]->map)
        err(n->loc, "dot: the operand beside an indexed weight has none of the "
                    "index's axes");
    r = g_placed(g_node(g, Ogmm, n->loc, 3, in), n);
    r->at.gmm.axes = n->at.dot.axes;
    return infer(g, r);
}

static Node *rowwise(Graph *g, Node *n, Node *map)
{
    Node *in[MAXIN];

    for (int k = 0; k < n->nin; k++)
        in[k] = to_rows(g, n->in[k], map, n);
    Node *r = g_copyof(g, n, in);
    r->nd = 0;
    return infer(g, r);
}

/* Is n a reduction within rows? One over batch is not: an update or a metric
 * sums it over all micro-batches, which have other rows. */
static int inside_rows(const Node *n)
{
    const Axes *axes = n_axes(n);

    for (int i = 0; i < axes->n; i++)
        if (dim_of(n->in[0], axes->v[i]) < 0 ||
            axis_covers(axes->v[i], ROLEbatch))
            return 0;
    return 1;
}

static Node *first_map(const Node *n)
{
    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->map)
            return n->in[k]->map;
    return NULL;
}

/* Does op stay in rows? A dropout does not: its mask counts elements of the
 * tensor. */
static int stays(Op op)
{
    return op != Obroadcast && op != Odropout;
}

static Node *lay_out(Graph *g, Node *n, void *ctx)
{
    Node *map = first_map(n);
    OpClass cls = optab[n->op].cls;

    (void)ctx;
    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->op == Opick && n->op == Odot)
            return grouped(g, n, k);
    if (!map || n->map)
        return n;
    if ((cls == EW && stays(n->op)) || (cls == RED && inside_rows(n)))
        return rowwise(g, n, map);
    for (int k = 0; k < n->nin; k++)
        n->in[k] = to_tokens(g, n->in[k], n);
    return n;
}

void pass_route(Graph *g)
{
    rewrite(g, lay_out, NULL);
}
