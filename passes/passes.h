/* passes.h: graph -> graph -> plan, for those outside. One file and one row of
 * passes.def each. */
#ifndef PLEAT_PASSES_H
#define PLEAT_PASSES_H

#include "emit/emit.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "training/training.h"

/* ---- passes.def, passtab.c, run.c ---------------------------------------- */

#define PASS(name, ...) void pass_##name(Graph *g);
#define PLAN(name, ...)
#include "passes.def"

typedef struct PassInfo {
    const char *name;
    void (*run)(Graph *g); /* null: works on the plan, run.c calls it */
    unsigned programs;     /* those it runs in, as bits of ProgramKind */
    unsigned needs, makes, breaks; /* facts.def, as bits */
    Level level;                   /* what check_graph holds after it */
    const char *sentence;
} PassInfo;
extern const PassInfo passtab[]; /* passtab.c */
extern const int npass;

/* The first row of tab that finds something missing in program k, if `skip` is
 * left out (null: nothing is), as a sentence in a; null: none does. */
const char *pass_order_wrong(Arena *a, const PassInfo *tab, int n,
                             ProgramKind k, const char *skip);
/* ---- initial.c ----------------------------------------------------------- */

/* What gives all of g's parameters their first values. */
Graph *initial_graph(Graph *g);
/* What makes numbers of weights of their masters; without nodes: there are none
 * such. */
Graph *weights_graph(Graph *g);

/* ---- run.c --------------------------------------------------------------- */

/* Every program of a logical graph as one plan. With options->stop: null, and
 * the logical graph, all programs after that pass and the sources are written
 * to options->out; read back as `stage`, they make the same plan. */
Plan *compile(Graph *logical, const Target *target,
              const CompileOptions *options);

/* One pass on g, checked; for tests and tools. err() when there is none of
 * that name. */
void run_pass(Graph *g, const Target *target, const char *name);
/* Rows that make g legal for target's kernels, unchecked (a graph of a test
 * has no mesh), and its kernels: as fuse. */
Group **run_fuse(Graph *g, const Target *target, Arena *a);

#endif
