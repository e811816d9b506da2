/* opts.c: the keys of a run. A value is kept as text and was checked when it
 * was set (kinds.c); keys.def says what exists, of which kind, and the
 * defaults.
 *
 * `precision=bf16` means precision.policy, `route=dropless` route.policy,
 * `route=record:f` route.record. `axes.<name>` overrides the size of an
 * axis, `train.lr.<pattern>` and `train.decay.<pattern>` multiply the learning
 * rate and the weight decay of parameters. */
#include <ctype.h>
#include "keys.h"

/* clang-format off */
const KeyInfo keytab[] = {
#define KEY(table, name, kind, dflt, doc) {table, name, kind, dflt, doc},
#define W(prefix, word) " " #word
#define WORDS(table, name, kind, dflt, doc, id, words) \
    {table, name, kind words, dflt, doc},
#include "keys.def"
    {0}
};
/* clang-format on */

enum { NKEY = countof(keytab) - 1 };

typedef struct OptValue {
    const char *text;
    const Loc *loc;
} OptValue;
typedef struct OptNamed {
    const char *key;
    OptValue v;
} OptNamed;

struct Opts {
    Arena *arena;
    OptValue value[NKEY];
    OptNamed *named; /* vec, in the order they were set */
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

const char *key_name(const KeyInfo *info)
{
    return fullname((int)(info - keytab));
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

const char *key_own(const char *key)
{
    static const char *const families[] = { "axes.", "option.", "train.lr.",
                                            "train.decay.", "from." };

    for (int i = 0; i < countof(families); i++) {
        size_t n = strlen(families[i]);
        if (!strncmp(key, families[i], n) && key[n])
            return key + n;
    }
    return NULL;
}

static int is_axis(const char *key)
{
    return !strncmp(key, "axes.", 5);
}

static int is_option(const char *key)
{
    return !strncmp(key, "option.", 7);
}

int key_of_model(const char *key)
{
    return is_axis(key) || is_option(key);
}

static const OptValue *named_value(const Opts *o, const char *key)
{
    for (size_t i = 0; i < vec_len(o->named); i++)
        if (!strcmp(o->named[i].key, key))
            return &o->named[i].v;
    return 0;
}

/* "--Learning-Rate=3e-4", "train.learning_rate" -> "learning_rate" */
static char *bare_name(const char *typed)
{
    const char *s = typed + strspn(typed, "-"), *dot = strchr(s, '.');
    s = dot && dot[1] ? dot + 1 : s;
    char *name = strf(forever, "%.*s", (int)strcspn(s, "="), s);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : (char)tolower((unsigned char)*c);
    return name;
}

const char *key_meant(const char *typed)
{
    static const struct {
        const char *typed, *key;
    } others[] = {
#define ALIAS(typed, key) { typed, key },
#include "aliases.def"
#undef ALIAS
    };
    const char *name = bare_name(typed);
    for (int i = 0; i < countof(others); i++)
        if (!strcmp(others[i].typed, name))
            return others[i].key;
    for (int i = 0; i < NKEY; i++)
        if (!strcmp(keytab[i].name, name))
            return fullname(i);
    return NULL;
}

static _Noreturn void unknown(const char *key, const Loc *loc)
{
    const char *names[NKEY], *meant = key_meant(key);
    for (int i = 0; i < NKEY; i++)
        names[i] = fullname(i);
    if (meant)
        err(loc, "unknown key '%s' (did you mean '%s'?)", key, meant);
    err(loc, "unknown key '%s'%s", key, did_you_mean(key, names, NKEY));
}

/* ---- reading ------------------------------------------------------------- */

const char *opts_str(const Opts *o, const char *key)
{
    if (key_own(key)) {
        const OptValue *v = named_value(o, key);
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

int64_t opts_int_given(const Opts *o, const char *key)
{
    return opts_given(o, key) ? opts_int(o, key) : 0;
}

double opts_num(const Opts *o, const char *key)
{
    const char *s = opts_str(o, key);
    return s ? strtod(s, 0) : 0;
}

static int word_of(const Opts *o, const char *table, const char *name)
{
    int i = 0;
    while (strcmp(keytab[i].table, table) || strcmp(keytab[i].name, name))
        i++;
    const char *s = o->value[i].text ? o->value[i].text : keytab[i].dflt;
    return s ? kind_word(keytab[i].kind, s) : -1;
}

#define KEY(table, name, kind, dflt, doc)
#define WORDS(table, name, kind, dflt, doc, id, words) \
    enum id opts_##id(const Opts *o)                   \
    {                                                  \
        return (enum id)word_of(o, table, name);       \
    }
#include "keys.def"

unsigned opts_words(const Opts *o, const char *key)
{
    const char *s = opts_str(o, key);
    return s ? kind_words(keytab[must_find(key)].kind, s) : 0;
}

Dtype opts_dtype(const Opts *o)
{
    static const Dtype real[] = {
        [REALfp32] = Df32,
        [REALbf16] = Dbf16,
        [REALfp64] = Df64,
        [REALfp8] = Dbf16,
    };
    return real[opts_real_dtype(o)];
}

int key_word(const char *key, const char *s)
{
    return kind_word(keytab[must_find(key)].kind, s);
}

const char *key_word_text(const char *key, int i)
{
    const char *s = keytab[must_find(key)].kind;
    do
        s = strchr(s, ' ') + 1;
    while (i--);
    return internn(s, strcspn(s, " "));
}

const char *opts_pattern(const Opts *o, const char *key, int i)
{
    const char *p = opts_str(o, key), *word;
    for (p = p ? p : ""; (word = next_word(&p, " ,")) && i > 0; i--)
        ;
    return word;
}

int pattern_match(const char *p, const char *s)
{
    if (*p != '*')
        return *p == *s && (!*p || pattern_match(p + 1, s + 1));
    for (;; s++) {
        if (pattern_match(p + 1, s))
            return 1;
        if (!*s)
            return 0;
    }
}

int opts_match(const Opts *o, const char *key, const char *s)
{
    const char *p;
    int found = 0;

    for (int i = 0; (p = opts_pattern(o, key, i)); i++)
        if (pattern_match(p + (*p == '!'), s))
            found = *p != '!';
    return found;
}

const char *opts_source(const Opts *o, const char *path, const char **rest)
{
    for (size_t i = 0; i < vec_len(o->named); i++) {
        const char *name = o->named[i].key + strlen("from.");
        size_t n = strlen(name);
        if (strncmp(o->named[i].key, "from.", 5) || strncmp(path, name, n) ||
            path[n] != '.')
            continue;
        *rest = path + n + 1;
        return name;
    }
    return NULL;
}

double opts_factor(const Opts *o, const char *prefix, const char *path)
{
    size_t n = strlen(prefix);

    for (size_t i = vec_len(o->named); i-- > 0;)
        if (!strncmp(o->named[i].key, prefix, n) &&
            pattern_match(o->named[i].key + n, path))
            return strtod(o->named[i].v.text, 0);
    return 1;
}

const char *opts_paths(Arena *a, const char *key, const char *value, PathFn *fn,
                       void *ctx)
{
    int i = key_own(key) ? -1 : must_find(key);
    if (i < 0 || !value)
        return value;
    return kind_paths(a, key, keytab[i].kind, value, 0, fn, ctx);
}

static const OptValue *given(const Opts *o, const char *key)
{
    return key_own(key) ? named_value(o, key) : &o->value[must_find(key)];
}

int opts_given(const Opts *o, const char *key)
{
    const OptValue *v = given(o, key);
    return v && v->text;
}

int opts_asks(const Opts *o, const char *key)
{
    const char *usual = keytab[must_find(key)].dflt;
    return opts_given(o, key) && (!usual || strcmp(opts_str(o, key), usual));
}

const Loc *opts_loc(const Opts *o, const char *key)
{
    const OptValue *v = given(o, key);
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
    if ((size_t)i >= vec_len(o->named))
        return 0;
    *key = o->named[i].key;
    *value = o->named[i].v.text;
    return 1;
}

/* ---- setting ------------------------------------------------------------- */

/* It becomes the last. */
static void set_named(Opts *o, const char *key, OptValue v)
{
    size_t k = 0;

    const char *kind = is_axis(key)                ? "int 1"
                       : !strncmp(key, "from.", 5) ? "str"
                                                   : "num 0";
    if (!is_option(key))
        kind_check(o->arena, key, kind, v.text, v.loc);
    for (size_t i = 0; i < vec_len(o->named); i++)
        if (strcmp(o->named[i].key, key) != 0)
            o->named[k++] = o->named[i];
    vec_cut(o->named, k);
    OptNamed a = { intern(key), v };
    vec_push(o->arena, o->named, a);
}

void opts_copy(Opts *to, const Opts *from)
{
    const char *key, *value;

    for (int i = 0; opts_each(from, i, &key, &value); i++)
        opts_set(to, key, value, opts_loc(from, key));
}

/* What `precision=x`, `cluster=x` and `route=x` are short for. */
static const char *longhand(const char *key, const char **value)
{
    if (!strcmp(key, "precision"))
        return "precision.policy";
    if (!strcmp(key, "cluster"))
        return "cluster.chip";
    if (strcmp(key, "route"))
        return key;
    int record = !strncmp(*value, "record:", 7);
    if (!record && strncmp(*value, "replay:", 7))
        return "route.policy";
    *value += 7;
    return record ? "route.record" : "route.replay";
}

void opts_set(Opts *o, const char *key, const char *value, const Loc *loc)
{
    key = longhand(key, &value);
    OptValue v = { strf(o->arena, "%s", value), loc };
    if (key_own(key)) {
        set_named(o, key, v);
        return;
    }
    int i = find(key);
    if (i < 0)
        unknown(key, loc);
    v.text = kind_check(o->arena, key, keytab[i].kind, v.text, loc);
    o->value[i] = v;
}
