/* context.c: the state of a compile that passes share: options, target, and
 * output of -d (decisions, graphs after a pass). */
#include "../../ir/settings/keys.h"
#include "core.h"

void compile_begin(Graph *g, const Target *target,
                   const CompileOptions *options)
{
    g->compile = alloc(g->arena, sizeof *g->compile);
    *g->compile =
        (Compile){ .options = *options, .target = target, .pass = "" };
    g->compile->checks_all = getenv("PLEAT_CHECK") != NULL;
    g->compile->said = table_new(g->arena);
    g->compile->lowered =
        options->lowered ? options->lowered : table_new(g->arena);
    g->compile->fitted = table_new(g->arena);
    g->compile->packed = table_new(g->arena);
    g->compile->machine = machine_speeds(g->opts, target->machine);
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

int states_price(const Opts *opts)
{
    return opts_given(opts, "train.recompute") &&
           !opts_words(opts, "train.recompute");
}

/* Returns the atoms over which each run of `ranks` ranks differs; 0: all
 * ranks. */
static uint32_t atoms_within(const Mesh *m, int64_t ranks)
{
    uint32_t within = 0;

    for (int t = 0; t < m->natom; t++)
        if (!ranks || m->atom[t].stride * m->atom[t].size <= ranks)
            within |= 1u << t;
    return within;
}

int64_t memory_limit(const Opts *opts, const Target *target)
{
    return opts_given(opts, "memory")
               ? opts_bytes(opts, "memory")
               : (int64_t)machine_speeds(opts, target->machine).capacity;
}

unsigned offload_classes(const Graph *g)
{
    return opts_given(g->opts, "train.offload")
               ? opts_words(g->opts, "train.offload")
               : g->offloads.classes;
}

static int is_of_optimizer(const Param *p)
{
    return 1u << p->kind & (MOMENTS | MASTERS);
}

/* Sets Param.before of all parameters; pipe gives each program of a stage the
 * same list. */
static void place_optimizer(Graph *g)
{
    double all = 0, before = 0;

    if (g->nbefore == vec_len(g->param))
        return;
    g->nbefore = vec_len(g->param);
    for (size_t i = 0; i < vec_len(g->param); i++)
        if (is_of_optimizer(g->param[i]))
            all += (double)param_elems(g->param[i]);
    for (size_t i = 0; i < vec_len(g->param); i++) {
        Param *p = g->param[i];
        p->before = before / all;
        if (is_of_optimizer(p))
            before += (double)param_elems(p);
    }
}

int goes_to_host(Graph *g, const Node *n)
{
    const Param *p = n->op == Ostate ? g_param(g, n_name(n)) : NULL;
    unsigned classes = offload_classes(g);

    if (!p || !is_of_optimizer(p))
        return 0;
    int class = 1u << p->kind & MASTERS ? OFFLOADmasters : OFFLOADmoments;
    if (!(classes >> class & 1))
        return 0;
    place_optimizer(g);
    return p->before * OFFLOADPARTS >= g->offloads.stay;
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

FILE *compile_out(const Compile *compile)
{
    return compile->options.out ? compile->options.out : stdout;
}

int is_asked(const Compile *compile, const char *word)
{
    return has_word(compile->options.dump, ',', word);
}

void why(const Graph *g, const Node *n, const char *fmt, ...)
{
    const Compile *compile = g->compile;
    FILE *f = compile_out(compile);
    va_list ap;

    if (!is_asked(compile, "why"))
        return;
    fprintf(f, "%s: ", compile->pass);
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
    const Compile *compile = g->compile;

    return g->prog == compile->options.prog &&
           (is_asked(compile, "all") || is_asked(compile, "+all") ||
            is_asked(compile, compile->pass));
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
    Compile *compile = g->compile;
    int whole = is_asked(compile, "+all");

    if (!is_shown(g))
        return;
    if (compile->options.dot)
        graph_dot(compile->options.dot, g, compile->ndot++, !whole);
    else
        show_text(g, graph_print(g->arena, g,
                                 (is_asked(compile, "+loc") ? PRINTloc : 0) |
                                     (whole ? 0 : PRINTfold)));
}
