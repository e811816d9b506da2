/* program.h: phases, schedules, slots and programs of a pipeline stage */
#ifndef PLEAT_PROGRAM_H
#define PLEAT_PROGRAM_H

enum {
    MAXMICROS = 1 << 20
}; /* limit of a step, so that lists of rows are small */

typedef enum Region {
    REGden,  /* once a micro-batch, before pre: loss denominators */
    REGpre,  /* once a step */
    REGbody, /* once a micro-batch */
    REGpost, /* once a step, after the bodies */
    NREGION
} Region;
extern const char *const regions[NREGION];

typedef enum WorkKind {
    WF, /* forward of a chunk */
    WB, /* all of its backward */
    WI, /* input gradients, for which earlier chunks wait (dgrad) */
    WW, /* the rest of the backward (wgrad) */
    NJOB
} WorkKind;
extern const char jobnames[]; /* "FBIW" */

typedef enum RowKind { ROWwork, ROWsend, ROWrecv, ROWwait } RowKind;

/* A call of a pipeline stage: a work on a chunk, or a transfer: "F0" "B0" "I0"
 * "W0", "send.F0.F1" "recv.F0.F1" "wait.F0.F1". */
typedef struct Call {
    RowKind k;
    WorkKind w;
    int chunk;
    WorkKind to; /* transfers: the reader's work, */
    int other;   /* and its chunk */
} Call;
const char *call_name(Arena *a, const Call *call);
int call_named(Arena *a, const char *s, Call *call); /* 0: no call */

/* Phases run in order. Calls are consecutive; the program's rows run in their
 * place. */
typedef struct Phase {
    const char *name; /* name of its region or call; "start" */
    int first, n;     /* its instructions */
    int64_t repeat;   /* consecutive runs; 0: a call */
    int pair;         /* a run has two micro-batches, not one */
    Region reg;       /* "start": pre, before den */
    Call call;
} Phase;
/* Returns the index, among a rank's micro-batches of a step, of the first or
 * second one of a run of the phase. */
int64_t phase_micro(const Phase *phase, int64_t run, int second);
Phase phase_of_region(Region r, int start);
Phase phase_of_call(Arena *a, const Call *call);
int phase_named(Arena *a, const char *name, Phase *phase); /* 0: no phase */

/* A row of a stage's table: a phase for the micro-th micro-batch of its ranks.
 * pair: it may overlap with the next row (F with B). */
typedef struct ScheduleSlot {
    int phase, micro, pair;
} ScheduleSlot;

/* Buffers that a chunk's micro-batch keeps between rows: they live from the
 * first to the last row of the micro-batch whose phase names one. Micro-batch m
 * has them at slot[of[m]]; slots in use at the same time never overlap. Slots
 * are addresses in one arena, multiples of 256. */
typedef struct SlotGroup {
    const char *name; /* "F0-B0": first and last call */
    int64_t bytes;
    int nslot;
    int64_t *slot;
    int nof;
    int *of; /* [plan_micros] */
} SlotGroup;

/* Value that a buffer must hold at the end of a program: outputs, persistent
 * data. */
typedef struct FinalValue {
    int buf, value;
} FinalValue;

/* Kinds of programs (programs.c). */
typedef enum ProgramKind {
#define PROGRAM(id, name, may, must) PG##id,
#include "programs.def"
    NPROGRAM
} ProgramKind;
extern const char *const programnames[];    /* [NPROGRAM] */
ProgramKind program_kind(const char *name); /* NPROGRAM: unknown name */
int program_trains(ProgramKind k);          /* is it any step? */
int program_budgeted(ProgramKind k); /* is it a step, not its fallback? */

typedef struct Program {
    ProgramKind kind;
    int nphase;
    Phase *phase;
    int nslot;
    ScheduleSlot *slot; /* pp > 1: the stage's table */
    int nframe;
    SlotGroup *frame;
    int ninstr;
    Instr *instr;
    int nend;
    FinalValue *end;          /* plans with flow */
    int64_t transient, bound; /* height of transient buffers, and its lower
                                     bound */
    double rebuilt;           /* seconds of recomputation in a run */
    KeptBytes kept;           /* only during a compile without stages */
} Program;
int program_writes(const Program *prog, int buf); /* is it a final value? */
int phase_names(const Program *prog, const Phase *phase,
                int buf); /* does an instruction write buf? */
/* Returns a vec of all rows in execution order; a repeated phase has one for
 * each micro-batch. */
ScheduleSlot *program_rows(Arena *a, const Program *prog);
/* Does an instruction run in this row of its phase? */
int runs_in(const Program *prog, const Instr *instr, const ScheduleSlot *row);
int program_streams(
    const Program *prog); /* has it other streams than compute? */
/* instrs_behind returns [instruction]: the first compute instruction known to
 * run after it, otherwise ninstr. writers_behind: the first after which all
 * writers are known to have ended. */
int *instrs_behind(Arena *a, const Program *prog);
int *writers_behind(Arena *a, const Program *prog, const char *writes);
const Phase *instr_phase(const Program *prog, int instr); /* or null */
/* Is it the last row of its phase, of a call in the table's order? */
int is_last_row(const Program *program, const ScheduleSlot *row);

#endif
