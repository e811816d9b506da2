/* rename.c: a model's Lua text under other names. What is a name follows from
 * where it stands: axes from axes{} and from strings that hold one beside other
 * words ("seq key"), scopes from the first argument of scope(), locals from
 * `local`. Names that are interfaces (inputs, parameters, states, losses,
 * metrics, outputs, options) stay. */
#include <ctype.h>
#include <string.h>

#include "rename.h"

typedef enum Kind { WORD, STRING, OTHER } Kind;
typedef struct Token {
    Kind kind;
    const char *s;      /* interned; a string's without quotes */
    const char *before; /* what stands between the last one and it */
    char quote;
    int hidden; /* in an hf{} table */
} Token;

typedef struct Renamer {
    Arena *arena;
    Token *tok;                          /* vec */
    const char **axis, **scope, **local; /* vecs of names */
    NewName *name;
    void *ctx;
} Renamer;

/* ---- tokens -------------------------------------------------------------- */

static int starts_word(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static size_t word_length(const char *s)
{
    size_t n = 0;

    while (starts_word(s[n]) || isdigit((unsigned char)s[n]))
        n++;
    return n;
}

/* Spaces and comments. */
static size_t gap_length(const char *s)
{
    size_t n = 0;

    for (;;) {
        if (isspace((unsigned char)s[n]))
            n++;
        else if (!strncmp(s + n, "--", 2))
            n += strcspn(s + n, "\n");
        else
            return n;
    }
}

static void tokenize(Renamer *r, const char *s)
{
    while (*s) {
        Token t = { .kind = OTHER };
        size_t n = gap_length(s);
        t.before = internn(s, n);
        s += n;
        n = *s != 0;
        if (starts_word(*s)) {
            t.kind = WORD;
            n = word_length(s);
        } else if (*s == '"' || *s == '\'') {
            t.kind = STRING;
            t.quote = *s++;
            n = strcspn(s, (char[]){ t.quote, 0 });
        } else if (isdigit((unsigned char)*s)) {
            while (isalnum((unsigned char)s[n]) || s[n] == '.')
                n++;
        }
        t.s = internn(s, n);
        s += n + (t.kind == STRING);
        vec_push(r->arena, r->tok, t);
    }
}

static int is(const Renamer *r, size_t i, const char *text)
{
    return i < vec_len(r->tok) && r->tok[i].kind != STRING &&
           !strcmp(r->tok[i].s, text);
}

static void hide_hf(Renamer *r)
{
    for (size_t i = 0; i < vec_len(r->tok); i++) {
        if (!is(r, i, "hf") || !is(r, i + 1, "{"))
            continue;
        for (int depth = 0; i < vec_len(r->tok); i++) {
            depth += is(r, i, "{") - is(r, i, "}");
            r->tok[i].hidden = 1;
            if (is(r, i, "}") && !depth)
                break;
        }
    }
}

/* ---- which words are names ----------------------------------------------- */

static int index_of(const char **v, const char *s)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i] == s)
            return (int)i;
    return -1;
}

static void add_name(Renamer *r, const char ***v, const char *s)
{
    if (index_of(*v, s) < 0)
        vec_push(r->arena, *v, s);
}

/* Words and spaces; 0: the string holds anything else, or no word. */
static int only_words(const char *s)
{
    int words = 0;

    while (*(s += strspn(s, " "))) {
        size_t n = word_length(s);
        if (!n)
            return 0;
        words++;
        s += n;
    }
    return words > 0;
}

/* The argument that names an interface: param("embed", ..). */
static int is_interface(const Renamer *r, size_t i)
{
    static const char *const calls[] = { "param", "state",   "input",
                                         "loss",  "metric",  "output",
                                         "scope", "require", "optimizer" };

    for (size_t k = 0; i >= 2 && k < sizeof calls / sizeof *calls; k++)
        if (is(r, i - 1, "(") && is(r, i - 2, calls[k]))
            return 1;
    return 0;
}

static int holds_axis(const Renamer *r, const char *s)
{
    for (; *s; s += *s != 0) {
        size_t n = word_length(s);
        if (n && index_of(r->axis, internn(s, n)) >= 0)
            return 1;
        s += n + strcspn(s + n, " ");
    }
    return 0;
}

/* Those that the compiler knows: choices of topk, and pieces of data. */
static int is_fixed(const char *s)
{
    return !strcmp(s, "top") || !strcmp(s, "micro") || !strcmp(s, "row");
}

/* All words of a string that has an axis are axes. Returns 0 when it knew. */
static int learn(Renamer *r, const char *s)
{
    size_t before = vec_len(r->axis);

    while (*s) {
        size_t n = word_length(s);
        const char *w = internn(s, n);
        if (n && !is_fixed(w))
            add_name(r, &r->axis, w);
        s += n;
        s += strspn(s, " '");
    }
    return vec_len(r->axis) > before;
}

/* A word right inside axes{}. */
static int in_axes(const Renamer *r, size_t i)
{
    int depth = 1;

    if (r->tok[i].kind != WORD)
        return 0;
    for (; i && depth; i--)
        depth += is(r, i - 1, "}") - is(r, i - 1, "{");
    return i && is(r, i - 1, "axes");
}

/* Does a string say names of axes: beside an axis, or what one becomes? */
static int says_axes(const Renamer *r, size_t i)
{
    const char *s = r->tok[i].s;

    if (r->tok[i].kind != STRING || !only_words(s) || is_interface(r, i))
        return 0;
    if (i >= 3 && is(r, i - 1, "=") && r->tok[i - 2].kind == WORD &&
        (is(r, i - 3, "{") || is(r, i - 3, ",")))
        return index_of(r->axis, r->tok[i - 2].s) >= 0;
    return strchr(s, ' ') && holds_axis(r, s);
}

static void find_axes(Renamer *r)
{
    int more = 1;

    for (size_t i = 2; i < vec_len(r->tok); i++)
        if (in_axes(r, i) && is(r, i + 1, "=") && !is_fixed(r->tok[i].s))
            add_name(r, &r->axis, r->tok[i].s);
    while (more) {
        more = 0;
        for (size_t i = 0; i < vec_len(r->tok); i++)
            if (says_axes(r, i))
                more |= learn(r, r->tok[i].s);
    }
}

static void find_scopes(Renamer *r)
{
    for (size_t i = 2; i < vec_len(r->tok); i++) {
        const char *s = r->tok[i].s;
        if (r->tok[i].kind == STRING && is(r, i - 1, "(") &&
            is(r, i - 2, "scope") && word_length(s))
            add_name(r, &r->scope, internn(s, word_length(s)));
    }
}

/* A field, a key of a table, or something of the language. */
static int is_elsewhere(const Renamer *r, const char *s)
{
    for (size_t i = 1; i < vec_len(r->tok); i++)
        if (r->tok[i].kind == WORD && r->tok[i].s == s &&
            (is(r, i - 1, ".") || is(r, i - 1, ":") ||
             ((is(r, i - 1, "{") || is(r, i - 1, ",")) && is(r, i + 1, "="))))
            return 1;
    return 0;
}

static int is_called_before(const Renamer *r, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (r->tok[i].kind == WORD && r->tok[i].s == r->tok[at].s &&
            (is(r, i + 1, "(") || is(r, i + 1, "{")))
            return 1;
    return 0;
}

static void find_locals(Renamer *r)
{
    for (size_t i = 0; i < vec_len(r->tok); i++) {
        if (!is(r, i, "local"))
            continue;
        i += is(r, i + 1, "function");
        do {
            i++;
            if (r->tok[i].kind == WORD && !is_elsewhere(r, r->tok[i].s) &&
                !is_called_before(r, i))
                add_name(r, &r->local, r->tok[i].s);
        } while (is(r, ++i, ","));
        i--;
    }
}

/* ---- the new text -------------------------------------------------------- */

static const char *new_name(Renamer *r, NameKind kind, const char **v,
                            const char *s)
{
    return index_of(v, s) < 0 ? s : r->name(r->ctx, kind, s);
}

static void put_axes(Renamer *r, Text *t, const char *s)
{
    while (*s) {
        size_t n = word_length(s);
        if (n)
            put(t, "%s", new_name(r, NAMEaxis, r->axis, internn(s, n)));
        s += n;
        for (; *s && !starts_word(*s); s++)
            put(t, "%c", *s);
    }
}

/* An option's value: role="ffn" */
static int is_option(const Renamer *r, size_t i)
{
    return i && is(r, i - 1, "=") && is(r, i - 2, "role");
}

static void put_string(Renamer *r, Text *t, size_t i)
{
    const char *s = r->tok[i].s;
    size_t n = word_length(s);

    put(t, "%c", r->tok[i].quote);
    if (i >= 2 && is(r, i - 1, "(") && is(r, i - 2, "scope") && n)
        put(t, "%s%s", new_name(r, NAMEscope, r->scope, internn(s, n)), s + n);
    else if (only_words(s) && !is_interface(r, i) && !is_option(r, i) &&
             holds_axis(r, s))
        put_axes(r, t, s);
    else
        put(t, "%s", s);
    put(t, "%c", r->tok[i].quote);
}

/* A key of axes{}, or of rename(x, {seq="key"}). */
static int is_axis_key(const Renamer *r, size_t i)
{
    if (!i || !is(r, i + 1, "=") || (!is(r, i - 1, "{") && !is(r, i - 1, ",")))
        return 0;
    if (in_axes(r, i))
        return 1;
    return r->tok[i + 2].kind == STRING && only_words(r->tok[i + 2].s) &&
           holds_axis(r, r->tok[i + 2].s);
}

static void put_name(Renamer *r, Text *t, size_t i)
{
    const char *s = r->tok[i].s;

    if (is_axis_key(r, i))
        put(t, "%s", new_name(r, NAMEaxis, r->axis, s));
    else if (i && is(r, i - 1, "."))
        put(t, "%s", s);
    else
        put(t, "%s", new_name(r, NAMElocal, r->local, s));
}

char *lua_rename(Arena *a, const char *text, NewName *name, void *ctx)
{
    Renamer r = { .arena = a, .name = name, .ctx = ctx };
    Text t = { .arena = a };

    tokenize(&r, text);
    hide_hf(&r);
    find_axes(&r);
    find_scopes(&r);
    find_locals(&r);
    put(&t, "%s", "");
    for (size_t i = 0; i < vec_len(r.tok); i++) {
        put(&t, "%s", r.tok[i].before);
        if (r.tok[i].hidden)
            continue;
        if (r.tok[i].kind == STRING)
            put_string(&r, &t, i);
        else if (r.tok[i].kind == WORD)
            put_name(&r, &t, i);
        else
            put(&t, "%s", r.tok[i].s);
    }
    return t.s;
}
