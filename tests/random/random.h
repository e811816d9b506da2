/* random.h: random models of the language, and what is asked of each. */
#ifndef PLEAT_RANDOM_H
#define PLEAT_RANDOM_H

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"
#include "ref.h"

/* ---- examine.c: one model ------------------------------------------------ */

/* What is compared. The first two say whether the model is a test at all. */
typedef enum Check {
#define CHECK(name, keys, sentence) CK##name,
#include "checks.def"
#undef CHECK
    NCHECK
} Check;

typedef enum Verdict {
    NOTRUN,
    FINE,
    UNFIT,   /* no test: refused by the front end, not finite, delicate */
    REFUSED, /* an error of the compiler, exit status 1 */
    ABORTED, /* by a signal, or with another status */
    SLOW,    /* beyond its CPU time */
    WRONG,   /* other numbers */
    NVERDICT
} Verdict;
extern const char *const verdicts[NVERDICT];
extern const char *const checknames[NCHECK];

typedef struct Outcome {
    Verdict v;
    double apart;   /* largest difference over its bound */
    char what[200]; /* the tensor, or what the compiler said */
} Outcome;

/* Of one model; lies in memory that processes share. */
typedef struct Report {
    Check now; /* being looked at */
    Outcome o[NCHECK];
    char op[NOP]; /* ops that the model has */
} Report;

/* Is it a failure of the compiler? */
int outcome_bad(const Outcome *o);
Check report_bad(const Report *r); /* the first check that is; NCHECK: none */

/* Looks at a model in a process of its own; which: bits of Check, those that
 * follow from others included. */
void examine(const char *file, unsigned which, Report *r);
enum { ALLCHECKS = (1 << NCHECK) - 1 };

/* ---- shrink.c ------------------------------------------------------------ */

/* A smaller model in which check c fails as it does here; file: for what is
 * tried, and the result. */
char *shrink(Arena *a, const char *text, const char *file, Check c, Report *r);

/* ---- process.c ----------------------------------------------------------- */

/* Run job(ctx) in a forked process with a limit of CPU time; stderr's first
 * line goes to o->what. Sets o->v: FINE, REFUSED, ABORTED or SLOW. */
void apart(void (*job)(void *ctx), void *ctx, int seconds, Outcome *o);
void *shared_memory(size_t bytes); /* zeroed, seen by all forked processes */

#endif
