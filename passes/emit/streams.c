/* streams.c: collectives go to a stream of their own, beside what computes, and
 * so do copies to the host's memory (copy) and from it (reload).
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
 * What meets is told by values, before they have places. alloc.c leaves alone
 * what another stream names until compute is behind it, and ir/streams.c proves
 * of the whole plan that no two accesses race. */
#include "emit.h"

/* The last instruction of each other stream that writes and names a value, from
 * 1. */
typedef struct InFlight {
    int wrote[NSTREAM], named[NSTREAM];
} InFlight;

typedef struct Streams {
    ProgramBuilder *builder;
    Program *prog;
    Arena *arena;
    InFlight *flight;  /* by number of values */
    int overlap;       /* collectives may leave */
    int last[NSTREAM]; /* instruction that stood last, from 1 */
    int known[NSTREAM]
             [NSTREAM];        /* by stream: up to where it is behind others */
    double now[NSTREAM], *end; /* predicted; end: of each instruction */
    int *copy;                 /* vec: to the host, in order */
    size_t done;               /* of them are over by now */
    int events;
} Streams;

static void send_off(Streams *x, StreamKind on, int i)
{
    const Group *k = x->builder->group[i];

    for (int j = 0; j < k->narg; j++) {
        const NamedValue *n = &k->named[j];
        if (!n->stored)
            continue;
        x->flight[n->number].named[on] = i + 1;
        if (n->writes)
            x->flight[n->number].wrote[on] = i + 1;
    }
}

/* The last instruction of a stream that i has to be behind; 0: none. */
static int meets(const Streams *x, int i, StreamKind with)
{
    const Group *k = x->builder->group[i];
    int last = 0;

    for (int j = 0; j < k->narg; j++) {
        const NamedValue *n = &k->named[j];
        const InFlight *f = &x->flight[n->number];
        int at = !n->stored ? 0 : n->writes ? f->named[with] : f->wrote[with];
        last = at > last ? at : last;
    }
    return last;
}

/* One over stages stays: the others stand in it with their compute. */
int runs_beside(const ProgramBuilder *m, const Instr *s)
{
    return instr_info(s->kind)->cls == CLASScollective &&
           !(m->graph->mesh && s->atoms & m->graph->mesh->mask[Mpp]);
}

/* Of stream `on`, which waits for the instruction before `behind` where it is
 * not behind that: so it is behind all that compute was behind there. */
static void stay_behind(Streams *x, int i, StreamKind on, StreamKind of,
                        int behind)
{
    Issue *l = &x->prog->instr[i].issue;

    if (behind <= x->known[on][of])
        return;
    Issue *first = &x->prog->instr[behind - 1].issue;
    if (!first->record)
        first->record = ++x->events;
    vec_push(x->builder->arena, l->wait, first->record);
    l->nwait++;
    x->known[on][of] = behind;
    for (int t = 0; t < NSTREAM && of == STREAMcompute; t++)
        if (x->known[on][t] < x->known[of][t])
            x->known[on][t] = x->known[of][t];
    if (x->now[on] < x->end[behind - 1])
        x->now[on] = x->end[behind - 1];
}

/* Body, and post behind it: both run once, so nothing keeps them apart. */
int joins_next(const Program *p, int phase)
{
    const Phase *f = &p->phase[phase];

    return phase + 1 < p->nphase && f->reg == REGbody && f->repeat == 1 &&
           f[1].repeat == 1;
}

/* A collective does not leave where the next instruction would have to wait for
 * it, and for it alone. */
static int leaves(Streams *x, int i)
{
    send_off(x, STREAMcomm, i);
    if (x->last[STREAMcomm] > x->known[STREAMcompute][STREAMcomm] ||
        meets(x, i + 1, STREAMcomm) != i + 1)
        return 1;
    x->known[STREAMcompute][STREAMcomm] = i + 1;
    return 0;
}

static StreamKind stream_of(Streams *x, int i)
{
    const Group *k = x->builder->group[i];

    if (k->fam != FAMcopy)
        return x->overlap && runs_beside(x->builder, &x->prog->instr[i]) &&
                       leaves(x, i)
                   ? STREAMcomm
                   : STREAMcompute;
    if (!program_trains(x->builder->graph->prog))
        return STREAMcompute; /* init's are done one after another */
    StreamKind on = k->node[0]->op == Oreload ? STREAMreload : STREAMcopy;
    send_off(x, on, i);
    if (on == STREAMcopy)
        vec_push(x->arena, x->copy, i);
    return on;
}

/* The last copy to the host that is over by now. */
static int copied(Streams *x)
{
    while (x->done < vec_len(x->copy) &&
           x->end[x->copy[x->done]] <= x->now[STREAMcompute])
        x->done++;
    return x->done ? x->copy[x->done - 1] + 1 : 0;
}

static int behind_which(Streams *x, int i, StreamKind on, StreamKind of,
                        int end)
{
    const Instr *s = &x->prog->instr[i];
    int all = end ||
              (of == STREAMcomm && instr_info(s->kind)->cls == CLASScollective);

    if (of == STREAMcompute || (all && on == STREAMcompute))
        return x->last[of];
    int meet = meets(x, i, of), over = of == STREAMcopy ? copied(x) : 0;
    return on == STREAMcompute && over > meet ? over : meet;
}

static void put_instr(Streams *x, int phase, int i)
{
    Instr *s = &x->prog->instr[i];
    const Phase *f = &x->prog->phase[phase];
    int end = i == f->first + f->n - 1 && !joins_next(x->prog, phase);
    StreamKind on = i > f->first && !end ? stream_of(x, i) : STREAMcompute;

    for (int of = 0; of < NSTREAM; of++)
        if ((StreamKind)of != on)
            stay_behind(x, i, on, (StreamKind)of,
                        behind_which(x, i, on, (StreamKind)of, end));
    s->issue.stream = on;
    x->last[on] = i + 1;
    x->end[i] = x->now[on] += s->secs;
}

void put_streams(ProgramBuilder *m, Program *p)
{
    Streams x = { .builder = m, .prog = p, .arena = arena_new() };

    x.flight = alloc(x.arena, sizeof *x.flight * (size_t)(m->nnamed + 1));
    x.overlap = (int)opts_int(m->graph->opts, "fold.overlap");
    x.end = alloc(x.arena, sizeof *x.end * (size_t)(p->ninstr + 1));
    for (int f = 0; f < p->nphase; f++)
        for (int k = 0; k < p->phase[f].n; k++)
            put_instr(&x, f, p->phase[f].first + k);
    arena_free(x.arena);
}
