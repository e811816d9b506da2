/* exec.h: a plan in memory, and its programs run on a device. */
#ifndef PLEAT_EXEC_H
#define PLEAT_EXEC_H

#include "../device/device.h"

/* ---- exec.c run.c: a plan in memory -------------------------------------- */

/* Where the inputs of a step come from. fill() writes rank's part of t, in t's
 * layout, for the micro-th micro-batch that the rank runs in this step. */
typedef struct Feed {
    void (*fill)(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst);
    void *self;
} Feed;

/* The step block (stepval names of the language). */
typedef struct StepValues {
    double lr, bc1, bc2;
    int64_t step;
} StepValues;

/* Beyond these a step changes nothing (train.skip_above); INFINITY: no limit.*/
typedef struct Limits {
    double loss, gnorm;
} Limits;

/* A buffer in a frame, where an instruction of the phase names it. */
typedef struct Patch {
    void **at;
    int64_t offset;
    int frame;
} Patch;

typedef struct Rank {
    int64_t id;
    const Role *role;
    struct Stage *stage;
    uint8_t *base;      /* its arena in the device's memory */
    uint8_t *arena;     /* in the host's: the same, or its mirror */
    uint8_t *host;      /* the host's arena: one memory for both */
    void **buf;         /* in the host's memory */
    BoundInstr **bound; /* [program][instruction] */
    Patch ***patch;     /* [program][phase]: vec */
} Rank;

/* What a phase reads of its micro-batch. */
typedef struct Needs {
    int *input;
    int micro;
} Needs; /* vec of tensors */

/* A program as one stage runs it: phases unrolled, the table in its place. */
typedef struct UnrolledProgram {
    int nrow;
    ScheduleSlot *row;
    char *first;  /* by row: is it the first of its phase? */
    int **stores; /* by phase: vec of instructions with store_first */
    Needs *needs;
} UnrolledProgram;

/* Ranks here that run one role, instruction by instruction. */
typedef struct Stage {
    int role;
    Rank **rank;
    int64_t nrank;
    UnrolledProgram *course; /* by program */
    int64_t *loaded;         /* by tensor: micro-batch; -1: none */
    int64_t micro;           /* that the scalar `micro` says; -1: none */
    int prog, row, instr;    /* where it stands; row nrow: at the end */
    int met;                 /* a member of the collective looked at */
} Stage;

/* What ran, in order of start; instr -1: a row of the table began. */
typedef struct InstrTiming {
    int stage, phase, instr;
    int64_t micro;
    double start, end; /* seconds */
    int64_t from, to;  /* marks */
} InstrTiming;

typedef struct Exec {
    const Plan *plan;
    Arena *mem;
    Comm *comm;
    Pool *pool;
    const Device *dev;
    void *on;              /* what its row opened */
    struct Staged *staged; /* not null: the device has memory of its own */
    int late;      /* a run of it returns when it was launched, the results are
                      those of the one before */
    int hold;      /* of plans that may overflow: a step writes nothing, and
                      says that it did; a late one does so if the one before it
                      did */
    int alone;     /* for timing: in place of a collective each rank copies in
                      its own memory */
    double waited; /* seconds in which the host only waited */
    ArenaKind arenas; /* where ranks' buffers lie */
    Rank *rank;       /* comm->n of them */
    Stage *stage;
    int nstage;
    Stage **meet; /* room for all of them */
    void *copy;   /* exec_checked: buffers before an instruction */
    int64_t ncopy;
    const char *bad;  /* what exec_checked found */
    int poison;       /* see poison.c */
    int64_t at;       /* step that was launched last; -1: none */
    Limits limits;    /* of every step */
    const Feed *feed; /* of the run; the scalar `micro`: */
    void (*micro)(struct Exec *x, const Rank *r, int64_t micro);
    Progress progress;
    InstrTiming *ran;
    int64_t nran, maxran;           /* see exec_record */
    void **mark;                    /* events */
    int64_t nmark, maxmark, marked; /* marked: the last on compute */
    unsigned timed;                 /* streams that have any, as bits */
    /* Before anything writes what lasts: guard is called, if not null, and the
     * device waits for `copied`, if not null, once a run (`ordered`:
     * streams, as bits). */
    void (*guard)(void *self);
    void *guarded;
    void *copied;
    unsigned ordered;
    void *there[2];           /* mirror.c: events */
    void (*idle)(void *self); /* null, or called while a run is waited for */
    void *idler;
} Exec;

Exec *exec_open(const Plan *p, Comm *comm);
Exec *exec_open_on(const Device *device, const Plan *p, Comm *comm);
void exec_close(Exec *exec);
/* Has its device memory of its own? Then arenas here are a mirror of it. */
int exec_apart(const Exec *exec);
/* A table of the device's memory. Bytes outside of the plan. */
int64_t exec_usage(Exec *exec, Text *out);
/* poison.c: what it does not write becomes no number */
void poison_instr(const Rank *rank, const BoundInstr *bound);
/* Run a program once. feed and values may be null for programs without inputs.
 * err() when stages wait for each other. */
void exec_run(Exec *exec, ProgramKind program, const StepValues *values,
              const Feed *feed);
/* The same, and where rows did not fit its fallback: 1 then. */
int exec_exact(Exec *exec, ProgramKind program, const StepValues *values,
               const Feed *feed);
int exec_settle(Exec *exec); /* after late runs: the last one's results;
                                     0: they were here */
/* The same, after every instruction looking for the first NaN or infinity it
 * makes: one line that names tensor, place and rank; null: none. */
const char *exec_checked(Exec *exec, ProgramKind program,
                         const StepValues *values, const Feed *feed);
/* From now on exec->ran holds what the last run of this program did; NPROGRAM:
 * no longer. */
void exec_record(Exec *exec, ProgramKind program);
/* That as Chrome's trace events: a process a stage; thread 0 has the rows, 1
 * the instructions. */
char *exec_trace(Arena *a, const Exec *exec, ProgramKind program, size_t *len);
/* Seconds of it in instructions that need no other rank. */
double exec_alone(const Exec *exec, ProgramKind program);
/* A result of the last run; NAN: no such result. */
double exec_result(const Exec *exec, ResultKind k);
/* The i-th of the result block; element k of it, if it is a vector. */
double exec_out(const Exec *exec, int i);
double exec_out_at(const Exec *exec, int i, int64_t k);
double plain_nan(double v); /* v; of NaN the one that prints as "nan" */
void exec_pull(Exec *exec); /* what lasts, to the mirror: before reading */
void exec_push(Exec *exec); /* ... from it: after writing */
/* The same after tensors were read: numbers of weights are made of masters. */
void exec_filled(Exec *exec);
void exec_drop(Exec *exec);           /* the mirror is not read again */
int64_t exec_bytes(const Exec *exec); /* arenas of all ranks here */
const Role *exec_role(const Exec *exec, int64_t rank);
void *exec_buf(const Exec *exec, int64_t rank, int buf);
void *exec_fetch(const Exec *exec, int64_t rank,
                 int buf); /* ... as it is now */
/* Of bytes in the device's arena: where the host has them, as they are now. */
void *exec_seen(const Exec *exec, const Rank *rank, const void *p,
                int64_t bytes);
/* Every input once, whatever stages read it; null: past the end. */
const Tensor *plan_input(const Plan *p, int i);

/* ---- for each other ------------------------------------------------------ */

int instr_lasts(const Role *role,
                const Instr *instr); /* does it write what lasts?*/
/* What lies at an address of the plan: for the device; for the host. */
uint8_t *rank_place(const Rank *rank, int64_t address);
uint8_t *rank_mirror(const Rank *rank, int64_t address);
/* Does p lie in the host's arena of the plan? */
int rank_hosts(const Rank *rank, const void *p);
/* Where the device has a buffer that rank->buf holds. */
uint8_t *rank_address(const Rank *rank, int buf);
/* mirror.c: before what lasts is written */
void exec_guard(Exec *exec, StreamKind on);

/* stage.c: where a stage stands */
Stage *exec_stage(Exec *exec, int role); /* opened when missing */
const Program *stage_program(const Stage *stage);
const ScheduleSlot *stage_slot(const Stage *stage);
int stage_instr(const Stage *stage); /* of the program */
int stage_ended(const Stage *stage);
BoundInstr *rank_instr(const Rank *rank);
/* The first micro-batch of those that run at once, among all of the step. */
double first_micro(const Exec *exec, int64_t micro);
/* What is the same for all of a step, so not `micro`. */
double step_value(const Exec *exec, const StepValues *values, StepValue v);

/* interpreter.c: instructions, in the order of each stage */
void exec_start(Exec *exec, ProgramKind program); /* all stages */
void stage_next(Exec *exec,
                Stage *stage); /* its next instruction; row -1: the first */
void run_instr(Exec *exec, Stage *const *s, int n);
void exec_stages(Exec *exec);              /* to their ends */
void exec_times(Exec *exec, double began); /* of the marks to exec->ran */

/* replay.c: programs on a device with memory of its own */
typedef struct Staged Staged;
void staged_open(Exec *exec);
void staged_close(Exec *exec);
void staged_run(Exec *exec, ProgramKind k, const StepValues *values,
                const Feed *feed);
void staged_usage(const Exec *exec, Text *out);

/* nan_check.c: the first bad number */
void look_open(Exec *exec);
void look_close(Exec *exec);
void look_before(Exec *exec, Stage *const *s, int n);
void look_after(Exec *exec, Stage *const *s, int n);

#endif
