/* new.c: `pleat new mixtral my.lua` copies a model of models/ and writes the
 * files beside it that editors need for the language. */
#include "../frontend.h"

extern const char luacheckrc[], model_tiny[], model_mixtral[];
extern const char model_qwen3_moe[], model_deepseek_v3[], model_llama3[];
extern const char model_qwen2_moe[], model_deepseek_v2_lite[], model_olmoe[];

/* clang-format off */
static const struct { const char *name, *text; } models[] = {
    { "tiny", model_tiny }, { "mixtral", model_mixtral },
    { "qwen3_moe", model_qwen3_moe }, { "qwen2_moe", model_qwen2_moe },
    { "olmoe", model_olmoe }, { "deepseek_v2_lite", model_deepseek_v2_lite },
    { "deepseek_v3", model_deepseek_v3 }, { "llama3", model_llama3 },
};
/* clang-format on */

static const char luarc[] =
    "{\n"
    "  \"runtime.version\": \"Lua 5.4\",\n"
    "  \"workspace.library\": [\".pleat\"],\n"
    "  \"diagnostics.disable\": [\"lowercase-global\"]\n"
    "}\n";

static int exists(const char *path)
{
    return access(path, F_OK) == 0;
}

const char *model_template(const char *name)
{
    const char *names[countof(models)];

    for (int i = 0; i < countof(models); i++) {
        names[i] = models[i].name;
        if (!strcmp(name, names[i]))
            return models[i].text;
    }
    Text out = { .arena = forever };
    for (int i = 0; i < countof(models); i++)
        put(&out, "%s%s", i ? ", " : "", names[i]);
    err(NULL, "new: no model is named '%s' (%s)", name, out.s);
}

static int is_elementwise(Op op)
{
    return optab[op].cls == EW && !optab[op].nattr && !op_is(op, OPhidden);
}

/* Adds the elementwise ops that the text lacks: each has the signature of one
 * with as many operands. */
const char *editor_text(Arena *a)
{
    static const char *const like[] = { "exp", "maximum", "where" };
    Text out = { .arena = a };

    putn(&out, editor_lua, strlen(editor_lua));
    put(&out, "\n");
    for (Op op = 0; op < op_count; op++)
        if (is_elementwise(op) &&
            !strstr(editor_lua, strf(a, "function %s(", optab[op].name)))
            put(&out, "%s = %s\n", optab[op].name, like[optab[op].nin - 1]);
    return out.s;
}

/* Adds their names for luacheck. */
const char *luacheck_text(Arena *a)
{
    const char *list = strchr(luacheckrc, '{') + 1;
    Text out = { .arena = a };

    putn(&out, luacheckrc, (size_t)(list - luacheckrc));
    for (Op op = 0; op < op_count; op++)
        if (is_elementwise(op) &&
            !strstr(list, strf(a, "\"%s\"", optab[op].name)))
            put(&out, "\n  \"%s\",", optab[op].name);
    putn(&out, list, strlen(list));
    return out.s;
}

static void write_new(const char *path, const char *text)
{
    if (exists(path))
        return;
    write_all(path, OUTown, text, strlen(text));
    printf("wrote %s\n", path);
}

void write_model(const char *to, const char *text)
{
    const char *dir = strf(forever, "%.*s", (int)(file_name(to) - to), to);
    char *library = strf(forever, "%s.pleat", dir);

    if (exists(to))
        err(NULL, "%s is there already", to);
    write_new(to, text);
    write_new(strf(forever, "%s.luarc.json", dir), luarc);
    write_new(strf(forever, "%s.luacheckrc", dir), luacheck_text(forever));
    if (folder_make(library) && errno != EEXIST)
        err(NULL, "cannot make %s: %s", library, strerror(errno));
    write_new(strf(forever, "%s/pleat.lua", library), editor_text(forever));
}

/* Removes the data keys, whose paths are relative to models/. */
static const char *without_data(const char *text)
{
    static const char usual[] = "-- data { train=\"book.txt\", "
                                "valid=\"tail:0.1\" }    -- else keys of the "
                                "command line say it";
    const char *line = strstr(text, "\ndata ");

    return line ? strf(forever, "%.*s\n%s%s", (int)(line - text), text, usual,
                       line + 1 + strcspn(line + 1, "\n"))
                : text;
}

int cmd_new(Args *args)
{
    write_model(args->word[1], without_data(model_template(args->file)));
    return 0;
}
