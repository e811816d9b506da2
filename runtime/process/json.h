/* json.h: a pull reader for JSON that other programs wrote.
 *
 * A text is checked once, without recursion. A JsonValue is then a range of
 * that text, which must outlive it: nothing is copied or decoded until it is
 * asked for, and no function below that takes a JsonValue can fail on its
 * syntax. All functions may be called by several threads.
 *
 * Beside RFC 8259 these are read: a byte order mark, NaN, Infinity, -Infinity,
 * numbers of any length, any depth, NUL in strings and keys, equal keys (the
 * last one counts) and surrogates without their other half (U+FFFD). */
#ifndef PLEAT_JSON_H
#define PLEAT_JSON_H

#include "../../ir/plan/plan.h"

typedef enum JsonKind {
    JSONnone, /* there is no value */
    JSONnull,
    JSONfalse,
    JSONtrue,
    JSONnumber,
    JSONstring,
    JSONarray,
    JSONobject
} JsonKind;

typedef struct JsonValue {
    const char *s; /* null: there is no value */
    size_t n;
} JsonValue;

typedef struct JsonError {
    const char *why;      /* never freed */
    size_t at;            /* bytes before the damage; n: the text ends early */
    int64_t line, column; /* from 1, column in bytes; line 0: no place */
} JsonError;

/* Check a text that is one value: 0, or -1 and *e. */
int jv_open(const char *s, size_t n, JsonValue *v, JsonError *e);
/* jv_open on a file's text, which lives in the arena. No file: 0 and no value.
 */
int jv_load(Arena *a, const char *path, JsonValue *v, JsonError *e);

JsonKind jv_kind(JsonValue v);
/* The next member of an object, or element of an array (key: no value), from
 * *at = 0 on. 0: there is none. */
int jv_next(JsonValue in, size_t *at, JsonValue *key, JsonValue *v);
int64_t jv_count(JsonValue in); /* members or elements; others have 0 */
/* The values of an object's keys, in one pass; no value where it lacks one, or
 * where it is no object. */
void jv_fields(JsonValue in, const char *const *key, int nkey, JsonValue *v);
JsonValue jv_get(JsonValue in, const char *key);

int jv_is(JsonValue v, const char *text); /* is it this string? */
/* A number, 1 for true, 0 for false; NaN for other kinds. */
double jv_real(JsonValue v);
/* 1 and *x where it is a whole number that an int64_t holds; else 0. */
int jv_int(JsonValue v, int64_t *x);
/* A string's bytes to `to`, which has room for v.n of them; their count to *n.
 * Null, or why not: it is no string or no UTF-8. */
const char *jv_decode(JsonValue v, char *to, size_t *n);
/* The same in an arena, with a zero byte after it. Null: it is none, or n is
 * null and the string holds a zero byte. */
char *jv_text(Arena *a, JsonValue v, size_t *n);
/* Equal as values: numbers as reals, objects in any order of their keys. The
 * recursion is no deeper than the shallower of both; the arena is for scratch.
 */
int jv_same(Arena *a, JsonValue x, JsonValue y);

/* An object as its members, a vec; duplicate keys stay. jv_set replaces the
 * value of a key or adds it; no value: the member is left out. jv_object is the
 * text, of which values that nobody set are as they were; indent: spaces before
 * its closing brace. */
typedef struct JsonMember {
    JsonValue key, value;
} JsonMember;
JsonMember *jv_members(Arena *a, JsonValue object);
JsonValue jv_member(const JsonMember *members, const char *key);
void jv_set(Arena *a, JsonMember **members, const char *key, JsonValue value);
JsonValue jv_object(Arena *a, const JsonMember *members, int indent);
JsonValue jv_string(Arena *a, const char *text); /* a string, quoted */

#endif
