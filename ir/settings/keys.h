/* keys.h: the words of keys as enums, from keys.def. A file that decides by one
 * includes it, so that a new key compiles no others. */
#ifndef PLEAT_KEYS_H
#define PLEAT_KEYS_H

#include "settings.h"

/* enum route_policy { ROUTEdropless, .. }; opts_route_policy reads it. -1: the
 * key is not set and has no default, or its value is a path. */
#define KEY(table, name, kind, dflt, doc)
#define W(prefix, word) prefix##word,
#define WORDS(table, name, kind, dflt, doc, id, words) \
    enum id { words };                                 \
    enum id opts_##id(const Opts *o);
#include "keys.def"

/* "0:1,0.5:0.2,1:0": its value at t, between points on a line; NaN: it is no
 * such list of points from 0 to 1, of values that are at least 0. */
double opts_curve(const char *s, double t);
Dtype opts_dtype(const Opts *opts); /* of real values, by precision.policy */

#endif
