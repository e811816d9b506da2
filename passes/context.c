/* context.c: what passes share of a compile under way: options and target, and
 * what it says: decisions (-d why), graphs and groups after a pass (-d). */
#include <string.h>

#include "passes.h"

void compile_begin(Graph *g, const Target *T, const CompileOptions *o)
{
    g->compile = alloc(g->arena, sizeof *g->compile);
    *g->compile = (Compile){ .options = *o, .target = T, .pass = "" };
}

const Target *pass_target(const Graph *g)
{
    return g->compile->target;
}

FILE *compile_out(const Compile *c)
{
    return c->options.out ? c->options.out : stdout;
}

static int asked(const Compile *c, const char *word)
{
    return has_word(c->options.dump, ',', word);
}

void why(const Graph *g, const Node *n, const char *fmt, ...)
{
    const Compile *c = g->compile;
    FILE *f = compile_out(c);
    va_list ap;

    if (!asked(c, "why"))
        return;
    fprintf(f, "%s: ", c->pass);
    if (n)
        fprintf(f, "%%%s", n->name ? n->name : optab[n->op].name);
    if (n && n->loc && n->loc->file)
        fprintf(f, " (%s:%d)", n->loc->file, n->loc->line);
    fputs(n ? ": " : "", f);
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fputc('\n', f);
}

/* Is this pass asked for, in this program? */
static int shown(const Graph *g)
{
    const Compile *c = g->compile;

    return g->prog == c->options.prog &&
           (asked(c, "all") || asked(c, "+all") || asked(c, c->pass));
}

static void show(const Graph *g, const char *text)
{
    FILE *f = compile_out(g->compile);

    fprintf(f, "> after %s", g->compile->pass);
    if (g->nrole)
        fprintf(f, ", stage %d of %d", g->role, g->nrole);
    fprintf(f, "\n%s\n", text);
}

void show_graph(Graph *g)
{
    Compile *c = g->compile;
    int whole = asked(c, "+all");

    if (!shown(g))
        return;
    if (c->options.dot)
        graph_dot(c->options.dot, g, c->ndot++, !whole);
    else
        show(g, graph_print(g->arena, g,
                            (asked(c, "+loc") ? PRINTloc : 0) |
                                (whole ? 0 : PRINTfold)));
}

void show_groups(const Graph *g, Group *const *k)
{
    if (shown(g))
        show(g, groups_print(g->arena, k, !asked(g->compile, "+all")));
}
