/* pretokenizer.c: pre-tokenizers split a text into words that are encoded
 * separately. Patterns have Oniguruma's syntax (Ruby's); constructs that PCRE2
 * reads differently are rewritten or refused. Each pre-tokenizer passes its
 * parts to the next. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer.h"

/* ---- patterns ------------------------------------------------------------ */

/* Oniguruma's POSIX brackets, which are also properties of the same names, as
 * contents of []. Code points are those that PCRE2's tables lack. */
#define ALPHA                                                                  \
    "\\p{Alphabetic}\\p{L}\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}-"  \
    "\\x{f83}\\x{1dd3}-\\x{1de6}\\x{10d69}\\x{10efc}\\x{11080}-\\x{11081}"     \
    "\\x{11241}\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}" \
    "\\x{113cc}-\\x{113cd}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-"          \
    "\\x{11f3a}\\x{11f3e}-\\x{11f40}\\x{1611e}-\\x{1612e}\\x{1e08f}"
#define SPACE                                                                 \
    "\\t-\\r\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{" \
    "202f}\\x{205f}\\x{3000} "
#define LOWER                                           \
    "\\p{Lowercase}\\p{Ll}\\x{10fc}\\x{a7f2}-\\x{a7f4}" \
    "\\x{ab69}\\x{1e030}-\\x{1e06d}"
#define WORD ALPHA "\\p{M}\\p{Nd}\\p{Pc}"
#define GRAPH \
    "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\x{13439}-\\x{1343f}"

static const struct {
    const char *name, *set;
} brackets[] = {
    { "alnum", ALPHA "\\p{Nd}" },
    { "alpha", ALPHA },
    { "alphabetic", ALPHA },
    { "ascii", "\\x{0}-\\x{7f}" },
    { "blank", "\\p{Zs}\\t" },
    { "cntrl", "\\p{Cc}" },
    { "digit", "\\p{Nd}" },
    { "graph", GRAPH },
    { "lower", LOWER },
    { "lowercase", LOWER },
    { "print", GRAPH "\\p{Zs}" },
    { "punct", "\\p{P}\\p{S}" },
    { "space", SPACE },
    { "upper", "\\p{Uppercase}\\p{Lu}" },
    { "uppercase", "\\p{Uppercase}\\p{Lu}" },
    { "word", WORD },
    { "xdigit", "0-9A-Fa-f" },
};

/* Returns the set of a POSIX bracket; null: unknown name. */
static const char *bracket(const char *name, size_t n)
{
    for (int i = 0; i < countof(brackets); i++)
        if (strlen(brackets[i].name) == n &&
            !strncasecmp(brackets[i].name, name, n))
            return brackets[i].set;
    return NULL;
}

/* Returns the set of \s, \w or \d; null: another letter. Outside [] \w has six
 * more superscripts and fractions. */
static const char *letter_set(int c, int inside)
{
    return c == 's'             ? SPACE
           : c == 'd'           ? "\\p{Nd}"
           : c == 'w' && inside ? WORD
           : c == 'w'           ? WORD "\\x{b2}-\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
                                : NULL;
}

static void put_set(Text *out, const char *set);

/* Appends a property such as \p{L} with the code points that PCRE2's tables
 * lack. \P{L} inside [] is left out here: its set must exclude the new code
 * points. */
static void put_property(Text *out, const char *s, size_t len, int inside)
{
    int not = s[0] == 'P', caret = s[2] == '^';
    const char *name = s + 2 + caret;
    size_t n = (size_t)(s + len - 1 - name);
    const char *set = bracket(name, n);

    if (inside && (not || caret)) {
        put(out, "\\%.*s", (int)len, s);
        return;
    }
    put(out, "%s", inside ? "" : not != caret ? "[^" : "[");
    if (set) {
        put_set(out, set);
    } else {
        put(out, "\\p{%.*s}", (int)n, name);
        put_newer(out, name, n);
    }
    put(out, "%s", inside ? "" : "]");
}

/* Appends a set of the table; \p{Alphabetic} stays PCRE2's. */
static void put_set(Text *out, const char *set)
{
    for (const char *s = set; *s; s++) {
        size_t n = s[1] == 'p' ? strcspn(s, "}") - 3 : 0;
        if (s[0] == '\\' && n) {
            put(out, "\\p{%.*s}", (int)n, s + 3);
            put_newer(out, s + 3, n);
            s += n + 3;
        } else {
            putn(out, s, 1);
        }
    }
}

/* Rewrites the escape after a backslash. Returns the bytes read. */
static size_t put_escape(Text *out, const char *s, int inside, const Loc *loc)
{
    int lower = s[0] | 0x20;
    const char *set = letter_set(lower, inside);
    size_t len = s[0] && s[1] == '{' ? strcspn(s, "}") + 1 : 1; /* \p{L} */

    if (s[0] && s[1] == '{' && !strchr(s, '}'))
        err(loc, "pattern: \\%c{ without }", s[0]);
    if (strchr("hHGKXRQEyYNO", s[0]) || !s[0])
        err(loc, "pattern: \\%c is not known here", s[0] ? s[0] : ' ');
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

/* Returns the set that an item of [] excludes, \W or [:^alpha:], and the item's
 * length; null: the item excludes none. */
static const char *excluded(const char *s, size_t *len)
{
    size_t n = s[0] == '[' ? strcspn(s, "]") : 0;

    *len = n ? n + 1 : 2;
    if (n > 4 && !strncmp(s, "[:^", 3) && s[n - 1] == ':')
        return bracket(s + 3, n - 4);
    return s[0] == '\\' && s[1] && strchr("SWD", s[1])
               ? letter_set(s[1] | 0x20, 1)
               : NULL;
}

/* Rewrites the item of [] at s. Returns its length. */
static size_t put_item(Text *out, const char *s, const Loc *loc)
{
    size_t n = s[0] == '[' && s[1] == ':' ? strcspn(s, "]") : 0;
    const char *set = n > 3 ? bracket(s + 2, n - 3) : NULL;

    if (n && !set)
        err(loc, "pattern: %.*s is not known here", (int)n + 1, s);
    if (!n && (s[0] == '[' || (s[0] == '&' && s[1] == '&')))
        err(loc, "pattern: sets inside [] are not known here");
    if (set)
        put_set(out, set);
    else if (s[0] == '\\')
        return 1 + put_escape(out, s + 1, 1, loc);
    else
        putn(out, s, 1);
    return set ? n + 1 : 1;
}

/* Rewrites a class; s is after '['. Returns the bytes up to and including ']'.
 * Excluded sets become alternatives: [a\W] is (?:[a]|[^word]). */
static size_t put_class(Text *out, const char *s, const Loc *loc)
{
    Text items = { .arena = forever }, beside = { .arena = forever };
    size_t not = s[0] == '^', i = not, len;

    for (; s[i] && (s[i] != ']' || i == not ); i += len) {
        const char *set = excluded(s + i, &len);
        if (!set) {
            len = put_item(&items, s + i, loc);
            continue;
        }
        put(&beside, "%s[^", beside.len ? "|" : "");
        put_set(&beside, set);
        put(&beside, "]");
    }
    if (s[i] != ']')
        err(loc, "pattern: [ without ]");
    if (!beside.len)
        put(out, "[%s%s]", not ? "^" : "", items.s);
    else
        put(out, not ? "(?:(?!%s%s%s%s)(?s:.))" : "(?:%s%s%s%s)",
            items.len ? "[" : "", items.len ? items.s : "",
            items.len ? "]|" : "", beside.s);
    return i + 1;
}

static char *translated(const char *s, const Loc *loc)
{
    Text out = { .arena = forever };

    put(&out, "%s", "");
    while (*s) {
        int c = *s++;
        if (c == '\\')
            s += put_escape(&out, s, 0, loc);
        else if (c == '[')
            s += put_class(&out, s, loc);
        else
            put(&out, "%c", c);
        if (c == '}' && *s == '+')
            err(loc, "pattern: {..}+ is not known here");
        if (c == '(' && *s == '?' && memchr(s, 'm', strspn(s, "?imx-")))
            err(loc, "pattern: (?m) is not known here");
    }
    return out.s;
}

void *cut_compile(const char *pattern, const Loc *loc)
{
    const char *text = translated(pattern, loc);
    int code;
    size_t at;
    pcre2_code *p = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                      PCRE2_NEVER_BACKSLASH_C,
                                  &code, &at, NULL);

    if (!p) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        err(loc, "pattern '%.60s': %s", pattern, (char *)why);
    }
    pcre2_jit_compile(p, PCRE2_JIT_COMPLETE); /* optional: only speed */
    return p;
}

/* ---- matching ------------------------------------------------------------ */

static void open_matcher(Encoder *encoder)
{
    encoder->match = pcre2_match_data_create(1, NULL);
    encoder->context = pcre2_match_context_create(NULL);
    encoder->stack = pcre2_jit_stack_create(32 << 10, 64 << 20, NULL);
    if (!encoder->match || !encoder->context || !encoder->stack)
        err(NULL, "out of memory: a matcher");
    pcre2_jit_stack_assign(encoder->context, NULL, encoder->stack);
}

/* Finds the next match in s from `at` on. Returns 0 if there is none. */
static int next_match(Encoder *encoder, const PreTokenizer *tokenizer,
                      const char *s, size_t n, size_t at, size_t *from,
                      size_t *to)
{
    if (!encoder->match)
        open_matcher(encoder);
    if (at >= n)
        return 0;
    int r = pcre2_match(tokenizer->code, (PCRE2_SPTR)s, n, at,
                        PCRE2_NO_UTF_CHECK, encoder->match, encoder->context);
    if (r < 0 && r != PCRE2_ERROR_NOMATCH)
        encoder->why = "the tokenizer's pattern needs too much memory or time";
    if (r < 0)
        return 0;
    const PCRE2_SIZE *p_c_r_e2__s_i_z_e =
        pcre2_get_ovector_pointer(encoder->match);
    *from = p_c_r_e2__s_i_z_e[0];
    *to = p_c_r_e2__s_i_z_e[1];
    return 1;
}

/* ---- parts --------------------------------------------------------------- */

/* A part whose successor is not known yet. */
typedef struct PendingPart {
    size_t from, to;
    int any, match;
} PendingPart;

static void release(Encoder *encoder, size_t k, const char *s,
                    PendingPart *part)
{
    if (part->any)
        cut_text(encoder, k + 1, s + part->from, part->to - part->from);
    part->any = 0;
}

/* Handles one of the consecutive parts of a text, matched and unmatched ones in
 * turn. */
static void part(Encoder *encoder, size_t k, const char *s,
                 PendingPart *pending_part, size_t from, size_t to, int match)
{
    const PreTokenizer *tokenizer = &encoder->t->cut[k];
    int joins = 0;

    match ^= tokenizer->invert;
    if (tokenizer->how == CUTisolated || tokenizer->how == CUTremoved) {
        if (tokenizer->how == CUTisolated || !match)
            cut_text(encoder, k + 1, s + from, to - from);
        return;
    }
    if (tokenizer->how == CUTprevious)
        joins = match && !pending_part->match;
    else if (tokenizer->how == CUTnext)
        joins = !match && pending_part->match;
    else
        joins = match == pending_part->match;
    if (!pending_part->any || !joins) {
        release(encoder, k, s, pending_part);
        pending_part->from = from;
    }
    pending_part->to = to;
    pending_part->any = 1;
    pending_part->match = match;
}

static void cut_match(Encoder *encoder, size_t k, const char *s, size_t n)
{
    const PreTokenizer *c = &encoder->t->cut[k];
    size_t done = 0, at = 0, from, to;
    PendingPart h = { 0 };

    while (!encoder->why && next_match(encoder, c, s, n, at, &from, &to)) {
        if (from > done)
            part(encoder, k, s, &h, done, from, 0);
        if (to > from)
            part(encoder, k, s, &h, from, to, 1);
        done = at = to;
        while (from == to && at < n && ((uint8_t)s[++at] & 0xc0) == 0x80 &&
               at < n)
            ;
    }
    if (n > done)
        part(encoder, k, s, &h, done, n, 0);
    release(encoder, k, s, &h);
}

/* ---- spaces -------------------------------------------------------------- */

/* Returns s with a space in front and every space replaced by
 * tokenizer->space. */
static const Bytes *spaced(Encoder *encoder, size_t k, const char *s, size_t n)
{
    const PreTokenizer *tokenizer = &encoder->t->cut[k];
    const char *space = tokenizer->space ? tokenizer->space : " ";
    size_t len = strlen(space);
    Bytes *b = &encoder->cut[k];
    int has = (n >= len && !memcmp(s, space, len)) || *s == ' ';

    b->n = 0;
    if (!has && (tokenizer->prefix == PREalways ||
                 (tokenizer->prefix == PREfirst && encoder->first)))
        bytes_add(b, space, len);
    while (tokenizer->space && n) {
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

void cut_text(Encoder *encoder, size_t k, const char *s, size_t n)
{
    if (!n || encoder->why)
        return;
    if (k == vec_len(encoder->t->cut)) {
        bpe_word(encoder, s, n);
        return;
    }
    const PreTokenizer *tokenizer = &encoder->t->cut[k];
    if (tokenizer->kind == CUTspace) {
        const Bytes *b = spaced(encoder, k, s, n);
        encoder->first = 0;
        cut_text(encoder, k + 1, b->s, b->n);
    } else {
        cut_match(encoder, k, s, n);
    }
}
