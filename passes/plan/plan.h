/* plan.h: decisions about memory, order and time: values kept or recomputed,
 * offload, pairs of micro-batches, order of instructions, streams, offsets. */
#ifndef PLEAT_PASSES_PLAN_H
#define PLEAT_PASSES_PLAN_H

#include "../kernels/kernels.h"
#include "activations.h"
#include "memory.h"

/* instr_cost.c: sets s->flops, bytes (unless they are known), again, secs and,
 * by the marks of mark_experts, experts. */
void mark_experts(Graph *g);
void predict(const Graph *g, const Group *group, Instr *instr);
/* On a machine whose dispatcher sends a row for each choice of a token: what
 * dispatches the tokens of a layer, and their gradients, takes the seconds of a
 * way there and one back, which nothing hides. What the plan sends takes none.
 * group: n, predicted before. */
void price_dispatcher(const Graph *g, Group *const *group, int n);
double copy_secs(const Graph *g, double bytes); /* to the host's memory */
/* Bytes/s of its memory that a rank's share of the host's processors moves; 0:
 * they compute nothing; and the seconds of a kernel there. */
double host_speed(const Graph *g);
double host_secs(const Graph *g, double bytes);
/* Seconds in which a rank's share of that memory takes so many bytes. */
double host_memory_secs(const Graph *g, double bytes);
typedef struct Emit Emit;
typedef struct Shapes Shapes; /* of values, each once */
typedef struct Signatures Signatures;

typedef struct ProgramBuilder { /* one program being made */
    Program prog;
    Arena *arena; /* its graph's */
    Emit *emit;
    Graph *graph;
    const Target *target;
    Group **group;      /* vec: of each instruction */
    Phase *phase;       /* vec */
    ScheduleSlot *slot; /* vec */
    int64_t repeat;     /* of den and body */
    int pair;           /* ... of two micro-batches */
    int once;           /* each instruction runs once */
    int nnamed;         /* numbers of values that instructions name */
    Layout *layout;
    int *work; /* instruction -> buffer of its work space, or -1 */
    Table *value;
    struct ProgramBuilder *unlimited; /* fit.c: the stage with any memory */
    double pairs_save; /* seconds that pairs, which do not fit, save at most */
    int nvalue;        /* instr_values.c: numbers of values */
    int *shape;        /* vec: of value i + 1 */
    Shapes *shapes;    /* the plan's, as those */
    Signatures *sigs;
} ProgramBuilder;

void make_phases(ProgramBuilder *builder,
                 Group **k); /* fills group, phase, slot, repeat */
/* How often a rank runs the body: for each micro-batch, or pair of them. */
int64_t body_runs(const Graph *g);
/* kept.c: of a program without stages, whose layout is known. */
KeptBytes kept_of(Arena *a, const Graph *g, Group *const *k,
                  const Program *prog, const Layout *layout);
/* streams.c: on which stream each instruction runs, behind which events. */
void put_streams(ProgramBuilder *builder, Program *program);
int runs_beside(const ProgramBuilder *builder, const Instr *instr);
/* The last instruction of a phase that stands in all its runs. */
int phase_end(const Program *program, const Phase *phase);
int joins_next(const Program *program, int phase); /* phase and the next: one */
/* offload.c: may a stage that does not fit offload what costs no time? */
int may_offload(const Graph *g);
/* At least of a step, for bytes of masters and moments that wait in the host's
 * memory. */
double hosted_secs(const Graph *g, double bytes);
/* host_update.c: says of nodes that are members of updates whether they run on
 * the host's processors. Masters and moments know where they live. */
void host_updates(Graph *g, Arena *a, Group *const *group);
/* update_order.c: appends to out the n groups of a phase and its copies. */
Group **order_updates(ProgramBuilder *builder, Group *const *group, int n,
                      Group *const *copy, Group **out);
/* copies.c: out of the program, if there are any; and in again, each where it
 * should run, and all instructions on their streams. */
typedef struct OffloadCopies OffloadCopies;
OffloadCopies *take_copies(ProgramBuilder *builder);
void put_copies(ProgramBuilder *builder, Program *program,
                const OffloadCopies *copies);
/* overlap.c: an order of the groups of phase f, and of the next if they join,
 * in which no more than load.most is alive at once as far as load (of the order
 * that stands there) tells; late: for collectives that take so many times their
 * predicted seconds. Returns the least load.most that gives this order. */
typedef enum OrderRule { ORDERlongest, ORDERnearest } OrderRule;
int64_t order_span(ProgramBuilder *builder, const Program *program, int f,
                   Load load, OrderRule rule, double late);
/* Reductions of a post that joins body f: as soon as their gradients are there,
 * in the model's order. */
void hoist_reductions(ProgramBuilder *builder, const Program *program, int f,
                      Load load);
/* Is f a call, or a body with post behind it, that is run several times? Of
 * post what may stand in such a body goes there, for its last run; how many
 * instructions. */
int has_last_run(const Program *program, int f);
int move_to_last_run(ProgramBuilder *builder, const Program *program, int f,
                     Load load);
/* last_rows.c: the same of a stage's post and calls, where what goes takes no
 * more than so many bytes; how many. */
int move_to_last_rows(ProgramBuilder *builder, Program *program, int64_t room);
/* orders.c: the order of instructions, and with it their streams. */
void order_beside(ProgramBuilder *builder, Program *program);

/* plain_products.c: once for each axis and path. The seconds that group takes,
 * and would take on the fast one. */
void warn_path(const Graph *g, const Group *group, double secs, double fast);

/* Does group add to what n holds (rather than clear it)? */
int accumulates(const Group *group, const Node *n);

/* ---- emit/emit.c: times of what is placed -------------------------------- */

/* Predicted seconds of a run, of a stage of several as if what others send it
 * were always there; of its bodies, where there is one stage, those in which
 * transfers have nothing beside them. */
double program_secs(const ProgramBuilder *builder);
double program_unhidden(const ProgramBuilder *builder);
/* ... if no body waited for copies between the memories of device and host. */
double program_unwaiting(const ProgramBuilder *builder);
int64_t program_micros(const ProgramBuilder *builder); /* of a run */
/* ... of all stages. */
double stages_secs(Arena *a, ProgramBuilder *const *stage, size_t n);

/* ---- fit.c --------------------------------------------------------------- */

/* A stage as pipe left it, whose temporaries have `room` (INT64_MAX: any): sets
 * its price and turns. What a copy of it at these became. step: what it is the
 * fallback of; null: it is none. */
ProgramBuilder *fit_stage(Graph *g, int64_t room, const ProgramBuilder *step);

/* ---- fit_programs.c ------------------------------------------------------ */

typedef struct FittedProgram {
    Graph *first;          /* of its stages */
    ProgramBuilder **made; /* vec; null: it goes through its passes */
    double secs, least;    /* of a step, and with any memory; 0: not asked */
} FittedProgram;

/* What all programs, as pipe left them, became; the step is first. Where dumps
 * are asked for, the graphs, which have all decisions then, are to go through
 * their passes once more. */
FittedProgram *fit_all(Graph *const *v);

/* ---- run.c --------------------------------------------------------------- */

/* For fit.c: has a pass run? A copy of a stage; its passes up to the one, all
 * of them and the places of its instructions' values. */
/* The passes that a copy runs up to. */
void pass_recompute(Graph *g), pass_fuse(Graph *g);
int has_run(const Graph *g, void (*pass)(Graph *g));
Graph *stage_copy(Arena *a, Graph *g);
void run_up_to(Graph *g, void (*pass)(Graph *g));
ProgramBuilder *place_stage(Graph *g);

#endif
