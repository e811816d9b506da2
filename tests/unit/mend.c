/* mend.c: see mend.h. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <string.h>

#include "mend.h"

enum { HASHDIGITS = 32 };

/* The digits at `to`: of all before `end`. */
static void sign(const char *s, const char *end, char *to)
{
    char hash[HASHDIGITS + 1];
    XXH128_hash_t h = XXH3_128bits(s, (size_t)(end - s));

    snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    memcpy(to, hash, HASHDIGITS);
}

void mend_plan(char *s, size_t n, int executed)
{
    static const char word[] = "\nexecuted ";
    size_t len = sizeof word - 1;
    char *end = s + n, *line = NULL;

    if (n < PLANHASHLINE)
        return;
    for (char *at = s; (at = memmem(at, (size_t)(end - at), word, len)); at++)
        line = at;
    if (executed && line && line + len + HASHDIGITS < end - PLANHASHLINE)
        sign(s, line + 1, line + len);
    memcpy(end - PLANHASHLINE, "xxh3 ", 5);
    sign(s, end - PLANHASHLINE, end - PLANHASHLINE + 5);
    end[-1] = '\n';
}
