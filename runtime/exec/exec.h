/* exec.h: a plan in memory, and its programs run on a device. */
#ifndef PLEAT_EXEC_H
#define PLEAT_EXEC_H

#include "../device/device.h"

/* ---- exec.c run.c: a plan in memory -------------------------------------- */

/* Source of a step's inputs. fill() writes rank's part of t, in t's layout, for
 * the micro-th micro-batch that the rank runs in this step. */
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

/* A step beyond one of these updates nothing (train.skip_above); INFINITY: no
 * limit. */
typedef struct Limits {
    double loss, gnorm;
} Limits;

/* An operand of a phase's instruction whose buffer lies in a frame. */
typedef struct Patch {
    void **at;
    int64_t offset;
    int frame;
} Patch;

typedef struct Rank {
    int64_t id;
    const Role *role;
    struct Stage *stage;
    uint8_t *base;  /* arena in device memory */
    uint8_t *arena; /* arena in host memory: base itself, or its mirror */
    uint8_t *host;  /* arena of offloaded buffers: host and device share it */
    void **buf;     /* buffers' addresses in host memory */
    BoundInstr **bound; /* [program][instruction] */
    Patch ***patch;     /* [program][phase]: vec */
} Rank;

/* Inputs of a micro-batch that a phase reads. */
typedef struct Needs {
    int *input;
    int micro;
} Needs; /* vec of tensors */

/* A program as one stage runs it: every row of the schedule table in order,
 * with its phase's instructions. */
typedef struct UnrolledProgram {
    int nrow;
    ScheduleSlot *row;
    char *first;  /* per row: is it the first of its phase? */
    int **stores; /* per phase: vec of instructions with store_first */
    Needs *needs;
} UnrolledProgram;

/* Ranks here that run one role, instruction by instruction. */
typedef struct Stage {
    int role;
    Rank **rank;
    int64_t nrank;
    UnrolledProgram *course; /* per program */
    int64_t *loaded;         /* per tensor: micro-batch; -1: none */
    int64_t micro;           /* value of the scalar `micro`; -1: none */
    int prog, row, instr;    /* next instruction; row nrow: at the end */
    int met;                 /* member of the collective that meet() looks at */
} Stage;

/* One executed instruction, recorded in order of start; instr -1: a row of the
 * table began. */
typedef struct InstrTiming {
    int stage, phase, instr;
    int64_t micro;
    double start, end; /* seconds */
    int64_t from, to;  /* marks (events) at start and end */
} InstrTiming;

typedef struct Exec {
    const Plan *plan;
    Arena *mem;
    Comm *comm;
    Pool *pool;
    const Device *dev;
    void *on;              /* handle that the device's open() returned */
    struct Staged *staged; /* not null: the device has its own memory */
    int late;  /* a run returns once it is launched; its results are those
                      of the run before */
    int hold;  /* plans that may overflow: a step that overflows reports it
                      and updates nothing; a late step also if the step before
                      it overflowed */
    int alone; /* timing runs: each rank copies in its own memory in place of
                      a collective */
    double waited;    /* seconds in which the host only waited */
    ArenaKind arenas; /* memory of the ranks' buffers */
    Rank *rank;       /* [comm->n] */
    Stage *stage;
    int nstage;
    Stage **meet; /* [stages] scratch of meet() */
    /* Called after each instruction of each rank here; null: nothing is. */
    void (*look)(void *self, const Stage *stage, const Rank *rank);
    void *looker;
    void *copy; /* exec_checked: buffers before an instruction */
    int64_t ncopy;
    const char *bad;  /* line of exec_checked about the first bad number */
    int poison;       /* see poison.c */
    int64_t at;       /* step that was launched last; -1: none */
    Limits limits;    /* limits of every step */
    int64_t began;    /* step at which the optimizer's states were 0 */
    const Feed *feed; /* source of the current run; the scalar `micro`: */
    void (*micro)(struct Exec *x, const Rank *r, int64_t micro);
    Progress progress;
    InstrTiming *ran;
    int64_t nran, maxran;           /* see exec_record */
    void **mark;                    /* events */
    int64_t nmark, maxmark, marked; /* marked: the last on compute */
    unsigned timed;                 /* bit set of the streams that have marks */
    /* Before an instruction writes persistent data: guard, if not null, is
     * called, and once a run each stream (`ordered`: bit set of those that did)
     * waits for `copied`, if not null. */
    void (*guard)(void *self);
    void *guarded;
    void *copied;
    unsigned ordered;
    void *there[2]; /* mirror.c: events, a copy has arrived */
    void (*idle)(
        void *self); /* null, or called while the host waits for a run */
    void *idler;
} Exec;

Exec *exec_open(const Plan *p, Comm *comm);
Exec *exec_open_on(const Device *device, const Plan *p, Comm *comm);
void exec_close(Exec *exec);
/* Has the device its own memory? The host's arenas are then a mirror of it. */
int exec_apart(const Exec *exec);
/* Appends a table of the device's memory to out. Returns bytes in use that the
 * plan does not cover. */
int64_t exec_usage(Exec *exec, Text *out);
/* poison.c: fills the results of the instruction with NaN (integers: far out of
 * range), which it then overwrites */
void poison_instr(const Rank *rank, const BoundInstr *bound);
/* Runs a program once. feed and values may be null for programs without inputs.
 * Calls err() if stages wait for each other. */
void exec_run(Exec *exec, ProgramKind program, const StepValues *values,
              const Feed *feed);
/* Same as exec_run; a step whose rows overflowed runs again by its fallback
 * program. Returns 1 if it did. */
int exec_exact(Exec *exec, ProgramKind program, const StepValues *values,
               const Feed *feed);
/* Waits for the last late run and its results. Returns 0 if none was
 * pending. */
int exec_settle(Exec *exec);
/* Same as exec_run, but checks the results of every instruction. Returns a line
 * that names tensor, place and rank of the first NaN or infinity; null:
 * none. */
const char *exec_checked(Exec *exec, ProgramKind program,
                         const StepValues *values, const Feed *feed);
/* Records the instructions of each later run of this program in exec->ran, the
 * last run's only; NPROGRAM: stops recording. */
void exec_record(Exec *exec, ProgramKind program);
/* Returns the recorded run as Chrome trace events: one process per stage, rows
 * in thread 0, instructions in one thread per stream. *len: bytes. */
char *exec_trace(Arena *a, const Exec *exec, ProgramKind program, size_t *len);
/* Seconds of the recorded run in instructions that need no other rank. */
double exec_alone(const Exec *exec, ProgramKind program);
/* Returns a result of the last run; NAN: no such result. */
double exec_result(const Exec *exec, ResultKind k);
/* Returns element i of the result block. */
double exec_out(const Exec *exec, int i);
double exec_out_at(const Exec *exec, int i, int64_t k);
double
plain_nan(double v); /* v; a NaN without its sign, which prints as "nan" */
void exec_pull(
    Exec *exec); /* copies persistent data to the mirror; before reading */
void exec_push(Exec *exec); /* copies the mirror to the device; after writing */
/* Same as exec_push, after a checkpoint was read: also derives weights from
 * masters. */
void exec_filled(Exec *exec);
void exec_drop(Exec *exec);           /* frees the mirror's pages */
int64_t exec_bytes(const Exec *exec); /* bytes of the arenas of this process */
const Role *exec_role(const Exec *exec, int64_t rank);
void *exec_buf(const Exec *exec, int64_t rank, int buf);
void *exec_fetch(const Exec *exec, int64_t rank,
                 int buf); /* ... as it is now */
/* Returns the host's address of n bytes at p of the device's arena, copied from
 * the device now. */
void *exec_seen(const Exec *exec, const Rank *rank, const void *p,
                int64_t bytes);
/* Returns input i of the plan, each once although several stages may read it;
 * null: past the end. */
const Tensor *plan_input(const Plan *p, int i);

/* ---- shared by the files of this folder ---------------------------------- */

int instr_lasts(const Role *role,
                const Instr *instr); /* does it write persistent data? */
/* Returns the device's address of a plan's address. */
uint8_t *rank_place(const Rank *rank, int64_t address);
uint8_t *rank_mirror(const Rank *rank, int64_t address);
/* Is p in the arena of offloaded buffers? */
int rank_hosts(const Rank *rank, const void *p);
/* Returns the device's address of buffer `buf`. */
uint8_t *rank_address(const Rank *rank, int buf);
/* mirror.c: called before persistent data is written on a stream */
void exec_guard(Exec *exec, StreamKind on);

/* stage.c: position of a stage */
Stage *exec_stage(Exec *exec, int role); /* opened when missing */
const Program *stage_program(const Stage *stage);
const ScheduleSlot *stage_slot(const Stage *stage);
int stage_instr(const Stage *stage); /* index in the program */
int stage_ended(const Stage *stage);
BoundInstr *rank_instr(const Rank *rank);
/* Returns the index, within the step, of data-parallel rank 0's micro-batch
 * `micro`. */
double first_micro(const Exec *exec, int64_t micro);
/* Returns a value that all micro-batches of a step share (not `micro`). */
double step_value(const Exec *exec, const StepValues *values, StepValue v);

/* interpreter.c: instructions, in the order of each stage */
void exec_start(Exec *exec, ProgramKind program); /* all stages */
/* Moves a stage to its next instruction; row -1: to the first. */
void stage_next(Exec *exec, Stage *stage);
void run_instr(Exec *exec, Stage *const *s, int n);
void exec_stages(Exec *exec); /* runs all stages to their ends */
void exec_times(Exec *exec,
                double began); /* fills times of exec->ran from marks */

/* replay.c: programs on a device with its own memory */
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
