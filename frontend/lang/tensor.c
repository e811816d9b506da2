/* tensor.c: the tensor as Lua sees it: a node, its operators, and what Lua's
 * other operators must refuse. Every op of the language is built through make()
 * and infer(), so that its place, scope and graph are right. */
#include "../frontend.h"

/* A model that makes more nodes than this is a loop gone wrong. */
enum { MAXNODES = 500000 };

static const char metaname[] = "tensor";

Front *front_of(lua_State *L)
{
    return *(Front **)lua_getextraspace(L);
}

Front *enter(lua_State *L, const char *fn)
{
    Front *front = front_of(L);

    front->loc = here(L);
    front->fn = fn;
    return front;
}

static const char *number_text(double v)
{
    return isnan(v) ? "nan" : strf(forever, "%.14g", v);
}

const char *kind_of(lua_State *L, int arg)
{
    switch (lua_type(L, arg)) {
    case LUA_TNONE: return "nothing";
    case LUA_TNIL: return "nil";
    case LUA_TBOOLEAN: return lua_toboolean(L, arg) ? "true" : "false";
    case LUA_TNUMBER: return number_text(lua_tonumber(L, arg));
    case LUA_TSTRING: return strf(forever, "\"%.40s\"", lua_tostring(L, arg));
    case LUA_TTABLE: return "a table";
    case LUA_TFUNCTION: return "a function";
    default:
        return value_at(L, arg)  ? "a tensor"
               : init_at(L, arg) ? "an initial value"
                                 : "a value";
    }
}

const char *dims_text(Front *front, const Node *n)
{
    return shape_text(front->g, n);
}

/* ---- values -------------------------------------------------------------- */

LuaTensor *value_at(lua_State *L, int arg)
{
    return luaL_testudata(L, arg, metaname);
}

LuaTensor *need_value(lua_State *L, int arg, const char *what)
{
    LuaTensor *v = value_at(L, arg);
    Front *front = front_of(L);

    if (!v)
        err(front->loc, "%s: %s must be a tensor, got %s", front->fn, what,
            kind_of(L, arg));
    return v;
}

int push_index(lua_State *L, Node *n, Axis *of, int64_t size)
{
    LuaTensor *v = lua_newuserdatauv(L, sizeof *v, 0);

    *v = (LuaTensor){ n, front_of(L)->body, of, size, 0 };
    luaL_setmetatable(L, metaname);
    return 1;
}

int push_spare(lua_State *L, Node *n)
{
    push_node(L, n);
    value_at(L, -1)->spare = 1;
    return 1;
}

void drop_spare(lua_State *L, int most)
{
    while (lua_gettop(L) > most && value_at(L, -1) && value_at(L, -1)->spare)
        lua_pop(L, 1);
}

int push_node(lua_State *L, Node *n)
{
    return push_index(L, n, NULL, 0);
}

Graph *current(Front *front)
{
    return front->body ? front->body->g : front->g;
}

static Node *new_arg(Front *front, Body *body, const Node *of)
{
    Node *n = g_node(body->g, Oarg, of->loc, 0, NULL);

    n->at.arg.index = (int64_t)vec_len(body->outer);
    n->dt = of->dt;
    n->nd = of->nd;
    memcpy(n->dim, of->dim, sizeof n->dim);
    if (n->at.arg.index == MAXIN)
        err(front->loc, "%s: more than %d operands", front->fn, MAXIN);
    return infer(body->g, n);
}

/* n of body `in`, seen from body inside of it. */
static Node *seen_from(Front *front, Body *body, Node *n, const Body *in)
{
    if (body == in)
        return n;
    if (!body)
        die("%s: a tensor left the composite that made it", front->fn);
    n = seen_from(front, body->up, n, in);
    for (size_t i = 0; i < vec_len(body->outer); i++)
        if (body->outer[i] == n)
            return body->arg[i];
    Node *a = new_arg(front, body, n);
    vec_push(front->g->arena, body->outer, n);
    vec_push(front->g->arena, body->arg, a);
    return a;
}

static const char *size_text(Front *front, const Node *n)
{
    static const char *const unit[] = { "KB", "MB", "GB", "TB", "PB", "EB" };
    double bytes = 4;
    int u = 0;

    for (int i = 0; i < n->nd; i++)
        bytes *= (double)n->dim[i].n;
    for (bytes /= 1000; bytes >= 1000 && u < 5; u++)
        bytes /= 1000;
    return strf(front->g->arena, "%.1f %s", bytes, unit[u]);
}

/* A vector for each expert (a bias) is as large as its result anyway: gather
 * it. A matrix for each token never is. */
static Node *picked(Front *front, Node *n)
{
    if (n->in[0]->nd > 2)
        err(front->loc,
            "%s: an indexed weight such as W[e] may only be used inside dot(); "
            "materialising %s would need %s",
            front->fn, dims_text(front, n), size_text(front, n));
    return gathered(front, n->in[0], n->in[1], n->at.pick.axis);
}

Node *use(Front *front, const LuaTensor *tensor)
{
    Body *inner = front->body;
    Node *n = tensor->n;

    if (n->op == Opick) {
        front->body = tensor->in;
        n = picked(front, n);
        front->body = inner;
    }
    return seen_from(front, inner, n, tensor->in);
}

/* An indexed weight is virtual: inside a body it is made again. */
Node *use_any(Front *front, const LuaTensor *tensor)
{
    if (tensor->n->op != Opick || tensor->in == front->body)
        return seen_from(front, front->body, tensor->n, tensor->in);
    Node *in[2], *n;
    for (int k = 0; k < 2; k++)
        in[k] = seen_from(front, front->body, tensor->n->in[k], tensor->in);
    n = make(front, Opick, 2, in);
    n->at.pick.axis = tensor->n->at.pick.axis;
    return infer(current(front), n);
}

Node *operand(lua_State *L, int arg, const char *what)
{
    return use(front_of(L), need_value(L, arg, what));
}

/* ---- building ------------------------------------------------------------ */

Node *make(Front *front, Op op, int nin, Node *const *in)
{
    Graph *g = current(front);

    if (vec_len(g->node) > MAXNODES)
        err(front->loc, "the model has more than %d operations", MAXNODES);
    Node *n = g_node(g, op, front->loc, nin, in);
    n->scope = front->scope;
    return n;
}

Node *ew(Front *front, Op op, Node *a, Node *b, Node *c)
{
    Node *in[3] = { a, b, c };

    return infer(current(front), make(front, op, c ? 3 : b ? 2 : 1, in));
}

Node *constant(Front *front, Dtype dt, double v)
{
    Node *n = make(front, Oconst, 0, NULL);

    n->dt = dt;
    n->at.constant.value = v;
    return infer(current(front), n);
}

Node *cast_to(Front *front, Node *a, Dtype dt)
{
    if (a->dt == dt)
        return a;
    Node *n = make(front, Ocast, 1, &a);
    n->at.cast.to = dt;
    return infer(current(front), n);
}

Node *reduce(Front *front, Op op, Node *a, Axis *const *A, int nA)
{
    if (nA == 0)
        return a;
    Node *n = make(front, op, 1, &a);
    *n_axes(n) = g_axes(front->g, A, nA);
    return infer(current(front), n);
}

Node *iota_of(Front *front, Axis *a, int64_t size)
{
    Node *n = make(front, Oiota, 0, NULL);

    n->at.iota.axis = a;
    n->nd = 1;
    n->dim[0] = (Dim){ a, size };
    return infer(current(front), n);
}

/* ---- elementwise operands ------------------------------------------------ */

/* A number takes the dtype of the tensors beside it. Beside integers a float
 * stays one. */
static Node *number(Front *front, lua_State *L, int arg, Dtype beside)
{
    double v = lua_tonumber(L, arg);

    if (dtypes[beside].kind == 'f')
        return constant(front, arithmetic_dtype(beside), v);
    if (!lua_isinteger(L, arg))
        return constant(front, Df32, v);
    if (v < INT32_MIN || v > INT32_MAX)
        err(front->loc,
            "%s: the number %s is too large for integers of 32 bits", front->fn,
            lua_tostring(L, arg));
    return constant(front, beside == Dbool ? Di32 : beside, v);
}

static void bad_operand(lua_State *L, Front *front, int arg, int i, int n)
{
    if (n > 1)
        err(front->loc, "%s: argument %d must be a tensor or a number, got %s",
            front->fn, i + 1, kind_of(L, arg));
    err(front->loc, "%s: the argument must be a tensor, got %s", front->fn,
        kind_of(L, arg));
}

int ew_operands(lua_State *L, Op op, int first, int n, Node **in)
{
    Front *front = front_of(L);
    Dtype dt = Dnone;
    int tensors = 0;

    for (int i = 0; i < n; i++) {
        const LuaTensor *v = value_at(L, first + i);
        if (!v && lua_type(L, first + i) != LUA_TNUMBER)
            bad_operand(L, front, first + i, i, n);
        in[i] = v ? use(front, v) : NULL;
        tensors += v != NULL;
        if (v && !(op == Owhere && i == 0) && dt == Dnone)
            dt = in[i]->dt;
    }
    if (tensors == 0)
        err(front->loc, "%s: none of its arguments is a tensor", front->fn);
    if ((op == Omod || op == Ofloor_div) && lua_isinteger(L, first + 1) &&
        lua_tointeger(L, first + 1) == 0)
        err(front->loc, "%s: the divisor is 0", front->fn);
    for (int i = 0; i < n; i++)
        if (!in[i])
            in[i] = number(front, L, first + i, dt == Dnone ? Di32 : dt);
    return n;
}

/* ---- operators ----------------------------------------------------------- */

static int binary(lua_State *L)
{
    Op op = (Op)lua_tointeger(L, lua_upvalueindex(1));
    Front *front = enter(L, op == Ofloor_div ? "//" : optab[op].name);
    Node *in[2];

    ew_operands(L, op, 1, 2, in);
    if (op != Ofloor_div || dtypes[promoted(in[0]->dt, in[1]->dt)].kind != 'f')
        return push_node(L, ew(front, op, in[0], in[1], NULL));
    Node *quotient = ew(front, Odiv, in[0], in[1], NULL);
    return push_node(L, ew(front, Ofloor, quotient, NULL, NULL));
}

static int negate(lua_State *L)
{
    Front *front = enter(L, "neg");

    return push_node(L,
                     ew(front, Oneg, operand(L, 1, "argument 1"), NULL, NULL));
}

/* x ^ number; number ^ x by exp. */
static int power(lua_State *L)
{
    Front *front = enter(L, "pow");
    Node *in[2];

    if (value_at(L, 1) && value_at(L, 2))
        err(front->loc, "pow: the exponent must be a number; for tensors write "
                        "exp(y * log(x))");
    ew_operands(L, Opow, 1, 2, in);
    for (int i = 0; i < 2; i++)
        if (dtypes[in[i]->dt].kind != 'f')
            in[i] = cast_to(front, in[i], Df32);
    if (value_at(L, 1))
        return push_node(L, ew(front, Opow, in[0], in[1], NULL));
    if (lua_tonumber(L, 1) <= 0)
        err(front->loc, "pow: the base must be positive, got %s",
            kind_of(L, 1));
    Node *k = constant(front, in[0]->dt, log(lua_tonumber(L, 1)));
    return push_node(
        L, ew(front, Oexp, ew(front, Omul, in[1], k, NULL), NULL, NULL));
}

/* W[e] */
static int index_tensor(lua_State *L)
{
    Front *front = enter(L, "index");
    const LuaTensor *w = need_value(L, 1, "argument 1"), *e = value_at(L, 2);

    if (!e && lua_type(L, 2) == LUA_TSTRING)
        err(front->loc, "a tensor has no field '%s'", lua_tostring(L, 2));
    if (!e)
        err(front->loc,
            "a tensor is indexed by an index (the second result of topk), got "
            "%s; slice(x, axis, start, len) takes a part",
            kind_of(L, 2));
    Node *in[2] = { use(front, w), use(front, e) };
    if (!e->of) {
        note(in[1]->loc, "it was made here; index(t, axis) makes an index of "
                         "an integer tensor");
        err(front->loc, "W[e]: e is no index but a tensor %s",
            dims_text(front, in[1]));
    }
    int at = dim_of(in[0], e->of);
    if (at < 0) {
        note(in[1]->loc, "the index was made here");
        note(in[0]->loc, "the indexed tensor was made here");
        err(front->loc, "W[e]: e indexes axis '%s', and W %s has none",
            e->of->name, dims_text(front, in[0]));
    }
    if (in[0]->dim[at].n != e->ofn) {
        note(in[1]->loc, "the index was made here");
        err(front->loc, "W[e]: axis '%s' is %ld in W, and e indexes %ld",
            e->of->name, in[0]->dim[at].n, e->ofn);
    }
    Node *n = make(front, Opick, 2, in);
    n->at.pick.axis = e->of;
    return push_node(L, infer(current(front), n));
}

static int describe(lua_State *L)
{
    Front *front = front_of(L);
    const LuaTensor *v = value_at(L, 1);

    lua_pushfstring(L, "%s %s", dtypes[v->n->dt].name, dims_text(front, v->n));
    return 1;
}

/* What Lua would do with these is never what was meant. */
/* clang-format off */
static const struct { const char *event, *message; } refused[] = {
    { "__lt", "tensors cannot be compared with < <= > >= (Lua makes one "
              "boolean of it); use lt(a, b), ge(a, b), where(c, a, b)" },
    { "__le", "tensors cannot be compared with < <= > >= (Lua makes one "
              "boolean of it); use le(a, b), gt(a, b), where(c, a, b)" },
    { "__eq", "tensors cannot be compared with == and ~= (Lua makes one "
              "boolean of it); use eq(a, b), ne(a, b)" },
    { "__concat", "a tensor cannot be joined to a string with .." },
    { "__len", "a tensor has no length #; its axes have names and sizes" },
    { "__call", "a tensor cannot be called" },
    { "__newindex", "a tensor cannot be assigned into; where(c, a, b) chooses, "
                    "scatter_add(v, i, like) places" },
    { "__band", "the operator & is not defined for tensors; use land(a, b)" },
    { "__bor", "the operator | is not defined for tensors; use lor(a, b)" },
    { "__bxor", "the operator ~ is not defined for tensors; use ne(a, b), of "
              "integers xor(a, b)" },
    { "__bnot", "the operator ~ is not defined for tensors; use lnot(a)" },
    { "__shl", "the operator << is not defined for tensors" },
    { "__shr", "the operator >> is not defined for tensors" },
};
/* clang-format on */

static int refuse(lua_State *L)
{
    Front *front = enter(L, "operator");

    err(front->loc, "%s",
        refused[lua_tointeger(L, lua_upvalueindex(1))].message);
}

/* CONDITION and CHOICE(v): cond.c puts them around conditions. `or` also gives
 * defaults (w or param(...)), so there only truth values are refused. */
int lua_condition(lua_State *L)
{
    const LuaTensor *v = value_at(L, 1);

    if (v && (!lua_toboolean(L, lua_upvalueindex(1)) || v->n->dt == Dbool)) {
        Front *front = enter(L, "condition");
        err(front->loc, "a tensor cannot be a condition (Lua would take it as "
                        "true); use where(c, a, b), land(a, b), lor(a, b), "
                        "lnot(a); to ask whether it is there write x ~= nil");
    }
    lua_settop(L, 1);
    return 1;
}

static const struct {
    /* clang-format off */
    const char *event;
    Op op;
} operators[] = {
    { "__add", Oadd }, { "__sub", Osub }, { "__mul", Omul },
    { "__div", Odiv }, { "__mod", Omod }, { "__idiv", Ofloor_div },
};
/* clang-format on */

static const luaL_Reg events[] = {
    { "__unm", negate },        { "__pow", power }, { "__index", index_tensor },
    { "__tostring", describe }, { NULL, NULL },
};

void tensor_open(lua_State *L)
{
    luaL_newmetatable(L, metaname);
    for (int i = 0; i < countof(operators); i++) {
        lua_pushinteger(L, operators[i].op);
        lua_pushcclosure(L, binary, 1);
        lua_setfield(L, -2, operators[i].event);
    }
    for (int i = 0; i < countof(refused); i++) {
        lua_pushinteger(L, (lua_Integer)i);
        lua_pushcclosure(L, refuse, 1);
        lua_setfield(L, -2, refused[i].event);
    }
    luaL_setfuncs(L, events, 0);
    lua_pushstring(L, "a tensor");
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
}
