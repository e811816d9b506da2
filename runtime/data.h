/* data.h: from files and texts to tokens and samples. A part of runtime.h,
 * which includes it; nobody else does. */
#ifndef PLEAT_DATA_H
#define PLEAT_DATA_H

#include "../ir/plan.h"

/* ---- tokens.c npy.c indexed.c jsonl.c: files of tokens ------------------- */

typedef enum Elem {
    EU8,
    EI8,
    EU16,
    EI16,
    EI32,
    EU32,
    EI64,
    EF32,
    EF64,
    NELEM
} Elem;

/* A file, mapped. Documents are a jsonl's texts with the zero after each, or
 * the sequences of a Megatron index; any other file is one. */
typedef struct Tokens {
    const char *path, *format;
    const uint8_t *map, *data;
    int64_t size; /* of the file, bytes */
    Elem e;
    int64_t n;          /* elements */
    int64_t rows, cols; /* npy with rows; else 0 */
    int64_t docs;
    const uint8_t *idx;
    int64_t idxsize; /* megatron: the index */
    uint8_t *own;
    int64_t *ends; /* jsonl: malloc'd; ends[docs] */
} Tokens;

/* lines.c: null, or why not. lines_next: the next line without its end (it may
 * lack one at the file's end), until the next call; null: no more. */
typedef struct TextLines {
    void *file;
    char *buf;
    size_t at, end, cap; /* malloc'd */
    int64_t number;      /* of the line, from 1 */
} TextLines;
const char *lines_open(TextLines *l, const char *path);
const char *lines_next(TextLines *l, size_t *len);
const char *lines_close(TextLines *l);

/* A format for a file, its name or content; null and *why. */
const char *tokens_format(Arena *a, const char *path, const char *format,
                          const char **why);
/* format: a word of data.format; null or "auto": by name and content. Null, or
 * what is wrong with the file ("is cut off"), which is then closed. */
const char *tokens_open(Arena *a, const char *path, const char *format,
                        Tokens *t);
void tokens_close(Tokens *t);
double tokens_at(const Tokens *t, int64_t i);
/* n of them from at; what is no i32 becomes negative. */
void tokens_take(const Tokens *t, int64_t at, int64_t n, int32_t *out);
void tokens_ahead(const Tokens *t, int64_t at, int64_t n); /* soon wanted */
void tokens_scattered(const Tokens *t); /* by shuffled samples */
/* Document i: where it begins, and its length; -1: the index is damaged. */
int64_t tokens_doc(const Tokens *t, int64_t i, int64_t *start);

int elem_bytes(Elem e);
uint32_t u32_at(const uint8_t *p); /* little-endian */
/* Null, or why not. */
const char *map_whole(Arena *a, const char *path, const uint8_t **p,
                      int64_t *n);
/* Of one format each: null, or what is wrong. *data and *ends are malloc'd. */
const char *npy_read(Arena *a, Tokens *t);
const char *indexed_read(Arena *a, Tokens *t);
int64_t indexed_doc(const Tokens *t, int64_t i, int64_t *start);
const char *jsonl_read(Arena *a, const char *path, uint8_t **data, int64_t *n,
                       int64_t **ends, int64_t *docs);

/* ---- numpy.c: what NumPy does -------------------------------------------- */

typedef struct NpRandom {
    uint32_t key[624];
    int pos;
} NpRandom;
void np_seed(NpRandom *r, uint32_t seed); /* RandomState(seed) */
uint32_t np_next(NpRandom *r);
void np_shuffle(NpRandom *r, uint32_t *v, int64_t n);
double np_sum(const double *v, int64_t n);

/* ---- blend.c megatron.c: which sample comes when ------------------------- */

/* A blend of n datasets whose weights sum to 1. */
typedef struct Blend Blend;
Blend *blend_new(Arena *a, const double *w, int n);
/* Sample i of the blend: its dataset, and which of that one's samples. */
int blend_at(Blend *b, int64_t i, int64_t *within);
void blend_normalize(double *w, int n);
int64_t blend_size(int64_t samples, double w, int64_t *built);
int split_share(const char *s, int i, double end[2]);

typedef struct SampleOrder SampleOrder;
/* The samples of documents [lo, hi), at least `samples` (0: one epoch). Null
 * and *out, or what is wrong ("has 5 tokens, ..."). */
const char *order_new(Arena *a, const Tokens *t, int64_t lo, int64_t hi,
                      int64_t seq, int64_t samples, uint32_t seed,
                      SampleOrder **out);
int64_t order_samples(const SampleOrder *o);
typedef struct TokenCursor { /* through the tokens of one sample */
    const SampleOrder *o;
    int64_t doc, at, left;
} TokenCursor;
TokenCursor order_walk(const SampleOrder *o, int64_t i, int64_t from);
int64_t order_next(TokenCursor *w, int64_t *at);

typedef struct TextArgs TextArgs;

/* ---- samples.c: samples -------------------------------------------------- */

typedef struct SampleFile {
    Tokens t;
    const char *input;      /* this file feeds only that one */
    int64_t first, samples; /* samples before this file, in it */
} SampleFile;

typedef struct Corpus { /* a dataset */
    const char *path;
    SampleFile *file;   /* vec */
    int rows;           /* used in order */
    int64_t lo, n;      /* ours: samples [lo, lo + n) of the files */
    SampleOrder *order; /* megatron */
} Corpus;

typedef struct SampleWant {
    const char *key, *spec, *format;
    const Loc *loc;
    const Plan *plan; /* its inputs may be arrays; or null */
    int64_t seq;
    uint64_t seed;
    int shuffle, megatron; /* data.order */
    int split;
    double share[2];      /* megatron: data.split, these documents */
    int64_t samples;      /* megatron: those of the run */
    const TextArgs *text; /* null: texts are bytes */
    double tail;
    int held; /* what is held out; held: read that */
} SampleWant;

typedef struct Samples {
    Arena *mem;
    SampleWant want;
    Corpus *part; /* vec */
    int weighted; /* by numbers */
    Blend *blend; /* null: one part */
    int64_t n;    /* of an epoch, or of the run */
} Samples;
Samples *samples_open(Arena *a, const SampleWant *w); /* err() with loc */

/* What a sample holds, in stretches: reader_next gives the length of the next
 * and where in r->t it begins; 0: no more. */
typedef struct SampleReader {
    const Tokens *t;
    int64_t at, n;
    TokenCursor walk;
} SampleReader;
/* Sample i of the run without its first `from` elements. input: whose, where
 * files feed one input each. */
SampleReader samples_read(const Samples *s, int64_t i, int64_t from,
                          const char *input);
SampleReader samples_plain(const Samples *s, int64_t i); /* as in the files */
int64_t reader_next(SampleReader *r, int64_t *at);
/* i of [0, n) to its place in the seed's order of epoch (a permutation). */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- binidx.c: Megatron's .bin and .idx, written ------------------------- */

typedef struct BinIdx BinIdx;
/* Tokens are u16 where vocab < 65500, else i32. prefix.bin and prefix.idx
 * appear when it is closed; err() when they cannot be written. */
BinIdx *binidx_create(const char *prefix, int64_t vocab);
void binidx_add(BinIdx *b, const int32_t *token, int64_t n); /* a document */
void binidx_close(BinIdx *b);
void binidx_drop(BinIdx *b); /* instead: no files */

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
    const char *content;
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

/* Reads a tokenizer.json; err() at l when it is damaged or of a kind not known
 * here. path "bytes": a byte is a token. */
Tokenizer *tokenizer_open(const char *path, const Loc *l);
int32_t tokenizer_id(const Tokenizer *t, const char *text); /* -1: none */
/* The bytes that a token stands for; null: no such token. */
const char *tokenizer_text(const Tokenizer *t, int32_t id, size_t *n);

enum { ENCtemplate = 1 };
Encoder *encoder_new(const Tokenizer *t);
void encoder_free(Encoder *e);
/* Tokens of a text of valid UTF-8, e->n of them at e->id until the next call.
 * Null, or what went wrong. */
const char *encode(Encoder *e, const char *s, size_t n, int flags);
/* Their text; a part of a character is left as it is. */
void decode(const Tokenizer *t, const int32_t *id, int64_t n, Text *out);
int64_t utf8_bad(const char *s, size_t n); /* first bad byte; -1: none */

/* How texts become tokens, by the keys of data{}; t null: bytes are tokens. */
struct TextArgs {
    const Tokenizer *t;
    int32_t eod;       /* after each document; -1: none */
    int template;      /* as the tokenizer begins and ends texts */
    const char *field; /* of a .jsonl's lines */
};
TextArgs text_args(const Opts *o); /* err() at the key */

typedef struct TextCount {
    int64_t docs, empty, tokens, bytes;
} TextCount;
/* The documents of n files (a .jsonl's lines, else a file) to prefix.bin and
 * prefix.idx; err() with file and line. */
TextCount tokenize(const TextArgs *a, const char *const *path, int n,
                   const char *format, const char *prefix);
/* The .bin that holds a text's tokens, made once and kept in cache_folder(). */
const char *tokenized(Arena *mem, const TextArgs *a, const char *path,
                      const char *format);
/* datatool.c: `data tokenize` and its kin; the exit status. */
int data_command(int n, char **word, const Opts *o, const char *out);
int blend_command(int n, char **word, const Opts *o, const char *out);

/* bpe.c pretokenizer.c normalizer.c added_tokens.c encode.c, for each other */
void *enlarge(void *p, size_t bytes); /* realloc, or err() */
void bytes_add(Bytes *b, const char *s, size_t n);
void bpe_index(Bpe *b, int nmerge); /* texts are known: hash them */
void bpe_merge(Bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
int32_t bpe_find(const Bpe *b, const char *s, size_t n); /* -1: none */
void bpe_word(Encoder *e, const char *s, size_t n);
void encode_id(Encoder *e, int32_t id);
/* unicode16.c: to a [] of a pattern, what Unicode 15 and 16 added to a
 * category, "L" or "Lu". */
void put_newer(Text *t, const char *category, size_t n);
void *cut_compile(const char *pattern, const Loc *l);
void cut_text(Encoder *e, size_t k, const char *s, size_t n);
/* Null, or what stands for s. */
const Bytes *normalize(Encoder *e, const char *s, size_t n);
void trie_add(Trie *t, const Added *a, int index);
void added_split(Encoder *e, int pass, const char *s, size_t n);

#endif
