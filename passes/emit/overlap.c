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
#include <string.h>

#include "emit.h"

enum { AHEAD = 48, ROOM = 2, GROWTH = 32 };

typedef struct TimedInstr {
    int *next; /* vec: tasks that wait for this */
    int wait;  /* tasks that must be taken before */
    int beside, taken;
    int behind; /* collectives, as many as were taken, that it is behind */
    double from, end; /* when its operands are there, its results */
    double tail;      /* seconds from its start to the end of the last that
                         waits for it */
    double leads;     /* of the next collective that waits for it; 0: none */
    int64_t bytes;    /* of a collective; others: what they end */
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
    int low;              /* first task that computes and was not taken */
    int *ready;           /* vec: collectives that wait for nothing */
    double compute, comm; /* clocks */
    int64_t held, room;
    Load load;         /* in the model's order; most: that may be */
    int *flight, done; /* vec: collectives as taken; compute is behind these */
    int *seq;
} Overlap;

static const Group *group_of(const Overlap *x, int i)
{
    return x->builder->group[x->first + i];
}

/* ---- what waits for what ------------------------------------------------- */

static void after(Overlap *x, int first, int then)
{
    if (first < 0 || first == then)
        return;
    vec_push(x->arena, x->timed[first].next, then);
    x->timed[then].wait++;
}

static void note_use(Overlap *x, int i, int number, int write)
{
    ValueOrder *u = &x->uses[number];

    after(x, u->wrote - 1, i);
    if (!write) {
        vec_push(x->arena, u->read, i);
        return;
    }
    for (size_t k = 0; k < vec_len(u->read); k++)
        after(x, u->read[k], i);
    *u = (ValueOrder){ .wrote = i + 1 };
}

static void list_task(Overlap *x, int i)
{
    const Group *k = group_of(x, i);
    TimedInstr *t = &x->timed[i];

    t->beside = runs_beside(x->builder, &k->instr);
    t->bytes = t->beside ? 0 : x->load.ends[x->first + i];
    for (int j = 0; j < k->narg; j++) {
        const NamedValue *v = &k->named[j];
        Node *n = v->stored;
        if (!n)
            continue;
        note_use(x, i, v->number, v->writes);
        if (v->source >= 0) /* copies stand aside (copies.c) */
            note_use(x, i, v->source, 0);
        t->bytes += t->beside ? local_bytes(x->builder->graph, n) : 0;
    }
    if (t->beside && t->bytes * ROOM > x->room)
        x->room = t->bytes * ROOM;
}

static void list_tasks(Overlap *x)
{
    int transfer = -1;

    for (int i = 0; i < x->n; i++) {
        list_task(x, i);
        InstrClass c = instr_info(group_of(x, i)->instr.kind)->cls;
        if (c == CLASStransfer ||
            (c == CLASScollective && !x->timed[i].beside)) {
            after(x, transfer, i);
            transfer = i;
        }
    }
}

static void measure_tails(Overlap *x)
{
    for (int i = x->n - 1; i >= 0; i--) {
        TimedInstr *t = &x->timed[i];
        for (size_t k = 0; k < vec_len(t->next); k++) {
            const TimedInstr *o = &x->timed[t->next[k]];
            double leads = o->beside ? o->tail : o->leads;
            t->tail = t->tail > o->tail ? t->tail : o->tail;
            t->leads = t->leads > leads ? t->leads : leads;
        }
        t->tail += group_of(x, i)->instr.secs;
    }
}

/* ---- which is next ------------------------------------------------------- */

/* The collective that most work waits for, of those that are due or, if the one
 * before it is done and what is on its way leaves room, early; of equals the
 * first in the model's order; -1: none. */
static int next_beside(const Overlap *x)
{
    int first = -1;

    for (size_t k = 0; k < vec_len(x->ready); k++) {
        int i = x->ready[k];
        const TimedInstr *t = &x->timed[i];
        int room = !x->held || x->held + t->bytes <= x->room;
        double tail = first < 0 ? -1 : x->timed[first].tail;
        if ((i < x->low || (room && x->comm <= x->compute)) &&
            (t->tail > tail || (t->tail == tail && i < first)))
            first = i;
    }
    return first;
}

/* Of those whose operands are there by now the one that leads to the longest
 * work behind a collective; if there is none, the one that waits least. */
static int next_compute(const Overlap *x)
{
    int first = -1, best = -1, ahead = x->held > x->room ? 1 : AHEAD;
    int64_t passed = 0;

    for (int i = x->low; i < x->n && ahead; i++) {
        const TimedInstr *t = &x->timed[i];
        if (passed && x->load.alive[x->first + i] + passed > x->load.most)
            break;
        if (t->beside || t->taken)
            continue;
        ahead--;
        if (t->wait)
            continue;
        first = first < 0 ? i : first;
        if (t->from > x->compute)
            continue;
        if (best < 0 || t->leads > x->timed[best].leads)
            best = i;
        passed += t->bytes;
    }
    return best < 0 ? first : best;
}

static int any_beside(const Overlap *x)
{
    int first = -1;

    for (size_t k = 0; k < vec_len(x->ready); k++)
        first = first < 0 || x->ready[k] < first ? x->ready[k] : first;
    return first;
}

/* ---- taking it ----------------------------------------------------------- */

static void begin_beside(Overlap *x, int i)
{
    const TimedInstr *t = &x->timed[i];
    size_t left = 0;

    for (size_t k = 0; k < vec_len(x->ready); k++)
        if (x->ready[k] != i)
            x->ready[left++] = x->ready[k];
    vec_cut(x->ready, left);
    vec_push(x->arena, x->flight, i);
    x->held += t->bytes;
    for (size_t k = 0; k < vec_len(t->next); k++)
        x->timed[t->next[k]].behind = (int)vec_len(x->flight);
}

static void take(Overlap *x, int i)
{
    TimedInstr *t = &x->timed[i];
    double *clock = t->beside ? &x->comm : &x->compute;
    double start = t->from > x->compute ? t->from : x->compute;

    start = start > *clock ? start : *clock;
    t->end = *clock = start + group_of(x, i)->instr.secs;
    t->taken = 1;
    vec_push(x->arena, x->seq, i);
    for (size_t k = 0; k < vec_len(t->next); k++) {
        TimedInstr *o = &x->timed[t->next[k]];
        if (!--o->wait && o->beside)
            vec_push(x->arena, x->ready, t->next[k]);
        o->from = o->from > t->end ? o->from : t->end;
    }
    if (t->beside)
        begin_beside(x, i);
    while (!t->beside && x->done < t->behind)
        x->held -= x->timed[x->flight[x->done++]].bytes;
}

static int next(Overlap *x)
{
    while (x->low < x->n && (x->timed[x->low].beside || x->timed[x->low].taken))
        x->low++;
    int i = vec_len(x->seq) ? next_beside(x) : -1;

    i = i < 0 ? next_compute(x) : i;
    i = i < 0 ? any_beside(x) : i;
    if (i < 0)
        die("overlap: instructions wait for each other");
    return i;
}

static Overlap span_of(ProgramBuilder *m, const Program *p, int f, Load load)
{
    const Phase *at = &p->phase[f];
    int n = at->n + (joins_next(p, f) ? at[1].n : 0);
    Overlap x = { .builder = m,
                  .arena = arena_new(),
                  .prog = p,
                  .first = at->first,
                  .n = n,
                  .load = load };

    x.timed = alloc(x.arena, sizeof *x.timed * (size_t)(n + 1));
    x.uses = alloc(x.arena, sizeof *x.uses * (size_t)(m->nnamed + 1));
    list_tasks(&x);
    return x;
}

/* The order seq becomes the program's; the first phase of the span ends with
 * the last of those that it had, `had`. */
static void give_order(Overlap *x, Phase *f, int had, int joined)
{
    Group **was = NULL;
    int end = had;

    for (int k = 0; k < x->n; k++)
        vec_push(x->arena, was, x->builder->group[x->first + k]);
    for (int k = 0; k < x->n; k++)
        x->builder->group[x->first + k] = was[x->seq[k]];
    for (int k = 0; k < x->n - 1; k++)
        if (x->seq[k] < had)
            end = k + 1;
    if (!joined)
        return;
    f[1].n += f->n - end;
    f[1].first += end - f->n;
    f->n = end;
}

static void order_span(ProgramBuilder *m, const Program *p, int f, Load load)
{
    Overlap x = span_of(m, p, f, load);

    measure_tails(&x);
    for (int i = 0; i < x.n; i++)
        if (x.timed[i].beside && !x.timed[i].wait)
            vec_push(x.arena, x.ready, i);
    for (int k = 0; k < x.n && x.room; k++)
        take(&x, next(&x));
    if (x.room)
        give_order(&x, &p->phase[f], p->phase[f].n, joins_next(p, f));
    arena_free(x.arena);
}

/* Buckets are reduced in post: in the model's order of a span, as soon as their
 * gradients are there. */
static void hoist_reductions(ProgramBuilder *m, const Program *p, int f,
                             Load load)
{
    Overlap x = span_of(m, p, f, load);
    Phase *at = &p->phase[f];
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
static int64_t spread(ProgramBuilder *m, Program *p, Load load, int64_t more)
{
    load.most += more;
    for (int f = 0; f < p->nphase; f += 1 + joins_next(p, f))
        order_span(m, p, f, load);
    for (int i = 0; i < p->ninstr; i++)
        p->instr[i] = m->group[i]->instr;
    put_streams(m, p);
    return layout_load(m->arena, m->graph, m->group, p).most;
}

void order_beside(ProgramBuilder *m, Program *p)
{
    Group **group = NULL;
    Phase *phase = NULL;
    int beside = 0;

    for (int i = 0; i < p->ninstr; i++)
        beside |= runs_beside(m, &p->instr[i]);
    if (!beside)
        return;
    Load load = layout_load(m->arena, m->graph, m->group, p);
    int64_t most = load.most;
    int64_t more = (most + lasting_bytes(m->arena, &m->graph, 1)) / GROWTH;
    for (int f = 0; f < p->nphase; f++)
        if (joins_next(p, f))
            hoist_reductions(m, p, f, load);
    load = layout_load(m->arena, m->graph, m->group, p);
    load.most = most;
    for (int i = 0; i < p->ninstr; i++)
        vec_push(m->arena, group, m->group[i]);
    for (int i = 0; i < p->nphase; i++)
        vec_push(m->arena, phase, p->phase[i]);
    int64_t room = more;
    while (spread(m, p, load, room) > most + more && room) {
        room = room > more / GROWTH ? room / 4 : 0;
        memcpy(m->group, group, sizeof *group * (size_t)p->ninstr);
        memcpy(p->phase, phase, sizeof *phase * (size_t)p->nphase);
    }
}
