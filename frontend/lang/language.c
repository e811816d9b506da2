/* language.c: `pleat help language` and `pleat help topk`: the comments of
 * editor.lua, and rows of the op table for elementwise functions. */
#include "../frontend.h"

/* The line before s; null: s is the first. */
static const char *line_above(const char *text, const char *s)
{
    if (s == text)
        return NULL;
    for (s--; s > text && s[-1] != '\n';)
        s--;
    return s;
}

/* The comments above `at`, without types, then the line itself without
 * "end". */
static const char *entry_at(Arena *a, const char *text, const char *at)
{
    const char *first = at, *above, *call = at + strlen("function ");
    Text out = { .arena = a };

    while ((above = line_above(text, first)) && !strncmp(above, "---", 3))
        first = above;
    put(&out, "%.*s)\n", (int)strcspn(call, ")"), call);
    for (const char *s = first; s < at; s += strcspn(s, "\n") + 1)
        if (strncmp(s, "---@", 4))
            put(&out, "  %.*s\n", (int)strcspn(s, "\n") - 3, s + 3);
    return out.s;
}

static const char *function_at(const char *name)
{
    const char *s = strstr(editor_lua, strf(forever, "\nfunction %s(", name));

    return s ? s + 1 : NULL;
}

/* E("dy * b", "dy") -> "dy * b, dy" */
static const char *row_text(Arena *a, const char *row)
{
    Text out = { .arena = a };

    if (!strcmp(row, "NONE") || !strcmp(row, "AUTO"))
        return *row == 'N' ? "none" : "by that expression";
    for (const char *s = strchr(row, '"'); s; s = strchr(s, '"')) {
        size_t n = strcspn(s + 1, "\"");
        put(&out, "%s%.*s", out.len ? ", " : "", (int)n, s + 1);
        s += n + 2;
    }
    return out.s;
}

/* The entry of an elementwise op that editor.lua does not have. */
static const char *op_entry(Arena *a, const char *name)
{
    int op = op_named(name);
    Text out = { .arena = a };

    if (op < 0 || optab[op].cls != EW || optab[op].nattr ||
        op_is((Op)op, OPhidden))
        return NULL;
    const OpInfo *info = &optab[op];
    char *operands = strf(a, "%s", info->operands);
    Text call = { .arena = a };
    for (char *s = strtok(operands, " "); s; s = strtok(NULL, " "))
        put(&call, "%s%s", call.len ? ", " : "", s);
    put(&out,
        "%s(%s)\n  %s\n  \n      -> [axes of all operands]\n"
        "      gradient: %s\n      local y = %s(%s)\n",
        name, call.s, row_text(a, info->value_text),
        row_text(a, info->grad_text), name,
        info->nin == 1 && strcmp(name, "lnot") ? "x"
        : info->nin == 1                       ? "c"
        : name[0] == 'l' && strlen(name) > 2   ? "c, c"
        : !strcmp(name, "mod")                 ? "ids, 3"
                                               : "x, 2");
    return out.s;
}

const char *language_entry(Arena *a, const char *name)
{
    const char *at = function_at(name);

    return at ? entry_at(a, editor_lua, at) : op_entry(a, name);
}

/* Prints the first sentence of a function's comment. */
static void print_row(const char *name)
{
    const char *entry = language_entry(forever, name), *word = "";
    size_t call = strcspn(entry, "\n");
    const char *meaning = entry + call;

    printf("  %-44.*s", (int)call, entry);
    while ((!ends_with(word, ".") || ends_with(word, "..")) &&
           (word = next_word(&meaning, " \n")))
        printf(" %s", word);
    printf("\n");
}

void print_language(void)
{
    printf("A tensor's axes have names; operators and elementwise functions "
           "meet by them.\npleat help topk prints all of one function. In "
           "examples: x [batch seq hidden], ids [batch seq],\nw [hidden], W "
           "[expert hidden dim], s [expert], p [batch seq expert], g, e = "
           "topk(p, 2, \"expert\"),\nc = lt(x, 0), q [batch seq dim], k [batch "
           "key dim], sc = dot(q, k, \"dim\").\n");
    for (const char *s = editor_lua; *s; s += strcspn(s, "\n") + 1) {
        if (!strncmp(s, "-- ", 3) && s > editor_lua && s[-1] == '\n' &&
            s[-2] == '\n')
            printf("\n%.*s\n", (int)strcspn(s, "\n") - 3, s + 3);
        if (!strncmp(s, "function ", 9))
            print_row(strf(forever, "%.*s", (int)strcspn(s + 9, "("), s + 9));
    }
    printf("\nOther elementwise functions:");
    for (Op op = 0; op < op_count; op++)
        if (!function_at(optab[op].name) && op_entry(forever, optab[op].name))
            printf(" %s", optab[op].name);
    printf("\n");
}
