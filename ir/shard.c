/* shard.c: what one rank holds of a tensor. Everything follows from the node's
 * sharding type: a dim sharded over a set of atoms is cut into equal runs, one
 * for each position in the group, where later (slower) atoms are major.
 *
 * Ragged rows have no size of their own: a rank's capacity is what its tokens
 * can send at most to its experts, known from the type of the route node.    */
#include <string.h>

#include "ir.h"

/* Atoms that cut axis a of n. Where a route map is cut its rows are, and none
 * of their other axes.                                                       */
static uint32_t cutters(const Mesh *m, const Node *n, const Axis *a)
{
    uint32_t mask = 0;

    for (int i = 0; m && i < m->natom; i++)
        if (n->sh[i].k == S && n->sh[i].a == a &&
            !(n->map && n->map->sh[i].k == S))
            mask |= 1u << i;
    return mask;
}

static int64_t cut(const Graph *g, const Node *n, Dim d)
{
    uint32_t atoms = cutters(g->mesh, n, d.a);

    if (!atoms)
        return d.n;
    int64_t ranks = mesh_extent(g->mesh, atoms);
    if (d.n % ranks)
        die("%s: %s=%lld cut into %lld parts", n->name ? n->name : "?",
            d.a->name, (long long)d.n, (long long)ranks);
    return d.n / ranks;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows of a rank: l has experts and pairs, in so many micro-batches, all in
 * all of `tokens` tokens. An expert has a token once when `once`.            */
static void capacity(const Node *route, MapLayout *l, int64_t micros,
                     int64_t tokens, int once)
{
    int64_t most = once ? tokens : l->pairs;

    l->cap = once ? least(l->pairs, tokens * l->experts) : l->pairs;
    if (!route->i)
        return;
    most = least(most, route->i * micros);
    l->each = route->j ? most : 0;
    l->cap = route->j ? l->experts * most : least(l->cap, l->experts * most);
}

MapLayout map_layout(const Graph *g, const Node *route)
{
    const Node *e = route->in[0];
    const Axis *slot = route->nB ? route->B[0] : NULL;
    int64_t tokens = 1, top = 1, micros = 1;
    for (int d = 0; d < e->nd; d++) {
        int64_t n = cut(g, route, e->dim[d]);
        if (e->dim[d].a == slot)
            top = n;
        else
            tokens *= n;
        if (!strcmp(e->dim[d].a->name, "micro"))
            micros = n;
    }
    Dim x = {route->A[0], route->A[0]->n};
    MapLayout l = {0};
    l.experts = cut(g, route, x);
    l.pairs = tokens * top;
    capacity(route, &l, micros, tokens, slot != NULL);
    l.offset = 0;
    l.pair = l.experts + 1;
    l.row = l.pair + l.cap;
    l.n = l.row + l.pairs;
    return l;
}

int64_t local_n(const Graph *g, const Node *n, int d)
{
    if (g_isrow(n->dim[d].a))
        return map_layout(g, n->map).cap;
    return cut(g, n, n->dim[d]);
}

int64_t local_elems(const Graph *g, const Node *n)
{
    int64_t e = 1;

    if (n->op == Oroute)
        return map_layout(g, n).n;
    for (int d = 0; d < n->nd; d++)
        e *= local_n(g, n, d);
    return e;
}

int64_t local_bytes(const Graph *g, const Node *n)
{
    return local_elems(g, n) * dtypes[n->dt].bytes;
}

Aff local_start(const Graph *g, const Node *n, int d)
{
    Aff x = aff(0);
    const Mesh *m = g->mesh;
    uint32_t atoms = cutters(m, n, n->dim[d].a);
    int64_t stride = atoms ? local_n(g, n, d) : 0;
    for (int i = 0; atoms && i < m->natom; i++)
        if (atoms >> i & 1) {
            x.k[i] = stride;
            stride *= m->atom[i].size;
        }
    return x;
}

int pieces(const Graph *g, const Node *n, int d, Piece *out, int max)
{
    if (max < 1)
        return 0;
    out[0].start = local_start(g, n, d);
    out[0].len = local_n(g, n, d);
    return 1;
}

uint32_t atoms_of(const Graph *g, const Node *n, ShardKind k)
{
    uint32_t mask = 0;
    for (int i = 0; g->mesh && i < g->mesh->natom; i++)
        if (n->sh[i].k == k)
            mask |= 1u << i;
    return mask;
}
