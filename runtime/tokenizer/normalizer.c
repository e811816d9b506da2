/* normalizer.c: normalizes a text as the tokenizer specifies: Unicode's NFC,
 * NFD, NFKC, NFKD by utf8proc, and the replacements of tokenizers converted
 * from SentencePiece. */
#include <utf8proc.h>

#include "tokenizer.h"

/* Marks and compatibility characters that Unicode 10 to 15 added. The
 * tokenizers library has Unicode 9's tables, in which these are unassigned:
 * they and their neighbours stay unchanged (compared with the library for every
 * character). */
/* clang-format off */
static const int32_t newer[][2] = {
    {0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe},
    {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba}, {0x1715, 0x1715},
    {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0x32ff, 0x32ff}, {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c}, {0xab69, 0xab69}, {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};
/* clang-format on */

static int is_newer(int32_t c)
{
    for (int i = 0; i < countof(newer); i++)
        if (c <= newer[i][1])
            return c >= newer[i][0];
    return 0;
}

/* Is a character unchanged by composition, whatever its neighbours? */
static int inert(int32_t c)
{
    if (c < 0x300)
        return 1;
    const utf8proc_property_t *p = utf8proc_get_property(c);
    int mark = p->category == UTF8PROC_CATEGORY_MN ||
               p->category == UTF8PROC_CATEGORY_MC;
    int jamo = c >= 0x1100 && c <= 0x11ff;
    return !p->combining_class && !mark && !jamo &&
           p->decomp_seqindex == UINT16_MAX;
}

/* Returns 1 if s is in form NFC; 0: it may not be. */
static int composed(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t c;
        if ((uint8_t)s[i] < 0xcc) { /* below U+0300 */
            i++;
            continue;
        }
        utf8proc_ssize_t len = utf8proc_iterate((const uint8_t *)s + i,
                                                (utf8proc_ssize_t)(n - i), &c);
        if (len <= 0 || !inert(c))
            return 0;
        i += (size_t)len;
    }
    return 1;
}

static int ascii(const char *s, size_t n)
{
    uint8_t or = 0;

    for (size_t i = 0; i < n; i++)
        or |= (uint8_t)s[i];
    return or < 0x80;
}

static void map_span(Encoder *encoder, int options, const char *s, size_t n,
                     Bytes *out)
{
    utf8proc_uint8_t *p = NULL;
    utf8proc_ssize_t len = utf8proc_map((const uint8_t *)s, (utf8proc_ssize_t)n,
                                        &p, (utf8proc_option_t)options);

    if (len < 0) {
        encoder->why = utf8proc_errmsg(len);
        return;
    }
    bytes_add(out, (const char *)p, (size_t)len);
    free(p);
}

/* Maps the text between newer marks, which stay unchanged. */
static void map_line(Encoder *encoder, int options, const char *s, size_t n,
                     Bytes *out)
{
    size_t done = 0;

    for (size_t i = 0; i < n;) {
        int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const uint8_t *)s + i,
                                                (utf8proc_ssize_t)(n - i), &c);
        size_t to = i + (len > 0 ? (size_t)len : 1);
        if (c >= newer[0][0] && is_newer(c)) {
            map_span(encoder, options, s + done, i - done, out);
            bytes_add(out, s + i, to - i);
            done = to;
        }
        i = to;
    }
    map_span(encoder, options, s + done, n - done, out);
}

static int is_formed(int options, const char *s, size_t n)
{
    static const int nfc = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

    return options == nfc ? composed(s, n) : ascii(s, n);
}

/* Maps line by line: no character combines or moves across a line's end, and
 * few lines need a change. */
static int form(Encoder *encoder, int options, const char *s, size_t n,
                Bytes *out)
{
    if (is_formed(options, s, n))
        return 0;
    for (size_t i = 0, len; i < n && !encoder->why; i += len) {
        const char *end = memchr(s + i, '\n', n - i);
        len = end ? (size_t)(end - s) + 1 - i : n - i;
        if (is_formed(options, s + i, len))
            bytes_add(out, s + i, len);
        else
            map_line(encoder, options, s + i, len, out);
    }
    return 1;
}

static int replace(const Norm *norm, const char *s, size_t n, Bytes *out)
{
    size_t from = strlen(norm->from), to = strlen(norm->to);
    int any = 0;

    for (const char *p; (p = memmem(s, n, norm->from, from)); any = 1) {
        bytes_add(out, s, (size_t)(p - s));
        bytes_add(out, norm->to, to);
        n -= (size_t)(p - s) + from;
        s = p + from;
    }
    if (any)
        bytes_add(out, s, n);
    return any;
}

/* Applies the normalizers in turn, between encoder->normal's two buffers. */
const Bytes *normalize(Encoder *encoder, const char *s, size_t n)
{
    const Bytes *now = NULL;

    for (size_t i = 0; i < vec_len(encoder->t->norm); i++) {
        const Norm *norm = &encoder->t->norm[i];
        Bytes *out = now == &encoder->normal[0] ? &encoder->normal[1]
                                                : &encoder->normal[0];
        const char *from = now ? now->s : s;
        size_t len = now ? now->n : n;
        int changed = 1;
        out->n = 0;
        if (norm->kind == NORMform) {
            changed = form(encoder, norm->form, from, len, out);
        } else if (norm->kind == NORMreplace) {
            changed = replace(norm, from, len, out);
        } else {
            bytes_add(out, norm->to, strlen(norm->to));
            bytes_add(out, from, len);
        }
        now = changed ? out : now;
    }
    return now;
}
