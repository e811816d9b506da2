/* context.c: what passes share of a compile under way: options and target, and
 * what it says: decisions (-d why), graphs after a pass (-d). */
#include <stdlib.h>
#include <string.h>

#include "../../ir/keys.h"
#include "core.h"

void compile_begin(Graph *g, const Target *T, const CompileOptions *o)
{
    g->compile = alloc(g->arena, sizeof *g->compile);
    *g->compile = (Compile){ .options = *o, .target = T, .pass = "" };
    g->compile->checks_all = getenv("PLEAT_CHECK") != NULL;
    g->compile->said = table_new(g->arena);
    g->compile->lowered = table_new(g->arena);
    g->compile->fitted = table_new(g->arena);
    g->compile->machine = machine_speeds(g->opts, T->machine);
    if (g->opts)
        g->price = opts_num(g->opts, "train.recompute") * 1e-3 / (1 << 30);
}

const Target *pass_target(const Graph *g)
{
    return g->compile->target;
}

const MachineSpeeds *machine_of(const Graph *g)
{
    return &g->compile->machine;
}

int states_price(const Opts *o)
{
    return opts_given(o, "train.recompute") &&
           !opts_words(o, "train.recompute");
}

/* Those over which the ranks of each run of so many differ; 0: of all. */
static uint32_t atoms_within(const Mesh *m, int64_t ranks)
{
    uint32_t within = 0;

    for (int t = 0; t < m->natom; t++)
        if (!ranks || m->atom[t].stride * m->atom[t].size <= ranks)
            within |= 1u << t;
    return within;
}

int64_t memory_limit(const Opts *o, const Target *T)
{
    return opts_given(o, "memory")
               ? opts_bytes(o, "memory")
               : (int64_t)machine_speeds(o, T->machine).capacity;
}

unsigned offload_classes(const Graph *g)
{
    return opts_given(g->opts, "train.offload")
               ? opts_words(g->opts, "train.offload")
               : g->offloads;
}

int goes_to_host(Graph *g, const Node *n)
{
    const Param *p = n->op == Ostate ? g_param(g, n_name(n)) : NULL;
    unsigned classes = offload_classes(g);

    if (!p || !(1u << p->kind & (MOMENTS | 1u << TKmaster)))
        return 0;
    return classes >> (p->kind == TKmaster ? OFFLOADmasters : OFFLOADmoments) &
           1;
}

uint32_t near_atoms(const Graph *g)
{
    return atoms_within(g->mesh, opts_int(g->opts, "fold.host"));
}

uint32_t sharing_atoms(const Graph *g)
{
    return near_atoms(g) &
           atoms_within(g->mesh, (int64_t)machine_of(g)->sharing);
}

double link_secs(const Graph *g, uint32_t atoms, double bytes, int alltoall)
{
    return transfer_secs(machine_of(g), (double)mesh_extent(g->mesh, atoms),
                         (double)mesh_extent(g->mesh, atoms & near_atoms(g)),
                         bytes, alltoall);
}

FILE *compile_out(const Compile *c)
{
    return c->options.out ? c->options.out : stdout;
}

int is_asked(const Compile *c, const char *word)
{
    return has_word(c->options.dump, ',', word);
}

void why(const Graph *g, const Node *n, const char *fmt, ...)
{
    const Compile *c = g->compile;
    FILE *f = compile_out(c);
    va_list ap;

    if (!is_asked(c, "why"))
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

int is_shown(const Graph *g)
{
    const Compile *c = g->compile;

    return g->prog == c->options.prog &&
           (is_asked(c, "all") || is_asked(c, "+all") || is_asked(c, c->pass));
}

void show_text(const Graph *g, const char *text)
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
    int whole = is_asked(c, "+all");

    if (!is_shown(g))
        return;
    if (c->options.dot)
        graph_dot(c->options.dot, g, c->ndot++, !whole);
    else
        show_text(g, graph_print(g->arena, g,
                                 (is_asked(c, "+loc") ? PRINTloc : 0) |
                                     (whole ? 0 : PRINTfold)));
}
