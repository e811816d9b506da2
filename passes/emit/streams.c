/* streams.c: collectives go to a stream of their own, beside what computes.
 *
 *     compute   a record=e1                      b   c   d wait=e2
 *     comm                    gather wait=e1 record=e2
 *
 * The order of the program stays: a collective is behind all that stands before
 * it, and what stands behind it goes on until an instruction names a value that
 * the collective writes, or writes one that it names. That one waits. Streams
 * come together at the end of each phase, so what runs there is as if it ran on
 * one; a body that runs once and post are one. A wait that an earlier one
 * implies is not said.
 *
 * What meets is told by values, before they have places. alloc.c leaves alone
 * what a collective names until compute is behind it, and ir/streams.c proves
 * of the whole plan that no two accesses race. */
#include "emit.h"

/* The last collective that writes and names a value: instruction + 1. */
typedef struct InFlight {
    int wrote, named;
} InFlight;

typedef struct Streams {
    ProgramBuilder *builder;
    Program *prog;
    Table *flight; /* stored value -> InFlight */
    int last;      /* collective on its way: instruction + 1 */
    int known;     /* the same: compute is behind these */
    int compute;   /* instruction of compute that stood last */
    int forked;    /* instruction of compute that comm is behind */
    int events;
} Streams;

int group_writes(const Group *k, const Node *stored)
{
    for (int j = 0; j < k->nout; j++)
        if (storage(k->out[j]) == stored)
            return 1;
    return k->instr.kind == Ijoin;
}

static void send_off(Streams *x, int i)
{
    const Group *k = x->builder->group[i];

    for (int j = 0; j < k->narg; j++) {
        Node *n = k->arg[j] ? storage(k->arg[j]) : NULL;
        InFlight **at =
            n ? (InFlight **)table_at(x->flight, KEYP(value_key(n))) : NULL;
        if (!n)
            continue;
        if (!*at)
            *at = alloc(x->builder->arena, sizeof **at);
        (*at)->named = i + 1;
        if (group_writes(k, n))
            (*at)->wrote = i + 1;
    }
}

/* The last collective that instruction i has to be behind; 0: none. */
static int meets(const Streams *x, int i)
{
    const Group *k = x->builder->group[i];
    int last = 0;

    for (int j = 0; j < k->narg; j++) {
        Node *n = k->arg[j] ? storage(k->arg[j]) : NULL;
        const InFlight *f = n ? table_get(x->flight, KEYP(value_key(n))) : NULL;
        int at = !f ? 0 : group_writes(k, n) ? f->named : f->wrote;
        last = at > last ? at : last;
    }
    return last;
}

static void wait_for(Streams *x, int i, int before)
{
    Issue *l = &x->prog->instr[i].issue, *of = &x->prog->instr[before].issue;

    if (!of->record)
        of->record = ++x->events;
    vec_push(x->builder->arena, l->wait, of->record);
    l->nwait++;
}

/* One over stages stays: the others stand in it with their compute. */
int runs_beside(const ProgramBuilder *m, const Instr *s)
{
    return instr_info(s->kind)->cls == CLASScollective &&
           !(m->graph->mesh && s->atoms & m->graph->mesh->mask[Mpp]);
}

/* Puts i on the stream of collectives; not where the next instruction would
 * have to wait for it, and for it alone. */
static int leaves(Streams *x, int i)
{
    send_off(x, i);
    if (x->last <= x->known && meets(x, i + 1) == i + 1) {
        x->known = i + 1;
        return 0;
    }
    x->prog->instr[i].issue.stream = STREAMcomm;
    if (x->compute > x->forked)
        wait_for(x, i, x->forked = x->compute);
    x->last = i + 1;
    return 1;
}

/* Body, and post behind it: both run once, so nothing keeps them apart. */
int joins_next(const Program *p, int phase)
{
    const Phase *f = &p->phase[phase];

    return phase + 1 < p->nphase && f->reg == REGbody && f->repeat == 1 &&
           f[1].repeat == 1;
}

static void put_instr(Streams *x, int phase, int i)
{
    const Instr *s = &x->prog->instr[i];
    const Phase *f = &x->prog->phase[phase];
    int end = i == f->first + f->n - 1 && !joins_next(x->prog, phase);
    int all = end || instr_info(s->kind)->cls == CLASScollective;

    if (runs_beside(x->builder, s) && i > f->first && !end && leaves(x, i))
        return;
    int behind = all ? x->last : meets(x, i);
    if (behind > x->known)
        wait_for(x, i, (x->known = behind) - 1);
    x->compute = i;
}

void put_streams(ProgramBuilder *m, Program *p)
{
    Streams x = { .builder = m, .prog = p, .forked = -1 };

    x.flight = table_new(m->arena);
    for (int f = 0; f < p->nphase; f++)
        for (int k = 0; k < p->phase[f].n; k++)
            put_instr(&x, f, p->phase[f].first + k);
}
