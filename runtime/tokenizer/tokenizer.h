/* tokenizer.h: a text to tokens and back, as a tokenizer.json says. */
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
    int *len; /* by id; null: no such token of the model */
    int32_t *slot;
    uint64_t mask; /* hash of texts: id or -1 */
    Merge *merge;
    uint64_t mmask;      /* hash of pairs; id -1: free */
    int bytelevel;       /* texts are raw bytes */
    int whole;           /* ignore_merges: a word that is a token is */
    int32_t byte[NBYTE]; /* token of a byte, or of "<0xNN>"; -1 */
    int32_t unk;
    int fuse; /* -1: what has no token is left out */
} Bpe;

typedef struct PreTokenizer { /* a pre-tokenizer: pretokenizer.c */
    enum { CUTmatch, CUTspace } kind;
    void *code; /* pcre2_code; null: do not split */
    enum { CUTisolated, CUTremoved, CUTprevious, CUTnext, CUTjoined } how;
    int invert;
    enum { PREnever, PREfirst, PREalways } prefix;
    const char *space; /* CUTspace: in place of " " */
} PreTokenizer;

typedef struct Norm { /* a normalizer: normalizer.c */
    enum { NORMform, NORMprefix, NORMreplace } kind;
    int form; /* utf8proc's options */
    const char *from, *to;
} Norm;

typedef struct Added { /* a token found before all else: added_tokens.c */
    const char *text;
    int len; /* as looked for, normalized if it says so */
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
    const Added **byid;      /* by id; null: not added */
    Trie trie[2];            /* found before, after normalizing */
    int32_t *before, *after; /* vec: the template's tokens */
    Text *plain;             /* by id: what model's tokens stand for */
    const char *space;       /* text of a space in tokens; null: " " */
    int strip;               /* the first space of a text is not its own */
    int64_t vocab;           /* largest id + 1, added ones too */
    uint64_t hash;           /* of the file */
    int bytes;               /* no file: a byte is a token */
} Tokenizer;

/* One text of a word or a few of its tokens, remembered. */
typedef struct WordMemo {
    uint8_t len, n;
    char text[SHORTWORD];
    int32_t id[SHORTIDS];
} WordMemo;

typedef struct Bytes {
    char *s;
    size_t n, cap;
} Bytes; /* malloc'd */

typedef struct Encoder { /* one thread's */
    const Tokenizer *t;
    int32_t *id;
    int64_t n, cap; /* tokens of the text so far */
    WordMemo *memo;
    int32_t *symbol, *prev, *next; /* of a long word */
    uint64_t *heap;
    int64_t room, nheap;
    void *match, *context, *stack; /* PCRE2's */
    Bytes normal[2], *cut;         /* cut: one for each pre-tokenizer */
    int first;                     /* the text's first part is being cut */
    const char *why;               /* what went wrong */
} Encoder;

/* Reads a tokenizer.json; err() at loc when it is damaged or of a kind not
 * known here. */
Tokenizer *tokenizer_open(const char *path, const Loc *loc);
Tokenizer *tokenizer_bytes(void); /* a byte is a token */
int32_t tokenizer_id(const Tokenizer *tokenizer,
                     const char *text); /* -1: none */
/* A token that tokenizer_config.json beside the file names ("bos_token"), and
 * the one after each text: `name`, or null: its own, or a usual one. -1: none.
 * Errors at loc. */
int32_t tokenizer_special(const Tokenizer *tokenizer, const char *key,
                          const Loc *loc);
int32_t tokenizer_end(const Tokenizer *tokenizer, const char *name,
                      const Loc *loc);
/* The bytes that a token stands for; null: no such token. */
const char *tokenizer_text(const Tokenizer *tokenizer, int32_t id, size_t *n);

enum { ENCtemplate = 1 };
Encoder *encoder_new(const Tokenizer *tokenizer);
void encoder_free(Encoder *encoder);
/* Tokens of a text of valid UTF-8, encoder->n of them at encoder->id until the
 * next call. Null, or what went wrong. */
const char *encode(Encoder *encoder, const char *s, size_t n, int flags);
/* Their text; a part of a character is left as it is. */
void decode(const Tokenizer *tokenizer, const int32_t *id, int64_t n,
            Text *out);

/* bpe.c pretokenizer.c normalizer.c added_tokens.c encode.c, for each other */
void *enlarge(void *p, size_t bytes); /* realloc, or err() */
void bytes_add(Bytes *bytes, const char *s, size_t n);
/* Hash the texts, the first of equal ones; room for merges. */
void bpe_index(Arena *a, Bpe *bpe, int64_t nmerge);
void bpe_merge(Bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);
int32_t bpe_find(const Bpe *bpe, const char *s, size_t n); /* -1: none */
void bpe_word(Encoder *encoder, const char *s, size_t n);
void encode_id(Encoder *encoder, int32_t id);
/* unicode16.c: to a [] of a pattern, what Unicode 15 and 16 added to a
 * category, "L" or "Lu". */
void put_newer(Text *out, const char *category, size_t n);
void *cut_compile(const char *pattern, const Loc *loc);
void cut_text(Encoder *encoder, size_t k, const char *s, size_t n);
/* Null, or what stands for s. */
const Bytes *normalize(Encoder *encoder, const char *s, size_t n);
void trie_add(Trie *trie, const Added *added, int index);
void added_split(Encoder *encoder, int pass, const char *s, size_t n);

/* ---- tokenizer.c vocabulary.c: a file being read ------------------------- */

enum { MAXID = 1 << 24 }; /* far beyond any vocabulary */

typedef struct TokenizerLoad {
    Tokenizer *t;
    Arena *mem;             /* of the load */
    const JsonMember *part; /* the file's members */
    Bpe spelled;            /* texts as the file has them, the last one first */
    int32_t *id;            /* of each; -1: the same text follows */
    const Loc *loc;
    int bytelevel;       /* a ByteLevel pre-tokenizer was met */
    int16_t byteof[324]; /* GPT-2's characters for bytes; -1 */
} TokenizerLoad;

const char *part_type(JsonValue j);
const char *part_text(const TokenizerLoad *load, JsonValue j, const char *key);
int part_flag(JsonValue j, const char *key, int dflt);
int32_t vocab_id(const TokenizerLoad *load, const char *s, size_t n);
void vocabulary_read(TokenizerLoad *load);

#endif
