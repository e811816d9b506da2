/* model.c: run a model file: its limits of memory and instructions, its errors,
 * its sources, and trace(), the way in. */
#include "../frontend.h"

enum {
    HOOKSTEP = 10000, /* instructions between looks */
    HOOKMAX = 5000,   /* looks: 50 M instructions */
    HEAP = 256 << 20,
    MAXFILE = 16 << 20
};

/* ---- limits -------------------------------------------------------------- */

static void *capped(void *ud, void *p, size_t old, size_t new)
{
    Front *front = ud;

    if (!p)
        old = 0;
    if (new > old && front->heap + (new - old) > HEAP) {
        front->full = front->L ? here(front->L) : NULL;
        return NULL;
    }
    if (new == 0) {
        free(p);
        front->heap -= old;
        return NULL;
    }
    void *q = realloc(p, new);
    if (q)
        front->heap += new - old;
    return q;
}

void look(Front *front, const Loc *loc)
{
    if (!front->watch || !loc || !loc->file)
        return;
    snprintf(front->watch->file, sizeof front->watch->file, "%s", loc->file);
    front->watch->line = loc->line;
}

static void count(lua_State *L, lua_Debug *ar)
{
    Front *front = front_of(L);

    (void)ar;
    if (front->watch)
        look(front, here(L));
    if (++front->hooks > HOOKMAX)
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
    const Loc *loc = here(L);

    if (lua_type(L, 1) != LUA_TSTRING)
        err(loc, "the model raised an error that is %s", kind_of(L, 1));
    const char *msg = lua_tostring(L, 1);
    if (strstr(msg, "stack overflow"))
        err(loc, "stack overflow; does a function call itself without end?");
    err(loc, "%s", without_place(L, msg));
}

/* "model.lua:3: unexpected symbol near ..."; of a long path only the end. */
static void syntax_error(Front *front, const char *file, const char *text,
                         size_t len)
{
    const char *msg = lua_tostring(front->L, -1);
    Loc l = { file, 0, NULL };

    if (!strcmp(msg, "C stack overflow")) {
        l.line = too_deep_line(front->g->arena, text, len);
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
static const char *given_text(const Front *front, const char *file)
{
    for (int i = 0; i < front->ngiven; i++)
        if (!strcmp(front->given[i].file, file))
            return front->given[i].text;
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

static char *read_file(Front *front, const char *file, size_t *len)
{
    const char *given = given_text(front, file);
    FILE *in = front->given ? NULL : file_stream(file);
    char *text = NULL;

    if (given) {
        text = strf(front->g->arena, "%s", given);
        *len = strlen(text);
    }
    if (in) {
        text = read_all(front->g->arena, in, len);
        int why = errno;
        fclose(in);
        errno = why;
    }
    return text;
}

static int load_text(Front *front, const char *file, const char *text,
                     size_t len)
{
    const char *chunk = strf(front->g->arena, "@%s", file);
    int status = luaL_loadbufferx(front->L, text, len, chunk, "t");

    if (status == LUA_OK) {
        lua_getfield(front->L, LUA_REGISTRYINDEX, environment);
        lua_setupvalue(front->L, -2, 1);
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
static void load_chunk(Front *front, const char *file, char *text, size_t len)
{
    size_t n;
    Loc l = { intern(file), 0, NULL };

    file = l.file;
    source_add(file, text, len);
    Source s = { file, strf(forever, "%s", text) };
    vec_push(forever, front->source, s);
    blank_start(text, len);
    if (text[0] == LUA_SIGNATURE[0])
        err(&l, "this is compiled Lua; a model file is Lua text");
    if (strlen(text) != len)
        err(&l, "this is no text: it holds a zero byte");
    if (load_text(front, file, text, len) != LUA_OK)
        syntax_error(front, file, text, len);
    char *guarded_text = guard_conditions(front->g->arena, text, len, &n);
    if (!guarded_text)
        return;
    if (load_text(front, file, guarded_text, n) == LUA_OK)
        lua_remove(front->L, -2);
    else
        lua_pop(front->L, 1);
}

/* require "name": name.lua in the model's folder, once. Dots are folders. */
static const char *module_path(Front *front, const char *name)
{
    char *path;
    size_t n = strlen(front->dir);

    for (const char *p = name; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345"
                    "6789_.",
                    *p) ||
            (*p == '.' && p[1] == '.'))
            err(front->loc,
                "require: '%.60s' is no module name; a module is a file in the "
                "model's folder",
                name);
    path = strf(front->g->arena, "%s%s.lua", front->dir, name);
    for (char *p = path + n; p[4]; p++)
        if (*p == '.')
            *p = '/';
    return path;
}

/* A link may lead to another file of the model's folder, not out of it. */
static void need_inside(const Front *front, const char *name, const char *path)
{
    char *file = realpath(path, NULL);
    char *dir = realpath(*front->dir ? front->dir : ".", NULL);
    size_t n = dir ? strlen(dir) : 0;
    int out = file && dir && n > 1 && (strncmp(file, dir, n) || file[n] != '/');

    free(file);
    free(dir);
    if (out)
        err(front->loc, "require: '%s': %s is a link out of the model's folder",
            name, path);
}

static const char busy[] = "busy";

int lua_require(lua_State *L)
{
    Front *front = enter(L, "require");
    size_t len = 0;

    if (lua_type(L, 1) != LUA_TSTRING || !*lua_tostring(L, 1))
        err(front->loc, "require: the name must be a string, got %s",
            kind_of(L, 1));
    const char *path = intern(module_path(front, lua_tostring(L, 1)));
    int kind = lua_getfield(L, LUA_REGISTRYINDEX, path);
    if (kind == LUA_TLIGHTUSERDATA)
        err(front->loc, "require: '%s' requires itself", lua_tostring(L, 1));
    if (kind != LUA_TNIL)
        return 1;
    if (!front->given)
        need_inside(front, lua_tostring(L, 1), path);
    char *text = read_file(front, path, &len);
    if (!text)
        err(front->loc, "require: cannot read %s: %s", path, file_why());
    lua_pushlightuserdata(L, (void *)(uintptr_t)busy);
    lua_setfield(L, LUA_REGISTRYINDEX, path);
    load_chunk(front, path, text, len);
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
    return strf(a, "%.*s", (int)(file_name(file) - file), file);
}

static const char *model_name(Arena *a, const char *file)
{
    const char *s = file_name(file);

    return strf(a, "%.*s", file_stem(s), s);
}

/* An option of the command line that the model asks for by no option(). */
static void check_option(Front *front, const char *key, const char *value)
{
    if (!strncmp(key, "option.", 7) &&
        !*place_of(front, "option", intern(key + 7)))
        err(opts_loc(front->cmdline, key),
            "%s=%s: the model has no option '%s'; write option(\"%s\", %s)",
            key, value, key + 7, key + 7, value);
}

/* An axis that the command line sizes must exist. */
static void check_axes(Front *front)
{
    const char *key, *value;

    for (int i = 0; opts_each(front->cmdline, i, &key, &value); i++) {
        const Axis *a = NULL;
        check_option(front, key, value);
        if (strncmp(key, "axes.", 5))
            continue;
        for (int k = 0; k < front->g->naxis; k++)
            if (!strcmp(front->g->axis[k]->name, key + 5))
                a = front->g->axis[k];
        if (!a || !a->loc)
            err(opts_loc(front->cmdline, key),
                "%s=%s: the model declares no axis '%s'%s", key, value, key + 5,
                axis_meant(front, key + 5));
    }
}

static void start(Front *front, const char *file, const Opts *cmdline,
                  int flags)
{
    Arena *a = arena_new();
    const char *key, *value;

    front->g = g_new(a, model_name(a, file));
    front->cmdline = cmdline;
    front->file = intern(file);
    front->dir = folder(a, file);
    front->scope = front->g->top;
    front->quiet = flags & TRACEquiet;
    front->locs = table_new(forever);
    front->places = table_new(a);
    front->onehot = table_new(a);
    front->watch = watch();
    front->g->opts = opts_new(a);
    opts_copy(front->g->opts, cmdline);
    for (int i = 0; opts_each(cmdline, i, &key, &value); i++)
        if (!strncmp(key, "axes.", 5))
            err_hint(key + 5,
                     strf(a, "the command line has %s=%s", key, value));
    front->L = lua_newstate(capped, front);
    if (!front->L)
        err(NULL, "not enough memory to start Lua");
    *(Front **)lua_getextraspace(front->L) = front;
    env_open(front);
}

/* Lua calls the function on top; its errors are the model's. */
static void run_protected(Front *front)
{
    Loc top = { front->file, 0, NULL };

    lua_pushcfunction(front->L, on_error);
    lua_insert(front->L, -2);
    int status = lua_pcall(front->L, 0, 0, -2);
    if (status == LUA_ERRMEM)
        err(front->full, "the model needs more than %d MB of Lua memory",
            HEAP >> 20);
    if (status != LUA_OK)
        err(&top, "%s", kind_of(front->L, -1));
    lua_pop(front->L, 1);
}

static void execute(Front *front)
{
    size_t len = 0;
    char *text = read_file(front, front->file, &len);
    Loc top = { front->file, 0, NULL };

    if (!text)
        err(NULL, "cannot read %s: %s", front->file, file_why());
    look(front, &top);
    lua_pushlightuserdata(front->L, (void *)(uintptr_t)busy);
    lua_setfield(front->L, LUA_REGISTRYINDEX, front->file);
    load_chunk(front, front->file, text, len);
    lua_sethook(front->L, count, LUA_MASKCOUNT, HOOKSTEP);
    run_protected(front);
}

/* ---- weights that two sets have in common -------------------------------- */

/* The parameter that equals n, which is below the scope of a key from.SCOPE:
 * frozen and filled by the same folder; null: none does. */
static Node *equal_of(const Graph *g, const Table *named, const Node *n)
{
    const char *rest, *from = opts_str(g->opts, "from");
    const char *scope = opts_source(g->opts, n->at.param.path, &rest);

    if (!scope || !from || !is_frozen(g, rest) ||
        strcmp(from, opts_str(g->opts, strf(g->arena, "from.%s", scope))) != 0)
        return NULL;
    Node *other = table_get(named, KEYP(intern(rest)));
    return other && same_dims(n, other) ? other : NULL;
}

/* Equal parameters become one. The graph stays as it is if there are none. */
static void join_equal(Graph *g)
{
    Table *named = table_new(g->arena);
    Node **node = NULL;
    size_t left = 0;
    int any = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        if (g->node[i]->op != Oparam)
            continue;
        vec_push(g->arena, node, g->node[i]);
        *table_at(named, KEYP(intern(g->node[i]->at.param.path))) = g->node[i];
    }
    for (size_t i = 0; i < vec_len(node) && !any; i++)
        any = equal_of(g, named, node[i]) != NULL;
    if (!any)
        return;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++) {
            Node *x =
                n->in[k]->op == Oparam ? equal_of(g, named, n->in[k]) : NULL;
            n->in[k] = x ? x : n->in[k];
        }
        if (n->op != Oparam)
            vec_push(g->arena, node, n);
    }
    for (size_t i = 0; i < vec_len(g->param); i++) {
        Node *n = table_get(named, KEYP(g->param[i]->path));
        if (!n || !equal_of(g, named, n))
            g->param[left++] = g->param[i];
    }
    vec_cut(g->param, left);
    g->node = node;
    g->bypath = NULL;
    g->nbypath = 0;
}

static Trace run_model(Front *front, const char *file, const Opts *cmdline,
                       int flags)
{
    watch_tracing(1);
    start(front, file, cmdline, flags);
    execute(front);
    check_axes(front);
    opts_copy(front->g->opts, cmdline); /* its patterns are the last */
    decl_finish(front);
    if (opts_str(front->g->opts, "from"))
        join_equal(front->g);
    hf_finish(front);
    cuts_finish(front);
    axes_order(front);
    compose_finish(front);
    find_roles(front);
    lua_pushcfunction(front->L, optimizers_finish);
    run_protected(front);
    lua_close(front->L);
    bound_ids(front);
    check_whole(front->g);
    if (!front->ngiven)
        opts_files(front->g->opts);
    g_tidy(front->g);
    watch_tracing(0);
    return (Trace){ front->g, front->source, (int)vec_len(front->source) };
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
