/* spans.h: where expressions stand in a Lua text, for who changes it. */
#ifndef PLEAT_RANDOM_SPANS_H
#define PLEAT_RANDOM_SPANS_H

#include "../../ir/plan/plan.h"

enum { SPANPARTS = 12 };

/* An expression: text[from..to), and the expressions it is made of. */
typedef struct Phrase {
    int from, to;
    int npart, part[SPANPARTS]; /* indices */
} Phrase;

/* A vec: outer ones behind their parts. What cannot be read has none. */
Phrase *spans_of(Arena *a, const char *text);
/* The text with [from..to) replaced. */
char *replaced(Arena *a, const char *text, int from, int to, const char *by);

#endif
