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
    const char *why; /* never freed */
    size_t at;       /* bytes before the damage; n: the text ends early */
    int64_t line,
        column; /* counted from 1, column in bytes; line 0: no place */
} JsonError;

/* Checks a text that is one value. Returns 0, or -1 and *e. */
int jv_open(const char *s, size_t n, JsonValue *v, JsonError *e);
/* jv_open on a file's text, which lives in the arena. Returns 0 and no value if
 * there is no such file. */
int jv_load(Arena *a, const char *path, JsonValue *v, JsonError *e);

JsonKind jv_kind(JsonValue v);
/* Returns the next member of an object or element of an array (key: no value)
 * and advances *at, which starts at 0. Returns 0 after the last. */
int jv_next(JsonValue in, size_t *at, JsonValue *key, JsonValue *v);
int64_t jv_count(JsonValue in); /* members or elements; others have 0 */
/* Finds the values of an object's keys in one pass; JSONnone for absent keys,
 * or if it is not an object. */
void jv_fields(JsonValue in, const char *const *key, int nkey, JsonValue *v);
JsonValue jv_get(JsonValue in, const char *key);

int jv_is(JsonValue v, const char *text); /* is it this string? */
/* Returns a number, 1 for true, 0 for false; NaN for other kinds. */
double jv_real(JsonValue v);
/* Returns 1 and *x if v is an integer that an int64_t holds, otherwise 0. */
int jv_int(JsonValue v, int64_t *x);
/* Decodes a string to `to`, which has room for v.n bytes, and sets *n to its
 * bytes. Returns null, or the reason why not: not a string, or not UTF-8. */
const char *jv_decode(JsonValue v, char *to, size_t *n);
/* Same as jv_decode, into the arena, with a zero byte at the end. Returns null
 * if v is not a string, or if n is null and the string holds a zero byte. */
char *jv_text(Arena *a, JsonValue v, size_t *n);
/* Are two values equal? Numbers are compared as reals, objects in any order of
 * their keys. Recursion is as deep as the shallower value; the arena is
 * scratch. */
int jv_same(Arena *a, JsonValue x, JsonValue y);

/* Members of an object, a vec; duplicate keys stay. jv_set replaces the value
 * of a key or adds it; JSONnone leaves the member out. jv_object returns the
 * text, in which unchanged values keep theirs; indent: spaces before its
 * closing brace. */
typedef struct JsonMember {
    JsonValue key, value;
} JsonMember;
JsonMember *jv_members(Arena *a, JsonValue object);
JsonValue jv_member(const JsonMember *members, const char *key);
void jv_set(Arena *a, JsonMember **members, const char *key, JsonValue value);
JsonValue jv_object(Arena *a, const JsonMember *members, int indent);
JsonValue jv_string(Arena *a, const char *text); /* a string, quoted */

#endif
