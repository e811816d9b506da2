/* mutants.h: ways to damage a plan (mutants.c), applied by mutants_test.c. */
#ifndef MUTANTS_H
#define MUTANTS_H

#include "../../ir/plan/plan.h"

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

int below(Mutant *m, int n); /* a random number in [0, n) */

/* fields.c: kinds 0 .. n-1 are the rows of mutantkinds, then each field and
 * each list of a plan, changed in each way. */
int mutant_kinds(void);
const char *mutant_kind(Arena *a, int k);
int mutant_damage(Mutant *m, int k);
/* "buf dies = 9", "frame bytes + 256": that field of some record; "buf cls @
 * tokens = 4": of that with the name; "gemm m = 9": that field of some
 * instruction of the kind. Several, with ";" between them, are one mutant. */
int mutant_set(Mutant *m, const char *what);
int mutant_sign(Mutant *m); /* the calls repeat what signatures say now; 1 */
void **args_of(Mutant *m, Instr *s, FieldType type); /* a vec of addresses */

#endif
