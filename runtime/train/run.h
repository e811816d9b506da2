/* run.h: a run: what start.c, loop.c and train.c share of it. */
#ifndef PLEAT_RUN_H
#define PLEAT_RUN_H

#include "train.h"

/* Exit statuses: an error after the first step has begun; steps are left. */
enum { FAILED = 3, STOPPED = 4 };

typedef struct PendingStep { /* a step whose results are not read yet */
    int64_t step;            /* from 0 */
    ProgramKind program;
    StepValues b;
    Feed f;
    int64_t first; /* sample */
} PendingStep;

typedef struct ValidSet {
    const char *name;
    Data *data;
} ValidSet;

typedef struct Train {
    Plan *plan;
    Arena *mem;
    Exec *x;
    Comm *comm;
    Data *train;
    ValidSet *valid; /* vec */
    Log *log;
    const char *dir, *ckpt; /* run folder, its checkpoints */
    State state;
    Saver *saver;
    int64_t saved;     /* step of the last checkpoint; -1: none */
    int unsaved;       /* the last save failed */
    int stopped;       /* by a signal or train.hours */
    int64_t fallbacks; /* steps whose rows came in rounds */
    int bad;           /* steps in a row without an update */
    Spike spike;
    int64_t agreed; /* after that step ranks held the same */
    int late;       /* may results be read a step late? */
    int nsent;
    PendingStep sent;
    double since, waited; /* when the step before was read; seconds */
    double among;         /* watch_waited() then */
    double traced;        /* exec_alone() of the step; < 0: it was not traced */
    double *alone;        /* by rank, of the step before; null: one process */
    int64_t moved;        /* comm->moved when the step began */
    double ends;          /* when train.hours are over */
    int64_t read;         /* steps read by this process */
    Sampler *sampler;     /* null: not asked for */
    const RunArgs *args;
    RunRecord record; /* rank 0's, of this start */
    Text changes;
    int grown; /* plans of train.ramp done */
} Train;

/* ---- start.c: before the first step -------------------------------------- */

/* A GPU failed in this step and perhaps in the next (gpu_fault.c); -1: no. */
int64_t failed_step(void);
int resumes(const Plan *p);
/* The folder of a run and its checkpoints; err() if another run is there. */
void name_folders(Train *train);
void show_memory(Train *train, int loud); /* to its folder; loud: printed too */
const char *describe_data(Train *train);  /* for the folder; "" without any */
/* Of a run that goes on: to train->changes what is not as it was, a line each.
 * By rank 0: its settings and data before anything is loaded or written, its
 * machine once libraries are open. */
void compare_past(Train *train, const Plan *p);
void compare_machine(Train *train, const Plan *p);
void need_loss(const Plan *p);      /* err() if it trains nothing */
void need_from(const Train *train); /* err() if `from` is no folder to read */
int is_past(Train *train); /* have all steps been done? Then it says so */
void compare_plans(Train *train,
                   const RunArgs *args); /* err() if ranks differ */
void open_valid(Train *train);           /* the data of validation */
void open_data(Train *train);            /* and of training */
void open_exec(Train *train);
/* Initial values, those of the last checkpoint, or of `from`. */
void start_values(Train *train, int resume);
void open_saver(Train *train);
void say_data(Train *train); /* each source of data, a line */
void say_products(
    Train *train); /* ranks that would differ in their last bits */

/* ---- loop.c: steps ------------------------------------------------------- */

void validate(Train *train);
/* A program launched for a step; late: its results are read after the next. */
void run_sent(Train *train, ProgramKind program, PendingStep *step, int late);
int64_t grows_at(const Train *train); /* the sample at which the batch grows */
/* Until the end, a signal, the last of train.hours, or a larger batch; 1: it
 * was the batch. */
int run_steps(Train *train);

#endif
