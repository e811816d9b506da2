/* pretokenizer.c: pre-tokenizers: a text is cut into words that are encoded
 * alone. Patterns are written for Oniguruma (Ruby's syntax); what PCRE2 would
 * read otherwise is rewritten, or refused. Each cut hands its parts to the
 * next. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "tokenizer.h"

/* ---- patterns ------------------------------------------------------------ */

/* What \s, \w and \d mean there, inside []. */
static const char *const classes[NBYTE] = {
    ['s'] = "\\t-\\r "
            "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{"
            "202f}\\x{205f}\\x{3000}",
    ['w'] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}",
    ['d'] = "\\p{Nd}",
};

/* \p{L} and its kin, with what PCRE2's tables lack; not \P{L} inside []: what
 * is not newer than they are. */
static void put_property(Text *out, const char *s, size_t len, int inside)
{
    int not = s[0] == 'P', caret = s[2] == '^';
    const char *name = s + 2 + caret;
    size_t n = (size_t)(s + len - 1 - name);

    if (inside && (not || caret)) {
        put(out, "\\%.*s", (int)len, s);
        return;
    }
    put(out, "%s\\p{%.*s}",
        inside         ? ""
        : not != caret ? "[^"
                       : "[",
        (int)n, name);
    put_newer(out, name, n);
    put(out, "%s", inside ? "" : "]");
}

/* What stands for \w, \s or \d inside []. */
static void put_set(Text *out, const char *set)
{
    for (const char *s = set; *s; s++)
        if (s[0] == '\\' && s[1] == 'p') {
            size_t len = strcspn(s, "}");
            put_property(out, s + 1, len, 1);
            s += len;
        } else {
            putn(out, s, 1);
        }
}

/* After a backslash; returns how many bytes it took. */
static size_t put_escape(Text *out, const char *s, int inside, const Loc *l)
{
    int lower = s[0] | 0x20;
    const char *set = lower == s[0] || !inside ? classes[lower & 127] : NULL;
    size_t len = s[0] && s[1] == '{' ? strcspn(s, "}") + 1 : 1; /* \p{L} */

    if (s[0] && s[1] == '{' && !strchr(s, '}'))
        err(l, "pattern: \\%c{ without }", s[0]);
    if (strchr("hHGKXRQEyYNO", s[0]) || !s[0])
        err(l, "pattern: \\%c is not known here", s[0] ? s[0] : ' ');
    if (set) {
        put(out, "%s", inside ? "" : s[0] == lower ? "[" : "[^");
        put_set(out, set);
        put(out, "%s", inside ? "" : "]");
    } else if (lower == 'p' && len > 3) {
        put_property(out, s, len, inside);
    } else {
        put(out, "\\%.*s", (int)len, s);
    }
    return len;
}

/* s behind '[': to behind its ']'. */
static size_t put_class(Text *out, const char *s, const Loc *l)
{
    size_t i = s[0] == '^';

    put(out, "[%.*s", (int)i, s);
    for (size_t first = i; s[i] && (s[i] != ']' || i == first); i++) {
        size_t posix =
            s[i] == '[' && s[i + 1] == ':' ? strcspn(s + i, "]") + 1 : 0;
        if (posix) {
            put(out, "%.*s", (int)posix, s + i);
            i += posix - 1;
        } else if (s[i] == '[' || (s[i] == '&' && s[i + 1] == '&')) {
            err(l, "pattern: sets inside [] are not known here");
        } else if (s[i] == '\\') {
            i += put_escape(out, s + i + 1, 1, l);
        } else {
            put(out, "%c", s[i]);
        }
    }
    put(out, "%c", s[i]);
    return i + (s[i] == ']');
}

static char *translated(const char *s, const Loc *l)
{
    Text out = { .arena = forever };

    put(&out, "%s", "");
    while (*s) {
        int c = *s++;
        if (c == '\\')
            s += put_escape(&out, s, 0, l);
        else if (c == '[')
            s += put_class(&out, s, l);
        else
            put(&out, "%c", c);
        if (c == '}' && *s == '+')
            err(l, "pattern: {..}+ is not known here");
        if (c == '(' && *s == '?' && memchr(s, 'm', strspn(s, "?imx-")))
            err(l, "pattern: (?m) is not known here");
    }
    return out.s;
}

void *cut_compile(const char *pattern, const Loc *l)
{
    const char *text = translated(pattern, l);
    int code;
    size_t at;
    pcre2_code *p = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                      PCRE2_NEVER_BACKSLASH_C,
                                  &code, &at, NULL);

    if (!p) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        err(l, "pattern '%.60s': %s", pattern, (char *)why);
    }
    pcre2_jit_compile(p, PCRE2_JIT_COMPLETE); /* without it: slower */
    return p;
}

/* ---- matching ------------------------------------------------------------ */

static void open_matcher(Encoder *e)
{
    e->match = pcre2_match_data_create(1, NULL);
    e->context = pcre2_match_context_create(NULL);
    e->stack = pcre2_jit_stack_create(32 << 10, 64 << 20, NULL);
    if (!e->match || !e->context || !e->stack)
        err(NULL, "out of memory: a matcher");
    pcre2_jit_stack_assign(e->context, NULL, e->stack);
}

/* The next match in s from at on. 0: no more. */
static int next_match(Encoder *e, const PreTokenizer *c, const char *s,
                      size_t n, size_t at, size_t *from, size_t *to)
{
    if (!e->match)
        open_matcher(e);
    if (at >= n)
        return 0;
    int r = pcre2_match(c->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK,
                        e->match, e->context);
    if (r < 0 && r != PCRE2_ERROR_NOMATCH)
        e->why = "the tokenizer's pattern needs too much memory or time";
    if (r < 0)
        return 0;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(e->match);
    *from = v[0];
    *to = v[1];
    return 1;
}

/* ---- parts --------------------------------------------------------------- */

/* A part that waits for the one after it. */
typedef struct PendingPart {
    size_t from, to;
    int any, match;
} PendingPart;

static void release(Encoder *e, size_t k, const char *s, PendingPart *h)
{
    if (h->any)
        cut_text(e, k + 1, s + h->from, h->to - h->from);
    h->any = 0;
}

/* One of the parts that cover a text, in order, with what matched between what
 * did not. */
static void part(Encoder *e, size_t k, const char *s, PendingPart *h,
                 size_t from, size_t to, int match)
{
    const PreTokenizer *c = &e->t->cut[k];
    int joins = 0;

    match ^= c->invert;
    if (c->how == CUTisolated || c->how == CUTremoved) {
        if (c->how == CUTisolated || !match)
            cut_text(e, k + 1, s + from, to - from);
        return;
    }
    if (c->how == CUTprevious)
        joins = match && !h->match;
    else if (c->how == CUTnext)
        joins = !match && h->match;
    else
        joins = match == h->match;
    if (!h->any || !joins) {
        release(e, k, s, h);
        h->from = from;
    }
    h->to = to;
    h->any = 1;
    h->match = match;
}

static void cut_match(Encoder *e, size_t k, const char *s, size_t n)
{
    const PreTokenizer *c = &e->t->cut[k];
    size_t done = 0, at = 0, from, to;
    PendingPart h = { 0 };

    while (!e->why && next_match(e, c, s, n, at, &from, &to)) {
        if (from > done)
            part(e, k, s, &h, done, from, 0);
        if (to > from)
            part(e, k, s, &h, from, to, 1);
        done = at = to;
        while (from == to && at < n && ((uint8_t)s[++at] & 0xc0) == 0x80 &&
               at < n)
            ;
    }
    if (n > done)
        part(e, k, s, &h, done, n, 0);
    release(e, k, s, &h);
}

/* ---- spaces -------------------------------------------------------------- */

/* s with a space in front, and with c->space for each. */
static const Bytes *spaced(Encoder *e, size_t k, const char *s, size_t n)
{
    const PreTokenizer *c = &e->t->cut[k];
    const char *space = c->space ? c->space : " ";
    size_t len = strlen(space);
    Bytes *b = &e->cut[k];
    int has = (n >= len && !memcmp(s, space, len)) || *s == ' ';

    b->n = 0;
    if (!has && (c->prefix == PREalways || (c->prefix == PREfirst && e->first)))
        bytes_add(b, space, len);
    while (c->space && n) {
        const char *p = memchr(s, ' ', n);
        size_t i = p ? (size_t)(p - s) : n;
        bytes_add(b, s, i);
        if (p)
            bytes_add(b, space, len);
        s += i + !!p;
        n -= i + !!p;
    }
    bytes_add(b, s, n);
    return b;
}

void cut_text(Encoder *e, size_t k, const char *s, size_t n)
{
    if (!n || e->why)
        return;
    if (k == vec_len(e->t->cut)) {
        bpe_word(e, s, n);
        return;
    }
    const PreTokenizer *c = &e->t->cut[k];
    if (c->kind == CUTspace) {
        const Bytes *b = spaced(e, k, s, n);
        e->first = 0;
        cut_text(e, k + 1, b->s, b->n);
    } else {
        cut_match(e, k, s, n);
    }
}
