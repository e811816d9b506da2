/* commands.h: the half of the front end that sees no model, only plans: the
 * command line, reports and drawings. */
#ifndef PLEAT_COMMANDS_H
#define PLEAT_COMMANDS_H

#include "../runtime/runtime.h"

/* Last place seen by the front end, in memory shared with the process that
 * watches it: what a message names when the front end dies. */
typedef struct Watch {
    char file[512];
    int line;
    int tracing;
} Watch;

/* ---- guard.c ------------------------------------------------------------- */

/* Run job(arg, out) in a forked process, under a CPU limit while it traces a
 * model; returns its exit status. What it writes to out goes to *text, or to
 * stdout without one. When it dies, one line says where the model file was. */
int guarded(int (*job)(void *arg, FILE *out), void *arg, Text *text);
/* While the next job with a text makes it, f(0), f(1) .. run in this process
 * until one returns 0. */
typedef int GuardBeside(int part);
void guard_beside(GuardBeside *f);
Watch *watch(void);
void watch_tracing(int on);

/* ---- report.c fold.c rank.c ---------------------------------------------- */

const char *bytes_text(int64_t v); /* "61.20 GiB" */
/* memory.c: of a stage's rank; what is said where a rank needs too much: null,
 * or by how much and what is largest. */
void report_stage_memory(FILE *out, const Plan *p, const Role *role);
const char *memory_wrong(const Plan *p);
void report_plan(FILE *out, const Plan *p);
void report_line(FILE *out, const char *name, const Plan *p);
void report_fold(FILE *out, const Plan *p);               /* fold.c */
void report_rank(FILE *out, const Plan *p, int64_t rank); /* rank.c */
void report_memory(FILE *out, const Plan *p);
/* The texts of the kernel called `name` and of those that instructions with
 * this label call, each below its calls. err(): there is none. */
void report_kernel(FILE *out, const Plan *p, const char *name);

/* "layers.*.attn.wq" of "layers.3.attn.wq", interned, and the first number. */
const char *pattern_of(const char *path, int64_t *number);

/* ---- draw.c snapshot.c --------------------------------------------------- */

char *draw_time(const Plan *p, size_t *len);
char *draw_snapshot(const Plan *p, size_t *len);
/* page_memory.c: by frame and micro-batch, 1 + the rows that first and last
 * name it; 0: none does. */
typedef struct RowSpan {
    int from, to;
} RowSpan;
RowSpan **frame_rows(Arena *a, const Role *role, int prog,
                     const ScheduleSlot *row);

/* ---- runlog.c: what a run has recorded ----------------------------------- */

typedef struct RunPoint {
    double step, value; /* value NaN: it was no number */
} RunPoint;
typedef struct RunSeries {
    const char *name; /* as in metrics.jsonl; "val_loss/wiki" of a named set */
    RunPoint *at;     /* vec, by step */
    double *list;     /* vec: of what is a list, the last one */
} RunSeries;
typedef struct RunSample {
    double step;
    const char *text;
} RunSample;
typedef struct RunLog {
    const char *dir;
    const Settings *settings; /* null: none are there */
    RunSeries *series;        /* vec */
    RunSample *sample;        /* vec */
} RunLog;
RunLog *run_log(Arena *a, const char *word); /* err(): it is no run's folder */
int64_t last_step(const RunLog *run);        /* the last one */
size_t series_length(const RunLog *run, const char *name);
/* Below: NaN where there is none. */
double series_at(const RunLog *run, const char *name, int64_t step);
double series_last(const RunLog *run, const char *name);
/* Of the steps after that one; count: how many, may be null. */
double series_median(const RunLog *run, const char *name, int64_t after,
                     size_t *count);

/* ---- page.c page_time.c page_memory.c watch.c: pages for a browser ------- */

typedef struct PageName { /* what a span, or an operation, is called */
    const char *text;
    int cls; /* page_class; -1: several */
    const char *line;
} PageName;
typedef struct PageSpan {
    double from, end; /* seconds of the step */
    int name;
} PageSpan;
typedef struct PagePhase { /* the first run of a phase */
    int row;               /* of PageStage.row; -1: it never runs */
    PageSpan *lane[NSTREAM];
} PagePhase;
typedef struct PageRow { /* a run of a phase; from, end: what it computes */
    ScheduleSlot slot;
    double from, end;
    int works; /* it computes */
} PageRow;
typedef struct PageStage {
    const Program *program;
    PageRow *row;             /* vec */
    const ScheduleSlot *last; /* while the step is walked through */
    PagePhase *phase;         /* by phase of program */
    double *when;             /* by instruction, when it first begins */
} PageStage;
typedef struct PageTime { /* a step of a plan */
    Arena *arena;
    const Plan *plan;
    void *at;           /* Table of names */
    PageName *name;     /* vec */
    const char **phase; /* vec: names of phases */
    PageStage *stage;
    double makespan, *busy; /* seconds; busy by stage */
} PageTime;
PageTime *page_time(Arena *a, const Plan *p);
int page_instr_name(PageTime *time, const Instr *instr);
/* The InstrClass of its kind, or behind these its KernelWork. */
enum { PAGECLASSES = CLASStransfer + NKERNELWORK };
int page_class(const Instr *instr);
/* The lanes of each stage as members of a JSON object. If there are too many
 * runs, neighbours below *shortest seconds are joined, of runs of phases those
 * below *coarse. */
char **page_lanes(PageTime *time, double *shortest, double *coarse);
/* A file of the model as the page names it: never an absolute path. */
const char *page_path(const Plan *p, const char *path);

typedef struct PageAlive { /* buffers of one name, alive at the peak */
    const char *name, *line;
    const char *file; /* of line; null: none */
    int number;
    BufClass cls;
    int64_t count, bytes;
} PageAlive;
typedef struct PageMemory {
    const char *text; /* members of an object: memory, alive */
    PageAlive *alive; /* vec, most bytes first */
} PageMemory;
PageMemory page_memory(Arena *a, const PageTime *time, int stage);

void put_page(Text *out, const char *s); /* a JSON string inside of a script */
void put_page_number(Text *out, const char *key, double x);
double page_peak(const Plan *p); /* FLOP/s of a rank's data sheet; 0: unknown */
void write_page(const char *path, const char *json);
void draw_plans(const char *path, const Plan *const *p, char *const *word,
                int n);

/* ---- pipeline.c ---------------------------------------------------------- */

/* What the stages of a plan do in a step; err() when it has no table. */
Schedule *plan_schedule(const Plan *p, const char *name);
char *draw_schedule(const Schedule *schedule);

/* ---- commands.c new.c: what rows of main.c's table run ------------------- */

typedef struct Args {
    const char *file; /* the first word that is no key */
    char **word;      /* vec: all such words */
    Opts *keys;
    const Plan *past; /* a run's, whose sources are the model; or null */
    Text ready;       /* its text, when it is executed as it is */
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
    int least, most;     /* words that are no keys */
    const char *tables;  /* of keys that it reads; null: it takes none */
    const char *options; /* letters and words it takes */
    const char *usage, *sentence, *example, *another;
} Command;

typedef struct Option {
    const char *name, *value; /* value: null when it takes none */
    const char *kind;         /* of keys.def; null: any text */
    char type;                /* t: a text, i: an integer, n: a number, */
    size_t at;                /*   there in Args */
    const char *sentence;
} Option;

extern const Command command_table[]; /* both end with a name that is null */
extern const Option option_table[];
const Command *find_command(const char *name); /* or err_usage() */
int takes_option(const Command *command, const char *name);
void help_command(const Command *command);
int print_version(void);
/* manual.c: a man page, completions for a shell */
void print_manual(void);
void print_completion(const char *shell);

/* filekind.c */
typedef enum FileKind { FILEmodel, FILEgraph, FILEplan } FileKind;
FileKind file_kind(const char *path);
void need_model(const char *path); /* err() if it is a plan */

/* diagnose.c: what `check` says as one JSON object; its exit status. */
int check_as_json(int (*check)(Args *args), Args *args);
/* again.c: the folder of a run, or null; a run by it. */
const char *folder_of(const char *file);
Plan *plan_at(const char *word); /* commands.c: of a file, or a run's folder */
Text take_folder(Args *args, const char *dir);
void share_settings(Plan *p, Text *over);
/* What -d why says of a plan, compiled anew from its sources. */
Text decisions(const Plan *p);
/* How a launcher started the ranks, where the command line does not say. */
void take_launch(Opts *opts, const Opts *given);
/* A run that goes on must have the model that it had. */
void check_model(const Args *args, const char *dir);
/* err() where args' model is not that of the plan of `dir`: hint ends it. */
void check_same_model(const Args *args, const Plan *past, const char *dir,
                      const char *hint);
void accept_other_plans(void); /* compile them anew */
int cmd_check(Args *a), cmd_compile(Args *a), cmd_run(Args *a);
int cmd_eval(Args *a), cmd_show(Args *a), cmd_generate(Args *a);
int cmd_bench(Args *a), cmd_search(Args *a);
int cmd_doctor(Args *a), cmd_ckpt(Args *a), cmd_new(Args *a);
int cmd_data(Args *a), cmd_import(Args *a), cmd_export(Args *a);
int cmd_logits(Args *a), cmd_help(Args *a);
int cmd_compare(Args *a), cmd_watch(Args *a);
/* Of "key=value ..." those that opts does not have. */
void set_keys(Opts *opts, const char *keys);
/* err() where an output would replace a file of another kind, or one that the
 * command line names; path may be null. */
void need_output(const Args *args, const char *path, OutputKind kind);
void write_all(const char *path, OutputKind kind, const char *s, size_t n);
const char *model_template(const char *name); /* new.c: one of models/ */
/* It, and what editors need beside it; err() where a file is there already. */
void write_model(const char *to, const char *text);

#endif
