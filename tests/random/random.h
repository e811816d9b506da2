/* random.h: random models of the language, and what is asked of each. */
#ifndef PLEAT_RANDOM_H
#define PLEAT_RANDOM_H

#include "ref.h"
#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

/* ---- examine.c: one model ------------------------------------------------ */

/* What is compared: checks.def. The first two say whether the model is a test
 * at all. */
typedef enum Check {
#define CHECK(name, how, micro, keys, sentence) CK##name,
#include "checks.def"
#undef CHECK
    NCHECK
} Check;

typedef enum How { PLANS, NUMBERS, BITS, STAGES, NAMES } How;
typedef struct CheckInfo {
    const char *name;
    How how;
    int64_t micro;
    const char *keys, *sentence;
} CheckInfo;
extern const CheckInfo checktab[NCHECK];

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

typedef struct Outcome {
    Verdict v;
    double apart;   /* largest difference over its bound */
    char what[200]; /* the tensor, or what the compiler said */
} Outcome;

/* Of one model; lies in memory that processes share. */
typedef struct Report {
    Check now; /* being looked at */
    Outcome o[NCHECK];
    char op[NALLOPS]; /* ops that the model has */
} Report;

/* Is it a failure of the compiler? */
int outcome_bad(const Outcome *o);
Check report_bad(const Report *r); /* the first check that is; NCHECK: none */

/* Looks at a model in processes of its own; which: bits of Check. Numbers need
 * CKreference, bits CKhost. */
void examine(const char *file, unsigned which, Report *r);
enum {
    ALLCHECKS = (int)((1u << NCHECK) - 1),
    FEWBITS = (2 << CKnvfp4) - (1 << CKtensor), /* of seeds, to save time */
};

/* Those of a check, or one of the host: the same keys but fold.*, train.* and
 * target. */
typedef enum Ranks { RANKSall, RANKSone } Ranks;

/* ---- once.c -------------------------------------------------------------- */

/* A comparison in an attention's body of a value that the model computes
 * outside the body too; null: none. */
const Node *compared_twice(Graph *g);

/* ---- plans.c: plans of a model ------------------------------------------- */

extern const char *more_keys; /* of every plan, behind those of its check */

/* For each check its plan as text goes to out, in a process that may die. */
typedef struct Making {
    const char *file;
    Check c;
    Ranks ranks;
    FILE *out;
} Making;
void make_plan(void *making);
Trace traced(const char *file, Check c, Ranks r); /* err(): it is no model */

/* ---- roundabout.c -------------------------------------------------------- */

/* The same function in a longer way; seed says which. */
void roundabout(Graph *g, uint64_t seed);

/* ---- shrink.c ------------------------------------------------------------ */

/* A smaller model in which check c fails as it does here; file: for what is
 * tried, and the result. */
char *shrink(Arena *a, const char *text, const char *file, Check c, Report *r);

/* ---- process.c ----------------------------------------------------------- */

/* Run job(ctx) in a forked process with a limit of CPU time; stderr's first
 * line goes to o->what. Sets o->v: FINE, REFUSED, ABORTED or SLOW. */
void apart(void (*job)(void *ctx), void *ctx, int seconds, Outcome *o);
/* But for numbers, names of values, and what stands in parentheses. */
int same_message(const char *a, const char *b);
void *shared_memory(size_t bytes); /* zeroed, seen by all forked processes */

#endif
