/* cond.c: Lua has no metamethod for truth, so `if lt(a, b) then` would always
 * be taken. Before a model file runs, its text is parsed and every condition
 * put inside a call that refuses tensors:
 *
 *     if a < b and c then      =>   if C(C(a < b) and c) then
 *     x = x or default         =>   x = D(x) or default
 *
 * A local function named like a layer of the language sees that layer inside.
 * Nothing is put on other lines, so places stay right. Text that this parser
 * does not understand is left as it is. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum { DEEPEST = 250 }; /* Lua itself takes 200 */

typedef struct Insert {
    size_t at, cut; /* bytes of the text that go */
    int close;
    const char *text;
    size_t found; /* in which order */
} Insert;

typedef struct Parser {
    Arena *arena;
    const char *s;
    size_t len, pos; /* of the text; behind the token */
    size_t at, n;    /* the token */
    size_t last;     /* end of the one before */
    char kind;       /* n name, k keyword, s string, # number,
                                     o operator, 0 end */
    int bad, depth;
    size_t deep; /* where it was too deep; 0: nowhere */
    Insert *ins; /* vec */
} Parser;

/* ---- tokens -------------------------------------------------------------- */

static int keyword(const char *s, size_t n)
{
    static const char words[] =
        " and break do else elseif end false for function goto if in local nil "
        "not or repeat return then true until while ";

    for (const char *w = words; (w = strchr(w, ' ')) && w[1]; w++)
        if (!strncmp(w + 1, s, n) && w[1 + n] == ' ')
            return 1;
    return 0;
}

/* Behind "[==[ ... ]==]" that starts at i, or 0 when none does. */
static size_t long_bracket(const Parser *p, size_t i)
{
    size_t level = 0, k = i + 1;

    while (k < p->len && p->s[k] == '=')
        level++, k++;
    if (k >= p->len || p->s[i] != '[' || p->s[k] != '[')
        return 0;
    for (k++; k < p->len; k++) {
        size_t q = k + 1;
        if (p->s[k] != ']')
            continue;
        while (q < p->len && p->s[q] == '=')
            q++;
        if (q - k - 1 == level && q < p->len && p->s[q] == ']')
            return q + 1;
    }
    return p->len;
}

static void skip_space(Parser *p)
{
    for (;;) {
        while (p->pos < p->len && isspace((unsigned char)p->s[p->pos]))
            p->pos++;
        if (p->pos + 1 >= p->len || strncmp(p->s + p->pos, "--", 2))
            return;
        size_t end = p->pos + 2 < p->len ? long_bracket(p, p->pos + 2) : 0;
        if (end) {
            p->pos = end;
            continue;
        }
        while (p->pos < p->len && p->s[p->pos] != '\n')
            p->pos++;
    }
}

static size_t string_end(Parser *p, size_t i)
{
    char quote = p->s[i];

    for (i++; i < p->len && p->s[i] != quote && p->s[i] != '\n'; i++) {
        if (p->s[i] != '\\')
            continue;
        if (p->s[++i] == 'z') /* skips the space that follows */
            while (i + 1 < p->len && isspace((unsigned char)p->s[i + 1]))
                i++;
    }
    if (i >= p->len || p->s[i] != quote)
        p->bad = 1;
    return i + 1;
}

static size_t number_end(const Parser *p, size_t i)
{
    int hex = p->s[i] == '0' && (p->s[i + 1] | 32) == 'x';

    for (; i < p->len; i++) {
        char c = p->s[i], before = i ? p->s[i - 1] | 32 : 0;
        int sign = (c == '+' || c == '-') && before == (hex ? 'p' : 'e');
        if (!isalnum((unsigned char)c) && c != '.' && !sign)
            break;
    }
    return i;
}

static size_t operator_end(const Parser *p, size_t i)
{
    static const char *const ops[] = {
        "...", "..", "==", "~=", "<=", ">=", "//", "::", "<<", ">>",
    };

    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        size_t n = strlen(ops[k]);
        if (i + n <= p->len && !strncmp(p->s + i, ops[k], n))
            return i + n;
    }
    return i + 1;
}

static void next(Parser *p)
{
    p->last = p->at + p->n;
    skip_space(p);
    size_t i = p->at = p->pos, end;
    char c = i < p->len ? p->s[i] : 0;

    if (i >= p->len) {
        p->kind = 0;
        end = i;
    } else if (isalpha((unsigned char)c) || c == '_') {
        for (end = i; end < p->len; end++)
            if (!isalnum((unsigned char)p->s[end]) && p->s[end] != '_')
                break;
        p->kind = keyword(p->s + i, end - i) ? 'k' : 'n';
    } else if (isdigit((unsigned char)c) ||
               (c == '.' && isdigit((unsigned char)p->s[i + 1]))) {
        end = number_end(p, i);
        p->kind = '#';
    } else if (c == '"' || c == '\'') {
        end = string_end(p, i);
        p->kind = 's';
    } else if (c == '[' && (end = long_bracket(p, i))) {
        p->kind = 's';
    } else {
        end = operator_end(p, i);
        p->kind = 'o';
    }
    p->n = end - i;
    p->pos = end;
}

static int is(const Parser *p, const char *word)
{
    return (p->kind == 'k' || p->kind == 'o') && strlen(word) == p->n &&
           !strncmp(p->s + p->at, word, p->n);
}

static int accept(Parser *p, const char *word)
{
    if (!is(p, word))
        return 0;
    next(p);
    return 1;
}

static void expect(Parser *p, const char *word)
{
    if (!accept(p, word))
        p->bad = 1;
}

static void name(Parser *p)
{
    if (p->kind != 'n')
        p->bad = 1;
    else
        next(p);
}

/* ---- what is put around -------------------------------------------------- */

static void wrap(Parser *p, size_t from, size_t to, const char *f)
{
    Insert open = { from, 0, 0, f, vec_len(p->ins) };
    Insert close = { to, 0, 1, ")", vec_len(p->ins) };

    vec_push(p->arena, p->ins, open);
    vec_push(p->arena, p->ins, close);
}

static void go_deeper(Parser *p)
{
    if (++p->depth <= DEEPEST)
        return;
    p->bad = 1;
    p->deep = p->deep ? p->deep : p->at;
}

/* ---- grammar: manual section 9 ------------------------------------------- */

static void block(Parser *p);
static int expression(Parser *p, int limit);

static void list(Parser *p)
{
    do
        expression(p, 0);
    while (!p->bad && accept(p, ","));
}

static void function(Parser *p)
{
    expect(p, "(");
    while (!p->bad && !is(p, ")")) {
        if (!accept(p, "..."))
            name(p);
        if (!accept(p, ","))
            break;
    }
    expect(p, ")");
    block(p);
    expect(p, "end");
}

static void table(Parser *p)
{
    while (!p->bad && !is(p, "}")) {
        if (accept(p, "[")) {
            expression(p, 0);
            expect(p, "]");
            expect(p, "=");
            expression(p, 0);
        } else {
            expression(p, 0); /* also the name of name = value */
            if (accept(p, "="))
                expression(p, 0);
        }
        if (!accept(p, ",") && !accept(p, ";"))
            break;
    }
    expect(p, "}");
}

/* args: string, table or ( list ) */
static int arguments(Parser *p)
{
    if (p->kind == 's')
        next(p);
    else if (accept(p, "{"))
        table(p);
    else if (accept(p, "(")) {
        if (!is(p, ")"))
            list(p);
        expect(p, ")");
    } else {
        return 0;
    }
    return 1;
}

/* prefixexp with its suffixes */
static void suffixed(Parser *p)
{
    if (accept(p, "(")) {
        expression(p, 0);
        expect(p, ")");
    } else {
        name(p);
    }
    while (!p->bad) {
        if (accept(p, ".")) {
            name(p);
        } else if (accept(p, "[")) {
            expression(p, 0);
            expect(p, "]");
        } else if (accept(p, ":")) {
            name(p);
            if (!arguments(p))
                p->bad = 1;
        } else if (!arguments(p)) {
            break;
        }
    }
}

static void simple(Parser *p)
{
    if (p->kind == '#' || p->kind == 's' || is(p, "nil") || is(p, "true") ||
        is(p, "false") || is(p, "..."))
        next(p);
    else if (accept(p, "{"))
        table(p);
    else if (accept(p, "function"))
        function(p);
    else
        suffixed(p);
}

/* Left and right priority of the binary operators. */
/* clang-format off */
static const struct { const char *op; int left, right; } binary[] = {
    { "or", 1, 1 }, { "and", 2, 2 }, { "<", 3, 3 }, { ">", 3, 3 },
    { "<=", 3, 3 }, { ">=", 3, 3 }, { "~=", 3, 3 }, { "==", 3, 3 },
    { "|", 4, 4 }, { "~", 5, 5 }, { "&", 6, 6 }, { "<<", 7, 7 },
    { ">>", 7, 7 }, { "..", 9, 8 }, { "+", 10, 10 }, { "-", 10, 10 },
    { "*", 11, 11 }, { "/", 11, 11 }, { "//", 11, 11 }, { "%", 11, 11 },
    { "^", 14, 13 }, { NULL, 0, 0 },
};
/* clang-format on */
enum { UNARY = 12, IFELSE = 1 };

static int operator(const Parser *p)
{
    int i = 0;

    while (binary[i].op && !is(p, binary[i].op))
        i++;
    return i;
}

/* IFELSE when the expression is an `and` or `or` without parentheses. Of
 * `a and b and c` the conditions are a and b: not one in the other, so that
 * long chains do not nest. */
static int expression(Parser *p, int limit)
{
    size_t from = p->at;
    int kind = 0;

    go_deeper(p);
    if (accept(p, "not")) {
        size_t at = p->at;
        expression(p, UNARY);
        wrap(p, at, p->last, CONDITION "(");
    } else if (accept(p, "-") || accept(p, "#") || accept(p, "~")) {
        expression(p, UNARY);
    } else if (!p->bad) {
        simple(p);
    }
    for (int i; !p->bad && binary[i = operator(p)].left > limit;) {
        if (i == 1)
            wrap(p, from, p->last, CONDITION "(");
        else if (i == 0 && kind != IFELSE)
            wrap(p, from, p->last, CHOICE "(");
        next(p);
        from = i == 1 ? p->at : from;
        expression(p, binary[i].right);
        kind = i < 2 ? IFELSE : 0;
    }
    p->depth--;
    return kind;
}

static void condition(Parser *p)
{
    size_t from = p->at;

    expression(p, 0);
    wrap(p, from, p->last, CONDITION "(");
}

static void if_statement(Parser *p)
{
    do {
        condition(p);
        expect(p, "then");
        block(p);
    } while (!p->bad && accept(p, "elseif"));
    if (accept(p, "else"))
        block(p);
    expect(p, "end");
}

static void for_statement(Parser *p)
{
    name(p);
    if (!accept(p, "=")) {
        while (!p->bad && accept(p, ","))
            name(p);
        expect(p, "in");
    }
    list(p);
    expect(p, "do");
    block(p);
    expect(p, "end");
}

/* `local function attention(x)` often ends in the language's own attention(s,
 * v, key). Lua's scope would make that a call of itself; such a function is
 * not recursive here. */
static void local_function(Parser *p, size_t from)
{
    static const char *const layers[] = {
        "softmax", "rmsnorm",   "layernorm", "rope",
        "causal",  "attention", "swiglu",    "cross_entropy",
    };

    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (strlen(layers[i]) == p->n &&
            !strncmp(layers[i], p->s + p->at, p->n)) {
            Insert x = { from, p->at + p->n - from, 0,
                         strf(p->arena, "%s = function", layers[i]),
                         vec_len(p->ins) };
            vec_push(p->arena, p->ins, x);
        }
    name(p);
    function(p);
}

static void local_statement(Parser *p)
{
    size_t from = p->at;

    if (accept(p, "function")) {
        local_function(p, from);
        return;
    }
    do {
        name(p);
        if (accept(p, "<")) {
            name(p);
            expect(p, ">");
        }
    } while (!p->bad && accept(p, ","));
    if (accept(p, "="))
        list(p);
}

static void function_statement(Parser *p)
{
    name(p);
    while (!p->bad && (accept(p, ".") || accept(p, ":")))
        name(p);
    function(p);
}

static void assignment_or_call(Parser *p)
{
    suffixed(p);
    while (!p->bad && accept(p, ","))
        suffixed(p);
    if (accept(p, "="))
        list(p);
}

static int ends_block(const Parser *p)
{
    return p->bad || !p->kind || is(p, "end") || is(p, "else") ||
           is(p, "elseif") || is(p, "until");
}

static void statement(Parser *p)
{
    if (accept(p, ";") || accept(p, "break"))
        return;
    if (accept(p, "if")) {
        if_statement(p);
    } else if (accept(p, "while")) {
        condition(p);
        expect(p, "do");
        block(p);
        expect(p, "end");
    } else if (accept(p, "do")) {
        block(p);
        expect(p, "end");
    } else if (accept(p, "for")) {
        for_statement(p);
    } else if (accept(p, "repeat")) {
        block(p);
        expect(p, "until");
        condition(p);
    } else if (accept(p, "function")) {
        function_statement(p);
    } else if (accept(p, "local")) {
        local_statement(p);
    } else if (accept(p, "goto")) {
        name(p);
    } else if (accept(p, "::")) {
        name(p);
        expect(p, "::");
    } else if (accept(p, "return")) {
        if (!ends_block(p) && !is(p, ";"))
            list(p);
        accept(p, ";");
    } else {
        assignment_or_call(p);
    }
}

static void block(Parser *p)
{
    go_deeper(p);
    while (!ends_block(p))
        statement(p);
    p->depth--;
}

/* ---- the new text -------------------------------------------------------- */

/* Order in the text. At one place closing ones come first, and of opening ones
 * the later found is the outer. */
static int in_order(const void *v, const void *w)
{
    const Insert *a = v, *b = w;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->close != b->close)
        return b->close - a->close;
    return (a->found < b->found) == a->close ? -1 : 1;
}

int too_deep_line(Arena *a, const char *text, size_t len)
{
    Parser p = { .arena = a, .s = text, .len = len };
    int line = 1;

    next(&p);
    block(&p);
    for (size_t i = 0; i < p.deep; i++)
        line += text[i] == '\n';
    return p.deep ? line : 0;
}

char *guard_conditions(Arena *a, const char *text, size_t len, size_t *outlen)
{
    Parser p = { .arena = a, .s = text, .len = len };
    Text t = { .arena = a };
    size_t from = 0;

    next(&p);
    block(&p);
    if (p.bad || p.kind || !p.ins)
        return NULL;
    qsort(p.ins, vec_len(p.ins), sizeof *p.ins, in_order);
    for (size_t i = 0; i < vec_len(p.ins); i++) {
        putn(&t, text + from, p.ins[i].at - from);
        putn(&t, p.ins[i].text, strlen(p.ins[i].text));
        from = p.ins[i].at + p.ins[i].cut;
    }
    putn(&t, text + from, len - from);
    *outlen = t.len;
    return t.s;
}
