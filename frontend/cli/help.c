/* help.c: `pleat help`: prints commands and options of commands.def, keys of
 * keys.def, passes, formats. */
#include "../frontend.h"

static void heading(const char *s)
{
    int colours = isatty(1) && !getenv("NO_COLOR");

    printf(colours ? "\n\033[1m%s\033[0m\n" : "\n%s\n", s);
}

/* ---- commands ------------------------------------------------------------ */

int takes_option(const Command *command, const char *name)
{
    return has_word(command->options, ' ', name);
}

static void print_options(const Command *command)
{
    for (const Option *o = option_table; o->name; o++)
        if (!command || takes_option(command, o->name))
            printf("  %s%s %-*s %s\n", o->name[1] ? "--" : "-", o->name,
                   (int)(o->name[1] ? 15 : 16) - (int)strlen(o->name),
                   o->value ? o->value : "", o->sentence);
}

/* Is any value of the key implemented? Implemented values follow the slash. */
static int key_built(const KeyInfo *info)
{
    const char *slash = strrchr(info->kind, '/');

    return !slash || slash[1];
}

static void print_tables(const char *tables)
{
    for (const char *table; (table = next_word(&tables, " "));) {
        table = *table == '-' ? "" : table;
        printf("  %s", *table ? strf(forever, "%s.", table) : "     ");
        if (!strcmp(table, "axes"))
            printf("<name>");
        for (const KeyInfo *k = keytab; k->name; k++)
            if (!strcmp(k->table, table) && key_built(k))
                printf(" %s", k->name);
        printf("\n");
    }
}

void help_command(const Command *command)
{
    printf("usage: pleat %s %s\n%s\n", command->name, command->usage,
           command->sentence);
    if (*command->options)
        heading("options");
    print_options(command);
    if (command->tables) {
        heading("keys, as train.lr=3e-4 (pleat help train.lr, pleat help keys "
                "train)");
        print_tables(command->tables);
    }
    heading("examples");
    printf("  %s\n  %s\n", command->example, command->another);
}

static void usage(void)
{
    printf("usage: pleat command file [key=value ...] [options]\n\n");
    for (const Command *c = command_table; c->name; c++)
        printf("  %-8s %-42s %s\n", c->name, c->usage, c->sentence);
    printf("\n");
    print_options(NULL);
    printf("\nOf one command: pleat help run. Keys: pleat help keys. "
           "Functions: pleat help language. Passes: "
           "pleat help passes.\n"
           "A man page: pleat help man | man -l -. Completion: eval "
           "\"$(pleat help completion bash)\"\n"
           "Exit status: 0 done; 1 a model, key, plan or file is wrong; 2 the "
           "command line is; 3 it\nfailed in training; 4 training stopped "
           "before its last step (a signal, train.hours)\n");
}

/* ---- tables -------------------------------------------------------------- */

static void print_key(const KeyInfo *info)
{
    printf("%s%s%s=%-*s %-28s %s\n", info->table, *info->table ? "." : "",
           info->name, (int)(22 - strlen(info->table) - strlen(info->name)),
           info->dflt ? info->dflt : "", info->kind, info->doc);
}

/* Prints the keys of a table, or all. Returns their number. */
static int print_keys(const char *table)
{
    int n = 0;

    for (const KeyInfo *k = keytab; k->name; k++)
        if (key_built(k) && (!table || !strcmp(k->table, table))) {
            print_key(k);
            n++;
        }
    return n;
}

static int print_one_key(const char *name)
{
    for (const KeyInfo *k = keytab; k->name; k++)
        if (!strcmp(key_name(k), name)) {
            print_key(k);
            return 1;
        }
    return 0;
}

static int print_formats(const char *unused)
{
    (void)unused;
    for (int i = 0; i < nformat; i++)
        printf("%-10s %d  since %s  %s\n", formattab[i].name,
               formattab[i].number, formattab[i].since, formattab[i].what);
    return 1;
}

static int print_machines(const char *unused)
{
    Text out = { .arena = forever };

    (void)unused;
    put_machines(&out);
    fputs(out.s, stdout);
    return 1;
}

static int print_passes(const char *unused)
{
    (void)unused;
    for (int i = 0; i < npass; i++)
        printf("%-16s %s\n", passtab[i].name, passtab[i].sentence);
    return 1;
}

static int language(const char *unused)
{
    (void)unused;
    print_language();
    return 1;
}

static int manual(const char *unused)
{
    (void)unused;
    print_manual();
    return 1;
}

static int completion(const char *shell)
{
    print_completion(shell);
    return 1;
}

int print_version(void)
{
    Text out = { .arena = forever };

    put_version(&out, 1);
    printf("%s%-10s %s (%s)\n", out.s, "lua", LUA_RELEASE, "model files");
    return 0;
}

/* Topics of `help` beside commands and keys; functions return 0 for an unknown
 * second word. */
static const struct {
    const char *name;
    int (*print)(const char *word);
} topics[] = {
    { "keys", print_keys },
    { "passes", print_passes },
    { "formats", print_formats },
    { "machines", print_machines },
    { "man", manual },
    { "completion", completion },
    { "language", language },
};

/* Returns a key similar to this word, if no command is; "": none. */
static const char *near_key(const char *word)
{
    const char **commands = NULL, **keys = NULL;

    for (const Command *c = command_table; c->name; c++)
        vec_push(forever, commands, c->name);
    for (const KeyInfo *k = keytab; k->name; k++)
        vec_push(forever, keys, k->name);
    return *did_you_mean(word, commands, (int)vec_len(commands))
               ? ""
               : did_you_mean(word, keys, (int)vec_len(keys));
}

int cmd_help(Args *args)
{
    const char *word = vec_len(args->word) > 1 ? args->word[1] : NULL;

    if (!args->file) {
        usage();
        return 0;
    }
    for (int i = 0; i < countof(topics); i++)
        if (!strcmp(topics[i].name, args->file)) {
            if (!topics[i].print(word))
                err(NULL, "help %s: nothing is named '%s'", args->file, word);
            return 0;
        }
    const char *meant = key_meant(args->file);
    int command = 0;
    for (const Command *c = command_table; c->name; c++)
        command |= !strcmp(c->name, args->file);
    const char *entry = command ? NULL : language_entry(forever, args->file);
    if (entry)
        fputs(entry, stdout);
    if (entry || (!command && (print_one_key(args->file) ||
                               (meant && print_one_key(meant)))))
        return 0;
    if (!command && *near_key(args->file))
        err_usage("nothing is named '%s'%s", args->file, near_key(args->file));
    help_command(find_command(args->file));
    return 0;
}
