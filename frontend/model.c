/* model.c: run a model file in a closed environment: no files, no processes, no
 * byte code, no coroutines or protected calls; bounded memory and instructions.
 * An unknown name is an error with a suggestion; so is assigning a global.   */
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum {
    HOOKSTEP = 10000,             /* instructions between looks               */
    HOOKMAX = 5000,               /* looks: 50 M instructions                 */
    HEAP = 256 << 20,
    MAXFILE = 16 << 20
};

/* ---- limits -------------------------------------------------------------- */

static void *capped(void *ud, void *p, size_t old, size_t new)
{
    Front *f = ud;

    if (!p)
        old = 0;
    if (new > old && f->heap + (new - old) > HEAP) {
        f->full = f->L ? here(f->L) : NULL;
        return NULL;
    }
    if (new == 0) {
        free(p);
        f->heap -= old;
        return NULL;
    }
    void *q = realloc(p, new);
    if (q)
        f->heap += new - old;
    return q;
}

static void look(Front *f, const Loc *l)
{
    if (!f->watch || !l || !l->file)
        return;
    snprintf(f->watch->file, sizeof f->watch->file, "%s", l->file);
    f->watch->line = l->line;
}

static void count(lua_State *L, lua_Debug *ar)
{
    Front *f = front(L);

    (void)ar;
    if (f->watch)
        look(f, here(L));
    if (++f->hooks > HOOKMAX)
        err(here(L), "the model ran %d million instructions; is there an "
            "endless loop?", HOOKMAX / 100);
}

/* Library functions run without hooks: say where they were called.           */
static int watched(lua_State *L)
{
    Front *f = front(L);

    if (f->watch)
        look(f, here(L));
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* ---- errors -------------------------------------------------------------- */

/* Lua's own messages start with the place of the innermost Lua function; ours
 * is the first inside a model file.                                          */
static const char *without_place(const char *msg)
{
    const char *p = strstr(msg, ": ");

    if (!p || p == msg)
        return msg;
    const char *d = p;
    while (d > msg && d[-1] >= '0' && d[-1] <= '9')
        d--;
    return d < p && d > msg && d[-1] == ':' ? p + 2 : msg;
}

static int on_error(lua_State *L)
{
    const Loc *l = here(L);

    if (lua_type(L, 1) != LUA_TSTRING)
        err(l, "the model raised an error that is %s", kind_of(L, 1));
    const char *msg = lua_tostring(L, 1);
    if (strstr(msg, "stack overflow"))
        err(l, "stack overflow; does a function call itself without end?");
    err(l, "%s", without_place(msg));
}

/* "model.lua:3: unexpected symbol near ..."                                  */
static void syntax_error(const char *file, const char *msg)
{
    Loc l = { file, 0, NULL };
    size_t n = strlen(file);

    if (!strncmp(msg, file, n) && msg[n] == ':') {
        l.line = atoi(msg + n + 1);
        msg = strstr(msg + n, ": ");
        msg = msg ? msg + 2 : "syntax error";
    }
    err(&l, "%s", msg);
}

/* ---- environment --------------------------------------------------------- */

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

/* Of Lua itself, and not for models.                                         */
static const char *const removed[] = {
    "dofile", "loadfile", "load", "pcall", "xpcall", "collectgarbage", "warn",
    "io", "os", "debug", "package", "coroutine",
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
        err(f->loc, "'%s' is not there for models: they read and write no "
            "files, and every error ends them", name);
    const char **names = names_in_scope(L, 1, &n);
    const char *near = name ? nearest(name, names, (size_t)n) : NULL;

    if (near)
        err(f->loc, "unknown name '%s' (did you mean '%s'?)", name, near);
    err(f->loc, "unknown name '%s'", name ? name : "?");
}

/* A model's own functions may be global, and stand before the language's.    */
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

/* pairs(t), in an order that does not change from run to run: the array, then
 * names sorted, then the rest.                                               */
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

static const char environment[] = "pleat.environment";

/* ---- sources ------------------------------------------------------------- */

static char *read_file(Front *f, const char *file, size_t *len)
{
    FILE *in = f->given ? NULL : fopen(file, "rb");
    char *text = NULL;

    for (int i = 0; i < f->ngiven; i++)
        if (!strcmp(f->given[i].file, file)) {
            text = strf(f->g->arena, "%s", f->given[i].text);
            *len = strlen(text);
        }
    if (!in)
        return text;
    text = alloc(f->g->arena, MAXFILE + 1);
    *len = fread(text, 1, MAXFILE, in);
    if (ferror(in) || getc(in) != EOF)
        text = NULL;
    fclose(in);
    return text;
}

static int load_text(Front *f, const char *file, const char *text, size_t len)
{
    const char *chunk = strf(f->g->arena, "@%s", file);
    int status = luaL_loadbufferx(f->L, text, len, chunk, "t");

    if (status == LUA_OK) {
        lua_getfield(f->L, LUA_REGISTRYINDEX, environment);
        lua_setupvalue(f->L, -2, 1);
    }
    return status;
}

/* Push the function of a source; messages know its lines from now on.        */
void load_chunk(Front *f, const char *file, const char *text, size_t len)
{
    size_t n;
    Loc l = { intern(file), 0, NULL };

    file = l.file;
    source_add(file, text, len);
    Source s = { file, strf(forever, "%s", text) };
    vec_push(forever, f->source, s);
    if (text[0] == LUA_SIGNATURE[0])
        err(&l, "this is compiled Lua; a model file is Lua text");
    if (strlen(text) != len)
        err(&l, "this is no text: it holds a zero byte");
    if (load_text(f, file, text, len) != LUA_OK)
        syntax_error(file, lua_tostring(f->L, -1));
    char *guarded_text = guard_conditions(f->g->arena, text, len, &n);
    if (!guarded_text)
        return;
    if (load_text(f, file, guarded_text, n) == LUA_OK)
        lua_remove(f->L, -2);
    else
        lua_pop(f->L, 1);
}

/* require "name": name.lua in the model's folder, once. Dots are folders.    */
static const char *module_path(Front *f, const char *name)
{
    char *path;
    size_t n = strlen(f->dir);

    for (const char *p = name; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    "0123456789_.", *p) || (*p == '.' && p[1] == '.'))
            err(f->loc, "require: '%.60s' is no module name; a module is a "
                "file in the model's folder", name);
    path = strf(f->g->arena, "%s%s.lua", f->dir, name);
    for (char *p = path + n; p[4]; p++)
        if (*p == '.')
            *p = '/';
    return path;
}

static const char busy[] = "busy";

static int require(lua_State *L)
{
    Front *f = enter(L, "require");
    size_t len = 0;

    if (lua_type(L, 1) != LUA_TSTRING || !*lua_tostring(L, 1))
        err(f->loc, "require: the name must be a string, got %s",
            kind_of(L, 1));
    const char *path = intern(module_path(f, lua_tostring(L, 1)));
    int kind = lua_getfield(L, LUA_REGISTRYINDEX, path);
    if (kind == LUA_TLIGHTUSERDATA)
        err(f->loc, "require: '%s' requires itself", lua_tostring(L, 1));
    if (kind != LUA_TNIL)
        return 1;
    char *text = read_file(f, path, &len);
    if (!text)
        err(f->loc, "require: cannot read %s", path);
    lua_pushlightuserdata(L, (void *)(uintptr_t)busy);
    lua_setfield(L, LUA_REGISTRYINDEX, path);
    load_chunk(f, path, text, len);
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_pushboolean(L, 1);
    }
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, path);
    return 1;
}

/* ---- opening ------------------------------------------------------------- */

/* What of Lua's libraries a model sees.                                      */
static const luaL_Reg libraries[] = {
    { LUA_GNAME, luaopen_base }, { "table", luaopen_table },
    { "string", luaopen_string }, { "math", luaopen_math },
    { "utf8", luaopen_utf8 }, { NULL, NULL },
};

static void watch_library(lua_State *L, const char *name)
{
    lua_getglobal(L, name);
    for (lua_pushnil(L); lua_next(L, -2); ) {
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
 * a model redefines, its layers stay as they are.                            */
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
        "composite", "weigh", "as", "halves", "need",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return 1;
    return 0;
}

/* All names of the table on top into _G, but those for the prelude.          */
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
    static const luaL_Reg functions[] = {
        { "require", require }, { "print", print }, { NULL, NULL },
    };
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
 * noticed, over the table of all names, which refuses the others.            */
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

static const char *folder(Arena *a, const char *file)
{
    const char *slash = strrchr(file, '/');

    return slash ? strf(a, "%.*s", (int)(slash - file + 1), file) : "";
}

static const char *model_name(Arena *a, const char *file)
{
    const char *slash = strrchr(file, '/'), *s = slash ? slash + 1 : file;
    size_t n = strlen(s);

    if (n > 4 && !strcmp(s + n - 4, ".lua"))
        n -= 4;
    return strf(a, "%.*s", (int)n, s);
}

static void copy_options(Opts *to, const Opts *from)
{
    const char *key, *value;

    for (int i = 0; opts_each(from, i, &key, &value); i++)
        opts_set(to, key, value, opts_loc(from, key));
}

/* An axis that the command line sizes must exist.                            */
static void check_axes(Front *f)
{
    const char *key, *value;

    for (int i = 0; opts_each(f->cmdline, i, &key, &value); i++) {
        const Axis *a = NULL;
        if (strncmp(key, "axes.", 5))
            continue;
        for (int k = 0; k < f->g->naxis; k++)
            if (!strcmp(f->g->axis[k]->name, key + 5))
                a = f->g->axis[k];
        if (!a || !a->loc)
            err(opts_loc(f->cmdline, key), "%s=%s: the model declares no axis "
                "'%s'", key, value, key + 5);
    }
}

static void start(Front *f, const char *file, const Opts *cmdline, int flags)
{
    Arena *a = arena_new();

    f->g = g_new(a, model_name(a, file));
    f->cmdline = cmdline;
    f->file = intern(file);
    f->dir = folder(a, file);
    f->scope = intern("");
    f->quiet = flags & TRACEquiet;
    f->locs = table_new(forever);
    f->places = table_new(a);
    f->watch = watch();
    f->g->opts = opts_new(a);
    copy_options(f->g->opts, cmdline);
    f->L = lua_newstate(capped, f);
    if (!f->L)
        err(NULL, "not enough memory to start Lua");
    *(Front **)lua_getextraspace(f->L) = f;
    open_libraries(f->L);
    open_language(f);
    close_globals(f->L);
}

static void execute(Front *f)
{
    size_t len = 0;
    char *text = read_file(f, f->file, &len);
    Loc top = { f->file, 0, NULL };
    int status;

    if (!text)
        err(NULL, "cannot read %s", f->file);
    look(f, &top);
    lua_pushlightuserdata(f->L, (void *)(uintptr_t)busy);
    lua_setfield(f->L, LUA_REGISTRYINDEX, f->file);
    lua_pushcfunction(f->L, on_error);
    load_chunk(f, f->file, text, len);
    lua_sethook(f->L, count, LUA_MASKCOUNT, HOOKSTEP);
    status = lua_pcall(f->L, 0, 0, 1);
    if (status == LUA_ERRMEM)
        err(f->full, "the model needs more than %d MB of Lua memory",
            HEAP >> 20);
    if (status != LUA_OK)
        err(&top, "%s", lua_tostring(f->L, -1));
    lua_close(f->L);
}

static Trace run_model(Front *f, const char *file, const Opts *cmdline,
                       int flags)
{
    watch_tracing(1);
    start(f, file, cmdline, flags);
    execute(f);
    watch_tracing(0);
    check_axes(f);
    decl_finish(f);
    hf_finish(f);
    compose_finish(f);
    g_tidy(f->g);
    return (Trace){ f->g, f->source, (int)vec_len(f->source) };
}

Trace trace_sources(const Source *source, int n, const Opts *cmdline)
{
    Front f = { .given = source, .ngiven = n };

    if (n == 0)
        err(NULL, "the plan holds no source of its model");
    return run_model(&f, source[0].file, cmdline, TRACEquiet);
}

Trace trace(const char *file, const Opts *cmdline, int flags)
{
    Front f = { .given = NULL };

    return run_model(&f, file, cmdline, flags);
}
