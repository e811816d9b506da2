/* row_exchange.c: recognizes row exchanges: an all-to-all with its surrounding
 * nodes becomes one exchange if ranks access each other's memory. Blocks are
 * then never packed: rows are read at their tokens and written to their ranks,
 * and returned rows are summed while they are read.
 *
 *     %b = dispatch %x %m     [src slot d]        sends: rows of x
 *     %s = split %b           [src peer sent d]
 *     %a = alltoall %s
 *
 *     %a = alltoall %t        [src peer sent d]   returns: sums of rows of t
 *     %c = merge %a           [src slot d]
 *     %h = combine %c %m      [tokens to d]
 *     %v = sum %h to
 *
 * m: a map of passes/sharding/exchange.c, marked for such an exchange. */
#include "graph.h"

/* Is map one with an equal block of rows for each rank of the group that
 * numbers pairs by token, then rank? */
static int takes_map(const Graph *g, const Node *map, uint32_t atoms,
                     RowExchange *exchange)
{
    if (map->op != Oroute || !(map->at.route.direct > 0))
        return 0;
    const Node *e = map->in[0];
    MapLayout l = map_layout(g, map);
    int64_t ranks = mesh_extent(g->mesh, atoms);

    exchange->map = map;
    exchange->pair = l.each;
    exchange->tokens = l.pairs / ranks;
    return l.experts == ranks && l.cap == ranks * l.each &&
           !map->at.route.budget && e->nd &&
           e->dim[e->nd - 1].a == route_slot(map);
}

/* Has v the map's token axes, in its order, before a row's axes? */
static int by_token(const Graph *g, const Node *v, const Node *map,
                    RowExchange *exchange)
{
    const Node *e = map->in[0];
    int d = 0;

    for (; d < e->nd - 1; d++)
        if (d >= v->nd || v->dim[d].a != e->dim[d].a ||
            local_n(g, v, d) != local_n(g, e, d))
            return 0;
    exchange->width = 1;
    for (; d < v->nd; d++)
        exchange->width *= local_n(g, v, d);
    return 1;
}

/* Are all of a rank's rows of b in blocks of ranks, in order? */
static int by_block(const Graph *g, const Node *b, const Node *alltoall,
                    const RowExchange *exchange)
{
    const struct alltoall_attrs *t = &alltoall->at.alltoall;
    int64_t rest = 1, before = 1, ranks = mesh_extent(g->mesh, t->atoms);
    int d = 0, from = dim_of(b, t->from), to = dim_of(b, t->to);
    int last = from > to ? from : to;

    for (; d <= last; d++)
        before *= d == from || d == to ? 1 : local_n(g, b, d);
    for (; d < b->nd; d++)
        rest *= local_n(g, b, d);
    return before == 1 && local_n(g, b, to) == ranks &&
           local_n(g, b, from) == 1 && rest == exchange->pair * exchange->width;
}

int sends_rows(const Graph *g, const Node *n, RowExchange *exchange)
{
    if (n->op != Oalltoall || n->in[0]->op != Osplit ||
        n->in[0]->in[0]->op != Odispatch)
        return 0;
    Node *d = n->in[0]->in[0];

    *exchange = (RowExchange){ .alltoall = n, .member = d, .rows = d->in[0] };
    return is_view(n->in[0]) && d->dt == d->in[0]->dt &&
           takes_map(g, d->in[1], n->at.alltoall.atoms, exchange) &&
           by_token(g, d->in[0], d->in[1], exchange) &&
           by_block(g, n->in[0], n, exchange);
}

int returns_rows(const Graph *g, const Node *n, RowExchange *exchange)
{
    const Node *c = n->op == Osum ? n->in[0] : n, *m, *a;

    if (n->op != Osum || c->op != Ocombine || (m = c->in[0])->op != Omerge ||
        (a = m->in[0])->op != Oalltoall || n->at.sum.axes.n != 1 ||
        n->at.sum.axes.v[0] != route_slot(c->in[1]))
        return 0;
    *exchange =
        (RowExchange){ .alltoall = a, .member = n->in[0], .rows = a->in[0] };
    return is_view(m) && n->dt == a->dt && c->dt == a->dt &&
           dtypes[n->dt].kind == 'f' &&
           takes_map(g, c->in[1], a->at.alltoall.atoms, exchange) &&
           by_token(g, n, c->in[1], exchange) &&
           by_block(g, a->in[0], a, exchange);
}
