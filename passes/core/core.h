/* core.h: shared by all passes: the compile, rewriting of graphs, counts of
 * micro-batches. */
#ifndef PLEAT_CORE_H
#define PLEAT_CORE_H

#include "../../ir/graph/graph.h"

/* ---- context.c: one compile; its graphs point at it ---------------------- */

typedef struct CompileOptions {
    const char *dump; /* "-d": comma list of passes, all, why, +all,
                                     +loc; null: none */
    const char *stop; /* "-x": print this stage's graph and stop */
    const char *skip; /* a pass that is left out, for tests */
    ProgramKind prog; /* program that -d and -x show */
    FILE *out;        /* output of dumps */
    Text *dot;        /* not null: receives graphs in Graphviz's language */
    Source *source;
    int nsource;      /* number of Lua sources for the plan */
    unsigned without; /* bit set of omitted programs */
    Table *lowered;   /* kernels of earlier compiles for this target and these
                         keys (lower.c); null: none */
    int again;        /* another plan of the run has printed the warnings */
    int prices;       /* the plan is not executed: instructions have only the
                            data for times and bytes, and no proof */
    Graph **stage;    /* vec: programs written by -x, which continue from
                                     there; null: all start from the model */
} CompileOptions;

typedef struct Compile {
    CompileOptions options;
    const Target *target;
    MachineSpeeds machine; /* speeds for predicted times */
    const char *pass;      /* current pass */
    int checks_all;        /* check_graph after every pass, not only after the
                                     last one of each level */
    int ndot;              /* number of graphs drawn */
    Table *said;           /* plain_products.c: axes with a warning */
    Table *lowered;        /* lower.c: shape -> kernel */
    Table *fitted;         /* fit.c: stage -> bytes kept at prices */
    Table *packed;         /* pack_known.c: hash of the rectangles -> packing */
} Compile;

void compile_begin(Graph *g, const Target *target,
                   const CompileOptions *options);
const Target *pass_target(const Graph *g); /* the compile's target */
/* Returns the speeds of the compile's machine: cluster{}, or the target's. */
const MachineSpeeds *machine_of(const Graph *g);
/* Returns the limit of a rank's arena in bytes: `memory`, or that of the
 * target's machine; 0: unknown. */
int64_t memory_limit(const Opts *opts, const Target *target);
int states_price(const Opts *opts); /* is train.recompute a number? */
/* offload_classes returns a bit for each offloaded class, by train.offload or
 * chosen by fit. goes_to_host: is n a state of the optimizer in such a
 * class? */
unsigned offload_classes(const Graph *g);
int goes_to_host(Graph *g, const Node *n);
/* near_atoms returns the atoms over which ranks of one host differ (fold.host);
 * sharing_atoms those of them whose ranks share memory; link_secs the seconds
 * of a collective over `atoms` in which a rank sends `bytes` to the others. */
uint32_t near_atoms(const Graph *g);
uint32_t sharing_atoms(const Graph *g);
double link_secs(const Graph *g, uint32_t atoms, double bytes, int alltoall);
FILE *compile_out(const Compile *compile);
/* Prints a decision, a line shown by -d why. n: its node, or null. */
void why(const Graph *g, const Node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Prints the graph after the current pass, if -d asks for it. */
void show_graph(Graph *g);
/* Other output of -d. is_shown: is the current pass of this program shown?
 * is_asked: is this word in -d? show_text prints a text below the line "> after
 * ..". */
int is_shown(const Graph *g);
int is_asked(const Compile *compile, const char *word);
void show_text(const Graph *g, const char *text);

/* ---- rewrite.c ----------------------------------------------------------- */

/* Rebuilds g in order: f gets each node with its operands already replaced and
 * returns its replacement (the node itself, an existing one, or a new one). New
 * nodes are placed where f builds them. */
void rewrite(Graph *g, Node *(*f)(Graph *g, Node *n, void *ctx), void *ctx);
int *use_counts(const Graph *g, Arena *a); /* result: by node id */
Table *use_table(const Graph *g);          /* the same as uintptr_t, by node */
/* Result `index` of a node that has several, with the dims of `like`. */
Node *new_part(Graph *g, Node *of, int index, Dtype dt, const Node *like);
/* Copies a composite's body into g with its arguments bound to `in`. Returns
 * its last node. */
Node *inline_body(Graph *g, const Graph *body, Node *const *in,
                  const Scope *scope, const Loc *loc);
/* Sorts nodes: operands before users, otherwise in the present order. */
void g_sort(Graph *g);
/* Appends n to the vec, after its operands, unless it is marked. */
void g_visit(Node *n, Node ***out, Arena *a);
/* Returns the node of a number of the step block, with its dtype in all
 * programs. */
Node *g_step_value(Graph *g, const Loc *loc, StepValue v);
/* Returns part 1 of an attn whose part 0 is `out`, fp32. */
Node *logsumexp_part(Graph *g, Node *attn, const Node *out);

/* ---- micro.c ------------------------------------------------------------- */

Node *g_total(Graph *g, Node *n); /* sum over all its axes */
/* Returns n with the axis micro: a value equal for all micro-batches (a loss of
 * parameters only) counts once in each, on any rank. */
Node *g_per_micro(Graph *g, Node *n);
Node *g_accum(Graph *g, Node *n, Reduce op); /* fp32, in n's region */
double micro_batches(const Graph *g);        /* micro-batches of a step */
int64_t micro_turns(const Graph *g); /* micro-batches of a rank, err() if dp's
                                         ranks cannot share evenly */
int64_t
program_turns(const Graph *g); /* micro-batches of a run of g's program */
/* Returns null if a rank's micro-batches may run in pairs, otherwise the
 * reason. */
const char *why_unpaired(const Graph *g);
int takes_pairs(const Graph *g); /* are pairs requested or chosen? */
/* Is the choice open, and may pairs pay: collectives overlap computation, and
 * memory has no stated price? */
int may_pair(const Graph *g);

/* ---- scaled.c ------------------------------------------------------------ */

/* Dequantizations of both operands of a product. */
typedef struct ScaledOperands {
    const Node *rows, *w;
} ScaledOperands;

/* Does a kernel of the target multiply n's quantized operands, so that their
 * dequantized values are not read? */
int multiplies_numbers(const Graph *g, const Node *n, ScaledOperands *of);

/* Returns the bytes worth a second of a micro-batch in a unit (null: outside
 * all units), by Graph.price; HUGE_VAL: memory costs nothing. */
double bytes_a_second(const Graph *g, const Scope *unit);

#endif
