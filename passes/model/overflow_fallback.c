/* overflow_fallback.c: the program step.fallback, for a step whose rows
 * overflowed. Rows are processed in rounds, in round k the k-th part of each
 * rank's rows, and the contributions are added:
 *
 *     %r = dispatch %x %m                %r  = dispatch %x %m0
 *     %y = gmm %r %w %m                  %y  = gmm %r %w %m0
 *     %u = combine %y %m       =>     %u  = combine %y %m0
 *     %o = sum %u top                    %o  = sum %u top
 *                                        %r1 = dispatch %x %m1 ..
 *                                        %s  = add %o %o1
 *
 * A pair is in one round, so only zeros are added to its contribution. The
 * backward keeps nothing of the rounds: it recomputes from the tokens
 * (`again`). Sums over rounds are numbered (j), and fuse never combines two of
 * them, so that a round's values are dead before the next round. */
#include "../../ir/settings/keys.h"
#include "model.h"

enum { MAXROUNDS = 8, FEWCHOICES = 2048 };

/* Returns how many budgets the rows of a rank can need: the worst case divided
 * by the capacity, both for one token, since sharding divides both equally. */
static double budgets_of(const Graph *g, const Node *route)
{
    const Node *e = route->in[0];
    double ep = fmax(1, (double)opts_int(g->opts, "fold.ep"));
    double all = (double)unpadded(route->at.route.axis)->n,
           here = ceil(all / ep);
    double f = opts_num(g->opts, "route.factor"), worst = 1;

    for (int i = 0; i < e->nd; i++)
        if (e->dim[i].a == route->at.route.top)
            worst = fmin((double)e->dim[i].n, here);
    return ceil(worst * all / (map_choices(route) * here * f) * (1 - 1e-12));
}

/* Are the choices of a micro-batch so few that a rank often exceeds the default
 * budget by chance? Capacity for all of them costs little. */
static int few_choices(const Graph *g, const Node *route)
{
    const Node *e = route->in[0];
    double n = 1;

    for (int i = 0; i < e->nd; i++)
        n *= g_ismicro(e->dim[i].a) ? 1 : (double)e->dim[i].n;
    return !opts_given(g->opts, "route.factor") && n < FEWCHOICES;
}

int may_overflow(const Graph *g, const Node *route)
{
    return opts_num(g->opts, "route.factor") > 0 &&
           opts_route_policy(g->opts) == ROUTEdropless &&
           program_trains(g->prog) && !few_choices(g, route) &&
           budgets_of(g, route) > 1;
}

/* Returns the budget of a round. It may be larger than the step's, for few
 * rounds, since the fallback keeps no values of a round. */
double budget_of(const Graph *g, const Node *route)
{
    double f = opts_num(g->opts, "route.factor");

    return g->prog == PGfallback ? f * ceil(budgets_of(g, route) / MAXROUNDS)
                                 : f;
}

static int rounds_of(const Graph *g, const Node *route)
{
    double n = budgets_of(g, route);

    return (int)ceil(n / ceil(n / MAXROUNDS));
}

static void add_overflow_flags(Graph *g)
{
    size_t count = vec_len(g->node);

    for (size_t i = 0; i < count; i++) {
        Node *m = g->node[i];
        if (m->op != Oroute || !(m->at.route.budget > 0))
            continue;
        Node *o = g_node(g, Ooverflow, m->loc, 1, &m);
        o = g_cast(g, infer(g, g_placed(o, m)), Df32);
        g_accum(g, g_placed(o, m), Rmax);
    }
}

/* ---- forward ------------------------------------------------------------- */

static void split_rows(RowCopies *copies, Node *m, int n)
{
    Node **map = alloc(copies->arena, (size_t)n * sizeof *map);

    map[0] = m;
    for (int k = 1; k < n; k++) {
        map[k] = g_copyof(copies->graph, m, m->in);
        map[k]->at.route.round = k;
    }
    sum_rows_of_maps(copies, map, n, NULL);
}

static void make_rounds(Graph *g)
{
    RowCopies copies = { .graph = g, .arena = arena_new() };
    size_t count = vec_len(g->node);

    g_renumber(g);
    for (size_t i = 0; i < count; i++)
        if (g->node[i]->op == Oroute && g->node[i]->at.route.budget > 0)
            split_rows(&copies, g->node[i], rounds_of(g, g->node[i]));
    arena_free(copies.arena);
    g_sort(g);
    g_tidy(g);
}

/* ---- backward ------------------------------------------------------------ */

/* Returns the rows of a round, recomputed for its backward; maps and tokens are
 * kept. */
static Node *rows_again(Graph *g, Node *n, Node **to)
{
    Node *in[MAXIN];

    if (!n->map || !(n->map->at.route.budget > 0) || is_backward(n))
        return n;
    if (to[n->id])
        return to[n->id];
    for (int k = 0; k < n->nin; k++)
        in[k] = rows_again(g, n->in[k], to);
    Node *c = g_copyof(g, n, in);
    c->map = n->map;
    c->again = n->again + 1;
    c->scope = g_backward(g, n->scope);
    return to[n->id] = c;
}

/* Returns 1 + the round of a value; 0: none or several. */
static int round_of(const Node *n)
{
    const Node *map = n->map ? n->map : n->nin ? n->in[n->nin - 1] : NULL;
    int most = 0;

    if (map && map->op == Oroute)
        return map->at.route.budget > 0 ? 1 + (int)map->at.route.round : 0;
    if (n->op == Oadd && !(n->in[0]->mark && n->in[1]->mark))
        return 0;
    if (optab[n->op].cls != EW && optab[n->op].cls != RED &&
        optab[n->op].cls != VIEW)
        return 0;
    for (int k = 0; k < n->nin; k++)
        most = n->in[k]->mark > most ? n->in[k]->mark : most;
    return most;
}

static void number_sums(Graph *g)
{
    int seq = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = round_of(n);
        if (n->op == Oadd && n->mark && n->in[0]->mark != n->in[1]->mark)
            n->piece = ++seq;
    }
}

void pass_overflow_bwd(Graph *g)
{
    size_t count = vec_len(g->node);
    Node **to = alloc(g->arena, (count + 1) * sizeof *to);

    g_renumber(g);
    for (size_t i = 0; i < count; i++) {
        Node *n = g->node[i];
        for (int k = 0; k < n->nin && is_backward(n); k++)
            n->in[k] = rows_again(g, n->in[k], to);
    }
    g_sort(g);
    number_sums(g);
}

void pass_overflow(Graph *g)
{
    if (g->prog == PGfallback)
        make_rounds(g);
    else
        add_overflow_flags(g);
}
