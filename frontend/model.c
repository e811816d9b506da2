/* model.c: run a model file: its limits of memory and instructions, its errors,
 * its sources, and trace(), the way in. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum {
    HOOKSTEP = 10000, /* instructions between looks */
    HOOKMAX = 5000,   /* looks: 50 M instructions */
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

void look(Front *f, const Loc *l)
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
        err(here(L),
            "the model ran %d million instructions; is there an endless loop?",
            HOOKMAX / 100);
}

/* ---- errors -------------------------------------------------------------- */

/* Lua's own messages start with the place of some function on the stack; ours
 * is the first inside a model file. */
static const char *without_place(lua_State *L, const char *msg)
{
    lua_Debug ar;

    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline < 1)
            continue;
        char *place = strf(forever, "%s:%d: ", ar.short_src, ar.currentline);
        if (!strncmp(msg, place, strlen(place)))
            return msg + strlen(place);
    }
    return msg;
}

static int on_error(lua_State *L)
{
    const Loc *l = here(L);

    if (lua_type(L, 1) != LUA_TSTRING)
        err(l, "the model raised an error that is %s", kind_of(L, 1));
    const char *msg = lua_tostring(L, 1);
    if (strstr(msg, "stack overflow"))
        err(l, "stack overflow; does a function call itself without end?");
    err(l, "%s", without_place(L, msg));
}

/* "model.lua:3: unexpected symbol near ..."; of a long path only the end. */
static void syntax_error(Front *f, const char *file, const char *text,
                         size_t len)
{
    const char *msg = lua_tostring(f->L, -1);
    Loc l = { file, 0, NULL };

    if (!strcmp(msg, "C stack overflow")) {
        l.line = too_deep_line(f->g->arena, text, len);
        err(&l, "too many levels of brackets, blocks or operators");
    }

    for (const char *s = msg; (s = strchr(s, ':')); s++) {
        size_t digits = strspn(s + 1, "0123456789");
        if (digits && !strncmp(s + 1 + digits, ": ", 2)) {
            l.line = atoi(s + 1);
            msg = s + digits + 3;
            break;
        }
    }
    err(&l, "%s", msg);
}

/* ---- sources ------------------------------------------------------------- */

/* The text that was given for `file`, or NULL. */
static const char *given_text(const Front *f, const char *file)
{
    for (int i = 0; i < f->ngiven; i++)
        if (!strcmp(f->given[i].file, file))
            return f->given[i].text;
    return NULL;
}

/* All of `in`, NUL-terminated; NULL: it cannot be read or is too long. */
static char *read_all(Arena *a, FILE *in, size_t *len)
{
    char *text = NULL;
    size_t room = 1 << 12, n = 0;

    do {
        char *more = alloc(a, 2 * room + 1);
        memcpy(more, text ? text : "", n);
        text = more;
        room *= 2;
        n += fread(text + n, 1, room - n, in);
    } while (n == room && room < MAXFILE);
    *len = n;
    return ferror(in) || getc(in) != EOF ? NULL : text;
}

static char *read_file(Front *f, const char *file, size_t *len)
{
    const char *given = given_text(f, file);
    FILE *in = f->given ? NULL : fopen(file, "rb");
    char *text = NULL;

    if (given) {
        text = strf(f->g->arena, "%s", given);
        *len = strlen(text);
    }
    if (in) {
        text = read_all(f->g->arena, in, len);
        int why = errno;
        fclose(in);
        errno = why;
    }
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

/* Some editors begin a text with a byte order mark, and scripts with "#!": both
 * become spaces, so that columns and lines stay. */
static void blank_start(char *text, size_t len)
{
    size_t at = 0;

    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        at = 3;
    memset(text, ' ', at);
    if (at < len && text[at] == '#')
        memset(text + at, ' ', strcspn(text + at, "\r\n"));
}

/* Push the function of a source; messages know its lines from now on. */
static void load_chunk(Front *f, const char *file, char *text, size_t len)
{
    size_t n;
    Loc l = { intern(file), 0, NULL };

    file = l.file;
    source_add(file, text, len);
    Source s = { file, strf(forever, "%s", text) };
    vec_push(forever, f->source, s);
    blank_start(text, len);
    if (text[0] == LUA_SIGNATURE[0])
        err(&l, "this is compiled Lua; a model file is Lua text");
    if (strlen(text) != len)
        err(&l, "this is no text: it holds a zero byte");
    if (load_text(f, file, text, len) != LUA_OK)
        syntax_error(f, file, text, len);
    char *guarded_text = guard_conditions(f->g->arena, text, len, &n);
    if (!guarded_text)
        return;
    if (load_text(f, file, guarded_text, n) == LUA_OK)
        lua_remove(f->L, -2);
    else
        lua_pop(f->L, 1);
}

/* require "name": name.lua in the model's folder, once. Dots are folders. */
static const char *module_path(Front *f, const char *name)
{
    char *path;
    size_t n = strlen(f->dir);

    for (const char *p = name; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345"
                    "6789_.",
                    *p) ||
            (*p == '.' && p[1] == '.'))
            err(f->loc,
                "require: '%.60s' is no module name; a module is a file in the "
                "model's folder",
                name);
    path = strf(f->g->arena, "%s%s.lua", f->dir, name);
    for (char *p = path + n; p[4]; p++)
        if (*p == '.')
            *p = '/';
    return path;
}

static const char busy[] = "busy";

int lua_require(lua_State *L)
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

/* ---- running ------------------------------------------------------------- */

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

/* An axis that the command line sizes must exist. */
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
            err(opts_loc(f->cmdline, key),
                "%s=%s: the model declares no axis '%s'", key, value, key + 5);
    }
}

static void start(Front *f, const char *file, const Opts *cmdline, int flags)
{
    Arena *a = arena_new();
    const char *key, *value;

    f->g = g_new(a, model_name(a, file));
    f->cmdline = cmdline;
    f->file = intern(file);
    f->dir = folder(a, file);
    f->scope = f->g->top;
    f->quiet = flags & TRACEquiet;
    f->locs = table_new(forever);
    f->places = table_new(a);
    f->watch = watch();
    f->g->opts = opts_new(a);
    opts_copy(f->g->opts, cmdline);
    for (int i = 0; opts_each(cmdline, i, &key, &value); i++)
        if (!strncmp(key, "axes.", 5))
            err_hint(key + 5,
                     strf(a, "the command line has %s=%s", key, value));
    f->L = lua_newstate(capped, f);
    if (!f->L)
        err(NULL, "not enough memory to start Lua");
    *(Front **)lua_getextraspace(f->L) = f;
    env_open(f);
}

static void execute(Front *f)
{
    size_t len = 0;
    char *text = read_file(f, f->file, &len);
    Loc top = { f->file, 0, NULL };
    int status;

    if (!text)
        err(NULL, "cannot read %s: %s", f->file, strerror(errno));
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
        err(&top, "%s", kind_of(f->L, -1));
    lua_close(f->L);
}

static Trace run_model(Front *f, const char *file, const Opts *cmdline,
                       int flags)
{
    watch_tracing(1);
    start(f, file, cmdline, flags);
    execute(f);
    check_axes(f);
    decl_finish(f);
    hf_finish(f);
    cuts_finish(f);
    axes_order(f);
    compose_finish(f);
    find_roles(f);
    check_whole(f->g);
    if (!f->ngiven)
        opts_files(f->g->opts);
    g_tidy(f->g);
    watch_tracing(0);
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
