/* core.h: what all passes are made of: one compile, rewriting of graphs, what a
 * step counts. */
#ifndef PLEAT_CORE_H
#define PLEAT_CORE_H

#include "../../ir/graph/graph.h"

/* ---- context.c: one compile; its graphs point at it ---------------------- */

typedef struct CompileOptions {
    const char *dump; /* "-d": comma list of passes, all, why, +all,
                                     +loc; null: none */
    const char *stop; /* "-x": print this stage's graph and stop */
    const char *skip; /* a pass that is left out, for tests */
    ProgramKind prog; /* the one that -d and -x show */
    FILE *out;        /* where dumps go */
    Text *dot;        /* not null: graphs go there, as Graphviz */
    Source *source;
    int nsource;      /* Lua sources for the plan */
    unsigned without; /* programs that are left out, as bits */
    Table *lowered;   /* kernels of earlier compiles for this target and these
                         keys (lower.c); null: none */
    int again;        /* as part of a run whose other plan was warned of */
    int prices;       /* nobody runs the plan: of instructions what times and
                            bytes follow from, no proof */
    Graph **stage;    /* vec: programs that -x wrote and that go on
                                     from there; null: all start anew */
} CompileOptions;

typedef struct Compile {
    CompileOptions options;
    const Target *target;
    MachineSpeeds machine; /* whose speeds times are predicted by */
    const char *pass;      /* under way */
    int checks_all;        /* check_graph after every pass, not only after the
                                     last one of each level */
    int ndot;              /* pictures drawn */
    Table *said;           /* plain_products.c: axes warned of */
    Table *lowered;        /* lower.c: kernels, by what they are made of */
    Table *fitted;         /* fit.c: by stage, what was kept at prices */
    Table *packed;         /* pack_known.c: by hash of the rectangles */
} Compile;

void compile_begin(Graph *g, const Target *target,
                   const CompileOptions *options);
const Target *pass_target(const Graph *g); /* the one compiled for */
/* Of the machine that it is compiled for: cluster{}, or the target's. */
const MachineSpeeds *machine_of(const Graph *g);
/* Bytes that a rank's arena may have: `memory`, or what target's machine has;
 * 0: not known. */
int64_t memory_limit(const Opts *opts, const Target *target);
int states_price(const Opts *opts); /* does train.recompute say a number? */
/* Classes of train.offload, a bit each: as it says, or fitting chose. Is n of
 * the optimizer, and of one of them? */
unsigned offload_classes(const Graph *g);
int goes_to_host(Graph *g, const Node *n);
/* The atoms over which ranks of one host differ (fold.host), of them those
 * whose ranks share memory; and the seconds of a collective over `atoms` in
 * which a rank sends so many bytes to the others. */
uint32_t near_atoms(const Graph *g);
uint32_t sharing_atoms(const Graph *g);
double link_secs(const Graph *g, uint32_t atoms, double bytes, int alltoall);
FILE *compile_out(const Compile *compile);
/* One line per decision, shown by -d why. n: what it is about, or null. */
void why(const Graph *g, const Node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* After the pass under way, where -d asks for it. */
void show_graph(Graph *g);
/* For what else is shown there: is the pass asked for, in this program; a word
 * of -d; a text below the line "> after ..". */
int is_shown(const Graph *g);
int is_asked(const Compile *compile, const char *word);
void show_text(const Graph *g, const char *text);

/* ---- rewrite.c ----------------------------------------------------------- */

/* Rebuild g in order: f gets each node with its operands already replaced and
 * returns what stands for it from now on (itself to keep it, a node that exists
 * or that it has just built). New nodes land where f builds them. */
void rewrite(Graph *g, Node *(*f)(Graph *g, Node *n, void *ctx), void *ctx);
int *use_counts(const Graph *g, Arena *a); /* by node id */
Table *use_table(const Graph *g);          /* the same as uintptr_t, by node */
/* Result `index` of a node that has several, with the dims of `like`. */
Node *new_part(Graph *g, Node *of, int index, Dtype dt, const Node *like);
/* Copy body (a composite's meaning) into g with its args bound to `in`; returns
 * its last node. */
Node *inline_body(Graph *g, const Graph *body, Node *const *in,
                  const Scope *scope, const Loc *loc);
/* Operands first, otherwise in the order there is. */
void g_sort(Graph *g);
/* Appends n to the vec, behind its operands, unless it is marked. */
void g_visit(Node *n, Node ***out, Arena *a);
/* A number of the step block, of the dtype that it has in every program. */
Node *g_step_value(Graph *g, const Loc *loc, StepValue v);
/* Part 1 of an attn whose part 0 is `out`, fp32. */
Node *logsumexp_part(Graph *g, Node *attn, const Node *out);

/* ---- micro.c ------------------------------------------------------------- */

Node *g_total(Graph *g, Node *n); /* sum over all its axes */
/* n with the axis micro: what is the same for all micro-batches (a loss of
 * parameters only) counts once in each, whoever runs it. */
Node *g_per_micro(Graph *g, Node *n);
Node *g_accum(Graph *g, Node *n, Reduce op); /* fp32, in n's region */
double micro_batches(const Graph *g);        /* of a step, all ranks */
int64_t micro_turns(const Graph *g);   /* of them those that a rank runs, err()
                                         where dp's ranks cannot share evenly */
int64_t program_turns(const Graph *g); /* those of a run of g's program */
/* Null where a rank's micro-batches may go in pairs, else why not. */
const char *why_unpaired(const Graph *g);
int takes_pairs(const Graph *g); /* was it asked for, or decided? */
/* Is it open, and may it pay: collectives run beside what computes, and memory
 * has no stated price? */
int may_pair(const Graph *g);

/* ---- scaled.c ------------------------------------------------------------ */

/* What dequantizes both operands of a product. */
typedef struct ScaledOperands {
    const Node *rows, *w;
} ScaledOperands;

/* Does a kernel of the target multiply the numbers of n's operands, so that
 * none reads what they are dequantized to? */
int multiplies_numbers(const Graph *g, const Node *n, ScaledOperands *of);

/* Bytes that a second of a micro-batch is worth in a unit (null: outside of
 * all), by Graph.price; HUGE_VAL: no memory is worth time. */
double bytes_a_second(const Graph *g, const Scope *unit);

#endif
