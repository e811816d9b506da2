/* options.c: train{}, data{}, fold{}, precision{}, route{}, cluster{}: values
 * of the kinds in keys.def, kept as the text that the command line would have.
 */
#include "../frontend.h"

enum { DEEPEST = 4 }; /* tables in the tables of a blend */

/* What of Lua a kind takes. */
enum {
    NUMBER = 1,
    WHOLE = 2,
    TRUTH = 4,
    STRING = 8,
    LIST = 16,
    WORDS = 32,
    FUNCTION = 64
};

/* clang-format off */
static const struct { const char *kind, *what; int takes; } kinds[] = {
    { "int", "a whole number", WHOLE },
    { "num", "a number", NUMBER },
    { "bool", "true or false", TRUTH | WHOLE },
    { "enum", "a string", STRING | WHOLE },
    { "str", "a string or a list", STRING | LIST },
    { "params", "a string or a list of strings", STRING | LIST },
    { "pair", "two numbers, { 0.9, 0.95 }", STRING | LIST },
    { "counts", "whole numbers, { 16, 16, 8000 }", STRING | LIST },
    { "shares", "numbers, { 969, 30, 1 }", STRING | LIST },
    { "limits", "a string, \"gnorm 10\"", STRING },
    { "words", "a string or a list of strings", STRING | LIST },
    { "price", "a number, or a list of modules", NUMBER | STRING | LIST },
    { "order", "a string", STRING },
    { "curve", "a string, or a function of a number from 0 to 1", STRING | FUNCTION },
    { "machine", "a string", STRING },
    { "speed", "a number, or numbers by sizes, \"1e9:3e13,1e12:6e14\"", NUMBER | STRING },
    { "layout", "a string", STRING },
    { "path", "a string", STRING },
    { "file", "a string", STRING },
    { "blend", "a path, or a list of weights and paths", STRING | WORDS },
};
/* clang-format on */

typedef struct Setting {
    Front *front;
    const char *key; /* "train.lr" */
    int kind;
    Text text;
} Setting;

/* ---- one value ----------------------------------------------------------- */

static _Noreturn void bad_value(lua_State *L, const Setting *setting)
{
    err(setting->front->loc, "%s: must be %s, got %s", setting->key,
        kinds[setting->kind].what, kind_of(L, -1));
}

/* The value on top, one of `takes`. */
static void put_value(lua_State *L, Setting *setting, int takes)
{
    int type = lua_type(L, -1), whole;
    long long v = lua_tointegerx(L, -1, &whole);
    double d = lua_tonumber(L, -1);

    if (type == LUA_TBOOLEAN && takes & TRUTH)
        put(&setting->text, "%d", lua_toboolean(L, -1));
    else if (type == LUA_TSTRING && takes & STRING &&
             strlen(lua_tostring(L, -1)) == lua_rawlen(L, -1))
        put(&setting->text, "%s", lua_tostring(L, -1));
    else if (type == LUA_TNUMBER && takes & WHOLE && whole)
        put(&setting->text, "%lld", v);
    else if (type == LUA_TNUMBER && takes & NUMBER && lua_isinteger(L, -1))
        put(&setting->text, "%lld", v);
    else if (type == LUA_TNUMBER && takes & NUMBER && isfinite(d))
        put_real(&setting->text, d);
    else
        bad_value(L, setting);
}

/* ---- tables -------------------------------------------------------------- */

/* {0.9, 0.95} -> "0.9,0.95" */
static void put_list(lua_State *L, Setting *setting)
{
    int n = (int)lua_rawlen(L, -1);

    if (n == 0)
        err(setting->front->loc, "%s: an empty list", setting->key);
    for (int i = 1; i <= n; i++) {
        if (i > 1)
            put(&setting->text, ",");
        lua_rawgeti(L, -1, i);
        put_value(L, setting, NUMBER | STRING);
        lua_pop(L, 1);
    }
}

/* {wiki="a", code="b"} -> "code=b wiki=a" */
static void put_named(lua_State *L, Setting *setting)
{
    int n, at = lua_gettop(L);
    const char **name = sorted_keys(L, at, &n);

    for (int i = 0; i < n; i++) {
        put(&setting->text, "%s%s=", i ? " " : "", name[i]);
        lua_getfield(L, at, name[i]);
        put_value(L, setting, STRING);
        lua_pop(L, 1);
    }
}

/* Words, all on one level, with spaces between; a path that no weight stands
 * before gets the word `size`. */
static void put_words(lua_State *L, Setting *setting, int depth)
{
    int n = (int)lua_rawlen(L, -1), weighed = 0;

    luaL_checkstack(L, 4, setting->key);
    if (depth > DEEPEST)
        err(setting->front->loc,
            "%s: tables in tables; write { { 0.7, \"a\" }, .. }", setting->key);
    if (!n && !setting->text.len)
        put_named(L, setting);
    if (!n && !setting->text.len)
        err(setting->front->loc, "%s: an empty list", setting->key);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        int type = lua_type(L, -1);
        if (type == LUA_TTABLE) {
            put_words(L, setting, depth + 1);
        } else {
            int bare = type == LUA_TSTRING && !weighed;
            put(&setting->text, "%s%s", setting->text.len ? " " : "",
                bare ? "size " : "");
            put_value(L, setting, NUMBER | STRING);
            weighed = type == LUA_TNUMBER;
        }
        lua_pop(L, 1);
    }
}

/* ---- functions ----------------------------------------------------------- */

enum { PARTS = 1000 };

/* Is y on the line from point i to point j at all points between them? */
static int is_straight(const double *y, int i, int j)
{
    for (int k = i + 1; k < j; k++)
        if (fabs(y[i] + (y[j] - y[i]) * (k - i) / (j - i) - y[k]) > 1e-6)
            return 0;
    return 1;
}

/* function(t) -> "0:1,0.5:0.25,1:0": its values at PARTS equal parts, but for
 * those that lie on a line between others. */
static void put_curve(lua_State *L, Setting *setting)
{
    double *y = alloc(setting->front->g->arena, (PARTS + 1) * sizeof *y);

    for (int i = 0; i <= PARTS; i++) {
        lua_pushvalue(L, -1);
        lua_pushnumber(L, i / (double)PARTS);
        lua_call(L, 1, 1);
        y[i] = lua_tonumber(L, -1);
        if (lua_type(L, -1) != LUA_TNUMBER || !(y[i] >= 0) || !isfinite(y[i]))
            err(setting->front->loc,
                "%s: the function must return a number, at least 0;"
                " of %g it returns %s",
                setting->key, i / (double)PARTS, luaL_tolstring(L, -1, NULL));
        lua_pop(L, 1);
    }
    put(&setting->text, "0:%.9g", y[0]);
    for (int i = 0, j; i < PARTS; i = j) {
        for (j = i + 1; j < PARTS && is_straight(y, i, j + 1);)
            j++;
        put(&setting->text, ",%.9g:%.9g", j / (double)PARTS, y[j]);
    }
}

/* ---- keys ---------------------------------------------------------------- */

static int kind_named(const char *name)
{
    int i = countof(kinds) - 1;

    while (i >= 0 && strcmp(kinds[i].kind, name))
        i--;
    return i;
}

/* Into kinds[]; -1: no such key, which opts_set says. */
static int kind_of_key(const char *table, const char *name)
{
    if (key_own(strf(forever, "%s.%s", table, name)))
        return kind_named("num");
    for (const KeyInfo *k = keytab; k->name; k++) {
        if (strcmp(k->table, table) || strcmp(k->name, name))
            continue;
        int i = kind_named(internn(k->kind, strcspn(k->kind, " ")));
        if (i >= 0)
            return i;
        die("keys.def: %s.%s is of no kind that models can set", table, name);
    }
    return -1;
}

static void read_setting(lua_State *L, Setting *setting)
{
    int table = lua_istable(L, -1), takes = kinds[setting->kind].takes;

    if (table && takes & WORDS)
        put_words(L, setting, 0);
    else if (table && takes & LIST)
        put_list(L, setting);
    else if (lua_isfunction(L, -1) && takes & FUNCTION)
        put_curve(L, setting);
    else
        put_value(L, setting, takes);
}

/* fold{ ep=4 } sets fold.ep, unless the command line did. */
static int options(lua_State *L)
{
    const char *table = lua_tostring(L, lua_upvalueindex(1));
    Front *front = enter(L, table);
    Opts *checked = opts_new(front->g->arena);
    int n;
    const char **name = sorted_keys(L, 1, &n);

    for (int i = 0; i < n; i++) {
        Setting x = { .front = front, .text = { .arena = front->g->arena } };
        x.key = strf(front->g->arena, "%s.%s", table, name[i]);
        x.kind = kind_of_key(table, name[i]);
        lua_getfield(L, 1, name[i]);
        if (cuts_of_fold(L, front, table, name[i])) {
            lua_pop(L, 1);
            continue;
        }
        if (x.kind >= 0)
            read_setting(L, &x);
        lua_pop(L, 1);
        const char *value = x.text.s ? x.text.s : "";
        opts_set(checked, x.key, value, front->loc);
        if (!opts_given(front->cmdline, x.key))
            opts_set(front->g->opts, x.key, value, front->loc);
    }
    return 0;
}

/* The functions into the table on top. */
void options_open(lua_State *L)
{
    static const char *const tables[] = {
        "fold", "train", "data", "precision", "route", "cluster",
    };

    for (int i = 0; i < countof(tables); i++) {
        lua_pushstring(L, tables[i]);
        lua_pushcclosure(L, options, 1);
        lua_setfield(L, -2, tables[i]);
    }
}
