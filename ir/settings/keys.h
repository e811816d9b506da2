/* keys.h: the words of keys as enums, from keys.def. Only files that use one
 * include it, so that a new key rebuilds few files. */
#ifndef PLEAT_KEYS_H
#define PLEAT_KEYS_H

#include "settings.h"

/* enum route_policy { ROUTEdropless, .. }; opts_route_policy reads it. -1: the
 * key is not set and has no default, or its value is a path. */
#include "key_words.h" /* expanded from key_words.in by the build */

#endif
