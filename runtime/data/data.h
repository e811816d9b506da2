/* data.h: from files and texts to tokens, samples and the inputs of a step. */
#ifndef PLEAT_DATA_H
#define PLEAT_DATA_H

#include "../../ir/keys.h"
#include "../exec/exec.h"
#include "../tokenizer/tokenizer.h"

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
    const char *path;
    enum data_format format; /* what it is, not FORMATauto */
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
    void *zstd;   /* its stream; null: zlib reads the file */
    char *packed; /* of a .zst: what is read and not yet taken */
    size_t taken, read;
    size_t rest; /* 0: a frame has ended */
    char *buf;
    size_t at, end, cap; /* malloc'd */
    int64_t number;      /* of the line, from 1 */
} TextLines;
const char *lines_open(TextLines *lines, const char *path);
const char *lines_next(TextLines *lines, size_t *len);
const char *lines_close(TextLines *lines);

/* rows.c arrow.c parquet.c: the texts of a column. rows_open: null, or why not;
 * rows_close after either (what it said is in its arena: read it before).
 * rows_next: the next text, until the next call; one that is null in the table
 * is empty; null: no more, or r->why is what is wrong. */
typedef struct ArrowRows ArrowRows;
typedef struct ParquetRows ParquetRows;
typedef struct TextRows {
    Arena *mem;
    ArrowRows *arrow;
    ParquetRows *parquet;
    const char *why;
    int64_t number; /* of the row, from 1 */
} TextRows;
const char *rows_open(TextRows *rows, const char *path, enum data_format format,
                      const char *column);
const char *rows_next(TextRows *rows, size_t *n);
void rows_close(TextRows *rows);
const char *arrow_open(Arena *a, ArrowRows **out, const char *path,
                       const char *column);
const char *arrow_next(ArrowRows *rows, const char **why, size_t *n);
void arrow_close(ArrowRows *rows);
const char *parquet_open(Arena *a, ParquetRows **out, const char *path,
                         const char *column);
const char *parquet_next(ParquetRows *rows, const char **why, size_t *n);
void parquet_close(ParquetRows *rows);

/* Is it of texts, which become tokens? The others hold tokens. */
int format_is_text(enum data_format format);
/* FORMATauto becomes the format of a file, by its name and content. Null, or
 * what is wrong with the file ("is cut off"). */
const char *tokens_format(Arena *a, const char *path, enum data_format *format);
/* FORMATauto: by name and content. Null, or what is wrong with the file, which
 * is then closed. */
const char *tokens_open(Arena *a, const char *path, enum data_format format,
                        Tokens *tokens);
void tokens_close(Tokens *tokens);
double tokens_at(const Tokens *tokens, int64_t i);
/* n of them from at; what is no i32 becomes negative. */
void tokens_take(const Tokens *tokens, int64_t at, int64_t n, int32_t *out);
void tokens_ahead(const Tokens *tokens, int64_t at,
                  int64_t n);                /* soon wanted */
void tokens_scattered(const Tokens *tokens); /* by shuffled samples */
/* Document i: where it begins, and its length; -1: the index is damaged. */
int64_t tokens_doc(const Tokens *tokens, int64_t i, int64_t *start);

int elem_bytes(Elem e);
uint32_t u32_at(const uint8_t *p); /* little-endian */
/* Of one format each: null, or what is wrong. *data and *ends are malloc'd. */
const char *npy_read(Arena *a, Tokens *tokens);
const char *indexed_read(Arena *a, Tokens *tokens);
int64_t indexed_doc(const Tokens *tokens, int64_t i, int64_t *start);
/* The bytes of texts, a zero after each. */
const char *jsonl_read(Arena *a, Tokens *tokens);
const char *table_read(Arena *a, Tokens *tokens);

/* ---- numpy.c: what NumPy does -------------------------------------------- */

typedef struct NpRandom {
    uint32_t key[624];
    int pos;
} NpRandom;
void np_seed(NpRandom *random, uint32_t seed); /* RandomState(seed) */
uint32_t np_next(NpRandom *random);
void np_shuffle(NpRandom *random, uint32_t *v, int64_t n);
double np_sum(const double *v, int64_t n);

/* ---- blend.c megatron.c: which sample comes when ------------------------- */

/* A blend of n datasets whose weights sum to 1. */
typedef struct Blend Blend;
Blend *blend_new(Arena *a, const double *w, int n);
/* Sample i of the blend: its dataset, and which of that one's samples. */
int blend_at(Blend *blend, int64_t i, int64_t *within);
void blend_normalize(double *w, int n);
int64_t blend_size(int64_t samples, double w, int64_t *built);
int split_share(const char *s, int i, double end[2]);

typedef struct SampleOrder SampleOrder;
/* The samples of documents [lo, hi), at least `samples` (0: one epoch). Null
 * and *out, or what is wrong ("has 5 tokens, ..."). */
const char *order_new(Arena *a, const Tokens *tokens, int64_t lo, int64_t hi,
                      int64_t seq, int64_t samples, uint32_t seed,
                      SampleOrder **out);
int64_t order_samples(const SampleOrder *order);
typedef struct TokenCursor { /* through the tokens of one sample */
    const SampleOrder *o;
    int64_t doc, at, left;
} TokenCursor;
TokenCursor order_walk(const SampleOrder *order, int64_t i, int64_t from);
int64_t order_next(TokenCursor *cursor, int64_t *at);

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
    const char *key, *spec;
    enum data_format format;
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
Samples *samples_open(Arena *a, const SampleWant *want); /* err() with loc */

/* What a sample holds, in stretches: reader_next gives the length of the next
 * and where in r->t it begins; 0: no more. */
typedef struct SampleReader {
    const Tokens *t;
    int64_t at, n;
    TokenCursor walk;
} SampleReader;
/* Sample i of the run without its first `from` elements. input: whose, where
 * files feed one input each. */
SampleReader samples_read(const Samples *samples, int64_t i, int64_t from,
                          const char *input);
SampleReader samples_plain(const Samples *samples,
                           int64_t i); /* as in the files */
int64_t reader_next(SampleReader *reader, int64_t *at);
uint64_t splitmix64(uint64_t x); /* its last step: every bit moves all */
/* i of [0, n) to its place in the seed's order of epoch (a permutation). */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- binidx.c: Megatron's .bin and .idx, written ------------------------- */

typedef struct BinIdx BinIdx;
/* Tokens are u16 where vocab < 65500, else i32. prefix.bin and prefix.idx
 * appear when it is closed; err() when they cannot be written. */
BinIdx *binidx_create(const char *prefix, int64_t vocab);
void binidx_add(BinIdx *idx, const int32_t *token, int64_t n); /* a document */
void binidx_close(BinIdx *idx);
void binidx_drop(BinIdx *idx); /* instead: no files */

/* ---- tokenize.c: texts to tokens ----------------------------------------- */

/* How texts become tokens, by the keys of data{}; t null: bytes are tokens. */
struct TextArgs {
    const Tokenizer *t;
    int32_t eod;       /* after each document; -1: none */
    int template;      /* as the tokenizer begins and ends texts */
    const char *field; /* of a .jsonl's lines */
};
TextArgs text_args(const Opts *opts); /* err() at the key */

typedef struct TextCount {
    int64_t docs, empty, tokens, bytes;
} TextCount;
/* The documents of n files (a .jsonl's lines, else a file) to prefix.bin and
 * prefix.idx; err() with file and line. */
TextCount tokenize(const TextArgs *args, const char *const *path, int n,
                   enum data_format format, const char *prefix);
/* The .bin that holds a text's tokens, made once and kept in cache_folder(). */
const char *tokenized(Arena *mem, const TextArgs *args, const char *path,
                      enum data_format format);
/* datatool.c: `data tokenize` and its kin; the exit status. */
int data_command(int n, char **word, const Opts *opts, const char *out);
int blend_command(int n, char **word, const Opts *opts, const char *out);

/* ---- questions.c: multiple choice ---------------------------------------- */

typedef struct Question {
    const char *context;
    const char **ending; /* vec */
    int64_t right;
} Question;
Question *questions_read(Arena *a, const char *path); /* a vec; err() */
/* Where a text ends without the white space of Python's str.strip(), and where
 * it begins. */
size_t text_stripped(const char *s, size_t *first);

/* ---- data.c: inputs ------------------------------------------------------ */

typedef struct Data Data;
enum { DATAshuffle = 1 }; /* training order; else as in the files */
/* key "data.train" or "data.valid"; null when it is not set. */
Data *data_open(Arena *a, const Plan *p, const char *key, int flags);
/* ... of another place than the key says, in messages still the key's. */
Data *data_open_at(Arena *a, const Plan *p, const char *key, const char *spec,
                   int flags);
/* Inputs of the step that begins with this sample of the order. */
Feed data_feed(Data *data, int64_t first);
int64_t data_samples(const Data *data);
int64_t data_perstep(const Data *data); /* samples of one step */
int64_t data_vocab(const Data *data);   /* 0: unknown */
const Samples *data_source(const Data *data);
int64_t sample_elems(const Tensor *tensor); /* without micro and batch */
int64_t plan_vocab(const Plan *p); /* the largest axis of that role; 0: none */
/* The i-th sample in the files' order: its tokens, seq + 1 of them, to out when
 * there is one; -1 beyond the end. Returns how many; 0: these are no tokens. */
int64_t data_sample(const Data *data, int64_t i, int32_t *out);

/* ---- ngram.c: what counting alone predicts ------------------------------- */

enum { NGRAM = 3 }; /* loss[i]: of contexts of i bytes */
/* Cross-entropy of the first samples of valid by counts of train; 0: not
 * bytes. */
int ngrams(Arena *a, const Data *train, const Data *valid, int64_t samples,
           double loss[NGRAM]);

#endif
