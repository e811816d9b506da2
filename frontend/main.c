/* main.c: the command line. Commands and options are rows; `pleat -h` prints
 * them. Keys set what fold{}, train{}, data{}, precision{} set in the file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

typedef struct Command {
    const char *name;
    int (*run)(Args *a);
    int least, most;     /* words that are no keys */
    int keys;            /* does it take any? */
    const char *options; /* letters and words it takes */
    const char *usage, *sentence;
} Command;

typedef struct Option {
    const char *name, *value; /* value: null when it takes none */
    const char *kind;         /* of keys.def; null: any text */
    char type;                /* t: a text, i: an integer, n: a number, */
    size_t at;                /*   there in Args */
    const char *sentence;
} Option;

/* ---- tables -------------------------------------------------------------- */

static int help(Args *a);

/* clang-format off */
static const Command commands[] = {
    { "check", cmd_check, 1, 1, 1, "json dot", "model.lua [key=value ...]",
      "shapes, parameters, FLOPs" },
    { "compile", cmd_compile, 1, 1, 1, "o d x p dot", "model.lua [key=value ...]",
      "make a plan; needs no GPU" },
    { "run", cmd_run, 1, 1, 1, "replay", "model.lua|m.plan|runs/name [key=value ...]",
      "train; under mpirun on N ranks" },
    { "eval", cmd_eval, 1, 1, 1, "", "model.lua|m.plan from=ckpt",
      "validation loss" },
    { "bench", cmd_bench, 1, 1, 1, "", "model.lua|m.plan [key=value ...]",
      "time, bytes and FLOPs of every instruction, against what was planned" },
    { "search", cmd_search, 1, 1, 1, "json seconds", "model.lua cluster=h100x64 [key=value ...]",
      "the fastest fold of a cluster, and why others are slower; keys pin" },
    { "show", cmd_show, 1, 1, 1, "rank memory html trace schedule csv fold",
      "m.plan|runs/name",
      "what a plan does and needs" },
    { "generate", cmd_generate, 1, 1, 1, "prompt n temperature topk",
      "runs/name|model.lua [from=folder]", "text from a trained model" },
    { "logits", cmd_logits, 1, 1, 1, "prompt topk",
      "runs/name|model.lua [from=folder]", "the likeliest tokens after a prompt" },
    { "import", cmd_import, 1, 2, 0, "", "folder [my.lua]",
      "a model file for a Hugging Face folder, by its config.json" },
    { "export", cmd_export, 2, 5, 0, "", "runs/name folder [bf16] [fused] [5GB]",
      "a Hugging Face folder of a run: weights, config.json, tokenizer" },
    { "ckpt", cmd_ckpt, 0, 9, 0, "", "ls|verify|diff|export-hf|import-hf",
      "look at checkpoints, convert them" },
    { "data", cmd_data, 0, 999, 1, "o", "tokenize|inspect|blend FILE ...",
      "tokens of texts; what a data file holds, what a blend gives" },
    { "new", cmd_new, 2, 2, 0, "", "mixtral my.lua",
      "start a model file from one of ours" },
    { "doctor", cmd_doctor, 0, 0, 0, "", "", "what this machine has" },
    { "help", help, 0, 1, 0, "", "[command|keys|machines|passes|formats]", "this text, or all of them" },
};
/* clang-format on */

enum { NCOMMAND = sizeof commands / sizeof *commands };

/* clang-format off */
#define TEXT(x)    't', offsetof(Args, x)
#define INTEGER(x) 'i', offsetof(Args, x)
#define NUMBER(x)  'n', offsetof(Args, x)
static const Option options[] = {
    { "o", "file", NULL, TEXT(out), "where the plan goes" },
    { "d", "pass", NULL, TEXT(dump), "print the graph after a pass (fuse, sched: the kernels): a name, all, +all, why" },
    { "x", "pass", NULL, TEXT(stop), "stop after a pass and print its graph, which compiles on; streams, alloc and emit have none" },
    { "p", "program", NULL, TEXT(prog), "the program of -d and -x: step, eval, forward, init" },
    { "dot", "file", NULL, TEXT(dot), "the model, or what -d shows (place of -p eval), for Graphviz" },
    { "json", NULL, NULL, TEXT(json), "messages and numbers as one JSON object, for editors" },
    { "rank", "r", "int 0", INTEGER(rank), "what one rank is, holds and does" },
    { "memory", NULL, NULL, TEXT(memory), "every buffer: place, size, life, line" },
    { "html", "file", NULL, TEXT(html), "write a page that draws the memory" },
    { "trace", "file", NULL, TEXT(trace), "write its predicted time for Chrome or Perfetto" },
    { "schedule", NULL, NULL, TEXT(schedule), "who does what when in a pipeline, as a table" },
    { "fold", NULL, NULL, TEXT(fold), "both grids, groups, stages; of a model too, with keys" },
    { "csv", "file", NULL, TEXT(csv), "write that table as PyTorch's pipelining does" },
    { "seconds", "s", "num 0", NUMBER(seconds), "how long to search; 0: until no point is left (10)" },
    { "replay", "step", "int 1", INTEGER(replay), "reach this step of a run again, compare it; writes nothing" },
    { "prompt", "text", NULL, TEXT(prompt), "what the text starts with" },
    { "n", "tokens", "int 1", INTEGER(n), "how many to make (200)" },
    { "temperature", "t", "num 0", NUMBER(temperature), "0: always the likeliest (0.8)" },
    { "topk", "k", "int 1", INTEGER(topk), "choose among the k likeliest only" },
};
/* clang-format on */

enum { NOPTION = sizeof options / sizeof *options };

static int has_option(const Command *c, const char *name)
{
    size_t n = strlen(name);

    for (const char *s = c->options; *(s += strspn(s, " "));
         s += strcspn(s, " "))
        if (!strncmp(s, name, n) && (!s[n] || s[n] == ' '))
            return 1;
    return 0;
}

static void print_options(const Command *c)
{
    for (int i = 0; i < NOPTION; i++)
        if (!c || has_option(c, options[i].name))
            printf("  %s%s %-*s %s\n", options[i].name[1] ? "--" : "-",
                   options[i].name,
                   (int)(options[i].name[1] ? 15 : 16) -
                       (int)strlen(options[i].name),
                   options[i].value ? options[i].value : "",
                   options[i].sentence);
}

static void print_command(const Command *c)
{
    printf("usage: pleat %s %s\n%s\n", c->name, c->usage, c->sentence);
    print_options(c);
}

static void usage(void)
{
    fputs("usage: pleat command file [key=value ...] [options]\n\n", stdout);
    for (int i = 0; i < NCOMMAND; i++)
        printf("  %-8s %-34s %s\n", commands[i].name, commands[i].usage,
               commands[i].sentence);
    fputc('\n', stdout);
    print_options(NULL);
    fputs("\nKeys: pleat help keys. Passes: pleat help passes. Version: pleat "
          "--version\n",
          stdout);
}

/* Is any value of it built? Those that are stand behind the slash. */
static int key_built(const KeyInfo *k)
{
    const char *slash = strrchr(k->kind, '/');

    return !slash || slash[1];
}

static void print_keys(void)
{
    for (const KeyInfo *k = keytab; k->name; k++)
        if (key_built(k))
            printf("%s%s%s=%-*s %-28s %s\n", k->table, *k->table ? "." : "",
                   k->name, (int)(22 - strlen(k->table) - strlen(k->name)),
                   k->dflt ? k->dflt : "", k->kind, k->doc);
}

static void print_formats(void)
{
    for (int i = 0; i < nformat; i++)
        printf("%-10s %d  since %s  %s\n", formattab[i].name,
               formattab[i].number, formattab[i].since, formattab[i].what);
}

static int print_version(void)
{
    Text out = { .arena = forever };

    put_version(&out, 1);
    printf("%s%-10s %s (%s)\n", out.s, "lua", LUA_RELEASE, "model files");
    return 0;
}

static _Noreturn void wrong(const Command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static _Noreturn void wrong(const Command *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *what = vstrf(forever, fmt, ap);
    va_end(ap);
    if (!c)
        err_usage("%s; pleat -h lists all", what);
    err_usage("%s\nusage: pleat %s %s", what, c->name, c->usage);
}

static const Command *find_command(const char *name)
{
    const char *names[NCOMMAND];

    for (int i = 0; i < NCOMMAND; i++) {
        names[i] = commands[i].name;
        if (!strcmp(names[i], name))
            return &commands[i];
    }
    wrong(NULL, "unknown command '%s'%s", name,
          did_you_mean(name, names, NCOMMAND));
}

static int help(Args *a)
{
    if (!a->file) {
        usage();
    } else if (!strcmp(a->file, "keys")) {
        print_keys();
    } else if (!strcmp(a->file, "formats")) {
        print_formats();
    } else if (!strcmp(a->file, "machines")) {
        Text out = { .arena = forever };
        put_machines(&out);
        fputs(out.s, stdout);
    } else if (!strcmp(a->file, "passes")) {
        for (int i = 0; i < npass; i++)
            printf("%-16s %s\n", passtab[i].name, passtab[i].sentence);
    } else {
        print_command(find_command(a->file));
    }
    return 0;
}

/* ---- the command line ---------------------------------------------------- */

static void set_option(Args *a, const Option *o, const char *value)
{
    void *at = (char *)a + o->at;

    if (o->type == 't')
        *(const char **)at = value;
    else if (o->type == 'i')
        *(int64_t *)at = strtoll(value, NULL, 10);
    else
        *(double *)at = strtod(value, NULL);
}

/* "-o file", "-dwhy", "--prompt text"; returns how many words it took. */
static int option(Args *a, const Command *c, char **w)
{
    int words = w[0][1] == '-';
    const char *name = w[0] + 1 + words, *value = NULL;

    for (int i = 0; i < NOPTION; i++) {
        const Option *o = &options[i];
        size_t n = strlen(o->name);
        int same = words ? !strcmp(o->name, name) && n > 1
                         : n == 1 && o->name[0] == name[0];
        if (!same || !has_option(c, o->name))
            continue;
        if (!words && name[1])
            value = name + 1;
        else if (o->value)
            value = w[1];
        if (o->value && !value)
            wrong(c, "option '%s' needs a value", w[0]);
        if (o->kind)
            kind_check(forever,
                       strf(forever, "%.*s%s", 1 + words, w[0], o->name),
                       o->kind, value, NULL);
        set_option(a, o, o->value ? value : "1");
        return value && value == w[1] ? 2 : 1;
    }
    wrong(c, "unknown option '%s'", w[0]);
}

static int is_key(const char *s)
{
    size_t n = strcspn(s, "=/");

    return n > 0 && s[n] == '=';
}

static int is_data_key(const char *key)
{
    for (const KeyInfo *k = keytab; k->name; k++)
        if (!strcmp(k->table, "data") && !strcmp(k->name, key))
            return 1;
    return 0;
}

/* `data`'s keys are most of its table, and need not say so. */
static void set_key(Args *a, const Command *c, const char *s)
{
    size_t n = strcspn(s, "=");
    const char *key = internn(s, n);

    if (c->run == cmd_data && is_data_key(key))
        key = strf(forever, "data.%s", key);
    opts_set(a->keys, key, s + n + 1, NULL);
}

static void read_words(Args *a, const Command *c, int argc, char **argv)
{
    const char *key, *value;

    for (int i = 2; i < argc;) {
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
            print_command(c);
            exit(0);
        }
        if (argv[i][0] == '-' && argv[i][1])
            i += option(a, c, argv + i);
        else if (is_key(argv[i]))
            set_key(a, c, argv[i++]);
        else if ((int)vec_len(a->word) < c->most)
            vec_push(forever, a->word, argv[i++]);
        else
            wrong(c, "one word too many: '%s'", argv[i]);
    }
    if (!c->keys && opts_each(a->keys, 0, &key, &value))
        wrong(c, "%s takes no keys: %s=%s", c->name, key, value);
    if ((int)vec_len(a->word) < c->least)
        wrong(c, "%s: which file?", c->name);
    a->file = a->word ? a->word[0] : NULL;
}

/* Names in -d and -x: passes that leave a graph, and for -d the words of its
 * own. */
static int is_pass(const char *s, size_t n, int dump)
{
    static const char *const words[] = { "all", "+all", "why", "+loc" };

    for (int i = 0; i < npass; i++)
        if (strlen(passtab[i].name) == n && !strncmp(passtab[i].name, s, n) &&
            passtab[i].run)
            return 1;
    for (size_t i = 0; dump && i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && !strncmp(words[i], s, n))
            return 1;
    return 0;
}

/* What a pass of an earlier version is called now; null: nothing else. */
static const char *renamed_pass(const char *word)
{
    static const struct {
        const char *was, *is;
    } names[] = {
        { "place", "sharding" },       { "comm", "collectives" },
        { "ring", "ring_attention" },  { "attnback", "attn_bwd" },
        { "slices", "logits_chunks" }, { "shards", "zero3" },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].was, word))
            return names[i].is;
    return NULL;
}

static void check_passes(const Command *c, const char *list, int dump)
{
    if (list && !*list)
        wrong(c, "-%c: no pass is named", dump ? 'd' : 'x');

    const char **names = alloc(forever, (size_t)npass * sizeof *names);

    for (int i = 0; i < npass; i++)
        names[i] = passtab[i].name;
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ",");
        if (!is_pass(s, n, dump)) {
            const char *word = internn(s, n), *now = renamed_pass(word);
            const char *near = now ? now : word;
            if (word_index(word, names, npass) >= 0)
                wrong(c,
                      "-%c %s: it makes the plan, no graph; -o writes that, "
                      "pleat show reads it",
                      dump ? 'd' : 'x', word);
            wrong(c, "no pass '%s'%s; see pleat help passes", word,
                  did_you_mean(near, names, (size_t)npass));
        }
        s += n + (s[n] == ',');
    }
}

int main(int argc, char **argv)
{
    Args a = { .n = 200, .temperature = 0.8, .seconds = 10, .rank = -1 };

    process_start(built_from);
    if (argc < 2)
        wrong(NULL, "no command is given");
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")) {
        usage();
        return 0;
    }
    if (!strcmp(argv[1], "--version"))
        return print_version();
    const Command *c = find_command(argv[1]);
    a.keys = opts_new(forever);
    read_words(&a, c, argc, argv);
    check_passes(c, a.dump, 1);
    check_passes(c, a.stop, 0);
    int status = c->run(&a);
    if (!status && c->run != cmd_run && (fflush(stdout) || ferror(stdout)))
        err(NULL, "cannot write to standard output: %s", strerror(errno));
    return status;
}
