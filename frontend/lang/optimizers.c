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
    static const char *const kinds[] = { "fp32",         "moments",
                                         "fp32 of rows", "moments of rows",
                                         "fp32 of cols", "moments of cols" };

    if (!kind || word_index(kind, kinds, countof(kinds)) < 0)
        err(front->loc,
            "optimizer: state '%s' must be \"fp32\" or \"moments\" (as "
            "precision.moments says), or \"fp32 of rows\" (cols): one number "
            "a row of a matrix",
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
            strncmp(kind, "fp32", 4) ? "" : ":fp32");
        vec_push(front->g->arena, o->kind, kind);
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

/* Fills of: the last two axes beside those of experts and heads, rows and
 * columns of a matrix. Returns how many axes there are beside those. */
static int matrix_axes(const Param *p, const Axis **of)
{
    int n = 0;

    of[0] = of[1] = NULL;
    for (int i = 0; i < p->nd; i++)
        switch (p->dim[i].a->role) {
        case ROLEchoice:
        case ROLEheads:
        case ROLEgroup: break;
        default:
            of[0] = of[1];
            of[1] = p->dim[i].a;
            n++;
        }
    return n;
}

static int is_table_axis(const Axis *a)
{
    return a->role == ROLEvocab || a->role == ROLEseq;
}

/* Tables that an index looks up, of a vocabulary or of positions, are none. */
static int is_matrix(const Front *front, const Param *p)
{
    const Axis *of[2];

    return matrix_axes(p, of) > 1 && !is_table_axis(of[0]) &&
           !is_table_axis(of[1]) && !table_get(front->lookups, KEYP(p->path));
}

/* The parameters that an index looks up, by path. */
static Table *lookups(const Graph *g)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *x = g->node[i]->op == Ogather ? g->node[i]->in[0] : NULL;
        while (x && x->op == Ocast)
            x = x->in[0];
        if (x && x->op == Oparam)
            *table_at(t, KEYP(x->at.param.path)) = g->node[i];
    }
    return t;
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

static void set_text(lua_State *L, const char *s, const char *name)
{
    lua_pushstring(L, s);
    lua_setfield(L, -2, name);
}

static void push_hyper(lua_State *L, Front *front, const Param *p)
{
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
    set_node(L, g_step_value(g, front->loc, STEPoptimizer_step), "step");
    set_number(L, betas[0], "beta1");
    set_number(L, betas[1], "beta2");
    set_number(L, opts_num(opts, "train.eps"), "eps");
    set_number(L, opts_num(opts, "train.momentum"), "momentum");
    if (matrix_axes(p, a) > 1)
        set_text(L, a[0]->name, "rows");
    if (a[1])
        set_text(L, a[1]->name, "cols");
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
        err(o->loc, "optimizer '%s': the new %s is %s, %s is %s", o->name, name,
            dims_text(front, n), name, dims_text(front, like));
    Node *r = make(front, Oresult, 1, &n);
    r->at.result.name = name;
    infer(current(front), r);
    lua_pop(L, 1);
}

/* like: the arguments p and, behind it, the states. */
static void add_results(lua_State *L, Front *front, const Optimizer *o,
                        Node *const *like)
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
        add_result(L, front, o, like[1 + i], o->state[i]);
    }
    lua_pop(L, 1);
    add_result(L, front, o, like[0], intern("p"));
}

/* State i has the axes of p; of rows it lacks the columns of a matrix, of
 * columns its rows. */
static Node *state_argument(Front *front, const Optimizer *o, int i,
                            const Param *p)
{
    const char *of = strstr(o->kind[i], " of ");
    const Axis *a[2], *lacks = NULL;
    Dim dim[MAXD];
    int nd = 0;

    if (matrix_axes(p, a) > 1 && of)
        lacks = a[strcmp(of, " of cols") != 0];
    for (int d = 0; d < p->nd; d++)
        if (p->dim[d].a != lacks)
            dim[nd++] = p->dim[d];
    return argument(front, UPDATEstates + i, dim, nd);
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

    Node *like[1 + MOSTSTATES];

    lua_rawgeti(L, LUA_REGISTRYINDEX, o->f);
    like[0] = argument(front, UPDATEparam, p->dim, p->nd);
    push_node(L, like[0]);
    push_node(L, argument(front, UPDATEgrad, p->dim, p->nd));
    lua_newtable(L);
    for (int i = 0; i < (int)vec_len(o->state); i++) {
        like[1 + i] = state_argument(front, o, i, p);
        set_node(L, like[1 + i], o->state[i]);
    }
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

    if (o->others)
        add_nodes(front, named(front, o->others, o->name, o->loc), params);
    first = vec_len(g->node);
    for (size_t k = 0; k < vec_len(g->param); k++) {
        const Param *p = g->param[k];
        if (p->kind != TKparam || !pattern_match(params, p->path) ||
            (o->others && !is_matrix(front, p)))
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
    front->lookups = lookups(front->g);
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
