/* mend.c: see mend.h. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <string.h>

#include "mend.h"

/* The digits at `to`: of all before `end`. */
static void sign(const char *s, const char *end, char *to)
{
    char hash[HASHDIGITS + 1];
    XXH128_hash_t h = XXH3_128bits(s, (size_t)(end - s));

    snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    memcpy(to, hash, HASHDIGITS);
}

enum { WORD = 10 }; /* bytes of "\nexecuted " */

char *executed_hash(char *s, size_t n)
{
    char *end = s + n, *hash = NULL;

    for (char *at = s;
         (at = memmem(at, (size_t)(end - at), "\nexecuted ", WORD)); at++)
        hash = at + WORD;
    return hash && hash + HASHDIGITS < end - PLANHASHLINE ? hash : NULL;
}

void mend_plan(char *s, size_t n, int executed)
{
    char *end = s + n, *hash = n < PLANHASHLINE ? NULL : executed_hash(s, n);

    if (n < PLANHASHLINE)
        return;
    if (executed && hash)
        sign(s, hash - WORD + 1, hash);
    memcpy(end - PLANHASHLINE, "xxh3 ", 5);
    sign(s, end - PLANHASHLINE, end - PLANHASHLINE + 5);
    end[-1] = '\n';
}
