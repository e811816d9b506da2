/* axes.c: axis names. axes{} declares sizes; renames, splits, merges and topk
 * make further axes. A name in a string must be one of them; otherwise the
 * error suggests the most similar name. */
#include <ctype.h>

#include "../frontend.h"

static const char *quoted(Front *front, const char *s)
{
    return strchr(s, ' ') ? strf(front->g->arena, " in \"%.100s\"", s) : "";
}

static Axis *find(Front *front, const char *name)
{
    for (int i = 0; i < front->g->naxis; i++)
        if (front->g->axis[i]->name == name)
            return front->g->axis[i];
    return NULL;
}

/* Names of axes of at least that size; least 0: also axes without a size. */
static const char **axis_names(Front *front, int64_t least, int *n)
{
    const char **names =
        alloc(front->g->arena, ((size_t)front->g->naxis + 1) * sizeof *names);

    *n = 0;
    for (int i = 0; i < front->g->naxis; i++)
        if (!g_ismicro(front->g->axis[i]) && front->g->axis[i]->n >= least)
            names[(*n)++] = front->g->axis[i]->name;
    return names;
}

const char *axis_meant(Front *front, const char *name)
{
    int n;
    const char **names = axis_names(front, 0, &n);

    return did_you_mean(name, names, (size_t)n);
}

static void unknown(Front *front, const char *name, const char *s)
{
    const char *near = axis_meant(front, name);
    err(front->loc, "unknown axis '%s'%s%s", name, quoted(front, s),
        *near ? near : " (declare it in axes{})");
}

static int is_name(const char *s, size_t n)
{
    if (n == 0 || n > 40 || isdigit((unsigned char)s[0]))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_')
            return 0;
    return 1;
}

/* Errors on the names of implicit axes. */
static void check_name(Front *front, const char *s, size_t n)
{
    if (!is_name(s, n) && !find(front, internn(s, n)))
        err(front->loc,
            "%s: '%.*s' is not an axis name (letters, digits and _)", front->fn,
            (int)(n < 60 ? n : 60), s);
    for (int r = ROLEmicro; r <= ROLErow; r++)
        if (strlen(axisroles[r]) == n && !memcmp(s, axisroles[r], n))
            err(front->loc, "%s: the axis name '%s' is reserved", front->fn,
                axisroles[r]);
}

static int parse(Front *front, const char *s, Axis **out, int max, int make)
{
    int n = 0;

    for (const char *p = s, *name; (name = next_word(&p, " \t\n"));) {
        check_name(front, name, strlen(name));
        Axis *a = make ? g_axis(front->g, name) : find(front, name);
        if (!a)
            unknown(front, name, s);
        for (int i = 0; i < n; i++)
            if (out[i] == a)
                err(front->loc, "%s: axis '%s' stands twice in \"%.100s\"",
                    front->fn, name, s);
        if (n == max)
            err(front->loc, "%s: more than %d axes in \"%.100s\"", front->fn,
                max, s);
        out[n++] = a;
    }
    return n;
}

int axes_known(Front *front, const char *s, Axis **out, int max)
{
    return parse(front, s, out, max, 0);
}

int axes_any(Front *front, const char *s, Axis **out, int max)
{
    return parse(front, s, out, max, 1);
}

int64_t axis_size(Front *front, const Axis *a, const char *s)
{
    int n;

    if (a->n)
        return a->n;
    const char **names = axis_names(front, 1, &n);
    const char *near = did_you_mean(a->name, names, (size_t)n);
    err(front->loc, "axis '%s'%s has no declared size%s", a->name,
        quoted(front, s), *near ? near : " (add it to axes{})");
}

int axis_arg(lua_State *L, int arg, const char *what, Axis **out, int max)
{
    Front *front = front_of(L);

    if (lua_type(L, arg) != LUA_TSTRING)
        err(front->loc, "%s: %s must be a string of axis names, got %s",
            front->fn, what, kind_of(L, arg));
    return axes_any(front, lua_tostring(L, arg), out, max);
}

Axis *one_axis(lua_State *L, int arg, const char *what)
{
    Front *front = front_of(L);
    Axis *a[MAXD];
    int n = axis_arg(L, arg, what, a, MAXD);

    if (n != 1)
        err(front->loc, "%s: %s must name one axis, got \"%.100s\"", front->fn,
            what, lua_tostring(L, arg));
    return a[0];
}

void grow_axis(Front *front, Axis *a, int64_t n)
{
    if (a->loc && a->n != n) {
        note(a->loc, "'%s' is declared %ld here", a->name, a->n);
        err(front->loc, "%s: axis '%s' would be %ld and is declared %ld",
            front->fn, a->name, n, a->n);
    }
    if (a->n == 0)
        a->n = n;
}

/* Can the tensors from argument `arg` on get the axis a, of size n? */
static int is_free(lua_State *L, int arg, const Axis *a, int64_t n)
{
    for (; !lua_isnone(L, arg); arg++)
        if (a && dim_of(need_value(L, arg, "a tensor")->n, a) >= 0)
            return 0;
    return !a || !a->n || a->n == n;
}

/* own_axis(name, size): an axis name of the prelude that models cannot declare.
 * own_axis(name, size, x, ..): `name` itself, visible to models, if tensors x
 * .. can get this axis. */
int lua_own_axis(lua_State *L)
{
    Front *front = enter(L, "own_axis");
    const char *name = intern(luaL_checkstring(L, 1));
    int64_t n = luaL_checkinteger(L, 2);

    if (lua_isnone(L, 3) || !is_free(L, 3, find(front, name), n)) {
        name = strf(front->g->arena, "%s'x%lld", name, (long long)n);
        g_axis(front->g, name)->n = n;
    }
    lua_pushstring(L, name);
    return 1;
}

/* Reads the size at the top of the stack. */
static int64_t size_of(lua_State *L, Front *front, const char *name)
{
    char key[64];
    int whole;
    int64_t n = lua_tointegerx(L, -1, &whole);

    if (lua_type(L, -1) != LUA_TNUMBER || !whole || n < 1 || n > 1ll << 40)
        err(front->loc,
            "axes: the size of '%s' must be a positive integer%s, got %s", name,
            whole && n > 1 ? ", at most 2^40" : "", kind_of(L, -1));
    snprintf(key, sizeof key, "axes.%s", name);
    return opts_given(front->cmdline, key) ? opts_int(front->cmdline, key) : n;
}

/* The roles that axes{} accepts: "batch seq .." */
static char *role_list(Arena *a)
{
    Text out = { .arena = a };

    for (int r = ROLEbatch; r < NROLE; r++)
        put(&out, "%s%s", r > ROLEbatch ? " " : "", axisroles[r]);
    return out.s;
}

/* `role` of the table at the top of the stack; ROLEnone: absent. */
static AxisRole stated_role(lua_State *L, Front *front, const char *name)
{
    AxisRole found = ROLEnone;
    int k;

    if (lua_getfield(L, -1, "role") != LUA_TNIL) {
        const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1)
                                                       : kind_of(L, -1);
        if ((k = role_named(s)) < ROLEbatch)
            err(front->loc, "axes: '%s': there is no role '%s'; roles are %s",
                name, s, role_list(front->g->arena));
        found = (AxisRole)k;
    }
    lua_pop(L, 1);
    return found;
}

/* `shard` of the table at the top of the stack. */
static void stated_cuts(lua_State *L, Front *front, Axis *a)
{
    int type = lua_getfield(L, -1, "shard");

    if (type != LUA_TNIL && type != LUA_TSTRING)
        err(front->loc, "axes: '%s': shard must be a string, got %s", a->name,
            kind_of(L, -1));
    if (type == LUA_TSTRING)
        cuts_of_axis(front, a, lua_tostring(L, -1));
    lua_pop(L, 1);
}

static int is_field(const char *s)
{
    return !strcmp(s, "role") || !strcmp(s, "shard");
}

/* The table at the top of the stack: { size, role="ffn", shard="tp" } */
static void table_fields(lua_State *L, Front *front, const char *name)
{
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        lua_pop(L, 1);
        int size = lua_isinteger(L, -1) && lua_tointeger(L, -1) == 1;
        if (!size &&
            (lua_type(L, -1) != LUA_TSTRING || !is_field(lua_tostring(L, -1))))
            err(front->loc,
                "axes: '%s': write %s={ size, role=\"ffn\", shard=\"tp\" }",
                name, name);
    }
}

static void set_role(Front *front, Axis *a, AxisRole role)
{
    int one = role == ROLEbatch || role == ROLEseq;
    const Axis *b = one ? g_role(front->g, role) : NULL;

    if (b && b != a)
        err(front->loc,
            "axes: '%s' and '%s' have the role '%s', which one axis has",
            b->name, a->name, axisroles[role]);
    a->role = role;
}

static void declare(lua_State *L, Front *front, const char *name)
{
    check_name(front, name, strlen(name));
    Axis *a = g_axis(front->g, intern(name));
    AxisRole role = ROLEnone;

    if (lua_type(L, -1) == LUA_TTABLE) {
        table_fields(L, front, name);
        role = stated_role(L, front, name);
        stated_cuts(L, front, a);
        lua_rawgeti(L, -1, 1);
        lua_replace(L, -2);
    }
    int64_t n = size_of(L, front, name);
    if (a->n && a->n != n) {
        note(a->loc, "first declared here");
        err(front->loc, "axes: '%s' is %ld here and %ld before", name, n, a->n);
    }
    a->n = n;
    a->loc = front->loc;
    if (role != ROLEnone)
        set_role(front, a, role);
}

/* axes { batch=1, seq=4096, inner={ 512, role="ffn" }, ... } */
int lua_axes(lua_State *L)
{
    Front *front = enter(L, "axes");
    int n;

    const char **key = sorted_keys(L, 1, &n);
    for (int i = 0; i < n; i++) {
        lua_getfield(L, 1, key[i]);
        declare(L, front, key[i]);
        lua_pop(L, 1);
    }
    return 0;
}

/* ---- order --------------------------------------------------------------- */

/* Collects axes in the order of first use. */
typedef struct Uses {
    Axis **axis; /* vec, in the order of first use */
    Table *seen;
    Arena *arena;
} Uses;

static void use_axis(Uses *uses, Axis *a)
{
    void **slot = table_at(uses->seen, (uintptr_t)a);

    if (*slot)
        return;
    *slot = a;
    vec_push(uses->arena, uses->axis, a);
}

static void use_nodes(Uses *uses, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->body)
            use_nodes(uses, n->body);
        for (int d = 0; d < n->nd; d++)
            use_axis(uses, n->dim[d].a);
        for (int k = 0; k < optab[n->op].nattr; k++) {
            Axes x = attr_axes(n, &optab[n->op].attr[k]);
            for (int q = 0; q < x.n; q++)
                use_axis(uses, x.v[q]);
        }
    }
}

/* Orders the axes by first use in the model, unused ones last: the keys of
 * axes{} have no order, and names must not affect the plan. */
void axes_order(Front *front)
{
    Graph *g = front->g;
    Uses u = { .seen = table_new(g->arena), .arena = g->arena };

    use_nodes(&u, g);
    for (int i = 0; i < g->naxis; i++)
        use_axis(&u, g->axis[i]);
    for (int i = 0; i < g->naxis; i++)
        g->axis[i] = u.axis[i];
}
