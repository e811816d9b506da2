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
 * instruction with what lies around it (ir/graph/row_exchange.c). Tokens that
 * only etp's or edp's ranks divide keep an axis each and go on as tokens do.
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
#include "../../ir/settings/keys.h"
#include "sharding.h"

/* Ranks that cut tokens: those among which rows go now, with whom they went
 * before, with whom they will go; etp's; others. */
enum { NOW, BEFORE, LATER, ETP, OTHERS, SOURCES };

typedef struct Exchange {
    Graph *graph;
    Cursor b;                    /* at old */
    Node *old, *send, *received; /* maps: all tokens', a rank's, of what came */
    size_t count;                /* of nodes before the pass; by id of these: */
    Node ***user, ***rows;       /* users; a map's: what has it, or reads it */
    uint32_t atoms[SOURCES];     /* that cut tokens */
    int64_t peers, tokens, pair, wide; /* tokens: of a rank; bytes of one */
    double direct; /* expected share of a block's rows; 0: not by peer memory */
    Axis *source[SOURCES], *to, *peer, *slot, *row; /* source: may be null */
} Exchange;

/* ---- building ------------------------------------------------------------ */

static Node *number(const Exchange *exchange, int64_t v)
{
    return b_const(exchange->b, Di32, (double)v);
}

static Node *move(const Exchange *exchange, Op op, Node *v, Node *map,
                  const Node *by)
{
    Cursor b = cursor_at(exchange->graph, by);

    return infer(b.g, b_node(b, op, 2, (Node *[]){ v, map }));
}

static void add_axis(const Exchange *exchange, Axes *axes, Axis *a)
{
    Axis **v = alloc(exchange->graph->arena, (size_t)(axes->n + 1) * sizeof *v);

    if (!a)
        return;
    memcpy(v, axes->v, (size_t)axes->n * sizeof *v);
    v[axes->n++] = a;
    axes->v = v;
}

static Axes axes_of(const Exchange *exchange, Axis *a, Axis *b)
{
    Axes l = { 0 };

    add_axis(exchange, &l, a);
    add_axis(exchange, &l, b);
    return l;
}

/* ---- where a token goes -------------------------------------------------- */

static int is_token(const Exchange *exchange, const Axis *a)
{
    const Node *e = exchange->old->in[0];

    return a != exchange->old->at.route.top && dim_of(e, a) >= 0;
}

static int per_token(const Exchange *exchange, const Node *v)
{
    for (int i = 0; i < v->nd; i++)
        if (is_token(exchange, v->dim[i].a))
            return 1;
    return 0;
}

/* Of node < all the multiples of lo below hi. */
static Node *digits(const Exchange *exchange, Node *node, int64_t lo,
                    int64_t hi, int64_t all)
{
    Cursor b = exchange->b;
    Node *top = hi == all ? node : b_op2(b, Omod, node, number(exchange, hi));

    if (lo == 1)
        return top;
    return b_op2(b, Osub, top, b_op2(b, Omod, node, number(exchange, lo)));
}

static Node *plus(const Exchange *exchange, Node *a, Node *b)
{
    return a ? b_op2(exchange->b, Oadd, a, b) : b;
}

/* Does expert e lie on peer p? Experts are numbered by all of ep's atoms, peers
 * by those of them that cut tokens: the digits that both have are compared, as
 * part of the expert's number. */
static Node *lies_on(const Exchange *exchange, Node *e, Node *p)
{
    const Mesh *m = exchange->graph->mesh;
    int64_t experts = exchange->old->at.route.axis->n;
    int64_t unit = experts / mesh_extent(m, m->mask[Mep]), peer = 1;
    Node *of_e = NULL, *of_p = NULL;

    e = g_to_padded(exchange->graph, exchange->old->at.route.axis, e);
    for (int t = 0; t < m->natom; t++) {
        int64_t lo = unit, plo = peer;
        for (; t < m->natom && exchange->atoms[NOW] >> t & 1; t++) {
            unit *= m->atom[t].size;
            peer *= m->atom[t].size;
        }
        if (peer > plo) {
            of_e = plus(exchange, of_e, digits(exchange, e, lo, unit, experts));
            Node *d = digits(exchange, p, plo, peer, exchange->peers);
            d = b_op2(exchange->b, Omul, d, number(exchange, lo / plo));
            of_p = plus(exchange, of_p, d);
        }
        if (t < m->natom && m->mask[Mep] >> t & 1)
            unit *= m->atom[t].size;
    }
    Cursor b = exchange->b;
    Node *any = b_op2(b, Oge, e, number(exchange, 0));
    return b_op2(b, Oland, any, b_op2(b, Oeq, of_e, of_p));
}

static Node *send_map(const Exchange *exchange)
{
    Cursor b = exchange->b;
    Node *e = exchange->old->in[0], *to = b_iota(b, exchange->to);
    Axis *top = exchange->old->at.route.top;

    Node *none = number(exchange, -1);
    Node *p = b_op3(b, Owhere, lies_on(exchange, e, to), to, none);
    if (top)
        p = b_red(b, Omax, p, &top, 1);
    Node *m = b_node(b, Oroute, 1, &p);
    struct route_attrs *t = &m->at.route;
    t->axis = exchange->peer;
    t->top = exchange->to;
    t->capacity = exchange->pair;
    t->padded = 1;
    t->direct = exchange->direct;
    t->peers = exchange->old->at.route.peers;
    for (int k = SOURCES; k-- > 0;)
        add_axis(exchange, &t->blocks, exchange->source[k]);
    add_axis(exchange, &t->blocks, exchange->slot);
    return infer(b.g, m);
}

/* ---- values in blocks ---------------------------------------------------- */

static Node *in_blocks(const Exchange *exchange, Node *v, const Node *by);

/* A broadcast of what is sent travels as what it is of. */
static Node *spread(const Exchange *exchange, const Node *v, const Node *by)
{
    Node *in = in_blocks(exchange, v->in[0], by);
    Node *n = b_node(cursor_at(exchange->graph, by), Obroadcast, 1, &in);

    n->loc = v->loc;
    n->nd = in->nd;
    memcpy(n->dim, in->dim, sizeof n->dim);
    for (int d = 0; d < v->nd; d++)
        if (!is_token(exchange, v->dim[d].a) && dim_of(in, v->dim[d].a) < 0)
            n->dim[n->nd++] = v->dim[d];
    return infer(exchange->graph, n);
}

/* Is n made of what each expert has, by the choices that are sent anyway? */
static int by_choice(const Exchange *exchange, const Node *n, const Node *of)
{
    const Node *e = exchange->old->in[0];
    const Node *all = e->op == Odrop_to_capacity ? e->in[0] : e;

    return exchange->received && (n->in[1] == e || n->in[1] == all) &&
           !per_token(exchange, of);
}

/* The same by the choices that came. */
static Node *with_choices(const Exchange *exchange, const Node *n, Node *v,
                          Node *e)
{
    Node *in[2] = { v, e };
    Node *c = g_copyof(exchange->graph, n, in);

    if (n->op == Ogather)
        c->nd = 0;
    c->dt = n->dt;
    return infer(exchange->graph, c);
}

/* v [tokens ..] as [sources peer row ..]; by: where it is wanted. */
static Node *in_blocks(const Exchange *exchange, Node *v, const Node *by)
{
    if (!per_token(exchange, v))
        return v;
    if (v->op == Obroadcast && per_token(exchange, v->in[0]))
        return spread(exchange, v, by);
    Node *b = move(exchange, Odispatch, v, exchange->send, by);
    Node *n = b_node(cursor_at(exchange->graph, by), Osplit, 1, &b);
    n->at.split.axis = exchange->slot;
    n->at.split.into = axes_of(exchange, exchange->peer, exchange->row);
    return infer(exchange->graph, n);
}

/* Terms [sources peer row ..] as their sum [tokens ..]. */
static Node *at_home(const Exchange *exchange, Node *v, const Node *by)
{
    Cursor b = cursor_at(exchange->graph, by);
    Axis *to = exchange->to;
    Node *n = b_node(b, Omerge, 1, &v);

    n->at.merge.axes = axes_of(exchange, exchange->peer, exchange->row);
    n->at.merge.new = exchange->slot;
    n = move(exchange, Ocombine, infer(b.g, n), exchange->send, by);
    return b_red(b, Osum, n, &to, 1);
}

static Node *received_map(const Exchange *exchange)
{
    Graph *g = exchange->graph;
    Cursor b = exchange->b;
    Node *e = exchange->old->in[0], *one = number(exchange, 1);

    e = in_blocks(exchange, b_op2(b, Oadd, e, one), exchange->old);
    e = b_op2(b, Osub, e, one); /* rows of nobody: -1 */
    Node *none = number(exchange, -1);
    Node *is = lies_on(exchange, e, b_iota(b, exchange->peer));
    e = b_op3(b, Owhere, is, e, none);
    Node *m = b_node(b, Oroute, 1, &e);
    struct route_attrs *t = &m->at.route;
    int64_t micros = 1;
    for (int d = 0; d < exchange->old->in[0]->nd; d++) {
        Dim k = exchange->old->in[0]->dim[d];
        if (g_ismicro(k.a))
            micros = k.n / mesh_extent(g->mesh,
                                       cut_atoms(g->mesh, exchange->old, k.a));
    }
    *t = exchange->old->at.route;
    t->capacity *= micros;
    t->peers = axes_of(exchange, exchange->source[BEFORE], exchange->peer);
    t->load = map_load(exchange->old) * (double)exchange->tokens /
              (double)exchange->pair;
    return infer(g, m);
}

/* ---- the old map's users ------------------------------------------------- */

static Node *only_user(const Exchange *exchange, const Node *n)
{
    Node **u = n->id < (int)exchange->count ? exchange->user[n->id] : NULL;

    return vec_len(u) == 1 ? u[0] : NULL;
}

static int sums_choices(const Exchange *exchange, const Node *n)
{
    int any = 0;

    for (int i = 0; n->op == Osum && i < n->at.sum.axes.n; i++) {
        if (is_token(exchange, n->at.sum.axes.v[i]))
            return 0;
        any |= n->at.sum.axes.v[i] == exchange->old->at.route.top;
    }
    return any;
}

/* What is the same of terms and of their sum, up to the sum over choices: one
 * row comes home of each peer. */
static Node *last_term(const Exchange *exchange, Node *node)
{
    Node *n = node, *at;

    while ((at = only_user(exchange, n)) && at->op == Ocast)
        n = at;
    return at && sums_choices(exchange, at) ? at : node;
}

static void replace(const Exchange *exchange, const Node *n, Node *by)
{
    Node **u = exchange->user[n->id];

    for (size_t i = 0; i < vec_len(u); i++)
        for (int k = 0; k < u[i]->nin; k++)
            if (u[i]->in[k] == n)
                u[i]->in[k] = by;
}

/* u and what follows it up to `last`, of received rows. */
static Node *term(const Exchange *exchange, Node *n, const Node *u)
{
    if (n == u)
        return move(exchange, Ocombine, u->in[0], exchange->received, u);
    Node *in = term(exchange, n->in[0], u);
    Node *c = g_copyof(exchange->graph, n, &in);
    c->nd = 0;
    c->dt = n->dt;
    return infer(exchange->graph, c);
}

/* The sum of terms by their expert, up to which nothing but node is read: a
 * gradient of what each expert has; null: there is none. */
static Node *sum_by_choice(const Exchange *exchange, Node *node)
{
    Node *n = node, *at;

    while ((at = only_user(exchange, n)) && at->op == Ocast)
        n = at;
    return at && at->op == Oscatter_add && at->in[0] == n &&
                   by_choice(exchange, at, at)
               ? at
               : NULL;
}

static void bring_home(const Exchange *exchange, Node *node)
{
    Node *last = last_term(exchange, node),
         *sum = sum_by_choice(exchange, node);

    if (sum) {
        replace(exchange, sum,
                with_choices(exchange, sum, term(exchange, sum->in[0], node),
                             exchange->received->in[0]));
        return;
    }
    replace(exchange, last,
            at_home(exchange, term(exchange, last, node), last));
}

/* Does any of this rank's tokens find no row to some peer? */
static Node *blocks_full(const Exchange *exchange, const Node *by)
{
    Cursor b = cursor_at(exchange->graph, by);
    Node *one = number(exchange, 1), *n = b_node(b, Obroadcast, 1, &one);
    Axis *all[MAXD];

    for (int k = SOURCES; k-- > 0;)
        if (exchange->source[k])
            n->dim[n->nd++] =
                (Dim){ exchange->source[k], exchange->source[k]->n };
    n->dim[n->nd++] = (Dim){ exchange->slot, exchange->slot->n };
    n = move(exchange, Ocombine, infer(b.g, n), exchange->send, by);
    Node *sent = b_op2(b, Oge, exchange->send->in[0], number(exchange, 0));
    n = b_cast(b, b_op2(b, Oland, sent, b_op1(b, Olnot, n)), by->dt);
    for (int d = 0; d < n->nd; d++)
        all[d] = n->dim[d].a;
    return b_red(b, Omax, n, all, n->nd);
}

static void watch(const Exchange *exchange, Node *n)
{
    Node *full = blocks_full(exchange, n);

    replace(exchange, n,
            b_op2(cursor_at(exchange->graph, n), Omaximum, n, full));
}

static void follow(Node *n, Node *map)
{
    n->map = map;
    for (int d = 0; d < n->nd; d++)
        if (g_isrow(n->dim[d].a))
            n->dim[d].n = g_elems(map->in[0]);
}

static void send(const Exchange *exchange, Node *n)
{
    Node *v = n->in[0];

    if (v->op != Ogather || !by_choice(exchange, v, v->in[0])) {
        n->in[0] = in_blocks(exchange, v, n);
        return;
    }
    Node *e = move(exchange, Odispatch, exchange->received->in[0],
                   exchange->received, n);
    replace(exchange, n, with_choices(exchange, v, v->in[0], e));
}

static void send_and_return(const Exchange *exchange)
{
    Node **rows = exchange->rows[exchange->old->id];

    for (size_t i = 0; i < vec_len(rows); i++) {
        Node *n = rows[i];
        if (n->map == exchange->old)
            follow(n, exchange->received);
        if (!n->nin || n->in[n->nin - 1] != exchange->old)
            continue;
        if (n->op == Ocombine)
            bring_home(exchange, n);
        if (n->op == Odispatch)
            send(exchange, n);
        n->in[n->nin - 1] = exchange->received;
        if (n->op == Ooverflow && exchange->pair < exchange->tokens)
            watch(exchange, n);
    }
}

/* ---- whom and how much --------------------------------------------------- */

/* What is sent: the tokens; null: nothing of theirs is. */
static const Node *tokens_of(const Exchange *exchange)
{
    Node **rows = exchange->rows[exchange->old->id];

    for (size_t i = 0; i < vec_len(rows); i++) {
        const Node *n = rows[i];
        if (n->op == Odispatch && n->in[1] == exchange->old &&
            per_token(exchange, n->in[0]))
            return n->in[0];
    }
    return NULL;
}

static int kind_of(const Exchange *exchange, int atom)
{
    const Mesh *m = exchange->graph->mesh;
    const Axes *peers = &exchange->old->at.route.peers;

    return axis_cut_over(peers, atom)  ? BEFORE
           : m->mask[Mep] >> atom & 1  ? NOW
           : m->mask[Metp] >> atom & 1 ? ETP
                                       : OTHERS;
}

/* Which atoms cut the tokens, and how many of them a rank has. */
static int find_sources(Exchange *exchange)
{
    const Mesh *m = exchange->graph->mesh;
    const Node *v = tokens_of(exchange), *e = exchange->old->in[0];

    exchange->tokens = exchange->wide = 1;
    for (int d = 0; v && d < e->nd; d++)
        exchange->tokens *= is_token(exchange, e->dim[d].a) ? e->dim[d].n : 1;
    for (int d = 0; v && d < v->nd; d++)
        exchange->wide *= is_token(exchange, v->dim[d].a) ? 1 : v->dim[d].n;
    for (int t = 0; v && t < m->natom; t++) {
        if (v->sh[t].k != S || !is_token(exchange, v->sh[t].a))
            continue;
        exchange->atoms[kind_of(exchange, t)] |= 1u << t;
        exchange->tokens /= m->atom[t].size;
    }
    exchange->wide *= v ? dtypes[v->dt].bytes : 0;
    return exchange->atoms[NOW] != 0;
}

/* An axis of that size for those atoms, the same for all maps. */
static Axis *axis_for(const Exchange *exchange, const char *name,
                      uint32_t atoms, int64_t n)
{
    for (int k = 1;; k++) {
        Axis *a = g_axis(exchange->graph,
                         strf(exchange->graph->arena, "%s'%d", name, k));
        if (!a->n) {
            a->n = n;
            a->atoms = atoms;
        }
        if (a->n == n && a->atoms == atoms)
            return a;
    }
}

static void make_axes(Exchange *exchange)
{
    static const char *const name[SOURCES] = { "src", "host", "local", "etpsrc",
                                               "edpsrc" };

    for (int k = SOURCES; k-- > 0;)
        if (exchange->atoms[k])
            exchange->source[k] = axis_for(
                exchange, name[k], exchange->atoms[k],
                mesh_extent(exchange->graph->mesh, exchange->atoms[k]));
    exchange->to = axis_for(exchange, "to", 0, exchange->peers);
    exchange->peer =
        axis_for(exchange, "peer", exchange->atoms[NOW], exchange->peers);
    exchange->row = axis_for(exchange, "sent", 0, exchange->pair);
    exchange->slot =
        axis_for(exchange, "slot", 0, exchange->peers * exchange->pair);
}

/* Among ranks of the same number on their hosts first, then on each host. */
static int choose_level(Exchange *exchange, int first)
{
    const Mesh *m = exchange->graph->mesh;
    uint32_t near = exchange->atoms[NOW] & near_atoms(exchange->graph);
    TokenFlow f = { exchange->graph,
                    exchange->old,
                    exchange->atoms[NOW],
                    exchange->atoms[BEFORE],
                    exchange->tokens,
                    exchange->wide,
                    route_model(exchange->graph->arena, exchange->graph,
                                exchange->old, 1) };

    if (first && (!near || near == exchange->atoms[NOW]))
        return 0;
    Way way = way_of(&f, first);
    if (first ? way != WAYhosts : way == WAYgather)
        return 0;
    if (first) {
        exchange->atoms[LATER] = near;
        exchange->atoms[NOW] &= ~near;
    }
    exchange->peers = mesh_extent(m, exchange->atoms[NOW]);
    int64_t all = exchange->peers * mesh_extent(m, exchange->atoms[BEFORE]);
    exchange->pair = block_rows(&f, exchange->tokens, all);
    if (way == WAYpeer)
        exchange->direct =
            rows_for(&f, exchange->tokens, all) / (double)exchange->pair;
    f.now = exchange->atoms[NOW];
    report_assumed_routes(&f, exchange->pair);
    return 1;
}

/* Over some atoms of the experts all ranks have the same tokens: which of them
 * sends a row is not decided, so tokens are gathered over the others. */
static int are_tokens_whole(const Exchange *exchange)
{
    uint32_t whole = exchange->graph->mesh->mask[Mep] &
                     ~(exchange->atoms[NOW] | exchange->atoms[BEFORE] |
                       exchange->atoms[LATER]);

    if (whole)
        why(exchange->graph, exchange->old,
            "no exchange: %lld ranks of experts have each token",
            (long long)mesh_extent(exchange->graph->mesh, whole));
    return whole != 0;
}

static void exchange(Exchange x, Node *route, int first)
{
    x.old = route;
    x.b = cursor_at(x.graph, route);
    if (!find_sources(&x) || are_tokens_whole(&x) || !choose_level(&x, first))
        return;
    make_axes(&x);
    x.send = send_map(&x);
    x.received = received_map(&x);
    send_and_return(&x);
}

/* ---- the pass ------------------------------------------------------------ */

static void list_uses(Exchange *exchange, Arena *a)
{
    Graph *g = exchange->graph;

    exchange->count = vec_len(g->node);
    exchange->user = alloc(a, (exchange->count + 1) * sizeof *exchange->user);
    exchange->rows = alloc(a, (exchange->count + 1) * sizeof *exchange->rows);
    for (size_t i = 0; i < exchange->count; i++) {
        Node *n = g->node[i], *last = n->nin ? n->in[n->nin - 1] : NULL;
        for (int k = 0; k < n->nin; k++)
            vec_push(a, exchange->user[n->in[k]->id], n);
        if (n->map)
            vec_push(a, exchange->rows[n->map->id], n);
        if (last && last->op == Oroute && last != n->map)
            vec_push(a, exchange->rows[last->id], n);
    }
}

static void exchange_all(Graph *g, int first)
{
    Partitioner *part = place_nodes(g);
    Exchange x = { .graph = g };
    Node **old = NULL;

    list_uses(&x, part->arena);
    for (size_t i = 0; i < x.count; i++)
        if (g->node[i]->op == Oroute && !g->node[i]->at.route.blocks.n)
            vec_push(part->arena, old, g->node[i]);
    for (size_t i = 0; i < vec_len(old); i++)
        exchange(x, old[i], first);
    arena_free(part->arena);
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
