/* run.c: the driver. Every program of a model is a copy of its logical graph,
 * run through the rows of passes.def, checked after each, then made into
 * groups, scheduled, and emitted into one plan. */
#include <string.h>

#include "passes.h"

/* Programs that a pass runs in, as bits. */
enum {
    FALLBACK = 1u << PGfallback,
    STEP = 1u << PGstep | FALLBACK,
    EVAL = 1u << PGeval,
    FORWARD = 1u << PGforward,
    INIT = 1u << PGinit,
    ALL = STEP | EVAL | FORWARD | INIT
};

/* clang-format off */
const PassInfo passtab[] = {
#define PASS(name, programs, level, sentence)                                  \
    { #name, pass_##name, programs, level, sentence },
#include "passes.def"
#undef PASS
    { "fuse", NULL, ALL, LOCAL, "group nodes into kernels" },
    { "sched", NULL, ALL, LOCAL, "order the kernels" },
    { "alloc", NULL, ALL, LOCAL, "give every buffer its place" },
    { "emit", NULL, ALL, LOCAL, "write the plan" },
};
/* clang-format on */
const int npass = sizeof passtab / sizeof *passtab;

static const CompileOptions *options; /* of the compile under way */
static const Target *target;
static const char *passname = "";
static int ndot; /* pictures drawn by this compile */

const Target *pass_target(void)
{
    return target;
}

static int dumping(const char *word)
{
    return options && has_word(options->dump, ',', word);
}

static FILE *out(void)
{
    return options && options->out ? options->out : stdout;
}

void why(const Node *n, const char *fmt, ...)
{
    va_list ap;

    if (!dumping("why"))
        return;
    fprintf(out(), "%s: %%%s", passname, n->name ? n->name : optab[n->op].name);
    if (n->loc && n->loc->file)
        fprintf(out(), " (%s:%d)", n->loc->file, n->loc->line);
    fputs(": ", out());
    va_start(ap, fmt);
    vfprintf(out(), fmt, ap);
    va_end(ap);
    fputc('\n', out());
}

void why_all(const char *fmt, ...)
{
    va_list ap;

    if (!dumping("why"))
        return;
    fprintf(out(), "%s: ", passname);
    va_start(ap, fmt);
    vfprintf(out(), fmt, ap);
    va_end(ap);
    fputc('\n', out());
}

/* ---- the program's graph ------------------------------------------------- */

static Node *copy_node(Graph *h, const Node *n, Node **to)
{
    Node *in[256], *c;

    if (n->nin > 256)
        err(n->loc, "%s: more than 256 operands", optab[n->op].name);
    for (int i = 0; i < n->nin; i++)
        in[i] = to[n->in[i]->id];
    c = g_copyof(h, n, in);
    c->name = n->name;
    c->map = n->map ? to[n->map->id] : NULL;
    return c;
}

/* Which sinks a program keeps. */
static int keeps(ProgramKind k, Op op)
{
    switch (op) {
    case Ooutput: return k == PGforward;
    case Oupdate: return program_trains(k);
    case Oloss:
    case Ometric: return k != PGforward;
    default: return 1;
    }
}

/* Each program decides its own dtypes. */
static void copy_params(Graph *h)
{
    Param **old = h->param;

    h->param = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        Param *p = alloc(h->arena, sizeof *p);
        *p = *old[i];
        vec_push(h->arena, h->param, p);
    }
}

static Graph *copy_graph(Graph *g, ProgramKind k)
{
    Graph *h = g_like(g);
    Node **to;

    copy_params(h);
    g_renumber(g);
    to = alloc(g->arena, (vec_len(g->node) + 1) * sizeof *to);
    h->prog = k;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (keeps(k, g->node[i]->op))
            to[i] = copy_node(h, g->node[i], to);
    g_tidy(h);
    return h;
}

static uint64_t hash_path(int64_t seed, const char *path)
{
    uint64_t h = mix64(0, (uint64_t)seed);

    for (; *path; path++)
        h = mix64(h, (unsigned char)*path);
    return h;
}

static Node *shaped(Graph *g, Op op, const Param *p)
{
    Node *n = g_node(g, op, p->loc, 0, NULL);

    n->dt = p->dt;
    n->reg = REGpost;
    n->nd = p->nd;
    memcpy(n->dim, p->dim, sizeof n->dim);
    return n;
}

static Node *initial(Graph *g, const Param *p);

/* All members, in the dtype of p. */
static Node *initial_bucket(Graph *g, const Param *p)
{
    Bucket *b = bucket_named(g, p->bucket);
    Node *in[MAXIN], *n;

    for (size_t k = 0; k < vec_len(b->param); k++) {
        Param q = *b->param[k];
        q.dt = p->dt;
        in[k] = initial(g, &q);
    }
    n = bucket_pack(g, b, in);
    n->reg = REGpost;
    return n;
}

/* A parameter and its master start from the same draw: the key is the
 * parameter's path. */
static Node *initial(Graph *g, const Param *p)
{
    const Param *of = !strcmp(p->init, "copy") ? g_param(g, p->of) : p;
    int fixed = !strcmp(of->init, "const");

    if (!strcmp(of->init, "pack"))
        return initial_bucket(g, of);
    Node *n = shaped(g, fixed ? Oconst : Orandom, p);
    if (fixed) {
        n->at.constant.value = of->arg;
    } else {
        n->at.random.kind =
            strcmp(of->init, "normal") ? RANDuniform : RANDnormal;
        n->at.random.arg = of->arg;
        n->at.random.key =
            (int64_t)hash_path(opts_int(g->opts, "seed"), of->path);
    }
    if (!fixed || p->dt == Dreal) /* pass precision decides real later */
        n->dt = p->dt == Df64 ? Df64 : Df32;
    return g_cast(g, infer(g, n), p->dt);
}

static Graph *init_graph(Graph *g)
{
    Graph *h = g_like(g);

    h->prog = PGinit;
    h->level = LOGICAL;
    h->mesh = NULL;
    h->after = NULL;
    h->call = NULL;
    h->turn = NULL;
    for (size_t i = 0; i < vec_len(h->param); i++) {
        Param *p = h->param[i];
        Node *in[2], *w;
        if (p->kind == PKparam && p->bucket && p->at >= 0 &&
            g_param(h, p->bucket))
            continue; /* its bucket is the parameter */
        in[0] = shaped(h, p->kind == PKparam ? Oparam : Ostate, p);
        set_name(in[0], p->path);
        infer(h, in[0]);
        in[1] = initial(h, p);
        w = g_node(h, Owrite, p->loc, 2, in);
        w->reg = REGpost;
        infer(h, w);
    }
    return h;
}

static int has(const Graph *g, Op op)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == op)
            return 1;
    return 0;
}

/* ---- running the table --------------------------------------------------- */

static int shown(ProgramKind k)
{
    return k == (options ? options->prog : PGstep);
}

/* ", stage 1 of 4" */
static const char *stage_text(const Graph *g)
{
    return g->nrole ? strf(g->arena, ", stage %d of %d", g->role, g->nrole)
                    : "";
}

static void dump(Graph *g, const char *pass)
{
    int all = dumping("all") || dumping("+all");

    if (!shown(g->prog) || !(all || dumping(pass)))
        return;
    if (options->dot) {
        graph_dot(options->dot, g, ndot++, !dumping("+all"));
        return;
    }
    int flags = dumping("+loc") ? PRINTloc : 0;
    if (!dumping("+all"))
        flags |= PRINTfold;
    fprintf(out(), "> after %s%s\n%s\n", pass, stage_text(g),
            graph_print(g->arena, g, flags));
}

static int stops(const char *pass)
{
    return options && options->stop && !strcmp(options->stop, pass);
}

#ifdef PLEAT_DEBUG
/* The law of the text form: parse(print(g)) prints the same bytes. */
static void round_trip(Graph *g)
{
    Arena *a = arena_new();
    char *one = graph_print(a, g, PRINTloc);
    Graph *h = graph_parse(a, one, strlen(one), "round trip", g->opts);
    char *two = graph_print(a, h, PRINTloc);

    if (strcmp(one, two))
        die("%s: the text form does not survive parsing", passname);
    arena_free(a);
}
#endif

static void finish_pass(Graph *g, const PassInfo *p)
{
    if (g->level < p->level)
        g->level = p->level;
    g_renumber(g);
    g_names(g);
    check_graph(g);
#ifdef PLEAT_DEBUG
    round_trip(g);
#endif
    dump(g, p->name);
}

static int left_out(const PassInfo *p)
{
    return options && options->skip && !strcmp(options->skip, p->name);
}

/* One pass on a program: on its graph, from pipe on on those of all stages. */
static void one_pass(Graph *g, const PassInfo *p)
{
    passname = p->name;
    if (p->run == pass_pipe)
        p->run(g);
    for (Graph *h = g; h; h = h->next) {
        if (p->run != pass_pipe && !left_out(p))
            p->run(h);
        finish_pass(h, p);
    }
}

static int done(const Graph *g, const PassInfo *p)
{
    for (; p->run && g->after; p++)
        if (!strcmp(g->after, p->name))
            return 1;
    return 0;
}

/* The rows from p on, before `end`, that g has not been through; zero when
 * stopped, also at a pass of other programs. */
static int run_passes(Graph *g, const PassInfo *p, const PassInfo *end)
{
    for (; p < end; p++) {
        if (!done(g, p)) {
            if (p->programs >> g->prog & 1)
                one_pass(g, p);
            for (Graph *h = g; h; h = h->next)
                h->after = p->name;
        }
        if (stops(p->name) && !strcmp(g->after, p->name))
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

/* All programs at once: which stages have a parameter is one decision. */
static void run_pipe(Graph *const *v)
{
    const PassInfo *p = row_of(pass_pipe);
    Graph **some = NULL;

    passname = p->name;
    for (size_t i = 0; i < vec_len(v); i++)
        if (!done(v[i], p))
            vec_push(v[i]->arena, some, v[i]);
    pipe_programs(some);
    for (size_t i = 0; i < vec_len(some); i++)
        for (Graph *h = some[i]; h; h = h->next) {
            h->after = p->name;
            finish_pass(h, p);
        }
}

void run_pass(Graph *g, const Target *T, const char *name)
{
    target = T;
    for (const PassInfo *p = passtab; p->run; p++)
        if (!strcmp(p->name, name)) {
            one_pass(g, p);
            return;
        }
    err(NULL, "there is no pass '%s'", name);
}

Group **run_fuse(Graph *g, const Target *T, Arena *a)
{
    target = T;
    for (const PassInfo *p = row_of(pass_legalize); p->run; p++)
        p->run(g);
    g_names(g);
    return fuse(g, T, a);
}

static void dump_groups(const Graph *g, Group *const *k)
{
    if (shown(g->prog) &&
        (dumping("all") || dumping("+all") || dumping(passname)))
        fprintf(out(), "> after %s%s\n%s\n", passname, stage_text(g),
                groups_print(g->arena, k, !dumping("+all")));
}

static Group **to_groups(Graph *g)
{
    passname = "fuse";
    Group **k = fuse(g, target, g->arena);
    dump_groups(g, k);

    passname = "sched";
    k = sched(g, k);
    dump_groups(g, k);
    for (size_t i = 0; i < vec_len(k); i++)
        target->lower(g, k[i], g->arena);
    return k;
}

/* One program into the plan, of all its stages. */
static void emit_stages(Emit *e, Graph *g)
{
    for (; g; g = g->next) {
        Group **k = to_groups(g);
        passname = "emit";
        emit_program(e, g, k);
    }
}

static int runs(const Graph *g, ProgramKind k)
{
    return has(g, k == PGforward ? Ooutput : Oloss);
}

/* The program as -x left it, all stages of it, or from the model. */
static Graph *program(Graph *g, ProgramKind k)
{
    Graph **stage = options->stage, *first = NULL, **end = &first;

    for (size_t i = 0; i < vec_len(stage); i++)
        if (stage[i]->prog == k) {
            stage[i]->stages = g->stages;
            *end = stage[i];
            end = &stage[i]->next;
        }
    return first ? first : copy_graph(g, k);
}

/* What -x writes: the model, the programs where they stopped, the sources. */
static void write_stage(Graph *g, Graph *const *stopped)
{
    Text t = { .arena = g->arena };

    put(&t, "%s", graph_print(g->arena, g, PRINTloc));
    for (size_t i = 0; i < vec_len(stopped); i++)
        for (const Graph *h = stopped[i]; h; h = h->next)
            put(&t, "%s", graph_print(g->arena, h, PRINTloc));
    for (int i = 0; i < options->nsource; i++)
        put_text(&t, "source", options->source[i].file,
                 options->source[i].text);
    fputs(t.s, out());
}

/* Of any stage. */
static int has_budgets(const Graph *g)
{
    while (g && !has(g, Ooverflow))
        g = g->next;
    return g != NULL;
}

/* Programs that do not train find parameters where step has them, and read the
 * shards that it keeps; null: no step. */
static void learn_params(Graph *g, const Graph *step)
{
    for (; step; step = step->next) {
        experts_like(g, step);
        shards_like(g, step);
    }
}

/* All programs up to pipe; those that stop before it go to `stopped`. Step
 * goes first: it makes the optimizer's parameters, which init fills. */
static Graph **programs(Graph *g, Graph ***stopped)
{
    Graph **v = NULL, *step = NULL;

    for (ProgramKind k = PGstep; k < PGinit; k++) {
        if (!runs(g, k) || (k == PGfallback && !has_budgets(step)))
            continue;
        Graph *h = program(g, k);
        if (!program_trains(k))
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

/* The step, or the program that knows most parameters. */
static Graph *init_of(Graph *const *v)
{
    Graph *most = v[0], *init = NULL, **end = &init;

    for (size_t i = 1; i < vec_len(v); i++)
        if (most->prog != PGstep && vec_len(v[i]->param) > vec_len(most->param))
            most = v[i];
    for (Graph *h = most; h; h = h->next) {
        *end = init_graph(h);
        end = &(*end)->next;
    }
    return init;
}

Plan *compile(Graph *g, const Target *T, const CompileOptions *o)
{
    const PassInfo *last = passtab;
    Graph **stopped = NULL, **v;

    options = o;
    target = T;
    ndot = 0;
    g->stages = stages_cut(g);
    fold_model(g);
    Emit *e = emit_new(g->arena, g, T);

    while (last->run)
        last++;
    v = programs(g, &stopped);
    run_pipe(v);
    for (size_t i = 0; i < vec_len(v); i++)
        if (run_passes(v[i], row_of(pass_pipe), last))
            emit_stages(e, v[i]);
        else
            vec_push(g->arena, stopped, v[i]);
    if (stopped) {
        write_stage(g, stopped);
        return NULL;
    }
    Graph *init = vec_len(v) ? init_of(v) : init_graph(g);
    run_passes(init, passtab, last);
    emit_stages(e, init);
    return emit_finish(e, o);
}
