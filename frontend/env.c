/* env.c: the closed environment of a model file. It reads and writes nothing,
 * an unknown name is an error with a suggestion, and so is assigning a global;
 * what depends on chance in Lua (order of tables, random seeds) does not. */
#include <string.h>

#include "frontend.h"

const char environment[] = "pleat.environment";

/* ---- names --------------------------------------------------------------- */

static const char **names_in_scope(lua_State *L, int env, int *n)
{
    Front *f = front(L);
    const char **v = NULL;

    for (lua_pushnil(L); lua_next(L, env); lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING && *lua_tostring(L, -2) != '_')
            vec_push(f->g->arena, v, lua_tostring(L, -2));
    *n = (int)vec_len(v);
    return v;
}

/* Of Lua itself, and not for models. */
static const char *const removed[] = {
    "dofile", "loadfile", "load", "pcall", "xpcall",  "collectgarbage",
    "warn",   "io",       "os",   "debug", "package", "coroutine",
};

static int is_removed(const char *name)
{
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
        if (!strcmp(removed[i], name))
            return 1;
    return 0;
}

static int unknown_name(lua_State *L)
{
    Front *f = enter(L, "name");
    const char *name = lua_tostring(L, 2);
    int n;

    if (name && is_removed(name))
        err(f->loc,
            "'%s' is not there for models: they read and write no "
            "files, and every error ends them",
            name);
    const char **names = names_in_scope(L, 1, &n);
    const char *near = name ? nearest(name, names, (size_t)n) : NULL;

    if (near)
        err(f->loc, "unknown name '%s' (did you mean '%s'?)", name, near);
    err(f->loc, "unknown name '%s'", name ? name : "?");
}

/* A model's own functions may be global, and stand before the language's. */
static int new_name(lua_State *L)
{
    Front *f = enter(L, "name");
    const char *name = lua_tostring(L, 2);

    if (lua_type(L, 3) != LUA_TFUNCTION)
        err(f->loc, "'%s' is not declared; write: local %s = ...",
            name ? name : "?", name ? name : "?");
    lua_settop(L, 3);
    lua_rawset(L, lua_upvalueindex(1));
    return 0;
}

/* ---- functions that differ from Lua's ------------------------------------ */

/* Library functions run without hooks: say where they were called. */
static int watched(lua_State *L)
{
    Front *f = front(L);

    if (f->watch)
        look(f, here(L));
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* pairs(t), in an order that does not change from run to run: the array, then
 * names sorted, then the rest. */
static int rank_of(lua_State *L, int i)
{
    int t = lua_type(L, i);

    return t == LUA_TNUMBER ? 0 : t == LUA_TSTRING ? 1 : 2;
}

static int key_before(lua_State *L)
{
    int a = rank_of(L, 1), b = rank_of(L, 2);

    if (a == b && a < 2)
        lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
    else
        lua_pushboolean(L, a < b);
    return 1;
}

static int next_pair(lua_State *L)
{
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(2)) + 1;

    lua_pushinteger(L, i);
    lua_replace(L, lua_upvalueindex(2));
    if (lua_rawgeti(L, lua_upvalueindex(1), i) == LUA_TNIL)
        return 1;
    lua_pushvalue(L, -1);
    lua_gettable(L, lua_upvalueindex(3));
    return 2;
}

static int sorted_pairs(lua_State *L)
{
    Front *f = enter(L, "pairs");
    lua_Integer n = 0;

    if (!lua_istable(L, 1))
        err(f->loc, "pairs: the argument must be a table, got %s",
            kind_of(L, 1));
    lua_settop(L, 1);
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
        lua_pushvalue(L, -2);
        lua_rawseti(L, 2, ++n);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 2);
    lua_pushcfunction(L, key_before);
    lua_call(L, 2, 0);
    lua_pushinteger(L, 0);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, next_pair, 3);
    return 1;
}

static int print(lua_State *L)
{
    Front *f = front(L);
    int n = lua_gettop(L);

    for (int i = 1; i <= n && !f->quiet; i++)
        fprintf(stderr, "%s%c", luaL_tolstring(L, i, NULL),
                i < n ? '\t' : '\n');
    return 0;
}

/* ---- opening ------------------------------------------------------------- */

/* What of Lua's libraries a model sees. */
/* clang-format off */
static const luaL_Reg libraries[] = {
    { LUA_GNAME, luaopen_base }, { "table", luaopen_table },
    { "string", luaopen_string }, { "math", luaopen_math },
    { "utf8", luaopen_utf8 }, { NULL, NULL },
};
/* clang-format on */

static void watch_library(lua_State *L, const char *name)
{
    lua_getglobal(L, name);
    for (lua_pushnil(L); lua_next(L, -2);) {
        if (lua_iscfunction(L, -1)) {
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

static void drop(lua_State *L, const char *table, const char *field)
{
    lua_getglobal(L, table);
    lua_pushnil(L);
    lua_setfield(L, -2, field);
    lua_pop(L, 1);
}

static void open_libraries(lua_State *L)
{
    for (const luaL_Reg *r = libraries; r->name; r++) {
        luaL_requiref(L, r->name, r->func, 1);
        lua_pop(L, 1);
    }
    lua_getglobal(L, "math");
    lua_getfield(L, -1, "randomseed");
    lua_pushinteger(L, 1);
    lua_call(L, 1, 0);
    lua_pop(L, 1);
    drop(L, "math", "randomseed");
    drop(L, "string", "dump");
    lua_pushglobaltable(L);
    lua_getfield(L, -1, "table");
    lua_getfield(L, -1, "sort");
    lua_pushcclosure(L, sorted_pairs, 1);
    lua_setfield(L, -3, "pairs");
    lua_pop(L, 1);
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        lua_pushnil(L);
        lua_setfield(L, -2, removed[i]);
    }
    lua_pop(L, 1);
    for (const luaL_Reg *r = libraries + 1; r->name; r++)
        watch_library(L, r->name);
}

/* The prelude runs in a table of its own, with what only it may call; whatever
 * a model redefines, its layers stay as they are. */
static void run_prelude(lua_State *L)
{
    if (luaL_loadbufferx(L, prelude_lua, strlen(prelude_lua), "=prelude", "t"))
        die("prelude: %s", lua_tostring(L, -1));
    lua_pushvalue(L, -2);
    lua_setupvalue(L, -2, 1);
    if (lua_pcall(L, 0, 0, 0))
        die("prelude: %s", lua_tostring(L, -1));
}

static int secret(const char *name)
{
    static const char *const names[] = {
        "composite", "weigh", "as", "halves", "need", "role",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return 1;
    return 0;
}

/* All names of the table on top into _G, but those for the prelude. */
static void publish(lua_State *L)
{
    lua_pushglobaltable(L);
    for (lua_pushnil(L); lua_next(L, -3); lua_pop(L, 1))
        if (!secret(lua_tostring(L, -2))) {
            lua_pushvalue(L, -2);
            lua_pushvalue(L, -2);
            lua_settable(L, -5);
        }
    lua_pop(L, 1);
}

static void open_language(Front *f)
{
    /* clang-format off */
    static const luaL_Reg functions[] = {
        { "require", lua_require },
        { "print", print },
        { NULL, NULL },
    };
    /* clang-format on */
    lua_State *L = f->L;

    tensor_open(L);
    lua_newtable(L);
    ops_open(L);
    ops_inside(L);
    decl_open(L);
    compose_open(L);
    luaL_setfuncs(L, functions, 0);
    for (int choice = 0; choice < 2; choice++) {
        lua_pushboolean(L, choice);
        lua_pushcclosure(L, lua_condition, 1);
        lua_setfield(L, -2, choice ? CHOICE : CONDITION);
    }
    lua_getglobal(L, "math");
    lua_setfield(L, -2, "math");
    lua_getglobal(L, "type");
    lua_setfield(L, -2, "type");
    run_prelude(L);
    publish(L);
    lua_pop(L, 1);
}

/* What a model sees as its globals: an empty table, so that every assignment is
 * noticed, over the table of all names, which refuses the others. */
static void close_globals(lua_State *L)
{
    lua_newtable(L);
    lua_pushglobaltable(L);
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "_G");
    lua_createtable(L, 0, 3);
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "__index");
    lua_pushvalue(L, -2);
    lua_pushcclosure(L, new_name, 1);
    lua_setfield(L, -2, "__newindex");
    lua_pushliteral(L, "names");
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -3);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, unknown_name);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, environment);
}

void env_open(Front *f)
{
    open_libraries(f->L);
    open_language(f);
    close_globals(f->L);
}
