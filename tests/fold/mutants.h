/* mutants.h: ways to damage a plan (mutants.c), applied by mutants_test.c. */
#ifndef MUTANTS_H
#define MUTANTS_H

#include "../../ir/plan.h"

typedef struct Mutant {
    Arena *arena;
    Plan *p;
    uint64_t seed; /* advances */
} Mutant;

/* Damages m->p in one place; 0: it has no such place, or nothing changed. */
typedef struct MutantKind {
    const char *name;
    int (*damage)(Mutant *m);
} MutantKind;
extern const MutantKind mutantkinds[]; /* ends with a null name */

#endif
