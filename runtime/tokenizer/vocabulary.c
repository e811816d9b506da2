/* vocabulary.c: reads the model of a tokenizer.json: tokens of its vocabulary,
 * the spelling of bytes in them, and merges. Also functions that query the
 * file. */
#include <utf8proc.h>

#include "tokenizer.h"

/* ---- JSON ---------------------------------------------------------------- */

const char *part_type(JsonValue j)
{
    const char *s = jv_text(forever, jv_get(j, "type"), NULL);

    return s ? s : "";
}

const char *part_text(const TokenizerLoad *load, JsonValue j, const char *key)
{
    const char *s = jv_text(forever, jv_get(j, key), NULL);

    if (!s)
        err(load->loc, "%s: \"%s\" is no text without NUL", part_type(j), key);
    return s;
}

int part_flag(JsonValue j, const char *key, int dflt)
{
    JsonKind kind = jv_kind(jv_get(j, key));

    return kind == JSONtrue || kind == JSONfalse ? kind == JSONtrue : dflt;
}

static int part_set(JsonValue j, const char *key)
{
    JsonValue v = jv_get(j, key);

    return jv_kind(v) > JSONnull && !jv_is(v, "") &&
           !(jv_kind(v) == JSONnumber && jv_real(v) == 0);
}

/* ---- tokens -------------------------------------------------------------- */

/* Maps GPT-2's characters to bytes: a printable byte is itself, the others are
 * U+0100, U+0101 .. in order. */
static void map_bytes(TokenizerLoad *load)
{
    int more = 256;

    memset(load->byteof, -1, sizeof load->byteof);
    for (int b = 0; b < 256; b++) {
        int seen = (b > 32 && b < 127) || (b > 160 && b != 173);
        load->byteof[seen ? b : more++] = (int16_t)b;
    }
}

/* Writes a token's bytes to `to`: the bytes of its characters, or its text if a
 * character has no byte. Returns their number, at most n. */
static int put_bytes(const TokenizerLoad *load, const char *s, int n, char *to)
{
    int at = 0, k = 0;

    while (load->bytelevel && at < n) {
        int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const uint8_t *)s + at, n - at, &c);
        if (step <= 0 || c >= 324 || load->byteof[c] < 0)
            break;
        to[k++] = (char)load->byteof[c];
        at += (int)step;
    }
    if (load->bytelevel && at == n)
        return k;
    memcpy(to, s, (size_t)n);
    return n;
}

/* Reads texts and ids of the vocabulary as spelled in the file. */
static void read_spelled(TokenizerLoad *load, JsonValue vocab)
{
    Bpe *spelled = &load->spelled;
    int64_t i = jv_count(vocab), id;
    char *s = alloc(load->mem, vocab.n);
    JsonValue key, v;
    size_t n;

    spelled->nid = (int)i;
    spelled->text = alloc(load->mem, (size_t)(i + 1) * sizeof *spelled->text);
    spelled->len = alloc(load->mem, (size_t)(i + 1) * sizeof *spelled->len);
    load->id = alloc(load->mem, (size_t)(i + 1) * sizeof *load->id);
    for (size_t at = 0; jv_next(vocab, &at, &key, &v); s += n) {
        const char *why = jv_decode(key, s, &n);
        if (why || !jv_int(v, &id) || id < 0 || id >= MAXID)
            err(load->loc, "vocab: %.*s %s", (int)key.n, key.s,
                why ? why : "has a wrong number");
        spelled->text[--i] = s;
        spelled->len[i] = (int)n;
        load->id[i] = (int32_t)id;
    }
    bpe_index(load->mem, spelled, 0);
}

static void read_vocab(TokenizerLoad *load)
{
    Bpe *bpe = &load->t->bpe;
    const Bpe *spelled = &load->spelled;
    size_t bytes = 0;

    for (int i = 0; i < spelled->nid; i++) {
        if (bpe_find(spelled, spelled->text[i], (size_t)spelled->len[i]) != i)
            load->id[i] = -1;
        bpe->nid = bpe->nid > load->id[i] ? bpe->nid : load->id[i] + 1;
        bytes += (size_t)spelled->len[i] + 1;
    }
    if (!bpe->nid || bpe->nid > 16 * (int64_t)spelled->nid + 65536)
        err(load->loc, "model: no vocab, or one full of holes");
    bpe->text = alloc(forever, (size_t)bpe->nid * sizeof *bpe->text);
    bpe->len = alloc(forever, (size_t)bpe->nid * sizeof *bpe->len);
    char *to = alloc(forever, bytes);
    for (int i = spelled->nid; i-- > 0;) {
        int id = load->id[i], n = spelled->len[i];
        if (id < 0)
            continue;
        if (bpe->text[id])
            err(load->loc, "vocab: '%.*s' has the number of another token", n,
                spelled->text[i]);
        bpe->text[id] = to;
        bpe->len[id] = put_bytes(load, spelled->text[i], n, to);
        to += bpe->len[id] + 1;
    }
}

/* Returns the id of a token; -1: the vocabulary has no such token. */
int32_t vocab_id(const TokenizerLoad *load, const char *s, size_t n)
{
    int32_t i = bpe_find(&load->spelled, s, n);

    return i < 0 ? -1 : load->id[i];
}

/* Finds the tokens of bytes and unk by their spelling in the file, since a
 * token of the same bytes may have another spelling. */
static void read_bytes(TokenizerLoad *load, int fallback)
{
    Bpe *bpe = &load->t->bpe;

    memset(bpe->byte, -1, sizeof bpe->byte);
    for (int c = 0; bpe->bytelevel && c < 324; c++)
        if (load->byteof[c] >= 0) {
            char s[8] = { 0 };
            utf8proc_encode_char(c, (utf8proc_uint8_t *)s);
            bpe->byte[load->byteof[c]] = vocab_id(load, s, strlen(s));
        }
    for (int i = 0; fallback && i < NBYTE; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        bpe->byte[i] = vocab_id(load, s, strlen(s));
    }
}

/* ---- merges -------------------------------------------------------------- */

/* Writes the two texts of a merge, "a b" or ["a", "b"], to s, one after the
 * other, and their lengths to n. Returns 0 if it is not two texts. */
static int merge_texts(JsonValue j, char *s, size_t n[2])
{
    JsonValue key, a, b, more;
    size_t at = 0, all;

    if (jv_kind(j) == JSONarray)
        return jv_next(j, &at, &key, &a) && jv_next(j, &at, &key, &b) &&
               !jv_next(j, &at, &key, &more) && !jv_decode(a, s, &n[0]) &&
               !jv_decode(b, s + n[0], &n[1]);
    if (jv_decode(j, s, &all))
        return 0;
    char *gap = memchr(s, ' ', all);
    if (!gap)
        return 0;
    n[0] = (size_t)(gap - s);
    n[1] = all - n[0] - 1;
    memmove(gap, gap + 1, n[1]);
    return !memchr(gap, ' ', n[1]);
}

static void read_merges(TokenizerLoad *load, JsonValue list)
{
    char *s = alloc(load->mem, list.n);
    JsonValue key, j;
    size_t at = 0, n[2];

    for (int32_t i = 0; jv_next(list, &at, &key, &j); i++) {
        if (!merge_texts(j, s, n))
            err(load->loc, "merges: number %d is not two tokens", i + 1);
        const char *text[] = { s, s + n[0], s };
        size_t len[] = { n[0], n[1], n[0] + n[1] };
        int32_t id[3];
        for (int k = 0; k < 3; k++)
            if ((id[k] = vocab_id(load, text[k], len[k])) < 0)
                err(load->loc,
                    "merges: number %d has '%.*s', which is not in vocab",
                    i + 1, (int)len[k], text[k]);
        bpe_merge(&load->t->bpe, id[0], id[1], i, id[2]);
    }
}

/* ---- the whole ----------------------------------------------------------- */

/* Removes a member from the model and returns it; the remaining members are
 * small. */
static JsonValue take_out(const TokenizerLoad *load, JsonMember **model,
                          const char *key)
{
    JsonValue v = jv_member(*model, key);

    jv_set(load->mem, model, key, (JsonValue){ 0 });
    return v;
}

void vocabulary_read(TokenizerLoad *load)
{
    JsonMember *model = jv_members(load->mem, jv_member(load->part, "model"));
    JsonValue vocab = take_out(load, &model, "vocab");
    JsonValue merges = take_out(load, &model, "merges");
    JsonValue j = jv_object(load->mem, model, 0);
    Bpe *bpe = &load->t->bpe;

    if (strcmp(part_type(j), "BPE") && (*part_type(j) || !merges.s))
        err(load->loc, "model '%s' is not known here: only BPE is",
            part_type(j));
    if (jv_kind(vocab) != JSONobject || jv_kind(merges) != JSONarray)
        err(load->loc, "model: no vocab or no merges");
    if (part_set(j, "dropout") || part_set(j, "continuing_subword_prefix") ||
        part_set(j, "end_of_word_suffix"))
        err(load->loc, "model: dropout, continuing_subword_prefix and "
                       "end_of_word_suffix are not known here");
    map_bytes(load);
    read_spelled(load, vocab);
    bpe->bytelevel = load->bytelevel;
    bpe->whole = part_flag(j, "ignore_merges", 0);
    bpe->fuse = part_flag(j, "fuse_unk", 0);
    bpe->unk = -1;
    if (part_set(j, "unk_token")) {
        const char *s = part_text(load, j, "unk_token");
        bpe->unk = vocab_id(load, s, strlen(s));
    }
    read_vocab(load);
    read_bytes(load, part_flag(j, "byte_fallback", 0));
    bpe_index(forever, bpe, jv_count(merges));
    read_merges(load, merges);
}
