/* roles.c: roles of a model's axes. Names have no meaning: a role is stated in
 * axes{} or by a layer (cross_entropy and embed state their vocabulary), or
 * inferred from the operations on the axis. The first match, in this order:
 *
 *     batch, seq   the first and second axis of the input with the most axes,
 *                  among integer inputs if there are any
 *     key          summed over by attention
 *     heads        any other axis of the scores that the keys have
 *     group        any other axis of the scores that only the queries have
 *     ffn          made by one parameter, contracted with another, otherwise
 *                  only in elementwise operations
 *     vocab        reduced by cross_entropy, or looked up by embed
 *     choice       indexed, W[e], or with a weight of its own for each choice
 *                  of tokens
 *     other        only stated: no mesh axis shards it
 *
 * passes/sharding/sharding.c maps mesh axes to roles. */
#include "../frontend.h"

static void take_role(Axis *a, AxisRole role)
{
    if (a->role == ROLEnone)
        a->role = role;
}

/* ---- inputs, attention, indexed weights ---------------------------------- */

/* Orders inputs: integers first, then the most axes, then the first. */
static int leads(const Node *n, const Node *best)
{
    int i = dtypes[n->dt].kind == 'i';
    int was = best && dtypes[best->dt].kind == 'i';

    return !best || i > was || (i == was && n->nd > best->nd);
}

static void input_roles(const Graph *g)
{
    const Node *n = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oinput && leads(g->node[i], n))
            n = g->node[i];
    for (int i = 0; n && i < n->nd; i++) {
        if (n->dim[i].a->role == ROLEmicro)
            continue;
        if (!g_role(g, ROLEbatch))
            take_role(n->dim[i].a, ROLEbatch);
        else if (!g_role(g, ROLEseq))
            take_role(n->dim[i].a, ROLEseq);
    }
}

static int keys_have(const Node *call, const Axis *a)
{
    const Axis *key = call->at.call.key;

    for (int k = 0; k < call->nin; k++)
        if (dim_of(call->in[k], key) >= 0 && dim_of(call->in[k], a) >= 0)
            return 1;
    return 0;
}

/* The last node of an attention's body is dot(softmax(scores), v, key). */
static void score_roles(const Node *call)
{
    const Graph *body = call->body;
    const Node *node = body->node[vec_len(body->node) - 1]->in[0];

    take_role(call->at.call.key, ROLEkey);
    for (int i = 0; i < node->nd; i++) {
        Axis *a = node->dim[i].a;
        if (a != call->at.call.key && a != call->at.call.query)
            take_role(a, keys_have(call, a) ? ROLEheads : ROLEgroup);
    }
}

static void each_node(const Graph *g, void (*f)(const Node *n))
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        f(g->node[i]);
}

static void visit_scores(const Node *n)
{
    if (is_attention(n))
        score_roles(n);
}

static int is_weight(const Node *n)
{
    while (n->op == Ocast || n->op == Opick || n->op == Ogather)
        n = n->in[0];
    return n->op == Oparam;
}

/* Was x selected by an index along axis a? */
static int is_picked(const Node *x, const Axis *a)
{
    while (x->op != Ogather) {
        int k = 0;
        while (k < x->nin && dim_of(x->in[k], a) < 0)
            k++;
        if (k == x->nin || (optab[x->op].cls != EW && x->op != Odot))
            return 0;
        x = x->in[k];
    }
    return dim_of(x->in[1], a) >= 0;
}

/* Finds `choice` axes: W[e], or the tokens of each expert times its own weight.
 */
static void visit_pick(const Node *n)
{
    if (n->op == Opick)
        take_role(n->at.pick.axis, ROLEchoice);
    for (int k = 0; k < 2 && n->op == Odot; k++)
        for (int i = 0; i < n->nd && is_weight(n->in[k]); i++)
            if (dim_of(n->in[k], n->dim[i].a) >= 0 &&
                dim_of(n->in[!k], n->dim[i].a) >= 0 &&
                is_picked(n->in[!k], n->dim[i].a))
                take_role(n->dim[i].a, ROLEchoice);
}

/* ---- axes between two parameters ----------------------------------------- */

typedef struct FfnCandidate {
    Axis *a;
    int made, used, other; /* by a product; other: not elementwise */
} FfnCandidate;

static void product_between(FfnCandidate *candidate, const Node *n)
{
    for (int k = 0; k < 2; k++) {
        const Node *w = n->in[k], *x = n->in[!k];
        if (dim_of(w, candidate->a) < 0 || !is_weight(w))
            continue;
        if (axes_at(&n->at.dot.axes, candidate->a) >= 0 &&
            dim_of(x, candidate->a) >= 0)
            candidate->used = 1;
        else if (dim_of(x, candidate->a) < 0)
            candidate->made = 1;
        else
            candidate->other = 1;
        return;
    }
    candidate->other = 1;
}

static int has_axis(const Node *n, const Axis *a)
{
    int has = dim_of(n, a) >= 0;

    for (int k = 0; k < n->nin && !has; k++)
        has = dim_of(n->in[k], a) >= 0;
    return has;
}

static void walk_between(FfnCandidate *candidate, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node) && !candidate->other; i++) {
        const Node *n = g->node[i];
        if (n->body)
            walk_between(candidate, n->body);
        else if (!has_axis(n, candidate->a) || optab[n->op].cls == EW ||
                 n->op == Oparam || n->op == Oarg || n->op == Opick)
            continue;
        else if (n->op == Odot)
            product_between(candidate, n);
        else
            candidate->other |= !(n->op == Ogather && is_weight(n));
    }
}

static void apply_stated(const Front *front, AxisRole role)
{
    for (size_t i = 0; i < vec_len(front->stated); i++)
        if (front->stated[i].role == role)
            take_role(front->stated[i].a, role);
}

/* ---- entry --------------------------------------------------------------- */

void find_roles(Front *front)
{
    const Graph *g = front->g;

    input_roles(g);
    each_node(g, visit_scores);
    for (int i = 0; i < g->naxis; i++) {
        FfnCandidate b = { .a = g->axis[i] };
        if (g->axis[i]->role != ROLEnone)
            continue;
        walk_between(&b, g);
        if (b.made && b.used && !b.other)
            take_role(g->axis[i], ROLEffn);
    }
    apply_stated(front, ROLEvocab);
    each_node(g, visit_pick);
    apply_stated(front, ROLEchoice);
}

void known_role(Front *front, Axis *a, AxisRole role)
{
    vec_push(front->g->arena, front->stated, ((Stated){ a, role }));
}

/* role(axis, name): a layer of the prelude states the role of its axis. */
int state_role(lua_State *L)
{
    Front *front = front_of(L);
    Axis *a = one_axis(L, 1, "axis");
    int role = role_named(luaL_checkstring(L, 2));

    if (role < 0)
        return luaL_error(L, "role: there is no '%s'", lua_tostring(L, 2));
    known_role(front, a, (AxisRole)role);
    return 0;
}
