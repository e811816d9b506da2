/* time_model.h: predicted time and traffic of a plan */
#ifndef PLEAT_TIME_MODEL_H
#define PLEAT_TIME_MODEL_H

/* ---- time_model.c: predicted time ---------------------------------------- */

typedef struct Planned {
    double makespan;   /* seconds of a run of the program */
    double *busy;      /* [stage]: seconds not spent waiting */
    const char *stuck; /* null, or the instructions of a deadlock */
} Planned;
Planned plan_time(Arena *a, const Plan *p, ProgramKind k);
double plan_secs(const Plan *p, ProgramKind k); /* the makespan */
/* Start and end of an instruction in seconds of the program, in time order on
 * each stream of a stage. Receives and waits are not work: they are the gap
 * before the next instruction. */
typedef struct InstrSpan {
    int stage;
    const ScheduleSlot *row; /* a row of program_rows */
    const Instr *instr;
    double from, end;
} InstrSpan;
typedef void PlanWatch(void *context, const InstrSpan *s);
void plan_watch(const Plan *p, ProgramKind k, PlanWatch *watch, void *context);
/* Returns the makespan without the time of transfers and collectives. */
double plan_bare(const Plan *p, ProgramKind k);
int64_t plan_micros(const Plan *p, ProgramKind k); /* micro-batches of a rank */
int64_t phase_runs(const Program *prog, int phase); /* runs of a phase */
/* Returns the runs of an instruction of a phase. */
int64_t instr_runs(const Program *prog, int phase, const Instr *instr);
/* Returns the bytes that a rank sends to experts and back in a run. routed: for
 * the expected rows of routes, otherwise for the plan's blocks and gathers. */
double expert_bytes(const Program *prog, int routed);

#endif
