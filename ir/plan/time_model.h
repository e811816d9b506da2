/* time_model.h: predicted time and traffic of a plan */
#ifndef PLEAT_TIME_MODEL_H
#define PLEAT_TIME_MODEL_H

/* ---- time_model.c: how long a plan takes, predicted ---------------------- */

typedef struct Planned {
    double makespan;   /* seconds of one run of the program */
    double *busy;      /* by stage: of them not spent waiting */
    const char *stuck; /* null, or which instructions wait for each other */
} Planned;
Planned plan_time(Arena *a, const Plan *p, ProgramKind k);
double plan_secs(const Plan *p, ProgramKind k); /* the makespan */
/* When each instruction of each row runs, in seconds of the program; in time
 * order on each stream of a stage. Receives and waits are no work: they show as
 * the gap before what comes next. */
typedef struct InstrSpan {
    int stage;
    const ScheduleSlot *row; /* of program_rows */
    const Instr *instr;
    double from, end;
} InstrSpan;
typedef void PlanWatch(void *context, const InstrSpan *s);
void plan_watch(const Plan *p, ProgramKind k, PlanWatch *watch, void *context);
/* If transfers and collectives took no time. */
double plan_bare(const Plan *p, ProgramKind k);
int64_t plan_micros(const Plan *p, ProgramKind k);  /* that a rank runs */
int64_t phase_runs(const Program *prog, int phase); /* how often it runs*/
/* ... an instruction of it. */
int64_t instr_runs(const Program *prog, int phase, const Instr *instr);
/* Bytes that a rank sends to experts and back in a run: as many rows as routes
 * are expected to choose, else the plan's blocks and gathers. */
double expert_bytes(const Program *prog, int routed);

#endif
