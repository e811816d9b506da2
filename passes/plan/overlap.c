/* overlap.c: orders the instructions of a phase, or of body and post if each
 * runs once, so that computation overlaps collectives.
 *
 * There is a clock for computation and one for collectives, and instructions
 * are chosen one by one. A collective is chosen as soon as its operands are
 * computed and the one before it is complete: a gather of weights while the
 * layer before computes. Otherwise, among the next AHEAD instructions of the
 * model's order, the one is chosen whose operands are computed and whose next
 * collective has the longest work waiting for it: instructions that lead to no
 * collective, such as gradients of weights, are left for the time of a
 * collective.
 *
 *     model's order   dx  dw  scatter dx    dx2  dw2  gather w  b(w)
 *     chosen          dx  scatter dx   dx2  gather w  b(w)
 *                         dw                dw2
 *
 * A collective with few predecessors, such as counts of rows after a route,
 * would wait until instructions that lead to larger ones are done, and then for
 * those. One rule (ORDERlongest) chooses first an instruction that takes little
 * time compared with the collective that it enables; the other (ORDERnearest)
 * all instructions that lead to such a near one. Neither is better for all
 * models: orders.c tries both.
 *
 * Buffers of collectives in flight are limited to ROOM times the largest one:
 * beyond that no collective is chosen early, and no instruction is skipped. The
 * same holds if live bytes would exceed the caller's limit; the caller checks
 * the rest (buffers of collectives) afterwards. Instructions that name a value
 * which one of them writes keep their order, and so do transfers. Work is
 * counted, so the order does not depend on the machine.
 *
 * In a repeated body gradients are complete only in its last run, and
 * everything in post after their reductions reads the norm of all of them, and
 * the word that skips a step. Only the rest of the last run's backward can
 * overlap a reduction. So reductions become instructions of the body that run
 * only in its last run (Instr.last_only), where they are ordered like others:
 *
 *     body  x4  b(w2)  b(w1)          post  reduce w2  reduce w1  norm  update
 *     body  x4  b(w2)  b(w1)          post  norm  update
 *                  reduce w2  reduce w1        (in the fourth run)
 *
 * Updates of the optimizer beside the backward do not pay on one GPU
 * (decisions/updates-beside-backward.md). */
#include "plan.h"

enum { AHEAD = 48, ROOM = 2, SHORT = 8 };

typedef struct TimedInstr {
    int *next; /* vec: tasks that wait for this one */
    int wait;  /* number of tasks that must precede it */
    int beside;
    int behind;       /* number of chosen collectives that precede it */
    double from, end; /* times at which operands, results are computed */
    double tail;      /* seconds from its start to the end of the last task that
                         waits for it */
    double leads;  /* tail of the next collective that waits for it; 0: none */
    double away;   /* seconds to the nearest collective with waiting tasks */
    int64_t bytes; /* bytes of a collective; others: bytes that they free */
    int left, before; /* ring of computing tasks not chosen yet, next and
                         previous; its ends: task n */
    int64_t alive;    /* peak of the model's order after `before` */
} TimedInstr;

typedef struct ValueOrder { /* accesses of a value */
    int wrote;              /* 1 + last task that wrote it */
    int *read;              /* vec: tasks that read it since */
} ValueOrder;

typedef struct Overlap {
    ProgramBuilder *builder;
    Arena *arena;
    const Program *prog;
    OrderRule rule;
    double late; /* factor on the seconds of collectives that others wait for */
    int first, n; /* instructions of the phase */
    TimedInstr *timed;
    ValueOrder *uses;     /* [value] */
    int *ready;           /* vec: collectives that wait for nothing */
    double compute, comm; /* clocks */
    int64_t held, room;
    Load load;      /* load of the model's order; most: the limit */
    int64_t passes; /* largest live bytes at which an instruction was skipped */
    int *flight, done; /* vec: chosen collectives; completed ones */
    int *seq;
} Overlap;

static const Group *group_of(const Overlap *overlap, int i)
{
    return overlap->builder->group[overlap->first + i];
}

/* ---- dependences --------------------------------------------------------- */

static void after(Overlap *overlap, int first, int then)
{
    if (first < 0 || first == then)
        return;
    vec_push(overlap->arena, overlap->timed[first].next, then);
    overlap->timed[then].wait++;
}

static void note_use(Overlap *overlap, int i, int number, int write)
{
    ValueOrder *order = &overlap->uses[number];

    after(overlap, order->wrote - 1, i);
    if (!write) {
        vec_push(overlap->arena, order->read, i);
        return;
    }
    for (size_t k = 0; k < vec_len(order->read); k++)
        after(overlap, order->read[k], i);
    *order = (ValueOrder){ .wrote = i + 1 };
}

static void list_task(Overlap *overlap, int i)
{
    const Group *k = group_of(overlap, i);
    TimedInstr *instr = &overlap->timed[i];

    instr->beside = runs_beside(overlap->builder, &k->instr);
    instr->bytes = instr->beside ? 0 : overlap->load.ends[overlap->first + i];
    for (int j = 0; j < k->narg; j++) {
        const NamedValue *value = &k->named[j];
        if (!value->stored)
            continue;
        note_use(overlap, i, value->number, value->writes);
        if (value->source >= 0) /* copies are placed later (copies.c) */
            note_use(overlap, i, value->source, 0);
        instr->bytes += instr->beside ? value->bytes : 0;
    }
    if (instr->beside && instr->bytes * ROOM > overlap->room)
        overlap->room = instr->bytes * ROOM;
}

static void list_tasks(Overlap *overlap)
{
    int transfer = -1;

    for (int i = 0; i < overlap->n; i++) {
        list_task(overlap, i);
        InstrClass c = instr_info(group_of(overlap, i)->instr.kind)->cls;
        if (c == CLASStransfer ||
            (c == CLASScollective && !overlap->timed[i].beside)) {
            after(overlap, transfer, i);
            transfer = i;
        }
    }
}

/* Removes i from the ring of computing tasks not chosen yet. */
static void unlink_task(Overlap *overlap, int i)
{
    const TimedInstr *t = &overlap->timed[i];
    TimedInstr *next = &overlap->timed[t->left];

    overlap->timed[t->before].left = t->left;
    next->before = t->before;
    next->alive = next->alive > t->alive ? next->alive : t->alive;
}

static void link_tasks(Overlap *overlap)
{
    int n = overlap->n;

    for (int i = 0; i <= n; i++) {
        overlap->timed[i].left = i < n ? i + 1 : 0;
        overlap->timed[i].before = i ? i - 1 : n;
        overlap->timed[i].alive =
            i < n ? overlap->load.alive[overlap->first + i] : 0;
    }
    for (int i = 0; i < n; i++)
        if (overlap->timed[i].beside)
            unlink_task(overlap, i);
}

/* Returns the first computing task not chosen yet; n: none. */
static int low_task(const Overlap *overlap)
{
    return overlap->timed[overlap->n].left;
}

static void measure_tails(Overlap *overlap)
{
    for (int i = overlap->n - 1; i >= 0; i--) {
        TimedInstr *t = &overlap->timed[i];
        double secs = group_of(overlap, i)->instr.secs;
        t->away = INFINITY;
        for (size_t k = 0; k < vec_len(t->next); k++) {
            const TimedInstr *o = &overlap->timed[t->next[k]];
            double leads = o->beside ? o->tail : o->leads;
            double away = !o->beside ? o->away
                          : group_of(overlap, t->next[k])->reg == REGpost
                              ? INFINITY
                              : 0;
            t->tail = t->tail > o->tail ? t->tail : o->tail;
            t->leads = t->leads > leads ? t->leads : leads;
            t->away = t->away < away ? t->away : away;
        }
        t->tail += secs;
        t->away += secs;
    }
}

/* ---- choice of the next task --------------------------------------------- */

/* Returns the collective with the longest work waiting for it, among those that
 * are due or, if the one before is complete and the limit allows, early; among
 * equals the first in the model's order; -1: none. */
static int next_beside(const Overlap *overlap)
{
    int first = -1;

    for (size_t k = 0; k < vec_len(overlap->ready); k++) {
        int i = overlap->ready[k];
        const TimedInstr *instr = &overlap->timed[i];
        int room =
            !overlap->held || overlap->held + instr->bytes <= overlap->room;
        double tail = first < 0 ? -1 : overlap->timed[first].tail;
        if ((i < low_task(overlap) ||
             (room && overlap->comm <= overlap->compute)) &&
            (instr->tail > tail || (instr->tail == tail && i < first)))
            first = i;
    }
    return first;
}

/* Does a collective wait only for i, which takes little time compared with
 * it? */
static int opens(const Overlap *overlap, int i)
{
    const TimedInstr *instr = &overlap->timed[i];
    double secs = group_of(overlap, i)->instr.secs;

    for (size_t k = 0; k < vec_len(instr->next); k++) {
        int then = instr->next[k];
        if (overlap->timed[then].beside && overlap->timed[then].wait == 1 &&
            secs * SHORT <= group_of(overlap, then)->instr.secs)
            return 1;
    }
    return 0;
}

static int is_nearer(const TimedInstr *x, const TimedInstr *y)
{
    return isfinite(x->away) && x->away * SHORT <= y->away;
}

/* Is x chosen before y? The one that leads to longer work is; by nearness, the
 * one that is so much nearer to its collective that it delays little. */
static int goes_before(const Overlap *overlap, const TimedInstr *x,
                       const TimedInstr *y)
{
    if (overlap->rule == ORDERnearest && is_nearer(x, y))
        return 1;
    return x->leads > y->leads &&
           !(overlap->rule == ORDERnearest && is_nearer(y, x));
}

/* Returns, among tasks with computed operands, one that enables a collective,
 * or the one that leads to the longest work after a collective; without such
 * tasks, the one that waits least. */
static int next_compute(Overlap *overlap)
{
    int first = -1, best = -1,
        ahead = overlap->held > overlap->room ? 1 : AHEAD;
    int64_t passed = 0;

    for (int i = low_task(overlap); i < overlap->n && ahead;
         i = overlap->timed[i].left) {
        const TimedInstr *instr = &overlap->timed[i];
        int64_t alive = passed ? instr->alive + passed : 0;
        if (alive > overlap->load.most)
            break;
        overlap->passes = alive > overlap->passes ? alive : overlap->passes;
        ahead--;
        if (instr->wait)
            continue;
        first = first < 0 ? i : first;
        if (instr->from > overlap->compute)
            continue;
        if (overlap->rule == ORDERlongest && opens(overlap, i))
            return i;
        if (best < 0 || goes_before(overlap, instr, &overlap->timed[best]))
            best = i;
        passed += instr->bytes;
    }
    return best < 0 ? first : best;
}

static int any_beside(const Overlap *overlap)
{
    int first = -1;

    for (size_t k = 0; k < vec_len(overlap->ready); k++)
        first =
            first < 0 || overlap->ready[k] < first ? overlap->ready[k] : first;
    return first;
}

/* ---- choosing a task ----------------------------------------------------- */

static void begin_beside(Overlap *overlap, int i)
{
    const TimedInstr *instr = &overlap->timed[i];
    size_t left = 0;

    for (size_t k = 0; k < vec_len(overlap->ready); k++)
        if (overlap->ready[k] != i)
            overlap->ready[left++] = overlap->ready[k];
    vec_cut(overlap->ready, left);
    vec_push(overlap->arena, overlap->flight, i);
    overlap->held += instr->bytes;
    for (size_t k = 0; k < vec_len(instr->next); k++)
        overlap->timed[instr->next[k]].behind = (int)vec_len(overlap->flight);
}

static void take(Overlap *overlap, int i)
{
    TimedInstr *t = &overlap->timed[i];
    double *clock = t->beside ? &overlap->comm : &overlap->compute;
    double start = t->from > overlap->compute ? t->from : overlap->compute;

    start = start > *clock ? start : *clock;
    t->end = *clock = start + group_of(overlap, i)->instr.secs *
                                  (t->beside ? overlap->late : 1);
    if (!t->beside)
        unlink_task(overlap, i);
    vec_push(overlap->arena, overlap->seq, i);
    for (size_t k = 0; k < vec_len(t->next); k++) {
        TimedInstr *o = &overlap->timed[t->next[k]];
        if (!--o->wait && o->beside)
            vec_push(overlap->arena, overlap->ready, t->next[k]);
        o->from = o->from > t->end ? o->from : t->end;
    }
    if (t->beside)
        begin_beside(overlap, i);
    while (!t->beside && overlap->done < t->behind)
        overlap->held -= overlap->timed[overlap->flight[overlap->done++]].bytes;
}

static int next(Overlap *overlap)
{
    int i = vec_len(overlap->seq) ? next_beside(overlap) : -1;

    i = i < 0 ? next_compute(overlap) : i;
    i = i < 0 ? any_beside(overlap) : i;
    if (i < 0)
        die("overlap: instructions wait for each other");
    return i;
}

/* Returns the tasks of phase f and, if it is joined, of the next. */
static Overlap span_of(ProgramBuilder *builder, const Program *program, int f,
                       int joined, Load load)
{
    const Phase *at = &program->phase[f];
    int n = at->n + (joined ? at[1].n : 0);
    Overlap x = { .builder = builder,
                  .arena = arena_new(),
                  .prog = program,
                  .first = at->first,
                  .n = n,
                  .load = load };

    x.timed = alloc(x.arena, sizeof *x.timed * (size_t)(n + 1));
    x.uses = alloc(x.arena, sizeof *x.uses * (size_t)(builder->nnamed + 1));
    list_tasks(&x);
    return x;
}

/* Makes seq the order of the program. */
static void give_order(Overlap *overlap)
{
    Group **was = NULL;

    for (int k = 0; k < overlap->n; k++)
        vec_push(overlap->arena, was,
                 overlap->builder->group[overlap->first + k]);
    for (int k = 0; k < overlap->n; k++)
        overlap->builder->group[overlap->first + k] = was[overlap->seq[k]];
}

/* Sets the number of instructions of the first phase of two. */
static void end_first(Phase *phase, int n)
{
    phase[1].n += phase->n - n;
    phase[1].first += n - phase->n;
    phase->n = n;
}

/* Ends the first phase of two with the last of its original instructions. */
static void end_with_last(const Overlap *overlap, Phase *phase)
{
    int end = phase->n;

    for (int k = 0; k < overlap->n - 1; k++)
        if (overlap->seq[k] < phase->n)
            end = k + 1;
    end_first(phase, end);
}

int64_t order_span(ProgramBuilder *builder, const Program *program, int f,
                   Load load, OrderRule rule, double late)
{
    int joined = joins_next(program, f);
    Overlap x = span_of(builder, program, f, joined, load);

    x.rule = rule;
    x.late = late;
    link_tasks(&x);
    measure_tails(&x);
    for (int i = 0; i < x.n; i++)
        if (x.timed[i].beside && !x.timed[i].wait)
            vec_push(x.arena, x.ready, i);
    for (int k = 0; k < x.n && x.room; k++)
        take(&x, next(&x));
    if (x.room)
        give_order(&x);
    if (x.room && joined)
        end_with_last(&x, &program->phase[f]);
    arena_free(x.arena);
    return x.passes;
}

/* ---- reductions of post -------------------------------------------------- */

/* Returns [task of two phases]: the task itself, or, for collectives and joins
 * of the second phase, the task that it can follow at the earliest. */
static int *earliest_places(Overlap *overlap, int first)
{
    int *place =
        alloc(overlap->arena, sizeof *place * (size_t)(overlap->n + 1));

    for (int i = 0; i < overlap->n; i++) {
        const TimedInstr *t = &overlap->timed[i];
        if (i < first ||
            !(t->beside || group_of(overlap, i)->instr.kind == Ijoin))
            place[i] = i;
        for (size_t k = 0; k < vec_len(t->next); k++) {
            int *then = &place[t->next[k]];
            *then = *then > place[i] ? *then : place[i];
        }
    }
    return place;
}

/* Orders tasks as the model does, except tasks with another place, which follow
 * it. */
static void order_by_place(Overlap *overlap, const int *place)
{
    size_t size = sizeof(int) * (size_t)(overlap->n + 1);
    int *first = alloc(overlap->arena, size),
        *after = alloc(overlap->arena, size);

    for (int k = overlap->n; k-- > 0;)
        if (place[k] != k) {
            after[k] = first[place[k]];
            first[place[k]] = k;
        }
    for (int i = 0; i < overlap->n; i++) {
        if (place[i] == i)
            vec_push(overlap->arena, overlap->seq, i);
        for (int k = first[i]; k && place[i] == i; k = after[k])
            vec_push(overlap->arena, overlap->seq, k);
    }
    give_order(overlap);
}

void hoist_reductions(ProgramBuilder *builder, const Program *program, int f,
                      Load load)
{
    Overlap x = span_of(builder, program, f, 1, load);
    Phase *at = &program->phase[f];

    order_by_place(&x, earliest_places(&x, at->n));
    end_with_last(&x, at);
    arena_free(x.arena);
}

int has_last_run(const Program *program, int f)
{
    const Phase *at = &program->phase[f];

    if (!at->repeat)
        return phase_runs(program, f) > 1;
    return f + 1 < program->nphase && at->reg == REGbody && at->repeat > 1 &&
           at[1].reg == REGpost;
}

int move_to_last_run(ProgramBuilder *builder, const Program *program, int f,
                     Load load)
{
    Overlap x = span_of(builder, program, f, 1, load);
    Phase *at = &program->phase[f];
    int *place = earliest_places(&x, at->n), end = at->n;

    for (int i = at->n; i < x.n; i++)
        if (place[i] < at->n)
            end++;
        else
            place[i] = i;
    int moved = end - at->n;
    order_by_place(&x, place);
    end_first(at, end);
    arena_free(x.arena);
    return moved;
}
