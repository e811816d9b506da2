/* passes.h: public interface of the passes: graph -> graph -> plan. Each pass
 * has a file and a row of passes.def. */
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
    void (*run)(Graph *g); /* null: run.c calls it, on the plan */
    unsigned programs;     /* programs that it runs in, bits of ProgramKind */
    unsigned needs, makes, breaks; /* facts.def, as bits */
    Level level;                   /* level of the graph after it */
    const char *sentence;
} PassInfo;
extern const PassInfo passtab[]; /* passtab.c */
extern const int npass;

/* Returns a sentence about the first row of tab without a needed fact in
 * program k, if pass `skip` is omitted (null: none is); null: all facts
 * hold. */
const char *pass_order_wrong(Arena *a, const PassInfo *tab, int n,
                             ProgramKind k, const char *skip);
/* ---- initial.c ----------------------------------------------------------- */

/* Returns the program that initializes all of g's parameters. */
Graph *initial_graph(Graph *g);
/* Returns the program that derives quantized weights from masters; it has no
 * nodes if there are none. */
Graph *weights_graph(Graph *g);

/* ---- run.c --------------------------------------------------------------- */

/* Compiles every program of a logical graph to one plan. With options->stop it
 * returns null and writes the logical graph, all programs after that pass and
 * the sources to options->out; read back as `stage`, they give the same
 * plan. */
Plan *compile(Graph *logical, const Target *target,
              const CompileOptions *options);

/* Runs one pass on g and checks the result; for tests and tools. Calls err()
 * for an unknown name. */
void run_pass(Graph *g, const Target *target, const char *name);
/* Runs the rows that make g legal for target's kernels, unchecked (a test's
 * graph has no mesh), and fuse. Returns the kernels. */
Group **run_fuse(Graph *g, const Target *target, Arena *a);

#endif
