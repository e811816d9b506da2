/* fit_programs.c: fits the programs of a model into the memory of a rank (fit.c
 * fits one stage of one program) and chooses the offload of the optimizer where
 * the user does not: masters, moments, both or none, and of these only the
 * bytes that do not fit. */
#include "../../ir/settings/keys.h"
#include "plan.h"

/* Does memory decide the program's recomputation? */
static int is_fitted(const Graph *g)
{
    return memory_limit(g->opts, pass_target(g)) && program_trains(g->prog) &&
           !states_price(g->opts) && !has_run(g, pass_recompute);
}

/* Does the program have choices that depend on its compiled stages? */
static int is_open(const Graph *g)
{
    return is_fitted(g) || (!has_run(g, pass_recompute) && may_pair(g));
}

/* Persistent bytes of stage `like` with these offloads of its open programs
 * (null: the current ones). */
static int64_t stage_lasting(const Graph *like, Graph *const *v,
                             const Offloads *offloads)
{
    Arena *a = like->arena;
    Graph **same = NULL;

    for (size_t i = 0; i < vec_len(v); i++)
        for (Graph *h = v[i]; h; h = h->next) {
            if (h->role != like->role)
                continue;
            Graph *g = offloads && is_open(v[i]) ? alloc(a, sizeof *g) : h;
            if (g != h) {
                *g = *h;
                g->offloads = *offloads;
            }
            vec_push(a, same, g);
        }
    return lasting_bytes(a, same, (int)vec_len(same));
}

/* The compiled stage of the step whose fallback is h, or null. */
static const ProgramBuilder *step_of(const Graph *h, const FittedProgram *step)
{
    size_t k = 0, n = vec_len(step->made);

    if (h->prog != PGfallback || !n || step->first->prog != PGstep)
        return NULL;
    while (k < n && step->made[k]->graph->role != h->role)
        k++;
    return k < n ? step->made[k] : NULL;
}

/* Fits the stages of program v[i]; replaces the graphs by the compiled ones and
 * returns their builders. lacks, by stage: bytes needed beyond the limit. */
static ProgramBuilder **fit_program(Graph **v, size_t i, int64_t *lacks,
                                    const FittedProgram *step)
{
    int64_t memory = memory_limit(v[i]->opts, pass_target(v[i]));
    int limited = is_fitted(v[i]);
    ProgramBuilder **made = NULL;

    for (Graph *h = v[i]; h; h = h->next) {
        int64_t room = limited ? memory - stage_lasting(h, v, NULL) : INT64_MAX;
        ProgramBuilder *m = fit_stage(h, room, step_of(h, step));
        vec_push(h->arena, made, m);
        if (m->prog.transient - room > lacks[h->role])
            lacks[h->role] = m->prog.transient - room;
    }
    for (size_t k = 1; k < vec_len(made); k++)
        made[k - 1]->graph->next = made[k]->graph;
    v[i] = made[0]->graph;
    return made;
}

static FittedProgram *new_fit(Graph *const *v)
{
    return alloc(v[0]->arena, (vec_len(v) + 1) * sizeof(FittedProgram));
}

/* Seconds of a step; 0: not fitted. */
static double fitted_secs(FittedProgram *step)
{
    size_t n = vec_len(step->made);

    if (n && !step->secs)
        step->secs = stages_secs(step->first->arena, step->made, n);
    return step->secs;
}

static size_t count_stages(const Graph *g)
{
    size_t n = 0;

    for (; g; g = g->next)
        n = (size_t)g->role + 1 > n ? (size_t)g->role + 1 : n;
    return n;
}

/* Fits all programs with these optimizer offloads by stage (null: none) to
 * `to`; turns: micro-batch orders of the stages. Returns the bytes that each
 * stage lacks; null: all fit. The step is fitted first; if it takes `most`
 * seconds or more (0: no bound), or does not fit a stated limit, the rest is
 * skipped. */
static int64_t *fit_programs(Graph *const *v, const Turns *turns,
                             const Offloads *offloads, double most,
                             FittedProgram *to)
{
    Graph **now = NULL;
    size_t stages = count_stages(v[0]);
    int64_t *lacks = alloc(v[0]->arena, stages * sizeof *lacks);
    int at = 0, fits = 1;

    for (size_t i = 0; i < vec_len(v); i++) {
        vec_push(v[i]->arena, now, v[i]);
        for (Graph *h = v[i]; h; h = h->next)
            h->turns = turns[at++];
        for (Graph *h = v[i]; h && is_open(v[i]); h = h->next)
            h->offloads = offloads ? offloads[h->role] : (Offloads){ 0 };
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        ProgramBuilder **made =
            is_open(v[i]) ? fit_program(now, i, lacks, to) : NULL;
        to[i] = (FittedProgram){ .first = now[i], .made = made };
        for (size_t k = 0; k < stages; k++)
            fits &= !lacks[k];
        if (most > 0 && (!fits || fitted_secs(to) >= most))
            break;
    }
    return fits ? NULL : lacks;
}

/* Bytes of a stage's optimizer that these offloads move to the host. */
static int64_t waiting_bytes(Graph *g, Offloads offloads)
{
    Offloads was = g->offloads;

    g->offloads = (Offloads){ 0 };
    int64_t bytes = lasting_bytes(g->arena, &g, 1);
    g->offloads = offloads;
    bytes -= lasting_bytes(g->arena, &g, 1);
    g->offloads = was;
    return bytes;
}

/* The least of waiting_bytes over stages; offloads: by stage. */
static int64_t least_waiting(Graph *g, const Offloads *offloads)
{
    int64_t least = INT64_MAX;

    for (; g; g = g->next) {
        int64_t bytes = waiting_bytes(g, offloads[g->role]);
        least = bytes < least ? bytes : least;
    }
    return least;
}

/* Do the offloads free the bytes that each stage lacks? Updates of fewer
 * tensors need less memory, at most the bytes that they update. */
static int may_suffice(Graph *g, const Offloads *offloads, const int64_t *lacks)
{
    int may = 1;

    for (; g && may; g = g->next)
        may = 2 * waiting_bytes(g, offloads[g->role]) >= lacks[g->role];
    return may;
}

/* Lower bound of a step's seconds with these bytes of the optimizer offloaded:
 * the step without a memory limit (in pairs if faster), with the host's updates
 * in place of the device's. */
static double least_secs(FittedProgram *step, int64_t bytes)
{
    Arena *a = step->first->arena;
    size_t n = vec_len(step->made);
    ProgramBuilder **most = alloc(a, (n + 1) * sizeof *most);
    double updates = 0, pairs_save = 0;

    for (size_t k = 0; k < n; k++) {
        most[k] = step->made[k]->unlimited;
        pairs_save = fmax(pairs_save, step->made[k]->pairs_save);
        const Program *program = &most[k]->prog;
        const Phase *phase = &program->phase[program->nphase - 1];
        double post = 0;
        for (int i = phase->first; i < phase->first + phase->n; i++)
            post += program->instr[i].secs;
        updates = post > updates ? post : updates;
    }
    double more = bytes ? hosted_secs(step->first, (double)bytes) - updates : 0;
    if (n && !step->least)
        step->least = stages_secs(a, most, n);
    return n ? step->least - pairs_save + fmax(more, 0) : 0;
}

/* Does the memory limit change any stage of the step? */
static int memory_binds(const FittedProgram *step)
{
    for (size_t k = 0; k < vec_len(step->made); k++)
        if (step->made[k] != step->made[k]->unlimited ||
            step->made[k]->pairs_save > 0)
            return 1;
    return 0;
}

/* By stage: offload all tensors of these classes. */
static Offloads *all_wait(Graph *g, unsigned classes)
{
    Offloads *stage = NULL;

    for (; g; g = g->next)
        vec_push(g->arena, stage, ((Offloads){ classes, 0 }));
    return stage;
}

/* `all` by stage, except tensors that fit beside the step compiled without a
 * memory limit. */
static Offloads *some_stay(Graph *const *v, const Offloads *all,
                           const FittedProgram *step)
{
    int64_t memory = memory_limit(v[0]->opts, pass_target(v[0]));
    Offloads *stage = all_wait(v[0], all->classes);

    for (size_t k = 0; k < vec_len(step->made); k++) {
        const Graph *h = step->made[k]->graph;
        int64_t bytes = step->made[k]->unlimited->prog.transient;
        int low = 0, high = OFFLOADPARTS;
        while (high - low > 1) {
            Offloads some = { all->classes, (low + high) / 2 };
            int64_t room = memory - stage_lasting(h, v, &some);
            *(room < bytes ? &high : &low) = some.stay;
        }
        stage[h->role].stay = low;
    }
    return stage;
}

static int any_stays(const Offloads *stage)
{
    int any = 0;

    for (size_t i = 0; i < vec_len(stage); i++)
        any |= stage[i].stay > 0;
    return any;
}

/* Would pairs that do not fit make a stage of the step faster? */
static int want_room(const FittedProgram *step)
{
    int want = 0;

    for (size_t k = 0; k < vec_len(step->made); k++)
        want |= step->made[k]->pairs_save > 0;
    return want;
}

/* The best optimizer offload so far. */
typedef struct HostChoice {
    Graph *const *v;
    const Turns *turns;
    FittedProgram *fit, *tried; /* the best; the last */
    Offloads *best;             /* of fit; null: no offload */
    const int64_t *lacks;       /* bytes, by stage; null: the best fits */
    double secs;                /* of a step of the best */
} HostChoice;

/* Fits the plan with these offloads. It becomes the best if it fits and no
 * other does, or if it is faster. Returns whether it fits. */
static int try_offloads(HostChoice *c, Offloads *offloads)
{
    c->tried = new_fit(c->v);
    const int64_t *still = fit_programs(
        c->v, c->turns, offloads, c->lacks ? HUGE_VAL : c->secs, c->tried);

    if (!still && (c->lacks || fitted_secs(c->tried) < c->secs)) {
        c->fit = c->tried;
        c->best = offloads;
        c->lacks = NULL;
        c->secs = fitted_secs(c->fit);
    }
    return !still;
}

/* Do these offloads save no time, or not free the lacking bytes? */
static int cannot_help(const HostChoice *c, FittedProgram *first,
                       const Offloads *all, const Offloads *some)
{
    Graph *g = c->v[0];

    return c->lacks ? !may_suffice(g, all, c->lacks)
                    : c->secs <= least_secs(first, least_waiting(g, some));
}

/* Tries offloads of these classes: first the tensors stay that fit beside the
 * step of `first`; if memory still binds (copies take some), those that fit
 * beside the step so compiled; then, or if pairs lack memory, all are
 * offloaded. */
static void try_classes(HostChoice *c, FittedProgram *first, unsigned classes)
{
    enum { TRIES = 3 };
    Offloads *all = all_wait(c->v[0], classes);
    Offloads *some = some_stay(c->v, all, first);

    for (int i = 0; i < TRIES && !cannot_help(c, first, all, some); i++) {
        int fits = try_offloads(c, some);
        if (!any_stays(some) || (fits && !memory_binds(c->tried)))
            break;
        some = i || want_room(c->tried) ? all : some_stay(c->v, all, c->tried);
    }
}

/* Offloads masters, moments or both if nothing else makes the plan fit, or if
 * that is faster; tensors that fit stay. All choices that can be faster are
 * tried, so more memory is never slower. `same`: leave the graphs with the best
 * choice, not the last tried. */
static FittedProgram *fit_classes(Graph *const *v, const Turns *turns, int same)
{
    static const unsigned some[] = { 1u << OFFLOADmasters, 1u << OFFLOADmoments,
                                     1u << OFFLOADmasters |
                                         1u << OFFLOADmoments };
    FittedProgram *first = new_fit(v);
    HostChoice c = { .v = v, .turns = turns, .fit = first, .tried = first };

    c.lacks = fit_programs(v, turns, NULL, 0, first);
    int may = may_offload(v[0]) && (c.lacks || memory_binds(first));
    c.secs = may ? fitted_secs(first) : 0;
    may = may && (c.lacks || c.secs > least_secs(first, 0));
    for (int k = 0; k < 3 && may; k++)
        try_classes(&c, first, some[k]);
    if (same && c.fit != c.tried)
        fit_programs(v, turns, c.best, 0, c.fit);
    return c.fit;
}

FittedProgram *fit_all(Graph *const *v)
{
    const CompileOptions *options = &v[0]->compile->options;
    int dumps = options->dump || options->stop || options->dot;
    Turns *turns = NULL;

    for (size_t i = 0; i < vec_len(v); i++)
        for (Graph *h = v[i]; h; h = h->next)
            vec_push(v[0]->arena, turns, h->turns);
    FittedProgram *fit = fit_classes(v, turns, dumps);
    for (size_t i = 0; i < vec_len(v) && dumps; i++)
        fit[i] = (FittedProgram){ .first = v[i] };
    return fit;
}
