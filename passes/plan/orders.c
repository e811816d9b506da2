/* orders.c: which order a program's instructions have: of those that overlap.c
 * makes the one that is predicted to take least time. It is tried
 *
 *     with reductions of post in post,
 *     where the body repeats with them in its last run,
 *     and the better of both by the other rule,
 *     then the best for collectives that take LATE times as long.
 *
 * The last is taken where it is predicted to take no more than an ALIKEth
 * longer: beside what computes, collectives begin when multiprocessors are
 * free, and share memory's bandwidth. (8 layers of Qwen3's widths on two H200:
 * by clocks around instructions 7 ms of 398 are waits behind collectives that
 * were predicted to be over. If all take twice as long, 4.9 ms are predicted,
 * and 0.8 by this order.)
 *
 * More may be alive at once than in the model's order by a GROWTHth of all
 * memory. An order that has more is made again with less room; one that has
 * more without any is taken only where there is no other. */
#include "plan.h"

enum { GROWTH = 32, LATE = 2, ALIKE = 1024 };

static Load load_now(ProgramBuilder *builder, const Program *program)
{
    return layout_load(builder->arena, builder->graph, builder->group, program);
}

/* Instructions are those of the groups, in their order. What is of post and
 * stands in a body that is run several times runs in its last run. */
static void give_instrs(ProgramBuilder *builder, Program *program)
{
    for (int f = 0; f < program->nphase; f++) {
        int last = has_last_run(program, f);
        for (int k = 0; k < program->phase[f].n; k++) {
            int i = program->phase[f].first + k;
            Group *group = builder->group[i];
            group->instr.last_only = last && group->reg == REGpost;
            program->instr[i] = group->instr;
        }
    }
    put_streams(builder, program);
}

typedef struct SavedOrder {
    Group **group; /* vecs */
    Phase *phase;
} SavedOrder;

static SavedOrder save_order(const ProgramBuilder *builder,
                             const Program *program)
{
    SavedOrder v = { 0 };

    for (int i = 0; i < program->ninstr; i++)
        vec_push(builder->arena, v.group, builder->group[i]);
    for (int i = 0; i < program->nphase; i++)
        vec_push(builder->arena, v.phase, program->phase[i]);
    return v;
}

static void restore_order(ProgramBuilder *builder, Program *program,
                          const SavedOrder *order)
{
    memcpy(builder->group, order->group,
           sizeof *order->group * (size_t)program->ninstr);
    memcpy(program->phase, order->phase,
           sizeof *order->phase * (size_t)program->nphase);
}

/* An order before it is spread, and what is alive in it. */
typedef struct HoistedOrder {
    SavedOrder order;
    Load load;
    int is, moved; /* is it known; how many went to a last run */
} HoistedOrder;

typedef struct SpreadOrder {
    int64_t most;  /* alive at once */
    int64_t least; /* what may be alive for this order to be made, as far as
                      spread can tell */
} SpreadOrder;

/* With no more alive than load.most, as far as load tells. */
static SpreadOrder spread(ProgramBuilder *builder, Program *program, Load load,
                          OrderRule rule, double late)
{
    SpreadOrder to = { 0 };

    for (int f = 0; f < program->nphase; f += 1 + joins_next(program, f)) {
        int64_t least = order_span(builder, program, f, load, rule, late);
        to.least = least > to.least ? least : to.least;
    }
    give_instrs(builder, program);
    to.most = load_now(builder, program).most;
    return to;
}

/* From a hoisted order. most: what is alive at once in the model's, `more` than
 * which is too much. Is there room for it? */
static int spread_within(ProgramBuilder *builder, Program *program,
                         const HoistedOrder *from, int64_t most, int64_t more,
                         OrderRule rule, double late)
{
    Load load = from->load;
    int64_t room = more;

    load.most = most + room;
    SpreadOrder to = spread(builder, program, load, rule, late);
    while (to.most > most + more && room) {
        room = room > more / GROWTH ? room / 4 : 0;
        load.most = most + room;
        if (load.most >= to.least)
            continue; /* it is made again */
        restore_order(builder, program, &from->order);
        to = spread(builder, program, load, rule, late);
    }
    return to.most <= most + more;
}

static int any_last(const Program *program, const Phase *phase)
{
    for (int i = 0; i < phase->n; i++)
        if (program->instr[phase->first + i].last_only)
            return 1;
    return 0;
}

/* Does what has a last run end where all streams can meet? A collective there
 * would stand on compute in all runs, and in the last beside reductions. So
 * would one at either end of a call with rows behind such a run. */
static int ends_alone(const ProgramBuilder *builder, const Program *program)
{
    int beside = 0;

    for (int f = 0; f < program->nphase; f++) {
        const Phase *phase = &program->phase[f];
        int last = any_last(program, phase), call = beside && !phase->repeat;
        const Instr *end = &program->instr[phase_end(program, phase)],
                    *first = &program->instr[phase->first];
        if (((last || call) && runs_beside(builder, end)) ||
            (call && phase->n && runs_beside(builder, first)))
            return 0;
        beside |= last;
    }
    return 1;
}

typedef struct Candidates { /* orders of a program */
    ProgramBuilder *builder;
    Program *program;
    Load load;               /* of the model's */
    int64_t more;            /* so much more may be alive at once */
    HoistedOrder hoisted[2]; /* without a last run, with one */
    SavedOrder model, best;
    double secs;  /* predicted of the best; 0: there is none yet */
    int64_t most; /* that the best keeps alive; 0: there is room for it */
    int last;     /* has it a last run? */
    OrderRule rule;
} Candidates;

/* Reductions of post as far ahead as they may stand; last: in a last run too.
 */
static HoistedOrder hoist(Candidates *all, int last)
{
    ProgramBuilder *builder = all->builder;
    Program *program = all->program;
    HoistedOrder to = { .is = 1 };

    restore_order(builder, program, &all->model);
    for (int f = 0; f < program->nphase; f++)
        if (!last && joins_next(program, f))
            hoist_reductions(builder, program, f, all->load);
        else if (last && has_last_run(program, f))
            to.moved += move_to_last_run(builder, program, f, all->load);
    give_instrs(builder, program);
    to.order = save_order(builder, program);
    to.load = load_now(builder, program);
    return to;
}

/* Keeps an order if it is faster than all before, one for late collectives if
 * it is about as fast; of those for which there is too little room the first,
 * and then those that take no more. 0: nothing is for a last run. */
static int try_order(Candidates *all, int last, OrderRule rule, double late)
{
    ProgramBuilder *builder = all->builder;
    HoistedOrder *from = &all->hoisted[last];

    if (!from->is)
        *from = hoist(all, last);
    else
        restore_order(builder, all->program, &from->order);
    if (last && !from->moved)
        return 0;
    int fits = spread_within(builder, all->program, from, all->load.most,
                             all->more, rule, late);
    int64_t most = fits ? 0 : load_now(builder, all->program).most;
    if (all->secs > 0 &&
        (most > all->most || (last && !ends_alone(builder, all->program))))
        return 1;
    double secs = builder->graph->call ? 0 : program_secs(builder);
    double least = late > 1 ? all->secs + all->secs / ALIKE : all->secs;
    if (all->secs > 0 && secs >= least)
        return 1;
    all->best = save_order(builder, all->program);
    all->secs = secs;
    all->most = most;
    all->last = last;
    all->rule = rule;
    return 1;
}

/* Of a stage's calls: what they take is not known without the other stages. In
 * the order of their rows reductions go to the last ones as far as there is
 * room. */
static void order_calls(Candidates *all)
{
    ProgramBuilder *builder = all->builder;
    int64_t most = all->load.most + all->more;

    try_order(all, 0, ORDERlongest, 1);
    if (!move_to_last_rows(builder, all->program,
                           most - load_now(builder, all->program).most))
        return;
    give_instrs(builder, all->program);
    if (load_now(builder, all->program).most <= most &&
        ends_alone(builder, all->program))
        all->best = save_order(builder, all->program);
}

/* Without a last run, with one, and the better of both by the other rule. */
void order_beside(ProgramBuilder *builder, Program *program)
{
    Candidates all = { .builder = builder, .program = program };
    int beside = 0;

    for (int i = 0; i < program->ninstr; i++)
        beside |= runs_beside(builder, &program->instr[i]);
    if (!beside)
        return;
    all.load = load_now(builder, program);
    all.more =
        (all.load.most + lasting_bytes(builder->arena, &builder->graph, 1)) /
        GROWTH;
    all.model = save_order(builder, program);
    if (builder->graph->call) {
        order_calls(&all);
    } else {
        try_order(&all, 0, ORDERlongest, 1);
        try_order(&all, 1, ORDERlongest, 1);
        try_order(&all, all.last, ORDERnearest, 1);
        try_order(&all, all.last, all.rule, LATE);
    }
    restore_order(builder, program, &all.best);
    give_instrs(builder, program);
}
