/* lex.h: words of the text forms, written and read (lex.c), or both by one
 * function (codec.c). Part of plan.h. */
#ifndef PLEAT_LEX_H
#define PLEAT_LEX_H

typedef struct Lex {
    Arena *arena;
    const char *p, *end; /* what is left */
    const char *file;
    int line; /* 0: before the first */
} Lex;

void put_word(Text *out, const char *s); /* bare, or as a "string" */
void put_json(Text *out, const char *s); /* a JSON string, quotes too */
/* In quotes, with \\ before these and what is not printed as escape has it. */
void put_quoted(Text *out, const char *s, const char *escape);
void put_int(Text *out, int64_t v);
void put_hex(Text *out, double v);    /* %a */
void put_bits(Text *out, uint64_t v); /* 16 hexadecimal digits */
_Noreturn void lex_err(const Lex *lex, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Every reader skips blanks; none but lex_next and lex_line leaves the line. */
int lex_next(Lex *lex);         /* to the next line with words; 0: the end */
void lex_line(Lex *lex);        /* the same; there must be one */
int lex_more(Lex *lex);         /* is there more on this line? */
int lex_mark(Lex *lex, char c); /* take this mark if it is next */
int lex_key(Lex *lex, const char *name); /* take "name=" if it is next */
void lex_need(Lex *lex, char c);
const char *lex_word(Lex *lex);           /* interned */
int lex_take(Lex *lex, const char *word); /* take this word if it is next */
int lex_choice(Lex *lex, const char *const *v, int n); /* one of n words */
int64_t lex_int(Lex *lex);
int64_t lex_range(Lex *lex, const char *what, int64_t min, int64_t max);
double lex_num(Lex *lex);
uint64_t lex_bits(Lex *lex);
int lex_isdigit(char c);
int64_t lex_digits(Lex *lex); /* in the middle of a word; skips no blank */
Dtype lex_dtype(Lex *lex);
void lex_place(Lex *lex, const char **file, int *line); /* [ @ file line ] */
/* A text as it is, behind its length: `what [name] length`, then its bytes. */
void put_text(Text *out, const char *what, const char *name, const char *text);
const char *lex_text(Lex *lex); /* from the length on; without zero bytes */

/* ---- codec.c: a record's line, read and written by one function ---------- */

/* Functions take what stands there and return it, or what they read. */
typedef struct Codec {
    Lex *in; /* null: it is written */
    Text *out;
} Codec;

enum { MANYNUMBERS = 1 << 16 };

const char *code_word(Codec *codec, const char *s);
int64_t code_range(Codec *codec, const char *what, int64_t min, int64_t max,
                   int64_t v);
int64_t code_int(Codec *codec, int64_t v);
int code_index(Codec *codec, const char *what, int v); /* from -1 on */
double code_num(Codec *codec, double v);
int code_choice(Codec *codec, const char *const *names, int n, int v);
Dtype code_dtype(Codec *codec, Dtype dt);
uint64_t code_hash(Codec *codec, uint64_t v);
/* In the middle of a word, without a blank before it. */
int64_t code_digits(Codec *codec, const char *what, int64_t min, int64_t max,
                    int64_t v);
/* A mark, and " " before it where the text has one. */
int code_mark(Codec *codec, const char *s, int there);
void code_need(Codec *codec, const char *s);
/* A word that says that something follows, or of which line this is; one that
 * must stand there; "name=". */
int code_option(Codec *codec, const char *s, int there);
void code_expect(Codec *codec, const char *s);
int code_key(Codec *codec, const char *name, int there);
/* Such a word and a set of atoms, when it is not empty. */
uint32_t code_atoms(Codec *codec, const char *s, uint32_t set);
void code_end(Codec *codec); /* of a line; to the next */
void code_place(Codec *codec, const char **file, int *at); /* and the end */
/* "kernel" name length, and the text below. */
const char *code_text(Codec *codec, const char *what, const char **name,
                      const char *s);
/* The i-th record of a list v of n: the one to write, or a new one to read. */
#define code_at(t, v, n, i) \
    (((v) = code_room((t), (v), &(n), sizeof *(v))), &(v)[i])
void *code_room(Codec *codec, void *v, int *n, size_t size);
int code_number_next(Codec *codec, int i, int n); /* the i-th of a list's n */
void code_limit(Codec *codec, int i, int most, const char *what);

#endif
