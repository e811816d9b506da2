/* optimizers.c: optimizer(name, f, options). f(p, g, state, hyper) is traced
 * once the model is known, into the body of a node `optimizer`, which the pass
 * `step` copies for each parameter or bucket of parameters:
 *
 *     def optimizer.1 {
 *       %p = arg index=0        parameter, fp32
 *       %g = arg index=1        gradient, after clipping
 *       %r = arg index=2        learning rate of the step
 *       %d = arg index=3        learning rate times weight decay
 *       %m = arg index=4        the states, by name
 *       ..
 *       %y = result %moment name=m
 *       %x = result %new name=p
 *     }
 *     %o = optimizer optimizer.1 name=sgd params=* states=m
 *
 * A body of elementwise operations only has no axes: it serves every shape.
 * Otherwise each shape of the parameters has a body. Of several optimizers that
 * a parameter matches, the last holds. */
#include "../../ir/settings/keys.h"
#include "../frontend.h"

/* ---- declaring ----------------------------------------------------------- */

static const char *text_field(lua_State *L, int at, const char *name)
{
    const char *s = NULL;

    if (lua_istable(L, at) && lua_getfield(L, at, name) == LUA_TSTRING)
        s = intern(lua_tostring(L, -1));
    return s;
}

static void check_state(Front *front, const char *name, const char *kind)
{
    static const char *const taken[] = { "p", "master", "remainder" };

    if (!kind || (strcmp(kind, "fp32") != 0 && strcmp(kind, "moments") != 0))
        err(front->loc,
            "optimizer: state '%s' must be \"fp32\" or \"moments\" (as "
            "precision.moments says)",
            name);
    if (name[strcspn(name, " .:")] ||
        word_index(name, taken, countof(taken)) >= 0)
        err(front->loc, "optimizer: a state cannot be named '%s'", name);
}

/* { m="moments", z="fp32" }: states m and z, "m z:fp32" for the graph. */
static void read_states(lua_State *L, Front *front, int at, Optimizer *o)
{
    Text out = { .arena = front->g->arena };
    int n = 0;

    putn(&out, "", 0);
    if (lua_istable(L, at) && lua_getfield(L, at, "state") == LUA_TTABLE)
        o->state = sorted_keys(L, lua_gettop(L), &n);
    if (n > MOSTSTATES)
        err(front->loc, "optimizer: %d states, at most %d", n, MOSTSTATES);
    for (int i = 0; i < n; i++) {
        const char *kind = text_field(L, lua_gettop(L), o->state[i]);
        check_state(front, o->state[i], kind);
        put(&out, "%s%s%s", i ? " " : "", o->state[i],
            strcmp(kind, "fp32") ? "" : ":fp32");
        lua_pop(L, 1);
    }
    o->states = intern(out.s);
}

/* optimizer(name, f [, options]) */
int lua_optimizer(lua_State *L)
{
    Front *front = enter(L, "optimizer");
    Optimizer o = { .name = intern(lua_tostring(L, 1)), .loc = front->loc };

    read_states(L, front, 3, &o);
    o.params = text_field(L, 3, "params");
    o.others = text_field(L, 3, "others");
    lua_pushvalue(L, 2);
    o.f = luaL_ref(L, LUA_REGISTRYINDEX);
    vec_push(front->g->arena, front->optimizer, o);
    return 0;
}

/* The last of that name. */
static const Optimizer *named(Front *front, const char *name, const char *what,
                              const Loc *loc)
{
    size_t n = vec_len(front->optimizer);
    const char **names = alloc(front->g->arena, (n + 1) * sizeof *names);

    for (size_t i = n; i-- > 0;) {
        names[i] = front->optimizer[i].name;
        if (!strcmp(names[i], name))
            return &front->optimizer[i];
    }
    err(loc, "%s: there is no optimizer '%s'%s", what, name,
        did_you_mean(name, names, n));
}

/* ---- the two axes of a matrix -------------------------------------------- */

/* Experts and heads have a matrix each; a vocabulary's rows are no matrix. */
static int is_matrix(const Param *p, const Axis **of)
{
    int n = 0;

    for (int i = 0; i < p->nd; i++)
        switch (p->dim[i].a->role) {
        case ROLEchoice:
        case ROLEheads:
        case ROLEgroup: break;
        case ROLEvocab: return 0;
        default:
            if (n < 2)
                of[n] = p->dim[i].a;
            n++;
        }
    return n == 2;
}

/* ---- tracing ------------------------------------------------------------- */

static Node *argument(Front *front, int index, const Dim *dim, int nd)
{
    Node *n = make(front, Oarg, 0, NULL);

    n->at.arg.index = index;
    n->dt = Df32;
    n->nd = nd;
    memcpy(n->dim, dim, (size_t)nd * sizeof *dim);
    return infer(current(front), n);
}

static void set_node(lua_State *L, Node *n, const char *name)
{
    push_node(L, n);
    lua_setfield(L, -2, name);
}

static void set_number(lua_State *L, double v, const char *name)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, name);
}

static void push_hyper(lua_State *L, Front *front, const Param *p)
{
    static const char *const name[] = { "rows", "cols" };
    const Opts *opts = front->g->opts;
    Graph *g = current(front);
    double betas[2];
    const Axis *a[2];

    opts_pair(opts, "train.betas", betas);
    lua_newtable(L);
    set_node(L, argument(front, UPDATErate, NULL, 0), "lr");
    set_node(L, argument(front, UPDATEdecay, NULL, 0), "decay");
    set_node(L, g_step_value(g, front->loc, STEPbc1), "correction1");
    set_node(L, g_step_value(g, front->loc, STEPbc2), "correction2");
    set_node(L, cast_to(front, g_step_value(g, front->loc, STEPstep), Df32),
             "step");
    set_number(L, betas[0], "beta1");
    set_number(L, betas[1], "beta2");
    set_number(L, opts_num(opts, "train.eps"), "eps");
    set_number(L, opts_num(opts, "train.momentum"), "momentum");
    for (int i = 0; is_matrix(p, a) && i < 2; i++) {
        lua_pushstring(L, a[i]->name);
        lua_setfield(L, -2, name[i]);
    }
}

/* The tensor on top, which leaves the stack, as a result of the body; like: of
 * which axes. */
static void add_result(lua_State *L, Front *front, const Optimizer *o,
                       const Node *like, const char *name)
{
    LuaTensor *v = value_at(L, -1);

    if (!v)
        err(o->loc, "optimizer '%s': the new %s must be a tensor, got %s",
            o->name, name, kind_of(L, -1));
    Node *n = cast_to(front, use(front, v), Df32);
    if (!same_dims(n, like))
        err(o->loc, "optimizer '%s': the new %s is %s, p is %s", o->name, name,
            dims_text(front, n), dims_text(front, like));
    Node *r = make(front, Oresult, 1, &n);
    r->at.result.name = name;
    infer(current(front), r);
    lua_pop(L, 1);
}

static void add_results(lua_State *L, Front *front, const Optimizer *o,
                        const Node *like)
{
    int n = -1;

    if (lua_istable(L, -1))
        sorted_keys(L, lua_gettop(L), &n);
    if (n != (int)vec_len(o->state))
        err(o->loc,
            "optimizer '%s': the function must return the new p and a table of "
            "the new states: { %s }",
            o->name, o->states);
    for (size_t i = 0; i < vec_len(o->state); i++) {
        lua_getfield(L, -1, o->state[i]);
        add_result(L, front, o, like, o->state[i]);
    }
    lua_pop(L, 1);
    add_result(L, front, o, like, intern("p"));
}

static void push_states(lua_State *L, Front *front, const Optimizer *o,
                        const Param *p)
{
    lua_newtable(L);
    for (int i = 0; i < (int)vec_len(o->state); i++)
        set_node(L, argument(front, UPDATEstates + i, p->dim, p->nd),
                 o->state[i]);
}

/* Has it only elementwise operations on its arguments? */
static int is_elementwise(const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if ((optab[n->op].cls != EW || n->op == Obroadcast) && n->op != Oarg &&
            n->op != Oconst && n->op != Ostepval && n->op != Oresult)
            return 0;
    }
    return 1;
}

static void check_body(const Optimizer *o, const Body *body)
{
    const Graph *g = body->g;

    if (vec_len(body->outer))
        err(o->loc,
            "optimizer '%s': the function takes a tensor of the model; it may "
            "use p, g, state and hyper",
            o->name);
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (optab[g->node[i]->op].cls == SINK && g->node[i]->op != Oresult)
            err(g->node[i]->loc, "optimizer '%s': %s is for models", o->name,
                optab[g->node[i]->op].name);
}

/* The body that tracing the optimizer's function gives for a parameter with
 * the axes of p. */
static Graph *body_for(Front *front, const Optimizer *o, const Param *p)
{
    lua_State *L = front->L;
    Body *b = open_body(front);

    lua_rawgeti(L, LUA_REGISTRYINDEX, o->f);
    Node *like = argument(front, UPDATEparam, p->dim, p->nd);
    push_node(L, like);
    push_node(L, argument(front, UPDATEgrad, p->dim, p->nd));
    push_states(L, front, o, p);
    push_hyper(L, front, p);
    lua_call(L, 4, 2);
    add_results(L, front, o, like);
    front->body = NULL;
    check_body(o, b);
    g_tidy(b->g);
    for (size_t i = 0; is_elementwise(b->g) && i < vec_len(b->g->node); i++)
        b->g->node[i]->nd = 0;
    return b->g;
}

/* ---- which parameters ---------------------------------------------------- */

static Node *add_node(Front *front, const Optimizer *o, const char *params,
                      const Param *p)
{
    front->loc = o->loc;
    Graph *body = body_for(front, o, p);
    Node *n = make(front, Ooptimizer, 0, NULL);

    n->at.optimizer.name = o->name;
    n->at.optimizer.params = params;
    n->at.optimizer.states = o->states;
    n->body = body;
    return infer(front->g, n);
}

/* The optimizer's nodes for the parameters of a pattern, from node `first` on
 * in the graph. */
static void add_nodes(Front *front, const Optimizer *o, const char *params)
{
    Graph *g = front->g;
    size_t first, i;
    const Axis *a[2];

    if (o->others)
        add_nodes(front, named(front, o->others, o->name, o->loc), params);
    first = vec_len(g->node);
    for (size_t k = 0; k < vec_len(g->param); k++) {
        const Param *p = g->param[k];
        if (p->kind != TKparam || !pattern_match(params, p->path) ||
            (o->others && !is_matrix(p, a)))
            continue;
        for (i = first; i < vec_len(g->node); i++)
            if (optimizer_fits(g->node[i], p))
                break;
        if (i == vec_len(g->node))
            add_node(front, o, params, p);
    }
}

/* The one that train.optimizer names, then those with parameters of their
 * own. */
int optimizers_finish(lua_State *L)
{
    Front *front = front_of(L);
    const Opts *opts = front->g->opts;
    const Loc *loc = opts_loc(opts, "train.optimizer");

    front->scope = front->g->top;
    add_nodes(
        front,
        named(front, opts_str(opts, "train.optimizer"), "train.optimizer", loc),
        "*");
    for (size_t i = 0; i < vec_len(front->optimizer); i++) {
        const Optimizer *o = &front->optimizer[i];
        if (!o->params)
            continue;
        check_pattern(front->g, "optimizer", o->params, o->loc);
        add_nodes(front, o, o->params);
    }
    return 0;
}
