/* tokenizer.h: encodes and decodes texts by a tokenizer.json. */
#ifndef PLEAT_TOKENIZER_H
#define PLEAT_TOKENIZER_H

#include "../process/process.h"

/* ---- text to tokens ------------------------------------------------------ */

enum { SHORTWORD = 46, SHORTIDS = 20, NBYTE = 256 };

typedef struct Merge {
    uint64_t pair;
    int32_t rank, id;
} Merge;

typedef struct Bpe { /* bpe.c */
    int nid;         /* largest id + 1 */
    const char **text;
    int *len; /* [id]: bytes of its text; text null: no such token */
    int32_t *slot;
    uint64_t mask; /* hash table of texts: id or -1 */
    Merge *merge;
    uint64_t mmask;      /* hash table of pairs; id -1: free */
    int bytelevel;       /* texts are raw bytes */
    int whole;           /* ignore_merges: a word with a token stays whole */
    int32_t byte[NBYTE]; /* token of a byte, or of "<0xNN>"; -1: none */
    int32_t unk;
    int fuse; /* merges consecutive unk tokens; -1: drops them */
} Bpe;

typedef struct PreTokenizer { /* a pre-tokenizer: pretokenizer.c */
    enum { CUTmatch, CUTspace } kind;
    void *code; /* pcre2_code; null: do not split */
    enum { CUTisolated, CUTremoved, CUTprevious, CUTnext, CUTjoined } how;
    int invert;
    enum { PREnever, PREfirst, PREalways } prefix;
    const char *space; /* CUTspace: replaces " " */
} PreTokenizer;

typedef struct Norm { /* a normalizer: normalizer.c */
    enum { NORMform, NORMprefix, NORMreplace } kind;
    int form; /* utf8proc's options */
    const char *from, *to;
} Norm;

typedef struct Added { /* an added token: added_tokens.c */
    const char *text;
    int len; /* bytes of the searched text, normalized if it is so marked */
    Text content;
    int32_t id;
    int special, lstrip, rstrip, word, normalized;
} Added;

typedef struct TrieNode {
    int child, next, added;
    uint8_t byte;
} TrieNode;
typedef struct Trie {
    TrieNode *node;
    uint8_t first[NBYTE];
} Trie;

typedef struct Tokenizer {
    const char *path;
    Bpe bpe;
    Norm *norm;              /* vec */
    PreTokenizer *cut;       /* vec */
    Added *added;            /* vec */
    const Added **byid;      /* [id]; null: not added */
    Trie trie[2];            /* searched before, after normalizing */
    int32_t *before, *after; /* vec: the template's tokens */
    Text *plain;             /* [id]: decoded texts of the model's tokens */
    const char *space;       /* text of a space in tokens; null: " " */
    int strip;               /* decoding drops the first space of a text */
    int64_t vocab;           /* largest id + 1, including added tokens */
    uint64_t hash;           /* hash of the file */
    int bytes;               /* no file: each byte is a token */
} Tokenizer;

/* A cached word and its tokens. */
typedef struct WordMemo {
    uint8_t len, n;
    char text[SHORTWORD];
    int32_t id[SHORTIDS];
} WordMemo;

typedef struct Bytes {
    char *s;
    size_t n, cap;
} Bytes; /* malloc'd */

typedef struct Encoder { /* used by one thread */
    const Tokenizer *t;
    int32_t *id;
    int64_t n, cap; /* tokens of the text so far */
    WordMemo *memo;
    int32_t *symbol, *prev, *next; /* list of a long word's symbols */
    uint64_t *heap;
    int64_t room, nheap;
    void *match, *context, *stack; /* PCRE2's data */
    Bytes normal[2], *cut;         /* cut: one for each pre-tokenizer */
    int first;                     /* the text's first part is being split */
    const char *why;               /* reason of a failure, or null */
} Encoder;

/* Reads a tokenizer.json. Calls err() at loc if it is damaged or of an unknown
 * kind. */
Tokenizer *tokenizer_open(const char *path, const Loc *loc);
Tokenizer *tokenizer_bytes(void); /* each byte is a token */
int32_t tokenizer_id(const Tokenizer *tokenizer,
                     const char *text); /* -1: none */
/* tokenizer_special returns the token of a key of tokenizer_config.json, such
 * as "bos_token"; tokenizer_end the token after each text: `name`, or for null
 * the file's or a usual one. -1: none. Errors are reported at loc. */
int32_t tokenizer_special(const Tokenizer *tokenizer, const char *key,
                          const Loc *loc);
int32_t tokenizer_end(const Tokenizer *tokenizer, const char *name,
                      const Loc *loc);
/* Returns the bytes of a token; null: no such token. */
const char *tokenizer_text(const Tokenizer *tokenizer, int32_t id, size_t *n);

enum { ENCtemplate = 1 };
Encoder *encoder_new(const Tokenizer *tokenizer);
void encoder_free(Encoder *encoder);
/* Encodes a text of valid UTF-8 to encoder->n tokens at encoder->id, valid
 * until the next call. Returns null, or the reason of a failure. */
const char *encode(Encoder *encoder, const char *s, size_t n, int flags);
/* Appends the tokens' text; an incomplete character stays as bytes. */
void decode(const Tokenizer *tokenizer, const int32_t *id, int64_t n,
            Text *out);

/* shared by bpe.c pretokenizer.c normalizer.c added_tokens.c encode.c */
void *enlarge(void *p, size_t bytes); /* realloc, or err() */
void bytes_add(Bytes *bytes, const char *s, size_t n);
/* Builds the table of texts, the first of equal ones, and allocates that of
 * merges. */
void bpe_index(Arena *a, Bpe *bpe, int64_t nmerge);
void bpe_merge(Bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);
int32_t bpe_find(const Bpe *bpe, const char *s, size_t n); /* -1: none */
void bpe_word(Encoder *encoder, const char *s, size_t n);
void encode_id(Encoder *encoder, int32_t id);
/* unicode16.c: appends to a [] of a pattern the code points that Unicode 15 and
 * 16 added to a category, "L" or "Lu". */
void put_newer(Text *out, const char *category, size_t n);
void *cut_compile(const char *pattern, const Loc *loc);
void cut_text(Encoder *encoder, size_t k, const char *s, size_t n);
/* Returns the normalized text; null: s is unchanged. */
const Bytes *normalize(Encoder *encoder, const char *s, size_t n);
void trie_add(Trie *trie, const Added *added, int index);
void added_split(Encoder *encoder, int pass, const char *s, size_t n);

/* ---- tokenizer.c vocabulary.c: reading a file ---------------------------- */

enum { MAXID = 1 << 24 }; /* limit of ids */

typedef struct TokenizerLoad {
    Tokenizer *t;
    Arena *mem;             /* freed after the load */
    const JsonMember *part; /* the file's members */
    Bpe spelled; /* texts as spelled in the file, the last one first */
    int32_t *id; /* id of each; -1: the same text follows */
    const Loc *loc;
    int bytelevel;       /* there is a ByteLevel pre-tokenizer */
    int16_t byteof[324]; /* byte of GPT-2's characters; -1: none */
} TokenizerLoad;

const char *part_type(JsonValue j);
const char *part_text(const TokenizerLoad *load, JsonValue j, const char *key);
int part_flag(JsonValue j, const char *key, int dflt);
int32_t vocab_id(const TokenizerLoad *load, const char *s, size_t n);
void vocabulary_read(TokenizerLoad *load);

#endif
