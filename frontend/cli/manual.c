/* manual.c: prints a man page, and completions for bash and zsh, from
 * commands.def and keys.def. */
#include <ctype.h>

#include "../frontend.h"

/* ---- man page ------------------------------------------------------------ */

/* Prints text for roff: escapes dots and apostrophes at the start of a line,
 * and dashes. */
static void roff(const char *s)
{
    if (*s == '.' || *s == '\'')
        fputs("\\&", stdout);
    for (; *s; s++)
        if (*s == '-' || *s == '\\')
            printf(*s == '-' ? "\\-" : "\\e");
        else
            putchar(*s);
}

static void term(const char *bold, const char *rest, const char *sentence)
{
    printf(".TP\n\\fB");
    roff(bold);
    printf("\\fR");
    roff(rest);
    printf("\n");
    roff(sentence);
    printf("\n");
}

static void print_command(const Command *command)
{
    printf(".SS pleat %s ", command->name);
    roff(command->usage);
    printf("\n");
    roff(command->sentence);
    printf("\n");
    for (const Option *o = option_table; o->name; o++)
        if (takes_option(command, o->name))
            term(strf(forever, "%s%s", o->name[1] ? "--" : "-", o->name),
                 o->value ? strf(forever, " %s", o->value) : "", o->sentence);
    printf(".PP\n.nf\n");
    roff(command->example);
    printf("\n");
    roff(command->another);
    printf("\n.fi\n");
}

void print_manual(void)
{
    printf(".TH PLEAT 1 \"\" \"Pleat %s\"\n.SH NAME\npleat \\- compile the "
           "training of Mixture\\-of\\-Experts models\n"
           ".SH SYNOPSIS\n\\fBpleat\\fR command file [key=value ...] "
           "[options]\n.SH COMMANDS\n",
           program_version);
    for (const Command *c = command_table; c->name; c++)
        print_command(c);
    printf(".SH KEYS\naxes.NAME=N sets the size of an axis of the model, "
           "option.NAME=VALUE a value of option(name, value).\n");
    for (const KeyInfo *k = keytab; k->name; k++)
        term(strf(forever, "%s=%s", key_name(k), k->dflt ? k->dflt : ""),
             strf(forever, " (%s)", k->kind), k->doc);
    printf(".SH EXIT STATUS\n");
    term("0", "", "Done.");
    term("1", "", "A model, key, plan, checkpoint or file is wrong.");
    term("2", "", "The command line is wrong.");
    term("3", "", "Training failed after its first step began.");
    term("4", "",
         "Training stopped, with a checkpoint, before its last step: "
         "a signal, train.hours.");
}

/* ---- completion ---------------------------------------------------------- */

/* Prints the words that a key accepts: those of an enum, or the one besides a
 * path. */
static void print_values(const KeyInfo *info)
{
    size_t n = strcspn(info->kind, " ");
    const char *words = is_kind(info->kind, "bool") ? " 0 1" : info->kind + n;
    int worded = is_kind(info->kind, "enum") || is_kind(info->kind, "words") ||
                 is_kind(info->kind, "curve");

    if (worded || is_kind(info->kind, "bool"))
        printf("    %s) words='%.*s' ;;\n", key_name(info),
               (int)strcspn(words, "/"), words);
}

static void print_words(const Command *command)
{
    printf("    %s) words='", command->name);
    for (const Option *o = option_table; o->name; o++)
        if (takes_option(command, o->name))
            printf("%s%s ", o->name[1] ? "--" : "-", o->name);
    for (const KeyInfo *k = keytab; k->name && command->tables; k++)
        printf("%s= ", key_name(k));
    printf("' ;;\n");
}

/* bash splits words at "=", so the key of a value is the word before. */
static const char head[] =
    "_pleat() {\n"
    "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}"
    " key= words=\n"
    "  [ \"$word\" = = ] && key=$before word=\n"
    "  [ \"$before\" = = ] && key=${COMP_WORDS[COMP_CWORD-2]}\n"
    "  case $word in *=*) key=${word%%=*} word=${word#*=} ;; esac\n";

void print_completion(const char *shell)
{
    const char *const shells[] = { "bash", "zsh" };

    if (!shell || word_index(shell, shells, 2) < 0)
        err_usage("help completion: for bash or zsh");
    if (!strcmp(shell, "zsh"))
        printf("autoload -U +X bashcompinit && bashcompinit\n");
    printf("%s  if [ \"$key\" ]; then case $key in\n", head);
    for (const KeyInfo *k = keytab; k->name; k++)
        print_values(k);
    printf("  esac\n  elif [ \"$COMP_CWORD\" = 1 ]; then words='");
    for (const Command *c = command_table; c->name; c++)
        printf("%s ", c->name);
    printf("'\n  else case ${COMP_WORDS[1]} in\n");
    for (const Command *c = command_table; c->name; c++)
        print_words(c);
    printf("  esac; fi\n"
           "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "  case ${COMPREPLY[0]} in *=) compopt -o nospace ;; esac\n"
           "}\n"
           "complete -o default -o bashdefault -F _pleat pleat\n");
}
