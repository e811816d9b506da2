/* run.h: state of a run, shared by start.c, loop.c and train.c. */
#ifndef PLEAT_RUN_H
#define PLEAT_RUN_H

#include "train.h"

/* Exit statuses: error after the first step has started; steps are left. */
enum { FAILED = 3, STOPPED = 4 };

typedef struct PendingStep { /* a step whose results are not read yet */
    int64_t step;            /* counted from 0 */
    ProgramKind program;
    StepValues b;
    Feed f;
    int64_t first; /* its first sample */
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
    const char *dir, *ckpt; /* folders of the run and its checkpoints */
    State state;
    Saver *saver;
    int64_t saved;     /* step of the last checkpoint; -1: none */
    int unsaved;       /* the last save failed */
    int stopped;       /* stopped by a signal or train.hours */
    int64_t fallbacks; /* steps whose rows were sent in rounds */
    int bad;           /* consecutive steps without an update */
    Spike spike;
    int64_t agreed; /* last step after which replicas agreed */
    int late;       /* may results be read a step late? */
    int nsent;
    PendingStep sent;
    double since, waited; /* time at which the last step was read; its waits */
    double among;         /* watch_waited() at that time */
    double traced;        /* exec_alone() of the step; < 0: not traced */
    double *alone;        /* per rank, of the last step; null: one process */
    int64_t moved;        /* comm->moved at the start of the step */
    double ends;          /* time at which train.hours are over */
    int64_t read;         /* steps read by this process */
    Sampler *sampler;     /* null: not asked for */
    const RunArgs *args;
    RunRecord record; /* rank 0's record of this start */
    Text changes;
    int grown; /* completed plans of train.ramp */
} Train;

/* ---- start.c: before the first step -------------------------------------- */

/* Returns the step in which, or after which, a GPU failed (gpu_fault.c); -1:
 * none. */
int64_t failed_step(void);
int resumes(const Plan *p);
/* Names the folders of a run and its checkpoints; err() if another run is
 * there. */
void name_folders(Train *train);
void show_memory(Train *train, int loud); /* writes a file; loud: prints too */
const char *describe_data(Train *train);  /* data's identity; "" without data */
/* Rank 0 of a resumed run: appends differences to train->changes, a line each:
 * of settings and data before anything is loaded or written, of the machine
 * once libraries are open. */
void compare_past(Train *train, const Plan *p);
void compare_machine(Train *train, const Plan *p);
void need_loss(const Plan *p);      /* err() if p has no loss */
void need_from(const Train *train); /* err() if `from` cannot be read */
int is_past(Train *train);          /* are all steps done? Prints a line then */
void compare_plans(Train *train,
                   const RunArgs *args); /* err() if ranks differ */
void open_valid(Train *train);           /* the data of validation */
void open_data(Train *train);            /* the data of training */
void open_exec(Train *train);
/* Sets initial values, those of the last checkpoint, or those of `from`. */
void start_values(Train *train, int resume);
void open_saver(Train *train);
void say_data(Train *train); /* prints a line for each source of data */
void say_products(
    Train *train); /* warns if ranks would differ in their last bits */

/* ---- loop.c: steps ------------------------------------------------------- */

void validate(Train *train);
/* Launches a program for a step; late: its results are read after the next
 * one. */
void run_sent(Train *train, ProgramKind program, PendingStep *step, int late);
int64_t grows_at(const Train *train); /* sample at which the batch grows */
/* Runs steps until the end, a signal, the end of train.hours, or a larger
 * batch. Returns 1 for a larger batch. */
int run_steps(Train *train);

#endif
