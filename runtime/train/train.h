/* train.h: the commands that train: when steps run, what a run's folder keeps,
 * what may change when it goes on, samples of text. */
#ifndef PLEAT_TRAIN_H
#define PLEAT_TRAIN_H

#include "../ckpt/ckpt.h"
#include "../data/data.h"

/* ---- lr_schedule.c: learning rate, batch --------------------------------- */

double rate(const Opts *opts, int64_t step); /* of a step counted from 0 */
StepValues step_block(const Opts *opts, int64_t step);
/* The i-th smaller batch of train.ramp, and the sample before which its steps
 * begin; 0: there are i of them. err() when the key is not to be read. */
int64_t ramp(const Opts *opts, int i, int64_t *until);

/* ---- events.c: TensorBoard ----------------------------------------------- */

typedef struct Events Events;
Events *events_open(Arena *a, int fd); /* closes fd */
/* A null events writes nothing, nor does one whose file could not be written.
 * */
void event_scalar(Events *events, int64_t step, const char *tag, double v);
/* A histogram whose i-th bucket is element i, or several of more than 256. */
void event_vector(Events *events, int64_t step, const char *tag,
                  const double *v, int64_t n);
void event_text(Events *events, int64_t step, const char *tag, const char *s,
                size_t n); /* Markdown */
void events_close(Events *events);

/* ---- log.c: step lines and metrics.jsonl --------------------------------- */

typedef struct Log Log;
/* dir: the run's folder; null: lines only. */
Log *log_open(Arena *a, const Plan *p, const Exec *exec, const char *dir);
/* metrics.jsonl gets one line a step: lines of later steps than this one, from
 * which the run goes on, and torn lines move to metrics.undone.jsonl. */
void log_resume(Log *log, int64_t step);
void log_plan(Log *log, const Plan *p, const Exec *exec); /* from now on */
/* A step that was run. samples: seen with it; secs: of the step; host: those in
 * which this process worked for it, < 0: all of them. experts: bytes that a
 * rank sent to experts and back, < 0: not known; of several here, the mean. */
typedef struct Logged {
    int64_t step;
    ProgramKind program; /* that it was */
    int64_t samples;
    double lr, secs, host, experts;
    const double *alone; /* by rank: seconds in which it waited for no other;
                            null: not known */
} Logged;
void log_step(Log *log, const Exec *exec, const Logged *logged);
/* v: by result, as averaged. beside: more for the line, or "". */
/* set: the name of one of several validation sets; else null. */
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
    int64_t until; /* its last step begins before this sample */
} RampStage;

typedef struct RunArgs {
    const char *text;
    size_t len; /* the plan's bytes; null: print them */
    const RampStage *ramp;
    int nramp;        /* smallest first; then the plan itself */
    int64_t replay;   /* not 0: only reach this step again */
    int64_t begun;    /* ... with settings from this one on */
    int64_t compared; /* > 0: steps of precision.compare beside .. */
    Plan *other;      /* .. this plan, in the precision of .. */
    const char *other_name;
} RunArgs;
/* ---- machine.c: what a program and its machine are ----------------------- */

/* A line each: program, formats, what it was built with, libraries (only those
 * in use, or all that are here). */
void put_version(Text *out, int all);
void put_machine(Text *out); /* host, system, processors, memory */

/* ---- config.c rundir.c resume.c identity.c: a run's folder --------------- */

/* config.c: a run's settings. */
typedef struct Settings {
    const char *path;
    int64_t format, from_step; /* steps done when this program began */
    Opts *given, *defaults;
} Settings;
void config_put(Text *out, const Plan *p, const char *dir, int64_t from_step);
/* Null: there is no such file. err() when it is not to be read. */
Settings *config_read(Arena *a, const char *path);
/* The place that a path means; ctx is unused. */
const char *path_absolute(Arena *a, const char *path, void *ctx);
/* A key's value with all paths absolute, so that two can be compared. */
const char *config_value(Arena *a, const char *key, const char *value);
/* rundir.c: the folder of a run, runs/<model> or key "name"; rank 0 writes. */
const char *run_dir(Arena *a, const Plan *p);
/* What a start adds to the plan and its keys. */
typedef struct RunRecord {
    int64_t step;               /* steps done before it */
    const char *machine, *data; /* texts; data: "" without any */
} RunRecord;
/* The folders of a run and of its checkpoints, locked, without what killed
 * processes left there. */
void run_make(const char *dir, const char *ckpt);
/* exec: any of the run; p: the plan of its whole batch. */
void run_folder(const Exec *exec, const Plan *p, const char *dir,
                const RunArgs *args, const RunRecord *record);
void run_tuned(const Exec *exec, Text *out); /* what was measured */
void run_file(const char *path, const char *s, size_t n); /* or err() */
void run_ranks(const Exec *exec, const char *dir);        /* printed in part */
/* resume.c: may the key differ from the plan's? Is it the same as it was? */
int run_key(const char *key);
/* Are two values of a key the same, null where it is not set? "3e-4" and
 * "0.0003" are one number, paths to one file one path. */
int value_same(const char *key, const char *a, const char *b);
int key_same(const Settings *settings, const Plan *p, const char *key);
/* A run that goes on stays in its folder: err() if the keys typed now name
 * another. */
void resume_name(const char *dir, const Opts *typed);
/* What changed, a line each; err() where it must not. */
void resume_settings(Text *out, const char *dir, const Plan *p);
void resume_machine(Text *out, const char *dir, const char *now);
/* samples: read so far in the order of files; -1: in another order. */
void resume_data(Text *out, const char *dir, const char *now, int64_t samples);
/* identity.c: lines about training ("train") or validation data. */
void put_data(Text *out, const char *what, const Data *data);

/* ---- repeat.c: a step of before, again ----------------------------------- */

/* The newest whole checkpoint of at most so many steps; null: there is none. */
char *ckpt_before(Arena *a, const char *dir, int64_t most, State *state);
/* From the state that x holds up to that step, printed beside what the folder
 * recorded; 1: they differ. */
/* err() when the run in `dir` has neither recorded nor saved so many steps. */
void need_step(Arena *a, const char *dir, int64_t step);
int repeat_to(Exec *exec, Data *data, Log *log, const char *dir, State *state,
              int64_t to);

/* ---- replicas.c: values that ranks must hold alike ----------------------- */

/* Null, or which ranks do not, and a tensor: the same on all ranks. agreed: the
 * step after which they last did. */
const char *replicas_differ(Exec *exec, int64_t step, int64_t agreed);
uint64_t values_hash(Exec *exec); /* of all that lasts on the ranks here */

/* ---- stop.c: what ends a run before its last step ------------------------ */

void catch_signals(void);
int signalled(void);
double time_limit(const Opts *opts); /* of a run that begins now; monotonic() */

/* ---- spike.c: steps beyond train.skip_above ------------------------------ */

typedef struct Spike {
    int row;       /* such steps, one after another */
    int64_t saved; /* the save that the last one led back to */
    int times;     /* ... how often */
    int64_t back;  /* > 0: go back, and on from this sample */
} Spike;
/* "gnorm 31.2 is above 10": of the step that ran last; null: it is none. */
const char *spike_seen(Arena *a, const Exec *exec);
/* err() where the run cannot go on: too many in a row, too often back. */
void spike_count(Spike *spike, const char *what, int64_t step);
void spike_back(Spike *spike, int64_t saved);

/* ---- commands ------------------------------------------------------------ */

/* Train as the plan's keys say. The exit status; err() when something is
 * wrong. */
int run_plan(Plan *p, const RunArgs *args);
int compare_plan(Plan *p, const RunArgs *args); /* precision.compare */
/* Validation only, on the weights of `from`. */
int eval_plan(Plan *p);

typedef struct GenArgs {
    const char *prompt;
    int64_t n;          /* tokens to make */
    double temperature; /* 0: always the likeliest */
    int64_t topk;       /* 0: all */
    uint64_t seed;
    const char *choices, *perplexity; /* files of eval; or null */
} GenArgs;
int generate_plan(Plan *p, const GenArgs *args, FILE *out);
/* The topk (10) largest logits after the prompt. */
int logits_plan(Plan *p, const GenArgs *args, FILE *out);
/* score.c: the rows of what `eval` is asked, by the tokenizer of a plan; the
 * sizes of axes that fit them, to o: 1: compile anew for these; the results of
 * the model on them. */
typedef struct ScoreJob ScoreJob;
ScoreJob *score_open(const Plan *p, const GenArgs *args);
int score_sizes(const ScoreJob *job, const Plan *p, Opts *opts);
int score_plan(ScoreJob *job, Plan *p, FILE *out);
/* Samples while x trains, as train.sample_... say; err() when this fold cannot.
 * All processes call sample(); free() its text, n bytes; null: no memory. */
typedef struct Sampler Sampler;
Sampler *sampler_open(Arena *a, Exec *exec);
char *sample(Sampler *sampler, int64_t step, size_t *n);
/* Once before bench_instrs of several plans: compiles all their kernels, and
 * keeps the device open. */
void bench_prepare(Plan *const *plan, int n, Comm *comm);
/* Of the instructions of a step of p's first stage here: how often it runs, how
 * long once, in steps of `enough` seconds behind steps of `warm` seconds, by
 * the plan's prediction. Returns those of a whole step. chip: what ran it. */
typedef struct InstrSeconds {
    const Instr *instr;
    double runs, secs;
} InstrSeconds;
double bench_instrs(Plan *p, Comm *comm, double warm, double enough,
                    InstrSeconds **out, const char **chip);
/* Time `steps` steps on made-up tokens, step by step of the plan: bench.c. */
int bench_plan(Plan *p, int64_t steps, FILE *out);

#endif
