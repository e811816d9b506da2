/* record.h: the folder of a run: what it keeps, what may change when the run
 * goes on, steps that are repeated, and values that ranks must hold alike. A
 * part of runtime.h, which includes it; nobody else does. */
#ifndef PLEAT_RECORD_H
#define PLEAT_RECORD_H

/* ---- machine.c: what a program and its machine are ----------------------- */

/* A line each: program, formats, what it was built with, libraries (only those
 * in use, or all that are here). */
void put_version(Text *t, int all);
void put_machine(Text *t); /* host, system, processors, memory */

/* ---- config.c rundir.c resume.c identity.c: a run's folder --------------- */

/* config.c: a run's settings. */
typedef struct Settings {
    const char *path;
    int64_t format, from_step; /* steps done when this program began */
    Opts *given, *defaults;
} Settings;
void config_put(Text *t, const Plan *p, const char *dir, int64_t from_step);
/* Null: there is no such file. err() when it is not to be read. */
Settings *config_read(Arena *a, const char *path);
/* The place that a path means; ctx is unused. */
const char *path_absolute(Arena *a, const char *path, void *ctx);
/* A key's value with all paths absolute, so that two can be compared. */
const char *config_value(Arena *a, const char *key, const char *value);
/* rundir.c: the folder of a run, runs/<model> or key "name"; rank 0 writes. */
const char *run_dir(Arena *a, const Plan *p);
void run_lock(const char *dir); /* for this process; an error: another has it */
/* What a start adds to the plan and its keys. */
typedef struct RunRecord {
    int64_t step;               /* steps done before it */
    const char *machine, *data; /* texts; data: "" without any */
} RunRecord;
void run_make(const char *ckpt); /* the folder of checkpoints, those above */
/* x: any of the run; p: the plan of its whole batch. */
void run_folder(const Exec *x, const Plan *p, const char *dir, const RunArgs *a,
                const RunRecord *r);
void run_tuned(const Exec *x, Text *t); /* what was measured */
void run_file(const char *path, const char *s, size_t n); /* or err() */
void run_ranks(const Exec *x, const char *dir);           /* printed in part */
/* resume.c: may the key differ from the plan's? Is it the same as it was? */
int run_key(const char *key);
int key_same(const Settings *c, const Plan *p, const char *key);
/* A run that goes on stays in its folder: err() if the keys typed now name
 * another. */
void resume_name(const char *dir, const Opts *typed);
/* What changed, a line each; err() where it must not. */
void resume_settings(Text *t, const char *dir, const Plan *p);
void resume_machine(Text *t, const char *dir, const char *now);
void resume_data(Text *t, const char *dir, const char *now);
/* identity.c: lines about training ("train") or validation data. */
void put_data(Text *t, const char *what, const Data *d);

/* ---- repeat.c: a step of before, again ----------------------------------- */

/* The newest whole checkpoint of at most so many steps; null: there is none. */
char *ckpt_before(Arena *a, const char *dir, int64_t most, State *s);
/* From the state that x holds up to that step, printed beside what the folder
 * recorded; 1: they differ. */
/* err() when the run in `dir` has neither recorded nor saved so many steps. */
void need_step(Arena *a, const char *dir, int64_t step);
int repeat_to(Exec *x, Data *d, Log *log, const char *dir, State *s,
              int64_t to);

/* ---- replicas.c: values that ranks must hold alike ----------------------- */

/* Null, or which ranks do not, and a tensor: the same on all ranks. agreed: the
 * step after which they last did. */
const char *replicas_differ(Exec *x, int64_t step, int64_t agreed);
uint64_t values_hash(Exec *x); /* of all that lasts on the ranks here */

/* ---- spike.c: steps beyond train.skip_above ------------------------------ */

typedef struct Spike {
    int row;       /* such steps, one after another */
    int64_t saved; /* the save that the last one led back to */
    int times;     /* ... how often */
    int64_t back;  /* > 0: go back, and on from this sample */
} Spike;
/* "gnorm 31.2 is above 10": of the step that ran last; null: it is none. */
const char *spike_seen(Arena *a, const Exec *x);
/* err() where the run cannot go on: too many in a row, too often back. */
void spike_count(Spike *s, const char *what, int64_t step);
void spike_back(Spike *s, int64_t saved);

#endif
