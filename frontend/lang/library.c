/* library.c: Lua's library functions that a model file can use. They do no I/O.
 * Sources of nondeterminism in Lua (order of tables, random seeds, addresses,
 * garbage collection) are the same in every run, or an error. */
#include "../frontend.h"

/* Removed functions. */
const char *const library_removed[] = {
    "dofile",         "loadfile",  "load", "pcall", "xpcall",
    "collectgarbage", "warn",      "io",   "os",    "debug",
    "package",        "coroutine", NULL,
};

/* ---- every library function ---------------------------------------------- */

/* Wraps a library function, which runs without hooks, to record its call's
 * location. Upvalue 1: the function, which must have no upvalues. */
static int watched(lua_State *L)
{
    Front *front = front_of(L);

    if (front->watch)
        look(front, here(L));
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

int has_upvalues(lua_State *L, int i)
{
    if (!lua_getupvalue(L, i, 1))
        return 0;
    lua_pop(L, 1);
    return 1;
}

/* ---- the order of tables ------------------------------------------------- */

/* Rank of a key's type: numbers, strings, false and true, then other types,
 * which have no order; a table with one such key can be walked. */
static int rank_of(lua_State *L, int i)
{
    int t = lua_type(L, i);

    return t == LUA_TNUMBER    ? 0
           : t == LUA_TSTRING  ? 1
           : t == LUA_TBOOLEAN ? 2
                               : 3;
}

static int key_before(lua_State *L)
{
    int a = rank_of(L, 1), b = rank_of(L, 2);

    if (a == b && a < 2)
        lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
    else if (a == b && a == 2)
        lua_pushboolean(L, lua_toboolean(L, 1) < lua_toboolean(L, 2));
    else
        lua_pushboolean(L, a < b);
    return 1;
}

/* Pushes a list of the keys of the table at 1, in order. Upvalue 1: sort. */
static void push_keys(lua_State *L, const char *fn)
{
    lua_Integer n = 0;
    int other = 0;

    if (!lua_istable(L, 1)) {
        Front *front = enter(L, fn);
        err(front->loc, "%s: the argument must be a table, got %s", fn,
            kind_of(L, 1));
    }
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
        if (rank_of(L, -2) == 3 && other++) {
            Front *front = enter(L, fn);
            err(front->loc,
                "%s: keys that are tables, tensors or functions have no order; "
                "keep them in a list and use ipairs",
                fn);
        }
        lua_pushvalue(L, -2);
        lua_rawseti(L, -4, ++n);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, -2);
    lua_pushcfunction(L, key_before);
    lua_call(L, 2, 0);
}

/* Iterator. Upvalues: the keys, the count of visited keys, the table. Removed
 * entries are skipped. */
static int next_pair(lua_State *L)
{
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(2));

    do {
        lua_settop(L, 0);
        if (lua_rawgeti(L, lua_upvalueindex(1), ++i) == LUA_TNIL)
            return 1;
        lua_pushvalue(L, -1);
    } while (lua_rawget(L, lua_upvalueindex(3)) == LUA_TNIL);
    lua_pushinteger(L, i);
    lua_replace(L, lua_upvalueindex(2));
    return 2;
}

static int sorted_pairs(lua_State *L)
{
    lua_settop(L, 1);
    push_keys(L, "pairs");
    lua_pushinteger(L, 0);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, next_pair, 3);
    return 1;
}

/* next(t), next(t, key) in the order of pairs. */
static int sorted_next(lua_State *L)
{
    lua_settop(L, 2);
    push_keys(L, "next");
    int found = lua_isnil(L, 2);
    for (lua_Integer i = 1; lua_rawgeti(L, 3, i) != LUA_TNIL; i++) {
        if (found) {
            lua_pushvalue(L, -1);
            lua_rawget(L, 1);
            return 2;
        }
        found = lua_rawequal(L, -1, 2);
        lua_pop(L, 1);
    }
    if (!found) {
        Front *front = enter(L, "next");
        err(front->loc, "next: the table has no key %s", kind_of(L, 2));
    }
    return 1;
}

/* ---- addresses ----------------------------------------------------------- */

/* Pushes tostring(value at i); a table or function without __tostring is named
 * by its type, not its address. */
static void push_text(lua_State *L, int i)
{
    int t = lua_type(L, i);
    int plain = t != LUA_TTABLE && t != LUA_TFUNCTION && t != LUA_TUSERDATA;

    i = lua_absindex(L, i);
    if (!plain && luaL_getmetafield(L, i, "__tostring") != LUA_TNIL) {
        lua_pop(L, 1);
        plain = 1;
    }
    if (plain)
        luaL_tolstring(L, i, NULL);
    else if (luaL_getmetafield(L, i, "__name") != LUA_TSTRING)
        lua_pushstring(L, luaL_typename(L, i));
}

static int text_of(lua_State *L)
{
    luaL_checkany(L, 1);
    push_text(L, 1);
    return 1;
}

static int print(lua_State *L)
{
    Front *front = front_of(L);
    int n = lua_gettop(L);

    for (int i = 1; i <= n && !front->quiet; i++) {
        size_t len;
        push_text(L, i);
        const char *s = lua_tolstring(L, -1, &len);
        visible_put(STDERR_FILENO, s, len);
        fputc(i < n ? '\t' : '\n', stderr);
        lua_pop(L, 1);
    }
    if (!n && !front->quiet)
        fputc('\n', stderr);
    return 0;
}

/* The end of the conversion that starts with the `%` at s: its letter. */
static const char *conversion(const char *s)
{
    return s + 1 + strspn(s + 1, "-+#0 123456789.");
}

/* string.format(s, ...). Upvalue 1: Lua's. */
static int format(lua_State *L)
{
    const char *s = luaL_checkstring(L, 1);
    int n = lua_gettop(L), arg = 1;

    for (; (s = strchr(s, '%')); s += *s != 0) {
        s = conversion(s);
        arg += *s != '%';
        if (*s == 'p') {
            Front *front = enter(L, "string.format");
            err(front->loc,
                "string.format: %%p prints an address, which differs "
                "from run to run");
        }
        if (*s == 's' && arg <= n) {
            push_text(L, arg);
            lua_replace(L, arg);
        }
    }
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* ---- garbage ------------------------------------------------------------- */

/* setmetatable(t, meta). Upvalue 1: Lua's. */
static int set_metatable(lua_State *L)
{
    static const char *const late[] = { "__gc", "__mode" };

    for (int i = 0; lua_istable(L, 2) && i < 2; i++) {
        lua_pushstring(L, late[i]);
        if (lua_rawget(L, 2) != LUA_TNIL) {
            Front *front = enter(L, "setmetatable");
            err(front->loc,
                "setmetatable: '%s' is not there for models: what it does "
                "depends on when memory is collected",
                late[i]);
        }
        lua_pop(L, 1);
    }
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* ---- opening ------------------------------------------------------------- */

/* clang-format off */
static const luaL_Reg libraries[] = {
    { LUA_GNAME, luaopen_base }, { "table", luaopen_table },
    { "string", luaopen_string }, { "math", luaopen_math },
    { "utf8", luaopen_utf8 }, { NULL, NULL },
};

/* Functions that differ from Lua's; upvalue 1 is the function named `over`. */
static const struct {
    const char *table, *name, *over;
    lua_CFunction f;
} ours[] = {
    { LUA_GNAME, "pairs", "sort", sorted_pairs },
    { LUA_GNAME, "next", "sort", sorted_next },
    { LUA_GNAME, "tostring", NULL, text_of },
    { LUA_GNAME, "print", NULL, print },
    { LUA_GNAME, "setmetatable", "setmetatable", set_metatable },
    { "string", "format", "format", format },
    { "string", "dump", NULL, NULL },
    { "math", "randomseed", NULL, NULL },
};
/* clang-format on */

static void push_library(lua_State *L, const char *name)
{
    if (strcmp(name, LUA_GNAME))
        lua_getglobal(L, name);
    else
        lua_pushglobaltable(L);
}

static void put_ours(lua_State *L, size_t i)
{
    const char *from = ours[i].table;

    push_library(L, ours[i].table);
    if (ours[i].over) {
        push_library(L, strcmp(ours[i].over, "sort") ? from : "table");
        lua_getfield(L, -1, ours[i].over);
        lua_remove(L, -2);
    }
    if (ours[i].f)
        lua_pushcclosure(L, ours[i].f, ours[i].over != NULL);
    else
        lua_pushnil(L);
    lua_setfield(L, -2, ours[i].name);
    lua_pop(L, 1);
}

static void watch_library(lua_State *L, const char *name)
{
    lua_getglobal(L, name);
    for (lua_pushnil(L); lua_next(L, -2);) {
        if (lua_iscfunction(L, -1) && !has_upvalues(L, -1)) {
            lua_pushvalue(L, -2);
            lua_insert(L, -2);
            lua_pushcclosure(L, watched, 1);
            lua_settable(L, -4);
        } else {
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
}

/* Seeds math.random with a constant. */
static void seed_random(lua_State *L)
{
    lua_getglobal(L, "math");
    lua_getfield(L, -1, "randomseed");
    lua_pushinteger(L, 1);
    lua_call(L, 1, 0);
    lua_pop(L, 1);
}

void library_open(lua_State *L)
{
    for (const luaL_Reg *r = libraries; r->name; r++) {
        luaL_requiref(L, r->name, r->func, 1);
        lua_pop(L, 1);
    }
    seed_random(L);
    for (int i = 0; i < countof(ours); i++)
        put_ours(L, i);
    for (const char *const *s = library_removed; *s; s++) {
        lua_pushnil(L);
        lua_setglobal(L, *s);
    }
    for (const luaL_Reg *r = libraries + 1; r->name; r++)
        watch_library(L, r->name);
}
