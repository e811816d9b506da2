/* sharding.c: give every tensor a sharding type. Going forward through the
 * program, each node takes, atom by atom, the way (ir/graph/sharding_rules.c)
 * that costs the fewest bytes: those that bring its operands there from the
 * types they already exist in, and those that would take its result to the type
 * its axes' names ask for, its seed. Sequence, vocabulary and tensor
 * parallelism, and what a gradient is reduced over, all come out of that:
 *
 *     %x  [seq hidden]        seq:tp
 *     %q  = dot %x %wq        kv:tp      x whole over tp, or wq: x travels
 *     %y  = dot %o %wo        P:tp       kv contracted: partial sums
 *     %h  = add %x %y         seq:tp     y becomes what x is
 *     %dw = dot ...           P:dp       micro contracted; reduced in post
 *
 * collectives.c reshards by the same choices, so both keep the same list of
 * types that a value exists in. */
#include "sharding.h"

static const double NEVER = 1e300;
/* A parameter does not move when anything else can. */
static const double PARAM_PENALTY = 1e9;

/* ---- seeds --------------------------------------------------------------- */

typedef struct AxisPreference {
    MeshAxis axis;
    AxisRole role[6]; /* ROLEnone: no more */
} AxisPreference;

/* Per mesh axis the roles that take it, first to last; what one does not divide
 * goes to the next. */
static const AxisPreference dense[] = {
    { Mtp, { ROLEvocab, ROLEheads, ROLEgroup, ROLEffn, ROLEseq } },
    { Mcp, { ROLEseq, ROLEkey } },
    { Mdp, { ROLEmicro } },
    { NMESH, { ROLEnone } },
};
static const AxisPreference expert[] = {
    { Metp, { ROLEffn } },
    { Mep, { ROLEchoice } },
    { NMESH, { ROLEnone } },
};

static const AxisPreference *seed_at(const Graph *g,
                                     const AxisPreference *table, int atom)
{
    for (; table->axis != NMESH; table++)
        if (g->mesh->mask[table->axis] >> atom & 1)
            return table;
    return NULL;
}

/* Can dim d of n be cut once more, over atom, when it is as in shard below it?
 * */
static int fits(const Graph *g, const Dim *d, const Shard *shard, int atom)
{
    uint32_t atoms = 1u << atom;

    for (int i = 0; i < atom; i++)
        if (shard[i].k == S && shard[i].a == d->a)
            atoms |= 1u << i;
    return d->n % cut_parts(g->mesh, d->a, atoms) == 0;
}

static Axis *in_role(const Graph *g, const Dim *dim, int nd, AxisRole role,
                     const Shard *shard, int atom)
{
    for (int d = 0; d < nd; d++)
        if (dim[d].a->role == role && fits(g, &dim[d], shard, atom))
            return dim[d].a;
    return NULL;
}

/* The axis of a bucket that is made to be cut over the atom. */
static Axis *bucketed(const Dim *dim, int nd, int atom)
{
    for (int d = 0; d < nd; d++)
        if (dim[d].a->atoms >> atom & 1)
            return dim[d].a;
    return NULL;
}

/* The first that the model says mesh axis m cuts. */
static Axis *stated(const Graph *g, MeshAxis m, const Dim *dim, int nd,
                    const Shard *shard, int atom)
{
    Axis *best = NULL;

    for (int d = 0; d < nd; d++) {
        Axis *a = dim[d].a;
        if (a->taken[m] && (!best || a->taken[m] < best->taken[m]) &&
            fits(g, &dim[d], shard, atom))
            best = a;
    }
    return best;
}

/* The type that the axes ask for over one atom: what the model says, then their
 * roles. */
static Shard seed(const Graph *g, const Dim *dim, int nd, int onexperts,
                  const Shard *shard, int atom)
{
    const AxisPreference *s = seed_at(g, onexperts ? expert : dense, atom);
    Axis *b = bucketed(dim, nd, atom);

    if (!b && s)
        b = stated(g, s->axis, dim, nd, shard, atom);
    if (b)
        return (Shard){ S, Radd, b };
    for (int i = 0; s && i < 6 && s->role[i]; i++) {
        Axis *a = in_role(g, dim, nd, s->role[i], shard, atom);
        if (a)
            return (Shard){ S, Radd, a };
    }
    return (Shard){ .k = R };
}

/* What counts blocks of a weight is cut as they are. */
static Shard seed_scales(Graph *g, const Param *param, int atom)
{
    const Param *of = g_param(g, param->of);
    Shard sh = param_type(g, of)[atom];

    for (int d = 0; d < of->nd && sh.k == S; d++)
        if (of->dim[d].a == sh.a)
            return (Shard){ S, Radd, param->dim[d].a };
    return sh;
}

/* A parameter on the expert grid has its own expert axis, whatever its name. */
static Shard seed_param(Graph *g, const Node *n, int atom)
{
    const Param *p = g_param(g, n_name(n));
    Axis *a = p ? p->expert : NULL;

    if (p && p->kind == TKscales)
        return seed_scales(g, p, atom);
    if (a && g->mesh->mask[Mep] >> atom & 1)
        return (Shard){ S, Radd, a };
    return seed(g, n->dim, n->nd, a != NULL, n->sh, atom);
}

const Shard *param_type(Graph *g, const Param *p)
{
    Shard sh[MAXATOM] = { 0 };
    Node n = { .op = Oparam, .at.param.path = p->path, .nd = p->nd, .sh = sh };

    memcpy(n.dim, p->dim, sizeof n.dim);
    for (int t = 0; t < g->mesh->natom; t++)
        sh[t] = seed_param(g, &n, t);
    return g_type(g, sh);
}

/* Inputs are whole over tp: every rank can read them all, slices are free. */
static Shard seed_input(const Graph *g, const Node *n, int atom)
{
    if (g->mesh->mask[Mtp] >> atom & 1)
        return (Shard){ .k = R };
    return seed(g, n->dim, n->nd, 0, n->sh, atom);
}

static Shard seed_source(Graph *g, const Node *n, int atom)
{
    switch (n->op) {
    case Oparam:
    case Ostate: return seed_param(g, n, atom);
    case Oinput: return seed_input(g, n, atom);
    default: return (Shard){ .k = R };
    }
}

/* ---- prices -------------------------------------------------------------- */

static const Node *shape_of(const Node *n)
{
    if (n->op == Oattn)
        return n->body->node[vec_len(n->body->node) - 1];
    return n->op == Oattn_bwd ? n->in[n->nin - 1] : n;
}

/* Is an atom below this one to keep, or to get, the axis a? Then a change of a
 * at this atom goes through the whole axis. */
static int blocked(const Mesh *m, const Shard *have, const Shard *want,
                   int atom, const Shard *shard)
{
    for (int i = 0; i < atom; i++)
        if (have[i].k == S && have[i].a == shard->a &&
            same_shard(&have[i], &want[i]) &&
            stride_order(m, shard->a, 1u << i) <
                stride_order(m, shard->a, 1u << atom))
            return 1;
    return 0;
}

/* Bytes to take o over one atom from the type it has to another, the types
 * below that atom being settled in want[]. */
static double step_price(const Graph *g, const Node *o, const Shard *have,
                         const Shard *want, int atom, const Shard *to)
{
    Shard t[MAXATOM];
    const Shard *from = &have[atom];
    double n = (double)g->mesh->atom[atom].size, b;

    if (same_shard(from, to))
        return 0;
    if (to->k == P)
        return o->nd == 0 && from->k == R && to->op == Radd ? 0 : NEVER;
    memcpy(t, have, sizeof t);
    memcpy(t, want, (size_t)atom * sizeof *t);
    t[atom] = (Shard){ .k = R };
    b = bytes_as(g, o, t) * (n - 1) / n;
    if ((to->k == S && blocked(g->mesh, have, want, atom, to)) ||
        (from->k == S && blocked(g->mesh, have, want, atom, from)))
        return 4 * b;
    if (from->k == R)
        return 0;
    if (from->k == P)
        return to->k == S ? b : 2 * b;
    return to->k == S ? b / n : b;
}

static double price(const Partitioner *part, const Node *o, const Shard *want,
                    int atom, const Shard *to)
{
    Shard below[MAXATOM];

    if (same_shard(to, &o->sh[atom]))
        return 0;
    if (part->free[o->id])
        return to->k == P ? NEVER : 0;
    if (is_sent_by_operands(o, atom, to)) {
        double sum = 0;
        for (int k = 0; k < o->nin; k++) {
            Shard in = shard_through(o, k, to);
            type_through(part, o, k, want, below);
            sum += price(part, o->in[k], below, atom, &in);
        }
        return sum;
    }
    double least = step_price(part->graph, o, o->sh, want, atom, to);
    for (const Version *v = part->have[o->id]; v && least > 0; v = v->next) {
        double c = step_price(part->graph, o, v->sh, want, atom, to);
        least = c < least ? c : least;
    }
    if (is_lasting(o) && least < NEVER)
        least *= PARAM_PENALTY;
    return least;
}

static int passes_partial(const Node *n, const ShardStrategy *strategy)
{
    for (int k = 0; k < n->nin; k++)
        if (strategy->in[k].k == P)
            return strategy->out.k == P;
    return 0;
}

/* Is the operand that is passed on partial over another atom as well? */
static int partial_above(const Node *n, const ShardStrategy *strategy, int atom)
{
    for (int k = 0; k < n->nin; k++)
        if (strategy->in[k].k == P && n->in[k]->sh[atom].k == P)
            return 1;
    return 0;
}

/* What the result would still cost on its way to its seed. A new partial sum of
 * which every rank wants all is reduced sooner or later in any case, but one
 * passed on should not grow before that. */
static double cost_to_seed(const Partitioner *part, const Node *n, int atom,
                           const ShardStrategy *strategy, const Shard *goal)
{
    const Node *x = shape_of(n);
    double size = (double)part->graph->mesh->atom[atom].size;
    const Shard *out = &strategy->out;
    Shard t[MAXATOM];

    if (same_shard(out, goal) || out->k == R || n->nd == 0 ||
        (goal->k == R && (n->op == Oaccum || !passes_partial(n, strategy))))
        return 0;
    memset(t, 0, sizeof t);
    memcpy(t, n->sh, (size_t)atom * sizeof *t);
    for (int i = atom + 1; i < part->graph->mesh->natom; i++)
        if (!partial_above(n, strategy, i))
            t[i] = seed(part->graph, x->dim, x->nd, part->grid[n->id], t, i);
    double b = bytes_as(part->graph, x, t) * (size - 1) / size;
    return out->k == S ? b / size : goal->k == R ? 2 * b : b;
}

/* ---- the choice ---------------------------------------------------------- */

/* Dim d of n, in what a rank has whole of it: of axes in blocks that nothing
 * counts beside them blocks, else elements. */
static Dim uncut(const Node *n, Dim d)
{
    const struct hadamard_attrs *t = &n->at.hadamard;
    int at = n->op == Ohadamard ? axes_at(&t->axes, d.a) : -1;

    return (Dim){ d.a, at < 0 ? d.n : d.n / block_size(n, at) };
}

static int cuts_evenly(const Partitioner *part, const Node *n,
                       OperandShards need, int atom,
                       const ShardStrategy *strategy)
{
    const Node *x = shape_of(n);
    int d = strategy->out.k == S ? dim_of(x, strategy->out.a) : -1;

    if (d >= 0) {
        Dim dim = uncut(n, x->dim[d]);
        if (!fits(part->graph, &dim, n->sh, atom))
            return 0;
    }
    for (int k = 0; k < n->nin; k++)
        if (strategy->in[k].k == S &&
            (d = dim_of(n->in[k], strategy->in[k].a)) >= 0 &&
            !(n->in[k]->map && n->in[k]->map->sh[atom].k == S) &&
            !fits(part->graph, &n->in[k]->dim[d], need[k], atom))
            return 0;
    return 1;
}

static int cut_already(const Node *n, int atom, const Shard *shard)
{
    for (int k = 0; k < n->nin; k++)
        if (same_shard(&n->in[k]->sh[atom], shard))
            return 1;
    return 0;
}

/* What is sent to be cut is cut along its seed (a member of a bucket along its
 * parameter's) or as another operand is, not along any axis that happens to be
 * cheap. In post, gradients are reduced before their first use; only scalars go
 * on partial (the sum of squares). */
static int allowed(const Node *n, int atom, const ShardStrategy *strategy,
                   const Shard *goal)
{
    if (strategy->out.k == P && n->reg == REGpost && optab[n->op].cls == EW &&
        n->nd)
        return 0;
    for (int k = 0; k < n->nin; k++) {
        int sent = strategy->in[k].k == S && n->in[k]->sh[atom].k != R &&
                   !same_shard(&strategy->in[k], goal) && n->op != Opack;
        int split = strategy->in[k].k == P && n->in[k]->sh[atom].k == R;
        if ((sent || split) && !cut_already(n, atom, &strategy->in[k]))
            return 0;
    }
    return 1;
}

/* Among ways of one price: a partial operand that nobody else reads goes on
 * partial; else the seed; else not whole. */
static int rank_of(const Partitioner *part, const Node *n,
                   const ShardStrategy *strategy, const Shard *goal)
{
    for (int k = 0; k < n->nin && strategy->out.k == P; k++)
        if (strategy->in[k].k == P && part->uses[n->in[k]->id] > 1)
            return 3;
        else if (strategy->in[k].k == P)
            return 0;
    return same_shard(&strategy->out, goal) ? 1 : strategy->out.k == R ? 3 : 2;
}

/* Of a way; of one that costs more than `most` something above that. */
static double total(const Partitioner *part, const Node *n, OperandShards need,
                    int atom, const ShardStrategy *strategy, const Shard *goal,
                    double most)
{
    double sum = cost_to_seed(part, n, atom, strategy, goal);

    for (int k = 0; k < n->nin && sum < NEVER && sum <= most; k++)
        sum += price(part, n->in[k], need[k], atom, &strategy->in[k]);
    return sum;
}

/* An attention whose keys stay cut: passes/sharding/ring_attention.c. */
static int keeps_keys(const Node *n, const ShardStrategy *strategy)
{
    for (int k = 0; k < n->nin; k++)
        if ((n->op == Oattn || n->op == Oattn_bwd) && strategy->in[k].k == S &&
            strategy->in[k].a == n->at.attn.key)
            return 1;
    return 0;
}

static Shard choose_at(Partitioner *part, Node *n, OperandShards need, int atom)
{
    const Node *x = shape_of(n);
    Shard goal =
        seed(part->graph, x->dim, x->nd, part->grid[n->id], n->sh, atom);
    ShardStrategy w[MAXWAY];
    int count = ways(part->graph, n, atom, w), best = -1, rank = 0;
    double least = NEVER;

    for (int i = 0; i < count; i++) {
        if (part->build && !same_shard(&w[i].out, &n->sh[atom]))
            continue;
        if ((count > 1 && !allowed(n, atom, &w[i], &goal)) ||
            !cuts_evenly(part, n, need, atom, &w[i]))
            continue;
        double c = total(part, n, need, atom, &w[i], &goal, least);
        int r = rank_of(part, n, &w[i], &goal);
        if (c < least || (c == least && best >= 0 && r < rank)) {
            least = c;
            best = i;
            rank = r;
        }
    }
    if (best < 0)
        die("%s (%s): no way to place it over atom %d", n->name ? n->name : "?",
            optab[n->op].name, atom);
    if (!part->build && keeps_keys(n, &w[best]))
        n->at.attn.ring |= 1u << atom;
    for (int k = 0; k < n->nin; k++)
        need[k][atom] = w[best].in[k];
    return w[best].out;
}

void choose_strategy(Partitioner *part, Node *n, Shard *out, OperandShards need)
{
    memset(need, 0, (size_t)n->nin * sizeof *need);
    for (int t = 0; t < part->graph->mesh->natom; t++)
        if (part->free[n->id])
            for (int k = 0; k < n->nin; k++)
                need[k][t] = shard_through(n, k, &n->sh[t]);
        else
            out[t] = choose_at(part, n, need, t);
}

/* ---- the pass ------------------------------------------------------------ */

static void place_node(Partitioner *part, Node *n)
{
    OperandShards need;
    Shard sh[MAXATOM] = { 0 }; /* n's, as far as it is known */

    n->sh = sh;
    if (!n->nin)
        for (int t = 0; t < part->graph->mesh->natom; t++)
            sh[t] = seed_source(part->graph, n, t);
    else
        choose_strategy(part, n, sh, need);
    n->sh = g_type(part->graph, sh);
    for (int k = 0; k < n->nin; k++)
        demand(part, n, k, need[k]);
}

Partitioner *place_nodes(Graph *g)
{
    g_renumber(g);
    Partitioner *p = partitioner_new(g, 0);

    for (size_t i = 0; i < vec_len(g->node); i++)
        place_node(p, g->node[i]);
    return p;
}

void pass_sharding(Graph *g)
{
    Partitioner *part = place_nodes(g);

    if (g->prog == PGstep && !g->compile->options.prices)
        report_sharding(part);
    arena_free(part->arena);
}
