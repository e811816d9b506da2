/* takes.c: a call of the language against its row of takes.def, before the
 * function runs: how many arguments, of which kinds, and in tables of options
 * only fields that the function knows. What needs more than one argument to be
 * judged (has the tensor that axis?) the function checks itself. */
#include "../frontend.h"

typedef struct TakesRow {
    const char *name, *items;
} TakesRow;

/* clang-format off */
static const TakesRow calls[] = {
#define TAKES(name, items) {#name, items},
#define FIELDS(name, items)
#include "takes.def"
    {0}
};

static const TakesRow fields[] = {
#define TAKES(name, items)
#define FIELDS(name, items) {#name, items},
#include "takes.def"
    {0}
};
/* clang-format on */

/* An argument or field of a row. */
typedef struct TakesItem {
    const char *name, *kind; /* interned */
    const char *bound;       /* "", ">0", ">=1" */
    int optional;
} TakesItem;

enum { MAXITEM = 12 };

/* ---- reading a row ------------------------------------------------------- */

static int read_items(const char *s, TakesItem *out, int *open)
{
    int n = 0;

    *open = 0;
    while (*(s += strspn(s, ", "))) {
        TakesItem x = { .bound = "" };
        if (!strncmp(s, "...", 3)) {
            *open = 1;
            break;
        }
        for (int word = 0; *s && *s != ','; word++) {
            size_t len = strcspn(s, " ,");
            const char *w = internn(s, len);
            if (word == 0)
                x.name = w;
            else if (word == 1)
                x.kind = w;
            else if (*w == '?')
                x.optional = 1;
            else
                x.bound = w;
            s += len;
            s += strspn(s, " ");
        }
        if (n == MAXITEM || !x.kind)
            die("takes.def: a row is wrong: %s", s);
        out[n++] = x;
    }
    return n;
}

static const TakesRow *fields_of(const char *kind)
{
    for (const TakesRow *r = fields; r->name; r++)
        if (!strcmp(r->name, kind))
            return r;
    return NULL;
}

/* ---- kinds --------------------------------------------------------------- */

/* A string without zero bytes, which end C's. */
static int is_text(lua_State *L, int i)
{
    return lua_type(L, i) == LUA_TSTRING &&
           strlen(lua_tostring(L, i)) == lua_rawlen(L, i);
}

static int is_tensor(lua_State *L, int i)
{
    return value_at(L, i) != NULL;
}

static int is_real(lua_State *L, int i)
{
    return lua_type(L, i) == LUA_TNUMBER && !isnan(lua_tonumber(L, i));
}

static int is_number(lua_State *L, int i)
{
    return lua_type(L, i) == LUA_TNUMBER && isfinite(lua_tonumber(L, i));
}

static int is_integer(lua_State *L, int i)
{
    int whole;

    lua_tointegerx(L, i, &whole);
    return lua_type(L, i) == LUA_TNUMBER && whole;
}

static int is_flag(lua_State *L, int i)
{
    return lua_isboolean(L, i);
}

static int is_function(lua_State *L, int i)
{
    return lua_isfunction(L, i);
}

static int is_table(lua_State *L, int i)
{
    return lua_istable(L, i);
}

static int is_initial(lua_State *L, int i)
{
    return init_at(L, i) || is_number(L, i);
}

static int is_plain(lua_State *L, int i)
{
    return is_number(L, i) || is_text(L, i) || is_flag(L, i);
}

/* clang-format off */
static const struct {
    const char *name, *what;
    int (*is)(lua_State *L, int i);
    const char *usage; /* null: the argument's name */
} kinds[] = {
    { "tensor", "a tensor", is_tensor, NULL },
    { "axis", "the name of an axis", is_text, "\"%s\"" },
    { "axes", "a string of axis names", is_text, "\"%s\"" },
    { "string", "a string", is_text, "\"%s\"" },
    { "function", "a function", is_function, NULL },
    { "flag", "true or false", is_flag, NULL },
    { "integer", "a whole number", is_integer, NULL },
    { "number", "a number", is_number, NULL },
    { "real", "a number", is_real, NULL },
    { "initial", "normal(std), uniform(a), constant(v), zeros, ones or a number", is_initial, NULL },
    { "plain", "a number, a string, true or false", is_plain, NULL },
    { "sizes", "a table", is_table, "{ name=size, ... }" },
    { "names", "a table", is_table, "{ old=\"new\", ... }" },
    { "keys", "a table", is_table, "{ key=value, ... }" },
    { "unit", "a table", is_table, "{ name, i, kind=\"mtp\" }" },
    { "tensors", "a table", is_table, "{ [\"path\"]={ \"tensor\", \"axes\" }, ... }" },
    { NULL, "a table of options", is_table, NULL }, /* a FIELDS row's name */
};
/* clang-format on */

static int kind_named(const char *name)
{
    int k = 0;

    while (k < countof(kinds) - 1 && strcmp(kinds[k].name, name))
        k++;
    return k;
}

static int in_bound(lua_State *L, int i, const char *bound)
{
    int equal = *bound && bound[1] == '=';
    double v = lua_tonumber(L, i);
    double least = *bound ? strtod(bound + 1 + equal, NULL) : 0;

    return !*bound || v > least || (equal && v == least);
}

static const char *expected(Front *front, const TakesItem *item)
{
    const char *what = kinds[kind_named(item->kind)].what;

    if (!*item->bound)
        return what;
    if (item->bound[1] == '=')
        return strf(front->g->arena, "%s, at least %s", what, item->bound + 2);
    return strf(front->g->arena, "%s above %s", what, item->bound + 1);
}

static int fits(lua_State *L, int i, const TakesItem *item)
{
    if (lua_isnoneornil(L, i))
        return item->optional;
    return kinds[kind_named(item->kind)].is(L, i) &&
           in_bound(L, i, item->bound);
}

/* ---- messages ------------------------------------------------------------ */

static void put_item(Text *out, const TakesItem *item)
{
    const char *form = kinds[kind_named(item->kind)].usage;
    const char *hole = form ? strstr(form, "%s") : NULL;

    if (!form)
        put(out, "%s", item->name);
    else if (!hole)
        put(out, "%s", form);
    else
        put(out, "%.*s%s%s", (int)(hole - form), form, item->name, hole + 2);
}

/* rope(x, "axis", "pos", theta [, options]), axes { name=size, ... } */
static const char *usage(Front *front, const TakesRow *row)
{
    Text out = { .arena = front->g->arena };
    TakesItem x[MAXITEM];
    int open, n = read_items(row->items, x, &open), left = 0;
    int table = n == 1 && kinds[kind_named(x[0].kind)].is == is_table;

    put(&out, "%s%s", row->name, table ? " " : "(");
    for (int i = 0; i < n; i++) {
        left += x[i].optional;
        put(&out, "%s%s", x[i].optional ? i ? " [" : "[" : "", i ? ", " : "");
        put_item(&out, &x[i]);
    }
    put(&out, "%s", open ? ", ..." : "");
    while (left-- > 0)
        put(&out, "]");
    put(&out, "%s", table ? "" : ")");
    return out.s;
}

/* row: null for the field of a table. */
static _Noreturn void bad_item(lua_State *L, int i, const char *where,
                               const TakesItem *item, const TakesRow *row)
{
    Front *front = front_of(L);
    int infinite = lua_type(L, i) == LUA_TNUMBER && !is_number(L, i);

    if (lua_type(L, i) == LUA_TSTRING && !is_text(L, i))
        err(front->loc, "%s: '%s' holds a zero byte", where, item->name);
    if (lua_isnoneornil(L, i))
        err(front->loc, "%s: '%s' is missing%s%s", where, item->name,
            row ? "; write " : "", row ? usage(front, row) : "");
    err(front->loc, "%s: '%s' must be %s%s, got %s%s%s", where, item->name,
        expected(front, item), infinite ? ", finite" : "", kind_of(L, i),
        row ? "; write " : "", row ? usage(front, row) : "");
}

/* ---- tables of options --------------------------------------------------- */

static void check_fields(lua_State *L, int at, const char *where,
                         const TakesRow *row);

static void unknown_field(Front *front, const char *where, const char *name,
                          const TakesItem *item, int n)
{
    Text out = { .arena = front->g->arena };
    const char *names[MAXITEM];

    for (int i = 0; i < n; i++) {
        names[i] = item[i].name;
        put(&out, "%s%s", i ? ", " : "", item[i].name);
    }
    const char *near = did_you_mean(name, names, (size_t)n);
    err(front->loc, "%s: unknown option '%s'%s%s", where, name,
        *near ? near : "; it knows ", *near ? "" : out.s);
}

static void check_field(lua_State *L, int at, const char *where,
                        const TakesItem *item)
{
    Front *front = front_of(L);
    const TakesRow *inner = fields_of(item->kind);

    lua_getfield(L, at, item->name);
    if (!fits(L, -1, item))
        bad_item(L, -1, where, item, NULL);
    if (inner && !lua_isnil(L, -1))
        check_fields(L, lua_gettop(L),
                     strf(front->g->arena, "%s: %s", where, item->name), inner);
    lua_pop(L, 1);
}

static void check_fields(lua_State *L, int at, const char *where,
                         const TakesRow *row)
{
    Front *front = front_of(L);
    TakesItem x[MAXITEM];
    int open, n = read_items(row->items, x, &open), given;
    const char **key = sorted_keys(L, at, &given);

    for (int i = 0; i < given; i++) {
        int k = 0;
        while (k < n && strcmp(x[k].name, key[i]))
            k++;
        if (k == n)
            unknown_field(front, where, key[i], x, n);
    }
    luaL_checkstack(L, 4, where);
    for (int k = 0; k < n; k++)
        check_field(L, at, where, &x[k]);
}

/* ---- calls --------------------------------------------------------------- */

/* The first argument that does not fit, from 1; 0: all do. One too many is
 * the one behind the last. */
static int misfit(lua_State *L, const TakesRow *row)
{
    TakesItem x[MAXITEM];
    int open, n = read_items(row->items, x, &open);

    for (int i = 0; i < n; i++)
        if (!fits(L, i + 1, &x[i]))
            return i + 1;
    if (!open)
        drop_spare(L, n);
    return !open && lua_gettop(L) > n ? n + 1 : 0;
}

static _Noreturn void refuse(lua_State *L, const TakesRow *row, int at)
{
    Front *front = enter(L, row->name);
    TakesItem x[MAXITEM];
    int open, n = read_items(row->items, x, &open);

    if (at > n)
        err(front->loc, "%s: %d arguments, it takes %d; write %s", row->name,
            lua_gettop(L), n, usage(front, row));
    bad_item(L, at, row->name, &x[at - 1], row);
}

/* Of several ways to write a call, the one that fits furthest. */
static void check_call(lua_State *L, const TakesRow *row)
{
    const TakesRow *best = row;
    int most = -1, at;
    TakesItem x[MAXITEM];
    int open;

    for (const TakesRow *way = row; way->name && !strcmp(way->name, row->name);
         way++) {
        at = misfit(L, way);
        if (at > most || !at) {
            best = way;
            most = at;
        }
        if (!at)
            break;
    }
    if (most)
        refuse(L, best, most);
    int n = read_items(best->items, x, &open);
    for (int i = 0; i < n; i++) {
        const TakesRow *inner = fields_of(x[i].kind);
        if (!inner || lua_isnoneornil(L, i + 1))
            continue;
        enter(L, row->name);
        check_fields(L, i + 1, row->name, inner);
    }
}

/* Upvalues: the function and its first row. Functions of C without upvalues are
 * called in place, so that nested scopes need no more of C's stack. */
static int checked(lua_State *L)
{
    lua_CFunction c = lua_tocfunction(L, lua_upvalueindex(1));

    check_call(L, lua_touserdata(L, lua_upvalueindex(2)));
    if (c && !has_upvalues(L, lua_upvalueindex(1)))
        return c(L);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

int takes_wrap(lua_State *L, const char *name)
{
    const TakesRow *row = calls;

    while (row->name && strcmp(row->name, name))
        row++;
    if (!row->name)
        return 0;
    lua_pushlightuserdata(L, (void *)(uintptr_t)row);
    lua_pushcclosure(L, checked, 2);
    return 1;
}
