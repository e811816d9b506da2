/* keys.h: the words of keys as enums, from keys.def. A file that decides by one
 * includes it, so that a new key compiles no others. */
#ifndef PLEAT_KEYS_H
#define PLEAT_KEYS_H

#include "settings.h"

/* enum route_policy { ROUTEdropless, .. }; opts_route_policy reads it. -1: the
 * key is not set and has no default, or its value is a path. */
#include "key_words.h" /* expanded from key_words.in by the build */

#endif
