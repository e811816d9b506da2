/* streams.c: assigns streams: collectives run on their own stream beside
 * computation, and so do copies to host memory (copy) and from it (reload), and
 * kernels of the host's processors (host).
 *
 *     compute   a record=e1                      b   c   d wait=e2
 *     comm                    gather wait=e1 record=e2
 *
 * Program order stays: an instruction on a side stream runs after all earlier
 * compute instructions, and later ones continue until one names a value that it
 * writes, or writes a value that it names; that one waits. Where a copy to the
 * host is predicted to be complete, compute waits for it too, which frees the
 * value's place. Streams join at the end of each phase; a body that runs once
 * and post are one phase here. A wait that an earlier one implies is left out.
 *
 * Instructions of the last run only (last_only) run after everything that
 * others run after. Others must not rely on them, nor on their waits, since
 * other runs do not have them. So the state of each stream is tracked twice,
 * for every run and for the last one; both are one from the end of the phase,
 * for calls from the end of all.
 *
 * Kernels of the host share no memory with compute and do not wait for it; they
 * and copies wait for places in host memory as update_order.c states.
 *
 * Conflicts are found on values, before addresses exist. alloc.c does not reuse
 * the place of a value named by another stream until compute runs after it;
 * ir/verify/streams.c proves for the whole plan that no two accesses race. */
#include "plan.h"

/* The last instruction of each other stream that writes, and that names, a
 * value, from 1. */
typedef struct InFlight {
    int wrote[NSTREAM], named[NSTREAM];
} InFlight;

enum { EVERY, LAST, NRUN }; /* run of a phase */

/* Last instructions of other streams that precede a stream's next one. */
typedef struct KnownStreams {
    int of[NRUN][NSTREAM];
} KnownStreams;

typedef struct Streams {
    ProgramBuilder *builder;
    Program *prog;
    Arena *arena;
    InFlight *flight;        /* [value] */
    char sent[NSTREAM];      /* has the stream any instruction? */
    int overlap;             /* collectives may leave compute */
    int first;               /* first instruction of the phase, from 0 */
    int last[NRUN][NSTREAM]; /* last instruction of a stream, from 1 */
    KnownStreams known[NSTREAM];
    KnownStreams *there;       /* [instruction]: state of its stream */
    double now[NSTREAM], *end; /* predicted times; end: [instruction] */
    int *copy;                 /* vec: copies to the host, in order */
    size_t done;               /* number of completed ones */
    Table *at;                 /* group of the host -> its instruction */
    int events;
    int apart; /* first instruction of calls' last rows only, from 1; 0: none */
} Streams;

/* Returns the first kind of run that has the instruction; later kinds have it
 * too. */
static int run_of(const Streams *streams, int i)
{
    return streams->prog->instr[i].last_only ? LAST : EVERY;
}

static void send_off(Streams *streams, StreamKind on, int i)
{
    const Group *group = streams->builder->group[i];

    streams->sent[on] = 1;
    for (int j = 0; j < group->narg; j++) {
        const NamedValue *value = &group->named[j];
        if (!value->stored)
            continue;
        streams->flight[value->number].named[on] = i + 1;
        if (value->writes)
            streams->flight[value->number].wrote[on] = i + 1;
    }
}

/* Returns the last instruction of a stream that must precede i; 0: none. */
static int meets(const Streams *streams, int i, StreamKind with)
{
    const Group *group = streams->builder->group[i];
    int last = 0, any = streams->sent[with];

    for (int j = 0; j < group->narg && any; j++) {
        const NamedValue *value = &group->named[j];
        const InFlight *flight = &streams->flight[value->number];
        int at = !value->stored  ? 0
                 : value->writes ? flight->named[with]
                                 : flight->wrote[with];
        last = at > last ? at : last;
    }
    return last;
}

/* Can the collective leave compute? One over stages stays: the others run it on
 * compute. */
int runs_beside(const ProgramBuilder *builder, const Instr *instr)
{
    return instr_info(instr->kind)->cls == CLASScollective &&
           !(builder->graph->mesh &&
             instr->atoms & builder->graph->mesh->mask[Mpp]);
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* Makes stream `on` wait for the last instruction of stream `of` that must
 * precede i, unless an earlier wait implies it; its state then includes that of
 * the instruction. */
static void stay_behind(Streams *streams, int i, StreamKind on, StreamKind of,
                        int behind)
{
    Issue *issue = &streams->prog->instr[i].issue;
    KnownStreams *known = &streams->known[on];

    if (behind <= known->of[run_of(streams, i)][of])
        return;
    Issue *first = &streams->prog->instr[behind - 1].issue;
    if (!first->record)
        first->record = ++streams->events;
    vec_push(streams->builder->arena, issue->wait, first->record);
    issue->nwait++;
    for (int run = run_of(streams, i); run < NRUN; run++) {
        const int *there = streams->there[behind - 1].of[run];
        known->of[run][of] = most(known->of[run][of], behind);
        for (int t = 0; t < NSTREAM && of == STREAMcompute; t++)
            known->of[run][t] = most(known->of[run][t], there[t]);
    }
    if (streams->now[on] < streams->end[behind - 1])
        streams->now[on] = streams->end[behind - 1];
}

/* Are the phase and the next one a body and post that both run once? */
int joins_next(const Program *program, int phase)
{
    const Phase *f = &program->phase[phase];

    return phase + 1 < program->nphase && f->reg == REGbody && f->repeat == 1 &&
           f[1].repeat == 1;
}

/* Does a collective leave compute? Not if the next instruction would have to
 * wait for it, and only for it, in the last run too. */
static int leaves(Streams *streams, int i)
{
    KnownStreams *known = &streams->known[STREAMcompute];

    send_off(streams, STREAMcomm, i);
    if (streams->last[LAST][STREAMcomm] > known->of[LAST][STREAMcomm] ||
        meets(streams, i + 1, STREAMcomm) != i + 1)
        return 1;
    for (int run = run_of(streams, i); run < NRUN; run++)
        known->of[run][STREAMcomm] = i + 1;
    return 0;
}

static StreamKind stream_of_host(Streams *streams, int i)
{
    const Group *group = streams->builder->group[i];

    if (!program_trains(streams->builder->graph->prog))
        return STREAMcompute; /* init runs its collectives in order */
    StreamKind on = group->host                   ? STREAMhost
                    : lies_in_host(group->out[0]) ? STREAMcopy
                                                  : STREAMreload;
    if (on == STREAMcopy && !is_gradient(storage(group->in[0])))
        vec_push(streams->arena, streams->copy, i);
    return on;
}

static int is_of_host(const Group *group)
{
    return group->host || group->fam == FAMcopy;
}

static StreamKind stream_of(Streams *streams, int i)
{
    if (!is_of_host(streams->builder->group[i]))
        return streams->overlap &&
                       runs_beside(streams->builder,
                                   &streams->prog->instr[i]) &&
                       leaves(streams, i)
                   ? STREAMcomm
                   : STREAMcompute;
    return stream_of_host(streams, i);
}

/* Returns the last copy to the host predicted to be complete. */
static int copied(Streams *streams)
{
    while (streams->done < vec_len(streams->copy) &&
           streams->end[streams->copy[streams->done]] <=
               streams->now[STREAMcompute])
        streams->done++;
    return streams->done ? streams->copy[streams->done - 1] + 1 : 0;
}

/* Returns the instruction of that stream that Group.behind names for i. */
static int told(const Streams *streams, int i, StreamKind of)
{
    const Group *behind = streams->builder->group[i]->behind;
    int at = behind ? (int)(uintptr_t)table_get(streams->at, KEYP(behind)) : 0;

    return at && streams->prog->instr[at - 1].issue.stream == of ? at : 0;
}

/* Returns the compute instruction that must precede i. Updates on the host's
 * processors, and copies of post to host memory, wait only for conflicts, since
 * compute may wait for them. */
static int behind_compute(const Streams *streams, int i, StreamKind on)
{
    const Group *group = streams->builder->group[i];
    int meet = meets(streams, i, STREAMcompute),
        sent = on == STREAMcopy && group->reg == REGpost;

    if (on != STREAMhost && !sent)
        return streams->last[run_of(streams, i)][STREAMcompute];
    return sent && meet <= streams->first ? streams->first + 1 : meet;
}

static int behind_which(Streams *streams, int i, StreamKind on, StreamKind of,
                        int end)
{
    const Instr *instr = &streams->prog->instr[i];
    int all = end || (of == STREAMcomm &&
                      instr_info(instr->kind)->cls == CLASScollective);

    if (all && on == STREAMcompute)
        return streams->last[run_of(streams, i)][of];
    if (of == STREAMcompute)
        return behind_compute(streams, i, on);
    int meet = meets(streams, i, of),
        over = on == STREAMcompute && of == STREAMcopy ? copied(streams)
                                                       : told(streams, i, of);
    return over > meet ? over : meet;
}

int phase_end(const Program *program, const Phase *phase)
{
    int i = phase->first + phase->n - 1;

    while (i > phase->first && program->instr[i].last_only)
        i--;
    return i;
}

static void put_instr(Streams *streams, int phase, int i)
{
    Instr *instr = &streams->prog->instr[i];
    const Phase *f = &streams->prog->phase[phase];
    int end =
        i == phase_end(streams->prog, f) && !joins_next(streams->prog, phase);
    StreamKind on =
        i > f->first && !end ? stream_of(streams, i) : STREAMcompute;

    for (int of = 0; of < NSTREAM; of++)
        if ((StreamKind)of != on)
            stay_behind(streams, i, on, (StreamKind)of,
                        behind_which(streams, i, on, (StreamKind)of, end));
    send_off(streams, on, i);
    if (is_of_host(streams->builder->group[i]))
        *table_at(streams->at, KEYP(streams->builder->group[i])) =
            (void *)(uintptr_t)(i + 1);
    streams->there[i] = streams->known[on];
    instr->issue.stream = on;
    if (!f->repeat && instr->last_only && on == STREAMcomm && !streams->apart)
        streams->apart = i + 1;
    for (int run = run_of(streams, i); run < NRUN; run++)
        streams->last[run][on] = i + 1;
    streams->end[i] = streams->now[on] += instr->secs;
}

/* Ends a call. Rows of a call may run between the last rows of others, so no
 * later instruction may rely on collectives of its last row. */
static void end_call(Streams *streams)
{
    for (int s = 0; s < NSTREAM && streams->apart; s++) {
        int *known = &streams->known[s].of[LAST][STREAMcomm];
        *known = *known < streams->apart ? *known : streams->apart - 1;
    }
}

/* Ends a phase: the state of its last run becomes the state. Calls, whose last
 * rows are in order, end together. */
static void end_runs(Streams *streams, int phase)
{
    const Phase *f = &streams->prog->phase[phase];

    if (!f->repeat)
        end_call(streams);
    if (!f->repeat && phase + 1 < streams->prog->nphase && !f[1].repeat)
        return;
    for (int s = 0; s < NSTREAM; s++) {
        KnownStreams *known = &streams->known[s];
        memcpy(known->of[EVERY], known->of[LAST], sizeof known->of[EVERY]);
        streams->last[EVERY][s] = streams->last[LAST][s];
    }
}

void put_streams(ProgramBuilder *builder, Program *program)
{
    Streams x = { .builder = builder, .prog = program, .arena = arena_new() };

    x.flight = alloc(x.arena, sizeof *x.flight * (size_t)(builder->nnamed + 1));
    x.overlap = (int)opts_int(builder->graph->opts, "fold.overlap");
    x.end = alloc(x.arena, sizeof *x.end * (size_t)(program->ninstr + 1));
    x.there = alloc(x.arena, sizeof *x.there * (size_t)(program->ninstr + 1));
    x.at = table_new(x.arena);
    for (int f = 0; f < program->nphase; f++) {
        x.first = program->phase[f].first;
        for (int k = 0; k < program->phase[f].n; k++)
            put_instr(&x, f, x.first + k);
        end_runs(&x, f);
    }
    arena_free(x.arena);
}
