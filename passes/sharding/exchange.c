/* exchange.c: tokens go to the ranks of their experts. A map over ep's ranks
 * asks for all tokens of all of these (an all-gather) and gives terms of all of
 * them back (a reduce-scatter), whatever their routes are. Here a rank sends
 * each of its tokens once to each rank that has experts for it, in blocks of
 * `pair` rows, and has one partial sum back from each:
 *
 *     %m = route %e expert       %m1 = route %p peer      its tokens
 *     %r = dispatch %x %m        %b  = dispatch %x %m1    [src slot d]
 *     ..                    =>   %b1 = split %b           [src peer sent d]
 *     %u = combine %y %m         %m2 = route %f expert    what came
 *     %o = sum %u top            %r  = dispatch %b1 %m2
 *                                ..
 *                                %u  = combine %y %m2     [src peer sent top d]
 *                                %t  = sum %u top         [src peer sent d]
 *                                %c  = merge %t           [src slot d]
 *                                %v  = combine %c %m1     [tokens to d]
 *                                %o  = sum %v to
 *
 * p[token, to] is `to` where one of the token's experts lies on that peer, else
 * -1; f are the choices in blocks, -1 where the expert lies on another rank.
 * src numbers the ranks that have tokens of their own: one axis for those among
 * ep's ranks, cut before the rows travel as peer is after; the all-to-all
 * between is what collectives.c makes of the two types. Where ranks reach each
 * other's memory (route.dispatcher=peer) the map says so, and it is one
 * instruction with what lies around it (ir/row_exchange.c). Tokens that only
 * etp's or edp's ranks divide keep an axis each and go on as any tokens do.
 *
 * Ranks of several hosts (fold.host) do this twice where that is faster: among
 * those of the same number on their hosts, then inside each. Sums come back the
 * other way: of a host's ranks first, then of hosts. `host` numbers the hosts
 * that rows came from, `local` the ranks of a host before these exchange.
 *
 * What each expert has beside its weights, a bias, is looked up by the choices
 * that came, and its gradient is summed there, instead of being sent.
 *
 * With a budget of rows (route.factor) a block has room for so many times the
 * tokens that are to be expected in it. Where they do not fit, the step has
 * overflowed as if their expert rows had not fitted, and its fallback gathers
 * all tokens. Without one a block has room for all tokens of a rank. */
#include <string.h>

#include "../../ir/keys.h"
#include "sharding.h"

/* Ranks that cut tokens: those among which rows go now, with whom they went
 * before, with whom they will go; etp's; others. */
enum { NOW, BEFORE, LATER, ETP, OTHERS, SOURCES };

typedef struct Exchange {
    Graph *graph;
    Node *old, *send, *received; /* maps: all tokens', a rank's, of what came */
    Node *const *node;           /* those before the pass, and their users */
    size_t count;
    Node ***user;
    uint32_t atoms[SOURCES];           /* that cut tokens */
    int64_t peers, tokens, pair, wide; /* tokens: of a rank; bytes of one */
    double direct; /* expected share of a block's rows; 0: not by peer memory */
    Axis *source[SOURCES], *to, *peer, *slot, *row; /* source: may be null */
} Exchange;

/* ---- building ------------------------------------------------------------ */

static Node *as(Node *n, const Node *like)
{
    n->scope = like->scope;
    n->reg = like->reg;
    return n;
}

static Node *ew(const Exchange *x, const Node *by, Op op, Node *a, Node *b,
                Node *c)
{
    return as(g_ew(x->graph, op, by->loc, a, b, c), by);
}

static Node *number(const Exchange *x, int64_t v)
{
    return g_const(x->graph, x->old->loc, Di32, (double)v);
}

static Node *iota(const Exchange *x, Axis *a)
{
    Node *n = g_node(x->graph, Oiota, x->old->loc, 0, NULL);

    n->at.iota.axis = a;
    n->dt = Di32;
    return as(infer(x->graph, n), x->old);
}

static Node *move(const Exchange *x, Op op, Node *v, Node *map, const Node *by)
{
    Node *in[2] = { v, map };

    return infer(x->graph, as(g_node(x->graph, op, by->loc, 2, in), by));
}

static void add_axis(const Exchange *x, Axes *l, Axis *a)
{
    Axis **v = alloc(x->graph->arena, (size_t)(l->n + 1) * sizeof *v);

    if (!a)
        return;
    memcpy(v, l->v, (size_t)l->n * sizeof *v);
    v[l->n++] = a;
    l->v = v;
}

static Axes axes_of(const Exchange *x, Axis *a, Axis *b)
{
    Axes l = { 0 };

    add_axis(x, &l, a);
    add_axis(x, &l, b);
    return l;
}

/* ---- where a token goes -------------------------------------------------- */

static int is_token(const Exchange *x, const Axis *a)
{
    const Node *e = x->old->in[0];

    return a != x->old->at.route.top && dim_of(e, a) >= 0;
}

static int per_token(const Exchange *x, const Node *v)
{
    for (int i = 0; i < v->nd; i++)
        if (is_token(x, v->dim[i].a))
            return 1;
    return 0;
}

/* Of i < all the multiples of lo below hi. */
static Node *digits(const Exchange *x, Node *i, int64_t lo, int64_t hi,
                    int64_t all)
{
    Node *top = hi == all ? i : ew(x, x->old, Omod, i, number(x, hi), NULL);

    if (lo == 1)
        return top;
    Node *rest = ew(x, x->old, Omod, i, number(x, lo), NULL);
    return ew(x, x->old, Osub, top, rest, NULL);
}

static Node *plus(const Exchange *x, Node *a, Node *b)
{
    return a ? ew(x, x->old, Oadd, a, b, NULL) : b;
}

/* Does expert e lie on peer p? Experts are numbered by all of ep's atoms, peers
 * by those of them that cut tokens: the digits that both have are compared, as
 * part of the expert's number. */
static Node *lies_on(const Exchange *x, Node *e, Node *p)
{
    const Mesh *m = x->graph->mesh;
    int64_t experts = x->old->at.route.axis->n;
    int64_t unit = experts / mesh_extent(m, m->mask[Mep]), peer = 1;
    Node *of_e = NULL, *of_p = NULL;

    e = g_to_padded(x->graph, x->old->at.route.axis, e);
    for (int t = 0; t < m->natom; t++) {
        int64_t lo = unit, plo = peer;
        for (; t < m->natom && x->atoms[NOW] >> t & 1; t++) {
            unit *= m->atom[t].size;
            peer *= m->atom[t].size;
        }
        if (peer > plo) {
            of_e = plus(x, of_e, digits(x, e, lo, unit, experts));
            Node *d = digits(x, p, plo, peer, x->peers);
            d = ew(x, x->old, Omul, d, number(x, lo / plo), NULL);
            of_p = plus(x, of_p, d);
        }
        if (t < m->natom && m->mask[Mep] >> t & 1)
            unit *= m->atom[t].size;
    }
    Node *any = ew(x, x->old, Oge, e, number(x, 0), NULL);
    Node *same = ew(x, x->old, Oeq, of_e, of_p, NULL);
    return ew(x, x->old, Oland, any, same, NULL);
}

static Node *send_map(const Exchange *x)
{
    Graph *g = x->graph;
    Node *e = x->old->in[0], *to = iota(x, x->to);
    Axis *top = x->old->at.route.top;

    Node *p = ew(x, x->old, Owhere, lies_on(x, e, to), to, number(x, -1));
    if (top)
        p = as(g_red(g, Omax, p, &top, 1), x->old);
    Node *m = as(g_node(g, Oroute, x->old->loc, 1, &p), x->old);
    struct route_attrs *t = &m->at.route;
    t->axis = x->peer;
    t->top = x->to;
    t->capacity = x->pair;
    t->padded = 1;
    t->direct = x->direct;
    t->peers = x->old->at.route.peers;
    for (int k = SOURCES; k-- > 0;)
        add_axis(x, &t->blocks, x->source[k]);
    add_axis(x, &t->blocks, x->slot);
    return infer(g, m);
}

/* ---- values in blocks ---------------------------------------------------- */

static Node *in_blocks(const Exchange *x, Node *v, const Node *by);

/* A broadcast of what is sent travels as what it is of. */
static Node *spread(const Exchange *x, const Node *v, const Node *by)
{
    Node *in = in_blocks(x, v->in[0], by);
    Node *n = as(g_node(x->graph, Obroadcast, v->loc, 1, &in), by);

    n->nd = in->nd;
    memcpy(n->dim, in->dim, sizeof n->dim);
    for (int d = 0; d < v->nd; d++)
        if (!is_token(x, v->dim[d].a) && dim_of(in, v->dim[d].a) < 0)
            n->dim[n->nd++] = v->dim[d];
    return infer(x->graph, n);
}

/* Is n made of what each expert has, by the choices that are sent anyway? */
static int by_choice(const Exchange *x, const Node *n, const Node *of)
{
    const Node *e = x->old->in[0];
    const Node *all = e->op == Odrop_to_capacity ? e->in[0] : e;

    return x->received && (n->in[1] == e || n->in[1] == all) &&
           !per_token(x, of);
}

/* The same by the choices that came. */
static Node *with_choices(const Exchange *x, const Node *n, Node *v, Node *e)
{
    Node *in[2] = { v, e };
    Node *c = as(g_copyof(x->graph, n, in), n);

    if (n->op == Ogather)
        c->nd = 0;
    c->dt = n->dt;
    return infer(x->graph, c);
}

/* v [tokens ..] as [sources peer row ..]; by: where it is wanted. */
static Node *in_blocks(const Exchange *x, Node *v, const Node *by)
{
    if (!per_token(x, v))
        return v;
    if (v->op == Obroadcast && per_token(x, v->in[0]))
        return spread(x, v, by);
    Node *b = move(x, Odispatch, v, x->send, by);
    Node *n = as(g_node(x->graph, Osplit, by->loc, 1, &b), by);
    n->at.split.axis = x->slot;
    n->at.split.into = axes_of(x, x->peer, x->row);
    return infer(x->graph, n);
}

/* Terms [sources peer row ..] as their sum [tokens ..]. */
static Node *at_home(const Exchange *x, Node *v, const Node *by)
{
    Axis *to = x->to;
    Node *n = as(g_node(x->graph, Omerge, by->loc, 1, &v), by);

    n->at.merge.axes = axes_of(x, x->peer, x->row);
    n->at.merge.new = x->slot;
    n = move(x, Ocombine, infer(x->graph, n), x->send, by);
    return as(g_red(x->graph, Osum, n, &to, 1), by);
}

static Node *received_map(const Exchange *x)
{
    Graph *g = x->graph;
    Node *e = x->old->in[0], *one = number(x, 1);

    e = in_blocks(x, ew(x, x->old, Oadd, e, one, NULL), x->old);
    e = ew(x, x->old, Osub, e, one, NULL); /* rows of nobody: -1 */
    e = ew(x, x->old, Owhere, lies_on(x, e, iota(x, x->peer)), e,
           number(x, -1));
    Node *m = as(g_node(g, Oroute, x->old->loc, 1, &e), x->old);
    struct route_attrs *t = &m->at.route;
    int64_t micros = 1;
    for (int d = 0; d < x->old->in[0]->nd; d++) {
        Dim k = x->old->in[0]->dim[d];
        if (g_ismicro(k.a))
            micros =
                k.n / mesh_extent(g->mesh, cut_atoms(g->mesh, x->old, k.a));
    }
    *t = x->old->at.route;
    t->capacity *= micros;
    t->peers = axes_of(x, x->source[BEFORE], x->peer);
    t->load = map_load(x->old) * (double)x->tokens / (double)x->pair;
    return infer(g, m);
}

/* ---- the old map's users ------------------------------------------------- */

static Node *only_user(const Exchange *x, const Node *n)
{
    Node **u = n->id < (int)x->count ? x->user[n->id] : NULL;

    return vec_len(u) == 1 ? u[0] : NULL;
}

static int sums_choices(const Exchange *x, const Node *n)
{
    int any = 0;

    for (int i = 0; n->op == Osum && i < n->at.sum.axes.n; i++) {
        if (is_token(x, n->at.sum.axes.v[i]))
            return 0;
        any |= n->at.sum.axes.v[i] == x->old->at.route.top;
    }
    return any;
}

/* What is the same of terms and of their sum, up to the sum over choices: one
 * row comes home of each peer. */
static Node *last_term(const Exchange *x, Node *u)
{
    Node *n = u, *at;

    while ((at = only_user(x, n)) && at->op == Ocast)
        n = at;
    return at && sums_choices(x, at) ? at : u;
}

static void replace(const Exchange *x, const Node *n, Node *by)
{
    Node **u = x->user[n->id];

    for (size_t i = 0; i < vec_len(u); i++)
        for (int k = 0; k < u[i]->nin; k++)
            if (u[i]->in[k] == n)
                u[i]->in[k] = by;
}

/* u and what follows it up to `last`, of received rows. */
static Node *term(const Exchange *x, Node *n, const Node *u)
{
    if (n == u)
        return move(x, Ocombine, u->in[0], x->received, u);
    Node *in = term(x, n->in[0], u);
    Node *c = as(g_copyof(x->graph, n, &in), n);
    c->nd = 0;
    c->dt = n->dt;
    return infer(x->graph, c);
}

/* The sum of terms by their expert, up to which nothing but u is read: a
 * gradient of what each expert has; null: there is none. */
static Node *sum_by_choice(const Exchange *x, Node *u)
{
    Node *n = u, *at;

    while ((at = only_user(x, n)) && at->op == Ocast)
        n = at;
    return at && at->op == Oscatter_add && at->in[0] == n &&
                   by_choice(x, at, at)
               ? at
               : NULL;
}

static void bring_home(const Exchange *x, Node *u)
{
    Node *last = last_term(x, u), *sum = sum_by_choice(x, u);

    if (sum) {
        replace(
            x, sum,
            with_choices(x, sum, term(x, sum->in[0], u), x->received->in[0]));
        return;
    }
    replace(x, last, at_home(x, term(x, last, u), last));
}

/* Does any of this rank's tokens find no row to some peer? */
static Node *blocks_full(const Exchange *x, const Node *by)
{
    Graph *g = x->graph;
    Node *one = number(x, 1);
    Node *n = as(g_node(g, Obroadcast, by->loc, 1, &one), by);
    Axis *all[MAXD];

    for (int k = SOURCES; k-- > 0;)
        if (x->source[k])
            n->dim[n->nd++] = (Dim){ x->source[k], x->source[k]->n };
    n->dim[n->nd++] = (Dim){ x->slot, x->slot->n };
    n = move(x, Ocombine, infer(g, n), x->send, by);
    Node *sent = ew(x, by, Oge, x->send->in[0], number(x, 0), NULL);
    n = ew(x, by, Oland, sent, ew(x, by, Olnot, n, NULL, NULL), NULL);
    n = as(g_cast(g, n, by->dt), by);
    for (int d = 0; d < n->nd; d++)
        all[d] = n->dim[d].a;
    return as(g_red(g, Omax, n, all, n->nd), by);
}

static void watch(const Exchange *x, Node *n)
{
    Node *full = blocks_full(x, n);
    Node *either = ew(x, n, Omaximum, n, full, NULL);

    replace(x, n, either);
}

static void follow(Node *n, Node *map)
{
    n->map = map;
    for (int d = 0; d < n->nd; d++)
        if (g_isrow(n->dim[d].a))
            n->dim[d].n = g_elems(map->in[0]);
}

static void send(const Exchange *x, Node *n)
{
    Node *v = n->in[0];

    if (v->op != Ogather || !by_choice(x, v, v->in[0])) {
        n->in[0] = in_blocks(x, v, n);
        return;
    }
    Node *e = move(x, Odispatch, x->received->in[0], x->received, n);
    replace(x, n, with_choices(x, v, v->in[0], e));
}

static void send_and_return(const Exchange *x)
{
    for (size_t i = 0; i < x->count; i++) {
        Node *n = x->node[i];
        if (n->map == x->old)
            follow(n, x->received);
        if (!n->nin || n->in[n->nin - 1] != x->old)
            continue;
        if (n->op == Ocombine)
            bring_home(x, n);
        if (n->op == Odispatch)
            send(x, n);
        n->in[n->nin - 1] = x->received;
        if (n->op == Ooverflow && x->pair < x->tokens)
            watch(x, n);
    }
}

/* ---- whom and how much --------------------------------------------------- */

/* What is sent: the tokens; null: nothing of theirs is. */
static const Node *tokens_of(const Exchange *x)
{
    for (size_t i = 0; i < x->count; i++) {
        const Node *n = x->node[i];
        if (n->op == Odispatch && n->in[1] == x->old && per_token(x, n->in[0]))
            return n->in[0];
    }
    return NULL;
}

static int kind_of(const Exchange *x, int atom)
{
    const Mesh *m = x->graph->mesh;
    const Axes *peers = &x->old->at.route.peers;

    return axis_cut_over(peers, atom)  ? BEFORE
           : m->mask[Mep] >> atom & 1  ? NOW
           : m->mask[Metp] >> atom & 1 ? ETP
                                       : OTHERS;
}

/* Which atoms cut the tokens, and how many of them a rank has. */
static int find_sources(Exchange *x)
{
    const Mesh *m = x->graph->mesh;
    const Node *v = tokens_of(x), *e = x->old->in[0];

    x->tokens = x->wide = 1;
    for (int d = 0; v && d < e->nd; d++)
        x->tokens *= is_token(x, e->dim[d].a) ? e->dim[d].n : 1;
    for (int d = 0; v && d < v->nd; d++)
        x->wide *= is_token(x, v->dim[d].a) ? 1 : v->dim[d].n;
    for (int t = 0; v && t < m->natom; t++) {
        if (v->sh[t].k != S || !is_token(x, v->sh[t].a))
            continue;
        x->atoms[kind_of(x, t)] |= 1u << t;
        x->tokens /= m->atom[t].size;
    }
    x->wide *= v ? dtypes[v->dt].bytes : 0;
    return x->atoms[NOW] != 0;
}

/* An axis of that size for those atoms, the same for all maps. */
static Axis *axis_for(const Exchange *x, const char *name, uint32_t atoms,
                      int64_t n)
{
    for (int k = 1;; k++) {
        Axis *a = g_axis(x->graph, strf(x->graph->arena, "%s'%d", name, k));
        if (!a->n) {
            a->n = n;
            a->atoms = atoms;
        }
        if (a->n == n && a->atoms == atoms)
            return a;
    }
}

static void make_axes(Exchange *x)
{
    static const char *const name[SOURCES] = { "src", "host", "local", "etpsrc",
                                               "edpsrc" };

    for (int k = SOURCES; k-- > 0;)
        if (x->atoms[k])
            x->source[k] = axis_for(x, name[k], x->atoms[k],
                                    mesh_extent(x->graph->mesh, x->atoms[k]));
    x->to = axis_for(x, "to", 0, x->peers);
    x->peer = axis_for(x, "peer", x->atoms[NOW], x->peers);
    x->row = axis_for(x, "sent", 0, x->pair);
    x->slot = axis_for(x, "slot", 0, x->peers * x->pair);
}

/* Among ranks of the same number on their hosts first, then on each host. */
static int choose_level(Exchange *x, int first)
{
    const Mesh *m = x->graph->mesh;
    uint32_t near = x->atoms[NOW] & near_atoms(x->graph);
    TokenFlow f = { x->graph,
                    x->old,
                    x->atoms[NOW],
                    x->atoms[BEFORE],
                    x->tokens,
                    x->wide,
                    route_model(x->graph->arena, x->graph, x->old, 1) };

    if (first && (!near || near == x->atoms[NOW]))
        return 0;
    Way way = way_of(&f, first);
    if (first ? way != WAYhosts : way == WAYgather)
        return 0;
    if (first) {
        x->atoms[LATER] = near;
        x->atoms[NOW] &= ~near;
    }
    x->peers = mesh_extent(m, x->atoms[NOW]);
    int64_t all = x->peers * mesh_extent(m, x->atoms[BEFORE]);
    x->pair = block_rows(&f, x->tokens, all);
    if (way == WAYpeer)
        x->direct = rows_for(&f, x->tokens, all) / (double)x->pair;
    f.now = x->atoms[NOW];
    report_assumed_routes(&f, x->pair);
    return 1;
}

/* Over some atoms of the experts all ranks have the same tokens: which of them
 * sends a row is not decided, so tokens are gathered over the others. */
static int are_tokens_whole(const Exchange *x)
{
    uint32_t whole = x->graph->mesh->mask[Mep] &
                     ~(x->atoms[NOW] | x->atoms[BEFORE] | x->atoms[LATER]);

    if (whole)
        why(x->graph, x->old,
            "no exchange: %lld ranks of experts have each token",
            (long long)mesh_extent(x->graph->mesh, whole));
    return whole != 0;
}

static void exchange(Exchange x, Node *route, int first)
{
    x.old = route;
    if (!find_sources(&x) || are_tokens_whole(&x) || !choose_level(&x, first))
        return;
    make_axes(&x);
    x.send = send_map(&x);
    x.received = received_map(&x);
    send_and_return(&x);
}

/* ---- the pass ------------------------------------------------------------ */

static Node ***users(const Graph *g)
{
    Node ***user = alloc(g->arena, (vec_len(g->node) + 1) * sizeof *user);

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            vec_push(g->arena, user[g->node[i]->in[k]->id], g->node[i]);
    return user;
}

static void exchange_all(Graph *g, int first)
{
    Partitioner *p = place_nodes(g);
    Exchange x = { .graph = g, .count = vec_len(g->node), .user = users(g) };
    Node **old = alloc(g->arena, (x.count + 1) * sizeof *old);

    memcpy(old, g->node, x.count * sizeof *old);
    x.node = old;
    for (size_t i = 0; i < x.count; i++)
        if (old[i]->op == Oroute && !old[i]->at.route.blocks.n)
            exchange(x, old[i], first);
    arena_free(p->arena);
    g_sort(g);
    g_tidy(g);
}

void pass_exchange(Graph *g)
{
    uint32_t near = near_atoms(g) & g->mesh->mask[Mep];

    if (!g->mesh->mask[Mep] || g->prog == PGfallback ||
        opts_dispatcher(g->opts) == DISPATCHallgather)
        return;
    if (near && near != g->mesh->mask[Mep])
        exchange_all(g, 1);
    exchange_all(g, 0);
}
