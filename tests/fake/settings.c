/* settings.c: what $FAKE_GPU sets, chance, and the line that a wrong use
 * gets. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

const char *setting(const char *key, const char *none)
{
    static _Thread_local char value[8][128];
    static _Thread_local int slot;
    const char *s = getenv("FAKE_GPU");
    size_t n = strlen(key);
    char *out = value[slot++ % 8];

    for (; s && *s; s += *s != 0) {
        if (!strncmp(s, key, n) && s[n] == '=') {
            snprintf(out, 128, "%.*s", (int)strcspn(s + n + 1, " "), s + n + 1);
            return out;
        }
        s += strcspn(s, " ");
    }
    return none;
}

int64_t setting_number(const char *key, int64_t none)
{
    const char *v = setting(key, NULL);

    return v ? atoll(v) : none;
}

int idle(void)
{
    static int known = -1;

    if (known < 0)
        known = (int)setting_number("idle", 0);
    return known;
}

/* splitmix64, one row of numbers a process. */
unsigned one_of(unsigned n)
{
    static uint64_t state;

    if (!state)
        state = (uint64_t)setting_number("seed", 1) * 0x9e3779b97f4a7c15u | 1;
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) % n);
}

int wrong(int status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "fake GPU: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return status;
}
