/* streams.c: collectives go to a stream of their own, beside what computes, and
 * so do copies to the host's memory (copy) and from it (reload), and what its
 * processors do (host).
 *
 *     compute   a record=e1                      b   c   d wait=e2
 *     comm                    gather wait=e1 record=e2
 *
 * The order of the program stays: what leaves is behind all of compute that
 * stands before it, and what stands behind it goes on until an instruction
 * names a value that it writes, or writes one that it names. That one waits.
 * Where a copy to the host is predicted to be done, compute waits for it too:
 * the value's place is free from there. Streams come together at the end of
 * each phase, so what runs there is as if it ran on one; a body that runs once
 * and post are one. A wait that an earlier one implies is not said.
 *
 * What runs in the last run of its phase alone (last_only) is behind whatever
 * others are behind. They are not behind it, nor behind what it alone waits
 * for: other runs do not have it. So each stream is known twice, as in every
 * run and as in the last; from the end of the phase on both are one, of calls
 * from the end of all.
 *
 * Kernels of the host meet compute in no memory, and do not wait for it; for
 * places in the host's memory they and copies wait as update_order.c says.
 *
 * What meets is told by values, before they have places. alloc.c leaves alone
 * what another stream names until compute is behind it; ir/verify/streams.c
 * proves of the whole plan that no two accesses race. */
#include "plan.h"

/* The last instruction of each other stream that writes and names a value, from
 * 1. */
typedef struct InFlight {
    int wrote[NSTREAM], named[NSTREAM];
} InFlight;

enum { EVERY, LAST, NRUN }; /* run of a phase */

/* Up to where a stream is behind others. */
typedef struct KnownStreams {
    int of[NRUN][NSTREAM];
} KnownStreams;

typedef struct Streams {
    ProgramBuilder *builder;
    Program *prog;
    Arena *arena;
    InFlight *flight;        /* by number of values */
    char sent[NSTREAM];      /* any instruction */
    int overlap;             /* collectives may leave */
    int first;               /* instruction of the phase, from 0 */
    int last[NRUN][NSTREAM]; /* instruction that stood last, from 1 */
    KnownStreams known[NSTREAM];
    KnownStreams *there;       /* by instruction: its stream's then */
    double now[NSTREAM], *end; /* predicted; end: of each instruction */
    int *copy;                 /* vec: to the host, in order */
    size_t done;               /* of them are over by now */
    Table *at; /* group that is of the host -> its instruction */
    int events;
    int apart; /* the first of calls' last rows alone, from 1; 0: none */
} Streams;

/* The first of the runs in which an instruction stands; all behind do too. */
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

/* The last instruction of a stream that i has to be behind; 0: none. */
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

/* One over stages stays: the others stand in it with their compute. */
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

/* Of stream `on`, which waits for the instruction before `behind` where it is
 * not behind that: so it is behind all that compute was behind there. */
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

/* Body, and post behind it: both run once, so nothing keeps them apart. */
int joins_next(const Program *program, int phase)
{
    const Phase *f = &program->phase[phase];

    return phase + 1 < program->nphase && f->reg == REGbody && f->repeat == 1 &&
           f[1].repeat == 1;
}

/* A collective does not leave where the next instruction would have to wait for
 * it, and for it alone, in the last run too. */
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
        return STREAMcompute; /* init's are done one after another */
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

/* The last copy to the host that is over by now. */
static int copied(Streams *streams)
{
    while (streams->done < vec_len(streams->copy) &&
           streams->end[streams->copy[streams->done]] <=
               streams->now[STREAMcompute])
        streams->done++;
    return streams->done ? streams->copy[streams->done - 1] + 1 : 0;
}

/* Of that stream, behind what the group is told to be. */
static int told(const Streams *streams, int i, StreamKind of)
{
    const Group *behind = streams->builder->group[i]->behind;
    int at = behind ? (int)(uintptr_t)table_get(streams->at, KEYP(behind)) : 0;

    return at && streams->prog->instr[at - 1].issue.stream == of ? at : 0;
}

/* Of compute. Updates on the host's processors, and what post copies to the
 * host's memory, wait for what they meet: what else computes there may wait for
 * them. */
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

/* Rows of a call may stand between the last ones of others: behind one nobody
 * is known to be behind what its last row alone has on comm. */
static void end_call(Streams *streams)
{
    for (int s = 0; s < NSTREAM && streams->apart; s++) {
        int *known = &streams->known[s].of[LAST][STREAMcomm];
        *known = *known < streams->apart ? *known : streams->apart - 1;
    }
}

/* Behind a phase its last run was the run; calls, whose last rows follow each
 * other in their order, end together. */
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
