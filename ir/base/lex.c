/* lex.c: reads and writes words of the text forms. Graphs (parse.c) and plans
 * (plantext.c) are lines of words; a word is bare or a "string", each of the
 * marks [ ] { } ( ) = , % @ ! < is a token, and # starts a comment. */
#include "base.h"

void lex_err(const Lex *lex, const char *fmt, ...)
{
    va_list ap;
    Loc l = { lex->file, lex->line, 0 };
    va_start(ap, fmt);
    char *s = vstrf(lex->arena, fmt, ap);
    va_end(ap);
    err(&l, "%s", s);
}

static int is_bare(unsigned char c)
{
    /* clang-format off */
    static const char mark[256] = {
        ['['] = 1, [']'] = 1, ['{'] = 1, ['}'] = 1, ['('] = 1, [')'] = 1,
        ['='] = 1, [','] = 1, ['%'] = 1, ['@'] = 1, ['!'] = 1, ['<'] = 1,
        ['"'] = 1, ['#'] = 1, ['\\'] = 1, [127] = 1,
    };
    /* clang-format on */
    return c > ' ' && !mark[c];
}

/* ---- writing ------------------------------------------------------------- */

void put_quoted(Text *out, const char *s, const char *escape)
{
    putn(out, "\"", 1);
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            put(out, "\\%c", *s);
        else if ((unsigned char)*s < ' ' || *s == 127)
            put(out, escape, (unsigned char)*s);
        else
            putn(out, s, 1);
    putn(out, "\"", 1);
}

void put_word(Text *out, const char *s)
{
    const char *c = s;
    while (*c && is_bare((unsigned char)*c))
        c++;
    if (c > s && !*c) {
        putn(out, s, (size_t)(c - s));
        return;
    }
    put_quoted(out, s, "\\x%02x");
}

void put_json(Text *out, const char *s)
{
    put_quoted(out, s, "\\u%04x");
}

void put_int(Text *out, int64_t v)
{
    char s[24], *p = s + sizeof s;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    putn(out, p, (size_t)(s + sizeof s - p));
}

/* Appends v as %a does, without trailing zeros of the fraction. */
void put_hex(Text *out, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint64_t frac = bits & 0xfffffffffffff;
    int exp = (int)(bits >> 52 & 0x7ff), digits = 13;
    if (exp == 0 || exp == 0x7ff) { /* 0, subnormal, inf, nan */
        put(out, "%a", v);
        return;
    }
    for (; digits && !(frac & 15); digits--)
        frac >>= 4;
    char s[16];
    for (int i = digits; i--; frac >>= 4)
        s[i] = "0123456789abcdef"[frac & 15];
    if (v < 0)
        putn(out, "-", 1);
    putn(out, "0x1.", digits ? 4 : 3);
    putn(out, s, (size_t)digits);
    exp -= 1023;
    putn(out, exp < 0 ? "p" : "p+", exp < 0 ? 1 : 2);
    put_int(out, exp);
}

void put_bits(Text *out, uint64_t v)
{
    char s[16];
    for (int i = 16; i--; v >>= 4)
        s[i] = "0123456789abcdef"[v & 15];
    putn(out, s, sizeof s);
}

void put_text(Text *out, const char *what, const char *name, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    putn(out, what, strlen(what));
    if (name) {
        putn(out, " ", 1);
        put_word(out, name);
    }
    putn(out, " ", 1);
    put_int(out, (int64_t)n);
    putn(out, "\n", 1);
    putn(out, text ? text : "", n);
    putn(out, "\n", 1);
}

/* ---- reading ------------------------------------------------------------- */

int lex_more(Lex *lex)
{
    while (lex->p < lex->end &&
           (*lex->p == ' ' || *lex->p == '\t' || *lex->p == '\r'))
        lex->p++;
    return lex->p < lex->end && *lex->p != '\n' && *lex->p != '#';
}

static void skip_comment(Lex *lex)
{
    if (lex->p < lex->end && *lex->p == '#')
        while (lex->p < lex->end && *lex->p != '\n')
            lex->p++;
}

int lex_next(Lex *lex)
{
    if (lex->line && lex_more(lex))
        lex_err(lex, "unexpected '%c' before the end of the line", *lex->p);
    if (!lex->line)
        lex->line = 1;
    for (;;) {
        if (lex_more(lex))
            return 1;
        skip_comment(lex);
        if (lex->p == lex->end)
            return 0;
        lex->p++;
        lex->line++;
    }
}

int lex_mark(Lex *lex, char c)
{
    if (!lex_more(lex) || *lex->p != c)
        return 0;
    lex->p++;
    return 1;
}

int lex_key(Lex *lex, const char *name)
{
    size_t n = strlen(name);
    if (!lex_more(lex) || (size_t)(lex->end - lex->p) <= n ||
        lex->p[n] != '=' || memcmp(lex->p, name, n))
        return 0;
    lex->p += n + 1;
    return 1;
}

void lex_need(Lex *lex, char c)
{
    if (!lex_mark(lex, c))
        lex_err(lex, "expected '%c'", c);
}

void lex_line(Lex *lex)
{
    if (!lex_next(lex))
        lex_err(lex, "the text ends too early");
}

static int hex(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* Reads string = '"' { char | \" | \\ | \xHH } '"'. */
static const char *string(Lex *lex)
{
    Text out = { .arena = lex->arena };
    putn(&out, "", 0);
    for (lex->p++; lex->p < lex->end && *lex->p != '"' && *lex->p != '\n';
         lex->p++) {
        char c = *lex->p;
        if (!c)
            lex_err(lex, "a zero byte in a string");
        if (c == '\\' && lex->end - lex->p > 4 && lex->p[1] == 'x') {
            int h = hex(lex->p[2]), l = hex(lex->p[3]);
            if (h < 0 || l < 0 || h + l == 0)
                lex_err(lex, "bad \\x in a string");
            c = (char)(16 * h + l);
            lex->p += 3;
        } else if (c == '\\' && lex->end - lex->p > 2) {
            c = *++lex->p;
        }
        putn(&out, &c, 1);
    }
    if (lex->p == lex->end || *lex->p != '"')
        lex_err(lex, "string without end");
    lex->p++;
    return intern(out.s);
}

/* Returns the length of the bare word ahead; err() if there is none. */
static size_t bare(Lex *lex)
{
    const char *s = lex->p;
    if (!lex_more(lex))
        lex_err(lex, "the line ends too early");
    for (s = lex->p; s < lex->end && is_bare((unsigned char)*s); s++)
        ;
    if (s == lex->p)
        lex_err(lex, "expected a word, not '%c'", *lex->p);
    return (size_t)(s - lex->p);
}

const char *lex_word(Lex *lex)
{
    if (lex_more(lex) && *lex->p == '"')
        return string(lex);
    size_t n = bare(lex);
    lex->p += n;
    return internn(lex->p - n, n);
}

int lex_take(Lex *lex, const char *word)
{
    size_t n = strlen(word);
    if (!lex_more(lex) || (size_t)(lex->end - lex->p) < n ||
        memcmp(lex->p, word, n))
        return 0;
    if (lex->p + n < lex->end && is_bare((unsigned char)lex->p[n]))
        return 0;
    lex->p += n;
    return 1;
}

/* Reads int = [ - ] digits. */
int64_t lex_int(Lex *lex)
{
    size_t n = bare(lex), i = *lex->p == '-';
    uint64_t v = 0, limit = (uint64_t)INT64_MAX + i;
    if (i == n)
        lex_err(lex, "'%.*s' is not an integer", (int)n, lex->p);
    for (; i < n; i++) {
        unsigned d = (unsigned char)lex->p[i] - '0';
        if (d > 9)
            lex_err(lex, "'%.*s' is not an integer", (int)n, lex->p);
        if (v > (limit - d) / 10)
            lex_err(lex, "'%.*s' is too large", (int)n, lex->p);
        v = 10 * v + d;
    }
    int minus = *lex->p == '-';
    lex->p += n;
    return minus ? (int64_t)(0 - v) : (int64_t)v;
}

int64_t lex_range(Lex *lex, const char *what, int64_t min, int64_t max)
{
    int64_t v = lex_int(lex);
    if (v < min || v > max)
        lex_err(lex, "%s is %ld, not between %ld and %ld", what, v, min, max);
    return v;
}

int lex_isdigit(char c)
{
    return c >= '0' && c <= '9';
}

int64_t lex_digits(Lex *lex)
{
    int minus = lex->p < lex->end && *lex->p == '-';
    uint64_t v = 0, limit = (uint64_t)INT64_MAX + (unsigned)minus;
    lex->p += minus;
    if (lex->p == lex->end || !lex_isdigit(*lex->p))
        lex_err(lex, "expected an integer");
    for (; lex->p < lex->end && lex_isdigit(*lex->p); lex->p++) {
        unsigned d = (unsigned)(*lex->p - '0');
        if (v > (limit - d) / 10)
            lex_err(lex, "an integer is too large");
        v = 10 * v + d;
    }
    return (int64_t)(minus ? 0 - v : v);
}

Dtype lex_dtype(Lex *lex)
{
    const char *s = lex_word(lex);
    int d = dtype_named(s);
    if (d < 0)
        lex_err(lex, "no dtype '%s'", s);
    return (Dtype)d;
}

void lex_place(Lex *lex, const char **file, int *at)
{
    if (!lex_mark(lex, '@'))
        return;
    *file = lex_word(lex);
    *at = (int)lex_range(lex, "line", 0, INT32_MAX);
}

double lex_num(Lex *lex)
{
    char s[64], *end;
    size_t n = bare(lex);
    if (n >= sizeof s)
        lex_err(lex, "'%.*s' is not a number", (int)n, lex->p);
    memcpy(s, lex->p, n);
    s[n] = 0;
    double v = strtod(s, &end);
    if (*end)
        lex_err(lex, "'%s' is not a number", s);
    lex->p += n;
    return v;
}

uint64_t lex_bits(Lex *lex)
{
    uint64_t v = 0;
    size_t n = bare(lex);
    for (size_t i = 0; i < n; i++) {
        const char *digit = "0123456789abcdef", *at = strchr(digit, lex->p[i]);
        if (n != 16 || !at)
            lex_err(lex, "'%.*s' is no hash", (int)n, lex->p);
        v = v << 4 | (uint64_t)(at - digit);
    }
    lex->p += n;
    return v;
}

const char *lex_text(Lex *lex)
{
    int64_t n = lex_range(lex, "length", 0, lex->end - lex->p);
    if (lex_more(lex) || lex->p == lex->end || *lex->p != '\n')
        lex_err(lex, "expected the end of the line");
    lex->p++;
    lex->line++;
    if (lex->end - lex->p < n)
        lex_err(lex, "%ld bytes are announced, %ld are left", n,
                lex->end - lex->p);
    if (memchr(lex->p, 0, (size_t)n))
        lex_err(lex, "a zero byte in a text");
    char *s = alloc(lex->arena, (size_t)n + 1);
    memcpy(s, lex->p, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        lex->line += s[i] == '\n';
    lex->p += n;
    return s;
}

int lex_choice(Lex *lex, const char *const *v, int n)
{
    const char *s = lex_word(lex);
    Text all = { .arena = lex->arena };

    int is = word_index(s, v, n);
    if (is >= 0)
        return is;
    for (int i = 0; i < n; i++)
        put(&all, "%s%s", i ? ", " : "", v[i]);
    lex_err(lex, "'%s' is none of %s", s, all.s);
}
