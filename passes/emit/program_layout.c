/* program_layout.c: divides the instructions of a program into phases.
 *
 * Accumulators are cleared first: those of loss denominators in a separate
 * phase before `den`, the others in `pre`; with a single micro-batch just
 * before their only use. An accumulator of a product is not cleared: the first
 * micro-batch's product stores. (0 + x is x except for the sign of a zero,
 * which products never produce, since their sums begin at 0.) A stage has calls
 * instead of a body, each a phase, in order of their last rows; a wait has an
 * instruction for every send that it waits for. */
#include "emit.h"

int64_t body_runs(const Graph *g)
{
    return program_turns(g) / (1 + (g->turns == TURNSpaired));
}

static Group *storing(Arena *a, Family fam, Region reg, Node *n)
{
    Group *k = alloc(a, sizeof *k);

    *k = (Group){ .fam = fam, .reg = reg, .n = 1, .nout = 1, .narg = 1 };
    k->node = alloc(a, 3 * sizeof *k->node);
    k->out = k->node + 1;
    k->arg = k->node + 2;
    k->node[0] = k->out[0] = k->arg[0] = n;
    return k;
}

static Group *zeroing(ProgramBuilder *builder, Node *acc, Region reg)
{
    Group *k = storing(builder->arena, FAMzero, reg, acc);

    k->instr.kind = Izero;
    k->instr.label = strf(builder->arena, "clear %s", acc->name);
    k->instr.file = acc->loc ? acc->loc->file : NULL;
    k->instr.line = acc->loc ? acc->loc->line : 0;
    return k;
}

/* Returns a kernel that stores f everywhere in acc. */
static Group *filling(ProgramBuilder *builder, Node *acc, Region reg, double f)
{
    Node *c = g_node(builder->graph, Oconst, acc->loc, 0, NULL);
    Group *k = storing(builder->arena, FAMloop, reg, c);

    c->at.constant.value = f;
    c->dt = acc->dt;
    c->reg = reg;
    c->nd = acc->nd;
    memcpy(c->dim, acc->dim, sizeof c->dim);
    c->sh = acc->sh;
    c->name = strf(builder->arena, "clear %s", acc->name);
    k->narg = 0;
    builder->target->lower(builder->graph, k, builder->arena);
    for (int i = 0; i < k->narg; i++)
        if (k->arg[i] == c)
            k->arg[i] = acc;
    k->out[0] = acc;
    return k;
}

/* Returns a kernel that clears an accumulator: to zero, -infinity for max,
 * infinity for min. */
static Group *clearing(ProgramBuilder *builder, Node *acc, Region reg)
{
    if (acc->at.accum.op == Radd)
        return zeroing(builder, acc, reg);
    return filling(builder, acc, reg,
                   acc->at.accum.op != Rmax ? INFINITY : -INFINITY);
}

/* May the product store in a step's first micro-batch instead of adding to
 * zero? With one micro-batch its accumulator lives from there, which lowers the
 * peak: most gradients do not exist then. */
static int may_store(const ProgramBuilder *builder, Group *group,
                     const Node *acc)
{
    if (acc->at.accum.op != Radd || !group->maystore)
        return 0;
    group->stores = builder->once;
    group->instr.store_first = !builder->once;
    if (builder->once)
        instr_store(&group->instr);
    return 1;
}

static void clear_results(ProgramBuilder *builder, Group *group)
{
    for (int j = 0; j < group->nout; j++) {
        Node *n = group->out[j];
        if (n->op == Oaccum && n->nin == 1 && n->at.accum.op != Rlast &&
            !may_store(builder, group, n))
            vec_push(builder->arena, builder->group,
                     clearing(builder, n, group->reg));
    }
}

static void clear_accumulators(ProgramBuilder *builder, Group **k, Region reg)
{
    for (size_t i = 0; i < vec_len(k) && !builder->once; i++)
        if (k[i]->reg == reg)
            clear_results(builder, k[i]);
}

/* Ends a phase with the groups from `first` on; without groups there is no
 * phase. */
static void end_phase(ProgramBuilder *builder, Phase f, int first,
                      int64_t repeat)
{
    f.first = first;
    f.n = (int)vec_len(builder->group) - first;
    f.repeat = repeat;
    f.pair = builder->pair && (f.reg == REGden || f.reg == REGbody);
    if (f.n || !repeat)
        vec_push(builder->arena, builder->phase, f);
}

/* ---- calls --------------------------------------------------------------- */

static int waits_for(const Call *wait, const Call *send)
{
    return wait->k == ROWwait && send->k == ROWsend && wait->w == send->w &&
           wait->chunk == send->chunk && wait->to == send->to &&
           wait->other == send->other;
}

/* Adds a wait with the buffer, peer and channel of the send. */
static void add_wait(ProgramBuilder *builder, const Group *send)
{
    Group *k = alloc(builder->arena, sizeof *k);

    *k = *send;
    k->nout = k->ninplace = 0;
    k->instr.kind = Iwait;
    k->instr.bytes = 0;
    k->instr.label = strf(builder->arena, "wait %s", send->instr.label);
    vec_push(builder->arena, builder->group, k);
}

static int overwrites(const Group *group, const Group *send)
{
    const Node *sent = storage(send->in[0]);

    for (int j = 0; j < group->nout; j++)
        if (group->out[j]->op == Owrite && is_lasting(sent) &&
            n_name(storage(group->out[j])) == n_name(sent))
            return 1;
    return 0;
}

/* Adds waits for the sends from `at` on, in order, up to the last one whose
 * buffer `by` overwrites; null: all. Returns the index of the first send
 * left. */
static size_t end_sends(ProgramBuilder *builder, Group **sent, size_t at,
                        const Group *by)
{
    size_t end = vec_len(sent);

    while (by && end > at && !overwrites(by, sent[end - 1]))
        end--;
    for (; at < end; at++)
        add_wait(builder, sent[at]);
    return at;
}

static size_t add_groups(ProgramBuilder *builder, Group **k, size_t i,
                         Region reg)
{
    Group **sent = NULL;
    size_t left = 0;

    for (; i < vec_len(k) && k[i]->reg == reg; i++) {
        if (builder->once)
            clear_results(builder, k[i]);
        left = end_sends(builder, sent, left, k[i]);
        vec_push(builder->arena, builder->group, k[i]);
        if (k[i]->instr.kind == Isend)
            vec_push(builder->arena, sent, k[i]);
    }
    end_sends(builder, sent, left, NULL);
    return i;
}

/* Adds the groups of k[0, n) that belong to call c. */
static void add_call(ProgramBuilder *builder, Group *const *k, size_t n, int c)
{
    const Call *call = builder->graph->call;
    int first = (int)vec_len(builder->group);

    for (size_t i = 0; i < n; i++) {
        if (k[i]->call < 1 || (size_t)k[i]->call > vec_len(call))
            die("emit: %s is in no call", k[i]->node[0]->name);
        if (k[i]->call == c + 1)
            vec_push(builder->arena, builder->group, k[i]);
        else if (waits_for(&call[c], &call[k[i]->call - 1]))
            add_wait(builder, k[i]);
    }
    end_phase(builder, phase_of_call(builder->arena, &call[c]), first, 0);
}

/* Returns [call]: the number of calls whose last row precedes its own. */
static int *by_last_row(const Graph *g, Arena *a)
{
    int calls = (int)vec_len(g->call), place = calls;
    int *at = alloc(a, sizeof *at * (size_t)(calls + 1));

    for (int c = 0; c < calls; c++)
        at[c] = calls;
    for (size_t i = vec_len(g->slot); i-- > 0;)
        if (at[g->slot[i].phase] == calls)
            at[g->slot[i].phase] = --place;
    return at;
}

static size_t add_calls(ProgramBuilder *builder, Group *const *k, size_t at)
{
    size_t n = 0;
    int first = (int)vec_len(builder->phase),
        calls = (int)vec_len(builder->graph->call),
        *place = by_last_row(builder->graph, builder->arena);

    while (at + n < vec_len(k) && k[at + n]->reg == REGbody)
        n++;
    for (int p = 0; p < calls; p++)
        for (int c = 0; c < calls; c++)
            if (place[c] == p)
                add_call(builder, k + at, n, c);
    for (size_t i = 0; i < vec_len(builder->graph->slot); i++) {
        ScheduleSlot t = builder->graph->slot[i];
        t.phase = place[t.phase] + first;
        vec_push(builder->arena, builder->slot, t);
    }
    return at + n;
}

/* sched has placed the nodes of pre that den needs before den. */
void make_phases(ProgramBuilder *builder, Group **k)
{
    size_t at = 0, den = 0;

    builder->pair = builder->graph->turns == TURNSpaired;
    builder->repeat = body_runs(builder->graph);
    builder->once = builder->repeat == 1 && !builder->graph->call;
    while (den < vec_len(k) && k[den]->reg != REGden)
        den++;
    int first = 0;
    clear_accumulators(builder, k, REGden);
    if (den < vec_len(k))
        at = add_groups(builder, k, at, REGpre);
    end_phase(builder, phase_of_region(REGpre, 1), first, 1);
    for (int r = REGden; r < NREGION; r++) {
        first = (int)vec_len(builder->group);
        if (r == REGbody && builder->graph->call) {
            at = add_calls(builder, k, at);
            continue;
        }
        at = add_groups(builder, k, at, (Region)r);
        if (r == REGpre)
            clear_accumulators(builder, k, REGbody);
        end_phase(builder, phase_of_region((Region)r, 0), first,
                  r == REGden || r == REGbody ? builder->repeat : 1);
    }
    if (at != vec_len(k))
        die("emit: phases of program %s", programnames[builder->graph->prog]);
}
