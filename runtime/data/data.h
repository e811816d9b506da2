/* data.h: files and texts, tokens, samples, and the inputs of a step. */
#ifndef PLEAT_DATA_H
#define PLEAT_DATA_H

#include "../exec/exec.h"
#include "../tokenizer/tokenizer.h"

/* A format is a word of data.format: FORMATauto .. of keys.h. */

/* ---- tokens.c npy.c indexed.c sniff.c: files of tokens ------------------- */

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

/* A mapped file. Documents are texts, each with a zero after it, or the
 * sequences of a Megatron index; any other file is one document. */
typedef struct Tokens {
    const char *path;
    int format;         /* not FORMATauto */
    const char *packed; /* compression; null: none */
    const char *field;  /* field of rows with several */
    const uint8_t *map, *data;
    int64_t size; /* bytes of the file */
    Elem e;
    int64_t n;          /* elements */
    int64_t rows, cols; /* npy with rows; else 0 */
    int foreign;        /* its mark is of a kind that is never data */
    int64_t docs;
    const uint8_t *idx;
    int64_t idxsize; /* megatron: bytes of the index */
    uint8_t *own;
    int64_t *ends; /* jsonl: malloc'd; ends[docs] */
} Tokens;

/* stream.c: the text of a file, decompressed, in UTF-8 without a byte order
 * mark. stream_open returns null or a reason; the stream is closed after
 * either. stream_read appends at most 128 KiB and returns 0 at the end.
 * stream_close returns null or the error. stream_raw keeps the encoding. */
typedef struct TextStream TextStream;
const char *stream_open(Arena *a, TextStream **out, const char *path);
size_t stream_read(TextStream *stream, Bytes *to);
size_t stream_raw(TextStream *stream, char *to, size_t n);
const char *stream_close(TextStream *stream);
/* Returns the compression by a file's first bytes: "gzip"; null: none. */
const char *packed_by(const uint8_t *s, size_t n);
/* Is a text with these first bytes compressed, or has it a byte order mark? */
int text_coded(const uint8_t *s, size_t n);

/* rows.c arrow.c parquet.c: the texts of a file in order. rows_open returns
 * null or a reason. rows_next returns the next text, valid until the next call
 * (a null of a table is an empty text); null: the end, or an error in r->why.
 * With format jsonl it is the JSON row: see json_text. rows_close returns null
 * or the error, in the caller's arena. */
typedef struct ArrowRows ArrowRows;
typedef struct ParquetRows ParquetRows;
typedef struct TextRows {
    Arena *mem;
    int format;
    ArrowRows *arrow;
    ParquetRows *parquet;
    TextStream *in;
    Bytes buf; /* bytes read; the position is buf.s + at */
    size_t at;
    int64_t line; /* line of the position, counted from 1 */
    int array;    /* JSON: inside an array */
    int separator;
    int64_t column, columns; /* csv: wanted column, number of columns */
    Bytes field, text;
    const uint8_t *map; /* a mapped, uncompressed text */
    int64_t size;
    const char *why;
    int64_t number; /* number of the row, or of its first line, from 1 */
} TextRows;
const char *rows_open(TextRows *rows, const char *path, int format,
                      const char *column);
const char *rows_next(TextRows *rows, size_t *n);
const char *rows_close(TextRows *rows);
/* Writes the text of a key of a JSON row to `to`, which has room for the row's
 * n bytes; a row that is a string is the text itself, null an empty one.
 * Returns null or a malloc'd reason. Thread-safe. */
char *json_text(const char *row, size_t n, const char *field, char *to,
                size_t *len);
/* Returns "has no "body" (data.field= names one of: id, text)"; name_add
 * appends to the list. */
const char *no_column(Arena *a, const char *column, const Text *names);
void name_add(Text *names, const char *s, int64_t n);
const char *arrow_open(Arena *a, ArrowRows **out, const char *path,
                       const char *column);
const char *arrow_next(Arena *a, ArrowRows *rows, const char **why, size_t *n);
void arrow_close(ArrowRows *rows);
const char *parquet_open(Arena *a, ParquetRows **out, const char *path,
                         const char *column);
const char *parquet_next(Arena *a, ParquetRows *rows, const char **why,
                         size_t *n);
void parquet_close(ParquetRows *rows);

/* parquet_values.c: values of a page. BitRuns: the RLE and bit-packing hybrid.
 * runs_next, plain_take and values_next return 0 if the page is damaged. */
typedef struct BitRuns {
    const uint8_t *at, *end, *bits; /* bits: packed run; null: all are value */
    int64_t left, bit;
    int width; /* bits of a number, at most 32 */
    uint32_t value;
} BitRuns;
typedef struct PageText {
    const char *s;
    int64_t n;
} PageText;
typedef enum ParquetEncoding {
    ENCODINGplain = 0,
    ENCODINGplain_dictionary = 2,
    ENCODINGruns,
    ENCODINGdelta_lengths = 6,
    ENCODINGdelta_texts,
    ENCODINGdictionary
} ParquetEncoding;
typedef struct PageValues {
    int encoding;
    const uint8_t *at, *end; /* remaining texts */
    BitRuns codes;
    PageText *dictionary; /* malloc'd, and all below */
    uint32_t ndictionary;
    int32_t *prefix, *length; /* delta encodings: per text */
    int64_t i, n;
    Bytes last;
} PageValues;
uint64_t varint_take(const uint8_t **at, const uint8_t *end);
int64_t zigzag_take(const uint8_t **at, const uint8_t *end);
void runs_open(BitRuns *runs, const uint8_t *s, const uint8_t *end, int width);
int runs_next(BitRuns *runs, uint32_t *v);
int plain_take(const uint8_t **at, const uint8_t *end, PageText *text);
/* Opens a page of at most `most` values, texts and nulls. Returns null or a
 * reason. */
const char *values_open(PageValues *values, int encoding, const uint8_t *s,
                        const uint8_t *end, int64_t most);
int values_next(PageValues *values, PageText *text);
void values_close(PageValues *values);

/* sniff.c: finds the kind of a file by its first bytes, and of tokens without a
 * mark by the vocabulary (0: unknown). Sets tokens->format and packed. Returns
 * null, or a reason ("is a PNG image"). */
const char *sniff(Arena *a, Tokens *tokens, int64_t vocab);

/* Is it a format of texts? The others have tokens. */
int format_is_text(int format);
/* Finds format, packed, size and foreign of a file; FORMATauto: by content.
 * Returns null, or the error ("is cut off"). The file is closed. */
const char *tokens_kind(Arena *a, const char *path, int format, int64_t vocab,
                        Tokens *kind);
/* Opens a file. FORMATauto: by content; field: field of texts, null: "text".
 * Returns null, or the error of the file, which is then closed. */
const char *tokens_open(Arena *a, const char *path, int format, int64_t vocab,
                        const char *field, Tokens *tokens);
void tokens_close(Tokens *tokens);
double tokens_at(const Tokens *tokens, int64_t i);
/* Copies n tokens from `at`; values outside i32 become negative. */
void tokens_take(const Tokens *tokens, int64_t at, int64_t n, int32_t *out);
void tokens_ahead(const Tokens *tokens, int64_t at,
                  int64_t n);                /* starts to read them */
void tokens_scattered(const Tokens *tokens); /* samples are shuffled */
/* Returns the length of document i, and its start; -1: the index is damaged. */
int64_t tokens_doc(const Tokens *tokens, int64_t i, int64_t *start);

static inline int elem_bytes(Elem e)
{
    return "\1\1\2\2\4\4\10\4\10"[e];
}

static inline uint32_t u32_at(const uint8_t *p) /* little-endian */
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

/* Readers of formats; return null or the error. *data and *ends are
 * malloc'd. */
const char *npy_read(Arena *a, Tokens *tokens);
const char *indexed_read(Arena *a, Tokens *tokens);
int64_t indexed_doc(const Tokens *tokens, int64_t i, int64_t *start);
/* Returns the path of a file's Megatron index; null: there is none. */
char *indexed_path(Arena *a, const char *path, int64_t size);
/* Reads the bytes of texts, a zero after each but a single one. */
const char *texts_read(Arena *a, Tokens *tokens);

/* ---- numpy.c: NumPy's shuffle and sum ------------------------------------ */

typedef struct NpRandom {
    uint32_t key[624];
    int pos;
} NpRandom;
void np_seed(NpRandom *random, uint32_t seed); /* RandomState(seed) */
uint32_t np_next(NpRandom *random);
void np_shuffle(NpRandom *random, uint32_t *v, int64_t n);
double np_sum(const double *v, int64_t n);

/* ---- blend.c megatron.c: orders of samples ------------------------------- */

/* A blend of n datasets whose weights sum to 1. */
typedef struct Blend Blend;
Blend *blend_new(Arena *a, const double *w, int n);
/* Returns the dataset of sample i of the blend; *within: its index there. */
int blend_at(Blend *blend, int64_t i, int64_t *within);
void blend_normalize(double *w, int n);
int64_t blend_size(int64_t samples, double w, int64_t *built);
int split_share(const char *s, int i, double end[2]);

typedef struct SampleOrder SampleOrder;
/* Orders the samples of documents [lo, hi), at least `samples` (0: one epoch).
 * Returns null and *out, or the error ("has 5 tokens, ..."). */
const char *order_new(Arena *a, const Tokens *tokens, int64_t lo, int64_t hi,
                      int64_t seq, int64_t samples, uint32_t seed,
                      SampleOrder **out);
int64_t order_samples(const SampleOrder *order);
typedef struct TokenCursor { /* position in the tokens of a sample */
    const SampleOrder *o;
    int64_t doc, at, left;
} TokenCursor;
TokenCursor order_walk(const SampleOrder *order, int64_t i, int64_t from);
int64_t order_next(TokenCursor *cursor, int64_t *at);

typedef struct TextArgs TextArgs;

/* ---- samples.c: samples -------------------------------------------------- */

typedef struct SampleFile {
    Tokens t;
    const char *input;      /* the only input that this file feeds */
    int64_t first, samples; /* samples before this file, in it */
} SampleFile;

typedef struct Corpus { /* a dataset */
    const char *path;
    SampleFile *file;    /* vec */
    const char *kind;    /* kind of the last file: "jsonl inside gzip" */
    const char *kinds;   /* kinds of all files */
    const char *without; /* excluded files of a folder; null: none */
    int rows;            /* an array of rows, used in order */
    int64_t lo, n;       /* used samples [lo, lo + n) of the files */
    SampleOrder *order;  /* megatron */
} Corpus;

typedef struct SampleWant {
    const char *key, *spec;
    int format;
    const Loc *loc;
    const Plan *plan;   /* whose inputs may be arrays; or null */
    int64_t seq, vocab; /* vocab 0: unknown */
    uint64_t seed;
    int shuffle, megatron; /* data.order */
    int split;
    double share[2];      /* megatron: share of the documents (data.split) */
    int64_t samples;      /* megatron: samples of the run */
    const TextArgs *text; /* null: texts are bytes */
    double tail;
    int held; /* reads the held-out samples */
} SampleWant;

typedef struct Samples {
    Arena *mem;
    SampleWant want;
    Corpus *part; /* vec */
    int weighted; /* the weights are numbers */
    Blend *blend; /* null: one part */
    int64_t n;    /* samples of an epoch, or of the run */
} Samples;
Samples *samples_open(Arena *a, const SampleWant *want); /* err() with loc */

/* Reads a sample in contiguous parts: reader_next returns the length of the
 * next part and its start in r->t; 0: the end. */
typedef struct SampleReader {
    const Tokens *t;
    int64_t at, n;
    TokenCursor walk;
} SampleReader;
/* Returns a reader of sample i of the run from element `from` on. input: the
 * input to fill; labels of files of tokens are the next tokens. */
SampleReader samples_read(const Samples *samples, int64_t i, int64_t from,
                          const char *input);
/* Returns "tokens.npy reward.npy": arrays that a folder may have, by the plan's
 * inputs. */
const char *samples_arrays(const Samples *samples);
SampleReader samples_plain(const Samples *samples,
                           int64_t i); /* i: in order of the files */
int64_t reader_next(SampleReader *reader, int64_t *at);
uint64_t splitmix64(uint64_t x); /* finalizer of SplitMix64 */
/* Returns the place of i in [0, n) in the epoch's permutation by the seed. */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* ---- binidx.c: writes Megatron's .bin and .idx --------------------------- */

typedef struct BinIdx BinIdx;
/* Tokens are u16 if vocab < 65500, otherwise i32. binidx_close commits
 * prefix.bin and prefix.idx; err() if they cannot be written. */
BinIdx *binidx_create(const char *prefix, int64_t vocab);
void binidx_add(BinIdx *idx, const int32_t *token, int64_t n); /* a document */
void binidx_close(BinIdx *idx);
void binidx_drop(BinIdx *idx); /* closes it without files */

/* ---- tokenize.c: texts to tokens ----------------------------------------- */

/* Tokenization of texts by the keys of data{}; t null: bytes are tokens. */
struct TextArgs {
    const Tokenizer *t;
    int32_t eod;       /* token after each document; -1: none */
    int template;      /* adds the tokenizer's begin and end tokens */
    const char *field; /* field of rows */
};
TextArgs text_args(const Opts *opts); /* err() at the key */
/* Calls err() at loc if weights come from a Hugging Face folder without a
 * tokenizer and none is given: the folder's tokens are not bytes. text: name of
 * the input. */
void need_tokenizer(const Opts *opts, const Loc *loc, const char *text);

typedef struct TextCount {
    int64_t docs, empty, tokens, bytes;
} TextCount;
/* Tokenizes the documents of n files (rows, or a file each) to prefix.bin and
 * prefix.idx; err() with file and line. */
TextCount tokenize(const TextArgs *args, const char *const *path, int n,
                   int format, const char *prefix);
/* Returns the .bin with a text's tokens, created once in cache_folder(). */
const char *tokenized(Arena *mem, const TextArgs *args, const char *path,
                      int format);
/* datatool.c: runs `data tokenize` and the other data commands. Returns the
 * exit status. */
int data_command(int n, char **word, const Opts *opts, const char *out);
int blend_command(int n, char **word, const Opts *opts, const char *out);

/* ---- questions.c: multiple choice ---------------------------------------- */

typedef struct Question {
    const char *context;
    const char **ending; /* vec */
    int64_t right;
} Question;
Question *questions_read(Arena *a, const char *path); /* a vec; err() */
/* Returns the end of a text without the white space of Python's str.strip(),
 * and its start. */
size_t text_stripped(const char *s, size_t *first);

/* ---- data.c: inputs ------------------------------------------------------ */

typedef struct Data Data;
enum { DATAshuffle = 1 }; /* training order; otherwise file order */
/* Opens key "data.train" or "data.valid"; null if it is not set. */
Data *data_open(Arena *a, const Plan *p, const char *key, int flags);
/* Opens another source than the key's; messages name the key. */
Data *data_open_at(Arena *a, const Plan *p, const char *key, const char *spec,
                   int flags);
/* Appends a line for each source: kinds of its files, documents, tokens,
 * excluded files of a folder. */
void data_says(const Data *data, Text *out);
/* Returns the inputs of the step that starts with this sample of the order. */
Feed data_feed(Data *data, int64_t first);
int64_t data_samples(const Data *data);
int64_t data_perstep(const Data *data); /* samples of a step */
int64_t data_vocab(const Data *data);   /* 0: unknown */
const Samples *data_source(const Data *data);
int64_t sample_elems(const Tensor *tensor); /* without micro and batch */
/* Returns the exclusive upper bound of an input's integers. */
int64_t input_below(const Plan *p, const char *name);
int64_t plan_vocab(const Plan *p); /* largest axis of this role; 0: none */
/* Copies the seq + 1 tokens of sample i in file order to out (may be null); -1
 * beyond the end. Returns their number; 0: the data are not tokens. */
int64_t data_sample(const Data *data, int64_t i, int32_t *out);

/* ---- ngram.c: n-gram models ---------------------------------------------- */

enum { NGRAM = 3 }; /* loss[i]: contexts of i bytes */
/* Computes the cross-entropy of the first samples of valid by counts of train.
 * Returns 0 if the tokens are not bytes. */
int ngrams(Arena *a, const Data *train, const Data *valid, int64_t samples,
           double loss[NGRAM]);

#endif
