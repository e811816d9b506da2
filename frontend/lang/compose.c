/* compose.c: composites. composite(name, f, ...) traces f into the body of one
 * `call` node: whatever tensor from outside f touches becomes an operand. The
 * prelude's softmax, rmsnorm, rope ... are made so; a target with kernels for
 * one takes it by name, any other opens it.
 *
 * attention(s, v, key) is a composite too, whose scores s were traced before.
 * When the model is known, its body takes in every node behind s whose value is
 * square (has `key` and the axis that key was renamed from), so that no square
 * value leaves it; what is not square becomes an operand.
 *
 * A body computes its scores apart from the rest of the model and rounds them
 * otherwise. So a comparison stays outside, as an operand, if it depends on
 * scores that something else reads: other results would follow from either of
 * two roundings. */
#include "../frontend.h"

Body *open_body(Front *front)
{
    Body *b = alloc(front->g->arena, sizeof *b);

    b->g = g_like(front->g);
    b->up = front->body;
    front->body = b;
    vec_push(front->g->arena, front->bodies, b->g);
    return b;
}

/* The body ends with its result: what comes after is dead. */
static void end_with(Graph *g, Node *result)
{
    size_t n = vec_len(g->node);

    while (n > 0 && g->node[n - 1] != result)
        n--;
    vec_cut(g->node, n);
    g_tidy(g);
}

static Node *close_body(Front *front, Body *body, const char *name,
                        Node *result)
{
    Node *n;

    front->body = body->up;
    if (result->op == Oarg)
        return body->outer[result->at.arg.index];
    end_with(body->g, result);
    n = make(front, Ocall, (int)vec_len(body->outer), body->outer);
    n->at.call.name = intern(name);
    n->body = body->g;
    n->dt = result->dt;
    n->nd = result->nd;
    memcpy(n->dim, result->dim, sizeof n->dim);
    return infer(current(front), n);
}

/* composite(name, f, ...): f(...), traced into a body */
static int composite(lua_State *L)
{
    Front *front = front_of(L);
    const char *name = luaL_checkstring(L, 1);
    int n = lua_gettop(L);
    Body *b = open_body(front);

    for (int i = 3; i <= n; i++)
        if (value_at(L, i))
            use(front, value_at(L, i));
    front->fn = name;
    lua_call(L, n - 2, 1);
    front->fn = name;
    front->loc = here(L);
    Node *r = use(front, need_value(L, -1, "the result"));
    return push_node(L, close_body(front, b, name, r));
}

/* ---- attention ----------------------------------------------------------- */

/* Facts about a node of the model. */
typedef struct ScoreUse {
    int by;     /* 2 + the node of the only attention whose scores read it */
    int real;   /* depends on real numbers of the model */
    int shared; /* depends on real scores that are read outside attention */
    const Node *stays; /* the attention that has this comparison as operand */
} ScoreUse;

enum { UNREAD, OUTSIDE };

typedef struct Scores {
    Front *front;
    Body *b;
    const Node *call;
    ScoreUse *use; /* by number of node */
    Table *to;     /* node outside -> node in the body */
    int depth;
} Scores;

enum { DEEPEST = 5000 }; /* operations in a row behind scores */

static int square(const Node *call, const Node *n)
{
    return dim_of(n, call->at.call.key) >= 0 &&
           dim_of(n, call->at.call.query) >= 0;
}

/* May the body of `call` take in n, which is behind its scores? */
static int belongs(const Node *call, const Node *n)
{
    OpClass c = optab[n->op].cls;

    if (n == call->in[1] || !square(call, n))
        return 0;
    if (n->op == Odot)
        return n->in[0]->op != Opick && n->in[1]->op != Opick;
    return c == EW || n->op == Ocall;
}

static int is_real(const Node *n)
{
    return dtypes[n->dt].kind == 'f';
}

/* Does the value of n, or its gradient, depend on which real is the larger? */
static int compares(const Node *n)
{
    int real = 0;

    for (int k = 0; k < n->nin; k++)
        real |= is_real(n->in[k]);
    switch (n->op) {
    case Osign:
    case Orelu:
    case Oabs:
    case Omaximum:
    case Ominimum: return real;
    case Ocast: return real && !is_real(n);
    default: return real && op_is(n->op, OPcmp);
    }
}

static Node *score(Scores *scores, Node *n);

/* Nodes of a call's body with its operands put in. */
static Node *opened(Scores *scores, const Node *call)
{
    const Graph *g = call->body;
    Table *at = table_new(scores->front->g->arena);
    Node *in[MAXIN], *r = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++)
            in[k] = table_get(at, KEYP(n->in[k]));
        if (n->op == Oarg)
            r = score(scores, call->in[n->at.arg.index]);
        else
            r = infer(scores->b->g, g_copyof(scores->b->g, n, in));
        *table_at(at, KEYP(n)) = r;
    }
    return r;
}

/* iota over one axis, or a renamed one: cheaper made than read. */
static const Node *plain_iota(const Node *n)
{
    const Node *a = n->op == Orename ? n->in[0] : n;

    return a->op == Oiota && n->nd == 1 ? n : NULL;
}

/* n compares scores that are read outside, and stays there. */
static int stays(const Scores *scores, const Node *n)
{
    ScoreUse *use = &scores->use[n->id];

    if (!compares(n) || !use->real || use->by != OUTSIDE)
        return 0;
    use->stays = scores->call;
    return 1;
}

static Node *copied(Scores *scores, Node *n)
{
    Node *in[MAXIN];
    const Node *node = plain_iota(n);

    if (n->op == Oconst)
        return infer(scores->b->g, g_copyof(scores->b->g, n, NULL));
    if (node)
        return iota_of(scores->front, node->dim[0].a, node->dim[0].n);
    if (!belongs(scores->call, n) || stays(scores, n))
        return use(scores->front, &(LuaTensor){ .n = n });
    if (n->op == Ocall)
        return opened(scores, n);
    for (int k = 0; k < n->nin; k++)
        in[k] = score(scores, n->in[k]);
    return infer(scores->b->g, g_copyof(scores->b->g, n, in));
}

static Node *score(Scores *scores, Node *n)
{
    Node *r = table_get(scores->to, KEYP(n));

    if (r)
        return r;
    if (++scores->depth > DEEPEST)
        err(scores->front->loc,
            "attention: more than %d operations in a row behind the scores",
            DEEPEST);
    r = copied(scores, n);
    *table_at(scores->to, KEYP(n)) = r;
    scores->depth--;
    return r;
}

/* Does an input or a parameter have the axis? */
static int is_given(const Graph *g, const Axis *a)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if ((n->op == Oinput || n->op == Oparam) && dim_of(n, a) >= 0)
            return 1;
    }
    return 0;
}

/* The axis that key was renamed from; without one, the largest axis of the
 * scores that the values lack. Null: one query has all keys, or each has keys
 * of its own, as those that topk chose for it. */
static Axis *query_of(Front *front, const Node *s, const Node *v,
                      const Axis *key)
{
    const Dim *best = NULL;

    for (int i = 0; i < s->nd; i++) {
        const Dim *d = &s->dim[i];
        if (d->a != key && d->a->root == key->root)
            return d->a;
        if (d->a != key && !g_ismicro(d->a) && dim_of(v, d->a) < 0 &&
            (!best || d->n > best->n))
            best = d;
    }
    if (best || key->root != key || !is_given(front->g, key))
        return best ? best->a : NULL;
    note(s->loc, "the scores were made here");
    err(front->loc,
        "attention: '%s' is also the axis of the queries; rename it in keys "
        "and values: rename(k, {%s=\"key\"}), and to pool over it in scores",
        key->name, key->name);
}

static void need_key(Front *front, const Node *n, const Axis *key,
                     const char *what)
{
    if (dim_of(n, key) >= 0)
        return;
    note(n->loc, "the %s were made here", what);
    err(front->loc, "attention: the %s %s lack the axis '%s'", what,
        dims_text(front, n), key->name);
}

/* The call `name` whose body is f(s, x), f at `arg`, with the axes of an
 * attention; its operands are s and x. */
static Node *weighed(lua_State *L, int arg, const char *name, Node *s, Node *x,
                     Axis *key, Axis *query)
{
    Front *front = front_of(L);
    Body *b = open_body(front);

    lua_pushvalue(L, arg);
    push_node(L, use(front, &(LuaTensor){ .n = s, .in = b->up }));
    push_node(L, use(front, &(LuaTensor){ .n = x, .in = b->up }));
    lua_call(L, 2, 1);
    front->fn = "attention";
    front->loc = here(L);
    Node *r = use(front, need_value(L, -1, "the result"));
    Node *n = close_body(front, b, name, r);
    if (n->body == b->g && query) {
        n->at.call.key = key;
        n->at.call.query = query;
    }
    return n;
}

/* weigh(f, g, s, v, key): f(s, v) as the body of an attention; g(s) as that of
 * its logsumexp, whose last operand is the attention; the largest score. */
static int weigh(lua_State *L)
{
    Front *front = enter(L, "attention");
    Node *s = operand(L, 3, "argument 1"), *v = operand(L, 4, "argument 2");
    Axis *key = one_axis(L, 5, "key"), *query;

    need_key(front, s, key, "scores");
    need_key(front, v, key, "values");
    query = query_of(front, s, v, key);
    if (!is_real(s))
        s = cast_to(front, s, Df32);
    Node *y = weighed(L, 1, "attention", s, v, key, query);
    Node *l = weighed(L, 2, "attention_logsumexp", s, y, key, query);
    Node *m =
        ew(front, Ostop_gradient, reduce(front, Omax, s, &key, 1), NULL, NULL);
    push_node(L, y);
    push_spare(L, l);
    push_spare(L, m);
    return 3;
}

/* The body of `call` takes in what it may of its scores. */
static void take_scores(Front *front, Node *call, ScoreUse *uses)
{
    Scores w = { front, open_body(front),           call,
                 uses,  table_new(front->g->arena), 0 };

    front->fn = "attention";
    front->loc = call->loc;
    Node *r = opened(&w, call);
    use(front, &(LuaTensor){ .n = call->in[1] });
    front->body = NULL;
    end_with(w.b->g, r);
    call->nin = (int)vec_len(w.b->outer);
    call->in = w.b->outer;
    call->body = w.b->g;
}

static void note_reader(ScoreUse *use, const Node *n, int by)
{
    int *was = &use[n->id].by;

    *was = *was == UNREAD || *was == by ? by : OUTSIDE;
}

/* Adds the reader of n to the readers of its operands. */
static void pass_on(const Graph *g, ScoreUse *use, const Node *n)
{
    int *by = &use[n->id].by, taken = 0;

    if (optab[n->op].cls == SINK)
        *by = OUTSIDE;
    if (*by > OUTSIDE && !belongs(g->node[*by - 2], n))
        *by = OUTSIDE;
    if (*by && reads_scores(n) && n->nin == 2)
        note_reader(use, n->in[taken++], n->id + 2);
    for (int k = taken; k < n->nin && *by; k++)
        note_reader(use, n->in[k], *by);
}

static void find_shared(const Graph *g, ScoreUse *use, const Node *n)
{
    ScoreUse *u = &use[n->id];

    u->real = !n->nin && is_real(n) && n->op != Oconst && n->op != Oiota;
    for (int k = 0; k < n->nin; k++) {
        const ScoreUse *x = &use[n->in[k]->id];
        u->real |= x->real;
        if (u->by > OUTSIDE)
            u->shared |= x->by != OUTSIDE
                             ? x->shared
                             : x->real && belongs(g->node[u->by - 2], n->in[k]);
    }
}

/* Warns of comparisons that stay outside, once a line of the model. */
static void warn_stored(Front *front, const ScoreUse *use)
{
    const Graph *g = front->g;
    Table *lines = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        double bytes = is_real(n) ? 4 : dtypes[n->dt].bytes;
        if (!use[i].stays || table_get(lines, KEYP(n->loc)))
            continue;
        *table_at(lines, KEYP(n->loc)) = (void *)n;
        note(use[i].stays->loc, "the attention is here");
        warn(n->loc,
             "attention: '%s' compares scores that are read outside it too: "
             "its result %s is computed once and stored: %.3g MB",
             optab[n->op].name, dims_text(front, n),
             bytes * (double)g_elems(n) * 1e-6);
    }
}

/* Computes the facts of all nodes from the comparisons known to stay outside.
 * Their operands are read outside too, so that further comparisons may follow;
 * returns whether any did. Operands stand before users. */
static int find_uses(const Graph *g, ScoreUse *use)
{
    size_t count = vec_len(g->node);
    int more = 0;

    for (size_t i = 0; i < count; i++)
        use[i] = (ScoreUse){ .by = use[i].stays ? OUTSIDE : UNREAD,
                             .stays = use[i].stays };
    for (size_t i = count; i-- > 0;)
        pass_on(g, use, g->node[i]);
    for (size_t i = 0; i < count; i++) {
        find_shared(g, use, g->node[i]);
        if (!use[i].shared || !compares(g->node[i]))
            continue;
        use[i].stays = g->node[use[i].by - 2];
        more = 1;
    }
    return more;
}

/* Attentions take in their scores. */
static void take_all_scores(Front *front)
{
    Graph *g = front->g;
    size_t count = vec_len(g->node);
    ScoreUse *use = alloc(g->arena, (count + 1) * sizeof *use);

    while (find_uses(g, use))
        continue;
    for (size_t i = 0; i < count; i++)
        if (reads_scores(g->node[i]) && g->node[i]->nin == 2)
            take_scores(front, g->node[i], use);
    if (!front->quiet)
        warn_stored(front, use);
}

/* of_experts(x): is x made elementwise of a product with indexed weights? */
static int of_experts(lua_State *L)
{
    const Node *n = operand(L, 1, "argument 1");

    while (n->nin && optab[n->op].cls == EW)
        n = n->in[0];
    lua_pushboolean(L, n->op == Odot &&
                           (n->in[0]->op == Opick || n->in[1]->op == Opick));
    return 1;
}

/* Bodies know every axis, also those made after them. */
void compose_finish(Front *front)
{
    g_tidy(front->g);
    take_all_scores(front);
    for (size_t i = 0; i < vec_len(front->bodies); i++) {
        front->bodies[i]->axis = front->g->axis;
        front->bodies[i]->naxis = front->g->naxis;
        front->bodies[i]->param = front->g->param;
    }
}

void compose_open(lua_State *L)
{
    static const luaL_Reg functions[] = { { "composite", composite },
                                          { "weigh", weigh },
                                          { "of_experts", of_experts },
                                          { "role", state_role },
                                          { NULL, NULL } };

    luaL_setfuncs(L, functions, 0);
}
