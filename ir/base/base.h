/* base.h: arenas, strings, errors, files, dtypes */
#ifndef PLEAT_BASE_H
#define PLEAT_BASE_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arena.c: memory with one lifetime ----------------------------------- */

typedef struct Arena Arena;

extern Arena *forever; /* interned strings, tables, the plan */

Arena *arena_new(void);
void arena_reset(Arena *a); /* frees all but the first block */
void arena_free(Arena *a);
size_t arena_used(const Arena *a);
/* Poisons bytes of an arena that are never read again, for a sanitizer. */
void arena_forget(void *p, size_t bytes);
void *alloc(Arena *a, size_t bytes); /* zeroed, 16-byte aligned */

/* Growable arrays: a plain pointer with its length in a hidden header.
 * vec_push(arena, v, x) may move v. A null pointer is an empty vector. */
typedef struct VecHead {
    size_t len, cap;
} VecHead;
void *vec_grow(Arena *a, void *v, size_t elem); /* capacity for one more */
#define vec_len(v) ((v) ? ((VecHead *)(void *)(v))[-1].len : 0)
#define vec_full(v) \
    (!(v) ||        \
     ((VecHead *)(void *)(v))[-1].len == ((VecHead *)(void *)(v))[-1].cap)
#define vec_push(a, v, x)                                       \
    ((v) = vec_full(v) ? vec_grow((a), (v), sizeof *(v)) : (v), \
     (v)[((VecHead *)(void *)(v))[-1].len++] = (x))
/* vec_cut keeps the first n elements; vec_sort sorts by a function for
 * qsort. */
#define vec_cut(v, n) ((v) ? ((VecHead *)(void *)(v))[-1].len = (n) : 0)
#define vec_sort(v, f) \
    ((v) ? qsort((v), vec_len(v), sizeof *(v), (f)) : (void)0)

#define countof(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- str.c: interned strings are equal when their pointers are ----------- */

const char *intern(const char *s);
const char *internn(const char *s, size_t n);
/* Returns the word before the next of these characters and moves *s after it;
 * null: no more words. */
const char *next_word(const char **s, const char *between);
char *strf(Arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
char *vstrf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* Is w in a list whose words are separated by mark? list may be null. */
int has_word(const char *list, char mark, const char *w);
/* Returns the nearest of n names by edit distance, or null if none is close. */
const char *nearest(const char *s, const char *const *names, size_t n);
/* Returns " (did you mean 'x'?)", or "" if no name is close. */
const char *did_you_mean(const char *s, const char *const *all, size_t n);

/* Returns bytes in GiB with three digits, or as many as distinguish it from
 * `other`. */
char *gib_text(Arena *a, int64_t bytes, int64_t other);

/* A growing text, always NUL-terminated. */
typedef struct Text {
    Arena *arena;
    char *s;
    size_t len, cap;
} Text;
void put(Text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void putn(Text *out, const char *s, size_t n);
/* Appends the shortest decimal, from 6 digits on, that reads back as v. */
void put_real(Text *out, double v);
int ends_with(const char *s, const char *end);
int word_index(const char *s, const char *const *word, int n); /* -1: none */
int64_t utf8_bad(const char *s, size_t n); /* first bad byte; -1: none */

/* ---- version.c: this program, and the formats it knows ------------------- */

typedef enum Format { FMTplan, FMTrun, FMTcheckpoint } Format;
typedef struct FormatInfo { /* a row of formats.def */
    Format format;
    const char *name;
    int number;
    const char *since, *what;
} FormatInfo;
extern const FormatInfo formattab[];
extern const int nformat;
extern const char program_version[]; /* "0.3" */
extern const char *program_commit;   /* set by main; "": not built from git */
int format_now(Format f);            /* number of the format that is written */
const char *format_name(Format f);
/* Returns null if the format can be read, otherwise "is of run format 3;
 * ...". */
const char *format_wrong(Arena *a, Format f, int64_t number);

/* ---- terminal.c ---------------------------------------------------------- */

/* Appends n bytes with control characters, except newlines and tabs, as \x1b.
 * *before: the preceding byte, 0 at the start; set to the last one. */
void put_visible(Text *out, const char *s, size_t n, unsigned char *before);
int visible_put(int fd, const char *s, size_t n); /* file_put of such text */
void stdout_visible(void); /* escapes control characters on stdout */

/* ---- err.c: two kinds of failure ----------------------------------------- */

typedef struct Loc Loc; /* a place in the user's source */
struct Loc {
    const char *file; /* interned; null: unknown */
    int line;         /* counted from 1 */
    const Loc *up;    /* the caller's place, or null */
};

/* Stores a source text so that messages can show its lines. */
void source_add(const char *file, const char *text, size_t len);
/* An error of the user: prints `file:line: error: ...`, the source line and the
 * notes since the last message; exit status 1. */
_Noreturn void err(const Loc *loc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void note(const Loc *loc, const char *fmt, ...) /* printed with the next err */
    __attribute__((format(printf, 2, 3)));
void warn(const Loc *loc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* An error of the command line: err with exit status 2. */
_Noreturn void err_usage(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));
/* The exit status of an internal error, and the line that follows it. */
enum { INTERNAL_ERROR = 70 };
#define REPORT_LINE \
    "report this file: the error is in Pleat, not in the model\n"
/* An internal error found by another program, such as a compiler that refuses a
 * kernel: err with exit status INTERNAL_ERROR. */
_Noreturn void err_internal(const Loc *loc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* An internal error: prints it and aborts; process_start makes that exit status
 * INTERNAL_ERROR. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
extern int err_status; /* exit status of err: 1; 3 once steps run */
extern void (*err_hook)(const char *msg); /* if set: called instead of exit */
/* Adds a note to later errors that name 'word'; text must outlive them. */
void err_hint(const char *word, const char *text);

/* ---- dtype.c ------------------------------------------------------------- */

typedef enum Dtype {
#define DT(name, ...) D##name,
#define SCALE(id, name, rows, cols, dt)
#include "types.def"
    NDTYPE
} Dtype;

typedef enum ScaleLayout {
#define DT(...)
#define SCALE(id, name, rows, cols, dt) SCALE##id,
#include "types.def"
    NSCALE
} ScaleLayout;
typedef struct ScaleInfo {
    int64_t rows, cols; /* size of a block; 0: the whole axis */
    Dtype dt;
} ScaleInfo;
extern const char *const scalenames[NSCALE];
extern const ScaleInfo scales[NSCALE];

typedef struct DtypeInfo {
    const char *name;
    int bytes;                   /* bytes in memory */
    char kind;                   /* f float, i integer, b bool, p packed */
    const char *store, *compute; /* C types in memory and in registers */
    const char *load, *save;     /* kernels' conversions between; "": casts */
    const char *round;           /* rounds a register value; "": none needed */
    const char *st;              /* safetensors name */
} DtypeInfo;

extern const DtypeInfo dtypes[NDTYPE];
int dtype_named(const char *name); /* -1: no such dtype */
float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);  /* rounds to nearest even, keeps NaN */
int16_t f32_remainder(float x); /* the rest beyond bf16 (narrow.pre) */
float f32_joined(uint16_t rounded, int16_t remainder);
/* Floats of at most one byte (narrow.pre), stored as codes. */
int is_narrow(Dtype dt);
float narrow_value(Dtype dt, uint8_t code);
uint8_t narrow_nearest(Dtype dt, float x);
float dtype_rounded(Dtype dt, float x); /* rounds to a float dtype */

#include "file.h"
#include "heap.h"
#include "lex.h"
#include "table.h"

#endif
