/* ops.c: the functions of the language. Most are made in a loop over the op
 * table: operands, then attributes, as the row says. Those written by hand,
 * below and in index.c, give defaults or several results, or check. */
#include "../frontend.h"

/* "slice(a, axis, start, len)" */
static const char *usage(const OpInfo *info)
{
    Text out = { .arena = forever };
    const char *sep = "", *rest = info->operands, *word;

    put(&out, "%s(", info->name);
    for (; (word = next_word(&rest, " ")); sep = ", ")
        if (*word == '*')
            put(&out, "a, b, ...");
        else
            put(&out, "%s%s", sep, word);
    for (int i = 0; i < info->nattr; i++, sep = ", ")
        put(&out, "%s%s", sep, info->attr[i].name);
    put(&out, ")");
    return out.s;
}

static void missing(lua_State *L, const OpInfo *info, int arg, const char *name)
{
    Front *front = front_of(L);

    if (lua_isnoneornil(L, arg))
        err(front->loc, "%s: '%s' is missing; write %s", front->fn, name,
            usage(info));
}

int64_t integer_arg(lua_State *L, int arg, const char *name)
{
    Front *front = front_of(L);
    int whole;
    int64_t v = lua_tointegerx(L, arg, &whole);

    if (lua_type(L, arg) == LUA_TBOOLEAN)
        return lua_toboolean(L, arg);
    if (!whole || lua_type(L, arg) != LUA_TNUMBER)
        err(front->loc, "%s: '%s' must be an integer, got %s", front->fn, name,
            kind_of(L, arg));
    return v;
}

/* Which of the words the argument is. */
static int word_arg(lua_State *L, int arg, const char *name,
                    const char *const *word, int n)
{
    Front *front = front_of(L);
    Text all = { .arena = front->g->arena };
    int i = lua_type(L, arg) != LUA_TSTRING
                ? -1
                : word_index(lua_tostring(L, arg), word, n);

    for (int k = 0; k < n && i < 0; k++)
        put(&all, "%s%s", k ? ", " : "", word[k]);
    if (i < 0)
        err(front->loc, "%s: '%s' must be one of %s, got %s", front->fn, name,
            all.s, kind_of(L, arg));
    return i;
}

static ScaleLayout layout_arg(lua_State *L, int arg, const char *name)
{
    return (ScaleLayout)(1 +
                         word_arg(L, arg, name, scalenames + 1, NSCALE - 1));
}

static Dtype narrow_arg(lua_State *L, int arg, const char *name)
{
    static const Dtype to[] = { De4m3, De5m2, De2m1x2 };
    const char *word[3];

    for (int i = 0; i < 3; i++)
        word[i] = dtypes[to[i]].name;
    return to[word_arg(L, arg, name, word, 3)];
}

static void attribute(lua_State *L, Node *n, const AttrInfo *info, int arg)
{
    void *v = attr_at(n, info);
    Axis *a[MAXD];

    switch (info->type) {
    case ATaxis: *(Axis **)v = one_axis(L, arg, info->name); break;
    case ATaxes:
        *(Axes *)v =
            g_axes(front_of(L)->g, a, axis_arg(L, arg, info->name, a, MAXD));
        break;
    case ATint: *(int64_t *)v = integer_arg(L, arg, info->name); break;
    case ATflag: *(int *)v = integer_arg(L, arg, info->name) != 0; break;
    case ATscales: *(ScaleLayout *)v = layout_arg(L, arg, info->name); break;
    case ATdtype: *(Dtype *)v = narrow_arg(L, arg, info->name); break;
    default: die("%s: no function takes '%s'", optab[n->op].name, info->name);
    }
}

/* Tensors before the first argument that is none. */
static int count_tensors(lua_State *L)
{
    int n = 0;

    while (value_at(L, n + 1))
        n++;
    return n;
}

static void check_count(lua_State *L, const OpInfo *info, int want)
{
    Front *front = front_of(L);

    drop_spare(L, want);
    if (lua_gettop(L) > want)
        err(front->loc, "%s: %d arguments, it takes %d; write %s", front->fn,
            lua_gettop(L), want, usage(info));
}

/* What an index remembers survives moves that leave its values alone. */
static int result(lua_State *L, Node *n, int first)
{
    OpClass c = optab[n->op].cls;
    const LuaTensor *v = value_at(L, first);

    if (v && v->of && (c == VIEW || c == MOVE || n->op == Ostop_gradient))
        return push_index(L, n, v->of, v->ofn);
    return push_node(L, n);
}

static void check_split(Front *front, const Node *n)
{
    const Axes *into = &n->at.split.into;

    for (int i = 0; i < into->n; i++)
        if (into->v[i] != n->at.split.axis && dim_of(n->in[0], into->v[i]) >= 0)
            err(front->loc, "split: tensor %s already has the axis '%s'",
                dims_text(front, n->in[0]), into->v[i]->name);
}

/* Tensors in a row: the same axes, all integers or all reals. */
static void check_concat(Front *front, const Node *n)
{
    const Node *a = n->in[0];

    for (int k = 1; k < n->nin; k++) {
        const Node *b = n->in[k];
        int same = a->nd == b->nd;
        for (int i = 0; same && i < b->nd; i++)
            same = dim_of(a, b->dim[i].a) >= 0;
        if (!same || a->dt != b->dt) {
            note(a->loc, "argument 1 made here");
            note(b->loc, "argument %d made here", k + 1);
            err(front->loc, "concat: argument 1 is %s %s and argument %d %s %s",
                dtypes[a->dt].name, dims_text(front, a), k + 1,
                dtypes[b->dt].name, dims_text(front, b));
        }
    }
}

/* Reals of several dtypes become one, as those of elementwise ops do. */
static void as_one_real(Front *front, int nin, Node **in)
{
    Dtype t = Dnone;

    for (int k = 0; k < nin; k++) {
        if (dtypes[in[k]->dt].kind != 'f')
            return;
        t = promoted(t, in[k]->dt);
    }
    for (int k = 0; k < nin; k++)
        in[k] = cast_to(front, in[k], t);
}

/* Shifts by more than the axis are those by its size, so that no later sum of
 * places overflows. */
static void bound_shift(Front *front, Node *n)
{
    struct shift_attrs *t = &n->at.shift;

    need_axes(front, n->in[0], &t->axis, 1);
    int64_t size = n->in[0]->dim[dim_of(n->in[0], t->axis)].n;
    if (t->wrap)
        t->by %= size;
    else if (t->by > size)
        t->by = size;
    else if (t->by < -size)
        t->by = -size;
}

/* n with the axis micro. */
static Node *in_each_micro(Front *front, Node *n)
{
    Axis *micro = g_micro(front->g);

    if (dim_of(n, micro) >= 0)
        return n;
    Node *s = make(front, Obroadcast, 1, &n);
    s->dim[s->nd++] = (Dim){ micro, 1 };
    for (int i = 0; i < n->nd; i++)
        s->dim[s->nd++] = n->dim[i];
    return infer(current(front), s);
}

Node *micro_like(Front *front, Node *n, const Node *x)
{
    return dim_of(x, g_micro(front->g)) < 0 ? n : in_each_micro(front, n);
}

/* Beside what differs between micro-batches all do. */
static void with_micro(Front *front, int nin, Node **in)
{
    Axis *micro = g_micro(front->g);
    int some = 0;

    for (int k = 0; k < nin; k++)
        some |= dim_of(in[k], micro) >= 0;
    for (int k = 0; k < nin && some; k++)
        in[k] = in_each_micro(front, in[k]);
}

/* Every op that is not hidden: operands, then attributes. The last attribute
 * may be left out when it is a flag (wrap). */
static int generic(lua_State *L)
{
    Op op = (Op)lua_tointeger(L, lua_upvalueindex(1));
    const OpInfo *o = &optab[op];
    Front *front = enter(L, o->name);
    int nin = o->nin < 0 ? count_tensors(L) : o->nin;
    Node *in[MAXIN];

    if (nin < 1 || nin > MAXIN)
        err(front->loc, "%s: from 1 to %d tensors; write %s", front->fn, MAXIN,
            usage(o));
    check_count(L, o, nin + o->nattr);
    for (int i = 0; i < nin; i++)
        missing(L, o, i + 1, strf(front->g->arena, "%c", "abc"[i < 3 ? i : 2]));
    if (o->cls == EW)
        ew_operands(L, op, 1, nin, in);
    else
        for (int i = 0; i < nin; i++)
            in[i] =
                operand(L, i + 1, strf(front->g->arena, "argument %d", i + 1));
    if (op == Oconcat) {
        as_one_real(front, nin, in);
        with_micro(front, nin, in);
    }
    Node *n = make(front, op, nin, in);
    for (int i = 0; i < o->nattr; i++) {
        if (o->attr[i].type != ATflag && o->attr[i].use != ATmay)
            missing(L, o, nin + 1 + i, o->attr[i].name);
        if (!lua_isnoneornil(L, nin + 1 + i))
            attribute(L, n, &o->attr[i], nin + 1 + i);
    }
    if (o->cls == RED && n_axes(n)->n == 0)
        return result(L, in[0], 1); /* over no axes: nothing to do */
    if (op == Osplit)
        check_split(front, n);
    if (op == Oconcat)
        check_concat(front, n);
    if (op == Oshift)
        bound_shift(front, n);
    return result(L, infer(current(front), n), 1);
}

/* ---- casts --------------------------------------------------------------- */

static int cast(lua_State *L)
{
    Dtype dt = (Dtype)lua_tointeger(L, lua_upvalueindex(1));
    Front *front = enter(L, dt == Di32 ? "int" : dtypes[dt].name);

    Node *x = operand(L, 1, "the argument");
    if (x->dt == De2m1x2)
        err(front->loc,
            "%s: the tensor has two numbers an element (e2m1x2); "
            "dequantize it first",
            front->fn);
    return push_node(L, cast_to(front, x, dt));
}

/* as(x, like): x in the dtype of `like`; for the prelude, whose layers compute
 * in f32 and give back what they got. */
static int as(lua_State *L)
{
    Front *front = enter(L, "as");
    Node *x = operand(L, 1, "x");

    return push_node(L, cast_to(front, x, operand(L, 2, "like")->dt));
}

/* stored(x): a real x as it is kept, in the policy's dtype, where f32(x) would
 * take the fp32 value that a product has before it is rounded; for the
 * prelude. */
static int stored(lua_State *L)
{
    Front *front = enter(L, "stored");
    Node *x = operand(L, 1, "the argument");

    if (x->dt != Dreal)
        return push_node(L, x);
    Node *n = make(front, Ocast, 1, &x);
    n->at.cast.to = Dreal;
    return push_node(L, infer(current(front), n));
}

/* ---- reductions ---------------------------------------------------------- */

void need_axes(Front *front, const Node *x, Axis *const *a, int n)
{
    const char *names[MAXD];
    size_t nname = 0;

    for (int i = 0; i < x->nd; i++)
        if (!g_ismicro(x->dim[i].a))
            names[nname++] = x->dim[i].a->name;
    for (int i = 0; i < n; i++) {
        if (dim_of(x, a[i]) >= 0)
            continue;
        note(x->loc, "argument 1 made here");
        err(front->loc, "%s: tensor %s has no axis '%s'%s", front->fn,
            dims_text(front, x), a[i]->name,
            did_you_mean(a[i]->name, names, nname));
    }
}

/* A node of its own: `step` averages it over micro-batches, unlike a sum. */
static int mean(lua_State *L)
{
    Front *front = enter(L, "mean");
    Node *x = operand(L, 1, "argument 1");
    Axis *a[MAXD];
    int n = axis_arg(L, 2, "axes", a, MAXD);

    need_axes(front, x, a, n);
    if (dtypes[x->dt].kind != 'f')
        x = cast_to(front, x, Df32);
    return push_node(L, reduce(front, Omean, x, a, n));
}

static int truth(lua_State *L)
{
    Op op = (Op)lua_tointeger(L, lua_upvalueindex(1));
    Front *front = enter(L, op == Omax ? "any" : "all");
    Node *x = operand(L, 1, "argument 1");
    Axis *a[MAXD];
    int n = axis_arg(L, 2, "axes", a, MAXD);

    if (x->dt != Dbool) {
        note(x->loc, "the tensor was made here");
        err(front->loc,
            "%s: the tensor must be a truth value (of eq, lt, one_hot), got %s",
            front->fn, dtypes[x->dt].name);
    }
    need_axes(front, x, a, n);
    return push_node(L, reduce(front, op, x, a, n));
}

/* ---- products ------------------------------------------------------------ */

/* An indexed weight beside rows that differ between micro-batches: its index is
 * one for each too. */
static Node *pick_for(Front *front, Node *pick, const Node *a)
{
    Node *in[2] = { pick->in[0], micro_like(front, pick->in[1], a) }, *n;

    if (in[1] == pick->in[1])
        return pick;
    n = make(front, Opick, 2, in);
    n->at.pick.axis = pick->at.pick.axis;
    return infer(current(front), n);
}

/* A grouped product is of rows, one a choice, with one weight an expert: no
 * other axes stay in both, and a row has summed axes only. */
static void check_grouped(Front *front, const Node *a, const Node *pick,
                          Axis *const *ax, int n)
{
    const Node *w = pick->in[0], *e = pick->in[1];

    for (int i = 0; i < n; i++)
        if (dim_of(w, ax[i]) < 0)
            need_axes(front, a, &ax[i], 1);
    if (dim_of(w, g_micro(front->g)) >= 0 && dim_of(a, g_micro(front->g)) >= 0)
        err(front->loc,
            "dot: the indexed weight %s differs between micro-batches, as %s "
            "does; index what is made of parameters and states alone",
            dims_text(front, w), dims_text(front, a));
    for (int i = 0; i < w->nd; i++) {
        const Axis *axis = w->dim[i].a;
        if (axis == pick->at.pick.axis || axis_at(ax, n, axis) >= 0)
            continue;
        if (dim_of(a, axis) >= 0 || dim_of(e, axis) >= 0)
            err(front->loc,
                "dot: the axis '%s' of the indexed weight %s is also in %s and "
                "is not summed; rename it in one of them",
                axis->name, dims_text(front, w),
                dims_text(front, dim_of(a, axis) >= 0 ? a : e));
    }
    for (int i = 0; i < a->nd; i++)
        if (dim_of(e, a->dim[i].a) < 0 && axis_at(ax, n, a->dim[i].a) < 0)
            err(front->loc,
                "dot: the axis '%s' of %s is neither summed nor an axis of the "
                "index %s; sum it, or merge it into one that is",
                a->dim[i].a->name, dims_text(front, a), dims_text(front, e));
}

/* Truth values and integers are factors like any number. */
static Node *factor(Front *front, Node *n, const Node *other)
{
    if (dtypes[n->dt].kind == 'f')
        return n;
    return cast_to(front, n, dtypes[other->dt].kind == 'f' ? other->dt : Df32);
}

static int dot(lua_State *L)
{
    Front *front = enter(L, "dot");
    Node *a = use_any(front, need_value(L, 1, "argument 1"));
    Node *b = use_any(front, need_value(L, 2, "argument 2"));
    Axis *ax[MAXD];
    int n;

    n = axis_arg(L, 3, "axes", ax, MAXD);
    if (a->op == Opick && b->op == Opick)
        err(front->loc, "dot: both operands are indexed weights");
    if (a->op == Opick) {
        Node *node = a;
        a = b;
        b = node;
    }
    if (b->op == Opick) {
        b = pick_for(front, b, a);
        check_grouped(front, a, b, ax, n);
    }
    Node *in[2] = { factor(front, a, b), factor(front, b, a) };
    Node *r = make(front, Odot, 2, in);
    r->at.dot.axes = g_axes(front->g, ax, n);
    return push_node(L, infer(current(front), r));
}

/* ---- structure ----------------------------------------------------------- */

/* `to`, a new name of `from`, keeps its root, so that it is sharded like it. A
 * declared axis does so where none has it as its root. */
static void take_root(const Graph *g, const Axis *from, Axis *to, int64_t n)
{
    int roots = 0;

    for (int i = 0; i < g->naxis; i++)
        roots += g->axis[i]->root == to;
    if (roots == 1 && to->root == to && (to->n == 0 || to->n == n))
        to->root = from->root;
    if (to->n == 0)
        to->n = n;
}

/* rename(x, { seq="key", ... }) */
static int rename_axes(lua_State *L)
{
    Front *front = enter(L, "rename");
    Node *x = operand(L, 1, "argument 1"), *n;
    Axis *from[MAXD], *to[MAXD];
    int count;

    const char **old = sorted_keys(L, 2, &count);
    if (count > MAXD)
        err(front->loc, "rename: %d axes, at most %d", count, MAXD);
    if (count == 0)
        return result(L, x, 1);
    n = make(front, Orename, 1, &x);
    for (int i = 0; i < count; i++) {
        Axis *one[MAXD];
        if (axes_any(front, old[i], one, MAXD) != 1)
            err(front->loc, "rename: \"%s\" is not one axis", old[i]);
        need_axes(front, x, one, 1);
        lua_getfield(L, 2, old[i]);
        from[i] = one[0];
        to[i] = one_axis(L, -1, "the new name");
        lua_pop(L, 1);
        take_root(front->g, from[i], to[i], x->dim[dim_of(x, from[i])].n);
    }
    n->at.rename.from = g_axes(front->g, from, count);
    n->at.rename.to = g_axes(front->g, to, count);
    return result(L, infer(current(front), n), 1);
}

static int merge(lua_State *L)
{
    Front *front = enter(L, "merge");
    Node *x = operand(L, 1, "argument 1"), *n;
    Axis *a[MAXD], *to;
    int64_t size = 1;
    int k;

    k = axis_arg(L, 2, "axes", a, MAXD);
    if (k == 0)
        err(front->loc, "merge: which axes? \"%s\" names none",
            lua_tostring(L, 2));
    need_axes(front, x, a, k);
    to = one_axis(L, 3, "the new axis");
    if (dim_of(x, to) >= 0)
        err(front->loc, "merge: tensor %s already has the axis '%s'",
            dims_text(front, x), to->name);
    for (int i = 0; i < k; i++)
        size *= x->dim[dim_of(x, a[i])].n;
    grow_axis(front, to, size);
    n = make(front, Omerge, 1, &x);
    n->at.merge.axes = g_axes(front->g, a, k);
    n->at.merge.new = to;
    return result(L, infer(current(front), n), 1);
}

/* halves(x, axis, two, half, last): split into pairs whose axis `two` has 2;
 * `last` says that it is the fast one. For rope. */
static int halves(lua_State *L)
{
    Front *front = enter(L, "rope");
    Node *x = operand(L, 1, "argument 1"), *n;
    Axis *a = one_axis(L, 2, "axis");
    Axis *two = one_axis(L, 3, "two"), *half = one_axis(L, 4, "half");
    int last = lua_toboolean(L, 5);

    need_axes(front, x, &a, 1);
    int64_t size = x->dim[dim_of(x, a)].n;
    if (size % 2)
        err(front->loc, "rope: axis '%s' is %ld, an odd number", a->name, size);
    n = make(front, Osplit, 1, &x);
    n->at.split.axis = a;
    n->at.split.into =
        g_axes(front->g, (Axis *[]){ last ? half : two, last ? two : half }, 2);
    two->n = 2;
    half->n = size / 2;
    return push_node(L, infer(current(front), n));
}

/* The mask is another in every micro-batch, also of what is the same in all of
 * them, as a parameter is. */
static Node *masked(Front *front, Node *x, struct dropout_attrs at)
{
    x = in_each_micro(front, x);
    Node *n = make(front, Odropout, 1, &x);
    n->at.dropout = at;
    n->at.dropout.key = (int64_t)(mix64(0, (uint64_t)++front->ndropout) >> 1);
    return infer(current(front), n);
}

/* drawn(x): a number in [0, 1) for each element, which depends on the axes of x
 * alone; for the prelude. */
static int drawn(lua_State *L)
{
    Front *front = enter(L, "random");
    const Node *x = operand(L, 1, "argument 2");
    Node *zero = constant(front, Df32, 0);
    Node *n = make(front, Obroadcast, 1, &zero);

    n->nd = x->nd;
    memcpy(n->dim, x->dim, sizeof n->dim);
    return push_node(L, masked(front, infer(current(front), n),
                               (struct dropout_attrs){ .drawn = 1 }));
}

static int dropout(lua_State *L)
{
    Front *front = enter(L, "dropout");
    Node *x = operand(L, 1, "argument 1");
    double p = lua_tonumber(L, 2);

    if (lua_type(L, 2) != LUA_TNUMBER || !(p >= 0 && p < 1))
        err(front->loc, "dropout: p must be a number from 0 to below 1, got %s",
            kind_of(L, 2));
    if (p == 0) { /* takes a key, so that p changes no other mask */
        front->ndropout++;
        return push_node(L, x);
    }
    return push_node(L, masked(front, x, (struct dropout_attrs){ .p = p }));
}

/* size(x, axis) of a tensor; size("axis") as axes{} or the command line say */
static int size_of(lua_State *L)
{
    Front *front = enter(L, "size");
    Axis *a;

    if (lua_type(L, 1) == LUA_TSTRING) {
        if (axes_known(front, lua_tostring(L, 1), &a, 1) != 1)
            err(front->loc,
                "size: write size(\"hidden\") or size(x, \"hidden\")");
        lua_pushinteger(L, axis_size(front, a, a->name));
        return 1;
    }
    Node *x = operand(L, 1, "argument 1");
    a = one_axis(L, 2, "axis");

    need_axes(front, x, &a, 1);
    lua_pushinteger(L, x->dim[dim_of(x, a)].n);
    return 1;
}

/* axes_of(x): " batch seq hidden ", for the prelude */
static int axes_of(lua_State *L)
{
    Front *front = enter(L, "has");
    const Node *x = operand(L, 1, "argument 1");
    Text out = { .arena = front->g->arena };

    put(&out, " ");
    for (int i = 0; i < x->nd; i++)
        if (!g_ismicro(x->dim[i].a))
            put(&out, "%s ", x->dim[i].a->name);
    lua_pushstring(L, out.s);
    return 1;
}

/* need(name, x, axes): what layers of the prelude ask of their arguments */
static int need(lua_State *L)
{
    Front *front = enter(L, luaL_checkstring(L, 1));
    Node *x = operand(L, 2, "argument 1");
    Axis *a[MAXD];

    need_axes(front, x, a, axis_arg(L, 3, "axis", a, MAXD));
    return 0;
}

/* clang-format off */
static const luaL_Reg byhand[] = {
    { "mean", mean }, { "dot", dot }, { "rename", rename_axes },
    { "merge", merge }, { "dropout", dropout }, { "size", size_of },
    { NULL, NULL },
};
/* clang-format on */

static const luaL_Reg inside[] = {
    { "as", as },
    { "halves", halves },
    { "stored", stored },
    { "need", need },
    { "own_axis", lua_own_axis },
    { "drawn", drawn },
    { "axes_of", axes_of },
    { NULL, NULL },
};

static void put_closure(lua_State *L, const char *name, lua_CFunction f, int k)
{
    lua_pushinteger(L, k);
    lua_pushcclosure(L, f, 1);
    lua_setfield(L, -2, name);
}

void ops_inside(lua_State *L)
{
    luaL_setfuncs(L, inside, 0);
}

void ops_open(lua_State *L)
{
    for (int op = 0; op < op_count; op++)
        if (!op_is((Op)op, OPhidden))
            put_closure(L, optab[op].name, generic, op);
    static const Dtype casts[] = { Df32, Dbf16, De4m3, De5m2, De8m0 };
    for (int i = 0; i < countof(casts); i++)
        put_closure(L, dtypes[casts[i]].name, cast, casts[i]);
    put_closure(L, "int", cast, Di32);
    put_closure(L, "any", truth, Omax);
    put_closure(L, "all", truth, Omin);
    luaL_setfuncs(L, byhand, 0);
    index_open(L);
}
