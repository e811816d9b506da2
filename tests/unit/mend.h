/* mend.h: sign the text of a plan again that a test has changed. */
#ifndef MEND_H
#define MEND_H

#include <stddef.h>

enum { PLANHASHLINE = 5 + 32 + 1 }; /* bytes of the last line of a plan */

/* The last line of n bytes at s gets the hash of what is before it; with
 * `executed` the last line of that name does so first, where there is one. */
void mend_plan(char *s, size_t n, int executed);

#endif
