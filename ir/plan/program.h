/* program.h: phases, schedules, slots and programs of a pipeline stage */
#ifndef PLEAT_PROGRAM_H
#define PLEAT_PROGRAM_H

enum { MAXMICROS = 1 << 20 }; /* of a step: lists of its rows stay small */

typedef enum Region {
    REGden,  /* once a micro-batch, before pre: loss dens */
    REGpre,  /* once a step */
    REGbody, /* once a micro-batch */
    REGpost, /* once a step, after the bodies */
    NREGION
} Region;
extern const char *const regions[NREGION];

typedef enum WorkKind {
    WF, /* forward of a chunk */
    WB, /* all of its backward */
    WI, /* what earlier chunks wait for (dgrad) */
    WW, /* the rest of the backward (wgrad) */
    NJOB
} WorkKind;
extern const char jobnames[]; /* "FBIW" */

typedef enum RowKind { ROWwork, ROWsend, ROWrecv, ROWwait } RowKind;

/* A call of a pipeline stage: one work on one chunk, or one transfer: "F0" "B0"
 * "I0" "W0", "send.F0.F1" "recv.F0.F1" "wait.F0.F1". */
typedef struct Call {
    RowKind k;
    WorkKind w;
    int chunk;
    WorkKind to; /* of a transfer: who reads what w of chunk makes, */
    int other;   /* and in which chunk */
} Call;
const char *call_name(Arena *a, const Call *call);
int call_named(Arena *a, const char *s, Call *call); /* 0: no call */

/* Phases run in order. Calls follow each other, and in their place the
 * program's rows run. */
typedef struct Phase {
    const char *name; /* of its region, of its call; "start" */
    int first, n;     /* instructions */
    int64_t repeat;   /* 1, or how often a rank runs it in turn; 0: a call */
    int pair;         /* a run takes two micro-batches, not one */
    Region reg;       /* start: pre, before den */
    Call call;
} Phase;
/* Of those that a rank runs in a step, the one that a run of phase has first,
 * or second. */
int64_t phase_micro(const Phase *phase, int64_t run, int second);
Phase phase_of_region(Region r, int start);
Phase phase_of_call(Arena *a, const Call *call);
int phase_named(Arena *a, const char *name, Phase *phase); /* 0: no phase */

/* One row of a stage's table: that phase for the micro-th micro-batch that its
 * ranks run. pair: it may overlap with the next row (F with B). */
typedef struct ScheduleSlot {
    int phase, micro, pair;
} ScheduleSlot;

/* What one chunk's micro-batch keeps from one row to a later one: buffers that
 * live from the first to the last row of that micro-batch whose phase names
 * one. Micro-batch m has them at slot[of[m]]; slots in use together never
 * overlap. Addresses in the arenas, multiples of 256; all slots in one. */
typedef struct SlotGroup {
    const char *name; /* "F0-B0": first and last call */
    int64_t bytes;
    int nslot;
    int64_t *slot;
    int nof;
    int *of; /* by micro-batch: plan_micros of them */
} SlotGroup;

/* What a buffer must hold at a program's end: outputs, what lasts of it. */
typedef struct FinalValue {
    int buf, value;
} FinalValue;

/* What a program is for (programs.c). */
typedef enum ProgramKind {
#define PROGRAM(id, name, may, must) PG##id,
#include "programs.def"
    NPROGRAM
} ProgramKind;
extern const char *const programnames[];    /* their names */
ProgramKind program_kind(const char *name); /* NPROGRAM: none */
int program_trains(ProgramKind k);          /* a step, whichever */
int program_budgeted(ProgramKind k);        /* one, not its fallback */

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
    int64_t transient, bound; /* height and lower bound of non-persistent
                                     buffers that are not alive all the time */
    double rebuilt;           /* seconds of a run for what is made again */
    KeptBytes kept;           /* only while a plan without stages is compiled */
} Program;
int program_writes(const Program *prog, int buf); /* does it end with it? */
int phase_names(const Program *prog, const Phase *phase,
                int buf); /* any instr */
/* All rows in the order in which they run; of phases that repeat, one for each
 * micro-batch. A vec. */
ScheduleSlot *program_rows(Arena *a, const Program *prog);
/* Does an instruction run in this row of its phase? */
int runs_in(const Program *prog, const Instr *instr, const ScheduleSlot *row);
int program_streams(const Program *prog); /* are there others than compute? */
/* By instruction: the first of compute behind it, else ninstr; all writers. */
int *instrs_behind(Arena *a, const Program *prog);
int *writers_behind(Arena *a, const Program *prog, const char *writes);
const Phase *instr_phase(const Program *prog, int instr); /* or null */
/* Is it the last row of its phase, of a call in the table's order? */
int is_last_row(const Program *program, const ScheduleSlot *row);

#endif
