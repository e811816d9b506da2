/* lex.c: words of the text forms, in and out. Graphs (parse.c) and plans
 * (plantext.c) are lines of words; a word is bare or a "string", the marks
 * [ ] { } ( ) = , % @ ! < stand alone, and # starts a comment. */
#include <stdlib.h>
#include <string.h>
#include "plan.h"

void lex_err(const Lex *x, const char *fmt, ...)
{
    va_list ap;
    Loc l = { x->file, x->line, 0 };
    va_start(ap, fmt);
    char *s = vstrf(x->arena, fmt, ap);
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

/* ---- out ----------------------------------------------------------------- */

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

/* As %a: the trailing zeros of the fraction left out. */
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

/* aff = int { "+" int "*a" atom } [ "!" place ] */
void put_aff(Text *out, const RankAffine *x)
{
    putn(out, " ", 1);
    put_int(out, x->c);
    for (int i = 0; i < MAXATOM; i++)
        if (x->k[i]) {
            putn(out, "+", 1);
            put_int(out, x->k[i]);
            putn(out, "*a", 2);
            put_int(out, i);
        }
    if (x->place) {
        putn(out, "!", 1);
        put_int(out, x->place);
    }
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

/* ---- in ------------------------------------------------------------------ */

int lex_more(Lex *x)
{
    while (x->p < x->end && (*x->p == ' ' || *x->p == '\t' || *x->p == '\r'))
        x->p++;
    return x->p < x->end && *x->p != '\n' && *x->p != '#';
}

static void skip_comment(Lex *x)
{
    if (x->p < x->end && *x->p == '#')
        while (x->p < x->end && *x->p != '\n')
            x->p++;
}

int lex_next(Lex *x)
{
    if (x->line && lex_more(x))
        lex_err(x, "unexpected '%c' before the end of the line", *x->p);
    if (!x->line)
        x->line = 1;
    for (;;) {
        if (lex_more(x))
            return 1;
        skip_comment(x);
        if (x->p == x->end)
            return 0;
        x->p++;
        x->line++;
    }
}

int lex_mark(Lex *x, char c)
{
    if (!lex_more(x) || *x->p != c)
        return 0;
    x->p++;
    return 1;
}

int lex_key(Lex *x, const char *name)
{
    size_t n = strlen(name);
    if (!lex_more(x) || (size_t)(x->end - x->p) <= n || x->p[n] != '=' ||
        memcmp(x->p, name, n))
        return 0;
    x->p += n + 1;
    return 1;
}

void lex_need(Lex *x, char c)
{
    if (!lex_mark(x, c))
        lex_err(x, "expected '%c'", c);
}

void lex_line(Lex *x)
{
    if (!lex_next(x))
        lex_err(x, "the text ends too early");
}

static int hex(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* string = '"' { char | \" | \\ | \xHH } '"' */
static const char *string(Lex *x)
{
    Text out = { .arena = x->arena };
    putn(&out, "", 0);
    for (x->p++; x->p < x->end && *x->p != '"' && *x->p != '\n'; x->p++) {
        char c = *x->p;
        if (!c)
            lex_err(x, "a zero byte in a string");
        if (c == '\\' && x->end - x->p > 4 && x->p[1] == 'x') {
            int h = hex(x->p[2]), l = hex(x->p[3]);
            if (h < 0 || l < 0 || h + l == 0)
                lex_err(x, "bad \\x in a string");
            c = (char)(16 * h + l);
            x->p += 3;
        } else if (c == '\\' && x->end - x->p > 2) {
            c = *++x->p;
        }
        putn(&out, &c, 1);
    }
    if (x->p == x->end || *x->p != '"')
        lex_err(x, "string without end");
    x->p++;
    return intern(out.s);
}

/* The extent of the bare word ahead; err when there is none. */
static size_t bare(Lex *x)
{
    const char *s = x->p;
    if (!lex_more(x))
        lex_err(x, "the line ends too early");
    for (s = x->p; s < x->end && is_bare((unsigned char)*s); s++)
        ;
    if (s == x->p)
        lex_err(x, "expected a word, not '%c'", *x->p);
    return (size_t)(s - x->p);
}

const char *lex_word(Lex *x)
{
    if (lex_more(x) && *x->p == '"')
        return string(x);
    size_t n = bare(x);
    x->p += n;
    return internn(x->p - n, n);
}

int lex_take(Lex *x, const char *word)
{
    size_t n = strlen(word);
    if (!lex_more(x) || (size_t)(x->end - x->p) < n || memcmp(x->p, word, n))
        return 0;
    if (x->p + n < x->end && is_bare((unsigned char)x->p[n]))
        return 0;
    x->p += n;
    return 1;
}

/* int = [ - ] digits */
int64_t lex_int(Lex *x)
{
    size_t n = bare(x), i = *x->p == '-';
    uint64_t v = 0, limit = (uint64_t)INT64_MAX + i;
    if (i == n)
        lex_err(x, "'%.*s' is not an integer", (int)n, x->p);
    for (; i < n; i++) {
        unsigned d = (unsigned char)x->p[i] - '0';
        if (d > 9)
            lex_err(x, "'%.*s' is not an integer", (int)n, x->p);
        if (v > (limit - d) / 10)
            lex_err(x, "'%.*s' is too large", (int)n, x->p);
        v = 10 * v + d;
    }
    int minus = *x->p == '-';
    x->p += n;
    return minus ? (int64_t)(0 - v) : (int64_t)v;
}

int64_t lex_range(Lex *x, const char *what, int64_t min, int64_t max)
{
    int64_t v = lex_int(x);
    if (v < min || v > max)
        lex_err(x, "%s is %lld, not between %lld and %lld", what, (long long)v,
                (long long)min, (long long)max);
    return v;
}

int lex_isdigit(char c)
{
    return c >= '0' && c <= '9';
}

int64_t lex_digits(Lex *x)
{
    int minus = x->p < x->end && *x->p == '-';
    uint64_t v = 0, limit = (uint64_t)INT64_MAX + (unsigned)minus;
    x->p += minus;
    if (x->p == x->end || !lex_isdigit(*x->p))
        lex_err(x, "expected an integer");
    for (; x->p < x->end && lex_isdigit(*x->p); x->p++) {
        unsigned d = (unsigned)(*x->p - '0');
        if (v > (limit - d) / 10)
            lex_err(x, "an integer is too large");
        v = 10 * v + d;
    }
    return (int64_t)(minus ? 0 - v : v);
}

/* aff = int { "+" int "*a" atom } */
RankAffine lex_aff(Lex *x)
{
    if (!lex_more(x))
        lex_err(x, "the line ends too early");
    RankAffine a = aff(lex_digits(x));
    while (x->p < x->end && *x->p == '+') {
        x->p++;
        int64_t k = lex_digits(x);
        if (x->end - x->p < 3 || x->p[0] != '*' || x->p[1] != 'a')
            lex_err(x, "expected '*a' and an atom");
        x->p += 2;
        int64_t at = lex_digits(x);
        if (at < 0 || at >= MAXATOM)
            lex_err(x, "atom %lld of %d", (long long)at, MAXATOM);
        a.k[at] = k;
    }
    if (x->p < x->end && *x->p == '!') {
        x->p++;
        a.place = lex_digits(x);
    }
    return a;
}

Dtype lex_dtype(Lex *x)
{
    const char *s = lex_word(x);
    int d = dtype_named(s);
    if (d < 0)
        lex_err(x, "no dtype '%s'", s);
    return (Dtype)d;
}

void lex_place(Lex *x, const char **file, int *at)
{
    if (!lex_mark(x, '@'))
        return;
    *file = lex_word(x);
    *at = (int)lex_range(x, "line", 0, INT32_MAX);
}

double lex_num(Lex *x)
{
    char s[64], *end;
    size_t n = bare(x);
    if (n >= sizeof s)
        lex_err(x, "'%.*s' is not a number", (int)n, x->p);
    memcpy(s, x->p, n);
    s[n] = 0;
    double v = strtod(s, &end);
    if (*end)
        lex_err(x, "'%s' is not a number", s);
    x->p += n;
    return v;
}

uint64_t lex_bits(Lex *x)
{
    uint64_t v = 0;
    size_t n = bare(x);
    for (size_t i = 0; i < n; i++) {
        const char *digit = "0123456789abcdef", *at = strchr(digit, x->p[i]);
        if (n != 16 || !at)
            lex_err(x, "'%.*s' is no hash", (int)n, x->p);
        v = v << 4 | (uint64_t)(at - digit);
    }
    x->p += n;
    return v;
}

const char *lex_text(Lex *x)
{
    int64_t n = lex_range(x, "length", 0, x->end - x->p);
    if (lex_more(x) || x->p == x->end || *x->p != '\n')
        lex_err(x, "expected the end of the line");
    x->p++;
    x->line++;
    if (x->end - x->p < n)
        lex_err(x, "%lld bytes are announced, %lld are left", (long long)n,
                (long long)(x->end - x->p));
    if (memchr(x->p, 0, (size_t)n))
        lex_err(x, "a zero byte in a text");
    char *s = alloc(x->arena, (size_t)n + 1);
    memcpy(s, x->p, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        x->line += s[i] == '\n';
    x->p += n;
    return s;
}

int lex_choice(Lex *x, const char *const *v, int n)
{
    const char *s = lex_word(x);
    Text all = { .arena = x->arena };

    int is = word_index(s, v, n);
    if (is >= 0)
        return is;
    for (int i = 0; i < n; i++)
        put(&all, "%s%s", i ? ", " : "", v[i]);
    lex_err(x, "'%s' is none of %s", s, all.s);
}
