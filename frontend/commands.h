/* commands.h: the part of the front end that has plans and no model: command
 * line, reports, drawings. */
#ifndef PLEAT_COMMANDS_H
#define PLEAT_COMMANDS_H

#include "../runtime/runtime.h"

/* Current place of the front end, in memory shared with its parent process,
 * which names it if the front end dies. */
typedef struct Watch {
    char file[512];
    int line;
    int tracing;
} Watch;

/* ---- guard.c ------------------------------------------------------------- */

/* Runs job(arg, out) in a forked process, with a CPU limit while it traces a
 * model. Returns its exit status. Its output goes to *text, or to stdout if
 * text is null. If it dies, a line names the place in the model file. */
int guarded(int (*job)(void *arg, FILE *out), void *arg, Text *text);
/* Registers f: while the next job with a text runs, f(0), f(1) .. run in this
 * process until one returns 0. */
typedef int GuardBeside(int part);
void guard_beside(GuardBeside *f);
Watch *watch(void);
void watch_tracing(int on);

/* ---- report.c fold.c rank.c ---------------------------------------------- */

const char *bytes_text(int64_t v); /* returns "61.20 GiB" */
/* memory.c: report of a stage's rank; memory_wrong returns null, or a text
 * with the excess and the largest buffers. */
void report_stage_memory(FILE *out, const Plan *p, const Role *role);
const char *memory_wrong(const Plan *p);
void report_plan(FILE *out, const Plan *p);
void report_line(FILE *out, const char *name, const Plan *p);
void report_fold(FILE *out, const Plan *p);               /* fold.c */
void report_rank(FILE *out, const Plan *p, int64_t rank); /* rank.c */
void report_memory(FILE *out, const Plan *p);
/* Prints the texts of the kernel `name` and of kernels called by instructions
 * with this label, each below its calls. Calls err() if there is none. */
void report_kernel(FILE *out, const Plan *p, const char *name);

/* Returns "layers.*.attn.wq" for "layers.3.attn.wq", interned, and the first
 * number. */
const char *pattern_of(const char *path, int64_t *number);

/* ---- draw.c snapshot.c --------------------------------------------------- */

char *draw_time(const Plan *p, size_t *len);
char *draw_snapshot(const Plan *p, size_t *len);
/* page_memory.c: [frame][micro-batch]: 1 + first and last row that name it; 0:
 * none. */
typedef struct RowSpan {
    int from, to;
} RowSpan;
RowSpan **frame_rows(Arena *a, const Role *role, int prog,
                     const ScheduleSlot *row);

/* ---- runlog.c: records of a run ------------------------------------------ */

typedef struct RunPoint {
    double step, value; /* value NaN: not a number */
} RunPoint;
typedef struct RunSeries {
    const char *name; /* key of metrics.jsonl; "val_loss/wiki" of a named set */
    RunPoint *at;     /* vec, ordered by step */
    double *list;     /* vec: the last value that is a list */
} RunSeries;
typedef struct RunSample {
    double step;
    const char *text;
} RunSample;
typedef struct RunLog {
    const char *dir;
    const Settings *settings; /* null: none */
    RunSeries *series;        /* vec */
    RunSample *sample;        /* vec */
} RunLog;
RunLog *run_log(Arena *a,
                const char *word);    /* err() if it is no run's folder */
int64_t last_step(const RunLog *run); /* last recorded step */
size_t series_length(const RunLog *run, const char *name);
/* These return NaN if there is no value. */
double series_at(const RunLog *run, const char *name, int64_t step);
double series_last(const RunLog *run, const char *name);
/* Median over the steps after `after`; *count: their number, may be null. */
double series_median(const RunLog *run, const char *name, int64_t after,
                     size_t *count);

/* ---- page.c page_time.c page_memory.c watch.c: pages for a browser ------- */

typedef struct PageName { /* name of a span or an operation */
    const char *text;
    int cls; /* page_class; -1: several */
    const char *line;
} PageName;
typedef struct PageSpan {
    double from, end; /* seconds of the step */
    int name;
} PageSpan;
typedef struct PagePhase { /* the first run of a phase */
    int row;               /* index in PageStage.row; -1: it never runs */
    PageSpan *lane[NSTREAM];
} PagePhase;
typedef struct PageRow { /* a run of a phase; from, end: its computation */
    ScheduleSlot slot;
    double from, end;
    int works; /* does it compute? */
} PageRow;
typedef struct PageStage {
    const Program *program;
    PageRow *row;             /* vec */
    const ScheduleSlot *last; /* last slot of the walk through the step */
    PagePhase *phase;         /* [phase of program] */
    double *when;             /* [instruction]: its first start */
} PageStage;
typedef struct PageTime { /* a step of a plan */
    Arena *arena;
    const Plan *plan;
    void *at;           /* Table: name -> index */
    PageName *name;     /* vec */
    const char **phase; /* vec: names of phases */
    PageStage *stage;
    double makespan, *busy; /* seconds; busy: per stage */
} PageTime;
PageTime *page_time(Arena *a, const Plan *p);
int page_instr_name(PageTime *time, const Instr *instr);
/* Class of a span: the InstrClass of its kind, or its KernelWork after
 * these. */
enum { PAGECLASSES = CLASStransfer + NKERNELWORK };
int page_class(const Instr *instr);
/* Returns the lanes of each stage as members of a JSON object. If there are too
 * many spans, neighbours below *shortest seconds are joined, and runs of phases
 * below *coarse. */
char **page_lanes(PageTime *time, double *shortest, double *coarse);
/* Returns the page's name of a model file: never an absolute path. */
const char *page_path(const Plan *p, const char *path);

typedef struct PageAlive { /* buffers of one name, alive at the peak */
    const char *name, *line;
    const char *file; /* file of the line; null: none */
    int number;
    BufClass cls;
    int64_t count, bytes;
} PageAlive;
typedef struct PageMemory {
    const char *text; /* members of an object: memory, alive */
    PageAlive *alive; /* vec, most bytes first */
} PageMemory;
PageMemory page_memory(Arena *a, const PageTime *time, int stage);

void put_page(Text *out, const char *s); /* a JSON string inside a script */
void put_page_number(Text *out, const char *key, double x);
double page_peak(const Plan *p); /* FLOP/s of a rank's data sheet; 0: unknown */
void write_page(const char *path, const char *json);
void draw_plans(const char *path, const Plan *const *p, char *const *word,
                int n);

/* ---- pipeline.c ---------------------------------------------------------- */

/* Returns the schedule of a plan's stages; err() if it has no table. */
Schedule *plan_schedule(const Plan *p, const char *name);
char *draw_schedule(const Schedule *schedule);

/* ---- commands.c new.c: commands ------------------------------------------ */

typedef struct Args {
    const char *file; /* first word that is not a key */
    char **word;      /* vec: all such words */
    Opts *keys;
    const Plan *past; /* plan of a run whose sources are the model; or null */
    Text ready;       /* its text, if it is executed unchanged */
    const char *out, *dump, *stop, *prog, *prompt, *memory, *html, *trace;
    const char *schedule, *csv, *fold, *json, *dot, *choices, *perplexity;
    const char *snapshot, *calibrate, *raw, *kernel, *least, *first;
    double temperature, seconds, every, within;
    int again;             /* another plan of the run was made */
    int runs;              /* the plan is for a run that keeps a log */
    int64_t n, topk, rank; /* rank -1: not asked for */
    int64_t replay, begun; /* a step from 1; 0: none. Its settings' first */
} Args;

/* ---- main.c help.c: the rows of commands.def ----------------------------- */

typedef struct Command {
    const char *name;
    int (*run)(Args *a);
    int least, most;     /* number of words that are not keys */
    const char *tables;  /* tables of keys that it reads; null: none */
    const char *options; /* its options: letters and words */
    const char *usage, *sentence, *example, *another;
} Command;

typedef struct Option {
    const char *name, *value; /* value: null if it has none */
    const char *kind;         /* kind of keys.def; null: any text */
    char type;                /* t: a text, i: an integer, n: a number, */
    size_t at;                /*   stored at this offset of Args */
    const char *sentence;
} Option;

extern const Command command_table[]; /* both end with a name that is null */
extern const Option option_table[];
const Command *find_command(const char *name); /* or err_usage() */
int takes_option(const Command *command, const char *name);
void help_command(const Command *command);
int print_version(void);
/* manual.c: prints a man page, completions for a shell */
void print_manual(void);
void print_completion(const char *shell);

/* filekind.c */
typedef enum FileKind { FILEmodel, FILEgraph, FILEplan } FileKind;
FileKind file_kind(const char *path);
void need_model(const char *path); /* err() if it is a plan */

/* diagnose.c: prints the result of `check` as one JSON object. Returns its exit
 * status. */
int check_as_json(int (*check)(Args *args), Args *args);
/* again.c: folder_of returns the folder of a run, or null. */
const char *folder_of(const char *file);
Plan *
plan_at(const char *word); /* commands.c: plan of a file or a run's folder */
Text take_folder(Args *args, const char *dir);
void share_settings(Plan *p, Text *over);
/* Returns the output of -d why for a plan, which is compiled again from its
 * sources. */
Text decisions(const Plan *p);
/* Sets keys of the launch that the command line does not have. */
void take_launch(Opts *opts, const Opts *given);
/* Calls err() if the model of a resumed run has changed. */
void check_model(const Args *args, const char *dir);
/* Calls err() if args' model is not that of the plan of `dir`; hint: end of the
 * message. */
void check_same_model(const Args *args, const Plan *past, const char *dir,
                      const char *hint);
void accept_other_plans(void); /* plans of other formats are compiled again */
int cmd_check(Args *a), cmd_compile(Args *a), cmd_run(Args *a);
int cmd_eval(Args *a), cmd_show(Args *a), cmd_generate(Args *a);
int cmd_bench(Args *a), cmd_search(Args *a);
int cmd_doctor(Args *a), cmd_ckpt(Args *a), cmd_new(Args *a);
int cmd_data(Args *a), cmd_import(Args *a), cmd_export(Args *a);
int cmd_logits(Args *a), cmd_help(Args *a);
int cmd_compare(Args *a), cmd_watch(Args *a);
/* Sets the keys of "key=value ..." that opts lacks. */
void set_keys(Opts *opts, const char *keys);
/* Calls err() if an output would replace a file of another kind, or one that
 * the command line names; path may be null. */
void need_output(const Args *args, const char *path, OutputKind kind);
void write_all(const char *path, OutputKind kind, const char *s, size_t n);
const char *model_template(const char *name); /* new.c: a model of models/ */
/* Writes a model and the files that editors need beside it; err() if one
 * exists. */
void write_model(const char *to, const char *text);

#endif
