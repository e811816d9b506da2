/* run.c: the driver. Every program of a model starts as a copy of its logical
 * graph, goes through the rows of passes.def, is checked after the last pass of
 * each level (with PLEAT_CHECK=1, set by tests, after each pass), and is then
 * grouped into kernels, scheduled and emitted into one plan. */
#include "passes.h"

/* ---- the program's graph ------------------------------------------------- */

static Node *copy_node(Graph *graph, const Node *n, Node **to)
{
    Node **in = alloc(graph->arena, sizeof *in * (size_t)(n->nin + 1)), *c;

    for (int i = 0; i < n->nin; i++)
        in[i] = to[n->in[i]->id];
    c = g_copyof(graph, n, in);
    c->name = n->name;
    c->map = n->map ? to[n->map->id] : NULL;
    return c;
}

/* Does program k keep sinks of op? */
static int keeps(ProgramKind k, Op op)
{
    switch (op) {
    case Ooutput: return k == PGforward;
    case Oupdate:
    case Ooptimizer: return program_trains(k);
    case Oloss:
    case Ometric: return k != PGforward;
    default: return 1;
    }
}

/* Copies parameters: each program decides its dtypes. */
static void copy_params(Graph *graph)
{
    Param **old = graph->param;

    graph->param = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        Param *p = alloc(graph->arena, sizeof *p);
        *p = *old[i];
        vec_push(graph->arena, graph->param, p);
    }
}

/* Returns the part of g that program k has. */
static Graph *copy_graph(Arena *a, Graph *g, ProgramKind k)
{
    Graph like = *g, *h;
    Node **to = alloc(a, (vec_len(g->node) + 1) * sizeof *to);

    like.arena = a;
    h = g_like(&like);
    copy_params(h);
    g_renumber(g);
    h->prog = k;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (keeps(k, g->node[i]->op))
            to[i] = copy_node(h, g->node[i], to);
    return h;
}

Graph *stage_copy(Arena *a, Graph *g)
{
    return copy_graph(a, g, g->prog);
}

static int has(const Graph *g, Op op)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == op)
            return 1;
    return 0;
}

/* ---- running the table --------------------------------------------------- */

static int is_option(const char *name, const PassInfo *info)
{
    return name && !strcmp(name, info->name);
}

#ifdef PLEAT_DEBUG
/* Checks that print(parse(print(g))) gives the same bytes. */
static void round_trip(Graph *g)
{
    Arena *a = arena_new();
    char *one = graph_print(a, g, PRINTloc);
    Graph *h = graph_parse(a, one, strlen(one), "round trip", g->opts);
    char *two = graph_print(a, h, PRINTloc);

    if (strcmp(one, two))
        die("%s: the text form does not survive parsing", g->compile->pass);
    arena_free(a);
}
#endif

/* Prints the kernels after passes on kernels, unless Graphviz output is
 * requested. */
static void show_kernels(Graph *g)
{
    const CompileOptions *options = &g->compile->options;

    if (options->dot)
        show_graph(g);
    else if (is_shown(g))
        show_text(g, groups_print(g->arena, groups_of(g, g->arena),
                                  !is_asked(g->compile, "+all")));
}

/* Is info the last pass of its level in g's program? */
static int ends_level(const Graph *g, const PassInfo *info)
{
    do
        info++;
    while (info->run && !(info->programs >> g->prog & 1));
    return !info->run || info->level > g->level;
}

static void finish_pass(Graph *g, const PassInfo *info)
{
    if (g->level < info->level)
        g->level = info->level;
    g_renumber(g);
    g_names(g);
    if (g->compile->checks_all ||
        (!g->compile->options.prices && ends_level(g, info)))
        check_graph(g);
#ifdef PLEAT_DEBUG
    round_trip(g);
#endif
    if (info->run == pass_fuse || info->run == pass_sched ||
        info->run == pass_offload)
        show_kernels(g);
    else
        show_graph(g);
}

/* Runs a pass on a program: on its graph, after pipe on those of all stages. */
static void one_pass(Graph *g, const PassInfo *info)
{
    int left_out = is_option(g->compile->options.skip, info);

    g->compile->pass = info->name;
    if (info->run == pass_pipe)
        info->run(g);
    for (Graph *h = g; h; h = h->next) {
        if (info->run != pass_pipe && !left_out)
            info->run(h);
        finish_pass(h, info);
    }
}

static int done(const Graph *g, const PassInfo *info)
{
    return g->passed > info - passtab;
}

/* Records that all its stages have completed info. */
static void note_done(Graph *g, const PassInfo *info)
{
    for (; g; g = g->next) {
        g->after = info->name;
        g->passed = (int)(info - passtab) + 1;
    }
}

/* Marks the rows up to the pass named by a parsed graph's text as completed. */
static void find_done(Graph *g)
{
    const PassInfo *info = passtab;

    if (!g->after)
        return;
    while (info->run && !is_option(g->after, info))
        info++;
    if (!info->run)
        err(NULL, "graph %s is after '%s', which is no pass of programs",
            g->name, g->after);
    g->passed = (int)(info - passtab) + 1;
}

/* Runs the rows from info on, before `end`, that g has not completed. Returns 0
 * if it was stopped, also at a pass of other programs. */
static int run_passes(Graph *g, const PassInfo *info, const PassInfo *end)
{
    for (; info < end; info++) {
        if (!done(g, info)) {
            if (info->programs >> g->prog & 1)
                one_pass(g, info);
            note_done(g, info);
        }
        if (is_option(g->compile->options.stop, info) && !done(g, info + 1))
            return 0;
    }
    return 1;
}

static const PassInfo *row_of(void (*run)(Graph *g))
{
    const PassInfo *p = passtab;

    while (p->run != run)
        p++;
    return p;
}

int has_run(const Graph *g, void (*pass)(Graph *g))
{
    return done(g, row_of(pass));
}

/* Splits all programs at once: the stages of a parameter are one decision. */
static void run_pipe(Graph *const *v)
{
    const PassInfo *info = row_of(pass_pipe);
    Graph **some = NULL;

    for (size_t i = 0; i < vec_len(v); i++)
        if (!done(v[i], info))
            vec_push(v[i]->arena, some, v[i]);
    if (some)
        some[0]->compile->pass = info->name;
    pipe_programs(some);
    for (size_t i = 0; i < vec_len(some); i++) {
        note_done(some[i], info);
        for (Graph *h = some[i]; h; h = h->next)
            finish_pass(h, info);
    }
}

void run_pass(Graph *g, const Target *target, const char *name)
{
    compile_begin(g, target, &(CompileOptions){ .prog = PGstep });
    g->compile->checks_all = 1;
    for (const PassInfo *p = passtab; p->run; p++)
        if (!strcmp(p->name, name)) {
            one_pass(g, p);
            return;
        }
    err(NULL, "there is no pass '%s'", name);
}

Group **run_fuse(Graph *g, const Target *target, Arena *a)
{
    compile_begin(g, target, &(CompileOptions){ .prog = PGstep });
    for (const PassInfo *p = row_of(pass_legalize); p->run != pass_sched; p++)
        p->run(g);
    g_names(g);
    return groups_of(g, a);
}

void run_up_to(Graph *g, void (*pass)(Graph *g))
{
    run_passes(g, passtab, row_of(pass) + 1);
}

ProgramBuilder *place_stage(Graph *g)
{
    run_up_to(g, pass_offload);
    Group **k = g->group ? g->group : groups_of(g, g->arena);

    stash_values(g, k);
    for (size_t i = 0; i < vec_len(k); i++)
        lower_group(g, k[i]);
    g->compile->pass = "emit";
    return place_program(g, k);
}

static int runs(const Graph *g, ProgramKind k)
{
    return !(g->compile->options.without >> k & 1) &&
           has(g, k == PGforward ? Ooutput : Oloss);
}

/* Returns the program as written by -x, with all stages, or from the model. */
static Graph *program(Graph *g, ProgramKind k)
{
    Graph **stage = g->compile->options.stage, *first = NULL, **end = &first;

    for (size_t i = 0; i < vec_len(stage); i++)
        if (stage[i]->prog == k) {
            stage[i]->compile = g->compile;
            stage[i]->stages = g->stages;
            find_done(stage[i]);
            *end = stage[i];
            end = &stage[i]->next;
            if (has_run(stage[i], pass_fuse))
                check_kernels(stage[i]);
        }
    if (first)
        return first;
    first = copy_graph(g->arena, g, k);
    g_tidy(first);
    return first;
}

/* Writes the output of -x: the model, the stopped programs, the sources. */
static void write_stage(Graph *g, Graph *const *stopped)
{
    const CompileOptions *options = &g->compile->options;
    Text t = { .arena = g->arena };

    put(&t, "%s", graph_print(g->arena, g, PRINTloc));
    for (size_t i = 0; i < vec_len(stopped); i++)
        for (const Graph *h = stopped[i]; h; h = h->next)
            put(&t, "%s", graph_print(g->arena, h, PRINTloc));
    for (int i = 0; i < options->nsource; i++)
        put_text(&t, "source", options->source[i].file,
                 options->source[i].text);
    fputs(t.s, compile_out(g->compile));
}

/* Does any stage check for overflow of rows? */
static int has_overflow(const Graph *g)
{
    while (g && !has(g, Ooverflow))
        g = g->next;
    return g != NULL;
}

/* Has the step metrics that are computed only in some steps? */
static int is_watched(const Graph *step)
{
    const Graph *g = step;

    while (g && !has(g, Oquantize))
        g = g->next;
    return g && watches(g, PGwatched) && !watches(g, PGstep);
}

/* Copies step's decisions about parameters: quantized weights, their stages and
 * shards. step null: there is none. */
static void learn_params(Graph *g, const Graph *step)
{
    for (; step; step = step->next) {
        primary_like(g, step);
        if (program_trains(g->prog))
            continue;
        experts_like(g, step);
        shards_like(g, step);
    }
}

/* Runs all programs up to pipe; those stopped before it go to `stopped`. Step
 * is first: it creates the optimizer's parameters, which init initializes. */
static Graph **programs(Graph *g, Graph ***stopped)
{
    Graph **v = NULL, *step = NULL;

    for (ProgramKind k = PGstep; k < PGinit; k++) {
        if (!runs(g, k) || (k == PGfallback && !has_overflow(step)) ||
            (k == PGwatched && !is_watched(step)))
            continue;
        Graph *h = program(g, k);
        learn_params(h, step);
        if (run_passes(h, passtab, row_of(pass_pipe)))
            vec_push(g->arena, v, h);
        else
            vec_push(g->arena, *stopped, h);
        if (k == PGstep)
            step = h;
    }
    return v;
}

/* Returns the step, or the program with most parameters. */
static Graph *most_params(Graph *const *v)
{
    Graph *most = v[0];

    for (size_t i = 1; i < vec_len(v); i++)
        if (most->prog != PGstep && vec_len(v[i]->param) > vec_len(most->param))
            most = v[i];
    return most;
}

/* Applies `make` to each stage and links the results. */
static Graph *of_stages(Graph *g, Graph *(*make)(Graph *g))
{
    Graph *first = NULL, **end = &first;

    for (; g; g = g->next) {
        *end = make(g);
        end = &(*end)->next;
    }
    return first;
}

/* Checks the order of passes if one is omitted: others may lack its facts. */
static void check_order(Graph *g)
{
    const char *wrong = NULL;

    for (ProgramKind k = PGstep; k < NPROGRAM && !wrong; k++)
        wrong = pass_order_wrong(g->arena, passtab, npass, k,
                                 g->compile->options.skip);
    if (wrong)
        err(NULL, "%s", wrong);
}

/* ---- the plan ------------------------------------------------------------ */

/* A program into the plan, of all its stages; zero: stopped. */
static int emit_stages(Emit *emit, Graph *first, ProgramBuilder *const *made)
{
    for (size_t k = 0; k < vec_len(made); k++)
        emit_program(emit, made[k]);
    if (made)
        return 1;
    if (!run_passes(first, passtab, row_of(pass_offload) + 1))
        return 0;
    for (Graph *h = first; h; h = h->next)
        emit_program(emit, place_stage(h));
    return 1;
}

/* What fills what lasts, from the start and of what was read. */
static void emit_filling(Emit *emit, Graph *like)
{
    emit_stages(emit, of_stages(like, initial_graph), NULL);
    Graph *weights = of_stages(like, weights_graph);
    int any = 0;
    for (const Graph *h = weights; h; h = h->next)
        any |= vec_len(h->node) > 0;
    if (any)
        emit_stages(emit, weights, NULL);
}

Plan *compile(Graph *g, const Target *target, const CompileOptions *options)
{
    Graph **stopped = NULL, **v;

    compile_begin(g, target, options);
    check_order(g);
    g->stages = stages_cut(g);
    g->compile->pass = "fold";
    fold_model(g);
    Emit *e = emit_new(g->arena, g, target);

    v = programs(g, &stopped);
    run_pipe(v);
    FittedProgram *fit = vec_len(v) ? fit_all(v) : NULL;
    for (size_t i = 0; i < vec_len(v); i++) {
        v[i] = fit[i].first;
        if (!emit_stages(e, v[i], fit[i].made))
            vec_push(g->arena, stopped, v[i]);
    }
    if (stopped) {
        write_stage(g, stopped);
        return NULL;
    }
    if (!(options->without >> PGinit & 1))
        emit_filling(e, vec_len(v) ? most_params(v) : g);
    return emit_finish(e, options);
}
