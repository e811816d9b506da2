/* pipe_post.c: post of each stage. A node of post runs where its operands are:
 * the accumulators of a stage, the parameters it owns. Nodes that depend on no
 * stage are computed by all readers.
 *
 *     scalars    a sum over several stages is a sum on each and a pp_sum;
 *                any other scalar that another stage reads is a pp_sum to
 *                which the others add 0. Then all stages have it. Independent
 *                ones are combined as elements of one vector.
 *     tensors    are sent to the stage that reads them
 *
 *     %t = add %l0 %l1               role 0    %v = concat %l0 %m    role 1 ..
 *     %a = result %t                           %s = pp_sum %v
 *     %b = result %m                           %a = result %s[0]
 *                                              %b = result %s[1]
 *
 * Results are on every stage. The owner (pipe_own.c) writes a parameter or
 * state and sends the value to stages with a copy. One that no body reads is on
 * the stage that computes its value, or on the first stage.
 *
 * A route is not sent but computed again from its operands.
 *
 * Operations between stages have a number in one order (the attribute j of
 * pp_sum, the channel of send and recv), which every stage keeps. */
#include "pipe.h"

enum { ANY = -1, SUM = -2 }; /* homes: every stage, a sum over several */

static Node *value(Pipe *pipe, int s, Node *n);

/* ---- homes --------------------------------------------------------------- */

/* Returns the home of a node that reads values of homes a and b. */
static int join(const Node *n, int a, int b)
{
    if (a == ANY || b == ANY)
        return a == ANY ? b : a;
    if (a == b && a != SUM)
        return a;
    return n->op == Oadd && n->nd == 0 ? SUM : a == SUM || n->nd == 0 ? ANY : a;
}

static int of_operands(const Pipe *pipe, const Node *n, int scalars)
{
    int home = ANY;

    for (int k = 0; k < n->nin; k++)
        if ((n->in[k]->nd == 0) == scalars)
            home = join(n, home, pipe->home[n->in[k]->id]);
    return home;
}

/* Returns a node's home, which its tensor operands determine; scalars are sent
 * there. */
static int home_of(const Pipe *pipe, const Node *n)
{
    if (is_lasting(n))
        return pipe_owner(pipe->held, n_name(n));
    if (n->reg == REGbody && !any_region(n))
        return pipe->schedule
            ->rank[pipe->spot[n->id].chunk >= 0 ? pipe->spot[n->id].chunk : 0];
    if (n->op == Oaccum || n->op == Oroute)
        return ANY;
    int home = of_operands(pipe, n, 0);
    if (home == ANY)
        home = of_operands(pipe, n, 1);
    return home == SUM && !(n->op == Oadd && n->nd == 0) ? ANY : home;
}

/* Gives an owner to parameters and states that no body reads. */
static void adopt(Pipe *pipe)
{
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++) {
        const Node *n = pipe->graph->node[i];
        int home = n->op == Owrite ? pipe->home[n->in[1]->id] : -1;
        if (home >= 0 && pipe_owner(pipe->held, n_name(n->in[0])) < 0)
            *pipe_held(pipe->held, n_name(n->in[0]))->owner = home;
    }
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++) {
        const Node *n = pipe->graph->node[i];
        if (is_lasting(n) && pipe_owner(pipe->held, n_name(n)) < 0)
            *pipe_held(pipe->held, n_name(n))->owner = 0;
    }
}

static void find_homes(Pipe *pipe)
{
    size_t count = vec_len(pipe->graph->node);

    pipe->home = alloc(pipe->arena, (count + 1) * sizeof *pipe->home);
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < count; i++)
            pipe->home[i] = home_of(pipe, pipe->graph->node[i]);
        if (!again)
            adopt(pipe);
    }
}

/* ---- building ------------------------------------------------------------ */

/* Builds a node of op in post of stage s, with n's type. */
static Node *made_of(Pipe *pipe, int s, Op op, const Node *n, int nin,
                     Node *const *in)
{
    StagePart *part = &pipe->part[s];

    part->graph->node = part->post;
    Node *r = g_node(part->graph, op, n->loc, nin, in);
    part->post = part->graph->node;
    part->graph->node = NULL;
    r->scope = n->scope;
    r->reg = REGpost;
    if (op == Osend)
        return r;
    r->dt = n->dt;
    r->nd = n->nd;
    memcpy(r->dim, n->dim, sizeof r->dim);
    r->sh = n->sh;
    return r;
}

/* made_of with one operand, or none. */
static Node *made(Pipe *pipe, int s, Op op, const Node *n, Node *in)
{
    return made_of(pipe, s, op, n, in != NULL, &in);
}

static Node *copied(Pipe *pipe, int s, Node *n)
{
    Node *in[MAXIN];

    for (int k = 0; k < n->nin; k++)
        in[k] = value(pipe, s, n->in[k]);
    Node *map = n->map ? value(pipe, s, n->map) : NULL;
    Node *c = pipe_copy(pipe, s, &pipe->part[s].post, n, in);
    c->map = map;
    return c;
}

/* ---- transfers ----------------------------------------------------------- */

static Node *sent(Pipe *pipe, int from, int to, Node *n)
{
    Node *v = value(pipe, from, n),
         *map = n->map ? value(pipe, to, n->map) : NULL;
    Node *x = made(pipe, from, Osend, n, v),
         *r = made(pipe, to, Orecv, n, NULL);

    x->at.send.peer = to;
    r->at.recv.peer = from;
    r->map = map;
    x->at.send.chan = r->at.recv.chan = pipe->chan++;
    return pipe->part[to].all[n->id] = r;
}

/* ---- sums over stages ---------------------------------------------------- */

static void terms_of(const Pipe *pipe, Node *n, Node ***out)
{
    if (pipe->home[n->id] != SUM) {
        vec_push(pipe->arena, *out, n);
        return;
    }
    terms_of(pipe, n->in[0], out);
    terms_of(pipe, n->in[1], out);
}

/* Finds the term that each stage adds to n; null: 0. */
static void parts_of(Pipe *pipe, Node *n, Node **part)
{
    Node **term = NULL;

    terms_of(pipe, n, &term);
    for (size_t i = 0; i < vec_len(term); i++) {
        int home = pipe->home[term[i]->id], s = home < 0 ? 0 : home;
        Node *x = value(pipe, s, term[i]);
        if (part[s]) {
            Node *in[2] = { part[s], x };
            x = pipe_copy(pipe, s, &pipe->part[s].post, n, in);
            x->name = NULL;
        }
        part[s] = x;
    }
}

/* Returns a node with the type of n's pp_sum: booleans are sent as numbers. */
static Node like_sum(const Node *n)
{
    Node like = *n;

    like.dt = n->dt == Dbool ? Df32 : n->dt;
    return like;
}

/* Returns x on stage s as a vector of one element. */
static Node *element(Pipe *pipe, int s, const Node *like, Node *x)
{
    Node one = *like;

    one.dim[one.nd++] = (Dim){ g_axis(pipe->part[s].graph, "sums'1"), 1 };
    return made(pipe, s, Obroadcast, &one, x);
}

static Node *number(Pipe *pipe, int s, const Node *like, Node *x)
{
    if (!x)
        return made(pipe, s, Oconst, like, NULL);
    if (x->dt == Dbool) {
        x = made(pipe, s, Ocast, like, x);
        x->at.cast.to = like->dt;
    }
    return x;
}

/* Returns k scalars as one operand of a pp_sum. */
static Node *vector_of(Pipe *pipe, int s, const Node *like, Node **x, int k)
{
    if (k == 1)
        return x[0];
    Axis *a = g_axis(pipe->part[s].graph, "sums'1");
    Node v = *like;
    v.dim[v.nd++] = (Dim){ a, k };
    for (int i = 0; i < k; i++)
        x[i] = element(pipe, s, like, x[i]);
    Node *c = made_of(pipe, s, Oconcat, &v, k, x);
    c->at.concat.axis = a;
    return c;
}

/* Returns element i of such a vector of k. */
static Node *taken(Pipe *pipe, int s, const Node *n, const Node *like, Node *v,
                   int i, int k)
{
    if (k > 1) {
        Node one = *like;
        one.dim[one.nd++] = v->dim[0];
        one.dim[0].n = 1;
        v = made(pipe, s, Oslice, &one, v);
        v->at.slice = (struct slice_attrs){ v->dim[0].a, i, 1 };
        Node *x = made(pipe, s, Osum, like, v);
        x->at.sum.axes = g_axes(pipe->part[s].graph, &v->dim[0].a, 1);
        v = x;
    }
    if (n->dt != Dbool)
        return v;
    Node *in[2] = { v, made(pipe, s, Oconst, like, NULL) };
    return made_of(pipe, s, One, n, 2, in);
}

/* Sums k scalars of one dtype over all stages in one pp_sum; the results
 * replace n[i]. */
static void to_all(Pipe *pipe, Node *const *n, int k)
{
    Node ***part = alloc(pipe->arena, (size_t)k * sizeof *part);
    Node like = like_sum(n[0]);

    for (int i = 0; i < k; i++) {
        part[i] = alloc(pipe->arena, (size_t)pipe->stages * sizeof **part);
        parts_of(pipe, n[i], part[i]);
    }
    int order = pipe->chan++;
    for (int s = 0; s < pipe->stages; s++) {
        Node *x[MAXIN];
        for (int i = 0; i < k; i++)
            x[i] = number(pipe, s, &like, part[i][s]);
        Node *v = vector_of(pipe, s, &like, x, k);
        v = made(pipe, s, Opp_sum, v, v);
        v->at.pp_sum =
            (struct pp_sum_attrs){ pipe->graph->mesh->mask[Mpp], order };
        for (int i = 0; i < k; i++)
            pipe->part[s].all[n[i]->id] = taken(pipe, s, n[i], &like, v, i, k);
    }
}

/* ---- the value of a node ------------------------------------------------- */

static int is_before(const Node *n)
{
    return n->reg != REGpost || any_region(n);
}

/* Is n made before post and on stage s without a transfer? */
static int stands_on(const Pipe *pipe, int s, const Node *n)
{
    int home = pipe->home[n->id];

    return is_before(n) &&
           (home == ANY || home == s || pipe->part[s].at[n->id] ||
            (is_lasting(n) && pipe_held(pipe->held, n_name(n))->has[s]));
}

/* Returns n on stage s: computed there, or sent from its home. */
static Node *value(Pipe *pipe, int s, Node *n)
{
    int home = pipe->home[n->id];
    StagePart *part = &pipe->part[s];

    if (stands_on(pipe, s, n))
        return pipe_shared(pipe, s, n);
    if (part->at[n->id] && (home == ANY || home == s))
        return part->at[n->id];
    if (part->all[n->id])
        return part->all[n->id];
    if (home == SUM || (home >= 0 && home != s && n->nd == 0))
        to_all(pipe, &n, 1);
    else if (home >= 0 && home != s)
        sent(pipe, home, s, n);
    else
        return part->at[n->id] = copied(pipe, s, n);
    return part->all[n->id];
}

/* ---- sinks --------------------------------------------------------------- */

static int writes_on(const Pipe *pipe, const Node *write, int s)
{
    const Holders *h = pipe_held(pipe->held, n_name(write->in[0]));

    return s == *h->owner || h->has[s];
}

/* Adds a write, on the owner first, since the others wait for its value. */
static void put_write(Pipe *pipe, Node *n)
{
    int owner = pipe_owner(pipe->held, n_name(n->in[0]));

    value(pipe, owner, n->in[1]);
    copied(pipe, owner, n);
    for (int s = 0; s < pipe->stages; s++) {
        if (s == owner || !writes_on(pipe, n, s))
            continue;
        Node *in[2] = { pipe_shared(pipe, s, n->in[0]),
                        value(pipe, s, n->in[1]) };
        pipe_copy(pipe, s, &pipe->part[s].post, n, in);
    }
}

static int is_post_sink(const Node *n)
{
    return n->reg == REGpost && optab[n->op].cls == SINK;
}

static void put_sink(Pipe *pipe, Node *n)
{
    for (int s = 0; s < pipe->stages && n->op != Owrite; s++)
        copied(pipe, s, n);
    if (n->op == Owrite)
        put_write(pipe, n);
}

/* ---- combined sums ------------------------------------------------------- */

/* Scalars that go to all stages, by the number of sums that must precede them,
 * found by the same walk as value()'s. */
typedef struct ScalarTransfers {
    Pipe *pipe;
    int *seen;  /* [id][stage]: 1 + rounds; 0: not visited */
    int *round; /* [id]: its round, from 1; 0: not a scalar to send */
    Node **all; /* vec */
    int last;   /* last round */
} ScalarTransfers;

static int rounds(ScalarTransfers *transfers, int s, Node *n);

static int most_of(ScalarTransfers *transfers, int s, const Node *n)
{
    int most = 0;

    for (int k = 0; k <= n->nin; k++) {
        int r = read_by(n, k) ? rounds(transfers, s, read_by(n, k)) : 0;
        most = r > most ? r : most;
    }
    return most;
}

static int asked(ScalarTransfers *transfers, Node *n)
{
    Node **term = NULL;
    int most = 0;

    if (transfers->round[n->id])
        return transfers->round[n->id];
    terms_of(transfers->pipe, n, &term);
    for (size_t i = 0; i < vec_len(term); i++) {
        int home = transfers->pipe->home[term[i]->id];
        int r = rounds(transfers, home < 0 ? 0 : home, term[i]);
        most = r > most ? r : most;
    }
    vec_push(transfers->pipe->arena, transfers->all, n);
    transfers->last = most + 1 > transfers->last ? most + 1 : transfers->last;
    return transfers->round[n->id] = most + 1;
}

static int rounds_before(ScalarTransfers *transfers, int s, Node *n)
{
    int home = transfers->pipe->home[n->id];
    int near = home == ANY || home == s;

    if (stands_on(transfers->pipe, s, n))
        return 0;
    if (home == SUM || (!near && n->nd == 0))
        return asked(transfers, n);
    if (near)
        return most_of(transfers, s, n);
    int there = rounds(transfers, home, n),
        map = n->map ? rounds(transfers, s, n->map) : 0;
    return map > there ? map : there;
}

/* Returns the number of sums that must precede n on stage s. */
static int rounds(ScalarTransfers *transfers, int s, Node *n)
{
    int *seen = &transfers->seen[n->id * transfers->pipe->stages + s];

    if (!*seen)
        *seen = 1 + rounds_before(transfers, s, n);
    return *seen - 1;
}

static void ask(ScalarTransfers *transfers, Node *n)
{
    for (int s = 0; s < transfers->pipe->stages; s++)
        if (n->op != Owrite)
            most_of(transfers, s, n);
        else if (writes_on(transfers->pipe, n, s))
            rounds(transfers, s, n->in[1]);
}

/* Can two scalars share a vector? Both must be whole, or both sums. */
static int go_together(const Node *x, const Node *y)
{
    for (int i = 0; i < MAXATOM; i++)
        if (!same_shard(&x->sh[i], &y->sh[i]) || x->sh[i].k == S ||
            (x->sh[i].k == P && x->sh[i].op != Radd))
            return 0;
    return like_sum(x).dt == like_sum(y).dt;
}

static void sum_round(const ScalarTransfers *transfers, int round)
{
    Node *const *done = transfers->pipe->part[0].all;

    for (size_t i = 0; i < vec_len(transfers->all); i++) {
        Node *v[MAXIN] = { transfers->all[i] };
        int k = 1;
        if (transfers->round[v[0]->id] != round || done[v[0]->id])
            continue;
        for (size_t j = i + 1; j < vec_len(transfers->all) && k < MAXIN; j++)
            if (transfers->round[transfers->all[j]->id] == round &&
                !done[transfers->all[j]->id] &&
                go_together(v[0], transfers->all[j]))
                v[k++] = transfers->all[j];
        to_all(transfers->pipe, v, k);
    }
}

static void sum_together(Pipe *pipe)
{
    size_t count = vec_len(pipe->graph->node);
    ScalarTransfers x = { .pipe = pipe };

    x.seen =
        alloc(pipe->arena, (count + 1) * (size_t)pipe->stages * sizeof *x.seen);
    x.round = alloc(pipe->arena, (count + 1) * sizeof *x.round);
    for (size_t i = 0; i < count; i++)
        if (is_post_sink(pipe->graph->node[i]))
            ask(&x, pipe->graph->node[i]);
    for (int r = 1; r <= x.last; r++)
        sum_round(&x, r);
}

/* ---- interface ----------------------------------------------------------- */

void pipe_post(Pipe *pipe)
{
    find_homes(pipe);
    sum_together(pipe);
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++)
        if (is_post_sink(pipe->graph->node[i]))
            put_sink(pipe, pipe->graph->node[i]);
}
