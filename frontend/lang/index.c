/* index.c: indices. An integer tensor that remembers which axis it indexes, and
 * the ops that make one or read one: topk, one_hot, gather, scatter_add. */
#include "../frontend.h"

static Node *renamed(Front *front, Node *x, Axis *from, Axis *to)
{
    Node *n = make(front, Orename, 1, &x);

    n->at.rename.from = g_axes(front->g, &from, 1);
    n->at.rename.to = g_axes(front->g, &to, 1);
    return infer(current(front), n);
}

/* What axis of e has as another axis: an index that runs over the axis it picks
 * along says two things by one name. */
static Node *apart(Front *front, Node *e, Axis *axis, Axis *other)
{
    return dim_of(e, axis) < 0 ? e : renamed(front, e, axis, other);
}

Node *gathered(Front *front, Node *a, Node *e, Axis *axis)
{
    int both = dim_of(e, axis) >= 0;
    Axis *other = both ? g_instance(current(front), axis) : NULL;
    Node *in[2] = { a, apart(front, e, axis, other) };
    Node *n = make(front, Ogather, 2, in);

    n->at.gather.axis = axis;
    n = infer(current(front), n);
    return both ? renamed(front, n, other, axis) : n;
}

/* values, indices = topk(x, k, axis [, new]) */
static int topk(lua_State *L)
{
    Front *front = enter(L, "topk");
    Node *x = operand(L, 1, "argument 1"), *n;
    int64_t k;
    Axis *a, *b;

    k = integer_arg(L, 2, "k");
    a = one_axis(L, 3, "axis");
    need_axes(front, x, &a, 1);
    if (lua_isnoneornil(L, 4))
        lua_settop(L, 3), lua_pushliteral(L, "top");
    b = one_axis(L, 4, "new");
    if (dim_of(x, b) >= 0 && b != a)
        err(front->loc,
            "topk: the tensor %s already has the new axis '%s'; name another: "
            "topk(x, k, axis, new)",
            dims_text(front, x), b->name);
    n = make(front, Otopk, 1, &x);
    n->at.topk = (struct topk_attrs){ k, a, b };
    infer(current(front), n);
    push_node(L, gathered(front, x, n, a));
    push_index(L, n, a, x->dim[dim_of(x, a)].n);
    return 2;
}

/* The axis an index argument speaks of: its own, or the one given. */
static Axis *indexed(lua_State *L, int arg, int axisarg, int64_t *size)
{
    Front *front = front_of(L);
    const LuaTensor *v = need_value(L, arg, "the index");

    *size = v->ofn;
    if (lua_isnoneornil(L, axisarg)) {
        if (!v->of) {
            note(v->n->loc, "it was made here");
            err(front->loc,
                "%s: which axis does %s index? give it as the last argument",
                front->fn, dims_text(front, v->n));
        }
        return v->of;
    }
    Axis *a = one_axis(L, axisarg, "axis");
    if (v->of && a != v->of)
        err(front->loc, "%s: the index is of axis '%s', not '%s'", front->fn,
            v->of->name, a->name);
    return a;
}

static void note_made(const Front *front, const Node *n)
{
    static const char *const ids[] = { "tokens", "labels" };

    for (const Body *b = front->body; b && n->op == Oarg; b = b->up)
        n = b->outer[n->at.arg.index];
    const char *name = n->op == Oinput ? n->at.input.name : NULL;

    if (!name)
        note(n->loc, "it was made here");
    else
        note(n->loc,
             "input '%s' holds real numbers%s; of integers: "
             "input(\"%s\", axes, \"i32\")",
             name, did_you_mean(name, ids, 2), name);
}

static Node *integer_value(lua_State *L, int arg, const char *what)
{
    Front *front = front_of(L);
    Node *e = operand(L, arg, what);

    if (dtypes[e->dt].kind != 'i') {
        note_made(front, e);
        err(front->loc, "%s: %s must hold integers, got %s", front->fn, what,
            dtypes[e->dt].name);
    }
    return e;
}

static int gather(lua_State *L)
{
    Front *front = enter(L, "gather");
    Node *a = operand(L, 1, "argument 1");
    Node *e = integer_value(L, 2, "the index");
    int64_t size;
    Axis *axis = indexed(L, 2, 3, &size);

    need_axes(front, a, &axis, 1);
    if (size && a->dim[dim_of(a, axis)].n != size)
        err(front->loc,
            "gather: axis '%s' is %ld in %s, and the index is of %ld",
            axis->name, a->dim[dim_of(a, axis)].n, dims_text(front, a), size);
    return push_node(L, gathered(front, a, e, axis));
}

/* index(t, axis): an integer tensor as an index into axis */
static int index_of(lua_State *L)
{
    Front *front = enter(L, "index");
    Node *e = integer_value(L, 1, "the tensor");
    Axis *a = one_axis(L, 2, "axis");

    return push_index(L, e, a, axis_size(front, a, a->name));
}

/* one_hot(e [, axis]): truth values [axes of e, axis] */
static int one_hot(lua_State *L)
{
    Front *front = enter(L, "one_hot");
    Node *e = integer_value(L, 1, "the index");
    int64_t size;
    Axis *a = indexed(L, 1, 2, &size);

    if (size == 0)
        size = axis_size(front, a, a->name);
    if (dim_of(e, a) >= 0)
        err(front->loc, "one_hot: the index %s already has the axis '%s'",
            dims_text(front, e), a->name);
    Node *n = ew(front, Oeq, e, iota_of(front, a, size), NULL);
    *table_at(front->onehot, KEYP(n)) = n;
    return push_node(L, n);
}

static int argmax(lua_State *L)
{
    Front *front = enter(L, "argmax");
    Node *x = operand(L, 1, "argument 1"), *n;
    Axis *a = one_axis(L, 2, "axis"), *b;

    need_axes(front, x, &a, 1);
    b = g_instance(current(front), a);
    n = make(front, Otopk, 1, &x);
    n->at.topk = (struct topk_attrs){ 1, a, b };
    n = reduce(front, Osum, infer(current(front), n), &b, 1);
    return push_index(L, n, a, x->dim[dim_of(x, a)].n);
}

/* scatter_add(v, e, like [, axis]): zeros like `like`, and v added at e */
static int scatter_add(lua_State *L)
{
    Front *front = enter(L, "scatter_add");
    Node *v = operand(L, 1, "argument 1");
    Node *e = integer_value(L, 2, "the index");
    Node *to = operand(L, 3, "like"), *n;
    int64_t size;
    Axis *a = indexed(L, 2, 4, &size);

    need_axes(front, to, &a, 1);
    v = micro_like(front, v, to);
    for (int i = 0; i < to->nd; i++)
        if (to->dim[i].a != a && dim_of(v, to->dim[i].a) < 0)
            err(front->loc,
                "scatter_add: the values %s lack the axis '%s' of the result "
                "%s",
                dims_text(front, v), to->dim[i].a->name, dims_text(front, to));
    if (dim_of(v, a) >= 0 || dim_of(e, a) >= 0) {
        Axis *other = g_instance(current(front), a);
        v = apart(front, v, a, other);
        e = apart(front, e, a, other);
    }
    Node *in[2] = { v, e };
    n = make(front, Oscatter_add, 2, in);
    n->at.scatter_add.axis = a;
    /* Values of data stay apart by micro-batch, also where `like` is none. */
    Axis *micro = g_micro(front->g);
    const Node *data = dim_of(v, micro) >= 0 ? v : e;
    if (dim_of(to, micro) < 0 && dim_of(data, micro) >= 0)
        n->dim[n->nd++] = data->dim[dim_of(data, micro)];
    memcpy(n->dim + n->nd, to->dim, (size_t)to->nd * sizeof *n->dim);
    n->nd += to->nd;
    return push_node(L, infer(current(front), n));
}

/* The size of axis a in argument 2, a tensor or a size, or as axes{} says. */
static int64_t size_in(lua_State *L, Front *front, Axis *a)
{
    if (lua_isnoneornil(L, 2))
        return axis_size(front, a, a->name);
    if (lua_type(L, 2) == LUA_TNUMBER) {
        grow_axis(front, a, lua_tointeger(L, 2));
        return a->n;
    }
    const Node *x = operand(L, 2, "argument 2");
    need_axes(front, x, &a, 1);
    return x->dim[dim_of(x, a)].n;
}

/* iota(axis [, x]): as long as the axis is in x, or n, or as axes{} says */
static int iota(lua_State *L)
{
    Front *front = enter(L, "iota");
    Axis *a = one_axis(L, 1, "axis");
    int64_t n = size_in(L, front, a);

    if (n > INT32_MAX)
        err(front->loc, "iota: axis '%s' is %ld, and integers have 32 bits",
            a->name, n);
    return push_index(L, iota_of(front, a, n), NULL, 0);
}

/* clang-format off */
static const luaL_Reg functions[] = {
    { "topk", topk }, { "gather", gather },
    { "index", index_of }, { "one_hot", one_hot }, { "argmax", argmax },
    { "scatter_add", scatter_add }, { "iota", iota }, { NULL, NULL },
};
/* clang-format on */

void index_open(lua_State *L)
{
    luaL_setfuncs(L, functions, 0);
}
