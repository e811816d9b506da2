/* opts.c: the keys of a run. A value is kept as text and was checked when it
 * was set; keys.def says what exists, of which kind, and the defaults.
 *
 * `precision=bf16` means precision.policy, `route=dropless` route.policy,
 * `route=record:f` route.record. `axes.<name>` overrides the size of an
 * axis. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "plan.h"

/* clang-format off */
const KeyInfo keytab[] = {
#define KEY(table, name, kind, dflt, doc) {table, name, kind, dflt, doc},
#include "keys.def"
#undef KEY
    {0}
};
/* clang-format on */

enum { NKEY = sizeof keytab / sizeof *keytab - 1, LONGKEY = 64 };

typedef struct Value {
    const char *text;
    const Loc *loc;
} Value;
typedef struct AxisValue {
    const char *key;
    Value v;
} AxisValue;

struct Opts {
    Arena *arena;
    Value value[NKEY];
    AxisValue *axes; /* vec, in the order they were set */
};

Opts *opts_new(Arena *a)
{
    Opts *o = alloc(a, sizeof *o);
    o->arena = a;
    return o;
}

/* ---- names --------------------------------------------------------------- */

static const char *fullname(int i)
{
    static const char *names[NKEY];
    if (!names[i])
        names[i] = *keytab[i].table
                       ? strf(forever, "%s.%s", keytab[i].table, keytab[i].name)
                       : keytab[i].name;
    return names[i];
}

const char *key_name(const KeyInfo *k)
{
    return fullname((int)(k - keytab));
}

static int find(const char *key)
{
    for (int i = 0; i < NKEY; i++)
        if (!strcmp(fullname(i), key))
            return i;
    return -1;
}

/* The key asked for by the compiler itself must exist. */
static int must_find(const char *key)
{
    int i = find(key);
    if (i < 0)
        die("no key '%s' in keys.def", key);
    return i;
}

static int is_axis(const char *key)
{
    return !strncmp(key, "axes.", 5) && key[5];
}

static const Value *axis_value(const Opts *o, const char *key)
{
    for (size_t i = 0; i < vec_len(o->axes); i++)
        if (!strcmp(o->axes[i].key, key))
            return &o->axes[i].v;
    return 0;
}

static _Noreturn void unknown(const char *key, const Loc *l)
{
    const char *names[NKEY];
    for (int i = 0; i < NKEY; i++) {
        names[i] = fullname(i);
        if (*keytab[i].table && !strcmp(keytab[i].name, key))
            err(l, "unknown key '%s' (did you mean '%s'?)", key, names[i]);
    }
    const char *s = nearest(key, names, NKEY);
    if (s)
        err(l, "unknown key '%s' (did you mean '%s'?)", key, s);
    err(l, "unknown key '%s'", key);
}

/* ---- kinds --------------------------------------------------------------- */

static int is_kind(const char *kind, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(kind, word, n) && (!kind[n] || kind[n] == ' ');
}

/* 1: all of s is an integer or a finite number. */
static int read_int(const char *s, int64_t *v)
{
    char *end;
    errno = 0;
    *v = strtoll(s, &end, 10);
    return !errno && end != s && !*end && *s != ' ' && *s != '\t';
}

static int read_num(const char *s, double *v)
{
    char *end;
    *v = strtod(s, &end);
    return end != s && !*end && isfinite(*v) && *s != ' ' && *s != '\t';
}

static const char *check_int(const char *key, const char *kind, const char *s,
                             const Loc *l)
{
    int64_t v, min = 0;
    if (!read_int(s, &v))
        err(l, "%s: '%s' is not an integer", key, s);
    if (read_int(kind + 4, &min) && v < min)
        err(l, "%s: %s is below the least value %s", key, s, kind + 4);
    return s;
}

static const char *check_num(const char *key, const char *kind, const char *s,
                             const Loc *l)
{
    double v, min = 0;
    if (!read_num(s, &v))
        err(l, "%s: '%s' is not a number", key, s);
    if (read_num(kind + 4, &min) && v < min)
        err(l, "%s: %s is below the least value %s", key, s, kind + 4);
    return s;
}

static const char *check_bool(const char *key, const char *s, const Loc *l)
{
    if (!strcmp(s, "1") || !strcmp(s, "true"))
        return "1";
    if (!strcmp(s, "0") || !strcmp(s, "false"))
        return "0";
    err(l, "%s: '%s' is neither 0 nor 1", key, s);
}

/* The words after the first of kind, split in place of a copy. */
static int words(Arena *a, const char *kind, const char **w, int max)
{
    char *s = strf(a, "%s", kind);
    int n = 0;
    for (s = strchr(s, ' '); s && n < max; s = strchr(s, ' ')) {
        *s++ = 0;
        w[n++] = s;
    }
    return n;
}

static const char *check_enum(Arena *a, const char *key, const char *kind,
                              const char *s, const Loc *l)
{
    const char *w[16];
    Text t = { .arena = a };
    int n = words(a, kind, w, 16);
    for (int i = 0; i < n; i++) {
        if (!strcmp(w[i], s))
            return s;
        put(&t, "%s%s", i ? ", " : "", w[i]);
    }
    const char *near = nearest(s, w, (size_t)n);
    if (near)
        err(l, "%s: '%s' is not one of %s (did you mean '%s'?)", key, s, t.s,
            near);
    err(l, "%s: '%s' is not one of %s", key, s, t.s);
}

/* What becomes of each path in a value. */
typedef struct PathMap {
    Arena *a;
    const char *key;
    const Loc *l;
    PathFn *f;
    void *ctx;
} PathMap;

/* A path is relative to the file that names it; ctx is that place. */
static const char *beside_file(Arena *a, const char *s, void *ctx)
{
    const Loc *l = ctx;
    const char *dir = l && l->file ? strrchr(l->file, '/') : 0;
    if (!dir || !*s || *s == '/')
        return s;
    return strf(a, "%.*s%s", (int)(dir - l->file + 1), l->file, s);
}

static const char *map_path(const PathMap *m, const char *kind, const char *s)
{
    const char *w[8];
    int n = words(m->a, kind, w, 8);
    for (int i = 0; i < n; i++)
        if (!strcmp(w[i], s))
            return s;
    return m->f(m->a, s, m->ctx);
}

int opts_blend(const char *s)
{
    char *end;
    double w = strtod(s, &end);
    if (!strncmp(s, "size ", 5))
        return 1;
    return end != s && *end == ' ' && w == w;
}

int opts_named(const char *s, int i, const char **name, const char **path)
{
    for (s += strspn(s, " "); *s; i--) {
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                             "XYZ0123456789_-"),
               all = strcspn(s, " ");
        if (!n || s[n] != '=' || all == n + 1)
            return 0;
        if (!i) {
            *name = internn(s, n);
            *path = internn(s + n + 1, all - n - 1);
            return 1;
        }
        s += all;
        s += strspn(s, " ");
    }
    return 0;
}

/* "wiki=a code=b", each path mapped; null: it is no such list. */
static const char *map_named(const PathMap *m, const char *s)
{
    const char *name, *path, *rest = strrchr(s, ' ');
    Text t = { .arena = m->a };
    int n = 0;
    for (; opts_named(s, n, &name, &path); n++)
        put(&t, "%s%s=%s", n ? " " : "", name, map_path(m, "path", path));
    if (n && rest && rest[1] && !opts_named(rest, 0, &name, &path))
        err(m->l, "%s: '%s' has no name (name=path name=path ...)", m->key,
            rest + 1);
    return n ? t.s : NULL;
}

/* "0.7 a 0.3 b", each path mapped. */
static const char *map_blend(const PathMap *m, const char *s)
{
    Arena *a = m->a;
    const char *key = m->key, *named = map_named(m, s);
    const Loc *l = m->l;
    Text t = { .arena = a };
    int sized = !strncmp(s, "size ", 5);
    double w;
    if (named || !opts_blend(s))
        return named ? named : map_path(m, "path", s);
    for (s += strspn(s, " "); *s;) {
        const char *weight = strf(a, "%.*s", (int)strcspn(s, " "), s);
        s += strcspn(s, " ");
        s += strspn(s, " ");
        const char *path = strf(a, "%.*s", (int)strcspn(s, " "), s);
        s += strcspn(s, " ");
        s += strspn(s, " ");
        int number = read_num(weight, &w);
        if (sized ? number : !strcmp(weight, "size"))
            err(l, "%s: a blend has a weight for each path, or for none", key);
        if (sized ? strcmp(weight, "size") : !number || !(w > 0))
            err(l,
                "%s: '%s' is not a positive weight (a blend is weight path "
                "weight path ..., paths without spaces)",
                key, weight);
        if (!*path)
            err(l, "%s: no path after the weight %s", key, weight);
        put(&t, "%s%s %s", t.len ? " " : "", weight, map_path(m, "path", path));
    }
    return t.s;
}

static int has_paths(const char *kind)
{
    return is_kind(kind, "path") || is_kind(kind, "blend");
}

static const char *map_paths(const PathMap *m, const char *kind, const char *s)
{
    return is_kind(kind, "path") ? map_path(m, kind, s) : map_blend(m, s);
}

static int read_pair(const char *s, double v[2])
{
    char first[LONGKEY];
    const char *comma = strchr(s, ',');
    if (!comma || comma - s >= LONGKEY)
        return 0;
    memcpy(first, s, (size_t)(comma - s));
    first[comma - s] = 0;
    for (comma++; *comma == ' '; comma++)
        ;
    return read_num(first, &v[0]) && read_num(comma, &v[1]);
}

/* The number after word `what` in "gnorm 10, loss 8"; null: it is not there. */
static const char *limit_of(const char *s, const char *what, size_t n)
{
    static const char between[] = " ,";
    for (s += strspn(s, between); *s; s += strspn(s, between)) {
        size_t k = strcspn(s, between);
        int same = k == n && !strncmp(s, what, n);
        s += k;
        s += strspn(s, between);
        if (same)
            return s;
        s += strcspn(s, between);
    }
    return 0;
}

static const char *check_limits(Arena *a, const char *key, const char *kind,
                                const char *s, const Loc *l)
{
    const char *w[8], *rest = s;
    int n = words(a, kind, w, 8), seen = 0;
    for (rest += strspn(rest, " ,"); *rest; rest += strspn(rest, " ,")) {
        const char *word = strf(a, "%.*s", (int)strcspn(rest, " ,"), rest);
        rest += strlen(word);
        rest += strspn(rest, " ,");
        const char *number = strf(a, "%.*s", (int)strcspn(rest, " ,"), rest);
        double v;
        int i = 0;
        rest += strlen(number);
        while (i < n && strcmp(w[i], word))
            i++;
        if (i == n || seen >> i & 1 || !read_num(number, &v) || !(v > 0))
            err(l, "%s: '%s' is not like \"%s 10\"%s%s", key, s, w[0],
                n > 1 ? " or " : "",
                n > 1 ? strf(a, "\"%s 4 %s 10\"", w[0], w[1]) : "");
        seen |= 1 << i;
    }
    return s;
}

/* What stands behind the slash in a kind is all that is built so far. Returns
 * the kind without it. */
static const char *check_built(Arena *a, const char *key, const char *kind,
                               const char *s, const Loc *l)
{
    const char *slash = strstr(kind, " /"), *w[16];
    if (!slash)
        return kind;
    int n = words(a, slash + 1, w, 16), built = 0;
    for (int i = 0; i < n; i++)
        built |= !strcmp(w[i], s);
    kind = strf(a, "%.*s", (int)(slash - kind), kind);
    if (is_kind(kind, "enum"))
        check_enum(a, key, kind, s, l);
    if (!built)
        err(l, "%s: '%s' is planned, but not built yet", key, s);
    return kind;
}

static const char *check_value(Opts *o, const char *key, const char *kind,
                               const char *s, const Loc *l)
{
    double pair[2];
    kind = check_built(o->arena, key, kind, s, l);
    for (const char *c = s; *c; c++)
        if (*c == '\n' || *c == '\r' || (*c == '"' && !is_kind(kind, "json")))
            err(l, "%s: a value has no quotes and no line ends", key);
    if (is_kind(kind, "int"))
        return check_int(key, kind, s, l);
    if (is_kind(kind, "num"))
        return check_num(key, kind, s, l);
    if (is_kind(kind, "bool"))
        return check_bool(key, s, l);
    if (is_kind(kind, "enum"))
        return check_enum(o->arena, key, kind, s, l);
    if (has_paths(kind))
        return map_paths(
            &(PathMap){ o->arena, key, l, beside_file, (void *)(uintptr_t)l },
            kind, s);
    if (is_kind(kind, "limits"))
        return check_limits(o->arena, key, kind, s, l);
    if (is_kind(kind, "pair") && !read_pair(s, pair))
        err(l, "%s: '%s' is not two numbers like 0.9,0.95", key, s);
    if (is_kind(kind, "pair"))
        for (int i = 0; i < 2; i++)
            if (!(pair[i] >= 0 && pair[i] < 1))
                err(l, "%s: %g is not at least 0 and below 1", key, pair[i]);
    return s;
}

/* ---- reading ------------------------------------------------------------- */

const char *opts_str(const Opts *o, const char *key)
{
    if (is_axis(key)) {
        const Value *v = axis_value(o, key);
        return v ? v->text : 0;
    }
    int i = must_find(key);
    return o->value[i].text ? o->value[i].text : keytab[i].dflt;
}

int64_t opts_int(const Opts *o, const char *key)
{
    const char *s = opts_str(o, key);
    return s ? strtoll(s, 0, 10) : 0;
}

double opts_num(const Opts *o, const char *key)
{
    const char *s = opts_str(o, key);
    return s ? strtod(s, 0) : 0;
}

void opts_pair(const Opts *o, const char *key, double v[2])
{
    if (!read_pair(opts_str(o, key), v))
        die("key '%s' is not a pair", key);
}

int opts_limit(const Opts *o, const char *key, const char *what, double *v)
{
    const char *s = opts_str(o, key);
    const char *number = s ? limit_of(s, what, strlen(what)) : 0;
    *v = number ? strtod(number, 0) : INFINITY;
    return number != 0;
}

/* Does s match pattern p of length n, where * stands for any text? */
static int matches(const char *p, size_t n, const char *s)
{
    if (!n)
        return !*s;
    if (*p != '*')
        return *p == *s && matches(p + 1, n - 1, s + 1);
    for (;; s++) {
        if (matches(p + 1, n - 1, s))
            return 1;
        if (!*s)
            return 0;
    }
}

int opts_match(const Opts *o, const char *key, const char *s)
{
    const char *p = opts_str(o, key);
    while (p && *p) {
        size_t n = strcspn(p, " ,");
        if (n && matches(p, n, s))
            return 1;
        p += n + strspn(p + n, " ,");
    }
    return 0;
}

const char *opts_paths(Arena *a, const char *key, const char *value, PathFn *f,
                       void *ctx)
{
    int i = is_axis(key) ? -1 : must_find(key);
    PathMap m = { a, key, 0, f, ctx };
    if (i < 0 || !value || !has_paths(keytab[i].kind))
        return value;
    return map_paths(&m, keytab[i].kind, value);
}

static const Value *given(const Opts *o, const char *key)
{
    return is_axis(key) ? axis_value(o, key) : &o->value[must_find(key)];
}

int opts_given(const Opts *o, const char *key)
{
    const Value *v = given(o, key);
    return v && v->text;
}

const Loc *opts_loc(const Opts *o, const char *key)
{
    const Value *v = given(o, key);
    return v ? v->loc : 0;
}

int opts_each(const Opts *o, int i, const char **key, const char **value)
{
    for (int k = 0; k < NKEY; k++)
        if (o->value[k].text && !i--) {
            *key = fullname(k);
            *value = o->value[k].text;
            return 1;
        }
    if ((size_t)i >= vec_len(o->axes))
        return 0;
    *key = o->axes[i].key;
    *value = o->axes[i].v.text;
    return 1;
}

/* ---- setting ------------------------------------------------------------- */

static void set_axis(Opts *o, const char *key, Value v)
{
    check_int(key, "int 1", v.text, v.loc);
    for (size_t i = 0; i < vec_len(o->axes); i++)
        if (!strcmp(o->axes[i].key, key)) {
            o->axes[i].v = v;
            return;
        }
    AxisValue a = { intern(key), v };
    vec_push(o->arena, o->axes, a);
}

/* What `precision=x` and `route=x` are short for. */
static const char *longhand(const char *key, const char **value)
{
    if (!strcmp(key, "precision"))
        return "precision.policy";
    if (strcmp(key, "route"))
        return key;
    int record = !strncmp(*value, "record:", 7);
    if (!record && strncmp(*value, "replay:", 7))
        return "route.policy";
    *value += 7;
    return record ? "route.record" : "route.replay";
}

void opts_set(Opts *o, const char *key, const char *value, const Loc *l)
{
    key = longhand(key, &value);
    Value v = { strf(o->arena, "%s", value), l };
    if (is_axis(key)) {
        set_axis(o, key, v);
        return;
    }
    int i = find(key);
    if (i < 0)
        unknown(key, l);
    v.text = check_value(o, key, keytab[i].kind, v.text, l);
    o->value[i] = v;
}
