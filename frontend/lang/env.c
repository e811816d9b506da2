/* env.c: the closed environment of a model file: Lua's names as library.c
 * leaves them, and the language's. An unknown name is an error with a
 * suggestion, and so is assigning a global. */
#include "../frontend.h"

const char environment[] = "pleat.environment";

/* ---- names --------------------------------------------------------------- */

static const char **names_in_scope(lua_State *L, int env, int *n)
{
    Front *front = front_of(L);
    const char **v = NULL;

    for (lua_pushnil(L); lua_next(L, env); lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING && *lua_tostring(L, -2) != '_')
            vec_push(front->g->arena, v, lua_tostring(L, -2));
    *n = (int)vec_len(v);
    qsort(v, vec_len(v), sizeof *v,
          by_text); /* of equally near ones the first */
    return v;
}

static int is_removed(const char *name)
{
    size_t i = 0;

    while (library_removed[i] && strcmp(library_removed[i], name))
        i++;
    return library_removed[i] != NULL;
}

/* What takes the place of a name of other languages, by the prelude's table
 * `absent`, where a key is several names; null: it has none. */
static const char *instead_of(lua_State *L, const char *name)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "absent");
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
        for (const char *s = lua_tostring(L, -2), *w; (w = next_word(&s, " "));)
            if (!strcmp(w, name))
                return lua_tostring(L, -1);
    return NULL;
}

static int unknown_name(lua_State *L)
{
    Front *front = enter(L, "name");
    const char *name = lua_tostring(L, 2);
    int n;

    if (name && is_removed(name))
        err(front->loc,
            "'%s' is not there for models: they read and write no files, and "
            "every error ends them",
            name);
    const char *instead = name ? instead_of(L, name) : NULL;
    if (instead)
        err(front->loc, "no function '%s'; write %s", name, instead);
    const char **names = names_in_scope(L, 1, &n);
    err(front->loc, "unknown name '%s'%s", name ? name : "?",
        name ? did_you_mean(name, names, (size_t)n) : "");
}

/* A model's own functions may be global, and stand before the language's. */
static int new_name(lua_State *L)
{
    Front *front = enter(L, "name");
    const char *name = lua_tostring(L, 2);

    if (lua_type(L, 3) != LUA_TFUNCTION)
        err(front->loc, "'%s' is not declared; write: local %s = ...",
            name ? name : "?", name ? name : "?");
    lua_settop(L, 3);
    lua_rawset(L, lua_upvalueindex(1));
    return 0;
}

/* ---- opening ------------------------------------------------------------- */

static int keep(lua_State *L, const void *bytes, size_t n, void *to)
{
    (void)L;
    putn(to, bytes, n);
    return 0;
}

/* The prelude's function comes on top. Its text is parsed once, however many
 * models a process traces. */
static void load_prelude(lua_State *L)
{
    static Text code;
    int known = code.arena != NULL;

    if (known ? luaL_loadbufferx(L, code.s, code.len, "=prelude", "b")
              : luaL_loadbufferx(L, prelude_lua, strlen(prelude_lua),
                                 "=prelude", "t"))
        die("prelude: %s", lua_tostring(L, -1));
    if (known)
        return;
    code.arena = forever;
    lua_dump(L, keep, &code, 0);
}

/* The prelude runs in a table of its own, with what only it may call; whatever
 * a model redefines, its layers stay as they are. */
static void run_prelude(lua_State *L)
{
    load_prelude(L);
    lua_pushvalue(L, -2);
    lua_setupvalue(L, -2, 1);
    if (lua_pcall(L, 0, 0, 0))
        die("prelude: %s", lua_tostring(L, -1));
}

static int secret(const char *name)
{
    static const char *const names[] = {
        "composite", "weigh",    "as",    "halves", "need",
        "own_axis",  "role",     "math",  "type",   "error",
        "stored",    "unpack",   "drawn", "absent", "given_option",
        "axes_of",   "adapters",
    };

    return word_index(name, names, countof(names)) >= 0;
}

/* All names of the table on top into _G, but those for the prelude; from there
 * on their calls are checked. */
static void publish(lua_State *L)
{
    lua_pushglobaltable(L);
    for (lua_pushnil(L); lua_next(L, -3); lua_pop(L, 1))
        if (!secret(lua_tostring(L, -2))) {
            lua_pushvalue(L, -2);
            lua_pushvalue(L, -2);
            takes_wrap(L, lua_tostring(L, -2));
            lua_settable(L, -5);
        }
    lua_pop(L, 1);
}

/* What the prelude has of Lua, in the table on top: a copy, since models can
 * change what is in math. */
static void borrow(lua_State *L)
{
    static const char *const names[] = { "type", "error", "tonumber",
                                         "tostring" };

    for (int i = 0; i < countof(names); i++) {
        lua_getglobal(L, names[i]);
        lua_setfield(L, -2, names[i]);
    }
    lua_newtable(L);
    lua_getglobal(L, "math");
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        lua_pushvalue(L, -2);
        lua_pushvalue(L, -2);
        lua_settable(L, -6);
    }
    lua_pop(L, 1);
    lua_setfield(L, -2, "math");
    lua_getglobal(L, "table");
    lua_getfield(L, -1, "unpack");
    lua_setfield(L, -3, "unpack");
    lua_pop(L, 1);
}

static void open_language(Front *front)
{
    /* clang-format off */
    static const luaL_Reg functions[] = {
        { "require", lua_require },
        { "optimizer", lua_optimizer },
        { "adapters", lua_adapters },
        { NULL, NULL },
    };
    /* clang-format on */
    lua_State *L = front->L;

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
    borrow(L);
    run_prelude(L);
    lua_getfield(L, -1, "absent");
    lua_setfield(L, LUA_REGISTRYINDEX, "absent");
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

void env_open(Front *front)
{
    library_open(front->L);
    open_language(front);
    close_globals(front->L);
}
