/* decl.c: what a model declares: inputs, parameters, states, losses, results,
 * scopes. */
#include <ctype.h>

#include "../../ir/settings/keys.h"
#include "../frontend.h"

enum { DENOMINATOR = 7 }; /* a node's mark: inputs_only was here */
enum { MAXNAME = 200 };

/* ---- names and paths ----------------------------------------------------- */

static const char *name_arg(lua_State *L, int arg)
{
    Front *front = front_of(L);
    const char *s = lua_tostring(L, arg);

    if (strlen(s) > MAXNAME)
        err(front->loc, "%s: a name of %zu characters, at most %d: %.40s...",
            front->fn, strlen(s), MAXNAME, s);
    for (const char *p = s; *p || p == s; p++)
        if (!isalnum((unsigned char)*p) && (p == s || !strchr("._-", *p)))
            err(front->loc,
                "%s: '%.60s' is not a name (letters, digits, _ . -)", front->fn,
                s);
    return intern(s);
}

/* a.b; a may be empty. */
static const char *under(Front *front, const char *a, const char *b)
{
    return *a ? intern(strf(front->g->arena, "%s.%s", a, b)) : b;
}

/* The path of a parameter or state. */
static const char *path_of(Front *front, const char *name)
{
    const Again *again = front->again;
    const char *path = front->scope->path;

    if (!again)
        return under(front, path, name);
    path += strlen(again->scope);
    return under(front,
                 strf(front->g->arena, "%s%s%s", again->name,
                      *path && *path != '.' ? "." : "", path),
                 name);
}

void **place_of(Front *front, const char *kind, const char *name)
{
    return table_at_pair(front->places, KEYP(intern(kind)), KEYP(name));
}

/* One use of a name; what says it stands twice. */
static void once(Front *front, const char *kind, const char *path)
{
    void **slot = place_of(front, kind, path);

    if (*slot) {
        note(*slot, "first defined here");
        err(front->loc, "%s '%s' is defined twice", kind, path);
    }
    *slot = (void *)(uintptr_t)front->loc;
}

static void not_also(Front *front, const char *name, const char *other)
{
    const Loc *l = *place_of(front, other, name);

    if (!l)
        return;
    note(l, "the %s is here", other);
    err(front->loc, "%s: '%s' is also the name of a %s", front->fn, name,
        other);
}

/* What has a buffer of its own: one name each in a plan. */
static void once_of_all(Front *front, const char *kind, const char *path)
{
    static const char *const all[] = { "parameter", "state", "input",
                                       "output" };

    once(front, kind, path);
    for (int i = 0; i < countof(all); i++)
        if (strcmp(all[i], kind))
            not_also(front, path, all[i]);
}

const char **sorted_keys(lua_State *L, int arg, int *n)
{
    Front *front = front_of(L);
    const char **v = NULL;

    luaL_checkstack(L, 4, front->fn);
    for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            err(front->loc, "%s: every entry needs a name, got %s", front->fn,
                kind_of(L, -2));
        if (strlen(lua_tostring(L, -2)) != lua_rawlen(L, -2))
            err(front->loc, "%s: the name '%s' goes on after a zero byte",
                front->fn, lua_tostring(L, -2));
        vec_push(front->g->arena, v, intern(lua_tostring(L, -2)));
    }
    *n = (int)vec_len(v);
    vec_sort(v, by_text);
    return v;
}

/* ---- parameters ---------------------------------------------------------- */

static const char initmeta[] = "initial value";

const Init *init_at(lua_State *L, int arg)
{
    return luaL_testudata(L, arg, initmeta);
}

static void push_init(lua_State *L, InitKind kind, double arg)
{
    Init *x = lua_newuserdatauv(L, sizeof *x, 0);

    *x = (Init){ kind, arg };
    luaL_setmetatable(L, initmeta);
}

/* normal(0.02), uniform(0.1), constant(1) */
static int initializer(lua_State *L)
{
    push_init(L, (InitKind)lua_tointeger(L, lua_upvalueindex(1)),
              lua_tonumber(L, 1));
    return 1;
}

static void read_init(lua_State *L, int arg, Param *param)
{
    const Init *x = init_at(L, arg);

    if (lua_isnoneornil(L, arg))
        return;
    param->init = x ? x->kind : INITconst;
    param->arg = x ? x->arg : lua_tonumber(L, arg);
}

static int sized_axes(lua_State *L, int arg, Dim *d)
{
    Front *front = front_of(L);
    Axis *a[MAXD];
    int n;

    n = axes_known(front, lua_tostring(L, arg), a, MAXD);
    for (int i = 0; i < n; i++)
        d[i] = (Dim){ a[i], axis_size(front, a[i], lua_tostring(L, arg)) };
    return n;
}

static Node *leaf(Front *front, Op op, const char *s, Dtype dt, const Dim *d,
                  int nd)
{
    Node *n = make(front, op, 0, NULL);

    set_name(n, s);
    n->dt = dt;
    n->nd = nd;
    memcpy(n->dim, d, (size_t)nd * sizeof *d);
    g_elems(n); /* refuses too many */
    return infer(front->g, n);
}

/* The node of parameter or state p that an earlier again() or a scope made;
 * null: none. */
static Node *made_before(Front *front, const Param *p)
{
    const Param *q = front->again ? g_param(front->g, p->path) : NULL;
    void **call = place_of(front, "again", p->path);
    int same = q && (uintptr_t)*call != (uintptr_t)front->again->call;

    if (front->again)
        *call = (void *)(uintptr_t)front->again->call;
    if (!same)
        return NULL;
    same = q->nd == p->nd && q->kind == p->kind && q->init == p->init &&
           q->arg == p->arg;
    for (int d = 0; same && d < q->nd; d++)
        same = q->dim[d].a == p->dim[d].a && q->dim[d].n == p->dim[d].n;
    if (!same) {
        note(q->loc, "'%s' is defined here", q->path);
        err(front->loc,
            "%s: '%s' differs from its first definition in kind, "
            "axes or initial value",
            front->fn, p->path);
    }
    return *place_of(front, "node", p->path);
}

Node *declare_lasting(Front *front, const Param *like)
{
    Param *p = alloc(front->g->arena, sizeof *p);
    int trained = like->kind == TKparam;

    *p = *like;
    if (front->body)
        err(front->loc, "%s: not inside a composite", front->fn);
    if (!strncmp(p->path, "optim.", 6))
        err(front->loc, "%s: '%s': paths under 'optim' are the optimizer's",
            front->fn, p->path);
    p->loc = front->loc;
    p->dt = trained ? Dreal : Df32;
    Node *n = made_before(front, p);
    if (n)
        return n;
    once_of_all(front, trained ? "parameter" : "state", p->path);
    vec_push(front->g->arena, front->g->param, p);
    n = leaf(front, trained ? Oparam : Ostate, p->path, p->dt, p->dim, p->nd);
    *place_of(front, "node", p->path) = n;
    return n;
}

static int declare_param(lua_State *L, TensorKind kind)
{
    Front *front = enter(L, tensor_kinds[kind].name);
    Param p = { .kind = kind, .init = INITconst };

    p.path = path_of(front, name_arg(L, 1));
    p.nd = sized_axes(L, 2, p.dim);
    if (kind == TKparam) {
        p.init = INITnormal;
        p.arg = 0.02;
    }
    read_init(L, 3, &p);
    return push_node(L, declare_lasting(front, &p));
}

/* param(path, "axes" [, init]) */
static int param(lua_State *L)
{
    return declare_param(L, TKparam);
}

/* state(path, "axes" [, init]): f32, changed by update() only */
static int state(lua_State *L)
{
    return declare_param(L, TKstate);
}

/* input(name, "axes" [, dtype]); every input also has the axis micro */
static int input(lua_State *L)
{
    Front *front = enter(L, "input");
    const char *name = name_arg(L, 1), *type = lua_tostring(L, 3);
    int token = !strcmp(name, "tokens") || !strcmp(name, "labels");
    int dt = token ? Di32 : Dreal;
    Dim d[MAXD + 1] = { { g_micro(front->g), 1 } };
    int nd = 1 + sized_axes(L, 2, d + 1);

    if (nd > MAXD)
        err(front->loc, "input: more than %d axes", MAXD - 1);
    if (type && ((dt = dtype_named(type)) < 0 || dt == Dnone))
        err(front->loc,
            "input: unknown type '%s' (i32, real, f32, bf16, u8, bool)", type);
    once_of_all(front, "input", name);
    return push_node(L, leaf(front, Oinput, name, (Dtype)dt, d, nd));
}

/* ---- sinks --------------------------------------------------------------- */

static void need_scalar(Front *front, const Node *node, const char *name)
{
    for (int i = 0; i < node->nd; i++)
        if (!g_ismicro(node->dim[i].a)) {
            note(node->loc, "the tensor was made here");
            err(front->loc,
                "%s: '%s' still has the axes %s; take mean(t, \"...\") or "
                "sum(t, \"...\") over them",
                front->fn, name, dims_text(front, node));
        }
}

/* Losses and metrics are names of a record of metrics.jsonl, beside these. */
static void check_recorded(Front *front, const char *name, const char *other)
{
    static const char *const ours[] = {
        "step",         "grad_norm",    "lr",      "step_ms",         "host_ms",
        "tokens_per_s", "fallback",     "skipped", "again",           "set",
        "val_loss",     "expert_bytes", "samples", "tflops_per_rank", "mfu",
        "memory_gib",
    };
    int metric = !strcmp(front->fn, "metric"), taken = 0;

    for (int i = 0; i < countof(ours); i++)
        taken |= !strcmp(ours[i], name);
    if (taken || (metric && !strcmp(name, "loss")))
        err(front->loc,
            "%s: '%s' is a name of our own in metrics.jsonl; take another",
            front->fn, name);
    not_also(front, name, other);
    if (metric)
        once(front, "metric", name);
    *place_of(front, front->fn, name) = (void *)(uintptr_t)front->loc;
}

/* A loss's denominator is known before the first backward: inputs only. What
 * it needs stands before it. */
static void inputs_only(Front *front, Node *den)
{
    Node **node = front->g->node;

    den->mark = DENOMINATOR;
    for (size_t i = vec_len(node); i-- > 0;) {
        const Node *n = node[i];
        if (n->mark != DENOMINATOR)
            continue;
        if (n->op == Oparam || n->op == Ostate) {
            note(n->loc, "'%s' is defined here", n_name(n));
            err(front->loc,
                "loss: the denominator may depend on inputs only, and it "
                "depends on '%s'",
                n_name(n));
        }
        for (int k = 0; k < n->nin; k++)
            n->in[k]->mark = DENOMINATOR;
    }
}

/* loss(name, t [, weight [, den]]) */
static int loss(lua_State *L)
{
    Front *front = enter(L, "loss");
    const char *name = name_arg(L, 1);
    Node *in[2] = { operand(L, 2, "argument 2"), NULL }, *n;
    double weight = lua_isnoneornil(L, 3) ? 1 : lua_tonumber(L, 3);
    int nin = 1;

    check_recorded(front, name, "metric");
    need_scalar(front, in[0], name);
    if (dtypes[in[0]->dt].kind != 'f')
        err(front->loc, "loss: '%s' must be a real number, got %s", name,
            dtypes[in[0]->dt].name);
    if (!lua_isnoneornil(L, 4)) {
        in[nin++] = operand(L, 4, "the denominator");
        need_scalar(front, in[1], name);
        inputs_only(front, in[1]);
    }
    n = make(front, Oloss, nin, in);
    n->at.loss.name = name;
    n->at.loss.weight = weight;
    infer(front->g, n);
    return 0;
}

/* metric(name, t) */
static int metric(lua_State *L)
{
    Front *front = enter(L, "metric");
    const char *name = name_arg(L, 1);
    Node *t = operand(L, 2, "argument 2");

    check_recorded(front, under(front, front->scope->path, name), "loss");
    need_scalar(front, t, name);
    Node *n = make(front, Ometric, 1, &t);
    n->at.metric.name = name;
    infer(front->g, n);
    return 0;
}

/* output(name, t): read by generate and eval */
static int output(lua_State *L)
{
    Front *front = enter(L, "output");
    const char *name = name_arg(L, 1);
    Node *t = operand(L, 2, "argument 2");

    once_of_all(front, "output", name);
    Node *n = make(front, Ooutput, 1, &t);
    n->at.output.name = name;
    infer(front->g, n);
    return 0;
}

static void need_state(Front *front, const Node *s, const Node *v)
{
    if (s->op != Ostate) {
        note(s->loc, "argument 1 was made here");
        err(front->loc, "update: argument 1 must be a state(...)%s",
            s->op == Oparam ? "; an optimizer(...) updates parameters" : "");
    }
    for (int i = 0; i < v->nd; i++) {
        Dim d = v->dim[i];
        int at = dim_of(s, d.a);
        if (g_ismicro(d.a))
            continue;
        if (at < 0) {
            note(v->loc, "the new value was made here");
            err(front->loc,
                "update: the new value %s has the axis '%s', which state '%s' "
                "%s has not; reduce it: mean(t, \"%s\")",
                dims_text(front, v), d.a->name, s->at.state.path,
                dims_text(front, s), d.a->name);
        }
    }
}

/* update(state, value): its value from the next step on */
static int update(lua_State *L)
{
    Front *front = enter(L, "update");
    Node *in[2] = { operand(L, 1, "argument 1"), operand(L, 2, "argument 2") };

    need_state(front, in[0], in[1]);
    once(front, "update of", in[0]->at.state.path);
    in[1] = cast_to(front, in[1], in[0]->dt);
    infer(front->g, make(front, Oupdate, 2, in));
    return 0;
}

/* Argument 1, a table { name, i, kind="mtp" }, becomes a name and i. */
static UnitKind open_table(lua_State *L, Front *front)
{
    int kind = UNITlayer;

    lua_getfield(L, 1, "kind");
    const char *s = lua_isnil(L, -1) ? unitkinds[kind] : lua_tostring(L, -1);
    while (kind < NUNITKIND && (!s || strcmp(s, unitkinds[kind])))
        kind++;
    if (kind == NUNITKIND)
        err(front->loc, "scope: kind must be \"layer\" or \"mtp\", got %s",
            s ? s : kind_of(L, -1));
    lua_rawgeti(L, 1, 1);
    lua_rawgeti(L, 1, 2);
    if (!lua_isinteger(L, -1))
        err(front->loc,
            "scope: write scope({ name, i, kind=.. }, f, ...); i must be an "
            "integer, got %s",
            kind_of(L, -1));
    if (lua_type(L, -2) != LUA_TSTRING ||
        strlen(lua_tostring(L, -2)) != lua_rawlen(L, -2))
        err(front->loc, "scope: the name must be a string, got %s",
            kind_of(L, -2));
    lua_insert(L, 2);
    lua_replace(L, 1);
    lua_pop(L, 1);
    return (UnitKind)kind;
}

/* Opens the scope that argument 1, and 2 when it is an integer, name inside the
 * present one; the integer is removed. A number in a name ("layers.3") is that
 * integer too. */
static void enter_scope(lua_State *L, Front *front, UnitKind kind)
{
    Arena *a = front->g->arena;
    const char *outer = front->scope->path, *name = name_arg(L, 1), *p = name;

    if (lua_type(L, 2) == LUA_TNUMBER) {
        if (lua_tointeger(L, 2) < 0)
            err(front->loc, "scope: the integer of '%s' is below 0", name);
        p = name = strf(a, "%s.%lld", name, lua_tointeger(L, 2));
        lua_remove(L, 2);
    }
    for (;; p++) {
        size_t n = strcspn(p, ".");
        int number = n && strspn(p, "0123456789") == n;
        p += n;
        const char *path = strf(a, "%s%s%.*s", outer, *outer ? "." : "",
                                (int)(p - name), name);
        const Scope *s =
            number ? g_unit(front->g, path, kind) : g_scope(front->g, path);
        if (!*p) {
            front->scope = g_marked(front->g, s, front->scope->marks);
            return;
        }
    }
}

/* scope(name, f, ...), scope(name, i, f, ...), scope({ name, i, kind=".." },
 * f, ...): f's results; names made inside get "name." or "name.i." in front */
static int scope(lua_State *L)
{
    Front *front = enter(L, "scope");
    const Scope *outer = front->scope;

    enter_scope(L, front, lua_istable(L, 1) ? open_table(L, front) : UNITlayer);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    front->scope = outer;
    return lua_gettop(L) - 1;
}

/* again(name, f, ...): f's results; parameters and states made inside have
 * `name.` in front instead of the scopes' names, and are one in all calls */
static int again(lua_State *L)
{
    Front *front = enter(L, "again");
    const Again *outer = front->again;
    Again now = { name_arg(L, 1), front->scope->path, ++front->nagain };

    front->again = &now;
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    front->again = outer;
    return lua_gettop(L) - 1;
}

/* given_option(name): the text of option.NAME on the command line, or nil; for
 * the prelude */
static int given_option(lua_State *L)
{
    Front *front = enter(L, "option");
    const char *name = name_arg(L, 1);
    const char *key = strf(front->g->arena, "option.%s", name);

    *place_of(front, "option", name) = (void *)(uintptr_t)front->loc;
    lua_pushstring(L, opts_str(front->cmdline, key));
    return 1;
}

/* module(name, f, ...): f's results; what is made inside belongs to a module
 * that train.recompute names */
static int module(lua_State *L)
{
    Front *front = enter(L, "module");
    const Scope *outer = front->scope;
    const char *name = lua_tostring(L, 1);
    int i = key_word("train.recompute", name);

    if (i < 0 || i == MODULEfull)
        err(front->loc, "module: '%s' is none of %s", name,
            marks_text(front->g->arena, (1u << MODULEfull) - 1));
    front->scope = g_marked(front->g, outer, outer->marks | 1u << i);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    front->scope = outer;
    return lua_gettop(L) - 1;
}

/* The tensor itself, with a mark of its own. */
static int marked(lua_State *L, const char *name, unsigned mark)
{
    Front *front = enter(L, name);
    Node *n = operand(L, 1, "the argument");
    unsigned all = n->scope->marks | mark;

    if ((all & MARKSONE) == MARKSONE)
        err(front->loc,
            "%s: the model says both keep and recompute of this tensor", name);
    n->scope = g_marked(front->g, n->scope, all);
    return push_node(L, n);
}

static int keep(lua_State *L)
{
    return marked(L, "keep", MARKkeep);
}

static int recompute(lua_State *L)
{
    return marked(L, "recompute", MARKagain);
}

/* ---- the end of a model file --------------------------------------------- */

/* Exponentials of a square value that are summed outside attention(), as those
 * of a softmax or a logsumexp are, are stored whole. */
static void note_square(Front *front, const Node *n)
{
    const Node *y = n->body ? n->body->node[vec_len(n->body->node) - 1] : n;
    const Axis *axis;
    const Node *x = n->body ? softmax_scores(y, &axis) : NULL;

    if (n->op == Osum && unrounded(n->in[0])->op == Oexp)
        x = unrounded(n->in[0]);
    if (!x)
        return;
    for (int i = 0; i < x->nd; i++)
        for (int k = 0; k < x->nd; k++)
            if (i != k && x->dim[i].a->root == x->dim[k].a->root)
                goto square;
    return;
square:
    warn(n->loc,
         "softmax over the square %s outside attention() is stored: %.1f MB in "
         "fp32; attention(s, v, key) stores none, its second result is their "
         "logsumexp",
         dims_text(front, x), (double)g_elems(x) * 4e-6);
}

/* Marks what a sink needs; operands stand before users. Returns the number of
 * losses and outputs. */
int mark_used(Graph *g)
{
    int asked = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = 0;
    for (size_t i = vec_len(g->node); i-- > 0;) {
        Node *n = g->node[i];
        asked += n->op == Oloss || n->op == Ooutput;
        if (optab[n->op].cls == SINK)
            n->mark = 1;
        for (int k = 0; n->mark && k < n->nin; k++)
            n->in[k]->mark = 1;
    }
    return asked;
}

/* Everything declared must be used, and something must be asked for. */
void decl_finish(Front *front)
{
    Graph *g = front->g;

    if (mark_used(g) == 0)
        err(&(Loc){ front->file, 0, NULL },
            "the model has no loss and no output; write loss(\"lm\", t)");
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if ((n->op == Oparam || n->op == Ostate) && !n->mark)
            err(n->loc, "%s '%s' is never used",
                n->op == Oparam ? "parameter" : "state", n_name(n));
        if (n->mark)
            note_square(front, n);
    }
}

/* clang-format off */
static const luaL_Reg functions[] = {
    { "axes", lua_axes }, { "input", input }, { "param", param },
    { "state", state }, { "loss", loss }, { "metric", metric },
    { "output", output }, { "update", update }, { "scope", scope },
    { "again", again }, { "given_option", given_option }, { "module", module }, { "keep", keep }, { "recompute", recompute },
    { "hf", lua_hf }, { NULL, NULL },
};
/* clang-format on */

/* Models pass initial values around and cannot look inside. */
static void init_open(lua_State *L)
{
    luaL_newmetatable(L, initmeta);
    lua_pushstring(L, initmeta);
    lua_setfield(L, -2, "__metatable");
    lua_pushliteral(L, "an initial value");
    lua_setfield(L, -2, "__name");
    lua_pop(L, 1);
    push_init(L, INITconst, 0);
    lua_setfield(L, -2, "zeros");
    push_init(L, INITconst, 1);
    lua_setfield(L, -2, "ones");
}

void decl_open(lua_State *L)
{
    luaL_setfuncs(L, functions, 0);
    for (int i = INITnormal; i <= INITconst; i++) {
        lua_pushinteger(L, i);
        lua_pushcclosure(L, initializer, 1);
        lua_setfield(L, -2, i == INITconst ? "constant" : initkinds[i]);
    }
    init_open(L);
    lua_pushnumber(L, (lua_Number)HUGE_VAL);
    lua_setfield(L, -2, "inf");
    options_open(L);
}
