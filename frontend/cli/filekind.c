/* filekind.c: the kind of a file of the command line, by its first line. The
 * name only decides for files of no known kind, so that the error names the
 * expected kind. */
#include "../commands.h"

enum { FIRST = 512 }; /* bytes read */

/* Is it "graph tiny step logical {", which is not Lua? */
static int opens_graph(const char *line)
{
    return !strncmp(line, "graph ", 6) && ends_with(line, "{");
}

FileKind file_kind(const char *path)
{
    char line[FIRST];
    FILE *f = file_stream(path);
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;

    if (f)
        fclose(f);
    line[n] = 0;
    line[strcspn(line, "\n")] = 0;
    if (plan_format(line, strlen(line)) || ends_with(path, ".plan"))
        return FILEplan;
    return opens_graph(line) || ends_with(path, ".ir") ? FILEgraph : FILEmodel;
}

void need_model(const char *path)
{
    if (file_kind(path) == FILEplan)
        err(NULL, "%s is a plan, not a model; pleat show tells what is in it",
            path);
}
