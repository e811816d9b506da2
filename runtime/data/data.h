/* data.h: from files and texts to tokens, samples and the inputs of a step. */
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

/* A file, mapped. Documents are texts with the zero after each, or
 * the sequences of a Megatron index; any other file is one. */
typedef struct Tokens {
    const char *path;
    int format;         /* not FORMATauto */
    const char *packed; /* its compression; null: none */
    const char *field;  /* of rows with several */
    const uint8_t *map, *data;
    int64_t size; /* of the file, bytes */
    Elem e;
    int64_t n;          /* elements */
    int64_t rows, cols; /* npy with rows; else 0 */
    int foreign;        /* of a kind that is never data, by its mark */
    int64_t docs;
    const uint8_t *idx;
    int64_t idxsize; /* megatron: the index */
    uint8_t *own;
    int64_t *ends; /* jsonl: malloc'd; ends[docs] */
} Tokens;

/* stream.c: the text of a file, unpacked, in UTF-8 without a byte order mark.
 * stream_open: null, or why not; close it after either. stream_read appends at
 * most 128 KiB; 0: no more, and stream_close gives null or what is wrong.
 * stream_raw is the same without a change of encoding. */
typedef struct TextStream TextStream;
const char *stream_open(Arena *a, TextStream **out, const char *path);
size_t stream_read(TextStream *stream, Bytes *to);
size_t stream_raw(TextStream *stream, char *to, size_t n);
const char *stream_close(TextStream *stream);
/* The compression that a file's first bytes tell: "gzip"; null: none. */
const char *packed_by(const uint8_t *s, size_t n);
/* Is a text that begins so compressed, or does it have a byte order mark? */
int text_coded(const uint8_t *s, size_t n);

/* rows.c arrow.c parquet.c: the texts of a file, one after another. rows_open:
 * null, or why not. rows_next: the next text, until the next call; one that is
 * null in the table is empty; null: no more, or r->why is what is wrong. It is
 * a row of JSON itself where the format is jsonl: see json_text. rows_close
 * after all: null, or what is wrong, in the arena, which the caller frees. */
typedef struct ArrowRows ArrowRows;
typedef struct ParquetRows ParquetRows;
typedef struct TextRows {
    Arena *mem;
    int format;
    ArrowRows *arrow;
    ParquetRows *parquet;
    TextStream *in;
    Bytes buf; /* what is read of it; the place is buf.s + at */
    size_t at;
    int64_t line; /* of the place, from 1 */
    int array;    /* JSON: inside one */
    int separator;
    int64_t column, columns; /* csv: the wanted one, and how many */
    Bytes field, text;
    const uint8_t *map; /* a text that is not packed */
    int64_t size;
    const char *why;
    int64_t number; /* of the row, or the line where it begins, from 1 */
} TextRows;
const char *rows_open(TextRows *rows, const char *path, int format,
                      const char *column);
const char *rows_next(TextRows *rows, size_t *n);
const char *rows_close(TextRows *rows);
/* The text under a key of a row of JSON, to `to`, which has room for the n
 * bytes of the row; a row that is a string is that text, null an empty one.
 * Null, or a malloc'd reason. Several threads may call it. */
char *json_text(const char *row, size_t n, const char *field, char *to,
                size_t *len);
/* "has no "body" (data.field= names one of: id, text)"; name_add makes the
 * list. */
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

/* parquet_values.c: values of a page. BitRuns are the hybrid of equal and of
 * packed numbers; runs_next, plain_take and values_next: 0: damaged. */
typedef struct BitRuns {
    const uint8_t *at, *end, *bits; /* bits: the run's; null: all are value */
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
    const uint8_t *at, *end; /* texts to come */
    BitRuns codes;
    PageText *dictionary; /* malloc'd, as all below */
    uint32_t ndictionary;
    int32_t *prefix, *length; /* of delta encodings: of each text */
    int64_t i, n;
    Bytes last;
} PageValues;
uint64_t varint_take(const uint8_t **at, const uint8_t *end);
int64_t zigzag_take(const uint8_t **at, const uint8_t *end);
void runs_open(BitRuns *runs, const uint8_t *s, const uint8_t *end, int width);
int runs_next(BitRuns *runs, uint32_t *v);
int plain_take(const uint8_t **at, const uint8_t *end, PageText *text);
/* A page of `most` values at most, texts and nulls. */
const char *values_open(PageValues *values, int encoding, const uint8_t *s,
                        const uint8_t *end, int64_t most);
int values_next(PageValues *values, PageText *text);
void values_close(PageValues *values);

/* sniff.c: the kind of a file by its first bytes, and of tokens without a mark
 * by the vocabulary (0: not known). tokens->format and packed; null, or why it
 * is none that is read ("is a PNG image"). */
const char *sniff(Arena *a, Tokens *tokens, int64_t vocab);

/* Is it of texts, which become tokens? The others hold tokens. */
int format_is_text(int format);
/* Of a file its format, packed, size and foreign; FORMATauto: by content. Null,
 * or what is wrong with the file ("is cut off"). It is closed. */
const char *tokens_kind(Arena *a, const char *path, int format, int64_t vocab,
                        Tokens *kind);
/* FORMATauto: by content. field: of texts; null: "text". Null, or what is wrong
 * with the file, which is then closed. */
const char *tokens_open(Arena *a, const char *path, int format, int64_t vocab,
                        const char *field, Tokens *tokens);
void tokens_close(Tokens *tokens);
double tokens_at(const Tokens *tokens, int64_t i);
/* n of them from at; what is no i32 becomes negative. */
void tokens_take(const Tokens *tokens, int64_t at, int64_t n, int32_t *out);
void tokens_ahead(const Tokens *tokens, int64_t at,
                  int64_t n);                /* soon wanted */
void tokens_scattered(const Tokens *tokens); /* by shuffled samples */
/* Document i: where it begins, and its length; -1: the index is damaged. */
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

/* Of one format each: null, or what is wrong. *data and *ends are malloc'd. */
const char *npy_read(Arena *a, Tokens *tokens);
const char *indexed_read(Arena *a, Tokens *tokens);
int64_t indexed_doc(const Tokens *tokens, int64_t i, int64_t *start);
/* Megatron's index of a file, beside it; null: there is none. */
char *indexed_path(Arena *a, const char *path, int64_t size);
/* The bytes of texts, a zero after each; of one text none. */
const char *texts_read(Arena *a, Tokens *tokens);

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
    SampleFile *file;    /* vec */
    const char *kind;    /* of the last file: "jsonl inside gzip" */
    const char *kinds;   /* of all */
    const char *without; /* files of a folder that are left out; null: none */
    int rows;            /* used in order */
    int64_t lo, n;       /* ours: samples [lo, lo + n) of the files */
    SampleOrder *order;  /* megatron */
} Corpus;

typedef struct SampleWant {
    const char *key, *spec;
    int format;
    const Loc *loc;
    const Plan *plan;   /* its inputs may be arrays; or null */
    int64_t seq, vocab; /* vocab: 0: not known */
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
/* Sample i of the run from element `from` on. input: the one to fill; labels of
 * files of tokens are the next tokens. */
SampleReader samples_read(const Samples *samples, int64_t i, int64_t from,
                          const char *input);
/* "tokens.npy reward.npy": a folder's arrays, by the plan's inputs. */
const char *samples_arrays(const Samples *samples);
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
/* err() at loc if weights come from a Hugging Face folder without a tokenizer
 * and no tokenizer is given: the folder's tokens are not bytes. `text` names
 * the input. */
void need_tokenizer(const Opts *opts, const Loc *loc, const char *text);

typedef struct TextCount {
    int64_t docs, empty, tokens, bytes;
} TextCount;
/* The documents of n files (a .jsonl's lines, else a file) to prefix.bin and
 * prefix.idx; err() with file and line. */
TextCount tokenize(const TextArgs *args, const char *const *path, int n,
                   int format, const char *prefix);
/* The .bin that holds a text's tokens, made once and kept in cache_folder(). */
const char *tokenized(Arena *mem, const TextArgs *args, const char *path,
                      int format);
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
/* A line for each source: kinds of its files, documents, tokens, and what of a
 * folder is left out. */
void data_says(const Data *data, Text *out);
/* Inputs of the step that begins with this sample of the order. */
Feed data_feed(Data *data, int64_t first);
int64_t data_samples(const Data *data);
int64_t data_perstep(const Data *data); /* samples of one step */
int64_t data_vocab(const Data *data);   /* 0: unknown */
const Samples *data_source(const Data *data);
int64_t sample_elems(const Tensor *tensor); /* without micro and batch */
/* What the integers of an input are below. */
int64_t input_below(const Plan *p, const char *name);
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
