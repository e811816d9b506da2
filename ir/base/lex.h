/* lex.h: words of the text forms: writing and reading (lex.c), or both by one
 * function (codec.c). plan.h includes it. */
#ifndef PLEAT_LEX_H
#define PLEAT_LEX_H

typedef struct Lex {
    Arena *arena;
    const char *p, *end; /* remaining text */
    const char *file;
    int line; /* 0: before the first line */
} Lex;

void put_word(Text *out, const char *s); /* bare, or as a "string" */
void put_json(Text *out, const char *s); /* a JSON string with its quotes */
/* Appends s in quotes; escape: format of unprintable bytes. */
void put_quoted(Text *out, const char *s, const char *escape);
void put_int(Text *out, int64_t v);
void put_hex(Text *out, double v);    /* %a */
void put_bits(Text *out, uint64_t v); /* 16 hexadecimal digits */
_Noreturn void lex_err(const Lex *lex, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Every reader skips blanks; only lex_next and lex_line leave the line. */
int lex_next(Lex *lex);         /* moves to the next line with words; 0: end */
void lex_line(Lex *lex);        /* moves to it; err() at the end */
int lex_more(Lex *lex);         /* has this line more words? */
int lex_mark(Lex *lex, char c); /* reads this mark if it is next */
int lex_key(Lex *lex, const char *name); /* reads "name=" if it is next */
void lex_need(Lex *lex, char c);
const char *lex_word(Lex *lex);           /* interned */
int lex_take(Lex *lex, const char *word); /* reads this word if it is next */
int lex_choice(Lex *lex, const char *const *v, int n); /* one of n words */
int64_t lex_int(Lex *lex);
int64_t lex_range(Lex *lex, const char *what, int64_t min, int64_t max);
double lex_num(Lex *lex);
uint64_t lex_bits(Lex *lex);
int lex_isdigit(char c);
int64_t lex_digits(Lex *lex); /* digits inside a word; skips no blank */
Dtype lex_dtype(Lex *lex);
void lex_place(Lex *lex, const char **file, int *line); /* [ @ file line ] */
/* Appends a raw text after its length: `kind [name] length`, then its bytes. */
void put_text(Text *out, const char *what, const char *name, const char *text);
const char *lex_text(Lex *lex); /* length and bytes; err() at a zero byte */

/* ---- codec.c: a record's line, read and written by one function ---------- */

/* Functions write the given value and return it, or return the value read. */
typedef struct Codec {
    Lex *in; /* null: the record is written */
    Text *out;
} Codec;

enum { MANYNUMBERS = 1 << 16 };

const char *code_word(Codec *codec, const char *s);
int64_t code_range(Codec *codec, const char *what, int64_t min, int64_t max,
                   int64_t v);
int64_t code_int(Codec *codec, int64_t v);
int code_index(Codec *codec, const char *what, int v); /* -1 or more */
double code_num(Codec *codec, double v);
int code_choice(Codec *codec, const char *const *names, int n, int v);
Dtype code_dtype(Codec *codec, Dtype dt);
uint64_t code_hash(Codec *codec, uint64_t v);
/* Codes digits inside a word, without a blank before them. */
int64_t code_digits(Codec *codec, const char *what, int64_t min, int64_t max,
                    int64_t v);
/* Codes a mark, after a blank. */
int code_mark(Codec *codec, const char *s, int there);
void code_need(Codec *codec, const char *s);
/* Code an optional word, which announces what follows or names the line; a
 * required word; "name=". */
int code_option(Codec *codec, const char *s, int there);
void code_expect(Codec *codec, const char *s);
int code_key(Codec *codec, const char *name, int there);
/* Codes an optional word and a set of atoms, written if it is not empty. */
uint32_t code_atoms(Codec *codec, const char *s, uint32_t set);
void code_end(Codec *codec);                               /* ends a line */
void code_place(Codec *codec, const char **file, int *at); /* and the end */
/* Codes "kernel" name length, and the text below. */
const char *code_text(Codec *codec, const char *what, const char **name,
                      const char *s);
/* Record i of a list v of n: the one to write, or a new one to read. */
#define code_at(t, v, n, i) \
    (((v) = code_room((t), (v), &(n), sizeof *(v))), &(v)[i])
void *code_room(Codec *codec, void *v, int *n, size_t size);
int code_number_next(Codec *codec, int i, int n); /* the i-th of a list's n */
void code_limit(Codec *codec, int i, int most, const char *what);

#endif
