/* cond.c: Lua has no metamethod for truth, so the branch of `if lt(a, b) then`
 * would always run. Before a model file runs, its text is parsed and every
 * condition is wrapped in a call that raises an error for tensors:
 *
 *     if a < b and c then      =>   if C(C(a < b) and c) then
 *     x = x or default         =>   x = D(x) or default
 *
 * A local function named like a layer of the language sees that layer inside.
 * Insertions keep line numbers. Text that this parser cannot parse is not
 * changed. */
#include <ctype.h>

#include "../frontend.h"

enum { DEEPEST = 250 }; /* Lua's limit is 200 */

typedef struct Insert {
    size_t at, cut; /* bytes removed from the text */
    int close;
    const char *text;
    size_t found; /* rank of discovery */
} Insert;

typedef struct Parser {
    Arena *arena;
    const char *s;
    size_t len, pos; /* length of the text; position after the token */
    size_t at, n;    /* the token */
    size_t last;     /* end of the previous token */
    char kind;       /* n name, k keyword, s string, # number,
                                     o operator, 0 end */
    int bad, depth;
    size_t deep; /* position of too deep nesting; 0: none */
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

/* The position after a long bracket "[=[ ... ]=]" that starts at i; 0: none. */
static size_t long_bracket(const Parser *parser, size_t i)
{
    size_t level = 0, k = i + 1;

    while (k < parser->len && parser->s[k] == '=')
        level++, k++;
    if (k >= parser->len || parser->s[i] != '[' || parser->s[k] != '[')
        return 0;
    for (k++; k < parser->len; k++) {
        size_t q = k + 1;
        if (parser->s[k] != ']')
            continue;
        while (q < parser->len && parser->s[q] == '=')
            q++;
        if (q - k - 1 == level && q < parser->len && parser->s[q] == ']')
            return q + 1;
    }
    return parser->len;
}

static void skip_space(Parser *parser)
{
    for (;;) {
        while (parser->pos < parser->len &&
               isspace((unsigned char)parser->s[parser->pos]))
            parser->pos++;
        if (parser->pos + 1 >= parser->len ||
            strncmp(parser->s + parser->pos, "--", 2))
            return;
        size_t end = parser->pos + 2 < parser->len
                         ? long_bracket(parser, parser->pos + 2)
                         : 0;
        if (end) {
            parser->pos = end;
            continue;
        }
        while (parser->pos < parser->len && parser->s[parser->pos] != '\n')
            parser->pos++;
    }
}

static size_t string_end(Parser *parser, size_t i)
{
    char quote = parser->s[i];

    for (i++; i < parser->len && parser->s[i] != quote && parser->s[i] != '\n';
         i++) {
        if (parser->s[i] != '\\')
            continue;
        if (parser->s[++i] == 'z') /* skips the space that follows */
            while (i + 1 < parser->len &&
                   isspace((unsigned char)parser->s[i + 1]))
                i++;
    }
    if (i >= parser->len || parser->s[i] != quote)
        parser->bad = 1;
    return i + 1;
}

static size_t number_end(const Parser *parser, size_t i)
{
    int hex = parser->s[i] == '0' && (parser->s[i + 1] | 32) == 'x';

    for (; i < parser->len; i++) {
        char c = parser->s[i], before = i ? parser->s[i - 1] | 32 : 0;
        int sign = (c == '+' || c == '-') && before == (hex ? 'p' : 'e');
        if (!isalnum((unsigned char)c) && c != '.' && !sign)
            break;
    }
    return i;
}

static size_t operator_end(const Parser *parser, size_t i)
{
    static const char *const ops[] = {
        "...", "..", "==", "~=", "<=", ">=", "//", "::", "<<", ">>",
    };

    for (int k = 0; k < countof(ops); k++) {
        size_t n = strlen(ops[k]);
        if (i + n <= parser->len && !strncmp(parser->s + i, ops[k], n))
            return i + n;
    }
    return i + 1;
}

static void next(Parser *parser)
{
    parser->last = parser->at + parser->n;
    skip_space(parser);
    size_t i = parser->at = parser->pos, end;
    char c = i < parser->len ? parser->s[i] : 0;

    if (i >= parser->len) {
        parser->kind = 0;
        end = i;
    } else if (isalpha((unsigned char)c) || c == '_') {
        for (end = i; end < parser->len; end++)
            if (!isalnum((unsigned char)parser->s[end]) &&
                parser->s[end] != '_')
                break;
        parser->kind = keyword(parser->s + i, end - i) ? 'k' : 'n';
    } else if (isdigit((unsigned char)c) ||
               (c == '.' && isdigit((unsigned char)parser->s[i + 1]))) {
        end = number_end(parser, i);
        parser->kind = '#';
    } else if (c == '"' || c == '\'') {
        end = string_end(parser, i);
        parser->kind = 's';
    } else if (c == '[' && (end = long_bracket(parser, i))) {
        parser->kind = 's';
    } else {
        end = operator_end(parser, i);
        parser->kind = 'o';
    }
    parser->n = end - i;
    parser->pos = end;
}

static int is(const Parser *parser, const char *word)
{
    return (parser->kind == 'k' || parser->kind == 'o') &&
           strlen(word) == parser->n &&
           !strncmp(parser->s + parser->at, word, parser->n);
}

static int accept(Parser *parser, const char *word)
{
    if (!is(parser, word))
        return 0;
    next(parser);
    return 1;
}

static void expect(Parser *parser, const char *word)
{
    if (!accept(parser, word))
        parser->bad = 1;
}

static void name(Parser *parser)
{
    if (parser->kind != 'n')
        parser->bad = 1;
    else
        next(parser);
}

/* ---- insertions ---------------------------------------------------------- */

static void wrap(Parser *parser, size_t from, size_t to, const char *f)
{
    Insert open = { from, 0, 0, f, vec_len(parser->ins) };
    Insert close = { to, 0, 1, ")", vec_len(parser->ins) };

    vec_push(parser->arena, parser->ins, open);
    vec_push(parser->arena, parser->ins, close);
}

static void go_deeper(Parser *parser)
{
    if (++parser->depth <= DEEPEST)
        return;
    parser->bad = 1;
    parser->deep = parser->deep ? parser->deep : parser->at;
}

/* ---- grammar: manual section 9 ------------------------------------------- */

static void block(Parser *parser);
static int expression(Parser *parser, int limit);

static void list(Parser *parser)
{
    do
        expression(parser, 0);
    while (!parser->bad && accept(parser, ","));
}

static void function(Parser *parser)
{
    expect(parser, "(");
    while (!parser->bad && !is(parser, ")")) {
        if (!accept(parser, "..."))
            name(parser);
        if (!accept(parser, ","))
            break;
    }
    expect(parser, ")");
    block(parser);
    expect(parser, "end");
}

static void table(Parser *parser)
{
    while (!parser->bad && !is(parser, "}")) {
        if (accept(parser, "[")) {
            expression(parser, 0);
            expect(parser, "]");
            expect(parser, "=");
            expression(parser, 0);
        } else {
            expression(parser, 0); /* also the name of name = value */
            if (accept(parser, "="))
                expression(parser, 0);
        }
        if (!accept(parser, ",") && !accept(parser, ";"))
            break;
    }
    expect(parser, "}");
}

/* args: string, table or ( list ) */
static int arguments(Parser *parser)
{
    if (parser->kind == 's')
        next(parser);
    else if (accept(parser, "{"))
        table(parser);
    else if (accept(parser, "(")) {
        if (!is(parser, ")"))
            list(parser);
        expect(parser, ")");
    } else {
        return 0;
    }
    return 1;
}

/* prefixexp with its suffixes */
static void suffixed(Parser *parser)
{
    if (accept(parser, "(")) {
        expression(parser, 0);
        expect(parser, ")");
    } else {
        name(parser);
    }
    while (!parser->bad) {
        if (accept(parser, ".")) {
            name(parser);
        } else if (accept(parser, "[")) {
            expression(parser, 0);
            expect(parser, "]");
        } else if (accept(parser, ":")) {
            name(parser);
            if (!arguments(parser))
                parser->bad = 1;
        } else if (!arguments(parser)) {
            break;
        }
    }
}

static void simple(Parser *parser)
{
    if (parser->kind == '#' || parser->kind == 's' || is(parser, "nil") ||
        is(parser, "true") || is(parser, "false") || is(parser, "..."))
        next(parser);
    else if (accept(parser, "{"))
        table(parser);
    else if (accept(parser, "function"))
        function(parser);
    else
        suffixed(parser);
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

static int operator(const Parser *parser)
{
    int i = 0;

    while (binary[i].op && !is(parser, binary[i].op))
        i++;
    return i;
}

/* Returns IFELSE if the expression is an `and` or `or` without parentheses. The
 * conditions of `a and b and c` are a and b, wrapped separately, so that long
 * chains do not nest. */
static int expression(Parser *parser, int limit)
{
    size_t from = parser->at;
    int kind = 0;

    go_deeper(parser);
    if (accept(parser, "not")) {
        size_t at = parser->at;
        expression(parser, UNARY);
        wrap(parser, at, parser->last, CONDITION "(");
    } else if (accept(parser, "-") || accept(parser, "#") ||
               accept(parser, "~")) {
        expression(parser, UNARY);
    } else if (!parser->bad) {
        simple(parser);
    }
    for (int i; !parser->bad && binary[i = operator(parser)].left > limit;) {
        if (i == 1)
            wrap(parser, from, parser->last, CONDITION "(");
        else if (i == 0 && kind != IFELSE)
            wrap(parser, from, parser->last, CHOICE "(");
        next(parser);
        from = i == 1 ? parser->at : from;
        expression(parser, binary[i].right);
        kind = i < 2 ? IFELSE : 0;
    }
    parser->depth--;
    return kind;
}

static void condition(Parser *parser)
{
    size_t from = parser->at;

    expression(parser, 0);
    wrap(parser, from, parser->last, CONDITION "(");
}

static void if_statement(Parser *parser)
{
    do {
        condition(parser);
        expect(parser, "then");
        block(parser);
    } while (!parser->bad && accept(parser, "elseif"));
    if (accept(parser, "else"))
        block(parser);
    expect(parser, "end");
}

static void for_statement(Parser *parser)
{
    name(parser);
    if (!accept(parser, "=")) {
        while (!parser->bad && accept(parser, ","))
            name(parser);
        expect(parser, "in");
    }
    list(parser);
    expect(parser, "do");
    block(parser);
    expect(parser, "end");
}

/* `local function attention(x)` often calls the language's attention(s, v,
 * key). In Lua's scope that would be recursion; here it calls the layer. */
static void local_function(Parser *parser, size_t from)
{
    static const char *const layers[] = {
        "softmax", "rmsnorm",   "layernorm", "rope",
        "causal",  "attention", "swiglu",    "cross_entropy",
    };

    for (int i = 0; i < countof(layers); i++)
        if (strlen(layers[i]) == parser->n &&
            !strncmp(layers[i], parser->s + parser->at, parser->n)) {
            Insert x = { from, parser->at + parser->n - from, 0,
                         strf(parser->arena, "%s = function", layers[i]),
                         vec_len(parser->ins) };
            vec_push(parser->arena, parser->ins, x);
        }
    name(parser);
    function(parser);
}

static void local_statement(Parser *parser)
{
    size_t from = parser->at;

    if (accept(parser, "function")) {
        local_function(parser, from);
        return;
    }
    do {
        name(parser);
        if (accept(parser, "<")) {
            name(parser);
            expect(parser, ">");
        }
    } while (!parser->bad && accept(parser, ","));
    if (accept(parser, "="))
        list(parser);
}

static void function_statement(Parser *parser)
{
    name(parser);
    while (!parser->bad && (accept(parser, ".") || accept(parser, ":")))
        name(parser);
    function(parser);
}

static void assignment_or_call(Parser *parser)
{
    suffixed(parser);
    while (!parser->bad && accept(parser, ","))
        suffixed(parser);
    if (accept(parser, "="))
        list(parser);
}

static int ends_block(const Parser *parser)
{
    return parser->bad || !parser->kind || is(parser, "end") ||
           is(parser, "else") || is(parser, "elseif") || is(parser, "until");
}

static void statement(Parser *parser)
{
    if (accept(parser, ";") || accept(parser, "break"))
        return;
    if (accept(parser, "if")) {
        if_statement(parser);
    } else if (accept(parser, "while")) {
        condition(parser);
        expect(parser, "do");
        block(parser);
        expect(parser, "end");
    } else if (accept(parser, "do")) {
        block(parser);
        expect(parser, "end");
    } else if (accept(parser, "for")) {
        for_statement(parser);
    } else if (accept(parser, "repeat")) {
        block(parser);
        expect(parser, "until");
        condition(parser);
    } else if (accept(parser, "function")) {
        function_statement(parser);
    } else if (accept(parser, "local")) {
        local_statement(parser);
    } else if (accept(parser, "goto")) {
        name(parser);
    } else if (accept(parser, "::")) {
        name(parser);
        expect(parser, "::");
    } else if (accept(parser, "return")) {
        if (!ends_block(parser) && !is(parser, ";"))
            list(parser);
        accept(parser, ";");
    } else {
        assignment_or_call(parser);
    }
}

static void block(Parser *parser)
{
    go_deeper(parser);
    while (!ends_block(parser))
        statement(parser);
    parser->depth--;
}

/* ---- output -------------------------------------------------------------- */

/* Orders insertions by position. At one position closing ones come first; of
 * opening ones the later found is the outer. */
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
    Parser parser = { .arena = a, .s = text, .len = len };
    int line = 1;

    next(&parser);
    block(&parser);
    for (size_t i = 0; i < parser.deep; i++)
        line += text[i] == '\n';
    return parser.deep ? line : 0;
}

char *guard_conditions(Arena *a, const char *text, size_t len, size_t *outlen)
{
    Parser parser = { .arena = a, .s = text, .len = len };
    Text out = { .arena = a };
    size_t from = 0;

    next(&parser);
    block(&parser);
    if (parser.bad || parser.kind || !parser.ins)
        return NULL;
    qsort(parser.ins, vec_len(parser.ins), sizeof *parser.ins, in_order);
    for (size_t i = 0; i < vec_len(parser.ins); i++) {
        putn(&out, text + from, parser.ins[i].at - from);
        putn(&out, parser.ins[i].text, strlen(parser.ins[i].text));
        from = parser.ins[i].at + parser.ins[i].cut;
    }
    putn(&out, text + from, len - from);
    *outlen = out.len;
    return out.s;
}
