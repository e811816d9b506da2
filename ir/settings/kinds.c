/* kinds.c: the kinds of keys.def. Every value of a key is checked by the row of
 * its kind here, whether or not it is used; opts_check checks relations between
 * keys when all are set. */
#include "settings.h"
#include <errno.h>
#include <unistd.h>

enum { LONGKEY = 64, MAXWORDS = 16, BESTOF = 8 };

/* A value to check. */
typedef struct KeyInput {
    Arena *a;
    const char *key, *kind; /* "train.lr", "num 0" */
    const Loc *l;
} KeyInput;

typedef const char *CheckFn(const KeyInput *x, const char *s);

/* ---- words and numbers --------------------------------------------------- */

int is_kind(const char *kind, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(kind, word, n) && (!kind[n] || kind[n] == ' ');
}

int kind_word(const char *kind, const char *s)
{
    for (int i = 0; (kind = strchr(kind, ' ')); i++) {
        size_t n = strcspn(++kind, " ");
        if (strlen(s) == n && !strncmp(kind, s, n))
            return i;
    }
    return -1;
}

unsigned kind_words(const char *kind, const char *s)
{
    unsigned all = 0;
    for (const char *word; (word = next_word(&s, " ,"));) {
        int i = kind_word(kind, word);
        all |= i < 0 ? 0 : 1u << i;
    }
    return all;
}

/* Return 1 if all of s is an integer, or a finite number. */
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

/* Splits a copy of kind into the words after the first. Returns their
 * number. */
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

/* Returns "1, 2, 3", with a suggestion if one is near. */
static char *list_of(Arena *a, const char *s, const char *const *w, int n)
{
    Text out = { .arena = a };
    for (int i = 0; i < n; i++)
        put(&out, "%s%s", i ? ", " : "", w[i]);
    put(&out, "%s", did_you_mean(s, w, (size_t)n));
    return out.s;
}

static _Noreturn void below(const KeyInput *key, const char *s,
                            const char *least)
{
    err(key->l, "%s: %s is below the least value %s", key->key, s, least);
}

/* Checks the bounds of the kind, at most two words that a double holds. */
static const char *check_range(const KeyInput *key, const char *s, double v)
{
    const char *w[2];
    double end;
    int n = words(key->a, key->kind, w, 2);
    if (n > 0 && read_num(w[0], &end) && v < end)
        below(key, s, w[0]);
    if (n > 1 && read_num(w[1], &end) && v > end)
        err(key->l, "%s: %s is above the largest value %s", key->key, s, w[1]);
    return s;
}

static const char *check_int(const KeyInput *key, const char *s)
{
    int64_t v;
    if (!read_int(s, &v))
        err(key->l, "%s: '%s' is not an integer", key->key, s);
    return check_range(key, s, (double)v);
}

static const char *check_num(const KeyInput *key, const char *s)
{
    double v;
    if (!read_num(s, &v))
        err(key->l, "%s: '%s' is not a number", key->key, s);
    return check_range(key, s, v);
}

/* Returns bytes; negative: s is not a number with a unit. */
static double read_size(const char *s)
{
    static const struct {
        const char *name;
        double bytes;
    } unit[] = {
        { "B", 1 },         { "kB", 1e3 },      { "MB", 1e6 },
        { "GB", 1e9 },      { "TB", 1e12 },     { "KiB", 1 << 10 },
        { "MiB", 1 << 20 }, { "GiB", 1 << 30 }, { "TiB", 1ll << 40 },
    };
    char *end;
    double v = strtod(s, &end);
    for (int i = 0; i < countof(unit); i++)
        if (end != s && *s != ' ' && !strcmp(end, unit[i].name))
            return v * unit[i].bytes;
    return -1;
}

static const char *check_size(const KeyInput *key, const char *s)
{
    double v = read_size(s);
    if (!(v >= 1 && v < 1e18))
        err(key->l, "%s: '%s' is not a size like 76GiB or 80GB", key->key, s);
    return s;
}

static const char *check_bool(const KeyInput *key, const char *s)
{
    if (!strcmp(s, "1") || !strcmp(s, "true"))
        return "1";
    if (!strcmp(s, "0") || !strcmp(s, "false"))
        return "0";
    err(key->l, "%s: '%s' is neither 0 nor 1", key->key, s);
}

static const char *check_enum(const KeyInput *key, const char *s)
{
    const char *w[MAXWORDS];
    int n = words(key->a, key->kind, w, MAXWORDS);
    if (kind_word(key->kind, s) < 0)
        err(key->l, "%s: '%s' is not one of %s", key->key, s,
            list_of(key->a, s, w, n));
    return s;
}

double opts_curve(const char *s, double t)
{
    double at = -1, y = NAN, value = NAN;
    int n = 0;
    for (; *s; s += n + (s[n] == ',')) {
        double from = at, before = y;
        if (sscanf(s, "%lf:%lf%n", &at, &y, &n) != 2 || (s[n] && s[n] != ',') ||
            !(from < 0 ? at == 0 : at > from) || !(y >= 0) || !isfinite(y))
            return NAN;
        if (t >= from && t <= at)
            value =
                from < 0 ? y : before + (y - before) * (t - from) / (at - from);
    }
    return at == 1 ? value : NAN;
}

static const char *check_curve(const KeyInput *key, const char *s)
{
    if (strchr(s, ':') && isnan(opts_curve(s, 0)))
        err(key->l,
            "%s: '%.40s%s' is no curve \"0:1,0.5:0.2,1:0\": shares of the run "
            "from 0 to 1 with shares of lr that are at least 0",
            key->key, s, strlen(s) > 40 ? ".." : "");
    return strchr(s, ':') ? s : check_enum(key, s);
}

/* Checks words separated by commas. */
static void check_each(const KeyInput *key, const char *s, const char *wrong)
{
    const char *w[MAXWORDS];
    int n = words(key->a, key->kind, w, MAXWORDS);
    for (;; s += strspn(s, " ,")) {
        const char *word = strf(key->a, "%.*s", (int)strcspn(s, " ,"), s);
        s += strlen(word);
        if (kind_word(key->kind, word) < 0)
            err(key->l, "%s: '%s' is %s of %s", key->key, word, wrong,
                list_of(key->a, word, w, n));
        if (!*s)
            break;
    }
}

static const char *check_price(const KeyInput *key, const char *s)
{
    double v;
    int number = read_num(s, &v);
    if (number && v < 0)
        below(key, s, "0");
    if (!number)
        check_each(key, s, "neither a number nor one");
    return s;
}

static const char *check_words(const KeyInput *key, const char *s)
{
    check_each(key, s, "not one");
    unsigned all = kind_words(key->kind, s);
    if (all & 1 && all > 1)
        err(key->l, "%s: 'none' stands alone", key->key);
    return s;
}

static const char *check_any(const KeyInput *key, const char *s)
{
    (void)key;
    return s;
}

/* ---- several numbers ----------------------------------------------------- */

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

static const char *check_pair(const KeyInput *key, const char *s)
{
    double v[2];
    if (!read_pair(s, v))
        err(key->l, "%s: '%s' is not two numbers like 0.9,0.95", key->key, s);
    for (int i = 0; i < 2; i++)
        if (!(v[i] >= 0 && v[i] < 1))
            err(key->l, "%s: %g is not at least 0 and below 1", key->key, v[i]);
    return s;
}

/* Returns the count of numbers in "16,16,8000", each at least `least`; -1: not
 * such a list. */
static int count_numbers(const char *s, double least, int whole)
{
    for (int n = 1;; n++) {
        char *end;
        double v = strtod(s, &end);
        if (end == s || *s == ' ' || !(v >= least) || v > 1e15 ||
            (whole && v != floor(v)) || (*end && *end != ','))
            return -1;
        if (!*end)
            return n;
        s = end + 1;
    }
}

static const char *check_counts(const KeyInput *key, const char *s)
{
    int64_t n = 0;
    if (read_int(key->kind + strlen("counts "), &n) && *s &&
        count_numbers(s, 1, 1) != n)
        err(key->l, "%s: '%s' is not %ld whole numbers above 0 like 16,16,8000",
            key->key, s, n);
    return s;
}

static const char *check_shares(const KeyInput *key, const char *s)
{
    int64_t most = 0;
    int n = count_numbers(s, 0, 0);
    if (read_int(key->kind + strlen("shares "), &most) &&
        (n < 1 || n > most || !strpbrk(s, "123456789")))
        err(key->l,
            "%s: '%s' is not like 969,30,1: up to %ld numbers at least 0, not "
            "all of them 0",
            key->key, s, most);
    return s;
}

/* Returns the number after a word in "gnorm 10, loss 8"; null: the word is
 * absent. */
static const char *limit_of(const char *s, const char *what)
{
    for (const char *word; (word = next_word(&s, " ,"));) {
        const char *number = next_word(&s, " ,");
        if (!strcmp(word, what))
            return number;
    }
    return NULL;
}

static const char *check_limits(const KeyInput *key, const char *s)
{
    Arena *a = key->a;
    const char *w[BESTOF], *rest = s, *word;
    int n = words(a, key->kind, w, BESTOF), seen = 0;
    while ((word = next_word(&rest, " ,"))) {
        const char *number = next_word(&rest, " ,");
        int i = word_index(word, w, n);
        double v;
        if (i < 0 || seen >> i & 1 || !number || !read_num(number, &v) ||
            !(v > 0))
            err(key->l, "%s: '%s' is not like \"%s 10\"%s%s", key->key, s, w[0],
                n > 1 ? " or " : "",
                n > 1 ? strf(a, "\"%s 4 %s 10\"", w[0], w[1]) : "");
        seen |= 1 << i;
    }
    return s;
}

/* ---- other texts --------------------------------------------------------- */

static const char *check_order(const KeyInput *key, const char *s)
{
    order_check(s, key->l);
    return s;
}

/* Checks letters of the kind, with counts "*3" and groups "(a,b)". */
static const char *check_layout(const KeyInput *key, const char *s)
{
    const char *letters = key->kind + strlen("layout ");
    Text out = { .arena = key->a };
    size_t n = strspn(s, strf(key->a, "%s*(),0123456789", letters));
    if (!s[n])
        return s;
    for (const char *c = letters; *c; c++)
        put(&out, "%s%c", c > letters ? " " : "", *c);
    char other = (char)(s[n] ^ ' ');
    if (other != ' ' && strchr(letters, other))
        put(&out, " (did you mean '%c'?)", other);
    err(key->l, "%s %s, position %d: '%c' is none of %s", key->key, s,
        (int)n + 1, s[n], out.s);
}

/* ---- paths --------------------------------------------------------------- */

/* Function applied to each path in a value. */
typedef struct PathMap {
    Arena *a;
    const char *key;
    const Loc *l;
    PathFn *f;
    void *ctx;
} PathMap;

/* Returns a path relative to the file that names it; ctx: the place. */
static const char *beside_file(Arena *a, const char *s, void *ctx)
{
    const Loc *loc = ctx;
    const char *dir = loc && loc->file ? strrchr(loc->file, '/') : 0;
    if (!dir || !*s || *s == '/')
        return s;
    return strf(a, "%.*s%s", (int)(dir - loc->file + 1), loc->file, s);
}

static const char *map_path(const PathMap *map, const char *kind, const char *s)
{
    return kind_word(kind, s) < 0 ? map->f(map->a, s, map->ctx) : s;
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

/* Maps each path of "wiki=a code=b"; null: not such a list. */
static const char *map_named(const PathMap *map, const char *s)
{
    const char *name, *path, *rest = strrchr(s, ' ');
    Text out = { .arena = map->a };
    int n = 0;
    for (; opts_named(s, n, &name, &path); n++)
        put(&out, "%s%s=%s", n ? " " : "", name, map_path(map, "path", path));
    if (n && rest && rest[1] && !opts_named(rest, 0, &name, &path))
        err(map->l, "%s: '%s' has no name (name=path name=path ...)", map->key,
            rest + 1);
    return n ? out.s : NULL;
}

/* Maps each path of "0.7 a 0.3 b". */
static const char *map_blend(const PathMap *map, const char *s)
{
    const char *key = map->key, *named = map_named(map, s), *weight;
    const Loc *loc = map->l;
    Text out = { .arena = map->a };
    int sized = !strncmp(s, "size ", 5);
    double w;
    if (named || !opts_blend(s))
        return named ? named : map_path(map, "path", s);
    while ((weight = next_word(&s, " "))) {
        const char *path = next_word(&s, " ");
        int number = read_num(weight, &w);
        if (sized ? number : !strcmp(weight, "size"))
            err(loc, "%s: a blend has a weight for each path, or for none",
                key);
        if (sized ? strcmp(weight, "size") : !number || !(w > 0))
            err(loc,
                "%s: '%s' is not a positive weight (a blend is weight path "
                "weight path ..., paths without spaces)",
                key, weight);
        if (!path)
            err(loc, "%s: no path after the weight %s", key, weight);
        put(&out, "%s%s %s", out.len ? " " : "", weight,
            map_path(map, "path", path));
    }
    return out.s;
}

/* Checks a number, or numbers by ascending sizes: "1e9:3e13,1e12:6e14". */
static const char *check_speed(const KeyInput *key, const char *s)
{
    double last = 0, size;
    char *next = strf(key->a, "%s", s);

    if (!strchr(s, ':'))
        return check_num(key, s);
    while (next) {
        char *part = next, *value;
        next = strchr(part, ',');
        if (next)
            *next++ = 0;
        value = strchr(part, ':');
        if (!value)
            err(key->l, "%s: '%s' is not size:number", key->key, part);
        *value++ = 0;
        if (!read_num(part, &size) || !(size > last))
            err(key->l, "%s: size '%s' is not above the one before", key->key,
                part);
        last = size;
        check_num(key, value);
    }
    return s;
}

/* Checks a name of machines.def, or a path, which cluster_settle reads. */
static const char *check_machine(const KeyInput *key, const char *s)
{
    if (!*s)
        err(key->l, "%s: no machine is named", key->key);
    return strpbrk(s, "/.") ? beside_file(key->a, s, (void *)(uintptr_t)key->l)
                            : s;
}

/* ---- the kinds ----------------------------------------------------------- */

/* clang-format off */
static const struct Kind {
    const char *name;
    CheckFn *check; /* returns the stored value; err() if it is wrong */
} kinds[] = {
    { "int", check_int },       { "num", check_num },
    { "bool", check_bool },     { "enum", check_enum },
    { "str", check_any },       { "json", check_any },
    { "params", check_any },    { "pair", check_pair },
    { "counts", check_counts }, { "shares", check_shares },
    { "limits", check_limits }, { "order", check_order },
    { "layout", check_layout }, { "size", check_size },
    { "machine", check_machine }, { "price", check_price },
    { "words", check_words },
    { "speed", check_speed },
    { "curve", check_curve },
};
/* clang-format on */

static int has_paths(const char *kind)
{
    return is_kind(kind, "path") || is_kind(kind, "file") ||
           is_kind(kind, "blend");
}

const char *kind_paths(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc, PathFn *fn, void *ctx)
{
    PathMap m = { a, key, loc, fn, ctx };
    return !has_paths(kind)         ? s
           : is_kind(kind, "blend") ? map_blend(&m, s)
                                    : map_path(&m, kind, s);
}

/* Checks that the value is implemented: a kind lists implemented values after
 * the slash. Returns the kind without them. */
static const char *check_built(Arena *a, const char *key, const char *kind,
                               const char *s, const Loc *loc)
{
    const char *slash = strstr(kind, " /"), *w[16];
    if (!slash)
        return kind;
    int n = words(a, slash + 1, w, 16), built = 0;
    for (int i = 0; i < n; i++)
        built |= !strcmp(w[i], s);
    kind = strf(a, "%.*s", (int)(slash - kind), kind);
    if (is_kind(kind, "enum"))
        check_enum(&(KeyInput){ a, key, kind, loc }, s);
    if (!built)
        err(loc, "%s: '%s' is planned, but not built yet", key, s);
    return kind;
}

const char *kind_check(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc)
{
    kind = check_built(a, key, kind, s, loc);
    for (const char *c = s; *c; c++)
        if (*c == '\n' || *c == '\r' || (*c == '"' && !is_kind(kind, "json")))
            err(loc, "%s: a value has no quotes and no line ends", key);
    if (has_paths(kind))
        return kind_paths(a, key, kind, s, loc, beside_file,
                          (void *)(uintptr_t)loc);
    for (int i = 0; i < countof(kinds); i++)
        if (is_kind(kind, kinds[i].name))
            return kinds[i].check(&(KeyInput){ a, key, kind, loc }, s);
    die("keys.def: %s is of no kind", key);
}

/* ---- reading ------------------------------------------------------------- */

int64_t opts_bytes(const Opts *opts, const char *key)
{
    const char *s = opts_str(opts, key);
    return s ? (int64_t)read_size(s) : 0;
}

void opts_pair(const Opts *opts, const char *key, double v[2])
{
    if (!read_pair(opts_str(opts, key), v))
        die("key '%s' is not a pair", key);
}

int opts_limit(const Opts *opts, const char *key, const char *what, double *v)
{
    const char *s = opts_str(opts, key);
    const char *number = s ? limit_of(s, what) : 0;
    *v = number ? strtod(number, 0) : INFINITY;
    return number != 0;
}

/* ---- relations between values, and files --------------------------------- */

/* Checks "num 0 lr": at most the key lr of the same table. */
static void check_bound(const Opts *opts, const KeyInfo *info)
{
    const char *key = key_name(info), *w[2];
    double v;
    if (words(forever, info->kind, w, 2) < 2 || read_num(w[1], &v))
        return;
    const char *most = strf(forever, "%s.%s", info->table, w[1]);
    if (opts_num(opts, key) <= opts_num(opts, most))
        return;
    const Loc *at = opts_loc(opts, key);
    if (at && opts_given(opts, most) && !opts_loc(opts, most))
        err(0, "%s=%s is below %s=%s of %s:%d: give both", most,
            opts_str(opts, most), key, opts_str(opts, key), at->file, at->line);
    err(at, "%s: %s is above %s=%s", key, opts_str(opts, key), most,
        opts_str(opts, most));
}

void opts_check(const Opts *opts)
{
    for (const KeyInfo *k = keytab; k->name; k++)
        if (is_kind(k->kind, "num") && opts_given(opts, key_name(k)))
            check_bound(opts, k);
}

void opts_files(const Opts *opts)
{
    const char *w[MAXWORDS];
    for (const KeyInfo *k = keytab; k->name; k++) {
        const char *key = key_name(k), *s = opts_str(opts, key);
        if (!is_kind(k->kind, "file") || !s)
            continue;
        int n = words(forever, k->kind, w, MAXWORDS);
        if (kind_word(k->kind, s) < 0 && access(s, R_OK))
            err(opts_loc(opts, key),
                "%s: '%s' is no file to read, nor one of %s", key, s,
                list_of(forever, file_name(s), w, n));
    }
}
