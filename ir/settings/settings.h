/* settings.h: keys and their values, machines, the grids of a fold */
#ifndef PLEAT_SETTINGS_H
#define PLEAT_SETTINGS_H

#include "../base/base.h"

/* ---- opts.c: keys of fold{}, train{}, data{}, precision{}, route{} ------- */

/* A row of keys.def; keytab ends with a row of nulls. */
typedef struct KeyInfo {
    const char *table, *name, *kind, *dflt, *doc;
} KeyInfo;
extern const KeyInfo keytab[];
const char *key_name(const KeyInfo *info); /* "train.lr" */
/* Which of the key's words s is, counted as in its enum (keys.h); -1: none. */
int key_word(const char *key, const char *s);
const char *key_word_text(const char *key, int i);

typedef struct Opts Opts; /* key -> text; defaults come from keys.def */
Opts *opts_new(Arena *a);
/* Set by full name ("fold.ep"). Unknown key or value of the wrong kind: err()
 * with a suggestion. `axes.<name>` is accepted for any name. */
void opts_set(Opts *opts, const char *key, const char *value, const Loc *loc);
const char *opts_str(const Opts *opts, const char *key); /* null: not given */
int64_t opts_int(const Opts *opts, const char *key);
int64_t opts_int_given(const Opts *opts, const char *key); /* 0: default */
double opts_num(const Opts *opts, const char *key);
int64_t opts_bytes(const Opts *opts, const char *key);
/* The key's words in its value, a bit each; 0: none, as of a number. */
unsigned opts_words(const Opts *opts, const char *key);
int opts_given(const Opts *opts, const char *key);      /* set, not default */
int opts_asks(const Opts *opts, const char *key);       /* for another value */
const Loc *opts_loc(const Opts *opts, const char *key); /* where it was set */
/* The i-th of "wiki=a.bin code=b.bin"; 0: there is none. */
int opts_named(const char *s, int i, const char **name, const char **path);
int opts_blend(const char *s); /* is it "0.7 a 0.3 b", or one path? */
void opts_pair(const Opts *opts, const char *key, double v[2]); /* "0.9,0.95" */
/* "gnorm 10": 1 and the number for such a word; 0 and infinity. */
int opts_limit(const Opts *opts, const char *key, const char *what, double *v);
/* The i-th of a key's patterns ("*.bias norm.*"); null: past the end. */
const char *opts_pattern(const Opts *opts, const char *key, int i);
int pattern_match(const char *p, const char *s); /* * is any text */
/* "*.w1" of "train.lr.*.w1", "seq" of "axes.seq"; null: the key has none. */
const char *key_own(const char *key);
int key_of_model(const char *key); /* axes.NAME, option.NAME */
/* The scope of a key from.SCOPE that a path is in, *rest: the path there; null:
 * in none. */
const char *opts_source(const Opts *opts, const char *path, const char **rest);
/* The number of the last key prefix<pattern> that matches a path; 1: none. */
double opts_factor(const Opts *opts, const char *prefix, const char *path);
int opts_match(const Opts *opts, const char *key,
               const char *s); /* one of them */
/* The key's value with f of each path in it; other values as they are. */
typedef const char *PathFn(Arena *a, const char *path, void *ctx);
const char *opts_paths(Arena *a, const char *key, const char *value, PathFn *fn,
                       void *ctx);
/* In keys.def's order, then axes: the i-th key that was set; 0: none. */
int opts_each(const Opts *opts, int i, const char **key, const char **value);
void opts_copy(Opts *to, const Opts *from); /* all that were set */
/* "0:1,0.5:0.2,1:0": its value at t, between points on a line; NaN: it is no
 * such list of points from 0 to 1, of values that are at least 0. */
double opts_curve(const char *s, double t);
Dtype opts_dtype(const Opts *opts); /* of real values, by precision.policy */
/* The key that is meant by a name of other programs ("--learning-rate"), or by
 * one without its table; null: none. */
const char *key_meant(const char *typed);

/* ---- kinds.c: what the kinds of keys.def allow --------------------------- */

int is_kind(const char *kind, const char *word); /* "num 0" is "num" */
/* Which of the words after the first s is; -1: none. */
int kind_word(const char *kind, const char *s);
unsigned kind_words(const char *kind, const char *s); /* "A,B": a bit each */
/* The value as it is kept; err() names the key and what is allowed. */
const char *kind_check(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc);
const char *kind_paths(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc, PathFn *fn, void *ctx);
/* When all keys are set: what keys ask of others; files a compiler reads. */
void opts_check(const Opts *opts);
void opts_files(const Opts *opts);

#include "machine.h"
#include "mesh.h"

#endif
