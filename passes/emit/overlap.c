/* overlap.c: the order in which instructions of a phase, or of body and post
 * where each runs once, leave collectives something to run beside.
 *
 * Two clocks are kept, of what computes and of collectives, and instructions
 * are taken one by one. A collective is taken as soon as its operands are there
 * and the one before it is done: a gather of weights while the layer before
 * computes. Otherwise, of the next AHEAD instructions of the model's order, the
 * one is taken whose operands are there by now and behind whose next collective
 * the longest work waits: what leads to no collective, as the gradients of
 * weights, is left for the time in which one runs.
 *
 *     model's order   dx  dw  scatter dx    dx2  dw2  gather w  b(w)
 *     taken           dx  scatter dx   dx2  gather w  b(w)
 *                         dw                dw2
 *
 * What collectives on their way hold is limited to ROOM times the largest of
 * them: beyond it no collective is taken early, and nothing is passed over. Nor
 * is it where more would be alive at once than the largest sum of the model's
 * order and a GROWTHth of all memory; what that leaves out (what collectives
 * hold) is looked at behind, and the order made again with less. All
 * instructions that name a value which one of them writes keep their order,
 * transfers too. The numbers are counted, so each machine takes one order.
 *
 * Where the body repeats, reductions of post have nothing beside them:
 * gradients are whole only behind the last run, and all that follows reads the
 * norm of all of them, and the word that holds a step back. What could run
 * there is the last run's backward, if it had instructions of its own. */
#include "emit.h"

enum { AHEAD = 48, ROOM = 2, GROWTH = 32 };

typedef struct TimedInstr {
    int *next; /* vec: tasks that wait for this */
    int wait;  /* tasks that must be taken before */
    int beside;
    int behind; /* collectives, as many as were taken, that it is behind */
    double from, end; /* when its operands are there, its results */
    double tail;      /* seconds from its start to the end of the last that
                         waits for it */
    double leads;     /* of the next collective that waits for it; 0: none */
    int64_t bytes;    /* of a collective; others: what they end */
    int left, before; /* the next and last that compute and are not taken; the
                         ends of their ring: task n */
    int64_t alive;    /* most in the model's order, from behind `before` on */
} TimedInstr;

typedef struct ValueOrder { /* of a value */
    int wrote;              /* task + 1 */
    int *read;              /* vec: since then */
} ValueOrder;

typedef struct Overlap {
    ProgramBuilder *builder;
    Arena *arena;
    const Program *prog;
    int first, n; /* instructions of the phase */
    TimedInstr *timed;
    ValueOrder *uses;     /* by number of values */
    int *ready;           /* vec: collectives that wait for nothing */
    double compute, comm; /* clocks */
    int64_t held, room;
    Load load;         /* in the model's order; most: that may be */
    int *flight, done; /* vec: collectives as taken; compute is behind these */
    int *seq;
} Overlap;

static const Group *group_of(const Overlap *overlap, int i)
{
    return overlap->builder->group[overlap->first + i];
}

/* ---- what waits for what ------------------------------------------------- */

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
        Node *n = value->stored;
        if (!n)
            continue;
        note_use(overlap, i, value->number, value->writes);
        if (value->source >= 0) /* copies stand aside (copies.c) */
            note_use(overlap, i, value->source, 0);
        instr->bytes +=
            instr->beside ? local_bytes(overlap->builder->graph, n) : 0;
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

/* Takes i out of the ring of those that compute and are not taken. */
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

/* The first task that computes and was not taken; n: none is left. */
static int low_task(const Overlap *overlap)
{
    return overlap->timed[overlap->n].left;
}

static void measure_tails(Overlap *overlap)
{
    for (int i = overlap->n - 1; i >= 0; i--) {
        TimedInstr *t = &overlap->timed[i];
        for (size_t k = 0; k < vec_len(t->next); k++) {
            const TimedInstr *o = &overlap->timed[t->next[k]];
            double leads = o->beside ? o->tail : o->leads;
            t->tail = t->tail > o->tail ? t->tail : o->tail;
            t->leads = t->leads > leads ? t->leads : leads;
        }
        t->tail += group_of(overlap, i)->instr.secs;
    }
}

/* ---- which is next ------------------------------------------------------- */

/* The collective that most work waits for, of those that are due or, if the one
 * before it is done and what is on its way leaves room, early; of equals the
 * first in the model's order; -1: none. */
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

/* Of those whose operands are there by now the one that leads to the longest
 * work behind a collective; if there is none, the one that waits least. */
static int next_compute(const Overlap *overlap)
{
    int first = -1, best = -1,
        ahead = overlap->held > overlap->room ? 1 : AHEAD;
    int64_t passed = 0;

    for (int i = low_task(overlap); i < overlap->n && ahead;
         i = overlap->timed[i].left) {
        const TimedInstr *instr = &overlap->timed[i];
        if (passed && instr->alive + passed > overlap->load.most)
            break;
        ahead--;
        if (instr->wait)
            continue;
        first = first < 0 ? i : first;
        if (instr->from > overlap->compute)
            continue;
        if (best < 0 || instr->leads > overlap->timed[best].leads)
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

/* ---- taking it ----------------------------------------------------------- */

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
    t->end = *clock = start + group_of(overlap, i)->instr.secs;
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

static Overlap span_of(ProgramBuilder *builder, const Program *program, int f,
                       Load load)
{
    const Phase *at = &program->phase[f];
    int n = at->n + (joins_next(program, f) ? at[1].n : 0);
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

/* The order seq becomes the program's; the first phase of the span ends with
 * the last of those that it had, `had`. */
static void give_order(Overlap *overlap, Phase *phase, int had, int joined)
{
    Group **was = NULL;
    int end = had;

    for (int k = 0; k < overlap->n; k++)
        vec_push(overlap->arena, was,
                 overlap->builder->group[overlap->first + k]);
    for (int k = 0; k < overlap->n; k++)
        overlap->builder->group[overlap->first + k] = was[overlap->seq[k]];
    for (int k = 0; k < overlap->n - 1; k++)
        if (overlap->seq[k] < had)
            end = k + 1;
    if (!joined)
        return;
    phase[1].n += phase->n - end;
    phase[1].first += end - phase->n;
    phase->n = end;
}

static void order_span(ProgramBuilder *builder, const Program *program, int f,
                       Load load)
{
    Overlap x = span_of(builder, program, f, load);

    link_tasks(&x);
    measure_tails(&x);
    for (int i = 0; i < x.n; i++)
        if (x.timed[i].beside && !x.timed[i].wait)
            vec_push(x.arena, x.ready, i);
    for (int k = 0; k < x.n && x.room; k++)
        take(&x, next(&x));
    if (x.room)
        give_order(&x, &program->phase[f], program->phase[f].n,
                   joins_next(program, f));
    arena_free(x.arena);
}

/* Buckets are reduced in post: in the model's order of a span, as soon as their
 * gradients are there. */
static void hoist_reductions(ProgramBuilder *builder, const Program *program,
                             int f, Load load)
{
    Overlap x = span_of(builder, program, f, load);
    Phase *at = &program->phase[f];
    int *place = alloc(x.arena, sizeof *place * (size_t)(x.n + 1));
    int *first = alloc(x.arena, sizeof *first * (size_t)(x.n + 1));
    int *after = alloc(x.arena, sizeof *after * (size_t)(x.n + 1));

    for (int i = 0; i < x.n; i++) {
        int early = x.timed[i].beside || group_of(&x, i)->instr.kind == Ijoin;
        if (i < at->n || !early)
            place[i] = i;
        for (size_t k = 0; k < vec_len(x.timed[i].next); k++) {
            int *then = &place[x.timed[i].next[k]];
            *then = *then > place[i] ? *then : place[i];
        }
    }
    for (int k = x.n; k-- > at->n;)
        if (place[k] != k) {
            after[k] = first[place[k]];
            first[place[k]] = k;
        }
    for (int i = 0; i < x.n; i++) {
        if (place[i] == i)
            vec_push(x.arena, x.seq, i);
        for (int k = first[i]; k && place[i] == i; k = after[k])
            vec_push(x.arena, x.seq, k);
    }
    give_order(&x, at, at->n, 1);
    arena_free(x.arena);
}

/* With so much more alive than in the model's order, as far as that tells; how
 * much there is. */
static int64_t spread(ProgramBuilder *builder, Program *program, Load load,
                      int64_t more)
{
    load.most += more;
    for (int f = 0; f < program->nphase; f += 1 + joins_next(program, f))
        order_span(builder, program, f, load);
    for (int i = 0; i < program->ninstr; i++)
        program->instr[i] = builder->group[i]->instr;
    put_streams(builder, program);
    return layout_load(builder->arena, builder->graph, builder->group, program)
        .most;
}

void order_beside(ProgramBuilder *builder, Program *program)
{
    Group **group = NULL;
    Phase *phase = NULL;
    int beside = 0;

    for (int i = 0; i < program->ninstr; i++)
        beside |= runs_beside(builder, &program->instr[i]);
    if (!beside)
        return;
    Load load =
        layout_load(builder->arena, builder->graph, builder->group, program);
    int64_t most = load.most;
    int64_t more =
        (most + lasting_bytes(builder->arena, &builder->graph, 1)) / GROWTH;
    int hoisted = 0;
    for (int f = 0; f < program->nphase; f++)
        if (joins_next(program, f)) {
            hoist_reductions(builder, program, f, load);
            hoisted = 1;
        }
    if (hoisted)
        load = layout_load(builder->arena, builder->graph, builder->group,
                           program);
    load.most = most;
    for (int i = 0; i < program->ninstr; i++)
        vec_push(builder->arena, group, builder->group[i]);
    for (int i = 0; i < program->nphase; i++)
        vec_push(builder->arena, phase, program->phase[i]);
    int64_t room = more;
    while (spread(builder, program, load, room) > most + more && room) {
        room = room > more / GROWTH ? room / 4 : 0;
        memcpy(builder->group, group, sizeof *group * (size_t)program->ninstr);
        memcpy(program->phase, phase, sizeof *phase * (size_t)program->nphase);
    }
}
