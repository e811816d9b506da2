/* main.c: the command line, by the rows of commands.def. Keys override fold{},
 * train{}, data{}, precision{} of the file. */
#include "frontend.h"

/* ---- tables -------------------------------------------------------------- */

#define TEXT(x)    't', offsetof(Args, x)
#define INTEGER(x) 'i', offsetof(Args, x)
#define NUMBER(x)  'n', offsetof(Args, x)
/* clang-format off */
const Command command_table[] = {
#define COMMAND(...) { __VA_ARGS__ },
#define OPTION(...)
#include "commands.def"
    { 0 }
};

const Option option_table[] = {
#define COMMAND(...)
#define OPTION(...) { __VA_ARGS__ },
#include "commands.def"
    { 0 }
};
/* clang-format on */

enum { NCOMMAND = countof(command_table) - 1 };

static _Noreturn void wrong(const Command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static _Noreturn void wrong(const Command *command, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *what = vstrf(forever, fmt, ap);
    va_end(ap);
    if (!command)
        err_usage("%s; pleat -h lists all", what);
    err_usage("%s\nusage: pleat %s %s", what, command->name, command->usage);
}

const Command *find_command(const char *name)
{
    const char *names[NCOMMAND];

    for (int i = 0; i < NCOMMAND; i++) {
        names[i] = command_table[i].name;
        if (!strcmp(names[i], name))
            return &command_table[i];
    }
    wrong(NULL, "unknown command '%s'%s", name,
          did_you_mean(name, names, NCOMMAND));
}

/* ---- the command line ---------------------------------------------------- */

static void set_option(Args *args, const Option *option, const char *value)
{
    void *at = (char *)args + option->at;

    if (option->type == 't')
        *(const char **)at = value;
    else if (option->type == 'i')
        *(int64_t *)at = strtoll(value, NULL, 10);
    else
        *(double *)at = strtod(value, NULL);
}

static _Noreturn void unknown_option(const Command *command, const char *typed)
{
    const char **names = NULL; /* vec */
    const char *meant = key_meant(typed);

    for (const Option *o = option_table; o->name; o++)
        if (takes_option(command, o->name))
            vec_push(forever, names, strf(forever, "--%s", o->name));
    if (meant && command->tables)
        wrong(command, "unknown option '%s' (keys have no dashes: %s=VALUE)",
              typed, meant);
    wrong(command, "unknown option '%s'%s", typed,
          did_you_mean(typed, names, vec_len(names)));
}

/* Reads "-o file", "-dwhy", "--prompt text". Returns the number of words
 * read. */
static int option(Args *args, const Command *command, char **w)
{
    int words = w[0][1] == '-';
    const char *name = w[0] + 1 + words, *value = NULL;

    for (const Option *o = option_table; o->name; o++) {
        size_t n = strlen(o->name);
        int same = words ? !strcmp(o->name, name) && n > 1
                         : n == 1 && o->name[0] == name[0];
        if (!same || !takes_option(command, o->name))
            continue;
        if (!words && name[1])
            value = name + 1;
        else if (o->value)
            value = w[1];
        if (o->value && !value)
            wrong(command, "option '%s' needs a value", w[0]);
        if (o->kind)
            kind_check(forever,
                       strf(forever, "%.*s%s", 1 + words, w[0], o->name),
                       o->kind, value, NULL);
        set_option(args, o, o->value ? value : "1");
        return value && value == w[1] ? 2 : 1;
    }
    unknown_option(command, w[0]);
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

/* Sets a key; `data` commands accept keys of their table without its name. */
static void set_key(Args *args, const Command *command, const char *s)
{
    size_t n = strcspn(s, "=");
    const char *key = internn(s, n);

    if (command->run == cmd_data && is_data_key(key))
        key = strf(forever, "data.%s", key);
    opts_set(args->keys, key, s + n + 1, NULL);
}

static void read_words(Args *args, const Command *command, int argc,
                       char **argv)
{
    const char *key, *value;

    for (int i = 2; i < argc;) {
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
            help_command(command);
            exit(0);
        }
        if (argv[i][0] == '-' && argv[i][1])
            i += option(args, command, argv + i);
        else if (is_key(argv[i]))
            set_key(args, command, argv[i++]);
        else if ((int)vec_len(args->word) < command->most)
            vec_push(forever, args->word, argv[i++]);
        else
            wrong(command, "one word too many: '%s'", argv[i]);
    }
    if (!command->tables && opts_each(args->keys, 0, &key, &value))
        wrong(command, "%s takes no keys: %s=%s", command->name, key, value);
    if (args->calibrate && args->word)
        wrong(command, "--calibrate takes no model: '%s'", args->word[0]);
    if ((int)vec_len(args->word) < command->least && !args->calibrate)
        wrong(command, "%s: which file?", command->name);
    args->file = args->word ? args->word[0] : NULL;
}

/* Is it a name for -d or -x: a pass with a graph, or for -d another word? */
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

/* Returns the present name of a pass of an earlier version; null: not
 * renamed. */
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

static void check_passes(const Command *command, const char *list, int dump)
{
    if (list && !*list)
        wrong(command, "-%c: no pass is named", dump ? 'd' : 'x');

    const char **names = alloc(forever, (size_t)npass * sizeof *names);

    for (int i = 0; i < npass; i++)
        names[i] = passtab[i].name;
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ",");
        if (!is_pass(s, n, dump)) {
            const char *word = internn(s, n), *now = renamed_pass(word);
            const char *near = now ? now : word;
            if (word_index(word, names, npass) >= 0)
                wrong(command,
                      "-%c %s: it makes the plan, no graph; -o writes that, "
                      "pleat show reads it",
                      dump ? 'd' : 'x', word);
            wrong(command, "no pass '%s'%s; see pleat help passes", word,
                  did_you_mean(near, names, (size_t)npass));
        }
        s += n + (s[n] == ',');
    }
}

int main(int argc, char **argv)
{
    Args a = { .n = 200, .temperature = 0.8, .seconds = -1, .rank = -1 };

    process_start(built_from);
    if (argc < 2)
        wrong(NULL, "no command is given");
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))
        return cmd_help(&a);
    if (!strcmp(argv[1], "--version"))
        return print_version();
    const Command *c = find_command(argv[1]);
    a.keys = opts_new(forever);
    read_words(&a, c, argc, argv);
    if (c->run != cmd_search) /* search has no graph to print */
        check_passes(c, a.dump, 1);
    check_passes(c, a.stop, 0);
    if (!a.raw && c->run != cmd_help) /* help has colours */
        stdout_visible();
    int status = c->run(&a);
    if (!status && c->run != cmd_run && (fflush(stdout) || ferror(stdout)))
        err(NULL, "cannot write to standard output: %s", strerror(errno));
    return status;
}
