/* orders.c: chooses the order of a program's instructions: among the orders of
 * overlap.c the one with the smallest predicted time. Tried are
 *
 *     reductions of post in post,
 *     for a repeated body, reductions in its last run,
 *     the better of both with the other rule,
 *     then the best one for collectives that take LATE times as long.
 *
 * The last is taken if it is predicted to take at most 1/ALIKE longer: beside
 * computation, collectives start when multiprocessors are free, and share the
 * memory's bandwidth (decisions/late-collectives.md).
 *
 * Live bytes may exceed those of the model's order by 1/GROWTH of all memory.
 * An order that exceeds it is made again with a smaller limit; one that still
 * exceeds it is taken only if there is no other. */
#include "plan.h"

enum { GROWTH = 32, LATE = 2, ALIKE = 1024 };

static Load load_now(ProgramBuilder *builder, const Program *program)
{
    return layout_load(builder->arena, builder->graph, builder->group, program);
}

/* Sets the instructions to those of the groups, in order. Instructions of post
 * inside a repeated body run in its last run. */
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

/* An order before it is spread, and its live bytes. */
typedef struct HoistedOrder {
    SavedOrder order;
    Load load;
    int is, moved; /* is it computed; instructions moved to a last run */
} HoistedOrder;

typedef struct SpreadOrder {
    int64_t most;  /* peak of live bytes */
    int64_t least; /* smallest limit with which spread makes this order */
} SpreadOrder;

/* Spreads an order with at most load.most live bytes, as estimated by load. */
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

/* Spreads a hoisted order. most: live bytes of the model's order, `more`:
 * allowed excess. Returns whether it fits. */
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
            continue; /* made again with a smaller limit */
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

/* Does a phase with a last run end where all streams can join? A collective
 * there would be on compute in all runs, and in the last one beside reductions.
 * So would one at either end of a call with rows after such a run. */
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

typedef struct Candidates { /* candidate orders of a program */
    ProgramBuilder *builder;
    Program *program;
    Load load;               /* load of the model's order */
    int64_t more;            /* allowed excess of live bytes */
    HoistedOrder hoisted[2]; /* [0] without a last run, [1] with one */
    SavedOrder model, best;
    double secs;  /* predicted of the best; 0: there is none yet */
    int64_t most; /* that the best keeps alive; 0: there is room for it */
    int last;     /* has it a last run? */
    OrderRule rule;
} Candidates;

/* Returns the order with reductions of post as early as possible; last: in a
 * last run too. */
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

/* Keeps an order if it is faster than all before, or, for late collectives, if
 * it is about as fast; an order that does not fit is kept only if it is the
 * first. Returns 0 if nothing moved to a last run. */
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

/* Orders the calls of a stage, whose time is unknown without the other stages:
 * reductions move to their last rows as far as memory allows. */
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

/* Tries orders without a last run, with one, and the better of both with the
 * other rule. */
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
