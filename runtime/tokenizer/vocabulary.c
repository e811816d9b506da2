/* vocabulary.c: the model of a tokenizer.json: the tokens of its vocabulary,
 * how bytes are written in them, and its merges. Also how such a file is
 * asked. */
#include <utf8proc.h>

#include "tokenizer.h"

/* ---- JSON ---------------------------------------------------------------- */

const char *part_type(const json_t *j)
{
    const char *s = json_string_value(json_object_get(j, "type"));

    return s ? s : "";
}

const char *part_text(const TokenizerLoad *load, const json_t *j,
                      const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));

    if (!s)
        err(load->loc, "%s: \"%s\" is no text", part_type(j), key);
    return intern(s);
}

int part_flag(const json_t *j, const char *key, int dflt)
{
    const json_t *v = json_object_get(j, key);

    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

static int part_set(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);

    return v && !json_is_null(v) &&
           !(json_is_string(v) && !json_string_length(v)) &&
           !(json_is_number(v) && json_number_value(v) == 0);
}

/* ---- tokens -------------------------------------------------------------- */

/* GPT-2 writes a byte as a character: itself where that can be seen, else the
 * next of U+0100, U+0101 ... */
static void map_bytes(TokenizerLoad *load)
{
    int more = 256;

    memset(load->byteof, -1, sizeof load->byteof);
    for (int b = 0; b < 256; b++) {
        int seen = (b > 32 && b < 127) || (b > 160 && b != 173);
        load->byteof[seen ? b : more++] = (int16_t)b;
    }
}

/* The bytes of a token that is written in those characters; null: it is not. */
static const char *raw(const TokenizerLoad *load, const char *s, int *n)
{
    size_t len = strlen(s), k = 0;
    char *out = alloc(forever, len + 1);

    for (size_t i = 0; i < len;) {
        int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const uint8_t *)s + i, -1, &c);
        if (step <= 0 || c >= 324 || load->byteof[c] < 0)
            return NULL;
        out[k++] = (char)load->byteof[c];
        i += (size_t)step;
    }
    *n = (int)k;
    return out;
}

static void read_vocab(TokenizerLoad *load)
{
    Bpe *bpe = &load->t->bpe;
    const char *s;
    json_t *v;

    json_object_foreach(load->vocab, s, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= MAXID)
            err(load->loc, "vocab: the number of '%s' is wrong", s);
        bpe->nid = bpe->nid > (int)id + 1 ? bpe->nid : (int)id + 1;
    }
    if (!bpe->nid ||
        bpe->nid > 16 * (int64_t)json_object_size(load->vocab) + 65536)
        err(load->loc, "model: no vocab, or one full of holes");
    bpe->text = alloc(forever, (size_t)bpe->nid * sizeof *bpe->text);
    bpe->len = alloc(forever, (size_t)bpe->nid * sizeof *bpe->len);
    json_object_foreach(load->vocab, s, v)
    {
        int id = (int)json_integer_value(v);
        if (bpe->text[id])
            err(load->loc, "vocab: '%s' has the number of another token", s);
        bpe->text[id] = bpe->bytelevel ? raw(load, s, &bpe->len[id]) : NULL;
        if (!bpe->text[id]) {
            bpe->len[id] = (int)strlen(s);
            bpe->text[id] = strf(forever, "%s", s);
        }
    }
}

int32_t vocab_id(const TokenizerLoad *load, const char *s)
{
    const json_t *v = json_object_get(load->vocab, s);

    return v ? (int32_t)json_integer_value(v) : -1;
}

/* A byte's token, and that of any character: by its text as the file has it,
 * since a token of the same bytes may be written otherwise. */
static void read_bytes(TokenizerLoad *load, int fallback)
{
    Bpe *bpe = &load->t->bpe;

    memset(bpe->byte, -1, sizeof bpe->byte);
    for (int c = 0; bpe->bytelevel && c < 324; c++)
        if (load->byteof[c] >= 0) {
            char s[8] = { 0 };
            utf8proc_encode_char(c, (utf8proc_uint8_t *)s);
            bpe->byte[load->byteof[c]] = vocab_id(load, s);
        }
    for (int i = 0; fallback && i < NBYTE; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        bpe->byte[i] = vocab_id(load, s);
    }
}

/* ---- merges -------------------------------------------------------------- */

static _Noreturn void bad_merge(const TokenizerLoad *load, size_t i,
                                const char *why)
{
    err(load->loc, "merges: number %zu %s", i + 1, why);
}

/* The two texts of a merge, "a b" or ["a", "b"], and both as one. */
static void merge_texts(const TokenizerLoad *load, const json_t *j, size_t i,
                        Text side[3])
{
    const char *s = json_string_value(j), *gap = s ? strchr(s, ' ') : NULL;
    const char *a = s ? s : json_string_value(json_array_get(j, 0));
    const char *c = gap ? gap + 1 : json_string_value(json_array_get(j, 1));

    if (!a || !c || (s && strchr(c, ' ')) || (!s && json_array_size(j) != 2))
        bad_merge(load, i, "is not two tokens");
    side[0].len = side[1].len = side[2].len = 0;
    putn(&side[0], a, gap ? (size_t)(gap - a) : strlen(a));
    putn(&side[1], c, strlen(c));
    putn(&side[2], side[0].s, side[0].len);
    putn(&side[2], c, strlen(c));
}

static void read_merges(TokenizerLoad *load, const json_t *list)
{
    Text side[3] = { { .arena = forever },
                     { .arena = forever },
                     { .arena = forever } };
    int32_t id[3];

    for (size_t i = 0; i < json_array_size(list); i++) {
        merge_texts(load, json_array_get(list, i), i, side);
        for (int k = 0; k < 3; k++)
            if ((id[k] = vocab_id(load, side[k].s)) < 0)
                bad_merge(load, i,
                          strf(forever, "has '%s', which is not in vocab",
                               side[k].s));
        bpe_merge(&load->t->bpe, id[0], id[1], (int32_t)i, id[2]);
    }
}

/* ---- the whole ----------------------------------------------------------- */

void vocabulary_read(TokenizerLoad *load)
{
    const json_t *j = json_object_get(load->root, "model");
    const json_t *merges = json_object_get(j, "merges");
    Bpe *bpe = &load->t->bpe;

    load->vocab = json_object_get(j, "vocab");
    if (strcmp(part_type(j), "BPE") && (*part_type(j) || !merges))
        err(load->loc, "model %s is not known here: only BPE is", part_type(j));
    if (!json_is_object(load->vocab) || !json_is_array(merges))
        err(load->loc, "model: no vocab or no merges");
    if (part_set(j, "dropout") || part_set(j, "continuing_subword_prefix") ||
        part_set(j, "end_of_word_suffix"))
        err(load->loc, "model: dropout, continuing_subword_prefix and "
                       "end_of_word_suffix are not known here");
    map_bytes(load);
    bpe->bytelevel = load->bytelevel;
    bpe->whole = part_flag(j, "ignore_merges", 0);
    bpe->fuse = part_flag(j, "fuse_unk", 0);
    bpe->unk = part_set(j, "unk_token")
                   ? vocab_id(load, part_text(load, j, "unk_token"))
                   : -1;
    read_vocab(load);
    read_bytes(load, part_flag(j, "byte_fallback", 0));
    bpe_index(bpe, (int)json_array_size(merges));
    read_merges(load, merges);
}
