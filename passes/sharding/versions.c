/* versions.c: values in the types that their users ask for. A value has its own
 * type and, made once each for all users, others (Version): from the cheapest
 * version there is by collectives, or made anew where that costs nothing, or of
 * operands that are smaller: a broadcast, and what dequantizes numbers of 8
 * bits. Pass sharding asks what that would take, pass collectives makes the
 * nodes. */
#include "sharding.h"

/* ---- a graph's values ---------------------------------------------------- */

static int is_free(const Partitioner *part, const Node *n)
{
    if (n->op == Oconst || n->op == Oiota || n->op == Orandom)
        return 1;
    if ((optab[n->op].cls != EW && n->op != Orename && n->op != Ogather) ||
        n->op == Odropout)
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!part->free[n->in[k]->id])
            return 0;
    return n->nin > 0;
}

static int has_expert(const Node *n)
{
    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a->role == ROLEchoice)
            return 1;
    return 0;
}

/* On the expert grid is what descends from indexed weights, and a product whose
 * operands both have `expert` without contracting it. */
static int on_experts(const Partitioner *part, const Node *n)
{
    int any = n->op == Ogmm || n->op == Ogmm_wgrad || n->map != NULL;

    if (is_lasting(n)) {
        const Param *q = g_param(part->graph, n_name(n));
        return q && q->expert;
    }
    if (n->op == Odot)
        return has_expert(n) && has_expert(n->in[0]) && has_expert(n->in[1]);
    for (int k = 0; k < n->nin && !any; k++)
        any = part->grid[n->in[k]->id] && has_expert(n);
    return any;
}

Partitioner *partitioner_new(Graph *g, int build)
{
    Arena *a = arena_new();
    Partitioner *p = alloc(a, sizeof *p);
    size_t n = vec_len(g->node) + 1;

    *p = (Partitioner){ .graph = g, .arena = a, .build = build };
    p->have = alloc(a, n * sizeof *p->have);
    p->free = alloc(a, n);
    p->grid = alloc(a, n);
    p->uses = use_counts(g, a);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        p->free[i] = (char)is_free(p, g->node[i]);
        p->grid[i] = (char)on_experts(p, g->node[i]);
    }
    return p;
}

/* What dequantizes rows of numbers of 8 bits, cast or not; null: n is no such
 * value. Weights of buckets lie otherwise. */
static const Node *dequantizes(const Node *n)
{
    int rows = 0;

    for (int d = 0; d < n->nd; d++)
        rows |= g_ismicro(n->dim[d].a) || g_isrow(n->dim[d].a);
    while (n->op == Ocast)
        n = n->in[0];
    return rows && n->op == Odequantize && n->in[0]->op == Oquantize &&
                   n->in[0]->dt == De4m3
               ? n
               : NULL;
}

int is_sent_by_operands(const Node *n, int atom, const Shard *want)
{
    const Node *d = dequantizes(n);

    if (n->op == Obroadcast || !d || want->k == P)
        return n->op == Obroadcast;
    return want->k == R || same_shard(want, &n->sh[atom]) ||
           axes_at(&d->at.dequantize.axes, want->a) < 0;
}

static int is_anew(const Partitioner *part, const Node *n, const Shard *want)
{
    int anew = 1;

    for (int i = 0; i < part->graph->mesh->natom; i++)
        anew &= is_sent_by_operands(n, i, &want[i]);
    return part->free[n->id] || anew;
}

Shard shard_through(const Node *n, int k, const Shard *want)
{
    Shard t = *want;

    if (t.k == S && n->op == Orename) {
        int at = axes_at(&n->at.rename.to, t.a);
        t.a = at < 0 ? t.a : n->at.rename.from.v[at];
    }
    if (t.k == S && n->op == Odequantize && k == 1) {
        int at = axes_at(&n->at.dequantize.axes, t.a);
        t.a = at < 0 ? t.a : n->at.dequantize.blocks.v[at];
    }
    if (t.k == S && dim_of(n->in[k], t.a) < 0)
        t = (Shard){ .k = R };
    return t;
}

void type_through(const Partitioner *part, const Node *n, int k,
                  const Shard *want, Shard *out)
{
    for (int i = 0; i < MAXATOM; i++)
        out[i] = i < part->graph->mesh->natom ? shard_through(n, k, &want[i])
                                              : (Shard){ .k = R };
}

/* ---- where a reshard stands ---------------------------------------------- */

/* The region that reshards o for a user in region `user`: once a step when the
 * value is, and what leaves the bodies is resharded after them. */
static Region region_of(const Node *o, Region user)
{
    if (o->op == Oaccum)
        return o->reg == REGden ? REGpre : REGpost;
    if (o->op == Oparam && o->nd && o->dim[o->nd - 1].a->atoms)
        return user;
    if (is_lasting(o) || o->op == Ostepval)
        return user == REGbody ? REGpre : user;
    if (o->op == Oinput)
        return user;
    return o->reg;
}

/* A fallback keeps nothing of its rounds, so neither the tokens of all ranks
 * that they take their rows from. */
static const Scope *again_for(const Partitioner *part, const Node *user)
{
    return part->graph->prog == PGfallback && user->again ? user->scope->base
                                                          : NULL;
}

static int usable(const Version *version, Region reg, const Scope *again)
{
    return version->again == again &&
           (version->reg == reg || (version->reg == REGpre && reg == REGpost));
}

static int equal(const Graph *g, const Shard *a, const Shard *b)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (!same_shard(&a[i], &b[i]))
            return 0;
    return 1;
}

static Version *find(const Partitioner *part, const Node *o, const Shard *want,
                     Region reg, const Scope *again)
{
    for (Version *v = part->have[o->id]; v; v = v->next)
        if (usable(v, reg, again) && equal(part->graph, v->sh, want))
            return v;
    return NULL;
}

static Version *keep(Partitioner *part, const Node *o, const Shard *sh,
                     Region reg, Node *node)
{
    Version *v = alloc(part->arena, sizeof *v), **end = &part->have[o->id];

    memcpy(v->sh, sh, sizeof v->sh);
    v->reg = reg;
    v->node = node;
    while (*end)
        end = &(*end)->next;
    return *end = v;
}

/* ---- building ------------------------------------------------------------ */

static Node *like(Graph *g, Node *n, const Node *o, const Shard *sh, Region reg)
{
    n->scope = o->scope;
    n->reg = reg;
    n->sh = g_type(g, sh);
    return n;
}

/* x on the rank at position 0 over atoms, else 0, as [rank] cut into single
 * elements, and summed. What is partial can only be multiplied; elsewhere 0 is
 * chosen, so that an infinity stays one. */
static Node *keep_first(Graph *g, Node *x, const Node *o,
                        const Reshard *reshard, const Shard *to, Region reg)
{
    Shard cut[MAXATOM];
    Axis *rank = g_axis(g, "rank'1");
    Node *i = g_node(g, Oiota, o->loc, 0, NULL), *first;

    memcpy(cut, x->sh, sizeof cut);
    for (int t = 0; t < MAXATOM; t++)
        if (reshard->atoms >> t & 1)
            cut[t] = (Shard){ S, Radd, rank };
        else if (cut[t].k == P)
            cut[t] = (Shard){ .k = R };
    i->at.iota.axis = rank;
    i->dim[i->nd++] = (Dim){ rank, mesh_extent(g->mesh, reshard->atoms) };
    infer(g, like(g, i, o, cut, reg));
    Node *zero = g_const(g, o->loc, Di32, 0);
    zero->reg = reg;
    first = like(g, g_ew(g, Oeq, o->loc, i, zero, NULL), o, cut, reg);
    if (is_partial(x)) {
        first = like(g, g_cast(g, first, x->dt), o, cut, reg);
        first = g_ew(g, Omul, o->loc, first, x, NULL);
    } else {
        zero = g_const(g, o->loc, x->dt, 0);
        zero->reg = reg;
        first = g_ew(g, Owhere, o->loc, first, x, zero);
    }
    for (int t = 0; t < MAXATOM; t++)
        if (x->sh[t].k == P)
            cut[t] = x->sh[t];
    like(g, first, o, cut, reg);
    return like(g, g_red(g, Osum, first, &rank, 1), o, to, reg);
}

static Node *collective(Graph *g, Node *x, const Node *o,
                        const Reshard *reshard, const Shard *to, Region reg)
{
    if (reshard->op == Oadd)
        return keep_first(g, x, o, reshard, to, reg);
    Node *n = g_node(g, reshard->op, o->loc, 1, &x);
    reshard_attrs(n, reshard);
    return infer(g, like(g, n, o, to, reg));
}

/* ---- from the cheapest version ------------------------------------------- */

static double price(const Partitioner *part, const Node *o, const Shard *from,
                    const Shard *want)
{
    Shard t[MAXATOM], before[MAXATOM];
    Reshard r;
    double sum = 0;

    memcpy(t, from, sizeof t);
    memcpy(before, from, sizeof t);
    while (reshard_step(part->graph->mesh, t, want, &r)) {
        sum += bytes_sent(part->graph, o, before, &r);
        memcpy(before, t, sizeof t);
    }
    return sum;
}

/* Can steps lead from one type to the other at all? Only a scalar becomes
 * partial. */
static int leads(const Graph *g, const Shard *from, const Shard *want, int nd)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (want[i].k == P && !same_shard(&from[i], &want[i]) &&
            (nd || from[i].k != R || want[i].op != Radd))
            return 0;
    return 1;
}

/* One line for -d why: what is sent, how much of it, and for whom first. */
static void explain(const Partitioner *part, const Node *o, const Shard *from,
                    const Reshard *reshard, const Node *user)
{
    double mib = bytes_sent(part->graph, o, from, reshard) / (1 << 20);

    if (part->build && mib > 0)
        why(part->graph, o,
            "%s%s%s over %lld ranks, %.3g MiB to each, for %%%s",
            optab[reshard->op].name, reshard->a ? " of " : "",
            reshard->a ? reshard->a->name : "",
            (long long)mesh_extent(part->graph->mesh, reshard->atoms), mib,
            user->name ? user->name : optab[user->op].name);
}

static Node *resharded(Partitioner *part, Node *o, const Shard *want,
                       Region reg, const Node *user)
{
    const Version *best = NULL;
    const Scope *again = again_for(part, user);
    Shard t[MAXATOM], from[MAXATOM];
    Reshard r;
    double least = leads(part->graph, o->sh, want, o->nd)
                       ? price(part, o, o->sh, want)
                       : -1;

    for (const Version *v = part->have[o->id]; v; v = v->next) {
        if (!usable(v, reg, again) || !leads(part->graph, v->sh, want, o->nd))
            continue;
        double cost = price(part, o, v->sh, want);
        if (least < 0 || cost < least) {
            least = cost;
            best = v;
        }
    }
    if (least < 0)
        die("%s cannot become partial", o->name ? o->name : optab[o->op].name);
    Node *x = best ? best->node : o;
    memcpy(t, best ? best->sh : o->sh, sizeof t);
    memcpy(from, t, sizeof from);
    while (reshard_step(part->graph->mesh, t, want, &r)) {
        explain(part, o, from, &r, user);
        memcpy(from, t, sizeof from);
        if (part->build)
            x = collective(part->graph, x, o, &r, t, reg);
        if (part->build && again) {
            x->scope = again;
            x->again = 1;
        }
        keep(part, o, t, reg, x)->again = again;
    }
    return x;
}

/* ---- made anew ----------------------------------------------------------- */

static Node *get(Partitioner *part, Node *o, const Shard *want, Region reg,
                 const Node *user);

static Node *again(Partitioner *part, Node *o, const Shard *want, Region reg,
                   const Node *user)
{
    Node *in[MAXIN], *n = NULL;
    Shard t[MAXATOM];

    for (int k = 0; k < o->nin; k++) {
        type_through(part, o, k, want, t);
        in[k] = get(part, o->in[k], t, reg, user);
    }
    if (part->build) {
        n = g_copyof(part->graph, o, in);
        n->name = NULL;
        n->sh = g_type(part->graph, want);
    }
    keep(part, o, want, reg, n);
    return n;
}

/* o, an old node, in type want, for `user` in a region. */
static Node *get(Partitioner *part, Node *o, const Shard *want, Region reg,
                 const Node *user)
{
    reg = region_of(o, reg);

    if (equal(part->graph, o->sh, want))
        return o;
    const Version *v = find(part, o, want, reg, again_for(part, user));
    if (v)
        return v->node;
    return is_anew(part, o, want) ? again(part, o, want, reg, user)
                                  : resharded(part, o, want, reg, user);
}

Node *demand(Partitioner *part, const Node *n, int k, const Shard *want)
{
    return get(part, n->in[k], want, n->reg, n);
}
