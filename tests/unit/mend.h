/* mend.h: sign the text of a plan again that a test has changed. */
#ifndef MEND_H
#define MEND_H

#include <stddef.h>

enum {
    HASHDIGITS = 32,
    PLANHASHLINE = 5 + HASHDIGITS + 1
}; /* of the last line */

/* The last line of n bytes at s gets the hash of what is before it; with
 * `executed` the last line of that name does so first, where there is one. */
void mend_plan(char *s, size_t n, int executed);
/* The digits of the last line "executed"; null: there is none. */
char *executed_hash(char *s, size_t n);

#endif
