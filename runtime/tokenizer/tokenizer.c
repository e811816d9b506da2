/* tokenizer.c: tokenizer.json files, as the tokenizers library writes them:
 * what a text goes through on its way to tokens, and their texts.
 *
 *   added tokens -> normalizer -> added tokens -> pre-tokenizer -> model
 *   (added_tokens.c)  (normalizer.c)        (pretokenizer.c)   (bpe.c)
 *
 * The model is byte pair encoding, over bytes (GPT-2, Llama 3, Qwen, DeepSeek)
 * or over characters with bytes for those it lacks (Llama 2, Mixtral). Anything
 * in a file that would change tokens and is not known here is refused. */
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tokenizer.h"

/* ---- parts --------------------------------------------------------------- */

/* Of {"pattern": {"String": ...}}; null: it is none. */
static const char *plain_pattern(const json_t *j)
{
    const json_t *p = json_object_get(j, "pattern");

    return json_string_value(json_object_get(p, "String"));
}

/* f on j, or on each of the parts when j is a Sequence of them. */
typedef void PartFn(TokenizerLoad *l, const json_t *j);

static void each(TokenizerLoad *load, const json_t *j, const char *parts,
                 PartFn *fn)
{
    if (!j || json_is_null(j))
        return;
    if (strcmp(part_type(j), "Sequence")) {
        fn(load, j);
        return;
    }
    const json_t *list = json_object_get(j, parts);
    for (size_t i = 0; i < json_array_size(list); i++)
        each(load, json_array_get(list, i), parts, fn);
}

/* ---- normalizers --------------------------------------------------------- */

static void add_norm(TokenizerLoad *load, const json_t *j)
{
    /* clang-format off */
    static const struct { const char *name; int form; } forms[] = {
        { "NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE },
        { "NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE },
        { "NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT },
        { "NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT },
    };
    /* clang-format on */
    Norm n = { 0 };

    for (int i = 0; i < countof(forms); i++)
        if (!strcmp(forms[i].name, part_type(j)))
            n.form = forms[i].form;
    if (!strcmp(part_type(j), "Prepend")) {
        n.kind = NORMprefix;
        n.to = part_text(load, j, "prepend");
    } else if (!strcmp(part_type(j), "Replace")) {
        n.kind = NORMreplace;
        n.from = plain_pattern(j);
        n.to = part_text(load, j, "content");
        if (!n.from || !*n.from)
            err(load->loc,
                "normalizer Replace: only texts can be replaced, no patterns");
        n.from = intern(n.from);
    } else if (!n.form) {
        err(load->loc,
            "normalizer %s is not known here (NFC, NFD, NFKC, NFKD, Prepend, "
            "Replace are)",
            part_type(j));
    }
    vec_push(forever, load->t->norm, n);
}

/* ---- pre-tokenizers ------------------------------------------------------ */

static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                           "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* What Rust takes for numeric: Unicode 17 by now. */
static const char digit[] =
    "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

/* Punctuation is that of Unicode 8 (the library has it from a crate of its own;
 * two of these are not punctuation since): without what came later. */
static const char *punctuation(void)
{
    Text out = { .arena = forever };

    put(&out, "(?![%s",
        "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b7d}-\\x{1b7e}\\x{2e43}-"
        "\\x{2e4f}\\x{2e52}-\\x{2e5d}\\x{10ead}\\x{10f55}-\\x{10f59}\\x{10f86}-"
        "\\x{10f89}\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145b}\\x{1145d}\\x{"
        "11660}-\\x{1166c}\\x{116b9}\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}"
        "\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}\\x{11a9e}-\\x{11aa2}\\x{"
        "11c41}-\\x{11c45}\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}\\x{11fff}"
        "\\x{12ff1}-\\x{12ff2}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e95e}-\\x{"
        "1e95f}");
    put_newer(&out, "P", 1);
    put(&out, "])[\\p{P}\\x{166d}\\x{111c9}!-/:-@\\[-`{-~]");
    return out.s;
}

static int behavior(const TokenizerLoad *load, const json_t *j)
{
    static const char *const names[] = { "Isolated", "Removed",
                                         "MergedWithPrevious", "MergedWithNext",
                                         "Contiguous" };
    const char *s = part_text(load, j, "behavior");

    int i = word_index(s, names, 5);
    if (i < 0)
        err(load->loc, "pre_tokenizer %s: behavior %s is not known here",
            part_type(j), s);
    return i;
}

/* s as a pattern that matches itself. */
static const char *quoted(const char *s)
{
    Text out = { .arena = forever };

    for (; *s; s++)
        put(&out, strchr("\\^$.[]|()?*+{}&-", *s) ? "\\%c" : "%c", *s);
    return out.s;
}

static void add_match(TokenizerLoad *load, const char *pattern, int how,
                      int invert)
{
    PreTokenizer c = { .kind = CUTmatch,
                       .how = how,
                       .invert = invert,
                       .code = cut_compile(pattern, load->loc) };

    vec_push(forever, load->t->cut, c);
}

static void add_split(TokenizerLoad *load, const json_t *j)
{
    const json_t *p = json_object_get(j, "pattern");
    const char *regex = json_string_value(json_object_get(p, "Regex"));
    const char *plain = json_string_value(json_object_get(p, "String"));

    if (!regex && !(plain && *plain))
        err(load->loc, "pre_tokenizer Split has no pattern");
    add_match(load, regex ? regex : quoted(plain), behavior(load, j),
              part_flag(j, "invert", 0));
}

static void add_bytelevel(TokenizerLoad *load, const json_t *j)
{
    PreTokenizer space = { .kind = CUTspace, .prefix = PREalways };

    if (part_flag(j, "add_prefix_space", 1))
        vec_push(forever, load->t->cut, space);
    if (part_flag(j, "use_regex", 1))
        add_match(load, gpt2, CUTisolated, 0);
    load->bytelevel = 1;
}

static void add_metaspace(TokenizerLoad *load, const json_t *j)
{
    PreTokenizer c = { .kind = CUTspace,
                       .prefix = PREalways,
                       .space = part_text(load, j, "replacement") };
    const char *s = json_string_value(json_object_get(j, "prepend_scheme"));

    if ((s && !strcmp(s, "never")) || !part_flag(j, "add_prefix_space", 1))
        c.prefix = PREnever;
    else if (s && !strcmp(s, "first"))
        c.prefix = PREfirst;
    vec_push(forever, load->t->cut, c);
    if (part_flag(j, "split", 1))
        add_match(load, quoted(c.space), CUTnext, 0);
}

static void add_cut(TokenizerLoad *load, const json_t *j)
{
    const char *type = part_type(j);

    if (load->bytelevel)
        err(load->loc, "pre_tokenizer %s after ByteLevel is not known here",
            type);
    if (!strcmp(type, "ByteLevel"))
        add_bytelevel(load, j);
    else if (!strcmp(type, "Split"))
        add_split(load, j);
    else if (!strcmp(type, "Metaspace"))
        add_metaspace(load, j);
    else if (!strcmp(type, "Digits"))
        add_match(
            load, digit,
            part_flag(j, "individual_digits", 0) ? CUTisolated : CUTjoined, 0);
    else if (!strcmp(type, "Punctuation"))
        add_match(load, punctuation(), behavior(load, j), 0);
    else if (!strcmp(type, "WhitespaceSplit"))
        add_match(load, "\\s", CUTremoved, 0);
    else if (!strcmp(type, "Whitespace"))
        add_match(load, "\\w+|[^\\w\\s]+", CUTremoved, 1);
    else
        err(load->loc,
            "pre_tokenizer %s is not known here (ByteLevel, Split, Metaspace, "
            "Digits, Punctuation, Whitespace are)",
            type);
}

/* ---- added tokens -------------------------------------------------------- */

static void read_added(TokenizerLoad *load)
{
    const json_t *list = json_object_get(load->root, "added_tokens");
    Tokenizer *tokenizer = load->t;
    Encoder e = { .t = tokenizer };

    tokenizer->vocab = tokenizer->bpe.nid;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i);
        const char *s = part_text(load, j, "content");
        json_int_t id = json_integer_value(json_object_get(j, "id"));
        int32_t known = vocab_id(load, s);
        if (id < 0 || id >= MAXID || !*s || (known >= 0 && known != id))
            err(load->loc, "added_tokens: '%s' has the wrong number", s);
        Added a = { .text = s,
                    .content = s,
                    .len = (int)strlen(s),
                    .id = (int32_t)id,
                    .special = part_flag(j, "special", 0),
                    .lstrip = part_flag(j, "lstrip", 0),
                    .rstrip = part_flag(j, "rstrip", 0),
                    .word = part_flag(j, "single_word", 0),
                    .normalized = part_flag(j, "normalized", 1) };
        vec_push(forever, tokenizer->added, a);
        tokenizer->vocab = tokenizer->vocab > id ? tokenizer->vocab : id + 1;
    }
    tokenizer->byid =
        alloc(forever, (size_t)tokenizer->vocab * sizeof *tokenizer->byid);
    for (size_t i = 0; i < vec_len(tokenizer->added); i++) {
        Added *a = &tokenizer->added[i], match = *a;
        const Bytes *b =
            a->normalized ? normalize(&e, a->text, (size_t)a->len) : NULL;
        if (b) {
            match.text = a->text = internn(b->s, b->n);
            match.len = a->len = (int)b->n;
        }
        trie_add(&tokenizer->trie[a->normalized], &match, (int)i);
        tokenizer->byid[a->id] = a;
    }
    free(e.normal[0].s);
    free(e.normal[1].s);
}

/* ---- templates ----------------------------------------------------------- */

static void add_pair(TokenizerLoad *load, const json_t *pair, int32_t **v)
{
    const json_t *id = json_array_get(pair, 1);

    if (!json_is_integer(id))
        err(load->loc, "post_processor: a token has no number");
    vec_push(forever, *v, (int32_t)json_integer_value(id));
}

static void add_template(TokenizerLoad *load, const json_t *j)
{
    const json_t *list = json_object_get(j, "single");
    const json_t *special = json_object_get(j, "special_tokens");
    int32_t **v = &load->t->before;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *part = json_array_get(list, i);
        const json_t *name =
            json_object_get(json_object_get(part, "SpecialToken"), "id");
        if (!name) {
            v = &load->t->after;
            continue;
        }
        const json_t *ids = json_object_get(
            json_object_get(special, json_string_value(name)), "ids");
        for (size_t k = 0; k < json_array_size(ids); k++)
            vec_push(forever, *v,
                     (int32_t)json_integer_value(json_array_get(ids, k)));
    }
}

static void add_processor(TokenizerLoad *load, const json_t *j)
{
    const char *type = part_type(j);
    Tokenizer *tokenizer = load->t;

    if (!strcmp(type, "ByteLevel"))
        return; /* only where tokens stood in the text */
    if (vec_len(tokenizer->before) || vec_len(tokenizer->after))
        err(load->loc, "post_processor: two templates");
    if (!strcmp(type, "TemplateProcessing")) {
        add_template(load, j);
    } else if (!strcmp(type, "RobertaProcessing") ||
               !strcmp(type, "BertProcessing")) {
        add_pair(load, json_object_get(j, "cls"), &tokenizer->before);
        add_pair(load, json_object_get(j, "sep"), &tokenizer->after);
    } else {
        err(load->loc, "post_processor %s is not known here", type);
    }
}

/* ---- decoders ------------------------------------------------------------ */

static void add_decoder(TokenizerLoad *load, const json_t *j)
{
    const char *type = part_type(j);
    Tokenizer *tokenizer = load->t;

    if (!strcmp(type, "Replace")) {
        tokenizer->space = plain_pattern(j);
        tokenizer->space = tokenizer->space ? intern(tokenizer->space) : NULL;
    } else if (!strcmp(type, "Metaspace")) {
        const char *s = json_string_value(json_object_get(j, "prepend_scheme"));
        int never = s && !strcmp(s, "never");
        tokenizer->space = part_text(load, j, "replacement");
        tokenizer->strip = !never && part_flag(j, "add_prefix_space", 1);
    } else if (!strcmp(type, "Strip")) {
        tokenizer->strip = json_integer_value(json_object_get(j, "start")) > 0;
    } else if (strcmp(type, "ByteLevel") && strcmp(type, "ByteFallback") &&
               strcmp(type, "Fuse")) {
        err(load->loc, "decoder %s is not known here", type);
    }
}

/* A model's token, as a byte it stands for on its own: "<0x0A>"; else -1. */
static int byte_token(const char *s)
{
    unsigned b;
    char end;

    return strlen(s) == 6 && sscanf(s, "<0x%2X%c", &b, &end) == 2 && end == '>'
               ? (int)b
               : -1;
}

/* What a token of a text over characters stands for: spaces and bytes back. */
static void plain_texts(Tokenizer *tokenizer)
{
    Bpe *bpe = &tokenizer->bpe;
    size_t n = tokenizer->space ? strlen(tokenizer->space) : 0;

    tokenizer->plain =
        alloc(forever, (size_t)bpe->nid * sizeof *tokenizer->plain);
    for (int id = 0; id < bpe->nid; id++) {
        const char *s = bpe->text[id];
        Text out = { .arena = forever };
        put(&out, "%s", "");
        int byte =
            s && !bpe->bytelevel && bpe->byte[0] >= 0 ? byte_token(s) : -1;
        if (byte >= 0)
            putn(&out, (char[]){ (char)byte }, 1);
        for (int i = 0; s && byte < 0 && i < bpe->len[id];) {
            int space = n && !strncmp(s + i, tokenizer->space, n);
            putn(&out, space ? " " : s + i, 1);
            i += space ? (int)n : 1;
        }
        tokenizer->plain[id] = out;
    }
}

const char *tokenizer_text(const Tokenizer *tokenizer, int32_t id, size_t *n)
{
    if (id < 0 || id >= tokenizer->vocab)
        return NULL;
    if (tokenizer->byid && tokenizer->byid[id]) {
        *n = strlen(tokenizer->byid[id]->content);
        return tokenizer->byid[id]->content;
    }
    if (id >= tokenizer->bpe.nid || !tokenizer->bpe.text[id])
        return NULL;
    *n = tokenizer->plain[id].len;
    return tokenizer->plain[id].s;
}

int32_t tokenizer_id(const Tokenizer *tokenizer, const char *text)
{
    for (size_t i = 0; i < vec_len(tokenizer->added); i++)
        if (!strcmp(tokenizer->added[i].content, text))
            return tokenizer->added[i].id;
    return bpe_find(&tokenizer->bpe, text, strlen(text));
}

/* ---- opening ------------------------------------------------------------- */

/* A byte is a token; nothing is added, nothing is merged. */
Tokenizer *tokenizer_bytes(void)
{
    Tokenizer *tokenizer = alloc(forever, sizeof *tokenizer);
    Bpe *bpe = &tokenizer->bpe;

    *tokenizer = (Tokenizer){ .path = "bytes", .vocab = NBYTE, .bytes = 1 };
    *bpe = (Bpe){ .nid = NBYTE, .bytelevel = 1, .unk = -1 };
    bpe->text = alloc(forever, NBYTE * sizeof *bpe->text);
    bpe->len = alloc(forever, NBYTE * sizeof *bpe->len);
    for (int i = 0; i < NBYTE; i++) {
        bpe->text[i] = internn((char[]){ (char)i }, 1);
        bpe->len[i] = 1;
        bpe->byte[i] = i;
    }
    bpe_index(bpe, 0);
    plain_texts(tokenizer);
    return tokenizer;
}

Tokenizer *tokenizer_open(const char *path, const Loc *loc)
{
    json_error_t e;
    const uint8_t *s;
    int64_t n;

    const char *why = map_whole(forever, path, &s, &n);
    if (why)
        err(loc, "the tokenizer %s %s", path, why);
    uint64_t hash = XXH3_64bits(s, (size_t)n);
    json_t *root = json_loadb((const char *)s, (size_t)n, JSON_ALLOW_NUL, &e);
    munmap((void *)(uintptr_t)s, (size_t)n);
    if (!root)
        err(&(Loc){ path, e.line, NULL }, "%s", e.text);
    Tokenizer *t = alloc(forever, sizeof *t);
    TokenizerLoad l = { .t = t, .root = root, .loc = &(Loc){ path, 0, loc } };
    *t = (Tokenizer){ .path = intern(path), .hash = hash };
    each(&l, json_object_get(root, "normalizer"), "normalizers", add_norm);
    each(&l, json_object_get(root, "pre_tokenizer"), "pretokenizers", add_cut);
    vocabulary_read(&l);
    read_added(&l);
    each(&l, json_object_get(root, "post_processor"), "processors",
         add_processor);
    each(&l, json_object_get(root, "decoder"), "decoders", add_decoder);
    plain_texts(t);
    json_decref(root);
    return t;
}
