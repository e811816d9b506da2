/* axes.c: axis names. axes{} declares sizes; renames, splits, merges and topk
 * make more. A name in a string must be one of them, or the message says which
 * was probably meant. */
#include <ctype.h>
#include <string.h>

#include "frontend.h"

static const char *quoted(Front *f, const char *s)
{
    return strchr(s, ' ') ? strf(f->g->arena, " in \"%.100s\"", s) : "";
}

static Axis *find(Front *f, const char *name)
{
    for (int i = 0; i < f->g->naxis; i++)
        if (f->g->axis[i]->name == name)
            return f->g->axis[i];
    return NULL;
}

/* Of at least that size; 0: whatever has it not yet too. */
static const char **axis_names(Front *f, int64_t least, int *n)
{
    const char **names =
        alloc(f->g->arena, ((size_t)f->g->naxis + 1) * sizeof *names);

    *n = 0;
    for (int i = 0; i < f->g->naxis; i++)
        if (!g_ismicro(f->g->axis[i]) && f->g->axis[i]->n >= least)
            names[(*n)++] = f->g->axis[i]->name;
    return names;
}

static void unknown(Front *f, const char *name, const char *s)
{
    int n;
    const char **names = axis_names(f, 0, &n);
    const char *near = did_you_mean(name, names, (size_t)n);
    err(f->loc, "unknown axis '%s'%s%s", name, quoted(f, s),
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

/* The implicit axes have names that a model cannot use. */
static void check_name(Front *f, const char *s, size_t n)
{
    if (!is_name(s, n))
        err(f->loc, "%s: '%.*s' is not an axis name (letters, digits and _)",
            f->fn, (int)(n < 60 ? n : 60), s);
    for (int r = ROLEmicro; r <= ROLErow; r++)
        if (strlen(axisroles[r]) == n && !memcmp(s, axisroles[r], n))
            err(f->loc, "%s: the axis name '%s' is reserved", f->fn,
                axisroles[r]);
}

static int parse(Front *f, const char *s, Axis **out, int max, int make)
{
    int n = 0;

    for (const char *p = s; *(p += strspn(p, " \t\n"));) {
        size_t len = strcspn(p, " \t\n");
        check_name(f, p, len);
        const char *name = internn(p, len);
        Axis *a = make ? g_axis(f->g, name) : find(f, name);
        if (!a)
            unknown(f, name, s);
        for (int i = 0; i < n; i++)
            if (out[i] == a)
                err(f->loc, "%s: axis '%s' stands twice in \"%.100s\"", f->fn,
                    name, s);
        if (n == max)
            err(f->loc, "%s: more than %d axes in \"%.100s\"", f->fn, max, s);
        out[n++] = a;
        p += len;
    }
    return n;
}

int axes_known(Front *f, const char *s, Axis **out, int max)
{
    return parse(f, s, out, max, 0);
}

int axes_any(Front *f, const char *s, Axis **out, int max)
{
    return parse(f, s, out, max, 1);
}

int64_t axis_size(Front *f, const Axis *a, const char *s)
{
    int n;

    if (a->n)
        return a->n;
    const char **names = axis_names(f, 1, &n);
    const char *near = did_you_mean(a->name, names, (size_t)n);
    err(f->loc, "axis '%s'%s has no declared size%s", a->name, quoted(f, s),
        *near ? near : " (add it to axes{})");
}

int axis_arg(lua_State *L, int arg, const char *what, Axis **out, int max)
{
    Front *f = front(L);

    if (lua_type(L, arg) != LUA_TSTRING)
        err(f->loc, "%s: %s must be a string of axis names, got %s", f->fn,
            what, kind_of(L, arg));
    return axes_any(f, lua_tostring(L, arg), out, max);
}

Axis *one_axis(lua_State *L, int arg, const char *what)
{
    Front *f = front(L);
    Axis *a[MAXD];
    int n = axis_arg(L, arg, what, a, MAXD);

    if (n != 1)
        err(f->loc, "%s: %s must name one axis, got \"%.100s\"", f->fn, what,
            lua_tostring(L, arg));
    return a[0];
}

void grow_axis(Front *f, Axis *a, int64_t n)
{
    if (a->loc && a->n != n) {
        note(a->loc, "'%s' is declared %lld here", a->name, (long long)a->n);
        err(f->loc, "%s: axis '%s' would be %lld and is declared %lld", f->fn,
            a->name, (long long)n, (long long)a->n);
    }
    if (a->n == 0)
        a->n = n;
}

/* The size at the top of the stack. */
static int64_t size_of(lua_State *L, Front *f, const char *name)
{
    char key[64];
    int whole;
    int64_t n = lua_tointegerx(L, -1, &whole);

    if (lua_type(L, -1) != LUA_TNUMBER || !whole || n < 1 || n > 1ll << 40)
        err(f->loc,
            "axes: the size of '%s' must be a positive integer%s, got %s", name,
            whole && n > 1 ? ", at most 2^40" : "", kind_of(L, -1));
    snprintf(key, sizeof key, "axes.%s", name);
    return opts_given(f->cmdline, key) ? opts_int(f->cmdline, key) : n;
}

/* Roles that a model may state: "batch seq .." */
static char *role_list(Arena *a)
{
    Text out = { .arena = a };

    for (int r = ROLEbatch; r < NROLE; r++)
        put(&out, "%s%s", r > ROLEbatch ? " " : "", axisroles[r]);
    return out.s;
}

/* `role` of the table at the top of the stack; ROLEnone without. */
static AxisRole stated_role(lua_State *L, Front *f, const char *name)
{
    AxisRole found = ROLEnone;
    int k;

    if (lua_getfield(L, -1, "role") != LUA_TNIL) {
        const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1)
                                                       : kind_of(L, -1);
        if ((k = role_named(s)) < ROLEbatch)
            err(f->loc, "axes: '%s': there is no role '%s'; roles are %s", name,
                s, role_list(f->g->arena));
        found = (AxisRole)k;
    }
    lua_pop(L, 1);
    return found;
}

/* `shard` of the table at the top of the stack. */
static void stated_cuts(lua_State *L, Front *f, Axis *a)
{
    int type = lua_getfield(L, -1, "shard");

    if (type != LUA_TNIL && type != LUA_TSTRING)
        err(f->loc, "axes: '%s': shard must be a string, got %s", a->name,
            kind_of(L, -1));
    if (type == LUA_TSTRING)
        cuts_of_axis(f, a, lua_tostring(L, -1));
    lua_pop(L, 1);
}

static int is_field(const char *s)
{
    return !strcmp(s, "role") || !strcmp(s, "shard");
}

/* The table at the top of the stack: { size, role="ffn", shard="tp" } */
static void table_fields(lua_State *L, Front *f, const char *name)
{
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        lua_pop(L, 1);
        int size = lua_isinteger(L, -1) && lua_tointeger(L, -1) == 1;
        if (!size &&
            (lua_type(L, -1) != LUA_TSTRING || !is_field(lua_tostring(L, -1))))
            err(f->loc,
                "axes: '%s': write %s={ size, role=\"ffn\", shard=\"tp\" }",
                name, name);
    }
}

static void set_role(Front *f, Axis *a, AxisRole role)
{
    int one = role == ROLEbatch || role == ROLEseq;
    const Axis *b = one ? g_role(f->g, role) : NULL;

    if (b && b != a)
        err(f->loc,
            "axes: '%s' and '%s' have the role '%s', which one axis has",
            b->name, a->name, axisroles[role]);
    a->role = role;
}

static void declare(lua_State *L, Front *f, const char *name)
{
    check_name(f, name, strlen(name));
    Axis *a = g_axis(f->g, intern(name));
    AxisRole role = ROLEnone;

    if (lua_type(L, -1) == LUA_TTABLE) {
        table_fields(L, f, name);
        role = stated_role(L, f, name);
        stated_cuts(L, f, a);
        lua_rawgeti(L, -1, 1);
        lua_replace(L, -2);
    }
    int64_t n = size_of(L, f, name);
    if (a->n && a->n != n) {
        note(a->loc, "first declared here");
        err(f->loc, "axes: '%s' is %lld here and %lld before", name,
            (long long)n, (long long)a->n);
    }
    a->n = n;
    a->loc = f->loc;
    if (role != ROLEnone)
        set_role(f, a, role);
}

/* axes { batch=1, seq=4096, inner={ 512, role="ffn" }, ... } */
int lua_axes(lua_State *L)
{
    Front *f = enter(L, "axes");
    int n;

    const char **key = sorted_keys(L, 1, &n);
    for (int i = 0; i < n; i++) {
        lua_getfield(L, 1, key[i]);
        declare(L, f, key[i]);
        lua_pop(L, 1);
    }
    return 0;
}

/* ---- order --------------------------------------------------------------- */

/* A tracer of which axes are used first. */
typedef struct Uses {
    Axis **axis; /* vec, in the order of first use */
    Table *seen;
    Arena *arena;
} Uses;

static void use_axis(Uses *u, Axis *a)
{
    void **slot = table_at(u->seen, (uintptr_t)a);

    if (*slot)
        return;
    *slot = a;
    vec_push(u->arena, u->axis, a);
}

static void use_nodes(Uses *u, const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->body)
            use_nodes(u, n->body);
        for (int d = 0; d < n->nd; d++)
            use_axis(u, n->dim[d].a);
        for (int k = 0; k < optab[n->op].nattr; k++) {
            Axes x = attr_axes(n, &optab[n->op].attr[k]);
            for (int q = 0; q < x.n; q++)
                use_axis(u, x.v[q]);
        }
    }
}

/* Axes come in the order in which the model first uses them: axes{} has none,
 * and that of their names must decide nothing. Unused ones come last. */
void axes_order(Front *f)
{
    Graph *g = f->g;
    Uses u = { .seen = table_new(g->arena), .arena = g->arena };

    use_nodes(&u, g);
    for (int i = 0; i < g->naxis; i++)
        use_axis(&u, g->axis[i]);
    for (int i = 0; i < g->naxis; i++)
        g->axis[i] = u.axis[i];
}
