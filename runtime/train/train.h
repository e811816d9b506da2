/* train.h: commands that train: the loop, the run's folder, resuming, samples
 * of text. */
#ifndef PLEAT_TRAIN_H
#define PLEAT_TRAIN_H

#include "../ckpt/ckpt.h"
#include "../data/data.h"

/* ---- lr_schedule.c: learning rate, batch --------------------------------- */

double rate(const Opts *opts, int64_t step); /* step: counted from 0 */
StepValues step_block(const Exec *exec, int64_t step);
/* Returns smaller batch i of train.ramp and *until, the sample before which its
 * steps begin; 0: there are only i. Calls err() if the key is malformed. */
int64_t ramp(const Opts *opts, int i, int64_t *until);

/* ---- events.c: TensorBoard ----------------------------------------------- */

typedef struct Events Events;
Events *events_open(Arena *a, int fd); /* takes ownership of fd */
/* Null events, or events after a failed write, write nothing. */
void event_scalar(Events *events, int64_t step, const char *tag, double v);
/* Writes a histogram whose bucket i is element i; more than 256 elements share
 * buckets. */
void event_vector(Events *events, int64_t step, const char *tag,
                  const double *v, int64_t n);
void event_text(Events *events, int64_t step, const char *tag, const char *s,
                size_t n); /* s: Markdown of n bytes */
void events_close(Events *events);

/* ---- log.c: step lines and metrics.jsonl --------------------------------- */

typedef struct Log Log;
/* dir: the run's folder; null: only prints lines. */
Log *log_open(Arena *a, const Plan *p, const Exec *exec, const char *dir);
/* Keeps one line a step in metrics.jsonl: lines of steps after this one, from
 * which the run resumes, and torn lines move to metrics.undone.jsonl. */
void log_resume(Log *log, int64_t step);
void log_plan(Log *log, const Plan *p,
              const Exec *exec); /* plan of later steps */
/* A completed step. samples: seen so far; secs: seconds of the step; host:
 * seconds in which this process worked for it, < 0: all. experts: bytes that a
 * rank sent to experts and back, the mean over the ranks here, < 0: unknown. */
typedef struct Logged {
    int64_t step;
    ProgramKind program; /* executed program */
    int64_t samples;
    double lr, secs, host, experts;
    const double *alone; /* per rank: seconds without waits for other ranks;
                            null: unknown */
} Logged;
void log_step(Log *log, const Exec *exec, const Logged *logged);
/* Reports validation. v: mean of each result; beside: end of the line, or "";
 * set: name of one of several validation sets, otherwise null. */
void log_valid(Log *log, int64_t step, const char *set, const double *v,
               const char *beside);
void log_saved(Log *log, const Saved *saved);
void log_sample(Log *log, int64_t step, const char *s, size_t n);
void log_note(Log *log, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void log_close(Log *log);

/* ---- train.c generate.c: commands ---------------------------------------- */

/* A smaller batch at the start of a run (train.ramp), by the same model. */
typedef struct RampStage {
    Plan *plan;
    int64_t until; /* its last step starts before this sample */
} RampStage;

typedef struct RunArgs {
    const char *text; /* the plan's text */
    size_t len;       /* its bytes */
    const RampStage *ramp;
    int nramp;        /* smallest first; the plan itself follows */
    int64_t replay;   /* not 0: only repeats the steps up to this one */
    int64_t begun;    /* replay: step at which the settings began */
    int64_t compared; /* > 0: steps of precision.compare with .. */
    Plan *other;      /* .. this plan in the precision of .. */
    const char *other_name;
} RunArgs;
/* ---- machine.c: program and machine -------------------------------------- */

/* Appends lines: program, formats, compiler, libraries (those in use, or all
 * that are installed). */
void put_version(Text *out, int all);
void put_machine(Text *out); /* host, system, processors, memory */

/* ---- config.c rundir.c resume.c identity.c: a run's folder --------------- */

/* config.c: settings of a run. */
typedef struct Settings {
    const char *path;
    int64_t format, from_step; /* steps done when this program began */
    Opts *given, *defaults;
} Settings;
void config_put(Text *out, const Plan *p, const char *dir, int64_t from_step);
/* Returns null if there is no such file. Calls err() if it cannot be parsed. */
Settings *config_read(Arena *a, const char *path);
/* Returns the absolute path; ctx is unused. */
const char *path_absolute(Arena *a, const char *path, void *ctx);
/* Returns a key's value with absolute paths, so that two values can be
 * compared. */
const char *config_value(Arena *a, const char *key, const char *value);
/* rundir.c: returns the folder of a run, runs/<model> or key "name"; rank 0
 * writes it. */
const char *run_dir(Arena *a, const Plan *p);
/* Record of a start, beside the plan and its keys. */
typedef struct RunRecord {
    int64_t step;               /* steps completed before it */
    const char *machine, *data; /* texts; data: "" without any */
} RunRecord;
/* Creates and locks the folders of a run and of its checkpoints, and removes
 * temporary files of killed processes. */
void run_make(const char *dir, const char *ckpt);
/* Writes the folder's files. exec: any of the run; p: the whole batch's
 * plan. */
void run_folder(const Exec *exec, const Plan *p, const char *dir,
                const RunArgs *args, const RunRecord *record);
void run_tuned(const Exec *exec, Text *out); /* appends measured choices */
void run_file(const char *path, const char *s, size_t n); /* or err() */
void run_ranks(const Exec *exec, const char *dir);        /* printed in part */
/* resume.c: may the key differ from the plan's? */
int run_key(const char *key);
/* Are two values of a key the same, null where it is not set? "3e-4" and
 * "0.0003" are one number, paths to one file one path. */
int value_same(const char *key, const char *a, const char *b);
int key_same(const Settings *settings, const Plan *p, const char *key);
/* A resumed run stays in its folder: calls err() if the typed keys name
 * another. */
void resume_name(const char *dir, const Opts *typed);
/* Appends a line for each changed setting; err() if it must not change. */
void resume_settings(Text *out, const char *dir, const Plan *p);
void resume_machine(Text *out, const char *dir, const char *now);
/* Compares the data's identity. samples: read so far in file order; -1: another
 * order. */
void resume_data(Text *out, const char *dir, const char *now, int64_t samples);
/* identity.c: appends lines about training ("train") or validation data. */
void put_data(Text *out, const char *what, const Data *data);

/* ---- repeat.c: repeated steps -------------------------------------------- */

/* Returns the newest valid checkpoint of at most `most` steps; null: none. */
char *ckpt_before(Arena *a, const char *dir, int64_t most, State *state);
/* Calls err() if the run in `dir` has neither recorded nor saved this step. */
void need_step(Arena *a, const char *dir, int64_t step);
/* Runs steps from `state` up to step `to` and prints them beside the folder's
 * records. Returns 1 if they differ. */
int repeat_to(Exec *exec, Data *data, Log *log, const char *dir, State *state,
              int64_t to);

/* ---- replicas.c: comparison of replicas ---------------------------------- */

/* Returns null, or a line that names ranks that differ and a tensor, equal on
 * all ranks. agreed: last step after which they agreed. */
const char *replicas_differ(Exec *exec, int64_t step, int64_t agreed);
uint64_t
values_hash(Exec *exec); /* hash of persistent data of the ranks here */

/* ---- stop.c: early ends of a run ----------------------------------------- */

void catch_signals(void);
int signalled(void);
double time_limit(const Opts *opts); /* monotonic() time of a run's end */

/* ---- spike.c: steps beyond train.skip_above ------------------------------ */

typedef struct Spike {
    int row;       /* consecutive steps beyond the limit */
    int64_t saved; /* save to which the last return went */
    int times;     /* returns to that save */
    int64_t back;  /* > 0: return, and continue from this sample */
} Spike;
/* Returns "gnorm 31.2 is above 10" for the last step; null: it is no spike. */
const char *spike_seen(Arena *a, const Exec *exec);
/* Counts a spike. Calls err() after too many in a row or too many returns. */
void spike_count(Spike *spike, const char *what, int64_t step);
void spike_back(Spike *spike, int64_t saved);

/* ---- commands ------------------------------------------------------------ */

/* Trains by the plan's keys. Returns the exit status; failures call err(). */
int run_plan(Plan *p, const RunArgs *args);
int compare_plan(Plan *p, const RunArgs *args); /* precision.compare */
/* Prints the first value of a step, in the order of a, in which the plans
 * differ beyond rounding. Returns 1 if there is one. name: of each plan. */
int compare_first(Plan *a, Plan *b, char *const *name);
/* Validation only, on the weights of `from`. */
int eval_plan(Plan *p);

typedef struct GenArgs {
    const char *prompt;
    int64_t n;          /* tokens to generate */
    double temperature; /* 0: always the most likely token */
    int64_t topk;       /* 0: all */
    uint64_t seed;
    const char *choices, *perplexity; /* files of eval; or null */
} GenArgs;
int generate_plan(Plan *p, const GenArgs *args, FILE *out);
/* Prints the topk (default 10) largest logits after the prompt. */
int logits_plan(Plan *p, const GenArgs *args, FILE *out);
/* score.c: score_open tokenizes the files of `eval`; score_sizes sets axis
 * sizes in opts that fit and returns 1 if the model must be compiled again;
 * score_plan prints the model's results. */
typedef struct ScoreJob ScoreJob;
ScoreJob *score_open(const Plan *p, const GenArgs *args);
int score_sizes(const ScoreJob *job, const Plan *p, Opts *opts);
int score_plan(ScoreJob *job, Plan *p, FILE *out);
/* Samples during training by the keys train.sample_..; err() if this fold
 * cannot. All processes call sample(), whose text of n bytes the caller frees;
 * null: out of memory. */
typedef struct Sampler Sampler;
Sampler *sampler_open(Arena *a, Exec *exec);
char *sample(Sampler *sampler, int64_t step, size_t *n);
/* Called once before bench_instrs of several plans: compiles all their kernels
 * and keeps the device open. */
void bench_prepare(Plan *const *plan, int n, Comm *comm);
/* Measures each instruction of a step of p's first stage here: its executions
 * and seconds of one, in steps of `enough` seconds after `warm` seconds of
 * steps, by the plan's prediction. Returns the seconds of a whole step. chip:
 * name of the device's chip. */
typedef struct InstrSeconds {
    const Instr *instr;
    double runs, secs;
} InstrSeconds;
double bench_instrs(Plan *p, Comm *comm, double warm, double enough,
                    InstrSeconds **out, const char **chip);
/* bench.c: times `steps` steps on random tokens, instruction by instruction. */
int bench_plan(Plan *p, int64_t steps, FILE *out);

#endif
