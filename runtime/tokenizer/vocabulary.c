/* vocabulary.c: the model of a tokenizer.json: the tokens of its vocabulary,
 * how bytes are written in them, and its merges. Also how such a file is
 * asked. */
#include <jansson.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer.h"

/* ---- JSON ---------------------------------------------------------------- */

const char *part_type(const json_t *j)
{
    const char *s = json_string_value(json_object_get(j, "type"));

    return s ? s : "";
}

const char *part_text(const TokenizerLoad *l, const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));

    if (!s)
        err(l->loc, "%s: \"%s\" is no text", part_type(j), key);
    return intern(s);
}

int part_flag(const json_t *j, const char *key, int dflt)
{
    const json_t *v = json_object_get(j, key);

    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

int part_set(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);

    return v && !json_is_null(v) &&
           !(json_is_string(v) && !json_string_length(v)) &&
           !(json_is_number(v) && json_number_value(v) == 0);
}

/* ---- tokens -------------------------------------------------------------- */

/* GPT-2 writes a byte as a character: itself where that can be seen, else the
 * next of U+0100, U+0101 ... */
static void map_bytes(TokenizerLoad *l)
{
    int more = 256;

    memset(l->byteof, -1, sizeof l->byteof);
    for (int b = 0; b < 256; b++) {
        int seen = (b > 32 && b < 127) || (b > 160 && b != 173);
        l->byteof[seen ? b : more++] = (int16_t)b;
    }
}

/* The bytes of a token that is written in those characters; null: it is not. */
static const char *raw(const TokenizerLoad *l, const char *s, int *n)
{
    size_t len = strlen(s), k = 0;
    char *out = alloc(forever, len + 1);

    for (size_t i = 0; i < len;) {
        int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const uint8_t *)s + i, -1, &c);
        if (step <= 0 || c >= 324 || l->byteof[c] < 0)
            return NULL;
        out[k++] = (char)l->byteof[c];
        i += (size_t)step;
    }
    *n = (int)k;
    return out;
}

static void read_vocab(TokenizerLoad *l)
{
    Bpe *b = &l->t->bpe;
    const char *s;
    json_t *v;

    json_object_foreach(l->vocab, s, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= MAXID)
            err(l->loc, "vocab: the number of '%s' is wrong", s);
        b->nid = b->nid > (int)id + 1 ? b->nid : (int)id + 1;
    }
    if (!b->nid || b->nid > 16 * (int64_t)json_object_size(l->vocab) + 65536)
        err(l->loc, "model: no vocab, or one full of holes");
    b->text = alloc(forever, (size_t)b->nid * sizeof *b->text);
    b->len = alloc(forever, (size_t)b->nid * sizeof *b->len);
    json_object_foreach(l->vocab, s, v)
    {
        int id = (int)json_integer_value(v);
        if (b->text[id])
            err(l->loc, "vocab: '%s' has the number of another token", s);
        b->text[id] = b->bytelevel ? raw(l, s, &b->len[id]) : NULL;
        if (!b->text[id]) {
            b->len[id] = (int)strlen(s);
            b->text[id] = strf(forever, "%s", s);
        }
    }
}

int32_t vocab_id(const TokenizerLoad *l, const char *s)
{
    const json_t *v = json_object_get(l->vocab, s);

    return v ? (int32_t)json_integer_value(v) : -1;
}

/* A byte's token, and that of any character: by its text as the file has it,
 * since a token of the same bytes may be written otherwise. */
static void read_bytes(TokenizerLoad *l, int fallback)
{
    Bpe *b = &l->t->bpe;

    memset(b->byte, -1, sizeof b->byte);
    for (int c = 0; b->bytelevel && c < 324; c++)
        if (l->byteof[c] >= 0) {
            char s[8] = { 0 };
            utf8proc_encode_char(c, (utf8proc_uint8_t *)s);
            b->byte[l->byteof[c]] = vocab_id(l, s);
        }
    for (int i = 0; fallback && i < NBYTE; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        b->byte[i] = vocab_id(l, s);
    }
}

/* ---- merges -------------------------------------------------------------- */

static _Noreturn void bad_merge(const TokenizerLoad *l, size_t i,
                                const char *why)
{
    err(l->loc, "merges: number %zu %s", i + 1, why);
}

/* The two texts of a merge, "a b" or ["a", "b"], and both as one. */
static void merge_texts(const TokenizerLoad *l, const json_t *j, size_t i,
                        Text side[3])
{
    const char *s = json_string_value(j), *gap = s ? strchr(s, ' ') : NULL;
    const char *a = s ? s : json_string_value(json_array_get(j, 0));
    const char *c = gap ? gap + 1 : json_string_value(json_array_get(j, 1));

    if (!a || !c || (s && strchr(c, ' ')) || (!s && json_array_size(j) != 2))
        bad_merge(l, i, "is not two tokens");
    side[0].len = side[1].len = side[2].len = 0;
    putn(&side[0], a, gap ? (size_t)(gap - a) : strlen(a));
    putn(&side[1], c, strlen(c));
    putn(&side[2], side[0].s, side[0].len);
    putn(&side[2], c, strlen(c));
}

static void read_merges(TokenizerLoad *l, const json_t *list)
{
    Text side[3] = { { .arena = forever },
                     { .arena = forever },
                     { .arena = forever } };
    int32_t id[3];

    for (size_t i = 0; i < json_array_size(list); i++) {
        merge_texts(l, json_array_get(list, i), i, side);
        for (int k = 0; k < 3; k++)
            if ((id[k] = vocab_id(l, side[k].s)) < 0)
                bad_merge(l, i,
                          strf(forever, "has '%s', which is not in vocab",
                               side[k].s));
        bpe_merge(&l->t->bpe, id[0], id[1], (int32_t)i, id[2]);
    }
}

/* ---- the whole ----------------------------------------------------------- */

void vocabulary_read(TokenizerLoad *l)
{
    const json_t *j = json_object_get(l->root, "model");
    const json_t *merges = json_object_get(j, "merges");
    Bpe *b = &l->t->bpe;

    l->vocab = json_object_get(j, "vocab");
    if (strcmp(part_type(j), "BPE") && (*part_type(j) || !merges))
        err(l->loc, "model %s is not known here: only BPE is", part_type(j));
    if (!json_is_object(l->vocab) || !json_is_array(merges))
        err(l->loc, "model: no vocab or no merges");
    if (part_set(j, "dropout") || part_set(j, "continuing_subword_prefix") ||
        part_set(j, "end_of_word_suffix"))
        err(l->loc, "model: dropout, continuing_subword_prefix and "
                    "end_of_word_suffix are not known here");
    map_bytes(l);
    b->bytelevel = l->bytelevel;
    b->whole = part_flag(j, "ignore_merges", 0);
    b->fuse = part_flag(j, "fuse_unk", 0);
    b->unk = part_set(j, "unk_token")
                 ? vocab_id(l, part_text(l, j, "unk_token"))
                 : -1;
    read_vocab(l);
    read_bytes(l, part_flag(j, "byte_fallback", 0));
    bpe_index(b, (int)json_array_size(merges));
    read_merges(l, merges);
}
