/* pipe_post.c: what follows the bodies, on each stage. A node of post runs
 * where what it reads lies: the accumulators of a stage, the parameters it
 * owns. What depends on nothing of a stage is made by all that read it.
 *
 *     scalars    a sum over several stages is a sum on each and one stagesum;
 *                any other scalar that another stage reads is a stagesum to
 *                which the others add 0. Then all stages have it.
 *     tensors    are sent to the stage that reads them
 *
 *     %t = add %l0 %l1               role 0    %t = stagesum %l0     role 1 ..
 *     %r = result %t                           %r = result %t
 *
 * Results are on every stage. A parameter or state that several stages read is
 * written by its owner, who sends the value to the others.
 *
 * What stages do together carries its place in one order (the attribute j of
 * stagesum, the channel of send and recv), which every stage keeps.          */
#include <string.h>

#include "passes.h"

enum { ANY = -1, SUM = -2 };      /* homes: every stage, a sum over several   */

static Node *value(Pipe *p, int s, Node *n);

/* ---- homes --------------------------------------------------------------- */

/* Where a node is that reads values of homes a and b.                        */
static int join(const Node *n, int a, int b)
{
    if (a == ANY || b == ANY)
        return a == ANY ? b : a;
    if (a == b && a != SUM)
        return a;
    return n->op == Oadd && n->nd == 0 ? SUM : a == SUM || n->nd == 0 ? ANY : a;
}

static int of_operands(const Pipe *p, const Node *n, int scalars)
{
    int home = ANY;

    for (int k = 0; k < n->nin; k++)
        if ((n->in[k]->nd == 0) == scalars)
            home = join(n, home, p->home[n->in[k]->id]);
    return home;
}

/* Tensors say where a node runs, scalars come to them.                       */
static int home_of(const Pipe *p, const Node *n)
{
    if (n->op == Oparam || n->op == Ostate)
        return pipe_stage(p->owner, n->s);
    if (n->reg == REGbody && !any_region(n))
        return p->s->rank[p->spot[n->id].chunk >= 0 ? p->spot[n->id].chunk : 0];
    if (n->op == Oaccum)
        return ANY;
    int home = of_operands(p, n, 0);
    if (home == ANY)
        home = of_operands(p, n, 1);
    return home == SUM && !(n->op == Oadd && n->nd == 0) ? ANY : home;
}

/* A state that no body reads lies where what is written to it is made.       */
static void adopt(Pipe *p)
{
    for (size_t i = 0; i < vec_len(p->g->node); i++) {
        const Node *n = p->g->node[i];
        if (n->op != Owrite || pipe_stage(p->owner, n->in[0]->s) >= 0)
            continue;
        int home = p->home[n->in[1]->id];
        *table_at(p->owner, KEYP(intern(n->in[0]->s))) =
            (void *)(uintptr_t)(home > 0 ? home + 1 : 1);
    }
}

static void find_homes(Pipe *p)
{
    size_t count = vec_len(p->g->node);

    p->home = alloc(p->a, (count + 1) * sizeof *p->home);
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < count; i++)
            p->home[i] = home_of(p, p->g->node[i]);
        if (!again)
            adopt(p);
    }
}

/* ---- building ------------------------------------------------------------ */

/* A node of op over one operand (or none) in post of stage s, in n's type.   */
static Node *made(Pipe *p, int s, Op op, const Node *n, Node *in)
{
    StagePart *x = &p->part[s];

    x->g->node = x->post;
    Node *r = g_node(x->g, op, n->loc, in != NULL, &in);
    x->post = x->g->node;
    x->g->node = NULL;
    r->scope = n->scope;
    r->reg = REGpost;
    if (op == Osend)
        return r;
    r->dt = n->dt;
    r->nd = n->nd;
    memcpy(r->dim, n->dim, sizeof r->dim);
    for (int i = 0; i < MAXATOM; i++)
        if (n->sh[i].k != R)
            r->sh[i] = n->sh[i];
    return r;
}

static Node *copied(Pipe *p, int s, Node *n)
{
    Node *in[MAXIN];

    for (int k = 0; k < n->nin; k++)
        in[k] = value(p, s, n->in[k]);
    return pipe_copy(p, s, &p->part[s].post, n, in);
}

/* x, of the type of n, added up over stages; null: 0.                        */
static void to_all(Pipe *p, const Node *n, Node *const *x)
{
    int order = p->chan++;

    for (int s = 0; s < p->stages; s++) {
        Node *r = x[s] ? x[s] : made(p, s, Oconst, n, NULL);
        r = made(p, s, Ostagesum, n, r);
        r->i = p->g->mesh->mask[Mpp];
        r->j = order;
        p->part[s].all[n->id] = r;
    }
}

/* ---- from stage to stage ------------------------------------------------- */

/* Truth values go as numbers.                                                */
static void broadcast(Pipe *p, Node *n, int home)
{
    Node **x = alloc(p->a, (size_t)p->stages * sizeof *x);
    Node like = *n;

    x[home] = value(p, home, n);
    if (n->dt == Dbool) {
        like.dt = Df32;
        x[home] = made(p, home, Ocast, &like, x[home]);
        x[home]->s = intern(dtypes[Df32].name);
    }
    to_all(p, &like, x);
    for (int s = 0; s < p->stages && n->dt == Dbool; s++) {
        Node *zero = made(p, s, Oconst, &like, NULL);
        Node *in[2] = { p->part[s].all[n->id], zero }, ne = like;
        ne.op = One;
        ne.nin = 2;
        ne.dt = Dbool;
        ne.A = ne.B = NULL;
        ne.nA = ne.nB = 0;
        ne.i = ne.j = 0;
        ne.f = 0;
        ne.s = NULL;
        ne.body = NULL;
        Node *c = pipe_copy(p, s, &p->part[s].post, &ne, in);
        c->name = NULL;
        p->part[s].all[n->id] = c;
    }
}

static Node *sent(Pipe *p, int from, int to, Node *n)
{
    Node *v = value(p, from, n);
    Node *x = made(p, from, Osend, n, v), *r = made(p, to, Orecv, n, NULL);

    x->i = to;
    r->i = from;
    x->j = r->j = p->chan++;
    return p->part[to].all[n->id] = r;
}

/* ---- sums over stages ---------------------------------------------------- */

static void terms_of(const Pipe *p, Node *n, Node ***out)
{
    if (p->home[n->id] != SUM) {
        vec_push(p->a, *out, n);
        return;
    }
    terms_of(p, n->in[0], out);
    terms_of(p, n->in[1], out);
}

static void sum_of(Pipe *p, Node *n)
{
    Node **part = alloc(p->a, (size_t)p->stages * sizeof *part), **term = NULL;

    terms_of(p, n->in[0], &term);
    terms_of(p, n->in[1], &term);
    for (size_t i = 0; i < vec_len(term); i++) {
        int home = p->home[term[i]->id], s = home < 0 ? 0 : home;
        Node *x = value(p, s, term[i]);
        if (part[s]) {
            Node *in[2] = { part[s], x };
            x = pipe_copy(p, s, &p->part[s].post, n, in);
            x->name = NULL;
        }
        part[s] = x;
    }
    to_all(p, n, part);
}

/* ---- the value of a node ------------------------------------------------- */

static int is_before(const Node *n)
{
    return n->reg != REGpost || any_region(n);
}

/* n on stage s: there, or from its home.                                     */
static Node *value(Pipe *p, int s, Node *n)
{
    int home = p->home[n->id];
    StagePart *x = &p->part[s];

    if (x->at[n->id] && (home == ANY || home == s || is_before(n)))
        return x->at[n->id];
    if (x->all[n->id])
        return x->all[n->id];
    if (home == SUM)
        sum_of(p, n);
    else if (home >= 0 && home != s && n->nd == 0)
        broadcast(p, n, home);
    else if (home >= 0 && home != s)
        sent(p, home, s, n);
    else if (is_before(n))
        return pipe_shared(p, s, n);
    else
        return x->at[n->id] = copied(p, s, n);
    return x->all[n->id];
}

/* ---- sinks --------------------------------------------------------------- */

static void write_copies(Pipe *p, Node *n, int owner)
{
    for (int s = 0; s < p->stages; s++) {
        Node *in[2] = { p->part[s].at[n->in[0]->id] };
        if (s == owner || !in[0])
            continue;
        in[1] = value(p, s, n->in[1]);
        pipe_copy(p, s, &p->part[s].post, n, in);
    }
}

static void put_sink(Pipe *p, Node *n)
{
    if (n->op == Owrite) {
        int owner = pipe_stage(p->owner, n->in[0]->s);
        value(p, owner, n->in[1]);
        copied(p, owner, n);
        write_copies(p, n, owner);
        return;
    }
    for (int s = 0; s < p->stages; s++)
        copied(p, s, n);
}

void pipe_post(Pipe *p)
{
    find_homes(p);
    for (size_t i = 0; i < vec_len(p->g->node); i++) {
        Node *n = p->g->node[i];
        if (n->reg == REGpost && optab[n->op].cls == SINK)
            put_sink(p, n);
    }
}
