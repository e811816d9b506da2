/* added_tokens.c: finds added tokens, including special ones, before a text is
 * split into words: the leftmost, and the longest of several at one place.
 * Tokens marked `normalized` are searched after the text was normalized, the
 * others before. */
#include <utf8proc.h>

#include "tokenizer.h"

/* ---- trie ---------------------------------------------------------------- */

static int child_of(const Trie *trie, int node, uint8_t byte)
{
    int i = trie->node[node].child;

    while (i > 0 && trie->node[i].byte != byte)
        i = trie->node[i].next;
    return i;
}

void trie_add(Trie *trie, const Added *added, int index)
{
    int at = 0;

    if (!trie->node)
        vec_push(forever, trie->node, (TrieNode){ .added = -1 });
    trie->first[(uint8_t)added->text[0]] = 1;
    for (int i = 0; i < added->len; i++) {
        uint8_t byte = (uint8_t)added->text[i];
        int down = child_of(trie, at, byte);
        if (!down) {
            down = (int)vec_len(trie->node);
            TrieNode n = { .next = trie->node[at].child,
                           .added = -1,
                           .byte = byte };
            vec_push(forever, trie->node, n);
            trie->node[at].child = down;
        }
        at = down;
    }
    trie->node[at].added = index;
}

/* Returns the longest token at s; null: none. */
static const Added *longest(const Tokenizer *tokenizer, const Trie *trie,
                            const char *s, size_t n)
{
    int found = -1;

    for (size_t i = 0, at = 0; i < n; i++) {
        at = (size_t)child_of(trie, (int)at, (uint8_t)s[i]);
        if (!at)
            break;
        if (trie->node[at].added >= 0)
            found = trie->node[at].added;
    }
    return found < 0 ? NULL : &tokenizer->added[found];
}

/* ---- context of a token -------------------------------------------------- */

static int is_space(int32_t c)
{
    return (c >= '\t' && c <= '\r') || c == ' ' || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return 1;
    default:
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

/* Returns the character at i, or before it, and its length; -1: the text
 * ends. */
static int32_t char_at(const char *s, size_t n, size_t i, size_t *len)
{
    int32_t c = -1;

    *len = i < n ? (size_t)utf8proc_iterate((const uint8_t *)s + i,
                                            (utf8proc_ssize_t)(n - i), &c)
                 : 0;
    return c;
}

static int32_t char_before(const char *s, size_t i, size_t *len)
{
    size_t k = i;

    while (k > 0 && ((uint8_t)s[--k] & 0xc0) == 0x80)
        ;
    return char_at(s, i, k, len);
}

/* ---- splitting ----------------------------------------------------------- */

static void between(Encoder *encoder, int pass, const char *s, size_t n)
{
    if (!n)
        return;
    if (pass) {
        cut_text(encoder, 0, s, n);
    } else {
        const Bytes *b = normalize(encoder, s, n);
        added_split(encoder, 1, b ? b->s : s, b ? b->n : n);
    }
    encoder->first = 0;
}

/* Returns the start (at least `from`) and the end of the spaces around a
 * token. */
static size_t spaces_before(const char *s, size_t at, size_t from)
{
    size_t len;

    while (at > from && is_space(char_before(s, at, &len)))
        at -= len;
    return at;
}

static size_t spaces_after(const char *s, size_t n, size_t at)
{
    size_t len;

    while (at < n && is_space(char_at(s, n, at, &len)))
        at += len;
    return at;
}

static int stands_alone(const Added *added, const char *s, size_t n, size_t at)
{
    size_t len;

    return !is_word(char_before(s, at, &len)) &&
           !is_word(char_at(s, n, at + (size_t)added->len, &len));
}

/* pass 0: a part of the text as it came; 1: normalized. */
void added_split(Encoder *encoder, int pass, const char *s, size_t n)
{
    const Trie *t = &encoder->t->trie[pass];
    size_t done = 0;

    for (size_t i = 0; t->node && i < n;) {
        const Added *added = NULL;
        while (i < n && !(t->first[(uint8_t)s[i]] &&
                          (added = longest(encoder->t, t, s + i, n - i))))
            i++;
        if (!added)
            break;
        size_t from = i, to = i + (size_t)added->len;
        i = to;
        if (added->word && !stands_alone(added, s, n, from))
            continue;
        if (added->lstrip)
            from = spaces_before(s, from, done);
        if (added->rstrip)
            to = spaces_after(s, n, to);
        if (from > done)
            between(encoder, pass, s + done, from - done);
        encode_id(encoder, added->id);
        encoder->first = 0;
        done = to;
    }
    if (done < n)
        between(encoder, pass, s + done, n - done);
}
