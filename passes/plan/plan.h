/* plan.h: decisions about memory, order and time: values kept or recomputed,
 * offload, pairs of micro-batches, order of instructions, streams, offsets. */
#ifndef PLEAT_PASSES_PLAN_H
#define PLEAT_PASSES_PLAN_H

#include "../kernels/kernels.h"
#include "activations.h"
#include "memory.h"

/* instr_cost.c: sets flops, bytes (unless they are known), again, secs and, by
 * the marks of mark_experts, experts of an instruction. */
void mark_experts(Graph *g);
void predict(const Graph *g, const Group *group, Instr *instr);
/* On a machine whose dispatcher sends a row for each choice of a token: what
 * dispatches the tokens of a layer, and their gradients, takes the seconds of a
 * way there and one back, which nothing hides. What the plan sends takes none.
 * group: n, predicted before. */
void price_dispatcher(const Graph *g, Group *const *group, int n);
double copy_secs(const Graph *g, double bytes); /* seconds to host memory */
/* host_speed: bytes/s of a rank's share of the host's processors; 0: they run
 * no kernels. host_secs: seconds of a kernel there. */
double host_speed(const Graph *g);
double host_secs(const Graph *g, double bytes);
/* Returns the seconds of a rank's share of host memory for this many bytes. */
double host_memory_secs(const Graph *g, double bytes);
typedef struct Emit Emit;
typedef struct Shapes Shapes; /* distinct shapes of values */
typedef struct Signatures Signatures;

typedef struct ProgramBuilder { /* a program under construction */
    Program prog;
    Arena *arena; /* arena of its graph */
    Emit *emit;
    Graph *graph;
    const Target *target;
    Group **group;      /* vec: [instruction] */
    Phase *phase;       /* vec */
    ScheduleSlot *slot; /* vec */
    int64_t repeat;     /* runs of den and body */
    int pair;           /* a run has two micro-batches */
    int once;           /* each instruction runs once */
    int nnamed;         /* number of values that instructions name */
    Layout *layout;
    int *work; /* [instruction]: buffer of its workspace, or -1 */
    Table *value;
    struct ProgramBuilder *unlimited; /* fit.c: the stage without a limit */
    double pairs_save; /* most seconds saved by pairs, which do not fit */
    int nvalue;        /* instr_values.c: number of values */
    int *shape;        /* vec: [i]: shape of value i + 1 */
    Shapes *shapes;    /* the plan's shapes */
    Signatures *sigs;
} ProgramBuilder;

void make_phases(ProgramBuilder *builder,
                 Group **k); /* fills group, phase, slot, repeat */
/* Returns the runs of the body on a rank: one per micro-batch, or pair of
 * them. */
int64_t body_runs(const Graph *g);
/* kept.c: bytes kept by a program without stages, whose layout is known. */
KeptBytes kept_of(Arena *a, const Graph *g, Group *const *k,
                  const Program *prog, const Layout *layout);
/* streams.c: assigns streams and events to instructions. */
void put_streams(ProgramBuilder *builder, Program *program);
int runs_beside(const ProgramBuilder *builder, const Instr *instr);
/* Returns the last instruction of a phase that runs in all its runs. */
int phase_end(const Program *program, const Phase *phase);
int joins_next(const Program *program, int phase); /* ordered with the next? */
/* offload.c: may a stage that does not fit offload values at no cost in
 * time? */
int may_offload(const Graph *g);
/* Returns the least seconds of a step for these bytes of offloaded masters and
 * moments. */
double hosted_secs(const Graph *g, double bytes);
/* host_update.c: marks nodes of updates that run on the host's processors, by
 * the place of masters and moments. */
void host_updates(Graph *g, Arena *a, Group *const *group);
/* update_order.c: appends to out the n groups of a phase and its copies. */
Group **order_updates(ProgramBuilder *builder, Group *const *group, int n,
                      Group *const *copy, Group **out);
/* copies.c: take_copies removes copies from the program; put_copies inserts
 * each at its place and assigns streams to all instructions. */
typedef struct OffloadCopies OffloadCopies;
OffloadCopies *take_copies(ProgramBuilder *builder);
void put_copies(ProgramBuilder *builder, Program *program,
                const OffloadCopies *copies);
/* overlap.c: orders the groups of phase f, and of the next if they join, with
 * at most load.most live bytes as estimated by load (of the present order);
 * late: factor on the predicted seconds of collectives. Returns the smallest
 * load.most that gives this order. */
typedef enum OrderRule { ORDERlongest, ORDERnearest } OrderRule;
int64_t order_span(ProgramBuilder *builder, const Program *program, int f,
                   Load load, OrderRule rule, double late);
/* Moves reductions of a post that joins body f to just after their gradients,
 * in the model's order. */
void hoist_reductions(ProgramBuilder *builder, const Program *program, int f,
                      Load load);
/* has_last_run: is f a repeated call, or a repeated body before post?
 * move_to_last_run moves instructions of post into such a body, for its last
 * run, and returns their number. */
int has_last_run(const Program *program, int f);
int move_to_last_run(ProgramBuilder *builder, const Program *program, int f,
                     Load load);
/* last_rows.c: the same for a stage's post and calls, limited to `room` bytes.
 * Returns the number of moved instructions. */
int move_to_last_rows(ProgramBuilder *builder, Program *program, int64_t room);
/* orders.c: chooses the order of instructions and their streams. */
void order_beside(ProgramBuilder *builder, Program *program);

/* plain_products.c: warns once for each axis and path. secs: seconds of the
 * group; fast: its seconds on the fast path. */
void warn_path(const Graph *g, const Group *group, double secs, double fast);

/* Does group accumulate in n (rather than clear it)? */
int accumulates(const Group *group, const Node *n);

/* ---- emit/emit.c: times of placed programs ------------------------------- */

/* program_secs: predicted seconds of a run; for a stage of several without
 * waits for others. program_unhidden: for a single stage, seconds of its bodies
 * in which transfers are not overlapped. */
double program_secs(const ProgramBuilder *builder);
double program_unhidden(const ProgramBuilder *builder);
/* Returns program_secs without the bodies' waits for copies from and to the
 * host. */
double program_unwaiting(const ProgramBuilder *builder);
int64_t
program_micros(const ProgramBuilder *builder); /* micro-batches of a run */
/* Returns program_secs of all stages. */
double stages_secs(Arena *a, ProgramBuilder *const *stage, size_t n);

/* ---- fit.c --------------------------------------------------------------- */

/* Fits a stage after pipe into `room` bytes of temporaries (INT64_MAX: no
 * limit): sets its price and turns. Returns the program of a copy of it. step:
 * the program of which it is the fallback; null: none. */
ProgramBuilder *fit_stage(Graph *g, int64_t room, const ProgramBuilder *step);

/* ---- fit_programs.c ------------------------------------------------------ */

typedef struct FittedProgram {
    Graph *first;          /* first of its stages */
    ProgramBuilder **made; /* vec; null: its passes must run */
    double secs, least;    /* of a step; without a limit; 0: not computed */
} FittedProgram;

/* Fits all programs after pipe; the step is first. With dumps, the graphs,
 * which then have all decisions, must go through their passes once more. */
FittedProgram *fit_all(Graph *const *v);

/* ---- run.c --------------------------------------------------------------- */

/* For fit.c: whether a pass has run; a copy of a stage; its passes up to one;
 * all passes and places of its values. Passes up to which a copy runs: */
void pass_recompute(Graph *g), pass_fuse(Graph *g);
int has_run(const Graph *g, void (*pass)(Graph *g));
Graph *stage_copy(Arena *a, Graph *g);
void run_up_to(Graph *g, void (*pass)(Graph *g));
ProgramBuilder *place_stage(Graph *g);

#endif
