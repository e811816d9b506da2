/* spans.c: a reader of Lua's expressions that only notes where they stand. A
 * line may begin a statement; its expression is what follows `=`, `return`, or
 * a call. A function's body is stepped over: its lines are read by themselves.
 *
 *     expr    := unary (op unary)*
 *     unary   := [- not #] postfix
 *     postfix := name|number|string|table|(expr) then (args) [expr] .name */
#include <ctype.h>
#include <string.h>

#include "spans.h"

typedef struct Reader {
    Arena *a;
    const char *text;
    int at, bad;
    Phrase *v; /* vec */
} Reader;

static int expr(Reader *r, int level);

static void skip(Reader *r)
{
    for (;;) {
        r->at += (int)strspn(r->text + r->at, " \t\r\n");
        if (strncmp(r->text + r->at, "--", 2))
            return;
        r->at += (int)strcspn(r->text + r->at, "\n");
    }
}

static int is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The length of the word at the reader. */
static int word(const Reader *r)
{
    int n = 0;

    while (is_word(r->text[r->at + n]))
        n++;
    return n;
}

static int is(const Reader *r, const char *w)
{
    int n = word(r);

    return n == (int)strlen(w) && !strncmp(r->text + r->at, w, (size_t)n);
}

static int eat(Reader *r, const char *s)
{
    skip(r);
    size_t n = strlen(s);
    if (strncmp(r->text + r->at, s, n))
        return 0;
    r->at += (int)n;
    return 1;
}

static int add(Reader *r, Phrase s)
{
    vec_push(r->a, r->v, s);
    return (int)vec_len(r->v) - 1;
}

static void add_part(Phrase *s, int part)
{
    if (part >= 0 && s->npart < SPANPARTS)
        s->part[s->npart++] = part;
}

/* To behind the `end` of what `function` began. */
static void step_over(Reader *r)
{
    int depth = 0;

    do {
        skip(r);
        int n = word(r);
        if (is(r, "function") || is(r, "do") || is(r, "if"))
            depth++;
        else if (is(r, "end"))
            depth--;
        r->at += n ? n : r->text[r->at] != 0;
    } while (depth > 0 && r->text[r->at]);
}

static void quoted(Reader *r)
{
    char mark = r->text[r->at++];

    while (r->text[r->at] && r->text[r->at] != mark)
        r->at += r->text[r->at] == '\\' ? 2 : 1;
    r->at += r->text[r->at] == mark;
}

/* What stands between brackets, with commas; keys of tables are no parts. */
static void list(Reader *r, Phrase *s, const char *close)
{
    while (!r->bad && !eat(r, close)) {
        int before = r->at;
        skip(r);
        int n = word(r);
        const char *p = r->text + r->at + n;
        p += strspn(p, " ");
        if (n && *p == '=' && p[1] != '=')
            r->at = (int)(p - r->text) + 1;
        add_part(s, expr(r, 0));
        eat(r, ",");
        r->bad |= r->at == before;
    }
}

/* After its first word or bracket. */
static void rest_of_postfix(Reader *r, Phrase *s)
{
    for (;;) {
        int n = r->at;
        while (r->text[n] == ' ')
            n++;
        if (r->text[n] == '(') {
            eat(r, "(");
            list(r, s, ")");
        } else if (r->text[n] == '[') {
            eat(r, "[");
            list(r, s, "]");
        } else if (r->text[n] == '.' && r->text[n + 1] != '.') {
            eat(r, ".");
            r->at += word(r);
        } else {
            return;
        }
    }
}

static int postfix(Reader *r)
{
    Phrase s = { 0 };
    int text = 0;

    skip(r);
    s.from = r->at;
    char c = r->text[r->at];
    if (is(r, "function")) {
        step_over(r);
    } else if (c == '"' || c == '\'') {
        quoted(r);
        text = 1;
    } else if (c == '(' || c == '{') {
        r->at++;
        list(r, &s, c == '(' ? ")" : "}");
    } else if (isdigit((unsigned char)c)) {
        while (is_word(r->text[r->at]) || r->text[r->at] == '.')
            r->at++;
    } else if (word(r)) {
        r->at += word(r);
    } else {
        r->bad = 1;
        return -1;
    }
    rest_of_postfix(r, &s);
    s.to = r->at;
    return text ? -1 : add(r, s);
}

static int operator_level(const Reader *r, int *len)
{
    static const struct {
        const char *s;
        int level;
    } ops[] = { { "==", 2 }, { "~=", 2 }, { "<=", 2 }, { ">=", 2 }, { "..", 3 },
                { "+", 4 },  { "-", 4 },  { "*", 5 },  { "//", 5 }, { "/", 5 },
                { "%", 5 },  { "^", 6 },  { "<", 2 },  { ">", 2 } };
    const char *p = r->text + r->at;

    if (is(r, "and") || is(r, "or")) {
        *len = word(r);
        return 1;
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strncmp(p, ops[i].s, strlen(ops[i].s)) && strncmp(p, "--", 2)) {
            *len = (int)strlen(ops[i].s);
            return ops[i].level;
        }
    return 0;
}

static int expr(Reader *r, int level)
{
    Phrase s = { 0 };
    int len = 0, l, first, minus;

    skip(r);
    s.from = r->at;
    minus = r->text[r->at] == '-' || r->text[r->at] == '#' || is(r, "not");
    if (minus)
        r->at += word(r) ? word(r) : 1;
    first = postfix(r);
    if (minus) {
        s.to = r->at;
        add_part(&s, first);
        first = add(r, s);
    }
    for (;;) {
        int before = r->at;
        skip(r);
        l = operator_level(r, &len);
        if (r->bad || l <= level) {
            r->at = before;
            return first;
        }
        r->at += len;
        Phrase both = { .from = s.from };
        add_part(&both, first);
        add_part(&both, expr(r, l));
        both.to = r->at;
        first = add(r, both);
    }
}

/* From a line's first word to its expression; 0: none. */
static int statement(Reader *r)
{
    if (is(r, "local")) {
        r->at += word(r);
        skip(r);
        if (is(r, "function"))
            return 0;
    } else if (is(r, "return")) {
        r->at += word(r);
        return 1;
    } else if (is(r, "for") || is(r, "if") || is(r, "end") || !word(r)) {
        return 0;
    }
    int n = (int)strcspn(r->text + r->at, "=(\n{\"");
    if (r->text[r->at + n] == '=')
        r->at += n + 1;
    return r->text[r->at + n] != '\n';
}

Phrase *spans_of(Arena *a, const char *text)
{
    Reader r = { .a = a, .text = text };

    for (int begin = 0; text[begin];) {
        size_t n = strcspn(text + begin, "\n");
        r.at = begin + (int)strspn(text + begin, " \t");
        r.bad = 0;
        if (statement(&r))
            do
                expr(&r, 0);
            while (!r.bad && eat(&r, ","));
        begin += (int)n + (text[begin + (int)n] == '\n');
    }
    return r.v;
}

char *replaced(Arena *a, const char *text, int from, int to, const char *by)
{
    return strf(a, "%.*s%s%s", from, text, by, text + to);
}
