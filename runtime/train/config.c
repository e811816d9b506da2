/* config.c: config.lua of a run's folder: all settings, as Lua that returns a
 * table. Paths are relative to the folder, so it can be read from anywhere.
 * Keys that were not given are under `defaults`: a later program with other
 * defaults must not change the run.
 *
 *     file  = "return" table            table = "{" { item [ "," ] } "}"
 *     item  = key "=" value             key   = name | "[" string "]"
 *     value = string | number | "true" | "false" | table
 *
 * Format 1 had a line ` ["key"] = "value",` for each given key, with the value
 * unescaped and paths relative to the folder in which the run was started. */
#include "train.h"

/* ---- paths --------------------------------------------------------------- */

/* Returns the "tail:0.1" at the end of a path, a part of other data; null:
 * there is none. */
static const char *tail_of(const char *path)
{
    const char *s = file_name(path);

    return strncmp(s, "tail:", 5) ? NULL : s;
}

/* Removes "." and ".." by name; links were followed before. */
static char *tidied(Arena *a, const char *path)
{
    char *out = strf(a, "%s/", path), *to = out;

    for (const char *s = path; *s;) {
        size_t n = strcspn(s, "/");
        if (n == 2 && !strncmp(s, "..", 2)) {
            while (to > out && *--to != '/')
                ;
        } else if (n && !(n == 1 && *s == '.')) {
            *to++ = '/';
            memmove(to, s, n);
            to += n;
        }
        s += n + (s[n] == '/');
    }
    *to = 0;
    return to == out ? strf(a, "/") : out;
}

const char *path_absolute(Arena *a, const char *path, void *ctx)
{
    const char *tail = tail_of(path);
    char *cwd;

    (void)ctx;
    if (tail || !*path)
        return tail ? tail : path;
    char *real =
        realpath(strf(a, "%.*s.", (int)(file_name(path) - path), path), NULL);
    if (real) {
        path = strf(a, "%s/%s", real, file_name(path));
    } else if (*path != '/' && (cwd = getcwd(NULL, 0))) {
        path = strf(a, "%s/%s", cwd, path);
        free(cwd);
    }
    free(real);
    return tidied(a, path);
}

/* Returns a path relative to the run's folder (ctx, absolute); an absolute path
 * stays absolute. */
static const char *from_folder(Arena *a, const char *path, void *ctx)
{
    const char *dir = ctx, *to = path_absolute(a, path, NULL), *rest;
    size_t same = 0;
    Text out = { .arena = a };

    if (*path == '/' || *to != '/')
        return *path == '/' ? path : to;
    for (size_t i = 0; dir[i] && dir[i] == to[i]; i++)
        if (dir[i] == '/')
            same = i;
    size_t n = strlen(dir);
    if (!strncmp(dir, to, n) && (to[n] == '/' || !to[n]))
        same = n;
    else if (strlen(to) < n && dir[strlen(to)] == '/' &&
             !strncmp(dir, to, strlen(to)))
        same = strlen(to);
    for (rest = dir + same; *rest; rest++)
        if (*rest == '/')
            put(&out, "../");
    put(&out, "%s", to[same] ? to + same + 1 : ".");
    return out.s;
}

const char *config_value(Arena *a, const char *key, const char *value)
{
    return opts_paths(a, key, value, path_absolute, NULL);
}

/* ---- writing ------------------------------------------------------------- */

static void put_lua(Text *out, const char *s)
{
    put_quoted(out, s, "\\%03d");
}

static void put_item(Text *out, const char *indent, const char *key,
                     const char *value)
{
    put(out, "%s[", indent);
    put_lua(out, key);
    put(out, "] = ");
    put_lua(out, value);
    put(out, ",\n");
}

/* Is the key stored? Keys that the folder implies, or of one start only, are
 * not. */
static int is_kept(const char *key)
{
    return strcmp(key, "name") && strcmp(key, "resume");
}

static void put_given(Text *out, const Plan *p, const char *dir)
{
    Opts *all = opts_new(out->arena);
    const char *key, *value;
    char *real = realpath(dir, NULL);

    opts_copy(all, p->opts);
    opts_set(all, "target", p->target, NULL);
    opts_set(all, "world", strf(out->arena, "%ld", p->mesh->world), NULL);
    for (int i = 0; opts_each(all, i, &key, &value); i++)
        if (is_kept(key))
            put_item(out, "  ", key,
                     real
                         ? opts_paths(out->arena, key, value, from_folder, real)
                         : value);
    free(real);
}

static void put_defaults(Text *out, const Opts *opts)
{
    put(out, "  defaults = {\n");
    for (const KeyInfo *k = keytab; k->name; k++) {
        const char *key = key_name(k);
        if (k->dflt && is_kept(key) && !opts_given(opts, key))
            put_item(out, "    ", key, k->dflt);
    }
    put(out, "  },\n");
}

void config_put(Text *out, const Plan *p, const char *dir, int64_t from_step)
{
    put(out,
        "-- The settings of this run. `pleat run <this folder> resume=1` reads "
        "them.\nreturn {\n  format = %d,\n  version = ",
        format_now(FMTrun));
    put_lua(out, strf(out->arena, "%s %s", program_version, program_commit));
    put(out, ",\n  from_step = %ld,\n", from_step);
    put_given(out, p, dir);
    put_defaults(out, p->opts);
    put(out, "}\n");
}

/* ---- reading ------------------------------------------------------------- */

typedef struct ConfigText {
    Arena *a;
    const char *p, *file;
    int line;
    Settings *to;
} ConfigText;

static _Noreturn void wrong(const ConfigText *text, const char *what)
{
    err(&(Loc){ text->file, text->line, NULL }, "%s", what);
}

/* Skips blanks and comments. */
static void skip(ConfigText *text)
{
    for (;; text->p++) {
        if (text->p[0] == '-' && text->p[1] == '-')
            text->p += strcspn(text->p, "\n");
        if (*text->p == '\n')
            text->line++;
        else if (!*text->p || !strchr(" \t\r", *text->p))
            return;
    }
}

static int take(ConfigText *text, char c)
{
    skip(text);
    if (*text->p != c)
        return 0;
    text->p++;
    return 1;
}

static void need(ConfigText *text, char c)
{
    char what[] = "expected 'x'";

    what[10] = c;
    if (!take(text, c))
        wrong(text, what);
}

/* Reads an escape: \n, \", \\, \065. */
static char escaped(ConfigText *text)
{
    static const char from[] = "ntr\"\\'", to[] = "\n\t\r\"\\'";
    const char *at = *text->p ? strchr(from, *text->p) : NULL;
    int v = 0, n = 0;

    if (at) {
        text->p++;
        return to[at - from];
    }
    for (; n < 3 && *text->p >= '0' && *text->p <= '9'; n++)
        v = 10 * v + *text->p++ - '0';
    if (!n || !v || v > 255)
        wrong(text, "a '\\' that is not read here");
    return (char)v;
}

static const char *string(ConfigText *text)
{
    Text out = { .arena = text->a };
    char end = *text->p++;

    put(&out, "%s", "");
    while (*text->p != end) {
        if (!*text->p || *text->p == '\n')
            wrong(text, "a string without its end");
        char c = *text->p++;
        c = c == '\\' ? escaped(text) : c;
        putn(&out, &c, 1);
    }
    text->p++;
    return out.s ? out.s : "";
}

/* Reads a string, a number or a name as text. */
static const char *word(ConfigText *text)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-";

    skip(text);
    if (*text->p == '"' || *text->p == '\'')
        return string(text);
    size_t n = strspn(text->p, letters);
    if (!n)
        wrong(text, *text->p ? "expected a value" : "the file is cut off");
    text->p += n;
    return strf(text->a, "%.*s", (int)n, text->p - n);
}

static int64_t whole(ConfigText *text, const char *s)
{
    char *end;
    long long v = strtoll(s, &end, 10);

    if (end == s || *end)
        wrong(text, "expected an integer");
    return v;
}

static void set_item(ConfigText *text, const char *key, int named, Opts *opts)
{
    Loc *l = alloc(forever, sizeof *l);
    const char *why, *value = word(text);

    *l = (Loc){ text->file, text->line, NULL };
    if (!named) {
        opts_set(opts, key, value, l);
    } else if (!strcmp(key, "format")) {
        text->to->format = whole(text, value);
        if ((why = format_wrong(text->a, FMTrun, text->to->format)))
            wrong(text, why);
    } else if (!strcmp(key, "from_step")) {
        text->to->from_step = whole(text, value);
    } else if (strcmp(key, "version")) {
        wrong(text, strf(text->a, "'%s' is not known here", key));
    }
}

static void table(ConfigText *text, Opts *opts, int depth)
{
    need(text, '{');
    while (!take(text, '}')) {
        int named = !take(text, '[');
        const char *key = word(text);
        if (!named)
            need(text, ']');
        need(text, '=');
        skip(text);
        if (*text->p == '{' && !depth && named && !strcmp(key, "defaults"))
            table(text, text->to->defaults, 1);
        else
            set_item(text, key, named, opts);
        if (!take(text, ',') && !take(text, ';')) {
            need(text, '}');
            return;
        }
    }
}

/* Reads format 1, whose values are not escaped. */
static void read_first(ConfigText *text)
{
    for (; *text->p; text->p += *text->p == '\n', text->line++) {
        size_t n = strcspn(text->p, "\n"), k;
        const char *s = text->p, *eq;
        text->p += n;
        s += strspn(s, " ");
        if (strncmp(s, "[\"", 2) || !(eq = strstr(s, "\"] = \"")) ||
            eq + 8 > text->p || strncmp(text->p - 2, "\",", 2))
            continue;
        k = (size_t)(eq - s) - 2;
        opts_set(text->to->given, strf(text->a, "%.*s", (int)k, s + 2),
                 strf(text->a, "%.*s", (int)(text->p - 2 - (eq + 6)), eq + 6),
                 NULL);
    }
}

Settings *config_read(Arena *a, const char *path)
{
    size_t n;
    const char *s = file_read(a, path, &n);
    Settings *c = alloc(a, sizeof *c);
    ConfigText r = { a, s, intern(path), 1, c };

    *c = (Settings){ .path = r.file,
                     .format = 1,
                     .given = opts_new(a),
                     .defaults = opts_new(a) };
    if (!s && (errno == ENOENT || errno == ENOTDIR))
        return NULL;
    if (!s)
        err(NULL, "cannot read %s: %s", path, strerror(errno));
    if (strlen(s) != n)
        wrong(&r, "this is no text: it holds a zero byte");
    if (!strncmp(s, "-- keys of this run\nreturn {\n", 29)) {
        read_first(&r);
        return c;
    }
    skip(&r);
    if (strncmp(r.p, "return", 6))
        wrong(&r, "expected 'return'");
    r.p += 6;
    c->format = 0;
    table(&r, c->given, 0);
    skip(&r);
    if (*r.p)
        wrong(&r, "something stands behind the table");
    if (!c->format)
        wrong(&r, "it does not say its format");
    return c;
}
