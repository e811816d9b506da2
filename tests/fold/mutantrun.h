/* mutantrun.h: legal plans that tests damage, and what a damaged one does. */
#ifndef MUTANTRUN_H
#define MUTANTRUN_H

#include "foldrun.h"
#include "mutants.h"

typedef struct Base {
    const char *model, *keys;
    int spread; /* over streams: spread.h */
    int gpu;    /* for target=cuda: it cannot be run */
    Plan *plan; /* with the kernels of all */
    char *text; /* with its own, without sources */
    size_t len;
    uint64_t digest; /* of what it computes; 0: not run yet */
} Base;

/* What happens to a plan that is read, and run if it is accepted. */
typedef enum Verdict {
    REFUSED, /* base_message says why */
    SAME,    /* it computes the bits of the original */
    OTHER,   /* it computes something else */
    STOPPED, /* the runtime refuses it: base_message */
    CRASHED, /* or does not come to an end */
    NVERDICT
} Verdict;

extern const char *const mutant_verdicts[NVERDICT];
extern char base_message[1024];

/* The first few are for every day. */
enum { NFEW = 5, NBASE = 29 };
extern Base bases[NBASE];

/* Compile them and let all have the kernels of all. */
void bases_make(Base *b, int n);
/* Null: refused. */
Plan *base_parse(Arena *a, const char *text, size_t len);
Verdict base_verdict(Base *b, const char *text, size_t len);

#endif
