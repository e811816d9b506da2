/* shard.c: a rank's part of a tensor. It follows from the node's sharding type:
 * a dim sharded over a set of atoms is divided into equal runs, one for each
 * position in the group, with later (slower) atoms major. A size that does not
 * divide is padded, as another axis; a rank's part of the unpadded tensor may
 * then be two pieces (uneven_pieces).
 *
 * Ragged rows have no size: a rank's capacity is the largest number of rows
 * that tokens can send to its experts, which follows from the route node's
 * type. */
#include "graph.h"

/* ---- padding ------------------------------------------------------------- */

Axis *g_padded(Graph *g, Axis *a, int64_t parts)
{
    int64_t n = (a->n / parts + 1) * parts;

    for (int i = 0; i < g->naxis; i++) {
        Axis *x = g->axis[i];
        if (x->root == a && x->parts == parts && x->n == n)
            return x;
    }
    Axis *x = g_instance(g, a);
    x->parts = parts;
    x->n = n;
    x->role = a->role;
    x->loc = a->loc;
    memcpy(x->taken, a->taken, sizeof x->taken);
    return x;
}

Axis *unpadded(Axis *a)
{
    return a->parts ? a->root : a;
}

static Node *with_number(Graph *g, Op op, Node *x, int64_t v)
{
    return g_ew(g, op, x->loc, x, g_const(g, x->loc, Di32, (double)v), NULL);
}

/* Returns x / v, which must be an integer. */
static Node *quotient(Graph *g, Node *x, int64_t v)
{
    Node *rest = with_number(g, Omod, x, v);
    Node *whole = g_ew(g, Osub, x->loc, x, rest, NULL);

    return g_cast(g, with_number(g, Odiv, whole, v), Di32);
}

Node *g_to_padded(Graph *g, const Axis *a, Node *x)
{
    if (!a->parts)
        return x;
    int64_t each = a->root->n / a->parts, all = each * a->parts;
    Node *low = g_ew(g, Oadd, x->loc, x, quotient(g, x, each), NULL);
    Node *high = with_number(g, Omul, with_number(g, Osub, x, all), each + 1);

    high = with_number(g, Oadd, high, each);
    return g_ew(g, Owhere, x->loc, with_number(g, Oge, x, all), high, low);
}

Node *g_from_padded(Graph *g, const Axis *a, Node *x)
{
    if (!a->parts)
        return x;
    int64_t each = a->root->n / a->parts, all = each * a->parts;
    Node *part = quotient(g, x, each + 1);
    Node *at = with_number(g, Omod, x, each + 1);
    Node *low = with_number(g, Omul, part, each);

    low = g_ew(g, Oadd, x->loc, low, at, NULL);
    Node *high = with_number(g, Oadd, part, all);
    Node *last = with_number(g, Oge, at, each);
    Node *i = g_ew(g, Owhere, x->loc, last, high, low);
    Node *none = g_const(g, x->loc, Di32, -1);
    return g_ew(g, Owhere, x->loc, with_number(g, Oge, i, a->root->n), none, i);
}

/* ---- parts of axes ------------------------------------------------------- */

uint32_t cut_atoms(const Mesh *m, const Node *n, const Axis *a)
{
    uint32_t mask = 0;

    for (int i = 0; m && i < m->natom; i++)
        if (n->sh[i].k == S && n->sh[i].a == a &&
            !(n->map && n->map->sh[i].k == S))
            mask |= 1u << i;
    return mask;
}

uint32_t zigzag_atoms(const Mesh *m, const Axis *a)
{
    return m && a->root && a->root->zigzag ? m->mask[Mcp] : 0;
}

uint32_t stride_order(const Mesh *m, const Axis *a, uint32_t atoms)
{
    uint32_t z = atoms & zigzag_atoms(m, a);

    return (atoms & ~z) | z << MAXATOM;
}

/* Returns the number of pieces of a rank. */
static int pieces_each(const Mesh *m, const Axis *a, uint32_t atoms)
{
    return atoms & zigzag_atoms(m, a) ? 2 : 1;
}

int64_t cut_parts(const Mesh *m, const Axis *a, uint32_t atoms)
{
    return mesh_extent(m, atoms) * pieces_each(m, a, atoms);
}

static int64_t cut(const Graph *g, const Node *n, Dim d)
{
    uint32_t atoms = cut_atoms(g->mesh, n, d.a);

    if (!atoms)
        return d.n;
    int64_t ranks = mesh_extent(g->mesh, atoms);
    int64_t parts = ranks * pieces_each(g->mesh, d.a, atoms);
    if (d.n % parts)
        die("%s: %s=%ld cut into %ld parts", n->name ? n->name : "?", d.a->name,
            d.n, parts);
    return d.n / ranks;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

double expected_rows(const Node *route, const MapLayout *layout)
{
    const struct route_attrs *t = &route->at.route;
    double share = t->load > 0 ? t->load : 1;

    if (t->mean > 0)
        share *=
            t->mean / (double)route->in[0]->dim[dim_of(route->in[0], t->top)].n;
    return (double)layout->pairs * (double)layout->experts /
           (double)unpadded(t->axis)->n * share;
}

/* Sets the rows of a rank: layout has experts and pairs, in `micros`
 * micro-batches with `tokens` tokens in all. once: an expert gets a token at
 * most once. */
static void capacity(const Node *route, MapLayout *layout, int64_t micros,
                     int64_t tokens, int once)
{
    const struct route_attrs *t = &route->at.route;
    int64_t most = once ? tokens : layout->pairs;

    layout->cap =
        once ? least(layout->pairs, tokens * layout->experts) : layout->pairs;
    if (t->budget > 0) {
        double share = expected_rows(route, layout) * t->budget;
        layout->cap =
            least(layout->cap, (int64_t)fmax(ceil(share * (1 - 1e-12)), 1));
        layout->first = t->round * layout->cap;
    }
    if (!t->capacity)
        return;
    most = least(most, t->capacity * micros);
    layout->each = t->padded ? most : 0;
    layout->cap = t->padded ? layout->experts * most
                            : least(layout->cap, layout->experts * most);
}

int64_t bucket_at(const Node *pack, int k)
{
    int64_t own = pack->nd > 1 ? pack->dim[0].n : 1, at = 0;

    for (int i = 0; i < k; i++)
        at += (g_elems(pack->in[i]) / own + PACKALIGN - 1) / PACKALIGN *
              PACKALIGN;
    return at;
}

const Axis *route_slot(const Node *route)
{
    return route->at.route.top;
}

int is_rows(const Node *route, const Axis *a)
{
    return g_isrow(a) || axes_at(&route->at.route.blocks, a) >= 0;
}

Axis *axis_cut_over(const Axes *axes, int atom)
{
    for (int i = 0; i < axes->n; i++)
        if (axes->v[i]->atoms >> atom & 1)
            return axes->v[i];
    return NULL;
}

Axis *block_axis(const Node *route, int atom)
{
    Axis *block = axis_cut_over(&route->at.route.blocks, atom);

    return block ? block : axis_cut_over(&route->at.route.peers, atom);
}

/* Returns a rank's tokens along d; received tokens count where they are. */
static int64_t tokens_along(const Graph *g, const Node *route, Dim d)
{
    int64_t n = cut(g, route, d);

    if (axes_at(&route->at.route.peers, d.a) < 0)
        return n;
    for (int i = 0; i < g->mesh->natom; i++)
        if (d.a->atoms >> i & 1 && route->sh[i].k == S && route->sh[i].a != d.a)
            n /= g->mesh->atom[i].size;
    return n;
}

MapLayout map_layout(const Graph *g, const Node *route)
{
    const Node *e = route->in[0];
    const Axis *slot = route_slot(route);
    int64_t tokens = 1, top = 1, micros = 1;
    for (int d = 0; d < e->nd; d++) {
        int64_t n = tokens_along(g, route, e->dim[d]);
        if (e->dim[d].a == slot)
            top = n;
        else
            tokens *= n;
        if (g_ismicro(e->dim[d].a) && !route->at.route.blocks.n)
            micros = n;
    }
    Dim x = { route->at.route.axis, route->at.route.axis->n };
    MapLayout l = { 0 };
    l.experts = cut(g, route, x);
    l.pairs = tokens * top;
    capacity(route, &l, micros, tokens, slot != NULL);
    l.offset = 0;
    l.base = l.experts + 1;
    l.pair = l.base + (route->at.route.stash > 0);
    l.row = l.pair + l.cap;
    l.total = l.row + l.pairs;
    l.n = l.total + (route->at.route.budget > 0);
    return l;
}

int64_t row_blocks(int64_t cap, int64_t experts)
{
    return (cap + (SCALEBLOCK - 1) * experts) / SCALEBLOCK;
}

double rows_of_expert(const Graph *g, const Node *route)
{
    if (!route || route->op != Oroute)
        return 1;
    MapLayout l = map_layout(g, route);
    return fmin((double)l.cap, expected_rows(route, &l)) / (double)l.experts;
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

int64_t local_stride(const Graph *g, const Node *n, const Axis *a)
{
    int64_t s = 1;
    int at = dim_of(n, a);

    for (int d = n->nd - 1; d > at; d--)
        s *= local_n(g, n, d);
    return at < 0 ? 0 : s;
}

int64_t local_bytes(const Graph *g, const Node *n)
{
    return local_elems(g, n) * dtypes[n->dt].bytes;
}

int pieces(const Graph *g, const Node *n, int d, Piece out[MAXPIECE])
{
    Axis *a = n->dim[d].a;

    return axis_pieces(g->mesh, local_n(g, n, d), cut_atoms(g->mesh, n, a),
                       zigzag_atoms(g->mesh, a), out);
}

RankAffine local_start(const Graph *g, const Node *n, int d)
{
    Piece p[MAXPIECE];

    if (pieces(g, n, d, p) > 1)
        die("%s: %s lies in pieces", n->name ? n->name : optab[n->op].name,
            n->dim[d].a->name);
    return p[0].start;
}

/* ---- types --------------------------------------------------------------- */

const Shard whole_type[MAXATOM];

/* Types with one hash, linked. */
typedef struct KnownType KnownType;
struct KnownType {
    Shard sh[MAXATOM];
    KnownType *next;
};

int same_type(const Shard *x, const Shard *y)
{
    for (int t = 0; t < MAXATOM && x != y; t++)
        if (!same_shard(&x[t], &y[t]))
            return 0;
    return 1;
}

static Shard plain(const Shard *s)
{
    return (Shard){ s->k, s->k == P ? s->op : Radd, s->k == S ? s->a : NULL };
}

const Shard *g_type(Graph *g, const Shard *sh)
{
    uint64_t hash = 0;

    if (same_type(sh, whole_type))
        return whole_type;
    for (int t = 0; t < MAXATOM; t++) {
        Shard s = plain(&sh[t]);
        hash = mix64(hash, KEYP(s.a) + (uint64_t)s.k * NREDUCE + s.op);
    }
    void **first = table_at(g->types, hash);
    for (const KnownType *known = *first; known; known = known->next)
        if (same_type(known->sh, sh))
            return known->sh;
    KnownType *known = alloc(table_arena(g->types), sizeof *known);
    for (int t = 0; t < MAXATOM; t++)
        known->sh[t] = plain(&sh[t]);
    known->next = *first;
    *first = known;
    return known->sh;
}

const Shard *g_type_along(Graph *g, const Shard *sh, const Axis *a, Axis *b)
{
    Shard along[MAXATOM];

    for (int t = 0; t < MAXATOM; t++) {
        along[t] = sh[t];
        if (sh[t].k == S && sh[t].a == a)
            along[t].a = b;
    }
    return g_type(g, along);
}

int is_partial(const Node *n)
{
    for (int t = 0; t < MAXATOM; t++)
        if (n->sh[t].k == P)
            return 1;
    return 0;
}

uint32_t atoms_of(const Graph *g, const Node *n, ShardKind k)
{
    uint32_t mask = 0;
    for (int i = 0; g->mesh && i < g->mesh->natom; i++)
        if (n->sh[i].k == k)
            mask |= 1u << i;
    return mask;
}
