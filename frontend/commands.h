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
Watch *watch(void);
void watch_tracing(int on);

/* ---- report.c fold.c rank.c ---------------------------------------------- */

const char *bytes_text(int64_t v); /* "61.20 GiB" */
/* memory.c: of a stage's rank; what is said where a rank needs too much: null,
 * or by how much and what is largest. */
void report_stage_memory(FILE *out, const Plan *p, const Role *r);
const char *memory_wrong(const Plan *p);
void report_plan(FILE *out, const Plan *p);
void report_line(FILE *out, const char *name, const Plan *p);
void report_fold(FILE *out, const Plan *p);               /* fold.c */
void report_rank(FILE *out, const Plan *p, int64_t rank); /* rank.c */
void report_memory(FILE *out, const Plan *p);

/* ---- draw.c -------------------------------------------------------------- */

char *draw_memory(const Plan *p, const char *summary, size_t *len);
char *draw_time(const Plan *p, size_t *len);

/* ---- pipeline.c ---------------------------------------------------------- */

/* What the stages of a plan do in a step; err() when it has no table. */
Schedule *plan_schedule(const Plan *p, const char *name);
char *draw_schedule(const Schedule *s);

/* ---- commands.c new.c: what rows of main.c's table run ------------------- */

typedef struct Args {
    const char *file; /* the first word that is no key */
    char **word;      /* vec: all such words */
    Opts *keys;
    const Plan *past; /* a run's, whose sources are the model; or null */
    Text ready;       /* its text, when it is executed as it is */
    const char *out, *dump, *stop, *prog, *prompt, *memory, *html, *trace;
    const char *schedule, *csv, *fold, *json, *dot, *choices, *perplexity;
    double temperature, seconds;
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
int takes_option(const Command *c, const char *name);
void help_command(const Command *c);
int print_version(void);
/* manual.c: a man page, completions for a shell */
void print_manual(void);
void print_completion(const char *shell);

/* filekind.c */
typedef enum FileKind { FILEmodel, FILEgraph, FILEplan } FileKind;
FileKind file_kind(const char *path);

/* diagnose.c: what `check` says as one JSON object; its exit status. */
int check_as_json(int (*check)(Args *a), Args *a);
/* again.c: the folder of a run, or null; a run by it. */
const char *folder_of(const char *file);
Text take_folder(Args *a, const char *dir);
void share_settings(Plan *p, Text *over);
/* How a launcher started the ranks, where the command line does not say. */
void take_launch(Opts *o, const Opts *given);
/* A run that goes on must have the model that it had. */
void check_model(const Args *a, const char *dir);
void accept_other_plans(void); /* compile them anew */
int cmd_check(Args *a), cmd_compile(Args *a), cmd_run(Args *a);
int cmd_eval(Args *a), cmd_show(Args *a), cmd_generate(Args *a);
int cmd_bench(Args *a), cmd_search(Args *a);
int cmd_doctor(Args *a), cmd_ckpt(Args *a), cmd_new(Args *a);
int cmd_data(Args *a), cmd_import(Args *a), cmd_export(Args *a);
int cmd_logits(Args *a), cmd_help(Args *a);
int cmd_compare(Args *a);
void write_all(const char *path, const char *s, size_t n);
const char *model_template(const char *name); /* new.c: one of models/ */
/* It, and what editors need beside it; err() where a file is there already. */
void write_model(const char *to, const char *text);

#endif
