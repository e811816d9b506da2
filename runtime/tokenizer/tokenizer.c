/* tokenizer.c: reads tokenizer.json files of the tokenizers library: the steps
 * that turn a text into tokens, and the texts of tokens.
 *
 *   added tokens -> normalizer -> added tokens -> pre-tokenizer -> model
 *   (added_tokens.c)  (normalizer.c)        (pretokenizer.c)   (bpe.c)
 *
 * The model is byte pair encoding, over bytes (GPT-2, Llama 3, Qwen, DeepSeek)
 * or over characters with bytes for missing ones (Llama 2, Mixtral). Unknown
 * members of a file that would change tokens are refused. */
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tokenizer.h"

/* ---- parts --------------------------------------------------------------- */

/* Returns the pattern of this kind, "String" or "Regex"; null: another kind. */
static const char *pattern_of(JsonValue j, const char *kind)
{
    return jv_text(forever, jv_get(jv_get(j, "pattern"), kind), NULL);
}

/* Called on j, or on each member if j is a Sequence. */
typedef void PartFn(TokenizerLoad *l, JsonValue j);

static void each(TokenizerLoad *load, JsonValue j, const char *parts,
                 PartFn *fn)
{
    JsonValue list = jv_get(j, parts), key, one;

    if (jv_kind(j) <= JSONnull)
        return;
    if (strcmp(part_type(j), "Sequence")) {
        fn(load, j);
        return;
    }
    for (size_t at = 0; jv_next(list, &at, &key, &one);)
        each(load, one, parts, fn);
}

/* ---- normalizers --------------------------------------------------------- */

static void add_norm(TokenizerLoad *load, JsonValue j)
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
        n.from = pattern_of(j, "String");
        n.to = part_text(load, j, "content");
        if (!n.from || !*n.from)
            err(load->loc,
                "normalizer Replace: only texts can be replaced, no patterns");
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

/* Characters that Rust's char::is_numeric accepts: those of Unicode 17. */
static const char digit[] =
    "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

/* Returns the set of punctuation of Unicode 8, without later additions: the
 * library takes it from another crate. Two of these are no longer
 * punctuation. */
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

static int behavior(const TokenizerLoad *load, JsonValue j)
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

/* Returns a pattern that matches the string s. */
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

static void add_split(TokenizerLoad *load, JsonValue j)
{
    const char *regex = pattern_of(j, "Regex");
    const char *plain = pattern_of(j, "String");

    if (!regex && !(plain && *plain))
        err(load->loc, "pre_tokenizer Split has no pattern");
    add_match(load, regex ? regex : quoted(plain), behavior(load, j),
              part_flag(j, "invert", 0));
}

static void add_bytelevel(TokenizerLoad *load, JsonValue j)
{
    PreTokenizer space = { .kind = CUTspace, .prefix = PREalways };

    if (part_flag(j, "add_prefix_space", 1))
        vec_push(forever, load->t->cut, space);
    if (part_flag(j, "use_regex", 1))
        add_match(load, gpt2, CUTisolated, 0);
    load->bytelevel = 1;
}

static void add_metaspace(TokenizerLoad *load, JsonValue j)
{
    PreTokenizer c = { .kind = CUTspace,
                       .prefix = PREalways,
                       .space = part_text(load, j, "replacement") };
    JsonValue scheme = jv_get(j, "prepend_scheme");

    if (jv_is(scheme, "never") || !part_flag(j, "add_prefix_space", 1))
        c.prefix = PREnever;
    else if (jv_is(scheme, "first"))
        c.prefix = PREfirst;
    vec_push(forever, load->t->cut, c);
    if (part_flag(j, "split", 1))
        add_match(load, quoted(c.space), CUTnext, 0);
}

static void add_cut(TokenizerLoad *load, JsonValue j)
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

static Added added_token(const TokenizerLoad *load, JsonValue j)
{
    size_t n = 0;
    const char *s = jv_text(forever, jv_get(j, "content"), &n);
    int64_t id = -1;

    if (!n)
        err(load->loc, "added_tokens: a token has no content");
    jv_int(jv_get(j, "id"), &id);
    int32_t known = vocab_id(load, s, n);
    if (id < 0 || id >= MAXID || (known >= 0 && known != id))
        err(load->loc, "added_tokens: '%s' has the wrong number", s);
    return (Added){ .text = s,
                    .len = (int)n,
                    .content = { .s = (char *)(uintptr_t)s, .len = n },
                    .id = (int32_t)id,
                    .special = part_flag(j, "special", 0),
                    .lstrip = part_flag(j, "lstrip", 0),
                    .rstrip = part_flag(j, "rstrip", 0),
                    .word = part_flag(j, "single_word", 0),
                    .normalized = part_flag(j, "normalized", 1) };
}

static void read_added(TokenizerLoad *load)
{
    JsonValue list = jv_member(load->part, "added_tokens"), key, j;
    Tokenizer *tokenizer = load->t;
    Encoder e = { .t = tokenizer };

    tokenizer->vocab = tokenizer->bpe.nid;
    for (size_t at = 0; jv_next(list, &at, &key, &j);) {
        Added a = added_token(load, j);
        vec_push(forever, tokenizer->added, a);
        if (tokenizer->vocab <= a.id)
            tokenizer->vocab = a.id + 1;
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

/* Adds the ids of a list from element `first` on; at least one. */
static void add_ids(const TokenizerLoad *load, JsonValue list, int first,
                    int32_t **v)
{
    JsonValue key, x;
    int64_t id = 0;
    int i = 0, bad = 0;

    for (size_t at = 0; jv_next(list, &at, &key, &x); i++)
        if (i >= first) {
            bad |= !jv_int(x, &id) || id < 0 || id >= MAXID;
            vec_push(forever, *v, (int32_t)id);
        }
    if (bad || i <= first)
        err(load->loc, "post_processor: a token has no number");
}

static void add_template(TokenizerLoad *load, JsonValue j)
{
    JsonValue list = jv_get(j, "single"), key, part;
    JsonValue special = jv_get(j, "special_tokens");
    int32_t **v = &load->t->before;

    for (size_t at = 0; jv_next(list, &at, &key, &part);) {
        JsonValue name = jv_get(jv_get(part, "SpecialToken"), "id");
        const char *s = jv_text(load->mem, name, NULL);
        if (s)
            add_ids(load, jv_get(jv_get(special, s), "ids"), 0, v);
        else
            v = &load->t->after;
    }
}

static void add_processor(TokenizerLoad *load, JsonValue j)
{
    const char *type = part_type(j);
    Tokenizer *tokenizer = load->t;

    if (!strcmp(type, "ByteLevel"))
        return; /* it only changes offsets of tokens */
    if (vec_len(tokenizer->before) || vec_len(tokenizer->after))
        err(load->loc, "post_processor: two templates");
    if (!strcmp(type, "TemplateProcessing")) {
        add_template(load, j);
    } else if (!strcmp(type, "RobertaProcessing") ||
               !strcmp(type, "BertProcessing")) {
        add_ids(load, jv_get(j, "cls"), 1, &tokenizer->before);
        add_ids(load, jv_get(j, "sep"), 1, &tokenizer->after);
    } else {
        err(load->loc, "post_processor %s is not known here", type);
    }
}

/* ---- decoders ------------------------------------------------------------ */

static void add_decoder(TokenizerLoad *load, JsonValue j)
{
    const char *type = part_type(j);
    Tokenizer *tokenizer = load->t;

    if (!strcmp(type, "Replace")) {
        tokenizer->space = pattern_of(j, "String");
    } else if (!strcmp(type, "Metaspace")) {
        int never = jv_is(jv_get(j, "prepend_scheme"), "never");
        tokenizer->space = part_text(load, j, "replacement");
        tokenizer->strip = !never && part_flag(j, "add_prefix_space", 1);
    } else if (!strcmp(type, "Strip")) {
        tokenizer->strip = jv_real(jv_get(j, "start")) > 0;
    } else if (strcmp(type, "ByteLevel") && strcmp(type, "ByteFallback") &&
               strcmp(type, "Fuse")) {
        err(load->loc, "decoder %s is not known here", type);
    }
}

/* Returns the byte of a token such as "<0x0A>"; else -1. */
static int byte_token(const char *s)
{
    unsigned b;
    char end;

    return strlen(s) == 6 && sscanf(s, "<0x%2X%c", &b, &end) == 2 && end == '>'
               ? (int)b
               : -1;
}

/* Sets the texts of tokens of a model over characters: restores spaces and
 * bytes. */
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
        *n = tokenizer->byid[id]->content.len;
        return tokenizer->byid[id]->content.s;
    }
    if (id >= tokenizer->bpe.nid || !tokenizer->bpe.text[id])
        return NULL;
    *n = tokenizer->plain[id].len;
    return tokenizer->plain[id].s;
}

int32_t tokenizer_id(const Tokenizer *tokenizer, const char *text)
{
    for (size_t i = 0; i < vec_len(tokenizer->added); i++) {
        const Text *s = &tokenizer->added[i].content;
        if (s->len == strlen(text) && !memcmp(s->s, text, s->len))
            return tokenizer->added[i].id;
    }
    return bpe_find(&tokenizer->bpe, text, strlen(text));
}

/* ---- opening ------------------------------------------------------------- */

/* Returns the tokenizer in which each byte is a token, without added tokens or
 * merges. */
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
    bpe_index(forever, bpe, 0);
    plain_texts(tokenizer);
    return tokenizer;
}

Tokenizer *tokenizer_open(const char *path, const Loc *loc)
{
    JsonError e;
    JsonValue root;
    const uint8_t *s;
    int64_t n;

    const char *why = map_whole(forever, path, &s, &n);
    if (why)
        err(loc, "the tokenizer %s %s", path, why);
    uint64_t hash = XXH3_64bits(s, (size_t)n);
    if (jv_open((const char *)s, (size_t)n, &root, &e))
        err(&(Loc){ path, (int)e.line, NULL },
            "%s: a tokenizer is a tokenizer.json, as transformers writes it",
            e.why);
    Tokenizer *t = alloc(forever, sizeof *t);
    TokenizerLoad l = { .t = t, .mem = arena_new() };
    l.loc = &(Loc){ path, 0, loc };
    l.part = jv_members(l.mem, root);
    *t = (Tokenizer){ .path = intern(path), .hash = hash };
    each(&l, jv_member(l.part, "normalizer"), "normalizers", add_norm);
    each(&l, jv_member(l.part, "pre_tokenizer"), "pretokenizers", add_cut);
    vocabulary_read(&l);
    read_added(&l);
    each(&l, jv_member(l.part, "post_processor"), "processors", add_processor);
    each(&l, jv_member(l.part, "decoder"), "decoders", add_decoder);
    plain_texts(t);
    arena_free(l.mem);
    munmap((void *)(uintptr_t)s, (size_t)n);
    return t;
}
