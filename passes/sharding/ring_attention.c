/* ring_attention.c: ring attention over sharded keys (fold.ring). In as many
 * rounds as ranks share the keys, a rank attends with its queries to the keys
 * it has and passes these to the next rank; in round s it has the keys of the
 * s-th rank before it:
 *
 *     %a = attn %q %k %v  key:cp      %a  = attn %q %k %v  round 0
 *     %o = part %a 0             =>   %k1 = ppermute %k     %v1 = ppermute %v
 *                                     %a1 = attn %q %k1 %v1  round 1
 *                                     %o  = sum of part 0, each weighted by
 *                                           exp(part 1 - total logsumexp)
 *
 * In the backward, gradients of queries are summed in place; those of keys
 * travel with their keys and return with one more step. Sums over rounds have
 * the type of the logsumexps. The keys of a round live only in that round, in
 * forward and backward, and no rank ever has all of them.
 *
 * An attn or attn_bwd whose j is a set of atoms has keys sharded over them
 * (place); i is 1 + its round. */
#include "sharding.h"

typedef struct Parts { /* parts of an attention */
    Node **old;        /* vec: its parts in the old graph */
    Node **now;        /* vec: their replacements */
} Parts;

typedef struct Ring {
    Graph *graph;
    Table *parts;     /* attn or attn_bwd -> Parts */
    const Node *node; /* the attention being rewritten */
} Ring;

/* ---- building ------------------------------------------------------------ */

static Node *as(Node *n, const Node *like, Region reg)
{
    n->sh = like->sh;
    n->reg = reg;
    n->scope = like->scope;
    return n;
}

/* Returns an elementwise op on values of a's type. */
static Node *ew(const Ring *ring, Op op, Node *a, Node *b, Node *c)
{
    return as(g_ew(ring->graph, op, ring->node->loc, a, b, c), a,
              ring->node->reg);
}

static Node *rotated(const Ring *ring, Node *x, int again)
{
    Node *n = g_node(ring->graph, Oppermute, ring->node->loc, 1, &x);

    n->at.ppermute = (struct ppermute_attrs){ ring->node->at.attn.key,
                                              ring->node->at.attn.ring, 1 };
    n->again = again;
    as(infer(ring->graph, n), x, ring->node->reg);
    n->scope = ring->node->scope;
    return n;
}

static int travels(const Ring *ring, const Node *x)
{
    return dim_of(x, ring->node->at.attn.key) >= 0 && !is_position(x);
}

/* Returns round s on the given operands. */
static Node *round_of(const Ring *ring, Node *const *in, int64_t s)
{
    Node *n = g_copyof(ring->graph, ring->node, in);

    n->at.attn.round = 1 + s;
    return infer(ring->graph, n);
}

static Node *part_of(const Ring *ring, Node *of, const Node *like, Dtype dt)
{
    Node *p = new_part(ring->graph, of, like->at.part.index, dt, like);

    return as(p, like, ring->node->reg);
}

static Dtype sum_type(const Node *n)
{
    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->dt == Df64)
            return Df64;
    return Df32;
}

static void turn(const Ring *ring, Node **in, int n, int again)
{
    for (int k = 0; k < n; k++)
        if (travels(ring, in[k]))
            in[k] = rotated(ring, in[k], again);
}

/* ---- forward ------------------------------------------------------------- */

typedef struct Merged {
    Node *out, *lse;
} Merged;

static Node *sum_of(const Ring *ring, Node *const *v, int64_t n)
{
    Node *s = v[0];

    for (int64_t i = 1; i < n; i++)
        s = ew(ring, Oadd, s, v[i], NULL);
    return s;
}

static Node *number(const Ring *ring, Dtype dt, double v)
{
    Node *c = g_const(ring->graph, ring->node->loc, dt, v);

    c->reg = ring->node->reg;
    c->scope = ring->node->scope;
    return c;
}

/* Merges the results of n rounds. Queries without keys in all rounds, logsumexp
 * -inf, give 0. */
static Merged merge(const Ring *ring, Node **out, Node **lse, int64_t n)
{
    Dtype dt = lse[0]->dt;
    Node *top = lse[0];

    for (int64_t s = 1; s < n; s++)
        top = ew(ring, Omaximum, top, lse[s], NULL);
    Node *none = ew(ring, Oeq, top, number(ring, dt, -INFINITY), NULL);
    Node *base = ew(ring, Owhere, none, number(ring, dt, 0), top);
    for (int64_t s = 0; s < n; s++) {
        lse[s] = ew(ring, Oexp, ew(ring, Osub, lse[s], base, NULL), NULL, NULL);
        out[s] = ew(ring, Omul, out[s], lse[s], NULL);
    }
    Node *sum = sum_of(ring, lse, n);
    sum = ew(ring, Owhere, none, number(ring, dt, 1), sum);
    Node *all = ew(ring, Oadd, base, ew(ring, Olog, sum, NULL, NULL), NULL);
    return (Merged){ ew(ring, Odiv, sum_of(ring, out, n), sum, NULL),
                     ew(ring, Owhere, none, top, all) };
}

static Merged forward(const Ring *ring, const Parts *parts)
{
    Graph *g = ring->graph;
    const Node *n = ring->node, *o = parts->old[0];
    int64_t ranks = mesh_extent(g->mesh, n->at.attn.ring);
    Node **out = alloc(g->arena, (size_t)ranks * sizeof *out);
    Node **lse = alloc(g->arena, (size_t)ranks * sizeof *lse), *in[MAXIN];

    for (size_t i = 0; i < vec_len(parts->old); i++)
        o = parts->old[i]->at.part.index == 0 ? parts->old[i] : o;
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    for (int64_t s = 0; s < ranks; s++) {
        if (s)
            turn(ring, in, n->nin, 0);
        Node *a = round_of(ring, in, s);
        out[s] = part_of(ring, a, o, sum_type(n));
        lse[s] = as(logsumexp_part(g, a, o), o, n->reg);
        lse[s]->dt = sum_type(n);
    }
    return merge(ring, out, lse, ranks);
}

/* ---- backward ------------------------------------------------------------ */

/* Returns the dtype of gradients between rounds: partial sums are not
 * rounded. */
static Dtype gradient_type(const Ring *ring, const Node *node)
{
    return atoms_of(ring->graph, node, P) ? node->dt : sum_type(ring->node);
}

static void backward_rounds(const Ring *ring, Parts *parts)
{
    const Node *n = ring->node;
    int64_t ranks = mesh_extent(ring->graph->mesh, n->at.attn.ring);
    size_t np = vec_len(parts->old);
    Node *in[MAXIN + 3],
        **sum = alloc(ring->graph->arena, (np + 1) * sizeof *sum);

    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    for (int64_t s = 0; s < ranks; s++) {
        if (s)
            turn(ring, in, n->nin - 3, 1);
        Node *b = round_of(ring, in, s);
        for (size_t i = 0; i < np; i++) {
            Node *o = parts->old[i],
                 *x = part_of(ring, b, o, gradient_type(ring, o));
            if (sum[i] && travels(ring, o))
                sum[i] = rotated(ring, sum[i], 0);
            sum[i] = sum[i] ? ew(ring, Oadd, sum[i], x, NULL) : x;
        }
    }
    for (size_t i = 0; i < np; i++) {
        if (travels(ring, parts->old[i]))
            sum[i] = rotated(ring, sum[i], 0);
        vec_push(ring->graph->arena, parts->now, sum[i]);
    }
}

/* ---- the pass ------------------------------------------------------------ */

static int is_ring(const Node *n)
{
    return (n->op == Oattn || n->op == Oattn_bwd) && n->at.attn.ring &&
           !n->at.attn.round;
}

static void take_apart(Ring *ring, Node *n)
{
    Parts *p = table_get(ring->parts, KEYP(n));

    ring->node = n;
    if (!p)
        return;
    why(ring->graph, n, "keys stay cut over %lld ranks and go around them",
        (long long)mesh_extent(ring->graph->mesh, n->at.attn.ring));
    if (n->op == Oattn_bwd) {
        backward_rounds(ring, p);
        return;
    }
    Merged m = forward(ring, p);
    for (size_t i = 0; i < vec_len(p->old); i++)
        vec_push(ring->graph->arena, p->now,
                 p->old[i]->at.part.index ? m.lse : m.out);
}

static Node *replace(Graph *g, Node *n, void *ctx)
{
    Ring *ring = ctx;

    if (is_ring(n))
        take_apart(ring, n);
    if (n->op != Opart || !is_ring(n->in[0]))
        return n;
    Parts *p = table_get(ring->parts, KEYP(n->in[0]));
    size_t i = 0;
    while (p->old[i] != n)
        i++;
    Node *x = p->now[i];
    return x->dt == n->dt ? x : as(g_cast(g, x, n->dt), n, n->reg);
}

void pass_ring_attention(Graph *g)
{
    Ring r = { .graph = g, .parts = table_new(g->arena) };

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op != Opart || !is_ring(n->in[0]))
            continue;
        Parts **p = (Parts **)table_at(r.parts, KEYP(n->in[0]));
        *p = *p ? *p : alloc(g->arena, sizeof **p);
        vec_push(g->arena, (*p)->old, n);
    }
    rewrite(g, replace, &r);
}
